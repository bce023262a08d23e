//! The memory in which the bytes of a buffer lie.
#![allow(unsafe_code)]

use outlive_types::{BLOCK_BYTES, PAGE_BYTES};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use rustix::process::{Resource, getrlimit};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};

/// The bytes of a buffer, without its pool. The holder decides which threads may touch them.
pub(crate) struct Memory {
    start: NonNull<u8>,
    length: usize,
}

/// Size from which a buffer is a mapping of its own. Then the advice for huge pages does not affect
/// the program's heap, and freed memory returns to the system.
const MAPPED_FROM_BYTES: usize = BLOCK_BYTES;

impl Memory {
    /// No bytes, but at an aligned address.
    pub(crate) const EMPTY: Memory = Memory {
        start: match NonNull::new(ptr::without_provenance_mut(PAGE_BYTES)) {
            Some(start) => start,
            None => unreachable!(),
        },
        length: 0,
    };

    pub(crate) fn zeroed(length: usize) -> Memory {
        Memory::try_zeroed(length).unwrap_or_else(|| handle_alloc_error(layout_of(length)))
    }

    fn try_zeroed(length: usize) -> Option<Memory> {
        if length == 0 {
            return Some(Memory::EMPTY);
        }
        let layout = layout_of(length);
        let start = if length < MAPPED_FROM_BYTES {
            // SAFETY: the layout's size is not zero.
            NonNull::new(unsafe { alloc_zeroed(layout) })
        } else {
            map(layout.size())
        };
        Some(Memory { start: start?, length })
    }

    /// First byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Number of bytes.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Asks for 4 KiB pages.
    pub(crate) fn use_small_pages(&self) {
        if self.length >= MAPPED_FROM_BYTES {
            let bytes = layout_of(self.length).size();
            // SAFETY: the mapping is this buffer's own, and advice changes none of its bytes.
            let _ = unsafe { madvise(self.start.as_ptr().cast(), bytes, Advice::LinuxNoHugepage) };
        }
    }

    pub(crate) fn not_inherited(length: usize) -> Memory {
        let memory = Memory::try_not_inherited(length);
        memory.unwrap_or_else(|| handle_alloc_error(layout_of(length)))
    }

    /// Allocates as [`AlignedBuf::not_inherited`] says; less than [`MAPPED_FROM_BYTES`] comes from
    /// the heap, and is inherited.
    pub(crate) fn try_not_inherited(length: usize) -> Option<Memory> {
        let memory = Memory::try_zeroed(length)?;
        if length >= MAPPED_FROM_BYTES {
            let start = memory.start.as_ptr().cast();
            // SAFETY: the mapping is this buffer's own, and the advice changes none of its bytes
            // here. On a kernel that does not know the advice, a child inherits them.
            let _ = unsafe { madvise(start, layout_of(length).size(), Advice::LinuxWipeOnFork) };
        }
        Some(memory)
    }

    /// Maps at least `length` zero bytes of a new file in memory, whose descriptor other processes
    /// can get. Only the first `backed` of them have memory behind them ([`back`]). `None` if there
    /// is no memory for it, or the system has no such files.
    pub(crate) fn shared(length: usize, backed: usize) -> Option<(Memory, OwnedFd)> {
        let length = length.checked_next_multiple_of(BLOCK_BYTES)?.max(BLOCK_BYTES);
        // A longer file would not only fail: the system sends SIGXFSZ.
        let limit = getrlimit(Resource::Fsize).current;
        if limit.is_some_and(|limit| limit < length as u64) {
            return None;
        }
        let file = memfd_create("outlive-copies", MemfdFlags::CLOEXEC).ok()?;
        ftruncate(&file, length as u64).ok()?;
        if !back(&file, 0..backed) {
            return None;
        }
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing. Only holders
        // of the descriptor could change the bytes; those that get it only read.
        let start =
            unsafe { mmap(ptr::null_mut(), length, prot, MapFlags::SHARED, &file, 0) }.ok()?;
        // SAFETY: the mapping is this buffer's own, and advice changes none of its bytes.
        let _ = unsafe { madvise(start, length, Advice::LinuxHugepage) };
        // SAFETY: as above. A child of the program does without it.
        let _ = unsafe { madvise(start, length, Advice::LinuxDontFork) };
        Some((Memory { start: NonNull::new(start.cast())?, length }, file))
    }
}

/// Puts memory behind a range of a file of [`Memory::shared`]. Without it, a write there ends the
/// program where memory is short. False if there is no memory.
pub(crate) fn back(file: &OwnedFd, range: Range<usize>) -> bool {
    let (offset, length) = (range.start as u64, range.len() as u64);
    length == 0 || fallocate(file, FallocateFlags::KEEP_SIZE, offset, length).is_ok()
}

fn layout_of(length: usize) -> Layout {
    let bytes = length.next_multiple_of(PAGE_BYTES);
    Layout::from_size_align(bytes, PAGE_BYTES).expect("buffers are far smaller than isize::MAX")
}

/// Maps zeroed anonymous memory at a multiple of 2 MiB, so that whole huge pages fit.
fn map(bytes: usize) -> Option<NonNull<u8>> {
    let flags = MapFlags::PRIVATE;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing. The parts cut
    // off lie within it, at its ends, and no other code has seen them. Addresses stay page-aligned,
    // as `bytes` is a multiple of the page size.
    unsafe {
        let whole = mmap_anonymous(ptr::null_mut(), bytes + BLOCK_BYTES, prot, flags).ok()?;
        let before = whole.addr().next_multiple_of(BLOCK_BYTES) - whole.addr();
        let start = whole.byte_add(before);
        if before > 0 {
            let _ = munmap(whole, before);
        }
        if before < BLOCK_BYTES {
            let _ = munmap(start.byte_add(bytes), BLOCK_BYTES - before);
        }
        // Only advice: without it the buffer works, a little slower.
        let _ = madvise(start, bytes, Advice::LinuxHugepage);
        NonNull::new(start.cast())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.length == 0 {
            return;
        }
        let layout = layout_of(self.length);
        // SAFETY: `try_zeroed` allocated exactly this memory, in the way that the length
        // determines, or `shared` mapped it, which is never short. No borrow outlives the buffer.
        unsafe {
            if self.length < MAPPED_FROM_BYTES {
                dealloc(self.start.as_ptr(), layout);
            } else {
                let _ = munmap(self.start.as_ptr().cast::<c_void>(), layout.size());
            }
        }
    }
}

// SAFETY: this value alone owns the memory, so it may move to another thread.
unsafe impl Send for Memory {}
// SAFETY: this value reads and writes none of the bytes; its holder does, and states why it may.
unsafe impl Sync for Memory {}
