//! Jobs that are deleted and renamed: beside programs, gcs and each other, with a failure at each
//! step.

use crate::common;
use crate::stepped;

use common::{Program, State, changed, memory_pool, noise, pool_of};
use outlive_backend::FaultWorld;
use outlive_pool::Pool;
use outlive_store::copy::rename_job;
use outlive_store::gc::{DropJob, GcOptions, Thoroughness, collect, drop_job, holder, listed_jobs};
use outlive_store::{Job, Select};
use outlive_types::sync::plain::Mutex;
use outlive_types::{Epoch, ErrorKind, JobName, Result};
use std::collections::BTreeMap;
use std::sync::Arc;
use stepped::{Steps, World};

type States = BTreeMap<Epoch, State>;

fn name(job: &str) -> JobName {
    JobName::new(job).unwrap()
}

fn state(seed: u64) -> State {
    State::from([("a".to_owned(), noise(seed, 150_000)), ("b".to_owned(), vec![seed as u8; 50])])
}

/// Three checkpoints of a job; its program has ended.
fn past(pool: &Pool, job: &str) -> States {
    let program = Program::start(pool, job);
    let second = changed(state(1), 3, 7);
    let states = [state(1), second.clone(), changed(second, 30, 8)];
    states.iter().for_each(|state| assert!(program.save(state).is_ok()));
    program.job.close().unwrap();
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

fn delete(pool: &Pool, job: &str, fence: bool) -> Result<Option<Vec<Epoch>>> {
    drop_job(pool, &name(job), DropJob { fence, ..DropJob::default() }, &mut || Ok(()))
}

fn rename(pool: &Pool, from: &str, to: &str, fence: bool) -> Result<Vec<Epoch>> {
    rename_job(pool, &name(from), &name(to), fence, &mut || Ok(()))
}

fn thorough(pool: &Pool) {
    let thoroughness = Thoroughness { unused_max: 0.0, ..Thoroughness::default() };
    collect(pool, &GcOptions { thoroughness, ..GcOptions::default() }).unwrap();
}

#[test]
fn a_deleted_job_is_gone_and_its_programs_are_shut_out() {
    let world = World::new();
    let pool = world.pool();
    past(&pool, "other");
    let saver = Program::start(&world.pool(), "job");
    let last = (1..4)
        .map(state)
        .fold(None, |_, state| {
            assert!(saver.save(&state).is_ok());
            Some(state)
        })
        .unwrap();
    // It has restored, and saves only later.
    let reader_pool = world.pool();
    let reader = Program::start(&reader_pool, "job");
    reader.restore(Select::Newest).unwrap().unwrap();

    let refused = delete(&pool, "job", false).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(refused.message().contains("--fence"), "{refused}");
    assert!(holder(&pool, &name("job")).unwrap().unwrap().contains("process"));
    assert_eq!(epochs(&pool, "job"), [1, 2, 3], "nothing was dropped");
    assert_eq!(delete(&pool, "job", true).unwrap(), Some(vec![1, 2, 3]));

    assert_eq!(listed_jobs(&pool).unwrap(), [name("other")]);
    assert_eq!(holder(&pool, &name("job")).unwrap(), None);
    assert_eq!(saver.save(&last).unwrap_err().kind(), ErrorKind::Fenced);
    assert_eq!(reader.save(&last).unwrap_err().kind(), ErrorKind::Fenced);
    let again = delete(&pool, "job", true).unwrap_err();
    assert!(again.message().contains("there is no job job"), "{again}");
    thorough(&pool);
    check(&pool, "other", &past_of("other"), "beside it");
    assert_eq!(listed_jobs(&pool).unwrap(), [name("other")], "after a gc, too");

    // The name is free; epochs go on, so that no old program takes a new checkpoint for one of its own.
    let program = Program::start(&pool, "job");
    assert!(program.restore(Select::Newest).unwrap().is_none());
    assert_eq!(program.save(&last).unwrap().epoch, 4);
    assert_eq!(listed_jobs(&pool).unwrap(), [name("job"), name("other")]);
    assert!(delete(&pool, "nothing", false).unwrap_err().message().contains("no job nothing"));
}

fn past_of(job: &str) -> States {
    past(&memory_pool(), job)
}

#[test]
fn a_renamed_job_keeps_all_and_its_programs_are_shut_out() {
    let world = World::new();
    let pool = world.pool();
    let saver = Program::start(&world.pool(), "old");
    let states: States = (1..4).map(|epoch| (epoch, state(epoch))).collect();
    states.values().for_each(|state| assert!(saver.save(state).is_ok()));
    saver.job.note(2, |remarks| remarks.tags = vec!["best".to_owned()]).unwrap();
    let refused = rename(&pool, "old", "new", false).unwrap_err();
    assert!(refused.message().contains("--fence"), "{refused}");
    assert_eq!(rename(&pool, "old", "new", true).unwrap(), [1, 2, 3]);
    assert_eq!(listed_jobs(&pool).unwrap(), [name("new")]);
    assert_eq!(saver.save(&states[&1]).unwrap_err().kind(), ErrorKind::Fenced);
    thorough(&pool);
    check(&pool, "new", &states, "renamed");
    let job = Job::open(&pool, "new", Default::default()).unwrap();
    assert_eq!(job.epochs().unwrap()[1].manifest.remarks.tags, ["best"]);
    let program = Program::start(&pool, "new");
    program.restore(Select::Newest).unwrap();
    assert_eq!(program.save(&states[&2]).unwrap().epoch, 4);
    program.job.close().unwrap();

    let again = rename(&pool, "old", "new", true).unwrap_err();
    assert!(again.message().contains("there is no job old"), "{again}");
    let same = rename(&pool, "new", "new", true).unwrap_err();
    assert!(same.message().contains("called new already"), "{same}");
    // A name whose job went further than this one.
    let back = rename(&pool, "new", "old", false).unwrap_err();
    assert!(back.message().contains("only go forward"), "{back}");
    assert_eq!(epochs(&pool, "new"), [1, 2, 3, 4]);
    past(&pool, "third");
    let other = rename(&pool, "new", "third", false).unwrap_err();
    assert_eq!(other.kind(), ErrorKind::Invalid, "{other}");
    check(&pool, "third", &past_of("third"), "untouched");
}

/// Makes each step of `attempt` fail once, on a pool with the job `job`, and gives it again.
fn at_each_step(
    attempt: &mut dyn FnMut(&Pool) -> Result<()>,
    after: &mut dyn FnMut(&Pool, bool, &str),
) {
    for kind in [ErrorKind::Retry, ErrorKind::Full] {
        let (mut number, mut failures) = (0, 0);
        loop {
            let world = FaultWorld::new();
            let pool = pool_of(world.target(), world.log());
            past(&pool, "job");
            let begun = world.ops();
            world.fail_when(move |at, _| (at == begun + number).then_some(kind));
            let failed = attempt(&pool).is_err();
            let is_over = world.ops() <= begun + number;
            world.fail_when(|_, _| None);
            let what = format!("{kind:?} at {number}, failed: {failed}");
            after(&pool, failed, &what);
            failures += usize::from(failed);
            if is_over {
                break;
            }
            number += 1;
        }
        assert!(number > 5 && failures > 4, "{failures} failures in {number} steps");
    }
}

#[test]
fn a_deletion_one_of_whose_steps_fails() {
    let states = past_of("job");
    at_each_step(&mut |pool| delete(pool, "job", false).map(drop), &mut |pool, failed, what| {
        // All or nothing; a failure may come after the record.
        match epochs(pool, "job").len() {
            3 => check(pool, "job", &states, what),
            0 => {}
            some => panic!("{what}: {some} are left"),
        }
        if failed && listed_jobs(pool).unwrap().contains(&name("job")) {
            // The session of the failed one belongs to this process, which runs on.
            delete(pool, "job", true).unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        assert_eq!(listed_jobs(pool).unwrap(), [], "{what}");
        assert_eq!(epochs(pool, "job"), [] as [Epoch; 0], "{what}");
    });
}

#[test]
fn a_rename_one_of_whose_steps_fails() {
    let states = past_of("job");
    at_each_step(
        &mut |pool| rename(pool, "job", "new", false).map(drop),
        &mut |pool, failed, what| {
            let there = |job: &str| epochs(pool, job);
            assert!(
                [1, 2, 3]
                    .iter()
                    .all(|epoch| there("job").contains(epoch) || there("new").contains(epoch)),
                "{what}: {:?} {:?}",
                there("job"),
                there("new")
            );
            if failed && !there("job").is_empty() {
                rename(pool, "job", "new", true).unwrap_or_else(|error| panic!("{what}: {error}"));
            }
            check(pool, "new", &states, what);
            assert_eq!(there("job"), [] as [Epoch; 0], "{what}");
            thorough(pool);
            check(pool, "new", &states, what);
        },
    );
}

/// Does `work` in a pool of its own before step `at` of `change`. Returns its outcome, if the step
/// came, and that of `change`.
fn within<T: Send + 'static, R>(
    world: &World,
    at: u64,
    work: impl Fn(Pool) -> T + Send + Sync + 'static,
    change: impl FnOnce(&Pool) -> R,
) -> (Option<T>, R) {
    let steps = Steps::default();
    let (other, outcome) = (world.pool(), Arc::new(Mutex::new(None)));
    let there = outcome.clone();
    steps.hook(move |number, _| {
        if number == at {
            let done = work(other.clone());
            *there.lock() = Some(done);
        }
    });
    let changed = change(&world.stepped(&steps));
    steps.hook(|_, _| ());
    (outcome.lock().take(), changed)
}

/// A program saves once, before each step of a rename that shuts it out.
#[test]
fn a_save_within_a_rename_at_every_step() {
    for at in 0.. {
        let world = World::new();
        let mut states = past(&world.pool(), "job");
        let saver = Arc::new(Program::start(&world.pool(), "job"));
        saver.restore(Select::Newest).unwrap().unwrap();
        let (late, held) = (changed(state(1), 9, 9), saver.clone());
        let content = late.clone();
        let mut is_over = true;
        let (saved, renamed) = within(
            &world,
            at,
            move |_| held.save(&content),
            |pool| rename(pool, "job", "new", true),
        );
        let what = format!("before step {at}: {saved:?}, {renamed:?}");
        if let Some(saved) = saved {
            is_over = false;
            match saved {
                Ok(stats) => drop(states.insert(stats.epoch, late)),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Fenced, "{what}"),
            }
        }
        let pool = world.pool();
        match renamed {
            Ok(_) => assert_eq!(epochs(&pool, "job"), [] as [Epoch; 0], "{what}"),
            // The program opened the job between two steps.
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Retry, "{what}");
                assert_eq!(epochs(&pool, "job").len(), states.len(), "{what}");
                rename(&pool, "job", "new", true).unwrap_or_else(|error| panic!("{what}: {error}"));
            }
        }
        check(&pool, "new", &states, &what);
        if is_over {
            assert!(at > 20, "{at} steps");
            break;
        }
    }
}

/// A tag and a pin are set before each step of a rename, and also between two renames.
#[test]
fn remarks_within_a_rename_at_every_step() {
    for at in 0.. {
        let world = World::new();
        let states = past(&world.pool(), "job");
        let (noted, renamed) = within(
            &world,
            at,
            move |pool| {
                let job = Job::open(&pool, "job", Default::default()).unwrap();
                job.note(2, |remarks| {
                    remarks.tags = vec!["best".to_owned()];
                    remarks.pinned = true;
                })
            },
            |pool| rename(pool, "job", "new", false),
        );
        let what = format!("before step {at}: {noted:?}, {renamed:?}");
        let pool = world.pool();
        if let Err(error) = &renamed {
            assert_eq!(error.kind(), ErrorKind::Retry, "{what}");
            rename(&pool, "job", "new", true).unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        check(&pool, "new", &states, &what);
        let epochs = Job::open(&pool, "new", Default::default()).unwrap().epochs().unwrap();
        let there = &epochs[1].manifest.remarks;
        match noted {
            // If it came too late, the note says so.
            Some(Ok(_)) => assert!(there.pinned && there.tags == ["best"], "{what}: {there:?}"),
            Some(Err(error)) => assert_eq!(error.kind(), ErrorKind::Invalid, "{what}"),
            None => {
                assert!(at > 20, "{at} steps");
                break;
            }
        }
    }
}

/// The same for a deletion: a save that was reported is dropped with the job, or its job is there.
#[test]
fn a_save_within_a_deletion_at_every_step() {
    for at in 0.. {
        let world = World::new();
        past(&world.pool(), "job");
        let saver = Arc::new(Program::start(&world.pool(), "job"));
        saver.restore(Select::Newest).unwrap().unwrap();
        let held = saver.clone();
        let (saved, deleted) =
            within(&world, at, move |_| held.save(&state(9)), |pool| delete(pool, "job", true));
        let what = format!("before step {at}: {saved:?}, {deleted:?}");
        let left = epochs(&world.pool(), "job");
        match (&saved, &deleted) {
            (_, Ok(Some(_))) => assert_eq!(left, [] as [Epoch; 0], "{what}"),
            (Some(Ok(_)), Err(error)) => {
                assert_eq!(error.kind(), ErrorKind::Retry, "{what}");
                assert_eq!(left, [1, 2, 3, 4], "{what}");
            }
            _ => panic!("{what}"),
        }
        if let Some(Err(error)) = &saved {
            assert_eq!(error.kind(), ErrorKind::Fenced, "{what}");
        }
        if saved.is_none() {
            assert!(at > 8, "{at} steps");
            break;
        }
    }
}

/// A whole gc runs before each step of a rename.
#[test]
fn a_gc_within_a_rename_at_every_step() {
    for at in 0.. {
        let world = World::new();
        let states = past(&world.pool(), "job");
        let (came, renamed) =
            within(&world, at, |pool| thorough(&pool), |pool| rename(pool, "job", "new", false));
        let what = format!("a gc before step {at}");
        renamed.unwrap_or_else(|error| panic!("{what}: {error}"));
        let pool = world.pool();
        thorough(&pool);
        check(&pool, "new", &states, &what);
        assert_eq!(listed_jobs(&pool).unwrap(), [name("new")], "{what}");
        if came.is_none() {
            break;
        }
    }
}

/// Another rename, or a deletion, runs whole before each step of a rename.
#[test]
fn two_changes_of_a_job_at_every_step() {
    for other in ["new", "third", ""] {
        for at in 0.. {
            let world = World::new();
            let states = past(&world.pool(), "job");
            let (came, renamed) = within(
                &world,
                at,
                move |pool| match other {
                    "" => delete(&pool, "job", false).map(drop),
                    other => rename(&pool, "job", other, false).map(drop),
                },
                |pool| rename(pool, "job", "new", false),
            );
            let what = format!("{other:?} before step {at}: {came:?}, {renamed:?}");
            let pool = world.pool();
            let (old, new) = (epochs(&pool, "job"), epochs(&pool, "new"));
            let third = epochs(&pool, "third");
            let is_deleted = other.is_empty() && matches!(came, Some(Ok(())));
            for epoch in [1, 2, 3] {
                let is_there = [&old, &new, &third].iter().any(|there| there.contains(&epoch));
                assert!(is_there || is_deleted, "{what}: epoch {epoch} is lost");
            }
            if renamed.is_ok() {
                check(&pool, "new", &states, &what);
                assert_eq!(old, [] as [Epoch; 0], "{what}");
            }
            if matches!(came, Some(Ok(()))) && other == "third" {
                check(&pool, "third", &states, &what);
            }
            if came.is_none() {
                break;
            }
        }
    }
}

/// Two programs change the tags of one checkpoint at the same time: both changes count.
#[test]
fn two_changes_of_tags_at_every_step() {
    for at in 0.. {
        let world = World::new();
        past(&world.pool(), "job");
        let add = |pool: &Pool, tag: &str| {
            let job = Job::open(pool, "job", Default::default()).unwrap();
            job.note(2, |remarks| remarks.tags.push(tag.to_owned())).unwrap().tags
        };
        let (came, ()) = within(
            &world,
            at,
            move |pool| add(&pool, "b"),
            |pool| {
                assert!(add(pool, "a").contains(&"a".to_owned()));
            },
        );
        let job = Job::open(&world.pool(), "job", Default::default()).unwrap();
        let tags = job.epochs().unwrap()[1].manifest.remarks.tags.clone();
        match came {
            Some(_) => assert_eq!(tags, ["a", "b"], "before step {at}"),
            None => {
                assert_eq!(tags, ["a"]);
                assert!(at > 3, "{at} steps");
                break;
            }
        }
        // The same again needs no record.
        let number = world.log.latest(&name("job")).unwrap();
        add(&world.pool(), "a");
        assert_eq!(world.log.latest(&name("job")).unwrap(), number);
    }
}

#[test]
fn impossible_tags_are_refused() {
    let pool = memory_pool();
    past(&pool, "job");
    let job = Job::open(&pool, "job", Default::default()).unwrap();
    for tag in ["", "a b", "a,b", "a|b", "\"a\"", "a\n", &"x".repeat(256)] {
        let refused = job.note(1, |remarks| remarks.tags = vec![tag.to_owned()]);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid, "{tag:?}");
    }
    let many = job.note(1, |r| r.tags = (0..256).map(|n| n.to_string()).collect());
    assert!(many.unwrap_err().message().contains("255 tags"));
    let most = job.note(1, |r| r.tags = (0..255).map(|n| format!("{n:0>255}")).collect()).unwrap();
    assert_eq!(most.tags.len(), 255);
    let twice = job.note(1, |r| r.tags = vec!["b".into(), "a".into(), "b".into()]).unwrap();
    assert_eq!(twice.tags, ["a", "b"]);
    thorough(&pool);
    assert_eq!(job.epochs().unwrap()[0].manifest.remarks.tags, ["a", "b"], "an archive keeps them");
}
