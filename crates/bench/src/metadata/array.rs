//! The paper's in-place array: an entry of 16 bytes for each page of the address range.

use super::marks::Marks;
use super::structure::{ENTRY_BYTES, Entry, Found, Structure, Update, entry, timed};
use outlive_types::Result;

/// Entries by page number, with a bit for each entry that has changed.
pub struct InPlaceArray {
    entries: Vec<Entry>,
    changed: Marks,
    /// The version before, if there is memory for it.
    before: Option<Vec<Entry>>,
}

/// Returns the bytes in memory for a range of `range_pages` pages.
pub fn ram_bytes(range_pages: u64) -> u64 {
    range_pages * ENTRY_BYTES + Marks::bytes(range_pages)
}

impl InPlaceArray {
    /// Builds the first version. It keeps the version before if `keeps_before`.
    pub fn build(
        range_pages: u64,
        pages: impl Iterator<Item = u64>,
        keeps_before: bool,
    ) -> InPlaceArray {
        let mut entries = vec![[0; 2]; range_pages as usize];
        for page in pages {
            entries[page as usize] = entry(page, 0);
        }
        let before = keeps_before.then(|| entries.clone());
        InPlaceArray { entries, changed: Marks::new(range_pages), before }
    }
}

impl Structure for InPlaceArray {
    fn update(&mut self, pages: &[u64], version: u64) -> Result<Update> {
        let ((), took_s) = timed(|| {
            for page in pages {
                self.entries[*page as usize] = entry(*page, version);
                self.changed.set(*page as usize);
            }
        });
        // A delta on disk also names the page of each entry.
        Ok(Update { took_s, durable_s: 0.0, written_bytes: pages.len() as u64 * (8 + ENTRY_BYTES) })
    }

    fn delta(&mut self) -> Option<Found> {
        let (delta, took_s) = timed(|| {
            let mut delta: Vec<(u64, Entry)> = Vec::new();
            self.changed.take(|at| delta.push((at as u64, self.entries[at])));
            delta
        });
        Some(Found { took_s, open_s: 0.0, pages: delta.len() as u64 })
    }

    fn compare(&mut self) -> Result<Option<Found>> {
        let Some(before) = &mut self.before else { return Ok(None) };
        let (delta, took_s) = timed(|| {
            let pairs = before.iter().zip(&self.entries).enumerate();
            let others = pairs.filter(|(_, (a, b))| a != b);
            others.map(|(page, _)| page as u64).collect::<Vec<u64>>()
        });
        before.copy_from_slice(&self.entries);
        Ok(Some(Found { took_s, open_s: 0.0, pages: delta.len() as u64 }))
    }

    fn ram_bytes(&self) -> u64 {
        self.entries.capacity() as u64 * ENTRY_BYTES + self.changed.ram_bytes()
    }
}
