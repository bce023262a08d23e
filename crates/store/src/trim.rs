//! Trims the fast tier: deletes packs from it that only older checkpoints need, once the slow tier has them.
//! Nothing says that a pack was trimmed but `keep_fast` and what lies where: docs/design/027-trim.md.

use crate::commit::history;
use crate::gc::live_of;
use crate::images::each_image;
use crate::index::Locator;
use crate::read::{Live, Once};
use crate::redundancy::{KnownSegments, packs_of};
use outlive_format::{Image, Manifest};
use outlive_io::Pace;
use outlive_pool::{Pool, RepairOptions, RepairReport};
use outlive_types::{Error, ErrorKind, PackId, Result};
use std::collections::{BTreeSet, HashSet};

/// How to trim.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TrimOptions {
    /// At most so many bytes a second are read from the slow tier.
    pub bytes_per_s: Option<u64>,
    /// Only say what would be deleted.
    pub dry_run: bool,
}

/// What a trim found and did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TrimReport {
    /// Packs on the fast tier that checkpoints name.
    pub packs: u64,
    /// Of these, packs that the newest checkpoints need.
    pub kept: u64,
    /// Of the rest, packs that the slow tier does not have as a whole.
    pub unfilled: u64,
    /// Packs deleted from the fast tier.
    pub trimmed: u64,
    /// Bytes that are free there now.
    pub freed_bytes: u64,
    /// Packs that were left where they are, as their copies could not be read as a whole, and why.
    pub failed: Vec<(PackId, Error)>,
}

/// Deletes packs from the fast tier that none of the `keep_fast` newest checkpoints of a job needs, if they are
/// whole on the slow tier, where all of it is read before. It may be stopped at any moment, and begun again.
///
/// # Errors
/// `Invalid` without a slow tier, or without `keep_fast`; `Retry` while another command collects; what log and
/// targets report. What concerns single packs is in the report.
pub fn trim(pool: &Pool, options: TrimOptions) -> Result<TrimReport> {
    if pool.config().tiers.keep_fast == 0 {
        return Err(Error::invalid(
            "all checkpoints are to stay on the fast tier: to trim it, set in pool.toml, under [tiers], keep_fast = N, \
             the number of newest checkpoints of each job that stay there",
        ));
    }
    let _alone = match options.dry_run {
        true => None,
        false => Some(pool.lock_trimming()?),
    };
    let (need, pace) = (pool.fill_need()?, Pace::new(options.bytes_per_s));
    let there = pool.redundancy()?;
    let Wanted { kept, named } = Wanted::of(pool)?;
    let mut report = TrimReport::default();
    for (pack, _) in there.iter().filter(|(pack, is)| is.shards > 0 && named.contains(*pack)) {
        report.packs += 1;
        if kept.contains(pack) {
            report.kept += 1;
        } else if need.missing(*pack) > 0 {
            report.unfilled += 1;
        } else if options.dry_run {
            report.trimmed += 1;
            report.freed_bytes += pool.fast_bytes(*pack);
        } else {
            match pool.trim_pack(*pack, &need) {
                Ok(bytes) => {
                    report.trimmed += 1;
                    report.freed_bytes += bytes;
                    pace.spend(bytes);
                }
                Err(error) => report.failed.push((*pack, error)),
            }
        }
    }
    Ok(report)
}

/// The same behind the fill of a program, if there is something to trim. What others are at work on is left to the
/// next time.
///
/// # Errors
/// As [`trim`]; why a copy is not whole.
pub(crate) fn trim_behind(pool: &Pool) -> Result<()> {
    let tiers = &pool.config().tiers;
    if tiers.keep_fast == 0 || !pool.has_slow_tier() {
        return Ok(());
    }
    let bytes_per_s = Some(tiers.bytes_per_s).filter(|limit| *limit > 0);
    let look = trim(pool, TrimOptions { bytes_per_s, dry_run: true })?;
    if look.trimmed == 0 {
        return Ok(());
    }
    let report = trim(pool, TrimOptions { bytes_per_s, dry_run: false })?;
    match report.failed.into_iter().next() {
        None => Ok(()),
        Some((pack, why)) => Err(why.context(format!("pack {pack}, on the slow tier"))),
    }
}

/// Writes missing parts of packs anew, as [`Pool::repair`], but for those that were trimmed.
///
/// # Errors
/// As [`Pool::repair`]; what the log reports.
pub fn repair(pool: &Pool, options: RepairOptions) -> Result<RepairReport> {
    pool.repair_but(options, &|pool| {
        if pool.config().tiers.keep_fast == 0 || !pool.has_slow_tier() {
            return Ok(BTreeSet::new());
        }
        let kept = Wanted::of(pool)?.kept;
        let there = pool.redundancy()?.into_iter();
        let trimmed = there.filter(|(pack, is)| is.is_slow_only() && !kept.contains(pack));
        Ok(trimmed.map(|(pack, _)| pack).collect())
    })
}

/// What checkpoints want of the fast tier.
struct Wanted {
    /// What the newest checkpoints of each job need.
    kept: BTreeSet<PackId>,
    /// What any checkpoint names. Others may be of a save under way.
    named: BTreeSet<PackId>,
}

impl Wanted {
    fn of(pool: &Pool) -> Result<Wanted> {
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
                if newest < keep && !entry.hurt {
                    newest += 1;
                    needed(pool, manifest, &mut known, &mut kept)?;
                }
            }
        }
        Ok(Wanted { kept, named })
    }
}

/// Adds the packs that a checkpoint needs, by its tree: its lists may name those of older ones, too.
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
        // What it needs is not known: all that it names.
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
        let place = match live {
            Live::Node(node) => node.place,
            Live::Chunk(fp) => locator.find(&fp)?,
        };
        kept.insert(place.pack);
        Ok(())
    };
    let mut visited = HashSet::new();
    let mut needs = Once { visited: &mut visited, each: &mut each };
    live_of(pool, &locator, &image.reference, &mut needs, None)
}
