//! Before the process forks, what is missing comes: a child would read zeros in its place, in
//! silence, as it has the parent's memory but neither its userfaultfd nor its threads.

use super::{Fill, sys};
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};

/// Fills under way in this process.
static UNDER_WAY: Mutex<Vec<Weak<Fill>>> = Mutex::new(Vec::new());
static HOOK: Once = Once::new();

/// Has forks wait for `fill` from now on.
pub(super) fn watch(fill: &Arc<Fill>) {
    HOOK.call_once(|| {
        sys::before_fork(complete);
    });
    let mut fills = UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner);
    fills.retain(|fill| fill.strong_count() > 0);
    fills.push(Arc::downgrade(fill));
}

/// Called by the thread that forks, before it does. Who fills never forks, nor takes a lock that a
/// thread of the program may hold at a fork, the interpreter's included.
extern "C" fn complete() {
    let fills = UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for fill in fills.iter().filter_map(Weak::upgrade) {
        fill.wait(None);
    }
    // Cleared while nobody else can hold the lock for long: a child inherits it as it is now.
    if let Ok(mut fills) = UNDER_WAY.try_lock() {
        fills.retain(|fill| fill.upgrade().is_some_and(|fill| !fill.is_over()));
    }
}
