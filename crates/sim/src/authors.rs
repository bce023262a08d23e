//! The authors of records in a log of several replicas: the program that does the last step for a
//! record need not be its author.

use crate::oracle::Pending;
use outlive_format::fingerprint;
use outlive_types::sync::plain::Mutex;
use outlive_types::{Fingerprint, JobName};
use std::collections::{BTreeMap, BTreeSet};

/// The facts about a log's replicas besides their content.
#[derive(Default)]
pub(crate) struct ReplicasOracle {
    /// Replicas that no program can reach now.
    pub away: Mutex<BTreeSet<usize>>,
    /// Sealed replicas, each with its seal.
    pub sealed: Mutex<BTreeMap<usize, Vec<u8>>>,
    /// Open replicas of configurations after the first.
    pub open: Mutex<BTreeSet<usize>>,
    /// Records that reached a replica when it was sealed: the replica, the job, the register.
    pub late: Mutex<BTreeSet<(usize, JobName, u64)>>,
    /// The program that tried to append each record, and the content that it would commit.
    authors: Mutex<BTreeMap<Fingerprint, (usize, Option<Pending>)>>,
}

impl ReplicasOracle {
    /// Notes that the program is about to append this record.
    pub fn will_append(&self, program: usize, record: &[u8], pending: Option<Pending>) {
        self.authors.lock().insert(fingerprint(record), (program, pending));
    }

    /// Returns the author of a record, if it is known.
    pub fn author(&self, record: &[u8]) -> Option<(usize, Option<Pending>)> {
        self.authors.lock().get(&fingerprint(record)).cloned()
    }
}
