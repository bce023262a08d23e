//! Targets in memory that are lost while a save is under way: docs/design/026-volatile.md.

use crate::common;
use crate::stepped;

use common::{Program, State, noise, small_config};
use outlive_backend::{FaultWorld, Target};
use outlive_pool::{
    Environment, FoundTarget, OpenTarget, Pool, Rows, TargetConfig, TargetLocations, TargetTable,
};
use outlive_store::Select;
use outlive_types::{Error, ErrorKind, Result};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use stepped::{SteppedLog, Steps};

/// A pool whose only target is in memory.
#[derive(Clone, Default)]
struct Memory {
    world: FaultWorld,
    /// Number of the present target; 0 for none.
    marker: Arc<AtomicU32>,
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
        let places = Arc::new(Places { target, marker: self.marker.clone() });
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

#[derive(Debug)]
struct Places {
    target: Arc<dyn Target>,
    marker: Arc<AtomicU32>,
}

impl TargetLocations for Places {
    fn first(&self, _: &[TargetConfig]) -> Result<Rows> {
        let host = Some("one".to_owned());
        let row = TargetConfig { id: Some(1), host, ..TargetConfig::at("memory") }.in_memory()?;
        Ok(Rows { next_id: 2, targets: vec![row] })
    }

    fn open(&self, row: &TargetConfig, _: bool) -> Result<OpenTarget> {
        let (marker, id) = (self.marker.clone(), row.id);
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
        Ok(self.marker.load(Ordering::Relaxed) == 0)
    }

    fn mark(&self, row: &TargetConfig) -> Result<()> {
        self.marker.store(row.id.unwrap_or(1), Ordering::Relaxed);
        Ok(())
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
