//! Writers that never pause. Writes during a freeze may be in its image or not. Writes completed
//! before it must be in the image, and writes after it must be in the next one.

use crate::ground_truth::program::{Array, Image, apply, begin_image};
use crate::ground_truth::{choices, intervals, tracker};
use outlive_capture::MemorySource;
use outlive_types::{FreezeMode, FreezeRequest, PAGE_BYTES, PageSource, SeededRng};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::{scope, sleep};
use std::time::Duration;

/// Numbered words, several to a page, each with one writer.
const PAGES: usize = 1400;
const WRITERS: usize = 2;
const APART: usize = 512;

#[test]
fn every_completed_write_is_in_the_next_image() {
    for (name, choice) in choices() {
        let tracker = tracker(name, choice);
        let array = Array::new("numbers", 16, PAGES * PAGE_BYTES);
        let count = array.length() / APART;
        let numbers = || (0..count).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
        let (issued, completed) = (numbers(), numbers());
        let word = |at: usize| {
            let start = &raw const array.bytes()[at * APART];
            // SAFETY: within the array, which lives longer; its start and distances are multiples
            // of 8. Other threads read it meanwhile, which `Region::from_raw` forbids; this test is
            // about exactly that. The machine writes aligned words whole.
            unsafe { &*start.cast::<AtomicU64>() }
        };
        let end = AtomicBool::new(false);
        scope(|scope| {
            for writer in 0..WRITERS {
                let (issued, completed, end, word) = (&issued, &completed, &end, &word);
                scope.spawn(move || {
                    let rng = SeededRng::new(writer as u64);
                    let mut number = 0;
                    while !end.load(SeqCst) {
                        number += 1;
                        // A hot spot, and sometimes anywhere: some blocks are dense, others not.
                        let range = if number % 20 == 0 { count } else { count / 50 };
                        let at = rng.below(range as u64) as usize / WRITERS * WRITERS + writer;
                        if at < count {
                            issued[at].store(number, SeqCst);
                            word(at).store(number, SeqCst);
                            completed[at].store(number, SeqCst);
                        }
                        if number % 16 == 0 {
                            sleep(Duration::from_micros(200));
                        }
                    }
                });
            }
            let load = |numbers: &[AtomicU64]| -> Vec<u64> {
                numbers.iter().map(|number| number.load(SeqCst)).collect()
            };
            let mut last = Image::new();
            let mut failure = None;
            for epoch in 1..=intervals() {
                let mut source =
                    MemorySource::new(Arc::clone(&tracker), vec![array.region()], Vec::new(), 2);
                let baseline = (epoch > 1).then_some(epoch - 1);
                let freeze = FreezeMode::ALL[epoch as usize / 3 % FreezeMode::ALL.len()];
                let freeze_bytes_max = u64::MAX;
                let request =
                    FreezeRequest { baseline, freeze, freeze_bytes_max, ..Default::default() };
                let before = load(&completed);
                let frozen = source.freeze(&request).unwrap();
                let after = load(&issued);
                let mut image = begin_image(&*frozen, &last);
                apply(&*frozen, 0..frozen.runs().len(), &mut image);
                let bytes = &image["numbers"];
                let saved =
                    |at: usize| u64::from_le_bytes(bytes[at * APART..][..8].try_into().unwrap());
                let wrong = (0..count).find(|at| !(before[*at]..=after[*at]).contains(&saved(*at)));
                if let Some(at) = wrong {
                    failure = Some(format!(
                        "{name}, epoch {epoch}: word {at} is {} in the image, {} had been written \
                         before and {} was the last by then; {:?}",
                        saved(at),
                        before[at],
                        after[at],
                        frozen.report()
                    ));
                    break;
                }
                frozen.commit_baseline(Some(epoch));
                last = image;
            }
            end.store(true, SeqCst);
            assert_eq!(failure, None);
        });
        eprintln!("{name}: {}", tracker.report());
    }
}
