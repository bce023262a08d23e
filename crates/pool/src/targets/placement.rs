//! Which targets a pack's shards go to.

use super::{Member, TargetSet};
use crate::redundancy::Tier;
use outlive_format::checksum;
use outlive_target::Capacity;
use outlive_types::PackId;
use std::collections::HashSet;

/// Targets that differ by less are equally full.
const PERCENT_ALIKE: u128 = 5;
/// One whose reads take so many times as long as others' is slow.
const SLOW: u64 = 4;

/// How well a target suits; the least suits best.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Rate {
    lacks_room: bool,
    is_slow: bool,
    under_way: u64,
    percent: u128,
    turn: u64,
}

/// The targets in the order in which they are tried for a pack: those that are there, have room, are not
/// slow and least busy come first, then the emptiest. Of what is alike, each pack has an order of its own.
pub(super) fn choices(targets: &TargetSet, tier: Tier, pack: PackId, bytes_max: u64) -> Vec<usize> {
    let members = targets.members();
    let typical = if targets.reads_around() { typical_read_us(members) } else { 0 };
    let mut rated = Vec::with_capacity(members.len());
    for (number, member) in members.iter().enumerate() {
        if member.tier != tier || member.is_leaving || member.away().is_some() {
            continue;
        }
        // One that cannot say how full it is may still take a shard, when others do not.
        let capacity =
            member.target().capacity().unwrap_or(Capacity { total_bytes: 0, free_bytes: 0 });
        let Capacity { total_bytes, free_bytes } = capacity;
        let under_way = member.under_way();
        let used_bytes = total_bytes - free_bytes.min(total_bytes);
        let percent = u128::from(used_bytes) * 100 / u128::from(total_bytes.max(1));
        let rate = Rate {
            lacks_room: free_bytes.saturating_sub(under_way) < bytes_max,
            is_slow: is_slow(member, typical),
            under_way,
            percent: percent / PERCENT_ALIKE,
            turn: turn(pack, member.id),
        };
        rated.push((rate, number));
    }
    rated.sort_unstable();
    rated.into_iter().map(|(_, number)| number).collect()
}

/// All targets in the order in which a pack's shards prefer them: shard 0 the first, and so on. Who looks
/// for a shard finds it at the first attempt while every target takes part in every stripe. (Rendezvous
/// hashing: Thaler & Ravishankar, 1998. A target more or less changes the order of no others.)
pub(super) fn preferred(members: &[Member], tier: Tier, pack: PackId) -> Vec<usize> {
    let is_of_tier = |number: &usize| members[*number].tier == tier;
    let mut order: Vec<usize> = (0..members.len()).filter(is_of_tier).collect();
    order.sort_unstable_by_key(|number| turn(pack, members[*number].id));
    order
}

fn turn(pack: PackId, id: u32) -> u64 {
    let mut key = [0; 24];
    key[..20].copy_from_slice(&pack.0);
    key[20..].copy_from_slice(&id.to_le_bytes());
    checksum(&key)
}

/// What a read takes at the target in the middle; 0 if too few have been read from.
pub(super) fn typical_read_us(members: &[Member]) -> u64 {
    let mut known: Vec<u64> = members.iter().map(Member::read_us).filter(|us| *us > 0).collect();
    known.sort_unstable();
    if known.len() < 2 { 0 } else { known[(known.len() - 1) / 2] }
}

/// Whether a target's reads take far longer than is usual here.
pub(super) fn is_slow(member: &Member, typical_us: u64) -> bool {
    typical_us > 0 && member.read_us() > SLOW * typical_us.max(500)
}

/// At most `count` of the choices, no two in one domain.
pub(super) fn apart(members: &[Member], choices: &[usize], count: usize) -> Vec<usize> {
    let mut taken = HashSet::new();
    let is_apart = |number: &&usize| taken.insert(members[**number].domain.as_str());
    choices.iter().filter(is_apart).take(count).copied().collect()
}
