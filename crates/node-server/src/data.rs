//! The data of a node: locations on its machine, and the parts of pools that they keep.

use crate::identity::identify;
use crate::spread::SpreadTarget;
use outlive_backend::{Location, ServedAlone, SmallFiles, Target, TargetOptions, prefix};
use outlive_log::LogMedium;
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, NoObserver, Result};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Most parts that stay open without a writer or a request.
const OPEN_MAX: usize = 256;

/// The data of a node.
pub(crate) struct Data {
    roots: Vec<Location>,
    /// The random number that is kept with it.
    pub id: [u8; 16],
    /// Longest life of a session of an earlier run; `None` if no node has served it before.
    pub earlier_session: Option<Duration>,
    parts: Mutex<BTreeMap<String, Arc<Part>>>,
    /// One node serves a location.
    _locks: Vec<ServedAlone>,
}

/// The part of a pool that has one prefix. Each view is opened when it is first used.
pub(crate) struct Part {
    roots: Vec<Location>,
    target: Mutex<Option<Arc<dyn Target>>>,
    medium: Mutex<Option<Arc<dyn LogMedium>>>,
}

impl Data {
    /// Opens the data, and marks it as this node's.
    ///
    /// # Errors
    /// `Invalid` if a location cannot be used; `Retry` if another node serves it.
    pub(crate) fn open(roots: Vec<Location>, session: Duration) -> Result<Data> {
        if roots.is_empty() {
            return Err(Error::invalid("a node serves one location or more"));
        }
        let mut locks = Vec::new();
        for (number, root) in roots.iter().enumerate() {
            if let Some(other) = roots[..number].iter().find(|other| overlaps(other, root)) {
                return Err(Error::invalid(format!(
                    "{root} and {other} are one location, or one is in the other: give each its own"
                )));
            }
            let alone = root.serve_alone().map_err(|error| error.context(root))?;
            locks.push(alone.ok_or_else(|| {
                Error::retry(format!(
                    "another node serves {root}: stop it first, or give this one a location of its own"
                ))
            })?);
            root.check().map_err(|error| error.context(root))?;
        }
        let (id, earlier_session) = identify(&roots, session)?;
        Ok(Data { roots, id, earlier_session, parts: Mutex::default(), _locks: locks })
    }

    pub(crate) fn describe(&self) -> String {
        let names: Vec<String> = self.roots.iter().map(ToString::to_string).collect();
        names.join(", ")
    }

    /// Returns the part with this prefix, which a client sent.
    ///
    /// # Errors
    /// `Invalid` if it is no prefix, or no location.
    pub(crate) fn part(&self, text: &str) -> Result<Arc<Part>> {
        let prefix = prefix::parse(text)
            .map_err(|why| Error::invalid(format!("{text:?} is no location on a node: {why}")))?;
        if prefix.split('/').any(|part| part.starts_with('.')) {
            return Err(Error::invalid(format!(
                "{text:?} is no location on a node: hidden names are its own"
            )));
        }
        let mut parts = self.parts.lock();
        if let Some(part) = parts.get(&prefix) {
            return Ok(part.clone());
        }
        let roots: Result<Vec<Location>> = self
            .roots
            .iter()
            .map(|root| match prefix.is_empty() {
                true => Ok(root.clone()),
                false => prefix.split('/').try_fold(root.clone(), |at, name| at.child(name)),
            })
            .collect();
        let part =
            Arc::new(Part { roots: roots?, target: Mutex::default(), medium: Mutex::default() });
        if parts.len() >= OPEN_MAX {
            // A part with a writer stays: a second view of it would not know the writer's shard.
            parts.retain(|_, part| Arc::strong_count(part) > 1);
        }
        parts.insert(prefix, part.clone());
        Ok(part)
    }
}

impl Part {
    /// Returns the part as a target.
    ///
    /// # Errors
    /// As [`outlive_backend::BackendLocation::open_target`].
    pub(crate) fn target(&self) -> Result<Arc<dyn Target>> {
        let mut open = self.target.lock();
        if let Some(target) = &*open {
            return Ok(target.clone());
        }
        let how = TargetOptions {
            is_own: false,
            probe: None,
            watch: None,
            observer: Arc::new(NoObserver),
        };
        let targets: Result<Vec<Arc<dyn Target>>> =
            self.roots.iter().map(|root| root.open_target(&how)).collect();
        let mut targets = targets?;
        let target = match targets.len() {
            1 => targets.remove(0),
            _ => Arc::new(SpreadTarget::open(targets)?),
        };
        Ok(open.insert(target).clone())
    }

    /// Returns the part as a medium of records, in the first location.
    ///
    /// # Errors
    /// As [`outlive_backend::BackendLocation::open_medium`].
    pub(crate) fn medium(&self) -> Result<Arc<dyn LogMedium>> {
        let mut open = self.medium.lock();
        if let Some(medium) = &*open {
            return Ok(medium.clone());
        }
        Ok(open.insert(self.roots[0].open_medium()?).clone())
    }

    /// Returns the part for small files, in the first location.
    pub(crate) fn files(&self) -> &Location {
        &self.roots[0]
    }

    /// Makes folders in all locations: shards may be in any.
    ///
    /// # Errors
    /// Errors of the locations.
    pub(crate) fn make_folders(&self, names: &[&str]) -> Result<()> {
        self.roots.iter().try_for_each(|root| root.make_folders(names))
    }
}

/// Returns whether two locations are one, or one is in the other.
fn overlaps(one: &Location, other: &Location) -> bool {
    let (Some(a), Some(b)) = (one.as_directory(), other.as_directory()) else {
        return one.is_same(other);
    };
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let (a, b) = (real(a), real(b));
    one.is_same(other) || a.starts_with(&b) || b.starts_with(&a)
}
