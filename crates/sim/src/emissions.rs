//! The outputs of all programs with a gate, and what their receiver has got.

use crate::oracle::Oracle;
use crate::roles::O;
use outlive_gate::OutputKey;
use outlive_types::{Epoch, JobName};
use std::collections::BTreeMap;

/// Everything that the programs of a job have made and released.
#[derive(Default)]
pub(crate) struct Emissions {
    /// Received outputs by number: the key and the content of the first one.
    pub received: BTreeMap<u64, (String, String)>,
    /// Outputs of each program's history up to a save, by program and epoch.
    pub histories: BTreeMap<(usize, Epoch), Vec<String>>,
    /// The same of the last save that each program has begun.
    pub begun: BTreeMap<usize, Vec<String>>,
    /// The record of releases.
    pub notes: Option<Vec<u8>>,
}

impl Emissions {
    /// Returns the outputs that the newest committed checkpoint covers.
    pub fn committed(&self, oracle: &Oracle) -> Vec<String> {
        let name = JobName::new(O).expect("a name");
        let Some((epoch, committed)) = oracle.committed(&name).pop_last() else {
            return Vec::new();
        };
        let exact = self.histories.get(&(committed.program, epoch));
        exact.or_else(|| self.begun.get(&committed.program)).cloned().unwrap_or_default()
    }

    /// Judges an output that arrives.
    pub fn receive(&mut self, key: &OutputKey, content: &str, oracle: &Oracle) -> Option<String> {
        let committed = self.committed(oracle);
        let number = key.number as usize;
        if committed.get(number).is_none_or(|there| there != content) {
            return Some(format!("output {key} ({content}) left, and no checkpoint covers it"));
        }
        let key = key.to_string();
        if let Some((first, _)) = self.received.get(&(number as u64)) {
            let differs = *first != key;
            return differs.then(|| format!("output {number} left as {first} and as {key}"));
        }
        // Outputs that an earlier run has released are there.
        if number > 0 && !self.received.contains_key(&(number as u64 - 1)) {
            return Some(format!("output {number} left before the one before it"));
        }
        self.received.insert(number as u64, (key, content.to_owned()));
        None
    }
}
