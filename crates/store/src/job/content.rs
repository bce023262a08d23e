//! The interface of the store for content other than a program's memory: today, files. A caller
//! passes its chunks and nodes to a [`ContentStore`], and the job commits them as one checkpoint.
//! Such a checkpoint shares chunks in the same way as one of memory.

use super::Job;
use crate::index::{SharedChunks, StoredChunks};
use crate::read::files::FilesImage;
use crate::recreate::{SAVE_WAIT, recreate_lost};
use crate::save::{Base, ChunkSink, Lane, NewImage, Packer, SaveNotes, SaveRequest, SaveStats};
use outlive_format::{ImageKind, ImageRef, TreeRef};
use outlive_pool::Pool;
use outlive_types::{Error, Fingerprint, Result, metrics};
use std::sync::atomic::Ordering;

/// Takes content of one checkpoint, from any thread.
pub struct ContentStore<'a> {
    pool: &'a Pool,
    packer: &'a Packer<'a>,
    sink: &'a ChunkSink<'a>,
}

/// One thread's input to a [`ContentStore`]: its chunks are stored next to each other.
pub struct ContentLane<'a> {
    sink: &'a ChunkSink<'a>,
    lane: Lane<'a>,
}

/// Content that was stored, but not committed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Content {
    /// The listing.
    pub listing: TreeRef,
    /// Items that it lists.
    pub items: u64,
    /// Bytes of all content.
    pub bytes: u64,
    /// Bytes that were read to be stored.
    pub read_bytes: u64,
    /// Bytes of zeros and holes.
    pub zero_bytes: u64,
    /// Bytes of new nodes.
    pub node_bytes: u64,
}

/// The checkpoint of files with which stored content shares data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Basis {
    /// The newest that opens; damaged ones are passed over.
    Whole,
    /// The newest: content that keeps part of it must not follow an older one.
    Newest,
}

impl<'a> ContentStore<'a> {
    /// Returns the pool.
    pub fn pool(&self) -> &'a Pool {
        self.pool
    }

    /// Returns a lane for one thread. Each lane fills a container of its own.
    pub fn lane(&self) -> ContentLane<'a> {
        ContentLane { sink: self.sink, lane: self.packer.lane() }
    }

    /// Returns the number of lanes that can be filled at the same time.
    pub fn lanes_max(&self) -> usize {
        self.packer.lanes_max()
    }

    /// Stores the rest of the lanes that have ended.
    ///
    /// # Errors
    /// Errors of the target.
    pub fn join_lanes(&self) -> Result<()> {
        self.packer.join_lanes()
    }
}

impl ContentLane<'_> {
    /// Stores a chunk, unless it is stored already.
    ///
    /// # Errors
    /// Errors of the target.
    pub fn chunk(&mut self, bytes: &[u8], fp: Fingerprint) -> Result<()> {
        self.sink.store(&mut self.lane, bytes, fp)
    }

    /// Stores a node, which names chunks or other nodes.
    ///
    /// # Errors
    /// Errors of the target.
    pub fn node(&mut self, bytes: &[u8], fp: Fingerprint) -> Result<()> {
        self.lane.append_node(bytes, fp)
    }

    /// Ends the frame and hands the container to the packer.
    ///
    /// # Errors
    /// Errors of the target.
    pub fn finish(self) -> Result<()> {
        self.lane.finish()
    }
}

impl Job {
    /// Stores content and commits it as a checkpoint of this job. Waits first for a save in
    /// progress, and lets none begin meanwhile. `store` gets the checkpoint of files that `basis`
    /// chooses, and stores what differs from it; its result is returned with the figures. If it
    /// returns no content, nothing is committed. `index_for` returns the number of bytes for which
    /// the index of the whole pool is worth reading.
    ///
    /// # Errors
    /// `Fenced`; the failure of an earlier save that the program has not seen; errors of `store`
    /// and of the pool. Nothing was committed then.
    pub fn store_content<R>(
        &self,
        notes: &SaveNotes,
        basis: Basis,
        index_for: &dyn Fn(Option<&FilesImage>) -> u64,
        store: impl FnOnce(&ContentStore<'_>, Option<&FilesImage>) -> Result<(Option<Content>, R)>,
    ) -> Result<(Option<SaveStats>, R)> {
        self.wait_for_turn(|inner| {
            let pool = &inner.pool();
            let started = pool.env().clock.monotonic();
            recreate_lost(pool, SAVE_WAIT)?;
            let mut writer = inner.writer();
            let writer = &mut *writer;
            let packs = writer.begin(pool)?;
            let parent = match basis {
                Basis::Whole => FilesImage::newest(pool, &inner.name)?,
                Basis::Newest => FilesImage::newest_or_damaged(pool, &inner.name)?,
            };
            let (rank, bytes) = (&mut writer.rank, index_for(parent.as_ref()));
            SharedChunks::refresh(&mut rank.shared, pool, bytes, &rank.condemned)?;
            let packer = Packer::new(pool, &packs, 0).for_files();
            // The parent's segments show which chunks are known.
            let known = StoredChunks::new(0);
            let shared = writer.rank.shared.as_ref().and_then(SharedChunks::index);
            let extents = parent.as_ref().map(FilesImage::extents);
            let sink =
                ChunkSink::new(&known, extents.as_ref().map(|extents| &extents.locator), shared);
            let into = ContentStore { pool, packer: &packer, sink: &sink };
            let stored = store(&into, parent.as_ref());
            let epoch = writer.committer.head.last_epoch + 1;
            let failed = |error: &Error| {
                metrics::SAVES_FAILED.add(1);
                inner.events.failed(pool, epoch, error);
            };
            // The log shows whether a gc has taken the data that was read.
            let stored = stored.map_err(|error| writer.committer.blame(pool, error));
            let (content, told) = stored.inspect_err(failed)?;
            let Some(content) = content else { return Ok((None, told)) };
            let image = new_image(&content, sink, parent);
            let request = SaveRequest {
                started,
                notes: notes.clone(),
                failed_before: 0,
                held: String::new(),
            };
            let committed = writer.commit_content(pool, &packs, packer, image, &request);
            let stats = committed.inspect_err(failed)?;
            stats.count(pool.env().clock.unix_ns());
            Ok((Some(stats), told))
        })
    }
}

fn new_image(content: &Content, sink: ChunkSink<'_>, parent: Option<FilesImage>) -> NewImage {
    let stats = SaveStats {
        state_bytes: content.bytes,
        changed_bytes: content.read_bytes,
        zero_bytes: content.zero_bytes,
        known_bytes: sink.counts.known_bytes.load(Ordering::Relaxed),
        raw_bytes: sink.counts.raw_bytes.load(Ordering::Relaxed),
        node_bytes: content.node_bytes,
        ..SaveStats::default()
    };
    let shared_segments = sink.shared_segments();
    let hits = sink.hits.into_inner();
    NewImage {
        reference: ImageRef {
            rank: 0,
            kind: ImageKind::Files,
            regions: content.items,
            state_bytes: content.bytes,
            catalog: content.listing,
            packed: TreeRef::EMPTY,
        },
        parent: parent.map(|parent| Base {
            epoch: parent.epoch(),
            segments: parent.segments().to_vec(),
            as_of: parent.as_of(),
            ..Base::default()
        }),
        hits,
        shared_segments,
        stats,
    }
}
