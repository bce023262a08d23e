//! The program's memory, in the engine's types.
#![allow(unsafe_code)]

use crate::arguments::Memory;
use outlive_capture::Region;
use outlive_capture::fill::MutRegion;

impl Memory {
    /// The memory as a region to save.
    pub fn region(&self) -> Region {
        let start = std::ptr::with_exposed_provenance(self.start);
        let (name, dtype, shape) = (&self.name[..], &self.dtype[..], self.shape.clone());
        // SAFETY: a region is made of memory only inside a call that saves, and ends with that
        // call. The interface asks the caller that the memory is there then, and that no thread
        // writes it (outlive_save, outlive_end). After the call the engine reads none of it.
        let region = unsafe { Region::from_raw(name, dtype, shape, start, self.bytes) };
        region.distributed(self.distribution.clone())
    }

    /// The memory as a destination of a restore.
    pub fn to_fill(&self) -> MutRegion {
        let start = std::ptr::with_exposed_provenance_mut(self.start);
        // SAFETY: memory is filled only inside a call that restores, with a permit that is
        // withdrawn before the call returns. The interface asks the caller that the memory may be
        // written then, and that no other thread uses it (outlive_restore, outlive_copy_region).
        // The engine fills regions that overlap one after the other.
        unsafe { MutRegion::from_raw(start, self.bytes) }
    }
}
