//! Raw program memory: what is outside of this file sees slices.
#![allow(unsafe_code)]

use crate::watch::RegionSpan;
use outlive_io::fresh::{FreshMemory, is_offered};
use outlive_io::{AlignedBuf, copy_past_cache};
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, Result};
use std::sync::Arc;

/// A region's bytes: the program's own memory, or bytes that nobody can change.
#[derive(Clone, Debug)]
pub(crate) enum Memory {
    /// Memory of the program; see [`Region::from_raw`](crate::Region::from_raw).
    Raw(RawMemory),
    /// Memory of the program that nobody changes; see [`Region::from_constant`](crate::Region::from_constant).
    Constant(RawMemory),
    /// Immutable bytes.
    Shared(Arc<[u8]>),
}

/// Where a region lies in the program's memory. The fields stay in here:
/// [`Region::from_raw`](crate::Region::from_raw) promises what they mean.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawMemory {
    start: *const u8,
    length: usize,
}

// SAFETY: whoever called `Region::from_raw` or `Region::from_constant` promised that the memory may be read from any thread.
unsafe impl Send for RawMemory {}
// SAFETY: as above; nothing writes through it.
unsafe impl Sync for RawMemory {}

impl RawMemory {
    /// `length` bytes at `start`.
    ///
    /// # Safety
    /// As [`Region::from_raw`](crate::Region::from_raw); if nobody may ever change the bytes, as
    /// [`Region::from_constant`](crate::Region::from_constant).
    pub(crate) unsafe fn new(start: *const u8, length: usize) -> RawMemory {
        RawMemory { start, length }
    }

    /// Refuses what no slice can describe.
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

    /// Where it lies, if the program may change it and it has any byte.
    pub(crate) fn place(&self) -> Option<RegionSpan> {
        match self {
            Memory::Raw(raw) if raw.length > 0 && raw.check().is_ok() => {
                Some(RegionSpan { start: raw.start.addr(), length: raw.length })
            }
            _ => None,
        }
    }

    /// The bytes; none if [`RawMemory::check`] refuses the memory.
    ///
    /// For raw memory only to be called during a freeze, or until its live runs are released:
    /// [`Region::from_raw`](crate::Region::from_raw) asks the program to keep still just that long.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Memory::Raw(raw) | Memory::Constant(raw) if raw.length == 0 || raw.check().is_err() => {
                &[]
            }
            // SAFETY: the pointer is not null and the length fits an isize (checked above). That
            // the bytes are readable and unchanged while this room reads them is what the caller
            // of `Region::from_raw` or `Region::from_constant` promised.
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
    /// If nobody may have used it yet: which pages it is to be made of. Goes before the memory does.
    fresh: Option<KeptFresh>,
    start: *mut u8,
    length: usize,
    /// Where `start` points to, if the memory is its own. Not used itself before `into_owned`.
    owned: Option<AlignedBuf>,
    /// Unit `n` of the memory may be written by whoever holds lock `n % locks.len()`.
    locks: Vec<Mutex<()>>,
}

/// Fresh memory that stays when it is restored. At the latest then, what was advised for the restore
/// ends.
#[derive(Debug)]
struct KeptFresh(Arc<FreshMemory>);

impl Drop for KeptFresh {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Less fresh memory than this is not worth asking about.
const FRESH_FROM_BYTES: usize = 32 << 20;

/// Writes are serialised within units of this length: that of the longest chunk by default, so two
/// threads seldom want the same unit.
pub(crate) const UNIT_BYTES: usize = 64 * 1024;
/// Enough that two threads seldom meet by chance.
const LOCKS_MAX: usize = 64;

// SAFETY: the memory is this value's alone: of a buffer that it owns, or by the promise of
// `MutRegion::from_raw`, which also allows any thread.
unsafe impl Send for RawMutMemory {}
// SAFETY: shared references give access only through `each_unit`, which holds the lock of the unit
// that is written.
unsafe impl Sync for RawMutMemory {}

impl RawMutMemory {
    /// Memory of the program.
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
        // SAFETY: a buffer of that length is a mapping of its own. What is offered is a part of one
        // now, since who offers memory takes that back before it goes. It stays mapped until `fresh` has
        // ended: it is ours and goes after that, or whoever called `MutRegion::from_raw` promised so.
        let fresh = (length >= FRESH_FROM_BYTES && is_fresh)
            .then(|| unsafe { FreshMemory::new(&all) })
            .flatten()
            .map(|fresh| KeptFresh(Arc::new(fresh)));
        RawMutMemory { fresh, start, length, owned, locks }
    }

    /// What ends the advice on its pages, if there is any.
    pub(crate) fn fresh(&self) -> Option<Arc<FreshMemory>> {
        self.fresh.as_ref().map(|fresh| fresh.0.clone())
    }

    /// Bytes that nobody had used before, in small and in huge pages.
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

    /// True if the length promises bytes where none can be.
    pub(crate) fn is_impossible(&self) -> bool {
        (self.length > 0 && self.start.is_null()) || isize::try_from(self.length).is_err()
    }

    /// Copies `bytes` to `offset`. The range must lie within the memory.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        self.each_unit(offset, bytes.len(), |start, done, length| {
            let from = &bytes[done..][..length];
            // SAFETY: `each_unit` lends `length` bytes at `start`, initialised and writable, that nobody
            // else uses meanwhile.
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

    /// A copy of all bytes.
    pub(crate) fn copy(&self) -> AlignedBuf {
        let mut copy = AlignedBuf::zeroed(self.length);
        let to = copy.as_mut_ptr();
        self.each_unit(0, self.length, |start, done, length| {
            // SAFETY: `each_unit` lends `length` bytes at `start` that nobody else uses meanwhile; the
            // copy has as many from `done` on, and is nobody else's.
            unsafe { to.add(done).copy_from_nonoverlapping(start, length) };
        });
        copy
    }

    /// Calls `work` with each part of the range that lies in one unit: its address, how much of the
    /// range came before it, its length. Until it returns, nobody else uses that part.
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

    /// The buffer again, if the memory was its own.
    pub(crate) fn into_owned(self) -> Option<AlignedBuf> {
        self.owned
    }
}

#[cfg(test)]
mod tests;
