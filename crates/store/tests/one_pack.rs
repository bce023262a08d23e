//! One damaged pack of a pool without redundancy: it takes the checkpoints with it whose data it has, and no other.

mod common;
mod members;

use common::{Program, State, Warnings, noise, pool_of};
use members::{Group, job, restored, states};
use outlive_pool::Pool;
use outlive_store::Select;
use outlive_store::gc::{GcOptions, Thoroughness, collect};
use outlive_target::{FaultWorld, ShardName};
use outlive_types::{Epoch, JobName, PAGE_BYTES};

const KEPT: u64 = 3;

/// Drops all but the newest, as a job that keeps a few does behind each commit.
fn keep_newest(pool: &Pool, name: &str) {
    let epochs: Vec<Epoch> = job(pool, name).epochs().unwrap().iter().map(|it| it.epoch).collect();
    let drop = epochs[..epochs.len().saturating_sub(KEPT as usize)].iter().copied().collect();
    let drop = [(JobName::new(name).unwrap(), drop)].into();
    let thoroughness = Thoroughness { of_pages: false, ..Thoroughness::default() };
    collect(pool, &GcOptions { drop, thoroughness, ..GcOptions::default() }).unwrap();
}

/// For each pack how many checkpoints are lost with it.
fn lost_with_each(world: &FaultWorld, is_there: &dyn Fn(&Pool, Epoch) -> bool) -> Vec<usize> {
    let pool = pool_of(world.target(), world.log());
    let epochs: Vec<Epoch> =
        job(&pool, "job").epochs().unwrap().iter().map(|it| it.epoch).collect();
    assert_eq!(epochs.len() as u64, KEPT);
    assert!(epochs.iter().all(|epoch| is_there(&pool, *epoch)), "all are whole before");
    let whole = world.copy_of(0);
    let mut lost = Vec::new();
    for pack in pool.packs().unwrap() {
        world.truncate(ShardName { pack, shard: 0 }, 0);
        // What one handle has read before does not help.
        let pool = pool_of(world.target(), world.log());
        lost.push(epochs.iter().filter(|epoch| !is_there(&pool, **epoch)).count());
        world.roll_back(0, &whole);
    }
    lost
}

#[test]
fn a_program_that_changes_everything_loses_one_checkpoint() {
    let world = FaultWorld::new();
    let pool = pool_of(world.target(), world.log());
    let program = Program::start(&pool, "job");
    let state = |step: u64| {
        State::from([
            ("a".to_owned(), noise(step, 30 * PAGE_BYTES)),
            ("b".to_owned(), noise(1000 + step, 20 * PAGE_BYTES)),
            ("step".to_owned(), step.to_le_bytes().to_vec()),
        ])
    };
    for step in 1..=20 {
        program.save(&state(step)).unwrap();
        keep_newest(&pool, "job");
    }
    drop(program);
    let lost = lost_with_each(&world, &|pool, epoch| {
        let found = Program::start(pool, "job").restore(Select::Epoch(epoch));
        found.is_ok_and(|found| found.unwrap().1 == state(epoch))
    });
    assert!(lost.len() > KEPT as usize && lost.iter().all(|lost| *lost <= 1), "{lost:?}");
    assert_eq!(lost.iter().sum::<usize>() as u64, KEPT, "{lost:?}");
}

#[test]
fn so_does_a_group() {
    let world = FaultWorld::new();
    let pool = pool_of(world.target(), world.log());
    let mut group = Group::new(&pool, "job", 3);
    let states = |step: u64| {
        let mut states = states(3, step);
        for state in &mut states {
            state.remove("shared");
            state.insert("step".to_owned(), step.to_le_bytes().to_vec());
        }
        states
    };
    for step in 1..=12 {
        group.save(&states(step)).unwrap();
        keep_newest(&pool, "job");
    }
    group.close();
    let lost = lost_with_each(&world, &|pool, epoch| {
        (0..).zip(states(epoch)).all(|(rank, state)| {
            let found = job(pool, "job").image_of_rank(Select::Epoch(epoch), rank);
            found.is_ok_and(|found| {
                let (image, _) = found.unwrap();
                restored(&image) == state
            })
        })
    });
    assert!(lost.len() > 4 * KEPT as usize - 1 && lost.iter().all(|lost| *lost <= 1), "{lost:?}");
}

/// A restore finds what a damaged segment lists, the next save relies on nothing of it, and a check says what is damaged.
#[test]
fn a_lost_segment_is_found_in_directories() {
    let world = FaultWorld::new();
    let pool = pool_of(world.target(), world.log());
    let program = Program::start(&pool, "job");
    let state = |step: u64| State::from([("a".to_owned(), noise(step, 50 * PAGE_BYTES))]);
    for step in 1..=4 {
        program.save(&state(step)).unwrap();
    }
    keep_newest(&pool, "job");
    drop(program);
    let segments =
        job(&pool, "job").epochs().unwrap()[0].manifest.images.one().unwrap().segments.clone();
    let pack = segments.iter().map(|it| it.pack).next().unwrap();
    world.truncate(ShardName { pack, shard: 0 }, 0);
    let warnings = std::sync::Arc::new(Warnings::default());
    let env = outlive_pool::Environment {
        observer: warnings.clone(),
        ..outlive_pool::Environment::system()
    };
    let pool = Pool::new(common::small_config(), world.target(), world.log(), env);
    let program = Program::start(&pool, "job");
    assert!(program.restore(Select::Newest).unwrap().unwrap() == (4, state(4)));
    let said = warnings.0.lock().unwrap().join("\n");
    assert!(
        said.contains("directories of all packs tell where") && said.contains("scrub"),
        "{said}"
    );
    assert!(!program.job.verify(None).unwrap().findings.is_empty(), "a check says it");
    // A collector deletes nothing.
    assert!(collect(&pool, &GcOptions::default()).is_err());
    let stats = program.save(&state(4)).unwrap();
    assert!(stats.new_bytes > 50 * PAGE_BYTES as u64, "{stats:?}");
    world.truncate(ShardName { pack, shard: 0 }, 0);
    let found = Program::start(&pool, "job").restore(Select::Newest).unwrap().unwrap();
    assert!(found == (5, state(4)));
    assert_eq!(program.job.verify(Some(5)).unwrap().findings, vec![]);
}
