//! Edits that are cut or fail at every step, and edits of damaged trees.

use crate::common;
use crate::edits::{Model, append, committed, read_all, remove, rename, write};
use crate::trees::World;

use common::noise;
use outlive_backend::{CutMode, FaultWorld};
use outlive_files::{Change, EditFiles, EditOptions};
use outlive_store::Job;
use outlive_types::{ErrorKind, Result};

fn steps() -> Vec<Vec<Change>> {
    vec![
        vec![write("a/one", noise(1, 40_000)), write("short", "1")],
        vec![append("a/one", noise(2, 20_000))],
        vec![rename("a", "b"), write("a/one", "new")],
        vec![write("short", noise(3, 450_000)), remove("b")],
    ]
}

/// Returns the tree after each number of steps.
fn models() -> Vec<Option<Model>> {
    let world = World::new();
    let job = world.job();
    let mut models = vec![None];
    for changes in steps() {
        committed(&job, &changes);
        models.push(Some(read_all(&job)));
    }
    models
}

fn world_on(world: &FaultWorld) -> World {
    World::on(world.target(), world.log(), |tuning| tuning.threads = 2)
}

fn edit(job: &Job, changes: &[Change]) -> Result<()> {
    job.edit(changes, &EditOptions::default()).map(drop)
}

fn edit_all(world: &World) -> usize {
    let job = world.job();
    steps().iter().take_while(|changes| edit(&job, changes).is_ok()).count()
}

fn newest_epoch(job: &Job) -> usize {
    outlive_store::FilesImage::newest(job.pool(), job.name())
        .unwrap()
        .map_or(0, |image| image.epoch() as usize)
}

#[test]
fn a_crash_at_any_operation_leaves_the_tree_before_or_after_an_edit() {
    let models = models();
    let calm = FaultWorld::new();
    assert_eq!(edit_all(&world_on(&calm)), steps().len());
    let ops = calm.ops();
    assert!(ops > 15, "{ops} operations");
    let mut crashed = 0;
    for number in 0..ops {
        for mode in CutMode::ALL {
            let what = format!("{mode:?} at {number}");
            let world = FaultWorld::new();
            world.cut_at(number, mode);
            let acknowledged = edit_all(&world_on(&world));
            if !world.crashed() {
                continue;
            }
            crashed += 1;
            let (target, log) = world.reboot();
            let again = World::on(target, log, |_| {});
            let job = again.job();
            let found = newest_epoch(&job);
            assert!(
                found == acknowledged || found == acknowledged + 1,
                "{what}: {acknowledged} acknowledged, {found} found"
            );
            if let Some(model) = &models[found] {
                assert_eq!(&read_all(&job), model, "{what}");
            }
            for (changes, model) in steps()[found..].iter().zip(&models[found + 1..]) {
                edit(&job, changes).unwrap();
                assert_eq!(Some(read_all(&job)), *model, "{what}");
            }
            assert_eq!(job.verify(None).unwrap().findings, vec![], "{what}");
        }
    }
    assert!(crashed > ops / 2, "{crashed} crashes at {ops} operations");
}

#[test]
fn a_failure_anywhere_costs_at_most_that_edit_and_no_other_file() {
    let models = models();
    let calm = FaultWorld::new();
    edit_all(&world_on(&calm));
    let mut failed = 0;
    for number in 0..calm.ops() {
        for kind in [ErrorKind::Retry, ErrorKind::Full] {
            let what = format!("{kind:?} at {number}");
            let faulty = FaultWorld::new();
            faulty.fail_at(number, kind);
            let world = world_on(&faulty);
            let job = world.job();
            for (changes, model) in steps().iter().zip(&models[1..]) {
                if let Err(error) = edit(&job, changes) {
                    assert_eq!(error.kind(), kind, "{what}: {error}");
                    failed += 1;
                    // The reply may be lost, and the edit be there: then it is made once more.
                    let is_there = newest_epoch(&job) > 0 && Some(read_all(&job)) == *model;
                    if !is_there {
                        edit(&job, changes).unwrap();
                    }
                }
                assert_eq!(Some(read_all(&job)), *model, "{what}");
            }
        }
    }
    assert!(failed > calm.ops() / 2, "{failed} edits failed");
}

#[test]
fn an_edit_never_loses_a_tree_that_it_cannot_read() {
    let faulty = FaultWorld::new();
    let world = world_on(&faulty);
    let job = world.job();
    committed(&job, &[write("old", noise(1, 1000))]);
    let before: Vec<_> = faulty.target().list().unwrap();
    committed(&job, &[write("new", noise(2, 1000))]);
    let target = faulty.target();
    for shard in target.list().unwrap().into_iter().filter(|shard| !before.contains(shard)) {
        // The second tree's own pack: with it goes the newest listing.
        for offset in 0..target.length(shard).unwrap() {
            faulty.corrupt(shard, offset, 0xFF);
        }
    }
    let fresh = World::on(faulty.target(), faulty.log(), |_| {});
    let job = fresh.job();
    let error = edit(&job, &[write("third", "3")]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    // The older tree is still what `get` and `put` take.
    assert_eq!(newest_epoch(&job), 1);
}
