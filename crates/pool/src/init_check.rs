//! Places that a pool is made in: which belong to a pool already, and which are free.

use crate::config::PoolConfig;
use crate::host::is_in_memory;
use crate::location::{Location, real};
use crate::marker::Marker;
use crate::marker_check::TARGET_MARKER;
use crate::paths::{COPY, DESCRIPTOR, MARKER, PoolPaths};
use outlive_s3::S3Url;
use outlive_target::Target;
use outlive_types::{Error, Result, Rng};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The directories of a pool that nobody else may write into.
const PARTS: [&str; 2] = ["log", "packs"];

/// Refuses a place that is a pool's own: its directory itself, or something in its `log` or `packs`.
/// What is written there could replace parts of the pool.
///
/// # Errors
/// `Invalid`, naming the pool.
pub fn check_outside(path: &Path) -> Result<()> {
    match pool_around(path) {
        None => Ok(()),
        Some(pool) => Err(Error::invalid(format!(
            "{} belongs to the pool {}: choose a place outside of it",
            path.display(),
            pool.display()
        ))),
    }
}

/// The pool whose own place a path is, which need not be there.
fn pool_around(path: &Path) -> Option<PathBuf> {
    let path = real(path)?;
    let owns = |pool: &&Path| {
        let within = path.strip_prefix(pool).ok().and_then(|within| within.components().next());
        let is_own = within.is_none_or(|first| PARTS.iter().any(|own| first.as_os_str() == *own));
        is_own && [MARKER, TARGET_MARKER, COPY].iter().any(|marker| pool.join(marker).exists())
    };
    path.ancestors().find(owns).map(Path::to_owned)
}

/// Whether there are jobs or packs in a directory; one that is missing is empty.
pub(crate) fn holds_something(dir: &Path) -> Result<bool> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(Error::io("listing", dir, &e)),
    };
    for entry in entries {
        let name = entry.map_err(|e| Error::io("listing", dir, &e))?.file_name();
        // No job and no pack begins with a dot.
        if !name.to_str().is_some_and(|name| name.starts_with('.') || name == "lost+found") {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A target outside of the pool's own place must be empty when the pool is made, and no part of a pool, be
/// it the same.
pub(crate) fn refuse_used(paths: &PoolPaths, target: &Location) -> Result<()> {
    if target.is_within(&paths.root, &PARTS)
        || paths.log().at.iter().any(|log| target.is_within(log, &PARTS))
    {
        return Err(Error::invalid(format!(
            "{target} is within the `log` or `packs` of the pool itself: name another place as the target"
        )));
    }
    let not_empty = || {
        Err(Error::invalid(format!(
            "{} is not empty: name another place as the target",
            target.name("packs")
        )))
    };
    match target {
        Location::Directory(dir) if dir.is_file() => Err(Error::invalid(format!(
            "{target} is a file, not a directory: name another place as the target"
        ))),
        Location::Directory(dir) if holds_something(&dir.join("packs"))? => not_empty(),
        Location::Directory(dir) => check_outside(dir),
        Location::Bucket(location) => {
            location.check()?;
            check_outside_prefixes(location)?;
            let shards = location.open_target()?.list()?;
            if shards.is_empty() { Ok(()) } else { not_empty() }
        }
        Location::Etcd(_) => Err(keeps_no_packs(target)),
    }
}

/// As [`check_outside`], for a place in a bucket.
pub(crate) fn check_outside_prefixes(location: &S3Url) -> Result<()> {
    let own = |below: Option<&str>| below.is_none_or(|below| PARTS.contains(&below));
    let owners = location.ancestors().into_iter().filter(|(_, below)| own(below.as_deref()));
    for owner in owners.map(|(owner, _)| Location::Bucket(owner)) {
        for text in [TARGET_MARKER, MARKER, DESCRIPTOR, COPY] {
            if owner.has(text)? {
                return Err(Error::invalid(format!(
                    "{location} belongs to a pool ({} is there): name another place",
                    owner.name(text)
                )));
            }
        }
    }
    Ok(())
}

/// A log apart from the descriptor must be in a free place, that can keep one.
pub(crate) fn refuse_used_log(log: &Location, config: &PoolConfig) -> Result<()> {
    // One that was begun, and is to be made with the same places.
    let is_begun = || {
        let text = String::from_utf8(log.read(MARKER).ok()??).ok()?;
        let marker = Marker::parse(&text, MARKER).ok()?;
        (marker.log.is_some() && marker.log == Marker::of(config).log).then_some(())
    };
    let is_used = !log.open_log()?.jobs()?.is_empty();
    if !is_used && is_begun().is_some() {
        return Ok(());
    }
    if is_used || log.has(MARKER)? {
        return Err(Error::invalid(format!(
            "{log} holds the log of a pool already: name another place for this one's, or, to use that \
             pool, copy its {DESCRIPTOR}"
        )));
    }
    match log {
        Location::Directory(dir) => check_outside(dir),
        Location::Bucket(location) => check_outside_prefixes(location),
        // Those above may belong to others, who let nobody look.
        Location::Etcd(location) => location.check(),
    }
}

/// An etcd cluster was named where packs are to be.
pub(crate) fn keeps_no_packs(location: &Location) -> Error {
    Error::invalid(format!(
        "{location} can keep a pool's log, and no packs: name it with --log, beside a directory or a \
         bucket"
    ))
}

/// Finds out whether a place can keep a log: of several that append at once, one must win.
pub(crate) fn check_log_replica(log: &Location) -> Result<()> {
    let Location::Bucket(location) = log else { return Ok(()) };
    location.check()?;
    location.open_medium()?.check_conditional_put().map_err(|error| match error.kind() {
        outlive_types::ErrorKind::Invalid => error.context(format!(
            "{log} cannot keep a pool's log, only its packs: give the log another place with --log"
        )),
        _ => error,
    })
}

/// Refuses a place in memory for what has to outlive a restart of the host, unless the pool itself is in memory: then
/// nothing of it is to last. `why` it has to.
///
/// # Errors
/// `Invalid`.
pub(crate) fn refuse_memory(root: &Location, location: &Location, why: &str) -> Result<()> {
    let is_memory = |location: &Location| location.as_directory().is_some_and(is_in_memory);
    match is_memory(location) && !is_memory(root) {
        false => Ok(()),
        true => Err(Error::invalid(format!(
            "{location} is in memory, and {why}: name a directory on a disk, or a bucket"
        ))),
    }
}

/// Why a log has to outlive a restart of the host.
pub(crate) const LOG_STAYS: &str = "no checkpoint can be found without the log";

/// The same of a slow target, where the fast ones are in memory.
pub(crate) const SLOW_STAYS: &str =
    "a slow target is to keep what the host loses with the memory of the fast ones";

/// Refuses a place for a volatile target that is not in memory: what would be made anew there by and by may
/// be the mount point of a disk that is away.
pub(crate) fn check_in_memory(target: &Location) -> Result<()> {
    match target.as_directory() {
        Some(dir) if is_in_memory(dir) => Ok(()),
        _ => Err(Error::invalid(format!(
            "{target} is not in memory: a volatile target needs a directory on a tmpfs, as below /dev/shm; if one \
             should be there, mount it"
        ))),
    }
}

/// Makes the directories of a target outside of the pool's own place.
pub(crate) fn make_target(target: &Location) -> Result<()> {
    target.make(&["packs"])
}

/// Makes such a target the pool's.
pub(crate) fn write_target(target: &Location, marker: &Marker, rng: &dyn Rng) -> Result<()> {
    make_target(target)?;
    target.publish(TARGET_MARKER, &marker.to_text()?, rng)?;
    target.sync("packs")
}
