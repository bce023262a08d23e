//! Writing one shard's file.

use super::DurableDirs;
use super::files::Files;
use crate::durable::{link_new, rename_new, sync_dir};
use crate::writes::{Writes, check_finish, check_write, exists};
use crate::{ShardName, ShardWriter, WriteTicket};
use outlive_io::{DirectFile, DiskEngine, SharedBuf, Ticket, write_all_at};
use outlive_types::{Error, Result};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;

pub(super) struct DirectoryWriter {
    part: Arc<PartFile>,
    writes: Arc<Writes>,
    finishing: bool,
    // A forked child that drops an inherited writer must not remove the parent's file.
    pid: u32,
}

/// The file while it is being written.
pub(super) struct PartFile {
    pub files: Arc<Files>,
    pub made: Arc<DurableDirs>,
    pub shard: ShardName,
    pub file: DirectFile,
    pub path: PathBuf,
    pub path_when_finished: PathBuf,
    pub bytes_max: u64,
}

impl DirectoryWriter {
    pub(super) fn new(part: PartFile) -> DirectoryWriter {
        DirectoryWriter {
            part: Arc::new(part),
            writes: Arc::default(),
            finishing: false,
            pid: process::id(),
        }
    }

    /// Reserves the room, so that writes extend nothing. What becomes of a shard that finds less room
    /// than it may take shows when it is written: it may be a short one, such as a gc makes that is
    /// to free a full disk.
    pub(super) fn reserve(&self) -> Result<()> {
        let part = &self.part;
        if part.bytes_max == 0 {
            return Ok(());
        }
        loop {
            match fallocate(part.file.file(), FallocateFlags::empty(), 0, part.bytes_max) {
                Err(Errno::INTR) => {}
                Err(errno @ Errno::FBIG) => {
                    return Err(Error::io("reserving room for", &part.path, &errno.into()));
                }
                // Anything else: it cannot be reserved, but perhaps be written.
                _ => return Ok(()),
            }
        }
    }
}

impl ShardWriter for DirectoryWriter {
    fn write(&mut self, offset: u64, bytes: SharedBuf) -> WriteTicket {
        let writing = self.writes.begin(offset);
        let part = self.part.clone();
        if let Err(error) = check_write(part.shard, offset, &bytes, part.bytes_max) {
            return Ticket::done(writing.end(Err(error), bytes));
        }
        DiskEngine::shared().submit(move || {
            let outcome = part
                .files
                .run(&part.file, |file| write_all_at(file, &bytes, offset))
                .map_err(|error| Error::io("writing", &part.path, &error));
            writing.end(outcome, bytes)
        })
    }

    fn finish(mut self: Box<Self>, length: u64) -> Ticket<Result<()>> {
        self.finishing = true;
        let (part, writes) = (self.part.clone(), self.writes.clone());
        let name = self.part.path.clone();
        let (promise, ticket) = Ticket::pair_or(move || {
            Err(Error::bug(format!("finishing {} was given up", name.display())))
        });
        let last = move || {
            let outcome = writes.check(part.shard).and_then(|()| part.publish(length));
            if outcome.is_err() {
                part.remove();
            }
            promise.fulfil(outcome);
        };
        self.writes.after_all(move || drop(DiskEngine::shared().submit(last)));
        ticket
    }
}

impl PartFile {
    /// Makes the bytes durable, then visible, then the name durable.
    fn publish(&self, length: u64) -> Result<()> {
        check_finish(self.shard, length, self.bytes_max)?;
        let fault = |doing| move |error| Error::io(doing, &self.path, &error);
        let file = self.file.file();
        file.set_len(length).map_err(fault("cutting to its length"))?;
        file.sync_data().map_err(fault("syncing"))?;
        let to = &self.path_when_finished;
        let directory = to.parent().unwrap_or(Path::new("."));
        self.rename().map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => exists(&directory.display().to_string(), self.shard),
            io::ErrorKind::NotFound if directory.is_dir() => removed(&self.path),
            _ => Error::io("renaming", &self.path, &error),
        })?;
        let named = sync_dir(directory);
        named.and_then(|()| self.made.make_durable(self.shard, directory)).map_err(|error| {
            let _ = fs::remove_file(to);
            Error::io("syncing the directory", directory, &error)
        })
    }

    /// Whether the file is still the one that its path names: another writer of the same shard begins by
    /// taking a file out of its way.
    fn is_named(&self) -> bool {
        let id = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        let ours = self.file.file().metadata().map(id);
        ours.is_ok_and(|ours| fs::symlink_metadata(&self.path).map(id).is_ok_and(|it| it == ours))
    }

    fn rename(&self) -> io::Result<()> {
        let to = &self.path_when_finished;
        if !self.is_named() {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        }
        let unsupported = |error: &io::Error| error.kind() == io::ErrorKind::Unsupported;
        match rename_new(&self.path, to) {
            Err(error) if unsupported(&error) => match link_new(&self.path, to) {
                Ok(()) => fs::remove_file(&self.path),
                // Pack ids are unique, so the last resort is only less of a guard against bugs.
                Err(error) if unsupported(&error) && !to.exists() => fs::rename(&self.path, to),
                other => other,
            },
            other => other,
        }
    }

    /// Removes the unfinished file; what cannot be removed is garbage that gc collects.
    fn remove(&self) {
        if self.is_named() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The error for an unfinished shard that somebody has removed.
fn removed(path: &Path) -> Error {
    Error::retry(format!(
        "{} was removed before it was finished: a gc does that when its writer was fenced, or \
         seemed to be gone; if it was not fenced, try again",
        path.display()
    ))
}

impl Drop for DirectoryWriter {
    /// Removes an abandoned file at once: writes still in flight go to a file without a name.
    fn drop(&mut self) {
        if !self.finishing && process::id() == self.pid {
            self.part.remove();
        }
    }
}
