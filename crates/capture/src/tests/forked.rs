//! Freezes by fork, from the outside.

use super::*;
use crate::fork::tests::alone;
use outlive_io::AlignedBuf;

const MIB: usize = 1 << 20;

fn request(freeze: FreezeMode, freeze_bytes_max: u64) -> FreezeRequest {
    FreezeRequest { freeze, freeze_bytes_max, ..FreezeRequest::default() }
}

/// Whether the runs hold the bytes `want`.
fn is_held(frozen: &dyn Frozen, want: &[u8]) -> bool {
    let mut at = 0;
    (0..frozen.runs().len()).all(|run| {
        let bytes = held(frozen, run);
        at += bytes.len();
        bytes == want[at - bytes.len()..at]
    }) && at == want.len()
}

#[test]
fn memory_beyond_the_budget_is_forked_and_the_program_goes_on() {
    let _turn = alone();
    let tracker = Arc::new(ChangeTracker::new());
    let mut memory = AlignedBuf::zeroed(96 * MIB);
    memory.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 5000) as u8);
    let then = memory.to_vec();
    let asked = request(FreezeMode::Auto, MIB as u64);
    let frozen = freeze(&tracker, vec![raw("big", &memory)], &asked).unwrap();
    let report = frozen.report();
    assert!(report.freeze.starts_with("fork: 96.0 MiB exceed freeze_bytes_max = 1.0 MiB"));
    assert_eq!(report.tracker, "hash");
    assert_eq!((report.forked_bytes, report.copied_bytes, report.live_bytes), (96 << 20, 0, 0));
    assert_eq!(frozen.live_runs(), 0);
    memory.fill(0xEE);
    assert!(is_held(&*frozen, &then));
    frozen.commit_baseline(Some(1));
    drop(frozen);
    // The pages read from the child are the baseline: all of them have changed since.
    let next = freeze(&tracker, vec![raw("big", &memory)], &since(Some(1))).unwrap();
    assert_eq!(next.changed_pages() as usize, 96 * MIB / PAGE_BYTES);
    assert!(next.report().freeze.starts_with("copy: 96.0 MiB fit"), "{}", next.report().freeze);
}

#[test]
fn a_stream_that_was_not_read_is_learnt_from_the_child() {
    let _turn = alone();
    let tracker = Arc::new(ChangeTracker::new());
    let mut memory = AlignedBuf::zeroed(4 * MIB);
    let frozen = freeze(&tracker, vec![raw("a", &memory)], &request(FreezeMode::Fork, 0)).unwrap();
    memory[9] = 1;
    frozen.commit_baseline(Some(1));
    drop(frozen);
    let next = freeze(&tracker, vec![raw("a", &memory)], &since(Some(1))).unwrap();
    assert_eq!(next.runs(), [run(0, 0, 1)]);
}

#[test]
fn shared_memory_is_copied_beside_a_fork_or_keeps_the_program() {
    let _turn = alone();
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let tracker = Arc::new(ChangeTracker::new());
    let mut private = AlignedBuf::zeroed(4 * MIB);
    private.fill(1);
    // SAFETY: a new mapping of our own that is never unmapped.
    let shared = unsafe {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let start = mmap_anonymous(std::ptr::null_mut(), 2 * MIB, prot, MapFlags::SHARED).unwrap();
        std::slice::from_raw_parts_mut(start.cast::<u8>(), 2 * MIB)
    };
    shared.fill(2);
    let regions = |shared: &[u8], private: &[u8]| vec![raw("s", shared), raw("p", private)];
    for (budget, live) in [(2 * MIB, 0), (2 * MIB - 1, 3)] {
        let asked = request(FreezeMode::Fork, budget as u64);
        let frozen = freeze(&tracker, regions(shared, &private), &asked).unwrap();
        let report = frozen.report();
        assert_eq!(frozen.live_runs(), live, "{}", report.freeze);
        if live == 0 {
            assert_eq!((report.copied_bytes, report.forked_bytes), (2 << 20, 4 << 20));
            shared.fill(8);
            private.fill(9);
            assert!(is_held(&*frozen, &[vec![2; 2 * MIB], vec![1; 4 * MIB]].concat()));
            shared.fill(2);
            private.fill(1);
        } else {
            assert!(report.freeze.starts_with("copy: of 6.0 MiB, 2.0 MiB are shared"));
        }
    }
}

#[test]
fn a_child_that_is_killed_fails_the_save_and_the_next_one_copies() {
    let _turn = alone();
    let tracker = Arc::new(ChangeTracker::new());
    let memory = AlignedBuf::zeroed(4 * MIB);
    let asked = request(FreezeMode::Fork, 0);
    let frozen = freeze(&tracker, vec![raw("a", &memory)], &asked).unwrap();
    assert_eq!(child_killed(&*frozen).kind(), ErrorKind::Retry);
    frozen.commit_baseline(None);
    drop(frozen);
    let frozen = freeze(&tracker, vec![raw("a", &memory)], &asked).unwrap();
    assert!(frozen.report().freeze.starts_with("copy: no fork: an earlier child"));
    assert_eq!(frozen.live_runs(), 2);
}

#[test]
fn pages_that_the_store_has_read_are_not_read_again_when_the_save_settles() {
    let _turn = alone();
    let tracker = Arc::new(ChangeTracker::new());
    let mut memory = AlignedBuf::zeroed(4 * MIB);
    memory.fill(3);
    let asked = request(FreezeMode::Fork, 0);
    let frozen = freeze(&tracker, vec![raw("a", &memory)], &asked).unwrap();
    assert!(is_held(&*frozen, &memory));
    child_killed(&*frozen);
    frozen.commit_baseline(Some(1));
    drop(frozen);
    let next = freeze(&tracker, vec![raw("a", &memory)], &since(Some(1))).unwrap();
    assert_eq!(next.runs(), [], "its hashes were there, without the child");
}

/// Kills the child, and returns the error that reports it.
fn child_killed(frozen: &dyn Frozen) -> Error {
    let children = std::fs::read_to_string(format!("/proc/self/task/{}/children", holder()));
    let child: i32 = children.unwrap().trim().parse().unwrap();
    let pid = rustix::process::Pid::from_raw(child).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    loop {
        // The signal takes some time to arrive.
        if let Err(error) = frozen.bytes(0, &mut Vec::new()) {
            return error;
        }
    }
}

/// Returns the thread that forked.
fn holder() -> String {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let named = |path: &std::path::Path| std::fs::read_to_string(path.join("comm"));
    let mut found = threads
        .map(|entry| entry.unwrap().path())
        .filter(|path| named(path).is_ok_and(|name| name.trim() == "outlive-fork"));
    found.next().unwrap().file_name().unwrap().to_str().unwrap().to_owned()
}
