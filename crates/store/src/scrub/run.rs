//! Reads all packs, or a sample of them, and has what is wrong dealt with.

use super::check::check_pack;
use super::heal::{HealReport, heal};
use crate::verify::{Sample, is_damage};
use outlive_io::Pace;
use outlive_pool::Pool;
use outlive_types::{Error, ErrorKind, Event, PackId, Progress, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

/// How to scrub.
#[derive(Clone, Copy, Debug)]
pub struct ScrubOptions {
    /// Which packs are read.
    pub sample: Sample,
    /// At most so many bytes a second are read.
    pub bytes_per_s: Option<u64>,
    /// Only report.
    pub dry_run: bool,
}

/// What a scrub found and did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ScrubReport {
    /// Packs read.
    pub packs: u64,
    /// Bytes of the whole ones.
    pub read_bytes: u64,
    /// Packs that are whole thanks to their redundancy: shards that were missing or damaged, and why.
    pub incomplete: Vec<(PackId, u8, Error)>,
    /// Shards of these that were written anew.
    pub repaired: u64,
    /// Copies on slow targets that are damaged or could not be read: pack, shard, and why. Damaged ones of
    /// packs that the fast tier has as a whole were deleted, unless nothing was to be changed.
    pub copies: Vec<(PackId, u8, Error)>,
    /// Packs with something wrong, and what came first.
    pub damaged: Vec<(PackId, Error)>,
    /// What was done about them.
    pub heal: HealReport,
    /// What kept the scrub from doing all that can be done: a log or pack that could not be read just
    /// then, another command that collects, a full pool. What was found and done stands above.
    pub blocked: Option<Error>,
}

impl ScrubReport {
    /// True if nothing that anybody needs is damaged, as far as could be found out.
    pub fn is_whole(&self) -> bool {
        self.blocked.is_none() && !self.is_hurt()
    }

    /// True if something that somebody needs is damaged.
    pub fn is_hurt(&self) -> bool {
        let HealReport { condemned, pending, segments, hurt, .. } = &self.heal;
        !condemned.is_empty() || !pending.is_empty() || *segments > 0 || !hurt.is_empty()
    }
}

/// Scrubs a pool: reads packs and checks every byte of them, then moves what is whole out of damaged
/// ones and sees to it that nobody refers to them any more.
///
/// # Errors
/// What target and log report. Damage is in the report, and then also what kept it from being dealt
/// with: nobody should have to read the whole pool again to learn which packs are damaged.
pub fn scrub(pool: &Pool, options: &ScrubOptions) -> Result<ScrubReport> {
    let pace = Pace::new(options.bytes_per_s);
    let mut packs = pool.packs()?;
    options.sample.choose(&mut packs, |pack| outlive_chunk::fingerprint(&pack.0));
    let pack_bytes = pool.config().format.pack_bytes;
    let (total_bytes, done_bytes) = (packs.len() as u64 * pack_bytes, AtomicU64::new(0));
    let threads = pool.config().tuning.threads();
    let outcomes = outlive_chunk::parallel(packs, threads, |pack| {
        let outcome = check_pack(pool, pack, &pace).map(|check| {
            let delete = check.faults.is_empty() && !options.dry_run;
            let (bytes, copies) = pool.check_copies(pack, delete);
            pace.spend(bytes);
            (check, bytes, copies)
        });
        let done_bytes = done_bytes.fetch_add(pack_bytes, Ordering::Relaxed) + pack_bytes;
        let event = Progress { what: "scrub", done_bytes, total_bytes };
        pool.env().observer.event(Event::Progress(event));
        (pack, outcome)
    });
    let mut report = ScrubReport::default();
    // What was trimmed is missing on purpose; a repair knows whether the newest checkpoints need it.
    let trimmed: BTreeSet<PackId> = match pool.config().tiers.keep_fast {
        0 => BTreeSet::new(),
        _ => {
            let there = pool.redundancy()?.into_iter();
            there.filter(|(_, is)| is.is_slow_only()).map(|(pack, _)| pack).collect()
        }
    };
    let mut unread = None;
    for (pack, outcome) in outcomes {
        report.packs += 1;
        match outcome {
            Ok((check, bytes, copies)) => {
                report.read_bytes += check.stored_bytes + bytes;
                let copies = copies.into_iter().map(|(shard, error)| (pack, shard, error));
                report.copies.extend(copies);
                if trimmed.contains(&pack) {
                    continue;
                }
                let faults = check.faults.into_iter();
                report.incomplete.extend(faults.map(|(shard, error)| (pack, shard, error)));
            }
            Err(error) if is_damage(&error) => report.damaged.push((pack, error)),
            Err(error) => unread = unread.or(Some(error)),
        }
    }
    if !options.dry_run {
        repair(pool, &pace, &mut report);
    }
    let mut mend = || {
        if !report.damaged.is_empty() {
            // A gc may have deleted some meanwhile.
            let there: BTreeSet<PackId> = pool.packs()?.into_iter().collect();
            // Of others some shards are not finished yet, or were left behind.
            let unfinished: BTreeSet<PackId> = pool.unfinished_packs()?.into_iter().collect();
            report.damaged.retain(|(pack, _)| there.contains(pack) && !unfinished.contains(pack));
        }
        let suspects: BTreeSet<PackId> = report.damaged.iter().map(|(pack, _)| *pack).collect();
        heal(pool, &suspects, &pace, options.dry_run, &mut report.heal)
    };
    let mended = mend();
    match unread.map_or(mended, Err) {
        Ok(()) => Ok(report),
        Err(error)
            if !report.damaged.is_empty()
                || report.is_hurt()
                || error.kind() == ErrorKind::Damaged =>
        {
            Ok(ScrubReport { blocked: Some(error), ..report })
        }
        Err(error) => Err(error),
    }
}

/// Writes shards anew that are missing or damaged, of packs that are whole thanks to the others.
fn repair(pool: &Pool, pace: &Pace, report: &mut ScrubReport) {
    let mut packs: BTreeMap<PackId, Vec<u8>> = BTreeMap::new();
    for (pack, shard, error) in &report.incomplete {
        // What cannot be read just now may be whole.
        if error.kind() == ErrorKind::Damaged {
            packs.entry(*pack).or_default().push(*shard);
        }
    }
    // Nothing depends on its success: what is still missing is found again.
    let unfinished = pool.unfinished_packs().unwrap_or_else(|_| packs.keys().copied().collect());
    for (pack, shards) in packs {
        if unfinished.contains(&pack) {
            continue;
        }
        match pool.repair_pack(pack, &shards) {
            Ok(repair) => {
                report.repaired += repair.shards as u64;
                pace.spend(repair.written_bytes);
            }
            Err(error) => pool.warn(format!("pack {pack} was not repaired: {error}")),
        }
    }
}
