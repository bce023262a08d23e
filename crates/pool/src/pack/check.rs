//! Reads and checks every byte on the targets: shard by shard for a verification, or pack by pack.

use crate::Pool;
use crate::stripe::{Breadth, OpenShard, Scan, ShardFault};
use crate::targets::TargetSet;
use outlive_backend::{ReadRange, ShardName};
use outlive_format::{Directory, SHARD_HEADER_BYTES, checksum};
use outlive_io::AlignedBuf;
use outlive_types::{Error, PackId, Result};
use std::fmt;

/// A shard that a target stores. Messages call it by its pack and its number: `PACKID.0`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StoredShard {
    name: ShardName,
    /// Number of that target in `pool.toml`.
    on: u32,
}

impl StoredShard {
    /// Returns the pack of the shard.
    pub fn pack(&self) -> PackId {
        self.name.pack
    }
}

impl fmt::Display for StoredShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

/// Result of reading a whole pack.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PackCheck {
    /// Bytes of all copies of its shards, on both tiers.
    pub stored_bytes: u64,
    /// Faults that its redundancy makes up for: shards that the fast tier lacks, and copies on
    /// either tier that are damaged or unreadable.
    pub faults: Vec<ShardFault>,
}

/// Function that takes the directory of a pack, and the logical offset and bytes of a container.
pub type EachContainer<'a> = dyn FnMut(&Directory, u64, &[u8]) -> Result<()> + 'a;

impl Pool {
    /// Returns all finished shards on reachable targets, sorted, even those whose number no pack
    /// has.
    ///
    /// # Errors
    /// If more targets cannot be listed than the pool can do without.
    pub fn shards(&self) -> Result<Vec<StoredShard>> {
        let targets = self.targets();
        let stored = |(name, number): (ShardName, usize)| StoredShard {
            name,
            on: targets.members()[number].id,
        };
        Ok(targets.list()?.into_iter().map(stored).collect())
    }

    /// Returns the length of a shard.
    ///
    /// # Errors
    /// `Damaged` if it is missing.
    pub fn shard_bytes(&self, shard: StoredShard) -> Result<u64> {
        let targets = self.targets();
        targets.members()[number_of(&targets, shard)?].target().length(shard.name)
    }

    /// Reads a whole shard and checks every byte of it: header, fragments, directory, padding,
    /// tables. Returns its length.
    ///
    /// # Errors
    /// `Damaged`, with the first fault; errors of the target.
    pub fn verify_shard(&self, shard: StoredShard) -> Result<u64> {
        self.check_shard(shard).map_err(|e| e.context(format!("shard {shard}")))
    }

    fn check_shard(&self, shard: StoredShard) -> Result<u64> {
        let (targets, name) = (self.targets(), shard.name);
        let member = number_of(&targets, shard)?;
        self.verify_on(&targets, name, member)
    }

    /// Does the same for the shard `name` on the target `member` of `targets`.
    pub(crate) fn verify_on(
        &self,
        targets: &TargetSet,
        name: ShardName,
        member: usize,
    ) -> Result<u64> {
        let open = OpenShard::open(self, targets, name, member)?;
        let mut offset = SHARD_HEADER_BYTES as u64;
        for (number, fragment) in open.tail.fragments.iter().enumerate() {
            let buffer = AlignedBuf::zeroed(fragment.length as usize);
            let target = &targets.members()[member];
            let bytes = target.read(name, ReadRange::new(offset, buffer)).wait()?;
            if checksum(&bytes) != fragment.checksum {
                let what = format!("fragment {number} does not match its checksum");
                return Err(Error::damaged(what));
            }
            offset += u64::from(fragment.length);
        }
        Ok(open.stored_bytes)
    }

    /// As `verify_on`, and makes the copy safe from a power cut, so that another copy may be
    /// deleted.
    ///
    /// # Errors
    /// `Damaged`; errors of the target.
    pub(crate) fn secure_on(
        &self,
        targets: &TargetSet,
        name: ShardName,
        member: usize,
    ) -> Result<u64> {
        let bytes = self.verify_on(targets, name, member)?;
        targets.members()[member].target().sync(&[name]).map(|()| bytes)
    }

    /// Reads and checks a whole pack with all copies of its shards. `each` takes the directory, and
    /// the logical offset and bytes of each container; it may find more faults.
    ///
    /// # Errors
    /// `Damaged` if too little of the pack is whole, with the first fault; an error of a target, if
    /// that is the reason; errors of `each`.
    pub fn check_pack(&self, pack: PackId, each: &mut EachContainer<'_>) -> Result<PackCheck> {
        let mut check = || {
            let mut scan = Scan::open(self, pack, Breadth::All)?;
            let (directory, data) = (scan.directory()?.clone(), scan.data());
            while let Some(fragments) = scan.next(&data)? {
                let offset = fragments.number * self.config().format.container_bytes;
                match &fragments.bytes[..] {
                    // The only fragment is the container: no copy.
                    [Some(container)] => each(&directory, offset, container)?,
                    _ => each(&directory, offset, &scan.container(&fragments)?)?,
                }
            }
            Ok(PackCheck { stored_bytes: scan.stored_bytes(), faults: scan.faults().to_vec() })
        };
        check().map_err(|e: Error| e.context(format!("pack {pack}")))
    }
}

/// Returns the position of a shard's target in the set.
fn number_of(targets: &TargetSet, shard: StoredShard) -> Result<usize> {
    let gone = || Error::damaged(format!("shard {shard} was on a target that was removed"));
    targets.number_of(shard.on).ok_or_else(gone)
}
