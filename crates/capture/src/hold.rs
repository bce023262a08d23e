//! How each dirty run is held still: the plan of a freeze, once it is known what changed.

use crate::arena::Source;
use crate::fork::Mappings;
use crate::layout::Layout;
use crate::memory::Memory;
use crate::runs;
use outlive_types::Run;

/// Where a run's bytes are until the image is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hold {
    /// In bytes that nobody changes: immutable ones, or the packed stream.
    Lent,
    /// In the program's memory, which waits until they are read.
    Live,
    /// Copied to this offset of the arena.
    Copied(usize),
    /// In a forked child, at this address.
    Forked(usize),
}

/// What is copied aside, and what stays where it is.
#[derive(Debug)]
pub(crate) struct HoldPlan<'a> {
    /// For each run.
    pub holds: Vec<Hold>,
    /// Runs before this one may be live; none after.
    pub live_runs: usize,
    /// What goes to the arena, one behind another.
    pub sources: Vec<Source<'a>>,
    /// Bytes of `sources`.
    pub copied_bytes: u64,
    /// Bytes of forked runs.
    pub forked_bytes: u64,
    /// Bytes of live runs.
    pub live_bytes: u64,
}

impl<'a> HoldPlan<'a> {
    /// Leaves to a child what `fork` freezes, if one was forked. Of the rest it takes the last runs
    /// aside, as many as fit into `bytes_max`: the live ones, which the store reads first, stay.
    pub fn new(
        layout: &'a Layout,
        runs: &[Run],
        bytes_max: u64,
        fork: Option<&Mappings>,
    ) -> HoldPlan<'a> {
        let mut plan = HoldPlan {
            holds: vec![Hold::Lent; runs.len()],
            live_runs: 0,
            sources: Vec::new(),
            copied_bytes: 0,
            forked_bytes: 0,
            live_bytes: 0,
        };
        let mut left_bytes = bytes_max;
        for (number, run) in runs.iter().enumerate().rev() {
            let Some(source) = in_program(layout, run) else { continue };
            let bytes = source.length as u64;
            if let Some(mappings) = fork
                && let Some(at) = source.address()
                && mappings.is_frozen(at..at + source.length)
            {
                plan.forked_bytes += bytes;
                plan.holds[number] = Hold::Forked(at);
                continue;
            }
            let fits = plan.live_runs == 0 && bytes <= left_bytes;
            if fits {
                left_bytes -= bytes;
                plan.copied_bytes += bytes;
                plan.sources.push(source);
            } else {
                plan.live_runs = plan.live_runs.max(number + 1);
                plan.live_bytes += bytes;
                plan.holds[number] = Hold::Live;
            }
        }
        plan.sources.reverse();
        let mut end = 0;
        for (run, hold) in runs.iter().zip(&mut plan.holds).skip(plan.live_runs) {
            if *hold == Hold::Lent
                && let Some(source) = in_program(layout, run)
            {
                *hold = Hold::Copied(end);
                end += source.length;
            }
        }
        plan
    }
}

/// Bytes of runs in the program's memory: all, and those of them that a fork would not freeze.
pub(crate) fn program_bytes(layout: &Layout, runs: &[Run], fork: Option<&Mappings>) -> (u64, u64) {
    let (mut all, mut unfrozen) = (0, 0);
    for source in runs.iter().filter_map(|run| in_program(layout, run)) {
        all += source.length as u64;
        let range = source.address().map(|at| at..at + source.length);
        if !range.zip(fork).is_some_and(|(range, fork)| fork.is_frozen(range)) {
            unfrozen += source.length as u64;
        }
    }
    (all, unfrozen)
}

/// Where a run lies in the program's memory, if it does.
fn in_program<'a>(layout: &'a Layout, run: &Run) -> Option<Source<'a>> {
    match layout.memory(run.stream as usize) {
        Some(memory @ Memory::Raw(_)) => {
            let (offset, length) = runs::extent(run, memory.length() as u64);
            Some(Source { memory, offset, length })
        }
        _ => None,
    }
}
