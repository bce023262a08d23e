//! The targets of a pool, and how they change while programs save. A command sets the wanted state
//! of a target in the table, by one append, and a repair makes the pool match it. The operator's
//! manual is docs/pool.md; docs/faults.md says why nothing is lost.

use crate::Pool;
use crate::descriptor::redundancy::{TargetConfig, TargetState, Tier, Writes};
use crate::repair::exclusive::Exclusive;
use crate::repair::{Named, PackUses, RepairOptions, RepairReport};
use crate::targets::{FoundTarget, Rows, TargetSet, TargetTable, members};
use crate::written::{Growing, Spread};
use outlive_types::{Error, ErrorKind, Result};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Targets of a pool at some time, and those to which this process has written packs since.
#[derive(Clone, Debug)]
pub struct TargetsThen {
    /// Version of the table.
    version: u64,
    ids: Vec<u32>,
    /// Number of the next target that comes.
    next_id: u32,
    written: Growing,
    /// Newest table for which a warning says that packs may have less redundancy.
    told: Arc<AtomicU64>,
}

impl TargetsThen {
    /// Returns the targets of the packs that this process has written since.
    pub fn spread(&self) -> Spread {
        self.written.now()
    }
}

/// Result of a change of the targets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TargetChange {
    /// Report of the repair after the change.
    pub repair: RepairReport,
    /// Number of shards that are still on the target that is to be emptied.
    pub left: u64,
    /// Reason why it is not empty, or, if it was given up, why it has not left the pool yet.
    pub why: Option<Error>,
}

impl Pool {
    /// Takes over the changes of the table since the last call.
    ///
    /// # Errors
    /// Errors of the table.
    pub fn refresh_targets(&self) -> Result<()> {
        let Some(table) = self.table() else { return Ok(()) };
        let version = table.version().or_else(|error| self.place_says().and(Err(error)))?;
        if self.targets().version() == version {
            return Ok(());
        }
        let rows = table.seen()?;
        if self.targets().is_still(&rows, version) {
            return Ok(());
        }
        let now = TargetSet::new(members(table, &rows.targets)?, self.config());
        self.set_targets(Arc::new(now.of_table(table.clone(), rows, version)));
        Ok(())
    }

    /// Returns the version of the table that this process uses: another number if targets have come
    /// or gone.
    pub fn table_seen(&self) -> u64 {
        self.targets().version()
    }

    /// Returns the targets that there are now. A save calls this before it writes anything that its
    /// record names, and before its writers read the table. `None` if a target may leave without
    /// harm.
    ///
    /// # Errors
    /// Errors of the table.
    pub fn targets_now(&self) -> Result<Option<TargetsThen>> {
        if self.table().is_none() {
            return Ok(None);
        }
        self.refresh_targets()?;
        let (targets, written) = (self.targets(), self.written().begin());
        // Saves write to no others.
        let ids = targets.of_tier(Tier::Fast).map(|(_, member)| member.id).collect();
        let (version, next_id) = (targets.version(), targets.next_id());
        Ok(Some(TargetsThen { version, ids, next_id, written, told: Arc::default() }))
    }

    /// Makes sure that enough of each pack is on targets that have not left. These are the packs
    /// that this process has written since `then`, and those of `others`, which read the table
    /// later. A save calls it once all of that is durable, before it appends the record. A repair
    /// closes a target in the table before it lists it for the last time. So either the repair sees
    /// the new shards, or this function sees that the target is closed.
    ///
    /// # Errors
    /// `Retry` if too many targets have left, or any if saves need all redundancy: the data must be
    /// saved again. Errors of the table.
    pub fn check_targets(&self, then: &TargetsThen, others: &Spread) -> Result<()> {
        let Some(table) = self.table() else { return Ok(()) };
        let version = table.version().or_else(|error| self.place_says().and(Err(error)))?;
        if version == then.version {
            return Ok(());
        }
        let rows = table.read()?;
        // A target that left and came back has not kept the shards of the time before.
        let counts = |row: &&TargetConfig| row.state.counts() && row.since <= then.version;
        let row_of = |id: u32| rows.get(id).filter(counts);
        // Those that came since, too: one may have come and left.
        let came = then.next_id..rows.next_id;
        let known = then.ids.iter().copied().chain(came);
        let left: BTreeSet<u32> = known.filter(|id| row_of(*id).is_none()).collect();
        let needed = usize::from(self.config().geometry().k);
        let needs_all = self.config().redundancy.writes == Writes::Full;
        let mut lacking = None;
        for pack in then.spread().iter().chain(others) {
            let has_left = |id: &u32| row_of(*id).is_none();
            let is_draining =
                |id: &&u32| row_of(**id).is_some_and(|row| row.state == TargetState::Draining);
            let gone = pack.iter().filter(|id| has_left(id)).count();
            // The shards of a target that is being emptied may be on another one by now, which may
            // have left. That may be another one of this pack.
            let moved = pack.iter().filter(is_draining).count().min(left.len());
            let first = pack.iter().find(|id| has_left(id)).or(left.first());
            let is_refused = pack.len() - gone - moved < needed || needs_all && gone > 0;
            if let Some(id) = first.filter(|_| is_refused) {
                return Err(Error::retry(format!(
                    "target {id} was removed from the pool while this was written: save again"
                )));
            }
            lacking = lacking.or(first.copied().filter(|_| gone > 0));
        }
        if let Some(id) = lacking.filter(|_| then.told.swap(version, Ordering::Relaxed) != version)
        {
            self.warn(format!(
                "target {id} was removed from the pool while a checkpoint was written to it, so packs of that checkpoint \
                 may have less redundancy: `{}` shows it, and `{}` gives them what they lack",
                self.command("pool status", &[]),
                self.command("pool repair", &[])
            ));
        }
        Ok(())
    }

    /// Refuses rows that do not fit the pool's redundancy, as programs see them: with the hosts in
    /// `pool.toml`.
    fn fits(&self, table: &TargetTable, rows: &Rows) -> Result<()> {
        let locations = table.locations();
        let staying = staying(&locations.seen(rows.clone(), &locations.written_down()?)?);
        if staying.iter().all(|row| row.tier == Tier::Slow) {
            return Err(Error::invalid(
                "a pool needs a fast target to save to: add another one first",
            ));
        }
        self.config().redundancy.check_targets(&staying)
    }

    /// Adds a target at a new or empty location, or takes back one that the pool has or had.
    /// Programs use it from their next checkpoint on. A target of the pool that is there already
    /// stays as it is. Returns its number.
    ///
    /// # Errors
    /// `Invalid` for a location that is in use or not possible; `Retry` while another command
    /// collects.
    pub fn add_target(&self, location: &str, host: Option<&str>, tier: Tier) -> Result<u32> {
        let row = TargetConfig::at(location).on_tier(tier);
        self.add_row(TargetConfig { host: host.map(str::to_owned), ..row })
    }

    /// Does the same for a fast target in the memory of this host.
    ///
    /// # Errors
    /// As [`Pool::add_target`]; `Invalid` if the location is not in memory.
    pub fn add_volatile(&self, location: &str, host: Option<&str>) -> Result<u32> {
        let row = TargetConfig { host: host.map(str::to_owned), ..TargetConfig::at(location) };
        self.add_row(row.in_memory()?)
    }

    fn add_row(&self, row: TargetConfig) -> Result<u32> {
        let (table, _alone) = self.changing()?;
        let mut id = 0;
        self.change(&table, &mut |table, rows| {
            id = self.put_row(table, rows, &row)?;
            Ok(())
        })?;
        Ok(id)
    }

    /// Changes the table, if it then fits the pool's redundancy.
    pub(super) fn change(
        &self,
        table: &TargetTable,
        change: &mut dyn FnMut(&TargetTable, &mut Rows) -> Result<()>,
    ) -> Result<()> {
        table.change(&mut |rows| {
            let before = rows.clone();
            change(table, rows)?;
            if *rows == before {
                return Ok(());
            }
            let without = "without that target, and before another one is added";
            self.fits(table, rows).map_err(|error| error.context(without))
        })?;
        self.refresh_targets()
    }

    /// Puts a row into the table for its location, which it prepares. Returns the row's number.
    fn put_row(&self, table: &TargetTable, rows: &mut Rows, row: &TargetConfig) -> Result<u32> {
        let locations = table.locations();
        let here = table.rows()?;
        let own = here.iter().find(|other| locations.is_same(other, row));
        if let Some(own) = own.and_then(|own| rows.get(own.id.unwrap_or(1))) {
            let id = own.id.unwrap_or(1);
            return self.take_back(table, rows, id, row);
        }
        match locations.find(row)? {
            // An empty target with the number of another that is there is left from a killed
            // command.
            FoundTarget::Own { id, holds_shards }
                if rows.get(id).is_some_and(|own| own.state.counts())
                    && (holds_shards || self.look_at(id).is_err()) =>
            {
                Err(Error::invalid(format!(
                    "{} holds target {id} of this pool, which is in the table at another location: if it was moved, \
                     set its location in pool.toml",
                    row.location
                )))
            }
            FoundTarget::Own { id, .. } if rows.get(id).is_some_and(|own| !own.state.counts()) => {
                self.take_back(table, rows, id, row)
            }
            // It was given up or removed, and still has its shards.
            FoundTarget::Own { id, holds_shards: true } if id < rows.next_id => {
                let since = table.version()? + 1;
                rows.targets.push(TargetConfig { id: Some(id), since, ..row.clone() });
                self.fits(table, rows)?;
                Ok(id)
            }
            _ => {
                let id = rows.push(row.clone());
                self.fits(table, rows)?;
                let new = TargetConfig { id: Some(id), ..row.clone() };
                locations.prepare(&new, &rows.targets)?;
                Ok(id)
            }
        }
    }

    /// Makes a target of the table active again, at the location of `row`.
    fn take_back(
        &self,
        table: &TargetTable,
        rows: &mut Rows,
        id: u32,
        row: &TargetConfig,
    ) -> Result<u32> {
        let since = table.version()? + 1;
        let Some(own) = rows.get(id) else { return Err(no_target(id)) };
        if own.tier != row.tier || own.volatile != row.volatile {
            return Err(Error::invalid(format!(
                "{} is target {id} of this pool already, of another kind",
                row.location
            )));
        }
        let is_its = |found| matches!(found, FoundTarget::Own { id: its, .. } if its == id);
        if !own.state.counts() && self.look_at(id).is_err() && !is_its(table.locations().find(row)?)
        {
            return Err(Error::invalid(format!(
                "target {id} was at {} and is to leave the pool, and it is not there now: run `{}`, and add {} again",
                own.location,
                self.command("pool repair", &[]),
                row.location
            )));
        }
        if let Some(own) = rows.get_mut(id).filter(|own| own.state != TargetState::Active) {
            (own.state, own.remove, own.since) = (TargetState::Active, false, since);
            own.location.clone_from(&row.location);
            if row.host.is_some() {
                own.host.clone_from(&row.host);
            }
        }
        Ok(id)
    }

    /// Empties a target: it gets nothing new, and its shards are moved to the others.
    ///
    /// # Errors
    /// `Invalid` if the others are too few, or if there is no such target; `Retry` if it is away.
    pub fn drain_target(
        &self,
        id: u32,
        bytes_per_s: Option<u64>,
        uses: &dyn PackUses,
    ) -> Result<TargetChange> {
        let (table, alone) = self.changing()?;
        self.change(&table, &mut |_, rows| {
            let row = rows.get_mut(id).ok_or_else(|| no_target(id))?;
            if row.state == TargetState::Active {
                row.state = TargetState::Draining;
            }
            Ok(())
        })?;
        self.look_at(id)?;
        self.bring(&alone, id, bytes_per_s, uses)
    }

    /// Removes a target, once its shards are moved to the others. If it is `lost`, the redundancy
    /// of its packs makes up for it, as far as it can.
    ///
    /// # Errors
    /// As [`Pool::drain_target`]; `Full`, or another error that kept shards on it.
    pub fn remove_target(
        &self,
        id: u32,
        lost: bool,
        bytes_per_s: Option<u64>,
        uses: &dyn PackUses,
    ) -> Result<TargetChange> {
        let (table, alone) = self.changing()?;
        self.change(&table, &mut |_, rows| {
            // A number is given only once: if it has no row any more, its target has left.
            let has_left = id > 0 && id < rows.next_id;
            match rows.get_mut(id) {
                Some(row) => leave(row, lost),
                None if has_left => {}
                None => return Err(no_target(id)),
            }
            Ok(())
        })?;
        self.end(&alone, id, lost, bytes_per_s, uses)
    }

    /// Puts a new target in the place of another one, and moves that one's shards if it is there. A
    /// target that is away is given up if all packs can be read without it, or if it is `lost`.
    /// Returns the new target's number, and whether the old one was there.
    ///
    /// # Errors
    /// As [`Pool::add_target`] and [`Pool::remove_target`]; `Invalid` if the target is away, not
    /// `lost`, and has data that is nowhere else.
    pub fn replace_target(
        &self,
        id: u32,
        location: &str,
        lost: bool,
        bytes_per_s: Option<u64>,
        uses: &dyn PackUses,
    ) -> Result<(u32, bool, TargetChange)> {
        let (table, alone) = self.changing()?;
        let is_there = {
            let targets = self.targets();
            let number = targets.number_of(id);
            number.is_some_and(|number| targets.members()[number].check().is_ok())
        };
        let state = table.read()?.get(id).map(|row| row.state);
        if !is_there && !lost && state.is_some_and(|state| state != TargetState::Lost) {
            self.check_dispensable(id, uses)?;
        }
        let lost = lost || !is_there;
        let mut new = 0;
        self.change(&table, &mut |table, rows| {
            let old = match rows.get(id) {
                Some(old) => old.clone(),
                // It is gone already, if this very command was interrupted after that.
                None => self.replaced(table, rows, id, location)?,
            };
            if old.is_seat() {
                return Err(Error::invalid(format!(
                    "target {id} is a seat, which nodes take: start `outlive node local` on another host"
                )));
            }
            if table.locations().is_same(&old, &TargetConfig::at(location)) {
                return Err(Error::invalid(format!(
                    "{location} is target {id} itself: name another location"
                )));
            }
            let row = TargetConfig { location: location.to_owned(), ..old };
            let row = TargetConfig { since: 0, unsettled: false, ..row };
            new = self.put_row(table, rows, &row.in_state(TargetState::Active, false))?;
            if let Some(row) = rows.get_mut(id) {
                leave(row, lost);
            }
            Ok(())
        })?;
        let change = self.end(&alone, id, lost, bytes_per_s, uses)?;
        // If the old one has left, an earlier run of this command has emptied it.
        Ok((new, is_there || state.is_none(), change))
    }

    /// Returns the row of a target that was replaced by the one at `location`.
    fn replaced(
        &self,
        table: &TargetTable,
        rows: &Rows,
        id: u32,
        location: &str,
    ) -> Result<TargetConfig> {
        let here = table.rows()?;
        let wanted = TargetConfig::at(location);
        let own = here.iter().find(|row| table.locations().is_same(row, &wanted));
        let new = own.and_then(|own| rows.get(own.id.unwrap_or(1)));
        let new = new.filter(|new| id < rows.next_id && new.id != Some(id));
        new.map(|new| TargetConfig { location: String::new(), ..new.clone() })
            .ok_or_else(|| no_target(id))
    }

    /// Makes sure that all packs that a checkpoint names can be read without this target.
    fn check_dispensable(&self, id: u32, uses: &dyn PackUses) -> Result<()> {
        match self.needed_of(id, uses)? {
            None => Ok(()),
            Some(why) => Err(Error::invalid(format!(
                "target {id} is away, and {why}: bring it back, or give it up, and what only it has, with --lost"
            ))),
        }
    }

    /// Returns why the pool cannot do without a target; `None` if all packs that a checkpoint names
    /// can be read from others.
    ///
    /// # Errors
    /// Errors of the targets.
    pub fn needed_of(&self, id: u32, uses: &dyn PackUses) -> Result<Option<String>> {
        let needed = i64::from(self.config().geometry().k);
        // Counts without it, as it may be back for a moment.
        let there = self.redundancy_without(Some(id))?;
        let unknown = "it is not known what else has what is on it";
        let named = match uses.named(self) {
            Err(error) => return Ok(Some(format!("{unknown} ({})", error.message()))),
            Ok(named) => named.filter(|named| !named.is_partial),
        };
        let Some(Named { packs: named, .. }) = named else { return Ok(Some(unknown.to_owned())) };
        let is_short = |pack: &&outlive_types::PackId| {
            let there = there.get(pack);
            there.is_none_or(|it| (it.shards as i64) < needed && it.slow_spare < 0)
        };
        Ok(match named.iter().filter(is_short).count() {
            0 if self.config().redundancy.survives() > 0 || self.has_slow_tier() => None,
            0 => Some("the pool has no redundancy".to_owned()),
            count => Some(format!(
                "{count} of {} packs that checkpoints need cannot be read without it",
                named.len()
            )),
        })
    }

    fn look_at(&self, id: u32) -> Result<()> {
        let targets = self.targets();
        targets.number_of(id).map_or(Ok(()), |number| targets.members()[number].look())
    }

    /// Repairs after a change.
    fn bring(
        &self,
        alone: &Exclusive,
        id: u32,
        bytes_per_s: Option<u64>,
        uses: &dyn PackUses,
    ) -> Result<TargetChange> {
        let options = RepairOptions { bytes_per_s, ..RepairOptions::default() };
        let repair = self.repair_alone(alone, options, uses)?;
        let (left, why) = match repair.left.get(&id) {
            Some((left, why)) => (*left, Some(why.clone().unwrap_or_else(late))),
            None => (0, None),
        };
        Ok(TargetChange { repair, left, why })
    }

    /// Does the same for a target that is to leave.
    fn end(
        &self,
        alone: &Exclusive,
        id: u32,
        lost: bool,
        bytes_per_s: Option<u64>,
        uses: &dyn PackUses,
    ) -> Result<TargetChange> {
        if !lost {
            self.look_at(id)?;
        }
        let change = match self.bring(alone, id, bytes_per_s, uses) {
            // It is given up, and a repair has to wait for others that are away.
            Err(why) if lost && why.kind() == ErrorKind::Retry => {
                let (repair, left, why) = (RepairReport::default(), 0, Some(why));
                return Ok(TargetChange { repair, left, why });
            }
            brought => brought?,
        };
        if self.targets().number_of(id).is_none() {
            return Ok(change);
        }
        let failed = || change.repair.failed.first().map(|(_, error)| error.clone());
        let why = change.why.clone().or_else(failed).unwrap_or_else(late);
        if lost {
            return Ok(TargetChange { why: Some(why), ..change });
        }
        Err(why.context(format!(
            "target {id} is still in the pool, and {} shards are on it; `{}` goes on",
            change.left,
            self.command("pool repair", &[])
        )))
    }
}

/// Returns the rows of targets that saves write to.
pub(crate) fn staying(rows: &[TargetConfig]) -> Vec<TargetConfig> {
    rows.iter().filter(|row| row.state == TargetState::Active).cloned().collect()
}

/// Changes a row for a removal. A target that is being removed already goes on with that.
fn leave(row: &mut TargetConfig, lost: bool) {
    match (lost, row.state) {
        (true, _) => (row.state, row.remove) = (TargetState::Lost, true),
        (false, TargetState::Active | TargetState::Draining) => {
            (row.state, row.remove) = (TargetState::Draining, true);
        }
        (false, TargetState::Closed | TargetState::Lost) => {}
    }
}

fn late() -> Error {
    Error::retry("savers that looked at the table before have put shards there")
}

fn no_target(id: u32) -> Error {
    Error::invalid(format!("the pool has no target {id}: `outlive pool status` lists them"))
}

#[cfg(test)]
mod tests;
