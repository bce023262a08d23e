//! `outlive note`: changes the remarks on a checkpoint.

use crate::args::NoteArgs;
use crate::chosen::job_at;
use crate::output::{Answer, Reporter, quoted};
use crate::pool;
use outlive_store::{Job, JobOptions};
use outlive_types::{EPOCH_FORMS, Error, Result};
use serde_json::json;
use std::sync::Arc;

/// `outlive note`.
pub fn note(args: &NoteArgs, reporter: &Arc<Reporter>) -> Result<Answer> {
    if args.label.is_none() && !args.pin && !args.unpin {
        return Err(Error::invalid("nothing to note: give --label TEXT, --pin or --unpin"));
    }
    let pool = pool::open(&args.pool, reporter)?;
    let (name, epoch) = job_at(&pool, &args.job, args.epoch)?;
    let epoch = epoch.ok_or_else(|| {
        Error::invalid(format!("no checkpoint is named: write {name}@EPOCH; {EPOCH_FORMS}"))
    })?;
    let job = Job::open(&pool, name.as_str(), JobOptions::default())?;
    let remarks = job.note(epoch, |remarks| {
        if let Some(label) = &args.label {
            remarks.label.clone_from(label);
        }
        remarks.pinned = (remarks.pinned || args.pin) && !args.unpin;
    })?;
    let pinned = if remarks.pinned { "pinned" } else { "not pinned" };
    let label = match remarks.label.as_str() {
        "" => "no label".to_owned(),
        label => format!("label {}", quoted(label)),
    };
    Ok(Answer {
        text: format!("checkpoint {} of job {name}: {pinned}, {label}\n", epoch),
        json: json!({ "job": name.as_str(), "epoch": epoch, "pinned": remarks.pinned,
            "label": remarks.label }),
        code: 0,
    })
}
