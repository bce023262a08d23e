//! A program's hold on a job: its saves and restores, and the checks of their outcomes.

use crate::actor::{Actor, Done};
use crate::oracle::Pending;
use crate::state::{Memory, State};
use outlive_capture::{ChangeTracker, MemorySource};
use outlive_store::{Job, MemoryImage, SaveHandle, Select};
use outlive_types::sync::pause;
use outlive_types::{Epoch, ErrorKind, FreezeRequest, Frozen, JobName, PageSource, Result};
use std::sync::Arc;

/// A program's hold on a job that it saves.
pub(crate) struct Saving<'a> {
    pub actor: &'a Actor,
    pub job: Arc<Job>,
    pub tracker: Arc<ChangeTracker>,
}

impl Saving<'_> {
    pub fn save(&self, state: &State) -> Done<SaveHandle> {
        let Actor { number, oracle, .. } = self.actor;
        let name = self.job.name();
        let inner = MemorySource::new(self.tracker.clone(), state.regions(), Vec::new(), 1);
        let asked = || oracle.will_commit(*number, name, Pending::State(state.clone()));
        let saved = self.job.save(&mut Source { inner, asked });
        let also = self.also();
        let handle = self.actor.met("a save", name, saved, &also)?;
        self.actor
            .dice
            .turns()
            .remark(|| format!("epoch {} of {name} will be {state:?}", handle.epoch()));
        Ok(handle)
    }

    pub fn wait(&self, handle: &SaveHandle) -> Done {
        let Actor { number, oracle, dice, .. } = self.actor;
        let (name, epoch) = (self.job.name(), handle.epoch());
        let outcome = handle.wait(None).expect("a wait without limit ends with the save");
        if outcome.is_err()
            && !self.actor.is_dead()
            && !dice.has_failed()
            && oracle.has_committed(*number, name, epoch)
        {
            let error = outcome.err();
            return Err(self.actor.violate(format!(
                "epoch {epoch} of {name} is committed, and its program was told {error:?}"
            )));
        }
        let also = self.also();
        let stats = self.actor.met("a save", name, outcome, &also)?;
        oracle.told(*number, name, stats.epoch);
        dice.achieved("save");
        Ok(())
    }

    fn also(&self) -> Vec<ErrorKind> {
        also(self.actor, self.job.name())
    }

    pub fn restore(&self, select: Select) -> Done<Option<(Epoch, State)>> {
        let looking = Looking { actor: self.actor, job: &self.job };
        looking.look(select, &mut |checkpoint, memory| {
            let streams = memory.streams();
            let named = checkpoint.streams().iter().zip(&streams);
            let primed: Vec<(&str, &[u8])> =
                named.map(|(stream, bytes)| (stream.name.as_str(), &bytes[..])).collect();
            self.tracker.prime(checkpoint.epoch(), &primed, 1);
        })
    }

    pub fn epochs(&self) -> Done<Vec<Epoch>> {
        self.actor.epochs(&self.job)
    }

    /// Closes the job, or ends without closing it.
    pub fn end(&self) -> Done {
        match self.actor.rng.below(8) {
            0 => {
                self.actor.dice.kill();
                self.actor.process.kill_after(0);
            }
            1 => {}
            _ => {
                let closed = self.job.close();
                self.actor.met("a close", self.job.name(), closed, &[])?;
            }
        }
        Ok(())
    }
}

/// Returns the errors with which a save may end now.
pub(crate) fn also(actor: &Actor, job: &JobName) -> Vec<ErrorKind> {
    let mut also = Vec::new();
    if actor.oracle.is_stale(actor.number, job) {
        also.push(ErrorKind::Fenced);
    }
    // The base of the save may be pruned, or given up as damaged: then the save reports that, and
    // the next one starts without a base.
    if actor.oracle.is_pruned(job) || actor.oracle.is_damaged() {
        also.push(ErrorKind::Retry);
    }
    // Operators may have removed too many of the targets that the save has written to.
    if actor.pool_world.space.operated {
        also.push(ErrorKind::Retry);
    }
    also
}

/// A program's hold on a job that it reads.
pub(crate) struct Looking<'a> {
    pub actor: &'a Actor,
    pub job: &'a Job,
}

impl Looking<'_> {
    pub fn look(
        &self,
        select: Select,
        primed: &mut dyn FnMut(&MemoryImage, &Memory),
    ) -> Done<Option<(Epoch, State)>> {
        let (actor, name) = (self.actor, self.job.name());
        let at_least = actor.oracle.newest_told(name);
        let (mut seen, mut prepared) = (actor.oracle.last_epoch(name), 0);
        let mut found = None;
        let restored = self.job.restore(
            select,
            &mut |checkpoint| {
                prepared = actor.oracle.last_epoch(name);
                pause("prepare a restore");
                let all = (0..checkpoint.streams().len()).collect();
                Ok((all, Memory::of(checkpoint)))
            },
            &mut |checkpoint, memory| {
                pause("end a restore");
                primed(checkpoint, &memory);
                found = Some(memory.restored(checkpoint));
                pause("restored");
                Ok(())
            },
        );
        let restored = self.judge(select, restored)?;
        // A program that restores the newest checkpoint knows of all commits before its start. It
        // knows of a later one, before its look at the log, if it restores that one. A program that
        // goes back, or passes over damaged checkpoints, knows of those that were there when it
        // found its own.
        seen = match (select, &restored) {
            (Select::Epoch(_), _) => prepared,
            _ if actor.oracle.is_damaged() => prepared,
            // If it found nothing, all that was there is lost or dropped, and the log says so.
            (_, None) => seen.max(actor.oracle.newest_gone(name)),
            // The log also shows what was lost with memory.
            _ if actor.oracle.is_wiped() => seen.max(prepared),
            (_, Some(restored)) => seen.max(restored.epoch),
        };
        actor.oracle.restored(actor.number, name, seen);
        let (Some(restored), Some(found)) = (restored, found) else {
            // The checkpoint may have been lost with memory meanwhile.
            let is_there = actor.oracle.must_find(name, at_least);
            return match is_there && !actor.oracle.is_damaged() && !actor.oracle.is_rolled_back() {
                true => Err(actor.violate(format!("nothing of {name} was found"))),
                false => Ok(None),
            };
        };
        let is_old =
            select == Select::Newest && restored.epoch < at_least && !actor.oracle.is_rolled_back();
        if is_old && !actor.oracle.is_damaged() && actor.oracle.must_find(name, at_least) {
            return Err(actor.violate(format!(
                "epoch {} of {name} was restored as the newest, and epoch {at_least} was committed",
                restored.epoch
            )));
        }
        let state = actor.check(name, restored.epoch, &found)?;
        actor.dice.achieved("restore");
        Ok(Some((restored.epoch, state)))
    }

    pub fn judge<T>(&self, select: Select, outcome: Result<T>) -> Done<T> {
        let name = self.job.name();
        let is_dropped = match select {
            Select::Epoch(epoch) => {
                let committed = self.actor.oracle.committed(name).remove(&epoch);
                committed.is_none_or(|committed| committed.doomed)
            }
            _ => false,
        };
        let also: &[ErrorKind] = if is_dropped { &[ErrorKind::Invalid] } else { &[] };
        self.actor.met("a restore", name, outcome, also)
    }
}

/// A program's memory; others may run before and after its freeze.
pub(crate) struct Source<F> {
    pub inner: MemorySource,
    /// Callback before the freeze.
    pub asked: F,
}

impl<F: FnMut()> PageSource for Source<F> {
    fn freeze(&mut self, request: &FreezeRequest) -> Result<Box<dyn Frozen>> {
        pause("freeze");
        (self.asked)();
        let frozen = self.inner.freeze(request);
        pause("frozen");
        frozen
    }
}
