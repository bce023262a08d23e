//! Changes to a writer after prunes and gcs: it follows chunks to their new pack extents, copies
//! condemned ones, and appends the manifest again.

use super::packer::{LoadedSegment, PackNumbers, Packer};
use super::segments::{ImageSegments, ReusedChunks};
use super::stored::StoredImage;
use super::writer::{Base, RankWriter};
use crate::commit::{Changes, Moved, segments_of};
use crate::index::ReadItem;
use crate::index::{Locator, SharedSegment};
use crate::read::{ReadPlan, Verified};
use crate::tree::Link;
use outlive_chunk::fingerprint;
use outlive_format::{Directory, DirectoryEntry, EntryKind, SegmentKind, SegmentRef, SliceForm};
use outlive_pool::{PackExtent, Pool};
use outlive_types::{Epoch, Error, ErrorKind, Fingerprint, PackId, Rank, Result};
use std::collections::{HashMap, HashSet};

impl RankWriter {
    /// Takes account of changes between two saves.
    ///
    /// # Errors
    /// `Damaged` if the new segments cannot be read.
    pub fn absorb(&mut self, pool: &Pool, changes: Changes) -> Result<()> {
        if !changes.is_empty() {
            // Known chunks have no pack extents, so it is unknown which of them were condemned.
            self.known.clear();
            self.shared = None;
        }
        self.remember(&changes);
        self.catch_up(pool)
    }

    /// Keeps the changes that the log has reported, for a base that is taken later and lacks them.
    /// Such a base is a checkpoint that was opened before them, and whose restore ended after them.
    fn remember(&mut self, changes: &Changes) {
        self.condemned.extend(&changes.condemned);
        self.dropped.extend(&changes.dropped);
        if let Some(moved) = &changes.moved {
            self.moved = Some(moved.clone());
        }
    }

    /// Takes a restored checkpoint as base. It may have been moved or dropped since it was opened.
    ///
    /// # Errors
    /// `Damaged` if the segments with its new pack extents cannot be read; then there is no base.
    pub fn adopt(&mut self, pool: &Pool, base: Base) -> Result<()> {
        self.base = Some(base);
        self.candidates.clear();
        self.known.clear();
        // Chunks of later checkpoints may recur, and are now in other checkpoints than this
        // writer's own.
        self.shared = None;
        self.catch_up(pool)
    }

    /// Brings the base up to date with the remembered changes.
    fn catch_up(&mut self, pool: &Pool) -> Result<()> {
        let RankWriter { rank, base, moved, dropped, .. } = self;
        let is_late = |base: &mut Base, moved: &Moved| base.as_of < moved.number;
        if base.take_if(|base| dropped.contains(&base.epoch)).is_none()
            && let Some(moved) = moved
            && let Some(late) = base.take_if(|base| is_late(base, moved))
        {
            // It is unknown which of the known chunks it still has.
            self.known.clear();
            *base = follow(pool, *rank, late, moved)?;
        }
        if self.base.is_none() {
            self.candidates.clear();
            self.known.clear();
        }
        Ok(())
    }

    /// Rebases an image that was stored while chunks were moved or condemned: `changes` are those
    /// since the committer last got it. Copies the chunks that it shares with condemned packs; a gc
    /// keeps those packs until this session has committed.
    ///
    /// # Errors
    /// `Retry` if the checkpoint it follows was pruned, or shared data is lost; errors of the
    /// target.
    pub fn rebase(
        &mut self,
        pool: &Pool,
        packs: &PackNumbers,
        stored: &mut StoredImage,
        changes: Changes,
    ) -> Result<()> {
        stored.seen.then(changes);
        // Other known chunks may be gone.
        self.known.clear();
        self.shared = None;
        let StoredImage { base, named, image, seen, stats, .. } = stored;
        stats.new_bytes += self.rebase_segments(pool, packs, base, named, seen)?;
        image.image.segments.clone_from(&named.segments);
        image.image.next_pack = packs.next();
        image.figures.new_bytes = stats.new_bytes;
        Ok(())
    }

    /// Rebases the segments of an image. `next` is the base that the save will leave, and `changes`
    /// are all since the save began. Returns the number of bytes written.
    fn rebase_segments(
        &mut self,
        pool: &Pool,
        packs: &PackNumbers,
        next: &mut Base,
        named: &mut ImageSegments,
        changes: &Changes,
    ) -> Result<u64> {
        self.remember(changes);
        let Changes { condemned, moved, dropped } = changes;
        let parent = self.base.as_ref();
        let old_segments = parent.map(|base| base.segments.clone()).unwrap_or_default();
        let moved = moved.as_ref().filter(|moved| parent.is_some_and(|p| p.as_of < moved.number));
        let is_gone = |epoch: &Epoch| {
            let is_kept = |moved: &Moved| moved.epochs.binary_search(epoch).is_ok();
            dropped.contains(epoch) || !moved.is_none_or(is_kept)
        };
        if let Some(epoch) = parent.map(|parent| parent.epoch).filter(is_gone) {
            self.base = None;
            return Err(Error::retry(format!(
                "checkpoint {epoch}, which this save shares data with, was pruned meanwhile or proved \
                 damaged: save again, the next save writes everything"
            )));
        }
        let before = match (moved, parent) {
            (Some(moved), Some(parent)) => segments_of(pool, moved, self.rank, parent.in_table)?,
            _ => old_segments.clone(),
        };
        let locator = Locator::load(pool, &before)?;
        let mut foreign = ForeignChunks::default();
        let mut lost: Vec<ReadItem> = Vec::new();
        let mut old = None;
        let chunks = named.hits.chunks.iter().map(|(fp, extent)| (fp, *extent, None));
        let slices = named.hits.slices.iter().map(|(fp, form)| (fp, None, Some(*form)));
        for (fp, extent, form) in chunks.chain(slices) {
            let is_there = |now: &PackExtent| !condemned.contains(&now.pack) && serves(now, form);
            if locator.forms(fp).any(|now| is_there(&now)) {
                continue;
            }
            let extent = match extent {
                Some(extent) => extent,
                None => {
                    let old = match &mut old {
                        Some(old) => old,
                        none => none.insert(Locator::load(pool, &old_segments)?),
                    };
                    let found = old.forms(fp).find(|then| serves(then, form));
                    found.map_or_else(|| old.find(fp), Ok)?
                }
            };
            match condemned.contains(&extent.pack) {
                true => lost.push(ReadItem { fp: *fp, extent }),
                false => foreign.add(*fp, extent),
            }
        }
        let expected_bytes = lost.iter().map(|w| u64::from(w.extent.length)).sum();
        let packer = Packer::new(pool, packs, expected_bytes);
        let mut segments: Vec<LoadedSegment> =
            before.into_iter().chain(named.own.iter().copied()).map(|s| (s, None)).collect();
        let packed = rescue(pool, &packer, &lost).and_then(|()| {
            segments.extend(foreign.store(pool, &packer)?);
            packer.finish(segments)
        });
        let (packed, _) = packed?;
        // The save's own packs list them from now on.
        let rescued: HashSet<(Fingerprint, Option<SliceForm>)> =
            lost.iter().map(|rescued| (rescued.fp, rescued.extent.slice)).collect();
        named.hits.chunks.retain(|fp, _| !rescued.contains(&(*fp, None)));
        named.hits.slices.retain(|(fp, form)| !rescued.contains(&(*fp, Some(*form))));
        named.segments = packed.segments;
        named.own.extend(packed.own);
        next.segments.clone_from(&named.segments);
        relink(next, &locator)?;
        Ok(packed.stored_bytes)
    }
}

/// Returns whether a pack extent has all that was found; `found` is `None` for a whole chunk.
fn serves(extent: &PackExtent, found: Option<SliceForm>) -> bool {
    match (extent.slice, found) {
        (None, _) => true,
        (Some(form), Some(found)) => form.holds(found.pages(), found.group_log2()),
        (Some(_), None) => false,
    }
}

/// Copies chunks out of condemned packs.
fn rescue(pool: &Pool, packer: &Packer<'_>, lost: &[ReadItem]) -> Result<()> {
    let take = |at: usize, there: Verified<'_>| {
        let ReadItem { fp, extent } = lost[at];
        let kind = extent.slice.map_or(EntryKind::Chunk, EntryKind::Slice);
        packer.append(there.stored, fp, kind).map(|_| ())
    };
    match ReadPlan::new(pool, lost)
        .beside_writes()
        .execute(pool, 1, false, &take)
        .into_iter()
        .next()
    {
        // The next save no longer finds it, and stores it again.
        Some(fault) if fault.error.kind() == ErrorKind::Damaged => Err(Error::retry(format!(
            "this save shares data that proved damaged meanwhile: save again, the next save stores \
             it again ({})",
            fault.error
        ))),
        Some(fault) => Err(fault.error.context("keeping what a gc condemned")),
        None => Ok(()),
    }
}

/// Updates the pack extents of a base; `None` if its checkpoint is gone.
fn follow(pool: &Pool, rank: Rank, mut base: Base, moved: &Moved) -> Result<Option<Base>> {
    if moved.epochs.binary_search(&base.epoch).is_err() {
        return Ok(None);
    }
    base.segments = segments_of(pool, moved, rank, base.in_table)?;
    base.as_of = moved.number;
    let locator = Locator::load(pool, &base.segments)?;
    relink(&mut base, &locator)?;
    Ok(Some(base))
}

/// Updates the pack extents in the leaves. New leaves, which the locator does not know, keep
/// theirs.
fn relink(base: &mut Base, locator: &Locator) -> Result<()> {
    let mut find =
        |link: &Link| Ok(locator.find(&link.fp).ok().filter(|extent| *extent != link.extent));
    for tree in base.streams.values_mut().chain([&mut base.catalog]) {
        *tree = tree.relink(&mut find)?;
    }
    Ok(())
}

/// Pack extents of chunks that the manifest's other segments do not list.
#[derive(Debug, Default)]
pub struct ForeignChunks {
    packs: Vec<PackId>,
    numbers: HashMap<PackId, u32>,
    entries: Vec<DirectoryEntry>,
}

impl ForeignChunks {
    /// Returns the chunks among `hits` that have an extent, and are in none of `shared_segments`.
    pub fn of(hits: &ReusedChunks, shared_segments: &[SharedSegment]) -> ForeignChunks {
        let mut foreign = ForeignChunks::default();
        for (fp, extent) in &hits.chunks {
            if let Some(extent) = extent
                && !shared_segments.iter().any(|shared_segments| shared_segments.lists(fp))
            {
                foreign.add(*fp, *extent);
            }
        }
        foreign
    }

    fn pack(&mut self, pack: PackId) -> u32 {
        *self.numbers.entry(pack).or_insert_with(|| {
            self.packs.push(pack);
            self.packs.len() as u32 - 1
        })
    }

    fn add(&mut self, fp: Fingerprint, extent: PackExtent) {
        let pack = self.pack(extent.pack);
        self.entries.push(extent.entry(fp, pack, EntryKind::Chunk));
    }

    /// Stores them as segments, each short enough for a container.
    ///
    /// # Errors
    /// Errors of the target.
    pub fn store(self, pool: &Pool, packer: &Packer<'_>) -> Result<Vec<LoadedSegment>> {
        store_segments(pool, packer, Directory::new(self.packs, self.entries))
    }
}

/// Adds `shared_segments` to the segments of a manifest, except those that it already lists.
pub fn list_shared(segments: &mut Vec<LoadedSegment>, shared_segments: &[SharedSegment]) {
    let there: HashSet<SegmentRef> = segments.iter().map(|(segment, _)| *segment).collect();
    let shared_segments = shared_segments.iter().map(|shared_segments| shared_segments.segment);
    segments.extend(shared_segments.filter(|segment| !there.contains(segment)).map(|s| (s, None)));
}

/// Stores a directory of any length as segments of level 0.
///
/// # Errors
/// Errors of the target.
pub fn store_segments(
    pool: &Pool,
    packer: &Packer<'_>,
    all: Directory,
) -> Result<Vec<LoadedSegment>> {
    let mut refs = Vec::new();
    // In the worst case each entry has a pack and a frame of its own.
    let entries_max = pool.config().format.container_bytes as usize
        / (Directory::bytes_for(1, 1, 1) - Directory::bytes_for(0, 0, 0))
        - 1;
    for entries in all.entries.chunks(entries_max) {
        let mut part = ForeignChunks::default();
        for entry in entries {
            let Some(pack) = all.packs.get(entry.pack as usize) else {
                return Err(Error::bug("a directory names a pack that it does not list"));
            };
            let pack = part.pack(*pack);
            part.entries.push(DirectoryEntry { pack, ..*entry });
        }
        let part = Directory::new(part.packs, part.entries);
        let bytes = part.encode()?;
        let fp = fingerprint(&bytes);
        let extent = packer.append(&bytes, fp, EntryKind::Segment)?;
        let segment = SegmentRef {
            pack: extent.pack,
            offset: extent.offset,
            length: extent.length,
            kind: SegmentKind::Segment,
            level: 0,
            fp,
        };
        refs.push((segment, Some(part)));
    }
    Ok(refs)
}
