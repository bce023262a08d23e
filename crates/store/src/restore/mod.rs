//! Lazy restores: once the page tree is read, the program continues. A fault fetches the pages that
//! the program touches, and the rest follows in container order.

mod read_scheduler;
mod run;

pub(crate) use run::Runner;

use crate::read::{MemoryImage, RestoreSink, RestoreStats, Select, incomplete, suspect};
use outlive_types::sync::{Condvar, Mutex, MutexGuard};
use outlive_types::{Error, Missing, Result};
use read_scheduler::ReadScheduler;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Memory that a program uses while a lazy restore fills it.
///
/// [`RestoreSink::write`] and [`RestoreSink::zero`] bring every byte of the restored streams once.
/// Bytes that the program got by a fault, or has changed since, must stay as they are.
pub trait LazySink: RestoreSink + Send + 'static {
    /// Returns whether the stream, except its edges, is filled while the program runs.
    fn is_lazy(&self, stream: usize) -> bool;
    /// Returns the parts of lazy streams that the program must wait for.
    fn edges(&self) -> Vec<(usize, Range<u64>)>;
    /// Takes bytes of an edge.
    fn write_edge(&self, stream: usize, offset: u64, bytes: &[u8]);
    /// Waits for the next range that the program misses; `None` once `stop` was called.
    fn next_missing(&self) -> Option<Missing>;
    /// Notes that the background writes the whole unit next, so nothing is delivered for this
    /// fault.
    fn expect(&self, missing: &Missing);
    /// Notes that the background writes expected units late: their threads must fault again.
    fn expect_nothing(&self);
    /// Serves a fault with all bytes of its range; `None`: they are written
    /// ([`Missing::is_written`]).
    fn deliver(&self, missing: &Missing, bytes: Option<&[u8]>);
    /// Returns the error of placing bytes in memory, if there was one.
    fn failure(&self) -> Option<Error>;
    /// Ends all waits: nothing more will come.
    fn give_up(&self);
    /// Ends every `next_missing`, now and later.
    fn stop(&self);
}

/// Actions at the end of a fill.
pub struct LazyEnds<S> {
    /// Called when everything was brought, by a thread of the fill, before waiting threads
    /// continue. The sink's hashes are those of the checkpoint.
    #[allow(clippy::type_complexity)]
    pub filled: Box<dyn FnOnce(&MemoryImage, &S) + Send>,
    /// Called after a failure: the program, whose memory has holes, must end. A damaged checkpoint
    /// is marked suspect by then; the message says so.
    pub failed: Box<dyn FnOnce(&Error) + Send>,
}

/// A fill, in progress or over.
#[derive(Clone, Debug)]
pub struct LazyFill(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    outcome: Mutex<Option<Result<RestoreStats>>>,
    changed: Condvar,
    done_bytes: AtomicU64,
    /// Bytes of all lazy streams, including zeros.
    total_bytes: u64,
    order: Mutex<Option<Arc<ReadScheduler>>>,
    stopping: AtomicBool,
}

impl LazyFill {
    fn new(total_bytes: u64) -> LazyFill {
        LazyFill(Arc::new(Shared {
            outcome: Mutex::default(),
            changed: Condvar::new(),
            done_bytes: AtomicU64::new(0),
            total_bytes,
            order: Mutex::default(),
            stopping: AtomicBool::new(false),
        }))
    }

    fn outcome(&self) -> MutexGuard<'_, Option<Result<RestoreStats>>> {
        self.0.outcome.lock()
    }

    /// Returns whether it is over, after success or failure.
    pub fn done(&self) -> bool {
        self.outcome().is_some()
    }

    /// Returns the bytes brought so far, and in total.
    pub fn progress(&self) -> (u64, u64) {
        (self.0.done_bytes.load(Ordering::Relaxed), self.0.total_bytes)
    }

    /// Waits until it is over; `None` if that takes longer than `timeout`.
    pub fn wait(&self, timeout: Option<Duration>) -> Option<Result<RestoreStats>> {
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut outcome = self.outcome();
        loop {
            if let Some(outcome) = &*outcome {
                return Some(outcome.clone());
            }
            outcome = match until {
                None => self.0.changed.wait(outcome),
                Some(until) => {
                    let left = until.checked_duration_since(Instant::now())?;
                    let waited = self.0.changed.wait_timeout(outcome, left);
                    waited.0
                }
            };
        }
    }

    /// Reads a part of a stream before everything else.
    pub fn prefer(&self, stream: usize, range: Range<u64>) {
        if let Some(order) = self.order() {
            order.prefer(stream, range);
        }
    }

    /// Returns the order of the current pass, if one reads.
    fn order(&self) -> Option<Arc<ReadScheduler>> {
        self.0.order.lock().clone()
    }

    fn set_order(&self, order: Option<Arc<ReadScheduler>>) {
        *self.0.order.lock() = order;
    }

    fn is_stopping(&self) -> bool {
        self.0.stopping.load(Ordering::Relaxed)
    }

    fn end(&self, outcome: Result<RestoreStats>) {
        self.outcome().get_or_insert(outcome);
        self.set_order(None);
        self.0.changed.notify_all();
    }
}

/// Refuses a checkpoint with known damage: a lazy restore must not rely on it before all of it is
/// read.
pub(crate) fn refuse_suspect(
    checkpoint: &MemoryImage,
    is_incomplete: bool,
    select: Select,
) -> Result<()> {
    let (pool, epoch, job) = (checkpoint.pool(), checkpoint.epoch(), checkpoint.job());
    if checkpoint.manifest().remarks.suspect {
        let error = suspect(pool, epoch, job);
        return Err(match select {
            Select::Newest | Select::Sound => error,
            Select::Epoch(_) => error.context("it cannot be restored lazily"),
        });
    }
    if is_incomplete {
        return Err(incomplete(pool, epoch, job));
    }
    Ok(())
}
