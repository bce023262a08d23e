//! `outlive du`: the space that each part of a pool takes, and the space that deleting it would
//! free.

use crate::args::DuArgs;
use crate::chosen::{job_at, number_of};
use crate::collect::{holders, holders_json, savers};
use crate::output::{Answer, Reporter, Table, bytes, count, shown};
use crate::{EXIT_DAMAGED, pool};
use outlive_pool::Pool;
use outlive_store::gc::{GcPlan, Usage, UsageOf, UsageRow, usage};
use outlive_types::{Epoch, Error, JobName, Result};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::sync::Arc;

/// `outlive du`.
pub fn du(args: &DuArgs, reporter: &Arc<Reporter>) -> Result<Answer> {
    let pool = pool::open(&args.pool, reporter)?;
    let of = match args.job.as_deref().map(|text| job_at(&pool, text, None)).transpose()? {
        None => UsageOf::Jobs,
        Some((job, None)) if args.epochs.is_empty() => UsageOf::Checkpoints(job),
        Some((job, epoch)) => {
            let further = args.epochs.iter().map(|text| further(&pool, &job, text));
            let epochs = epoch.map(Ok).into_iter().chain(further).collect::<Result<_>>()?;
            UsageOf::Some(job, epochs)
        }
    };
    reporter.busy("reading what checkpoints need");
    let usage = usage(&pool, &of)?;
    reporter.finish();
    Ok(answer(&args.pool.display().to_string(), &of, &usage))
}

/// Parses a further checkpoint of a job: `EPOCH`, or `JOB@EPOCH` of the same job.
fn further(pool: &Pool, job: &JobName, text: &str) -> Result<Epoch> {
    if let Ok(epoch) = text.parse() {
        return number_of(pool, job, epoch);
    }
    match job_at(pool, text, None)? {
        (other, Some(epoch)) if other == *job => Ok(epoch),
        (other, _) => Err(Error::invalid(format!(
            "{} names no checkpoint of job {job}, but job {other}: give epochs of one job, as {job}@7",
            shown(text)
        ))),
    }
}

fn answer(pool: &str, of: &UsageOf, usage: &Usage) -> Answer {
    let Usage { rows, together, plan, without, unknown } = usage;
    let mut text = match (rows.is_empty(), of) {
        (true, UsageOf::Jobs) => format!("The pool {} has no jobs yet.\n", shown(pool)),
        (true, _) => "The job has no checkpoint.\n".to_owned(),
        _ => table(of, rows, together),
    };
    let _ = writeln!(
        text,
        "\n{} in packs: checkpoints need {}, and a gc would free about {} now.",
        bytes(plan.total_bytes),
        bytes(plan.live_bytes),
        bytes(plan.freed_now_bytes())
    );
    if plan.held_bytes > 0 {
        let (held, programs) = (bytes(plan.held_bytes), holders(&plan.held_by));
        let _ = writeln!(text, "Besides, {held} can go once {programs} saved or ended.");
    }
    if let (Some(without), false) = (without, rows.is_empty()) {
        let these = if rows.len() == 1 { "this checkpoint" } else { "these checkpoints" };
        let freed = bytes(without.freed_now_bytes());
        let _ = writeln!(text, "After a prune of {these}, a gc would free about {freed}.");
    }
    if plan.in_progress > 0 {
        let packs = count(plan.in_progress as u64, "more pack");
        let _ = writeln!(text, "{packs} may belong to saves under way{}.", savers(plan));
    }
    for (job, epoch, error) in unknown {
        let _ = match epoch {
            0 => writeln!(text, "DAMAGED log of job {job}: {}", shown(error.message())),
            _ => writeln!(text, "DAMAGED {}", shown(error.message())),
        };
    }
    if !unknown.is_empty() {
        text.push_str(
            "The needs of these are unknown, so deleting others may free less than it says above, and \
             a gc does nothing until they are given up.\n",
        );
    }
    if !rows.is_empty() {
        text.push_str("These figures are of one moment: saves, prunes and gcs change them.\n");
    }
    let json = usage_json(pool, usage);
    Answer { text, json, code: if unknown.is_empty() { 0 } else { EXIT_DAMAGED } }
}

/// Returns a usage as JSON.
pub fn usage_json(pool: &str, usage: &Usage) -> Value {
    let Usage { rows, together, plan, without, unknown } = usage;
    let unknown_json = |(job, epoch, error): &(_, u64, Error)| {
        let job: &JobName = job;
        json!({
            "job": job.as_str(),
            "epoch": (*epoch > 0).then_some(*epoch),
            "message": error.message(),
        })
    };
    json!({
        "pool": pool,
        "rows": rows.iter().map(row_json).collect::<Vec<_>>(),
        "together": row_json(together),
        "packs_bytes": plan.total_bytes,
        "needed_bytes": plan.live_bytes,
        "gc_frees_bytes": plan.freed_now_bytes(),
        "held_bytes": plan.held_bytes,
        "held_by": holders_json(&plan.held_by),
        "gc_frees_without_bytes": without.as_ref().map(GcPlan::freed_now_bytes),
        "packs_in_progress": plan.in_progress,
        "saving": holders_json(&plan.saving),
        "packs_unreadable": plan.unreadable,
        "unknown": unknown.iter().map(unknown_json).collect::<Vec<_>>(),
    })
}

fn table(of: &UsageOf, rows: &[UsageRow], together: &UsageRow) -> String {
    let figures = |row: &UsageRow| {
        let shared = row.needed_bytes - row.only_bytes;
        [row.state_bytes, row.needed_bytes, row.only_bytes, shared].map(bytes)
    };
    let headings: &[&str] = match of {
        UsageOf::Jobs => &["JOB", ">CHECKPOINTS", ">STATE", ">NEEDS", ">ALONE", ">SHARED"],
        _ => &[">EPOCH", ">STATE", ">NEEDS", ">ALONE", ">SHARED"],
    };
    let mut table = Table::new(headings);
    for row in rows {
        let mut cells = match (of, &row.job) {
            (UsageOf::Jobs, Some(job)) => vec![job.to_string(), row.epochs.len().to_string()],
            _ => vec![row.epochs.iter().map(u64::to_string).collect::<Vec<_>>().join(" ")],
        };
        cells.extend(figures(row));
        table.row(cells);
    }
    if rows.len() > 1 {
        let mut cells = vec!["together".to_owned()];
        if *of == UsageOf::Jobs {
            cells.push(rows.iter().map(|row| row.epochs.len()).sum::<usize>().to_string());
        }
        cells.extend(figures(together));
        table.row(cells);
    }
    table.text()
}

fn row_json(row: &UsageRow) -> Value {
    json!({
        "job": row.job.as_ref().map(|job| job.as_str()),
        "epochs": row.epochs,
        "state_bytes": row.state_bytes,
        "needed_bytes": row.needed_bytes,
        "only_bytes": row.only_bytes,
        "shared_bytes": row.needed_bytes - row.only_bytes,
    })
}
