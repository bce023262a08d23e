//! Makes a pool in a directory, and opens one.

use crate::config::{FormatConfig, PoolConfig, Tuning};
use crate::environment::Environment;
use crate::location::Location;
use crate::marker::{Marker, targets_of};
use crate::place::{
    DESCRIPTOR, MARKER, check_marker, check_target, descriptor_is_missing, read_descriptor,
};
use crate::places::{
    as_if_made, check_outside, holds_something, make_target, real, refuse_used, write_target,
};
use crate::pool::Pool;
use crate::redundancy::TargetConfig;
use crate::table::DirectoryTable;
use crate::targets::Member;
use crate::texts::publish_text;
use outlive_target::{DirectoryLog, make_dir_durable, sync_dir};
use outlive_types::{Error, Result, Rng};
use std::fs;
use std::io::ErrorKind;
use std::path::{self, Path};
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

#[cfg(test)]
mod tests;
