//! The common elements of two parts along one dimension.

use super::axis::{Axis, period};

/// Elements that lie side by side in both parts. Indices are local to each part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct CommonRun {
    /// Number of common elements of its period that come before it.
    before: u64,
    from: u64,
    to: u64,
    length: u64,
}

/// The common elements of two axes, in ascending order. Their runs repeat with every period, so the
/// list does not grow with the axes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Common {
    /// Runs of one period.
    runs: Vec<CommonRun>,
    /// Common elements of one period.
    elements: u64,
    /// Number of local elements from one period to the next.
    from_step: u64,
    to_step: u64,
    /// Number of elements of the first period before the first common one.
    skipped: u64,
    /// Number of common elements.
    pub count: u64,
    /// Number of runs of common elements.
    pub run_count: u64,
}

impl Common {
    /// Returns `length` common elements that lie side by side in both parts.
    fn one_run(length: u64, from: u64, to: u64) -> Common {
        Common {
            runs: vec![CommonRun { before: 0, from, to, length }],
            elements: length,
            from_step: 0,
            to_step: 0,
            skipped: 0,
            count: length,
            run_count: 1,
        }
    }

    /// Returns `None` if the axes have no common elements.
    pub fn new(from: &Axis, to: &Axis) -> Option<Common> {
        let grid = |axis: &Axis| (axis.offset, axis.block, axis.stride);
        if grid(from) == grid(to) {
            let length = from.extent.min(to.extent);
            return (length > 0).then(|| Common::one_run(length, 0, 0));
        }
        let first = from.offset.max(to.offset);
        let end = from.end().min(to.end());
        if first >= end {
            return None;
        }
        let (skipped, period) = match (from.is_side_by_side(), to.is_side_by_side()) {
            (true, true) => {
                let (from, to) = (from.local(first), to.local(first));
                return Some(Common::one_run(end - first, from, to));
            }
            (false, false) => (0, period([from.stride, to.stride])),
            // A period begins with a block, even where elements side by side begin inside one.
            (true, false) => (inside(to, first), to.stride),
            (false, true) => (inside(from, first), from.stride),
        };
        let begin = first - skipped;
        let stop = end.min(begin.saturating_add(period));
        let runs = runs(from, to, begin, stop);
        let last = runs.last()?.1;
        let elements = last.before + last.length;
        let (periods, rest) = ((end - begin) / period, (end - begin) % period);
        // The elements and runs of the last period that come before the end.
        let mut left = (0, 0);
        for (at, run) in runs.iter().take_while(|(at, _)| at - begin < rest) {
            left = (run.before + run.length.min(rest - (at - begin)), left.1 + 1);
        }
        let per_period = |axis: &Axis| match axis.is_side_by_side() {
            true => period,
            false => axis.in_period(period),
        };
        Some(Common {
            elements,
            from_step: per_period(from),
            to_step: per_period(to),
            skipped,
            count: periods * elements + left.0 - skipped,
            run_count: periods * runs.len() as u64 + left.1,
            runs: runs.into_iter().map(|(_, run)| run).collect(),
        })
    }

    /// Returns the first local indices if all common elements lie side by side in both parts.
    pub fn as_one_run(&self) -> Option<(u64, u64)> {
        let (from, to, _) = self.run((0, 0));
        (self.run_count == 1).then_some((from, to))
    }

    /// Returns the local indices of a common element, counted from 0.
    pub fn element(&self, number: u64) -> (u64, u64) {
        let number = number + self.skipped;
        let (period, inside) = match number < self.elements {
            true => (0, number),
            false => (number / self.elements, number % self.elements),
        };
        let at = match self.runs.len() {
            1 => 0,
            _ => self.runs.partition_point(|run| run.before <= inside) - 1,
        };
        self.local(&self.runs[at], period, inside - self.runs[at].before)
    }

    /// Returns the period of a run, counted from 0, and the run's number in it.
    pub fn place_of(&self, run: u64) -> (u64, usize) {
        let runs = self.runs.len() as u64;
        (run / runs, (run % runs) as usize)
    }

    /// Returns the place of the next run.
    pub fn next_place(&self, (period, number): (u64, usize)) -> (u64, usize) {
        match number + 1 < self.runs.len() {
            true => (period, number + 1),
            false => (period + 1, 0),
        }
    }

    /// Returns the local indices of a run's first element, and the number of its elements.
    pub fn run(&self, (period, number): (u64, usize)) -> (u64, u64, u64) {
        let run = &self.runs[number];
        let before = period * self.elements + run.before;
        let begin = before.max(self.skipped);
        let end = (before + run.length).min(self.skipped + self.count);
        let (from, to) = self.local(run, period, begin - before);
        (from, to, end - begin)
    }

    fn local(&self, run: &CommonRun, period: u64, inside: u64) -> (u64, u64) {
        // The indices wrap back from before the first element: see `Axis::local`.
        let from = run.from.wrapping_add(period * self.from_step).wrapping_add(inside);
        let to = run.to.wrapping_add(period * self.to_step).wrapping_add(inside);
        (from, to)
    }
}

/// Returns the number of elements of its block that come before this one; 0 outside blocks.
fn inside(axis: &Axis, at: u64) -> u64 {
    let inside = (at - axis.offset) % axis.stride;
    if inside < axis.block { inside } else { 0 }
}

/// Returns the common runs of a range of the dimension, each with its start. An axis whose elements
/// lie side by side has all elements of the range.
fn runs(from: &Axis, to: &Axis, begin: u64, stop: u64) -> Vec<(u64, CommonRun)> {
    let next = |axis: &Axis, at| match axis.is_side_by_side() {
        true => Some((at, stop)),
        false => axis.run_from(at),
    };
    let mut runs = Vec::new();
    let (mut at, mut before) = (begin, 0);
    while at < stop
        && let (Some(of_from), Some(of_to)) = (next(from, at), next(to, at))
    {
        at = of_from.0.max(of_to.0);
        let end = of_from.1.min(of_to.1).min(stop);
        if at < end {
            let length = end - at;
            runs.push((at, CommonRun { before, from: from.local(at), to: to.local(at), length }));
            before += length;
            at = end;
        }
    }
    runs
}
