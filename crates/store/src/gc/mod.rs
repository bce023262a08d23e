//! Garbage collection: `survey` (what the logs say) -> `mark` (what is in use) -> `plan` (which packs
//! go) -> `run` (copy, tell every job, delete); `usage` marks to tell who needs what (`share`). Why it is safe beside saves: docs/design/009-gc.md.

mod mark;
mod plan;
mod run;
mod share;
mod survey;
mod usage;

pub(crate) use mark::live_of;
pub use plan::{GcPlan, Thoroughness};
pub use run::{GcOptions, GcReport, collect};
pub(crate) use run::{append_behind, archive_of};
pub(crate) use survey::{JobState, Survey};
pub use usage::{Usage, UsageOf, UsageRow, usage};
