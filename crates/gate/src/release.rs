//! Saves that cover outputs, and the passes that release them.

use crate::file;
use crate::gate::{FILE, Gate, GateOptions, GateReport, SinkReport};
use crate::sink::{Answer, OutputKey, Sink};
use crate::state::{FIRST_PAUSE, State};
use outlive_format::Output;
use outlive_store::SaveHandle;
use outlive_types::{ErrorKind, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest pause between two attempts to release an output.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Time after which this process looks again whether it is the job's one writer.
const PROOF_AGE: Duration = Duration::from_secs(1);
/// Longest wait for a save, which nothing interrupts.
const MOMENT: Duration = Duration::from_millis(20);

impl Gate {
    /// Begins a save with `begin`, which gets the list of outputs for its checkpoint. The outputs
    /// given until now are released once it is committed.
    ///
    /// # Errors
    /// Those of [`Sink::prepare`] and of `begin`.
    pub fn cover(&self, begin: impl FnOnce(Vec<u8>) -> Result<SaveHandle>) -> Result<SaveHandle> {
        let _saving = self.0.saving.lock();
        self.base();
        self.prepare()?;
        let (list, below) = self.state().ledger.list()?;
        let handle = begin(list).inspect_err(|error| {
            if error.kind() == ErrorKind::Fenced {
                self.state().is_writer = false;
            }
        })?;
        let mut state = self.state();
        state.has_saved = true;
        state.ledger.stamp(below, handle.epoch());
        state.saves.push_back((handle.clone(), below));
        drop(state);
        self.0.changed.notify_all();
        Ok(handle)
    }

    fn prepare(&self) -> Result<()> {
        let mut state = self.state();
        state.collect_saves();
        let sinks = state.prepare_sinks();
        drop(state);
        for (name, sink, tokens) in sinks {
            if let Some(tokens) = tokens {
                self.recover(&name, &*sink, &tokens);
            }
            let tokens = sink.prepare().map_err(|error| error.context(format!("sink {name}")))?;
            let mut state = self.state();
            for token in tokens {
                state.ledger.give(&name, token);
            }
        }
        Ok(())
    }

    /// Tells a sink which of its tokens count. If it refuses, it stops.
    fn recover(&self, name: &str, sink: &dyn Sink, tokens: &[Vec<u8>]) {
        let tokens: Vec<&[u8]> = tokens.iter().map(Vec::as_slice).collect();
        let Err(error) = sink.recover(&tokens) else { return };
        if let Some(open) = self.state().sinks.get_mut(name) {
            (open.is_stopped, open.trouble) = (true, Some(error.to_string()));
        }
        self.tell(format!("the outputs to {name} stop: {error}"));
    }

    /// Releases everything that may be released at `now`.
    pub fn pass(&self, now: Instant) {
        let Some(_passing) = self.0.passing.try_lock() else { return };
        while let Some(next) = self.next_release(now) {
            let answer = match next.is_unproven.then(|| self.prove_writer(now)) {
                Some(Err(error)) if error.kind() == ErrorKind::Fenced => {
                    self.state().is_writer = false;
                    self.tell(format!("no more outputs are released: {error}"));
                    break;
                }
                Some(Err(error)) => Answer::Later(error.to_string()),
                _ => {
                    let key = self.key(&next.output);
                    let attempt = AssertUnwindSafe(|| next.sink.release(&key, &next.output.token));
                    catch_unwind(attempt)
                        .unwrap_or_else(|_| Answer::Failed("the sink has panicked".to_owned()))
                }
            };
            let is_released = answer == Answer::Released;
            self.note_answer(&next, answer, now);
            if is_released && !next.sink.is_idempotent() {
                self.store_confirmed();
            }
        }
        self.store_confirmed();
        self.0.changed.notify_all();
    }

    /// Makes sure that no other process has taken over since the last look.
    fn prove_writer(&self, now: Instant) -> Result<()> {
        (self.0.options.check_writer)()?;
        self.state().proven = Some(now);
        Ok(())
    }

    fn key(&self, output: &Output) -> OutputKey {
        let GateOptions { pool, job, rank, .. } = &self.0.options;
        let Output { number, epoch, .. } = *output;
        OutputKey { pool: *pool, job: job.clone(), rank: *rank, epoch, number }
    }

    /// Returns the first output that may be released, and its sink.
    fn next_release(&self, now: Instant) -> Option<NextRelease> {
        let mut state = self.state();
        state.collect_saves();
        if !state.is_writer || !state.is_open() {
            return None;
        }
        let mut notices = Vec::new();
        if state.has_committed {
            notices = state.cut_files();
            state.is_noting |= !notices.is_empty();
        }
        let heads = state.ledger.heads(state.committed_below);
        let ready =
            |output: &&Output| state.sinks.get(&output.sink).is_some_and(|open| open.is_ready(now));
        let output = heads.into_iter().find(ready).cloned();
        let next = output.and_then(|output| {
            let open = state.sinks.get(&output.sink)?;
            let age = state.proven.map(|proven| now.saturating_duration_since(proven));
            let is_unproven = age.is_none_or(|age| age > PROOF_AGE);
            let (sink, generation) = (open.sink.clone(), state.generation);
            Some(NextRelease { output, sink, is_unproven, generation })
        });
        drop(state);
        notices.into_iter().for_each(|notice| self.tell(notice));
        next
    }

    fn note_answer(&self, next: &NextRelease, answer: Answer, now: Instant) {
        let output = &next.output;
        let mut state = self.state();
        let is_same = |it: &Output| it.number == output.number && it.epoch == output.epoch;
        if state.generation != next.generation && !state.ledger.of_sink(&output.sink).any(is_same) {
            // A restore has dropped it meanwhile, and other outputs may have its number.
            return;
        }
        let State { ledger, sinks, confirmed, is_noting, .. } = &mut *state;
        // A sink that was closed, or replaced, meanwhile has released it all the same.
        let open = sinks.get_mut(&output.sink);
        if answer == Answer::Released {
            ledger.remove(output.number);
            confirmed.add(output);
            if let Some(open) = open.as_ref().filter(|_| output.sink.starts_with(FILE)) {
                confirmed.note_file(&output.sink, open.begin, file::end_of(&output.token));
            }
            *is_noting = true;
        }
        let Some(open) = open else { return };
        let told = match answer {
            Answer::Released => {
                (open.trouble, open.next, open.pause) = (None, None, FIRST_PAUSE);
                None
            }
            Answer::Later(why) => {
                let is_new = open.trouble.is_none();
                open.next = Some(now + open.pause);
                open.pause = (open.pause * 2).min(LONGEST_PAUSE);
                let text = format!("outputs to {} wait: {why}. They are tried again", output.sink);
                open.trouble = Some(why);
                is_new.then_some(text)
            }
            Answer::Failed(why) => {
                open.is_stopped = true;
                let text = format!(
                    "the outputs to {} stop: {why}. They stay in the checkpoints: mend the cause, and start the \
                     program again",
                    output.sink
                );
                open.trouble = Some(why);
                Some(text)
            }
        };
        drop(state);
        self.0.changed.notify_all();
        told.into_iter().for_each(|text| self.tell(text));
    }

    fn store_confirmed(&self) {
        let mut state = self.state();
        if !std::mem::take(&mut state.is_noting) {
            return;
        }
        let Some(confirmations) = &self.0.options.confirmations else { return };
        // The record is another process's by now.
        if !state.is_writer {
            return;
        }
        // A wait ends only once the record is there.
        state.is_noting = true;
        let confirmed = state.confirmed.clone();
        drop(state);
        let stored = confirmed.encode().and_then(|bytes| confirmations.store(&bytes));
        let mut state = self.state();
        state.is_noting = false;
        let was_told = std::mem::replace(&mut state.has_told_of_notes, stored.is_err());
        drop(state);
        if let (Err(error), false) = (stored, was_told) {
            self.tell(format!(
                "the release of outputs cannot be noted ({error}): after a crash some are released again"
            ));
        }
    }

    /// Waits until [`Gate::pass`] has work, at most `limit`.
    pub(crate) fn wait_for_work(&self, limit: Duration) {
        let state = self.state();
        if !state.is_open() {
            return;
        }
        let save = state.saves.front().map(|(handle, _)| handle.clone());
        let now = Instant::now();
        let next =
            state.sinks.values().filter_map(|open| open.next).filter(|next| *next > now).min();
        let limit = next.map_or(limit, |next| limit.min(next.saturating_duration_since(now)));
        match save {
            // A change meanwhile has to wait for a moment only.
            Some(handle) => {
                drop(state);
                handle.wait_done(Some(limit.min(MOMENT)));
            }
            None => drop(self.0.changed.wait_timeout(state, limit)),
        }
    }

    /// Returns whether the program is to save, since the gate holds much.
    pub fn wants_save(&self) -> bool {
        let state = self.state();
        state.is_open() && state.live_bytes() > state.bytes_max
    }

    /// Waits until everything that a save covers is released, at most `limit`. Returns whether that
    /// is so, or nothing more will be released: a save has failed, or a sink has stopped or is not
    /// open. Then [`Gate::report`] tells what is left.
    pub fn wait(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut state = self.state();
        loop {
            state.collect_saves();
            if !state.has_work() {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let left = left.min(MOMENT);
            state = self.0.changed.wait_timeout(state, left).0;
        }
    }

    /// Returns what is not released.
    pub fn report(&self) -> GateReport {
        let state = self.state();
        let outputs = state.ledger.count_below(u64::MAX);
        let mut names: Vec<&str> = state.ledger.outputs().map(|it| &it.sink[..]).collect();
        names.extend(state.sinks.iter().filter(|it| it.1.trouble.is_some()).map(|it| &it.0[..]));
        names.sort_unstable();
        names.dedup();
        let covered = state.covered_below();
        let sink = |name: &str| {
            let open = state.sinks.get(name);
            SinkReport {
                name: name.to_owned(),
                outputs: state.ledger.of_sink(name).count(),
                covered: state.ledger.of_sink(name).filter(|it| it.number < covered).count(),
                trouble: open.and_then(|open| open.trouble.clone()),
                is_stopped: open.is_some_and(|open| open.is_stopped),
                is_open: open.is_some(),
            }
        };
        GateReport {
            outputs,
            uncovered: outputs - state.ledger.count_below(state.covered_below()),
            bytes: state.ledger.bytes(),
            sinks: names.into_iter().map(sink).collect(),
        }
    }

    /// Closes the gate: waits for what can be released, at most `limit`, and ends the thread. Outputs
    /// that are left stay in the checkpoints that list them. Outputs that no save covers are never
    /// released, unless this process opens the gate again and saves: the next run repeats them.
    /// Returns what is left.
    pub fn close(&self, limit: Duration) -> GateReport {
        if self.is_open() {
            self.wait(limit);
        }
        let report = self.report();
        let mut state = self.state();
        state.openers = state.openers.saturating_sub(1);
        if state.openers == 0 {
            (state.is_writer, state.is_idle) = (false, true);
            let sinks = std::mem::take(&mut state.sinks);
            state.closed.extend(sinks.into_values().map(|open| open.sink));
            state.files.clear();
            let releaser = state.releaser.take();
            drop(state);
            self.0.changed.notify_all();
            drop(releaser);
        }
        report
    }
}

/// An output that may be released now.
struct NextRelease {
    output: Output,
    sink: Arc<dyn Sink>,
    /// Whether another process may have taken over meanwhile.
    is_unproven: bool,
    generation: u64,
}
