//! Frees what the rules of a job do not keep, behind its commits.

use super::collection::GcOptions;
use super::plan::Thoroughness;
use super::run::{Collecting, collect_after};
use crate::retention::{Freed, Freeing};
use outlive_pool::Pool;
use outlive_types::Result;

/// Of what stays, this share may be unused: to rewrite it costs as much as it frees, and more.
const UNUSED_MAX: f64 = 0.3;

/// See [`Freeing`].
///
/// # Errors
/// As [`collect_after`].
pub fn free_behind(pool: &Pool, what: Freeing<'_>) -> Result<Freed> {
    let Freeing { job, drop, keeps_any, collects, end } = what;
    let thoroughness =
        Thoroughness { unused_max: UNUSED_MAX, collect: collects, ..Thoroughness::default() };
    let drop = [(job.clone(), drop)].into();
    let options = GcOptions { drop, keep_one: keeps_any, thoroughness, ..GcOptions::default() };
    let report = match end {
        Some(end) => collect_after(pool, &options, end)?,
        None => collect_after(pool, &options, &mut || Ok(()))?,
    };
    Ok(Freed {
        is_done: report.collecting == Collecting::Done,
        live_bytes: report.plan.live_bytes,
        held_bytes: report.held_bytes,
    })
}
