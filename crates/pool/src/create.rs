//! Makes a pool in a directory or a bucket, and opens one.

use crate::descriptor::config::{FormatConfig, LogConfig, PoolConfig, Tuning};
use crate::descriptor::encryption::{ENCRYPTION, EncryptionConfig, copy_key};
use crate::descriptor::location::{as_if_made, of_pool, real};
use crate::descriptor::marker::Marker;
use crate::descriptor::paths::{COPY, DESCRIPTOR, MARKER, PoolPaths};
use crate::descriptor::redundancy::{TargetConfig, Tier};
use crate::environment::Environment;
use crate::log::open::{check_log, open_log};
use crate::log::replicas::{check_replica, marker_in};
use crate::opening::home_targets::HomeTargets;
use crate::opening::init_check::{
    LOG_STAYS, SLOW_STAYS, check_around, check_in_memory, check_log_replica, check_outside,
    holds_something, make_target, plainly, refuse_memory, refuse_used, refuse_used_log,
    write_target,
};
use crate::opening::marker_check::{
    TARGET_MARKER, check_target, descriptor_is_missing, read_descriptor,
};
use crate::opening::rewrite::make_copy;
use crate::pool::Pool;
use crate::repair::membership::staying;
use crate::targets::{Member, TargetSet, TargetTable};
use outlive_backend::{Location, SmallFiles};
use outlive_encrypt::PoolKey;
use outlive_log::ManifestLog;
use outlive_registry::directory;
use outlive_types::{Error, Result};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

/// Makes a pool in `dir`, a directory or `s3://BUCKET/PREFIX`, which must be empty or new.
///
/// # Errors
/// `Invalid` if a pool or anything else is there, or for impossible values; `Full` without space.
pub fn create(dir: &Path, mut config: PoolConfig, env: Environment) -> Result<Pool> {
    let is_volatile = config.target.iter().any(|target| target.volatile);
    if config.target.len() > 1 || is_volatile {
        for (id, target) in (1..).zip(&mut config.target) {
            target.id = Some(id);
        }
    }
    config.check()?;
    config.redundancy.check_targets(&config.target)?;
    let root = of_pool(dir, DESCRIPTOR)?;
    if root.has(DESCRIPTOR)? {
        return Err(Error::invalid(format!("{root} is a pool already")));
    }
    refuse_strangers(&root)?;
    let paths = PoolPaths::of(root.clone(), &config)?;
    let mut locations = Vec::new();
    for log in &paths.log().at {
        if paths.is_elsewhere(log) {
            refuse_used_log(log, &config)?;
            if is_volatile {
                refuse_memory(&root, log, LOG_STAYS)?;
            }
        }
        let location = real(&as_if_made(&root, log.clone()));
        if location.is_some() && locations.contains(&location) {
            return Err(Error::invalid(format!(
                "{log} is named twice as a log replica: name each location once"
            )));
        }
        locations.push(location);
    }
    locations.clear();
    for (number, target) in config.locations(&root)?.into_iter().enumerate() {
        let row = config.target.get(number);
        if row.is_some_and(TargetConfig::is_vacant) {
            continue;
        }
        if is_volatile && row.is_some_and(|row| row.tier == Tier::Slow) {
            refuse_memory(&root, &target, SLOW_STAYS)?;
        }
        if row.is_some_and(|row| row.volatile) {
            check_in_memory(&target)?;
            if target.is_same(&root) {
                return Err(Error::invalid(format!(
                    "{target} is the pool's own directory: put a volatile target elsewhere, so that the log \
                     outlives it"
                )));
            }
        }
        let target = as_if_made(&root, target);
        if !target.is_same(&root) {
            refuse_used(&paths, &target)?;
        }
        let location = real(&target);
        if location.is_some() && locations.contains(&location) {
            return Err(Error::invalid(format!(
                "{target} is named twice as a target: name each location once"
            )));
        }
        locations.push(location);
    }
    if !write_descriptor(&paths, config)? {
        return Err(Error::invalid(format!(
            "another program has just made a pool in {root}, so this command has made none; delete the markers that it \
             has left in its log replicas and its targets ({MARKER}, {TARGET_MARKER})"
        )));
    }
    open(dir, env)
}

/// Opens the pool in `dir`, which is a pool's directory, its `pool.toml`, or `s3://BUCKET/PREFIX`.
///
/// # Errors
/// `Invalid` if there is no pool or one of another format. If more targets are away than the
/// redundancy makes up for, and no slow one is there: the reason why they are away.
pub fn open(dir: &Path, env: Environment) -> Result<Pool> {
    open_if(dir, env, TargetSet::check_readable)
}

/// As [`open`], but one target is enough: some of the pool's data can be read, and its targets can
/// be replaced.
///
/// # Errors
/// `Invalid` if there is no pool or one of another format; if all targets are away, the reason of
/// the first.
pub fn open_degraded(dir: &Path, env: Environment) -> Result<Pool> {
    open_if(dir, env, TargetSet::check_any)
}

/// As [`open`], but no target need be there: a node is to take a seat, or comes back to its own.
///
/// # Errors
/// `Invalid` if there is no pool or one of another format, or if it has no seats.
pub fn open_to_take_a_seat(dir: &Path, env: Environment) -> Result<Pool> {
    let pool = open_if(dir, env, |_| Ok(None))?;
    match pool.config().target.iter().any(TargetConfig::is_seat) {
        true => Ok(pool),
        false => Err(Error::invalid(format!(
            "{} has no seats that a host could take: make such a pool with `outlive pool init --seats N`",
            dir.display()
        ))),
    }
}

/// Opens a pool if `check` finds enough targets. It may return why nothing can be saved.
fn open_if(
    dir: &Path,
    env: Environment,
    check: impl Fn(&TargetSet) -> Result<Option<Error>>,
) -> Result<Pool> {
    let root = of_pool(dir, DESCRIPTOR)?;
    let mut config = read_descriptor(&root)?;
    let paths = PoolPaths::of(root.clone(), &config)?;
    let (marker, away) = check_log(&paths, &config.format)?;
    if config.redundancy.geometry(0) != marker.redundancy.geometry(0) {
        return Err(Error::invalid(format!(
            "{}: redundancy is {}, and the pool was made with {}: put it right; to change it, copy the \
             checkpoints to a new pool",
            paths.descriptor(),
            config.redundancy.describe(),
            marker.redundancy.describe()
        )));
    }
    if config.encryption.as_ref().map(|it| &it.cipher)
        != marker.encryption.as_ref().map(|it| &it.cipher)
    {
        return Err(Error::invalid(format!(
            "{} says {}, and the pool was made otherwise: put {ENCRYPTION} right",
            paths.descriptor(),
            if config.encryption.is_some() { "that it is encrypted" } else { "of no encryption" }
        )));
    }
    let log = open_log(&paths, &config.format)?;
    let targets = table_of(&paths, &config.format, &log, &env).rows()?;
    let fits = config.redundancy.check_targets(&staying(&targets));
    fits.map_err(|error| error.context(paths.descriptor()))?;
    // A pool's only target needs no number.
    let own = |row: &TargetConfig| TargetConfig { id: row.id, ..TargetConfig::at(".") };
    let named = |row: &TargetConfig| match &config.target[..] {
        [] => *row == own(row),
        [only] => *row == TargetConfig { id: row.id, ..only.clone() },
        _ => false,
    };
    if !matches!(&targets[..], [only] if named(only)) {
        config.target = targets;
    }
    // A program may change its directory between now and its saves.
    let named = root.to_string();
    let (moved, then) = (paths.has_moved(), paths.log().clone());
    let paths = PoolPaths::of(root.absolute(), &config)?;
    if moved {
        check_log(&paths, &config.format)?;
    }
    let log = open_log(&paths, &config.format)?;
    let table = Arc::new(table_of(&paths, &config.format, &log, &env));
    let own = |row: &&TargetConfig| config.target.len() > 1 && table.locations().is_own(row);
    if config.target.iter().filter(own).count() > 1 {
        return Err(Error::invalid(format!(
            "{}: two targets are the pool's own place: put the locations right",
            paths.descriptor()
        )));
    }
    let pool = Pool::of(Vec::new(), config, log, env);
    let pool = pool.at(Path::new(&named)).in_home(paths);
    let pool = pool.with_table(table)?;
    let readable = match check(&pool.targets()) {
        // Only data in memory is lost: programs go on without it.
        Err(_) if pool.wants_recreate()? => Ok(None),
        readable => readable,
    };
    if readable?.is_some() && !pool.wants_recreate().unwrap_or(false) {
        let instead = match pool.seats().is_ok_and(|seats| !seats.is_empty()) {
            true => "start `outlive node local` on more hosts".to_owned(),
            false => format!(
                "put a new target in its place with: {}",
                pool.command("pool replace", &["ID", "NEW_PLACE"])
            ),
        };
        pool.warn(format!(
            "more than {} of {} targets are away: nothing can be saved, and only what is on the others can be read; \
             bring back what is away, or {instead}",
            pool.targets().survives(),
            pool.targets().of_tier(Tier::Fast).filter(|(_, member)| !member.is_lost()).count(),
        ));
    }
    if moved {
        pool.warn(format!(
            "the log was moved to {}: so that the old replicas can go, set [log] to that, and to number = {}, in {}",
            then.describe(),
            then.number,
            pool.paths().map_or_else(String::new, PoolPaths::descriptor)
        ));
    }
    for away in away {
        pool.warn(format!("the log does without a replica: {}", away.message()));
    }
    for away in pool.targets().members().iter().filter_map(Member::away) {
        pool.warn(format!("the pool does without a target: {}", away.message()));
    }
    Ok(pool)
}

/// Returns the table of a pool's targets.
fn table_of(
    paths: &PoolPaths,
    format: &FormatConfig,
    log: &Arc<dyn ManifestLog>,
    env: &Environment,
) -> TargetTable {
    let locations = Arc::new(HomeTargets::new(paths, format, env));
    TargetTable::new(log.clone(), locations, env.rng.clone())
}

/// Opens the pool in `dir`, or makes one there if `dir` is empty or missing. A new one is encrypted if
/// the environment names a key.
///
/// # Errors
/// Those of [`create`] and [`open`].
pub fn open_or_create(dir: &Path, env: Environment) -> Result<Pool> {
    let is_descriptor = dir.file_name().is_some_and(|name| name == DESCRIPTOR);
    let root = of_pool(dir, DESCRIPTOR)?;
    if !is_descriptor && !root.has(DESCRIPTOR)? {
        refuse_strangers(&root)?;
        let mut id = [0; 16];
        env.rng.fill(&mut id);
        let tuning = match root.is_remote() {
            true => Tuning::of_buckets(),
            false => Tuning::default(),
        };
        let mut config = PoolConfig::new(FormatConfig::new(id), tuning);
        if PoolKey::is_named() {
            config.encryption = Some(EncryptionConfig::new(&config.format.pool_id)?);
        }
        write_descriptor(&PoolPaths::of(root, &config)?, config)?;
    }
    open(dir, env)
}

/// Returns the error for a pool that was begun here with other log replicas.
fn another_log(location: &Location, made: &Marker) -> Error {
    let log = made.log.as_ref().map_or_else(Vec::new, LogConfig::all);
    let there: Vec<String> = log.into_iter().map(|location| format!("--log {location}")).collect();
    Error::invalid(format!(
        "{location} holds the beginning of a pool whose log is {}: give the same replicas, in that order, or name \
         other ones",
        if there.is_empty() { "in one replica".to_owned() } else { there.join(" ") }
    ))
}

/// Refuses a location with other files, so that a typing error makes no pool there. Refuses the
/// rest of a pool, and a part of one.
fn refuse_strangers(root: &Location) -> Result<()> {
    match root.as_directory() {
        Some(dir) => refuse_strangers_in(dir),
        None => refuse_shards_in(root),
    }
}

fn refuse_strangers_in(dir: &Path) -> Result<()> {
    refuse_lost_descriptor(&directory(dir))?;
    let is_made = || [MARKER, DESCRIPTOR].iter().any(|it| dir.join(it).exists());
    // Looks again: another process may have made this very pool meanwhile.
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
                    || name == COPY
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
                // Looks last: a process that makes the same pool right now may have gone on to
                // save.
                if holds_something(&sub)? && !dir.join(DESCRIPTOR).exists() {
                    return Err(descriptor_is_missing(&directory(dir)));
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

/// Refuses a bucket with shards or records of ours; other objects do not matter.
fn refuse_shards_in(root: &Location) -> Result<()> {
    root.check()?;
    refuse_lost_descriptor(root)?;
    // Another process may have made this very pool meanwhile, or have begun to.
    let is_made = || Ok::<bool, Error>(root.has(MARKER)? || root.has(DESCRIPTOR)?);
    if !is_made()?
        && let Err(error) = check_around(root)
        && !is_made()?
    {
        return Err(error);
    }
    let is_empty =
        root.open_medium()?.jobs()?.is_empty() && root.open_target(&plainly())?.list()?.is_empty();
    // Looks last, as above.
    if is_empty || root.has(DESCRIPTOR)? { Ok(()) } else { Err(descriptor_is_missing(root)) }
}

/// Refuses the location of a lost descriptor, whose log and targets are elsewhere.
fn refuse_lost_descriptor(root: &Location) -> Result<()> {
    // In this order: another process may make this very pool meanwhile.
    if root.has(COPY)? && !root.has(DESCRIPTOR)? {
        return Err(descriptor_is_missing(root));
    }
    Ok(())
}

/// Writes the marker, then the descriptor, each whole or not at all. The first of two makers wins:
/// one that finds a marker makes that marker's pool, with its target unless another is given.
/// Returns whether this pool is there now: a maker with other log replicas may have been faster.
fn write_descriptor(paths: &PoolPaths, config: PoolConfig) -> Result<bool> {
    let root = &paths.root;
    for log in &paths.log().at {
        if !log.has(MARKER)? {
            check_log_replica(log)?;
        }
        match paths.is_elsewhere(log) {
            true => log.make_folders(&["log"])?,
            false => root.make_folders(&["packs", "log"])?,
        }
    }
    root.make_folders(&["packs"])?;
    for target in config.locations_elsewhere(root)? {
        // Before any file names it: a target that cannot be made is part of no pool.
        make_target(&target)?;
    }
    // The first replica decides which pool this is; the others must agree.
    let mut wanted = Marker::of(&config);
    let of_set = paths.log().number;
    for (number, (log, location)) in paths.log_replicas().enumerate() {
        log.write_new(MARKER, wanted.in_place(location).to_text()?.as_bytes())?;
        match number {
            0 => {
                let made = marker_in(paths, log, location)?;
                if made.log != wanted.log {
                    return Err(another_log(log, &made));
                }
                if made.encryption != wanted.encryption {
                    return Err(Error::invalid(format!(
                        "{log} holds the beginning of a pool {} encryption: make it so, or name another \
                         location",
                        if made.encryption.is_some() { "with" } else { "without" }
                    )));
                }
                wanted = made;
                check_replica(paths, &wanted.format, log, of_set, location)?;
            }
            _ => drop(check_replica(paths, &wanted.format, log, of_set, location)?),
        }
        log.sync_folder("log")?;
    }
    let made = wanted;
    // Without `packs` and `log` beside it, a descriptor would be refused.
    root.sync_folder("")?;
    let mine = config.target;
    let target = if mine.len() > 1 || mine.is_empty() { made.target.clone() } else { mine };
    let (format, redundancy) = (made.format.clone(), made.redundancy.clone());
    // A wrapped key is of one pool id, and the marker has decided that.
    let encryption = match config.encryption {
        Some(_) if format.pool_id != config.format.pool_id => {
            Some(EncryptionConfig::new(&format.pool_id)?)
        }
        encryption => encryption,
    };
    let config = PoolConfig { format, redundancy, encryption, target, ..config };
    let made = Marker::of(&config);
    for (number, target) in config.locations(root)?.into_iter().enumerate() {
        let row = config.target.get(number);
        if !target.is_same(root) && !row.is_some_and(TargetConfig::is_vacant) {
            let id = row.and_then(|row| row.id);
            write_target(&target, &made.on(id))?;
            check_target(paths, &config.format, &target, id)?;
        }
    }
    root.write_new(DESCRIPTOR, config.to_text()?.as_bytes())?;
    root.sync_folder("")?;
    let there = read_descriptor(root)?;
    if there.format.pool_id != config.format.pool_id {
        return Ok(false);
    }
    // Of two makers, the descriptor has the key of one. The pool is there, with or without copies.
    if let Some(encryption) = &there.encryption {
        for target in there.locations_elsewhere(root)?.iter().chain([root]) {
            let _ = copy_key(target, &there.format.pool_id, encryption);
        }
    }
    // Last: a copy without a descriptor means that the descriptor is lost, not that its maker died.
    // The next save makes a missing copy.
    let _ = make_copy(paths);
    // The paths of `.` and of a link do not name the parent. If the parent cannot be synced, the
    // pool relies on the process that made the directory.
    let dir = root.as_directory().and_then(|dir| dir.canonicalize().ok());
    let _ = dir.as_deref().and_then(Path::parent).map(|dir| directory(dir).sync_folder(""));
    Ok(true)
}

#[cfg(test)]
mod tests;
