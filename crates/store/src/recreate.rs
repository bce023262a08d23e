//! Records the data that was lost with targets in memory, before a program saves to the targets
//! that replace them. The reasons are in docs/design/026-volatile.md.

use crate::gc::{JobState, append_behind, tell_all};
use crate::scrub::{HealReport, Missing, heal_alone};
use crate::trim::Uses;
use outlive_format::{Body, Sweep};
use outlive_io::Pace;
use outlive_pool::{Pool, Recreated};
use outlive_types::{Epoch, Error, ErrorKind, JobName, Result, SessionId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Checkpoints that are incomplete for good, by job.
pub type LostCheckpoints = BTreeMap<JobName, BTreeSet<Epoch>>;

/// Longest wait of a save, put or copy for a command that is at work.
pub(crate) const SAVE_WAIT: Duration = Duration::from_secs(60);
/// The same for a restore, which can do without.
pub(crate) const RESTORE_WAIT: Duration = Duration::from_secs(10);
/// Maximum number of checks whether a program has committed lost data meanwhile.
const ROUNDS: usize = 8;
/// Maximum number of attempts to append to a job: its program may append meanwhile.
const ATTEMPTS: usize = 64;

/// Recreates lost targets in the memory of this host, so that programs can continue with the
/// remaining data. Checkpoints that need lost data are recorded as incomplete, as by a scrub, and
/// the pool's observer is warned of them. Returns the checkpoints that this made incomplete; `None`
/// if there was nothing to do. While another command is at work, it waits for about `most`, and no
/// longer than until another process has done it.
///
/// # Errors
/// `Retry` if another command is at work for longer. `Retry` while it is unknown what is
/// lost, since another target or the slow tier is away. Errors of log and targets. No save may
/// begin before this has succeeded.
pub fn recreate_lost(pool: &Pool, most: Duration) -> Result<Option<LostCheckpoints>> {
    pool.recreate_lost(most)?.map(|anew| settle(pool, told(pool, anew))).transpose()
}

/// Gives up the hosts that have taken these seats of a pool, and records what is lost with them, as
/// [`recreate_lost`] does. `None` if none of them is a seat that a host has.
///
/// # Errors
/// As [`recreate_lost`].
pub fn vacate(pool: &Pool, seats: &BTreeSet<u32>) -> Result<Option<LostCheckpoints>> {
    pool.vacate(seats)?.map(|anew| settle(pool, told(pool, anew))).transpose()
}

/// Gives a seat back whose node still serves, unless a checkpoint needs what is there. `None` if it is
/// no seat that a host has.
///
/// # Errors
/// `Retry` if a checkpoint needs it; as [`recreate_lost`].
pub fn leave_seat(pool: &Pool, seat: u32) -> Result<Option<LostCheckpoints>> {
    let Some(closed) = pool.close_seat(seat)? else { return Ok(None) };
    // A save that has put something there finds that out before it commits.
    if let Err(error) = call_back(pool) {
        return closed.reopen().and(Err(error));
    }
    // Nothing is lost with it, so there is nothing to warn of.
    closed.vacate(&Uses)?.map(|anew| settle(pool, anew)).transpose()
}

/// Warns of the targets that were given up: the table is changed, even if the rest has to wait.
fn told(pool: &Pool, anew: Recreated) -> Recreated {
    for made in anew.made() {
        pool.warn(made.clone());
    }
    anew
}

/// Records what is lost with the targets before these, and lets programs save again.
fn settle(pool: &Pool, anew: Recreated) -> Result<LostCheckpoints> {
    let lost = record(&anew).map_err(|error| {
        // A later collector fences this one, and not the job of the program that waits.
        let error = match error.kind() {
            ErrorKind::Fenced => Error::retry(error.message()),
            _ => error,
        };
        error.context("a target was given up, and it cannot be recorded yet what was lost with it")
    })?;
    tell(pool, &lost)?;
    anew.settle()?;
    Ok(lost)
}

/// Condemns the lost data, until no program can commit a reference to it any more.
fn record(anew: &Recreated) -> Result<LostCheckpoints> {
    let (pool, pace) = (anew.pool(), Pace::new(None));
    let mut before = BTreeMap::new();
    for job in pool.jobs()? {
        let incomplete = JobState::read(pool, &job, false)?.incomplete;
        before.insert(job, incomplete);
    }
    let mut report = HealReport::default();
    let mut condemned = BTreeSet::new();
    for round in 0..ROUNDS {
        heal_alone(pool, &anew.suspects()?, &pace, &mut report, Missing::IsKnown)?;
        // Lost data of incomplete checkpoints may be named forever: pages of image tables.
        let is_known = report.condemned.is_subset(&condemned);
        condemned.extend(report.condemned.iter().copied());
        if round > 0 && is_known {
            let is_new = |(job, mut incomplete): (JobName, BTreeSet<Epoch>)| {
                let known = before.get(&job);
                incomplete.retain(|epoch| known.is_none_or(|known| !known.contains(epoch)));
                (!incomplete.is_empty()).then_some((job, incomplete))
            };
            return Ok(report.incomplete.into_iter().filter_map(is_new).collect());
        }
        // A program that has built on lost data finds that out before it commits.
        call_back(pool)?;
    }
    Err(Error::retry("programs commit faster than what they lack can be found"))
}

/// Appends something to the log of every job whose program may be about to commit. The program's
/// append then fails, and it reads the table of targets before it tries again.
fn call_back(pool: &Pool) -> Result<()> {
    let gc = SessionId([0xFF; 12]);
    let mut each = |name: &JobName, _| {
        for _ in 0..ATTEMPTS {
            let mut state = JobState::read(pool, name, false)?;
            let nothing = Body::Sweep(Sweep { gc, packs: Vec::new() });
            if !state.is_open() || append_behind(pool, &mut state, nothing)? {
                return Ok(state);
            }
        }
        Err(Error::retry(format!("job {name} saves too fast to be told: try again later")))
    };
    tell_all(pool, &mut each).map(drop)
}

fn tell(pool: &Pool, lost: &LostCheckpoints) -> Result<()> {
    for (job, epochs) in lost {
        let state = JobState::read(pool, job, false)?;
        let left = state.manifests.iter().find(|manifest| !epochs.contains(&manifest.epoch));
        let epochs: Vec<String> = epochs.iter().map(Epoch::to_string).collect();
        pool.warn(format!(
            "job {job}: lost with their targets: checkpoints {}; {}",
            epochs.join(", "),
            match left {
                Some(left) => format!("the newest that is left is {}", left.epoch),
                None => "none is left".to_owned(),
            }
        ));
    }
    Ok(())
}
