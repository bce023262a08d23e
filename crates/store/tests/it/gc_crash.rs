//! Prune and gc beside failures: of the running gc, of the one before, and of the save that
//! rebases.

use crate::common;

use common::{Program, State, changed, noise, pool_of};
use outlive_backend::{CutMode, FaultWorld};
use outlive_pool::Pool;
use outlive_store::gc::{GcOptions, GcReport, Thoroughness, collect};
use outlive_store::{Job, Select};
use outlive_types::{Epoch, ErrorKind, JobName, Result};
use std::collections::BTreeMap;

fn pool(world: &FaultWorld) -> Pool {
    pool_of(world.target(), world.log())
}

/// Drops the given checkpoints of a job, and collects thoroughly.
fn prune(pool: &Pool, job: &str, drop: &[Epoch]) -> Result<GcReport> {
    let drop = match drop {
        [] => BTreeMap::new(),
        epochs => [(JobName::new(job)?, epochs.iter().copied().collect())].into(),
    };
    let thoroughness = Thoroughness { unused_max: 0.0, ..Thoroughness::default() };
    collect(pool, &GcOptions { drop, thoroughness, ..GcOptions::default() })
}

fn epochs(pool: &Pool, job: &str) -> Vec<Epoch> {
    let job = Job::open(pool, job, Default::default()).unwrap();
    job.epochs().unwrap().iter().map(|info| info.epoch).collect()
}

fn check(pool: &Pool, job: &str, states: &BTreeMap<Epoch, State>, what: &str) {
    assert_eq!(epochs(pool, job), states.keys().copied().collect::<Vec<_>>(), "{what}: {job}");
    let program = Program::start(pool, job);
    for (epoch, state) in states {
        let (_, restored) = program.restore(Select::Epoch(*epoch)).unwrap().unwrap();
        assert!(restored == *state, "{what}: epoch {epoch} of {job}");
    }
}

/// Three checkpoints of `job`; `other`, if it exists, shares the first. All sessions are closed.
fn past(world: &FaultWorld, shared: bool) -> (BTreeMap<Epoch, State>, State) {
    let pool = pool(world);
    let first = State::from([("a".to_owned(), noise(1, 150_000))]);
    let states = [first.clone(), changed(first.clone(), 3, 50), changed(first.clone(), 20, 51)];
    let program = Program::start(&pool, "job");
    for state in &states {
        program.save(state).unwrap();
    }
    drop(program);
    if shared {
        Program::start(&pool, "other").save(&first).unwrap();
    }
    ((1..).zip(states).collect(), first)
}

/// A gc fails anywhere, or its process is killed there. Another gc does its work, and then the
/// power fails: the second must not rely on data that the first had not made durable.
#[test]
fn a_gc_after_one_that_failed_anywhere_then_a_power_cut() {
    for shared in [true, false] {
        let calm = FaultWorld::new();
        past(&calm, shared);
        let first = calm.ops();
        prune(&pool(&calm), "job", &[1]).unwrap();
        let last = calm.ops();
        assert!(last > first + 12, "{first} to {last}");
        for number in first..last {
            for killed in [false, true] {
                let op = calm.op_name(number).unwrap();
                let what = format!("shared {shared}, killed {killed} at {number}: {op}");
                fail_collect_cut(shared, killed, number, &what);
            }
        }
    }
}

fn fail_collect_cut(shared: bool, killed: bool, number: u64, what: &str) {
    let world = FaultWorld::new();
    let (mut states, other) = past(&world, shared);
    let other: BTreeMap<Epoch, State> = [(1, other)].into_iter().filter(|_| shared).collect();
    match killed {
        // One operation fails, which ends the gc.
        false => world.fail_at(number, ErrorKind::Retry),
        // No operation from there on has any effect: the process is dead.
        true => world.fail_when(move |at, _| (at >= number).then_some(ErrorKind::Retry)),
    }
    let _ = prune(&pool(&world), "job", &[1]);
    world.fail_when(|_, _| None);
    let kept = epochs(&pool(&world), "job");
    assert!(kept == [1, 2, 3] || kept == [2, 3], "{what}: {kept:?}");
    // This gc has no reason to append to a log that has all reports.
    collect(&pool(&world), &GcOptions::default()).unwrap_or_else(|e| panic!("{what}: {e}"));
    world.cut_now(CutMode::Lost);
    let (target, log) = world.reboot();
    let pool = pool_of(target, log);
    // A drop whose record was never acknowledged may be undone, if nothing depends on it.
    let kept = epochs(&pool, "job");
    assert!(kept == [1, 2, 3] || kept == [2, 3], "{what}: {kept:?}");
    states.retain(|epoch, _| kept.contains(epoch));
    for _ in 0..2 {
        check(&pool, "job", &states, what);
        check(&pool, "other", &other, what);
        prune(&pool, "job", &[]).unwrap();
    }
    check(&pool, "job", &states, what);
    assert_eq!(pool.unfinished_packs().unwrap(), vec![], "{what}");
}

/// A save finds that chunks were moved and condemned, and its rebase fails at every operation. The
/// next save must not refer to chunks whose condemnation the failed one had not noted.
#[test]
fn a_save_that_fails_while_it_mends_leaves_nothing_forgotten() {
    let mut number = 0;
    loop {
        let world = FaultWorld::new();
        let (mut states, other) = past(&world, true);
        let saving = pool(&world);
        let program = Program::start(&saving, "job");
        program.restore(Select::Newest).unwrap();
        let fourth = changed(states[&3].clone(), 30, 52);
        states.insert(program.save(&fourth).unwrap().epoch, fourth.clone());
        // While the program pauses, a gc moves and condemns its past.
        prune(&pool(&world), "job", &[1, 2, 3]).unwrap();
        states.retain(|epoch, _| *epoch == 4);
        let from = world.ops();
        world.fail_when(move |at, _| (at == from + number).then_some(ErrorKind::Full));
        let fifth = changed(fourth.clone(), 31, 53);
        let what = format!("failure {number}");
        let failed = match program.save(&fifth) {
            Ok(stats) => {
                states.insert(stats.epoch, fifth.clone());
                false
            }
            Err(_) => true,
        };
        world.fail_when(|_, _| None);
        // An append without an acknowledgment counts as well.
        if failed && epochs(&saving, "job").contains(&5) {
            states.insert(5, fifth.clone());
        }
        prune(&pool(&world), "job", &[]).unwrap();
        let sixth = changed(fifth.clone(), 32, 54);
        let stats = program.save(&sixth).unwrap_or_else(|e| panic!("{what}: {e}"));
        states.insert(stats.epoch, sixth);
        check(&saving, "job", &states, &what);
        for _ in 0..2 {
            prune(&pool(&world), "job", &[]).unwrap();
            check(&saving, "job", &states, &what);
        }
        drop(program);
        prune(&pool(&world), "job", &[]).unwrap();
        check(&saving, "job", &states, &what);
        check(&saving, "other", &[(1, other)].into(), &what);
        if !failed {
            break;
        }
        number += 1;
    }
    assert!(number >= 8, "{number} operations of a save that mends");
}
