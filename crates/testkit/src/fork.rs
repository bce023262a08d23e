//! Work in a forked child.
#![allow(unsafe_code)]

use outlive_types::Result;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Status of a child that can start no thread.
const STARTS_NO_THREAD: i32 = 77;

/// Returns whether `work` succeeds in a forked child.
///
/// Under Rust's own `main` a thread that starts or ends holds a lock of the standard library for a
/// moment. A child forked in that moment inherits the lock and can start no thread: it ends, and
/// another is forked. (Programs in Python and C do not use that lock.)
pub fn succeeds_in_a_child(work: impl FnOnce() -> Result<()>) -> bool {
    let mut work = Some(work);
    loop {
        match status_of_a_child(&mut work) {
            Some(STARTS_NO_THREAD) => {}
            status => return status == Some(0),
        }
    }
}

/// Forks a child that does `work`. Returns its exit status, if it exited.
fn status_of_a_child(work: &mut Option<impl FnOnce() -> Result<()>>) -> Option<i32> {
    // SAFETY: the child does `work` and calls `_exit`, so none of Rust's exit code runs in it.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: `alarm` has no requirements; it kills a child that would wait forever.
        unsafe { libc::alarm(60) };
        if !starts_a_thread() {
            // SAFETY: `_exit` has no requirements; it ends the process.
            unsafe { libc::_exit(STARTS_NO_THREAD) };
        }
        let work = work.take().expect("only a child takes the work, from its own memory");
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
    libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status))
}

fn starts_a_thread() -> bool {
    let (started, starts) = channel();
    let thread = std::thread::spawn(move || started.send(()));
    let has_started = starts.recv_timeout(Duration::from_secs(20)).is_ok();
    // The thread has ended before the work begins, which may fork again.
    has_started && thread.join().is_ok()
}
