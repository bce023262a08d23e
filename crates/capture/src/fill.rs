//! Memory to be filled by a restore, from several threads at once.

use crate::memory::RawMutMemory;
use outlive_io::AlignedBuf;
use outlive_types::{Error, Result};

/// Memory that a restore fills: the program's own ([`MutRegion::from_raw`]) or its own.
#[derive(Debug)]
pub struct MutRegion(pub(crate) RawMutMemory);

impl MutRegion {
    /// Fresh memory of `length` bytes, all zero; from 2 MiB on it asks for huge pages, since a
    /// page fault for each 4 KiB costs a restore a quarter of its speed.
    pub fn zeroed(length: usize) -> MutRegion {
        MutRegion(RawMutMemory::owned(AlignedBuf::zeroed(length)))
    }

    /// Its length in bytes.
    pub fn length(&self) -> usize {
        self.0.length()
    }

    /// The bytes, if the memory came from [`MutRegion::zeroed`].
    pub fn into_bytes(self) -> Option<AlignedBuf> {
        self.0.into_owned()
    }
}

/// Takes restored bytes for a number of streams, in any order, from any thread.
///
/// Ranges are expected not to overlap. If they do, one of the writes wins, whole per 64 KiB.
#[derive(Debug)]
pub struct Scatter {
    streams: Vec<MutRegion>,
}

impl Scatter {
    /// Memory for stream 0, 1 and so on.
    ///
    /// # Errors
    /// `Invalid` for memory that cannot exist: a null address, or more bytes than memory can hold.
    pub fn new(streams: Vec<MutRegion>) -> Result<Scatter> {
        for (stream, region) in streams.iter().enumerate() {
            if region.0.is_impossible() {
                return Err(Error::invalid(format!(
                    "the memory to restore stream {stream} into has {} bytes at an address where \
                     they cannot be: pass the array's own address and length",
                    region.length()
                )));
            }
        }
        Ok(Scatter { streams })
    }

    /// Copies `bytes` to `offset` of a stream.
    ///
    /// # Panics
    /// If the range does not lie within the stream's memory.
    pub fn write(&self, stream: usize, offset: u64, bytes: &[u8]) {
        let (region, offset) = self.place(stream, offset, bytes.len() as u64);
        region.0.write(offset, bytes);
    }

    /// Fills `length` bytes at `offset` of a stream with zeros.
    ///
    /// # Panics
    /// If the range does not lie within the stream's memory.
    pub fn zero(&self, stream: usize, offset: u64, length: u64) {
        let (region, offset) = self.place(stream, offset, length);
        region.0.zero(offset, length as usize);
    }

    /// The memory again, in the order given.
    pub fn into_streams(self) -> Vec<MutRegion> {
        self.streams
    }

    fn place(&self, stream: usize, offset: u64, length: u64) -> (&MutRegion, usize) {
        let Some(region) = self.streams.get(stream) else {
            panic!("stream {stream} was restored, but there are only {}", self.streams.len());
        };
        let end = offset.checked_add(length);
        assert!(
            end.is_some_and(|end| end <= region.length() as u64),
            "{length} bytes at offset {offset} were restored to stream {stream}, which has {}",
            region.length()
        );
        (region, offset as usize)
    }
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
        // Two threads, set off together, write different bytes to the same units; one of them
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
    fn ranges_outside_are_refused() {
        let refused = |work: fn(&Scatter)| {
            let scatter = Scatter::new(vec![MutRegion::zeroed(10)]).unwrap();
            let work = std::panic::AssertUnwindSafe(|| work(&scatter));
            std::panic::catch_unwind(work).is_err()
        };
        assert!(refused(|scatter| scatter.write(0, 8, &[1; 3])));
        assert!(refused(|scatter| scatter.zero(0, 11, 0)));
        assert!(refused(|scatter| scatter.zero(0, 2, u64::MAX - 1)));
        assert!(refused(|scatter| scatter.write(1, 0, &[])));
        assert!(!refused(|scatter| scatter.zero(0, 10, 0)));
        assert!(!refused(|scatter| scatter.write(0, 7, &[1; 3])));
    }
}
