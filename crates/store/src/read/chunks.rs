//! Reads many chunks or nodes in container order, verifies each, and passes it on.
#![expect(
    clippy::disallowed_methods,
    reason = "each chunk is verified, and read again from any copy"
)]

use super::pages::VerifiedPages;
use super::verified::Verified;
use crate::index::ReadItem;
use outlive_chunk::{Decompressor, on_threads};
use outlive_io::{AlignedBuf, Completions, Ticket};
use outlive_pool::{PackExtent, Pool, Span, SpanBytes};
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, Fingerprint, PAGE_BYTES, PackId, Result};
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Reads in flight over all threads: the engine works on eight, and the others are ready when a
/// thread returns from verifying.
const READS_IN_FLIGHT: usize = 14;
/// The same where staging has room for more, as in a pool in a bucket, whose server may be far.
const READS_IN_FLIGHT_MAX: usize = 30;

/// Takes verified bytes, with their number in the caller's list.
pub type Take<'t> = dyn Fn(usize, Verified<'_>) -> Result<()> + Sync + 't;

/// One read: a span, and the range of the sorted items that it covers.
#[derive(Clone, Debug)]
struct Step {
    span: Span,
    items: Range<usize>,
}

/// A plan: each needed byte is read once, in container order; ranges closer than the gap become
/// one.
#[derive(Debug)]
pub struct ReadPlan {
    /// The items in container order, each with its number in the caller's list.
    sorted: Vec<(u32, ReadItem)>,
    steps: Vec<Step>,
    /// Bytes that will be read.
    pub read_bytes: u64,
    /// Whether the caller writes the data to the same pool.
    is_beside_writes: bool,
}

/// An item that could not be read or did not verify.
#[derive(Debug)]
pub struct ReadFault {
    /// Number of the item in the caller's list.
    pub wanted: usize,
    /// The cause.
    pub error: Error,
}

/// Decides which read begins next, and when.
pub trait ReadOrder: Sync {
    /// Returns the number of the next read. With `None`, or with a number beyond the plan, no read
    /// begins now. Then a thread that has no read in flight (`is_idle`) ends.
    fn next(&self, is_idle: bool) -> Option<usize>;

    /// Notes that a read from `next` has ended or failed. The plan does not call it for a number
    /// beyond the plan.
    fn ended(&self) {}
}

impl<F: Fn() -> Option<usize> + Sync> ReadOrder for F {
    fn next(&self, _: bool) -> Option<usize> {
        self()
    }
}

impl ReadPlan {
    /// Plans the reading of `wanted`. Equal pack extents are read once and passed on for each item.
    pub fn new(pool: &Pool, wanted: &[ReadItem]) -> ReadPlan {
        ReadPlan::within(pool, wanted, u64::MAX)
    }

    /// Plans reads of at most `span_bytes_max`, except for longer frames and chunks. So other
    /// readers of small ranges do not wait long behind them.
    pub fn within(pool: &Pool, wanted: &[ReadItem], span_bytes_max: u64) -> ReadPlan {
        let container = pool.config().format.container_bytes;
        let gap_max = pool.config().tuning.read_gap_bytes;
        let order = in_container_order(wanted);
        let sorted: Vec<(u32, ReadItem)> =
            order.into_iter().map(|at| (at, wanted[at as usize])).collect();
        let mut steps: Vec<Step> = Vec::new();
        for (at, (_, w)) in sorted.iter().enumerate() {
            let extent = w.extent;
            let end = u64::from(extent.offset) + u64::from(extent.stored_bytes());
            if let Some(last) = steps.last_mut() {
                let last_end = u64::from(last.span.offset) + u64::from(last.span.length);
                let same_container = last.span.pack == extent.pack
                    && u64::from(last.span.offset) / container == (end - 1) / container;
                let span_bytes = last_end.max(end) - u64::from(last.span.offset);
                if same_container
                    && u64::from(extent.offset) <= last_end + gap_max
                    && (span_bytes <= span_bytes_max || end <= last_end)
                {
                    last.span.length = span_bytes as u32;
                    last.items.end = at + 1;
                    continue;
                }
            }
            let span =
                Span { pack: extent.pack, offset: extent.offset, length: extent.stored_bytes() };
            steps.push(Step { span, items: at..at + 1 });
        }
        let read_bytes = steps.iter().map(|s| u64::from(s.span.length)).sum();
        ReadPlan { sorted, steps, read_bytes, is_beside_writes: false }
    }

    /// Leaves half of the buffers to writes, for a caller that writes the data to the same pool.
    pub fn beside_writes(mut self) -> ReadPlan {
        self.is_beside_writes = true;
        self
    }

    /// Returns the number of read operations.
    pub fn reads(&self) -> usize {
        self.steps.len()
    }

    /// Returns for each of the items the read that brings it.
    pub fn step_of(&self) -> Vec<u32> {
        let mut step_of = vec![0; self.sorted.len()];
        for (number, step) in self.steps.iter().enumerate() {
            for (at, _) in &self.sorted[step.items.clone()] {
                step_of[*at as usize] = number as u32;
            }
        }
        step_of
    }

    /// Returns the reads in an order in which `packs_at_once` packs take turns, each pack in
    /// container order. A pack may be on one target, and other targets can be read at the same
    /// time. `None` if the order would stay the same.
    fn turns(&self, packs_at_once: usize) -> Option<Vec<usize>> {
        let mut packs: VecDeque<Range<usize>> = VecDeque::new();
        for (number, step) in self.steps.iter().enumerate() {
            match packs.back_mut() {
                Some(last) if self.steps[last.start].span.pack == step.span.pack => {
                    last.end = number + 1;
                }
                _ => packs.push_back(number..number + 1),
            }
        }
        if packs_at_once < 2 || packs.len() < 2 {
            return None;
        }
        let mut order = Vec::with_capacity(self.steps.len());
        let mut side_by_side: VecDeque<Range<usize>> =
            packs.drain(..packs_at_once.min(packs.len())).collect();
        while let Some(mut pack) = side_by_side.pop_front() {
            order.extend(pack.next());
            let next = if pack.is_empty() { packs.pop_front() } else { Some(pack) };
            side_by_side.extend(next);
        }
        Some(order)
    }

    /// Reads everything with `threads` threads, and passes each verified item to `take`, with its
    /// number in the caller's list. With `keep_going` it collects faults, otherwise the first one
    /// ends the work. Reads begin in container order; one thread also passes them on in that order.
    pub fn execute(
        &self,
        pool: &Pool,
        threads: usize,
        keep_going: bool,
        take: &Take<'_>,
    ) -> Vec<ReadFault> {
        let next = AtomicUsize::new(0);
        let next = || Some(next.fetch_add(1, Ordering::Relaxed));
        self.execute_as(pool, (threads, self.depth(pool, threads)), keep_going, &next, take)
    }

    /// Does the same for a caller that takes items in any order: reads of several packs take turns,
    /// so that all targets are busy.
    pub fn execute_in_turns(
        &self,
        pool: &Pool,
        threads: usize,
        keep_going: bool,
        take: &Take<'_>,
    ) -> Vec<ReadFault> {
        let Some(order) = self.turns(pool.reads_side_by_side()) else {
            return self.execute(pool, threads, keep_going, take);
        };
        let next = AtomicUsize::new(0);
        let next = || order.get(next.fetch_add(1, Ordering::Relaxed)).copied();
        self.run(pool, (threads, self.depth(pool, threads)), false, keep_going, &next, take)
    }

    /// Returns the number of reads in flight at a time.
    fn depth(&self, pool: &Pool, threads: usize) -> usize {
        let staging = pool.staging();
        self.depth_with(staging.total_bytes() / staging.buffer_bytes(), threads)
    }

    fn depth_with(&self, buffers: usize, threads: usize) -> usize {
        // Data that is being verified has a buffer as well.
        match self.is_beside_writes {
            true => (buffers / 2).saturating_sub(threads).clamp(1, READS_IN_FLIGHT_MAX),
            false => buffers.saturating_sub(threads).clamp(READS_IN_FLIGHT, READS_IN_FLIGHT_MAX),
        }
    }

    /// Does the same in another order, with at most `depth` reads in flight over all `threads`
    /// threads.
    pub fn execute_as(
        &self,
        pool: &Pool,
        (threads, depth): (usize, usize),
        keep_going: bool,
        order: &dyn ReadOrder,
        take: &Take<'_>,
    ) -> Vec<ReadFault> {
        let threads = self.threads(threads, depth);
        self.run(pool, (threads, depth), threads == 1, keep_going, order, take)
    }

    fn threads(&self, threads: usize, depth: usize) -> usize {
        threads.clamp(1, self.steps.len().max(1)).min(depth)
    }

    fn run(
        &self,
        pool: &Pool,
        (threads, depth): (usize, usize),
        in_order: bool,
        keep_going: bool,
        order: &dyn ReadOrder,
        take: &Take<'_>,
    ) -> Vec<ReadFault> {
        let stop = AtomicBool::new(false);
        let faults = Mutex::new(Vec::new());
        let threads = self.threads(threads, depth);
        let worker = Worker {
            plan: self,
            pool,
            order,
            stop: &stop,
            faults: &faults,
            keep_going,
            take,
            depth: depth / threads,
            in_order,
            alive: &AtomicUsize::new(0),
        };
        on_threads(threads, || worker.run());
        faults.into_inner()
    }

    /// Reads everything at once into buffers of its own: for a few small reads that must not wait
    /// for the buffers of others.
    ///
    /// # Errors
    /// `Damaged` for the first item that is missing or wrong.
    pub fn execute_now(&self, pool: &Pool, take: &Take<'_>) -> Result<()> {
        let read = |step: &Step| {
            // A span may begin anywhere within a page.
            let bytes = (step.span.length as usize + PAGE_BYTES).next_multiple_of(PAGE_BYTES);
            pool.read(step.span, AlignedBuf::zeroed(bytes))
        };
        let tickets: Vec<_> = self.steps.iter().map(read).collect();
        let (stop, faults) = (AtomicBool::new(false), Mutex::new(Vec::new()));
        let (order, keep_going, depth, in_order) = (&|| None, false, 1, true);
        let (stop, faults, alive) = (&stop, &faults, &AtomicUsize::new(0));
        let worker = Worker {
            plan: self,
            pool,
            order,
            stop,
            faults,
            keep_going,
            take,
            depth,
            in_order,
            alive,
        };
        let mut frame = Frame::default();
        for (step, ticket) in self.steps.iter().zip(tickets) {
            worker.hand_on(step, ticket.wait(), &mut frame);
        }
        let mut faults = faults.lock();
        faults.pop().map_or(Ok(()), |fault: ReadFault| Err(fault.error))
    }
}

struct Worker<'a> {
    plan: &'a ReadPlan,
    pool: &'a Pool,
    order: &'a dyn ReadOrder,
    stop: &'a AtomicBool,
    faults: &'a Mutex<Vec<ReadFault>>,
    keep_going: bool,
    take: &'a Take<'a>,
    depth: usize,
    /// Passes items on in the order of the reads, for callers that copy them one after the other.
    in_order: bool,
    /// Threads that read.
    alive: &'a AtomicUsize,
}

/// Reads in flight.
struct Reads {
    queue: Completions<usize, Result<SpanBytes>>,
    /// Order of the reads for callers that need it. `None`: reads are taken as they end, and a late
    /// one delays no other.
    order: Option<InOrder>,
}

/// The numbers of the reads that were not taken yet, and the reads that ended before their turn.
type InOrder = (VecDeque<usize>, HashMap<usize, Result<SpanBytes>>);

impl Reads {
    fn new(in_order: bool) -> Reads {
        Reads { queue: Completions::new(), order: in_order.then(Default::default) }
    }

    fn len(&self) -> usize {
        self.order.as_ref().map_or(self.queue.len(), |(turns, _)| turns.len())
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn push(&mut self, at: usize, read: Ticket<Result<SpanBytes>>) {
        self.queue.push(at, read);
        if let Some((turns, _)) = &mut self.order {
            turns.push_back(at);
        }
    }

    fn wait_next(&mut self) -> Option<(usize, Result<SpanBytes>)> {
        let Some((turns, early)) = &mut self.order else { return self.queue.wait_next() };
        let at = turns.pop_front()?;
        loop {
            if let Some(read) = early.remove(&at) {
                return Some((at, read));
            }
            let (other, read) = self.queue.wait_next()?;
            early.insert(other, read);
        }
    }
}

/// Counts the reads that a thread has begun. All of them end with it, also in a panic: other
/// threads may wait for room.
struct Given<'a> {
    order: &'a dyn ReadOrder,
    count: usize,
}

impl Given<'_> {
    fn begin(&mut self) {
        self.count += 1;
    }

    fn end(&mut self) {
        self.count -= 1;
        self.order.ended();
    }
}

impl Drop for Given<'_> {
    fn drop(&mut self) {
        while self.count > 0 {
            self.end();
        }
    }
}

impl Worker<'_> {
    fn run(&self) {
        self.alive.fetch_add(1, Ordering::AcqRel);
        let done = self.read_all();
        let is_last = self.alive.fetch_sub(1, Ordering::AcqRel) == 1;
        // The other threads read the rest, if there are any.
        if let Err(error) = done
            && is_last
        {
            self.give_up(error);
        }
    }

    /// Reads until no read is left.
    ///
    /// # Errors
    /// If there is no memory for even one buffer.
    fn read_all(&self) -> Result<()> {
        let mut in_flight = Reads::new(self.in_order);
        let mut given = Given { order: self.order, count: 0 };
        let mut frame = Frame::default();
        loop {
            while in_flight.len() < self.depth && !self.stop.load(Ordering::Relaxed) {
                // While this thread has reads in flight, their buffers will return.
                let buffer = match self.pool.staging().try_take() {
                    Some(buffer) => buffer,
                    // Other threads hold all buffers, and may wait for this one. So reads exceed
                    // the pool by at most a buffer for each of their threads.
                    None if in_flight.is_empty() => {
                        let bytes = self.pool.staging().buffer_bytes();
                        AlignedBuf::try_not_inherited(bytes)
                            .ok_or_else(|| Error::no_memory("a buffer to read into", bytes))?
                    }
                    None => break,
                };
                let Some(at) = self.order.next(in_flight.is_empty()) else { break };
                let Some(step) = self.plan.steps.get(at) else { break };
                given.begin();
                in_flight.push(at, self.pool.read(step.span, buffer));
            }
            let Some((at, read)) = in_flight.wait_next() else { return Ok(()) };
            given.end();
            self.hand_on(&self.plan.steps[at], read, &mut frame);
        }
    }

    /// Reports `error` for the next read if one is left, since no thread will read it.
    fn give_up(&self, error: Error) {
        let next = self.order.next(true);
        if next.is_some() {
            self.order.ended();
        }
        let left = next.and_then(|at| self.plan.steps.get(at));
        let Some(step) = left.filter(|_| !self.stop.swap(true, Ordering::Relaxed)) else { return };
        let mut faults = self.faults.lock();
        for (wanted, _) in &self.plan.sorted[step.items.clone()] {
            faults.push(ReadFault { wanted: *wanted as usize, error: error.clone() });
        }
    }

    fn hand_on(&self, step: &Step, mut read: Result<SpanBytes>, frame: &mut Frame) {
        frame.extent = None;
        let mut verified: Option<(PackExtent, Fingerprint)> = None;
        let mut may_read_again = true;
        let (items, mut pages) = (&self.plan.sorted[step.items.clone()], VerifiedPages::default());
        for (at, (number, wanted)) in items.iter().enumerate() {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let outcome = loop {
                // The same chunk wanted for several destinations is verified once.
                let is_known = verified == Some((wanted.extent, wanted.fp))
                    || read.as_ref().is_ok_and(|read| pages.knows(items, at, (read, &step.span)));
                match frame.verified(&read, &step.span, wanted, is_known) {
                    Ok(there) => {
                        verified = Some((wanted.extent, wanted.fp));
                        break (self.take)(*number as usize, there);
                    }
                    Err(error) if !may_read_again => break Err(error),
                    // A part of it is damaged; only the checksums of all its parts show which.
                    Err(error) => {
                        may_read_again = false;
                        match self.pool.read_checked(step.span) {
                            Ok(again) => {
                                (read, frame.extent, verified) = (Ok(again), None, None);
                                pages.forget();
                            }
                            // Data that cannot be read now may be whole.
                            Err(again) => break Err(error.or_rather(again)),
                        }
                    }
                }
            };
            if let Err(error) = outcome {
                let mut faults = self.faults.lock();
                faults.push(ReadFault { wanted: *number as usize, error });
                if !self.keep_going {
                    self.stop.store(true, Ordering::Relaxed);
                }
            }
        }
    }
}

/// The frame decompressed last: readers take its chunks one after the other.
#[derive(Default)]
struct Frame {
    extent: Option<u32>,
    decompressor: Decompressor,
}

impl Frame {
    /// Returns the wanted bytes of the `span` that was read. They are right, since `is_known` says
    /// so or since their fingerprint matches.
    fn verified<'a>(
        &'a mut self,
        read: &'a Result<SpanBytes>,
        span: &Span,
        wanted: &ReadItem,
        is_known: bool,
    ) -> Result<Verified<'a>> {
        let read = read.as_ref().map_err(Error::clone)?;
        let bytes = self.chunk(read, span, &wanted.extent)?;
        let there = match is_known {
            true => Verified::known(bytes, wanted.extent.slice).map(Some),
            false => Verified::new(bytes, wanted.extent.slice, &wanted.fp),
        };
        there
            .map_err(|error| error.context(mismatch(wanted).message()))?
            .ok_or_else(|| mismatch(wanted))
    }

    /// Returns the bytes of `extent`, which is within the `span` that was read.
    fn chunk<'a>(
        &'a mut self,
        read: &'a [u8],
        span: &Span,
        extent: &PackExtent,
    ) -> Result<&'a [u8]> {
        let start = (extent.offset - span.offset) as usize;
        let stored = &read[start..start + extent.stored_bytes() as usize];
        let Some(frame) = extent.frame else { return Ok(stored) };
        if self.extent != Some(extent.offset) {
            self.extent = None;
            let raw_bytes = frame.raw_bytes as usize;
            self.decompressor
                .decompress(frame.codec, stored, raw_bytes)
                .map_err(|e| e.context(format!("at {} of pack {}", extent.offset, extent.pack)))?;
            self.extent = Some(extent.offset);
        }
        // The decoder of the directory has checked the chunk's offset in its frame.
        Ok(&self.decompressor.last()[frame.first as usize..][..extent.length as usize])
    }
}

/// Returns the numbers of the items in the order of their pack extents. Packs are few and their ids
/// long, so it compares the ids only once.
fn in_container_order(wanted: &[ReadItem]) -> Vec<u32> {
    let mut packs: HashMap<PackId, u32> = wanted.iter().map(|w| (w.extent.pack, 0)).collect();
    let mut ids: Vec<PackId> = packs.keys().copied().collect();
    ids.sort_unstable();
    for (number, id) in ids.into_iter().enumerate() {
        packs.insert(id, number as u32);
    }
    let key = |(at, w): (usize, &ReadItem)| {
        let first = w.extent.frame.map_or(0, |frame| frame.first);
        (packs[&w.extent.pack], w.extent.offset, first, at as u32)
    };
    let mut keys: Vec<(u32, u32, u32, u32)> = wanted.iter().enumerate().map(key).collect();
    keys.sort_unstable();
    keys.into_iter().map(|(.., at)| at).collect()
}

fn mismatch(wanted: &ReadItem) -> Error {
    Error::damaged(format!(
        "{} bytes at {} of pack {} do not match their fingerprint {:?}",
        wanted.extent.length, wanted.extent.offset, wanted.extent.pack, wanted.fp
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packs_take_turns_and_each_is_read_as_it_lies() {
        let step = |pack: u8, number: u32| Step {
            span: Span { pack: PackId([pack; 20]), offset: number * 4096, length: 4096 },
            items: 0..0,
        };
        let steps = [(1, 3), (2, 1), (3, 2), (4, 2)]
            .into_iter()
            .flat_map(|(pack, reads)| (0..reads).map(move |number| step(pack, number)));
        let plan = ReadPlan {
            sorted: Vec::new(),
            steps: steps.collect(),
            read_bytes: 0,
            is_beside_writes: false,
        };
        assert_eq!(plan.turns(1), None);
        assert_eq!(plan.turns(2).unwrap(), [0, 3, 1, 4, 2, 5, 6, 7]);
        assert_eq!(plan.turns(3).unwrap(), [0, 3, 4, 1, 6, 5, 2, 7]);
        assert_eq!(plan.turns(100).unwrap(), [0, 3, 4, 6, 1, 5, 7, 2]);
    }

    #[test]
    fn half_of_the_buffers_are_left_to_writes_of_the_same_pool() {
        let (sorted, steps) = Default::default();
        let plan = ReadPlan { sorted, steps, read_bytes: 0, is_beside_writes: false };
        let depths = |plan: &ReadPlan| [1, 4, 16, 64].map(|buffers| plan.depth_with(buffers, 1));
        assert_eq!(depths(&plan), [14, 14, 15, 30]);
        assert_eq!(depths(&plan.beside_writes()), [1, 1, 7, 30]);
    }

    /// Counts the reads that end.
    #[derive(Default)]
    struct Ends(AtomicUsize);

    impl ReadOrder for Ends {
        fn next(&self, _: bool) -> Option<usize> {
            None
        }

        fn ended(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn reads_of_a_thread_that_panics_end() {
        let order = Ends::default();
        let panics = std::panic::AssertUnwindSafe(|| {
            let mut given = Given { order: &order, count: 0 };
            (0..3).for_each(|_| given.begin());
            given.end();
            panic!("as a caller's `take` may");
        });
        std::panic::catch_unwind(panics).unwrap_err();
        assert_eq!(order.0.into_inner(), 3);
    }
}
