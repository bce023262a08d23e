//! Requests with many bytes, and how many connections carry them: more where one does not fill the
//! link. Many networks bound each connection, as those of public clouds do.

use crate::protocol::UNIT_BYTES;
use outlive_types::sync::plain::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Connections for shards that a process opens to a node at most.
const MOST: usize = 8;
/// The number that it begins with, and always uses.
const FIRST: usize = 2;
/// Requests at once in one direction. Each copies only a part at a time.
const AT_ONCE: usize = 16;
/// Time with enough requests in flight over which throughput is measured.
const WINDOW: Duration = Duration::from_millis(500);
/// Longest time of a trial of another number. Later the load may be another one.
const TRIAL_MAX: Duration = Duration::from_secs(60);
/// Twice as many connections stay if they carry at least this many times as much.
const GAIN_MIN: f64 = 1.25;
/// Windows between two trials.
const REST: u32 = 64;
/// The same after a connection that could not be used. Its requests may have waited for seconds.
const LONG_REST: u32 = 1024;

/// Returns whether a connection is one of those that are tried and may be missing.
pub(crate) fn is_extra(connection: usize) -> bool {
    connection >= FIRST
}

/// The direction of the bytes of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Write,
    Read,
}

/// The connections for shards. A connection is made when it is used first.
pub(crate) struct Lanes<C> {
    /// Permits of each direction.
    turns: [Arc<Semaphore>; 2],
    load: Mutex<Load<C>>,
    make: Box<dyn Fn() -> C + Send + Sync>,
}

struct Load<C> {
    clients: [C; MOST],
    /// Requests in flight on each connection.
    in_flight: [usize; MOST],
    /// Of each direction.
    breadth: [Breadth; 2],
}

/// A request that may be sent.
pub(crate) struct Turn<'a, C: Clone> {
    lanes: &'a Lanes<C>,
    direction: Direction,
    /// Number of the connection that carries it.
    pub connection: usize,
    /// Bytes that it carries at most. A node has room for some megabytes of a client: so that all
    /// connections carry some of them, their requests are short.
    pub bytes_max: usize,
    _one_of_few: Option<OwnedSemaphorePermit>,
}

impl<C: Clone> Lanes<C> {
    /// Returns lanes whose clients `make` makes, each for a connection of its own.
    pub fn new(make: impl Fn() -> C + Send + Sync + 'static) -> Lanes<C> {
        let load = Load {
            clients: std::array::from_fn(|_| make()),
            in_flight: [0; MOST],
            breadth: [Breadth::new(), Breadth::new()],
        };
        let turns = [(); 2].map(|()| Arc::new(Semaphore::new(AT_ONCE)));
        Lanes { turns, load: Mutex::new(load), make: Box::new(make) }
    }

    /// Waits until fewer requests of this direction are in flight than may be.
    pub async fn turn(&self, direction: Direction) -> Turn<'_, C> {
        let _one_of_few = self.turns[direction as usize].clone().acquire_owned().await.ok();
        let Load { in_flight, breadth, .. } = &mut *self.load.lock();
        let connections = breadth[direction as usize].connections;
        let used = in_flight.iter().enumerate().take(connections);
        let connection =
            used.min_by_key(|(_, requests)| **requests).map_or(0, |(number, _)| number);
        in_flight[connection] += 1;
        let bytes_max = UNIT_BYTES * FIRST / connections;
        Turn { lanes: self, direction, connection, bytes_max, _one_of_few }
    }

    /// Returns the client for a connection.
    pub fn client(&self, connection: usize) -> C {
        self.load.lock().clients[connection].clone()
    }

    /// Returns the connection for a request that failed on this one. If that was an extra one, none of
    /// them are used for long.
    pub fn after_failure(&self, connection: usize) -> usize {
        if is_extra(connection) {
            let mut load = self.load.lock();
            load.breadth.iter_mut().for_each(Breadth::give_up);
            self.close_unused(&mut load);
        }
        (connection + 1) % FIRST
    }

    /// Closes the connections that are no longer used, once their requests have ended.
    fn close_unused(&self, load: &mut Load<C>) {
        let used = load.breadth.iter().map(|breadth| breadth.connections).max().unwrap_or(FIRST);
        for client in &mut load.clients[used..] {
            *client = (self.make)();
        }
    }
}

impl<C: Clone> Turn<'_, C> {
    /// Notes that the request has carried these bytes.
    pub fn carried(&self, bytes: usize) {
        let number = self.direction as usize;
        let requests = AT_ONCE - self.lanes.turns[number].available_permits();
        let mut load = self.lanes.load.lock();
        let before = load.breadth[number].connections;
        load.breadth[number].carried(bytes, requests, Instant::now());
        if load.breadth[number].connections < before {
            self.lanes.close_unused(&mut load);
        }
    }
}

impl<C: Clone> Drop for Turn<'_, C> {
    fn drop(&mut self) {
        self.lanes.load.lock().in_flight[self.connection] -= 1;
    }
}

/// The number of connections in use. Twice as many are tried, and stay if they carry more; half as
/// many are tried, and stay if they carry hardly less.
struct Breadth {
    connections: usize,
    trial: Option<Trial>,
    /// Whether the next trial is one of fewer connections.
    tries_fewer: bool,
    /// Windows until the next trial.
    rest: u32,
    /// Requests until the next window: those that were in flight when the number changed.
    old: usize,
    /// The window: bytes, time, and the last request if enough were in flight then.
    bytes: usize,
    took: Duration,
    last: Option<Instant>,
}

/// A trial of another number of connections.
#[derive(Clone, Copy)]
struct Trial {
    /// The number before, and the bytes a second that these carried.
    from: usize,
    rate: f64,
    begun: Instant,
}

impl Breadth {
    fn new() -> Breadth {
        Breadth {
            connections: FIRST,
            trial: None,
            tries_fewer: false,
            rest: 0,
            old: 0,
            bytes: 0,
            took: Duration::ZERO,
            last: None,
        }
    }

    /// Notes a request. Only the time counts in which there is one in flight for each connection of
    /// the most: so all numbers of connections have the same load.
    fn carried(&mut self, bytes: usize, requests: usize, now: Instant) {
        if self.old > 0 {
            self.old -= 1;
            return;
        }
        if requests < MOST {
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
            self.decide(rate, now);
            (self.bytes, self.took, self.last) = (0, Duration::ZERO, None);
            self.old = if self.connections == connections { 0 } else { requests };
        }
    }

    /// Decides after a window with this many bytes a second.
    fn decide(&mut self, rate: f64, now: Instant) {
        if let Some(trial) = self.trial.take() {
            let is_more = self.connections > trial.from;
            let is_worth_it = match is_more {
                true => rate >= trial.rate * GAIN_MIN,
                false => rate * GAIN_MIN >= trial.rate,
            };
            if now.saturating_duration_since(trial.begun) > TRIAL_MAX {
                self.connections = trial.from;
            } else if !is_worth_it {
                self.connections = trial.from;
                self.rest = REST;
                self.tries_fewer = is_more;
            }
            if self.connections == trial.from {
                return;
            }
        }
        if self.rest > 0 {
            self.rest -= 1;
            return;
        }
        let next = match self.tries_fewer && self.connections > FIRST {
            true => self.connections / 2,
            false => (self.connections * 2).min(MOST),
        };
        if next == self.connections {
            (self.rest, self.tries_fewer) = (REST, true);
            return;
        }
        self.trial = Some(Trial { from: self.connections, rate, begun: now });
        self.connections = next;
    }

    /// Ends a trial, and begins no other for long: a connection could not be used.
    fn give_up(&mut self) {
        *self = Breadth { rest: LONG_REST, ..Breadth::new() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link that gives each connection, and all together, at most these MiB a second.
    struct Link {
        each: f64,
        all: f64,
        now: Instant,
    }

    impl Link {
        fn new(each: f64, all: f64) -> Link {
            Link { each, all, now: Instant::now() }
        }

        /// Sends requests of 4 MiB for this many seconds. Returns the numbers of connections after
        /// each second.
        fn run(&mut self, breadth: &mut Breadth, seconds: u64) -> Vec<usize> {
            let mut used = Vec::new();
            for _ in 0..seconds {
                let end = self.now + Duration::from_secs(1);
                while self.now < end {
                    let rate = (breadth.connections as f64 * self.each).min(self.all);
                    self.now += Duration::from_secs_f64(4.0 / rate);
                    breadth.carried(4 << 20, AT_ONCE, self.now);
                }
                used.push(breadth.connections);
            }
            used
        }
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
            let used = Link::new(each, all).run(&mut Breadth::new(), 300);
            let usual = used.iter().filter(|connections| **connections == expected).count();
            assert!(usual > 240, "{each} each, {all} in all: {used:?}");
        }
    }

    #[test]
    fn a_link_that_changes_is_found_out() {
        let mut breadth = Breadth::new();
        let mut link = Link::new(1000.0, 1000.0);
        link.run(&mut breadth, 5);
        assert_eq!(breadth.connections, 2);
        (link.each, link.all) = (100.0, 1e9);
        let used = link.run(&mut breadth, 80);
        assert!(used[..20].iter().all(|connections| *connections == 2), "after a while: {used:?}");
        assert_eq!(used.last(), Some(&8), "{used:?}");
        (link.each, link.all) = (1000.0, 1000.0);
        let used = link.run(&mut breadth, 200);
        assert_eq!(used.last(), Some(&2), "{used:?}");
    }

    #[test]
    fn pauses_of_the_program_do_not_count() {
        let mut breadth = Breadth::new();
        let mut now = Instant::now();
        // Bursts of 0.1 s at 400 MiB/s with long pauses between them.
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

    #[test]
    fn a_trial_that_takes_long_shows_nothing() {
        let mut breadth = Breadth::new();
        let mut link = Link::new(100.0, 1e9);
        while breadth.trial.is_none() {
            link.run(&mut breadth, 1);
        }
        link.now += TRIAL_MAX;
        let before = breadth.trial.unwrap().from;
        while breadth.trial.is_some() {
            link.now += Duration::from_millis(10);
            breadth.carried(4 << 20, AT_ONCE, link.now);
        }
        assert_eq!(breadth.connections, before);
    }

    #[test]
    fn a_connection_that_cannot_be_used_ends_trials_for_long() {
        let made = Arc::new(Mutex::new(0));
        let counter = made.clone();
        let lanes = Lanes::new(move || {
            *counter.lock() += 1;
            *counter.lock()
        });
        assert_eq!((lanes.client(0), lanes.client(MOST - 1)), (1, MOST));
        assert_eq!((lanes.after_failure(0), lanes.after_failure(1)), (1, 0));
        assert_eq!(*made.lock(), MOST, "a failure of one of the first");
        lanes.load.lock().breadth[Direction::Read as usize].connections = MOST;
        assert_eq!(lanes.after_failure(MOST - 1), 0);
        assert_eq!(*made.lock(), MOST + MOST - FIRST, "the extra ones are closed");
        let mut breadth = std::mem::replace(&mut lanes.load.lock().breadth[1], Breadth::new());
        let used = Link::new(100.0, 1e9).run(&mut breadth, 600);
        assert!(used[..500].iter().all(|it| *it == FIRST) && used[599] == MOST, "{used:?}");
    }
}
