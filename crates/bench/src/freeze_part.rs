//! The part of `outlive-bench freeze` in which only some pages have changed: random ones, and a hot
//! spot that is copied before the freeze.

use super::report::{Goal, Unit};
use super::{Bench, gib_bytes, median, state};
use outlive_capture::OwnedSource;
use outlive_types::{Epoch, FreezeMode, FreezeRequest, PAGE_BYTES, PageSource, Result, SeededRng};
use serde_json::json;
use std::time::{Duration, Instant};

/// Longest stall with one page in a hundred dirty; the goal holds for 4 GiB.
const SPARSE_S_MAX: f64 = 0.010;
/// Longest stall on a hot spot that is copied before the freeze.
const HOT_S_MAX: f64 = 0.005;
const HOT_BYTES: usize = 64 << 20;
/// Time for which the hot program runs between two freezes; `HOT_BATCH` is its words in a batch.
const HOT_FOR: Duration = Duration::from_millis(400);
const HOT_BATCH: usize = 2000;
/// Freezes until the tracker knows which blocks are cold.
const WARM_UPS: u32 = 5;

/// Adds both patterns to the report.
pub fn run(bench: &mut Bench, gib: f64, runs: u32) -> Result<()> {
    let length = gib_bytes(gib) as usize;
    let rng = SeededRng::new(7);
    let told = |what: &str, number: u64| {
        let of = u64::from(WARM_UPS + runs);
        bench.step(&format!("{what}, freeze {number} of {of}"));
    };
    let told_sparse = |number| told("1 % of the pages", number);
    let sparse = rounds(length, runs, FreezeMode::Copy, &told_sparse, &mut |bytes| {
        for _ in 0..length / PAGE_BYTES / 100 {
            change(bytes, 0..length, &rng);
        }
    })?;
    let hot = 0..HOT_BYTES.min(length);
    let told_hot = |number| told("hot spot", number);
    let hot_spot = rounds(length, runs, FreezeMode::Precopy, &told_hot, &mut |bytes| {
        let started = Instant::now();
        while started.elapsed() < HOT_FOR {
            (0..HOT_BATCH).for_each(|_| change(bytes, hot.clone(), &rng));
        }
    })?;
    let rows = [
        ("1 % of the pages, at random: program stands", SPARSE_S_MAX, &sparse),
        ("hot spot of 64 MiB, freeze = precopy: program stands", HOT_S_MAX, &hot_spot),
    ];
    for (what, most, found) in rows {
        bench.report.goal(what, median(&found.stall_s), Unit::Seconds, Goal::AtMost(most));
        let key = what.split(':').next().unwrap_or(what);
        bench.report.detail(
            key,
            json!({ "stall_s": found.stall_s, "tracker": found.tracker, "freeze": found.freeze }),
        );
    }
    Ok(())
}

/// Results of one pattern.
#[derive(Default)]
struct PatternFigures {
    stall_s: Vec<f64>,
    tracker: String,
    freeze: String,
}

/// Repeatedly lets a program write and freezes it.
fn rounds(
    length: usize,
    runs: u32,
    freeze: FreezeMode,
    tell: &dyn Fn(Epoch),
    write: &mut dyn FnMut(&mut [u8]),
) -> Result<PatternFigures> {
    let mut source: OwnedSource = state::source(length as u64, 1)?;
    let mut found = PatternFigures::default();
    let mut scratch = Vec::new();
    for epoch in 1..=Epoch::from(WARM_UPS + runs) {
        tell(epoch);
        write(state::edit(&mut source)?);
        let baseline = (epoch > 1).then_some(epoch - 1);
        let freeze_bytes_max = u64::from(u32::MAX);
        let request =
            FreezeRequest { baseline, freeze, freeze_bytes_max, ..FreezeRequest::default() };
        let started = Instant::now();
        let frozen = source.freeze(&request)?;
        if epoch > Epoch::from(WARM_UPS) {
            found.stall_s.push(started.elapsed().as_secs_f64());
        }
        // As the persist phase does, reads all frozen pages.
        for run in 0..frozen.runs().len() {
            frozen.bytes(run, &mut scratch)?;
        }
        let report = frozen.report();
        (found.tracker, found.freeze) = (report.tracker, report.freeze);
        frozen.commit_baseline(Some(epoch));
    }
    Ok(found)
}

/// Changes a word at a random position.
fn change(bytes: &mut [u8], within: std::ops::Range<usize>, rng: &SeededRng) {
    let at = within.start + (rng.next_u64() % within.len() as u64) as usize;
    bytes[at] = bytes[at].wrapping_add(1);
}
