//! The transcripts of a job: a folder with one folder for each attempt, and the record.

use super::record::{Record, STREAMS, stream_of};
use super::stream::Stream;
use outlive_client::stop::{Span, list_of};
use outlive_types::{Error, ErrorKind, Result};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes that are written at once, and noted after that.
const PIECE_BYTES: u64 = 1 << 20;

pub(super) struct Book {
    root: PathBuf,
    record: Record,
    /// Name of the attempt that runs.
    current: String,
    /// Whether both streams are one.
    is_one: bool,
}

/// The files to which an attempt prints.
pub(crate) struct Printing {
    pub folder: PathBuf,
    pub stdout: File,
    pub stderr: File,
}

impl Book {
    /// Opens the transcripts in a folder, and finds out what an earlier supervisor has shown. A power
    /// cut may have damaged its record: `tell` learns of that.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn open(root: &Path, is_one: bool, tell: &dyn Fn(&str)) -> Result<Book> {
        let record = Record::read(root).or_else(|error| match error.kind() {
            ErrorKind::Damaged => {
                tell(&format!("{error}: lines that have appeared may come again"));
                Ok(Record::default())
            }
            _ => Err(error),
        })?;
        let mut book = Book { root: root.to_owned(), record, current: String::new(), is_one };
        for stream in 0..STREAMS {
            let place = book.record.writing[stream].take();
            let (Some(place), Some(span)) = (place, book.record.next(stream)) else { continue };
            let bytes = read_piece(&book.path(&span.file), span).unwrap_or_default();
            let written = Stream::new(stream).written_at(place, &bytes);
            book.record.shown(stream, written);
        }
        Ok(book)
    }

    fn path(&self, file: &str) -> PathBuf {
        self.root.join(file)
    }

    /// Returns the folder of all transcripts.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Notes that an attempt begins.
    pub fn begin(&mut self, attempt: u64) {
        self.current = attempt.to_string();
    }

    /// Shows parts that a checkpoint covers. If it was `committed` now, nothing continues from a
    /// transcript of an earlier attempt any more: they go.
    pub fn cover(&mut self, spans: &[Span], committed: bool) {
        let is_there = |span: &&Span| self.root.join(&span.file).exists();
        for span in spans.iter().filter(is_there).cloned().collect::<Vec<_>>() {
            self.record.show(&span);
        }
        if committed {
            self.forget_earlier();
        }
    }

    /// Drops parts that the program repeats.
    pub fn drop_to(&mut self, spans: &[Span]) {
        spans.iter().for_each(|span| self.record.drop_to(span));
    }

    /// Removes the transcripts of earlier attempts. This thread may be behind, as with a pipe that is
    /// not read: the command may print to those of a later one already.
    fn forget_earlier(&mut self) {
        let current: u64 = self.current.parse().unwrap_or(0);
        for entry in fs::read_dir(&self.root).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_earlier = name.parse::<u64>().is_ok_and(|attempt| attempt < current);
            if is_earlier && !self.record.waits_for(&name) {
                let _ = fs::remove_dir_all(entry.path());
                self.record.forget(&name);
            }
        }
    }

    /// Returns what no checkpoint covers of the running attempt: of the command first, then of each
    /// rank.
    pub fn uncovered(&self) -> Vec<Span> {
        self.uncovered_of(&self.current)
    }

    fn uncovered_of(&self, attempt: &str) -> Vec<Span> {
        let entries = fs::read_dir(self.root.join(attempt)).into_iter().flatten().flatten();
        let mut found: Vec<(u32, Span)> = entries
            .filter_map(|entry| {
                let name = entry.file_name().to_string_lossy().into_owned();
                let length = entry.metadata().ok()?.len();
                let file = format!("{attempt}/{name}");
                let from = self.record.decided(&file).min(length);
                // Nothing but transcripts.
                list_of(&format!("{file} {from} {length}"))?;
                let rank = name.split_once('.').and_then(|(_, rank)| rank.parse::<u32>().ok());
                Some((rank.map_or(0, |rank| rank + 1), Span { file, from, to: length }))
            })
            .filter(|(_, span)| span.from < span.to)
            .collect();
        found.sort_by(|(a, x), (b, y)| (a, &x.file).cmp(&(b, &y.file)));
        found.into_iter().map(|(_, span)| span).collect()
    }

    /// Shows everything of the running attempt: the command has finished, and repeats nothing. If no
    /// attempt has opened the job, the program may use another one, and then has repeated nothing
    /// either: all attempts are shown. Returns how many earlier ones these are.
    pub fn finish(&mut self) -> usize {
        let mut attempts = self.attempts();
        let is_used = attempts.iter().any(|attempt| self.has_owner(attempt));
        attempts.retain(|attempt| !is_used && *attempt != self.current);
        for attempt in attempts.iter().chain([&self.current.clone()]) {
            for span in self.uncovered_of(attempt) {
                self.record.show(&span);
            }
        }
        attempts.len()
    }

    /// Returns the attempts that have transcripts here, the oldest first.
    fn attempts(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut numbers: Vec<u64> = names.filter_map(|name| name.parse().ok()).collect();
        numbers.sort_unstable();
        numbers.iter().map(u64::to_string).collect()
    }

    /// Whether a process of an attempt has opened the job.
    fn has_owner(&self, attempt: &str) -> bool {
        let entries = fs::read_dir(self.root.join(attempt)).into_iter().flatten().flatten();
        entries.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with("owner."))
    }

    /// Returns at most the last `limit` bytes of a part.
    pub fn end_of(&self, span: &Span, limit: u64) -> Vec<u8> {
        let from = span.from.max(span.to.saturating_sub(limit));
        read_piece(&self.path(&span.file), &Span { from, ..span.clone() }).unwrap_or_default()
    }

    /// Returns the number of bytes that wait.
    pub fn waiting_bytes(&self) -> u64 {
        self.record.waiting_bytes()
    }

    /// Writes what waits on each stream. Returns the streams that take no more, with the reason.
    ///
    /// # Errors
    /// Those of the transcripts; those of the record: without it nothing is written, as it could come
    /// twice.
    pub fn write_out(&mut self) -> Result<Vec<(usize, io::Error)>> {
        let mut refused = Vec::new();
        for stream in 0..STREAMS {
            // Messages of this process do not come in the middle of a line.
            let _lock = (stream == 1 || self.is_one).then(|| io::stderr().lock());
            while self.record.next(stream).is_some() {
                if let Some(error) = self.write_piece(stream)? {
                    refused.push((stream, error));
                    break;
                }
            }
        }
        Ok(refused)
    }

    /// Writes a piece of what is next on a stream. Returns the error if the stream does not take it.
    fn write_piece(&mut self, stream: usize) -> Result<Option<io::Error>> {
        let Some(span) = self.record.next(stream).cloned() else { return Ok(None) };
        let path = self.path(&span.file);
        let bytes = read_piece(&path, &span)?;
        if bytes.is_empty() {
            self.record.shown(stream, span.to - span.from);
            return self.record.write(&self.root).map(|()| None);
        }
        let out = Stream::new(stream);
        // Also before a pipe takes it: what waits must be known to a later supervisor.
        self.record.writing[stream] = out.place();
        self.record.write(&self.root)?;
        let (mut done, mut refusal) = (0, None);
        while refusal.is_none() && done < bytes.len() as u64 {
            match out.write(&bytes[done as usize..]) {
                Ok(written) => done += written,
                Err(error) => refusal = Some(error),
            }
        }
        self.record.shown(stream, done);
        self.record.writing[stream] = None;
        self.record.write(&self.root)?;
        give_back(&path, span.from, span.from + done);
        Ok(refusal)
    }
}

/// Makes the files to which an attempt prints: one for both streams if these are one.
///
/// # Errors
/// Those of the file system.
pub(super) fn make_files(root: &Path, attempt: u64, is_one: bool) -> Result<Printing> {
    let folder = root.join(attempt.to_string());
    let failed = |e: io::Error| Error::io_named("making", &folder, &e);
    DirBuilder::new().mode(0o700).create(&folder).map_err(failed)?;
    let make = |name: &str| {
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(0o600).open(folder.join(name)).map_err(failed)
    };
    let (stdout, stderr) = match is_one {
        false => (make("stdout")?, make("stderr")?),
        true => {
            let both = make("output")?;
            (both.try_clone().map_err(failed)?, both)
        }
    };
    Ok(Printing { folder, stdout, stderr })
}

/// Returns the stream of a part for messages.
pub(super) fn stream_name(file: &str) -> String {
    let stream = match file.contains("/output") {
        true => "its output".to_owned(),
        false => format!("its {}", Stream::name(stream_of(file))),
    };
    match file.split_once('.') {
        Some((_, rank)) => format!("{stream}, rank {rank}"),
        None => stream,
    }
}

/// Reads the first bytes of a part. A transcript that is gone has none.
fn read_piece(path: &Path, span: &Span) -> Result<Vec<u8>> {
    let mut bytes = vec![0; (span.to - span.from).min(PIECE_BYTES) as usize];
    match File::open(path).and_then(|file| outlive_io::read_at(&file, &mut bytes, span.from)) {
        Ok(read) => bytes.truncate(read),
        Err(error) if error.kind() == io::ErrorKind::NotFound => bytes.clear(),
        Err(error) => return Err(Error::io("reading", path, &error)),
    }
    Ok(bytes)
}

/// Gives the disk back the room of a transcript below `to`, whenever that passes a piece.
fn give_back(path: &Path, from: u64, to: u64) {
    let end = to - to % PIECE_BYTES;
    if end > from - from % PIECE_BYTES {
        // A file system without holes keeps it until the next commit of a later attempt.
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let file = OpenOptions::new().write(true).open(path);
        let _ = file.map(|file| fallocate(file, flags, 0, end));
    }
}
