//! The choice of the next thread: by random steps, or by random priorities that change at few
//! random moments (PCT: Burckhardt, Kothari, Musuvathi, Nagarakatte, "A Randomized Scheduler with
//! Probabilistic Guarantees of Finding Bugs", ASPLOS 2010).

use outlive_types::SeededRng;
use std::fmt;

/// Chooses the next thread; equal seeds choose equally.
#[derive(Debug)]
pub struct Policy {
    rng: SeededRng,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// The last thread goes on with a probability of `stay` in 256; otherwise a random one.
    Random { stay: u64, last: usize },
    /// The thread with the highest priority goes on.
    Pct {
        /// Priorities by thread.
        priorities: Vec<u64>,
        /// Steps at which the running thread falls behind all others; descending, so the next one
        /// is last.
        changes: Vec<u64>,
        /// Priority of the last thread that fell behind.
        lowest: u64,
    },
}

/// Lower bound of the initial priorities; later ones are below it.
const PRIORITIES_FROM: u64 = 1 << 40;

impl Policy {
    /// Returns the policy of a seed: of three schedules one is random, and two use priorities.
    pub fn of(seed: u64) -> Policy {
        let rng = SeededRng::new(seed ^ 0x9011_C1E5);
        match rng.below(3) {
            0 => {
                let stay = [0, 128, 220, 250][rng.below(4) as usize];
                Policy { rng, kind: Kind::Random { stay, last: usize::MAX } }
            }
            _ => {
                // The policy finds a bug that needs d orderings among n threads and k steps with a
                // probability of 1 / (n k^(d-1)). The number of steps is unknown, so this guesses
                // it.
                let depth = 1 + rng.below(5);
                let steps = 64 << rng.below(6);
                let mut changes: Vec<u64> = (1..depth).map(|_| rng.below(steps)).collect();
                changes.sort_unstable_by(|a, b| b.cmp(a));
                let kind = Kind::Pct { priorities: Vec::new(), changes, lowest: PRIORITIES_FROM };
                Policy { rng, kind }
            }
        }
    }

    /// Adds a thread.
    pub fn add(&mut self, thread: usize) {
        if let Kind::Pct { priorities, .. } = &mut self.kind {
            debug_assert_eq!(priorities.len(), thread);
            priorities.push(PRIORITIES_FROM + 1 + self.rng.below(1 << 40));
        }
    }

    /// Puts a thread that waits for time to pass behind all others.
    pub fn put_last(&mut self, thread: usize) {
        if let Kind::Pct { priorities, lowest, .. } = &mut self.kind {
            *lowest -= 1;
            priorities[thread] = *lowest;
        }
    }

    /// Chooses which of `ready`, which is not empty, goes on at a step.
    pub fn choose(&mut self, step: u64, ready: &[usize]) -> usize {
        match &mut self.kind {
            Kind::Random { stay, last } => {
                if !(ready.contains(last) && self.rng.below(256) < *stay) {
                    *last = ready[self.rng.below(ready.len() as u64) as usize];
                }
                *last
            }
            Kind::Pct { priorities, changes, lowest } => {
                let first = |priorities: &[u64]| {
                    let ready = ready.iter().copied();
                    ready.max_by_key(|thread| priorities[*thread]).unwrap_or(0)
                };
                if changes.last().is_some_and(|at| *at <= step) {
                    changes.pop();
                    *lowest -= 1;
                    let behind = first(priorities);
                    priorities[behind] = *lowest;
                }
                first(priorities)
            }
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Random { stay, .. } => write!(f, "random steps, {stay}/256 to go on"),
            Kind::Pct { changes, .. } => {
                write!(f, "priorities that change at steps {:?}", changes.iter().rev())
            }
        }
    }
}
