//! A directory as a log: one file per record, appended by `link(2)`, which never replaces.

use crate::durable::{make_dir_durable, publish, sync_dir};
use crate::owner::{adopt_dir, adopt_file};
use crate::{Append, Lock, LockGuard, ManifestLog, Previous};
use locks::Locks;
use outlive_format::{Record, fingerprint};
use outlive_types::sync::pause;
use outlive_types::{Error, JobName, Result, Rng, SystemRng};
use std::collections::HashSet;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Records as files `log/JOB/NUMBER.record` below a root.
pub struct DirectoryLog {
    root: PathBuf,
    /// Jobs whose directory is known to be there, durably. Only ever tried: a forked child may
    /// inherit it locked, and making a directory durable twice does no harm.
    made: Mutex<HashSet<JobName>>,
    locks: Locks,
}

impl DirectoryLog {
    /// Uses the directory `log` below `root`; it is made when the first record is appended.
    pub fn open(root: &Path) -> DirectoryLog {
        let locks = Locks::new(root.join("log"));
        DirectoryLog { root: root.to_owned(), made: Mutex::default(), locks }
    }

    fn dir_of(&self, job: &JobName) -> PathBuf {
        self.root.join("log").join(job.escaped())
    }

    fn path(&self, job: &JobName, number: u64) -> PathBuf {
        self.dir_of(job).join(format!("{number:016x}.record"))
    }

    fn make_dir(&self, job: &JobName) -> Result<()> {
        if self.made.try_lock().is_ok_and(|made| made.contains(job)) && self.dir_of(job).is_dir() {
            return Ok(());
        }
        for path in [self.root.clone(), self.root.join("log"), self.dir_of(job)] {
            let is_new = !path.exists();
            make_dir_durable(&path)
                .map_err(|error| Error::io("creating the directory", &path, &error))?;
            if is_new {
                adopt_dir(&self.root, &path);
            }
        }
        self.locks.make_all();
        if let Ok(mut made) = self.made.try_lock() {
            made.insert(job.clone());
        }
        Ok(())
    }

    /// What is there instead of a new record `number`; `None` if nothing is.
    fn occupied(&self, job: &JobName, previous: Previous, record: &[u8]) -> Result<Option<Append>> {
        let number = next_number(previous.number)?;
        let path = self.path(job, number);
        match fs::read(&path) {
            // Ours, from a call whose reply got lost, perhaps before it was durable.
            Ok(bytes) if bytes == record => return self.settle(job, number, record).map(Some),
            Ok(_) => return Ok(Some(Append::Lost)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io("reading the record", &path, &error)),
        }
        // A log that was never pruned has no gaps, so with its predecessor there and itself not,
        // nothing newer is. This spares a listing per append while the log is long; once it was
        // pruned, a power cut may have left a gap among its oldest, and it is short.
        let before = previous.number;
        if before == 0 || !self.path(job, before).exists() || !self.path(job, 1).exists() {
            match self.latest(job)? {
                latest if latest > before => return Ok(Some(Append::Lost)),
                latest if latest < before => {
                    return Err(no_record(&self.describe(), job, before));
                }
                _ => {}
            }
        }
        if before == 0 {
            return Ok(None);
        }
        let path = self.path(job, before);
        match fs::read(&path) {
            Ok(bytes) if fingerprint(&bytes) == previous.fp => Ok(None),
            // Another record than was meant; or it was pruned just now, and newer ones are there.
            Ok(_) => Ok(Some(Append::Lost)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Some(Append::Lost)),
            Err(error) => Err(Error::io("reading the record", &path, &error)),
        }
    }

    fn write_temporary(&self, job: &JobName, record: &[u8]) -> Result<PathBuf> {
        let mut random = [0; 8];
        SystemRng.fill(&mut random);
        let path = self.dir_of(job).join(format!("{TEMPORARY}{:016x}", u64::from_le_bytes(random)));
        let written = File::create_new(&path).and_then(|mut file| {
            adopt_file(&self.root, &file);
            file.write_all(record)?;
            file.sync_all()
        });
        written.map_err(|error| {
            let _ = fs::remove_file(&path);
            Error::io("writing a record as", &path, &error)
        })?;
        Ok(path)
    }

    /// Gives the record its name, unless somebody else's has it.
    fn give_number(
        &self,
        job: &JobName,
        previous: Previous,
        record: &[u8],
        from: &Path,
    ) -> Result<Append> {
        let number = next_number(previous.number)?;
        let to = self.path(job, number);
        match publish(from, &to) {
            Ok(()) => {
                pause("the record has its number");
                self.settle(job, number, record)
            }
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                Err(Error::invalid(format!(
                    "the file system of {} can neither link files nor rename them without replacing, \
                     so two writers could overwrite each other's checkpoints: keep the pool \
                     elsewhere",
                    to.display()
                )))
            }
            // Taken by another, or by us: over a network the reply may have been lost.
            Err(error) => match self.occupied(job, previous, record)? {
                Some(append) => Ok(append),
                // Whoever pruned the log has taken it for a left-over.
                None if error.kind() == io::ErrorKind::NotFound && !from.exists() => {
                    let again = self.write_temporary(job, record)?;
                    let outcome = self.give_number(job, previous, record, &again);
                    let _ = fs::remove_file(&again);
                    outcome
                }
                None => Err(Error::io("appending the record", &to, &error)),
            },
        }
    }

    /// Our record has its number: makes that durable, unless it came too late.
    fn settle(&self, job: &JobName, number: u64, record: &[u8]) -> Result<Append> {
        if self.is_behind(job, number, record)? {
            pause("take back a record that came too late");
            // Nobody reads it, and the log is without a gap again.
            let _ = fs::remove_file(self.path(job, number));
            return Ok(Append::Lost);
        }
        self.sync(job).map(|()| Append::Done)
    }

    /// Whether record `number` got its name only after others had had it and were pruned: a writer
    /// may be suspended for hours between its look at the log and the link.
    fn is_behind(&self, job: &JobName, number: u64, record: &[u8]) -> Result<bool> {
        // Old records go first: while the one before it is there, its number was free all along.
        if number > 1 && self.path(job, number - 1).exists() || self.latest(job)? <= number {
            return Ok(false);
        }
        pause("look behind the record");
        let path = self.path(job, number + 1);
        match fs::read(&path) {
            Ok(next) => {
                Ok(Record::decode(&next).is_ok_and(|next| next.previous != fingerprint(record)))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            Err(error) => Err(Error::io("reading the record", &path, &error)),
        }
    }

    /// Removes what writers that were killed have left. One that is at work notices, and writes its
    /// record again.
    fn remove_left_overs(&self, job: &JobName) -> Result<()> {
        for name in file_names(&self.dir_of(job))? {
            if name.starts_with(TEMPORARY) {
                let path = self.dir_of(job).join(name);
                match fs::remove_file(&path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        return Err(Error::io("removing a left-over", &path, &error));
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn sync(&self, job: &JobName) -> Result<()> {
        let path = self.dir_of(job);
        sync_dir(&path).map_err(|error| Error::io("syncing the directory", &path, &error))
    }
}

impl ManifestLog for DirectoryLog {
    fn describe(&self) -> String {
        format!("directory {}", self.root.join("log").display())
    }

    fn jobs(&self) -> Result<Vec<JobName>> {
        let mut jobs = Vec::new();
        for name in file_names(&self.root.join("log"))? {
            if let Some(job) = JobName::from_escaped(&name)
                && !self.numbers(&job)?.is_empty()
            {
                jobs.push(job);
            }
        }
        jobs.sort_unstable();
        Ok(jobs)
    }

    fn numbers(&self, job: &JobName) -> Result<Vec<u64>> {
        let names = file_names(&self.dir_of(job))?;
        let mut numbers: Vec<u64> = names.iter().filter_map(|name| parse_record(name)).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn read(&self, job: &JobName, number: u64) -> Result<Vec<u8>> {
        let path = self.path(job, number);
        fs::read(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => no_record(&self.describe(), job, number),
            _ => Error::io("reading the record", &path, &error),
        })
    }

    fn append_if(&self, job: &JobName, previous: Previous, record: &[u8]) -> Result<Append> {
        self.make_dir(job)?;
        if let Some(append) = self.occupied(job, previous, record)? {
            return Ok(append);
        }
        pause("write a record");
        let temporary = self.write_temporary(job, record)?;
        pause("give the record its number");
        let outcome = self.give_number(job, previous, record, &temporary);
        // What cannot be removed is garbage with a name of its own.
        let _ = fs::remove_file(&temporary);
        outcome
    }

    fn remove_before(&self, job: &JobName, number: u64) -> Result<()> {
        let numbers = self.numbers(job)?;
        let newest = numbers.last().copied().unwrap_or(0);
        let old = numbers.into_iter().filter(|old| *old < number.min(newest));
        let mut removed = 0;
        for old in old {
            let path = self.path(job, old);
            pause("remove a record");
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::io("removing the record", &path, &error));
                }
                _ => removed += 1,
            }
            // Names vanish in any order at a power cut. That the first is gone must hold before there
            // can be a gap (see `occupied`); the rest is made durable now and then.
            if removed % REMOVED_PER_SYNC == 1 {
                self.sync(job)?;
            }
        }
        if removed > 0 {
            self.sync(job)?;
        }
        self.remove_left_overs(job)
    }

    fn sync(&self, job: &JobName) -> Result<()> {
        match self.dir_of(job).is_dir() {
            true => DirectoryLog::sync(self, job),
            false => Ok(()), // nothing is visible
        }
    }

    fn lock_collecting(&self) -> Result<Lock> {
        self.locks.collecting()
    }

    fn lock_reading(&self) -> Result<Option<LockGuard>> {
        self.locks.reading()
    }

    fn is_read(&self) -> Result<bool> {
        self.locks.is_read()
    }
}

/// How the names of records begin that are still being written.
const TEMPORARY: &str = ".tmp-";

/// Records removed between two syncs of their directory.
const REMOVED_PER_SYNC: u32 = 256;

impl fmt::Debug for DirectoryLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DirectoryLog({})", self.root.display())
    }
}

/// The number behind `previous`.
pub(crate) fn next_number(previous: u64) -> Result<u64> {
    previous.checked_add(1).ok_or_else(|| Error::bug("a log's record numbers have run out"))
}

/// The error for a record that is not there.
pub(crate) fn no_record(place: &str, job: &JobName, number: u64) -> Error {
    Error::damaged(format!("record {number} of job {job} is missing from {place}"))
}

/// The names in a directory that are text; nothing if it is not there or not a directory.
fn file_names(path: &Path) -> Result<Vec<String>> {
    let listed = match fs::read_dir(path) {
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            return Ok(Vec::new());
        }
        other => other.and_then(|entries| {
            entries
                .map(|entry| entry.map(|entry| entry.file_name()))
                .collect::<io::Result<Vec<_>>>()
        }),
    };
    let listed = listed.map_err(|error| Error::io("listing", path, &error))?;
    Ok(listed.into_iter().filter_map(|name| name.into_string().ok()).collect())
}

/// Reads `NUMBER.record`; other files are none of ours.
fn parse_record(file_name: &str) -> Option<u64> {
    let digits = file_name.strip_suffix(".record")?;
    let number = u64::from_str_radix(digits, 16).ok()?;
    (number > 0 && format!("{number:016x}") == digits).then_some(number)
}

mod locks;
#[cfg(test)]
mod tests;
