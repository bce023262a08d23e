//! Random sequences of calls and writes, compared with the simplest model: a set of pages.

use super::*;
use proptest::prelude::*;

const PAGES: usize = 1100;

#[derive(Clone, Copy, Debug)]
enum Step {
    Write { page: usize, count: usize, stride: usize },
    Read { page: usize },
    Arm { first: usize, end: usize },
    Disarm { first: usize, end: usize },
    Collect { first: usize, end: usize, then: Then },
    WatchAgain,
}

fn range() -> impl Strategy<Value = (usize, usize)> {
    prop_oneof![
        2 => Just((0, PAGES)),
        1 => Just((512, 1024)),
        3 => (0..PAGES, 1..PAGES).prop_map(|(first, count)| (first, (first + count).min(PAGES))),
        2 => (0..PAGES).prop_map(|first| (first, first + 1)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let then = prop_oneof![2 => Just(Then::Rearm), 1 => Just(Then::Leave)];
    prop_oneof![
        8 => (0..PAGES, prop_oneof![Just(1usize), 1..200usize], 1..5usize)
            .prop_map(|(page, count, stride)| Step::Write { page, count, stride }),
        2 => (0..PAGES).prop_map(|page| Step::Read { page }),
        3 => range().prop_map(|(first, end)| Step::Arm { first, end }),
        1 => range().prop_map(|(first, end)| Step::Disarm { first, end }),
        6 => (range(), then)
            .prop_map(|((first, end), then)| Step::Collect { first, end, then }),
        1 => Just(Step::WatchAgain),
    ]
}

/// Checks the reports: pages that were written since they were armed, or are not armed. In plain
/// memory of small pages a tracker knows exactly.
fn run(tracker: &dyn PageTracker, memory: &Mapped, steps: &[Step]) {
    // SAFETY: the memory is mapped, and this test's.
    let watch = || unsafe { tracker.watch(memory.pages()) }.unwrap();
    watch();
    let mut written = [true; PAGES];
    let mut content = [0u64; PAGES];
    (0..PAGES).for_each(|page| memory.write(page, 0));
    for (number, step) in steps.iter().enumerate() {
        match *step {
            Step::Write { page, count, stride } => {
                for page in (page..PAGES).step_by(stride).take(count) {
                    content[page] = number as u64 + 1;
                    memory.write(page, content[page]);
                    written[page] = true;
                }
            }
            Step::Read { page } => assert_eq!(memory.read(page), content[page]),
            Step::Arm { first, end } => {
                tracker.arm(memory.part(first, end)).unwrap();
                written[first..end].fill(false);
            }
            Step::Disarm { first, end } => {
                tracker.disarm(memory.part(first, end)).unwrap();
                written[first..end].fill(true);
            }
            Step::Collect { first, end, then } => {
                let found = collect(tracker, memory, memory.part(first, end), then).unwrap();
                let wanted: Vec<usize> = (first..end).filter(|page| written[*page]).collect();
                assert_eq!(found, wanted, "step {number}, {step:?}");
                if then == Then::Rearm {
                    written[first..end].fill(false);
                }
            }
            Step::WatchAgain => {
                tracker.unwatch(memory.pages());
                assert!(collect_all(tracker, memory).is_none(), "it is not watched any more");
                watch();
                written.fill(true);
            }
        }
    }
    tracker.unwatch(memory.pages());
    for (page, wanted) in content.iter().enumerate() {
        assert_eq!(memory.read(page), *wanted, "page {page} after all");
        memory.write(page, 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn pages_are_reported_exactly(steps in prop::collection::vec(step(), 1..60)) {
        each(|tracker| {
            run(&**tracker, &Mapped::small(PAGES), &steps);
        });
    }

    #[test]
    fn huge_pages_are_split_and_reported(
        writes in prop::collection::vec(prop::collection::vec(0usize..1536, 0..20), 1..6)
    ) {
        each(|tracker| {
            let memory = Mapped::huge(1536);
            watch_and_arm(&**tracker, &memory);
            for (round, pages) in writes.iter().enumerate() {
                pages.iter().for_each(|page| memory.write(*page, round as u64 + 2));
                let found = collect_all(&**tracker, &memory).unwrap();
                assert!(pages.iter().all(|page| found.contains(page)), "{pages:?} in {found:?}");
            }
            tracker.unwatch(memory.pages());
        });
    }
}

#[test]
fn several_ranges_side_by_side_are_one_to_a_collection() {
    each(|tracker| {
        let memory = Mapped::small(300);
        for (first, end) in [(0, 100), (100, 101), (101, 300)] {
            // SAFETY: the memory is mapped, and this test's.
            unsafe { tracker.watch(memory.part(first, end)) }.unwrap();
            tracker.arm(memory.part(first, end)).unwrap();
        }
        let same = unsafe {
            // SAFETY: as above.
            tracker.watch(memory.part(50, 60))
        };
        same.unwrap_err();
        for page in [0, 99, 100, 101, 299] {
            memory.write(page, 7);
        }
        let part = |first, end, then| {
            let found = collect(&**tracker, &memory, memory.part(first, end), then);
            found.expect("all of it is watched")
        };
        assert_eq!(part(99, 102, Then::Leave), [99, 100, 101]);
        assert_eq!(part(50, 150, Then::Rearm), [99, 100, 101]);
        assert_eq!(part(0, 300, Then::Rearm), [0, 299]);
        tracker.unwatch(memory.part(0, 100));
        assert!(collect_all(&**tracker, &memory).is_none(), "a part is not watched any more");
        assert_eq!(part(100, 300, Then::Rearm), []);
        memory.write(3, 1);
        tracker.unwatch(memory.pages());
        memory.write(200, 1);
    });
}

#[test]
fn partial_pages_and_unwatched_memory_are_refused() {
    each(|tracker| {
        let memory = Mapped::small(10);
        let Pages { start, end } = memory.pages();
        for (start, end) in [(start + 16, end), (start, end - 1), (start + 16, start + 32)] {
            let pages = Pages { start, end };
            // SAFETY: refused; and none of it has another owner.
            unsafe { tracker.watch(pages) }.unwrap_err();
        }
        tracker.arm(memory.pages()).unwrap_err();
        tracker.disarm(memory.pages()).unwrap_err();
        tracker.unwatch(memory.pages());
        memory.write(1, 1);
    });
}

#[test]
fn a_tracker_that_is_dropped_leaves_memory_writable() {
    for tracker in trackers() {
        let memory = Mapped::small(600);
        watch_and_arm(&*tracker, &memory);
        memory.write(5, 1);
        drop(tracker);
        (0..600).for_each(|page| memory.write(page, 2));
    }
}
