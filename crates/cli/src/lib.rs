//! The `outlive` command: looks at pools, checks them, takes data out of them, measures them.
//!
//! One file a subcommand. Each makes an [`output::Answer`], a text for people and a JSON value for
//! programs, and [`run`] prints the one that was asked for. The Python wheel calls [`run`], too.

mod args;
mod bench;
mod chosen;
mod collect;
mod copy;
mod diff;
mod du;
mod export;
mod fill;
mod get;
mod interrupt;
mod items;
mod ls;
mod move_log;
mod note;
mod npy;
mod other_names;
mod output;
mod plot;
mod pool;
mod probe;
mod put;
mod region;
mod repair;
mod scrub;
mod show;
mod targets;
mod tiers;
mod tree;
mod trim;
mod verify;

pub use plot::svg as plot;

use args::{Args, Command, PoolCommand};
use clap::Parser;
use clap::error::ContextKind;
use outlive_types::{Error, ErrorKind, Result};
use output::{Answer, Reporter, complain};
use serde_json::json;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

/// Exit code when damage was found: that of an error of kind `Damaged`.
const EXIT_DAMAGED: i32 = 3;
/// Exit code for an interruption by Ctrl-C: that of a shell for SIGINT.
const EXIT_INTERRUPTED: i32 = 130;
/// Exit code for a file of which a pipe took only a part: that of a shell for SIGPIPE.
const EXIT_CUT: i32 = 141;
/// Exit code for files that are missing or doubtful, when everything else went well.
const EXIT_INCOMPLETE: i32 = 7;

/// Runs the command that `args` describe, the program's name first, and returns the exit code:
/// 0 done, 1 a fault of outlive, 2 a request that cannot work, 3 damage, 4 no room, 5 fenced,
/// 6 try again, 7 done but for files that are named, 130 interrupted, 141 a pipe closed too early.
pub fn run(args: impl IntoIterator<Item = OsString>) -> i32 {
    let words: Vec<OsString> = args.into_iter().collect();
    let args = match Args::try_parse_from(&words) {
        Ok(args) => args,
        Err(error) => return say_usage(&error, &words),
    };
    let json = args.json;
    let gives_content = args.command.gives_content();
    match execute(args.command, &words) {
        Ok(answer) => {
            let printed = match json {
                // What went to standard output already is all there is to say.
                true if answer.json.is_null() => Ok(()),
                true => print_json(&answer.json),
                false => print(&answer.text),
            };
            match printed {
                Ok(()) => answer.code,
                // Whoever read has enough, as `head` does.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => answer.code,
                Err(error) => {
                    let error = stdout_error(&error);
                    complain(&format!("outlive: {}", said(&error)));
                    exit_code(error.kind())
                }
            }
        }
        Err(error) => {
            let kind = error.kind();
            match json {
                true => say_json(kind, error.message(), gives_content),
                false => complain(&format!("outlive: {}", said(&error))),
            }
            // What was asked to end, and has, need not be tried again.
            match kind == ErrorKind::Retry && interrupt::was_asked() {
                true => EXIT_INTERRUPTED,
                false => exit_code(kind),
            }
        }
    }
}

/// Help, or why the command line cannot be read, which `--json` in it turns into JSON, too.
fn say_usage(error: &clap::Error, words: &[OsString]) -> i32 {
    let has = |word: &str| words.iter().take_while(|w| *w != "--").any(|w| w == word);
    let unknown = error.get(ContextKind::InvalidSubcommand).map(ToString::to_string);
    // That of `pool` or `bench` comes second.
    let first = words.iter().skip(1).find(|word| !word.as_encoded_bytes().starts_with(b"-"));
    let other = unknown
        .filter(|unknown| first.is_some_and(|first| **first == **unknown))
        .and_then(|unknown| other_names::meant_by(&unknown));
    if let (Some(other), false) = (&other, has("--json")) {
        complain(&format!("outlive: {other}"));
    } else if error.use_stderr() && has("--json") {
        let text = other.unwrap_or_else(|| error.to_string());
        let message = text.strip_prefix("error: ").unwrap_or(&text).trim_end();
        let gives_content =
            has("--to=-") || words.windows(2).any(|pair| pair[0] == "--to" && pair[1] == "-");
        say_json(ErrorKind::Invalid, message, gives_content);
    } else {
        // Nobody is left to be told if even this cannot be printed.
        let _ = error.print();
    }
    error.exit_code()
}

/// An error as JSON. If standard output takes a file's content, whoever reads it from there must
/// not find this at its end.
fn say_json(kind: ErrorKind, message: &str, gives_content: bool) {
    let error = json!({ "error": { "kind": kind.name(), "message": message } });
    match gives_content {
        true => complain(&format!("{error:#}")),
        false => drop(print_json(&error)),
    }
}

/// That standard output does not take what is written to it.
fn stdout_error(error: &io::Error) -> Error {
    Error::io_named("writing to", Path::new("standard output"), error)
}

fn execute(command: Command, words: &[OsString]) -> Result<Answer> {
    let reporter = Arc::new(Reporter::default());
    let answer = match command {
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
        Command::Pool(PoolCommand::Probe) => probe::probe(),
        Command::Ls(args) => ls::ls(&args, &reporter),
        Command::Show(args) => show::show(&args, &reporter),
        Command::Verify(args) => verify::verify(&args, &reporter),
        Command::Export(args) => export::export(&args, &reporter),
        Command::Put(args) => put::put(&args, &reporter),
        Command::Get(args) => get::get(&args, &reporter),
        Command::Note(args) => note::note(&args, &reporter),
        Command::Prune(args) => collect::prune(&args, &reporter),
        Command::Gc(args) => collect::gc(&args, &reporter),
        Command::Du(args) => du::du(&args, &reporter),
        Command::Diff(args) => diff::diff(&args, &reporter),
        Command::Copy(args) => copy::copy(&args, &reporter),
        Command::Scrub(args) => scrub::scrub(&args, &reporter),
        Command::Bench(command) => bench::bench(command, words, &reporter),
    };
    reporter.finish();
    answer
}

/// The exit code that says what the caller can do.
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

/// The message, and what a kind adds to it that the message need not repeat each time.
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
