//! The blows to a target, and the known damage.

use outlive_backend::{CutMode, DiskCopy, FaultProcess, ShardName};
use outlive_format::{SHARD_HEADER_BYTES, ShardHeader};
use outlive_pool::{TargetConfig, Tier};
use outlive_types::PackId;
use outlive_types::sync::plain::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// An event at one location.
#[derive(Debug)]
pub(crate) enum Blow {
    /// Bits of a byte of a shard flip.
    Flip { shard: ShardName, offset: u64, mask: u8 },
    /// The target cannot be reached until it is back.
    Away,
    /// The target finishes and deletes shards too late until it is back; all else fails if it is
    /// away, too. Programs may leave it alone meanwhile.
    Slow { is_away: bool, is_left_alone: bool },
    /// A new disk replaces it; with `marker` it has the marker of the old one.
    Empty { marker: bool },
    /// An old copy of its disk replaces it.
    RolledBack(DiskCopy),
    /// The target loses its power, and so its names that are not durable.
    Cut(CutMode),
    /// An operator declares it lost.
    GivenUp,
}

/// The harm done to the targets of a pool.
#[derive(Debug, Default)]
pub(crate) struct Harm {
    pub(crate) facts: Mutex<Facts>,
}

#[derive(Debug, Default)]
pub(crate) struct Facts {
    /// Each shard as it was written.
    pub(crate) whole: BTreeMap<ShardName, Arc<Vec<u8>>>,
    /// The shards of each pack that were ever hit.
    pub(crate) hit: BTreeMap<PackId, BTreeSet<u8>>,
    /// The targets that an operator gives up: each location with the target's number.
    pub(crate) given_up: BTreeSet<(usize, u32)>,
    /// The program that made each claim.
    pub(crate) claims: BTreeMap<String, FaultProcess>,
}

/// The damage of a copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Damage {
    Containers(BTreeSet<u64>),
    All,
}

impl Damage {
    pub(crate) fn none() -> Damage {
        Damage::Containers(BTreeSet::new())
    }

    pub(crate) fn hits(&self, container: u64) -> bool {
        match self {
            Damage::Containers(containers) => containers.contains(&container),
            Damage::All => true,
        }
    }
}

/// A copy of a shard on a target of the pool.
#[derive(Clone, Debug)]
pub(crate) struct ShardCopy {
    pub(crate) disk: usize,
    pub(crate) shard: ShardName,
    pub(crate) tier: Tier,
    pub(crate) damage: Damage,
    /// Whether its target can be reached.
    pub(crate) is_there: bool,
}

/// Returns the container of a byte of a shard; none for header, directory and tables.
pub(crate) fn container_at(whole: &[u8], offset: u64) -> Option<u64> {
    let header = ShardHeader::decode(whole.get(..SHARD_HEADER_BYTES)?).ok()?;
    let start = SHARD_HEADER_BYTES as u64;
    let fragment = header.geometry.fragment_bytes(header.geometry.container_bytes);
    (start..header.directory_offset()).contains(&offset).then(|| (offset - start) / fragment)
}

pub(crate) fn containers_of(whole: &[u8]) -> u64 {
    let header = whole.get(..SHARD_HEADER_BYTES).map(ShardHeader::decode);
    let Some(Ok(header)) = header else { return 1 };
    header.containers_bytes.div_ceil(header.geometry.container_bytes).max(1)
}

pub(crate) fn damage_of(whole: &Arc<Vec<u8>>, now: &Arc<Vec<u8>>) -> Damage {
    if Arc::ptr_eq(whole, now) || whole == now {
        return Damage::none();
    }
    if whole.len() != now.len() {
        return Damage::All;
    }
    let mut containers = BTreeSet::new();
    for (at, _) in whole.iter().zip(&**now).enumerate().filter(|(_, (one, other))| one != other) {
        match container_at(whole, at as u64) {
            Some(container) => drop(containers.insert(container)),
            None => return Damage::All,
        }
    }
    Damage::Containers(containers)
}

/// Returns the location of a target.
pub(crate) fn disk_of(row: &TargetConfig) -> Option<usize> {
    row.location.rsplit('/').next()?.parse().ok()
}

/// Returns the claim in a record of the table.
pub(crate) fn claim_of(record: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(record);
    let claim = text.lines().find_map(|line| line.trim().strip_prefix("claim = "))?;
    Some(claim.to_owned())
}
