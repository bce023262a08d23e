//! Finds where chains of checkpoints end: a program began with an older checkpoint, or with none.

use outlive_format::Manifest;
use outlive_types::Epoch;
use std::collections::BTreeSet;

/// Chains of checkpoints of memory that no newer checkpoint continues.
#[derive(Debug, Default)]
pub struct EarlierLines {
    /// Newest checkpoint of each chain that counts.
    pub ends: BTreeSet<Epoch>,
    /// The checkpoint after each chain. It alone shows that the chain ended there.
    pub behind: BTreeSet<Epoch>,
}

impl EarlierLines {
    /// Finds them among the manifests that are left, newest first.
    pub fn of(left: &[&Manifest], counts: &dyn Fn(&&Manifest) -> bool) -> EarlierLines {
        let mut found = EarlierLines::default();
        let mut went_on: BTreeSet<Epoch> = BTreeSet::new();
        let mut newer: Option<&Manifest> = None;
        // The checkpoint after a chain of which none has counted yet.
        let mut open: Option<&Manifest> = None;
        for manifest in left.iter().filter(|manifest| !manifest.is_of_files()) {
            let epoch = manifest.epoch;
            if newer.is_some_and(|newer| newer.predecessor < epoch) && !went_on.contains(&epoch) {
                open = newer;
            }
            // From its predecessor on, this is the chain that it continues.
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
