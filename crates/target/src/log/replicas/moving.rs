//! Moves a log: carries out the steps of a [`Course`]. Whoever is killed while he does that leaves the rest to
//! whoever comes next: each step may be done again, by several at once.

use super::copy::{NewReplica, OVER, copy};
use super::course::{Course, Step};
use super::had::{JobHad, decode, encode, gather};
use super::solo::Solo;
use super::who::Asker;
use super::{Asking, ReplicatedLog};
use crate::LogMedium;
use outlive_types::sync::pause;
use outlive_types::{Error, JobName, Result};
use std::sync::Arc;

/// The numbers of what is decided, in the job of moves.
const SUCCESSOR: u64 = 1;
const HAD: u64 = 2;

/// A log in these places, as somebody sees it who may move it.
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

/// Writes down, once and for all, what a log has to say of its move; what another has written down goes before.
fn decide(log: &dyn LogMedium, number: u64, proposed: &[u8]) -> Result<Vec<u8>> {
    let job = JobName::moved();
    if log.get(&job, number)?.is_none() {
        log.put_new(&job, number, proposed)?;
    }
    log.keep(&job, number)?;
    let decided = log.get(&job, number)?;
    decided.ok_or_else(|| Error::retry("what was decided on the move of the log is not there"))
}

/// Decides where a log goes from its `old` places: answers which successor that is. From then on it goes there, and
/// nowhere else, though programs may not have noticed yet.
///
/// # Errors
/// `Retry` if less than a majority of the places answer.
pub fn succeed(old: &[Arc<dyn LogMedium>], asking: Asking, successor: &[u8]) -> Result<Vec<u8>> {
    decide(&*seen_by(&Asker::founder(), old, asking)?, SUCCESSOR, successor)
}

/// Moves a log from its `old` places to those of `successor`, which was decided upon, or is named by a place that is
/// sealed. Done once a majority of the new places are open. Answers of each why it is not, if it is not. `look` finds
/// out what there is of the new places.
///
/// # Errors
/// `Retry` if less than a majority of the old or of the new places answer; what `look` answers.
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
    // Others may have brought the move to its end meanwhile. Then the log is there, and what the old places say,
    // which are emptied by then, is of no consequence.
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
        // The old places are being emptied: nothing follows from what is missing there.
        Err(_) if is_over().unwrap_or(false) => Err(not_there(new)),
        taken => taken,
    }
}

fn take_steps(mover: &dyn LogMedium, new: &[NewReplica]) -> Result<Vec<Option<Error>>> {
    let mut course: Course<(), Vec<JobHad>> = Course::sealed();
    if let Some(had) = mover.get(&JobName::moved(), HAD)? {
        // Another has come so far, and may have died before that was durable: what is copied now stays decided.
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
        "of the {} places that the log was moved to less than a majority are there, so nothing can be read or \
         written",
        new.len()
    ))
}

fn too_few(trouble: &[Option<Error>]) -> Error {
    let why: Vec<&str> = trouble.iter().flatten().map(Error::message).collect();
    Error::retry(format!(
        "of the {} places that the log is moved to less than a majority could be filled, so nothing can be read \
         or written: {}",
        trouble.len(),
        why.join("; ")
    ))
}

/// Deletes what was copied from the `old` places, once all new ones are open.
///
/// # Errors
/// What the places report; then some of it may be left, and does no harm.
pub fn forget(old: &[Arc<dyn LogMedium>], asking: Asking, successor: &[u8]) -> Result<()> {
    let asker = Asker::mover(successor);
    // Whoever still copies learns first that there is no need to.
    decide(&*seen_by(&asker, old, asking)?, OVER, b"outlive: all new places are open\n")?;
    for medium in old {
        // One that is away may keep what it has.
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
