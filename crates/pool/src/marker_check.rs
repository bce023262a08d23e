//! What says that a directory is a pool's: descriptor and markers, and whether they still fit.

use crate::compare::{compare, look_for, text};
use crate::config::{FormatConfig, PoolConfig};
use crate::location::Location;
use crate::log_open::check_log;
use crate::marker::{Marker, This};
use crate::paths::{COPY, DESCRIPTOR, MARKER, PoolPaths};
use crate::targets::TargetTable;
use outlive_types::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};

/// What the log's marker says, on a target outside of the pool's own place: packs of this pool are there.
pub(crate) const TARGET_MARKER: &str = "packs/.pool.toml";

/// Makes sure that the pool of this format is still there, log and descriptor: it may have been moved
/// away, deleted or unmounted since it was opened, and whatever is written there now would be refused by
/// the next one who opens it. A mistake in the descriptor is another matter: somebody is editing it, and
/// can put it right.
///
/// # Errors
/// `Retry` if the log or the target is missing: what is on them may be whole. `Invalid` if the descriptor or the pool
/// is missing, or is another's.
pub(crate) fn check(
    paths: &PoolPaths,
    config: &PoolConfig,
    targets: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let format = &config.format;
    let check = move || {
        let there = PoolConfig::pool_id_of(&String::from_utf8_lossy(&read_bytes(&paths.root)?));
        if there.is_some_and(|pool_id| pool_id != format.pool_id) {
            return Err(Error::invalid("another pool is in its place: open that one"));
        }
        // Each call to a log of several places finds out by itself which are there, and the look at the table
        // of targets below asks a majority.
        if paths.log().at.len() == 1 {
            check_log(paths, format)?;
        }
        targets()
    };
    check().map_err(|error| {
        let error = match error.kind() {
            ErrorKind::Damaged => Error::retry(error.message()),
            _ => error,
        };
        error.context(format!(
            "the pool {} is not as it was opened, so nothing is saved",
            paths.root
        ))
    })
}

/// The configuration that the pool at `root` has.
pub(crate) fn read_descriptor(root: &Location) -> Result<PoolConfig> {
    PoolConfig::parse(&read_text(root)?, &root.name(DESCRIPTOR))
}

/// Its text.
pub(crate) fn read_text(root: &Location) -> Result<String> {
    text(read_bytes(root)?, &root.name(DESCRIPTOR))
}

/// The bytes of its descriptor.
fn read_bytes(root: &Location) -> Result<Vec<u8>> {
    match root.read(DESCRIPTOR)? {
        Some(bytes) => Ok(bytes),
        None if root.has(MARKER)? || root.has(COPY)? => Err(descriptor_is_missing(root)),
        None => Err(Error::invalid(format!(
            "{root} is not a pool (it has no {DESCRIPTOR}): make one with `outlive pool init`"
        ))),
    }
}

/// Whether a directory is a pool's own, also if its descriptor is lost.
pub fn is_pool(dir: &Path) -> bool {
    [DESCRIPTOR, MARKER, COPY].iter().any(|name| dir.join(name).exists())
}

/// What to do about a pool that has lost its descriptor.
pub(crate) fn descriptor_is_missing(root: &Location) -> Error {
    let copy = match root.has(COPY).unwrap_or(false) {
        true => format!("a copy is in {}", root.name(COPY)),
        false => format!(
            "a copy of its [format] section is in {}; that section alone will do",
            root.name(MARKER)
        ),
    };
    Error::invalid(format!(
        "{root} holds a pool whose {DESCRIPTOR} is missing: put it back ({copy}), or name an empty or new \
         directory"
    ))
}

/// Refuses a target that has no packs of this pool's: it is not mounted, or another is; or that is another
/// of its targets than the one with the number `id`. One in the pool's own place needs no marker: the
/// descriptor beside it says enough.
///
/// # Errors
/// `Damaged` if it is missing, `Invalid` if it is another one.
pub(crate) fn check_target(
    paths: &PoolPaths,
    format: &FormatConfig,
    target: &Location,
    id: Option<u32>,
) -> Result<()> {
    let name = target.name(TARGET_MARKER);
    let Some(bytes) = target.read(TARGET_MARKER)? else {
        let (what, moved) = match id {
            Some(id) => (
                format!("target {id}"),
                format!("if it was moved, set its location in {DESCRIPTOR}"),
            ),
            None => (
                "the target".to_owned(),
                format!(
                    "if its location was changed, move `packs` there, and copy {} to that place",
                    paths.marker()
                ),
            ),
        };
        return Err(Error::damaged(format!(
            "{what} of {} is missing ({name} is not there): {}; {moved}; nothing is read from it or written \
             to it meanwhile",
            paths.root,
            look_for(target)
        )));
    };
    let marker = Marker::parse(&text(bytes, &name)?, &name)?;
    compare(paths, format, &name, &marker, "target")?;
    match (marker.this, id) {
        (Some(This { id: there }), Some(id)) if there != id => Err(Error::invalid(format!(
            "{target} holds target {there} of this pool, and {} says that it is target {id}: put the \
             locations right",
            paths.descriptor()
        ))),
        _ => Ok(()),
    }
}

/// The directories of a pool's packs on this machine that are not in its own.
pub(crate) fn packs_elsewhere(
    paths: &PoolPaths,
    config: &PoolConfig,
    table: Option<&TargetTable>,
) -> Vec<PathBuf> {
    let elsewhere = match table.filter(|_| config.target.len() > 1) {
        // One of several may not answer.
        Some(table) => {
            let elsewhere = config.target.iter().filter(|row| !table.locations().is_own(row));
            elsewhere.filter_map(|row| row.seen_from(&paths.root).ok()).collect()
        }
        None => config.locations_elsewhere(&paths.root).unwrap_or_default(),
    };
    elsewhere.iter().filter_map(|it| Some(it.as_directory()?.join("packs"))).collect()
}
