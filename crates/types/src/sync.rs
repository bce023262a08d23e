//! The locks, waits and threads by which one part of the store waits for another. They are the
//! standard library's without poison: after a panic the lock is free, and its value is whole, since
//! no holder leaves it half changed. A test may give its threads a [`Scheduler`]. It then decides
//! which thread continues whenever one of them waits or yields (the crate `sim`). Threads without
//! one pay a single relaxed load. No scheduler sees the locks of [`plain`].

pub mod plain;

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Decides which of its threads continues. Only one of them runs at a time.
pub trait Scheduler: Send + Sync {
    /// Offers other threads a turn although the calling thread could continue; `what` is its next
    /// step.
    fn pause(&self, what: &str);

    /// Waits until `time` has passed; other threads that can continue do so.
    fn sleep(&self, time: Duration);

    /// Stops the calling thread until another one calls [`Scheduler::wake`] with this key.
    fn wait(&self, key: usize);

    /// As [`Scheduler::wait`], but at most for `time`; returns true if it has passed.
    fn wait_for(&self, key: usize, time: Duration) -> bool;

    /// Lets all threads continue that wait with this key.
    fn wake(&self, key: usize);

    /// Starts a thread that this scheduler also controls.
    ///
    /// # Errors
    /// Errors of the system.
    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<()>;
}

/// Number of threads that have a scheduler.
static SCHEDULED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static MINE: RefCell<Option<Arc<dyn Scheduler>>> = const { RefCell::new(None) };
}

fn scheduler() -> Option<Arc<dyn Scheduler>> {
    if SCHEDULED.load(Ordering::Relaxed) == 0 {
        return None;
    }
    MINE.try_with(|mine| mine.borrow().clone()).ok().flatten()
}

/// Does `work` in a thread that `scheduler` controls. Further threads must be started by [`spawn`]
/// from within.
pub fn scheduled<T>(scheduler: Arc<dyn Scheduler>, work: impl FnOnce() -> T) -> T {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            MINE.with(|mine| mine.borrow_mut().take());
            SCHEDULED.fetch_sub(1, Ordering::Relaxed);
        }
    }
    SCHEDULED.fetch_add(1, Ordering::Relaxed);
    MINE.with(|mine| *mine.borrow_mut() = Some(scheduler));
    let _leave = Leave;
    work()
}

/// Offers other threads of the same scheduler a turn before this one does `what`; without a
/// scheduler does nothing.
pub fn pause(what: &str) {
    if let Some(scheduler) = scheduler() {
        scheduler.pause(what);
    }
}

/// As [`std::thread::sleep`].
pub fn sleep(time: Duration) {
    match scheduler() {
        Some(scheduler) => scheduler.sleep(time),
        None => std::thread::sleep(time),
    }
}

/// Starts a thread that no other thread joins.
///
/// # Errors
/// Errors of the system.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    match scheduler() {
        Some(scheduler) => scheduler.spawn(name, Box::new(work)),
        None => std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop),
    }
}

/// As [`std::sync::Mutex`].
#[derive(Default)]
pub struct Mutex<T: ?Sized>(plain::Mutex<T>);

/// As [`std::sync::MutexGuard`].
pub struct MutexGuard<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    // Taken only by `drop` and by a condition's wait.
    guard: Option<plain::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    /// As [`std::sync::Mutex::new`].
    pub const fn new(value: T) -> Mutex<T> {
        Mutex(plain::Mutex::new(value))
    }

    /// As [`std::sync::Mutex::into_inner`].
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// As [`std::sync::Mutex::lock`].
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let Some(scheduler) = scheduler() else {
            return self.guard(self.0.lock());
        };
        loop {
            match self.0.try_lock() {
                Some(guard) => return self.guard(guard),
                None => scheduler.wait(self.key()),
            }
        }
    }

    /// The lock, or `None` while another thread holds it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().map(|guard| self.guard(guard))
    }

    /// As [`std::sync::Mutex::get_mut`].
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }

    fn guard<'a>(&'a self, guard: plain::MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        MutexGuard { mutex: self, guard: Some(guard) }
    }

    fn key(&self) -> usize {
        std::ptr::from_ref(self).cast::<()>() as usize
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'a, T: ?Sized> MutexGuard<'a, T> {
    /// Releases the lock, and wakes the waiting threads of the scheduler; returns the scheduler, if
    /// any.
    fn give_up(&mut self) -> Option<Arc<dyn Scheduler>> {
        drop(self.guard.take()?);
        let scheduler = scheduler()?;
        scheduler.wake(self.mutex.key());
        Some(scheduler)
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        if let Some(scheduler) = self.give_up()
            && !std::thread::panicking()
        {
            scheduler.pause("unlock");
        }
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.guard.as_ref().expect("a guard in use has its lock")
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_mut().expect("a guard in use has its lock")
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// As [`std::sync::Condvar`].
#[derive(Debug, Default)]
pub struct Condvar(plain::Condvar);

impl Condvar {
    /// As [`std::sync::Condvar::new`].
    pub const fn new() -> Condvar {
        Condvar(plain::Condvar::new())
    }

    /// As [`std::sync::Condvar::wait`].
    pub fn wait<'a, T>(&self, mut guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        let mutex = guard.mutex;
        if scheduler().is_none() {
            let inner = guard.guard.take().expect("a guard in use has its lock");
            return mutex.guard(self.0.wait(inner));
        }
        if let Some(scheduler) = guard.give_up() {
            scheduler.wait(self.key());
        }
        mutex.lock()
    }

    /// As [`std::sync::Condvar::wait_while`].
    pub fn wait_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        while condition(&mut *guard) {
            guard = self.wait(guard);
        }
        guard
    }

    /// As [`std::sync::Condvar::wait_timeout`]; true if the time has passed, by the scheduler's
    /// clock if there is one.
    pub fn wait_timeout<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> (MutexGuard<'a, T>, bool) {
        let mutex = guard.mutex;
        if scheduler().is_some() {
            let passed = guard.give_up().is_none_or(|it| it.wait_for(self.key(), timeout));
            return (mutex.lock(), passed);
        }
        let inner = guard.guard.take().expect("a guard in use has its lock");
        let (inner, passed) = self.0.wait_timeout(inner, timeout);
        (mutex.guard(inner), passed)
    }

    /// As [`std::sync::Condvar::notify_all`].
    pub fn notify_all(&self) {
        self.0.notify_all();
        if let Some(scheduler) = scheduler() {
            scheduler.wake(self.key());
        }
    }

    fn key(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn without_a_scheduler_they_are_the_standard_librarys() {
        let shared = Arc::new((Mutex::new(0), Condvar::new()));
        let there = shared.clone();
        spawn("counts", move || {
            for _ in 0..3 {
                *there.0.lock() += 1;
                there.1.notify_all();
            }
        })
        .unwrap();
        let guard = shared.1.wait_while(shared.0.lock(), |count| *count < 3);
        assert_eq!(*guard, 3);
        let (guard, timed_out) = shared.1.wait_timeout(guard, Duration::from_millis(1));
        assert!(timed_out && *guard == 3);
        drop(guard);
        let there = shared.clone();
        let panicked = thread::spawn(move || {
            let _guard = there.0.lock();
            panic!("on purpose");
        });
        panicked.join().unwrap_err();
        assert_eq!(*shared.0.lock(), 3);
        pause("nothing");
    }
}
