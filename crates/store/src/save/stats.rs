//! What a save did.

use outlive_types::Epoch;
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
    /// Part of `new_bytes` that is page tree and catalog nodes.
    pub node_bytes: u64,
    /// Part of `new_bytes` that is merged segments.
    pub segment_bytes: u64,
    /// Packs written.
    pub packs: u64,
    /// How long the program stood still for the freeze, and for reading what was not copied.
    pub stall: Duration,
    /// From the call to the commit.
    pub total: Duration,
}
