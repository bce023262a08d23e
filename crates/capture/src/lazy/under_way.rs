//! The fills under way in this process, and who waits for them.
//!
//! - A *fork*: a child would read zeros in place of what is missing, in silence, as it has the parent's
//!   memory but neither its userfaultfd nor its threads.
//! - A *freeze* of memory that is being filled, whichever job or pool fills it: the child that holds an
//!   image is such a child, and what the kernel copies for us fails or finds nothing.

use super::{Fill, sys};
use outlive_types::Result;
use std::ops::Range;
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Fills under way in this process.
static UNDER_WAY: Mutex<Vec<Weak<Fill>>> = Mutex::new(Vec::new());
static HOOK: Once = Once::new();

/// Has forks and freezes wait for `fill` from now on.
pub(super) fn watch(fill: &Arc<Fill>) {
    HOOK.call_once(|| {
        sys::before_fork(complete);
    });
    let mut fills = UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner);
    fills.retain(|fill| fill.strong_count() > 0);
    fills.push(Arc::downgrade(fill));
}

fn all() -> Vec<Weak<Fill>> {
    UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Waits until nothing is missing at these addresses. `None` if that takes longer than `timeout`.
///
/// # Errors
/// If something will stay missing, since its restore has failed.
pub(crate) fn wait_for(parts: &[Range<usize>], timeout: Option<Duration>) -> Option<Result<()>> {
    let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    for fill in all().iter().filter_map(Weak::upgrade) {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if let Err(error) = fill.wait_for_parts(parts, left)? {
            let what =
                "memory to be saved is still missing: a lazy restore fills it, and has failed";
            return Some(Err(error.context(what)));
        }
    }
    Some(Ok(()))
}

/// Called by the thread that forks, before it does. Who fills never forks, nor takes a lock that a
/// thread of the program may hold at a fork, the interpreter's included.
extern "C" fn complete() {
    for fill in all().iter().filter_map(Weak::upgrade) {
        fill.wait(None);
    }
    // Cleared while nobody else can hold the lock for long: a child inherits it as it is now.
    if let Ok(mut fills) = UNDER_WAY.try_lock() {
        fills.retain(|fill| fill.upgrade().is_some_and(|fill| !fill.is_over()));
    }
}
