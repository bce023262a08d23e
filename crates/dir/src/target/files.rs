//! Open files: with O_DIRECT where that works, and few at once.

use super::DirectoryOptions;
use outlive_backend::ShardName;
use outlive_io::{AlignedBuf, DirectFile, DiskEngine, OwnEngine, Ticket, read_at};
use outlive_types::sync::plain::Mutex;
use outlive_types::{Event, Observer, PAGE_BYTES};
use std::collections::VecDeque;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Shards kept open for reading, with at most two descriptors each. A restore reads each pack in
/// one go, so few are enough.
const OPEN_MAX: usize = 16;
/// Most urgent reads at once.
const URGENT_MAX: usize = 4;

pub(super) struct Files {
    root: PathBuf,
    /// Whether the options ask for O_DIRECT, and whether it still seems to work.
    wanted: bool,
    direct: AtomicBool,
    told: AtomicBool,
    observer: Arc<dyn Observer>,
    /// Threads for writes and reads; `None` uses the engine that the process shares.
    engine: Option<OwnEngine>,
    /// Urgent reads ([`ReadMode::is_urgent`](outlive_backend::ReadMode::is_urgent)).
    urgent: OwnEngine,
    /// Most recently used last. Uses `try_lock` only: a forked child may inherit the lock in use,
    /// and a cached shard can always be opened again.
    open: Mutex<VecDeque<Open>>,
    /// Counts replacements of shard files. Files opened before the last one are opened again.
    changes: AtomicU64,
}

/// A shard that is open for reading.
struct Open {
    shard: ShardName,
    file: Arc<DirectFile>,
    /// The count of changes before the file was opened.
    changes: u64,
}

impl Files {
    pub(super) fn new(root: &Path, options: &DirectoryOptions) -> Files {
        Files {
            root: root.to_owned(),
            wanted: options.direct_io,
            direct: AtomicBool::new(options.direct_io),
            told: AtomicBool::new(false),
            observer: options.observer.clone(),
            engine: options.threads.map(OwnEngine::new),
            urgent: OwnEngine::new(URGENT_MAX),
            open: Mutex::default(),
            changes: AtomicU64::new(0),
        }
    }

    /// Runs `job` in a thread that may wait for the file system.
    pub(super) fn submit<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Ticket<T> {
        match &self.engine {
            Some(engine) => engine.submit(job),
            None => DiskEngine::shared().submit(job),
        }
    }

    /// Does the same for a read. An urgent read waits for other urgent reads only.
    pub(super) fn submit_read<T: Send + 'static>(
        &self,
        is_urgent: bool,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Ticket<T> {
        if is_urgent { self.urgent.submit(job) } else { self.submit(job) }
    }

    /// Opens with O_DIRECT, or without it once the file system has refused it.
    pub(super) fn open(&self, options: &mut OpenOptions, path: &Path) -> io::Result<DirectFile> {
        let file = DirectFile::open(options, path, self.direct.load(Ordering::Relaxed))?;
        self.look_at(&file);
        Ok(file)
    }

    /// Makes a new file for writing, in the same way.
    pub(super) fn create_new(&self, path: &Path) -> io::Result<DirectFile> {
        let file = DirectFile::create_new(path, self.direct.load(Ordering::Relaxed))?;
        self.look_at(&file);
        Ok(file)
    }

    /// Does `work` on `file`; repeats it without O_DIRECT if that does not work there.
    pub(super) fn run<T>(
        &self,
        file: &DirectFile,
        work: impl FnMut(&File) -> io::Result<T>,
    ) -> io::Result<T> {
        let outcome = file.run(work);
        self.look_at(file);
        outcome
    }

    /// Tests whether O_DIRECT works by reading one page of a file. Does not warn: the next read or
    /// write of a shard does.
    pub(super) fn probe(&self, path: &Path) {
        if !self.direct.load(Ordering::Relaxed) {
            return;
        }
        let Ok(file) = DirectFile::open(OpenOptions::new().read(true), path, true) else { return };
        let mut page = AlignedBuf::zeroed(PAGE_BYTES);
        if file.run(|file| read_at(file, &mut page, 0)).is_ok() && !file.is_direct() {
            self.direct.store(false, Ordering::Relaxed);
        }
    }

    /// Warns once, at the first file of a shard that uses the page cache although O_DIRECT is
    /// wanted.
    fn look_at(&self, file: &DirectFile) {
        if self.wanted && !file.is_direct() {
            self.give_up_direct();
        }
    }

    fn give_up_direct(&self) {
        self.direct.store(false, Ordering::Relaxed);
        if !self.told.swap(true, Ordering::Relaxed) {
            self.observer.event(Event::Warning(format!(
                "the file system of {} refuses direct I/O; data goes through the page cache, which \
                 works but is slower and takes memory",
                self.root.display()
            )));
        }
    }

    pub(super) fn open_to_read(
        &self,
        shard: ShardName,
        path: &Path,
    ) -> io::Result<Arc<DirectFile>> {
        // Read before the file is opened: if the file is replaced meanwhile, either one may be
        // opened.
        let changes = self.changes.load(Ordering::Acquire);
        if let Some(mut open) = self.open.try_lock() {
            open.retain(|it| it.changes == changes);
            if let Some(at) = open.iter().position(|it| it.shard == shard)
                && let Some(entry) = open.remove(at)
            {
                let file = entry.file.clone();
                open.push_back(entry);
                return Ok(file);
            }
        }
        let file = Arc::new(self.open(OpenOptions::new().read(true), path)?);
        if let Some(mut open) = self.open.try_lock() {
            if open.len() >= OPEN_MAX {
                open.pop_front();
            }
            open.push_back(Open { shard, file: file.clone(), changes });
        }
        Ok(file)
    }

    /// Closes all cached shards, or only those that other processes have deleted.
    pub(super) fn close(&self, all: bool) {
        let is_deleted =
            |it: &Open| it.file.file().metadata().map_or(true, |file| file.nlink() == 0);
        if let Some(mut open) = self.open.try_lock() {
            open.retain(|it| !all && !is_deleted(it));
        }
    }

    /// Closes a shard before or after its deletion.
    pub(super) fn forget(&self, shard: ShardName) {
        if let Some(mut open) = self.open.try_lock() {
            open.retain(|it| it.shard != shard);
        }
    }

    /// Closes a shard unless `metadata` describes its open file: another file may have its name
    /// now.
    pub(super) fn forget_unless(&self, shard: ShardName, metadata: &Metadata) {
        let is_it =
            |it: &Open| it.file.file().metadata().is_ok_and(|open| is_same(&open, metadata));
        match self.open.try_lock() {
            Some(mut open) => open.retain(|it| it.shard != shard || is_it(it)),
            // Another thread uses the list, so this thread cannot see whether the shard is in it.
            None => self.replaced(),
        }
    }

    /// Does `work` while the list of open files is in use.
    #[cfg(test)]
    pub(super) fn while_busy<T>(&self, work: impl FnOnce() -> T) -> T {
        let _open = self.open.lock();
        work()
    }

    /// Makes every cached shard open again: the file of a shard was replaced.
    pub(super) fn replaced(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }
}

/// Whether both describe the same file.
pub(super) fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{OFlags, fcntl_getfl};
    use rustix::io::Errno;

    #[derive(Default)]
    struct Told(Mutex<Vec<Event>>);

    impl Observer for Told {
        fn event(&self, event: Event) {
            self.0.lock().push(event);
        }
    }

    fn is_direct(file: &File) -> bool {
        fcntl_getfl(file).unwrap().contains(OFlags::DIRECT)
    }

    #[test]
    fn a_refusal_of_direct_io_is_survived_and_told_once() {
        let told = Arc::new(Told::default());
        let options = DirectoryOptions { observer: told.clone(), ..DirectoryOptions::default() };
        let root = tempfile::tempdir().unwrap();
        let files = Files::new(root.path(), &options);
        for name in ["a", "b"] {
            let path = root.path().join(name);
            let file =
                files.open(OpenOptions::new().write(true).create(true).truncate(true), &path);
            let file = file.unwrap();
            let mut calls = 0;
            // A file system without O_DIRECT refuses it when the file is opened.
            let outcome = files.run(&file, |file| {
                calls += 1;
                if is_direct(file) { Err(Errno::INVAL.into()) } else { Ok(5) }
            });
            assert_eq!(outcome.unwrap(), 5);
            assert!(calls <= 2 && !is_direct(&file.file()));
        }
        let file = files.open(OpenOptions::new().read(true), &root.path().join("a")).unwrap();
        assert!(!is_direct(&file.file()));
        let told = told.0.lock();
        assert!(matches!(&told[..], [Event::Warning(text)] if text.contains("direct I/O")));
    }

    /// The space of a deleted file is free once no process has it open.
    #[test]
    fn cached_files_are_closed_once_they_are_deleted() {
        let root = tempfile::tempdir().unwrap();
        let files = Files::new(root.path(), &DirectoryOptions::default());
        let open = |number| {
            let pack = outlive_types::PackId::new(outlive_types::SessionId([1; 12]), 0, number);
            let path = root.path().join(number.to_string());
            std::fs::write(&path, "shard").unwrap();
            (files.open_to_read(ShardName { pack, shard: 0 }, &path).unwrap(), path)
        };
        let [(gone, path), (stays, _)] = [open(1), open(2)];
        let is_cached = |file: &Arc<DirectFile>| Arc::strong_count(file) == 2;
        std::fs::remove_file(path).unwrap();
        assert!(is_cached(&gone) && is_cached(&stays));
        files.close(false);
        assert!(!is_cached(&gone) && is_cached(&stays));
        files.close(true);
        assert!(!is_cached(&stays));
    }

    #[test]
    fn a_probe_finds_nothing_where_direct_io_works_or_nothing_is() {
        let options = DirectoryOptions::default();
        let root = tempfile::tempdir().unwrap();
        let files = Files::new(root.path(), &options);
        files.probe(&root.path().join("missing"));
        assert!(files.direct.load(Ordering::Relaxed));
        let path = root.path().join("there");
        std::fs::write(&path, "x").unwrap();
        files.probe(&path);
        let works = DirectFile::open(OpenOptions::new().read(true), &path, true).unwrap();
        assert_eq!(files.direct.load(Ordering::Relaxed), works.is_direct());
    }
}
