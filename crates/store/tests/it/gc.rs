//! Prune and gc: kept checkpoints restore and others go, beside saves and after crashes.

use crate::common;

use common::{Program, State, memory_pool, noise, pool_of, small_config, tuned, until};
use outlive_backend::{CutMode, FaultWorld};
use outlive_pool::{Environment, Pool};
use outlive_store::gc::{GcOptions, GcReport, Thoroughness, collect};
use outlive_store::retention::Rules;
use outlive_store::{Job, Select};
use outlive_types::{Epoch, ErrorKind, JobName, PAGE_BYTES, Result};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Drops checkpoints of a job by `rules`, and collects.
fn prune(pool: &Pool, job: &str, rules: &Rules) -> Result<GcReport> {
    let drop = Job::open(pool, job, Default::default())?.retention(rules)?.dropped();
    let name = JobName::new(job)?;
    collect(pool, &GcOptions { drop: [(name, drop)].into(), ..GcOptions::default() })
}

fn gc(pool: &Pool) -> Result<GcReport> {
    collect(pool, &GcOptions::default())
}

fn last(count: u64) -> Rules {
    Rules { last: Some(count), ..Rules::default() }
}

fn change(state: &mut State, region: &str, page: usize, seed: u64) {
    let bytes = state.get_mut(region).unwrap();
    bytes[page * PAGE_BYTES..][..PAGE_BYTES].copy_from_slice(&noise(seed, PAGE_BYTES));
}

fn epochs(pool: &Pool, job: &str) -> Vec<Epoch> {
    let job = Job::open(pool, job, Default::default()).unwrap();
    job.epochs().unwrap().iter().map(|info| info.epoch).collect()
}

fn stored_bytes(pool: &Pool) -> u64 {
    pool.packs().unwrap().into_iter().map(|pack| pool.stored_bytes(pack).unwrap()).sum()
}

/// Checks that every checkpoint of a job is unchanged, and verifies it.
fn check(pool: &Pool, job: &str, states: &BTreeMap<Epoch, State>, what: &str) {
    assert_eq!(epochs(pool, job), states.keys().copied().collect::<Vec<_>>(), "{what}");
    let program = Program::start(pool, job);
    for (epoch, state) in states {
        let (_, restored) = program.restore(Select::Epoch(*epoch)).unwrap().unwrap();
        assert!(restored == *state, "{what}: epoch {epoch} of {job}");
    }
    assert_eq!(program.job.verify(None).unwrap().findings, vec![], "{what}: {job}");
}

#[test]
fn many_small_saves_shrink_to_little() {
    let pool = memory_pool();
    let mut state = State::from([("a".to_owned(), noise(1, 1 << 20))]);
    let program = Program::start(&pool, "job");
    program.save(&state).unwrap();
    for step in 0..10_000u64 {
        change(&mut state, "a", (step * 37 % 256) as usize, step);
        program.save(&state).unwrap();
    }
    assert!(pool.packs().unwrap().len() > 9_000);
    drop(program);
    let report = prune(&pool, "job", &last(1)).unwrap();
    assert!(report.deleted > 9_000 && report.held == 0, "{report:?}");
    let (packs, bytes) = (pool.packs().unwrap().len(), stored_bytes(&pool));
    let records = pool.log().numbers(&JobName::new("job").unwrap()).unwrap().len();
    assert!(packs <= 10 && records <= 4, "{packs} packs, {records} records");
    assert!(bytes < (1 << 20) * 14 / 10, "{bytes} bytes");
    check(&pool, "job", &[(10_001, state)].into(), "after it all");
    // A second gc has nothing to do.
    let again = gc(&pool).unwrap();
    assert_eq!((again.deleted, again.plan.copied_bytes), (0, 0), "{again:?}");
}

#[test]
fn a_program_goes_on_saving_while_its_past_is_collected() {
    let pool = memory_pool();
    let mut state = State::from([("a".to_owned(), noise(1, 400_000))]);
    let mut states = BTreeMap::new();
    let mut program = Program::start(&pool, "job");
    let mut held = 0;
    for step in 0..120u64 {
        change(&mut state, "a", (step * 7 % 97) as usize, 100 + step);
        let epoch = program.save(&state).unwrap().epoch;
        states.insert(epoch, state.clone());
        if step % 9 == 8 {
            held += prune(&pool, "job", &last(3)).unwrap().held;
            while states.len() > 3 {
                states.pop_first();
            }
        }
        if step % 40 == 39 {
            check(&pool, "job", &states, "on the way");
        }
        if step == 60 {
            program = Program::start(&pool, "job");
            program.restore(Select::Newest).unwrap();
        }
    }
    assert!(held > 0, "with a session open some packs had to wait");
    drop(program);
    gc(&pool).unwrap();
    check(&pool, "job", &states, "at the end");
    let bytes = stored_bytes(&pool);
    assert!(bytes < 900_000, "{bytes} bytes for a state of 400,000 and two changes");
}

#[test]
fn packs_wait_until_an_open_session_has_committed() {
    let pool = memory_pool();
    let first = State::from([("a".to_owned(), noise(1, 300_000))]);
    let second = State::from([("a".to_owned(), noise(2, 300_000))]);
    let program = Program::start(&pool, "job");
    program.save(&first).unwrap();
    program.save(&second).unwrap();
    let report = prune(&pool, "job", &last(1)).unwrap();
    assert!(report.deleted == 0 && report.held > 0, "{report:?}");
    let ours = format!("process {} on", std::process::id());
    assert!(report.held_by[&JobName::new("job").unwrap()].starts_with(&ours), "{report:?}");
    assert!(report.held_bytes >= 300_000 && report.freed_bytes() == 0, "{report:?}");
    assert_eq!(gc(&pool).unwrap().deleted, 0, "still no word from the session");
    program.save(&second).unwrap();
    let report = gc(&pool).unwrap();
    assert!(report.deleted > 0, "{report:?}");
    check(&pool, "job", &[(2, second.clone()), (3, second)].into(), "afterwards");
}

#[test]
fn fencing_ends_the_wait() {
    let pool = memory_pool();
    let program = Program::start(&pool, "job");
    program.save(&State::from([("a".to_owned(), noise(1, 300_000))])).unwrap();
    let state = State::from([("a".to_owned(), noise(2, 300_000))]);
    program.save(&state).unwrap();
    assert_eq!(prune(&pool, "job", &last(1)).unwrap().deleted, 0);
    let fence = vec![JobName::new("job").unwrap()];
    let report = collect(&pool, &GcOptions { fence, ..GcOptions::default() }).unwrap();
    assert!(report.deleted > 0 && report.held == 0, "{report:?}");
    assert_eq!(program.save(&state).unwrap_err().kind(), ErrorKind::Fenced);
    check(&pool, "job", &[(2, state)].into(), "afterwards");
    let fence = vec![JobName::new("nobody").unwrap()];
    let error = collect(&pool, &GcOptions { fence, ..GcOptions::default() }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[test]
fn jobs_that_share_survive_each_other() {
    let pool = memory_pool();
    let state = State::from([("a".to_owned(), noise(1, 500_000))]);
    let other = State::from([("a".to_owned(), noise(2, 500_000))]);
    let first = Program::start(&pool, "first");
    first.save(&state).unwrap();
    first.save(&other).unwrap();
    drop(first);
    Program::start(&pool, "second").save(&state).unwrap();
    // Data that the second job shares with the first stays, though the first drops it.
    prune(&pool, "first", &last(1)).unwrap();
    check(&pool, "second", &[(1, state.clone())].into(), "the borrower");
    check(&pool, "first", &[(2, other)].into(), "the lender");
    // The first job is given up.
    let report = prune(&pool, "first", &Rules { none: true, ..Rules::default() }).unwrap();
    assert!(report.deleted > 0);
    check(&pool, "first", &BTreeMap::new(), "the lender, given up");
    check(&pool, "second", &[(1, state.clone())].into(), "the borrower alone");
    assert!(stored_bytes(&pool) < 700_000);
    prune(&pool, "second", &Rules { none: true, ..Rules::default() }).unwrap();
    assert_eq!(pool.packs().unwrap().len(), 0, "nothing is left of nothing");
    // The job goes on, with epochs that were not used before.
    assert_eq!(Program::start(&pool, "second").save(&state).unwrap().epoch, 2);
    check(&pool, "second", &[(2, state)].into(), "a new life");
}

#[test]
fn the_newest_stays_while_its_program_may_save() {
    let pool = memory_pool();
    let state = State::from([("a".to_owned(), noise(1, 100_000))]);
    let program = Program::start(&pool, "job");
    program.save(&state).unwrap();
    let error = prune(&pool, "job", &Rules { none: true, ..Rules::default() }).unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.message().contains("--fence"), "{error}");
    check(&pool, "job", &[(1, state)].into(), "untouched");
}

#[test]
fn notes_are_kept_and_keep() {
    let pool = memory_pool();
    let program = Program::start(&pool, "job");
    let states: BTreeMap<Epoch, State> =
        (1..=6).map(|n| (n, State::from([("a".to_owned(), noise(n, 70_000))]))).collect();
    for state in states.values() {
        program.save(state).unwrap();
        // A note between two saves of a running program disturbs neither.
        program.job.note(1, |remarks| remarks.pinned = true).unwrap();
    }
    let noted = program.job.note(3, |remarks| remarks.label = "good".to_owned()).unwrap();
    assert_eq!(noted.label, "good");
    assert_eq!(program.job.note(9, |_| ()).unwrap_err().kind(), ErrorKind::Invalid);
    let long = program.job.note(3, |remarks| remarks.label = "x".repeat(70_000));
    assert_eq!(long.unwrap_err().kind(), ErrorKind::Invalid);
    drop(program);
    prune(&pool, "job", &last(1)).unwrap();
    let kept: BTreeMap<Epoch, State> = [1, 3, 6].map(|n| (n, states[&n].clone())).into();
    check(&pool, "job", &kept, "pinned, labelled, newest");
    // Remarks outlive the records that made them.
    let job = Job::open(&pool, "job", Default::default()).unwrap();
    job.note(1, |remarks| remarks.pinned = false).unwrap();
    prune(&pool, "job", &last(1)).unwrap();
    assert_eq!(epochs(&pool, "job"), [3, 6]);
}

#[test]
fn a_dry_run_changes_nothing() {
    let pool = memory_pool();
    let program = Program::start(&pool, "job");
    for seed in 0..3 {
        program.save(&State::from([("a".to_owned(), noise(seed, 100_000))])).unwrap();
    }
    drop(program);
    let before = (pool.packs().unwrap(), pool.log().numbers(&JobName::new("job").unwrap()));
    let drop = [(JobName::new("job").unwrap(), [1, 2].into())].into();
    let options = GcOptions { drop, dry_run: true, ..GcOptions::default() };
    let report = collect(&pool, &options).unwrap();
    assert!(report.plan.freed_bytes > 100_000 && report.deleted == 0, "{report:?}");
    assert!(report.plan.to_string().contains("drop 2 checkpoints of job job"));
    let after = (pool.packs().unwrap(), pool.log().numbers(&JobName::new("job").unwrap()));
    assert_eq!(before.0, after.0);
    assert_eq!(before.1.unwrap(), after.1.unwrap());
}

/// Three checkpoints of one job, whose program may still save.
fn three_saved(world: &FaultWorld) -> (Pool, Program, Vec<State>) {
    let pool = pool_of(world.target(), world.log());
    let program = Program::start(&pool, "job");
    let states: Vec<State> =
        (0..3).map(|seed| State::from([("a".to_owned(), noise(seed, 100_000))])).collect();
    for state in &states {
        program.save(state).unwrap();
    }
    (pool, program, states)
}

#[test]
fn a_damaged_log_or_checkpoint_stops_it() {
    let world = FaultWorld::new();
    let (pool, program, states) = three_saved(&world);
    drop(program);
    let job = JobName::new("job").unwrap();
    world.corrupt_record(&job, 3, 100, 1);
    let error = gc(&pool).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    world.corrupt_record(&job, 3, 100, 1);
    gc(&pool).unwrap();
    // A checkpoint whose tree is lost stops it, too, until it is given up.
    let shard = world.target().list().unwrap()[1];
    for offset in 104_096..106_400 {
        world.corrupt(shard, offset, 0xFF);
    }
    let error = gc(&pool).unwrap_err();
    assert!(error.kind() == ErrorKind::Damaged && error.message().contains("--drop 2"), "{error}");
    for offset in 104_096..106_400 {
        world.corrupt(shard, offset, 0xFF);
    }
    gc(&pool).unwrap();
    for (epoch, state) in (1..).zip(&states) {
        let (_, restored) =
            Program::start(&pool, "job").restore(Select::Epoch(epoch)).unwrap().unwrap();
        assert!(restored == *state);
    }
}

#[test]
fn a_damaged_record_can_be_given_up() {
    let world = FaultWorld::new();
    let (pool, program, states) = three_saved(&world);
    drop(program);
    world.corrupt_record(&JobName::new("job").unwrap(), 3, 100, 1);
    let options = GcOptions { forget_damaged: true, ..GcOptions::default() };
    let report = collect(&pool, &options).unwrap();
    assert!(report.deleted > 0, "{report:?}");
    let kept = [(1, states[0].clone()), (3, states[2].clone())];
    check(&pool, "job", &kept.into(), "without the second");
    gc(&pool).unwrap();
    assert!(Program::start(&pool, "job").save(&states[1]).unwrap().epoch > 3);
}

#[test]
fn a_damaged_newest_record_can_be_given_up() {
    // The record of the last save, and the end of the session behind it.
    for record in [4, 5] {
        let world = FaultWorld::new();
        let (pool, program, states) = three_saved(&world);
        if record == 5 {
            program.job.close().unwrap();
        }
        drop(program);
        let job = JobName::new("job").unwrap();
        assert!(world.log().latest(&job).unwrap() >= record);
        world.corrupt_record(&job, record, 60, 1);
        assert_eq!(collect(&pool, &GcOptions::default()).unwrap_err().kind(), ErrorKind::Damaged);
        let options = GcOptions { forget_damaged: true, ..GcOptions::default() };
        collect(&pool, &options).unwrap();
        let kept: Vec<(Epoch, State)> = (1..).zip(states.clone()).collect();
        let whole = if record == 4 { 2 } else { 3 };
        check(&pool, "job", &kept.into_iter().take(whole).collect(), "without the newest record");
        gc(&pool).unwrap();
        assert!(Program::start(&pool, "job").save(&states[1]).unwrap().epoch > 3);
    }
}

/// A gc that gives up the record of a session knows of the session only if a checkpoint names it.
#[test]
fn a_gc_that_gives_up_all_records_of_a_session_ends_it() {
    for names_it in [true, false] {
        let world = FaultWorld::new();
        let pool = pool_of(world.target(), world.log());
        let job = JobName::new("job").unwrap();
        let state = |seed| State::from([("a".to_owned(), noise(seed, 100_000))]);
        let program = Program::start(&pool, "job");
        program.save(&state(1)).unwrap();
        world.corrupt_record(&job, 1, 60, 1);
        // The program knows its own record; a note makes it read the log.
        program.job.note(1, |remarks| remarks.pinned = true).unwrap();
        program.save(&state(2)).unwrap();
        if !names_it {
            // Both of its checkpoints; a note stands between them.
            world.corrupt_record(&job, 2, 60, 1);
            world.corrupt_record(&job, 4, 60, 1);
        }
        let options = GcOptions { forget_damaged: true, ..GcOptions::default() };
        collect(&pool, &options).unwrap();
        if names_it {
            assert_eq!(program.save(&state(3)).unwrap().epoch, 3);
            let all = [(1, state(1)), (2, state(2)), (3, state(3))];
            check(&pool, "job", &all.into(), "it was at work, and goes on");
            gc(&pool).unwrap();
            assert_eq!(program.save(&state(4)).unwrap().epoch, 4);
        } else {
            // For that gc, no writer existed here.
            let error = program.save(&state(3)).unwrap_err();
            assert!(error.kind() == ErrorKind::Fenced && error.message().contains("gc"), "{error}");
            assert!(Program::start(&pool, "job").save(&state(3)).unwrap().epoch > 2);
        }
    }
}

#[test]
fn without_room_to_rewrite_dead_packs_go_all_the_same() {
    let prepared = || {
        let world = FaultWorld::new();
        let pool = pool_of(world.target(), world.log());
        let program = Program::start(&pool, "job");
        for seed in 0..6 {
            let state = State::from([
                ("new".to_owned(), noise(seed, 90_000)),
                ("odd".to_owned(), noise(100 + seed % 2, 90_000)),
            ]);
            program.save(&state).unwrap();
        }
        program.job.close().unwrap();
        (world, pool)
    };
    let prune = |pool: &Pool| prune(pool, "job", &last(1));
    let (calm, pool) = prepared();
    let before = calm.ops();
    let rewritten = prune(&pool).unwrap();
    assert!(!rewritten.plan.rewritten.is_empty() && rewritten.deleted > 0, "{rewritten:?}");
    let mut frugal = 0;
    for op in before..calm.ops() {
        let (world, pool) = prepared();
        world.fail_at(op, ErrorKind::Full);
        match prune(&pool) {
            Ok(report) if report.plan.rewritten.is_empty() => {
                assert!(report.deleted > 0, "{op}: {report:?}");
                // The copies made by then are gone, too: the gc was to free space, not to take it.
                let thoroughness = Thoroughness { rewrite: false, ..Thoroughness::default() };
                let again = GcOptions { thoroughness, ..GcOptions::default() };
                assert_eq!(collect(&pool, &again).unwrap().deleted, 0, "{op}: nothing was left");
                frugal += 1;
            }
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::Full, "{op}: {error}"),
        }
        assert_eq!(Program::start(&pool, "job").job.verify(None).unwrap().findings, vec![], "{op}");
    }
    assert!(frugal > 0);
}

/// The sequence that is crashed: two jobs, one of which shares the other's chunks; a prune, a gc.
fn story(world: &FaultWorld) -> Result<()> {
    let pool = pool_of(world.target(), world.log());
    let states = story_states();
    {
        let program = Program::start(&pool, "job");
        for state in &states {
            program.save(state)?;
        }
        Program::start(&pool, "other").save(&states[0])?;
    }
    prune(&pool, "job", &last(2))?;
    gc(&pool)?;
    Ok(())
}

fn story_states() -> Vec<State> {
    let mut state =
        State::from([("a".to_owned(), noise(1, 200_000)), ("b".to_owned(), vec![7; 9])]);
    let mut states = vec![state.clone()];
    for step in 0..5 {
        change(&mut state, "a", step * 9, step as u64 + 50);
        states.push(state.clone());
    }
    states
}

#[test]
fn a_crash_at_any_operation_loses_nothing_kept() {
    let states = story_states();
    let calm = FaultWorld::new();
    story(&calm).unwrap();
    let first = {
        let world = FaultWorld::new();
        let pool = pool_of(world.target(), world.log());
        let program = Program::start(&pool, "job");
        for state in &states {
            program.save(state).unwrap();
        }
        drop(program);
        Program::start(&pool, "other").save(&states[0]).unwrap();
        world.ops()
    };
    assert!(calm.ops() > first + 20, "there is something to crash: {first} to {}", calm.ops());
    for number in first..calm.ops() {
        for mode in CutMode::ALL {
            let what =
                format!("{mode:?} at {number}: {}", calm.op_name(number).unwrap_or_default());
            let world = FaultWorld::new();
            world.cut_at(number, mode);
            // The very last operation, the end of the gc's session, may fail silently.
            let _ = story(&world);
            let (target, log) = world.reboot();
            let pool = pool_of(target, log);
            // The two newest checkpoints exist in any case, and so does the other job's.
            let kept = epochs(&pool, "job");
            assert!(kept == [5, 6] || kept == [1, 2, 3, 4, 5, 6], "{what}: {kept:?}");
            let found: BTreeMap<Epoch, State> =
                kept.iter().map(|epoch| (*epoch, states[*epoch as usize - 1].clone())).collect();
            check(&pool, "job", &found, &what);
            check(&pool, "other", &[(1, states[0].clone())].into(), &what);
            // The next gc completes it, and leaves no garbage.
            prune(&pool, "job", &last(2)).unwrap();
            let after = gc(&pool).unwrap();
            assert_eq!((after.held, after.damaged.len()), (0, 0), "{what}");
            let kept: BTreeMap<Epoch, State> =
                [5, 6].map(|epoch| (epoch, states[epoch as usize - 1].clone())).into();
            check(&pool, "job", &kept, &what);
            check(&pool, "other", &[(1, states[0].clone())].into(), &what);
            let (packs, bytes) = (pool.packs().unwrap().len(), stored_bytes(&pool));
            // Where the crash came between the reports to the two jobs, both have a copy. Small
            // packs of the three checkpoints stay apart.
            assert!(packs <= 8 && bytes < 620_000, "{what}: {packs} packs, {bytes} bytes");
            assert_eq!(pool.unfinished_packs().unwrap(), vec![], "{what}");
        }
    }
}

#[test]
fn savers_and_gcs_at_once() {
    let pool = Pool::new(
        small_config(),
        std::sync::Arc::new(outlive_backend::MemoryTarget::new()),
        std::sync::Arc::new(outlive_log::MemoryLog::new()),
        Environment::system(),
    );
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    // Programs compute between saves, while a gc advances.
    let wait_for_gc = || {
        let seen = rounds.load(Ordering::Relaxed);
        let goes_on = || rounds.load(Ordering::Relaxed) > seen || stop.load(Ordering::Relaxed);
        until("a round of gcs", goes_on);
    };
    let saver = |name: &'static str, seed: u64| {
        let mut state = State::from([("a".to_owned(), noise(1, 300_000))]);
        let mut program = Program::start(&pool, name);
        let mut states = BTreeMap::new();
        for step in 0..400u64 {
            match step % 10 {
                // The other programs save this, too: chunks are shared.
                3 => {
                    state.insert("a".to_owned(), noise(step / 10 % 3, 300_000));
                }
                7 => {
                    drop(program);
                    program = Program::start(&pool, name);
                    // It alternates: it continues from the newest, or only reads it.
                    match step % 20 {
                        7 => drop(program.restore(Select::Newest).unwrap()),
                        _ => drop(program.job.restore_alone(Select::Newest, &mut |_, _| Ok(()))),
                    }
                }
                _ => change(&mut state, "a", (step * 5 % 70) as usize, seed + step),
            }
            let stats = program.save(&state).unwrap_or_else(|e| panic!("{name} {step}: {e}"));
            if step % 5 == 4 {
                wait_for_gc();
            }
            states.insert(stats.epoch, state.clone());
        }
        states
    };
    let mut saved = BTreeMap::new();
    let mut collected = 0;
    std::thread::scope(|scope| {
        let savers = ["x", "y", "z"].map(|name| {
            let seed = u64::from(name.as_bytes()[0]) * 1000;
            (name, scope.spawn(move || saver(name, seed)))
        });
        let collector = scope.spawn(|| {
            let (mut deleted, mut fenced) = (0, 0);
            while !stop.load(Ordering::Relaxed) {
                for job in ["x", "y", "z"] {
                    if epochs(&pool, job).len() > 4 {
                        match prune(&pool, job, &last(4)) {
                            Ok(report) => deleted += report.deleted,
                            Err(error) => {
                                let kind = error.kind();
                                let fine = matches!(kind, ErrorKind::Fenced | ErrorKind::Retry);
                                assert!(fine, "{error}");
                                fenced += 1;
                            }
                        }
                    }
                }
                rounds.fetch_add(1, Ordering::Relaxed);
            }
            assert!(fenced < 1000);
            deleted
        });
        for (name, saver) in savers {
            saved.insert(name, saver.join().unwrap());
        }
        stop.store(true, Ordering::Relaxed);
        collected = collector.join().unwrap();
    });
    assert!(collected > 20, "{collected} packs went while programs saved");
    for (name, states) in saved {
        prune(&pool, name, &last(4)).unwrap();
        let kept = epochs(&pool, name);
        assert_eq!(kept.len(), 4);
        let states = states.into_iter().filter(|(epoch, _)| kept.contains(epoch)).collect();
        check(&pool, name, &states, "in the end");
    }
    let options = GcOptions {
        thoroughness: Thoroughness { unused_max: 0.0, ..Thoroughness::default() },
        ..GcOptions::default()
    };
    collect(&pool, &options).unwrap();
    let bytes = stored_bytes(&pool);
    assert!(bytes < 6_000_000, "{bytes} bytes for three jobs");
}

#[test]
fn however_few_buffers_there_are_a_gc_rewrites_packs() {
    for buffers in [1, 2, 4, 16] {
        let pool = tuned(|tuning| tuning.staging_bytes = buffers * (64 << 10));
        let program = Program::start(&pool, "job");
        // Chunks of a page, since there are zeros between them.
        let mut state = State::from([("a".to_owned(), vec![0; 4 << 20])]);
        for (epoch, every) in (1..).zip([2, 4]) {
            for page in (0..1024).step_by(every) {
                change(&mut state, "a", page, epoch * 1024 + page as u64);
            }
            program.save(&state).unwrap();
        }
        let drop = BTreeMap::from([(JobName::new("job").unwrap(), [1].into())]);
        let thoroughness = Thoroughness { unused_max: 0.0, ..Thoroughness::default() };
        let options = GcOptions { drop, thoroughness, ..GcOptions::default() };
        let report = collect(&pool, &options).unwrap();
        assert!(report.plan.copied_bytes >= 1 << 20, "{report:?}");
        let whole = BTreeMap::from([(2, state)]);
        check(&pool, "job", &whole, "rewritten");
    }
}
