//! The interface that the three structures share.

use outlive_types::Result;
use std::hint::black_box;
use std::time::Instant;

/// An entry of the paper: the address on the disk, then flags, version and checksum.
pub type Entry = [u64; 2];
/// Its length in bytes.
pub const ENTRY_BYTES: u64 = 16;

/// Time and bytes of an update.
#[derive(Clone, Copy, Debug)]
pub struct Update {
    pub took_s: f64,
    /// Seconds until the new version is on the disk, after `took_s`; 0 if the structure stays in
    /// memory.
    pub durable_s: f64,
    /// Bytes that a store of the changed metadata writes.
    pub written_bytes: u64,
}

/// A found delta.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    pub took_s: f64,
    /// Seconds before that, to open both versions on the disk; 0 in memory.
    pub open_s: f64,
    /// Number of its pages.
    pub pages: u64,
}

pub trait Structure {
    /// Makes the next version, in which `pages` (sorted) have changed.
    ///
    /// # Errors
    /// Errors of the device.
    fn update(&mut self, pages: &[u64], version: u64) -> Result<Update>;

    /// Finds the pages that have changed since the last call, by marks. `None` for a structure
    /// without marks.
    fn delta(&mut self) -> Option<Found>;

    /// Finds the pages in which this version differs from the one before, without marks. `None`
    /// without memory for two versions.
    ///
    /// # Errors
    /// Errors of the device.
    fn compare(&mut self) -> Result<Option<Found>>;

    /// Returns its bytes in memory, without the version before.
    fn ram_bytes(&self) -> u64;
}

/// Returns the entry of a page in a version; it is never zero.
pub fn entry(page: u64, version: u64) -> Entry {
    [page.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1, version << 32 | (page & 0xFFFF_FFFF)]
}

/// Returns a result and the seconds it took.
pub fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let started = Instant::now();
    let result = black_box(work());
    (result, started.elapsed().as_secs_f64())
}
