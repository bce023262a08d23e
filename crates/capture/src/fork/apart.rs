//! Keeps apart what threads of one process do at the same time: clones of ours, memory that is kept from a clone's
//! child, and forks of the program.
//!
//! A child may be a copy of this process at any moment. So no state here makes a child wait for a thread that it does
//! not have: it names the process, and that of another one counts for nothing.

use super::sys;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::yield_now;

/// The process of which a thread clones, or reads its mappings; 0 if none does.
static CLONING: AtomicU32 = AtomicU32::new(0);
/// The process that keeps memory from children; 0 if none does.
static KEEPING: AtomicU32 = AtomicU32::new(0);
/// Threads of the program that are forking.
static FORKING: AtomicU32 = AtomicU32::new(0);

/// One thread clones, or reads mappings, until this is dropped.
#[derive(Debug)]
pub(super) struct CloneGuard(());

impl CloneGuard {
    /// Waits for the turn: others take it for milliseconds.
    pub fn wait() -> CloneGuard {
        let own = std::process::id();
        let mut there = 0;
        while let Err(holder) =
            CLONING.compare_exchange(there, own, Ordering::SeqCst, Ordering::SeqCst)
        {
            // One of another process was copied with its memory.
            there = if holder == own { 0 } else { holder };
            yield_now();
        }
        CloneGuard(())
    }

    /// Has threads of the program that begin to fork wait until this is dropped; `None` if one is forking already, which
    /// may wait for anything, or if forks are not seen.
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

/// No thread of the program forks by libc.
#[derive(Debug)]
pub(super) struct HeldForks(());

impl Drop for HeldForks {
    fn drop(&mut self) {
        KEEPING.store(0, Ordering::SeqCst);
    }
}

/// Whether forks of the program are counted. Not at the first call, which sees to it: a thread may be in a fork that
/// began before.
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

/// The other threads are not there.
extern "C" fn after_fork_in_child() {
    for state in [&CLONING, &KEEPING, &FORKING] {
        state.store(0, Ordering::SeqCst);
    }
}
