//! `usage` compared with the bytes that a gc really frees.

use crate::common;

use common::{Program, State, changed, memory_pool, noise, pool_of, tuned};
use outlive_backend::{FaultWorld, MemoryTarget};
use outlive_log::MemoryLog;
use outlive_pool::{Environment, Pool};
use outlive_store::gc::{GcOptions, GcPlan, GcReport, Thoroughness, UsageOf, collect, usage};
use outlive_types::{Epoch, ErrorKind, JobName};
use std::sync::Arc;

fn name(job: &str) -> JobName {
    JobName::new(job).unwrap()
}

fn state(seed: u64) -> State {
    State::from([("a".to_owned(), noise(seed, 300_000)), ("b".to_owned(), vec![seed as u8; 50])])
}

/// Job `a` has two generations of two checkpoints each; `b` shares the first.
fn past(pool: &Pool) {
    let program = Program::start(pool, "a");
    for state in [state(1), changed(state(1), 3, 7), state(2), changed(state(2), 5, 8)] {
        program.save(&state).unwrap();
    }
    drop(program);
    Program::start(pool, "b").save(&changed(state(1), 9, 9)).unwrap();
}

/// A pool whose containers have no gaps before a chunk that does not fit.
fn roomy_pool() -> Pool {
    let mut config = common::small_config();
    (config.format.container_bytes, config.format.pack_bytes) = (1 << 20, 4 << 20);
    config.tuning.staging_bytes = 8 << 20;
    let (target, log) = (Arc::new(MemoryTarget::new()), Arc::new(MemoryLog::new()));
    Pool::new(config, target, log, Environment::system())
}

fn planned(pool: &Pool) -> GcPlan {
    collect(pool, &GcOptions { dry_run: true, ..GcOptions::default() }).unwrap().plan
}

fn live_bytes(pool: &Pool) -> u64 {
    planned(pool).live_bytes
}

fn drop_epochs(pool: &Pool, job: &str, epochs: &[Epoch]) -> GcReport {
    let drop = [(name(job), epochs.iter().copied().collect())].into();
    let thoroughness = Thoroughness { unused_max: 0.0, ..Thoroughness::default() };
    collect(pool, &GcOptions { drop, thoroughness, ..GcOptions::default() }).unwrap()
}

#[test]
fn a_deletion_frees_the_reported_space() {
    for epochs in [vec![1], vec![2], vec![3], vec![1, 2], vec![1, 2, 3], vec![1, 2, 3, 4]] {
        let pool = roomy_pool();
        past(&pool);
        let before = live_bytes(&pool);
        let chosen = epochs.iter().copied().collect();
        let said = usage(&pool, &UsageOf::Some(name("a"), chosen)).unwrap();
        assert_eq!(said.plan.live_bytes, before, "the same marking as a gc");
        assert_eq!(said.rows.len(), epochs.len());
        assert_eq!(said.together.epochs, epochs);
        let alone: u64 = said.rows.iter().map(|row| row.only_bytes).sum();
        assert!(said.together.only_bytes >= alone && said.together.needed_bytes <= before);
        let in_packs = planned(&pool).total_bytes;
        let report = drop_epochs(&pool, "a", &epochs);
        // The gc's writes count, in whole pages; segments are estimated, for the same packs.
        let fell = in_packs.saturating_sub(planned(&pool).total_bytes);
        let differ = report.plan.freed_bytes.abs_diff(fell);
        assert!(differ <= 4 * 4096, "{epochs:?}: {fell} freed, planned {}", report.plan);
        let without = said.without.unwrap().freed_bytes;
        assert!(without.abs_diff(fell) < 20_000, "{epochs:?}: {fell} freed, told {without}");
        // New segments replace old ones, which have a few entries here.
        let freed = before as i64 - live_bytes(&pool) as i64;
        let differ = (freed - said.together.only_bytes as i64).abs();
        assert!(differ < 12_000, "{epochs:?}: freed {freed}, said {:?}", said.together);
    }
}

#[test]
fn jobs_and_checkpoints_add_up() {
    for index_bytes_max in [64 << 20, 1] {
        // The second time in many parts.
        let pool = tuned(|tuning| tuning.index_bytes_max = index_bytes_max);
        past(&pool);
        let jobs = usage(&pool, &UsageOf::Jobs).unwrap();
        let [a, b] = &jobs.rows[..] else { panic!("{jobs:?}") };
        assert_eq!((a.epochs.len(), b.epochs.len()), (4, 1));
        assert_eq!(a.state_bytes, 4 * 300_050);
        assert_eq!(jobs.together.only_bytes, jobs.together.needed_bytes);
        assert_eq!(jobs.together.needed_bytes, jobs.plan.live_bytes);
        if index_bytes_max > 1 {
            assert!(b.only_bytes < 50_000, "the rest it shares: {b:?}");
        }
        let shared = a.needed_bytes - a.only_bytes;
        assert_eq!(shared, b.needed_bytes - b.only_bytes);
        assert_eq!(a.needed_bytes + b.only_bytes, jobs.plan.live_bytes);

        let checkpoints = usage(&pool, &UsageOf::Checkpoints(name("a"))).unwrap();
        assert_eq!(checkpoints.rows.len(), 4);
        let together = &checkpoints.together;
        assert_eq!((together.needed_bytes, together.only_bytes), (a.needed_bytes, a.only_bytes));
        for row in &checkpoints.rows {
            assert!(row.needed_bytes > 290_000 && row.only_bytes < 100_000, "{row:?}");
        }
    }
}

/// Small packs become one: each of them has a page that is not full, and so has the new one.
#[test]
fn padding_does_not_become_free() {
    let pool = roomy_pool();
    for job in ["a", "b", "c", "d"] {
        Program::start(&pool, job).save(&state(1)).unwrap();
        let before = planned(&pool).total_bytes;
        let report = drop_epochs(&pool, job, &[]);
        let after = planned(&pool).total_bytes;
        let fell = before.saturating_sub(after);
        let differ = report.plan.freed_bytes.abs_diff(fell);
        assert!(differ <= 4 * 4096, "{job}: {before} to {after}, planned {}", report.plan);
    }
}

#[test]
fn an_empty_pool_uses_nothing_and_missing_checkpoints_are_refused() {
    let pool = memory_pool();
    let empty = usage(&pool, &UsageOf::Jobs).unwrap();
    assert_eq!((empty.rows.len(), empty.plan.total_bytes), (0, 0));
    past(&pool);
    for of in [UsageOf::Checkpoints(name("nobody")), UsageOf::Some(name("a"), [9].into())] {
        assert_eq!(usage(&pool, &of).unwrap_err().kind(), ErrorKind::Invalid);
    }
}

#[test]
fn damage_is_told_and_the_rest_counted() {
    let world = FaultWorld::new();
    let pool = pool_of(world.target(), world.log());
    past(&pool);
    world.corrupt_record(&name("b"), 2, 100, 1);
    let told = usage(&pool, &UsageOf::Jobs).unwrap();
    assert_eq!(told.unknown.len(), 1, "{:?}", told.unknown);
    assert_eq!((&told.unknown[0].0, told.unknown[0].1), (&name("b"), 0));
    assert_eq!(told.rows[0].epochs.len(), 4);
    assert!(told.rows[0].needed_bytes > 600_000);
    // A pack of the other job is damaged: the needs of its checkpoints are unknown.
    let shard = world.target().list().unwrap()[0];
    for page in 1..world.target().length(shard).unwrap() / 4096 {
        world.corrupt(shard, page * 4096 + 50, 1);
    }
    let told = usage(&pool, &UsageOf::Checkpoints(name("a"))).unwrap();
    assert!(!told.unknown.is_empty());
}
