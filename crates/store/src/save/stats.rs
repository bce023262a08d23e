//! What a save did.

use outlive_format::{LABEL_BYTES_MAX, Remarks, SaveFigures};
use outlive_types::{Epoch, Error, FreezeReport, Result};
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

/// What the program or its user says about a checkpoint when it is made.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct SaveNotes {
    /// A label, and whether prunings keep it.
    pub remarks: Remarks,
    /// Figures of merit by name, for keep-best rules; sorted, each name once, no NaN.
    pub metrics: Vec<(String, f64)>,
}

impl SaveNotes {
    /// Notes of these metrics, which it sorts.
    ///
    /// # Errors
    /// `Invalid` for an empty or repeated name, one above 65,535 bytes, a NaN, or a label as long.
    pub fn new(remarks: Remarks, mut metrics: Vec<(String, f64)>) -> Result<SaveNotes> {
        metrics.sort_by(|a, b| a.0.cmp(&b.0));
        for (name, value) in &metrics {
            if value.is_nan() {
                return Err(Error::invalid(format!(
                    "the metric {name:?} is not a number: leave it out, or give a value that can be \
                     compared"
                )));
            }
            if !(1..=LABEL_BYTES_MAX).contains(&name.len()) {
                return Err(Error::invalid("a metric's name must have 1 to 65,535 bytes"));
            }
        }
        if let Some(twice) = metrics.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(Error::invalid(format!("the metric {:?} is given twice", twice[0].0)));
        }
        if metrics.len() > usize::from(u16::MAX) {
            return Err(Error::invalid("at most 65,535 metrics can be kept with a checkpoint"));
        }
        if remarks.label.len() > LABEL_BYTES_MAX {
            return Err(Error::invalid("a label must be shorter than 64 KiB"));
        }
        Ok(SaveNotes { remarks, metrics })
    }
}
