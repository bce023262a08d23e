//! Saving: a plan, then its execution in stages. Each stage is a file:
//! - `plan`: lists the changes, block by block;
//! - `chunks`: cuts, fingerprints, drops known chunks;
//! - `packer`: fills containers;
//! - `leaves`: builds the page tree, merges and evacuates;
//! - `execute`: stores catalog and segments;
//! - `committer`: commits one manifest for the images of all ranks.

mod chunks;
mod committer;
mod content;
mod events;
mod execute;
mod follow;
mod frame_compression;
mod lane;
mod leaves;
mod notes;
mod packer;
mod pages;
mod plan;
mod presence;
mod rebase;
mod segments;
mod stats;
mod stored;
mod writer;

pub use chunks::BlockExtents;
pub(crate) use chunks::ChunkSink;
pub use committer::{CheckpointHeader, Committer};
pub(crate) use content::{CopiedImage, NewImage};
pub use events::{CommitEvent, CommitEvents, CommitWatch};
pub use execute::SaveRequest;
pub(crate) use execute::checkpoint_header;
pub(crate) use frame_compression::FrameCompression;
pub(crate) use lane::Lane;
pub use leaves::{LeafStage, RewriteCandidate};
pub use notes::{SaveNotes, remark};
pub use outlive_format::RankImage;
pub use packer::{PackNumbers, Packer};
pub(crate) use pages::{store_lists, store_page};
pub use plan::{BlockWork, SavePlan, StreamPlan};
pub(crate) use rebase::store_segments;
pub use segments::{ImageSegments, ReusedChunks};
pub use stats::SaveStats;
pub use stored::StoredImage;
pub use writer::{Base, RankWriter, Writer};
