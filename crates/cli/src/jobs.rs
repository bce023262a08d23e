//! `outlive job`: deletes and renames jobs.

use crate::args::{JobCommand, JobDeleteArgs, JobRenameArgs};
use crate::collect::{self, ranges};
use crate::output::{Answer, Reporter, bytes, count, shown};
use crate::pool;
use outlive_pool::Pool;
use outlive_store::gc::{UsageOf, listed_jobs, usage};
use outlive_store::{Job, JobOptions};
use outlive_types::{Epoch, EpochName, Error, JobName, Result};
use serde_json::json;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::Arc;

/// `outlive job`.
pub fn job(command: &JobCommand, is_json: bool, reporter: &Arc<Reporter>) -> Result<Answer> {
    match command {
        JobCommand::Delete(args) => delete(args, is_json, reporter),
        JobCommand::Rename(args) => rename(args, reporter),
    }
}

/// Returns a job that `outlive ls` lists.
///
/// # Errors
/// `Invalid` for another one.
fn listed(pool: &Pool, name: &str) -> Result<JobName> {
    let job = pool::known_job(pool, name)?;
    match listed_jobs(pool)?.contains(&job) {
        true => Ok(job),
        false => {
            Err(Error::invalid(format!("there is no job {job}: it has no checkpoint any more")))
        }
    }
}

fn delete(args: &JobDeleteArgs, is_json: bool, reporter: &Arc<Reporter>) -> Result<Answer> {
    let pool = pool::open_to_change(&args.pool, args.dry_run, reporter)?;
    let job = listed(&pool, &args.job)?;
    let epochs: Vec<Epoch> = {
        let opened = Job::open(&pool, job.as_str(), JobOptions::default())?;
        opened.epochs()?.iter().map(|info| info.epoch).collect()
    };
    let these = format!(
        "job {job} with {}{}",
        count(epochs.len() as u64, "checkpoint"),
        match epochs.is_empty() {
            true => String::new(),
            false => format!(" ({})", ranges(epochs.iter().map(|epoch| (*epoch, true)))),
        }
    );
    if args.dry_run {
        let frees = match epochs.is_empty() {
            true => 0,
            false => {
                let all = epochs.iter().copied().collect();
                let without = usage(&pool, &UsageOf::Some(job.clone(), all))?.without;
                without.map_or(0, |plan| plan.freed_now_bytes())
            }
        };
        reporter.finish();
        return Ok(Answer::new(
            format!(
                "Would delete {these}, and free about {}. Nothing was changed.\n",
                bytes(frees)
            ),
            json!({ "job": job.as_str(), "dry_run": true, "deleted": epochs, "freed_bytes": frees }),
        ));
    }
    if !args.yes {
        confirm(&format!("Delete {these}?"), is_json)?;
    }
    let mut options = collect::gc_options(args.max_unused, args.rate, !args.no_gc);
    options.forget_damaged = args.forget_damaged;
    options.fence.extend(args.fence.then(|| job.clone()));
    let (deleted, report) = outlive_client::delete_job(&pool, &job, &options)?;
    reporter.finish();
    let number = count(deleted.len() as u64, "checkpoint");
    let text = format!("Deleted job {job}: {number}\n");
    let mut answer = collect::answer(&pool, &report, false, text, json!(null));
    answer.json["job"] = json!(job.as_str());
    answer.json["deleted"] = json!(deleted);
    Ok(answer)
}

/// Asks a person at a terminal.
///
/// # Errors
/// `Invalid` if the person declines, or there is none.
fn confirm(question: &str, is_json: bool) -> Result<()> {
    if is_json || !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(Error::invalid(format!(
            "{question} Nothing was deleted: give --yes to delete it, or --dry-run to see what that frees"
        )));
    }
    let mut answer = String::new();
    let mut terminal = io::stderr().lock();
    let asked = write!(terminal, "{question} [y/N] ").and_then(|()| terminal.flush());
    asked
        .and_then(|()| io::stdin().read_line(&mut answer))
        .map_err(|e| Error::io_named("asking on", "the terminal".as_ref(), &e))?;
    match matches!(answer.trim(), "y" | "Y" | "yes" | "Yes") {
        true => Ok(()),
        false => Err(Error::invalid("not confirmed: nothing was deleted")),
    }
}

fn rename(args: &JobRenameArgs, reporter: &Arc<Reporter>) -> Result<Answer> {
    let pool = pool::open_to_change(&args.pool, false, reporter)?;
    let from = listed(&pool, &args.old)?;
    let to = JobName::new(&args.new)?;
    check_new_name(to.as_str())?;
    let epochs = outlive_client::rename_job(&pool, &from, &to, args.fence)?;
    reporter.finish();
    Ok(Answer::new(
        format!(
            "Job {from} is called {to} now, with {}. Change the name in its program.\n",
            count(epochs.len() as u64, "checkpoint")
        ),
        json!({ "from": from.as_str(), "to": to.as_str(), "checkpoints": epochs }),
    ))
}

/// Refuses a name for a new job that would be mistaken for one of its checkpoints.
///
/// # Errors
/// `Invalid` for such a name.
pub fn check_new_name(name: &str) -> Result<()> {
    match EpochName::split(name) {
        None => Ok(()),
        Some((job, _)) => Err(Error::invalid(format!(
            "{} names a checkpoint, and here a job is meant: write the job alone, as {}",
            shown(name),
            shown(job)
        ))),
    }
}
