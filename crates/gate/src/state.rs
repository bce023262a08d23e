//! The state of a gate: its outputs, saves and sinks. No function here calls a sink.

use crate::confirmed::Confirmed;
use crate::file::{self, FileMode};
use crate::ledger::Ledger;
use crate::sink::Sink;
use crate::thread::Releaser;
use outlive_format::Output;
use outlive_store::SaveHandle;
use outlive_types::{Error, Result};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::path::PathBuf;
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
    /// When that was known last.
    pub proven: Option<Instant>,
    pub confirmed: Confirmed,
    pub sinks: BTreeMap<String, OpenSink>,
    /// Files that are open, by the names of their sinks.
    pub files: BTreeMap<String, (PathBuf, FileMode)>,
    /// Bytes of outputs from which on the program is to save.
    pub bytes_max: u64,
    /// Names of published files for which leftovers were looked for.
    pub cleaned: HashSet<PathBuf>,
    pub releaser: Option<Releaser>,
    /// Sinks of a gate that was closed, for its thread to close.
    pub closed: Vec<Arc<dyn Sink>>,
    /// Number of clients that have it open: outputs of a program without a gate only pass through.
    pub openers: u32,
    pub next_staged: u64,
    /// Whether it is decided where the program continues: at a restored checkpoint, or at its
    /// beginning. Before that, sinks are only noted.
    pub is_based: bool,
    /// Whether it continues from a restored checkpoint.
    pub is_restored: bool,
    /// Whether this process has saved since it restored.
    pub has_saved: bool,
    /// Whether a save since the restore is committed.
    pub has_committed: bool,
    /// Number of restores: an attempt that began before the last one says nothing of its outputs.
    pub generation: u64,
    /// Whether a release is not in the record yet.
    pub is_noting: bool,
    /// Whether the record of releases was read.
    pub has_record: bool,
    /// Whether nothing was given or saved since the gate was closed: the next restore decides where
    /// the program continues.
    pub is_idle: bool,
    /// Whether the user knows that releases cannot be noted.
    pub has_told_of_notes: bool,
}

/// A sink before a save: its name, and its tokens if it is to learn of them.
pub type ToPrepare = (String, Arc<dyn Sink>, Option<Vec<Vec<u8>>>);

pub struct OpenSink {
    pub sink: Arc<dyn Sink>,
    /// Reason of the last attempt that did not succeed.
    pub trouble: Option<String>,
    pub is_stopped: bool,
    pub pause: Duration,
    /// Time of the next attempt.
    pub next: Option<Instant>,
    /// Whether it was told which tokens count.
    pub knows_tokens: bool,
    /// Of a file: the length to which it is cut once a commit has followed the restore.
    pub cut: Option<u64>,
    /// Of a file: its length when this run opened it.
    pub begin: u64,
}

impl OpenSink {
    pub fn new(sink: Arc<dyn Sink>) -> OpenSink {
        OpenSink {
            sink,
            trouble: None,
            is_stopped: false,
            pause: FIRST_PAUSE,
            next: None,
            knows_tokens: false,
            cut: None,
            begin: 0,
        }
    }

    pub fn stopped(sink: Arc<dyn Sink>, why: String) -> OpenSink {
        OpenSink { is_stopped: true, trouble: Some(why), ..OpenSink::new(sink) }
    }

    pub fn is_ready(&self, now: Instant) -> bool {
        !self.is_stopped && self.next.is_none_or(|next| next <= now)
    }
}

impl State {
    /// Makes an open file ready for the outputs that wait and those to come; it stops if that cannot
    /// be. Returns sentences for the user.
    ///
    /// # Errors
    /// As for [`file::open`].
    pub fn attach_file(&mut self, name: &str) -> Result<Option<String>> {
        let Some((path, mode)) = self.files.get(name).cloned() else { return Ok(None) };
        let mut position = self.ledger.position(name).map(to_position).transpose()?;
        if let (None, true, Some((begin, _))) =
            (position, self.is_restored, self.confirmed.file(name))
        {
            // The job opened it after the restored checkpoint.
            position = Some(begin);
        }
        let waiting: Vec<(u64, Vec<u8>)> =
            self.ledger.of_sink(name).map(|it| (it.number, it.token.clone())).collect();
        let tokens: Vec<&[u8]> = waiting.iter().map(|(_, token)| &token[..]).collect();
        let opened = file::open(&path, mode, position, &tokens)?;
        for ((number, _), token) in waiting.iter().zip(opened.tokens) {
            self.ledger.set_token(*number, token);
        }
        self.ledger.set_position(name, opened.position.to_le_bytes().to_vec());
        if opened.is_new {
            self.confirmed.forget_file(name);
        }
        if opened.truncates {
            self.ledger.append(name, &file::head(0, true), &[]);
        }
        if let Some(open) = self.sinks.get_mut(name) {
            open.cut = position.map(|_| opened.position);
            open.begin = opened.position;
        }
        Ok(opened.notice)
    }

    /// Attaches all open files. Returns sentences for the user.
    pub fn attach_files(&mut self) -> Vec<String> {
        let mut notices = Vec::new();
        for name in self.files.keys().cloned().collect::<Vec<_>>() {
            let attached = self.attach_file(&name);
            let Some(open) = self.sinks.get_mut(&name) else { continue };
            match attached {
                Ok(notice) => {
                    let (cut, begin) = (open.cut, open.begin);
                    *open = OpenSink { cut, begin, ..OpenSink::new(open.sink.clone()) };
                    notices.extend(notice);
                }
                Err(error) => {
                    *open = OpenSink::stopped(open.sink.clone(), error.to_string());
                    notices.push(format!("the outputs to {name} stop: {error}"));
                }
            }
        }
        notices
    }

    /// Cuts the files that are longer than the restored checkpoint had them. A commit has followed
    /// that restore. Returns sentences for the user.
    pub fn cut_files(&mut self) -> Vec<String> {
        let mut notices = Vec::new();
        for (name, open) in &mut self.sinks {
            let Some(position) = open.cut.filter(|_| !open.is_stopped) else { continue };
            let Some((path, _)) = self.files.get(name) else { continue };
            let known = self.confirmed.file(name);
            match file::cut(path, position, known.map(|(_, end)| end)) {
                Ok(notice) => {
                    open.cut = None;
                    if notice.is_some() {
                        self.confirmed.note_cut(name, position);
                    }
                    notices.extend(notice);
                }
                Err(error) => {
                    (open.is_stopped, open.trouble) = (true, Some(error.to_string()));
                    notices.push(format!("the outputs to {name} stop: {error}"));
                }
            }
        }
        notices
    }

    /// Lets the open sinks that are no files begin again: what they knew was of another state.
    /// Returns them by name.
    pub fn renew_others(&mut self) -> HashMap<String, Arc<dyn Sink>> {
        let files = &self.files;
        let others = self.sinks.iter_mut().filter(|(name, _)| !files.contains_key(*name));
        let renew = |(name, open): (&String, &mut OpenSink)| {
            *open = OpenSink::new(open.sink.clone());
            (name.clone(), open.sink.clone())
        };
        others.map(renew).collect()
    }

    /// Returns the open sinks, each with the tokens that count if it is to learn of them now.
    pub fn prepare_sinks(&mut self) -> Vec<ToPrepare> {
        let ledger = &self.ledger;
        let each = self.sinks.iter_mut().map(|(name, open)| {
            let learns = self.has_committed && !open.knows_tokens;
            open.knows_tokens |= self.has_committed;
            let tokens = || ledger.of_sink(name).map(|it| it.token.clone()).collect();
            (name.clone(), open.sink.clone(), learns.then(tokens))
        });
        each.collect()
    }

    /// Takes account of the saves that are over.
    pub fn collect_saves(&mut self) {
        while let Some((handle, below)) = self.saves.front() {
            if !handle.done() {
                break;
            }
            if handle.took().is_some() {
                self.committed_below = self.committed_below.max(*below);
                (self.is_writer, self.has_committed) = (true, true);
                self.proven = Some(Instant::now());
            }
            self.saves.pop_front();
        }
    }

    /// Returns the number below which a save, committed or in progress, covers all outputs.
    pub fn covered_below(&self) -> u64 {
        self.saves.iter().map(|(_, below)| *below).max().unwrap_or(0).max(self.committed_below)
    }

    /// Returns the bytes of the outputs that can still be released.
    pub fn live_bytes(&self) -> u64 {
        let live = self.sinks.iter().filter(|(_, open)| !open.is_stopped);
        live.map(|(name, _)| self.ledger.bytes_of(name)).sum()
    }

    /// Returns whether a program has the gate open.
    pub fn is_open(&self) -> bool {
        self.openers > 0
    }

    /// Returns whether a save is in progress, or an output can still be released.
    pub fn has_work(&self) -> bool {
        let is_live =
            |output: &&Output| self.sinks.get(&output.sink).is_some_and(|open| !open.is_stopped);
        let heads = self.ledger.heads(self.committed_below);
        !self.saves.is_empty() || self.is_noting || self.is_writer && heads.iter().any(is_live)
    }
}

pub fn to_position(bytes: &[u8]) -> Result<u64> {
    let bytes =
        bytes.try_into().map_err(|_| Error::damaged("the position of a file is damaged"))?;
    Ok(u64::from_le_bytes(bytes))
}
