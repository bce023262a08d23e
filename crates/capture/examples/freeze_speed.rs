//! How long a freeze takes of 1 GiB, of which a share of the pages changed since the last one; of a
//! million small regions; and how fast restored chunks are scattered.
#![allow(unsafe_code)] // regions in the program's memory are what is measured

use outlive_capture::fill::{MutRegion, Scatter};
use outlive_capture::track::{TrackerChoice, TrackerKind};
use outlive_capture::{HashTracker, MemorySource, Region, default_threads};
use outlive_chunk::parallel;
use outlive_types::{FreezeRequest, PAGE_BYTES, PageSource, SeededRng};
use std::sync::Arc;
use std::time::Instant;

fn main() {
    let threads = default_threads();
    println!("{threads} threads");
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
    let tracker = Arc::new(HashTracker::with(TrackerChoice::Only(kind)));
    for (epoch, dirty_percent) in (1..).zip([100, 0, 0, 1, 1, 10, 10, 100, 100, 0, 0, 1, 1]) {
        for page in state.chunks_mut(PAGE_BYTES) {
            if rng.below(100) < dirty_percent {
                page[0] = page[0].wrapping_add(1);
            }
        }
        // SAFETY: `state` stands still until the next round, by when the freeze is settled.
        let region = unsafe { Region::from_raw("state", "|u1", vec![], state.as_ptr(), bytes) };
        let mut source = MemorySource::new(Arc::clone(&tracker), vec![region], vec![], threads);
        let what = format!("{kind}: freeze of 1 GiB, {dirty_percent} % dirty");
        let frozen = timed(&what, || source.freeze(&request(&tracker))).expect("valid region");
        frozen.settle(Some(epoch));
    }
}

fn small_regions(threads: usize) {
    let tracker = Arc::new(HashTracker::new());
    let number = |n: u32| Region::from_bytes(format!("group/{n}"), "<u4", vec![6], vec![7; 24]);
    let regions: Vec<_> = (0..1_000_000).map(number).collect();
    let mut source = MemorySource::new(Arc::clone(&tracker), regions, vec![], threads);
    for epoch in 1..4 {
        let what = "freeze of a million regions of 24 bytes";
        let frozen = timed(what, || source.freeze(&request(&tracker))).expect("valid regions");
        frozen.settle(Some(epoch));
    }
}

fn scatter(threads: usize) {
    const CHUNK_BYTES: usize = 64 << 10;
    let chunk = vec![1u8; CHUNK_BYTES];
    let target = Scatter::new(vec![MutRegion::zeroed(1 << 30)]).expect("valid memory");
    for memory in ["fresh", "used"] {
        let offsets = (0..1u64 << 30).step_by(CHUNK_BYTES).collect();
        timed(&format!("scatter of 1 GiB in 64 KiB chunks to {memory} memory"), || {
            parallel(offsets, threads, |offset| target.write(0, offset, &chunk));
        });
    }
}

fn request(tracker: &HashTracker) -> FreezeRequest {
    let baseline = tracker.baseline();
    FreezeRequest { baseline, freeze_bytes_max: u64::MAX, ..FreezeRequest::default() }
}

fn timed<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    println!("{what}: {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
    result
}
