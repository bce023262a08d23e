//! A pool's log as it is opened, wherever it has been moved to.

use crate::config::FormatConfig;
use crate::home::{Home, MARKER};
use crate::location::Location;
use crate::log_places::{
    ASKING, Found, Lasting, LogPlace, check_place, find_set, is_there, open_places,
};
use crate::log_set::LogSet;
use crate::marker::{Marker, Moved, ThisPlace};
use outlive_target::places::{NewPlace, move_to};
use outlive_target::{ManifestLog, Movable, RecordLog};
use outlive_types::{Error, Result, SystemRng};
use std::sync::Arc;

/// Opens a pool's log, which may be moved while it is open.
///
/// # Errors
/// `Invalid` if its only place cannot be used.
pub(crate) fn open_log(home: &Home, format: &FormatConfig) -> Result<Arc<dyn ManifestLog>> {
    let (now, then) = (home.clone(), format.clone());
    let follow = move |successor: &[u8]| {
        follow(&now, &then, &Moved::parse(successor)?)?;
        open_places(&now, &then, now.log())
    };
    let places = open_places(home, format, home.log())?;
    Ok(Arc::new(RecordLog::over(Movable::new(&places, ASKING, Box::new(follow))?)))
}

/// The marker of a log, and why places of it are away. Refuses a log that is not this pool's. If the log was moved, it
/// goes there.
///
/// # Errors
/// `Damaged` if it is missing; `Retry` if it has several places, and less than a majority are there;
/// `Invalid` if it, or a place of it, is another.
pub(crate) fn check_log(home: &Home, format: &FormatConfig) -> Result<(Marker, Vec<Error>)> {
    let set = home.log();
    let (mut marker, mut away, mut moved) = (None, Vec::new(), None);
    for found in find_set(home, format, set, Lasting::Now) {
        match found {
            Found::There(there) => {
                moved = moved.or(there.moved.clone());
                marker = marker.or(Some(*there));
            }
            Found::Away(error) if set.at.len() > 1 => away.push(error),
            Found::Away(error) | Found::Another(error) => return Err(error),
        }
    }
    if let Some(moved) = moved {
        follow(home, format, &moved)?;
        return check_log(home, format);
    }
    if away.len() > set.at.len() / 2 {
        let why: Vec<&str> = away.iter().map(Error::message).collect();
        return Err(Error::retry(format!(
            "of the {} places of the log less than a majority are there, so nothing is read or written: {}",
            set.at.len(),
            why.join("; ")
        )));
    }
    let marker = marker.ok_or_else(|| Error::bug("a log without places"))?;
    Ok((marker, away))
}

/// Goes where a log was moved to, and brings the move to its end if that is still to be done.
///
/// # Errors
/// Why that cannot be: `Retry` if too few places are there.
pub(crate) fn follow(home: &Home, format: &FormatConfig, moved: &Moved) -> Result<()> {
    let old = home.log();
    if moved.number <= old.number {
        return Ok(()); // another thread has
    }
    let new = old.then(&home.root, moved)?;
    let finished = finish(home, format, old, &new, moved, false);
    finished.map_err(|error| {
        error.context(format!(
            "the log of {} was moved to {}; if these places have other names on this machine, set number = {} \
             and the places in [log] of {}",
            home.root,
            new.describe(),
            new.number,
            home.descriptor()
        ))
    })?;
    home.log_moved(new);
    Ok(())
}

/// Moves the log from `old` to the places of `new`, which was decided upon; a majority of them, or `all` that are
/// there. Answers of each why it has not got all, if that is so.
///
/// # Errors
/// `Retry` if too few places, old or new, are there.
pub(crate) fn finish(
    home: &Home,
    format: &FormatConfig,
    old: &LogSet,
    new: &LogSet,
    moved: &Moved,
    all: bool,
) -> Result<Vec<Option<Error>>> {
    let found = find_set(home, format, new, Lasting::Durably);
    let open = found.iter().filter(|found| is_there(found)).count();
    if open == found.len() || !all && open > found.len() / 2 {
        return Ok(found.iter().map(|_| None).collect());
    }
    let there =
        find_set(home, format, old, Lasting::Now).into_iter().find_map(|found| match found {
            Found::There(marker) => Some(*marker),
            Found::Away(_) | Found::Another(_) => None,
        });
    let marker = there.ok_or_else(|| {
        Error::retry(format!(
            "none of the places is there that it was moved from: {}",
            old.describe()
        ))
    })?;
    let place = |((location, place), found): ((&Location, Option<ThisPlace>), Found)| {
        let marker = marker.in_set(new.config(), place);
        NewPlace {
            medium: Arc::new(LogPlace::unguarded(home, format, location, new.number)),
            is_open: is_there(&found),
            open: open_with(home, format, location, new.number, &marker),
        }
    };
    let look =
        || Ok(new.places().zip(find_set(home, format, new, Lasting::Durably)).map(place).collect());
    move_to(&open_places(home, format, old)?, ASKING, &moved.to_bytes()?, &look)
}

/// What opens a place: its marker.
fn open_with(
    home: &Home,
    format: &FormatConfig,
    location: &Location,
    number: u32,
    marker: &Marker,
) -> Box<dyn Fn() -> Result<()> + Send + Sync> {
    let (home, format, location, marker) =
        (home.clone(), format.clone(), location.clone(), marker.clone());
    let place: Option<ThisPlace> = marker.place;
    Box::new(move || {
        location.publish(MARKER, &marker.to_text()?, &SystemRng)?;
        location.sync("log")?;
        check_place(&home, &format, &location, number, place).map(drop)
    })
}
