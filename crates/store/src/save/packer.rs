//! Fills packs, one after the other.

use super::frame_compression::FrameCompression;
use outlive_chunk::{Policy, fingerprint};
use outlive_format::{Directory, EntryKind, SegmentKind, SegmentRef};
use outlive_io::AlignedBuf;
use outlive_pool::{Container, FinishedPack, PackExtent, PackWriter, Pool};
use outlive_types::sync::plain::{Mutex, MutexGuard};
use outlive_types::{Error, Fingerprint, PackId, Rank, Result, SessionId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::index::{choose_merge, merge, read_segment};
use crate::tree::Link;

/// Numbers the packs that a rank writes in a session. It returns each number once, whatever becomes
/// of the save: a pack of a failed save may exist, or still be in flight. Clones share the counter.
#[derive(Clone, Debug)]
pub struct PackNumbers {
    session: SessionId,
    rank: Rank,
    next: Arc<AtomicU32>,
}

impl PackNumbers {
    /// Numbers for a rank that has written no packs in a session yet.
    pub fn new(session: SessionId, rank: Rank) -> PackNumbers {
        PackNumbers { session, rank, next: Arc::default() }
    }

    /// Returns the session.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// Returns the rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Returns the number of the next pack.
    pub fn next(&self) -> u32 {
        self.next.load(Ordering::Acquire)
    }

    /// Skips the numbers below `number`.
    pub fn go_on_at(&self, number: u32) {
        self.next.fetch_max(number, Ordering::AcqRel);
    }

    fn take(&self) -> Result<PackId> {
        let more = |number: u32| number.checked_add(1);
        match self.next.fetch_update(Ordering::AcqRel, Ordering::Acquire, more) {
            Ok(number) => Ok(PackId::new(self.session, self.rank, number)),
            Err(_) => Err(Error::invalid(
                "this rank has written 2^32 packs in its session: open the job again",
            )),
        }
    }
}

/// Takes chunks and nodes from any thread.
pub struct Packer<'a> {
    pub(super) pool: &'a Pool,
    numbers: PackNumbers,
    pub(super) compression: FrameCompression,
    /// Number of lanes that are filled at the same time.
    lanes: AtomicUsize,
    state: Mutex<State>,
}

struct State {
    /// Bytes still to come, as far as the plan knows.
    expected_bytes: u64,
    current: Option<PackWriter>,
    finished: Vec<FinishedPack>,
    /// Containers that lanes have not filled.
    left_over: Vec<Container>,
    meter: Meter,
}

/// Measures the throughput of the target.
struct Meter {
    since: Instant,
    /// Bytes given to the target in total.
    sent_bytes: u64,
    /// Bytes that had arrived when the measurement began.
    arrived_before: u64,
    /// Time that all lanes together have waited for the target since then.
    waited: Duration,
}

/// Bytes after which a measurement is useful.
const METER_BYTES: u64 = 32 << 20;

impl Meter {
    fn new() -> Meter {
        Meter { since: Instant::now(), sent_bytes: 0, arrived_before: 0, waited: Duration::ZERO }
    }

    /// Reports the measurement to the policy, if `at_least` bytes have arrived since the last
    /// report.
    fn tell(&mut self, policy: &mut Policy, lanes: usize, arrived_bytes: u64, at_least: u64) {
        let bytes = arrived_bytes.saturating_sub(self.arrived_before);
        if bytes < at_least {
            return;
        }
        let took = self.since.elapsed();
        let waited_s = self.waited.as_secs_f64() / lanes as f64;
        policy.learn_target(bytes, took.as_secs_f64(), waited_s);
        let sent_bytes = self.sent_bytes;
        *self = Meter { sent_bytes, arrived_before: arrived_bytes, ..Meter::new() };
    }
}

impl State {
    /// Returns the number of writes in flight. Finds failed ones early: they keep their buffers.
    fn writes_in_flight(&mut self) -> Result<usize> {
        let mut in_flight = 0;
        for pack in &mut self.finished {
            in_flight += pack.check_writes()?;
        }
        if let Some(pack) = &mut self.current {
            in_flight += pack.check_writes()?;
        }
        Ok(in_flight)
    }

    fn open(&mut self, container: Container) -> Result<()> {
        match self.current.as_mut() {
            Some(pack) => pack.open(container),
            None => Err(Error::bug("no pack is open")),
        }
    }
}

impl Drop for Packer<'_> {
    /// Finishes or gives up the open packs after a failure, before the caller gets the error. The
    /// caller may then end the process, which would leave unfinished shards behind. Or it may try
    /// something that needs less space, which must be free by then.
    fn drop(&mut self) {
        let (current, finished) = {
            let mut state = self.state();
            (state.current.take(), std::mem::take(&mut state.finished))
        };
        current.into_iter().for_each(PackWriter::give_up);
        finished.into_iter().for_each(|pack| drop(pack.wait()));
    }
}

/// A segment of the checkpoint, and its directory if that is in memory. A segment that the same
/// packer has just stored cannot be read yet.
pub type LoadedSegment = (SegmentRef, Option<Directory>);

/// Result of a packer.
pub struct Packed {
    /// Number of packs, all durable.
    pub packs: u64,
    /// Their bytes on the target.
    pub stored_bytes: u64,
    /// Segments of the checkpoint.
    pub segments: Vec<SegmentRef>,
    /// The directories of the packs.
    pub own: Vec<SegmentRef>,
}

impl<'a> Packer<'a> {
    /// Makes a packer for about `expected_bytes`.
    pub fn new(pool: &'a Pool, numbers: &PackNumbers, expected_bytes: u64) -> Self {
        let state = State {
            expected_bytes,
            current: None,
            finished: Vec::new(),
            left_over: Vec::new(),
            meter: Meter::new(),
        };
        let compression = FrameCompression::of_saves(pool.config());
        let lanes = AtomicUsize::new(pool.config().tuning.threads());
        let numbers = numbers.clone();
        Packer { pool, numbers, compression, lanes, state: Mutex::new(state) }
    }

    /// Sets the compression for the content of files.
    pub fn for_files(mut self) -> Self {
        self.compression = FrameCompression::of_files(self.pool.config());
        self
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Stores a node or segment after everything stored before.
    ///
    /// # Errors
    /// Errors of the target.
    pub fn append(&self, bytes: &[u8], fp: Fingerprint, kind: EntryKind) -> Result<PackExtent> {
        let mut state = self.state();
        let length = bytes.len();
        self.current(&mut state, |pack| pack.fits(length))?;
        if state.current.as_ref().is_some_and(|pack| pack.needs_buffer(length)) {
            let buffer = self.buffer_unless(&mut || state.writes_in_flight())?;
            state.open(Container::new(buffer))?;
        }
        match state.current.as_mut() {
            Some(pack) => pack.append(bytes, fp, kind),
            None => Err(Error::bug("no pack is open")),
        }
    }

    /// Returns the number of lanes that the staging pool can feed.
    pub fn lanes_max(&self) -> usize {
        let staging = self.pool.staging();
        (staging.total_bytes() / staging.buffer_bytes()).saturating_sub(2).max(1)
    }

    /// Returns the number of lanes filled at the same time, by which the policy judges waiting and
    /// compressing.
    pub fn lanes(&self) -> usize {
        self.lanes.load(Ordering::Relaxed)
    }

    /// Sets the number of lanes to `lanes`, at least one.
    pub fn set_lanes(&self, lanes: usize) {
        self.lanes.store(lanes.max(1), Ordering::Relaxed);
    }

    /// Takes a lane's container, full or the last one; the lane has waited `waited` for buffers.
    pub(super) fn send(&self, container: Container, waited: Duration) -> Result<()> {
        let mut state = self.state();
        let container_bytes = self.pool.config().format.container_bytes;
        let in_flight = state.writes_in_flight()? as u64 * container_bytes;
        state.meter.sent_bytes += container_bytes;
        state.meter.waited += waited;
        let arrived = state.meter.sent_bytes.saturating_sub(in_flight);
        state.meter.tell(&mut self.pool.policy(), self.lanes(), arrived, METER_BYTES);
        self.place(&mut state, container)
    }

    /// Keeps a container that a lane has not filled, for the next user.
    pub(super) fn keep(&self, container: Option<Container>) {
        self.state().left_over.extend(container);
    }

    /// Opens a pack unless the open one `fits`.
    fn current(&self, state: &mut State, fits: impl Fn(&PackWriter) -> bool) -> Result<()> {
        if state.current.as_ref().is_some_and(|pack| !fits(pack)) {
            self.close_current(state)?;
        }
        if state.current.is_none() {
            let id = self.numbers.take()?;
            let format = &self.pool.config().format;
            // Where the plan's estimate was too small, each next pack is larger.
            let grown = format.container_bytes << state.finished.len().min(6);
            let expected = state.expected_bytes.max(grown).min(format.pack_bytes);
            state.expected_bytes -= expected.min(state.expected_bytes);
            state.current = Some(PackWriter::new(self.pool, id, expected)?);
        }
        Ok(())
    }

    /// Makes a full container, or the last one, part of a pack.
    fn place(&self, state: &mut State, container: Container) -> Result<()> {
        let entries = container.entries().len();
        self.current(state, |pack| pack.fits_container(entries))?;
        state.open(container)
    }

    /// Joins the unfilled containers of the lanes. Call it when all lanes are done, and before the
    /// first node.
    ///
    /// # Errors
    /// Errors of the target.
    pub fn join_lanes(&self) -> Result<()> {
        let mut state = self.state();
        for mut left in std::mem::take(&mut state.left_over) {
            if let Some(open) = state.current.as_mut().and_then(PackWriter::open_container) {
                open.take_from(&mut left);
            }
            if left.used() > 0 {
                self.place(&mut state, left)?;
            }
        }
        Ok(())
    }

    /// Stores a node and returns a link to it.
    ///
    /// # Errors
    /// Errors of the target.
    pub fn append_node(&self, bytes: &[u8]) -> Result<Link> {
        let fp = fingerprint(bytes);
        Ok(Link { fp, extent: self.append(bytes, fp, EntryKind::Node)? })
    }

    /// Returns a free buffer: the next of the staging pool, unless this packer has no write in
    /// flight. Then the holders of all buffers may be waiting for their turn, and a buffer outside
    /// the pool lets this save continue. So a save exceeds the pool by at most a container for each
    /// of its threads.
    pub(super) fn buffer(&self) -> Result<AlignedBuf> {
        self.buffer_unless(&mut || self.state().writes_in_flight())
    }

    fn buffer_unless(
        &self,
        writes_in_flight: &mut dyn FnMut() -> Result<usize>,
    ) -> Result<AlignedBuf> {
        let staging = self.pool.staging();
        loop {
            let seen = staging.events();
            if let Some(buffer) = staging.try_take() {
                return Ok(buffer);
            }
            if writes_in_flight()? == 0 {
                let bytes = staging.buffer_bytes();
                return AlignedBuf::try_not_inherited(bytes)
                    .ok_or_else(|| Error::no_memory("a container", bytes));
            }
            // Wait until a write ends, or a buffer returns to the pool.
            staging.wait_event(seen);
        }
    }

    fn close_current(&self, state: &mut State) -> Result<()> {
        if let Some(pack) = state.current.take() {
            state.finished.push(pack.finish()?);
        }
        Ok(())
    }

    /// Merges segments where they have become too many, closes the last pack, and waits until all
    /// packs are durable. `before` are the segments that the image needs besides those of the new
    /// packs.
    ///
    /// # Errors
    /// Errors of the target.
    pub fn finish(&self, before: Vec<LoadedSegment>) -> Result<(Packed, u64)> {
        let (segments, segment_bytes) = self.merge_segments(before)?;
        let mut packed = self.close()?;
        packed.segments.splice(0..0, segments);
        Ok((packed, segment_bytes))
    }

    /// Closes the last pack, and waits until all packs are durable. The returned segments are the
    /// new packs' directories, except for the merged ones.
    ///
    /// # Errors
    /// Errors of the target.
    pub fn close(&self) -> Result<Packed> {
        let mut state = self.state();
        self.close_current(&mut state)?;
        let mut packed = Packed {
            packs: state.finished.len() as u64,
            stored_bytes: state.finished.iter().map(|pack| pack.stored_bytes).sum(),
            segments: Vec::new(),
            own: state.finished.iter().map(directory_ref).collect(),
        };
        let (waiting, lanes) = (Instant::now(), self.lanes());
        let mut outcome = Ok(());
        for pack in std::mem::take(&mut state.finished) {
            // A merge took the directories of the packs that it already lists.
            if !pack.directory.packs.is_empty() {
                packed.segments.push(directory_ref(&pack));
            }
            // Also after one has failed: see `drop`.
            outcome = outcome.and(pack.wait());
        }
        outcome?;
        // Everything has arrived: the wait at the end counts for all threads.
        let meter = &mut state.meter;
        meter.waited += waiting.elapsed().mul_f64(lanes as f64);
        meter.tell(&mut self.pool.policy(), lanes, meter.sent_bytes, METER_BYTES / 4);
        Ok(packed)
    }

    /// Merges every eight segments of a level into one of the next: older segments, and directories
    /// of packs that this save has already closed.
    fn merge_segments(&self, before: Vec<LoadedSegment>) -> Result<(Vec<SegmentRef>, u64)> {
        let max = self.pool.config().format.container_bytes as u32;
        let mut written = 0;
        // Directories still in memory need not be read back.
        let mut segments = before;
        for pack in &mut self.state().finished {
            let segment = directory_ref(pack);
            segments.push((segment, Some(std::mem::take(&mut pack.directory))));
        }
        loop {
            let refs: Vec<SegmentRef> = segments.iter().map(|(segment, _)| *segment).collect();
            let chosen = choose_merge(&refs, max);
            if chosen.len() < 2 {
                return Ok((refs, written));
            }
            let mut parts = Vec::with_capacity(chosen.len());
            let mut level = 0;
            for at in chosen.iter().rev() {
                let (segment, directory) = segments.remove(*at);
                level = level.max(segment.level);
                parts.push(match directory {
                    Some(directory) => directory,
                    None => read_segment(self.pool, &segment)?,
                });
            }
            parts.reverse();
            let merged = merge(&parts);
            let bytes = merged.encode()?;
            let fp = fingerprint(&bytes);
            let extent = self.append(&bytes, fp, EntryKind::Segment)?;
            written += bytes.len() as u64;
            let segment = SegmentRef {
                pack: extent.pack,
                offset: extent.offset,
                length: extent.length,
                kind: SegmentKind::Segment,
                level: level.saturating_add(1),
                fp,
            };
            segments.push((segment, Some(merged)));
        }
    }
}

fn directory_ref(pack: &FinishedPack) -> SegmentRef {
    SegmentRef {
        pack: pack.id,
        offset: pack.fragments_bytes,
        length: pack.directory_bytes,
        kind: SegmentKind::Directory,
        level: 0,
        fp: pack.directory_fp,
    }
}
