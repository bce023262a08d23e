//! Chains of checkpoints: each names the one from which its program continued, and retention keeps
//! the newest of each chain.

use crate::common;

use common::{Program, State, memory_pool, noise, pool_of};
use outlive_backend::FaultWorld;
use outlive_pool::Pool;
use outlive_store::copy::{CopyOptions, copy};
use outlive_store::gc::{GcOptions, collect};
use outlive_store::retention::Rules;
use outlive_store::{Job, Select};
use outlive_types::{Epoch, ErrorKind, JobName};

fn state(seed: u64) -> State {
    State::from([("a".to_owned(), noise(seed, 200_000))])
}

fn open(pool: &Pool) -> Job {
    Job::open(pool, "job", Default::default()).unwrap()
}

/// Returns the epochs, each with the one from which its program continued.
fn predecessors(pool: &Pool) -> Vec<(Epoch, Epoch)> {
    let epochs = open(pool).epochs().unwrap();
    epochs.iter().map(|info| (info.epoch, info.manifest.predecessor)).collect()
}

/// Returns the epochs that a prune keeps if it keeps the `last` newest.
fn kept(pool: &Pool, last: u64) -> Vec<Epoch> {
    let rules = Rules { last: Some(last), ..Rules::default() };
    let plan = open(pool).retention(&rules).unwrap();
    let mut kept: Vec<Epoch> =
        plan.decisions.iter().filter(|it| it.kept.is_some()).map(|it| it.epoch).collect();
    kept.reverse();
    kept
}

#[test]
fn a_program_that_restores_goes_on_with_its_line() {
    let pool = memory_pool();
    for run in 0..4 {
        let program = Program::start(&pool, "job");
        // Restored as a whole or in part, or only read: the program continues from there.
        match run {
            1 => drop(program.restore(Select::Newest).unwrap().unwrap()),
            2 => drop(program.job.restore_alone(Select::Newest, &mut |_, _| Ok(())).unwrap()),
            _ => drop(program.restore(Select::Newest).unwrap()),
        }
        program.save(&state(run)).unwrap();
        program.save(&state(run)).unwrap();
        assert_eq!(kept(&pool, 1), [2 * run + 2]);
    }
    assert_eq!(predecessors(&pool), (1..=8).map(|epoch| (epoch, epoch - 1)).collect::<Vec<_>>());
}

#[test]
fn a_forgotten_restore_begins_a_line() {
    let pool = memory_pool();
    let program = Program::start(&pool, "job");
    (0..3).for_each(|step| drop(program.save(&state(step)).unwrap()));
    drop(program);
    let program = Program::start(&pool, "job");
    (0..3).for_each(|step| drop(program.save(&state(10 + step)).unwrap()));
    let all = [(1, 0), (2, 1), (3, 2), (4, 0), (5, 4), (6, 5)];
    assert_eq!(predecessors(&pool), all);
    assert_eq!(kept(&pool, 2), [3, 4, 5, 6]);
    // A look at an older checkpoint begins no chain.
    assert_eq!(program.restore(Select::Epoch(5)).unwrap().unwrap().1, state(11));
    program.save(&state(20)).unwrap();
    assert_eq!(predecessors(&pool)[6], (7, 6));
    // A program that goes back begins one.
    let other = Program::start(&pool, "job");
    other.restore(Select::Epoch(5)).unwrap();
    other.save(&state(21)).unwrap();
    assert_eq!(predecessors(&pool)[7], (8, 5));
    assert_eq!(kept(&pool, 1), [3, 4, 7, 8]);
    // A program that is overtaken and restores again continues from the restored checkpoint.
    let late = Program::start(&pool, "job");
    late.restore(Select::Newest).unwrap();
    other.save(&state(22)).unwrap();
    assert_eq!(late.save(&state(23)).unwrap_err().kind(), ErrorKind::Fenced);
    late.restore(Select::Newest).unwrap();
    late.save(&state(23)).unwrap();
    assert_eq!(predecessors(&pool)[9], (10, 9));
    assert_eq!(kept(&pool, 1), [3, 4, 7, 8, 10]);
    // A program that takes over continues from its own last checkpoint.
    let late = Program::start(&pool, "job");
    late.restore(Select::Epoch(9)).unwrap();
    late.job.take_over();
    late.save(&state(24)).unwrap();
    assert_eq!(kept(&pool, 1), [3, 4, 7, 8, 10, 11]);
    // Copies have the same chains.
    let there = memory_pool();
    let name = JobName::new("job").unwrap();
    copy(&pool, &there, &CopyOptions { jobs: vec![name], ..CopyOptions::default() }).unwrap();
    assert_eq!(predecessors(&there), predecessors(&pool));
    // A drop by name also drops the end of a chain.
    let rules = Rules { last: Some(1), drop: [3].into(), ..Rules::default() };
    let dropped = open(&pool).retention(&rules).unwrap().dropped();
    assert_eq!(dropped, [1, 3, 5, 6, 9].into(), "2 is the newest of its line now");
}

/// Rules that are applied behind each commit keep the end of an earlier chain as well.
#[test]
fn an_earlier_line_is_kept_by_every_prune() {
    let pool = memory_pool();
    let name = JobName::new("job").unwrap();
    for run in 0..2 {
        let program = Program::start(&pool, "job");
        for step in 0..6 {
            program.save(&state(10 * run + step)).unwrap();
            let rules = Rules { last: Some(1), ..Rules::default() };
            let drop = [(name.clone(), program.job.retention(&rules).unwrap().dropped())].into();
            collect(&pool, &GcOptions { drop, ..GcOptions::default() }).unwrap();
        }
    }
    let there: Vec<Epoch> = predecessors(&pool).iter().map(|(epoch, _)| *epoch).collect();
    assert_eq!(there, [6, 7, 12]);
    let found = Program::start(&pool, "job").restore(Select::Epoch(6)).unwrap().unwrap();
    assert!(found.1 == state(5));
}

/// At each step of a save, the target or the log fails; so the save may be in the log all the same.
#[test]
fn a_save_that_failed_begins_no_line() {
    let mut in_the_log = 0;
    for at in 0.. {
        let world = FaultWorld::new();
        let pool = pool_of(world.target(), world.log());
        let program = Program::start(&pool, "job");
        program.save(&state(1)).unwrap();
        let failing = world.ops() + at;
        world.fail_at(failing, ErrorKind::Retry);
        let failed = program.save(&state(2)).is_err();
        if world.ops() <= failing {
            break;
        }
        program.save(&state(3)).unwrap();
        let all = predecessors(&pool);
        let &(newest, predecessor) = all.last().unwrap();
        assert_eq!(predecessor + 1, newest, "failure {at}: {all:?}");
        assert_eq!(kept(&pool, 1), [newest], "failure {at}: {all:?}");
        in_the_log += u64::from(failed && newest == 3);
    }
    assert!(in_the_log > 0, "some have failed behind their append");
}
