//! Regions that the program hands over: a name and the location of the bytes.

use crate::memory::Memory;
use outlive_types::{Distribution, RegionDesc, RegionLocation};
use std::sync::Arc;

/// A named array or byte string of the program. See also [`Region::from_raw`].
#[derive(Clone, Debug)]
pub struct Region {
    pub(crate) name: String,
    pub(crate) dtype: String,
    pub(crate) shape: Vec<u64>,
    pub(crate) memory: Memory,
    pub(crate) distribution: Distribution,
}

impl Region {
    /// Returns a region whose bytes never change. It is neither copied aside nor live.
    pub fn from_bytes(
        name: impl Into<String>,
        dtype: impl Into<String>,
        shape: Vec<u64>,
        bytes: impl Into<Arc<[u8]>>,
    ) -> Region {
        let memory = Memory::Shared(bytes.into());
        Region::of(name, dtype, shape, memory)
    }

    pub(crate) fn of(
        name: impl Into<String>,
        dtype: impl Into<String>,
        shape: Vec<u64>,
        memory: Memory,
    ) -> Region {
        let distribution = Distribution::Local;
        Region { name: name.into(), dtype: dtype.into(), shape, memory, distribution }
    }

    /// Returns the same region as one that other ranks share: they have parts of one global array,
    /// or the same bytes. A freeze refuses a distribution that does not fit the region's shape.
    #[must_use]
    pub fn distributed(self, distribution: Distribution) -> Region {
        Region { distribution, ..self }
    }

    /// Returns the parts that other ranks have.
    pub fn distribution(&self) -> &Distribution {
        &self.distribution
    }

    /// Describes the region as in a catalog, except for its location.
    pub(crate) fn description(&self) -> RegionDesc {
        let Region { name, dtype, shape, memory, distribution } = self.clone();
        let (bytes, location) = (memory.length() as u64, RegionLocation::Own);
        RegionDesc { name, dtype, shape, bytes, location, distribution }
    }

    /// Name of the region.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Length in bytes.
    pub fn length(&self) -> usize {
        self.memory.length()
    }
}
