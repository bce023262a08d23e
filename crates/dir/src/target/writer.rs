//! Writing one shard's file.

use super::files::{Files, is_same};
use super::{DurableDirs, remove_if_there};
use crate::durable::{link_new, link_open, rename_new, sync_dir};
use outlive_backend::writes::{Writes, check_finish, check_write, exists};
use outlive_backend::{ShardName, ShardWriter, WriteTicket};
use outlive_io::{DirectFile, SharedBuf, Ticket, write_all_at};
use outlive_types::sync::pause;
use outlive_types::{Error, Result};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;

pub(super) struct DirectoryWriter {
    pub(super) part: Arc<PartFile>,
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
    /// Name of the file for a moment, when it is whole and about to replace a finished shard.
    pub path_when_whole: PathBuf,
    pub bytes_max: u64,
    /// Whether the shard replaces a finished one.
    pub replaces: bool,
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

    /// Reserves the space, so that writes extend nothing. Too little space is no error yet; the
    /// writes report it. The shard may be short, such as one that a gc writes to free a full disk.
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
                // Any other error: the space cannot be reserved, but perhaps written.
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
        let files = self.part.files.clone();
        files.submit(move || {
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
        let files = self.part.files.clone();
        self.writes.after_all(move || drop(files.submit(last)));
        ticket
    }
}

impl PartFile {
    /// Makes the bytes durable, then visible, then the name durable.
    pub(super) fn publish(&self, length: u64) -> Result<()> {
        check_finish(self.shard, length, self.bytes_max)?;
        let to = &self.path_when_finished;
        let directory = to.parent().unwrap_or(Path::new("."));
        let fault = |doing| {
            move |error: io::Error| match error.kind() {
                io::ErrorKind::AlreadyExists => {
                    exists(&directory.display().to_string(), self.shard)
                }
                // Some network file systems close an open file that has lost its name.
                io::ErrorKind::NotFound | io::ErrorKind::StaleNetworkFileHandle
                    if directory.is_dir() =>
                {
                    removed(&self.path)
                }
                _ => Error::io(doing, &self.path, &error),
            }
        };
        let file = self.file.file();
        file.set_len(length).map_err(fault("cutting to its length"))?;
        file.sync_data().map_err(fault("syncing"))?;
        self.give_name().map_err(fault("naming"))?;
        if self.replaces {
            self.files.replaced();
        }
        // Before the directory is synced, so that one sync makes both changes durable.
        self.remove();
        let named = sync_dir(directory);
        named.and_then(|()| self.made.make_durable(self.shard, directory)).map_err(|error| {
            // For a replaced shard, this file is all that is left.
            if !self.replaces && self.is_at(to) {
                let _ = fs::remove_file(to);
            }
            Error::io("syncing the directory", directory, &error)
        })
    }

    /// Whether `path` names this file.
    fn is_at(&self, path: &Path) -> bool {
        let named = fs::symlink_metadata(path);
        let ours = self.file.file().metadata();
        named.is_ok_and(|named| ours.is_ok_and(|ours| is_same(&ours, &named)))
    }

    /// Fails with `NotFound` unless the file still has the part's name. Another writer of the shard
    /// first removes a file of that name, and a gc removes files that look like leftovers.
    fn check_named(&self) -> io::Result<()> {
        match self.is_at(&self.path) {
            true => Ok(()),
            false => Err(io::Error::from(io::ErrorKind::NotFound)),
        }
    }

    /// Gives the file the name of the finished shard. The open file gets the name, not the file
    /// that has the part's name at that moment: that may be an unfinished file of another writer.
    ///
    /// If the part's name is removed between the check and the link, the kernel also refuses with
    /// `NotFound` to link a file without a name. In two cases it still makes the link: another
    /// program gave the file a second name, or a network file system only renamed the file because
    /// it is open. Then the shard is finished although it was deleted before. That does no harm:
    /// its bytes are whole, a fenced writer cannot commit it, and the next gc finds it.
    fn give_name(&self) -> io::Result<()> {
        self.check_named()?;
        pause("name the shard's file");
        let named = match self.replaces {
            true => self.replace_name(),
            false => self.link(&self.path_when_finished),
        };
        match named {
            Err(error) if is_unsupported(&error) => self.give_name_by_path(),
            other => other,
        }
    }

    /// Links the open file.
    fn link(&self, to: &Path) -> io::Result<()> {
        match link_open(&self.file.file(), to) {
            // A network file system may have lost the reply, and repeated the call.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && self.is_at(to) => Ok(()),
            linked => linked,
        }
    }

    /// Replaces a finished shard in two steps, as no link replaces a file. The name in between is
    /// only given to whole and durable files. So if two writers replace the shard at once, the
    /// rename may publish the other writer's file, which is as good.
    fn replace_name(&self) -> io::Result<()> {
        let (to, whole) = (&self.path_when_finished, &self.path_when_whole);
        loop {
            match self.link(whole) {
                // A leftover, or the file of a writer that is about to rename it and must then
                // begin again.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    remove_if_there(whole)?
                }
                linked => break linked?,
            }
        }
        pause("replace the shard's file");
        match fs::rename(whole, to) {
            Ok(()) => Ok(()),
            Err(_) if self.is_at(to) => Ok(()),
            Err(error) => {
                if self.is_at(whole) {
                    let _ = fs::remove_file(whole);
                }
                Err(error)
            }
        }
    }

    /// Names the file by the part's path, where the open file cannot be named. This guarantees
    /// less. If another writer puts its part there between the check and the rename, that
    /// unfinished file gets the name and is acknowledged. It becomes whole if the other writer goes
    /// on, which then fails with `Retry`. If that writer dies, readers find the shard damaged.
    fn give_name_by_path(&self) -> io::Result<()> {
        let to = &self.path_when_finished;
        self.check_named()?;
        if self.replaces {
            return fs::rename(&self.path, to);
        }
        match rename_new(&self.path, to) {
            Err(error) if is_unsupported(&error) => match link_new(&self.path, to) {
                // Pack ids are unique, so the last resort only protects less against bugs.
                Err(error) if is_unsupported(&error) && !to.exists() => fs::rename(&self.path, to),
                other => other,
            },
            other => other,
        }
    }

    /// Removes the name of the unfinished file. If that fails, the name is garbage for a gc. If
    /// another writer takes the name between the check and the removal, that writer must begin
    /// again.
    fn remove(&self) {
        if self.is_at(&self.path) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn is_unsupported(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Unsupported
}

/// Returns the error for an unfinished shard that another program has removed.
fn removed(path: &Path) -> Error {
    Error::retry(format!(
        "{} was removed before it was finished: a gc does that when its writer was fenced, or \
         seemed to be gone; if it was not fenced, try again",
        path.display()
    ))
}

impl Drop for DirectoryWriter {
    /// Removes an abandoned file at once: writes in flight go to a file without a name.
    fn drop(&mut self) {
        if !self.finishing && process::id() == self.pid {
            self.part.remove();
        }
    }
}
