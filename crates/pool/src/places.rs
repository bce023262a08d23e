//! Places that a pool is made in: which belong to a pool already, and which are free.

use crate::marker::Marker;
use crate::place::{MARKER, TARGET_MARKER};
use crate::texts::publish_text;
use outlive_target::{make_dir_durable, sync_dir};
use outlive_types::{Error, Result, Rng};
use std::fs;
use std::io::ErrorKind;
use std::path::{self, Component, Path, PathBuf};

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
        let is_own =
            within.is_none_or(|first| ["log", "packs"].iter().any(|own| first.as_os_str() == *own));
        is_own && [MARKER, TARGET_MARKER].iter().any(|marker| pool.join(marker).exists())
    };
    path.ancestors().find(owns).map(Path::to_owned)
}

/// A path without links, as far as it is there.
pub(crate) fn real(path: &Path) -> Option<PathBuf> {
    let path = path::absolute(path).ok()?;
    let there = path.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    let (above, real) = there?;
    let rest = path.strip_prefix(above).ok()?.components();
    Some(real.components().chain(rest).collect())
}

/// A path that begins in `dir`, as it can be followed before `dir` is made: no system looks for what is
/// beside a directory that is not there.
pub(crate) fn as_if_made(dir: &Path, path: PathBuf) -> PathBuf {
    let Ok(rest) = path.strip_prefix(dir) else { return path };
    let Some(mut followed) = real(dir).filter(|_| !dir.exists()) else { return path };
    for part in rest.components() {
        match part {
            // Of what is there nothing is a link any more, and what is not there is none.
            Component::ParentDir => drop(followed.pop()),
            part => followed.push(part),
        }
    }
    followed
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

/// A target outside of the pool's directory must be empty when the pool is made, and no part of a pool,
/// be it the same.
pub(crate) fn refuse_used(dir: &Path, root: &Path) -> Result<()> {
    let is_own = |(dir, root): (PathBuf, PathBuf)| {
        ["log", "packs"].iter().any(|own| root.starts_with(dir.join(own)))
    };
    if real(dir).zip(real(root)).is_some_and(is_own) {
        return Err(Error::invalid(format!(
            "{} is within the `log` or `packs` of the pool itself: name another directory as the target",
            root.display()
        )));
    }
    if root.is_file() {
        return Err(Error::invalid(format!(
            "{} is a file, not a directory: name another place as the target",
            root.display()
        )));
    }
    let packs = root.join("packs");
    match holds_something(&packs)? {
        true => Err(Error::invalid(format!(
            "{} is not empty: name another directory as the target",
            packs.display()
        ))),
        false => check_outside(root),
    }
}

/// Makes the directories of a target outside of the pool's.
pub(crate) fn make_target(root: &Path) -> Result<()> {
    for dir in [root, &root.join("packs")] {
        make_dir_durable(dir).map_err(|e| Error::io_named("making", dir, &e))?;
    }
    Ok(())
}

/// Makes such a target the pool's.
pub(crate) fn write_target(root: &Path, marker: &Marker, rng: &dyn Rng) -> Result<()> {
    make_target(root)?;
    let packs = root.join("packs");
    publish_text(&root.join(TARGET_MARKER), &marker.to_text()?, rng)?;
    sync_dir(&packs).map_err(|e| Error::io_named("syncing", &packs, &e))
}
