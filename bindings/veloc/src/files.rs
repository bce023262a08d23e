//! Files that a program writes and reads itself, at the places that `VELOC_Route_file` gives. A checkpoint
//! keeps them beside the memory, as regions.

use outlive_capture::Region;
use outlive_types::{Error, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// What the names of such regions begin with. Those of memory are numbers.
pub(crate) const PREFIX: &str = "file:";

/// A file that was routed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Routed {
    /// Absolute path that the program has named.
    pub original: String,
    /// Where it writes or reads.
    pub place: PathBuf,
}

impl Routed {
    /// The file of a checkpoint. `prefix` differs for each process, name and version.
    ///
    /// # Errors
    /// `Invalid` for a path without a name.
    pub fn new(scratch: &Path, prefix: &str, original: &str) -> Result<Routed> {
        let path = std::path::absolute(original)
            .map_err(|e| Error::io_named("looking for", Path::new(original), &e))?;
        let Some(text) = path.to_str().filter(|_| path.file_name().is_some()) else {
            return Err(Error::invalid(format!("{original:?} is no name of a file")));
        };
        // The whole path, so that files of the same name in two directories differ.
        let name: String = text.replace('%', "%25").replace('/', "%2F");
        let place = scratch.join(format!("{prefix}-{name}"));
        Ok(Routed { original: text.to_owned(), place })
    }

    /// Its name in a checkpoint.
    pub fn region_name(&self) -> String {
        format!("{PREFIX}{}", self.original)
    }

    /// What it holds now.
    ///
    /// # Errors
    /// `Invalid` if it cannot be read.
    pub fn region(&self) -> Result<Region> {
        let bytes =
            fs::read(&self.place).map_err(|e| Error::io_named("reading", &self.place, &e))?;
        Ok(Region::from_bytes(self.region_name(), "|u1", vec![bytes.len() as u64], bytes))
    }
}

/// Removes the files of all versions that begin with `prefix`; what is not there is no error.
///
/// # Errors
/// What the file system reports.
pub(crate) fn remove(scratch: &Path, prefix: &str) -> Result<()> {
    let entries = match fs::read_dir(scratch) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::io_named("listing", scratch, &error)),
    };
    for entry in entries {
        let path = entry.map_err(|e| Error::io_named("listing", scratch, &e))?.path();
        let is_ours = path.file_name().and_then(|name| name.to_str());
        if is_ours.is_some_and(|name| name.starts_with(prefix)) {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Error::io_named("removing", &path, &error));
                }
                _ => {}
            }
        }
    }
    Ok(())
}
