//! Copies checkpoints from one pool to another: `plan` (which, and may they) -> `needs` (what of them
//! the base there does not have) -> `run` (read, verify and `store` what is lacking, commit, epoch by
//! epoch). On the way to a target a copy is a save like any other: sessions, mending and all.

mod needs;
mod plan;
mod run;
mod store;

pub use plan::{CopyOptions, CopyPlan, EpochCopy, JobCopy, plan};
pub use run::{Copied, CopyReport, JobCopied, copy};
