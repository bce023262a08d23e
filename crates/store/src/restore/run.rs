//! The threads of a lazy restore: some fetch the pages that the program misses, one brings the
//! rest.

use super::read_scheduler::{ReadScheduler, WhileWanted};
use super::{LazyEnds, LazyFill, LazySink};
use crate::index::ReadItem;
use crate::read::{Current, Leaves, MemoryImage, ReadPlan, RestoreStats, SoughtPieces, Verified};
use crate::save::remark;
use outlive_log::LockGuard;
use outlive_types::sync::{self, Mutex};
use outlive_types::{BLOCK_BYTES, Error, ErrorKind, Event, Missing, Progress, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Threads that serve faults: a program seldom has more threads that wait at once, and any free
/// thread serves the next fault.
const FAULT_THREADS: usize = 4;
/// Most reads of the background in flight, over all threads. The engine carries out eight at once.
const READS_IN_FLIGHT: usize = 14;
/// Longest read of the background: a fault may have to wait for one.
const SPAN_BYTES_MAX: u64 = 1 << 20;
/// Bytes that the background reads next after a fault, from the start of the fault's unit.
const NEIGHBOURS_BYTES: u64 = 4 * BLOCK_BYTES as u64;
/// Attempts to read data, and the pause before the next one.
const ATTEMPTS: usize = 5;
const PAUSE: Duration = Duration::from_millis(100);
/// The same for data on an away target. The program that waits for it can only continue with it, or
/// die.
const ATTEMPTS_AWAY: usize = 120;
const PAUSE_AWAY: Duration = Duration::from_secs(1);

/// Called when a checkpoint was restored as a whole: the next save follows it.
pub(crate) type Follow = Box<dyn Fn(&MemoryImage) + Send + Sync>;

/// One lazy restore.
pub(crate) struct Runner<S> {
    /// Also keeps the job open until the fill is over.
    follow: Follow,
    sink: S,
    /// The lazy streams.
    streams: Vec<usize>,
    /// Whether every stream was requested.
    whole: bool,
    /// The image as the log has it now: a gc may move chunks during the fill.
    image: Current<MemoryImage>,
    /// Keeps gcs from deleting data that the fill needs, where the medium has locks.
    reading: Mutex<Option<LockGuard>>,
    leaves: Leaves,
    fill: LazyFill,
    ends: Mutex<Option<LazyEnds<S>>>,
}

impl<S: LazySink> Runner<S> {
    /// Reads the data that the program must wait for.
    ///
    /// # Errors
    /// `Damaged` if any of that data is missing or wrong.
    pub fn read_eager(
        checkpoint: &MemoryImage,
        selected: &[usize],
        sink: &S,
    ) -> Result<RestoreStats> {
        let eager: Vec<usize> = selected.iter().copied().filter(|at| !sink.is_lazy(*at)).collect();
        let mut stats = checkpoint.read_some(&eager, sink)?;
        let leaves = Leaves::default();
        let mut sought = SoughtPieces::default();
        for (stream, range) in sink.edges() {
            checkpoint.add_range(checkpoint.pool(), &leaves, &mut sought, stream, range)?;
        }
        let pieces = checkpoint.located(sought)?;
        for zeros in &pieces.zeros {
            sink.write_edge(zeros.stream as usize, zeros.to, &vec![0; zeros.length as usize]);
        }
        let reads = ReadPlan::new(checkpoint.pool(), &pieces.wanted);
        let take = |at: usize, chunk: Verified<'_>| {
            let piece = &pieces.pieces[at];
            sink.write_edge(piece.stream as usize, piece.to, piece.of(chunk)?);
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

    /// Starts the fill, after the data that the program must wait for. `listed` is the newest
    /// record of the log before the search for the checkpoint. If no thread can start, the fill is
    /// over when this returns.
    pub fn start(
        follow: Follow,
        (image, listed): (MemoryImage, u64),
        reading: Option<LockGuard>,
        selected: &[usize],
        sink: S,
        ends: LazyEnds<S>,
    ) -> LazyFill {
        let streams: Vec<usize> = selected.iter().copied().filter(|at| sink.is_lazy(*at)).collect();
        let bytes = |stream: &usize| image.streams()[*stream].tree.bytes;
        let fill = LazyFill::new(streams.iter().map(bytes).sum());
        let runner = Runner {
            follow,
            sink,
            streams,
            whole: selected.len() == image.streams().len(),
            image: image.current(listed),
            reading: Mutex::new(reading),
            leaves: Leaves::default(),
            fill: fill.clone(),
            ends: Mutex::new(Some(ends)),
        };
        let runner = Arc::new(runner);
        if runner.streams.is_empty() {
            runner.fill();
            return fill;
        }
        let filler = runner.clone();
        if sync::spawn("outlive-fill", move || filler.fill()).is_err() {
            // The old content of the memory is gone. An error would leave zeros, which another
            // job's save would take for content.
            runner.fill();
            return fill;
        }
        for _ in 0..FAULT_THREADS {
            let server = runner.clone();
            // Ranges that no thread fetches come with everything else.
            if sync::spawn("outlive-fault", move || server.serve()).is_err() {
                break;
            }
        }
        fill
    }

    fn is_stopping(&self) -> bool {
        self.fill.is_stopping()
    }

    // --- Faults ----------------------------------------------------------------------------------

    fn serve(&self) {
        let mut buffer = Vec::new();
        while let Some(missing) = self.sink.next_missing() {
            if self.is_left_to_background(&missing) {
                continue;
            }
            buffer.clear();
            buffer.resize(missing.length, 0);
            let (stream, offset) = (missing.stream, missing.offset);
            let fetch = &mut |image: &MemoryImage| {
                image.fetch(&image.pool().urgently(), &self.leaves, stream, offset, &mut buffer)
            };
            match self.attempt(fetch) {
                Ok(()) => self.sink.deliver(&missing, Some(&buffer)),
                Err(error) => return self.fail(error),
            }
        }
    }

    /// Leaves a fault to the background, if that brings the unit next or has written the window.
    /// Returns whether it does.
    fn is_left_to_background(&self, missing: &Missing) -> bool {
        let (stream, unit) = (missing.stream, missing.unit());
        let order = self.fill.order();
        let is_taken_on = match &order {
            None => false,
            // The window is in memory: no read yields for it.
            Some(order) if missing.is_written => order.is_given(stream, unit),
            Some(order) => {
                order.prefer(stream, unit.start..unit.start + NEIGHBOURS_BYTES);
                order.takes_on(stream, unit)
            }
        };
        if is_taken_on {
            self.sink.expect(missing);
            // The pass that takes it on may have failed meanwhile.
            let now = self.fill.order();
            if !order.zip(now).is_some_and(|(order, now)| Arc::ptr_eq(&order, &now)) {
                self.sink.expect_nothing();
            }
        } else if missing.is_written {
            self.sink.deliver(missing, None);
        }
        is_taken_on || missing.is_written
    }

    /// Does `work`, and repeats it if data was missing that a gc has moved, or if the medium fails
    /// briefly.
    fn attempt(&self, work: &mut dyn FnMut(&MemoryImage) -> Result<()>) -> Result<()> {
        let mut attempts = 1;
        loop {
            let checkpoint = self.image.get();
            let Err(error) = work(&checkpoint) else { return Ok(()) };
            self.again(&checkpoint, error, &mut attempts)?;
        }
    }

    /// Returns once `work` is worth another attempt after `error`; returns the error if it is not.
    fn again(&self, seen: &Arc<MemoryImage>, error: Error, attempts: &mut usize) -> Result<()> {
        *attempts += 1;
        if self.is_stopping() {
            return Err(error);
        }
        let (most, pause) = match error.is_away() {
            true => (ATTEMPTS_AWAY, PAUSE_AWAY),
            false => (ATTEMPTS, PAUSE),
        };
        match error.kind() {
            ErrorKind::Damaged if *attempts <= 16 && self.image.moved_since(seen)? => Ok(()),
            ErrorKind::Retry if *attempts <= most => {
                sync::sleep(pause);
                Ok(())
            }
            _ => Err(error),
        }
    }

    // --- The background --------------------------------------------------------------------------

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
            let checkpoint = self.image.get();
            let had_all = checkpoint.has_all_extents();
            let outcome = self.pass(&checkpoint, &mut brought, &mut stats);
            if outcome.is_err() {
                // Until the next pass begins, the fault threads fetch each window themselves.
                self.fill.set_order(None);
                self.sink.expect_nothing();
            }
            if let Some(error) = self.sink.failure() {
                return Err(error);
            }
            match outcome {
                Ok(()) => break,
                // Another copy may be whole.
                Err(error) if error.kind() == ErrorKind::Damaged && !had_all => {
                    match checkpoint.all_extents() {
                        Ok(_) => {}
                        Err(away) if away.kind() == ErrorKind::Retry => {
                            self.again(&checkpoint, away, &mut attempts).map_err(|_| error)?;
                        }
                        Err(_) => self.again(&checkpoint, error, &mut attempts)?,
                    }
                }
                Err(error) => self.again(&checkpoint, error, &mut attempts)?,
            }
        }
        Ok(stats)
    }

    /// Brings all pieces that were not brought before. Trees that were opened again have the same
    /// pieces in the same order, at other pack extents.
    fn pass(
        &self,
        checkpoint: &MemoryImage,
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
        let wanted: Vec<ReadItem> = numbers.iter().map(|at| pieces.wanted[*at as usize]).collect();
        let reads = ReadPlan::within(pool, &wanted, SPAN_BYTES_MAX);
        let order = Arc::new(ReadScheduler::new(&reads, &pieces.pieces, &numbers, READS_IN_FLIGHT));
        self.fill.set_order(Some(order.clone()));
        let take = |at: usize, chunk: Verified<'_>| {
            let number = numbers[at] as usize;
            let piece = &pieces.pieces[number];
            self.sink.write(piece.stream as usize, piece.to, piece.of(chunk)?);
            brought[number].store(true, Ordering::Relaxed);
            advance(u64::from(piece.length));
            self.sink.failure().map_or(Ok(()), Err)
        };
        let next = WhileWanted(&order, &self.fill);
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

    // --- The end ---------------------------------------------------------------------------------

    /// Allows gcs to delete the data again, since it was read.
    fn detach(&self) {
        drop(self.reading.lock().take());
    }

    fn take_ends(&self) -> Option<LazyEnds<S>> {
        self.ends.lock().take()
    }

    fn succeed(&self, stats: RestoreStats) {
        let Some(ends) = self.take_ends() else { return };
        let checkpoint = self.image.get();
        (ends.filled)(&checkpoint, &self.sink);
        if self.whole {
            (self.follow)(&checkpoint);
        }
        self.detach();
        stats.count();
        self.fill.end(Ok(stats));
        self.sink.stop();
    }

    /// Marks the checkpoint and ends the program after the first failure; later failures do
    /// nothing.
    fn fail(&self, error: Error) {
        let Some(ends) = self.take_ends() else { return };
        self.fill.0.stopping.store(true, Ordering::Relaxed);
        let checkpoint = self.image.get();
        let (pool, epoch, job) = (checkpoint.pool(), checkpoint.epoch(), checkpoint.job());
        let mut what = format!("filling memory from checkpoint {epoch} of job {job}");
        if error.kind() == ErrorKind::Damaged {
            what = match remark(pool, job, epoch, &|remarks| remarks.suspect = true) {
                Ok(_) => format!(
                    "{what}, which is now marked suspect, so that the next lazy restore takes the one before"
                ),
                Err(failed) => format!("{what} (it could not be marked suspect: {failed})"),
            };
        }
        let error = error.context(what);
        self.detach();
        (ends.failed)(&error);
        self.sink.give_up();
        self.fill.end(Err(error));
        self.sink.stop();
    }
}

/// Decides when to report progress: 256 times in total.
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
