//! Waits until another thread sleeps; for tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Returns the /proc path of the calling thread.
pub fn this_thread() -> PathBuf {
    Path::new("/proc").join(fs::read_link("/proc/thread-self").expect("a thread"))
}

/// Returns when the thread sleeps or has ended.
pub fn until_asleep(thread: &Path) {
    let started = Instant::now();
    while let Ok(stat) = fs::read_to_string(thread.join("stat"))
        && !stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with(['S', 'Z', 'X']))
    {
        assert!(started.elapsed() < Duration::from_secs(300), "the thread never waits");
        thread::sleep(Duration::from_millis(1));
    }
}
