//! Compares copies ahead with a naive model, with a tracker whose written pages the test sets.

use super::*;
use crate::track::TrackerKind;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
pub use std::sync::atomic::Ordering;
use std::time::Instant;

/// A tracker of the pages of `memory`, by number. It reports the pages that a test notes as
/// written.
#[derive(Debug)]
pub struct Told {
    start: usize,
    written: Mutex<BTreeSet<usize>>,
    refuses: Mutex<bool>,
    given_up: Mutex<bool>,
    /// Number of collections.
    looks: AtomicU64,
}

impl Told {
    pub fn new(start: usize) -> Told {
        Told {
            start,
            written: Mutex::default(),
            refuses: Mutex::default(),
            given_up: Mutex::default(),
            looks: AtomicU64::new(0),
        }
    }

    /// Waits until the copying thread has collected the written pages, found them quiet, copied
    /// them, and collected again.
    pub fn wait_for_copies(&self) {
        let seen = self.looks.load(Ordering::Relaxed);
        let started = Instant::now();
        while self.looks.load(Ordering::Relaxed) < seen + 4 {
            assert!(started.elapsed() < Duration::from_secs(300), "the thread does not look");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn refuse(&self) {
        *self.refuses.lock() = true;
    }

    /// Makes the tracker report all of its pages as absent.
    pub fn give_up(&self) {
        *self.given_up.lock() = true;
    }

    pub fn write(&self, page: usize) {
        self.written.lock().insert(page);
    }

    pub fn pages(&self, range: Range<usize>) -> Pages {
        let at = |page| self.start + page * PAGE_BYTES;
        Pages { start: at(range.start), end: at(range.end) }
    }
}

impl PageTracker for Told {
    fn kind(&self) -> TrackerKind {
        TrackerKind::WpAsync
    }

    #[allow(unsafe_code)]
    // SAFETY (of callers): as [`PageTracker::watch`] demands; it does nothing.
    unsafe fn watch(&self, _: Pages) -> Result<(), Refusal> {
        Ok(())
    }

    fn unwatch(&self, _: Pages) {}

    fn arm(&self, _: Pages) -> Result<(), Refusal> {
        Ok(())
    }

    fn collect(&self, pages: Pages, then: Then, written: &mut Vec<Pages>) -> Result<(), Refusal> {
        self.looks.fetch_add(1, Ordering::Relaxed);
        if *self.refuses.lock() {
            return Err(Refusal("it was told to".into()));
        }
        let mut noted = self.written.lock();
        let found: Vec<usize> = noted
            .iter()
            .copied()
            .filter(|page| {
                pages.start <= self.pages(*page..*page).start
                    && self.pages(*page..*page).start < pages.end
            })
            .collect();
        for page in found {
            if then == Then::Rearm {
                noted.remove(&page);
            }
            let one = self.pages(page..page + 1);
            match written.last_mut() {
                Some(last) if last.end == one.start => last.end = one.end,
                _ => written.push(one),
            }
        }
        Ok(())
    }

    fn disarm(&self, _: Pages) -> Result<(), Refusal> {
        Ok(())
    }

    fn absent(&self, pages: Pages, absent: &mut Vec<Pages>) -> Result<(), Refusal> {
        if *self.given_up.lock() {
            absent.push(pages);
        }
        Ok(())
    }
}

const PAGES: usize = 64;

#[derive(Clone, Debug)]
enum Step {
    Write(Vec<usize>),
    Round,
    /// A round that must end after this number of batches.
    Short(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => prop::collection::vec(0..PAGES, 1..20).prop_map(Step::Write),
        3 => Just(Step::Round),
        1 => (0usize..3).prop_map(Step::Short),
    ]
}

/// Expected state, page by page.
#[derive(Default)]
struct Model {
    written: BTreeSet<usize>,
    /// Pages written since the last round.
    now: BTreeSet<usize>,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn copies_that_count_equal_the_memory(
        steps in prop::collection::vec(step(), 1..30),
        budget_pages in prop_oneof![Just(0usize), 1usize..PAGES, Just(PAGES)],
        split in 1usize..PAGES,
    ) {
        let mut memory = AlignedBuf::zeroed(PAGES * PAGE_BYTES);
        let told = Told::new(memory.as_ptr().addr());
        // Two adjacent areas, in the wrong order.
        let areas = [told.pages(split..PAGES), told.pages(0..split)];
        let bytes_max = (budget_pages * PAGE_BYTES) as u64;
        let mut ahead = Ahead::new(&areas, &[], bytes_max, Ahead::default());
        let mut model = Model::default();
        let mut value = 0u8;
        for step in steps {
            match step {
                Step::Write(pages) => for page in pages {
                    value = value.wrapping_add(1);
                    memory[page * PAGE_BYTES..][..PAGE_BYTES].fill(value);
                    told.write(page);
                    model.written.insert(page);
                    model.now.insert(page);
                },
                Step::Round => {
                    ahead.round(&told, &|| false).unwrap();
                    let quiet = model.written.difference(&model.now).count();
                    let copied = ahead.copies.len();
                    prop_assert_eq!(copied, quiet.min(budget_pages), "all that is quiet, or fits");
                    model.now.clear();
                }
                Step::Short(batches) => {
                    let left = std::cell::Cell::new(batches);
                    let is_over = || left.replace(left.get().saturating_sub(1)) == 0;
                    ahead.round(&told, &is_over).unwrap();
                    model.now.clear();
                }
            }
        }
        ahead.finish(&told).unwrap();
        let written: BTreeSet<usize> = ahead.written().iter()
            .flat_map(|pages| (pages.start..pages.end).step_by(PAGE_BYTES))
            .map(|address| (address - told.start) / PAGE_BYTES).collect();
        prop_assert_eq!(&written, &model.written);
        for pair in ahead.written().windows(2) {
            prop_assert!(pair[0].end < pair[1].start);
        }
        prop_assert!(ahead.copied_bytes() <= bytes_max);
        let mut found = 0;
        for page in 0..PAGES {
            if let Some(copy) = ahead.page(told.pages(page..page).start) {
                found += 1;
                prop_assert!(written.contains(&page) && !model.now.contains(&page));
                prop_assert!(copy == &memory[page * PAGE_BYTES..][..PAGE_BYTES]);
            }
        }
        prop_assert_eq!(found * PAGE_BYTES as u64, ahead.copied_bytes());
    }

    #[test]
    fn ranges_are_sets(
        one in prop::collection::vec((0usize..60, 1usize..9), 0..9),
        other in prop::collection::vec((0usize..60, 1usize..9), 0..9),
    ) {
        let pages = |list: &[(usize, usize)]| -> Vec<Pages> {
            let page = |at: usize| at * PAGE_BYTES;
            list.iter().map(|(at, n)| Pages { start: page(*at), end: page(at + n) }).collect()
        };
        let set = |list: &[Pages]| -> BTreeSet<usize> {
            list.iter().flat_map(|pages| (pages.start..pages.end).step_by(PAGE_BYTES)).collect()
        };
        let (one, other) = (union(&pages(&one), &[]), union(&pages(&other), &[]));
        let (a, b) = (set(&one), set(&other));
        prop_assert_eq!(set(&union(&one, &other)), &a | &b);
        prop_assert_eq!(set(&subtract(&one, &other)), &a - &b);
        prop_assert_eq!(set(&clip(&one, &other)), &a & &b);
    }
}

#[test]
fn after_a_refusal_all_pages_count_as_written() {
    let memory = AlignedBuf::zeroed(8 * PAGE_BYTES);
    let told = Told::new(memory.as_ptr().addr());
    let mut ahead = Ahead::new(&[told.pages(0..8)], &[told.pages(2..4)], 1 << 20, Ahead::default());
    ahead.round(&told, &|| false).unwrap();
    assert_eq!(ahead.copied_bytes(), 2 * 4096, "what was collected before has gone quiet");
    told.refuse();
    assert!(ahead.round(&told, &|| false).is_err());
    assert_eq!((ahead.written(), ahead.copied_bytes()), (&[told.pages(0..8)][..], 0));
}

#[test]
fn memory_that_goes_away_is_not_copied() {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    let length = 4 * PAGE_BYTES;
    #[allow(unsafe_code)]
    // SAFETY: a new mapping of our own, which is unused when it is unmapped.
    let start = unsafe {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let start = mmap_anonymous(std::ptr::null_mut(), length, prot, MapFlags::PRIVATE).unwrap();
        munmap(start, length).unwrap();
        start.addr()
    };
    let told = Told::new(start);
    told.write(1);
    let mut ahead = Ahead::new(&[told.pages(0..4)], &[], 1 << 20, Ahead::default());
    ahead.round(&told, &|| false).unwrap();
    ahead.round(&told, &|| false).unwrap();
    assert_eq!((ahead.copied_bytes(), ahead.written().len()), (0, 1));
}

#[test]
fn a_thread_copies_quiet_pages_and_ends_when_stopped() {
    let mut memory = AlignedBuf::zeroed(100 * PAGE_BYTES);
    memory.fill(3);
    let told = Arc::new(Told::new(memory.as_ptr().addr()));
    (0..50).for_each(|page| told.write(page));
    let begin = |old| Ahead::new(&[told.pages(0..100)], &[], 1 << 20, old);
    let thread = AheadThread::start(told.clone(), begin(Ahead::default())).unwrap();
    told.wait_for_copies();
    told.write(7);
    let ahead = thread.stop().unwrap();
    assert_eq!(ahead.copied_bytes(), 49 * 4096);
    assert!(ahead.page(told.pages(7..8).start).is_none());
    assert_eq!(ahead.page(told.pages(8..9).start), Some(&[3; PAGE_BYTES][..]));
    // A thread that is dropped without `stop` ends as well; buffers are reused.
    let thread = AheadThread::start(told.clone(), begin(ahead)).unwrap();
    drop(thread);
    assert_eq!(Arc::strong_count(&told), 1);
}
