//! A group whose pool loses a target while it saves: a rank's packs were on it, and rank 0 commits.

mod common;

use common::{noise, small_config};
use outlive_capture::{ChangeTracker, MemorySource, Region};
use outlive_pool::{Environment, Pool, PoolConfig, Redundancy, TargetConfig, Tier, create, open};
use outlive_store::group::{GroupOptions, Schedule};
use outlive_store::{Job, JobOptions, SaveStats};
use outlive_types::{
    Coordinator, ErrorKind, FreezeRequest, Frozen, PageSource, RegionDesc, Result, ThreadRank,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// A rank's memory; something happens before it is frozen.
struct Source<'a> {
    inner: MemorySource,
    before: &'a mut dyn FnMut(),
}

impl PageSource for Source<'_> {
    fn regions(&mut self) -> Result<Vec<RegionDesc>> {
        self.inner.regions()
    }

    fn freeze(&mut self, request: &FreezeRequest) -> Result<Box<dyn Frozen>> {
        (self.before)();
        self.inner.freeze(request)
    }
}

fn another(dir: &Path) -> Pool {
    open(&dir.join("pool"), Environment::system()).unwrap()
}

/// The numbers of the targets that have finished shards of a rank.
fn targets_of(dir: &Path, targets: u32, rank: u32) -> Vec<u32> {
    let packs_of = |folder: PathBuf| {
        let below = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let files = below.flat_map(|entry| std::fs::read_dir(entry.path()).into_iter().flatten());
        let names = files.flatten().map(|file| file.file_name().into_string().unwrap());
        // The session, 12 bytes in hexadecimal, comes first.
        let is_it =
            |name: &String| name.ends_with(".shard") && name[24..32] == format!("{rank:08x}");
        names.filter(is_it).count()
    };
    (1..=targets).filter(|id| packs_of(dir.join(id.to_string()).join("packs")) > 0).collect()
}

/// Both ranks save; `lose` is called with the pool's folder when rank 1's packs are durable, and nothing of
/// rank 0's.
fn save_and(redundancy: Redundancy, lose: &(dyn Fn(&Path) + Sync)) -> Vec<Result<SaveStats>> {
    let dir = tempfile::tempdir().unwrap();
    let place = |id: u32| dir.path().join(id.to_string()).to_str().unwrap().to_owned();
    let target = (1..=3).map(|id| TargetConfig::at(place(id))).collect();
    let config = PoolConfig { target, redundancy, ..small_config() };
    drop(create(&dir.path().join("pool"), config, Environment::system()).unwrap());
    let work = |coordinator: Arc<ThreadRank>| {
        let (rank, pool) = (coordinator.rank(), another(dir.path()));
        let (patience, schedule) = (Duration::from_secs(3600), Schedule::Coordinated);
        let group = Some(GroupOptions { coordinator, patience, schedule });
        let job = Job::open(&pool, "job", JobOptions { group, ..JobOptions::default() }).unwrap();
        let memory = noise(u64::from(rank), 100_000);
        let region = Region::from_bytes("a", "|u1", vec![memory.len() as u64], memory.as_slice());
        let inner = MemorySource::new(Arc::new(ChangeTracker::new()), vec![region], Vec::new(), 1);
        let mut before = || {
            if rank == 0 {
                while targets_of(dir.path(), 4, 1).is_empty() {
                    thread::yield_now();
                }
                lose(dir.path());
            }
        };
        job.save(&mut Source { inner, before: &mut before })?.wait(None).unwrap()
    };
    let work = &work;
    thread::scope(|scope| {
        let ranks = ThreadRank::group(2).into_iter();
        let threads: Vec<_> = ranks.map(|it| scope.spawn(move || work(it))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn what_another_rank_had_on_a_lost_target_is_not_committed() {
    let lose = |dir: &Path| {
        let on = targets_of(dir, 3, 1);
        another(dir).remove_target(on[0], true, None).unwrap();
    };
    let saved = save_and(Redundancy::default(), &lose);
    for saved in saved {
        let error = saved.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
        assert!(error.message().contains("was removed from the pool"), "{error}");
    }
}

#[test]
fn a_target_without_anything_of_the_save_may_be_lost() {
    let lose = |dir: &Path| {
        let pool = another(dir);
        let unused = pool.add_target(dir.join("4").to_str().unwrap(), None, Tier::Fast).unwrap();
        pool.remove_target(unused, true, None).unwrap();
    };
    for redundancy in [Redundancy::default(), Redundancy::mirror(2)] {
        let saved = save_and(redundancy, &lose);
        assert!(saved.iter().all(Result::is_ok), "{saved:?}");
    }
}
