//! Moves a pool's log to other places, while programs may save (docs/pool.md; docs/design/028-moving-a-log.md).

use crate::Pool;
use crate::config::{FormatConfig, LogConfig};
use crate::descriptor::rewrite;
use crate::home::{Home, MARKER};
use crate::location::Location;
use crate::log_open::{check_log, finish, follow};
use crate::log_places::{ASKING, Lasting, find_set, is_there, open_places};
use crate::log_room::{check_room, check_writable, needed_bytes};
use crate::log_set::LogSet;
use crate::marker::{Marker, Moved};
use crate::place::TARGET_MARKER;
use crate::places::{
    LOG_STAYS, check_log_place, check_outside, check_outside_prefixes, refuse_memory,
};
use outlive_target::Lock;
use outlive_target::places::{forget, succeed};
use outlive_types::{Error, Result};
use std::fs;

/// What became of a move.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogMoved {
    /// The places of the log now, in their order, and of each why it does not take part, if it does not.
    pub places: Vec<(String, Option<Error>)>,
    /// The log was there already.
    pub was_there: bool,
}

impl Pool {
    /// Moves the log to these places, written as in `[log]` of `pool.toml`; programs may go on saving. To replace a
    /// place that is lost, name it anew, beside those that stay. May be given again after anything that went wrong.
    ///
    /// # Errors
    /// `Invalid` for places that cannot be used; `Retry` if less than a majority of the old or of the new
    /// places answer, or if others are at work that must not be overtaken.
    pub fn move_log(&self, places: &[String]) -> Result<LogMoved> {
        let home = self.home().ok_or_else(|| {
            Error::invalid("the log of this pool cannot be moved: nothing says where it is")
        })?;
        let format = &self.config().format;
        check_log(home, format)?; // what others have begun comes first
        let old = home.log().clone();
        let new = new_set(home, &old, places)?;
        if old.is_same(&new) {
            let found = find_set(home, format, &old, Lasting::Durably);
            if found.iter().all(is_there) {
                let named = self.write_down(home)?;
                return moved(&old, &named, vec![None; places.len()], true);
            }
        }
        check_writable(home)?;
        prepare(home, format, &old, || {
            let bytes = needed_bytes(&**self.log())?;
            new.named.iter().zip(&new.at).try_for_each(|(named, at)| {
                prepare_place(home, format, named, at)?;
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
        let from = open_places(home, format, &old)?;
        let decided = Moved::parse(&succeed(&from, ASKING, &wanted.to_bytes()?)?)?;
        if decided != wanted {
            follow(home, format, &decided)?;
            return Err(overtaken(home.log()));
        }
        let trouble = finish(home, format, &old, &new, &wanted, true)?;
        home.log_moved(new.clone());
        let named = self.write_down(home)?;
        if trouble.iter().all(Option::is_none) {
            // What stays of it is in nobody's way.
            let _ = forget(&from, ASKING, &wanted.to_bytes()?);
        }
        moved(&new, &named, trouble, false)
    }

    /// Writes down where the log is, for the next program that opens the pool. Returns what `pool.toml` says then:
    /// another command may have moved the log on meanwhile.
    fn write_down(&self, home: &Home) -> Result<LogSet> {
        let written = rewrite(home, &self.config().format, &*self.env().rng, &Ok);
        written.map_err(|error| {
            let set = home.log();
            error.context(format!(
                "the log is in {} now, and {} does not say so yet: set [log] there to that, and to number = {}, or \
                 give the command again",
                set.describe(),
                home.descriptor(),
                set.number
            ))
        })
    }
}

/// What became of a move to `set`, if `pool.toml` says `named` by now.
///
/// # Errors
/// `Retry` if another command has moved the log on.
fn moved(
    set: &LogSet,
    named: &LogSet,
    trouble: Vec<Option<Error>>,
    was_there: bool,
) -> Result<LogMoved> {
    if named.number != set.number {
        return Err(overtaken(named));
    }
    let names = set.named.iter().map(Location::to_string);
    Ok(LogMoved { places: names.zip(trouble).collect(), was_there })
}

fn new_set(home: &Home, old: &LogSet, places: &[String]) -> Result<LogSet> {
    let config = LogConfig::numbered(places, old.number + 1)
        .ok_or_else(|| Error::invalid("name the places that the log is to be moved to"))?;
    config.check()?;
    let new = LogSet::of(&home.root, Some(&config))?;
    for (number, place) in new.named.iter().enumerate() {
        if new.named[..number].iter().any(|other| {
            other.is_same(place) || other.real().is_some() && other.real() == place.real()
        }) {
            return Err(Error::invalid(format!(
                "{place} is named twice as a place of the log: name each place once"
            )));
        }
    }
    Ok(new)
}

fn overtaken(log: &LogSet) -> Error {
    Error::retry(format!(
        "another command has moved the log to {}: look at `outlive pool status`, and give this command again if it \
         is still wanted",
        log.describe()
    ))
}

/// Prepares the new places by `each`. What is wrong with them may come of another mover, who takes them for his own
/// set of the same number: then that is said, and not that the places hold records.
fn prepare(
    home: &Home,
    format: &FormatConfig,
    old: &LogSet,
    each: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let Err(error) = each() else { return Ok(()) };
    check_log(home, format)?;
    Err(if home.log().number == old.number { error } else { overtaken(home.log()) })
}

/// Sees to it that a place can take a new set, before anything is decided.
fn prepare_place(
    home: &Home,
    format: &FormatConfig,
    named: &Location,
    at: &Location,
) -> Result<()> {
    if let Some(dir) = named.as_directory().filter(|dir| dir.exists() && !dir.is_dir()) {
        return Err(Error::invalid(format!(
            "{} is a file, not a directory: name another place for the log",
            dir.display()
        )));
    }
    refuse_memory(&home.root, named, LOG_STAYS)?;
    let own = home.log().at.iter().chain([&home.root]);
    if let Some(own) = own.into_iter().find(|own| named.is_within(own, &["log", "packs"])) {
        return Err(Error::invalid(format!(
            "{named} is within the `log` or `packs` of the pool itself ({own}): choose a place outside of it"
        )));
    }
    let mut is_ours = named.is_same(&home.root);
    for own in places_in(named)? {
        is_ours |= refuse_foreign(format, &own, MARKER)?;
    }
    is_ours |= refuse_foreign(format, named, TARGET_MARKER)?;
    match named {
        _ if is_ours => {}
        Location::Directory(dir) => check_outside(dir)?,
        Location::Bucket(place) => check_outside_prefixes(place)?,
        Location::Etcd(place) => place.check()?,
    }
    if at.has(MARKER)? || !at.open_medium()?.jobs()?.is_empty() {
        return Err(Error::invalid(format!(
            "{at} holds records already, and the log of this pool was never there: move them away, or name \
             another place"
        )));
    }
    check_log_place(at)?;
    at.make(&["log"])
}

/// A place, and where sets of places of any log may be in it.
fn places_in(named: &Location) -> Result<Vec<Location>> {
    let mut places = vec![named.clone()];
    let Some(dir) = named.as_directory() else { return Ok(places) };
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(places),
        Err(error) => return Err(Error::io("listing", dir, &error)),
    };
    for entry in entries {
        let name = entry.map_err(|error| Error::io("listing", dir, &error))?.file_name();
        if name.to_str().is_some_and(|name| name.starts_with("log-")) {
            places.push(Location::Directory(dir.join(name)));
        }
    }
    Ok(places)
}

/// Whether a marker is there, of this pool.
fn refuse_foreign(format: &FormatConfig, place: &Location, marker: &str) -> Result<bool> {
    let Some(bytes) = place.read(marker)? else { return Ok(false) };
    let name = place.name(marker);
    let owner = Marker::parse(&String::from_utf8_lossy(&bytes), &name)?.format.pool_id;
    match owner == format.pool_id {
        true => Ok(true),
        false => Err(Error::invalid(format!(
            "{place} belongs to another pool ({name} says {owner}): name another place for the log"
        ))),
    }
}

#[cfg(test)]
mod tests;
