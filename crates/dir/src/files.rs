//! Small files in a directory.

use crate::durable::{make_dir_durable, publish, sync_dir, sync_file};
use crate::owner::adopt_file;
use outlive_backend::SmallFiles;
use outlive_types::{Error, Result, Rng, SystemRng};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Start of the names of files that are being written; no job and no pack begins with a dot.
const TEMPORARY: &str = ".pool.toml";

/// The files below a directory.
#[derive(Clone, Debug)]
pub struct DirectoryFiles(PathBuf);

impl DirectoryFiles {
    /// Returns the files below `dir`.
    pub fn within(dir: &Path) -> DirectoryFiles {
        DirectoryFiles(dir.to_owned())
    }
}

impl SmallFiles for DirectoryFiles {
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let path = self.0.join(name);
        match fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                Ok(None)
            }
            Err(e) => Err(Error::io_stored("reading", &path, &e)),
        }
    }

    fn has(&self, name: &str) -> Result<bool> {
        Ok(self.0.join(name).exists())
    }

    fn write_new(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        let path = self.0.join(name);
        // Beside it: the log may be on a file system of its own.
        let temporary = write_temporary(parent(&path), bytes)?;
        let linked = match publish(&temporary, &path) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(e) => Err(Error::io("making", &path, &e)),
        };
        // In both cases the temporary file is not needed any more; a leftover would do no harm.
        let _ = fs::remove_file(&temporary);
        linked
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.0.join(name);
        let dir = parent(&path);
        let temporary = write_temporary(dir, bytes)?;
        fs::rename(&temporary, &path).map_err(|e| Error::io("replacing", &path, &e))?;
        sync_dir(dir).map_err(|e| Error::io("syncing", dir, &e))
    }

    fn keep(&self, name: &str) -> Result<()> {
        let path = self.0.join(name);
        sync_file(&path).map_err(|e| Error::io("syncing", &path, &e))
    }

    fn make_folders(&self, names: &[&str]) -> Result<()> {
        let folders = names.iter().map(|name| self.0.join(name));
        for dir in std::iter::once(self.0.clone()).chain(folders) {
            make_dir_durable(&dir).map_err(|e| Error::io_named("making", &dir, &e))?;
        }
        Ok(())
    }

    fn sync_folder(&self, name: &str) -> Result<()> {
        let dir = self.0.join(name);
        sync_dir(&dir).map_err(|e| Error::io_named("syncing", &dir, &e))
    }
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("."))
}

/// Writes a new file with a unique name.
fn write_temporary(dir: &Path, bytes: &[u8]) -> Result<PathBuf> {
    // Random: in containers that share the directory, processes have equal numbers.
    let mut random = [0; 8];
    SystemRng.fill(&mut random);
    let temporary = dir.join(format!("{TEMPORARY}.{:016x}", u64::from_le_bytes(random)));
    let write = || -> io::Result<()> {
        let mut file = File::create_new(&temporary)?;
        // Root may rewrite a descriptor that another user has to read.
        adopt_file(dir, &file);
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(|e| {
        let _ = fs::remove_file(&temporary);
        Error::io("writing", &temporary, &e)
    })?;
    Ok(temporary)
}
