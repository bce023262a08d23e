//! Recreates targets in memory that were lost with it. The logs must have the losses before any
//! program saves again: docs/design/026-volatile.md says why.

use crate::Pool;
use crate::descriptor::redundancy::{TargetConfig, Tier};
use crate::log::room::is_log_in_memory;
use crate::repair::exclusive::Exclusive;
use crate::targets::{Rows, TargetTable};
use outlive_types::{PackId, Result};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Recreated targets to which no program saves yet. As long as this value exists, no other process
/// collects, or changes the targets.
pub struct Recreated {
    pool: Pool,
    table: Arc<TargetTable>,
    /// The lock or claim.
    _alone: Exclusive,
    /// Messages that say which target replaces which.
    made: Vec<String>,
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
    /// process has done that meanwhile.
    ///
    /// # Errors
    /// `Retry` while another command collects; `Invalid` if the location is not in memory; errors
    /// of the table.
    pub fn recreate_lost(&self) -> Result<Option<Recreated>> {
        let (table, alone) = self.changing()?;
        let locations = table.locations();
        // Locations as this process sees them.
        let here = table.rows()?;
        let here = |row: &TargetConfig| here.iter().find(|here| here.id == row.id).cloned();
        let (mut made, mut new, mut is_unsettled) = (Vec::new(), Vec::new(), false);
        // The table first: a location without a marker counts as lost, whichever process has begun
        // this.
        table.change(&mut |Rows { next_id, targets, .. }| {
            (made, new, is_unsettled) = (Vec::new(), Vec::new(), false);
            for row in targets.iter_mut() {
                let Some(there) = here(row).filter(|there| locations.is_ours(there)) else { continue };
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
                is_unsettled |= row.unsettled;
            }
            Ok(())
        })?;
        if !is_unsettled {
            return Ok(None);
        }
        new.iter().try_for_each(|row| locations.mark(row))?;
        self.refresh_targets()?;
        Ok(Some(Recreated { pool: self.clone(), table, _alone: alone, made }))
    }
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
            for row in rows.targets.iter_mut().filter(|row| row.unsettled) {
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
