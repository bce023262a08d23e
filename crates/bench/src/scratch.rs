//! A directory of the bench's own, which is removed when the bench ends, also by Ctrl-C.

use outlive_cli::EXIT_INTERRUPTED;
use outlive_cli::output::complain;
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, Result};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;

/// Directories that an interruption must remove.
static IN_USE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static HANDLER: Once = Once::new();

/// A directory `outlive-bench-…`, removed on drop.
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Creates one in `dir`, which is created if it is missing.
    pub fn new(dir: &Path) -> Result<Scratch> {
        fs::create_dir_all(dir).map_err(|e| Error::io_named("making", dir, &e))?;
        let dir = dir.canonicalize().map_err(|e| Error::io_named("resolving", dir, &e))?;
        HANDLER.call_once(|| {
            // Without a handler the bench works; the user must then remove leftovers.
            let _ = ctrlc::set_handler(interrupted);
        });
        let mut in_use = IN_USE.lock();
        let path = (0..1000)
            .map(|n| dir.join(format!("outlive-bench-{}-{n}", std::process::id())))
            .find(|path| !path.exists())
            .ok_or_else(|| {
                let dir = dir.display();
                Error::invalid(format!("{dir} is full of outlive-bench-*: remove them"))
            })?;
        fs::create_dir(&path).map_err(|e| Error::io_named("making", &path, &e))?;
        in_use.push(path.clone());
        Ok(Scratch { path })
    }

    /// Returns the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a path in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Creates a directory in it.
    pub fn make(&self, name: &str) -> Result<PathBuf> {
        let path = self.join(name);
        fs::create_dir_all(&path).map_err(|e| Error::io_named("making", &path, &e))?;
        Ok(path)
    }

    /// Removes a directory in it, and waits until the device has done all work for it, so that the
    /// next measurement is not slowed down.
    pub fn clear(&self, name: &str) -> Result<()> {
        let path = self.join(name);
        if path.exists() {
            fs::remove_dir_all(&path).map_err(|e| Error::io_named("removing", &path, &e))?;
        }
        self.quiet()
    }

    /// Waits until the file system has written all data.
    pub fn quiet(&self) -> Result<()> {
        let io = |e| Error::io_named("syncing the file system of", &self.path, &e);
        let dir = File::open(&self.path).map_err(io)?;
        rustix::fs::syncfs(&dir).map_err(|errno| io(errno.into()))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let mut in_use = IN_USE.lock();
        in_use.retain(|path| *path != self.path);
        if let Err(error) = fs::remove_dir_all(&self.path) {
            complain(&format!("warning: {} could not be removed: {error}", self.path.display()));
        }
    }
}

/// Runs on a thread of its own, while the bench still writes. So the program becomes one that only
/// removes: no thread is left that could make a directory again.
fn interrupted() {
    const REMOVE: &str =
        r#"trap "" INT TERM HUP; rm -rf -- "$@" || echo "warning: not all of it was removed" >&2"#;
    let in_use = IN_USE.lock();
    let script = format!("{REMOVE}; exit {EXIT_INTERRUPTED}");
    let failed = Command::new("/bin/sh").args(["-c", &script, "sh"]).args(&*in_use).exec();
    complain(&format!("warning: without a shell ({failed}) these are not removed: {in_use:?}"));
    std::process::exit(EXIT_INTERRUPTED);
}
