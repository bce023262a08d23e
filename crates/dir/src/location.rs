//! A directory as a location of a pool's parts.

use crate::files::DirectoryFiles;
use crate::medium::DirectoryMedium;
use crate::target::{DirectoryOptions, DirectoryTarget};
use outlive_backend::{
    BackendLocation, Location, RetryPolicy, RetryTarget, Scheme, ServedAlone, SmallFiles, Target,
    TargetOptions, Work,
};
use outlive_io::OwnFile;
use outlive_log::LogMedium;
use outlive_types::{Error, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fmt;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{self, Path, PathBuf};
use std::sync::Arc;

/// The scheme of directories.
pub const FILE: Scheme = Scheme {
    name: "file",
    help: "a directory, as \"/scratch/ckpt\" or \"file:/scratch/ckpt\"",
    parse: |rest| parse_url(rest).map(Location::new),
};

/// File that a storage node has locked as long as it serves a directory.
const SERVED_FILE: &str = ".node.lock";
/// Threads that write and read in each of several directories. Two of them have as many as a single
/// one.
const THREADS_OF_SEVERAL: usize = 4;

/// A directory; a relative path counts from the pool's own.
#[derive(Clone, Debug)]
pub struct DirectoryLocation(PathBuf);

impl DirectoryLocation {
    /// Returns the location of a path.
    pub fn at(path: impl Into<PathBuf>) -> DirectoryLocation {
        DirectoryLocation(path.into())
    }

    /// Reads a path without a scheme.
    ///
    /// # Errors
    /// `Invalid` for an empty path, and for one with a zero byte.
    pub fn parse(path: &str) -> Result<DirectoryLocation> {
        match path {
            "" => Err(Error::invalid("it names no directory; \".\" is the pool's own")),
            path if path.contains('\0') => Err(Error::invalid("a path has no zero bytes")),
            path => Ok(DirectoryLocation::at(path)),
        }
    }
}

/// Reads a path, or `//` and a path without a host. Nothing in it is escaped.
fn parse_url(text: &str) -> Result<DirectoryLocation> {
    match text.strip_prefix("//") {
        None => DirectoryLocation::parse(text),
        Some(path) if path.starts_with('/') => DirectoryLocation::parse(path),
        Some(host) => {
            let host = host.split('/').next().unwrap_or_default();
            Err(Error::invalid(format!(
                "it names a host, {host:?}; mount its directory here, and write \"file:/PATH\""
            )))
        }
    }
}

impl BackendLocation for DirectoryLocation {
    fn identity(&self) -> String {
        // Two slashes are one, and bytes that are no text stay apart.
        format!("{:?}", self.0.components().collect::<PathBuf>())
    }

    fn as_directory(&self) -> Option<&Path> {
        Some(&self.0)
    }

    fn seen_from(&self, root: &Location) -> Result<Option<Location>> {
        let DirectoryLocation(path) = self;
        match root.as_directory() {
            // Without a "." in it, which would read as ".." at the end of a sentence.
            Some(dir) => {
                let seen: PathBuf = dir.join(path).components().collect();
                Ok(Some(Location::new(DirectoryLocation(seen))))
            }
            None if path == Path::new(".") => Ok(Some(root.clone())),
            None if path.is_relative() => Err(Error::invalid(format!(
                "{} is a relative path, and the pool is not in a directory but in {root}: write an \
                 absolute path",
                path.display()
            ))),
            None => Ok(None),
        }
    }

    fn absolute(&self) -> Option<Location> {
        path::absolute(&self.0).ok().map(|path| Location::new(DirectoryLocation(path)))
    }

    /// Compares inodes: of links, and of one directory that is mounted in two locations.
    fn is_same(&self, other: &Location) -> bool {
        let Some(other) = other.as_directory() else { return false };
        let inode = |path: &Path| path.metadata().ok().map(|there| (there.dev(), there.ino()));
        self.0 == other || inode(&self.0).is_some_and(|one| Some(one) == inode(other))
    }

    fn child(&self, name: &str) -> Result<Location> {
        Ok(Location::new(DirectoryLocation(self.0.join(name))))
    }

    fn advice(&self) -> &'static str {
        "if it lies on a file system of its own, mount that"
    }

    fn serve_alone(&self) -> Result<Option<ServedAlone>> {
        if !self.0.is_dir() {
            return Err(Error::invalid("it is no directory: make it, or mount its disk"));
        }
        let path = self.0.join(SERVED_FILE);
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(|error| Error::io_named("opening", &path, &error))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Box::new(OwnFile::new(file)))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(Error::io_named("locking", &path, &errno.into())),
        }
    }

    fn open_target(&self, how: &TargetOptions) -> Result<Arc<dyn Target>> {
        let options = DirectoryOptions {
            observer: how.observer.clone(),
            make_root: how.is_own,
            threads: how.watch.as_ref().map(|_| THREADS_OF_SEVERAL),
            ..Default::default()
        };
        let target = Arc::new(match how.watch {
            None => DirectoryTarget::open(&self.0, &options)?,
            // The check of its marker finds out what is there.
            Some(_) => DirectoryTarget::at(&self.0, &options),
        });
        match (how.probe.clone(), &how.watch) {
            (Some(probe), Some(watch)) => {
                let target = target.clone();
                let probe = move || {
                    target.probe(&probe);
                    Ok(())
                };
                // If the target is silent, the first call that uses it finds out.
                let _ = watch.ask(Work::Question, probe);
            }
            (Some(probe), None) => target.probe(&probe),
            (None, _) => {}
        }
        // A network mount may drop a request, and another program may close files.
        Ok(Arc::new(RetryTarget::new(target, RetryPolicy::default())))
    }

    /// Its calls end in fsyncs, which are not repeated.
    fn open_medium(&self) -> Result<Arc<dyn LogMedium>> {
        Ok(Arc::new(DirectoryMedium::within(&self.0)))
    }

    fn open_files(&self) -> Result<Arc<dyn SmallFiles>> {
        Ok(Arc::new(DirectoryFiles::within(&self.0)))
    }
}

impl fmt::Display for DirectoryLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn paths_have_one_identity_with_any_slashes_and_bytes() {
        let identity = |path: &[u8]| DirectoryLocation::at(OsStr::from_bytes(path)).identity();
        assert_eq!(identity(b"//scratch/a/"), identity(b"/scratch//a"));
        for other in [&b"a\xff"[..], b"a\xfe", b"a\xef\xbf\xbd", b"a", b"s3://a", b"a\\xFF"] {
            let same = [&b"a\xff"[..], b"a\xfe", b"a\xef\xbf\xbd", b"a", b"s3://a", b"a\\xFF"];
            assert_eq!(same.iter().filter(|it| identity(it) == identity(other)).count(), 1);
        }
    }
}
