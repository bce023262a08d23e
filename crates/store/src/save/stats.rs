//! Figures of a save.

use outlive_format::SaveFigures;
use outlive_interval::Choice;
use outlive_types::{Epoch, FreezeReport, metrics};
use std::time::Duration;

/// Figures of one committed save. Bytes are exact; times are those of this process.
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
    /// Bytes of all-zero pages among them, which take no space.
    pub zero_bytes: u64,
    /// Bytes of chunks that were stored already.
    pub known_bytes: u64,
    /// Everything written to the target: data, nodes, directories, padding, manifest.
    pub new_bytes: u64,
    /// Bytes of the new chunks before compression.
    pub raw_bytes: u64,
    /// Bytes of `new_bytes` for page tree and catalog nodes.
    pub node_bytes: u64,
    /// Bytes of `new_bytes` for merged segments.
    pub segment_bytes: u64,
    /// Number of packs written.
    pub packs: u64,
    /// How the freeze fixed the image and found its changes, and the reason.
    pub freeze: FreezeReport,
    /// Time for which the program stood for the freeze, and for reading the pages that were not
    /// copied.
    pub stall: Duration,
    /// Time from the call to the commit.
    pub total: Duration,
    /// The interval between saves and its reasons, as of the commit. `None` on other ranks than 0.
    pub interval: Option<Choice>,
}

impl SaveStats {
    /// Returns the figures for the manifest. They exclude the log record itself, and `total` ends
    /// before that is written.
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

    /// Adds a committed save to the metrics; `unix_ns` is the time now.
    pub(crate) fn count(&self, unix_ns: u64) {
        metrics::SAVES.add(1);
        metrics::SAVE_STATE.add(self.state_bytes);
        metrics::SAVE_CHANGED.add(self.changed_bytes);
        metrics::SAVE_KNOWN.add(self.known_bytes);
        metrics::SAVE_WRITTEN.add(self.new_bytes);
        metrics::SAVE_TIME.note(self.total);
        metrics::LAST_COMMIT.set(unix_ns / 1_000_000_000);
    }
}
