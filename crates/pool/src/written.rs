//! Targets on which packs were written: a commit must know whether one of these has left since.

use outlive_types::sync::plain::{Mutex, MutexGuard};
use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

/// For each pack that was written, the numbers of the targets that have its shards, ascending.
/// Packs on the same targets are one entry.
pub type Spread = BTreeSet<Vec<u32>>;

/// A spread that grows as packs are written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Growing(Arc<Mutex<Spread>>);

impl Growing {
    fn lock(&self) -> MutexGuard<'_, Spread> {
        self.0.lock()
    }

    /// Returns the spread as it is now.
    pub fn now(&self) -> Spread {
        self.lock().clone()
    }
}

/// The spreads that are still in use: each gets all packs that this process writes.
#[derive(Debug, Default)]
pub(crate) struct OpenSpreads(Mutex<Vec<Weak<Mutex<Spread>>>>);

impl OpenSpreads {
    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Mutex<Spread>>>> {
        self.0.lock()
    }

    /// Returns a spread of the packs that are written from now on.
    pub fn begin(&self) -> Growing {
        let growing = Growing::default();
        let mut all = self.lock();
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&growing.0));
        growing
    }

    /// Notes that a pack is durable on these targets.
    pub fn note(&self, mut targets: Vec<u32>) {
        targets.sort_unstable();
        for growing in self.lock().iter().filter_map(Weak::upgrade) {
            Growing(growing).lock().insert(targets.clone());
        }
    }
}
