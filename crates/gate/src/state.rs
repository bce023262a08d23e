//! The state of a gate: its outputs, saves and sinks. No function here calls a sink.

use crate::confirmed::Confirmed;
use crate::file::{self, FileMode, FileSink};
use crate::ledger::Ledger;
use crate::sink::Sink;
use crate::thread::Releaser;
use outlive_format::Output;
use outlive_store::SaveHandle;
use outlive_types::{Error, Result};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pause after the first attempt that may succeed later.
pub const FIRST_PAUSE: Duration = Duration::from_millis(50);

#[derive(Default)]
pub struct State {
    pub ledger: Ledger,
    /// Saves that are not over, with the numbers below which they cover all outputs.
    pub saves: VecDeque<(SaveHandle, u64)>,
    /// A committed checkpoint covers the outputs below this number.
    pub committed_below: u64,
    /// Whether this process is known to be the job's one writer.
    pub is_writer: bool,
    pub confirmed: Confirmed,
    pub sinks: BTreeMap<String, OpenSink>,
    /// Files that are open, by the names of their sinks.
    pub files: BTreeMap<String, (PathBuf, FileMode)>,
    /// Bytes of outputs from which on the program is to save.
    pub bytes_max: u64,
    /// Folders in which leftovers of published files were looked for.
    pub cleaned: HashSet<PathBuf>,
    pub releaser: Option<Releaser>,
    /// Whether the job has a gate at all: outputs of a program without one only pass through.
    pub is_open: bool,
    pub next_staged: u64,
    /// Whether this process has saved since it restored.
    pub has_saved: bool,
    /// Whether the user knows that releases cannot be noted.
    pub has_told_of_notes: bool,
}

pub struct OpenSink {
    pub sink: Arc<dyn Sink>,
    /// Reason of the last attempt that did not succeed.
    pub trouble: Option<String>,
    pub is_stopped: bool,
    pub pause: Duration,
    /// Time of the next attempt.
    pub next: Option<Instant>,
}

impl OpenSink {
    pub fn new(sink: Arc<dyn Sink>) -> OpenSink {
        OpenSink { sink, trouble: None, is_stopped: false, pause: FIRST_PAUSE, next: None }
    }

    pub fn stopped(sink: Arc<dyn Sink>, why: String) -> OpenSink {
        OpenSink { is_stopped: true, trouble: Some(why), ..OpenSink::new(sink) }
    }

    pub fn is_ready(&self, now: Instant) -> bool {
        !self.is_stopped && self.next.is_none_or(|next| next <= now)
    }
}

impl State {
    /// Makes a file ready for the outputs that wait and those to come. Returns a sentence for the
    /// user if the file has changed.
    pub fn attach_file(
        &mut self,
        name: &str,
        path: &Path,
        mode: FileMode,
    ) -> Result<Option<String>> {
        let position = self.ledger.position(name).map(to_position).transpose()?;
        let waiting: Vec<(u64, Vec<u8>)> =
            self.ledger.of_sink(name).map(|it| (it.number, it.token.clone())).collect();
        let tokens: Vec<&[u8]> = waiting.iter().map(|(_, token)| &token[..]).collect();
        let opened = file::open(path, mode, position, &tokens)?;
        for ((number, _), token) in waiting.iter().zip(opened.tokens) {
            self.ledger.set_token(*number, token);
        }
        self.ledger.set_position(name, opened.position.to_le_bytes().to_vec());
        if opened.truncates {
            self.ledger.append(name, &file::head(0, true), &[]);
        }
        Ok(opened.notice)
    }

    /// Lets the open files continue from a restored checkpoint. One that cannot stops. Returns
    /// sentences for the user.
    pub fn recover_files(&mut self) -> Vec<String> {
        let mut notices = Vec::new();
        for (name, (path, mode)) in self.files.clone() {
            let sink = Arc::new(FileSink(path.clone()));
            let open = match self.attach_file(&name, &path, mode) {
                Ok(notice) => {
                    notices.extend(notice);
                    OpenSink::new(sink)
                }
                Err(error) => {
                    notices.push(format!("the outputs to {name} stop: {error}"));
                    OpenSink::stopped(sink, error.to_string())
                }
            };
            self.sinks.insert(name, open);
        }
        notices
    }

    /// Takes out the open sinks that are no files.
    pub fn take_others(&mut self) -> Vec<(String, Arc<dyn Sink>)> {
        let names = self.sinks.keys().filter(|name| !self.files.contains_key(*name));
        let names: Vec<String> = names.cloned().collect();
        let take = |name: String| Some((self.sinks.remove(&name)?.sink, name));
        names.into_iter().filter_map(take).map(|(sink, name)| (name, sink)).collect()
    }

    /// Takes account of the saves that are over.
    pub fn collect_saves(&mut self) {
        while let Some((handle, below)) = self.saves.front() {
            if !handle.done() {
                break;
            }
            if handle.took().is_some() {
                self.committed_below = self.committed_below.max(*below);
                self.is_writer = true;
            }
            self.saves.pop_front();
        }
    }

    /// Returns the number below which a save, committed or in progress, covers all outputs.
    pub fn covered_below(&self) -> u64 {
        self.saves.iter().map(|(_, below)| *below).max().unwrap_or(0).max(self.committed_below)
    }

    /// Returns whether a save is in progress, or an output can still be released.
    pub fn has_work(&self) -> bool {
        let is_live =
            |output: &&Output| self.sinks.get(&output.sink).is_some_and(|open| !open.is_stopped);
        let heads = self.ledger.heads(self.committed_below);
        !self.saves.is_empty() || self.is_writer && heads.iter().any(is_live)
    }
}

pub fn to_position(bytes: &[u8]) -> Result<u64> {
    let bytes =
        bytes.try_into().map_err(|_| Error::damaged("the position of a file is damaged"))?;
    Ok(u64::from_le_bytes(bytes))
}
