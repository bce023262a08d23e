//! Reads what lies on the targets, every byte of it, and checks it: shard by shard, as a verification
//! does, or pack by pack.

use crate::Pool;
use crate::stripe::{Breadth, OpenShard, Scan, ShardFault};
use crate::targets::TargetSet;
use outlive_format::{Directory, SHARD_HEADER_BYTES, checksum};
use outlive_io::AlignedBuf;
use outlive_target::{ReadRange, ShardName};
use outlive_types::{Error, PackId, Result};
use std::fmt;

/// A shard that lies on a target. Messages call it by its pack and its number: `PACKID.0`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StoredShard {
    name: ShardName,
    /// The number of that target in `pool.toml`.
    on: u32,
}

impl StoredShard {
    /// The pack it belongs to.
    pub fn pack(&self) -> PackId {
        self.name.pack
    }
}

impl fmt::Display for StoredShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

/// A pack that was read whole.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PackCheck {
    /// Bytes of all copies of its shards, on both tiers.
    pub stored_bytes: u64,
    /// What its redundancy makes up for: shards that the fast tier lacks, and copies on either tier that are damaged
    /// or could not be read.
    pub faults: Vec<ShardFault>,
}

/// Takes the directory of a pack, and the logical offset and the bytes of a container.
pub type EachContainer<'a> = dyn FnMut(&Directory, u64, &[u8]) -> Result<()> + 'a;

impl Pool {
    /// All finished shards on targets that are there, sorted, also those with a number that no pack has.
    ///
    /// # Errors
    /// More targets than the pool can do without cannot be asked.
    pub fn shards(&self) -> Result<Vec<StoredShard>> {
        let targets = self.targets();
        let stored = |(name, number): (ShardName, usize)| StoredShard {
            name,
            on: targets.members()[number].id,
        };
        Ok(targets.list()?.into_iter().map(stored).collect())
    }

    /// Length of a shard.
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
    /// `Damaged`, saying what is wrong first; what the target reports.
    pub fn verify_shard(&self, shard: StoredShard) -> Result<u64> {
        self.check_shard(shard).map_err(|e| e.context(format!("shard {shard}")))
    }

    fn check_shard(&self, shard: StoredShard) -> Result<u64> {
        let (targets, name) = (self.targets(), shard.name);
        let member = number_of(&targets, shard)?;
        self.verify_on(&targets, name, member)
    }

    /// The same of the shard of that name on the target `member` of these.
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

    /// As `verify_on`, and a power cut does not take the copy back: another one may go.
    ///
    /// # Errors
    /// `Damaged`; what the target reports.
    pub(crate) fn secure_on(
        &self,
        targets: &TargetSet,
        name: ShardName,
        member: usize,
    ) -> Result<u64> {
        let bytes = self.verify_on(targets, name, member)?;
        targets.members()[member].target().sync(&[name]).map(|()| bytes)
    }

    /// Reads a whole pack, all copies of its shards, and checks it; `each` takes its directory with the logical
    /// offset and the bytes of each container, and may find more wrong.
    ///
    /// # Errors
    /// `Damaged` if too little of it is whole, saying what is wrong first; what the targets report, if that
    /// is why; those of `each`.
    pub fn check_pack(&self, pack: PackId, each: &mut EachContainer<'_>) -> Result<PackCheck> {
        let mut check = || {
            let mut scan = Scan::open(self, pack, Breadth::All)?;
            let (directory, data) = (scan.directory()?.clone(), scan.data());
            while let Some(fragments) = scan.next(&data)? {
                let offset = fragments.number * self.config().format.container_bytes;
                match &fragments.bytes[..] {
                    // Without a copy.
                    [Some(container)] => each(&directory, offset, container)?,
                    _ => each(&directory, offset, &scan.container(&fragments)?)?,
                }
            }
            Ok(PackCheck { stored_bytes: scan.stored_bytes(), faults: scan.faults().to_vec() })
        };
        check().map_err(|e: Error| e.context(format!("pack {pack}")))
    }
}

/// Where the target of a shard is in the set.
fn number_of(targets: &TargetSet, shard: StoredShard) -> Result<usize> {
    let gone = || Error::damaged(format!("shard {shard} was on a target that was removed"));
    targets.number_of(shard.on).ok_or_else(gone)
}
