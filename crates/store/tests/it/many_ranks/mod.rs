//! Groups of many ranks that are threads, to measure the cost of a commit.

use crate::common::{noise, small_config};
use outlive_backend::MemoryTarget;
use outlive_capture::{ChangeTracker, MemorySource, Region};
use outlive_dir::DirectoryMedium;
use outlive_log::{LogLocks, LogRecords, LogSeal, Put, RecordLog};
use outlive_pool::{Environment, Pool};
use outlive_store::group::GroupOptions;
use outlive_store::{Job, JobOptions};
use outlive_types::{Coordinator, JobName, Rank, Result};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// A log in a directory that counts its listings.
#[derive(Debug)]
struct Counting {
    medium: DirectoryMedium,
    /// Listings of rank 0's messages, and of the others'.
    lists: Arc<[AtomicU64; 2]>,
}

impl LogRecords for Counting {
    fn describe(&self) -> String {
        self.medium.describe()
    }

    fn jobs(&self) -> Result<Vec<JobName>> {
        self.medium.jobs()
    }

    fn list(&self, job: &JobName) -> Result<Vec<u64>> {
        let name = JobName::new("job")?;
        if *job != name {
            let of_others = usize::from(*job != name.mail_of(0));
            self.lists[of_others].fetch_add(1, Ordering::Relaxed);
        }
        self.medium.list(job)
    }

    fn get(&self, job: &JobName, number: u64) -> Result<Option<Vec<u8>>> {
        self.medium.get(job, number)
    }

    fn put_new(&self, job: &JobName, number: u64, record: &[u8]) -> Result<Put> {
        self.medium.put_new(job, number, record)
    }

    fn delete(&self, job: &JobName, number: u64) -> Result<()> {
        self.medium.delete(job, number)
    }

    fn sync(&self, job: &JobName) -> Result<()> {
        self.medium.sync(job)
    }
}

impl LogLocks for Counting {}

impl LogSeal for Counting {}

/// Connects ranks that are threads. It wakes them once for each call, so thousands of them cost
/// little.
#[derive(Debug)]
struct Threads {
    rank: Rank,
    shared: Arc<(Mutex<Call>, Condvar)>,
}

#[derive(Debug)]
struct Call {
    given: Vec<Option<Vec<u8>>>,
    number: u64,
    result: Arc<Vec<Vec<u8>>>,
}

impl Threads {
    fn group(size: u32) -> Vec<Arc<Threads>> {
        let given = vec![None; size as usize];
        let call = Call { given, number: 0, result: Arc::default() };
        let shared = Arc::new((Mutex::new(call), Condvar::new()));
        (0..size).map(|rank| Arc::new(Threads { rank, shared: shared.clone() })).collect()
    }

    fn exchange(&self, bytes: &[u8]) -> Arc<Vec<Vec<u8>>> {
        let (call, changed) = &*self.shared;
        let mut call = call.lock().unwrap();
        let number = call.number;
        call.given[self.rank as usize] = Some(bytes.to_vec());
        if call.given.iter().all(Option::is_some) {
            call.result = Arc::new(call.given.iter_mut().filter_map(Option::take).collect());
            call.number += 1;
            changed.notify_all();
        }
        while call.number == number {
            call = changed.wait(call).unwrap();
        }
        call.result.clone()
    }
}

impl Coordinator for Threads {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn size(&self) -> u32 {
        self.shared.0.lock().unwrap().given.len() as u32
    }

    fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let all = self.exchange(bytes);
        Ok(if self.rank == 0 { all.to_vec() } else { Vec::new() })
    }

    fn broadcast(&self, bytes: &[u8]) -> Result<Vec<u8>> {
        Ok(self.exchange(bytes)[0].clone())
    }
}

/// Time of a save from the moment when all ranks had frozen, and the number of listings of the log.
pub struct Measured {
    pub took: Duration,
    /// Listings by the ranks that read rank 0's messages, and by rank 0.
    pub lists: [u64; 2],
}

/// Makes `ranks` ranks save `saves` times.
pub fn measure(ranks: u32, saves: u64) -> Vec<Measured> {
    let dir = tempfile::tempdir().unwrap();
    let lists = Arc::<[AtomicU64; 2]>::default();
    let medium = Counting { medium: DirectoryMedium::open(dir.path()), lists: lists.clone() };
    let log = Arc::new(RecordLog::over(medium));
    let mut config = small_config();
    config.tuning.staging_bytes = 64 << 20;
    let pool = Pool::new(config, Arc::new(MemoryTarget::new()), log, Environment::system());
    let work = |coordinator: Arc<Threads>| {
        let rank = coordinator.rank();
        let group = Some(GroupOptions::new(coordinator.clone()));
        let job = Job::open(&pool, "job", JobOptions { group, ..JobOptions::default() }).unwrap();
        let tracker = Arc::new(ChangeTracker::new());
        let mut measured = Vec::new();
        for save in 0..saves {
            let memory = noise(save << 32 | u64::from(rank), 64);
            let region = Region::from_bytes("a", "|u1", vec![64], memory);
            let mut source = MemorySource::new(tracker.clone(), vec![region], Vec::new(), 1);
            let handle = job.save(&mut source).unwrap();
            let (since, before) =
                (Instant::now(), [0, 1].map(|at| lists[at].load(Ordering::Relaxed)));
            handle.wait(None).unwrap().unwrap();
            let took = since.elapsed();
            let lists = [0, 1].map(|at| lists[at].load(Ordering::Relaxed) - before[at]);
            measured.push(Measured { took, lists });
            coordinator.barrier().unwrap();
        }
        measured
    };
    let work = &work;
    thread::scope(|scope| {
        let start =
            |it| thread::Builder::new().stack_size(512 << 10).spawn_scoped(scope, move || work(it));
        let threads: Vec<_> =
            Threads::group(ranks).into_iter().map(|it| start(it).unwrap()).collect();
        let mut all = threads.into_iter().map(|thread| thread.join().unwrap());
        let first = all.next().unwrap();
        all.for_each(drop);
        first
    })
}
