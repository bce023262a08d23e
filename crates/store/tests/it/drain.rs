//! The persist phase of a save, beside a program that computes on all cores.

use crate::common;

use common::noise;
use outlive_backend::MemoryTarget;
use outlive_capture::OwnedSource;
use outlive_log::MemoryLog;
use outlive_pool::{Environment, FormatConfig, Pool, PoolConfig, Tuning};
use outlive_store::{Job, JobOptions};
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashMap;
use std::fs;
use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const STATE_BYTES: usize = 192 << 20;
/// By then, the persist phase has read the clocks more than once.
const SEEN_AFTER: Duration = Duration::from_millis(150);

/// Returns the processor time of each thread that persists, in nanoseconds.
fn drain_times() -> HashMap<String, u64> {
    let threads = fs::read_dir("/proc/self/task").unwrap().map(|entry| entry.unwrap().path());
    let drains = threads.filter(|path| {
        fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == "outlive-drain")
    });
    let times = drains.filter_map(|path| {
        let text = fs::read_to_string(path.join("schedstat")).ok()?;
        Some((path.display().to_string(), text.split(' ').next()?.parse().ok()?))
    });
    times.collect()
}

/// Returns the work of each persisting thread from [`SEEN_AFTER`] on, the busiest first.
fn worked(job: &Job, source: &mut OwnedSource) -> Vec<u64> {
    let handle = job.save(source).unwrap();
    let early = handle.wait(Some(SEEN_AFTER));
    let before = drain_times();
    let mut last = before.clone();
    if early.is_none() {
        while handle.wait(Some(Duration::from_millis(5))).is_none() {
            last.extend(drain_times());
        }
    }
    let since =
        |(thread, time): (&String, &u64)| time.saturating_sub(*before.get(thread).unwrap_or(&0));
    let mut worked: Vec<u64> = last.iter().map(since).collect();
    worked.sort_unstable_by(|a, b| b.cmp(a));
    worked
}

fn processor_time() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap()
}

/// Ends the program's threads, also if the test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Whether one thread has worked for a while, and the others hardly.
fn is_one(worked: &[u64]) -> bool {
    worked.len() > 1 && worked[0] > 20_000_000 && worked[1] < worked[0] / 5
}

#[test]
fn beside_a_program_that_computes_on_all_cores_one_thread_drains() {
    let tuning = Tuning { threads: 2, freeze: "fork".to_owned(), ..Tuning::default() };
    let mut source = OwnedSource::zeroed("state", STATE_BYTES, 2);
    let over = AtomicBool::new(false);
    let (mut seen, mut had_all) = (Vec::new(), false);
    let cores = thread::available_parallelism().unwrap().get();
    thread::scope(|scope| {
        let _ends = Ends(&over);
        // More than there are cores: other threads need them, too.
        for _ in 0..2 * cores {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    spin_loop();
                }
            });
        }
        // Other programs may keep this one from the cores, so that it seems to leave them free.
        for attempt in 0..6 {
            source.edit().unwrap().copy_from_slice(&noise(attempt, STATE_BYTES));
            let config = PoolConfig::new(FormatConfig::new([7; 16]), tuning.clone());
            let (target, log) = (Arc::new(MemoryTarget::new()), Arc::new(MemoryLog::new()));
            let pool = Pool::new(config, target, log, Environment::system());
            let job = Job::open(&pool, "a", JobOptions::default()).unwrap();
            let before = (Instant::now(), processor_time());
            seen.push(worked(&job, &mut source));
            let had =
                (processor_time() - before.1).as_secs_f64() / before.0.elapsed().as_secs_f64();
            had_all |= had > 0.95 * cores as f64;
            if seen.last().is_some_and(|worked| is_one(worked)) {
                break;
            }
        }
    });
    if !had_all && !seen.last().is_some_and(|worked| is_one(worked)) {
        eprintln!("not tested: other programs use the cores of this machine");
        return;
    }
    assert!(seen.last().is_some_and(|worked| is_one(worked)), "nanoseconds by thread: {seen:?}");
}
