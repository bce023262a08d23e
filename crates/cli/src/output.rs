//! Output of a command: its answer, tables and numbers, and progress while it works.

use indicatif::{ProgressBar, ProgressStyle};
use outlive_store::retention::date_of_days;
pub use outlive_types::counted as count;
use outlive_types::sync::plain::{Mutex, MutexGuard};
use outlive_types::{Event, Observer, shown_path};
use serde_json::Value;
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// Result of a command that could do its work.
#[derive(Debug)]
pub struct Answer {
    /// Text for people, ending in a line feed.
    pub text: String,
    /// The same and more, for programs.
    pub json: Value,
    /// Exit code: 0; 3 if the command searched for damage and found some; 1 for checkpoints that
    /// differ.
    pub code: i32,
}

impl Answer {
    /// Returns an answer with exit code 0.
    pub fn new(text: String, json: Value) -> Answer {
        Answer { text, json, code: 0 }
    }
}

/// How much goes to standard error, besides errors and warnings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Verbosity {
    /// Nothing.
    Quiet,
    /// Progress, and information that a user needs.
    #[default]
    Normal,
    /// Normal steps, too.
    Verbose,
}

/// Prints events to standard error: warnings as lines, progress as a bar if it is a terminal.
#[derive(Default)]
pub struct Reporter {
    verbosity: Verbosity,
    bar: Mutex<Option<ProgressBar>>,
    /// Time of the last line about a step.
    last_step: Mutex<Option<Instant>>,
}

/// Shortest time between two lines about steps.
const STEPS_APART: Duration = Duration::from_secs(1);

impl Reporter {
    fn bar(&self) -> MutexGuard<'_, Option<ProgressBar>> {
        self.bar.lock()
    }

    /// Returns a reporter that prints as much.
    pub fn new(verbosity: Verbosity) -> Reporter {
        Reporter { verbosity, ..Reporter::default() }
    }

    /// Whether to print more than usual.
    pub fn is_verbose(&self) -> bool {
        self.verbosity == Verbosity::Verbose
    }

    /// Prints a line of information, unless the user wants quiet.
    pub fn inform(&self, line: &str) {
        if self.verbosity != Verbosity::Quiet {
            self.say(line);
        }
    }

    /// Prints a line that the user must see.
    pub fn say(&self, line: &str) {
        match &*self.bar() {
            Some(bar) => bar.suspend(|| complain(line)),
            None => complain(line),
        }
    }

    /// Shows that `done` of `total` bytes of `what` are processed; the bar is hidden unless
    /// standard error is a terminal.
    pub fn progress(&self, what: &str, done: u64, total: u64) {
        if self.verbosity == Verbosity::Quiet {
            return;
        }
        let mut slot = self.bar();
        let bar = slot.get_or_insert_with(|| {
            let bar = ProgressBar::new(total);
            let style = "{msg} {bar:30} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}";
            if let Ok(style) = ProgressStyle::with_template(style) {
                bar.set_style(style);
            }
            bar
        });
        if bar.message() != what {
            bar.set_message(what.to_owned());
            bar.reset_eta();
        }
        bar.set_length(total);
        bar.set_position(done);
    }

    /// Shows that `what` is in progress, for work of unknown length.
    pub fn busy(&self, what: &str) {
        self.finish();
        if self.verbosity == Verbosity::Quiet {
            return;
        }
        let mut slot = self.bar();
        let bar = slot.insert(ProgressBar::new_spinner());
        bar.set_message(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(200));
    }

    /// Shows which step of long work begins: on a terminal as [`Reporter::busy`], otherwise as a
    /// line, but not one for each of many short steps.
    pub fn step(&self, work: &str, what: &str) {
        if io::stderr().is_terminal() {
            return self.busy(what);
        }
        let mut last = self.last_step.lock();
        if self.verbosity != Verbosity::Quiet
            && last.is_none_or(|last| last.elapsed() >= STEPS_APART)
        {
            *last = Some(Instant::now());
            complain(&format!("{work}: {what}"));
        }
    }

    /// Removes the bar.
    pub fn finish(&self) {
        if let Some(bar) = self.bar().take() {
            bar.finish_and_clear();
        }
    }
}

impl Observer for Reporter {
    fn event(&self, event: Event) {
        if let Event::Progress(progress) = &event {
            self.progress(progress.what, progress.done_bytes, progress.total_bytes);
        } else if let Some(line) = line(&event, self.verbosity) {
            self.say(&line);
        }
    }
}

/// Returns the line for an event, if it has one.
fn line(event: &Event, verbosity: Verbosity) -> Option<String> {
    match event {
        Event::Warning(text) => Some(format!("warning: {text}")),
        Event::Info(text) => (verbosity == Verbosity::Verbose).then(|| format!("info: {text}")),
        Event::Progress(_) => None,
    }
}

/// Writes a line to standard error. A failure has no other output.
pub fn complain(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Lines of columns. The first row is the heading; columns with a leading `>` are right-aligned.
#[derive(Debug)]
pub struct Table {
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns a table with these headings.
    pub fn new(headings: &[&str]) -> Table {
        let right = headings.iter().map(|heading| heading.starts_with('>')).collect();
        let headings = headings.iter().map(|h| h.trim_start_matches('>').to_owned()).collect();
        Table { right, rows: vec![headings] }
    }

    /// Adds a row of as many cells as there are headings.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Returns the text, with a line feed after each row.
    pub fn text(&self) -> String {
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| Some(row.get(column)?.chars().count())).max()
        };
        let widths: Vec<usize> =
            (0..self.right.len()).map(|column| width(column).unwrap_or(0)).collect();
        let mut out = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for ((cell, width), right) in row.iter().zip(&widths).zip(&self.right) {
                if !line.is_empty() {
                    line.push_str("  ");
                }
                let _ = match right {
                    true => write!(line, "{cell:>width$}"),
                    false => write!(line, "{cell:<width$}"),
                };
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }
}

/// Returns a printable form of any name.
pub fn shown(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for c in name.chars() {
        match c {
            // Harmless and frequent in names such as `layer['w']`.
            '"' | '\'' => out.push(c),
            _ => out.extend(c.escape_debug()),
        }
    }
    out
}

/// Returns a user's text in quotes, in a printable form.
pub fn quoted(text: &str) -> String {
    format!("{text:?}")
}

/// Returns a path for programs: unchanged, or escaped as in text if it is not UTF-8.
pub fn path_json(path: &[u8]) -> String {
    str::from_utf8(path).map_or_else(|_| shown_path(path), str::to_owned)
}

/// Returns at most `chars_max` characters of a printable text.
pub fn shortened(shown: &str, chars_max: usize) -> String {
    if shown.chars().count() <= chars_max {
        return shown.to_owned();
    }
    let kept: String = shown.chars().take(chars_max.saturating_sub(1)).collect();
    format!("{kept}…")
}

/// Returns bytes as text for people: "4.0 MiB".
pub use outlive_types::shown_bytes as bytes;

/// Returns an age as text for people: "3 min".
pub fn age(then_ns: u64, now_ns: u64) -> String {
    let seconds = now_ns.saturating_sub(then_ns) / 1_000_000_000;
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// Returns a time in UTC: "2026-11-21 01:35:37Z".
pub fn when(unix_ns: u64) -> String {
    let seconds = unix_ns / 1_000_000_000;
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date_of_days(days);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_dates() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00Z"),
            (951_782_399, "2000-02-28 23:59:59Z"),
            (951_782_400, "2000-02-29 00:00:00Z"),
            (1_709_251_200, "2024-03-01 00:00:00Z"),
            (1_795_224_937, "2026-11-21 01:35:37Z"),
        ] {
            assert_eq!(when(seconds * 1_000_000_000), text);
        }
        assert!(when(u64::MAX).starts_with("2554-"));
    }

    #[test]
    fn normal_steps_are_told_on_request_and_warnings_always() {
        let lines = |event: Event| {
            [Verbosity::Quiet, Verbosity::Normal, Verbosity::Verbose].map(|v| line(&event, v))
        };
        let info = lines(Event::Info("a step".to_owned()));
        assert_eq!(info, [None, None, Some("info: a step".to_owned())]);
        let warning = Some("warning: look".to_owned());
        assert_eq!(
            lines(Event::Warning("look".to_owned())),
            [warning.clone(), warning.clone(), warning]
        );
    }

    #[test]
    fn bytes_read_well() {
        for (count, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (4 << 20, "4.0 MiB"),
            (u64::MAX, "16384.0 PiB"),
        ] {
            assert_eq!(bytes(count), text);
        }
        assert_eq!(bytes((1 << 20) - 1), "1.0 MiB", "never 1024.0 KiB");
    }

    #[test]
    fn tables_align() {
        let mut table = Table::new(&["name", ">size"]);
        table.row(vec!["ü".into(), "10".into()]);
        table.row(vec!["longer".into(), "9".into()]);
        assert_eq!(table.text(), "name    size\nü         10\nlonger     9\n");
    }

    #[test]
    fn names_cannot_play_with_the_terminal() {
        assert_eq!(shown("a['\u{1b}[2J\n']"), "a['\\u{1b}[2J\\n']");
        assert_eq!(shortened("abcdefgh", 5), "abcd…");
    }
}
