//! Writers that run while an image is persisted, and pause only for its freeze.

use crate::ground_truth::program::{Array, Image, apply, begin_image, differences, truth};
use crate::ground_truth::{choices, intervals, tracker};
use outlive_capture::MemorySource;
use outlive_capture::track::TrackerChoice;
use outlive_types::{FreezeMode, FreezeRequest, PAGE_BYTES, PageSource, SeededRng};
use std::sync::Arc;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::scope;

const MIB: usize = 1 << 20;

/// Pattern in which a thread writes.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Pattern {
    /// Bytes anywhere.
    Random,
    /// All pages, one after another.
    Sweep,
    /// A few pages, which change from time to time.
    HotSpot,
    /// Each of these in turn.
    Mixed,
}

/// Changes to the arrays between two images.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Change {
    Nothing,
    /// The arrays grow, shrink, move, go and come back.
    Everything,
}

/// Performs a batch of writes.
fn write(arrays: &[Array], pattern: Pattern, rng: &SeededRng, number: usize) {
    let pattern = match pattern {
        Pattern::Mixed => [Pattern::Random, Pattern::Sweep, Pattern::HotSpot][number / 16 % 3],
        pattern => pattern,
    };
    let array = &arrays[rng.below(arrays.len() as u64) as usize];
    let below = |bound: usize| rng.below(bound as u64) as usize;
    if array.length() == 0 {
        return;
    }
    let put = |at: usize| array.cell(at % array.length()).store(rng.next_u64() as u8, Relaxed);
    match pattern {
        Pattern::Random => (0..20).for_each(|_| put(below(array.length()))),
        Pattern::Sweep => {
            let from = number * 100 * PAGE_BYTES + below(PAGE_BYTES);
            (0..100).for_each(|page| put(from + page * PAGE_BYTES));
        }
        _ => {
            let spot = number / 200 * 77 * PAGE_BYTES;
            (0..20).for_each(|_| put(spot + below(8 * PAGE_BYTES)));
        }
    }
}

fn change(arrays: &mut Vec<Array>, rng: &SeededRng) {
    let at = rng.below(arrays.len() as u64) as usize;
    match rng.below(6) {
        0 => arrays[at].relocate(),
        1 => {
            let length = rng.below(2 * arrays[at].length() as u64 + 1) as usize;
            arrays[at].resize(length.min(6 * MIB));
        }
        2 => {
            let length = arrays[at].length() + rng.below(300_000) as usize;
            arrays[at].resize(length.min(6 * MIB));
        }
        3 if arrays.len() > 2 => drop(arrays.remove(at)),
        4 if arrays.len() < 6 => {
            let name = format!("new {}", rng.next_u64());
            let (behind, length) = (16 * rng.below(2) as usize, rng.below(3 << 20) as usize);
            arrays.push(Array::new(&name, behind, length));
        }
        _ => {}
    }
}

/// Takes images of a program that writes in two threads, with all kinds of snapshots; some images
/// are never committed. Every image must equal the memory while the writers stood.
fn run(name: &str, choice: TrackerChoice, pattern: Pattern, changes: Change) {
    let tracker = tracker(name, choice);
    let arrays = RwLock::new(vec![
        Array::new("large, as NumPy's", 16, 5 * MIB + 777),
        Array::new("aligned", 0, 4 * MIB),
        Array::new("short of a block", 16, MIB + 5),
        Array::new("small", 16, 300_000),
        Array::new("packed", 8, 5000),
    ]);
    let end = AtomicBool::new(false);
    scope(|scope| {
        for thread in 0..2 {
            let (arrays, end) = (&arrays, &end);
            scope.spawn(move || {
                let rng = SeededRng::new(thread);
                let mut number = 0;
                while !end.load(Relaxed) {
                    write(&arrays.read().unwrap(), pattern, &rng, number);
                    number += 1;
                    std::thread::yield_now();
                }
            });
        }
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let rng = SeededRng::new(77);
            let (mut last, mut epoch) = (Image::new(), 0);
            for interval in 0..intervals() {
                let mut standing = arrays.write().unwrap();
                if changes == Change::Everything {
                    change(&mut standing, &rng);
                }
                let regions = standing.iter().map(Array::region).collect();
                let mut source = MemorySource::new(Arc::clone(&tracker), regions, Vec::new(), 2);
                let budget = [u64::MAX, 0, 2 << 20][rng.below(3) as usize];
                let baseline = (epoch > 0).then_some(epoch);
                let freeze = FreezeMode::ALL[rng.below(FreezeMode::ALL.len() as u64) as usize];
                let freeze_bytes_max = budget;
                let request =
                    FreezeRequest { baseline, freeze, freeze_bytes_max, ..Default::default() };
                let frozen = source.freeze(&request).unwrap();
                let wanted = truth(&standing);
                let mut image = begin_image(&*frozen, &last);
                apply(&*frozen, 0..frozen.live_runs(), &mut image);
                frozen.release_live();
                drop(standing);
                std::thread::yield_now();
                apply(&*frozen, frozen.live_runs()..frozen.runs().len(), &mut image);
                let wrong = differences(&wanted, &image);
                assert!(
                    wrong.is_empty() && wanted == image,
                    "{name}, {pattern:?}, interval {interval}: {} pages are not as they were, the \
                     first {:?}; {:?}",
                    wrong.len(),
                    wrong.first(),
                    frozen.report()
                );
                if rng.below(6) == 0 {
                    frozen.commit_baseline(None);
                } else {
                    epoch += 1;
                    frozen.commit_baseline(Some(epoch));
                    last = image;
                }
            }
            eprintln!("{name}, {pattern:?}: {}", tracker.report());
        }));
        end.store(true, Relaxed);
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
}

fn all(pattern: Pattern, changes: Change) {
    for (name, choice) in choices() {
        run(name, choice, pattern, changes);
    }
}

/// The first freeze that finds an array at another address compares all of it. If its save fails,
/// the next one must find the same changes.
#[test]
fn changes_of_a_moved_array_are_found_again_if_its_save_failed() {
    for (name, choice) in choices() {
        let tracker = tracker(name, choice);
        let mut array = Array::new("moves", 16, MIB);
        let (mut last, mut epoch) = (Image::new(), 0);
        for step in 0..20 {
            array.cell(step * 5000).store(step as u8 + 1, Relaxed);
            if step % 3 == 1 {
                array.relocate();
            }
            let regions = vec![array.region()];
            let mut source = MemorySource::new(Arc::clone(&tracker), regions, Vec::new(), 1);
            let baseline = (epoch > 0).then_some(epoch);
            let request =
                FreezeRequest { baseline, freeze_bytes_max: u64::MAX, ..FreezeRequest::default() };
            let frozen = source.freeze(&request).unwrap();
            let mut image = begin_image(&*frozen, &last);
            apply(&*frozen, 0..frozen.runs().len(), &mut image);
            let wrong = differences(&truth(std::slice::from_ref(&array)), &image);
            assert_eq!(wrong, [], "{name}, step {step}");
            if step % 3 != 1 {
                epoch += 1;
                frozen.commit_baseline(Some(epoch));
                last = image;
            }
        }
    }
}

#[test]
fn random_writes() {
    all(Pattern::Random, Change::Nothing);
}

#[test]
fn dense_sweeps() {
    all(Pattern::Sweep, Change::Nothing);
}

#[test]
fn hot_spots_that_move() {
    all(Pattern::HotSpot, Change::Nothing);
}

#[test]
fn patterns_that_change() {
    all(Pattern::Mixed, Change::Nothing);
}

#[test]
fn arrays_that_move_shrink_and_grow() {
    all(Pattern::Mixed, Change::Everything);
}
