//! One checkpoint's chunks and nodes: read and verified here, stored there.

use crate::index::ReadItem;
use crate::read::{ReadPlan, Take, Verified};
use crate::save::{ChunkSink, FrameCompression, Lane, Packer};
use outlive_format::EntryKind;
use outlive_io::Pace;
use outlive_pool::Pool;
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, Event, Progress, Result};
use std::sync::atomic::{AtomicU64, Ordering};

/// Ends a search for the checkpoint here; the true error is noted elsewhere.
pub fn elsewhere() -> Error {
    Error::retry("the pool to copy to does not take it")
}

/// Reads here and stores there.
pub struct Store<'s, 'a> {
    /// Here.
    pub from: &'s Pool,
    /// There.
    pub to: &'s Pool,
    /// Takes what is sent.
    pub packer: &'s Packer<'a>,
    /// Knows what is there.
    pub sink: &'s ChunkSink<'s>,
    /// How fast.
    pub pace: &'s Pace,
    /// Counts what was read.
    pub done_bytes: AtomicU64,
    /// What there is to read.
    pub total_bytes: u64,
    /// What went wrong there.
    pub fault: Mutex<Option<Error>>,
}

impl Store<'_, '_> {
    /// Chunks, by as many threads as both pools allow.
    ///
    /// # Errors
    /// What the pool here reports; an error of the pool there is noted in `fault`.
    pub fn chunks(&self, wanted: &[ReadItem]) -> Result<()> {
        let threads = self.from.config().tuning.threads().min(self.packer.lanes_max());
        let lanes: Mutex<Vec<Lane<'_>>> = Mutex::default();
        let lock = || lanes.lock();
        let take = |at: usize, there: Verified<'_>| {
            let bytes = there.stored;
            self.step(bytes);
            // One for each thread, in the end.
            let idle = lock().pop();
            let mut lane = idle.unwrap_or_else(|| self.packer.lane());
            let ReadItem { fp, extent } = wanted[at];
            // What was worth compressing there is so here.
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

    /// Nodes, in their order.
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
