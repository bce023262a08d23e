//! The places of a pool's log: which of them are there, and a medium that asks a place only as long as it
//! is this pool's. A directory whose disk is not mounted would otherwise be taken for an empty one.

use crate::config::FormatConfig;
use crate::home::{Home, MARKER};
use crate::location::Location;
use crate::marker::{Marker, ThisPlace};
use crate::place::{compare, look_for, text};
use outlive_target::{Asking, Lock, LockGuard, LogMedium, ManifestLog, Places, Put, RecordLog};
use outlive_types::{Error, ErrorKind, JobName, Result};
use std::fmt;
use std::sync::{Arc, Mutex};

/// Opens a pool's log.
///
/// # Errors
/// `Invalid` if a place cannot be used.
pub(crate) fn open_log(home: &Home, format: &FormatConfig) -> Result<Arc<dyn ManifestLog>> {
    if let [only] = &home.log[..] {
        return only.open_log();
    }
    let mut places: Vec<Arc<dyn LogMedium>> = Vec::new();
    for (location, place) in home.log_places() {
        let medium = location.open_medium()?;
        let (home, format, location) = (home.clone(), format.clone(), location.clone());
        let seen = Mutex::default();
        places.push(Arc::new(LogPlace { home, format, location, place, medium, seen }));
    }
    Ok(Arc::new(RecordLog::over(Places::new(places, Asking::AtOnce)?)))
}

/// The marker of a log, and why places of it are away. Refuses a log that is not this pool's.
///
/// # Errors
/// `Damaged` if it is missing; `Retry` if it has several places, and less than a majority are there;
/// `Invalid` if it, or a place of it, is another.
pub(crate) fn check_log(home: &Home, format: &FormatConfig) -> Result<(Marker, Vec<Error>)> {
    let (mut marker, mut away) = (None, Vec::new());
    for (location, place) in home.log_places() {
        match check_place(home, format, location, place) {
            Ok(there) => marker = marker.or(Some(there)),
            Err(error) if home.log.len() == 1 || error.kind() == ErrorKind::Invalid => {
                return Err(error);
            }
            Err(error) => away.push(error),
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

/// The marker of one place of the log, if that is this pool's.
pub(crate) fn check_place(
    home: &Home,
    format: &FormatConfig,
    location: &Location,
    place: Option<ThisPlace>,
) -> Result<Marker> {
    let marker = marker_in(home, location, place)?;
    compare(home, format, &location.name(MARKER), &marker, "log")?;
    if marker.place == place {
        return Ok(marker);
    }
    let said = |place: Option<ThisPlace>| match place {
        None => "the only place of a log".to_owned(),
        Some(ThisPlace { number, of }) => format!("place {number} of {of} of a log"),
    };
    Err(Error::invalid(format!(
        "{location} holds {}, and {} says that it is {}: put the locations of [log] right, in the order \
         that they were made in",
        said(marker.place),
        home.descriptor(),
        said(place)
    )))
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
    medium: Arc<dyn LogMedium>,
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

    /// Behind what it has answered: before, it might have gone meanwhile.
    fn if_there<T>(&self, answer: Result<T>) -> Result<T> {
        self.check().and(answer)
    }
}

impl fmt::Debug for LogPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.medium.fmt(f)
    }
}

impl LogMedium for LogPlace {
    fn describe(&self) -> String {
        self.medium.describe()
    }

    fn jobs(&self) -> Result<Vec<JobName>> {
        self.if_there(self.medium.jobs())
    }

    fn list(&self, job: &JobName) -> Result<Vec<u64>> {
        self.if_there(self.medium.list(job))
    }

    fn get(&self, job: &JobName, number: u64) -> Result<Option<Vec<u8>>> {
        self.if_there(self.medium.get(job, number))
    }

    fn has(&self, job: &JobName, number: u64) -> Result<bool> {
        self.if_there(self.medium.has(job, number))
    }

    fn put_new(&self, job: &JobName, number: u64, record: &[u8]) -> Result<Put> {
        // Nothing is made below a mount point.
        self.check()?;
        self.if_there(self.medium.put_new(job, number, record))
    }

    fn delete(&self, job: &JobName, number: u64) -> Result<()> {
        self.medium.delete(job, number)
    }

    fn sync(&self, job: &JobName) -> Result<()> {
        self.if_there(self.medium.sync(job))
    }

    fn tidy(&self, job: &JobName) -> Result<()> {
        self.medium.tidy(job)
    }

    fn lock_collecting(&self) -> Result<Lock> {
        self.check()?;
        self.medium.lock_collecting()
    }

    fn lock_reading(&self) -> Result<Option<LockGuard>> {
        self.check()?;
        self.medium.lock_reading()
    }

    fn is_read(&self) -> Result<bool> {
        self.if_there(self.medium.is_read())
    }
}
