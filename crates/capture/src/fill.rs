//! Memory that a restore fills, from several threads at once.

use crate::learnt::Learnt;
use crate::memory::RawMutMemory;
use outlive_chunk::PageHashes;
use outlive_io::fresh::FreshMemory;
use outlive_io::{AlignedBuf, fresh};
use outlive_types::{Error, PAGE_BYTES, Result};
use std::sync::Arc;

/// Memory that a restore fills: the program's own ([`MutRegion::from_raw`]), or memory that it
/// allocates.
#[derive(Debug)]
pub struct MutRegion(pub(crate) RawMutMemory);

impl MutRegion {
    /// Returns fresh memory of `length` bytes, all zero. From 2 MiB on it asks for huge pages,
    /// since a page fault for each 4 KiB costs a restore a quarter of its speed. From 32 MiB on it
    /// uses the pages that cost least, as measured while it is filled ([`outlive_io::fresh`]).
    pub fn zeroed(length: usize) -> MutRegion {
        MutRegion(RawMutMemory::owned(AlignedBuf::zeroed(length)))
    }

    /// Length in bytes.
    pub fn length(&self) -> usize {
        self.0.length()
    }

    /// Address of the first byte.
    pub fn address(&self) -> usize {
        self.0.start()
    }

    /// Returns the bytes, if the memory came from [`MutRegion::zeroed`].
    pub fn into_bytes(self) -> Option<AlignedBuf> {
        self.0.into_owned()
    }
}

/// Advice to the kernel about fresh memory during a restore: no huge pages where others cost less.
#[derive(Clone, Debug, Default)]
pub struct Advice(Vec<Arc<FreshMemory>>);

impl Advice {
    pub(crate) fn of(streams: &[MutRegion]) -> Advice {
        Advice(streams.iter().filter_map(|region| region.0.fresh()).collect())
    }

    /// Withdraws the advice. After the return no thread touches the memory except by writing to it;
    /// dropping the value that was to fill it does not touch it either. Call it while the memory is
    /// mapped; later calls do nothing.
    pub fn end(&self) {
        self.0.iter().for_each(|fresh| fresh.end());
    }
}

/// Receives restored bytes for a number of streams, in any order, from any thread.
///
/// Ranges should not overlap. If they do, one of the writes wins, whole per 64 KiB.
#[derive(Debug)]
pub struct Scatter {
    streams: Vec<MutRegion>,
    /// Hashes of the restored bytes, if a save is to follow.
    learnt: Option<Learnt>,
}

impl Scatter {
    /// Takes the memory of stream 0, 1 and so on.
    ///
    /// # Errors
    /// `Invalid` for memory that cannot exist: a null address, or more bytes than memory can hold.
    pub fn new(streams: Vec<MutRegion>) -> Result<Scatter> {
        check_possible(&streams)?;
        Ok(Scatter { streams, learnt: None })
    }

    /// Does the same, and hashes the pages of the restored bytes for the saves that follow
    /// ([`ChangeTracker::prime_hashes`](crate::HashTracker::prime_hashes)). Ranges must then be
    /// whole pages, or reach to a stream's end.
    ///
    /// # Errors
    /// As [`Scatter::new`].
    pub fn learning(streams: Vec<MutRegion>) -> Result<Scatter> {
        let scatter = Scatter::new(streams)?;
        let learnt = Some(Learnt::new(scatter.streams.iter().map(MutRegion::length)));
        Ok(Scatter { learnt, ..scatter })
    }

    /// Copies `bytes` to `offset` of a stream.
    ///
    /// # Panics
    /// If the range does not lie within the stream's memory, or cuts a page that is to be hashed.
    pub fn write(&self, stream: usize, offset: u64, bytes: &[u8]) {
        let at = self.place(stream, offset, bytes.len() as u64);
        if let Some(learnt) = &self.learnt {
            learnt.write(stream, at, bytes);
        }
        self.streams[stream].0.write(at, bytes);
    }

    /// Fills `length` bytes at `offset` of a stream with zeros.
    ///
    /// # Panics
    /// If the range does not lie within the stream's memory, or cuts a page that is to be hashed.
    pub fn zero(&self, stream: usize, offset: u64, length: u64) {
        let at = self.place(stream, offset, length);
        if let Some(learnt) = &self.learnt {
            learnt.zero(stream, at, length as usize);
        }
        self.streams[stream].0.zero(at, length as usize);
    }

    /// Describes the kind of pages of fresh memory and the reason, for people; `None` if there was
    /// hardly any.
    pub fn fresh_report(&self) -> Option<String> {
        fresh::report(touched(&self.streams))
    }

    /// Returns the advice, to withdraw at the end of the restore. Freeing the memory withdraws it
    /// as well.
    pub fn advice(&self) -> Advice {
        Advice::of(&self.streams)
    }

    /// Returns the memory, in the order given.
    pub fn into_streams(self) -> Vec<MutRegion> {
        self.streams
    }

    /// Returns the hashes of a stream as stored, if they were taken; call it once all of it was
    /// written.
    pub fn take_hashes(&self, stream: usize) -> Option<PageHashes> {
        let bytes = self.streams.get(stream)?.length() as u64;
        self.learnt.as_ref()?.take(stream, bytes)
    }

    fn place(&self, stream: usize, offset: u64, length: u64) -> usize {
        match self.learnt {
            Some(_) => whole_pages(&self.streams, stream, offset, length),
            None => within(&self.streams, stream, offset, length),
        }
    }
}

/// Bytes of memory that was never used before, in small and in huge pages.
pub(crate) fn touched(streams: &[MutRegion]) -> [u64; 2] {
    let all = streams.iter().map(|region| region.0.touched());
    all.fold([0; 2], |[small, huge], [s, h]| [small + s, huge + h])
}

/// Refuses memory that cannot exist.
pub(crate) fn check_possible(streams: &[MutRegion]) -> Result<()> {
    match streams.iter().position(|region| region.0.is_impossible()) {
        None => Ok(()),
        Some(stream) => Err(Error::invalid(format!(
            "the memory to restore stream {stream} into has {} bytes at an address where they \
             cannot be: pass the array's own address and length",
            streams[stream].length()
        ))),
    }
}

/// Returns the offset, if `length` bytes from there lie within the stream.
fn within(streams: &[MutRegion], stream: usize, offset: u64, length: u64) -> usize {
    let Some(region) = streams.get(stream) else {
        panic!("stream {stream} was restored, but there are only {}", streams.len());
    };
    let end = offset.checked_add(length);
    assert!(
        end.is_some_and(|end| end <= region.length() as u64),
        "{length} bytes at offset {offset} were restored to stream {stream}, which has {}",
        region.length()
    );
    offset as usize
}

/// Returns the offset, if `length` bytes from there are whole pages of the stream, or reach to its
/// end.
pub(crate) fn whole_pages(streams: &[MutRegion], stream: usize, offset: u64, length: u64) -> usize {
    let at = within(streams, stream, offset, length);
    let (end, page) = (offset + length, PAGE_BYTES as u64);
    let is_end = end.is_multiple_of(page) || end == streams[stream].length() as u64;
    assert!(
        offset.is_multiple_of(page) && is_end,
        "{length} bytes at offset {offset} of stream {stream} are not whole pages"
    );
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::UNIT_BYTES;
    use outlive_chunk::parallel;
    use std::sync::Barrier;

    #[test]
    fn threads_fill_it_in_any_order() {
        let length = 5 * 64 * 1024 + 123;
        let want: Vec<u8> = (0..length).map(|at| (at * 31 / 7) as u8).collect();
        let scatter = Scatter::new(vec![MutRegion::zeroed(3), MutRegion::zeroed(length)]).unwrap();
        scatter.write(1, 0, &vec![0xAA; length]);
        // Pieces that cross the units' borders; every third one is zeroed instead.
        let pieces: Vec<(usize, &[u8])> = want.chunks(10_007).enumerate().rev().collect();
        parallel(pieces, 4, |(number, piece)| {
            let offset = number as u64 * 10_007;
            if number % 3 == 0 {
                scatter.zero(1, offset, piece.len() as u64);
            } else {
                scatter.write(1, offset, piece);
            }
        });
        let mut streams = scatter.into_streams();
        let got = streams.pop().unwrap().into_bytes().unwrap();
        for (number, (got, want)) in got.chunks(10_007).zip(want.chunks(10_007)).enumerate() {
            let zero = number % 3 == 0;
            assert!(got.iter().zip(want).all(|(got, want)| *got == if zero { 0 } else { *want }));
        }
        assert_eq!(*streams.pop().unwrap().into_bytes().unwrap(), [0; 3]);
    }

    #[test]
    fn overlapping_writes_are_whole_per_unit() {
        // Two threads start together and write different bytes to the same units; one of them
        // starts a little earlier, in another unit.
        let sources = [vec![1u8; UNIT_BYTES * 2 + 16], vec![2u8; UNIT_BYTES * 2]];
        for _ in 0..300 {
            let scatter = Scatter::new(vec![MutRegion::zeroed(UNIT_BYTES * 3)]).unwrap();
            let start = Barrier::new(2);
            parallel(sources.iter().collect(), 2, |bytes: &Vec<u8>| {
                start.wait();
                scatter.write(0, (UNIT_BYTES * 3 - bytes.len()) as u64, bytes);
            });
            let bytes = scatter.into_streams().pop().unwrap().into_bytes().unwrap();
            let mut units = bytes.chunks(UNIT_BYTES).skip(1);
            assert!(units.all(|unit| unit.iter().all(|byte| *byte == unit[0])));
        }
    }

    #[test]
    fn hashes_are_of_the_data_that_was_brought() {
        let length = 9 * PAGE_BYTES + 5;
        let mut want: Vec<u8> = (0..length).map(|at| (at * 31 / 7) as u8).collect();
        let streams = || vec![MutRegion::zeroed(0), MutRegion::zeroed(length)];
        let scatter = Scatter::learning(streams()).unwrap();
        let bring = |pages: std::ops::Range<usize>| {
            let range = pages.start * PAGE_BYTES..(pages.end * PAGE_BYTES).min(length);
            scatter.write(1, range.start as u64, &want[range]);
        };
        bring(7..10);
        bring(0..3);
        bring(6..7);
        scatter.zero(1, 3 * PAGE_BYTES as u64, 3 * PAGE_BYTES as u64);
        want[3 * PAGE_BYTES..6 * PAGE_BYTES].fill(0);
        assert_eq!(scatter.take_hashes(1), Some(PageHashes::compute(&want, 1)));
        assert_eq!(scatter.take_hashes(0), PageHashes::from_hashes(vec![], 0));
        assert_eq!(scatter.take_hashes(2), None);
        assert_eq!(
            Scatter::new(streams()).unwrap().take_hashes(1),
            None,
            "the caller has not asked for them"
        );
    }

    #[test]
    fn a_page_that_was_not_brought_counts_as_changed() {
        let bytes = vec![7; 2 * PAGE_BYTES];
        let scatter = Scatter::learning(vec![MutRegion::zeroed(bytes.len())]).unwrap();
        scatter.write(0, 0, &bytes[..PAGE_BYTES]);
        let hashes = scatter.take_hashes(0).unwrap();
        assert!(!hashes.differs(0, &bytes[..PAGE_BYTES]));
        assert!(hashes.differs(1, &bytes[PAGE_BYTES..]) && hashes.differs(1, &[0; PAGE_BYTES]));
    }

    fn panics(scatter: &Scatter, work: fn(&Scatter)) -> bool {
        let work = std::panic::AssertUnwindSafe(|| work(scatter));
        std::panic::catch_unwind(work).is_err()
    }

    #[test]
    fn a_page_whose_hash_is_taken_comes_whole() {
        let streams = vec![MutRegion::zeroed(PAGE_BYTES + 10)];
        let scatter = Scatter::learning(streams).unwrap();
        assert!(panics(&scatter, |scatter| scatter.write(0, 1, &[1; PAGE_BYTES - 1])));
        assert!(panics(&scatter, |scatter| scatter.zero(0, 0, 5)));
        assert!(panics(&scatter, |scatter| scatter.write(0, PAGE_BYTES as u64, &[1; 9])));
        assert!(panics(&scatter, |scatter| scatter.write(0, PAGE_BYTES as u64, &[1; 11])));
        assert!(!panics(&scatter, |scatter| scatter.write(0, PAGE_BYTES as u64, &[1; 10])));
    }

    #[test]
    fn ranges_outside_are_refused() {
        let refused =
            |work: fn(&Scatter)| panics(&Scatter::new(vec![MutRegion::zeroed(10)]).unwrap(), work);
        assert!(refused(|scatter| scatter.write(0, 8, &[1; 3])));
        assert!(refused(|scatter| scatter.zero(0, 11, 0)));
        assert!(refused(|scatter| scatter.zero(0, 2, u64::MAX - 1)));
        assert!(refused(|scatter| scatter.write(1, 0, &[])));
        assert!(!refused(|scatter| scatter.zero(0, 10, 0)));
        assert!(!refused(|scatter| scatter.write(0, 7, &[1; 3])));
    }
}
