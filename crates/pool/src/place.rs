//! What says that a directory is a pool's: descriptor and markers, and whether they still fit.

use crate::config::{FormatConfig, PoolConfig};
use crate::location::Location;
use crate::marker::{Marker, This};
use outlive_types::{Error, Result};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The descriptor of a pool, in its directory.
pub(crate) const DESCRIPTOR: &str = "pool.toml";
/// A copy of the descriptor's `[format]` and target within the log: what says that this is the pool's
/// log, and its `[format]` as it was made. No job has this name (jobs begin with another character).
pub(crate) const MARKER: &str = "log/.pool.toml";
/// The same on a target outside of the pool's directory: what says that packs of this pool are there.
pub(crate) const TARGET_MARKER: &str = "packs/.pool.toml";

/// Makes sure that `dir` still holds the pool of this format, log and descriptor: it may have been
/// moved away, deleted or unmounted since it was opened, and whatever is written there now would be
/// refused by the next one who opens it. A mistake in the descriptor is another matter: somebody is
/// editing it, and can put it right.
///
/// # Errors
/// `Damaged` if the log or the target is missing, `Invalid` if the descriptor or the pool is, or is
/// another's.
pub(crate) fn check(
    dir: &Path,
    config: &PoolConfig,
    targets: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let format = &config.format;
    let check = move || {
        let there = PoolConfig::pool_id_of(&String::from_utf8_lossy(&read_bytes(dir)?));
        if there.is_some_and(|pool_id| pool_id != format.pool_id) {
            return Err(Error::invalid("another pool is in its place: open that one"));
        }
        check_marker(dir, format)?;
        targets()
    };
    check().map_err(|error| {
        error.context(format!(
            "the pool {} is not as it was opened, so nothing is saved",
            dir.display()
        ))
    })
}

/// The configuration that the pool in `dir` has.
pub(crate) fn read_descriptor(dir: &Path) -> Result<PoolConfig> {
    let path = dir.join(DESCRIPTOR).display().to_string();
    let text = String::from_utf8(read_bytes(dir)?)
        .map_err(|_| Error::invalid(format!("{path} is not text")))?;
    PoolConfig::parse(&text, &path)
}

/// Its descriptor.
pub(crate) fn read_bytes(dir: &Path) -> Result<Vec<u8>> {
    let path = dir.join(DESCRIPTOR);
    match fs::read(&path) {
        Ok(bytes) => Ok(bytes),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Err(match dir.join(MARKER).exists() {
                true => descriptor_is_missing(dir),
                false => Error::invalid(format!(
                    "{} is not a pool (it has no {DESCRIPTOR}): make one with `outlive pool init`",
                    dir.display()
                )),
            })
        }
        Err(e) => Err(Error::io("reading", &path, &e)),
    }
}

pub(crate) fn descriptor_is_missing(dir: &Path) -> Error {
    Error::invalid(format!(
        "{} holds a pool whose {DESCRIPTOR} is missing: put it back (a copy of its [format] \
         section is in {}; that section alone will do), or name an empty or new directory",
        dir.display(),
        dir.join(MARKER).display()
    ))
}

/// Refuses a log that is not this pool's (another file system is mounted there, or none), and a
/// descriptor whose `[format]` was changed: checkpoints would seem to be gone, and a gc would delete what
/// they need. Answers the log's marker.
pub(crate) fn check_marker(dir: &Path, format: &FormatConfig) -> Result<Marker> {
    let path = dir.join(MARKER);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Err(Error::damaged(format!(
                "the log of {} is missing ({} is not there): if it lies on a file system of its \
                 own, mount that; nothing is read or written without it",
                dir.display(),
                path.display()
            )));
        }
        Err(e) => return Err(Error::io("reading", &path, &e)),
    };
    let marker = Marker::parse(&text, &path.display().to_string())?;
    compare(dir, format, &path, &marker, "log").map(|()| marker)
}

/// Refuses a target at `root` that has no packs of this pool's: it is not mounted, or another is; or that
/// is another of its targets than the one with the number `id`. One in the pool's own directory needs no
/// marker: the log beside it has one.
///
/// # Errors
/// `Damaged` if it is missing, `Invalid` if it is another one.
pub(crate) fn check_target(
    dir: &Path,
    format: &FormatConfig,
    root: &Path,
    id: Option<u32>,
) -> Result<()> {
    let path = root.join(TARGET_MARKER);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            let (what, moved) = match id {
                Some(id) => (
                    format!("target {id}"),
                    format!("if it was moved, set its location in {DESCRIPTOR}"),
                ),
                None => (
                    "the target".to_owned(),
                    format!(
                        "if its location was changed, move `packs` there, and copy {} to that place",
                        dir.join(MARKER).display()
                    ),
                ),
            };
            return Err(Error::damaged(format!(
                "{what} of {} is missing ({} is not there): if it lies on a file system of its own, \
                 mount that; {moved}; nothing is read from it or written to it meanwhile",
                dir.display(),
                path.display(),
            )));
        }
        Err(e) => return Err(Error::io("reading", &path, &e)),
    };
    let marker = Marker::parse(&text, &path.display().to_string())?;
    compare(dir, format, &path, &marker, "target")?;
    match (marker.this, id) {
        (Some(This { id: there }), Some(id)) if there != id => Err(Error::invalid(format!(
            "{} holds target {there} of this pool, and {} says that it is target {id}: put the \
             locations right",
            root.display(),
            dir.join(DESCRIPTOR).display()
        ))),
        _ => Ok(()),
    }
}

/// Compares a descriptor's `[format]` with that of the marker at `path`, which is in `what`.
fn compare(
    dir: &Path,
    format: &FormatConfig,
    path: &Path,
    marker: &Marker,
    what: &str,
) -> Result<()> {
    let made = &marker.format;
    if made == format {
        return Ok(());
    }
    let named = |config: &FormatConfig| {
        let FormatConfig { pool_id, container_bytes, pack_bytes, chunk_bytes_max, .. } = config;
        format!(
            "pool_id {pool_id}, container_bytes {container_bytes}, pack_bytes {pack_bytes}, \
             chunk_bytes_max {chunk_bytes_max}"
        )
    };
    Err(Error::invalid(format!(
        "{} does not belong to the pool's {what}: its [format] says {}, that of {} says {}; put it \
         right",
        dir.join(DESCRIPTOR).display(),
        named(format),
        path.display(),
        named(made)
    )))
}

/// The directories of the packs of the pool in `dir` that are elsewhere.
pub(crate) fn packs_elsewhere(dir: &Path, config: &PoolConfig) -> Vec<PathBuf> {
    let elsewhere = config.locations_elsewhere(dir).unwrap_or_default();
    elsewhere.into_iter().map(|Location::Directory(root)| root.join("packs")).collect()
}
