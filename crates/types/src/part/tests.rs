//! Compares with models that move or mark element by element.

use super::*;
use crate::{Distribution, Rng, SeededRng};

fn part(offset: &[u64], shape: &[u64]) -> Part {
    Part::subarray(offset, shape)
}

struct Dice(SeededRng);

impl Dice {
    fn new(seed: u64) -> Dice {
        Dice(SeededRng::new(seed))
    }

    fn below(&self, end: u64) -> u64 {
        let mut bytes = [0; 8];
        self.0.fill(&mut bytes);
        u64::from_le_bytes(bytes) % end
    }

    fn global(&self, extent_max: u64) -> Vec<u64> {
        (0..1 + self.below(3)).map(|_| 1 + self.below(extent_max)).collect()
    }

    /// Returns a random part of an array: along each dimension a run, or blocks.
    fn part(&self, global: &[u64]) -> Distributed {
        let mut said: [Vec<u64>; 4] = Default::default();
        for extent in global {
            let offset = self.below(*extent);
            let (block, stride, most) = if self.below(3) == 0 {
                (*extent, *extent, extent - offset)
            } else {
                let block = 1 + self.below(4);
                let stride = block + self.below(5);
                let is_there =
                    |local: &u64| offset + local / block * stride + local % block < *extent;
                (block, stride, (0..).take_while(is_there).count() as u64)
            };
            // Often all that fits.
            let shape = if self.below(2) == 0 { most } else { self.below(most + 1) };
            for (list, value) in said.iter_mut().zip([offset, shape, block, stride]) {
                list.push(value);
            }
        }
        let [offset, shape, block, stride] = said;
        let global_shape = global.to_vec();
        let distribution = Distribution::BlockCyclic { global_shape, offset, block, stride };
        distribution.check(&shape).unwrap();
        Distributed { shape, distribution }
    }
}

/// A part with its shape, as a program gives it.
#[derive(Debug)]
struct Distributed {
    shape: Vec<u64>,
    distribution: Distribution,
}

impl Distributed {
    fn part(&self) -> Part {
        self.distribution.part(&self.shape).unwrap()
    }

    /// Returns the global indices of each element, in the order of the part.
    fn elements(&self) -> Vec<Vec<u64>> {
        let Distribution::BlockCyclic { offset, block, stride, .. } = &self.distribution else {
            panic!("{self:?}")
        };
        let mut all = vec![Vec::new()];
        for at in 0..self.shape.len() {
            let index = |local| offset[at] + local / block[at] * stride[at] + local % block[at];
            let longer = |before: Vec<u64>| {
                (0..self.shape[at]).map(move |local| [&before[..], &[index(local)]].concat())
            };
            all = all.into_iter().flat_map(longer).collect();
        }
        all
    }
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
    // Columns that are dealt out alike on both sides are whole rows too, and their blocks of rows
    // are runs.
    let dealt =
        |first, rows, stride| Part::block_cyclic(&[first, 4], &[rows, 20], &[8, 4], &[stride, 8]);
    let overlap = Overlap::new(&dealt(0, 48, 16), &dealt(8, 32, 24), 8).unwrap();
    assert_eq!(overlap.ranges(0, u64::MAX), [2560..3840, 6400..7680]);
}

#[test]
fn every_byte_goes_where_its_element_is() {
    for seed in 0..6_000u64 {
        let dice = Dice::new(seed);
        let global = dice.global(if seed % 2 == 0 { 7 } else { 30 });
        let (from, to, element) = (dice.part(&global), dice.part(&global), 1 + dice.below(4));
        let value = |at: &[u64]| {
            at.iter().zip(&global).fold(0, |all, (at, extent)| all * extent + at) as u8
        };
        let bytes_of = |elements: &[Vec<u64>], is_there: &dyn Fn(&Vec<u64>) -> bool| {
            let mut bytes = Vec::new();
            for at in elements {
                let byte = if is_there(at) { value(at) } else { 0xEE };
                bytes.extend(vec![byte; element as usize]);
            }
            bytes
        };
        let elements = from.elements();
        let source = bytes_of(&elements, &|_| true);
        let elements: std::collections::HashSet<Vec<u64>> = elements.into_iter().collect();
        let expected = bytes_of(&to.elements(), &|at| elements.contains(at));
        let mut found = vec![0xEE; expected.len()];
        if let Some(overlap) = Overlap::new(&from.part(), &to.part(), element) {
            let (mut moved, mut before) = (0, 0);
            for range in overlap.ranges(dice.below(20), 1 + dice.below(60)) {
                assert!(before <= range.start && range.start < range.end, "{seed}");
                before = range.end;
                // Cut as chunks may be.
                let cut = range.start + dice.below(range.end - range.start + 1);
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
        assert_eq!(found, expected, "{seed}: {from:?} to {to:?}");
    }
}

#[test]
fn an_uncovered_part_is_found() {
    let whole = part(&[2, 0], &[8, 6]);
    let quarters = [
        part(&[0, 0], &[5, 3]),
        part(&[5, 0], &[5, 3]),
        part(&[0, 3], &[5, 3]),
        part(&[5, 3], &[5, 3]),
    ];
    assert_eq!(uncovered(&whole, &quarters), None);
    assert_eq!(uncovered(&whole, &quarters[..3]), Some(part(&[5, 3], &[5, 3])));
    // Parts may overlap.
    assert_eq!(uncovered(&whole, &[part(&[0, 0], &[7, 6]), part(&[4, 0], &[6, 6])]), None);
    assert_eq!(uncovered(&part(&[3, 3], &[0, 2]), &[]), None);
    assert_eq!(uncovered(&whole, &[]), Some(whole.clone()));
}

#[test]
fn uncovered_parts_agree_with_the_elements() {
    let (mut covered, mut uncovered_too) = (0, 0);
    for seed in 0..6_000u64 {
        let dice = Dice::new(seed);
        let global = dice.global(if seed % 2 == 0 { 6 } else { 16 });
        let whole = dice.part(&global);
        let mut parts: Vec<Distributed> = (0..dice.below(12)).map(|_| dice.part(&global)).collect();
        if dice.below(2) == 0 {
            parts.extend(dealt(&dice, &global));
            let some = dice.below(parts.len() as u64) as usize;
            if dice.below(2) == 0 {
                parts.swap_remove(some);
            }
        }
        let there: std::collections::HashSet<Vec<u64>> =
            parts.iter().flat_map(Distributed::elements).collect();
        let missing: Vec<Vec<u64>> =
            whole.elements().into_iter().filter(|at| !there.contains(at)).collect();
        let of: Vec<Part> = parts.iter().map(Distributed::part).collect();
        match uncovered(&whole.part(), &of) {
            None => {
                assert!(missing.is_empty(), "{seed}: {missing:?} of {whole:?} in {parts:?}");
                covered += 1;
            }
            Some(found) => {
                let (offset, shape) = (found.offset(), found.shape());
                let block = vec![u64::MAX; offset.len()];
                let (global_shape, stride) = (global.clone(), block.clone());
                let distribution =
                    Distribution::BlockCyclic { global_shape, offset, block, stride };
                for at in (Distributed { shape, distribution }).elements() {
                    assert!(missing.contains(&at), "{seed}: {at:?} of {whole:?} in {parts:?}");
                }
                uncovered_too += 1;
            }
        }
    }
    assert!(covered > 1000 && uncovered_too > 1000, "{covered} and {uncovered_too}");
}

/// Returns an array in blocks, dealt out to a grid of ranks.
fn dealt(dice: &Dice, global: &[u64]) -> Vec<Distributed> {
    let mut ranks = vec![<[Vec<u64>; 4]>::default()];
    for extent in global {
        let (block, count) = (1 + dice.below(3), 1 + dice.below(4));
        let of_rank = |rank: u64| {
            let (offset, stride) = (rank * block, count * block);
            let is_there = |local: &u64| offset + local / block * stride + local % block < *extent;
            [offset, (0..).take_while(is_there).count() as u64, block, stride]
        };
        ranks = ranks
            .into_iter()
            .flat_map(|before| {
                (0..count).map(move |rank| {
                    let mut said = before.clone();
                    said.iter_mut().zip(of_rank(rank)).for_each(|(list, value)| list.push(value));
                    said
                })
            })
            .collect();
    }
    let of_rank = |[offset, shape, block, stride]: [Vec<u64>; 4]| {
        let global_shape = global.to_vec();
        let distribution = Distribution::BlockCyclic { global_shape, offset, block, stride };
        distribution.check(&shape).unwrap();
        Distributed { shape, distribution }
    };
    ranks.into_iter().map(of_rank).collect()
}

/// The array is so large that a loop over its elements or blocks would not end.
#[test]
fn huge_arrays_cost_no_more_than_their_period() {
    let global = 1u64 << 40;
    let of_rank = |rank: u64, ranks: u64, block: u64| {
        Part::block_cyclic(&[rank * block], &[global / ranks], &[block], &[ranks * block])
    };
    let whole = part(&[0], &[global]);
    let mut parts: Vec<Part> = (0..16).map(|rank| of_rank(rank, 16, 1)).collect();
    assert_eq!(uncovered(&whole, &parts), None);
    assert_eq!(uncovered(&of_rank(3, 64, 1024), &parts), None);
    // The last element is missing.
    parts[15] = Part::block_cyclic(&[15], &[global / 16 - 1], &[1], &[16]);
    assert_eq!(uncovered(&whole, &parts), Some(part(&[global - 1], &[1])));
    parts.remove(7);
    assert_eq!(uncovered(&whole, &parts), Some(part(&[7], &[1])));

    // Element l is 3 + 16 l of the array; the elements 3 to 6 of each 112 are wanted.
    let (from, to) = (of_rank(3, 16, 1), Part::block_cyclic(&[3], &[1 << 34], &[4], &[112]));
    let overlap = Overlap::new(&from, &to, 8).unwrap();
    let mut placed = Vec::new();
    let first = 7 << 27; // which is in the 2^27th block
    overlap.place(8 * first..8 * (first + 50), &mut |to, of| placed.push((to, of)));
    let wanted: Vec<(u64, std::ops::Range<usize>)> =
        (0..8).map(|at| (32 * ((1 << 27) + at), 56 * at as usize..56 * at as usize + 8)).collect();
    assert_eq!(placed, wanted);
}

#[test]
fn impossible_distributions_are_refused() {
    let check = |shape: &[u64], global: &[u64], offset: &[u64], block: &[u64], stride: &[u64]| {
        let [global_shape, offset, block, stride] =
            [global, offset, block, stride].map(<[_]>::to_vec);
        Distribution::BlockCyclic { global_shape, offset, block, stride }.check(shape)
    };
    assert_eq!(check(&[5], &[14], &[1], &[2], &[6]), Ok(()), "1 2 7 8 13");
    let end = u64::MAX;
    for (shape, global, offset, block, stride, word) in [
        (
            &[5][..],
            &[13][..],
            &[1][..],
            &[2][..],
            &[6][..],
            "begins at 1 and has 5 elements in blocks",
        ),
        (&[5], &[14], &[1], &[0], &[6], "blocks of 0"),
        (&[1], &[14], &[1], &[3], &[2], "blocks of 3 elements, every 2"),
        (&[5], &[14], &[1], &[2, 2], &[6], "its block 2 and its stride 1"),
        (&[5], &[14], &[1], &[2], &[], "its block 1 and its stride 0"),
        (&[5, 5], &[14], &[1], &[2], &[6], "2, 1 and 1 dimensions"),
        (&[], &[], &[], &[], &[], "at least one"),
        (&[5], &[end], &[1], &[2], &[end], "begins at 1"),
        (&[end], &[end], &[1], &[1], &[2], "begins at 1"),
        (&[3], &[end], &[end - 2], &[1], &[1], "begins at"),
        (&[4, 4], &[4, 4], &[0, 1], &[1, 4], &[1, 4], "dimension 1"),
    ] {
        let why = check(shape, global, offset, block, stride).unwrap_err();
        assert!(why.contains(word), "{why}");
    }
    // A part without elements may lie anywhere.
    assert_eq!(check(&[0], &[3], &[4], &[1], &[5]), Ok(()));
    let none = Part::block_cyclic(&[4], &[0], &[1], &[5]);
    assert_eq!(Overlap::new(&part(&[0], &[3]), &none, 8), None);
    assert_eq!(uncovered(&none, &[]), None);
    // Parts with the same elements are equal, however they were given.
    assert_eq!(Part::block_cyclic(&[2], &[3], &[4], &[9]), part(&[2], &[3]));
    assert_eq!(Part::block_cyclic(&[2], &[3], &[1], &[1]), part(&[2], &[3]));
}

/// Returns boxes as a program has them that repeatedly bisects its domain, for balance.
fn bisected(dice: &Dice, whole: Part, depth: u32) -> Vec<Part> {
    let (offset, shape) = (whole.offset(), whole.shape());
    let long: Vec<usize> = (0..shape.len()).filter(|at| shape[*at] > 1).collect();
    if depth == 0 || long.is_empty() {
        return vec![whole];
    }
    let at = long[dice.below(long.len() as u64) as usize];
    let cut = 1 + dice.below(shape[at] - 1);
    let (mut first, mut second, mut behind) = (shape.clone(), shape, offset.clone());
    (first[at], second[at], behind[at]) = (cut, second[at] - cut, offset[at] + cut);
    let mut halves = bisected(dice, part(&offset, &first), depth - 1);
    halves.extend(bisected(dice, part(&behind, &second), depth - 1));
    halves
}

/// All boxes of a domain cover it, and without one of them exactly that one is missing. This also
/// holds for many boxes and many dimensions.
#[test]
fn many_boxes_are_checked_exactly() {
    for (dimensions, extent, depth, rounds) in
        [(1, 1 << 40, 10, 3), (2, 12, 5, 300), (4, 1 << 20, 10, 3)]
    {
        for seed in 0..rounds {
            let dice = Dice::new(seed);
            let whole = part(&vec![3; dimensions], &vec![extent; dimensions]);
            let mut boxes = bisected(&dice, whole.clone(), depth);
            assert_eq!(uncovered(&whole, &boxes), None, "{seed}");
            let lost = boxes.swap_remove(dice.below(boxes.len() as u64) as usize);
            let found = uncovered(&whole, &boxes).expect("a box is missing");
            assert_eq!(uncovered(&found, std::slice::from_ref(&lost)), None, "{seed}: {found:?}");
            boxes.push(lost);
            assert_eq!(uncovered(&found, &boxes), None, "{seed}");
        }
    }
    // Two halves along each of 40 dimensions.
    let whole = part(&[0; 40], &[4; 40]);
    let half = |at: usize, begin: u64| {
        let (mut offset, mut shape) = (vec![0; 40], vec![4; 40]);
        (offset[at], shape[at]) = (begin, 2);
        part(&offset, &shape)
    };
    let mut halves: Vec<Part> = (0..40).map(|at| half(at, 0)).collect();
    assert!(uncovered(&whole, &halves).is_some());
    halves.extend((0..40).map(|at| half(at, 2)));
    assert_eq!(uncovered(&whole, &halves), None);
}

/// Strange values of a damaged catalog or a wrong request do not end the program.
#[test]
fn parts_without_elements_or_bytes_have_nothing_in_common() {
    let huge = part(&[0, 0], &[0, u64::MAX]);
    let some = part(&[0, 0], &[1, 1]);
    assert_eq!(Overlap::new(&huge, &some, 8), None);
    assert_eq!(Overlap::new(&some, &huge, 1 << 63), None);
    assert_eq!(Overlap::new(&some, &some, 0), None);
}
