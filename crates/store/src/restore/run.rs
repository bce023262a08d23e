//! The threads of a lazy restore: some fetch what the program waits for, one brings the rest.

use super::order::Order;
use super::{LazyEnds, LazyFill, LazySink};
use crate::index::Wanted;
use crate::read::{Checkpoint, Pieces, ReadPlan, RestoreStats, Select, first_good, read_merged};
use crate::save::remark;
use crate::tree::Node;
use outlive_format::Leaf;
use outlive_target::LockGuard;
use outlive_types::sync::{self, Mutex, MutexGuard};
use outlive_types::{BLOCK_BYTES, Error, ErrorKind, Event, Missing, Progress, Result};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// Threads that serve faults: a program seldom has more threads that wait at once, and each is served
/// by whichever is free.
const FAULT_THREADS: usize = 4;
/// Reads of the background, all together. The engine does eight at once; with no more than six, which
/// left two for faults, programs that touch much waited longer: for the fill itself.
const READS_IN_FLIGHT: usize = 14;
/// Longest read of the background: what a fault may have to wait behind.
const SPAN_BYTES_MAX: u64 = 2 << 20;
/// What is read first after a fault, from the fault's block on.
const NEIGHBOURS_BYTES: u64 = 4 * BLOCK_BYTES as u64;
/// Leaves that were too large to keep, kept for faults.
const LEAVES_MAX: usize = 256;
/// How often what cannot be read is tried again, and how long after.
const ATTEMPTS: usize = 5;
const PAUSE: Duration = Duration::from_millis(100);

/// The checkpoint as the log has it now: a gc may move chunks while they are being fetched.
pub(crate) struct View {
    pub checkpoint: Arc<Checkpoint>,
    /// The log's newest record before the checkpoint was looked for.
    pub listed: u64,
    /// Keeps gcs from deleting what the fill needs, where the medium has locks.
    pub reading: Option<LockGuard>,
}

/// Called when all of a checkpoint has been restored: the next save follows it.
pub(crate) type Follow = Box<dyn Fn(&Checkpoint) + Send + Sync>;

/// One lazy restore.
pub(crate) struct Runner<S> {
    /// Also keeps the job open until the fill is over.
    follow: Follow,
    sink: S,
    /// The streams that are lazy.
    streams: Vec<usize>,
    /// Every stream was asked for.
    whole: bool,
    view: Mutex<View>,
    leaves: Mutex<HashMap<(usize, u64), Arc<Leaf>>>,
    fill: LazyFill,
    ends: Mutex<Option<LazyEnds<S>>>,
}

impl<S: LazySink> Runner<S> {
    /// Reads what the program must wait for. `listed` is the newest record of the log before the
    /// checkpoint was looked for.
    ///
    /// # Errors
    /// `Damaged` if anything of that is missing or wrong.
    pub fn read_eager(
        checkpoint: &Checkpoint,
        selected: &[usize],
        sink: &S,
    ) -> Result<RestoreStats> {
        let eager: Vec<usize> = selected.iter().copied().filter(|at| !sink.is_lazy(*at)).collect();
        let mut stats = checkpoint.read(&eager, sink)?;
        let leaves = Mutex::default();
        let mut pieces = Pieces::default();
        for (stream, range) in sink.edges() {
            add_range(checkpoint, &leaves, &mut pieces, stream, range)?;
        }
        for zeros in &pieces.zeros {
            sink.write_edge(zeros.stream as usize, zeros.to, &vec![0; zeros.length as usize]);
        }
        let reads = ReadPlan::new(checkpoint.pool(), &pieces.wanted);
        let take = |at: usize, bytes: &[u8]| {
            let piece = &pieces.pieces[at];
            sink.write_edge(piece.stream as usize, piece.to, piece.of(bytes));
            Ok(())
        };
        let threads = checkpoint.pool().config().tuning.threads();
        if let Some(fault) = reads.execute(checkpoint.pool(), threads, false, &take).pop() {
            return Err(fault.error);
        }
        stats.read_bytes += reads.read_bytes;
        stats.reads += reads.reads() as u64;
        Ok(stats)
    }

    /// Starts the fill; what the program must wait for has been read. If no thread can be started, it
    /// is over when this returns.
    pub fn start(
        follow: Follow,
        view: View,
        selected: &[usize],
        sink: S,
        ends: LazyEnds<S>,
    ) -> LazyFill {
        let streams: Vec<usize> = selected.iter().copied().filter(|at| sink.is_lazy(*at)).collect();
        let streams_of = &view.checkpoint.clone();
        let bytes = |stream: &usize| streams_of.streams()[*stream].tree.bytes;
        let fill = LazyFill::new(streams.iter().map(bytes).sum());
        let whole = selected.len() == streams_of.streams().len();
        let view = Mutex::new(view);
        let (leaves, ends) = (Mutex::default(), Mutex::new(Some(ends)));
        let runner =
            Runner { follow, sink, streams, whole, view, leaves, fill: fill.clone(), ends };
        let runner = Arc::new(runner);
        if runner.streams.is_empty() {
            runner.fill();
            return fill;
        }
        let filler = runner.clone();
        if sync::spawn("outlive-fill", move || filler.fill()).is_err() {
            // What the memory held is gone. An error would leave zeros, which another job's save takes
            // for content.
            runner.fill();
            return fill;
        }
        for _ in 0..FAULT_THREADS {
            let server = runner.clone();
            // What no thread fetches comes with everything else.
            if sync::spawn("outlive-fault", move || server.serve()).is_err() {
                break;
            }
        }
        fill
    }

    fn view(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn checkpoint(&self) -> Arc<Checkpoint> {
        self.view().checkpoint.clone()
    }

    fn is_stopping(&self) -> bool {
        self.fill.0.stopping.load(Ordering::Relaxed)
    }

    // --- Faults -------------------------------------------------------------------------------------

    fn serve(&self) {
        let mut buffer = Vec::new();
        while let Some(missing) = self.sink.next_missing() {
            buffer.clear();
            buffer.resize(missing.length, 0);
            match self.attempt(&mut |checkpoint| self.fetch(checkpoint, &missing, &mut buffer)) {
                Ok(()) => self.sink.deliver(&missing, &buffer),
                Err(error) => return self.fail(error),
            }
            let block = missing.offset / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
            self.fill.prefer(missing.stream, block..block + NEIGHBOURS_BYTES);
        }
    }

    /// Reads and verifies a range.
    fn fetch(&self, checkpoint: &Checkpoint, missing: &Missing, into: &mut [u8]) -> Result<()> {
        let mut pieces = Pieces::default();
        let range = missing.offset..missing.offset + missing.length as u64;
        add_range(checkpoint, &self.leaves, &mut pieces, missing.stream, range)?;
        into.fill(0);
        let into = Mutex::new(into);
        ReadPlan::new(checkpoint.pool(), &pieces.wanted).execute_now(
            checkpoint.pool(),
            &|at, bytes| {
                let piece = &pieces.pieces[at];
                let mut into = into.lock().unwrap_or_else(PoisonError::into_inner);
                into[(piece.to - missing.offset) as usize..][..piece.length as usize]
                    .copy_from_slice(piece.of(bytes));
                Ok(())
            },
        )
    }

    /// Does `work`, again if something is missing that a gc has moved, or the medium hesitates.
    fn attempt(&self, work: &mut dyn FnMut(&Checkpoint) -> Result<()>) -> Result<()> {
        let mut attempts = 1;
        loop {
            let checkpoint = self.checkpoint();
            let Err(error) = work(&checkpoint) else { return Ok(()) };
            self.again(&checkpoint, error, &mut attempts)?;
        }
    }

    /// Decides whether to try again after `error`; the error, if not.
    fn again(&self, seen: &Arc<Checkpoint>, error: Error, attempts: &mut usize) -> Result<()> {
        *attempts += 1;
        if self.is_stopping() || *attempts > 16 {
            return Err(error);
        }
        match error.kind() {
            ErrorKind::Damaged if self.has_moved(seen)? => Ok(()),
            ErrorKind::Retry if *attempts <= ATTEMPTS => {
                sync::sleep(PAUSE);
                Ok(())
            }
            _ => Err(error),
        }
    }

    /// Opens the checkpoint again if the log has changed since `seen` was opened.
    fn has_moved(&self, seen: &Arc<Checkpoint>) -> Result<bool> {
        let mut view = self.view();
        if !Arc::ptr_eq(&view.checkpoint, seen) {
            return Ok(true);
        }
        let (pool, job, epoch) = (seen.pool(), seen.job(), seen.epoch());
        let listed = pool.log().latest(job)?;
        if listed == view.listed {
            return Ok(false);
        }
        match first_good(pool, job, Select::Epoch(epoch), &mut |_| Ok(())) {
            Ok(Some((checkpoint, (), _))) => {
                (view.checkpoint, view.listed) = (Arc::new(checkpoint), listed);
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::Invalid => Err(Error::retry(format!(
                "checkpoint {epoch} of job {job} was pruned while memory was filled from it"
            ))),
            Err(error) if error.kind() != ErrorKind::Damaged => Err(error),
            _ => Ok(false),
        }
    }

    // --- The background -----------------------------------------------------------------------------

    fn fill(&self) {
        match self.fill_all() {
            Ok(stats) => self.succeed(stats),
            Err(error) => self.fail(error),
        }
    }

    fn fill_all(&self) -> Result<RestoreStats> {
        let mut stats =
            RestoreStats { total_bytes: self.fill.0.total_bytes, ..RestoreStats::default() };
        let mut brought: Vec<AtomicBool> = Vec::new();
        let mut attempts = 1;
        while !self.streams.is_empty() {
            let checkpoint = self.checkpoint();
            let outcome = self.pass(&checkpoint, &mut brought, &mut stats);
            if let Some(error) = self.sink.failure() {
                return Err(error);
            }
            match outcome {
                Ok(()) => break,
                Err(error) => self.again(&checkpoint, error, &mut attempts)?,
            }
        }
        Ok(stats)
    }

    /// Brings all that was not brought before. Trees that were opened again have the same pieces in
    /// the same order, at other places.
    fn pass(
        &self,
        checkpoint: &Checkpoint,
        brought: &mut Vec<AtomicBool>,
        stats: &mut RestoreStats,
    ) -> Result<()> {
        let pieces = checkpoint.pieces(&self.streams)?;
        let pool = checkpoint.pool();
        let progress = Steps::new(self.fill.0.total_bytes);
        let advance = |bytes: u64| {
            let before = self.fill.0.done_bytes.fetch_add(bytes, Ordering::Relaxed);
            if let Some(progress) = progress.after(before, bytes) {
                pool.env().observer.event(Event::Progress(progress));
            }
        };
        if brought.is_empty() {
            brought.extend(pieces.pieces.iter().map(|_| AtomicBool::new(false)));
            for zeros in &pieces.zeros {
                self.sink.zero(zeros.stream as usize, zeros.to, zeros.length);
                advance(zeros.length);
            }
        }
        if brought.len() != pieces.pieces.len() {
            return Err(Error::bug("a checkpoint has other pieces than before"));
        }
        let left = |at: &u32| !brought[*at as usize].load(Ordering::Relaxed);
        let numbers: Vec<u32> = (0..pieces.pieces.len() as u32).filter(left).collect();
        let wanted: Vec<Wanted> = numbers.iter().map(|at| pieces.wanted[*at as usize]).collect();
        let reads = ReadPlan::within(pool, &wanted, SPAN_BYTES_MAX);
        let order = Arc::new(Order::new(&reads, &pieces.pieces, &numbers));
        *self.fill.0.order.lock().unwrap_or_else(PoisonError::into_inner) = Some(order.clone());
        let take = |at: usize, bytes: &[u8]| {
            let number = numbers[at] as usize;
            let piece = &pieces.pieces[number];
            self.sink.write(piece.stream as usize, piece.to, piece.of(bytes));
            brought[number].store(true, Ordering::Relaxed);
            advance(u64::from(piece.length));
            self.sink.failure().map_or(Ok(()), Err)
        };
        let next = || if self.is_stopping() { None } else { order.next() };
        let threads = pool.config().tuning.threads();
        let faults = reads.execute_as(pool, (threads, READS_IN_FLIGHT), false, &next, &take);
        stats.read_bytes += reads.read_bytes;
        stats.reads += reads.reads() as u64;
        match faults.into_iter().next() {
            Some(fault) => Err(fault.error),
            None if self.is_stopping() => Err(Error::retry("the restore has ended")),
            None => Ok(()),
        }
    }

    // --- The end ------------------------------------------------------------------------------------

    fn take_ends(&self) -> Option<LazyEnds<S>> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn succeed(&self, stats: RestoreStats) {
        let Some(ends) = self.take_ends() else { return };
        let checkpoint = self.checkpoint();
        (ends.filled)(&checkpoint, &self.sink);
        if self.whole {
            (self.follow)(&checkpoint);
        }
        drop(self.view().reading.take());
        self.fill.end(Ok(stats));
        self.sink.stop();
    }

    /// The first failure marks the checkpoint and ends the program; others came too late.
    fn fail(&self, error: Error) {
        let Some(ends) = self.take_ends() else { return };
        self.fill.0.stopping.store(true, Ordering::Relaxed);
        let checkpoint = self.checkpoint();
        let (pool, epoch, job) = (checkpoint.pool(), checkpoint.epoch(), checkpoint.job());
        let mut what = format!("filling memory from checkpoint {epoch} of job {job}");
        if error.kind() == ErrorKind::Damaged {
            what = match remark(pool, job, epoch, &|remarks| remarks.suspect = true) {
                Ok(_) => format!(
                    "{what}, which is now marked suspect, so that the next start takes the one before"
                ),
                Err(failed) => format!("{what} (it could not be marked suspect: {failed})"),
            };
        }
        let error = error.context(what);
        drop(self.view().reading.take());
        (ends.failed)(&error);
        self.sink.give_up();
        self.fill.end(Err(error));
        self.sink.stop();
    }
}

/// Adds a range of a stream; leaves that are not kept with the tree are read, and kept for a while.
fn add_range(
    checkpoint: &Checkpoint,
    leaves: &Mutex<HashMap<(usize, u64), Arc<Leaf>>>,
    pieces: &mut Pieces,
    stream: usize,
    range: Range<u64>,
) -> Result<()> {
    let tree = &checkpoint.streams()[stream].tree;
    let mut leaf_of = |block: u64| {
        let Some(node) = tree.leaf(block) else { return Ok(None) };
        let Node::Leaf(node) = node.as_ref() else { return Ok(None) };
        if let Some(kept) = &node.kept {
            return Ok(Some(kept.clone()));
        }
        let known = || leaves.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(leaf) = known().get(&(stream, block)) {
            return Ok(Some(leaf.clone()));
        }
        let read = read_merged(checkpoint.pool(), &[node])?.pop();
        let leaf = Arc::new(read.ok_or_else(|| Error::bug("a leaf was not read"))?);
        let mut known = known();
        if known.len() >= LEAVES_MAX {
            known.clear();
        }
        known.insert((stream, block), leaf.clone());
        Ok(Some(leaf))
    };
    pieces.range(checkpoint.locator(), stream as u32, range, &mut leaf_of)
}

/// When to tell how far it is: 256 times in all.
struct Steps {
    total_bytes: u64,
    step_bytes: u64,
    told: AtomicU64,
}

impl Steps {
    fn new(total_bytes: u64) -> Steps {
        let step_bytes = (total_bytes / 256).max(1 << 20);
        Steps { total_bytes, step_bytes, told: AtomicU64::new(0) }
    }

    fn after(&self, before: u64, bytes: u64) -> Option<Progress> {
        let (done_bytes, total_bytes) = (before + bytes, self.total_bytes);
        let step = done_bytes / self.step_bytes;
        (self.told.fetch_max(step, Ordering::Relaxed) < step).then_some(Progress {
            what: "restore",
            done_bytes,
            total_bytes,
        })
    }
}
