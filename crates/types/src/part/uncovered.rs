//! Finds elements of a part that other parts do not cover.

use super::Part;
use super::axis::{Axis, period};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, HashSet};
use std::ops::Range;

/// Returns some elements of `whole` that are in none of the other parts, side by side; `None` if
/// there are none.
///
/// Its cost does not grow with the array, but with the parts and their blocks within one period.
/// That is the least common multiple of the strides along a dimension: that of the saved blocks if
/// `whole` is a box. For blocks that no grid of ranks produces, the cost may grow with the number
/// of combinations of parts.
pub fn uncovered(whole: &Part, parts: &[Part]) -> Option<Part> {
    let has_elements = |part: &Part| part.axes.iter().all(|axis| axis.extent > 0);
    if !has_elements(whole) {
        return None;
    }
    let parts: Vec<&[Axis]> =
        parts.iter().filter(|part| has_elements(part)).map(|part| &part.axes[..]).collect();
    let are_boxes = parts.iter().chain([&&whole.axes[..]]).all(|axes| is_box(axes));
    let gap = match are_boxes {
        true => gap_of_boxes(bounds(&whole.axes), &parts),
        false => gap(&whole.axes, &parts),
    }?;
    let axes =
        gap.into_iter().map(|range| Axis::side_by_side(range.start, range.end - range.start));
    Some(Part { axes: axes.collect() })
}

fn is_box(axes: &[Axis]) -> bool {
    axes.iter().all(Axis::is_side_by_side)
}

fn bounds(axes: &[Axis]) -> Vec<Range<u64>> {
    axes.iter().map(|axis| axis.offset..axis.end()).collect()
}

/// Returns a part of a box without elements of other boxes. If no box covers it all, it is cut in
/// two at an edge that leaves few boxes on either side.
fn gap_of_boxes(whole: Vec<Range<u64>>, parts: &[&[Axis]]) -> Option<Vec<Range<u64>>> {
    let shares =
        |axis: &Axis, range: &Range<u64>| axis.offset < range.end && range.start < axis.end();
    let has_some =
        |part: &&&[Axis]| part.iter().zip(&whole).all(|(axis, range)| shares(axis, range));
    let has_all = |part: &&[Axis]| {
        let mut both = part.iter().zip(&whole);
        both.all(|(axis, range)| axis.offset <= range.start && range.end <= axis.end())
    };
    let parts: Vec<&[Axis]> = parts.iter().filter(has_some).copied().collect();
    if parts.is_empty() {
        return Some(whole);
    }
    if parts.iter().any(has_all) {
        return None;
    }
    let cut_in = |dimension: usize| {
        let range = &whole[dimension];
        let ends = |part: &&[Axis]| [part[dimension].offset, part[dimension].end()];
        let is_inside = |edge: &u64| range.start < *edge && *edge < range.end;
        let mut edges: Vec<u64> = parts.iter().flat_map(ends).filter(is_inside).collect();
        let middle = edges.len() / 2;
        let edge = *(!edges.is_empty()).then(|| edges.select_nth_unstable(middle).1)?;
        let before = parts.iter().filter(|part| part[dimension].offset < edge).count();
        let behind = parts.iter().filter(|part| part[dimension].end() > edge).count();
        Some((before.max(behind), dimension, edge))
    };
    // A box has some of it and not all, so there is an edge.
    let (_, dimension, edge) = (0..whole.len()).filter_map(cut_in).min()?;
    let with = |range: Range<u64>| {
        let mut half = whole.clone();
        half[dimension] = range;
        half
    };
    let Range { start, end } = whole[dimension];
    gap_of_boxes(with(start..edge), &parts).or_else(|| gap_of_boxes(with(edge..end), &parts))
}

/// Returns a box without elements of the parts, dimension by dimension. An element along this
/// dimension belongs to one if the parts that have the element leave a gap in the inner dimensions.
fn gap(whole: &[Axis], parts: &[&[Axis]]) -> Option<Vec<Range<u64>>> {
    let Some((axis, inside)) = whole.split_first() else {
        return parts.is_empty().then(Vec::new);
    };
    if parts.is_empty() {
        let first = |axis: &Axis| axis.run_from(axis.offset).map(|(begin, end)| begin..end);
        return whole.iter().map(first).collect();
    }
    if parts.iter().any(|part| part.iter().zip(whole).all(|(axis, of)| axis.covers(of))) {
        return None;
    }
    // In a grid of ranks many parts have the same axis.
    let mut numbers = HashMap::new();
    let (mut axes, mut parts_with) = (Vec::new(), Vec::<Vec<&[Axis]>>::new());
    for part in parts {
        let number = *numbers.entry(part[0]).or_insert_with(|| {
            axes.push(part[0]);
            parts_with.push(Vec::new());
            axes.len() - 1
        });
        parts_with[number].push(&part[1..]);
    }
    let mut seen = HashSet::new();
    Sweep { whole: axis, axes: &axes }.find(&mut |range, here| {
        // There is no dimension inside the last one.
        if (inside.is_empty() && !here.is_empty()) || !seen.insert(Vec::from_iter(here.clone())) {
            return None;
        }
        let parts: Vec<&[Axis]> =
            here.iter().flat_map(|number| parts_with[*number].iter().copied()).collect();
        let mut gap = gap(inside, &parts)?;
        gap.insert(0, range);
        Some(gap)
    })
}

/// Called with elements side by side, and the numbers of the axes that have them.
type Visit<'a, T> = &'a mut dyn FnMut(Range<u64>, &BTreeSet<usize>) -> Option<T>;

/// Walks along one dimension, from one change of the set of axes that have an element to the next.
struct Sweep<'a> {
    /// The axis whose elements are visited.
    whole: &'a Axis,
    axes: &'a [Axis],
}

impl Sweep<'_> {
    /// Returns the first result of `visit`. `visit` is called at least once for each combination of
    /// axes that have an element in common.
    fn find<T>(&self, visit: Visit<'_, T>) -> Option<T> {
        let (mut at, end) = (self.whole.offset, self.whole.end());
        let mut edges = Vec::with_capacity(2 * self.axes.len());
        for (number, axis) in self.axes.iter().enumerate() {
            let alive = alive(axis);
            if alive.start.max(at) < alive.end.min(end) {
                edges.push((alive.start.max(at), number, true));
                edges.push((alive.end, number, false));
            }
        }
        edges.sort_unstable();
        let mut edges = edges.into_iter().peekable();
        let (mut here, mut in_blocks) = (BTreeSet::new(), BTreeSet::new());
        while at < end {
            while let Some((_, number, begins)) = edges.next_if(|(edge, ..)| *edge <= at) {
                let is_side_by_side = self.axes[number].is_side_by_side();
                let set = if is_side_by_side { &mut here } else { &mut in_blocks };
                match begins {
                    true => set.insert(number),
                    false => set.remove(&number),
                };
            }
            let next = edges.peek().map_or(end, |(edge, ..)| end.min(*edge));
            let found = match in_blocks.is_empty() && self.whole.is_side_by_side() {
                true => visit(at..next, &here),
                false => self.find_in_blocks(at..next, &mut here, &in_blocks, visit),
            };
            if found.is_some() {
                return found;
            }
            at = next;
        }
        None
    }

    /// Does the same in a range in which the same axes are alive, by the starts and ends of their
    /// blocks. After one period everything repeats.
    fn find_in_blocks<T>(
        &self,
        range: Range<u64>,
        here: &mut BTreeSet<usize>,
        in_blocks: &BTreeSet<usize>,
        visit: Visit<'_, T>,
    ) -> Option<T> {
        const WHOLE: usize = usize::MAX;
        let axis_of = |number| if number == WHOLE { self.whole } else { &self.axes[number] };
        let strides = in_blocks.iter().map(|number| self.axes[*number].stride);
        let own = Some(self.whole.stride).filter(|_| !self.whole.is_side_by_side());
        let stop = range.end.min(range.start.saturating_add(period(strides.chain(own))));
        let mut changes = BinaryHeap::new();
        for number in in_blocks.iter().copied().chain([WHOLE]) {
            let run = axis_of(number).run_from(range.start);
            changes.extend(run.map(|(begin, end)| Reverse((begin, number, Some(end)))));
        }
        let (mut at, mut is_wanted) = (range.start, false);
        let mut found = None;
        while at < stop && found.is_none() {
            while let Some(Reverse((place, number, end))) = changes.peek().copied()
                && place <= at
            {
                changes.pop();
                match number {
                    WHOLE => is_wanted = end.is_some(),
                    _ if end.is_some() => drop(here.insert(number)),
                    _ => drop(here.remove(&number)),
                }
                let next = match end {
                    Some(end) => Some((end, number, None)),
                    None => {
                        axis_of(number).run_from(at).map(|(begin, end)| (begin, number, Some(end)))
                    }
                };
                changes.extend(next.map(Reverse));
            }
            let next = changes.peek().map_or(stop, |Reverse((place, ..))| stop.min(*place));
            if is_wanted {
                found = visit(at..next, here);
            }
            at = next;
        }
        here.retain(|number| !in_blocks.contains(number));
        found
    }
}

/// Returns the range in which an axis has the elements of its blocks if they are repeated in both
/// directions. It includes the gap before the first block, and the one after the last unless that
/// is cut.
fn alive(axis: &Axis) -> Range<u64> {
    let gap = axis.stride - axis.block;
    let behind = if axis.extent.is_multiple_of(axis.block) { gap } else { 0 };
    axis.offset.saturating_sub(gap)..axis.end().saturating_add(behind)
}
