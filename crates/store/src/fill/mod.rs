//! Fills the slow tier: copies the packs that it lacks of the checkpoints that it should have.

use crate::commit::manifests_of;
use crate::paced_lock::{LockHold, LockTurn, PacedLock, sleep};
use crate::redundancy::{KnownSegments, packs_of};
use outlive_chunk::parallel;
use outlive_format::Archive;
use outlive_log::Lock;
use outlive_pool::{FillNeed, PackFill, Pool};
use outlive_types::{
    Epoch, Error, ErrorKind, Event, JobName, PackId, Progress, Result, SessionId, metrics,
};
use selection::{FillSelection, LearnedStep};
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

pub use behind::{BackgroundFill, Finish as FinishFill};

mod behind;
mod selection;

/// Options of a fill.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FillOptions {
    /// Maximum number of bytes to copy per second.
    pub bytes_per_s: Option<u64>,
    /// Only report which shards are missing.
    pub dry_run: bool,
    /// Copy all checkpoints, and not only those that `[tiers]` chooses.
    pub all: bool,
    /// Wait for another command that collects for about a minute, and not only as long as a program's
    /// fill takes to give the lock back.
    pub waits: bool,
}

/// Findings and work of a fill.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FillReport {
    /// Number of checkpoints that `[tiers]` chooses.
    pub checkpoints: u64,
    /// Number of packs that these need.
    pub packs: u64,
    /// Number of these packs that the slow tier lacked, or lacked a part of.
    pub degraded: u64,
    /// Number of shards copied.
    pub shards: u64,
    /// Bytes of these.
    pub copied_bytes: u64,
    /// Number of shards that the slow tier still lacks.
    pub left: u64,
    /// Packs of which it still lacks something, and why.
    pub failed: Vec<(PackId, Error)>,
    /// Checkpoints whose packs are not known, and why.
    pub unread: Vec<(JobName, Epoch, Error)>,
}

/// Copies the packs that the slow tier lacks of the checkpoints that `[tiers]` in `pool.toml`
/// chooses, those of the newest first. It may be stopped at any moment and begun again; it may run
/// beside saves and restores.
///
/// # Errors
/// `Invalid` without a slow target; `Retry` if another command collects, or if a target does not
/// respond. Errors of single packs are in the report.
pub fn fill(pool: &Pool, options: FillOptions) -> Result<FillReport> {
    if options.dry_run {
        let found = FillSurvey::look(pool, options.all)?;
        let left = found.lacking.iter().map(|pack| found.need.missing(*pack) as u64).sum();
        return Ok(FillReport { left, ..found.report });
    }
    let mut turns = PacedLock::new(options.bytes_per_s);
    let mut known: Option<FillSurvey> = None;
    let (mut met, mut outcomes) = (HashSet::<PackId>::new(), Vec::new());
    loop {
        let lock = || match met.is_empty() && !options.waits {
            true => lock_at_first(pool).map(Some),
            false => lock_filling(pool),
        };
        let taken = turns.take(pool, &sleep, lock).and_then(|turn| {
            let is_old = |found: &FillSurvey| found.is_current(pool).map(|is| !is);
            let looks = turn == LockTurn::New && known.as_ref().map_or(Ok(true), is_old)?;
            if looks { FillSurvey::look(pool, options.all).map(Some) } else { Ok(None) }
        });
        match (taken, &known) {
            (Ok(Some(found)), _) => known = Some(found),
            (Ok(None), _) => {}
            // The report lists the earlier work all the same.
            (Err(error), Some(found)) => {
                let left = found.left(&met);
                outcomes.extend(left.into_iter().map(|pack| (pack, Err(error.clone()))));
                break;
            }
            (Err(error), None) => return Err(error),
        }
        let Some(found) = &known else { break };
        let mut next = found.left(&met);
        let counts = (met.len(), met.len() + next.len());
        // After a few packs, the pace may need a rest, and other commands the lock.
        if options.bytes_per_s.is_some() {
            next.truncate(pool.config().tuning.threads().max(1));
        }
        met.extend(&next);
        let filled = fill_packs(pool, next, &found.need, counts);
        let bytes = filled.iter().map(|(_, outcome)| outcome.as_ref().map_or(0, |fill| fill.bytes));
        turns.moved(pool, bytes.sum());
        outcomes.extend(filled);
        if found.left(&met).is_empty() {
            break;
        }
    }
    let found = known.ok_or_else(|| Error::bug("a fill has looked at nothing"))?;
    let mut report = found.report;
    report.degraded = outcomes.len() as u64;
    for (pack, outcome) in outcomes {
        match outcome {
            Ok(fill) => {
                report.shards += fill.shards as u64;
                report.copied_bytes += fill.bytes;
                report.left += fill.left as u64;
                report.failed.extend(fill.why.map(|why| (pack, why)));
            }
            Err(error) => {
                report.left += found.need.missing(pack) as u64;
                report.failed.push((pack, error));
            }
        }
    }
    metrics::FILL_LEFT.set(report.left);
    Ok(report)
}

/// Maximum number of attempts of a collector's fill: the targets may change meanwhile.
const ROUNDS: usize = 8;

/// Fills packs side by side. It reports the progress among `all` packs, `before` of which are done.
fn fill_packs(
    pool: &Pool,
    packs: Vec<PackId>,
    need: &FillNeed,
    (before, all): (usize, usize),
) -> Vec<(PackId, Result<PackFill>)> {
    let pack_bytes = pool.config().format.pack_bytes;
    let (total_bytes, done) = (all as u64 * pack_bytes, AtomicU64::new(before as u64));
    parallel(packs, pool.config().tuning.threads(), |pack| {
        let outcome = pool.fill_pack(pack, need);
        let done_bytes = (done.fetch_add(1, Ordering::Relaxed) + 1) * pack_bytes;
        let event = Progress { what: "fill", done_bytes, total_bytes };
        pool.env().observer.event(Event::Progress(event));
        (pack, outcome)
    })
}

fn lock_at_first(pool: &Pool) -> Result<LockHold> {
    match pool.lock_collecting()? {
        Lock::Busy => Err(Error::retry(
            "another gc, scrub, repair or fill is at work in this pool: try again when it has ended",
        )),
        lock => Ok(Box::new(lock)),
    }
}

/// Packs that the slow tier lacks, at one moment.
struct FillSurvey {
    /// Report before anything was copied.
    report: FillReport,
    need: FillNeed,
    /// Packs that it lacks, those of the newest checkpoint first.
    lacking: Vec<PackId>,
    /// The newest record of collectors, read before the packs: a program that moves packs appends
    /// one.
    collections: u64,
}

impl FillSurvey {
    fn look(pool: &Pool, all: bool) -> Result<FillSurvey> {
        let (collections, need) = (pool.log().latest(&JobName::gc())?, pool.fill_need()?);
        let mut report = FillReport::default();
        let packs = chosen_packs(pool, all, &mut report)?;
        report.packs = packs.len() as u64;
        let lacking: Vec<PackId> =
            packs.into_iter().filter(|pack| need.missing(*pack) > 0).collect();
        report.degraded = lacking.len() as u64;
        Ok(FillSurvey { report, need, lacking, collections })
    }

    /// Returns the packs that it lacks, except those that were met.
    fn left(&self, met: &HashSet<PackId>) -> Vec<PackId> {
        self.lacking.iter().copied().filter(|pack| !met.contains(pack)).collect()
    }

    /// Whether nothing was moved since, and the targets are the same.
    fn is_current(&self, pool: &Pool) -> Result<bool> {
        pool.refresh_targets()?;
        let collections = pool.log().latest(&JobName::gc())?;
        Ok(collections == self.collections && self.need.is_of(pool))
    }
}

/// Takes the lock for filling, which is that of collectors. Returns `None` while another process
/// has it.
fn lock_filling(pool: &Pool) -> Result<Option<LockHold>> {
    Ok(match pool.log().lock_collecting()? {
        Lock::Busy => None,
        lock => Some(Box::new(lock)),
    })
}

/// Contents of the slow tier, for a gc or scrub that replaces old packs with new ones.
pub(crate) struct FillSession {
    session: SessionId,
    /// Read at the first use. No other process fills meanwhile: that takes the lock of collectors.
    need: Option<FillNeed>,
}

impl FillSession {
    /// Begins for the packs of a session.
    pub fn new(session: SessionId) -> FillSession {
        FillSession { session, need: None }
    }

    /// Copies to the slow tier the packs that a job needs after the report `archive`, if the slow
    /// tier has any of them or of `replaced`. To be called before the report: after it, the job's
    /// checkpoints may read a chunk from other packs, even from old ones. So those that were safe
    /// on the slow tier would not be.
    ///
    /// # Errors
    /// The reason why packs of this session cannot be copied now: then no report may follow. For
    /// other packs, which are damaged or find no room, it only warns the pool's observer: a gc must
    /// be able to free space.
    pub fn fill(
        &mut self,
        pool: &Pool,
        archive: &Archive,
        replaced: &HashSet<PackId>,
    ) -> Result<()> {
        for _ in 0..ROUNDS {
            match self.fill_once(pool, archive, replaced) {
                // Another command has changed the targets meanwhile.
                Err(error)
                    if error.kind() == ErrorKind::Retry
                        && self.need.as_ref().is_some_and(|need| !need.is_of(pool)) => {}
                filled => return filled,
            }
        }
        Err(Error::retry("the targets of the pool change faster than packs can be copied"))
    }

    fn fill_once(
        &mut self,
        pool: &Pool,
        archive: &Archive,
        replaced: &HashSet<PackId>,
    ) -> Result<()> {
        // An operator may be emptying the last slow target.
        pool.refresh_targets()?;
        if !pool.has_slow_to_fill() {
            return Ok(());
        }
        let need = match self.need.take() {
            Some(need) if need.is_of(pool) => need,
            _ => pool.fill_need()?,
        };
        let need = self.need.insert(need);
        if let Some(error) = need.unasked() {
            return Err(error.clone().context("it is not known what is safe on the slow tier"));
        }
        let (mut segments, mut named) = (KnownSegments::new(), BTreeSet::new());
        for manifest in manifests_of(archive) {
            match packs_of(pool, &manifest, &mut segments) {
                Ok(packs) => named.extend(packs),
                // The checkpoint is incomplete, and safe nowhere.
                Err(error) if error.kind() == ErrorKind::Damaged => {}
                Err(error) => return Err(error),
            }
        }
        if !named.iter().chain(replaced).any(|pack| need.has(*pack)) {
            return Ok(());
        }
        for pack in named {
            if need.missing(pack) == 0 {
                continue;
            }
            let fill = pool.fill_pack(pack, need)?;
            need.add(pack, &fill);
            let Some(why) = fill.why else { continue };
            let is_own = pack.session() == self.session;
            if is_own || !matches!(why.kind(), ErrorKind::Damaged | ErrorKind::Full) {
                return Err(why.context(
                    "what takes the place of packs that are on the slow tier cannot be copied there, so they \
                     stay as they are",
                ));
            }
            pool.warn(format!(
                "checkpoints that were safe on the slow tier may not be any more: {}",
                why.message()
            ));
        }
        Ok(())
    }
}

/// Returns the packs of all checkpoints, or of those that `[tiers]` chooses. Those of the newest come
/// first.
fn chosen_packs(pool: &Pool, all: bool, report: &mut FillReport) -> Result<Vec<PackId>> {
    let mut choice = if all { FillSelection::of_all() } else { FillSelection::default() };
    let mut chosen = Vec::new();
    for job in pool.jobs()? {
        let left = choice.left(pool, &job, LearnedStep::default())?.into_iter();
        chosen.extend(left.map(|manifest| (job.clone(), manifest)));
    }
    chosen.sort_by_key(|(_, manifest)| Reverse(manifest.frozen_ns));
    report.checkpoints = chosen.len() as u64;
    let (mut met, mut packs) = (HashSet::new(), Vec::new());
    for (job, manifest) in chosen {
        match choice.packs(pool, &manifest) {
            Ok(needed) => packs.extend(needed.into_iter().filter(|pack| met.insert(*pack))),
            Err(error) => report.unread.push((job, manifest.epoch, error)),
        }
    }
    Ok(packs)
}
