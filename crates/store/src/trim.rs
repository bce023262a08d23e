//! Trims the fast tier: deletes packs from it that only older checkpoints need, once the slow tier
//! has them. Only `keep_fast` and the targets of a pack show that it was trimmed:
//! docs/design/027-trim.md.

use crate::commit::history;
use crate::gc::live_of;
use crate::images::each_image;
use crate::index::Locator;
use crate::paced_lock::{LockHold, LockTurn, PacedLock, Rest, sleep};
use crate::read::{Live, Logs, Once, while_moving};
use crate::redundancy::{KnownSegments, packs_of};
use crate::verify::named_packs;
use outlive_format::{Image, Manifest};
use outlive_pool::{FillNeed, Named, PackUses, Pool, RepairOptions, RepairReport};
use outlive_types::{Error, ErrorKind, JobName, PackId, Result};
use std::collections::{BTreeSet, HashSet};

/// Options of a trim.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TrimOptions {
    /// Maximum number of bytes to read from the slow tier per second.
    pub bytes_per_s: Option<u64>,
    /// Only report what would be deleted.
    pub dry_run: bool,
}

/// Findings and work of a trim.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TrimReport {
    /// Number of packs on the fast tier that checkpoints name.
    pub packs: u64,
    /// Number of these packs that the newest checkpoints need.
    pub kept: u64,
    /// Number of the other packs that are not whole on the slow tier.
    pub unfilled: u64,
    /// Number of packs deleted from the fast tier.
    pub trimmed: u64,
    /// Bytes freed there.
    pub freed_bytes: u64,
    /// Packs that stay, since their copies could not be read as a whole, and why.
    pub failed: Vec<(PackId, Error)>,
}

/// Deletes packs from the fast tier that none of the `keep_fast` newest checkpoints of a job needs.
/// They must be whole on the slow tier, where each is read before. It may be stopped at any moment,
/// and begun again.
///
/// # Errors
/// `Invalid` without a slow tier, or without `keep_fast`; `Retry` while another command collects;
/// errors of log and targets. Errors of single packs are in the report.
pub fn trim(pool: &Pool, options: TrimOptions) -> Result<TrimReport> {
    if pool.config().tiers.keep_fast == 0 {
        return Err(Error::invalid(
            "all checkpoints are to stay on the fast tier: to trim it, set in pool.toml, under [tiers], keep_fast = N, \
             the number of newest checkpoints of each job that stay there",
        ));
    }
    if options.dry_run {
        return Ok(TrimSurvey::at(pool)?.report(pool));
    }
    trim_in_turns(pool, None, &mut PacedLock::new(options.bytes_per_s), &sleep)
}

/// Does the same behind the fill of a program, if there is something to trim. Packs that other
/// commands work on are left to the next time, and so are the remaining ones if `rest` returns
/// false.
///
/// # Errors
/// As [`trim`]; the reason why a copy is not whole.
pub(crate) fn trim_behind(pool: &Pool, turns: &mut PacedLock, rest: Rest<'_>) -> Result<()> {
    if pool.config().tiers.keep_fast == 0 || !pool.has_slow_tier() {
        return Ok(());
    }
    let look = TrimSurvey::at(pool)?;
    if look.to_trim.is_empty() {
        return Ok(());
    }
    match trim_in_turns(pool, Some(look), turns, rest)?.failed.into_iter().next() {
        None => Ok(()),
        Some((_, why)) if why.kind() == ErrorKind::Retry => Err(why),
        Some((pack, why)) => Err(why.context(format!("pack {pack}, on the slow tier"))),
    }
}

/// Trims a pack at a time, and gives the lock back in between. It never rests with the lock, nor
/// after the last pack.
fn trim_in_turns(
    pool: &Pool,
    mut known: Option<TrimSurvey>,
    turns: &mut PacedLock,
    rest: Rest<'_>,
) -> Result<TrimReport> {
    let mut report = TrimReport::default();
    known.iter().for_each(|look| report.sees(look));
    let mut met = BTreeSet::new();
    loop {
        let next =
            |look: &TrimSurvey| look.to_trim.iter().copied().find(|pack| !met.contains(pack));
        if known.as_ref().is_some_and(|look| next(look).is_none()) {
            break;
        }
        let mut attempts = if met.is_empty() { 1 } else { LOCK_ATTEMPTS };
        let lock = || match pool.lock_trimming() {
            Ok(alone) => Ok(Some(Box::new(alone) as LockHold)),
            Err(error) if error.kind() == ErrorKind::Retry && attempts > 1 => {
                attempts -= 1;
                Ok(None)
            }
            Err(error) => Err(error),
        };
        let taken = turns.take(pool, rest, lock).and_then(|turn| {
            let is_old = |look: &TrimSurvey| look.is_current(pool).map(|is| !is);
            let looks = turn == LockTurn::New && known.as_ref().map_or(Ok(true), is_old)?;
            Ok((turn, if looks { Some(TrimSurvey::at(pool)?) } else { None }))
        });
        match taken {
            Ok((LockTurn::Over, _)) => break,
            Ok((_, None)) => {}
            Ok((_, Some(look))) => report.sees(known.insert(look)),
            // The report lists the earlier work all the same.
            Err(error) if !met.is_empty() => {
                let left = known.as_ref().and_then(next);
                report.failed.extend(left.map(|pack| (pack, error)));
                break;
            }
            Err(error) => return Err(error),
        }
        let Some((look, pack)) = known.as_ref().and_then(|look| Some((look, next(look)?))) else {
            break;
        };
        met.insert(pack);
        match pool.trim_pack(pack, &look.need) {
            Ok((read_bytes, freed_bytes)) => {
                report.trimmed += 1;
                report.freed_bytes += freed_bytes;
                turns.moved(pool, read_bytes);
            }
            Err(error) => {
                report.failed.push((pack, error));
                // All of it may have been read.
                turns.moved(pool, pool.config().format.pack_bytes);
            }
        }
    }
    turns.end(pool);
    Ok(report)
}

impl TrimReport {
    /// Takes note of the packs to trim now.
    fn sees(&mut self, look: &TrimSurvey) {
        self.packs = look.packs + self.trimmed;
        (self.kept, self.unfilled) = (look.kept, look.unfilled);
    }
}

/// Attempts to take the lock again after the first pack, each of some seconds.
const LOCK_ATTEMPTS: usize = 6;

/// Packs to trim, at one moment.
struct TrimSurvey {
    need: FillNeed,
    /// Number of packs on the fast tier that checkpoints name.
    packs: u64,
    /// Number of these packs that the newest checkpoints need, and of those that the slow tier
    /// lacks.
    kept: u64,
    unfilled: u64,
    /// The other packs.
    to_trim: Vec<PackId>,
    /// The newest record of each job, and of the collectors, read before the packs.
    records: Vec<(JobName, u64)>,
}

impl TrimSurvey {
    fn at(pool: &Pool) -> Result<TrimSurvey> {
        let (records, need) = (newest_records(pool)?, pool.fill_need()?);
        let there = pool.redundancy()?;
        let Wanted { kept, named } = Wanted::of(pool)?;
        let mut look =
            TrimSurvey { need, packs: 0, kept: 0, unfilled: 0, to_trim: Vec::new(), records };
        for (pack, _) in there.iter().filter(|(pack, is)| is.shards > 0 && named.contains(*pack)) {
            look.packs += 1;
            if kept.contains(pack) {
                look.kept += 1;
            } else if look.need.missing(*pack) > 0 {
                look.unfilled += 1;
            } else {
                look.to_trim.push(*pack);
            }
        }
        Ok(look)
    }

    /// Whether it is still right: no checkpoint, collection or target has come or gone.
    fn is_current(&self, pool: &Pool) -> Result<bool> {
        Ok(self.need.is_of(pool) && newest_records(pool)? == self.records)
    }

    /// Returns a report of the packs that would be trimmed.
    fn report(&self, pool: &Pool) -> TrimReport {
        TrimReport {
            packs: self.packs,
            kept: self.kept,
            unfilled: self.unfilled,
            trimmed: self.to_trim.len() as u64,
            freed_bytes: self.to_trim.iter().map(|pack| pool.fast_bytes(*pack)).sum(),
            failed: Vec::new(),
        }
    }
}

fn newest_records(pool: &Pool) -> Result<Vec<(JobName, u64)>> {
    let jobs = pool.jobs()?.into_iter().chain([JobName::gc()]);
    jobs.map(|job| Ok((job.clone(), pool.log().latest(&job)?))).collect()
}

/// Makes a pool match its table of targets, as [`Pool::repair`] does.
///
/// # Errors
/// As [`Pool::repair`]; errors of the log.
pub fn repair(pool: &Pool, options: RepairOptions) -> Result<RepairReport> {
    pool.repair(options, &Uses)
}

/// Uses of a pool's packs by its jobs.
#[derive(Clone, Copy, Debug)]
pub struct Uses;

impl PackUses for Uses {
    fn named(&self, pool: &Pool) -> Result<Option<Named>> {
        named_packs(pool).map(Some)
    }

    fn trimmed(&self, pool: &Pool) -> Result<BTreeSet<PackId>> {
        if pool.config().tiers.keep_fast == 0 || !pool.has_slow_tier() {
            return Ok(BTreeSet::new());
        }
        let kept = Wanted::of(pool)?.kept;
        let there = pool.redundancy()?.into_iter();
        let trimmed = there.filter(|(pack, is)| is.is_slow_only() && !kept.contains(pack));
        Ok(trimmed.map(|(pack, _)| pack).collect())
    }
}

/// Packs that checkpoints need or name.
struct Wanted {
    /// Packs that the newest checkpoints of each job need.
    kept: BTreeSet<PackId>,
    /// Packs that any checkpoint names. Other packs may belong to a save under way.
    named: BTreeSet<PackId>,
}

impl Wanted {
    /// Looks again if a gc has moved or dropped data meanwhile.
    fn of(pool: &Pool) -> Result<Wanted> {
        while_moving(pool, Logs::All, &mut || Wanted::look(pool))
    }

    fn look(pool: &Pool) -> Result<Wanted> {
        let keep = pool.config().tiers.keep_fast as usize;
        let (mut kept, mut named) = (BTreeSet::new(), BTreeSet::new());
        let mut known = KnownSegments::new();
        for job in pool.jobs()? {
            let mut newest = 0;
            for entry in history(pool, &job)? {
                let entry = entry.unless_unread()?;
                let Some(manifest) = entry.manifest() else { continue };
                match packs_of(pool, manifest, &mut known) {
                    Ok(packs) => named.extend(packs),
                    Err(error) if error.kind() == ErrorKind::Damaged => continue,
                    Err(error) => return Err(error),
                }
                if newest < keep && !entry.incomplete {
                    newest += 1;
                    needed(pool, manifest, &mut known, &mut kept)?;
                }
            }
        }
        Ok(Wanted { kept, named })
    }
}

/// Adds the packs that a checkpoint needs, by its tree: its lists may name packs of older ones,
/// too.
fn needed(
    pool: &Pool,
    manifest: &Manifest,
    known: &mut KnownSegments,
    kept: &mut BTreeSet<PackId>,
) -> Result<()> {
    if let Some(table) = manifest.images.table() {
        kept.extend(table.pages.iter().chain(&table.lists).map(|page| page.pack));
    }
    let walked = each_image(pool, manifest, &mut |image| needed_by(pool, image, kept));
    match walked {
        // Its needs are unknown: take all packs that it names.
        Err(error) if error.kind() == ErrorKind::Damaged => {
            kept.extend(packs_of(pool, manifest, known)?);
            Ok(())
        }
        walked => walked,
    }
}

fn needed_by(pool: &Pool, image: &Image, kept: &mut BTreeSet<PackId>) -> Result<()> {
    kept.extend(image.segments.iter().map(|segment| segment.pack));
    let locator = Locator::load(pool, &image.segments)?;
    let mut each = |live: Live| {
        let extent = match live {
            Live::Node(node) => node.extent,
            Live::Chunk(fp, pages) => locator.find_pages(&fp, pages)?,
        };
        kept.insert(extent.pack);
        Ok(())
    };
    let mut visited = HashSet::new();
    let mut needs = Once { visited: &mut visited, each: &mut each };
    live_of(pool, &locator, &image.reference, &mut needs, None)
}
