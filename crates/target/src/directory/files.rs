//! Open files: past the page cache where that works, and not too many at once.

use super::DirectoryOptions;
use crate::ShardName;
use crate::durable::errno_is;
use outlive_types::{Event, Observer};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Shards kept open for reading: a restore reads each pack in one go, so few are enough.
const OPEN_MAX: usize = 32;

pub(super) struct Files {
    root: PathBuf,
    direct: AtomicBool,
    observer: Arc<dyn Observer>,
    /// Most recently used last. Only ever tried: a forked child may inherit it locked, and what is
    /// cached can always be opened again.
    open: Mutex<VecDeque<(ShardName, Arc<File>)>>,
}

impl Files {
    pub(super) fn new(root: &Path, options: &DirectoryOptions) -> Files {
        Files {
            root: root.to_owned(),
            direct: AtomicBool::new(options.direct_io),
            observer: options.observer.clone(),
            open: Mutex::default(),
        }
    }

    /// Opens with O_DIRECT, or without once the file system has refused that.
    pub(super) fn open(&self, options: &mut OpenOptions, path: &Path) -> io::Result<File> {
        if self.direct.load(Ordering::Relaxed) {
            let flags = i32::try_from(OFlags::DIRECT.bits()).expect("flags of open(2) fit an int");
            match options.custom_flags(flags).open(path) {
                Err(error) if errno_is(&error, &[Errno::INVAL]) => self.give_up_direct(),
                other => return other,
            }
        }
        options.custom_flags(0).open(path)
    }

    /// Does `work` on `file`; if O_DIRECT turns out not to work there, does it again without.
    pub(super) fn direct_or_not<T>(
        &self,
        file: &File,
        mut work: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        match work() {
            Err(error) if errno_is(&error, &[Errno::INVAL]) => {
                let flags = fcntl_getfl(file)?;
                // Another thread may have cleared the flag since; then this one only tries again.
                if flags.contains(OFlags::DIRECT) {
                    fcntl_setfl(file, flags - OFlags::DIRECT)?;
                    self.give_up_direct();
                }
                work()
            }
            other => other,
        }
    }

    fn give_up_direct(&self) {
        if self.direct.swap(false, Ordering::Relaxed) {
            self.observer.event(Event::Warning(format!(
                "the file system of {} refuses direct I/O; data goes through the page cache, which \
                 works but is slower and takes memory",
                self.root.display()
            )));
        }
    }

    pub(super) fn open_to_read(&self, shard: ShardName, path: &Path) -> io::Result<Arc<File>> {
        if let Ok(mut open) = self.open.try_lock()
            && let Some(at) = open.iter().position(|(name, _)| *name == shard)
            && let Some(entry) = open.remove(at)
        {
            let file = entry.1.clone();
            open.push_back(entry);
            return Ok(file);
        }
        let file = Arc::new(self.open(OpenOptions::new().read(true), path)?);
        if let Ok(mut open) = self.open.try_lock() {
            if open.len() >= OPEN_MAX {
                open.pop_front();
            }
            open.push_back((shard, file.clone()));
        }
        Ok(file)
    }

    /// Closes a shard that is about to be deleted.
    pub(super) fn forget(&self, shard: ShardName) {
        if let Ok(mut open) = self.open.try_lock() {
            open.retain(|(name, _)| *name != shard);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Told(Mutex<Vec<Event>>);

    impl Observer for Told {
        fn event(&self, event: Event) {
            self.0.lock().unwrap().push(event);
        }
    }

    #[test]
    fn a_refusal_of_direct_io_is_survived_and_told_once() {
        let told = Arc::new(Told::default());
        let options = DirectoryOptions { direct_io: true, observer: told.clone() };
        let root = tempfile::tempdir().unwrap();
        let files = Files::new(root.path(), &options);
        for name in ["a", "b"] {
            let file = File::create(root.path().join(name)).unwrap();
            let _ = fcntl_setfl(&file, fcntl_getfl(&file).unwrap() | OFlags::DIRECT);
            let mut calls = 0;
            let outcome = files.direct_or_not(&file, || {
                calls += 1;
                if calls == 1 { Err(Errno::INVAL.into()) } else { Ok(5) }
            });
            assert_eq!((outcome.unwrap(), calls), (5, 2));
            assert!(!fcntl_getfl(&file).unwrap().contains(OFlags::DIRECT));
        }
        let file = files.open(OpenOptions::new().read(true), &root.path().join("a")).unwrap();
        assert!(!fcntl_getfl(&file).unwrap().contains(OFlags::DIRECT));
        let told = told.0.lock().unwrap();
        assert!(matches!(&told[..], [Event::Warning(text)] if text.contains("direct I/O")));
    }
}
