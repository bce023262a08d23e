//! `outlive-bench steady`: saves at a fixed rate for minutes. It shows whether the work keeps up,
//! and whether memory and the number of objects stay in bounds.

use super::machine::{reset_peak, resident};
use super::report::{Goal, Report, Unit};
use super::{Bench, median, state};
use crate::args::SteadyArgs;
use outlive_store::{SaveHandle, SaveStats};
use outlive_types::{Error, JobName, Result, SeededRng, pages_of};
use serde_json::json;
use std::time::{Duration, Instant};

/// Longest median time to commit in the last tenth, in times of the first tenth.
const GROWTH_MAX: f64 = 1.5;
const MIB: f64 = 1024.0 * 1024.0;
/// Staging, frozen copies, index: the bounds that do not depend on the state.
const FIXED_BYTES: f64 = 192.0 * MIB;
const PER_GIB_BYTES: f64 = 6.0 * MIB;

/// Results of a run at a steady rate.
#[derive(Default)]
struct SteadyRun {
    saves: Vec<SaveStats>,
    skipped: u64,
    /// Samples of the resident memory.
    resident: Vec<u64>,
}

pub fn run(mut bench: Bench, args: &SteadyArgs) -> Result<Report> {
    let state_bytes = args.mib << 20;
    bench.step("making the state");
    let mut source = state::source(state_bytes, 6)?;
    let pool = state::pool(&bench.scratch.join("pool"))?;
    let job = state::job(&pool)?;
    let program_bytes = resident().now_bytes;
    state::save(&job, &mut source)?;
    let peak_is_fresh = reset_peak();
    let found = steady(&mut bench, args, &job, &mut source)?;
    let peak_bytes = resident().peak_bytes.saturating_sub(program_bytes) as f64;

    let commits: Vec<f64> = found.saves.iter().map(|s| s.total.as_secs_f64()).collect();
    let stalls: Vec<f64> = found.saves.iter().map(|s| s.stall.as_secs_f64()).collect();
    let tenth = commits.len().div_ceil(10);
    let (first, last) = (median(&commits[..tenth]), median(&commits[commits.len() - tenth..]));
    let tenth = found.resident.len().div_ceil(10);
    let early = found.resident.iter().take(tenth.max(2)).max().copied().unwrap_or(0);
    let late = found.resident.iter().rev().take(tenth).max().copied().unwrap_or(0);
    let new_bytes: u64 = found.saves.iter().map(|s| s.new_bytes).sum();
    let changed: u64 = found.saves.iter().map(|s| s.changed_bytes).sum();
    let name = JobName::new(state::JOB)?;
    let records = pool.log().numbers(&name)?.len() as f64;
    let packs = pool.packs()?.len() as f64;

    let report = &mut bench.report;
    report.add("saves committed", commits.len() as f64, Unit::Count);
    let none = Goal::AtMost(0.0);
    report.goal("saves skipped: one was still draining", found.skipped as f64, Unit::Count, none);
    report.add("program stands still (median)", median(&stalls), Unit::Seconds);
    report.add("call to commit, first tenth (median)", first, Unit::Seconds);
    report.add("call to commit, last tenth (median)", last, Unit::Seconds);
    let growth = last / first;
    report.goal(
        "call to commit, last / first tenth",
        growth,
        Unit::Ratio,
        Goal::AtMost(GROWTH_MAX),
    );
    let slowest = commits.iter().copied().fold(0.0, f64::max);
    report.add("call to commit, slowest", slowest, Unit::Seconds);
    let bound = FIXED_BYTES + PER_GIB_BYTES * state_bytes as f64 / (1u64 << 30) as f64;
    if peak_is_fresh {
        let goal = Goal::AtMost(bound);
        report.goal("peak memory beyond the state", peak_bytes, Unit::Bytes, goal);
    }
    let grown = late.saturating_sub(early) as f64;
    report.add("resident memory, growth from start to end", grown, Unit::Bytes);
    report.add("bytes written a save", new_bytes as f64 / commits.len() as f64, Unit::Bytes);
    report.add("bytes changed a save", changed as f64 / commits.len() as f64, Unit::Bytes);
    report.add("packs at the end", packs, Unit::Count);
    report.add("log records at the end", records, Unit::Count);
    report.note(format!(
        "{} minutes, {} saves a second of {} MiB, {} random pages changed before each.",
        args.minutes, args.per_second, args.mib, args.pages
    ));
    report.detail("commit_s", json!(commits));
    report.detail("resident_bytes", json!(found.resident));
    job.close()?;
    Ok(bench.report)
}

fn steady(
    bench: &mut Bench,
    args: &SteadyArgs,
    job: &outlive_store::Job,
    source: &mut outlive_capture::OwnedSource,
) -> Result<SteadyRun> {
    let interval = Duration::from_secs_f64(1.0 / args.per_second);
    let ticks = ((args.minutes * 60.0 * args.per_second) as u64).max(10);
    let sample_every = (ticks / 200).max(1);
    let pages = pages_of(source.bytes().len() as u64);
    let rng = SeededRng::new(7);
    let mut found = SteadyRun::default();
    let mut current: Option<SaveHandle> = None;
    let started = Instant::now();
    for tick in 0..ticks {
        if tick % sample_every == 0 {
            bench.step(&format!("saving at a steady rate, save {} of {ticks}", tick + 1));
        }
        let due = interval.mul_f64(tick as f64);
        std::thread::sleep(due.saturating_sub(started.elapsed()));
        if let Some(handle) = &current
            && !handle.done()
        {
            found.skipped += 1;
            continue;
        }
        if let Some(handle) = current.take() {
            found.saves.push(outcome(&handle)?);
        }
        let bytes = state::edit(source)?;
        for _ in 0..args.pages {
            state::change_page(bytes, rng.below(pages), &rng);
        }
        current = Some(job.save(source)?);
        if tick % sample_every == 0 {
            found.resident.push(resident().now_bytes);
        }
    }
    if let Some(handle) = current {
        found.saves.push(outcome(&handle)?);
    }
    Ok(found)
}

fn outcome(handle: &SaveHandle) -> Result<SaveStats> {
    handle.wait(None).unwrap_or_else(|| Err(Error::bug("a wait without limit ended early")))
}
