//! The history of a job's runs, kept in the pool: starts, ends and causes.

use super::cause::Cause;
use outlive_interval::Choice;
use outlive_pool::{Pool, host_name};
use outlive_types::{Epoch, Error, JobName, Result};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};

/// Number of attempts that a history keeps; older ones go.
const ENTRIES_MAX: usize = 1000;
/// Name of the file in the pool.
const KIND: &str = "history";

/// Number of an attempt that no supervisor has started.
pub const UNSUPERVISED: u32 = 0;

/// One attempt of a command, or of a program without a supervisor.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// Host of the supervisor, or of the program without one.
    pub host: String,
    /// Process id of the supervisor, or of the program without one.
    pub supervisor: u32,
    /// Number of the attempt under this supervisor, from 1; [`UNSUPERVISED`] without one.
    pub attempt: u32,
    /// Time of its start, in nanoseconds since 1970.
    pub started_ns: u64,
    /// Time from the start to the end, by a clock that never jumps; `None` while it runs.
    pub ran_s: Option<f64>,
    /// Time from the start to the last commit; `None` if nothing was committed.
    pub committed_s: Option<f64>,
    /// Cause of its end; `None` while it runs.
    pub cause: Option<Cause>,
    /// Checkpoint from which it went on.
    pub restored: Option<Epoch>,
    /// Newest checkpoint of the job when it had ended.
    pub newest: Option<Epoch>,
    /// Number of checkpoints that it has committed.
    pub commits: u64,
    /// Checkpoint that was marked as bad after it.
    pub distrusted: Option<Epoch>,
    /// Time from the start until its state was restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored_s: Option<f64>,
    /// The interval between its saves that it reported last, with the reasons.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<Choice>,
}

impl Entry {
    /// Returns the entry of an attempt that begins.
    pub fn begin(host: String, supervisor: u32, attempt: u32, started_ns: u64) -> Entry {
        Entry {
            host,
            supervisor,
            attempt,
            started_ns,
            ran_s: None,
            committed_s: None,
            cause: None,
            restored: None,
            newest: None,
            commits: 0,
            distrusted: None,
            restored_s: None,
            interval: None,
        }
    }

    /// Returns the cause of an end that it has not noted.
    pub(super) fn lost_cause(&self) -> Cause {
        if self.attempt == UNSUPERVISED { Cause::Gone } else { Cause::SupervisorLost }
    }

    /// Returns whether this is an attempt without a supervisor whose process is there on `host`.
    pub(super) fn runs_on(&self, host: &str) -> bool {
        let process = i32::try_from(self.supervisor).ok().and_then(Pid::from_raw);
        let is_there = process.is_some_and(|it| test_kill_process(it) != Err(Errno::SRCH));
        self.attempt == UNSUPERVISED && self.host == host && is_there
    }

    /// Returns the time whose work is lost: from the last commit to the end, in seconds. An attempt
    /// that finished has lost none. `None` while it runs, and for a program that is gone: the moment is
    /// not known.
    pub fn lost_s(&self) -> Option<f64> {
        let ran_s = self.ran_s.filter(|_| self.cause != Some(Cause::Gone))?;
        let is_kept = matches!(self.cause, Some(Cause::Finished));
        Some(if is_kept { 0.0 } else { (ran_s - self.committed_s.unwrap_or(0.0)).max(0.0) })
    }
}

/// Time that a job has run, and the part of it that was not lost.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Share {
    /// Time of all attempts that have ended.
    pub ran_s: f64,
    /// Time between each attempt's last commit and its end.
    pub lost_s: f64,
    /// Time between the end of an attempt and the start of the next one, by the time of day.
    pub waited_s: f64,
}

impl Share {
    /// Returns the share of useful work in all time; `None` if no time has passed.
    pub fn useful(&self) -> Option<f64> {
        let all = self.ran_s + self.waited_s;
        (all > 0.0).then(|| (self.ran_s - self.lost_s) / all)
    }
}

/// The attempts of a job, the oldest first.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct History {
    /// The attempts.
    pub attempts: Vec<Entry>,
}

impl History {
    /// Reads the history of a job; empty if there is none.
    ///
    /// # Errors
    /// `Damaged` if it cannot be understood; errors of the pool.
    pub fn read(pool: &Pool, job: &JobName) -> Result<History> {
        let Some(bytes) = pool.read_run_file(job, KIND)? else { return Ok(History::default()) };
        serde_json::from_slice(&bytes).map_err(|e| {
            Error::damaged(format!(
                "the history of job {job} cannot be read ({e}): move away its file in the pool's folder run"
            ))
        })
    }

    /// Drops the oldest attempts, if there are too many.
    pub fn limit(&mut self) {
        let surplus = self.attempts.len().saturating_sub(ENTRIES_MAX);
        self.attempts.drain(..surplus);
    }

    /// Writes it to the pool.
    ///
    /// # Errors
    /// Errors of the pool.
    pub fn write(&self, pool: &Pool, job: &JobName) -> Result<()> {
        let bytes = serde_json::to_vec_pretty(self)
            .map_err(|e| Error::bug(format!("a history cannot be written: {e}")))?;
        pool.write_run_file(job, KIND, &bytes)
    }

    /// Ends attempts that still count as running, since their supervisor was killed; without one, if
    /// they do not run on this host. Returns whether the last one is such.
    pub fn end_lost(&mut self) -> bool {
        let host = host_name();
        let is_over = |entry: &&mut Entry| entry.cause.is_none() && !entry.runs_on(&host);
        let is_last = self.attempts.last_mut().is_some_and(|entry| is_over(&entry));
        for entry in self.attempts.iter_mut().filter(is_over) {
            entry.cause = Some(entry.lost_cause());
            entry.ran_s = entry.ran_s.or(entry.committed_s).or(Some(0.0));
        }
        is_last
    }

    /// Returns the share of useful work.
    pub fn share(&self) -> Share {
        let mut share = Share::default();
        for entry in &self.attempts {
            share.ran_s += entry.ran_s.unwrap_or(0.0);
            share.lost_s += entry.lost_s().unwrap_or(0.0);
        }
        for pair in self.attempts.windows(2) {
            let ended_s = pair[0].started_ns as f64 / 1e9 + pair[0].ran_s.unwrap_or(0.0);
            // Less than none, if the time of day was set back.
            share.waited_s += (pair[1].started_ns as f64 / 1e9 - ended_s).max(0.0);
        }
        share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(started_s: u64, ran_s: f64, committed_s: Option<f64>, cause: Cause) -> Entry {
        let begun = Entry::begin("here".into(), 1, 1, started_s * 1_000_000_000);
        Entry { ran_s: Some(ran_s), committed_s, cause: Some(cause), ..begun }
    }

    #[test]
    fn the_share_of_useful_work_counts_lost_work_and_pauses() {
        let history = History {
            attempts: vec![
                entry(100, 50.0, Some(40.0), Cause::Killed(9)),
                entry(160, 20.0, None, Cause::Hung),
                // The clock was set back meanwhile.
                entry(150, 40.0, Some(30.0), Cause::Finished),
            ],
        };
        let share = history.share();
        assert_eq!(share, Share { ran_s: 110.0, lost_s: 30.0, waited_s: 10.0 });
        assert!((share.useful().unwrap() - 80.0 / 120.0).abs() < 1e-9);
        assert_eq!(History::default().share().useful(), None);
    }

    #[test]
    fn attempts_whose_supervisor_is_gone_are_ended() {
        let running = Entry { ran_s: None, cause: None, ..entry(1, 0.0, Some(5.0), Cause::Hung) };
        let mut history = History { attempts: vec![running] };
        assert_eq!(history.attempts[0].lost_s(), None);
        assert!(history.end_lost());
        assert!(!history.end_lost());
        assert_eq!(history.attempts[0].cause, Some(Cause::SupervisorLost));
        assert_eq!(history.attempts[0].lost_s(), Some(0.0));
    }
}
