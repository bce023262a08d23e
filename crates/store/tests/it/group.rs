//! Groups of ranks with failures. No save counts as committed that is not there for all ranks; the
//! checkpoint before stays, and no rank waits forever.

use crate::common;
use crate::stepped;

use common::{State, Vectors, Warnings, noise, regions_of, small_config};
use outlive_backend::{FaultProcess, FaultWorld, ShardName, Target};
use outlive_capture::{ChangeTracker, MemorySource, Region};
use outlive_format::Manifest;
use outlive_log::ManifestLog;
use outlive_pool::{Environment, Pool};
use outlive_store::group::{GroupOptions, Schedule};
use outlive_store::{Job, JobOptions, MemoryImage, RankImages, SaveStats, Select, Skipped};
use outlive_types::{Coordinator, Epoch, Error, ErrorKind, Rank, Result, SeededRng, ThreadRank};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;
use stepped::{SteppedTarget, Steps};

const RANKS: u32 = 3;
/// Long enough for no present rank to be missed.
const PATIENT: Duration = Duration::from_secs(3600);

/// Returns the state of a rank at a step.
fn state(rank: Rank, step: u64) -> State {
    let mut big = noise(u64::from(rank), 120_000);
    let page = step as usize % 29 * 4096;
    big[page..page + 4096].copy_from_slice(&noise(step, 4096));
    State::from([
        ("big".to_owned(), big),
        ("step".to_owned(), step.to_le_bytes().to_vec()),
        ("rank".to_owned(), vec![rank as u8]),
    ])
}

fn step_of(state: &State) -> u64 {
    u64::from_le_bytes(state["step"].as_slice().try_into().unwrap())
}

/// A rank's program.
struct Program {
    rank: Rank,
    job: Job,
    tracker: Arc<ChangeTracker>,
}

fn pool(target: Arc<dyn Target>, log: Arc<dyn ManifestLog>, warnings: &Arc<Warnings>) -> Pool {
    let observer = warnings.clone();
    Pool::new(small_config(), target, log, Environment { observer, ..Environment::system() })
}

impl Program {
    fn start(pool: &Pool, coordinator: Arc<ThreadRank>, patience: Duration) -> Program {
        let rank = coordinator.rank();
        let schedule = match rank {
            _ if patience < PATIENT => Schedule::Striped(2),
            _ => Schedule::Coordinated,
        };
        let group = GroupOptions { patience, schedule, ..GroupOptions::new(coordinator) };
        let options = JobOptions { group: Some(group), ..JobOptions::default() };
        let job = Job::open(pool, "job", options).unwrap();
        Program { rank, job, tracker: Arc::new(ChangeTracker::new()) }
    }

    fn save(&self, step: u64) -> Result<SaveStats> {
        let memory = state(self.rank, step);
        let region = |(name, bytes): (&String, &Vec<u8>)| {
            Region::from_bytes(name.as_str(), "|u1", vec![bytes.len() as u64], bytes.as_slice())
        };
        let regions = memory.iter().map(region).collect();
        let mut source = MemorySource::new(self.tracker.clone(), regions, Vec::new(), 1);
        self.job.save(&mut source)?.wait(None).unwrap()
    }

    fn restore(&self) -> Result<Option<(Epoch, State, Skipped)>> {
        let mut attempt = |manifest: &_, as_of| {
            let images = RankImages::new(self.job.pool(), self.job.name(), manifest, as_of);
            let image: MemoryImage = images.open(self.rank)?;
            let vectors = Vectors::for_all(&image);
            let all: Vec<usize> = (0..image.streams().len()).collect();
            image.read(&all, &vectors)?;
            Ok((regions_of(&image, &vectors.into_inner()), image))
        };
        let restored =
            self.job.restore_together(Select::Newest, &mut |_, _| Ok(()), &mut attempt)?;
        Ok(restored.map(|it| {
            let (state, image) = it.value;
            self.job.follow_restored(&image);
            (it.epoch, state, it.skipped)
        }))
    }
}

/// Runs all ranks, each in a thread and a process of its own.
fn run<T: Send>(
    world: &FaultWorld,
    patience: Duration,
    work: impl Fn(Program, FaultProcess) -> T + Sync,
) -> (Vec<T>, Arc<Warnings>) {
    run_over(world, patience, &|_, target| target, work)
}

/// Does the same, with the target that `over` makes of each rank's target.
fn run_over<T: Send>(
    world: &FaultWorld,
    patience: Duration,
    over: &(dyn Fn(Rank, Arc<dyn Target>) -> Arc<dyn Target> + Sync),
    work: impl Fn(Program, FaultProcess) -> T + Sync,
) -> (Vec<T>, Arc<Warnings>) {
    let warnings = Arc::new(Warnings::default());
    let start = |coordinator: Arc<ThreadRank>| {
        let (target, log, process) = world.process();
        let pool = pool(over(coordinator.rank(), target), log, &warnings);
        work(Program::start(&pool, coordinator, patience), process)
    };
    let start = &start;
    let results = thread::scope(|scope| {
        let threads: Vec<_> =
            ThreadRank::group(RANKS).into_iter().map(|it| scope.spawn(move || start(it))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    (results, warnings)
}

/// Restores on all ranks: the same epoch, each its own state of one step. Returns epoch and step.
fn restored(world: &FaultWorld) -> Option<(Epoch, u64)> {
    let (found, _) = run(world, PATIENT, |program, _| {
        let (epoch, found, _) = program.restore().unwrap()?;
        let step = step_of(&found);
        assert!(found == state(program.rank, step), "rank {} at epoch {epoch}", program.rank);
        program.job.close().unwrap();
        Some((epoch, step))
    });
    assert!(found.windows(2).all(|pair| pair[0] == pair[1]), "{found:?}");
    found[0]
}

fn all_equal(errors: &[Error]) {
    assert!(errors.windows(2).all(|pair| pair[0] == pair[1]), "{errors:?}");
}

/// One rank is killed at any moment: at an operation of its own, or between two.
#[test]
fn a_rank_that_is_killed_takes_no_checkpoint_with_it() {
    let next = AtomicU64::new(0);
    let outcomes: Mutex<BTreeMap<&str, u32>> = Mutex::default();
    let trial = |seed: u64| {
        let rng = SeededRng::new(seed);
        let world = FaultWorld::new();
        world.count_reads(rng.below(2) == 0);
        let (victim, after) = (rng.below(u64::from(RANKS)) as Rank, 1 + rng.below(90));
        let told: Mutex<BTreeMap<Epoch, u64>> = Mutex::default();
        let saves = |program: Program, process: FaultProcess| {
            if program.rank == victim {
                process.kill_after(after);
            }
            for step in 1..=5 {
                match program.save(step) {
                    Ok(stats) => drop(told.lock().unwrap().insert(stats.epoch, step)),
                    // A rank without the others gives up.
                    Err(_) => return,
                }
                if process.is_killed() {
                    return;
                }
            }
            let _ = program.job.close();
        };
        run(&world, Duration::from_millis(400), saves);
        let told = told.into_inner().unwrap();
        let newest = told.last_key_value().map_or(0, |(epoch, _)| *epoch);
        let found = restored(&world);
        let epoch = found.map_or(0, |(epoch, _)| epoch);
        assert!(epoch >= newest, "seed {seed}: {found:?} after {told:?}");
        if let Some(step) = found.and_then(|(epoch, _)| told.get(&epoch)) {
            assert_eq!(found.map(|(_, found)| found), Some(*step), "seed {seed}");
        }
        let outcome = match (newest, epoch > newest) {
            (_, true) => "committed, and no rank was told",
            (5, _) => "all five",
            (0, _) => "none",
            _ => "some",
        };
        *outcomes.lock().unwrap().entry(outcome).or_default() += 1;
    };
    let worker = || {
        while let seed @ ..300 = next.fetch_add(1, Ordering::Relaxed) {
            trial(seed);
        }
    };
    // Most of the time, the trials only wait until a rank is missed.
    thread::scope(|scope| (0..12).for_each(|_| drop(scope.spawn(worker))));
    let outcomes = outcomes.into_inner().unwrap();
    assert!(outcomes.len() >= 3, "the moments are all alike: {outcomes:?}");
}

/// One operation of one rank fails: the save fails on every rank, with that reason, and the next
/// succeeds.
#[test]
fn a_failure_of_one_rank_is_told_to_all() {
    let mut failures = 0;
    for number in 0..24 {
        let world = FaultWorld::new();
        let (first, _) = run(&world, PATIENT, |program, _| program.save(1).map(|it| it.epoch));
        assert!(first.iter().all(|epoch| *epoch == Ok(1)));
        let begun = AtomicU64::new(0);
        world.fail_when(move |_, op| {
            let is_it = op.contains("write") || op.contains("finish") || op.contains("create");
            let is_it = is_it && begun.fetch_add(1, Ordering::Relaxed) == number;
            is_it.then_some(ErrorKind::Full)
        });
        let (saved, _) = run(&world, PATIENT, |program, _| {
            program.restore().unwrap();
            let second = program.save(2).map(|it| it.epoch);
            let third = program.save(3).map(|it| it.epoch);
            (second, third)
        });
        let errors: Vec<Error> = saved.iter().filter_map(|it| it.0.clone().err()).collect();
        if errors.is_empty() {
            continue;
        }
        failures += 1;
        assert_eq!(errors.len(), RANKS as usize, "{saved:?}");
        all_equal(&errors);
        assert_eq!(errors[0].kind(), ErrorKind::Full, "{}", errors[0]);
        assert!(saved.iter().all(|it| it.1 == Ok(2)), "{saved:?}");
        assert_eq!(restored(&world), Some((2, 3)));
    }
    assert!(failures >= 4, "only {failures} saves failed");
}

/// Some part of a checkpoint is damaged, for one rank: all go back to the one before, and get the
/// reason.
#[test]
fn damage_of_one_rank_moves_all_to_the_checkpoint_before() {
    let world = FaultWorld::new();
    let (_, _) = run(&world, PATIENT, |program, _| {
        program.save(1).unwrap();
        program.save(2).unwrap();
        program.job.close().unwrap();
    });
    let target = world.target();
    let mut moved = 0;
    let names: Vec<ShardName> = target.list().unwrap();
    for shard in names {
        let length = target.length(shard).unwrap();
        for offset in [4096, length / 2, length - 4096] {
            world.corrupt(shard, offset, 1);
            let (found, warnings) = run(&world, PATIENT, |program, _| {
                let found = program.restore();
                if let Ok(Some((epoch, found, _))) = &found {
                    assert!(*found == state(program.rank, *epoch), "epoch {epoch}");
                }
                found.map(|found| found.map(|(epoch, _, skipped)| (epoch, skipped)))
            });
            assert!(found.windows(2).all(|pair| pair[0] == pair[1]), "{found:?}");
            if let Ok(Some((1, skipped))) = &found[0] {
                moved += 1;
                let (epoch, why) = &skipped[0];
                assert_eq!((*epoch, why.kind()), (2, ErrorKind::Damaged));
                assert!(why.message().contains("rank "), "{why}");
                let told = warnings.0.lock().unwrap();
                assert!(told.iter().any(|it| it.contains("all ranks pass over checkpoint 2")));
            }
            world.corrupt(shard, offset, 1);
        }
    }
    assert!(moved >= 3, "only {moved} damages moved them");
    assert_eq!(restored(&world), Some((2, 2)));
}

/// No rank reads memory before all have looked; a rank that finds damage then moves all to the
/// checkpoint before.
#[test]
fn all_ranks_look_before_any_reads() {
    let world = FaultWorld::new();
    run(&world, PATIENT, |program, _| (1..=2).for_each(|step| drop(program.save(step).unwrap())));
    let (looked, read) = (AtomicU64::new(0), AtomicU64::new(0));
    let (epochs, _) = run(&world, PATIENT, |program, _| {
        let mut look = |manifest: &Manifest, _| {
            looked.fetch_add(1, Ordering::Relaxed);
            match (manifest.epoch, program.rank) {
                (2, 1) => Err(Error::damaged("its catalog")),
                _ => Ok(()),
            }
        };
        let mut attempt = |manifest: &Manifest, _| {
            read.fetch_add(1, Ordering::Relaxed);
            // All ranks have looked at both.
            assert_eq!(looked.load(Ordering::Relaxed), 2 * u64::from(RANKS));
            Ok(manifest.epoch)
        };
        let restored = program.job.restore_together(Select::Newest, &mut look, &mut attempt);
        let restored = restored.unwrap().unwrap();
        (restored.epoch, restored.value, restored.skipped.len())
    });
    assert_eq!(epochs, [(1, 1, 1); RANKS as usize]);
    assert_eq!(read.load(Ordering::Relaxed), u64::from(RANKS));
}

#[test]
fn a_second_group_fences_the_first_on_all_ranks() {
    let world = FaultWorld::new();
    let (errors, _) = run(&world, PATIENT, |program, _| {
        program.save(1).unwrap();
        if program.rank == 0 {
            let (others, _) = run(&world, PATIENT, |other, _| other.save(7).map(|it| it.epoch));
            assert!(others.iter().all(|epoch| *epoch == Ok(2)), "{others:?}");
        }
        program.save(2).unwrap_err()
    });
    all_equal(&errors);
    assert_eq!(errors[0].kind(), ErrorKind::Fenced, "{}", errors[0]);
    assert_eq!(restored(&world), Some((2, 7)));
}

/// Checks that the errors of the two other ranks miss rank 1.
fn rank_1_is_missed(errors: &[Error]) {
    for rank in [0, 2] {
        let error = &errors[rank];
        assert_eq!(error.kind(), ErrorKind::Retry);
        let is_told = error.message().contains("rank 1");
        assert!(is_told && error.message().contains("heard of"), "rank {rank}: {error}");
    }
}

/// The others name a rank that is silent.
#[test]
fn a_rank_that_hangs_is_missed() {
    let world = FaultWorld::new();
    let (results, _) = run(&world, Duration::from_secs(3), |program, process| {
        program.save(1).unwrap();
        // Its operations fail from now on, also those by which it would report that.
        if program.rank == 1 {
            process.kill_after(0);
        }
        program.save(2).unwrap_err()
    });
    rank_1_is_missed(&results);
    assert_eq!(restored(&world), Some((1, 1)));
}

/// A rank whose target never responds shows no sign of life any more, although its log does
/// respond.
#[test]
fn a_rank_whose_target_hangs_is_missed() {
    let world = FaultWorld::new();
    let steps = Steps::default();
    let over = |rank, target| -> Arc<dyn Target> {
        if rank == 1 { Arc::new(SteppedTarget(target, steps.clone())) } else { target }
    };
    let told = Arc::new((Mutex::new(0), Condvar::new()));
    let (results, _) = run_over(&world, Duration::from_secs(3), &over, |program, _| {
        program.save(1).unwrap();
        if program.rank == 1 {
            let told = told.clone();
            steps.hook(move |_, what| {
                if what == "create" {
                    let others = told.1.wait_while(told.0.lock().unwrap(), |told| *told < 2);
                    drop(others.unwrap());
                }
            });
        }
        let error = program.save(2).unwrap_err();
        *told.0.lock().unwrap() += 1;
        told.1.notify_all();
        error
    });
    rank_1_is_missed(&results);
    assert_eq!(restored(&world), Some((1, 1)));
}

/// A group that restores continues that chain, though its images share nothing with the restored
/// ones.
#[test]
fn a_restarted_group_goes_on_with_its_line() {
    let world = FaultWorld::new();
    for restores in [true, true, false] {
        run(&world, PATIENT, |program, _| {
            if restores {
                program.restore().unwrap();
            }
            (1..=2).for_each(|step| drop(program.save(step).unwrap()));
            program.job.close().unwrap();
        });
    }
    let pool = Pool::new(small_config(), world.target(), world.log(), Environment::system());
    let epochs = Job::open(&pool, "job", JobOptions::default()).unwrap().epochs().unwrap();
    let predecessors: Vec<Epoch> = epochs.iter().map(|it| it.manifest.predecessor).collect();
    assert_eq!(predecessors, [0, 1, 2, 3, 0, 5]);
}

/// Messages between ranks do not pile up, and are no job.
#[test]
fn messages_do_not_stay() {
    let world = FaultWorld::new();
    run(&world, PATIENT, |program, _| {
        (1..=20).for_each(|step| drop(program.save(step).unwrap()));
        program.job.close().unwrap();
    });
    let log = world.log();
    assert_eq!(log.jobs().unwrap().len(), 1);
    for rank in 0..RANKS {
        let left = log.numbers(&log.jobs().unwrap()[0].mail_of(rank)).unwrap();
        assert!((1..=3).contains(&left.len()), "rank {rank}: {left:?}");
    }
}
