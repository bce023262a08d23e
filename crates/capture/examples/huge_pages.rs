//! Measures the value of huge pages to a program, and the cost of recreating those that tracking
//! has split: the figures of docs/design/011-tracking.md.
#![allow(unsafe_code)] // tracks memory of its own

use outlive_capture::track::{PageTracker, Pages, Refusal, WpAsync};
use outlive_io::AlignedBuf;
use outlive_types::{BLOCK_BYTES, PAGE_BYTES};
use std::time::Instant;

const BYTES: usize = 1 << 30;
const ACCESSES: u64 = 4_000_000;

fn main() -> Result<(), Refusal> {
    let mut memory = AlignedBuf::zeroed(BYTES);
    memory.fill(1);
    let start = memory.as_ptr() as usize;
    let pages = Pages { start, end: start + BYTES };
    let tracker = WpAsync::open()?;
    // SAFETY: the buffer lives to the end of `main`.
    unsafe { tracker.watch(pages) }?;
    let huge = || blocks(pages).filter(|block| tracker.is_huge(*block)).count();
    println!("{} of {} blocks are huge pages", huge(), BYTES / BLOCK_BYTES);
    println!("random access, huge pages:        {:6.1} ns", random_access(&mut memory));
    tracker.arm(pages)?;
    let split = time(|| {
        memory.iter_mut().step_by(BLOCK_BYTES).for_each(|byte| *byte = byte.wrapping_add(1))
    });
    let split_us = split * 1e6 / (BYTES / BLOCK_BYTES) as f64;
    println!("first write to an armed one:      {split_us:6.1} us; {} are left", huge());
    memory.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = byte.wrapping_add(1));
    println!("random access, split by tracking: {:6.1} ns", random_access(&mut memory));
    tracker.disarm(pages)?;
    let collapse = time(|| blocks(pages).for_each(|block| _ = tracker.collapse(block)));
    let collapse_us = collapse * 1e6 / (BYTES / BLOCK_BYTES) as f64;
    println!("to collapse a block:              {collapse_us:6.1} us; {} are huge again", huge());
    println!("random access, collapsed:         {:6.1} ns", random_access(&mut memory));
    tracker.unwatch(pages);
    Ok(())
}

fn blocks(pages: Pages) -> impl Iterator<Item = Pages> {
    let blocks = (pages.start..pages.end).step_by(BLOCK_BYTES);
    blocks.map(|start| Pages { start, end: start + BLOCK_BYTES })
}

/// Nanoseconds of an access to a random word, read and written (xorshift, Marsaglia 2003).
fn random_access(memory: &mut AlignedBuf) -> f64 {
    let mut state = 0x2545_F491_4F6C_DD1D_u64;
    let seconds = time(|| {
        for _ in 0..ACCESSES {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let byte = &mut memory[(state % BYTES as u64) as usize];
            *byte = byte.wrapping_add(1);
        }
    });
    seconds * 1e9 / ACCESSES as f64
}

fn time(work: impl FnOnce()) -> f64 {
    let started = Instant::now();
    work();
    started.elapsed().as_secs_f64()
}
