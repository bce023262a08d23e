//! The record of a job's transcripts: how far they are decided, and what waits to be shown. It lies
//! beside them, so that a later supervisor goes on where this one was killed.

use outlive_client::stop::Span;
use outlive_types::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// Number of streams: standard output and standard error.
pub(super) const STREAMS: usize = 2;
const NAME: &str = "record.json";

/// A place in a regular file to which a stream leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Place {
    pub device: u64,
    pub inode: u64,
    pub offset: u64,
}

/// State of the transcripts.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Record {
    /// By transcript, the offset below which everything is shown, waits, or is dropped.
    decided: BTreeMap<String, u64>,
    /// Parts to show, by stream, the oldest first.
    waiting: [VecDeque<Span>; STREAMS],
    /// Place of the first part, if the stream leads to a file: a supervisor may be killed after it
    /// has written there, and before it has noted that.
    pub writing: [Option<Place>; STREAMS],
}

/// Returns the stream on which a transcript is shown.
pub(super) fn stream_of(file: &str) -> usize {
    usize::from(file.split_once('/').is_some_and(|(_, name)| name.starts_with("stderr")))
}

impl Record {
    /// Reads the record of a folder; an empty one if there is none.
    ///
    /// # Errors
    /// Those of the file system; `Damaged` for a file that is no record.
    pub fn read(root: &Path) -> Result<Record> {
        let path = root.join(NAME);
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|e| Error::damaged(format!("{} is no record: {e}", path.display()))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Record::default()),
            Err(error) => Err(Error::io("reading", &path, &error)),
        }
    }

    /// Writes the record, and replaces an earlier one in one step.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write(&self, root: &Path) -> Result<()> {
        let (new, path) = (root.join("record.new"), root.join(NAME));
        let bytes = serde_json::to_vec(self).map_err(|e| Error::bug(e.to_string()))?;
        let written = fs::write(&new, bytes).and_then(|()| fs::rename(&new, &path));
        written.map_err(|e| Error::io("writing", &path, &e))
    }

    /// Returns the offset from which on a transcript is not decided.
    pub fn decided(&self, file: &str) -> u64 {
        self.decided.get(file).copied().unwrap_or(0)
    }

    /// Lets a part of a transcript be shown, but nothing that is decided already.
    pub fn show(&mut self, span: &Span) {
        let from = span.from.max(self.decided(&span.file));
        if from < span.to {
            self.waiting[stream_of(&span.file)].push_back(Span { from, ..span.clone() });
            self.decided.insert(span.file.clone(), span.to);
        }
    }

    /// Drops what is not decided of a transcript, up to the end of a part.
    pub fn drop_to(&mut self, span: &Span) {
        let decided = self.decided(&span.file).max(span.to);
        self.decided.insert(span.file.clone(), decided);
    }

    /// Returns the part that a stream shows next.
    pub fn next(&self, stream: usize) -> Option<&Span> {
        self.waiting[stream].front()
    }

    /// Notes that the first bytes of a stream's next part are shown.
    pub fn shown(&mut self, stream: usize, bytes: u64) {
        if let Some(span) = self.waiting[stream].front_mut() {
            span.from += bytes;
            if span.from >= span.to {
                self.waiting[stream].pop_front();
            }
        }
    }

    /// Returns the number of bytes that wait.
    pub fn waiting_bytes(&self) -> u64 {
        self.waiting.iter().flatten().map(|span| span.to - span.from).sum()
    }

    /// Returns whether a part of an attempt's transcripts waits.
    pub fn waits_for(&self, attempt: &str) -> bool {
        self.waiting.iter().flatten().any(|span| is_of(&span.file, attempt))
    }

    /// Forgets the transcripts of an attempt.
    pub fn forget(&mut self, attempt: &str) {
        self.decided.retain(|file, _| !is_of(file, attempt));
    }
}

fn is_of(file: &str, attempt: &str) -> bool {
    file.split_once('/').is_some_and(|(of, _)| of == attempt)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(file: &str, from: u64, to: u64) -> Span {
        Span { file: file.to_owned(), from, to }
    }

    #[test]
    fn each_byte_is_decided_once() {
        let mut record = Record::default();
        record.show(&span("1/stdout", 0, 5));
        record.show(&span("1/stdout", 0, 9));
        record.show(&span("1/stdout", 3, 9));
        record.show(&span("1/stderr.2", 0, 4));
        assert_eq!(record.waiting[0], [span("1/stdout", 0, 5), span("1/stdout", 5, 9)]);
        assert_eq!((record.next(1), record.waiting_bytes()), (Some(&span("1/stderr.2", 0, 4)), 13));
        // The program continues from a checkpoint, and repeats the rest.
        record.drop_to(&span("1/stdout", 20, 20));
        record.drop_to(&span("1/stdout", 7, 7));
        record.show(&span("1/stdout", 0, 22));
        assert_eq!(record.waiting[0].back(), Some(&span("1/stdout", 20, 22)));
    }

    #[test]
    fn a_later_supervisor_goes_on_with_what_waits() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Record::read(dir.path()).unwrap(), Record::default());
        let mut record = Record::default();
        record.show(&span("1/stdout", 0, 5));
        record.show(&span("2/stdout", 1, 3));
        record.shown(0, 2);
        record.writing[0] = Some(Place { device: 1, inode: 2, offset: 3 });
        record.write(dir.path()).unwrap();
        let mut read = Record::read(dir.path()).unwrap();
        assert_eq!((&read, read.next(0)), (&record, Some(&span("1/stdout", 2, 5))));
        assert!(read.waits_for("1") && read.waits_for("2") && !read.waits_for("3"));
        read.shown(0, 3);
        read.forget("1");
        assert_eq!((read.next(0), read.decided("1/stdout")), (Some(&span("2/stdout", 1, 3)), 0));
        fs::write(dir.path().join(NAME), "{").unwrap();
        assert!(Record::read(dir.path()).is_err());
    }
}
