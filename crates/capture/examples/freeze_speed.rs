//! Measures freezes of 1 GiB of which a share of the pages changed since the last one, and of a
//! million small regions. Also measures a fork, with and without arming, and the speed of reading
//! its image, from the child and in place. Last, measures how fast restored chunks are scattered.
#![allow(unsafe_code)] // measures regions in the program's memory

use outlive_capture::fill::{MutRegion, Scatter};
use outlive_capture::track::{TrackerChoice, TrackerKind};
use outlive_capture::{ChangeTracker, MemorySource, Region, default_threads};
use outlive_chunk::{hash_pages, parallel};
use outlive_io::AlignedBuf;
use outlive_types::{FreezeMode, FreezeRequest, PAGE_BYTES, PageSource, SeededRng};
use std::hint::black_box;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Length of a read of the store.
const CHUNK_BYTES: usize = 64 << 10;

fn main() {
    let threads = default_threads();
    println!("{threads} threads");
    // First, while the heap is empty: a fork would copy it as well.
    forked(threads);
    for kind in [TrackerKind::Hash, TrackerKind::WpAsync] {
        large_region(threads, kind);
    }
    small_regions(threads);
    scatter(threads);
}

fn large_region(threads: usize, kind: TrackerKind) {
    let bytes = 1usize << 30;
    let mut state: Vec<u8> = (0..bytes).map(|at| (at / 7) as u8).collect();
    let rng = SeededRng::new(1);
    let tracker = Arc::new(ChangeTracker::with(TrackerChoice::Only(kind)));
    for (epoch, dirty_percent) in (1..).zip([100, 0, 0, 1, 1, 10, 10, 100, 100, 0, 0, 1, 1]) {
        for page in state.chunks_mut(PAGE_BYTES) {
            if rng.below(100) < dirty_percent {
                page[0] = page[0].wrapping_add(1);
            }
        }
        // SAFETY: `state` does not change until the next round, when the baseline is committed.
        let region = unsafe { Region::from_raw("state", "|u1", vec![], state.as_ptr(), bytes) };
        let mut source = MemorySource::new(Arc::clone(&tracker), vec![region], vec![], threads);
        let what = format!("{kind}: freeze of 1 GiB, {dirty_percent} % dirty");
        let frozen = timed(&what, || source.freeze(&request(&tracker))).expect("valid region");
        frozen.commit_baseline(Some(epoch));
    }
}

fn small_regions(threads: usize) {
    let tracker = Arc::new(ChangeTracker::new());
    let number = |n: u32| Region::from_bytes(format!("group/{n}"), "<u4", vec![6], vec![7; 24]);
    let regions: Vec<_> = (0..1_000_000).map(number).collect();
    let mut source = MemorySource::new(Arc::clone(&tracker), regions, vec![], threads);
    for epoch in 1..4 {
        let what = "freeze of a million regions of 24 bytes";
        let frozen = timed(what, || source.freeze(&request(&tracker))).expect("valid regions");
        frozen.commit_baseline(Some(epoch));
    }
}

/// With hashes, all pages are read from the child. With `wp-async`, the memory is armed at the
/// freeze, and pages that the program has not written since (here all) are read in place. Both take
/// turns, for three rounds.
fn forked(threads: usize) {
    let length = 1usize << 30;
    for (pages, small) in [("huge", false), ("small", true)] {
        for round in 1..=3 {
            let mut state = AlignedBuf::zeroed(length);
            if small {
                state.use_small_pages();
            }
            state.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 7) as u8);
            let what = format!("{pages} pages, round {round}");
            let pieces = (0..length).step_by(CHUNK_BYTES).collect();
            let copied = processor_ms_of(pieces, threads, |at, scratch| {
                scratch.clear();
                scratch.extend_from_slice(black_box(&state[at..at + CHUNK_BYTES]));
                black_box(hash_pages(scratch));
            });
            println!("memcpy of 1 GiB and hashes, {what}: {copied:.0} ms of processor time");
            for kind in [TrackerKind::Hash, TrackerKind::WpAsync] {
                fork(&state, kind, threads, &what);
            }
        }
    }
}

fn fork(state: &[u8], kind: TrackerKind, threads: usize, what: &str) {
    let tracker = Arc::new(ChangeTracker::with(TrackerChoice::Only(kind)));
    // SAFETY: `state` does not change as long as anything of this freeze is used.
    let region = unsafe { Region::from_raw("state", "|u1", vec![], state.as_ptr(), state.len()) };
    let mut source = MemorySource::new(Arc::clone(&tracker), vec![region], vec![], threads);
    let asked = FreezeRequest { freeze: FreezeMode::Fork, ..FreezeRequest::default() };
    let frozen = timed(&format!("{kind}: fork of 1 GiB, {what}"), || source.freeze(&asked));
    let frozen = frozen.expect("a valid region");
    assert_eq!(frozen.report().forked_bytes, state.len() as u64, "{}", frozen.report().freeze);
    let run_pages = |run: usize| 0..frozen.runs()[run].pages;
    let chunk_pages = (CHUNK_BYTES / PAGE_BYTES) as u32;
    let pieces = (0..frozen.runs().len())
        .flat_map(|run| run_pages(run).step_by(chunk_pages as usize).map(move |at| (run, at)))
        .collect();
    let read = processor_ms_of(pieces, threads, |(run, at), scratch| {
        let end = (at + chunk_pages).min(frozen.runs()[run].pages);
        black_box(frozen.read(run, at..end, scratch).expect("the child lives"));
    });
    println!("{kind}: all that was forked read and hashed, {what}: {read:.0} ms of processor time");
    frozen.commit_baseline(None);
}

/// Runs `work` for each of the pieces on `threads` threads, each with a buffer. Returns
/// milliseconds of processor time.
fn processor_ms_of<T: Send>(
    pieces: Vec<T>,
    threads: usize,
    work: impl Fn(T, &mut Vec<u8>) + Sync,
) -> f64 {
    let before = processor_ms();
    let pieces = Mutex::new(pieces.into_iter());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut scratch = Vec::new();
                let next = || pieces.lock().expect("no thread panics").next();
                while let Some(piece) = next() {
                    work(piece, &mut scratch);
                }
            });
        }
    });
    processor_ms() - before
}

/// Returns the processor time of all threads of this process.
fn processor_ms() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec there.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}

fn scatter(threads: usize) {
    let chunk = vec![1u8; CHUNK_BYTES];
    let target = Scatter::new(vec![MutRegion::zeroed(1 << 30)]).expect("valid memory");
    for memory in ["fresh", "used"] {
        let offsets = (0..1u64 << 30).step_by(CHUNK_BYTES).collect();
        timed(&format!("scatter of 1 GiB in 64 KiB chunks to {memory} memory"), || {
            parallel(offsets, threads, |offset| target.write(0, offset, &chunk));
        });
    }
}

fn request(tracker: &ChangeTracker) -> FreezeRequest {
    let baseline = tracker.baseline();
    FreezeRequest { baseline, freeze_bytes_max: u64::MAX, ..FreezeRequest::default() }
}

fn timed<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    println!("{what}: {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
    result
}
