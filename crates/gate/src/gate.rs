//! The gate of a job: what is listed, committed, and released.

use crate::confirmed::{Confirmations, Confirmed};
use crate::file::{self, FileMode, FileSink};
use crate::ledger::Ledger;
use crate::publish::{self, PublishSink};
use crate::sink::Sink;
use crate::state::{OpenSink, State, to_position};
use crate::thread::{Releaser, Wait};
use outlive_format::{Output, Outputs};
use outlive_types::sync::plain::{Condvar, Mutex, MutexGuard};
use outlive_types::{Epoch, Error, JobName, Rank, Result};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Name of the sink of published files.
const PUBLISH: &str = "publish";
/// Beginning of the names of the sinks of files.
pub(crate) const FILE: &str = "file:";

type Tell = dyn Fn(String) + Send + Sync;
type CheckWriter = dyn Fn() -> Result<()> + Send + Sync;

/// The parts of a gate that its owner supplies.
pub struct GateOptions {
    /// First bytes of the pool's name.
    pub pool: u32,
    /// The job.
    pub job: JobName,
    /// The rank in its group, if there is one.
    pub rank: Option<Rank>,
    /// Record of released outputs; `None` if there is no place for it.
    pub confirmations: Option<Box<dyn Confirmations>>,
    /// Reports a sentence to the user.
    pub tell: Box<Tell>,
    /// Checks that this process is still the job's one writer.
    pub check_writer: Box<CheckWriter>,
}

/// State of one sink.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SinkReport {
    /// Its name.
    pub name: String,
    /// Number of outputs that are not released.
    pub outputs: usize,
    /// Number of these that a save covers.
    pub covered: usize,
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
    /// Held from the staging of a file until its output is given: no other file is a leftover.
    pub publishing: Mutex<()>,
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
            publishing: Mutex::new(()),
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
        self.state().is_open()
    }

    /// Opens the gate: from now on outputs are released. Once it holds more than `bytes_max`, the
    /// program is to save. `seed` makes the names of staged files unique. Each client that opens it
    /// closes it. Returns whether it is the first one.
    pub fn open(&self, bytes_max: u64, seed: u64) -> bool {
        self.read_record();
        let mut state = self.state();
        state.bytes_max = bytes_max;
        state.openers += 1;
        if state.openers == 1 {
            state.next_staged = seed;
            state.sinks.insert(PUBLISH.to_owned(), OpenSink::new(Arc::new(PublishSink)));
        }
        state.openers == 1
    }

    /// Changes the bytes from which on the program is to save.
    pub fn set_bytes_max(&self, bytes_max: u64) {
        self.state().bytes_max = bytes_max;
    }

    /// Starts the thread that releases, unless it runs.
    ///
    /// # Errors
    /// `Retry` if there can be no thread.
    pub fn start(&self) -> Result<()> {
        let mut state = self.state();
        if state.releaser.is_none() {
            let weak = Arc::downgrade(&self.0);
            let ends = weak.clone();
            let pass = move || -> Option<Wait> {
                let gate = Gate(weak.upgrade()?);
                gate.pass(Instant::now());
                Some(Box::new(move |limit| gate.wait_for_work(limit)))
            };
            let end = move || {
                let closed = ends.upgrade().map(|it| std::mem::take(&mut Gate(it).state().closed));
                closed.into_iter().flatten().for_each(|sink| sink.close());
            };
            state.releaser = Some(Releaser::start(pass, end)?);
        }
        Ok(())
    }

    /// Continues from a restored checkpoint: its outputs replace all that this process had. `lists`
    /// are those of the images that this rank takes over, its own first, each with its rank.
    ///
    /// # Errors
    /// `Damaged` for a list that cannot be read.
    pub fn restored(&self, epoch: Epoch, lists: &[(Rank, Vec<u8>)]) -> Result<()> {
        let own = self.own_rank();
        // Without a gate nothing was released, and a restore reads no more than before.
        if self.is_open() || lists.iter().any(|(_, list)| !list.is_empty()) {
            self.read_record();
        }
        let mut ledger = Ledger::default();
        for (rank, bytes) in lists {
            let mut list = Outputs::of_catalog(bytes)?;
            if *rank == own {
                ledger = Ledger::resume(epoch, list);
                continue;
            }
            if !list.outputs.is_empty() {
                let theirs = self.load_record(*rank);
                let resolved = |it: &Output| Output {
                    epoch: if it.epoch == 0 { epoch } else { it.epoch },
                    token: Vec::new(),
                    ..it.clone()
                };
                list.outputs.retain(|output| !theirs.has(&resolved(output)));
            }
            ledger.add_foreign(epoch, list);
        }
        let mut state = self.state();
        let released: Vec<u64> =
            ledger.outputs().filter(|it| state.confirmed.has(it)).map(|it| it.number).collect();
        released.into_iter().for_each(|number| drop(ledger.remove(number)));
        // Outputs that no checkpoint lists belong to a state that is gone. Others stay as they are:
        // a later restore may need them.
        let below = state.ledger.listed_below();
        let gone: Vec<Output> =
            state.ledger.outputs().filter(|it| it.number >= below).cloned().collect();
        state.committed_below = ledger.next();
        state.ledger = ledger;
        state.saves.clear();
        state.generation += 1;
        (state.has_saved, state.has_committed) = (false, false);
        (state.is_based, state.is_restored, state.is_idle) = (true, true, false);
        let notices = state.attach_files();
        let others = state.renew_others();
        drop(state);
        // No sink is called with the lock held: it may wait for a thread that gives outputs.
        for output in gone {
            if let Some(sink) = others.get(&output.sink) {
                sink.abort(&output.token);
            }
        }
        self.0.changed.notify_all();
        notices.into_iter().for_each(|notice| self.tell(notice));
        Ok(())
    }

    /// Begins without a checkpoint, if none was restored: the program gives an output, or saves.
    pub(crate) fn base(&self) {
        let mut state = self.state();
        state.is_idle = false;
        if state.is_based || !state.is_open() {
            return;
        }
        state.is_based = true;
        let notices = state.attach_files();
        drop(state);
        notices.into_iter().for_each(|notice| self.tell(notice));
    }

    fn own_rank(&self) -> Rank {
        self.0.options.rank.unwrap_or(0)
    }

    /// Reads this rank's record of releases, once.
    fn read_record(&self) {
        if self.state().has_record {
            return;
        }
        let mut record = self.load_record(self.own_rank());
        let mut state = self.state();
        record.merge(std::mem::take(&mut state.confirmed));
        (state.confirmed, state.has_record) = (record, true);
    }

    fn load_record(&self, rank: Rank) -> Confirmed {
        let Some(confirmations) = &self.0.options.confirmations else {
            return Confirmed::default();
        };
        let loaded = confirmations.load(rank).and_then(|bytes| {
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
        state.is_open() && !state.is_writer && state.ledger.count_below(state.committed_below) > 0
    }

    /// Returns whether this process has given outputs or saved, since it restored or closed the gate.
    pub fn is_used(&self) -> bool {
        let state = self.state();
        !state.is_idle && (state.ledger.next() > state.committed_below || state.has_saved)
    }

    /// Notes that this process is the job's one writer, so that it may release what a restored
    /// checkpoint lists.
    pub fn may_release(&self) {
        let mut state = self.state();
        (state.is_writer, state.proven) = (true, Some(Instant::now()));
        drop(state);
        self.0.changed.notify_all();
    }

    /// Opens a sink under a name, or replaces the one that has it. The name must be the same in
    /// each run: outputs wait for it.
    ///
    /// # Errors
    /// `Invalid` for an impossible name, or before [`Gate::open`].
    pub fn open_sink(&self, name: &str, sink: Arc<dyn Sink>) -> Result<()> {
        self.check_open()?;
        if name.is_empty() || name.len() > outlive_format::SINK_BYTES_MAX {
            return Err(Error::invalid(format!("a sink of the gate cannot be called {name:?}")));
        }
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
        self.base();
        Ok(self.state().ledger.give(sink, token))
    }

    /// Opens a file for outputs, and returns the name of its sink.
    ///
    /// # Errors
    /// As for [`FileMode`]'s files: `Invalid` for an odd name, no regular file, or one that another
    /// program has cut; errors of the file system.
    pub fn open_file(&self, path: &Path, mode: FileMode) -> Result<String> {
        self.check_open()?;
        let path = real_path(path)?;
        let Some(text) = path.to_str() else {
            return Err(Error::invalid(format!("{} cannot be written as UTF-8", path.display())));
        };
        let name = format!("{FILE}{text}");
        let mut state = self.state();
        if state.files.contains_key(&name) {
            return Ok(name);
        }
        // Errors of the file come now, even if it is not known yet where the program continues.
        file::open(&path, mode, None, &[])?;
        state.files.insert(name.clone(), (path.clone(), mode));
        state.sinks.insert(name.clone(), OpenSink::new(Arc::new(FileSink(path))));
        let attached = if state.is_based { state.attach_file(&name) } else { Ok(None) };
        if attached.is_err() {
            state.files.remove(&name);
            state.sinks.remove(&name);
        }
        drop(state);
        self.0.changed.notify_all();
        attached?.into_iter().for_each(|notice| self.tell(notice));
        Ok(name)
    }

    /// Appends bytes to a file that is open; see [`Gate::open_file`].
    ///
    /// # Errors
    /// `Invalid` if the gate is closed, or the file is not open.
    pub fn write_file(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.check_open()?;
        self.base();
        let mut state = self.state();
        if !state.files.contains_key(name) {
            return Err(Error::invalid(format!("the gate has not opened {name}: open it again")));
        }
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
        self.check_open()?;
        self.base();
        let state = self.state();
        let position = state.ledger.position(name).map(to_position).transpose()?;
        position.ok_or_else(|| Error::invalid(format!("the gate has not opened {name}")))
    }

    /// Returns the paths of the files that the job itself writes. This run has opened them, the
    /// checkpoint from which it continues lists them, or an earlier run has released to them.
    pub fn files(&self) -> BTreeSet<String> {
        let state = self.state();
        let names = state.ledger.positioned().chain(state.confirmed.sinks());
        names.filter_map(|name| name.strip_prefix(FILE)).map(str::to_owned).collect()
    }

    /// Sets the position of a sink that only notes how far the program is, whether the gate is open
    /// or not. Each later checkpoint lists it.
    pub fn set_position(&self, sink: &str, position: Vec<u8>) {
        self.state().ledger.set_position(sink, position);
    }

    /// Lets a finished file appear as `last` once the checkpoint is committed.
    ///
    /// # Errors
    /// `Invalid` if the gate is closed, or the file cannot be published; errors of the file system.
    pub fn publish(&self, temporary: &Path, last: &Path) -> Result<()> {
        self.check_open()?;
        self.base();
        let owner = self.owner();
        let _publishing = self.0.publishing.lock();
        let mut state = self.state();
        let id = state.next_staged;
        state.next_staged = id.wrapping_add(1);
        // Before a commit has followed the restore, a newer checkpoint may list staged files.
        if state.has_committed && state.cleaned.insert(last.to_path_buf()) {
            let tokens: Vec<&[u8]> =
                state.ledger.of_sink(PUBLISH).map(|it| &it.token[..]).collect();
            publish::remove_leftovers(last, owner, &tokens);
        }
        drop(state);
        let token = publish::stage(temporary, last, owner, id)?;
        self.give(PUBLISH, token).map(drop)
    }

    /// Returns a number of the pool, the job and the rank, for names of staged files.
    fn owner(&self) -> u32 {
        let GateOptions { pool, job, rank, .. } = &self.0.options;
        let text = format!("{pool:08x}:{job}/{rank:?}");
        outlive_format::checksum(text.as_bytes()) as u32
    }
}

/// Returns the position of a sink in the list of a checkpoint.
///
/// # Errors
/// `Damaged` for a list that cannot be read.
pub fn position_in(list: &[u8], sink: &str) -> Result<Option<Vec<u8>>> {
    Ok(Outputs::of_catalog(list)?.positions.remove(sink))
}

/// Returns a path without `..` and links in its folder, and without a link at its end.
fn real_path(path: &Path) -> Result<PathBuf> {
    let failed = |error: &std::io::Error| Error::io_named("looking at", path, error);
    let absolute = std::path::absolute(path).map_err(|error| failed(&error))?;
    match absolute.canonicalize() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let folder = absolute.parent().unwrap_or(&absolute);
            let name = absolute.file_name().unwrap_or_default();
            Ok(folder.canonicalize().map_or_else(|_| absolute.clone(), |folder| folder.join(name)))
        }
        found => found.map_err(|error| failed(&error)),
    }
}
