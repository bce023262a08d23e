//! Reading, the floor below saves, restores, gcs, copies and diffs: manifest -> pack extents ->
//! page trees or listings -> a plan in container order -> verified bytes.
//!
//! `find` chooses a checkpoint of a job, and `reload` repeats a read after a gc has moved data.
//! `image` and `files` open one rank's image of it; `trees`, `nodes` and `live` walk over the data
//! that it needs. `streams` plans the transfers of a restore, `ranges` those of parts, `ranks`
//! those of parts of other ranks' images. `chunks` reads, and passes on `verified` bytes.

mod any;
mod chunks;
pub mod files;
mod find;
mod image;
mod live;
mod nodes;
mod pages;
mod ranges;
mod ranks;
mod reload;
mod streams;
mod trees;
mod verified;

pub use any::AnyImage;
pub use chunks::{ReadFault, ReadOrder, ReadPlan, Take};
pub use find::{Kind, Select, Skipped, find_manifest, first_good, first_manifest, first_of_rank};
pub(crate) use find::{all_marked_bad, first_with_rank, incomplete, marked_bad, suspect};
pub use image::{MemoryImage, Stream};
pub(crate) use image::{check_packed, image_words, read_catalog, read_stream, stream_words};
pub(crate) use live::{Live, NeedsVisitor, Once, Subtree, walk_live};
pub(crate) use nodes::{Lost, read_inner, read_leaf_nodes, read_leaves, read_merged};
pub(crate) use ranges::Leaves;
pub use ranges::RangeReader;
pub use ranks::{RankImages, RankRegions};
pub(crate) use reload::{Current, Logs, Reload, while_moving};
pub use streams::{RestorePlan, RestoreSink, RestoreStats};
pub(crate) use streams::{SoughtPieces, Transfer};
pub use verified::Verified;
