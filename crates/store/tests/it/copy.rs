//! Copies between pools: which data arrives and is sent, which copies are refused, where they may
//! stop.

use crate::common;
use crate::stepped;

use common::{Program, State, changed, memory_pool, noise, pool_of, small_config};
use outlive_backend::{CutMode, FaultWorld, MemoryTarget};
use outlive_files::{PutFiles, PutOptions, PutSource};
use outlive_format::Remarks;
use outlive_log::MemoryLog;
use outlive_pool::{Environment, Pool};
use outlive_store::copy::{CopyOptions, CopyReport, copy, plan};
use outlive_store::diff::{Side, diff};
use outlive_store::gc::{GcOptions, Thoroughness, collect};
use outlive_store::{Job, SaveNotes, Select};
use outlive_types::{Epoch, ErrorKind, JobName, Result};
use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stepped::{Steps, World, at_each_failure};

fn name(job: &str) -> JobName {
    JobName::new(job).unwrap()
}

fn one(job: &str) -> CopyOptions {
    CopyOptions { jobs: vec![name(job)], ..CopyOptions::default() }
}

fn state(seed: u64) -> State {
    State::from([
        ("a".to_owned(), noise(seed, 150_000)),
        ("b".to_owned(), vec![seed as u8; 50]),
        ("zero".to_owned(), vec![0; (2 << 20) + 4096]),
    ])
}

type States = BTreeMap<Epoch, State>;

/// Four checkpoints of a job; the last has nothing in common with the first.
fn past(pool: &Pool, job: &str) -> States {
    let program = Program::start(pool, job);
    let second = changed(state(1), 3, 7);
    let states = [state(1), second.clone(), changed(second, 30, 8), state(2)];
    states.iter().for_each(|state| assert!(program.save(state).is_ok()));
    (1..).zip(states).collect()
}

fn epochs(pool: &Pool, job: &str) -> Vec<Epoch> {
    let job = Job::open(pool, job, Default::default()).unwrap();
    job.epochs().unwrap().iter().map(|info| info.epoch).collect()
}

fn check(pool: &Pool, job: &str, states: &States, what: &str) {
    assert_eq!(epochs(pool, job), states.keys().copied().collect::<Vec<_>>(), "{what}: {job}");
    let program = Program::start(pool, job);
    for (epoch, state) in states {
        let restored = program.restore(Select::Epoch(*epoch));
        let (_, restored) = restored.unwrap_or_else(|e| panic!("{what}: {job}: {e}")).unwrap();
        assert!(restored == *state, "{what}: epoch {epoch} of {job}");
    }
}

fn sent(report: &CopyReport) -> Vec<(Epoch, u64)> {
    let copied = report.jobs.iter().flat_map(|job| &job.copied);
    copied.map(|copied| (copied.epoch, copied.sent_bytes)).collect()
}

fn thorough(pool: &Pool, drop: &[Epoch]) -> Result<()> {
    let drop = match drop {
        [] => BTreeMap::new(),
        epochs => [(name("job"), epochs.iter().copied().collect())].into(),
    };
    let thoroughness = Thoroughness { unused_max: 0.0, ..Thoroughness::default() };
    collect(pool, &GcOptions { drop, thoroughness, ..GcOptions::default() }).map(|_| ())
}

#[test]
fn a_copy_equals_its_source_and_only_new_data_is_sent() {
    let (from, to) = (memory_pool(), memory_pool());
    let mut states = past(&from, "job");
    let notes = SaveNotes::new(
        Remarks { pinned: true, label: "good".to_owned(), ..Remarks::default() },
        vec![("loss".to_owned(), 0.5)],
    );
    let program = Program::start(&from, "job");
    program.restore(Select::Newest).unwrap();
    let fifth = changed(state(2), 9, 9);
    let saved = program.job.save_with(&mut program.source(&fifth), notes.unwrap()).unwrap();
    saved.wait(None).unwrap().unwrap();
    states.insert(5, fifth.clone());

    let planned = plan(&from, &to, &CopyOptions::default()).unwrap();
    assert_eq!(planned.jobs[0].copied.len(), 5);
    assert_eq!(to.jobs().unwrap(), [], "a plan writes nothing");
    let report = copy(&from, &to, &CopyOptions::default()).unwrap();
    let sizes = sent(&report);
    assert!(sizes[0].1 > 150_000 && sizes[3].1 > 150_000, "{sizes:?}");
    assert!([1, 2, 4].iter().all(|at| sizes[*at].1 < 10_000), "{sizes:?}");
    check(&to, "job", &states, "copied");
    let manifests = |pool: &Pool| {
        let job = Job::open(pool, "job", Default::default()).unwrap();
        let infos = job.epochs().unwrap();
        let told = infos.into_iter().map(|info| {
            let m = info.manifest;
            (
                m.epoch,
                m.parent,
                m.frozen_ns,
                m.remarks,
                m.metrics,
                m.images.one().unwrap().reference,
            )
        });
        told.collect::<Vec<_>>()
    };
    assert_eq!(manifests(&from), manifests(&to));
    assert!(manifests(&to)[4].3.pinned);

    let records = to.log().numbers(&name("job")).unwrap();
    let again = copy(&from, &to, &CopyOptions::default()).unwrap();
    assert_eq!((sent(&again), again.jobs[0].plan.there.len()), (vec![], 5));
    assert_eq!(
        to.log().numbers(&name("job")).unwrap(),
        records,
        "a job that has all is left alone"
    );

    let sixth = changed(fifth, 20, 10);
    program.save(&sixth).unwrap();
    states.insert(6, sixth);
    let more = copy(&from, &to, &one("job")).unwrap();
    assert!(sent(&more)[0].1 < 10_000 && more.jobs[0].copied[0].new_bytes < 60_000, "{more:?}");
    check(&to, "job", &states, "gone on");
    // The copy is a job like any other: a program continues it, and a gc keeps the data that it
    // needs.
    let program = Program::start(&to, "job");
    program.restore(Select::Newest).unwrap();
    states.insert(7, changed(state(2), 1, 11));
    assert_eq!(program.save(&states[&7]).unwrap().epoch, 7);
    drop(program);
    thorough(&to, &[2]).unwrap();
    states.remove(&2);
    check(&to, "job", &states, "after a gc");
}

#[test]
fn scattered_saves_are_sent_once_and_read_once() {
    let (world, steps, to) = (World::new(), Steps::default(), memory_pool());
    let from = world.stepped(&steps);
    let program = Program::start(&from, "job");
    let mut state = State::from([("a".to_owned(), noise(1, 4 << 20))]);
    let mut stored_bytes = program.save(&state).unwrap().raw_bytes;
    let mut states = States::from([(1, state.clone())]);
    // Series of delta leaves end again and again: then one leaf names chunks of many saves.
    for epoch in 2..=40 {
        for at in 0..20 {
            state =
                changed(state, (epoch as usize * 131 + at * 53) % 1024, epoch * 100 + at as u64);
        }
        let saved = program.save(&state).unwrap();
        stored_bytes += saved.raw_bytes;
        states.insert(epoch, state.clone());
    }
    let before = steps.read_bytes();
    let report = copy(&from, &to, &one("job")).unwrap();
    let sent_bytes: u64 = sent(&report).iter().map(|(_, bytes)| bytes).sum();
    assert!(sent_bytes <= stored_bytes, "{sent_bytes} of {stored_bytes} stored bytes were sent");
    let read_bytes = steps.read_bytes() - before;
    assert!(read_bytes <= 2 * stored_bytes, "{read_bytes} bytes were read for {stored_bytes}");
    check(&to, "job", &states, "copied");
}

#[test]
fn data_that_any_job_there_has_is_not_sent() {
    let (from, to) = (memory_pool(), memory_pool());
    let states = past(&from, "job");
    past(&to, "other");
    let report = copy(&from, &to, &one("job")).unwrap();
    let total: u64 = sent(&report).iter().map(|(_, bytes)| bytes).sum();
    let found: u64 = report.jobs[0].copied.iter().map(|copied| copied.found_bytes).sum();
    // The index knows the contents of the newest checkpoint's segments.
    assert!(total < 20_000 && found > 300_000, "{total} sent, {found} found");
    check(&to, "job", &states, "borrowed");
    thorough(&to, &[]).unwrap();
    check(&to, "job", &states, "after a gc");
}

#[test]
fn a_pool_copied_onto_itself() {
    let pool = memory_pool();
    let states = past(&pool, "job");
    let nothing = copy(&pool, &pool, &CopyOptions::default()).unwrap();
    assert_eq!((sent(&nothing), nothing.jobs[0].plan.there.len()), (vec![], 4));
    let rename = CopyOptions { rename: Some(name("fork / ü")), ..one("job") };
    let report = copy(&pool, &pool, &rename).unwrap();
    assert_eq!(report.jobs[0].copied.len(), 4);
    check(&pool, "fork / ü", &states, "forked");
    thorough(&pool, &[1, 2, 3]).unwrap();
    check(&pool, "fork / ü", &states, "its origin pruned");
}

#[test]
fn other_histories_are_refused() {
    let (from, to) = (memory_pool(), memory_pool());
    let states = past(&from, "job");
    let refused = |options: &CopyOptions, part: &str| {
        let error = copy(&from, &to, options).unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && error.message().contains(part), "{error}");
    };
    refused(&one("nobody"), "nobody");
    refused(&CopyOptions { epochs: [1].into(), ..CopyOptions::default() }, "one job");
    refused(&CopyOptions { epochs: [9].into(), ..one("job") }, "no checkpoint 9");
    // Some epochs first: an older one cannot follow.
    copy(&from, &to, &CopyOptions { epochs: [2].into(), ..one("job") }).unwrap();
    refused(&CopyOptions { epochs: [1].into(), ..one("job") }, "put behind");
    let rest = copy(&from, &to, &one("job")).unwrap();
    assert_eq!((&rest.jobs[0].plan.behind, &rest.jobs[0].plan.there), (&vec![1], &vec![2]));
    assert_eq!(rest.jobs[0].copied.iter().map(|c| c.epoch).collect::<Vec<_>>(), [3, 4]);
    // Both jobs continue, each in its own way.
    for (pool, seed) in [(&from, 21), (&to, 22)] {
        let program = Program::start(pool, "job");
        program.restore(Select::Newest).unwrap();
        program.save(&changed(state(2), 5, seed)).unwrap();
    }
    refused(&one("job"), "checkpoint 5 is another");
    let mut both: States = states.clone();
    both.insert(5, changed(state(2), 5, 21));
    copy(&from, &to, &CopyOptions { rename: Some(name("mine")), ..one("job") }).unwrap();
    check(&to, "mine", &both, "both are kept");

    // Nothing in common any more: only the user can decide.
    let (from, to) = (memory_pool(), memory_pool());
    past(&from, "job");
    copy(&from, &to, &one("job")).unwrap();
    let program = Program::start(&from, "job");
    program.restore(Select::Newest).unwrap();
    program.save(&state(2)).unwrap();
    drop(program);
    thorough(&from, &[1, 2, 3, 4]).unwrap();
    let error = copy(&from, &to, &one("job")).unwrap_err();
    assert!(error.message().contains("--same-history"), "{error}");
    let known = CopyOptions { same_history: true, ..one("job") };
    assert_eq!(sent(&copy(&from, &to, &known).unwrap()).len(), 1);
    assert_eq!(epochs(&to, "job"), [1, 2, 3, 4, 5]);

    let mut config = small_config();
    config.format.chunk_bytes_max = 8 << 10;
    let small = Pool::new(
        config,
        Arc::new(MemoryTarget::new()),
        Arc::new(MemoryLog::new()),
        Environment::system(),
    );
    let error = copy(&from, &small, &one("job")).unwrap_err();
    assert!(error.message().contains("chunk_bytes_max"), "{error}");
}

#[test]
fn damage_is_left_out() {
    let world = FaultWorld::new();
    let (from, to) = (pool_of(world.target(), world.log()), memory_pool());
    let states = past(&from, "job");
    // A chunk of the last checkpoint, which no other one needs.
    let needle = &states[&4]["a"][..64];
    for shard in world.target().list().unwrap() {
        let length = world.target().length(shard).unwrap() as usize;
        let range = outlive_backend::ReadRange::new(0, outlive_io::AlignedBuf::zeroed(length));
        let bytes = world.target().read_ranges(shard, vec![range]).pop().unwrap().wait().unwrap();
        if let Some(at) = bytes.windows(64).position(|window| window == needle) {
            world.corrupt(shard, at as u64 + 5, 1);
        }
    }
    let report = copy(&from, &to, &one("job")).unwrap();
    let job = &report.jobs[0];
    assert!(!report.is_whole());
    assert_eq!((job.damaged.len(), job.damaged[0].0), (1, 4), "{job:?}");
    let good: States = states.into_iter().filter(|(epoch, _)| *epoch < 4).collect();
    check(&to, "job", &good, "the rest");
}

fn files_pool() -> Pool {
    let mut config = small_config();
    config.format.container_bytes = 256 << 10;
    config.format.pack_bytes = 1 << 20;
    let (target, log) = (Arc::new(MemoryTarget::new()), Arc::new(MemoryLog::new()));
    Pool::new(config, target, log, Environment::system())
}

#[test]
fn files_are_copied_too() {
    let (from, to) = (files_pool(), files_pool());
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join("tree").join(name);
    fs::create_dir_all(at("sub")).unwrap();
    fs::write(at("large"), noise(1, 2_000_000)).unwrap();
    fs::write(at("sub/other"), noise(2, 1_500_000)).unwrap();
    fs::write(at("small"), b"x").unwrap();
    let job = Job::open(&from, "files", Default::default()).unwrap();
    let paths = [dir.path().join("tree")];
    let put = || job.put(PutSource::Paths(&paths), &PutOptions::default()).unwrap();
    put();
    let mut large = noise(1, 2_000_000);
    large[1_000_000] ^= 1;
    fs::write(at("large"), large).unwrap();
    put();
    let first = copy(&from, &to, &one("files")).unwrap();
    let sizes = sent(&first);
    assert!(sizes[0].1 > 3_000_000 && sizes[1].1 < 200_000, "{sizes:?}");
    fs::write(at("new"), noise(3, 50_000)).unwrap();
    put();
    // Memory and files in one job.
    let program = Program::start(&from, "files");
    program.save(&state(3)).unwrap();
    drop(program);
    let job = Job::open(&from, "files", Default::default()).unwrap();
    job.put(PutSource::Paths(&paths), &PutOptions::default()).unwrap();
    let second = copy(&from, &to, &one("files")).unwrap();
    let sizes = sent(&second);
    assert!(sizes.len() == 3 && sizes[0].1 < 200_000 && sizes[2].1 < 100_000, "{sizes:?}");
    thorough(&to, &[]).unwrap();
    let there = Job::open(&to, "files", Default::default()).unwrap();
    let verified = there.verify(None).unwrap();
    assert_eq!((verified.whole, verified.findings.len()), (5, 0), "{verified:?}");
    for epoch in [1, 2, 3, 5] {
        let items = |job: &Job| {
            let mut items = job.files(Select::Epoch(epoch)).unwrap().unwrap().0.items();
            let mut all = Vec::new();
            while let Some(item) = items.next_item().unwrap() {
                all.push(item);
            }
            all
        };
        assert_eq!(items(&there), items(&job), "epoch {epoch}");
    }
    let chosen = |epoch| Side { job: name("files"), select: Select::Epoch(epoch), rank: None };
    assert!(diff(&to, [&chosen(3), &chosen(5)], false).unwrap().is_same());
}

/// A copy is cut off at every durable step, in every way, and run again.
#[test]
fn a_copy_that_is_cut_anywhere_goes_on() {
    let from = memory_pool();
    let states = past(&from, "job");
    let calm = FaultWorld::new();
    past(&pool_of(calm.target(), calm.log()), "other");
    let first = calm.ops();
    copy(&from, &pool_of(calm.target(), calm.log()), &one("job")).unwrap();
    let last = calm.ops();
    assert!(last > first + 10, "{first} to {last}");
    for number in first..last {
        for mode in CutMode::ALL {
            let world = FaultWorld::new();
            past(&pool_of(world.target(), world.log()), "other");
            world.cut_at(number, mode);
            let cut = copy(&from, &pool_of(world.target(), world.log()), &one("job"));
            let what = format!("cut at {number}, {mode:?}: {cut:?}");
            let (target, log) = world.reboot();
            let to = pool_of(target, log);
            let before = epochs(&to, "job");
            check(&to, "job", &states.clone().into_iter().take(before.len()).collect(), &what);
            let report = copy(&from, &to, &one("job")).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(report.jobs[0].plan.there, before, "{what}");
            check(&to, "job", &states, &what);
            thorough(&to, &[]).unwrap();
            check(&to, "job", &states, &what);
        }
    }
}

/// One operation fails, and the copy goes on or is run again.
#[test]
fn a_copy_one_of_whose_steps_fails() {
    let from = memory_pool();
    let states = past(&from, "job");
    at_each_failure(&mut |to, what| {
        let failed = copy(&from, to, &one("job"));
        if failed.is_err() {
            copy(&from, to, &one("job")).unwrap();
        }
        check(to, "job", &states, &format!("{what}: {failed:?}"));
        failed.is_err()
    });
}

/// A whole gc runs, in one pool or the other, before each step of the copy there.
#[test]
fn a_gc_within_a_copy_at_every_step() {
    for in_target in [false, true] {
        let mut at = 0;
        loop {
            let (here, there) = (World::new(), World::new());
            let states = past(&here.pool(), "job");
            // The destination has a job with the same chunks, which the gc prunes, and the first
            // two epochs.
            past(&there.pool(), "other");
            let early = CopyOptions { epochs: [1, 2].into(), ..one("job") };
            copy(&here.pool(), &there.pool(), &early).unwrap();
            let steps = Steps::default();
            let world = if in_target { &there } else { &here };
            let (gc, drop_there) = (world.pool(), in_target);
            steps.hook(move |number, _| {
                if number == at {
                    let job = if drop_there { "other" } else { "job" };
                    let drop = [(name(job), [1, 2, 3].into())].into();
                    let thoroughness = Thoroughness { unused_max: 0.0, ..Thoroughness::default() };
                    let options = GcOptions { drop, thoroughness, ..GcOptions::default() };
                    collect(&gc, &options).unwrap();
                }
            });
            let stepped = world.stepped(&steps);
            let plain = if in_target { here.pool() } else { there.pool() };
            let (from, to) = if in_target { (&plain, &stepped) } else { (&stepped, &plain) };
            let what = format!("a gc in the target {in_target}, before step {at}");
            let known = CopyOptions { same_history: true, ..one("job") };
            let report = copy(from, to, &known).unwrap_or_else(|e| panic!("{what}: {e}"));
            let mut expected = states.clone();
            expected.retain(|epoch, _| {
                *epoch <= 2 || report.jobs[0].copied.iter().any(|copied| copied.epoch == *epoch)
            });
            assert!(report.is_whole(), "{what}: {report:?}");
            assert!(expected.contains_key(&4), "{what}: {report:?}");
            check(&there.pool(), "job", &expected, &what);
            for _ in 0..2 {
                thorough(&there.pool(), &[]).unwrap();
                check(&there.pool(), "job", &expected, &what);
            }
            if at >= steps.count() {
                break;
            }
            at += 1;
        }
        assert!(at > 8, "{at} steps");
    }
}

/// The base of the copy is pruned at the destination, at every step.
#[test]
fn a_prune_of_the_base_within_a_copy() {
    let mut at = 0;
    loop {
        let (here, there) = (World::new(), World::new());
        let states = past(&here.pool(), "job");
        copy(&here.pool(), &there.pool(), &CopyOptions { epochs: [1].into(), ..one("job") })
            .unwrap();
        let steps = Steps::default();
        let gc = there.pool();
        steps.hook(move |number, _| {
            if number == at {
                // Refused while it is the newest and the copy's session is open.
                let _ = thorough(&gc, &[1]);
            }
        });
        let what = format!("a prune before step {at}");
        let known = CopyOptions { same_history: true, ..one("job") };
        let report = copy(&here.pool(), &there.stepped(&steps), &known);
        let report = report.unwrap_or_else(|e| panic!("{what}: {e}"));
        let kept = epochs(&there.pool(), "job");
        assert!(kept.ends_with(&[2, 3, 4]), "{what}: {kept:?}, {report:?}");
        let expected: States =
            states.into_iter().filter(|(epoch, _)| kept.contains(epoch)).collect();
        thorough(&there.pool(), &[]).unwrap();
        check(&there.pool(), "job", &expected, &what);
        if at >= steps.count() {
            break;
        }
        at += 1;
    }
    assert!(at > 8, "{at} steps");
}

/// A second copy begins and ends before each step of the first.
#[test]
fn two_copies_at_once() {
    let (mut at, mut fenced) = (0, 0);
    loop {
        let (here, there) = (World::new(), World::new());
        let states = past(&here.pool(), "job");
        let steps = Steps::default();
        let (from, to) = (here.pool(), there.pool());
        let ran = Arc::new(AtomicBool::new(false));
        let done = ran.clone();
        steps.hook(move |number, _| {
            if number == at {
                copy(&from, &to, &one("job")).unwrap();
                done.store(true, Ordering::Release);
            }
        });
        if let Err(error) = copy(&here.pool(), &there.stepped(&steps), &one("job")) {
            assert_eq!(error.kind(), ErrorKind::Fenced, "{at}: {error}");
            fenced += 1;
        }
        check(&there.pool(), "job", &states, &format!("before step {at}"));
        if !ran.load(Ordering::Acquire) {
            break;
        }
        at += 1;
    }
    assert!(at > 8 && fenced > 4, "{fenced} of {at}");
}
