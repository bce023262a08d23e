//! Excludes concurrent actions of the threads of one process: our clones, memory that a clone's
//! child does not get, and forks of the program.
//!
//! A child may be a copy of this process at any moment, and it must not wait for a thread that it
//! does not have. So each state here names a process, and the state of another process counts for
//! nothing.

use super::sys;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::yield_now;

/// The process with a thread that clones or reads its mappings; 0 if there is none.
static CLONING: AtomicU32 = AtomicU32::new(0);
/// The process that withholds memory from children; 0 if there is none.
static KEEPING: AtomicU32 = AtomicU32::new(0);
/// Threads of the program that are forking.
static FORKING: AtomicU32 = AtomicU32::new(0);

/// One thread clones, or reads mappings, until this is dropped.
#[derive(Debug)]
pub(super) struct CloneGuard(());

impl CloneGuard {
    /// Waits until no other thread holds the guard, which takes milliseconds.
    pub fn wait() -> CloneGuard {
        let own = std::process::id();
        let mut there = 0;
        while let Err(holder) =
            CLONING.compare_exchange(there, own, Ordering::SeqCst, Ordering::SeqCst)
        {
            // A guard of another process was copied with its memory.
            there = if holder == own { 0 } else { holder };
            yield_now();
        }
        CloneGuard(())
    }

    /// Makes threads of the program that begin to fork wait until the result is dropped. `None` if
    /// one is forking already, which may wait for anything, or if forks are not seen.
    pub fn hold_forks(&self) -> Option<HeldForks> {
        if !forks_are_seen() {
            return None;
        }
        KEEPING.store(std::process::id(), Ordering::SeqCst);
        let held = HeldForks(());
        (FORKING.load(Ordering::SeqCst) == 0).then_some(held)
    }
}

impl Drop for CloneGuard {
    fn drop(&mut self) {
        CLONING.store(0, Ordering::SeqCst);
    }
}

/// No thread of the program forks through libc.
#[derive(Debug)]
pub(super) struct HeldForks(());

impl Drop for HeldForks {
    fn drop(&mut self) {
        KEEPING.store(0, Ordering::SeqCst);
    }
}

/// Whether forks of the program are counted. The first call starts that and returns false: a thread
/// may be in a fork that began before.
fn forks_are_seen() -> bool {
    static ASKED: AtomicBool = AtomicBool::new(false);
    static SEEN: AtomicBool = AtomicBool::new(false);
    if ASKED.swap(true, Ordering::SeqCst) {
        return SEEN.load(Ordering::SeqCst);
    }
    SEEN.store(sys::at_forks(before_fork, after_fork, after_fork_in_child), Ordering::SeqCst);
    false
}

pub(super) extern "C" fn before_fork() {
    FORKING.fetch_add(1, Ordering::SeqCst);
    while KEEPING.load(Ordering::SeqCst) == std::process::id() {
        yield_now();
    }
}

pub(super) extern "C" fn after_fork() {
    FORKING.fetch_sub(1, Ordering::SeqCst);
}

/// Resets the states: the child does not have the other threads.
extern "C" fn after_fork_in_child() {
    for state in [&CLONING, &KEEPING, &FORKING] {
        state.store(0, Ordering::SeqCst);
    }
}
