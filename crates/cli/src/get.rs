//! `outlive get`: restores files into a directory, or one of them to standard output.

use crate::args::GetArgs;
use crate::chosen::{job_at, select_sound, skipped_json};
use crate::chosen_paths::meant;
use crate::items::{kind_of, no_files};
use crate::output::{Answer, Reporter, bytes, count, path_json, shown};
use crate::put::{code_of, troubles_json, troubles_text};
use crate::tags::tagged;
use crate::{EXIT_CUT, EXIT_DAMAGED, interrupt, pool, stdout_error};
use outlive_files::{
    FileErrorKind, GetFiles, GetOptions, GetPlan, GetReport, InOrder, PathMatch, Selection,
};
use outlive_format::ItemKind;
use outlive_store::FilesImage;
use outlive_store::{Job, JobOptions};
use outlive_types::{Error, Result, shown_path};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// Default memory for chunks that are read ahead.
const STREAM_BYTES: u64 = 64 << 20;
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// `outlive get`.
pub fn get(args: &GetArgs, reporter: &Arc<Reporter>) -> Result<Answer> {
    let pool = pool::open(&args.pool, reporter)?;
    let (name, epoch) = job_at(&pool, &args.job, args.epoch)?;
    let job = Job::open(&pool, name.as_str(), JobOptions::default())?;
    let epoch = tagged(&job, epoch, &args.tag, &|manifest| manifest.is_of_files())?;
    let paths = args.paths.iter().map(|path| path.as_os_str().as_bytes().to_vec());
    let (checkpoint, skipped) = job.files(select_sound(epoch))?.ok_or_else(|| no_files(&job))?;
    let choice = Selection::new(meant(&checkpoint, paths.collect())?)?;
    let options = GetOptions {
        to: args.to.clone(),
        choice,
        overwrite: args.overwrite,
        stop: interrupt::flag(),
    };
    if args.dry_run {
        let plan = checkpoint.plan_get(&options)?;
        let in_the_way: Vec<_> = plan.in_the_way.iter().map(|path| path_json(path)).collect();
        let json = json!({ "dry_run": true, "epoch": plan.epoch, "items": plan.items,
            "files": plan.files, "bytes": plan.bytes, "in_the_way": in_the_way,
            "skipped": skipped_json(&skipped) });
        return Ok(Answer::new(plan_text(&plan), json));
    }
    if args.to == Path::new("-") {
        return to_stdout(&checkpoint, &options, args.memory.unwrap_or(STREAM_BYTES), reporter);
    }
    let report = checkpoint.get(&options)?;
    reporter.finish();
    Ok(answer(&checkpoint, args, &report, skipped_json(&skipped)))
}

fn plan_text(plan: &GetPlan) -> String {
    let GetPlan { epoch, items, files, bytes: file_bytes, in_the_way } = plan;
    let mut text = format!(
        "get checkpoint {epoch}: {}, {} of {}\n",
        count(*items, "item"),
        count(*files, "file"),
        bytes(*file_bytes)
    );
    for path in in_the_way {
        let _ = writeln!(text, "  in the way: {}", shown_path(path));
    }
    text
}

fn answer(checkpoint: &FilesImage, args: &GetArgs, report: &GetReport, skipped: Value) -> Answer {
    let GetReport { epoch, items, files, bytes: file_bytes, read_bytes, troubles, .. } = report;
    let kept = match report.kept_files {
        0 => String::new(),
        files => format!(
            "; {} of {} there already, and left alone",
            count(files, "file"),
            bytes(report.kept_bytes)
        ),
    };
    let mut text = format!(
        "Checkpoint {epoch} of job {}: {}, {} of {} in {}{kept}\n",
        shown(checkpoint.job().as_str()),
        count(*items, "item"),
        count(*files, "file"),
        bytes(*file_bytes),
        shown(&args.to.display().to_string())
    );
    text.push_str(&troubles_text(troubles));
    let json = json!({
        "job": checkpoint.job().as_str(),
        "epoch": epoch,
        "items": items,
        "files": files,
        "bytes": file_bytes,
        "kept_files": report.kept_files,
        "kept_bytes": report.kept_bytes,
        "read_bytes": read_bytes,
        "troubles": troubles_json(troubles),
        "skipped": skipped,
    });
    let damaged = troubles.count(FileErrorKind::Damaged) > 0;
    Answer { text, json, code: if damaged { EXIT_DAMAGED } else { code_of(troubles) } }
}

/// Writes the content of the one chosen file; the answer is empty.
fn to_stdout(
    checkpoint: &FilesImage,
    options: &GetOptions,
    memory_bytes: u64,
    reporter: &Reporter,
) -> Result<Answer> {
    let plan = checkpoint.plan_get(&GetOptions { to: "/dev/null".into(), ..options.clone() })?;
    if plan.files == 0 {
        return Err(no_file(checkpoint, &options.choice)?);
    }
    if plan.files != 1 {
        return Err(Error::invalid(format!(
            "`--to -` writes one file, and {} are selected: name one file, or get them into a \
             directory with --to DIR",
            plan.files
        )));
    }
    let mut out = BufWriter::with_capacity(1 << 20, io::stdout().lock());
    let mut is_cut = false;
    let mut done = 0;
    let written = checkpoint.in_order(&options.choice, memory_bytes, &mut |next| {
        if options.stop.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(Error::retry("stopped on request; not all of the file was written"));
        }
        let outcome = match next {
            InOrder::Item(_) => Ok(0),
            InOrder::Bytes(bytes) => out.write_all(bytes).map(|()| bytes.len() as u64),
            InOrder::Zeros(length) => write_zeros(&mut out, length).map(|()| length),
        };
        let length = outcome.map_err(|error| {
            is_cut = error.kind() == io::ErrorKind::BrokenPipe;
            stdout_error(&error)
        })?;
        done += length;
        if length > 0 {
            reporter.progress("get", done, plan.bytes);
        }
        Ok(())
    });
    let flushed = written.and_then(|_| {
        out.flush().map_err(|error| {
            is_cut = error.kind() == io::ErrorKind::BrokenPipe;
            stdout_error(&error)
        })
    });
    // The reader has read enough, like `head`, but not the whole file.
    if !is_cut {
        flushed?;
    }
    let code = if is_cut { EXIT_CUT } else { 0 };
    Ok(Answer { text: String::new(), json: Value::Null, code })
}

/// Returns the error for a selection without a file, with the selected items.
fn no_file(checkpoint: &FilesImage, choice: &Selection) -> Result<Error> {
    let mut items = checkpoint.items();
    let (mut first, mut chosen) = (None, 0);
    while let Some(item) = items.next_item()? {
        if choice.of(&item) == PathMatch::Yes {
            chosen += 1;
            first.get_or_insert(item);
        }
    }
    let what = match first {
        Some(item) if chosen == 1 => {
            let path = shown_path(&item.path);
            match item.kind {
                ItemKind::Symlink => format!(
                    "{path} is a symbolic link to {}: name the file that it points to",
                    shown_path(&item.target)
                ),
                kind => format!("{path} is not a file but a {}: name a file", kind_of(kind).1),
            }
        }
        _ => "the given paths contain no file: name one".to_owned(),
    };
    Ok(Error::invalid(format!("{what}, or get it into a directory with --to DIR")))
}

fn write_zeros(out: &mut impl Write, mut length: u64) -> io::Result<()> {
    while length > 0 {
        let step = length.min(ZEROS.len() as u64);
        out.write_all(&ZEROS[..step as usize])?;
        length -= step;
    }
    Ok(())
}
