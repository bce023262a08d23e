//! Pruning and garbage collection. `prune` drops checkpoints, with one record in each job's log;
//! `drop_job` drops a job. A gc first reads the logs (`survey`), marks the data in use (`mark`) and chooses the packs to
//! delete (`plan`). Then `run` copies live data (`rewrite`), reports to every job (`report`) and
//! deletes. `usage` marks to find what each unit needs (`chain`, `share`). docs/design/009-gc.md
//! says why all this is safe beside saves.

mod behind;
mod chain;
mod chains;
mod collection;
mod drop_job;
mod leases;
mod mark;
mod pack_marks;
mod plan;
mod prune;
mod report;
mod rewrite;
mod run;
mod share;
mod survey;
mod usage;

pub(crate) use behind::free_behind;
pub(crate) use chains::{RankLine, lines};
pub use collection::GcOptions;
pub use drop_job::{DropJob, drop_job, holder, listed_jobs};
pub(crate) use drop_job::{check_closed, read_closed};
pub(crate) use mark::live_of;
pub use plan::{GcPlan, Thoroughness};
pub(crate) use report::{
    ATTEMPTS, Relisted, append_behind, archive_of, saves_too_fast, tell, tell_all,
};
pub(crate) use run::busy;
pub use run::{Collecting, GcReport, collect, collect_after};
pub(crate) use survey::{FirstPacks, JobState, Survey};
pub use usage::{Usage, UsageOf, UsageRow, usage};
