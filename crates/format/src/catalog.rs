//! The catalog stream of an image: its regions, the language binding's attachment, and outputs.

use crate::codec::{Check, Reader, Writer, checksum, demand};
use crate::tree::TreeRef;
use outlive_types::{Distribution, Error, Fingerprint, RegionDesc, RegionLocation, Result};
use std::collections::HashSet;

const WHAT: &str = "catalog";
const MAGIC: &[u8; 4] = b"OLCA";
const HEAD_BYTES: usize = 32;
/// Length of a packed region without name, dtype and shape; the others are longer.
const REGION_BYTES_MIN: usize = 24;
const PACKED_ALIGN_BYTES: u64 = 16;
/// One byte encodes the location of a region (its lowest bit) and its distribution.
const PLACE_MASK: u8 = 1;
const DISTRIBUTION_SHIFT: u32 = 1;

/// Longest name and longest dtype of a region, in bytes.
pub const TEXT_BYTES_MAX: usize = 65_535;
/// Most dimensions of a region.
pub const DIMENSIONS_MAX: usize = 64;

/// One region of an image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CatalogRegion {
    /// Name, type, shape, length, location.
    pub desc: RegionDesc,
    /// Root of its page tree if it has a stream of its own, else zero.
    pub root: Fingerprint,
}

impl CatalogRegion {
    /// Returns the region's page tree if it has a stream of its own.
    pub fn tree(&self) -> Option<TreeRef> {
        match self.desc.location {
            RegionLocation::Packed { .. } => None,
            RegionLocation::Own => Some(TreeRef { bytes: self.desc.bytes, root: self.root }),
        }
    }

    fn check(&self) -> Check {
        let RegionDesc { name, dtype, shape, bytes, location, distribution } = &self.desc;
        let shown = || name.chars().take(40).collect::<String>();
        demand!(!name.is_empty(), "a region has no name");
        demand!(name.len() <= TEXT_BYTES_MAX, "the name {:?}… is too long", shown());
        demand!(dtype.len() <= TEXT_BYTES_MAX, "region {:?} has a too long dtype", shown());
        demand!(shape.len() <= DIMENSIONS_MAX, "region {:?} has too many dimensions", shown());
        distribution.check(shape).map_err(|why| format!("region {:?} is {why}", shown()))?;
        match location {
            RegionLocation::Packed { offset } => demand!(
                self.root.is_zero()
                    && offset % PACKED_ALIGN_BYTES == 0
                    && offset.checked_add(*bytes).is_some(),
                "region {:?} is at a wrong place, {offset}",
                shown()
            ),
            RegionLocation::Own => {
                let tree = TreeRef { bytes: *bytes, root: self.root };
                tree.check().map_err(|why| format!("region {:?}: {why}", shown()))?;
            }
        }
        Ok(())
    }
}

/// All regions of an image.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Catalog {
    /// Regions in the program's order; no two have the same name.
    pub regions: Vec<CatalogRegion>,
    /// Bytes that the language binding keeps with the image.
    pub attachment: Vec<u8>,
    /// Outputs that the checkpoint covers ([`Outputs`](crate::Outputs)); empty if there are none.
    pub outputs: Vec<u8>,
}

impl Catalog {
    /// Encodes the catalog.
    ///
    /// # Errors
    /// `Invalid` for an empty or repeated name, and if a limit of the format is exceeded.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let invalid = |why| Error::invalid(format!("this state cannot be described: {why}"));
        for region in &self.regions {
            region.check().map_err(invalid)?;
        }
        unique(&self.regions).map_err(invalid)?;
        let mut out = Writer::begin(MAGIC, self.encoded_len());
        out.reserved(2);
        out.u64(self.regions.len() as u64);
        out.u64(self.attachment.len() as u64);
        out.u64(self.outputs.len() as u64);
        for CatalogRegion { desc, root } in &self.regions {
            out.u32(desc.name.len() as u32);
            out.u16(desc.dtype.len() as u16);
            out.u8(desc.shape.len() as u8);
            let location = u8::from(desc.location == RegionLocation::Own);
            out.u8(location | distribution_code(&desc.distribution) << DISTRIBUTION_SHIFT);
            out.u64(desc.bytes);
            match desc.location {
                RegionLocation::Packed { offset } => out.u64(offset),
                RegionLocation::Own => {
                    TreeRef { bytes: desc.bytes, root: *root }.write_rest(&mut out)
                }
            }
            for extent in
                desc.shape.iter().chain(lists_of(&desc.distribution).into_iter().flatten())
            {
                out.u64(*extent);
            }
            out.bytes(desc.name.as_bytes());
            out.bytes(desc.dtype.as_bytes());
        }
        out.bytes(&self.attachment);
        out.bytes(&self.outputs);
        Ok(out.finish())
    }

    /// Reads a catalog from all of `bytes`.
    ///
    /// # Errors
    /// `Damaged` for anything that `encode` does not write, `Invalid` for another version.
    pub fn decode(bytes: &[u8]) -> Result<Catalog> {
        let mut from = Reader::new(WHAT, bytes);
        from.begin(MAGIC)?;
        from.reserved(2)?;
        let (region_count, attachment_bytes) = (from.u64()?, from.u64()?);
        let outputs_bytes = from.u64()?;
        let region_count = from.count(region_count, REGION_BYTES_MIN)?;
        let mut regions = Vec::with_capacity(region_count);
        for _ in 0..region_count {
            let region = read_region(&mut from)?;
            from.accept(region.check())?;
            regions.push(region);
        }
        from.accept(unique(&regions))?;
        let attachment = from.take(from.count(attachment_bytes, 1)?)?.to_vec();
        let outputs = from.take(from.count(outputs_bytes, 1)?)?.to_vec();
        from.end()?;
        Ok(Catalog { regions, attachment, outputs })
    }

    fn encoded_len(&self) -> usize {
        let of = |region: &CatalogRegion| {
            let desc = &region.desc;
            let root = if desc.location == RegionLocation::Own { 32 } else { 0 };
            let lists = lists_of(&desc.distribution);
            let extents = desc.shape.len() + lists.iter().map(|list| list.len()).sum::<usize>();
            REGION_BYTES_MIN + root + 8 * extents + desc.name.len() + desc.dtype.len()
        };
        HEAD_BYTES
            + self.regions.iter().map(of).sum::<usize>()
            + self.attachment.len()
            + self.outputs.len()
    }
}

fn read_region(from: &mut Reader<'_>) -> Result<CatalogRegion> {
    let (name_bytes, dtype_bytes) = (from.u32()?, from.u16()?);
    let (dimensions, code, bytes) = (from.u8()?, from.u8()?, from.u64()?);
    let (location, root) = match code & PLACE_MASK {
        0 => (RegionLocation::Packed { offset: from.u64()? }, Fingerprint::ZERO),
        _ => (RegionLocation::Own, TreeRef::read_rest(bytes, from)?.root),
    };
    let shape = extents(from, dimensions)?;
    let distribution = match code >> DISTRIBUTION_SHIFT {
        0 => Distribution::Local,
        1 => Distribution::Subarray {
            global_shape: extents(from, dimensions)?,
            offset: extents(from, dimensions)?,
        },
        2 => Distribution::Replicated,
        3 => Distribution::BlockCyclic {
            global_shape: extents(from, dimensions)?,
            offset: extents(from, dimensions)?,
            block: extents(from, dimensions)?,
            stride: extents(from, dimensions)?,
        },
        _ => return Err(from.damaged(format!("a region has place and distribution {code}"))),
    };
    let name = from.text(name_bytes as usize)?.to_owned();
    let dtype = from.text(dtype_bytes.into())?.to_owned();
    Ok(CatalogRegion {
        desc: RegionDesc { name, dtype, shape, bytes, location, distribution },
        root,
    })
}

/// Reads a list with an entry for each dimension.
fn extents(from: &mut Reader<'_>, dimensions: u8) -> Result<Vec<u64>> {
    let mut extents = Vec::with_capacity(from.count(dimensions.into(), 8)?);
    for _ in 0..dimensions {
        extents.push(from.u64()?);
    }
    Ok(extents)
}

fn distribution_code(distribution: &Distribution) -> u8 {
    match distribution {
        Distribution::Local => 0,
        Distribution::Subarray { .. } => 1,
        Distribution::Replicated => 2,
        Distribution::BlockCyclic { .. } => 3,
    }
}

/// Returns global shape, offset, block and stride; a list that the distribution lacks is empty.
fn lists_of(distribution: &Distribution) -> [&[u64]; 4] {
    match distribution {
        Distribution::Local | Distribution::Replicated => [&[]; 4],
        Distribution::Subarray { global_shape, offset } => [global_shape, offset, &[], &[]],
        Distribution::BlockCyclic { global_shape, offset, block, stride } => {
            [global_shape, offset, block, stride]
        }
    }
}

/// Checks that no name is empty or repeated. Sorting hashes is several times faster than a set of a
/// million names; names are compared only where hashes are equal.
fn unique(regions: &[CatalogRegion]) -> Check {
    let hash = |region: &CatalogRegion| checksum(region.desc.name.as_bytes());
    let mut hashes: Vec<u64> = regions.iter().map(hash).collect();
    hashes.sort_unstable();
    if hashes.windows(2).all(|pair| pair[0] != pair[1]) {
        return Ok(());
    }
    let mut names = HashSet::with_capacity(regions.len());
    for region in regions {
        let name = region.desc.name.as_str();
        demand!(names.insert(name), "two regions are called {name:?}");
    }
    Ok(())
}
