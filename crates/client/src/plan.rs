//! Plans a restore: the destinations of the program, region by region, become a plan by stream.

use outlive_capture::fill::MutRegion;
use outlive_store::MemoryImage;
use outlive_types::{Epoch, Error, PACKED_STREAM, Part, RegionDesc, RegionLocation, Result};

/// A checkpoint that can be restored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offer {
    /// Its epoch.
    pub epoch: Epoch,
    /// Number of ranks that have saved it.
    pub ranks: u32,
    /// Its regions, in the order in which they were saved. Of a group: those that this rank has
    /// saved, then those that are the same on all ranks. A rank that is new has empty parts of the
    /// arrays, and no region that each rank had for itself.
    pub regions: Vec<RegionDesc>,
    /// Attachment of the front door to the image.
    pub attachment: Vec<u8>,
}

impl Offer {
    pub(crate) fn of(checkpoint: &MemoryImage) -> Offer {
        Offer {
            epoch: checkpoint.epoch(),
            ranks: checkpoint.manifest().world_size,
            regions: checkpoint.regions().to_vec(),
            attachment: checkpoint.attachment().to_vec(),
        }
    }
}

/// Destination of one region.
#[derive(Debug)]
pub enum Destination {
    /// None: it is left out.
    Nothing,
    /// Memory of the restore's own: see [`Filled::bytes`](crate::Filled::bytes).
    Copy,
    /// This memory, which must be as long. Memory that overlaps is filled at the end, one region
    /// after the other in their order, as a program would do it.
    Into(MutRegion),
    /// Memory for exactly this part of the global array that the region is part of. A part that
    /// differs from the saved one cannot be restored lazily.
    Part(Part, MutRegion),
}

/// Destination of one stream.
#[derive(Debug)]
enum StreamFill {
    Not,
    Ours,
    Theirs(MutRegion),
}

/// Streams to read, and their destinations.
#[derive(Debug)]
pub(crate) struct FillPlan {
    streams: Vec<StreamFill>,
    /// Regions that are filled at the end from the restore's own memory: packed ones, and those
    /// that overlap.
    pub later: Vec<(RegionDesc, MutRegion)>,
    /// Whether every region was requested.
    pub whole: bool,
}

impl FillPlan {
    /// Plans one destination for each region.
    ///
    /// # Errors
    /// `Bug` for another number of destinations; `Invalid` for memory of another length.
    pub fn new(checkpoint: &MemoryImage, destinations: Vec<Destination>) -> Result<FillPlan> {
        let regions = checkpoint.regions();
        if destinations.len() != regions.len() {
            return Err(Error::bug("the plan has another number of regions"));
        }
        let numbers = checkpoint.stream_of();
        let whole =
            destinations.iter().all(|destination| !matches!(destination, Destination::Nothing));
        let mut plan = FillPlan {
            streams: checkpoint.streams().iter().map(|_| StreamFill::Not).collect(),
            later: Vec::new(),
            whole,
        };
        let overlap = overlapping(&destinations);
        for ((region, destination), overlaps) in regions.iter().zip(destinations).zip(overlap) {
            let destination = match destination {
                Destination::Part(part, memory) if is_part(region, &part) => {
                    Destination::Into(memory)
                }
                destination => destination,
            };
            let stream = numbers.get(stream_name(region)).copied();
            match (destination, region.location, stream) {
                (Destination::Nothing, _, _) => {}
                (Destination::Part(..), ..) => {
                    return Err(Error::invalid(format!(
                        "of the array {:?} another part is wanted than was saved: that cannot be restored \
                         lazily",
                        region.name
                    )));
                }
                (Destination::Into(memory), ..) if memory.length() as u64 != region.bytes => {
                    return Err(Error::invalid(format!(
                        "region {:?} has {} bytes in the checkpoint, the memory for it {}",
                        region.name,
                        region.bytes,
                        memory.length()
                    )));
                }
                // All packed regions together have no byte.
                (_, _, None) => {}
                (Destination::Into(memory), RegionLocation::Own, Some(at)) if !overlaps => {
                    plan.streams[at] = StreamFill::Theirs(memory);
                }
                (Destination::Into(memory), _, Some(at)) => {
                    plan.streams[at] = StreamFill::Ours;
                    plan.later.push((region.clone(), memory));
                }
                (Destination::Copy, _, Some(at)) => plan.streams[at] = StreamFill::Ours,
            }
        }
        Ok(plan)
    }

    /// Returns the streams that go into memory of the restore's own, or nowhere.
    pub fn not_theirs(&self) -> Vec<usize> {
        let numbered = self.streams.iter().enumerate();
        let not_theirs = numbered.filter(|(_, fill)| !matches!(fill, StreamFill::Theirs(_)));
        not_theirs.map(|(at, _)| at).collect()
    }

    /// Returns the streams that go into memory of the restore's own.
    pub fn ours(&self) -> Vec<usize> {
        let numbered = self.streams.iter().enumerate();
        numbered.filter(|(_, fill)| matches!(fill, StreamFill::Ours)).map(|(at, _)| at).collect()
    }

    /// Returns the streams to read, and for each stream its memory.
    ///
    /// # Errors
    /// `Full` for more memory than there can be.
    pub fn take_memory(
        &mut self,
        checkpoint: &MemoryImage,
    ) -> Result<(Vec<usize>, Vec<MutRegion>)> {
        let fills = std::mem::take(&mut self.streams);
        let mut memory = Vec::with_capacity(fills.len());
        let mut selected = Vec::new();
        for (at, (fill, stream)) in fills.into_iter().zip(checkpoint.streams()).enumerate() {
            if !matches!(fill, StreamFill::Not) {
                selected.push(at);
            }
            memory.push(match fill {
                StreamFill::Not => MutRegion::zeroed(0),
                StreamFill::Ours => {
                    let bytes = stream.tree.bytes;
                    let length = usize::try_from(bytes).ok();
                    let length = length.filter(|length| isize::try_from(*length).is_ok());
                    MutRegion::zeroed(length.ok_or_else(|| {
                        Error::full(format!("cannot allocate {bytes} bytes of memory"))
                    })?)
                }
                StreamFill::Theirs(memory) => memory,
            });
        }
        Ok((selected, memory))
    }
}

/// Returns whether a region is just this part of its array.
pub(crate) fn is_part(region: &RegionDesc, part: &Part) -> bool {
    region.distribution.part(&region.shape).as_ref() == Some(part)
}

/// Returns for each destination whether its memory overlaps that of another one.
fn overlapping(destinations: &[Destination]) -> Vec<bool> {
    let mut lent: Vec<(usize, usize, usize)> = Vec::new();
    for (at, destination) in destinations.iter().enumerate() {
        if let Destination::Into(memory) | Destination::Part(_, memory) = destination
            && memory.length() > 0
        {
            lent.push((memory.address(), memory.address() + memory.length(), at));
        }
    }
    lent.sort_unstable();
    let mut overlaps = vec![false; destinations.len()];
    // The furthest end so far, and its destination.
    let (mut end, mut last) = (0, None);
    for (from, to, at) in lent {
        if from < end {
            overlaps[at] = true;
            last.into_iter().for_each(|last: usize| overlaps[last] = true);
        }
        if to > end {
            (end, last) = (to, Some(at));
        }
    }
    overlaps
}

/// Returns the name of the stream with a region's bytes. There is none if all packed regions
/// together have no byte.
pub(crate) fn stream_name(region: &RegionDesc) -> &str {
    match region.location {
        RegionLocation::Packed { .. } => PACKED_STREAM,
        RegionLocation::Own => &region.name,
    }
}
