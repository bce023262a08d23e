//! The baseline of the comparison: written pages found by mprotect and SIGSEGV. Page by page, it is
//! what the first checkpointing libraries did (libckpt: Plank, Beck, Kingsley, Li, 1995). With runs
//! that grow, it is ACCK (Shi et al., "Application-Based Coarse-Grained Incremental Checkpointing",
//! 2016).
//!
//! It serves to compare with, and only for memory that this process writes itself: a system call
//! that writes to a protected page fails with EFAULT.
#![allow(unsafe_code)] // a signal handler changes the rights of memory

use libc::{c_int, c_void, siginfo_t};
use outlive_io::AlignedBuf;
use outlive_types::{Error, PAGE_BYTES, Result};
use rustix::mm::{MprotectFlags, mprotect};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize};

/// The notes of the one protected memory of this process, for the handler; null without one.
static NOTES: AtomicPtr<Notes> = AtomicPtr::new(null_mut());

/// Memory in whole pages, each of which counts as written from its first write on.
pub struct Protected {
    memory: AlignedBuf,
    notes: Box<Notes>,
}

struct Notes {
    start: usize,
    /// By page, whether it was written or opened since the last collection.
    written: Vec<AtomicBool>,
    /// Most pages that a fault opens.
    run_pages_max: usize,
    /// End of the last run, and its length: pages.
    run_end: AtomicUsize,
    run_pages: AtomicUsize,
}

impl Protected {
    /// Returns `length` bytes, rounded down to pages, after `fill` has changed the initial zeros. A
    /// fault next to the last one opens twice as many pages as that did, up to `run_pages_max`,
    /// which then all count as written (1: one page for each fault).
    ///
    /// # Errors
    /// `Invalid` if this process has such memory already, or the kernel does not protect it.
    pub fn new(
        length: usize,
        run_pages_max: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Protected> {
        let pages = length / PAGE_BYTES;
        let mut memory = AlignedBuf::zeroed(pages * PAGE_BYTES);
        fill(&mut memory);
        let mut notes = Box::new(Notes {
            start: memory.as_ptr() as usize,
            written: (0..pages).map(|_| AtomicBool::new(false)).collect(),
            run_pages_max,
            run_end: AtomicUsize::new(usize::MAX / 2),
            run_pages: AtomicUsize::new(0),
        });
        let here: *mut Notes = &raw mut *notes;
        if NOTES.compare_exchange(null_mut(), here, AcqRel, Relaxed).is_err() {
            return Err(Error::invalid("this process has protected memory already"));
        }
        let protected = Protected { memory, notes };
        install()?;
        protected.notes.protect(0..pages, MprotectFlags::READ).map_err(refused)?;
        Ok(protected)
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.memory
    }

    /// Returns the bytes for writing.
    pub fn edit(&mut self) -> &mut [u8] {
        &mut self.memory
    }

    /// Returns the ranges of bytes that were written since the last call, and protects them again.
    ///
    /// # Errors
    /// `Invalid` if the kernel does not protect them.
    pub fn collect(&mut self) -> Result<Vec<Range<usize>>> {
        let mut found: Vec<Range<usize>> = Vec::new();
        for (page, written) in self.notes.written.iter().enumerate() {
            // Most are not: a look is cheaper than an exchange.
            if !written.load(Relaxed) {
                continue;
            }
            written.store(false, Relaxed);
            let start = page * PAGE_BYTES;
            match found.last_mut() {
                Some(last) if last.end == start => last.end += PAGE_BYTES,
                _ => found.push(start..start + PAGE_BYTES),
            }
        }
        self.notes.run_end.store(usize::MAX / 2, Relaxed);
        self.notes.run_pages.store(0, Relaxed);
        let pages = 0..self.notes.written.len();
        self.notes.protect(pages, MprotectFlags::READ).map_err(refused)?;
        Ok(found)
    }
}

impl Drop for Protected {
    fn drop(&mut self) {
        let all = 0..self.notes.written.len();
        let _ = self.notes.protect(all, MprotectFlags::READ | MprotectFlags::WRITE);
        NOTES.store(null_mut(), Release);
    }
}

impl Notes {
    fn protect(&self, pages: Range<usize>, rights: MprotectFlags) -> rustix::io::Result<()> {
        let start = (self.start + pages.start * PAGE_BYTES) as *mut c_void;
        // SAFETY: pages of the buffer beside these notes. It is written only through the process's
        // own instructions, whose faults `on_fault` answers.
        unsafe { mprotect(start, pages.len() * PAGE_BYTES, rights) }
    }

    /// Makes a page, and its run, writable, and notes them. False if that fails.
    fn open(&self, page: usize) -> bool {
        let end = (page + self.next_run(page)).min(self.written.len());
        let rights = MprotectFlags::READ | MprotectFlags::WRITE;
        // If the process has too many mappings, all of it as one needs the fewest.
        let opened = [page..end, 0..self.written.len()]
            .into_iter()
            .find(|pages| self.protect(pages.clone(), rights).is_ok());
        let Some(opened) = opened else { return false };
        self.written[opened].iter().for_each(|written| written.store(true, Relaxed));
        true
    }

    /// Returns the number of pages to open from `page` on. A fault where the last run ended, or
    /// within the same distance behind it, doubles the run. Elsewhere a run begins with one page.
    fn next_run(&self, page: usize) -> usize {
        if self.run_pages_max <= 1 {
            return 1;
        }
        let (last, run) = (self.run_end.load(Relaxed), self.run_pages.load(Relaxed));
        let near = page >= last && page - last <= run;
        let run = if near { (2 * run).clamp(1, self.run_pages_max) } else { 1 };
        self.run_pages.store(run, Relaxed);
        self.run_end.store(page + run, Relaxed);
        run
    }
}

/// Installs the handler, on the alternate stack of threads that have one.
fn install() -> Result<()> {
    // SAFETY: the handler has the signature that SA_SIGINFO asks for, and stays where it is.
    let done = unsafe {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGSEGV, &raw const action, null_mut())
    };
    if done != 0 {
        return Err(Error::invalid("the handler of SIGSEGV cannot be installed"));
    }
    Ok(())
}

/// Answers a fault of the protected memory. Any other one ends the process as without a handler.
extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel passes what SA_SIGINFO promises. The notes live until `drop` has removed
    // them here, and no thread writes to the memory then.
    let answered = unsafe {
        let address = (*info).si_addr() as usize;
        NOTES.load(Acquire).as_ref().is_some_and(|notes| {
            let page = address.wrapping_sub(notes.start) / PAGE_BYTES;
            page < notes.written.len() && notes.open(page)
        })
    };
    if !answered {
        // SAFETY: the default action; the fault happens again when the handler returns.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

fn refused(error: rustix::io::Errno) -> Error {
    Error::invalid(format!("mprotect does not work here: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(memory: &mut Protected) -> Vec<Range<usize>> {
        let pages = |range: &Range<usize>| range.start / PAGE_BYTES..range.end / PAGE_BYTES;
        memory.collect().unwrap().iter().map(pages).collect()
    }

    // One test: a process has one such memory at a time, and tests may share a process.
    #[test]
    fn written_pages_are_found_once_and_runs_grow() {
        let mut memory = Protected::new(100 * PAGE_BYTES + 9, 1, |bytes| bytes.fill(1)).unwrap();
        assert_eq!(memory.bytes().len(), 100 * PAGE_BYTES);
        assert!(written(&mut memory).is_empty());
        memory.edit()[2 * PAGE_BYTES] = 2;
        memory.edit()[4 * PAGE_BYTES - 1] = 2;
        memory.edit()[99 * PAGE_BYTES] = 2;
        assert_eq!(written(&mut memory), vec![2..4, 99..100]);
        assert!(written(&mut memory).is_empty());
        assert!(Protected::new(PAGE_BYTES, 1, |_| ()).is_err(), "the handler knows one");
        drop(memory);
        let mut memory = Protected::new(100 * PAGE_BYTES, 16, |_| ()).unwrap();
        // Runs of 1, 2, 4 and 8 pages; then a fault elsewhere, which begins another run.
        (0..9).for_each(|page| memory.edit()[page * PAGE_BYTES] = 1);
        memory.edit()[50 * PAGE_BYTES] = 1;
        assert_eq!(written(&mut memory), vec![0..15, 50..51]);
        assert_eq!(memory.bytes()[8 * PAGE_BYTES], 1);
    }
}
