//! The locations of the targets of a [`PoolWorld`]. The table itself is the pool's own, in the
//! schedule's log.

use crate::blows::disk_of;
use crate::space::Space;
use outlive_backend::Target;
use outlive_pool::{
    FoundTarget, OpenTarget, Rows, StillThere, TargetConfig, TargetLocations, TargetState, Tier,
};
use outlive_types::sync::pause;
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The target at each location; none if it was lost with its marker, or never was there.
pub(crate) type Markers = Arc<Mutex<BTreeMap<usize, u32>>>;

/// Numbers of the targets that `pool.toml` lists or has listed.
pub(crate) type WrittenDown = Arc<Mutex<BTreeSet<u32>>>;

/// Returns the location of a seat whose node has this disk.
pub(crate) fn seat(disk: usize) -> String {
    format!("node://host/{disk}")
}

/// Returns the table of a new pool.
fn first(space: &Space) -> Rows {
    let row = |disk: usize| {
        let id = Some(disk as u32 + 1);
        let location = if space.seats { seat(disk) } else { disk.to_string() };
        TargetConfig { id, volatile: space.volatile || space.seats, ..TargetConfig::at(location) }
    };
    let mut targets: Vec<TargetConfig> = (0..space.targets).map(row).collect();
    if space.slow {
        let slow = TargetConfig::at(space.targets.to_string()).on_tier(Tier::Slow);
        targets.push(TargetConfig { id: Some(space.targets as u32 + 1), ..slow });
    }
    Rows { next_id: targets.len() as u32 + 1, targets }
}

/// Returns the markers of a new pool.
pub(crate) fn markers_of(space: &Space) -> Markers {
    let disk = |row: &TargetConfig| Some((disk_of(row)?, row.id?));
    Arc::new(Mutex::new(first(space).targets.iter().filter_map(disk).collect()))
}

/// The locations as one program sees them.
#[derive(Debug)]
pub(crate) struct SimLocations {
    pub space: Space,
    /// Targets by location, future ones too.
    pub targets: Vec<Arc<dyn Target>>,
    pub markers: Markers,
    pub written_down: WrittenDown,
    /// Whether others may run before each look.
    pub pauses: bool,
}

impl SimLocations {
    fn pause(&self, what: &str) {
        if self.pauses {
            pause(what);
        }
    }

    fn target(&self, row: &TargetConfig) -> Result<(usize, Arc<dyn Target>)> {
        let disk = disk_of(row).and_then(|disk| Some((disk, self.targets.get(disk)?.clone())));
        disk.ok_or_else(|| Error::invalid(format!("there is no disk {}", row.location)))
    }
}

impl TargetLocations for SimLocations {
    fn written_down(&self) -> Result<Vec<TargetConfig>> {
        self.pause("read the targets of the descriptor");
        let row = |id: &u32| TargetConfig { id: Some(*id), ..TargetConfig::at(String::new()) };
        Ok(self.written_down.lock().iter().map(row).collect())
    }

    fn first(&self, written_down: &[TargetConfig]) -> Result<Rows> {
        let rows = first(&self.space);
        self.seen(rows.clone(), written_down)?;
        Ok(rows)
    }

    fn seen(&self, rows: Rows, written_down: &[TargetConfig]) -> Result<Vec<TargetConfig>> {
        match written_down.iter().find(|row| row.id.is_some_and(|id| id >= rows.next_id)) {
            None => Ok(rows.targets),
            Some(row) => {
                Err(Error::invalid(format!("{row:?} is written down and not in {rows:?}")))
            }
        }
    }

    fn open(&self, row: &TargetConfig, _: bool) -> Result<OpenTarget> {
        let (disk, target) = self.target(row)?;
        let (markers, id, pauses) = (self.markers.clone(), row.id, self.pauses && row.volatile);
        let still_there: Box<StillThere> = Box::new(move || {
            if pauses {
                pause("look at the marker of a target in memory");
            }
            match markers.lock().get(&disk) {
                there if there.copied() == id => Ok(()),
                there => {
                    Err(Error::damaged(format!("there is {there:?} in the location of {id:?}")))
                }
            }
        });
        Ok((target, Some(still_there)))
    }

    fn find(&self, row: &TargetConfig) -> Result<FoundTarget> {
        let (disk, target) = self.target(row)?;
        let marker = self.markers.lock().get(&disk).copied();
        Ok(match marker {
            None => FoundTarget::Free,
            Some(id) => FoundTarget::Own { id, holds_shards: !target.list()?.is_empty() },
        })
    }

    fn prepare(&self, row: &TargetConfig, _: &[TargetConfig]) -> Result<()> {
        self.mark(row)
    }

    fn write_down(&self, rows: &[TargetConfig]) -> Result<()> {
        self.pause("write the targets into the descriptor");
        self.written_down.lock().extend(rows.iter().filter_map(|row| row.id));
        Ok(())
    }

    fn is_ours(&self, row: &TargetConfig) -> bool {
        row.volatile
    }

    fn is_wiped(&self, row: &TargetConfig) -> Result<bool> {
        self.pause("look whether a target in memory is lost");
        let markers = self.markers.lock();
        let is_memory = row.volatile && !row.is_seat();
        Ok(disk_of(row).is_some_and(|disk| is_memory && !markers.contains_key(&disk)))
    }

    fn mark(&self, row: &TargetConfig) -> Result<()> {
        self.pause("mark a target");
        if let (Some(disk), Some(id)) = (disk_of(row), row.id) {
            self.markers.lock().insert(disk, id);
        }
        Ok(())
    }
}

/// Whether this record of the table shows that no loss is left to be recorded.
pub(crate) fn is_settled(record: &[u8], markers: &Markers) -> bool {
    let Ok(rows) = Rows::parse(record) else { return false };
    let markers = markers.lock();
    let is_there = |row: &TargetConfig| {
        let is_marked = disk_of(row).is_none_or(|disk| markers.get(&disk) == row.id.as_ref());
        !row.unsettled && (!row.volatile || is_marked || row.state != TargetState::Active)
    };
    rows.targets.iter().all(is_there)
}
