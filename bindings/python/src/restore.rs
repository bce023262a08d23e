//! Restoring: a thread of the engine reads, the thread that Python called plans, waits and decodes.
//!
//! All Python code runs on the calling thread, which is also the one that Ctrl-C interrupts; the
//! reading thread knows only addresses, and gives them up when it is told to.

use crate::buffer::{Buffer, RawBytes};
use crate::errors::{invalid, to_py};
use crate::lazy;
use crate::leave::{Leave, interrupted};
use crate::named::named;
use crate::shared::Core;
use crate::values;
use crate::wait;
use outlive_capture::fill::{MutRegion, Scatter};
use outlive_capture::lazy::{LazyMemory, LazyOptions};
use outlive_io::AlignedBuf;
use outlive_store::{Checkpoint, RestoreSink, Restored, Select};
use outlive_types::{
    Epoch, Error, Event, Observer, PACKED_STREAM, RegionDesc, RegionPlace, Result,
};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyList, PyString, PyTuple};
use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// What the reading thread sends.
enum Message {
    /// Here is a checkpoint: what of it is wanted, and where?
    Plan(Box<Question>),
    /// It is over.
    Done(Result<Option<Done>>),
}

struct Question {
    epoch: Epoch,
    regions: Vec<RegionDesc>,
    attachment: Vec<u8>,
    /// Stream of each region by its name; the packed stream's name is empty.
    streams: HashMap<String, usize>,
    reply: SyncSender<Result<Answer>>,
}

/// For each stream what to do with it.
struct Answer {
    fills: Vec<Fill>,
    /// Every region was asked for.
    whole: bool,
}

#[derive(Clone, Copy)]
enum Fill {
    /// Leave it out.
    Not,
    /// Into memory of ours.
    Ours,
    /// Into the program's memory.
    Theirs(RawBytes),
}

struct Done {
    restored: Restored,
    /// By stream, as far as they went into memory of ours.
    ours: HashMap<usize, AlignedBuf>,
    /// What follows while the program runs.
    fill: Option<lazy::Fill>,
}

/// How memory is to be filled lazily.
#[derive(Clone)]
struct Lazily {
    user_only: bool,
    /// Set once no memory of the program will be touched any more.
    over: Arc<AtomicBool>,
}

struct Sink {
    scatter: Scatter,
    leave: Arc<Leave>,
    /// By stream.
    names: Vec<String>,
    whole: bool,
}

impl RestoreSink for Sink {
    fn write(&self, stream: usize, offset: u64, bytes: &[u8]) {
        self.leave.with(|| self.scatter.write(stream, offset, bytes));
    }

    fn zero(&self, stream: usize, offset: u64, length: u64) {
        self.leave.with(|| self.scatter.zero(stream, offset, length));
    }
}

/// The regions of the checkpoint that is being restored, and where they go.
struct Taken {
    regions: Vec<RegionDesc>,
    streams: HashMap<String, usize>,
    wishes: Vec<Wish>,
}

enum Wish {
    Not,
    Value,
    Fill(Buffer),
}

impl Taken {
    /// The program's memory.
    fn buffers(self) -> Vec<Buffer> {
        let buffer = |wish| if let Wish::Fill(buffer) = wish { Some(buffer) } else { None };
        self.wishes.into_iter().filter_map(buffer).collect()
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
    core.settle_last(tick)?;
    // Memory that a tracker watches cannot be filled lazily, and what it knows will be void.
    core.tracker.let_go();
    core.settle_fill(tick)?;
    let started = Instant::now();
    let (sender, receiver) = channel();
    let leave = Arc::new(Leave::default());
    let lazily = user_only.map(|user_only| Lazily { user_only, over: Arc::default() });
    let (core_too, leave_too) = (core.clone(), leave.clone());
    let reader = Reader { core: core_too, epoch, sender, leave: leave_too, lazily: lazily.clone() };
    std::thread::Builder::new()
        .name("outlive-restore".to_owned())
        .spawn(move || reader.run())
        .map_err(|e| to_py(py, &Error::no_thread("the restore", &e)))?;

    let mut taken = None;
    // Only this thread receives; the lock is for the compiler.
    let outcome = serve(core, &Mutex::new(receiver), plan, tick, &mut taken);
    // Also when all went well: the buffers go away now.
    py.detach(|| leave.withdraw());
    let result = outcome.and_then(|done| conclude(py, done, taken.as_ref(), started));
    if let (Some(lazily), Some(taken)) = (lazily, taken) {
        // Also after an interruption: the fill may be under way.
        core.keep(taken.buffers(), lazily.over);
    }
    drop(inside);
    result
}

/// What Python gets.
fn conclude<'py>(
    py: Python<'py>,
    done: Option<Done>,
    taken: Option<&Taken>,
    started: Instant,
) -> PyResult<Option<Bound<'py, PyDict>>> {
    match (done, taken) {
        (None, _) => Ok(None),
        (Some(done), Some(taken)) => {
            let values = hand_out(py, taken, &done)?;
            let Restored { epoch, stats, skipped, .. } = &done.restored;
            // Not even the number of a checkpoint is sure if nothing of it can be read.
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
            if let Some(fill) = done.fill {
                result.set_item("fill", Bound::new(py, fill)?)?;
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
    taken: &mut Option<Taken>,
) -> PyResult<Option<Done>> {
    let py = tick.py();
    loop {
        let message = wait::wait(&core.events, tick, None, &mut |limit| {
            let receiver = receiver.lock().unwrap_or_else(PoisonError::into_inner);
            match receiver.recv_timeout(limit) {
                Ok(message) => Some(message),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => {
                    Some(Message::Done(Err(Error::bug("the restore panicked; please report this"))))
                }
            }
        })?;
        if matches!(message, Some(Message::Plan(_)) | Some(Message::Done(Ok(_)))) {
            wait::tell(&core.events, tick)?;
        }
        match message {
            Some(Message::Plan(question)) => {
                let Question { epoch, regions, attachment, streams, reply } = *question;
                // Dropping `reply` unused, on an error, ends the reading thread.
                *taken = None;
                let wishes = ask(plan, epoch, &regions, &attachment)?;
                let answer = answer(&regions, &streams, &wishes);
                *taken = Some(Taken { regions, streams, wishes });
                let _ = reply.send(Ok(answer));
            }
            Some(Message::Done(outcome)) => return outcome.map_err(|e| to_py(py, &e)),
            None => {}
        }
    }
}

/// Asks Python what it wants of a checkpoint.
fn ask(
    plan: &Bound<'_, PyAny>,
    epoch: Epoch,
    regions: &[RegionDesc],
    attachment: &[u8],
) -> PyResult<Vec<Wish>> {
    let py = plan.py();
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
        attachment: attachment,
    );
    let answer = plan.call((), Some(&of_checkpoint))?;
    let answer = answer.cast::<PyList>()?;
    if answer.len() != regions.len() {
        return Err(to_py(py, &Error::bug("the plan has another number of regions")));
    }
    let mut wishes = Vec::with_capacity(regions.len());
    for (wish, region) in answer.iter().zip(regions) {
        wishes.push(if wish.is_none() {
            Wish::Not
        } else if wish.is_exact_instance_of::<PyBool>() {
            Wish::Value
        } else {
            let buffer = Buffer::write(&wish)?;
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
            Wish::Fill(buffer)
        });
    }
    Ok(wishes)
}

/// The wishes by stream.
fn answer(regions: &[RegionDesc], streams: &HashMap<String, usize>, wishes: &[Wish]) -> Answer {
    let mut fills = vec![Fill::Not; streams.len()];
    let mut lent: Vec<(RawBytes, usize)> = Vec::new();
    for (region, wish) in regions.iter().zip(wishes) {
        let Some(stream) = stream_of(region, streams) else { continue };
        match (wish, region.place) {
            (Wish::Not, _) => {}
            (Wish::Fill(buffer), RegionPlace::Own) => {
                fills[stream] = Fill::Theirs(buffer.raw());
                lent.push((buffer.raw(), stream));
            }
            _ => fills[stream] = Fill::Ours,
        }
    }
    // Arrays that share memory are filled one after the other at the end, as a program would.
    lent.sort_by_key(|(bytes, _)| bytes.address());
    let mut end = 0;
    let mut last = None;
    for (bytes, stream) in lent {
        if bytes.address() < end {
            fills[stream] = Fill::Ours;
            if let Some(last) = last {
                fills[last] = Fill::Ours;
            }
        }
        let this_end = bytes.address() + bytes.length();
        if this_end > end {
            (end, last) = (this_end, Some(stream));
        }
    }
    let whole = wishes.iter().all(|wish| !matches!(wish, Wish::Not));
    Answer { fills, whole }
}

/// The stream that holds a region's bytes; none if all packed regions together have no byte.
fn stream_of(region: &RegionDesc, streams: &HashMap<String, usize>) -> Option<usize> {
    let name = match region.place {
        RegionPlace::Packed { .. } => PACKED_STREAM,
        RegionPlace::Own => &region.name,
    };
    streams.get(name).copied()
}

/// Copies what did not go straight to its place, and decodes the values.
fn hand_out<'py>(py: Python<'py>, taken: &Taken, done: &Done) -> PyResult<Bound<'py, PyList>> {
    let out = PyList::empty(py);
    let none = py.None();
    for (region, wish) in taken.regions.iter().zip(&taken.wishes) {
        let ours = stream_of(region, &taken.streams).and_then(|stream| done.ours.get(&stream));
        let bytes = match (ours, region.place) {
            _ if region.bytes == 0 => Some(&[][..]),
            (None, _) => None,
            (Some(ours), RegionPlace::Own) => Some(&ours[..]),
            (Some(ours), RegionPlace::Packed { offset }) => usize::try_from(offset)
                .ok()
                .zip(usize::try_from(region.bytes).ok())
                .and_then(|(offset, length)| ours.get(offset..)?.get(..length)),
        };
        match (wish, bytes) {
            (Wish::Value, Some(bytes)) => {
                out.append(values::decode(py, &region.name, &region.dtype, bytes)?)?;
                continue;
            }
            (Wish::Fill(buffer), Some(bytes)) => buffer.copy_from(py, bytes),
            // Left out, or filled by the engine.
            (Wish::Not, _) => {}
            (Wish::Fill(_), None) if region.place == RegionPlace::Own => {}
            (_, None) => {
                return Err(to_py(py, &Error::bug("a region was asked for and not read")));
            }
        }
        out.append(&none)?;
    }
    Ok(out)
}

/// The thread that reads.
struct Reader {
    core: Arc<Core>,
    epoch: Option<Epoch>,
    sender: Sender<Message>,
    leave: Arc<Leave>,
    lazily: Option<Lazily>,
}

impl Reader {
    fn run(self) {
        let outcome = match &self.lazily {
            None => self.read(),
            Some(lazily) => self.read_lazily(lazily),
        };
        // Nobody listens any more if the wait was interrupted.
        let _ = self.sender.send(Message::Done(outcome));
    }

    /// Asks the calling thread what goes where.
    fn ask(&self, checkpoint: &Checkpoint) -> Result<Answer> {
        let (reply, answer) = sync_channel(1);
        let streams = checkpoint.streams().iter().enumerate();
        let question = Question {
            epoch: checkpoint.epoch(),
            regions: checkpoint.regions().to_vec(),
            attachment: checkpoint.attachment().to_vec(),
            streams: streams.map(|(at, stream)| (stream.name.clone(), at)).collect(),
            reply,
        };
        self.sender.send(Message::Plan(Box::new(question))).map_err(|_| interrupted())?;
        answer.recv().map_err(|_| interrupted())?
    }

    fn select(&self) -> Select {
        self.epoch.map_or(Select::Newest, Select::Epoch)
    }

    fn read_lazily(&self, lazily: &Lazily) -> Result<Option<Done>> {
        let mut sink = |checkpoint: &Checkpoint| {
            let Answer { fills, whole } = self.ask(checkpoint)?;
            let eager =
                |(at, fill): (usize, &Fill)| (!matches!(fill, Fill::Theirs(_))).then_some(at);
            let options = LazyOptions {
                user_only: lazily.user_only,
                eager_streams: fills.iter().enumerate().filter_map(eager).collect(),
                ..LazyOptions::default()
            };
            let names = checkpoint.streams().iter().map(|stream| stream.name.clone()).collect();
            let (selected, memory) = places(checkpoint, fills)?;
            let memory = Arc::new(LazyMemory::new(memory, options)?);
            Ok((selected, lazy::Sink { memory, leave: self.leave.clone(), names, whole }))
        };
        let begun = lazy::begin(&self.core, self.select(), &lazily.over, &mut sink)?;
        Ok(begun.map(|lazy::Begun { restored, ours, fill }| Done {
            restored,
            ours,
            fill: Some(fill),
        }))
    }

    fn read(&self) -> Result<Option<Done>> {
        let mut prepare = |checkpoint: &Checkpoint| {
            let answer = self.ask(checkpoint)?;
            self.sink(checkpoint, answer)
        };
        let mut sink = None;
        let mut done = |_: &Checkpoint, filled: Sink| {
            self.leave.with(|| ()).ok_or_else(interrupted)?;
            sink = Some(filled);
            Ok(())
        };
        let restored = self.core.job.restore(self.select(), &mut prepare, &mut done)?;
        let (Some(restored), Some(sink)) = (restored, sink) else { return Ok(None) };
        let Sink { scatter, names, whole, .. } = sink;
        tell_memory(&self.core, scatter.fresh_report());
        if whole {
            // So the next save is incremental.
            let names = names.into_iter().enumerate();
            let hashes = names.filter_map(|(at, name)| Some((name, scatter.take_hashes(at)?)));
            self.leave
                .with(|| self.core.tracker.prime_hashes(restored.epoch, hashes.collect()))
                .ok_or_else(interrupted)?;
        }
        let filled = scatter.into_streams().into_iter().enumerate();
        let ours: HashMap<usize, AlignedBuf> =
            filled.filter_map(|(at, memory)| Some((at, memory.into_bytes()?))).collect();
        Ok(Some(Done { restored, ours, fill: None }))
    }

    fn sink(&self, checkpoint: &Checkpoint, answer: Answer) -> Result<(Vec<usize>, Sink)> {
        let Answer { fills, whole } = answer;
        let mut selected = Vec::new();
        let scatter = self.leave.scatter(|| {
            let memory;
            (selected, memory) = places(checkpoint, fills)?;
            if whole { Scatter::learning(memory) } else { Scatter::new(memory) }
        })?;
        let names = checkpoint.streams().iter().map(|stream| stream.name.clone()).collect();
        Ok((selected, Sink { scatter, leave: self.leave.clone(), names, whole }))
    }
}

/// Tells which pages fresh memory was made of.
fn tell_memory(core: &Core, report: Option<String>) {
    if let Some(report) = report {
        core.events.event(Event::Info(format!("job {}: {report}", core.job.name())));
    }
}

/// Which streams are read, and for each the memory for it.
fn places(checkpoint: &Checkpoint, fills: Vec<Fill>) -> Result<(Vec<usize>, Vec<MutRegion>)> {
    let mut memory = Vec::with_capacity(fills.len());
    let mut selected = Vec::new();
    for (at, (fill, stream)) in fills.into_iter().zip(checkpoint.streams()).enumerate() {
        let region = match fill {
            Fill::Not => MutRegion::zeroed(0),
            Fill::Ours => {
                let bytes = stream.tree.bytes;
                let length = usize::try_from(bytes).ok().filter(|l| isize::try_from(*l).is_ok());
                let length = length.ok_or_else(|| {
                    Error::full(format!("cannot allocate {bytes} bytes of memory"))
                })?;
                MutRegion::zeroed(length)
            }
            Fill::Theirs(bytes) => to_fill(bytes),
        };
        if !matches!(fill, Fill::Not) {
            selected.push(at);
        }
        memory.push(region);
    }
    Ok((selected, memory))
}

#[allow(unsafe_code)]
fn to_fill(bytes: RawBytes) -> MutRegion {
    // SAFETY: the address is of a writable buffer that the calling thread keeps until it has
    // withdrawn the leave: `Sink` writes only with that leave, and what was advised about the memory
    // ends as it is withdrawn, so that the region may be dropped after. A `LazyMemory`'s buffers are
    // kept with the job until its fill is over (`Core::keep`), before which the advice ends
    // (`lazy::begin`). No other region of the plan
    // overlaps it (`answer`), and that no Python thread uses the array meanwhile is what
    // `outlive.Job.restore` asks of its caller.
    unsafe { bytes.to_fill() }
}
