//! Locks between the processes that use a device. They belong to the open device (`F_OFD_SETLK`),
//! which forked children close, so the kernel ends them with their process, however that ends.

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use outlive_io::{OwnFile, PerProcess};
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, Result};
use std::any::Any;
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;

/// Keeps a lock until it is dropped.
pub(crate) type Guard = Box<dyn Any + Send + Sync>;

/// A lock on one byte of the device's range.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Lock {
    /// The lock of all slots.
    Slots { alone: bool },
    /// The lock of a slot's writer.
    Writer(u32),
    /// The lock of a storage node that serves the device.
    Server,
}

impl Lock {
    fn byte(self) -> i64 {
        match self {
            Lock::Slots { .. } => 0,
            Lock::Writer(slot) => 1 + i64::from(slot),
            // Behind all of the others.
            Lock::Server => 2 + i64::from(u32::MAX),
        }
    }

    fn kind(self) -> libc::c_int {
        match self {
            Lock::Slots { alone: false } => libc::F_RDLCK,
            _ => libc::F_WRLCK,
        }
    }
}

/// The locks that one target takes.
#[derive(Debug)]
pub(crate) struct Locks {
    path: PathBuf,
    writes: bool,
    /// The open device of the locks, and the writers' bytes that this process has locked: the
    /// kernel does not tell these from free ones. A forked child opens the device for itself. It
    /// stays open, since udev looks at a device whenever a program that may write closes it.
    held: PerProcess<Option<Arc<Held>>>,
}

#[derive(Debug)]
struct Held {
    file: OwnFile,
    bytes: Mutex<BTreeSet<i64>>,
}

/// Ends a lock. A forked child leaves that to its parent.
struct Unlock {
    held: Arc<Held>,
    byte: i64,
    process: u32,
}

impl Locks {
    /// Uses a device, for writing or only for reading.
    pub(crate) fn new(path: &Path, writes: bool) -> Locks {
        Locks { path: path.to_owned(), writes, held: PerProcess::new(|_| None) }
    }

    /// Waits for a lock. One thread at a time has it: the locks of one open device do not exclude
    /// each other.
    pub(crate) fn wait(&self, lock: Lock) -> Result<Guard> {
        let held = self.held()?;
        loop {
            match fcntl(&*held.file, FcntlArg::F_OFD_SETLKW(&range(lock.byte(), lock.kind()))) {
                Ok(_) => break,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(self.fault(errno)),
            }
        }
        Ok(Box::new(Unlock { held, byte: lock.byte(), process: process::id() }))
    }

    /// Takes a lock; `None` if it is held.
    pub(crate) fn attempt(&self, lock: Lock) -> Result<Option<Guard>> {
        let held = self.held()?;
        let mut bytes = held.bytes.lock();
        if bytes.contains(&lock.byte()) {
            return Ok(None);
        }
        match fcntl(&*held.file, FcntlArg::F_OFD_SETLK(&range(lock.byte(), lock.kind()))) {
            Ok(_) => {}
            Err(Errno::EAGAIN | Errno::EACCES) => return Ok(None),
            Err(errno) => return Err(self.fault(errno)),
        }
        bytes.insert(lock.byte());
        drop(bytes);
        Ok(Some(Box::new(Unlock { held, byte: lock.byte(), process: process::id() })))
    }

    /// Returns whether a writer holds the lock of a slot, in this process or another one.
    pub(crate) fn is_held(&self, slot: u32) -> Result<bool> {
        let held = self.held()?;
        let byte = Lock::Writer(slot).byte();
        let bytes = held.bytes.lock();
        if bytes.contains(&byte) {
            return Ok(true);
        }
        let mut found = range(byte, libc::F_WRLCK);
        fcntl(&*held.file, FcntlArg::F_OFD_GETLK(&mut found)).map_err(|errno| self.fault(errno))?;
        Ok(found.l_type != libc::F_UNLCK as libc::c_short)
    }

    fn held(&self) -> Result<Arc<Held>> {
        let mut held = self.held.lock();
        if let Some(held) = &*held {
            return Ok(held.clone());
        }
        let opened = Arc::new(self.open()?);
        *held = Some(opened.clone());
        Ok(opened)
    }

    /// Opens the device for locks. Without the right to write it can have shared locks only.
    fn open(&self) -> Result<Held> {
        let file = OpenOptions::new().read(true).write(self.writes).open(&self.path);
        let file = file.map_err(|error| Error::io("opening the device", &self.path, &error))?;
        Ok(Held { file: OwnFile::new(file), bytes: Mutex::default() })
    }

    fn fault(&self, errno: Errno) -> Error {
        Error::io("locking", &self.path, &io::Error::from_raw_os_error(errno as i32))
    }
}

impl Drop for Unlock {
    fn drop(&mut self) {
        if process::id() != self.process {
            return;
        }
        let mut bytes = self.held.bytes.lock();
        let _ = fcntl(&*self.held.file, FcntlArg::F_OFD_SETLK(&range(self.byte, libc::F_UNLCK)));
        bytes.remove(&self.byte);
    }
}

fn range(byte: i64, kind: libc::c_int) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: byte,
        l_len: 1,
        l_pid: 0,
    }
}
