//! The checks after the end of all programs.

use crate::settle::{LOCK_WAIT, collect_all, empty_leaving_targets, replace_lost, settle};
use crate::whole::{checkpoints, whole};
use crate::world::PoolWorld;
use outlive_pool::Pool;
use outlive_store::gc::{GcOptions, collect};
use outlive_store::{Job, JobOptions, recreate_lost};
use outlive_types::{Epoch, ErrorKind, JobName, PackId, SeededRng};
use std::collections::{BTreeMap, BTreeSet};

/// Checks a pool. No program is running any more, and nothing disturbs the check.
pub fn check(pool_world: &PoolWorld, rng: &SeededRng) -> Result<(), String> {
    // Old handles no longer work, and data that was not durable at a power cut is gone.
    pool_world.world.reboot();
    while pool_world.world.let_happen(0).is_some() {}
    for target in 0..pool_world.space.targets_max() {
        pool_world.world.set_quick(target);
    }
    let (pool, read) = pool_world.quiet_pool(rng.next_u64());
    let at = |what: String| format!("at the end, pool {}: {what}", pool_world.name);
    // A claim of a program that was killed while it moved shards.
    pool.release_targets().map_err(|error| at(format!("a claim: {error}")))?;
    // Targets of a host whose memory was lost before any program went on.
    match recreate_lost(&pool, LOCK_WAIT) {
        // Losses of a seat may have to wait until others have taken seats.
        Err(error) if pool_world.space.seats && error.kind() == ErrorKind::Retry => {}
        recreated => drop(recreated.map_err(|error| at(format!("memory recreated: {error}")))?),
    }
    // More damage has come together than the pool can know of.
    if pool_world.space.operated && pool_world.oracle.is_damaged() {
        pool_world.dice.came_about("the end goes unchecked");
        pool_world
            .dice
            .turns()
            .remark(|| format!("pool {} is not checked at the end", pool_world.name));
        return Ok(());
    }
    checkpoints(&pool, pool_world, false).map_err(at)?;
    // Records or shards are damaged beyond redundancy.
    if pool_world.oracle.is_damaged() {
        pool_world.dice.came_about("only what is left is checked");
        return Ok(());
    }
    replace_lost(&pool, pool_world).map_err(at)?;
    empty_leaving_targets(&pool, pool_world).map_err(at)?;
    let jobs = pool.jobs().map_err(|error| at(error.to_string()))?;
    let fence: Vec<JobName> = jobs.clone();
    let lost = lost(&pool, pool_world).map_err(at)?;
    let options = GcOptions { fence, drop: lost, ..GcOptions::default() };
    collect(&pool, &options).map_err(|error| at(format!("a quiet gc: {error}")))?;
    collect_all(&pool).map_err(at)?;
    if pool_world.settles() {
        settle(&pool, pool_world, rng).map_err(at)?;
    }
    read.lock().clear();
    checkpoints(&pool, pool_world, pool_world.settles()).map_err(at)?;
    crate::emitter::check(&pool, pool_world).map_err(at)?;
    let read = read.lock().clone();
    garbage(&pool, &read).map_err(at)?;
    match pool_world.space.slow {
        // A checkpoint that is safe on the slow target can be restored without all others.
        true => {
            let safe = pool_world.safe_on_slow(rng.next_u64());
            pool_world.slow_alone(&safe, rng.next_u64()).map_err(at)
        }
        false => Ok(()),
    }
}

/// Returns the checkpoints that were lost with memory: they go first, as some of their packs may
/// remain.
fn lost(pool: &Pool, pool_world: &PoolWorld) -> Result<BTreeMap<JobName, BTreeSet<Epoch>>, String> {
    let mut lost: BTreeMap<JobName, BTreeSet<Epoch>> = BTreeMap::new();
    for name in pool_world.oracle.jobs() {
        let job = Job::open(pool, name.as_str(), JobOptions::default());
        let job = job.map_err(|error| error.to_string())?;
        let committed = pool_world.oracle.committed(&name);
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

/// Fails if there is a pack that no read of a checkpoint needed.
fn garbage(pool: &Pool, read: &BTreeSet<PackId>) -> Result<(), String> {
    let there = pool.packs().map_err(|error| error.to_string())?;
    let unused: Vec<String> =
        there.iter().filter(|pack| !read.contains(pack)).map(ToString::to_string).collect();
    let unfinished = pool.unfinished_packs().map_err(|error| error.to_string())?;
    match unused.is_empty() && unfinished.is_empty() {
        true => Ok(()),
        false => Err(format!("no checkpoint needs {unused:?}, unfinished are {unfinished:?}")),
    }
}
