//! `outlive note` and `outlive mark`: change the remarks on a checkpoint.

use crate::args::{MarkArgs, NoteArgs, PoolName};
use crate::chosen::job_at;
use crate::output::{Answer, Reporter, quoted};
use crate::pool;
use outlive_store::{Job, JobOptions};
use outlive_types::{EPOCH_FORMS, Epoch, EpochName, Error, Result};
use serde_json::json;
use std::sync::Arc;

/// `outlive note`.
pub fn note(args: &NoteArgs, reporter: &Arc<Reporter>) -> Result<Answer> {
    if args.label.is_none() && !args.pin && !args.unpin {
        return Err(Error::invalid("nothing to note: give --label TEXT, --pin or --unpin"));
    }
    let (job, epoch) = checkpoint_at(&args.pool, &args.job, args.epoch, reporter)?;
    let name = job.name();
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

/// `outlive mark`.
pub fn mark(args: &MarkArgs, reporter: &Arc<Reporter>) -> Result<Answer> {
    let (job, epoch) = checkpoint_at(&args.pool, &args.job, args.epoch, reporter)?;
    let (name, mark) =
        (job.name(), job.note(epoch, |remarks| remarks.mark = args.mark)?.mark.name());
    Ok(Answer::new(
        format!("checkpoint {epoch} of job {name}: mark {mark}\n"),
        json!({ "job": name.as_str(), "epoch": epoch, "mark": mark }),
    ))
}

/// Opens the job of the one checkpoint that a command changes.
///
/// # Errors
/// `Invalid` if none is named; those of [`job_at`].
pub fn checkpoint_at(
    pool: &PoolName,
    named: &str,
    apart: Option<EpochName>,
    reporter: &Arc<Reporter>,
) -> Result<(Job, Epoch)> {
    let pool = pool::open(pool, reporter)?;
    let (name, epoch) = job_at(&pool, named, apart)?;
    let epoch = epoch.ok_or_else(|| {
        Error::invalid(format!("no checkpoint is named: write {name}@EPOCH; {EPOCH_FORMS}"))
    })?;
    Ok((Job::open(&pool, name.as_str(), JobOptions::default())?, epoch))
}
