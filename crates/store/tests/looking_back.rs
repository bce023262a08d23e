//! Looking back over many checkpoints: what they share is looked at once, and no damage is missed.

mod common;
mod stepped;

use common::{Program, State, changed, noise, pool_of};
use outlive_pool::Pool;
use outlive_store::Select;
use outlive_store::gc::{GcOptions, UsageOf, collect, usage};
use outlive_target::{FaultWorld, ShardName};
use outlive_types::{BLOCK_BYTES, Epoch, ErrorKind, JobName, PAGE_BYTES};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stepped::{Steps, World};

fn job_name(job: &str) -> JobName {
    JobName::new(job).unwrap()
}

/// How many reads of shards it takes to do something.
fn reads(world: &World, work: impl Fn(&Pool)) -> u64 {
    let (steps, count) = (Steps::default(), Arc::new(AtomicU64::new(0)));
    let counted = count.clone();
    steps.hook(move |_, what| {
        counted.fetch_add(u64::from(what == "read shard"), Ordering::Relaxed);
    });
    work(&world.stepped(&steps));
    count.load(Ordering::Relaxed)
}

#[test]
fn a_long_line_costs_what_has_changed() {
    const EPOCHS: usize = 60;
    const BLOCKS: usize = 32;
    let world = World::new();
    let program = Program::start(&world.pool(), "long");
    // Each block has a page, so each checkpoint's tree has as many leaves.
    let mut state = State::from([("a".to_owned(), vec![0; BLOCKS * BLOCK_BYTES])]);
    for block in 0..BLOCKS {
        state = changed(state, block * BLOCK_BYTES / PAGE_BYTES, block as u64);
    }
    for number in 0..EPOCHS {
        let page = number % BLOCKS * BLOCK_BYTES / PAGE_BYTES + 1 + number;
        state = changed(state, page, 1000 + number as u64);
        program.save(&state).unwrap();
    }
    let whole = |pool: &Pool| {
        let report = Program::start(pool, "long").job.verify(None).unwrap();
        assert_eq!((report.checkpoints, report.whole), (EPOCHS as u64, EPOCHS as u64));
        assert!(report.findings.is_empty(), "{report:?}");
    };
    let verifying = reads(&world, whole);
    assert!(verifying < 10 * EPOCHS as u64, "{verifying} reads to verify");
    let using = reads(&world, |pool| {
        let used = usage(pool, &UsageOf::Jobs).unwrap();
        assert!(used.unknown.is_empty() && used.rows.len() == 1);
    });
    assert!(using < 10 * EPOCHS as u64, "{using} reads to tell the usage");
}

/// Three lines: one that goes on, one that begins anew with much of the same, and one that goes back.
fn past(pool: &Pool) -> BTreeSet<Epoch> {
    let mut state = State::from([
        ("a".to_owned(), noise(1, 100_000)),
        ("b".to_owned(), noise(2, 70_000)),
        ("small".to_owned(), vec![9; 50]),
    ]);
    let mut epochs = BTreeSet::new();
    let program = Program::start(pool, "job");
    for number in 0..4 {
        state = changed(state, 3 * number as usize, number);
        epochs.insert(program.save(&state).unwrap().epoch);
    }
    drop(program);
    let program = Program::start(pool, "job");
    epochs.insert(program.save(&changed(state.clone(), 17, 99)).unwrap().epoch);
    drop(program);
    let program = Program::start(pool, "job");
    let (_, back) = program.restore(Select::Epoch(2)).unwrap().unwrap();
    for number in 0..2 {
        let next = changed(back.clone(), 20, 500 + number);
        epochs.insert(program.save(&next).unwrap().epoch);
    }
    epochs
}

/// The checkpoints that a verification names, whatever page is damaged, are those that do not restore.
#[test]
fn damage_is_told_of_those_who_need_what_is_damaged() {
    for after_a_prune in [false, true] {
        let (mut some, mut all) = (0, 0);
        for number in 0.. {
            let world = FaultWorld::new();
            let pool = pool_of(world.target(), world.log());
            let epochs = prepare(&pool, after_a_prune);
            // Packs have other names in each world, and a gc may pack them a little otherwise.
            let Some((shard, page)) = pages(&pool).get(number).copied() else { break };
            world.corrupt(shard, page * PAGE_BYTES as u64 + 40, 0x10);
            let program = Program::start(&pool, "job");
            let hurt: BTreeSet<Epoch> = epochs
                .iter()
                .copied()
                .filter(|epoch| match program.restore(Select::Epoch(*epoch)) {
                    Ok(restored) => restored.is_none(),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
                        true
                    }
                })
                .collect();
            let report = program.job.verify(None).unwrap();
            let told: BTreeSet<Epoch> = report.findings.iter().filter_map(|f| f.epoch).collect();
            assert_eq!(told, hurt, "page {page} of {shard}, pruned: {after_a_prune}");
            assert_eq!(report.whole as usize, epochs.len() - hurt.len());
            some += usize::from(!hurt.is_empty() && hurt.len() < epochs.len());
            all += usize::from(hurt.len() == epochs.len());
        }
        assert!(some > 5 && all > 0, "{some} pages hurt some, {all} all of them");
    }
}

fn prepare(pool: &Pool, after_a_prune: bool) -> BTreeSet<Epoch> {
    let mut epochs = past(pool);
    if after_a_prune {
        let drop = [(job_name("job"), [1, 3].into())].into();
        collect(pool, &GcOptions { drop, ..GcOptions::default() }).unwrap();
        epochs.retain(|epoch| ![1, 3].contains(epoch));
        let program = Program::start(pool, "job");
        let (_, back) = program.restore(Select::Epoch(4)).unwrap().unwrap();
        epochs.insert(program.save(&changed(back, 22, 777)).unwrap().epoch);
    }
    epochs
}

fn pages(pool: &Pool) -> Vec<(ShardName, u64)> {
    let mut shards = pool.target().list().unwrap();
    // Sessions are named at random, so packs are told apart by their lengths and numbers.
    shards.sort_by_key(|shard| {
        let number = u32::from_be_bytes(shard.pack.0[12..].try_into().unwrap());
        (pool.target().length(*shard).unwrap(), number)
    });
    let pages = |shard: &ShardName| pool.target().length(*shard).unwrap() / PAGE_BYTES as u64;
    shards.iter().flat_map(|shard| (0..pages(shard)).map(|page| (*shard, page))).collect()
}
