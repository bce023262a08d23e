//! Open files that forked children do not keep.
#![allow(unsafe_code)]

use std::fs::File;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering};

/// Number of files that children close. Any more stay open there.
const MOST: usize = 256;
const NONE: i32 = -1;

/// The descriptors of all such files of this process. Atomics alone: the functions that run in a
/// child must neither wait nor allocate.
static OPEN: [AtomicI32; MOST] = [const { AtomicI32::new(NONE) }; MOST];
static REGISTERED: Once = Once::new();

/// An open file that each forked child closes at once. A lock of an open file ends when the last
/// process closes it, so otherwise a child that outlives its parent would keep the parent's locks.
#[derive(Debug)]
pub struct OwnFile {
    file: ManuallyDrop<File>,
    /// Its place in the list; `None` if that was full.
    at: Option<usize>,
}

impl OwnFile {
    /// Takes over a file.
    pub fn new(file: File) -> OwnFile {
        REGISTERED.call_once(|| {
            // SAFETY: the function exists as long as the process, and only makes system calls that
            // a child may make. Without memory for it, children keep the files.
            let _ = unsafe { libc::pthread_atfork(None, None, Some(close_inherited)) };
        });
        let descriptor = file.as_raw_fd();
        let set = (Ordering::AcqRel, Ordering::Relaxed);
        let at = OPEN
            .iter()
            .position(|place| place.compare_exchange(NONE, descriptor, set.0, set.1).is_ok());
        OwnFile { file: ManuallyDrop::new(file), at }
    }
}

/// Closes such files of the parent. The C library calls it in each child of `fork`.
extern "C" fn close_inherited() {
    for place in &OPEN {
        let descriptor = place.swap(NONE, Ordering::AcqRel);
        if descriptor != NONE {
            // SAFETY: the descriptor is of an `OwnFile`, which sees by the list that it is closed.
            let _ = unsafe { libc::close(descriptor) };
        }
    }
}

impl Deref for OwnFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Drop for OwnFile {
    fn drop(&mut self) {
        let descriptor = self.file.as_raw_fd();
        let set = (Ordering::AcqRel, Ordering::Relaxed);
        let is_open = self
            .at
            .is_none_or(|at| OPEN[at].compare_exchange(descriptor, NONE, set.0, set.1).is_ok());
        // In a child it is closed already, and another file may have its descriptor.
        if is_open {
            // SAFETY: nothing uses the file after this.
            unsafe { ManuallyDrop::drop(&mut self.file) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    /// Returns the status with which a child ends.
    fn in_a_child(work: impl FnOnce() -> i32) -> i32 {
        // SAFETY: the child makes system calls only, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe { libc::_exit(work()) };
        }
        let mut status = -1;
        // SAFETY: the status may be written.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        libc::WEXITSTATUS(status)
    }

    #[test]
    fn a_child_has_closed_it_and_closes_no_other_file() {
        let file = OwnFile::new(File::open("/proc/self/exe").unwrap());
        let descriptor = file.as_raw_fd();
        let mut held = Some(file);
        let status = in_a_child(|| {
            // SAFETY: asks for the flags of a descriptor.
            let is_closed = unsafe { libc::fcntl(descriptor, libc::F_GETFD) } == -1;
            // It gets the same number.
            let Ok(other) = File::open("/proc/self/status") else { return 1 };
            drop(held.take());
            let is_there = other.read_at(&mut [0], 0).is_ok();
            i32::from(!(is_closed && other.as_raw_fd() == descriptor && is_there)) * 2
        });
        assert_eq!(status, 0);
        assert!(held.unwrap().read_at(&mut [0], 0).is_ok(), "the parent's stays open");
        // SAFETY: as above.
        assert_eq!(unsafe { libc::fcntl(descriptor, libc::F_GETFD) }, -1, "and closes");
    }
}
