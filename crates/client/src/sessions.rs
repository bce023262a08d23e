//! The jobs that this process has open. A process has one session for each pool and job. A second
//! client joins the first, so that a process never fences itself. Ranks of a group are left out:
//! threads of one process may be ranks.

use crate::helper::{await_helper, keeper_of};
use crate::job_gate::gate_of;
use outlive_capture::ChangeTracker;
use outlive_gate::{Gate, WeakGate};
use outlive_io::PerProcess;
use outlive_pool::Pool;
use outlive_store::commit::Reached;
use outlive_store::gc::{GcOptions, GcReport, collect, collect_after};
use outlive_store::{Job, JobOptions, WeakJob};
use outlive_types::{ErrorKind, JobName, Result};
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// A pool's [`Pool::identity`], and a job.
type Key = ((String, String), JobName);

/// A forked child starts with an empty map.
static OPEN: PerProcess<HashMap<Key, Open>> = PerProcess::new(|_| HashMap::new());
/// Epochs that this process has restored or saved of each job: a job that is closed and opened
/// again continues its chain.
static REACHED: PerProcess<HashMap<Key, Reached>> =
    PerProcess::new(|old| old.cloned().unwrap_or_default());

/// Gates that were closed with outputs left: a job that is opened again goes on with them.
static LEFT: PerProcess<HashMap<Key, Gate>> = PerProcess::new(|_| HashMap::new());

struct Open {
    job: WeakJob,
    tracker: Weak<ChangeTracker>,
    gate: WeakGate,
}

/// Opens a job, or joins it if this process has it open, or a save of it is in progress.
///
/// # Errors
/// `Invalid` for an impossible name, or an unknown tracker in `pool.toml`.
pub fn open(
    pool: &Pool,
    name: &str,
    options: JobOptions,
) -> Result<(Job, Arc<ChangeTracker>, Gate)> {
    let choice = pool.config().tuning.tracker()?;
    let make = |job: &Job| Arc::new(ChangeTracker::for_job(choice, job.name().as_str()));
    let key = (pool.identity(), JobName::new(name)?);
    let reached = REACHED.lock().entry(key.clone()).or_default().clone();
    let options = JobOptions { reached, ..options };
    let is_open = OPEN.lock().get(&key).is_some_and(|open| !open.job.is_over());
    // Before the jobs are locked: both may take long.
    let is_new = options.group.is_some() || !is_open;
    let keeper = is_new.then(|| {
        await_helper(pool, &key.1, &mut || true);
        keeper_of(pool, &key.1, &options)
    });
    let options = JobOptions { keeper: keeper.flatten(), ..options };
    if options.group.is_some() {
        let job = Job::open(pool, name, options)?;
        let (tracker, gate) = (make(&job), gate_of(pool, &job));
        return Ok((job, tracker, gate));
    }
    let mut all = OPEN.lock();
    let (job, tracker, gate) = match all.get(&key) {
        Some(open) => {
            let job = open.job.join(pool, &options)?;
            // The gate of a job that was fenced goes with it.
            let gate = job.as_ref().and_then(|_| open.gate.upgrade());
            (job, open.tracker.upgrade(), gate)
        }
        None => (None, None, None),
    };
    let job = job.map_or_else(|| Job::open(pool, name, options), Ok)?;
    let tracker = tracker.unwrap_or_else(|| make(&job));
    all.retain(|_, open| !open.job.is_over());
    let left = LEFT.lock().remove(&key);
    let gate = gate.or(left).unwrap_or_else(|| gate_of(pool, &job));
    let (weak, watch) = (job.downgrade(), Arc::downgrade(&tracker));
    all.insert(key, Open { job: weak, tracker: watch, gate: gate.downgrade() });
    Ok((job, tracker, gate))
}

/// Keeps the gate of a job that is closed, since it has outputs left.
pub fn keep_gate(pool: &Pool, job: &JobName, gate: Gate) {
    LEFT.lock().insert((pool.identity(), job.clone()), gate);
}

/// As [`outlive_store::gc::collect`], but first ends the sessions of this process's jobs that have
/// no save in progress. The next save of each job opens another session.
///
/// # Errors
/// As [`outlive_store::gc::collect`].
pub fn collect_and_let_go(pool: &Pool, options: &GcOptions) -> Result<GcReport> {
    let identity = pool.identity();
    let all = OPEN.lock();
    let ours = all.iter().filter(|((of, _), _)| *of == identity);
    let jobs = ours.map(|((_, name), open)| (name.clone(), open.job.clone())).collect::<Vec<_>>();
    drop(all);
    collect_behind(pool, options, &jobs)
}

/// As [`collect_and_let_go`], for these jobs.
///
/// # Errors
/// As [`collect_and_let_go`].
pub fn collect_behind(
    pool: &Pool,
    options: &GcOptions,
    jobs: &[(JobName, WeakJob)],
) -> Result<GcReport> {
    if options.dry_run {
        let mut report = collect(pool, options)?;
        // A gc would end their sessions first.
        report.plan.held_by.retain(|holder, _| jobs.iter().all(|(name, _)| name != holder));
        if report.plan.held_by.is_empty() {
            report.plan.held_bytes = 0;
        }
        return Ok(report);
    }
    collect_after(pool, options, &mut || {
        jobs.iter().try_for_each(|(name, job)| match job.end_session() {
            // The report names the packs that this session holds.
            Err(error) if error.kind() != ErrorKind::Full => {
                pool.warn(format!("the session of job {name} may hold packs back: {error}"));
                Ok(())
            }
            ended => ended,
        })
    })
}
