//! A device: pages to read and write, a flush, locks between processes. Tests have one in memory,
//! which loses writes when its power is cut.

use crate::locks::{Guard, Lock, Locks};
use outlive_io::{DirectFile, read_at, write_all_at};
use outlive_types::{Error, PAGE_BYTES, Result};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Offset of the page through which processes tell each other of changes.
pub(crate) const CHANGES_AT: u64 = PAGE_BYTES as u64;

/// The device as the target uses it. Offsets, lengths and memory are made of whole pages.
pub(crate) trait Device: Send + Sync + fmt::Debug {
    /// Returns its kind and path, for messages.
    fn describe(&self) -> String;

    /// Returns its size.
    fn bytes(&self) -> u64;

    /// Returns whether this process may write to it.
    fn is_writable(&self) -> bool;

    /// Reads pages.
    fn read(&self, at: u64, into: &mut [u8]) -> Result<()>;

    /// Writes pages. They are durable after the next flush.
    fn write(&self, at: u64, bytes: &[u8]) -> Result<()>;

    /// Makes all earlier writes durable.
    fn flush(&self) -> Result<()>;

    /// Tells the device that nothing needs these bytes. It may keep them.
    fn discard(&self, at: u64, bytes: u64);

    /// Reads the page of changes, as the last process of this machine wrote it.
    fn read_changes(&self, into: &mut [u8]) -> Result<()>;

    /// Writes the page of changes for all processes of this machine.
    fn write_changes(&self, page: &[u8]) -> Result<()>;

    /// Waits for the lock of all slots: alone, to change them, or with others.
    fn lock(&self, alone: bool) -> Result<Guard>;

    /// Takes the lock of a slot for its writer; `None` if a writer has it, here or in another
    /// process.
    fn own(&self, slot: u32) -> Result<Option<Guard>>;

    /// Returns whether a writer holds the lock of a slot.
    fn is_owned(&self, slot: u32) -> Result<bool>;
}

/// A block device of this machine.
#[derive(Debug)]
pub(crate) struct BlockDevice {
    path: PathBuf,
    bytes: u64,
    is_writable: bool,
    /// Past the page cache.
    direct: DirectFile,
    /// Through the page cache, which all processes share.
    cached: File,
    locks: Locks,
    discards: AtomicBool,
}

impl BlockDevice {
    /// Opens a device; only for reading if this user may not write.
    ///
    /// # Errors
    /// `Invalid` if the path is no block device; `Retry` if it is missing; errors of the system.
    pub(crate) fn open(path: &Path) -> Result<BlockDevice> {
        match BlockDevice::open_as(path, true)? {
            Some(device) => Ok(device),
            None => BlockDevice::open_to_read(path),
        }
    }

    /// Opens a device only for reading.
    ///
    /// # Errors
    /// As [`BlockDevice::open`].
    pub(crate) fn open_to_read(path: &Path) -> Result<BlockDevice> {
        let denied = || Error::io("opening the device", path, &ErrorKind::PermissionDenied.into());
        BlockDevice::open_as(path, false)?.ok_or_else(denied)
    }

    /// Opens a device; `None` if this user may not.
    fn open_as(path: &Path, writes: bool) -> Result<Option<BlockDevice>> {
        let fault = |error: io::Error| match error.kind() {
            ErrorKind::NotFound => Error::retry(format!(
                "there is no device {}: attach it, or correct its name",
                path.display()
            )),
            _ => Error::io("opening the device", path, &error),
        };
        let kind = path.metadata().map_err(fault)?.file_type();
        if !kind.is_block_device() {
            return Err(Error::invalid(format!(
                "{} is not a block device: name a disk or a partition, such as /dev/nvme1n1p2, or \
                 write the path of a directory without \"block:\"",
                path.display()
            )));
        }
        let open = || {
            let direct = DirectFile::open(OpenOptions::new().read(true).write(writes), path, true)?;
            Ok((direct, OpenOptions::new().read(true).write(writes).open(path)?))
        };
        let (direct, mut cached) = match open() {
            Ok(files) => files,
            Err(error) if is_read_only(&error) => return Ok(None),
            Err(error) => return Err(fault(error)),
        };
        let bytes = cached.seek(SeekFrom::End(0)).map_err(fault)?;
        let (locks, discards) = (Locks::new(path, writes), AtomicBool::new(true));
        Ok(Some(BlockDevice {
            path: path.to_owned(),
            bytes,
            is_writable: writes,
            direct,
            cached,
            locks,
            discards,
        }))
    }

    fn fault(&self, doing: &str, error: &io::Error) -> Error {
        Error::io(doing, &self.path, error)
    }
}

fn is_read_only(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem)
}

impl Device for BlockDevice {
    fn describe(&self) -> String {
        format!("block device {}", self.path.display())
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn is_writable(&self) -> bool {
        self.is_writable
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        match self.direct.run(|file| read_at(file, into, at)) {
            Ok(got) if got == into.len() => Ok(()),
            Ok(_) => Err(self.fault("reading", &ErrorKind::UnexpectedEof.into())),
            Err(error) => Err(Error::io_stored("reading", &self.path, &error)),
        }
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let written = self.direct.run(|file| write_all_at(file, bytes, at));
        written.map_err(|error| self.fault("writing", &error))
    }

    fn flush(&self) -> Result<()> {
        self.direct.file().sync_data().map_err(|error| self.fault("syncing", &error))
    }

    fn discard(&self, at: u64, bytes: u64) {
        if !self.discards.load(Ordering::Relaxed) {
            return;
        }
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // A device that cannot, or fails, keeps the bytes, which nothing needs.
        match fallocate(self.direct.file(), how, at, bytes) {
            Ok(()) | Err(Errno::INTR) => {}
            Err(_) => self.discards.store(false, Ordering::Relaxed),
        }
    }

    fn read_changes(&self, into: &mut [u8]) -> Result<()> {
        match read_at(&self.cached, into, CHANGES_AT) {
            Ok(PAGE_BYTES) => Ok(()),
            Ok(_) => Err(self.fault("reading", &ErrorKind::UnexpectedEof.into())),
            Err(error) => Err(self.fault("reading", &error)),
        }
    }

    fn write_changes(&self, page: &[u8]) -> Result<()> {
        write_all_at(&self.cached, page, CHANGES_AT).map_err(|error| self.fault("writing", &error))
    }

    fn lock(&self, alone: bool) -> Result<Guard> {
        self.locks.wait(Lock::Slots { alone })
    }

    fn own(&self, slot: u32) -> Result<Option<Guard>> {
        self.locks.attempt(Lock::Writer(slot))
    }

    fn is_owned(&self, slot: u32) -> Result<bool> {
        self.locks.is_held(slot)
    }
}
