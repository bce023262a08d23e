//! Looks up which bytes of a file the system's page cache holds.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;

/// Number of the system call. Most architectures number new system calls alike.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64"))]
const CACHESTAT: Option<libc::c_long> = Some(451);
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
const CACHESTAT: Option<libc::c_long> = None;
/// Size of a page in the cache, for `cachestat`, on the architectures above.
const CACHE_PAGE_BYTES: u64 = 4096;

#[repr(C)]
struct CachestatRange {
    offset: u64,
    length: u64,
}

#[repr(C)]
#[derive(Default)]
struct Cachestat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Whether the page cache holds all of a range of `file`; `offset` and `length` are multiples of
/// 4096. False where the system does not report it: before Linux 6.5, and for a file of another
/// user that this user may not write. (`cachestat(2)`.)
pub fn is_cached(file: &File, offset: u64, length: u64) -> bool {
    let Some(number) = CACHESTAT else { return false };
    let range = CachestatRange { offset, length };
    let mut found = Cachestat::default();
    // SAFETY: the kernel reads `range` and writes `found`, which have the layout of its
    // `cachestat_range` and `cachestat` and live until the call returns; there are no flags.
    let outcome =
        unsafe { libc::syscall(number, file.as_raw_fd(), &raw const range, &raw mut found, 0_u32) };
    // A machine with larger pages counts fewer: then the range is read from the device.
    outcome == 0 && length > 0 && found.cached >= length.div_ceil(CACHE_PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{read_at, write_all_at};
    use rustix::fs::Advice;

    #[test]
    fn a_file_is_cached_as_far_as_it_was_read_or_written() {
        let file = tempfile::tempfile_in(".").unwrap();
        write_all_at(&file, &[7; 64 << 10], 0).unwrap();
        file.sync_all().unwrap();
        let kind = rustix::fs::fstatfs(&file).unwrap().f_type;
        const KNOWN: [i64; 3] = [0xEF53, 0x5846_5342, 0x9123_683E]; // ext4, XFS, Btrfs
        if !KNOWN.contains(&kind) {
            eprintln!("a file system of type {kind:#x}: it is not known what it caches");
            return;
        }
        let cached = is_cached(&file, 0, 64 << 10);
        let errno = std::io::Error::last_os_error().raw_os_error();
        if !cached && errno == Some(libc::ENOSYS) {
            return; // before Linux 6.5
        }
        assert!(cached);
        assert!(!is_cached(&file, 0, 68 << 10), "the file ends before");
        assert!(!is_cached(&file, 0, 0));
        // A page alone in memory.
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        rustix::fs::fadvise(&file, 0, None, Advice::Random).unwrap();
        assert!(!is_cached(&file, 0, 4096));
        read_at(&file, &mut [0; 4096], 0).unwrap();
        assert!(is_cached(&file, 0, 4096));
        assert!(!is_cached(&file, 0, 64 << 10), "the rest is not");
        assert!(!is_cached(&file, 60 << 10, 4096));
    }
}
