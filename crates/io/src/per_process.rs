//! State of one process: a forked child begins with a copy, or with new state.
#![allow(unsafe_code)]

use outlive_types::sync::plain::{Mutex, MutexGuard};
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A value behind a lock, for a `static`. A plain `static` lock stays locked in a child forever if
/// another thread of the parent held it at the fork: that thread does not exist in the child. Each
/// process recreates this one.
#[derive(Debug)]
pub struct PerProcess<T: 'static> {
    newest: AtomicPtr<Of<T>>,
    /// Creates the value, from the parent's if no thread had locked that at the fork.
    make: fn(Option<&T>) -> T,
}

#[derive(Debug)]
struct Of<T> {
    process: u32,
    value: Mutex<T>,
}

impl<T: Send + 'static> PerProcess<T> {
    /// `make` is called once in each process that uses the value, and perhaps more often if several
    /// threads do at the same moment.
    pub const fn new(make: fn(Option<&T>) -> T) -> PerProcess<T> {
        PerProcess { newest: AtomicPtr::new(ptr::null_mut()), make }
    }

    /// Locks and returns this process's value.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.of_this_process().value.lock()
    }

    fn of_this_process(&self) -> &Of<T> {
        let process = process::id();
        loop {
            let newest = self.newest.load(Ordering::Acquire);
            // SAFETY: the pointer is null, or came from `Box::into_raw` below and is freed only
            // with `self`.
            let known: Option<&Of<T>> = unsafe { newest.as_ref() };
            if let Some(known) = known.filter(|known| known.process == process) {
                return known;
            }
            // A thread that held the lock at the fork may have left the value half changed.
            let old = known.and_then(|known| known.value.try_lock());
            let value = Mutex::new((self.make)(old.as_deref()));
            drop(old);
            let made = Box::into_raw(Box::new(Of { process, value }));
            let (set, seen) = (Ordering::AcqRel, Ordering::Acquire);
            if self.newest.compare_exchange(newest, made, set, seen).is_err() {
                // SAFETY: it came from a box a moment ago, and no other thread has seen it.
                drop(unsafe { Box::from_raw(made) });
            }
        }
    }
}

impl<T: 'static> Drop for PerProcess<T> {
    /// Drops this process's value. The values of its ancestors stay: the things they own, such as
    /// threads, are not in this process.
    fn drop(&mut self) {
        let newest = *self.newest.get_mut();
        // SAFETY: the pointer is null, or came from `Box::into_raw` above. Guards borrow `self`, so
        // none exists.
        let known = unsafe { newest.as_ref() };
        if known.is_some_and(|known| known.process == process::id()) {
            // SAFETY: as above; nothing else frees it.
            drop(unsafe { Box::from_raw(newest) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    static COUNT: PerProcess<u32> = PerProcess::new(|old| old.map_or(100, |old| *old));

    /// Returns the result of `work` in a forked child; 255 if the child hangs.
    fn in_a_child(work: impl FnOnce() -> i32) -> i32 {
        // SAFETY: the child calls `work`, which takes no lock of the parent's, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the alarm kills a child that waits forever; `_exit` ends it otherwise.
            unsafe {
                libc::alarm(60);
                libc::_exit(work());
            }
        }
        let mut status = -1;
        // SAFETY: the status may be written.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 255 }
    }

    #[test]
    fn a_value_is_dropped_with_its_owner_but_not_in_a_child() {
        let value = std::sync::Arc::new(());
        let kept: PerProcess<Option<std::sync::Arc<()>>> = PerProcess::new(|_| None);
        drop(PerProcess::<u32>::new(|_| 1)); // its value was never made
        *kept.lock() = Some(value.clone());
        let mut kept = Some(kept);
        let count = in_a_child(|| {
            drop(kept.take());
            std::sync::Arc::strong_count(&value) as i32
        });
        assert_eq!(count, 2, "it is the parent's");
        drop(kept);
        assert_eq!(std::sync::Arc::strong_count(&value), 1);
    }

    #[test]
    fn a_child_takes_over_an_unlocked_value_and_begins_a_locked_one_anew() {
        *COUNT.lock() = 7;
        let count_on = || {
            let mut count = COUNT.lock();
            *count += 1;
            *count as i32
        };
        assert_eq!(in_a_child(count_on), 8);
        // A child's child works as well.
        assert_eq!(in_a_child(|| count_on() + in_a_child(count_on)), 8 + 9);
        let (held, is_held) = channel();
        let (go_on, ends) = channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let _held = COUNT.lock();
                held.send(()).unwrap();
                let _ = ends.recv();
            });
            is_held.recv().unwrap();
            assert_eq!(in_a_child(count_on), 101);
            drop(go_on);
        });
        assert_eq!(*COUNT.lock(), 7);
    }
}
