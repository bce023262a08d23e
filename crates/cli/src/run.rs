//! `outlive run`, `outlive stop` and `outlive history`: programs under failures.

use crate::args::{HistoryArgs, ListFormat, PoolName, RunArgs, StopArgs, StopBy};
use crate::csv::Csv;
use crate::helper::own_command;
use crate::output::{Answer, Reporter, Table, shown, when};
use crate::plot::picture;
use crate::timeline::{number, timeline};
use crate::{EXIT_INTERRUPTED, pool};
use outlive_client::stop::ask_in_pool;
use outlive_interval::Choice;
use outlive_pool::{Environment, Pool};
use outlive_store::gc::holder;
use outlive_supervise::{
    Entry, History, Outcome, RunOptions, Tell, check_command, count_commits, job_end_ns,
};
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
    let named = match &args.pool {
        Some(pool) => pool.clone(),
        None => PoolName::from_variable()
            .map_err(|why| Error::invalid(format!("no --pool is given, and {why}")))?,
    };
    // A word that is written wrong must leave no pool behind.
    check_command(&args.command)?;
    pool::say_which(&named, reporter);
    let pool = outlive_pool::open_or_create(&named, Environment::observed(reporter.clone()))?;
    let (to, of) = (reporter.clone(), job.clone());
    let say: Tell = Arc::new(move |text: &str| to.inform(&told(&of, text)));
    let now_ns = pool.env().clock.unix_ns();
    let of_slurm = || {
        job_end_ns(now_ns).unwrap_or_else(|error| {
            say(&format!(
                "the end of the Slurm job is not known ({error}): the command is asked to stop only \
                 by a signal, or give --stop-by"
            ));
            None
        })
    };
    let options = RunOptions {
        job: job.clone(),
        command: args.command.clone(),
        give_up: args.give_up,
        hang: args.hang,
        grace: args.grace,
        every: args.every.clone(),
        helper: (!args.no_helper).then(|| own_command(words)).flatten(),
        gate: args.gate,
        stop_by_ns: args.stop_by.map(|given| stop_by_ns(given, now_ns)).or_else(of_slurm),
    };
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
            reporter.say(&told(&job, &format!("gives up: {reason}")));
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

/// Returns the time of day by which the run must have ended, in nanoseconds since 1970.
fn stop_by_ns(given: StopBy, now_ns: u64) -> u64 {
    match given {
        StopBy::Within(time) => {
            now_ns.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
        }
        StopBy::At(seconds) => seconds.saturating_mul(1_000_000_000),
    }
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
    let later = "Programs that start later do not obey it.";
    let holder = holder(&pool, &job).unwrap_or_default();
    // A program that has opened the job has no session before its first save.
    let (is_running, text) = match (pool.is_run_locked(&job), holder) {
        (Some(true), _) => (
            true,
            format!(
                "Asked: `outlive run` of job {job} asks its program to save and to end. {later}\n"
            ),
        ),
        (_, Some(program)) => (
            true,
            format!(
                "Asked: {program} has job {job} open, and finds the request when it saves, or asks whether \
                 to stop. {later}\n"
            ),
        ),
        (_, None) => (
            false,
            format!(
                "Nothing that runs job {job} is known: no `outlive run`, and no program that has saved and \
                 is still there. The request is left for a program that has opened the job and not saved \
                 yet. {later}\n"
            ),
        ),
    };
    Ok(Answer::new(text, json!({ "job": job.as_str(), "asked": true, "running": is_running })))
}

/// Returns a line of the supervisor.
fn told(job: &JobName, text: &str) -> String {
    format!("outlive run: job {job}: {text}")
}

/// `outlive history`.
pub fn history(args: &HistoryArgs, reporter: &Arc<Reporter>) -> Result<Answer> {
    let pool = pool::open(&args.pool, reporter)?;
    let job = JobName::new(&args.job)?;
    let history = read_history(&pool, &job)?;
    if history.attempts.is_empty() {
        return Err(Error::invalid(format!(
            "job {job} of this pool has no history: give it one by `outlive run`, or by every=\"auto\" in its \
             program"
        )));
    }
    if let Some(file) = &args.plot {
        picture::write(file, &timeline(&job, &history))?;
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
            number(entry),
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
    let json = history_json(&job, &history);
    if args.format == ListFormat::Csv {
        text = csv(&json);
    }
    Ok(Answer::new(text, json))
}

/// Returns the attempts of a history as CSV.
fn csv(history: &Value) -> String {
    let columns = [
        "started_ns",
        "attempt",
        "host",
        "supervisor",
        "ran_s",
        "cause",
        "restored",
        "newest",
        "commits",
        "committed_s",
        "lost_s",
        "restored_s",
        "distrusted",
    ];
    let mut csv = Csv::new(columns.map(str::to_owned).to_vec());
    history["attempts"].as_array().into_iter().flatten().for_each(|attempt| csv.row(attempt));
    csv.text()
}

/// Reads the attempts of a job.
///
/// # Errors
/// Errors of the pool.
pub fn read_history(pool: &Pool, job: &JobName) -> Result<History> {
    let mut history = History::read(pool, job)?;
    // Without its lock, the supervisor of an attempt that seems to run is gone.
    if pool.is_run_locked(job) == Some(false) {
        history.end_lost();
    }
    // An attempt that runs has noted nothing yet. Without a readable log the rest is shown.
    if let Some(running) = history.attempts.last_mut().filter(|last| last.cause.is_none()) {
        let _ = count_commits(pool, job, running);
    }
    Ok(history)
}

/// Returns the attempts of a job as JSON.
pub fn history_json(job: &JobName, history: &History) -> Value {
    let share = history.share();
    json!({
        "job": job.as_str(),
        "attempts": history.attempts.iter().map(entry_json).collect::<Vec<Value>>(),
        "ran_s": share.ran_s,
        "lost_s": share.lost_s,
        "waited_s": share.waited_s,
        "useful_share": share.useful(),
    })
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
    fn a_run_ends_by_the_time_that_is_given() {
        assert_eq!(stop_by_ns(StopBy::Within(Duration::from_secs(2)), 7), 2_000_000_007);
        assert_eq!(stop_by_ns(StopBy::At(u64::MAX), 7), u64::MAX);
    }

    #[test]
    fn times_are_short() {
        let spans = [0.0, 59.96, 61.0, 3_600.0, 90_000.0].map(span);
        assert_eq!(spans, ["0.0 s", "60.0 s", "1 min 1 s", "1 h 0 min", "1 d 1 h"]);
    }
}
