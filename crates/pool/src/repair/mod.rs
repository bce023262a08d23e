//! Makes a pool match its table of targets: `plan` decides about each copy, `bring` repairs one
//! pack, and a pass covers all packs and then the rows of empty targets. Nothing else moves shards:
//! a command changes the table, and a repair does the work. A repair may be stopped at any moment,
//! and begun again.

mod bring;
pub(crate) mod exclusive;
pub(crate) mod fill;
pub(crate) mod membership;
mod plan;
pub(crate) mod recreate;
pub(crate) mod seats;
#[cfg(test)]
mod tests;

pub use bring::PackRepair;
use bring::{Bring, Listed};

use crate::Pool;
use crate::descriptor::redundancy::{TargetConfig, TargetState, Tier};
use crate::repair::exclusive::Exclusive;
use crate::stripe::ShardFault;
use crate::targets::{Member, TargetSet};
use outlive_backend::ShardName;
use outlive_chunk::parallel;
use outlive_io::Pace;
use outlive_types::{Error, ErrorKind, Event, PackId, Progress, Result, metrics};
use plan::{Allowed, Fate, apart, plan};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most further passes of a repair. A removal takes one: the repair closes a target, lists it once
/// more, and drops its row.
const PASSES_MAX: usize = 8;

/// Options of a repair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RepairOptions {
    /// Limit for the bytes that are written in a second.
    pub bytes_per_s: Option<u64>,
    /// Whether only to report what is missing.
    pub dry_run: bool,
    /// Whether packs stay as they are of which only the slow tier has anything.
    pub leaves_slow_only: bool,
}

/// Knowledge of the logs about packs. A repair asks while it holds the lock.
pub trait PackUses {
    /// Returns the packs that a checkpoint names. Others may belong to a save in progress, whose
    /// writer counts on their places. `None`: all.
    ///
    /// # Errors
    /// Errors of the log and the targets.
    fn named(&self, pool: &Pool) -> Result<Option<Named>>;

    /// Returns the packs that were deleted from the fast tier on purpose.
    ///
    /// # Errors
    /// Errors of the log and the targets.
    fn trimmed(&self, pool: &Pool) -> Result<BTreeSet<PackId>>;
}

/// Packs that checkpoints name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Named {
    /// The packs.
    pub packs: BTreeSet<PackId>,
    /// Whether the lists of a checkpoint are damaged, so that it may name others, too.
    pub is_partial: bool,
}

impl Named {
    /// Returns whether a checkpoint may name a pack.
    pub fn may_have(&self, pack: &PackId) -> bool {
        self.is_partial || self.packs.contains(pack)
    }
}

/// Uses of a pool to which nothing is being saved, and from which nothing was trimmed.
#[derive(Clone, Copy, Debug)]
pub struct AllNamed;

impl PackUses for AllNamed {
    fn named(&self, _: &Pool) -> Result<Option<Named>> {
        Ok(None)
    }

    fn trimmed(&self, _: &Pool) -> Result<BTreeSet<PackId>> {
        Ok(BTreeSet::new())
    }
}

/// Result of a repair.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RepairReport {
    /// Packs that were checked.
    pub packs: u64,
    /// Of these, packs with a shard that was missing or in the wrong place.
    pub degraded: u64,
    /// Packs that got no shards, since one of their shards is still being written, or was left
    /// behind: a gc removes those.
    pub unfinished: u64,
    /// Packs that were deleted from the fast tier on purpose: they are whole on the slow one.
    pub trimmed: u64,
    /// Shards written again.
    pub shards: u64,
    /// Bytes of these.
    pub written_bytes: u64,
    /// Shards moved to other targets.
    pub moved: u64,
    /// Bytes of these.
    pub moved_bytes: u64,
    /// Surplus copies deleted.
    pub surplus: u64,
    /// Shards that are still missing, as there is no target for them.
    pub missing: u64,
    /// Shards on targets that fail together with another one of the pack, as there is no other
    /// target for them.
    pub crowded: u64,
    /// Packs of which too little is left, with the error. A scrub finds out which checkpoints need
    /// them.
    pub lost: Vec<(PackId, Error)>,
    /// Further packs of which too little is left, but that no checkpoint names: a gc deletes the
    /// rest.
    pub unneeded: u64,
    /// Packs that could not be read or written now.
    pub failed: Vec<(PackId, Error)>,
    /// Targets that are to be emptied and are not empty: number of shards left, and reason.
    pub left: BTreeMap<u32, (u64, Option<Error>)>,
    /// Targets that have left the pool.
    pub removed: Vec<u32>,
}

impl RepairReport {
    /// Returns whether the pool matches its table: every pack has all its shards, each on a target
    /// that fails by itself, and targets that were to be emptied are empty.
    pub fn is_whole(&self) -> bool {
        let RepairReport { missing, crowded, lost, failed, left, .. } = self;
        *missing == 0 && *crowded == 0 && lost.is_empty() && failed.is_empty() && left.is_empty()
    }

    fn add(&mut self, repair: &PackRepair) {
        self.shards += repair.shards as u64;
        self.written_bytes += repair.written_bytes;
        self.moved += repair.moved as u64;
        self.moved_bytes += repair.moved_bytes;
        self.surplus += repair.surplus as u64;
        self.missing += repair.missing as u64;
        self.crowded += repair.crowded as u64;
    }
}

/// Redundancy of a pack, as [`Pool::redundancy`] returns it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PackRedundancy {
    /// Shards on fast targets that are there.
    pub shards: usize,
    /// Number of further targets or hosts that may be lost, whichever these are; negative if the
    /// fast tier alone is not enough to read the pack now.
    pub spare: i64,
    /// Number of shards on the slow tier beyond those needed; negative if that tier alone is not
    /// enough.
    pub slow_spare: i64,
}

impl PackRedundancy {
    /// Returns whether a pack is on the slow tier only, and whole there.
    pub fn is_slow_only(&self) -> bool {
        self.shards == 0 && self.slow_spare >= 0
    }
}

impl Pool {
    /// Returns the redundancy of each finished pack, sorted.
    ///
    /// # Errors
    /// If more targets cannot be listed than the pool can do without, and there is no slow tier.
    pub fn redundancy(&self) -> Result<BTreeMap<PackId, PackRedundancy>> {
        self.redundancy_without(None)
    }

    /// Returns the same without one target.
    pub(crate) fn redundancy_without(
        &self,
        without: Option<u32>,
    ) -> Result<BTreeMap<PackId, PackRedundancy>> {
        let targets = self.targets();
        let mut listed = match targets.has_slow() {
            true => targets.list_there(),
            false => targets.list()?,
        };
        listed.retain(|(_, number)| Some(targets.members()[*number].id) != without);
        let (k, count) = (i64::from(self.config().geometry().k), self.shards_a_pack());
        let distinct = |copies: &[(u8, usize)]| {
            let numbers: BTreeSet<u8> = copies.iter().map(|(shard, _)| *shard).collect();
            numbers.len()
        };
        let each = |(pack, Listed { fast, slow }): (PackId, Listed)| {
            let readable = distinct(&fast);
            let fast: Vec<(u8, usize)> =
                fast.into_iter().filter(|(_, on)| !targets.members()[*on].is_lost()).collect();
            let shards = distinct(&fast);
            // Shards on a target that was given up can be read as long as it answers.
            let spare = match readable as i64 - k {
                // Two shards that are lost together count once.
                0.. => (apart(&targets, count, &fast) as i64 - k).max(0),
                too_few => too_few,
            };
            let slow_spare = distinct(&slow) as i64 - k;
            (pack, PackRedundancy { shards, spare, slow_spare })
        };
        Ok(self.by_pack(&targets, &listed).into_iter().map(each).collect())
    }

    /// Returns the number of shards of a pack.
    fn shards_a_pack(&self) -> usize {
        let geometry = self.config().geometry();
        usize::from(geometry.k) + usize::from(geometry.m)
    }

    /// Groups a listing by pack. Shards with numbers that no pack has are left out.
    fn by_pack(
        &self,
        targets: &TargetSet,
        listed: &[(ShardName, usize)],
    ) -> BTreeMap<PackId, Listed> {
        let mut packs: BTreeMap<PackId, Listed> = BTreeMap::new();
        for (ShardName { pack, shard }, number) in listed {
            if usize::from(*shard) < self.shards_a_pack() {
                let Listed { fast, slow } = packs.entry(*pack).or_default();
                match targets.members()[*number].tier {
                    Tier::Fast => fast.push((*shard, *number)),
                    Tier::Slow => slow.push((*shard, *number)),
                }
            }
        }
        packs
    }

    /// Makes the pool match its table of targets. It writes missing shards again, and moves shards
    /// apart and off targets that are to be emptied. It deletes surplus copies once the one that
    /// stays was read, and drops the rows of empty targets that are to go. It may be stopped at any
    /// moment, and begun again; it may run beside saves and restores.
    ///
    /// # Errors
    /// `Retry` if another command collects; an error if more targets cannot be listed than the pool
    /// can do without. The report has the errors of single packs.
    pub fn repair(&self, options: RepairOptions, uses: &dyn PackUses) -> Result<RepairReport> {
        match options.dry_run {
            true => {
                self.refresh_targets()?;
                self.pass(options, uses)
            }
            false => {
                let alone = self.alone()?;
                self.repair_alone(&alone, options, uses)
            }
        }
    }

    /// Does the same for a command that has the lock.
    pub(crate) fn repair_alone(
        &self,
        _alone: &Exclusive,
        options: RepairOptions,
        uses: &dyn PackUses,
    ) -> Result<RepairReport> {
        let mut report = self.pass(options, uses)?;
        for _ in 0..PASSES_MAX {
            if !self.advance(&mut report)? {
                break;
            }
            // Saves that read the table earlier may have written to a target that is closed now.
            let before = std::mem::take(&mut report);
            report = self.pass(options, uses)?;
            report.shards += before.shards;
            report.written_bytes += before.written_bytes;
            report.moved += before.moved;
            report.moved_bytes += before.moved_bytes;
            report.surplus += before.surplus;
            report.degraded = report.degraded.max(before.degraded);
            report.removed = before.removed;
        }
        metrics::REPAIR_SHARDS.add(report.shards);
        metrics::REPAIR_WRITTEN.add(report.written_bytes + report.moved_bytes);
        metrics::REPAIR_MISSING.set(report.missing);
        Ok(report)
    }

    /// Makes one pass over all packs.
    fn pass(&self, options: RepairOptions, uses: &dyn PackUses) -> Result<RepairReport> {
        let targets = self.targets();
        // A writer begins all shards of a pack before it finishes one. So each shard of a pack that
        // is listed first is then unfinished, or is listed by the end, or will never come.
        let begun = self.by_pack(&targets, &targets.list_durable()?);
        let unfinished = self.unfinished_fast()?;
        let mut named = None::<Option<Named>>;
        if unfinished.iter().any(|pack| begun.contains_key(pack)) {
            // The writer of a pack that a checkpoint names by now has finished it: the last listing
            // has all of it.
            named = Some(uses.named(self)?);
        }
        let mut packs = self.by_pack(&targets, &targets.list_durable()?);
        packs.retain(|pack, _| begun.contains_key(pack));
        let trimmed = uses.trimmed(self)?;
        let mut report = RepairReport { packs: packs.len() as u64, ..RepairReport::default() };
        let mut work = Vec::new();
        for (pack, listed) in packs {
            // A pack cannot stay on a slow tier that is to be emptied.
            let stays_slow = options.leaves_slow_only || trimmed.contains(&pack);
            let is_trimmed = listed.fast.is_empty() && self.has_slow_to_fill() && stays_slow;
            let is_begun = unfinished.contains(&pack);
            let mut allowed = Allowed { make: !is_trimmed, tidy: true };
            let careful = Allowed { make: !is_trimmed && !is_begun, tidy: false };
            let fates = |allowed| self.fates(&targets, &listed, allowed);
            // A checkpoint names only packs that their writers finished. So a repair or a fill has
            // left an unfinished shard of one behind.
            if fates(allowed) != fates(careful) {
                let named = match &named {
                    Some(named) => named,
                    None => named.insert(uses.named(self)?),
                };
                if named.as_ref().is_some_and(|named| !named.packs.contains(&pack)) {
                    allowed = careful;
                }
            }
            let fates = fates(allowed);
            let rests = fates.contains(&Fate::Rests);
            report.trimmed += u64::from(is_trimmed);
            report.unfinished += u64::from(is_begun && allowed == careful && rests);
            if fates.iter().any(Fate::is_work) {
                report.degraded += 1;
                let missing = |fate: &&Fate| **fate == Fate::Moves { from: Vec::new() };
                report.missing += fates.iter().filter(missing).count() as u64;
                work.push((pack, listed, allowed));
            }
        }
        if !options.dry_run {
            report.missing = 0;
            self.bring_all(&targets, work, options.bytes_per_s, &mut report);
        }
        if !report.lost.is_empty() {
            // If the logs cannot say, any pack may be needed.
            let named = uses.named(self).unwrap_or(None);
            let count = report.lost.len();
            report.lost.retain(|(pack, _)| named.as_ref().is_none_or(|named| named.may_have(pack)));
            report.unneeded = (count - report.lost.len()) as u64;
        }
        self.count_left(&targets, options.dry_run, &mut report);
        Ok(report)
    }

    /// Returns the fates of all copies of a pack.
    fn fates(&self, targets: &TargetSet, listed: &Listed, allowed: Allowed) -> Vec<Fate> {
        let count = self.shards_a_pack();
        let mut fates = plan(targets, Tier::Fast, count, &listed.fast, allowed);
        fates.extend(
            plan(targets, Tier::Slow, count, &listed.slow, allowed)
                .into_iter()
                .filter(Fate::is_work),
        );
        fates
    }

    /// Returns the packs of which a shard is being written on the fast tier, or was left behind
    /// there.
    fn unfinished_fast(&self) -> Result<BTreeSet<PackId>> {
        let targets = self.targets();
        let is_fast = |number: usize| targets.members()[number].tier == Tier::Fast;
        let unfinished = targets.unfinished()?.into_iter();
        Ok(unfinished.filter(|(_, number)| is_fast(*number)).map(|(one, _)| one.pack).collect())
    }

    fn bring_all(
        &self,
        targets: &Arc<TargetSet>,
        work: Vec<(PackId, Listed, Allowed)>,
        bytes_per_s: Option<u64>,
        report: &mut RepairReport,
    ) {
        let pace = Pace::new(bytes_per_s);
        let pack_bytes = self.config().format.pack_bytes;
        let (total_bytes, done_bytes) = (work.len() as u64 * pack_bytes, AtomicU64::new(0));
        let outcomes = parallel(work, self.config().tuning.threads(), |(pack, listed, allowed)| {
            let mut bring = Bring::new(self, targets.clone(), pack);
            let outcome = bring.run(&listed, allowed, &[]);
            pace.spend(bring.repair.written_bytes + bring.repair.moved_bytes);
            let done_bytes = done_bytes.fetch_add(pack_bytes, Ordering::Relaxed) + pack_bytes;
            let event = Progress { what: "repair", done_bytes, total_bytes };
            self.env().observer.event(Event::Progress(event));
            (pack, outcome, bring.repair)
        });
        for (pack, outcome, repair) in outcomes {
            report.add(&repair);
            for (id, why) in repair.left {
                report.left.entry(id).or_default().1.get_or_insert(why);
            }
            match outcome {
                Ok(()) => {}
                // A gc may have deleted it meanwhile: then nothing needs it.
                Err(error) if error.kind() == ErrorKind::Damaged => {
                    if self.stored_bytes(pack).is_ok() {
                        report.lost.push((pack, error));
                    }
                }
                Err(error) => report.failed.push((pack, error)),
            }
        }
    }

    /// Counts the shards on targets that are to be emptied. A target that was given up need not be
    /// empty, as reads and deletes may fail there: only shards count that the pass could not make
    /// elsewhere.
    fn count_left(&self, targets: &TargetSet, dry_run: bool, report: &mut RepairReport) {
        let (failed, lost) = (&report.failed, &report.lost);
        let unmade: BTreeSet<PackId> = failed.iter().chain(lost).map(|(pack, _)| *pack).collect();
        let why_others = failed.first().or(lost.first()).map(|(_, error)| error.clone());
        let why_others = why_others.or_else(|| (report.unneeded > 0).then(|| self.unneeded()));
        let is_done = failed.is_empty();
        for member in targets.members().iter().filter(|member| !member.is_active()) {
            let told = report.left.remove(&member.id).and_then(|(_, why)| why);
            let counts = |shard: &&ShardName| {
                dry_run || !member.is_lost() || told.is_some() || unmade.contains(&shard.pack)
            };
            let listed = member.asked(|target| target.list());
            let count = listed.map(|shards| shards.iter().filter(counts).count() as u64);
            match count {
                Ok(0) => {}
                Err(_) if member.is_lost() && is_done => {}
                Ok(count) => {
                    report.left.insert(member.id, (count, told.or_else(|| why_others.clone())));
                }
                Err(error) => drop(report.left.insert(member.id, (0, Some(error)))),
            }
        }
    }

    fn unneeded(&self) -> Error {
        Error::retry(format!(
            "too little is left of packs that no checkpoint needs: run `{}`, which deletes them, and then this command \
             again",
            self.command("gc", &[])
        ))
    }

    /// Takes the next step for the rows of targets that are to go: closes one that is empty, and
    /// drops one that is empty after it was closed. Returns whether a pass has to list a target
    /// again.
    fn advance(&self, report: &mut RepairReport) -> Result<bool> {
        let Some(table) = self.table() else { return Ok(false) };
        let rows = table.read()?;
        let (targets, mut closed, mut dropped) = (self.targets(), Vec::new(), Vec::new());
        let is_left = |member: &&Member| report.left.contains_key(&member.id);
        let leaving = targets.members().iter().filter(|member| !member.is_active());
        for member in leaving.filter(|member| !is_left(member)) {
            let removed = rows.get(member.id).is_some_and(|row| row.remove);
            match member.state {
                TargetState::Draining if removed => closed.push(member.id),
                TargetState::Closed | TargetState::Lost => dropped.push(member.id),
                _ => {}
            }
        }
        if closed.is_empty() && dropped.is_empty() {
            return Ok(false);
        }
        table.change(&mut |rows| {
            for row in &mut rows.targets {
                let is_its = |id: &u32| row.id == Some(*id);
                if row.state == TargetState::Draining && closed.iter().any(is_its) {
                    row.state = TargetState::Closed;
                }
            }
            let goes = |row: &TargetConfig| {
                let is_out = matches!(row.state, TargetState::Closed | TargetState::Lost);
                is_out && row.id.is_some_and(|id| dropped.contains(&id))
            };
            // A seat stays, for another host.
            for row in rows.targets.iter_mut().filter(|row| row.is_seat() && goes(row)) {
                let unsettled = row.state == TargetState::Lost;
                *row = TargetConfig { unsettled, ..TargetConfig::vacant(rows.next_id) };
                rows.next_id += 1;
            }
            rows.targets.retain(|row| !goes(row));
            Ok(())
        })?;
        report.removed.extend(dropped);
        self.refresh_targets()?;
        Ok(!closed.is_empty())
    }

    /// Repairs packs in which damage was found, but that can be read. It writes damaged copies
    /// again in place, on either tier. It makes what the fast tier lacks, unless `rests` names the
    /// pack: that was trimmed, or is still being written. Returns the result of each; packs that
    /// were deleted meanwhile are left out.
    ///
    /// # Errors
    /// `Retry` while another command does so; errors of the targets.
    pub fn mend(
        &self,
        faults: &BTreeMap<PackId, Vec<ShardFault>>,
        rests: &BTreeSet<PackId>,
        pace: &Pace,
    ) -> Result<Vec<(PackId, Result<PackRepair>)>> {
        let (_alone, mut outcomes) = (self.alone()?, Vec::new());
        for (pack, faults) in faults {
            let make = !rests.contains(pack);
            let outcome = self.mend_pack(*pack, make, faults);
            pace.spend(outcome.as_ref().map_or(0, |repair| repair.written_bytes));
            let is_gone = |error: &Error| {
                error.kind() == ErrorKind::Damaged && self.stored_bytes(*pack).is_err()
            };
            if !outcome.as_ref().is_err_and(is_gone) {
                outcomes.push((*pack, outcome));
            }
        }
        Ok(outcomes)
    }

    /// Repairs one pack, for a caller that has the lock.
    pub(crate) fn mend_pack(
        &self,
        pack: PackId,
        make: bool,
        damaged: &[ShardFault],
    ) -> Result<PackRepair> {
        let targets = self.targets();
        let copies = |name: ShardName| {
            targets.copies(name).members.into_iter().map(move |number| (name, number))
        };
        let copies: Vec<_> = self.shards_of(pack).into_iter().flat_map(copies).collect();
        let listed = self.by_pack(&targets, &copies).remove(&pack).unwrap_or_default();
        let mut bring = Bring::new(self, targets, pack);
        bring.run(&listed, Allowed { make, tidy: false }, damaged)?;
        Ok(bring.repair)
    }
}
