//! Reads what lies on the targets, every byte of it, and checks it: shard by shard, as a verification
//! does, or pack by pack.

use crate::Pool;
use crate::packs::shard_of;
use outlive_format::{Directory, Footer, SHARD_HEADER_BYTES, ShardHeader, Tail, checksum};
use outlive_io::AlignedBuf;
use outlive_target::{ReadRange, ShardName, read_one};
use outlive_types::{Error, PAGE_BYTES, PackId, Result};
use std::fmt;

/// A shard that lies on a target. Messages call it by its pack and its number: `PACKID.0`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StoredShard(ShardName);

impl StoredShard {
    /// The pack it belongs to.
    pub fn pack(&self) -> PackId {
        self.0.pack
    }
}

impl fmt::Display for StoredShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Takes the directory of a pack, and the logical offset and the bytes of a fragment.
pub type EachFragment<'a> = dyn FnMut(&Directory, u64, &[u8]) -> Result<()> + 'a;

impl Pool {
    /// All finished shards, sorted, also those with a number that no pack has.
    ///
    /// # Errors
    /// What the target reports.
    pub fn shards(&self) -> Result<Vec<StoredShard>> {
        Ok(self.target().list()?.into_iter().map(StoredShard).collect())
    }

    /// Length of a shard.
    ///
    /// # Errors
    /// `Damaged` if it is missing.
    pub fn shard_bytes(&self, shard: StoredShard) -> Result<u64> {
        self.target().length(shard.0)
    }

    /// Reads a whole shard and checks every byte of it: header, fragments, directory, padding,
    /// tables. Returns its length.
    ///
    /// # Errors
    /// `Damaged`, saying what is wrong first; what the target reports.
    pub fn verify_shard(&self, shard: StoredShard) -> Result<u64> {
        let checked = self.check_shard(shard.0, &mut |_, _, _| Ok(()));
        checked.map_err(|e| e.context(format!("shard {shard}")))
    }

    /// Reads a whole pack and checks it; `each` takes its directory with the logical offset and the
    /// bytes of each fragment, and may find more wrong. Returns the pack's length.
    ///
    /// # Errors
    /// `Damaged`, saying what is wrong first; what the target reports; those of `each`.
    pub fn check_pack(&self, pack: PackId, each: &mut EachFragment<'_>) -> Result<u64> {
        self.check_shard(shard_of(pack), each).map_err(|e| e.context(format!("pack {pack}")))
    }

    fn check_shard(&self, shard: ShardName, each: &mut EachFragment<'_>) -> Result<u64> {
        let length = self.target().length(shard)?;
        let page = PAGE_BYTES as u64;
        if length % page != 0 || length < SHARD_HEADER_BYTES as u64 + page {
            return Err(Error::damaged(format!("a length of {length} bytes is not possible")));
        }
        let read = |offset, length| self.read_for_check(shard, offset, length);
        let header = ShardHeader::decode(&read(0, SHARD_HEADER_BYTES)?)?;
        let format = &self.config().format;
        if header.pack != shard.pack || header.shard != shard.shard {
            return Err(Error::damaged(format!(
                "its header says that it is shard {} of pack {}",
                header.shard, header.pack
            )));
        }
        if header.pool_id != format.pool_id_bytes() || header.geometry != format.geometry() {
            return Err(Error::damaged("its header belongs to another pool"));
        }
        let last = read(length - page, PAGE_BYTES)?;
        let footer = Footer::decode(&last)?;
        if footer.shard_bytes() != length
            || footer.pack != shard.pack
            || footer.directory_offset() != header.directory_offset()
            || footer.directory_bytes != header.directory_bytes
        {
            return Err(Error::damaged("its footer describes another shard"));
        }
        let tail = read(footer.directory_offset(), footer.tail_bytes() as usize)?;
        let tail = Tail::decode(&tail)?;
        let directory = Directory::decode(&tail.directory)?;
        if directory.packs != [shard.pack] {
            return Err(Error::damaged("its directory belongs to another pack"));
        }
        let mut offset = SHARD_HEADER_BYTES as u64;
        for (number, fragment) in tail.fragments.iter().enumerate() {
            let bytes = read(offset, fragment.length as usize)?;
            if checksum(&bytes) != fragment.checksum {
                return Err(Error::damaged(format!(
                    "fragment {number} does not match its checksum"
                )));
            }
            each(&directory, offset - SHARD_HEADER_BYTES as u64, &bytes)?;
            offset += u64::from(fragment.length);
        }
        Ok(length)
    }

    fn read_for_check(&self, shard: ShardName, offset: u64, length: usize) -> Result<AlignedBuf> {
        // Lengths come from checked structures, at most a container or a tail.
        let range = ReadRange { offset, buffer: AlignedBuf::zeroed(length) };
        Ok(read_one(&**self.target(), shard, range).wait()?)
    }
}
