//! A directory of records, one file each. A file gets its name by `link(2)`, which never replaces.

use crate::durable::{
    OWN_FILES, freshen, make_dir_durable, make_one_dir_durable, publish, sync_dir,
};
use crate::owner::{adopt_dir, adopt_file};
use locks::Locks;
use outlive_log::{Lease, Lock, LockGuard};
use outlive_log::{
    LogLocks, LogRecords, LogSeal, Put, RecordLog, job_folder, record_name, record_number,
};
use outlive_types::sync::pause;
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, JobName, Result, Rng, SystemRng};
use std::collections::HashSet;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A log in a directory.
pub type DirectoryLog = RecordLog<DirectoryMedium>;

/// Records as files `log/JOB/NUMBER.record` below a root.
pub struct DirectoryMedium {
    root: PathBuf,
    /// Whether this creates the root, and `log` in it, if they are missing.
    makes_root: bool,
    /// Jobs whose directory is known to be durable. Uses `try_lock` only: a forked child may
    /// inherit the lock in use, and making a directory durable twice does no harm.
    made: Mutex<HashSet<JobName>>,
    locks: Locks,
}

impl DirectoryMedium {
    /// Uses the directory `log` below `root`; the first append makes it.
    pub fn open(root: &Path) -> DirectoryMedium {
        let locks = Locks::new(root.join("log"));
        DirectoryMedium { root: root.to_owned(), makes_root: true, made: Mutex::default(), locks }
    }

    /// Uses the existing directory `log` below `root`. If it vanishes, as on an unmounted disk, it
    /// is not made again.
    pub fn within(root: &Path) -> DirectoryMedium {
        DirectoryMedium { makes_root: false, ..DirectoryMedium::open(root) }
    }

    fn dir_of(&self, job: &JobName) -> PathBuf {
        self.root.join(job_folder(job))
    }

    fn path(&self, job: &JobName, number: u64) -> PathBuf {
        self.dir_of(job).join(record_name(number))
    }

    fn make_dir(&self, job: &JobName) -> Result<()> {
        if self.made.try_lock().is_some_and(|made| made.contains(job)) && self.dir_of(job).is_dir()
        {
            return Ok(());
        }
        self.make_log_dir()?;
        self.make_dirs([self.dir_of(job)])?;
        self.locks.make_all();
        if let Some(mut made) = self.made.try_lock() {
            made.insert(job.clone());
        }
        Ok(())
    }

    /// Makes the directories above the jobs, if this log may.
    fn make_log_dir(&self) -> Result<()> {
        match self.makes_root {
            true => self.make_dirs([self.root.clone(), self.root.join("log")]),
            false => Ok(()),
        }
    }

    fn make_dirs<const N: usize>(&self, dirs: [PathBuf; N]) -> Result<()> {
        for path in dirs {
            let is_new = !path.exists();
            make_one_dir_durable(&path)
                .or_else(|error| if self.makes_root { make_dir_durable(&path) } else { Err(error) })
                .map_err(|error| Error::io("creating the directory", &path, &error))?;
            if is_new {
                adopt_dir(&self.root, &path);
            }
        }
        Ok(())
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

    /// Gives the record its name, unless another one has it.
    fn give_name(&self, job: &JobName, number: u64, record: &[u8], from: &Path) -> Result<Put> {
        let to = self.path(job, number);
        let Err(error) = publish(from, &to) else { return Ok(Put::Made) };
        match error.kind() {
            io::ErrorKind::AlreadyExists => Ok(Put::Taken),
            io::ErrorKind::Unsupported => Err(Error::invalid(format!(
                "the file system of {} can neither link files nor rename them without replacing, so \
                 two writers could overwrite each other's checkpoints: keep the pool elsewhere",
                to.display()
            ))),
            // A program that pruned the log took the file for a leftover.
            io::ErrorKind::NotFound if !from.exists() => {
                let again = self.write_temporary(job, record)?;
                let put = self.give_name(job, number, record, &again);
                let _ = fs::remove_file(&again);
                put
            }
            _ => Err(Error::io("appending the record", &to, &error)),
        }
    }
}

impl LogRecords for DirectoryMedium {
    fn describe(&self) -> String {
        format!("directory {}", self.root.join("log").display())
    }

    fn jobs(&self) -> Result<Vec<JobName>> {
        let names = file_names(&self.root.join("log"))?;
        Ok(names.iter().filter_map(|name| JobName::listed_from_escaped(name)).collect())
    }

    fn list(&self, job: &JobName) -> Result<Vec<u64>> {
        let names = file_names(&self.dir_of(job))?;
        let mut numbers: Vec<u64> = names.iter().filter_map(|name| record_number(name)).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn get(&self, job: &JobName, number: u64) -> Result<Option<Vec<u8>>> {
        let path = self.path(job, number);
        match fs::read(&path) {
            Ok(record) => Ok(Some(record)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io_stored("reading the record", &path, &error)),
        }
    }

    fn has(&self, job: &JobName, number: u64) -> Result<bool> {
        let path = self.path(job, number);
        path.try_exists().map_err(|error| Error::io_stored("looking for the record", &path, &error))
    }

    fn put_new(&self, job: &JobName, number: u64, record: &[u8]) -> Result<Put> {
        self.make_dir(job)?;
        pause("write a record");
        let temporary = self.write_temporary(job, record)?;
        pause("give the record its number");
        let put = self.give_name(job, number, record, &temporary);
        // If it cannot be removed, it is garbage with a name of its own.
        let _ = fs::remove_file(&temporary);
        put
    }

    fn delete(&self, job: &JobName, number: u64) -> Result<()> {
        remove(&self.path(job, number), "removing the record")
    }

    fn sync(&self, job: &JobName) -> Result<()> {
        let path = self.dir_of(job);
        let is_ours = self.made.try_lock().is_some_and(|made| made.contains(job));
        match sync_dir(&path) {
            // No record is visible. If this program had put one there, it would be gone.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !is_ours => Ok(()),
            synced => synced.map_err(|error| Error::io("syncing the directory", &path, &error)),
        }
    }

    fn freshen(&self, job: &JobName) -> Result<()> {
        let records = self.list(job)?.into_iter().map(|number| self.path(job, number));
        let own = OWN_FILES.iter().map(|name| self.root.join(name));
        for path in records.chain(own) {
            freshen(&path).map_err(|error| Error::io("refreshing the times of", &path, &error))?;
        }
        Ok(())
    }

    fn tidy(&self, job: &JobName) -> Result<()> {
        for name in file_names(&self.dir_of(job))? {
            if name.starts_with(TEMPORARY) {
                remove(&self.dir_of(job).join(name), "removing a left-over")?;
            }
        }
        Ok(())
    }
}

impl LogLocks for DirectoryMedium {
    fn lock_collecting(&self) -> Result<Lock> {
        self.locks.collecting()
    }

    fn lock_reading(&self) -> Result<Option<LockGuard>> {
        self.locks.reading()
    }

    fn is_read(&self) -> Result<bool> {
        self.locks.is_read()
    }

    fn lease(&self) -> Result<Option<Lease>> {
        let log = self.root.join("log");
        if !log.is_dir() {
            self.make_log_dir()?;
        }
        leases::take(&self.locks, &log)
    }

    fn has_lease_ended(&self, token: &str) -> Result<Option<bool>> {
        Ok(leases::has_ended(&self.root.join("log"), token))
    }
}

impl LogSeal for DirectoryMedium {}

/// Removes a file; a missing one is no error.
fn remove(path: &Path, doing: &str) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io(doing, path, &error))
        }
        _ => Ok(()),
    }
}

/// Prefix of the names of records that are still being written.
const TEMPORARY: &str = ".tmp-";

impl fmt::Debug for DirectoryMedium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DirectoryMedium({})", self.root.display())
    }
}

/// Returns the names in a directory that are text; none if it is missing or no directory.
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
    let listed = listed.map_err(|error| Error::io_stored("listing", path, &error))?;
    Ok(listed.into_iter().filter_map(|name| name.into_string().ok()).collect())
}

mod leases;
mod locks;
#[cfg(test)]
mod tests;
