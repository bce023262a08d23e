//! `outlive-bench restore`: verified restores against raw reads.

use super::machine::Cpu;
use super::raw::Baseline;
use super::report::{Goal, Unit};
use super::state::Memory;
use super::{Bench, gb_per_s, gib_bytes, median, report::Report, state};
use crate::args::IoArgs;
use outlive_io::AlignedBuf;
use outlive_pool::Environment;
use outlive_types::{BLOCK_BYTES, PAGE_BYTES, Result};
use serde_json::json;
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

/// Lowest speed, as a share of the raw speed.
const SHARE_MIN: f64 = 0.90;
const SEED: u64 = 3;
/// Memory whose first touches are measured as well, in each kind of pages.
const TOUCHED_BYTES_MAX: u64 = 512 << 20;

/// Results of the rounds; speeds in GB/s.
#[derive(Default)]
struct Rounds {
    raws: Vec<f64>,
    fresh: Vec<f64>,
    used: Vec<f64>,
    /// Processor seconds for each GB.
    cpu: Vec<f64>,
    /// First touches of huge pages and of small ones, in ms for each GiB.
    touches: [Vec<f64>; 2],
}

pub fn run(mut bench: Bench, args: &IoArgs) -> Result<Report> {
    let total_bytes = gib_bytes(args.gib);
    bench.step("saving the state");
    let path = bench.scratch.join("pool");
    {
        let pool = state::pool(&path)?;
        state::save(&state::job(&pool)?, &mut state::source(total_bytes, SEED)?)?;
    }
    bench.scratch.quiet()?;
    let mut raw = Baseline::of_reads(&mut bench, total_bytes)?;
    let mut rounds = Rounds::default();
    // Not counted: the memory is then as used in the first round as in the others.
    bench.step("a first restore, which leaves memory as the rounds do");
    let mut memory = Memory::fresh(total_bytes)?;
    restore(&path, &memory)?;
    let (before, begun) = (Cpu::now(), Instant::now());
    for run in 1..=args.runs {
        bench.step(&format!("round {run} of {}: raw reads", args.runs));
        rounds.raws.push(raw.read_round(&bench.scratch)?);
        // The old memory is freed before the clock starts.
        drop(std::mem::replace(&mut memory, Memory::fresh(0)?));
        bench.step(&format!("round {run} of {}: first touches of fresh memory", args.runs));
        let ms = first_touches(total_bytes.min(TOUCHED_BYTES_MAX) as usize);
        rounds.touches.iter_mut().zip(ms).for_each(|(touches, ms)| touches.push(ms));
        bench.step(&format!("round {run} of {}: restores", args.runs));
        let started = Instant::now();
        memory = Memory::fresh(total_bytes)?;
        restore(&path, &memory)?;
        rounds.fresh.push(gb_per_s(total_bytes, started.elapsed().as_secs_f64()));
        let (cpu_before, started) = (Cpu::now(), Instant::now());
        restore(&path, &memory)?;
        rounds.used.push(gb_per_s(total_bytes, started.elapsed().as_secs_f64()));
        rounds.cpu.push(Cpu::now().since(cpu_before).own_s / (total_bytes as f64 / 1e9));
    }
    bench.report.others(Cpu::now().since(before), begun.elapsed().as_secs_f64());
    bench.step("checking what was restored");
    state::check(memory, SEED)?;
    rounds.figures(&mut bench.report);
    bench.report.note(format!(
        "Medians of {} rounds, in each raw and ours in turn; {} GiB, from opening the pool to the last \
         verified byte, hashed for the save that follows; nothing of it in the page cache. Fresh \
         memory pays its page faults. First touches are of both kinds, block by block in turn. Raw is \
         the faster, round by round, of: {}.",
        args.runs,
        args.gib,
        raw.names()
    ));
    bench.report.detail("raw_rounds", raw.details());
    rounds.details(&mut bench.report);
    Ok(bench.report)
}

impl Rounds {
    fn figures(&self, report: &mut Report) {
        let shares = |ours: &[f64]| -> Vec<f64> {
            ours.iter().zip(&self.raws).map(|(o, r)| o / r).collect()
        };
        let (used_shares, fresh_shares) = (shares(&self.used), shares(&self.fresh));
        report.add("raw sequential read, O_DIRECT (best)", median(&self.raws), Unit::GbPerS);
        report.add("restore into used memory", median(&self.used), Unit::GbPerS);
        let goal = Goal::AtLeast(SHARE_MIN);
        report.goal(
            "restore into used memory, share of raw",
            median(&used_shares),
            Unit::Ratio,
            goal,
        );
        report.add(
            "restore into used memory, processor time for each GB",
            median(&self.cpu),
            Unit::Seconds,
        );
        report.add("restore into fresh memory", median(&self.fresh), Unit::GbPerS);
        report.goal(
            "restore into fresh memory, share of raw",
            median(&fresh_shares),
            Unit::Ratio,
            goal,
        );
        let [huge, small] = &self.touches;
        report.add("fresh memory, huge pages: first touches", median(huge), Unit::MsPerGib);
        report.add("fresh memory, 4 KiB pages: first touches", median(small), Unit::MsPerGib);
        if let Some(chosen) = outlive_io::fresh::told() {
            report.note(format!("Restores into fresh memory have come to prefer {chosen}."));
        }
    }

    fn details(&self, report: &mut Report) {
        let [huge, small] = &self.touches;
        report.detail("first_touches_huge_ms_per_gib", json!(huge));
        report.detail("first_touches_small_ms_per_gib", json!(small));
        report.detail("raw_gb_per_s", json!(self.raws));
        report.detail("used_gb_per_s", json!(self.used));
        report.detail("fresh_gb_per_s", json!(self.fresh));
    }
}

/// Touches each page of fresh memory, as a program does. Returns milliseconds a GiB in huge and in
/// 4 KiB pages. Blocks of both kinds alternate and are kept to the end: no kind gets memory that
/// the other freed, and changes of the machine affect both.
fn first_touches(length: usize) -> [f64; 2] {
    let blocks = (length / BLOCK_BYTES).max(1);
    let mut memory = [(); 2].map(|()| AlignedBuf::zeroed(blocks * BLOCK_BYTES));
    memory[1].use_small_pages();
    let mut took = [Duration::ZERO; 2];
    for block in 0..blocks {
        for kind in [block % 2, (block + 1) % 2] {
            let block = &mut memory[kind][block * BLOCK_BYTES..][..BLOCK_BYTES];
            let started = Instant::now();
            for page in block.chunks_mut(PAGE_BYTES) {
                page[0] = 1;
            }
            black_box(block);
            took[kind] += started.elapsed();
        }
    }
    let gib = (blocks * BLOCK_BYTES) as f64 / f64::from(1 << 30);
    took.map(|took| took.as_secs_f64() * 1e3 / gib)
}

/// Restores as a program does that restarts: opens everything, and restores the newest checkpoint.
fn restore(path: &Path, memory: &Memory) -> Result<()> {
    state::restore(&outlive_pool::open(path, Environment::system())?, memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_pages_are_touched_as_often() {
        for length in [0, 5 * BLOCK_BYTES + 1] {
            let [huge, small] = first_touches(length);
            assert!(huge > 0.0 && small > 0.0 && huge.is_finite() && small.is_finite());
        }
    }
}
