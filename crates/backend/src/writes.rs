//! The bookkeeping of every shard writer: the writes in flight, the failed writes, and the work to
//! do when all have ended. Also the checks and errors that all targets share. Code that implements
//! a target uses it, here or in another crate.

use crate::{Fault, ShardName};
use outlive_io::SharedBuf;
use outlive_types::sync::plain::{Mutex, MutexGuard};
use outlive_types::{Error, ErrorKind, PAGE_BYTES, Result};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

type Job = Box<dyn FnOnce() + Send>;

/// The writes of one shard.
#[derive(Default)]
pub struct Writes(Mutex<State>);

#[derive(Default)]
struct State {
    in_flight: usize,
    /// Offsets that are not written, or not yet.
    unwritten: BTreeMap<u64, Option<Error>>,
    last: Option<Job>,
}

/// One write, ended by dropping it. It counts as failed unless a call reports success.
pub struct Writing {
    writes: Arc<Writes>,
    offset: u64,
}

impl Writes {
    /// Begins a write at `offset`.
    pub fn begin(self: &Arc<Self>, offset: u64) -> Writing {
        let mut state = self.lock();
        state.in_flight += 1;
        state.unwritten.insert(offset, None);
        Writing { writes: self.clone(), offset }
    }

    /// Runs `job` after the last write: now, or in the thread that ends that write. The write's
    /// ticket waits for `job`, so `job` should only queue something.
    pub fn after_all(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.lock();
        if state.in_flight > 0 {
            state.last = Some(Box::new(job));
            return;
        }
        drop(state);
        job();
    }

    /// Returns `Ok` if every write succeeded in the end.
    ///
    /// # Errors
    /// The error of a write whose last attempt failed.
    pub fn check(&self, shard: ShardName) -> Result<()> {
        self.check_all().map_err(|error| error.context(format!("shard {shard}")))
    }

    /// Does the same for a caller that does not know the shard's name.
    ///
    /// # Errors
    /// As [`Writes::check`].
    pub fn check_all(&self) -> Result<()> {
        let state = self.lock();
        let Some((offset, error)) = state.unwritten.first_key_value() else { return Ok(()) };
        let error = error.clone().unwrap_or_else(|| Error::bug("the write was given up"));
        Err(error.context(format!("it is incomplete at byte {offset}")))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}

impl Writing {
    /// Records that the write succeeded, and ends it.
    pub fn succeed(self) {
        self.writes.lock().unwritten.remove(&self.offset);
    }

    /// Records that the write failed, and ends it.
    pub fn fail(self, error: Error) {
        self.writes.lock().unwritten.insert(self.offset, Some(error));
    }

    /// Records the outcome and ends the write. On success it drops `buffer`, which returns to its
    /// pool if no other part of it is in use.
    ///
    /// # Errors
    /// The error of the outcome, with the buffer.
    pub fn end(
        self,
        outcome: Result<()>,
        buffer: SharedBuf,
    ) -> std::result::Result<(), Fault<SharedBuf>> {
        let mut state = self.writes.lock();
        match outcome {
            Ok(()) => {
                state.unwritten.remove(&self.offset);
                Ok(())
            }
            Err(error) => {
                state.unwritten.insert(self.offset, Some(error.clone()));
                Err(Fault { error, buffer })
            }
        }
    }
}

impl fmt::Debug for Writes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Writes")
    }
}

impl fmt::Debug for Writing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Writing(at {})", self.offset)
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        let mut state = self.writes.lock();
        state.in_flight -= 1;
        let last = if state.in_flight == 0 { state.last.take() } else { None };
        drop(state);
        if let Some(job) = last {
            job();
        }
    }
}

/// Refuses a write that no backend could do.
///
/// # Errors
/// `Bug` if the write is not made of whole pages, or reaches beyond `bytes_max`.
pub fn check_write(shard: ShardName, offset: u64, bytes: &[u8], bytes_max: u64) -> Result<()> {
    let fits = offset.checked_add(bytes.len() as u64).is_some_and(|end| end <= bytes_max);
    if fits && is_made_of_pages(offset, bytes) {
        return Ok(());
    }
    Err(Error::bug(format!(
        "a write of {} bytes at {offset} to shard {shard} of at most {bytes_max} bytes is not made of \
         whole pages, or does not fit",
        bytes.len()
    )))
}

/// Returns true if a direct read or write can have this offset and this memory.
fn is_made_of_pages(offset: u64, memory: &[u8]) -> bool {
    let is_page = |number: usize| number.is_multiple_of(PAGE_BYTES);
    offset.is_multiple_of(PAGE_BYTES as u64)
        && is_page(memory.len())
        && is_page(memory.as_ptr().addr())
}

/// Refuses a length that no shard can have.
///
/// # Errors
/// `Bug` if the length is not made of whole pages, or above `bytes_max`.
pub fn check_finish(shard: ShardName, length: u64, bytes_max: u64) -> Result<()> {
    if length.is_multiple_of(PAGE_BYTES as u64) && length <= bytes_max {
        return Ok(());
    }
    Err(Error::bug(format!(
        "{length} bytes cannot be the length of shard {shard} of at most {bytes_max} bytes: it is \
         not made of whole pages, or too long"
    )))
}

/// Refuses a range that no backend could read.
///
/// # Errors
/// `Bug` if the range is not made of whole pages.
pub fn check_range(shard: ShardName, range: &crate::ReadRange) -> Result<()> {
    if is_made_of_pages(range.offset, &range.buffer) {
        return Ok(());
    }
    Err(Error::bug(format!(
        "a read of {} bytes at {} from shard {shard} is not made of whole pages",
        range.buffer.len(),
        range.offset
    )))
}

/// Returns the error for a range that reaches past a shard's end.
pub fn short(place: &str, shard: ShardName, range: &crate::ReadRange, end: u64) -> Error {
    Error::damaged(format!(
        "shard {shard} in {place} is cut short: it ends at byte {end}, but bytes {} to {} are \
         needed",
        range.offset,
        range.offset.saturating_add(range.buffer.len() as u64)
    ))
}

/// Returns the error for a missing shard.
pub fn missing(place: &str, shard: ShardName) -> Error {
    Error::damaged(format!("shard {shard} is missing from {place}"))
}

/// Returns the error for a second shard of one name.
pub fn exists(place: &str, shard: ShardName) -> Error {
    Error::invalid(format!("shard {shard} exists already in {place}; {ONCE}"))
}

/// Ends the text of [`exists`].
const ONCE: &str = "shards are written once";

/// Returns whether this is the error of [`exists`], perhaps of a storage node.
pub fn says_exists(error: &Error) -> bool {
    error.kind() == ErrorKind::Invalid && error.message().ends_with(ONCE)
}
