//! The pack extents that a series of checkpoints may need. A step to the next checkpoint reads only
//! the segments that it adds, so a long chain costs little more than its last checkpoint.

use super::{Locator, read_segment};
use crate::index::ReadItem;
use outlive_format::{Directory, DirectoryEntry, SegmentRef};
use outlive_pool::Pool;
use outlive_types::{PackId, Result};
use std::collections::HashSet;

/// A locator that steps from one checkpoint's segments to the next one's.
#[derive(Debug, Default)]
pub struct Rolling {
    locator: Locator,
    /// The segments that it has loaded.
    held: Vec<SegmentRef>,
}

/// Result of a step to the next checkpoint.
#[derive(Debug)]
pub enum Stepped {
    /// Everything may have other pack extents, or none.
    Recreated,
    /// All objects keep their pack extents. These have additional ones.
    Further(Vec<ReadItem>),
}

impl Rolling {
    /// Resolves the entries of `segments` from now on, and no other relevant ones.
    ///
    /// # Errors
    /// `Damaged` if a segment is missing or wrong; then nothing has changed.
    pub fn step(&mut self, pool: &Pool, segments: &[SegmentRef]) -> Result<Stepped> {
        let held: HashSet<&SegmentRef> = self.held.iter().collect();
        let next: HashSet<&SegmentRef> = segments.iter().collect();
        let added = segments.iter().filter(|segment| !held.contains(segment));
        let added = added.map(|s| read_segment(pool, s)).collect::<Result<Vec<Directory>>>()?;
        // The missing segments were merged, or this is another chain.
        let merged = |segment: &SegmentRef| {
            let was = read_segment(pool, segment);
            was.is_ok_and(|was| extents(&was).all(|(pack, entry)| is_in(&added, pack, entry)))
        };
        let mut gone = self.held.iter().filter(|segment| !next.contains(segment));
        if self.held.is_empty() || !gone.all(merged) {
            self.locator = Locator::load(pool, segments)?;
            self.held = segments.to_vec();
            return Ok(Stepped::Recreated);
        }
        let mut further = Vec::new();
        for directory in &added {
            let known = self.locator.extend(directory, &|_| true);
            further.extend(known.into_iter().map(|(fp, extent)| ReadItem { fp, extent }));
        }
        self.held = segments.to_vec();
        Ok(Stepped::Further(further))
    }

    /// Returns the pack extents.
    pub fn locator(&self) -> &Locator {
        &self.locator
    }
}

/// Returns the entries of a directory, except segments, with their packs.
fn extents(directory: &Directory) -> impl Iterator<Item = (PackId, &DirectoryEntry)> {
    let listed = directory.entries.iter().filter(|entry| entry.kind.is_resolved());
    listed.map(|entry| (directory.packs[entry.pack as usize], entry))
}

/// Returns whether one of the directories lists the same object at the same pack extent.
fn is_in(directories: &[Directory], pack: PackId, entry: &DirectoryEntry) -> bool {
    directories.iter().any(|directory| {
        let from = directory.entries.partition_point(|other| other.fp < entry.fp);
        let equal = directory.entries[from..].iter().take_while(|other| other.fp == entry.fp);
        equal.into_iter().any(|other| {
            (directory.packs[other.pack as usize], other.offset, other.length, other.frame)
                == (pack, entry.offset, entry.length, entry.frame)
        })
    })
}
