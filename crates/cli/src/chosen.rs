//! The checkpoint that a command names, and its description.

use crate::output::{age, bytes, count, quoted, shown, when};
use crate::pool;
use crate::tiers::tiers_text;
use outlive_format::{Images, Manifest, Mark};
use outlive_pool::{Pool, Tier};
use outlive_store::commit::{Entry, history};
use outlive_store::{Job, JobOptions, Select};
use outlive_types::{Epoch, EpochName, Error, JobName, Result};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Parses `JOB` or `JOB@EPOCH` to a job and perhaps one of its checkpoints. An existing job with
/// the whole text as its name comes first. `epoch` may also be given separately.
///
/// # Errors
/// `Invalid` if there is no such job, or two epochs are given; those of [`Job::epoch_named`].
pub fn job_at(
    pool: &Pool,
    text: &str,
    apart: Option<EpochName>,
) -> Result<(JobName, Option<Epoch>)> {
    let jobs = pool.jobs()?;
    let is_job = |name: &str| jobs.iter().any(|job| job.as_str() == name);
    let (name, named) = match EpochName::split(text) {
        Some((job, epoch)) if !is_job(text) => (pool::known_job(pool, job)?, Some(epoch)),
        _ => (pool::known_job(pool, text)?, None),
    };
    let epoch = match (named, apart) {
        (Some(one), Some(two)) if one != two => {
            return Err(Error::invalid(format!(
                "two epochs of job {name} are named, {one} and {two}: name one, as {name}@{one}"
            )));
        }
        (named, apart) => named.or(apart),
    };
    let number = epoch.map(|epoch| number_of(pool, &name, epoch)).transpose()?;
    Ok((name, number))
}

/// Returns the number of a checkpoint.
///
/// # Errors
/// Those of [`Job::epoch_named`].
pub fn number_of(pool: &Pool, job: &JobName, epoch: EpochName) -> Result<Epoch> {
    Job::open(pool, job.as_str(), JobOptions::default())?.epoch_named(epoch)
}

/// Selects a checkpoint for a command that reads only a part of it.
pub fn select_sound(epoch: Option<Epoch>) -> Select {
    epoch.map_or(Select::Sound, Select::Epoch)
}

/// Returns whether a scrub has recorded that data of a checkpoint is lost.
pub fn is_incomplete(job: &Job, epoch: Epoch) -> Result<bool> {
    let of = |entry: &Entry| entry.manifest().is_some_and(|manifest| manifest.epoch == epoch);
    Ok(history(job.pool(), job.name())?.find(of).is_some_and(|entry| entry.incomplete))
}

/// Selects a checkpoint for a command that reads all of it.
pub fn select(epoch: Option<Epoch>) -> Select {
    epoch.map_or(Select::Newest, Select::Epoch)
}

/// Returns the newer checkpoints that were skipped, as JSON.
pub fn skipped_json(skipped: &[(Epoch, Error)]) -> Value {
    skipped
        .iter()
        .map(|(epoch, error)| {
            json!({ "epoch": (*epoch > 0).then_some(epoch), "message": error.message() })
        })
        .collect()
}

/// Returns a manifest's properties, a line each; `noun` names the elements of its image.
pub fn head_text(
    job: &Job,
    manifest: &Manifest,
    incomplete: bool,
    tiers: Option<&[Tier]>,
    noun: &str,
) -> String {
    let now_ns = job.pool().env().clock.unix_ns();
    let mut text = format!("Checkpoint {} of job {}\n", manifest.epoch, job.name());
    let mut line = |key: &str, value: String| {
        let _ = writeln!(text, "{key:<13}{value}");
    };
    let frozen_ns = manifest.frozen_ns;
    line("frozen at", format!("{} ({} ago)", when(frozen_ns), age(frozen_ns, now_ns)));
    line(
        "parent",
        match manifest.parent {
            0 => "none: it was saved from nothing".to_owned(),
            parent => format!("checkpoint {parent}"),
        },
    );
    line("session", manifest.session.to_string());
    line("ranks", manifest.world_size.to_string());
    let (state_bytes, parts) = (manifest.state_bytes(), manifest.regions());
    line("state", format!("{} in {}", bytes(state_bytes), count(parts, noun)));
    let (figures, remarks) = (&manifest.figures, &manifest.remarks);
    line(
        "this save",
        format!(
            "{} changed; {} shared with what was there, {} zero, {} new; {} written",
            bytes(figures.changed_bytes),
            bytes(figures.known_bytes),
            bytes(figures.zero_bytes),
            bytes(figures.raw_bytes),
            bytes(figures.new_bytes)
        ),
    );
    line(
        "resolved by",
        match &manifest.images {
            Images::One(image) => count(image.segments.len() as u64, "segment"),
            Images::Table(table) => {
                format!("an image table of {}", count(table.pages.len() as u64, "page"))
            }
        },
    );
    if let Some(tiers) = tiers {
        line("safe on", tiers_text(tiers));
    }
    if !remarks.label.is_empty() {
        line("label", quoted(&remarks.label));
    }
    if !remarks.tags.is_empty() {
        line("tags", shown(&remarks.tags.join(", ")));
    }
    if remarks.pinned {
        line("pinned", "prunings keep it".to_owned());
    }
    match remarks.mark {
        Mark::None => {}
        Mark::Good => line("mark", "good".to_owned()),
        Mark::Bad => line("mark", "bad: restores of the newest pass over it".to_owned()),
    }
    if remarks.suspect {
        line(
            "suspect",
            "a restore or `verify` found damage; lazy restores pass over it".to_owned(),
        );
    }
    if incomplete {
        line(
            "incomplete",
            "a scrub found that something of it is lost; restores pass over it".to_owned(),
        );
    }
    for (name, value) in &manifest.metrics {
        line("metric", format!("{} = {value}", shown(name)));
    }
    text
}
