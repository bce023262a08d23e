//! Targets in memory that are lost while a save is under way: docs/design/026-volatile.md.

use crate::common;
use crate::stepped;

use common::{Program, State, noise, small_config};
use outlive_backend::{FaultWorld, Target};
use outlive_pool::{
    Environment, Exclusive, FoundTarget, OpenTarget, Pool, Rows, TargetConfig, TargetLocations,
    TargetTable,
};
use outlive_store::Select;
use outlive_types::{Error, ErrorKind, Result};
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use stepped::{SteppedLog, Steps};

/// A pool whose only target is in memory.
#[derive(Clone, Default)]
struct Memory {
    world: FaultWorld,
    /// Number of the present target; 0 for none.
    marker: Arc<AtomicU32>,
    /// Number of times that a process has looked whether the target is lost.
    looks: Arc<AtomicU64>,
}

impl Memory {
    fn new() -> Memory {
        let memory = Memory::default();
        memory.marker.store(1, Ordering::Relaxed);
        memory
    }

    /// Returns the pool as a new process opens it. Its calls of the log are steps, except those
    /// about targets.
    fn pool(&self, steps: &Steps) -> Pool {
        let (target, log, _) = self.world.process();
        let env = Environment::system();
        let places = Arc::new(Places { target, memory: self.clone() });
        let table = TargetTable::new(log.clone(), places, env.rng.clone());
        let log = Arc::new(SteppedLog(log, steps.clone()));
        Pool::over(small_config(), Vec::new(), log, env).with_table(Arc::new(table)).unwrap()
    }

    /// Does the same as a restart of the host.
    fn lose(&self) {
        self.world.lose_target(0);
        self.marker.store(0, Ordering::Relaxed);
    }
}

struct Places {
    target: Arc<dyn Target>,
    memory: Memory,
}

impl fmt::Debug for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Places").field(&self.target).finish()
    }
}

impl TargetLocations for Places {
    fn first(&self, _: &[TargetConfig]) -> Result<Rows> {
        let host = Some("one".to_owned());
        let row = TargetConfig { id: Some(1), host, ..TargetConfig::at("memory") }.in_memory()?;
        Ok(Rows { next_id: 2, targets: vec![row] })
    }

    fn open(&self, row: &TargetConfig, _: bool) -> Result<OpenTarget> {
        let (marker, id) = (self.memory.marker.clone(), row.id);
        let look = move || match Some(marker.load(Ordering::Relaxed)) == id {
            true => Ok(()),
            false => Err(Error::damaged("it is not there any more")),
        };
        Ok((self.target.clone(), Some(Box::new(look))))
    }

    fn find(&self, row: &TargetConfig) -> Result<FoundTarget> {
        Ok(FoundTarget::Own { id: row.id.unwrap_or(1), holds_shards: true })
    }

    fn prepare(&self, _: &TargetConfig, _: &[TargetConfig]) -> Result<()> {
        Ok(())
    }

    fn is_ours(&self, _: &TargetConfig) -> bool {
        true
    }

    fn is_wiped(&self, _: &TargetConfig) -> Result<bool> {
        self.memory.looks.fetch_add(1, Ordering::Relaxed);
        Ok(self.memory.marker.load(Ordering::Relaxed) == 0)
    }

    fn mark(&self, row: &TargetConfig) -> Result<()> {
        self.memory.marker.store(row.id.unwrap_or(1), Ordering::Relaxed);
        Ok(())
    }
}

impl Memory {
    /// Saves while another process may change the targets alone, whose guard `meanwhile` gets once
    /// the save waits for it.
    fn save_beside_a_command(&self, meanwhile: impl FnOnce(Exclusive) -> Option<Exclusive>) {
        let program = Program::start(&self.pool(&Steps::default()), "job");
        program.save(&state(1)).unwrap();
        let other = self.pool(&Steps::default());
        let alone = other.lock_trimming().unwrap();
        self.lose();
        let before = self.looks.load(Ordering::Relaxed);
        let _alone = thread::scope(|scope| {
            let saving = scope.spawn(|| program.save(&state(2)));
            while self.looks.load(Ordering::Relaxed) < before + 4 {
                assert!(!saving.is_finished(), "the save did not wait");
                thread::yield_now();
            }
            let alone = meanwhile(alone);
            assert_eq!(saving.join().unwrap().unwrap().epoch, 2);
            alone
        });
        let again = Program::start(&self.pool(&Steps::default()), "job");
        assert!(again.restore(Select::Newest).unwrap().unwrap() == (2, state(2)));
    }

    /// Returns pools with both ways to keep others from changing the targets: a lock, and a claim.
    fn of_both_kinds() -> [Memory; 2] {
        [Memory::new(), Memory { world: FaultWorld::with_locks(), ..Memory::new() }]
    }
}

#[test]
fn a_save_waits_for_a_command_and_then_recreates_what_was_lost() {
    for memory in Memory::of_both_kinds() {
        memory.save_beside_a_command(|alone| {
            drop(alone);
            None
        });
    }
}

/// The command that is at work has made the change, and works on.
#[test]
fn a_save_does_not_wait_for_a_command_once_nothing_is_lost_any_more() {
    for memory in Memory::of_both_kinds() {
        let marker = memory.marker.clone();
        memory.save_beside_a_command(|alone| {
            marker.store(1, Ordering::Relaxed);
            Some(alone)
        });
    }
}

fn state(seed: u64) -> State {
    State::from([("a".to_owned(), noise(seed, 100_000))])
}

/// A program has stored everything and checked the targets when their memory is lost. Another one
/// recreates it before the first appends its checkpoint. No log names lost data, so the heal has
/// nothing to report.
#[test]
fn data_that_was_lost_before_its_commit_is_not_committed() {
    let memory = Memory::new();
    let (steps, appends, here) = (Steps::default(), AtomicU64::new(0), memory.clone());
    let other = Arc::new(Mutex::new(None));
    let holds = other.clone();
    steps.hook(move |_, op| {
        // Its session, then the checkpoint.
        if op == "append" && appends.fetch_add(1, Ordering::AcqRel) == 1 {
            here.lose();
            let other = Program::start(&here.pool(&Steps::default()), "other");
            other.save(&state(2)).unwrap();
            *holds.lock().unwrap() = Some(other);
        }
    });
    let program = Program::start(&memory.pool(&steps), "job");
    let saved = program.save(&state(1));
    if let Ok(stats) = &saved {
        let again = Program::start(&memory.pool(&Steps::default()), "job");
        let restored = again.restore(Select::Epoch(stats.epoch));
        restored.unwrap_or_else(|error| panic!("it was said to be saved: {error}"));
    }
    let error = saved.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
    let epoch = program.save(&state(1)).unwrap().epoch;
    for (job, seed, epoch) in [("job", 1, epoch), ("other", 2, 1)] {
        let again = Program::start(&memory.pool(&Steps::default()), job);
        assert!(again.restore(Select::Newest).unwrap().unwrap() == (epoch, state(seed)), "{job}");
    }
}
