//! What a save did.

use outlive_format::SaveFigures;
use outlive_types::{Epoch, FreezeReport};
use std::time::Duration;

/// Figures of one committed save. Bytes are exact; times are this process's.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct SaveStats {
    /// The epoch.
    pub epoch: Epoch,
    /// All bytes of the image's regions.
    pub state_bytes: u64,
    /// Bytes of pages that have changed since the baseline.
    pub changed_bytes: u64,
    /// Bytes of unchanged pages that were rewritten to keep restores fast.
    pub evacuated_bytes: u64,
    /// Bytes of all-zero pages among them: they cost nothing.
    pub zero_bytes: u64,
    /// Bytes of chunks that were stored already.
    pub known_bytes: u64,
    /// Everything written to the target: data, nodes, directories, padding, manifest.
    pub new_bytes: u64,
    /// Bytes of the new chunks before compression.
    pub raw_bytes: u64,
    /// Part of `new_bytes` that is page tree and catalog nodes.
    pub node_bytes: u64,
    /// Part of `new_bytes` that is merged segments.
    pub segment_bytes: u64,
    /// Packs written.
    pub packs: u64,
    /// How the image was held still and its changes were found, and why so.
    pub freeze: FreezeReport,
    /// How long the program stood still for the freeze, and for reading what was not copied.
    pub stall: Duration,
    /// From the call to the commit.
    pub total: Duration,
}

impl SaveStats {
    /// What the manifest keeps of this. The log record itself is not counted in it, and `total` ends
    /// before it is written.
    pub fn figures(&self) -> SaveFigures {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        SaveFigures {
            new_bytes: self.new_bytes,
            changed_bytes: self.changed_bytes,
            known_bytes: self.known_bytes,
            zero_bytes: self.zero_bytes,
            raw_bytes: self.raw_bytes,
            stall_ns: ns(self.stall),
            drain_ns: ns(self.total.saturating_sub(self.stall)),
        }
    }
}
