//! Records what was lost with targets in memory, before anybody saves to those that take their place.
//! Why it is done so stands in docs/design/026-volatile.md.

use crate::gc::{JobState, append_behind, tell_all};
use crate::scrub::{HealReport, Missing, heal_alone};
use outlive_format::{Body, Sweep};
use outlive_io::Pace;
use outlive_pool::{Pool, Recreated};
use outlive_types::{Epoch, Error, JobName, Result, SessionId};
use std::collections::{BTreeMap, BTreeSet};

/// How often it is looked whether somebody has committed what is lost meanwhile.
const ROUNDS: usize = 8;
/// How often a job is read again because its program appends meanwhile.
const ATTEMPTS: usize = 64;

/// Makes targets in the memory of this host anew, if any is lost, so that programs can go on from what is
/// left. Checkpoints that need what is lost are recorded as incomplete, as a scrub does, and the pool's observer
/// is told of them. Answers those that became so now; `None` if nothing was to be done.
///
/// # Errors
/// `Retry` while another command collects, or as long as it is not known what is lost, since another target
/// or the slow tier is away; what log and targets report. Nothing is saved until it has been done.
pub fn recreate_lost(pool: &Pool) -> Result<Option<BTreeMap<JobName, BTreeSet<Epoch>>>> {
    if !pool.wants_recreate()? {
        return Ok(None);
    }
    let Some(anew) = pool.recreate_lost()? else { return Ok(None) };
    // They are, even if the rest has to wait.
    for made in anew.made() {
        pool.warn(made.clone());
    }
    let recorded = record(&anew).map_err(|error| {
        error.context(
            "a target in memory was made anew, and it cannot be recorded yet what was lost with it",
        )
    });
    let lost = recorded?;
    tell(pool, &lost)?;
    anew.settle()?;
    Ok(Some(lost))
}

/// Condemns what is lost, until nobody can commit any more what refers to it.
fn record(anew: &Recreated) -> Result<BTreeMap<JobName, BTreeSet<Epoch>>> {
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
        // What was lost of incomplete checkpoints may be named for ever: pages of image tables.
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
        // Whoever has stored something on what is lost finds out before it is committed.
        call_back(pool)?;
    }
    Err(Error::retry("programs commit faster than what they lack can be found"))
}

/// Appends something to the log of every job whose program may be about to commit: it loses its append, and
/// looks which targets there are before it tries again.
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

fn tell(pool: &Pool, lost: &BTreeMap<JobName, BTreeSet<Epoch>>) -> Result<()> {
    for (job, epochs) in lost {
        let state = JobState::read(pool, job, false)?;
        let left = state.manifests.iter().find(|manifest| !epochs.contains(&manifest.epoch));
        let epochs: Vec<String> = epochs.iter().map(Epoch::to_string).collect();
        pool.warn(format!(
            "job {job}: lost with the memory that they were in: checkpoints {}; {}",
            epochs.join(", "),
            match left {
                Some(left) => format!("the newest that is left is {}", left.epoch),
                None => "none is left".to_owned(),
            }
        ));
    }
    Ok(())
}
