//! One suite of requirements for all page trackers.
//!
//! A tracker that this kernel does not have is skipped, with a note on standard error.
#![allow(unsafe_code)] // memory is mapped, moved and unmapped while it is tracked

mod memory;
mod model;
mod threads;
mod traps;

use memory::Mapped;
use outlive_capture::track::{PageTracker, Pages, Refusal, Then, TrackerKind, WpAsync};
use std::sync::Arc;

/// Returns a new tracker of each kind that this machine has.
fn trackers() -> Vec<Arc<dyn PageTracker>> {
    type Make = fn() -> Result<Arc<dyn PageTracker>, Refusal>;
    let makers: [(TrackerKind, Make); 1] =
        [(TrackerKind::WpAsync, || Ok(Arc::new(WpAsync::open()?)))];
    let made = makers.into_iter().filter_map(|(kind, make)| match make() {
        Ok(tracker) => Some(tracker),
        Err(refusal) => {
            eprintln!("not tested: {kind}: {refusal}");
            None
        }
    });
    made.collect()
}

/// Runs `test` for each tracker.
fn each(test: impl Fn(&Arc<dyn PageTracker>)) {
    for tracker in trackers() {
        eprintln!("tracker: {}", tracker.kind());
        test(&tracker);
    }
}

/// Watches and arms all of `memory`.
fn watch_and_arm(tracker: &dyn PageTracker, memory: &Mapped) {
    // SAFETY: the memory is mapped, and the tests' own.
    unsafe { tracker.watch(memory.pages()) }.unwrap();
    tracker.arm(memory.pages()).unwrap();
}

/// Returns the numbers of the pages of `memory` that were written, by a collection of `part`, whose
/// form is checked. `None` if it was refused.
fn collect(
    tracker: &dyn PageTracker,
    memory: &Mapped,
    part: Pages,
    then: Then,
) -> Option<Vec<usize>> {
    let mut runs = vec![Pages { start: 1, end: 2 }];
    let result = tracker.collect(part, then, &mut runs);
    assert_eq!(runs.remove(0), Pages { start: 1, end: 2 }, "it appends");
    if let Err(refusal) = result {
        assert!(!refusal.0.is_empty());
        eprintln!("  refused: {refusal}");
        return None;
    }
    for run in &runs {
        assert!(part.start <= run.start && run.start < run.end && run.end <= part.end, "{run:?}");
        assert!(run.start % 4096 == 0 && run.end % 4096 == 0);
    }
    assert!(runs.windows(2).all(|two| two[0].end < two[1].start), "{runs:?}");
    Some(numbers(memory, &runs))
}

/// Returns the numbers of pages of `memory`.
fn numbers(memory: &Mapped, runs: &[Pages]) -> Vec<usize> {
    let number = |address: usize| (address - memory.pages().start) / 4096;
    runs.iter().flat_map(|run| number(run.start)..number(run.end)).collect()
}

/// Collects all of it, and arms it again.
fn collect_all(tracker: &dyn PageTracker, memory: &Mapped) -> Option<Vec<usize>> {
    collect(tracker, memory, memory.pages(), Then::Rearm)
}
