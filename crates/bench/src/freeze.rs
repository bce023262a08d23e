//! `outlive-bench freeze`: the stall of each method of freezing, and the cost of writes while the
//! image is held. The same run also measures a plain copy of the same memory.

use super::machine::Cpu;
use super::report::{Goal, Report, Unit};
use super::{Bench, freeze_part, gib_bytes, median, state};
use crate::args::FreezeArgs;
use outlive_capture::{OwnedSource, default_threads};
use outlive_io::AlignedBuf;
use outlive_pool::Tuning;
use outlive_types::{
    Error, FreezeMode, FreezeRequest, Frozen, PAGE_BYTES, PageSource, Result, pages_of,
};
use serde_json::json;
use std::hint::black_box;
use std::time::Instant;

/// Longest stall for a fork of memory in unsplit huge pages.
const FORK_HUGE_MS_PER_GIB_MAX: f64 = 1.0;
/// Longest time for which `save` may stop a program whose whole state has changed.
const BLOCKED_MS_PER_GIB_MAX: f64 = 80.0;

/// One method of freezing, and the kind of memory.
struct Way {
    name: &'static str,
    mode: FreezeMode,
    small_pages: bool,
}

const WAYS: [Way; 4] = [
    Way { name: "copy, 4 KiB pages", mode: FreezeMode::Copy, small_pages: true },
    Way { name: "copy, huge pages", mode: FreezeMode::Copy, small_pages: false },
    Way { name: "fork, 4 KiB pages", mode: FreezeMode::Fork, small_pages: true },
    Way { name: "fork, huge pages", mode: FreezeMode::Fork, small_pages: false },
];

/// Results of one method.
#[derive(Default)]
struct WayFigures {
    stall_ms_per_gib: Vec<f64>,
    /// For a plain copy to allocated memory, by one thread.
    memcpy_ms_per_gib: Vec<f64>,
    /// For the first write to each page, with nothing frozen, and while the image is held.
    write_ns_per_page: Vec<f64>,
    held_ns_per_page: Vec<f64>,
    said: String,
}

pub fn run(mut bench: Bench, args: &FreezeArgs) -> Result<Report> {
    let total_bytes = gib_bytes(args.gib);
    let (before, started) = (Cpu::now(), Instant::now());
    let mut details = serde_json::Map::new();
    let mut memcpy = Vec::new();
    for way in &WAYS {
        let found = measure(&bench, way, total_bytes, args.runs)?;
        let stall = median(&found.stall_ms_per_gib);
        let what = format!("{}: program stands", way.name);
        match way.mode {
            FreezeMode::Fork if !way.small_pages => {
                let most = Goal::AtMost(FORK_HUGE_MS_PER_GIB_MAX);
                bench.report.goal(what, stall, Unit::MsPerGib, most);
            }
            _ => bench.report.add(what, stall, Unit::MsPerGib),
        }
        let ratio = stall / median(&found.memcpy_ms_per_gib);
        bench.report.add(format!("{}: stall / memcpy", way.name), ratio, Unit::Ratio);
        if way.mode == FreezeMode::Fork {
            let (plain, held) = (&found.write_ns_per_page, &found.held_ns_per_page);
            let added = median(held) - median(plain);
            bench.report.add(format!("{}: each page then written", way.name), added, Unit::Ns);
        }
        details.insert(
            way.name.to_owned(),
            json!({
                "stall_ms_per_gib": found.stall_ms_per_gib,
                "memcpy_ms_per_gib": found.memcpy_ms_per_gib,
                "write_ns_per_page": found.write_ns_per_page,
                "write_held_ns_per_page": found.held_ns_per_page,
                "freeze": found.said,
            }),
        );
        memcpy.extend(found.memcpy_ms_per_gib);
    }
    bench.report.add("memcpy of the same memory, one thread", median(&memcpy), Unit::MsPerGib);
    let mut blocked = [FreezeMode::Copy, FreezeMode::Auto].map(|_| Vec::new());
    let mut said = String::new();
    for run in 1..=args.runs {
        for (mode, blocked) in [FreezeMode::Copy, FreezeMode::Auto].into_iter().zip(&mut blocked) {
            bench.step(&format!("round {run} of {}: saves, freeze = {}", args.runs, mode.name()));
            let (stall_s, how) = save(&bench, mode, total_bytes)?;
            blocked.push(stall_s * 1e3 / gib(total_bytes));
            said = how;
        }
    }
    let [copied, auto] = &blocked;
    let what = "save of a wholly changed state, freeze = copy: blocked";
    bench.report.add(what, median(copied), Unit::MsPerGib);
    let what = "save of a wholly changed state, freeze = auto: blocked";
    bench.report.goal(what, median(auto), Unit::MsPerGib, Goal::AtMost(BLOCKED_MS_PER_GIB_MAX));
    details.insert("saves_copy_blocked_ms_per_gib".to_owned(), json!(copied));
    details.insert("saves_auto_blocked_ms_per_gib".to_owned(), json!(auto));
    details.insert("saves_auto_freeze".to_owned(), json!(said));
    freeze_part::run(&mut bench, args.gib, args.runs)?;
    bench.report.others(Cpu::now().since(before), started.elapsed().as_secs_f64());
    bench.report.note(format!(
        "Medians of {} rounds; {} GiB, all of it changed, copies and saves on {} threads; nothing is \
         hashed while the program stands. The last save with auto: {said}.",
        args.runs,
        args.gib,
        default_threads()
    ));
    for (key, value) in details {
        bench.report.detail(&key, value);
    }
    Ok(bench.report)
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

/// Measures one method, with new memory in each round: a fork splits huge pages that are written.
fn measure(bench: &Bench, way: &Way, total_bytes: u64, runs: u32) -> Result<WayFigures> {
    let mut found = WayFigures::default();
    let length = usize::try_from(total_bytes)
        .map_err(|_| Error::invalid("the state is larger than memory can be"))?;
    for run in 1..=runs {
        bench.step(&format!("{}, round {run} of {runs}", way.name));
        let memory = AlignedBuf::zeroed(length);
        if way.small_pages {
            memory.use_small_pages();
        }
        let mut source = OwnedSource::new("state", memory, default_threads());
        state::fill(state::edit(&mut source)?, 1);

        let mut copy = vec![1u8; length];
        let started = Instant::now();
        copy.copy_from_slice(black_box(source.bytes()));
        found.memcpy_ms_per_gib.push(started.elapsed().as_secs_f64() * 1e3 / gib(total_bytes));
        drop(black_box(copy));

        found.write_ns_per_page.push(write(state::edit(&mut source)?, 2));
        // The second freeze by copy has its buffer already, as in programs with many freezes.
        let warm_ups = u32::from(way.mode == FreezeMode::Copy);
        for _ in 0..warm_ups {
            freeze(&mut source, way.mode)?.commit_baseline(None);
        }
        let started = Instant::now();
        let frozen = freeze(&mut source, way.mode)?;
        found.stall_ms_per_gib.push(started.elapsed().as_secs_f64() * 1e3 / gib(total_bytes));
        found.said = frozen.report().freeze;
        if frozen.live_runs() > 0 || !found.said.starts_with(way.mode.name()) {
            return Err(Error::invalid(format!(
                "{} is not possible here: {}",
                way.name, found.said
            )));
        }
        found.held_ns_per_page.push(write(state::edit(&mut source)?, 3));
        let mut scratch = Vec::new();
        let first = frozen.read(0, 0..1, &mut scratch)?;
        if first[0] != 2 {
            return Err(Error::bug("the image did not stand still"));
        }
        frozen.commit_baseline(None);
    }
    Ok(found)
}

fn freeze(source: &mut OwnedSource, mode: FreezeMode) -> Result<Box<dyn Frozen>> {
    let freeze_bytes_max = if mode == FreezeMode::Copy { u64::MAX } else { 0 };
    source.freeze(&FreezeRequest { freeze: mode, freeze_bytes_max, ..FreezeRequest::default() })
}

/// Writes a byte to each page; returns nanoseconds a page.
fn write(bytes: &mut [u8], value: u8) -> f64 {
    let started = Instant::now();
    for page in bytes.chunks_mut(PAGE_BYTES) {
        page[0] = value;
    }
    let pages = pages_of(black_box(bytes).len() as u64);
    started.elapsed().as_secs_f64() * 1e9 / pages as f64
}

/// Measures how long a save of a state in huge pages, all of which has changed, stops the program.
/// Also returns its freeze report.
fn save(bench: &Bench, mode: FreezeMode, total_bytes: u64) -> Result<(f64, String)> {
    bench.scratch.clear("pool")?;
    let tuning = Tuning { freeze: mode.name().to_owned(), ..Tuning::default() };
    let pool = state::pool_with(&bench.scratch.join("pool"), tuning)?;
    let mut source = state::source(total_bytes, 1)?;
    let job = state::job(&pool)?;
    state::save(&job, &mut source)?;
    state::fill(state::edit(&mut source)?, 2);
    let stats = state::save(&job, &mut source)?;
    job.close()?;
    drop(job);
    bench.scratch.clear("pool")?;
    Ok((stats.stall.as_secs_f64(), stats.freeze.freeze))
}
