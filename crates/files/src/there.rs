//! Finds files that exist already and are right, so that a get does not touch them.
//!
//! Contents are compared by their fingerprints. A comparison of times would be cheaper, but a disk
//! that has lost a bit does not change them.

use super::attributes::{is_as_wanted, of_open};
use super::content::{FileChange, Range, change, ranges_of};
use super::describe::{Refusals, SET_ID, describe_name, describe_open};
use super::root_dir::{RootDir, name_of};
use outlive_chunk::{fingerprint, is_zero};
use outlive_format::{Content, Item, ItemKind, Piece};
use outlive_store::FilesImage;
use outlive_types::Error;
use rustix::fs::{AtFlags, FileType, OFlags, Stat, fstat, readlinkat, statat};
use rustix::io::{Errno, Result, pread};
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};

/// Zeros are compared in steps of this length.
const STEP_BYTES: u64 = 64 << 10;
/// Further names of files that are remembered. A file with other names is created again.
const NAMES_MAX: usize = 1 << 20;

/// The further names of files in a checkpoint.
#[derive(Default)]
pub struct FurtherNames {
    of: HashMap<Vec<u8>, Vec<Vec<u8>>>,
    count: usize,
}

impl FurtherNames {
    /// Adds an item that a get wants.
    pub fn note(&mut self, item: &Item) {
        if item.kind == ItemKind::HardLink && self.count < NAMES_MAX {
            self.count += 1;
            self.of.entry(item.target.clone()).or_default().push(item.path.clone());
        }
    }

    /// Returns whether every name of an existing file is one of this item's. Otherwise the get
    /// would change it under unrelated names.
    fn are_all(&self, root: &RootDir, item: &Item, there: &Stat) -> bool {
        let is_same = |path: &[u8]| {
            let other = root.stat(path);
            other.is_ok_and(|o| (o.st_dev, o.st_ino) == (there.st_dev, there.st_ino))
        };
        let further = self.of.get(&item.path).into_iter().flatten();
        let names = 1 + if there.st_nlink > 1 { further.filter(|p| is_same(p)).count() } else { 0 };
        names as u64 == there.st_nlink
    }
}

/// Context of the checks.
pub struct Looker<'a> {
    /// Destination directory.
    pub root: &'a RootDir,
    /// Checkpoint to get.
    pub checkpoint: &'a FilesImage,
    /// Further names of its files.
    pub names: &'a FurtherNames,
    /// True if owners may be set, and the attributes that need root.
    pub is_root: bool,
}

impl Looker<'_> {
    /// If the file exists and is right, sets its times, which is harmless, and returns the refused
    /// settings.
    pub fn file(&self, item: &Item) -> Option<Refusals> {
        let (file, before) = self.open(item).ok().flatten()?;
        let is_whole = self.has_content(&file, item, &before).unwrap_or(false);
        // It has not changed since, either.
        let is_there =
            is_whole && fstat(&file).is_ok_and(|after| change(&before, &after) == FileChange::No);
        is_there.then(|| describe_open(&file, item, self.is_root))
    }

    /// Opens the file if everything but its content is right.
    fn open(&self, item: &Item) -> Result<Option<(OwnedFd, Stat)>> {
        let is_it = |stat: &Stat| {
            FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
                && stat.st_size.cast_unsigned() == item.bytes
                && self.has_owner(item, stat)
        };
        if !is_it(&self.root.stat(&item.path)?) {
            return Ok(None);
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = self.root.get(&item.path, flags)?;
        let stat = fstat(&file)?;
        let is_it = is_it(&stat)
            && is_as_wanted(&of_open(&file)?, &item.attributes, self.is_root)
            && self.names.are_all(self.root, item, &stat);
        Ok(is_it.then_some((file, stat)))
    }

    /// Returns whether a file has the owner and mode of a new one. Another owner, or a user with
    /// rights by an earlier mode, may hold it open and write to it.
    fn has_owner(&self, item: &Item, there: &Stat) -> bool {
        let has_owner = match self.is_root {
            true => (there.st_uid, there.st_gid) == (item.uid, item.gid),
            false => there.st_uid == rustix::process::geteuid().as_raw(),
        };
        let (mode, wanted) = (there.st_mode & 0o7777, item.mode);
        let has_mode = mode & !SET_ID == wanted & !SET_ID && mode & SET_ID & !wanted == 0;
        has_owner && (has_mode || item.kind == ItemKind::Symlink)
    }

    fn has_content(&self, file: &OwnedFd, item: &Item, stat: &Stat) -> Result<bool> {
        let (ranges, holes) = ranges_of(file, stat)?;
        if holes != item.holes {
            return Ok(false);
        }
        let chunk_bytes_max = self.checkpoint.pool().config().format.chunk_bytes_max;
        let mut reader = Reader { file, ranges: &ranges, buffer: Vec::new(), chunk_bytes_max };
        match &item.content {
            Content::Empty => Ok(item.bytes == 0),
            Content::Inline(bytes) => Ok(reader.read(0, item.bytes)? == bytes.as_slice()),
            Content::Pieces(_) | Content::Recipe(_) => {
                let (mut offset, mut same) = (0, Ok(true));
                // Damage is found again, and reported, when the file is made.
                let read = self.checkpoint.pieces(item, &mut |piece: Piece| {
                    same = reader.has(offset, &piece);
                    offset = offset.saturating_add(piece.bytes);
                    match same {
                        Ok(true) => Ok(()),
                        _ => Err(Error::invalid("it differs")),
                    }
                });
                Ok(same? && read.is_ok() && offset == item.bytes)
            }
        }
    }

    /// As [`Looker::file`], for a symbolic link, a pipe, a socket or a device.
    pub fn special(&self, item: &Item) -> Option<Refusals> {
        let dir = self.root.parent(&item.path).ok()?;
        let name = name_of(&item.path);
        let there = statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let is_kind = match (FileType::from_raw_mode(there.st_mode), item.kind) {
            (FileType::Symlink, ItemKind::Symlink) => readlinkat(&dir, name, Vec::new())
                .is_ok_and(|target| target.as_bytes() == item.target),
            (FileType::CharacterDevice, ItemKind::CharDevice)
            | (FileType::BlockDevice, ItemKind::BlockDevice) => there.st_rdev == item.bytes,
            (FileType::Fifo, ItemKind::Fifo) | (FileType::Socket, ItemKind::Socket) => true,
            _ => false,
        };
        let is_there =
            is_kind && self.has_owner(item, &there) && self.names.are_all(self.root, item, &there);
        is_there.then(|| describe_name(dir.as_fd(), name, item, self.is_root))
    }
}

/// Reads an existing file.
struct Reader<'a> {
    file: &'a OwnedFd,
    /// Data and holes from the present offset on.
    ranges: &'a [Range],
    buffer: Vec<u8>,
    /// Longest chunk that is read; a listing may be damaged.
    chunk_bytes_max: u64,
}

impl Reader<'_> {
    /// Reads up to `bytes` bytes, fewer where the file ends.
    fn read(&mut self, offset: u64, bytes: u64) -> Result<&[u8]> {
        let bytes = usize::try_from(bytes).map_err(|_| Errno::FBIG)?;
        self.buffer.resize(bytes.max(self.buffer.len()), 0);
        let mut done = 0;
        while done < bytes {
            match pread(self.file, &mut self.buffer[done..bytes], offset + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(&self.buffer[..done])
    }

    fn has(&mut self, offset: u64, piece: &Piece) -> Result<bool> {
        if !piece.is_zeros() {
            if piece.bytes > self.chunk_bytes_max {
                return Ok(false);
            }
            let there = self.read(offset, piece.bytes)?;
            return Ok(there.len() as u64 == piece.bytes && fingerprint(there) == piece.fp);
        }
        // Holes need no read.
        let end = offset.saturating_add(piece.bytes);
        while let Some((range, later)) = self.ranges.split_first()
            && range.offset + range.bytes <= offset
        {
            self.ranges = later;
        }
        for range in self.ranges.iter().take_while(|range| range.offset < end) {
            if range.hole {
                continue;
            }
            let mut at = range.offset.max(offset);
            let data_end = (range.offset + range.bytes).min(end);
            while at < data_end {
                let step = (data_end - at).min(STEP_BYTES);
                let there = self.read(at, step)?;
                if there.len() as u64 != step || !is_zero(there) {
                    return Ok(false);
                }
                at += step;
            }
        }
        Ok(true)
    }
}
