//! An image that stands still.

use crate::HashTracker;
use crate::layout::Layout;
use crate::memory::Memory;
use crate::runs;
use crate::tracker::{FreezeId, Spare};
use outlive_chunk::Diff;
use outlive_types::{Epoch, Frozen, RegionDesc, Run, StreamDesc};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The result of a freeze. Its buffers go back to the tracker when it is dropped, not when it is
/// settled, since slices of them may be in use until then.
#[derive(Debug)]
pub(crate) struct FrozenMemory {
    pub tracker: Arc<HashTracker>,
    pub freeze: FreezeId,
    pub layout: Arc<Layout>,
    pub attachment: Arc<[u8]>,
    pub runs: Vec<Run>,
    /// Runs before this one that lie in the program's memory are live.
    pub live_runs: usize,
    /// For each run from `live_runs` on, where the arena holds its bytes, if it does.
    pub offsets: Vec<usize>,
    pub spare: Spare,
    /// Most bytes that either spare buffer may keep.
    pub freeze_bytes_max: u64,
    pub released: AtomicBool,
    /// Taken when the freeze is settled.
    pub diffs: Mutex<Option<Vec<Diff>>>,
}

impl Frozen for FrozenMemory {
    fn regions(&self) -> &[RegionDesc] {
        &self.layout.regions
    }

    fn attachment(&self) -> &[u8] {
        &self.attachment
    }

    fn streams(&self) -> &[StreamDesc] {
        &self.layout.streams
    }

    fn runs(&self) -> &[Run] {
        &self.runs
    }

    fn live_runs(&self) -> usize {
        self.live_runs
    }

    fn bytes(&self, run: usize) -> &[u8] {
        let stream = self.runs[run].stream as usize;
        let (offset, length) = runs::extent(&self.runs[run], self.layout.streams[stream].bytes);
        let (bytes, offset) = match self.layout.memory(stream) {
            None => (&self.spare.packed[..], offset),
            Some(Memory::Shared(bytes)) => (&bytes[..], offset),
            Some(memory @ Memory::Raw(_)) if run < self.live_runs => {
                // The program may be writing there by now, so its bytes must not be looked at.
                assert!(
                    !self.released.load(Ordering::Acquire),
                    "live run {run} was read after the live runs had been released"
                );
                (memory.bytes(), offset)
            }
            Some(Memory::Raw(_)) => (self.spare.arena.bytes(), self.offsets[run - self.live_runs]),
        };
        &bytes[offset..][..length]
    }

    fn release_live(&self) {
        self.released.store(true, Ordering::Release);
    }

    fn settle(&self, committed: Option<Epoch>) {
        self.release_live();
        let diffs = self.diffs.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(diffs) = diffs else { return };
        match committed {
            Some(epoch) => self.tracker.commit(self.freeze, epoch, &self.layout.streams, diffs),
            None => self.tracker.abandon(self.freeze),
        }
    }
}

impl Drop for FrozenMemory {
    fn drop(&mut self) {
        self.settle(None);
        let mut spare = std::mem::take(&mut self.spare);
        if spare.packed.capacity() as u64 > self.freeze_bytes_max {
            spare.packed = Vec::new();
        }
        self.tracker.keep(spare);
    }
}
