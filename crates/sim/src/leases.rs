//! Leases in a pool's log, in some schedules. A lease ends with its program, or while the program
//! runs, as if its host were cut off.

use crate::chance::Chance;
use outlive_log::{Lease, LockGuard};
use outlive_types::sync::plain::Mutex;
use std::fmt;
use std::sync::Arc;

/// A program that holds a lease.
#[derive(Clone)]
pub(crate) struct Holder {
    pub number: usize,
    pub is_dead: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "program {}", self.number)
    }
}

/// All leases so far, each with its program while it is held.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leases(Arc<Mutex<Vec<Option<Holder>>>>);

/// Average number of looks at a lease until one ends it early.
const EARLY: u64 = 3;

impl Leases {
    pub fn take(&self, holder: Holder) -> Lease {
        let mut held = self.0.lock();
        held.push(Some(holder));
        let at = held.len() - 1;
        drop(held);
        let guard = LockGuard::new(Guard { leases: self.clone(), at });
        Lease { token: at.to_string(), guard }
    }

    /// Whether a lease has ended; it may end now.
    pub fn has_ended(&self, token: &str, dice: &Chance) -> Option<bool> {
        let at: usize = token.parse().ok()?;
        let Some(holder) = self.0.lock().get(at)?.clone() else { return Some(true) };
        let is_dead = (holder.is_dead)();
        let ends = is_dead || dice.rng.below(EARLY) == 0;
        if ends && !is_dead {
            dice.turns().remark(|| format!("the lease of {holder:?} ends"));
            dice.achieved("a lease ends early");
        }
        if ends {
            self.0.lock()[at] = None;
        }
        Some(ends)
    }
}

struct Guard {
    leases: Leases,
    at: usize,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.leases.0.lock()[self.at] = None;
    }
}
