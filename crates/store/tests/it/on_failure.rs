//! Saves that fail while the program goes on: which errors it gets, which saves count, and when it
//! ends. The next save stores everything that those before it could not.

use crate::common;

use common::{Program, State, Warnings, changed, noise, small_config};
use outlive_backend::FaultWorld;
use outlive_capture::{ChangeTracker, MemorySource, Region};
use outlive_interval::Every;
use outlive_pool::{Environment, Pool};
use outlive_store::group::GroupOptions;
use outlive_store::retention::Rules;
use outlive_store::{Job, JobOptions, OnFailure, SaveHandle, Select};
use outlive_types::{Clock, Distribution, Error, ErrorKind, Result, SystemClock, ThreadRank};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);
const WARN: OnFailure = OnFailure::Warn { fail_after: HOUR };
const RANKS: u32 = 3;

/// A clock that a test advances.
#[derive(Default)]
struct Skipping {
    clock: SystemClock,
    skipped_s: AtomicU64,
}

impl Skipping {
    fn skip(&self, seconds: u64) {
        self.skipped_s.fetch_add(seconds, Ordering::SeqCst);
    }
}

impl Clock for Skipping {
    fn unix_ns(&self) -> u64 {
        self.clock.unix_ns()
    }

    fn monotonic(&self) -> Duration {
        self.clock.monotonic() + Duration::from_secs(self.skipped_s.load(Ordering::SeqCst))
    }
}

/// A pool whose target, or log, refuses for a while.
struct World {
    faults: FaultWorld,
    fault: Arc<Mutex<Option<(&'static str, ErrorKind)>>>,
    clock: Arc<Skipping>,
    warnings: Arc<Warnings>,
}

impl World {
    fn new() -> World {
        let (faults, fault) = (FaultWorld::new(), Arc::<Mutex<Option<_>>>::default());
        let now = fault.clone();
        faults.fail_when(move |_, op| {
            let (of, kind) = (*now.lock().unwrap())?;
            op.contains(of).then_some(kind)
        });
        World { faults, fault, clock: Arc::default(), warnings: Arc::default() }
    }

    fn pool(&self) -> Pool {
        let (target, log, _) = self.faults.process();
        let (clock, observer) = (self.clock.clone(), self.warnings.clone());
        Pool::new(
            small_config(),
            target,
            log,
            Environment { clock, observer, ..Environment::system() },
        )
    }

    fn fail(&self, of: &'static str, kind: ErrorKind) {
        *self.fault.lock().unwrap() = Some((of, kind));
    }

    fn recover(&self) {
        *self.fault.lock().unwrap() = None;
    }

    fn warned(&self, text: &str) -> usize {
        self.warnings.0.lock().unwrap().iter().filter(|it| it.contains(text)).count()
    }

    /// Returns the checkpoint that another program restores.
    fn restored(&self) -> Option<(u64, State)> {
        Program::start(&self.pool(), "job").restore(Select::Newest).unwrap()
    }
}

fn open(pool: &Pool, on_failure: Option<OnFailure>) -> Program {
    let options = JobOptions { on_failure, ..JobOptions::default() };
    let job = Job::open(pool, "job", options).unwrap();
    Program { job, tracker: Arc::new(ChangeTracker::new()), attachment: Vec::new() }
}

fn first() -> State {
    State::from([("a".to_owned(), noise(1, 60 * 4096)), ("n".to_owned(), vec![1])])
}

/// Begins a save, and waits until it is over.
fn tried(program: &Program, state: &State) -> Result<SaveHandle> {
    let handle = program.job.save(&mut program.source(state))?;
    handle.wait_done(None);
    Ok(handle)
}

/// Makes a save fail without an error for the program.
fn fails_unheard(program: &Program, state: &State) {
    let failed = program.job.health().failed;
    assert!(tried(program, state).unwrap().done());
    assert_eq!(program.job.health().failed, failed + 1);
}

fn commits(program: &Program, state: &State) -> u64 {
    tried(program, state).unwrap().wait(None).unwrap().unwrap().epoch
}

#[test]
fn a_full_disk_for_a_while_ends_nothing() {
    // A save that has frozen its memory, and one that cannot even open its session.
    for (of, kind) in [("write", ErrorKind::Full), ("append", ErrorKind::Retry)] {
        let world = World::new();
        let program = open(&world.pool(), Some(WARN));
        let mut state = first();
        if of == "write" {
            assert_eq!(commits(&program, &state), 1);
        }
        let before = program.job.health().committed;
        world.fail(of, kind);
        for page in 0..3 {
            state = changed(state, page, 7 + page as u64);
            fails_unheard(&program, &state);
        }
        let health = program.job.health();
        assert_eq!((health.failed_in_a_row, health.failed, health.committed), (3, 3, before));
        assert_eq!(health.last_error.unwrap().kind(), kind);
        assert_eq!(world.warned("a save of job job failed"), 3);
        assert_eq!(world.restored().map(|(epoch, _)| epoch), (before > 0).then_some(1));
        world.recover();
        // The next save has all that the failed saves have frozen.
        state = changed(state, 9, 99);
        assert_eq!(commits(&program, &state), before + 1);
        assert!(world.restored() == Some((before + 1, state.clone())), "bit for bit");
        let health = program.job.health();
        assert_eq!((health.failed_in_a_row, health.failed, health.committed), (0, 3, before + 1));
        state = changed(state, 10, 100);
        commits(&program, &state);
        program.job.close().unwrap();
        assert!(world.restored() == Some((before + 2, state)), "bit for bit");
        // The log records that saves in between have failed.
        let epochs = program.job.epochs().unwrap();
        let failed: Vec<u16> = epochs.iter().map(|info| info.manifest.failed_before).collect();
        assert_eq!(failed[before as usize..], [3, 0]);
    }
}

#[test]
fn without_a_word_the_next_save_raises() {
    for on_failure in [None, Some(OnFailure::Raise)] {
        let world = World::new();
        let program = open(&world.pool(), on_failure);
        world.fail("write", ErrorKind::Full);
        fails_unheard(&program, &first());
        let error = tried(&program, &first()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full);
        assert!(error.message().starts_with("an earlier save failed: "), "{error}");
        world.recover();
        assert_eq!(commits(&program, &first()), 1, "it was told");
        // The log records it all the same, for a restart.
        assert_eq!(program.job.epochs().unwrap()[0].manifest.failed_before, 1);
    }
}

#[test]
fn after_too_long_the_program_is_told_again_and_again() {
    let world = World::new();
    let program = open(&world.pool(), Some(WARN));
    world.fail("write", ErrorKind::Full);
    fails_unheard(&program, &first());
    // The moment counts at which a save failed, and not the one at which the next begins.
    world.clock.skip(3590);
    fails_unheard(&program, &first());
    world.clock.skip(20);
    fails_unheard(&program, &first());
    for _ in 0..2 {
        let error = tried(&program, &first()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full);
        let told = error.message();
        assert!(told.contains("no save of job job was committed for 361"), "{told}");
        assert!(told.contains("(fail_after = 3600 s)"), "{told}");
        // If the program goes on, the next save is tried.
        fails_unheard(&program, &first());
    }
    assert_eq!(tried(&program, &first()).unwrap_err().kind(), ErrorKind::Full);
    world.recover();
    assert_eq!(commits(&program, &first()), 1);
    // The time counts from that commit on.
    world.clock.skip(3590);
    world.fail("append", ErrorKind::Retry);
    fails_unheard(&program, &first());
    fails_unheard(&program, &first());
    // If a program cannot even begin, the error comes at once.
    let other = open(&world.pool(), Some(WARN));
    fails_unheard(&other, &first());
    world.clock.skip(4000);
    let error = tried(&other, &first()).unwrap_err();
    assert!(error.message().contains("2 in a row have failed; the last one: "), "{error}");
    assert_eq!(error.kind(), ErrorKind::Retry);
    // The program has got that error: the job tries the next save, and does not repeat older
    // errors.
    let error = tried(&other, &first()).unwrap_err();
    assert!(error.message().contains("3 in a row have failed; the last one: "), "{error}");
    world.recover();
    assert_eq!(commits(&other, &first()), 2);
}

#[test]
fn a_wait_for_a_save_raises_its_failure() {
    let world = World::new();
    let program = open(&world.pool(), Some(WARN));
    commits(&program, &first());
    world.fail("write", ErrorKind::Full);
    let state = changed(first(), 3, 3);
    let handle = program.job.save(&mut program.source(&state)).unwrap();
    // The job raises nothing, since the program goes on; the handle does, since it waits for this
    // save.
    program.job.settle_save(&handle).unwrap();
    program.job.settle().unwrap();
    program.job.tell_last().unwrap();
    assert!(program.job.has_unheard(), "it can be told when the program ends");
    assert_eq!(handle.wait(None).unwrap().unwrap_err().kind(), ErrorKind::Full);
    program.job.tell_last().unwrap();
    assert!(!program.job.has_unheard());
    let handle = program.job.save(&mut program.source(&state)).unwrap();
    assert_eq!(program.job.wait().unwrap_err().kind(), ErrorKind::Full);
    drop(handle);
    // A restore goes on as well.
    fails_unheard(&program, &state);
    assert!(program.restore(Select::Newest).unwrap() == Some((1, first())));
    world.recover();
    assert_eq!(commits(&program, &state), 2);
    assert!(world.restored() == Some((2, state)), "bit for bit");
}

/// A program goes on after a failed save, and then offers a state that no save can store. That call
/// reports only the mistake, and the end of the program reports the failed save.
#[test]
fn a_mistake_of_the_program_hides_no_failed_save() {
    let world = World::new();
    let program = open(&world.pool(), Some(WARN));
    commits(&program, &first());
    world.fail("write", ErrorKind::Full);
    fails_unheard(&program, &changed(first(), 3, 3));
    let beyond = Distribution::Subarray { global_shape: vec![4], offset: vec![3] };
    let region = Region::from_bytes("part", "|u1", vec![3], vec![0; 3]).distributed(beyond);
    let mut source = MemorySource::new(Arc::new(ChangeTracker::new()), vec![region], Vec::new(), 1);
    assert_eq!(program.job.save(&mut source).unwrap_err().kind(), ErrorKind::Invalid);
    program.job.tell_last().unwrap();
    assert!(program.job.has_unheard());
}

#[test]
fn failures_that_waiting_cannot_end_are_raised_at_once() {
    let world = World::new();
    let program = open(&world.pool(), Some(WARN));
    commits(&program, &first());
    // A mistake of the program, or a refusal that no system has reported.
    world.fail("write", ErrorKind::Invalid);
    let state = changed(first(), 1, 1);
    fails_unheard(&program, &state);
    assert_eq!(tried(&program, &state).unwrap_err().kind(), ErrorKind::Invalid);
    world.recover();
    // Another program takes over.
    let other = open(&world.pool(), None);
    other.restore(Select::Newest).unwrap();
    commits(&other, &state);
    assert_eq!(tried(&program, &state).unwrap_err().kind(), ErrorKind::Fenced);
    assert_eq!(program.job.close().map_err(|error| error.kind()), Ok(()));
}

#[test]
fn a_close_warns_unless_nothing_was_kept() {
    // No save was committed.
    let world = World::new();
    let program = open(&world.pool(), Some(WARN));
    world.fail("write", ErrorKind::Full);
    fails_unheard(&program, &first());
    let error = program.job.close().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    assert!(error.message().contains("none of its saves was committed"), "{error}");
    assert_eq!(program.job.close(), Ok(()), "it was told");
    // One save was, and lately.
    world.recover();
    commits(&program, &first());
    world.fail("write", ErrorKind::Full);
    let state = changed(first(), 2, 2);
    fails_unheard(&program, &state);
    assert_eq!(program.job.close(), Ok(()));
    assert_eq!(world.warned("its last save failed: the newest checkpoint is "), 1);
    // One save was, too long ago.
    world.clock.skip(4000);
    fails_unheard(&program, &state);
    let error = program.job.close().unwrap_err();
    assert!(error.message().contains("no save of job job was committed for 4"), "{error}");
    // An error that the save's own handle has returned is not repeated.
    let handle = tried(&program, &state).unwrap();
    handle.wait(None).unwrap().unwrap_err();
    assert_eq!(program.job.close(), Ok(()));
    world.recover();
    assert_eq!(commits(&program, &state), 2);
    program.job.close().unwrap();
    assert!(world.restored() == Some((2, state)), "bit for bit");
}

#[test]
fn a_failed_save_is_due_again_soon_and_then_less_often() {
    let world = World::new();
    let (pool, minute) = (world.pool(), Duration::from_secs(600));
    let due_after = |job: &Job, pauses: &[u64]| {
        for pause in pauses {
            assert!(!job.due(false).unwrap().is_due, "{pause}");
            world.clock.skip(*pause);
        }
        assert!(job.due(false).unwrap().is_due);
    };
    for (on_failure, pauses) in [
        (Some(WARN), [&[1][..], &[1, 1], &[2, 2], &[4, 4], &[8, 8]]),
        (None, [&[300, 300][..], &[300, 300], &[300, 300], &[300, 300], &[300, 300]]),
    ] {
        let options = JobOptions { every: Every::Fixed(minute), on_failure, ..Default::default() };
        let job = Job::open(&pool, "job", options).unwrap();
        let program = Program { job, tracker: Arc::default(), attachment: Vec::new() };
        assert!(program.job.due(false).unwrap().is_due);
        world.recover();
        commits(&program, &first());
        due_after(&program.job, &[300, 300]);
        world.fail("write", ErrorKind::Full);
        for (number, pauses) in pauses.into_iter().enumerate() {
            let handle = program.job.save(&mut program.source(&changed(first(), 1, number as u64)));
            let handle = handle.unwrap();
            assert!(handle.wait(None).unwrap().is_err());
            due_after(&program.job, pauses);
        }
        world.recover();
        commits(&program, &changed(first(), 1, 99));
        due_after(&program.job, &[300, 300]);
        program.job.close().unwrap();
    }
}

#[test]
fn times_that_cannot_be_are_refused() {
    let world = World::new();
    let pool = world.pool();
    let asked = |every: Every, fail_after: Duration| {
        let on_failure = Some(OnFailure::Warn { fail_after });
        let options = JobOptions { every, on_failure, ..Default::default() };
        Job::open(&pool, "job", options).map(drop)
    };
    assert_eq!(asked(Every::Fixed(HOUR), HOUR + Duration::from_secs(1)), Ok(()));
    for (every, fail_after) in [(Every::Fixed(HOUR), HOUR), (Every::Always, Duration::ZERO)] {
        let error = asked(every, fail_after).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().contains("fail_after = "), "{error}");
    }
}

/// A disk that is full for a while, and rules that drop older checkpoints.
#[test]
fn rules_go_on_behind_failed_saves() {
    let world = World::new();
    let program = open(&world.pool(), Some(WARN));
    program.job.keep(Rules { last: Some(2), ..Rules::default() }).unwrap();
    let mut state = first();
    for round in 0..3 {
        for page in 0..3 {
            state = changed(state, page, 10 * round + page as u64);
            commits(&program, &state);
        }
        world.fail("write", ErrorKind::Full);
        for page in 3..6 {
            state = changed(state, page, 10 * round + page as u64);
            fails_unheard(&program, &state);
        }
        world.recover();
    }
    state = changed(state, 20, 1);
    commits(&program, &state);
    program.job.close().unwrap();
    let epochs: Vec<u64> = program.job.epochs().unwrap().iter().map(|info| info.epoch).collect();
    assert_eq!(epochs, [9, 10]);
    assert!(world.restored() == Some((10, state)), "bit for bit");
}

/// Runs the ranks of a group, each in a thread.
fn run<T: Send>(
    world: &World,
    on_failure: impl Fn(u32) -> OnFailure + Sync,
    work: impl Fn(u32, Program) -> T + Sync,
) -> Vec<T> {
    let start = |coordinator: Arc<ThreadRank>| {
        let rank = outlive_types::Coordinator::rank(&*coordinator);
        let group = Some(GroupOptions { patience: 24 * HOUR, ..GroupOptions::new(coordinator) });
        let options =
            JobOptions { group, on_failure: Some(on_failure(rank)), ..Default::default() };
        let job = Job::open(&world.pool(), "job", options).unwrap();
        work(rank, Program { job, tracker: Arc::default(), attachment: Vec::new() })
    };
    let start = &start;
    thread::scope(|scope| {
        let threads: Vec<_> =
            ThreadRank::group(RANKS).into_iter().map(|it| scope.spawn(move || start(it))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn of_rank(rank: u32, step: u64) -> State {
    changed(first(), step as usize, 100 * u64::from(rank) + step)
}

/// One rank's disk, or the log of all, fails for a while: all ranks go on, and all get the error at
/// the same save.
#[test]
fn ranks_go_on_and_give_up_at_the_same_saves() {
    for (of, kind) in [("write", ErrorKind::Full), (" to job:", ErrorKind::Retry)] {
        let world = World::new();
        let barrier = std::sync::Barrier::new(RANKS as usize);
        let at_once = |rank: u32, work: &dyn Fn()| {
            barrier.wait();
            if rank == 0 {
                work();
            }
            barrier.wait();
        };
        let outcomes = run(
            &world,
            |_| WARN,
            |rank, program| {
                let mut outcomes: Vec<std::result::Result<bool, Error>> = Vec::new();
                let mut save = |step| {
                    let failed = program.job.health().failed;
                    let handle = program.job.save(&mut program.source(&of_rank(rank, step)));
                    outcomes.push(handle.map(|handle| {
                        handle.wait_done(None);
                        program.job.health().failed == failed
                    }));
                };
                save(0);
                at_once(rank, &|| world.fail(of, kind));
                save(1);
                save(2);
                at_once(rank, &|| world.clock.skip(4000));
                save(3);
                save(4);
                at_once(rank, &|| world.recover());
                save(5);
                save(6);
                program.job.close().unwrap();
                (outcomes, program.job.health())
            },
        );
        let (first, health) = &outcomes[0];
        for (rank, (other, of_other)) in outcomes.iter().enumerate() {
            assert_eq!(other, first, "{of}: rank {rank}");
            assert_eq!(of_other.committed, health.committed, "{of}: rank {rank}");
        }
        assert_eq!(first[..3], [Ok(true), Ok(false), Ok(false)], "{of}");
        let told = first.iter().filter_map(|it| it.as_ref().err()).next().expect("all are told");
        assert!(told.message().contains("no save of job job was committed for 4"), "{of}: {told}");
        assert_eq!(first[6], Ok(true), "{of}");
    }
}

#[test]
fn ranks_that_would_do_different_things_are_refused() {
    let world = World::new();
    let says = |rank| if rank == 1 { OnFailure::Raise } else { WARN };
    let errors = run(&world, says, |rank, program| {
        tried(&program, &of_rank(rank, 1)).map(drop).unwrap_err()
    });
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let told = "rank 1 has on_failure \"raise\", where rank 0 has on_failure \"warn\"";
        assert!(error.message().contains(told), "{error}");
    }
}

/// A rank closes the job, or its program ends, while the others save or begin to: all get an error,
/// and none waits.
#[test]
fn a_rank_that_closes_while_others_save_is_told_and_tells() {
    for (closes, exits) in [(0, false), (2, false), (0, true), (1, true)] {
        let world = World::new();
        let has_left = AtomicBool::new(false);
        let errors = run(
            &world,
            |_| OnFailure::Raise,
            |rank, program| {
                commits(&program, &of_rank(rank, 1));
                let told = match (rank == closes, exits) {
                    (true, true) => {
                        let closed = program.job.close_at_exit();
                        has_left.store(true, Ordering::SeqCst);
                        closed.map_err(|error| error.clone())
                    }
                    (true, false) => program.job.close(),
                    _ => tried(&program, &of_rank(rank, 2)).map(drop),
                };
                // No rank waits for one that is out of step, not even at the end.
                let closed = program.job.close();
                (rank, told, closed)
            },
        );
        for (rank, told, closed) in errors {
            assert_eq!(closed, Ok(()), "rank {rank}");
            if exits && rank == closes {
                assert_eq!(told, Ok(()));
                continue;
            }
            let error = told.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            let names = match exits {
                true => format!(
                    "rank {closes} has left its group: it has ended, or closed the job, after call"
                ),
                false => "the close of the job".to_owned(),
            };
            assert!(error.message().contains(&names), "{error}");
            assert!(error.message().contains(&format!("rank {closes}")), "{error}");
        }
    }
}
