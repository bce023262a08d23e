//! Read staging: requests of many clients for neighbouring pages become few large reads.
//!
//! As long as the disk is idle, each range is read at once. While it is busy, ranges wait, and each
//! read then takes along the ranges near it that wait for the same shard. An extent that was read a
//! moment ago serves the clients that come next: many programs that restart from one checkpoint
//! read the same pages.

use crate::answer::{blocking, outcome};
use crate::buffers::Buffers;
use crate::fair::{Rounds, Session};
use bytes::Bytes;
use outlive_backend::{ReadMode, ReadRange, ShardName, Target};
use outlive_io::AlignedBuf;
use outlive_node::protocol::UNIT_BYTES;
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, Result};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedSender;

/// Most reads at once.
const DEPTH_MAX: usize = 8;
/// Two ranges with at most this many bytes between them are read together.
const GAP_BYTES: u64 = 64 << 10;
/// An extent serves later requests for this time. So what a scrub reads is at most that old.
const RECENT: Duration = Duration::from_secs(2);
/// Part of the memory for reads that extents may keep after their first use.
const RECENT_SHARE: usize = 2;

/// The waiting reads of a node.
pub(crate) struct Stage {
    /// Reads at once. The memory for them is there.
    depth: usize,
    recent_bytes_max: usize,
    buffers: Arc<Buffers>,
    state: Mutex<State>,
    /// Ranges that were asked for, and reads of the targets.
    pub ranges: AtomicU64,
    pub reads: AtomicU64,
    pub read_bytes: AtomicU64,
}

/// Name of a shard among all parts of the node.
pub(crate) type Place = (Arc<str>, ShardName);

#[derive(Default)]
struct State {
    next: u64,
    waits: BTreeMap<u64, Wait>,
    /// The waiting ranges by shard and offset.
    places: BTreeMap<(Place, u64, u64), ()>,
    urgent: Rounds<u64>,
    others: Rounds<u64>,
    at_work: usize,
    /// Number of calls to forget a shard.
    forgets: u64,
    recent: VecDeque<(Instant, Place, Extent)>,
    recent_bytes: usize,
}

struct Wait {
    place: Place,
    target: Arc<dyn Target>,
    offset: u64,
    length: usize,
    mode: ReadMode,
    reply: Reply,
}

/// Number of the range in its request, and the receiver of its bytes. The request has the memory for
/// them, so they are copied at once: no slow client keeps what others wait for.
pub(crate) type Reply = (u32, UnboundedSender<(u32, Result<Bytes>)>);

/// Bytes that were read at once.
struct Extent {
    offset: u64,
    buffer: AlignedBuf,
}

impl Extent {
    /// Returns the bytes of a range, if the extent has them.
    fn piece(&self, offset: u64, length: usize) -> Option<Bytes> {
        let start = usize::try_from(offset.checked_sub(self.offset)?).ok()?;
        Some(Bytes::copy_from_slice(self.buffer.get(start..start.checked_add(length)?)?))
    }
}

fn send(reply: &Reply, read: Result<Bytes>) {
    // Without a receiver, the client is gone.
    let _ = reply.1.send((reply.0, read));
}

/// Ranges that are read at once.
struct Batch {
    start: u64,
    end: u64,
    mode: ReadMode,
    waits: Vec<Wait>,
    /// Number of calls to forget a shard before it began.
    forgets: u64,
}

impl Stage {
    /// Half of the memory is for reads under way, the rest for those of a moment ago.
    pub(crate) fn new(memory_bytes: usize, buffers: Arc<Buffers>) -> Arc<Stage> {
        let recent_bytes_max = memory_bytes / RECENT_SHARE;
        Arc::new(Stage {
            depth: ((memory_bytes - recent_bytes_max) / UNIT_BYTES).clamp(1, DEPTH_MAX),
            recent_bytes_max,
            buffers,
            state: Mutex::default(),
            ranges: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
        })
    }

    /// Reads a range, of at most a unit.
    ///
    /// # Errors
    /// Errors of the target.
    pub(crate) fn read(
        self: &Arc<Self>,
        session: Session,
        (target, place): (&Arc<dyn Target>, &Place),
        (offset, length, mode): (u64, usize, ReadMode),
        reply: Reply,
    ) {
        self.ranges.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state.lock();
        if let Some(piece) = state.recent_piece(place, offset, length) {
            return send(&reply, Ok(piece));
        }
        let number = state.next;
        state.next += 1;
        state.places.insert((place.clone(), offset, number), ());
        match mode.is_urgent {
            true => state.urgent.push(session, number),
            false => state.others.push(session, number),
        }
        let (place, target) = (place.clone(), target.clone());
        state.waits.insert(number, Wait { place, target, offset, length, mode, reply });
        drop(state);
        self.start_reads();
    }

    /// Forgets what was read of a shard: it is deleted or replaced. Reads that began before keep
    /// nothing.
    pub(crate) fn forget(&self, shard: ShardName) {
        let mut state = self.state.lock();
        state.forgets += 1;
        state.keep_recent(|_, (_, other), _| *other != shard);
    }

    /// Forgets what was read a while ago.
    pub(crate) fn forget_old(&self, now: Instant) {
        let mut state = self.state.lock();
        state.keep_recent(|read, _, _| now.duration_since(read) < RECENT);
    }

    fn start_reads(self: &Arc<Self>) {
        loop {
            let mut state = self.state.lock();
            if state.at_work >= self.depth {
                return;
            }
            let Some(batch) = state.next_batch() else { return };
            state.at_work += 1;
            drop(state);
            let stage = self.clone();
            tokio::spawn(async move {
                stage.carry_out(batch).await;
                stage.state.lock().at_work -= 1;
                stage.start_reads();
            });
        }
    }

    async fn carry_out(&self, batch: Batch) {
        let (start, mode) = (batch.start, batch.mode);
        let Some(first) = batch.waits.first() else { return };
        let (place, target) = (first.place.clone(), first.target.clone());
        let length = usize::try_from(batch.end - start).unwrap_or(usize::MAX);
        match self.read_extent(&target, place.1, (start, length, mode)).await {
            Ok(extent) => {
                for wait in &batch.waits {
                    let piece = extent.piece(wait.offset, wait.length);
                    let lost = || Error::bug("an extent lacks bytes that it was read for");
                    send(&wait.reply, piece.ok_or_else(lost));
                }
                let mut state = self.state.lock();
                if state.forgets == batch.forgets {
                    state.keep(place, extent, self.recent_bytes_max);
                }
            }
            Err(error) if batch.waits.len() == 1 => {
                batch.waits.iter().for_each(|wait| send(&wait.reply, Err(error.clone())));
            }
            // One of them reaches beyond the shard's end, or hits a bad page: not all of them do.
            Err(_) => {
                for wait in batch.waits {
                    let range = (wait.offset, wait.length, wait.mode);
                    let read = self.read_extent(&wait.target, wait.place.1, range).await;
                    let lost = || Error::bug("an extent lacks bytes that it was read for");
                    let piece = |it: Extent| it.piece(wait.offset, wait.length).ok_or_else(lost);
                    send(&wait.reply, read.and_then(piece));
                }
            }
        }
    }

    async fn read_extent(
        &self,
        target: &Arc<dyn Target>,
        shard: ShardName,
        (offset, length, mode): (u64, usize, ReadMode),
    ) -> Result<Extent> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.read_bytes.fetch_add(length as u64, Ordering::Relaxed);
        let target = target.clone();
        let buffer = self.buffers.take(length);
        let started = blocking(move || {
            let range = ReadRange { offset, buffer, mode };
            Ok(target.read_ranges(shard, vec![range]))
        });
        let ticket = started.await?.pop().ok_or_else(|| Error::bug("a read without a ticket"))?;
        let buffer = outcome(ticket).await?.map_err(Error::from)?;
        Ok(Extent { offset, buffer })
    }
}

impl State {
    /// Takes the next waiting range, and those near it.
    fn next_batch(&mut self) -> Option<Batch> {
        let first = loop {
            let (_, number) = self.urgent.pop().or_else(|| self.others.pop())?;
            // One that another batch took along is gone.
            let Some(wait) = self.waits.remove(&number) else { continue };
            self.places.remove(&(wait.place.clone(), wait.offset, number));
            // Perhaps the client is gone, or it was read meanwhile.
            match self.recent_piece(&wait.place, wait.offset, wait.length) {
                _ if wait.reply.1.is_closed() => {}
                Some(piece) => send(&wait.reply, Ok(piece)),
                None => break wait,
            }
        };
        let (mut start, mut end) = (first.offset, first.offset + first.length as u64);
        let mode = first.mode;
        let place = first.place.clone();
        let mut waits = vec![first];
        loop {
            let near = |state: &State, from: u64| {
                let at = (place.clone(), from, 0);
                let last = (place.clone(), end.saturating_add(GAP_BYTES), u64::MAX);
                let fits = |wait: &Wait| {
                    let (low, high) =
                        (start.min(wait.offset), end.max(wait.offset + wait.length as u64));
                    wait.mode.may_be_cached == mode.may_be_cached
                        && wait.offset + wait.length as u64 + GAP_BYTES >= start
                        && high - low <= UNIT_BYTES as u64
                };
                state
                    .places
                    .range(at..=last)
                    .map(|((_, _, number), ())| *number)
                    .find(|number| state.waits.get(number).is_some_and(fits))
            };
            let from = start.saturating_sub(UNIT_BYTES as u64);
            let Some(number) = near(self, from) else { break };
            let Some(wait) = self.waits.remove(&number) else { break };
            self.places.remove(&(wait.place.clone(), wait.offset, number));
            (start, end) = (start.min(wait.offset), end.max(wait.offset + wait.length as u64));
            waits.push(wait);
        }
        Some(Batch { start, end, mode, waits, forgets: self.forgets })
    }

    fn recent_piece(&self, place: &Place, offset: u64, length: usize) -> Option<Bytes> {
        let mut of_shard = self.recent.iter().filter(|(_, other, _)| other == place);
        of_shard.find_map(|(_, _, extent)| extent.piece(offset, length))
    }

    /// Keeps an extent for later requests, in place of the oldest ones.
    fn keep(&mut self, place: Place, extent: Extent, bytes_max: usize) {
        self.recent_bytes += extent.buffer.len();
        self.recent.push_back((Instant::now(), place, extent));
        while self.recent_bytes > bytes_max {
            let Some((_, _, old)) = self.recent.pop_front() else { break };
            self.recent_bytes -= old.buffer.len();
        }
    }

    fn keep_recent(&mut self, keeps: impl Fn(Instant, &Place, &Extent) -> bool) {
        self.recent.retain(|(read, place, extent)| keeps(*read, place, extent));
        self.recent_bytes = self.recent.iter().map(|(_, _, extent)| extent.buffer.len()).sum();
    }
}

#[cfg(test)]
mod tests;
