//! The file of a checkpoint that a program writes and reads itself, at the path from
//! `VELOC_Route_file`. A checkpoint stores it beside the memory, as a region.

use outlive_capture::Region;
use outlive_types::{Error, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// Name of that region. Regions of memory have numbers as names.
pub(crate) const FILE: &str = "file";

/// Returns the prefix of a process's files for all versions of a name.
fn prefix(name: &str, id: u32) -> String {
    format!("{name}-{id}-")
}

/// Returns the path of a checkpoint's file, as in VELOC: each checkpoint has one, whatever name the
/// program gives.
pub(crate) fn place(scratch: &Path, name: &str, id: u32, version: i32) -> PathBuf {
    scratch.join(format!("{}{version}.dat", prefix(name, id)))
}

/// Reads a file into a region.
///
/// # Errors
/// `Invalid` if it cannot be read.
pub(crate) fn region(place: &Path) -> Result<Region> {
    let bytes = fs::read(place).map_err(|e| Error::io_named("reading", place, &e))?;
    Ok(Region::from_bytes(FILE, "|u1", vec![bytes.len() as u64], bytes))
}

/// Removes a file, if it exists.
///
/// # Errors
/// The error of the file system.
pub(crate) fn forget(place: &Path) -> Result<()> {
    match fs::remove_file(place) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io_named("removing", place, &error))
        }
        _ => Ok(()),
    }
}

/// Removes the files of all versions of a name.
///
/// # Errors
/// The error of the file system.
pub(crate) fn remove(scratch: &Path, name: &str, id: u32) -> Result<()> {
    let entries = match fs::read_dir(scratch) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::io_named("listing", scratch, &error)),
    };
    let prefix = prefix(name, id);
    for entry in entries {
        let path = entry.map_err(|e| Error::io_named("listing", scratch, &e))?.path();
        let is_ours = path.file_name().and_then(|name| name.to_str());
        if is_ours.is_some_and(|name| name.starts_with(&prefix)) {
            forget(&path)?;
        }
    }
    Ok(())
}
