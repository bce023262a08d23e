//! Recreates targets in memory that were lost with it, and vacates the seats of lost hosts. The logs
//! must have the losses before any program saves again: docs/design/026-volatile.md says why.

use crate::Pool;
use crate::descriptor::redundancy::{TargetConfig, TargetState, Tier};
use crate::log::room::is_log_in_memory;
use crate::repair::PackUses;
use crate::repair::exclusive::Exclusive;
use crate::targets::{Rows, TargetTable};
use outlive_types::{Error, PackId, Result};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Recreated targets to which no program saves yet. As long as this value exists, no other process
/// collects, or changes the targets.
pub struct Recreated {
    pool: Pool,
    table: Arc<TargetTable>,
    /// The lock or claim.
    _alone: Exclusive,
    /// Messages that say which target replaces which.
    made: Vec<String>,
    /// Numbers of the rows whose losses are to be recorded.
    unsettled: BTreeSet<u32>,
}

/// A seat that is being given back. As long as this value exists, no other process collects, or
/// changes the targets.
#[derive(Debug)]
pub struct ClosedSeat {
    pool: Pool,
    table: Arc<TargetTable>,
    alone: Exclusive,
    id: u32,
}

impl Pool {
    /// Returns whether a target in the memory of this host is lost and must be recreated, or was
    /// recreated and its losses are not recorded yet.
    ///
    /// # Errors
    /// Errors of the table.
    pub fn wants_recreate(&self) -> Result<bool> {
        let Some(table) = self.table() else { return Ok(false) };
        if !self.targets().has_volatile() {
            return Ok(false);
        }
        self.refresh_targets()?;
        let targets = self.targets();
        let mut volatile = targets.members().iter().filter(|member| member.is_volatile);
        if volatile.all(|member| !member.is_unsettled && member.check().is_ok()) {
            return Ok(false);
        }
        let locations = table.locations();
        for row in table.rows()?.iter().filter(|row| locations.is_ours(row)) {
            if row.unsettled || locations.is_wiped(row)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Recreates lost targets in the memory of this host, each with a new number. `None` if another
    /// process has done that meanwhile, and if none is lost. While another command collects, it waits
    /// for about `most`.
    ///
    /// # Errors
    /// `Retry` if another command collects for longer; `Invalid` if the location is not in memory; errors
    /// of the table.
    pub fn recreate_lost(&self, most: Duration) -> Result<Option<Recreated>> {
        let Some((table, alone)) = self.changing_while(&|| self.wants_recreate(), most)? else {
            return Ok(None);
        };
        let locations = table.locations();
        // Locations as this process sees them.
        let here = table.rows()?;
        let here = |row: &TargetConfig| here.iter().find(|here| here.id == row.id).cloned();
        let (mut made, mut new, mut unsettled) = (Vec::new(), Vec::new(), BTreeSet::new());
        // The table first: a location without a marker counts as lost, whichever process has begun
        // this.
        table.change(&mut |Rows { next_id, targets, .. }| {
            (made, new, unsettled) = (Vec::new(), Vec::new(), BTreeSet::new());
            for row in targets.iter_mut() {
                let Some(there) = here(row).filter(|there| locations.is_ours(there)) else {
                    continue;
                };
                if locations.is_wiped(&there)? {
                    locations.make_location(&there)?;
                    made.push(format!(
                        "target {}, {}, was in memory and is lost; it is recreated as target {next_id}",
                        row.id.unwrap_or(1),
                        there.location
                    ));
                    row.id = Some(*next_id);
                    row.unsettled = true;
                    new.push(TargetConfig { id: row.id, unsettled: true, ..there });
                    *next_id += 1;
                }
                unsettled.extend(row.id.filter(|_| row.unsettled));
            }
            Ok(())
        })?;
        if unsettled.is_empty() {
            return Ok(None);
        }
        new.iter().try_for_each(|row| locations.mark(row))?;
        self.recreated(table, alone, made, unsettled).map(Some)
    }

    /// Gives up the hosts that have taken these seats: each seat is vacant, under a new number, and
    /// the shards that were there count as lost. `None` if none of them is a seat that a host has.
    ///
    /// # Errors
    /// `Retry` while another command collects; errors of the table.
    pub fn vacate(&self, ids: &BTreeSet<u32>) -> Result<Option<Recreated>> {
        let (table, alone) = self.changing()?;
        self.vacate_alone(table, alone, ids)
    }

    fn vacate_alone(
        &self,
        table: Arc<TargetTable>,
        alone: Exclusive,
        ids: &BTreeSet<u32>,
    ) -> Result<Option<Recreated>> {
        let (mut made, mut unsettled) = (Vec::new(), BTreeSet::new());
        table.change(&mut |Rows { next_id, targets, .. }| {
            made.clear();
            let is_given_up = |row: &&mut TargetConfig| {
                ids.contains(&row.id.unwrap_or(1)) && row.is_seat() && !row.is_vacant()
            };
            for row in targets.iter_mut().filter(is_given_up) {
                made.push(format!(
                    "seat {} of host {} is vacant, and is seat {next_id} now",
                    row.id.unwrap_or(1),
                    row.host.as_deref().unwrap_or("?")
                ));
                *row = TargetConfig { unsettled: true, ..TargetConfig::vacant(*next_id) };
                *next_id += 1;
            }
            unsettled =
                targets.iter().filter(|row| row.unsettled).filter_map(|row| row.id).collect();
            Ok(())
        })?;
        match made.is_empty() {
            true => Ok(None),
            false => self.recreated(table, alone, made, unsettled).map(Some),
        }
    }

    /// Begins to give a seat back: saves count it as gone from now on, and reads still use it. `None`
    /// if it is no seat that a host has.
    ///
    /// # Errors
    /// `Retry` while another command collects; errors of the table.
    pub fn close_seat(&self, id: u32) -> Result<Option<ClosedSeat>> {
        let (table, alone) = self.changing()?;
        let mut is_its = false;
        table.change(&mut |rows| {
            let row = rows.get_mut(id).filter(|row| row.is_seat() && !row.is_vacant());
            is_its = row.map(|row| row.state = TargetState::Closed).is_some();
            Ok(())
        })?;
        self.refresh_targets()?;
        Ok(is_its.then(|| ClosedSeat { pool: self.clone(), table, alone, id }))
    }

    fn recreated(
        &self,
        table: Arc<TargetTable>,
        alone: Exclusive,
        made: Vec<String>,
        unsettled: BTreeSet<u32>,
    ) -> Result<Recreated> {
        self.refresh_targets()?;
        Ok(Recreated { pool: self.clone(), table, _alone: alone, made, unsettled })
    }
}

impl ClosedSeat {
    /// Returns the pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Lets saves use the seat again.
    ///
    /// # Errors
    /// Errors of the table.
    pub fn reopen(self) -> Result<()> {
        reopen(&self.table, self.id)
    }

    /// Gives the seat back, unless a checkpoint needs what is there. All programs that have put
    /// something there must have heard of the close.
    ///
    /// # Errors
    /// `Retry` if a checkpoint needs it: then saves use the seat again. Errors of the table.
    pub fn vacate(self, uses: &dyn PackUses) -> Result<Option<Recreated>> {
        let ClosedSeat { pool, table, alone, id } = self;
        match pool.needed_of(id, uses) {
            Ok(None) => pool.vacate_alone(table, alone, &BTreeSet::from([id])),
            Ok(Some(why)) => reopen(&table, id).and(Err(Error::retry(why))),
            Err(error) => reopen(&table, id).and(Err(error)),
        }
    }
}

/// Lets saves use a seat again.
fn reopen(table: &TargetTable, id: u32) -> Result<()> {
    let change = &mut |rows: &mut Rows| {
        let since = table.version()? + 1;
        if let Some(row) = rows.get_mut(id).filter(|row| row.state != TargetState::Active) {
            (row.state, row.since) = (TargetState::Active, since);
        }
        Ok(())
    };
    table.change(change).map(drop)
}

impl Recreated {
    /// Returns the pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns a message for each target that was replaced; none if another process has begun this.
    pub fn made(&self) -> &[String] {
        &self.made
    }

    /// Returns the packs of which neither tier has enough.
    ///
    /// # Errors
    /// As [`Pool::redundancy`].
    pub fn suspects(&self) -> Result<BTreeSet<PackId>> {
        let there = self.pool.redundancy()?.into_iter();
        Ok(there
            .filter(|(_, is)| is.spare < 0 && is.slow_spare < 0)
            .map(|(pack, _)| pack)
            .collect())
    }

    /// Records that the logs have all losses: programs may save again.
    ///
    /// # Errors
    /// Errors of the table.
    pub fn settle(self) -> Result<()> {
        let locations = self.table.locations();
        let here = self.table.rows()?;
        let here = |row: &TargetConfig| here.iter().find(|here| here.id == row.id).cloned();
        self.table.change(&mut |rows| {
            // Another process may have given up more seats, if the lock has ended.
            let is_ours = |row: &&mut TargetConfig| {
                row.unsettled && row.id.is_some_and(|id| self.unsettled.contains(&id))
            };
            for row in rows.targets.iter_mut().filter(is_ours) {
                let Some(there) = here(row).filter(|there| locations.is_ours(there)) else {
                    continue;
                };
                // Lost again: the next process begins again.
                row.unsettled = locations.is_wiped(&there)?;
            }
            Ok(())
        })?;
        self.pool.refresh_targets()
    }
}

impl std::fmt::Debug for Recreated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recreated").field("made", &self.made).finish_non_exhaustive()
    }
}

impl Pool {
    /// Returns whether the log is in memory, so that nothing of the pool outlives a restart of the
    /// host.
    pub fn is_log_in_memory(&self) -> bool {
        self.paths().is_some_and(is_log_in_memory)
    }

    /// Returns whether the fast tier, or a part of it, is in memory.
    pub fn has_volatile(&self) -> bool {
        let targets = self.targets();
        targets.of_tier(Tier::Fast).any(|(_, member)| member.is_volatile)
    }
}

#[cfg(test)]
mod tests;
