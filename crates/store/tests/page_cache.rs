//! Reads that the page cache serves, and reads that it does not. The only test of this program: it
//! counts the reads of the whole process.

#[path = "it/common/mod.rs"]
mod common;
#[path = "it/mounted/mod.rs"]
mod mounted;

use common::{Program, State, noise, small_config};
use mounted::Mount;
use outlive_pool::{Environment, create, open};
use outlive_store::scrub::{ScrubOptions, scrub};
use outlive_store::{Job, JobOptions, Sample, Select};
use std::fs;

const BYTES: usize = 1 << 20;

/// Returns the bytes that this process has read from devices.
fn read_from_devices() -> u64 {
    let io = fs::read_to_string("/proc/self/io").unwrap();
    io.lines().find_map(|line| line.strip_prefix("read_bytes: ")).unwrap().parse().unwrap()
}

/// Whether the kernel can report the contents of the page cache (`cachestat`, Linux 6.5).
fn has_cachestat() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let numbers: Vec<u32> = release.split(['.', '-']).map_while(|part| part.parse().ok()).collect();
    numbers[..2] >= [6, 5][..]
}

/// Restores read from the page cache. Checks do not: a copy in memory proves nothing about the
/// device.
#[test]
fn checks_read_the_device_and_not_the_page_cache() {
    let Some(mount) = Mount::new(64) else { return };
    let path = mount.path().join("pool");
    let state = State::from([("a".to_owned(), noise(1, BYTES))]);
    let pool = create(&path, small_config(), Environment::system()).unwrap();
    Program::start(&pool, "job").save(&state).unwrap();
    let job = Job::open(&pool, "job", JobOptions::default()).unwrap();
    let hold = || {
        for directory in fs::read_dir(path.join("packs")).unwrap() {
            let directory = directory.unwrap().path();
            let files = fs::read_dir(directory).into_iter().flatten();
            files.for_each(|file| drop(fs::read(file.unwrap().path()).unwrap()));
        }
    };
    let reads = |work: &dyn Fn()| {
        hold();
        let before = read_from_devices();
        work();
        (read_from_devices() - before) as usize
    };
    let restored = reads(&|| {
        let pool = open(&path, Environment::system()).unwrap();
        let restored = Program::start(&pool, "job").restore(Select::Newest).unwrap();
        assert!(restored.unwrap().1 == state);
    });
    if has_cachestat() {
        assert!(restored < BYTES / 2, "{restored} bytes, and some of them directories");
    }
    let verified = reads(&|| assert_eq!(job.verify(None).unwrap().findings, vec![]));
    assert!(verified >= BYTES, "{verified} bytes");
    let all = ScrubOptions { sample: Sample::ALL, bytes_per_s: None, dry_run: false };
    let scrubbed = reads(&|| assert!(scrub(&pool, &all).unwrap().is_whole()));
    assert!(scrubbed >= BYTES, "{scrubbed} bytes");
}
