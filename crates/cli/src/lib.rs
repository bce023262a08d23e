//! The `outlive` command: makes, shows and checks pools, and moves data into and out of them.
//!
//! Each subcommand has a file. It returns an [`output::Answer`], a text for people and a JSON value
//! for programs, and [`run`] prints one of them. The Python wheel calls [`run`], too.

mod args;
mod chosen;
mod chosen_paths;
mod collect;
mod copy;
mod csv;
pub mod curves;
mod diff;
mod du;
mod export;
mod fill;
mod find;
mod get;
mod helper;
mod import;
mod interrupt;
mod items;
mod jobs;
mod key;
mod ls;
mod metrics_file;
mod move_log;
mod node;
mod node_local;
mod node_options;
mod note;
mod npy;
pub mod numbers;
mod other_names;
pub mod output;
mod overview;
pub mod plot;
mod pool;
mod pool_metrics;
mod probe;
mod put;
mod region;
mod repair;
mod run;
mod scrub;
mod seats;
mod shell;
mod show;
mod tags;
mod targets;
mod tiers;
mod timeline;
mod tree;
mod trim;
mod verify;
mod web;

pub use plot::job::{Axis as PlotAxis, svg as plot};
pub use plot::picture::png;
pub use pool_metrics::text_of as pool_metrics_text;

use args::{Args, Command, PoolCommand};
use clap::Parser;
use clap::error::ContextKind;
use metrics_file::MetricsFile;
use outlive_types::{Error, ErrorKind, Result};
use output::{Answer, Reporter, Verbosity, complain};
use serde_json::json;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

/// Exit code when damage was found, as for an error of kind `Damaged`.
const EXIT_DAMAGED: i32 = 3;
/// Exit code for an interruption by Ctrl-C, as of a shell for SIGINT.
pub const EXIT_INTERRUPTED: i32 = 130;
/// Exit code for a file of which a pipe took only a part, as of a shell for SIGPIPE.
const EXIT_CUT: i32 = 141;
/// Exit code if files are missing or doubtful, and everything else succeeded.
const EXIT_INCOMPLETE: i32 = 7;

/// A program's command line: `outlive` and `outlive-bench` have one each.
pub trait CommandLine: Parser {
    /// The program's name, which begins its messages.
    const NAME: &'static str;

    /// A sentence with this program's name for a command that it lacks.
    fn meant_by(_command: &str) -> Option<String> {
        None
    }

    /// Whether the answer is printed as one JSON value.
    fn json(&self) -> bool;

    /// Whether standard output takes the content of a file, and nothing else.
    fn gives_content(&self) -> bool {
        false
    }

    /// Executes the command. `words` are those of the command line.
    ///
    /// # Errors
    /// Those of the command.
    fn execute(self, words: &[OsString]) -> Result<Answer>;
}

/// Runs the command line `args` of `outlive`: see [`run_as`].
pub fn run(args: impl IntoIterator<Item = OsString>) -> i32 {
    run_as::<Args>(args)
}

/// Runs the command line `args`, which begins with the program's name. Returns the exit code:
///
/// - 0 done, 1 a fault of outlive, 2 an impossible request, 3 damage, 4 no space, 5 fenced
/// - 6 try again, 7 done except for files that are named, 75 to 77 see `outlive run`, 130
///   interrupted, 141 a pipe closed too early
pub fn run_as<A: CommandLine>(args: impl IntoIterator<Item = OsString>) -> i32 {
    let words: Vec<OsString> = args.into_iter().collect();
    let args = match A::try_parse_from(&words) {
        Ok(args) => args,
        Err(error) => return say_usage::<A>(&error, &words),
    };
    let (json, gives_content) = (args.json(), args.gives_content());
    match args.execute(&words) {
        Ok(answer) => {
            let printed = match json {
                // The content of a file is the output; a `get` has written it already.
                true if answer.json.is_null() => print(&answer.text),
                true => print_json(&answer.json),
                false => print(&answer.text),
            };
            match printed {
                Ok(()) => answer.code,
                // The reader has read enough, like `head`.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => answer.code,
                Err(error) => {
                    let error = stdout_error(&error);
                    complain(&format!("{}: {}", A::NAME, said(&error)));
                    exit_code(error.kind())
                }
            }
        }
        Err(error) => {
            let kind = error.kind();
            match json {
                true => say_json(kind, error.message(), gives_content),
                false => complain(&format!("{}: {}", A::NAME, said(&error))),
            }
            // Work that ended on request need not be tried again.
            match kind == ErrorKind::Retry && interrupt::was_asked() {
                true => EXIT_INTERRUPTED,
                false => exit_code(kind),
            }
        }
    }
}

/// Prints help, or the error in the command line, as JSON if that contains `--json`.
fn say_usage<A: CommandLine>(error: &clap::Error, words: &[OsString]) -> i32 {
    let has = |word: &str| words.iter().take_while(|w| *w != "--").any(|w| w == word);
    let unknown = error.get(ContextKind::InvalidSubcommand).map(ToString::to_string);
    // A subcommand of `pool` is the second word.
    let first = words.iter().skip(1).find(|word| !word.as_encoded_bytes().starts_with(b"-"));
    let other = unknown
        .filter(|unknown| first.is_some_and(|first| **first == **unknown))
        .and_then(|unknown| A::meant_by(&unknown));
    if let (Some(other), false) = (&other, has("--json")) {
        complain(&format!("{}: {other}", A::NAME));
    } else if error.use_stderr() && has("--json") {
        let text = other.unwrap_or_else(|| error.to_string());
        let message = text.strip_prefix("error: ").unwrap_or(&text).trim_end();
        let gives_content =
            has("--to=-") || words.windows(2).any(|pair| pair[0] == "--to" && pair[1] == "-");
        say_json(ErrorKind::Invalid, message, gives_content);
    } else {
        // If even this cannot be printed, no output is left for an error.
        let _ = error.print();
    }
    error.exit_code()
}

/// Prints an error as JSON. If standard output takes a file's content, its reader must not find the
/// error at the end.
fn say_json(kind: ErrorKind, message: &str, gives_content: bool) {
    let error = json!({ "error": { "kind": kind.name(), "message": message } });
    match gives_content {
        true => complain(&format!("{error:#}")),
        false => drop(print_json(&error)),
    }
}

/// Returns the error if standard output cannot be written to.
fn stdout_error(error: &io::Error) -> Error {
    Error::io_named("writing to", Path::new("standard output"), error)
}

impl CommandLine for Args {
    const NAME: &'static str = "outlive";

    fn meant_by(command: &str) -> Option<String> {
        other_names::meant_by(command)
    }

    fn json(&self) -> bool {
        self.json
    }

    fn gives_content(&self) -> bool {
        self.command.gives_content()
    }

    fn execute(self, words: &[OsString]) -> Result<Answer> {
        // Before and after the subcommand's name are two places for clap.
        if self.quiet && self.verbose {
            return Err(Error::invalid("--quiet cannot be used with --verbose: give one of them"));
        }
        let reporter = Arc::new(Reporter::new(match (self.quiet, self.verbose) {
            (true, _) => Verbosity::Quiet,
            (false, true) => Verbosity::Verbose,
            (false, false) => Verbosity::Normal,
        }));
        let metrics = self.metrics.map(MetricsFile::at).transpose()?;
        let answer = match self.command {
            Command::Pool(PoolCommand::Init(args)) => pool::init(&args, &reporter),
            Command::Pool(PoolCommand::Add(args)) => targets::add(&args, &reporter),
            Command::Pool(PoolCommand::Drain(args)) => targets::drain(&args, &reporter),
            Command::Pool(PoolCommand::Remove(args)) => targets::remove(&args, &reporter),
            Command::Pool(PoolCommand::Release(args)) => targets::release(&args, &reporter),
            Command::Pool(PoolCommand::Replace(args)) => targets::replace(&args, &reporter),
            Command::Pool(PoolCommand::MoveLog(args)) => move_log::move_log(&args, &reporter),
            Command::Pool(PoolCommand::Repair(args)) => repair::repair(&args, &reporter),
            Command::Pool(PoolCommand::Fill(args)) => fill::fill(&args, &reporter),
            Command::Pool(PoolCommand::Trim(args)) => trim::trim(&args, &reporter),
            Command::Pool(PoolCommand::Status(args)) => pool::status(&args, &reporter),
            Command::Pool(PoolCommand::Probe(args)) => probe::probe(&args, &reporter),
            Command::Ls(args) => ls::ls(&args, &reporter),
            Command::Show(args) => show::show(&args, &reporter),
            Command::Verify(args) => verify::verify(&args, &reporter),
            Command::Export(args) => export::export(&args, &reporter),
            Command::Import(args) => import::import(&args, &reporter),
            Command::Put(args) => put::put(&args, &reporter),
            Command::Get(args) => get::get(&args, &reporter),
            Command::Find(args) => find::find(&args, &reporter),
            Command::Run(args) => run::run(&args, words, &reporter),
            Command::Helper(args) => helper::helper(&args, words, &reporter),
            Command::Stop(args) => run::stop(&args, &reporter),
            Command::History(args) => run::history(&args, &reporter),
            Command::Web(args) => web::web(&args, self.json),
            Command::Report(args) => web::report(&args, &reporter),
            Command::Metrics(args) => pool_metrics::metrics(&args, &reporter),
            Command::Note(args) => note::note(&args, &reporter),
            Command::Tag(args) => tags::tag(&args, &reporter),
            Command::Mark(args) => note::mark(&args, &reporter),
            Command::Node(command) => node::node(command, self.json, &reporter),
            Command::Key(command) => key::key(&command, &reporter),
            Command::Job(command) => jobs::job(&command, self.json, &reporter),
            Command::Prune(args) => collect::prune(&args, &reporter),
            Command::Gc(args) => collect::gc(&args, &reporter),
            Command::Du(args) => du::du(&args, &reporter),
            Command::Diff(args) => diff::diff(&args, &reporter),
            Command::Copy(args) => copy::copy(&args, &reporter),
            Command::Scrub(args) => scrub::scrub(&args, &reporter),
            Command::Completions(args) => Ok(shell::completions(&args)),
            Command::Man(args) => shell::man(&args),
        };
        reporter.finish();
        // Also after an error: the metrics may explain it.
        match metrics.map_or(Ok(()), |file| file.write()) {
            Ok(()) => answer,
            Err(error) => {
                let error = error.context("the metrics of this run cannot be written");
                complain(&format!("{}: {}", Self::NAME, said(&error)));
                let code = |code| if code == 0 { exit_code(error.kind()) } else { code };
                answer.map(|answer| Answer { code: code(answer.code), ..answer })
            }
        }
    }
}

/// Returns the exit code for the caller's next step.
fn exit_code(kind: ErrorKind) -> i32 {
    match kind {
        ErrorKind::Bug => 1,
        ErrorKind::Invalid => 2,
        ErrorKind::Damaged => EXIT_DAMAGED,
        ErrorKind::Full => 4,
        ErrorKind::Fenced => 5,
        ErrorKind::Retry => 6,
    }
}

/// Returns the message, with advice that holds for all errors of its kind.
fn said(error: &Error) -> String {
    let advice = match error.kind() {
        ErrorKind::Bug => " (this is a fault of outlive: please report it)",
        ErrorKind::Retry if !interrupt::was_asked() => " (this may be temporary: try again)",
        _ => "",
    };
    format!("{}{advice}", error.message())
}

fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

fn print_json(value: &serde_json::Value) -> io::Result<()> {
    print(&format!("{value:#}\n"))
}
