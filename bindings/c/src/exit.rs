//! Completes the saves under way at a normal end of the program.
#![allow(unsafe_code)]

use crate::call::CallMark;
use crate::core::{Core, JOBS};
use crate::notices::{forget_listener, to_stderr};
use outlive_client::End;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};

/// The process that is ending; 0 is none.
static ENDED: AtomicU32 = AtomicU32::new(0);
/// Whether `at_exit` is registered, in this process or one that it was forked from.
static IS_HOOKED: AtomicU32 = AtomicU32::new(0);

/// Registers the completion of saves at the end of this process.
pub(crate) fn watch() {
    if IS_HOOKED.swap(1, Ordering::Relaxed) == 0 {
        // SAFETY: the function takes nothing, lets no panic out, and stays loaded (see build.rs).
        if unsafe { libc::atexit(at_exit) } != 0 {
            IS_HOOKED.store(0, Ordering::Relaxed);
        }
    }
}

/// Whether this process has begun to complete its saves at its end: a later save must be waited
/// for.
pub(crate) fn has_ended() -> bool {
    ENDED.load(Ordering::Relaxed) == std::process::id()
}

extern "C" fn at_exit() {
    // Set this before the waits: each later save waits for itself.
    ENDED.store(std::process::id(), Ordering::Relaxed);
    let work = || {
        let Some(_inside) = CallMark::enter() else {
            to_stderr(
                "error",
                "the program ends inside a call of outlive, from a signal handler or the log callback: a \
                 save under way may be lost. Set a flag there, and end the program outside",
            );
            return;
        };
        forget_listener();
        // Only jobs of this process: those that a forked child inherits belong to the parent.
        JOBS.all().iter().for_each(|core| complete(core));
    };
    let _ = catch_unwind(AssertUnwindSafe(work));
}

/// Waits for a job's last save, and ends its session.
fn complete(core: &Core) {
    if let Err(error) = core.job().wait() {
        to_stderr("error", &format!("the last save before the end of the program failed: {error}"));
    }
    if let Err(error) = core.client.close(End::Exit) {
        // No checkpoint is lost: the session ends with the process.
        to_stderr("warning", &format!("job {} was not closed: {error}", core.job().name()));
    }
}
