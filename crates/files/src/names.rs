//! The names in a directory, with any bytes.

use rustix::fs::RawDir;
use std::os::fd::OwnedFd;

/// Buffer for names read in one call.
const NAMES_BYTES: usize = 64 << 10;

/// Returns the names in a directory.
///
/// # Errors
/// Errors of the system.
pub fn read_names(dir: &OwnedFd) -> rustix::io::Result<Vec<Box<[u8]>>> {
    let mut buffer = Vec::with_capacity(NAMES_BYTES);
    let mut entries = RawDir::new(dir, buffer.spare_capacity_mut());
    let mut names = Vec::new();
    while let Some(entry) = entries.next() {
        let name = entry?.file_name().to_bytes().to_owned();
        if name != b"." && name != b".." {
            names.push(name.into_boxed_slice());
        }
    }
    Ok(names)
}
