//! Carries out a plan: all stages in order, then the commit.

use super::chunks::{BlockExtents, ChunkCounts, Chunker, Pages};
use super::committer::CheckpointHeader;
use super::leaves::{LeafStage, RewriteCandidate, within_budget};
use super::notes::SaveNotes;
use super::packer::{LoadedSegment, PackNumbers, Packed, Packer};
use super::plan::SavePlan;
use super::rebase::{ForeignChunks, list_shared};
use super::segments::{ImageSegments, ReusedChunks};
use super::stats::SaveStats;
use super::stored::StoredImage;
use super::writer::{Base, RankWriter, Writer};
use crate::commit::{Changes, Commit, Committed};
use crate::index::{Fingerprints, PoolIndex, SharedChunks, SharedSegment, StoredChunks};
use crate::tree::{PageTree, edit};
use outlive_chunk::{Diff, PageHashes};
use outlive_format::{
    Catalog, CatalogRegion, Image, ImageKind, ImageRef, InnerNode, RankImage, SaveFigures, TreeRef,
};
use outlive_pool::{Pool, Spread};
use outlive_types::{
    BLOCK_BYTES, BLOCK_PAGES, Error, Event, Fingerprint, Frozen, PACKED_STREAM, PAGE_BYTES,
    Progress, Rank, RegionLocation, Result,
};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Returns the header of the checkpoint of a plan.
pub(crate) fn checkpoint_header(
    pool: &Pool,
    plan: &SavePlan,
    request: &SaveRequest,
) -> CheckpointHeader {
    CheckpointHeader {
        epoch: plan.epoch,
        predecessor: None,
        frozen_ns: pool.env().clock.unix_ns(),
        failed_before: request.failed_before,
        remarks: request.notes.remarks.clone(),
        metrics: request.notes.metrics.clone(),
    }
}

/// Name by which the leaf stage knows the catalog; no region can have it.
const CATALOG: &str = "\0catalog";

/// Arguments of a save besides the image.
#[derive(Clone, Debug, Default)]
pub struct SaveRequest {
    /// Time of the program's call.
    pub started: Duration,
    /// The program's notes on the checkpoint.
    pub notes: SaveNotes,
    /// Number of failed saves since the last committed one.
    pub failed_before: u16,
    /// Addition to the report of the freeze: whether a helper holds the image.
    pub held: String,
}

/// Changed bytes for each byte that a save may rewrite, whatever its credit. Rewritten pages are
/// frozen like changed ones, and the program should not notice them.
const CHANGED_PER_REWRITTEN: u64 = 2;
/// A catalog up to this length is stored as a whole if anything in it has changed.
const CATALOG_WHOLE_MAX_BYTES: usize = 16 << 10;
/// The credit is at most this part of the state.
const CREDIT_PART_OF_STATE: u64 = 8;

impl Writer {
    /// Carries out `plan` on `frozen`. Calls `live_done` once it will read no live page again, also
    /// after an error.
    ///
    /// # Errors
    /// Errors of target or log. The previous checkpoint and this writer stay as they were.
    pub fn execute(
        &mut self,
        pool: &Pool,
        packs: &PackNumbers,
        plan: &SavePlan,
        frozen: &dyn Frozen,
        request: &SaveRequest,
        live_done: &(dyn Fn() + Sync),
    ) -> Result<SaveStats> {
        let stored = self.rank.store(pool, packs, plan, frozen, request, live_done);
        let mut stored = stored.map_err(|error| self.committer.blame(pool, error))?;
        let header = checkpoint_header(pool, plan, request);
        let committed = self.commit(pool, packs, &header, &mut stored);
        // The next save must take account of the changes that this one could not handle.
        let committed =
            committed.inspect_err(|_| self.committer.head.put_back(stored.seen.clone()))?;
        let mut stats = self.rank.follow(pool, stored, &committed);
        stats.new_bytes += committed.record_bytes;
        Ok(stats)
    }

    /// Appends the image until it is committed; rebases it whenever something has changed.
    pub(super) fn commit(
        &mut self,
        pool: &Pool,
        packs: &PackNumbers,
        header: &CheckpointHeader,
        stored: &mut StoredImage,
    ) -> Result<Committed> {
        loop {
            let image = std::slice::from_ref(&stored.image);
            match self.committer.commit(pool, header, image)? {
                Commit::Done(committed) => return Ok(committed),
                // The writer of a later session may have deleted data that the rebase reads.
                Commit::Changed(changes) => {
                    let rebased = self.rank.rebase(pool, packs, stored, changes);
                    rebased.map_err(|error| self.committer.blame(pool, error))?;
                }
            }
        }
    }
}

impl RankWriter {
    /// Stores an image: carries out `plan` on `frozen`, up to the commit. Calls `live_done` once it
    /// will read no live page again, also after an error.
    ///
    /// # Errors
    /// Errors of the target. This writer stays as it was.
    pub fn store(
        &mut self,
        pool: &Pool,
        packs: &PackNumbers,
        plan: &SavePlan,
        frozen: &dyn Frozen,
        request: &SaveRequest,
        live_done: &(dyn Fn() + Sync),
    ) -> Result<StoredImage> {
        let clock = pool.env().clock.clone();
        let since = |started: Duration| clock.monotonic().saturating_sub(started);
        let stall: OnceLock<Duration> = OnceLock::new();
        let live_done = &|| {
            stall.get_or_init(|| since(request.started));
            live_done();
        };
        if plan.live_blocks == 0 {
            live_done();
        }
        let parent = self.parent();
        if plan.parent != parent {
            return Err(Error::bug(format!(
                "a save was planned to follow checkpoint {} and would follow {parent}: nothing was \
                 written; please report this",
                plan.parent
            )));
        }
        // The page tree and the catalog need room as well; a pack takes more if necessary.
        let expected_bytes = plan.dirty_bytes + plan.dirty_bytes / 32 + (64 << 10);
        let packer = Packer::new(pool, packs, expected_bytes);
        let stored = self.run_stages(pool, packs, plan, frozen, live_done, packer);
        // In every case the program must not wait any longer.
        live_done();
        let mut stored = stored?;
        stored.stats.stall = stall.get().copied().unwrap_or_default();
        stored.stats.total = since(request.started);
        stored.image.figures = stored.stats.figures();
        Ok(stored)
    }

    /// Makes a committed image the base of the next save.
    pub fn follow(
        &mut self,
        pool: &Pool,
        mut stored: StoredImage,
        committed: &Committed,
    ) -> SaveStats {
        stored.base.as_of = committed.number;
        stored.base.in_table = committed.in_table;
        self.known.extend(stored.new);
        self.base = Some(stored.base);
        self.grant(pool, &stored.stats, stored.candidates);
        stored.stats
    }

    /// Chooses the pages that the next save rewrites. Changed bytes earn credit; granted bytes
    /// spend it.
    fn grant(&mut self, pool: &Pool, stats: &SaveStats, candidates: Vec<RewriteCandidate>) {
        let percent = u64::from(pool.config().tuning.rewrite_percent_max);
        let earned = stats.changed_bytes / 100 * percent;
        let credit = (self.rewrite_credit_bytes + earned)
            .min(stats.state_bytes / CREDIT_PART_OF_STATE)
            .max(earned);
        let now = credit.min((stats.changed_bytes / CHANGED_PER_REWRITTEN).max(earned));
        let (granted, granted_bytes) = within_budget(candidates, now);
        self.candidates = granted;
        self.rewrite_credit_bytes = credit - granted_bytes;
    }

    #[allow(clippy::too_many_arguments)] // the complete input of the stages, in one call
    fn run_stages(
        &mut self,
        pool: &Pool,
        packs: &PackNumbers,
        plan: &SavePlan,
        frozen: &dyn Frozen,
        live_done: &(dyn Fn() + Sync),
        packer: Packer<'_>,
    ) -> Result<StoredImage> {
        SharedChunks::refresh(&mut self.shared, pool, plan.dirty_bytes, &self.condemned)?;
        let shared = self.shared.as_ref().and_then(SharedChunks::index);
        let (known, rank) = (&self.known, self.rank);
        let stages = Stages { pool, plan, frozen, rank, known, shared, packer: &packer };
        let nothing = Base::default();
        let base = self.base.as_ref().unwrap_or(&nothing);
        let packed = stages.image(base, live_done).and_then(|image| {
            let mut segments: Vec<LoadedSegment> =
                base.segments.iter().map(|s| (*s, None)).collect();
            list_shared(&mut segments, &image.shared_segments);
            segments.extend(
                ForeignChunks::of(&image.hits, &image.shared_segments).store(pool, &packer)?,
            );
            Ok((image, packer.finish(segments)?))
        });
        let (mut written, (packed, segment_bytes)) = packed?;
        let Packed { packs: count, stored_bytes, segments, own } = packed;
        written.stats.packs = count;
        written.stats.new_bytes = stored_bytes;
        written.stats.segment_bytes = segment_bytes;
        written.base.segments.clone_from(&segments);
        let image = Image {
            reference: written.reference,
            next_pack: packs.next(),
            segments: segments.clone(),
        };
        let (parent, figures) = (plan.parent, SaveFigures::default());
        Ok(StoredImage {
            base: written.base,
            named: ImageSegments { segments, own, hits: written.hits },
            new: written.new,
            candidates: written.candidates,
            image: RankImage { image, parent, figures, spread: Spread::new() },
            seen: Changes::default(),
            stats: written.stats,
        })
    }
}

struct Stages<'a> {
    pool: &'a Pool,
    plan: &'a SavePlan,
    frozen: &'a dyn Frozen,
    rank: Rank,
    known: &'a StoredChunks,
    shared: Option<&'a PoolIndex>,
    packer: &'a Packer<'a>,
}

/// An image that is written except for its segments.
struct WrittenImage {
    base: Base,
    reference: ImageRef,
    new: Fingerprints,
    hits: ReusedChunks,
    shared_segments: Vec<SharedSegment>,
    candidates: Vec<RewriteCandidate>,
    stats: SaveStats,
}

impl Stages<'_> {
    fn image(&self, base: &Base, live_done: &(dyn Fn() + Sync)) -> Result<WrittenImage> {
        let Stages { pool, plan, frozen, .. } = *self;
        let tuning = &pool.config().tuning;
        let chunker = Chunker::new(
            self.packer,
            self.known,
            self.shared,
            pool.config().format.chunk_pages_max(),
        );
        let total_bytes = plan.dirty_bytes;
        let progress = |done_bytes| {
            let what = "save";
            pool.env().observer.event(Event::Progress(Progress { what, done_bytes, total_bytes }));
        };
        progress(0);
        let blocks = chunker.run(plan, frozen, tuning.threads(), live_done)?;
        progress(total_bytes);

        let mut leaves = LeafStage {
            pool,
            packer: self.packer,
            epoch: plan.epoch,
            candidates: Vec::new(),
            stored_bytes: 0,
        };
        let mut node_bytes = 0;
        let mut emit = |node: &InnerNode| -> Result<Fingerprint> {
            let bytes = node.encode()?;
            node_bytes += bytes.len() as u64;
            Ok(self.packer.append_node(&bytes)?.fp)
        };
        let streams = self.trees(base, &blocks, &mut leaves, &mut emit)?;
        let candidates = std::mem::take(&mut leaves.candidates);

        let catalog_bytes = self.catalog(&streams)?;
        let (mut old, mut catalog_hashes) = (base.catalog.clone(), base.catalog_hashes.clone());
        let mut diff = catalog_hashes.diff(&catalog_bytes, tuning.threads());
        // Then no checkpoint needs an older pack for its catalog alone.
        if !diff.runs().is_empty() && catalog_bytes.len() <= CATALOG_WHOLE_MAX_BYTES {
            (old, catalog_hashes) = (PageTree::default(), PageHashes::default());
            diff = catalog_hashes.diff(&catalog_bytes, tuning.threads());
        }
        let extents = catalog_extents(&chunker, self.packer, &catalog_bytes, &diff)?;
        let length = catalog_bytes.len() as u64;
        let edits = leaves.edits(CATALOG, &old, length, &extents)?;
        let catalog = edit(&old, length, &edits, &mut emit)?;
        catalog_hashes.apply(diff);

        let packed = streams.get(PACKED_STREAM).map_or(TreeRef::EMPTY, PageTree::reference);
        let stats = self.stats(&chunker.sink.counts, node_bytes + leaves.stored_bytes);
        Ok(WrittenImage {
            reference: ImageRef {
                rank: self.rank,
                kind: ImageKind::Memory,
                regions: frozen.regions().len() as u64,
                state_bytes: stats.state_bytes,
                catalog: catalog.reference(),
                packed,
            },
            base: Base {
                epoch: plan.epoch,
                streams,
                catalog,
                catalog_hashes,
                segments: Vec::new(),
                in_table: false,
                as_of: 0,
            },
            shared_segments: chunker.sink.shared_segments(),
            hits: chunker.sink.hits.into_inner(),
            new: chunker.sink.new.into_inner(),
            candidates,
            stats,
        })
    }

    /// Returns the page tree of each stream, with the new blocks.
    fn trees(
        &self,
        base: &Base,
        blocks: &[BlockExtents],
        leaves: &mut LeafStage<'_>,
        emit: &mut dyn FnMut(&InnerNode) -> Result<Fingerprint>,
    ) -> Result<HashMap<String, PageTree>> {
        let empty = PageTree::default();
        let mut streams = HashMap::with_capacity(self.plan.streams.len());
        let mut rest = blocks;
        for (number, stream) in self.plan.streams.iter().enumerate() {
            let count = rest.partition_point(|b| b.stream as usize <= number);
            let old = base.streams.get(&stream.name).unwrap_or(&empty);
            let edits = leaves.edits(&stream.name, old, stream.bytes, &rest[..count])?;
            let tree = edit(old, stream.bytes, &edits, emit)?;
            streams.insert(stream.name.clone(), tree);
            rest = &rest[count..];
        }
        Ok(streams)
    }

    fn stats(&self, counts: &ChunkCounts, node_bytes: u64) -> SaveStats {
        let evacuated_bytes = self.plan.evacuated_pages * PAGE_BYTES as u64;
        SaveStats {
            epoch: self.plan.epoch,
            state_bytes: self.frozen.regions().iter().map(|r| r.bytes).sum(),
            changed_bytes: self.plan.dirty_bytes.saturating_sub(evacuated_bytes),
            evacuated_bytes,
            zero_bytes: counts.zero_bytes.load(Ordering::Relaxed),
            known_bytes: counts.known_bytes.load(Ordering::Relaxed),
            raw_bytes: counts.raw_bytes.load(Ordering::Relaxed),
            node_bytes,
            freeze: self.frozen.report(),
            ..SaveStats::default()
        }
    }

    fn catalog(&self, streams: &HashMap<String, PageTree>) -> Result<Vec<u8>> {
        let mut regions = Vec::with_capacity(self.frozen.regions().len());
        for desc in self.frozen.regions() {
            let root = match desc.location {
                RegionLocation::Packed { .. } => Fingerprint::ZERO,
                RegionLocation::Own => {
                    streams
                        .get(&desc.name)
                        .ok_or_else(|| Error::bug(format!("region {:?} has no stream", desc.name)))?
                        .reference()
                        .root
                }
            };
            regions.push(CatalogRegion { desc: desc.clone(), root });
        }
        let attachment = self.frozen.attachment().to_vec();
        Catalog { regions, attachment, outputs: self.frozen.outputs().to_vec() }.encode()
    }
}

/// A block in memory of this process; a run's name is its first page.
struct OwnBlock<'a>(&'a [u8]);

impl Pages for OwnBlock<'_> {
    fn pages<'a>(
        &'a self,
        first_page: usize,
        pages: Range<u32>,
        _: &'a mut Vec<u8>,
    ) -> Result<&'a [u8]> {
        let stop = ((first_page + pages.end as usize) * PAGE_BYTES).min(self.0.len());
        Ok(&self.0[(first_page + pages.start as usize) * PAGE_BYTES..stop])
    }
}

/// Stores the catalog as a stream, from memory of this process.
fn catalog_extents(
    chunker: &Chunker<'_>,
    packer: &Packer<'_>,
    bytes: &[u8],
    diff: &Diff,
) -> Result<Vec<BlockExtents>> {
    let mut part = chunker.part();
    for (number, block) in bytes.chunks(BLOCK_BYTES).enumerate() {
        let first = (number * BLOCK_PAGES) as u64;
        let end = first + BLOCK_PAGES as u64;
        let runs = diff.runs().iter().filter_map(|run| {
            let from = run.first.max(first);
            let to = (run.first + run.count).min(end);
            let first_page = (from.saturating_sub(first)) as u32;
            (from < to).then(|| (first_page, (to - from) as u32, first_page as usize))
        });
        part.block((0, number as u64), runs, &OwnBlock(block))?;
    }
    let blocks = part.finish()?;
    packer.join_lanes()?;
    Ok(blocks)
}
