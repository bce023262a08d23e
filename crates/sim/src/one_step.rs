//! Work that is one step of a schedule.

use std::thread;

/// Runs `work` while no other program goes on: it gets a thread without the scheduler, so no lock
/// lets others run.
pub(crate) fn in_one_step<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(work).join()).expect("it does not panic")
}
