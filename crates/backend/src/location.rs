//! Locations of a pool's parts. Each backend has a type of locations, which implements
//! [`BackendLocation`], and a [`Scheme`] that reads them.

use crate::{Target, TargetWatch};
use outlive_log::LogMedium;
use outlive_types::{Error, Observer, Result};
use std::any::Any;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A kind of location, named by the text before the colon.
#[derive(Clone, Copy, Debug)]
pub struct Scheme {
    /// Name in lower case, such as "s3".
    pub name: &'static str,
    /// Description of the medium and of its locations, for messages.
    pub help: &'static str,
    /// Reads the text behind the colon. Its errors are `Invalid`, and name the fault.
    pub parse: fn(&str) -> Result<Location>,
}

/// One location: a directory, or a prefix of a bucket or a cluster. `Display` shows it as a user
/// writes it.
///
/// A backend that keeps shards implements [`BackendLocation::open_target`], one that keeps records
/// [`BackendLocation::open_medium`]. Each also keeps the markers beside them, which are
/// [`SmallFiles`].
pub trait BackendLocation: fmt::Debug + fmt::Display + Send + Sync {
    /// Returns one text for all ways to write this location, as far as the text alone shows it. Of
    /// a child, except in a directory, it is this one, a slash and the child's name.
    fn identity(&self) -> String {
        self.to_string()
    }

    /// Returns the path, if this is a directory.
    fn as_directory(&self) -> Option<&Path> {
        None
    }

    /// Returns the location of a pool's part that is written like this, if the pool's own location
    /// is `root`. `None` if that is this location.
    ///
    /// # Errors
    /// `Invalid` for a relative location, if `root` is of another kind.
    fn seen_from(&self, _root: &Location) -> Result<Option<Location>> {
        Ok(None)
    }

    /// Returns the same, independent of the current directory. `None` if this is so already.
    fn absolute(&self) -> Option<Location> {
        None
    }

    /// Returns whether both are one location, also under other names.
    fn is_same(&self, other: &Location) -> bool {
        self.identity() == other.identity()
    }

    /// Returns the location `name` in this one.
    ///
    /// # Errors
    /// `Invalid` if its name gets too long.
    fn child(&self, name: &str) -> Result<Location>;

    /// Returns this location and those that contain it, each with the name of the part of it that
    /// leads here. Only those that may belong to the same user. A new part of a pool is refused
    /// where one of them belongs to a pool: without any, none is asked.
    fn around(&self) -> Vec<(Location, Option<String>)> {
        Vec::new()
    }

    /// Checks that the backend responds, and lets this user in. Writes nothing.
    ///
    /// # Errors
    /// `Invalid` if it cannot be used; `Retry` if it cannot be reached.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Checks that records can be kept here: of several puts under one number, one must win.
    ///
    /// # Errors
    /// `Invalid` if not; errors of the backend.
    fn check_records(&self) -> Result<()> {
        Ok(())
    }

    /// Returns whether shards can be kept here.
    fn keeps_shards(&self) -> bool {
        true
    }

    /// Returns whether each request takes a network's time.
    fn is_remote(&self) -> bool {
        false
    }

    /// Returns the advice for a location in which nothing is found.
    fn advice(&self) -> &'static str;

    /// Takes it for one server, which alone hands it on to others, until the guard is dropped or the
    /// process ends; `None` if another server has it.
    ///
    /// # Errors
    /// `Invalid` if it is not there, or not on this machine; errors of the system.
    fn serve_alone(&self) -> Result<Option<ServedAlone>> {
        Err(Error::invalid("it is not on this machine: a node serves directories and devices"))
    }

    /// Opens it as a target.
    ///
    /// # Errors
    /// `Invalid` if it cannot be used, or keeps no shards.
    fn open_target(&self, how: &TargetOptions) -> Result<Arc<dyn Target>>;

    /// Opens it as a medium of records.
    ///
    /// # Errors
    /// `Invalid` if it cannot be used, or keeps no records.
    fn open_medium(&self) -> Result<Arc<dyn LogMedium>>;

    /// Opens it for small files.
    ///
    /// # Errors
    /// `Invalid` if it cannot be used.
    fn open_files(&self) -> Result<Arc<dyn SmallFiles>>;
}

/// Keeps other servers from a location until it is dropped.
pub type ServedAlone = Box<dyn Any + Send + Sync>;

/// How to open a target.
#[derive(Clone)]
pub struct TargetOptions {
    /// Whether it is the pool's own location, whose parts may be made again.
    pub is_own: bool,
    /// A file of the pool that can be read, to find out how this machine reads files.
    pub probe: Option<PathBuf>,
    /// The watch over one of several targets, which do not wait for each other.
    pub watch: Option<Arc<TargetWatch>>,
    /// Receiver of notices.
    pub observer: Arc<dyn Observer>,
}

/// Files such as markers and descriptors, each read and written whole. `write` is durable when it
/// returns; a new name of `write_new` is so only after [`SmallFiles::sync_folder`]. Names have at
/// most one folder: "pool.toml", "log/.pool.toml".
pub trait SmallFiles: Send + Sync + fmt::Debug {
    /// Returns the bytes of a file; `None` if there is none.
    ///
    /// # Errors
    /// Errors of the backend: it is not known whether there is one.
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>>;

    /// Returns whether there is a file.
    ///
    /// # Errors
    /// As [`SmallFiles::read`].
    fn has(&self, name: &str) -> Result<bool> {
        self.read(name).map(|there| there.is_some())
    }

    /// Writes a file unless there is one. Of several callers, one writes it, and gets true.
    ///
    /// # Errors
    /// Errors of the backend; then the file may have been written.
    fn write_new(&self, name: &str, bytes: &[u8]) -> Result<bool>;

    /// Writes a file, and replaces an existing one, in one step.
    ///
    /// # Errors
    /// As [`SmallFiles::write_new`].
    fn write(&self, name: &str, bytes: &[u8]) -> Result<()>;

    /// Makes a file durable that another process may have written: if that died between its two
    /// steps, a power cut may take the file back.
    ///
    /// # Errors
    /// Errors of the backend.
    fn keep(&self, _name: &str) -> Result<()> {
        Ok(())
    }

    /// Makes folders, and the location itself, on a backend that has such.
    ///
    /// # Errors
    /// Errors of the backend.
    fn make_folders(&self, _names: &[&str]) -> Result<()> {
        Ok(())
    }

    /// Makes the names in a folder durable; "" is the location itself.
    ///
    /// # Errors
    /// Errors of the backend.
    fn sync_folder(&self, _name: &str) -> Result<()> {
        Ok(())
    }
}

/// A location of any backend.
#[derive(Clone)]
pub struct Location(Arc<dyn BackendLocation>);

impl Location {
    /// Wraps a backend's location.
    pub fn new(backend: impl BackendLocation + 'static) -> Location {
        Location(Arc::new(backend))
    }

    /// Returns the name of a file here, for messages.
    pub fn name(&self, file: &str) -> String {
        match self.as_directory() {
            Some(dir) => dir.join(file).display().to_string(),
            None => format!("{self}/{file}"),
        }
    }

    /// Returns the location of a part of a pool at `root` that is written like this.
    ///
    /// # Errors
    /// As [`BackendLocation::seen_from`].
    pub fn seen_from(&self, root: &Location) -> Result<Location> {
        Ok(self.0.seen_from(root)?.unwrap_or_else(|| self.clone()))
    }

    /// Returns the same, independent of the current directory.
    #[must_use]
    pub fn absolute(self) -> Location {
        self.0.absolute().unwrap_or(self)
    }

    /// Returns the error for a location that keeps no shards.
    pub fn keeps_no_shards(&self) -> Error {
        Error::invalid(format!(
            "{self} can keep a pool's log, and no packs: name it with --log, beside a directory or a \
             bucket"
        ))
    }
}

impl std::ops::Deref for Location {
    type Target = dyn BackendLocation + 'static;

    fn deref(&self) -> &(dyn BackendLocation + 'static) {
        &*self.0
    }
}

/// Each call opens the files, since the settings may have changed.
impl SmallFiles for Location {
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.open_files()?.read(name)
    }

    fn has(&self, name: &str) -> Result<bool> {
        self.open_files()?.has(name)
    }

    fn write_new(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        self.open_files()?.write_new(name, bytes)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.open_files()?.write(name, bytes)
    }

    fn keep(&self, name: &str) -> Result<()> {
        self.open_files()?.keep(name)
    }

    fn make_folders(&self, names: &[&str]) -> Result<()> {
        self.open_files()?.make_folders(names)
    }

    fn sync_folder(&self, name: &str) -> Result<()> {
        self.open_files()?.sync_folder(name)
    }
}

impl PartialEq for Location {
    fn eq(&self, other: &Location) -> bool {
        self.identity() == other.identity()
    }
}

impl Eq for Location {}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl fmt::Debug for TargetOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TargetOptions").field("is_own", &self.is_own).finish_non_exhaustive()
    }
}
