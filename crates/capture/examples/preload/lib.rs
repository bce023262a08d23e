//! Saves of a program that does not know of them, to measure what they cost it: a library for
//! `LD_PRELOAD`, for benchmarks only. A thread of its own repeatedly stops the program and freezes
//! its large `malloc` blocks with the code of a save. While the program continues, the thread reads
//! and hashes the frozen memory. Nothing is written to a disk.
//!
//! | Variable | |
//! | --- | --- |
//! | `OUTLIVE_PRELOAD_REPORT` | file for the figures, as JSON; without it nothing happens |
//! | `OUTLIVE_PRELOAD_TRACKER` | `hash`, `wp-async`, `auto`; without it no freezes |
//! | `OUTLIVE_PRELOAD_WHILE` | a file: freezes happen only while it exists |
//! | `OUTLIVE_PRELOAD_INTERVAL_MS` | time between two freezes; 250 |
//! | `OUTLIVE_PRELOAD_FROM_BYTES` | smaller blocks are omitted; 16 MiB |
//! | `OUTLIVE_PRELOAD_REFUSE` | `FROM-TO`: `malloc` fails for blocks of FROM to TO bytes |
//! | `OUTLIVE_PRELOAD_SPOIL` | `1`: each check finds one page of an image spoiled |
#![allow(unsafe_code)] // runs inside a program that does not know of it

mod heap;
mod rounds;
mod stop;

use outlive_capture::track::TrackerChoice;
use rounds::Rounds;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

/// Time between two checks whether the thread is to begin or to end.
const GLANCE: Duration = Duration::from_millis(2);
/// Longest time that the end of the program waits for the report.
const REPORT_PATIENCE: Duration = Duration::from_secs(30);
/// Number of freezes of which one is followed by a comparison of all memory.
const CHECKED: usize = 5;

/// The process with the thread; a forked child has none.
static PROCESS: AtomicU32 = AtomicU32::new(0);
static ENDS: AtomicBool = AtomicBool::new(false);
static DONE: AtomicBool = AtomicBool::new(false);

/// Entry point that the loader calls before the program's `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

struct Settings {
    report: PathBuf,
    tracker: Option<TrackerChoice>,
    only_while: Option<PathBuf>,
    spoils: bool,
    interval: Duration,
    /// Clock of the processor time of the program's first thread.
    clock: libc::clockid_t,
}

impl Settings {
    /// Reads the settings from the environment and removes them there, so that they do not affect
    /// programs that this one starts.
    fn take() -> Option<Settings> {
        let report = taken("REPORT")?.into();
        let number = |name| taken(name).and_then(|text| text.parse::<usize>().ok());
        let refused = taken("REFUSE").and_then(|text| {
            let (from, to) = text.split_once('-')?;
            Some((from.parse().ok()?, to.parse().ok()?))
        });
        heap::begin(number("FROM_BYTES").unwrap_or(16 << 20), refused);
        let tracker = taken("TRACKER").map(|word| TrackerChoice::parse(&word));
        let mut clock = 0;
        // SAFETY: the call writes the calling thread's own clock to `clock`.
        unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &raw mut clock) };
        Some(Settings {
            report,
            tracker: tracker.transpose().unwrap_or_else(|why| {
                eprintln!("outlive preload: {why}");
                process::exit(2);
            }),
            only_while: taken("WHILE").map(PathBuf::from),
            spoils: taken("SPOIL").is_some(),
            interval: Duration::from_millis(number("INTERVAL_MS").unwrap_or(250) as u64),
            clock,
        })
    }

    /// Processor seconds of the program's first thread: all, and those in the kernel, mostly in
    /// steps of a hundredth.
    fn program_cpu(&self) -> (f64, f64) {
        let path = format!("/proc/self/task/{}/stat", process::id());
        let stat = fs::read_to_string(path).unwrap_or_default();
        // The fields after the name, which may hold any character (proc_pid_stat(5)).
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        let ticks = fields.split_ascii_whitespace().nth(12).and_then(|text| text.parse().ok());
        let system_s = ticks.unwrap_or(0) as f64 / rustix::param::clock_ticks_per_second() as f64;
        (seconds(self.clock), system_s)
    }

    /// Whether freezes are wanted, and there is memory to freeze.
    fn is_open(&self) -> bool {
        let exists = |path: &PathBuf| path.exists();
        let may = !ENDS.load(SeqCst) && self.only_while.as_ref().is_none_or(exists);
        may && !heap::is_empty()
    }
}

fn taken(name: &str) -> Option<String> {
    let name = format!("OUTLIVE_PRELOAD_{name}");
    let value = env::var(&name).ok();
    // SAFETY: the loader calls this before the program begins, so there is no other thread yet.
    unsafe { env::remove_var(name) };
    value
}

extern "C" fn begin() {
    let Some(settings) = Settings::take() else { return };
    // SAFETY: as in `taken`.
    unsafe { env::remove_var("LD_PRELOAD") };
    PROCESS.store(process::id(), SeqCst);
    // SAFETY: `end` may be called at any exit.
    unsafe { libc::atexit(end) };
    let thread = thread::Builder::new().name("outlive-preload".into());
    let started = thread.spawn(move || {
        /// Lets the program end, even if the thread panics.
        struct Done;
        impl Drop for Done {
            fn drop(&mut self) {
                DONE.store(true, SeqCst);
            }
        }
        let _done = Done;
        run(&settings);
    });
    if let Err(error) = started {
        eprintln!("outlive preload: no thread can be started ({error})");
        process::exit(2);
    }
}

/// Waits for the report when the program ends.
extern "C" fn end() {
    if PROCESS.load(SeqCst) != process::id() {
        return;
    }
    ENDS.store(true, SeqCst);
    let begun = Instant::now();
    while !DONE.load(SeqCst) && begun.elapsed() < REPORT_PATIENCE {
        thread::sleep(GLANCE);
    }
}

fn run(settings: &Settings) {
    stop::begin();
    // Created on this thread, not the program's: an allocation there could wait for a lock that the
    // stopped program holds.
    let mut rounds = settings.tracker.map(|choice| Rounds::new(choice, settings.spoils));
    let mut due = Instant::now();
    // Processor time when there was first something to freeze.
    let mut began = None;
    let mut is_reported = false;
    loop {
        let ends = ENDS.load(SeqCst);
        let is_open = settings.is_open();
        if is_open {
            began.get_or_insert_with(|| settings.program_cpu());
            is_reported = false;
        }
        let is_over = !is_open && began.is_some() && !is_reported;
        // Reads the clocks first: the program continues while the last freeze is processed.
        let ended = if is_over || ends { settings.program_cpu() } else { (0.0, 0.0) };
        match &mut rounds {
            // The last freeze is compared, if the memory still exists.
            Some(rounds) if is_over => rounds.round(true),
            Some(rounds) if is_open && Instant::now() >= due => {
                due = Instant::now() + settings.interval;
                rounds.round(rounds.taken() % CHECKED == CHECKED - 1);
            }
            _ => {}
        }
        if is_over || ends && !is_reported {
            let began = began.unwrap_or(ended);
            let (cpu_s, system_s) = (ended.0 - began.0, ended.1 - began.1);
            let figures = rounds.as_ref().map_or_else(String::new, Rounds::json);
            let program =
                format!("\"program_cpu_s\": {cpu_s}, \"program_system_cpu_s\": {system_s}");
            write(&settings.report, &format!("{{{program}{figures}}}\n"));
            is_reported = true;
        }
        if ends {
            return;
        }
        thread::sleep(GLANCE);
    }
}

/// Writes the report under another name first, so that a reader finds all of it or none.
fn write(path: &Path, text: &str) {
    let part = path.with_extension("part");
    let written = fs::write(&part, text).and_then(|()| fs::rename(&part, path));
    if let Err(error) = written {
        eprintln!("outlive preload: {} cannot be written ({error})", path.display());
    }
}

/// Seconds on a clock.
fn seconds(clock: libc::clockid_t) -> f64 {
    let mut time = MaybeUninit::<libc::timespec>::zeroed();
    // SAFETY: the call writes a time to the given memory; all zero is a valid time, too.
    let time = unsafe {
        libc::clock_gettime(clock, time.as_mut_ptr());
        time.assume_init()
    };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
