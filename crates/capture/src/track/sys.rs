//! System calls behind `WP_ASYNC`: userfaultfd and `PAGEMAP_SCAN`, whose structures no crate has
//! (`linux/userfaultfd.h`, `linux/fs.h` of Linux 6.7).
#![allow(unsafe_code)]

use super::Pages;
use outlive_types::PAGE_BYTES;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Updater, ioctl, opcode};
use rustix::mm::{UserfaultfdFlags, userfaultfd};
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

const UFFD_API: u64 = 0xAA;
const USER_MODE_ONLY: u32 = 1;
const FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
const FEATURE_WP_ASYNC: u64 = 1 << 15;
const REGISTER_MODE_WP: u64 = 1 << 1;

/// Categories of a page for [`scan`].
pub(super) const IS_WRITTEN: u64 = 1 << 1;
pub(super) const IS_PRESENT: u64 = 1 << 3;
pub(super) const IS_SWAPPED: u64 = 1 << 4;
pub(super) const IS_HUGE: u64 = 1 << 6;

const SCAN_WP_MATCHING: u64 = 1 << 0;
const SCAN_CHECK_WPASYNC: u64 = 1 << 1;

#[repr(C)]
#[derive(Default)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Default)]
struct Range {
    start: u64,
    length: u64,
}

#[repr(C)]
#[derive(Default)]
struct Register {
    range: Range,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Default)]
struct WriteProtect {
    range: Range,
    mode: u64,
}

const API: Opcode = opcode::read_write::<Api>(0xAA, 0x3F);
const REGISTER: Opcode = opcode::read_write::<Register>(0xAA, 0x00);
// The kernel's header says "read" although the kernel only reads from us.
const UNREGISTER: Opcode = opcode::read::<Range>(0xAA, 0x01);
const WRITEPROTECT: Opcode = opcode::read_write::<WriteProtect>(0xAA, 0x06);
const PAGEMAP_SCAN: Opcode = opcode::read_write::<ScanArg>(b'f', 16);

impl From<Pages> for Range {
    fn from(pages: Pages) -> Range {
        Range { start: pages.start as u64, length: (pages.end - pages.start) as u64 }
    }
}

/// Opens a userfaultfd that notes writes and wakes no thread. Needs no privilege.
pub(super) fn open_uffd() -> io::Result<OwnedFd> {
    let flags = UserfaultfdFlags::CLOEXEC
        | UserfaultfdFlags::NONBLOCK
        | UserfaultfdFlags::from_bits_retain(USER_MODE_ONLY);
    // SAFETY: the descriptor is only used for WP_ASYNC, by which the kernel allows every write; no
    // thread's access to memory can wait for it.
    let uffd = unsafe { userfaultfd(flags) }?;
    let mut api = Api {
        api: UFFD_API,
        features: FEATURE_WP_ASYNC | FEATURE_WP_UNPOPULATED,
        ..Api::default()
    };
    // SAFETY: the structure is the one that this ioctl reads and writes.
    unsafe { ioctl(&uffd, Updater::<API, Api>::new(&mut api)) }?;
    Ok(uffd)
}

/// Registers mapped pages.
pub(super) fn register(uffd: &OwnedFd, pages: Pages) -> io::Result<()> {
    let mut register =
        Register { range: pages.into(), mode: REGISTER_MODE_WP, ..Register::default() };
    // SAFETY: the structure is the one that this ioctl reads and writes; it changes no byte of the
    // range.
    Ok(unsafe { ioctl(uffd, Updater::<REGISTER, Register>::new(&mut register)) }?)
}

/// Removes registration and write protection from pages.
pub(super) fn unregister(uffd: &OwnedFd, pages: Pages) -> io::Result<()> {
    let mut range = Range::from(pages);
    // SAFETY: the structure is the one that this ioctl reads; it changes no byte of the range.
    Ok(unsafe { ioctl(uffd, Updater::<UNREGISTER, Range>::new(&mut range)) }?)
}

/// Removes the write protection from pages, so that writes to them cost nothing.
pub(super) fn unprotect(uffd: &OwnedFd, pages: Pages) -> io::Result<()> {
    loop {
        let mut protect = WriteProtect { range: pages.into(), mode: 0 };
        // SAFETY: the structure is the one that this ioctl reads; it changes no byte of the range.
        match unsafe { ioctl(uffd, Updater::<WRITEPROTECT, WriteProtect>::new(&mut protect)) } {
            // Another thread is changing the process's memory map.
            Err(rustix::io::Errno::AGAIN) => std::thread::yield_now(),
            done => return Ok(done?),
        }
    }
}

/// Asks for a huge page (`MADV_COLLAPSE`, Linux 6.1). False if some page is in use at present.
pub(super) fn collapse(pages: Pages) -> bool {
    // SAFETY: the call changes no byte and no protection of the range, even if that has a new owner
    // by now. It fails where nothing is mapped, which does no harm.
    let failed = unsafe {
        libc::madvise(pages.start as *mut c_void, pages.end - pages.start, libc::MADV_COLLAPSE)
    };
    failed == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EAGAIN)
}

/// Adjacent pages of the same categories, as the kernel lists them.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct PageRun {
    pub start: u64,
    pub end: u64,
    pub categories: u64,
}

/// Conditions of a [`scan`].
#[derive(Clone, Copy, Default)]
pub(super) struct Search {
    /// Categories that pages must all have,
    pub categories: u64,
    /// with these inverted.
    pub inverted: u64,
    /// Whether the found pages are armed in the same pass; then unregistered memory is an error.
    pub rearm: bool,
    /// Whether unregistered memory is an error in any case.
    pub registered: bool,
}

#[repr(C)]
#[derive(Default)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

struct Scan<'a>(&'a mut ScanArg);

// SAFETY: the opcode is PAGEMAP_SCAN's, and the pointer is to the structure that it reads and
// writes.
unsafe impl Ioctl for Scan<'_> {
    type Output = usize;

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        PAGEMAP_SCAN
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self.0).cast()
    }

    // SAFETY (of callers): none needed, as the pointer is not used.
    unsafe fn output_from_ptr(found: IoctlOutput, _: *mut c_void) -> rustix::io::Result<usize> {
        Ok(usize::try_from(found).unwrap_or(0))
    }
}

/// Appends pages found in the process's page table, neighbours joined. `pagemap` is its
/// `/proc/self/pagemap`.
pub(super) fn scan(
    pagemap: &File,
    pages: Pages,
    search: Search,
    found: &mut Vec<Pages>,
) -> io::Result<()> {
    const LISTED_MAX: usize = 1024;
    let mut list = [MaybeUninit::<PageRun>::uninit(); LISTED_MAX];
    let flags = match search {
        Search { rearm: true, .. } => SCAN_WP_MATCHING | SCAN_CHECK_WPASYNC,
        Search { registered: true, .. } => SCAN_CHECK_WPASYNC,
        _ => 0,
    };
    let mut at = pages.start as u64;
    while at < pages.end as u64 {
        let mut arg = ScanArg {
            size: size_of::<ScanArg>() as u64,
            flags,
            start: at,
            end: pages.end as u64,
            vec: list.as_mut_ptr() as u64,
            // The kernel allocates memory for this number of entries.
            vec_len: LISTED_MAX.min(pages.count()) as u64,
            category_inverted: search.inverted,
            category_mask: search.categories,
            return_mask: search.categories,
            ..ScanArg::default()
        };
        // SAFETY: the structure has the address and length of `list`; the kernel writes there and
        // to the structure. It changes no byte of the scanned range.
        let count = unsafe { ioctl(pagemap, Scan(&mut arg)) }?;
        for part in &list[..count.min(LISTED_MAX)] {
            // SAFETY: the kernel has filled this number of entries.
            let part = unsafe { part.assume_init() };
            let part = Pages { start: part.start as usize, end: part.end as usize };
            match found.last_mut() {
                Some(last) if last.end == part.start => last.end = part.end,
                _ => found.push(part),
            }
        }
        if arg.walk_end <= at {
            return Err(io::Error::other("PAGEMAP_SCAN made no progress"));
        }
        at = arg.walk_end;
    }
    Ok(())
}

/// Returns for the page at each address whether it is in memory and not the page of zeros. A call
/// of `move_pages` that moves none names the node of each such page. `None` where the system
/// forbids it.
pub(super) fn present(addresses: &[usize]) -> Option<Vec<bool>> {
    let mut nodes: Vec<libc::c_int> = vec![-1; addresses.len()];
    let nowhere = std::ptr::null::<libc::c_int>();
    // SAFETY: the kernel reads this number of addresses, only looks them up, and writes as many
    // numbers.
    let asked = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            addresses.len(),
            addresses.as_ptr(),
            nowhere,
            nodes.as_mut_ptr(),
            0,
        )
    };
    (asked == 0).then(|| nodes.into_iter().map(|node| node >= 0).collect())
}

/// Bits of an entry of `/proc/self/pagemap` (`Documentation/admin-guide/mm/pagemap.rst`).
const ENTRY_PRESENT: u64 = 1 << 63;
const ENTRY_ARMED: u64 = 1 << 57;
const ENTRY_EXCLUSIVE: u64 = 1 << 56;

/// Appends the pages that are present, write-protected by a userfaultfd, and mapped by another
/// process as well; neighbours joined. `pagemap` is the process's `/proc/self/pagemap`.
pub(super) fn shared(pagemap: &File, pages: Pages, found: &mut Vec<Pages>) -> io::Result<()> {
    const ENTRY_BYTES: usize = size_of::<u64>();
    let mut entries = [0; 512 * ENTRY_BYTES];
    for start in (pages.start..pages.end).step_by(512 * PAGE_BYTES) {
        let count = ((pages.end - start) / PAGE_BYTES).min(512);
        let entries = &mut entries[..count * ENTRY_BYTES];
        pagemap.read_exact_at(entries, (start / PAGE_BYTES * ENTRY_BYTES) as u64)?;
        let pages = (start..).step_by(PAGE_BYTES);
        for (entry, start) in entries.as_chunks().0.iter().zip(pages) {
            let entry = u64::from_ne_bytes(*entry);
            let wanted = ENTRY_PRESENT | ENTRY_ARMED;
            if entry & (wanted | ENTRY_EXCLUSIVE) != wanted {
                continue;
            }
            let end = start + PAGE_BYTES;
            match found.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => found.push(Pages { start, end }),
            }
        }
    }
    Ok(())
}
