//! Restores: at once, or lazily.

use super::Job;
use crate::commit::{Entry, history};
use crate::group::{Together, TogetherRestored};
use crate::read::{
    MemoryImage, RestoreSink, RestoreStats, Select, Skipped, first_good, first_with_rank,
};
use crate::recreate::{RESTORE_WAIT, recreate_lost};
use crate::restore::{LazyEnds, LazyFill, LazySink, Runner, refuse_suspect};
use outlive_format::Manifest;
use outlive_types::{Epoch, Error, ErrorKind, Result, metrics};

/// Numbers of the streams to read, and the sink for them.
pub type Prepared<S> = (Vec<usize>, S);

/// Result of a restore.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Restored {
    /// The epoch that was restored.
    pub epoch: Epoch,
    /// Figures.
    pub stats: RestoreStats,
    /// Newer checkpoints that were skipped, with the errors.
    pub skipped: Skipped,
}

impl Job {
    /// Restores on all ranks of a group. Each rank calls `attempt` with one checkpoint after the
    /// other, newest first, until all succeed with the same one. Before that, all call `look` with
    /// it: small data that many ranks need is read before any rank reads large data. Both get the
    /// manifest, and the number of the newest record that was read; after a `Damaged` error all
    /// ranks skip the checkpoint. Waits for a save in progress. `None` if there is no checkpoint.
    /// Collective.
    ///
    /// # Errors
    /// The same on all ranks: `Damaged` if no whole checkpoint was found; any other error of one of
    /// them. `Bug` without a group.
    pub fn restore_together<T>(
        &self,
        select: Select,
        look: &mut dyn FnMut(&Manifest, u64) -> Result<()>,
        attempt: &mut dyn FnMut(&Manifest, u64) -> Result<T>,
    ) -> Result<Option<TogetherRestored<T>>> {
        self.inner.check_process()?;
        let Some(member) = &self.inner.member else {
            return Err(Error::bug("a job without a group cannot restore together"));
        };
        let ready = || {
            let _keepalive = self.keepalive();
            self.settle()?;
            self.wait_filled()?;
            if member.rank() == 0 {
                self.go_on_without_memory();
            }
            Ok(())
        };
        // Note it once all ranks have come: until then an earlier run may commit a newer checkpoint
        // to restore.
        let note = &|| self.inner.note_position();
        let together = Together { member, pool: self.pool(), name: self.name(), select, note };
        let mut found = together.restore(ready(), look, attempt);
        self.distrust(found.as_mut().map(|found| found.as_ref().map(|it| &it.skipped)));
        if let Ok(Some(found)) = &found {
            self.count_restored(found.epoch, &found.skipped);
        }
        found
    }

    /// Notes the log's position: the next save is refused if others save before it, since this
    /// program continues from the data that it reads now. Restores do so themselves.
    ///
    /// # Errors
    /// Errors of the log.
    pub fn note_position(&self) -> Result<()> {
        self.inner.note_position().map(drop)
    }

    /// Makes an image the base of the rank's next save. The image is the rank's own, and was
    /// restored as a whole.
    pub fn follow_restored(&self, image: &MemoryImage) {
        // A save that began meanwhile keeps the base of its plan.
        let current = self.inner.starting();
        if let Some(handle) = current.as_ref() {
            handle.wait_done(None);
        }
        self.inner.adopt(image);
    }

    /// Takes the first steps of every restore without a group.
    fn before_restore(&self) -> Result<()> {
        self.settle()?;
        self.wait_filled()?;
        self.go_on_without_memory();
        self.note_position()
    }

    /// Restores for one process, even if others have saved: calls `attempt` with one checkpoint of
    /// memory after the other, newest first, until that succeeds. `attempt` gets the manifest, and
    /// the number of the newest record that was read; after a `Damaged` error the search skips the
    /// checkpoint. Waits for a save in progress. `None` if there is no checkpoint.
    ///
    /// # Errors
    /// As for [`Job::image`]; errors of `attempt`.
    pub fn restore_alone<T>(
        &self,
        select: Select,
        attempt: &mut dyn FnMut(&Manifest, u64) -> Result<T>,
    ) -> Result<Option<(T, Skipped)>> {
        self.before_restore()?;
        let mut found = first_with_rank(self.pool(), self.name(), select, 0, attempt);
        self.distrust(found.as_mut().map(|found| found.as_ref().map(|(_, _, skipped)| skipped)));
        let Some((epoch, value, skipped)) = found? else { return Ok(None) };
        self.count_restored(epoch, &skipped);
        Ok(Some((value, skipped)))
    }

    /// Notes the checkpoint from which the program continues.
    fn count_restored(&self, epoch: Epoch, skipped: &Skipped) {
        self.inner.reached.add(epoch);
        metrics::RESTORES.add(1);
        metrics::RESTORE_SKIPPED.add(skipped.len() as u64);
    }

    /// Forgets all stored chunks if a restore met damage, so that the next save relies on none of
    /// them.
    fn distrust(&self, found: std::result::Result<Option<&Skipped>, &mut Error>) {
        let is_damage = |error: &Error| error.kind() == ErrorKind::Damaged;
        let met = match found {
            Ok(skipped) => skipped.is_some_and(|all| all.iter().any(|(_, why)| is_damage(why))),
            Err(error) => is_damage(error),
        };
        if met {
            // A save in progress still needs the base of its plan.
            let current = self.inner.starting();
            if let Some(handle) = current.as_ref() {
                handle.wait_done(None);
            }
            self.inner.writer().rank.forget(self.pool());
        }
    }

    /// Records the data that was lost with volatile targets, since a program that restores
    /// continues without it. If that fails, there may be data to restore all the same.
    fn go_on_without_memory(&self) {
        if let Err(error) = recreate_lost(self.pool(), RESTORE_WAIT) {
            self.pool().warn(error.to_string());
        }
    }

    /// Restores. For each candidate, newest first, `prepare` looks at the regions of the
    /// checkpoint, and returns the streams to read and the sink for them. Its error ends the
    /// restore before anything was written. If the data then prove damaged, the next older
    /// checkpoint takes its place. `done` is called with the sink that holds the restored bytes.
    ///
    /// If every stream was read, the next save is incremental to the restored checkpoint: the
    /// source must then get memory with exactly these bytes as its baseline.
    ///
    /// # Errors
    /// As for [`Job::image`]; errors of `prepare` and `done`.
    pub fn restore<S: RestoreSink>(
        &self,
        select: Select,
        prepare: &mut dyn FnMut(&MemoryImage) -> Result<Prepared<S>>,
        done: &mut dyn FnMut(&MemoryImage, S) -> Result<()>,
    ) -> Result<Option<Restored>> {
        let found = self.restore_alone(select, &mut |manifest, as_of| {
            let (pool, name) = (self.pool(), self.name());
            let checkpoint = MemoryImage::open_as_of(pool, name, manifest.clone(), as_of)?;
            let (selected, sink) = prepare(&checkpoint)?;
            let stats = checkpoint.read(&selected, &sink)?;
            Ok((checkpoint, selected.len(), sink, stats))
        })?;
        let Some(((checkpoint, selected, sink, stats), skipped)) = found else { return Ok(None) };
        done(&checkpoint, sink)?;
        if selected == checkpoint.streams().len() {
            self.follow_restored(&checkpoint);
        }
        stats.count();
        Ok(Some(Restored { epoch: checkpoint.epoch(), stats, skipped }))
    }

    /// Restores lazily: returns when the page tree is read, and the data that the sink does not
    /// fill lazily. The rest follows while the program runs; saves, closes and restores wait for
    /// it. Otherwise as [`Job::restore`], except that damage found after the return ends the fill:
    /// `ends` then decides about the program, whose memory has holes. If no thread can start for
    /// the rest, memory is whole when this returns. Checkpoints with known damage are skipped.
    ///
    /// # Errors
    /// As for [`Job::restore`].
    pub fn restore_lazily<S: LazySink>(
        &self,
        select: Select,
        prepare: &mut dyn FnMut(&MemoryImage) -> Result<Prepared<S>>,
        ends: LazyEnds<S>,
    ) -> Result<Option<(Restored, LazyFill)>> {
        self.before_restore()?;
        let (pool, name) = (self.pool(), self.name());
        // Locked before the log is read: data in use then stays until memory is filled.
        let reading = pool.log().lock_reading()?;
        let listed = pool.log().latest(name)?;
        let mut attempt = |checkpoint: &MemoryImage| {
            let is_it = |entry: &Entry| {
                entry.manifest().is_some_and(|manifest| manifest.epoch == checkpoint.epoch())
            };
            let incomplete = history(pool, name)?.find(is_it).is_some_and(|entry| entry.incomplete);
            refuse_suspect(checkpoint, incomplete, select)?;
            checkpoint.repeated(&mut || {
                let (selected, sink) = prepare(checkpoint)?;
                let stats = Runner::read_eager(checkpoint, &selected, &sink)?;
                Ok((selected, sink, stats))
            })
        };
        let mut found = first_good(pool, name, select, &mut attempt);
        self.distrust(found.as_mut().map(|found| found.as_ref().map(|(_, _, skipped)| skipped)));
        let Some((checkpoint, (selected, sink, stats), skipped)) = found? else {
            return Ok(None);
        };
        if reading.is_none() {
            pool.warn(format!(
                "{} has no locks that this program can take: until the lazy restore of job {name} has \
                 filled memory, let no `outlive gc` or prune run on the pool, or it may delete what is \
                 still to be read",
                pool.log().describe()
            ));
        }
        self.count_restored(checkpoint.epoch(), &skipped);
        stats.count();
        let restored = Restored { epoch: checkpoint.epoch(), stats, skipped };
        let inner = self.inner.clone();
        let follow = Box::new(move |checkpoint: &MemoryImage| inner.adopt(checkpoint));
        // No save begins between the end of the last persist phase and the moment when the fill is
        // known. Later saves wait for the fill, so no base is replaced during a persist phase.
        let current = self.inner.starting();
        if let Some(handle) = current.as_ref() {
            handle.wait_done(None);
        }
        let fill = Runner::start(follow, (checkpoint, listed), reading, &selected, sink, ends);
        *self.inner.filling() = Some(fill.clone());
        Ok(Some((restored, fill)))
    }
}
