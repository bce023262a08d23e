//! Marks what checkpoints need: a bit for each entry of each pack.

use super::survey::JobState;
use crate::index::{Locator, read_segment};
use crate::restore::{read_catalog, walk_live};
use outlive_format::{
    DirectoryEntry, EntryKind, ImageKind, Manifest, SegmentKind, SegmentRef, TreeRef,
};
use outlive_pool::{Place, Pool};
use outlive_types::{Error, Fingerprint, PackId, Result};
use std::collections::{HashMap, HashSet};

/// What is in use of a pack. Eight bytes and a bit an entry.
#[derive(Debug, Default)]
pub struct PackMarks {
    /// Length of its containers.
    pub total_bytes: u64,
    /// Bytes of entries in use; of a frame the share that its chunks in use have.
    pub live_bytes: u64,
    /// Where its entries are, sorted: offset, and offset inside the frame.
    keys: Vec<u64>,
    live: Vec<bool>,
}

fn key(offset: u32, first: u32) -> u64 {
    u64::from(offset) << 32 | u64::from(first)
}

impl PackMarks {
    fn new<'a>(entries: impl Iterator<Item = &'a DirectoryEntry>, total_bytes: u64) -> PackMarks {
        let mut keys: Vec<u64> =
            entries.map(|e| key(e.offset, e.frame.map_or(0, |frame| frame.first))).collect();
        keys.sort_unstable();
        keys.dedup();
        let live = vec![false; keys.len()];
        PackMarks { total_bytes, live_bytes: 0, keys, live }
    }

    fn mark(&mut self, place: &Place) {
        let key = key(place.offset, place.frame.map_or(0, |frame| frame.first));
        let Ok(at) = self.keys.binary_search(&key) else { return };
        if !std::mem::replace(&mut self.live[at], true) {
            self.live_bytes += match place.frame {
                None => u64::from(place.length),
                Some(frame) => {
                    u64::from(place.length) * u64::from(frame.stored_bytes)
                        / u64::from(frame.raw_bytes)
                }
            };
        }
    }

    /// Whether an entry is in use.
    pub fn is_live(&self, offset: u32, first: u32) -> bool {
        self.keys.binary_search(&key(offset, first)).is_ok_and(|at| self.live[at])
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
    pub named: HashMap<outlive_types::JobName, HashSet<PackId>>,
    visited: HashSet<(Fingerprint, u8)>,
    visited_of: Option<outlive_types::JobName>,
}

impl Marks {
    /// Reads the directories of `packs`. One that cannot be read is left alone.
    pub fn new(pool: &Pool, packs: &[PackId]) -> Marks {
        let mut marks = Marks::default();
        for pack in packs {
            match pool.directory_of(*pack) {
                Ok((directory, total_bytes)) => {
                    let pack_marks = PackMarks::new(directory.entries.iter(), total_bytes);
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
        // Another job may have the same subtree at other places. A job that is read again, since it
        // has saved meanwhile, costs only what is new.
        if self.visited_of.as_ref() != Some(&job.name) {
            self.visited.clear();
            self.visited_of = Some(job.name.clone());
        }
        let segments = segments_of(kept);
        let mut named = HashSet::new();
        for segment in &segments {
            named.insert(segment.pack);
            // A job that loses checkpoints gets new segments.
            let stays = kept.len() == job.manifests.len() && job.damaged == 0;
            if segment.kind == SegmentKind::Segment && stays {
                let (pack, offset, length) = (segment.pack, segment.offset, segment.length);
                self.mark(&Place { pack, offset, length, frame: None });
            }
        }
        // Checkpoints mostly share their segments; each list is loaded once.
        let mut loaded: Option<(&[SegmentRef], Locator)> = None;
        for manifest in kept {
            let at_fault = |error: Error| {
                error.context(format!(
                    "checkpoint {} of job {} cannot be read, so what it needs is unknown and \
                     nothing is deleted; `outlive prune {} --drop {}` gives it up",
                    manifest.epoch, job.name, job.name, manifest.epoch
                ))
            };
            let locator = match &loaded {
                Some((of, locator)) if *of == manifest.segments.as_slice() => locator,
                _ => {
                    let locator = Locator::load(pool, &manifest.segments).map_err(at_fault)?;
                    named.extend(locator.packs());
                    &loaded.insert((&manifest.segments, locator)).1
                }
            };
            self.manifest(pool, manifest, locator).map_err(at_fault)?;
        }
        self.named.entry(job.name.clone()).or_default().extend(named);
        Ok(())
    }

    fn manifest(&mut self, pool: &Pool, manifest: &Manifest, locator: &Locator) -> Result<()> {
        let Marks { packs, visited, .. } = self;
        let mut mark = |place: Place| {
            if let Some(pack) = packs.get_mut(&place.pack) {
                pack.mark(&place);
            }
        };
        for image in &manifest.images {
            let catalog_root = (image.catalog.root, image.catalog.level());
            let known = visited.contains(&catalog_root) || image.catalog.root.is_zero();
            match image.kind {
                ImageKind::Memory => {
                    let mut roots: Vec<TreeRef> = vec![image.catalog, image.packed];
                    if !known {
                        let catalog = read_catalog(pool, locator, image.catalog)?;
                        roots.extend(catalog.regions.iter().filter_map(|region| region.tree()));
                    }
                    walk_live(pool, locator, &roots, visited, &mut mark)?;
                }
                ImageKind::Files => {
                    return Err(Error::invalid(
                        "it is an image of files, which this build cannot collect",
                    ));
                }
            }
        }
        Ok(())
    }

    fn mark(&mut self, place: &Place) {
        if let Some(pack) = self.packs.get_mut(&place.pack) {
            pack.mark(place);
        }
    }

    /// Whether an entry of a segment is in use.
    pub fn is_live(&self, pack: &PackId, entry: &DirectoryEntry) -> bool {
        let first = entry.frame.map_or(0, |frame| frame.first);
        self.packs.get(pack).is_some_and(|marks| marks.is_live(entry.offset, first))
    }
}

/// The distinct segments of some manifests.
pub fn segments_of(manifests: &[&Manifest]) -> Vec<SegmentRef> {
    let mut seen = HashSet::new();
    let all = manifests.iter().flat_map(|manifest| &manifest.segments);
    all.filter(|segment| seen.insert(**segment)).copied().collect()
}

/// Every chunk and node that some segments list and that is in use, with its place.
///
/// # Errors
/// `Damaged` if a segment cannot be read.
pub fn live_entries(
    pool: &Pool,
    marks: &Marks,
    segments: &[SegmentRef],
) -> Result<Vec<(DirectoryEntry, PackId)>> {
    let mut live = Vec::new();
    let mut seen = HashSet::new();
    for segment in segments {
        let directory = read_segment(pool, segment)?;
        for entry in directory.entries.iter().filter(|e| e.kind != EntryKind::Segment) {
            let pack = directory.packs[entry.pack as usize];
            // A pack that is new, or cannot be read, has no marks; what is in it stays named.
            let first = entry.frame.map_or(0, |frame| frame.first);
            let live_there = |marks: &PackMarks| marks.is_live(entry.offset, first);
            if marks.packs.get(&pack).is_none_or(live_there) && seen.insert(entry.fp) {
                live.push((*entry, pack));
            }
        }
    }
    Ok(live)
}
