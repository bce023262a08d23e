//! Saves whose image a forked child holds, and their behavior when the child is lost.

use crate::common;
use outlive_log::RecordLog;

use common::{memory_pool, noise};
use outlive_backend::{Throttle, ThrottledTarget};
use outlive_capture::OwnedSource;
use outlive_dir::{DirectoryMedium, DirectoryOptions, DirectoryTarget};
use outlive_pool::{Environment, FormatConfig, Pool, PoolConfig, Tuning};
use outlive_store::{Job, JobOptions, SaveStats, Select};
use outlive_types::{Error, ErrorKind, Result};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Role and directory for this test program when it is started again.
const ROLE: &str = "OUTLIVE_TEST_ROLE";
const MIB: usize = 1 << 20;
const STATE_BYTES: usize = 160 * MIB;
/// Room for the state, the staging buffers and this program, but not for the state twice.
const LIMIT_BYTES: usize = 300 * MIB;

fn slow_pool(dir: &Path, freeze: &str) -> Pool {
    let tuning = Tuning {
        staging_bytes: 16 << 20,
        freeze_bytes_max: 1 << 20,
        freeze: freeze.to_owned(),
        threads: 2,
        ..Tuning::default()
    };
    let config = PoolConfig::new(FormatConfig::new([7; 16]), tuning);
    let target = DirectoryTarget::open(dir, &DirectoryOptions::default()).unwrap();
    let throttle = Throttle { bytes_per_s: Some(64 << 20), ..Throttle::default() };
    let target = Arc::new(ThrottledTarget::new(Arc::new(target), throttle));
    let log = Arc::new(RecordLog::over(DirectoryMedium::open(dir)));
    Pool::new(config, target, log, Environment::system())
}

fn finish(job: &Job, source: &mut OwnedSource) -> Result<SaveStats> {
    job.save(source)?.wait(None).unwrap_or_else(|| Err(Error::bug("no end")))
}

fn is_restored(pool: &Pool, epoch: u64, want: &[u8]) -> bool {
    let job = Job::open(pool, "a", JobOptions::default()).unwrap();
    let (checkpoint, skipped) = job.image(Select::Newest).unwrap().unwrap();
    let into = common::Vectors::for_all(&checkpoint);
    checkpoint.read(&[0], &into).unwrap();
    let bytes = into.into_inner();
    skipped.is_empty() && checkpoint.epoch() == epoch && bytes[0] == want
}

#[test]
fn a_forked_image_is_saved_while_the_program_changes_all_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let pool = slow_pool(dir.path(), "auto");
    let job = Job::open(&pool, "a", JobOptions::default()).unwrap();
    let mut source = OwnedSource::zeroed("state", 24 * MIB, 2);
    let first = noise(1, 24 * MIB);
    source.edit().unwrap().copy_from_slice(&first);
    let handle = job.save(&mut source).unwrap();
    assert!(!handle.done(), "the medium is slow, and the program goes on");
    source.edit().expect("nothing is live").fill(9);
    let stats = handle.wait(None).unwrap().unwrap();
    assert!(stats.freeze.freeze.starts_with("fork: 24.0 MiB exceed"), "{}", stats.freeze.freeze);
    assert_eq!((stats.freeze.forked_bytes, stats.freeze.live_bytes), (24 << 20, 0));
    assert!(stats.stall < stats.total / 2, "{stats:?}");
    assert!(is_restored(&pool, 1, &first));
    // The hashes that the save computed are those of the saved data.
    source.edit().unwrap().copy_from_slice(&first);
    assert_eq!(finish(&job, &mut source).unwrap().changed_bytes, 0);
}

#[test]
fn a_pool_that_says_copy_never_forks() {
    let pool = memory_pool().with_tuning(Tuning {
        staging_bytes: 2 << 20,
        freeze_bytes_max: 0,
        freeze: "copy".to_owned(),
        ..Tuning::default()
    });
    let job = Job::open(&pool, "a", JobOptions::default()).unwrap();
    let mut source = OwnedSource::zeroed("state", 4 * MIB, 1);
    let stats = finish(&job, &mut source).unwrap();
    assert_eq!(stats.freeze.freeze, "copy: as freeze = \"copy\" asks");
    assert_eq!((stats.freeze.live_bytes, stats.freeze.forked_bytes), (4 << 20, 0));
}

/// A memory cgroup that exists for a while.
struct Group(PathBuf);

impl Group {
    /// Returns `None` where this user or system does not allow one: then the test proves nothing.
    fn new() -> Option<Group> {
        let text = fs::read_to_string("/proc/self/cgroup").ok()?;
        let name = format!("outlive-test-{}", std::process::id());
        let inside = |controllers: &str, root: &str| {
            let line = text.lines().find(|line| line.split(':').nth(1) == Some(controllers))?;
            Some(Path::new(root).join(line.splitn(3, ':').nth(2)?.trim_start_matches('/')))
        };
        let first = inside("memory", "/sys/fs/cgroup/memory").map(|dir| (dir, "limit_in_bytes"));
        let second = inside("", "/sys/fs/cgroup").map(|dir| (dir, "max"));
        for (dir, limit) in [first, second].into_iter().flatten() {
            let dir = dir.join(&name);
            if fs::create_dir(&dir).is_err() {
                continue;
            }
            let group = Group(dir);
            let file = group.0.join(format!("memory.{limit}"));
            if file.exists() && fs::write(file, LIMIT_BYTES.to_string()).is_ok() {
                return Some(group);
            }
        }
        println!("no memory cgroup can be made here: this was not tested");
        None
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn a_child_killed_for_want_of_memory_costs_one_save() {
    let Some(group) = Group::new() else { return };
    let play = || {
        let dir = tempfile::tempdir().unwrap();
        let mut played = Command::new(std::env::current_exe().unwrap());
        played.args(["--exact", "freeze::in_a_group_too_small", "--nocapture"]);
        played.env(ROLE, format!("{} {}", group.0.display(), dir.path().display()));
        played.output().unwrap()
    };
    // The kernel chooses the process that it kills; another test checks that the child is marked
    // for it.
    let mut played = play();
    for _ in 0..2 {
        if played.status.signal() == Some(9) {
            println!("the kernel killed the program itself: once more");
            played = play();
        }
    }
    let told = String::from_utf8_lossy(&played.stdout);
    let errors = String::from_utf8_lossy(&played.stderr);
    assert!(
        played.status.success() && told.contains("ALL SEEN"),
        "{}: {told}\n{errors}",
        played.status
    );
}

/// Runs only as a process of the test above.
#[test]
fn in_a_group_too_small() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (group, dir) = role.split_once(' ').unwrap();
    fs::write(Path::new(group).join("cgroup.procs"), std::process::id().to_string()).unwrap();
    let pool = slow_pool(Path::new(dir), "fork");
    let job = Job::open(&pool, "a", JobOptions::default()).unwrap();
    let mut source = OwnedSource::zeroed("state", STATE_BYTES, 2);
    fill(&mut source, 1);
    assert!(finish(&job, &mut source).unwrap().freeze.freeze.starts_with("fork: "));
    fill(&mut source, 2);
    let handle = job.save(&mut source).unwrap();
    // The child keeps the overwritten pages: there is no room for both.
    fill(&mut source, 3);
    let error = handle.wait(None).unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
    assert!(error.message().contains("signal 9"), "{error}");
    assert_eq!(newest_word(&pool), (1, word(1)), "the checkpoint before it stays");
    let stats = finish(&job, &mut source).unwrap();
    assert!(stats.freeze.freeze.starts_with("copy: no fork: an earlier child"));
    assert_eq!(newest_word(&pool), (2, word(3)));
    println!("ALL SEEN");
}

/// Writes bytes that no two pages share, in place: there is no room for a second state.
fn fill(source: &mut OwnedSource, seed: u64) {
    let state = source.edit().expect("nothing is live");
    for (number, page) in state.chunks_mut(4096).enumerate() {
        for (at, bytes) in page.chunks_exact_mut(8).enumerate() {
            let mixed =
                (word(seed) ^ (number * 512 + at) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            bytes.copy_from_slice(&(mixed ^ mixed >> 29).to_le_bytes());
        }
    }
    state[..8].copy_from_slice(&word(seed).to_le_bytes());
}

fn word(seed: u64) -> u64 {
    seed << 40 | seed
}

/// Returns the epoch of the newest whole checkpoint, and the word that shows its seed. It reads
/// all.
fn newest_word(pool: &Pool) -> (u64, u64) {
    struct FirstWord(std::sync::Mutex<[u8; 8]>);
    impl outlive_store::RestoreSink for FirstWord {
        fn write(&self, _: usize, offset: u64, bytes: &[u8]) {
            if offset == 0 {
                self.0.lock().unwrap().copy_from_slice(&bytes[..8]);
            }
        }
        fn zero(&self, _: usize, _: u64, _: u64) {}
    }
    let job = Job::open(pool, "a", JobOptions::default()).unwrap();
    let (checkpoint, skipped) = job.image(Select::Newest).unwrap().unwrap();
    assert!(skipped.is_empty());
    let word = FirstWord(std::sync::Mutex::default());
    checkpoint.read(&[0], &word).unwrap();
    (checkpoint.epoch(), u64::from_le_bytes(word.0.into_inner().unwrap()))
}
