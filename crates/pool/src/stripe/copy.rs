//! Writes shards of a pack again, or on other targets: each part is read and checked, or computed
//! from others.

use super::scan::Scan;
use crate::Pool;
use outlive_backend::writes::says_exists;
use outlive_backend::{Fault, ShardWriter};
use outlive_format::{Fragment, ShardHeader, Tail, checksum};
use outlive_io::{AlignedBuf, Completions, SharedBuf};
use outlive_types::{Error, Result};

/// Writes of one shard that are in progress at once.
const AHEAD: usize = 4;

/// A shard that is being written.
pub(crate) struct NewShard {
    number: u8,
    writer: Box<dyn ShardWriter>,
    fragments: Vec<Fragment>,
    in_flight: Completions<u64, std::result::Result<(), Fault<SharedBuf>>>,
}

impl NewShard {
    pub fn new(number: u8, writer: Box<dyn ShardWriter>) -> NewShard {
        NewShard { number, writer, fragments: Vec::new(), in_flight: Completions::new() }
    }

    fn write(&mut self, offset: u64, bytes: SharedBuf) -> Result<()> {
        while self.in_flight.len() >= AHEAD
            && let Some((_, written)) = self.in_flight.wait_next()
        {
            written?;
        }
        self.in_flight.push(offset, self.writer.write(offset, bytes));
        Ok(())
    }

    fn finish(mut self, header: &ShardHeader, directory: &[u8]) -> Result<u64> {
        let header = ShardHeader { shard: self.number, ..*header };
        let fragments = std::mem::take(&mut self.fragments);
        let tail = Tail { pack: header.pack, directory: directory.to_vec(), fragments }.encode()?;
        let length = header.directory_offset() + tail.len() as u64;
        self.write(header.directory_offset(), aligned(&tail))?;
        self.write(0, aligned(&header.encode()?))?;
        while let Some((_, written)) = self.in_flight.wait_next() {
            written?;
        }
        self.writer.finish(length).wait().map_err(|error| match says_exists(&error) {
            // A process whose lock has ended goes on making shards.
            true => Error::retry(format!(
                "another process has made it meanwhile, so try again: {}",
                error.message()
            )),
            false => error,
        })?;
        Ok(length)
    }
}

fn aligned(bytes: &[u8]) -> SharedBuf {
    let mut buffer = AlignedBuf::zeroed(bytes.len());
    buffer.copy_from_slice(bytes);
    buffer.share()
}

/// Returns the length of a shard of the pack.
///
/// # Errors
/// As [`Scan::header`].
pub(crate) fn shard_bytes(scan: &Scan) -> Result<u64> {
    let header = scan.header()?;
    let tail_bytes = Tail::bytes_for(header.directory_bytes as usize, scan.containers()?);
    Ok(header.directory_offset() + tail_bytes as u64)
}

/// Writes these shards of the pack that is read, and returns the length of each. A shard is there
/// as a whole or not at all; if one fails, those that were begun are given up.
///
/// # Errors
/// `Damaged` if too little is left of the pack; errors of the targets.
pub(crate) fn write_shards(
    pool: &Pool,
    scan: &mut Scan,
    mut shards: Vec<NewShard>,
) -> Result<Vec<u64>> {
    let mut wanted: Vec<u8> = shards.iter().map(|shard| shard.number).collect();
    // Each is computed once, however many copies of it are written.
    wanted.sort_unstable();
    wanted.dedup();
    while let Some(fragments) = scan.next(&wanted)? {
        let (offset, length) = scan.fragment_of(fragments.number);
        let bytes: Vec<Option<SharedBuf>> =
            fragments.bytes.into_iter().map(|bytes| bytes.map(AlignedBuf::share)).collect();
        for shard in &mut shards {
            // Several copies of one shard may be written at once.
            let bytes = bytes[usize::from(shard.number)].clone();
            let bytes = bytes.ok_or_else(|| Error::bug("a fragment was not made"))?;
            let fragment = Fragment { length: length as u32, checksum: checksum(&bytes) };
            shard.fragments.push(fragment);
            shard.write(offset, bytes)?;
        }
        pool.note_progress();
    }
    let (header, directory) = (*scan.header()?, scan.directory_bytes()?.to_vec());
    shards.into_iter().map(|shard| shard.finish(&header, &directory)).collect()
}
