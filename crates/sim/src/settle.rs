//! The operator's work after the end of all programs: replaces lost targets, scrubs, and repairs.
//! Then the pool must match its table, and survive what it promises.

use crate::blows::disk_of;
use crate::disks::some_of;
use crate::table::seat;
use crate::whole::checkpoints;
use crate::world::PoolWorld;
use outlive_pool::{Pool, RepairOptions, TargetConfig, TargetState, Tier};
use outlive_store::gc::{GcOptions, GcReport, collect};
use outlive_store::scrub::{ScrubOptions, ScrubReport, scrub};
use outlive_store::{Sample, Uses, named_packs, recreate_lost, repair, vacate};
use outlive_types::{Error, ErrorKind, PackId, SeededRng};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

/// Scrubs and repairs after which no work may be left.
const ROUNDS_MAX: u32 = 4;
/// Gcs after which no work may be left.
const QUIET_GCS_MAX: u32 = 3;
/// Number of sets of targets that are taken away.
const SETS: u64 = 4;

/// Replaces targets whose locations lost their marker, and ends what prevents that.
pub(crate) fn replace_lost(pool: &Pool, pool_world: &PoolWorld) -> Result<(), String> {
    if !pool_world.space.operated {
        return Ok(());
    }
    let mut free = pool_world.space.used()..pool_world.space.targets_max();
    if pool_world.space.seats {
        fill_seats(pool, pool_world, &mut free)?;
    }
    for row in pool_world.rows() {
        let (Some(on), Some(id)) = (disk_of(&row), row.id) else { continue };
        if pool_world.markers.lock().get(&on) == Some(&id) {
            continue;
        }
        let new = free.next().ok_or("there is no free pool_world left for a lost target")?;
        let replaced = pool.replace_target(id, &new.to_string(), true, None, &Uses);
        match replaced {
            // A killed save may have left shards on another lost target, which is replaced next.
            Err(error) if error.kind() != ErrorKind::Retry => {
                return Err(format!("target {id}, which is lost, is not replaced: {error}"));
            }
            Err(_) => {}
            Ok(_) => pool_world.dice.came_about("replace what is lost"),
        }
    }
    Ok(())
}

/// Longest wait for a lock that others hold.
pub(crate) const LOCK_WAIT: Duration = Duration::from_secs(10);

/// Gives up the hosts that have lost their disk, and has other hosts take all vacant seats.
fn fill_seats(pool: &Pool, pool_world: &PoolWorld, free: &mut Range<usize>) -> Result<(), String> {
    let is_lost = |row: &TargetConfig| {
        let disk = disk_of(row).filter(|_| row.is_seat())?;
        (pool_world.markers.lock().get(&disk) != row.id.as_ref()).then_some(row.id?)
    };
    // A node that was killed while it left starts again.
    for row in pool_world.rows().iter().filter(|row| row.is_seat() && !row.state.counts()) {
        let taken = pool.take_seat(&row.location, row.host.as_deref().unwrap_or("host"));
        taken.map_err(|error| format!("a node does not come back to its seat: {error}"))?;
    }
    let give_up = || {
        commanded(pool, pool_world, || {
            recreate_lost(pool, LOCK_WAIT)?;
            let lost: BTreeSet<u32> = pool_world.rows().iter().filter_map(is_lost).collect();
            vacate(pool, &lost)
        })
    };
    let is_vacant = || pool_world.rows().iter().any(TargetConfig::is_vacant);
    loop {
        match give_up() {
            // The losses can be recorded once others have taken seats.
            Err(error) if error.kind() == ErrorKind::Retry && is_vacant() => {}
            Err(error) => return Err(format!("the lost hosts are not given up: {error}")),
            Ok(_) if !is_vacant() => return Ok(()),
            Ok(_) => {}
        }
        let new = free.next().ok_or("there is no free disk left for a vacant seat")?;
        let taken = pool.take_seat(&seat(new), &format!("host {new}"));
        taken.map_err(|error| format!("a vacant seat is not taken: {error}"))?;
        pool_world.dice.came_about("take a vacant seat");
    }
}

/// Repairs, which must empty the leaving fast targets: also of packs that no checkpoint names, as
/// no gc has run yet. A slow target may have to wait for a scrub.
pub(crate) fn empty_leaving_targets(pool: &Pool, pool_world: &PoolWorld) -> Result<(), String> {
    if !pool_world.space.operated {
        return Ok(());
    }
    let quiet = || {
        let report = commanded(pool, pool_world, || repair(pool, RepairOptions::default()));
        report.map_err(|error| format!("a quiet repair before the gcs: {error}"))
    };
    let mut report = quiet()?;
    let is_fast = |id: &u32| {
        pool_world.rows().iter().any(|row| row.id == Some(*id) && row.tier == Tier::Fast)
    };
    // Too little is left of packs that no checkpoint needs: the report asks for a gc, and then this
    // command again.
    if report.left.keys().any(is_fast) && report.unneeded > 0 {
        let fence = pool.jobs().map_err(|error| error.to_string())?;
        let collected = collect(pool, &GcOptions { fence, ..GcOptions::default() });
        collected.map_err(|error| format!("the gc that a repair asks for: {error}"))?;
        report = quiet()?;
    }
    match report.left.keys().any(is_fast) {
        false => Ok(()),
        true => Err(format!("a quiet repair leaves shards where none are to be: {report:?}")),
    }
}

/// Scrubs and repairs until no work is left, and then checks the pool.
pub(crate) fn settle(pool: &Pool, pool_world: &PoolWorld, rng: &SeededRng) -> Result<(), String> {
    let scrubs_first = rng.below(2) == 0;
    let mut rounds = 0;
    loop {
        let mut is_quiet = true;
        if scrubs_first || rounds > 0 {
            is_quiet &= scrubbed(pool, pool_world)?;
        }
        let report = commanded(pool, pool_world, || repair(pool, RepairOptions::default()));
        let report = report.map_err(|error| format!("a quiet repair: {error}"))?;
        let is_idle = report.shards + report.moved + report.surplus == 0;
        is_quiet &= report.is_whole() && is_idle && report.removed.is_empty();
        if is_quiet && rounds > 0 {
            break;
        }
        rounds += 1;
        if rounds > ROUNDS_MAX {
            return Err(format!("{rounds} scrubs and repairs leave something to do: {report:?}"));
        }
    }
    laid_out(pool, pool_world)?;
    checkpoints(pool, pool_world, true)?;
    survives(pool_world, rng)
}

/// Runs a command, and follows the advice of its message. A killed program may have written a
/// record to few log replicas; it comes to light at the next append. It may be a claim, which the
/// operator ends.
fn commanded<T>(
    pool: &Pool,
    pool_world: &PoolWorld,
    command: impl Fn() -> Result<T, Error>,
) -> Result<T, Error> {
    let may_be_claimed = pool_world.dice.has_failed() || pool_world.dice.has_killed();
    match command() {
        Err(error) if error.kind() == ErrorKind::Retry && may_be_claimed => {
            pool.release_targets()?;
            command()
        }
        done => done,
    }
}

/// Whether a scrub finds nothing. It must repair what it finds.
fn scrubbed(pool: &Pool, pool_world: &PoolWorld) -> Result<bool, String> {
    let options = ScrubOptions { sample: Sample::ALL, bytes_per_s: None, dry_run: false };
    let command = || {
        let report = scrub(pool, &options)?;
        match report.blocked.clone().filter(|why| why.kind() == ErrorKind::Retry) {
            Some(claimed) => Err(claimed),
            None => Ok(report),
        }
    };
    let report = commanded(pool, pool_world, command);
    let mut report = report.map_err(|error| format!("a quiet scrub: {error}"))?;
    // The whole data of packs with damaged headers is in other packs now, and a gc deletes the old
    // ones.
    if pool_world.oracle.has_scratches() && !report.damaged.is_empty() {
        report.damaged.clear();
        collect_all(pool)?;
        report.heal.condemned.clear();
        return is_mended(&report).map(|()| false);
    }
    is_mended(&report)?;
    Ok(report.degraded.is_empty() && report.copies.is_empty())
}

fn is_mended(report: &ScrubReport) -> Result<(), String> {
    match report.is_whole() && report.damaged.is_empty() {
        true => Ok(()),
        false => Err(format!("a quiet scrub does not mend all: {report:?}")),
    }
}

/// Checks that each shard of a pack is on one target, and that these fail independently.
fn laid_out(pool: &Pool, pool_world: &PoolWorld) -> Result<(), String> {
    let rows = match pool_world.space.has_table() {
        true => pool_world.rows(),
        false => Vec::new(),
    };
    for row in &rows {
        let is_left = matches!(row.state, TargetState::Closed | TargetState::Lost) || row.remove;
        if is_left {
            return Err(format!("a row is left behind: {row:?}"));
        }
    }
    let place_row = |on: usize| rows.iter().find(|row| disk_of(row) == Some(on));
    let named = named_packs(pool).map_err(|error| error.to_string())?;
    let named = named.packs;
    let mut fast: BTreeMap<PackId, BTreeMap<u8, Vec<(usize, String)>>> = BTreeMap::new();
    let mut on_slow: BTreeMap<PackId, BTreeSet<u8>> = BTreeMap::new();
    for (on, shard, _) in pool_world.world.stored() {
        let domain = match (pool_world.space.has_table(), place_row(on)) {
            (false, _) => format!("disk {on}"),
            // The target is no longer part of the pool.
            (true, None) => continue,
            (true, Some(row)) if row.tier == Tier::Slow => {
                on_slow.entry(shard.pack).or_default().insert(shard.shard);
                continue;
            }
            (true, Some(row)) => {
                if row.state != TargetState::Active {
                    return Err(format!("{shard} is still on {row:?}"));
                }
                row.host.clone().unwrap_or(format!("disk {on}"))
            }
        };
        let shards = fast.entry(shard.pack).or_default();
        shards.entry(shard.shard).or_default().push((on, domain));
    }
    let geometry = pool_world.space.redundancy.geometry(64 << 10);
    let count = geometry.k + geometry.m;
    for pack in named {
        let none = BTreeMap::new();
        let shards = fast.get(&pack).unwrap_or(&none);
        // The pack may be trimmed. The slow tier has enough of its shards to read it.
        let slow = on_slow.get(&pack).map_or(0, BTreeSet::len);
        if shards.is_empty() && pool_world.space.keeps > 0 && slow >= usize::from(geometry.k) {
            continue;
        }
        let mut domains: Vec<&String> = Vec::new();
        for number in 0..count {
            match shards.get(&number).map(|on| &on[..]) {
                Some([(_, domain)]) => domains.push(domain),
                other => return Err(format!("shard {number} of {pack} is on {other:?}")),
            }
        }
        domains.sort_unstable();
        domains.dedup();
        if domains.len() < usize::from(count) {
            return Err(format!("shards of {pack} are together: {shards:?}"));
        }
    }
    Ok(())
}

/// Checks that any set of targets may be lost, as many as the pool's rule says.
fn survives(pool_world: &PoolWorld, rng: &SeededRng) -> Result<(), String> {
    let (domains, count) = (pool_world.domains(), pool_world.space.survives());
    if count == 0 {
        return Ok(());
    }
    for _ in 0..SETS {
        let mut lost = some_of(&domains, count, rng);
        // No data is on the slow tier only, so the fast one must suffice.
        if pool_world.space.keeps == 0 {
            lost.extend(pool_world.slow_targets());
        }
        for job in pool_world.oracle.jobs() {
            for (epoch, _) in pool_world.oracle.must_be(&job) {
                pool_world.restored_without(&lost, &job, epoch, rng).map_err(|what| {
                    format!("{count} targets may be lost of a pool that is whole, and {lost:?} were: {what}")
                })?;
            }
        }
    }
    Ok(())
}

/// Collects until no work is left. A rewrite makes the segments of earlier gcs superfluous: the
/// next gc deletes these.
pub(crate) fn collect_all(pool: &Pool) -> Result<(), String> {
    for _ in 0..=QUIET_GCS_MAX {
        let report = collect(pool, &GcOptions::default());
        if is_idle(&report.map_err(|error| format!("a quiet gc: {error}"))?) {
            return Ok(());
        }
    }
    Err(format!("{} quiet gcs in a row all found something to do", QUIET_GCS_MAX + 1))
}

/// Whether there is no garbage any more.
fn is_idle(report: &GcReport) -> bool {
    let plan = &report.plan;
    let is_idle = plan.dead.is_empty() && plan.rewritten.is_empty() && plan.leftovers == 0;
    is_idle && report.deleted == 0 && report.held == 0
}
