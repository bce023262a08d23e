//! Requests with many bytes in one direction, and how many connections carry them: more where one
//! does not fill the link. Many networks bound each connection, as those of public clouds do.

use crate::protocol::UNIT_BYTES;
use outlive_types::sync::plain::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Connections for shards that a process opens to a node at most.
pub(crate) const CONNECTIONS_MAX: usize = 8;
/// The number that it begins with.
const CONNECTIONS_FIRST: usize = 2;
/// Requests at once. Each copies only a part at a time.
const AT_ONCE: usize = 16;
/// Time with enough requests in flight over which throughput is measured.
const WINDOW: Duration = Duration::from_millis(500);
/// Twice as many connections stay if they carry at least this many times as much.
const GAIN_MIN: f64 = 1.25;
/// Windows after which more connections are tried again.
const REST: u32 = 64;

/// The requests of one direction.
pub(crate) struct Lanes {
    turns: Arc<Semaphore>,
    load: Mutex<Load>,
}

/// A request that may be sent.
pub(crate) struct Turn<'a> {
    lanes: &'a Lanes,
    /// Number of the connection that carries it.
    pub connection: usize,
    /// Bytes that it carries at most. A node has room for some megabytes of a client: so that all
    /// connections carry some of them, their requests are short.
    pub bytes_max: usize,
    _one_of_few: Option<OwnedSemaphorePermit>,
}

struct Load {
    /// Requests in flight on each connection.
    in_flight: [usize; CONNECTIONS_MAX],
    breadth: Breadth,
}

impl Lanes {
    pub fn new() -> Lanes {
        let load = Load { in_flight: [0; CONNECTIONS_MAX], breadth: Breadth::new() };
        Lanes { turns: Arc::new(Semaphore::new(AT_ONCE)), load: Mutex::new(load) }
    }

    /// Waits until fewer requests are in flight than may be.
    pub async fn turn(&self) -> Turn<'_> {
        let _one_of_few = self.turns.clone().acquire_owned().await.ok();
        let Load { in_flight, breadth } = &mut *self.load.lock();
        let used = in_flight.iter().enumerate().take(breadth.connections);
        let connection =
            used.min_by_key(|(_, requests)| **requests).map_or(0, |(number, _)| number);
        in_flight[connection] += 1;
        let bytes_max = UNIT_BYTES * CONNECTIONS_FIRST / breadth.connections;
        Turn { lanes: self, connection, bytes_max, _one_of_few }
    }
}

impl Turn<'_> {
    /// Notes that the request has carried these bytes.
    pub fn carried(&self, bytes: usize) {
        let Load { in_flight, breadth } = &mut *self.lanes.load.lock();
        breadth.carried(bytes, in_flight.iter().sum(), Instant::now());
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.lanes.load.lock().in_flight[self.connection] -= 1;
    }
}

/// The number of connections in use: twice as many are tried, and stay if they carry more.
struct Breadth {
    connections: usize,
    /// Bytes a second with half as many connections, if these are tried.
    before: Option<f64>,
    /// Windows until more are tried.
    rest: u32,
    /// Requests until the next window: those that were in flight when the number changed.
    old: usize,
    /// The window: bytes, time, and the last request if enough were in flight then.
    bytes: usize,
    took: Duration,
    last: Option<Instant>,
}

impl Breadth {
    fn new() -> Breadth {
        Breadth {
            connections: CONNECTIONS_FIRST,
            before: None,
            rest: 0,
            old: 0,
            bytes: 0,
            took: Duration::ZERO,
            last: None,
        }
    }

    /// Notes a request. Only the time counts in which each connection has one in flight, so that they
    /// wait for the link or for the node.
    fn carried(&mut self, bytes: usize, in_flight: usize, now: Instant) {
        if self.old > 0 {
            self.old -= 1;
            return;
        }
        if in_flight < self.connections {
            self.last = None;
            return;
        }
        if let Some(last) = self.last.replace(now) {
            self.bytes += bytes;
            self.took += now.saturating_duration_since(last);
        }
        if self.took >= WINDOW {
            let rate = self.bytes as f64 / self.took.as_secs_f64();
            let connections = self.connections;
            self.decide(rate);
            (self.bytes, self.took, self.last) = (0, Duration::ZERO, None);
            self.old = if self.connections == connections { 0 } else { in_flight };
        }
    }

    /// Decides after a window with this many bytes a second.
    fn decide(&mut self, rate: f64) {
        match self.before {
            Some(before) if rate < before * GAIN_MIN => {
                (self.connections, self.before, self.rest) = (self.connections / 2, None, REST);
            }
            _ if self.rest > 0 => self.rest -= 1,
            _ if self.connections == CONNECTIONS_MAX => self.before = None,
            _ => {
                self.before = Some(rate);
                self.connections *= 2;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends requests of 4 MiB for this many seconds, over a link that gives each connection and all
    /// together at most these MiB a second. Returns the numbers of connections, one a second.
    fn run(breadth: &mut Breadth, each: f64, all: f64, seconds: u32) -> Vec<usize> {
        let (start, mut used) = (Instant::now(), Vec::new());
        let (mut now, mut next) = (0.0, 0.0);
        while now < f64::from(seconds) {
            now += 4.0 / (breadth.connections as f64 * each).min(all);
            breadth.carried(4 << 20, AT_ONCE, start + Duration::from_secs_f64(now));
            if now >= next {
                used.push(breadth.connections);
                next += 1.0;
            }
        }
        used
    }

    #[test]
    fn connections_grow_only_as_long_as_they_carry_more() {
        for (each, all, expected) in [
            (100.0, 1e9, 8),
            (100.0, 450.0, 4),
            (100.0, 260.0, 4),
            (100.0, 240.0, 2),
            (1000.0, 1000.0, 2),
            (1.0, 1e9, 8),
        ] {
            let mut breadth = Breadth::new();
            run(&mut breadth, each, all, 40);
            assert_eq!(breadth.connections, expected, "{each} each, {all} in all");
        }
    }

    #[test]
    fn a_link_that_changes_is_found_out() {
        let mut breadth = Breadth::new();
        run(&mut breadth, 1000.0, 1000.0, 5);
        assert_eq!(breadth.connections, 2);
        let used = run(&mut breadth, 100.0, 1e9, 60);
        assert_eq!(used.last(), Some(&8), "{used:?}");
        let before = used.iter().filter(|connections| **connections == 2).count();
        assert!(before > 20, "more are tried after a while only: {used:?}");
    }

    #[test]
    fn pauses_of_the_program_do_not_count() {
        let mut breadth = Breadth::new();
        let start = Instant::now();
        // Bursts of 0.1 s at 400 MiB/s with long pauses between them.
        let mut now = start;
        for _ in 0..3 {
            for _ in 0..10 {
                now += Duration::from_millis(10);
                breadth.carried(4 << 20, AT_ONCE, now);
            }
            breadth.carried(4 << 20, 1, now);
            now += Duration::from_secs(10);
        }
        assert_eq!(breadth.connections, 2, "no window is full yet");
        assert_eq!(breadth.took, Duration::from_millis(3 * 90));
        assert_eq!(breadth.bytes, 3 * 9 * (4 << 20));
    }
}
