//! Writes as sectors of disks, and the syncs that bring them there.

use super::trace::{Range, Trace, What};
use std::collections::{BTreeSet, HashMap};

/// The unit in which a disk overwrites.
pub const SECTOR_BYTES: u64 = 512;

/// A sector of a file.
pub type Sector = (u32, u64);

/// Returns the sectors that a range touches.
pub fn touched(range: Range) -> impl Iterator<Item = Sector> {
    let first = range.offset / SECTOR_BYTES;
    let end =
        if range.bytes == 0 { first } else { (range.offset + range.bytes).div_ceil(SECTOR_BYTES) };
    (first..end).map(move |sector| (range.file, sector))
}

/// Returns the sectors that each operation of the trace brings to the disk. A durable write brings
/// its own, and a sync those that earlier writes left in the page cache. A sync without any, such as
/// that of a directory, still writes one sector of the file system's own.
pub fn flushed(trace: &Trace) -> Vec<Vec<Sector>> {
    let mut dirty: HashMap<u32, BTreeSet<u64>> = HashMap::new();
    let of = |what: &What| match *what {
        What::Write(range) => {
            dirty.entry(range.file).or_default().extend(touched(range).map(|(_, sector)| sector));
            Vec::new()
        }
        What::Durable(range) => touched(range).collect(),
        What::Sync { file } => {
            let sectors = dirty.remove(&file).unwrap_or_default();
            if sectors.is_empty() {
                vec![(file, u64::MAX)]
            } else {
                sectors.into_iter().map(|sector| (file, sector)).collect()
            }
        }
        _ => Vec::new(),
    };
    trace.operations.iter().map(|operation| &operation.what).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_touches_each_sector_once() {
        let touches = |offset, bytes| {
            touched(Range { file: 3, offset, bytes }).map(|(_, s)| s).collect::<Vec<_>>()
        };
        assert_eq!(touches(0, 512), [0]);
        assert_eq!(touches(511, 2), [0, 1]);
        assert_eq!(touches(1024, 8192).len(), 16);
        assert!(touches(700, 0).is_empty());
    }

    #[test]
    fn a_sync_brings_what_was_written_since_the_last_one() {
        let text = "outlive-io-trace 1\n\
            1 0 write 0 0 600 1\n2 0 write 0 500 600 1\n3 0 write 1 0 512 1\n\
            4 0 sync 0 - - 9\n20 0 sync 0 - - 9\n40 0 durable 1 4096 8192 1\n";
        let flushed = flushed(&Trace::parse("x", text).unwrap());
        let counts: Vec<usize> = flushed.iter().map(Vec::len).collect();
        assert_eq!(counts, [0, 0, 0, 3, 1, 16]);
        assert_eq!(flushed[3], [(0, 0), (0, 1), (0, 2)]);
    }
}
