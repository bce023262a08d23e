//! The program's threads, and how they are made to stand: each is sent a signal, whose handler waits.
//! One that is within the SIGSEGV handler of `mprotect` comes out of it first, as that blocks signals.
//!
//! A thread may stand while it holds a lock of the C library, so whoever works meanwhile must do
//! without: our thread has an arena of `malloc` to itself, and starts and ends threads only here. (A
//! program that is stopped while it starts a thread or loads a library could still be in our way; those
//! that are measured do neither while they are.)

use libc::c_int;
use std::fs;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicI32, AtomicU32};
use std::thread;
use std::time::{Duration, Instant};

/// How long threads have to stand.
const PATIENCE: Duration = Duration::from_secs(5);

/// Odd: who gets the signal stands until it is another.
static TURN: AtomicU32 = AtomicU32::new(0);
static STANDING: AtomicU32 = AtomicU32::new(0);
/// The thread that works while the others stand.
static OURS: AtomicI32 = AtomicI32::new(0);

fn this_thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Whether the calling thread is ours. (Those that work for it allocate nothing large.)
pub fn is_ours() -> bool {
    OURS.load(SeqCst) == this_thread()
}

/// Not one that programs use: the last but two.
fn signal() -> c_int {
    libc::SIGRTMAX() - 2
}

/// To be called once, by the thread that will stop the others.
pub fn begin() {
    OURS.store(this_thread(), SeqCst);
    let handler: extern "C" fn(c_int) = stand;
    // SAFETY: a mask and an action of zeros are whole, and filled below. The handler does only what one
    // may: it waits, and changes nothing but `errno`, which it puts back. The program's signals are
    // for its own threads; faults of this one cannot be blocked.
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

/// As long as this lives all threads but the calling one stand.
pub struct Standing(());

impl Drop for Standing {
    fn drop(&mut self) {
        TURN.fetch_add(1, SeqCst);
        // SAFETY: wakes whoever waits for the word, which lives for ever.
        unsafe {
            let wake = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
            libc::syscall(libc::SYS_futex, TURN.as_ptr(), wake, c_int::MAX);
        }
    }
}

/// Makes all other threads stand; `None` if one of them does not. Then it is not to be tried again: that
/// one may get its signal later.
pub fn stop() -> Option<Standing> {
    let process = std::process::id().cast_signed();
    let begun = Instant::now();
    STANDING.store(0, SeqCst);
    TURN.fetch_add(1, SeqCst);
    let stopping = Standing(());
    let mut told: Vec<i32> = Vec::new();
    while begun.elapsed() < PATIENCE {
        // Who stood before the list was made can start no thread that is not on it.
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

/// The handler.
extern "C" fn stand(_: c_int) {
    let turn = TURN.load(SeqCst);
    if turn.is_multiple_of(2) {
        return;
    }
    // SAFETY: the C library's own place for the thread's `errno`.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    STANDING.fetch_add(1, SeqCst);
    while TURN.load(SeqCst) == turn {
        let wait = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        let no_limit = null_mut::<libc::timespec>();
        // SAFETY: waits for a word that lives for ever to be another, or for nothing.
        unsafe { libc::syscall(libc::SYS_futex, TURN.as_ptr(), wait, turn, no_limit) };
    }
    // SAFETY: as above.
    unsafe { *errno = before };
}
