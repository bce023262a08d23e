//! The targets of the pools of a schedule.

use outlive_pool::{Redundancy, Writes};
use outlive_types::SeededRng;

/// The targets of a pool.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Space {
    /// Number of targets.
    pub targets: usize,
    /// Redundancy rule of the pool.
    pub redundancy: Redundancy,
    /// Whether targets come and go.
    pub moves: bool,
    /// Whether there is also a slow target, which holds copies.
    pub slow: bool,
    /// Whether the other targets are in memory, which may be lost at any moment.
    pub volatile: bool,
    /// Number of newest checkpoints that stay on the fast targets once the slow one has them; 0 for
    /// all.
    pub keeps: u64,
    /// Whether operators change the targets.
    pub operated: bool,
    /// Whether the targets are seats, which hosts take and lose.
    pub seats: bool,
    /// Number of locations without a target at first.
    pub spare: usize,
    /// Maximum number of containers in a pack.
    pub containers: u64,
    /// Whether each program is on its own host, and the log has leases.
    pub leases: bool,
}

/// Locations that stay free for the operator after the end of all programs.
const RESERVE: usize = 4;

impl Space {
    /// Returns the space of a seed.
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
        // With a slow target, or with nothing that survives.
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

    /// Returns the space of a schedule about single targets: `operated` or not.
    pub fn of_targets(operated: bool, rng: &SeededRng) -> Space {
        let (targets, redundancy) = match rng.below(8) {
            0 => (1 + rng.below(2) as usize, Redundancy::default()),
            1..=3 => (2 + rng.below(2) as usize, Redundancy::mirror(2)),
            4 => (3, Redundancy::mirror(3)),
            5 | 6 => (3 + rng.below(2) as usize, Redundancy::erasure(2, 1)),
            _ => (4, Redundancy::erasure(2, 2)),
        };
        let writes = if rng.below(3) > 0 { Writes::Full } else { Writes::Degraded };
        // Without redundancy only a slow target makes up for damage.
        let slow = rng.below(3) == 0 || !operated && redundancy.survives() == 0;
        let keeps = if slow && rng.below(2) == 0 { 1 + rng.below(2) } else { 0 };
        let spare = if operated { 3 } else { 0 };
        let containers = 1 + rng.below(4);
        let redundancy = Redundancy { writes, ..redundancy };
        let (moves, volatile) = (false, false);
        let seats = operated && redundancy.survives() > 0 && containers.is_multiple_of(2);
        let of_one =
            Space { targets, redundancy, moves, slow, volatile, keeps, ..Space::default() };
        Space { operated, seats, spare, containers, ..of_one }
    }

    /// Returns the maximum number of targets.
    pub fn targets_max(&self) -> usize {
        self.used() + if self.operated { RESERVE } else { 0 }
    }

    /// Returns the number of locations that programs use.
    pub fn used(&self) -> usize {
        self.targets + usize::from(self.slow) + self.spare
    }

    /// Whether a table lists the targets.
    pub fn has_table(&self) -> bool {
        self.moves || self.slow || self.volatile || self.operated
    }

    /// Returns the location of a new target.
    pub fn new_replica(&self) -> usize {
        self.targets + usize::from(self.slow)
    }

    /// Returns the number of targets that may be lost.
    pub fn survives(&self) -> usize {
        self.redundancy.survives()
    }

    /// Whether saves go on with less redundancy.
    pub fn degrades(&self) -> bool {
        self.redundancy.writes == Writes::Degraded
    }
}
