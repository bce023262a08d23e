//! Restores: a thread of the engine reads; the thread that Python called plans, waits and decodes.
//!
//! All Python code runs on the calling thread, which is also the one that Ctrl-C interrupts. The
//! reading thread knows only addresses, and gives them up when its permit is withdrawn.

use crate::buffer::{Buffer, RawBytes};
use crate::errors::{invalid, to_py};
use crate::group::{Call, distribution, distributions};
use crate::lazy;
use crate::named::named;
use crate::shared::Core;
use crate::values;
use crate::wait;
use outlive_capture::fill::MutRegion;
use outlive_client::{
    Destination, Filled, Lazily, LazyRestore, MemoryFill, Offer, WritePermit, interrupted,
};
use outlive_store::{Restored, Select};
use outlive_types::sync::plain::Mutex;
use outlive_types::{Epoch, Error, Part, RegionDesc, Result};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyList, PyString, PyTuple};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::Instant;

/// A message of the reading thread.
enum Message {
    /// Asks for the destinations of a checkpoint's regions.
    Plan(Box<Question>),
    /// Asks the calling thread to call the ranks of the group.
    Call(Call),
    /// Reports the result.
    Reply(Box<Result<Option<Reply>>>),
}

struct Question {
    offer: Offer,
    reply: SyncSender<Result<Vec<Destination>>>,
}

struct Reply {
    filled: Filled,
    /// The lazy part, which follows while the program runs.
    rest: Option<MemoryFill>,
}

/// The regions of the checkpoint that is being restored, and their destinations.
struct Destinations {
    regions: Vec<RegionDesc>,
    targets: Vec<LeafDestination>,
}

/// Destination of a region.
enum LeafDestination {
    Nowhere,
    Value,
    Array(Buffer),
    /// A part of a global array.
    Part(Part, Buffer),
}

impl Destinations {
    /// Returns the buffers of the program's memory.
    fn buffers(self) -> Vec<Buffer> {
        let buffer = |target| match target {
            LeafDestination::Array(buffer) | LeafDestination::Part(_, buffer) => Some(buffer),
            LeafDestination::Nowhere | LeafDestination::Value => None,
        };
        self.targets.into_iter().filter_map(buffer).collect()
    }

    fn destinations(&self) -> Vec<Destination> {
        let destination = |target: &LeafDestination| match target {
            LeafDestination::Nowhere => Destination::Nothing,
            LeafDestination::Value => Destination::Copy,
            LeafDestination::Array(buffer) => Destination::Into(to_fill(buffer.raw())),
            LeafDestination::Part(part, buffer) => {
                Destination::Part(part.clone(), to_fill(buffer.raw()))
            }
        };
        self.targets.iter().map(destination).collect()
    }
}

/// Restores; see `Job.restore`.
pub fn restore<'py>(
    core: &Arc<Core>,
    epoch: Option<Epoch>,
    plan: &Bound<'py, PyAny>,
    user_only: Option<bool>,
    tick: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyDict>>> {
    let py = tick.py();
    core.check_process(py)?;
    let inside = core.enter(tick)?;
    let settle = || {
        let _keepalive = core.job().keepalive();
        core.settle_last(tick)?;
        // Memory that a tracker watches cannot be filled lazily, and the restore makes its baseline
        // invalid.
        core.client.detach();
        core.settle_fill(tick)
    };
    settle().map_err(|raised| core.declined(py, raised))?;
    let started = Instant::now();
    let (sender, receiver) = channel();
    let permit = Arc::new(WritePermit::default());
    let lazily = user_only.map(|user_only| Lazily { user_only, ..Lazily::default() });
    let (core_too, leave_too) = (core.clone(), permit.clone());
    if let Some(coordinator) = &core.coordinator {
        let sender = sender.clone();
        coordinator.set_relay(Some(Box::new(move |call| sender.send(Message::Call(call)).is_ok())));
    }
    let reader =
        Reader { core: core_too, epoch, sender, permit: leave_too, lazily: lazily.clone() };
    let reading =
        std::thread::Builder::new().name("outlive-restore".to_owned()).spawn(move || reader.run());
    let reading = match reading {
        Ok(reading) => reading,
        Err(error) => {
            if let Some(coordinator) = &core.coordinator {
                coordinator.set_relay(None);
            }
            return Err(core.declined(py, to_py(py, &Error::no_thread("the restore", &error))));
        }
    };

    let mut chosen = None;
    // Only this thread receives; the lock is for the compiler.
    let outcome = serve(core, &Mutex::new(receiver), plan, tick, &mut chosen);
    // Also after a success, since the buffers go away now.
    py.detach(|| permit.withdraw());
    if let Some(coordinator) = &core.coordinator {
        // After an interruption the thread may still read. It must never call the communicator
        // itself.
        coordinator.set_relay(Some(Box::new(|_| false)));
        py.detach(|| drop(reading.join()));
        coordinator.set_relay(None);
    }
    let result = outcome.and_then(|done| conclude(core, py, done, chosen.as_ref(), started));
    if let (Some(lazily), Some(chosen)) = (lazily, chosen) {
        // Also after an interruption: the fill may be under way.
        core.keep(chosen.buffers(), lazily.over);
    }
    drop(inside);
    result
}

/// Makes the result for Python.
fn conclude<'py>(
    core: &Arc<Core>,
    py: Python<'py>,
    done: Option<Reply>,
    chosen: Option<&Destinations>,
    started: Instant,
) -> PyResult<Option<Bound<'py, PyDict>>> {
    match (done, chosen) {
        (None, _) => Ok(None),
        (Some(Reply { filled, rest }), Some(chosen)) => {
            let values = hand_out(py, chosen, &filled)?;
            let Restored { epoch, stats, skipped, .. } = &filled.restored;
            // If a checkpoint cannot be read at all, even its number is not certain.
            let skipped =
                skipped.iter().map(|(epoch, e)| ((*epoch > 0).then_some(epoch), e.message()));
            let result = named!(py;
                ..stats { read_bytes },
                epoch: epoch,
                seconds: started.elapsed().as_secs_f64(),
                restored_bytes: stats.total_bytes,
                skipped: PyTuple::new(py, skipped.collect::<Vec<_>>())?,
                values: values,
            );
            if let Some(rest) = rest {
                result.set_item("fill", Bound::new(py, lazy::FillHandle::new(core, rest))?)?;
            }
            Ok(Some(result))
        }
        (Some(_), None) => Err(to_py(py, &Error::bug("a checkpoint was restored without a plan"))),
    }
}

/// Answers the reading thread's questions until it is done.
fn serve(
    core: &Core,
    receiver: &Mutex<Receiver<Message>>,
    plan: &Bound<'_, PyAny>,
    tick: &Bound<'_, PyAny>,
    chosen: &mut Option<Destinations>,
) -> PyResult<Option<Reply>> {
    let py = tick.py();
    // The exception of the plan. The reading thread must still report it to other ranks.
    let mut raised = None;
    loop {
        let message = wait::wait(&core.notices, tick, None, &mut |limit| {
            let receiver = receiver.lock();
            match receiver.recv_timeout(limit) {
                Ok(message) => Some(message),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => {
                    let panicked = Error::bug("the restore panicked; please report this");
                    Some(Message::Reply(Box::new(Err(panicked))))
                }
            }
        })?;
        let goes_on = match &message {
            Some(Message::Plan(_)) => true,
            Some(Message::Reply(outcome)) => outcome.is_ok(),
            _ => false,
        };
        if goes_on {
            wait::tell(&core.notices, tick)?;
        }
        match message {
            Some(Message::Plan(question)) => {
                let Question { offer, reply } = *question;
                *chosen = None;
                let answer = match ask(plan, &offer) {
                    Ok(targets) => {
                        let regions = offer.regions;
                        Ok(chosen.insert(Destinations { regions, targets }).destinations())
                    }
                    Err(error) => {
                        let told = Error::invalid(error.value(py).to_string());
                        raised = Some(error);
                        Err(told)
                    }
                };
                let _ = reply.send(answer);
            }
            Some(Message::Call(call)) => {
                if let Some(coordinator) = &core.coordinator {
                    // Without the GIL, since it may wait for other ranks.
                    py.detach(|| coordinator.make(call));
                }
            }
            Some(Message::Reply(outcome)) => {
                return outcome.map_err(|e| raised.unwrap_or_else(|| core.raise(py, &e)));
            }
            None => {}
        }
    }
}

/// Asks Python for the destinations of a checkpoint's regions.
fn ask(plan: &Bound<'_, PyAny>, offer: &Offer) -> PyResult<Vec<LeafDestination>> {
    let py = plan.py();
    let Offer { epoch, ranks, regions, attachment } = offer;
    let names = PyList::new(py, regions.iter().map(|region| region.name.as_str()))?;
    // Most regions have one of a few dtypes, and most of those without a shape the same.
    let mut known = HashMap::new();
    let dtypes = PyList::empty(py);
    let none = PyTuple::empty(py);
    let shapes = PyList::empty(py);
    for region in regions {
        let dtype = region.dtype.as_str();
        dtypes.append(&*known.entry(dtype).or_insert_with(|| PyString::new(py, dtype)))?;
        match &region.shape[..] {
            [] => shapes.append(&none)?,
            shape => shapes.append(PyTuple::new(py, shape)?)?,
        }
    }
    let lengths = PyList::new(py, regions.iter().map(|region| region.bytes))?;
    let attachment = PyBytes::new(py, attachment);
    let of_checkpoint = named!(py;
        epoch: epoch,
        names: names,
        dtypes: dtypes,
        shapes: shapes,
        lengths: lengths,
        distributions: distributions(py, regions)?,
        ranks: ranks,
        attachment: attachment,
    );
    let answer = plan.call((), Some(&of_checkpoint))?;
    let answer = answer.cast::<PyList>()?;
    if answer.len() != regions.len() {
        return Err(to_py(py, &Error::bug("the plan has another number of regions")));
    }
    let mut targets = Vec::with_capacity(regions.len());
    for (destination, region) in answer.iter().zip(regions) {
        targets.push(if destination.is_none() {
            LeafDestination::Nowhere
        } else if destination.is_exact_instance_of::<PyBool>() {
            LeafDestination::Value
        } else if let Ok(part) = destination.cast::<PyTuple>() {
            let (memory, said, shape) = part.extract::<(Bound<'_, PyAny>, _, Vec<u64>)>()?;
            let part = distribution(&said)?
                .part(&shape)
                .ok_or_else(|| to_py(py, &Error::bug("the plan names no part")))?;
            LeafDestination::Part(part, Buffer::write(&memory)?)
        } else {
            let buffer = Buffer::write(&destination)?;
            if buffer.length() as u64 != region.bytes {
                return Err(invalid(
                    py,
                    format!(
                        "region {:?} has {} bytes in the checkpoint, the array for it {}",
                        region.name,
                        region.bytes,
                        buffer.length()
                    ),
                ));
            }
            LeafDestination::Array(buffer)
        });
    }
    Ok(targets)
}

/// Decodes the values; `None` for regions with another destination.
fn hand_out<'py>(
    py: Python<'py>,
    chosen: &Destinations,
    filled: &Filled,
) -> PyResult<Bound<'py, PyList>> {
    let out = PyList::empty(py);
    let none = py.None();
    for (region, target) in chosen.regions.iter().zip(&chosen.targets) {
        if !matches!(target, LeafDestination::Value) {
            out.append(&none)?;
            continue;
        }
        let Some(bytes) = filled.bytes(region) else {
            return Err(to_py(py, &Error::bug("a region was asked for and not read")));
        };
        out.append(values::decode(py, &region.name, &region.dtype, bytes)?)?;
    }
    Ok(out)
}

/// The thread that reads.
struct Reader {
    core: Arc<Core>,
    epoch: Option<Epoch>,
    sender: Sender<Message>,
    permit: Arc<WritePermit>,
    lazily: Option<Lazily>,
}

impl Reader {
    fn run(self) {
        let select = self.epoch.map_or(Select::Newest, Select::Epoch);
        let (client, permit) = (&self.core.client, &self.permit);
        let mut ask = |offer: Offer| self.ask(offer);
        let outcome = match &self.lazily {
            None => client
                .restore(select, permit, &mut ask)
                .map(|filled| filled.map(|filled| Reply { filled, rest: None })),
            Some(lazily) => client.restore_lazily(select, permit, lazily, &mut ask).map(|begun| {
                begun.map(|LazyRestore { filled, rest }| Reply { filled, rest: Some(rest) })
            }),
        };
        // If the wait was interrupted, the receiver is gone.
        let _ = self.sender.send(Message::Reply(Box::new(outcome)));
    }

    /// Asks the calling thread for the destinations.
    fn ask(&self, offer: Offer) -> Result<Vec<Destination>> {
        let (reply, answer) = sync_channel(1);
        let question = Question { offer, reply };
        self.sender.send(Message::Plan(Box::new(question))).map_err(|_| interrupted())?;
        answer.recv().map_err(|_| interrupted())?
    }
}

#[allow(unsafe_code)]
fn to_fill(bytes: RawBytes) -> MutRegion {
    // SAFETY: the address is of a writable buffer that the calling thread keeps until it has
    // withdrawn the permit. A client fills memory only with that permit, and advice about the
    // memory ends as it is withdrawn, so that the region may be dropped afterwards. The job keeps
    // memory that is filled lazily until the fill is over (`Core::keep`). A client fills regions
    // that overlap one after the other. `outlive.Job.restore` requires of its caller that no Python
    // thread uses the array meanwhile.
    unsafe { bytes.to_fill() }
}
