//! The table of targets of a [`PoolWorld`].

use crate::luck::lock;
use crate::space::Space;
use crate::truth::Truth;
use outlive_pool::{OpenTarget, StillThere, TargetConfig, TargetTable, Tier};
use outlive_target::Target;
use outlive_types::sync::pause;
use outlive_types::{Error, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// The rows, and their version.
pub(crate) type Rows = Arc<Mutex<(Vec<TargetConfig>, u64)>>;

/// Which target is in which place that is in memory; in none where that is lost.
pub(crate) type Markers = Arc<Mutex<BTreeMap<usize, u32>>>;

/// The rows of a new pool.
pub(crate) fn rows_of(space: &Space) -> Rows {
    let row = |id: usize| TargetConfig { id: Some(id as u32), ..TargetConfig::at("old") };
    let mut rows: Vec<TargetConfig> = (1..=space.targets).map(row).collect();
    if space.volatile {
        for (place, row) in rows.iter_mut().enumerate() {
            // Numbers change, and places stay.
            (row.volatile, row.location) = (true, place.to_string());
        }
    }
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
    /// Of those in memory.
    pub markers: Markers,
    /// Whether others may go on before each look.
    pub pauses: bool,
    pub truth: Truth,
}

/// The markers of a new pool.
pub(crate) fn markers_of(space: &Space) -> Markers {
    let all = (0..space.targets).zip(1..);
    Arc::new(Mutex::new(if space.volatile { all.collect() } else { BTreeMap::new() }))
}

/// Where a target in memory is.
fn place_of(row: &TargetConfig) -> Option<usize> {
    if row.volatile { row.location.parse().ok() } else { None }
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
        let place = place_of(row).unwrap_or(row.id.unwrap_or(1) as usize - 1);
        let target = self.targets.get(place);
        let target = target.ok_or_else(|| Error::invalid("there is no such target"))?;
        let (markers, id, pauses) = (self.markers.clone(), row.id, self.pauses);
        let still_there: Box<StillThere> = Box::new(move || {
            if pauses {
                pause("look at the marker of a target in memory");
            }
            match lock(&markers).get(&place) {
                there if there.copied() == id => Ok(()),
                there => Err(Error::damaged(format!("there is {there:?} in the place of {id:?}"))),
            }
        });
        Ok((target.clone(), row.volatile.then_some(still_there)))
    }

    fn is_ours(&self, row: &TargetConfig) -> bool {
        row.volatile
    }

    fn is_wiped(&self, row: &TargetConfig) -> Result<bool> {
        self.pause("look whether a target in memory is lost");
        let markers = lock(&self.markers);
        Ok(place_of(row).is_some_and(|place| !markers.contains_key(&place)))
    }

    fn mark(&self, row: &TargetConfig) -> Result<()> {
        self.pause("mark a target in memory");
        if let (Some(place), Some(id)) = (place_of(row), row.id) {
            lock(&self.markers).insert(place, id);
        }
        Ok(())
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
        let markers = lock(&self.markers);
        let is_there = |row: &TargetConfig| {
            !row.unsettled
                && place_of(row).is_none_or(|place| markers.get(&place) == row.id.as_ref())
        };
        if rows.iter().all(is_there) {
            self.truth.settled();
        }
        Ok(())
    }
}
