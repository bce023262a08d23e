//! The attempt of a program that runs without a supervisor: it notes its start and its end itself.

use super::cause::Cause;
use super::history::{Entry, History, UNSUPERVISED};
use crate::stop::monotonic;
use outlive_interval::Choice;
use outlive_pool::{Pool, host_name};
use outlive_store::commit::history;
use outlive_types::{Epoch, JobName, Result};
use std::ops::Range;
use std::time::Duration;

/// The attempt of this program.
#[derive(Clone, Debug)]
pub struct OwnAttempt {
    entry: Entry,
    began: Duration,
}

impl OwnAttempt {
    /// Notes in the history that this program has begun, at `began` by the clock that never jumps.
    /// Attempts of earlier programs that have noted no end are over, since this program saves the job
    /// now. Returns the history before, and the attempt.
    ///
    /// # Errors
    /// As [`History::read`]; errors of the pool.
    pub fn begin(pool: &Pool, job: &JobName, began: Duration) -> Result<(History, OwnAttempt)> {
        let mut history = History::read(pool, job)?;
        let ran = monotonic().saturating_sub(began);
        let ran_ns = u64::try_from(ran.as_nanos()).unwrap_or(u64::MAX);
        let started_ns = pool.env().clock.unix_ns().saturating_sub(ran_ns);
        let (host, process) = (host_name(), std::process::id());
        // Another handle of this program may have noted it.
        let is_own = |entry: &Entry| {
            entry.cause.is_none() && entry.runs_on(&host) && entry.supervisor == process
        };
        if let Some(at) = history.attempts.iter().rposition(is_own) {
            let entry = history.attempts.remove(at);
            return Ok((history, OwnAttempt { entry, began }));
        }
        history.end_gone(&host, pool, job, started_ns);
        let before = history.clone();
        let entry = Entry::begin(host, process, UNSUPERVISED, started_ns);
        history.attempts.push(entry.clone());
        history.limit();
        history.write(pool, job)?;
        Ok((before, OwnAttempt { entry, began }))
    }

    /// Notes a commit and the interval that follows, but does not write them.
    pub fn committed(&mut self, epoch: Epoch, choice: &Choice) {
        self.entry.interval = Some(choice.clone());
        self.entry.commits += 1;
        self.entry.newest = Some(epoch);
        self.entry.committed_s = Some(monotonic().saturating_sub(self.began).as_secs_f64());
    }

    /// Writes that the program has ended in order. A program that goes on to save notes that again.
    ///
    /// # Errors
    /// As [`OwnAttempt::begin`].
    pub fn end(&mut self, pool: &Pool, job: &JobName) -> Result<()> {
        self.entry.ran_s = Some(monotonic().saturating_sub(self.began).as_secs_f64());
        self.entry.cause = Some(Cause::Finished);
        self.write(pool, job)
    }

    /// Writes what is known of the attempt so far.
    ///
    /// # Errors
    /// As [`OwnAttempt::begin`].
    pub fn write(&self, pool: &Pool, job: &JobName) -> Result<()> {
        let mut history = History::read(pool, job)?;
        let own = history.attempts.iter_mut().rev().find(|entry| self.is(entry));
        match own {
            Some(own) => *own = self.entry.clone(),
            None => history.attempts.push(self.entry.clone()),
        }
        history.limit();
        history.write(pool, job)
    }

    /// Returns whether an entry of the history is that of this attempt.
    pub fn is(&self, entry: &Entry) -> bool {
        let key = |entry: &Entry| (entry.supervisor, entry.attempt, entry.started_ns);
        entry.host == self.entry.host && key(entry) == key(&self.entry)
    }
}

impl History {
    /// Ends the attempts without a supervisor that count as running, for a program that began at
    /// `now_ns` on `host`, and now saves the job. One that still runs on this host was stopped, as its
    /// session is over. All others are gone.
    fn end_gone(&mut self, host: &str, pool: &Pool, job: &JobName, now_ns: u64) {
        let running = self.attempts.iter_mut().filter(|entry| entry.cause.is_none());
        for entry in running.filter(|entry| entry.attempt == UNSUPERVISED) {
            entry.cause = Some(if entry.runs_on(host) { Cause::Stopped } else { Cause::Gone });
            let span = entry.started_ns..now_ns;
            let commits = commits_in(pool, job, &span);
            if let Some((newest_ns, newest)) = commits.first() {
                (entry.commits, entry.newest) = (commits.len() as u64, Some(*newest));
                entry.committed_s = Some((newest_ns - span.start) as f64 / 1e9);
            }
            entry.ran_s = entry.ran_s.or(entry.committed_s).or(Some(0.0));
        }
    }
}

/// Returns the times and epochs of the checkpoints that were frozen in a span, the newest first, as far
/// as the log can be read.
fn commits_in(pool: &Pool, job: &JobName, span: &Range<u64>) -> Vec<(u64, Epoch)> {
    let entries = history(pool, job).into_iter().flatten();
    let frozen = entries.filter_map(|entry| {
        let manifest = entry.manifest()?;
        Some((manifest.frozen_ns, manifest.epoch))
    });
    let started = frozen.take_while(|(at, _)| *at >= span.start);
    started.filter(|(at, _)| *at < span.end).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_interval::{Every, Learner};
    use outlive_pool::{Environment, FormatConfig, PoolConfig, Tuning, create};

    #[test]
    fn programs_without_a_supervisor_note_their_attempts() {
        let dir = tempfile::tempdir().unwrap();
        let config = PoolConfig::new(FormatConfig::new([3; 16]), Tuning::default());
        let pool = create(&dir.path().join("pool"), config, Environment::system()).unwrap();
        let job = JobName::new("job").unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let begun = |host: &str, supervisor, attempt| {
            let entry = Entry::begin(host.into(), supervisor, attempt, 1);
            Entry { committed_s: Some(8.0), ..entry }
        };
        let (here, own) = (host_name(), std::process::id());
        let attempts = vec![
            begun(&here, child.id(), UNSUPERVISED),
            begun(&here, std::os::unix::process::parent_id(), UNSUPERVISED),
            begun("elsewhere", own, UNSUPERVISED),
            begun(&here, own, 1),
        ];
        History { attempts }.write(&pool, &job).unwrap();
        let causes = || -> Vec<Option<Cause>> {
            let history = History::read(&pool, &job).unwrap();
            history.attempts.into_iter().map(|entry| entry.cause).collect()
        };
        let gone = Some(Cause::Gone);

        let (before, mut attempt) = OwnAttempt::begin(&pool, &job, monotonic()).unwrap();
        let want = [gone.clone(), Some(Cause::Stopped), gone, None];
        assert_eq!(causes(), [&want[..], &[None]].concat());
        assert_eq!(before.attempts.len(), 4);
        assert!(before.attempts[..3].iter().all(|entry| entry.ran_s == Some(8.0)));
        let choice = Learner::new(Every::Auto, false, Duration::ZERO).choice().clone();
        attempt.committed(5, &choice);
        let (again, mut second) = OwnAttempt::begin(&pool, &job, monotonic()).unwrap();
        assert_eq!((again.attempts.len(), second.entry.started_ns), (4, attempt.entry.started_ns));
        second.end(&pool, &job).unwrap();
        attempt.end(&pool, &job).unwrap();
        assert_eq!(causes(), [&want[..], &[Some(Cause::Finished)]].concat());
        let last = History::read(&pool, &job).unwrap().attempts.pop().unwrap();
        assert_eq!((last.commits, last.newest, last.attempt), (1, Some(5), UNSUPERVISED));
        // Another program has removed the history.
        History::default().write(&pool, &job).unwrap();
        attempt.write(&pool, &job).unwrap();
        assert_eq!(causes().len(), 1);
    }
}
