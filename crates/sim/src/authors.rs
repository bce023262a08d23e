//! Who has tried to append which record, where a log has several places: whoever does the last step for a record
//! need not be its author.

use crate::oracle::Pending;
use outlive_format::fingerprint;
use outlive_types::sync::plain::Mutex;
use outlive_types::{Fingerprint, JobName};
use std::collections::{BTreeMap, BTreeSet};

/// What is known of a log's places beside what they hold.
#[derive(Default)]
pub(crate) struct ReplicasOracle {
    /// Places that nobody reaches now.
    pub away: Mutex<BTreeSet<usize>>,
    /// Places that are sealed, and with what.
    pub sealed: Mutex<BTreeMap<usize, Vec<u8>>>,
    /// Places of sets behind the first that are open.
    pub open: Mutex<BTreeSet<usize>>,
    /// What got to a place when it was sealed: the place, the job, the register.
    pub late: Mutex<BTreeSet<(usize, JobName, u64)>>,
    /// Who has ever tried to append a record, and what was to be committed with it.
    authors: Mutex<BTreeMap<Fingerprint, (usize, Option<Pending>)>>,
}

impl ReplicasOracle {
    /// The program is about to append this.
    pub fn will_append(&self, program: usize, record: &[u8], pending: Option<Pending>) {
        self.authors.lock().insert(fingerprint(record), (program, pending));
    }

    /// Who has, if anybody did.
    pub fn author(&self, record: &[u8]) -> Option<(usize, Option<Pending>)> {
        self.authors.lock().get(&fingerprint(record)).cloned()
    }
}
