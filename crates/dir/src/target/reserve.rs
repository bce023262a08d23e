//! The reserve of a directory: a file of unused space, deleted when the disk is full.

use crate::owner::adopt_file;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// The reserve takes at most these fractions of the medium and of its free space.
const SHARE_OF_ALL: u64 = 64;
const SHARE_OF_FREE: u64 = 4;
/// Size of the smallest useful reserve.
const BYTES_MIN: u64 = 64 << 10;
/// Block size where the file system cannot allocate without writing.
const ZEROS: usize = 64 << 10;
/// Largest reserve that is written as zeros: a larger one takes too long.
const ZEROS_MAX: u64 = 1 << 20;

/// File name, beside the directories of shards, where a listing of shards does not look.
const NAME: &str = ".reserve";

/// Grows the reserve to `bytes`, or to a fraction of a small medium. Never shrinks it.
pub(super) fn keep(packs: &Path, bytes: u64, total_bytes: u64, free_bytes: u64) -> io::Result<()> {
    let path = packs.join(NAME);
    let there = fs::metadata(&path).map_or(0, |file| file.len());
    let wanted = bytes.min(total_bytes / SHARE_OF_ALL);
    let more = wanted.saturating_sub(there);
    if wanted < BYTES_MIN || more == 0 || more > free_bytes / SHARE_OF_FREE {
        return Ok(());
    }
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path)?;
    adopt_file(packs, &file);
    let grown = match fallocate(&file, FallocateFlags::empty(), there, more) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
            write_zeros(&file, there, more.min(ZEROS_MAX.saturating_sub(there)))
        }
        other => other.map_err(io::Error::from),
    };
    // Another program filled the disk meanwhile: the reserve keeps its size.
    grown.inspect_err(|_| match there {
        0 => drop(fs::remove_file(&path)),
        _ => drop(file.set_len(there)),
    })
}

fn write_zeros(mut file: &File, from: u64, more: u64) -> io::Result<()> {
    io::Seek::seek(&mut file, io::SeekFrom::Start(from))?;
    let (zeros, mut left) = (vec![0; ZEROS], more);
    while left > 0 {
        let now = left.min(ZEROS as u64);
        file.write_all(&zeros[..now as usize])?;
        left -= now;
    }
    file.sync_all()
}

/// Deletes the reserve. Returns its bytes.
pub(super) fn give_up(packs: &Path) -> io::Result<u64> {
    let path = packs.join(NAME);
    let given = match fs::metadata(&path) {
        Ok(file) => file.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    match fs::remove_file(&path) {
        // Another command deleted it first.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(given),
        other => other.map(|()| given),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_is_kept_back_grows_and_is_given_up_once() {
        let dir = tempfile::tempdir().unwrap();
        let length = || fs::metadata(dir.path().join(NAME)).map_or(0, |file| file.len());
        let huge = 1 << 40;
        keep(dir.path(), 1 << 20, huge, huge).unwrap();
        assert_eq!(length(), 1 << 20);
        keep(dir.path(), 2 << 20, huge, huge).unwrap();
        assert_eq!(length(), 2 << 20);
        keep(dir.path(), 1 << 20, huge, huge).unwrap();
        assert_eq!(length(), 2 << 20, "what is there stays");
        assert_eq!(give_up(dir.path()).unwrap(), 2 << 20);
        assert_eq!(give_up(dir.path()).unwrap(), 0);
        assert_eq!(length(), 0);
    }

    #[test]
    fn small_and_full_media_keep_less_or_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let length = || fs::metadata(dir.path().join(NAME)).map_or(0, |file| file.len());
        keep(dir.path(), 1 << 20, 1 << 20, 1 << 20).unwrap();
        keep(dir.path(), 1 << 20, 1 << 40, 1 << 20).unwrap();
        assert_eq!(length(), 0, "no reserve on a tiny or nearly full disk");
        keep(dir.path(), 1 << 20, 32 << 20, 32 << 20).unwrap();
        assert_eq!(length(), 512 << 10);
        give_up(dir.path()).unwrap();
        keep(&dir.path().join("missing"), 1 << 20, 1 << 40, 1 << 40).unwrap_err();
    }

    #[test]
    fn zeros_are_written_where_fallocate_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        let file = File::create(&path).unwrap();
        write_zeros(&file, 0, 100_000).unwrap();
        write_zeros(&file, 100_000, 100_000).unwrap();
        assert_eq!(fs::read(&path).unwrap(), vec![0; 200_000]);
    }
}
