//! Restores that fill memory at once.

use crate::client::Client;
use crate::plan::{Destination, FillPlan, Offer, stream_name};
use crate::write_permit::{WritePermit, interrupted};
use outlive_capture::fill::{MutRegion, Scatter};
use outlive_io::AlignedBuf;
use outlive_store::{MemoryImage, RestoreSink, Restored, Select};
use outlive_types::sync::plain::Mutex;
use outlive_types::{Distribution, Epoch, Error, Event, RegionDesc, RegionLocation, Result};
use std::collections::HashMap;
use std::sync::Arc;

/// Result of a restore, with the data that it has read into its own memory.
#[derive(Debug)]
pub struct Filled {
    /// The epoch, figures, and the checkpoints that were skipped.
    pub restored: Restored,
    pub(crate) image: FilledImage,
    /// Data that is the same on all ranks, if another one has stored it.
    pub(crate) common: Option<FilledImage>,
}

impl Filled {
    /// Returns the bytes of a region that was requested as a copy. `None` if it was not, or went
    /// straight to its destination.
    pub fn bytes(&self, region: &RegionDesc) -> Option<&[u8]> {
        match &self.common {
            Some(common) if region.distribution == Distribution::Replicated => common.bytes(region),
            _ => self.image.bytes(region),
        }
    }
}

/// Data of one image in memory of the restore's own.
#[derive(Debug, Default)]
pub(crate) struct FilledImage {
    /// Memory by stream.
    ours: HashMap<usize, AlignedBuf>,
    streams: HashMap<String, usize>,
}

impl FilledImage {
    pub fn new(ours: HashMap<usize, AlignedBuf>, names: Vec<String>) -> FilledImage {
        let streams = names.into_iter().enumerate().map(|(at, name)| (name, at)).collect();
        FilledImage { ours, streams }
    }

    /// Returns the bytes of a region that was requested as a copy.
    fn bytes(&self, region: &RegionDesc) -> Option<&[u8]> {
        if region.bytes == 0 {
            return Some(&[]);
        }
        let ours = self.ours.get(self.streams.get(stream_name(region))?)?;
        match region.location {
            RegionLocation::Own => Some(&ours[..]),
            RegionLocation::Packed { offset } => {
                let (offset, length) =
                    (usize::try_from(offset).ok()?, usize::try_from(region.bytes).ok()?);
                ours.get(offset..)?.get(..length)
            }
        }
    }

    /// Fills regions that were packed together, or overlap, one after the other.
    pub fn fill_later(&self, later: Vec<(RegionDesc, MutRegion)>) -> Result<()> {
        for (region, memory) in later {
            let bytes = self.bytes(&region);
            let bytes = bytes.ok_or_else(|| Error::bug("a region was asked for and not read"))?;
            Scatter::new(vec![memory])?.write(0, 0, bytes);
        }
        Ok(())
    }
}

/// Memory that a restore fills at once.
pub(crate) struct Sink {
    scatter: Scatter,
    permit: Arc<WritePermit>,
    /// Names by stream.
    names: Vec<String>,
    pub whole: bool,
    /// Streams that go into memory of the restore's own.
    ours: Vec<usize>,
    later: Mutex<Vec<(RegionDesc, MutRegion)>>,
}

impl RestoreSink for Sink {
    fn write(&self, stream: usize, offset: u64, bytes: &[u8]) {
        self.permit.with(|| self.scatter.write(stream, offset, bytes));
    }

    fn zero(&self, stream: usize, offset: u64, length: u64) {
        self.permit.with(|| self.scatter.zero(stream, offset, length));
    }
}

impl Client {
    /// Restores a checkpoint. It asks for the destinations of each candidate's regions, newest
    /// first, reads these regions, and returns when they are there. If a candidate proves damaged,
    /// the next older one follows. If every region was requested, the next save writes only what
    /// has changed since. `None` if there is no checkpoint.
    ///
    /// Memory is touched as long as `permit` allows it: a caller that withdraws it may free the
    /// memory. The restore waits for a save in progress, and for a lazy restore.
    ///
    /// # Errors
    /// As [`Job::restore`](outlive_store::Job::restore); those of `ask`; `Retry` if `permit` was
    /// withdrawn.
    pub fn restore(
        &self,
        select: Select,
        permit: &Arc<WritePermit>,
        ask: &mut dyn FnMut(Offer) -> Result<Vec<Destination>>,
    ) -> Result<Option<Filled>> {
        let filled = match self.job.is_group() {
            true => self.restore_together(select, permit, ask),
            false => self.restore_alone(select, permit, ask),
        }?;
        if let (Some(filled), Select::Newest) = (&filled, select) {
            self.restored(filled.restored.epoch);
        }
        Ok(filled)
    }

    /// Ends the restore of an image. If all of it was read and it `follows` that epoch, the tracker
    /// remembers what the next save needs. Then fills the regions that need others first.
    pub(crate) fn conclude(
        &self,
        sink: Sink,
        follows: Option<Epoch>,
        permit: &WritePermit,
    ) -> Result<FilledImage> {
        let Sink { scatter, names, whole, ours, later, .. } = sink;
        self.tell_memory(scatter.fresh_report());
        if let (true, Some(epoch)) = (whole, follows) {
            let named = names.iter().enumerate();
            let hashes =
                named.filter_map(|(at, name)| Some((name.clone(), scatter.take_hashes(at)?)));
            permit
                .with(|| self.tracker.prime_hashes(epoch, hashes.collect()))
                .ok_or_else(interrupted)?;
        }
        let streams = scatter.into_streams().into_iter().enumerate();
        let ours = streams.filter(|(at, _)| ours.binary_search(at).is_ok());
        let ours = ours.filter_map(|(at, memory)| Some((at, memory.into_bytes()?))).collect();
        let image = FilledImage::new(ours, names);
        let later = later.into_inner();
        permit.with(|| image.fill_later(later)).ok_or_else(interrupted)??;
        Ok(image)
    }

    /// Reports which kind of pages fresh memory has.
    fn tell_memory(&self, report: Option<String>) {
        if let Some(report) = report {
            let text = format!("job {}: {report}", self.job.name());
            self.job.pool().env().observer.event(Event::Info(text));
        }
    }
}

pub(crate) fn sink(
    checkpoint: &MemoryImage,
    mut plan: FillPlan,
    permit: &Arc<WritePermit>,
) -> Result<(Vec<usize>, Sink)> {
    let (mut selected, ours) = (Vec::new(), plan.ours());
    let scatter = permit.scatter(|| {
        let memory;
        (selected, memory) = plan.take_memory(checkpoint)?;
        if plan.whole { Scatter::learning(memory) } else { Scatter::new(memory) }
    })?;
    let names = checkpoint.streams().iter().map(|stream| stream.name.clone()).collect();
    let FillPlan { whole, later, .. } = plan;
    Ok((
        selected,
        Sink { scatter, permit: permit.clone(), names, whole, ours, later: Mutex::new(later) },
    ))
}
