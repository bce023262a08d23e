//! The threads of a put that read files: short files whole, long files in parts.

use super::attempts::{ATTEMPTS, Attempts};
use super::attributes;
use super::content::{
    ContentReader, FileChange, PART_BYTES, Range, ReadFailure, change, is_unsettled, parts_of,
    ranges_of,
};
use super::file_error::{FileError, FileErrorKind};
use super::plan::stopped;
use super::putter::Putter;
use super::scan::{Root, described, no_attributes};
use super::work::{Large, Message, Queue, Task};
use outlive_format::{Content, INLINE_BYTES_MAX, Item, ItemKind, RECIPE_BYTES_MAX};
use outlive_types::Result;
use rustix::fs::{FileType, OFlags, Stat, fstat};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;

/// Shared state of reader threads.
pub struct Worker<'a> {
    /// The put.
    pub putter: &'a Putter<'a>,
    /// Roots of the put.
    pub roots: &'a [Root],
    /// Files to read.
    pub queue: &'a Queue,
    /// Number of bytes read.
    pub done_bytes: &'a AtomicU64,
}

impl Worker<'_> {
    /// Works until the queue is closed; returns the number of zero bytes.
    ///
    /// # Errors
    /// Errors of the pool.
    pub fn run(&self, sender: &Sender<Message>) -> Result<u64> {
        let Putter { into, stop, .. } = self.putter;
        let chunk_bytes_max = into.pool().config().format.chunk_bytes_max as usize;
        let mut reader = ContentReader::new(into.lane(), chunk_bytes_max);
        while let Some(task) = self.queue.pop() {
            if stop.load(Ordering::Relaxed) {
                return Err(stopped());
            }
            let message = match task {
                Task::File { seq, item, root, attempts } => {
                    let expected = item.bytes;
                    let read = self.file(&mut reader, sender, seq, item, root, attempts)?;
                    if read.is_some() {
                        self.done_bytes.fetch_add(expected, Ordering::Relaxed);
                    }
                    read
                }
                Task::Part { seq, number, large } => {
                    let mut pieces = Vec::new();
                    let ranges = &large.ranges[large.parts[number].clone()];
                    let read = reader.ranges(&large.file, ranges, large.item.holes, &mut pieces);
                    let bytes = ranges.iter().map(|range| range.bytes).sum();
                    self.done_bytes.fetch_add(bytes, Ordering::Relaxed);
                    match read {
                        Ok(()) => Some(Message::Part { seq, number, pieces: Ok(pieces) }),
                        Err(ReadFailure::Read(error)) => {
                            Some(Message::Part { seq, number, pieces: Err(error) })
                        }
                        Err(ReadFailure::Store(error)) => return Err(error),
                    }
                }
            };
            if message.is_some_and(|message| sender.send(message).is_err()) {
                break;
            }
        }
        let zero_bytes = reader.zero_bytes;
        reader.finish().map(|()| zero_bytes)
    }

    /// Reads a file, or splits a long one into parts for all threads.
    fn file(
        &self,
        reader: &mut ContentReader<'_>,
        sender: &Sender<Message>,
        seq: u64,
        scanned: Item,
        root: usize,
        mut attempts: Attempts,
    ) -> Result<Option<Message>> {
        let trouble = |trouble| Ok(Some(Message::Dropped { seq, trouble }));
        loop {
            let now_ns = self.putter.pool.env().clock.unix_ns();
            let path = &scanned.path;
            let opened = match self.open(path, root, now_ns) {
                Ok(opened) => opened,
                Err(found) => return trouble(found),
            };
            let OpenFile { file, stat, mut item, ranges, mut without } = opened;
            // Further names were listed for the file that existed then.
            let replaced = (item.device, item.inode) != (scanned.device, scanned.inode);
            let data_bytes: u64 = ranges.iter().filter(|r| !r.hole).map(|r| r.bytes).sum();
            if data_bytes > PART_BYTES {
                let parts = parts_of(&ranges);
                let large =
                    Large { file, stat, item, replaced, root, ranges, parts, attempts, without };
                let large = Arc::new(large);
                let _ = sender.send(Message::Large { seq, large: large.clone() });
                self.queue.push_parts(seq, &large);
                return Ok(None);
            }
            let read = self.short(reader, &file, &mut item, &ranges);
            if stat.st_size == 0 && item.bytes == PART_BYTES {
                without.get_or_insert_with(|| cut(path));
                item.unsettled = true;
            }
            let after = match read {
                Ok(()) => fstat(&file),
                Err(ReadFailure::Read(error)) => Err(error),
                Err(ReadFailure::Store(error)) => return Err(error),
            };
            let change = match after {
                Ok(after) => change(&stat, &after),
                Err(error) => return trouble(FileError::reading(path, error)),
            };
            if let Some(is_steady) = attempts.end(change, &item) {
                item.unsettled |= change != FileChange::No;
                let troubles = without.into_iter().chain((!is_steady).then(|| restless(path)));
                let troubles = troubles.collect();
                return Ok(Some(Message::File { seq, item, replaced, troubles }));
            }
        }
    }

    fn short(
        &self,
        reader: &mut ContentReader<'_>,
        file: &OwnedFd,
        item: &mut Item,
        ranges: &[Range],
    ) -> std::result::Result<(), ReadFailure> {
        if item.bytes <= INLINE_BYTES_MAX as u64
            && !item.holes
            && let Some(bytes) = reader.inline(file)?
        {
            item.bytes = bytes.len() as u64;
            item.content = if bytes.is_empty() { Content::Empty } else { Content::Inline(bytes) };
            return Ok(());
        }
        let mut pieces = Vec::new();
        // Files that the kernel generates (`/proc`) have a length of 0.
        let all = [Range { offset: 0, bytes: PART_BYTES, hole: false }];
        let is_made_up = item.bytes == 0;
        reader.ranges(file, if is_made_up { &all } else { ranges }, item.holes, &mut pieces)?;
        item.bytes = pieces.iter().map(|piece| piece.bytes).sum();
        item.content = if pieces.is_empty() { Content::Empty } else { Content::Pieces(pieces) };
        Ok(())
    }

    fn open(
        &self,
        path: &[u8],
        root: usize,
        now_ns: u64,
    ) -> std::result::Result<OpenFile, FileError> {
        let fault = |error| FileError::reading(path, error);
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let root = &self.roots[root];
        let file = root.root.get(root.local(path), flags).map_err(fault)?;
        let stat = fstat(&file).map_err(fault)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            let why = "it is no longer a file";
            return Err(FileError::new(path, FileErrorKind::Unreadable, why));
        }
        if stat.st_size.cast_unsigned() > RECIPE_BYTES_MAX {
            let why = "it is longer than 2^62 bytes";
            return Err(FileError::new(path, FileErrorKind::Unreadable, why));
        }
        let mut item = described(path.to_vec(), ItemKind::File, &stat);
        let mut without = None;
        match attributes::of_open(&file) {
            Ok(attributes) => item.attributes = attributes,
            Err(error) => without = Some(no_attributes(path, error)),
        }
        let (ranges, holes) = ranges_of(&file, &stat).map_err(fault)?;
        item.holes = holes;
        // The next put must read the missing data again.
        item.unsettled = without.is_some() || is_unsettled(&file, item.ctime, item.mtime, now_ns);
        Ok(OpenFile { file, stat, item, ranges, without })
    }
}

/// An open file with its properties.
struct OpenFile {
    file: OwnedFd,
    stat: Stat,
    item: Item,
    ranges: Vec<Range>,
    without: Option<FileError>,
}

/// Returns the file error of a file with length 0 whose content does not end.
fn cut(path: &[u8]) -> FileError {
    let why = format!("it says that it is empty; its first {PART_BYTES} bytes are kept");
    FileError::new(path, FileErrorKind::Incomplete, why)
}

/// Returns the file error of a file that changes at each read.
pub fn restless(path: &[u8]) -> FileError {
    let why = format!("it changed each of the {ATTEMPTS} times it was read; the last is kept");
    FileError::new(path, FileErrorKind::Changed, why)
}
