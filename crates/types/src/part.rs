//! Parts of global arrays: which bytes of one part are which bytes of another.

use crate::Distribution;
use std::ops::Range;

/// A box of a global array: where it begins, and its extents, both in elements along each dimension,
/// outermost first. Its own elements lie in that order, the last dimension side by side.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// Where it begins.
    pub offset: Vec<u64>,
    /// Its extents.
    pub shape: Vec<u64>,
}

impl Part {
    /// The part that a region of this shape is, if it is one.
    pub fn of(shape: &[u64], distribution: &Distribution) -> Option<Part> {
        let Distribution::Subarray { offset, .. } = distribution else { return None };
        Some(Part { offset: offset.clone(), shape: shape.to_vec() })
    }

    /// How many elements it has; `None` for more than there can be.
    pub fn elements(&self) -> Option<u64> {
        self.shape.iter().try_fold(1u64, |all, extent| all.checked_mul(*extent))
    }
}

/// Some elements of `whole` that are in none of the other parts; `None` if there are none.
pub fn uncovered(whole: &Part, parts: &[Part]) -> Option<Part> {
    let mut left = vec![whole.clone()];
    for part in parts {
        left = left.into_iter().flat_map(|rest| without(rest, part)).collect();
    }
    left.into_iter().find(|rest| rest.shape.iter().all(|extent| *extent > 0))
}

/// A part without what it shares with another, in boxes.
fn without(mut whole: Part, other: &Part) -> Vec<Part> {
    let dimensions = whole.shape.len();
    let end = |part: &Part, at: usize| part.offset[at] + part.shape[at];
    let is_apart =
        |at: usize| whole.offset[at].max(other.offset[at]) >= end(&whole, at).min(end(other, at));
    if (0..dimensions).any(is_apart) {
        return vec![whole];
    }
    let mut left = Vec::new();
    for at in 0..dimensions {
        let (first, last) = (whole.offset[at], end(&whole, at));
        let (begin, stop) = (first.max(other.offset[at]), last.min(end(other, at)));
        for (from, to) in [(first, begin), (stop, last)] {
            if from < to {
                let mut rest = whole.clone();
                (rest.offset[at], rest.shape[at]) = (from, to - from);
                left.push(rest);
            }
        }
        (whole.offset[at], whole.shape[at]) = (begin, stop - begin);
    }
    left
}

/// What two parts of one array have in common, as bytes of both.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Overlap {
    /// Bytes of a run: what lies side by side in both parts.
    run_bytes: u64,
    /// Number of runs along each dimension, outermost first.
    runs: Vec<u64>,
    /// Bytes from one run to the next along each dimension, in the part it comes from.
    from_steps: Vec<u64>,
    /// The same in the part it goes to.
    to_steps: Vec<u64>,
    from_first: u64,
    to_first: u64,
    count: u64,
}

impl Overlap {
    /// What goes from one part to another, of an array whose elements have so many bytes. `None` if
    /// they have nothing in common.
    pub fn new(from: &Part, to: &Part, element_bytes: u64) -> Option<Overlap> {
        let dimensions = from.shape.len();
        let mut overlap = Overlap {
            run_bytes: element_bytes,
            runs: Vec::new(),
            from_steps: Vec::new(),
            to_steps: Vec::new(),
            from_first: 0,
            to_first: 0,
            count: 1,
        };
        let (mut from_step, mut to_step) = (element_bytes, element_bytes);
        // From the innermost dimension outwards: whole rows of both parts lie side by side.
        for at in (0..dimensions).rev() {
            let (from_begin, to_begin) = (from.offset[at], to.offset[at]);
            let first = from_begin.max(to_begin);
            let end = (from_begin + from.shape[at]).min(to_begin + to.shape[at]);
            let extent = end.checked_sub(first).filter(|extent| *extent > 0)?;
            overlap.from_first += (first - from_begin) * from_step;
            overlap.to_first += (first - to_begin) * to_step;
            if from_step == overlap.run_bytes && to_step == overlap.run_bytes {
                overlap.run_bytes *= extent;
            } else {
                overlap.runs.push(extent);
                overlap.from_steps.push(from_step);
                overlap.to_steps.push(to_step);
                overlap.count *= extent;
            }
            from_step *= from.shape[at];
            to_step *= to.shape[at];
        }
        overlap.runs.reverse();
        overlap.from_steps.reverse();
        overlap.to_steps.reverse();
        (element_bytes > 0).then_some(overlap)
    }

    /// Where a run begins in both parts.
    fn run(&self, number: u64) -> (u64, u64) {
        let (mut rest, mut from, mut to) = (number, self.from_first, self.to_first);
        for at in (0..self.runs.len()).rev() {
            let along = rest % self.runs[at];
            rest /= self.runs[at];
            from += along * self.from_steps[at];
            to += along * self.to_steps[at];
        }
        (from, to)
    }

    /// Bytes that they have in common.
    pub fn bytes(&self) -> u64 {
        self.count * self.run_bytes
    }

    /// The ranges of the part it comes from that hold what they have in common, ascending. Gaps up to
    /// `gap` are read along, and ranges end at `longest` bytes.
    pub fn ranges(&self, gap: u64, longest: u64) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for number in 0..self.count {
            let (from, _) = self.run(number);
            let end = from + self.run_bytes;
            match ranges.last_mut() {
                Some(last) if from - last.end <= gap && end - last.start <= longest => {
                    last.end = end
                }
                _ => ranges.push(from..end),
            }
        }
        ranges
    }

    /// Tells where the bytes of a range of the part it comes from go: `put` gets the byte in the part it
    /// goes to, and which bytes of the range, counted from its begin.
    pub fn place(&self, range: Range<u64>, put: &mut dyn FnMut(u64, Range<usize>)) {
        // Runs ascend in the part that they come from, so the first that matters can be looked for.
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.run(middle).0 + self.run_bytes <= range.start {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        for number in low..self.count {
            let (from, to) = self.run(number);
            if from >= range.end {
                break;
            }
            let begin = from.max(range.start);
            let end = (from + self.run_bytes).min(range.end);
            let of_range = (begin - range.start) as usize..(end - range.start) as usize;
            put(to + (begin - from), of_range);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Rng, SeededRng};

    fn part(offset: &[u64], shape: &[u64]) -> Part {
        Part { offset: offset.to_vec(), shape: shape.to_vec() }
    }

    #[test]
    fn whole_rows_are_one_run() {
        let whole = part(&[0, 0], &[100, 50]);
        let rows = Overlap::new(&whole, &part(&[20, 0], &[10, 50]), 8).unwrap();
        assert!(matches!(&rows.ranges(0, u64::MAX)[..], [range] if *range == (8_000..12_000)));
        assert_eq!(rows.ranges(0, 4000).len(), 1, "a run is not cut");
        let columns = Overlap::new(&whole, &part(&[0, 10], &[100, 5]), 8).unwrap();
        assert_eq!(columns.bytes(), 100 * 5 * 8);
        assert_eq!(columns.ranges(0, u64::MAX).len(), 100);
        assert_eq!(columns.ranges(1 << 20, u64::MAX).len(), 1);
        assert_eq!(Overlap::new(&whole, &part(&[100, 0], &[5, 5]), 8), None);
        assert_eq!(Overlap::new(&whole, &part(&[3, 3], &[0, 5]), 8), None);
    }

    /// Against a model that moves element by element.
    #[test]
    fn every_byte_goes_where_its_element_is() {
        for seed in 0..2_000u64 {
            let rng = SeededRng::new(seed);
            let below = |n: u64| {
                let mut bytes = [0; 8];
                rng.fill(&mut bytes);
                u64::from_le_bytes(bytes) % n
            };
            let dimensions = 1 + below(3) as usize;
            let global: Vec<u64> = (0..dimensions).map(|_| 1 + below(7)).collect();
            let random = || {
                let begin: Vec<u64> = global.iter().map(|extent| below(*extent)).collect();
                let fits =
                    global.iter().zip(&begin).map(|(extent, begin)| below(extent - begin + 1));
                Part { shape: fits.collect(), offset: begin }
            };
            let (from, to, element) = (random(), random(), 1 + below(4));
            let value = |at: &[u64]| {
                at.iter().zip(&global).fold(0, |all, (at, extent)| all * extent + at) as u8
            };
            let bytes_of = |part: &Part| {
                let mut bytes = Vec::new();
                each(part, &mut |at| bytes.extend(vec![value(at); element as usize]));
                bytes
            };
            let source = bytes_of(&from);
            let mut expected = vec![0xEE; bytes_of(&to).len()];
            let mut number = 0;
            each(&to, &mut |at| {
                let is_inside = at.iter().enumerate().all(|(dimension, at)| {
                    let begin = from.offset[dimension];
                    (begin..begin + from.shape[dimension]).contains(at)
                });
                if is_inside {
                    expected[number..][..element as usize].fill(value(at));
                }
                number += element as usize;
            });
            let mut found = vec![0xEE; expected.len()];
            if let Some(overlap) = Overlap::new(&from, &to, element) {
                let mut moved = 0;
                for range in overlap.ranges(below(20), 1 + below(60)) {
                    // As chunks cut it.
                    let cut = range.start + below(range.end - range.start + 1);
                    for piece in [range.start..cut, cut..range.end] {
                        let bytes = &source[piece.start as usize..piece.end as usize];
                        overlap.place(piece.clone(), &mut |to, of| {
                            moved += of.len() as u64;
                            found[to as usize..][..of.len()].copy_from_slice(&bytes[of]);
                        });
                    }
                }
                assert_eq!(moved, overlap.bytes(), "{seed}");
            }
            assert_eq!(found, expected, "{seed}: {from:?} to {to:?} of {global:?}");
        }
    }

    #[test]
    fn what_is_not_covered_is_found() {
        let whole = part(&[2, 0], &[8, 6]);
        let quarters = [
            part(&[0, 0], &[5, 3]),
            part(&[5, 0], &[5, 3]),
            part(&[0, 3], &[5, 3]),
            part(&[5, 3], &[5, 3]),
        ];
        assert_eq!(uncovered(&whole, &quarters), None);
        assert_eq!(uncovered(&whole, &quarters[..3]), Some(part(&[5, 3], &[5, 3])));
        // They may overlap.
        assert_eq!(uncovered(&whole, &[part(&[0, 0], &[7, 6]), part(&[4, 0], &[6, 6])]), None);
        assert_eq!(uncovered(&part(&[3, 3], &[0, 2]), &[]), None);
        assert_eq!(uncovered(&whole, &[]), Some(whole.clone()));
    }

    fn each(part: &Part, visit: &mut dyn FnMut(&[u64])) {
        let count = part.elements().unwrap();
        for number in 0..count {
            let mut rest = number;
            let mut at = part.offset.clone();
            for dimension in (0..at.len()).rev() {
                at[dimension] += rest % part.shape[dimension];
                rest /= part.shape[dimension];
            }
            visit(&at);
        }
    }
}
