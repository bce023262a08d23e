//! The places of a pool's log: which of them are there, and a medium that asks a place only as long as it
//! is this pool's. A directory whose disk is not mounted would otherwise be taken for an empty one.

use crate::compare::{compare, look_for, text};
use crate::config::FormatConfig;
use crate::home::{Home, MARKER};
use crate::location::Location;
use crate::marker::{Marker, ThisPlace};
use outlive_target::{Asking, Lock, LockGuard, LogMedium, ManifestLog, Places, Put, RecordLog};
use outlive_types::{Error, JobName, Result};
use std::fmt;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// How long is waited for a place that does not answer, and, once a majority have, for the others.
const PATIENCE: Duration = Duration::from_secs(10);
const GRACE: Duration = Duration::from_millis(200);

/// Opens a pool's log.
///
/// # Errors
/// `Invalid` if its only place cannot be used.
pub(crate) fn open_log(home: &Home, format: &FormatConfig) -> Result<Arc<dyn ManifestLog>> {
    if let [only] = &home.log[..] {
        return only.open_log();
    }
    let mut places: Vec<Arc<dyn LogMedium>> = Vec::new();
    for (location, place) in home.log_places() {
        let medium = location.open_medium();
        let (home, format, location) = (home.clone(), format.clone(), location.clone());
        let seen = Mutex::default();
        places.push(Arc::new(LogPlace { home, format, location, place, medium, seen }));
    }
    Ok(Arc::new(RecordLog::over(Places::new(places, Asking::AtOnce)?)))
}

/// What is in a place.
pub(crate) enum Found {
    /// This pool's marker.
    There(Box<Marker>),
    /// Nothing that can be read now, and why.
    Away(Error),
    /// Another pool's place, or another place of this one.
    Another(Error),
}

/// The marker of a log, and why places of it are away. Refuses a log that is not this pool's.
///
/// # Errors
/// `Damaged` if it is missing; `Retry` if it has several places, and less than a majority are there;
/// `Invalid` if it, or a place of it, is another.
pub(crate) fn check_log(home: &Home, format: &FormatConfig) -> Result<(Marker, Vec<Error>)> {
    let (mut marker, mut away) = (None, Vec::new());
    for found in find_places(home, format) {
        match found {
            Found::There(there) => marker = marker.or(Some(*there)),
            Found::Away(error) if home.log.len() > 1 => away.push(error),
            Found::Away(error) | Found::Another(error) => return Err(error),
        }
    }
    if away.len() > home.log.len() / 2 {
        let why: Vec<&str> = away.iter().map(Error::message).collect();
        return Err(Error::retry(format!(
            "of the {} places of the log less than a majority are there, so nothing is read or written: {}",
            home.log.len(),
            why.join("; ")
        )));
    }
    let marker = marker.ok_or_else(|| Error::bug("a log without places"))?;
    Ok((marker, away))
}

/// What is in each place of a log. Several are looked at at once: one may hang.
pub(crate) fn find_places(home: &Home, format: &FormatConfig) -> Vec<Found> {
    if let [only] = &home.log[..] {
        return vec![find_place(home, format, only, None)];
    }
    let (tell, told) = mpsc::channel();
    for (number, (location, place)) in home.log_places().enumerate() {
        let (home, format, location) = (home.clone(), format.clone(), location.clone());
        let tell = tell.clone();
        let look = move || {
            // Whoever has asked may have gone on.
            let _ = tell.send((number, find_place(&home, &format, &location, place)));
        };
        // Without a thread it is as one that does not answer.
        let _ = thread::Builder::new().name("outlive-log".to_owned()).spawn(look);
    }
    drop(tell);
    let silent =
        |location: &Location| Found::Away(Error::retry(format!("{location} does not answer")));
    let mut found: Vec<Found> = home.log.iter().map(silent).collect();
    let (mut until, mut there) = (Instant::now() + PATIENCE, 0);
    while let Ok((number, place)) =
        told.recv_timeout(until.saturating_duration_since(Instant::now()))
    {
        there += usize::from(!matches!(place, Found::Away(_)));
        found[number] = place;
        if there > home.log.len() / 2 {
            until = until.min(Instant::now() + GRACE);
        }
    }
    found
}

fn find_place(
    home: &Home,
    format: &FormatConfig,
    location: &Location,
    place: Option<ThisPlace>,
) -> Found {
    let marker = match marker_in(home, location, place) {
        Ok(marker) => marker,
        Err(error) => return Found::Away(error),
    };
    if let Err(error) = compare(home, format, &location.name(MARKER), &marker, "log") {
        return Found::Another(error);
    }
    if marker.place == place {
        return Found::There(Box::new(marker));
    }
    let said = |place: Option<ThisPlace>| match place {
        None => "the only place of a log".to_owned(),
        Some(ThisPlace { number, of }) => format!("place {number} of {of} of a log"),
    };
    Found::Another(Error::invalid(format!(
        "{location} holds {}, and {} says that it is {}: put the locations of [log] right, in the order \
         that they were made in",
        said(marker.place),
        home.descriptor(),
        said(place)
    )))
}

/// The marker of one place of the log, if that is this pool's.
///
/// # Errors
/// Why it is not, or is away.
pub(crate) fn check_place(
    home: &Home,
    format: &FormatConfig,
    location: &Location,
    place: Option<ThisPlace>,
) -> Result<Marker> {
    match find_place(home, format, location, place) {
        Found::There(marker) => Ok(*marker),
        Found::Away(error) | Found::Another(error) => Err(error),
    }
}

/// The marker in a place, whichever pool it is of.
pub(crate) fn marker_in(
    home: &Home,
    location: &Location,
    place: Option<ThisPlace>,
) -> Result<Marker> {
    let name = location.name(MARKER);
    let bytes = location.read(MARKER)?.ok_or_else(|| missing(home, location, place))?;
    Marker::parse(&text(bytes, &name)?, &name)
}

fn missing(home: &Home, location: &Location, place: Option<ThisPlace>) -> Error {
    let name = location.name(MARKER);
    let what = match place {
        None => format!("the log of {} is missing", home.root),
        Some(ThisPlace { number, of }) => {
            format!("place {number} of {of} of the log of {} is away", home.root)
        }
    };
    Error::damaged(format!(
        "{what} ({name} is not there): {}; nothing is read or written without it",
        look_for(location)
    ))
}

/// One of several places.
struct LogPlace {
    home: Home,
    format: FormatConfig,
    location: Location,
    place: Option<ThisPlace>,
    /// Or why there is none.
    medium: Result<Arc<dyn LogMedium>>,
    /// Its marker, as it was when it was read in full.
    seen: Mutex<Option<Vec<u8>>>,
}

impl LogPlace {
    /// Makes sure that this is the place that it was.
    fn check(&self) -> Result<()> {
        let seen = self.seen.try_lock().ok().and_then(|seen| seen.clone());
        if seen.is_some() && self.location.as_directory().is_none() {
            return Ok(()); // a bucket is not mounted
        }
        let bytes = self.location.read(MARKER)?;
        if bytes.is_some() && bytes == seen {
            return Ok(());
        }
        let checked = check_place(&self.home, &self.format, &self.location, self.place);
        // To those who ask several places, one that is not there is one that does not answer.
        checked.map_err(|error| Error::retry(error.message()))?;
        if let Ok(mut seen) = self.seen.try_lock() {
            *seen = bytes;
        }
        Ok(())
    }

    fn medium(&self) -> Result<&Arc<dyn LogMedium>> {
        // To those who ask several places, one that cannot be asked is one that does not answer.
        self.medium.as_ref().map_err(|error| Error::retry(error.message()))
    }

    /// Asks, and looks behind that whether it is there: before, it might have gone meanwhile.
    fn if_there<T>(&self, ask: impl FnOnce(&dyn LogMedium) -> Result<T>) -> Result<T> {
        let answer = ask(&**self.medium()?);
        self.check().and(answer)
    }
}

impl fmt::Debug for LogPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe())
    }
}

impl LogMedium for LogPlace {
    fn describe(&self) -> String {
        match &self.medium {
            Ok(medium) => medium.describe(),
            Err(_) => self.location.to_string(),
        }
    }

    fn jobs(&self) -> Result<Vec<JobName>> {
        self.if_there(|medium| medium.jobs())
    }

    fn list(&self, job: &JobName) -> Result<Vec<u64>> {
        self.if_there(|medium| medium.list(job))
    }

    fn get(&self, job: &JobName, number: u64) -> Result<Option<Vec<u8>>> {
        self.if_there(|medium| medium.get(job, number))
    }

    fn has(&self, job: &JobName, number: u64) -> Result<bool> {
        self.if_there(|medium| medium.has(job, number))
    }

    fn put_new(&self, job: &JobName, number: u64, record: &[u8]) -> Result<Put> {
        // Nothing is made below a mount point.
        self.check()?;
        self.if_there(|medium| medium.put_new(job, number, record))
    }

    fn delete(&self, job: &JobName, number: u64) -> Result<()> {
        self.medium()?.delete(job, number)
    }

    fn sync(&self, job: &JobName) -> Result<()> {
        self.if_there(|medium| medium.sync(job))
    }

    fn tidy(&self, job: &JobName) -> Result<()> {
        self.medium()?.tidy(job)
    }

    fn lock_collecting(&self) -> Result<Lock> {
        self.check()?;
        self.medium()?.lock_collecting()
    }

    fn lock_reading(&self) -> Result<Option<LockGuard>> {
        self.check()?;
        self.medium()?.lock_reading()
    }

    fn is_read(&self) -> Result<bool> {
        self.if_there(|medium| medium.is_read())
    }
}
