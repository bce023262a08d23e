//! `outlive run`, `outlive stop` and `outlive history`: programs under failures.

use crate::args::{HistoryArgs, RunArgs, StopArgs, StopBy};
use crate::helper::own_command;
use crate::output::{Answer, Reporter, Table, shown, when};
use crate::timeline::timeline;
use crate::{EXIT_INTERRUPTED, pool};
use outlive_client::stop::ask_in_pool;
use outlive_interval::Choice;
use outlive_pool::Environment;
use outlive_supervise::{Entry, History, Outcome, RunOptions, Tell};
use outlive_types::{Error, JobName, Result};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

/// Exit code if the command is to be started again later, as `EX_TEMPFAIL` of `sysexits.h`.
const EXIT_REQUEUE: i32 = 75;
/// Exit code if the command was asked to stop and has saved.
const EXIT_SAVED: i32 = 76;
/// Exit code if no restart helps.
const EXIT_GAVE_UP: i32 = 77;

/// `outlive run`.
pub fn run(args: &RunArgs, words: &[OsString], reporter: &Arc<Reporter>) -> Result<Answer> {
    let job = JobName::new(&args.job)?;
    let pool = outlive_pool::open_or_create(&args.pool, Environment::observed(reporter.clone()))?;
    let options = RunOptions {
        job: job.clone(),
        command: args.command.clone(),
        give_up: args.give_up,
        hang: args.hang,
        grace: args.grace,
        every: args.every.clone(),
        helper: (!args.no_helper).then(|| own_command(words)).flatten(),
        gate: args.gate,
        stop_by_ns: stop_by_ns(args.stop_by, pool.env().clock.unix_ns()),
    };
    let (to, of) = (reporter.clone(), job.clone());
    let say: Tell = Arc::new(move |text: &str| to.say(&format!("outlive run: job {of}: {text}")));
    let outcome = outlive_supervise::run(&pool, &options, &say)?;
    let (word, code) = match &outcome {
        Outcome::Finished => ("finished", 0),
        Outcome::Saved(epoch) => {
            say(&format!(
                "it was asked to stop, and has saved as checkpoint {epoch}; start it again to go on"
            ));
            ("saved", EXIT_SAVED)
        }
        Outcome::Requeue(reason) => {
            say(&format!("it is to be started again later: {reason}"));
            ("requeue", EXIT_REQUEUE)
        }
        Outcome::Interrupted => ("interrupted", EXIT_INTERRUPTED),
        Outcome::GaveUp(reason) => {
            say(&format!("gives up: {reason}"));
            ("gave up", EXIT_GAVE_UP)
        }
    };
    let reason = match &outcome {
        Outcome::Requeue(reason) | Outcome::GaveUp(reason) => Some(reason.clone()),
        _ => None,
    };
    let json = json!({ "job": job.as_str(), "outcome": word, "reason": reason });
    // Standard output is the command's.
    Ok(Answer { text: String::new(), json, code })
}

/// Returns the time of day by which the run must have ended.
fn stop_by_ns(given: Option<StopBy>, now_ns: u64) -> Option<u64> {
    let of_slurm = || std::env::var("SLURM_JOB_END_TIME").ok()?.parse().ok().map(StopBy::At);
    Some(match given.or_else(of_slurm)? {
        StopBy::Within(time) => {
            now_ns.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
        }
        StopBy::At(seconds) => seconds.saturating_mul(1_000_000_000),
    })
}

/// `outlive stop`.
pub fn stop(args: &StopArgs, reporter: &Arc<Reporter>) -> Result<Answer> {
    let pool = pool::open(&args.pool, reporter)?;
    // A job whose program has not saved yet is in no log.
    let job = JobName::new(&args.job)?;
    if !pool.jobs()?.contains(&job) && pool.is_run_locked(&job) == Some(false) {
        return Err(Error::invalid(format!(
            "the pool has no job {job}, and no `outlive run` of this pool runs it: nothing was asked"
        )));
    }
    ask_in_pool(&pool, &job, &args.reason)?;
    Ok(Answer::new(
        format!(
            "Asked: a program that runs job {job} now finds the request when it saves, or asks whether to \
             stop. Programs that start later do not obey it.\n"
        ),
        json!({ "job": job.as_str(), "asked": true }),
    ))
}

/// `outlive history`.
pub fn history(args: &HistoryArgs, reporter: &Arc<Reporter>) -> Result<Answer> {
    let pool = pool::open(&args.pool, reporter)?;
    let job = JobName::new(&args.job)?;
    let mut history = History::read(&pool, &job)?;
    // Without its lock, the supervisor of an attempt that seems to run is gone.
    if pool.is_run_locked(&job) == Some(false) {
        history.end_lost();
    }
    if history.attempts.is_empty() {
        return Err(Error::invalid(format!("`outlive run` has not run job {job} of this pool")));
    }
    if let Some(file) = &args.plot {
        std::fs::write(file, timeline(&job, &history))
            .map_err(|e| Error::io_named("writing the picture", file, &e))?;
    }
    let share = history.share();
    let mut table = Table::new(&[
        "STARTED", ">ATTEMPT", "HOST", ">RAN", "END", ">FROM", ">NEWEST", ">COMMITS", ">LOST",
        "EVERY",
    ]);
    let epoch = |epoch: Option<u64>| epoch.map_or("-".to_owned(), |epoch| epoch.to_string());
    let time = |seconds: Option<f64>| seconds.map_or("-".to_owned(), span);
    for entry in &history.attempts {
        table.row(vec![
            when(entry.started_ns),
            entry.attempt.to_string(),
            shown(&entry.host),
            time(entry.ran_s),
            end_of(entry),
            epoch(entry.restored),
            epoch(entry.newest),
            entry.commits.to_string(),
            time(entry.lost_s()),
            entry.interval.as_ref().map_or("-".to_owned(), Choice::short),
        ]);
    }
    let mut text = table.text();
    if let Some(useful) = share.useful() {
        text.push_str(&format!(
            "{:.1} % of the time was useful work: {} ran, of which {} were lost; {} between attempts\n",
            useful * 100.0,
            span(share.ran_s),
            span(share.lost_s),
            span(share.waited_s)
        ));
    }
    let last = history.attempts.iter().rev().find_map(|entry| entry.interval.as_ref());
    if let Some(choice) = last.filter(|choice| choice.saves > 0) {
        text.push_str(&format!("the last interval: {choice}\n"));
    }
    let json = json!({
        "job": job.as_str(),
        "attempts": history.attempts.iter().map(entry_json).collect::<Vec<Value>>(),
        "ran_s": share.ran_s,
        "lost_s": share.lost_s,
        "waited_s": share.waited_s,
        "useful_share": share.useful(),
    });
    Ok(Answer::new(text, json))
}

fn end_of(entry: &Entry) -> String {
    let cause = entry.cause.as_ref().map_or("running".to_owned(), ToString::to_string);
    match entry.distrusted {
        Some(epoch) => format!("{cause}; checkpoint {epoch} marked as bad"),
        None => cause,
    }
}

fn entry_json(entry: &Entry) -> Value {
    let mut json = serde_json::to_value(entry).unwrap_or_default();
    if let Value::Object(fields) = &mut json {
        let cause = entry.cause.as_ref().map(ToString::to_string);
        fields.insert("cause".to_owned(), json!(cause));
        fields.insert("lost_s".to_owned(), json!(entry.lost_s()));
    }
    json
}

/// Returns a time for a person.
fn span(seconds: f64) -> String {
    let whole = Duration::from_secs_f64(seconds.max(0.0)).as_secs();
    match whole {
        0..60 => format!("{seconds:.1} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        3600..86_400 => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
        _ => format!("{} d {} h", whole / 86_400, whole % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_ends_by_the_time_that_is_given_or_that_slurm_sets() {
        assert_eq!(
            stop_by_ns(Some(StopBy::Within(Duration::from_secs(2))), 7),
            Some(2_000_000_007)
        );
        assert_eq!(stop_by_ns(Some(StopBy::At(u64::MAX)), 7), Some(u64::MAX));
    }

    #[test]
    fn times_are_short() {
        let spans = [0.0, 59.96, 61.0, 3_600.0, 90_000.0].map(span);
        assert_eq!(spans, ["0.0 s", "60.0 s", "1 min 1 s", "1 h 0 min", "1 d 1 h"]);
    }
}
