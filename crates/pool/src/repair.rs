//! Gives packs back the redundancy that they lack.

use crate::Pool;
use crate::redundancy::Tier;
use crate::targets::TargetSet;
use outlive_chunk::parallel;
use outlive_io::Pace;
use outlive_target::{Lock, ShardName};
use outlive_types::{Error, ErrorKind, Event, PackId, Progress, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

/// How to repair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RepairOptions {
    /// At most so many bytes a second are written.
    pub bytes_per_s: Option<u64>,
    /// Only say what is missing.
    pub dry_run: bool,
}

/// What a repair found and did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RepairReport {
    /// Packs looked at.
    pub packs: u64,
    /// Of these, packs with a shard missing.
    pub incomplete: u64,
    /// Packs that were left alone since a shard of them is still being written, or was left behind: a gc
    /// removes those.
    pub unfinished: u64,
    /// Packs that were deleted from the fast tier on purpose: they are whole on the slow one.
    pub trimmed: u64,
    /// Shards written anew.
    pub shards: u64,
    /// Bytes of these.
    pub written_bytes: u64,
    /// Shards that are still missing, as there is no target for them.
    pub missing: u64,
    /// Packs of which too little is left, and why. Perhaps nobody needs them: a scrub finds that out.
    pub lost: Vec<(PackId, Error)>,
    /// Packs that could not be read or written just now.
    pub failed: Vec<(PackId, Error)>,
}

impl RepairReport {
    /// True if every pack has all its shards.
    pub fn is_whole(&self) -> bool {
        let RepairReport { incomplete, missing, lost, failed, .. } = self;
        *missing == 0
            && lost.is_empty()
            && failed.is_empty()
            && (*incomplete == 0 || self.shards > 0)
    }
}

/// How many shards a pack lacks: what [`Pool::redundancy`] says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PackRedundancy {
    /// Shards that are on fast targets that are there.
    pub shards: usize,
    /// So many more may be lost; negative if the fast tier alone is not enough to read it now.
    pub spare: i64,
    /// The same of the slow tier; negative if that alone is not enough.
    pub slow_spare: i64,
}

impl PackRedundancy {
    /// Whether a pack is on the slow tier only, and whole there.
    pub fn is_slow_only(&self) -> bool {
        self.shards == 0 && self.slow_spare >= 0
    }
}

impl Pool {
    /// Of each finished pack, sorted, how much of it is there.
    ///
    /// # Errors
    /// More targets than the pool can do without cannot be asked, and there is no slow tier.
    pub fn redundancy(&self) -> Result<BTreeMap<PackId, PackRedundancy>> {
        let k = i64::from(self.config().geometry().k);
        let targets = self.targets();
        let listed = match targets.has_slow() {
            true => targets.list_there(),
            false => targets.list()?,
        };
        let fast = self.shards_on(&targets, Tier::Fast, &listed);
        let slow = self.shards_on(&targets, Tier::Slow, &listed);
        let count = |on: &BTreeMap<PackId, BTreeSet<u8>>, pack: &PackId| {
            on.get(pack).map_or(0, BTreeSet::len)
        };
        let packs: BTreeSet<PackId> = fast.keys().chain(slow.keys()).copied().collect();
        let each = |pack: PackId| {
            let shards = count(&fast, &pack);
            let (spare, slow_spare) = (shards as i64 - k, count(&slow, &pack) as i64 - k);
            (pack, PackRedundancy { shards, spare, slow_spare })
        };
        Ok(packs.into_iter().map(each).collect())
    }

    /// The numbers of each pack's shards that are on a tier.
    fn shards_on(
        &self,
        targets: &TargetSet,
        tier: Tier,
        listed: &[(ShardName, usize)],
    ) -> BTreeMap<PackId, BTreeSet<u8>> {
        let count = self.shards_of(PackId([0; 20])).len();
        let mut there: BTreeMap<PackId, BTreeSet<u8>> = BTreeMap::new();
        for (ShardName { pack, shard }, number) in listed {
            if usize::from(*shard) < count && targets.members()[*number].tier == tier {
                there.entry(*pack).or_default().insert(*shard);
            }
        }
        there
    }

    /// The numbers of each pack's shards that are on fast targets; of none those that only slow ones have.
    fn shards_there(&self) -> Result<BTreeMap<PackId, BTreeSet<u8>>> {
        let targets = self.targets();
        let listed = targets.list()?;
        let mut there = self.shards_on(&targets, Tier::Fast, &listed);
        for pack in self.shards_on(&targets, Tier::Slow, &listed).into_keys() {
            there.entry(pack).or_default();
        }
        Ok(there)
    }

    /// Writes what is missing of packs anew, on targets that do not have another part of the pack. It
    /// may be stopped at any moment, and begun again; it may run beside everything else.
    ///
    /// # Errors
    /// More targets than the pool can do without cannot be asked; another command is collecting. What
    /// concerns single packs is in the report.
    pub fn repair(&self, options: RepairOptions) -> Result<RepairReport> {
        self.repair_but(options, &|_| Ok(BTreeSet::new()))
    }

    /// The same, but for packs of which nothing is on the fast tier and which `trimmed` names. It is asked under
    /// the lock.
    ///
    /// # Errors
    /// As [`Pool::repair`]; those of `trimmed`.
    pub fn repair_but(
        &self,
        options: RepairOptions,
        trimmed: &dyn Fn(&Pool) -> Result<BTreeSet<PackId>>,
    ) -> Result<RepairReport> {
        let _lock = match options.dry_run {
            true => Lock::None,
            false => self.lock_collecting()?,
        };
        if matches!(_lock, Lock::Busy) {
            return Err(Error::retry(
                "another gc, scrub or repair is at work in this pool: try again when it has ended",
            ));
        }
        let there = self.shards_there()?;
        let trimmed = trimmed(self)?;
        // Looked at behind the listing: what was not finished there is finished here, or it is listed.
        let unfinished: BTreeSet<PackId> = self.unfinished_on(Tier::Fast)?;
        let count = self.shards_of(PackId([0; 20])).len();
        let mut report = RepairReport { packs: there.len() as u64, ..RepairReport::default() };
        let mut incomplete = Vec::new();
        for (pack, shards) in there {
            if shards.is_empty() && trimmed.contains(&pack) {
                report.trimmed += 1;
            } else if shards.len() < count && unfinished.contains(&pack) {
                report.unfinished += 1;
            } else if shards.len() < count {
                report.incomplete += 1;
                report.missing += (count - shards.len()) as u64;
                incomplete.push(pack);
            }
        }
        if !options.dry_run {
            self.repair_packs(incomplete, options.bytes_per_s, &mut report);
        }
        Ok(report)
    }

    /// Packs of which a shard is being written on a tier, or was left behind there.
    fn unfinished_on(&self, tier: Tier) -> Result<BTreeSet<PackId>> {
        let targets = self.targets();
        let is_of_tier = |number: usize| targets.members()[number].tier == tier;
        let unfinished = targets.unfinished()?.into_iter();
        Ok(unfinished.filter(|(_, number)| is_of_tier(*number)).map(|(one, _)| one.pack).collect())
    }

    fn repair_packs(
        &self,
        packs: Vec<PackId>,
        bytes_per_s: Option<u64>,
        report: &mut RepairReport,
    ) {
        let pace = Pace::new(bytes_per_s);
        let pack_bytes = self.config().format.pack_bytes;
        let (total_bytes, done_bytes) = (packs.len() as u64 * pack_bytes, AtomicU64::new(0));
        let outcomes = parallel(packs, self.config().tuning.threads(), |pack| {
            let outcome = self.repair_pack(pack, &[]);
            pace.spend(outcome.as_ref().map_or(0, |repair| repair.written_bytes));
            let done_bytes = done_bytes.fetch_add(pack_bytes, Ordering::Relaxed) + pack_bytes;
            let event = Progress { what: "repair", done_bytes, total_bytes };
            self.env().observer.event(Event::Progress(event));
            (pack, outcome)
        });
        report.missing = 0;
        for (pack, outcome) in outcomes {
            match outcome {
                Ok(repair) => {
                    report.shards += repair.shards as u64;
                    report.written_bytes += repair.written_bytes;
                    report.missing += repair.missing as u64;
                }
                // A gc may have deleted it meanwhile: then nobody misses it.
                Err(error) if error.kind() == ErrorKind::Damaged => {
                    if self.stored_bytes(pack).is_ok() {
                        report.lost.push((pack, error));
                    }
                }
                Err(error) => report.failed.push((pack, error)),
            }
        }
    }
}
