//! `outlive-bench pool`: the cost of redundancy for saves, and the speed of restores and repairs
//! with lost or slow targets.

use super::machine::Cpu;
use super::report::{Goal, Report, Unit};
use super::state::{self, Memory};
use super::{Bench, gb_per_s, gib_bytes, median};
use crate::args::IoArgs;
use outlive_backend::{MemoryTarget, Target, Throttle, ThrottledTarget};
use outlive_capture::OwnedSource;
use outlive_dir::{DirectoryMedium, DirectoryOptions, DirectoryTarget};
use outlive_erasure::Code;
use outlive_io::AlignedBuf;
use outlive_log::RecordLog;
use outlive_pool::{
    Environment, FormatConfig, Pool, PoolConfig, Redundancy, RepairOptions, TargetConfig, Tuning,
};
use outlive_types::{Error, Result, Rng, SystemRng};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest save with redundancy, in times of its share of bytes.
const OVERHEAD_MAX: f64 = 1.10;
/// Lowest speed of encoding, in GB/s a core.
const ENCODE_MIN: f64 = 2.0;
/// Lowest speed of a repair, as a share of the slowest target's.
const REPAIR_MIN: f64 = 0.80;
/// Longest restore with a slow target, in times of one without it.
const ONE_SLOW_MAX: f64 = 1.3;
const SEED: u64 = 5;
/// Targets of the pools, all on one device.
const TARGETS: usize = 6;
/// Size of the state where targets are slow.
const THROTTLED_BYTES_MAX: u64 = 1 << 30;
/// Speed of each such target: six of them are slower than one core verifies.
const TARGET_BYTES_PER_S: u64 = 100_000_000;
/// Factor by which one of them is slower.
const SLOWER: u64 = 10;

/// The rules, each with its factor of stored bytes.
fn rules() -> [(&'static str, Redundancy, f64); 3] {
    [
        ("no redundancy", Redundancy::default(), 1.0),
        ("mirror 2", Redundancy::mirror(2), 2.0),
        ("erasure 4+2", Redundancy::erasure(4, 2), 1.5),
    ]
}

/// Results of the rounds in seconds; by rule where there are three.
#[derive(Default)]
struct Rounds {
    saves: [Vec<f64>; 3],
    stored: [u64; 3],
    restores: [Vec<f64>; 3],
    degraded: Vec<f64>,
    equal: Vec<f64>,
    missing: Vec<f64>,
    slow: Vec<f64>,
    repair_shares: Vec<f64>,
}

pub fn run(mut bench: Bench, args: &IoArgs) -> Result<Report> {
    let total_bytes = gib_bytes(args.gib);
    bench.step("encoding");
    let encode = encode_gb_per_s()?;
    bench.step("making the state");
    let mut source = state::source(total_bytes, SEED)?;
    let mut rounds = Rounds::default();
    let (before, begun) = (Cpu::now(), Instant::now());
    for run in 1..=args.runs {
        for (number, (name, rule, _)) in rules().into_iter().enumerate() {
            bench.step(&format!("round {run} of {}: saves, {name}", args.runs));
            let (_, took_s, stored) = save(&bench, &mut source, rule)?;
            rounds.saves[number].push(took_s);
            rounds.stored[number] = stored;
        }
    }
    // After all saves, which would otherwise fork with this memory, too.
    let memory = Memory::fresh(total_bytes)?;
    for (number, (name, rule, _)) in rules().into_iter().enumerate() {
        let survives = rule.survives();
        let (path, _, _) = save(&bench, &mut source, rule)?;
        bench.scratch.quiet()?;
        bench.step(&format!("restores, {name}"));
        // Not counted: it leaves memory in the same state for all that follow.
        restore(&path, &memory)?;
        for _ in 0..args.runs {
            rounds.restores[number].push(timed(|| restore(&path, &memory))?);
        }
        if survives == 2 {
            for lost in 1..=2 {
                remove(&target(&path, lost))?;
            }
            for _ in 0..args.runs {
                rounds.degraded.push(timed(|| restore(&path, &memory))?);
            }
        }
    }
    drop(source);
    state::check(memory, SEED)?;
    slow_targets(&mut bench, args, total_bytes.min(THROTTLED_BYTES_MAX), &mut rounds)?;
    bench.scratch.clear("pool")?;
    bench.report.others(Cpu::now().since(before), begun.elapsed().as_secs_f64());
    rounds.report(&mut bench.report, args, total_bytes, encode);
    Ok(bench.report)
}

/// Saves to a new pool. Returns the pool's path, the seconds of the save, and the bytes that it
/// stored.
fn save(bench: &Bench, source: &mut OwnedSource, rule: Redundancy) -> Result<(PathBuf, f64, u64)> {
    bench.scratch.clear("pool")?;
    let path = bench.scratch.join("pool");
    let pool = create(&path, rule)?;
    source.tracker().forget();
    let stats = state::save(&state::job(&pool)?, source)?;
    Ok((path, stats.total.as_secs_f64(), pool.usage()?.stored_bytes))
}

/// Measures with targets as slow as single disks.
fn slow_targets(
    bench: &mut Bench,
    args: &IoArgs,
    total_bytes: u64,
    rounds: &mut Rounds,
) -> Result<()> {
    bench.scratch.clear("pool")?;
    let path = bench.scratch.join("pool");
    let pool = create(&path, Redundancy::erasure(4, 2))?;
    state::save(&state::job(&pool)?, &mut state::source(total_bytes, SEED)?)?;
    let memory = Memory::fresh(total_bytes)?;
    state::restore(&pool, &memory)?;
    let config = pool.config().clone();
    drop(pool);
    for run in 1..=args.runs {
        bench.step(&format!("round {run} of {}: one slow target", args.runs));
        for (kind, times) in [
            (Second::Equal, &mut rounds.equal),
            (Second::Missing, &mut rounds.missing),
            (Second::Slow, &mut rounds.slow),
        ] {
            let pool = throttled(&path, &config, kind)?;
            times.push(timed(|| state::restore(&pool, &memory))?);
        }
        bench.step(&format!("round {run} of {}: a repair", args.runs));
        remove(&target(&path, 3))?;
        let pool = throttled(&path, &config, Second::Equal)?;
        let started = Instant::now();
        let repaired = outlive_store::repair(&pool, RepairOptions::default())?;
        let bytes_per_s = repaired.written_bytes as f64 / started.elapsed().as_secs_f64();
        if !repaired.is_whole() || repaired.shards == 0 {
            return Err(Error::bug(format!("a repair left something missing: {repaired:?}")));
        }
        rounds.repair_shares.push(bytes_per_s / TARGET_BYTES_PER_S as f64);
    }
    state::check(memory, SEED)
}

impl Rounds {
    fn report(&self, report: &mut Report, args: &IoArgs, total_bytes: u64, encode: f64) {
        report.goal("4+2: parity, per core", encode, Unit::GbPerS, Goal::AtLeast(ENCODE_MIN));
        let none = median(&self.saves[0]);
        for (number, (name, _, factor)) in rules().into_iter().enumerate() {
            let speed = gb_per_s(total_bytes, median(&self.saves[number]));
            report.add(format!("{name}: first save, call to commit"), speed, Unit::GbPerS);
            if number > 0 {
                // Compared by round, since the device's speed changes between rounds.
                let shares: Vec<f64> = self.saves[number]
                    .iter()
                    .zip(&self.saves[0])
                    .map(|(with, none)| with / none / factor)
                    .collect();
                let what = format!("{name}: time of a save / ({factor} x that without)");
                report.goal(what, median(&shares), Unit::Ratio, Goal::AtMost(OVERHEAD_MAX));
                let bytes = self.stored[number] as f64 / self.stored[0] as f64;
                report.add(format!("{name}: bytes stored / those without"), bytes, Unit::Ratio);
            }
            let speed = gb_per_s(total_bytes, median(&self.restores[number]));
            report.add(format!("{name}: restore"), speed, Unit::GbPerS);
        }
        let speed = gb_per_s(total_bytes, median(&self.degraded));
        report.add("erasure 4+2: restore, two targets lost", speed, Unit::GbPerS);
        let slow = median(&self.slow);
        report.goal(
            "erasure 4+2: restore with one target 10 x slower, time / without that target",
            slow / median(&self.missing),
            Unit::Ratio,
            Goal::AtMost(ONE_SLOW_MAX),
        );
        let what = "the same, time / with that target as fast as the others";
        report.add(what, slow / median(&self.equal), Unit::Ratio);
        report.goal(
            "erasure 4+2: repair of a lost target, share of a target's speed",
            median(&self.repair_shares),
            Unit::Ratio,
            Goal::AtLeast(REPAIR_MIN),
        );
        report.note(format!(
            "Medians of {} rounds; {} GiB on {TARGETS} directories of one device, without compression. \
             Without redundancy a save takes {none:.2} s. Restores go into used memory. The last three \
             figures are of {:.1} GiB, with each target limited to {} MB/s.",
            args.runs,
            args.gib,
            total_bytes.min(THROTTLED_BYTES_MAX) as f64 / f64::from(1 << 30),
            TARGET_BYTES_PER_S / 1_000_000
        ));
        report.detail("save_s", json!(self.saves));
        report.detail("restore_s", json!(self.restores));
        report.detail("restore_two_lost_s", json!(self.degraded));
        report.detail("restore_equal_s", json!(self.equal));
        report.detail("restore_one_missing_s", json!(self.missing));
        report.detail("restore_one_slow_s", json!(self.slow));
        report.detail("repair_shares", json!(self.repair_shares));
    }
}

/// Returns the seconds that `work` takes.
fn timed(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let started = Instant::now();
    work()?;
    Ok(started.elapsed().as_secs_f64())
}

/// Restores as a program does that restarts.
fn restore(path: &Path, memory: &Memory) -> Result<()> {
    state::restore(&outlive_pool::open(path, Environment::system())?, memory)
}

/// Returns the directory of target `number`, from 1.
fn target(pool: &Path, number: usize) -> PathBuf {
    pool.join(format!("target-{number}"))
}

/// Deletes all shards of a target, which stays in the pool.
fn remove(target: &Path) -> Result<()> {
    let packs = target.join("packs");
    let entries = fs::read_dir(&packs).map_err(|e| Error::io("listing", &packs, &e))?;
    for entry in entries {
        let path = entry.map_err(|e| Error::io("listing", &packs, &e))?.path();
        if path.is_dir() {
            fs::remove_dir_all(&path).map_err(|e| Error::io("removing", &path, &e))?;
        }
    }
    Ok(())
}

fn tuning() -> Tuning {
    Tuning { compression: "none".to_owned(), ..Tuning::default() }
}

/// Creates a pool over six directories.
fn create(path: &Path, redundancy: Redundancy) -> Result<Pool> {
    let mut id = [0; 16];
    SystemRng.fill(&mut id);
    let target = (1..=TARGETS).map(|n| TargetConfig::at(format!("target-{n}"))).collect();
    let config = PoolConfig::new(FormatConfig::new(id), tuning());
    // A new pool's directory must be empty, so its targets are created with it.
    outlive_pool::create(path, PoolConfig { target, redundancy, ..config }, Environment::system())
}

/// State of the second target.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Second {
    /// Like the others.
    Equal,
    /// Slower by [`SLOWER`].
    Slow,
    /// It has no shards.
    Missing,
}

/// Opens the pool in `path` with targets as slow as single disks.
fn throttled(path: &Path, config: &PoolConfig, second: Second) -> Result<Pool> {
    let open = |number: usize| -> Result<Arc<dyn Target>> {
        let kind = if number == 2 { second } else { Second::Equal };
        if kind == Second::Missing {
            return Ok(Arc::new(MemoryTarget::new()));
        }
        let slower = if kind == Second::Slow { SLOWER } else { 1 };
        let throttle =
            Throttle { bytes_per_s: Some(TARGET_BYTES_PER_S / slower), latency: Duration::ZERO };
        let inner = DirectoryTarget::open(&target(path, number), &DirectoryOptions::default())?;
        Ok(Arc::new(ThrottledTarget::new(Arc::new(inner), throttle)))
    };
    let targets = (1..=TARGETS).map(open).collect::<Result<_>>()?;
    let log = Arc::new(RecordLog::over(DirectoryMedium::open(path)));
    Ok(Pool::over(config.clone(), targets, log, Environment::system()))
}

/// Returns the speed of two parity fragments for four, in memory that exceeds the processor's
/// caches.
fn encode_gb_per_s() -> Result<f64> {
    const FRAGMENT_BYTES: usize = 1 << 20;
    const STRIPES: usize = 64;
    let code = Code::new(4, 2)?;
    let mut data = AlignedBuf::zeroed(4 * FRAGMENT_BYTES * STRIPES);
    state::fill(&mut data, SEED);
    let mut parity = AlignedBuf::zeroed(2 * FRAGMENT_BYTES);
    let speeds: Vec<f64> = (0..5)
        .map(|_| {
            let started = Instant::now();
            for stripe in data.chunks(4 * FRAGMENT_BYTES) {
                let fragments: Vec<&[u8]> = stripe.chunks(FRAGMENT_BYTES).collect();
                let mut parity: Vec<&mut [u8]> = parity.chunks_mut(FRAGMENT_BYTES).collect();
                code.encode(&fragments, &mut parity)?;
            }
            Ok(gb_per_s(data.len() as u64, started.elapsed().as_secs_f64()))
        })
        .collect::<Result<_>>()?;
    Ok(median(&speeds))
}
