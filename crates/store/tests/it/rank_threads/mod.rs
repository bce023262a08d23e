//! Programs of three ranks. Each rank is a thread with a process of its own.

use crate::common::{Interrupted, State, Vectors, noise, regions_of, small_config};
use outlive_backend::FaultWorld;
use outlive_capture::{ChangeTracker, MemorySource, Region};
use outlive_pool::{Environment, Pool};
use outlive_store::group::{GroupOptions, Schedule};
use outlive_store::{Job, JobOptions, RankImages, SaveStats, Select};
use outlive_types::{Clock, Coordinator, Epoch, Error, Rank, Result, SystemClock, ThreadRank};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

pub const RANKS: u32 = 3;
/// So long that no present rank is missed.
pub const PATIENT: Duration = Duration::from_secs(3600);

/// A coordinator that once reports a failed broadcast to its rank, or makes a call before a
/// broadcast.
pub struct Ear {
    pub inner: Arc<ThreadRank>,
    pub is_deaf: AtomicBool,
    pub before: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl fmt::Debug for Ear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Coordinator for Ear {
    fn rank(&self) -> Rank {
        self.inner.rank()
    }

    fn size(&self) -> u32 {
        self.inner.size()
    }

    fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.inner.gather(bytes)
    }

    fn broadcast(&self, bytes: &[u8]) -> Result<Vec<u8>> {
        let before = self.before.lock().unwrap().take();
        if let Some(before) = before {
            before();
        }
        let heard = self.inner.broadcast(bytes)?;
        match self.is_deaf.swap(false, Ordering::Relaxed) {
            true => Err(Error::retry("the network was away")),
            false => Ok(heard),
        }
    }
}

/// Returns the state of a rank at a step: each step changes other pages, and most of them stay.
pub fn state(rank: Rank, step: u64) -> State {
    let mut big = noise(u64::from(rank), 40 * 4096);
    for step in 1..=step {
        let page = step as usize % 39 * 4096;
        big[page..page + 4096].copy_from_slice(&noise(100 * u64::from(rank) + step, 4096));
    }
    State::from([("big".to_owned(), big)])
}

/// A rank's program.
pub struct Program {
    pub rank: Rank,
    pub ear: Arc<Ear>,
    pub pool: Pool,
    pub job: Job,
    pub tracker: Arc<ChangeTracker>,
}

impl Program {
    pub fn save(&self, step: u64) -> Result<SaveStats> {
        self.save_after(step, || ())
    }

    pub fn save_after(&self, step: u64, before: impl FnMut()) -> Result<SaveStats> {
        self.save_state(&state(self.rank, step), before)
    }

    pub fn save_state(&self, memory: &State, before: impl FnMut()) -> Result<SaveStats> {
        let region = |(name, bytes): (&String, &Vec<u8>)| {
            Region::from_bytes(name.as_str(), "|u1", vec![bytes.len() as u64], bytes.as_slice())
        };
        let regions = memory.iter().map(region).collect();
        let inner = MemorySource::new(self.tracker.clone(), regions, Vec::new(), 1);
        self.job.save(&mut Interrupted { inner, before })?.wait(None).unwrap()
    }

    /// Returns the newest epoch, which must be whole and of that step.
    pub fn restore(&self, step: u64) -> Epoch {
        self.restore_state(&state(self.rank, step))
    }

    /// Returns the newest epoch, which must be whole and of that state.
    pub fn restore_state(&self, state: &State) -> Epoch {
        let mut attempt = |manifest: &_, as_of| {
            let image =
                RankImages::new(&self.pool, self.job.name(), manifest, as_of).open(self.rank)?;
            let vectors = Vectors::for_all(&image);
            let all: Vec<usize> = (0..image.streams().len()).collect();
            image.read(&all, &vectors)?;
            Ok(regions_of(&image, &vectors.into_inner()))
        };
        let restored = self
            .job
            .restore_together(Select::Newest, &mut |_, _| Ok(()), &mut attempt)
            .unwrap()
            .unwrap();
        assert!(restored.skipped.is_empty(), "{:?}", restored.skipped);
        assert!(restored.value == *state, "rank {}", self.rank);
        restored.epoch
    }
}

/// Runs all ranks, each in a thread of its own.
pub fn run<T: Send>(
    world: &FaultWorld,
    patience: Duration,
    clock: &Arc<dyn Clock>,
    work: impl Fn(Program) -> T + Sync,
) -> Vec<T> {
    let start = |inner: Arc<ThreadRank>| {
        let (target, log, _) = world.process();
        let env = Environment { clock: clock.clone(), ..Environment::system() };
        let pool = Pool::new(small_config(), target, log, env);
        let (rank, is_deaf) = (inner.rank(), AtomicBool::new(false));
        let ear = Arc::new(Ear { inner, is_deaf, before: Mutex::default() });
        let (coordinator, schedule) = (ear.clone(), Schedule::Coordinated);
        let group = GroupOptions { patience, schedule, ..GroupOptions::new(coordinator) };
        let options = JobOptions { group: Some(group), ..JobOptions::default() };
        let job = Job::open(&pool, "job", options).unwrap();
        work(Program { rank, ear, pool, job, tracker: Arc::new(ChangeTracker::new()) })
    };
    let start = &start;
    thread::scope(|scope| {
        let threads: Vec<_> =
            ThreadRank::group(RANKS).into_iter().map(|it| scope.spawn(move || start(it))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

pub fn usual() -> Arc<dyn Clock> {
    Arc::new(SystemClock::default())
}
