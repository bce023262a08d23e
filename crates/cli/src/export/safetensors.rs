//! `outlive export --format safetensors`: arrays and tensors of a checkpoint as a model's files.
//!
//! `layout` finds the memory of each tensor, `files` divides the tensors among files, `sink` writes
//! their bytes where they belong while the checkpoint is read.

mod files;
mod layout;
mod sink;

use crate::args::ExportArgs;
use crate::chosen::{select, skipped_json};
use crate::output::{Answer, Reporter, Table, bytes, count, shortened, shown};
use crate::show::{chosen_rank, no_checkpoint};
use files::{Model, Place};
use layout::{Found, find};
use outlive_files::make_dir;
use outlive_store::{Job, MemoryImage};
use outlive_types::{Epoch, Error, Result};
use serde_json::json;
use sink::ModelSink;
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// Most names of regions in a message.
const NAMED_MAX: usize = 5;

/// Writes the files.
pub fn export(
    args: &ExportArgs,
    job: &Job,
    epoch: Option<Epoch>,
    reporter: &Arc<Reporter>,
) -> Result<Answer> {
    let place = Place::of(&args.to)?;
    let rank = chosen_rank(job, epoch, args.rank)?;
    let made_dir = !place.dir.exists();
    let mut attempt = |checkpoint: &MemoryImage| {
        let (model, found) = plan(args, checkpoint, &place)?;
        if !args.dry_run {
            make_dir(&place.dir)?;
            let sink = ModelSink::create(&place.dir, checkpoint, &model, &found)?;
            let streams = sink.streams();
            checkpoint.read(&streams, &sink)?;
            return Ok((model, found, Some(sink)));
        }
        Ok((model, found, None))
    };
    let outcome = job.attempt_rank(select(epoch), rank, &mut attempt);
    let written = outcome.and_then(|found| {
        let (checkpoint, (model, found, sink), skipped) =
            found.ok_or_else(|| no_checkpoint(job))?;
        if let Some(sink) = sink {
            sink.publish(&model, &place, args.force)?;
        }
        Ok((checkpoint.epoch(), model, found, skipped))
    });
    if written.is_err() && made_dir {
        // Removes only a directory that is empty and that this command has created.
        let _ = fs::remove_dir(&place.dir);
    }
    let (epoch, model, found, skipped) = written?;
    reporter.finish();
    if !found.left_out.is_empty() {
        reporter.say(&format!("warning: {}", left_out_text(&found.left_out)));
    }
    let json = json!({
        "dry_run": args.dry_run,
        "job": job.name().as_str(),
        "epoch": epoch,
        "rank": rank,
        "to": place.dir.display().to_string(),
        "files": model.files.iter().map(|file| &file.name).collect::<Vec<_>>(),
        "index": model.index_name(&place),
        "bytes": model.bytes,
        "tensors": found.tensors.iter().map(|it| &it.name).collect::<Vec<_>>(),
        "tied": found.tied,
        "left_out": found.left_out.iter().map(|(name, why)| json!({ "name": name, "why": why }))
            .collect::<Vec<_>>(),
        "skipped": skipped_json(&skipped),
    });
    let text = match args.dry_run {
        true => plan_text(&model, &place.dir),
        false => format!(
            "Exported {} ({}) of checkpoint {epoch} to {} in {}.\n",
            count(found.tensors.len() as u64, "tensor"),
            bytes(model.bytes),
            count(model.files.len() as u64, "file"),
            shown(&place.dir.display().to_string()),
        ),
    };
    Ok(Answer::new(text, json))
}

fn plan(args: &ExportArgs, checkpoint: &MemoryImage, place: &Place) -> Result<(Model, Found)> {
    let found = find(checkpoint, &args.only, args.root.as_deref())?;
    if found.tensors.is_empty() {
        let why = match found.left_out.is_empty() {
            true => String::new(),
            false => format!(" ({})", left_out_text(&found.left_out)),
        };
        return Err(Error::invalid(format!(
            "checkpoint {} of job {} has no array to export{why}; `outlive show` lists its regions",
            checkpoint.epoch(),
            checkpoint.job()
        )));
    }
    let model = Model::new(&found, checkpoint, place, args.max_shard_size)?;
    if !args.force && !args.dry_run {
        model.check_free(place)?;
    }
    Ok((model, found))
}

fn plan_text(model: &Model, dir: &Path) -> String {
    let mut table = Table::new(&["TENSOR", "DTYPE", ">BYTES", "FILE"]);
    for file in &model.files {
        for tensor in &file.header.tensors {
            table.row(vec![
                shortened(&shown(&tensor.name), 60),
                tensor.dtype.name.to_owned(),
                bytes(tensor.end - tensor.begin),
                shown(&file.name),
            ]);
        }
    }
    format!("{}\nNothing was written to {}.\n", table.text(), shown(&dir.display().to_string()))
}

fn left_out_text(left_out: &[(String, String)]) -> String {
    let named: Vec<String> = left_out
        .iter()
        .take(NAMED_MAX)
        .map(|(name, why)| format!("{} ({why})", shown(name)))
        .collect();
    let more = match left_out.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{}{more} left out: `--format json` or `files` exports values", named.join(", "))
}
