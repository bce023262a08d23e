//! Scratch shards on a target: written, read, and deleted at the end, however the work ends.

use outlive_backend::{Fault, ReadRange, ShardName, Target, read_one};
use outlive_io::{AlignedBuf, Completions, SharedBuf};
use outlive_types::{Error, PAGE_BYTES, PackId, Result, Rng, SeededRng, SessionId, SystemRng};
use std::time::{Duration, Instant};

type WriteOutcome = std::result::Result<(), Fault<SharedBuf>>;

/// Order of the accesses to a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// From the first byte to the last.
    Ascending,
    /// Each once, in random order.
    Random,
}

/// A finished scratch shard.
#[derive(Clone, Copy, Debug)]
pub struct ScratchShard {
    pub name: ShardName,
    pub bytes: u64,
}

/// Way to write a shard.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Length of the shard, a multiple of the access.
    pub bytes: u64,
    /// Length of each write.
    pub access: u64,
    pub order: Order,
    /// Most writes in flight.
    pub depth: u32,
}

/// Time of a shard.
#[derive(Clone, Debug)]
pub struct Written {
    pub shard: ScratchShard,
    /// All of it, from `create` to the end of `finish`.
    pub took: Duration,
    /// Time from one end of a segment of writes to the next; the rest of `took` is that of all.
    pub segments: Vec<Duration>,
}

/// Outcome of reads.
#[derive(Clone, Default, Debug)]
pub struct ReadTotal {
    pub bytes: u64,
    pub took: Duration,
    /// Time from one end of a segment to the next.
    pub segments: Vec<Duration>,
}

/// Counts accesses, and notes the times of segments.
struct Segments {
    access: u64,
    segment: u64,
    done: u64,
    last: Instant,
    took: Vec<Duration>,
}

impl Segments {
    fn new(access: u64, segment: u64) -> Segments {
        Segments { access, segment, done: 0, last: Instant::now(), took: Vec::new() }
    }

    fn one_is_done(&mut self) {
        self.done += self.access;
        if self.segment > 0 && self.done.is_multiple_of(self.segment) {
            let now = Instant::now();
            self.took.push(now - self.last);
            self.last = now;
        }
    }
}

/// The scratch shards of one probe. They have names of a random session, which no job ever opened. A
/// gc deletes the shards of a killed probe, as it deletes every pack that no checkpoint needs.
pub struct Scratch<'a> {
    target: &'a dyn Target,
    session: SessionId,
    count: u32,
    live: Vec<ShardName>,
    /// Random bytes that writes take, twice as long as the longest write.
    bytes: SharedBuf,
    rng: SeededRng,
    was_asked_to_stop: &'a dyn Fn() -> bool,
    /// Bytes written and read so far.
    pub written_bytes: u64,
    pub read_bytes: u64,
}

impl<'a> Scratch<'a> {
    /// Begins a probe whose longest access has `access_bytes_max`.
    pub fn new(
        target: &'a dyn Target,
        access_bytes_max: u64,
        was_asked_to_stop: &'a dyn Fn() -> bool,
    ) -> Scratch<'a> {
        let (mut session, mut seed) = ([0; 12], [0; 8]);
        SystemRng.fill(&mut session);
        SystemRng.fill(&mut seed);
        let rng = SeededRng::new(u64::from_le_bytes(seed));
        // Random bytes: some devices and file systems compress what they store.
        let mut bytes = AlignedBuf::zeroed(2 * access_bytes_max as usize);
        rng.fill(&mut bytes);
        Scratch {
            target,
            session: SessionId(session),
            count: 0,
            live: Vec::new(),
            bytes: bytes.share(),
            rng,
            was_asked_to_stop,
            written_bytes: 0,
            read_bytes: 0,
        }
    }

    /// Fails if the work was asked to end.
    pub fn check_stop(&self) -> Result<()> {
        match (self.was_asked_to_stop)() {
            true => Err(Error::retry("the probe was interrupted; its scratch shards are deleted")),
            false => Ok(()),
        }
    }

    /// Returns a random number below `end`.
    fn below(&self, end: u64) -> u64 {
        let mut bytes = [0; 8];
        self.rng.fill(&mut bytes);
        u64::from_le_bytes(bytes) % end.max(1)
    }

    /// Writes a shard; notes the times of segments of `segment` bytes, unless that is 0. Returns `None`
    /// if `deadline` passed before all writes were begun: then no shard is left.
    ///
    /// # Errors
    /// Errors of the target; `Retry` if the work was asked to end. No shard is left.
    pub fn write(
        &mut self,
        plan: Plan,
        segment: u64,
        deadline: Instant,
    ) -> Result<Option<Written>> {
        self.check_stop()?;
        self.count += 1;
        let name = ShardName { pack: PackId::new(self.session, 0, self.count), shard: 0 };
        // Before the first byte, so that a failure anywhere leaves nothing.
        self.live.push(name);
        let outcome = self.try_write(name, plan, segment, deadline);
        if !matches!(outcome, Ok(Some(_))) {
            // The first error is the one to report.
            let _ = self.delete(name);
        }
        outcome
    }

    fn try_write(
        &mut self,
        name: ShardName,
        plan: Plan,
        segment: u64,
        deadline: Instant,
    ) -> Result<Option<Written>> {
        let Plan { bytes, access, order, depth } = plan;
        let mut offsets: Vec<u64> = (0..bytes / access).map(|number| number * access).collect();
        if order == Order::Random {
            for last in (1..offsets.len()).rev() {
                let other = self.below(last as u64 + 1) as usize;
                offsets.swap(last, other);
            }
        }
        let began = Instant::now();
        let mut writer = self.target.create(name, bytes)?;
        let mut in_flight = Completions::<(), WriteOutcome>::new();
        let mut segments = Segments::new(access, segment);
        let (mut failed, mut is_cut) = (None, false);
        for offset in offsets {
            if in_flight.len() >= depth.max(1) as usize
                && let Some(((), outcome)) = in_flight.wait_next()
            {
                segments.one_is_done();
                failed = outcome.err().map(Error::from);
            }
            is_cut = Instant::now() >= deadline;
            if failed.is_some() || is_cut || (self.was_asked_to_stop)() {
                break;
            }
            let start = self.start_in_bytes(access);
            let part = self.bytes.slice(start..start + access as usize);
            in_flight.push((), writer.write(offset, part));
        }
        while let Some(((), outcome)) = in_flight.wait_next() {
            segments.one_is_done();
            failed = failed.or(outcome.err().map(Error::from));
        }
        if let Some(error) = failed {
            return Err(error);
        }
        self.check_stop()?;
        if is_cut {
            return Ok(None);
        }
        writer.finish(bytes).wait()?;
        self.written_bytes += bytes;
        let (shard, took) = (ScratchShard { name, bytes }, began.elapsed());
        Ok(Some(Written { shard, took, segments: segments.took }))
    }

    /// Returns where in the random bytes a write takes its own.
    fn start_in_bytes(&self, access: u64) -> usize {
        let pages = (self.bytes.len() as u64 - access) / PAGE_BYTES as u64;
        self.below(pages + 1) as usize * PAGE_BYTES
    }

    /// Reads all of a shard, in accesses of `access` with at most `depth` in flight, and notes the times
    /// of segments.
    ///
    /// # Errors
    /// Errors of the target; `Retry` if the work was asked to end.
    pub fn read_all(
        &mut self,
        shard: ScratchShard,
        access: u64,
        depth: u32,
        segment: u64,
    ) -> Result<ReadTotal> {
        let mut offsets = (0..shard.bytes / access).map(|number| (shard.name, number * access));
        self.read(&mut || offsets.next(), access, depth, segment)
    }

    /// Reads at random places of the shards, until `deadline`, or until `count_max` reads have begun.
    /// At least one read is made. The shards are at least as long as an access.
    ///
    /// # Errors
    /// As [`Scratch::read_all`].
    pub fn read_random(
        &mut self,
        shards: &[ScratchShard],
        access: u64,
        depth: u32,
        count_max: u64,
        deadline: Instant,
    ) -> Result<ReadTotal> {
        let mut places = Vec::new();
        for _ in 0..count_max {
            let shard = shards[self.below(shards.len() as u64) as usize];
            places.push((shard.name, self.below(shard.bytes / access) * access));
        }
        let mut places = places.into_iter().enumerate();
        let mut next = || {
            let (number, place) = places.next()?;
            (number == 0 || Instant::now() < deadline).then_some(place)
        };
        self.read(&mut next, access, depth, 0)
    }

    fn read(
        &mut self,
        next: &mut dyn FnMut() -> Option<(ShardName, u64)>,
        access: u64,
        depth: u32,
        segment: u64,
    ) -> Result<ReadTotal> {
        self.check_stop()?;
        let depth = depth.max(1) as usize;
        let mut buffers: Vec<AlignedBuf> =
            (0..depth).map(|_| AlignedBuf::zeroed(access as usize)).collect();
        let (mut in_flight, mut total) = (Completions::new(), ReadTotal::default());
        let (mut failed, began) = (None, Instant::now());
        let mut segments = Segments::new(access, segment);
        loop {
            while failed.is_none()
                && !(self.was_asked_to_stop)()
                && let Some(buffer) = buffers.pop()
            {
                let Some((name, offset)) = next() else {
                    buffers.clear();
                    break;
                };
                let range = ReadRange::new(offset, buffer);
                in_flight.push((), read_one(self.target, name, range));
            }
            match in_flight.wait_next() {
                None => break,
                Some((_, Ok(buffer))) => {
                    total.bytes += access;
                    segments.one_is_done();
                    buffers.push(buffer);
                }
                Some((_, Err(fault))) => failed = failed.or(Some(Error::from(fault))),
            }
        }
        (total.took, total.segments) = (began.elapsed(), segments.took);
        self.read_bytes += total.bytes;
        if let Some(error) = failed {
            return Err(error);
        }
        self.check_stop()?;
        Ok(total)
    }

    /// Deletes a shard, finished or not.
    ///
    /// # Errors
    /// Errors of the target. The shard stays on the list of those to delete.
    pub fn delete(&mut self, name: ShardName) -> Result<()> {
        let unfinished = self.target.delete_unfinished(name);
        self.target.delete(name)?;
        unfinished?;
        self.live.retain(|live| *live != name);
        Ok(())
    }

    /// Deletes all shards, and frees their space.
    ///
    /// # Errors
    /// The first error of the target. The other shards are deleted all the same.
    pub fn clear(&mut self) -> Result<()> {
        let mut outcome = Ok(());
        for name in self.live.clone() {
            let deleted = self.delete(name);
            outcome = outcome.and(deleted);
        }
        // A deleted file that is open for reads still takes space.
        self.target.close_files(false);
        outcome
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        // The work has failed, and its own error is reported.
        let _ = self.clear();
    }
}
