//! Directory entries that survive a power cut.

use rustix::fs::{
    AtFlags, CWD, RenameFlags, Timespec, Timestamps, UTIME_NOW, linkat, renameat_with, utimensat,
};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Files in a pool's directories besides shards and records.
pub const OWN_FILES: [&str; 7] = [
    "pool.toml",
    ".pool.toml",
    "log/.pool.toml",
    "log/.leases.lock",
    "packs/.pool.toml",
    "packs/.key.toml",
    "packs/.reserve",
];

/// Sets a file's times to the present. A missing file is no error.
///
/// # Errors
/// Errors of the operating system.
pub fn freshen(path: &Path) -> io::Result<()> {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: now };
    match utimensat(CWD, path, &times, AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        done => Ok(done?),
    }
}

/// Makes the names in the directory `path` durable.
///
/// # Errors
/// Errors of the operating system.
pub fn sync_dir(path: &Path) -> io::Result<()> {
    let here = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    match File::open(here)?.sync_all() {
        // Some network file systems cannot sync directories, and need not.
        Err(error) if errno_is(&error, &[Errno::INVAL, Errno::BADF, Errno::OPNOTSUPP]) => Ok(()),
        other => other,
    }
}

/// Makes a file and its name durable, also if another process wrote it.
///
/// # Errors
/// Errors of the operating system.
pub fn sync_file(path: &Path) -> io::Result<()> {
    sync_dir(path)?; // it opens a file as it opens a directory
    path.parent().map_or(Ok(()), sync_dir)
}

/// Makes `path` a directory whose entry in its parent is durable, whichever process created it;
/// creates missing directories above it in the same way. A parent that this user may not read
/// cannot be synced: then this relies on the parent's owner to keep it durable.
///
/// # Errors
/// Errors of the operating system.
pub fn make_dir_durable(path: &Path) -> io::Result<()> {
    if path.as_os_str().is_empty() {
        return Ok(());
    }
    match (make_one_dir_durable(path), path.parent()) {
        (Err(error), Some(parent)) if error.kind() == io::ErrorKind::NotFound => {
            make_dir_durable(parent)?;
            make_one_dir_durable(path)
        }
        (made, _) => made,
    }
}

/// Does the same in a parent that must exist.
pub fn make_one_dir_durable(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Ok(()) => {}
        Err(_) if path.is_dir() => {}
        Err(error) => return Err(error),
    }
    match path.parent().map_or(Ok(()), sync_dir) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        other => other,
    }
}

/// Renames without replacing: `AlreadyExists` if `to` is there. `Unsupported` if the file system
/// cannot do it in one step.
pub fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            Err(io::Error::from(io::ErrorKind::Unsupported))
        }
        other => other.map_err(io::Error::from),
    }
}

/// Gives a file a second name: `AlreadyExists` if that is there, `Unsupported` if the file system
/// has no hard links.
pub fn link_new(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Err(error)
            if errno_is(&error, &[Errno::PERM, Errno::OPNOTSUPP, Errno::NOSYS, Errno::MLINK]) =>
        {
            Err(io::Error::from(io::ErrorKind::Unsupported))
        }
        other => other,
    }
}

/// Gives an open file another name, even if its old names now belong to other files.
/// `AlreadyExists` if `to` is there; `NotFound` if the file has no name any more. `Unsupported` if
/// /proc is missing, a sandbox forbids the call, or the file system has no hard links.
pub fn link_open(file: &File, to: &Path) -> io::Result<()> {
    let unsupported = Err(io::Error::from(io::ErrorKind::Unsupported));
    #[cfg(test)]
    if tests::WITHOUT_LINKS.get() {
        return unsupported;
    }
    let by_number = format!("/proc/self/fd/{}", file.as_raw_fd());
    match linkat(CWD, by_number, CWD, to, AtFlags::SYMLINK_FOLLOW) {
        Ok(()) => Ok(()),
        // If the file still has a name, /proc or the directory of `to` is missing.
        Err(Errno::NOENT) if file.metadata()?.nlink() == 0 => Err(Errno::NOENT.into()),
        Err(Errno::NOENT | Errno::PERM | Errno::ACCESS | Errno::NOSYS | Errno::OPNOTSUPP) => {
            unsupported
        }
        Err(Errno::MLINK | Errno::XDEV | Errno::LOOP | Errno::NOTDIR | Errno::INVAL) => unsupported,
        Err(errno) => Err(errno.into()),
    }
}

/// Gives the finished file `from` its name `to` in one step that replaces nothing. `from` may be
/// left behind.
///
/// # Errors
/// `AlreadyExists` if another process was faster, `Unsupported` if the file system has no such
/// step, or errors of the operating system.
pub fn publish(from: &Path, to: &Path) -> io::Result<()> {
    match link_new(from, to) {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => rename_new(from, to),
        other => other,
    }
}

/// Returns true if the operating system returned one of these error numbers.
pub fn errno_is(error: &io::Error, numbers: &[Errno]) -> bool {
    Errno::from_io_error(error).is_some_and(|errno| numbers.contains(&errno))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
    use std::cell::Cell;
    use std::mem::MaybeUninit;

    thread_local! {
        /// In this thread, open files cannot get a name.
        pub(crate) static WITHOUT_LINKS: Cell<bool> = const { Cell::new(false) };
    }

    /// Whether `deed` opens the directory `path` itself. Making, naming or removing an entry does
    /// not open the directory; a sync does.
    pub fn opens(path: &Path, deed: impl FnOnce()) -> bool {
        let watch = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
        inotify::add_watch(&watch, path, WatchFlags::OPEN).unwrap();
        deed();
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(watch, &mut buffer);
        // An event with a name is about an entry of the directory.
        std::iter::from_fn(|| Some(events.next().ok()?.file_name().is_none())).any(|itself| itself)
    }

    #[test]
    fn the_current_directory_is_there() {
        make_dir_durable(Path::new("")).unwrap();
        make_dir_durable(Path::new(".")).unwrap();
    }

    #[test]
    fn each_directory_that_is_made_is_durable_in_its_parent() {
        let root = tempfile::tempdir().unwrap();
        let there = root.path().join("there");
        fs::create_dir(&there).unwrap();
        let deep = there.join("a/b");
        let make = || make_dir_durable(&deep).unwrap();
        assert!(opens(&there, make), "`a` is new in it");
        assert!(deep.is_dir());
        assert!(opens(&there.join("a"), make), "any maker of `b`");
        assert!(!opens(&there, make), "`a` was there");
        for missing in ["x", "x/y"] {
            let missing = there.join(missing);
            let parent = missing.parent().unwrap();
            assert!(opens(parent, || make_dir_durable(&missing).unwrap()));
        }
    }

    #[test]
    fn a_file_is_no_directory() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        fs::write(&file, "x").unwrap();
        assert_eq!(make_dir_durable(&file).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert!(make_dir_durable(&file.join("below")).is_err());
    }
}
