//! Small files about the runs of a job, in the folder `run` of the pool's home: requests to stop, and
//! the history of `outlive run`.

use crate::Pool;
use crate::host::this_host;
use outlive_backend::Location;
use outlive_encrypt::Encryption;
use outlive_types::sync::sleep;
use outlive_types::{Error, JobName, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::time::Duration;

/// Folder of the files.
const FOLDER: &str = "run";
/// Number of attempts to take the lock, and the pause between two.
const LOCK_TRIES: usize = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

impl Pool {
    /// Returns the content of a file about the runs of a job; `None` if there is none. An empty file
    /// is as good as none.
    ///
    /// # Errors
    /// `Invalid` for a pool without a home; errors of the backend.
    pub fn read_run_file(&self, job: &JobName, kind: &str) -> Result<Option<Vec<u8>>> {
        let name = name(job, kind);
        let bytes = self.home()?.open_files()?.read(&name)?.filter(|bytes| !bytes.is_empty());
        let (Some(bytes), Some(encryption)) = (&bytes, self.encryption()) else { return Ok(bytes) };
        let plain = encryption.decrypt(name.as_bytes(), bytes.clone());
        plain.map(Some).map_err(|error| error.context(name))
    }

    /// Writes such a file, and replaces an earlier one in one step.
    ///
    /// # Errors
    /// As [`Pool::read_run_file`].
    pub fn write_run_file(&self, job: &JobName, kind: &str, bytes: &[u8]) -> Result<()> {
        let files = self.home()?.open_files()?;
        files.make_folders(&[FOLDER])?;
        let name = name(job, kind);
        match self.encryption().filter(|_| !bytes.is_empty()) {
            Some(encryption) => files.write(&name, &encryption.encrypt(name.as_bytes(), bytes)?),
            None => files.write(&name, bytes),
        }
    }

    /// Makes a folder for the runs of a job, which only this user may read. `None` if the pool's
    /// home is no directory, or the pool is encrypted: a program writes there as it likes.
    ///
    /// # Errors
    /// `Invalid` for a pool without a home; errors of the file system.
    pub fn make_run_folder(&self, job: &JobName, kind: &str) -> Result<Option<PathBuf>> {
        let home = self.home()?;
        let Some(dir) = home.as_directory().filter(|_| self.encryption().is_none()) else {
            return Ok(None);
        };
        home.open_files()?.make_folders(&[FOLDER])?;
        let path = std::path::absolute(dir.join(name(job, kind)))
            .map_err(|e| Error::io_named("looking at", dir, &e))?;
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                Err(Error::io_named("making", &path, &error))
            }
            _ => Ok(Some(path)),
        }
    }

    /// Locks the runs of a job until the returned file is dropped, or the process ends in whatever
    /// way. `None` if the pool's home is no directory, and has no locks.
    ///
    /// # Errors
    /// `Invalid` if another supervisor has it; errors of the file system.
    pub fn lock_run(&self, job: &JobName) -> Result<Option<File>> {
        let home = self.home()?;
        let Some(dir) = home.as_directory() else { return Ok(None) };
        home.open_files()?.make_folders(&[FOLDER])?;
        let path = dir.join(name(job, "lock"));
        let file = File::create(&path).map_err(|e| Error::io_named("making", &path, &e))?;
        let mut tries = 1;
        let locked = loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // A look has it for a moment.
                Err(Errno::WOULDBLOCK) if tries < LOCK_TRIES => {
                    tries += 1;
                    sleep(LOCK_PAUSE);
                }
                locked => break locked,
            }
        };
        match locked {
            Ok(()) => Ok(Some(file)),
            Err(Errno::WOULDBLOCK) => Err(Error::invalid(format!(
                "another `outlive run` supervises job {job} of this pool: let it end, or stop it with `{}`",
                self.command("stop", &[job.as_str()])
            ))),
            Err(error) => Err(Error::io("locking", &path, &error.into())),
        }
    }

    /// Returns whether a supervisor has the lock of [`Pool::lock_run`]. `None` if that cannot be
    /// known. Writes nothing.
    pub fn is_run_locked(&self, job: &JobName) -> Option<bool> {
        let path = self.home().ok()?.as_directory()?.join(name(job, "lock"));
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Some(false),
            Err(_) => return None,
        };
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Some(false),
            Err(Errno::WOULDBLOCK) => Some(true),
            Err(_) => None,
        }
    }

    /// Returns whether each request to the pool's home takes a network's time.
    pub fn is_remote(&self) -> bool {
        self.home().is_ok_and(|home| home.is_remote())
    }

    /// Returns whether it has a home, where these files can be.
    pub fn has_home(&self) -> bool {
        self.paths().is_some()
    }

    fn encryption(&self) -> Option<&Encryption> {
        self.paths()?.encryption().map(|encryption| &**encryption)
    }

    fn home(&self) -> Result<&Location> {
        let paths = self.paths();
        paths.map(|paths| &paths.root).ok_or_else(|| Error::invalid("the pool has no home"))
    }
}

fn name(job: &JobName, kind: &str) -> String {
    format!("{FOLDER}/{}.{kind}", job.escaped())
}

/// Returns the name of this host.
pub fn host_name() -> String {
    this_host()
}
