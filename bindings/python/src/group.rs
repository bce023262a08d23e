//! A group of ranks whose communicator is an object of the program.

use crate::errors::{OrRaise, invalid};
use outlive_pool::Pool;
use outlive_store::group::{GroupOptions, PoolRanks, Schedule};
use outlive_types::sync::plain::Mutex;
use outlive_types::{Coordinator, Distribution, Error, Rank, RegionDesc, Result};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

/// A collective call that the program's own thread must make.
pub struct Call {
    gathers: bool,
    bytes: Vec<u8>,
    reply: SyncSender<Result<Vec<Vec<u8>>>>,
}

/// Passes calls to the thread that makes them.
type Relay = Box<dyn Fn(Call) -> bool + Send>;

/// The connection of the ranks.
enum Means {
    /// An object that `outlive._group` has made from the program's communicator.
    Object(Py<PyAny>),
    /// The log of the pool.
    Pool(Box<PoolRanks>),
}

/// Calls the communicator, only on the thread that has called outlive, where Ctrl-C works. A thread
/// that reads for it relays its calls there.
pub struct PyCoordinator {
    means: Means,
    rank: Rank,
    size: u32,
    relay: Mutex<Option<Relay>>,
    /// An exception of the object that is not its failure, such as KeyboardInterrupt.
    raised: Mutex<Option<PyErr>>,
}

impl PyCoordinator {
    /// Makes one of an object with `rank`, `size` and `gather` and `broadcast`, or with `run`
    /// instead of these two.
    pub fn new(
        object: &Bound<'_, PyAny>,
        pool: &Pool,
        job: &str,
        patience: Duration,
    ) -> PyResult<PyCoordinator> {
        let (rank, size) = (object.getattr("rank")?.extract()?, object.getattr("size")?.extract()?);
        if rank >= size {
            return Err(invalid(
                object.py(),
                format!("rank {rank} of a group of {size}: ranks are counted from 0"),
            ));
        }
        let means = match object.getattr_opt("run")? {
            Some(run) => {
                let ranks =
                    PoolRanks::new(pool, job, rank, size, &run.extract::<String>()?, patience);
                Means::Pool(Box::new(ranks.or_raise(object.py())?))
            }
            None => Means::Object(object.clone().unbind()),
        };
        let (relay, raised) = (Mutex::default(), Mutex::default());
        Ok(PyCoordinator { means, rank, size, relay, raised })
    }

    /// Sets the relay for calls from another thread; with `None`, calls come from the program's own
    /// thread.
    pub fn set_relay(&self, relay: Option<Relay>) {
        *self.relay.lock() = relay;
    }

    /// Takes the exception that ended the last calls and was no error of the communicator.
    pub fn take_raised(&self) -> Option<PyErr> {
        self.raised.lock().take()
    }

    /// Makes a relayed call.
    pub fn make(&self, call: Call) {
        let made = self.call(call.gathers, &call.bytes);
        // If the restore has panicked, the receiver is gone.
        let _ = call.reply.send(made);
    }

    fn exchange(&self, gathers: bool, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let answer = {
            let relay = self.relay.lock();
            relay.as_ref().map(|relay| {
                let (reply, answer) = sync_channel(1);
                relay(Call { gathers, bytes: bytes.to_vec(), reply });
                answer
            })
        };
        match answer {
            None => self.call(gathers, bytes),
            Some(answer) => answer.recv().unwrap_or_else(|_| {
                Err(Error::retry(
                    "this call was interrupted: the other ranks wait for it, so end the program",
                ))
            }),
        }
    }

    fn call(&self, gathers: bool, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        match &self.means {
            Means::Object(object) => self.call_object(object, gathers, bytes),
            Means::Pool(ranks) => {
                let go_on = || self.check_signals();
                match gathers {
                    true => ranks.gather_while(bytes, &go_on),
                    false => ranks.broadcast_while(bytes, &go_on).map(|bytes| vec![bytes]),
                }
            }
        }
    }

    fn raise(&self, error: PyErr) {
        *self.raised.lock() = Some(error);
    }

    /// Ends a wait for other ranks at Ctrl-C.
    fn check_signals(&self) -> Result<()> {
        Python::attach(|py| py.check_signals()).map_err(|error| {
            let told = format!("the wait for other ranks was interrupted: {error}");
            self.raise(error);
            Error::retry(told)
        })
    }

    fn call_object(&self, object: &Py<PyAny>, gathers: bool, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        Python::attach(|py| {
            let object = object.bind(py);
            let bytes = PyBytes::new(py, bytes);
            let called = || -> PyResult<Vec<Vec<u8>>> {
                match gathers {
                    true => object.call_method1("gather", (bytes,))?.extract(),
                    false => Ok(vec![object.call_method1("broadcast", (bytes,))?.extract()?]),
                }
            };
            called().map_err(|error| {
                let told = format!("the communicator of the group has failed: {error}");
                if !error.is_instance_of::<PyException>(py) {
                    self.raise(error);
                }
                Error::retry(told)
            })
        })
    }
}

impl Coordinator for PyCoordinator {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.exchange(true, bytes)
    }

    fn broadcast(&self, bytes: &[u8]) -> Result<Vec<u8>> {
        let mut all = self.exchange(false, bytes)?;
        all.pop().ok_or_else(|| Error::bug("a broadcast has brought nothing"))
    }

    fn check(&self) -> Result<()> {
        match &self.means {
            Means::Object(_) => Ok(()),
            Means::Pool(ranks) => ranks.check(),
        }
    }

    fn leave(&self, why: &Error) {
        if let Means::Pool(ranks) = &self.means {
            Coordinator::leave(&**ranks, why);
        }
    }

    fn keepalive(&self) -> Option<Box<dyn Any + Send>> {
        match &self.means {
            Means::Object(_) => None,
            Means::Pool(ranks) => ranks.keepalive(),
        }
    }
}

impl fmt::Debug for PyCoordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PyCoordinator")
            .field("rank", &self.rank)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

/// The group of a job, from `Pool.job`.
pub struct GroupArguments {
    /// The program's communicator.
    pub coordinator: Arc<PyCoordinator>,
    /// Options for the saves of the ranks.
    pub options: GroupOptions,
}

/// Reads the arguments of `Pool.job` for a group.
pub fn group_of(
    object: &Bound<'_, PyAny>,
    pool: &Pool,
    job: &str,
    patience_s: f64,
    schedule: &str,
) -> PyResult<GroupArguments> {
    let py = object.py();
    let patience = Duration::try_from_secs_f64(patience_s).ok();
    let patience = patience.filter(|time| *time >= Duration::from_secs(1)).ok_or_else(|| {
        invalid(py, format!("patience_s = {patience_s}: must be a number of seconds, from 1"))
    })?;
    let schedule = Schedule::from_name(schedule).or_raise(py)?;
    let coordinator = Arc::new(PyCoordinator::new(object, pool, job, patience)?);
    let options = GroupOptions { patience, schedule, ..GroupOptions::new(coordinator.clone()) };
    Ok(GroupArguments { coordinator, options })
}

/// Reads a leaf's distribution from `outlive._tree`: `None`, `True` (the same on all ranks), or
/// global shape and offset, with block and stride if it is block-cyclic.
pub fn distribution(said: &Bound<'_, PyAny>) -> PyResult<Distribution> {
    if said.is_none() {
        return Ok(Distribution::Local);
    }
    let Ok(part) = said.cast::<PyTuple>() else { return Ok(Distribution::Replicated) };
    if part.len() == 2 {
        let (global_shape, offset) = part.extract()?;
        return Ok(Distribution::Subarray { global_shape, offset });
    }
    let (global_shape, offset, block, stride) = part.extract()?;
    Ok(Distribution::BlockCyclic { global_shape, offset, block, stride })
}

/// Returns the distributions of regions in that form.
pub fn distributions<'py>(py: Python<'py>, all: &[RegionDesc]) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for region in all {
        match &region.distribution {
            Distribution::Local => list.append(py.None())?,
            Distribution::Replicated => list.append(true)?,
            Distribution::Subarray { global_shape, offset } => {
                list.append((PyTuple::new(py, global_shape)?, PyTuple::new(py, offset)?))?;
            }
            Distribution::BlockCyclic { global_shape, offset, block, stride } => {
                let lists =
                    [global_shape, offset, block, stride].map(|list| PyTuple::new(py, list));
                let [global_shape, offset, block, stride] = lists;
                list.append((global_shape?, offset?, block?, stride?))?;
            }
        }
    }
    Ok(list)
}
