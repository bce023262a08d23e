//! A small world for the store's tests: states that can be edited, pools in memory, and restores
//! into plain vectors.
#![allow(dead_code)] // each test file uses its part

use outlive_backend::{MemoryTarget, ShardName, Target};
use outlive_capture::{ChangeTracker, MemorySource, Region};
use outlive_log::{ManifestLog, MemoryLog};
use outlive_pool::{Environment, FormatConfig, Pool, PoolConfig, StoredShard, Tuning};
use outlive_store::{Job, JobOptions, MemoryImage, RestoreSink, SaveStats, Select};
use outlive_types::{
    Epoch, Event, FreezeRequest, Frozen, Observer, PACKED_STREAM, PAGE_BYTES, PageSource,
    RegionDesc, RegionLocation, Result,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A program's state: named regions in name order.
pub type State = BTreeMap<String, Vec<u8>>;

/// Small sizes, so that small states meet every boundary.
pub fn small_config() -> PoolConfig {
    let format = FormatConfig {
        container_bytes: 64 << 10,
        pack_bytes: 256 << 10,
        chunk_bytes_max: 16 << 10,
        ..FormatConfig::new([7; 16])
    };
    let tuning = Tuning {
        staging_bytes: 2 << 20,
        freeze_bytes_max: 1 << 20,
        threads: 1,
        ..Tuning::default()
    };
    PoolConfig::new(format, tuning)
}

pub fn memory_pool() -> Pool {
    pool_of(Arc::new(MemoryTarget::new()), Arc::new(MemoryLog::new()))
}

pub fn pool_of(target: Arc<dyn Target>, log: Arc<dyn ManifestLog>) -> Pool {
    Pool::new(small_config(), target, log, Environment::system())
}

/// A shard of the target as its pool sees it.
pub fn stored(pool: &Pool, shard: ShardName) -> StoredShard {
    let mut shards = pool.shards().unwrap().into_iter();
    shards.find(|stored| stored.to_string() == shard.to_string()).expect("the shard is there")
}

/// A pool in memory with other tuning.
pub fn tuned(change: impl Fn(&mut Tuning)) -> Pool {
    tuned_on(Arc::new(MemoryTarget::new()), change)
}

/// A pool on `target` with other tuning.
pub fn tuned_on(target: Arc<dyn Target>, change: impl Fn(&mut Tuning)) -> Pool {
    let mut config = small_config();
    change(&mut config.tuning);
    Pool::new(config, target, Arc::new(MemoryLog::new()), Environment::system())
}

/// Keeps the warnings that it gets.
#[derive(Debug, Default)]
pub struct Warnings(pub Mutex<Vec<String>>);

impl Observer for Warnings {
    fn event(&self, event: Event) {
        if let Event::Warning(text) = event {
            self.0.lock().unwrap().push(text);
        }
    }
}

/// The state with another page in its region `a`.
pub fn changed(mut state: State, page: usize, seed: u64) -> State {
    let bytes = state.get_mut("a").expect("a state with a region a");
    bytes[page * PAGE_BYTES..][..PAGE_BYTES].copy_from_slice(&noise(seed, PAGE_BYTES));
    state
}

/// A job and the tracker that a front door keeps with it.
pub struct Program {
    pub job: Job,
    pub tracker: Arc<ChangeTracker>,
    pub attachment: Vec<u8>,
}

impl Program {
    pub fn start(pool: &Pool, name: &str) -> Program {
        let job = Job::open(pool, name, JobOptions::default()).unwrap();
        Program { job, tracker: Arc::new(ChangeTracker::new()), attachment: b"front door".to_vec() }
    }

    pub fn source(&self, state: &State) -> MemorySource {
        let regions = state
            .iter()
            .map(|(name, bytes)| {
                let shape = vec![bytes.len() as u64];
                Region::from_bytes(name.as_str(), "|u1", shape, bytes.as_slice())
            })
            .collect();
        MemorySource::new(self.tracker.clone(), regions, self.attachment.clone(), 1)
    }

    /// Saves and waits for the commit.
    pub fn save(&self, state: &State) -> Result<SaveStats> {
        let handle = self.job.save(&mut self.source(state))?;
        handle.wait(None).expect("a wait without limit ends with the save")
    }

    /// Restores as a front door does, and makes what was restored the baseline.
    pub fn restore(&self, select: Select) -> Result<Option<(Epoch, State)>> {
        let mut restored = State::new();
        let done = self.job.restore(
            select,
            &mut |checkpoint| {
                let all = (0..checkpoint.streams().len()).collect();
                Ok((all, Vectors::for_all(checkpoint)))
            },
            &mut |checkpoint, vectors| {
                let streams = vectors.into_inner();
                let primed: Vec<(&str, &[u8])> = checkpoint
                    .streams()
                    .iter()
                    .zip(&streams)
                    .map(|(stream, bytes)| (stream.name.as_str(), bytes.as_slice()))
                    .collect();
                self.tracker.prime(checkpoint.epoch(), &primed, 1);
                restored = regions_of(checkpoint, &streams);
                Ok(())
            },
        )?;
        Ok(done.map(|done| (done.epoch, restored)))
    }
}

/// A sink with one vector for each stream. Each begins as garbage: zeros must be written, too.
pub struct Vectors(Vec<Mutex<Vec<u8>>>);

impl Vectors {
    pub fn for_all(checkpoint: &MemoryImage) -> Vectors {
        Vectors(
            checkpoint
                .streams()
                .iter()
                .map(|stream| Mutex::new(vec![0xA5; stream.tree.bytes as usize]))
                .collect(),
        )
    }

    pub fn into_inner(self) -> Vec<Vec<u8>> {
        self.0.into_iter().map(|bytes| bytes.into_inner().unwrap()).collect()
    }
}

impl RestoreSink for Vectors {
    fn write(&self, stream: usize, offset: u64, bytes: &[u8]) {
        let mut into = self.0[stream].lock().unwrap();
        into[offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn zero(&self, stream: usize, offset: u64, length: u64) {
        let mut into = self.0[stream].lock().unwrap();
        into[offset as usize..][..length as usize].fill(0);
    }
}

pub fn regions_of(checkpoint: &MemoryImage, streams: &[Vec<u8>]) -> State {
    let number = checkpoint.stream_of();
    checkpoint
        .regions()
        .iter()
        .map(|region| {
            let bytes = match region.location {
                RegionLocation::Own => streams[number[region.name.as_str()]].clone(),
                RegionLocation::Packed { offset } => {
                    let packed = number.get(PACKED_STREAM).map(|at| &streams[*at]);
                    match packed {
                        Some(packed) => packed[offset as usize..][..region.bytes as usize].to_vec(),
                        None => Vec::new(),
                    }
                }
            };
            (region.name.clone(), bytes)
        })
        .collect()
}

/// Waits for an event that comes by itself, however busy the machine is.
pub fn until(what: &str, is_so: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(300), "{what}: it never comes");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the calling thread, for [`is_asleep`].
pub fn this_thread() -> PathBuf {
    Path::new("/proc").join(std::fs::read_link("/proc/thread-self").unwrap())
}

/// Whether a thread sleeps, as it does while it waits.
pub fn is_asleep(thread: &Path) -> bool {
    let stat = std::fs::read_to_string(thread.join("stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('S'))
}

/// Bytes that look random and depend on the seed alone.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let rng = outlive_types::SeededRng::new(seed);
    let mut bytes = vec![0; length];
    outlive_types::Rng::fill(&rng, &mut bytes);
    bytes
}

/// Bytes that compress well, depend on the seed, and have no equal pages.
pub fn smooth(seed: u64, length: usize) -> Vec<u8> {
    let value = |at: usize| ((at as u64 / 64).wrapping_add(seed.wrapping_mul(0x9E37)) as u32) << 3;
    (0..length.div_ceil(4)).flat_map(|at| value(at).to_le_bytes()).take(length).collect()
}

/// Memory with a call before its freeze.
pub struct Interrupted<F> {
    pub inner: MemorySource,
    pub before: F,
}

impl<F: FnMut()> PageSource for Interrupted<F> {
    fn freeze(&mut self, request: &FreezeRequest) -> Result<Box<dyn Frozen>> {
        (self.before)();
        self.inner.freeze(request)
    }

    fn regions(&mut self) -> Result<Vec<RegionDesc>> {
        self.inner.regions()
    }
}
