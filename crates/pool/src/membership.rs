//! Which targets a pool has, and how that changes while programs save: targets come, are emptied, and go.
//! docs/pool.md says what an operator sees of it, docs/faults.md why nothing is lost.

use crate::redundancy::{TargetConfig, Tier};
use crate::targets::{Claim, TargetSet, TargetTable, members};
use crate::written::{Growing, Spread};
use crate::{Pool, PoolConfig};
use outlive_chunk::parallel;
use outlive_io::Pace;
use outlive_target::{Lock, ShardName};
use outlive_types::{Error, ErrorKind, Event, Progress, Result};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The targets of a pool at some time, and what this process has written to which since.
#[derive(Clone, Debug)]
pub struct TargetsThen {
    /// Of the table.
    version: u64,
    ids: Vec<u32>,
    written: Growing,
}

impl TargetsThen {
    /// On which targets this process has written packs since.
    pub fn spread(&self) -> Spread {
        self.written.now()
    }
}

/// What became of the emptying of a target.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DrainReport {
    /// Shards that were moved elsewhere.
    pub shards: u64,
    /// Bytes of these.
    pub moved_bytes: u64,
    /// Shards that are still there, and why the first of them is.
    pub left: u64,
    /// Why.
    pub why: Option<Error>,
}

/// What keeps others from changing the targets meanwhile.
pub(crate) type Alone = (Lock, Option<Claim>);

impl Pool {
    /// Takes notice of targets that came and went since this was asked last.
    ///
    /// # Errors
    /// What the table reports.
    pub fn refresh_targets(&self) -> Result<()> {
        let Some(table) = self.table() else { return Ok(()) };
        let version = table.version().or_else(|error| self.place_says().and(Err(error)))?;
        if self.targets().version() == version {
            return Ok(());
        }
        let rows = table.rows()?;
        let config = PoolConfig { target: rows.clone(), ..self.config().clone() };
        let now = TargetSet::new(members(&**table, &rows)?, &config);
        self.set_targets(Arc::new(now.of_table(table.clone(), version)));
        Ok(())
    }

    /// The targets that there are now: to be asked before anything is written that a record is to name,
    /// and before those look at the table who write it. `None` if a target may leave without harm.
    ///
    /// # Errors
    /// What the table reports.
    pub fn targets_now(&self) -> Result<Option<TargetsThen>> {
        if self.table().is_none() {
            return Ok(None);
        }
        self.refresh_targets()?;
        let (targets, written) = (self.targets(), self.written().begin());
        // Nothing is saved to others.
        let ids = targets.of_tier(Tier::Fast).map(|(_, member)| member.id).collect();
        Ok(Some(TargetsThen { version: targets.version(), ids, written }))
    }

    /// Makes sure that of each pack that was written since `then`, here or (`others`) by processes that looked
    /// at the table later, enough is on targets that have not left: to be asked once all of it is durable,
    /// before the record is appended. Who removes a target takes it out of the table before he looks at it for
    /// the last time; so either he sees what was written, or this sees that the target has left.
    ///
    /// # Errors
    /// `Retry` if too many have left: what was saved must be saved again. What the table reports.
    pub fn check_targets(&self, then: &TargetsThen, others: &Spread) -> Result<()> {
        let Some(table) = self.table() else { return Ok(()) };
        if table.version().or_else(|error| self.place_says().and(Err(error)))? == then.version {
            return Ok(());
        }
        let rows = table.rows()?;
        let row_of = |id: u32| rows.iter().find(|row| row.id.unwrap_or(1) == id);
        // Those that came since, too: one may have come and left.
        let came = then.ids.iter().max().map_or(1, |id| id + 1)..table.next_id()?;
        let known = then.ids.iter().copied().chain(came);
        let left: BTreeSet<u32> = known.filter(|id| row_of(*id).is_none()).collect();
        let needed = usize::from(self.config().geometry().k);
        for pack in then.spread().iter().chain(others) {
            let has_left = |id: &u32| row_of(*id).is_none();
            let is_leaving = |id: &&u32| row_of(**id).is_some_and(|row| row.leaving);
            let gone = pack.iter().filter(|id| has_left(id)).count();
            // What was on one that is being emptied may be on another by now, which may have left.
            let elsewhere = left.iter().filter(|id| pack.binary_search(id).is_err());
            let moved = pack.iter().filter(is_leaving).count().min(elsewhere.clone().count());
            let first = pack.iter().find(|id| has_left(id)).or(elsewhere.clone().next());
            if let Some(id) = first.filter(|_| pack.len() - gone - moved < needed) {
                return Err(Error::retry(format!(
                    "target {id} was removed from the pool while this was written: save again"
                )));
            }
        }
        Ok(())
    }

    pub(crate) fn changing(&self) -> Result<(Arc<dyn TargetTable>, Alone)> {
        let table = self.table().cloned().ok_or_else(|| {
            Error::invalid(
                "the targets of this pool cannot be changed: nothing says which they are",
            )
        })?;
        let lock = self.lock_collecting()?;
        if matches!(lock, Lock::Busy) {
            return Err(Error::retry(
                "a gc, scrub, repair or another change of the targets is at work in this pool: try \
                 again when it has ended",
            ));
        }
        let claim = match lock {
            Lock::None => table.claim()?,
            _ => None,
        };
        self.refresh_targets()?;
        Ok((table, (lock, claim)))
    }

    /// Ends the claim of a command that was killed while it changed the targets, where the log has no locks.
    /// Answers whose it was. That command must not be at work any more.
    ///
    /// # Errors
    /// What the log reports.
    pub fn release_targets(&self) -> Result<Option<String>> {
        self.table().map_or(Ok(None), |table| table.release())
    }

    /// Refuses rows that do not fit the pool's redundancy.
    fn fits(&self, rows: &[TargetConfig]) -> Result<()> {
        let staying: Vec<TargetConfig> = rows.iter().filter(|row| !row.leaving).cloned().collect();
        if staying.iter().all(|row| row.tier == Tier::Slow) {
            return Err(Error::invalid(
                "a pool needs a fast target to save to: add another one first",
            ));
        }
        let fits = self.config().redundancy.check_targets(&staying);
        fits.map_err(|error| error.context("without that target, and before another one is added"))
    }

    /// Puts another table in the place of this one, if it fits the pool's redundancy.
    fn change_to(&self, table: &dyn TargetTable, rows: &[TargetConfig]) -> Result<()> {
        self.fits(rows)?;
        table.replace(rows)?;
        self.refresh_targets()
    }

    /// Adds a target at a new or empty place; programs that save use it from their next checkpoint on.
    /// Answers its number.
    ///
    /// # Errors
    /// `Invalid` for a place that is used, or cannot be; `Retry` while another command collects.
    pub fn add_target(&self, location: &str, host: Option<&str>, tier: Tier) -> Result<u32> {
        let row = TargetConfig::at(location).on_tier(tier);
        self.add_row(TargetConfig { host: host.map(str::to_owned), ..row })
    }

    /// The same for a fast target in the memory of this host.
    ///
    /// # Errors
    /// As [`Pool::add_target`]; `Invalid` if the place is not in memory.
    pub fn add_volatile(&self, location: &str, host: Option<&str>) -> Result<u32> {
        let row = TargetConfig { host: host.map(str::to_owned), ..TargetConfig::at(location) };
        self.add_row(row.in_memory()?)
    }

    fn add_row(&self, row: TargetConfig) -> Result<u32> {
        let (table, _lock) = self.changing()?;
        let id = table.next_id()?;
        let row = TargetConfig { id: Some(id), ..row };
        let mut rows = table.rows()?;
        rows.push(row.clone());
        self.fits(&rows)?;
        table.prepare(&row)?;
        self.change_to(&*table, &rows)?;
        Ok(id)
    }

    /// Empties a target: nothing new is put there, and what is there is moved to the others. It may be
    /// stopped at any moment, and begun again.
    ///
    /// # Errors
    /// `Invalid` if the others are too few, or there is no such target; `Retry` if it is away.
    pub fn drain_target(&self, id: u32, bytes_per_s: Option<u64>) -> Result<DrainReport> {
        let (table, _lock) = self.changing()?;
        self.drain(&*table, id, bytes_per_s)
    }

    fn drain(&self, table: &dyn TargetTable, id: u32, rate: Option<u64>) -> Result<DrainReport> {
        let mut rows = table.rows()?;
        let row = rows.iter_mut().find(|row| row.id == Some(id)).ok_or_else(|| no_target(id))?;
        if !row.leaving {
            row.leaving = true;
            self.change_to(table, &rows)?;
        }
        let targets = self.targets();
        let from = targets.number_of(id).ok_or_else(|| no_target(id))?;
        targets.members()[from].look()?;
        self.empty(&targets, from, rate)
    }

    /// Moves all that is on a target, until nothing is, or it does not become less.
    fn empty(&self, targets: &TargetSet, from: usize, rate: Option<u64>) -> Result<DrainReport> {
        let pace = Pace::new(rate);
        let mut report = DrainReport::default();
        loop {
            let shards = targets.members()[from].target().list()?;
            if shards.is_empty() {
                (report.left, report.why) = (0, None);
                return Ok(report);
            }
            let (total, done) = (shards.len() as u64, AtomicU64::new(0));
            let moved = parallel(shards, self.config().tuning.threads(), |shard| {
                let moved = self.move_shard(targets, shard, from);
                pace.spend(moved.as_ref().copied().unwrap_or(0));
                let bytes = self.config().format.pack_bytes;
                let done_bytes = (done.fetch_add(1, Ordering::Relaxed) + 1) * bytes;
                let event = Progress { what: "drain", done_bytes, total_bytes: total * bytes };
                self.env().observer.event(Event::Progress(event));
                moved
            });
            let before = report.shards;
            (report.left, report.why) = (0, None);
            for outcome in moved {
                match outcome {
                    Ok(bytes) => {
                        report.shards += 1;
                        report.moved_bytes += bytes;
                    }
                    Err(error) => {
                        report.left += 1;
                        report.why = report.why.or(Some(error));
                    }
                }
            }
            if report.shards == before {
                return Ok(report);
            }
        }
    }

    /// Removes a target. What is on it is moved to the others first, unless it is `lost`: then its
    /// packs' redundancy makes up for it, as far as it can.
    ///
    /// # Errors
    /// As [`Pool::drain_target`]; `Full` or whatever kept something on it.
    pub fn remove_target(&self, id: u32, lost: bool, rate: Option<u64>) -> Result<DrainReport> {
        let (table, _lock) = self.changing()?;
        let mut report = DrainReport::default();
        let targets = self.targets();
        let from = targets.number_of(id).ok_or_else(|| no_target(id))?;
        if !lost {
            report = self.drain(&*table, id, rate)?;
            if let Some(why) = report.why.take() {
                let left = report.left;
                return Err(why.context(format!("{left} shards are still on target {id}")));
            }
        }
        let rows = table.rows()?;
        let others: Vec<TargetConfig> =
            rows.iter().filter(|row| row.id != Some(id)).cloned().collect();
        self.change_to(&*table, &others)?;
        if lost {
            return Ok(report);
        }
        // Who has looked at the table before that may have put something there: it is moved as well. Who
        // looks behind it, before a commit, sees that the target is gone.
        let late = self.empty_behind(&targets, from, rate)?;
        report.shards += late.shards;
        report.moved_bytes += late.moved_bytes;
        if let Some(why) = late.why {
            table.replace(&rows)?;
            self.refresh_targets()?;
            return Err(why.context(format!(
                "{} shards were put on target {id} meanwhile, so it was not removed",
                late.left
            )));
        }
        Ok(report)
    }

    /// The same for a target that the table does not name any more: what is on it goes to those that it
    /// names.
    fn empty_behind(&self, old: &TargetSet, from: usize, rate: Option<u64>) -> Result<DrainReport> {
        old.members()[from].look()?;
        self.empty(old, from, rate)
    }

    /// Puts a new target in the place of another: what is on that, if it is there, is moved. Answers the
    /// new target's number, and whether the old one was there.
    ///
    /// # Errors
    /// As [`Pool::add_target`] and [`Pool::remove_target`].
    pub fn replace_target(
        &self,
        id: u32,
        location: &str,
        rate: Option<u64>,
    ) -> Result<(u32, bool, DrainReport)> {
        let old = {
            let table = self.table().ok_or_else(|| no_target(id))?;
            let rows = table.rows()?;
            let row = rows.into_iter().find(|row| row.id == Some(id));
            row.ok_or_else(|| no_target(id))?
        };
        let tier = old.tier;
        let (leaving, unsettled) = (false, false);
        let new = self.add_row(TargetConfig {
            location: location.to_owned(),
            leaving,
            unsettled,
            ..old
        })?;
        let targets = self.targets();
        let number = targets.number_of(id).ok_or_else(|| no_target(id))?;
        let is_there = targets.members()[number].check().is_ok();
        if !is_there && tier == Tier::Fast && self.config().redundancy.survives() == 0 {
            return Err(Error::invalid(format!(
                "target {id} is away, and the pool has no redundancy: what is on it would be lost. Target \
                 {new} was added; bring {id} back, or give it up with `outlive pool remove --lost`"
            )));
        }
        let report = self.remove_target(id, !is_there, rate)?;
        Ok((new, is_there, report))
    }

    /// Moves a shard to another target, each part of it checked. Answers its length.
    fn move_shard(&self, targets: &TargetSet, shard: ShardName, from: usize) -> Result<u64> {
        if targets.members()[from].tier == Tier::Slow {
            return self.move_slow(targets, shard, from);
        }
        match self.copy_shard(targets, shard, from) {
            Ok(bytes) => {
                targets.members()[from].target().delete(shard)?;
                Ok(bytes)
            }
            // A gc has deleted it meanwhile.
            Err(error)
                if error.kind() == ErrorKind::Damaged
                    && !targets.members()[from].has(shard).unwrap_or(true) =>
            {
                Ok(0)
            }
            // It is damaged: made from the others, it is somewhere else.
            Err(error) if error.kind() == ErrorKind::Damaged && self.has_redundancy() => {
                let repair = self.repair_pack(shard.pack, &[shard.shard])?;
                match repair.missing {
                    0 => Ok(repair.written_bytes),
                    _ => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }
}

impl Pool {
    /// The same of a shard on a slow target. Where no other slow target can take it, it may go if the fast
    /// tier has the same shard, which is read for that.
    fn move_slow(&self, targets: &TargetSet, shard: ShardName, from: usize) -> Result<u64> {
        let member = &targets.members()[from];
        let error = match self.copy_shard(targets, shard, from) {
            Ok(bytes) => return member.target().delete(shard).map(|()| bytes),
            Err(error) => error,
        };
        // A gc has deleted it meanwhile.
        if !member.has(shard)? {
            return Ok(0);
        }
        if !matches!(error.kind(), ErrorKind::Damaged | ErrorKind::Full) {
            return Err(error);
        }
        let now = self.targets();
        let is_whole =
            now.find_on(Tier::Fast, shard).and_then(|there| self.verify_on(&now, shard, there));
        match is_whole {
            Ok(_) => member.target().delete(shard).map(|()| 0),
            Err(fast) => Err(error.context(format!(
                "shard {shard} has no whole copy on the fast tier ({}): run `outlive pool repair`, or add a \
                 slow target",
                fast.message()
            ))),
        }
    }
}

fn no_target(id: u32) -> Error {
    Error::invalid(format!("the pool has no target {id}: `outlive pool status` lists them"))
}

#[cfg(test)]
mod tests;
