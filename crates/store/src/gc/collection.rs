//! A running gc: its options and its state.

use super::plan::Thoroughness;
use crate::commit::LogHead;
use crate::save::PackNumbers;
use outlive_io::Pace;
use outlive_pool::Pool;
use outlive_types::{Epoch, Error, JobName, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Options of a gc.
#[derive(Clone, Debug, Default)]
pub struct GcOptions {
    /// Checkpoints to drop, by job. The newest of a job goes only if all of them go.
    pub drop: BTreeMap<JobName, BTreeSet<Epoch>>,
    /// Refuse to leave a job without any checkpoint. The caller has kept one, which another prune
    /// may have dropped since.
    pub keep_one: bool,
    /// Jobs whose open session is ended: their program is gone, or must stop.
    pub fence: Vec<JobName>,
    /// How thorough it is.
    pub thoroughness: Thoroughness,
    /// Maximum number of bytes to copy per second; `None` for no limit.
    pub bytes_per_s: Option<u64>,
    /// Give up records that cannot be read. Otherwise they stop a gc, since it is unknown what they
    /// refer to.
    pub forget_damaged: bool,
    /// Job whose saves go first: the gc gives up soon, and without an error, if its program saves faster
    /// than the gc can report to it.
    pub gives_way_to: Option<JobName>,
    /// Only plan.
    pub dry_run: bool,
    /// Set it to end the gc early: the work done by then is valid, and the next gc continues.
    pub stop: Arc<AtomicBool>,
}

/// A running gc.
pub struct Gc<'a> {
    pub(super) pool: &'a Pool,
    pub(super) options: &'a GcOptions,
    pub(super) packs: PackNumbers,
    pub(super) head: &'a mut LogHead,
    /// Pace of the copies.
    pub(super) pace: &'a Pace,
}

impl Gc<'_> {
    /// An error once it is asked to stop.
    pub(super) fn check_stop(&self) -> Result<()> {
        match self.options.stop.load(Ordering::Relaxed) {
            true => Err(Error::retry("stopped on request; another gc goes on from here")),
            false => Ok(()),
        }
    }
}
