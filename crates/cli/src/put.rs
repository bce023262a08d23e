//! `outlive put`: files, directories or standard input as a checkpoint.

use crate::args::PutArgs;
use crate::jobs::check_new_name;
use crate::output::{Answer, Reporter, bytes, count, path_json, shown};
use crate::{EXIT_INCOMPLETE, interrupt, pool};
use outlive_files::{
    Listed, Patterns, PutFiles, PutOptions, PutPlan, PutReport, PutSource, Troubles,
};
use outlive_format::Remarks;
use outlive_store::{Job, JobOptions, SaveNotes};
use outlive_types::{Error, Result, shown_path};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Interval between checks for a stop request while standard input is silent.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Most file errors printed as text; the JSON has all that are kept.
const TROUBLES_SHOWN: usize = 20;

/// `outlive put`.
pub fn put(args: &PutArgs, reporter: &Arc<Reporter>) -> Result<Answer> {
    let mut options = options(args)?;
    let is_stream = args.paths.iter().any(|path| path == Path::new("-"));
    if is_stream && args.paths.len() > 1 {
        return Err(Error::invalid(
            "standard input (-) is a checkpoint of its own: put other paths separately; a file \
             called - is ./-",
        ));
    }
    if !is_stream && args.name.is_some() {
        return Err(Error::invalid(
            "--name works only with standard input: give - as the only path",
        ));
    }
    let paths = match list_of(args) {
        None => args.paths.clone(),
        Some(_) if args.paths.len() > 1 || is_stream => {
            return Err(Error::invalid(
                "the paths of a list are relative to one directory: give no PATH, or that one",
            ));
        }
        Some((file, end)) => {
            let dir = args.paths.first().map_or(Path::new("."), |path| path);
            options.listed = Some(listed(file, end, dir, &options.stop)?);
            vec![dir.to_owned()]
        }
    };
    let pool = pool::open(&args.pool, reporter)?;
    // A put makes a new checkpoint, and a new job of such a name would be mistaken for one.
    if !pool.jobs()?.iter().any(|there| there.as_str() == args.job) {
        check_new_name(&args.job)?;
    }
    let job = Job::open(&pool, &args.job, JobOptions::default())?;
    if args.dry_run {
        if is_stream {
            return Err(Error::invalid(
                "--dry-run does not work with standard input, which it would have to read: leave out one of them",
            ));
        }
        let (plan, troubles) = job.plan_put(&paths, &options)?;
        let mut text = plan_text(&plan, reporter.is_verbose());
        text.push_str(&troubles_text(&troubles));
        let json = json!({ "dry_run": true, "plan": plan_json(&plan),
            "troubles": troubles_json(&troubles) });
        return Ok(Answer { text, json, code: code_of(&troubles) });
    }
    let mut stdin = Stdin { stop: options.stop.clone() };
    let source = match is_stream {
        true => PutSource::Stream {
            name: args.name.as_deref().unwrap_or("stdin").into(),
            from: &mut stdin,
        },
        false => PutSource::Paths(&paths),
    };
    let report = job.put(source, &options)?;
    job.close()?;
    reporter.finish();
    Ok(answer(&job, &report))
}

/// Returns the file with the list of paths, and the byte after each.
fn list_of(args: &PutArgs) -> Option<(&Path, u8)> {
    let lines = args.files_from.as_deref().map(|file| (file, b'\n'));
    lines.or(args.files_from0.as_deref().map(|file| (file, 0)))
}

/// Reads a list of paths below `dir`.
fn listed(file: &Path, end: u8, dir: &Path, stop: &Arc<AtomicBool>) -> Result<Listed> {
    let mut list = Vec::new();
    let read = match file == Path::new("-") {
        true => Stdin { stop: stop.clone() }.read_to_end(&mut list),
        false => File::open(file).and_then(|mut file| file.read_to_end(&mut list)),
    };
    read.map_err(|e| match stop.load(Ordering::Relaxed) {
        true => Error::retry("stopped on request; nothing was committed"),
        false => Error::io_named("reading the list", file, &e),
    })?;
    let dir = std::path::absolute(dir).map_err(|e| Error::io_named("finding", dir, &e))?;
    Listed::parse(&list, end, &dir)
        .map_err(|e| e.context(format!("the list {}", shown(&file.display().to_string()))))
}

/// Standard input; a stop request takes effect even while no input arrives.
struct Stdin {
    stop: Arc<AtomicBool>,
}

impl Read for Stdin {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let stdin = io::stdin();
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err(io::Error::other("stopped on request; nothing was committed"));
            }
            // Reads past the library's buffer, which a poll does not see.
            let waiting = poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&LOOK));
            match waiting.and_then(|ready| {
                if ready == 0 { Ok(None) } else { read(&stdin, &mut *room).map(Some) }
            }) {
                Ok(None) | Err(Errno::INTR) => {}
                Ok(Some(bytes)) => return Ok(bytes),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn options(args: &PutArgs) -> Result<PutOptions> {
    let mut lines: Vec<u8> = Vec::new();
    for file in &args.exclude_from {
        lines.extend(std::fs::read(file).map_err(|e| Error::io_named("reading", file, &e))?);
        lines.push(b'\n');
    }
    for pattern in &args.exclude {
        lines.extend(pattern.as_bytes());
        lines.push(b'\n');
    }
    let label = args.label.clone().unwrap_or_default();
    Ok(PutOptions {
        patterns: Patterns::from_text(&lines)?,
        no_ignore_files: args.no_ignore_files,
        one_file_system: args.one_file_system,
        larger_than: args.exclude_larger_than,
        no_caches: args.exclude_caches,
        listed: None,
        // A pool that is put into itself would grow with every put.
        leave_out: vec![args.pool.to_path_buf()],
        reread: args.reread,
        notes: SaveNotes::new(
            Remarks { pinned: args.pin, label, tags: args.tag.clone(), ..Remarks::default() },
            Vec::new(),
        )?,
        stop: interrupt::flag(),
    })
}

fn answer(job: &Job, report: &PutReport) -> Answer {
    let PutReport { plan, items, files, stats, troubles } = report;
    let mut text = format!(
        "Checkpoint {} of job {}: {}, {} of {}\n",
        stats.epoch,
        shown(job.name().as_str()),
        count(*items, "item"),
        count(*files, "file"),
        bytes(stats.state_bytes)
    );
    let _ = writeln!(
        text,
        "read         {} of {}; {} had not changed",
        count(plan.read_files, "file"),
        bytes(plan.read_bytes),
        count(plan.kept_files, "file")
    );
    let _ = writeln!(
        text,
        "stored       {} for {} that are new, in {:.1} s",
        bytes(stats.new_bytes),
        bytes(stats.raw_bytes),
        stats.total.as_secs_f64()
    );
    if plan.excluded > 0 {
        let _ = writeln!(
            text,
            "left out     {} by patterns, sizes or marks of caches",
            count(plan.excluded, "path")
        );
    }
    if plan.leftovers > 0 {
        let files = count(plan.leftovers, "file");
        let _ = writeln!(text, "left out     {files} that gets have not finished (.outlive-….tmp)");
    }
    text.push_str(&troubles_text(troubles));
    let json = json!({
        "job": job.name().as_str(),
        "epoch": stats.epoch,
        "items": items,
        "files": files,
        "state_bytes": stats.state_bytes,
        "plan": plan_json(plan),
        "new_bytes": stats.new_bytes,
        "raw_bytes": stats.raw_bytes,
        "known_bytes": stats.known_bytes,
        "zero_bytes": stats.zero_bytes,
        "packs": stats.packs,
        "seconds": stats.total.as_secs_f64(),
        "troubles": troubles_json(troubles),
    });
    Answer { text, json, code: code_of(troubles) }
}

fn plan_text(plan: &PutPlan, verbose: bool) -> String {
    let mut text = format!(
        "{} to put: {} {}, {} of {}; {} excluded\n",
        count(plan.items, "item"),
        plan.directories,
        if plan.directories == 1 { "directory" } else { "directories" },
        count(plan.files, "file"),
        bytes(plan.bytes),
        plan.excluded
    );
    let _ = match plan.parent {
        0 => writeln!(text, "no earlier put of this job to compare with"),
        parent => writeln!(
            text,
            "unchanged since checkpoint {parent}: {} of {}",
            count(plan.kept_files, "file"),
            bytes(plan.kept_bytes)
        ),
    };
    let (files, size) = (count(plan.read_files, "file"), bytes(plan.read_bytes));
    let hint = if verbose || plan.read_files == 0 { "" } else { "; --verbose lists them" };
    let _ = writeln!(text, "to be read: {files} of {size}{hint}");
    if !verbose {
        return text;
    }
    for (path, length) in &plan.named {
        let path = shown_path(path);
        let _ = writeln!(text, "  {:>10} {path}", bytes(*length));
    }
    let more = plan.read_files.saturating_sub(plan.named.len() as u64);
    if more > 0 {
        let _ = writeln!(text, "  and {more} more");
    }
    text
}

fn plan_json(plan: &PutPlan) -> Value {
    json!({
        "parent": (plan.parent > 0).then_some(plan.parent),
        "items": plan.items,
        "directories": plan.directories,
        "files": plan.files,
        "bytes": plan.bytes,
        "kept_files": plan.kept_files,
        "kept_bytes": plan.kept_bytes,
        "read_files": plan.read_files,
        "read_bytes": plan.read_bytes,
        "excluded": plan.excluded,
        "leftovers": plan.leftovers,
    })
}

/// Returns the exit code: whether files are missing or doubtful.
pub fn code_of(troubles: &Troubles) -> i32 {
    if troubles.is_whole() { 0 } else { EXIT_INCOMPLETE }
}

/// Returns the file errors, a line each, and the number of others.
pub fn troubles_text(troubles: &Troubles) -> String {
    let mut text = String::new();
    for trouble in troubles.kept.iter().take(TROUBLES_SHOWN) {
        let _ = writeln!(text, "  {trouble}");
    }
    let more = troubles.len().saturating_sub(TROUBLES_SHOWN as u64);
    if more > 0 {
        let _ = writeln!(text, "  … and {more} more; --json lists up to a thousand");
    }
    text
}

/// Returns the same for programs.
pub fn troubles_json(troubles: &Troubles) -> Value {
    let kept: Vec<Value> = troubles
        .kept
        .iter()
        .map(|trouble| {
            json!({ "path": path_json(&trouble.path), "kind": trouble.kind.name(),
                "why": trouble.why })
        })
        .collect();
    json!({ "count": troubles.len(), "whole": troubles.is_whole(), "first": kept })
}
