//! The file of `--metrics`: figures of one run, in the text format of Prometheus.

use crate::export::publish_bytes;
use outlive_types::{Error, Result, metrics};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

/// Beginning of each such file.
const BEGINNING: &[u8] = b"# HELP outlive_";

/// A file that may be written or replaced.
pub struct MetricsFile(PathBuf);

impl MetricsFile {
    /// Checks a path before the run.
    ///
    /// # Errors
    /// `Invalid` if the path is within a pool, has no name, or names anything but an earlier file
    /// of this kind.
    pub fn at(path: PathBuf) -> Result<MetricsFile> {
        outlive_pool::check_outside(&path)?;
        if path.file_name().and_then(|name| name.to_str()).is_none() {
            return Err(Error::invalid(format!("{} names no file", path.display())));
        }
        let dir = parent(&path);
        if !dir.is_dir() {
            return Err(Error::invalid(format!("{} is no directory", dir.display())));
        }
        match path.symlink_metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(MetricsFile(path)),
            Err(error) => Err(Error::io_named("looking at", &path, &error)),
            Ok(there) if there.is_file() && is_ours(&path) => Ok(MetricsFile(path)),
            Ok(_) => Err(Error::invalid(format!(
                "{} exists, and --metrics has not written it: name another file",
                path.display()
            ))),
        }
    }

    /// Writes the metrics of this process, in one step: another program may be reading the file.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn write(&self) -> Result<()> {
        let name = self.0.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        publish_bytes(parent(&self.0), name, metrics::text().as_bytes(), true)
    }
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|dir| *dir != Path::new("")).unwrap_or(Path::new("."))
}

fn is_ours(path: &Path) -> bool {
    let mut start = [0; BEGINNING.len()];
    File::open(path).and_then(|mut file| file.read_exact(&mut start)).is_ok() && start == BEGINNING
}
