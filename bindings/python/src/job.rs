//! A job, opened for Python.

use crate::buffer::Buffer;
use crate::collect::{Collection, Rules};
use crate::errors::{OrRaise, to_py};
use crate::events::Events;
use crate::named::named;
use crate::notes::Notes;
use crate::process::Opener;
use crate::restore::Taken;
use crate::wait::{self, Entry, Inside, Turn};
use crate::{collect, files, restore, save};
use outlive_capture::HashTracker;
use outlive_format::{Manifest, Remarks};
use outlive_pool::Pool;
use outlive_store::files::{Patterns, PutOptions};
use outlive_store::{EpochInfo, JobOptions, LazyFill, SaveHandle};
use outlive_types::{Error, Result};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyList};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

/// What the handles of a job share.
pub struct Core {
    /// The engine's job.
    pub job: outlive_store::Job,
    /// What the engine remembers of the last image.
    pub tracker: Arc<HashTracker>,
    /// Events of the job's pool.
    pub events: Arc<Events>,
    turn: Turn,
    /// The last save, until its outcome has been looked at.
    last: Mutex<Option<SaveHandle>>,
    /// The last lazy restore, until it is over.
    fill: Mutex<Option<LazyFill>>,
    /// Buffers that lazy restores fill, each with whether it is over. Threads of the fill do not hold
    /// them: to let go of a buffer takes the GIL.
    kept: Mutex<Vec<(Taken, Arc<AtomicBool>)>>,
    /// Arrays that nobody changes, which the save under way reads where they are.
    constants: Mutex<Vec<Buffer>>,
    opener: Opener,
}

impl Drop for Core {
    /// A save that is still under way reads the constants.
    fn drop(&mut self) {
        if self.constants.get_mut().is_ok_and(|constants| !constants.is_empty())
            && let Some(handle) = self.job.current()
        {
            handle.wait_done(None);
        }
    }
}

/// A message for a caller who must correct the call.
pub fn invalid(py: Python<'_>, message: String) -> PyErr {
    to_py(py, &Error::invalid(message))
}

impl Core {
    /// Refuses in a forked child, before any lock is touched.
    pub fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        self.opener.check(py, || format!("the job {}", self.job.name()))
    }

    /// Threads for hashing and copying.
    pub fn threads(&self) -> usize {
        self.job.pool().config().tuning.threads()
    }

    /// Waits until no other thread saves, restores or closes. Refuses where it would wait for itself.
    pub fn enter(&self, tick: &Bound<'_, PyAny>) -> PyResult<Inside<'_>> {
        match wait::wait(&self.events, tick, None, &mut |limit| self.turn.enter(limit))? {
            Some(Entry::Entered) => Ok(self.turn.entered()),
            Some(Entry::WouldHang) => Err(invalid(
                tick.py(),
                format!(
                    "the job {} is busy, and this call cannot wait for it: it comes from a signal \
                     handler, progress callback or logging handler that runs inside another call \
                     of outlive. Nothing was done. Set a flag there, and save where the program \
                     saves next (docs/python.md shows how)",
                    self.job.name()
                ),
            )),
            None => Err(to_py(tick.py(), &Error::bug("a wait without limit ended"))),
        }
    }

    /// Waits until the save under way, if there is one, is over, however it ends.
    pub fn settle_last(&self, tick: &Bound<'_, PyAny>) -> PyResult<()> {
        if let Some(handle) = self.job.current() {
            wait::wait(&self.events, tick, None, &mut |limit| {
                handle.wait_done(Some(limit)).then_some(())
            })?;
        }
        Ok(())
    }

    /// Waits until memory that is being filled lazily is there.
    pub fn settle_fill(&self, tick: &Bound<'_, PyAny>) -> PyResult<()> {
        let fill = self.fill.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(fill) = fill {
            wait::wait(&self.events, tick, None, &mut |limit| fill.wait(Some(limit)).map(drop))?;
            self.fill.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
        self.let_go();
        Ok(())
    }

    /// Remembers a lazy restore.
    pub fn set_fill(&self, fill: LazyFill) {
        *self.fill.lock().unwrap_or_else(PoisonError::into_inner) = Some(fill);
    }

    /// Keeps what a lazy restore fills until it is `over`.
    pub fn keep(&self, taken: Taken, over: Arc<AtomicBool>) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push((taken, over));
        self.let_go();
    }

    /// Lets go of buffers that nobody fills any more. Answers whether there are others.
    fn let_go(&self) -> bool {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let all = std::mem::take(&mut *kept);
        let (over, still): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(_, over)| over.load(Ordering::Acquire));
        *kept = still;
        let others = !kept.is_empty();
        drop(kept);
        // Without the lock: this may run Python code.
        drop(over);
        others
    }

    /// Keeps what the save under way reads, in place of what the one before it has read.
    pub fn keep_constants(&self, buffers: Vec<Buffer>) {
        let mut kept = self.constants.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *kept, buffers);
        drop(kept);
        // Released without the lock: that may run other Python code.
        drop(before);
    }

    /// Remembers the newest save.
    pub fn set_last(&self, handle: SaveHandle) {
        *self.last() = Some(handle);
    }

    fn last(&self) -> std::sync::MutexGuard<'_, Option<SaveHandle>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A job; `outlive.Job` is what programs use.
#[pyclass(frozen, module = "outlive._core")]
pub struct Job {
    core: Arc<Core>,
}

impl Job {
    /// Opens a job.
    pub fn open(pool: &Pool, events: Arc<Events>, name: &str, every_s: Option<f64>) -> Result<Job> {
        let every = every_s
            .map(|seconds| {
                Duration::try_from_secs_f64(seconds).map_err(|_| {
                    Error::invalid(format!(
                        "every_s = {seconds}: must be a number of seconds, from 0"
                    ))
                })
            })
            .transpose()?;
        let tracker = pool.config().tuning.tracker()?;
        let job = outlive_store::Job::open(pool, name, JobOptions { every })?;
        let core = Core {
            tracker: Arc::new(HashTracker::for_job(tracker, job.name().as_str())),
            job,
            events,
            turn: Turn::default(),
            last: Mutex::new(None),
            fill: Mutex::new(None),
            kept: Mutex::default(),
            constants: Mutex::default(),
            opener: Opener::this(),
        };
        Ok(Job { core: Arc::new(core) })
    }
}

#[pymethods]
impl Job {
    /// True if a save is due. Raises the failure of an earlier save that nobody has been told.
    fn due(&self, py: Python<'_>) -> PyResult<bool> {
        let core = &self.core;
        core.check_process(py)?;
        let over = core.last().take_if(|last| last.done()).is_some();
        if over && let Some(error) = core.job.unseen_failure() {
            return Err(to_py(py, &error.context("an earlier save failed")));
        }
        Ok(core.job.due())
    }

    /// True if events wait to be told.
    fn events_waiting(&self) -> bool {
        self.core.events.waiting()
    }

    /// Nobody saves by this job any more: others may track its memory. What a save under way has frozen
    /// stays frozen.
    fn unwatch(&self, py: Python<'_>) -> PyResult<()> {
        self.core.check_process(py)?;
        self.core.tracker.let_go();
        Ok(())
    }

    /// True while a save is under way or memory is being filled, or if a save has failed and nobody has been told.
    fn unfinished(&self, py: Python<'_>) -> PyResult<bool> {
        self.core.check_process(py)?;
        Ok(self.core.let_go() || self.core.last().is_some())
    }

    /// True while a save is under way or being started. Never waits.
    fn saving(&self, py: Python<'_>) -> PyResult<bool> {
        self.core.check_process(py)?;
        Ok(self.core.job.is_saving())
    }

    /// Saves regions, given by their names, dtypes, shapes and leaves.
    #[pyo3(signature = (tick, *, names, dtypes, shapes, leaves, attachment, notes))]
    #[allow(clippy::too_many_arguments)] // by name
    fn save(
        &self,
        tick: &Bound<'_, PyAny>,
        names: &Bound<'_, PyList>,
        dtypes: &Bound<'_, PyList>,
        shapes: &Bound<'_, PyList>,
        leaves: &Bound<'_, PyList>,
        attachment: Vec<u8>,
        notes: &Notes,
    ) -> PyResult<save::Save> {
        let leaves = [names, dtypes, shapes, leaves];
        save::save(&self.core, leaves, attachment, notes.0.clone(), tick)
    }

    /// Restores; `None` if there is no checkpoint. `plan` gets, by name, the epoch, the names, dtypes,
    /// shapes and lengths of the regions, and the attachment; it answers for each region `None` (leave it
    /// out), `True` (as a value) or a writable buffer to fill. Lazily unless `user_only` is `None`; true
    /// serves the program's own instructions only.
    #[pyo3(signature = (plan, tick, *, epoch, user_only))]
    fn restore<'py>(
        &self,
        plan: &Bound<'py, PyAny>,
        tick: &Bound<'py, PyAny>,
        epoch: Option<u64>,
        user_only: Option<bool>,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        restore::restore(&self.core, epoch, plan, user_only, tick)
    }

    /// Puts files.
    #[pyo3(signature = (
        paths, tick, *, patterns, ignore_files, one_file_system, reread, leave_out, notes
    ))]
    #[allow(clippy::too_many_arguments)] // by name
    fn put_files<'py>(
        &self,
        paths: Vec<PathBuf>,
        tick: &Bound<'py, PyAny>,
        patterns: Vec<String>,
        ignore_files: bool,
        one_file_system: bool,
        reread: bool,
        leave_out: Vec<PathBuf>,
        notes: &Notes,
    ) -> PyResult<Bound<'py, PyDict>> {
        let patterns = Patterns::new(patterns.iter().map(|line| line.as_bytes()));
        let options = PutOptions {
            patterns: patterns.or_raise(tick.py())?,
            no_ignore_files: !ignore_files,
            one_file_system,
            reread,
            leave_out,
            notes: notes.0.clone(),
            ..PutOptions::default()
        };
        files::put(&self.core, paths, options, tick)
    }

    /// Gets files; `None` if there is no checkpoint of files.
    #[pyo3(signature = (to, paths, tick, *, epoch, overwrite))]
    fn get_files<'py>(
        &self,
        to: PathBuf,
        paths: Vec<Vec<u8>>,
        tick: &Bound<'py, PyAny>,
        epoch: Option<u64>,
        overwrite: bool,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        files::get(&self.core, to, paths, epoch, overwrite, tick)
    }

    /// The committed checkpoints, oldest first.
    fn epochs<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        self.core.check_process(py)?;
        let epochs = py.detach(|| self.core.job.epochs()).or_raise(py)?;
        epochs.iter().map(|info| report_of(py, info)).collect()
    }

    /// Changes what is said about a checkpoint, after the save under way is over.
    #[pyo3(signature = (epoch, tick, *, label, pin))]
    fn note(
        &self,
        epoch: u64,
        tick: &Bound<'_, PyAny>,
        label: Option<&str>,
        pin: Option<bool>,
    ) -> PyResult<()> {
        let py = tick.py();
        self.core.check_process(py)?;
        self.core.settle_last(tick)?;
        let change = |remarks: &mut Remarks| {
            if let Some(label) = label {
                label.clone_into(&mut remarks.label);
            }
            remarks.pinned = pin.unwrap_or(remarks.pinned);
        };
        py.detach(|| self.core.job.note(epoch, change)).or_raise(py).map(drop)
    }

    /// Drops checkpoints by rules and collects, after the save under way is over; answers which are kept
    /// and why, which are dropped, both oldest first, and what became of the packs.
    fn prune<'py>(
        &self,
        rules: &Rules,
        options: &Collection,
        tick: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyDict>> {
        self.core.check_process(tick.py())?;
        collect::prune(&self.core, rules, options, tick)
    }

    /// A picture of all checkpoints, as SVG.
    fn plot(&self, py: Python<'_>) -> PyResult<String> {
        self.core.check_process(py)?;
        let job = &self.core.job;
        let epochs = py.detach(|| job.epochs()).or_raise(py)?;
        let manifests: Vec<_> = epochs.into_iter().map(|info| info.manifest).collect();
        Ok(outlive_cli::plot(job.name().as_str(), &manifests))
    }

    /// Waits for the drain, and raises its failure if nobody has been told.
    fn wait(&self, tick: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = tick.py();
        self.core.check_process(py)?;
        self.core.settle_last(tick)?;
        let waited = py.detach(|| self.core.job.wait());
        let told = wait::tell(&self.core.events, tick);
        waited.or_raise(py).and(told)
    }

    /// Lets the next save leave behind what others have saved since this job restored or was closed.
    fn take_over(&self, py: Python<'_>) -> PyResult<()> {
        self.core.check_process(py)?;
        py.detach(|| self.core.job.take_over());
        Ok(())
    }

    /// Waits for the drain, raises its failure if nobody has been told, and ends the session. At the
    /// end of the process nobody needs to wait for memory that is being filled.
    #[pyo3(signature = (tick, *, at_exit))]
    fn close(&self, tick: &Bound<'_, PyAny>, at_exit: bool) -> PyResult<()> {
        let py = tick.py();
        let core = &self.core;
        core.check_process(py)?;
        let inside = core.enter(tick)?;
        core.settle_last(tick)?;
        if !at_exit {
            core.settle_fill(tick)?;
        }
        let closed = py.detach(|| match at_exit {
            true => core.job.close_at_exit(),
            false => core.job.close(),
        });
        core.tracker.let_go();
        core.keep_constants(Vec::new());
        drop(inside);
        core.last().take();
        let told = wait::tell(&core.events, tick);
        closed.or_raise(py).and(told)
    }
}

/// See `outlive.Epoch`.
fn report_of<'py>(py: Python<'py>, info: &EpochInfo) -> PyResult<Bound<'py, PyDict>> {
    let manifest = &info.manifest;
    let Manifest { figures, remarks, images, metrics, .. } = manifest;
    let metrics = metrics.iter().map(|(name, value)| (name, value));
    Ok(named!(py;
        ..info { epoch },
        ..figures { changed_bytes, known_bytes, zero_bytes, raw_bytes },
        ..remarks { label, pinned },
        parent: (manifest.parent > 0).then_some(manifest.parent),
        frozen_at: UNIX_EPOCH + Duration::from_nanos(manifest.frozen_ns),
        regions: images.iter().map(|image| image.regions).sum::<u64>(),
        state_bytes: images.iter().map(|image| image.state_bytes).sum::<u64>(),
        new_bytes: figures.new_bytes + info.record_bytes,
        stall_s: Duration::from_nanos(figures.stall_ns).as_secs_f64(),
        drain_s: Duration::from_nanos(figures.drain_ns).as_secs_f64(),
        metrics: metrics.into_py_dict(py)?,
    ))
}
