//! Locations of a pool's descriptor and log.

use crate::descriptor::config::PoolConfig;
use crate::descriptor::encryption::EncryptionConfig;
use crate::descriptor::log_configuration::LogConfiguration;
use crate::descriptor::marker::ThisReplica;
use outlive_backend::{Location, Target, TargetOptions};
use outlive_encrypt::{EncryptedMedium, EncryptedTarget, Encryption};
use outlive_log::LogMedium;
use outlive_registry::directory;
use outlive_types::Result;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// The descriptor of a pool, at its root.
pub(crate) const DESCRIPTOR: &str = "pool.toml";
/// Copy of the descriptor, beside it, if the log's marker is elsewhere. A copy without a descriptor
/// means that the descriptor was lost, since the copy is made last.
pub(crate) const COPY: &str = ".pool.toml";
/// Marker that says which pool a log belongs to, and how that was made. No job has this name, since
/// jobs begin with another character.
pub(crate) const MARKER: &str = "log/.pool.toml";

/// Locations of a pool, apart from its targets.
#[derive(Clone, Debug)]
pub(crate) struct PoolPaths {
    /// Location of the descriptor; relative locations count from here.
    pub root: Location,
    /// Configuration of the log that was found first; each replica has a marker.
    log: Arc<Link>,
    /// Whether this process has taken care of the copy of the descriptor.
    has_copy: Arc<AtomicBool>,
    /// Encryption of all that the pool keeps, apart from the descriptor and the markers.
    encryption: Option<Arc<Encryption>>,
}

/// A configuration, and the one that came after it. No thread ever waits for a lock here: a forked
/// child may inherit it in any state.
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
    /// Returns the paths of a pool at `root` with this descriptor.
    ///
    /// # Errors
    /// `Invalid` for an impossible location; if the pool is encrypted, and its key is not given.
    pub fn of(root: Location, config: &PoolConfig) -> Result<PoolPaths> {
        let log = Arc::new(Link::new(LogConfiguration::of(&root, config.log.as_ref())?));
        let unlock = |it: &EncryptionConfig| it.unlock(&config.format.pool_id);
        let encryption = config.encryption.as_ref().map(unlock).transpose();
        let encryption = encryption.map_err(|error| error.context(root.name(DESCRIPTOR)))?;
        Ok(PoolPaths { root, log, has_copy: Arc::default(), encryption })
    }

    /// Returns the paths of a pool that is all in one directory.
    pub fn directory(dir: &Path) -> PoolPaths {
        let root = directory(dir);
        PoolPaths {
            log: Arc::new(Link::new(LogConfiguration::beside(&root))),
            root,
            has_copy: Arc::default(),
            encryption: None,
        }
    }

    /// Returns the encryption of the pool, if it is encrypted.
    pub fn encryption(&self) -> Option<&Arc<Encryption>> {
        self.encryption.as_ref()
    }

    /// Opens a replica of the log.
    ///
    /// # Errors
    /// `Invalid` if it cannot be used, or keeps no records.
    pub fn open_medium(&self, location: &Location) -> Result<Arc<dyn LogMedium>> {
        let medium = location.open_medium()?;
        Ok(match &self.encryption {
            Some(encryption) => Arc::new(EncryptedMedium::new(medium, encryption.clone())),
            None => medium,
        })
    }

    /// Opens a target.
    ///
    /// # Errors
    /// `Invalid` if it cannot be used, or keeps no shards.
    pub fn open_target(
        &self,
        location: &Location,
        options: &TargetOptions,
    ) -> Result<Arc<dyn Target>> {
        let target = location.open_target(options)?;
        Ok(match &self.encryption {
            Some(encryption) => Arc::new(EncryptedTarget::new(target, encryption.clone())),
            None => target,
        })
    }

    /// Returns whether the caller has to take care of the copy of the descriptor: true once, if the
    /// log is elsewhere.
    pub fn wants_copy(&self) -> bool {
        !self.has_copy.swap(true, Ordering::Relaxed) && self.is_log_elsewhere()
    }

    /// Returns whether no replica of the log is in the pool's own location.
    pub fn is_log_elsewhere(&self) -> bool {
        self.log_replicas().all(|(log, _)| self.is_elsewhere(log))
    }

    /// Returns the configuration of the log now, as far as it is known.
    pub fn log(&self) -> &LogConfiguration {
        &self.log.last().set
    }

    /// Notes that the log was moved. All clones see it.
    pub fn log_moved(&self, to: LogConfiguration) {
        let last = self.log.last();
        if to.number > last.set.number {
            // Another thread may have come first, with the same one.
            let _ = last.next.set(Box::new(Link::new(to)));
        }
    }

    /// Returns whether the log was moved since these paths were made.
    pub fn has_moved(&self) -> bool {
        self.log.next.get().is_some()
    }

    /// Returns the replicas of the log, each with the number that its marker has.
    pub fn log_replicas(&self) -> impl Iterator<Item = (&Location, Option<ThisReplica>)> {
        self.log().replicas()
    }

    /// Returns whether this replica of the log is apart from the descriptor.
    pub fn is_elsewhere(&self, log: &Location) -> bool {
        !log.is_same(&self.root)
    }

    /// Returns the descriptor's name, for messages.
    pub fn descriptor(&self) -> String {
        self.root.name(DESCRIPTOR)
    }

    /// Returns the name of the log's first marker, for messages.
    pub fn marker(&self) -> String {
        self.log().at.first().unwrap_or(&self.root).name(MARKER)
    }
}
