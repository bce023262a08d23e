//! Where a pool's descriptor and its log are.

use crate::config::{LOG, PoolConfig};
use crate::location::Location;
use crate::marker::ThisPlace;
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
    /// Of the log, with a marker in each.
    pub log: Vec<Location>,
}

impl Home {
    /// That of a pool at `root` with this descriptor.
    ///
    /// # Errors
    /// `Invalid` for a location that is not possible.
    pub fn of(root: Location, config: &PoolConfig) -> Result<Home> {
        let Some(log) = &config.log else { return Ok(Home { log: vec![root.clone()], root }) };
        let seen = |location: &String| Location::parse(location, LOG)?.seen_from(&root);
        let log = log.all().into_iter().map(seen).collect::<Result<_>>()?;
        Ok(Home { root, log })
    }

    /// That of a pool which is all in one directory.
    pub fn directory(dir: &Path) -> Home {
        let root = Location::Directory(dir.to_owned());
        Home { log: vec![root.clone()], root }
    }

    /// The places of the log, each with what its marker says that it is.
    pub fn log_places(&self) -> impl Iterator<Item = (&Location, Option<ThisPlace>)> {
        let of = self.log.len() as u32;
        let place = move |number: u32| (of > 1).then_some(ThisPlace { number, of });
        self.log.iter().zip((1..).map(place))
    }

    /// Whether this place of the log is somewhere else than the descriptor.
    pub fn is_elsewhere(&self, log: &Location) -> bool {
        !log.is_same(&self.root)
    }

    /// The descriptor's name, for messages.
    pub fn descriptor(&self) -> String {
        self.root.name(DESCRIPTOR)
    }

    /// The name of the log's first marker, for messages.
    pub fn marker(&self) -> String {
        self.log.first().unwrap_or(&self.root).name(MARKER)
    }
}
