//! On which targets packs were written: whoever commits must know whether one of these has left since.

use outlive_types::sync::plain::{Mutex, MutexGuard};
use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

/// For each pack that was written the numbers of the targets on which its shards are, ascending. Packs that are on
/// the same targets are one entry.
pub type Spread = BTreeSet<Vec<u32>>;

/// A spread that grows as packs are written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Growing(Arc<Mutex<Spread>>);

impl Growing {
    fn lock(&self) -> MutexGuard<'_, Spread> {
        self.0.lock()
    }

    /// As it is now.
    pub fn now(&self) -> Spread {
        self.lock().clone()
    }
}

/// Tells all spreads that somebody has begun, and still has, of the packs of this process.
#[derive(Debug, Default)]
pub(crate) struct Written(Mutex<Vec<Weak<Mutex<Spread>>>>);

impl Written {
    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Mutex<Spread>>>> {
        self.0.lock()
    }

    /// A spread of what is written from now on.
    pub fn begin(&self) -> Growing {
        let growing = Growing::default();
        let mut all = self.lock();
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&growing.0));
        growing
    }

    /// A pack is durable on these targets.
    pub fn note(&self, mut targets: Vec<u32>) {
        targets.sort_unstable();
        for growing in self.lock().iter().filter_map(Weak::upgrade) {
            Growing(growing).lock().insert(targets.clone());
        }
    }
}
