//! Tests of budgets, buffers, priming and many regions.

use super::*;
use outlive_types::PACKED_STREAM;
use rustix::time::{ClockId, clock_gettime};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Freezes 4 MiB of `bytes` with a small packed region and this budget.
fn budgeted(tracker: &Arc<ChangeTracker>, bytes: &[u8], freeze_bytes_max: u64) -> Box<dyn Frozen> {
    let regions = vec![raw("small", &bytes[..5000]), raw("large", bytes)];
    let freeze_mode = FreezeMode::Copy;
    let request =
        FreezeRequest { freeze_bytes_max, freeze: freeze_mode, ..FreezeRequest::default() };
    freeze(tracker, regions, &request).unwrap()
}

#[test]
fn the_last_runs_are_copied_up_to_the_budget() {
    const MIB: usize = 1 << 20;
    let tracker = Arc::new(ChangeTracker::new());
    let mut bytes: Vec<u8> = (0..5 * MIB).map(|at| (at / 999) as u8).collect();
    let want = bytes.clone();
    // Runs: packed 2 pages; large 2 MiB, 2 MiB, 1 MiB.
    for (budget_bytes, live) in [
        (0, 4),
        (MIB - 1, 4),
        (MIB, 3),
        (3 * MIB - 1, 3),
        (3 * MIB, 2),
        (5 * MIB - 1, 2),
        (5 * MIB, 0),
    ] {
        let frozen = budgeted(&tracker, &bytes, budget_bytes as u64);
        assert_eq!(frozen.runs().len(), 4);
        assert_eq!(frozen.live_runs(), live, "budget {budget_bytes}");
        assert_eq!(held(&*frozen, 1), &want[..2 * MIB]);
        frozen.release_live();
        bytes.fill(0xEE);
        assert_eq!(held(&*frozen, 0), &want[..5000], "packed bytes are never live");
        for run in 1..4 {
            let read = catch_unwind(AssertUnwindSafe(|| held(&*frozen, run)));
            if run < live {
                assert!(read.is_err(), "a released run must not be read");
            } else {
                let start = (run - 1) * 2 * MIB;
                assert_eq!(read.unwrap(), &want[start..(start + 2 * MIB).min(5 * MIB)]);
            }
        }
        bytes.copy_from_slice(&want);
    }
}

#[test]
fn a_settled_image_can_still_be_read() {
    let tracker = Arc::new(ChangeTracker::new());
    let bytes = vec![3u8; 5 << 20];
    let first = budgeted(&tracker, &bytes, u64::MAX);
    first.commit_baseline(Some(1));
    let other = vec![4u8; 5 << 20];
    let second = budgeted(&tracker, &other, u64::MAX);
    assert!(held(&*first, 3).iter().all(|byte| *byte == 3), "its buffers are not reused yet");
    assert!(held(&*second, 3).iter().all(|byte| *byte == 4));
}

#[test]
fn shared_bytes_are_neither_copied_nor_live() {
    let tracker = Arc::new(ChangeTracker::new());
    let bytes: Arc<[u8]> = vec![5u8; 3 << 20].into();
    let region = Region::from_bytes("shared", "|u1", vec![], Arc::clone(&bytes));
    let frozen = freeze(&tracker, vec![region], &FreezeRequest::default()).unwrap();
    assert_eq!(frozen.live_runs(), 0);
    assert_eq!(frozen.bytes(0, &mut Vec::new()).unwrap().as_ptr(), bytes.as_ptr());
}

#[test]
fn the_copy_buffer_is_kept_and_stays_within_the_budget() {
    const MIB: usize = 1 << 20;
    let tracker = Arc::new(ChangeTracker::new());
    let bytes = vec![3u8; 5 * MIB];
    let address = |budget: usize| {
        let frozen = budgeted(&tracker, &bytes, budget as u64);
        frozen.bytes(3, &mut Vec::new()).unwrap().as_ptr()
    };
    assert_eq!(address(64 * MIB), address(64 * MIB), "no fresh memory for the second freeze");
    assert!(tracker.spare_bytes() <= 8 * MIB + 5000, "{}", tracker.spare_bytes());
    address(3 * MIB);
    assert!(tracker.spare_bytes() <= 3 * MIB + 5000);
    address(0);
    assert_eq!(tracker.spare_bytes(), 0);
}

#[test]
fn memory_for_more_copies_comes_once_the_baseline_is_committed() {
    const MIB: usize = 1 << 20;
    let spare_bytes = |is_committed: bool| {
        let tracker = Arc::new(ChangeTracker::new());
        let bytes = vec![3u8; 4 * MIB];
        budgeted(&tracker, &bytes, 64 << 20).commit_baseline(is_committed.then_some(1));
        tracker.spare_bytes()
    };
    assert_eq!(
        spare_bytes(true),
        spare_bytes(false) + 2 * MIB,
        "within what the state may come to"
    );
}

#[test]
fn a_restored_image_is_the_baseline() {
    let (small, large) = (vec![1u8; 10_000], vec![2u8; 100_000]);
    let regions = || vec![raw("small", &small), raw("large", &large)];
    let dirty_pages = |tracker: &Arc<ChangeTracker>, regions: Vec<Region>| {
        let frozen = freeze(tracker, regions, &since(Some(4))).unwrap();
        frozen.runs().iter().map(|run| (run.stream, run.pages)).collect::<Vec<_>>()
    };
    let fresh = Arc::new(ChangeTracker::new());
    let restored = [(PACKED_STREAM, &small[..]), ("large", &large[..])];
    fresh.prime(4, &restored, 2);
    assert_eq!(fresh.baseline(), Some(4));
    assert_eq!(dirty_pages(&fresh, regions()), []);

    // Regions of another shape: only the pages that differ are dirty.
    let other = Region::from_bytes("more", "", vec![], vec![1]);
    fresh.prime(4, &restored, 2);
    assert_eq!(dirty_pages(&fresh, [regions(), vec![other]].concat()), [(0, 1)]);
    let shorter = vec![raw("small", &small), raw("large", &large[..99_999])];
    fresh.prime(4, &restored, 2);
    assert_eq!(dirty_pages(&fresh, shorter), [(1, 1)]);

    fresh.prime(4, &[("large", &large[..])], 1);
    assert_eq!(dirty_pages(&fresh, regions()), [(0, 3)]);
}

#[test]
fn priming_ends_a_freeze_without_effect() {
    let tracker = Arc::new(ChangeTracker::new());
    let (old, new) = (vec![1u8; 100_000], vec![2u8; 100_000]);
    let frozen = freeze(&tracker, vec![raw("a", &old)], &since(None)).unwrap();
    tracker.prime(5, &[("a", &new[..])], 1);
    frozen.commit_baseline(Some(9));
    assert_eq!(tracker.baseline(), Some(5));
    drop(frozen);
    assert!(freeze(&tracker, vec![raw("a", &new)], &since(Some(5))).unwrap().runs().is_empty());
    let frozen = freeze(&tracker, vec![raw("a", &new)], &since(Some(5))).unwrap();
    tracker.forget();
    frozen.commit_baseline(Some(6));
    assert_eq!(tracker.baseline(), None);
}

#[test]
fn a_million_small_regions_take_little_time() {
    let tracker = Arc::new(ChangeTracker::new());
    let bytes = [7u8; 24];
    let regions: Vec<_> = (0..1_000_000).map(|n| raw(&format!("group/{n}"), &bytes)).collect();
    let mut source = MemorySource::new(Arc::clone(&tracker), regions, vec![], 2);
    let worked = || Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap();
    let start = worked();
    let frozen = source.freeze(&since(None)).unwrap();
    let first = worked() - start;
    assert_eq!(frozen.streams()[0].bytes, 32 * 1_000_000 - 8);
    frozen.commit_baseline(Some(1));
    drop(frozen);
    let start = worked();
    assert_eq!(source.freeze(&since(Some(1))).unwrap().runs(), []);
    let second = worked() - start;
    println!("a million regions: first freeze {first:?}, second {second:?}");
    // Processor time, with a generous limit for unoptimised builds: the test is about the order of
    // growth.
    assert!(first + second < Duration::from_secs(10), "{first:?}, {second:?}");
}
