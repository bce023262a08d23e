//! The jobs that this process has open. Within a process there is one session for a pool and job: what opens the job
//! again joins it, so that it never shuts itself out. Ranks of a group are not among them: several may be threads of
//! one process.

use outlive_capture::ChangeTracker;
use outlive_io::PerProcess;
use outlive_pool::Pool;
use outlive_store::gc::{GcOptions, GcReport, collect, collect_after};
use outlive_store::{Job, JobOptions, WeakJob};
use outlive_types::{ErrorKind, JobName, Result};
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// A pool, as [`Pool::identity`] tells it, and a job.
type Key = ((String, String), JobName);

/// A forked child has no jobs.
static OPEN: PerProcess<HashMap<Key, Open>> = PerProcess::new(|_| HashMap::new());

struct Open {
    job: WeakJob,
    tracker: Weak<ChangeTracker>,
}

/// Opens a job, or joins it if this process has it open, or a save of it is under way.
///
/// # Errors
/// `Invalid` for an impossible name, or a tracker in `pool.toml` that is none.
pub fn open(pool: &Pool, name: &str, options: JobOptions) -> Result<(Job, Arc<ChangeTracker>)> {
    let choice = pool.config().tuning.tracker()?;
    let make = |job: &Job| Arc::new(ChangeTracker::for_job(choice, job.name().as_str()));
    if options.group.is_some() {
        let job = Job::open(pool, name, options)?;
        let tracker = make(&job);
        return Ok((job, tracker));
    }
    let key = (pool.identity(), JobName::new(name)?);
    let mut all = OPEN.lock();
    let (job, tracker) = match all.get(&key) {
        Some(open) => (open.job.join(pool, options.every), open.tracker.upgrade()),
        None => (None, None),
    };
    let job = job.map_or_else(|| Job::open(pool, name, options), Ok)?;
    let tracker = tracker.unwrap_or_else(|| make(&job));
    all.retain(|_, open| !open.job.is_over());
    all.insert(key, Open { job: job.downgrade(), tracker: Arc::downgrade(&tracker) });
    Ok((job, tracker))
}

/// Does what [`outlive_store::gc::collect`] does. Before that the jobs of this process let go of what only their
/// sessions hold back, unless a save of theirs is under way: each of them begins another session with its next save.
///
/// # Errors
/// As [`outlive_store::gc::collect`].
pub fn collect_and_let_go(pool: &Pool, options: &GcOptions) -> Result<GcReport> {
    let identity = pool.identity();
    let all = OPEN.lock();
    let ours = all.iter().filter(|((of, _), _)| *of == identity);
    let jobs: Vec<WeakJob> = ours.map(|(_, open)| open.job.clone()).collect();
    drop(all);
    collect_behind(pool, options, &jobs)
}

/// The same of these jobs.
///
/// # Errors
/// As [`collect_and_let_go`].
pub fn collect_behind(pool: &Pool, options: &GcOptions, jobs: &[WeakJob]) -> Result<GcReport> {
    if options.dry_run || !options.thoroughness.collect {
        return collect(pool, options);
    }
    collect_after(pool, options, &mut || {
        jobs.iter().try_for_each(|job| match job.end_session() {
            // What it holds back is in the report.
            Err(error) if error.kind() != ErrorKind::Full => {
                pool.warn(format!("a job of this program may hold packs back: {error}"));
                Ok(())
            }
            ended => ended,
        })
    })
}
