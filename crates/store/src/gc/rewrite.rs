//! Copies the live data of packs that go, and stores segments with its new extents.

use super::chains::{RankLine, at_fault_of, inline_segments, lines};
use super::collection::Gc;
use super::mark::{Marks, live_entries};
use super::pack_marks::PackMarks;
use super::report::Relisted;
use super::survey::{JobState, Survey};
use crate::fill::FillSession;
use crate::images::read_page;
use crate::index::{ByFingerprint, FingerprintRange, Locator, ReadItem};
use crate::read::{ReadPlan, Verified};
use crate::save::{FrameCompression, Packer, store_lists, store_page, store_segments};
use crate::verify::is_damage;
use outlive_format::{Directory, DirectoryEntry, EntryKind, Manifest, PageSet, SegmentRef};
use outlive_pool::PackExtent;
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, Event, Fingerprint, JobName, PackId, Progress, Result};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

/// An entry to copy, and its pages in use.
#[derive(Clone, Copy)]
struct ToCopy {
    item: ReadItem,
    kind: EntryKind,
    pages: PageSet,
    group_log2: u8,
}

/// Packs' worth of bytes that one packer copies; it keeps their directories in memory.
const PACKS_PER_COPY: u64 = 16;
/// Bytes of memory for the fingerprint of a copied entry.
const SEEN_BYTES: u64 = 64;

/// State of a gc when it begins to report to jobs.
pub struct GcWork {
    /// Marks of the data in use.
    pub marks: Marks,
    /// Packs to delete.
    pub condemned: HashSet<PackId>,
    /// Directories of the packs that hold the copies.
    pub copied: Vec<SegmentRef>,
    /// New segments of jobs that need them, stored together.
    pub segments: HashMap<JobName, Relisted>,
    /// Copies the written packs to the slow tier.
    pub fills: FillSession,
}

impl Gc<'_> {
    /// Copies the live data of packs that go, each chunk once. A pack with a damaged chunk stays
    /// after all, since a scrub may still repair it. Returns the faults.
    pub(super) fn copy_out(&mut self, packs: &[PackId], work: &mut GcWork) -> Result<Vec<String>> {
        let group_bytes = PACKS_PER_COPY * self.pool.config().format.pack_bytes;
        let seen_max = self.pool.config().tuning.index_bytes_max / SEEN_BYTES;
        let mut seen: ByFingerprint<PageSet> = ByFingerprint::default();
        let mut faults = Vec::new();
        let (mut group, mut bytes) = (Vec::new(), 0);
        for (at, pack) in packs.iter().enumerate() {
            group.push(*pack);
            bytes += work.marks.packs.get(pack).map_or(0, PackMarks::live_page_bytes);
            if bytes < group_bytes && at + 1 < packs.len() {
                continue;
            }
            let mut live = self.live_of(&group, &work.marks)?;
            live.retain(|one| is_first(&mut seen, one));
            faults.extend(self.copy(&live, &mut work.copied)?);
            // A chunk that is copied again beyond this is dead at once; the next gc deletes the
            // copy.
            if seen.len() as u64 > seen_max {
                seen.clear();
            }
            (group, bytes) = (Vec::new(), 0);
        }
        if !faults.is_empty() {
            let lost: HashSet<Fingerprint> = faults.iter().map(|(wanted, _)| wanted.fp).collect();
            for pack in packs {
                let live = self.live_of(&[*pack], &work.marks)?;
                if live.iter().any(|one| lost.contains(&one.item.fp)) {
                    work.condemned.remove(pack);
                }
            }
        }
        Ok(faults.into_iter().map(|(_, error)| error.to_string()).collect())
    }

    /// Returns the entries in use of some packs, nodes last.
    fn live_of(&self, packs: &[PackId], marks: &Marks) -> Result<Vec<ToCopy>> {
        let mut live = Vec::new();
        for pack in packs {
            let (directory, _) = self.pool.directory_of(*pack)?;
            for entry in &directory.entries {
                let one = ToCopy::new(*pack, entry, marks);
                if entry.kind.is_resolved() && !one.pages.is_empty() {
                    live.push(one);
                }
            }
        }
        live.sort_by_key(ToCopy::order);
        Ok(live)
    }

    /// Copies entries to new packs, in container order, and notes the directories of these packs.
    /// Returns the damaged entries.
    fn copy(
        &mut self,
        live: &[ToCopy],
        copied: &mut Vec<SegmentRef>,
    ) -> Result<Vec<(ReadItem, Error)>> {
        let split = live.partition_point(|one| one.kind.is_content());
        let total_bytes: u64 = live.iter().map(|one| u64::from(one.item.extent.length)).sum();
        let pool = self.pool;
        let packer = Packer::new(pool, &self.packs, total_bytes);
        let mut done_bytes = 0;
        let mut step = |bytes: &[u8]| {
            done_bytes += bytes.len() as u64;
            let event = Progress { what: "copy", done_bytes, total_bytes };
            pool.env().observer.event(Event::Progress(event));
            self.pace.spend(bytes.len() as u64);
        };
        let mut damaged = Vec::new();
        let mut fail = None;
        let mut lane = packer.lane();
        for (part, is_node) in [(&live[..split], false), (&live[split..], true)] {
            let wanted: Vec<ReadItem> = part.iter().map(|one| one.item).collect();
            let sink = Mutex::new((&mut lane, &mut step, &mut fail));
            let take = |at: usize, there: Verified<'_>| {
                let ToCopy { kind, pages, group_log2, .. } = part[at];
                let bytes = there.stored;
                let cut = kind.is_content().then(|| there.cut(pages, group_log2)).flatten();
                let mut sink = sink.lock();
                let (lane, step, fail) = &mut *sink;
                self.check_stop().inspect_err(|error| **fail = Some(error.clone()))?;
                step(bytes);
                let fp = wanted[at].fp;
                let stored = match is_node {
                    true => packer.append(bytes, fp, EntryKind::Node).map(|_| ()),
                    false => {
                        let codec = wanted[at].extent.frame.map(|frame| frame.codec);
                        let (kind, bytes) = match &cut {
                            Some((form, bytes)) => (EntryKind::Slice(*form), &bytes[..]),
                            None => (kind, bytes),
                        };
                        lane.set_squeezing(FrameCompression::as_before(pool.config(), codec))
                            .and_then(|()| lane.append_as(bytes, fp, kind))
                    }
                };
                // A failure here is one of writing, not one of the pack that is read.
                stored.inspect_err(|error| **fail = Some(error.clone()))
            };
            let faults = ReadPlan::new(pool, &wanted).beside_writes().execute(pool, 1, true, &take);
            // An entry that was not read for another reason than damage may be whole.
            if let Some(fault) = faults.iter().find(|fault| !is_damage(&fault.error)) {
                fail.get_or_insert_with(|| fault.error.clone());
            }
            damaged.extend(faults.into_iter().map(|f| (wanted[f.wanted], f.error)));
            if !is_node {
                let full = std::mem::replace(&mut lane, packer.lane());
                full.finish()?;
                packer.join_lanes()?;
            }
        }
        drop(lane);
        if let Some(error) = fail {
            return Err(error);
        }
        let packed = packer.close()?;
        copied.extend(packed.own);
        Ok(damaged)
    }

    /// Stores the new segments of all jobs that will need them, together: a pack for each of many
    /// jobs would give many small packs.
    pub(super) fn store_together(&mut self, survey: &Survey, work: &mut GcWork) -> Result<()> {
        let jobs: Vec<_> = survey.jobs.iter().filter(|job| self.is_archived(job, work)).collect();
        let expected: u64 = jobs
            .iter()
            .flat_map(|job| inline_segments(&self.kept(job)))
            .map(|segment| u64::from(segment.length))
            .sum();
        let packer = Packer::new(self.pool, &self.packs, expected);
        for job in jobs {
            let lines = at_fault_of(self.pool, job, lines(self.pool, job, &self.kept(job)))?;
            let relisted = self.relist(&self.kept(job), &lines, work, &packer)?;
            work.segments.insert(job.name.clone(), relisted);
        }
        packer.close()?;
        Ok(())
    }

    /// Stores the segments of a job that has changed since the survey. First it copies what the job
    /// has come to need from condemned packs.
    pub(super) fn store_late(&mut self, job: &JobState, work: &mut GcWork) -> Result<Relisted> {
        let kept = self.kept(job);
        let lines = at_fault_of(self.pool, job, lines(self.pool, job, &kept))?;
        for line in &lines {
            for part in self.parts(&line.segments) {
                self.copy_late(&line.segments, part, work)?;
            }
        }
        let segments = lines.iter().flat_map(|line| &line.segments);
        let expected_bytes = segments.map(|s| u64::from(s.length)).sum();
        let packer = Packer::new(self.pool, &self.packs, expected_bytes);
        let stored = self.relist(&kept, &lines, work, &packer)?;
        packer.close()?;
        Ok(stored)
    }

    /// Copies the entries in condemned packs that one part of some segments lists and that lack a
    /// copy.
    fn copy_late(
        &mut self,
        segments: &[SegmentRef],
        part: FingerprintRange,
        work: &mut GcWork,
    ) -> Result<()> {
        let live = live_entries(self.pool, &work.marks, segments, part)?;
        let copied = self.copied(work, part)?;
        let condemned = live.iter().filter(|(_, pack)| work.condemned.contains(pack));
        let all = condemned.map(|(entry, pack)| ToCopy::new(*pack, entry, &work.marks));
        let mut late: Vec<ToCopy> = all.filter(|one| one.find(&copied).is_none()).collect();
        if late.is_empty() {
            return Ok(());
        }
        late.sort_by_key(ToCopy::order);
        match self.copy(&late, &mut work.copied)?.into_iter().next() {
            Some((_, error)) => Err(error.context("copying what a save came to need meanwhile")),
            None => Ok(()),
        }
    }

    /// Stores new segments for some checkpoints: one set for those of one rank, and a list for each
    /// rank of the others. Copies the pages of image tables that lie in condemned packs.
    fn relist(
        &self,
        kept: &[&Manifest],
        lines: &[RankLine],
        work: &GcWork,
        packer: &Packer<'_>,
    ) -> Result<Relisted> {
        let mut relisted = Relisted::default();
        let mut lists = Vec::new();
        // Read once for all ranks, if it is small enough.
        let copied = match &self.parts(&work.copied)[..] {
            [all] => Some(self.copied(work, *all)?),
            _ => None,
        };
        for line in lines {
            let segments = self.list(&line.segments, work, copied.as_ref(), packer)?;
            match line.rank {
                None => relisted.segments = segments,
                Some(rank) => lists.push((rank, segments)),
            }
        }
        relisted.lists = store_lists(packer, lists, kept)?;
        for table in kept.iter().filter_map(|manifest| manifest.images.table()) {
            for page in table.pages.iter().filter(|page| work.condemned.contains(&page.pack)) {
                if let Entry::Vacant(vacant) = relisted.pages.entry(*page) {
                    let bytes = read_page(self.pool, page)?;
                    vacant.insert(store_page(packer, page.first_rank, &bytes)?);
                }
            }
        }
        Ok(relisted)
    }

    /// Stores one set of segments for the live entries that others list, with the new extents of
    /// copies.
    fn list(
        &self,
        segments: &[SegmentRef],
        work: &GcWork,
        copied: Option<&Locator>,
        packer: &Packer<'_>,
    ) -> Result<Vec<SegmentRef>> {
        let mut stored = Vec::new();
        for part in self.parts(segments) {
            let of_part;
            let copied = match copied {
                Some(copied) => copied,
                None => {
                    of_part = self.copied(work, part)?;
                    &of_part
                }
            };
            let mut packs: Vec<PackId> = Vec::new();
            let mut numbers: HashMap<PackId, u32> = HashMap::new();
            let mut entries = Vec::new();
            for (entry, pack) in live_entries(self.pool, &work.marks, segments, part)? {
                let now =
                    match work.condemned.contains(&pack) {
                        true => ToCopy::new(pack, &entry, &work.marks).find(copied).ok_or_else(
                            || Error::bug(format!("{:?} was condemned and not copied", entry.fp)),
                        )?,
                        false => PackExtent::of(pack, &entry),
                    };
                let pack = *numbers.entry(now.pack).or_insert_with(|| {
                    packs.push(now.pack);
                    packs.len() as u32 - 1
                });
                // The copy may be the whole chunk, if another job needs all of it.
                let kind = if entry.kind.is_content() { EntryKind::Chunk } else { entry.kind };
                entries.push(now.entry(entry.fp, pack, kind));
            }
            // Two slices may have become one.
            entries.sort_unstable_by_key(|entry| (entry.fp, entry.pack, entry.offset, entry.frame));
            entries.dedup();
            if !entries.is_empty() {
                let part = store_segments(self.pool, packer, Directory::new(packs, entries))?;
                stored.extend(part.into_iter().map(|(segment, _)| segment));
            }
        }
        Ok(stored)
    }

    fn parts(&self, segments: &[SegmentRef]) -> Vec<FingerprintRange> {
        FingerprintRange::of(segments, self.pool.config().tuning.index_bytes_max)
    }

    /// Loads the new extents of the copied entries of a part.
    fn copied(&self, work: &GcWork, part: FingerprintRange) -> Result<Locator> {
        Locator::load_where(self.pool, &work.copied, |entry| part.holds(&entry.fp))
    }
}

impl ToCopy {
    fn new(pack: PackId, entry: &DirectoryEntry, marks: &Marks) -> ToCopy {
        let item = ReadItem { fp: entry.fp, extent: PackExtent::of(pack, entry) };
        let (pages, group_log2) = (marks.live_pages(&pack, entry), marks.group_log2);
        ToCopy { item, kind: entry.kind, pages, group_log2 }
    }

    /// Whether it is a slice of another pool, with other groups of pages: it is copied as it is.
    fn is_foreign(&self) -> bool {
        self.item.extent.slice.is_some_and(|form| form.group_log2() != self.group_log2)
    }

    /// Orders chunks before nodes, each by extent.
    fn order(&self) -> (bool, PackExtent) {
        (!self.kind.is_content(), self.item.extent)
    }

    /// Finds its pages among the copies.
    fn find(&self, copied: &Locator) -> Option<PackExtent> {
        copied.forms(&self.item.fp).find(|extent| match (extent.slice, self.item.extent.slice) {
            (None, _) => true,
            (there, here) if there == here => true,
            (Some(there), _) => !self.is_foreign() && there.holds(self.pages, self.group_log2),
        })
    }
}

/// Whether its pages are not copied yet. `seen` keeps the pages of each chunk that were copied
/// last.
fn is_first(seen: &mut ByFingerprint<PageSet>, one: &ToCopy) -> bool {
    if one.is_foreign() {
        return true;
    }
    match seen.entry(one.item.fp) {
        Entry::Occupied(there) if there.get().holds(one.pages) => false,
        Entry::Occupied(mut there) => {
            there.insert(one.pages);
            true
        }
        Entry::Vacant(vacant) => {
            vacant.insert(one.pages);
            true
        }
    }
}
