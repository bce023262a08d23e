//! Placement of the regions of an image in streams: small ones packed together, large ones alone.

use crate::Region;
use crate::memory::Memory;
use outlive_types::{
    Error, PACKED_BELOW_BYTES, PACKED_STREAM, RegionDesc, RegionLocation, Result, StreamDesc,
};
use std::collections::HashSet;
use std::ops::Range;

/// Alignment of packed regions, so that restored arrays can be read in place.
const PACKED_ALIGN_BYTES: usize = 16;

/// Length of the longest name and the longest dtype.
const TEXT_BYTES_MAX: usize = 65_535;
/// Most dimensions of a shape.
const DIMENSIONS_MAX: usize = 64;

/// The regions of an image and its streams.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    /// Regions in the program's order.
    pub regions: Vec<RegionDesc>,
    /// The packed stream first, if any region is packed; then the others in the program's order.
    pub streams: Vec<StreamDesc>,
    /// The packed regions' memory, in the order of their offsets.
    packed: Vec<(usize, Memory)>,
    /// The memory of the other streams.
    own: Vec<Memory>,
}

impl Layout {
    /// Refuses regions that no image can hold.
    pub fn check(regions: &[Region]) -> Result<()> {
        let mut names = HashSet::with_capacity(regions.len());
        for (number, region) in regions.iter().enumerate() {
            check_one(number, region)?;
            if !names.insert(&region.name[..]) {
                return Err(Error::invalid(format!(
                    "two regions have the name \"{}\": give each its own",
                    shown(&region.name)
                )));
            }
        }
        Ok(())
    }

    /// Gives each region its location. The regions have passed [`Layout::check`].
    pub fn new(regions: Vec<Region>) -> Layout {
        let mut layout = Layout { regions: Vec::with_capacity(regions.len()), ..Layout::default() };
        let mut packed_end = 0usize;
        for Region { name, dtype, shape, memory, distribution } in regions {
            let length = memory.length();
            let bytes = length as u64;
            let location = if length < PACKED_BELOW_BYTES {
                let offset = packed_end.next_multiple_of(PACKED_ALIGN_BYTES);
                packed_end = offset + length;
                layout.packed.push((offset, memory));
                RegionLocation::Packed { offset: offset as u64 }
            } else {
                layout.streams.push(StreamDesc { name: name.clone(), bytes });
                layout.own.push(memory);
                RegionLocation::Own
            };
            layout.regions.push(RegionDesc { name, dtype, shape, bytes, location, distribution });
        }
        if layout.has_packed() {
            let packed = StreamDesc { name: PACKED_STREAM.into(), bytes: packed_end as u64 };
            layout.streams.insert(0, packed);
        }
        layout
    }

    /// True if the first stream is the packed one.
    pub fn has_packed(&self) -> bool {
        !self.packed.is_empty()
    }

    /// Writes the packed stream to `buffer`, whose contents are replaced.
    pub fn pack(&self, buffer: &mut Vec<u8>) {
        buffer.clear();
        if self.has_packed() {
            buffer.reserve_exact(usize::try_from(self.streams[0].bytes).unwrap_or(usize::MAX));
        }
        for (offset, memory) in &self.packed {
            buffer.resize(*offset, 0);
            buffer.extend_from_slice(memory.bytes());
        }
    }

    /// Returns the small regions, with their memory.
    pub fn packed(&self) -> impl Iterator<Item = (&RegionDesc, &Memory)> {
        let is_packed =
            |region: &&RegionDesc| matches!(region.location, RegionLocation::Packed { .. });
        self.regions.iter().filter(is_packed).zip(self.packed.iter().map(|(_, memory)| memory))
    }

    /// Returns the memory of a stream; `None` for the packed one.
    pub fn memory(&self, stream: usize) -> Option<&Memory> {
        stream.checked_sub(usize::from(self.has_packed())).map(|own| &self.own[own])
    }

    /// Addresses of the program's own memory in this image.
    pub fn places(&self) -> impl Iterator<Item = Range<usize>> {
        let all = self.packed.iter().map(|(_, memory)| memory).chain(&self.own);
        all.filter_map(Memory::place).map(|place| place.start..place.start + place.length)
    }

    /// Returns the bytes of all streams, given those of the packed one.
    pub fn stream_bytes<'a>(&'a self, packed: &'a [u8]) -> Vec<&'a [u8]> {
        let bytes = |stream| self.memory(stream).map_or(packed, Memory::bytes);
        (0..self.streams.len()).map(bytes).collect()
    }
}

fn check_one(number: usize, region: &Region) -> Result<()> {
    if region.name.is_empty() {
        return Err(Error::invalid(format!(
            "region number {number} (from 0) has an empty name: give it one"
        )));
    }
    let refuse = |why: String| {
        Err(Error::invalid(format!("region \"{}\" cannot be saved: {why}", shown(&region.name))))
    };
    if region.name.len() > TEXT_BYTES_MAX {
        let length = region.name.len();
        return refuse(format!("its name has {length} bytes; at most {TEXT_BYTES_MAX} fit"));
    }
    if region.dtype.len() > TEXT_BYTES_MAX {
        let length = region.dtype.len();
        return refuse(format!("its dtype has {length} bytes; at most {TEXT_BYTES_MAX} fit"));
    }
    if region.shape.len() > DIMENSIONS_MAX {
        let dimensions = region.shape.len();
        return refuse(format!(
            "its shape has {dimensions} dimensions; at most {DIMENSIONS_MAX} fit"
        ));
    }
    if let Err(why) = region.distribution.check(&region.shape) {
        return refuse(format!("it is {why}"));
    }
    if let Memory::Raw(raw) | Memory::Constant(raw) = &region.memory
        && let Err(error) = raw.check()
    {
        return refuse(error.message().to_owned());
    }
    Ok(())
}

/// Shortens and escapes a name for a message.
fn shown(name: &str) -> String {
    const SHOWN_CHARS: usize = 60;
    let mut text: String = name.chars().take(SHOWN_CHARS).flat_map(char::escape_debug).collect();
    if name.chars().nth(SHOWN_CHARS).is_some() {
        text.push('…');
    }
    text
}
