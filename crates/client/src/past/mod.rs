//! The memory of a pool about the runs of a job: its attempts, and the interval that its program has
//! chosen.

mod cause;
mod failures;
mod history;
mod memory;
mod own_attempt;

pub use cause::{Cause, REQUEUE, SAVED};
pub use failures::past_of;
pub use history::{Entry, History, Share, UNSUPERVISED};
pub use memory::{ChosenInterval, IntervalMemory};
