//! What a writer carries from one save to the next.

use super::packer::PackNumbers;
use crate::commit::{LogHead, Moved};
use crate::index::{Known, SharedChunks};
use crate::tree::PageTree;
use outlive_chunk::PageHashes;
use outlive_format::SegmentRef;
use outlive_types::{Epoch, PackId, PageRange};
use std::collections::{HashMap, HashSet};

/// The checkpoint that the next save follows: what it can share.
#[derive(Debug, Default)]
pub struct Base {
    /// Its epoch.
    pub epoch: Epoch,
    /// Trees of its streams, by name.
    pub streams: HashMap<String, PageTree>,
    /// Tree of its catalog.
    pub catalog: PageTree,
    /// Page hashes of its catalog.
    pub catalog_hashes: PageHashes,
    /// Its segments.
    pub segments: Vec<SegmentRef>,
    /// Number of the newest record in the log of which it takes account.
    pub as_of: u64,
}

/// Everything a writer carries from one save to the next.
#[derive(Debug)]
pub struct Writer {
    /// The log.
    pub head: LogHead,
    /// What the next save follows; `None`: it starts from nothing.
    pub base: Option<Base>,
    /// Chunks that need not be written again.
    pub known: Known,
    /// Clean pages that the next save rewrites.
    pub wishes: Vec<(String, PageRange)>,
    /// Bytes that may be spent on rewriting: what earlier saves have earned and not spent.
    pub rewrite_credit_bytes: u64,
    /// Numbers of the session's packs, once one was opened.
    pub packs: Option<PackNumbers>,
    /// What the whole pool holds; read when so much is written that it pays.
    pub shared: Option<SharedChunks>,
    /// Packs of which this job's log has said that nobody may refer to them any more.
    pub condemned: HashSet<PackId>,
    /// Checkpoints that were dropped since this writer first looked.
    pub dropped: HashSet<Epoch>,
    /// Where the newest archive that this writer has seen has put what is left.
    pub moved: Option<Moved>,
}
