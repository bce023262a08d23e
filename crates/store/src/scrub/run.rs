//! Reads all packs, or a sample of them, and deals with the faults.

use super::check::check_pack;
use super::heal::{HealReport, heal};
use crate::commit::history;
use crate::redundancy::{KnownSegments, packs_of};
use crate::save::remark;
use crate::trim::Uses;
use crate::verify::{Sample, is_damage, named_packs};
use outlive_format::Manifest;
use outlive_io::Pace;
use outlive_pool::{PackCheck, PackUses, Pool, ShardFault};
use outlive_types::{Error, ErrorKind, Event, PackId, Progress, Result, metrics};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

/// Options of a scrub.
#[derive(Clone, Copy, Debug)]
pub struct ScrubOptions {
    /// Selection of the packs to read.
    pub sample: Sample,
    /// Maximum number of bytes to read per second.
    pub bytes_per_s: Option<u64>,
    /// Only report.
    pub dry_run: bool,
}

/// Findings and work of a scrub.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ScrubReport {
    /// Number of packs read.
    pub packs: u64,
    /// Bytes of the whole ones.
    pub read_bytes: u64,
    /// Faults of shards on the fast tier: missing, damaged or not readable at the moment. Their
    /// packs can still be read.
    pub degraded: Vec<(PackId, ShardFault)>,
    /// The same for copies on slow targets.
    pub copies: Vec<(PackId, ShardFault)>,
    /// Number of shards of both kinds that were rewritten.
    pub repaired: u64,
    /// Packs that can be read, but whose damage is not all repaired, and why.
    pub unrepaired: Vec<(PackId, Error)>,
    /// Packs that cannot be read whole, and the first fault of each.
    pub damaged: Vec<(PackId, Error)>,
    /// Work that was done about them.
    pub heal: HealReport,
    /// Reason why the scrub could not do everything: a log or pack that could not be read at the
    /// moment, another command that collects, a full pool. The findings and work so far stand
    /// above.
    pub blocked: Option<Error>,
}

impl ScrubReport {
    /// Returns true if nothing that a checkpoint needs is damaged or lacks redundancy, as far as
    /// the scrub could see.
    pub fn is_whole(&self) -> bool {
        let mut faults = self.degraded.iter().chain(&self.copies);
        let is_unread = |fault: &ShardFault| fault.error.kind() != ErrorKind::Damaged;
        self.blocked.is_none()
            && !self.is_incomplete()
            && !faults.any(|(_, fault)| is_unread(fault))
    }

    /// Returns true if something is still damaged.
    pub fn is_incomplete(&self) -> bool {
        let HealReport { condemned, pending, segments, incomplete, .. } = &self.heal;
        !condemned.is_empty()
            || !pending.is_empty()
            || *segments > 0
            || !incomplete.is_empty()
            || !self.unrepaired.is_empty()
    }
}

/// Removes the suspect mark from checkpoints if this scrub has read all their packs and found them
/// `whole`.
fn clear_suspects(pool: &Pool, whole: &BTreeSet<PackId>) -> Result<()> {
    let mut known = KnownSegments::new();
    for job in pool.jobs()? {
        let mut suspects = Vec::new();
        for entry in history(pool, &job)? {
            let entry = entry.unless_unread()?;
            let is_suspect = |it: &&Manifest| it.remarks.suspect && !entry.incomplete;
            suspects.extend(entry.manifest().filter(is_suspect).cloned());
        }
        for manifest in suspects {
            let is_whole = match packs_of(pool, &manifest, &mut known) {
                Ok(packs) => packs.is_subset(whole),
                Err(error) if error.kind() == ErrorKind::Damaged => false,
                Err(error) => return Err(error),
            };
            if !is_whole {
                continue;
            }
            match remark(pool, &job, manifest.epoch, &|it| it.suspect = false) {
                // A prune dropped the checkpoint meanwhile.
                Err(error) if error.kind() == ErrorKind::Invalid => {}
                cleared => drop(cleared?),
            }
        }
    }
    Ok(())
}

/// Scrubs a pool: reads packs and checks every byte of them, then moves whole data out of damaged
/// packs and makes all jobs refer to the copies.
///
/// # Errors
/// Errors of targets and log. Damage is in the report, with an error that kept the scrub from
/// dealing with it. So no second scrub is needed to learn which packs are damaged.
pub fn scrub(pool: &Pool, options: &ScrubOptions) -> Result<ScrubReport> {
    let pool = &pool.to_check();
    let pace = Pace::new(options.bytes_per_s);
    let mut packs = pool.packs()?;
    options.sample.choose(&mut packs, |pack| outlive_chunk::fingerprint(&pack.0));
    let pack_bytes = pool.config().format.pack_bytes;
    let (total_bytes, done_bytes) = (packs.len() as u64 * pack_bytes, AtomicU64::new(0));
    let threads = pool.config().tuning.threads();
    let outcomes = outlive_chunk::parallel(packs, threads, |pack| {
        let outcome = check_as_it_is(pool, pack, &pace);
        let done_bytes = done_bytes.fetch_add(pack_bytes, Ordering::Relaxed) + pack_bytes;
        let event = Progress { what: "scrub", done_bytes, total_bytes };
        pool.env().observer.event(Event::Progress(event));
        (pack, outcome)
    });
    let mut report = ScrubReport::default();
    // Trimmed packs are missing on purpose.
    let (trimmed, mut unread) = match Uses.trimmed(pool) {
        Ok(trimmed) => (trimmed, None),
        // Any pack may have been trimmed: the next scrub deals with missing ones. The report has
        // the findings.
        Err(error) => (outcomes.iter().map(|(pack, _)| *pack).collect(), Some(error)),
    };
    let mut whole = BTreeSet::new();
    for (pack, outcome) in outcomes {
        report.packs += 1;
        match outcome {
            Ok(check) => {
                whole.insert(pack);
                report.read_bytes += check.stored_bytes;
                for fault in check.faults {
                    match fault.is_slow {
                        true => report.copies.push((pack, fault)),
                        false if fault.target.is_none() && trimmed.contains(&pack) => {}
                        false => report.degraded.push((pack, fault)),
                    }
                }
            }
            Err(error) if is_damage(&error) => report.damaged.push((pack, error)),
            Err(error) => unread = unread.or(Some(error)),
        }
    }
    let repaired = repair(pool, &pace, &trimmed, options.dry_run, &mut report);
    let mut mend = || {
        if !report.damaged.is_empty() {
            // A gc may have deleted some meanwhile.
            let there: BTreeSet<PackId> = pool.packs()?.into_iter().collect();
            // Other packs have shards that are not finished yet, or were left behind.
            let damaged: BTreeSet<PackId> = report.damaged.iter().map(|(pack, _)| *pack).collect();
            let unfinished = being_written(pool, |pack| damaged.contains(pack))?;
            report.damaged.retain(|(pack, _)| there.contains(pack) && !unfinished.contains(pack));
        }
        let suspects: BTreeSet<PackId> = report.damaged.iter().map(|(pack, _)| *pack).collect();
        heal(pool, &suspects, &pace, options.dry_run, &mut report.heal)
    };
    let mended = mend().and(repaired);
    metrics::SCRUB_READ.add(report.read_bytes);
    metrics::SCRUB_REPAIRED.add(report.repaired);
    metrics::SCRUB_DAMAGED.set(report.damaged.len() as u64);
    match unread.map_or(mended, Err) {
        Ok(()) => {
            if !options.dry_run
                && let Err(error) = clear_suspects(pool, &whole)
            {
                pool.warn(format!("suspect checkpoints keep their mark: {error}"));
            }
            Ok(report)
        }
        Err(error)
            if !report.damaged.is_empty()
                || report.is_incomplete()
                || error.kind() == ErrorKind::Damaged =>
        {
            Ok(ScrubReport { blocked: Some(error), ..report })
        }
        Err(error) => Err(error),
    }
}

/// Maximum number of further checks of a pack with a fault: the table also changes when a command
/// begins or ends.
const LOOKS_MAX: usize = 3;

/// Checks a pack where it is now. After a fault, if targets have come or gone, it checks the pack
/// again: a command may have moved its shards meanwhile.
fn check_as_it_is(pool: &Pool, pack: PackId, pace: &Pace) -> Result<PackCheck> {
    let mut outcome = check_pack(pool, pack, pace);
    for _ in 0..LOOKS_MAX {
        let seen = pool.table_seen();
        let is_whole = outcome.as_ref().is_ok_and(|check| check.faults.is_empty());
        if is_whole || pool.refresh_targets().is_err() || pool.table_seen() == seen {
            break;
        }
        outcome = check_pack(pool, pack, pace);
    }
    outcome
}

/// Rewrites missing or damaged shards of packs that can be read thanks to the others.
fn repair(
    pool: &Pool,
    pace: &Pace,
    trimmed: &BTreeSet<PackId>,
    dry_run: bool,
    report: &mut ScrubReport,
) -> Result<()> {
    let mut faults: BTreeMap<PackId, Vec<ShardFault>> = BTreeMap::new();
    for (pack, fault) in report.degraded.iter().chain(&report.copies) {
        // A shard that cannot be read at the moment may be whole.
        if fault.error.kind() == ErrorKind::Damaged {
            faults.entry(*pack).or_default().push(fault.clone());
        }
    }
    if faults.is_empty() {
        return Ok(());
    }
    // Shards of a pack that is still being written are not missing.
    let unfinished = being_written(pool, |pack| faults.contains_key(pack))?;
    let is_unfinished =
        |fault: &ShardFault, pack: &PackId| fault.target.is_none() && unfinished.contains(pack);
    for (pack, faults) in &mut faults {
        faults.retain(|fault| !is_unfinished(fault, pack));
    }
    faults.retain(|_, faults| !faults.is_empty());
    report.degraded.retain(|(pack, fault)| !is_unfinished(fault, pack));
    let first = |faults: &[ShardFault]| faults.first().map(|fault| fault.error.clone());
    if dry_run {
        report.unrepaired =
            faults.iter().filter_map(|(pack, all)| Some((*pack, first(all)?))).collect();
        return Ok(());
    }
    let rests = trimmed | &unfinished;
    let outcomes = match pool.mend(&faults, &rests, pace) {
        Ok(outcomes) => outcomes,
        Err(error) => {
            report.unrepaired = faults.keys().map(|pack| (*pack, error.clone())).collect();
            return Err(error);
        }
    };
    for (pack, outcome) in outcomes {
        match outcome {
            Ok(repair) => {
                report.repaired += repair.shards as u64;
                if repair.missing > 0 {
                    let why = "there is no target for what it lacks: bring back those that are away, or add one";
                    report.unrepaired.push((pack, Error::full(why)));
                }
                // A damaged copy that should go from its target, and cannot.
                let is_damaged = |id: &u32| faults[&pack].iter().any(|it| it.target == Some(*id));
                let left = repair.left.into_iter().find(|(id, _)| is_damaged(id));
                report.unrepaired.extend(left.map(|(_, why)| (pack, why)));
            }
            Err(error) => report.unrepaired.push((pack, error)),
        }
    }
    Ok(())
}

/// Returns the packs of `these` that savers may still be writing, or have left behind. The writer
/// of a pack that a checkpoint names has finished it: an unfinished shard of it is what a fill, a
/// repair or a scrub has left behind.
fn being_written(pool: &Pool, these: impl Fn(&PackId) -> bool) -> Result<BTreeSet<PackId>> {
    let mut unfinished: BTreeSet<PackId> = pool.unfinished_packs()?.into_iter().collect();
    unfinished.retain(these);
    if !unfinished.is_empty() {
        let named = named_packs(pool)?;
        unfinished.retain(|pack| !named.packs.contains(pack));
    }
    Ok(unfinished)
}
