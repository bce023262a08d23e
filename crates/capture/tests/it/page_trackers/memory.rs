//! Memory of a test's own.

use outlive_capture::track::Pages;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const PAGE: usize = 4096;
const BLOCK: usize = 2 << 20;

/// Private anonymous memory, at a multiple of 2 MiB. Unmapped when dropped, unless it was
/// forgotten.
#[derive(Debug)]
pub struct Mapped {
    start: usize,
    bytes: usize,
}

impl Mapped {
    /// Returns memory of 4 KiB pages, not populated.
    pub fn small(pages: usize) -> Mapped {
        Mapped::new(pages, Advice::LinuxNoHugepage)
    }

    /// Returns memory of huge pages, where the system has some, populated.
    pub fn huge(pages: usize) -> Mapped {
        let memory = Mapped::new(pages, Advice::LinuxHugepage);
        (0..pages).for_each(|page| memory.write(page, 1));
        memory
    }

    fn new(pages: usize, advice: Advice) -> Mapped {
        let bytes = pages * PAGE;
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping, whose parts before and after the result are unmapped at once.
        unsafe {
            let all = mmap_anonymous(null_mut(), bytes + BLOCK, rights, flags).unwrap() as usize;
            let start = all.next_multiple_of(BLOCK);
            if start > all {
                munmap(all as *mut _, start - all).unwrap();
            }
            munmap((start + bytes) as *mut _, all + BLOCK - start).unwrap();
            madvise(start as *mut _, bytes, advice).unwrap();
            Mapped { start, bytes }
        }
    }

    /// Takes over memory that is mapped already and has no other owner.
    pub fn at(start: usize, pages: usize) -> Mapped {
        Mapped { start, bytes: pages * PAGE }
    }

    /// Returns its pages.
    pub fn pages(&self) -> Pages {
        Pages { start: self.start, end: self.start + self.bytes }
    }

    /// Returns the pages `first..end`.
    pub fn part(&self, first: usize, end: usize) -> Pages {
        assert!(first < end && end * PAGE <= self.bytes);
        Pages { start: self.start + first * PAGE, end: self.start + end * PAGE }
    }

    /// Address of a page.
    pub fn page(&self, page: usize) -> *mut u8 {
        self.part(page, page + 1).start as *mut u8
    }

    /// Returns a word of a page, for use by several threads.
    pub fn cell(&self, page: usize, number: usize) -> &AtomicU64 {
        assert!(number < PAGE / 8);
        // SAFETY: within the page, aligned, and used only through this function.
        unsafe { &*self.page(page).add(8 * number).cast() }
    }

    /// Returns a word of a page, not always the same one.
    pub fn word(&self, page: usize) -> &AtomicU64 {
        self.cell(page, 1 + page % 500)
    }

    /// Writes that word.
    pub fn write(&self, page: usize, value: u64) {
        self.word(page).store(value, SeqCst);
    }

    /// Reads that word.
    pub fn read(&self, page: usize) -> u64 {
        self.word(page).load(SeqCst)
    }

    /// Leaves the memory mapped, for other code to unmap.
    pub fn forget(self) {
        std::mem::forget(self);
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own.
        let _ = unsafe { munmap(self.start as *mut _, self.bytes) };
    }
}
