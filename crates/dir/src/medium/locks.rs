//! Locks of a log in a directory: `flock(2)` on two files beside the jobs. The kernel ends a lock
//! with the process that holds it, however that process ends.

use crate::owner::adopt_file;
use outlive_log::{Lock, LockGuard};
use outlive_types::{Error, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process;

/// Names that no job's directory has, as these are files.
const COLLECTING: &str = ".collecting.lock";
const READING: &str = ".reading.lock";

pub(super) struct Locks {
    dir: PathBuf,
}

impl Locks {
    pub(super) fn new(dir: PathBuf) -> Locks {
        Locks { dir }
    }

    /// Makes the files of the locks, with a job's first record. A reader without write permission
    /// could not make them, and so could not protect the packs that it reads.
    pub(super) fn make_all(&self) {
        for name in [COLLECTING, READING] {
            let path = self.dir.join(name);
            if !path.exists() {
                let _ = self.make(&path);
            }
        }
    }

    pub(super) fn collecting(&self) -> Result<Lock> {
        let Some(file) = self.open(COLLECTING)? else { return Ok(Lock::None) };
        match self.lock(&file, COLLECTING, FlockOperation::NonBlockingLockExclusive)? {
            LockAttempt::Taken => Ok(Lock::Taken(Guard::boxed(file))),
            LockAttempt::Busy => Ok(Lock::Busy),
            LockAttempt::Unsupported => Ok(Lock::None),
        }
    }

    pub(super) fn reading(&self) -> Result<Option<LockGuard>> {
        let Some(file) = self.open(READING)? else { return Ok(None) };
        // An exclusive holder only checks whether there are readers, and releases the lock at once.
        match self.lock(&file, READING, FlockOperation::LockShared)? {
            LockAttempt::Taken => Ok(Some(Guard::boxed(file))),
            LockAttempt::Busy | LockAttempt::Unsupported => Ok(None),
        }
    }

    pub(super) fn is_read(&self) -> Result<bool> {
        let Some(file) = self.open(READING)? else { return Ok(false) };
        let answer = self.lock(&file, READING, FlockOperation::NonBlockingLockExclusive)?;
        drop(Guard::boxed(file));
        Ok(matches!(answer, LockAttempt::Busy))
    }

    fn lock(&self, file: &File, name: &str, operation: FlockOperation) -> Result<LockAttempt> {
        loop {
            return match flock(file, operation) {
                Ok(()) => Ok(LockAttempt::Taken),
                Err(Errno::INTR) => continue,
                Err(Errno::WOULDBLOCK) => Ok(LockAttempt::Busy),
                // The file system has no locks, or cannot reach its lock server.
                Err(Errno::NOSYS | Errno::NOTSUP | Errno::NOLCK | Errno::INVAL | Errno::BADF) => {
                    Ok(LockAttempt::Unsupported)
                }
                Err(errno) => {
                    Err(Error::io("locking", &self.dir.join(name), &io::Error::from(errno)))
                }
            };
        }
    }

    /// Opens the file of a lock, and makes it if needed. `None` if this user can do neither, or the
    /// log does not exist yet.
    pub(super) fn open(&self, name: &str) -> Result<Option<File>> {
        let path = self.dir.join(name);
        // Over NFS, only a file that is open for writing can have an exclusive lock.
        let for_both = OpenOptions::new().read(true).write(true).open(&path);
        let opened = for_both.or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => self.make(&path),
            _ => File::open(&path),
        });
        match opened {
            Ok(file) => Ok(Some(file)),
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound
                | io::ErrorKind::PermissionDenied
                | io::ErrorKind::ReadOnlyFilesystem
                | io::ErrorKind::StorageFull
                | io::ErrorKind::QuotaExceeded => Ok(None),
                _ => Err(Error::io("opening", &path, &error)),
            },
        }
    }

    /// Every user of the log may use its locks.
    fn make(&self, path: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(path)?;
        adopt_file(&self.dir, &file);
        Ok(file)
    }
}

enum LockAttempt {
    Taken,
    Busy,
    Unsupported,
}

/// A hold on a lock. A forked child shares it, and must leave it to its parent.
struct Guard {
    file: File,
    pid: u32,
}

impl Guard {
    fn boxed(file: File) -> LockGuard {
        LockGuard::new(Guard { file, pid: process::id() })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.pid == process::id() {
            let _ = flock(&self.file, FlockOperation::Unlock);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A forked child has its parent's open file, and another process number. A program with a lazy
    /// restore must stay visible to a gc when its child ends.
    #[test]
    fn a_forked_child_that_ends_leaves_the_lock_to_its_parent() {
        let dir = tempfile::tempdir().unwrap();
        let locks = Locks::new(dir.path().to_owned());
        let file = locks.open(READING).unwrap().unwrap();
        let taken = locks.lock(&file, READING, FlockOperation::LockShared).unwrap();
        assert!(matches!(taken, LockAttempt::Taken));
        let of_child = Guard { file: file.try_clone().unwrap(), pid: process::id() + 1 };
        let of_parent = Guard::boxed(file);
        drop(of_child);
        assert!(locks.is_read().unwrap());
        drop(of_parent);
        assert!(!locks.is_read().unwrap());
    }
}
