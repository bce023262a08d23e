//! Ranks that wait for each other: whatever is lost between them, they end, and go on afterwards.

use crate::rank_threads;

use outlive_backend::FaultWorld;
use outlive_log::Previous;
use outlive_store::Sample;
use outlive_store::gc::{GcOptions, collect};
use outlive_store::scrub::{ScrubOptions, scrub};
use outlive_types::{Clock, Coordinator, ErrorKind, JobName, SystemClock};
use rank_threads::{PATIENT, RANKS, run, usual};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

/// A clock that is a hundred times too fast.
struct Fast(SystemClock);

impl Clock for Fast {
    fn unix_ns(&self) -> u64 {
        self.0.unix_ns()
    }

    fn monotonic(&self) -> Duration {
        self.0.monotonic() * 100
    }
}

/// Another group saves while the ranks of this one come together. They restore that checkpoint, and
/// continue from it.
#[test]
fn a_checkpoint_saved_before_all_ranks_have_come_is_continued() {
    let world = FaultWorld::new();
    run(&world, PATIENT, &usual(), |program| drop(program.save(1).unwrap()));
    run(&world, PATIENT, &usual(), |program| {
        if program.rank == 0 {
            let world = world.clone();
            *program.ear.before.lock().unwrap() = Some(Box::new(move || {
                run(&world, PATIENT, &usual(), |other| {
                    assert_eq!(other.restore(1), 1);
                    assert_eq!(other.save(2).unwrap().epoch, 2);
                });
            }));
        }
        assert_eq!(program.restore(2), 2);
        assert_eq!(program.save(3).unwrap().epoch, 3);
    });
}

/// Rank 1 cannot store its image, nor report that for a while. Its signs of life alone must not
/// keep the others waiting, as theirs keep it waiting.
#[test]
fn a_rank_that_cannot_say_that_it_has_failed_does_not_wait() {
    for (untold, patience) in [(1, PATIENT), (4, Duration::from_secs(3))] {
        let world = FaultWorld::new();
        run(&world, PATIENT, &usual(), |program| drop(program.save(1).unwrap()));
        let (full, appends) = (AtomicU64::new(0), AtomicU64::new(0));
        world.fail_when(move |_, op| {
            let pack = op.strip_prefix("write ");
            let is_rank_1 = |pack: &str| pack[24..32].contains('1');
            if pack.is_some_and(is_rank_1) && full.fetch_add(1, Ordering::Relaxed) == 0 {
                return Some(ErrorKind::Full);
            }
            let tells = op.starts_with("append ") && op.contains("rank-1: make it visible");
            let fails = tells && full.load(Ordering::Relaxed) > 0;
            (fails && appends.fetch_add(1, Ordering::Relaxed) < untold).then_some(ErrorKind::Retry)
        });
        let saved = run(&world, patience, &usual(), |program| (program.save(2), program.rank));
        for (error, rank) in saved {
            let error = error.unwrap_err();
            let is_told = match untold {
                1 => error.kind() == ErrorKind::Full,
                _ => rank == 1 || error.message().contains("heard of"),
            };
            assert!(is_told, "rank {rank}: {error}");
        }
        world.fail_when(|_, _| None);
        run(&world, PATIENT, &usual(), |program| {
            program.save(3).unwrap();
            assert_eq!(program.restore(3), 2);
        });
    }
}

/// Rank 1 posts its image, and only the reply is lost. Rank 0 commits, so rank 1 must not report a
/// failure: the checkpoint exists.
#[test]
fn a_rank_whose_post_came_through_all_the_same_has_saved() {
    let (world, fails) = (FaultWorld::new(), Arc::new(AtomicBool::new(true)));
    let syncs = format!("sync the records of {}:", JobName::new("job").unwrap().mail_of(1));
    let once = fails.clone();
    world.fail_when(move |_, op| {
        let is_it = op.starts_with(&syncs) && once.swap(false, Ordering::Relaxed);
        is_it.then_some(ErrorKind::Retry)
    });
    let saved = run(&world, PATIENT, &usual(), |program| {
        let saved = program.save(1);
        program.ear.inner.barrier().unwrap();
        (saved, program.restore(1), program.save(2).unwrap().epoch)
    });
    for (rank, (saved, restored, next)) in saved.into_iter().enumerate() {
        let saved = saved.map(|stats| stats.epoch).map_err(|error| error.to_string());
        assert_eq!((saved, restored, next), (Ok(1), 1, 2), "rank {rank}");
    }
    assert!(!fails.load(Ordering::Relaxed), "the post of rank 1 has failed");
}

/// A message that cannot be read may be the awaited one.
#[test]
fn a_message_that_is_damaged_ends_one_save() {
    let world = FaultWorld::new();
    let chain = JobName::new("job").unwrap().mail_of(1);
    world.log().append_if(&chain, Previous::NONE, b"no message").unwrap();
    let saved = run(&world, PATIENT, &usual(), |program| {
        let first = program.save(1).unwrap_err();
        program.save(2).unwrap();
        assert_eq!(program.restore(2), 1);
        first
    });
    for error in saved {
        assert_eq!(error.kind(), ErrorKind::Retry);
        assert!(error.message().contains("message 1 of rank 1 cannot be read"), "{error}");
    }
}

/// A second group has taken over, and a rank of the first is silent: the others find that out
/// before their patience ends.
#[test]
fn ranks_that_wait_hear_that_another_group_has_taken_over() {
    let (world, told) = (FaultWorld::new(), Barrier::new(RANKS as usize));
    let fast: Arc<dyn Clock> = Arc::new(Fast(SystemClock::default()));
    let errors = run(&world, PATIENT, &fast, |program| {
        program.save(1).unwrap();
        let is_silent = program.rank == 1;
        let take_over = || {
            if is_silent {
                run(&world, PATIENT, &usual(), |program| drop(program.save(7).unwrap()));
                told.wait();
            }
        };
        let error = program.save_after(2, take_over).unwrap_err();
        if !is_silent {
            told.wait();
        }
        error
    });
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    }
    run(&world, PATIENT, &usual(), |program| assert_eq!(program.restore(7), 2));
}

/// A gc has moved chunks, and rank 1 does not know, since the save that would have reported it
/// failed.
#[test]
fn a_move_that_a_rank_has_not_heard_of_is_reported_again() {
    let world = FaultWorld::new();
    let fails = Arc::new(AtomicBool::new(false));
    let judge = fails.clone();
    world.fail_when(move |_, op| {
        let is_rank_2 = |pack: &str| pack[24..32].contains('2');
        let is_it = op.strip_prefix("write ").is_some_and(is_rank_2);
        (is_it && judge.load(Ordering::Relaxed)).then_some(ErrorKind::Full)
    });
    run(&world, PATIENT, &usual(), |program| {
        for step in 1..=20 {
            program.save(step).unwrap();
        }
        let prune = |last: u64| {
            if program.rank == 0 {
                let drop = [(program.job.name().clone(), (1..last).collect())].into();
                let options = GcOptions { drop, ..GcOptions::default() };
                let report = collect(&program.pool, &options).unwrap();
                assert!(report.deleted > 0 && !report.plan.rewritten.is_empty(), "{report:?}");
            }
        };
        // So no condemned pack has to wait.
        program.job.close().unwrap();
        program.ear.inner.barrier().unwrap();
        prune(20);
        program.ear.is_deaf.store(program.rank == 1, Ordering::Relaxed);
        fails.store(true, Ordering::Relaxed);
        program.save(21).unwrap_err();
        program.ear.inner.barrier().unwrap();
        fails.store(false, Ordering::Relaxed);
        program.ear.inner.barrier().unwrap();
        program.save(22).unwrap();
        assert_eq!(program.restore(22), 21);
        let found = program.job.verify(None).unwrap().findings;
        assert!(found.is_empty(), "{found:?}");
    });
}

/// A scrub finds damage in the pack of rank 1 while the ranks save, and rank 0 cannot report it to
/// the others: the save fails. The next save reports it, so no rank relies on the damaged data.
#[test]
fn rank_0_reports_damage_in_the_next_save_if_it_could_not_in_this_one() {
    let world = FaultWorld::new();
    let fails = Arc::new(AtomicBool::new(false));
    let (judge, mail) = (fails.clone(), JobName::new("job").unwrap().mail_of(0));
    world.fail_when(move |_, op| {
        let is_it = op.starts_with("append") && op.contains(&format!(" {mail}:"));
        (is_it && judge.swap(false, Ordering::Relaxed)).then_some(ErrorKind::Retry)
    });
    run(&world, PATIENT, &usual(), |program| {
        program.save(1).unwrap();
        let find_damage = || {
            if program.rank == 0 {
                let shards = world.target().list().unwrap();
                let bad = shards.into_iter().find(|shard| shard.pack.rank() == 1).unwrap();
                // This page changes in no step of this test.
                world.corrupt(bad, 20 * 4096, 1);
                let all = ScrubOptions { sample: Sample::ALL, bytes_per_s: None, dry_run: false };
                assert_eq!(scrub(&program.pool, &all).unwrap().heal.incomplete.len(), 1);
                fails.store(true, Ordering::Relaxed);
            }
        };
        program.save_after(2, find_damage).unwrap_err();
        assert!(!fails.load(Ordering::Relaxed), "rank 0 had something to tell");
        program.ear.inner.barrier().unwrap();
        program.save(3).unwrap();
        assert_eq!(program.restore(3), 2);
    });
}

/// A prune drops the newest checkpoint when rank 0 has just found it: all ranks take the one
/// before.
#[test]
fn a_checkpoint_that_goes_before_all_have_it_is_passed_over() {
    let world = FaultWorld::new();
    run(&world, PATIENT, &usual(), |program| {
        program.save(1).unwrap();
        program.save(2).unwrap();
        program.job.close().unwrap();
    });
    run(&world, PATIENT, &usual(), |program| {
        if program.rank == 0 {
            let (pool, job) = (program.pool.clone(), program.job.name().clone());
            let prune = move || {
                let drop = [(job, [2].into())].into();
                collect(&pool, &GcOptions { drop, ..GcOptions::default() }).unwrap();
            };
            *program.ear.before.lock().unwrap() = Some(Box::new(prune));
        }
        assert_eq!(program.restore(1), 1);
    });
}
