//! Fills the slow tier behind the saves: which packs it lacks of the checkpoints that it should have.

use crate::commit::manifests_of;
use crate::redundancy::{KnownSegments, packs_of};
use choice::Choice;
use outlive_chunk::parallel;
use outlive_format::Archive;
use outlive_io::Pace;
use outlive_pool::{FillNeed, Pool};
use outlive_target::Lock;
use outlive_types::{Epoch, Error, ErrorKind, Event, JobName, PackId, Progress, Result, SessionId};
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

pub use behind::{FillBehind, Finish as FinishFill};

mod behind;
mod choice;

/// How to fill.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FillOptions {
    /// At most so many bytes a second are copied.
    pub bytes_per_s: Option<u64>,
    /// Only say what is missing.
    pub dry_run: bool,
}

/// What a fill found and did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FillReport {
    /// Checkpoints that `[tiers]` chooses.
    pub checkpoints: u64,
    /// Packs that these need.
    pub packs: u64,
    /// Of these, packs that the slow tier lacked, or lacked a part of.
    pub incomplete: u64,
    /// Shards copied.
    pub shards: u64,
    /// Bytes of these.
    pub copied_bytes: u64,
    /// Shards that the slow tier still lacks.
    pub left: u64,
    /// Packs of which it still lacks something, and why.
    pub failed: Vec<(PackId, Error)>,
    /// Checkpoints of which it is not known which packs they need, and why.
    pub unread: Vec<(JobName, Epoch, Error)>,
}

/// Copies what the slow tier lacks of the checkpoints that `[tiers]` in `pool.toml` chooses, those of the
/// newest first. It may be stopped at any moment, and begun again; it may run beside saves and restores.
///
/// # Errors
/// `Invalid` without a slow target; `Retry` if another command collects, or the targets cannot be asked.
/// What concerns single packs is in the report.
pub fn fill(pool: &Pool, options: FillOptions) -> Result<FillReport> {
    let _lock = match options.dry_run {
        true => Lock::None,
        false => pool.lock_collecting()?,
    };
    if matches!(_lock, Lock::Busy) {
        return Err(Error::retry(
            "another gc, scrub, repair or fill is at work in this pool: try again when it has ended",
        ));
    }
    let need = pool.fill_need()?;
    let mut report = FillReport::default();
    let packs = chosen_packs(pool, &mut report)?;
    report.packs = packs.len() as u64;
    let mut lacking = Vec::new();
    for pack in packs {
        let missing = need.missing(pack) as u64;
        if missing > 0 {
            report.incomplete += 1;
            report.left += missing;
            lacking.push(pack);
        }
    }
    if options.dry_run {
        return Ok(report);
    }
    let pace = Pace::new(options.bytes_per_s);
    let pack_bytes = pool.config().format.pack_bytes;
    let (total_bytes, done_bytes) = (lacking.len() as u64 * pack_bytes, AtomicU64::new(0));
    let outcomes = parallel(lacking, pool.config().tuning.threads(), |pack| {
        let outcome = pool.fill_pack(pack, &need);
        pace.spend(outcome.as_ref().map_or(0, |fill| fill.bytes));
        let done_bytes = done_bytes.fetch_add(pack_bytes, Ordering::Relaxed) + pack_bytes;
        let event = Progress { what: "fill", done_bytes, total_bytes };
        pool.env().observer.event(Event::Progress(event));
        (pack, outcome)
    });
    report.left = 0;
    for (pack, outcome) in outcomes {
        match outcome {
            Ok(fill) => {
                report.shards += fill.shards as u64;
                report.copied_bytes += fill.bytes;
                report.left += fill.left as u64;
                report.failed.extend(fill.why.map(|why| (pack, why)));
            }
            Err(error) => {
                report.left += need.missing(pack) as u64;
                report.failed.push((pack, error));
            }
        }
    }
    Ok(report)
}

/// What the slow tier has, for a gc or scrub that puts new packs in the place of old ones.
pub(crate) struct FillSession {
    session: SessionId,
    /// Found out when it is first asked for. Nobody else fills meanwhile: that takes the lock of collectors.
    need: Option<FillNeed>,
}

impl FillSession {
    /// For the packs of a session.
    pub fn new(session: SessionId) -> FillSession {
        FillSession { session, need: None }
    }

    /// Copies to the slow tier what a job needs once it is told of `archive`, if the slow tier has any of that or
    /// of what is `replaced`. To be done before: from then on its checkpoints may read a chunk elsewhere than
    /// before, also in packs that were there already, and those that were safe on the slow tier would not be.
    ///
    /// # Errors
    /// Why what this session has written cannot be copied now: then nobody is to be told. Of other packs that are
    /// damaged, or have no room, the pool's observer is told, as a gc must be able to free space.
    pub fn fill(
        &mut self,
        pool: &Pool,
        archive: &Archive,
        replaced: &HashSet<PackId>,
    ) -> Result<()> {
        if !pool.has_slow_tier() {
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
                // It is hurt, and safe nowhere.
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

/// The packs of the checkpoints that `[tiers]` chooses, those of the newest checkpoint first.
fn chosen_packs(pool: &Pool, report: &mut FillReport) -> Result<Vec<PackId>> {
    let (mut choice, mut chosen) = (Choice::default(), Vec::new());
    for job in pool.jobs()? {
        let left = choice.left(pool, &job)?.into_iter();
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
