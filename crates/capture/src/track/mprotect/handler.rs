//! The SIGSEGV handler: notes first writes to armed pages, and passes on all other faults.
//!
//! It runs on the faulting thread, on its alternate stack if it has one, with all signals blocked.
//! It takes no lock and allocates nothing. Its system calls are mprotect and, before a crash, those
//! that read `/proc/self/maps`.

use super::super::Refusal;
use super::maps;
use super::table::{Guard, Slot, Table, table};
use libc::{c_int, c_void, siginfo_t, ucontext_t};
use rustix::mm::{MprotectFlags, mprotect};
use std::mem::MaybeUninit;
use std::ops::ControlFlow;
use std::ptr::{null, null_mut};
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr};

/// The signal's action before ours. Never freed: a handler may be reading it.
static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(null_mut());
/// True once a previous handler was called that must be called only once (SA_RESETHAND).
static SPENT: AtomicBool = AtomicBool::new(false);

/// `si_code` of a fault by the rights of a mapping (asm-generic/siginfo.h); libc lacks it.
const SEGV_ACCERR: c_int = 2;

/// Returns the signal's present action.
fn current() -> Result<libc::sigaction, Refusal> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a query writes an action to the given memory.
    let result = unsafe { libc::sigaction(libc::SIGSEGV, null(), action.as_mut_ptr()) };
    if result != 0 {
        let error = std::io::Error::last_os_error();
        return Err(Refusal(format!("the action of SIGSEGV cannot be asked for ({error})")));
    }
    // SAFETY: it was written, and all zero is an action as well.
    Ok(unsafe { action.assume_init() })
}

fn is_ours(action: &libc::sigaction) -> bool {
    action.sa_sigaction == on_fault as *const () as usize
}

/// Makes sure that faults come to our handler.
///
/// # Errors
/// Another handler was installed since. Ours is not put in front of it again: each might pass a
/// fault on to the other.
pub(super) fn install(_: &Guard) -> Result<(), Refusal> {
    let found = current()?;
    if is_ours(&found) {
        return Ok(());
    }
    let nobody = [libc::SIG_DFL, libc::SIG_IGN].contains(&found.sa_sigaction);
    if !nobody && !PREVIOUS.load(Acquire).is_null() {
        return Err(displaced());
    }
    SPENT.store(false, SeqCst);
    PREVIOUS.store(Box::into_raw(Box::new(found)), Release);
    let mut ours = libc::sigaction {
        sa_sigaction: on_fault as *const () as usize,
        sa_flags: libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART,
        ..found
    };
    // SAFETY: fills the given set. The handler has the signature that SA_SIGINFO asks for, and does
    // only what a handler may (see there).
    let result = unsafe {
        libc::sigfillset(&raw mut ours.sa_mask);
        libc::sigaction(libc::SIGSEGV, &raw const ours, null_mut())
    };
    match result {
        0 => Ok(()),
        _ => Err(Refusal("SIGSEGV cannot be handled".into())),
    }
}

/// Refuses if faults go to another handler.
pub(super) fn check() -> Result<(), Refusal> {
    if is_ours(&current()?) { Ok(()) } else { Err(displaced()) }
}

fn displaced() -> Refusal {
    Refusal(
        "another handler of SIGSEGV was installed after ours, so first writes are not noted any \
         more: install it (Python's faulthandler, for one) before the tracker is made"
            .into(),
    )
}

/// Handles SIGSEGV.
extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: both functions get the kernel's arguments; see there.
    unsafe {
        if !is_noted(info, context) {
            hand_on(signal, info, context);
        }
    }
}

/// Handles a first write to armed memory. False if the fault is not one, or cannot be resolved.
///
/// # Safety
/// `info` and `context` are what the kernel passes to a handler with SA_SIGINFO.
unsafe fn is_noted(info: *const siginfo_t, context: *const c_void) -> bool {
    // SAFETY: as promised above; this code's `info` has an address if it is a fault.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    // SAFETY: as promised above.
    if code != SEGV_ACCERR || !unsafe { is_write(context, address) } {
        return false;
    }
    let Some(table) = table() else { return false };
    // SAFETY: the C library's `errno` of this thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    let phase = table.enter();
    let noted = match table.find(address) {
        Some(slot) if slot.fault(table, address) => true,
        // The write may succeed by now: another thread has opened the page, or released its range
        // between the fault and here. Otherwise it faults again.
        _ if table.try_again(thread(), address) => true,
        _ => moved(table, address),
    };
    table.leave(phase);
    // SAFETY: as above.
    unsafe {
        if *errno != before {
            *errno = before;
        }
    }
    noted
}

/// Number of the calling thread.
fn thread() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// True if the instruction wanted to write. Where that is unknown, true unless the instruction
/// itself could not be fetched.
///
/// # Safety
/// `context` is what the kernel passes to a handler with SA_SIGINFO.
unsafe fn is_write(context: *const c_void, address: usize) -> bool {
    let context = context.cast::<ucontext_t>();
    #[cfg(target_arch = "x86_64")]
    {
        const WRITE: i64 = 2; // bit 1 of the page fault's error code
        let _ = address;
        // SAFETY: as promised above.
        unsafe { (*context).uc_mcontext.gregs[libc::REG_ERR as usize] & WRITE != 0 }
    }
    #[cfg(target_arch = "aarch64")]
    {
        // SAFETY: as promised above.
        unsafe { (*context).uc_mcontext.pc as usize != address }
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        let _ = (context, address);
        true
    }
}

/// Handles a write to memory that no tracker watches. If mremap moved it here with our protection,
/// that is removed: the program did nothing wrong. A read-only mapping without a file counts as
/// moved if a watched range has lost armed memory.
fn moved(table: &Table, address: usize) -> bool {
    let mut found = None;
    let mut buffer = [0; 512];
    let read = maps::walk(&mut buffer, |mapping| {
        if mapping.start <= address && address < mapping.end {
            found = Some(mapping);
        }
        if mapping.end > address { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let Some(here) = found.filter(|m| read.is_ok() && m.is_data() && !m.write) else {
        return false;
    };
    if !table.watched().any(|slot| has_lost_armed(slot, &mut buffer)) {
        return false;
    }
    let flags = MprotectFlags::READ | MprotectFlags::WRITE;
    // SAFETY: private memory without a file, which the program wants to write and which we have
    // most likely protected. At worst a write succeeds that the program had forbidden itself.
    unsafe { mprotect(here.start as *mut _, here.end - here.start, flags) }.is_ok()
}

/// True if armed pages of a range are no longer mapped.
fn has_lost_armed(slot: &Slot, buffer: &mut [u8]) -> bool {
    let (mut next, mut lost) = (slot.start(), false);
    let read = maps::walk(buffer, |mapping| {
        if mapping.end <= next {
            return ControlFlow::Continue(());
        }
        let gap = mapping.start.min(slot.end());
        lost |= next < gap && slot.has_armed(next, gap);
        let (start, end) = (mapping.start.max(next), mapping.end.min(slot.end()));
        let kept = mapping.is_data() && !mapping.write;
        lost |= start < end && !kept && slot.has_armed(start, end);
        next = next.max(mapping.end);
        if lost || next >= slot.end() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    read.is_ok() && lost
}

/// Does what would have happened without our handler.
///
/// # Safety
/// The arguments are what the kernel passes to a handler with SA_SIGINFO.
unsafe fn hand_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: published before the handler was installed, and never freed.
    let Some(previous) = (unsafe { PREVIOUS.load(Acquire).as_ref() }) else { return };
    // SAFETY: as promised above. A positive code is a fault's; others were sent.
    let is_fault = unsafe { (*info).si_code > 0 };
    let once = previous.sa_flags & libc::SA_RESETHAND != 0;
    let spent = once && SPENT.swap(true, SeqCst);
    let action = if spent { libc::SIG_DFL } else { previous.sa_sigaction };
    if action == libc::SIG_IGN && !is_fault {
        return;
    }
    if action == libc::SIG_DFL || action == libc::SIG_IGN {
        // Back to the default. A fault happens again when we return. A signal is sent again, and
        // comes as soon as it is no longer blocked.
        // SAFETY: an action of zeros is the default one; the calls are allowed in handlers.
        unsafe {
            let default = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
            libc::sigaction(signal, &raw const default, null_mut());
            if !is_fault {
                libc::raise(signal);
            }
        }
        return;
    }
    // SAFETY: the context is the kernel's; its mask is restored after us. The signals of the
    // previous handler's mask are blocked, then it is called with its declared signature.
    unsafe {
        let mut mask = (*context.cast::<ucontext_t>()).uc_sigmask;
        for number in 1..=64 {
            if libc::sigismember(&raw const previous.sa_mask, number) == 1 {
                libc::sigaddset(&raw mut mask, number);
            }
        }
        if previous.sa_flags & libc::SA_NODEFER == 0 {
            libc::sigaddset(&raw mut mask, signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, null_mut());
        if previous.sa_flags & libc::SA_SIGINFO != 0 {
            type Full = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
            std::mem::transmute::<usize, Full>(action)(signal, info, context);
        } else {
            std::mem::transmute::<usize, extern "C" fn(c_int)>(action)(signal);
        }
    }
}
