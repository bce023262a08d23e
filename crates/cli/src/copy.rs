//! `outlive copy`: checkpoints from one pool to another.

use crate::args::CopyArgs;
use crate::chosen::{job_at, number_of};
use crate::output::{Answer, Reporter, bytes, count, shown};
use crate::{EXIT_DAMAGED, exit_code, pool};
use outlive_pool::Pool;
use outlive_store::copy::{CopyOptions, CopyReport, JobCopied, copy as run, plan};
use outlive_types::{Epoch, Error, JobName, Result};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

/// `outlive copy`.
pub fn copy(args: &CopyArgs, reporter: &Arc<Reporter>) -> Result<Answer> {
    let from = pool::open(&args.from, reporter)?;
    let to = pool::open(&args.to, reporter)?;
    let (jobs, epochs) = chosen(&from, args)?;
    let options = CopyOptions {
        jobs,
        epochs,
        rename: args.rename.as_deref().map(JobName::new).transpose()?,
        same_history: args.same_history,
        bytes_per_s: args.rate,
    };
    let report = match args.dry_run {
        true => CopyReport::planned(plan(&from, &to, &options)?, &options),
        false => run(&from, &to, &options)?,
    };
    reporter.finish();
    Ok(answer(&report, args.dry_run))
}

/// Returns the jobs to copy, and the chosen checkpoints if there is one job.
fn chosen(from: &Pool, args: &CopyArgs) -> Result<(Vec<JobName>, BTreeSet<Epoch>)> {
    let named: Vec<_> =
        args.jobs.iter().map(|text| job_at(from, text, None)).collect::<Result<_>>()?;
    let mut epochs: BTreeSet<Epoch> = named.iter().filter_map(|(_, epoch)| *epoch).collect();
    let mut jobs: Vec<JobName> = Vec::new();
    for (job, epoch) in named {
        let is_alone = jobs.first().is_none_or(|first| *first == job);
        if !epochs.is_empty() && (epoch.is_none() || !is_alone) {
            return Err(Error::invalid(
                "checkpoints are copied of one job at a time: give JOB@EPOCH of one job only, or jobs \
                 without epochs",
            ));
        }
        if !jobs.contains(&job) {
            jobs.push(job);
        }
    }
    if let [job] = &jobs[..] {
        for epoch in &args.epoch {
            epochs.insert(number_of(from, job, *epoch)?);
        }
    } else if !args.epoch.is_empty() {
        return Err(Error::invalid("--epoch needs exactly one job: write JOB@EPOCH"));
    }
    Ok((jobs, epochs))
}

fn answer(report: &CopyReport, dry_run: bool) -> Answer {
    let mut text = String::new();
    for job in &report.jobs {
        job_text(job, dry_run, &mut text);
    }
    if report.jobs.is_empty() {
        text.push_str("There is no job to copy.\n");
    }
    let json = json!({
        "dry_run": dry_run,
        "whole": report.is_whole(),
        "jobs": report.jobs.iter().map(job_json).collect::<Vec<_>>(),
    });
    let refused = report.refused().map_or(0, |error| exit_code(error.kind()));
    Answer { text, json, code: if report.is_whole() { refused } else { EXIT_DAMAGED } }
}

fn epochs(epochs: impl Iterator<Item = Epoch>) -> String {
    epochs.map(|epoch| epoch.to_string()).collect::<Vec<_>>().join(" ")
}

fn job_text(job: &JobCopied, dry_run: bool, text: &mut String) {
    let JobCopied { plan, copied, damaged, gone, refused } = job;
    let name = match plan.from == plan.to {
        true => format!("Job {}", plan.from),
        false => format!("Job {} as {}", plan.from, plan.to),
    };
    if let (Some(error), true) = (refused, plan.copied.is_empty()) {
        let _ = writeln!(text, "{name}: NOT COPIED: {}", shown(error.message()));
        return;
    }
    let there = count(plan.there.len() as u64, "checkpoint");
    if dry_run {
        let state: u64 = plan.copied.iter().map(|epoch| epoch.state_bytes).sum();
        let number = count(plan.copied.len() as u64, "checkpoint");
        let _ = writeln!(text, "{name}: {there} there already, {number} to copy");
        if !plan.copied.is_empty() {
            let list = epochs(plan.copied.iter().map(|epoch| epoch.epoch));
            let _ = writeln!(text, "  copy {list}: {} of state at most", bytes(state));
        }
    } else {
        let number = count(copied.len() as u64, "checkpoint");
        let _ = writeln!(text, "{name}: {there} there already, {number} copied");
        for epoch in copied {
            let _ = writeln!(
                text,
                "  copied {}: {} sent, {} found there, {} written",
                epoch.epoch,
                bytes(epoch.sent_bytes),
                bytes(epoch.found_bytes),
                bytes(epoch.new_bytes)
            );
        }
    }
    if !plan.behind.is_empty() {
        let list = epochs(plan.behind.iter().copied());
        let _ = writeln!(text, "  left out, older than what the job there has or had: {list}");
    }
    if !gone.is_empty() {
        let _ = writeln!(text, "  dropped meanwhile: {}", epochs(gone.iter().copied()));
    }
    for (epoch, error) in damaged {
        let _ = writeln!(text, "  DAMAGED checkpoint {epoch}: {}", shown(error.message()));
    }
    if let Some(error) = refused {
        let _ = writeln!(text, "  ENDED EARLY: {}", shown(error.message()));
    }
    if plan.unreadable > 0 {
        let records = count(plan.unreadable, "record");
        let _ = writeln!(text, "  DAMAGED log: {records} of it cannot be read");
    }
}

fn job_json(job: &JobCopied) -> Value {
    let JobCopied { plan, copied, damaged, gone, refused } = job;
    json!({
        "from": plan.from.as_str(),
        "to": plan.to.as_str(),
        "planned": plan.copied.iter().map(|epoch| epoch.epoch).collect::<Vec<_>>(),
        "there": plan.there,
        "behind": plan.behind,
        "copied": copied.iter().map(|epoch| json!({
            "epoch": epoch.epoch,
            "sent_bytes": epoch.sent_bytes,
            "found_bytes": epoch.found_bytes,
            "new_bytes": epoch.new_bytes,
        })).collect::<Vec<_>>(),
        "gone": gone,
        "damaged": damaged.iter().map(|(epoch, error)| json!({
            "epoch": epoch,
            "message": error.message(),
        })).collect::<Vec<_>>(),
        "unreadable_records": plan.unreadable,
        "refused": refused.as_ref().map(|error| json!({
            "kind": error.kind().name(),
            "message": error.message(),
        })),
    })
}
