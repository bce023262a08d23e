//! One attempt: the command from its start to the end of its last process.

use crate::cause::{cause_of, out_of_memory_kills};
use crate::interrupts::{Interrupt, Interrupts};
use crate::options::RunOptions;
use crate::process::{Processes, is_in_foreground};
use crate::transcripts::{Printing, Transcripts};
use outlive_client::past::Cause;
use outlive_client::stop::{Report, RunFolder, StopRequest, TERMS_TOGETHER, monotonic};
use outlive_interval::Choice;
use outlive_types::{Epoch, Error, Result};
use rustix::process::{Signal, WaitStatus};
use signal_hook::consts::{SIGINT, SIGQUIT};
use std::ffi::OsString;
use std::time::{Duration, SystemTime};

/// Longest time between two looks at a running command. Signals and ends wake the supervisor at
/// once.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Time for a command to end by itself once the checkpoint for the request to stop is committed.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// Longest time between SIGTERM and SIGKILL at the end of the grace; a quarter of what is left at a
/// request.
const KILL_PATIENCE: Duration = Duration::from_secs(5);

/// Time without a look after which the supervisor itself must have stood still.
const AWAY: Duration = Duration::from_secs(5);

/// The end of an attempt.
#[derive(Clone)]
pub(crate) struct AttemptEnd {
    pub cause: Cause,
    /// Time from the start to the end.
    pub ran: Duration,
    /// Time from the start to the last commit.
    pub committed: Option<Duration>,
    pub restored: Option<Epoch>,
    /// Time from the start to its first restore.
    pub restored_after: Option<Duration>,
    /// The interval between its saves.
    pub interval: Option<Choice>,
    pub last_committed: Option<Epoch>,
    pub commits: u64,
    /// Whether its last save failed.
    pub save_failed: bool,
    /// Whether it was asked to stop.
    pub stopped: bool,
    /// The checkpoint that was saved for that.
    pub saved_to_stop: Option<Epoch>,
    /// Whether the command has said that it knows of a request.
    pub knew: bool,
    /// Whether a person has interrupted it.
    pub interrupted: bool,
}

/// State of a command that was asked to end.
struct Stopping {
    request: StopRequest,
    saved_at: Option<Duration>,
    /// Time at which SIGTERM was sent.
    terminated_at: Option<Duration>,
    /// Time between SIGTERM and SIGKILL.
    patience: Duration,
    /// Time of the first SIGTERM.
    termed_at: Option<Duration>,
    /// Whether a later SIGTERM has come, which ends the command at once.
    at_once: bool,
}

/// A running attempt.
pub(crate) struct Attempt<'a> {
    options: &'a RunOptions,
    folder: &'a RunFolder,
    /// Transcripts of the command, if its lines are held.
    transcripts: Option<&'a Transcripts>,
    processes: Processes,
    began: Duration,
    kills_before: u64,
    /// Bytes of the reports that were read.
    read: u64,
    sign: Option<SystemTime>,
    alive_at: Duration,
    stopping: Option<Stopping>,
    hung_at: Option<Duration>,
    looked_at: Duration,
    end: AttemptEnd,
}

impl<'a> Attempt<'a> {
    /// Starts the command.
    ///
    /// # Errors
    /// `Invalid` if it cannot be started.
    pub fn start(
        options: &'a RunOptions,
        folder: &'a RunFolder,
        variables: &[(&str, OsString)],
        read: u64,
        transcripts: Option<&'a Transcripts>,
        printing: Option<Printing>,
    ) -> Result<Attempt<'a>> {
        folder.forget_stop();
        let kills_before = out_of_memory_kills();
        let processes = Processes::start(&options.command, variables, printing)?;
        let now = monotonic();
        Ok(Attempt {
            options,
            folder,
            transcripts,
            processes,
            began: now,
            kills_before,
            read,
            sign: folder.last_sign(),
            alive_at: now,
            stopping: None,
            hung_at: None,
            looked_at: now,
            end: AttemptEnd {
                cause: Cause::Finished,
                ran: Duration::ZERO,
                committed: None,
                restored: None,
                restored_after: None,
                interval: None,
                last_committed: None,
                commits: 0,
                save_failed: false,
                stopped: false,
                saved_to_stop: None,
                knew: false,
                interrupted: false,
            },
        })
    }

    /// Asks the command to save and to end. A later request only brings the deadline forward. A
    /// SIGTERM that comes [`TERMS_TOGETHER`] after the first one ends the command at once. Returns
    /// why the command could not be asked: it gets SIGTERM then.
    pub fn stop(&mut self, request: StopRequest, is_term: bool) -> Option<Error> {
        let now = monotonic();
        let before = self.stopping.take();
        let is_news = before.is_none();
        let mut stopping = before.unwrap_or_else(|| Stopping {
            request: request.clone(),
            saved_at: None,
            terminated_at: None,
            patience: KILL_PATIENCE,
            termed_at: None,
            at_once: false,
        });
        self.end.stopped = true;
        if is_term {
            let first = *stopping.termed_at.get_or_insert(now);
            stopping.at_once |= now.saturating_sub(first) >= TERMS_TOGETHER;
        }
        let is_sooner = match (request.deadline, stopping.request.deadline) {
            (Some(new), Some(old)) => new < old,
            (new, old) => new.is_some() && old.is_none(),
        };
        if is_sooner {
            stopping.request.deadline = request.deadline;
        }
        if let (Some(deadline), true) = (stopping.request.deadline, is_news || is_sooner) {
            stopping.patience = KILL_PATIENCE.min(deadline.saturating_sub(now) / 4);
        }
        let asked = match is_news || is_sooner {
            true => self.folder.ask_to_stop(&stopping.request),
            false => Ok(()),
        };
        if stopping.at_once || asked.is_err() {
            stopping.terminated_at.get_or_insert(now);
            self.processes.signal(Signal::TERM);
        }
        self.stopping = Some(stopping);
        asked.err()
    }

    /// As [`Attempt::stop`], unless it was asked before.
    pub fn ask_once(&mut self, request: StopRequest) -> Option<Error> {
        if self.stopping.is_some() { None } else { self.stop(request, false) }
    }

    /// Looks once at the command, and does what is due. `newer` says whether the pool has a
    /// checkpoint that no report has named; it is asked before a command counts as hung. Returns the
    /// end of the attempt once the command has ended, with the number of bytes of reports read.
    pub fn look(
        &mut self,
        newer: &mut dyn FnMut(Option<Epoch>) -> bool,
    ) -> Option<(AttemptEnd, u64)> {
        // In this order: a command reports before it ends.
        let status = self.processes.reap();
        self.read_reports();
        if let Some(status) = status {
            return Some(self.finish(status));
        }
        let now = monotonic();
        let away = now.saturating_sub(self.looked_at);
        self.looked_at = now;
        if away > AWAY {
            // This process stood still, as after Ctrl-Z, and most likely the command did, too.
            self.alive_at = now;
        }
        self.look_for_hang(now, newer);
        self.press(now);
        None
    }

    /// Sends a signal to the command.
    pub fn forward(&mut self, signal: i32) {
        self.end.interrupted |= signal == SIGINT;
        // A terminal has sent these to the command as well.
        let from_terminal = [SIGINT, SIGQUIT];
        if from_terminal.contains(&signal) && is_in_foreground() {
            return;
        }
        if let Some(signal) = Signal::from_named_raw(signal) {
            self.processes.signal(signal);
        }
    }

    /// Reads the reports. If the folder is gone, there are none, and the pool shows what happens.
    fn read_reports(&mut self) {
        let now = monotonic();
        let reports = self.folder.reports(&mut self.read).unwrap_or_default();
        let is_news = !reports.is_empty();
        for report in reports {
            match report {
                Report::Restored(epoch) => {
                    self.end.restored = Some(epoch);
                    let after = now.saturating_sub(self.began);
                    self.end.restored_after.get_or_insert(after);
                }
                Report::Interval(choice) => self.end.interval = Some(*choice),
                Report::Committed(epoch) => {
                    // Each rank of a group reports it.
                    self.end.commits += u64::from(self.end.last_committed != Some(epoch));
                    self.end.last_committed = Some(epoch);
                    self.end.save_failed = false;
                    self.end.committed = Some(now.saturating_sub(self.began));
                }
                Report::Saved(epoch) => {
                    self.end.saved_to_stop = Some(epoch);
                    if let Some(stopping) = &mut self.stopping {
                        stopping.saved_at.get_or_insert(now);
                    }
                }
                Report::Failed(_) => self.end.save_failed = true,
                Report::Stopping => self.end.knew = true,
                Report::Covered(spans) => {
                    self.transcripts.inspect(|it| it.cover(spans, true));
                }
                Report::Recovered(spans) => {
                    self.transcripts.inspect(|it| it.cover(spans, false));
                }
                Report::Dropped(spans) => {
                    self.transcripts.inspect(|it| it.drop_to(spans));
                }
            }
        }
        let sign = self.folder.last_sign();
        if is_news || sign != self.sign {
            (self.sign, self.alive_at) = (sign, now);
        }
    }

    fn look_for_hang(&mut self, now: Duration, newer: &mut dyn FnMut(Option<Epoch>) -> bool) {
        let Some(limit) = self.options.hang else { return };
        if self.stopping.is_some() || now.saturating_sub(self.alive_at) < limit {
            if self.hung_at.is_some_and(|since| self.alive_at > since) {
                self.hung_at = None; // it goes on after all
            }
            return;
        }
        match self.hung_at {
            None if newer(self.end.last_committed) => self.alive_at = now,
            None => {
                self.hung_at = Some(now);
                self.processes.signal(Signal::TERM);
                // A stopped process takes no other signal.
                self.processes.signal(Signal::CONT);
            }
            Some(since) if now.saturating_sub(since) >= KILL_PATIENCE => {
                self.processes.signal(Signal::KILL);
            }
            Some(_) => {}
        }
    }

    /// Ends a command that was asked to stop, as its time goes.
    fn press(&mut self, now: Duration) {
        let Some(stopping) = &mut self.stopping else { return };
        let deadline = stopping.request.deadline;
        let patience = stopping.patience;
        let late = deadline.is_some_and(|deadline| now + patience >= deadline);
        let saved = stopping.saved_at.is_some_and(|at| now.saturating_sub(at) >= END_PATIENCE);
        if stopping.terminated_at.is_none() && (late || saved) {
            stopping.terminated_at = Some(now);
            self.processes.signal(Signal::TERM);
            self.processes.signal(Signal::CONT);
        }
        let is_over = deadline.is_some_and(|deadline| now >= deadline);
        let ignores = stopping.terminated_at.is_some_and(|at| now.saturating_sub(at) >= patience);
        let is_pressed = stopping.at_once || saved || deadline.is_none();
        if is_over || ignores && is_pressed {
            self.processes.signal(Signal::KILL);
        }
    }

    fn finish(&mut self, status: WaitStatus) -> (AttemptEnd, u64) {
        self.processes.end_all();
        // Processes that the command left behind may have saved as well.
        self.read_reports();
        let cause = cause_of(status);
        let is_out_of_memory = out_of_memory_kills() > self.kills_before;
        let is_asked = match cause {
            // It may have finished all the same. If it was not asked here, it has got a signal itself.
            Cause::Finished => self.end.knew,
            // A rank that fails may bring a signal to the others: no request to stop.
            _ => self.end.stopped,
        };
        let cause = match cause {
            _ if is_asked => Cause::Stopped,
            _ if self.hung_at.is_some() => Cause::Hung,
            Cause::Finished => Cause::Finished,
            _ if is_out_of_memory => Cause::OutOfMemory,
            cause => cause,
        };
        let ran = monotonic().saturating_sub(self.began);
        (AttemptEnd { cause, ran, ..self.end.clone() }, self.read)
    }
}

/// Waits for the pause before a restart. Returns the reason if a request to stop comes meanwhile:
/// true if a person has interrupted.
pub(crate) fn pause(
    interrupts: &mut Interrupts,
    pause: Duration,
    stops: &mut dyn FnMut() -> Option<String>,
) -> Option<(String, bool)> {
    let until = monotonic() + pause;
    loop {
        for interrupt in interrupts.take() {
            match interrupt {
                Interrupt::Stop(signal) => return Some((signal_name(signal), false)),
                Interrupt::Forward(signal @ (SIGINT | SIGQUIT)) => {
                    return Some((signal_name(signal), true));
                }
                Interrupt::Forward(_) => {}
            }
        }
        if let Some(reason) = stops() {
            return Some((reason, false));
        }
        let left = until.saturating_sub(monotonic());
        if left.is_zero() {
            return None;
        }
        interrupts.wait(left.min(LOOK_EVERY));
    }
}

/// Returns the name of a signal for messages.
pub(crate) fn signal_name(signal: i32) -> String {
    let name = signal_hook::low_level::signal_name(signal);
    name.map_or_else(|| format!("signal {signal}"), str::to_owned)
}
