//! Files: puts trees of them and streams into a pool, and gets them back. A put and a get are each
//! a plan, then its execution (docs/design/008-files.md).
//!
//! `scan` -> `plan` (what need not be read) -> `content` (cut, store) -> `listing` -> `put` (commit);
//! `choice` -> `there` (what need not be made) -> `get` (container order) -> `place` -> `describe`, or
//! `in_order` for streams.

mod assembly;
mod attempts;
mod attributes;
mod beneath;
mod choice;
mod content;
mod describe;
mod get;
mod in_order;
mod job;
mod leftovers;
mod listing;
mod making;
mod names;
mod patterns;
mod place;
mod plan;
pub mod planner;
mod put;
mod putter;
mod reading;
mod recipe;
mod scan;
mod there;
mod trouble;
mod work;

pub use choice::{Choice, PathMatch};
pub use get::{GetFiles, GetOptions, GetPlan, GetReport};
pub use in_order::{InOrder, InOrderStats};
pub use job::{PutFiles, PutOptions, PutReport, PutSource};
pub use making::make_dir;
pub use patterns::Patterns;
pub use plan::PutPlan;
pub use trouble::{Trouble, TroubleKind, Troubles};
