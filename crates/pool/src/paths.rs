//! Where a pool's descriptor and its log are.

use crate::config::PoolConfig;
use crate::location::Location;
use crate::log_configuration::LogConfiguration;
use crate::marker::ThisReplica;
use outlive_types::Result;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// The descriptor of a pool, at its root.
pub(crate) const DESCRIPTOR: &str = "pool.toml";
/// A copy of the descriptor, beside it, where the log's marker is not. If it is there and the descriptor is not, the
/// descriptor was lost, since the copy is made last.
pub(crate) const COPY: &str = ".pool.toml";
/// What says that a log is the pool's, and how that was made. No job has this name (jobs begin with
/// another character).
pub(crate) const MARKER: &str = "log/.pool.toml";

/// The places of a pool that are not targets.
#[derive(Clone, Debug)]
pub(crate) struct PoolPaths {
    /// Of the descriptor; relative locations count from here.
    pub root: Location,
    /// Of the log, with a marker in each: the set that was found first.
    log: Arc<Link>,
    /// Whether this process has seen to the copy of the descriptor.
    has_copy: Arc<AtomicBool>,
}

/// A set of places, and the one that came after it. Nobody ever waits for a lock here: a forked child may inherit
/// it in any state.
#[derive(Debug)]
struct Link {
    set: LogConfiguration,
    next: OnceLock<Box<Link>>,
}

impl Link {
    fn new(set: LogConfiguration) -> Link {
        Link { set, next: OnceLock::new() }
    }

    fn last(&self) -> &Link {
        let mut link = self;
        while let Some(next) = link.next.get() {
            link = next;
        }
        link
    }
}

impl PoolPaths {
    /// That of a pool at `root` with this descriptor.
    ///
    /// # Errors
    /// `Invalid` for a location that is not possible.
    pub fn of(root: Location, config: &PoolConfig) -> Result<PoolPaths> {
        let log = Arc::new(Link::new(LogConfiguration::of(&root, config.log.as_ref())?));
        Ok(PoolPaths { root, log, has_copy: Arc::default() })
    }

    /// That of a pool which is all in one directory.
    pub fn directory(dir: &Path) -> PoolPaths {
        let root = Location::Directory(dir.to_owned());
        PoolPaths {
            log: Arc::new(Link::new(LogConfiguration::beside(&root))),
            root,
            has_copy: Arc::default(),
        }
    }

    /// Whether the caller is to see to the copy of the descriptor: true once, if the log is elsewhere.
    pub fn wants_copy(&self) -> bool {
        !self.has_copy.swap(true, Ordering::Relaxed) && self.is_log_elsewhere()
    }

    /// Whether no place of the log is in the pool's own place.
    pub fn is_log_elsewhere(&self) -> bool {
        self.log_replicas().all(|(log, _)| self.is_elsewhere(log))
    }

    /// The places of the log now, as far as that is known.
    pub fn log(&self) -> &LogConfiguration {
        &self.log.last().set
    }

    /// The log was moved. All clones learn of it.
    pub fn log_moved(&self, to: LogConfiguration) {
        let last = self.log.last();
        if to.number > last.set.number {
            // Another thread may have come first, with the same.
            let _ = last.next.set(Box::new(Link::new(to)));
        }
    }

    /// Whether it was moved since this home was made.
    pub fn has_moved(&self) -> bool {
        self.log.next.get().is_some()
    }

    /// The places of the log, each with what its marker says that it is.
    pub fn log_replicas(&self) -> impl Iterator<Item = (&Location, Option<ThisReplica>)> {
        self.log().replicas()
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
        self.log().at.first().unwrap_or(&self.root).name(MARKER)
    }
}
