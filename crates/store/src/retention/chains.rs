//! Where lines of checkpoints end: a program began with an older one, or with none.

use outlive_format::Manifest;
use outlive_types::Epoch;
use std::collections::BTreeSet;

/// Lines of checkpoints of memory that no newer checkpoint goes on from.
#[derive(Debug, Default)]
pub struct EarlierLines {
    /// The newest of each that counts.
    pub ends: BTreeSet<Epoch>,
    /// The checkpoint behind each. It alone tells that the line ended there.
    pub behind: BTreeSet<Epoch>,
}

impl EarlierLines {
    /// Those among manifests that are left, newest first.
    pub fn of(left: &[&Manifest], counts: &dyn Fn(&&Manifest) -> bool) -> EarlierLines {
        let mut found = EarlierLines::default();
        let mut went_on: BTreeSet<Epoch> = BTreeSet::new();
        let mut newer: Option<&Manifest> = None;
        // The checkpoint behind a line of which none counted yet.
        let mut open: Option<&Manifest> = None;
        for manifest in left.iter().filter(|manifest| !manifest.is_of_files()) {
            let epoch = manifest.epoch;
            if newer.is_some_and(|newer| newer.predecessor < epoch) && !went_on.contains(&epoch) {
                open = newer;
            }
            // Back on the line that went on.
            open = open.filter(|behind| behind.predecessor < epoch);
            if let Some(behind) = open.filter(|_| counts(manifest)) {
                found.ends.insert(epoch);
                found.behind.insert(behind.epoch);
                open = None;
            }
            went_on.insert(manifest.predecessor);
            newer = Some(manifest);
        }
        found
    }
}
