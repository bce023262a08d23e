//! Prunes and garbage collections for Python.

use crate::errors::OrRaise;
use crate::events::Events;
use crate::job::Core;
use crate::named::named;
use crate::wait::in_a_thread;
use outlive_pool::Pool;
use outlive_store::gc::{Collecting, GcOptions, GcReport, Thoroughness, collect};
use outlive_store::retention::{Best, Rules};
use outlive_types::{Error, JobName, Result};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Last, every, seconds, best, all, drop; rules in one text.
pub type RuleValues =
    (Option<u64>, Option<u64>, Option<f64>, Vec<String>, bool, Vec<u64>, Option<String>);
/// Unused share, collect, fenced jobs, forget damaged, dry run.
pub type OptionValues = (f64, bool, Vec<String>, bool, bool);

/// See `outlive.Job.prune`.
pub fn prune<'py>(
    core: &Arc<Core>,
    rules: RuleValues,
    options: OptionValues,
    tick: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyDict>> {
    let py = tick.py();
    let rules = rules_of(rules).or_raise(py)?;
    let mut options = options_of(options).or_raise(py)?;
    // The rules may speak of what the program has just saved.
    core.settle_last(tick)?;
    let (stop, core_there) = (options.stop.clone(), core.clone());
    let (plan, report) = in_a_thread(&core.events, tick, &stop, move || {
        let job = &core_there.job;
        let plan = job.retention(&rules)?;
        options.drop.insert(job.name().clone(), plan.dropped());
        options.keep_one = plan.keeps_any();
        collect(job.pool(), &options).map(|report| (plan, report))
    })?;
    let kept = PyDict::new(py);
    let mut dropped = Vec::new();
    // Oldest first.
    for decision in plan.decisions.into_iter().rev() {
        match decision.kept {
            Some(why) => kept.set_item(decision.epoch, why)?,
            None => dropped.push(decision.epoch),
        }
    }
    Ok(named!(py; kept: kept, dropped: dropped, collected: report_of(py, &report)?))
}

/// See `outlive.Pool.gc`.
pub fn gc<'py>(
    pool: &Pool,
    events: &Events,
    options: OptionValues,
    tick: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyDict>> {
    let options = options_of(options).or_raise(tick.py())?;
    let (stop, pool) = (options.stop.clone(), pool.clone());
    let report = in_a_thread(events, tick, &stop, move || collect(&pool, &options))?;
    report_of(tick.py(), &report)
}

fn rules_of((last, every, within_s, best, none, drop, keep): RuleValues) -> Result<Rules> {
    let within = within_s
        .map(|seconds| {
            Duration::try_from_secs_f64(seconds).map_err(|_| {
                Error::invalid(format!("keep_within of {seconds} s: must be 0 or longer"))
            })
        })
        .transpose()?;
    let best = best.iter().map(|text| Best::parse(text)).collect::<Result<_>>()?;
    let drop: BTreeSet<u64> = drop.into_iter().collect();
    let mut rules = Rules { last, every, within, best, none, drop };
    keep.map_or(Ok(()), |keep| rules.add(&keep))?;
    Ok(rules)
}

fn options_of(values: OptionValues) -> Result<GcOptions> {
    let (unused_max, collect, fence, forget_damaged, dry_run) = values;
    if !(0.0..=1.0).contains(&unused_max) {
        return Err(Error::invalid(format!(
            "max_unused = {unused_max}: must be a share from 0 to 1"
        )));
    }
    Ok(GcOptions {
        fence: fence.iter().map(|job| JobName::stored(job)).collect::<Result<_>>()?,
        thoroughness: Thoroughness { unused_max, collect, rewrite: true },
        forget_damaged,
        dry_run,
        ..GcOptions::default()
    })
}

/// See `outlive.Collected`.
fn report_of<'py>(py: Python<'py>, report: &GcReport) -> PyResult<Bound<'py, PyDict>> {
    let held_by: Vec<&str> = report.held_by.iter().map(JobName::as_str).collect();
    let plan = &report.plan;
    Ok(named!(py;
        ..plan { live_bytes, copied_bytes, freed_bytes },
        ..report { deleted_bytes, damaged },
        deleted_packs: report.deleted,
        held_packs: report.held,
        held_by: held_by,
        held_by_restore: report.is_read,
        postponed: report.collecting == Collecting::Postponed,
    ))
}
