//! Moves a log: carries out the steps of a [`Course`]. If a mover is killed, the next process
//! completes the move: each step may be repeated, also by several at once.

use super::copy::{NewReplica, OVER, copy};
use super::course::{Course, Step};
use super::had::{JobHad, decode, encode, gather};
use super::solo::Solo;
use super::who::Asker;
use super::{Asking, ReplicatedLog};
use crate::medium::LogMedium;
use outlive_types::sync::pause;
use outlive_types::{Error, JobName, Result};
use std::sync::Arc;

/// The numbers of the decisions, in the job of moves.
const SUCCESSOR: u64 = 1;
const HAD: u64 = 2;

/// Returns the log in these replicas, as `asker` sees it.
pub(super) fn seen_by(
    asker: &Asker,
    media: &[Arc<dyn LogMedium>],
    asking: Asking,
) -> Result<Arc<dyn LogMedium>> {
    Ok(match media {
        [only] => Arc::new(Solo::new(only.clone(), asker.clone())),
        several => Arc::new(ReplicatedLog::asked(several.to_vec(), asking, asker.clone())?),
    })
}

/// Records a decision on the move of a log, once; an earlier decision wins.
fn decide(log: &dyn LogMedium, number: u64, proposed: &[u8]) -> Result<Vec<u8>> {
    let job = JobName::moved();
    if log.get(&job, number)?.is_none() {
        log.put_new(&job, number, proposed)?;
    }
    log.keep(&job, number)?;
    let decided = log.get(&job, number)?;
    decided.ok_or_else(|| Error::retry("what was decided on the move of the log is not there"))
}

/// Decides where a log goes from its `old` replicas, and returns that successor. From then on the
/// log goes only there, although programs may not have noticed yet.
///
/// # Errors
/// `Retry` if fewer than a majority of the replicas answer.
pub fn succeed(old: &[Arc<dyn LogMedium>], asking: Asking, successor: &[u8]) -> Result<Vec<u8>> {
    decide(&*seen_by(&Asker::founder(), old, asking)?, SUCCESSOR, successor)
}

/// Moves a log from its `old` replicas to those of `successor`, which was decided, or which a
/// sealed replica names. The move is complete once a majority of the new replicas are open.
/// Returns, for each replica, why it is not open. `look` examines the new replicas.
///
/// # Errors
/// `Retry` if fewer than a majority of the old or of the new replicas answer; errors of `look`.
pub fn move_to(
    old: &[Arc<dyn LogMedium>],
    asking: Asking,
    successor: &[u8],
    look: &dyn Fn() -> Result<Vec<NewReplica>>,
) -> Result<Vec<Option<Error>>> {
    let new = look()?;
    if new.iter().all(|replica| replica.is_open) {
        return Ok(new.iter().map(|_| None).collect());
    }
    let error = match go_to(old, asking, successor, &new) {
        Ok(trouble) => return Ok(trouble),
        Err(error) => error,
    };
    // Others may have completed the move meanwhile. Then the log is there, and the answers of the
    // emptied old replicas do not matter.
    let new = look()?;
    match new.iter().filter(|replica| replica.is_open).count() > new.len() / 2 {
        true => Ok(new.iter().map(|new| (!new.is_open).then(|| error.clone())).collect()),
        false => Err(error),
    }
}

fn go_to(
    old: &[Arc<dyn LogMedium>],
    asking: Asking,
    successor: &[u8],
    new: &[NewReplica],
) -> Result<Vec<Option<Error>>> {
    let mover = seen_by(&Asker::mover(successor), old, asking)?;
    let is_over = || Ok::<bool, Error>(mover.get(&JobName::moved(), OVER)?.is_some());
    if is_over()? {
        return Err(not_there(new)); // all were open once
    }
    match take_steps(&*mover, new) {
        // The old replicas are being emptied: a missing record shows nothing.
        Err(_) if is_over().unwrap_or(false) => Err(not_there(new)),
        taken => taken,
    }
}

fn take_steps(mover: &dyn LogMedium, new: &[NewReplica]) -> Result<Vec<Option<Error>>> {
    let mut course: Course<(), Vec<JobHad>> = Course::sealed();
    if let Some(had) = mover.get(&JobName::moved(), HAD)? {
        // Another mover came this far, and may have died before this was durable. The decision must
        // be durable before anything is copied.
        mover.keep(&JobName::moved(), HAD)?;
        course.ended(decode(&had)?);
    }
    loop {
        match course.step().clone() {
            Step::Succeed(()) => course.succeeded(),
            Step::Gather => {
                pause("gather what the log has");
                course.gathered(gather(mover)?);
            }
            Step::End(had) => {
                pause("decide on what the log had");
                course.ended(decode(&decide(mover, HAD, &encode(&had))?)?);
            }
            Step::Copy(had) => {
                pause("copy what the log had");
                let trouble = copy(mover, &had, new)?;
                let open = trouble.iter().filter(|trouble| trouble.is_none()).count();
                course.opened(open, new.len());
                return match course.step() {
                    Step::Over => Ok(trouble),
                    _ => Err(too_few(&trouble)),
                };
            }
            Step::Over => return Ok(new.iter().map(|_| None).collect()),
        }
    }
}

fn not_there(new: &[NewReplica]) -> Error {
    Error::retry(format!(
        "of the {} replicas that the log was moved to fewer than a majority are there, so nothing can be read or \
         written",
        new.len()
    ))
}

fn too_few(trouble: &[Option<Error>]) -> Error {
    let why: Vec<&str> = trouble.iter().flatten().map(Error::message).collect();
    Error::retry(format!(
        "of the {} replicas that the log is moved to fewer than a majority could be filled, so nothing can be read \
         or written: {}",
        trouble.len(),
        why.join("; ")
    ))
}

/// Deletes from the `old` replicas what was copied, once all new ones are open.
///
/// # Errors
/// Errors of the replicas; then some data may be left, which does no harm.
pub fn forget(old: &[Arc<dyn LogMedium>], asking: Asking, successor: &[u8]) -> Result<()> {
    let asker = Asker::mover(successor);
    // Movers that still copy learn first that they need not.
    decide(&*seen_by(&asker, old, asking)?, OVER, b"outlive: all new places are open\n")?;
    for medium in old {
        // A replica that is away may keep its data.
        let Ok(jobs) = asker.ask(&**medium, |medium| medium.jobs()) else { continue };
        for job in jobs.into_iter().chain([JobName::gc(), JobName::targets()]) {
            for job in [job.removed(), job] {
                for number in medium.list(&job)? {
                    medium.delete(&job, number)?;
                }
                medium.sync(&job)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
