//! Scrubs: which faults they find, how they deal with them, and how saves go on after that.

use crate::common;
use crate::stepped;

use common::{Program, State, changed, noise, pool_of, tuned_on};
use outlive_backend::{CutMode, FaultWorld, ShardName, Target};
use outlive_files::{PutFiles, PutOptions, PutSource};
use outlive_log::{Lock, ManifestLog};
use outlive_pool::Pool;
use outlive_store::gc::{GcOptions, GcReport, Thoroughness, collect};
use outlive_store::scrub::{ScrubOptions, ScrubReport, scrub};
use outlive_store::{Job, Sample, Select};
use outlive_types::{Epoch, ErrorKind, JobName, PAGE_BYTES, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use stepped::{SteppedLog, SteppedTarget, Steps};

fn name(job: &str) -> JobName {
    JobName::new(job).unwrap()
}

fn options(dry_run: bool) -> ScrubOptions {
    ScrubOptions { sample: Sample::ALL, bytes_per_s: None, dry_run }
}

fn pool(world: &FaultWorld) -> Pool {
    pool_of(world.target(), world.log())
}

fn gc(pool: &Pool) -> Result<GcReport> {
    let thoroughness = Thoroughness { unused_max: 0.0, ..Thoroughness::default() };
    collect(pool, &GcOptions { thoroughness, ..GcOptions::default() })
}

fn state(seed: u64) -> State {
    State::from([("a".to_owned(), noise(seed, 120_000)), ("b".to_owned(), vec![seed as u8; 50])])
}

type Expected = BTreeMap<&'static str, BTreeMap<Epoch, State>>;

/// Job `a` has two checkpoints, and `b` shares most of the second.
fn past(pool: &Pool) -> Expected {
    let mut expected = Expected::new();
    let program = Program::start(pool, "a");
    for (epoch, state) in [(1, state(1)), (2, changed(state(1), 3, 77))] {
        program.save(&state).unwrap();
        expected.entry("a").or_default().insert(epoch, state);
    }
    drop(program);
    let borrowing = changed(state(1), 9, 78);
    Program::start(pool, "b").save(&borrowing).unwrap();
    expected.entry("b").or_default().insert(1, borrowing);
    expected
}

/// Checks that all checkpoints that are not in `incomplete` are whole. The others are damaged, or
/// whole again: a save may have stored the lost data again.
fn check(
    pool: &Pool,
    expected: &Expected,
    incomplete: &BTreeMap<JobName, BTreeSet<Epoch>>,
    what: &str,
) {
    for (job, states) in expected {
        let program = Program::start(pool, job);
        for (epoch, state) in states {
            let is_incomplete =
                incomplete.get(&name(job)).is_some_and(|incomplete| incomplete.contains(epoch));
            match program.restore(Select::Epoch(*epoch)) {
                Ok(Some((_, restored))) => {
                    assert!(restored == *state, "{what}: epoch {epoch} of {job}");
                }
                Ok(None) => panic!("{what}: {job} is gone"),
                Err(error) => {
                    let kind = error.kind();
                    assert_eq!(kind, ErrorKind::Damaged, "{what}: {error}");
                    assert!(is_incomplete, "{what}: epoch {epoch} of {job}: {error}");
                }
            }
        }
    }
}

fn pages(world: &FaultWorld) -> Vec<(ShardName, u64)> {
    let target = world.target();
    let shards = target.list().unwrap();
    let pages = |shard: &ShardName| target.length(*shard).unwrap() / PAGE_BYTES as u64;
    shards.iter().flat_map(|shard| (0..pages(shard)).map(|page| (*shard, page))).collect()
}

#[test]
fn whole_packs_are_left_alone() {
    let world = FaultWorld::new();
    let pool = pool(&world);
    let report = scrub(&pool, &options(false)).unwrap();
    assert_eq!(report, ScrubReport::default());
    let expected = past(&pool);
    let before = world.ops();
    let report = scrub(&pool, &options(false)).unwrap();
    assert!(report.is_whole() && report.packs == 3 && report.read_bytes > 120_000, "{report:?}");
    assert_eq!(world.ops(), before, "nothing was written");
    let sampled = ScrubOptions {
        sample: Sample::new(0.0, &*pool.env().rng),
        bytes_per_s: Some(1 << 30),
        dry_run: false,
    };
    assert_eq!(scrub(&pool, &sampled).unwrap().packs, 1, "a sample is never empty");
    check(&pool, &expected, &BTreeMap::new(), "whole");
}

/// A running program may meet a shard that a later build has encrypted: nothing is moved out of it,
/// and no gc deletes it.
#[test]
fn a_shard_of_a_later_build_is_no_damage() {
    let world = FaultWorld::with_locks();
    let pool = pool(&world);
    let expected = past(&pool);
    let (_, shard, bytes) = world.stored().swap_remove(0);
    let mut header = bytes[..4096].to_vec();
    header[72] = 1;
    let sum = outlive_format::checksum(&header[..4088]);
    header[4088..].copy_from_slice(&sum.to_le_bytes());
    for (at, (old, new)) in bytes.iter().zip(&header).enumerate().filter(|(_, (a, b))| a != b) {
        world.corrupt(shard, at as u64, old ^ new);
    }
    let before = world.ops();
    let error = scrub(&pool, &options(false)).unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.is_newer(), "{error}");
    assert!(error.message().contains("features of a later build"), "{error}");
    assert_eq!(world.ops(), before, "nothing was written");
    let _ = gc(&pool);
    assert!(world.target().list().unwrap().contains(&shard));
    check(&pool, &expected, &BTreeMap::new(), "a later build's");
}

/// A scrub may have read for hours: it reports its findings, whatever keeps it from a repair.
#[test]
fn damage_is_told_though_another_collects() {
    let world = FaultWorld::with_locks();
    let pool = pool(&world);
    past(&pool);
    let (shard, page) = pages(&world)[3];
    world.corrupt(shard, page * PAGE_BYTES as u64 + 40, 0x10);
    let Lock::Taken(collecting) = pool.log().lock_collecting().unwrap() else { panic!() };
    let report = scrub(&pool, &options(false)).unwrap();
    assert_eq!(report.damaged.len(), 1);
    let blocked = report.blocked.as_ref().unwrap();
    assert!(blocked.kind() == ErrorKind::Retry && !report.is_whole(), "{blocked}");
    drop(collecting);
    let report = scrub(&pool, &options(false)).unwrap();
    assert!(report.blocked.is_none() && report.heal.condemned.len() == 1, "{report:?}");
}

/// Missing packs cannot be read, and are reported all the same.
#[test]
fn missing_packs_are_reported_though_another_process_collects() {
    let world = FaultWorld::with_locks();
    let pool = pool(&world);
    past(&pool);
    let gone = world.target().list().unwrap()[0];
    world.target().delete(gone).unwrap();
    let Lock::Taken(_collecting) = pool.log().lock_collecting().unwrap() else { panic!() };
    let report = scrub(&pool, &options(false)).unwrap();
    assert!(report.damaged.is_empty() && report.heal.missing.contains(&gone.pack), "{report:?}");
    assert!(report.is_incomplete() && report.blocked.unwrap().kind() == ErrorKind::Retry);
}

/// Wherever a scrub fails, it reports its findings and work until then.
#[test]
fn a_scrub_that_fails_reports_its_work() {
    let prepare = |world: &FaultWorld| {
        past(&pool(world));
        let (shard, page) = pages(world)[6];
        world.corrupt(shard, page * PAGE_BYTES as u64 + 40, 0x10);
    };
    let (mut blocked, mut told) = (0, 0);
    for after in 0.. {
        let world = FaultWorld::new();
        prepare(&world);
        let failing = world.ops() + after;
        world.fail_at(failing, ErrorKind::Full);
        let report = scrub(&pool(&world), &options(false)).unwrap();
        let what = format!("failed at {after}: {report:?}");
        assert!(report.damaged.len() == 1 && report.heal.condemned.len() == 1, "{what}");
        if world.ops() <= failing {
            break;
        }
        // The scrub that did the rest has found the same.
        let again = scrub(&pool(&world), &options(false)).unwrap();
        assert!(again.blocked.is_none(), "{what}, {again:?}");
        let incomplete = |job| again.heal.incomplete.get(job);
        let is_known =
            |(job, epochs)| incomplete(job).is_some_and(|known| known.is_superset(epochs));
        assert!(report.heal.incomplete.iter().all(is_known), "{what}, {again:?}");
        blocked += u32::from(report.blocked.is_some());
        told += u32::from(report.blocked.is_some() && !report.heal.incomplete.is_empty());
    }
    assert!(blocked > 4 && told > 0, "{blocked} blocked, {told} told");
}

/// A scrub counts no data as lost that it cannot read at the moment, whichever of its reads fails.
#[test]
fn data_that_cannot_be_read_just_now_is_not_lost() {
    let prepare = || {
        let world = FaultWorld::new();
        Program::start(&pool(&world), "a").save(&state(1)).unwrap();
        let (shard, page) = pages(&world)[5];
        world.corrupt(shard, page * PAGE_BYTES as u64, 1);
        world
    };
    let calm = scrub(&pool(&prepare()), &options(false)).unwrap().heal;
    assert!(calm.lost == 1 && calm.moved > 4, "{calm:?}");
    let mut failed = 0;
    for after in 0.. {
        let world = prepare();
        world.count_reads(true);
        let failing = world.ops() + after;
        world.fail_at(failing, ErrorKind::Retry);
        let cut = scrub(&pool(&world), &options(false));
        let what = format!("failed at {:?}: {cut:?}", world.op_name(failing));
        if world.ops() <= failing {
            break;
        }
        let error = match cut {
            Ok(report) => {
                assert!(report.heal.lost <= calm.lost, "{what}");
                report.blocked
            }
            Err(error) => Some(error),
        };
        failed += u32::from(error.is_some_and(|error| error.kind() == ErrorKind::Retry));
        // The next scrub, which can read everything, finds the same damage as a first one.
        let again = scrub(&pool(&world), &options(false)).unwrap();
        assert!(again.blocked.is_none(), "{what}, {again:?}");
        assert_eq!(again.heal.incomplete, calm.incomplete, "{what}");
    }
    assert!(failed > 50, "{failed} reads kept a scrub from its work");
}

/// A scrub does not know yet what a save under way needs, so it leaves a damaged pack of that save
/// to the next scrub.
#[test]
fn a_damaged_pack_of_a_save_under_way_is_left_to_the_next_scrub() {
    let world = FaultWorld::new();
    past(&pool(&world));
    let old: BTreeSet<ShardName> = world.target().list().unwrap().into_iter().collect();
    let (steps, appends, found) = (Steps::default(), AtomicU64::new(0), Arc::default());
    let (here, other, finds): (_, _, Arc<Mutex<Option<_>>>) =
        (world.clone(), pool(&world), Arc::clone(&found));
    steps.hook(move |_, op| {
        // Its session, then the checkpoint.
        if op == "append" && appends.fetch_add(1, Ordering::AcqRel) == 1 {
            let there = here.target().list().unwrap();
            let new = there.into_iter().find(|shard| !old.contains(shard)).unwrap();
            here.corrupt(new, 5 * PAGE_BYTES as u64, 1);
            *finds.lock().unwrap() = Some((new.pack, scrub(&other, &options(false))));
        }
    });
    let program = Program::start(&stepped(&world, &steps), "new");
    let epoch = program.save(&state(5)).unwrap().epoch;
    let (pack, report) = found.lock().unwrap().take().unwrap();
    let report = report.unwrap();
    assert_eq!(report.heal.pending, [pack].into(), "{report:?}");
    assert!(report.heal.unneeded.is_empty() && report.is_incomplete(), "{report:?}");
    let report = scrub(&pool(&world), &options(false)).unwrap();
    assert_eq!(report.heal.condemned, [pack].into(), "{report:?}");
    assert_eq!(report.heal.incomplete, [(name("new"), [epoch].into())].into(), "{report:?}");
}

/// Every page of every pack is damaged in turn, while two programs run.
#[test]
fn saves_after_damage_of_any_page_are_whole() {
    let calm = FaultWorld::new();
    let expected = past(&pool(&calm));
    let number_of_pages = pages(&calm).len();
    assert!(number_of_pages > 30, "{number_of_pages}");
    let (mut incomplete, mut moved) = (0, 0);
    for number in 0..number_of_pages {
        let world = FaultWorld::new();
        let pool = pool(&world);
        let mut expected = { past(&pool) };
        // One program goes on, and one begins without a look at the past.
        let programs = [("a", Program::start(&pool, "a")), ("b", Program::start(&pool, "b"))];
        for (job, program) in &programs {
            program.restore(Select::Newest).unwrap();
            let next = changed(expected[job].values().last().unwrap().clone(), 20, 5);
            let epoch = program.save(&next).unwrap().epoch;
            expected.get_mut(job).unwrap().insert(epoch, next);
        }
        let (shard, page) = pages(&world)[number];
        world.corrupt(shard, page * PAGE_BYTES as u64 + 40, 0x10);
        let what = format!("page {page} of {shard}");
        let before = world.ops();
        let told = scrub(&pool, &options(true)).unwrap();
        assert_eq!(world.ops(), before, "{what}: a dry run writes nothing");
        let report = scrub(&pool, &options(false)).unwrap();
        assert_eq!(report.damaged.len(), 1, "{what}: {report:?}");
        assert_eq!(told.heal.incomplete, report.heal.incomplete, "{what}");
        assert_eq!(report.heal.condemned.len(), 1, "{what}: {report:?}");
        incomplete += usize::from(!report.heal.incomplete.is_empty());
        moved += report.heal.moved;
        check(&pool, &expected, &report.heal.incomplete, &what);
        for (job, epochs) in &report.heal.incomplete {
            for epoch in epochs {
                let restored = Program::start(&pool, job.as_str()).restore(Select::Epoch(*epoch));
                assert!(restored.is_err(), "{what}: epoch {epoch} of {job} is whole");
            }
        }
        // Incomplete checkpoints stop no gc, and nothing hinders the next saves.
        gc(&pool).unwrap_or_else(|e| panic!("{what}: {e}"));
        for (job, program) in &programs {
            let next = changed(expected[job].values().last().unwrap().clone(), 22, 6);
            let stats = program.save(&next).unwrap_or_else(|e| panic!("{what}: {job}: {e}"));
            expected.get_mut(job).unwrap().insert(stats.epoch, next);
        }
        drop(programs);
        let fresh = Program::start(&pool, "fresh");
        fresh.save(&expected["a"][&1]).unwrap();
        drop(fresh);
        expected.insert("fresh", [(1, expected["a"][&1].clone())].into());
        check(&pool, &expected, &report.heal.incomplete, &format!("{what}, gone on"));
        for _ in 0..2 {
            gc(&pool).unwrap_or_else(|e| panic!("{what}: {e}"));
            check(&pool, &expected, &report.heal.incomplete, &format!("{what}, after a gc"));
        }
        let again = scrub(&pool, &options(false)).unwrap();
        assert_eq!(again.damaged, [], "{what}");
        check(&pool, &expected, &again.heal.incomplete, &what);
        for (job, epochs) in &again.heal.incomplete {
            assert!(epochs.is_subset(&report.heal.incomplete[job]), "{what}: {again:?}");
        }
        // After they are given up, no damage is left.
        let drop = again.heal.incomplete.clone();
        collect(&pool, &GcOptions { drop, ..GcOptions::default() }).unwrap();
        assert!(scrub(&pool, &options(false)).unwrap().is_whole(), "{what}");
    }
    assert!(
        incomplete > 10 && moved > 100,
        "{incomplete} pages spoil a checkpoint, {moved} were moved"
    );
    drop(expected);
}

/// A gc finds a chunk damaged in a pack whose rest it was to move. It leaves the pack where it is:
/// the medium may return the chunk later.
#[test]
fn a_pack_of_which_a_gc_could_not_move_all_stays() {
    let (first, drop) = (state(1), [(name("a"), [1].into())].into());
    let second = changed(changed(first.clone(), 3, 77), 20, 78);
    let without_space = Thoroughness { collect: false, ..Thoroughness::default() };
    let only_drop = GcOptions { drop, thoroughness: without_space, ..GcOptions::default() };
    let (mut page, mut met) = (0, 0);
    loop {
        let world = FaultWorld::new();
        let pool = pool(&world);
        let program = Program::start(&pool, "a");
        program.save(&first).unwrap();
        program.save(&second).unwrap();
        program.job.close().unwrap();
        collect(&pool, &only_drop).unwrap();
        let Some((shard, at)) = pages(&world).get(page).copied() else { break };
        world.corrupt(shard, at * PAGE_BYTES as u64 + 40, 1);
        let collected = gc(&pool);
        let stays = world.target().list().unwrap().contains(&shard);
        if stays {
            world.corrupt(shard, at * PAGE_BYTES as u64 + 40, 1);
        }
        if collected.is_ok_and(|report| !report.damaged.is_empty()) {
            assert!(stays, "page {page} of {shard}");
            met += 1;
        }
        let (_, restored) = Program::start(&pool, "a").restore(Select::Newest).unwrap().unwrap();
        assert!(restored == second, "page {page}");
        page += 1;
    }
    assert!(met > 3, "{met} of {page} pages");
}

#[test]
fn a_second_copy_mends() {
    let world = FaultWorld::new();
    let pool = tuned_on(world.target(), |tuning| {
        tuning.index_bytes_max = 0;
        tuning.compression = "none".to_owned();
    });
    // Without an index, both jobs store everything.
    Program::start(&pool, "a").save(&state(1)).unwrap();
    Program::start(&pool, "b").save(&state(1)).unwrap();
    let shards = world.target().list().unwrap();
    world.corrupt(shards[0], 5 * PAGE_BYTES as u64, 1);
    let report = scrub(&pool, &options(false)).unwrap();
    assert_eq!((report.heal.lost, report.heal.incomplete.len()), (0, 0), "{report:?}");
    assert!(report.heal.found_elsewhere > 0, "{report:?}");
    let expected = [("a", [(1, state(1))].into()), ("b", [(1, state(1))].into())].into();
    check(&pool, &expected, &BTreeMap::new(), "mended");
    gc(&pool).unwrap();
    check(&pool, &expected, &BTreeMap::new(), "mended, after a gc");
}

#[test]
fn a_missing_pack_is_damage_and_all_missing_are_none() {
    let world = FaultWorld::new();
    let pool = pool(&world);
    let expected = past(&pool);
    let shards = world.target().list().unwrap();
    let sessions: Vec<_> = shards.iter().map(|shard| shard.pack.session()).collect();
    // A pack of `a`'s second checkpoint, or of `b`.
    let missing = *shards.iter().find(|s| s.pack.count() == 1).unwrap_or(&shards[0]);
    world.target().delete(missing).unwrap();
    let report = scrub(&pool, &options(false)).unwrap();
    assert_eq!(report.heal.missing, [missing.pack].into(), "{report:?} {sessions:?}");
    assert!(!report.is_whole());
    check(&pool, &expected, &report.heal.incomplete, "one is missing");
    gc(&pool).unwrap();
    check(&pool, &expected, &report.heal.incomplete, "one is missing, after a gc");

    let world = FaultWorld::new();
    let pool = pool_of(world.target(), world.log());
    past(&pool);
    for shard in world.target().list().unwrap() {
        world.target().delete(shard).unwrap();
    }
    let report = scrub(&pool, &options(false)).unwrap();
    let blocked = report.blocked.unwrap();
    assert!(blocked.message().contains("should be"), "{blocked}");
}

#[test]
fn a_log_that_cannot_be_read_blocks() {
    let world = FaultWorld::new();
    let pool = pool(&world);
    past(&pool);
    world.corrupt_record(&name("a"), 2, 60, 1);
    let (shard, _) = pages(&world)[0];
    world.corrupt(shard, 5000, 1);
    let before = world.ops();
    let report = scrub(&pool, &options(false)).unwrap();
    assert!(report.blocked.is_some() && report.damaged.len() == 1, "{report:?}");
    assert_eq!(world.ops(), before);
}

#[test]
fn files_are_read_again() {
    let world = FaultWorld::new();
    let mut config = common::small_config();
    config.format.container_bytes = 256 << 10;
    config.format.pack_bytes = 1 << 20;
    config.tuning.compression = "none".to_owned();
    let env = outlive_pool::Environment::system();
    let pool = Pool::new(config, world.target(), world.log(), env);
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join("tree").join(name);
    fs::create_dir_all(at("sub")).unwrap();
    fs::write(at("large"), noise(1, 900_000)).unwrap();
    fs::write(at("small"), noise(2, 3000)).unwrap();
    let job = Job::open(&pool, "files", Default::default()).unwrap();
    let paths = [dir.path().join("tree")];
    let put = || job.put(PutSource::Paths(&paths), &PutOptions::default()).unwrap().stats.epoch;
    assert_eq!((put(), put()), (1, 2));
    let shard = world.target().list().unwrap()[0];
    world.corrupt(shard, 50 * PAGE_BYTES as u64, 1);
    let report = scrub(&pool, &options(false)).unwrap();
    assert_eq!(report.heal.lost, 1, "{report:?}");
    assert_eq!(report.heal.incomplete, [(name("files"), [1, 2].into())].into());
    // No file has changed, yet nothing may be taken over.
    assert_eq!(put(), 3);
    let verified = job.verify(Some(3)).unwrap();
    assert_eq!(verified.findings, [], "{verified:?}");
    gc(&pool).unwrap();
    assert_eq!(job.verify(Some(3)).unwrap().findings, []);
    // This also restores the data that the others had lost.
    assert!(scrub(&pool, &options(false)).unwrap().is_whole());
    assert_eq!(job.verify(None).unwrap().findings, []);
}

/// A pool that several processes use, one of which is stopped at steps.
fn stepped(world: &FaultWorld, steps: &Steps) -> Pool {
    let (target, log): (Arc<dyn Target>, Arc<dyn ManifestLog>) = (world.target(), world.log());
    pool_of(
        Arc::new(SteppedTarget(target, steps.clone())),
        Arc::new(SteppedLog(log, steps.clone())),
    )
}

/// A page of data is damaged, and a whole scrub runs before a step of a save.
fn scrub_within_a_save(job: &'static str, page: usize, at: u64) -> bool {
    let world = FaultWorld::new();
    let mut expected = past(&pool(&world));
    let steps = Steps::default();
    let saving = stepped(&world, &steps);
    let program = Program::start(&saving, job);
    if job != "new" {
        program.restore(Select::Newest).unwrap();
    }
    let (shard, page) = pages(&world)[page];
    world.corrupt(shard, page * PAGE_BYTES as u64 + 40, 0x10);
    let other = pool(&world);
    steps.hook(move |number, _| {
        if number == at {
            let report = scrub(&other, &options(false)).unwrap();
            assert!(report.blocked.is_none(), "{report:?}");
        }
    });
    let what = format!("{job}, page {page} of {shard}, a scrub before step {at}");
    let next = changed(state(1), 13, 9);
    let saved = program.save(&next);
    if at >= steps.count() {
        return false;
    }
    steps.hook(|_, _| ());
    let mut epoch = match saved {
        Ok(stats) => stats.epoch,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Retry, "{what}: {error}");
            let stats = program.save(&next).unwrap_or_else(|e| panic!("{what}: {e}"));
            stats.epoch
        }
    };
    // A save that was over before the scrub had read the page may be incomplete; the next one is
    // not.
    let again = changed(next, 14, 10);
    epoch = epoch.max(program.save(&again).unwrap_or_else(|e| panic!("{what}: {e}")).epoch);
    let pool = pool(&world);
    let report = scrub(&pool, &options(false)).unwrap();
    assert_eq!(report.heal.condemned.len(), 0, "{what}: {report:?}");
    expected.entry(job).or_default().insert(epoch, again);
    check(&pool, &expected, &report.heal.incomplete, &what);
    let is_incomplete = report
        .heal
        .incomplete
        .get(&name(job))
        .is_some_and(|incomplete| incomplete.contains(&epoch));
    assert!(!is_incomplete, "{what}: the newest is incomplete");
    drop(program);
    gc(&pool).unwrap_or_else(|e| panic!("{what}: {e}"));
    check(&pool, &expected, &report.heal.incomplete, &what);
    true
}

#[test]
fn a_scrub_within_a_save_at_every_step() {
    let world = FaultWorld::new();
    past(&pool(&world));
    let count = pages(&world).len();
    for job in ["a", "b", "new"] {
        for page in (1..count).step_by(5) {
            let steps = (0..).take_while(|at| scrub_within_a_save(job, page, *at)).count();
            assert!(steps > 8, "{job} has {steps} steps");
        }
    }
}

#[test]
fn a_gc_within_a_scrub_at_every_step() {
    let (mut at, mut fenced) = (0, 0);
    loop {
        let world = FaultWorld::new();
        let expected = past(&pool(&world));
        let (shard, page) = pages(&world)[6];
        world.corrupt(shard, page * PAGE_BYTES as u64 + 40, 0x10);
        let steps = Steps::default();
        let other = pool(&world);
        steps.hook(move |number, _| {
            if number == at {
                // The gc may find the damage itself, and leaves it where it is.
                let _ = gc(&other);
            }
        });
        let what = format!("a gc before step {at}");
        let report = scrub(&stepped(&world, &steps), &options(false));
        if let Err(error) = report.and_then(|report| report.blocked.map_or(Ok(()), Err)) {
            let kind = error.kind();
            assert!(matches!(kind, ErrorKind::Fenced | ErrorKind::Retry), "{what}: {error}");
            fenced += 1;
        }
        let pool = pool(&world);
        let report = scrub(&pool, &options(false)).unwrap();
        assert!(report.blocked.is_none(), "{what}: {report:?}");
        check(&pool, &expected, &report.heal.incomplete, &what);
        for _ in 0..2 {
            gc(&pool).unwrap_or_else(|e| panic!("{what}: {e}"));
            check(&pool, &expected, &report.heal.incomplete, &what);
        }
        if at >= steps.count() {
            break;
        }
        at += 1;
    }
    assert!(at > 20 && fenced > 4, "{fenced} of {at}");
}

#[test]
fn a_scrub_that_is_cut_anywhere_is_done_again() {
    let prepare = |world: &FaultWorld| {
        let expected = past(&pool(world));
        let (shard, page) = pages(world)[6];
        world.corrupt(shard, page * PAGE_BYTES as u64 + 40, 0x10);
        expected
    };
    let calm = FaultWorld::new();
    prepare(&calm);
    let first = calm.ops();
    let whole = scrub(&pool(&calm), &options(false)).unwrap();
    assert!(!whole.heal.incomplete.is_empty());
    let last = calm.ops();
    assert!(last > first + 8, "{first} to {last}");
    for number in first..last {
        for mode in CutMode::ALL {
            let world = FaultWorld::new();
            let expected = prepare(&world);
            world.cut_at(number, mode);
            let cut = scrub(&pool(&world), &options(false));
            let what = format!("cut at {number}, {mode:?}, {:?}", cut.map(|r| r.heal));
            let (target, log) = world.reboot();
            let pool = pool_of(target, log);
            let report = scrub(&pool, &options(false)).unwrap_or_else(|e| panic!("{what}: {e}"));
            check(&pool, &expected, &report.heal.incomplete, &what);
            for _ in 0..2 {
                gc(&pool).unwrap_or_else(|e| panic!("{what}: {e}"));
                check(&pool, &expected, &report.heal.incomplete, &what);
            }
            assert_eq!(scrub(&pool, &options(false)).unwrap().damaged, [], "{what}");
        }
    }
}
