//! A job, opened for Python.

use crate::collect::{Collection, Rules};
use crate::commits::CommitEvents;
use crate::errors::{OrRaise, to_py};
use crate::group::GroupArguments;
use crate::named::named;
use crate::notes::Notes;
use crate::notices::Notices;
use crate::shared::Core;
use crate::wait;
use crate::{collect, files, gate, restore, save, trees};
use outlive_client::{CLOSE_WAIT, End};
use outlive_files::{Patterns, PutOptions};
use outlive_format::{Manifest, Mark, Remarks};
use outlive_interval::Every;
use outlive_pool::Pool;
use outlive_pool::Tier;
use outlive_store::{EpochInfo, JobHealth, OnFailure};
use outlive_types::{EpochName, Error, Result};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyFrozenSet, PyList, PyTuple};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

/// A job; programs use `outlive.Job`.
#[pyclass(frozen, module = "outlive._core")]
pub struct Job {
    core: Arc<Core>,
}

impl Job {
    /// Opens a job.
    pub fn open(
        pool: &Pool,
        notices: Arc<Notices>,
        name: &str,
        every: Every,
        on_failure: Option<OnFailure>,
        group: Option<GroupArguments>,
    ) -> Result<Job> {
        let core = Core::open(pool, notices, name, every, on_failure, group)?;
        Ok(Job { core: Arc::new(core) })
    }

    /// Sets the rules that each commit applies.
    pub fn keep(&self, rules: &Rules) -> Result<()> {
        self.core.job().keep(rules.0.clone())
    }
}

#[pymethods]
impl Job {
    /// True if a save is due. Raises the failure of an earlier save that was not reported yet.
    fn due(&self, tick: &Bound<'_, PyAny>) -> PyResult<bool> {
        let (core, py) = (&self.core, tick.py());
        core.check_process(py)?;
        // In a group all ranks make this call, so it must not come in the middle of another.
        let inside = core.job().is_group().then(|| core.enter(tick)).transpose()?;
        let due = py.detach(|| core.client.due());
        drop(inside);
        due.map_err(|error| core.raise(py, &error))
    }

    /// True if the program is to save and to end. In a group all ranks ask together.
    fn should_stop(&self, tick: &Bound<'_, PyAny>) -> PyResult<bool> {
        let (core, py) = (&self.core, tick.py());
        core.check_process(py)?;
        let inside = core.job().is_group().then(|| core.enter(tick)).transpose()?;
        let stops = py.detach(|| core.client.should_stop());
        drop(inside);
        wait::tell(&core.notices, tick)?;
        stops.map_err(|error| core.raise(py, &error))
    }

    /// The reason of a request to stop, and the seconds that are left, if these are known.
    fn stop_request(&self, py: Python<'_>) -> PyResult<Option<(String, Option<f64>)>> {
        self.core.check_process(py)?;
        let request = py.detach(|| self.core.client.stop_request());
        Ok(request.map(|request| {
            let left_s = request.left().map(|left| left.as_secs_f64());
            (request.reason, left_s)
        }))
    }

    /// Works as the function of this name, but skips containers that the last save has seen
    /// unchanged.
    fn plain_containers<'py>(
        &self,
        state: &Bound<'py, PyAny>,
        least: usize,
    ) -> PyResult<Bound<'py, PyFrozenSet>> {
        let py = state.py();
        self.core.check_process(py)?;
        let mut remembered = std::mem::take(&mut *self.core.remembered());
        let found = crate::plain::outermost(state, least, &mut remembered);
        *self.core.remembered() = remembered;
        PyFrozenSet::new(py, found)
    }

    /// Returns the rank and the number of ranks; `None` without a group.
    fn group(&self) -> Option<(u32, u32)> {
        let job = self.core.job();
        job.is_group().then(|| (job.rank(), job.ranks()))
    }

    /// Takes part, with an error, in the save or restore that the other ranks begin; raises the
    /// error that all ranks get. Without a group that is the error itself.
    fn abort_collective(&self, tick: &Bound<'_, PyAny>, message: &str) -> PyResult<()> {
        let py = tick.py();
        self.core.check_process(py)?;
        let inside = self.core.enter(tick)?;
        let error = Error::invalid(message);
        let told = py.detach(|| self.core.job().abort_collective(error));
        drop(inside);
        Err(to_py(py, &told))
    }

    /// Subscribes to the fate of each checkpoint from now on.
    fn commit_events(&self, py: Python<'_>) -> PyResult<CommitEvents> {
        self.core.check_process(py)?;
        Ok(CommitEvents::new(self.core.client.events(), &self.core.notices))
    }

    /// Opens the gate, which holds outputs until the checkpoint that covers them is committed.
    fn gate(&self, bytes_max: u64, tick: &Bound<'_, PyAny>) -> PyResult<gate::Gate> {
        gate::open(&self.core, bytes_max, tick)
    }

    /// Whether a supervisor holds what this process prints.
    fn has_transcript(&self) -> bool {
        self.core.client.has_transcript()
    }

    /// Lets the gate continue from the checkpoint that was restored last.
    fn roll_back_gate(&self, tick: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = tick.py();
        self.core.check_process(py)?;
        py.detach(|| self.core.client.roll_back_gate()).or_raise(py)?;
        wait::tell(&self.core.notices, tick)
    }

    /// True if there are notices or progress to take.
    fn notices_waiting(&self) -> bool {
        self.core.notices.waiting()
    }

    /// Ends the tracking for this job, so that others may track its memory. Frozen memory of a save
    /// under way stays frozen.
    fn unwatch(&self, py: Python<'_>) -> PyResult<()> {
        self.core.check_process(py)?;
        self.core.client.detach();
        Ok(())
    }

    /// True while a save is under way or memory is being filled, or if a failure of a save was not
    /// reported yet; in a group also after any save.
    fn unfinished(&self, py: Python<'_>) -> PyResult<bool> {
        self.core.check_process(py)?;
        Ok(self.core.detach() || self.core.client.is_unfinished())
    }

    /// True while a save is under way or being started. Never waits.
    fn saving(&self, py: Python<'_>) -> PyResult<bool> {
        self.core.check_process(py)?;
        Ok(self.core.job().is_saving())
    }

    /// Saves regions, given by their names, dtypes, shapes and leaves.
    #[pyo3(signature = (tick, *, names, dtypes, shapes, leaves, distributions, attachment, notes))]
    #[allow(clippy::too_many_arguments)] // by name
    fn save(
        &self,
        tick: &Bound<'_, PyAny>,
        names: &Bound<'_, PyList>,
        dtypes: &Bound<'_, PyList>,
        shapes: &Bound<'_, PyList>,
        leaves: &Bound<'_, PyList>,
        distributions: &Bound<'_, PyDict>,
        attachment: Vec<u8>,
        notes: &Notes,
    ) -> PyResult<save::Save> {
        let leaves = [names, dtypes, shapes, leaves];
        save::save(&self.core, leaves, distributions, attachment, notes.0.clone(), tick)
    }

    /// Restores; `None` if there is no checkpoint. `plan` gets, by name, the epoch, the names,
    /// dtypes, shapes and lengths of the regions, and the attachment. It returns for each region
    /// `None` (skip it), `True` (as a value) or a writable buffer to fill. The restore is lazy
    /// unless `user_only` is `None`; true serves only the program's own instructions.
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

    /// Changes paths of the newest tree of files; returns the outcome.
    fn edit_files<'py>(
        &self,
        changes: Vec<(String, Vec<u8>, Bound<'py, PyAny>, bool)>,
        tick: &Bound<'py, PyAny>,
        notes: &Notes,
    ) -> PyResult<Bound<'py, PyDict>> {
        trees::edit(&self.core, changes, notes.0.clone(), tick)
    }

    /// Returns the committed checkpoints, oldest first.
    fn epochs<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        self.core.check_process(py)?;
        let epochs = py.detach(|| self.core.job().epochs()).or_raise(py)?;
        epochs.iter().map(|info| report_of(py, info)).collect()
    }

    /// Returns the number of a checkpoint that may be counted from the newest, after the save under
    /// way is over.
    fn epoch_named(&self, name: &str, tick: &Bound<'_, PyAny>) -> PyResult<u64> {
        let py = tick.py();
        self.core.check_process(py)?;
        let refused = |why| Error::invalid(format!("there is no epoch {name:?}: {why}"));
        let name: EpochName = name.parse().map_err(refused).or_raise(py)?;
        self.core.settle_last(tick)?;
        py.detach(|| self.core.job().epoch_named(name)).or_raise(py)
    }

    /// Returns the tiers from which alone a checkpoint can be read now.
    #[pyo3(signature = (epoch))]
    fn tiers(&self, py: Python<'_>, epoch: Option<u64>) -> PyResult<Vec<&'static str>> {
        self.core.check_process(py)?;
        let tiers = py.detach(|| self.core.job().tiers(epoch)).or_raise(py)?;
        Ok(tiers.into_iter().map(Tier::name).collect())
    }

    /// Changes the remarks of a checkpoint, after the save under way is over. Returns its tags.
    #[pyo3(signature = (
        epoch, tick, *, label=None, pin=None, mark=None, set=None, add=Vec::new(), remove=Vec::new()
    ))]
    #[allow(clippy::too_many_arguments)] // by name
    fn note(
        &self,
        epoch: u64,
        tick: &Bound<'_, PyAny>,
        label: Option<&str>,
        pin: Option<bool>,
        mark: Option<&str>,
        set: Option<Vec<String>>,
        add: Vec<String>,
        remove: Vec<String>,
    ) -> PyResult<Vec<String>> {
        let py = tick.py();
        self.core.check_process(py)?;
        let mark = mark.map(Mark::parse).transpose().or_raise(py)?;
        self.core.settle_last(tick)?;
        let change = |remarks: &mut Remarks| {
            if let Some(label) = label {
                label.clone_into(&mut remarks.label);
            }
            remarks.pinned = pin.unwrap_or(remarks.pinned);
            remarks.mark = mark.unwrap_or(remarks.mark);
            if let Some(tags) = &set {
                remarks.tags.clone_from(tags);
            }
            remarks.tags.extend(add.iter().cloned());
            remarks.tags.retain(|tag| !remove.contains(tag));
        };
        py.detach(|| self.core.job().note(epoch, change)).or_raise(py).map(|remarks| remarks.tags)
    }

    /// Drops checkpoints by rules and collects, after the save under way is over. Returns the kept
    /// ones with reasons and the dropped ones, both oldest first, and the counts of packs.
    fn prune<'py>(
        &self,
        rules: &Rules,
        options: &Collection,
        tick: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyDict>> {
        self.core.check_process(tick.py())?;
        collect::prune(&self.core, rules, options, tick)
    }

    /// Returns a picture of all checkpoints, as SVG.
    fn plot(&self, py: Python<'_>, axis: &str) -> PyResult<String> {
        self.core.check_process(py)?;
        let axis = axis.parse::<outlive_cli::PlotAxis>().or_raise(py)?;
        let job = self.core.job();
        let epochs = py.detach(|| job.epochs()).or_raise(py)?;
        let manifests: Vec<_> = epochs.into_iter().map(|info| info.manifest).collect();
        Ok(outlive_cli::plot(job.name().as_str(), &manifests, axis))
    }

    /// Waits until the save is over, and raises its failure if that was not reported yet.
    fn wait(&self, tick: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = tick.py();
        self.core.check_process(py)?;
        self.core.settle_last(tick)?;
        let waited = py.detach(|| self.core.job().wait());
        let told = wait::tell(&self.core.notices, tick);
        waited.or_raise(py).and(told)
    }

    /// Lets the next save continue, although others have saved since this job restored or was
    /// closed.
    fn take_over(&self, py: Python<'_>) -> PyResult<()> {
        self.core.check_process(py)?;
        py.detach(|| self.core.job().take_over());
        Ok(())
    }

    /// See `outlive.JobStatus`.
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.core.check_process(py)?;
        let health = self.core.job().health();
        let JobHealth { on_failure, last_error, since_commit, .. } = &health;
        let (on_failure, fail_after) = match on_failure {
            OnFailure::Raise => ("raise", None),
            OnFailure::Warn { fail_after } => ("warn", Some(fail_after)),
        };
        Ok(named!(py;
            ..health { failed_in_a_row, failed, committed },
            on_failure: on_failure,
            fail_after_s: fail_after.map(Duration::as_secs_f64),
            last_error: last_error.as_ref().map(|error| to_py(py, error).into_value(py)),
            since_commit_s: since_commit.map(|time| time.as_secs_f64()),
        ))
    }

    /// Returns the failures for a warning: how many, how many in a row, and the last one.
    fn untold_failures(&self, py: Python<'_>) -> PyResult<Option<(u64, u64, String)>> {
        self.core.check_process(py)?;
        let untold = self.core.job().untold_failures();
        Ok(untold.map(|(count, in_a_row, error)| (count, in_a_row, error.message().to_owned())))
    }

    /// Waits for the last save and the slow tier, raises a failure that was not reported yet, and
    /// ends the session. At the end of the process it does not wait for memory that is being
    /// filled. A group closes `together`; otherwise this rank waits for no other one.
    #[pyo3(signature = (tick, *, at_exit, together))]
    fn close(&self, tick: &Bound<'_, PyAny>, at_exit: bool, together: bool) -> PyResult<()> {
        let py = tick.py();
        let core = &self.core;
        core.check_process(py)?;
        let inside = core.enter(tick)?;
        // Other ranks may wait for this one already.
        let keepalive = core.job().keepalive();
        core.settle_last(tick)?;
        if !at_exit {
            core.settle_fill(tick)?;
        }
        core.settle_slow_tier(tick)?;
        // Here, where Ctrl-C works.
        let released = &mut |limit| core.client.wait_released(limit).then_some(());
        wait::wait(&core.notices, tick, Some(CLOSE_WAIT), released)?;
        drop(keepalive);
        let end = match (at_exit, together) {
            (true, _) => End::Exit,
            (false, true) => End::Together,
            (false, false) => End::Alone,
        };
        let closed = py.detach(|| core.client.close(end));
        core.keep_constants(Vec::new());
        let forgotten = std::mem::take(&mut *core.remembered());
        drop(forgotten);
        drop(inside);
        let told = wait::tell(&core.notices, tick);
        closed.map_err(|error| core.raise(py, &error)).and(told)
    }
}

/// See `outlive.Epoch`.
fn report_of<'py>(py: Python<'py>, info: &EpochInfo) -> PyResult<Bound<'py, PyDict>> {
    let manifest = &info.manifest;
    let Manifest { figures, remarks, metrics, .. } = manifest;
    let metrics = metrics.iter().map(|(name, value)| (name, value));
    Ok(named!(py;
        ..info { epoch },
        ..figures { changed_bytes, known_bytes, zero_bytes, raw_bytes },
        ..remarks { label, pinned },
        tags: PyTuple::new(py, &remarks.tags)?,
        mark: remarks.mark.name(),
        parent: (manifest.parent > 0).then_some(manifest.parent),
        frozen_at: UNIX_EPOCH + Duration::from_nanos(manifest.frozen_ns),
        failed_before: manifest.failed_before,
        regions: manifest.regions(),
        state_bytes: manifest.state_bytes(),
        new_bytes: figures.new_bytes + info.record_bytes,
        stall_s: Duration::from_nanos(figures.stall_ns).as_secs_f64(),
        drain_s: Duration::from_nanos(figures.drain_ns).as_secs_f64(),
        metrics: metrics.into_py_dict(py)?,
    ))
}
