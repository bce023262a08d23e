//! Writers that run while pages are collected.

use super::*;
use outlive_types::SeededRng;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::{scope, yield_now};

/// Writers number their writes, and record which are completed. Every collection must report each
/// page with a completed write that is not yet in the image; the image is copied after the
/// collection. All writers write to all pages, each to a word of its own. So one may use a page
/// that a fault of another has opened.
fn never_pausing(tracker: &dyn PageTracker, pages: usize, rounds: usize, writers: usize) {
    let memory = Mapped::small(pages);
    let completed: Vec<AtomicU64> = (0..pages * writers).map(|_| AtomicU64::new(0)).collect();
    let mut image = vec![0u64; pages * writers];
    let end = AtomicBool::new(false);
    watch_and_arm(tracker, &memory);
    scope(|scope| {
        for writer in 0..writers {
            let (memory, completed, end) = (&memory, &completed, &end);
            scope.spawn(move || {
                let rng = SeededRng::new(writer as u64);
                let mut number = 0;
                while !end.load(SeqCst) {
                    let page = rng.below(pages as u64) as usize;
                    number += 1;
                    memory.cell(page, writer).store(number, SeqCst);
                    completed[page * writers + writer].store(number, SeqCst);
                    if number % 64 == 0 {
                        yield_now();
                    }
                }
            });
        }
        let rng = SeededRng::new(99);
        for round in 0..rounds {
            (0..rng.below(2000)).for_each(|_| std::hint::spin_loop()); // writers make progress
            let before: Vec<u64> = completed.iter().map(|number| number.load(SeqCst)).collect();
            // Some pages are disarmed from time to time: they count as written.
            if rng.below(8) == 0 {
                let first = rng.below(pages as u64) as usize;
                tracker.disarm(memory.part(first, pages)).unwrap();
            }
            let found = collect_all(tracker, &memory);
            let Some(found) = found else {
                end.store(true, SeqCst);
                panic!("round {round}: it was refused, though nothing was unmapped");
            };
            for page in found {
                for writer in 0..writers {
                    image[page * writers + writer] = memory.cell(page, writer).load(SeqCst);
                }
            }
            let missed = (0..image.len()).filter(|cell| image[*cell] < before[*cell]);
            let missed: Vec<usize> = missed.map(|cell| cell / writers).collect();
            if !missed.is_empty() {
                end.store(true, SeqCst);
                panic!("round {round}: completed writes were not reported: pages {missed:?}");
            }
        }
        // The memory is also released and watched again while they write.
        for _ in 0..20 {
            tracker.unwatch(memory.pages());
            watch_and_arm(tracker, &memory);
        }
        end.store(true, SeqCst);
    });
    tracker.unwatch(memory.pages());
}

#[test]
fn writers_that_never_pause_are_not_missed() {
    each(|tracker| never_pausing(&**tracker, 600, 400, 3));
}

/// Few pages, so that writes and collections meet all the time.
#[test]
fn writers_of_few_pages_are_not_missed() {
    each(|tracker| never_pausing(&**tracker, 8, 3000, 4));
}

/// Several threads watch, arm, collect and release, each its own memory, through one tracker.
#[test]
fn calls_from_several_threads_do_not_mix() {
    each(|tracker| {
        scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    let rng = SeededRng::new(thread);
                    for round in 0..60 {
                        let memory = Mapped::small(1 + rng.below(200) as usize);
                        let pages = memory.part(0, 1).start..memory.pages().end;
                        let count = (pages.end - pages.start) as u64 / 4096;
                        watch_and_arm(&**tracker, &memory);
                        for _ in 0..4 {
                            let mut wanted: Vec<usize> =
                                (0..rng.below(5)).map(|_| rng.below(count) as usize).collect();
                            wanted.sort_unstable();
                            wanted.dedup();
                            wanted.iter().for_each(|page| memory.write(*page, round + 1));
                            assert_eq!(collect_all(&**tracker, &memory), Some(wanted));
                        }
                        if round % 2 == 0 {
                            tracker.unwatch(memory.pages());
                        } else {
                            // Unmapped before it is released; another thread may map its address.
                            let pages = memory.pages();
                            tracker.disarm(pages).unwrap();
                            tracker.unwatch(pages);
                        }
                    }
                });
            }
        });
    });
}
