//! What a restore fills: the wishes of the program, region by region, made a plan by stream.

use outlive_capture::fill::MutRegion;
use outlive_store::MemoryImage;
use outlive_types::{Epoch, Error, PACKED_STREAM, Part, RegionDesc, RegionLocation, Result};

/// A checkpoint that can be restored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offer {
    /// Its epoch.
    pub epoch: Epoch,
    /// How many ranks have saved it.
    pub ranks: u32,
    /// Its regions, in the order in which they were saved. Of a group: those that this rank has saved,
    /// then those that are the same on all ranks. A rank that is new has the parts of arrays with no
    /// element in them, and no region that was each rank's own.
    pub regions: Vec<RegionDesc>,
    /// What the front door kept with the image.
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

/// What is wanted of one region.
#[derive(Debug)]
pub enum Destination {
    /// Nothing: it is left out.
    Nothing,
    /// Its bytes, in memory of the restore's own: see [`Filled::bytes`](crate::Filled::bytes).
    Copy,
    /// Its bytes, in this memory, which must be as long. Of memory that overlaps, one region after the
    /// other is filled at the end, in the order of the regions, as a program would do it.
    Into(MutRegion),
    /// This part of the global array that the region is part of, in memory that holds just that. Another
    /// part than was saved cannot be restored lazily.
    Part(Part, MutRegion),
}

/// What is done with one stream.
#[derive(Debug)]
enum StreamFill {
    Not,
    Ours,
    Theirs(MutRegion),
}

/// What is read, and where to.
#[derive(Debug)]
pub(crate) struct FillPlan {
    streams: Vec<StreamFill>,
    /// Filled at the end from memory of the restore's own: what is packed with others, and what overlaps.
    pub later: Vec<(RegionDesc, MutRegion)>,
    /// Every region was asked for.
    pub whole: bool,
}

impl FillPlan {
    /// The plan of one wish for each region.
    ///
    /// # Errors
    /// `Bug` for another number of wishes; `Invalid` for memory of another length.
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
                // Of all packed regions together there is no byte.
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

    /// Streams that go into memory of the restore's own, or nowhere.
    pub fn not_theirs(&self) -> Vec<usize> {
        let numbered = self.streams.iter().enumerate();
        let not_theirs = numbered.filter(|(_, fill)| !matches!(fill, StreamFill::Theirs(_)));
        not_theirs.map(|(at, _)| at).collect()
    }

    /// Streams that go into memory of the restore's own.
    pub fn ours(&self) -> Vec<usize> {
        let numbered = self.streams.iter().enumerate();
        numbered.filter(|(_, fill)| matches!(fill, StreamFill::Ours)).map(|(at, _)| at).collect()
    }

    /// Which streams are read, and for each stream the memory for it.
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

/// Whether a region is just this part of its array.
pub(crate) fn is_part(region: &RegionDesc, part: &Part) -> bool {
    region.distribution.part(&region.shape).as_ref() == Some(part)
}

/// For each wish whether its memory overlaps that of another one.
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
    // What reaches furthest so far, and whose it is.
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

/// Name of the stream that holds a region's bytes. There is none if all packed regions together have no
/// byte.
pub(crate) fn stream_name(region: &RegionDesc) -> &str {
    match region.location {
        RegionLocation::Packed { .. } => PACKED_STREAM,
        RegionLocation::Own => &region.name,
    }
}
