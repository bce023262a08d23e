//! Deletes and renames jobs, with the files about their runs.

use crate::job_gate::outputs_of;
use crate::past::History;
use crate::sessions::collect_and_let_go;
use outlive_pool::Pool;
use outlive_store::copy;
use outlive_store::gc::{DropJob, GcOptions, GcReport, drop_job};
use outlive_store::{Job, JobOptions};
use outlive_types::{Epoch, Error, JobName, Rank, Result};
use std::fs::File;

/// Files about the runs of a job: its attempts, the interval that its program has chosen, and a
/// request to stop.
const HISTORY: &str = "history";
const INTERVAL: &str = "interval";
const REQUEST: &str = "stop";

/// Deletes a job: all its checkpoints, and what is known of its runs. Then collects as `collect`
/// says; its `fence` says whether the session of a program that may still save is ended. Returns
/// the epochs, oldest first.
///
/// # Errors
/// `Invalid` if there is no such job, or a program may still save it; errors of
/// [`outlive_store::gc::drop_job`] and of the pool. If freeing the space fails, the job is gone, and
/// the error says so.
pub fn delete_job(
    pool: &Pool,
    name: &JobName,
    collect: &GcOptions,
) -> Result<(Vec<Epoch>, GcReport)> {
    let _unsupervised = lock(pool, name)?;
    let options = DropJob {
        fence: collect.fence.contains(name),
        forget_damaged: collect.forget_damaged,
        only: None,
    };
    let gated = gated_ranks(pool, name)?;
    let dropped = drop_job(pool, name, options, &mut || {
        forget_outputs(pool, name, &gated)?;
        forget_runs(pool, name)
    })?;
    let epochs = dropped.unwrap_or_default();
    // These are gone already: if another gc runs, that one frees the space.
    let drop = [(name.clone(), epochs.iter().copied().collect())].into();
    let collect = GcOptions { fence: Vec::new(), drop, ..collect.clone() };
    let report = collect_and_let_go(pool, &collect).map_err(|error| {
        error.context(format!(
            "job {name} is deleted, but its space is not freed yet; run `{}` once this is repaired",
            pool.command("gc", &[])
        ))
    })?;
    Ok((epochs, report))
}

/// Renames a job, with what is known of its runs. `fence` ends the session of a program that may
/// still save. Returns the epochs, oldest first.
///
/// # Errors
/// Those of [`outlive_store::copy::rename_job`] and of the pool; `Invalid` if a supervisor runs one
/// of the two, or the job releases outputs: their receivers know it by its name.
pub fn rename_job(pool: &Pool, from: &JobName, to: &JobName, fence: bool) -> Result<Vec<Epoch>> {
    // One lock, if the name stays, which is refused with the reason.
    let _of_old = lock(pool, from)?;
    let _of_new = if to == from { None } else { lock(pool, to)? };
    if !gated_ranks(pool, from)?.is_empty() {
        return Err(Error::invalid(format!(
            "job {from} has released outputs by its gate, and their receivers know it by its name: with \
             another one, they would get the last ones again. So it keeps its name (docs/gate.md)"
        )));
    }
    copy::rename_job(pool, from, to, fence, &mut || move_runs(pool, from, to))
}

/// Keeps supervisors from a job.
fn lock(pool: &Pool, name: &JobName) -> Result<Option<File>> {
    match pool.has_home() {
        true => pool.lock_run(name),
        false => Ok(None),
    }
}

/// Moves what is known of the runs of a job. Made again after a kill, it goes on.
fn move_runs(pool: &Pool, from: &JobName, to: &JobName) -> Result<()> {
    if !pool.has_home() {
        return Ok(());
    }
    let (old, mut both) = (History::read(pool, from)?, History::read(pool, to)?);
    if !old.attempts.is_empty() {
        // The new name may have had attempts without a checkpoint.
        both.attempts.retain(|attempt| !old.attempts.contains(attempt));
        both.attempts.extend(old.attempts);
        both.attempts.sort_by_key(|attempt| attempt.started_ns);
        both.limit();
        both.write(pool, to)?;
    }
    if let Some(interval) = pool.read_run_file(from, INTERVAL)? {
        pool.write_run_file(to, INTERVAL, &interval)?;
    }
    forget_runs(pool, from)
}

fn forget_runs(pool: &Pool, name: &JobName) -> Result<()> {
    if !pool.has_home() {
        return Ok(());
    }
    for kind in [HISTORY, INTERVAL, REQUEST] {
        if pool.read_run_file(name, kind)?.is_some() {
            pool.write_run_file(name, kind, &[])?;
        }
    }
    Ok(())
}

/// Returns the ranks that have a record of released outputs.
fn gated_ranks(pool: &Pool, name: &JobName) -> Result<Vec<Rank>> {
    if !pool.has_home() {
        return Ok(Vec::new());
    }
    let epochs = Job::open(pool, name.as_str(), JobOptions::default())?.epochs()?;
    let ranks = epochs.iter().map(|info| info.manifest.world_size).max().unwrap_or(1);
    let mut gated = Vec::new();
    for rank in 0..ranks {
        if pool.read_run_file(name, &outputs_of(rank))?.is_some() {
            gated.push(rank);
        }
    }
    Ok(gated)
}

fn forget_outputs(pool: &Pool, name: &JobName, ranks: &[Rank]) -> Result<()> {
    ranks.iter().try_for_each(|rank| pool.write_run_file(name, &outputs_of(*rank), &[]))
}
