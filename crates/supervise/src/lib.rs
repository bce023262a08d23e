//! Runs a program under failures: starts it, and starts it again after a crash, a kill or a hang.
//! Before a scheduler ends it, asks it to save and to end.
//!
//! [`run`] carries out what [`Policy`] decides. The policy is pure: it learns how each attempt ended,
//! and says what follows. [`History`] keeps starts, ends and causes in the pool; programs read it, too.

mod attempt;
mod cause;
mod deadline;
mod interrupts;
mod options;
mod policy;
mod pool_side;
mod process;
mod run;
mod slurm;
mod transcripts;

pub use interrupts::{Interrupt, Interrupts};
pub use options::RunOptions;
pub use outlive_client::past::{Cause, Entry, History, Share, UNSUPERVISED};
pub use policy::{Ended, Next, Policy};
pub use process::check_command;
pub use run::{Outcome, count_commits, run};
pub use slurm::job_end_ns;
pub use transcripts::Tell;
