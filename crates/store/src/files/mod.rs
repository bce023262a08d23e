//! Files: puts trees of them and streams into a pool, and gets them back. A put and a get are each
//! a plan, then its execution (docs/design/008-files.md).
//!
//! `scan` -> `plan` (what need not be read) -> `content` (cut, store) -> `listing` -> `put` (commit);
//! `checkpoint` -> `choice` -> `get` (container order) -> `place`, or `in_order` for streams.

mod assembly;
mod attributes;
mod beneath;
mod checkpoint;
mod choice;
mod content;
mod get;
mod in_order;
mod job;
mod listing;
mod making;
mod patterns;
mod place;
mod plan;
mod put;
mod putter;
mod reading;
mod recipe;
mod scan;
mod trouble;
mod walk;
mod whereabouts;
mod work;

pub use crate::restore::is_of_files;
pub use checkpoint::FilesCheckpoint;
pub(crate) use checkpoint::file_words;
pub use choice::{Choice, Chosen};
pub use get::{GetOptions, GetPlan, GetReport};
pub use in_order::{InOrder, InOrderStats};
pub use job::{PutOptions, PutReport, PutSource};
pub use listing::Items;
pub use making::make_dir;
pub use patterns::Patterns;
pub use plan::PutPlan;
pub use trouble::{Trouble, TroubleKind, Troubles};
pub(crate) use walk::{RECIPE, listing_chunks, walk_files};
