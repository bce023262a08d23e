//! The command's lines under `outlive run --gate`. It prints to files, the transcripts; a thread
//! shows a part once a committed checkpoint covers it.
//!
//! A stream that takes nothing, such as a pipe without a reader, holds up this thread and no other.

mod book;
mod record;
mod stream;

pub(crate) use book::Printing;

use crate::interrupts::{Interrupt, Interrupts};
use book::{Book, make_files, stream_name};
use outlive_client::stop::Span;
use outlive_types::{Error, Result, counted};
use signal_hook::consts::{SIGINT, SIGQUIT};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};
use stream::Stream;

/// Pause between two attempts to write to a stream that takes nothing.
const RETRY_EVERY: Duration = Duration::from_secs(1);
/// Longest wait for a signal, between two looks at the thread.
const MOMENT: Duration = Duration::from_millis(20);
/// Time without a covered line after which the user learns why none appears.
const LONG: Duration = Duration::from_secs(60);
/// Most lines of a crash that are shown, and most bytes in which they are looked for.
const CRASH_LINES: usize = 20;
const CRASH_BYTES: u64 = 64 << 10;
/// Most bytes that are shown of each transcript that nothing will repeat.
const LAST_BYTES: u64 = 1 << 20;
/// Most transcripts whose uncovered end is shown; the command has one or two, and so has each rank.
const SHOWN_MAX: usize = 8;

/// Reports a message to the user.
pub type Tell = Arc<dyn Fn(&str) + Send + Sync>;

enum Command {
    Begin(u64),
    Cover {
        spans: Vec<Span>,
        committed: bool,
    },
    Drop(Vec<Span>),
    /// The attempt has failed: show how it ended.
    Crash(u32),
    /// Nothing will repeat what is left.
    Last,
    Finish,
    Settle(Sender<Result<()>>),
}

/// The transcripts of a supervised job.
pub(crate) struct Transcripts {
    commands: Sender<Command>,
    root: PathBuf,
    /// Whether both streams are one, so that their order is kept.
    is_one: bool,
}

impl Transcripts {
    /// Opens the transcripts in a folder, and starts the thread that shows them. First it shows what
    /// an earlier supervisor has left.
    ///
    /// # Errors
    /// Those of the file system; `Retry` if no thread can be started.
    pub fn start(root: &Path, tell: Tell) -> Result<Transcripts> {
        let (commands, taken) = channel();
        let is_one = Stream::are_one();
        let shower = Shower {
            book: Book::open(root, is_one, &*tell)?,
            tell,
            refused: BTreeSet::new(),
            since: Instant::now(),
            has_told: false,
        };
        let started = thread::Builder::new().name("outlive-run-show".to_owned());
        let started = started.spawn(move || shower.run(&taken));
        started.map_err(|e| Error::no_thread("what the command prints", &e))?;
        Ok(Transcripts { commands, root: root.to_owned(), is_one })
    }

    fn send(&self, command: Command) {
        // The thread ends with this value only.
        let _ = self.commands.send(command);
    }

    /// Makes the files of a new attempt.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn begin(&self, attempt: u64) -> Result<Printing> {
        let printing = make_files(&self.root, attempt, self.is_one)?;
        self.send(Command::Begin(attempt));
        Ok(printing)
    }

    /// Shows parts that a checkpoint covers.
    pub fn cover(&self, spans: Vec<Span>, committed: bool) {
        self.send(Command::Cover { spans, committed });
    }

    /// Drops parts that the program repeats.
    pub fn drop_to(&self, spans: Vec<Span>) {
        self.send(Command::Drop(spans));
    }

    /// Shows how a failed attempt has ended.
    pub fn crash(&self, attempt: u32) {
        self.send(Command::Crash(attempt));
    }

    /// Shows what no checkpoint covers, marked as that: no attempt follows.
    pub fn last(&self) {
        self.send(Command::Last);
    }

    /// Shows everything, as the command has finished.
    pub fn finish(&self) {
        self.send(Command::Finish);
    }

    /// Removes the transcripts, once everything is shown.
    pub fn remove(&self) {
        let _ = std::fs::remove_dir_all(&self.root);
    }

    /// Waits until everything is shown that is to be shown, or a signal comes.
    ///
    /// # Errors
    /// The error of a stream that takes nothing. The rest stays in the folder.
    pub fn settle(&self, interrupts: &mut Interrupts) -> Result<()> {
        let (reply, answer) = channel();
        self.send(Command::Settle(reply));
        // A signal from before this wait was meant for the command.
        interrupts.take();
        loop {
            match answer.recv_timeout(Duration::from_millis(5)) {
                Ok(settled) => return settled,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::bug("the thread that shows the transcripts has ended"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            let ends = |it: &Interrupt| {
                matches!(it, Interrupt::Stop(_) | Interrupt::Forward(SIGINT | SIGQUIT))
            };
            if interrupts.take().iter().any(ends) {
                return Err(Error::retry("a signal has ended the wait for standard output"));
            }
            interrupts.wait(MOMENT);
        }
    }
}

/// The thread's side.
struct Shower {
    book: Book,
    tell: Tell,
    /// Streams that take nothing, as the user knows.
    refused: BTreeSet<usize>,
    /// Start of this supervisor, or its last commit.
    since: Instant,
    /// Whether the user knows why nothing appears.
    has_told: bool,
}

impl Shower {
    fn run(mut self, commands: &Receiver<Command>) {
        let mut trouble = self.write_out();
        loop {
            match commands.recv_timeout(RETRY_EVERY) {
                Ok(Command::Settle(reply)) => {
                    let _ = reply.send(trouble.take().map_or(Ok(()), Err));
                }
                Ok(command) => self.take(command),
                Err(RecvTimeoutError::Timeout) => self.tell_of_wait(LONG),
                Err(RecvTimeoutError::Disconnected) => return,
            }
            trouble = self.write_out();
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Begin(attempt) => self.book.begin(attempt),
            Command::Cover { spans, committed } => {
                self.has_told |= committed;
                self.book.cover(&spans, committed);
            }
            Command::Drop(spans) => self.book.drop_to(&spans),
            Command::Crash(attempt) => {
                let is_error = |span: &Span| !span.file.contains("/stdout");
                let what = format!("attempt {attempt}: the end of");
                self.show_uncovered(&what, is_error, CRASH_LINES, CRASH_BYTES);
            }
            Command::Last => self.show_uncovered("all of", |_| true, usize::MAX, LAST_BYTES),
            Command::Finish => {
                if let earlier @ 1.. = self.book.finish() {
                    (self.tell)(&format!(
                        "the command has not opened the job, so all that its {} have printed appears, \
                         also lines that it repeated: are --pool and --job those of the program?",
                        counted(earlier as u64 + 1, "attempt")
                    ));
                }
            }
            Command::Settle(_) => {}
        }
    }

    /// Shows the ends of transcripts on standard error, marked: no checkpoint covers them.
    fn show_uncovered(&self, what: &str, is_shown: fn(&Span) -> bool, lines: usize, bytes: u64) {
        let book = &self.book;
        let mut spans = book.uncovered();
        spans.retain(is_shown);
        for span in spans.iter().take(SHOWN_MAX) {
            let end = book.end_of(span, bytes);
            let text = String::from_utf8_lossy(&end);
            let all: Vec<&str> = text.lines().collect();
            let left_out = match (span.to - span.from).saturating_sub(bytes) {
                0 => String::new(),
                left => format!(" but its first {left} bytes"),
            };
            let stream = stream_name(&span.file);
            (self.tell)(&format!("{what} {stream}{left_out}, which no checkpoint covers:"));
            for line in &all[all.len().saturating_sub(lines)..] {
                (self.tell)(&format!("| {line}"));
            }
        }
        if let more @ 1.. = spans.len().saturating_sub(SHOWN_MAX) {
            let root = book.root().display();
            (self.tell)(&format!(
                "{what} {more} more transcripts is not shown, and lies in {root}"
            ));
        }
    }

    /// Writes what waits. Returns the error if not all could be written.
    fn write_out(&mut self) -> Option<Error> {
        let written = self.book.write_out();
        let (left, root) = (self.book.waiting_bytes(), self.book.root().display().to_string());
        let streams = match written {
            Ok(streams) => streams,
            Err(error) => {
                let error = error.context("what the command prints cannot be shown now");
                if self.refused.insert(usize::MAX) {
                    (self.tell)(error.message());
                }
                return Some(error);
            }
        };
        let mut first = None;
        for (stream, error) in &streams {
            let name = Stream::name(*stream);
            let advice = match error.kind() {
                io::ErrorKind::BrokenPipe => "its reader is gone",
                _ => "it is tried again",
            };
            if self.refused.insert(*stream) {
                (self.tell)(&format!(
                    "{name} takes nothing ({error}; {advice}): what the command prints waits in {root}"
                ));
            }
            let text = format!(
                "{left} bytes are not shown, and wait in {root} for the next `outlive run --gate`: {name}: {error}"
            );
            first.get_or_insert_with(|| match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::full(text),
                _ => Error::retry(text),
            });
        }
        let refused: BTreeSet<usize> = streams.iter().map(|(stream, _)| *stream).collect();
        self.refused.retain(|stream| refused.contains(stream));
        first
    }

    /// Tells once why nothing appears, if no commit has come for long.
    fn tell_of_wait(&mut self, long: Duration) {
        if self.has_told || self.since.elapsed() < long || self.book.uncovered().is_empty() {
            return;
        }
        self.has_told = true;
        (self.tell)(
            "what the command prints appears with its next checkpoint, or once it has finished",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_types::sync::plain::Mutex;
    use std::io::Write;

    fn shower(root: &Path) -> (Shower, Printing, Arc<Mutex<Vec<String>>>) {
        let told = Arc::new(Mutex::new(Vec::new()));
        let to = told.clone();
        let mut book = Book::open(root, false, &|_| ()).unwrap();
        let printing = make_files(root, 1, false).unwrap();
        book.begin(1);
        let shower = Shower {
            book,
            tell: Arc::new(move |text| to.lock().push(text.to_owned())),
            refused: BTreeSet::new(),
            since: Instant::now(),
            has_told: false,
        };
        (shower, printing, told)
    }

    #[test]
    fn a_program_that_does_not_save_learns_once_why_nothing_appears() {
        let dir = tempfile::tempdir().unwrap();
        let (mut shower, mut printing, told) = shower(dir.path());
        shower.tell_of_wait(Duration::ZERO);
        assert!(told.lock().is_empty());
        printing.stdout.write_all(b"text").unwrap();
        shower.tell_of_wait(LONG);
        assert!(told.lock().is_empty());
        shower.tell_of_wait(Duration::ZERO);
        shower.tell_of_wait(Duration::ZERO);
        assert_eq!(told.lock().len(), 1);
        shower.has_told = false;
        shower.take(Command::Cover { spans: Vec::new(), committed: true });
        shower.tell_of_wait(Duration::ZERO);
        assert_eq!(told.lock().len(), 1);
    }

    #[test]
    fn a_crash_shows_the_last_lines_of_standard_error_that_are_not_covered() {
        let dir = tempfile::tempdir().unwrap();
        let (mut shower, mut printing, told) = shower(dir.path());
        printing.stdout.write_all(b"work").unwrap();
        let lines: String = (0..30).map(|line| format!("line {line}\n")).collect();
        printing.stderr.write_all(lines.as_bytes()).unwrap();
        std::fs::write(printing.folder.join("owner.0"), "12").unwrap();
        shower.take(Command::Crash(3));
        let first = std::mem::take(&mut *told.lock());
        assert_eq!(
            first[0],
            "attempt 3: the end of its standard error, which no checkpoint covers:"
        );
        assert_eq!((first.len(), &*first[1]), (1 + CRASH_LINES, "| line 10"));
        // All but the last line is covered.
        let to = lines.len() as u64 - 8;
        let spans = vec![Span { file: "1/stderr".to_owned(), from: 0, to }];
        shower.take(Command::Drop(spans));
        shower.take(Command::Last);
        let last = std::mem::take(&mut *told.lock());
        assert_eq!(last[1..2], ["| line 29"]);
        assert_eq!(last[3..], ["| work"]);
        // More ranks than are shown.
        for rank in 0..9 {
            std::fs::write(printing.folder.join(format!("stdout.{rank}")), "rank").unwrap();
        }
        shower.take(Command::Last);
        let last = std::mem::take(&mut *told.lock());
        assert_eq!(last.iter().filter(|line| line.starts_with("| ")).count(), SHOWN_MAX);
        let rest = "all of 3 more transcripts is not shown, and lies in ";
        assert!(last.last().unwrap().starts_with(rest), "{last:?}");
    }

    #[test]
    fn transcripts_of_earlier_attempts_stay_until_a_commit() {
        let dir = tempfile::tempdir().unwrap();
        let (mut shower, mut printing, _) = shower(dir.path());
        printing.stdout.write_all(b"one two").unwrap();
        make_files(dir.path(), 2, false).unwrap();
        shower.take(Command::Begin(2));
        let span = |to| vec![Span { file: "1/stdout".to_owned(), from: 0, to }];
        shower.take(Command::Cover { spans: span(3), committed: false });
        assert_eq!(shower.book.waiting_bytes(), 3);
        assert!(shower.write_out().is_none());
        shower.take(Command::Cover { spans: span(3), committed: false });
        // Another attempt may find a newer checkpoint again, which this one could not read.
        shower.take(Command::Cover { spans: span(7), committed: false });
        assert_eq!(shower.book.waiting_bytes(), 4);
        // A part that waits for a stream outlives the commit.
        shower.take(Command::Cover { spans: Vec::new(), committed: true });
        assert!(printing.folder.exists());
        assert!(shower.write_out().is_none());
        shower.take(Command::Cover { spans: Vec::new(), committed: true });
        assert!(!printing.folder.exists());
    }
    #[test]
    fn a_commit_that_is_read_late_keeps_the_transcripts_of_the_next_attempt() {
        let dir = tempfile::tempdir().unwrap();
        let (mut shower, first, _) = shower(dir.path());
        // The thread stood still, and the command has started again meanwhile.
        let mut second = make_files(dir.path(), 2, false).unwrap();
        second.stdout.write_all(b"two").unwrap();
        shower.take(Command::Cover { spans: Vec::new(), committed: true });
        shower.take(Command::Begin(2));
        assert_eq!(shower.book.uncovered().len(), 1);
        shower.take(Command::Cover { spans: Vec::new(), committed: true });
        assert!(second.folder.exists() && !first.folder.exists());
    }

    #[test]
    fn a_transcript_that_cannot_be_read_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let (mut shower, mut printing, told) = shower(dir.path());
        printing.stdout.write_all(b"text").unwrap();
        let spans = vec![Span { file: "1/stdout".to_owned(), from: 0, to: 4 }];
        shower.take(Command::Cover { spans, committed: true });
        let (path, away) = (printing.folder.join("stdout"), dir.path().join("away"));
        std::fs::rename(&path, &away).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(shower.write_out().is_some());
        assert_eq!((shower.book.waiting_bytes(), told.lock().len()), (4, 1));
        std::fs::remove_dir(&path).unwrap();
        std::fs::rename(&away, &path).unwrap();
        assert!(shower.write_out().is_none());
        assert_eq!(shower.book.waiting_bytes(), 0);
    }
}
