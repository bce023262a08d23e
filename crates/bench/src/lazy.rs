//! `outlive-bench lazy`: the time until a program runs again if its memory arrives later.

use super::machine::Cpu;
use super::raw::Baseline;
use super::report::{Goal, Report, Unit};
use super::state::{self, JOB};
use super::{Bench, gb_per_s, gib_bytes, median};
use crate::args::LazyArgs;
use outlive_capture::fill::MutRegion;
use outlive_capture::lazy::{How, LazyMemory, LazyOptions, Mode, Traffic};
use outlive_pool::Environment;
use outlive_store::{LazyEnds, LazyFill, LazySink, MemoryImage, RestoreSink, Select};
use outlive_types::{Error, Missing, PAGE_BYTES, Result, SeededRng};
use serde_json::json;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Longest time until the program runs.
const RETURN_S_MAX: f64 = 0.1;
/// Longest first touch, for 99 of 100.
const TOUCH_S_MAX: f64 = 0.002;
/// Smallest speed of the background fill, as a share of the device's.
const SHARE_MIN: f64 = 0.90;
const SEED: u64 = 12;

/// Work of the program after the restart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// No work.
    Idle,
    /// Touches one page in a hundred, side by side.
    Run,
    /// Touches as many pages, at random.
    Scattered,
    /// Touches [`TOUCHES`] random pages, before the background has placed much.
    Touches,
    /// Touches all pages in order.
    All,
}

const STEPS: [Step; 5] = [Step::Idle, Step::Run, Step::Scattered, Step::Touches, Step::All];
/// Pages of [`Step::Touches`].
const TOUCHES: usize = 200;

/// One restart.
struct Restart {
    memory: Arc<LazyMemory>,
    /// Seconds from the start, before the pool is opened, until the program runs.
    return_s: f64,
    /// Seconds until its step was done.
    step_s: f64,
    /// Seconds until all memory was placed.
    whole_s: f64,
    /// Processor time until all memory was placed.
    cpu_s: f64,
    /// Seconds of each first touch of [`Step::Touches`].
    touched_s: Vec<f64>,
    traffic: Traffic,
}

/// Results of the rounds.
#[derive(Default)]
struct Rounds {
    /// Raw speeds in GB/s.
    raws: Vec<f64>,
    /// Speeds of the background fill, as shares of the raw speed.
    shares: Vec<f64>,
    /// Seconds until a restart into used memory returned.
    used: Vec<f64>,
    /// For eager and lazy restarts, by step: seconds until the return, the end of the step, and all
    /// memory.
    times: [[[Vec<f64>; 3]; STEPS.len()]; 2],
    /// Seconds of each first touch of [`Step::Touches`], in lazy restarts.
    touched_s: Vec<f64>,
    /// Traffic of lazy restarts, by step.
    traffic: [Vec<Traffic>; STEPS.len()],
    /// Processor seconds for each GB, eager and lazy.
    cpu: [Vec<f64>; 2],
    how: How,
}

pub fn run(mut bench: Bench, args: &LazyArgs) -> Result<Report> {
    let total_bytes = gib_bytes(args.io.gib);
    bench.step("saving the state");
    let path = bench.scratch.join("pool");
    {
        let pool = state::pool(&path)?;
        state::save(&state::job(&pool)?, &mut state::source(total_bytes, SEED)?)?;
    }
    bench.scratch.quiet()?;
    let mut raw = Baseline::of_reads(&mut bench, total_bytes)?;
    let lazily = LazyOptions { user_only: args.user_only, ..LazyOptions::default() };
    let (before, begun) = (Cpu::now(), Instant::now());
    let mut rounds = Rounds::default();
    let mut last = None;
    for run in 1..=args.io.runs {
        drop(last.take());
        let round = format!("round {run} of {}", args.io.runs);
        bench.step(&format!("{round}: raw reads"));
        rounds.raws.push(raw.read_round(&bench.scratch)?);
        last = Some(rounds.restarts(&mut bench, &round, &path, total_bytes, &lazily)?);
    }
    bench.report.others(Cpu::now().since(before), begun.elapsed().as_secs_f64());
    bench.step("checking what was restored");
    let bytes = last.map(into_region).transpose()?.and_then(MutRegion::into_bytes);
    if !state::is_filled(&bytes.ok_or_else(lost)?, SEED) {
        return Err(Error::bug("a lazy restore handed back other bytes than were saved"));
    }
    rounds.figures(&mut bench.report);
    bench.report.note(format!(
        "Medians of {} rounds, each time from opening the pool on; {} GiB, nothing of it in the page \
         cache. A step reads and writes a byte of each page it touches. {}. Raw is the faster, round by \
         round, of: {}.",
        args.io.runs,
        args.io.gib,
        rounds.served(),
        raw.names()
    ));
    bench.report.detail("raw_rounds", raw.details());
    rounds.details(&mut bench.report);
    Ok(bench.report)
}

impl Rounds {
    /// Restarts eagerly and lazily with each step, then once into used memory, which is returned.
    fn restarts(
        &mut self,
        bench: &mut Bench,
        round: &str,
        path: &Path,
        total_bytes: u64,
        lazily: &LazyOptions,
    ) -> Result<Arc<LazyMemory>> {
        let eagerly = LazyOptions { eager: true, ..lazily.clone() };
        let mut last = None;
        for (number, step) in STEPS.into_iter().enumerate() {
            for (way, options) in [&eagerly, lazily].into_iter().enumerate() {
                let name = if options.eager { "eager" } else { "lazy" };
                bench.step(&format!("{round}: {name} restart, step {}", number + 1));
                drop(last.take());
                let restart = restart(path, fresh(total_bytes)?, options, step)?;
                let taken = [restart.return_s, restart.step_s, restart.whole_s];
                let times = &mut self.times[way][number];
                times.iter_mut().zip(taken).for_each(|(all, one)| all.push(one));
                if !options.eager {
                    self.traffic[number].push(restart.traffic);
                    restart.memory.how().clone_into(&mut self.how);
                }
                if (step, options.eager) == (Step::Touches, false) {
                    self.touched_s.extend(restart.touched_s);
                }
                if step == Step::Idle {
                    self.cpu[way].push(restart.cpu_s / (total_bytes as f64 / 1e9));
                }
                if (step, options.eager) == (Step::Idle, false) {
                    let speed = gb_per_s(total_bytes, restart.whole_s);
                    self.shares.push(speed / self.raws[self.raws.len() - 1]);
                }
                last = Some(restart.memory);
            }
        }
        // A program that has written its arrays before pays more: its pages are freed first.
        let region = last.take().map(into_region).transpose()?;
        let restart = restart(path, region.ok_or_else(lost)?, lazily, Step::Idle)?;
        self.used.push(restart.return_s);
        Ok(restart.memory)
    }

    fn figures(&self, report: &mut Report) {
        let m =
            |way: usize, step: Step, which: usize| median(&self.times[way][step as usize][which]);
        report.add("raw sequential read, O_DIRECT (best)", median(&self.raws), Unit::GbPerS);
        report.add("eager restore returns", m(0, Step::Idle, 0), Unit::Seconds);
        let goal = Goal::AtMost(RETURN_S_MAX);
        report.goal("lazy restore returns", m(1, Step::Idle, 0), Unit::Seconds, goal);
        report.add("lazy restore into used memory returns", median(&self.used), Unit::Seconds);
        for (step, what) in [
            (Step::Run, "a step on 1 %, side by side"),
            (Step::Scattered, "a step on 1 %, random pages"),
            (Step::Touches, "a step on 200 random pages"),
            (Step::All, "a step on 100 %"),
        ] {
            let (eager, lazy) = (m(0, step, 1), m(1, step, 1));
            report.add(format!("{what}: done, eager"), eager, Unit::Seconds);
            report.add(format!("{what}: done, lazy"), lazy, Unit::Seconds);
            report.add(format!("{what}: lazy / eager"), lazy / eager, Unit::Ratio);
        }
        let mut touched_s = self.touched_s.clone();
        touched_s.sort_unstable_by(f64::total_cmp);
        let part = |share: f64| touched_s[(touched_s.len() as f64 * share) as usize];
        let goal = Goal::AtMost(TOUCH_S_MAX);
        report.add("a first touch, lazy: median", part(0.5), Unit::Seconds);
        report.goal("a first touch, lazy: 99 of 100", part(0.99), Unit::Seconds, goal);
        report.add("all memory there, lazy", m(1, Step::Idle, 2), Unit::Seconds);
        report.add("processor time for each GB, eager", median(&self.cpu[0]), Unit::Seconds);
        report.add("processor time for each GB, lazy", median(&self.cpu[1]), Unit::Seconds);
        let goal = Goal::AtLeast(SHARE_MIN);
        report.goal("background fill, share of raw", median(&self.shares), Unit::Ratio, goal);
    }

    /// Returns a text on the fill: its mode, and the reason if it was not lazy.
    fn served(&self) -> String {
        let served = match self.how.mode {
            Some(Mode::Full) => "userfaultfd serves the program and its system calls",
            Some(Mode::UserOnly) => {
                "userfaultfd serves the program's own instructions; system calls into missing memory fail"
            }
            None => "nothing was filled lazily",
        };
        match self.how.eager_because.as_str() {
            "" => served.to_owned(),
            why => format!("{served} ({why})"),
        }
    }

    fn details(&self, report: &mut Report) {
        report.detail(
            "mode",
            json!(self.how.mode.map(|mode| match mode {
                Mode::Full => "full",
                Mode::UserOnly => "user-only",
            })),
        );
        report.detail("eager_because", json!(self.how.eager_because));
        report.detail("lazy_bytes", json!(self.how.lazy_bytes));
        report.detail("raw_gb_per_s", json!(self.raws));
        report.detail("fill_shares", json!(self.shares));
        report.detail("used_return_s", json!(self.used));
        for (way, name) in ["eager", "lazy"].into_iter().enumerate() {
            for (number, step) in STEPS.into_iter().enumerate() {
                let [returned, done, whole] = &self.times[way][number];
                report.detail(
                    &format!("{name}_{step:?}").to_lowercase(),
                    json!({ "return_s": returned, "step_s": done, "whole_s": whole }),
                );
            }
        }
        for (number, step) in STEPS.into_iter().enumerate() {
            let all = self.traffic[number].iter().map(|traffic: &Traffic| {
                json!({ "faults": traffic.faults, "moved_bytes": traffic.moved_bytes,
                    "copied_bytes": traffic.copied_bytes })
            });
            report.detail(&format!("traffic_{step:?}").to_lowercase(), all.collect());
        }
    }
}

fn lost() -> Error {
    Error::bug("restored memory was lost")
}

fn fresh(total_bytes: u64) -> Result<MutRegion> {
    let length = usize::try_from(total_bytes)
        .map_err(|_| Error::invalid("the state is larger than memory can be"))?;
    Ok(MutRegion::zeroed(length))
}

/// Returns the memory once the threads of its fill have released it.
fn into_region(mut memory: Arc<LazyMemory>) -> Result<MutRegion> {
    loop {
        match Arc::try_unwrap(memory) {
            Ok(memory) => return memory.into_streams().pop().ok_or_else(lost),
            Err(shared) => memory = shared,
        }
        std::thread::yield_now();
    }
}

/// Restarts as a program does: opens everything, restores, does a step.
fn restart(path: &Path, region: MutRegion, options: &LazyOptions, step: Step) -> Result<Restart> {
    let (cpu_before, started) = (Cpu::now(), Instant::now());
    let elapsed = || started.elapsed().as_secs_f64();
    let pool = outlive_pool::open(path, Environment::system())?;
    let job = state::job(&pool)?;
    let (mut region, mut taken) = (Some(region), None);
    let mut prepare = |checkpoint: &MemoryImage| {
        let memory =
            Arc::new(LazyMemory::new(region.take().into_iter().collect(), options.clone())?);
        taken = Some(memory.clone());
        Ok(((0..checkpoint.streams().len()).collect(), Sink(memory)))
    };
    let ends = LazyEnds { filled: Box::new(|_, _| {}), failed: Box::new(|_| {}) };
    let done = job.restore_lazily(Select::Newest, &mut prepare, ends)?;
    let (_, fill): (_, LazyFill) =
        done.ok_or_else(|| Error::bug(format!("job {JOB} lost its checkpoint")))?;
    let return_s = elapsed();
    let memory = taken.ok_or_else(lost)?;
    let touched_s = work(&memory, step);
    let step_s = elapsed();
    fill.wait(None).unwrap_or_else(|| Err(Error::bug("a wait without limit ended early")))?;
    let (whole_s, cpu_s) = (elapsed(), Cpu::now().since(cpu_before).own_s);
    Ok(Restart { return_s, step_s, whole_s, cpu_s, touched_s, traffic: memory.traffic(), memory })
}

/// Does a step of the program. Returns the seconds of each first touch of [`Step::Touches`].
fn work(memory: &LazyMemory, step: Step) -> Vec<f64> {
    let pages = memory.length(0) / PAGE_BYTES;
    let touch = |page: usize| {
        memory.touch(0, page * PAGE_BYTES, 0);
    };
    let mut touched_s = Vec::new();
    match step {
        Step::Idle => {}
        Step::Run => (pages / 2..pages / 2 + pages / 100).for_each(touch),
        Step::Scattered => {
            let rng = SeededRng::new(SEED);
            (0..pages / 100).map(|_| rng.next_u64() as usize % pages).for_each(touch);
        }
        Step::Touches => {
            let rng = SeededRng::new(SEED + 1);
            touched_s.extend((0..TOUCHES).map(|_| {
                let began = Instant::now();
                touch(rng.next_u64() as usize % pages);
                began.elapsed().as_secs_f64()
            }));
        }
        Step::All => (0..pages).for_each(touch),
    }
    touched_s
}

struct Sink(Arc<LazyMemory>);

impl RestoreSink for Sink {
    fn write(&self, stream: usize, offset: u64, bytes: &[u8]) {
        self.0.write(stream, offset, bytes);
    }

    fn zero(&self, stream: usize, offset: u64, length: u64) {
        self.0.zero(stream, offset, length);
    }
}

impl LazySink for Sink {
    fn is_lazy(&self, stream: usize) -> bool {
        self.0.is_lazy(stream)
    }

    fn edges(&self) -> Vec<(usize, Range<u64>)> {
        self.0.edges()
    }

    fn write_edge(&self, stream: usize, offset: u64, bytes: &[u8]) {
        self.0.write_edge(stream, offset, bytes);
    }

    fn next_missing(&self) -> Option<Missing> {
        self.0.next_missing()
    }

    fn expect(&self, missing: &Missing) {
        self.0.expect(missing);
    }

    fn expect_nothing(&self) {
        self.0.expect_nothing();
    }

    fn deliver(&self, missing: &Missing, bytes: Option<&[u8]>) {
        self.0.deliver(missing, bytes);
    }

    fn failure(&self) -> Option<Error> {
        self.0.failure()
    }

    fn give_up(&self) {
        self.0.give_up();
    }

    fn stop(&self) {
        self.0.stop();
    }
}
