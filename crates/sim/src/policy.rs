//! How it is decided who goes on: by random steps, or by random priorities that change at few random
//! moments (PCT: Burckhardt, Kothari, Musuvathi, Nagarakatte, "A Randomized Scheduler with
//! Probabilistic Guarantees of Finding Bugs", ASPLOS 2010).

use outlive_types::SeededRng;
use std::fmt;

/// Decides who goes on; equal seeds decide equally.
#[derive(Debug)]
pub struct Policy {
    rng: SeededRng,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// Whoever ran goes on with a probability of `stay` in 256; else anybody.
    Random { stay: u64, last: usize },
    /// The highest priority goes on.
    Pct {
        /// By thread.
        priorities: Vec<u64>,
        /// Steps at which whoever runs falls behind all others; ascending, the next is the last.
        changes: Vec<u64>,
        /// What the next one that falls behind gets.
        lowest: u64,
    },
}

/// Priorities at the beginning lie above this; those given later below.
const PRIORITIES_FROM: u64 = 1 << 40;

impl Policy {
    /// The policy of a seed: of three schedules one is random and two are by priorities.
    pub fn of(seed: u64) -> Policy {
        let rng = SeededRng::new(seed ^ 0x9011_C1E5);
        match rng.below(3) {
            0 => {
                let stay = [0, 128, 220, 250][rng.below(4) as usize];
                Policy { rng, kind: Kind::Random { stay, last: usize::MAX } }
            }
            _ => {
                // A bug that needs d orderings among n threads and k steps is found with a probability of
                // 1 / (n k^(d-1)). How many steps there will be is not known: it is guessed.
                let depth = 1 + rng.below(5);
                let steps = 64 << rng.below(6);
                let mut changes: Vec<u64> = (1..depth).map(|_| rng.below(steps)).collect();
                changes.sort_unstable_by(|a, b| b.cmp(a));
                let kind = Kind::Pct { priorities: Vec::new(), changes, lowest: PRIORITIES_FROM };
                Policy { rng, kind }
            }
        }
    }

    /// A thread has been added.
    pub fn add(&mut self, thread: usize) {
        if let Kind::Pct { priorities, .. } = &mut self.kind {
            debug_assert_eq!(priorities.len(), thread);
            priorities.push(PRIORITIES_FROM + 1 + self.rng.below(1 << 40));
        }
    }

    /// A thread waits for time to pass: others come first from now on.
    pub fn put_last(&mut self, thread: usize) {
        if let Kind::Pct { priorities, lowest, .. } = &mut self.kind {
            *lowest -= 1;
            priorities[thread] = *lowest;
        }
    }

    /// Who of `ready`, which is not empty, goes on at a step.
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
