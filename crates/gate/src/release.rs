//! Saves that cover outputs, and the passes that release them.

use crate::gate::{Gate, GateOptions, GateReport, SinkReport};
use crate::sink::{Answer, OutputKey, Sink};
use crate::state::{FIRST_PAUSE, State};
use outlive_format::Output;
use outlive_store::SaveHandle;
use outlive_types::Result;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest pause between two attempts to release an output.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
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
        self.prepare()?;
        let (list, below) = self.state().ledger.list()?;
        let handle = begin(list)?;
        let mut state = self.state();
        state.collect_saves();
        state.has_saved = true;
        state.ledger.stamp(below, handle.epoch());
        state.saves.push_back((handle.clone(), below));
        drop(state);
        self.0.changed.notify_all();
        Ok(handle)
    }

    fn prepare(&self) -> Result<()> {
        let sinks: Vec<(String, Arc<dyn Sink>)> = self
            .state()
            .sinks
            .iter()
            .map(|(name, open)| (name.clone(), open.sink.clone()))
            .collect();
        for (name, sink) in sinks {
            let tokens = sink.prepare().map_err(|error| error.context(format!("sink {name}")))?;
            let mut state = self.state();
            for token in tokens {
                state.ledger.give(&name, token);
            }
        }
        Ok(())
    }

    /// Releases everything that may be released at `now`.
    pub fn pass(&self, now: Instant) {
        let Some(_passing) = self.0.passing.try_lock() else { return };
        let mut has_released = false;
        while let Some((output, sink)) = self.next_release(now) {
            let key = self.key(&output);
            let attempt = AssertUnwindSafe(|| sink.release(&key, &output.token));
            let answer = catch_unwind(attempt)
                .unwrap_or_else(|_| Answer::Failed("the sink has panicked".to_owned()));
            has_released |= answer == Answer::Released;
            self.note_answer(&output, answer, now);
        }
        if has_released {
            self.store_confirmed();
            self.0.changed.notify_all();
        }
    }

    fn key(&self, output: &Output) -> OutputKey {
        let GateOptions { job, rank, .. } = &self.0.options;
        let Output { number, epoch, .. } = *output;
        OutputKey { job: job.clone(), rank: *rank, epoch, number }
    }

    /// Returns the first output that may be released, and its sink.
    fn next_release(&self, now: Instant) -> Option<(Output, Arc<dyn Sink>)> {
        let mut state = self.state();
        state.collect_saves();
        if !state.is_writer || !state.is_open {
            return None;
        }
        let heads = state.ledger.heads(state.committed_below);
        let ready =
            |output: &&Output| state.sinks.get(&output.sink).is_some_and(|open| open.is_ready(now));
        let output = heads.into_iter().find(ready)?.clone();
        let sink = state.sinks.get(&output.sink)?.sink.clone();
        Some((output, sink))
    }

    fn note_answer(&self, output: &Output, answer: Answer, now: Instant) {
        let mut state = self.state();
        let State { ledger, sinks, confirmed, .. } = &mut *state;
        let Some(open) = sinks.get_mut(&output.sink) else { return };
        let told = match answer {
            Answer::Released => {
                ledger.remove(output.number);
                confirmed.add(output);
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
        let Some(confirmations) = &self.0.options.confirmations else { return };
        let confirmed = self.state().confirmed.clone();
        let stored = confirmed.encode().and_then(|bytes| confirmations.store(&bytes));
        let was_told = std::mem::replace(&mut self.state().has_told_of_notes, stored.is_err());
        if let (Err(error), false) = (stored, was_told) {
            self.tell(format!(
                "the release of outputs cannot be noted ({error}): after a crash some are released again"
            ));
        }
    }

    /// Waits until [`Gate::pass`] has work, at most `limit`.
    pub(crate) fn wait_for_work(&self, limit: Duration) {
        let state = self.state();
        if !state.is_open {
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
        state.is_open && state.ledger.bytes() > state.bytes_max
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
        let sink = |name: &str| {
            let open = state.sinks.get(name);
            SinkReport {
                name: name.to_owned(),
                outputs: state.ledger.of_sink(name).count(),
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
            let mut state = self.state();
            (state.is_open, state.is_writer) = (false, false);
            state.sinks.clear();
            state.files.clear();
            let releaser = state.releaser.take();
            drop(state);
            self.0.changed.notify_all();
            drop(releaser);
        }
        self.report()
    }
}
