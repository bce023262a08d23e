//! What must hold when all programs have ended.

use crate::state::{Memory, RestoredRegions};
use crate::truth::Committed;
use crate::world::PoolWorld;
use outlive_pool::Pool;
use outlive_store::gc::{GcOptions, GcReport, collect};
use outlive_store::{Job, JobOptions, Select, make_anew};
use outlive_types::{Epoch, Error, ErrorKind, JobName, PackId, Rank, SeededRng};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;

/// Gcs after which nothing may be left to do.
const QUIET_GCS_MAX: u32 = 3;

/// Checks a pool. Nobody is at work any more, and whoever comes now is not disturbed.
pub fn check(place: &PoolWorld, rng: &SeededRng) -> Result<(), String> {
    // Old handles are of no use now, and what was not durable when the power was cut is gone.
    place.world.reboot();
    for target in 0..place.space.targets {
        place.world.set_away(target, false);
    }
    let (pool, read) = place.quiet_pool(rng.next_u64());
    let at = |what: String| format!("at the end, pool {}: {what}", place.name);
    let recorded = make_anew(&pool).map_err(|error| at(format!("memory made anew: {error}")))?;
    if recorded.is_some() {
        place.luck.achieved("memory made anew at the end");
    }
    checkpoints(&pool, place).map_err(at)?;
    if place.truth.is_damaged() {
        return Ok(());
    }
    let jobs = pool.jobs().map_err(|error| at(error.to_string()))?;
    let fence: Vec<JobName> = jobs.clone();
    let mut lost = lost(&pool, place).map_err(at)?;
    let mut gc = |fence: Vec<JobName>| {
        let drop = std::mem::take(&mut lost);
        let options = GcOptions { fence, drop, ..GcOptions::default() };
        collect(&pool, &options).map_err(|error| at(format!("a quiet gc: {error}")))
    };
    gc(fence)?;
    // What a gc rewrites makes the segments of earlier ones superfluous: these go with the next.
    let mut rounds = 0;
    while !is_idle(&gc(Vec::new())?) {
        rounds += 1;
        if rounds > QUIET_GCS_MAX {
            return Err(at(format!("{rounds} quiet gcs in a row all found something to do")));
        }
    }
    read.lock().unwrap_or_else(PoisonError::into_inner).clear();
    checkpoints(&pool, place).map_err(at)?;
    let read = read.lock().unwrap_or_else(PoisonError::into_inner).clone();
    garbage(&pool, &read).map_err(at)?;
    match place.space.slow {
        // What is called safe on the slow target can be restored without all others.
        true => {
            let safe = place.safe_on_slow(rng.next_u64());
            place.slow_alone(&safe, rng.next_u64()).map_err(at)
        }
        false => Ok(()),
    }
}

/// The checkpoints that were lost with memory: they go first, as some of their packs may be left.
fn lost(pool: &Pool, place: &PoolWorld) -> Result<BTreeMap<JobName, BTreeSet<Epoch>>, String> {
    let mut lost: BTreeMap<JobName, BTreeSet<Epoch>> = BTreeMap::new();
    for name in place.truth.jobs() {
        let job = Job::open(pool, name.as_str(), JobOptions::default());
        let job = job.map_err(|error| error.to_string())?;
        let committed = place.truth.committed(&name);
        for info in job.epochs().map_err(|error| error.to_string())? {
            let there = committed.get(&info.epoch).filter(|committed| committed.frail);
            let there = there.map(|committed| whole(&job, info.epoch, committed, false));
            if there.is_some_and(|whole| whole.is_err()) {
                lost.entry(name.clone()).or_default().insert(info.epoch);
            }
        }
    }
    Ok(lost)
}

/// Whether there is no garbage any more.
fn is_idle(report: &GcReport) -> bool {
    let plan = &report.plan;
    let is_idle = plan.dead.is_empty() && plan.rewritten.is_empty() && plan.leftovers == 0;
    is_idle && report.deleted == 0 && report.held == 0
}

/// Everything that is there must have been read by somebody who has read all checkpoints.
fn garbage(pool: &Pool, read: &BTreeSet<PackId>) -> Result<(), String> {
    let there = pool.packs().map_err(|error| error.to_string())?;
    let unused: Vec<String> =
        there.iter().filter(|pack| !read.contains(pack)).map(ToString::to_string).collect();
    let unfinished = pool.unfinished_packs().map_err(|error| error.to_string())?;
    match unused.is_empty() && unfinished.is_empty() {
        true => Ok(()),
        false => Err(format!("nobody needs {unused:?}, unfinished are {unfinished:?}")),
    }
}

fn checkpoints(pool: &Pool, place: &PoolWorld) -> Result<(), String> {
    for name in place.truth.jobs() {
        let job = Job::open(pool, name.as_str(), JobOptions::default());
        let job = job.map_err(|error| error.to_string())?;
        let there: Vec<Epoch> = match job.epochs() {
            Ok(infos) => infos.iter().map(|info| info.epoch).collect(),
            Err(error) => return Err(format!("the log of {name} cannot be read: {error}")),
        };
        // Behind that: whoever reads a record that has got to some places only completes it.
        let committed = place.truth.committed(&name);
        for epoch in &there {
            let Some(committed) = committed.get(epoch) else {
                return Err(format!("epoch {epoch} of {name} was never committed"));
            };
            whole(&job, *epoch, committed, place.truth.is_damaged() || committed.frail)?;
        }
        if place.truth.is_damaged() {
            continue;
        }
        let mut must_be = place.truth.must_be(&name).into_iter();
        if let Some((epoch, lost)) = must_be.find(|(epoch, _)| !there.contains(epoch)) {
            return Err(format!("epoch {epoch} of {name} is lost: {lost:?}; there are {there:?}"));
        }
        if committed.values().any(|committed| committed.frail) {
            continue;
        }
        let report = job.verify(None).map_err(|error| format!("verify: {error}"))?;
        if let Some(finding) = report.findings.first() {
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

/// The same rank by rank, which changes nothing of the pool.
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
