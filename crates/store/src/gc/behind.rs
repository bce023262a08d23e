//! Drops checkpoints that a job's rules do not keep, and frees their space.

use super::collection::GcOptions;
use super::plan::Thoroughness;
use super::run::{Collecting, busy, collect_after};
use crate::commit::{Position, history};
use crate::redundancy::RedundancyLook;
use crate::retention::{Freed, Freeing, plan_of};
use outlive_pool::{Pool, Tier};
use outlive_types::{Epoch, JobName, Result};

/// Share of the bytes in packs that may stay unused. With fewer unused bytes, rewriting mostly
/// copies more than it frees.
const UNUSED_MAX: f64 = 0.3;
/// Share in use below which packs are rewritten, too, when a job is closed.
const REWRITE_BELOW: f64 = 1.0 / 8.0;

/// Drops checkpoints and frees space as [`Freeing`] describes.
///
/// # Errors
/// As [`collect_after`]; `Retry` if another command collects.
pub fn free_behind(pool: &Pool, what: Freeing<'_>) -> Result<Freed> {
    let Freeing { job, rules, session, has_dropped, collects, rewrites, is_last, end } = what;
    // Another writer has rules of its own, or none.
    if Position::of(pool, job)?.session != Some(session) {
        return Ok(Freed::Overtaken);
    }
    let plan = plan_of(pool, job, rules)?;
    let mut drop = plan.dropped();
    if !drop.is_empty() && pool.has_slow_tier() {
        // This one is all that is left without the fast tier.
        if let Some(epoch) = newest_on_slow(pool, job)? {
            drop.remove(&epoch);
        }
    }
    if drop.is_empty() && !has_dropped {
        return Ok(Freed::Nothing);
    }
    let thoroughness = Thoroughness {
        unused_max: UNUSED_MAX,
        rewrite_below: if is_last { REWRITE_BELOW } else { 0.0 },
        collect: collects,
        rewrite: rewrites,
        // Rewriting chunks for single pages after every few saves writes more bytes than the saves
        // do.
        of_pages: false,
        ..Thoroughness::default()
    };
    let keep_one = plan.keeps_any();
    let drop = [(job.clone(), drop)].into();
    // Without `end` no save waits for the round, so it works beside them.
    let gives_way_to = end.is_none().then(|| job.clone());
    let options = GcOptions { drop, keep_one, thoroughness, gives_way_to, ..GcOptions::default() };
    let report = match end {
        Some(end) => collect_after(pool, &options, end)?,
        None => collect_after(pool, &options, &mut || Ok(()))?,
    };
    // This job does not wait for packs that other programs hold.
    let own_bytes = match report.held_by.keys().eq([job]) {
        true => report.held_bytes,
        false => 0,
    };
    match report.collecting {
        Collecting::NotAsked => Ok(Freed::Dropped),
        Collecting::Postponed => Err(busy(pool)),
        Collecting::Outrun => Ok(Freed::Outrun),
        Collecting::Done => Ok(Freed::Space {
            live_bytes: report.plan.live_bytes,
            own_bytes,
            is_all: report.held == 0,
        }),
    }
}

/// Returns the newest checkpoint that the slow tier alone can restore.
fn newest_on_slow(pool: &Pool, job: &JobName) -> Result<Option<Epoch>> {
    let mut look = RedundancyLook::new(pool)?;
    for entry in history(pool, job)? {
        let entry = entry.unless_unread()?;
        if let Some(manifest) = entry.manifest()
            && look.at(job, manifest, entry.incomplete).tiers.contains(&Tier::Slow)
        {
            return Ok(Some(manifest.epoch));
        }
    }
    Ok(None)
}
