//! Files past the page cache, or through it where the file system cannot.

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

/// A file that was opened with O_DIRECT if that was asked for and works.
///
/// Whether it works may show only at the first read or write. Then the file is opened a second time
/// without: to clear the flag would not do, since a FUSE file system may have handed it on to a
/// server, whose own descriptor keeps it.
#[derive(Debug)]
pub struct DirectFile {
    path: PathBuf,
    file: Arc<File>,
    is_direct: bool,
    /// The second one. Only ever tried: a forked child may inherit it locked, and a third does no
    /// harm.
    plain: Mutex<Option<Arc<File>>>,
    /// One more, for what the page cache holds. Likewise only ever tried.
    cached: Mutex<Option<Arc<File>>>,
}

impl DirectFile {
    /// Opens `path`, with O_DIRECT if `direct` says so and the file system does not refuse it.
    ///
    /// # Errors
    /// What the operating system reports.
    pub fn open(options: &mut OpenOptions, path: &Path, direct: bool) -> io::Result<DirectFile> {
        DirectFile::open_after(options, path, direct, || Ok(()))
    }

    /// Makes a new file at `path` and opens it for writing, as [`DirectFile::open`] does.
    ///
    /// # Errors
    /// `AlreadyExists` if something is there; what the operating system reports.
    pub fn create_new(path: &Path, direct: bool) -> io::Result<DirectFile> {
        // A system that refuses O_DIRECT has made the file before it says so. Should another program
        // have made one since, that one loses its name.
        let remove_made = || match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        let mut options = OpenOptions::new();
        DirectFile::open_after(options.write(true).create_new(true), path, direct, remove_made)
    }

    /// Opens a file, and does `refused` before it is opened again because O_DIRECT was refused.
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

    /// Whether the page cache is passed by, as far as is known by now.
    pub fn is_direct(&self) -> bool {
        self.is_direct && self.plain().is_none()
    }

    /// The file as it is read and written.
    pub fn file(&self) -> Arc<File> {
        self.plain().unwrap_or_else(|| self.file.clone())
    }

    /// Does `work` on the file; if O_DIRECT turns out not to work there, does it again without.
    ///
    /// # Errors
    /// Those of `work`.
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

    /// Fills `bytes` from `offset` with what the page cache holds, if it holds all of that. Otherwise false, and the
    /// file is to be read by [`DirectFile::run`].
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

    /// The same file through the page cache, whatever has its name by now: by that only where /proc is missing.
    fn open_again(&self, keep: &Mutex<Option<Arc<File>>>) -> io::Result<Arc<File>> {
        let how = fcntl_getfl(&self.file)? & OFlags::RWMODE;
        let mut options = OpenOptions::new();
        options.read(how != OFlags::WRONLY).write(how != OFlags::RDONLY);
        let by_number = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let file = Arc::new(options.open(by_number).or_else(|_| options.open(&self.path))?);
        // What lies beside a range is not wanted.
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

    /// As a server whose descriptor keeps the flag with which it was opened: the first descriptor is
    /// refused, whatever its flags are now.
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
        // Also where the file system of temporary files has no O_DIRECT.
        DirectFile { is_direct: true, ..DirectFile::open(options, path, true).unwrap() }
    }

    #[test]
    fn what_is_refused_is_done_on_another_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let file = opened(&path, OpenOptions::new().write(true).create(true).truncate(true));
        let (first, mut calls) = (file.file().as_raw_fd(), 0);
        assert!(file.is_direct());
        // Whatever becomes of its name, it is this file.
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
