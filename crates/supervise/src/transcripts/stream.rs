//! The supervisor's own standard output and standard error.

use super::record::Place;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, OFlags, SeekFrom, fcntl_getfl, fstat, seek};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;

/// One of both.
#[derive(Clone, Copy)]
pub(super) struct Stream(BorrowedFd<'static>);

impl Stream {
    /// Standard output is stream 0, standard error stream 1.
    pub fn new(number: usize) -> Stream {
        Stream(if number == 0 { rustix::stdio::stdout() } else { rustix::stdio::stderr() })
    }

    /// Returns the name for messages.
    pub fn name(number: usize) -> &'static str {
        if number == 0 { "standard output" } else { "standard error" }
    }

    /// Returns whether both lead to the same file, pipe or terminal: then their order can be kept.
    pub fn are_one() -> bool {
        let both = [0, 1].map(|number| fstat(Stream::new(number).0));
        match both {
            [Ok(a), Ok(b)] => (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino),
            _ => false,
        }
    }

    /// Returns the place of the next byte, if the stream leads to a regular file.
    pub fn place(self) -> Option<Place> {
        let found = fstat(self.0).ok()?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return None;
        }
        let appends = fcntl_getfl(self.0).is_ok_and(|flags| flags.contains(OFlags::APPEND));
        let length = u64::try_from(found.st_size).ok()?;
        let offset =
            if appends { length } else { seek(self.0, SeekFrom::Current(0)).unwrap_or(length) };
        Some(Place { device: found.st_dev, inode: found.st_ino, offset })
    }

    /// Returns how many of these bytes an earlier supervisor has written at a place; 0 if the stream
    /// leads elsewhere now.
    pub fn written_at(self, place: Place, bytes: &[u8]) -> u64 {
        let now = self.place();
        if now.is_none_or(|now| (now.device, now.inode) != (place.device, place.inode)) {
            return 0;
        }
        let number = std::os::fd::AsRawFd::as_raw_fd(&self.0);
        let Ok(file) = File::open(format!("/proc/self/fd/{number}")) else { return 0 };
        let mut there = vec![0; bytes.len()];
        let read = outlive_io::read_at(&file, &mut there, place.offset).unwrap_or(0);
        there[..read].iter().zip(bytes).take_while(|(a, b)| a == b).count() as u64
    }

    /// Writes some bytes, and returns how many.
    ///
    /// # Errors
    /// Those of the system.
    pub fn write(self, bytes: &[u8]) -> io::Result<u64> {
        loop {
            match rustix::io::write(self.0, bytes) {
                Ok(written) => return Ok(written as u64),
                Err(Errno::INTR) => {}
                // Another program has made the terminal non-blocking.
                Err(Errno::AGAIN) => {
                    let _ = poll(&mut [PollFd::new(&self.0, PollFlags::OUT)], None);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}
