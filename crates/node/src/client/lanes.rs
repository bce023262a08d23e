//! Requests with many bytes, and the connections that carry them.

use crate::protocol::UNIT_BYTES;
use outlive_types::sync::plain::Mutex;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Connections for shards, if nothing else is set. They carry whole units; more of them carry shorter
/// requests.
pub(crate) const CONNECTIONS: usize = 2;
/// Requests at once in one direction. Each copies only a part at a time.
const AT_ONCE: usize = 16;
const PAGE: usize = 4096;

/// The direction of the bytes of a request.
#[derive(Clone, Copy)]
pub(crate) enum Direction {
    Write,
    Read,
}

/// The connections for shards.
pub(crate) struct Lanes {
    /// Permits of each direction.
    turns: [Arc<Semaphore>; 2],
    /// Requests in flight on each connection.
    in_flight: Mutex<Vec<usize>>,
    /// Bytes that a request carries at most. A node has room for some megabytes of a client: so that
    /// all connections carry some of them, their requests are short.
    pub bytes_max: usize,
}

/// A request that may be sent.
pub(crate) struct Turn<'a> {
    lanes: &'a Lanes,
    /// Number of the connection that carries it.
    pub connection: usize,
    _one_of_few: Option<OwnedSemaphorePermit>,
}

impl Lanes {
    /// Returns lanes over this many connections.
    pub fn new(connections: usize) -> Lanes {
        let bytes_max = UNIT_BYTES * CONNECTIONS / connections.max(CONNECTIONS);
        Lanes {
            turns: [(); 2].map(|()| Arc::new(Semaphore::new(AT_ONCE))),
            in_flight: Mutex::new(vec![0; connections]),
            bytes_max: bytes_max / PAGE * PAGE,
        }
    }

    /// Waits until fewer requests of this direction are in flight than may be. Returns a turn on the
    /// connection with the fewest.
    pub async fn turn(&self, direction: Direction) -> Turn<'_> {
        let _one_of_few = self.turns[direction as usize].clone().acquire_owned().await.ok();
        let mut in_flight = self.in_flight.lock();
        let connection = (0..in_flight.len()).min_by_key(|number| in_flight[*number]).unwrap_or(0);
        in_flight[connection] += 1;
        Turn { lanes: self, connection, _one_of_few }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.lanes.in_flight.lock()[self.connection] -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn turn(lanes: &Lanes, direction: Direction) -> Option<Turn<'_>> {
        match pin!(lanes.turn(direction)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Some(turn),
            Poll::Pending => None,
        }
    }

    #[test]
    fn all_connections_carry_requests_and_none_waits_behind_another_direction() {
        let lanes = Lanes::new(8);
        let mut turns: Vec<Turn<'_>> =
            (0..AT_ONCE).filter_map(|_| turn(&lanes, Direction::Write)).collect();
        assert_eq!(turns.len(), AT_ONCE);
        assert_eq!(*lanes.in_flight.lock(), [2; 8]);
        assert!(turn(&lanes, Direction::Write).is_none(), "as many as may be in flight");
        assert!(turn(&lanes, Direction::Read).is_some());
        turns.retain(|turn| turn.connection != 5);
        assert_eq!(turn(&lanes, Direction::Write).map(|turn| turn.connection), Some(5));
        drop(turns);
        assert_eq!(*lanes.in_flight.lock(), [0; 8]);
    }

    #[test]
    fn requests_are_whole_pages_and_fit_into_the_room_that_a_node_has() {
        for connections in 1..=16 {
            let bytes_max = Lanes::new(connections).bytes_max;
            assert!(bytes_max > 0 && bytes_max <= UNIT_BYTES && bytes_max.is_multiple_of(PAGE));
            assert!(bytes_max * connections <= CONNECTIONS * UNIT_BYTES);
        }
        assert_eq!((Lanes::new(2).bytes_max, Lanes::new(8).bytes_max), (UNIT_BYTES, 1 << 20));
    }
}
