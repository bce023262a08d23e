//! Delayed work, without a sleeping thread for each piece.

use crate::PerProcess;
use outlive_types::sync::plain::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

type Job = Box<dyn FnOnce() + Send>;

/// Longest pause before a job.
const PAUSE_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// Clock for delays. Tests use one that records the pauses instead.
pub trait Timer: Send + Sync + fmt::Debug {
    /// Runs `job` after `pause`, in a thread that other jobs share: it must neither wait nor take
    /// long.
    fn after(&self, pause: Duration, job: Job);

    /// Waits for `pause` in the calling thread.
    fn sleep(&self, pause: Duration);

    /// Whether there is a thread for jobs. Without one, `after` waits for the pause and runs the
    /// job itself, whatever locks its caller holds.
    fn has_thread(&self) -> bool {
        true
    }
}

/// The time of this machine. One thread of this process runs the jobs, in the order of their due
/// times.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SystemTimer;

/// Jobs by due time; the number orders jobs that are due at the same moment.
#[derive(Default)]
struct Agenda {
    jobs: Mutex<BTreeMap<(Instant, u64), Job>>,
    changed: Condvar,
}

/// The agenda of this process, and the number of jobs that it ever received. A forked child begins
/// with none: the thread that runs the jobs exists only in its parent.
static AGENDA: PerProcess<Option<(Arc<Agenda>, u64)>> = PerProcess::new(|_| None);

impl Timer for SystemTimer {
    fn after(&self, pause: Duration, job: Job) {
        let due = Instant::now() + pause.min(PAUSE_MAX);
        match agenda() {
            Some((agenda, number)) => agenda.put((due, number), job),
            // This user may start no more threads: this one waits for the pause.
            None => {
                thread::sleep(pause);
                job();
            }
        }
    }

    fn sleep(&self, pause: Duration) {
        thread::sleep(pause);
    }

    fn has_thread(&self) -> bool {
        agenda().is_some()
    }
}

/// Returns the agenda of this process, with its thread, and a number for one more job; `None` if
/// there is no thread.
fn agenda() -> Option<(Arc<Agenda>, u64)> {
    let mut known = AGENDA.lock();
    if known.is_none() {
        let agenda = Arc::<Agenda>::default();
        let its = agenda.clone();
        let thread = thread::Builder::new().name("outlive-timer".to_owned());
        thread.spawn(move || its.serve()).ok()?;
        *known = Some((agenda, 0));
    }
    let (agenda, count) = known.as_mut()?;
    *count += 1;
    Some((agenda.clone(), *count))
}

impl Agenda {
    fn put(&self, due: (Instant, u64), job: Job) {
        self.jobs.lock().insert(due, job);
        self.changed.notify_one();
    }

    fn serve(&self) {
        let mut jobs = self.jobs.lock();
        loop {
            let Some(first) = jobs.first_entry() else {
                jobs = self.changed.wait(jobs);
                continue;
            };
            match first.key().0.checked_duration_since(Instant::now()) {
                Some(left) if !left.is_zero() => {
                    let waited = self.changed.wait_timeout(jobs, left);
                    jobs = waited.0;
                }
                _ => {
                    let job = first.remove();
                    drop(jobs);
                    // A job that panics has reported it; the others are still due.
                    let _ = catch_unwind(AssertUnwindSafe(job));
                    jobs = self.jobs.lock();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn the_job_that_is_due_first_is_done_first_and_a_panic_holds_up_nothing() {
        let (sender, done) = channel();
        let agenda = Arc::<Agenda>::default();
        let now = Instant::now();
        for (number, late) in [(0, 1), (1, 3), (2, 2), (3, 3)] {
            let sender = sender.clone();
            let job = Box::new(move || sender.send(number).unwrap());
            agenda.put((now - Duration::from_secs(late), number), job);
        }
        let panics = Box::new(|| panic!("a job panics"));
        agenda.put((now - Duration::from_secs(4), 4), panics);
        thread::spawn(move || agenda.serve());
        assert_eq!(done.iter().take(4).collect::<Vec<_>>(), [1, 3, 2, 0]);
    }

    #[test]
    fn nothing_is_done_before_it_is_due() {
        let (sender, done) = channel();
        SystemTimer.after(Duration::MAX, Box::new(|| unreachable!("no program runs that long")));
        for millis in [3, 0, 7] {
            let (sender, asked) = (sender.clone(), Instant::now());
            let pause = Duration::from_millis(millis);
            SystemTimer
                .after(pause, Box::new(move || sender.send(asked.elapsed() >= pause).unwrap()));
        }
        assert_eq!(done.iter().take(3).collect::<Vec<_>>(), [true; 3]);
    }
}
