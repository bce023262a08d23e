//! Restoring: manifest -> locator -> page trees -> a plan in container order -> verified bytes.

mod checkpoint;
mod plan;
mod read;
mod walk;

pub use checkpoint::{Checkpoint, Stream};
pub use plan::{RestorePlan, RestoreSink, RestoreStats};
pub use read::{ReadFault, ReadPlan, Wanted};
