//! Ranks whose save meets a gc or a failure: the result of one of them counts for all.

use crate::common;
use crate::rank_threads;

use common::{State, noise};
use outlive_backend::FaultWorld;
use outlive_store::gc::{GcOptions, GcReport, Thoroughness, collect};
use outlive_types::{
    Coordinator, Epoch, Error, ErrorKind, FreezeRequest, Frozen, PAGE_BYTES, PageSource, Rank,
    RegionDesc, Result,
};
use rank_threads::{PATIENT, Program, RANKS, run, usual};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

/// Returns the state of a rank; one page depends on the seed.
fn state(rank: Rank, seed: u64) -> State {
    let mut bytes = noise(u64::from(rank), 40 * PAGE_BYTES);
    bytes[5 * PAGE_BYTES..][..PAGE_BYTES]
        .copy_from_slice(&noise(1000 * u64::from(rank + 1) + seed, PAGE_BYTES));
    State::from([("big".to_owned(), bytes)])
}

/// Drops checkpoints, and collects unused packs; with `rewrite`, it also rewrites packs.
fn prune(program: &Program, epochs: &[Epoch], rewrite: bool) -> GcReport {
    let drop = match epochs {
        [] => Default::default(),
        epochs => [(program.job.name().clone(), epochs.iter().copied().collect())].into(),
    };
    let thoroughness = Thoroughness { unused_max: 0.0, rewrite, ..Thoroughness::default() };
    collect(&program.pool, &GcOptions { drop, thoroughness, ..GcOptions::default() }).unwrap()
}

/// Saves so that the next save of the second state shares a chunk that only the second checkpoint
/// has.
fn save_three(program: &Program) {
    for seed in 1..=3 {
        program.save_state(&state(program.rank, seed), || ()).unwrap();
    }
}

/// While ranks save, a gc condemns packs that they share chunks with, and each rank copies its
/// chunk. The checkpoint names the copies, and no condemned pack: so a later gc frees all these
/// packs.
#[test]
fn rank_0_commits_the_images_that_the_ranks_have_mended() {
    let world = FaultWorld::new();
    run(&world, PATIENT, &usual(), |program| {
        save_three(&program);
        let second = state(program.rank, 2);
        let mut condemned = HashSet::new();
        let goes = || {
            if program.rank == 0 {
                let report = prune(&program, &[1, 2], true);
                assert!(report.held > 0 && report.deleted == 0, "{report:?}");
                condemned = report.plan.condemned();
            }
        };
        assert_eq!(program.save_state(&second, goes).unwrap().epoch, 4);
        program.job.close().unwrap();
        if program.rank == 0 {
            let report = prune(&program, &[], false);
            assert!(report.held == 0 && report.deleted > 0, "{report:?}");
            let left = program.pool.packs().unwrap();
            assert!(left.iter().all(|pack| !condemned.contains(pack)), "{left:?}, {condemned:?}");
        }
        program.ear.inner.barrier().unwrap();
        // Nothing has changed, so this save names what the ranks know.
        assert_eq!(program.save_state(&second, || ()).unwrap().epoch, 5);
        let found = program.job.verify(None).unwrap().findings;
        assert!(found.is_empty(), "{found:?}");
        assert_eq!(program.restore_state(&second), 5);
    });
}

/// Rank 1 has no room for its copy: the save succeeds for no rank.
#[test]
fn a_rank_that_cannot_mend_its_image_fails_the_save_of_all() {
    let world = FaultWorld::new();
    let has_failed = AtomicBool::new(false);
    world.fail_when(move |_, op| {
        // Each save writes one pack, and the fifth is that of the copy.
        let is_copy = op.starts_with("write ") && op.contains("0000000100000004.");
        (is_copy && !has_failed.swap(true, Ordering::Relaxed)).then_some(ErrorKind::Full)
    });
    let failed = run(&world, PATIENT, &usual(), |program| {
        save_three(&program);
        let second = state(program.rank, 2);
        let goes = || {
            if program.rank == 0 {
                prune(&program, &[1, 2], true);
            }
        };
        let failed = program.save_state(&second, goes).map(|stats| stats.epoch);
        program.ear.inner.barrier().unwrap();
        program.save_state(&second, || ()).unwrap();
        program.restore_state(&second);
        failed
    });
    for (rank, error) in failed.into_iter().enumerate() {
        assert_eq!(error.map_err(|error| error.kind()), Err(ErrorKind::Full), "rank {rank}");
    }
}

/// Memory that fails to list its regions.
struct Unreadable;

impl PageSource for Unreadable {
    fn freeze(&mut self, _: &FreezeRequest) -> Result<Box<dyn Frozen>> {
        Err(Error::bug("it is not saved"))
    }

    fn regions(&mut self) -> Result<Vec<RegionDesc>> {
        Err(Error::retry("the device does not answer"))
    }
}

/// One rank fails before the save has begun: the call itself fails on all, and names the rank.
#[test]
fn no_save_begins_if_one_rank_cannot() {
    let world = FaultWorld::new();
    let failed = run(&world, PATIENT, &usual(), |program| {
        program.save(1).unwrap();
        let failed = match program.rank {
            1 => program.job.save(&mut Unreadable).map(drop).unwrap_err(),
            _ => program.save(2).unwrap_err(),
        };
        assert_eq!(program.save(2).unwrap().epoch, 2);
        assert_eq!(program.restore(2), 2);
        failed
    });
    assert_eq!(failed.len(), RANKS as usize);
    for error in failed {
        assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
        assert!(error.message().contains("rank 1: the device does not answer"), "{error}");
    }
}
