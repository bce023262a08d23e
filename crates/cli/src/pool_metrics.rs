//! `outlive metrics`: the state of a pool as metrics, in the text format of Prometheus.

use crate::args::MetricsArgs;
use crate::ls::{CheckpointRow, JobListing};
use crate::output::{Answer, Reporter};
use crate::pool::{Status, open, open_observed, room};
use outlive_format::Mark;
use outlive_pool::Pool;
use outlive_store::gc::listed_jobs;
use outlive_types::{Error, NoObserver, Result, metrics};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

/// A gauge, with a value for each set of labels.
struct Family {
    name: &'static str,
    help: &'static str,
    values: Vec<(Vec<(&'static str, String)>, f64)>,
}

/// All gauges, in the order of their first values.
#[derive(Default)]
struct Families(Vec<Family>);

impl Families {
    fn add(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: &[(&'static str, &str)],
        value: f64,
    ) {
        let labels = labels.iter().map(|(name, text)| (*name, (*text).to_owned())).collect();
        match self.0.iter_mut().find(|family| family.name == name) {
            Some(family) => family.values.push((labels, value)),
            None => self.0.push(Family { name, help, values: vec![(labels, value)] }),
        }
    }

    /// Returns the text; each value has the label `pool` besides its own.
    fn text(&self, pool: &str) -> String {
        let mut text = String::new();
        for Family { name, help, values } in &self.0 {
            text.push_str(&metrics::head(name, help, "gauge"));
            for (labels, value) in values {
                let own = labels.iter().map(|(name, text)| metrics::label(name, text));
                let all: Vec<String> =
                    std::iter::once(metrics::label("pool", pool)).chain(own).collect();
                // A write to a string cannot fail.
                let _ = writeln!(text, "{name}{{{}}} {value}", all.join(","));
            }
        }
        text
    }

    fn json(&self) -> Value {
        let of = |family: &Family| {
            let values = family.values.iter().map(|(labels, value)| {
                let labels: serde_json::Map<String, Value> =
                    labels.iter().map(|(name, text)| ((*name).to_owned(), json!(text))).collect();
                json!({ "labels": labels, "value": value })
            });
            json!({
                "name": family.name,
                "help": family.help,
                "values": values.collect::<Vec<_>>(),
            })
        };
        self.0.iter().map(of).collect()
    }
}

/// `outlive metrics`.
pub fn metrics(args: &MetricsArgs, reporter: &Arc<Reporter>) -> Result<Answer> {
    let pool = open(&args.pool, reporter)?;
    let path = args.pool.display().to_string();
    let warn = |text: &str| reporter.say(&format!("warning: {text}"));
    let all = read(&pool, &warn)?;
    let json = json!({ "pool": path, "metrics": all.json() });
    Ok(Answer::new(all.text(&path), json))
}

/// Returns the text for the pool in `path`.
///
/// # Errors
/// Errors of opening the pool, and of its log and targets.
pub fn text_of(path: &Path) -> Result<String> {
    let pool = open_observed(path, Arc::new(NoObserver))?;
    Ok(read(&pool, &|_| ())?.text(&path.display().to_string()))
}

/// Reads all values; `warn` gets the jobs that cannot be read.
fn read(pool: &Pool, warn: &dyn Fn(&str)) -> Result<Families> {
    let (status, now_ns) = (Status::read(pool)?, pool.env().clock.unix_ns());
    let mut all = Families::default();
    pool_values(&mut all, &status, pool.config().redundancy.survives() as i64);
    let jobs = listed_jobs(pool)?;
    all.add("outlive_pool_jobs", "Jobs of the pool.", &[], jobs.len() as f64);
    for job in &jobs {
        let listing = match JobListing::read(pool, job) {
            Ok(listing) => listing,
            Err(error) => {
                warn(&format!("job {job} cannot be read: {}", error.message()));
                job_readable(&mut all, job.as_str(), false);
                continue;
            }
        };
        job_readable(&mut all, job.as_str(), true);
        job_values(&mut all, job.as_str(), &listing, now_ns);
    }
    Ok(all)
}

fn job_readable(all: &mut Families, job: &str, is_readable: bool) {
    let help = "1 if the log of the job can be listed, else 0.";
    all.add("outlive_pool_job_readable", help, &[("job", job)], f64::from(u8::from(is_readable)));
}

/// Adds the values of the pool, its targets and its log. Checkpoints should survive `rule` losses.
fn pool_values(all: &mut Families, status: &Status, rule: i64) {
    let Status { usage, redundancy, replicas, .. } = status;
    for (name, help, value) in [
        ("outlive_pool_packs", "Packs of the pool.", usage.packs as f64),
        (
            "outlive_pool_stored_bytes",
            "Bytes of all shards on the targets that are there.",
            usage.stored_bytes as f64,
        ),
        (
            "outlive_pool_survivable_targets",
            "Targets that may be lost at a time, by the rule of the pool.",
            rule as f64,
        ),
    ] {
        all.add(name, help, &[], value);
    }
    let lacks =
        |spare: &std::result::Result<i64, Error>| !matches!(spare, Ok(spare) if *spare >= rule);
    let degraded = redundancy.iter().filter(|one| lacks(&one.spare)).count();
    let unreadable = redundancy.iter().filter(|one| !matches!(one.spare, Ok(0..))).count();
    for (name, help, value) in [
        (
            "outlive_pool_degraded_checkpoints",
            "Checkpoints that survive fewer losses than the rule says.",
            degraded,
        ),
        (
            "outlive_pool_unreadable_checkpoints",
            "Checkpoints that the fast targets which are there cannot restore.",
            unreadable,
        ),
    ] {
        all.add(name, help, &[], value as f64);
    }
    for target in &usage.targets {
        let id = target.id.to_string();
        let (tier, state) = (target.tier.name(), target.state.name());
        let labels = [("id", &*id), ("target", &*target.target), ("tier", tier), ("state", state)];
        let is_there = target.away.is_none();
        let there = f64::from(u8::from(is_there));
        all.add(
            "outlive_pool_target_up",
            "1 if the target is there, 0 if it is away.",
            &labels,
            there,
        );
        let values = [
            (
                "outlive_pool_target_stored_bytes",
                "Bytes of the shards on the target.",
                Some(target.stored_bytes),
            ),
            (
                "outlive_pool_target_free_bytes",
                "Free bytes of the target; left out without a limit.",
                room(target.free_bytes),
            ),
            (
                "outlive_pool_target_size_bytes",
                "Bytes of the target, used or free; left out without a limit.",
                room(target.total_bytes),
            ),
        ];
        for (name, help, value) in values.into_iter().filter(|_| is_there) {
            if let Some(value) = value {
                all.add(name, help, &labels, value as f64);
            }
        }
    }
    for (replica, away) in replicas {
        let help = "1 if the log replica is there, 0 if it is away.";
        let there = f64::from(u8::from(away.is_none()));
        all.add("outlive_pool_log_replica_up", help, &[("replica", replica)], there);
    }
}

fn job_values(all: &mut Families, job: &str, listing: &JobListing, now_ns: u64) {
    let labels = [("job", job)];
    let count =
        |is: fn(&CheckpointRow) -> bool| listing.epochs.iter().filter(|row| is(row)).count() as f64;
    for (name, help, value) in [
        ("outlive_pool_checkpoints", "Checkpoints of the job.", count(|_| true)),
        (
            "outlive_pool_suspect_checkpoints",
            "Checkpoints in which a restore or verification found damage.",
            count(|row| row.manifest.remarks.suspect),
        ),
        (
            "outlive_pool_incomplete_checkpoints",
            "Checkpoints of which a scrub found something lost.",
            count(|row| row.incomplete),
        ),
        (
            "outlive_pool_bad_checkpoints",
            "Checkpoints that are marked as bad.",
            count(|row| row.manifest.remarks.mark == Mark::Bad),
        ),
        (
            "outlive_pool_unreadable_log_records",
            "Records of the job's log that cannot be read.",
            listing.unreadable().len() as f64,
        ),
        (
            "outlive_pool_job_written_bytes",
            "Bytes that the saves of the job's checkpoints wrote.",
            listing.stored_bytes() as f64,
        ),
    ] {
        all.add(name, help, &labels, value);
    }
    let Some(CheckpointRow { manifest, .. }) = listing.epochs.last() else { return };
    let seconds = |ns: u64| ns as f64 / 1e9;
    for (name, help, value) in [
        (
            "outlive_pool_newest_checkpoint_epoch",
            "Epoch of the newest checkpoint.",
            manifest.epoch as f64,
        ),
        (
            "outlive_pool_newest_checkpoint_timestamp_seconds",
            "Time of the newest checkpoint, in seconds since 1970.",
            seconds(manifest.frozen_ns),
        ),
        (
            "outlive_pool_newest_checkpoint_age_seconds",
            "Age of the newest checkpoint when this was written.",
            seconds(now_ns.saturating_sub(manifest.frozen_ns)),
        ),
        (
            "outlive_pool_newest_checkpoint_state_bytes",
            "Bytes of all regions of the newest checkpoint.",
            manifest.state_bytes() as f64,
        ),
        (
            "outlive_pool_newest_checkpoint_stall_seconds",
            "Time for which the program stood still for the newest checkpoint.",
            seconds(manifest.figures.stall_ns),
        ),
        (
            "outlive_pool_newest_checkpoint_persist_seconds",
            "Time from the freeze of the newest checkpoint to its commit.",
            seconds(manifest.figures.drain_ns),
        ),
    ] {
        all.add(name, help, &labels, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_stay_in_their_labels() {
        let mut all = Families::default();
        all.add("outlive_pool_checkpoints", "Checkpoints.", &[("job", "a\"} 7\n# x\\")], 2.0);
        all.add("outlive_pool_checkpoints", "Checkpoints.", &[("job", "b")], 3e15);
        let text = all.text("p\"q");
        let expected = "# HELP outlive_pool_checkpoints Checkpoints.\n\
            # TYPE outlive_pool_checkpoints gauge\n\
            outlive_pool_checkpoints{pool=\"p\\\"q\",job=\"a\\\"} 7\\n# x\\\\\"} 2\n\
            outlive_pool_checkpoints{pool=\"p\\\"q\",job=\"b\"} 3000000000000000\n";
        assert_eq!(text, expected);
    }
}
