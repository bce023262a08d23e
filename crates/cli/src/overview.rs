//! All that `outlive web` and `outlive report` show of a pool, as JSON.
//!
//! The parts are those of `pool status`, `ls`, `history`, `show` and `du`. A part that cannot be read
//! is replaced by its error, and the others are still there.

use crate::du::usage_json;
use crate::ls::{JobListing, manifest_json};
use crate::pool::{Status, open_observed};
use crate::run::{history_json, read_history};
use outlive_client::past::ChosenInterval;
use outlive_pool::Pool;
use outlive_store::gc::{UsageOf, listed_jobs, usage};
use outlive_store::retention::Rules;
use outlive_store::{Job, JobOptions};
use outlive_types::sync::plain::Mutex;
use outlive_types::{Epoch, Error, Event, JobName, Observer, Result};
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most checkpoints of a job on the page; the newest are shown.
const CHECKPOINTS_MAX: usize = 10_000;
/// Most checkpoints of all jobs on the page.
const CHECKPOINTS_TOTAL_MAX: usize = 50_000;
/// Most checkpoints of a job of which the page shows the space each.
const SPACE_CHECKPOINTS_MAX: usize = 500;
/// Time after which the space of no further job is read.
const SPACE_TIME_MAX: Duration = Duration::from_secs(20);
/// Most warnings that are kept.
const WARNINGS_MAX: usize = 100;
/// Rules of the prune that is shown if `pool.toml` has none.
const KEEP_WITHOUT_RULES: &str = "last 1";

/// Keeps the warnings of a pool, each once, in order.
#[derive(Default)]
struct Warnings(Mutex<Vec<String>>);

impl Observer for Warnings {
    fn event(&self, event: Event) {
        if let Event::Warning(text) = event {
            let mut warnings = self.0.lock();
            if warnings.len() < WARNINGS_MAX && !warnings.contains(&text) {
                warnings.push(text);
            }
        }
    }
}

fn error_json(error: &Error) -> Value {
    json!({ "kind": error.kind().name(), "message": error.message() })
}

/// Opens a pool, to see whether that is possible.
///
/// # Errors
/// Errors of opening it.
pub fn check(path: &Path) -> Result<()> {
    open_observed(path, Arc::new(Warnings::default())).map(|_| ())
}

/// Reads jobs, checkpoints, targets, damage and attempts.
///
/// # Errors
/// Errors of opening the pool and listing its jobs.
pub fn data(path: &Path) -> Result<Value> {
    let warnings = Arc::new(Warnings::default());
    let pool = open_observed(path, warnings.clone())?;
    let shown = path.display().to_string();
    let mut errors = Vec::new();
    let status = match Status::read(&pool) {
        Ok(status) => {
            let mut status = status.json(&pool, &shown);
            // The page shows no configuration.
            if let Value::Object(fields) = &mut status {
                fields.retain(|key, _| key != "config" && key != "meanings");
            }
            status
        }
        Err(error) => {
            errors.push(json!({ "part": "targets", "message": error.message() }));
            Value::Null
        }
    };
    let mut left = CHECKPOINTS_TOTAL_MAX;
    let jobs = listed_jobs(&pool)?;
    let jobs: Vec<Value> = jobs.iter().map(|job| job_json(&pool, job, &mut left)).collect();
    let warnings = warnings.0.lock().clone();
    Ok(json!({
        "outlive": env!("CARGO_PKG_VERSION"),
        "pool": shown,
        "read_ns": pool.env().clock.unix_ns(),
        "status": status,
        "jobs": jobs,
        "errors": errors,
        "warnings": warnings,
    }))
}

/// Returns a job with its newest checkpoints, oldest first; `left` is the number that the page still
/// takes.
fn job_json(pool: &Pool, job: &JobName, left: &mut usize) -> Value {
    let listing = match JobListing::read(pool, job) {
        Ok(listing) => listing,
        Err(error) => return json!({ "job": job.as_str(), "error": error_json(&error) }),
    };
    let left_out = listing.epochs.len().saturating_sub(CHECKPOINTS_MAX.min(*left));
    let list: Vec<Value> = listing.epochs[left_out..]
        .iter()
        .map(|row| manifest_json(&row.manifest, row.incomplete, row.record_bytes, None))
        .collect();
    *left -= list.len();
    let dropped_left_out = listing.dropped.len().saturating_sub(CHECKPOINTS_MAX);
    let mut json = listing.json(job);
    json["list"] = json!(list);
    json["left_out"] = json!(left_out);
    json["dropped"] = json!(listing.dropped[dropped_left_out..]);
    json["dropped_left_out"] = json!(dropped_left_out);
    match read_history(pool, job) {
        Ok(history) if history.attempts.is_empty() => json["history"] = Value::Null,
        Ok(history) => json["history"] = history_json(job, &history),
        Err(error) => {
            json["history"] = Value::Null;
            json["history_error"] = error_json(&error);
        }
    }
    let interval = ChosenInterval::read(pool, job).unwrap_or(None);
    json["interval"] = json!(interval.map(|ChosenInterval { epoch, choice, .. }| {
        json!({ "epoch": epoch, "text": choice.to_string() })
    }));
    json
}

/// Reads the space that jobs and checkpoints need, and what a prune of each job would free.
///
/// # Errors
/// Errors of opening the pool and listing its jobs.
pub fn space(path: &Path) -> Result<Value> {
    let begun = Instant::now();
    let pool = open_observed(path, Arc::new(Warnings::default()))?;
    let jobs = match usage(&pool, &UsageOf::Jobs) {
        Ok(usage) => usage_json(&path.display().to_string(), &usage),
        Err(error) => json!({ "error": error_json(&error) }),
    };
    let mut epochs: HashMap<JobName, Vec<(Epoch, u64)>> = HashMap::new();
    for job in listed_jobs(&pool)? {
        // The data says why a log cannot be read.
        let rows = JobListing::read(&pool, &job).map(|listing| listing.epochs).unwrap_or_default();
        let of = |manifest: &outlive_format::Manifest| (manifest.epoch, manifest.frozen_ns);
        epochs.insert(job, rows.iter().map(|row| of(&row.manifest)).collect());
    }
    let mut names: Vec<&JobName> =
        epochs.iter().filter(|(_, e)| !e.is_empty()).map(|(job, _)| job).collect();
    let newest = |job: &JobName| epochs[job].iter().map(|(_, frozen_ns)| *frozen_ns).max();
    names.sort_by_key(|job| (std::cmp::Reverse(newest(job)), (*job).clone()));
    let (mut checkpoints, mut prunes, mut left_out) = (Vec::new(), Vec::new(), 0);
    for job in names {
        // The first job is always there, however long it takes.
        if !checkpoints.is_empty() && begun.elapsed() > SPACE_TIME_MAX {
            left_out += 1;
            continue;
        }
        let all = &epochs[job];
        let older = all.len().saturating_sub(SPACE_CHECKPOINTS_MAX);
        let chosen: BTreeSet<Epoch> = all[older..].iter().map(|(epoch, _)| *epoch).collect();
        checkpoints.push(match usage(&pool, &UsageOf::Some(job.clone(), chosen)) {
            Ok(usage) => {
                let rows = usage_json("", &usage)["rows"].take();
                json!({ "job": job.as_str(), "rows": rows, "left_out": older })
            }
            Err(error) => json!({ "job": job.as_str(), "error": error_json(&error) }),
        });
        prunes.push(prune_json(&pool, job));
    }
    Ok(json!({
        "jobs": jobs,
        "checkpoints": checkpoints,
        "prunes": prunes,
        "jobs_left_out": left_out,
    }))
}

/// Returns what a prune by the rules of `pool.toml` would drop and free.
fn prune_json(pool: &Pool, job: &JobName) -> Value {
    let keep = &pool.config().tuning.keep;
    let keep = if keep.is_empty() { KEEP_WITHOUT_RULES } else { keep };
    let found = || {
        let mut rules = Rules::default();
        rules.add(keep)?;
        let plan = Job::open(pool, job.as_str(), JobOptions::default())?.retention(&rules)?;
        let dropped = plan.dropped();
        let frees_bytes = match dropped.is_empty() {
            true => 0,
            false => {
                let without = usage(pool, &UsageOf::Some(job.clone(), dropped.clone()))?.without;
                without.map_or(0, |plan| plan.freed_now_bytes())
            }
        };
        Ok((dropped, frees_bytes))
    };
    let mut json = json!({ "job": job.as_str(), "rules": keep });
    match found() {
        Ok((dropped, frees_bytes)) => {
            json["dropped"] = json!(dropped.len());
            json["frees_bytes"] = json!(frees_bytes);
        }
        Err::<_, Error>(error) => json["error"] = error_json(&error),
    }
    json
}
