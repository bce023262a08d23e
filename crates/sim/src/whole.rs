//! The check that the checkpoints of a pool are those that were saved.

use crate::oracle::Committed;
use crate::state::{Memory, RestoredRegions};
use crate::world::PoolWorld;
use outlive_pool::Pool;
use outlive_store::gc::listed_jobs;
use outlive_store::{Finding, Job, JobOptions, Select};
use outlive_types::{Epoch, Error, ErrorKind, Rank};

/// Checks that all checkpoints of a pool are there and whole, and no others. Once it `is_settled`,
/// nothing excuses a finding of a verification.
pub(crate) fn checkpoints(
    pool: &Pool,
    pool_world: &PoolWorld,
    is_settled: bool,
) -> Result<(), String> {
    let listed = listed_jobs(pool).map_err(|error| error.to_string())?;
    for name in pool_world.oracle.jobs() {
        let job = Job::open(pool, name.as_str(), JobOptions::default());
        let job = job.map_err(|error| error.to_string())?;
        let there: Vec<Epoch> = match job.epochs() {
            Ok(infos) => infos.iter().map(|info| info.epoch).collect(),
            Err(error) => return Err(format!("the log of {name} cannot be read: {error}")),
        };
        // Asked later, since a program that reads a record of only some replicas completes it.
        let committed = pool_world.oracle.committed(&name);
        for epoch in &there {
            let Some(committed) = committed.get(epoch) else {
                return Err(format!("epoch {epoch} of {name} was never committed"));
            };
            whole(&job, *epoch, committed, pool_world.oracle.is_damaged() || committed.frail)?;
        }
        if pool_world.oracle.is_damaged() {
            continue;
        }
        let mut must_be = pool_world.oracle.must_be(&name).into_iter();
        if let Some((epoch, lost)) = must_be.find(|(epoch, _)| !there.contains(epoch)) {
            return Err(format!("epoch {epoch} of {name} is lost: {lost:?}; there are {there:?}"));
        }
        if !there.is_empty() && !listed.contains(&name) {
            return Err(format!("job {name} has {there:?}, and is not listed"));
        }
        if committed.values().any(|committed| committed.frail) {
            continue;
        }
        let report = job.verify(None).map_err(|error| format!("verify: {error}"))?;
        let is_excused = pool_world.oracle.has_bruises() && !is_settled;
        let counts = |finding: &&Finding| finding.epoch.is_some() || !is_excused;
        if let Some(finding) = report.findings.iter().find(counts) {
            return Err(format!("verify finds in {name}: {finding:?}"));
        }
    }
    Ok(())
}

pub(crate) fn whole(
    job: &Job,
    epoch: Epoch,
    committed: &Committed,
    is_damaged: bool,
) -> Result<(), String> {
    match committed.ranks.len() {
        1 => whole_restore(job, epoch, committed, is_damaged),
        _ => whole_ranks(job, epoch, committed, is_damaged),
    }
}

/// Checks the same rank by rank, which changes nothing in the pool.
pub(crate) fn whole_ranks(
    job: &Job,
    epoch: Epoch,
    committed: &Committed,
    is_damaged: bool,
) -> Result<(), String> {
    (0..).zip(&committed.ranks).try_for_each(|(rank, state)| {
        let of = || format!("rank {rank} of epoch {epoch} of {}", job.name());
        match read_rank(job, epoch, rank) {
            Ok(found) if state.is(&found) => Ok(()),
            Ok(found) => Err(format!("{} is {found:?}, was {state:?}", of())),
            Err(error) if is_damaged && error.kind() == ErrorKind::Damaged => Ok(()),
            Err(error) => Err(format!("{} cannot be read: {error}; was {state:?}", of())),
        }
    })
}

fn read_rank(job: &Job, epoch: Epoch, rank: Rank) -> outlive_types::Result<RestoredRegions> {
    let found = job.attempt_rank(Select::Epoch(epoch), rank, &mut |checkpoint| {
        let memory = Memory::of(checkpoint);
        let all: Vec<usize> = (0..checkpoint.streams().len()).collect();
        checkpoint.read(&all, &memory).map(|_| memory)
    })?;
    let (checkpoint, memory, _) = found.ok_or_else(|| Error::bug("the epoch is there"))?;
    Ok(memory.restored(&checkpoint))
}

fn whole_restore(
    job: &Job,
    epoch: Epoch,
    committed: &Committed,
    is_damaged: bool,
) -> Result<(), String> {
    let name = job.name();
    let mut found = None;
    let restored = job.restore(
        Select::Epoch(epoch),
        &mut |checkpoint| {
            let all = (0..checkpoint.streams().len()).collect();
            Ok((all, Memory::of(checkpoint)))
        },
        &mut |checkpoint, memory| {
            found = Some(memory.restored(checkpoint));
            Ok(())
        },
    );
    match (restored, found) {
        (Ok(Some(_)), Some(found)) if committed.is(&found) => Ok(()),
        (Err(error), _) if is_damaged && error.kind() == ErrorKind::Damaged => Ok(()),
        (Ok(_), found) => Err(format!("epoch {epoch} of {name} is {found:?}, was {committed:?}")),
        (Err(error), _) => {
            Err(format!("epoch {epoch} of {name} cannot be restored: {error}; was {committed:?}"))
        }
    }
}
