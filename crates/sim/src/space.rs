//! The targets of the pools of a schedule.

use outlive_pool::{Redundancy, Writes};
use outlive_types::SeededRng;

/// The targets of a pool.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Space {
    /// How many there are.
    pub targets: usize,
    /// How many of them may be lost.
    pub redundancy: Redundancy,
    /// Whether targets come and go.
    pub moves: bool,
    /// Whether there is one more, which is slow and holds copies.
    pub slow: bool,
    /// Whether the others are in memory, which may be lost at any moment.
    pub volatile: bool,
    /// So many newest checkpoints stay on the others once the slow one has them; 0 for all.
    pub keeps: u64,
    /// Operators change the targets.
    pub operated: bool,
    /// Places without a target at first: so many more targets can come.
    pub spare: usize,
    /// Containers of a pack at most.
    pub containers: u64,
    /// Whether each program is on a host of its own, and the log has leases.
    pub leases: bool,
}

/// Places that stay free for the commands that a person gives when all programs have ended.
const RESERVE: usize = 4;

impl Space {
    /// That of a seed.
    pub fn of(seed: u64) -> Space {
        let (targets, redundancy) = match seed % 4 {
            3 => (2, Redundancy::default()),
            1 => match seed / 4 % 4 {
                0 => (2, Redundancy::mirror(2)),
                1 => (4, Redundancy::erasure(2, 1)),
                2 => (3, Redundancy::erasure(2, 1)),
                _ => (5, Redundancy::erasure(3, 2)),
            },
            _ => (1, Redundancy::default()),
        };
        // Where a target may be lost, all redundancy must be there before.
        let writes = if (seed / 16).is_multiple_of(2) { Writes::Full } else { Writes::Degraded };
        let moves = seed % 4 == 3 && seed / 4 % 2 == 1 || seed % 4 == 1 && seed / 32 % 2 == 1;
        let slow = seed % 7 == 3;
        // With a slow target, or with nothing that is left.
        let volatile = slow && seed / 7 % 3 == 1 || seed % 35 == 12;
        let moves = moves && !volatile;
        let keeps = if slow && seed / 7 % 4 == 2 { 1 + seed / 28 % 2 } else { 0 };
        let redundancy = Redundancy { writes, ..redundancy };
        let (operated, spare, containers) = (false, usize::from(moves), 1);
        let leases = seed % 8 == 6;
        let of_one =
            Space { targets, redundancy, moves, slow, volatile, keeps, ..Space::default() };
        Space { operated, spare, containers, leases, ..of_one }
    }

    /// That of a schedule about single targets: `operated` or not.
    pub fn of_targets(operated: bool, rng: &SeededRng) -> Space {
        let (targets, redundancy) = match rng.below(8) {
            0 => (1 + rng.below(2) as usize, Redundancy::default()),
            1..=3 => (2 + rng.below(2) as usize, Redundancy::mirror(2)),
            4 => (3, Redundancy::mirror(3)),
            5 | 6 => (3 + rng.below(2) as usize, Redundancy::erasure(2, 1)),
            _ => (4, Redundancy::erasure(2, 2)),
        };
        let writes = if rng.below(3) > 0 { Writes::Full } else { Writes::Degraded };
        // Without redundancy a slow target is all that makes up for damage.
        let slow = rng.below(3) == 0 || !operated && redundancy.survives() == 0;
        let keeps = if slow && rng.below(2) == 0 { 1 + rng.below(2) } else { 0 };
        let spare = if operated { 3 } else { 0 };
        let containers = 1 + rng.below(4);
        let redundancy = Redundancy { writes, ..redundancy };
        let (moves, volatile) = (false, false);
        let of_one =
            Space { targets, redundancy, moves, slow, volatile, keeps, ..Space::default() };
        Space { operated, spare, containers, ..of_one }
    }

    /// How many there are ever.
    pub fn targets_max(&self) -> usize {
        self.used() + if self.operated { RESERVE } else { 0 }
    }

    /// How many places programs use.
    pub fn used(&self) -> usize {
        self.targets + usize::from(self.slow) + self.spare
    }

    /// Whether a table says which targets there are.
    pub fn has_table(&self) -> bool {
        self.moves || self.slow || self.volatile || self.operated
    }

    /// Where a target is put that comes.
    pub fn new_replica(&self) -> usize {
        self.targets + usize::from(self.slow)
    }

    /// So many targets may be lost.
    pub fn survives(&self) -> usize {
        self.redundancy.survives()
    }

    /// Whether saves go on with less redundancy.
    pub fn degrades(&self) -> bool {
        self.redundancy.writes == Writes::Degraded
    }
}
