//! Memory that the kernel can read and write directly.
#![allow(unsafe_code)]

use outlive_types::{BLOCK_BYTES, PAGE_BYTES};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ffi::c_void;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Weak;

/// A fixed number of bytes that starts at a multiple of 4096, as O_DIRECT demands. A buffer that
/// was taken from a [`StagingPool`](crate::StagingPool) goes back there when it is dropped, on whichever thread.
pub struct AlignedBuf {
    memory: Memory,
    home: Option<Weak<dyn Home>>,
}

/// Where the memory of a buffer goes when that is dropped.
pub(crate) trait Home: Send + Sync {
    fn put_back(&self, memory: Memory);
}

impl AlignedBuf {
    /// A buffer of `length` zero bytes that belongs to no pool. From 2 MiB on it asks for huge
    /// pages. Aborts like any allocation if there is no memory.
    pub fn zeroed(length: usize) -> AlignedBuf {
        AlignedBuf { memory: Memory::zeroed(length), home: None }
    }

    /// The same, for what only this process needs: a forked child finds zeros there. So the memory is
    /// never shared with one, and to write it while a child lives copies no page.
    pub fn not_inherited(length: usize) -> AlignedBuf {
        AlignedBuf { memory: Memory::not_inherited(length), home: None }
    }

    /// The same; `None` if there is no memory for it, as under a limit of address space.
    pub fn try_not_inherited(length: usize) -> Option<AlignedBuf> {
        let memory = Memory::try_not_inherited(length)?;
        Some(AlignedBuf { memory, home: None })
    }

    /// Asks for 4 KiB pages instead: to be called before the buffer is used, for measurements.
    pub fn use_small_pages(&self) {
        if self.memory.length >= MAPPED_FROM_BYTES {
            let bytes = layout_of(self.memory.length).size();
            // SAFETY: the mapping is this buffer's own, and advice changes none of its bytes.
            let _ = unsafe {
                madvise(self.memory.start.as_ptr().cast(), bytes, Advice::LinuxNoHugepage)
            };
        }
    }

    pub(crate) fn pooled(memory: Memory, home: Weak<dyn Home>) -> AlignedBuf {
        AlignedBuf { memory, home: Some(home) }
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if let Some(home) = self.home.as_ref().and_then(Weak::upgrade) {
            home.put_back(std::mem::replace(&mut self.memory, Memory::EMPTY));
        }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start` is valid for `length` initialised bytes while `memory` lives, and only
        // `&mut self` writes them.
        unsafe { slice::from_raw_parts(self.memory.start.as_ptr(), self.memory.length) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` is the only way to these bytes.
        unsafe { slice::from_raw_parts_mut(self.memory.start.as_ptr(), self.memory.length) }
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.memory.length)
    }
}

/// The bytes of a buffer, without the way home.
pub(crate) struct Memory {
    start: NonNull<u8>,
    length: usize,
}

/// From this size on a buffer is its own mapping, so that the advice for huge pages touches none of
/// the program's heap, and freed memory goes back to the system.
const MAPPED_FROM_BYTES: usize = BLOCK_BYTES;

impl Memory {
    /// No bytes, at an aligned address all the same.
    const EMPTY: Memory = Memory {
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

    fn not_inherited(length: usize) -> Memory {
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

// SAFETY: the memory is owned by this value alone, so it may move to another thread, and shared
// references only read it.
unsafe impl Send for Memory {}
// SAFETY: see above.
unsafe impl Sync for Memory {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StagingPool;
    use crate::mapped::flags_at;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    #[test]
    fn no_memory_is_no_end_of_the_program() {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
        let used = size.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10;
        let big = 64 << 20;
        let pool = StagingPool::new(2 * big, big);
        let held = pool.take();
        // The tests of this crate run in processes of their own.
        let before = getrlimit(Resource::As);
        let little = Rlimit { current: Some(used + (32 << 20)), ..before };
        setrlimit(Resource::As, little).unwrap();
        assert!(AlignedBuf::try_not_inherited(big).is_none());
        assert!(pool.try_take().is_none());
        assert!(pool.take_timeout(std::time::Duration::from_millis(5)).is_none());
        drop(held);
        assert!(pool.try_take().is_some(), "there is one");
        setrlimit(Resource::As, before).unwrap();
        let both = [pool.take(), pool.take()];
        assert!(both.iter().all(|buffer| buffer.len() == big) && pool.try_take().is_none());
    }

    #[test]
    fn what_is_not_inherited_is_not_shared_with_children() {
        for (buffer, wanted) in [
            (AlignedBuf::zeroed(3 * BLOCK_BYTES), false),
            (AlignedBuf::not_inherited(3 * BLOCK_BYTES), true),
            (StagingPool::new(BLOCK_BYTES, BLOCK_BYTES).take(), true),
        ] {
            let flags = flags_at(buffer.as_ptr().addr() + BLOCK_BYTES / 2);
            assert_eq!(flags.contains(" wf"), wanted, "{flags}");
        }
        AlignedBuf::not_inherited(5000).fill(1);
    }

    #[test]
    fn buffers_are_aligned_zeroed_and_writable_to_the_last_byte() {
        for length in [0, 1, 4096, 5000, BLOCK_BYTES - 1, BLOCK_BYTES, 3 * BLOCK_BYTES + 4097] {
            let mut buffer = AlignedBuf::zeroed(length);
            assert_eq!(buffer.len(), length);
            assert_eq!(buffer.as_ptr().addr() % PAGE_BYTES, 0);
            assert!(buffer.iter().all(|byte| *byte == 0));
            buffer.fill(0xA5);
            assert!(buffer.iter().all(|byte| *byte == 0xA5));
        }
    }
}
