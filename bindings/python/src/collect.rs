//! Prunes and garbage collections for Python.

use crate::errors::OrRaise;
use crate::named::named;
use crate::notices::Notices;
use crate::shared::Core;
use crate::wait::in_a_thread;
use outlive_client::collect_and_let_go;
use outlive_pool::Pool;
use outlive_store::gc::{Collecting, GcOptions, GcReport, Thoroughness};
use outlive_store::retention::{self, Best};
use outlive_types::{Error, JobName, Result};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Rules of a prune; see `outlive.Job.prune`.
#[pyclass(frozen, module = "outlive._core")]
pub struct Rules(pub retention::Rules);

#[pymethods]
impl Rules {
    #[new]
    #[pyo3(signature = (*, last, every, within_s, best, tags, none, drop, text))]
    #[allow(clippy::too_many_arguments)] // by name
    fn new(
        py: Python<'_>,
        last: Option<u64>,
        every: Option<u64>,
        within_s: Option<f64>,
        best: Vec<String>,
        tags: Vec<String>,
        none: bool,
        drop: BTreeSet<u64>,
        text: Option<&str>,
    ) -> PyResult<Rules> {
        let duration = |seconds| {
            Duration::try_from_secs_f64(seconds).map_err(|_| {
                Error::invalid(format!("keep_within of {seconds} s: must be 0 or longer"))
            })
        };
        let rules = || {
            let within = within_s.map(duration).transpose()?;
            let best = best.iter().map(|text| Best::parse(text)).collect::<Result<_>>()?;
            let mut rules =
                retention::Rules { last, every, within, best, none, drop, ..Default::default() };
            tags.iter().try_for_each(|tag| rules.add_tag(tag))?;
            text.map_or(Ok(()), |text| rules.add(text))?;
            Ok(rules)
        };
        rules().or_raise(py).map(Rules)
    }
}

/// Options of a garbage collection; see `outlive.Pool.gc`.
#[pyclass(frozen, module = "outlive._core")]
pub struct Collection(GcOptions);

#[pymethods]
impl Collection {
    #[new]
    #[pyo3(signature = (*, unused_max, collect=true, fence=Vec::new(), dry_run))]
    fn new(
        py: Python<'_>,
        unused_max: f64,
        collect: bool,
        fence: Vec<String>,
        dry_run: bool,
    ) -> PyResult<Collection> {
        let options = || {
            if !(0.0..=1.0).contains(&unused_max) {
                return Err(Error::invalid(format!(
                    "max_unused = {unused_max}: must be a share from 0 to 1"
                )));
            }
            Ok(GcOptions {
                fence: fence.iter().map(|job| JobName::stored(job)).collect::<Result<_>>()?,
                thoroughness: Thoroughness { unused_max, collect, ..Thoroughness::default() },
                dry_run,
                ..GcOptions::default()
            })
        };
        options().or_raise(py).map(Collection)
    }
}

impl Collection {
    /// Returns the options for one collection.
    fn options(&self) -> GcOptions {
        GcOptions { stop: Arc::default(), ..self.0.clone() }
    }
}

/// See `outlive.Job.prune`.
pub fn prune<'py>(
    core: &Arc<Core>,
    rules: &Rules,
    options: &Collection,
    tick: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyDict>> {
    let py = tick.py();
    let (rules, mut options) = (rules.0.clone(), options.options());
    let is_dry_run = options.dry_run;
    // The rules may concern the checkpoint that the program has just saved.
    core.settle_last(tick)?;
    let (stop, core_there) = (options.stop.clone(), core.clone());
    let (plan, report) = in_a_thread(&core.notices, tick, &stop, move || {
        let job = &core_there.job();
        let plan = job.retention(&rules)?;
        options.drop.insert(job.name().clone(), plan.dropped());
        options.keep_one = plan.keeps_any();
        core_there.client.collect(&options).map(|report| (plan, report))
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
    Ok(named!(py; kept: kept, dropped: dropped, collected: report_of(py, &report, is_dry_run)?))
}

/// See `outlive.Pool.gc`.
pub fn gc<'py>(
    pool: &Pool,
    notices: &Notices,
    options: &Collection,
    tick: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyDict>> {
    let options = options.options();
    let is_dry_run = options.dry_run;
    let (stop, pool) = (options.stop.clone(), pool.clone());
    let report = in_a_thread(notices, tick, &stop, move || collect_and_let_go(&pool, &options))?;
    report_of(tick.py(), &report, is_dry_run)
}

/// See `outlive.Pool.delete_job`.
pub fn delete_job<'py>(
    pool: &Pool,
    notices: &Notices,
    name: JobName,
    options: &Collection,
    fence: bool,
    tick: &Bound<'py, PyAny>,
) -> PyResult<(Vec<u64>, Bound<'py, PyDict>)> {
    let mut options = options.options();
    options.fence.extend(fence.then(|| name.clone()));
    let (stop, pool) = (options.stop.clone(), pool.clone());
    let (epochs, report) = in_a_thread(notices, tick, &stop, move || {
        outlive_client::delete_job(&pool, &name, &options)
    })?;
    Ok((epochs, report_of(tick.py(), &report, false)?))
}

/// See `outlive.Collected`.
fn report_of<'py>(
    py: Python<'py>,
    report: &GcReport,
    is_dry_run: bool,
) -> PyResult<Bound<'py, PyDict>> {
    let plan = &report.plan;
    let (held_bytes, held_by) = match is_dry_run {
        true => (plan.held_bytes, &plan.held_by),
        false => (report.held_bytes, &report.held_by),
    };
    let held_by = held_by.iter().map(|(job, program)| (job.as_str(), program.as_str()));
    Ok(named!(py;
        ..plan { live_bytes, copied_bytes },
        ..report { deleted_bytes, damaged },
        held_bytes: held_bytes,
        freed_bytes: if is_dry_run { plan.freed_now_bytes() } else { report.freed_bytes() },
        deleted_packs: report.deleted,
        held_packs: report.held,
        held_by: held_by.collect::<BTreeMap<_, _>>(),
        held_by_restore: report.is_read,
        postponed: report.collecting == Collecting::Postponed,
    ))
}
