//! Files: puts trees of them and streams into a pool, and gets them back. A put and a get are each
//! a plan, then its execution (docs/design/008-files.md).
//!
//! - A put: `scan` -> `plan` (skips unchanged files) -> `content` (cut, store) -> `listing` ->
//!   `put` (commit).
//! - A get: `selection` -> `there` (skips existing files) -> `get` (container order) -> `placer` ->
//!   `describe`, or `in_order` for streams.
//! - An edit: `tree` (finds items) -> `edit` (applies changes, stores contents, splices the listing).

mod assembly;
mod attempts;
mod attributes;
mod content;
mod describe;
mod edit;
mod file_error;
mod get;
mod globs;
mod in_order;
mod job;
mod leftovers;
mod listed;
mod listing;
mod names;
mod output_files;
mod patterns;
mod placer;
mod plan;
pub mod planner;
mod put;
mod putter;
mod reading;
mod recipe;
mod root_dir;
mod scan;
mod selection;
mod there;
mod tree;
mod work;

pub use edit::{Change, EditFiles, EditOptions, EditSource, Edited, Refusal, RefusedBy};
pub use file_error::{FileError, FileErrorKind, Troubles};
pub use get::{GetFiles, GetOptions, GetPlan, GetReport};
pub use globs::Globs;
pub use in_order::{InOrder, InOrderStats};
pub use job::{PutFiles, PutOptions, PutReport, PutSource};
pub use listed::Listed;
pub use output_files::make_dir;
pub use patterns::Patterns;
pub use plan::PutPlan;
pub use selection::{PathMatch, Selection};
pub use tree::FileTree;
