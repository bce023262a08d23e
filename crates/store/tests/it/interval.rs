//! The interval between saves: what a job measures, remembers and agrees on with its ranks. The
//! formulas and the learner have their tests in `crates/interval`.

use crate::common;

use common::{Program, State, changed, noise, small_config};
use outlive_backend::FaultWorld;
use outlive_interval::{Bound, Choice, Every, Past};
use outlive_pool::{Environment, Pool};
use outlive_store::group::GroupOptions;
use outlive_store::{Job, JobOptions, OnFailure, PaceMemory, SaveStats};
use outlive_types::{Clock, Coordinator, ErrorKind, SystemClock, ThreadRank};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);
const RANKS: u32 = 3;

/// A clock that stands still until a test advances it.
#[derive(Default)]
struct Still(AtomicU64);

impl Still {
    fn skip(&self, time: Duration) {
        self.0.fetch_add(time.as_nanos() as u64, Ordering::SeqCst);
    }
}

impl Clock for Still {
    fn unix_ns(&self) -> u64 {
        SystemClock::default().unix_ns()
    }

    fn monotonic(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::SeqCst))
    }
}

#[derive(Default)]
struct Memory {
    asked: AtomicU64,
    chosen: Mutex<Vec<(u64, Choice)>>,
}

impl PaceMemory for Memory {
    fn past(&self, _: &Pool) -> Past {
        self.asked.fetch_add(1, Ordering::SeqCst);
        Past { failures: 99.0, exposure_s: 77_650.0, ..Past::default() }
    }

    fn chose(&self, _: &Pool, epoch: u64, choice: &Choice) {
        self.chosen.lock().unwrap().push((epoch, choice.clone()));
    }
}

fn pool(world: &FaultWorld, clock: &Arc<Still>) -> Pool {
    let (target, log, _) = world.process();
    let env = Environment { clock: clock.clone(), ..Environment::system() };
    Pool::new(small_config(), target, log, env)
}

fn program(pool: &Pool, options: JobOptions) -> Program {
    let job = Job::open(pool, "job", options).unwrap();
    Program { job, tracker: Arc::default(), attachment: Vec::new() }
}

fn first() -> State {
    State::from([("a".to_owned(), noise(1, 60 * 4096)), ("n".to_owned(), vec![1])])
}

fn save(program: &Program, seed: u64) -> SaveStats {
    let state = changed(first(), 3, seed);
    program.job.save(&mut program.source(&state)).unwrap().wait(None).unwrap().unwrap()
}

fn is_due(program: &Program) -> bool {
    program.job.due(false).unwrap().is_due
}

#[test]
fn a_job_learns_and_remembers() {
    let (world, clock) = (FaultWorld::new(), Arc::<Still>::default());
    let program = program(&pool(&world, &clock), JobOptions::default());
    let memory = Arc::<Memory>::default();
    program.job.set_every(Every::Auto, false, Some(memory.clone()));
    assert!(is_due(&program), "the first save measures");
    // The clock moves while the program prepares the save: that is a part of its stall.
    clock.skip(Duration::from_secs(2));
    let choice = save(&program, 0).interval.unwrap();
    assert_eq!((choice.bound, choice.failures, choice.saves), (Bound::Optimum, 99.0, 1));
    assert_eq!(choice.stall_s, 2.0);
    // 99 failures in 77,650 s, and the prior, a quarter of one in 21,600 s.
    assert!((choice.mtbf_s - 1000.0).abs() < 1.0, "{choice}");
    assert!((choice.seconds - 61.0).abs() < 3.0, "{choice}");
    let seconds = Duration::from_secs_f64(choice.seconds);
    assert!(!is_due(&program));
    clock.skip(seconds - Duration::from_millis(1));
    assert!(!is_due(&program));
    clock.skip(Duration::from_millis(2));
    assert!(is_due(&program));
    let choice = save(&program, 1).interval.unwrap();
    assert_eq!(choice.saves, 2);
    assert_eq!(memory.asked.load(Ordering::SeqCst), 1, "the past is read once");
    let chosen = memory.chosen.lock().unwrap();
    assert_eq!(chosen.iter().map(|(epoch, _)| *epoch).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(chosen[1].1, choice);
}

#[test]
fn a_save_that_fails_at_any_place_leaves_the_next_one_due() {
    // A save that has frozen its memory, and one that cannot even open its session.
    for (of, kind) in [("write", ErrorKind::Full), ("append", ErrorKind::Retry)] {
        let (world, clock) = (FaultWorld::new(), Arc::<Still>::default());
        let on_failure = Some(OnFailure::Warn { fail_after: 100 * HOUR });
        let options = JobOptions { every: Every::Auto, on_failure, ..JobOptions::default() };
        let program = program(&pool(&world, &clock), options);
        if of == "write" {
            save(&program, 0);
        }
        world.fail_when(move |_, op| op.contains(of).then_some(kind));
        let handle = program.job.save(&mut program.source(&changed(first(), 4, 9))).unwrap();
        handle.wait_done(None);
        clock.skip(24 * HOUR);
        assert!(is_due(&program), "{of}: the failed save counts as one in progress");
    }
}

/// Runs the ranks of a group, each in a thread with a rule of its own.
fn run<T: Send>(
    rule: impl Fn(u32) -> Every + Sync,
    work: impl Fn(u32, Program) -> T + Sync,
) -> Vec<T> {
    let (world, clock) = (FaultWorld::new(), Arc::<Still>::default());
    let start = |coordinator: Arc<ThreadRank>| {
        let rank = coordinator.rank();
        let group = Some(GroupOptions { patience: 24 * HOUR, ..GroupOptions::new(coordinator) });
        let options = JobOptions { group, every: rule(rank), ..JobOptions::default() };
        work(rank, program(&pool(&world, &clock), options))
    };
    let start = &start;
    thread::scope(|scope| {
        let ranks = ThreadRank::group(RANKS).into_iter();
        let threads: Vec<_> = ranks.map(|it| scope.spawn(move || start(it))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn the_rule_of_rank_0_holds_for_all() {
    // As if only the host of rank 0 had the variables of `outlive run`.
    let of_rank_0 = |every: Every, others: Every| {
        run(
            move |rank| if rank == 0 { every } else { others },
            |rank, program| {
                let first = is_due(&program);
                let stats = save(&program, u64::from(rank));
                assert_eq!(stats.interval.is_some(), rank == 0, "only rank 0 decides");
                let later = [is_due(&program), is_due(&program)];
                program.job.close().unwrap();
                (first, later)
            },
        )
    };
    let seldom = of_rank_0(Every::Fixed(HOUR), Every::Always);
    assert_eq!(seldom, [(true, [false, false]); RANKS as usize]);
    let always = of_rank_0(Every::Always, Every::Fixed(HOUR));
    assert_eq!(always, [(true, [true, true]); RANKS as usize]);
    let learned = of_rank_0(Every::Auto, Every::Always);
    assert!(learned.iter().all(|rank| rank.0), "{learned:?}");
    assert!(learned.windows(2).all(|pair| pair[0] == pair[1]), "{learned:?}");
}
