//! `outlive-bench churn`: many saves of a few random changed pages each. It measures their bytes,
//! and the times of restores before and after.

use super::machine::Cpu;
use super::report::{Goal, Report, Unit};
use super::state::{BorrowedMemory, Memory};
use super::{Bench, gib_bytes, median, state};
use crate::args::ChurnArgs;
use outlive_capture::OwnedSource;
use outlive_pool::{Environment, Pool};
use outlive_store::{EpochInfo, Job, MemoryImage, RestoreStats, SaveStats};
use outlive_types::{Error, Result, SeededRng, pages_of};
use serde_json::json;
use std::fs;
use std::path::Path;
use std::time::Instant;

/// Most bytes written for each byte changed.
const WRITTEN_MAX: f64 = 1.25;
/// Longest restore of the last checkpoint, in times of the first.
const SLOWER_MAX: f64 = 1.5;

pub fn run(mut bench: Bench, args: &ChurnArgs) -> Result<Report> {
    let total_bytes = gib_bytes(args.gib);
    let pages = pages_of(total_bytes);
    let dirty = ((pages as f64 * args.percent / 100.0).round() as u64).clamp(1, pages);
    bench.step("making the state");
    let mut source = state::source(total_bytes, 4)?;
    let path = bench.scratch.join("pool");
    let Saves { stats, cpu_s, stored_bytes } = churn(&mut bench, args, &mut source, dirty, &path)?;

    let (first, later) = stats.split_first().ok_or_else(|| Error::bug("nothing was saved"))?;
    let written: Vec<f64> =
        later.iter().map(|s| s.new_bytes as f64 / s.changed_bytes.max(1) as f64).collect();
    let mean = written.iter().sum::<f64>() / written.len() as f64;
    let new_bytes: u64 = stats.iter().map(|s| s.new_bytes).sum();
    let changed: u64 = later.iter().map(|s| s.changed_bytes).sum();
    let evacuated: u64 = later.iter().map(|s| s.evacuated_bytes).sum();
    let nodes: u64 = later.iter().map(|s| s.node_bytes).sum();
    let segments: u64 = later.iter().map(|s| s.segment_bytes).sum();
    let totals: Vec<f64> = later.iter().map(|s| s.total.as_secs_f64()).collect();
    let (before, started) = (Cpu::now(), Instant::now());
    let restores = restores(&mut bench, args, total_bytes, &path, source.bytes())?;

    let report = &mut bench.report;
    report.others(Cpu::now().since(before), started.elapsed().as_secs_f64());
    let goal = Goal::AtMost(WRITTEN_MAX);
    report.goal("bytes written / changed, mean over saves", mean, Unit::Ratio, goal);
    let share = |part: u64| part as f64 / changed.max(1) as f64;
    report.add("  of it rewritten against fragmentation", share(evacuated), Unit::Ratio);
    report.add("  of it page tree and catalog", share(nodes), Unit::Ratio);
    report.add("  of it merged segments", share(segments), Unit::Ratio);
    let on_disk = stored_bytes as f64 / new_bytes.max(1) as f64;
    report.add("bytes in the pool's files / bytes counted", on_disk, Unit::Ratio);
    report.add("save, call to commit (median)", median(&totals), Unit::Seconds);
    let per_gb = |cpu_s: f64, bytes: u64| cpu_s / (bytes.max(1) as f64 / 1e9);
    let [first_s, later_s] =
        [per_gb(cpu_s[0], total_bytes), per_gb(cpu_s[1..].iter().sum(), changed)];
    report.add("  processor time for each GB changed", later_s, Unit::Seconds);
    report.add("  the same of the first save", first_s, Unit::Seconds);
    let [first_restore, last_restore] = &restores;
    for (which, restore) in [("first", first_restore), ("last", last_restore)] {
        let what = format!("restore of the {which} checkpoint");
        report.add(what, median(&restore.total_s), Unit::Seconds);
        report.add("  of it opening: manifest, trees", median(&restore.open_s), Unit::Seconds);
        report.add("  processor time", median(&restore.cpu_s), Unit::Seconds);
        report.add(format!("bytes read, {which}"), restore.stats.read_bytes as f64, Unit::Bytes);
        report.add(format!("reads, {which}"), restore.stats.reads as f64, Unit::Count);
    }
    let slower = median(&last_restore.total_s) / median(&first_restore.total_s);
    let goal = Goal::AtMost(SLOWER_MAX);
    report.goal("restore, last / first", slower, Unit::Ratio, goal);
    report.note(format!(
        "{} saves after a first of {} GiB; before each, {dirty} random pages ({} %) got new random \
         bytes. Restores are medians of {}, alternately, past the page cache, into used memory.",
        args.saves, args.gib, args.percent, args.runs
    ));
    report.detail("written_per_changed", json!(written));
    report.detail("first_new_bytes", json!(first.new_bytes));
    report.detail("new_bytes", json!(new_bytes));
    report.detail("stored_bytes", json!(stored_bytes));
    report.detail("save_s", json!(totals));
    report.detail("restore_first_s", json!(first_restore.total_s));
    report.detail("restore_last_s", json!(last_restore.total_s));
    Ok(bench.report)
}

/// All saves.
#[derive(Default)]
struct Saves {
    stats: Vec<SaveStats>,
    cpu_s: Vec<f64>,
    /// Bytes of the files after all saves.
    stored_bytes: u64,
}

fn churn(
    bench: &mut Bench,
    args: &ChurnArgs,
    source: &mut OwnedSource,
    dirty: u64,
    path: &Path,
) -> Result<Saves> {
    let pool = state::pool(path)?;
    let rng = SeededRng::new(5);
    let pages = pages_of(source.bytes().len() as u64);
    let mut order: Vec<u64> = (0..pages).collect();
    let before = file_bytes(path)?;
    let mut saves = Saves::default();
    let mut save = |job: &Job, source: &mut OwnedSource| -> Result<()> {
        let cpu = Cpu::now();
        saves.stats.push(state::save(job, source)?);
        saves.cpu_s.push(Cpu::now().since(cpu).own_s);
        Ok(())
    };
    {
        let job = state::job(&pool)?;
        save(&job, source)?;
        for number in 1..=args.saves {
            bench.step(&format!("save {number} of {}", args.saves));
            let bytes = state::edit(source)?;
            // Distinct pages: the first steps of a shuffle (Fisher, Yates 1938; Durstenfeld 1964).
            for at in 0..dirty {
                let other = at + rng.below(pages - at);
                order.swap(at as usize, other as usize);
                state::change_page(bytes, order[at as usize], &rng);
            }
            save(&job, source)?;
        }
    }
    saves.stored_bytes = file_bytes(path)? - before;
    Ok(saves)
}

/// Restores of one checkpoint: the seconds of each, and the bytes that any of them read.
#[derive(Default)]
struct Restores {
    total_s: Vec<f64>,
    open_s: Vec<f64>,
    cpu_s: Vec<f64>,
    stats: RestoreStats,
}

/// Restores the first and the last checkpoint in turn.
fn restores(
    bench: &mut Bench,
    args: &ChurnArgs,
    total_bytes: u64,
    path: &Path,
    newest: &[u8],
) -> Result<[Restores; 2]> {
    bench.scratch.quiet()?;
    let memory = Memory::fresh(total_bytes)?;
    let epochs = {
        let pool = outlive_pool::open(path, Environment::system())?;
        state::job(&pool)?.epochs()?
    };
    let (Some(first), Some(last)) = (epochs.first(), epochs.last()) else {
        return Err(Error::bug("the saves left no checkpoints"));
    };
    // The first restores do not count: they allocate the memory for both.
    read(path, first, &memory, &mut Restores::default())?;
    let mut found = [Restores::default(), Restores::default()];
    for run in 1..=args.runs {
        bench.step(&format!("restores, round {run} of {}", args.runs));
        for (which, found) in [first, last].into_iter().zip(&mut found) {
            read(path, which, &memory, found)?;
        }
    }
    if *memory.into_bytes()? != *newest {
        return Err(Error::bug("the last checkpoint differs from the state"));
    }
    Ok(found)
}

/// Restores a checkpoint without anything in memory from before.
fn read(path: &Path, info: &EpochInfo, memory: &Memory, found: &mut Restores) -> Result<()> {
    let (cpu, started) = (Cpu::now(), Instant::now());
    let pool: Pool = outlive_pool::open(path, Environment::system())?;
    let job = state::job(&pool)?;
    let checkpoint = MemoryImage::open(&pool, job.name(), info.manifest.clone())?;
    found.open_s.push(started.elapsed().as_secs_f64());
    let all: Vec<usize> = (0..checkpoint.streams().len()).collect();
    found.stats = checkpoint.read(&all, &BorrowedMemory(memory))?;
    found.total_s.push(started.elapsed().as_secs_f64());
    found.cpu_s.push(Cpu::now().since(cpu).own_s);
    Ok(())
}

/// Returns the length of all files below `path`, except reserves.
fn file_bytes(path: &Path) -> Result<u64> {
    let io = |e| Error::io("listing", path, &e);
    let mut sum = 0;
    for entry in fs::read_dir(path).map_err(io)? {
        let entry = entry.map_err(io)?;
        let kind = entry.metadata().map_err(io)?;
        if entry.file_name() == ".reserve" {
            continue;
        }
        sum += if kind.is_dir() { file_bytes(&entry.path())? } else { kind.len() };
    }
    Ok(sum)
}
