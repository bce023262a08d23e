//! Versions: the numbers that a program gives its checkpoints. A metric of the checkpoint stores
//! the version. After a restart from an older version, a program may save a version again: then the
//! newest epoch counts.

use outlive_format::{Manifest, Remarks};
use outlive_store::{EpochInfo, SaveNotes};
use outlive_types::{Epoch, Result};
use std::collections::BTreeMap;

/// Name of the metric.
const METRIC: &str = "veloc.version";

/// Returns the notes for a checkpoint of this version.
pub(crate) fn notes(version: i32) -> Result<SaveNotes> {
    SaveNotes::new(Remarks::default(), vec![(METRIC.to_owned(), f64::from(version))])
}

fn version_of(manifest: &Manifest) -> Option<i32> {
    let (_, value) = manifest.metrics.iter().find(|(name, _)| name == METRIC)?;
    // Every version is an integer of 32 bits, which a float holds exactly.
    (*value >= 0.0 && *value <= f64::from(i32::MAX) && value.fract() == 0.0)
        .then_some(*value as i32)
}

/// Returns the epochs of each version that `ranks` ranks have saved, oldest first.
pub(crate) fn versions(epochs: &[EpochInfo], ranks: u32) -> BTreeMap<i32, Vec<Epoch>> {
    let mut versions: BTreeMap<i32, Vec<Epoch>> = BTreeMap::new();
    let is_ours = |it: &&EpochInfo| !it.manifest.is_of_files() && it.manifest.world_size == ranks;
    for info in epochs.iter().filter(is_ours) {
        if let Some(version) = version_of(&info.manifest) {
            versions.entry(version).or_default().push(info.epoch);
        }
    }
    versions
}
