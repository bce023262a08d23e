//! A forked child has its own thread and connections, and does not touch its parent's.
#![allow(unsafe_code)]

use crate::support;

use outlive_log::{LogRecords, Put};
use outlive_types::Result;
use support::{Cluster, job};

/// Returns whether `work` succeeds in a forked child.
fn succeeds_in_a_child(work: impl FnOnce() -> Result<()>) -> bool {
    // SAFETY: the child does `work` and calls `_exit`, so none of Rust's exit code runs in it.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: `alarm` has no requirements; it kills a child that would wait forever.
        unsafe { libc::alarm(60) };
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        let status = match outcome {
            Ok(Ok(())) => 0,
            Ok(Err(error)) => {
                eprintln!("in the child: {error}");
                1
            }
            Err(_) => 2,
        };
        // SAFETY: `_exit` has no requirements; it ends the process.
        unsafe { libc::_exit(status) };
    }
    let mut status = -1;
    // SAFETY: `status` may be written.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

#[test]
fn parent_and_child_use_one_medium() {
    let cluster = Cluster::of(1);
    let medium = cluster.pool_url().medium().unwrap();
    assert_eq!(medium.put_new(&job(), 1, b"one").unwrap(), Put::Made);
    for number in 2..6 {
        let done = succeeds_in_a_child(|| {
            assert_eq!(medium.list(&job())?.len() as u64, number - 1);
            assert_eq!(medium.put_new(&job(), number - 1, b"other")?, Put::Taken);
            assert_eq!(medium.put_new(&job(), number, b"child")?, Put::Made);
            Ok(())
        });
        assert!(done);
        assert_eq!(medium.get(&job(), number).unwrap().unwrap(), b"child");
        assert_eq!(medium.get(&job(), 1).unwrap().unwrap(), b"one");
    }
}
