//! Flipped bits and truncation in every structure: a restore never returns a wrong byte, always
//! detects the damage, and takes the checkpoint before.

use crate::common;

use common::{Program, State, Vectors, noise, pool_of, stored};
use outlive_backend::{FaultWorld, ShardName};
use outlive_pool::Pool;
use outlive_store::gc::{GcOptions, collect};
use outlive_store::scrub::{ScrubOptions, scrub};
use outlive_store::{Job, JobOptions, MemoryImage, Sample, Select};
use outlive_types::{ErrorKind, JobName, PAGE_BYTES};

fn states() -> Vec<State> {
    let mut state =
        State::from([("big".to_owned(), noise(1, 100_000)), ("small".to_owned(), vec![1, 2, 3])]);
    let mut states = vec![state.clone()];
    for step in 2..4u8 {
        state.get_mut("small").unwrap()[0] = step;
        let change = noise(u64::from(step), PAGE_BYTES);
        let at = usize::from(step) * 3 * PAGE_BYTES;
        state.get_mut("big").unwrap()[at..][..PAGE_BYTES].copy_from_slice(&change);
        states.push(state.clone());
    }
    states
}

fn saved(states: &[State]) -> FaultWorld {
    let world = FaultWorld::new();
    let pool = pool_of(world.target(), world.log());
    let program = Program::start(&pool, "job");
    for state in states {
        program.save(state).unwrap();
    }
    world
}

fn pool(world: &FaultWorld) -> Pool {
    pool_of(world.target(), world.log())
}

/// Returns the epoch that a restore takes in spite of the damage, 0 for none. Panics on a wrong
/// byte.
fn restored_epoch(world: &FaultWorld, states: &[State], what: &str) -> usize {
    match Program::start(&pool(world), "job").restore(Select::Newest) {
        Ok(Some((epoch, restored))) => {
            assert!(restored == states[epoch as usize - 1], "{what}: wrong bytes handed back");
            epoch as usize
        }
        Ok(None) => panic!("{what}: a restore that finds nothing must say that there was damage"),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Damaged, "{what}: {error}");
            0
        }
    }
}

fn shards(world: &FaultWorld) -> Vec<(ShardName, u64)> {
    let target = world.target();
    let names = target.list().unwrap();
    names.into_iter().map(|name| (name, target.length(name).unwrap())).collect()
}

#[test]
fn every_flip_in_a_shard_is_detected() {
    let states = states();
    let world = saved(&states);
    let pool = pool(&world);
    let mut taken = [0; 4];
    for (shard, length) in shards(&world) {
        let on_target = stored(&pool, shard);
        // Every byte of the tail, where each has a meaning of its own; elsewhere a sample.
        let tail = length - PAGE_BYTES as u64;
        let offsets = (0..4096).step_by(5).chain((4096..tail).step_by(41)).chain(tail..length);
        for offset in offsets {
            let what = format!("shard {shard} byte {offset}");
            world.corrupt(shard, offset, 1 << (offset % 8));
            let error = pool.verify_shard(on_target).expect_err(&what);
            assert_eq!(error.kind(), ErrorKind::Damaged, "{what}: {error}");
            taken[restored_epoch(&world, &states, &what)] += 1;
            world.corrupt(shard, offset, 1 << (offset % 8));
        }
        pool.verify_shard(on_target).unwrap();
    }
    // The damage reached each checkpoint, and a restore has stepped back from each.
    assert!(taken.iter().all(|count| *count > 0), "{taken:?}");
}

/// This holds for the program's own chunks that it remembers, too.
#[test]
fn a_save_behind_damage_relies_on_nothing_that_was_found_damaged() {
    let states = states();
    let world = FaultWorld::new();
    let program = Program::start(&pool(&world), "job");
    for state in &states {
        program.save(state).unwrap();
    }
    // Damages every data page of the newest pack.
    let (newest, length) = shards(&world).pop().unwrap();
    for offset in (4096..length - 4096).step_by(4096) {
        world.corrupt(newest, offset + 1, 1);
    }
    // A partial restore leaves the old base in place.
    let mut first = |checkpoint: &_| Ok((vec![0], Vectors::for_all(checkpoint)));
    let restored = program.job.restore(Select::Newest, &mut first, &mut |_, _| Ok(()));
    assert_eq!(restored.unwrap().unwrap().epoch, 2);
    program.save(&states[2]).unwrap();
    assert_eq!(restored_epoch(&world, &[&states[..], &states[2..]].concat(), "saved again"), 4);
    let job = Job::open(&pool(&world), "job", JobOptions::default()).unwrap();
    let suspect = |epoch: usize| job.epochs().unwrap()[epoch - 1].manifest.remarks.suspect;
    assert_eq!([1, 2, 3, 4].map(suspect), [false, false, true, false]);
}

/// A program meets damage as it reads a part of its checkpoints, and goes on from memory. It relies
/// on nothing that it stored before.
#[test]
fn a_look_that_meets_damage_has_everything_stored_anew() {
    let states = states();
    let mut met = 0;
    for page in 1.. {
        let world = FaultWorld::new();
        let pool = pool(&world);
        let program = Program::start(&pool, "job");
        program.save(&states[0]).unwrap();
        let before = shards(&world);
        program.save(&states[1]).unwrap();
        let (shard, length) = *shards(&world).iter().find(|it| !before.contains(it)).unwrap();
        let at = page * PAGE_BYTES as u64 + 40;
        if at >= length {
            break;
        }
        world.corrupt(shard, at, 1);
        let big = &mut |image: &MemoryImage| {
            let at = image.streams().iter().position(|stream| stream.name == "big").unwrap();
            Ok((vec![at], Vectors::for_all(image)))
        };
        // The mark cannot be written either, so the next save does not learn of it from the log.
        world.fail_when(|_, what| what.starts_with("append").then_some(ErrorKind::Retry));
        let looked = program.job.restore(Select::Newest, big, &mut |_, _| Ok(())).unwrap().unwrap();
        world.fail_when(|_, _| None);
        if looked.epoch == 2 {
            continue;
        }
        met += 1;
        let now = states[2].clone();
        program.save(&now).unwrap();
        let again = Program::start(&pool, "job").restore(Select::Epoch(3)).unwrap().unwrap();
        assert!(again.1 == now, "page {page}");
    }
    assert!(met > 0, "some pages are needed");
}

/// Another process finds damage in data that a running program still shares.
#[test]
fn a_program_that_saves_on_shares_nothing_with_a_suspect_checkpoint() {
    let states = states();
    let world = FaultWorld::new();
    let program = Program::start(&pool(&world), "job");
    for state in &states {
        program.save(state).unwrap();
    }
    for (shard, length) in shards(&world) {
        (4096..length - 4096).step_by(4096).for_each(|at| world.corrupt(shard, at + 1, 1));
    }
    assert_eq!(restored_epoch(&world, &states, "all are damaged"), 0);
    let saved = program.save(&states[2]).unwrap().epoch;
    let found = Program::start(&pool(&world), "job").restore(Select::Newest).unwrap().unwrap();
    assert!(found == (saved, states[2].clone()));
}

/// A restore marks the checkpoint, and a scrub that finds it whole removes the mark.
#[test]
fn restores_that_meet_damage_mark_the_checkpoint() {
    let states = states();
    let world = saved(&states);
    let job = Job::open(&pool(&world), "job", JobOptions::default()).unwrap();
    let marked = || job.epochs().unwrap()[2].manifest.remarks.suspect;
    let scrub = || {
        let options = ScrubOptions { sample: Sample::ALL, bytes_per_s: None, dry_run: false };
        scrub(&pool(&world), &options).unwrap()
    };
    let (newest, length) = shards(&world).pop().unwrap();
    let flip = || {
        (4096..length - 4096).step_by(4096).for_each(|at| world.corrupt(newest, at + 1, 1));
    };
    let program = || Program::start(&pool(&world), "job");
    let restores: [(&str, &dyn Fn()); 2] = [
        ("the newest", &|| drop(program().restore(Select::Newest).unwrap())),
        ("that one", &|| drop(program().restore(Select::Epoch(3)).unwrap_err())),
    ];
    for (how, restore) in restores {
        assert!(!marked(), "{how}");
        flip();
        restore();
        assert!(marked(), "{how}");
        flip();
        let report = scrub();
        assert!(report.damaged.is_empty() && !marked(), "{how}: {report:?}");
        assert_eq!(program().restore(Select::Newest).unwrap().unwrap().0, 3, "{how}");
    }
}

#[test]
fn every_flip_in_a_record_is_detected() {
    let states = states();
    let world = saved(&states);
    let job = JobName::new("job").unwrap();
    let log = world.log();
    for number in log.numbers(&job).unwrap() {
        for offset in 0..log.read(&job, number).unwrap().len() as u64 {
            let what = format!("record {number} byte {offset}");
            world.corrupt_record(&job, number, offset, 1 << (offset % 8));
            let report = Program::start(&pool(&world), "job").job.verify(None).unwrap();
            assert_eq!(report.findings.len(), 1, "{what}: {:?}", report.findings);
            // Records 2, 3 and 4 are the manifests.
            let want = if number == 4 { 2 } else { 3 };
            assert_eq!(restored_epoch(&world, &states, &what), want, "{what}");
            world.corrupt_record(&job, number, offset, 1 << (offset % 8));
        }
    }
    assert_eq!(restored_epoch(&world, &states, "undamaged"), 3);
}

#[test]
fn a_missing_record_is_found_and_a_gc_stops_at_it() {
    let states = states();
    let job = JobName::new("job").unwrap();
    // Record 1 opens the session, 2, 3 and 4 are the manifests, 5 closes it.
    for (missing, newest, text) in [
        (&[1][..], 3, "a log record is missing"),
        (&[2], 3, "a log record is missing"),
        (&[4], 2, "a log record is missing"),
        (&[3, 4], 1, "log records 3 to 4 are missing"),
        (&[1, 2], 3, "log records 1 to 2 are missing"),
    ] {
        let world = saved(&states);
        missing.iter().for_each(|number| world.remove_record(&job, *number));
        let report = Program::start(&pool(&world), "job").job.verify(None).unwrap();
        assert_eq!(report.findings.len(), 1, "{missing:?}: {:?}", report.findings);
        let error = collect(&pool(&world), &GcOptions::default()).unwrap_err();
        for told in [&format!("{:?}", report.findings), error.message()] {
            assert!(told.contains(text), "{missing:?}: {told}");
        }
        assert_eq!(error.kind(), ErrorKind::Damaged, "{missing:?}: {error}");
        assert_eq!(restored_epoch(&world, &states, "a record is missing"), newest);
    }
}

#[test]
fn truncation_is_detected() {
    let states = states();
    let lengths: Vec<u64> = shards(&saved(&states)).iter().map(|(_, length)| *length).collect();
    for (at, length) in lengths.into_iter().enumerate() {
        for kept in [0, 1, 4095, 4096, 4097, length / 2, length - 4096, length - 64, length - 1] {
            let world = saved(&states);
            let (shard, _) = shards(&world)[at];
            world.truncate(shard, kept);
            let what = format!("shard {at} cut to {kept} of {length}");
            let pool = pool(&world);
            let error = pool.verify_shard(stored(&pool, shard)).expect_err(&what);
            assert_eq!(error.kind(), ErrorKind::Damaged, "{what}: {error}");
            restored_epoch(&world, &states, &what);
        }
    }
}

#[test]
fn a_missing_shard_costs_only_the_checkpoints_that_need_it() {
    let states = states();
    for at in 0..shards(&saved(&states)).len() {
        let world = saved(&states);
        let (shard, _) = shards(&world)[at];
        world.target().delete(shard).unwrap();
        let epoch = restored_epoch(&world, &states, &format!("shard {at} missing"));
        let report = Program::start(&pool(&world), "job").job.verify(None).unwrap();
        assert!(report.whole < 3 && epoch < 3 || epoch == 3 && report.whole >= 1, "{report:?}");
    }
}

#[test]
fn a_program_goes_on_after_damage() {
    let states = states();
    let world = saved(&states);
    let job = JobName::new("job").unwrap();
    world.corrupt_record(&job, 4, 100, 1);
    let pool = pool(&world);
    let program = Program::start(&pool, "job");
    assert_eq!(program.restore(Select::Newest).unwrap().unwrap().0, 2);
    let stats = program.save(&states[0]).unwrap();
    assert_eq!(stats.epoch, 4, "the damaged manifest's number is not used again");
    let (epoch, restored) = Program::start(&pool, "job").restore(Select::Newest).unwrap().unwrap();
    assert!(epoch == 4 && restored == states[0]);
}
