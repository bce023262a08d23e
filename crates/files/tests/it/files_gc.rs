//! Prunes and gcs after puts, and during puts and gets.

use crate::common;
use crate::stepped;
use crate::trees;

use common::noise;
use outlive_backend::{MemoryTarget, Target};
use outlive_files::{GetFiles, InOrder, Selection};
use outlive_log::{ManifestLog, MemoryLog};
use outlive_store::gc::{GcOptions, collect};
use outlive_types::{Epoch, ErrorKind};
use std::collections::BTreeMap;
use std::fs::{self};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use stepped::{SteppedLog, SteppedTarget, Steps};
use trees::*;

#[test]
fn kept_checkpoints_stay_whole_and_space_goes_down() {
    let target: Arc<dyn Target> = Arc::new(MemoryTarget::new());
    let world = World::on(target.clone(), Arc::new(MemoryLog::new()), |tuning| {
        tuning.threads = 2;
    });
    let source = world.directory("source");
    let job = world.job();
    let mut expected = BTreeMap::new();
    for epoch in 1..=6 {
        fs::write(source.join("new"), noise(epoch, 400_000)).unwrap();
        fs::write(source.join(format!("stays {epoch}")), noise(100 + epoch, 150_000)).unwrap();
        // More pieces than an item can hold.
        fs::write(source.join("long"), noise(1000 + epoch / 3, 1_500_000)).unwrap();
        put_whole(&job, &source);
        expected.insert(epoch, snapshot(&source));
    }
    let mut before = stored_bytes(&*target);
    for drop in [&[1][..], &[2, 4], &[3, 5]] {
        prune(&world.pool, drop).unwrap();
        // The session must write a record before condemned packs are deleted.
        put_whole(&job, &source);
        let epoch = job.epochs().unwrap().last().unwrap().epoch;
        expected.insert(epoch, snapshot(&source));
        prune(&world.pool, &[]).unwrap();
        expected.retain(|epoch, _| !drop.contains(epoch));
        for (epoch, files) in &expected {
            same(&got(&job, *epoch, world.dir.path()), files, "kept");
        }
        let after = stored_bytes(&*target);
        assert!(after + 300_000 < before, "{before} -> {after}");
        before = after;
    }
    assert_eq!(job.verify(None).unwrap().findings, vec![]);
}

/// Puts files with and without recipes twice, in a world that leaves no session open.
fn past(target: &Arc<dyn Target>, log: &Arc<dyn ManifestLog>, sources: &[PathBuf]) {
    let world = World::on(target.clone(), log.clone(), |_| {});
    for source in &sources[..2] {
        put_whole(&world.job(), source);
    }
}

#[test]
fn a_gc_at_any_step_of_a_put_hurts_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let sources: Vec<PathBuf> = (0..3).map(|number| dir.path().join(number.to_string())).collect();
    for (number, source) in (0u64..).zip(&sources) {
        fs::create_dir(source).unwrap();
        fs::write(source.join("changing"), noise(number, 120_000)).unwrap();
        fs::write(source.join("moving"), noise(number / 2, 90_000)).unwrap();
        fs::write(source.join("long"), [noise(5, 500_000), noise(number, 1000)].concat()).unwrap();
        symlink("long", source.join("link")).unwrap();
    }
    let mut number = 0;
    loop {
        let (target, log): (Arc<dyn Target>, Arc<dyn ManifestLog>) =
            (Arc::new(MemoryTarget::new()), Arc::new(MemoryLog::new()));
        past(&target, &log, &sources);
        let steps = Steps::default();
        let stepped_target = Arc::new(SteppedTarget(target.clone(), steps.clone()));
        let stepped_log = Arc::new(SteppedLog(log.clone(), steps.clone()));
        let world = World::on(stepped_target, stepped_log, |_| {});
        let job = world.job();
        let other = World::on(target.clone(), log.clone(), |_| {}).pool;
        let done = Arc::new(AtomicBool::new(false));
        let hook_done = done.clone();
        // In every other run the parent is dropped, too.
        let drop: &[Epoch] = if number % 2 == 0 { &[1] } else { &[1, 2] };
        steps.hook(move |at, _| {
            if at == number && !hook_done.swap(true, Ordering::SeqCst) {
                // Once the put has a session, the newest cannot be dropped.
                prune(&other, drop).or_else(|_| prune(&other, &[1])).unwrap();
                collect(&other, &GcOptions { thoroughness: thorough(), ..Default::default() })
                    .unwrap();
            }
        });
        let what = format!("step {number}");
        let outcome = put(&job, &sources[2]);
        let epoch = match outcome {
            Ok(report) => {
                assert!(report.troubles.is_empty(), "{what}: {:?}", report.troubles);
                report.stats.epoch
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Retry, "{what}: {error}");
                assert_eq!(drop.len(), 2, "{what}: {error}");
                put_whole(&job, &sources[2]).stats.epoch
            }
        };
        if !done.load(Ordering::SeqCst) {
            assert!(number > 20, "there are only {number} steps");
            return;
        }
        let clean = World::on(target, log, |_| {});
        let reader = clean.job();
        same(&got(&reader, epoch, dir.path()), &snapshot(&sources[2]), &what);
        if drop.len() == 1 {
            same(&got(&reader, 2, dir.path()), &snapshot(&sources[1]), &what);
        }
        assert_eq!(reader.verify(None).unwrap().findings, vec![], "{what}");
        number += 1;
    }
}

#[test]
fn a_gc_at_any_step_of_a_get_hurts_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let sources: Vec<PathBuf> = (0..2).map(|number| dir.path().join(number.to_string())).collect();
    for (number, source) in (0u64..).zip(&sources) {
        fs::create_dir(source).unwrap();
        fs::write(source.join("changing"), noise(number, 120_000)).unwrap();
        fs::write(source.join("long"), [noise(5, 300_000), noise(number, 300_000)].concat())
            .unwrap();
        for file in 0..40 {
            fs::write(source.join(format!("short {file}")), noise(file, 100)).unwrap();
        }
    }
    let expected = snapshot(&sources[1]);
    let mut number = 0;
    loop {
        let (target, log): (Arc<dyn Target>, Arc<dyn ManifestLog>) =
            (Arc::new(MemoryTarget::new()), Arc::new(MemoryLog::new()));
        past(&target, &log, &sources);
        let steps = Steps::default();
        let stepped_target = Arc::new(SteppedTarget(target.clone(), steps.clone()));
        let stepped_log = Arc::new(SteppedLog(log.clone(), steps.clone()));
        let world = World::on(stepped_target, stepped_log, |_| {});
        let other = World::on(target.clone(), log.clone(), |_| {}).pool;
        let done = Arc::new(AtomicBool::new(false));
        let hook_done = done.clone();
        steps.hook(move |at, _| {
            if at == number && !hook_done.swap(true, Ordering::SeqCst) {
                let report = prune(&other, &[1]).unwrap();
                assert!(report.deleted > 0, "nothing has gone");
            }
        });
        if number % 2 == 0 {
            same(&got(&world.job(), 2, dir.path()), &expected, &format!("step {number}"));
        } else {
            let mut bytes = 0;
            let each = &mut |next: InOrder<'_>| {
                bytes += match next {
                    InOrder::Item(_) => 0,
                    InOrder::Bytes(bytes) => bytes.len() as u64,
                    InOrder::Zeros(bytes) => bytes,
                };
                Ok(())
            };
            checkpoint(&world.job(), 2).in_order(&Selection::default(), 1 << 20, each).unwrap();
            assert_eq!(bytes, expected.values().map(|item| item.bytes).sum::<u64>());
        }
        if !done.load(Ordering::SeqCst) {
            assert!(number > 10, "there are only {number} steps");
            return;
        }
        number += 1;
    }
}

#[test]
fn a_put_reads_no_more_of_a_log_that_has_grown() {
    let (target, log): (Arc<dyn Target>, Arc<dyn ManifestLog>) =
        (Arc::new(MemoryTarget::new()), Arc::new(MemoryLog::new()));
    let (steps, reads) = (Steps::default(), Arc::new(AtomicU64::new(0)));
    let counted = reads.clone();
    steps.hook(move |_, what| {
        counted.fetch_add(u64::from(what == "read record"), Ordering::SeqCst);
    });
    let world = World::on(target, Arc::new(SteppedLog(log, steps)), |_| {});
    let source = world.directory("source");
    let job = world.job();
    let counts: Vec<u64> = (0..40)
        .map(|number| {
            fs::write(source.join("file"), noise(number, 1000)).unwrap();
            let before = reads.load(Ordering::SeqCst);
            put_whole(&job, &source);
            reads.load(Ordering::SeqCst) - before
        })
        .collect();
    assert!(counts[5] > 0 && counts[39] == counts[5], "{counts:?}");
}
