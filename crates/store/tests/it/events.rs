//! Events report the fate of checkpoints once, in order, and correctly.

use crate::common;

use common::{Program, State, Warnings, changed, memory_pool, noise, pool_of};
use outlive_backend::{FaultWorld, MemoryTarget};
use outlive_files::{PutFiles, PutOptions, PutSource};
use outlive_log::MemoryLog;
use outlive_pool::{Environment, Pool};
use outlive_store::{CommitEvent, CommitWatch};
use outlive_types::{Epoch, ErrorKind};
use std::sync::{Arc, Mutex};

/// Epochs, each with the kind of its error if it failed.
type Told = Arc<Mutex<Vec<(Epoch, Option<ErrorKind>)>>>;

fn watched(program: &Program) -> (Told, CommitWatch) {
    let told = Told::default();
    let into = told.clone();
    let watch = program.job.events().watch(move |event| {
        let (job, epoch, why) = match event {
            CommitEvent::Committed { job, epoch } => (job, *epoch, None),
            CommitEvent::Failed { job, epoch, error } => (job, *epoch, Some(error.kind())),
        };
        assert_eq!(job.as_str(), "a");
        into.lock().unwrap().push((epoch, why));
    });
    (told, watch)
}

fn state(seed: u64) -> State {
    State::from([("a".to_owned(), noise(seed, 100_000))])
}

#[test]
fn saves_and_puts_are_reported_before_their_waits_return() {
    let program = Program::start(&memory_pool(), "a");
    let (told, watch) = watched(&program);
    for epoch in 1..=5 {
        let handle = program.job.save(&mut program.source(&state(epoch))).unwrap();
        handle.wait(None).unwrap().unwrap();
        assert_eq!(told.lock().unwrap().last(), Some(&(epoch, None)));
    }
    let source = PutSource::Stream { name: b"x".to_vec(), from: &mut &b"hello"[..] };
    program.job.put(source, &PutOptions::default()).unwrap();
    assert_eq!(told.lock().unwrap().last(), Some(&(6, None)));
    // This put has nothing to store, so nothing is committed.
    program.job.put(PutSource::Paths(&[]), &PutOptions::default()).unwrap_err();
    drop(watch);
    program.save(&state(9)).unwrap();
    let expected: Vec<_> = (1..=6).map(|epoch| (epoch, None)).collect();
    assert_eq!(told.lock().unwrap()[..6], expected[..]);
    assert!(told.lock().unwrap()[6..].iter().all(|(epoch, why)| *epoch == 7 && why.is_some()));
}

/// Every operation fails once, with and without taking effect. Checkpoints reported as committed
/// exist afterwards, acknowledged ones were reported, and epochs rise.
#[test]
fn events_are_true_whichever_operation_fails() {
    let operations = {
        let world = FaultWorld::new();
        run(&world, &pool_of(world.target(), world.log()));
        world.ops()
    };
    let mut failures = 0;
    for at in 0..operations {
        let world = FaultWorld::new();
        world.fail_at(at, ErrorKind::Retry);
        let pool = pool_of(world.target(), world.log());
        failures += run(&world, &pool);
    }
    assert!(failures >= 10, "{failures} saves failed");
}

fn run(world: &FaultWorld, pool: &Pool) -> usize {
    let program = Program::start(pool, "a");
    let (told, _watch) = watched(&program);
    let (mut saved, mut image) = (Vec::new(), state(1));
    for save in 0..4 {
        image = changed(image, save, 50 + save as u64);
        if let Ok(stats) = program.save(&image) {
            saved.push(stats.epoch);
        }
    }
    let told = told.lock().unwrap().clone();
    let committed: Vec<Epoch> =
        told.iter().filter(|(_, why)| why.is_none()).map(|(epoch, _)| *epoch).collect();
    assert!(committed.is_sorted_by(|a, b| a < b), "{told:?}");
    assert!(saved.iter().all(|epoch| committed.contains(epoch)), "{saved:?} of {told:?}");
    for (at, (epoch, why)) in told.iter().enumerate() {
        let earlier = told[..at].iter().filter(|(_, why)| why.is_none());
        assert!(why.is_none() || earlier.map(|(epoch, _)| *epoch).max() < Some(*epoch), "{told:?}");
    }
    let there = Program::start(&pool_of(world.target(), world.log()), "a").job.epochs().unwrap();
    let there: Vec<Epoch> = there.iter().map(|info| info.epoch).collect();
    assert!(committed.iter().all(|epoch| there.contains(epoch)), "{told:?}, but {there:?}");
    told.len() - committed.len()
}

#[test]
fn a_watcher_that_panics_or_leaves_hurts_no_save() {
    let warnings = Arc::new(Warnings::default());
    let env = Environment { observer: warnings.clone(), ..Environment::system() };
    let (target, log) = (Arc::new(MemoryTarget::new()), Arc::new(MemoryLog::new()));
    let program = Program::start(&Pool::new(common::small_config(), target, log, env), "a");
    let _first = program.job.events().watch(|_| panic!("a watcher's own fault"));
    // This one ends after its first event.
    let leaves: Arc<Mutex<Option<CommitWatch>>> = Arc::default();
    let (own, heard) = (leaves.clone(), Told::default());
    let into = heard.clone();
    *leaves.lock().unwrap() = Some(program.job.events().watch(move |event| {
        if let CommitEvent::Committed { epoch, .. } = event {
            into.lock().unwrap().push((*epoch, None));
        }
        drop(own.lock().unwrap().take());
    }));
    for epoch in 1..=3 {
        assert_eq!(program.save(&state(epoch)).unwrap().epoch, epoch);
    }
    assert_eq!(*heard.lock().unwrap(), [(1, None)]);
    assert_eq!(warnings.0.lock().unwrap().iter().filter(|w| w.contains("panicked")).count(), 3);
}
