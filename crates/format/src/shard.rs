//! The parts around a shard's fragments: the header before them; directory, fragment table and
//! footer after them.

use crate::ROOM_BYTES;
use crate::codec::{Check, Reader, Writer, checksum, damaged, demand, encodable};
use outlive_types::{PackId, Result};

/// Length of a shard's header; the first fragment begins there.
pub const SHARD_HEADER_BYTES: usize = 4096;
/// Length of a shard's footer.
pub const FOOTER_BYTES: usize = 64;
/// Most fragments that a shard has.
pub const FRAGMENTS_MAX: usize = 64;

const ALIGN: usize = 4096;
const FRAGMENT_BYTES: usize = 16;
const HEADER: &str = "shard header";
const HEADER_MAGIC: &[u8; 8] = b"OUTLIVE\0";
const FOOTER: &str = "shard footer";
const FOOTER_MAGIC: &[u8; 8] = b"OLFOOT\0\0";
const TABLE: &str = "fragment table";
const CONTAINER_BYTES_MIN: u64 = 64 << 10;
const CONTAINER_BYTES_MAX: u64 = 64 << 20;

/// Distribution of a pack's containers over its shards. Each container is cut into `k` data
/// fragments, and `m` parity fragments of the same length are added. Each shard holds one fragment
/// of every container.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Number of shards that hold data.
    pub k: u8,
    /// Number of shards that hold parity.
    pub m: u8,
    /// Length of a container: a multiple of 4096, 64 KiB to 64 MiB.
    pub container_bytes: u64,
}

impl Geometry {
    /// Returns the geometry with whole containers in one shard.
    pub fn plain(container_bytes: u64) -> Geometry {
        Geometry { k: 1, m: 0, container_bytes }
    }

    /// Returns the length of each fragment of a container of `container_bytes`, a multiple of 4096:
    /// the last data fragment is filled up with zeros.
    pub fn fragment_bytes(&self, container_bytes: u64) -> u64 {
        container_bytes.div_ceil(u64::from(self.k)).next_multiple_of(ALIGN as u64)
    }

    /// Returns the length of all fragments of one shard of a pack whose containers have
    /// `pack_bytes` in total: F in the format's terms.
    pub fn fragments_bytes(&self, pack_bytes: u64) -> u64 {
        let full = pack_bytes / self.container_bytes * self.fragment_bytes(self.container_bytes);
        full + self.fragment_bytes(pack_bytes % self.container_bytes)
    }

    fn check(&self) -> Check {
        let (k, m) = (u16::from(self.k), u16::from(self.m));
        demand!(k > 0 && k + m <= 256, "{k} data and {m} parity shards are not possible");
        let container = self.container_bytes;
        demand!(
            (CONTAINER_BYTES_MIN..=CONTAINER_BYTES_MAX).contains(&container)
                && container.is_multiple_of(ALIGN as u64),
            "containers of {container} bytes are not possible"
        );
        Ok(())
    }
}

/// First 4096 bytes of a shard. They are written last, when all fields are known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShardHeader {
    /// The pack of the shard.
    pub pack: PackId,
    /// Id of the pool, as in `pool.toml`.
    pub pool_id: [u8; 16],
    /// Number within the pack, below k + m.
    pub shard: u8,
    /// Distribution of containers over shards.
    pub geometry: Geometry,
    /// Length of all containers of the pack: C in the format's terms, a multiple of 4096.
    pub containers_bytes: u64,
    /// Length of the directory in bytes: D in the format's terms.
    pub directory_bytes: u32,
}

impl ShardHeader {
    /// Returns the start of the directory in this shard.
    pub fn directory_offset(&self) -> u64 {
        SHARD_HEADER_BYTES as u64 + self.geometry.fragments_bytes(self.containers_bytes)
    }

    /// Encodes the header's 4096 bytes.
    ///
    /// # Errors
    /// `Bug` for fields outside their ranges.
    pub fn encode(&self) -> Result<Vec<u8>> {
        encodable(HEADER, self.check())?;
        let mut out = Writer::begin(HEADER_MAGIC, SHARD_HEADER_BYTES);
        out.u16(self.shard.into());
        out.u8(self.geometry.k);
        out.u8(self.geometry.m);
        out.reserved(2);
        out.bytes(&self.pack.0);
        out.u32(self.directory_bytes);
        out.bytes(&self.pool_id);
        out.u64(self.geometry.container_bytes);
        out.u64(self.containers_bytes);
        out.reserved(SHARD_HEADER_BYTES - 8 - out.written().len());
        out.u64(checksum(out.written()));
        Ok(out.finish())
    }

    /// Reads a header from exactly 4096 bytes.
    ///
    /// # Errors
    /// `Damaged` for anything that `encode` does not write, `Invalid` for another version.
    pub fn decode(bytes: &[u8]) -> Result<ShardHeader> {
        if bytes.len() != SHARD_HEADER_BYTES {
            return Err(damaged(HEADER, format!("it has {} bytes", bytes.len())));
        }
        let (body, stored) = bytes.split_at(SHARD_HEADER_BYTES - 8);
        if checksum(body).to_le_bytes() != *stored {
            return Err(damaged(HEADER, "its checksum does not match"));
        }
        let mut from = Reader::new(HEADER, body);
        from.begin(HEADER_MAGIC)?;
        let shard = from.u16()?;
        let shard =
            u8::try_from(shard).map_err(|_| from.damaged("its shard number is above 255"))?;
        let (k, m) = (from.u8()?, from.u8()?);
        from.reserved(2)?;
        let (pack, directory_bytes, pool_id) = (from.pack()?, from.u32()?, from.array()?);
        let (container_bytes, containers_bytes) = (from.u64()?, from.u64()?);
        from.room(ROOM_BYTES)?;
        from.reserved(from.remaining())?;
        let geometry = Geometry { k, m, container_bytes };
        let header =
            ShardHeader { pack, pool_id, shard, geometry, containers_bytes, directory_bytes };
        from.accept(header.check())?;
        Ok(header)
    }

    fn check(&self) -> Check {
        self.geometry.check()?;
        let Geometry { k, m, container_bytes } = self.geometry;
        let (k, m, shard) = (u16::from(k), u16::from(m), u16::from(self.shard));
        demand!(shard < k + m, "shard {shard} of {k} + {m} is not possible");
        let containers = self.containers_bytes;
        demand!(
            containers <= u32::MAX.into()
                && containers.is_multiple_of(ALIGN as u64)
                && containers.div_ceil(container_bytes) <= FRAGMENTS_MAX as u64,
            "containers of {containers} bytes in all are not possible"
        );
        Ok(())
    }
}

/// One row of the fragment table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fragment {
    /// Length in bytes: a multiple of 4096.
    pub length: u32,
    /// [`checksum`](crate::checksum) of its bytes.
    pub checksum: u64,
}

/// Last 64 bytes of a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Footer {
    /// The pack, as in the header.
    pub pack: PackId,
    /// Length of all fragments in bytes, F in the format's terms: a multiple of 4096.
    pub fragment_bytes: u64,
    /// Length of the directory in bytes, D in the format's terms.
    pub directory_bytes: u32,
    /// Number of fragments.
    pub fragments: u32,
    table_checksum: u64,
}

impl Footer {
    /// Reads the footer at the end of `last`, which ends where the shard ends.
    ///
    /// # Errors
    /// `Damaged` if there is none.
    pub fn decode(last: &[u8]) -> Result<Footer> {
        let Some((_, bytes)) = last.split_last_chunk::<FOOTER_BYTES>() else {
            return Err(damaged(FOOTER, "the shard is too short to have one"));
        };
        let (body, stored) = bytes.split_at(FOOTER_BYTES - 8);
        if checksum(body).to_le_bytes() != *stored {
            return Err(damaged(FOOTER, "its checksum does not match"));
        }
        let mut from = Reader::new(FOOTER, body);
        if from.array()? != *FOOTER_MAGIC {
            return Err(from.damaged("it does not begin with its magic number"));
        }
        let (pack, fragment_bytes) = (from.pack()?, from.u64()?);
        let (directory_bytes, fragments) = (from.u32()?, from.u32()?);
        from.reserved(4)?;
        let table_checksum = from.u64()?;
        let footer = Footer { pack, fragment_bytes, directory_bytes, fragments, table_checksum };
        from.accept(footer.check())?;
        from.end()?;
        Ok(footer)
    }

    /// Returns the start of the directory in the shard.
    pub fn directory_offset(&self) -> u64 {
        SHARD_HEADER_BYTES as u64 + self.fragment_bytes
    }

    /// Returns the length of all parts after the fragments, as [`Tail::decode`] needs it; a
    /// multiple of 4096.
    pub fn tail_bytes(&self) -> u64 {
        let table = self.fragments as u64 * FRAGMENT_BYTES as u64;
        (u64::from(self.directory_bytes) + table + FOOTER_BYTES as u64)
            .next_multiple_of(ALIGN as u64)
    }

    /// Returns the length of the whole shard.
    pub fn shard_bytes(&self) -> u64 {
        self.directory_offset() + self.tail_bytes()
    }

    fn check(&self) -> Check {
        let Footer { fragment_bytes, fragments, .. } = *self;
        demand!(
            fragments as usize <= FRAGMENTS_MAX,
            "it says that there are {fragments} fragments"
        );
        demand!(
            fragment_bytes <= u32::MAX.into() && fragment_bytes.is_multiple_of(ALIGN as u64),
            "fragments of {fragment_bytes} bytes in all are not possible"
        );
        Ok(())
    }
}

/// All parts after the fragments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tail {
    /// The pack, as in the header.
    pub pack: PackId,
    /// Bytes of the directory, with a checksum of their own: see
    /// [`Directory::decode`](crate::Directory::decode).
    pub directory: Vec<u8>,
    /// Fragments in order. All but the last have one length; the last is not longer.
    pub fragments: Vec<Fragment>,
}

impl Tail {
    /// Encodes the tail, a multiple of 4096, which follows the last fragment.
    ///
    /// # Errors
    /// `Bug` for fragments of wrong lengths, or more than [`FRAGMENTS_MAX`], and for a directory of
    /// 4 GiB.
    pub fn encode(&self) -> Result<Vec<u8>> {
        encodable(TABLE, self.check())?;
        let mut footer = Footer {
            pack: self.pack,
            fragment_bytes: self.fragment_bytes(),
            directory_bytes: self.directory.len() as u32,
            fragments: self.fragments.len() as u32,
            table_checksum: 0,
        };
        let tail_bytes = footer.tail_bytes() as usize;
        let table_bytes = FRAGMENT_BYTES * self.fragments.len();
        let mut out = Writer::with_capacity(tail_bytes);
        out.bytes(&self.directory);
        out.reserved(tail_bytes - FOOTER_BYTES - table_bytes - self.directory.len());
        for fragment in &self.fragments {
            out.u32(fragment.length);
            out.reserved(4);
            out.u64(fragment.checksum);
        }
        footer.table_checksum = checksum(&out.written()[self.directory.len()..]);
        out.bytes(FOOTER_MAGIC);
        out.bytes(&footer.pack.0);
        out.u64(footer.fragment_bytes);
        out.u32(footer.directory_bytes);
        out.u32(footer.fragments);
        out.reserved(4);
        out.u64(footer.table_checksum);
        out.u64(checksum(&out.written()[tail_bytes - FOOTER_BYTES..]));
        Ok(out.finish())
    }

    /// Returns the length in bytes of a tail with a directory of `directory_bytes` and this number
    /// of fragments.
    pub fn bytes_for(directory_bytes: usize, fragments: usize) -> usize {
        (directory_bytes + fragments * FRAGMENT_BYTES + FOOTER_BYTES).next_multiple_of(ALIGN)
    }

    /// Reads a tail from all of `bytes`, the last [`Footer::tail_bytes`] of the shard. The
    /// directory is not decoded.
    ///
    /// # Errors
    /// `Damaged` for anything that `encode` does not write.
    pub fn decode(bytes: &[u8]) -> Result<Tail> {
        let footer = Footer::decode(bytes)?;
        if footer.tail_bytes() != bytes.len() as u64 {
            return Err(damaged(FOOTER, format!("it does not describe {} bytes", bytes.len())));
        }
        let (directory, rest) = bytes.split_at(footer.directory_bytes as usize);
        let (guarded, _) = rest.split_at(rest.len() - FOOTER_BYTES);
        if checksum(guarded) != footer.table_checksum {
            return Err(damaged(TABLE, "its checksum does not match"));
        }
        let mut from = Reader::new(TABLE, guarded);
        from.reserved(guarded.len() - FRAGMENT_BYTES * footer.fragments as usize)?;
        let mut fragments = Vec::with_capacity(footer.fragments as usize);
        for _ in 0..footer.fragments {
            let length = from.u32()?;
            from.reserved(4)?;
            fragments.push(Fragment { length, checksum: from.u64()? });
        }
        let tail = Tail { pack: footer.pack, directory: directory.to_vec(), fragments };
        from.accept(tail.check())?;
        if tail.fragment_bytes() != footer.fragment_bytes {
            return Err(from.damaged("its lengths do not add up to what the footer says"));
        }
        Ok(tail)
    }

    /// Returns the length of all fragments in bytes.
    pub fn fragment_bytes(&self) -> u64 {
        self.fragments.iter().map(|fragment| u64::from(fragment.length)).sum()
    }

    fn check(&self) -> Check {
        demand!(self.fragments.len() <= FRAGMENTS_MAX, "it has {} fragments", self.fragments.len());
        demand!(u32::try_from(self.directory.len()).is_ok(), "the directory is too long");
        demand!(self.fragment_bytes() <= u32::MAX.into(), "the fragments exceed 4 GiB");
        let Some((last, others)) = self.fragments.split_last() else { return Ok(()) };
        let full = others.first().map_or(last.length, |first| first.length);
        demand!(
            last.length > 0
                && last.length <= full
                && (last.length as usize).is_multiple_of(ALIGN)
                && (full as usize).is_multiple_of(ALIGN)
                && others.iter().all(|fragment| fragment.length == full),
            "its fragments have impossible lengths"
        );
        Ok(())
    }
}
