//! The supervisor's loop: attempts, pauses, and the end.

use crate::attempt::{Attempt, AttemptEnd, LOOK_EVERY, pause, signal_name};
use crate::deadline::{Deadline, Now};
use crate::interrupts::{Interrupt, Interrupts};
use crate::options::RunOptions;
use crate::policy::{Ended, Next, Policy};
use crate::pool_side::PoolSide;
use crate::process::adopt_orphans;
use crate::transcripts::{Tell, Transcripts};
use outlive_client::past::{Cause, Entry, History};
use outlive_client::stop::{
    EVERY_VARIABLE, FOLDER_VARIABLE, HELPED_VARIABLE, JOB_VARIABLE, POOL_VARIABLE, PoolStops,
    RunFolder, StopRequest, TRANSCRIPT_VARIABLE, monotonic,
};
use outlive_format::Mark;
use outlive_helper::HelperGuard;
use outlive_pool::Pool;
use outlive_store::commit::history;
use outlive_types::{Epoch, Error, JobName, Result, counted};
use signal_hook::consts::SIGTERM;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

/// The end of a supervised run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The command has finished.
    Finished,
    /// The command was asked to stop, and has saved this checkpoint for that.
    Saved(Epoch),
    /// The command is to be started again later; nothing was saved for that.
    Requeue(String),
    /// A person interrupted it.
    Interrupted,
    /// No restart helps.
    GaveUp(String),
}

/// Runs a command until it has finished, was asked to stop, or no restart helps. `tell` gets each
/// message for a person.
///
/// # Errors
/// `Invalid` if the command cannot be started, or another supervisor runs the job; errors of the
/// pool before the first start. Later ones are told, and the command goes on.
pub fn run(pool: &Pool, options: &RunOptions, tell: &Tell) -> Result<Outcome> {
    let _lock = pool.lock_run(&options.job)?;
    let temporary = tempfile::Builder::new().prefix("outlive-run-").tempdir();
    let temporary =
        temporary.map_err(|e| Error::io("making a folder in", &std::env::temp_dir(), &e))?;
    let at = |end_ns| {
        Deadline::at(end_ns, options.grace, now(pool)).ok_or_else(|| {
            Error::invalid("the time by which the run must have ended is over already")
        })
    };
    let deadline = options.stop_by_ns.map(at).transpose()?;
    let mut past = History::read(pool, &options.job)?;
    if past.end_lost() {
        note_commits(pool, &options.job, &mut past);
    }
    let transcripts = options
        .gate
        .then(|| {
            let kept = pool.make_run_folder(&options.job, "transcripts")?;
            let root = kept.unwrap_or_else(|| temporary.path().join("transcripts"));
            make_folder(&root)?;
            Transcripts::start(&root, tell.clone())
        })
        .transpose()?;
    let mut supervisor = Supervisor {
        pool,
        options,
        tell,
        interrupts: Interrupts::begin()?,
        in_pool: PoolStops::begin(pool, &options.job),
        pool_side: PoolSide::start(pool, &options.job)?,
        folder: RunFolder::create(temporary.path())?,
        past,
        deadline,
    };
    // Before this process adopts orphans: the helper is none of the command's processes.
    let helper = options.helper.as_deref().and_then(|command| {
        let made = HelperGuard::new(command);
        made.inspect_err(|error| {
            tell(&format!(
                "no helper holds the images of saves ({error}): a save that is not committed when the \
                 command is killed is lost"
            ));
        })
        .ok()
    });
    adopt_orphans();
    let outcome = supervisor.run(temporary.path(), transcripts.as_ref(), helper.is_some())?;
    match transcripts {
        Some(transcripts) => conclude(&transcripts, outcome, &mut supervisor.interrupts, tell),
        None => Ok(outcome),
    }
}

fn make_folder(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).map_err(|e| Error::io_named("making", path, &e))
}

/// Shows what the command has printed and no attempt will repeat, and waits until all of it is
/// written.
fn conclude(
    transcripts: &Transcripts,
    outcome: Outcome,
    interrupts: &mut Interrupts,
    tell: &Tell,
) -> Result<Outcome> {
    match outcome {
        Outcome::Finished => transcripts.finish(),
        Outcome::GaveUp(_) | Outcome::Interrupted => transcripts.last(),
        Outcome::Saved(_) | Outcome::Requeue(_) => {}
    }
    match (transcripts.settle(interrupts), &outcome) {
        (Ok(()), Outcome::Finished) => transcripts.remove(),
        (Ok(()), _) => {}
        (Err(error), Outcome::Finished) => {
            return Err(
                error.context("the command has finished, but not all that it printed is shown")
            );
        }
        (Err(error), _) => tell(&format!("not all that the command printed is shown: {error}")),
    }
    Ok(outcome)
}

fn now(pool: &Pool) -> Now {
    Now { monotonic: monotonic(), unix_ns: pool.env().clock.unix_ns() }
}

struct Supervisor<'a> {
    pool: &'a Pool,
    options: &'a RunOptions,
    tell: &'a Tell,
    interrupts: Interrupts,
    in_pool: PoolStops,
    pool_side: PoolSide,
    folder: RunFolder,
    past: History,
    /// Time by which the command must have ended.
    deadline: Option<Deadline>,
}

impl Supervisor<'_> {
    fn run(
        &mut self,
        path: &Path,
        transcripts: Option<&Transcripts>,
        is_helped: bool,
    ) -> Result<Outcome> {
        let mut policy = Policy::new(self.options.give_up);
        let (mut attempt, mut read, mut has_told_unused) = (0, 0, false);
        let (options, folder) = (self.options, self.folder.clone());
        let mut variables = vec![
            (FOLDER_VARIABLE, path.as_os_str().to_owned()),
            (POOL_VARIABLE, OsString::from(&self.pool.config().format.pool_id)),
            (JOB_VARIABLE, OsString::from(options.job.as_str())),
            // Also without one: this supervisor may itself run under another.
            (EVERY_VARIABLE, OsString::from(options.every.as_deref().unwrap_or_default())),
            (HELPED_VARIABLE, OsString::from(if is_helped { "1" } else { "" })),
            (TRANSCRIPT_VARIABLE, OsString::new()),
        ];
        loop {
            attempt += 1;
            let newest_before = self.newest(None);
            self.note_start(attempt);
            let sign = self.folder.last_sign();
            let printing = transcripts.map(|it| it.begin(self.pool.env().clock.unix_ns()));
            let started = printing.transpose().and_then(|printing| {
                if let (Some(printing), Some(place)) = (&printing, variables.last_mut()) {
                    place.1 = printing.folder.clone().into_os_string();
                }
                Attempt::start(options, &folder, &variables, read, transcripts, printing)
            });
            let mut running = match started {
                Ok(running) => running,
                Err(error) => {
                    self.past.attempts.pop();
                    self.write_history();
                    return Err(error);
                }
            };
            let (mut end, read_now) = self.attend(&mut running, newest_before);
            self.settle(attempt);
            self.count_completed(&mut end);
            if let (Some(transcripts), true) = (transcripts, end.cause != Cause::Finished) {
                self.cover(transcripts);
            }
            read = read_now;
            let newest = self.newest(end.last_committed);
            self.note_end(&end, newest);
            if end.interrupted && end.cause != Cause::Finished {
                return Ok(Outcome::Interrupted);
            }
            let shows_crash = || transcripts.inspect(|it| it.crash(attempt));
            if end.cause == Cause::Stopped {
                shows_crash();
                return Ok(match end.saved_to_stop {
                    Some(epoch) => Outcome::Saved(epoch),
                    None => Outcome::Requeue(
                        "it was asked to stop, and has committed no checkpoint for that".into(),
                    ),
                });
            }
            let ended = Ended {
                cause: end.cause.clone(),
                restored: end.restored,
                has_older: end
                    .restored
                    .is_some_and(|epoch| self.pool_side.has_older(epoch).unwrap_or(false)),
                newest_before,
                newest,
                save_failed: end.save_failed,
            };
            let (wait, distrust) = match policy.after(&ended) {
                Next::Finish => return Ok(Outcome::Finished),
                Next::Requeue => {
                    shows_crash();
                    return Ok(Outcome::Requeue("it asks for that".into()));
                }
                Next::GiveUp { reason, forgive } => {
                    if let Some(epoch) = forgive {
                        self.mark(epoch, Mark::None);
                    }
                    return Ok(Outcome::GaveUp(reason));
                }
                Next::Restart { pause, distrust } => (pause, distrust),
            };
            let of = match newest {
                Some(epoch) => format!("; the newest checkpoint is {epoch}"),
                None => String::new(),
            };
            let when = match wait.as_secs() {
                0 => "at once".to_owned(),
                seconds => format!("in {seconds} s"),
            };
            (self.tell)(&format!(
                "attempt {attempt}: the command {} after {:.1} s{of}. It is started again {when}",
                past_tense(&end.cause),
                end.ran.as_secs_f64(),
            ));
            if self.folder.last_sign() == sign && newest == newest_before && !has_told_unused {
                has_told_unused = true;
                (self.tell)(&format!(
                    "attempt {attempt}: the command has not opened job {} of this pool: are --pool and --job \
                     those of the program? The jobs are listed by: {}",
                    self.options.job,
                    self.pool.command("ls", &[])
                ));
            }
            shows_crash();
            if let Some(epoch) = distrust {
                self.distrust(epoch);
            }
            let Supervisor { interrupts, in_pool, pool, options, deadline, .. } = self;
            let mut stops = || match deadline.is_some_and(|deadline| deadline.is_due(now(pool))) {
                true => Some("--stop-by".into()),
                false => in_pool.look(pool, &options.job),
            };
            match pause(interrupts, wait, &mut stops) {
                Some((_, true)) => return Ok(Outcome::Interrupted),
                Some((reason, false)) => {
                    return Ok(Outcome::Requeue(format!("{reason} came between two attempts")));
                }
                None => {}
            }
        }
    }

    /// Waits until a helper has completed what the command has saved before its end, or a request to
    /// stop comes.
    fn settle(&self, attempt: u32) {
        let is_due = || self.deadline.as_ref().is_some_and(|it| it.is_due(now(self.pool)));
        let mut goes_on = || !self.interrupts.has_come() && !is_due();
        match outlive_helper::settle(self.pool, &self.options.job, &mut goes_on) {
            Ok(said) => {
                said.iter().for_each(|text| (self.tell)(&format!("attempt {attempt}: {text}")));
            }
            Err(error) => (self.tell)(&format!("attempt {attempt}: {error}")),
        }
    }

    /// Counts a save that a helper has completed: the work before it is not lost.
    fn count_completed(&self, end: &mut AttemptEnd) {
        let Some(started_ns) = self.past.attempts.last().map(|entry| entry.started_ns) else {
            return;
        };
        let Ok(Some((epoch, frozen_ns))) = self.pool_side.newest_frozen() else { return };
        if Some(epoch) > end.last_committed && frozen_ns >= started_ns {
            end.commits += 1;
            end.last_committed = Some(epoch);
            let frozen = Duration::from_nanos(frozen_ns - started_ns).min(end.ran);
            end.committed = end.committed.max(Some(frozen));
        }
    }

    /// Shows what the newest checkpoint covers. Its commit may have come after the end of the command,
    /// which then has reported nothing.
    fn cover(&self, transcripts: &Transcripts) {
        match self.pool_side.covered() {
            Ok(spans) => transcripts.cover(spans, false),
            // The next attempt reports them once it has restored the checkpoint.
            Err(error) => (self.tell)(&format!(
                "the lines that the newest checkpoint covers are not known yet: {error}"
            )),
        }
    }

    /// Attends an attempt to its end.
    fn attend(
        &mut self,
        running: &mut Attempt<'_>,
        newest_before: Option<Epoch>,
    ) -> (AttemptEnd, u64) {
        let mut known = newest_before;
        let (pool, job) = (self.pool, self.options.job.clone());
        loop {
            let mut trouble = None;
            for interrupt in self.interrupts.take() {
                match interrupt {
                    Interrupt::Stop(signal) => {
                        let deadline = self.end_of_grace();
                        let request = StopRequest { reason: signal_name(signal), deadline };
                        trouble = running.stop(request, signal == SIGTERM).or(trouble);
                    }
                    Interrupt::Forward(signal) => running.forward(signal),
                }
            }
            if let Some(reason) = self.in_pool.look(pool, &job) {
                let deadline = self.deadline.as_ref().map(Deadline::monotonic);
                trouble = running.ask_once(StopRequest { reason, deadline }).or(trouble);
            }
            if self.deadline.is_some_and(|deadline| deadline.is_due(now(pool))) {
                let request =
                    StopRequest { reason: "--stop-by".into(), deadline: self.end_of_grace() };
                trouble = running.ask_once(request).or(trouble);
            }
            if let Some(error) = trouble {
                (self.tell)(&format!(
                    "the command cannot be asked to save, so it is ended: {error}"
                ));
            }
            let mut newer = |reported: Option<Epoch>| {
                known = known.max(reported);
                let newest = self.pool_side.newest().unwrap_or(None);
                let is_newer = newest > known;
                known = newest.max(known);
                is_newer
            };
            if let Some(end) = running.look(&mut newer) {
                return end;
            }
            self.interrupts.wait(LOOK_EVERY);
        }
    }

    /// Returns the time by which a command that is asked now must have ended.
    fn end_of_grace(&self) -> Option<Duration> {
        let (now, grace) = (monotonic(), monotonic().saturating_add(self.options.grace));
        let end = self.deadline.as_ref().map(Deadline::monotonic);
        Some(end.map_or(grace, |end| end.min(grace).max(now)))
    }

    /// Returns the newest checkpoint of the job; the `reported` one if the pool does not answer.
    fn newest(&self, reported: Option<Epoch>) -> Option<Epoch> {
        match self.pool_side.newest() {
            Ok(newest) => newest.max(reported),
            Err(error) => {
                (self.tell)(&format!("the checkpoints of the job cannot be read now: {error}"));
                reported
            }
        }
    }

    /// Marks a checkpoint. Returns whether that was possible.
    fn mark(&self, epoch: Epoch, mark: Mark) -> bool {
        let marked = self.pool_side.mark(epoch, mark);
        if let Err(error) = &marked {
            let mark = mark.name();
            (self.tell)(&format!("checkpoint {epoch} did not get the mark {mark} yet: {error}"));
        }
        marked.is_ok()
    }

    /// Marks a checkpoint as bad, so that the command restores the one before it.
    fn distrust(&mut self, epoch: Epoch) {
        if self.mark(epoch, Mark::Bad) {
            (self.tell)(&format!(
                "{} from checkpoint {epoch} made no newer one, so its state may be at fault: it is marked as bad, and the next attempt restores the one before it. To take that \
                     back: {}",
                counted(self.options.give_up.into(), "attempt"),
                self.pool.command("mark", &[&format!("{}@{epoch}", self.options.job), "good"])
            ));
            if let Some(entry) = self.past.attempts.last_mut() {
                entry.distrusted = Some(epoch);
            }
            self.write_history();
        }
    }

    fn note_start(&mut self, attempt: u32) {
        let started_ns = self.pool.env().clock.unix_ns();
        let (host, supervisor) = (outlive_pool::host_name(), std::process::id());
        self.past.attempts.push(Entry::begin(host, supervisor, attempt, started_ns));
        self.write_history();
    }

    fn note_end(&mut self, end: &AttemptEnd, newest: Option<Epoch>) {
        if let Some(entry) = self.past.attempts.last_mut() {
            entry.ran_s = Some(end.ran.as_secs_f64());
            entry.committed_s = end.committed.map(|time| time.as_secs_f64());
            entry.cause = Some(end.cause.clone());
            entry.restored = end.restored;
            entry.restored_s = end.restored_after.map(|time| time.as_secs_f64());
            entry.interval = end.interval.clone();
            entry.commits = end.commits;
            entry.newest = newest;
        }
        self.write_history();
    }

    /// Writes the history. A pool that is away must not end the program.
    fn write_history(&mut self) {
        self.past.limit();
        if let Err(error) = self.pool_side.write(&self.past) {
            (self.tell)(&format!("the history of the job is not written yet: {error}"));
        }
    }
}

/// Gives the last attempt, whose supervisor was killed, the commits that the log shows.
fn note_commits(pool: &Pool, job: &JobName, past: &mut History) {
    let Some(entry) = past.attempts.last_mut() else { return };
    if count_commits(pool, job, entry).is_ok() && entry.commits > 0 {
        entry.ran_s = entry.committed_s;
    }
}

/// Counts the commits since the start of an attempt, as the log shows them: for one that runs, or
/// whose supervisor was killed.
///
/// # Errors
/// Errors of the log.
pub fn count_commits(pool: &Pool, job: &JobName, entry: &mut Entry) -> Result<()> {
    let mut entries = history(pool, job)?;
    (entry.commits, entry.committed_s) = (0, None);
    // Those that a prune has dropped since count, too.
    while let Some(found) = entries.step() {
        let Some(manifest) = found.manifest() else { continue };
        let Some(since_ns) = manifest.frozen_ns.checked_sub(entry.started_ns) else { break };
        let since_s = since_ns as f64 / 1e9;
        entry.commits += 1;
        entry.newest = entry.newest.max(Some(manifest.epoch));
        entry.committed_s = Some(entry.committed_s.map_or(since_s, |time| time.max(since_s)));
    }
    Ok(())
}

fn past_tense(cause: &Cause) -> String {
    match cause {
        Cause::Killed(_) | Cause::OutOfMemory | Cause::Stopped => format!("was {cause}"),
        cause => cause.to_string(),
    }
}
