//! Moves a pool's log to other replicas, while programs may save (docs/pool.md;
//! docs/design/028-moving-a-log.md).

use crate::Pool;
use crate::descriptor::config::{FormatConfig, LogConfig};
use crate::descriptor::location::{is_within, real};
use crate::descriptor::log_configuration::LogConfiguration;
use crate::descriptor::marker::{Marker, Moved};
use crate::descriptor::paths::{MARKER, PoolPaths};
use crate::log::open::{check_log, finish, follow, forget_old};
use crate::log::replicas::{ASKING, Lasting, find_set, is_there, open_replicas};
use crate::log::room::{check_room, check_writable, needed_bytes};
use crate::opening::init_check::{LOG_STAYS, check_around, check_log_replica, refuse_memory};
use crate::opening::marker_check::TARGET_MARKER;
use crate::opening::rewrite::rewrite;
use outlive_backend::{Location, SmallFiles};
use outlive_log::Lock;
use outlive_log::replicas::succeed;
use outlive_registry::directory;
use outlive_types::{Error, Result};
use std::fs;

/// Result of a move.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogMoved {
    /// Replicas of the log now, in their order, each with the reason why it does not take part, if
    /// so.
    pub replicas: Vec<(String, Option<Error>)>,
    /// Whether the log was there already.
    pub was_there: bool,
}

impl Pool {
    /// Moves the log to these replicas, written as in `[log]` of `pool.toml`; programs may go on
    /// saving. To replace a lost replica, name a new one, and those that stay. It may be called
    /// again after any failure.
    ///
    /// # Errors
    /// `Invalid` for locations that cannot be used. `Retry` if no majority of the old or of the new
    /// replicas answers, or if others are at work that a move must not overtake.
    pub fn move_log(&self, replicas: &[String]) -> Result<LogMoved> {
        let paths = self.paths().ok_or_else(|| {
            Error::invalid("the log of this pool cannot be moved: nothing says where it is")
        })?;
        let format = &self.config().format;
        check_log(paths, format)?; // a move that others have begun comes first
        let old = paths.log().clone();
        let new = new_set(paths, &old, replicas)?;
        if old.is_same(&new) {
            let found = find_set(paths, format, &old, Lasting::Durably);
            if found.iter().all(is_there) {
                let named = self.write_down(paths)?;
                return moved(&old, &named, vec![None; replicas.len()], true);
            }
        }
        check_writable(paths)?;
        prepare(paths, format, &old, || {
            let bytes = needed_bytes(&**self.log())?;
            new.named.iter().zip(&new.at).try_for_each(|(named, at)| {
                prepare_replica(paths, format, named, at)?;
                check_room(at, bytes, &*self.env().rng)
            })
        })?;
        let lock = self.log().lock_collecting()?;
        if matches!(lock, Lock::Busy) {
            return Err(Error::retry(
                "a gc, scrub, repair or a change of the targets is at work in this pool: try again when it has \
                 ended",
            ));
        }
        if self.log().is_read()? {
            return Err(Error::retry(
                "a program is still loading a checkpoint lazily, and a gc after the move would not know of it: \
                 try again when it has ended",
            ));
        }
        let wanted = old.moved_to(&new);
        let from = open_replicas(paths, format, &old)?;
        let decided = Moved::parse(&succeed(&from, ASKING, &wanted.to_bytes()?)?)?;
        if decided != wanted {
            follow(paths, format, &decided)?;
            return Err(overtaken(paths.log()));
        }
        let trouble = finish(paths, format, &old, &new, &wanted, true)?;
        // Before the descriptor names the new replicas: then no process would know the old ones.
        forget_old(paths, format, &old, &new, &wanted);
        paths.log_moved(new.clone());
        let named = self.write_down(paths)?;
        moved(&new, &named, trouble, false)
    }

    /// Writes down where the log is, for the next program that opens the pool. Returns what
    /// `pool.toml` says then: another command may have moved the log again meanwhile.
    fn write_down(&self, paths: &PoolPaths) -> Result<LogConfiguration> {
        let written = rewrite(paths, &self.config().format, &Ok);
        written.map_err(|error| {
            let set = paths.log();
            error.context(format!(
                "the log is in {} now, and {} does not say so yet: set [log] there to that, and to number = {}, or \
                 give the command again",
                set.describe(),
                paths.descriptor(),
                set.number
            ))
        })
    }
}

/// Returns the result of a move to `set`, if `pool.toml` names `named` by now.
///
/// # Errors
/// `Retry` if another command has moved the log again.
fn moved(
    set: &LogConfiguration,
    named: &LogConfiguration,
    trouble: Vec<Option<Error>>,
    was_there: bool,
) -> Result<LogMoved> {
    if named.number != set.number {
        return Err(overtaken(named));
    }
    let names = set.named.iter().map(Location::to_string);
    Ok(LogMoved { replicas: names.zip(trouble).collect(), was_there })
}

fn new_set(
    paths: &PoolPaths,
    old: &LogConfiguration,
    replicas: &[String],
) -> Result<LogConfiguration> {
    let config = LogConfig::numbered(replicas, old.number + 1)
        .ok_or_else(|| Error::invalid("name the replicas that the log is to be moved to"))?;
    config.check()?;
    let new = LogConfiguration::of(&paths.root, Some(&config))?;
    for (number, replica) in new.named.iter().enumerate() {
        if new.named[..number].iter().any(|other| {
            other.is_same(replica) || real(other).is_some() && real(other) == real(replica)
        }) {
            return Err(Error::invalid(format!(
                "{replica} is named twice as a log replica: name each location once"
            )));
        }
    }
    Ok(new)
}

fn overtaken(log: &LogConfiguration) -> Error {
    Error::retry(format!(
        "another command has moved the log to {}: look at `outlive pool status`, and give this command again if it \
         is still wanted",
        log.describe()
    ))
}

/// Prepares the new replicas by `each`. If another mover takes them for its own configuration of
/// the same number, the error says that, and not that the locations hold records.
fn prepare(
    paths: &PoolPaths,
    format: &FormatConfig,
    old: &LogConfiguration,
    each: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let Err(error) = each() else { return Ok(()) };
    check_log(paths, format)?;
    Err(if paths.log().number == old.number { error } else { overtaken(paths.log()) })
}

/// Makes sure that a location can take a new configuration, before anything is decided.
fn prepare_replica(
    paths: &PoolPaths,
    format: &FormatConfig,
    named: &Location,
    at: &Location,
) -> Result<()> {
    if let Some(dir) = named.as_directory().filter(|dir| dir.exists() && !dir.is_dir()) {
        return Err(Error::invalid(format!(
            "{} is a file, not a directory: name another location for the log",
            dir.display()
        )));
    }
    refuse_memory(&paths.root, named, LOG_STAYS)?;
    let own = paths.log().at.iter().chain([&paths.root]);
    if let Some(own) = own.into_iter().find(|own| is_within(named, own, &["log", "packs"])) {
        return Err(Error::invalid(format!(
            "{named} is within the `log` or `packs` of the pool itself ({own}): choose a location outside of it"
        )));
    }
    let mut is_ours = named.is_same(&paths.root);
    for own in places_in(named)? {
        is_ours |= refuse_foreign(format, &own, MARKER)?;
    }
    is_ours |= refuse_foreign(format, named, TARGET_MARKER)?;
    if !is_ours {
        check_around(named)?;
    }
    if at.has(MARKER)? || !at.open_medium()?.jobs()?.is_empty() {
        return Err(Error::invalid(format!(
            "{at} holds records already, and the log of this pool was never there: move them away, or name \
             another location"
        )));
    }
    check_log_replica(at)?;
    at.make_folders(&["log"])
}

/// Returns a location, and those in it where configurations of any log may be.
fn places_in(named: &Location) -> Result<Vec<Location>> {
    let mut replicas = vec![named.clone()];
    let Some(dir) = named.as_directory() else { return Ok(replicas) };
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(replicas),
        Err(error) => return Err(Error::io("listing", dir, &error)),
    };
    for entry in entries {
        let name = entry.map_err(|error| Error::io("listing", dir, &error))?.file_name();
        if name.to_str().is_some_and(|name| name.starts_with("log-")) {
            replicas.push(directory(dir.join(name)));
        }
    }
    Ok(replicas)
}

/// Returns whether this pool's marker is there; refuses that of another pool.
fn refuse_foreign(format: &FormatConfig, replica: &Location, marker: &str) -> Result<bool> {
    let Some(bytes) = replica.read(marker)? else { return Ok(false) };
    let name = replica.name(marker);
    let owner = Marker::parse(&String::from_utf8_lossy(&bytes), &name)?.format.pool_id;
    match owner == format.pool_id {
        true => Ok(true),
        false => Err(Error::invalid(format!(
            "{replica} belongs to another pool ({name} says {owner}): name another location for the log"
        ))),
    }
}

#[cfg(test)]
mod tests;
