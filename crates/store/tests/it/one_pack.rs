//! One damaged pack of a pool without redundancy: only the checkpoints that need its data are lost.

use crate::common;
use crate::members;

use common::{Program, State, Vectors, Warnings, noise, pool_of, small_config};
use members::{Group, job, restored, states};
use outlive_backend::{FaultWorld, ShardName};
use outlive_pool::{Environment, Pool};
use outlive_store::gc::{GcOptions, Thoroughness, collect};
use outlive_store::scrub::{ScrubOptions, scrub};
use outlive_store::{MemoryImage, Sample, Select};
use outlive_types::{Epoch, JobName, PAGE_BYTES};
use std::sync::Arc;

const KEPT: u64 = 3;

/// Drops all but the newest, as a job that keeps a few does behind each commit.
fn keep_newest(pool: &Pool, name: &str) {
    let epochs: Vec<Epoch> = job(pool, name).epochs().unwrap().iter().map(|it| it.epoch).collect();
    let drop = epochs[..epochs.len().saturating_sub(KEPT as usize)].iter().copied().collect();
    let drop = [(JobName::new(name).unwrap(), drop)].into();
    let thoroughness = Thoroughness { of_pages: false, ..Thoroughness::default() };
    collect(pool, &GcOptions { drop, thoroughness, ..GcOptions::default() }).unwrap();
}

/// Returns for each pack the number of checkpoints that are lost with it.
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
        // Data that another handle has read before does not help.
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

fn filled(step: u64) -> State {
    State::from([("a".to_owned(), noise(step, 50 * PAGE_BYTES))])
}

/// A job whose newest three checkpoints have their segments in one pack; and that pack.
fn with_segments_in_one_pack() -> (FaultWorld, ShardName) {
    let world = FaultWorld::new();
    let pool = pool_of(world.target(), world.log());
    let program = Program::start(&pool, "job");
    (1..=4).for_each(|step| drop(program.save(&filled(step)).unwrap()));
    keep_newest(&pool, "job");
    drop(program);
    let epochs = job(&pool, "job").epochs().unwrap();
    let pack = epochs[0].manifest.images.one().unwrap().segments[0].pack;
    (world, ShardName { pack, shard: 0 })
}

/// A restore finds the contents of a damaged segment, the next save relies on none of them, and a
/// check reports the damage.
#[test]
fn a_lost_segment_is_found_in_directories() {
    let (world, shard) = with_segments_in_one_pack();
    world.truncate(shard, 0);
    let observer = Arc::new(Warnings::default());
    let env = Environment { observer: observer.clone(), ..Environment::system() };
    let pool = Pool::new(small_config(), world.target(), world.log(), env);
    let program = Program::start(&pool, "job");
    assert!(program.restore(Select::Newest).unwrap().unwrap() == (4, filled(4)));
    let said = observer.0.lock().unwrap().join("\n");
    let tells = said.contains("directories of all packs tell where") && said.contains("scrub");
    assert!(tells, "{said}");
    assert!(!program.job.verify(None).unwrap().findings.is_empty(), "a check says it");
    // A collector deletes nothing.
    assert!(collect(&pool, &GcOptions::default()).is_err());
    let stats = program.save(&filled(4)).unwrap();
    assert!(stats.new_bytes > 50 * PAGE_BYTES as u64, "{stats:?}");
    assert_eq!(program.job.verify(Some(5)).unwrap().findings, vec![]);
    let found = Program::start(&pool, "job").restore(Select::Newest).unwrap().unwrap();
    assert!(found == (5, filled(4)));
    // A scrub recreates the segment.
    assert!(
        !scrub(&pool, &ScrubOptions { sample: Sample::ALL, bytes_per_s: None, dry_run: false })
            .unwrap()
            .is_whole()
    );
    assert_eq!(program.job.verify(None).unwrap().findings, vec![]);
    collect(&pool, &GcOptions::default()).unwrap();
}

/// A running program whose base names a damaged segment learns of it, whether it reads a part of it
/// itself or another program restores.
#[test]
fn a_running_program_hears_of_a_lost_segment() {
    for way in ["looks", "another restores", "looks when another has restored"] {
        let (world, shard) = with_segments_in_one_pack();
        let pool = pool_of(world.target(), world.log());
        let saver = Program::start(&pool, "job");
        saver.restore(Select::Newest).unwrap();
        world.truncate(shard, 0);
        if way.contains("another") {
            Program::start(&pool, "job").restore(Select::Newest).unwrap().unwrap();
        }
        if way.contains("looks") {
            let nothing = &mut |image: &MemoryImage| Ok((Vec::new(), Vectors::for_all(image)));
            saver.job.restore(Select::Newest, nothing, &mut |_, _| Ok(())).unwrap().unwrap();
        }
        saver.save(&filled(4)).unwrap();
        assert_eq!(saver.job.verify(Some(5)).unwrap().findings, vec![], "{way}");
    }
}
