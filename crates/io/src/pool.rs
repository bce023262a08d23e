//! A bounded supply of equal buffers: the back-pressure between filling and writing.

use crate::buffer::{AlignedBuf, BufferOwner};
use crate::memory::Memory;
use outlive_types::sync::plain::{Condvar, Mutex, MutexGuard};
use std::fmt;
use std::process;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Hands out up to `total_bytes` of memory as buffers of `buffer_bytes` each, and makes takers wait
/// when all are out. It allocates memory at first need and keeps it until the pool is dropped.
///
/// A pool belongs to the process that made it. After a fork the child makes its own: inherited
/// buffers hold zeros, and the child may drop them, which frees them.
pub struct StagingPool {
    buffer_bytes: usize,
    count_max: AtomicUsize,
    state: Mutex<State>,
    freed: Condvar,
    happened: Condvar,
    pid: u32,
}

#[derive(Default)]
struct State {
    free: Vec<Memory>,
    // A buffer is made only when none is free. So this is also the largest number that was out at
    // once since memory was last given back. Buffers that are written off do not count.
    made: usize,
    written_off: usize,
    // Counts the events that a thread without a buffer waits for.
    events: u64,
}

impl StagingPool {
    /// Returns a pool of `total_bytes / buffer_bytes` buffers, at least one.
    ///
    /// # Panics
    /// If `buffer_bytes` is zero.
    pub fn new(total_bytes: usize, buffer_bytes: usize) -> Arc<StagingPool> {
        assert!(buffer_bytes > 0, "staging buffers of 0 bytes hold nothing");
        Arc::new(StagingPool {
            buffer_bytes,
            count_max: AtomicUsize::new((total_bytes / buffer_bytes).max(1)),
            state: Mutex::default(),
            freed: Condvar::new(),
            happened: Condvar::new(),
            pid: process::id(),
        })
    }

    /// Returns a buffer; waits until one is free.
    #[expect(clippy::disallowed_methods, reason = "it waits on")]
    pub fn take(self: &Arc<Self>) -> AlignedBuf {
        loop {
            if let Some(buffer) = self.take_timeout(Duration::from_secs(1)) {
                return buffer;
            }
        }
    }

    /// Returns a buffer if one is free now. It still holds the bytes of its last use.
    pub fn try_take(self: &Arc<Self>) -> Option<AlignedBuf> {
        let memory = self.pop(&mut self.lock())?;
        self.dress(memory)
    }

    /// Returns a buffer; waits at most `timeout` for a free one. If there is no memory for a new
    /// one, returns `None`.
    pub fn take_timeout(self: &Arc<Self>, timeout: Duration) -> Option<AlignedBuf> {
        if let Some(buffer) = self.try_take() {
            return Some(buffer);
        }
        let until = Instant::now() + timeout;
        let mut state = self.lock();
        loop {
            if let Some(memory) = self.pop(&mut state) {
                drop(state);
                return self.dress(memory);
            }
            let left = until.checked_duration_since(Instant::now())?;
            let waited = self.freed.wait_timeout(state, left);
            state = waited.0;
        }
    }

    /// Returns unused memory to the system, as long as there is more than `bytes` in all.
    pub fn keep(&self, bytes: usize) {
        let mut state = self.lock();
        let mut given = Vec::new();
        while state.made * self.buffer_bytes > bytes {
            let Some(memory) = state.free.pop() else { break };
            state.made -= 1;
            given.push(memory);
        }
        drop(state);
    }

    /// Limits the pool to `bytes` from now on, but at least one buffer. Buffers that are out stay
    /// out.
    pub fn limit(&self, bytes: usize) {
        self.count_max.store((bytes / self.buffer_bytes).max(1), Ordering::Relaxed);
        self.keep(bytes);
    }

    /// Length of each buffer.
    pub fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// Length of all buffers that may be out at once; a multiple of `buffer_bytes`.
    pub fn total_bytes(&self) -> usize {
        self.count_max() * self.buffer_bytes
    }

    /// Most bytes that were out at once, since memory was last [given back](StagingPool::keep).
    pub fn peak_bytes(&self) -> usize {
        self.lock().made * self.buffer_bytes
    }

    /// Number of events: returns of a buffer, write-offs, and calls of [`StagingPool::tell`].
    pub fn events(&self) -> u64 {
        self.lock().events
    }

    /// Waits until [`StagingPool::events`] differs from `seen`.
    pub fn wait_event(&self, seen: u64) {
        let mut state = self.lock();
        while state.events == seen {
            state = self.happened.wait(state);
        }
    }

    /// Wakes threads that wait for a buffer, since something happened that they must look at.
    pub fn tell(&self) {
        if process::id() == self.pid {
            self.note_event(&mut self.lock());
        }
    }

    fn note_event(&self, state: &mut State) {
        state.events += 1;
        self.happened.notify_all();
    }

    fn count_max(&self) -> usize {
        self.count_max.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns `Some(None)` if there is room for one more buffer, which the caller must allocate.
    fn pop(&self, state: &mut State) -> Option<Option<Memory>> {
        if let Some(memory) = state.free.pop() {
            return Some(Some(memory));
        }
        (state.made < self.count_max()).then(|| {
            state.made += 1;
            None
        })
    }

    // Runs without the lock: the page faults of a new buffer delay no other thread.
    fn dress(self: &Arc<Self>, memory: Option<Memory>) -> Option<AlignedBuf> {
        let memory = memory.or_else(|| Memory::try_not_inherited(self.buffer_bytes));
        if memory.is_none() {
            self.lock().made -= 1;
        }
        let home: Weak<dyn BufferOwner> = Arc::<Self>::downgrade(self);
        Some(AlignedBuf::pooled(memory?, home))
    }
}

impl BufferOwner for StagingPool {
    fn put_back(&self, memory: Memory) {
        // In a forked child the lock may have been inherited from a thread that does not exist
        // there.
        if process::id() == self.pid {
            let mut state = self.lock();
            if state.made > self.count_max() {
                state.made -= 1;
                drop(state);
                return;
            }
            state.free.push(memory);
            self.freed.notify_one();
            self.note_event(&mut state);
        }
    }

    fn write_off(&self) -> bool {
        if process::id() != self.pid {
            return false;
        }
        let mut state = self.lock();
        if state.written_off >= self.count_max() {
            return false;
        }
        state.written_off += 1;
        state.made = state.made.saturating_sub(1);
        self.freed.notify_one();
        self.note_event(&mut state);
        true
    }

    fn end_write_off(&self) {
        if process::id() == self.pid {
            let mut state = self.lock();
            state.written_off = state.written_off.saturating_sub(1);
        }
    }
}

impl fmt::Debug for StagingPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StagingPool({} x {} bytes)", self.count_max(), self.buffer_bytes)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a time-out is what is tested")]

    use super::*;
    use crate::asleep::{this_thread, until_asleep};
    use std::thread;

    #[test]
    fn no_event_is_missed() {
        let pool = StagingPool::new(8192, 8192);
        let (seen, held) = (pool.events(), pool.take());
        // The event comes before the wait.
        drop(held);
        pool.wait_event(seen);
        let seen = pool.events();
        let (sender, receiver) = std::sync::mpsc::channel();
        let waiter = {
            let pool = pool.clone();
            thread::spawn(move || {
                sender.send(this_thread()).unwrap();
                pool.wait_event(seen);
            })
        };
        until_asleep(&receiver.recv().unwrap());
        pool.tell();
        waiter.join().unwrap();
        assert_eq!(pool.events(), seen + 1);
    }

    #[test]
    fn unused_buffers_are_given_back() {
        let pool = StagingPool::new(4 * 8192, 8192);
        let mut held: Vec<_> = (0..4).map(|_| pool.take()).collect();
        held.truncate(3);
        pool.keep(8192);
        assert_eq!(pool.peak_bytes(), 3 * 8192, "what is out stays");
        held.truncate(1);
        pool.keep(2 * 8192);
        assert_eq!(pool.peak_bytes(), 2 * 8192);
        held.extend((0..3).map(|_| pool.try_take().expect("as many as before")));
        assert!(pool.try_take().is_none());
        drop(held);
        pool.keep(0);
        assert_eq!(pool.peak_bytes(), 0);
        assert_eq!(pool.take().len(), 8192);
    }

    #[test]
    fn a_limit_holds_for_buffers_that_are_handed_out_from_then_on() {
        let pool = StagingPool::new(4 * 8192, 8192);
        let mut held: Vec<_> = (0..4).map(|_| pool.take()).collect();
        pool.limit(2 * 8192);
        assert_eq!((pool.total_bytes(), pool.peak_bytes()), (2 * 8192, 4 * 8192));
        held.truncate(3);
        assert!(pool.try_take().is_none(), "three are out");
        held.truncate(1);
        held.push(pool.try_take().expect("one is out"));
        assert!(pool.try_take().is_none());
        drop(held);
        pool.limit(0);
        assert_eq!((pool.total_bytes(), pool.peak_bytes()), (8192, 0));
    }

    #[test]
    fn another_buffer_takes_the_place_of_one_that_is_written_off() {
        let pool = StagingPool::new(2 * 8192, 8192);
        let (mut first, second) = (pool.take(), pool.take().share());
        let rest = first.split_off(4096);
        let waiter = {
            let (sender, receiver) = std::sync::mpsc::channel();
            let pool = pool.clone();
            let taking = thread::spawn(move || {
                sender.send(this_thread()).unwrap();
                pool.take()
            });
            until_asleep(&receiver.recv().unwrap());
            taking
        };
        let hold = rest.hold();
        hold.write_off();
        first.hold().write_off(); // the same memory
        let third = waiter.join().unwrap();
        assert!(pool.try_take().is_none());
        second.hold().write_off();
        let fourth = pool.try_take().expect("two are written off");
        third.hold().write_off();
        assert!(pool.try_take().is_none(), "no more than as many again");
        // A written-off buffer has left the pool; when it is dropped, another may be written off.
        drop((first, rest, second));
        hold.write_off();
        assert!(pool.try_take().is_none());
        third.hold().write_off();
        let fifth = pool.try_take().expect("one is written off");
        drop((third, fourth, fifth));
        assert_eq!(pool.peak_bytes(), 2 * 8192);
    }

    #[test]
    fn never_hands_out_more_than_its_total() {
        let pool = StagingPool::new(3 * 8192 + 100, 8192);
        assert_eq!((pool.total_bytes(), pool.peak_bytes()), (3 * 8192, 0));
        let held: Vec<_> = (0..3).map(|_| pool.take()).collect();
        assert!(pool.try_take().is_none());
        assert!(pool.take_timeout(Duration::from_millis(5)).is_none());
        drop(held);
        let again: Vec<_> = (0..3).map(|_| pool.try_take().expect("all came back")).collect();
        assert!(again.iter().all(|buffer| buffer.len() == 8192));
        assert_eq!(pool.peak_bytes(), 3 * 8192);
    }

    #[test]
    fn a_taker_waits_for_a_buffer_from_another_thread() {
        let pool = StagingPool::new(4096, 4096);
        let held = pool.take();
        let (sender, receiver) = std::sync::mpsc::channel();
        let waiter = thread::spawn({
            let pool = pool.clone();
            move || {
                sender.send(this_thread()).unwrap();
                pool.take().len()
            }
        });
        until_asleep(&receiver.recv().unwrap());
        drop(held);
        assert_eq!(waiter.join().unwrap(), 4096);
        assert_eq!(pool.peak_bytes(), 4096);
    }

    #[test]
    fn a_buffer_may_outlive_its_pool() {
        let pool = StagingPool::new(1, 4096);
        let mut buffer = pool.take();
        drop(pool);
        buffer[4095] = 1;
    }

    #[test]
    fn takers_in_a_crowd_share_a_small_pool() {
        let pool = StagingPool::new(2 * 4096, 4096);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let mut buffer = pool.take();
                        buffer[0] = buffer[0].wrapping_add(1);
                    }
                });
            }
        });
        assert!(pool.peak_bytes() <= pool.total_bytes());
    }
}
