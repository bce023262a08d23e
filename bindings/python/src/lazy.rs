//! Restoring lazily: memory follows while Python runs. Threads of the fill never need the GIL, as the
//! thread that waits for a page may hold it.

use crate::errors::{invalid, to_py};
use crate::leave::Leave;
use crate::named::named;
use crate::shared::Core;
use crate::wait;
use outlive_capture::lazy::{LazyMemory, Mode, end_program};
use outlive_io::AlignedBuf;
use outlive_store::{
    Checkpoint, LazyEnds, LazyFill, LazySink, Prepared, RestoreSink, Restored, Select,
};
use outlive_types::{Error, Event, Missing, Observer, Result};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What a lazy restore fills.
pub struct Sink {
    /// The memory; the buffers that it points into are kept by [`Core::keep`].
    pub memory: Arc<LazyMemory>,
    /// Whether what is not lazy may still be written.
    pub leave: Arc<Leave>,
    /// Name of each stream.
    pub names: Vec<String>,
    /// Every region was asked for.
    pub whole: bool,
}

impl RestoreSink for Sink {
    fn write(&self, stream: usize, offset: u64, bytes: &[u8]) {
        if self.memory.is_lazy(stream) {
            self.memory.write(stream, offset, bytes);
        } else {
            self.leave.with(|| self.memory.write(stream, offset, bytes));
        }
    }

    fn zero(&self, stream: usize, offset: u64, length: u64) {
        if self.memory.is_lazy(stream) {
            self.memory.zero(stream, offset, length);
        } else {
            self.leave.with(|| self.memory.zero(stream, offset, length));
        }
    }
}

impl LazySink for Sink {
    fn is_lazy(&self, stream: usize) -> bool {
        self.memory.is_lazy(stream)
    }

    fn edges(&self) -> Vec<(usize, Range<u64>)> {
        self.memory.edges()
    }

    fn write_edge(&self, stream: usize, offset: u64, bytes: &[u8]) {
        self.leave.with(|| self.memory.write_edge(stream, offset, bytes));
    }

    fn next_missing(&self) -> Option<Missing> {
        self.memory.next_missing()
    }

    fn deliver(&self, missing: &Missing, bytes: &[u8]) {
        self.memory.deliver(missing, bytes);
    }

    fn failure(&self) -> Option<Error> {
        self.memory.failure()
    }

    fn give_up(&self) {
        self.memory.give_up();
    }

    fn stop(&self) {
        self.memory.stop();
    }
}

/// What the reading thread brings back of a lazy restore.
pub struct Begun {
    /// What was restored before the program goes on.
    pub restored: Restored,
    /// Memory of our own, by stream.
    pub ours: HashMap<usize, AlignedBuf>,
    /// The rest.
    pub fill: Fill,
}

/// Begins a lazy restore, on the reading thread. `over` is set once no memory of the program will be
/// touched any more.
///
/// # Errors
/// Those of [`outlive_store::Job::restore_lazily`] and of `sink`.
pub fn begin(
    core: &Arc<Core>,
    select: Select,
    over: &Arc<AtomicBool>,
    sink: &mut dyn FnMut(&Checkpoint) -> Result<Prepared<Sink>>,
) -> Result<Option<Begun>> {
    let mut taken = None;
    let mut prepare = |checkpoint: &Checkpoint| {
        // The buffers of one that could not be restored go as soon as another is planned.
        taken = None;
        let (selected, sink) = sink(checkpoint)?;
        taken = Some((sink.memory.clone(), sink.names.clone()));
        Ok((selected, sink))
    };
    let (tracker, over_if_whole, over_if_not) = (core.tracker.clone(), over.clone(), over.clone());
    // Not the whole job, which would never be dropped by a thread that has no GIL.
    let (events, job) = (core.events.clone(), core.job.name().clone());
    let ends = LazyEnds {
        filled: Box::new(move |checkpoint: &Checkpoint, sink: &Sink| {
            if sink.whole {
                let names = sink.names.iter().enumerate();
                let hashes = names
                    .filter_map(|(at, name)| Some((name.clone(), sink.memory.take_hashes(at)?)));
                tracker.prime_hashes(checkpoint.epoch(), hashes.collect());
            }
            if let Some(report) = sink.memory.fresh_report() {
                events.event(Event::Info(format!("job {job}: {report}")));
            }
            // From then on the program may let go of its memory, while this restore is still known.
            sink.memory.end_advice();
            over_if_whole.store(true, Ordering::Release);
        }),
        failed: Box::new(move |error| {
            over_if_not.store(true, Ordering::Release);
            end_program(&format!(
                "{}. The memory of this program cannot be completed, so it ends here: start it again",
                error.message()
            ))
        }),
    };
    let begun = core.job.restore_lazily(select, &mut prepare, ends);
    let (Ok(Some((restored, fill))), Some((memory, names))) = (&begun, &taken) else {
        if let Some((memory, _)) = &taken {
            memory.end_advice();
        }
        over.store(true, Ordering::Release);
        return begun.map(|_| None);
    };
    let (memory, names) = (memory.clone(), names.clone());
    core.set_fill(fill.clone());
    let streams = (0..names.len()).filter_map(|at| Some((at, memory.copy_of(at)?)));
    let ours = streams.collect();
    let streams = names.into_iter().enumerate().map(|(at, name)| (name, at)).collect();
    let fill = Fill { core: core.clone(), fill: fill.clone(), memory, streams };
    Ok(Some(Begun { restored: restored.clone(), ours, fill }))
}

/// Memory that is being filled; `outlive.LazyRestored` is what programs use.
#[pyclass(frozen, module = "outlive._core")]
pub struct Fill {
    core: Arc<Core>,
    fill: LazyFill,
    memory: Arc<LazyMemory>,
    /// Stream of each large region by its name.
    streams: HashMap<String, usize>,
}

#[pymethods]
impl Fill {
    /// True once everything is there.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        self.core.check_process(py)?;
        Ok(self.fill.done())
    }

    /// Bytes brought by the background so far, and in all.
    fn progress(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        self.core.check_process(py)?;
        Ok(self.fill.progress())
    }

    /// "full" if system calls may touch what is missing, "user-only" if only the program's own
    /// instructions may, "eager" if nothing is filled lazily; and why something that is large enough
    /// is not, if so.
    fn how<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let how = self.memory.how();
        let mode = match how.mode {
            Some(Mode::Full) => "full",
            Some(Mode::UserOnly) => "user-only",
            None => "eager",
        };
        Ok(named!(py; ..how { lazy_bytes, eager_because }, mode: mode))
    }

    /// Waits until regions, or everything if there are none, are there; false if that takes longer
    /// than `timeout_s`.
    fn wait(
        &self,
        names: Option<Vec<String>>,
        timeout_s: Option<f64>,
        tick: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let py = tick.py();
        self.core.check_process(py)?;
        let timeout = match timeout_s {
            None => None,
            Some(s) if s.is_nan() => return Err(invalid(py, "a timeout must be a number".into())),
            Some(s) => Duration::try_from_secs_f64(s.max(0.0)).ok(),
        };
        let wanted: Option<Vec<usize>> = names
            .map(|names| names.iter().filter_map(|name| self.streams.get(name).copied()).collect());
        let mut step = |limit: Duration| match &wanted {
            None => self.fill.wait(Some(limit)).map(|outcome| outcome.map(drop)),
            Some(streams) => {
                let left =
                    streams.iter().find(|at| !self.memory.wait(Some(**at), Some(Duration::ZERO)));
                let Some(stream) = left else {
                    return Some(self.memory.failure().map_or(Ok(()), Err));
                };
                self.fill.prefer(*stream, 0..u64::MAX);
                self.memory.wait(Some(*stream), Some(limit));
                None
            }
        };
        let outcome = wait::wait(&self.core.events, tick, timeout, &mut step)?;
        wait::tell(&self.core.events, tick)?;
        match outcome {
            None => Ok(false),
            Some(outcome) => outcome.map(|()| true).map_err(|e| to_py(py, &e)),
        }
    }
}
