//! Two gcs, or a gc and a save, that overlap at one chosen point, on a medium without locks. The
//! explorer (crates/sim) finds others; these have lost data before.

use crate::common;
use crate::stepped;

use common::{Program, State, changed, noise};
use outlive_backend::FaultWorld;
use outlive_pool::Pool;
use outlive_store::gc::{GcOptions, GcReport, Thoroughness, collect};
use outlive_store::{Job, SaveStats, Select};
use outlive_types::{Epoch, ErrorKind, JobName, Result};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use stepped::{Gate, Steps, Stopped, World};

fn state(seed: u64) -> State {
    State::from([("a".to_owned(), noise(seed, 120_000)), ("b".to_owned(), vec![seed as u8; 50])])
}

fn large(seed: u64) -> State {
    State::from([("a".to_owned(), noise(seed, 200_000))])
}

fn collecting(pool: &Pool, drop: &[Epoch], unused_max: f64) -> Result<GcReport> {
    let drop = match drop {
        [] => Default::default(),
        epochs => [(JobName::new("a")?, epochs.iter().copied().collect())].into(),
    };
    let thoroughness = Thoroughness { unused_max, ..Thoroughness::default() };
    collect(pool, &GcOptions { drop, thoroughness, ..GcOptions::default() })
}

/// Checks that the given epochs of a job can be restored, bit for bit.
fn check(world: &World, job: &str, states: &[(Epoch, State)]) {
    let fresh = Program::start(&world.pool(), job);
    for (epoch, state) in states {
        let restored = fresh.restore(Select::Epoch(*epoch));
        let restored = restored.unwrap_or_else(|e| panic!("epoch {epoch} of {job}: {e}")).unwrap();
        assert!(restored.1 == *state, "epoch {epoch} of {job}");
    }
}

/// A later gc has read and marked "a". Then an earlier gc, which has just checked that it is not
/// fenced, moves the chunks of "a". No program saves.
#[test]
fn a_later_gc_marks_a_job_that_an_earlier_one_moves() {
    let world = World::new();
    let program = Program::start(&world.pool(), "a");
    let states = [state(1), changed(state(1), 3, 77), changed(state(1), 9, 78)];
    for state in &states {
        program.save(state).unwrap();
    }
    drop(program);
    // It appends the prune of "a", its session, then the archive of "a".
    let first = Stopped::at(&world, ("append", 2), || true, |pool| collecting(&pool, &[1], 0.05));
    // The second gc appends its session, then the archive of "a".
    let second = Stopped::at(&world, ("append", 1), || true, |pool| collecting(&pool, &[], 0.0));
    // One of them finds that it is fenced; its work until then is valid.
    let _ = first.go_on();
    let _ = second.go_on();
    check(&world, "a", &[(2, states[1].clone()), (3, states[2].clone())]);
}

/// An earlier gc has checked that it is not fenced, and reads a job again. A whole gc runs in
/// between, and takes the copies of the earlier one for garbage.
#[test]
fn a_gc_that_reads_a_job_again_looks_afterwards_whether_it_is_fenced() {
    for stop_at in 0..6 {
        let world = World::new();
        let program = Program::start(&world.pool(), "a");
        let states = [state(1), changed(state(1), 3, 77), changed(state(1), 9, 78)];
        for state in &states {
            program.save(state).unwrap();
        }
        drop(program);
        let lost = Arc::new(AtomicBool::new(false));
        let (steps, gate) = (Steps::default(), Gate::default());
        let (pool, quiet, stop) = (world.stepped(&steps), world.pool(), gate.clone());
        let (appends, lists, is_lost) = (AtomicU64::new(0), AtomicU64::new(0), lost.clone());
        steps.hook(move |_, op| {
            // The prune of "a", the gc's session, the archive of "a": a program saves before the
            // last.
            if op == "append" && appends.fetch_add(1, Ordering::AcqRel) == 2 {
                Program::start(&quiet, "a").save(&state(9)).unwrap();
                is_lost.store(true, Ordering::Release);
            } else if op == "numbers"
                && is_lost.load(Ordering::Acquire)
                && lists.fetch_add(1, Ordering::AcqRel) == stop_at
            {
                stop.stop();
            }
        });
        let over = Arc::new(AtomicBool::new(false));
        let done = over.clone();
        let first = std::thread::spawn(move || {
            let outcome = collecting(&pool, &[1], 0.0);
            done.store(true, Ordering::Release);
            outcome
        });
        gate.wait_reached(|| over.load(Ordering::Acquire));
        assert!(lost.load(Ordering::Acquire), "it reads the job again");
        // It moves nothing of the job, and only deletes packs that no job names; it has reported by
        // then.
        let later = |pool: Pool| moving_nothing(&pool, &[]);
        let second = Stopped::at(&world, ("delete", 0), || true, later);
        gate.open();
        let _ = first.join().unwrap();
        second.go_on().unwrap();
        let kept = [(2, states[1].clone()), (3, states[2].clone()), (4, state(9))];
        check(&world, "a", &kept);
        collecting(&world.pool(), &[], 0.0).unwrap();
        check(&world, "a", &kept);
    }
}

/// A later gc has listed a pack of an earlier one as unfinished. The earlier one finishes it, and
/// names it in a job's log, before the later one deletes what it takes for leftovers.
#[test]
fn a_pack_that_an_earlier_gc_has_finished_is_no_leftover() {
    for unused_max in [0.0, 0.05] {
        let faults = FaultWorld::new();
        let world = World { target: faults.target(), log: faults.log() };
        let program = Arc::new(Program::start(&world.pool(), "a"));
        for seed in 1..=3 {
            program.save(&large(seed)).unwrap();
        }
        // The program appends before the archive, and returns to its first state. So the gc stores
        // the segments again, and stops before it finishes their pack.
        let saver = program.clone();
        let appends = AtomicU64::new(0);
        let told = Arc::new(AtomicBool::new(false));
        let (steps, gate) = (Steps::default(), Gate::default());
        let pool = world.stepped(&steps);
        let (stop, is_told) = (gate.clone(), told.clone());
        steps.hook(move |_, op| {
            // The prune of "a", the gc's session, the archive of "a".
            if op == "append" && appends.fetch_add(1, Ordering::AcqRel) == 2 {
                saver.save(&large(1)).unwrap();
                is_told.store(true, Ordering::Release);
            } else if op == "finish" && is_told.swap(false, Ordering::AcqRel) {
                stop.stop();
            }
        });
        let first = std::thread::spawn(move || collecting(&pool, &[1, 2], unused_max));
        gate.wait_reached(|| first.is_finished());
        assert!(!first.is_finished(), "it has a pack to finish");
        assert_eq!(world.target.unfinished().unwrap().len(), 1);

        // The second gc lists unfinished packs twice; then the first finishes its own.
        let looks = Arc::new(AtomicU64::new(0));
        let seen = looks.clone();
        let (steps, second_gate) = (Steps::default(), Gate::default());
        let pool = world.stepped(&steps);
        let stop = second_gate.clone();
        steps.hook(move |_, op| {
            if op == "list unfinished" {
                seen.fetch_add(1, Ordering::AcqRel);
            } else if seen.load(Ordering::Acquire) == 2 {
                stop.stop();
            }
        });
        let second = std::thread::spawn(move || collecting(&pool, &[], unused_max));
        second_gate.wait_reached(|| second.is_finished());
        assert_eq!(looks.load(Ordering::Acquire), 2, "both looks saw it unfinished");
        gate.open();
        let _ = first.join().unwrap();
        second_gate.open();
        let _ = second.join().unwrap();
        drop(program);
        check(&world, "a", &[(3, large(3)), (4, large(1))]);
        collecting(&world.pool(), &[], 0.0).unwrap();
        check(&world, "a", &[(3, large(3)), (4, large(1))]);
    }
}

/// Job "a" has three checkpoints and has ended; the program of "0" runs.
fn beside_an_ended_job(world: &World) -> Program {
    let program = Program::start(&world.pool(), "a");
    for state in [state(1), changed(state(1), 3, 77), state(2)] {
        program.save(&state).unwrap();
    }
    drop(program);
    let other = Program::start(&world.pool(), "0");
    other.save(&state(5)).unwrap();
    other
}

/// Stops the program of a job that has opened its session and stored a state, before it appends.
fn stopped_before_its_commit(
    world: &World,
    job: &'static str,
    state: State,
) -> Stopped<(Program, Result<SaveStats>)> {
    let save = move |pool: Pool| {
        let program = Program::start(&pool, job);
        let outcome = program.save(&state);
        (program, outcome)
    };
    Stopped::at(world, ("append", 1), || true, save)
}

/// Job "0" appends after a gc's sweep, ends and starts again before that gc has reported to "a".
/// Its next save shares chunks of "a", and a second gc runs before it commits.
#[test]
fn released_by_an_older_session() {
    let world = World::new();
    let other = beside_an_ended_job(&world);
    // The prune of "a", its session, the sweep in the log of "0", then the archive of "a".
    let first = Stopped::at(&world, ("append", 3), || true, |pool| collecting(&pool, &[1, 2], 0.0));
    other.save(&state(6)).unwrap();
    drop(other);
    let mut mixed = changed(state(1), 11, 99);
    mixed.insert("c".to_owned(), noise(2, 120_000));
    let saver = stopped_before_its_commit(&world, "0", mixed.clone());
    first.go_on().unwrap();
    collecting(&world.pool(), &[], 0.0).unwrap();
    let (_program, outcome) = saver.go_on();
    check(&world, "0", &[(outcome.unwrap().epoch, mixed)]);
}

/// A gc drops two checkpoints of "a". It stops after its report to "0", before its report to "a".
fn stop_a_gc_that_has_told_one_job(world: &World) {
    let (steps, stop) = (Steps::default(), Arc::new(AtomicBool::new(false)));
    let (appends, flag) = (AtomicU64::new(0), stop.clone());
    steps.hook(move |_, op| {
        // The prune of "a", its session, the sweep in the log of "0".
        if op == "append" && appends.fetch_add(1, Ordering::AcqRel) == 2 {
            flag.store(true, Ordering::Relaxed);
        }
    });
    let drop_old = [(JobName::new("a").unwrap(), [1, 2].into())].into();
    let thoroughness = Thoroughness { unused_max: 0.0, ..Thoroughness::default() };
    let options = GcOptions { drop: drop_old, thoroughness, stop, ..GcOptions::default() };
    collect(&world.stepped(&steps), &options).unwrap_err();
}

/// A gc was stopped after its report to "0" and before its report to "a". Later "0" is started
/// again, and "a" is given up while "0" saves data that it shares with "a".
#[test]
fn released_by_an_older_session_after_a_stopped_gc() {
    let world = World::new();
    let other = beside_an_ended_job(&world);
    stop_a_gc_that_has_told_one_job(&world);
    other.save(&state(6)).unwrap();
    drop(other);
    let mixed = changed(state(1), 11, 99);
    let saver = stopped_before_its_commit(&world, "0", mixed.clone());
    collecting(&world.pool(), &[3], 0.0).unwrap();
    let (_program, outcome) = saver.go_on();
    check(&world, "0", &[(outcome.unwrap().epoch, mixed)]);
}

/// Drops checkpoints of several jobs, and collects thoroughly.
fn dropping(pool: &Pool, drop: &[(&str, Epoch)]) -> Result<GcReport> {
    let thoroughness = Thoroughness { unused_max: 0.0, ..Thoroughness::default() };
    dropping_so(pool, drop, thoroughness)
}

/// Does the same without rewriting packs.
fn moving_nothing(pool: &Pool, drop: &[(&str, Epoch)]) -> Result<GcReport> {
    dropping_so(pool, drop, Thoroughness { rewrite: false, ..Thoroughness::default() })
}

fn dropping_so(
    pool: &Pool,
    drop: &[(&str, Epoch)],
    thoroughness: Thoroughness,
) -> Result<GcReport> {
    let drop = drop.iter().map(|(job, epoch)| Ok((JobName::new(job)?, [*epoch].into())));
    let drop = drop.collect::<Result<_>>()?;
    collect(pool, &GcOptions { drop, thoroughness, ..GcOptions::default() })
}

/// The session of "0" has released a pack that "a" still names. Another gc condemns it again. That
/// session, and the next one if it begins before the report to "a", may need it again.
#[test]
fn a_pack_that_is_condemned_again_is_not_released() {
    let world = World::new();
    let other = beside_an_ended_job(&world);
    stop_a_gc_that_has_told_one_job(&world);
    other.save(&state(6)).unwrap();
    // The prune of "0", its session, the archive of "0", twice.
    let gc = Stopped::at(&world, ("append", 4), || true, |pool| dropping(&pool, &[("0", 1)]));
    drop(other);
    let mixed = changed(state(1), 11, 99);
    let saver = stopped_before_its_commit(&world, "0", mixed.clone());
    gc.go_on().unwrap();
    let (_program, outcome) = saver.go_on();
    check(&world, "0", &[(outcome.unwrap().epoch, mixed)]);
}

/// A gc reports to "0" and stops. Then `between` runs, another gc writes "0" an archive and stops,
/// and "b" commits a state that shares a condemned pack. Returns the second gc and the program of
/// "b".
fn archived_before_b_commits(
    world: &World,
    mixed: &State,
    between: impl FnOnce(),
) -> (Stopped<Result<GcReport>>, Program) {
    let late = stopped_before_its_commit(world, "b", mixed.clone());
    stop_a_gc_that_has_told_one_job(world);
    between();
    // The prunes of "0" and "a", its session, the archive of "0", twice.
    let work = |pool: Pool| dropping(&pool, &[("0", 1), ("a", 3)]);
    let gc = Stopped::at(world, ("append", 5), || true, work);
    let (program, outcome) = late.go_on();
    assert_eq!(outcome.unwrap().epoch, 1);
    (gc, program)
}

/// Checks that a new program of "0", which stores a state while the gc goes on, names no deleted
/// pack.
fn check_that_0_shares_no_condemned_pack(
    world: &World,
    gc: Stopped<Result<GcReport>>,
    mixed: &State,
) {
    // A save of this size reads the checkpoints of other jobs.
    let mut more = mixed.clone();
    more.insert("c".to_owned(), noise(3, 500_000));
    let saver = stopped_before_its_commit(world, "0", more.clone());
    gc.go_on().unwrap();
    let (_program, outcome) = saver.go_on();
    check(world, "0", &[(outcome.unwrap().epoch, more)]);
    check(world, "b", &[(1, mixed.clone())]);
    check_packs_that_0_names(world);
}

/// A restore could find the chunks elsewhere; a verify reads the packs that the checkpoints of "0"
/// name.
fn check_packs_that_0_names(world: &World) {
    let job = Job::open(&world.pool(), "0", Default::default()).unwrap();
    assert_eq!(job.verify(None).unwrap().findings, vec![]);
}

/// "0" has ended, and a gc writes it an archive. Then a program of "0" begins, and finds a
/// condemned pack through a checkpoint of "b", which has no report yet.
#[test]
fn a_job_that_begins_while_others_are_told_is_told_again() {
    let world = World::new();
    let other = beside_an_ended_job(&world);
    other.save(&state(6)).unwrap();
    drop(other);
    let mixed = changed(state(1), 11, 99);
    let (gc, program) = archived_before_b_commits(&world, &mixed, || ());
    drop(program);
    check_that_0_shares_no_condemned_pack(&world, gc, &mixed);
}

/// The same, but "0" runs until the gc has written its archive, and had released the pack before.
#[test]
fn an_archive_repeats_the_report_of_a_pack_that_a_session_had_released() {
    let world = World::new();
    let other = beside_an_ended_job(&world);
    let mixed = changed(state(1), 11, 99);
    let lets_go = || drop(other.save(&state(6)).unwrap());
    let (gc, program) = archived_before_b_commits(&world, &mixed, lets_go);
    drop((program, other));
    check_that_0_shares_no_condemned_pack(&world, gc, &mixed);
}

/// "0" has released a pack that no checkpoint needs. While a gc is about to report it to "a", "a"
/// commits a checkpoint that names it. A later gc, which moves nothing, leaves "0" an archive
/// without it. So a new program of "0" shares it.
#[test]
fn a_fenced_gc_deletes_nothing() {
    let world = Arc::new(World::new());
    let other = Program::start(&world.pool(), "0");
    other.save(&state(5)).unwrap();
    let program = Program::start(&world.pool(), "a");
    [state(1), changed(state(1), 3, 77)].iter().for_each(|it| drop(program.save(it).unwrap()));
    drop(program);
    Program::start(&world.pool(), "a").save(&state(2)).unwrap();
    let mut mixed = changed(state(1), 11, 99);
    // A save of this size reads all checkpoints.
    mixed.insert("c".to_owned(), noise(3, 500_000));
    let late = stopped_before_its_commit(&world, "a", mixed.clone());
    stop_a_gc_that_has_told_one_job(&world);
    other.save(&state(6)).unwrap();

    let (begun, found) = (Mutex::new(Some((late, other))), Arc::new(Mutex::new(None)));
    let (finds, saves, here) = (found.clone(), mixed.clone(), world.clone());
    let (steps, appends) = (Steps::default(), AtomicU64::new(0));
    steps.hook(move |_, op| {
        let number = if op == "append" { appends.fetch_add(1, Ordering::AcqRel) } else { 0 };
        // Its session, a sweep in the log of "0", the archive of "a", and that again, as "a"
        // appended first.
        if number == 2 {
            let (late, other) = begun.lock().unwrap().take().unwrap();
            let (program, outcome) = late.go_on();
            assert_eq!(outcome.unwrap().epoch, 4);
            drop((program, other));
        } else if number == 3 {
            // The prune of "0", its session, the archive of "0", twice, then that of "a".
            let later = |pool: Pool| moving_nothing(&pool, &[("0", 1)]);
            let second = Stopped::at(&here, ("append", 4), || true, later);
            let saver = stopped_before_its_commit(&here, "0", saves.clone());
            *finds.lock().unwrap() = Some((second, saver));
        }
    });
    let fenced = collecting(&world.stepped(&steps), &[], 0.0);
    let (second, saver) = found.lock().unwrap().take().unwrap();
    let (_program, outcome) = saver.go_on();
    let saved = [(outcome.unwrap().epoch, mixed.clone())];
    check_packs_that_0_names(&world);
    let error = fenced.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    second.go_on().unwrap();
    check(&world, "0", &saved);
    check(&world, "a", &[(3, state(2)), (4, mixed)]);
}

/// Each of two prunes keeps the checkpoints that the other drops.
#[test]
fn two_prunes_leave_something() {
    let world = World::new();
    let program = Program::start(&world.pool(), "a");
    (1..=2).for_each(|seed| drop(program.save(&state(seed)).unwrap()));
    drop(program);
    let prune = |epoch: Epoch| {
        let drop = [(JobName::new("a").unwrap(), [epoch].into())].into();
        collect(&world.pool(), &GcOptions { drop, keep_one: true, ..GcOptions::default() })
    };
    prune(1).unwrap();
    let error = prune(2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
    check(&world, "a", &[(2, state(2))]);
}
