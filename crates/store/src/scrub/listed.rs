//! Contents of the segments of a job's checkpoints, as far as they can be read.

use crate::images::{pages_of, segments_of_all};
use crate::index::read_segment;
use outlive_format::{Directory, DirectoryEntry, EntryKind, Manifest, SliceForm};
use outlive_pool::{PackExtent, Pool};
use outlive_types::{ErrorKind, Fingerprint, PackId, Result};
use std::collections::{HashMap, HashSet};

/// A chunk or node, or a slice of a chunk.
pub type Form = (Fingerprint, Option<SliceForm>);

/// Chunks, slices and nodes with one extent each: about 100 bytes of memory for an entry. The kind
/// of a slice is that of its chunk.
pub type PackExtents = HashMap<Form, (EntryKind, PackExtent)>;

/// Contents of segments.
#[derive(Debug, Default)]
pub struct SegmentContents {
    /// Extents of chunks and nodes; in packs that are not bad, if there is a choice.
    pub extents: PackExtents,
    /// All packs that are named.
    pub packs: HashSet<PackId>,
    /// Number of segments that cannot be read.
    pub unreadable: usize,
}

impl SegmentContents {
    /// Reads the segments of some manifests.
    ///
    /// # Errors
    /// Errors of the targets, except damage.
    pub fn read(
        pool: &Pool,
        manifests: &[Manifest],
        bad: &HashSet<PackId>,
    ) -> Result<SegmentContents> {
        let mut listed = SegmentContents::default();
        let mut seen = HashSet::new();
        for manifest in manifests {
            listed.packs.extend(pages_of(manifest).map(|page| page.pack));
            let segments = match segments_of_all(pool, manifest) {
                Err(error) if error.kind() == ErrorKind::Damaged => {
                    listed.unreadable += 1;
                    continue;
                }
                segments => segments?,
            };
            for segment in segments.iter().filter(|segment| seen.insert(**segment)) {
                listed.packs.insert(segment.pack);
                match read_segment(pool, segment) {
                    Ok(directory) => {
                        listed.packs.extend(&directory.packs);
                        add(&mut listed.extents, &directory, bad);
                    }
                    Err(error) if error.kind() == ErrorKind::Damaged => listed.unreadable += 1,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(listed)
    }

    /// Whether any of it is or may be in a bad pack.
    pub fn concerns(&self, bad: &HashSet<PackId>) -> bool {
        self.unreadable > 0 || !self.packs.is_disjoint(bad)
    }
}

/// Adds the entries of a directory. An extent in a bad pack gives way to another one.
pub fn add(extents: &mut PackExtents, directory: &Directory, bad: &HashSet<PackId>) {
    for entry in directory.entries.iter().filter(|entry| entry.kind.is_resolved()) {
        let pack = directory.packs[entry.pack as usize];
        let there = (
            if entry.kind.is_content() { EntryKind::Chunk } else { entry.kind },
            PackExtent::of(pack, entry),
        );
        let known = extents.entry((entry.fp, entry.kind.slice())).or_insert(there);
        if bad.contains(&known.1.pack) && !bad.contains(&pack) {
            *known = there;
        }
    }
}

/// Returns the same as a directory.
pub fn directory_of(extents: &PackExtents) -> Directory {
    let mut packs: Vec<PackId> = Vec::new();
    let mut numbers: HashMap<PackId, u32> = HashMap::new();
    let entry = |((fp, _), (kind, extent)): (&Form, &(EntryKind, PackExtent))| {
        let pack = *numbers.entry(extent.pack).or_insert_with(|| {
            packs.push(extent.pack);
            packs.len() as u32 - 1
        });
        extent.entry(*fp, pack, *kind)
    };
    let entries: Vec<DirectoryEntry> = extents.iter().map(entry).collect();
    let mut directory = Directory::new(packs, entries);
    // One copy may have repaired a slice and its chunk.
    directory.entries.dedup();
    directory
}
