//! Puts that are cut or fail at every step, and gets of damaged data.

use crate::common;
use crate::trees;

use common::{noise, stored};
use outlive_backend::{CutMode, FaultWorld};
use outlive_files::{FileErrorKind, GetFiles, GetOptions, InOrder, Selection};
use outlive_store::Select;
use outlive_types::ErrorKind;
use std::fs::{self};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use tempfile::TempDir;
use trees::*;

/// Makes three trees, each a change of the one before; one content has a recipe.
fn sources(dir: &TempDir) -> Vec<PathBuf> {
    (0u64..3)
        .map(|number| {
            let source = dir.path().join(format!("source {number}"));
            fs::create_dir_all(source.join("dir")).unwrap();
            fs::write(source.join("dir/same"), noise(1, 70_000)).unwrap();
            fs::write(source.join("dir/changing"), noise(number, 30_000)).unwrap();
            fs::write(source.join("long"), [noise(2, 450_000), noise(number, 500)].concat())
                .unwrap();
            fs::write(source.join("short"), noise(number, 300)).unwrap();
            fs::hard_link(source.join("long"), source.join("long too")).unwrap();
            symlink("long", source.join("link")).unwrap();
            source
        })
        .collect()
}

fn world_on(world: &FaultWorld, compression: &str) -> World {
    World::on(world.target(), world.log(), |tuning| {
        tuning.compression_files = compression.to_owned();
        tuning.threads = 2;
    })
}

/// Puts one tree after the other until one fails; returns the number of acknowledged puts.
fn put_all(world: &World, sources: &[PathBuf]) -> usize {
    let job = world.job();
    sources.iter().take_while(|source| put(&job, source).is_ok()).count()
}

#[test]
fn a_crash_at_any_operation_loses_nothing_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let sources = sources(&dir);
    let expected: Vec<Snapshot> = sources.iter().map(|source| snapshot(source)).collect();
    for compression in ["none", "lz4"] {
        let calm = FaultWorld::new();
        assert_eq!(put_all(&world_on(&calm, compression), &sources), sources.len());
        let ops = calm.ops();
        assert!(ops > 20, "the puts are long enough to be worth crashing: {ops} operations");
        let mut crashed = 0;
        for number in 0..ops {
            // Compressed chunks wait longer in memory; the medium behaves the same.
            let modes = if compression == "none" { CutMode::ALL.len() } else { 1 };
            for mode in CutMode::ALL.into_iter().take(modes) {
                let what = format!("{compression}: {mode:?} at {number}");
                let world = FaultWorld::new();
                world.cut_at(number, mode);
                let acknowledged = put_all(&world_on(&world, compression), &sources);
                // The threads do not run in the same order each time, so there may be fewer steps.
                if !world.crashed() {
                    continue;
                }
                crashed += 1;
                let (target, log) = world.reboot();
                let again = World::on(target, log, |_| {});
                let job = again.job();
                let found = match job.files(Select::Newest).unwrap() {
                    None => 0,
                    Some((found, _)) => found.epoch() as usize,
                };
                assert!(
                    found == acknowledged || found == acknowledged + 1,
                    "{what}: {acknowledged} acknowledged, {found} found"
                );
                if found > 0 {
                    same(&got(&job, found as u64, dir.path()), &expected[found - 1], &what);
                }
                assert_eq!(job.verify(None).unwrap().findings, vec![], "{what}");
                // Later puts succeed, whatever garbage the crash has left.
                let next = found % sources.len();
                let report = put_whole(&job, &sources[next]);
                assert_eq!(report.stats.epoch, found as u64 + 1, "{what}");
                if mode == CutMode::ALL[0] {
                    same(&got(&job, report.stats.epoch, dir.path()), &expected[next], &what);
                }
            }
        }
        assert!(crashed > ops / 2, "{crashed} crashes at {ops} operations");
    }
}

#[test]
fn a_single_failure_anywhere_costs_at_most_that_put() {
    let dir = tempfile::tempdir().unwrap();
    let sources = sources(&dir);
    let expected: Vec<Snapshot> = sources.iter().map(|source| snapshot(source)).collect();
    for compression in ["none", "lz4"] {
        let calm = FaultWorld::new();
        assert_eq!(put_all(&world_on(&calm, compression), &sources), sources.len());
        let mut failed = 0;
        for number in 0..calm.ops() {
            for kind in [ErrorKind::Retry, ErrorKind::Full, ErrorKind::Damaged] {
                let what = format!("{compression}: {kind:?} at {number}");
                let faulty = FaultWorld::new();
                faulty.fail_at(number, kind);
                let world = world_on(&faulty, compression);
                let job = world.job();
                let mut failures = 0;
                let mut last = None;
                for at in [0, 1, 2, 0] {
                    match put(&job, &sources[at]) {
                        Ok(report) => last = Some((report.stats.epoch, at)),
                        Err(error) => {
                            failures += 1;
                            let kind = error.kind();
                            let is_wrong = matches!(kind, ErrorKind::Fenced | ErrorKind::Bug);
                            assert!(!is_wrong, "{what}: {error}");
                        }
                    }
                }
                assert!(failures <= 1, "{what}: {failures} puts failed");
                failed += failures;
                let (epoch, at) = last.unwrap();
                let reader = world.job();
                assert_eq!(reader.verify(None).unwrap().findings, vec![], "{what}");
                assert_eq!(reader.files(Select::Newest).unwrap().unwrap().0.epoch(), epoch);
                if kind == ErrorKind::Full {
                    same(&got(&reader, epoch, dir.path()), &expected[at], &what);
                }
            }
        }
        assert!(
            failed > calm.ops(),
            "{failed} puts failed, of {} operations three times",
            calm.ops()
        );
    }
}

#[test]
fn every_flip_is_found_and_hurts_only_the_items_that_it_hits() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    for (number, bytes) in (0u64..).zip([600, 5000, 20_000, 100]) {
        fs::write(source.join(format!("file {number}")), noise(number, bytes)).unwrap();
    }
    // A file with a recipe, in little space: equal pieces take none.
    let piece = noise(9, 16 << 10);
    fs::write(source.join("long"), piece.repeat(24)).unwrap();
    fs::hard_link(source.join("file 1"), source.join("file 1 too")).unwrap();
    let expected = snapshot(&source);
    let faulty = FaultWorld::new();
    let world = world_on(&faulty, "none");
    put_whole(&world.job(), &source);
    let target = faulty.target();
    let (mut lost, mut gone, mut whole) = (0, 0, 0);
    for shard in target.list().unwrap() {
        let length = target.length(shard).unwrap();
        // Some bytes of the metadata, and fewer of the contents.
        for offset in 0..length {
            let is_plain = (4096..length.saturating_sub(16 << 10)).contains(&offset);
            if offset % if is_plain { 211 } else { 29 } != 0 {
                continue;
            }
            let what = format!("byte {offset} of {shard}");
            faulty.corrupt(shard, offset, 1 << (offset % 8));
            world.pool.verify_shard(stored(&world.pool, shard)).expect_err(&what);
            let is_found = !world.job().verify(None).unwrap().findings.is_empty();
            let outcome = world.job().files(Select::Epoch(1)).and_then(|found| {
                let to = tempfile::tempdir_in(dir.path()).unwrap();
                let report = found.unwrap().0.get(&into(to.path()))?;
                Ok((report, snapshot(to.path())))
            });
            match outcome {
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Damaged, "{what}: {error}");
                    assert!(is_found, "{what}");
                    gone += 1;
                }
                Ok((report, found)) => {
                    assert_eq!(is_found, !report.troubles.is_empty(), "{what}");
                    let mut left = expected.clone();
                    for trouble in &report.troubles.kept {
                        assert_eq!(trouble.kind, FileErrorKind::Damaged, "{what}: {trouble}");
                        left.remove(&trouble.path).unwrap();
                        lost += 1;
                    }
                    whole += u64::from(!is_found);
                    same(&found, &left, &what);
                }
            }
            faulty.corrupt(shard, offset, 1 << (offset % 8));
        }
    }
    assert!(lost > 50 && gone > 50 && whole > 50, "{lost} {gone} {whole}");
    assert_eq!(world.job().verify(None).unwrap().findings, vec![]);
}

#[test]
fn further_names_of_a_lost_file_are_lost_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("a"), noise(1, 5000)).unwrap();
    fs::hard_link(source.join("a"), source.join("b")).unwrap();
    let faulty = FaultWorld::new();
    let world = world_on(&faulty, "none");
    put_whole(&world.job(), &source);
    let shard = faulty.target().list().unwrap()[0];
    faulty.corrupt(shard, 4096 + 100, 1);
    // The get must not accept an older file of that name.
    let to = dir.path().join("to");
    fs::create_dir(&to).unwrap();
    fs::write(to.join("a"), "older").unwrap();
    let options = GetOptions { overwrite: true, ..into(&to) };
    let report = checkpoint(&world.job(), 1).get(&options).unwrap();
    assert_eq!(report.troubles.count(FileErrorKind::Damaged), 2, "{:?}", report.troubles);
    assert_eq!((report.items, report.files), (1, 0));
    assert_eq!(fs::read(to.join("a")).unwrap(), b"older");
    assert!(!to.join("b").exists());
    assert_eq!(fs::read_dir(&to).unwrap().count(), 1);
}

#[test]
fn a_stream_of_damaged_files_ends_at_the_damage() {
    let dir = tempfile::tempdir().unwrap();
    let content = noise(7, 3_000_000);
    fs::write(dir.path().join("file"), &content).unwrap();
    for compression in ["none", "lz4"] {
        let world = FaultWorld::new();
        put_whole(&world_on(&world, compression).job(), dir.path());
        let target = world.target();
        let (mut flips, mut longest) = (0, 0);
        for shard in target.list().unwrap() {
            for offset in (5000..target.length(shard).unwrap()).step_by(70_000) {
                world.corrupt(shard, offset, 1);
                let mut got = Vec::new();
                let ended = checkpoint(&world_on(&world, compression).job(), 1).in_order(
                    &Selection::default(),
                    64 << 20,
                    &mut |next| {
                        if let InOrder::Bytes(bytes) = next {
                            got.extend_from_slice(bytes);
                        }
                        Ok(())
                    },
                );
                assert!(content.starts_with(&got), "{compression}: byte {offset} of {shard}");
                if let Err(error) = ended {
                    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
                    assert!(got.len() < content.len());
                    flips += 1;
                    longest = longest.max(got.len());
                }
                world.corrupt(shard, offset, 1);
            }
        }
        assert!(flips > 20, "{compression}: {flips} of the flips were in its chunks");
        assert!(longest > content.len() * 3 / 4, "{compression}: at most {longest} bytes came");
    }
}
