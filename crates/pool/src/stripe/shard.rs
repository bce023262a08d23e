//! One shard on its target: header, tail and directory, which surround its fragments, checked.

use crate::Pool;
use crate::targets::TargetSet;
use outlive_backend::{ReadRange, ShardName};
use outlive_format::{Directory, Footer, SHARD_HEADER_BYTES, ShardHeader, Tail};
use outlive_io::AlignedBuf;
use outlive_types::{Error, PAGE_BYTES, Result};

/// Header and tail of a shard that agree with each other, and with its name.
#[derive(Debug)]
pub(crate) struct OpenShard {
    pub header: ShardHeader,
    pub tail: Tail,
    pub directory: Directory,
    /// Length of the shard.
    pub stored_bytes: u64,
}

impl OpenShard {
    /// Reads header and tail of a shard, on the target `member` of `targets`.
    ///
    /// # Errors
    /// `Damaged`, with the first fault; errors of the target.
    pub fn open(
        pool: &Pool,
        targets: &TargetSet,
        shard: ShardName,
        member: usize,
    ) -> Result<OpenShard> {
        let target = &targets.members()[member];
        let length = target.target().length(shard)?;
        let page = PAGE_BYTES as u64;
        if length % page != 0 || length < SHARD_HEADER_BYTES as u64 + page {
            return Err(Error::damaged(format!("a length of {length} bytes is not possible")));
        }
        // Lengths come from checked structures, at most a container or a tail.
        let read = |offset, length| -> Result<AlignedBuf> {
            let range = ReadRange::new(offset, AlignedBuf::zeroed(length));
            Ok(target.read(shard, range).wait()?)
        };
        let header = ShardHeader::decode(&read(0, SHARD_HEADER_BYTES)?)?;
        if header.pack != shard.pack || header.shard != shard.shard {
            return Err(Error::damaged(format!(
                "its header says that it is shard {} of pack {}",
                header.shard, header.pack
            )));
        }
        let config = pool.config();
        if header.pool_id != config.format.pool_id_bytes() || header.geometry != config.geometry() {
            return Err(Error::damaged("its header belongs to another pool"));
        }
        let footer = Footer::decode(&read(length - page, PAGE_BYTES)?)?;
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
        Ok(OpenShard { header, tail, directory, stored_bytes: length })
    }
}
