//! The address spaces of the study, and the pages of them that change.

use outlive_chunk::cut;
use outlive_format::{PageExtent, STREAM_BYTES_MAX};
use outlive_store::save::BlockExtents;
use outlive_types::{BLOCK_PAGES, Fingerprint, PAGE_BYTES, Result, Rng, SeededRng};

/// Pages of a 48-bit space.
const WIDE_PAGES: u64 = STREAM_BYTES_MAX / PAGE_BYTES as u64;
/// Blocks whose extents are in memory at once while a first version is built.
const BATCH_BLOCKS: usize = 256;

/// Arrangement of the pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Adjacent pages, cut as a first save cuts them.
    Dense,
    /// Adjacent pages, each a chunk of its own, as after many saves of single pages.
    Fragmented,
    /// Runs at random places of a 48-bit space.
    Sparse,
}

/// Pages that exist in a range of addresses, as runs of equal length.
pub struct Space {
    pub kind: Kind,
    /// First page of each run, sorted.
    starts: Vec<u64>,
    pub run_pages: u64,
    /// Pages of the whole range.
    pub range_pages: u64,
}

impl Space {
    /// Returns adjacent pages from address 0 on.
    pub fn dense(kind: Kind, pages: u64) -> Space {
        Space { kind, starts: vec![0], run_pages: pages, range_pages: pages }
    }

    /// Returns `runs` runs in a 48-bit space, each at a random multiple of its length.
    pub fn sparse(run_pages: u64, runs: u64, rng: &SeededRng) -> Space {
        let mut starts = Vec::with_capacity(runs as usize);
        while (starts.len() as u64) < runs {
            let missing = runs - starts.len() as u64;
            starts.extend((0..missing).map(|_| rng.below(WIDE_PAGES / run_pages) * run_pages));
            starts.sort_unstable();
            starts.dedup();
        }
        Space { kind: Kind::Sparse, starts, run_pages, range_pages: WIDE_PAGES }
    }

    /// Returns the number of pages that exist.
    pub fn pages(&self) -> u64 {
        self.starts.len() as u64 * self.run_pages
    }

    /// Returns the pages that exist, as pairs of first page and count.
    pub fn runs(&self) -> impl Iterator<Item = (u64, u64)> {
        self.starts.iter().map(|start| (*start, self.run_pages))
    }

    /// Returns the pages that exist, one by one.
    pub fn each_page(&self) -> impl Iterator<Item = u64> {
        self.runs().flat_map(|(start, pages)| start..start + pages)
    }

    /// Returns up to `count` random existing pages, sorted, each once.
    pub fn choose(&self, count: u64, rng: &SeededRng) -> Vec<u64> {
        let page = |_| {
            let number = rng.below(self.pages());
            self.starts[(number / self.run_pages) as usize] + number % self.run_pages
        };
        let mut chosen: Vec<u64> = (0..count).map(page).collect();
        chosen.sort_unstable();
        chosen.dedup();
        chosen
    }

    /// Returns the number of groups of `group_pages` adjacent pages that have any page.
    pub fn touched(&self, group_pages: u64) -> u64 {
        let (mut groups, mut next) = (0, 0);
        for (start, pages) in self.runs() {
            let (first, end) = (start / group_pages, (start + pages - 1) / group_pages + 1);
            groups += end - first.max(next).min(end);
            next = end;
        }
        groups
    }
}

/// Returns sorted pages as runs of adjacent ones.
pub fn runs_of(pages: &[u64]) -> impl Iterator<Item = (u64, u64)> {
    pages.chunk_by(|a, b| a + 1 == *b).map(|run| (run[0], run.len() as u64))
}

/// Calls `each` with the extents of some blocks at a time, as the first stage of a save would make
/// them of these runs. Fingerprints are random, since no page has bytes here.
///
/// # Errors
/// Errors of `each`.
pub fn extents(
    runs: impl Iterator<Item = (u64, u64)>,
    chunk_pages_max: u32,
    rng: &SeededRng,
    each: &mut dyn FnMut(Vec<BlockExtents>) -> Result<()>,
) -> Result<()> {
    let block_pages = BLOCK_PAGES as u64;
    let mut batch: Vec<BlockExtents> = Vec::with_capacity(BATCH_BLOCKS);
    for (start, pages) in runs {
        let (mut at, end) = (start, start + pages);
        while at < end {
            let block = at / block_pages;
            let stop = end.min((block + 1) * block_pages);
            let is_new = batch.last().is_none_or(|last| last.block != block);
            if is_new && batch.len() == BATCH_BLOCKS {
                each(std::mem::take(&mut batch))?;
            }
            if is_new {
                batch.push(BlockExtents { stream: 0, block, extents: Vec::new() });
            }
            if let Some(last) = batch.last_mut() {
                let first = (at % block_pages) as u32;
                let chunks = cut(first, (stop - at) as u32, chunk_pages_max);
                last.extents.extend(chunks.map(|(page, pages)| PageExtent {
                    page: page as u16,
                    pages: pages as u16,
                    first: 0,
                    chunk: Some(fingerprint(rng)),
                }));
            }
            at = stop;
        }
    }
    if batch.is_empty() { Ok(()) } else { each(batch) }
}

/// Returns a random fingerprint.
pub fn fingerprint(rng: &SeededRng) -> Fingerprint {
    let mut bytes = [0; 32];
    rng.fill(&mut bytes);
    Fingerprint(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_become_extents_of_blocks() {
        let mut blocks = Vec::new();
        let runs = [(500, 20), (1030, 1)].into_iter();
        extents(runs, 16, &SeededRng::new(1), &mut |batch| {
            blocks.extend(batch);
            Ok(())
        })
        .unwrap();
        let of = |block: &BlockExtents| -> Vec<(u16, u16)> {
            block.extents.iter().map(|extent| (extent.page, extent.pages)).collect()
        };
        let found: Vec<_> = blocks.iter().map(|block| (block.block, of(block))).collect();
        assert_eq!(found, [(0, vec![(500, 12)]), (1, vec![(0, 8)]), (2, vec![(6, 1)])]);
    }

    #[test]
    fn sparse_runs_are_apart_and_counted() {
        let space = Space::sparse(16, 100, &SeededRng::new(3));
        assert_eq!(space.pages(), 1600);
        let pages: Vec<u64> = space.each_page().collect();
        assert!(pages.is_sorted_by(|a, b| a < b));
        let mut groups: Vec<u64> = pages.iter().map(|page| page / 256).collect();
        groups.dedup();
        assert_eq!(space.touched(256), groups.len() as u64);
        let chosen = space.choose(50, &SeededRng::new(4));
        assert!(chosen.iter().all(|page| pages.binary_search(page).is_ok()));
        assert_eq!(runs_of(&[1, 2, 3, 7]).collect::<Vec<_>>(), [(1, 3), (7, 1)]);
    }
}
