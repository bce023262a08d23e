//! Work that is one step of a schedule.

use std::thread;

/// No other program goes on meanwhile: in a thread that the schedule does not know of, no lock lets others in.
pub(crate) fn in_one_step<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(work).join()).expect("it does not panic")
}
