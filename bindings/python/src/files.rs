//! Puts and gets of files: a thread of the engine works; the thread that Python called waits,
//! reports events and handles Ctrl-C.

use crate::errors::OrRaise;
use crate::named::named;
use crate::shared::Core;
use crate::wait::in_a_thread;
use outlive_files::{
    GetFiles, GetOptions, PutFiles, PutOptions, PutReport, PutSource, Selection, Troubles,
};
use outlive_store::Select;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// See `outlive.Job.put_files`.
pub fn put<'py>(
    core: &Arc<Core>,
    paths: Vec<PathBuf>,
    options: PutOptions,
    tick: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyDict>> {
    let py = tick.py();
    core.check_process(py)?;
    let stop = options.stop.clone();
    let inside = core.enter(tick)?;
    core.settle_last(tick)?;
    let job = core.clone();
    let report = in_a_thread(&core.notices, tick, &stop, move || {
        job.job().put(PutSource::Paths(&paths), &options)
    })?;
    drop(inside);
    let PutReport { plan, items, files, stats, troubles } = report;
    Ok(named!(py;
        ..stats { epoch, state_bytes, new_bytes },
        ..plan { read_files, read_bytes },
        items: items,
        files: files,
        total_s: stats.total.as_secs_f64(),
        troubles: list(py, &troubles)?,
        troubles_total: troubles.len(),
        complete: troubles.is_whole(),
    ))
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
    let choice = Selection::new(paths).or_raise(py)?;
    let options = GetOptions { to, choice, overwrite, stop: stop.clone() };
    let inside = core.enter(tick)?;
    core.settle_last(tick)?;
    let job = core.clone();
    let report = in_a_thread(&core.notices, tick, &stop, move || {
        let found = job.job().files(epoch.map_or(Select::Newest, Select::Epoch))?;
        found.map(|(checkpoint, _)| checkpoint.get(&options)).transpose()
    })?;
    drop(inside);
    let Some(report) = report else { return Ok(None) };
    let troubles = &report.troubles;
    Ok(Some(named!(py;
        ..report { epoch, items, files, bytes, kept_files, kept_bytes, read_bytes },
        troubles: list(py, troubles)?,
        troubles_total: troubles.len(),
        complete: troubles.is_whole(),
    )))
}

/// Lists file errors; see `outlive.FileTrouble`. Names that are not UTF-8 are those of
/// `os.fsdecode`.
fn list<'py>(py: Python<'py>, troubles: &Troubles) -> PyResult<Bound<'py, PyList>> {
    let kept = PyList::empty(py);
    for trouble in &troubles.kept {
        let path = OsStr::from_bytes(&trouble.path);
        kept.append(named!(py; ..trouble { why }, path: path, kind: trouble.kind.name()))?;
    }
    Ok(kept)
}
