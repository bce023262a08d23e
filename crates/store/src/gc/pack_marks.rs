//! Marks of one pack: its entries in use, and the pages of its chunks in use.

use crate::index::Pages;
use outlive_format::{DirectoryEntry, PAGE_GROUPS_MAX, PageSet};
use outlive_pool::PackExtent;
use outlive_types::PAGE_BYTES;
use std::collections::HashMap;

/// The part of a pack that is in use. It takes six bytes an entry, ten if the pack has frames.
#[derive(Debug, Default)]
pub struct PackMarks {
    /// Length of its containers.
    pub total_bytes: u64,
    /// Bytes of all entries. The rest fills up pages, and containers without room for the next
    /// entry.
    pub filled_bytes: u64,
    /// Offsets of its entries, sorted.
    offsets: Vec<u32>,
    /// Offsets of the entries in their frames; empty without frames.
    firsts: Vec<u32>,
    /// Binary logarithm of the pages of a page group.
    group_log2: u8,
    in_use: InUse,
    /// The part that any unit uses, if units are counted separately.
    by_any: Option<InUse>,
}

/// Entries in use, and their pages in use.
#[derive(Debug, Default)]
struct InUse {
    /// By entry.
    pages: Vec<PageSet>,
    /// Bytes of entries in use; for a frame, the share of its chunks in use.
    entry_bytes: u64,
    /// The same without pages that are not in use.
    page_bytes: u64,
    /// Number of entries in use, and of those with all pages in use.
    entries: usize,
    whole_entries: usize,
}

impl PackMarks {
    /// Returns marks of these entries, with nothing in use yet.
    pub fn new(entries: &[DirectoryEntry], total_bytes: u64, group_log2: u8) -> PackMarks {
        let mut keys: Vec<(u32, u32)> =
            entries.iter().map(|e| (e.offset, e.frame.map_or(0, |frame| frame.first))).collect();
        keys.sort_unstable();
        keys.dedup();
        let offsets: Vec<u32> = keys.iter().map(|(offset, _)| *offset).collect();
        let mut firsts: Vec<u32> = keys.iter().map(|(_, first)| *first).collect();
        if firsts.iter().all(|first| *first == 0) {
            firsts = Vec::new();
        }
        let stored: HashMap<u32, u32> = entries
            .iter()
            .map(|e| (e.offset, e.frame.map_or(e.length, |f| f.stored_bytes)))
            .collect();
        let filled_bytes = stored.into_values().map(u64::from).sum();
        let in_use = InUse::new(offsets.len());
        PackMarks { total_bytes, filled_bytes, offsets, firsts, group_log2, in_use, by_any: None }
    }

    /// From here on, keeps what any unit uses beside what the current unit uses.
    pub fn tell_units_apart(&mut self) {
        self.by_any = Some(InUse::new(self.offsets.len()));
    }

    /// Begins the next unit.
    pub fn next_unit(&mut self) {
        let mut pages = std::mem::take(&mut self.in_use.pages);
        pages.fill(PageSet::default());
        self.in_use = InUse { pages, ..InUse::default() };
    }

    /// Makes all that any unit uses count as in use.
    pub fn unite(&mut self) {
        if let Some(all) = self.by_any.take() {
            self.in_use = all;
        }
    }

    fn find(&self, offset: u32, first: u32) -> Option<usize> {
        let from = self.offsets.partition_point(|there| *there < offset);
        let count = self.offsets[from..].partition_point(|there| *there == offset);
        match self.firsts.get(from..from + count) {
            Some(firsts) => firsts.binary_search(&first).ok().map(|at| from + at),
            None => (count > 0 && first == 0).then_some(from),
        }
    }

    /// Returns the number of its entries.
    pub fn entries(&self) -> usize {
        self.offsets.len()
    }

    /// Returns the bytes of entries in use; for a frame, the share of its chunks in use.
    pub fn live_bytes(&self) -> u64 {
        self.in_use.entry_bytes
    }

    /// Returns the same without unused pages of chunks.
    pub fn live_page_bytes(&self) -> u64 {
        self.in_use.page_bytes
    }

    /// Marks pages of the entry at an extent. Returns the number of the entry and its bytes, if
    /// none of it was marked before.
    pub fn mark(&mut self, extent: &PackExtent, pages: Pages) -> Option<(usize, u64)> {
        let (at, bytes) = self.mark_for_any(extent, pages)?;
        self.in_use.add(at, extent, pages, self.group_log2).then_some((at, bytes))
    }

    /// Marks them as needed by some unit, but not by the current one. Returns the number of the
    /// entry and its bytes.
    pub fn mark_for_any(&mut self, extent: &PackExtent, pages: Pages) -> Option<(usize, u64)> {
        let at = self.find(extent.offset, extent.frame.map_or(0, |frame| frame.first))?;
        if let Some(all) = &mut self.by_any {
            all.add(at, extent, pages, self.group_log2);
        }
        Some((at, stored_bytes(extent, extent.length.into())))
    }

    /// Returns the bytes that copying the live entries, with `of_pages` the live pages, would free.
    /// Bytes that only fill up a page would be needed in the copy, too.
    pub fn unused_bytes(&self, of_pages: bool) -> u64 {
        let InUse { entry_bytes, page_bytes, entries, whole_entries, .. } = self.in_use;
        let (count, bytes) =
            if of_pages { (whole_entries, page_bytes) } else { (entries, entry_bytes) };
        match count == self.offsets.len() {
            true => 0,
            false => self.total_bytes.saturating_sub(bytes.next_multiple_of(PAGE_BYTES as u64)),
        }
    }

    /// Returns the pages of an entry that are in use.
    pub fn live_pages(&self, entry: &DirectoryEntry) -> PageSet {
        let at = self.find(entry.offset, entry.frame.map_or(0, |frame| frame.first));
        at.map(|at| self.in_use.pages[at]).unwrap_or_default()
    }

    /// Whether an entry is in use.
    pub fn is_live(&self, entry: &DirectoryEntry) -> bool {
        !self.live_pages(entry).is_empty()
    }
}

impl InUse {
    fn new(entries: usize) -> InUse {
        InUse { pages: vec![PageSet::default(); entries], ..InUse::default() }
    }

    /// Adds pages of an entry. Returns true if none of the entry was in use yet.
    fn add(&mut self, at: usize, extent: &PackExtent, pages: Pages, group_log2: u8) -> bool {
        let before = self.pages[at];
        let now = before.with(pages.set(group_log2));
        if now == before {
            return false;
        }
        let (bytes_before, was_whole) = bytes_of(extent, before, group_log2);
        let (bytes, is_whole) = bytes_of(extent, now, group_log2);
        self.pages[at] = now;
        self.page_bytes += bytes - bytes_before;
        self.whole_entries += usize::from(is_whole && !was_whole);
        if before.is_empty() {
            self.entries += 1;
            self.entry_bytes += stored_bytes(extent, extent.length.into());
        }
        before.is_empty()
    }
}

/// Returns the bytes of some pages of an entry, and whether these are all of it.
fn bytes_of(extent: &PackExtent, pages: PageSet, group_log2: u8) -> (u64, bool) {
    let length = u64::from(extent.length);
    let group_bytes = (PAGE_BYTES as u64) << group_log2;
    let is_whole = match extent.slice {
        // A slice of another pool, with other groups, is in use as a whole.
        Some(form) if form.group_log2() != group_log2 => !pages.is_empty(),
        Some(form) => pages.holds(form.pages()),
        None => match length.div_ceil(group_bytes) {
            groups if groups > u64::from(PAGE_GROUPS_MAX) => !pages.is_empty(),
            groups => pages.holds(PageSet::ALL.within(groups as u32)),
        },
    };
    let page_bytes = u64::from(pages.groups()) * group_bytes;
    (stored_bytes(extent, if is_whole { length } else { length.min(page_bytes) }), is_whole)
}

/// Returns how many stored bytes some bytes of an entry take.
fn stored_bytes(extent: &PackExtent, bytes: u64) -> u64 {
    match extent.frame {
        None => bytes,
        Some(frame) => bytes * u64::from(frame.stored_bytes) / u64::from(frame.raw_bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_format::{EntryKind, InFrame, SliceForm};
    use outlive_types::{Codec, Fingerprint, PackId};

    fn entry(offset: u32, length: u32, frame: Option<InFrame>) -> DirectoryEntry {
        let fp = Fingerprint([1; 32]);
        DirectoryEntry { fp, pack: 0, offset, length, kind: EntryKind::Chunk, frame }
    }

    fn extent(entry: &DirectoryEntry) -> PackExtent {
        PackExtent::of(PackId([0; 20]), entry)
    }

    #[test]
    fn marked_entries_are_live_and_counted_once() {
        let frame =
            |first| InFrame { stored_bytes: 500, raw_bytes: 1000, codec: Codec::Lz4, first };
        let plain: Vec<_> = (0..200).map(|at| entry(at * 7, 7, None)).collect();
        let framed: Vec<_> = (0..4).map(|at| entry(7000, 250, Some(frame(at * 250)))).collect();
        for entries in [plain.clone(), [plain, framed].concat()] {
            let mut marks = PackMarks::new(&entries, 1 << 20, 0);
            for chosen in entries.iter().step_by(3).chain(entries.iter().step_by(3)) {
                marks.mark(&extent(chosen), Pages::Whole);
            }
            marks.mark(&extent(&entry(3, 7, None)), Pages::Whole);
            for (at, entry) in entries.iter().enumerate() {
                assert_eq!(marks.is_live(entry), at % 3 == 0, "{entry:?}");
            }
            let bytes = |entry: &DirectoryEntry| if entry.frame.is_some() { 125 } else { 7 };
            let live: u64 = entries.iter().step_by(3).map(bytes).sum();
            assert_eq!((marks.live_bytes(), marks.live_page_bytes()), (live, live));
            assert_eq!(marks.unused_bytes(true), (1 << 20) - live.next_multiple_of(4096));
            for entry in &entries {
                marks.mark(&extent(entry), Pages::Whole);
            }
            assert_eq!(marks.unused_bytes(true), 0, "nothing to gain where all is in use");
        }
    }

    #[test]
    fn pages_of_chunks_and_slices_count_by_themselves() {
        let chunk = entry(0, 15 * 4096 + 10, None);
        let form = SliceForm::new(PageSet::of(3, 2, 0), 16, 0).unwrap();
        let slice = DirectoryEntry {
            kind: EntryKind::Slice(form),
            ..entry(1 << 17, form.length() as u32, None)
        };
        let length = form.length();
        let mut marks = PackMarks::new(&[chunk, slice], 1 << 20, 0);
        let mut figures = |entry, first, pages| {
            marks.mark(&extent(entry), Pages::From(first, pages));
            (marks.live_bytes(), marks.live_page_bytes(), marks.unused_bytes(true) == 0)
        };
        let whole = 15 * 4096 + 10;
        assert_eq!(figures(&chunk, 2, 2), (whole, 2 * 4096, false));
        assert_eq!(figures(&chunk, 3, 2), (whole, 3 * 4096, false));
        // The last page is a short one.
        assert_eq!(figures(&chunk, 0, 16), (whole, whole, false));
        assert_eq!(figures(&slice, 4, 1), (whole + length, whole + 4096, false));
        assert_eq!(figures(&slice, 3, 2), (whole + length, whole + length, true));
        assert_eq!(marks.unused_bytes(false), 0);
        assert_eq!(marks.live_pages(&slice), PageSet::of(3, 2, 0));
    }

    #[test]
    fn pages_that_any_unit_needs_are_kept_beside() {
        let entries = [entry(0, 8192, None), entry(8192, 8192, None)];
        let mut marks = PackMarks::new(&entries, 1 << 14, 0);
        marks.tell_units_apart();
        assert_eq!(marks.mark(&extent(&entries[0]), Pages::From(0, 1)), Some((0, 8192)));
        assert_eq!(marks.mark(&extent(&entries[0]), Pages::From(1, 1)), None, "it is marked");
        marks.next_unit();
        assert!(!marks.is_live(&entries[0]));
        marks.mark_for_any(&extent(&entries[1]), Pages::From(1, 1));
        assert!(!marks.is_live(&entries[1]));
        marks.unite();
        assert_eq!((marks.live_bytes(), marks.live_page_bytes()), (1 << 14, 12288));
    }
}
