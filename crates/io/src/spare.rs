//! Measures how many cores a running program leaves to the background threads.

use outlive_types::sync::plain::Mutex;
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Time between two readings of the clocks. It spans many pieces of work, as a thread reports its
/// time after each.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Sleep of a surplus thread before it checks again.
const PAUSE: Duration = Duration::from_millis(5);
/// Part of a core that the program may use while the core counts as free: the process's own writes
/// to disk take some.
const IDLE_PART: f64 = 0.5;

/// Background threads, numbered from 0. Only as many run as the program leaves cores. Priorities
/// alone do not keep them out of its way. The lowest one in use still takes a tenth of a core
/// ([`make_way`](crate::make_way)). An even lower one would starve while it holds what others wait
/// for. So surplus threads pause between two pieces of work.
#[derive(Debug)]
pub struct SpareCores {
    cores: usize,
    /// Nanoseconds of work of the background threads.
    own_ns: AtomicU64,
    allowed: AtomicUsize,
    last: Mutex<ClockReadings>,
}

/// Readings of the clocks at one moment.
#[derive(Clone, Copy, Debug)]
struct ClockReadings {
    at: Instant,
    /// Time of all threads of the process.
    process: Duration,
    own: Duration,
}

/// One background thread.
#[derive(Debug)]
pub struct Helper<'a> {
    spare: &'a SpareCores,
    number: usize,
    /// Reading of this thread's clock at its last report.
    told: Duration,
}

impl SpareCores {
    /// Starts with all cores that this process may use; they count as free until the program uses
    /// them.
    pub fn new() -> SpareCores {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let (own_ns, allowed) = (AtomicU64::new(0), AtomicUsize::new(cores));
        SpareCores { cores, own_ns, allowed, last: Mutex::new(ClockReadings::now(Duration::ZERO)) }
    }

    /// Registers the calling thread under this number.
    pub fn helper(&self, number: usize) -> Helper<'_> {
        Helper { spare: self, number, told: clock(ClockId::ThreadCPUTime) }
    }

    /// Number of threads that may work at present.
    pub fn allowed(&self) -> usize {
        self.allowed.load(Ordering::Relaxed)
    }

    /// Reads the clocks, if it is time and no other thread does.
    fn look(&self) {
        let Some(mut last) = self.last.try_lock() else { return };
        if last.at.elapsed() < LOOK_EVERY {
            return;
        }
        let now = ClockReadings::now(Duration::from_nanos(self.own_ns.load(Ordering::Relaxed)));
        self.allowed.store(allowed(self.cores, &last, &now), Ordering::Relaxed);
        *last = now;
    }
}

impl Default for SpareCores {
    fn default() -> Self {
        SpareCores::new()
    }
}

impl ClockReadings {
    fn now(own: Duration) -> ClockReadings {
        ClockReadings { at: Instant::now(), process: clock(ClockId::ProcessCPUTime), own }
    }
}

/// Number of background threads for which the program leaves a core, by its use between two
/// readings. At least one, so that the work continues.
fn allowed(cores: usize, before: &ClockReadings, now: &ClockReadings) -> usize {
    let own = now.own.saturating_sub(before.own);
    let program = now.process.saturating_sub(before.process).saturating_sub(own);
    let elapsed = now.at.saturating_duration_since(before.at);
    let used = program.as_secs_f64() / elapsed.as_secs_f64().max(1e-9);
    ((cores as f64 - used + IDLE_PART) as usize).max(1)
}

impl Helper<'_> {
    /// Waits while the program wants the core that this thread would take and there `is_work`;
    /// returns the time waited. Call it between two pieces of work.
    pub fn wait_turn(&mut self, is_work: impl Fn() -> bool) -> Duration {
        let now = clock(ClockId::ThreadCPUTime);
        let worked = now.saturating_sub(self.told).as_nanos() as u64;
        self.spare.own_ns.fetch_add(worked, Ordering::Relaxed);
        self.told = now;
        self.spare.look();
        let mut since = None;
        while self.number >= self.spare.allowed() && is_work() {
            since.get_or_insert_with(Instant::now);
            thread::sleep(PAUSE);
            self.spare.look();
        }
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

fn clock(id: ClockId) -> Duration {
    let now = clock_gettime(id);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn a_core_that_the_program_uses_is_its_own() {
        let start = Instant::now();
        let look = |ms: u64, process: u64, own: u64| ClockReadings {
            at: start + Duration::from_millis(ms),
            process: Duration::from_millis(process),
            own: Duration::from_millis(own),
        };
        let before = look(0, 1000, 100);
        for (cores, process, own, expected) in [
            (2, 1000, 100, 2),
            (2, 1020, 120, 2),
            // The program computes on one core; the other is free.
            (2, 1020, 100, 1),
            (2, 1040, 120, 1),
            (2, 1040, 100, 1),
            (8, 1020, 100, 7),
            (8, 1100, 140, 5),
            // The program uses a little of the second core.
            (2, 1044, 140, 2),
            // Clocks that are read one after the other may disagree.
            (2, 1020, 125, 2),
            (1, 1040, 140, 1),
        ] {
            let now = look(20, process, own);
            assert_eq!(allowed(cores, &before, &now), expected, "{cores} {process} {own}");
        }
        assert_eq!(allowed(4, &before, &before), 4);
    }

    #[test]
    fn a_surplus_helper_stays_until_there_is_no_work() {
        let spare = SpareCores::new();
        spare.allowed.store(1, Ordering::Relaxed);
        *spare.last.lock() = ClockReadings {
            at: Instant::now() + Duration::from_secs(3600),
            ..ClockReadings::now(Duration::ZERO)
        };
        let is_work = AtomicBool::new(true);
        let asked = AtomicUsize::new(0);
        let ask = || {
            asked.fetch_add(1, Ordering::Relaxed);
            is_work.load(Ordering::Relaxed)
        };
        thread::scope(|scope| {
            let one = scope.spawn(|| spare.helper(0).wait_turn(|| true));
            one.join().unwrap();
            let other = scope.spawn(|| spare.helper(1).wait_turn(ask));
            while asked.load(Ordering::Relaxed) < 5 {
                assert!(!other.is_finished());
                thread::yield_now();
            }
            assert!(!other.is_finished());
            is_work.store(false, Ordering::Relaxed);
            other.join().unwrap();
        });
    }
}
