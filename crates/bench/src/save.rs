//! `outlive-bench save`: first saves against raw writes; saves with nothing and with one page
//! changed.

use super::machine::Cpu;
use super::raw::Baseline;
use super::report::{Goal, Report, Unit};
use super::{Bench, gb_per_s, gib_bytes, median, state};
use crate::args::SaveArgs;
use outlive_capture::default_threads;
use outlive_pool::Tuning;
use outlive_types::{Result, SeededRng};
use serde_json::json;
use std::time::Instant;

/// Lowest speed, as a share of the raw speed.
const SHARE_MIN: f64 = 0.95;
/// Most bytes that a save without changes writes.
const UNCHANGED_BYTES_MAX: f64 = 16.0 * 1024.0;
/// Most bytes that a save with one changed page writes.
const ONE_PAGE_BYTES_MAX: f64 = 48.0 * 1024.0;

/// Results of the rounds.
#[derive(Default)]
struct Rounds {
    raw: Vec<f64>,
    saves: Vec<f64>,
    shares: Vec<f64>,
    stalls: Vec<f64>,
    unchanged: Vec<f64>,
    unchanged_commit: Vec<f64>,
    unchanged_bytes: u64,
    one_page_commit: Vec<f64>,
    one_page_bytes: u64,
    first_new_bytes: u64,
    /// Processor seconds of the first save for each GB.
    cpu: Vec<f64>,
}

pub fn run(mut bench: Bench, save: &SaveArgs) -> Result<Report> {
    let args = &save.io;
    let total_bytes = gib_bytes(args.gib);
    let mut raw = Baseline::of_writes(&mut bench, total_bytes)?;
    bench.step("making the state");
    let mut source = state::source(total_bytes, 1)?;
    if save.state == "sparse" {
        state::thin_out(state::edit(&mut source)?);
    }
    let tuning = || Tuning {
        compression: save.compression.clone(),
        freeze: save.freeze.clone(),
        ..Tuning::default()
    };
    let rng = SeededRng::new(2);
    let mut rounds = Rounds::default();
    let (before, started) = (Cpu::now(), Instant::now());
    for run in 1..=args.runs {
        bench.step(&format!("round {run} of {}: raw writes", args.runs));
        let raw_speed = raw.write_round(&bench.scratch)?;
        bench.step(&format!("round {run} of {}: saves", args.runs));
        bench.scratch.clear("pool")?;
        let pool = state::pool_with(&bench.scratch.join("pool"), tuning())?;
        source.tracker().forget();
        {
            let job = state::job(&pool)?;
            let cpu = Cpu::now();
            let first = state::save(&job, &mut source)?;
            rounds.cpu.push(Cpu::now().since(cpu).own_s / (total_bytes as f64 / 1e9));
            let speed = gb_per_s(total_bytes, first.total.as_secs_f64());
            rounds.raw.push(raw_speed);
            rounds.saves.push(speed);
            rounds.shares.push(speed / raw_speed);
            rounds.stalls.push(first.stall.as_secs_f64());
            rounds.first_new_bytes = first.new_bytes;

            let nothing = state::save(&job, &mut source)?;
            rounds.unchanged.push(nothing.stall.as_secs_f64());
            rounds.unchanged_commit.push(nothing.total.as_secs_f64());
            rounds.unchanged_bytes = rounds.unchanged_bytes.max(nothing.new_bytes);

            let page = rng.below(outlive_types::pages_of(total_bytes));
            state::change_page(state::edit(&mut source)?, page, &rng);
            let one = state::save(&job, &mut source)?;
            rounds.one_page_commit.push(one.total.as_secs_f64());
            rounds.one_page_bytes = rounds.one_page_bytes.max(one.new_bytes);
        }
        bench.scratch.clear("pool")?;
    }
    bench.report.others(Cpu::now().since(before), started.elapsed().as_secs_f64());
    report(&mut bench.report, save, total_bytes, &rounds, &raw);
    Ok(bench.report)
}

fn report(report: &mut Report, save: &SaveArgs, total_bytes: u64, found: &Rounds, raw: &Baseline) {
    let (threads, args) = (default_threads(), &save.io);
    let hashing = gb_per_s(total_bytes, median(&found.unchanged)) / threads as f64;
    report.add("raw sequential write, O_DIRECT, synced (best)", median(&found.raw), Unit::GbPerS);
    report.add("first save, call to commit", median(&found.saves), Unit::GbPerS);
    let share = median(&found.shares);
    report.goal("first save, share of raw", share, Unit::Ratio, Goal::AtLeast(SHARE_MIN));
    report.add("first save, program stands still", median(&found.stalls), Unit::Seconds);
    report.add("first save, processor time for each GB", median(&found.cpu), Unit::Seconds);
    let overhead = found.first_new_bytes as f64 / total_bytes as f64;
    report.add("first save, bytes written / state", overhead, Unit::Ratio);
    report.add("nothing changed: state looked through, per core", hashing, Unit::GbPerS);
    report.add("nothing changed: program stands still", median(&found.unchanged), Unit::Seconds);
    report.add("nothing changed: call to commit", median(&found.unchanged_commit), Unit::Seconds);
    let (none, one) = (found.unchanged_bytes as f64, found.one_page_bytes as f64);
    let most = Goal::AtMost(UNCHANGED_BYTES_MAX);
    report.goal("nothing changed: bytes written", none, Unit::Bytes, most);
    report.add("one page changed: call to commit", median(&found.one_page_commit), Unit::Seconds);
    let most = Goal::AtMost(ONE_PAGE_BYTES_MAX);
    report.goal("one page changed: bytes written", one, Unit::Bytes, most);
    report.note(format!(
        "Medians of {} rounds, in each raw and ours in turn; {} GiB of {}, compression {}, \
         freeze {}, {threads} threads. Raw is the faster, round by round, of: {}.",
        args.runs,
        args.gib,
        save.state,
        save.compression,
        save.freeze,
        raw.names()
    ));
    report.detail("raw_rounds", raw.details());
    report.detail("raw_gb_per_s", json!(found.raw));
    report.detail("save_gb_per_s", json!(found.saves));
    report.detail("shares", json!(found.shares));
    report.detail("unchanged_stall_s", json!(found.unchanged));
    report.detail("unchanged_commit_s", json!(found.unchanged_commit));
    report.detail("one_page_commit_s", json!(found.one_page_commit));
}
