//! Reaches the limit on open files for a while. It is a test of its own, as the process has one
//! limit.

use outlive_backend::{ReadRange, RetryPolicy, RetryTarget, ShardName, Target, read_one};
use outlive_dir::{DirectoryOptions, DirectoryTarget};
use outlive_io::AlignedBuf;
use outlive_types::{ErrorKind, PackId};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::{self, DirEntry, File};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const SHARD: ShardName = ShardName { pack: PackId([1; 20]), shard: 0 };

/// Takes all file handles that are left.
fn all_handles() -> Vec<File> {
    let taken: Vec<_> = (0..).map_while(|_| File::open("/dev/null").ok()).collect();
    assert!(File::open("/dev/null").is_err());
    taken
}

fn asking(root: &Path, attempts_max: u32, pause: Duration) -> RetryTarget {
    let directory = DirectoryTarget::open(root, &DirectoryOptions::default()).unwrap();
    let policy =
        RetryPolicy { attempts_max, pause_first: pause, pause_max: pause, ..Default::default() };
    RetryTarget::new(Arc::new(directory), policy)
}

#[test]
fn a_read_that_finds_no_file_handle_is_repeated() {
    let root = tempfile::tempdir().unwrap();
    let writing = asking(root.path(), 1, Duration::ZERO);
    let mut writer = writing.create(SHARD, 4096).unwrap();
    let mut page = AlignedBuf::zeroed(4096);
    page.fill(7);
    writer.write(0, page.share()).wait().unwrap();
    writer.finish(4096).wait().unwrap();
    // The thread that finished the shard may not have closed it yet.
    let is_open =
        |fd: &DirEntry| fs::read_link(fd.path()).is_ok_and(|file| file.starts_with(root.path()));
    while fs::read_dir("/proc/self/fd").unwrap().flatten().any(|fd| is_open(&fd)) {
        thread::yield_now();
    }
    let open = fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    let few = Rlimit { current: Some(open + 10), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, few).unwrap();

    let range = || ReadRange::new(0, AlignedBuf::zeroed(4096));
    let (patient, hasty) = (
        asking(root.path(), u32::MAX, Duration::from_millis(1)),
        asking(root.path(), 3, Duration::ZERO),
    );
    let taken = all_handles();
    let fault = read_one(&hasty, SHARD, range()).wait().unwrap_err();
    assert_eq!(fault.error.kind(), ErrorKind::Retry, "{}", fault.error);
    assert!(fault.error.message().contains("ulimit -n"), "{}", fault.error);
    let read = read_one(&patient, SHARD, range());
    assert!(!read.ready());
    drop(taken);
    assert_eq!(*read.wait().unwrap(), [7; 4096]);
    a_sync_that_fails_removes_no_shard_that_was_replaced(root.path());
}

/// A sync of a directory takes a file handle.
fn a_sync_that_fails_removes_no_shard_that_was_replaced(root: &Path) {
    let target = DirectoryTarget::open(root, &DirectoryOptions::default()).unwrap();
    let new = ShardName { shard: 1, ..SHARD };
    for shard in [SHARD, new] {
        let begun =
            if shard == new { target.create(shard, 4096) } else { target.replace(shard, 4096) };
        let mut writer = begun.unwrap();
        let mut page = AlignedBuf::zeroed(4096);
        page.fill(8);
        writer.write(0, page.share()).wait().unwrap();
        let taken = all_handles();
        let error = writer.finish(4096).wait().unwrap_err();
        assert!(error.message().contains("ulimit -n"), "{shard}: {error}");
        drop(taken);
        assert_eq!(target.unfinished().unwrap(), []);
    }
    // Either shard would do, but the old one has no name any more.
    let range = ReadRange::new(0, AlignedBuf::zeroed(4096));
    assert_eq!(*read_one(&target, SHARD, range).wait().unwrap(), [8; 4096]);
    assert_eq!(target.list().unwrap(), [SHARD], "the other one was not there before");
}
