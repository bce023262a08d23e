//! The targets of the pools of a schedule.

use outlive_pool::{Redundancy, Writes};

/// The targets of a pool.
#[derive(Clone, PartialEq, Eq, Debug)]
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
}

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
        Space { targets, redundancy, moves, slow, volatile, keeps }
    }

    /// How many there are ever.
    pub fn targets_max(&self) -> usize {
        self.targets + usize::from(self.slow) + usize::from(self.moves)
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
