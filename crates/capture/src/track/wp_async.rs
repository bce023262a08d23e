//! userfaultfd `WP_ASYNC` with `PAGEMAP_SCAN` (Linux 6.7). The first write to an armed page costs
//! one fault, which the kernel resolves by itself. One pass over the page table lists the written
//! pages and arms them again.
#![allow(unsafe_code)]

use super::sys::{self, Search};
use super::{PageTracker, Pages, Refusal, Then, TrackerKind, claims, maps};
use outlive_types::BLOCK_PAGES;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

/// The tracker. It serves the process that opened it, and refuses a forked child.
#[derive(Debug)]
pub struct WpAsync {
    uffd: OwnedFd,
    /// Kept open: a program may become undumpable, and cannot open its own page map then.
    pagemap: File,
    process_id: u32,
    owner: claims::Owner,
}

impl WpAsync {
    /// Opens a tracker.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn open() -> Result<WpAsync, Refusal> {
        let uffd = sys::open_uffd().map_err(|error| {
            Refusal(format!("this system gives no userfaultfd with WP_ASYNC ({error})"))
        })?;
        let pagemap = File::open("/proc/self/pagemap")
            .map_err(|error| Refusal(format!("/proc/self/pagemap cannot be opened ({error})")))?;
        let owner = claims::Owner::new(TrackerKind::WpAsync);
        Ok(WpAsync { uffd, pagemap, process_id: std::process::id(), owner })
    }

    fn check_process(&self) -> Result<(), Refusal> {
        if self.process_id == std::process::id() {
            return Ok(());
        }
        Err(Refusal("this process was forked from the one that opened the tracker".into()))
    }

    fn scan(&self, pages: Pages, search: Search, found: &mut Vec<Pages>) -> Result<(), Refusal> {
        self.check_process()?;
        sys::scan(&self.pagemap, pages, search, found).map_err(|error| {
            let why = if error.kind() == io::ErrorKind::PermissionDenied {
                "its memory was mapped again or moved".to_owned()
            } else {
                format!("its page table cannot be scanned ({error})")
            };
            Refusal(why)
        })
    }
}

impl PageTracker for WpAsync {
    fn kind(&self) -> TrackerKind {
        TrackerKind::WpAsync
    }

    fn serve(&self, job: &str) {
        self.owner.serve(job);
    }

    // SAFETY (of callers): as [`PageTracker::watch`] demands.
    unsafe fn watch(&self, pages: Pages) -> Result<(), Refusal> {
        self.check_process()?;
        maps::check_private(pages)?;
        self.owner.claim(pages)?;
        sys::register(&self.uffd, pages).map_err(|error| {
            self.owner.release(pages);
            let why = if error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()) {
                "another userfaultfd of this process has it".to_owned()
            } else {
                format!("it cannot be registered with userfaultfd ({error})")
            };
            Refusal(why)
        })
    }

    fn unwatch(&self, pages: Pages) {
        if self.check_process().is_ok() {
            // Unmapped memory has lost its registration already.
            let _ = sys::unregister(&self.uffd, pages);
            self.owner.release(pages);
        }
    }

    fn arm(&self, pages: Pages) -> Result<(), Refusal> {
        // This arms the pages that count as written. On some kernels (6.18) these include untouched
        // pages. On others they do not; there the first write to such a page is noted anyway.
        self.collect(pages, Then::Rearm, &mut Vec::new())
    }

    fn collect(&self, pages: Pages, then: Then, written: &mut Vec<Pages>) -> Result<(), Refusal> {
        let rearm = then == Then::Rearm;
        let search = Search { categories: sys::IS_WRITTEN, rearm, ..Search::default() };
        self.scan(pages, search, written)
    }

    fn disarm(&self, pages: Pages) -> Result<(), Refusal> {
        self.check_process()?;
        sys::unprotect(&self.uffd, pages)
            .map_err(|error| Refusal(format!("it cannot be disarmed ({error})")))
    }

    fn absent(&self, pages: Pages, absent: &mut Vec<Pages>) -> Result<(), Refusal> {
        let categories = sys::IS_PRESENT | sys::IS_SWAPPED;
        self.scan(pages, Search { categories, inverted: categories, ..Search::default() }, absent)
    }

    fn present(&self, addresses: &[usize]) -> Option<Vec<bool>> {
        self.check_process().ok()?;
        sys::present(addresses)
    }

    fn tells_untouched(&self) -> bool {
        true
    }

    fn shared(&self, pages: Pages, shared: &mut Vec<Pages>) -> Result<(), Refusal> {
        self.check_process()?;
        sys::shared(&self.pagemap, pages, shared)
            .map_err(|error| Refusal(format!("its page table cannot be read ({error})")))
    }

    fn untouched(&self, pages: Pages, untouched: &mut Vec<Pages>) -> Result<(), Refusal> {
        let (categories, inverted) = (sys::IS_PRESENT | sys::IS_WRITTEN, sys::IS_WRITTEN);
        let search = Search { categories, inverted, registered: true, ..Search::default() };
        self.scan(pages, search, untouched)
    }

    fn is_huge(&self, pages: Pages) -> bool {
        let mut huge = Vec::new();
        let search = Search { categories: sys::IS_HUGE, ..Search::default() };
        pages.count() == BLOCK_PAGES
            && self.scan(pages, search, &mut huge).is_ok()
            && huge == [pages]
    }

    fn collapse(&self, pages: Pages) -> bool {
        self.check_process().is_err() || pages.count() != BLOCK_PAGES || sys::collapse(pages)
    }
}

impl Drop for WpAsync {
    fn drop(&mut self) {
        // Closing the descriptor ends every registration.
        if self.check_process().is_ok() {
            self.owner.release_all();
        }
    }
}
