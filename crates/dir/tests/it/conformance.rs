//! Runs the conformance suite on every backend and every wrapper.

use outlive_backend::conformance::{check_files, check_log, check_medium, check_target};
use outlive_backend::{
    Bounds, FaultWorld, MemoryTarget, RetryMedium, RetryPolicy, RetryTarget, Target, TargetWatch,
    Throttle, ThrottledMedium, ThrottledTarget, WatchedTarget,
};
use outlive_dir::{DirectoryFiles, DirectoryMedium, DirectoryOptions, DirectoryTarget};
use outlive_log::{Asking, LogMedium, MemoryLog, MemoryMedium, RecordLog, ReplicatedLog};
use outlive_types::{ErrorKind, NoObserver};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

/// Makes new, empty directories, and removes them all at the end.
struct Dirs {
    base: PathBuf,
    made: Mutex<Vec<TempDir>>,
}

impl Dirs {
    fn new(base: &Path) -> Dirs {
        Dirs { base: base.to_owned(), made: Mutex::default() }
    }

    fn next(&self) -> PathBuf {
        let dir = tempfile::tempdir_in(&self.base).unwrap();
        // A missing directory, with a name that scripts may misread.
        let path = dir.path().join("not yet there").join("a pool");
        self.made.lock().unwrap().push(dir);
        path
    }
}

fn check_directory_target(base: &Path, direct_io: bool) {
    let dirs = Dirs::new(base);
    check_target(move || {
        let options = DirectoryOptions { direct_io, ..DirectoryOptions::default() };
        Arc::new(DirectoryTarget::open(&dirs.next(), &options).unwrap())
    });
}

/// Returns a target that is left alone while it does not answer.
fn watched(inner: Arc<dyn Target>) -> Arc<dyn Target> {
    let look = Arc::new(|| Ok(()));
    let watch = TargetWatch::new("a target", Bounds::default(), Arc::new(NoObserver), look);
    Arc::new(WatchedTarget::new(inner, watch))
}

#[test]
fn watched_directory() {
    let dirs = Dirs::new(&std::env::temp_dir());
    check_target(move || {
        let options = DirectoryOptions { threads: Some(2), ..DirectoryOptions::default() };
        watched(Arc::new(DirectoryTarget::open(&dirs.next(), &options).unwrap()))
    });
}

fn check_directory_log(base: &Path) {
    let dirs = Arc::new(Dirs::new(base));
    let (media, files) = (dirs.clone(), dirs.clone());
    check_files(move || Arc::new(DirectoryFiles::within(&files.next())));
    check_medium(move || Arc::new(DirectoryMedium::open(&media.next())));
    check_log(true, move || Arc::new(RecordLog::over(DirectoryMedium::open(&dirs.next()))));
}

/// Returns a file system in memory, if the machine has one.
fn tmpfs() -> Option<&'static Path> {
    let shm = Path::new("/dev/shm");
    tempfile::tempdir_in(shm).is_ok().then_some(shm)
}

#[test]
fn directory_target() {
    check_directory_target(&std::env::temp_dir(), true);
}

#[test]
fn directory_target_through_the_page_cache() {
    check_directory_target(&std::env::temp_dir(), false);
}

#[test]
fn directory_on_tmpfs() {
    if let Some(base) = tmpfs() {
        check_directory_target(base, true);
        check_directory_log(base);
    }
}

#[test]
fn directory_log() {
    check_directory_log(&std::env::temp_dir());
}

#[test]
fn memory() {
    check_target(|| Arc::new(MemoryTarget::new()));
    check_target(|| watched(Arc::new(MemoryTarget::new())));
    check_target(|| Arc::new(MemoryTarget::with_capacity(1 << 30)));
    check_medium(|| Arc::new(MemoryMedium::default()));
    check_log(false, || Arc::new(MemoryLog::new()));
    check_log(true, || Arc::new(MemoryLog::with_locks()));
}

#[test]
fn several_replicas() {
    let dirs = Arc::new(Dirs::new(&std::env::temp_dir()));
    for asking in [Asking::AtOnce, Asking::InTurn] {
        let memory = move |locks: bool| {
            let medium = move || match locks {
                true => MemoryMedium::with_locks(),
                false => MemoryMedium::default(),
            };
            let media = (0..3).map(|_| Arc::new(medium()) as Arc<dyn LogMedium>).collect();
            ReplicatedLog::new(media, asking).unwrap()
        };
        let (media, logs) = (dirs.clone(), dirs.clone());
        let directories = move |dirs: &Dirs| {
            let one = |_| Arc::new(DirectoryMedium::open(&dirs.next())) as Arc<dyn LogMedium>;
            ReplicatedLog::new((0..3).map(one).collect(), asking).unwrap()
        };
        check_medium(move || Arc::new(memory(false)));
        check_medium(move || Arc::new(directories(&media)));
        check_log(false, move || Arc::new(RecordLog::over(memory(false))));
        check_log(true, move || Arc::new(RecordLog::over(memory(true))));
        check_log(true, move || Arc::new(RecordLog::over(directories(&logs))));
    }
}

#[test]
fn fault_world_without_faults() {
    check_target(|| FaultWorld::new().target());
    check_medium(|| FaultWorld::new().medium());
    check_log(false, || FaultWorld::new().log());
    check_log(true, || FaultWorld::with_locks().log());
}

#[test]
fn throttled() {
    let throttle = Throttle { bytes_per_s: Some(2 << 30), latency: Duration::from_micros(100) };
    check_target(move || Arc::new(ThrottledTarget::new(Arc::new(MemoryTarget::new()), throttle)));
    check_log(true, move || {
        Arc::new(RecordLog::over(ThrottledMedium::new(
            Arc::new(MemoryMedium::with_locks()),
            throttle,
        )))
    });
}

/// Returns a world in which two of three operations fail in passing, except those of a finish.
fn flaky() -> FaultWorld {
    let world = FaultWorld::with_locks();
    world.count_reads(true);
    world.fail_when(|number, name| {
        (number % 3 != 0 && !name.starts_with("finish")).then_some(ErrorKind::Retry)
    });
    world
}

fn patient() -> RetryPolicy {
    // Threads share the numbering, so one thread may meet more than two faults in a row.
    RetryPolicy { attempts_max: 100, pause_first: Duration::ZERO, ..RetryPolicy::default() }
}

#[test]
fn retried() {
    check_target(|| -> Arc<dyn Target> { Arc::new(RetryTarget::new(flaky().target(), patient())) });
    check_log(true, || Arc::new(RecordLog::over(RetryMedium::new(flaky().medium(), patient()))));
}
