//! Where the bytes of a buffer lie.
#![allow(unsafe_code)]

use outlive_types::{BLOCK_BYTES, PAGE_BYTES};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ffi::c_void;
use std::ptr::{self, NonNull};

/// The bytes of a buffer, without the way home. Who holds it says who may touch them.
pub(crate) struct Memory {
    start: NonNull<u8>,
    length: usize,
}

/// From this size on a buffer is its own mapping, so that the advice for huge pages touches none of
/// the program's heap, and freed memory goes back to the system.
const MAPPED_FROM_BYTES: usize = BLOCK_BYTES;

impl Memory {
    /// No bytes, at an aligned address all the same.
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

    /// The first byte.
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

    /// As [`AlignedBuf::not_inherited`]; less than [`MAPPED_FROM_BYTES`] is of the heap, and inherited.
    pub(crate) fn try_not_inherited(length: usize) -> Option<Memory> {
        let memory = Memory::try_zeroed(length)?;
        if length >= MAPPED_FROM_BYTES {
            let start = memory.start.as_ptr().cast();
            // SAFETY: the mapping is this buffer's own, and the advice changes none of its bytes here.
            // Where it is not known, a child inherits them.
            let _ = unsafe { madvise(start, layout_of(length).size(), Advice::LinuxWipeOnFork) };
        }
        Some(memory)
    }
}

fn layout_of(length: usize) -> Layout {
    let bytes = length.next_multiple_of(PAGE_BYTES);
    Layout::from_size_align(bytes, PAGE_BYTES).expect("buffers are far smaller than isize::MAX")
}

/// Zeroed anonymous memory at a multiple of 2 MiB, so that whole huge pages fit.
fn map(bytes: usize) -> Option<NonNull<u8>> {
    let flags = MapFlags::PRIVATE;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing; the parts cut
    // off lie within it, at its ends, and nobody has seen them. Addresses stay page-aligned, as
    // `bytes` is a multiple of the page size.
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
        // SAFETY: `zeroed` obtained exactly this memory in the way that the length tells, and no
        // borrow outlives the buffer.
        unsafe {
            if self.length < MAPPED_FROM_BYTES {
                dealloc(self.start.as_ptr(), layout);
            } else {
                let _ = munmap(self.start.as_ptr().cast::<c_void>(), layout.size());
            }
        }
    }
}

// SAFETY: the memory is owned by this value alone, so it may move to another thread.
unsafe impl Send for Memory {}
// SAFETY: this value reads and writes none of the bytes; who does says why it may.
unsafe impl Sync for Memory {}
