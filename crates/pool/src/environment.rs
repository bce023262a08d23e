//! Values that a pool gets from outside.

use crate::ProcessMark;
use outlive_types::{Clock, NoObserver, Observer, Rng, SystemClock, SystemRng};
use std::sync::Arc;

/// Environment of a pool: time, randomness, an observer, and the name of the process.
#[derive(Clone)]
pub struct Environment {
    /// Source of the time.
    pub clock: Arc<dyn Clock>,
    /// Source of random bytes, for the ids of sessions and pools.
    pub rng: Arc<dyn Rng>,
    /// Receiver of notices and progress.
    pub observer: Arc<dyn Observer>,
    /// Function that names the process in the log.
    pub process: fn() -> ProcessMark,
}

impl Environment {
    /// Returns the machine's clock and random numbers, without an observer.
    pub fn system() -> Environment {
        Environment {
            clock: Arc::new(SystemClock::default()),
            rng: Arc::new(SystemRng),
            observer: Arc::new(NoObserver),
            process: ProcessMark::of_this,
        }
    }

    /// Returns the same with this observer.
    pub fn observed(observer: Arc<dyn Observer>) -> Environment {
        Environment { observer, ..Environment::system() }
    }
}
