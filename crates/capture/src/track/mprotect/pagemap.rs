//! Backing of pages by memory of their own, from `/proc/self/pagemap`.

use super::super::{Pages, Refusal};
use outlive_types::PAGE_BYTES;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Backing of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Backing {
    /// Backed by nothing: it reads as zeros.
    Nothing,
    /// Backed by memory (or swap) of its own, which only a write can have caused.
    Own,
    /// Backed by memory with other users as well: the kernel's page of zeros, or memory that a fork
    /// shares.
    Common,
}

/// Bits of an entry (Documentation/admin-guide/mm/pagemap.rst of Linux).
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const EXCLUSIVE: u64 = 1 << 56;

/// The file, opened while the process may (`PR_SET_DUMPABLE` can remove the right later).
#[derive(Debug)]
pub(super) struct Pagemap(File);

impl Pagemap {
    pub fn open() -> Result<Pagemap, Refusal> {
        let file = File::open("/proc/self/pagemap");
        file.map(Pagemap).map_err(|e| {
            Refusal(format!(
                "/proc/self/pagemap cannot be opened ({e}), so pages that are dropped would go unnoticed"
            ))
        })
    }

    /// Calls `each` with the number of every page of `pages`, from 0, and its backing.
    pub fn each(&self, pages: Pages, mut each: impl FnMut(usize, Backing)) -> Result<(), Refusal> {
        const ENTRY_BYTES: usize = 8;
        let mut buffer = vec![0; (pages.count() * ENTRY_BYTES).min(64 << 10)];
        let mut done = 0;
        while done < pages.count() {
            let length = buffer.len().min((pages.count() - done) * ENTRY_BYTES);
            let offset = (pages.start / PAGE_BYTES + done) * ENTRY_BYTES;
            self.0
                .read_exact_at(&mut buffer[..length], offset as u64)
                .map_err(|e| Refusal(format!("/proc/self/pagemap cannot be read ({e})")))?;
            for entry in buffer[..length].as_chunks().0 {
                each(done, backing(u64::from_ne_bytes(*entry)));
                done += 1;
            }
        }
        Ok(())
    }
}

fn backing(entry: u64) -> Backing {
    match () {
        () if entry & SWAPPED != 0 => Backing::Own,
        () if entry & PRESENT == 0 => Backing::Nothing,
        () if entry & EXCLUSIVE != 0 => Backing::Own,
        () => Backing::Common,
    }
}
