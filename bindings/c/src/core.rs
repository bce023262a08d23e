//! What a job's handle stands for.

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

/// What a job's handle stands for.
pub(crate) struct Core {
    pub client: Client,
    /// Saves, restores and closes of a job come one after the other, and so do all calls of what connects its
    /// ranks. Says whether it is closed.
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

    /// What the program protects, in the order in which it was first named.
    pub fn regions(&self) -> MutexGuard<'_, Vec<Memory>> {
        self.regions.lock()
    }

    /// The checkpoint that is being put together.
    pub fn gathering(&self) -> MutexGuard<'_, Option<Gathering>> {
        self.gathering.lock()
    }

    /// What is to be said about the next checkpoint.
    pub fn next(&self) -> MutexGuard<'_, NextNotes> {
        self.next.lock()
    }

    /// What is to be called when the job is closed.
    pub fn release(&self) -> MutexGuard<'_, Option<Functions>> {
        self.release.lock()
    }

    /// What was found wrong before a save or restore began: in a group the other ranks, which begin it, are
    /// told. This rank is told its own.
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

/// Held by the thread whose turn it is.
pub(crate) struct CallGuard<'a> {
    is_closed: MutexGuard<'a, bool>,
}

impl CallGuard<'_> {
    /// It is the last one: nobody has a turn any more.
    pub fn close(&mut self) {
        *self.is_closed = true;
    }
}

/// What is to be said about the next checkpoint.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct NextNotes {
    pub label: String,
    pub pinned: bool,
    pub metrics: BTreeMap<String, f64>,
}

impl NextNotes {
    /// What somebody gives a name or a pin is meant to be there.
    pub fn forces(&self) -> bool {
        self.pinned || !self.label.is_empty()
    }

    /// As the engine takes them.
    pub fn to_notes(&self) -> Result<SaveNotes> {
        let remarks = Remarks { pinned: self.pinned, suspect: false, label: self.label.clone() };
        SaveNotes::new(remarks, self.metrics.clone().into_iter().collect())
    }
}

/// A checkpoint that is being put together.
#[derive(Debug, Default)]
pub(crate) struct Gathering {
    pub regions: Vec<Memory>,
}
