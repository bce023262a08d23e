//! Writes the texts of a pool: markers and the descriptor, whole or not at all.

use crate::place::DESCRIPTOR;
use outlive_target::{publish, sync_dir};
use outlive_types::{Error, Result, Rng};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Puts another text in the place of a file of a pool, in one step, durably.
pub(crate) fn replace_text(path: &Path, text: &str, rng: &dyn Rng) -> Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    let temporary = write_temporary(dir, text, rng)?;
    fs::rename(&temporary, path).map_err(|e| Error::io("replacing", path, &e))?;
    sync_dir(dir).map_err(|e| Error::io("syncing", dir, &e))
}

/// Makes a file of a pool, unless it is there.
pub(crate) fn publish_text(path: &Path, text: &str, rng: &dyn Rng) -> Result<()> {
    // Beside it: the log may be a file system of its own.
    let dir = path.parent().unwrap_or(Path::new("."));
    let temporary = write_temporary(dir, text, rng)?;
    let linked = match publish(&temporary, path) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(Error::io("making", path, &e)),
    };
    // Whether or not it worked, the temporary file has served; a leftover would do no harm.
    let _ = fs::remove_file(&temporary);
    linked
}

/// Writes a text into a new file with a name of its own.
fn write_temporary(dir: &Path, text: &str, rng: &dyn Rng) -> Result<PathBuf> {
    // Random: in containers that share the directory, processes have equal numbers.
    let mut random = [0; 8];
    rng.fill(&mut random);
    let temporary = dir.join(format!(".{DESCRIPTOR}.{:016x}", u64::from_le_bytes(random)));
    let write = || -> std::io::Result<()> {
        let mut file = File::create_new(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    write().map_err(|e| {
        let _ = fs::remove_file(&temporary);
        Error::io("writing", &temporary, &e)
    })?;
    Ok(temporary)
}
