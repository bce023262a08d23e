//! The state that the handles of a job share, and how they wait for one another.

use crate::buffer::Buffer;
use crate::errors::{invalid, to_py};
use crate::group::{GroupArguments, PyCoordinator};
use crate::notices::Notices;
use crate::process::Opener;
use crate::remembered::Remembered;
use crate::wait::{self, Entry, TimedLock, TimedLockGuard};
use outlive_client::Client;
use outlive_interval::Every;
use outlive_pool::Pool;
use outlive_store::{Job, JobOptions, OnFailure};
use outlive_types::sync::plain::{Mutex, MutexGuard};
use outlive_types::{Error, Result};
use pyo3::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The state that the handles of a job share.
pub struct Core {
    /// The job, and its knowledge of the program's memory.
    pub client: Client,
    /// Notices of the job's pool.
    pub notices: Arc<Notices>,
    turn: TimedLock,
    /// Buffers that lazy restores fill, each with whether the fill is over. Threads of the fill do
    /// not own them, since dropping a buffer takes the GIL.
    kept: Mutex<Vec<(Vec<Buffer>, Arc<AtomicBool>)>>,
    /// Immutable arrays, which the save under way reads in place.
    constants: Mutex<Vec<Buffer>>,
    /// Long containers of the last save.
    remembered: Mutex<Remembered>,
    opener: Opener,
    /// The program's communicator, if it has several ranks.
    pub coordinator: Option<Arc<PyCoordinator>>,
}

impl Drop for Core {
    /// Waits for a save under way, since it reads the constants.
    fn drop(&mut self) {
        if !self.constants.get_mut().is_empty()
            && let Some(handle) = self.job().current()
        {
            handle.wait_done(None);
        }
    }
}

impl Core {
    /// Opens a job.
    ///
    /// # Errors
    /// Those of [`Client::open`].
    pub fn open(
        pool: &Pool,
        notices: Arc<Notices>,
        name: &str,
        every: Every,
        on_failure: Option<OnFailure>,
        group: Option<GroupArguments>,
    ) -> Result<Core> {
        let (coordinator, group) = match group {
            Some(GroupArguments { coordinator, options }) => (Some(coordinator), Some(options)),
            None => (None, None),
        };
        Ok(Core {
            client: Client::open(
                pool,
                name,
                JobOptions { every, group, on_failure, ..Default::default() },
            )?,
            coordinator,
            notices,
            turn: TimedLock::default(),
            kept: Mutex::default(),
            constants: Mutex::default(),
            remembered: Mutex::default(),
            opener: Opener::this(),
        })
    }

    /// Refuses a call in a forked child, before any lock is touched.
    pub fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        self.opener.check(py, || format!("the job {}", self.job().name()))
    }

    /// Returns the exception for an error, or the one that the communicator of the group has
    /// raised.
    pub fn raise(&self, py: Python<'_>, error: &Error) -> PyErr {
        let raised = self.coordinator.as_ref().and_then(|coordinator| coordinator.take_raised());
        raised.unwrap_or_else(|| to_py(py, error))
    }

    /// Passes on an exception from before a save or restore began. In a group, the other ranks
    /// begin it, so they get this error too.
    pub fn declined(&self, py: Python<'_>, raised: PyErr) -> PyErr {
        if self.coordinator.is_some() {
            let error = Error::invalid(raised.value(py).to_string());
            // This rank raises its own.
            drop(py.detach(|| self.job().abort_collective(error)));
        }
        raised
    }

    /// Returns the long containers of the last save. While the lock is held, no Python code may
    /// run: another thread that needs the lock would wait with the GIL.
    pub fn remembered(&self) -> MutexGuard<'_, Remembered> {
        self.remembered.lock()
    }

    /// The engine's job.
    pub fn job(&self) -> &Job {
        self.client.job()
    }

    /// Waits until no other thread saves, restores or closes. Refuses if this thread would wait for
    /// itself.
    pub fn enter(&self, tick: &Bound<'_, PyAny>) -> PyResult<TimedLockGuard<'_>> {
        match wait::wait(&self.notices, tick, None, &mut |limit| self.turn.enter(limit))? {
            Some(Entry::Entered) => Ok(self.turn.entered()),
            Some(Entry::WouldHang) => Err(invalid(
                tick.py(),
                format!(
                    "the job {} is busy, and this call cannot wait for it: it comes from a signal \
                     handler, progress callback or logging handler that runs inside another call \
                     of outlive. Nothing was done. Set a flag there, and save where the program \
                     saves next (docs/python.md shows how)",
                    self.job().name()
                ),
            )),
            None => Err(to_py(tick.py(), &Error::bug("a wait without limit ended"))),
        }
    }

    /// Waits until the save under way, if any, is over, however it ends.
    pub fn settle_last(&self, tick: &Bound<'_, PyAny>) -> PyResult<()> {
        // Without the GIL: the thread that starts a save holds the lock, and may need the GIL to
        // reach other ranks.
        if let Some(handle) = tick.py().detach(|| self.job().current()) {
            wait::wait(&self.notices, tick, None, &mut |limit| {
                handle.wait_done(Some(limit)).then_some(())
            })?;
        }
        Ok(())
    }

    /// Waits until a lazy fill under way is complete.
    pub fn settle_fill(&self, tick: &Bound<'_, PyAny>) -> PyResult<()> {
        if let Some(fill) = self.job().filling() {
            wait::wait(&self.notices, tick, None, &mut |limit| fill.wait(Some(limit)).map(drop))?;
        }
        self.detach();
        Ok(())
    }

    /// Waits until the slow tier has the committed packs, as long as `pool.toml` allows.
    pub fn settle_slow_tier(&self, tick: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut fill = self.job().finish_fill();
        wait::wait(&self.notices, tick, None, &mut |limit| fill.wait(limit).then_some(()))?;
        Ok(())
    }

    /// Keeps the buffers of a lazy restore until it is `over`.
    pub fn keep(&self, buffers: Vec<Buffer>, over: Arc<AtomicBool>) {
        self.kept.lock().push((buffers, over));
        self.detach();
    }

    /// Drops buffers whose fill is over. Returns whether there are others.
    pub fn detach(&self) -> bool {
        let mut kept = self.kept.lock();
        let all = std::mem::take(&mut *kept);
        let (over, still): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(_, over)| over.load(Ordering::Acquire));
        *kept = still;
        let others = !kept.is_empty();
        drop(kept);
        // Without the lock, since this may run Python code.
        drop(over);
        others
    }

    /// Keeps the memory that the save under way reads, and drops that of the save before.
    pub fn keep_constants(&self, buffers: Vec<Buffer>) {
        let mut kept = self.constants.lock();
        let before = std::mem::replace(&mut *kept, buffers);
        drop(kept);
        // Without the lock, since this may run other Python code.
        drop(before);
    }
}
