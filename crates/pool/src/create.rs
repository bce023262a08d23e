//! Makes a pool in a directory, and opens one.

use crate::config::{FormatConfig, PoolConfig, Tuning};
use crate::environment::Environment;
use crate::location::Location;
use crate::marker::{Marker, targets_of};
use crate::place::{
    DESCRIPTOR, MARKER, TARGET_MARKER, check_marker, check_target, descriptor_is_missing,
    read_descriptor,
};
use crate::pool::Pool;
use crate::redundancy::TargetConfig;
use crate::table::DirectoryTable;
use crate::targets::Member;
use outlive_target::{DirectoryLog, make_dir_durable, publish, sync_dir};
use outlive_types::{Error, Result, Rng};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{self, Component, Path, PathBuf};
use std::sync::Arc;

/// Makes a pool in `dir`, which must be empty or not exist yet.
///
/// # Errors
/// `Invalid` if a pool or anything else is there, or for impossible values; `Full`.
pub fn create(dir: &Path, mut config: PoolConfig, env: Environment) -> Result<Pool> {
    if config.target.len() > 1 {
        for (id, target) in (1..).zip(&mut config.target) {
            target.id = Some(id);
        }
    }
    config.check()?;
    config.redundancy.check_targets(&config.target)?;
    if dir.join(DESCRIPTOR).exists() {
        return Err(Error::invalid(format!("{} is a pool already", dir.display())));
    }
    refuse_strangers(dir)?;
    let mut places = Vec::new();
    for Location::Directory(root) in config.locations(dir)? {
        let root = as_if_made(dir, root);
        if !Location::Directory(root.clone()).is_in(dir) {
            refuse_used(dir, &root)?;
        }
        let place = real(&root);
        if place.is_some() && places.contains(&place) {
            let what =
                format!("{} is named twice as a target: name each place once", root.display());
            return Err(Error::invalid(what));
        }
        places.push(place);
    }
    write_descriptor(dir, config, &*env.rng)?;
    open(dir, env)
}

/// Opens the pool in `dir`, a pool's directory or its `pool.toml`.
///
/// # Errors
/// `Invalid` if there is no pool or one of another format.
pub fn open(dir: &Path, env: Environment) -> Result<Pool> {
    let named = if dir.file_name().is_some_and(|name| name == DESCRIPTOR) {
        match dir.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        }
    } else {
        dir
    };
    let mut config = read_descriptor(named)?;
    let marker = check_marker(named, &config.format)?;
    let descriptor = named.join(DESCRIPTOR);
    if config.redundancy.geometry(0) != marker.redundancy.geometry(0) {
        return Err(Error::invalid(format!(
            "{}: redundancy is {}, and the pool was made with {}: put it right; to change it, copy the \
             checkpoints to a new pool",
            descriptor.display(),
            config.redundancy.describe(),
            marker.redundancy.describe()
        )));
    }
    let checked =
        |targets: Vec<TargetConfig>| config.redundancy.check_targets(&targets).map(|()| targets);
    let targets = targets_of(&config, &marker).and_then(checked);
    config.target = targets.map_err(|error| error.context(descriptor.display()))?;
    // A program may change its directory between now and its saves.
    let dir = path::absolute(named).unwrap_or_else(|_| named.to_owned());
    let mut own = config.locations(&dir)?.into_iter().filter(|location| location.is_in(&dir));
    if own.next().is_some() && own.next().is_some() {
        return Err(Error::invalid(format!(
            "{}: two targets are the pool's own directory: put the locations right",
            descriptor.display()
        )));
    }
    let log = Arc::new(DirectoryLog::open(&dir));
    let table = Arc::new(DirectoryTable::new(&dir, &config.format, &env));
    let pool = Pool::of(Vec::new(), config, log, env).at(named).in_directory(&dir);
    let pool = pool.with_table(table)?;
    pool.targets().check()?;
    for away in pool.targets().members().iter().filter_map(Member::away) {
        pool.warn(format!("the pool does without a target: {}", away.message()));
    }
    Ok(pool)
}

/// Opens the pool in `dir`, or makes one there if the directory is empty or missing.
///
/// # Errors
/// Those of [`create`] and [`open`].
pub fn open_or_create(dir: &Path, env: Environment) -> Result<Pool> {
    let is_descriptor = dir.file_name().is_some_and(|name| name == DESCRIPTOR);
    if !is_descriptor && !dir.join(DESCRIPTOR).exists() {
        refuse_strangers(dir)?;
        let mut id = [0; 16];
        env.rng.fill(&mut id);
        let config = PoolConfig::new(FormatConfig::new(id), Tuning::default());
        write_descriptor(dir, config, &*env.rng)?;
    }
    open(dir, env)
}

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
fn real(path: &Path) -> Option<PathBuf> {
    let path = path::absolute(path).ok()?;
    let there = path.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    let (above, real) = there?;
    let rest = path.strip_prefix(above).ok()?.components();
    Some(real.components().chain(rest).collect())
}

/// A path that begins in `dir`, as it can be followed before `dir` is made: no system looks for what is
/// beside a directory that is not there.
fn as_if_made(dir: &Path, path: PathBuf) -> PathBuf {
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
fn holds_something(dir: &Path) -> Result<bool> {
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

/// A directory with other people's files must not become a pool by a typing error, nor what is left of
/// a pool another one, nor a part of a pool.
fn refuse_strangers(dir: &Path) -> Result<()> {
    let is_made = || dir.join(MARKER).exists();
    // Looked at again: another may have made this very pool meanwhile.
    if !is_made()
        && let Err(error) = check_outside(dir)
        && !is_made()
    {
        return Err(error);
    }
    match fs::read_dir(dir) {
        Ok(entries) => {
            for entry in entries {
                let entry = entry.map_err(|e| Error::io("listing", dir, &e))?;
                let name = entry.file_name();
                // Another process may be making the same pool right now.
                let ours = name.to_str().is_some_and(|n| n.starts_with(".pool.toml."))
                    || name == DESCRIPTOR
                    || name == "packs"
                    || name == "log"
                    || name == "lost+found";
                if !ours {
                    return Err(Error::invalid(format!(
                        "{} is not a pool and not empty (it holds {}): name an empty or new directory",
                        dir.display(),
                        Path::new(&name).display()
                    )));
                }
            }
            for sub in ["packs", "log"].map(|sub| dir.join(sub)) {
                // Looked at last: who makes the same pool right now may have gone on to save.
                if holds_something(&sub)? && !dir.join(DESCRIPTOR).exists() {
                    return Err(descriptor_is_missing(dir));
                }
            }
            Ok(())
        }
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Err(e) if e.kind() == ErrorKind::NotADirectory => {
            Err(Error::invalid(format!("{} is a file, not a directory", dir.display())))
        }
        Err(e) => Err(Error::io("listing", dir, &e)),
    }
}

/// Marker and descriptor appear whole or not at all, in this order, and the first of two makers wins: who
/// finds a marker makes that pool, with its target unless another is asked for.
fn write_descriptor(dir: &Path, config: PoolConfig, rng: &dyn Rng) -> Result<()> {
    let io = |doing: &'static str, path: &Path| {
        let path = path.to_owned();
        move |e: std::io::Error| Error::io_named(doing, &path, &e)
    };
    make_dir_durable(dir).map_err(io("making", dir))?;
    for sub in ["packs", "log"] {
        let sub = dir.join(sub);
        fs::create_dir_all(&sub).map_err(io("making", &sub))?;
    }
    for Location::Directory(root) in config.locations_elsewhere(dir)? {
        // Before anything names it: a target that cannot be made is no part of any pool.
        make_target(&root)?;
    }
    let marker = dir.join(MARKER);
    publish_text(&marker, &Marker::of(&config).to_text()?, rng)?;
    let text = fs::read_to_string(&marker).map_err(io("reading", &marker))?;
    let made = Marker::parse(&text, &marker.display().to_string())?;
    let log = dir.join("log");
    sync_dir(&log).map_err(io("syncing", &log))?;
    // A descriptor without `packs` and `log` beside it would be a pool that is refused.
    sync_dir(dir).map_err(io("syncing", dir))?;
    let mine = config.target;
    let target = if mine.len() > 1 || mine.is_empty() { made.target.clone() } else { mine };
    let (format, redundancy) = (made.format.clone(), made.redundancy.clone());
    let config = PoolConfig { format, redundancy, target, ..config };
    let made = Marker::of(&config);
    for (number, location) in config.locations(dir)?.into_iter().enumerate() {
        if !location.is_in(dir) {
            let Location::Directory(root) = location;
            let id = config.target.get(number).and_then(|row| row.id);
            write_target(&root, &made.on(id), rng)?;
            check_target(dir, &config.format, &root, id)?;
        }
    }
    publish_text(&dir.join(DESCRIPTOR), &config.to_text()?, rng)?;
    sync_dir(dir).map_err(io("syncing", dir))?;
    // Of `.` and of a link the path does not name the parent. If that cannot be synced, the pool relies
    // on whoever made `dir`.
    let parent = dir.canonicalize().ok().and_then(|dir| dir.parent().map(Path::to_owned));
    let _ = parent.map(|parent| sync_dir(&parent));
    Ok(())
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
fn make_target(root: &Path) -> Result<()> {
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

/// Puts another text in the place of a file of a pool, in one step, durably.
pub(crate) fn replace_text(path: &Path, text: &str, rng: &dyn Rng) -> Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    let temporary = write_temporary(dir, text, rng)?;
    fs::rename(&temporary, path).map_err(|e| Error::io("replacing", path, &e))?;
    sync_dir(dir).map_err(|e| Error::io("syncing", dir, &e))
}

/// Makes a file of a pool, unless it is there.
fn publish_text(path: &Path, text: &str, rng: &dyn Rng) -> Result<()> {
    // Beside it: the log may be a file system of its own.
    let dir = path.parent().unwrap_or(Path::new("."));
    let temporary = write_temporary(dir, text, rng)?;
    let linked = match publish(&temporary, path) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(Error::io("making", path, &e)),
    };
    // Whether or not it worked, the temporary file has served; a leftover would do no harm.
    let _ = fs::remove_file(&temporary);
    linked
}

/// Writes a text into a new file with a name of its own.
fn write_temporary(dir: &Path, text: &str, rng: &dyn Rng) -> Result<PathBuf> {
    // Random: in containers that share the directory, processes have equal numbers.
    let mut random = [0; 8];
    rng.fill(&mut random);
    let temporary = dir.join(format!(".{DESCRIPTOR}.{:016x}", u64::from_le_bytes(random)));
    let write = || -> std::io::Result<()> {
        let mut file = File::create_new(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    write().map_err(|e| {
        let _ = fs::remove_file(&temporary);
        Error::io("writing", &temporary, &e)
    })?;
    Ok(temporary)
}

#[cfg(test)]
mod tests;
