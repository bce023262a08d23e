//! Parts of global arrays that other ranks have saved: finds their bytes in the images, and brings
//! them into the program's memory. It reads only chunks that hold some of them.

use crate::write_permit::WritePermit;
use outlive_capture::fill::{MutRegion, Scatter};
use outlive_store::{RankImages, RankRegions, RestoreSink, RestoreStats};
use outlive_types::{Error, Overlap, Part, RegionDesc, Result, shown_bytes, uncovered};
use std::ops::Range;
use std::sync::Arc;

/// Gap up to which one read takes two ranges: the length of the longest chunk.
const GAP_BYTES: u64 = 64 << 10;
/// The longest range, so that its pieces are few.
const RANGE_BYTES_MAX: u64 = 64 << 20;

/// A requested part of a global array, and the memory for it.
#[derive(Debug)]
pub struct PartWish {
    /// A region that is part of the array.
    pub region: RegionDesc,
    /// The requested part.
    pub part: Part,
    /// Memory of its length.
    pub memory: MutRegion,
}

/// A region of an image that overlaps a requested part.
struct Source {
    /// Index of the request.
    destination: usize,
    region: RegionDesc,
    overlap: Overlap,
}

/// All sources of one image.
struct ImageSources {
    of: RankRegions,
    sources: Vec<Source>,
}

/// Plan of which bytes of which images go where.
pub struct PartsPlan {
    destinations: Vec<PartWish>,
    images_with: Vec<ImageSources>,
}

/// Plans to read parts of arrays, from whichever ranks have saved them. Reads only catalogs.
///
/// # Errors
/// `Invalid` for a part that is not whole in the checkpoint, or memory of another length; `Damaged`
/// if a catalog is missing or wrong.
pub fn plan_parts(images: &RankImages<'_>, destinations: Vec<PartWish>) -> Result<PartsPlan> {
    let images_with = find(images, &destinations)?;
    Ok(PartsPlan { destinations, images_with })
}

/// Reads the planned parts.
///
/// # Errors
/// `Damaged` if data of them is missing or wrong.
pub fn read_parts(
    images: &RankImages<'_>,
    plan: PartsPlan,
    permit: &Arc<WritePermit>,
    stats: &mut RestoreStats,
) -> Result<()> {
    let PartsPlan { destinations, images_with } = plan;
    let memory: Vec<MutRegion> =
        destinations.into_iter().map(|destination| destination.memory).collect();
    let scatter = permit.scatter(|| Scatter::new(memory))?;
    for ImageSources { of, sources } in images_with {
        let image = images.open_regions(&of)?;
        let mut ranges = Vec::new();
        let mut placed = Vec::new();
        for source in sources {
            let found = image.stream_with(&source.region);
            let (stream, begin) = found.ok_or_else(|| Error::bug("a region has no stream"))?;
            let in_stream = |range: Range<u64>| (stream, begin + range.start..begin + range.end);
            ranges.extend(
                source.overlap.ranges(GAP_BYTES, RANGE_BYTES_MAX).into_iter().map(in_stream),
            );
            placed.push(Placed { stream, begin, source });
        }
        ranges.sort_by_key(|(stream, range)| (*stream, range.start));
        let sink = Sink { placed, scatter: &scatter, permit };
        stats.add(image.read_ranges(&ranges, &sink)?);
    }
    Ok(())
}

/// Finds the images that have data of the requested parts.
fn find(images: &RankImages<'_>, destinations: &[PartWish]) -> Result<Vec<ImageSources>> {
    let mut found = Vec::new();
    let mut parts: Vec<Vec<Part>> = destinations.iter().map(|_| Vec::new()).collect();
    destinations.iter().try_for_each(|destination| check(images, destination))?;
    images.each(&mut |of| {
        let mut sources = Vec::new();
        for (number, destination) in destinations.iter().enumerate() {
            let Some(region) = of.regions.iter().find(|it| it.name == destination.region.name)
            else {
                continue;
            };
            let global =
                |region: &RegionDesc| region.distribution.global_shape().map(<[_]>::to_vec);
            let is_same = region.dtype == destination.region.dtype
                && global(region).is_some_and(|shape| Some(shape) == global(&destination.region));
            let part = region.distribution.part(&region.shape).filter(|_| is_same);
            let elements = part.as_ref().and_then(Part::elements).filter(|count| *count > 0);
            let (Some(part), Some(elements)) = (part, elements) else { continue };
            let element_bytes = region.bytes / elements;
            if !region.bytes.is_multiple_of(elements) {
                return Err(Error::damaged(format!(
                    "{} has {elements} elements in {} bytes on one rank",
                    words(images, destination),
                    region.bytes
                )));
            }
            let wanted =
                destination.part.elements().and_then(|wanted| wanted.checked_mul(element_bytes));
            if wanted != Some(destination.memory.length() as u64) {
                return Err(Error::invalid(format!(
                    "{} has elements of {element_bytes} bytes, and the memory for it has {}",
                    words(images, destination),
                    shown_bytes(destination.memory.length() as u64)
                )));
            }
            if let Some(overlap) = Overlap::new(&part, &destination.part, element_bytes) {
                sources.push(Source { destination: number, region: region.clone(), overlap });
            }
            parts[number].push(part);
        }
        if !sources.is_empty() {
            found.push(ImageSources { of, sources });
        }
        Ok(())
    })?;
    for (destination, parts) in destinations.iter().zip(&parts) {
        if let Some(missing) = uncovered(&destination.part, parts) {
            return Err(Error::invalid(format!(
                "{} is not whole in the checkpoint: no rank has saved the {:?} elements from {:?} on",
                words(images, destination),
                missing.shape(),
                missing.offset()
            )));
        }
    }
    Ok(found)
}

/// Names the array of a region, for messages.
fn words(images: &RankImages<'_>, destination: &PartWish) -> String {
    format!(
        "the array \"{}\" of checkpoint {}",
        destination.region.name.escape_debug(),
        images.epoch()
    )
}

fn check(images: &RankImages<'_>, destination: &PartWish) -> Result<()> {
    let Some(global_shape) = destination.region.distribution.global_shape() else {
        return Err(Error::invalid(format!(
            "{} was saved by each rank as its own, and a part of it is wanted: declare it as part of a \
             global array when it is saved",
            words(images, destination)
        )));
    };
    destination.part.check(global_shape).map_err(|why| {
        Error::invalid(format!("{} cannot give what is wanted, {why}", words(images, destination)))
    })
}

/// Location of a source in its image.
struct Placed {
    stream: usize,
    /// First byte of the region in the stream.
    begin: u64,
    source: Source,
}

struct Sink<'a> {
    placed: Vec<Placed>,
    scatter: &'a Scatter,
    permit: &'a WritePermit,
}

impl Sink<'_> {
    /// Calls `put` for each piece of a source in a range of a stream: with the request, the offset
    /// in its memory, and the bytes of the range.
    fn each(&self, stream: usize, range: Range<u64>, put: &dyn Fn(usize, u64, Range<usize>)) {
        for placed in self.placed.iter().filter(|placed| placed.stream == stream) {
            let (begin, end) = (placed.begin, placed.begin + placed.source.region.bytes);
            let inside = range.start.max(begin)..range.end.min(end);
            if inside.is_empty() {
                continue;
            }
            let before = (inside.start - range.start) as usize;
            let of_region = inside.start - begin..inside.end - begin;
            placed.source.overlap.place(of_region, &mut |to, of| {
                put(placed.source.destination, to, before + of.start..before + of.end);
            });
        }
    }
}

impl RestoreSink for Sink<'_> {
    fn write(&self, stream: usize, offset: u64, bytes: &[u8]) {
        self.permit.with(|| {
            let range = offset..offset + bytes.len() as u64;
            self.each(stream, range, &|destination, to, of| {
                self.scatter.write(destination, to, &bytes[of])
            });
        });
    }

    fn zero(&self, stream: usize, offset: u64, length: u64) {
        self.permit.with(|| {
            self.each(stream, offset..offset + length, &|destination, to, of| {
                self.scatter.zero(destination, to, of.len() as u64);
            });
        });
    }
}
