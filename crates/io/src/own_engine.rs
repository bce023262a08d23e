//! An engine that one owner has for itself, in each process that uses the owner.

use crate::{DiskEngine, PerProcess, Ticket};
use std::fmt;
use std::sync::Arc;

/// An engine whose threads no other owner uses: jobs that hang take no thread from the jobs of
/// others. The first job creates it. A forked child creates its own.
pub struct OwnEngine {
    depth: usize,
    engine: PerProcess<Option<Arc<DiskEngine>>>,
}

impl OwnEngine {
    /// Returns an engine of at most `depth` threads (at least one); each starts when it is first
    /// needed.
    pub const fn new(depth: usize) -> OwnEngine {
        OwnEngine { depth, engine: PerProcess::new(|_| None) }
    }

    /// Queues `job`: see [`DiskEngine::submit`].
    pub fn submit<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Ticket<T> {
        let engine = {
            let mut engine = self.engine.lock();
            engine.get_or_insert_with(|| Arc::new(DiskEngine::new(self.depth))).clone()
        };
        engine.submit(job)
    }
}

impl fmt::Debug for OwnEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnEngine(depth {})", self.depth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn jobs_that_hang_hold_up_no_other_engine() {
        let (hung, other) = (OwnEngine::new(1), OwnEngine::new(1));
        let (go_on, ends) = channel::<()>();
        let hangs = hung.submit(move || ends.recv().is_err());
        let behind = hung.submit(|| 1);
        assert_eq!(other.submit(|| 2).wait(), 2);
        assert!(!hangs.ready() && !behind.ready());
        drop(go_on);
        assert!(hangs.wait());
        assert_eq!(behind.wait(), 1);
    }
}
