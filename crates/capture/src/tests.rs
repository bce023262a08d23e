//! Compares freezes with a model that compares bytes.
#![allow(unsafe_code)]

mod ahead;
mod forked;
mod in_place;
mod limits;
mod model;

use crate::{ChangeTracker, MemorySource, Region};
use outlive_types::{
    Error, ErrorKind, FreezeMode, FreezeRequest, Frozen, PAGE_BYTES, PageRange, PageSource, Result,
    Run,
};
use std::sync::Arc;

/// Returns a region in `bytes`, which must outlive the source's freezes and not change during them.
fn raw(name: &str, bytes: &[u8]) -> Region {
    // SAFETY: the tests keep `bytes` and change it only when no freeze is live.
    unsafe { Region::from_raw(name, "|u1", vec![bytes.len() as u64], bytes.as_ptr(), bytes.len()) }
}

fn freeze(
    tracker: &Arc<ChangeTracker>,
    regions: Vec<Region>,
    request: &FreezeRequest,
) -> Result<Box<dyn Frozen>> {
    MemorySource::new(Arc::clone(tracker), regions, b"attached".to_vec(), 2).freeze(request)
}

/// Returns a request with room for everything.
fn since(baseline: Option<u64>) -> FreezeRequest {
    FreezeRequest { baseline, freeze_bytes_max: u64::MAX, ..FreezeRequest::default() }
}

/// Returns the bytes of a run.
fn held(frozen: &dyn Frozen, run: usize) -> Vec<u8> {
    frozen.bytes(run, &mut Vec::new()).unwrap().to_vec()
}

fn run(stream: u32, first_page: u64, pages: u32) -> Run {
    Run { stream, pages, first_page }
}

fn also(name: &str, first: u64, count: u64) -> (String, PageRange) {
    (name.to_owned(), PageRange { first, count })
}

#[test]
fn a_second_save_holds_only_changed_pages() {
    let tracker = Arc::new(ChangeTracker::new());
    let mut big = vec![1u8; 1024 * PAGE_BYTES + 100];
    let first = freeze(&tracker, vec![raw("big", &big)], &since(None)).unwrap();
    assert_eq!(first.runs(), [run(0, 0, 512), run(0, 512, 512), run(0, 1024, 1)]);
    assert_eq!(first.live_runs(), 0);
    assert_eq!(held(&*first, 2), [1; 100]);
    assert_eq!(first.attachment(), b"attached");
    first.commit_baseline(Some(1));
    drop(first);
    assert_eq!(tracker.baseline(), Some(1));
    assert_eq!(tracker.memory_bytes(), 16 * 1025);
    big[5 * PAGE_BYTES] = 2;
    let second = freeze(&tracker, vec![raw("big", &big)], &since(Some(1))).unwrap();
    assert_eq!(second.runs(), [run(0, 5, 1)]);
    assert_eq!(held(&*second, 0), &big[5 * PAGE_BYTES..6 * PAGE_BYTES]);
    drop(second);
    assert_eq!(tracker.baseline(), Some(1), "a freeze that is dropped settles nothing");
    let again = freeze(&tracker, vec![raw("big", &big)], &since(Some(1))).unwrap();
    assert_eq!(again.runs(), [run(0, 5, 1)]);
}

#[test]
fn another_baseline_means_everything() {
    let tracker = Arc::new(ChangeTracker::new());
    let big = vec![1u8; 100 * PAGE_BYTES];
    freeze(&tracker, vec![raw("big", &big)], &since(None)).unwrap().commit_baseline(Some(7));
    for (baseline, pages) in [(Some(7), 0), (Some(6), 100), (None, 100)] {
        let frozen = freeze(&tracker, vec![raw("big", &big)], &since(baseline)).unwrap();
        assert_eq!(frozen.runs().iter().map(|run| run.pages).sum::<u32>(), pages, "{baseline:?}");
    }
    tracker.forget();
    let frozen = freeze(&tracker, vec![raw("big", &big)], &since(Some(7))).unwrap();
    assert_eq!(frozen.runs(), [run(0, 0, 100)]);
}

#[test]
fn a_full_save_on_top_of_hashes_replaces_them() {
    let tracker = Arc::new(ChangeTracker::new());
    let (a, b) = (vec![1u8; 100 * PAGE_BYTES], vec![2u8; 100 * PAGE_BYTES]);
    freeze(&tracker, vec![raw("a", &a), raw("b", &b)], &since(None))
        .unwrap()
        .commit_baseline(Some(1));
    freeze(&tracker, vec![raw("a", &a)], &since(None)).unwrap().commit_baseline(Some(2));
    assert_eq!(tracker.memory_bytes(), 1600);
    let frozen = freeze(&tracker, vec![raw("b", &b), raw("a", &a)], &since(Some(2))).unwrap();
    assert_eq!(frozen.runs(), [run(0, 0, 100)], "b is unknown again, a is clean");
}

#[test]
fn wanted_clean_pages_are_added() {
    let tracker = Arc::new(ChangeTracker::new());
    let mut big = vec![1u8; 1200 * PAGE_BYTES];
    freeze(&tracker, vec![raw("big", &big)], &since(None)).unwrap().commit_baseline(Some(1));
    big[100 * PAGE_BYTES] = 2;
    let request = FreezeRequest {
        also: vec![
            also("big", 500, 30),
            also("big", 101, 2),
            also("big", 505, 5),
            also("big", 1199, u64::MAX),
            also("big", 1200, 1),
            also("big", u64::MAX, 9),
            also("big", 3, 0),
            also("gone", 0, 9),
        ],
        ..since(Some(1))
    };
    let frozen = freeze(&tracker, vec![raw("big", &big)], &request).unwrap();
    let want = [run(0, 100, 3), run(0, 500, 12), run(0, 512, 18), run(0, 1199, 1)];
    assert_eq!(frozen.runs(), want);
    assert_eq!(held(&*frozen, 0), &big[100 * PAGE_BYTES..103 * PAGE_BYTES]);
    frozen.commit_baseline(Some(2));
    let after = freeze(&tracker, vec![raw("big", &big)], &since(Some(2))).unwrap();
    assert_eq!(after.runs(), []);
}

#[test]
fn small_regions_are_packed_in_order() {
    let tracker = Arc::new(ChangeTracker::new());
    let (small, large) = (vec![1u8; 65_535], vec![2u8; 65_536]);
    let empty = Region::from_bytes("empty", "", vec![0, 3], Vec::new());
    let shared = Region::from_bytes("shared", "|S5", vec![], b"hello".to_vec());
    let regions = vec![empty, raw("large", &large), raw("small", &small), shared];
    let frozen = freeze(&tracker, regions, &since(None)).unwrap();
    let streams: Vec<_> = frozen.streams().iter().map(|s| (&s.name[..], s.bytes)).collect();
    assert_eq!(streams, [("", 65_536 + 5), ("large", 65_536)]);
    let names: Vec<_> = frozen.regions().iter().map(|region| &region.name[..]).collect();
    assert_eq!(names, ["empty", "large", "small", "shared"]);
    assert_eq!(frozen.runs(), [run(0, 0, 17), run(1, 0, 16)]);
    assert_eq!(held(&*frozen, 0)[65_536..], *b"hello");
    assert_eq!(held(&*frozen, 0)[65_535], 0, "padding is zero");
    let empty = Region::from_bytes("empty", "", vec![], Vec::new());
    drop(frozen);
    let frozen = freeze(&tracker, vec![empty], &since(None)).unwrap();
    assert_eq!((frozen.streams().len(), frozen.runs().len()), (1, 0));
    drop(frozen);
    let frozen = freeze(&tracker, vec![], &since(None)).unwrap();
    assert_eq!((frozen.streams().len(), frozen.runs().len()), (0, 0));
}

#[test]
fn one_freeze_at_a_time() {
    let tracker = Arc::new(ChangeTracker::new());
    let mut source = MemorySource::new(Arc::clone(&tracker), vec![], vec![], 1);
    let first = source.freeze(&since(None)).unwrap();
    let Err(error) = source.freeze(&since(None)) else { panic!("two freezes at once") };
    assert_eq!(error.kind(), ErrorKind::Bug);
    first.commit_baseline(None);
    let second = source.freeze(&since(None)).unwrap();
    first.commit_baseline(Some(1));
    drop(first);
    assert_eq!(tracker.baseline(), None, "the first was settled already");
    assert!(source.freeze(&since(None)).is_err(), "the first's end is not the second's");
    second.commit_baseline(Some(2));
    second.commit_baseline(Some(3));
    assert_eq!(tracker.baseline(), Some(2));
    assert!(source.freeze(&since(None)).is_ok(), "settled is enough, though it is still there");
}

#[test]
fn bad_regions_are_named() {
    let two_names = "two regions have the name \"a\"";
    let bytes = |name: &str| Region::from_bytes(name, "", vec![], vec![1]);
    // SAFETY: these are refused before anything is read.
    let unreadable = |start: *const u8, length| unsafe {
        Region::from_raw("nowhere", "", vec![], start, length)
    };
    let dangling = std::ptr::dangling();
    let cases: Vec<(Vec<Region>, &str)> = vec![
        (vec![bytes("b"), bytes("")], "region number 1"),
        (vec![bytes("a"), bytes("b"), bytes("a")], two_names),
        (vec![bytes(&"n".repeat(65_536))], "65536 bytes"),
        (vec![Region::from_bytes("long", "d".repeat(65_536), vec![], vec![])], "\"long\""),
        (vec![Region::from_bytes("deep", "", vec![1; 65], vec![])], "\"deep\""),
        (vec![unreadable(std::ptr::null(), 1)], "\"nowhere\""),
        (vec![unreadable(dangling, usize::MAX)], "\"nowhere\""),
    ];
    for (regions, what) in cases {
        let tracker = Arc::new(ChangeTracker::new());
        let mut source = MemorySource::new(Arc::clone(&tracker), regions.clone(), vec![], 1);
        for _ in 0..2 {
            let Err(error) = source.freeze(&since(None)) else { panic!("{what} was accepted") };
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.message().contains(what), "{error}");
        }
    }
    let longest = Region::from_bytes("n".repeat(65_535), "d".repeat(65_535), vec![1; 64], vec![]);
    // SAFETY: no bytes are read.
    let nothing = unsafe { Region::from_raw("nothing", "", vec![], std::ptr::null(), 0) };
    assert!(freeze(&Arc::new(ChangeTracker::new()), vec![longest, nothing], &since(None)).is_ok());
}

#[test]
fn memory_that_has_nearly_all_changed_is_not_compared_but_learnt() {
    let pages = 4096 + 7;
    let mut big = vec![1u8; pages * PAGE_BYTES];
    let tracker = Arc::new(ChangeTracker::new());
    let settle = |frozen: Box<dyn Frozen>, epoch: u64| {
        for run in 0..frozen.runs().len() {
            held(&*frozen, run);
        }
        frozen.commit_baseline(Some(epoch));
    };
    settle(freeze(&tracker, vec![raw("big", &big)], &since(None)).unwrap(), 1);
    big.chunks_mut(PAGE_BYTES).skip(1).for_each(|page| page[9] = 2);
    let second = freeze(&tracker, vec![raw("big", &big)], &since(Some(1))).unwrap();
    assert_eq!(second.changed_pages(), pages as u64, "the page that is the same counts as well");
    // A save that fails leaves the hashes unchanged.
    second.commit_baseline(None);
    drop(second);
    let again = freeze(&tracker, vec![raw("big", &big)], &since(Some(1))).unwrap();
    assert_eq!(again.changed_pages(), pages as u64);
    settle(again, 2);
    assert_eq!(tracker.memory_bytes(), 16 * pages);
    big[5 * PAGE_BYTES] = 3;
    let third = freeze(&tracker, vec![raw("big", &big)], &since(Some(2))).unwrap();
    assert_eq!(third.runs(), [run(0, 5, 1)]);
}
