//! A directory as a target: one file for each shard, with the layout of `docs/format.md` section 1.

mod files;
mod reserve;
mod writer;

use crate::durable::{OWN_FILES, freshen, make_dir_durable, sync_dir};
use crate::owner::{adopt_dir, adopt_file};
use files::Files;
use outlive_backend::writes::{check_range, exists, missing, short};
use outlive_backend::{Capacity, Fault, ReadRange, ReadTicket, ShardName, ShardWriter, Target};
use outlive_io::{DirectFile, Ticket, read_at};
use outlive_types::sync::pause;
use outlive_types::{Error, NoObserver, Observer, PackId, Result};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, DirEntry};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use writer::{DirectoryWriter, PartFile};

/// Settings of a [`DirectoryTarget`], and its observer.
#[derive(Clone)]
pub struct DirectoryOptions {
    /// Use O_DIRECT, past the page cache, where the file system supports it. Default true.
    pub direct_io: bool,
    /// Observer that gets one warning if the file system refuses O_DIRECT. Default: none.
    pub observer: Arc<dyn Observer>,
    /// Make the root, and `packs` in it, where they are missing. Otherwise they must exist: an
    /// unmounted file system must not take shards at its mount point. Default true.
    pub make_root: bool,
    /// Number of the target's own threads for writes and reads, so that a hanging directory takes
    /// none from other targets. Default: the threads that the whole process shares.
    pub threads: Option<usize>,
}

impl Default for DirectoryOptions {
    fn default() -> Self {
        DirectoryOptions {
            direct_io: true,
            observer: Arc::new(NoObserver),
            make_root: true,
            threads: None,
        }
    }
}

impl fmt::Debug for DirectoryOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectoryOptions").field("direct_io", &self.direct_io).finish()
    }
}

/// Shards as files `packs/XX/PACKID.S.shard` below a root.
///
/// A shard becomes visible when its file gets the finished name. That is a moment before the name
/// is durable and `finish` returns; POSIX cannot swap the two steps.
pub struct DirectoryTarget {
    root: PathBuf,
    files: Arc<Files>,
    made: Arc<DurableDirs>,
    make_root: bool,
}

/// Directories that this target knows to be durable.
struct DurableDirs {
    /// The root, and `packs` in it.
    packs: AtomicBool,
    /// The 256 directories XX. The writer that makes one does not wait until it is durable; the end
    /// of a shard does, in the background.
    shards: [AtomicBool; 256],
}

impl DurableDirs {
    /// Makes the entry of a shard's existing directory durable.
    fn make_durable(&self, shard: ShardName, directory: &Path) -> io::Result<()> {
        let made = &self.shards[directory_number(shard)];
        if !made.load(Ordering::Acquire) {
            directory.parent().map_or(Ok(()), sync_dir)?;
            made.store(true, Ordering::Release);
        }
        Ok(())
    }
}

fn directory_number(shard: ShardName) -> usize {
    usize::from(shard.pack.0[19])
}

impl DirectoryTarget {
    /// Uses the directory `root`. Writes nothing yet: the first shard makes the directory. So a
    /// missing directory reads as empty, and a read-only one can be read.
    ///
    /// # Errors
    /// `Invalid` if `root` exists and is not a directory.
    pub fn open(root: &Path, options: &DirectoryOptions) -> Result<DirectoryTarget> {
        if root.exists() && !root.is_dir() {
            return Err(Error::invalid(format!(
                "{} is not a directory: choose another location",
                root.display()
            )));
        }
        Ok(DirectoryTarget::at(root, options))
    }

    /// Uses `root` without checking the directory, since the check may hang.
    pub fn at(root: &Path, options: &DirectoryOptions) -> DirectoryTarget {
        DirectoryTarget {
            root: root.to_owned(),
            files: Arc::new(Files::new(root, options)),
            make_root: options.make_root,
            made: Arc::new(DurableDirs {
                packs: AtomicBool::new(false),
                shards: [const { AtomicBool::new(false) }; 256],
            }),
        }
    }

    /// Tests O_DIRECT by reading from a small file, so that the first shard need not. Writes
    /// nothing. A file on another file system shows nothing.
    pub fn probe(&self, file: &Path) {
        let device = |path: &Path| fs::metadata(path).map(|metadata| metadata.dev()).ok();
        if device(file).is_some_and(|dev| device(&self.packs()) == Some(dev)) {
            self.files.probe(file);
        }
    }

    /// The directory that holds the shards.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn packs(&self) -> PathBuf {
        self.root.join("packs")
    }

    fn dir_of(&self, shard: ShardName) -> PathBuf {
        self.packs().join(format!("{:02x}", directory_number(shard)))
    }

    fn path(&self, shard: ShardName) -> PathBuf {
        self.dir_of(shard).join(format!("{shard}.shard"))
    }

    fn part_path(&self, shard: ShardName) -> PathBuf {
        self.dir_of(shard).join(format!("{shard}.part"))
    }

    /// Returns the name of a whole file that is about to replace a finished shard.
    fn whole_path(&self, shard: ShardName) -> PathBuf {
        self.dir_of(shard).join(format!("{shard}.new"))
    }

    /// Makes the directory of `shard`, and durably all directories above it, once in this target's
    /// life. With `again`, makes all of them durably: one has vanished.
    fn make_dir(&self, shard: ShardName, again: bool) -> Result<()> {
        let directory = self.dir_of(shard);
        let durable = |path: &Path| -> Result<()> {
            let is_new = !path.exists();
            make_dir_durable(path)
                .map_err(|error| Error::io("creating the directory", path, &error))?;
            if is_new {
                adopt_dir(&self.root, path);
            }
            Ok(())
        };
        if !self.make_root {
            if !self.packs().is_dir() {
                return Err(away(&self.root));
            }
        } else if again || !self.made.packs.load(Ordering::Acquire) {
            durable(&self.root)?;
            durable(&self.packs())?;
            self.made.packs.store(true, Ordering::Release);
        }
        let made = &self.made.shards[directory_number(shard)];
        if again && self.make_root {
            durable(&directory)?;
            made.store(true, Ordering::Release);
        } else if again {
            // A directory above it may have vanished since the check: then this call fails.
            match fs::create_dir(&directory) {
                Err(error) if !directory.is_dir() => {
                    return Err(Error::io("creating the directory", &directory, &error));
                }
                Err(_) => {}
                Ok(()) => adopt_dir(&self.root, &directory),
            }
            sync_dir(&self.packs()).map_err(|e| Error::io("syncing", &self.packs(), &e))?;
            made.store(true, Ordering::Release);
        } else if !made.load(Ordering::Acquire) {
            match fs::create_dir(&directory) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return self.make_dir(shard, true);
                }
                Err(error) if !directory.is_dir() => {
                    return Err(Error::io("creating the directory", &directory, &error));
                }
                Err(_) => {}
                Ok(()) => adopt_dir(&self.root, &directory),
            }
        }
        Ok(())
    }

    /// Makes a new file for a shard that begins. An existing file of that name may belong to a
    /// writer that still works, or be the finished shard's file already.
    fn create_part(&self, part: &Path) -> io::Result<DirectFile> {
        loop {
            remove_if_there(part)?;
            pause("make the shard's file");
            match self.files.create_new(part) {
                // Another writer of this shard began at the same moment. The last one counts.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => {
                    let file = made?;
                    adopt_file(&self.root, &file.file());
                    return Ok(file);
                }
            }
        }
    }

    /// Begins to write a shard in its existing directory.
    fn begin(&self, shard: ShardName, bytes_max: u64, replaces: bool) -> Result<DirectoryWriter> {
        let part = self.part_path(shard);
        if replaces {
            // A leftover, or the file of a writer that has to begin again.
            remove(&self.whole_path(shard))?;
        }
        let file = match self.create_part(&part) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.make_dir(shard, true)?;
                self.create_part(&part)
            }
            other => other,
        };
        let file = file.map_err(|error| Error::io("creating a shard as", &part, &error))?;
        let writer = DirectoryWriter::new(PartFile {
            files: self.files.clone(),
            made: self.made.clone(),
            shard,
            file,
            path: part,
            path_when_finished: self.path(shard),
            path_when_whole: self.whole_path(shard),
            bytes_max,
            replaces,
        });
        writer.reserve()?; // dropping the writer removes the file
        Ok(writer)
    }
}

impl DirectoryTarget {
    /// Returns the shards that have a file with one of these endings, sorted.
    fn named(&self, endings: &[&str]) -> Result<Vec<ShardName>> {
        let parse = |name: &str| {
            let (stem, ending) = name.rsplit_once('.')?;
            if endings.contains(&ending) { parse_stem(stem) } else { None }
        };
        let mut shards = Vec::new();
        for directory in entries(&self.packs())? {
            let name = directory.file_name();
            if name.len() != 2 || !directory.path().is_dir() {
                continue;
            }
            for entry in entries(&directory.path())? {
                let shard = entry.file_name().to_str().and_then(parse);
                // A read would never find a file in the wrong directory, so the list omits it.
                shards.extend(shard.filter(|shard| self.dir_of(*shard) == directory.path()));
            }
        }
        shards.sort_unstable();
        shards.dedup();
        Ok(shards)
    }
}

/// Returns the error for a missing directory.
fn away(root: &Path) -> Error {
    Error::retry(format!(
        "{} is not there: mount its file system, or put it back",
        root.join("packs").display()
    ))
}

/// Returns the error for a missing shard. If a target is gone that this process must not make
/// again, the error says nothing about the shard.
fn not_there(root: &Path, make_root: bool, shard: ShardName) -> Error {
    match make_root || root.join("packs").is_dir() {
        true => missing(&describe(root), shard),
        false => away(root),
    }
}

fn describe(root: &Path) -> String {
    format!("directory {}", root.display())
}

impl Target for DirectoryTarget {
    fn describe(&self) -> String {
        describe(&self.root)
    }

    fn create(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>> {
        self.make_dir(shard, false)?;
        if self.path(shard).exists() {
            return Err(exists(&self.describe(), shard));
        }
        Ok(Box::new(self.begin(shard, bytes_max, false)?))
    }

    fn replace(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>> {
        self.make_dir(shard, false)?;
        Ok(Box::new(self.begin(shard, bytes_max, true)?))
    }

    fn read_ranges(&self, shard: ShardName, ranges: Vec<ReadRange>) -> Vec<ReadTicket> {
        let read = |mut range: ReadRange| {
            if let Err(error) = check_range(shard, &range) {
                return Ticket::done(Err(Fault { error, buffer: range.buffer }));
            }
            let (files, path, place) = (self.files.clone(), self.path(shard), self.describe());
            let (root, make_root) = (self.root.clone(), self.make_root);
            // The opening runs there, too: it may hang.
            self.files.submit_read(range.mode.is_urgent, move || {
                let file = match files.open_to_read(shard, &path) {
                    Ok(file) => file,
                    Err(error) => {
                        let error = match error.kind() {
                            io::ErrorKind::NotFound => not_there(&root, make_root, shard),
                            _ => Error::io_stored("opening the shard", &path, &error),
                        };
                        return Err(Fault { error, buffer: range.buffer });
                    }
                };
                let ReadRange { offset, buffer, mode } = &mut range;
                if mode.may_be_cached && file.read_cached(buffer, *offset) {
                    return Ok(range.buffer);
                }
                let read = files.run(&file, |file| read_at(file, buffer, *offset));
                let error = match read {
                    Ok(got) if got == range.buffer.len() => return Ok(range.buffer),
                    Ok(got) => {
                        let end = range.offset + got as u64;
                        let end = file.file().metadata().map_or(end, |metadata| metadata.len());
                        short(&place, shard, &range, end)
                    }
                    Err(error) => Error::io_stored("reading the shard", &path, &error),
                };
                Err(Fault { error, buffer: range.buffer })
            })
        };
        ranges.into_iter().map(read).collect()
    }

    fn length(&self, shard: ShardName) -> Result<u64> {
        let path = self.path(shard);
        match fs::metadata(&path) {
            Ok(metadata) => {
                // Another process may have replaced the shard.
                self.files.forget_unless(shard, &metadata);
                Ok(metadata.len())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.files.forget(shard);
                Err(not_there(&self.root, self.make_root, shard))
            }
            Err(error) => Err(Error::io_stored("measuring the shard", &path, &error)),
        }
    }

    fn list(&self) -> Result<Vec<ShardName>> {
        self.named(&["shard"])
    }

    fn sync(&self, shards: &[ShardName]) -> Result<()> {
        let directories: BTreeMap<usize, ShardName> =
            shards.iter().map(|shard| (directory_number(*shard), *shard)).collect();
        for shard in directories.into_values() {
            let path = self.dir_of(shard);
            match sync_dir(&path).and_then(|()| self.made.make_durable(shard, &path)) {
                Ok(()) => {}
                Err(error) => match error.kind() {
                    // No program writes there any more, so no name waits for a sync.
                    io::ErrorKind::NotFound | io::ErrorKind::ReadOnlyFilesystem => {}
                    _ => return Err(Error::io("syncing", &path, &error)),
                },
            }
        }
        Ok(())
    }

    fn unfinished(&self) -> Result<Vec<ShardName>> {
        self.named(&["part", "new"])
    }

    fn delete_unfinished(&self, shard: ShardName) -> Result<()> {
        // In this order: a writer makes the second file of the first.
        remove(&self.part_path(shard)).and_then(|()| remove(&self.whole_path(shard)))
    }

    fn delete(&self, shard: ShardName) -> Result<()> {
        self.files.forget(shard);
        // In this order: then no writer makes a finished shard of an unfinished one again.
        self.delete_unfinished(shard).and_then(|()| remove(&self.path(shard)))
    }

    fn capacity(&self) -> Result<Capacity> {
        // The root may not exist yet; the directory above it is on the same medium.
        let there = self.root.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("."));
        let stat = rustix::fs::statvfs(there)
            .map_err(|errno| Error::io("asking for the free space of", there, &errno.into()))?;
        if stat.f_blocks == 0 {
            // A file system that does not count its space, such as ramfs; it reports when it is
            // full.
            return Ok(Capacity { total_bytes: u64::MAX, free_bytes: u64::MAX });
        }
        Ok(Capacity {
            total_bytes: stat.f_blocks * stat.f_frsize,
            free_bytes: stat.f_bavail * stat.f_frsize,
        })
    }

    fn make_reserve(&self, bytes: u64) -> Result<()> {
        if !self.packs().is_dir() {
            return Ok(()); // an unmounted target gets no files
        }
        let Capacity { total_bytes, free_bytes } = self.capacity()?;
        reserve::keep(&self.packs(), bytes, total_bytes, free_bytes)
            .map_err(|error| Error::io("making the reserve in", &self.root, &error))
    }

    fn delete_reserve(&self) -> Result<u64> {
        reserve::give_up(&self.packs())
            .map_err(|error| Error::io("deleting the reserve in", &self.root, &error))
    }

    fn close_files(&self, all: bool) {
        self.files.close(all);
    }

    fn freshen(&self, shards: &[ShardName]) -> Result<()> {
        let shards = shards.iter().map(|shard| self.path(*shard));
        let own = OWN_FILES.iter().map(|name| self.root.join(name));
        for path in shards.chain(own) {
            freshen(&path).map_err(|error| Error::io("refreshing the times of", &path, &error))?;
        }
        Ok(())
    }
}

impl fmt::Debug for DirectoryTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DirectoryTarget({})", self.root.display())
    }
}

/// Removes a file, if it is there.
fn remove(path: &Path) -> Result<()> {
    remove_if_there(path).map_err(|error| Error::io("removing the shard", path, &error))
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Returns the entries of a directory; none if it does not exist.
fn entries(path: &Path) -> Result<Vec<DirEntry>> {
    let listed = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.and_then(Iterator::collect),
    };
    listed.map_err(|error| Error::io_stored("listing", path, &error))
}

/// Parses `PACKID.S`; returns `None` for other files.
fn parse_stem(stem: &str) -> Option<ShardName> {
    let (pack, shard) = stem.split_once('.')?;
    let name = ShardName { pack: PackId::parse(pack)?, shard: shard.parse().ok()? };
    (name.to_string() == stem).then_some(name)
}

#[cfg(test)]
mod tests;
