//! The table of targets of a [`PoolWorld`].

use crate::luck::lock;
use crate::space::Space;
use outlive_pool::{OpenTarget, TargetConfig, TargetTable, Tier};
use outlive_target::Target;
use outlive_types::sync::pause;
use outlive_types::{Error, Result};
use std::sync::{Arc, Mutex};

/// The rows, and their version.
pub(crate) type Rows = Arc<Mutex<(Vec<TargetConfig>, u64)>>;

/// The rows of a new pool.
pub(crate) fn rows_of(space: &Space) -> Rows {
    let row = |id: usize| TargetConfig { id: Some(id as u32), ..TargetConfig::at("old") };
    let mut rows: Vec<TargetConfig> = (1..=space.targets).map(row).collect();
    if space.slow {
        rows.push(row(space.targets + 1).on_tier(Tier::Slow));
    }
    Arc::new(Mutex::new((rows, 1)))
}

/// The table as one program sees it.
#[derive(Debug)]
pub(crate) struct SimTable {
    pub rows: Rows,
    /// By number, those to come too.
    pub targets: Vec<Arc<dyn Target>>,
    /// Whether others may go on before each look.
    pub pauses: bool,
}

impl SimTable {
    fn pause(&self, what: &str) {
        if self.pauses {
            pause(what);
        }
    }
}

impl TargetTable for SimTable {
    fn version(&self) -> Result<u64> {
        self.pause("look at the table of targets");
        Ok(lock(&self.rows).1)
    }

    fn rows(&self) -> Result<Vec<TargetConfig>> {
        self.pause("read the table of targets");
        Ok(lock(&self.rows).0.clone())
    }

    fn open(&self, row: &TargetConfig) -> Result<OpenTarget> {
        let target = self.targets.get(row.id.unwrap_or(1) as usize - 1);
        let target = target.ok_or_else(|| Error::invalid("there is no such target"))?;
        Ok((target.clone(), None))
    }

    fn prepare(&self, _row: &TargetConfig) -> Result<()> {
        Ok(())
    }

    fn next_id(&self) -> Result<u32> {
        Ok(lock(&self.rows).0.iter().filter_map(|row| row.id).max().unwrap_or(0) + 1)
    }

    fn replace(&self, rows: &[TargetConfig]) -> Result<()> {
        self.pause("write the table of targets");
        let mut table = lock(&self.rows);
        *table = (rows.to_vec(), table.1 + 1);
        Ok(())
    }
}
