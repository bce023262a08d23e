//! Checkpoints of one job: `save` makes them, `commit` makes them exist, `restore` gives them back,
//! `index` knows where everything is, `tree` is what they consist of.
//!
//! The store takes a program's memory as an `impl PageSource` and a [`Pool`](outlive_pool::Pool);
//! it knows nothing of kernels, file systems or networks.

pub mod commit;
pub mod copy;
pub mod diff;
mod drain;
pub mod files;
mod follow;
pub mod gc;
mod handle;
pub mod index;
mod inner;
mod job;
mod owners;
mod pace;
pub mod restore;
pub mod retention;
pub mod save;
pub mod scrub;
pub mod tree;
mod verify;

pub use handle::SaveHandle;
pub use job::{EpochInfo, Job, JobOptions, Prepared, Restored};
pub use restore::{
    Checkpoint, LazyEnds, LazyFill, LazySink, RestorePlan, RestoreSink, RestoreStats, Select,
    Skipped,
};
pub use save::{SaveNotes, SavePlan, SaveStats};
pub use verify::{Finding, Sample, VerifyReport, is_damage, without_collected};
