//! The program's threads, and how they are stopped: each gets a signal whose handler waits.
//!
//! A stopped thread may hold a lock of the C library, so our thread must do without these locks. It
//! has an arena of `malloc` to itself, and starts and ends threads only here. (A program stopped
//! while it starts a thread or loads a library could still block us; the measured programs do
//! neither during the measurement.)

use libc::c_int;
use std::fs;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicI32, AtomicU32};
use std::thread;
use std::time::{Duration, Instant};

/// Longest time for threads to stop.
const PATIENCE: Duration = Duration::from_secs(5);

/// Odd: a thread that gets the signal stands until the value changes.
static TURN: AtomicU32 = AtomicU32::new(0);
static STANDING: AtomicU32 = AtomicU32::new(0);
/// The thread that works while the others stand.
static OURS: AtomicI32 = AtomicI32::new(0);

fn this_thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Whether the calling thread is ours. (Its helpers make no large allocation.)
pub fn is_ours() -> bool {
    OURS.load(SeqCst) == this_thread()
}

/// Returns a signal that programs do not use: the last but two.
fn signal() -> c_int {
    libc::SIGRTMAX() - 2
}

/// Prepares to stop threads. The thread that will stop the others calls it once.
pub fn begin() {
    OURS.store(this_thread(), SeqCst);
    let handler: extern "C" fn(c_int) = stand;
    // SAFETY: a mask and an action of zeros are valid, and filled below. The handler does only what
    // a handler may: it waits, and changes nothing but `errno`, which it restores. The program's
    // signals are for its own threads; faults of this one cannot be blocked.
    unsafe {
        let mut all = MaybeUninit::zeroed().assume_init();
        libc::sigfillset(&raw mut all);
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
        action.sa_mask = all;
        libc::sigaction(signal(), &raw const action, null_mut());
        for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE] {
            libc::sigdelset(&raw mut all, fault);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, null_mut());
    }
}

/// Keeps all threads except the calling one stopped as long as it lives.
pub struct Standing(());

impl Drop for Standing {
    fn drop(&mut self) {
        TURN.fetch_add(1, SeqCst);
        // SAFETY: wakes the threads that wait for the word, which lives forever.
        unsafe {
            let wake = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
            libc::syscall(libc::SYS_futex, TURN.as_ptr(), wake, c_int::MAX);
        }
    }
}

/// Stops all other threads; `None` if one of them does not stop. Then do not try again: that thread
/// may get its signal later.
pub fn stop() -> Option<Standing> {
    let process = std::process::id().cast_signed();
    let begun = Instant::now();
    STANDING.store(0, SeqCst);
    TURN.fetch_add(1, SeqCst);
    let stopping = Standing(());
    let mut told: Vec<i32> = Vec::new();
    while begun.elapsed() < PATIENCE {
        // A thread that stood before the list was made can start no thread that is missing from it.
        let standing = STANDING.load(SeqCst) as usize;
        let threads = threads()?;
        told.retain(|thread| threads.contains(thread));
        let mut are_all_told = true;
        for thread in threads {
            if thread == OURS.load(SeqCst) || told.contains(&thread) {
                continue;
            }
            are_all_told = false;
            // SAFETY: sends a signal that is handled; the thread may be gone.
            if unsafe { libc::syscall(libc::SYS_tgkill, process, thread, signal()) } == 0 {
                told.push(thread);
            }
        }
        if are_all_told && standing == told.len() {
            return Some(stopping);
        }
        thread::yield_now();
    }
    None
}

fn threads() -> Option<Vec<i32>> {
    let entries = fs::read_dir("/proc/self/task").ok()?;
    Some(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// Signal handler.
extern "C" fn stand(_: c_int) {
    let turn = TURN.load(SeqCst);
    if turn.is_multiple_of(2) {
        return;
    }
    // SAFETY: the C library's `errno` of this thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    STANDING.fetch_add(1, SeqCst);
    while TURN.load(SeqCst) == turn {
        let wait = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        let no_limit = null_mut::<libc::timespec>();
        // SAFETY: waits until a word that lives forever changes; it may also return early.
        unsafe { libc::syscall(libc::SYS_futex, TURN.as_ptr(), wait, turn, no_limit) };
    }
    // SAFETY: as above.
    unsafe { *errno = before };
}
