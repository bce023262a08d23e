//! Saving: a plan, then its execution in stages. Each stage is a file:
//! `plan` (what changed, block by block) -> `chunks` (cut, fingerprint, drop what is known) ->
//! `packer` (fill containers) -> `leaves` (page tree, merging and evacuating) -> `execute` (catalog,
//! segments, commit).

mod chunks;
mod execute;
mod files;
mod lane;
mod leaves;
mod mend;
mod packer;
mod plan;
mod squeezing;
mod stats;
mod writer;

pub(crate) use chunks::ChunkSink;
pub use execute::Order;
pub(crate) use files::FilesImage;
pub(crate) use lane::Lane;
pub use leaves::{Wish, read_merged};
pub(crate) use mend::store_segments;
pub use mend::{Hits, Named};
pub(crate) use packer::{PackNumbers, Packer};
pub use plan::{BlockWork, SavePlan, StreamPlan};
pub(crate) use squeezing::Squeezing;
pub use stats::{SaveNotes, SaveStats};
pub use writer::{Base, Writer};
