//! Garbage collection: `survey` (what the logs say) -> `mark` (what is in use) -> `plan` (which packs
//! go) -> `run` (copy, tell every job, delete). Why it is safe beside saves: docs/design/009-gc.md.

mod mark;
mod plan;
mod run;
mod survey;

pub use plan::{GcPlan, Thoroughness};
pub use run::{GcOptions, GcReport, collect};
