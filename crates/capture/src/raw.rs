//! Handover of the program's own memory: by address, and with promises.
#![allow(unsafe_code)]

use crate::Region;
#[cfg(doc)]
use crate::fill::Advice;
use crate::fill::MutRegion;
use crate::memory::{Memory, RawMemory, RawMutMemory};

impl Region {
    /// Describes a region in the program's memory: `length` bytes at `start`, which may be null if
    /// `length` is 0.
    ///
    /// # Safety
    /// While a source made with this region is frozen, or a tracker is primed with it, the bytes
    /// must be readable, from any thread, and no thread may write them. If the result has live
    /// runs, that still holds after the call, until [`release_live`] or [`commit_baseline`] was
    /// called on it, or until it was dropped. (Both are only called when slices of live runs are no
    /// longer in use.) At other times the memory is not touched.
    ///
    /// [`release_live`]: outlive_types::Frozen::release_live
    /// [`commit_baseline`]: outlive_types::Frozen::commit_baseline
    pub unsafe fn from_raw(
        name: impl Into<String>,
        dtype: impl Into<String>,
        shape: Vec<u64>,
        start: *const u8,
        length: usize,
    ) -> Region {
        // SAFETY: passed on to the caller.
        let memory = Memory::Raw(unsafe { RawMemory::new(start, length) });
        Region::of(name, dtype, shape, memory)
    }

    /// Describes a region in memory that does not change, such as JAX's arrays: it is neither
    /// copied aside nor live. Otherwise as [`Region::from_raw`].
    ///
    /// # Safety
    /// The bytes must be readable, from any thread, and no thread may write them, as long as the
    /// region, a source made with it, or anything frozen from that exists.
    pub unsafe fn from_constant(
        name: impl Into<String>,
        dtype: impl Into<String>,
        shape: Vec<u64>,
        start: *const u8,
        length: usize,
    ) -> Region {
        // SAFETY: passed on to the caller.
        let memory = Memory::Constant(unsafe { RawMemory::new(start, length) });
        Region::of(name, dtype, shape, memory)
    }
}

impl MutRegion {
    /// Describes memory of the program to be filled: `length` bytes at `start`, which may be null
    /// if `length` is 0.
    ///
    /// # Safety
    /// Until the value is dropped, the bytes must be initialised and writable from any thread.
    /// While the value fills them, no other code may read or write them, not even through another
    /// region that overlaps this one. Once [`Advice::end`] of an unused value has returned, its
    /// memory may go: the value never touches it again.
    ///
    /// A value that is given to a [`LazyMemory`](crate::lazy::LazyMemory) may be used as soon as
    /// its edges and the streams that are not lazy are filled. The memory must stay mapped until
    /// the value is dropped, or until all is whole and the advice has ended. Its old content is
    /// given up.
    pub unsafe fn from_raw(start: *mut u8, length: usize) -> MutRegion {
        // SAFETY: passed on to the caller.
        MutRegion(unsafe { RawMutMemory::of_program(start, length) })
    }
}
