//! Reads and verifies the chunks and nodes of one checkpoint in the source, and stores them at the
//! destination.

use crate::index::ReadItem;
use crate::read::{ReadPlan, Take, Verified};
use crate::save::{ChunkSink, FrameCompression, Lane, Packer};
use outlive_format::EntryKind;
use outlive_io::Pace;
use outlive_pool::Pool;
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, Event, Progress, Result};
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns the error that ends a search for the checkpoint in the source; the true error is noted
/// elsewhere.
pub fn elsewhere() -> Error {
    Error::retry("the pool to copy to does not take it")
}

/// Reads in the source and stores at the destination.
pub struct Store<'s, 'a> {
    /// The source.
    pub from: &'s Pool,
    /// The destination.
    pub to: &'s Pool,
    /// Packer for all that is sent.
    pub packer: &'s Packer<'a>,
    /// Sink that knows the chunks of the destination.
    pub sink: &'s ChunkSink<'s>,
    /// Pace of the reads.
    pub pace: &'s Pace,
    /// Bytes read so far.
    pub done_bytes: AtomicU64,
    /// Bytes to read.
    pub total_bytes: u64,
    /// First error of the destination.
    pub fault: Mutex<Option<Error>>,
}

impl Store<'_, '_> {
    /// Copies chunks, by as many threads as both pools allow.
    ///
    /// # Errors
    /// Errors of the source; an error of the destination is noted in `fault`.
    pub fn chunks(&self, wanted: &[ReadItem]) -> Result<()> {
        let threads = self.from.config().tuning.threads().min(self.packer.lanes_max());
        let lanes: Mutex<Vec<Lane<'_>>> = Mutex::default();
        let lock = || lanes.lock();
        let take = |at: usize, there: Verified<'_>| {
            let bytes = there.stored;
            self.step(bytes);
            // In the end there is one for each thread.
            let idle = lock().pop();
            let mut lane = idle.unwrap_or_else(|| self.packer.lane());
            let ReadItem { fp, extent } = wanted[at];
            // A chunk that was worth compressing in the source is so at the destination.
            let codec = extent.frame.map(|frame| frame.codec);
            let stored = lane
                .set_squeezing(FrameCompression::as_before(self.to.config(), codec))
                .and_then(|()| match extent.slice {
                    None => self.sink.store(&mut lane, bytes, fp),
                    Some(form) => self.sink.store_slice(&mut lane, bytes, fp, form),
                });
            lock().push(lane);
            stored.map_err(|error| self.blame(error))
        };
        self.read(wanted, threads, &take)?;
        let lanes = lanes.into_inner();
        let finished = lanes.into_iter().try_for_each(Lane::finish);
        finished.and_then(|()| self.packer.join_lanes()).map_err(|error| self.blame(error))
    }

    /// Copies nodes, in their order.
    ///
    /// # Errors
    /// As [`Store::chunks`].
    pub fn nodes(&self, wanted: &[ReadItem]) -> Result<()> {
        let container_bytes = self.to.config().format.container_bytes;
        let take = |at: usize, node: Verified<'_>| {
            let bytes = node.whole()?;
            self.step(bytes);
            if bytes.len() as u64 > container_bytes {
                return Err(self.blame(Error::invalid(format!(
                    "a node of {} bytes does not fit into containers of {container_bytes}: make a \
                     pool with larger ones",
                    bytes.len()
                ))));
            }
            let stored = self.packer.append(bytes, wanted[at].fp, EntryKind::Node);
            stored.map(|_| ()).map_err(|error| self.blame(error))
        };
        self.read(wanted, 1, &take)
    }

    fn read(&self, wanted: &[ReadItem], threads: usize, take: &Take<'_>) -> Result<()> {
        let faults = ReadPlan::new(self.from, wanted).execute(self.from, threads, false, take);
        faults.into_iter().next().map_or(Ok(()), |fault| Err(fault.error))
    }

    fn step(&self, bytes: &[u8]) {
        let bytes = bytes.len() as u64;
        let done_bytes = self.done_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let event = Progress { what: "copy", done_bytes, total_bytes: self.total_bytes };
        self.to.env().observer.event(Event::Progress(event));
        self.pace.spend(bytes);
    }

    fn blame(&self, error: Error) -> Error {
        let mut fault = self.fault.lock();
        fault.get_or_insert(error);
        elsewhere()
    }
}
