//! Limits of a probe, and the figures that it returns.

use crate::curve::Point;
use serde::Serialize;
use std::time::Duration;

/// Limits of a probe, for each target.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// Time for all measurements together.
    pub budget: Duration,
    /// Space for scratch shards; a small target gives less.
    pub scratch_bytes_max: u64,
    /// Number of positions.
    pub positions: u64,
    /// Number of samples of each size and each queue depth, of which the median counts.
    pub rounds: u32,
    /// Longest access, a power of two.
    pub access_bytes_max: u64,
    /// Length of the writes that the pool makes: a container, or its fragment.
    pub fragment_bytes: u64,
    /// Largest number of requests in flight.
    pub depth_max: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            budget: Duration::from_secs(40),
            scratch_bytes_max: 256 << 20,
            positions: 32,
            rounds: 3,
            access_bytes_max: 8 << 20,
            fragment_bytes: 4 << 20,
            depth_max: 16,
        }
    }
}

impl Options {
    /// Returns limits for more samples: up to five minutes and 2 GiB.
    pub fn thorough() -> Options {
        Options {
            budget: Duration::from_secs(300),
            scratch_bytes_max: 2 << 30,
            positions: 128,
            rounds: 9,
            access_bytes_max: 16 << 20,
            depth_max: 64,
            ..Options::default()
        }
    }
}

/// Figures of one target. Throughput counts durable bytes: the time of a write ends with the `finish`
/// of its shard, less the time that an empty shard takes.
#[derive(Clone, PartialEq, Default, Debug, Serialize)]
pub struct Measurement {
    /// Seconds that a shard of one page takes.
    pub shard_s: f64,
    /// Seconds that one more read of a page adds, while as many are in flight as in a restore.
    pub request_s: f64,
    /// Least queue depth that is within 5 % of the best, of reads and of writes.
    pub depth: u32,
    /// Length of the accesses of figures over position.
    pub position_access_bytes: u64,
    /// Reads over position, one at a time.
    pub read_positions: Vec<Point>,
    /// Reads over position, `depth` in flight.
    pub read_positions_queued: Vec<Point>,
    /// Writes over position, one at a time.
    pub write_positions: Vec<Point>,
    /// Writes over position, `depth` in flight.
    pub write_positions_queued: Vec<Point>,
    /// Random reads over size, one at a time.
    pub read_sizes: Vec<Point>,
    /// Ascending writes over size, one at a time.
    pub write_sizes: Vec<Point>,
    /// Writes in random order over size, one at a time.
    pub write_sizes_random: Vec<Point>,
    /// Random reads over the number in flight.
    pub read_depths: Vec<Point>,
    /// Writes over the number in flight.
    pub write_depths: Vec<Point>,
    /// Bytes of the scratch shards that existed at once, at most.
    pub scratch_bytes: u64,
    /// Bytes written and read in all.
    pub written_bytes: u64,
    /// Bytes read in all.
    pub read_bytes: u64,
    /// Seconds of the whole probe.
    pub took_s: f64,
    /// Whether time was short, so that some samples are missing.
    pub is_cut: bool,
}
