//! System calls of a fork that runs no code of the program, and of reads of its memory: all unsafe
//! code of this module.
#![allow(unsafe_code)]

use outlive_types::BLOCK_BYTES;
use rustix::io::Errno;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Flags of clone(2): no new thread, no signal at its end. So memory is copied on write, and a
/// `wait` of the program does not see the child.
const FLAGS: i32 = libc::CLONE_UNTRACED | libc::CLONE_PIDFD;

/// Blocks every signal in the calling thread, forever. (glibc's own `pthread_sigmask` would omit
/// those that it uses itself.)
pub fn block_signals() {
    let all = u64::MAX;
    // SAFETY: the kernel reads 8 bytes at `all`, which lives; the old mask is not requested.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const all,
            std::ptr::null::<u64>(),
            size_of::<u64>(),
        )
    };
}

/// Copies this process, with all its memory as it is now, into a child. The child sleeps until it
/// is killed, or until the calling thread ends in any way. Returns its process id and a descriptor
/// of it.
///
/// With a `lifeline`, the read end of a pipe, the child instead sleeps until all write ends are
/// closed, and survives this process.
///
/// The child shares the descriptor table, or closes its own but for the lifeline, so that no copy of
/// a descriptor keeps anything open. It runs not one instruction of the program, of libc or of an
/// allocator. It runs only the raw system calls below, on its own copy of this thread's stack. The
/// caller must have blocked all signals: the child inherits that, and so no handler runs in it.
///
/// # Errors
/// Errors of clone(2).
pub fn clone_sleeper(lifeline: Option<&OwnedFd>) -> Result<(i32, OwnedFd), Errno> {
    let parent = std::process::id() as usize;
    // SAFETY: takes no arguments.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) } as usize;
    let lifeline = lifeline.map(|end| end.as_raw_fd() as usize);
    let flags = if lifeline.is_some() { FLAGS } else { FLAGS | libc::CLONE_FILES };
    let flags = flags as u32 as usize;
    let mut pidfd = -1i32;
    // SAFETY: without CLONE_VM this is a fork: the child continues here on a copy of the stack (the
    // stack argument 0 keeps the stack pointer). It goes to `sleep`, which does not return, so that
    // no value of the parent is used or dropped twice. With CLONE_PIDFD the kernel writes an i32 to
    // the third argument, which points to one. The rest is unused.
    let pid = unsafe { raw::syscall(raw::CLONE, [flags, 0, (&raw mut pidfd).addr(), 0, 0]) };
    if pid == 0 {
        match lifeline {
            Some(end) => sleep_on(end),
            None => sleep(parent, thread),
        }
    }
    if pid < 0 {
        return Err(Errno::from_raw_os_error(-pid as i32));
    }
    // SAFETY: the kernel made this descriptor for us.
    Ok((pid as i32, unsafe { OwnedFd::from_raw_fd(pidfd) }))
}

/// Registers functions that libc calls at each fork of this process, in the thread that forks:
/// before, after, and in the child.
pub fn at_forks(
    before: extern "C" fn(),
    after: extern "C" fn(),
    in_child: extern "C" fn(),
) -> bool {
    // SAFETY: the functions exist as long as the process.
    unsafe { libc::pthread_atfork(Some(before), Some(after), Some(in_child)) == 0 }
}

/// Calls `clone`, which must neither allocate nor wait. Its child lacks these ranges, whole pages.
/// So do other children that this process forks meanwhile.
pub fn without<T>(ranges: &[Range<usize>], clone: impl FnOnce() -> T) -> T {
    for range in ranges {
        // Memory that cannot be withheld from the child only costs time.
        let _ = advise(range, libc::MADV_DONTFORK);
    }
    let cloned = clone();
    ranges.iter().for_each(give_back);
    cloned
}

/// Lets children have a range again. The kernel may refuse a part where other threads have mapped
/// something else meanwhile; the rest is given back.
fn give_back(range: &Range<usize>) {
    loop {
        match advise(range, libc::MADV_DOFORK) {
            // Gaps do no harm.
            Ok(()) | Err(Errno::NOMEM) => return,
            // The kernel lacks memory for its own tables, and frees some for that.
            Err(Errno::AGAIN) => std::thread::yield_now(),
            Err(_) if range.len() > BLOCK_BYTES => {
                let starts = range.clone().step_by(BLOCK_BYTES);
                return starts.for_each(|at| give_back(&(at..range.end.min(at + BLOCK_BYTES))));
            }
            Err(_) => return,
        }
    }
}

/// Advises the kernel. If part of a range is unmapped, the kernel still applies it to the rest.
fn advise(range: &Range<usize>, advice: i32) -> Result<(), Errno> {
    let start = std::ptr::without_provenance_mut(range.start);
    // SAFETY: neither advice changes the content of memory, or access to it.
    match unsafe { libc::madvise(start, range.len(), advice) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// Main function of the child. It makes only system calls that take numbers, or a constant.
fn sleep(parent: usize, thread: usize) -> ! {
    let [death, name] = [libc::PR_SET_PDEATHSIG, libc::PR_SET_NAME].map(|what| what as usize);
    // SAFETY: none of these calls has an effect on memory; NAME is 16 bytes that live forever.
    unsafe {
        let armed = raw::syscall(raw::PRCTL, [death, libc::SIGKILL as usize, 0, 0, 0]);
        raw::syscall(raw::PRCTL, [name, NAME.as_ptr().addr(), 0, 0, 0]);
        // The parent may have ended before the first call, or only its thread, by an `exec`: signal
        // 0 checks that. (Parent 0 is in another pid namespace, where its numbers mean nothing.)
        let now = raw::syscall(raw::GETPPID, [0; 5]);
        let is_orphan = match now {
            0 => false,
            _ if now != parent as isize => true,
            _ => {
                let asked = raw::syscall(raw::TGKILL, [parent, thread, 0, 0, 0]);
                asked == -(libc::ESRCH as isize)
            }
        };
        if armed < 0 || is_orphan {
            raw::syscall(raw::EXIT_GROUP, [0; 5]);
        }
        loop {
            raw::syscall(raw::PPOLL, [0; 5]);
        }
    }
}

/// Name of the children.
const NAME: &[u8; 16] = b"outlive-frozen\0\0";

/// Main function of a child that survives its parent, until all write ends of the pipe `lifeline`
/// are closed. It makes only system calls that take numbers, or a constant; no process writes to
/// the pipe, so the last one writes nothing to its byte either.
fn sleep_on(lifeline: usize) -> ! {
    let mut byte = 0u8;
    // SAFETY: descriptors are closed that only this copy of the process has, and no code of the
    // program runs here that could use them. NAME is 16 bytes that live forever; `byte` is one byte.
    unsafe {
        raw::syscall(raw::PRCTL, [libc::PR_SET_NAME as usize, NAME.as_ptr().addr(), 0, 0, 0]);
        // A signal to the whole group of the program must not end its image.
        raw::syscall(raw::SETSID, [0; 5]);
        let below = match lifeline {
            0 => 0,
            _ => raw::syscall(raw::CLOSE_RANGE, [0, lifeline - 1, 0, 0, 0]),
        };
        let above = raw::syscall(raw::CLOSE_RANGE, [lifeline + 1, u32::MAX as usize, 0, 0, 0]);
        if below == 0 && above == 0 {
            raw::syscall(raw::READ, [lifeline, (&raw mut byte).addr(), 1, 0, 0]);
        }
        loop {
            raw::syscall(raw::EXIT_GROUP, [0; 5]);
        }
    }
}

/// Copies bytes at `address` of this process to `into`, by the kernel. Returns their number, at
/// least one.
///
/// It calls `process_vm_writev` on our own process, not `process_vm_readv`. The kernel pins the
/// side that it looks up as another process's. Pinning memory that a child shares would give us a
/// copy of it.
///
/// # Errors
/// EFAULT if the memory is not mapped.
pub fn read_own(address: usize, into: &mut [u8]) -> Result<usize, Errno> {
    let length = into.len();
    let from = libc::iovec { iov_base: std::ptr::without_provenance_mut(address), iov_len: length };
    let to = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: length };
    let own = std::process::id() as libc::pid_t;
    // SAFETY: the kernel writes at most `length` bytes to `into`, which is ours alone. It reads the
    // other address as any argument of a system call, and returns EFAULT if nothing is mapped
    // there. A thread that writes that memory meanwhile races with the kernel and not with Rust
    // code.
    let read = unsafe { libc::process_vm_writev(own, &raw const from, 1, &raw const to, 1, 0) };
    match usize::try_from(read) {
        Ok(0) => Err(Errno::FAULT),
        Ok(read) => Ok(read),
        Err(_) => {
            let error = std::io::Error::last_os_error();
            Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
        }
    }
}

/// System calls without libc, which would write its `errno`.
mod raw {
    pub const CLONE: usize = libc::SYS_clone as usize;
    pub const PRCTL: usize = libc::SYS_prctl as usize;
    pub const READ: usize = libc::SYS_read as usize;
    pub const SETSID: usize = libc::SYS_setsid as usize;
    pub const CLOSE_RANGE: usize = libc::SYS_close_range as usize;
    pub const GETPPID: usize = libc::SYS_getppid as usize;
    pub const TGKILL: usize = libc::SYS_tgkill as usize;
    pub const PPOLL: usize = libc::SYS_ppoll as usize;
    pub const EXIT_GROUP: usize = libc::SYS_exit_group as usize;

    /// # Safety
    /// As the call `number` with these arguments demands.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub unsafe fn syscall(number: usize, [a, b, c, d, e]: [usize; 5]) -> isize {
        let result: isize;
        // SAFETY: the kernel's convention for x86-64: number in rax, arguments in rdi, rsi, rdx,
        // r10, r8; rcx and r11 are lost. The caller is responsible for the effect of the call.
        unsafe {
            std::arch::asm!(
                "syscall",
                inlateout("rax") number as isize => result,
                in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e,
                lateout("rcx") _, lateout("r11") _,
            );
        }
        result
    }

    /// # Safety
    /// As the call `number` with these arguments demands.
    #[cfg(target_arch = "aarch64")]
    #[inline(always)]
    pub unsafe fn syscall(number: usize, [a, b, c, d, e]: [usize; 5]) -> isize {
        let result: isize;
        // SAFETY: the kernel's convention for arm64: number in x8, arguments in x0 to x4. The
        // caller is responsible for the effect of the call.
        unsafe {
            std::arch::asm!(
                "svc 0",
                in("x8") number,
                inlateout("x0") a as isize => result,
                in("x1") b, in("x2") c, in("x3") d, in("x4") e,
            );
        }
        result
    }

    /// # Safety
    /// None needed.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    pub unsafe fn syscall(_: usize, _: [usize; 5]) -> isize {
        -(libc::ENOSYS as isize)
    }
}
