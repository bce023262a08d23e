//! Where a pool's descriptor and its log are.

use crate::config::PoolConfig;
use crate::location::Location;
use outlive_types::Result;
use std::path::Path;

/// The descriptor of a pool, at its root.
pub(crate) const DESCRIPTOR: &str = "pool.toml";
/// What says that a log is the pool's, and how that was made. No job has this name (jobs begin with
/// another character).
pub(crate) const MARKER: &str = "log/.pool.toml";

/// The places of a pool that are not targets.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    /// Of the descriptor; relative locations count from here.
    pub root: Location,
    /// Of the log, and of its marker.
    pub log: Location,
}

impl Home {
    /// That of a pool at `root` with this descriptor.
    ///
    /// # Errors
    /// `Invalid` for a location that is not possible.
    pub fn of(root: Location, config: &PoolConfig) -> Result<Home> {
        let log = match &config.log {
            None => root.clone(),
            Some(log) => Location::parse(&log.location, "[log]")?.seen_from(&root)?,
        };
        Ok(Home { root, log })
    }

    /// That of a pool which is all in one directory.
    pub fn directory(dir: &Path) -> Home {
        let root = Location::Directory(dir.to_owned());
        Home { log: root.clone(), root }
    }

    /// Whether the log is somewhere else than the descriptor.
    pub fn log_is_elsewhere(&self) -> bool {
        !self.log.is_same(&self.root)
    }

    /// The descriptor's name, for messages.
    pub fn descriptor(&self) -> String {
        self.root.name(DESCRIPTOR)
    }

    /// The name of the log's marker, for messages.
    pub fn marker(&self) -> String {
        self.log.name(MARKER)
    }
}
