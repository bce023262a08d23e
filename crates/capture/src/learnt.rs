//! Page hashes of restored bytes, taken while each chunk is in the processor's caches. So the next
//! save knows its predecessor's hashes without another pass over all memory.

use outlive_chunk::{PageHashes, hash_pages};
use outlive_types::sync::plain::{Mutex, MutexGuard};
use outlive_types::{PAGE_BYTES, pages_of};

/// Hashes of a number of streams, as they were stored. A page that is never brought has none: it
/// counts as changed.
#[derive(Debug)]
pub(crate) struct Learnt(Vec<Mutex<Vec<u128>>>);

impl Learnt {
    /// Returns an empty set for streams of these lengths in bytes.
    pub fn new(lengths: impl Iterator<Item = usize>) -> Learnt {
        let pages = |length: usize| pages_of(length as u64) as usize;
        Learnt(lengths.map(|length| Mutex::new(vec![0; pages(length)])).collect())
    }

    /// Hashes whole pages, from the byte `at` on.
    pub fn write(&self, stream: usize, at: usize, bytes: &[u8]) {
        self.keep(stream, at, &hash_pages(bytes));
    }

    /// Does the same for zeros.
    pub fn zero(&self, stream: usize, at: usize, length: usize) {
        let (pages, rest) = (length / PAGE_BYTES, length % PAGE_BYTES);
        let page = hash_pages(&[0; PAGE_BYTES])[0];
        self.of(stream)[at / PAGE_BYTES..][..pages].fill(page);
        self.keep(stream, at + pages * PAGE_BYTES, &hash_pages(&[0; PAGE_BYTES][..rest]));
    }

    /// Returns the hashes of a stream of `bytes` bytes.
    pub fn take(&self, stream: usize, bytes: u64) -> Option<PageHashes> {
        let mut hashes = self.0.get(stream)?.lock();
        PageHashes::from_hashes(std::mem::take(&mut hashes), bytes)
    }

    fn keep(&self, stream: usize, at: usize, hashes: &[u128]) {
        self.of(stream)[at / PAGE_BYTES..][..hashes.len()].copy_from_slice(hashes);
    }

    fn of(&self, stream: usize) -> MutexGuard<'_, Vec<u128>> {
        self.0[stream].lock()
    }
}
