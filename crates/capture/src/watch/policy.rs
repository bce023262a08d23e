//! Experience with a watched region: whether to compare written pages, make dense blocks coarse, or
//! expect a sweep.

use outlive_types::PageRange;
use std::ops::Range;

/// Whether written pages are worth comparing: only if some were written with their old content.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Filter {
    /// Written pages that were compared, and those of them that had not changed; older ones count
    /// less.
    compared: u64,
    unchanged: u64,
}

impl Filter {
    /// Compared pages from which a decision is possible.
    const ENOUGH: u64 = 256;
    /// Factor above [`Filter::ENOUGH`] from which a sample is taken.
    const MANY: u64 = 16;

    /// Compares a sample if very many pages are written, instead of learning from all of them that
    /// it does not pay.
    pub fn ask(&mut self, written: &[PageRange], changed: impl Fn(u64) -> bool) {
        let pages: u64 = written.iter().map(|range| range.count).sum();
        let step = pages / Filter::ENOUGH;
        if step < Filter::MANY || !self.pays() {
            return;
        }
        let at = |number: u64| number * step + scattered(pages, number, step);
        let (mut compared, mut unchanged, mut before) = (0, 0, 0);
        for range in written {
            while at(compared) < before + range.count {
                unchanged += u64::from(!changed(range.first + at(compared) - before));
                compared += 1;
            }
            before += range.count;
        }
        self.add(compared, unchanged);
    }

    pub fn add(&mut self, compared: u64, unchanged: u64) {
        if self.compared > 8 * Filter::ENOUGH {
            self.compared /= 2;
            self.unchanged /= 2;
        }
        self.compared += compared;
        self.unchanged += unchanged;
    }

    /// Whether comparing pays: not if fewer than one page in two hundred had not changed.
    pub fn pays(&self) -> bool {
        self.compared < Filter::ENOUGH || self.unchanged * 200 > self.compared
    }
}

/// Of pages that are not worth comparing, one in this number is compared nevertheless, to notice a
/// change.
const SAMPLED: u64 = 64;

/// Whether blocks that were dense once will be so again. A program that sweeps through its memory
/// once leaves each block behind, and to make it coarse costs a comparison of all of it. All
/// regions of a job contribute: of many regions, each may be written just once.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Patience {
    /// Blocks that were made coarse, and those of them that were quiet right after; older ones
    /// count less.
    coarsened: u32,
    in_vain: u32,
}

impl Patience {
    const FORGOTTEN_AFTER: u32 = 256;

    pub fn learn(&mut self, in_vain: bool) {
        if self.coarsened == Patience::FORGOTTEN_AFTER {
            (self.coarsened, self.in_vain) = (self.coarsened / 2, self.in_vain / 2);
        }
        self.coarsened += 1;
        self.in_vain += u32::from(in_vain);
    }

    /// Whether a block must be dense twice in a row before it is made coarse.
    pub fn pays(&self) -> bool {
        self.in_vain * 2 > self.coarsened
    }
}

/// Position of a sweep. A program that fills its memory from one end to the other writes in each
/// interval the blocks behind those of the last one. Armed, these cost it a fault a page. The
/// paper's growing runs open them within the interval. Here, where the kernel resolves the faults,
/// they are disarmed before.
#[derive(Clone, Default, Debug)]
pub(super) struct Front {
    /// Blocks that were dense at the last freeze.
    dense: Vec<bool>,
    /// Blocks that a sweep would write next.
    expected: Vec<Range<usize>>,
    /// Blocks that were expected to be dense, and those of them that were not; older ones count
    /// less.
    predicted: u32,
    in_vain: u32,
    /// Whether nearly all pages of the block that was compared last had changed.
    pub is_full: bool,
}

impl Front {
    const FORGOTTEN_AFTER: u32 = 64;
    /// Predicted blocks from which a decision is possible.
    const ENOUGH: u32 = 4;

    /// Takes the blocks that were dense at this freeze, and returns those expected to be dense at
    /// the next.
    pub fn learn(&mut self, dense: Vec<bool>) -> &[Range<usize>] {
        for run in std::mem::take(&mut self.expected) {
            if self.predicted >= Front::FORGOTTEN_AFTER {
                (self.predicted, self.in_vain) = (self.predicted / 2, self.in_vain / 2);
            }
            self.predicted += run.len() as u32;
            self.in_vain += dense[run].iter().filter(|dense| !**dense).count() as u32;
        }
        let is_new = |at: usize| dense.get(at) == Some(&true) && self.dense.get(at) != Some(&true);
        let mut at = 0;
        while at < dense.len() {
            let end = (at..).find(|at| !is_new(*at)).unwrap_or(dense.len());
            // No farther than sweeps have come.
            let most = (self.predicted - self.in_vain).max(Front::ENOUGH) as usize;
            let stop = (end + (end - at).min(most)).min(dense.len());
            // No farther than to blocks that are written anyway.
            let stop = (end..stop).find(|at| dense[*at]).unwrap_or(stop);
            if end < stop {
                self.expected.push(end..stop);
            }
            at = end.max(at) + 1;
        }
        self.dense = dense;
        if self.pays() { &self.expected } else { &[] }
    }

    /// Whether predictions are mostly right.
    fn pays(&self) -> bool {
        self.predicted >= Front::ENOUGH && self.in_vain * 3 <= self.predicted
    }
}

/// Returns the sample of pages that is always compared: different ones at each freeze.
pub(super) fn sampled(pages: &[PageRange], freeze: u64) -> Vec<PageRange> {
    let mut sampled = Vec::new();
    for range in pages {
        let end = range.first + range.count;
        for number in range.first / SAMPLED..end.div_ceil(SAMPLED) {
            let first = number * SAMPLED + scattered(freeze, number, SAMPLED);
            if (range.first..end).contains(&first) {
                sampled.push(PageRange { first, count: 1 });
            }
        }
    }
    sampled
}

/// Returns one of `count` positions for each number, and another with each seed. They are so
/// irregular that no pattern of writes can hit or miss all of them. (The mixing is degski's, of 64
/// bits.)
pub(super) fn scattered(seed: u64, number: u64, count: u64) -> u64 {
    let mix = |bits: u64| (bits ^ (bits >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    let mixed = mix(mix(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ number));
    (mixed >> 32) % count
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Marks some of 32 blocks as dense.
    fn dense(blocks: Range<usize>) -> Vec<bool> {
        (0..32).map(|at| blocks.contains(&at)).collect()
    }

    #[test]
    fn a_few_of_many_pages_tell_whether_the_others_are_worth_comparing() {
        let ranges = [PageRange { first: 5, count: 4000 }, PageRange { first: 9000, count: 3 }];
        let many = [ranges[0], ranges[1], PageRange { first: 20_000, count: 4000 }];
        for (written, changed, asked, pays) in [
            (&ranges[..], true, 0, true),
            (&many[..], true, 258, false),
            (&many[..], false, 258, true),
        ] {
            let mut filter = Filter::default();
            let count = std::cell::Cell::new(0);
            filter.ask(written, |page| {
                assert!(written.iter().any(|r| (r.first..r.first + r.count).contains(&page)));
                count.set(count.get() + 1);
                changed
            });
            assert_eq!((count.get(), filter.pays()), (asked, pays));
        }
    }

    #[test]
    fn of_each_64_pages_another_one_is_sampled_at_each_freeze() {
        let all = [PageRange { first: 0, count: 64 * 100 }];
        let mut found = vec![0; 64];
        for freeze in 0..100 {
            let pages = sampled(&all, freeze);
            assert!(pages.iter().map(|page| page.first / 64).eq(0..100));
            assert!(pages.iter().all(|page| page.count == 1));
            assert_ne!(pages, sampled(&all, freeze + 1));
            pages.iter().for_each(|page| found[page.first as usize % 64] += 1);
            // A sample of parts of them has the same pages.
            let parts = [(3, 100), (103, 1), (104, 2000), (6399, 1)];
            let parts = parts.map(|(first, count)| PageRange { first, count });
            let inside = |page: &PageRange| {
                parts.iter().any(|part| (part.first..part.first + part.count).contains(&page.first))
            };
            let wanted: Vec<_> = pages.into_iter().filter(inside).collect();
            assert_eq!(sampled(&parts, freeze), wanted);
        }
        assert!(found.iter().all(|count| (50..400).contains(count)), "{found:?}");
    }

    #[test]
    fn scattered_places_are_at_any_distance_from_one_another() {
        for seed in 0..10 {
            let mut found = [0; 64];
            for number in 0..6400 {
                let [one, next] = [number, number + 1].map(|number| scattered(seed, number, 64));
                found[((next + 64 - one) % 64) as usize] += 1;
            }
            assert!(found.iter().all(|count| (50..150).contains(count)), "seed {seed}: {found:?}");
        }
    }

    #[test]
    fn no_regular_pattern_escapes_the_sample() {
        for period in [1, 2, 4, 8, 16, 32, 64] {
            for offset in 0..period {
                let written = (0..64 * 64 / period)
                    .map(|number| PageRange { first: number * period + offset, count: 1 });
                let written: Vec<_> = written.collect();
                let counts = (0..16).map(|freeze| sampled(&written, freeze).len());
                let (found, even) = (counts.sum::<usize>(), 16 * 64 / period as usize);
                let some = even / 3..even * 3;
                assert!(some.contains(&found), "period {period}, offset {offset}: {found} pages");
            }
        }
    }

    #[test]
    fn a_sweep_is_expected_once_it_has_come_as_expected() {
        let mut front = Front::default();
        assert!(front.learn(dense(0..3)).is_empty(), "nothing is known");
        assert!(front.learn(dense(3..6)).is_empty(), "too little");
        assert!(front.learn(dense(6..9)).iter().eq([&(9..12)]));
        assert!(front.learn(dense(9..13)).iter().eq([&(13..17)]), "as far as it came");
        assert!(front.learn(dense(13..16)).iter().eq([&(16..19)]));
        front.learn(dense(16..19));
        front.learn(dense(19..30));
        assert!(front.learn(dense(30..32)).is_empty(), "there is no further block");
    }

    #[test]
    fn a_spot_that_stays_or_jumps_is_no_sweep() {
        let mut front = Front::default();
        for interval in 0..100 {
            let at = interval / 4 * 7 % 28;
            assert!(front.learn(dense(at..at + 4)).is_empty(), "interval {interval}");
        }
        let mut front = Front::default();
        for interval in 0..100 {
            assert!(front.learn(dense(0..32)).is_empty(), "interval {interval}");
        }
    }

    #[test]
    fn a_sweep_that_ends_is_forgotten() {
        let mut front = Front::default();
        for at in 0..10 {
            front.learn(dense(at * 3..at * 3 + 3));
        }
        // From now on the sweep restarts each time, elsewhere.
        let expected = (0..40).filter(|at| {
            front.learn(dense(0..0));
            !front.learn(dense(at * 11 % 28..at * 11 % 28 + 2)).is_empty()
        });
        assert!(expected.count() < 15);
        assert!(front.learn(dense(0..3)).is_empty());
    }
}
