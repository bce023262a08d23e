//! A gc at work: what it is asked to do, and what it holds.

use super::plan::Thoroughness;
use crate::commit::LogHead;
use crate::save::PackNumbers;
use outlive_io::Pace;
use outlive_pool::Pool;
use outlive_types::{Epoch, Error, JobName, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a gc is asked to do.
#[derive(Clone, Debug, Default)]
pub struct GcOptions {
    /// Checkpoints to drop, by job. The newest of a job goes only if all of it go.
    pub drop: BTreeMap<JobName, BTreeSet<Epoch>>,
    /// Refuse to leave a job without any checkpoint: whoever chose what to drop has kept one, which
    /// another prune may have dropped since.
    pub keep_one: bool,
    /// Jobs whose open session is ended: their program is gone, or must stop.
    pub fence: Vec<JobName>,
    /// How thorough it is.
    pub thoroughness: Thoroughness,
    /// Bytes a second that are copied at most; `None` for no limit.
    pub bytes_per_s: Option<u64>,
    /// Records that cannot be read are given up; otherwise they stop a gc, since nobody knows what
    /// they refer to.
    pub forget_damaged: bool,
    /// Only plan.
    pub dry_run: bool,
    /// Set it to end the gc early: what is done by then is right, and the next one goes on.
    pub stop: Arc<AtomicBool>,
}

/// A gc at work.
pub struct Gc<'a> {
    pub(super) pool: &'a Pool,
    pub(super) options: &'a GcOptions,
    pub(super) packs: PackNumbers,
    pub(super) head: &'a mut LogHead,
    /// Of what is copied.
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
