//! Reads files: finds their holes, cuts the data between them, and stores new chunks.

use outlive_chunk::{Cutter, fingerprint, is_zero};
use outlive_format::{FileTime, INLINE_BYTES_MAX, Piece};
use outlive_store::ContentLane;
use outlive_types::{Error, Result};
use rustix::fs::{SeekFrom, Stat, fstatfs, seek};
use rustix::io::{Errno, pread};
use std::io::Read;
use std::os::fd::AsFd;

/// Files are read in steps of this length.
const BUFFER_BYTES: usize = 1 << 20;
/// Holes of longer files are searched even if all their blocks are allocated.
const LOOK_BYTES: u64 = 1 << 20;
/// Several threads read a longer file in parts. A part is cut from its own start: at the border,
/// one or two chunks in four thousand are cut differently than in one piece.
pub const PART_BYTES: u64 = 64 << 20;

/// Part of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// True if nothing is stored there.
    pub hole: bool,
}

/// Returns the ranges of a file, data and holes in turn, and whether there are holes.
///
/// # Errors
/// Errors of the system.
pub fn ranges_of(file: impl AsFd, stat: &Stat) -> rustix::io::Result<(Vec<Range>, bool)> {
    let file = file.as_fd();
    let size = stat.st_size.cast_unsigned();
    let data = |offset, bytes| Range { offset, bytes, hole: false };
    if size == 0 {
        return Ok((Vec::new(), false));
    }
    if stat.st_blocks.cast_unsigned().saturating_mul(512) >= size && size < LOOK_BYTES {
        return Ok((vec![data(0, size)], false));
    }
    let mut ranges = Vec::new();
    let mut holes = false;
    let mut at = 0;
    while at < size {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) => start.min(size),
            Err(Errno::NXIO) => size,
            // The file system does not report holes.
            Err(Errno::INVAL | Errno::NOTSUP) => at,
            Err(error) => return Err(error),
        };
        if start > at {
            ranges.push(Range { offset: at, bytes: start - at, hole: true });
            holes = true;
        }
        if start == size {
            break;
        }
        let end = match seek(file, SeekFrom::Hole(start)) {
            Ok(end) if end > start => end.min(size),
            _ => size,
        };
        // Parts of a length that several threads can share.
        let mut offset = start;
        while offset < end {
            let bytes = (end - offset).min(PART_BYTES);
            ranges.push(data(offset, bytes));
            offset += bytes;
        }
        at = end;
    }
    Ok((ranges, holes))
}

/// Groups consecutive ranges with about [`PART_BYTES`] of data each.
pub fn parts_of(ranges: &[Range]) -> Vec<std::ops::Range<usize>> {
    let mut parts: Vec<std::ops::Range<usize>> = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (at, range) in ranges.iter().enumerate() {
        bytes += if range.hole { 0 } else { range.bytes };
        if bytes >= PART_BYTES {
            parts.push(start..at + 1);
            (start, bytes) = (at + 1, 0);
        }
    }
    if start < ranges.len() {
        parts.push(start..ranges.len());
    }
    parts
}

/// Cause of an early end of a read.
#[derive(Debug)]
pub enum ReadFailure {
    /// The file could not be read.
    Read(Errno),
    /// The pool could not store the data.
    Store(Error),
}

impl From<Errno> for ReadFailure {
    fn from(error: Errno) -> ReadFailure {
        ReadFailure::Read(error)
    }
}

impl From<Error> for ReadFailure {
    fn from(error: Error) -> ReadFailure {
        ReadFailure::Store(error)
    }
}

/// One thread's reader: its buffer, and its lane to the pool.
pub struct ContentReader<'a> {
    lane: ContentLane<'a>,
    cutter: Cutter,
    buffer: Vec<u8>,
    /// Bytes of zeros that were found and not stored.
    pub zero_bytes: u64,
}

impl<'a> ContentReader<'a> {
    /// Returns a reader that stores through `lane`.
    pub fn new(lane: ContentLane<'a>, chunk_bytes_max: usize) -> Self {
        let buffer = vec![0; BUFFER_BYTES];
        ContentReader { lane, cutter: Cutter::new(chunk_bytes_max), buffer, zero_bytes: 0 }
    }

    /// Sends the remaining data.
    ///
    /// # Errors
    /// Errors of the target.
    pub fn finish(self) -> Result<()> {
        self.lane.finish()
    }

    /// Reads a whole file that is short enough for its item; returns `None` if it is longer.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn inline(&mut self, file: impl AsFd) -> rustix::io::Result<Option<Vec<u8>>> {
        let file = file.as_fd();
        let mut length = 0;
        // One more byte shows whether it has grown.
        while length <= INLINE_BYTES_MAX {
            let room = &mut self.buffer[length..=INLINE_BYTES_MAX];
            match pread(file, room, length as u64) {
                Ok(0) => return Ok(Some(self.buffer[..length].to_vec())),
                Ok(read) => length += read,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Reads and stores some ranges of a file. Ends early where the file ends. With `holes`, zero
    /// data are stored as chunks, so that only holes become holes again.
    ///
    /// # Errors
    /// Errors of the system or the pool.
    pub fn ranges(
        &mut self,
        file: impl AsFd,
        ranges: &[Range],
        holes: bool,
        pieces: &mut Vec<Piece>,
    ) -> std::result::Result<(), ReadFailure> {
        let file = file.as_fd();
        for range in ranges {
            if range.hole {
                self.zero_bytes += range.bytes;
                push(pieces, Piece::zeros(range.bytes));
                continue;
            }
            let mut at = range.offset;
            let end = range.offset + range.bytes;
            let mut fill = |room: &mut [u8]| -> std::result::Result<usize, ReadFailure> {
                let room_bytes = room.len().min(usize::try_from(end - at).unwrap_or(usize::MAX));
                if room_bytes == 0 {
                    return Ok(0);
                }
                loop {
                    match pread(file, &mut room[..room_bytes], at) {
                        Err(Errno::INTR) => {}
                        read => {
                            let read = read?;
                            at += read as u64;
                            return Ok(read);
                        }
                    }
                }
            };
            self.cut(&mut fill, !holes, &mut |piece| {
                push(pieces, piece);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Reads and stores a whole stream; `each` takes its pieces.
    ///
    /// # Errors
    /// Errors of the stream or the pool.
    pub fn stream(
        &mut self,
        from: &mut dyn Read,
        each: &mut dyn FnMut(Piece) -> Result<()>,
    ) -> Result<()> {
        let mut fill = |room: &mut [u8]| -> std::result::Result<usize, ReadFailure> {
            loop {
                match from.read(room) {
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(error) => {
                        let error = Error::retry(format!("reading the stream: {error}"));
                        return Err(ReadFailure::Store(error));
                    }
                    Ok(read) => return Ok(read),
                }
            }
        };
        match self.cut(&mut fill, true, each) {
            Ok(()) => Ok(()),
            Err(ReadFailure::Store(error)) => Err(error),
            Err(ReadFailure::Read(error)) => {
                Err(Error::retry(format!("reading the stream: {error}")))
            }
        }
    }

    fn cut(
        &mut self,
        fill: &mut dyn FnMut(&mut [u8]) -> std::result::Result<usize, ReadFailure>,
        drop_zeros: bool,
        each: &mut dyn FnMut(Piece) -> Result<()>,
    ) -> std::result::Result<(), ReadFailure> {
        let bytes_max = self.cutter.bytes_max();
        let (mut start, mut filled, mut over) = (0, 0, false);
        loop {
            if !over && filled - start < bytes_max {
                self.buffer.copy_within(start..filled, 0);
                (start, filled) = (0, filled - start);
                while !over && filled < self.buffer.len() {
                    let read = fill(&mut self.buffer[filled..])?;
                    filled += read;
                    over = read == 0;
                    // A pipe gives little at a time: the bytes so far may be enough.
                    if filled >= 2 * bytes_max && read < BUFFER_BYTES / 4 {
                        break;
                    }
                }
            }
            if start == filled {
                return Ok(());
            }
            while start < filled && (over || filled - start >= bytes_max) {
                let seen = &self.buffer[start..filled.min(start + bytes_max)];
                let chunk = &seen[..self.cutter.first(seen)];
                let bytes = chunk.len() as u64;
                start += chunk.len();
                if drop_zeros && is_zero(chunk) {
                    self.zero_bytes += bytes;
                    each(Piece::zeros(bytes))?;
                } else {
                    let fp = fingerprint(chunk);
                    self.lane.chunk(chunk, fp)?;
                    each(Piece { fp, bytes })?;
                }
            }
        }
    }
}

/// Adds a piece; neighbouring zeros become one.
fn push(pieces: &mut Vec<Piece>, piece: Piece) {
    match pieces.last_mut() {
        Some(last) if last.is_zeros() && piece.is_zeros() => last.bytes += piece.bytes,
        _ => pieces.push(piece),
    }
}

/// Change of a file between two looks at it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileChange {
    /// The file has not changed.
    No,
    /// Only its ctime differs. A `chmod` to its present mode sets it, and so does a further name.
    /// So does a program that writes and restores the old mtime: the content counts if it is read
    /// twice.
    Status,
    /// It may have changed.
    Yes,
}

/// Returns the change of a file between two looks at it.
pub fn change(before: &Stat, after: &Stat) -> FileChange {
    let content = |stat: &Stat| {
        let mtime = (stat.st_mtime, stat.st_mtime_nsec);
        (stat.st_size, mtime, stat.st_mode, stat.st_uid, stat.st_gid)
    };
    let ctime = |stat: &Stat| (stat.st_ctime, stat.st_ctime_nsec);
    match (content(before) == content(after), ctime(before) == ctime(after)) {
        (true, true) => FileChange::No,
        (true, false) => FileChange::Status,
        (false, _) => FileChange::Yes,
    }
}

/// Times on this machine's own file systems are as precise as its timer tick, a few milliseconds.
const MARGIN_FINE_NS: i128 = 200_000_000;
/// Times without a fraction come from file systems that count seconds, or two of them.
const MARGIN_COARSE_NS: i128 = 2_500_000_000;
/// Other file systems may use another machine's clock.
const MARGIN_FOREIGN_NS: i128 = 3_600_000_000_000;
/// ext, XFS, Btrfs, tmpfs, ramfs, F2FS, overlayfs, ZFS, bcachefs.
const OWN_CLOCK: [u64; 9] = [
    0xEF53,
    0x5846_5342,
    0x9123_683E,
    0x0102_1994,
    0x8584_58F6,
    0xF2F5_2010,
    0x794C_7630,
    0x2FC1_2FC1,
    0xCA45_1A4E,
];

/// Returns whether a file changed so shortly before its read, at `now_ns` since 1970, that a change
/// during or after the read may have left it the same times. A time in the future, by any clock, is
/// always too close.
pub fn is_unsettled(file: impl AsFd, ctime: FileTime, mtime: FileTime, now_ns: u64) -> bool {
    let latest = ctime.max(mtime);
    let age_ns = i128::from(now_ns) - i128::from(latest.s) * 1_000_000_000 - i128::from(latest.ns);
    if age_ns >= MARGIN_FOREIGN_NS {
        return false;
    }
    let is_fine = !latest.ns.is_multiple_of(10_000_000);
    if age_ns < if is_fine { MARGIN_FINE_NS } else { MARGIN_COARSE_NS } {
        return true;
    }
    !is_on_own_clock(file)
}

/// Returns whether only this machine writes to the file system, by its own clock.
pub fn is_on_own_clock(file: impl AsFd) -> bool {
    fstatfs(file).is_ok_and(|fs| OWN_CLOCK.contains(&(fs.f_type.cast_unsigned() & 0xFFFF_FFFF)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_file_that_changed_lately_is_unsettled() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::create(dir.path().join("file")).unwrap();
        let at = |s, ns| FileTime { s, ns };
        let second = 1_000_000_000;
        let now = 1_000_000 * second;
        let old = at(1000, 1);
        let is = |ctime, mtime| is_unsettled(&file, ctime, mtime, now);
        assert!(is(at(999_999, 999_999_999), old), "just now");
        assert!(!is(at(999_999, 1), old), "a second ago");
        assert!(is(at(999_998, 0), old), "two seconds, without a fraction");
        assert!(!is(at(999_990, 0), old));
        assert!(is(at(1_000_500, 7), old), "in the future");
        assert!(is(old, at(2_000_000, 7)), "a future time, set by hand");
    }

    #[test]
    fn parts_hold_about_the_same_data() {
        let range = |bytes, hole| Range { offset: 0, bytes, hole };
        let ranges: Vec<Range> =
            (0..1000).flat_map(|_| [range(1 << 20, false), range(1 << 40, true)]).collect();
        let parts = parts_of(&ranges);
        assert_eq!(parts.len(), 16);
        assert_eq!(parts[0], 0..127);
        assert_eq!(parts.last().unwrap().end, ranges.len());
    }
}
