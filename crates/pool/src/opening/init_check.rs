//! Checks the locations of a new pool: which are free, and which belong to a pool already.

use crate::descriptor::config::PoolConfig;
use crate::descriptor::location::{is_within, real_path};
use crate::descriptor::marker::Marker;
use crate::descriptor::paths::{COPY, DESCRIPTOR, MARKER, PoolPaths};
use crate::host::is_in_memory;
use crate::opening::marker_check::TARGET_MARKER;
use outlive_backend::{Location, SmallFiles, TargetOptions};
use outlive_log::{ManifestLog, RecordLog};
use outlive_types::{Error, NoObserver, Result};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Directories of a pool that nothing else may write into.
const PARTS: [&str; 2] = ["log", "packs"];

/// Refuses a location that is a pool's own: its directory itself, or a path in its `log` or
/// `packs`. Data that is written there could replace parts of the pool.
///
/// # Errors
/// `Invalid`, naming the pool.
pub fn check_outside(path: &Path) -> Result<()> {
    match pool_around(path) {
        None => Ok(()),
        Some(pool) => Err(Error::invalid(format!(
            "{} belongs to the pool {}: choose a location outside of it",
            path.display(),
            pool.display()
        ))),
    }
}

/// Returns the pool that owns a path. The path need not exist.
fn pool_around(path: &Path) -> Option<PathBuf> {
    let path = real_path(path)?;
    let owns = |pool: &&Path| {
        let within = path.strip_prefix(pool).ok().and_then(|within| within.components().next());
        let is_own = within.is_none_or(|first| PARTS.iter().any(|own| first.as_os_str() == *own));
        is_own && [MARKER, TARGET_MARKER, COPY].iter().any(|marker| pool.join(marker).exists())
    };
    path.ancestors().find(owns).map(Path::to_owned)
}

/// Returns whether a directory holds jobs or packs; a missing one is empty.
pub(crate) fn holds_something(dir: &Path) -> Result<bool> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(Error::io("listing", dir, &e)),
    };
    for entry in entries {
        let name = entry.map_err(|e| Error::io("listing", dir, &e))?.file_name();
        // No name of a job or pack begins with a dot.
        if !name.to_str().is_some_and(|name| name.starts_with('.') || name == "lost+found") {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Refuses a target outside of the pool's own location if it is not empty, or is part of any pool,
/// even of this one.
pub(crate) fn refuse_used(paths: &PoolPaths, target: &Location) -> Result<()> {
    if is_within(target, &paths.root, &PARTS)
        || paths.log().at.iter().any(|log| is_within(target, log, &PARTS))
    {
        return Err(Error::invalid(format!(
            "{target} is within the `log` or `packs` of the pool itself: name another location as the target"
        )));
    }
    let not_empty = || {
        Err(Error::invalid(format!(
            "{} is not empty: name another location as the target",
            target.name("packs")
        )))
    };
    if !target.keeps_shards() {
        return Err(target.keeps_no_shards());
    }
    match target.as_directory() {
        Some(dir) if dir.is_file() => Err(Error::invalid(format!(
            "{target} is a file, not a directory: name another location as the target"
        ))),
        Some(dir) if holds_something(&dir.join("packs"))? => not_empty(),
        Some(dir) => check_outside(dir),
        None => {
            target.check()?;
            check_around(target)?;
            let shards = target.open_target(&plainly())?.list()?;
            if shards.is_empty() { Ok(()) } else { not_empty() }
        }
    }
}

/// How to open a target only to list it.
pub(crate) fn plainly() -> TargetOptions {
    TargetOptions { is_own: false, probe: None, watch: None, observer: Arc::new(NoObserver) }
}

/// As [`check_outside`], for any location.
pub(crate) fn check_around(location: &Location) -> Result<()> {
    if let Some(dir) = location.as_directory() {
        return check_outside(dir);
    }
    let own = |below: Option<&str>| below.is_none_or(|below| PARTS.contains(&below));
    for (owner, _) in location.around().into_iter().filter(|(_, below)| own(below.as_deref())) {
        for text in [TARGET_MARKER, MARKER, DESCRIPTOR, COPY] {
            if owner.has(text)? {
                return Err(Error::invalid(format!(
                    "{location} belongs to a pool ({} is there): name another location",
                    owner.name(text)
                )));
            }
        }
    }
    Ok(())
}

/// Refuses a location for a log apart from the descriptor if it is not free, or cannot keep a log.
pub(crate) fn refuse_used_log(log: &Location, config: &PoolConfig) -> Result<()> {
    // A log that was begun, and is to be made with the same replicas.
    let is_begun = || {
        let text = String::from_utf8(log.read(MARKER).ok()??).ok()?;
        let marker = Marker::parse(&text, MARKER).ok()?;
        (marker.log.is_some() && marker.log == Marker::of(config).log).then_some(())
    };
    let is_used = !RecordLog::over(log.open_medium()?).jobs()?.is_empty();
    if !is_used && is_begun().is_some() {
        return Ok(());
    }
    if is_used || log.has(MARKER)? {
        return Err(Error::invalid(format!(
            "{log} holds the log of a pool already: name another location for this one's, or, to use that \
             pool, copy its {DESCRIPTOR}"
        )));
    }
    check_around(log)
}

/// Finds out whether a location can keep a log: of several appends at once, one must win.
pub(crate) fn check_log_replica(log: &Location) -> Result<()> {
    log.check()?;
    log.check_records().map_err(|error| match error.kind() {
        outlive_types::ErrorKind::Invalid => error.context(format!(
            "{log} cannot keep a pool's log, only its packs: give the log another location with --log"
        )),
        _ => error,
    })
}

/// Refuses a location in memory for data that has to outlive a restart of the host; `why` is the
/// reason. If the pool itself is in memory, nothing of it is to last, so any location will do.
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

/// Reason why a log has to outlive a restart of the host.
pub(crate) const LOG_STAYS: &str = "no checkpoint can be found without the log";

/// Reason why a slow target has to, if the fast ones are in memory.
pub(crate) const SLOW_STAYS: &str =
    "a slow target is to keep what the host loses with the memory of the fast ones";

/// Refuses a location for a volatile target that is not in memory. Otherwise, a program that
/// recreates the target may write below the mount point of a disk that is away.
pub(crate) fn check_in_memory(target: &Location) -> Result<()> {
    match target.as_directory() {
        Some(dir) if is_in_memory(dir) => Ok(()),
        _ => Err(Error::invalid(format!(
            "{target} is not in memory: a volatile target needs a directory on a tmpfs, as below /dev/shm; if one \
             should be there, mount it"
        ))),
    }
}

/// Makes the directories of a target outside of the pool's own location.
pub(crate) fn make_target(target: &Location) -> Result<()> {
    target.make_folders(&["packs"])
}

/// Makes such a target, with the pool's marker.
pub(crate) fn write_target(target: &Location, marker: &Marker) -> Result<()> {
    make_target(target)?;
    target.write_new(TARGET_MARKER, marker.to_text()?.as_bytes())?;
    target.sync_folder("packs")
}
