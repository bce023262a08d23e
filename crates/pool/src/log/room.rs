//! Checks that a location has room for a log that is to be moved there. The check comes before the
//! decision, which cannot be taken back: a log in a full location would wait until a person frees
//! space.

use crate::descriptor::paths::PoolPaths;
use crate::host::is_in_memory;
use outlive_backend::Location;
use outlive_log::ManifestLog;
use outlive_types::{Error, JobName, Result, Rng};
use rustix::fs::{Access, FallocateFlags, access, fallocate};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};

/// Least space of a record, as file systems give space in blocks.
const RECORD_BYTES_MIN: u64 = 4096;

/// Space for what the move itself and the next commits write: directories, notes, markers.
const EXTRA_BYTES: u64 = 64 << 10;

/// Estimates the bytes of a log in a new location: the newest record of each job stands for all of
/// them.
///
/// # Errors
/// Errors of the log.
pub(crate) fn needed_bytes(log: &dyn ManifestLog) -> Result<u64> {
    let mut bytes = EXTRA_BYTES;
    for job in log.jobs()?.into_iter().chain([JobName::gc(), JobName::targets()]) {
        let numbers = log.numbers(&job)?;
        let Some(newest) = numbers.last() else { continue };
        // A damaged record is copied as it is.
        let length = log.read(&job, *newest).map_or(0, |record| record.len() as u64);
        let blocks = length.max(1).div_ceil(RECORD_BYTES_MIN);
        bytes += numbers.len() as u64 * blocks * RECORD_BYTES_MIN;
    }
    Ok(bytes)
}

/// Makes sure that a directory with `log` in it can take `bytes`. Buckets and clusters do not say.
///
/// # Errors
/// `Full`; or the error that keeps this user from writing there.
pub(crate) fn check_room(location: &Location, bytes: u64, rng: &dyn Rng) -> Result<()> {
    let Some(dir) = location.as_directory() else { return Ok(()) };
    let dir = dir.join("log");
    let mut word = [0; 8];
    rng.fill(&mut word);
    // The name of a record that is being written: if the file is left behind, it is no job.
    let path = dir.join(format!(".tmp-{:016x}", u64::from_le_bytes(word)));
    let reserved = OpenOptions::new().write(true).create_new(true).open(&path).and_then(|file| {
        // Its bytes are freed when it is closed, whatever happens.
        fs::remove_file(&path)?;
        reserve(&file, bytes)
    });
    reserved.map_err(|error| {
        Error::io(&format!("reserving {bytes} bytes for the log in"), &dir, &error)
    })
}

fn reserve(mut file: &File, bytes: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
        done => return done.map_err(io::Error::from),
    }
    let block = [0xA5; RECORD_BYTES_MIN as usize];
    (0..bytes.div_ceil(RECORD_BYTES_MIN)).try_for_each(|_| file.write_all(&block))?;
    file.sync_data()
}

/// Makes sure that this user may rewrite the descriptor, as the move does in the end. Buckets do
/// not say.
///
/// # Errors
/// Errors of the system.
pub(crate) fn check_writable(paths: &PoolPaths) -> Result<()> {
    let Some(dir) = paths.root.as_directory() else { return Ok(()) };
    let may = access(dir, Access::WRITE_OK).map_err(io::Error::from);
    may.map_err(|error| Error::io("rewriting pool.toml, to say where the log is, in", dir, &error))
}

/// Returns whether a log is in the memory of this host.
pub(crate) fn is_log_in_memory(paths: &PoolPaths) -> bool {
    let is_memory = |location: &Location| location.as_directory().is_some_and(is_in_memory);
    paths.log().named.iter().all(is_memory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_registry::directory;
    use outlive_types::{ErrorKind, SystemRng};

    /// A disk with room for a record, but not for a log, counts as full, and nothing is left there.
    #[test]
    fn room_is_asked_for_and_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let location = directory(dir.path());
        let log = dir.path().join("log");
        fs::create_dir(&log).unwrap();
        check_room(&location, 1 << 20, &SystemRng).unwrap();
        let full = check_room(&location, 1 << 60, &SystemRng).unwrap_err();
        assert!(matches!(full.kind(), ErrorKind::Full | ErrorKind::Invalid), "{full}");
        assert!(full.message().contains("for the log in"), "{full}");
        assert_eq!(fs::read_dir(&log).unwrap().count(), 0);
        fs::remove_dir(&log).unwrap();
        check_room(&location, 1, &SystemRng).unwrap_err();
    }
}
