//! The objects behind the handles of jobs.

use crate::arguments::Memory;
use crate::call::{Failure, invalid};
use crate::handles::Handles;
use outlive_client::Client;
use outlive_connect::Functions;
use outlive_format::Remarks;
use outlive_pool::Pool;
use outlive_store::{Job, JobOptions, SaveNotes};
use outlive_types::Result;
use outlive_types::sync::plain::{Mutex, MutexGuard};
use std::collections::BTreeMap;

/// An open job: a named series of checkpoints, and the memory that the program protects.
pub struct outlive_job {
    _private: (),
}

pub(crate) static JOBS: Handles<Core, outlive_job> = Handles::new("job", 2);

/// The object of a job's handle.
pub(crate) struct Core {
    pub client: Client,
    /// Orders the saves, restores and closes of a job, and all calls of its communicator. Its value
    /// is whether the job is closed.
    turn: Mutex<bool>,
    regions: Mutex<Vec<Memory>>,
    gathering: Mutex<Option<Gathering>>,
    next: Mutex<NextNotes>,
    release: Mutex<Option<Functions>>,
}

impl Core {
    /// Opens a job.
    ///
    /// # Errors
    /// As [`Client::open`].
    pub fn open(pool: &Pool, name: &str, options: JobOptions) -> Result<Core> {
        Ok(Core {
            client: Client::open(pool, name, options)?,
            turn: Mutex::default(),
            regions: Mutex::default(),
            gathering: Mutex::default(),
            next: Mutex::default(),
            release: Mutex::default(),
        })
    }

    /// The engine's job.
    pub fn job(&self) -> &Job {
        self.client.job()
    }

    /// Waits until no other thread saves, restores or closes.
    ///
    /// # Errors
    /// `Invalid` if another thread has closed the job meanwhile.
    pub fn turn(&self) -> std::result::Result<CallGuard<'_>, Failure> {
        let is_closed = self.turn.lock();
        if *is_closed {
            return Err(invalid(format!(
                "job {} was closed by another thread: let all calls return before it is closed",
                self.job().name()
            )));
        }
        Ok(CallGuard { is_closed })
    }

    /// The regions that the program protects, in the order in which they were first named.
    pub fn regions(&self) -> MutexGuard<'_, Vec<Memory>> {
        self.regions.lock()
    }

    /// The checkpoint that outlive_begin() began.
    pub fn gathering(&self) -> MutexGuard<'_, Option<Gathering>> {
        self.gathering.lock()
    }

    /// The notes for the next checkpoint.
    pub fn next(&self) -> MutexGuard<'_, NextNotes> {
        self.next.lock()
    }

    /// The functions to release when the job is closed.
    pub fn release(&self) -> MutexGuard<'_, Option<Functions>> {
        self.release.lock()
    }

    /// Passes on a fault that was found before a save or restore began. In a group, the other ranks
    /// begin it, so they get this error too.
    pub fn declined(&self, _turn: &CallGuard<'_>, failure: Failure) -> Failure {
        if self.job().is_group() {
            drop(self.job().abort_collective(failure.to_error()));
        }
        failure
    }

    /// Waits until the save under way is over, however it ends.
    pub fn settle_last(&self) {
        if let Some(handle) = self.job().current() {
            handle.wait_done(None);
        }
    }
}

/// Held by the thread that saves, restores or closes.
pub(crate) struct CallGuard<'a> {
    is_closed: MutexGuard<'a, bool>,
}

impl CallGuard<'_> {
    /// Makes this call the last one: every later call is refused.
    pub fn close(&mut self) {
        *self.is_closed = true;
    }
}

/// The label, pin, tags and metrics for the next checkpoint.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct NextNotes {
    pub label: String,
    pub pinned: bool,
    pub tags: Vec<String>,
    pub metrics: BTreeMap<String, f64>,
}

impl NextNotes {
    /// Whether the notes force a save: a label or a pin needs a checkpoint.
    pub fn forces(&self) -> bool {
        self.pinned || !self.label.is_empty()
    }

    /// Converts the notes to the engine's type.
    pub fn to_notes(&self) -> Result<SaveNotes> {
        let remarks = Remarks {
            pinned: self.pinned,
            label: self.label.clone(),
            tags: self.tags.clone(),
            ..Remarks::default()
        };
        SaveNotes::new(remarks, self.metrics.clone().into_iter().collect())
    }
}

/// A checkpoint between outlive_begin() and outlive_end().
#[derive(Debug, Default)]
pub(crate) struct Gathering {
    pub regions: Vec<Memory>,
}
