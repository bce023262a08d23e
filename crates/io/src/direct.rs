//! Files that bypass the page cache, or use it where the file system cannot bypass it.

use crate::page_cache::is_cached;
use crate::read_at;
use outlive_types::sync::plain::Mutex;
use rustix::fs::{Advice, OFlags, fadvise, fcntl_getfl};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file opened with O_DIRECT, if the caller asked for that and the file system supports it.
///
/// The first read or write may be the one that fails. Then the file is opened a second time,
/// without O_DIRECT. Clearing the flag does not suffice: a FUSE file system may have passed it to a
/// server, whose own descriptor keeps it.
#[derive(Debug)]
pub struct DirectFile {
    path: PathBuf,
    file: Arc<File>,
    is_direct: bool,
    /// The second descriptor. Only ever locked by `try_lock`: a forked child may inherit the lock
    /// held. A third descriptor does no harm.
    plain: Mutex<Option<Arc<File>>>,
    /// One more descriptor, for bytes that the page cache holds. Also locked only by `try_lock`.
    cached: Mutex<Option<Arc<File>>>,
}

impl DirectFile {
    /// Opens `path`, with O_DIRECT if `direct` is set and the file system does not refuse it.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn open(options: &mut OpenOptions, path: &Path, direct: bool) -> io::Result<DirectFile> {
        DirectFile::open_after(options, path, direct, || Ok(()))
    }

    /// Creates a new file at `path` and opens it for writing, as [`DirectFile::open`] does.
    ///
    /// # Errors
    /// `AlreadyExists` if the path exists; errors of the operating system.
    pub fn create_new(path: &Path, direct: bool) -> io::Result<DirectFile> {
        // A system that refuses O_DIRECT has created the file before it reports so. If another
        // program has created one since, this removes that one.
        let remove_made = || match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        let mut options = OpenOptions::new();
        DirectFile::open_after(options.write(true).create_new(true), path, direct, remove_made)
    }

    /// Opens a file. If O_DIRECT is refused, calls `refused` before it opens the file again.
    fn open_after(
        options: &mut OpenOptions,
        path: &Path,
        direct: bool,
        refused: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<DirectFile> {
        let flags = i32::try_from(OFlags::DIRECT.bits()).expect("flags of open(2) fit an int");
        let opened = match direct.then(|| options.custom_flags(flags).open(path)) {
            Some(Err(error)) if is_refusal(&error) => {
                refused()?;
                None
            }
            other => other.transpose()?,
        };
        let is_direct = opened.is_some();
        let file = match opened {
            Some(file) => file,
            None => options.custom_flags(0).open(path)?,
        };
        let (path, plain, cached) = (path.to_owned(), Mutex::default(), Mutex::default());
        Ok(DirectFile { path, file: Arc::new(file), is_direct, plain, cached })
    }

    /// Whether reads and writes bypass the page cache, as far as is known by now.
    pub fn is_direct(&self) -> bool {
        self.is_direct && self.plain().is_none()
    }

    /// Returns the descriptor for reads and writes.
    pub fn file(&self) -> Arc<File> {
        self.plain().unwrap_or_else(|| self.file.clone())
    }

    /// Runs `work` on the file. If O_DIRECT turns out not to work there, runs it again without.
    ///
    /// # Errors
    /// Errors of `work`.
    pub fn run<T>(&self, mut work: impl FnMut(&File) -> io::Result<T>) -> io::Result<T> {
        if let Some(plain) = self.plain() {
            return work(&plain);
        }
        match work(&self.file) {
            Err(error) if self.is_direct && is_refusal(&error) => {
                work(&*self.open_again(&self.plain)?)
            }
            other => other,
        }
    }

    /// Fills `bytes` from `offset` out of the page cache, if that holds all of them. Otherwise
    /// returns false, and the caller must read with [`DirectFile::run`].
    pub fn read_cached(&self, bytes: &mut [u8], offset: u64) -> bool {
        if !self.is_direct() || !is_cached(&self.file, offset, bytes.len() as u64) {
            return false;
        }
        let opened = self.cached.try_lock().and_then(|cached| cached.clone());
        let file = match opened.map_or_else(|| self.open_again(&self.cached), Ok) {
            Ok(file) => file,
            Err(_) => return false,
        };
        read_at(&file, bytes, offset).is_ok_and(|got| got == bytes.len())
    }

    fn plain(&self) -> Option<Arc<File>> {
        self.plain.try_lock().and_then(|plain| plain.clone())
    }

    /// Opens the same file through the page cache, even if its name has passed to another file.
    /// Only where /proc is missing does it use the name.
    fn open_again(&self, keep: &Mutex<Option<Arc<File>>>) -> io::Result<Arc<File>> {
        let how = fcntl_getfl(&self.file)? & OFlags::RWMODE;
        let mut options = OpenOptions::new();
        options.read(how != OFlags::WRONLY).write(how != OFlags::RDONLY);
        let by_number = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let file = Arc::new(options.open(by_number).or_else(|_| options.open(&self.path))?);
        // The bytes beside a range are not needed.
        let _ = fadvise(&*file, 0, None, Advice::Random);
        if let Some(mut kept) = keep.try_lock() {
            *kept = Some(file.clone());
        }
        Ok(file)
    }
}

fn is_refusal(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AlignedBuf, read_at, write_all_at};
    use rustix::fs::fcntl_setfl;

    /// Behaves like a server whose descriptor keeps the flags with which it was opened: it refuses
    /// the first descriptor, whatever its flags are now.
    fn refuse<T>(
        first: i32,
        calls: &mut u32,
        file: &File,
        mut work: impl FnMut(&File) -> io::Result<T>,
    ) -> io::Result<T> {
        *calls += 1;
        if file.as_raw_fd() == first {
            let _ = fcntl_setfl(file, fcntl_getfl(file)? - OFlags::DIRECT);
            return Err(Errno::INVAL.into());
        }
        work(file)
    }

    fn opened(path: &Path, options: &mut OpenOptions) -> DirectFile {
        // Also works where the file system of temporary files has no O_DIRECT.
        DirectFile { is_direct: true, ..DirectFile::open(options, path, true).unwrap() }
    }

    #[test]
    fn a_refused_operation_is_done_on_another_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let file = opened(&path, OpenOptions::new().write(true).create(true).truncate(true));
        let (first, mut calls) = (file.file().as_raw_fd(), 0);
        assert!(file.is_direct());
        // Even after a rename, the writes go to this file.
        let moved = dir.path().join("moved");
        std::fs::rename(&path, &moved).unwrap();
        std::fs::write(&path, "another").unwrap();
        let mut page = AlignedBuf::zeroed(4096);
        page.fill(7);
        for offset in [0, 4096] {
            file.run(|f| refuse(first, &mut calls, f, |f| write_all_at(f, &page, offset))).unwrap();
        }
        assert_eq!(calls, 3, "the second write knows");
        assert!(!file.is_direct());
        assert!(!fcntl_getfl(file.file()).unwrap().contains(OFlags::DIRECT));
        assert_eq!(std::fs::read(&moved).unwrap(), [7; 8192]);
        let file = opened(&moved, OpenOptions::new().read(true));
        let (first, mut calls) = (file.file().as_raw_fd(), 0);
        let got = file.run(|f| refuse(first, &mut calls, f, |f| read_at(f, &mut page, 4096)));
        assert_eq!((got.unwrap(), calls, page[0]), (4096, 2, 7));
    }

    #[test]
    fn a_new_file_takes_no_other_one_s_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        for direct in [false, true] {
            let file = DirectFile::create_new(&path, direct).unwrap();
            let mut page = AlignedBuf::zeroed(4096);
            page.fill(7);
            file.run(|file| write_all_at(file, &page, 0)).unwrap();
            let again = DirectFile::create_new(&path, direct).unwrap_err();
            assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
            assert_eq!(std::fs::read(&path).unwrap(), [7; 4096]);
            std::fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn other_errors_and_plain_files_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "x").unwrap();
        let mut calls = 0;
        let mut fail = |errno: Errno| {
            calls += 1;
            Err::<(), _>(io::Error::from(errno))
        };
        let file = opened(&path, OpenOptions::new().read(true));
        assert!(file.run(|_| fail(Errno::IO)).is_err() && file.is_direct());
        let file = DirectFile::open(OpenOptions::new().read(true), &path, false).unwrap();
        assert!(file.run(|_| fail(Errno::INVAL)).is_err() && !file.is_direct());
        assert_eq!(calls, 2);
    }
}
