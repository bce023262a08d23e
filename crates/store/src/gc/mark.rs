//! Marks the entries of packs that checkpoints need, and their pages. Fingerprints are resolved
//! part by part, so that the memory for that stays below the bound of the pool's index.

use super::chains::{RankLine, at_fault, at_fault_of, lines};
use super::pack_marks::PackMarks;
use super::share::Shares;
use super::survey::JobState;
use crate::images::pages_of;
use crate::index::{FingerprintRange, Locator, Pages, read_segment};
use crate::read::files::{listing_chunks, walk_files};
use crate::read::{Live, Lost, NeedsVisitor, Once, Subtree, read_catalog, walk_live};
use outlive_format::{
    DirectoryEntry, EntryKind, ImageKind, ImageRef, Manifest, PageRef, PageSet, SegmentKind,
    SegmentRef, TreeRef,
};
use outlive_pool::{PackExtent, Pool};
use outlive_types::{Error, ErrorKind, Fingerprint, JobName, PackId, Result};
use std::collections::{HashMap, HashSet};

/// Marks of the whole pool, and the packs that each job names.
#[derive(Debug, Default)]
pub struct Marks {
    /// By pack.
    pub packs: HashMap<PackId, PackMarks>,
    /// Packs that could not be read, and why.
    pub unreadable: Vec<(PackId, Error)>,
    /// Packs that jobs' segments name or lie in.
    pub named: HashMap<JobName, HashSet<PackId>>,
    /// Needs of each unit, if a caller asks for them.
    pub shares: Option<Shares>,
    /// For jobs that get new segments in any case: bytes of the old ones.
    pub relisted: HashMap<JobName, u64>,
    /// Binary logarithm of the pages of a page group.
    pub group_log2: u8,
}

impl Marks {
    /// Reads the directories of `packs`, and notes those that cannot be read.
    pub fn new(pool: &Pool, packs: &[PackId]) -> Marks {
        let group_log2 = PageSet::group_log2(pool.config().format.chunk_bytes_max);
        let mut marks = Marks { group_log2, ..Marks::default() };
        for pack in packs {
            match pool.directory_of(*pack) {
                Ok((directory, total_bytes)) => {
                    let pack_marks = PackMarks::new(&directory.entries, total_bytes, group_log2);
                    marks.packs.insert(*pack, pack_marks);
                }
                Err(error) => marks.unreadable.push((*pack, error)),
            }
        }
        marks
    }

    /// Marks what `kept`, some or all checkpoints of a job, need.
    ///
    /// # Errors
    /// `Damaged` if a checkpoint cannot be read.
    pub fn job(&mut self, pool: &Pool, job: &JobState, kept: &[&Manifest]) -> Result<()> {
        let lines = at_fault_of(pool, job, lines(pool, job, kept))?;
        let segments = || lines.iter().flat_map(|line| &line.segments);
        let pages = || kept.iter().flat_map(|manifest| pages_of(manifest));
        let named = self.named.entry(job.name.clone()).or_default();
        named.extend(segments().map(|segment| segment.pack));
        named.extend(pages().map(|page| page.pack));
        // A job that has lost checkpoints gets new segments.
        let is_whole = kept.len() == job.manifests.len() && job.damaged == 0 && !job.pruned;
        if self.shares.is_some() || is_whole {
            for extent in stored_apart(segments()) {
                mark(&mut self.packs, &mut self.shares, extent, Pages::Whole);
            }
        } else {
            let bytes = segments().map(|segment| u64::from(segment.length)).sum();
            self.relisted.insert(job.name.clone(), bytes);
        }
        for page in pages() {
            mark(&mut self.packs, &mut self.shares, extent_of(page), Pages::Whole);
        }
        for line in &lines {
            self.line(pool, job, line)?;
        }
        Ok(())
    }

    /// Marks what one rank needs.
    fn line(&mut self, pool: &Pool, job: &JobState, line: &RankLine) -> Result<()> {
        let parts = FingerprintRange::of(&line.segments, pool.config().tuning.index_bytes_max);
        parts.iter().try_for_each(|part| self.part(pool, job, line, *part))
    }

    /// Marks all nodes, and the chunks of one part. It finds all that any segment of the rank
    /// names: a gc that moves something gives all checkpoints of the rank the same segments.
    fn part(
        &mut self,
        pool: &Pool,
        job: &JobState,
        line: &RankLine,
        part: FingerprintRange,
    ) -> Result<()> {
        let loaded = load(pool, job, line, part);
        let locator = loaded.map_err(|error| {
            let of_it = line.images.first().map_or(0, |(epoch, _)| *epoch);
            let damaged = line.images.iter().map(|(epoch, _)| *epoch).find(|epoch| {
                let only = job.manifests.iter().filter(|m| m.epoch == *epoch).collect::<Vec<_>>();
                let lines = lines(pool, job, &only).unwrap_or_default();
                let same = lines.iter().find(|other| other.rank == line.rank);
                same.is_some_and(|one| load(pool, job, one, part).is_err())
            });
            match damaged {
                Some(epoch) => at_fault(pool, job, epoch, error),
                None => at_fault(pool, job, of_it, error),
            }
        })?;
        self.named.entry(job.name.clone()).or_default().extend(locator.packs());
        // For this walk only: another job may have the same subtree in other extents. So may this
        // job when it is read again, after it has saved or was pruned.
        let mut visited = HashSet::new();
        for (epoch, image) in &line.images {
            // Missing data of an incomplete checkpoint keeps nothing alive.
            let is_incomplete = job.incomplete.contains(epoch);
            let mut lost = |_: Fingerprint| ();
            let lost: Lost<'_> = is_incomplete.then_some(&mut lost);
            let Marks { packs, shares, .. } = self;
            let mut each = |live: Live| {
                match live {
                    Live::Node(node) => mark(packs, shares, node.extent, Pages::Whole),
                    Live::Chunk(fp, pages) if part.holds(&fp) => {
                        match locator.find_pages(&fp, pages) {
                            Err(_) if is_incomplete => {}
                            extent => mark(packs, shares, extent?, pages),
                        }
                    }
                    Live::Chunk(..) => {}
                }
                Ok(())
            };
            let mut needs = Once { visited: &mut visited, each: &mut each };
            live_of(pool, &locator, image, &mut needs, lost)
                .map_err(|error| at_fault(pool, job, *epoch, error))?;
        }
        Ok(())
    }

    /// Counts the needs of each unit separately from here on.
    pub fn tell_units_apart(&mut self) {
        self.shares = Some(Shares::default());
        self.packs.values_mut().for_each(PackMarks::tell_units_apart);
    }

    /// Begins the next unit, as if nothing were marked yet; `shares` keeps the counts so far.
    pub fn next_unit(&mut self) {
        self.packs.values_mut().for_each(PackMarks::next_unit);
        if let Some(shares) = &mut self.shares {
            shares.next_unit();
        }
    }

    /// Marks what any unit needs, as a gc would have.
    pub fn unite(&mut self) {
        self.packs.values_mut().for_each(PackMarks::unite);
    }

    /// Whether some job's segments name a pack.
    pub fn is_named(&self, pack: &PackId) -> bool {
        self.named.values().any(|named| named.contains(pack))
    }

    /// Returns the pages of a segment's entry that are in use.
    pub fn live_pages(&self, pack: &PackId, entry: &DirectoryEntry) -> PageSet {
        self.packs.get(pack).map(|marks| marks.live_pages(entry)).unwrap_or_default()
    }
}

fn mark(
    packs: &mut HashMap<PackId, PackMarks>,
    shares: &mut Option<Shares>,
    extent: PackExtent,
    pages: Pages,
) {
    if let Some(pack) = packs.get_mut(&extent.pack)
        && let Some((at, bytes)) = pack.mark(&extent, pages)
        && let Some(shares) = shares
    {
        shares.add(extent.pack, pack.entries(), at, bytes);
    }
}

fn extent_of(page: &PageRef) -> PackExtent {
    PackExtent {
        pack: page.pack,
        offset: page.offset,
        length: page.length,
        frame: None,
        slice: None,
    }
}

/// Returns the extents of segments that lie in packs as entries of their own.
pub fn stored_apart<'a>(
    segments: impl IntoIterator<Item = &'a SegmentRef>,
) -> impl Iterator<Item = PackExtent> {
    segments.into_iter().filter(|segment| segment.kind == SegmentKind::Segment).map(|segment| {
        let SegmentRef { pack, offset, length, .. } = *segment;
        PackExtent { pack, offset, length, frame: None, slice: None }
    })
}

/// Distinguishes a catalog with all its regions from the tree that it is stored in.
const CATALOG: u8 = 0x40;

/// Finds what an image needs; nodes and the chunks of catalogs and listings must be in the locator.
/// With `lost`, it calls that for each missing or wrong object, and goes on.
///
/// # Errors
/// `Damaged` if a node, the catalog or the listing is missing or wrong.
pub fn live_of(
    pool: &Pool,
    locator: &Locator,
    image: &ImageRef,
    needs: &mut dyn NeedsVisitor,
    mut lost: Lost<'_>,
) -> Result<()> {
    match image.kind {
        ImageKind::Memory => {
            let whole = (image.catalog.root, CATALOG);
            let mut roots: Vec<(TreeRef, Option<Subtree>)> = vec![(image.packed, None)];
            if !image.catalog.root.is_zero() && needs.enter(whole, None) {
                roots.push((image.catalog, Some(whole)));
                match (read_catalog(pool, &mut &*locator, image.catalog), &mut lost) {
                    (Err(error), Some(lost)) if error.kind() == ErrorKind::Damaged => {
                        lost(image.catalog.root);
                    }
                    (catalog, _) => {
                        let regions = catalog?.regions;
                        let trees = regions.iter().filter_map(|region| region.tree());
                        roots.extend(trees.map(|tree| (tree, Some(whole))));
                    }
                }
            }
            walk_live(pool, locator, &roots, needs, lost)
        }
        ImageKind::Files => walk_files(pool, locator, image.catalog, needs, lost),
    }
}

/// Loads the extents of all nodes, of the chunks of catalogs and listings, and of one part's
/// chunks. Each segment is read once, however many checkpoints list it.
pub fn load(
    pool: &Pool,
    job: &JobState,
    line: &RankLine,
    part: FingerprintRange,
) -> Result<Locator> {
    let segments = &line.segments;
    if part == FingerprintRange::ALL {
        return Locator::load(pool, segments);
    }
    let is_node = |entry: &DirectoryEntry| entry.kind == EntryKind::Node;
    let nodes = Locator::load_where(pool, segments, is_node)?;
    let mut catalogs: HashSet<Fingerprint> = HashSet::new();
    let mut visited = HashSet::new();
    for (epoch, image) in &line.images {
        let is_incomplete = job.incomplete.contains(epoch);
        if image.kind == ImageKind::Files {
            match listing_chunks(pool, &nodes, image.catalog) {
                Err(error) if is_incomplete && error.kind() == ErrorKind::Damaged => {}
                chunks => catalogs.extend(chunks?),
            }
            continue;
        }
        let mut each = |live: Live| {
            if let Live::Chunk(fp, _) = live {
                catalogs.insert(fp);
            }
            Ok(())
        };
        let mut lost = |_: Fingerprint| ();
        let lost: Lost<'_> = is_incomplete.then_some(&mut lost);
        let mut needs = Once { visited: &mut visited, each: &mut each };
        walk_live(pool, &nodes, &[(image.catalog, None)], &mut needs, lost)?;
    }
    drop(nodes);
    Locator::load_where(pool, segments, |entry| {
        is_node(entry) || part.holds(&entry.fp) || catalogs.contains(&entry.fp)
    })
}

/// Returns every chunk and node of one part that some segments list and that is in use, with its
/// pack.
///
/// # Errors
/// `Damaged` if a segment cannot be read.
pub fn live_entries(
    pool: &Pool,
    marks: &Marks,
    segments: &[SegmentRef],
    part: FingerprintRange,
) -> Result<Vec<(DirectoryEntry, PackId)>> {
    let mut live: Vec<(DirectoryEntry, PackId)> = Vec::new();
    // One of equal chunks, but every slice: each may have pages that another one lacks.
    let mut seen = HashSet::new();
    for segment in segments {
        let directory = read_segment(pool, segment)?;
        let listed = directory.entries.iter().filter(|e| e.kind.is_resolved());
        for entry in listed.filter(|entry| part.holds(&entry.fp)) {
            let pack = directory.packs[entry.pack as usize];
            // A pack that is new, or cannot be read, has no marks; its entries stay listed.
            let live_there = |marks: &PackMarks| marks.is_live(entry);
            let extent = entry.kind.slice().map(|_| (pack, entry.offset, entry.frame));
            if marks.packs.get(&pack).is_none_or(live_there) && seen.insert((entry.fp, extent)) {
                live.push((*entry, pack));
            }
        }
    }
    Ok(live)
}
