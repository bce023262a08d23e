//! Limits long work to a number of bytes per second, so that it does not take all of a device.

use outlive_types::sync::plain::Mutex;
use std::time::{Duration, Instant};

/// Longest single pause: a plan made an hour ago must not stop the work for long.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// A rate shared by all threads of some work.
#[derive(Debug)]
pub struct Pace {
    bytes_per_s: Option<u64>,
    /// Time at which the bytes let through so far are paid for.
    paid: Mutex<Instant>,
}

impl Pace {
    /// Returns a pace of at most `bytes_per_s`; `None` for no limit.
    pub fn new(bytes_per_s: Option<u64>) -> Pace {
        Pace { bytes_per_s, paid: Mutex::new(Instant::now()) }
    }

    /// Waits until `bytes` more are due.
    pub fn spend(&self, bytes: u64) {
        let Some(limit) = self.bytes_per_s else { return };
        let cost = Duration::from_secs_f64(bytes as f64 / limit.max(1) as f64);
        let pause = {
            let mut paid = self.paid.lock();
            let now = Instant::now();
            // Idle time is not saved up.
            let due = (*paid).max(now) + cost;
            *paid = due;
            due.duration_since(now)
        };
        std::thread::sleep(pause.min(PAUSE_MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept() {
        let pace = Pace::new(Some(1_000_000));
        let started = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..5).for_each(|_| pace.spend(10_000)));
            }
        });
        let took = started.elapsed();
        assert!(took >= Duration::from_millis(95), "{took:?}");
        Pace::new(None).spend(u64::MAX);
    }
}
