//! Pack extents of everything that one checkpoint may need, in memory.

use super::{ByFingerprint, each_segment};
use outlive_format::{Directory, DirectoryEntry, InFrame, PageSet, SegmentRef, SliceForm};
use outlive_pool::{PackExtent, Pool};
use outlive_types::{Error, Fingerprint, PAGE_BYTES, PackId, Result};
use std::collections::hash_map::Entry::{Occupied, Vacant};

/// An object to read: its name and its pack extent.
#[derive(Clone, Copy, Debug)]
pub struct ReadItem {
    /// Fingerprint its bytes must have.
    pub fp: Fingerprint,
    /// Its pack extent.
    pub extent: PackExtent,
}

/// The pages of a chunk that are needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pages {
    /// All pages.
    Whole,
    /// The first page, and the number of pages.
    From(u32, u32),
}

impl Pages {
    /// Returns the pages with `length` bytes from byte `from` on.
    pub fn of_bytes(from: u32, length: u32) -> Pages {
        let page = PAGE_BYTES as u32;
        let first = from / page;
        Pages::From(first, from.saturating_add(length).div_ceil(page).saturating_sub(first))
    }

    /// Returns them as a set, in groups of `2^group_log2` pages.
    pub fn set(self, group_log2: u8) -> PageSet {
        match self {
            Pages::Whole => PageSet::ALL,
            Pages::From(first, pages) => PageSet::of(first, pages, group_log2),
        }
    }

    /// Returns whether the object at `extent` has them.
    pub fn are_at(self, extent: &PackExtent) -> bool {
        match (self, extent.slice) {
            (_, None) => true,
            (Pages::Whole, Some(_)) => false,
            (Pages::From(first, pages), Some(form)) => form.covers(first, pages),
        }
    }
}

/// Resolves fingerprints. Takes about 60 bytes a chunk, and 32 more for one in a frame.
#[derive(Clone, Debug, Default)]
pub struct Locator {
    packs: Vec<PackId>,
    /// Whole chunks and nodes; the first slice of a chunk that exists in slices only.
    extents: ByFingerprint<Entry>,
    /// Further slices of chunks.
    slices: ByFingerprint<Vec<Entry>>,
    /// Frames of the chunks that are in one.
    frames: Vec<(u32, InFrame)>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Index into `packs`.
    pack: u32,
    /// Logical offset; for a chunk in a frame an index into `frames`.
    offset: u32,
    /// Length; the highest bit is set for a chunk in a frame.
    length: u32,
    /// Its form, if it is a slice.
    slice: Option<SliceForm>,
}

const FRAMED: u32 = 1 << 31;

impl Locator {
    /// Loads the segments of a manifest.
    ///
    /// # Errors
    /// `Damaged` if a segment is missing or wrong.
    pub fn load(pool: &Pool, segments: &[SegmentRef]) -> Result<Locator> {
        Locator::load_where(pool, segments, |_| true)
    }

    /// Loads the entries of segments that `keep` accepts.
    ///
    /// # Errors
    /// `Damaged` if a segment is missing or wrong.
    pub fn load_where(
        pool: &Pool,
        segments: &[SegmentRef],
        keep: impl Fn(&DirectoryEntry) -> bool,
    ) -> Result<Locator> {
        let mut locator = Locator::default();
        each_segment(pool, segments, &mut |_, directory| {
            locator.extend(&directory, &keep);
            Ok(true)
        })?;
        Ok(locator)
    }

    /// Adds the entries of a directory that `keep` accepts. Returns the pack extents of objects
    /// that already have another one.
    pub(super) fn extend(
        &mut self,
        directory: &Directory,
        keep: &dyn Fn(&DirectoryEntry) -> bool,
    ) -> Vec<(Fingerprint, PackExtent)> {
        let first = self.add_packs(directory);
        let wanted = |entry: &&DirectoryEntry| entry.kind.is_resolved() && keep(entry);
        let mut others = Vec::new();
        self.extents.reserve(directory.entries.iter().filter(wanted).count());
        for entry in directory.entries.iter().filter(wanted) {
            if !self.add(first, entry) {
                let extent = PackExtent::of(directory.packs[entry.pack as usize], entry);
                if self.forms(&entry.fp).any(|known| known != extent) {
                    others.push((entry.fp, extent));
                }
            }
        }
        others
    }

    /// Adds the packs of a directory, for [`Locator::add`]. Returns the number of the first one.
    pub(super) fn add_packs(&mut self, directory: &Directory) -> u32 {
        self.packs.extend_from_slice(&directory.packs);
        (self.packs.len() - directory.packs.len()) as u32
    }

    /// Makes a locator of one directory.
    pub fn of(directory: &Directory) -> Locator {
        let mut locator = Locator { packs: directory.packs.clone(), ..Locator::default() };
        locator.extents.reserve(directory.entries.len());
        for entry in &directory.entries {
            locator.add(0, entry);
        }
        locator
    }

    /// Adds an entry, unless its chunk already has a pack extent. Returns false if it had one.
    pub(super) fn add(&mut self, first_pack: u32, listed: &DirectoryEntry) -> bool {
        let Locator { extents, slices, frames, .. } = self;
        let slice = listed.kind.slice();
        let mut entry_of = || {
            let (pack, offset) = (first_pack + listed.pack, listed.offset);
            let mut entry = Entry { pack, offset, length: listed.length, slice };
            if let Some(frame) = listed.frame {
                entry.offset = frames.len() as u32;
                entry.length |= FRAMED;
                frames.push((listed.offset, frame));
            }
            entry
        };
        match (extents.entry(listed.fp), slice) {
            (Vacant(vacant), _) => {
                vacant.insert(entry_of());
                true
            }
            (Occupied(mut there), None) => {
                // Of equal chunks the first one listed serves as well as any other.
                if there.get().slice.is_some() {
                    let before = there.insert(entry_of());
                    slices.entry(listed.fp).or_default().push(before);
                }
                false
            }
            (Occupied(there), Some(_)) => {
                let further = slices.get(&listed.fp).into_iter().flatten();
                if further.chain([there.get()]).all(|known| known.slice != slice) {
                    slices.entry(listed.fp).or_default().push(entry_of());
                }
                false
            }
        }
    }

    /// Returns the pack extent of a node, or of a whole chunk.
    ///
    /// # Errors
    /// `Damaged` if no segment lists it, or only slices of it.
    pub fn find(&self, fp: &Fingerprint) -> Result<PackExtent> {
        self.find_pages(fp, Pages::Whole)
    }

    /// Returns the pack extent of some pages of a chunk: of the chunk, or of a slice of it.
    ///
    /// # Errors
    /// `Damaged` if no segment lists them.
    pub fn find_pages(&self, fp: &Fingerprint, pages: Pages) -> Result<PackExtent> {
        self.forms(fp).find(|extent| pages.are_at(extent)).ok_or_else(|| {
            let what = match self.forms(fp).next() {
                None => format!("chunk or node {fp:?} is"),
                Some(_) => format!("pages of chunk {fp:?} are"),
            };
            Error::damaged(format!("{what} in none of the checkpoint's segments"))
        })
    }

    /// Returns whether it lists a node, or a chunk as a whole.
    pub fn lists(&self, fp: &Fingerprint) -> bool {
        self.forms(fp).any(|extent| extent.slice.is_none())
    }

    /// Returns the pack extents of a chunk or node, or of its slices, in order of preference.
    pub fn forms(&self, fp: &Fingerprint) -> impl Iterator<Item = PackExtent> {
        let further = self.slices.get(fp).into_iter().flatten();
        self.extents.get(fp).into_iter().chain(further).map(|entry| self.extent(entry))
    }

    fn extent(&self, entry: &Entry) -> PackExtent {
        let (offset, frame) = match entry.length & FRAMED {
            0 => (entry.offset, None),
            _ => {
                let (offset, frame) = self.frames[entry.offset as usize];
                (offset, Some(frame))
            }
        };
        let (pack, length) = (self.packs[entry.pack as usize], entry.length & !FRAMED);
        PackExtent { pack, offset, length, frame, slice: entry.slice }
    }

    /// Returns the packs that the segments list.
    pub fn packs(&self) -> &[PackId] {
        &self.packs
    }

    /// Returns the number of known chunks and nodes.
    pub fn len(&self) -> usize {
        self.extents.len()
    }

    /// Returns true if no chunk or node is known.
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }
}

/// Returns a test of fingerprints in ascending order: whether a directory does not list the chunk or
/// node as a whole. Passes each entry of a tested one to `found`.
pub(super) fn strike<'a>(
    directory: &'a Directory,
    mut found: impl FnMut(&'a DirectoryEntry) + 'a,
) -> impl FnMut(&Fingerprint) -> bool + 'a {
    let mut rest = directory.entries.as_slice();
    move |fp| {
        rest = &rest[gallop(rest, fp)..];
        let mut is_whole = false;
        let equal = rest.iter().take_while(|entry| entry.fp == *fp);
        for entry in equal.filter(|entry| entry.kind.is_resolved()) {
            found(entry);
            is_whole |= entry.kind.slice().is_none();
        }
        !is_whole
    }
}

/// Returns the number of entries before `fp`, which is found faster the nearer it is.
fn gallop(entries: &[DirectoryEntry], fp: &Fingerprint) -> usize {
    let mut end = 1;
    while end < entries.len() && entries[end - 1].fp < *fp {
        end *= 2;
    }
    let from = end / 2;
    let near = &entries[from..end.min(entries.len())];
    from + near.partition_point(|entry| entry.fp < *fp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_format::EntryKind;
    use outlive_types::SeededRng;

    /// Some have equal prefixes.
    fn fp(number: u64) -> Fingerprint {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&(number / 3).to_be_bytes());
        bytes[31] = 1 + (number % 3) as u8;
        Fingerprint(bytes)
    }

    /// A directory of some of 100 chunks, a third of them as slices.
    fn directory(rng: &SeededRng, pack: u8) -> Directory {
        let page = PAGE_BYTES as u32;
        let entries = (0..rng.next_u64() % 60).map(|number| {
            let pages = PageSet::of((rng.next_u64() % 4) as u32, 1, 0);
            let kind = match rng.next_u64() % 3 {
                0 => EntryKind::Slice(SliceForm::new(pages, 4, 0).unwrap()),
                1 => EntryKind::Chunk,
                _ => EntryKind::Node,
            };
            let (fp, offset) = (fp(rng.next_u64() % 100), number as u32 * page);
            DirectoryEntry { fp, kind, pack: 0, offset, length: page, frame: None }
        });
        Directory::new(vec![PackId([pack; 20])], entries.collect())
    }

    #[test]
    fn wanted_entries_are_found_as_if_all_were_loaded() {
        let rng = SeededRng::new(1);
        for _ in 0..200 {
            let directories: Vec<Directory> = (1..5).map(|pack| directory(&rng, pack)).collect();
            let mut wanted: Vec<Fingerprint> =
                (0..100).filter(|_| rng.next_u64().is_multiple_of(4)).map(fp).collect();
            let asked = wanted.clone();
            let (mut some, mut all) = (Locator::default(), Locator::default());
            for directory in &directories {
                let first = some.add_packs(directory);
                wanted.retain(strike(directory, |entry| _ = some.add(first, entry)));
                all.extend(directory, &|_| true);
            }
            for fp in &asked {
                assert_eq!(some.lists(fp), all.lists(fp), "{fp:?}");
                assert_eq!(wanted.contains(fp), !all.lists(fp), "{fp:?}");
                for page in 0..4 {
                    let pages = Pages::From(page, 1);
                    assert_eq!(
                        some.find_pages(fp, pages).is_ok(),
                        all.find_pages(fp, pages).is_ok()
                    );
                }
            }
            assert!(some.len() <= asked.len());
        }
    }
}
