//! Plans the fate of each copy of a pack's shards: a value, computed from a listing and from the
//! table of targets. `bring` executes it.

use crate::descriptor::redundancy::Tier;
use crate::targets::{Member, TargetSet};

/// Steps that a repair may take with a pack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Allowed {
    /// Whether to make missing shards. Not of a pack that is still being written.
    pub make: bool,
    /// Whether to move copies on targets that stay apart, and to delete surplus ones. Not of a pack
    /// that no checkpoint names yet: its writer counts on their places.
    pub tidy: bool,
}

/// Fate of one shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// Its copies stay as they are.
    Rests,
    /// One copy stays, and the others go once that one has been read.
    Stays {
        /// The target that keeps it.
        on: usize,
        /// The others that have it.
        surplus: Vec<usize>,
    },
    /// It is written on another target; then its copies go, if it has any.
    Moves {
        /// The targets that have it.
        from: Vec<usize>,
    },
}

impl Fate {
    /// Returns whether there is work.
    pub fn is_work(&self) -> bool {
        match self {
            Fate::Rests => false,
            Fate::Stays { surplus, .. } => !surplus.is_empty(),
            Fate::Moves { .. } => true,
        }
    }
}

/// Plans one tier of a pack. `copies` are pairs of a shard and of a target that is there.
///
/// On the fast tier, as many shards as possible stay where they are, no two on targets that fail
/// together. That is a bipartite matching of shards and domains, by augmenting paths (Kuhn, "The
/// Hungarian method for the assignment problem", 1955). Slow targets keep copies beside each other,
/// and a fill makes what they lack.
pub(crate) fn plan(
    targets: &TargetSet,
    tier: Tier,
    count: usize,
    copies: &[(u8, usize)],
    allowed: Allowed,
) -> Vec<Fate> {
    let copies = by_shard(count, copies);
    let stays = |number: &usize| targets.members()[*number].is_active();
    let spots = match tier {
        Tier::Fast => spots(&copies, &|on| {
            let member = &targets.members()[on];
            member.is_active().then_some(&member.domain)
        }),
        Tier::Slow => {
            copies.iter().map(|on| on.iter().copied().find(|number| stays(number))).collect()
        }
    };
    let fate = |(on, spot): (&Vec<usize>, Option<usize>)| {
        let goes = |other: &&usize| Some(**other) != spot && (allowed.tidy || !stays(other));
        match spot {
            Some(spot) => {
                let surplus: Vec<usize> = on.iter().filter(goes).copied().collect();
                // Slow copies beside a slow copy do no harm.
                let surplus = match tier {
                    Tier::Fast => surplus,
                    Tier::Slow => surplus.into_iter().filter(|other| !stays(other)).collect(),
                };
                Fate::Stays { on: spot, surplus }
            }
            None if on.is_empty() => match allowed.make && tier == Tier::Fast {
                true => Fate::Moves { from: Vec::new() },
                false => Fate::Rests,
            },
            None if allowed.tidy || !on.iter().any(stays) => Fate::Moves { from: on.clone() },
            // Another shard has the spot. Copies on targets that leave go all the same.
            None => {
                let (stay, surplus): (Vec<usize>, Vec<usize>) = on.iter().partition(|on| stays(on));
                match surplus.is_empty() {
                    true => Fate::Rests,
                    false => Fate::Stays { on: stay[0], surplus },
                }
            }
        }
    };
    copies.iter().zip(spots).map(fate).collect()
}

/// Returns how many shards of a pack are on fast targets that fail by themselves, one for each.
/// Each target that is lost takes one of these at most.
pub(crate) fn apart(targets: &TargetSet, count: usize, copies: &[(u8, usize)]) -> usize {
    // A target that is being emptied still has its shards.
    let domain = |on: usize| {
        let member: &Member = &targets.members()[on];
        (!member.is_lost()).then_some(&member.domain)
    };
    spots(&by_shard(count, copies), &domain).into_iter().flatten().count()
}

/// Returns the targets that have a copy, for each shard.
fn by_shard(count: usize, copies: &[(u8, usize)]) -> Vec<Vec<usize>> {
    let mut by_shard = vec![Vec::new(); count];
    for (shard, on) in copies {
        if let Some(there) = by_shard.get_mut(usize::from(*shard)) {
            there.push(*on);
        }
    }
    by_shard
}

/// Chooses one target for each shard, as far as there are: at most one in each domain, none without
/// a domain.
fn spots<'a>(
    copies: &[Vec<usize>],
    domain: &dyn Fn(usize) -> Option<&'a String>,
) -> Vec<Option<usize>> {
    let mut spots: Vec<Option<usize>> = vec![None; copies.len()];
    for shard in 0..copies.len() {
        spot(shard, copies, domain, &mut spots, &mut Vec::new());
    }
    spots
}

/// Gives a shard a spot; others that have a choice may change theirs. `met` are the domains tried
/// so far.
fn spot<'a>(
    shard: usize,
    copies: &[Vec<usize>],
    domain: &dyn Fn(usize) -> Option<&'a String>,
    spots: &mut [Option<usize>],
    met: &mut Vec<&'a String>,
) -> bool {
    for on in &copies[shard] {
        let Some(wanted) = domain(*on).filter(|wanted| !met.contains(wanted)) else { continue };
        met.push(wanted);
        let is_holder = |spot: &Option<usize>| spot.and_then(domain) == Some(wanted);
        let holder = spots.iter().position(is_holder);
        if holder.is_none_or(|holder| spot(holder, copies, domain, spots, met)) {
            spots[shard] = Some(*on);
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::redundancy::TargetState;
    use crate::{FormatConfig, PoolConfig, Redundancy, Tuning};
    use outlive_backend::MemoryTarget;
    use std::sync::Arc;

    fn set(members: &[(&str, TargetState)]) -> TargetSet {
        let member = |(id, (host, state)): (u32, &(&str, TargetState))| {
            Member::new(id, Arc::new(MemoryTarget::new())).on(Some(host)).in_state(*state)
        };
        let members = (1..).zip(members).map(member).collect();
        let config = PoolConfig::new(FormatConfig::new([7; 16]), Tuning::default());
        TargetSet::new(members, &PoolConfig { redundancy: Redundancy::erasure(2, 1), ..config })
    }

    const ALL: Allowed = Allowed { make: true, tidy: true };
    const NONE: Allowed = Allowed { make: false, tidy: false };

    fn moves(from: &[usize]) -> Fate {
        Fate::Moves { from: from.to_vec() }
    }

    fn stays(on: usize, surplus: &[usize]) -> Fate {
        Fate::Stays { on, surplus: surplus.to_vec() }
    }

    #[test]
    fn shards_stay_where_they_are_apart() {
        use TargetState::{Active, Closed, Draining, Lost};
        let all = set(&[("a", Active), ("b", Active), ("c", Active), ("c", Active)]);
        let fast = |copies: &[(u8, usize)], allowed| plan(&all, Tier::Fast, 3, copies, allowed);
        // Nothing to do.
        let whole = fast(&[(0, 0), (1, 1), (2, 3)], ALL);
        assert_eq!(whole, [stays(0, &[]), stays(1, &[]), stays(3, &[])]);
        assert!(!whole.iter().any(Fate::is_work));
        // A duplicate leaves its place to a shard that has no other: shard 0 stays on `b`.
        let doubled = [(0, 0), (0, 1), (1, 0), (2, 2)];
        assert_eq!(fast(&doubled, ALL), [stays(1, &[0]), stays(0, &[]), stays(2, &[])]);
        // Two on one host: one moves, but not while its writer counts on it.
        let together = [(0, 0), (1, 2), (2, 3)];
        assert_eq!(fast(&together, ALL), [stays(0, &[]), stays(2, &[]), moves(&[3])]);
        assert_eq!(fast(&together, NONE), [stays(0, &[]), stays(2, &[]), Fate::Rests]);
        // One is missing.
        assert_eq!(fast(&[(0, 0), (2, 2)], ALL)[1], moves(&[]));
        assert_eq!(fast(&[(0, 0), (2, 2)], NONE)[1], Fate::Rests);
        assert_eq!(apart(&all, 3, &doubled), 3);
        assert_eq!(apart(&all, 3, &together), 2);
        assert_eq!(apart(&all, 3, &[(0, 0), (1, 0), (2, 0)]), 1);
        // A repair moves shards off targets that leave, even if a writer counts on them.
        for state in [Draining, Closed, Lost] {
            let all = set(&[("a", state), ("b", Active), ("c", Active), ("d", Active)]);
            let copies = [(0, 0), (1, 0), (1, 1), (2, 2)];
            let fates = plan(&all, Tier::Fast, 3, &copies, NONE);
            assert_eq!(fates, [moves(&[0]), stays(1, &[0]), stays(2, &[])], "{state:?}");
            // Even if a copy is left beside another shard.
            let copies = [(0, 1), (1, 0), (1, 1), (2, 2)];
            let fates = plan(&all, Tier::Fast, 3, &copies, NONE);
            assert_eq!(fates, [stays(1, &[]), stays(1, &[0]), stays(2, &[])], "{state:?}");
        }
    }
}
