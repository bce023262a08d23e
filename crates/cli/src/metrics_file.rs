//! The file of `--metrics`: the process metrics of one run, in the text format of Prometheus.

use crate::export::publish_bytes;
use outlive_types::{Error, Result, metrics};
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Longest file that is read, to see whether it may be replaced.
const BYTES_MAX: u64 = 1 << 20;

/// A path at which such a file may be made or replaced.
pub struct MetricsFile {
    path: PathBuf,
}

impl MetricsFile {
    /// Checks a path before the run.
    ///
    /// # Errors
    /// `Invalid` if the path is within `log` or `packs` of a pool, or names no file in a directory.
    /// Also if a file is there that holds other things. Errors of the file system.
    pub fn at(path: PathBuf) -> Result<MetricsFile> {
        outlive_pool::check_outside(&path)?;
        // A trailing slash is no part of a path's last name.
        if path.file_name().is_none() || path.as_os_str().as_encoded_bytes().ends_with(b"/") {
            return Err(Error::invalid(format!("{} names no file", path.display())));
        }
        let dir = parent(&path);
        if !dir.is_dir() {
            return Err(Error::invalid(format!("{} is no directory", dir.display())));
        }
        check_replaceable(&path)?;
        Ok(MetricsFile { path })
    }

    /// Writes the metrics of this process, in one step: another program may be reading the file.
    /// The label `file` tells those of several files in one directory apart.
    ///
    /// # Errors
    /// As [`MetricsFile::at`]: another program may have made a file there meanwhile.
    pub fn write(&self) -> Result<()> {
        check_replaceable(&self.path)?;
        let name = self.path.file_name().unwrap_or(OsStr::new(""));
        let text = metrics::text(Some(("file", &name.to_string_lossy())));
        publish_bytes(parent(&self.path), name, text.as_bytes(), true)
    }
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|dir| *dir != Path::new("")).unwrap_or(Path::new("."))
}

/// Refuses a path with anything but metrics of outlive.
fn check_replaceable(path: &Path) -> Result<()> {
    let reading = |error| Error::io_named("reading", path, &error);
    let there = match path.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        there => there.map_err(reading)?,
    };
    let is_ours = there.is_file() && there.len() <= BYTES_MAX && {
        let bytes = fs::read(path).map_err(reading)?;
        let starts = [&b"# HELP outlive_"[..], b"# TYPE outlive_", b"outlive_"];
        let is_metric = |line: &[u8]| starts.iter().any(|start| line.starts_with(start));
        let text = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        text.split(|byte| *byte == b'\n').all(is_metric)
    };
    match is_ours {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "{} holds other things than metrics of outlive: name another file",
            path.display()
        ))),
    }
}
