//! Memory that the kernel can read and write directly.
//!
//! A buffer has either one holder that may write it ([`AlignedBuf`]), or any number of readers
//! ([`SharedBuf`]). Both can be a part of a larger buffer. So one container feeds several targets
//! without a copy, and several reads fill one span. The memory returns to its pool when the last
//! part is dropped. Modelled on `Bytes` and `BytesMut` of the crate `bytes`, which do not support
//! aligned memory.
#![allow(unsafe_code)]

use crate::memory::Memory;
use outlive_types::PAGE_BYTES;
use std::fmt;
use std::mem;
use std::ops::{Deref, DerefMut, Range};
use std::os::fd::OwnedFd;
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// A fixed number of bytes that start at a multiple of 4096, as O_DIRECT demands. Only the holder
/// reads or writes them. Memory from a [`StagingPool`](crate::StagingPool) returns there when the
/// buffer and all its parts are dropped, on whichever thread.
pub struct AlignedBuf(BufferRange);

/// Bytes of a buffer that no thread writes any more. Clones and slices share its memory.
#[derive(Clone)]
pub struct SharedBuf(BufferRange);

/// A range of a buffer's memory. The ranges of two [`AlignedBuf`]s never overlap, and neither do
/// those of an `AlignedBuf` and a [`SharedBuf`].
#[derive(Clone)]
struct BufferRange {
    whole: Arc<Whole>,
    start: usize,
    length: usize,
}

/// Memory, and the pool that it returns to.
struct Whole {
    memory: Memory,
    home: Option<Weak<dyn BufferOwner>>,
    is_written_off: AtomicBool,
}

/// The owner to which a buffer's memory returns when the buffer is dropped.
pub(crate) trait BufferOwner: Send + Sync {
    fn put_back(&self, memory: Memory);

    /// Counts one of its buffers as written off. Returns false if the pool may write off no more.
    fn write_off(&self) -> bool;

    /// Ends the use of such a buffer's memory.
    fn end_write_off(&self);
}

/// A weak reference to a buffer of work that may hang. It does not keep the buffer alive.
pub struct WeakBuffer(Weak<Whole>);

impl WeakBuffer {
    /// Reports that the buffer may be in use for long, since its work hangs: the pool hands out
    /// another one instead. A pool does so at most once for each of its buffers, so its memory at
    /// most doubles. Does nothing if the buffer is back, or already written off.
    pub fn write_off(&self) {
        let Some(whole) = self.0.upgrade() else { return };
        let Some(home) = whole.home.as_ref().and_then(Weak::upgrade) else { return };
        if !whole.is_written_off.swap(true, Ordering::AcqRel) && !home.write_off() {
            whole.is_written_off.store(false, Ordering::Release);
        }
    }
}

impl fmt::Debug for WeakBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakBuffer")
    }
}

impl AlignedBuf {
    /// Returns a buffer of `length` zero bytes that belongs to no pool. From 2 MiB on it asks for
    /// huge pages. Aborts like any allocation if there is no memory.
    pub fn zeroed(length: usize) -> AlignedBuf {
        AlignedBuf::of(Memory::zeroed(length), None)
    }

    /// Returns the same, for bytes that only this process needs: a forked child finds zeros there.
    /// So a child never shares the memory, and writes while a child lives copy no page.
    pub fn not_inherited(length: usize) -> AlignedBuf {
        AlignedBuf::of(Memory::not_inherited(length), None)
    }

    /// Returns the same, or `None` if there is no memory for it, as under a limit of address space.
    pub fn try_not_inherited(length: usize) -> Option<AlignedBuf> {
        Some(AlignedBuf::of(Memory::try_not_inherited(length)?, None))
    }

    /// Returns a buffer of at least `length` zero bytes, and the descriptor by which other processes
    /// can read them. The first `backed` bytes have memory behind them; [`AlignedBuf::back`] them
    /// before others are written. `None` if there is no memory for it.
    pub fn shared(length: usize, backed: usize) -> Option<(AlignedBuf, OwnedFd)> {
        let made = Memory::shared(length, backed);
        made.map(|(memory, file)| (AlignedBuf::of(memory, None), file))
    }

    /// Puts memory behind a range of a shared buffer with this descriptor. False if there is none.
    pub fn back(file: &OwnedFd, range: Range<usize>) -> bool {
        crate::memory::back(file, range)
    }

    pub(crate) fn pooled(memory: Memory, home: Weak<dyn BufferOwner>) -> AlignedBuf {
        AlignedBuf::of(memory, Some(home))
    }

    fn of(memory: Memory, home: Option<Weak<dyn BufferOwner>>) -> AlignedBuf {
        let length = memory.length();
        let whole = Whole { memory, home, is_written_off: AtomicBool::new(false) };
        AlignedBuf(BufferRange { whole: Arc::new(whole), start: 0, length })
    }

    /// Returns a reference to keep while work that may hang uses the buffer.
    pub fn hold(&self) -> WeakBuffer {
        WeakBuffer(Arc::downgrade(&self.0.whole))
    }

    /// Asks for 4 KiB pages instead. For measurements; call it before the buffer is used.
    pub fn use_small_pages(&self) {
        self.0.whole.memory.use_small_pages();
    }

    /// Keeps the first `at` bytes and returns the rest as a separate buffer.
    ///
    /// # Panics
    /// If `at` exceeds the length, or is neither the length nor a multiple of 4096.
    pub fn split_off(&mut self, at: usize) -> AlignedBuf {
        let BufferRange { whole, start, length } = &mut self.0;
        assert!(at <= *length, "a buffer of {length} bytes cannot be split at {at}");
        assert!(
            at.is_multiple_of(PAGE_BYTES) || at == *length,
            "a buffer cannot be split at {at}: the rest would not start at a page"
        );
        let rest = BufferRange { whole: whole.clone(), start: *start + at, length: *length - at };
        *length = at;
        AlignedBuf(rest)
    }

    /// Rejoins two parts of a split buffer.
    ///
    /// # Errors
    /// Both parts, unchanged, if `next` does not directly follow this one in the same memory.
    pub fn unsplit(mut self, next: AlignedBuf) -> Result<AlignedBuf, (AlignedBuf, AlignedBuf)> {
        let is_next = Arc::ptr_eq(&self.0.whole, &next.0.whole)
            && self.0.start + self.0.length == next.0.start;
        if !is_next {
            return Err((self, next));
        }
        self.0.length += next.0.length;
        Ok(self)
    }

    /// Ends the writing: from now on any number of holders may read.
    pub fn share(self) -> SharedBuf {
        SharedBuf(self.0)
    }
}

impl SharedBuf {
    /// Returns a reference to keep while work that may hang uses the buffer.
    pub fn hold(&self) -> WeakBuffer {
        WeakBuffer(Arc::downgrade(&self.0.whole))
    }

    /// Returns a range of the bytes, without a copy.
    ///
    /// # Panics
    /// If the range is not within the buffer.
    pub fn slice(&self, range: Range<usize>) -> SharedBuf {
        let BufferRange { whole, start, length } = &self.0;
        assert!(
            range.start <= range.end && range.end <= *length,
            "a buffer of {length} bytes has no bytes {range:?}"
        );
        SharedBuf(BufferRange {
            whole: whole.clone(),
            start: start + range.start,
            length: range.len(),
        })
    }

    /// Returns these bytes, to write them again.
    ///
    /// # Errors
    /// This value, unchanged, if the memory of its buffer has another holder, or if it does not
    /// start at a page.
    pub fn own(mut self) -> Result<AlignedBuf, SharedBuf> {
        let is_aligned = self.0.start.is_multiple_of(PAGE_BYTES);
        match Arc::get_mut(&mut self.0.whole) {
            Some(_) if is_aligned => Ok(AlignedBuf(self.0)),
            _ => Err(self),
        }
    }

    /// Returns the whole buffer that these bytes are a part of, to write it again.
    ///
    /// # Errors
    /// This value, unchanged, if its memory has another holder.
    pub fn unshare(mut self) -> Result<AlignedBuf, SharedBuf> {
        match Arc::get_mut(&mut self.0.whole) {
            Some(whole) => {
                let length = whole.memory.length();
                Ok(AlignedBuf(BufferRange { start: 0, length, ..self.0 }))
            }
            None => Err(self),
        }
    }
}

impl From<AlignedBuf> for SharedBuf {
    fn from(buffer: AlignedBuf) -> SharedBuf {
        buffer.share()
    }
}

impl BufferRange {
    fn first(&self) -> *mut u8 {
        // SAFETY: a part lies within its memory.
        unsafe { self.whole.memory.start().add(self.start).as_ptr() }
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        let Some(home) = self.home.as_ref().and_then(Weak::upgrade) else { return };
        match *self.is_written_off.get_mut() {
            // The pool has replaced this buffer already.
            true => home.end_write_off(),
            false => home.put_back(mem::replace(&mut self.memory, Memory::EMPTY)),
        }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the part's bytes are initialised and live as long as `whole`. It overlaps no
        // other part that may be read or written, and only `&mut self` writes it.
        unsafe { slice::from_raw_parts(self.0.first(), self.0.length) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; these bytes are reachable only through `&mut self`.
        unsafe { slice::from_raw_parts_mut(self.0.first(), self.0.length) }
    }
}

impl Deref for SharedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the part's bytes are initialised and live as long as `whole`. Only an
        // `AlignedBuf` writes, and none overlaps a shared part: `share` consumes it, and `own`
        // and `unshare` succeed only if there is no other holder.
        unsafe { slice::from_raw_parts(self.0.first(), self.0.length) }
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.0.length)
    }
}

impl fmt::Debug for SharedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBuf({} bytes)", self.0.length)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a time-out is what is tested")]

    use super::*;
    use crate::StagingPool;
    use crate::mapped::flags_at;
    use outlive_types::BLOCK_BYTES;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    #[test]
    fn no_memory_is_no_end_of_the_program() {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
        let used = size.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10;
        let big = 64 << 20;
        let pool = StagingPool::new(2 * big, big);
        let held = pool.take();
        // The test runner gives each test of this crate a process of its own.
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
    fn buffers_that_are_not_inherited_are_not_shared_with_children() {
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

    #[test]
    fn parts_are_filled_by_themselves_and_put_together() {
        let pool = StagingPool::new(4 * PAGE_BYTES, 4 * PAGE_BYTES);
        let mut first = pool.take();
        let mut third = first.split_off(2 * PAGE_BYTES);
        let mut second = first.split_off(PAGE_BYTES);
        let nothing = third.split_off(third.len());
        assert_eq!([first.len(), second.len(), third.len(), nothing.len()], [4096, 4096, 8192, 0]);
        assert!(
            [&first, &second, &third].iter().all(|part| part.as_ptr().addr() % PAGE_BYTES == 0)
        );
        std::thread::scope(|scope| {
            for (part, byte) in [&mut first, &mut second, &mut third].into_iter().zip(1..) {
                scope.spawn(move || part.fill(byte));
            }
        });
        let (first, third) = first.unsplit(third).expect_err("the second is missing between them");
        let foreign = AlignedBuf::zeroed(PAGE_BYTES);
        let (first, _) = first.unsplit(foreign).expect_err("it is another buffer's");
        assert!(pool.try_take().is_none());
        let whole = first.unsplit(second).and_then(|both| both.unsplit(third)).unwrap();
        let is_filled = |page: (&[u8], u8)| page.0.iter().all(|byte| *byte == page.1);
        assert!(whole.chunks(PAGE_BYTES).zip([1, 2, 3, 3]).all(is_filled));
        assert!(pool.try_take().is_none(), "a part of no bytes is a part");
        drop((whole, nothing));
        assert!(pool.try_take().is_some());
    }

    #[test]
    fn shared_bytes_go_home_with_their_last_reader() {
        let pool = StagingPool::new(3 * PAGE_BYTES, 3 * PAGE_BYTES);
        let mut buffer = pool.take();
        buffer.fill(7);
        let shared = buffer.share();
        let slice = shared.slice(PAGE_BYTES..2 * PAGE_BYTES).slice(96..PAGE_BYTES);
        assert_eq!(*slice, [7; 4000]);
        let shared = shared.unshare().expect_err("a slice is about");
        let reader =
            std::thread::spawn(move || slice.iter().map(|byte| u32::from(*byte)).sum::<u32>());
        assert_eq!(reader.join().unwrap(), 28_000);
        let page = shared.slice(PAGE_BYTES..2 * PAGE_BYTES).own().expect_err("the whole is about");
        drop(shared);
        let mut page = page.own().expect("no other part of it is left");
        assert_eq!(*page, [7; PAGE_BYTES]);
        page[0] = 8;
        let part = page.share().slice(96..4000).own().expect_err("it starts within a page");
        let mut buffer = part.unshare().expect("no other part of it is left");
        assert_eq!((buffer.len(), buffer.as_ptr().addr() % PAGE_BYTES), (3 * PAGE_BYTES, 0));
        buffer[0] = 1;
        let clone = buffer.share();
        drop(clone.clone());
        assert!(pool.try_take().is_none());
        drop(clone);
        assert!(pool.try_take().is_some());
    }

    #[test]
    fn a_rest_that_starts_within_a_page_is_no_buffer() {
        for at in [1, 5000, 8193] {
            let mut buffer = AlignedBuf::zeroed(8192);
            let split =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| buffer.split_off(at)));
            assert!(split.is_err());
        }
    }
}
