//! The gate of a job: what is listed, committed, and released.

use crate::confirmed::{Confirmations, Confirmed};
use crate::file::{self, FileMode, FileSink};
use crate::ledger::Ledger;
use crate::publish::{self, PublishSink};
use crate::sink::Sink;
use crate::state::{OpenSink, State, to_position};
use crate::thread::Releaser;
use outlive_format::{Output, Outputs};
use outlive_types::sync::plain::{Condvar, Mutex, MutexGuard};
use outlive_types::{Epoch, Error, JobName, Rank, Result};
use std::collections::HashSet;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Name of the sink of published files.
const PUBLISH: &str = "publish";

type Tell = dyn Fn(String) + Send + Sync;

/// The parts of a gate that its owner supplies.
pub struct GateOptions {
    /// The job.
    pub job: JobName,
    /// The rank in its group, if there is one.
    pub rank: Option<Rank>,
    /// Record of released outputs; `None` if there is no place for it.
    pub confirmations: Option<Box<dyn Confirmations>>,
    /// Reports a sentence to the user.
    pub tell: Box<Tell>,
}

/// State of one sink.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SinkReport {
    /// Its name.
    pub name: String,
    /// Number of outputs that are not released.
    pub outputs: usize,
    /// Reason why it waits or has stopped.
    pub trouble: Option<String>,
    /// Whether it has stopped: an output will never succeed.
    pub is_stopped: bool,
    /// Whether the program has opened it.
    pub is_open: bool,
}

/// State of a gate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GateReport {
    /// Number of outputs that are not released.
    pub outputs: usize,
    /// Number of these that no save covers yet.
    pub uncovered: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Sinks with outputs, or with trouble.
    pub sinks: Vec<SinkReport>,
}

/// Holds the outputs of one job's program. Clones are the same gate.
#[derive(Clone)]
pub struct Gate(pub(crate) Arc<Shared>);

pub(crate) struct Shared {
    pub options: GateOptions,
    pub state: Mutex<State>,
    /// Something may be released, or the state has changed otherwise.
    pub changed: Condvar,
    /// Held from the list of a save until its handle is known: lists and epochs have one order.
    pub saving: Mutex<()>,
    /// Held by the one pass that releases.
    pub passing: Mutex<()>,
}

/// A handle that does not keep its gate.
#[derive(Clone, Default)]
pub struct WeakGate(Weak<Shared>);

impl WeakGate {
    /// Returns the gate, unless it is gone.
    pub fn upgrade(&self) -> Option<Gate> {
        self.0.upgrade().map(Gate)
    }
}

impl Gate {
    /// Makes the gate of a job, which no program has opened yet.
    pub fn new(options: GateOptions) -> Gate {
        Gate(Arc::new(Shared {
            options,
            state: Mutex::default(),
            changed: Condvar::new(),
            saving: Mutex::new(()),
            passing: Mutex::new(()),
        }))
    }

    /// Returns a handle that does not keep the gate.
    pub fn downgrade(&self) -> WeakGate {
        WeakGate(Arc::downgrade(&self.0))
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
    }

    pub(crate) fn tell(&self, text: String) {
        (self.0.options.tell)(format!("job {}: {text}", self.0.options.job));
    }

    /// Returns whether a program has opened it.
    pub fn is_open(&self) -> bool {
        self.state().is_open
    }

    /// Opens the gate: from now on outputs are released. Once it holds more than `bytes_max`, the
    /// program is to save. `seed` makes the names of staged files unique.
    pub fn open(&self, bytes_max: u64, seed: u64) {
        let mut state = self.state();
        state.bytes_max = bytes_max;
        if state.is_open {
            return;
        }
        state.is_open = true;
        state.next_staged = seed;
        state.sinks.insert(PUBLISH.to_owned(), OpenSink::new(Arc::new(PublishSink)));
    }

    /// Starts the thread that releases, unless it runs.
    ///
    /// # Errors
    /// `Retry` if there can be no thread.
    pub fn start(&self) -> Result<()> {
        let mut state = self.state();
        if state.releaser.is_none() {
            let weak = Arc::downgrade(&self.0);
            state.releaser = Some(Releaser::start(move || {
                let shared = weak.upgrade()?;
                let gate = Gate(shared);
                gate.pass(Instant::now());
                Some(Box::new(move |limit| gate.wait_for_work(limit)))
            })?);
        }
        Ok(())
    }

    /// Continues from a restored checkpoint: its outputs replace all that this process had. `lists`
    /// are those of this rank's images.
    ///
    /// # Errors
    /// `Damaged` for a list that cannot be read.
    pub fn restored(&self, epoch: Epoch, lists: &[Vec<u8>]) -> Result<()> {
        let mut ledger = Ledger::default();
        for list in lists {
            ledger.add_list(epoch, Outputs::of_catalog(list)?);
        }
        let confirmed = self.load_confirmed();
        let released: Vec<u64> =
            ledger.outputs().filter(|it| confirmed.has(it)).map(|it| it.number).collect();
        released.into_iter().for_each(|number| drop(ledger.remove(number)));
        let mut state = self.state();
        // Outputs of this process that no longer count belong to a state that is gone.
        let kept: HashSet<&[u8]> = ledger.outputs().map(|it| &it.token[..]).collect();
        let gone: Vec<Output> =
            state.ledger.outputs().filter(|it| !kept.contains(&it.token[..])).cloned().collect();
        state.committed_below = ledger.next();
        (state.ledger, state.confirmed) = (ledger, confirmed);
        state.saves.clear();
        state.has_saved = false;
        let mut notices = state.recover_files();
        // No sink is called with the lock held: it may wait for a thread that gives outputs.
        let others = state.take_others();
        drop(state);
        for output in gone {
            if let Some((_, sink)) = others.iter().find(|(name, _)| *name == output.sink) {
                sink.abort(&output.token);
            }
        }
        for (name, sink) in others {
            if let Err(error) = self.open_sink(&name, sink.clone()) {
                notices.push(format!("the outputs to {name} stop: {error}"));
                self.state().sinks.insert(name, OpenSink::stopped(sink, error.to_string()));
            }
        }
        self.0.changed.notify_all();
        notices.into_iter().for_each(|notice| self.tell(notice));
        Ok(())
    }

    fn load_confirmed(&self) -> Confirmed {
        let Some(confirmations) = &self.0.options.confirmations else {
            return Confirmed::default();
        };
        let loaded = confirmations.load().and_then(|bytes| {
            bytes.map_or(Ok(Confirmed::default()), |bytes| Confirmed::decode(&bytes))
        });
        loaded.unwrap_or_else(|error| {
            self.tell(format!(
                "which outputs were released is not known ({error}), so some may be released again"
            ));
            Confirmed::default()
        })
    }

    /// Returns whether a restored checkpoint lists outputs that wait until this process is known to
    /// be the job's one writer.
    pub fn waits_for_session(&self) -> bool {
        let state = self.state();
        state.is_open && !state.is_writer && state.ledger.count_below(state.committed_below) > 0
    }

    /// Returns whether this process has given outputs, or saved.
    pub fn is_used(&self) -> bool {
        let state = self.state();
        state.ledger.next() > state.committed_below || state.has_saved
    }

    /// Notes that this process is the job's one writer, so that it may release what a restored
    /// checkpoint lists.
    pub fn may_release(&self) {
        self.state().is_writer = true;
        self.0.changed.notify_all();
    }

    /// Opens a sink under a name, or replaces the one that has it. The name must be the same in
    /// each run: outputs wait for it.
    ///
    /// # Errors
    /// `Invalid` for an impossible name, or before [`Gate::open`]; those of [`Sink::recover`].
    pub fn open_sink(&self, name: &str, sink: Arc<dyn Sink>) -> Result<()> {
        self.check_open()?;
        if name.is_empty() || name.len() > outlive_format::SINK_BYTES_MAX {
            return Err(Error::invalid(format!("a sink of the gate cannot be called {name:?}")));
        }
        let tokens: Vec<Vec<u8>> =
            self.state().ledger.of_sink(name).map(|output| output.token.clone()).collect();
        sink.recover(&tokens.iter().map(Vec::as_slice).collect::<Vec<_>>())?;
        self.state().sinks.insert(name.to_owned(), OpenSink::new(sink));
        self.0.changed.notify_all();
        Ok(())
    }

    fn check_open(&self) -> Result<()> {
        if self.is_open() { Ok(()) } else { Err(Error::invalid("the gate is closed")) }
    }

    /// Gives an output to a sink, and returns its number.
    ///
    /// # Errors
    /// `Invalid` if the gate is closed.
    pub fn give(&self, sink: &str, token: Vec<u8>) -> Result<u64> {
        self.check_open()?;
        Ok(self.state().ledger.give(sink, token))
    }

    /// Opens a file for outputs, and returns the name of its sink.
    ///
    /// # Errors
    /// As for [`FileMode`]'s files: `Invalid` for an odd name, no regular file, or one that another
    /// program has cut; errors of the file system.
    pub fn open_file(&self, path: &Path, mode: FileMode) -> Result<String> {
        self.check_open()?;
        let path = std::path::absolute(path)
            .map_err(|error| Error::io_named("looking at", path, &error))?;
        let Some(text) = path.to_str() else {
            return Err(Error::invalid(format!("{} cannot be written as UTF-8", path.display())));
        };
        let name = format!("file:{text}");
        let mut state = self.state();
        if state.sinks.contains_key(&name) {
            return Ok(name);
        }
        let notice = state.attach_file(&name, &path, mode)?;
        state.files.insert(name.clone(), (path.clone(), mode));
        state.sinks.insert(name.clone(), OpenSink::new(Arc::new(FileSink(path))));
        drop(state);
        self.0.changed.notify_all();
        notice.into_iter().for_each(|notice| self.tell(notice));
        Ok(name)
    }

    /// Appends bytes to a file that is open; see [`Gate::open_file`].
    ///
    /// # Errors
    /// `Invalid` if the gate is closed, or the file is not open.
    pub fn write_file(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.check_open()?;
        let mut state = self.state();
        let Some(position) = state.ledger.position(name).map(to_position).transpose()? else {
            return Err(Error::invalid(format!("the gate has not opened {name}")));
        };
        state.ledger.append(name, &file::head(position, false), bytes);
        let position = position + bytes.len() as u64;
        state.ledger.set_position(name, position.to_le_bytes().to_vec());
        Ok(())
    }

    /// Returns the length that a file will have once everything is released.
    ///
    /// # Errors
    /// As for [`Gate::write_file`].
    pub fn file_position(&self, name: &str) -> Result<u64> {
        let state = self.state();
        let position = state.ledger.position(name).map(to_position).transpose()?;
        position.ok_or_else(|| Error::invalid(format!("the gate has not opened {name}")))
    }

    /// Lets a finished file appear as `last` once the checkpoint is committed.
    ///
    /// # Errors
    /// `Invalid` if the gate is closed, or the file cannot be published; errors of the file system.
    pub fn publish(&self, temporary: &Path, last: &Path) -> Result<()> {
        self.check_open()?;
        let mut state = self.state();
        let id = state.next_staged;
        state.next_staged = id.wrapping_add(1);
        if state.is_writer && state.cleaned.insert(last.to_path_buf()) {
            let tokens: Vec<&[u8]> =
                state.ledger.of_sink(PUBLISH).map(|it| &it.token[..]).collect();
            publish::remove_leftovers(last, &tokens);
        }
        drop(state);
        let token = publish::stage(temporary, last, id)?;
        self.give(PUBLISH, token).map(drop)
    }
}
