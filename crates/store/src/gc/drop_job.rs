//! Drops all checkpoints of a job, and ends its session: the job is gone from all lists.
//!
//! A session of its own shuts out every other writer first. So no commit comes between the last look
//! at the log and the record that drops the checkpoints. A program that has restored before finds
//! another session, and is refused. The newest record of the log stays: epochs go on from there if
//! the name is used again.

use super::leases::end_if_lost;
use super::report::{ATTEMPTS, append_behind};
use super::survey::JobState;
use crate::commit::{LogHead, history};
use outlive_format::{Body, Manifest, Prune, Remarks};
use outlive_pool::Pool;
use outlive_types::{Epoch, Error, ErrorKind, JobName, Result, SessionId};
use std::collections::BTreeMap;

/// Options of [`drop_job`].
#[derive(Clone, Copy, Debug, Default)]
pub struct DropJob<'a> {
    /// Whether the session of a program that may still save is ended.
    pub fence: bool,
    /// Whether records that cannot be read are given up.
    pub forget_damaged: bool,
    /// The only checkpoints that may go, with their remarks; all may without.
    pub only: Option<&'a BTreeMap<Epoch, Remarks>>,
}

/// Drops all checkpoints of a job. `before` is called when nothing but the last record is missing.
/// Returns the epochs, oldest first; `None` if there are others than those that may go, or other
/// remarks on them, and then nothing is dropped.
///
/// # Errors
/// `Invalid` if there is no such job, or its program may still save. `Retry` if another program
/// opens the job meanwhile. `Damaged` if a record cannot be read. Errors of `before` and of the log.
pub fn drop_job(
    pool: &Pool,
    name: &JobName,
    options: DropJob<'_>,
    before: &mut dyn FnMut() -> Result<()>,
) -> Result<Option<Vec<Epoch>>> {
    let mut head = LogHead::new(name.clone());
    if !options.fence {
        // A program that begins from now on keeps this from opening a session.
        head.note_position(pool)?;
    }
    check_closed(pool, name, options)?;
    let opened = head.open(pool);
    let (session, _) = opened.map_err(|error| match error.kind() {
        ErrorKind::Fenced => taken_over(name),
        _ => error,
    })?;
    let dropped = drop_all(pool, name, session, options, before);
    let closed = head.close(pool);
    let dropped = dropped?;
    closed.map(|()| dropped)
}

/// Checks that a job exists and that no program may still save it, unless that is to be ended.
///
/// # Errors
/// `Invalid` otherwise; errors of the log.
pub fn check_closed(pool: &Pool, name: &JobName, options: DropJob<'_>) -> Result<JobState> {
    let state = read_closed(pool, name, options)?;
    match state.is_there() {
        true => Ok(state),
        false => {
            Err(Error::invalid(format!("there is no job {name} in {}", pool.log().describe())))
        }
    }
}

/// The same of a name that no job may have.
///
/// # Errors
/// As [`check_closed`].
pub fn read_closed(pool: &Pool, name: &JobName, options: DropJob<'_>) -> Result<JobState> {
    let mut state = JobState::read(pool, name, options.forget_damaged)?;
    end_if_lost(pool, &mut state, options.forget_damaged, false)?;
    if state.is_open() && !options.fence {
        return Err(Error::invalid(format!(
            "{} has job {name} open and may still save: end it, or shut it out with --fence (in Python: \
             `fence=True`)",
            state.program()
        )));
    }
    Ok(state)
}

fn drop_all(
    pool: &Pool,
    name: &JobName,
    session: SessionId,
    options: DropJob<'_>,
    before: &mut dyn FnMut() -> Result<()>,
) -> Result<Option<Vec<Epoch>>> {
    for _ in 0..ATTEMPTS {
        let mut state = JobState::read(pool, name, options.forget_damaged)?;
        if !state.is_of(session) {
            return Err(taken_over(name));
        }
        let may_go = |manifest: &Manifest| {
            options.only.is_none_or(|only| only.get(&manifest.epoch) == Some(&manifest.remarks))
        };
        if !state.manifests.iter().all(may_go) {
            return Ok(None);
        }
        let mut epochs: Vec<Epoch> = state.manifests.iter().map(|m| m.epoch).collect();
        epochs.reverse();
        before()?;
        if epochs.is_empty() {
            return Ok(Some(epochs));
        }
        let prune = Prune { last_epoch: state.last_epoch, epochs: epochs.clone() };
        if append_behind(pool, &mut state, Body::Prune(prune))? {
            return Ok(Some(epochs));
        }
    }
    Err(Error::retry(format!("other commands keep writing to the log of job {name}: try again")))
}

fn taken_over(name: &JobName) -> Error {
    Error::retry(format!(
        "another program has opened job {name} meanwhile, so nothing was dropped: end that program, \
         and try again"
    ))
}

/// Returns the jobs that exist for people, sorted: not those that were deleted or renamed, of which
/// the log keeps the newest record. A job whose log cannot be read is among them.
///
/// # Errors
/// Errors of listing the logs.
pub fn listed_jobs(pool: &Pool) -> Result<Vec<JobName>> {
    let mut jobs = pool.jobs()?;
    jobs.retain(|job| is_listed(pool, job).unwrap_or(true));
    Ok(jobs)
}

/// Returns the program that has a job open and may still save, as far as its log and this host show;
/// `None` if there is none.
///
/// # Errors
/// Errors of the log.
pub fn holder(pool: &Pool, name: &JobName) -> Result<Option<String>> {
    let state = JobState::read(pool, name, true)?;
    Ok(state.is_open().then(|| state.program()))
}

fn is_listed(pool: &Pool, name: &JobName) -> Result<bool> {
    // The newest records show it in nearly all cases.
    for entry in history(pool, name)? {
        if entry.record.is_err() || entry.manifest().is_some() {
            return Ok(true);
        }
    }
    JobState::read(pool, name, true).map(|state| state.is_there())
}
