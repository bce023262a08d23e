//! The common elements of two parts of one array, as bytes of both.

use super::Part;
use super::common::Common;
use std::ops::Range;

/// The common elements of two parts of one array, as bytes of both. Its memory is bounded by the
/// number of runs along each dimension in one period of the blocks of both.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Overlap {
    /// Dimensions outside a line, outermost first; each of their elements begins one.
    outer: Vec<Outer>,
    lines: u64,
    /// Runs of a line, if there are several.
    row: Option<Common>,
    runs_per_line: u64,
    /// Bytes of an element along a line, with all inner dimensions: these lie side by side in both
    /// parts. If a line is a single run, the bytes of that run.
    unit: u64,
    from_first: u64,
    to_first: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Outer {
    count: u64,
    /// Bytes from one element to the next in the source part.
    from_step: u64,
    /// Bytes from one element to the next in the destination part.
    to_step: u64,
    /// The common elements, unless they lie side by side in both parts.
    gaps: Option<Common>,
}

impl Overlap {
    /// Returns the common elements of two parts of an array whose elements have `element_bytes`
    /// bytes. `None` if there are none.
    pub fn new(from: &Part, to: &Part, element_bytes: u64) -> Option<Overlap> {
        // The bytes of all other parts fit into a u64.
        let is_empty = |part: &Part| part.axes.iter().any(|axis| axis.extent == 0);
        if element_bytes == 0 || is_empty(from) || is_empty(to) {
            return None;
        }
        let mut overlap = Overlap {
            outer: Vec::new(),
            lines: 1,
            row: None,
            runs_per_line: 1,
            unit: element_bytes,
            from_first: 0,
            to_first: 0,
        };
        let (mut from_step, mut to_step) = (element_bytes, element_bytes);
        let mut are_whole = true;
        // From the innermost dimension outwards: whole rows lie side by side in both parts.
        for (from, to) in from.axes.iter().zip(&to.axes).rev() {
            let common = Common::new(from, to)?;
            let count = common.count;
            let gaps = match common.as_one_run() {
                Some((from, to)) => {
                    overlap.from_first += from * from_step;
                    overlap.to_first += to * to_step;
                    None
                }
                None => Some(common),
            };
            match (are_whole, gaps) {
                (true, None) => overlap.unit *= count,
                (true, Some(gaps)) => {
                    overlap.runs_per_line = gaps.run_count;
                    overlap.row = Some(gaps);
                }
                (false, gaps) => {
                    overlap.lines *= count;
                    overlap.outer.push(Outer { count, from_step, to_step, gaps });
                }
            }
            are_whole =
                are_whole && count == from.extent && count == to.extent && overlap.row.is_none();
            from_step *= from.extent;
            to_step *= to.extent;
        }
        overlap.outer.reverse();
        Some(overlap)
    }

    /// Returns the start of a line in both parts.
    fn line(&self, number: u64) -> (u64, u64) {
        let (mut rest, mut from, mut to) = (number, self.from_first, self.to_first);
        for Outer { count, from_step, to_step, gaps } in self.outer.iter().rev() {
            let along = rest % count;
            rest /= count;
            let (along_from, along_to) =
                gaps.as_ref().map_or((along, along), |gaps| gaps.element(along));
            from += along_from * from_step;
            to += along_to * to_step;
        }
        (from, to)
    }

    /// Calls `visit` with the start of each line in both parts, from line `number` on, until it
    /// returns false.
    #[inline]
    fn each_line_from(&self, mut number: u64, mut visit: impl FnMut(u64, u64) -> bool) {
        // Within the last of the outer dimensions, the next line is one step away.
        let (count, from_step, to_step) = match self.outer.last() {
            Some(Outer { count, from_step, to_step, gaps: None }) => (*count, *from_step, *to_step),
            _ => (1, 0, 0),
        };
        while number < self.lines {
            let (mut from, mut to) = self.line(number);
            let left = count - number % count;
            for _ in 0..left {
                if !visit(from, to) {
                    return;
                }
                from += from_step;
                to += to_step;
            }
            number += left;
        }
    }

    /// Calls `visit` with each run, from run `number` on, until it returns false. It gets the start
    /// of the run in both parts, and its bytes.
    #[inline]
    fn each_from(&self, number: u64, mut visit: impl FnMut(u64, u64, u64) -> bool) {
        let Some(row) = &self.row else {
            return self.each_line_from(number, |from, to| visit(from, to, self.unit));
        };
        let along = number % self.runs_per_line;
        let (mut left, mut place) = (self.runs_per_line - along, row.place_of(along));
        self.each_line_from(number / self.runs_per_line, |from_line, to_line| {
            for _ in 0..left {
                let (from, to, length) = row.run(place);
                let (from, to) = (from_line + from * self.unit, to_line + to * self.unit);
                if !visit(from, to, length * self.unit) {
                    return false;
                }
                place = row.next_place(place);
            }
            (left, place) = (self.runs_per_line, (0, 0));
            true
        });
    }

    /// Returns the end of a run in the source part.
    fn end_of(&self, number: u64) -> u64 {
        let Some(row) = &self.row else { return self.line(number).0 + self.unit };
        let (from_line, _) = self.line(number / self.runs_per_line);
        let (from, _, length) = row.run(row.place_of(number % self.runs_per_line));
        from_line + (from + length) * self.unit
    }

    /// Returns the number of common bytes.
    pub fn bytes(&self) -> u64 {
        self.lines * self.row.as_ref().map_or(1, |row| row.count) * self.unit
    }

    /// Returns the ranges of the source part that hold common bytes, ascending. Gaps up to `gap`
    /// are included, and ranges end at `longest` bytes.
    pub fn ranges(&self, gap: u64, longest: u64) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        self.each_from(0, |from, _, length| {
            let end = from + length;
            match ranges.last_mut() {
                Some(last) if from - last.end <= gap && end - last.start <= longest => {
                    last.end = end
                }
                _ => ranges.push(from..end),
            }
            true
        });
        ranges
    }

    /// Maps the bytes of a range of the source part. `put` gets an offset in the destination part,
    /// and the bytes of the range that belong there, counted from its start.
    pub fn place(&self, range: Range<u64>, put: &mut dyn FnMut(u64, Range<usize>)) {
        // Runs ascend in the source part, so a binary search finds the first that matters.
        let (mut low, mut high) = (0, self.lines * self.runs_per_line);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.end_of(middle) <= range.start {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        self.each_from(low, |from, to, length| {
            if from >= range.end {
                return false;
            }
            let begin = from.max(range.start);
            let end = (from + length).min(range.end);
            let of_range = (begin - range.start) as usize..(end - range.start) as usize;
            put(to + (begin - from), of_range);
            true
        });
    }
}
