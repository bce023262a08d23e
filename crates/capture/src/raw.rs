//! How the program hands over its own memory: by address, and with promises.
#![allow(unsafe_code)]

use crate::Region;
#[cfg(doc)]
use crate::fill::Advice;
use crate::fill::MutRegion;
use crate::memory::{Memory, RawMemory, RawMutMemory};

impl Region {
    /// A region in the program's memory: `length` bytes at `start`, which may be null if `length`
    /// is 0.
    ///
    /// # Safety
    /// Whenever a source made with this region is frozen, or a tracker is primed with it, the bytes
    /// must be readable, from any thread, and nobody may write them: from the call until it returns
    /// and, if the result has live runs, until [`release_live`] or [`settle`] was called on it
    /// (which is only done when slices of live runs are no longer in use) or until it was dropped.
    /// At other times the memory is not touched.
    ///
    /// [`release_live`]: outlive_types::Frozen::release_live
    /// [`settle`]: outlive_types::Frozen::commit_baseline
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

    /// A region in memory that nobody changes, such as JAX's arrays: it is neither copied aside nor
    /// live. Otherwise as [`Region::from_raw`].
    ///
    /// # Safety
    /// The bytes must be readable, from any thread, and nobody may write them, as long as the region,
    /// a source made with it, or anything frozen from that exists.
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
    /// Memory of the program to be filled: `length` bytes at `start`, which may be null if `length`
    /// is 0.
    ///
    /// # Safety
    /// Until the value is dropped, the bytes must be initialised and writable from any thread, and nobody
    /// else may read or write them while something is filled by it, be it through another region that
    /// overlaps this one. A value that
    /// nobody uses any more may stay without its memory once [`Advice::end`] of it has returned: it
    /// touches the memory no more then.
    ///
    /// One that is given to a [`LazyMemory`](crate::lazy::LazyMemory) may be used as soon as its edges
    /// and the streams that are not lazy are filled; until the value is dropped, or all is whole and the
    /// advice has ended, it must stay mapped, and what it held before is given up.
    pub unsafe fn from_raw(start: *mut u8, length: usize) -> MutRegion {
        // SAFETY: passed on to the caller.
        MutRegion(unsafe { RawMutMemory::of_program(start, length) })
    }
}
