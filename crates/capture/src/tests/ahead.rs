//! Freezes of memory that was partly copied ahead.

use super::*;
use crate::ahead::tests::Told;
use crate::track::Pages;
use outlive_io::AlignedBuf;

const PAGES: usize = 1100;

/// Returns the pages of a region that begins `shift` bytes after a page's start; the tracker
/// watches all of them.
fn watched(told: &Told) -> Pages {
    told.pages(0..PAGES)
}

fn request(freeze: FreezeMode, freeze_bytes_max: u64) -> FreezeRequest {
    FreezeRequest { baseline: Some(1), freeze, freeze_bytes_max, ..FreezeRequest::default() }
}

#[test]
fn copies_ahead_and_at_the_freeze_make_one_image() {
    for shift in [0, 16, 4000] {
        let tracker = Arc::new(ChangeTracker::new());
        let mut memory = AlignedBuf::zeroed(PAGES * PAGE_BYTES);
        memory.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 100) as u8);
        let end = PAGES * PAGE_BYTES - 77;
        let first = freeze(&tracker, vec![raw("r", &memory[shift..end])], &since(None)).unwrap();
        first.commit_baseline(Some(1));
        drop(first);
        let told = Arc::new(Told::new(memory.as_ptr().addr()));
        let write = |memory: &mut AlignedBuf, pages: std::ops::Range<usize>, value: u8| {
            for page in pages {
                memory[page * PAGE_BYTES..][..PAGE_BYTES].fill(value);
                told.write(page);
            }
        };
        write(&mut memory, 3..40, 0xA1);
        write(&mut memory, 500..530, 0xA2);
        write(&mut memory, 1090..PAGES, 0xA3);
        tracker.copy_ahead(told.clone(), &[watched(&told)], &[], 1 << 20).unwrap();
        told.wait_for_copies();
        // Some pages are written again, others for the first time.
        write(&mut memory, 10..12, 0xB1);
        write(&mut memory, 528..535, 0xB2);
        let frozen = freeze(
            &tracker,
            vec![raw("r", &memory[shift..end])],
            &request(FreezeMode::Precopy, 2 << 20),
        )
        .unwrap();
        let report = frozen.report();
        assert!(report.freeze.starts_with("precopy: 292.0 KiB had been"), "{}", report.freeze);
        assert!(report.ahead_bytes >= 60 * 4096, "{report:?}");
        assert_eq!(frozen.live_runs(), 0);
        let then = memory[shift..end].to_vec();
        memory.fill(0xEE);
        let mut pages = 0;
        for (number, run) in frozen.runs().iter().enumerate() {
            let at = run.first_page as usize * PAGE_BYTES;
            let bytes = held(&*frozen, number);
            assert!(bytes == then[at..at + bytes.len()], "run {number} at {at}, shift {shift}");
            pages += run.pages as usize;
            // Pieces, too, may be read from anywhere.
            let mut scratch = Vec::new();
            for first in 0..run.pages {
                let end = run.pages.min(first + 3);
                let part = frozen.read(number, first..end, &mut scratch).unwrap();
                let at = at + first as usize * PAGE_BYTES;
                assert!(part == &then[at..at + part.len()]);
            }
        }
        assert!(pages >= 37 + 35 + 10);
    }
}

#[test]
fn a_tracker_that_refuses_makes_copies_void() {
    let tracker = Arc::new(ChangeTracker::new());
    let mut memory = AlignedBuf::zeroed(PAGES * PAGE_BYTES);
    let told = Arc::new(Told::new(memory.as_ptr().addr()));
    memory.fill(1);
    told.refuse();
    tracker.copy_ahead(told.clone(), &[watched(&told)], &[], 1 << 20).unwrap();
    let frozen = freeze(&tracker, vec![raw("r", &memory)], &since(None)).unwrap();
    let report = frozen.report();
    assert!(report.freeze.starts_with("precopy: what was copied is void: "), "{}", report.freeze);
    assert_eq!((report.ahead_bytes, report.copied_bytes), (0, memory.len() as u64));
}

#[test]
fn without_copies_a_precopy_is_reported_as_a_copy() {
    let tracker = Arc::new(ChangeTracker::new());
    let memory = AlignedBuf::zeroed(PAGES * PAGE_BYTES);
    let asked = request(FreezeMode::Precopy, 64 << 20);
    let frozen = freeze(&tracker, vec![raw("r", &memory)], &asked).unwrap();
    let report = frozen.report();
    assert!(report.freeze.starts_with("precopy: nothing had been copied ahead; copy: 4.3 MiB fit"));
}
