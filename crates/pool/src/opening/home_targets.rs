//! Targets of a pool in a directory or a bucket: their locations in the descriptor, their markers,
//! and the targets at the pool's creation, which the log's marker lists.

use crate::descriptor::compare::{compare, text};
use crate::descriptor::config::{FormatConfig, PoolConfig};
use crate::descriptor::encryption::{copy_key, newest_key};
use crate::descriptor::marker::{Marker, This, targets_of};
use crate::descriptor::paths::{DESCRIPTOR, PoolPaths};
use crate::descriptor::redundancy::{TargetConfig, Tier};
use crate::environment::Environment;
use crate::host::this_host;
use crate::log::open::check_log;
use crate::opening::init_check::{
    LOG_STAYS, SLOW_STAYS, check_in_memory, holds_something, make_target, plainly, refuse_memory,
    refuse_used, write_target,
};
use crate::opening::marker_check::{TARGET_MARKER, check_target, read_descriptor};
use crate::opening::rewrite::rewrite;
use crate::targets::{FoundTarget, OpenTarget, Rows, TargetLocations};
use outlive_backend::{Bounds, Location, SmallFiles, TargetOptions, TargetWatch, Work};
use outlive_io::PerProcess;
use outlive_types::{Error, ErrorKind, Result};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// Number of a pool's only target, if it is given none.
const FIRST: u32 = 1;

/// Locations of the targets of a pool.
#[derive(Clone)]
pub(crate) struct HomeTargets {
    paths: PoolPaths,
    format: FormatConfig,
    env: Environment,
    /// Watches by number and location. They outlive the sets of targets, which are recreated when
    /// the table changes: a target that was silent before is not asked again.
    watches: Arc<PerProcess<Watches>>,
}

type Watches = HashMap<(Option<u32>, String), Arc<TargetWatch>>;

impl fmt::Debug for HomeTargets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the targets of {}", self.paths.root)
    }
}

impl HomeTargets {
    pub fn new(paths: &PoolPaths, format: &FormatConfig, env: &Environment) -> HomeTargets {
        let watches = Arc::new(PerProcess::new(|_| Watches::new()));
        HomeTargets { paths: paths.clone(), format: format.clone(), env: env.clone(), watches }
    }

    fn location(&self, row: &TargetConfig) -> Result<Location> {
        row.seen_from(&self.paths.root)
    }

    /// Returns whether a target is in the pool's own location. A silent one is not, since the pool
    /// is open.
    fn is_own_location(&self, location: &Location, watch: Option<&Arc<TargetWatch>>) -> bool {
        let (root, location) = (self.paths.root.clone(), location.clone());
        match watch {
            Some(_) if location == root => true,
            Some(watch) => {
                watch.ask(Work::Question, move || Ok(location.is_same(&root))).unwrap_or(false)
            }
            None => location.is_same(&root),
        }
    }

    /// Returns the log's marker, of which each target has a copy.
    fn marker(&self) -> Result<Marker> {
        Ok(check_log(&self.paths, &self.format)?.0)
    }

    fn targets_of(
        &self,
        written_down: &[TargetConfig],
        marker: &Marker,
    ) -> Result<Vec<TargetConfig>> {
        let mut rows = targets_of(written_down, marker)
            .map_err(|error| error.context(self.paths.descriptor()))?;
        if rows.is_empty() {
            rows.push(TargetConfig::at("."));
        }
        if let [only] = &mut rows[..] {
            only.id = Some(only.id.unwrap_or(FIRST));
        }
        Ok(rows)
    }

    /// Makes sure that the log and the slow targets survive a loss of the host's memory.
    fn check_outlives_memory(&self, rows: &[TargetConfig]) -> Result<()> {
        let root = &self.paths.root;
        for log in &self.paths.log().named {
            refuse_memory(root, log, LOG_STAYS).map_err(|error| {
                error.context("the log has to move before a target in memory is added")
            })?;
        }
        for row in rows.iter().filter(|row| row.tier == Tier::Slow) {
            let (slow, id) = (self.location(row)?, row.id.unwrap_or(FIRST));
            refuse_memory(root, &slow, SLOW_STAYS).map_err(|error| {
                error.context(format!("slow target {id} has to be replaced before"))
            })?;
        }
        Ok(())
    }

    /// Returns the rows for a descriptor, which may have other names for locations.
    fn named(&self, descriptor: &PoolConfig, rows: &[TargetConfig]) -> Vec<TargetConfig> {
        let is_own = |row: &TargetConfig| {
            *row == TargetConfig { id: row.id, ..TargetConfig::at(".") } && rows.len() == 1
        };
        if descriptor.target.is_empty() && rows.iter().all(is_own) {
            return Vec::new();
        }
        let is_there = |row: &TargetConfig, at: &TargetConfig| {
            let Ok(location) = self.location(at) else { return false };
            let (paths, format, id) = (self.paths.clone(), self.format.clone(), row.id);
            let look = move || check_target(&paths, &format, &location, id);
            self.watch(at)
                .map_or_else(&look, |watch| watch.ask(Work::Question, look.clone()))
                .is_ok()
        };
        let here = |row: &TargetConfig| {
            if row.is_seat() {
                return row.clone();
            }
            let is_it = |other: &&TargetConfig| other.id.or(Some(FIRST)) == row.id;
            match descriptor.target.iter().find(is_it) {
                // The target was taken back in another location.
                Some(own)
                    if own.location != row.location
                        && !is_there(row, own)
                        && is_there(row, row) =>
                {
                    row.clone()
                }
                Some(own) => TargetConfig {
                    location: own.location.clone(),
                    host: if row.volatile { row.host.clone() } else { own.host.clone() },
                    ..row.clone()
                },
                None => row.clone(),
            }
        };
        rows.iter().map(here).collect()
    }

    /// Writes a copy of the wrapped key beside the packs of a target, if the pool is encrypted.
    fn copy_key(&self, target: &Location) -> Result<()> {
        let (root, pool_id) = (&self.paths.root, &self.format.pool_id);
        match newest_key(root, pool_id, read_descriptor(root)?.encryption) {
            Some(encryption) => copy_key(target, pool_id, &encryption),
            None => Ok(()),
        }
    }

    fn holds_shards(&self, location: &Location) -> Result<bool> {
        let how = TargetOptions { observer: self.env.observer.clone(), ..plainly() };
        Ok(!location.open_target(&how)?.list()?.is_empty())
    }
}

impl TargetLocations for HomeTargets {
    fn written_down(&self) -> Result<Vec<TargetConfig>> {
        Ok(read_descriptor(&self.paths.root)?.target)
    }

    fn first(&self, written_down: &[TargetConfig]) -> Result<Rows> {
        let marker = self.marker()?;
        let targets = self.targets_of(written_down, &marker)?;
        let highest = targets.iter().filter_map(|row| row.id).max().unwrap_or(FIRST);
        let next_id = marker.next_target.unwrap_or(0).max(highest + 1);
        Ok(Rows { next_id, targets })
    }

    fn seen(&self, rows: Rows, written_down: &[TargetConfig]) -> Result<Vec<TargetConfig>> {
        let Rows { next_id, targets, .. } = rows;
        let made = Marker::bare(self.format.clone());
        self.targets_of(
            written_down,
            &Marker { next_target: Some(next_id), target: targets, ..made },
        )
    }

    fn open(&self, row: &TargetConfig, is_only: bool) -> Result<OpenTarget> {
        let location = self.location(row)?;
        let probe = self.paths.root.as_directory().map(|dir| dir.join(DESCRIPTOR));
        let watch = (!is_only).then(|| self.watch(row)).flatten();
        let is_own = self.is_own_location(&location, watch.as_ref());
        let observer = self.env.observer.clone();
        let options = TargetOptions { is_own, probe, watch, observer };
        let target = self.paths.open_target(&location, &options)?;
        if is_own {
            return Ok((target, None)); // the descriptor is beside it
        }
        // docs/format.md lets the only target of a pool move without a number.
        let id = row.id.filter(|_| row.volatile || !is_only);
        if row.volatile && !self.is_ours(row) {
            let (id, host) = (row.id.unwrap_or(FIRST), row.host.clone().unwrap_or_default());
            let elsewhere = move || {
                Err(Error::invalid(format!(
                    "target {id} is in the memory of the host {host}, and only programs there can use it"
                )))
            };
            return Ok((target, Some(Box::new(elsewhere))));
        }
        let (paths, format) = (self.paths.clone(), self.format.clone());
        let is_in_memory = row.volatile && !row.is_seat();
        let still_there = move || {
            let found = check_target(&paths, &format, &location, id);
            found.map_err(|error| if is_in_memory { in_memory(error) } else { error })
        };
        Ok((target, Some(Box::new(still_there))))
    }

    fn watch(&self, row: &TargetConfig) -> Option<Arc<TargetWatch>> {
        let (id, location) = (row.id.unwrap_or(FIRST), self.location(row).ok()?);
        let mut watches = self.watches.lock();
        let made = || {
            let name = format!("target {id} ({location})");
            // The health check needs an answer; whether the marker is there does not matter.
            let look = move || location.read(TARGET_MARKER).map(drop);
            TargetWatch::new(name, Bounds::default(), self.env.observer.clone(), Arc::new(look))
        };
        Some(watches.entry((row.id, row.location.clone())).or_insert_with(made).clone())
    }

    fn is_own(&self, row: &TargetConfig) -> bool {
        let watch = self.watch(row);
        self.location(row).is_ok_and(|location| self.is_own_location(&location, watch.as_ref()))
    }

    fn find(&self, row: &TargetConfig) -> Result<FoundTarget> {
        let location = self.location(row)?;
        if location.is_same(&self.paths.root) {
            return Ok(FoundTarget::Free);
        }
        let marker = match location.keeps_shards() {
            true => location.read(TARGET_MARKER)?,
            false => None,
        };
        let name = location.name(TARGET_MARKER);
        let marker = marker.map(|bytes| Marker::parse(&text(bytes, &name)?, &name)).transpose()?;
        match marker {
            Some(marker) if marker.format.pool_id == self.format.pool_id => {
                compare(&self.paths, &self.format, &name, &marker, "target")?;
                let id = marker.this.map_or(FIRST, |This { id }| id);
                Ok(FoundTarget::Own { id, holds_shards: self.holds_shards(&location)? })
            }
            _ => refuse_used(&self.paths, &location).map(|()| FoundTarget::Free),
        }
    }

    fn prepare(&self, row: &TargetConfig, rows: &[TargetConfig]) -> Result<()> {
        let root = &self.paths.root;
        let location = self.location(row)?;
        if location.is_same(root) {
            return Ok(());
        }
        if row.volatile {
            check_in_memory(&location)?;
            self.check_outlives_memory(rows)?;
        }
        if row.tier == Tier::Slow && rows.iter().any(|other| other.volatile) {
            refuse_memory(root, &location, SLOW_STAYS)?;
        }
        match self.find(row)? {
            FoundTarget::Free => self.mark(row),
            FoundTarget::Own { id, .. } if row.id == Some(id) => self.copy_key(&location),
            // It was marked for another target, and did not become that one.
            FoundTarget::Own { .. } => {
                let marker = self.marker()?.on(row.id).to_text()?;
                location.write(TARGET_MARKER, marker.as_bytes())?;
                location.sync_folder("packs")?;
                self.copy_key(&location)
            }
        }
    }

    fn write_down(&self, rows: &[TargetConfig]) -> Result<()> {
        let change =
            |there: PoolConfig| Ok(PoolConfig { target: self.named(&there, rows), ..there });
        // Programs ignore a removed target that the descriptor still names, and find a new one in
        // the table.
        let written = rewrite(&self.paths, &self.format, &change);
        written.map(drop).map_err(|error| {
            error.context(format!(
                "the table of targets is changed, and {} does not say so yet",
                self.paths.descriptor()
            ))
        })
    }

    fn is_same(&self, one: &TargetConfig, other: &TargetConfig) -> bool {
        let of = one;
        let both = || Some((self.location(one).ok()?, self.location(other).ok()?));
        let Some((one, other)) = both() else { return false };
        one == other || {
            // A silent target counts as another location.
            let look = move || Ok(one.is_same(&other));
            match self.watch(of) {
                Some(watch) => watch.ask(Work::Question, look).unwrap_or(false),
                None => look().unwrap_or(false),
            }
        }
    }

    fn is_ours(&self, row: &TargetConfig) -> bool {
        row.is_seat() || row.volatile && row.host.as_deref() == Some(this_host().as_str())
    }

    fn is_wiped(&self, row: &TargetConfig) -> Result<bool> {
        let location = self.location(row)?;
        // Of a seat only its own node knows.
        let Some(dir) = location.as_directory().filter(|_| self.is_ours(row)) else {
            return Ok(false);
        };
        // A location that holds data but no marker is no new location: a person has to look at it.
        Ok(location.read(TARGET_MARKER)?.is_none() && !holds_something(&dir.join("packs"))?)
    }

    fn make_location(&self, row: &TargetConfig) -> Result<()> {
        let location = self.location(row)?;
        if row.is_seat() {
            return Ok(()); // its marker makes it
        }
        check_in_memory(&location)?;
        make_target(&location)
    }

    fn mark(&self, row: &TargetConfig) -> Result<()> {
        if row.is_vacant() {
            return Ok(());
        }
        let (location, marker) = (self.location(row)?, self.marker()?.on(row.id));
        write_target(&location, &marker)?;
        self.copy_key(&location)
    }
}

/// Adds to the error of a missing target that it was in memory.
fn in_memory(error: Error) -> Error {
    if error.kind() != ErrorKind::Damaged {
        return error;
    }
    let what = "it is in memory: if all of it is lost, the next program that restores or saves recreates it";
    Error::damaged(format!("{} ({what})", error.message()))
}
