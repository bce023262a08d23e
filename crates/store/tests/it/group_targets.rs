//! A group whose pool loses a target while it saves: a rank's packs were on it, and rank 0 commits.

use crate::common;

use common::{noise, small_config};
use outlive_capture::{ChangeTracker, MemorySource, Region};
use outlive_pool::RepairOptions;
use outlive_pool::{Environment, Pool, PoolConfig, Redundancy, TargetConfig, Tier, create, open};
use outlive_store::group::{GroupOptions, Schedule};
use outlive_store::{Job, JobOptions, SaveStats};
use outlive_store::{Uses, named_packs, repair};
use outlive_types::{
    Coordinator, ErrorKind, FreezeRequest, Frozen, PackId, PageSource, RegionDesc, Result,
    ThreadRank,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// A rank's memory, with a call before its freeze.
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

/// Returns the finished packs of ranks with their targets: a rank, the pack's number, the target's.
fn packs_on(dir: &Path, targets: u32) -> BTreeSet<(u32, u32, u32)> {
    let packs_of = |folder: PathBuf| {
        let below = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let files = below.flat_map(|entry| std::fs::read_dir(entry.path()).into_iter().flatten());
        let names = files.flatten().map(|file| file.file_name().into_string().unwrap());
        // The session, 12 bytes in hexadecimal, comes first.
        let number = |digits: &str| u32::from_str_radix(digits, 16).unwrap();
        let packs = names.filter(|name| name.ends_with(".shard"));
        packs.map(|name| (number(&name[24..32]), number(&name[32..40]))).collect::<Vec<_>>()
    };
    let of_target = |id: u32| {
        let packs = packs_of(dir.join(id.to_string()).join("packs")).into_iter();
        packs.map(move |(rank, number)| (rank, number, id))
    };
    (1..=targets).flat_map(of_target).collect()
}

/// Returns the numbers of the targets that have finished packs of a rank.
fn targets_of(dir: &Path, targets: u32, rank: u32) -> BTreeSet<u32> {
    let packs = packs_on(dir, targets).into_iter();
    packs.filter(|pack| pack.0 == rank).map(|(.., target)| target).collect()
}

/// Creates a pool of directories below `dir`, on targets 1, 2, ...
fn pool_on(dir: &Path, targets: u32, redundancy: Redundancy) {
    let place = |id: u32| dir.join(id.to_string()).to_str().unwrap().to_owned();
    let target = (1..=targets).map(|id| TargetConfig::at(place(id))).collect();
    let config = PoolConfig { target, redundancy, ..small_config() };
    drop(create(&dir.join("pool"), config, Environment::system()).unwrap());
}

/// Does `work` for each rank, in a thread of its own.
fn by_ranks<R: Send>(ranks: u32, work: &(dyn Fn(Arc<ThreadRank>) -> R + Sync)) -> Vec<R> {
    thread::scope(|scope| {
        let ranks = ThreadRank::group(ranks).into_iter();
        let threads: Vec<_> = ranks.map(|it| scope.spawn(move || work(it))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn open_job(dir: &Path, coordinator: Arc<ThreadRank>) -> Job {
    let (patience, schedule) = (Duration::from_secs(3600), Schedule::Coordinated);
    let group = Some(GroupOptions { patience, schedule, ..GroupOptions::new(coordinator) });
    Job::open(&another(dir), "job", JobOptions { group, ..JobOptions::default() }).unwrap()
}

fn memory_source(memory: &[u8]) -> MemorySource {
    let region = Region::from_bytes("a", "|u1", vec![memory.len() as u64], memory);
    MemorySource::new(Arc::new(ChangeTracker::new()), vec![region], Vec::new(), 1)
}

/// Both ranks save. `lose` is called with the pool's folder when rank 1's packs are durable, and
/// none of rank 0's.
fn save_and(redundancy: Redundancy, lose: &(dyn Fn(&Path) + Sync)) -> Vec<Result<SaveStats>> {
    let dir = tempfile::tempdir().unwrap();
    pool_on(dir.path(), 3, redundancy);
    by_ranks(2, &|coordinator| {
        let rank = coordinator.rank();
        let job = open_job(dir.path(), coordinator);
        let memory = noise(u64::from(rank), 100_000);
        let inner = memory_source(&memory);
        let mut before = || {
            if rank == 0 {
                while targets_of(dir.path(), 4, 1).is_empty() {
                    thread::yield_now();
                }
                lose(dir.path());
            }
        };
        job.save(&mut Source { inner, before: &mut before })?.wait(None).unwrap()
    })
}

#[test]
fn data_of_another_rank_on_a_lost_target_is_not_committed() {
    let lose = |dir: &Path| {
        let on = targets_of(dir, 3, 1);
        another(dir).remove_target(*on.first().unwrap(), true, None, &Uses).unwrap();
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
        pool.remove_target(unused, true, None, &Uses).unwrap();
    };
    for redundancy in [Redundancy::default(), Redundancy::mirror(2)] {
        let saved = save_and(redundancy, &lose);
        assert!(saved.iter().all(Result::is_ok), "{saved:?}");
    }
}

/// Too little is left of the checkpoint's own lists. The packs that they would name are lost, not
/// unneeded.
#[test]
fn packs_of_a_checkpoint_that_cannot_be_read_are_lost() {
    let dir = tempfile::tempdir().unwrap();
    pool_on(dir.path(), 4, Redundancy::erasure(2, 1));
    by_ranks(2, &|coordinator| {
        let memory = noise(u64::from(coordinator.rank()), 100_000);
        let job = open_job(dir.path(), coordinator);
        job.save(&mut memory_source(&memory)).unwrap().wait(None).unwrap().unwrap();
    });
    let named = named_packs(&another(dir.path())).unwrap();
    assert!(!named.is_partial && named.packs.len() >= 3, "{named:?}");
    // Removes two of the three shards of each.
    for folder in (1..=4).map(|id| dir.path().join(format!("{id}/packs"))) {
        for below in std::fs::read_dir(folder).unwrap().flatten().filter(|it| it.path().is_dir()) {
            let files = std::fs::read_dir(below.path()).unwrap().flatten();
            let is_first = |path: &PathBuf| {
                [".0.shard", ".1.shard"].iter().any(|end| path.to_str().unwrap().ends_with(end))
            };
            files.map(|file| file.path()).filter(is_first).for_each(|path| {
                std::fs::remove_file(path).unwrap();
            });
        }
    }
    let report = repair(&another(dir.path()), RepairOptions::default()).unwrap();
    let lost: BTreeSet<PackId> = report.lost.iter().map(|(pack, _)| *pack).collect();
    assert_eq!((lost, report.unneeded), (named.packs, 0));
    assert!(named_packs(&another(dir.path())).unwrap().is_partial);
}

/// A rank that writes more than the others, in each save, still writes beside them in the next one.
#[test]
fn ranks_begin_each_save_on_targets_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    pool_on(dir.path(), 4, Redundancy::default());
    by_ranks(4, &|coordinator| {
        let rank = coordinator.rank();
        let job = open_job(dir.path(), coordinator);
        let mut known = BTreeSet::new();
        for save in 0..6 {
            // Packs of 256 KiB each.
            let packs = if rank == 2 { 2 } else { 1 };
            let memory = noise(u64::from(10 * save + rank), packs * 200_000);
            job.save(&mut memory_source(&memory)).unwrap().wait(None).unwrap().unwrap();
            // The others wait for rank 0 in the next save.
            if rank == 0 {
                let now = packs_on(dir.path(), 4);
                let new = now.difference(&known).filter(|pack| pack.0 < 4);
                let mut first = BTreeMap::new();
                for (rank, _, target) in new.clone() {
                    first.entry(rank).or_insert(target);
                }
                assert_eq!(new.count(), 5, "save {save} has the packs that it should");
                let targets: BTreeSet<_> = first.values().collect();
                assert_eq!(targets.len(), 4, "save {save}: first packs are on {first:?}");
                known = now;
            }
        }
    });
}
