//! What enters a pool from outside.

use crate::ProcessMark;
use outlive_types::{Clock, NoObserver, Observer, Rng, SystemClock, SystemRng};
use std::sync::Arc;

/// What a pool is given from outside: time, randomness, an observer, and the name of the process.
#[derive(Clone)]
pub struct Environment {
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Random bytes, for the ids of sessions and pools.
    pub rng: Arc<dyn Rng>,
    /// Receives notices and progress.
    pub observer: Arc<dyn Observer>,
    /// Names the process in the log.
    pub process: fn() -> ProcessMark,
}

impl Environment {
    /// The machine's clock and random numbers; nobody listens.
    pub fn system() -> Environment {
        Environment {
            clock: Arc::new(SystemClock::default()),
            rng: Arc::new(SystemRng),
            observer: Arc::new(NoObserver),
            process: ProcessMark::of_this,
        }
    }

    /// The machine's, with somebody who listens.
    pub fn observed(observer: Arc<dyn Observer>) -> Environment {
        Environment { observer, ..Environment::system() }
    }
}
