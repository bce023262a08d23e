//! Restoring: manifest -> locator -> page trees -> a plan in container order -> verified bytes.

mod checkpoint;
mod find;
mod plan;
pub mod planner;
mod read;
mod walk;

pub(crate) use checkpoint::read_catalog;
pub use checkpoint::{Checkpoint, Stream};
pub use find::{Select, Skipped, first_good, first_manifest};
pub use plan::{RestorePlan, RestoreSink, RestoreStats};
pub use read::{ReadFault, ReadPlan, Wanted};
pub(crate) use walk::{Live, walk_live};
