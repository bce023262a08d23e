//! `outlive import`: a model of safetensors files as a checkpoint. Python restores it as a flat dict
//! of arrays or tensors by their names.
//!
//! `model` opens the files and checks their headers, `source` reads their bytes for the save.

mod model;
mod source;

use crate::args::{ImportArgs, ImportedAs, PoolName};
use crate::output::{Answer, Reporter, bytes, count, shown};
use crate::pool;
use model::Model;
use outlive_format::Remarks;
use outlive_store::{Job, JobOptions, SaveNotes};
use outlive_types::{Error, Result};
use serde_json::json;
use source::ModelSource;
use std::path::Path;
use std::sync::Arc;

/// `outlive import`.
pub fn import(args: &ImportArgs, reporter: &Arc<Reporter>) -> Result<Answer> {
    let name = args.job.clone().map_or_else(|| name_of(&args.model), Ok)?;
    let model = Model::open(&args.model)?;
    let as_tensors = match args.restore_as {
        Some(chosen) => chosen == ImportedAs::Tensors,
        None => model.is_torch(),
    };
    let remarks = Remarks {
        label: args.label.clone().unwrap_or_default(),
        pinned: args.pin,
        ..Remarks::default()
    };
    let notes = SaveNotes::new(remarks, Vec::new())?;
    let (count_of, total_bytes) = (model.tensors.len(), model.bytes());
    let mut source = ModelSource::new(model, as_tensors)?;
    let place = args.pool.clone().map_or_else(PoolName::from_variable, Ok);
    let pool = pool::open(&place.map_err(Error::invalid)?, reporter)?;
    let job = Job::open(&pool, &name, JobOptions::default())?;
    let save = job.save_with(&mut source, notes)?;
    let stats = save.wait(None).ok_or_else(|| Error::bug("a wait without limit ended"))??;
    job.close()?;
    reporter.finish();
    let text = format!(
        "Imported {} ({}) as checkpoint {} of job {}: {} new.\n",
        count(count_of as u64, "tensor"),
        bytes(total_bytes),
        stats.epoch,
        shown(&name),
        bytes(stats.new_bytes)
    );
    let json = json!({
        "job": name,
        "epoch": stats.epoch,
        "tensors": count_of,
        "bytes": total_bytes,
        "new_bytes": stats.new_bytes,
        "restored_as": if as_tensors { "tensors" } else { "arrays" },
    });
    Ok(Answer::new(text, json))
}

/// Returns the name of a job for a file.
fn name_of(model: &Path) -> Result<String> {
    let name = model.file_name().and_then(|name| name.to_str());
    let stem = name.map(|name| {
        let name = name.strip_suffix(".index.json").unwrap_or(name);
        name.strip_suffix(".safetensors").unwrap_or(name)
    });
    stem.filter(|stem| !stem.is_empty()).map(str::to_owned).ok_or_else(|| {
        Error::invalid(format!(
            "{} gives no name for a job: give one as the last argument",
            model.display()
        ))
    })
}
