//! Waiting ranges of a bucket, and the choice of those that form one request.

use outlive_backend::{Fault, ReadRange, ReadTicket, ShardName};
use outlive_io::{AlignedBuf, Promise, Ticket};
use outlive_types::Result;
use outlive_types::sync::plain::{Mutex, MutexGuard};
use std::collections::VecDeque;

/// Concurrent short requests; a long one counts as [`LONG_AS_MANY`].
const SHORT_MAX: usize = 64;
const LONG_AS_MANY: usize = 4;
/// From this length on, a request is long: its transfer takes longer than its overhead.
const LONG_BYTES: u64 = 1 << 20;
/// Longest joined request, as long as a part. 8 MiB in one request take less of a server's
/// processor time than in two.
const JOINED_BYTES_MAX: u64 = 8 << 20;
/// Ranges of the queue that are searched for one that follows.
const LOOKED_AT_MAX: usize = 32;

/// Reads of shards in a bucket.
#[derive(Default)]
pub(crate) struct Reads(Mutex<State>);

#[derive(Default)]
struct State {
    /// Requests in progress; a long one counts several times.
    under_way: usize,
    waiting: VecDeque<Waiting>,
}

/// A range that is not read yet.
pub(crate) struct Waiting {
    pub shard: ShardName,
    pub range: ReadRange,
    promise: Promise<std::result::Result<AlignedBuf, Fault<AlignedBuf>>>,
}

impl Waiting {
    /// Returns its end in the shard.
    pub(crate) fn end(&self) -> u64 {
        self.range.offset.saturating_add(self.range.buffer.len() as u64)
    }

    /// Fulfils its ticket with the outcome.
    pub(crate) fn fulfil(self, outcome: Result<()>) {
        let buffer = self.range.buffer;
        self.promise.fulfil(match outcome {
            Ok(()) => Ok(buffer),
            Err(error) => Err(Fault { error, buffer }),
        });
    }
}

impl Reads {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Adds a range.
    pub(crate) fn push(&self, shard: ShardName, range: ReadRange) -> ReadTicket {
        let (promise, ticket) = Ticket::pair();
        self.lock().waiting.push_back(Waiting { shard, range, promise });
        ticket
    }

    /// Returns the adjacent ranges of the next request, if the limit permits one.
    pub(crate) fn next(&self) -> Option<Vec<Waiting>> {
        self.lock().next()
    }

    /// Ends a request for `bytes` bytes.
    pub(crate) fn ended(&self, bytes: u64) {
        self.lock().under_way -= counts(bytes);
    }
}

impl State {
    /// Returns the ranges of the next request, if the limit permits one: the range that has waited
    /// longest, and those that follow it in its shard.
    fn next(&mut self) -> Option<Vec<Waiting>> {
        if self.under_way >= SHORT_MAX {
            return None;
        }
        let first = self.waiting.pop_front()?;
        let (start, mut end) = (first.range.offset, first.end());
        let mut request = vec![first];
        loop {
            let follows = |other: &Waiting| {
                (other.shard, other.range.offset) == (request[0].shard, end)
                    && end > start
                    && other.end() > end
                    && other.end() - start <= JOINED_BYTES_MAX
            };
            let Some(at) = self.waiting.iter().take(LOOKED_AT_MAX).position(follows) else { break };
            let Some(next) = self.waiting.remove(at) else { break };
            end = next.end();
            request.push(next);
        }
        self.under_way += counts(end - start);
        Some(request)
    }
}

fn counts(bytes: u64) -> usize {
    if bytes >= LONG_BYTES { LONG_AS_MANY } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_types::{PackId, SessionId};

    const MIB: usize = 1 << 20;

    fn waiting(pack: u32, offset: usize, length: usize) -> Waiting {
        let shard = ShardName { pack: PackId::new(SessionId([1; 12]), 0, pack), shard: 0 };
        let range = ReadRange::new(offset as u64, AlignedBuf::zeroed(length));
        Waiting { shard, range, promise: Ticket::pair().0 }
    }

    fn offsets(request: Option<Vec<Waiting>>) -> Vec<u64> {
        request.into_iter().flatten().map(|each| each.range.offset).collect()
    }

    #[test]
    fn adjacent_ranges_become_one_request() {
        let mut state = State::default();
        state.waiting.extend([
            waiting(1, 4096, 4 * MIB),
            waiting(2, 4096 + 4 * MIB, 4096),
            waiting(1, 4096 + 4 * MIB, 4 * MIB),
            waiting(1, 4096 + 8 * MIB, 4 * MIB),
            // An empty range, and one after a gap.
            waiting(1, 4096 + 12 * MIB, 0),
            waiting(1, 8192 + 12 * MIB, 4096),
        ]);
        assert_eq!(offsets(state.next()), [4096, 4096 + 4 * MIB as u64], "8 MiB at most");
        assert_eq!(state.under_way, 4);
        assert_eq!(offsets(state.next()), [4096 + 4 * MIB as u64], "of one shard");
        assert_eq!(state.under_way, 5);
        assert_eq!(offsets(state.next()), [4096 + 8 * MIB as u64]);
        assert_eq!(offsets(state.next()), [4096 + 12 * MIB as u64]);
        assert_eq!(offsets(state.next()), [8192 + 12 * MIB as u64]);
        assert!(state.next().is_none() && state.under_way == 11);
    }

    #[test]
    fn so_many_requests_are_under_way_and_no_more() {
        let mut state = State::default();
        state.waiting.extend((0..20).map(|pack| waiting(pack, 0, MIB)));
        let long = std::iter::from_fn(|| state.next()).count();
        assert_eq!((long, state.waiting.len()), (16, 4));
        state.under_way = 60;
        state.waiting = (0..6).map(|pack| waiting(pack, 0, 4096)).collect();
        assert_eq!(std::iter::from_fn(|| state.next()).count(), 4);
    }
}
