//! Replicas of a pool's log: finds those that are there. Its medium asks a replica only as long as
//! that is this pool's; a directory whose disk is not mounted would otherwise count as an empty
//! one.

use crate::descriptor::compare::{compare, text};
use crate::descriptor::config::FormatConfig;
use crate::descriptor::log_configuration::LogConfiguration;
use crate::descriptor::marker::{Marker, Moved, ThisReplica};
use crate::descriptor::paths::{MARKER, PoolPaths};
use outlive_backend::{Location, SmallFiles};
use outlive_log::{Asking, Lease, Lock, LockGuard, LogLocks, LogMedium, LogRecords, LogSeal, Put};
use outlive_types::sync::pause;
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, ErrorKind, JobName, Result};
use std::fmt;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Longest wait for a silent replica, and, once a majority has answered, for the others.
const PATIENCE: Duration = Duration::from_secs(10);
const GRACE: Duration = Duration::from_millis(200);

/// Method to ask the replicas of a log.
pub(crate) const ASKING: Asking = Asking::AtOnce;

/// Opens the replicas of a configuration, each of which counts only as long as its marker is there.
///
/// # Errors
/// `Invalid` if the only one cannot be used.
pub(crate) fn open_replicas(
    paths: &PoolPaths,
    format: &FormatConfig,
    set: &LogConfiguration,
) -> Result<Vec<Arc<dyn LogMedium>>> {
    let mut replicas: Vec<Arc<dyn LogMedium>> = Vec::new();
    for (location, replica) in set.replicas() {
        let medium = paths.open_medium(location);
        if let (None, Err(error)) = (replica, &medium) {
            return Err(error.clone());
        }
        let (paths, format, location) = (paths.clone(), format.clone(), location.clone());
        let (number, seen) = (set.number, Mutex::default());
        replicas.push(Arc::new(PoolReplica {
            paths,
            format,
            location,
            number,
            replica,
            medium,
            seen,
        }));
    }
    Ok(replicas)
}

/// Result of looking for a replica.
pub(crate) enum ReplicaLookup {
    /// This pool's marker.
    There(Box<Marker>),
    /// Nothing that can be read now, with the reason.
    Away(Error),
    /// A location of another pool, or another replica of this one.
    Another(Error),
}

pub(crate) fn is_there(found: &ReplicaLookup) -> bool {
    matches!(found, ReplicaLookup::There(_))
}

/// Durability that a marker must have when it is found.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lasting {
    /// None: the caller only reads it.
    Now,
    /// It survives a power cut: the caller writes or deletes something elsewhere because of it.
    Durably,
}

/// Looks for each replica of a configuration. It asks several at once, since one may hang.
pub(crate) fn find_set(
    paths: &PoolPaths,
    format: &FormatConfig,
    set: &LogConfiguration,
    lasting: Lasting,
) -> Vec<ReplicaLookup> {
    let number_of_set = set.number;
    if let [only] = &set.at[..] {
        return vec![find_place(paths, format, only, number_of_set, None, lasting)];
    }
    let (tell, told) = mpsc::channel();
    for (number, (location, replica)) in set.replicas().enumerate() {
        let (paths, format, location) = (paths.clone(), format.clone(), location.clone());
        let tell = tell.clone();
        let look = move || {
            // The caller may have gone on.
            let found = find_place(&paths, &format, &location, number_of_set, replica, lasting);
            let _ = tell.send((number, found));
        };
        // Without a thread, the replica counts as silent.
        let _ = thread::Builder::new().name("outlive-log".to_owned()).spawn(look);
    }
    drop(tell);
    let silent = |location: &Location| {
        ReplicaLookup::Away(Error::retry(format!("{location} does not answer")))
    };
    let mut found: Vec<ReplicaLookup> = set.at.iter().map(silent).collect();
    let (mut until, mut there) = (Instant::now() + PATIENCE, 0);
    while let Ok((number, replica)) =
        told.recv_timeout(until.saturating_duration_since(Instant::now()))
    {
        there += usize::from(!matches!(replica, ReplicaLookup::Away(_)));
        found[number] = replica;
        if there > set.at.len() / 2 {
            until = until.min(Instant::now() + GRACE);
        }
    }
    found
}

fn find_place(
    paths: &PoolPaths,
    format: &FormatConfig,
    location: &Location,
    number: u32,
    replica: Option<ThisReplica>,
    lasting: Lasting,
) -> ReplicaLookup {
    let marker = match marker_in(paths, location, replica) {
        Ok(marker) => marker,
        Err(error) => return ReplicaLookup::Away(error),
    };
    if let Err(error) = compare(paths, format, &location.name(MARKER), &marker, "log") {
        return ReplicaLookup::Another(error);
    }
    if marker.set_number() != number {
        return ReplicaLookup::Another(Error::invalid(format!(
            "{location} holds a replica of configuration {} that the log had, and {} says that it is \
             number {number}: put the locations of [log] right",
            marker.set_number(),
            paths.descriptor()
        )));
    }
    if marker.replica == replica {
        // The process that sealed or opened the replica may have died before that was durable.
        let must_last = marker.moved.is_some() || lasting == Lasting::Durably;
        let kept = if must_last { location.keep(MARKER) } else { Ok(()) };
        return kept.map_or_else(ReplicaLookup::Away, |()| ReplicaLookup::There(Box::new(marker)));
    }
    let said = |replica: Option<ThisReplica>| match replica {
        None => "the only replica of a log".to_owned(),
        Some(ThisReplica { number, of }) => format!("replica {number} of {of} of a log"),
    };
    ReplicaLookup::Another(Error::invalid(format!(
        "{location} holds {}, and {} says that it is {}: put the locations of [log] right, in the order \
         that they were made in",
        said(marker.replica),
        paths.descriptor(),
        said(replica)
    )))
}

/// Returns the marker of one replica of the log, if that is this pool's.
///
/// # Errors
/// Reason why it is not, or is away.
pub(crate) fn check_replica(
    paths: &PoolPaths,
    format: &FormatConfig,
    location: &Location,
    number: u32,
    replica: Option<ThisReplica>,
) -> Result<Marker> {
    match find_place(paths, format, location, number, replica, Lasting::Now) {
        ReplicaLookup::There(marker) => Ok(*marker),
        ReplicaLookup::Away(error) | ReplicaLookup::Another(error) => Err(error),
    }
}

/// Returns the marker in a location, whichever pool has it.
pub(crate) fn marker_in(
    paths: &PoolPaths,
    location: &Location,
    replica: Option<ThisReplica>,
) -> Result<Marker> {
    let name = location.name(MARKER);
    let bytes = location.read(MARKER)?.ok_or_else(|| missing(paths, location, replica))?;
    Marker::parse(&text(bytes, &name)?, &name)
}

fn missing(paths: &PoolPaths, location: &Location, replica: Option<ThisReplica>) -> Error {
    let name = location.name(MARKER);
    let what = match replica {
        None => format!("the log of {} is missing", paths.root),
        Some(ThisReplica { number, of }) => {
            format!("replica {number} of {of} of the log of {} is away", paths.root)
        }
    };
    Error::damaged(format!(
        "{what} ({name} is not there): {}; nothing is read or written without it",
        location.advice()
    ))
}

/// One of the replicas of a log.
pub(crate) struct PoolReplica {
    paths: PoolPaths,
    format: FormatConfig,
    location: Location,
    /// Number of its configuration.
    number: u32,
    replica: Option<ThisReplica>,
    /// Its medium, or the reason why there is none.
    medium: Result<Arc<dyn LogMedium>>,
    /// Its marker when it was last read in full, and the move in it.
    seen: Mutex<Option<Seen>>,
}

/// Bytes of a marker, and of the move in it.
#[derive(Clone)]
struct Seen {
    marker: Vec<u8>,
    sealed: Option<Vec<u8>>,
}

impl PoolReplica {
    /// Returns a replica that takes records although it has no marker yet.
    pub fn unguarded(
        paths: &PoolPaths,
        format: &FormatConfig,
        location: &Location,
        number: u32,
    ) -> PoolReplica {
        let medium = paths.open_medium(location);
        let (paths, format, location) = (paths.clone(), format.clone(), location.clone());
        let (replica, seen) = (None, Mutex::default());
        PoolReplica { paths, format, location, number, replica, medium, seen }
    }

    /// Makes sure that this is still the same replica.
    fn check(&self) -> Result<()> {
        let is_seen = || self.seen.try_lock().is_some_and(|seen| seen.is_some());
        if self.replica.is_none() || self.location.as_directory().is_none() && is_seen() {
            return Ok(()); // a bucket has no mount, and the pool itself checks an only replica
        }
        self.look().map(drop)
    }

    /// Reads the marker. Returns the move that seals it.
    fn look(&self) -> Result<Option<Vec<u8>>> {
        let seen = self.seen.try_lock().and_then(|seen| seen.clone());
        let bytes = self.location.read(MARKER)?;
        if let Some(seen) = seen.filter(|seen| bytes.as_ref() == Some(&seen.marker)) {
            return Ok(seen.sealed);
        }
        let marker = self.marker()?;
        let sealed = marker.moved.as_ref().map(Moved::to_bytes).transpose()?;
        if let (Some(mut seen), Some(marker)) = (self.seen.try_lock(), bytes) {
            *seen = Some(Seen { marker, sealed: sealed.clone() });
        }
        Ok(sealed)
    }

    fn marker(&self) -> Result<Marker> {
        let checked =
            check_replica(&self.paths, &self.format, &self.location, self.number, self.replica);
        // Of several replicas, a missing one counts as silent. An only replica was there when the
        // pool was opened: nothing is known about its records now.
        checked.map_err(|error| match error.kind() {
            ErrorKind::Damaged => Error::retry(error.message()),
            _ => self.as_one_of_several(&error),
        })
    }

    fn as_one_of_several(&self, error: &Error) -> Error {
        match self.replica {
            Some(_) => Error::retry(error.message()),
            None => error.clone(),
        }
    }

    fn medium(&self) -> Result<&Arc<dyn LogMedium>> {
        self.medium.as_ref().map_err(|error| self.as_one_of_several(error))
    }

    /// Asks, and only then checks that the replica is there: it may go away in between.
    fn if_there<T>(&self, ask: impl FnOnce(&dyn LogMedium) -> Result<T>) -> Result<T> {
        let answer = ask(&**self.medium()?);
        self.check().and(answer)
    }
}

impl fmt::Debug for PoolReplica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe())
    }
}

impl LogRecords for PoolReplica {
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
        // Makes nothing below a mount point.
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

    fn freshen(&self, job: &JobName) -> Result<()> {
        self.if_there(|medium| medium.freshen(job))
    }
}

impl LogLocks for PoolReplica {
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

    fn lease(&self) -> Result<Option<Lease>> {
        self.check()?;
        self.medium()?.lease()
    }

    fn has_lease_ended(&self, token: &str) -> Result<Option<bool>> {
        self.if_there(|medium| medium.has_lease_ended(token))
    }
}

impl LogSeal for PoolReplica {
    fn sealed(&self) -> Result<Option<Vec<u8>>> {
        self.look()
    }

    fn seal(&self, successor: &[u8]) -> Result<()> {
        if self.look()?.is_some() {
            return Ok(());
        }
        pause("seal a log replica");
        let sealed = Marker { moved: Some(Moved::parse(successor)?), ..self.marker()? };
        self.location.write(MARKER, sealed.to_text()?.as_bytes())?;
        Ok(())
    }
}
