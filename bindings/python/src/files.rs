//! Puts and gets of files: a thread of the engine works, the thread that Python called waits, tells
//! events and answers Ctrl-C.

use crate::errors::OrRaise;
use crate::job::Core;
use crate::wait::in_a_thread;
use outlive_format::Remarks;
use outlive_store::files::{
    Choice, GetOptions, GetReport, Patterns, PutOptions, PutReport, PutSource, Troubles,
};
use outlive_store::{SaveNotes, Select};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Patterns, use of ignore files, one file system, reread, and what is left out.
pub type Choices = (Vec<String>, bool, bool, bool, Vec<PathBuf>);

/// See `outlive.Job.put_files`.
pub fn put<'py>(
    core: &Arc<Core>,
    paths: Vec<PathBuf>,
    choices: Choices,
    notes: (String, bool, Vec<(String, f64)>),
    tick: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyDict>> {
    let py = tick.py();
    core.check_process(py)?;
    let (patterns, ignore_files, one_file_system, reread, leave_out) = choices;
    let (label, pinned, metrics) = notes;
    let stop = Arc::new(AtomicBool::new(false));
    let options = PutOptions {
        patterns: Patterns::new(patterns.iter().map(|line| line.as_bytes())).or_raise(py)?,
        no_ignore_files: !ignore_files,
        one_file_system,
        reread,
        leave_out,
        notes: SaveNotes::new(Remarks { pinned, suspect: false, label }, metrics).or_raise(py)?,
        stop: stop.clone(),
    };
    let inside = core.enter(tick)?;
    core.settle_last(tick)?;
    let job = core.clone();
    let report = in_a_thread(&core.events, tick, &stop, move || {
        job.job.put(PutSource::Paths(&paths), &options)
    })?;
    drop(inside);
    let PutReport { plan, items, files, stats, troubles } = report;
    let out = PyDict::new(py);
    out.set_item("epoch", stats.epoch)?;
    out.set_item("items", items)?;
    out.set_item("files", files)?;
    out.set_item("state_bytes", stats.state_bytes)?;
    out.set_item("read_files", plan.read_files)?;
    out.set_item("read_bytes", plan.read_bytes)?;
    out.set_item("new_bytes", stats.new_bytes)?;
    out.set_item("total_s", stats.total.as_secs_f64())?;
    set_troubles(&out, &troubles)?;
    Ok(out)
}

/// See `outlive.Job.get_files`; `None` if the job has no checkpoint of files.
pub fn get<'py>(
    core: &Arc<Core>,
    to: PathBuf,
    paths: Vec<Vec<u8>>,
    epoch: Option<u64>,
    overwrite: bool,
    tick: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyDict>>> {
    let py = tick.py();
    core.check_process(py)?;
    let stop = Arc::new(AtomicBool::new(false));
    let choice = Choice::new(paths).or_raise(py)?;
    let options = GetOptions { to, choice, overwrite, stop: stop.clone() };
    let inside = core.enter(tick)?;
    core.settle_last(tick)?;
    let job = core.clone();
    let report = in_a_thread(&core.events, tick, &stop, move || {
        let found = job.job.files(epoch.map_or(Select::Newest, Select::Epoch))?;
        found.map(|(checkpoint, _)| checkpoint.get(&options)).transpose()
    })?;
    drop(inside);
    let Some(report) = report else { return Ok(None) };
    let GetReport { epoch, items, files, bytes, read_bytes, troubles } = report;
    let out = PyDict::new(py);
    out.set_item("epoch", epoch)?;
    out.set_item("items", items)?;
    out.set_item("files", files)?;
    out.set_item("bytes", bytes)?;
    out.set_item("read_bytes", read_bytes)?;
    set_troubles(&out, &troubles)?;
    Ok(Some(out))
}

/// Paths as Python keeps those that are no text: bytes, for `os.fsdecode`.
fn set_troubles(out: &Bound<'_, PyDict>, troubles: &Troubles) -> PyResult<()> {
    let py = out.py();
    let kept = PyList::empty(py);
    for trouble in &troubles.kept {
        let path = PyBytes::new(py, &trouble.path).into_any();
        let kind = trouble.kind.name().into_pyobject(py)?.into_any();
        let why = trouble.why.as_str().into_pyobject(py)?.into_any();
        kept.append(PyTuple::new(py, [path, kind, why])?)?;
    }
    out.set_item("troubles", kept)?;
    out.set_item("troubles_total", troubles.len())?;
    out.set_item("complete", troubles.is_whole())
}
