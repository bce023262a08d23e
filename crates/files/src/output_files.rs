//! Files that a get is making, and the shared state of its threads.

use super::describe::Refusals;
use super::file_error::{FileError, FileErrorKind, Troubles};
use super::placer::{Name, Placer};
use outlive_format::Item;
use outlive_store::FilesImage;
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, Event, Progress, Result, shown_path};
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Partly written files that stay open.
const OPEN_MAX: usize = 256;
const PROGRESS_BYTES: u64 = 4 << 20;
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Returns the error for a name that is taken.
pub fn in_the_way(to: &Path, path: &[u8]) -> Error {
    Error::invalid(format!(
        "{}/{} is there already: choose another directory, or replace files with --overwrite",
        to.display(),
        shown_path(path)
    ))
}

/// Creates the destination directory for data from a pool.
///
/// # Errors
/// `Invalid` if it cannot be created, such as when a file has its name; `Full`.
pub fn make_dir(to: &Path) -> Result<()> {
    fs::create_dir_all(to).map_err(|error| match fs::metadata(to) {
        Ok(there) if !there.is_dir() => Error::invalid(format!(
            "{} exists and is not a directory: name a directory, or a path where nothing is yet",
            to.display()
        )),
        _ => Error::io_named("making", to, &error),
    })
}

/// A file being made.
pub struct Making {
    /// The item without its content.
    pub item: Item,
    /// Number of bytes that are not written yet.
    left: AtomicU64,
    state: Mutex<State>,
}

impl Making {
    /// Returns a file of which nothing is written.
    pub fn new(item: Item) -> Making {
        let (left, state) = (AtomicU64::new(item.bytes), Mutex::default());
        Making { item, left, state }
    }

    /// Returns whether it is finished or aborted.
    pub fn is_over(&self) -> bool {
        self.state.lock().over
    }
}

#[derive(Default)]
struct State {
    name: Option<Arc<Name>>,
    file: Option<Arc<OwnedFd>>,
    /// True if it is finished or aborted.
    over: bool,
}

/// Shared state of the threads of a get.
pub struct Shared<'a> {
    /// Makes files, directories and links.
    pub placer: Placer,
    /// Destination directory.
    pub to: &'a Path,
    /// Open files, the oldest first.
    pub open: Mutex<VecDeque<Arc<Making>>>,
    /// File errors.
    pub troubles: Mutex<Troubles>,
    /// Omitted files, with the kinds of their errors: further names of them cannot be made either.
    pub lost: Mutex<HashMap<Vec<u8>, FileErrorKind>>,
    /// Error that ends the get.
    pub failure: Mutex<Option<Error>>,
    done_bytes: AtomicU64,
    /// Number of files that were made or existed already.
    pub files: AtomicU64,
    /// Bytes of these files.
    pub bytes: AtomicU64,
    /// Number of files that existed already and were right.
    pub kept_files: AtomicU64,
    /// Bytes of these files.
    pub kept_bytes: AtomicU64,
    checkpoint: &'a FilesImage,
}

impl<'a> Shared<'a> {
    /// Returns the state before any file is made.
    pub fn new(placer: Placer, to: &'a Path, checkpoint: &'a FilesImage) -> Shared<'a> {
        let (open, troubles, lost, failure) = Default::default();
        let (done_bytes, files, bytes, kept_files, kept_bytes) = Default::default();
        Shared {
            placer,
            to,
            open,
            troubles,
            lost,
            failure,
            done_bytes,
            files,
            bytes,
            kept_files,
            kept_bytes,
            checkpoint,
        }
    }

    /// Records an omitted file.
    pub fn lose(&self, path: &[u8], kind: FileErrorKind, why: impl fmt::Display) {
        self.lost.lock().insert(path.to_vec(), kind);
        self.troubles.lock().add(FileError::new(path, kind, why));
    }

    /// Records the refused settings of a file.
    pub fn refusals(&self, path: &[u8], refusals: Refusals) {
        for why in refusals {
            self.troubles.lock().add(FileError::new(path, FileErrorKind::Incomplete, why));
        }
    }

    /// Records the error of a file that could not be made, or returns it if it ends the get.
    ///
    /// # Errors
    /// The error that ends the get.
    pub fn cannot_make(&self, path: &[u8], error: Errno) -> Result<()> {
        let own = matches!(
            error,
            Errno::NAMETOOLONG
                | Errno::INVAL
                | Errno::ILSEQ
                | Errno::NOTSUP
                | Errno::ISDIR
                | Errno::NOTEMPTY
                | Errno::NOTDIR
                | Errno::LOOP
                | Errno::NOENT
                | Errno::XDEV
                | Errno::MLINK
                | Errno::FBIG
                | Errno::BUSY
                | Errno::ACCESS
                | Errno::PERM
        );
        if own || (error == Errno::EXIST && self.placer.overwrite) {
            let why = format!("it could not be made: {}", std::io::Error::from(error));
            self.lose(path, FileErrorKind::Incomplete, why);
            return Ok(());
        }
        if error == Errno::EXIST {
            return Err(in_the_way(self.to, path));
        }
        let whole = self.to.join(shown_path(path));
        Err(Error::io_named("making", &whole, &error.into()))
    }

    fn file(&self, making: &Arc<Making>, whole: bool) -> rustix::io::Result<Option<Arc<OwnedFd>>> {
        let mut state = making.state.lock();
        if state.over {
            return Ok(None);
        }
        if let Some(file) = &state.file {
            return Ok(Some(file.clone()));
        }
        let file = match &state.name {
            Some(name) => self.placer.reopen(name)?,
            None => {
                let (name, file) = self.placer.file(&making.item.path)?;
                state.name = Some(Arc::new(name));
                if !whole {
                    rustix::fs::ftruncate(&file, making.item.bytes)?;
                }
                file
            }
        };
        let file = Arc::new(file);
        state.file = Some(file.clone());
        drop(state);
        if !whole {
            self.remember(making);
        }
        Ok(Some(file))
    }

    /// Closes the file that was opened first, if too many are open.
    fn remember(&self, making: &Arc<Making>) {
        let oldest = {
            let mut open = self.open.lock();
            open.push_back(making.clone());
            if open.len() > OPEN_MAX { open.pop_front() } else { None }
        };
        if let Some(oldest) = oldest {
            oldest.state.lock().file = None;
        }
    }

    /// Writes verified bytes of a file, and finishes it with the last of them.
    ///
    /// # Errors
    /// The error that ends the get.
    pub fn write(&self, making: &Arc<Making>, offset: u64, bytes: &[u8]) -> Result<()> {
        let whole = bytes.len() as u64 == making.item.bytes;
        let write = || -> rustix::io::Result<bool> {
            let Some(file) = self.file(making, whole)? else { return Ok(false) };
            write_all(&file, bytes, offset).map(|()| true)
        };
        match write() {
            Ok(true) => self.wrote(making, bytes.len() as u64),
            Ok(false) => Ok(()),
            Err(error) => {
                self.give_up(making);
                self.cannot_make(&making.item.path, error)
            }
        }
    }

    /// Counts `bytes` more right bytes of a file, and finishes it with the last of them.
    ///
    /// # Errors
    /// The error that ends the get.
    pub fn wrote(&self, making: &Arc<Making>, bytes: u64) -> Result<()> {
        self.progress(bytes);
        if making.left.fetch_sub(bytes, Ordering::AcqRel) == bytes {
            self.finish(making)
        } else {
            Ok(())
        }
    }

    /// Records a file that existed already and is right.
    pub fn kept(&self, item: &Item, refusals: Refusals) {
        self.progress(item.bytes);
        self.refusals(&item.path, refusals);
        for (files, bytes) in [(&self.files, &self.bytes), (&self.kept_files, &self.kept_bytes)] {
            files.fetch_add(1, Ordering::Relaxed);
            bytes.fetch_add(item.bytes, Ordering::Relaxed);
        }
    }

    fn progress(&self, bytes: u64) {
        let done = self.done_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if (done - bytes) / PROGRESS_BYTES != done / PROGRESS_BYTES {
            let total_bytes = self.checkpoint.manifest().state_bytes().max(done);
            let progress = Progress { what: "get", done_bytes: done, total_bytes };
            let env = self.checkpoint.pool().env();
            env.observer.event(Event::Progress(progress));
        }
    }

    fn finish(&self, making: &Arc<Making>) -> Result<()> {
        let item = &making.item;
        let finish = || -> rustix::io::Result<()> {
            let whole = item.bytes == 0;
            let Some(file) = self.file(making, whole)? else { return Ok(()) };
            let mut state = making.state.lock();
            let Some(name) = state.name.take() else { return Ok(()) };
            state.over = true;
            state.file = None;
            drop(state);
            let refusals = self.placer.finish_file(&name, &file, item)?;
            self.refusals(&item.path, refusals);
            self.files.fetch_add(1, Ordering::Relaxed);
            self.bytes.fetch_add(item.bytes, Ordering::Relaxed);
            Ok(())
        };
        finish().or_else(|error| {
            self.give_up(making);
            self.cannot_make(&item.path, error)
        })
    }

    /// Removes an unfinished file.
    pub fn give_up(&self, making: &Making) {
        let mut state = making.state.lock();
        state.over = true;
        state.file = None;
        if let Some(name) = state.name.take() {
            self.placer.discard(&name);
        }
    }
}

fn write_all(file: &OwnedFd, mut bytes: &[u8], mut offset: u64) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(file, bytes, offset) {
            Ok(written) => {
                bytes = &bytes[written..];
                offset += written as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Work that needs no reads, for any thread.
pub enum Simple {
    /// A file that is empty, has its content in its item, or is all holes.
    File(Arc<Making>, Vec<u8>),
    /// Zeros to write.
    Zeros(Arc<Making>, u64, u64),
}

impl Simple {
    /// Does the work.
    ///
    /// # Errors
    /// The error that ends the get.
    pub fn run(self, shared: &Shared<'_>) -> Result<()> {
        match self {
            Simple::File(making, bytes) if bytes.is_empty() => shared.finish(&making),
            Simple::File(making, bytes) => shared.write(&making, 0, &bytes),
            Simple::Zeros(making, offset, bytes) => {
                let mut at = 0;
                while at < bytes {
                    let step = (bytes - at).min(ZEROS.len() as u64);
                    shared.write(&making, offset + at, &ZEROS[..step as usize])?;
                    at += step;
                }
                Ok(())
            }
        }
    }
}
