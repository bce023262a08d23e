//! Ranks that have only the pool in common: they make their calls through its log. Messages of
//! earlier runs are not theirs, and no rank waits forever.

use crate::common;

use common::{Interrupted, noise, small_config, until};
use outlive_backend::FaultWorld;
use outlive_capture::{ChangeTracker, MemorySource, Region};
use outlive_pool::{Environment, Pool};
use outlive_store::group::{GroupOptions, PoolRanks, Schedule};
use outlive_store::{Job, JobOptions, RankImages, Select};
use outlive_types::{Clock, Coordinator, ErrorKind, JobName, Rank, Result};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

/// Long enough for no present rank to be missed.
const PATIENT: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_secs(2);

fn pool(world: &FaultWorld) -> Pool {
    let (target, log, _) = world.process();
    Pool::new(small_config(), target, log, Environment::system())
}

fn rank(
    world: &FaultWorld,
    rank: Rank,
    size: u32,
    run: &str,
    patience: Duration,
) -> Arc<PoolRanks> {
    Arc::new(PoolRanks::new(&pool(world), "job", rank, size, run, patience).unwrap())
}

/// Runs some of the ranks of a run, each in a thread of its own.
fn run<T: Send>(
    world: &FaultWorld,
    run: &str,
    size: u32,
    who: &[Rank],
    patience: Duration,
    work: impl Fn(Arc<PoolRanks>) -> T + Sync,
) -> Vec<T> {
    let start = |number: Rank| work(rank(world, number, size, run, patience));
    let start = &start;
    thread::scope(|scope| {
        let threads: Vec<_> =
            who.iter().map(|number| scope.spawn(move || start(*number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn calls(ranks: &PoolRanks, count: u8, seed: u8) {
    for call in 0..count {
        let mine = [ranks.rank() as u8, call, seed];
        let gathered = ranks.gather(&mine).unwrap();
        let expected: Vec<Vec<u8>> = match ranks.rank() {
            0 => (0..ranks.size() as u8).map(|rank| vec![rank, call, seed]).collect(),
            _ => Vec::new(),
        };
        assert_eq!(gathered, expected);
        assert_eq!(ranks.broadcast(&mine).unwrap(), [0, call, seed]);
    }
    ranks.barrier().unwrap();
}

#[test]
fn all_ranks_make_each_call_and_old_words_are_removed() {
    let world = FaultWorld::new();
    for (number, size) in (0..).zip([1, 4, 3, 5]) {
        let who: Vec<Rank> = (0..size).collect();
        let name = format!("run {number}");
        run(&world, &name, size, &who, PATIENT, |ranks| calls(&ranks, 40, number));
    }
    let job = JobName::new("job").unwrap();
    for rank in 0..5 {
        let left = world.log().numbers(&job.calls_of(rank)).unwrap();
        // Messages of the last eight calls, and at most one of each call.
        assert!((1..=12).contains(&left.len()), "rank {rank} has left {left:?}");
    }
    assert_eq!(world.log().jobs().unwrap(), []);
}

/// An earlier run was lost in the middle of its calls, and so was another one with only some of its
/// ranks.
#[test]
fn words_of_earlier_runs_are_not_taken_for_those_of_this_one() {
    let world = FaultWorld::new();
    run(&world, "first", 3, &[0, 1, 2], PATIENT, |ranks| {
        calls(&ranks, 3, 77);
        // All have sent something for the next calls, which no rank reads.
        match ranks.rank() {
            0 => drop(ranks.broadcast(b"stale")),
            _ => drop(ranks.gather(b"stale")),
        }
    });
    let gone = run(&world, "second", 3, &[1, 2], SHORT, |ranks| {
        ranks.gather(b"stale")?;
        ranks.broadcast(b"").map(drop)
    });
    for error in gone {
        let text = error.unwrap_err().to_string();
        assert!(text.contains("rank 0 has not met the others of run \"second\""), "{text}");
    }
    run(&world, "third", 3, &[0, 1, 2], PATIENT, |ranks| calls(&ranks, 3, 5));
}

/// Not even where the runs have the same name, and the records that tell them apart were removed.
#[test]
fn a_meeting_is_of_the_ranks_that_are_there() {
    let world = FaultWorld::new();
    let job = JobName::new("job").unwrap();
    run(&world, "same", 2, &[0, 1], PATIENT, |ranks| calls(&ranks, 2, 1));
    let again = run(&world, "same", 2, &[0, 1], SHORT, |ranks| ranks.barrier());
    for error in again {
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.message().contains("of run \"same\" has come already"), "{error}");
    }
    // Rank 0 has since run under another name, so its old messages are gone; those of rank 1 are
    // not.
    run(&world, "other", 1, &[0], PATIENT, |ranks| ranks.barrier().unwrap());
    let left = world.log().numbers(&job.calls_of(1)).unwrap();
    assert!(!left.is_empty());
    let both = run(&world, "same", 2, &[0, 1], SHORT, |ranks| ranks.gather(b"").map(drop));
    let error = both[0].as_ref().unwrap_err();
    assert!(error.message().contains("rank 1"), "{error}");
    assert!(both[1].as_ref().unwrap_err().message().contains("has come already"));
}

#[test]
fn a_rank_that_never_comes_is_named_by_all() {
    let world = FaultWorld::new();
    let missed = run(&world, "run", 4, &[0, 1, 3], SHORT, |ranks| {
        let first = ranks.barrier().unwrap_err();
        let again = ranks.barrier().unwrap_err();
        assert!(again.message().contains("has left its group"), "{again}");
        assert!(again.message().contains(first.message()), "{again}");
        first
    });
    for error in missed {
        assert_eq!(error.kind(), ErrorKind::Retry);
        let text = error.message();
        assert!(text.contains("rank 2 has not come of run \"run\""), "{text}");
    }
}

/// Rank 2 is gone after a while: rank 0 reports it to the others, which would wait for rank 0
/// alone.
#[test]
fn a_rank_that_comes_no_more_is_named_by_all() {
    let world = FaultWorld::new();
    let missed = run(&world, "run", 3, &[0, 1, 2], SHORT, |ranks| {
        calls(&ranks, 5, 0);
        if ranks.rank() == 2 { Ok(()) } else { ranks.barrier() }
    });
    for error in missed.into_iter().take(2) {
        let text = error.unwrap_err().to_string();
        assert!(text.contains("rank 2 has not come to call 13 of run \"run\""), "{text}");
    }
}

#[test]
fn a_rank_that_is_at_work_is_not_missed() {
    let world = FaultWorld::new();
    let late = AtomicBool::new(false);
    run(&world, "run", 2, &[0, 1], SHORT, |ranks| {
        calls(&ranks, 1, 0);
        if ranks.rank() == 1 {
            let at_work = ranks.keepalive().unwrap();
            // Rank 0 waits for as long as it would without a sign of this one.
            let seen = world.log();
            let chain = JobName::new("job").unwrap().calls_of(1);
            let before = seen.latest(&chain).unwrap();
            while seen.latest(&chain).unwrap() < before + 6 {
                thread::yield_now();
            }
            late.store(true, Ordering::Relaxed);
            drop(at_work);
        }
        ranks.barrier().unwrap();
        assert!(late.load(Ordering::Relaxed));
    });
}

#[test]
fn of_two_processes_with_one_rank_the_second_is_refused_and_the_first_goes_on() {
    let world = FaultWorld::new();
    let has_met = Barrier::new(2);
    run(&world, "run", 2, &[0, 1], PATIENT, |ranks| {
        calls(&ranks, 2, 0);
        has_met.wait();
        if ranks.rank() == 1 {
            let twin = rank(&world, 1, 2, "run", PATIENT).gather(b"").unwrap_err();
            assert_eq!(twin.kind(), ErrorKind::Invalid);
            assert!(twin.message().contains("rank 1 of run \"run\" has come already"), "{twin}");
        }
        calls(&ranks, 20, 1);
    });
    // At the same time: the log decides.
    let twins = run(&world, "twins", 2, &[1, 1], SHORT, |ranks| {
        ranks.gather(b"").and_then(|_| ranks.broadcast(b"")).unwrap_err()
    });
    let refused = twins.iter().filter(|error| error.kind() == ErrorKind::Invalid).count();
    assert_eq!(refused, 1, "{twins:?}");
}

#[test]
fn ranks_of_different_sizes_and_a_later_run_are_told() {
    let world = FaultWorld::new();
    let sizes = AtomicU64::new(2);
    let told = run(&world, "run", 2, &[0, 1], PATIENT, |of| {
        drop(of);
        let size = sizes.fetch_add(1, Ordering::Relaxed) as u32;
        rank(&world, size - 2, size, "sizes", SHORT).barrier().unwrap_err().to_string()
    });
    assert!(told.iter().any(|text| text.contains("give all ranks the same size")), "{told:?}");

    let (begun, over) = (Barrier::new(3), Barrier::new(3));
    let old = |number| {
        let ranks = rank(&world, number, 2, "old", PATIENT);
        calls(&ranks, 2, 0);
        begun.wait();
        over.wait();
        ranks.barrier().unwrap_err()
    };
    let old = &old;
    thread::scope(|scope| {
        let threads = [0, 1].map(|number| scope.spawn(move || old(number)));
        begun.wait();
        run(&world, "new", 2, &[0, 1], PATIENT, |ranks| calls(&ranks, 2, 0));
        over.wait();
        for thread in threads {
            let error = thread.join().unwrap();
            assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
            assert!(error.message().contains("another run of the program, \"new\""), "{error}");
        }
    });
}

/// A clock that stands still until it is moved.
#[derive(Default)]
struct Hand(AtomicU64);

impl Clock for Hand {
    fn unix_ns(&self) -> u64 {
        self.monotonic().as_nanos() as u64
    }

    fn monotonic(&self) -> Duration {
        Duration::from_secs(self.0.load(Ordering::Relaxed))
    }
}

/// Another run has come and gone, and has removed the earlier messages. No reply will ever come.
#[test]
fn a_rank_that_waits_is_told_of_a_later_run() {
    let world = FaultWorld::new();
    let clock = Arc::new(Hand::default());
    let (target, log, _) = world.process();
    let env = Environment { clock: clock.clone(), ..Environment::system() };
    let pool = Pool::new(small_config(), target, log, env);
    let ranks = PoolRanks::new(&pool, "job", 0, 2, "old", PATIENT).unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| ranks.barrier().unwrap_err());
        let chain = JobName::new("job").unwrap().calls_of(0);
        until("rank 0 has come", || !world.log().numbers(&chain).unwrap().is_empty());
        run(&world, "new", 2, &[0, 1], PATIENT, |ranks| calls(&ranks, 10, 0));
        assert!(!waits.is_finished());
        clock.0.store(11, Ordering::Relaxed);
        let error = waits.join().unwrap();
        assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
        assert!(error.message().contains("another run of the program, \"new\""), "{error}");
    });
}

/// Each operation on the log fails once, before or after it has taken effect.
#[test]
fn a_log_that_fails_now_and_then_delays_calls_only() {
    let world = FaultWorld::new();
    let count = Arc::new(AtomicU64::new(0));
    let counted = count.clone();
    world.fail_when(move |_, op| {
        let is_call = op.contains("calls-");
        let fails = is_call && counted.fetch_add(1, Ordering::Relaxed) % 3 == 1;
        fails.then_some(ErrorKind::Retry)
    });
    run(&world, "run", 3, &[0, 1, 2], PATIENT, |ranks| calls(&ranks, 6, 0));
    assert!(count.load(Ordering::Relaxed) > 30, "nothing has failed");
}

/// This rank gets the end while it waits.
#[test]
fn a_wait_can_be_broken_off_and_others_are_told() {
    let world = FaultWorld::new();
    let told = run(&world, "run", 2, &[0, 1], PATIENT, |ranks| {
        calls(&ranks, 1, 0);
        let stop = || Err(outlive_types::Error::retry("Ctrl-C"));
        match ranks.rank() {
            0 => ranks.gather_while(b"", &stop).map(drop),
            _ => ranks.broadcast(b"").map(drop),
        }
        .unwrap_err()
        .to_string()
    });
    assert!(told[0].contains("Ctrl-C"), "{told:?}");
    assert!(told[1].contains("rank 0 has left its group: Ctrl-C"), "{told:?}");
}

#[test]
fn impossible_groups_are_refused() {
    let world = FaultWorld::new();
    let new = |rank, size, run: &str| {
        PoolRanks::new(&pool(&world), "job", rank, size, run, PATIENT).map(drop).unwrap_err()
    };
    assert!(new(2, 2, "run").message().contains("rank 2 of a group of 2"));
    assert!(new(0, 65_537, "run").message().contains("at most 65536 can"));
    for run in ["", " ", &"x".repeat(201)] {
        assert!(new(0, 1, run).message().contains("new for every start of the program"));
    }
}

/// A save is under way when the next run begins: it would be newer than the checkpoint that the run
/// restores.
#[test]
fn an_earlier_run_commits_nothing_once_a_later_one_has_begun() {
    let world = FaultWorld::new();
    let open = |run: &str| {
        let pool = pool(&world);
        let ranks = PoolRanks::new(&pool, "job", 0, 1, run, PATIENT).unwrap();
        let group = Some(GroupOptions::new(Arc::new(ranks)));
        Job::open(&pool, "job", JobOptions { group, ..JobOptions::default() }).unwrap()
    };
    let save = |job: &Job, before: &mut dyn FnMut()| {
        let memory = noise(7, 4096);
        let region = Region::from_bytes("a", "|u1", vec![4096], memory.as_slice());
        let tracker = Arc::new(ChangeTracker::new());
        let inner = MemorySource::new(tracker, vec![region], Vec::new(), 1);
        job.save(&mut Interrupted { inner, before })?.wait(None).unwrap()
    };
    let (earlier, later) = (open("earlier"), open("later"));
    assert_eq!(save(&earlier, &mut || ()).unwrap().epoch, 1);
    let mut restored = None;
    let overtaken = save(&earlier, &mut || {
        let mut nothing = |_: &_, _| Ok(());
        let found = later.restore_together(Select::Newest, &mut |_, _| Ok(()), &mut nothing);
        restored = found.unwrap().map(|found| found.epoch);
    });
    assert_eq!(overtaken.unwrap_err().kind(), ErrorKind::Fenced);
    assert_eq!(restored, Some(1));
    assert_eq!(save(&later, &mut || ()).unwrap().epoch, 2);
}

/// A rank closes the job as its program ends, while the others save: they learn it at once, however
/// long their patience is.
#[test]
fn a_rank_that_ends_early_is_named_at_once() {
    for (number, leaver) in [0, 1, 2].into_iter().enumerate() {
        let world = FaultWorld::new();
        let told = Mutex::new(Vec::new());
        run(&world, &number.to_string(), 3, &[0, 1, 2], PATIENT, |coordinator| {
            let (rank, pool) = (coordinator.rank(), pool(&world));
            let group = GroupOptions { patience: PATIENT, ..GroupOptions::new(coordinator) };
            let options = JobOptions { group: Some(group), ..JobOptions::default() };
            let job = Job::open(&pool, "job", options).unwrap();
            let save = |step| {
                let memory = noise(step, 4096);
                let region = Region::from_bytes("a", "|u1", vec![4096], memory.as_slice());
                let tracker = Arc::new(ChangeTracker::new());
                job.save(&mut MemorySource::new(tracker, vec![region], Vec::new(), 1))
            };
            save(1).unwrap().wait(None).unwrap().unwrap();
            if rank == leaver {
                return job.close_at_exit().unwrap();
            }
            let error = save(2).map(drop).unwrap_err();
            // Their own ends wait for no other rank.
            job.close().unwrap();
            told.lock().unwrap().push(error);
        });
        let told = told.into_inner().unwrap();
        assert_eq!(told.len(), 2);
        for error in told {
            assert_eq!(error.kind(), ErrorKind::Invalid);
            let words = format!(
                "rank {leaver} has left its group: it has ended, or closed the job, after call"
            );
            assert!(error.message().contains(&words), "{error}");
        }
    }
}

/// Saves and restores of a program, one run after the other.
#[test]
fn a_program_saves_and_restores() -> Result<()> {
    let world = FaultWorld::new();
    let bytes = |rank: Rank, step: u64| noise(step * 10 + u64::from(rank), 40 * 4096);
    for start in 0..3u64 {
        run(&world, &start.to_string(), 3, &[0, 1, 2], PATIENT, |coordinator| {
            let (rank, pool) = (coordinator.rank(), pool(&world));
            let (patience, schedule) = (PATIENT, Schedule::default());
            let group = Some(GroupOptions { patience, schedule, ..GroupOptions::new(coordinator) });
            let job =
                Job::open(&pool, "job", JobOptions { group, ..JobOptions::default() }).unwrap();
            let restored = job
                .restore_together(Select::Newest, &mut |_, _| Ok(()), &mut |manifest, as_of| {
                    let image = RankImages::new(&pool, job.name(), manifest, as_of).open(rank)?;
                    let vectors = common::Vectors::for_all(&image);
                    image.read(&[0], &vectors)?;
                    Ok(vectors.into_inner().swap_remove(0))
                })
                .unwrap();
            assert_eq!(restored.is_some(), start > 0);
            if let Some(restored) = restored {
                assert_eq!(restored.epoch, start * 4);
                assert!(restored.value == bytes(rank, start * 4), "rank {rank}");
            }
            let tracker = Arc::new(ChangeTracker::new());
            for step in start * 4 + 1..=start * 4 + 4 {
                let memory = bytes(rank, step);
                let region =
                    Region::from_bytes("a", "|u1", vec![memory.len() as u64], memory.as_slice());
                let mut source = MemorySource::new(tracker.clone(), vec![region], Vec::new(), 1);
                job.save(&mut source).unwrap().wait(None).unwrap().unwrap();
            }
            job.close().unwrap();
        });
    }
    Ok(())
}
