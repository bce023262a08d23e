//! Work beside a gc, other than saves and gcs: programs that read, and notes.

use crate::common;
use crate::stepped;

use common::{Program, State, Vectors, changed, noise, regions_of};
use outlive_backend::MemoryTarget;
use outlive_log::MemoryLog;
use outlive_pool::Pool;
use outlive_store::gc::{Collecting, GcOptions, GcReport, Thoroughness, collect};
use outlive_store::{Job, Select};
use outlive_types::{Epoch, JobName, Result};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use stepped::{Steps, World};

fn state(seed: u64) -> State {
    State::from([("a".to_owned(), noise(seed, 120_000)), ("b".to_owned(), vec![seed as u8; 50])])
}

/// Drops a checkpoint of "a", and collects if `collects` is set.
fn prune(pool: &Pool, epoch: Epoch, collects: bool) -> Result<GcReport> {
    let drop = [(JobName::new("a")?, [epoch].into())].into();
    let thoroughness =
        Thoroughness { unused_max: 0.0, collect: collects, ..Thoroughness::default() };
    collect(pool, &GcOptions { drop, thoroughness, ..GcOptions::default() })
}

/// A pool whose log has locks. The job "a" has three checkpoints and has ended; the first two share
/// much.
fn with_a_past() -> World {
    let (target, log) = (Arc::new(MemoryTarget::new()), Arc::new(MemoryLog::with_locks()));
    let world = World { target, log };
    let program = Program::start(&world.pool(), "a");
    for state in [state(1), changed(state(1), 3, 77), state(2)] {
        program.save(&state).unwrap();
    }
    world
}

/// A gc is about to report to "a". A program opens a checkpoint then, and a prune drops it: the gc
/// reports without it.
#[test]
fn a_reader_that_begins_before_a_job_is_told_reads_to_the_end() {
    let world = with_a_past();
    let (steps, appends, pool) = (Steps::default(), AtomicU64::new(0), world.pool());
    let reading = Arc::new(Mutex::new(None));
    let reads = reading.clone();
    steps.hook(move |_, op| {
        // The prune of "a", the session of the gc, the archive of "a".
        if op == "append" && appends.fetch_add(1, Ordering::AcqRel) == 2 {
            let lock = pool.log().lock_reading().unwrap().unwrap();
            let job = Job::open(&pool, "a", Default::default()).unwrap();
            let (image, _) = job.image(Select::Epoch(2)).unwrap().unwrap();
            prune(&pool, 2, false).unwrap();
            *reads.lock().unwrap() = Some((lock, image));
        }
    });
    let report = prune(&world.stepped(&steps), 1, true).unwrap();
    let (lock, image) = reading.lock().unwrap().take().unwrap();
    let vectors = Vectors::for_all(&image);
    let all: Vec<usize> = (0..image.streams().len()).collect();
    image.read(&all, &vectors).unwrap();
    assert!(regions_of(&image, &vectors.into_inner()) == changed(state(1), 3, 77));
    assert!(report.is_read && report.held > 0 && report.deleted == 0, "{report:?}");
    drop(lock);
    let report = collect(&world.pool(), &GcOptions::default()).unwrap();
    assert!(!report.is_read && report.held == 0 && report.deleted > 0, "{report:?}");
}

/// A whole gc runs before any step of a note, and replaces the records by an archive.
#[test]
fn a_note_beside_a_gc_is_kept() {
    for at in 0.. {
        let world = with_a_past();
        let (steps, pool) = (Steps::default(), world.pool());
        steps.hook(move |number, _| {
            if number == at {
                assert!(prune(&pool, 1, true).unwrap().deleted > 0);
            }
        });
        let job = Job::open(&world.stepped(&steps), "a", Default::default()).unwrap();
        let noted = job.note(3, |remarks| remarks.label = "good".to_owned());
        noted.unwrap_or_else(|error| panic!("a gc before step {at}: {error}"));
        if at >= steps.count() {
            assert!(at > 3, "{at} steps");
            break;
        }
        let job = Job::open(&world.pool(), "a", Default::default()).unwrap();
        let labels: Vec<(Epoch, String)> = job
            .epochs()
            .unwrap()
            .into_iter()
            .map(|info| (info.epoch, info.manifest.remarks.label))
            .collect();
        assert_eq!(labels, [(2, String::new()), (3, "good".to_owned())], "before step {at}");
    }
}

/// A program saves whenever a gc is about to report to it. A gc behind its saves gives way, and leaves
/// everything to the next one. Another gc, also one behind the saves of another job, reports in the end.
#[test]
fn a_gc_that_is_always_outrun_gives_way() {
    for (gives_way_to, outruns) in [(Some("a"), 100), (Some("b"), 5), (None, 5)] {
        let world = with_a_past();
        let (steps, appends, pool) = (Steps::default(), AtomicU64::new(0), world.pool());
        let saves = Arc::new(AtomicU64::new(0));
        let counted = saves.clone();
        steps.hook(move |_, op| {
            // The prune of "a", the session of the gc, then each report to "a".
            if op == "append" && (2..2 + outruns).contains(&appends.fetch_add(1, Ordering::AcqRel))
            {
                let number = counted.fetch_add(1, Ordering::AcqRel);
                Program::start(&pool, "a").save(&state(10 + number)).unwrap();
            }
        });
        let drop = [(JobName::new("a").unwrap(), [1, 2].into())].into();
        let thoroughness = Thoroughness { unused_max: 0.0, ..Thoroughness::default() };
        let gives_way_to = gives_way_to.map(|name| JobName::new(name).unwrap());
        let gives_way = outruns == 100;
        let options = GcOptions { drop, thoroughness, gives_way_to, ..GcOptions::default() };
        let report = collect(&world.stepped(&steps), &options).unwrap();
        let pool = world.pool();
        if gives_way {
            assert_eq!((report.collecting, report.deleted), (Collecting::Outrun, 0));
            // One more as the gc ends its own session.
            let told = saves.load(Ordering::Acquire) - 1;
            assert_eq!(told, 3, "each attempt marks the whole job");
            let report = collect(&pool, &GcOptions::default()).unwrap();
            assert!(report.collecting == Collecting::Done && report.deleted > 0, "{report:?}");
        } else {
            assert!(report.collecting == Collecting::Done && report.deleted > 0, "{report:?}");
            assert_eq!(saves.load(Ordering::Acquire), outruns);
        }
        let program = Program::start(&pool, "a");
        for number in 0..saves.load(Ordering::Acquire) {
            let (_, found) = program.restore(Select::Epoch(4 + number)).unwrap().unwrap();
            assert!(found == state(10 + number), "checkpoint {}", 4 + number);
        }
    }
}
