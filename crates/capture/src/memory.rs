//! Raw program memory: code outside this file sees slices.
#![allow(unsafe_code)]

use crate::watch::RegionSpan;
use outlive_io::fresh::{FreshMemory, is_offered};
use outlive_io::{AlignedBuf, copy_past_cache};
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, Result};
use std::sync::Arc;

/// A region's bytes: the program's own memory, or bytes that never change.
#[derive(Clone, Debug)]
pub(crate) enum Memory {
    /// Memory of the program; see [`Region::from_raw`](crate::Region::from_raw).
    Raw(RawMemory),
    /// Memory of the program that does not change; see
    /// [`Region::from_constant`](crate::Region::from_constant).
    Constant(RawMemory),
    /// Immutable bytes.
    Shared(Arc<[u8]>),
}

/// Location of a region in the program's memory. The fields are private:
/// [`Region::from_raw`](crate::Region::from_raw) promises their meaning.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawMemory {
    start: *const u8,
    length: usize,
}

// SAFETY: the caller of `Region::from_raw` or `Region::from_constant` promised that the memory may
// be read from any thread.
unsafe impl Send for RawMemory {}
// SAFETY: as above; nothing writes through it.
unsafe impl Sync for RawMemory {}

impl RawMemory {
    /// Describes `length` bytes at `start`.
    ///
    /// # Safety
    /// As [`Region::from_raw`](crate::Region::from_raw); if the bytes must never change, as
    /// [`Region::from_constant`](crate::Region::from_constant).
    pub(crate) unsafe fn new(start: *const u8, length: usize) -> RawMemory {
        RawMemory { start, length }
    }

    /// Refuses memory that no slice can describe.
    pub(crate) fn check(&self) -> Result<()> {
        if self.length > 0 && self.start.is_null() {
            return Err(Error::invalid("its address is null"));
        }
        if isize::try_from(self.length).is_err() {
            let length = self.length;
            return Err(Error::invalid(format!("{length} bytes are more than memory can hold")));
        }
        Ok(())
    }
}

impl Memory {
    pub(crate) fn length(&self) -> usize {
        match self {
            Memory::Raw(raw) | Memory::Constant(raw) => raw.length,
            Memory::Shared(bytes) => bytes.len(),
        }
    }

    /// Returns the location, if the program may change the memory and it is not empty.
    pub(crate) fn place(&self) -> Option<RegionSpan> {
        match self {
            Memory::Raw(raw) if raw.length > 0 && raw.check().is_ok() => {
                Some(RegionSpan { start: raw.start.addr(), length: raw.length })
            }
            _ => None,
        }
    }

    /// Returns the bytes; none if [`RawMemory::check`] refuses the memory.
    ///
    /// For raw memory, call it only during a freeze, or until its live runs are released.
    /// [`Region::from_raw`](crate::Region::from_raw) asks the program not to write for just that
    /// long.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Memory::Raw(raw) | Memory::Constant(raw) if raw.length == 0 || raw.check().is_err() => {
                &[]
            }
            // SAFETY: the pointer is not null and the length fits an isize (checked above). The
            // caller of `Region::from_raw` or `Region::from_constant` promised that the bytes are
            // readable, and unchanged while this crate reads them.
            Memory::Raw(raw) | Memory::Constant(raw) => unsafe {
                std::slice::from_raw_parts(raw.start, raw.length)
            },
            Memory::Shared(bytes) => bytes,
        }
    }
}

/// Memory that several threads fill. Locks keep two of them from the same byte, so that every use
/// of the safe methods is sound, whatever ranges are written.
#[derive(Debug)]
pub(crate) struct RawMutMemory {
    /// Chooses its pages, if the memory may be unused so far. Dropped before the memory.
    fresh: Option<KeptFresh>,
    start: *mut u8,
    length: usize,
    /// The buffer that `start` points to, if the memory is its own. Not used before `into_owned`.
    owned: Option<AlignedBuf>,
    /// Unit `n` of the memory may be written only with lock `n % locks.len()` held.
    locks: Vec<Mutex<()>>,
}

/// Fresh memory that stays when it is restored. The advice for the restore ends when this is
/// dropped, at the latest.
#[derive(Debug)]
struct KeptFresh(Arc<FreshMemory>);

impl Drop for KeptFresh {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Least fresh memory for which pages are chosen.
const FRESH_FROM_BYTES: usize = 32 << 20;

/// Length of the units within which writes are serialised: that of the longest chunk by default, so
/// two threads seldom want the same unit.
pub(crate) const UNIT_BYTES: usize = 64 * 1024;
/// Most locks: enough that two threads seldom meet by chance.
const LOCKS_MAX: usize = 64;

// SAFETY: the memory is this value's alone. It is a buffer that the value owns, or follows the
// promise of `MutRegion::from_raw`, which also allows any thread.
unsafe impl Send for RawMutMemory {}
// SAFETY: shared references give access only through `each_unit`, which holds the lock of the unit
// that is written.
unsafe impl Sync for RawMutMemory {}

impl RawMutMemory {
    /// Wraps memory of the program.
    ///
    /// # Safety
    /// As [`MutRegion::from_raw`](crate::fill::MutRegion::from_raw).
    pub(crate) unsafe fn of_program(start: *mut u8, length: usize) -> RawMutMemory {
        RawMutMemory::new(start, length, None)
    }

    fn new(start: *mut u8, length: usize, owned: Option<AlignedBuf>) -> RawMutMemory {
        let locks = length.div_ceil(UNIT_BYTES).clamp(1, LOCKS_MAX);
        let locks = (0..locks).map(|_| Mutex::new(())).collect();
        let first = start.expose_provenance();
        let all = first..first.saturating_add(length);
        let is_fresh = owned.is_some() || is_offered(&all);
        // SAFETY: a buffer of that length is a mapping of its own. Offered memory is part of one
        // now, since its owner withdraws the offer before unmapping it. The memory stays mapped
        // until `fresh` has ended: either it is ours and is freed after that, or the caller of
        // `MutRegion::from_raw` promised it.
        let fresh = (length >= FRESH_FROM_BYTES && is_fresh)
            .then(|| unsafe { FreshMemory::new(&all) })
            .flatten()
            .map(|fresh| KeptFresh(Arc::new(fresh)));
        RawMutMemory { fresh, start, length, owned, locks }
    }

    /// Returns the value that ends the advice on its pages, if there is any.
    pub(crate) fn fresh(&self) -> Option<Arc<FreshMemory>> {
        self.fresh.as_ref().map(|fresh| fresh.0.clone())
    }

    /// Bytes of memory that was never used before, in small and in huge pages.
    pub(crate) fn touched(&self) -> [u64; 2] {
        self.fresh.as_ref().map_or([0; 2], |fresh| fresh.0.touched())
    }

    pub(crate) fn owned(mut buffer: AlignedBuf) -> RawMutMemory {
        RawMutMemory::new(buffer.as_mut_ptr(), buffer.len(), Some(buffer))
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Address of the first byte.
    pub(crate) fn start(&self) -> usize {
        self.start.expose_provenance()
    }

    /// True if the memory is its own.
    pub(crate) fn is_owned(&self) -> bool {
        self.owned.is_some()
    }

    /// True if no memory can have this address and length.
    pub(crate) fn is_impossible(&self) -> bool {
        (self.length > 0 && self.start.is_null()) || isize::try_from(self.length).is_err()
    }

    /// Copies `bytes` to `offset`. The range must lie within the memory.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        self.each_unit(offset, bytes.len(), |start, done, length| {
            let from = &bytes[done..][..length];
            // SAFETY: `each_unit` lends `length` bytes at `start`, initialised and writable, that
            // no other thread uses meanwhile.
            let to = unsafe { std::slice::from_raw_parts_mut(start, length) };
            // The program reads it later, if at all.
            copy_past_cache(from, to);
        });
    }

    /// Fills `length` bytes at `offset` with zeros. The range must lie within the memory.
    pub(crate) fn zero(&self, offset: usize, length: usize) {
        self.each_unit(offset, length, |start, _, length| {
            // SAFETY: `each_unit` lends `length` writable bytes at `start`.
            unsafe { start.write_bytes(0, length) };
        });
    }

    /// Returns a copy of all bytes.
    pub(crate) fn copy(&self) -> AlignedBuf {
        let mut copy = AlignedBuf::zeroed(self.length);
        let to = copy.as_mut_ptr();
        self.each_unit(0, self.length, |start, done, length| {
            // SAFETY: `each_unit` lends `length` bytes at `start` that no other thread uses
            // meanwhile. The copy has as many from `done` on, and no other owner.
            unsafe { to.add(done).copy_from_nonoverlapping(start, length) };
        });
        copy
    }

    /// Calls `work` with each part of the range that lies in one unit: its address, the length of
    /// the range before it, its own length. Until it returns, no other thread uses that part.
    fn each_unit(&self, offset: usize, length: usize, work: impl Fn(*mut u8, usize, usize)) {
        let end = offset.checked_add(length).filter(|end| *end <= self.length);
        let end = end.expect("callers keep to the memory's length");
        assert!(!self.is_impossible(), "callers refuse impossible memory");
        let mut next = offset;
        while next < end {
            let unit = next / UNIT_BYTES;
            let stop = (unit * UNIT_BYTES).saturating_add(UNIT_BYTES).min(end);
            if let Some(KeptFresh(fresh)) = &self.fresh {
                let first = self.start.addr();
                fresh.take(&(first + next..first + stop), true);
            }
            let lock = &self.locks[unit % self.locks.len()];
            let held = lock.lock();
            // SAFETY: `next` is below `end`, which is at most the length, which fits an isize.
            let start = unsafe { self.start.add(next) };
            work(start, next - offset, stop - next);
            drop(held);
            next = stop;
        }
    }

    /// Returns the buffer, if the memory was its own.
    pub(crate) fn into_owned(self) -> Option<AlignedBuf> {
        self.owned
    }
}

#[cfg(test)]
mod tests;
