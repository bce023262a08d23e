//! Marks what checkpoints need: a bit for each entry of each pack. Fingerprints are resolved part by
//! part, so that the memory for that stays below the bound of the pool's index.

use super::lines::{RankLine, at_fault_of, lines};
use super::share::Shares;
use super::survey::JobState;
use crate::images::pages_of;
use crate::index::{FingerprintRange, Locator, read_segment};
use crate::read::files::{listing_chunks, walk_files};
use crate::read::{Live, Lost, Needs, Once, Subtree, read_catalog, walk_live};
use outlive_format::{
    DirectoryEntry, EntryKind, ImageKind, ImageRef, Manifest, PageRef, SegmentKind, SegmentRef,
    TreeRef,
};
use outlive_pool::{Place, Pool};
use outlive_types::{
    Epoch, Error, ErrorKind, Fingerprint, JobName, PAGE_BYTES, PackId, Rank, Result,
};
use std::collections::{HashMap, HashSet};

/// What is in use of a pack. Four bytes and a bit an entry, eight if it has frames.
#[derive(Debug, Default)]
pub struct PackMarks {
    /// Length of its containers.
    pub total_bytes: u64,
    /// Bytes of all entries. The rest fills up pages, and containers in which the next one had no
    /// room.
    pub filled_bytes: u64,
    /// Bytes of entries in use; of a frame the share that its chunks in use have.
    pub live_bytes: u64,
    /// Where its entries are, sorted.
    offsets: Vec<u32>,
    /// Where they are in their frames; empty if there are none.
    firsts: Vec<u32>,
    live: Vec<u64>,
    live_count: usize,
}

impl PackMarks {
    fn new(entries: &[DirectoryEntry], total_bytes: u64) -> PackMarks {
        let mut keys: Vec<(u32, u32)> =
            entries.iter().map(|e| (e.offset, e.frame.map_or(0, |frame| frame.first))).collect();
        keys.sort_unstable();
        keys.dedup();
        let offsets: Vec<u32> = keys.iter().map(|(offset, _)| *offset).collect();
        let mut firsts: Vec<u32> = keys.iter().map(|(_, first)| *first).collect();
        if firsts.iter().all(|first| *first == 0) {
            firsts = Vec::new();
        }
        let live = vec![0; keys.len().div_ceil(64)];
        let stored: HashMap<u32, u32> = entries
            .iter()
            .map(|e| (e.offset, e.frame.map_or(e.length, |f| f.stored_bytes)))
            .collect();
        let filled_bytes = stored.into_values().map(u64::from).sum();
        let (live_bytes, live_count) = (0, 0);
        PackMarks { total_bytes, filled_bytes, live_bytes, offsets, firsts, live, live_count }
    }

    fn find(&self, offset: u32, first: u32) -> Option<usize> {
        let from = self.offsets.partition_point(|there| *there < offset);
        let count = self.offsets[from..].partition_point(|there| *there == offset);
        match self.firsts.get(from..from + count) {
            Some(firsts) => firsts.binary_search(&first).ok().map(|at| from + at),
            None => (count > 0 && first == 0).then_some(from),
        }
    }

    /// Which entry is at a place, and its bytes.
    pub fn entry(&self, place: &Place) -> Option<(usize, u64)> {
        let at = self.find(place.offset, place.frame.map_or(0, |frame| frame.first))?;
        let bytes = match place.frame {
            None => u64::from(place.length),
            Some(frame) => {
                u64::from(place.length) * u64::from(frame.stored_bytes) / u64::from(frame.raw_bytes)
            }
        };
        Some((at, bytes))
    }

    /// How many entries it has.
    pub fn entries(&self) -> usize {
        self.offsets.len()
    }

    /// Marks what is at a place. Returns which entry it is and its bytes, if it is one that was not
    /// marked yet.
    fn mark(&mut self, place: &Place) -> Option<(usize, u64)> {
        let (at, bytes) = self.entry(place)?;
        let (word, bit) = (&mut self.live[at / 64], 1 << (at % 64));
        if *word & bit != 0 {
            return None;
        }
        *word |= bit;
        self.live_count += 1;
        self.live_bytes += bytes;
        Some((at, bytes))
    }

    /// Bytes that would become free if the rest were copied. What only fills a page up would be
    /// needed there, too.
    pub fn unused_bytes(&self) -> u64 {
        match self.live_count == self.offsets.len() {
            true => 0,
            false => {
                self.total_bytes.saturating_sub(self.live_bytes.next_multiple_of(PAGE_BYTES as u64))
            }
        }
    }

    /// Whether an entry is in use.
    pub fn is_live(&self, entry: &DirectoryEntry) -> bool {
        let at = self.find(entry.offset, entry.frame.map_or(0, |frame| frame.first));
        at.is_some_and(|at| self.live[at / 64] & 1 << (at % 64) != 0)
    }
}

/// Marks of the whole pool, and what each job names.
#[derive(Debug, Default)]
pub struct Marks {
    /// By pack.
    pub packs: HashMap<PackId, PackMarks>,
    /// Packs that could not be read, and why.
    pub unreadable: Vec<(PackId, Error)>,
    /// Packs that jobs' segments name or lie in.
    pub named: HashMap<JobName, HashSet<PackId>>,
    visited: HashSet<Subtree>,
    /// The job and rank that `visited` is of, and the archive that says where their chunks are.
    visited_of: Option<(JobName, u64, Option<Rank>)>,
    /// Who needs what; only if somebody wants to know.
    pub shares: Option<Shares>,
    /// Of jobs that get new segments whatever is condemned: bytes of the old ones.
    pub relisted: HashMap<JobName, u64>,
}

impl Marks {
    /// Reads the directories of `packs`. One that cannot be read is left alone.
    pub fn new(pool: &Pool, packs: &[PackId]) -> Marks {
        let mut marks = Marks::default();
        for pack in packs {
            match pool.directory_of(*pack) {
                Ok((directory, total_bytes)) => {
                    let pack_marks = PackMarks::new(&directory.entries, total_bytes);
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
            for place in stored_apart(segments()) {
                mark(&mut self.packs, &mut self.shares, place);
            }
        } else {
            let bytes = segments().map(|segment| u64::from(segment.length)).sum();
            self.relisted.insert(job.name.clone(), bytes);
        }
        for page in pages() {
            mark(&mut self.packs, &mut self.shares, place_of(page));
        }
        for line in &lines {
            self.line(pool, job, line)?;
        }
        Ok(())
    }

    /// Marks what one rank needs.
    fn line(&mut self, pool: &Pool, job: &JobState, line: &RankLine) -> Result<()> {
        let parts = FingerprintRange::of(&line.segments, pool.config().tuning.index_bytes_max);
        for part in &parts {
            // Another job or rank may have the same subtree at other places, and so has this one once
            // an earlier gc, fenced or not, has moved it. A job that is read again since it has saved
            // meanwhile costs only what is new.
            let of = Some((job.name.clone(), job.archive, line.rank));
            if parts.len() > 1 || self.visited_of != of {
                self.visited.clear();
                self.visited_of = of;
            }
            if let Err(error) = self.part(pool, job, line, *part) {
                // What was visited may not be marked.
                self.visited_of = None;
                return Err(error);
            }
        }
        if parts.len() > 1 {
            self.visited_of = None;
        }
        Ok(())
    }

    /// Marks all nodes, and the chunks of one part. What any of the line's segments names is found: a
    /// gc that moves something gives all its checkpoints the same ones.
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
        for (epoch, image) in &line.images {
            // Of a hurt checkpoint what cannot be found keeps nothing alive.
            let is_hurt = job.hurt.contains(epoch);
            let mut lost = |_: Fingerprint| ();
            let lost: Lost<'_> = is_hurt.then_some(&mut lost);
            let Marks { packs, visited, shares, .. } = self;
            let mut each = |live: Live| {
                match live {
                    Live::Node(node) => mark(packs, shares, node.place),
                    Live::Chunk(fp) if part.holds(&fp) => match locator.find(&fp) {
                        Err(_) if is_hurt => {}
                        place => mark(packs, shares, place?),
                    },
                    Live::Chunk(_) => {}
                }
                Ok(())
            };
            live_of(pool, &locator, image, &mut Once { visited, each: &mut each }, lost)
                .map_err(|error| at_fault(pool, job, *epoch, error))?;
        }
        Ok(())
    }

    /// From here on somebody else's needs are marked, as if nothing were marked yet; `shares` keeps
    /// what was.
    pub fn next_unit(&mut self) {
        for pack in self.packs.values_mut() {
            pack.live.fill(0);
            (pack.live_bytes, pack.live_count) = (0, 0);
        }
        self.visited_of = None;
        if let Some(shares) = &mut self.shares {
            shares.next_unit();
        }
    }

    /// Marks what anybody needs, as a gc would have.
    pub fn unite(&mut self) {
        let Some(shares) = &self.shares else { return };
        for (id, pack) in &mut self.packs {
            (pack.live_bytes, pack.live_count) = (shares.used_bytes(id), 0);
            for at in 0..pack.offsets.len() {
                let is_used = shares.is_used(id, at);
                pack.live_count += usize::from(is_used);
                let bit = 1 << (at % 64);
                pack.live[at / 64] &= !bit;
                if is_used {
                    pack.live[at / 64] |= bit;
                }
            }
        }
    }

    /// Whether some job's segments name a pack.
    pub fn is_named(&self, pack: &PackId) -> bool {
        self.named.values().any(|named| named.contains(pack))
    }

    /// Whether an entry of a segment is in use.
    pub fn is_live(&self, pack: &PackId, entry: &DirectoryEntry) -> bool {
        self.packs.get(pack).is_some_and(|marks| marks.is_live(entry))
    }
}

fn mark(packs: &mut HashMap<PackId, PackMarks>, shares: &mut Option<Shares>, place: Place) {
    if let Some(pack) = packs.get_mut(&place.pack)
        && let Some((at, bytes)) = pack.mark(&place)
        && let Some(shares) = shares
    {
        shares.add(place.pack, pack.offsets.len(), at, bytes);
    }
}

fn place_of(page: &PageRef) -> Place {
    Place { pack: page.pack, offset: page.offset, length: page.length, frame: None }
}

/// Where segments are that lie in packs as entries of their own.
pub fn stored_apart<'a>(
    segments: impl IntoIterator<Item = &'a SegmentRef>,
) -> impl Iterator<Item = Place> {
    segments.into_iter().filter(|segment| segment.kind == SegmentKind::Segment).map(|segment| {
        let SegmentRef { pack, offset, length, .. } = *segment;
        Place { pack, offset, length, frame: None }
    })
}

/// Distinguishes a catalog with all its regions from the tree that it is stored in.
const CATALOG: u8 = 0x40;

/// Finds what an image needs; nodes and the chunks of catalogs and listings must be in the locator.
/// With `lost` that is called with what is missing or wrong, and the rest goes on.
///
/// # Errors
/// `Damaged` if a node, the catalog or the listing is missing or wrong.
pub fn live_of(
    pool: &Pool,
    locator: &Locator,
    image: &ImageRef,
    needs: &mut dyn Needs,
    mut lost: Lost<'_>,
) -> Result<()> {
    match image.kind {
        ImageKind::Memory => {
            let whole = (image.catalog.root, CATALOG);
            let mut roots: Vec<(TreeRef, Option<Subtree>)> = vec![(image.packed, None)];
            if !image.catalog.root.is_zero() && needs.enter(whole, None) {
                roots.push((image.catalog, Some(whole)));
                match (read_catalog(pool, locator, image.catalog), &mut lost) {
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

pub fn at_fault(pool: &Pool, job: &JobState, epoch: Epoch, error: Error) -> Error {
    let what = format!(
        "checkpoint {epoch} of job {} cannot be read, so what it needs is unknown and no pack is deleted",
        job.name
    );
    // What cannot be read just now may be whole.
    if error.kind() != ErrorKind::Damaged {
        return error.context(what);
    }
    let scrub = pool.command("scrub", &[]);
    let give_up = pool.command("prune", &[job.name.as_str(), "--drop", &epoch.to_string()]);
    error.context(format!(
        "{what}; run `{scrub}` first, which mends what other copies make up for; if it then says that the \
         checkpoint is hurt, `{give_up}` gives it up"
    ))
}

/// The places of all nodes, of the chunks of catalogs and listings, and of one part's chunks. Each
/// segment is read once, however many checkpoints list it.
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
        let is_hurt = job.hurt.contains(epoch);
        if image.kind == ImageKind::Files {
            match listing_chunks(pool, &nodes, image.catalog) {
                Err(error) if is_hurt && error.kind() == ErrorKind::Damaged => {}
                chunks => catalogs.extend(chunks?),
            }
            continue;
        }
        let mut each = |live: Live| {
            if let Live::Chunk(fp) = live {
                catalogs.insert(fp);
            }
            Ok(())
        };
        let mut lost = |_: Fingerprint| ();
        let lost: Lost<'_> = is_hurt.then_some(&mut lost);
        let mut needs = Once { visited: &mut visited, each: &mut each };
        walk_live(pool, &nodes, &[(image.catalog, None)], &mut needs, lost)?;
    }
    drop(nodes);
    Locator::load_where(pool, segments, |entry| {
        is_node(entry) || part.holds(&entry.fp) || catalogs.contains(&entry.fp)
    })
}

/// Every chunk and node of one part that some segments list and that is in use, with its place.
///
/// # Errors
/// `Damaged` if a segment cannot be read.
pub fn live_entries(
    pool: &Pool,
    marks: &Marks,
    segments: &[SegmentRef],
    part: FingerprintRange,
) -> Result<Vec<(DirectoryEntry, PackId)>> {
    let mut live = Vec::new();
    let mut seen = HashSet::new();
    for segment in segments {
        let directory = read_segment(pool, segment)?;
        let listed = directory.entries.iter().filter(|e| e.kind.is_resolved());
        for entry in listed.filter(|entry| part.holds(&entry.fp)) {
            let pack = directory.packs[entry.pack as usize];
            // A pack that is new, or cannot be read, has no marks; what is in it stays named.
            let live_there = |marks: &PackMarks| marks.is_live(entry);
            if marks.packs.get(&pack).is_none_or(live_there) && seen.insert(entry.fp) {
                live.push((*entry, pack));
            }
        }
    }
    Ok(live)
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_format::InFrame;
    use outlive_types::Codec;

    fn entry(offset: u32, length: u32, frame: Option<InFrame>) -> DirectoryEntry {
        let fp = Fingerprint([1; 32]);
        DirectoryEntry { fp, pack: 0, offset, length, kind: EntryKind::Chunk, frame }
    }

    fn place(entry: &DirectoryEntry) -> Place {
        let DirectoryEntry { offset, length, frame, .. } = *entry;
        Place { pack: PackId([0; 20]), offset, length, frame }
    }

    #[test]
    fn what_is_marked_is_live_and_counted_once() {
        let frame =
            |first| InFrame { stored_bytes: 500, raw_bytes: 1000, codec: Codec::Lz4, first };
        let plain: Vec<_> = (0..200).map(|at| entry(at * 7, 7, None)).collect();
        let framed: Vec<_> = (0..4).map(|at| entry(7000, 250, Some(frame(at * 250)))).collect();
        for entries in [plain.clone(), [plain, framed].concat()] {
            let mut marks = PackMarks::new(&entries, 1 << 20);
            for chosen in entries.iter().step_by(3).chain(entries.iter().step_by(3)) {
                marks.mark(&place(chosen));
            }
            marks.mark(&place(&entry(3, 7, None)));
            for (at, entry) in entries.iter().enumerate() {
                assert_eq!(marks.is_live(entry), at % 3 == 0, "{entry:?}");
            }
            let bytes = |entry: &DirectoryEntry| if entry.frame.is_some() { 125 } else { 7 };
            let live: u64 = entries.iter().step_by(3).map(bytes).sum();
            assert_eq!(marks.live_bytes, live);
            assert_eq!(marks.unused_bytes(), (1 << 20) - live.next_multiple_of(4096));
            for entry in &entries {
                marks.mark(&place(entry));
            }
            assert_eq!(marks.unused_bytes(), 0, "nothing to gain where all is in use");
        }
    }
}
