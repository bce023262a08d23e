//! The bytes of all stored structures, exactly as `docs/format.md` describes them: pure encoders
//! and decoders, one noun a file, no I/O.
//!
//! A decoder accepts any bytes. It returns the one value that encodes to exactly these bytes, or an
//! error: `Damaged`, or `Invalid` for another format version. It never panics, and reserves memory
//! only in proportion to its input. An encoder refuses all values that its decoder would refuse.
//! The error is `Bug`, or `Invalid` if the program gave the value.

mod call_message;
mod catalog;
mod codec;
mod directory;
mod item;
mod leaf;
mod listing;
mod node;
mod outputs;
mod plain;
mod recipe;
mod record;
mod save_message;
mod shard;
mod slice;
mod tree;

pub use call_message::{CallMessage, Payload, RUN_BYTES_MAX, Token};
pub use catalog::{Catalog, CatalogRegion, DIMENSIONS_MAX, TEXT_BYTES_MAX};
pub use codec::{Checksum, checksum, fingerprint};
pub use directory::{Directory, DirectoryEntry, EntryKind, InFrame, LENGTH_MAX};
pub use item::{
    Attribute, Content, FileTime, INLINE_BYTES_MAX, ITEM_BYTES_MAX, ITEM_PIECES_MAX, Item,
    ItemKind, path_cmp,
};
pub use leaf::{CHAIN_MAX, Leaf, LeafExtent, LeafKind, Lookup, PageExtent};
pub use listing::{
    LISTING_END_BYTES, LISTING_HEAD_BYTES, Listing, ListingReader, items_within, listing_end,
    listing_head,
};
pub use node::InnerNode;
pub use outlive_types::Codec;
pub use outputs::{Output, Outputs, SINK_BYTES_MAX};
pub use plain::{Numbers, PLAIN_DEPTH_MAX, Plain, PlainKind, PlainReader, PlainWriter};
pub use recipe::{Piece, RECIPE_BYTES_MAX, RECIPE_CHILDREN_MAX, RECIPE_LEVEL_MAX, Recipe};
pub use record::{
    Archive, Body, Close, Image, ImageKind, ImageRef, ImageTable, Images, LABEL_BYTES_MAX,
    Manifest, Mark, Note, PageRef, Prune, Record, Remarks, SaveFigures, SegmentKind, SegmentLists,
    SegmentRef, Session, Sweep, TAG_BYTES_MAX, TAGS_MAX, TablePage, check_tag, page_of,
};
pub use save_message::{Changes, Committed, Envelope, Moved, Opened, RankImage, SaveMessage};
pub use shard::{
    FOOTER_BYTES, FRAGMENTS_MAX, Footer, Fragment, Geometry, SHARD_HEADER_BYTES, ShardHeader, Tail,
};
pub use slice::{PAGE_GROUPS_MAX, PageSet, Slice, SliceForm, cut_chunk};
pub use tree::{LEVEL_MAX, NODE_CHILDREN, STREAM_BYTES_MAX, TreeRef, tree_level};

/// Room in the head of a shard and of a record, for flags, algorithms, a key and a nonce of later
/// builds. docs/format.md divides it.
const ROOM_BYTES: usize = 48;
/// The format version that this build writes and reads.
pub const VERSION: u16 = 0;
/// Draft of version 0. `pool.toml` names it, and a pool of another draft is refused.
pub const REVISION: u32 = 20;
