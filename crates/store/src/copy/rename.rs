//! Renames a job: copies its checkpoints to the new name, without their data, then drops the old
//! job.
//!
//! Each step may be killed and given again. The copy commits epoch by epoch and goes on where it
//! ended. The old job goes by one record, and only if the new one has each of its checkpoints.

use super::plan::CopyOptions;
use super::run::{JobCopied, copy};
use crate::gc::{DropJob, JobState, check_closed, drop_job, read_closed};
use crate::save::remark;
use outlive_format::Remarks;
use outlive_pool::Pool;
use outlive_types::{Epoch, Error, JobName, Result};
use std::collections::{BTreeMap, BTreeSet};

/// Number of attempts to copy everything while the program of the job goes on saving.
const ATTEMPTS: usize = 8;

/// Renames a job of a pool. `before` is called when the new name has all checkpoints, right before
/// the old one loses them. Returns the epochs, oldest first.
///
/// # Errors
/// `Invalid` if there is no such job, or its program may still save and is not to be shut out. Also
/// if the new name belongs to another job, or has had newer checkpoints. `Damaged` if a checkpoint
/// cannot be read. `Retry` if the program saves too fast, or another one opens the job. In each case
/// no checkpoint is lost, and the same call goes on from there.
pub fn rename_job(
    pool: &Pool,
    from: &JobName,
    to: &JobName,
    fence: bool,
    before: &mut dyn FnMut() -> Result<()>,
) -> Result<Vec<Epoch>> {
    if from == to {
        return Err(Error::invalid(format!("the job is called {from} already")));
    }
    for _ in 0..ATTEMPTS {
        check_names(pool, from, to, fence)?;
        let options = CopyOptions {
            jobs: vec![from.clone()],
            rename: Some(to.clone()),
            ..CopyOptions::default()
        };
        let mut copied = copy(pool, pool, &options)?.jobs;
        let copied = copied.pop().ok_or_else(|| Error::bug("a copy of one job reports none"))?;
        let there = check_copied(pool, copied)?;
        let there = carry_remarks(pool, [from, to], &there)?;
        // A copy that was killed may have left its last record without a sync.
        pool.log().sync(to)?;
        let options = DropJob { fence, forget_damaged: false, only: Some(&there) };
        if let Some(epochs) = drop_job(pool, from, options, before)? {
            return Ok(epochs);
        }
    }
    Err(Error::retry(format!(
        "job {from} saves faster than its checkpoints can get the name {to}: end its program, and try \
         again"
    )))
}

/// Checks that the old job may go, and that the new name is free, or has a part of these checkpoints
/// from a rename that was killed.
fn check_names(pool: &Pool, from: &JobName, to: &JobName, fence: bool) -> Result<()> {
    let options = DropJob { fence, ..DropJob::default() };
    let state = check_closed(pool, from, options)?;
    let Some(newest) = state.manifests.first().map(|manifest| manifest.epoch) else {
        return Err(Error::invalid(format!("job {from} has no checkpoint that could be renamed")));
    };
    // A rename that failed in this process has left a session, too.
    let there = read_closed(pool, to, options)?;
    match there.manifests.first().filter(|manifest| manifest.epoch > newest) {
        Some(manifest) => Err(Error::invalid(format!(
            "there is a job {to}, and its checkpoint {} is newer than all of job {from}: choose another \
             name",
            manifest.epoch
        ))),
        None => Ok(()),
    }
}

/// Gives the checkpoints with the new name the remarks of the old ones, which may have changed since
/// the copy. Returns these remarks.
fn carry_remarks(
    pool: &Pool,
    [from, to]: [&JobName; 2],
    there: &BTreeSet<Epoch>,
) -> Result<BTreeMap<Epoch, Remarks>> {
    let [old, new] = [from, to].map(|job| -> Result<BTreeMap<Epoch, Remarks>> {
        let manifests = JobState::read(pool, job, false)?.manifests;
        Ok(manifests.into_iter().map(|manifest| (manifest.epoch, manifest.remarks)).collect())
    });
    let (mut old, new) = (old?, new?);
    old.retain(|epoch, _| there.contains(epoch));
    for (epoch, remarks) in &old {
        if new.get(epoch).is_some_and(|new| new != remarks) {
            remark(pool, to, *epoch, &|new| new.clone_from(remarks))?;
        }
    }
    Ok(old)
}

/// Returns the checkpoints that have the new name now: all, or there is an error.
fn check_copied(pool: &Pool, copied: JobCopied) -> Result<BTreeSet<Epoch>> {
    let JobCopied { plan, copied, damaged, refused, .. } = copied;
    if let Some(error) = refused {
        return Err(error);
    }
    if let Some(epoch) = plan.behind.first() {
        return Err(Error::invalid(format!(
            "checkpoint {epoch} of job {} cannot get the name {}: a job of that name has had newer ones, \
             and epochs only go forward. Choose another name",
            plan.from, plan.to
        )));
    }
    if let Some((epoch, error)) = damaged.into_iter().next() {
        let drop = pool.command("prune", &[plan.from.as_str(), "--drop", &epoch.to_string()]);
        return Err(error.context(format!(
            "checkpoint {epoch} is damaged, so job {} keeps its name; the others have the name {} as \
             well. Give the checkpoint up with `{drop}`, and rename again",
            plan.from, plan.to
        )));
    }
    // Damage, or a replica that did not answer: only the error tells.
    if let Some(error) = plan.unread {
        let verify = pool.command("verify", &[plan.from.as_str()]);
        return Err(error.context(format!(
            "{} records of the log of job {} cannot be read, so it keeps its name; `{verify}` says more",
            plan.unreadable, plan.from
        )));
    }
    Ok(plan.there.into_iter().chain(copied.iter().map(|copied| copied.epoch)).collect())
}
