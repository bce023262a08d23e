//! Saving: the leaves of a state become regions, and a save becomes a handle.

use crate::buffer::{Buffer, RawBytes};
use crate::errors::{OrRaise, invalid};
use crate::group::distribution;
use crate::named::named;
use crate::plain::{self, TREE};
use crate::remembered::Remembered;
use crate::shared::Core;
use crate::values;
use crate::wait;
use outlive_capture::Region;
use outlive_interval::{Bound as SetBy, Choice};
use outlive_store::{SaveHandle, SaveNotes, SaveStats};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyMemoryView, PyString, PyTuple};
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A leaf smaller than this is copied, which costs less than to keep its buffer.
const COPIED_BELOW_BYTES: usize = 1024;

/// The leaves of a state, with all memory that must stay while the engine reads them.
struct Leaves {
    regions: Vec<Region>,
    /// Values and tiny arrays, one behind the other. Regions point into it.
    copied: Vec<u8>,
    /// The memory of the other arrays. Regions point into it.
    _buffers: Vec<Buffer>,
    /// Memory of immutable arrays. It is neither copied nor forked, so it must be kept until the
    /// save is over.
    constants: Vec<Buffer>,
}

enum Bytes {
    Copied { offset: usize, length: usize },
    Lent(RawBytes),
    Constant(RawBytes),
}

impl Leaves {
    fn take(
        names: &Bound<'_, PyList>,
        dtypes: &Bound<'_, PyList>,
        shapes: &Bound<'_, PyList>,
        leaves: &Bound<'_, PyList>,
        distributions: &Bound<'_, PyDict>,
        remembered: &mut Remembered,
    ) -> PyResult<Leaves> {
        let py = names.py();
        let mut copied = Vec::with_capacity(remembered.bytes.len() + remembered.bytes.len() / 16);
        let mut buffers = Vec::new();
        let mut constants = Vec::new();
        let mut places = Vec::with_capacity(leaves.len());
        let mut now = Remembered::default();
        for (leaf, dtype) in leaves.iter().zip(dtypes.iter()) {
            let offset = copied.len();
            let dtype = dtype.cast::<PyString>()?.to_str()?;
            if dtype == TREE {
                plain::encode(&leaf, &mut copied, remembered, &mut now)?;
                places.push(Bytes::Copied { offset, length: copied.len() - offset });
                continue;
            }
            if values::encode(&leaf, dtype, &mut copied)? {
                places.push(Bytes::Copied { offset, length: copied.len() - offset });
                continue;
            }
            let buffer = Buffer::read(&leaf)?;
            if buffer.length() < COPIED_BELOW_BYTES {
                buffer.copy_to(py, &mut copied);
                places.push(Bytes::Copied { offset, length: buffer.length() });
            } else if leaf.is_exact_instance_of::<PyMemoryView>() && buffer.is_readonly() {
                // The Python side makes memory views only of immutable arrays.
                places.push(Bytes::Constant(buffer.raw()));
                constants.push(buffer);
            } else {
                places.push(Bytes::Lent(buffer.raw()));
                buffers.push(buffer);
            }
        }
        let mut regions = Vec::with_capacity(places.len());
        let each = names.iter().zip(dtypes.iter()).zip(shapes.iter()).zip(places);
        for (at, (((name, dtype), shape), place)) in each.enumerate() {
            let name = name.cast::<PyString>()?;
            let text = name.to_str().or_else(|_| {
                let shown = name.repr()?;
                Err(invalid(
                    py,
                    format!("the key {shown} cannot be written as UTF-8: choose another"),
                ))
            })?;
            let shape = shape.cast::<PyTuple>()?;
            let shape = if shape.is_empty() { Vec::new() } else { shape.extract()? };
            let dtype = dtype.cast::<PyString>()?.to_str()?;
            let region = match place {
                Bytes::Copied { offset, length } => {
                    region(RawBytes::of(&copied[offset..][..length]), text, dtype, shape)
                }
                Bytes::Lent(bytes) => region(bytes, text, dtype, shape),
                Bytes::Constant(bytes) => constant(bytes, text, dtype, shape),
            };
            regions.push(match distributions.get_item(at)? {
                Some(said) => region.distributed(distribution(&said)?),
                None => region,
            });
        }
        *remembered = now;
        Ok(Leaves { regions, copied, _buffers: buffers, constants })
    }
}

#[allow(unsafe_code)]
fn region(bytes: RawBytes, name: &str, dtype: &str, shape: Vec<u64>) -> Region {
    // SAFETY: the bytes lie in a `Leaves`' vector, which is not touched again, or in one of its
    // buffers. `save` keeps the `Leaves` until the engine's `save` has returned, and after that the
    // engine reads none of the program's memory. `outlive.Job.save` requires of its caller that no
    // Python code writes the arrays meanwhile.
    unsafe { bytes.region(name, dtype, shape) }
}

#[allow(unsafe_code)]
fn constant(bytes: RawBytes, name: &str, dtype: &str, shape: Vec<u64>) -> Region {
    // SAFETY: the bytes lie in one of a `Leaves`' `constants`, which `save` hands to the job. The
    // job keeps them until the save is over. Their arrays cannot be written.
    unsafe { bytes.constant(name, dtype, shape) }
}

/// Saves leaves; see `Job.save`.
pub fn save(
    core: &Arc<Core>,
    [names, dtypes, shapes, leaves]: [&Bound<'_, PyList>; 4],
    distributions: &Bound<'_, PyDict>,
    attachment: Vec<u8>,
    notes: SaveNotes,
    tick: &Bound<'_, PyAny>,
) -> PyResult<Save> {
    let py = tick.py();
    core.check_process(py)?;
    let is_last = core.client.saves_to_stop();
    // All waits happen here, where Ctrl-C works.
    let inside = core.enter(tick)?;
    let begun = Cell::new(Instant::now());
    let take = || {
        let _keepalive = core.job().keepalive();
        core.settle_last(tick)?;
        core.settle_fill(tick)?;
        // The time of an earlier save does not count for this one.
        begun.set(Instant::now());
        core.keep_constants(Vec::new());
        // After a failure nothing is remembered.
        let mut remembered = std::mem::take(&mut *core.remembered());
        let taken = Leaves::take(names, dtypes, shapes, leaves, distributions, &mut remembered)?;
        Ok((taken, remembered))
    };
    let (mut leaves, mut remembered) = take().map_err(|raised: PyErr| core.declined(py, raised))?;
    let regions = std::mem::take(&mut leaves.regions);
    let mut source = core.client.source(regions, attachment);
    // Another job's lazy restore may still fill some of the memory.
    let keepalive = core.job().keepalive();
    let filled = wait::wait(&core.notices, tick, None, &mut |limit| {
        source.wait_filled(Some(limit)).map_or_else(|e| Some(Err(e)), |done| done.then_some(Ok(())))
    });
    let filled = filled.and_then(|filled| filled.transpose().or_raise(py));
    drop(keepalive);
    filled.map_err(|raised| core.declined(py, raised))?;
    let saved = py.detach(|| core.client.save_source(&mut source, notes));
    // Its regions point into the leaves, which are dropped below.
    drop(source);
    let constants = std::mem::take(&mut leaves.constants);
    if !remembered.containers.is_empty() {
        remembered.bytes = std::mem::take(&mut leaves.copied);
        *core.remembered() = remembered;
    }
    drop(leaves);
    drop(inside);
    let handle = saved.map_err(|error| core.raise(py, &error))?;
    core.keep_constants(constants);
    wait::tell(&core.notices, tick)?;
    Ok(Save { core: core.clone(), handle, held: begun.get().elapsed(), is_last })
}

/// A save that is under way or over; programs use `outlive.Save`.
#[pyclass(frozen, module = "outlive._core")]
pub struct Save {
    core: Arc<Core>,
    handle: SaveHandle,
    held: Duration,
    /// Whether a request to stop has asked for it.
    is_last: bool,
}

#[pymethods]
impl Save {
    /// Returns the epoch that the checkpoint has once it is committed.
    #[getter]
    fn epoch(&self) -> u64 {
        self.handle.epoch()
    }

    /// Time for which the call held the program up, counted from the end of any earlier save.
    #[getter]
    fn held_s(&self) -> f64 {
        self.held.as_secs_f64()
    }

    /// True once it is over, after a success or a failure.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        self.core.check_process(py)?;
        Ok(self.handle.done())
    }

    /// Waits until it is over, for a thread that has nothing else to do: handles no signals and
    /// reports nothing. The failure of the save stays unreported.
    fn wait_done(&self, py: Python<'_>) -> PyResult<()> {
        self.core.check_process(py)?;
        py.detach(|| self.handle.wait_done(None));
        Ok(())
    }

    /// True if a request to stop has asked for this save.
    fn is_last(&self) -> bool {
        self.is_last
    }

    /// Waits until it is over. Raises its failure if the program's policy demands that even while
    /// it waits.
    fn settle(&self, tick: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = tick.py();
        self.core.check_process(py)?;
        // Of a request to stop, other ranks may not know yet: they are in their next call already.
        let keepalive = self.is_last.then(|| self.core.job().keepalive());
        let step = &mut |limit| self.handle.wait_done(Some(limit)).then_some(());
        wait::wait(&self.core.notices, tick, None, step)?;
        drop(keepalive);
        if !self.core.job().is_saving() {
            self.core.keep_constants(Vec::new());
        }
        let told = wait::tell(&self.core.notices, tick);
        if self.is_last {
            self.core.client.saved_to_stop(&self.handle);
        }
        self.core.job().settle_save(&self.handle).or_raise(py).and(told)
    }

    /// Waits for the commit and returns the figures; `None` if that takes longer than `timeout_s`.
    fn wait<'py>(
        &self,
        timeout_s: Option<f64>,
        tick: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let py = tick.py();
        self.core.check_process(py)?;
        let timeout = wait::timeout(py, timeout_s)?;
        let step = &mut |limit| self.handle.wait(Some(limit));
        let Some(outcome) = wait::wait(&self.core.notices, tick, timeout, step)? else {
            return Ok(None);
        };
        // This must not wait: the thread that starts a save may need the GIL, or be this very
        // thread.
        if !self.core.job().is_saving() {
            self.core.keep_constants(Vec::new());
        }
        let told = wait::tell(&self.core.notices, tick);
        let figures = figures(py, &outcome.or_raise(py)?)?;
        told.map(|()| Some(figures))
    }
}

/// See `outlive.SaveInterval`.
fn interval<'py>(py: Python<'py>, choice: &Choice) -> PyResult<Bound<'py, PyDict>> {
    let bound = match choice.bound {
        SetBy::Given => "given",
        SetBy::Unmeasured => "unmeasured",
        SetBy::Optimum => "optimum",
        SetBy::Latency => "latency",
        SetBy::Budget => "budget",
        SetBy::Copies => "copies",
        SetBy::Trial => "trial",
    };
    Ok(named!(py;
        ..choice {
            every, seconds, is_overridden, saves, stall_s, slowdown_s, constant_s, growth, latency_s,
            restart_s, failures, exposure_s, mtbf_s, useful_share, slowdown_max,
            copy_s, slow_every,
        },
        bound: bound,
        is_prior: choice.is_prior(),
        reasons: choice.reasons(),
    ))
}

/// See `outlive.SaveStats`.
fn figures<'py>(py: Python<'py>, stats: &SaveStats) -> PyResult<Bound<'py, PyDict>> {
    let freeze = &stats.freeze;
    Ok(named!(py;
        ..stats {
            epoch, state_bytes, changed_bytes, evacuated_bytes, zero_bytes, known_bytes, new_bytes,
            raw_bytes, node_bytes, segment_bytes, packs,
        },
        ..freeze { freeze, tracker, copied_bytes, ahead_bytes, forked_bytes, live_bytes },
        stall_s: stats.stall.as_secs_f64(),
        total_s: stats.total.as_secs_f64(),
        interval: stats.interval.as_ref().map(|choice| interval(py, choice)).transpose()?,
    ))
}
