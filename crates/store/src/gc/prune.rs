//! Drops checkpoints by one record in the job's log, right behind the records that were read. It
//! marks, copies and deletes nothing, so it works on a full disk, and beside a gc. A gc frees the
//! space.

use super::collection::GcOptions;
use super::leases::end_if_lost;
use super::report::{ATTEMPTS, append_behind};
use super::survey::JobState;
use outlive_format::{Body, Prune};
use outlive_pool::Pool;
use outlive_types::{Epoch, Error, JobName, Result};
use std::collections::BTreeSet;

/// Drops checkpoints of a job; epochs that are already gone are no error. Returns the epochs that
/// it dropped, oldest first.
///
/// # Errors
/// `Invalid` as [`check_drop`]. `Retry` if the job saves before each append, again and again, or if
/// no checkpoint would be left although the options keep one. Errors of the log.
pub fn drop_checkpoints(
    pool: &Pool,
    name: &JobName,
    epochs: &BTreeSet<Epoch>,
    options: &GcOptions,
) -> Result<Vec<Epoch>> {
    for _ in 0..ATTEMPTS {
        let mut state = JobState::read(pool, name, options.forget_damaged)?;
        end_if_lost(pool, &mut state, options.forget_damaged, false)?;
        check_drop(name, (state.number > 0).then_some(&state), epochs)?;
        let mut dropped: Vec<Epoch> = state.manifests.iter().map(|m| m.epoch).collect();
        dropped.retain(|epoch| epochs.contains(epoch));
        dropped.reverse();
        if dropped.is_empty() {
            return Ok(dropped);
        }
        if options.keep_one && dropped.len() == state.manifests.len() {
            return Err(Error::retry(format!(
                "another prune has dropped what this one would have kept of job {name}, and nothing \
                 would be left: nothing was dropped; try again"
            )));
        }
        let prune = Prune { last_epoch: state.last_epoch, epochs: dropped.clone() };
        if append_behind(pool, &mut state, Body::Prune(prune))? {
            return Ok(dropped);
        }
    }
    Err(Error::retry(format!(
        "job {name} saves faster than its checkpoints can be dropped: try again later"
    )))
}

/// Checks that checkpoints can be dropped from a job, by the state of its log.
///
/// # Errors
/// `Invalid` if there is no such job, or if its newest checkpoint would go while its program may
/// still save.
pub fn check_drop(name: &JobName, job: Option<&JobState>, epochs: &BTreeSet<Epoch>) -> Result<()> {
    let Some(job) = job else { return Err(Error::invalid(format!("there is no job {name}"))) };
    let newest = job.manifests.first().map(|manifest| manifest.epoch);
    if newest.is_some_and(|newest| epochs.contains(&newest)) && job.is_open() {
        return Err(Error::invalid(format!(
            "the newest checkpoint of job {name} cannot go while its program may still save: end \
             the program, or shut it out with --fence"
        )));
    }
    Ok(())
}
