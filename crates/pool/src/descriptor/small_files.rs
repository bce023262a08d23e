//! Texts of a pool, which are markers and the descriptor: each is written whole or not at all.

use crate::descriptor::location::Location;
use outlive_target::{adopt_file, make_dir_durable, publish, sync_dir, sync_file};
use outlive_types::{Error, Result, Rng};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Start of the names of texts that are being written; no job and no pack begins with a dot.
const TEMPORARY: &str = ".pool.toml";

impl Location {
    /// Returns the name of a text here, for messages.
    pub fn name(&self, text: &str) -> String {
        match self {
            Location::Directory(dir) => dir.join(text).display().to_string(),
            Location::Bucket(place) => format!("{place}/{text}"),
            Location::Etcd(place) => format!("{place}/{text}"),
        }
    }

    /// Reads the bytes of a text, which has one of the names in format.md; `None` if there is none.
    ///
    /// # Errors
    /// Errors of the location: it is not known whether there is one.
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        match self {
            Location::Directory(dir) => {
                let path = dir.join(name);
                match fs::read(&path) {
                    Ok(bytes) => Ok(Some(bytes)),
                    Err(e)
                        if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
                    {
                        Ok(None)
                    }
                    Err(e) => Err(Error::io_stored("reading", &path, &e)),
                }
            }
            Location::Bucket(place) => place.open_files()?.read(name),
            Location::Etcd(place) => place.open_files()?.read(name),
        }
    }

    /// Returns whether there is such a text.
    ///
    /// # Errors
    /// As [`Location::read`].
    pub fn has(&self, name: &str) -> Result<bool> {
        match self {
            Location::Directory(dir) => Ok(dir.join(name).exists()),
            Location::Bucket(_) | Location::Etcd(_) => self.read(name).map(|there| there.is_some()),
        }
    }

    /// Makes a text, unless it is there. Of several callers, one makes it.
    ///
    /// # Errors
    /// Errors of the location.
    pub fn publish(&self, name: &str, text: &str, rng: &dyn Rng) -> Result<()> {
        match self {
            Location::Directory(dir) => publish_text(&dir.join(name), text, rng),
            Location::Bucket(place) => {
                place.open_files()?.write_new(name, text.as_bytes()).map(drop)
            }
            Location::Etcd(place) => place.open_files()?.write_new(name, text.as_bytes()).map(drop),
        }
    }

    /// Replaces a text by another one, in one step, durably.
    ///
    /// # Errors
    /// Errors of the location.
    pub fn replace(&self, name: &str, text: &str, rng: &dyn Rng) -> Result<()> {
        match self {
            Location::Directory(dir) => replace_text(&dir.join(name), text, rng),
            Location::Bucket(place) => place.open_files()?.write(name, text.as_bytes()),
            Location::Etcd(place) => place.open_files()?.write(name, text.as_bytes()),
        }
    }

    /// Makes a text durable that another process may have written: if that died between its rename
    /// and its sync, a power cut may take the text back. Texts outside of directories are durable
    /// once they can be read.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn keep(&self, name: &str) -> Result<()> {
        let Some(dir) = self.as_directory() else { return Ok(()) };
        let path = dir.join(name);
        sync_file(&path).map_err(|e| Error::io("syncing", &path, &e))
    }

    /// Makes a directory with `parts` in it. Other locations have no directories.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn make(&self, parts: &[&str]) -> Result<()> {
        let Some(dir) = self.as_directory() else { return Ok(()) };
        make_dir_durable(dir).map_err(|e| Error::io_named("making", dir, &e))?;
        for part in parts.iter().map(|part| dir.join(part)) {
            make_dir_durable(&part).map_err(|e| Error::io_named("making", &part, &e))?;
        }
        Ok(())
    }

    /// Makes the entries of its directory `part` durable; "" is itself.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn sync(&self, part: &str) -> Result<()> {
        let Some(dir) = self.as_directory() else { return Ok(()) };
        let dir = dir.join(part);
        sync_dir(&dir).map_err(|e| Error::io_named("syncing", &dir, &e))
    }
}

fn replace_text(path: &Path, text: &str, rng: &dyn Rng) -> Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    let temporary = write_temporary(dir, text, rng)?;
    fs::rename(&temporary, path).map_err(|e| Error::io("replacing", path, &e))?;
    sync_dir(dir).map_err(|e| Error::io("syncing", dir, &e))
}

fn publish_text(path: &Path, text: &str, rng: &dyn Rng) -> Result<()> {
    // Beside it: the log may be on a file system of its own.
    let dir = path.parent().unwrap_or(Path::new("."));
    let temporary = write_temporary(dir, text, rng)?;
    let linked = match publish(&temporary, path) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(Error::io("making", path, &e)),
    };
    // In both cases the temporary file is not needed any more; a leftover would do no harm.
    let _ = fs::remove_file(&temporary);
    linked
}

/// Writes a text into a new file with a unique name.
fn write_temporary(dir: &Path, text: &str, rng: &dyn Rng) -> Result<PathBuf> {
    // Random: in containers that share the directory, processes have equal numbers.
    let mut random = [0; 8];
    rng.fill(&mut random);
    let temporary = dir.join(format!("{TEMPORARY}.{:016x}", u64::from_le_bytes(random)));
    let write = || -> io::Result<()> {
        let mut file = File::create_new(&temporary)?;
        // Root may rewrite a descriptor that another user has to read.
        adopt_file(dir, &file);
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    write().map_err(|e| {
        let _ = fs::remove_file(&temporary);
        Error::io("writing", &temporary, &e)
    })?;
    Ok(temporary)
}
