//! Saving: a plan, then its execution in stages. Each stage is a file:
//! `plan` (what changed, block by block) -> `chunks` (cut, fingerprint, drop what is known) ->
//! `packer` (fill containers) -> `leaves` (page tree, merging and evacuating) -> `execute` (catalog,
//! segments) -> `committer` (one manifest for the images of all ranks).

mod chunks;
mod committer;
mod content;
mod events;
mod execute;
mod follow;
mod lane;
mod leaves;
mod mend;
mod notes;
mod packer;
mod pages;
mod plan;
mod presence;
mod segments;
mod squeezing;
mod stats;
mod stored;
mod writer;

pub(crate) use chunks::ChunkSink;
pub use committer::{Committer, Draft};
pub(crate) use content::{CopiedImage, NewImage};
pub use events::{CommitEvent, CommitEvents, Watch};
pub use execute::Order;
pub(crate) use execute::draft_of;
pub(crate) use lane::Lane;
pub use leaves::Wish;
pub(crate) use mend::store_segments;
pub use notes::{SaveNotes, remark};
pub use outlive_format::RankImage;
pub use packer::PackNumbers;
pub(crate) use packer::Packer;
pub(crate) use pages::{store_lists, store_page};
pub use plan::{BlockWork, SavePlan, StreamPlan};
pub use segments::{ImageSegments, ReusedChunks};
pub(crate) use squeezing::Squeezing;
pub use stats::SaveStats;
pub use stored::StoredImage;
pub use writer::{Base, RankWriter, Writer};
