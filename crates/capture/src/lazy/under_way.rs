//! The fills in progress in this process, and the two kinds of waits for them.
//!
//! - A *fork* waits: a child would silently read zeros in place of missing pages, as it has the
//!   parent's memory but neither its userfaultfd nor its threads.
//! - A *freeze* of memory that is being filled waits, whichever job or pool fills it. The child
//!   that holds an image is such a child, and copies by the kernel would fail or find nothing.

use super::{MemoryFill, sys};
use outlive_io::PerProcess;
use outlive_types::Result;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

#[derive(Default)]
struct FillsUnderWay {
    fills: Vec<Weak<MemoryFill>>,
    /// Whether forks call [`complete`].
    hooked: bool,
}

/// Fills in progress in this process. A child has none: its parent's fills do not serve it.
static UNDER_WAY: PerProcess<FillsUnderWay> = PerProcess::new(|parent| FillsUnderWay {
    fills: Vec::new(),
    hooked: parent.is_some_and(|parent| parent.hooked),
});

/// Makes forks and freezes wait for `fill` from now on.
pub(super) fn watch(fill: &Arc<MemoryFill>) {
    let hooked = UNDER_WAY.lock().hooked;
    // Without the lock: the C library may hold one of its own while it calls `complete`.
    // Registering it twice does no harm.
    if !hooked {
        sys::before_fork(complete);
    }
    let mut under_way = UNDER_WAY.lock();
    under_way.hooked = true;
    under_way.fills.retain(|fill| fill.strong_count() > 0);
    under_way.fills.push(Arc::downgrade(fill));
}

fn all() -> Vec<Weak<MemoryFill>> {
    UNDER_WAY.lock().fills.clone()
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

/// Waits for all fills; the forking thread calls it before it forks. Threads that fill never fork.
/// They take no lock that a thread of the program may hold at a fork, the interpreter's included.
extern "C" fn complete() {
    for fill in all().iter().filter_map(Weak::upgrade) {
        fill.wait(None);
    }
}

/// Runs `work` with the lock held, as a thread holds it that is registering a fill.
#[cfg(test)]
pub(super) fn holding_the_lock(work: impl FnOnce()) {
    let _held = UNDER_WAY.lock();
    work();
}
