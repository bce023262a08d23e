//! Checks whether a directory is a pool's: its descriptor and markers, and whether they still
//! match.

use crate::descriptor::compare::{compare, text};
use crate::descriptor::config::{FormatConfig, PoolConfig};
use crate::descriptor::marker::{Marker, This};
use crate::descriptor::paths::{COPY, DESCRIPTOR, MARKER, PoolPaths};
use crate::log::open::check_log;
use crate::targets::TargetTable;
use outlive_backend::{Location, SmallFiles};
use outlive_types::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};

/// Copy of the log's marker, on a target outside of the pool's own location: packs of this pool are
/// there.
pub(crate) const TARGET_MARKER: &str = "packs/.pool.toml";

/// Makes sure that the log and the descriptor of this pool are still there. They may have been
/// moved away, deleted or unmounted since it was opened, and the next program that opens the pool
/// would refuse data that is written there now. A mistake in the descriptor does not matter: a
/// person is editing it, and can correct it.
///
/// # Errors
/// `Retry` if the log or the target is missing: their data may be whole. `Invalid` if the
/// descriptor or the pool is missing, or belongs to another pool.
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
        // Each call to a log of several replicas finds out by itself which are there, and the check
        // of the table of targets below asks a majority.
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

/// Returns the configuration of the pool at `root`.
pub(crate) fn read_descriptor(root: &Location) -> Result<PoolConfig> {
    PoolConfig::parse(&read_text(root)?, &root.name(DESCRIPTOR))
}

/// Returns its text.
pub(crate) fn read_text(root: &Location) -> Result<String> {
    text(read_bytes(root)?, &root.name(DESCRIPTOR))
}

/// Returns the bytes of its descriptor.
fn read_bytes(root: &Location) -> Result<Vec<u8>> {
    match root.read(DESCRIPTOR)? {
        Some(bytes) => Ok(bytes),
        None if root.has(MARKER)? || root.has(COPY)? => Err(descriptor_is_missing(root)),
        None => Err(Error::invalid(format!(
            "{root} is not a pool (it has no {DESCRIPTOR}): make one with `outlive pool init`"
        ))),
    }
}

/// Returns whether a directory is a pool's own, even if its descriptor is lost.
pub fn is_pool(dir: &Path) -> bool {
    [DESCRIPTOR, MARKER, COPY].iter().any(|name| dir.join(name).exists())
}

/// Returns the error for a pool that has lost its descriptor.
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

/// Refuses a target without packs of this pool: it is not mounted, or another one is. Refuses
/// another target of the pool than `id`. A target in the pool's own location needs no marker: the
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
            target.advice()
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

/// Returns the directories of a pool's packs on this machine that are not in its own directory.
pub(crate) fn packs_elsewhere(
    paths: &PoolPaths,
    config: &PoolConfig,
    table: Option<&TargetTable>,
) -> Vec<PathBuf> {
    let elsewhere = match table.filter(|_| config.target.len() > 1) {
        // One of several may be silent.
        Some(table) => {
            let elsewhere = config.target.iter().filter(|row| !table.locations().is_own(row));
            elsewhere.filter_map(|row| row.seen_from(&paths.root).ok()).collect()
        }
        None => config.locations_elsewhere(&paths.root).unwrap_or_default(),
    };
    elsewhere.iter().filter_map(|it| Some(it.as_directory()?.join("packs"))).collect()
}
