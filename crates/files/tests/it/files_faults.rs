//! Files that change during a read, full and read-only file systems, users without rights, and very
//! many files.

use crate::common;
use crate::stepped;
use crate::trees;

use common::{noise, small_config};
use outlive_backend::MemoryTarget;
use outlive_files::{FileErrorKind, GetFiles, GetOptions, PutFiles, PutOptions, PutSource};
use outlive_log::MemoryLog;
use outlive_pool::{Environment, create};
use outlive_store::{Job, Select};
use outlive_types::ErrorKind;
use rustix::time::{ClockId, clock_gettime};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use stepped::{SteppedLog, SteppedTarget, Steps};
use trees::*;

fn threads_called(name: &str) -> usize {
    let threads = fs::read_dir("/proc/self/task").unwrap().map(|entry| entry.unwrap().path());
    let names = threads.filter_map(|path| fs::read_to_string(path.join("comm")).ok());
    names.filter(|found| found.trim() == name).count()
}

/// Returns a world whose reader stops at `create` once, with the first of its files half read.
fn interrupted(act: impl Fn() + Send + Sync + 'static) -> World {
    let steps = Steps::default();
    let world = World::on(
        Arc::new(SteppedTarget(Arc::new(MemoryTarget::new()), steps.clone())),
        Arc::new(SteppedLog(Arc::new(MemoryLog::new()), steps.clone())),
        |_| {},
    );
    let once = AtomicBool::new(false);
    steps.hook(move |_, what| {
        if what == "create" && !once.swap(true, Ordering::SeqCst) {
            // The scan continues to its end; then its thread is gone, and only this one remains.
            // Where other tests run in this process, that may never happen.
            let started = Instant::now();
            while threads_called("outlive-put") > 1 && started.elapsed() < Duration::from_secs(5) {
                std::thread::sleep(Duration::from_millis(1));
            }
            act();
        }
    });
    world
}

#[test]
fn a_file_that_changes_once_is_read_again() {
    for length in [0, 100, 299_999, 2_000_000] {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, noise(1, 300_000)).unwrap();
        let world = interrupted(move || fs::write(&file, noise(2, length)).unwrap());
        let job = world.job();
        let report = put(&job, dir.path()).unwrap();
        assert!(report.troubles.is_empty(), "{length}: {:?}", report.troubles);
        same(&got(&job, 1, world.dir.path()), &snapshot(dir.path()), "read again");
    }
}

#[test]
fn files_that_vanish_are_reported_and_left_out() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a"), noise(1, 300_000)).unwrap();
    fs::write(dir.path().join("b"), noise(1, 5)).unwrap();
    fs::write(dir.path().join("c"), noise(2, 5000)).unwrap();
    fs::hard_link(dir.path().join("c"), dir.path().join("d")).unwrap();
    let path = dir.path().to_path_buf();
    let world = interrupted(move || {
        fs::remove_file(path.join("b")).unwrap();
        // A link that leads elsewhere is not followed.
        fs::remove_file(path.join("c")).unwrap();
        symlink("/etc/passwd", path.join("c")).unwrap();
    });
    let job = world.job();
    let report = put(&job, dir.path()).unwrap();
    let troubles: Vec<_> =
        report.troubles.kept.iter().map(|trouble| (&trouble.path[..], trouble.kind)).collect();
    let expected = [
        (&b"b"[..], FileErrorKind::Vanished),
        (b"c", FileErrorKind::Vanished),
        (b"d", FileErrorKind::Unreadable),
    ];
    assert_eq!(troubles, expected);
    assert!(!report.troubles.is_whole());
    let found = got(&job, 1, world.dir.path());
    assert_eq!(found.keys().collect::<Vec<_>>(), [&b"."[..], b"a"]);
    // The next put includes the file.
    let report = put_whole(&job, dir.path());
    assert_eq!(report.plan.kept_files, 1);
    same(&got(&job, 2, world.dir.path()), &snapshot(dir.path()), "the next");
}

#[test]
fn a_further_name_never_gets_the_content_of_another_file() {
    for length in [6000, 70_000_000] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), noise(1, 300_000)).unwrap();
        fs::write(dir.path().join("c"), noise(2, 5000)).unwrap();
        fs::hard_link(dir.path().join("c"), dir.path().join("d")).unwrap();
        let path = dir.path().to_path_buf();
        let outside = tempfile::tempdir().unwrap();
        let new = outside.path().join("new");
        fs::write(&new, noise(3, length)).unwrap();
        // As editors save: another file has the name now, and the listed file is only "d".
        let world = interrupted(move || fs::rename(&new, path.join("c")).unwrap());
        let job = world.job();
        let report = put(&job, dir.path()).unwrap();
        let troubles: Vec<_> =
            report.troubles.kept.iter().map(|trouble| (&trouble.path[..], trouble.kind)).collect();
        assert_eq!(troubles, [(&b"d"[..], FileErrorKind::Unreadable)]);
        let (mut found, mut there) = (got(&job, 1, world.dir.path()), snapshot(dir.path()));
        there.remove(&b"d"[..]);
        // The directory has changed since the scan.
        assert_eq!(there.remove(&b"."[..]).is_some(), found.remove(&b"."[..]).is_some());
        same(&found, &there, "the new content, under its own name only");
        put_whole(&job, dir.path());
        same(&got(&job, 2, world.dir.path()), &snapshot(dir.path()), "the next");
    }
}

/// A clock that panics in every thread except the one that created it.
struct BrokenClock(std::sync::OnceLock<std::thread::ThreadId>);

impl outlive_types::Clock for BrokenClock {
    fn unix_ns(&self) -> u64 {
        let is_ours = |owner: &std::thread::ThreadId| *owner == std::thread::current().id();
        assert!(self.0.get().is_none_or(is_ours), "this clock is broken");
        0
    }
    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }
}

#[test]
fn a_thread_that_panics_ends_the_put() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), noise(1, 300_000)).unwrap();
    let clock = Arc::new(BrokenClock(Default::default()));
    let env = Environment { clock: clock.clone(), ..Environment::system() };
    let (target, log) = (Arc::new(MemoryTarget::new()), Arc::new(MemoryLog::new()));
    let pool = outlive_pool::Pool::new(small_config(), target, log, env);
    let job = Job::open(&pool, "job", Default::default()).unwrap();
    let (sender, over) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        clock.0.set(std::thread::current().id()).unwrap();
        let put = || put(&job, dir.path()).is_ok();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(put));
        sender.send(matches!(outcome, Ok(true))).unwrap();
    });
    assert!(!over.recv_timeout(Duration::from_secs(300)).expect("it ends"));
}

#[test]
fn a_put_of_nothing_is_no_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), noise(1, 300_000)).unwrap();
    let world = World::new();
    let job = world.job();
    put_whole(&job, dir.path());
    let error = job.put(PutSource::Paths(&[]), &PutOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert_eq!(job.files(Select::Newest).unwrap().unwrap().0.epoch(), 1);
}

#[test]
fn a_file_that_never_holds_still_is_told() {
    for grows in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, noise(1, 8_000_000)).unwrap();
        fs::write(dir.path().join("other"), "x").unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let steps = Arc::new(AtomicU64::new(0));
        let restless = {
            let (over, steps, mut file) =
                (over.clone(), steps.clone(), OpenOptions::new().append(true).open(path).unwrap());
            std::thread::spawn(move || {
                let mut length = 8_000_000;
                while !over.load(Ordering::Relaxed) {
                    length -= 1;
                    if grows {
                        file.write_all(b"x").unwrap()
                    } else {
                        file.set_len(length).unwrap()
                    }
                    steps.fetch_add(1, Ordering::Relaxed);
                    std::thread::yield_now();
                }
            })
        };
        // On a busy machine the other thread may rest while a put reads the file. Such a put
        // decides nothing; but of 20 during which the file changed, one is told.
        let mut untold = 0;
        let (world, job, report) = loop {
            let world = World::new();
            let job = world.job();
            let before = steps.load(Ordering::Relaxed);
            match put(&job, dir.path()) {
                Ok(report)
                    if report.troubles.is_empty() && untold < 20 && !restless.is_finished() =>
                {
                    untold += u64::from(steps.load(Ordering::Relaxed) > before);
                }
                report => break (world, job, report),
            }
        };
        over.store(true, Ordering::Relaxed);
        restless.join().unwrap();
        let report = report.unwrap();
        assert_eq!(report.troubles.count(FileErrorKind::Changed), 1, "{:?}", report.troubles);
        assert_eq!(report.troubles.len(), 1);
        let found = got(&job, 1, world.dir.path());
        assert_eq!(found.len(), 3);
        // Its content is doubtful, so the next put reads it again whatever its times are.
        assert_eq!(put_whole(&job, dir.path()).plan.read_files, 1);
        same(&got(&job, 2, world.dir.path()), &snapshot(dir.path()), "at rest");
    }
}

#[test]
fn a_put_stopped_halfway_commits_nothing() {
    let dir = tempfile::tempdir().unwrap();
    for number in 0..10 {
        fs::write(dir.path().join(number.to_string()), noise(number, 100_000)).unwrap();
    }
    let stop = Arc::new(AtomicBool::new(false));
    let options = PutOptions { stop: stop.clone(), ..PutOptions::default() };
    let setter = stop.clone();
    let world = interrupted(move || setter.store(true, Ordering::Relaxed));
    let job = world.job();
    assert_eq!(put_with(&job, dir.path(), &options).unwrap_err().kind(), ErrorKind::Retry);
    assert!(job.files(Select::Newest).unwrap().is_none());
    stop.store(false, Ordering::Relaxed);
    put_with(&job, dir.path(), &options).unwrap();
    same(&got(&job, 1, world.dir.path()), &snapshot(dir.path()), "the next");
}

/// A file system in memory of a few MiB; without root there is none, and the test reports that.
struct Mount(PathBuf);

impl Mount {
    fn new(path: PathBuf) -> Option<Mount> {
        if !is_root() {
            eprintln!("not root: nothing is mounted, so this test checks nothing here");
            return None;
        }
        fs::create_dir(&path).unwrap();
        run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=6m", "none"]).arg(&path));
        Some(Mount(path))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // A failure here must not hide the test's own failure.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn run(command: &mut Command) {
    assert!(command.status().is_ok_and(|status| status.success()), "{command:?} failed");
}

#[test]
fn full_and_read_only_file_systems() {
    let world = World::new();
    let source = world.directory("source");
    for number in 0..10 {
        fs::write(source.join(number.to_string()), noise(number, 1 << 20)).unwrap();
    }
    fs::write(source.join("small"), "x").unwrap();
    let Some(mount) = Mount::new(world.dir.path().join("mount")) else { return };
    // The pool's file system fills up.
    let pool = create(&mount.0.join("pool"), small_config(), Environment::system()).unwrap();
    let job = Job::open(&pool, "job", Default::default()).unwrap();
    assert_eq!(put(&job, &source).unwrap_err().kind(), ErrorKind::Full);
    put_whole(&job, &source.join("small"));
    assert!(got(&job, 1, world.dir.path()).contains_key(&b"small"[..]));
    drop((job, pool));
    fs::remove_dir_all(mount.0.join("pool")).unwrap();
    // The destination fills up: unfinished files are removed.
    let job = world.job();
    put_whole(&job, &source);
    let to = mount.0.join("to");
    let error = checkpoint(&job, 1).get(&into(&to)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    for file in fs::read_dir(&to).unwrap() {
        let file = file.unwrap();
        let name = file.file_name();
        assert_eq!(fs::read(file.path()).unwrap(), fs::read(source.join(name)).unwrap());
    }
    fs::remove_dir_all(&to).unwrap();
    // A read-only pool can be read, and not written.
    fs::write(mount.0.join("file"), "x").unwrap();
    run(Command::new("mount").args(["-o", "remount,ro"]).arg(&mount.0));
    let error = checkpoint(&job, 1).get(&into(&to)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    put_whole(&job, &mount.0);
    same(&got(&job, 2, world.dir.path()), &snapshot(&mount.0), "read-only");
}

/// All limits for a user without rights, in a pool on disk that all users can read.
fn as_other_user(dir: &Path) {
    let pool = outlive_pool::open(&dir.join("pool"), Environment::system()).unwrap();
    let job = Job::open(&pool, "job", Default::default()).unwrap();
    let to = dir.join("theirs/to");
    let report = checkpoint(&job, 1).get(&into(&to)).unwrap();
    let troubles: Vec<_> =
        report.troubles.kept.iter().map(|trouble| (&trouble.path[..], trouble.kind)).collect();
    assert_eq!(troubles, [(&b"null"[..], FileErrorKind::Incomplete)], "{:?}", report.troubles);
    let found = snapshot(&to);
    let mode = |name: &str| found[name.as_bytes()].mode;
    // With these bits a program would run with the rights of this user instead of its owner's.
    assert_eq!((mode("set-id"), mode("plain"), mode("locked")), (0o755, 0o640, 0));
    assert!(found.values().all(|item| item.owner == (OTHER, OTHER)));

    // Unreadable files are reported.
    let theirs = outlive_pool::open(&dir.join("theirs/pool"), Environment::system()).unwrap();
    let job = Job::open(&theirs, "job", Default::default()).unwrap();
    let report = put(&job, &dir.join("source")).unwrap();
    let troubles: Vec<_> =
        report.troubles.kept.iter().map(|trouble| (&trouble.path[..], trouble.kind)).collect();
    let expected = [&b"locked"[..], b"locked dir", b"plain"];
    assert_eq!(troubles, expected.map(|path| (path, FileErrorKind::Unreadable)));
    assert!(!report.troubles.is_whole());

    // If no file is readable, there is no checkpoint.
    for name in ["locked dir", "locked"] {
        let error = put(&job, &dir.join("source").join(name)).unwrap_err();
        assert!(
            error.kind() == ErrorKind::Invalid && error.message().contains("ermission"),
            "{error}"
        );
    }
    assert_eq!(job.files(Select::Newest).unwrap().unwrap().0.epoch(), 1);

    // A get cannot write to an unwritable directory.
    let error = checkpoint(&job, 1).get(&into(&dir.join("ours"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let options = GetOptions { overwrite: true, ..into(&dir.join("mixed")) };
    let report = checkpoint(&job, 1).get(&options).unwrap();
    let lost: Vec<&[u8]> = report.troubles.kept.iter().map(|t| t.path.as_slice()).collect();
    assert!(lost.contains(&&b"dir/file"[..]), "{:?}", report.troubles);
    assert!(dir.join("mixed/set-id").exists());
}

#[test]
fn a_user_without_rights_gets_the_permitted_items() {
    if let Some(dir) = dir_as_other_user() {
        return as_other_user(&dir);
    }
    if !is_root() {
        eprintln!("not root: this test cannot become another user, so it checks nothing here");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    fs::create_dir_all(source.join("dir")).unwrap();
    for (name, mode) in [("set-id", 0o6755), ("plain", 0o640), ("locked", 0), ("dir/file", 0o644)] {
        fs::write(source.join(name), name).unwrap();
        set_mode(&source.join(name), mode);
    }
    let device = rustix::fs::makedev(1, 3);
    let kind = rustix::fs::FileType::CharacterDevice;
    let mode = rustix::fs::Mode::from_raw_mode(0o666);
    rustix::fs::mknodat(rustix::fs::CWD, source.join("null"), kind, mode, device).unwrap();
    let pool = create(&dir.path().join("pool"), small_config(), Environment::system()).unwrap();
    let job = Job::open(&pool, "job", Default::default()).unwrap();
    put_whole(&job, &source);
    fs::create_dir(source.join("locked dir")).unwrap();
    set_mode(&source.join("locked dir"), 0o700);
    for name in ["theirs", "ours", "mixed", "mixed/dir"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    for name in ["theirs", "mixed"] {
        chown(dir.path().join(name), Some(OTHER), Some(OTHER)).unwrap();
    }
    create(&dir.path().join("theirs/pool"), small_config(), Environment::system()).unwrap();
    run(Command::new("chown").args(["-R", "65534:65534"]).arg(dir.path().join("theirs")));
    run_as_other_user("files_faults::a_user_without_rights_gets_the_permitted_items", dir.path());
}

#[test]
fn a_hundred_thousand_files_take_little() {
    let memory = Path::new("/dev/shm");
    let dir = tempfile::tempdir_in(if memory.is_dir() { memory } else { Path::new("/tmp") });
    let dir = dir.unwrap();
    let source = dir.path().join("source");
    for number in 0..100_000 {
        if number % 1000 == 0 {
            fs::create_dir_all(source.join(format!("{}", number / 1000))).unwrap();
        }
        let path = source.join(format!("{}/file-{number}", number / 1000));
        // Some contents are in the listing, others are not.
        fs::write(path, noise(number, if number % 10 == 0 { 2000 } else { 100 })).unwrap();
    }
    let tuning = outlive_pool::Tuning { threads: 2, ..Default::default() };
    let config = outlive_pool::PoolConfig::new(outlive_pool::FormatConfig::new([7; 16]), tuning);
    let pool = create(&dir.path().join("pool"), config, Environment::system()).unwrap();
    let job = Job::open(&pool, "job", Default::default()).unwrap();
    let before = peak_kib();
    let worked = || Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap();
    let started = worked();
    let report = put_whole(&job, &source);
    let took = worked() - started;
    assert_eq!((report.plan.files, report.items), (100_000, 100_101));
    assert!(report.stats.new_bytes < 60 << 20, "{:?}", report.stats);
    // A changed name rewrites a chunk of the listing, not all of it.
    fs::rename(source.join("50/file-50500"), source.join("50/file-x")).unwrap();
    let again = put_whole(&job, &source);
    let (plan, _) = job.plan_put(std::slice::from_ref(&source), &PutOptions::default()).unwrap();
    assert_eq!(plan.files, 100_000);
    assert!(again.stats.raw_bytes < 200_000, "{:?}", again.stats);
    let to = dir.path().join("to");
    let report = checkpoint(&job, 2).get(&into(&to)).unwrap();
    assert_eq!((report.files, report.troubles.len()), (100_000, 0));
    let grown = peak_kib() - before;
    assert!(grown < 100 << 10, "{grown} KiB");
    assert!(took < Duration::from_secs(30), "{took:?}");
    for path in ["7/file-7000", "50/file-x", "99/file-99999"] {
        assert_eq!(fs::read(to.join(path)).unwrap(), fs::read(source.join(path)).unwrap());
    }
}

fn peak_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
