//! Signs of life from a thread of its own, while other threads work.

use outlive_types::sync::{Condvar, Mutex, spawn};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Beats until it is dropped.
pub struct Pulse(Arc<(Mutex<bool>, Condvar)>);

impl Pulse {
    /// Calls `beat` whenever `every` has passed.
    ///
    /// # Errors
    /// If the system starts no thread.
    pub fn start(every: Duration, mut beat: impl FnMut() + Send + 'static) -> io::Result<Pulse> {
        let pulse = Pulse(Arc::default());
        let over = pulse.0.clone();
        let beats = move || {
            let mut is_over = over.0.lock();
            while !*is_over {
                let waited = over.1.wait_timeout(is_over, every);
                let (guard, has_passed) = waited;
                is_over = guard;
                if has_passed && !*is_over {
                    // With the lock: once this is dropped, no beat follows.
                    beat();
                }
            }
        };
        spawn("outlive-pulse", beats).map(|()| pulse)
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        *self.0.0.lock() = true;
        self.0.1.notify_all();
    }
}
