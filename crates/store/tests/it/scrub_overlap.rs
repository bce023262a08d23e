//! Scrubs that find damage in a pack that a save or a copy under way shares.

use crate::common;
use crate::stepped;

use common::{Program, State, changed, noise};
use outlive_backend::{FaultWorld, ReadRange, ShardName, read_one};
use outlive_io::AlignedBuf;
use outlive_pool::Pool;
use outlive_store::copy::{CopyOptions, copy};
use outlive_store::gc::{GcOptions, Thoroughness, collect};
use outlive_store::scrub::{ScrubOptions, ScrubReport, scrub};
use outlive_store::{Job, Sample, SaveStats, Select};
use outlive_types::{Epoch, ErrorKind, JobName, PAGE_BYTES, Result};
use std::sync::{Arc, Mutex};
use stepped::{Steps, Stopped, World};

/// The page that is damaged. No save of these tests changes it.
const BAD_PAGE: usize = 20;

fn state(seed: u64) -> State {
    State::from([("a".to_owned(), noise(seed, 120_000)), ("b".to_owned(), vec![seed as u8; 50])])
}

fn over(faults: &FaultWorld) -> World {
    World { target: faults.target(), log: faults.log() }
}

/// Damages the page of a state in its pack.
fn damage(faults: &FaultWorld, state: &State) -> ShardName {
    let needle = &state["a"][BAD_PAGE * PAGE_BYTES..][..64];
    let target = faults.target();
    let mut found = Vec::new();
    for shard in target.list().unwrap() {
        let length = target.length(shard).unwrap() as usize;
        let range = ReadRange::new(0, AlignedBuf::zeroed(length));
        let bytes = read_one(&*target, shard, range).wait().unwrap();
        if let Some(at) = bytes.windows(64).position(|window| window == needle) {
            faults.corrupt(shard, at as u64 + 5, 1);
            found.push(shard);
        }
    }
    assert_eq!(found.len(), 1, "it is stored once");
    found[0]
}

fn scrubbed(pool: &Pool) -> ScrubReport {
    let all = ScrubOptions { sample: Sample::ALL, bytes_per_s: None, dry_run: false };
    scrub(pool, &all).unwrap()
}

/// Drops a checkpoint, and collects if `collects` is set.
fn prune(pool: &Pool, job: &str, epoch: Epoch, collects: bool) {
    let drop = [(JobName::new(job).unwrap(), [epoch].into())].into();
    let thoroughness = Thoroughness { collect: collects, ..Thoroughness::default() };
    collect(pool, &GcOptions { drop, thoroughness, ..GcOptions::default() }).unwrap();
}

/// Stops a save whose program has opened its session and stored everything, before it appends.
fn stopped_before_its_commit(
    world: &World,
    job: &'static str,
    from: Option<Epoch>,
    state: State,
) -> Stopped<(Program, Result<SaveStats>)> {
    let save = move |pool: Pool| {
        let program = Program::start(&pool, job);
        if let Some(epoch) = from {
            program.restore(Select::Epoch(epoch)).unwrap().unwrap();
        }
        let outcome = program.save(&state);
        (program, outcome)
    };
    Stopped::at(world, ("append", 1), || true, save)
}

/// Checks that a save that shares damaged data fails, and that the next one stores everything
/// again.
fn check_that_it_starts_anew(
    world: &World,
    job: &str,
    (program, outcome): (Program, Result<SaveStats>),
    state: &State,
) {
    let epoch = match outcome {
        Ok(stats) => stats.epoch,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
            program.save(state).unwrap().epoch
        }
    };
    let restored = Program::start(&world.pool(), job).restore(Select::Epoch(epoch));
    assert!(restored.unwrap().unwrap().1 == *state, "epoch {epoch} of {job}");
}

/// A scrub reports a condemned pack to a job by a sweep: the pack is damaged, or lost, so that no
/// gc lists it. Before the program of that job appends anything, a gc replaces all records by an
/// archive.
#[test]
fn an_archive_repeats_a_report_that_a_session_has_not_answered() {
    for is_lost in [false, true] {
        archive_before_an_answer(is_lost);
    }
}

fn archive_before_an_answer(is_lost: bool) {
    let faults = FaultWorld::new();
    let world = over(&faults);
    Program::start(&world.pool(), "a").save(&state(1)).unwrap();
    let program = Program::start(&world.pool(), "b");
    (5..=6).for_each(|seed| drop(program.save(&state(seed)).unwrap()));
    drop(program);
    let shares = changed(state(1), 11, 99);
    let saver = stopped_before_its_commit(&world, "b", None, shares.clone());
    let shard = damage(&faults, &state(1));
    if is_lost {
        faults.target().delete(shard).unwrap();
    }
    assert_eq!(scrubbed(&world.pool()).heal.condemned.len(), 1);
    prune(&world.pool(), "b", 1, true);
    check_that_it_starts_anew(&world, "b", saver.go_on(), &shares);
}

/// The session of "0" has released a damaged pack that "b" names. A scrub that finds other damage
/// writes "0" an archive, and a program of "0" begins before the scrub has reported to "b".
#[test]
fn an_archive_of_a_scrub_repeats_the_report_of_a_released_pack() {
    let faults = FaultWorld::new();
    let world = over(&faults);
    let program = Program::start(&world.pool(), "0");
    program.save(&state(2)).unwrap();
    Program::start(&world.pool(), "b").save(&state(1)).unwrap();
    let stopped = |appends| {
        let all = ScrubOptions { sample: Sample::ALL, bytes_per_s: None, dry_run: false };
        Stopped::at(&world, ("append", appends), || true, move |pool| scrub(&pool, &all))
    };
    damage(&faults, &state(1));
    // Its session, the sweep in the log of "0".
    let first = stopped(2);
    program.save(&state(3)).unwrap();
    damage(&faults, &state(2));
    // Its session, the archive of "0", twice.
    let second = stopped(3);
    drop(program);
    // A save of this size reads the checkpoints of other jobs.
    let mut shares = changed(state(1), 11, 99);
    shares.insert("c".to_owned(), noise(3, 500_000));
    let saver = stopped_before_its_commit(&world, "0", None, shares.clone());
    second.go_on().unwrap();
    check_that_it_starts_anew(&world, "0", saver.go_on(), &shares);
    assert!(first.go_on().unwrap().blocked.is_some(), "the second scrub has fenced it");
}

/// A prune has dropped the checkpoint that a save continues. So a scrub finds the damage in a pack
/// that no checkpoint names, and calls no checkpoint incomplete.
#[test]
fn a_save_that_goes_on_from_a_dropped_checkpoint_starts_anew() {
    let faults = FaultWorld::new();
    let world = over(&faults);
    // The second program restores nothing, so its checkpoint shares nothing with the first one.
    (1..=2).for_each(|seed| drop(Program::start(&world.pool(), "a").save(&state(seed)).unwrap()));
    let next = changed(state(1), 11, 99);
    let saver = stopped_before_its_commit(&world, "a", Some(1), next.clone());
    damage(&faults, &state(1));
    prune(&world.pool(), "a", 1, false);
    let report = scrubbed(&world.pool());
    assert_eq!((report.heal.unneeded.len(), report.heal.incomplete.len()), (1, 0), "{report:?}");
    check_that_it_starts_anew(&world, "a", saver.go_on(), &next);
}

/// The newest checkpoint at the destination, on which a copy builds, proves damaged at any step of
/// the copy. The checkpoints that the copy commits after that are whole.
#[test]
fn a_copy_takes_nothing_over_from_a_checkpoint_that_proves_damaged() {
    for at in 0.. {
        let faults = FaultWorld::new();
        let (here, there) = (World::new(), over(&faults));
        let second = changed(state(1), 3, 7);
        let states = [state(1), second.clone(), changed(second, 11, 8)];
        let program = Program::start(&here.pool(), "job");
        states.iter().for_each(|state| drop(program.save(state).unwrap()));
        drop(program);
        let first = CopyOptions {
            jobs: vec![JobName::new("job").unwrap()],
            epochs: [1].into(),
            ..CopyOptions::default()
        };
        copy(&here.pool(), &there.pool(), &first).unwrap();
        damage(&faults, &state(1));
        let (steps, pool) = (Steps::default(), there.pool());
        let incomplete = Arc::new(Mutex::new(None));
        let found = incomplete.clone();
        steps.hook(move |number, _| {
            if number == at {
                scrubbed(&pool);
                let job = Job::open(&pool, "job", Default::default()).unwrap();
                *found.lock().unwrap() = job.epochs().unwrap().last().map(|info| info.epoch);
            }
        });
        let report = copy(&here.pool(), &there.stepped(&steps), &CopyOptions::default());
        let report = report.unwrap_or_else(|error| panic!("a scrub before step {at}: {error}"));
        assert!(report.is_whole(), "a scrub before step {at}: {report:?}");
        let Some(newest) = incomplete.lock().unwrap().take() else {
            assert!(at > 8, "{at} steps");
            break;
        };
        for (epoch, state) in (1..).zip(&states).filter(|(epoch, _)| *epoch > newest) {
            let restored = Program::start(&there.pool(), "job").restore(Select::Epoch(epoch));
            let restored = restored.unwrap_or_else(|e| panic!("{epoch}, step {at}: {e}")).unwrap();
            assert!(restored.1 == *state, "epoch {epoch}, a scrub before step {at}");
        }
    }
}
