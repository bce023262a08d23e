//! Copies checkpoints from one pool, the source, to another, the destination. `plan` chooses them
//! and checks that they may follow. `needs` finds the data that the base at the destination lacks.
//! `run` reads and verifies it, lets `store` write it, and commits, epoch by epoch. For the
//! destination, a copy is a save like any other, with sessions and rebases. `rename` copies
//! within a pool, then drops the old job.

mod needs;
mod plan;
mod rename;
mod run;
mod store;

pub use plan::{CopyOptions, CopyPlan, EpochCopy, JobCopy, plan};
pub use rename::rename_job;
pub use run::{Copied, CopyReport, JobCopied, copy};
