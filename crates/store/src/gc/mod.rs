//! Pruning and garbage collection. `prune` drops checkpoints, with a record each. A gc: `survey` (what the logs say) -> `mark` (what is in use) -> `plan` (which packs
//! go) -> `run` (copy: `rewrite`, `tell` every job, delete); `usage` marks to tell who needs what (`line`, `share`). Why it is safe beside saves: docs/design/009-gc.md.

mod behind;
mod chain;
mod chains;
mod collection;
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
pub(crate) use mark::live_of;
pub use plan::{GcPlan, Thoroughness};
pub(crate) use report::{Relisted, append_behind, archive_of, tell, tell_all};
pub(crate) use run::busy;
pub use run::{Collecting, GcReport, collect, collect_after};
pub(crate) use survey::{FirstPacks, JobState, Survey};
pub use usage::{Usage, UsageOf, UsageRow, usage};
