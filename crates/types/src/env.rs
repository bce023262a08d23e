//! The only sources of time and randomness, so that tests can control them.

use crate::sync::plain::Mutex;
use std::time::{Duration, Instant};

/// Returns the time. It orders nothing: clocks jump.
pub trait Clock: Send + Sync {
    /// Returns nanoseconds since 1970, for people to read.
    fn unix_ns(&self) -> u64;
    /// Returns the time since some fixed moment, never backwards, for intervals.
    fn monotonic(&self) -> Duration;
}

/// The machine's clock.
#[derive(Debug)]
pub struct SystemClock(Instant);

impl Default for SystemClock {
    fn default() -> Self {
        SystemClock(Instant::now())
    }
}

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods)] // this is the source
    fn unix_ns(&self) -> u64 {
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }
}

/// A clock that moves only when a test sets it.
#[derive(Debug, Default)]
pub struct FixedClock(Mutex<Duration>);

impl FixedClock {
    /// Moves the clock to `now`, forwards or backwards.
    pub fn set(&self, now: Duration) {
        *self.0.lock() = now;
    }
}

impl Clock for FixedClock {
    fn unix_ns(&self) -> u64 {
        u64::try_from(self.monotonic().as_nanos()).unwrap_or(u64::MAX)
    }

    fn monotonic(&self) -> Duration {
        *self.0.lock()
    }
}

/// Source of random bytes.
pub trait Rng: Send + Sync {
    /// Fills `bytes`.
    fn fill(&self, bytes: &mut [u8]);
}

/// The kernel's random numbers.
#[derive(Debug, Default)]
pub struct SystemRng;

impl Rng for SystemRng {
    fn fill(&self, bytes: &mut [u8]) {
        getrandom::fill(bytes).expect("the kernel gives random bytes once it has booted");
    }
}

/// Repeatable random numbers (SplitMix64; Steele, Lea, Flood 2014) for tests and benchmarks.
#[derive(Debug)]
pub struct SeededRng(Mutex<u64>);

impl SeededRng {
    /// Returns the sequence of `seed`.
    pub fn new(seed: u64) -> SeededRng {
        SeededRng(Mutex::new(seed))
    }

    /// Returns the next number, uniform over all 64-bit values.
    pub fn next_u64(&self) -> u64 {
        let mut state = self.0.lock();
        *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound` (which is not zero), uniform except for a bias below `bound`
    /// / 2^64.
    pub fn below(&self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}

impl Rng for SeededRng {
    fn fill(&self, bytes: &mut [u8]) {
        for part in bytes.chunks_mut(8) {
            let random = self.next_u64().to_le_bytes();
            part.copy_from_slice(&random[..part.len()]);
        }
    }
}
