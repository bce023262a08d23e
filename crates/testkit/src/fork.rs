//! Work in a forked child.
#![allow(unsafe_code)]

use outlive_types::Result;

/// Returns whether `work` succeeds in a forked child.
pub fn succeeds_in_a_child(work: impl FnOnce() -> Result<()>) -> bool {
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
