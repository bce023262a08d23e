//! A pool with a table of targets: a fast disk, which may be away, and a slow one.

use crate::common::small_config;
use crate::stepped::{SteppedTarget, Steps};
use outlive_backend::{FaultWorld, Target};
use outlive_pool::{
    Environment, FoundTarget, OpenTarget, Pool, PoolConfig, Rows, TargetConfig, TargetLocations,
    TargetTable, Tier, TiersConfig,
};
use outlive_types::{Error, Result};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The disks of a world, as each of its processes finds them.
#[derive(Clone)]
pub struct Disks {
    pub world: FaultWorld,
    is_away: Arc<AtomicBool>,
    steps: Option<Steps>,
}

impl Disks {
    pub fn new(world: FaultWorld) -> Disks {
        Disks { world, is_away: Arc::default(), steps: None }
    }

    /// Makes the calls of both disks steps.
    pub fn stepped(self, steps: &Steps) -> Disks {
        Disks { steps: Some(steps.clone()), ..self }
    }

    /// Returns the pool as a new process opens it.
    pub fn pool(&self, tiers: TiersConfig, env: Environment) -> Pool {
        let (mut targets, log, _) = self.world.process_with(2);
        if let Some(steps) = &self.steps {
            let stepped = |disk| Arc::new(SteppedTarget(disk, steps.clone())) as Arc<dyn Target>;
            targets = targets.into_iter().map(stepped).collect();
        }
        let config = PoolConfig { tiers, ..small_config() };
        let places = Arc::new(Places { targets, is_away: self.is_away.clone() });
        let table = TargetTable::new(log.clone(), places, env.rng.clone());
        Pool::over(config, Vec::new(), log, env).with_table(Arc::new(table)).unwrap()
    }

    /// Takes the fast disk away, or brings it back.
    pub fn set_away(&self, is_away: bool) {
        self.is_away.store(is_away, Ordering::Relaxed);
        self.world.set_away(0, is_away);
    }
}

struct Places {
    targets: Vec<Arc<dyn Target>>,
    is_away: Arc<AtomicBool>,
}

impl fmt::Debug for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("two disks")
    }
}

impl TargetLocations for Places {
    fn first(&self, _: &[TargetConfig]) -> Result<Rows> {
        let row = |id: u32| TargetConfig { id: Some(id), ..TargetConfig::at(id.to_string()) };
        let targets = vec![row(1), row(2).on_tier(Tier::Slow)];
        Ok(Rows { next_id: 3, targets })
    }

    fn open(&self, row: &TargetConfig, _: bool) -> Result<OpenTarget> {
        let (number, is_away) = (row.id.unwrap_or(1) as usize - 1, self.is_away.clone());
        let look = move || match number == 0 && is_away.load(Ordering::Relaxed) {
            true => Err(Error::damaged("it is not mounted")),
            false => Ok(()),
        };
        Ok((self.targets[number].clone(), Some(Box::new(look))))
    }

    fn find(&self, row: &TargetConfig) -> Result<FoundTarget> {
        Ok(FoundTarget::Own { id: row.id.unwrap_or(1), holds_shards: true })
    }

    fn prepare(&self, _: &TargetConfig, _: &[TargetConfig]) -> Result<()> {
        Ok(())
    }

    fn mark(&self, _: &TargetConfig) -> Result<()> {
        Ok(())
    }
}
