//! Chooses the targets of a pack's shards.

use super::{Member, TargetSet};
use crate::descriptor::redundancy::Tier;
use outlive_backend::Capacity;
use outlive_format::checksum;
use outlive_types::PackId;
use std::collections::HashSet;

/// Targets are equally full if their free parts differ by less than this, in hundredths of the
/// larger part.
const PERCENT_ALIKE: u128 = 10;
/// A target is slow if its reads take this many times as long as those of others.
const SLOW: u64 = 4;

/// Rating of a target; the least one suits best.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Rate {
    lacks_room: bool,
    is_slow: bool,
    under_way: u64,
    /// Whether the pack passes over this target, which is fuller.
    is_passed_over: bool,
    /// Its position in the order that the pack prefers.
    turn: usize,
}

/// Returns the targets in the order in which they are tried for a pack. First come those that are
/// there, have room, are not slow, and have the least to do; then the pack's preference counts.
/// Some packs pass over a fuller target, so that all become full together.
pub(super) fn choices(targets: &TargetSet, tier: Tier, pack: PackId, bytes_max: u64) -> Vec<usize> {
    let members = targets.members();
    let typical_us =
        if targets.reads_around() { typical(members, Member::least_read_us) } else { 0 };
    let mut there = Vec::with_capacity(members.len());
    for (turn, number) in preferred(members, tier, pack).into_iter().enumerate() {
        let member = &members[number];
        if !member.is_active() || member.is_vacant || member.away().is_some() {
            continue;
        }
        // A target that cannot say how full it is may still take a shard that others do not.
        let unknown = Capacity { total_bytes: 0, free_bytes: 0 };
        there.push((turn, number, member.target().capacity().unwrap_or(unknown)));
    }
    let freest = there.iter().map(|(.., capacity)| free_permille(*capacity)).max().unwrap_or(0);
    let rate = |(turn, number, capacity): (usize, usize, Capacity)| {
        let member = &members[number];
        let under_way = member.under_way();
        let rate = Rate {
            lacks_room: capacity.free_bytes.saturating_sub(under_way) < bytes_max,
            is_slow: typical_us > 0 && member.least_read_us() > SLOW * typical_us.max(500),
            under_way,
            is_passed_over: passes_over(pack, member.id, free_permille(capacity), freest),
            turn,
        };
        (rate, number)
    };
    let mut rated: Vec<(Rate, usize)> = there.into_iter().map(rate).collect();
    rated.sort_unstable();
    rated.into_iter().map(|(_, number)| number).collect()
}

fn free_permille(capacity: Capacity) -> u128 {
    u128::from(capacity.free_bytes) * 1000 / u128::from(capacity.total_bytes.max(1))
}

/// Returns whether a pack passes over a target with a smaller free part than the freest one has.
/// The smaller that part, the more packs do. A hash decides, so that ranks agree without a message.
fn passes_over(pack: PackId, id: u32, free: u128, freest: u128) -> bool {
    free * 100 < freest * (100 - PERCENT_ALIKE)
        && u128::from(hash(&pack.0, id)) * freest > free * u128::from(u64::MAX)
}

/// Returns all targets in the order in which a pack's shards prefer them, shard 0 first. A reader
/// finds a shard at the first attempt if every target takes part in every stripe, or if all were
/// equally good when it was written.
///
/// Each session has its own order. The packs of a rank follow each other in it, from a place that
/// is the rank's own. So the packs that the ranks of a group write at a time are spread evenly,
/// though no rank knows the others' packs. RAID rotates parity in this way. If each pack were
/// hashed by itself, one of eight targets would get three or four of sixteen ranks, and all would
/// wait for these.
pub(super) fn preferred(members: &[Member], tier: Tier, pack: PackId) -> Vec<usize> {
    let is_of_tier = |number: &usize| members[*number].tier == tier;
    let mut order: Vec<usize> = (0..members.len()).filter(is_of_tier).collect();
    let session = pack.session();
    order.sort_unstable_by_key(|number| hash(&session.0, members[*number].id));
    if !order.is_empty() {
        let count = order.len();
        order.rotate_left((first_place(pack.rank(), count) + pack.count() as usize) % count);
    }
    order
}

/// Returns where in a circle of `locations` places the packs of a rank begin. Each rank may write
/// several packs, one place after the other, so this is as far as possible from the ranks before
/// it. No place is used twice before each is used once. This is the sequence of van der Corput,
/// 1935: 0, 1/2, 1/4, 3/4, 1/8, ...
fn first_place(rank: u32, locations: usize) -> usize {
    let part = |n: u64| ((u128::from(n.reverse_bits()) * locations as u128) >> 64) as usize;
    let mut is_taken = vec![false; locations];
    (0..locations.next_power_of_two() as u64)
        .map(part)
        .filter(|location| !std::mem::replace(&mut is_taken[*location], true))
        .nth(rank as usize % locations)
        .unwrap_or_default()
}

fn hash(of: &[u8], id: u32) -> u64 {
    checksum(&[of, &id.to_le_bytes()].concat())
}

/// Returns the median over the targets of the time of a read; 0 if too few have been read from.
pub(super) fn typical_read_us(members: &[Member]) -> u64 {
    typical(members, Member::read_us)
}

fn typical(members: &[Member], of: fn(&Member) -> u64) -> u64 {
    let mut known: Vec<u64> = members.iter().map(of).filter(|us| *us > 0).collect();
    known.sort_unstable();
    if known.len() < 2 { 0 } else { known[(known.len() - 1) / 2] }
}

/// Returns whether a target's reads take far longer than is usual here.
pub(super) fn is_slow(member: &Member, typical_us: u64) -> bool {
    typical_us > 0 && member.read_us() > SLOW * typical_us.max(500)
}

/// Returns at most `count` of the choices, no two in one domain.
pub(super) fn apart(members: &[Member], choices: &[usize], count: usize) -> Vec<usize> {
    let mut taken = HashSet::new();
    let is_apart = |number: &&usize| taken.insert(members[**number].domain.as_str());
    choices.iter().filter(is_apart).take(count).copied().collect()
}
