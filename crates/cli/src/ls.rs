//! `outlive ls`: the jobs of a pool, the checkpoints of a job.

use crate::args::{ListFormat, LsArgs};
use crate::csv::Csv;
use crate::output::{Answer, Reporter, Table, age, bytes, count, quoted, shown, when};
use crate::pool;
use crate::tags::{has_tags, tags_text};
use crate::tiers::{Tiers, tiers_json, tiers_text};
use outlive_format::{Manifest, Mark};
use outlive_pool::{Pool, Tier};
use outlive_store::commit::history;
use outlive_store::gc::listed_jobs;
use outlive_types::{Epoch, JobName, Result};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

/// One checkpoint of a job.
pub struct CheckpointRow {
    /// The manifest.
    pub manifest: Manifest,
    /// Length of its record.
    pub record_bytes: u64,
    /// True if a scrub has recorded that data of it is lost.
    pub incomplete: bool,
}

/// A job's checkpoints, oldest first, and the unreadable records.
pub struct JobListing {
    /// The manifests.
    pub epochs: Vec<CheckpointRow>,
    /// Epochs of dropped checkpoints that the log still has, and when they were frozen.
    pub dropped: Vec<(Epoch, u64)>,
    unreadable: Vec<String>,
}

impl JobListing {
    /// Reads the log of a job.
    ///
    /// # Errors
    /// Errors of listing the log; damaged records are remarks of the listing.
    pub fn read(pool: &Pool, job: &JobName) -> Result<JobListing> {
        let mut listing =
            JobListing { epochs: Vec::new(), dropped: Vec::new(), unreadable: Vec::new() };
        let mut entries = history(pool, job)?;
        while let Some(entry) = entries.step() {
            match &entry.record {
                Err(error) => listing.unreadable.push(error.message().to_owned()),
                Ok(_) => {
                    let (record_bytes, incomplete) = (entry.bytes, entry.incomplete);
                    let manifest = entry.manifest().cloned();
                    if let (Some(gone), true) = (&manifest, entries.is_dropped(&entry)) {
                        listing.dropped.push((gone.epoch, gone.frozen_ns));
                        continue;
                    }
                    let listed = manifest.map(|manifest| CheckpointRow {
                        manifest,
                        record_bytes,
                        incomplete,
                    });
                    listing.epochs.extend(listed);
                }
            }
        }
        listing.epochs.reverse();
        listing.dropped.reverse();
        listing.unreadable.reverse();
        Ok(listing)
    }

    /// Returns the messages of the records that cannot be read, oldest first.
    pub fn unreadable(&self) -> &[String] {
        &self.unreadable
    }

    /// Returns the bytes that the saves of the checkpoints wrote.
    pub fn stored_bytes(&self) -> u64 {
        self.epochs.iter().map(|at| at.manifest.figures.new_bytes + at.record_bytes).sum()
    }

    /// Returns the job as JSON, without its checkpoints.
    pub fn json(&self, job: &JobName) -> Value {
        let newest = self.epochs.last().map(|listed| &listed.manifest);
        json!({
            "job": job.as_str(),
            "checkpoints": self.epochs.len(),
            "newest_epoch": newest.map(|manifest| manifest.epoch),
            "newest_at": newest.map(|manifest| when(manifest.frozen_ns)),
            "newest_ns": newest.map(|manifest| manifest.frozen_ns),
            "newest_world_size": newest.map(|manifest| manifest.world_size),
            "state_bytes": newest.map(Manifest::state_bytes),
            "stored_bytes": self.stored_bytes(),
            "unreadable_records": self.unreadable,
        })
    }

    /// Returns a remark on unreadable records; empty if there are none.
    fn remark(&self, job: &JobName) -> String {
        match self.unreadable.first() {
            None => String::new(),
            Some(first) => format!(
                "{} of job {job} cannot be read, the oldest because: {first}\n",
                count(self.unreadable.len() as u64, "log record")
            ),
        }
    }
}

/// Returns the special properties of a checkpoint: files instead of memory, a pin, known damage,
/// saves that failed before it, a label, tags, metrics.
fn remarks(manifest: &Manifest, incomplete: bool) -> String {
    let mut remarks = Vec::new();
    if manifest.is_of_files() {
        remarks.push("files".to_owned());
    }
    if manifest.remarks.pinned {
        remarks.push("pinned".to_owned());
    }
    if manifest.remarks.mark != Mark::None {
        remarks.push(manifest.remarks.mark.name().to_owned());
    }
    if manifest.remarks.suspect {
        remarks.push("suspect".to_owned());
    }
    if incomplete {
        remarks.push("incomplete".to_owned());
    }
    if let failed @ 1.. = manifest.failed_before {
        let or_more = if failed == u16::MAX { " or more" } else { "" };
        remarks.push(format!("after {failed}{or_more} failed"));
    }
    if !manifest.remarks.label.is_empty() {
        remarks.push(quoted(&manifest.remarks.label));
    }
    remarks.extend(manifest.remarks.tags.iter().map(|tag| format!("#{}", shown(tag))));
    remarks.extend(manifest.metrics.iter().map(|(name, value)| format!("{}={value}", shown(name))));
    remarks.join(", ")
}

/// Returns a manifest as JSON, with the length of its record, and the tiers that it is on if there
/// are two.
pub fn manifest_json(
    manifest: &Manifest,
    incomplete: bool,
    record_bytes: u64,
    tiers: Option<&[Tier]>,
) -> Value {
    json!({
        "epoch": manifest.epoch,
        "parent": (manifest.parent > 0).then_some(manifest.parent),
        "predecessor": (manifest.predecessor > 0).then_some(manifest.predecessor),
        "session": manifest.session.to_string(),
        "world_size": manifest.world_size,
        "frozen_at": when(manifest.frozen_ns),
        "frozen_ns": manifest.frozen_ns,
        "state_bytes": manifest.state_bytes(),
        "changed_bytes": manifest.figures.changed_bytes,
        "known_bytes": manifest.figures.known_bytes,
        "zero_bytes": manifest.figures.zero_bytes,
        "raw_bytes": manifest.figures.raw_bytes,
        "new_bytes": manifest.figures.new_bytes + record_bytes,
        "stall_ns": manifest.figures.stall_ns,
        "drain_ns": manifest.figures.drain_ns,
        "files": manifest.is_of_files(),
        "label": manifest.remarks.label,
        "tags": manifest.remarks.tags,
        "pinned": manifest.remarks.pinned,
        "suspect": manifest.remarks.suspect,
        "mark": manifest.remarks.mark.name(),
        "incomplete": incomplete,
        "failed_before": manifest.failed_before,
        "tiers": tiers_json(tiers),
        "metrics": manifest.metrics.iter().cloned().collect::<std::collections::BTreeMap<_, _>>(),
        "regions": manifest.regions(),
        "segments": manifest.images.one().map(|image| image.segments.len()),
        "pages": manifest.images.table().map(|table| table.pages.len()),
    })
}

/// `outlive ls`.
pub fn ls(args: &LsArgs, reporter: &Arc<Reporter>) -> Result<Answer> {
    let pool = pool::open(&args.pool, reporter)?;
    match &args.job {
        None => jobs(&pool, args),
        Some(name) => epochs(&pool, &pool::known_job(&pool, name)?, args),
    }
}

fn jobs(pool: &Pool, args: &LsArgs) -> Result<Answer> {
    let now_ns = pool.env().clock.unix_ns();
    let mut table = Table::new(&[
        "JOB",
        ">CHECKPOINTS",
        ">NEWEST",
        ">AGE",
        ">RANKS",
        ">STATE",
        ">STORED",
        ">REGIONS",
    ]);
    let mut json = Vec::new();
    let mut remarks = String::new();
    let jobs = listed_jobs(pool)?;
    for job in &jobs {
        let listing = JobListing::read(pool, job)?;
        let newest = listing.epochs.last().map(|listed| &listed.manifest);
        let or_dash = |cell: Option<String>| cell.unwrap_or_else(|| "-".to_owned());
        table.row(vec![
            job.to_string(),
            listing.epochs.len().to_string(),
            or_dash(newest.map(|manifest| manifest.epoch.to_string())),
            or_dash(newest.map(|manifest| age(manifest.frozen_ns, now_ns))),
            or_dash(newest.map(|manifest| manifest.world_size.to_string())),
            or_dash(newest.map(|manifest| bytes(manifest.state_bytes()))),
            bytes(listing.stored_bytes()),
            or_dash(newest.map(|manifest| manifest.regions().to_string())),
        ]);
        remarks.push_str(&listing.remark(job));
        json.push(listing.json(job));
    }
    let path = args.pool.display().to_string();
    let mut text = match jobs.is_empty() {
        true => format!("The pool {} has no jobs yet.\n", shown(&path)),
        false => table.text(),
    };
    append_remarks(&mut text, &remarks, pool);
    Ok(Answer::new(text, json!({ "pool": path, "jobs": json })))
}

fn epochs(pool: &Pool, job: &JobName, args: &LsArgs) -> Result<Answer> {
    let tags = &args.tag;
    let now_ns = pool.env().clock.unix_ns();
    let mut listing = JobListing::read(pool, job)?;
    listing.epochs.retain(|row| has_tags(&row.manifest, tags));
    let mut tiers = Tiers::of(pool)?;
    let safe_on = tiers.is_some().then_some("SAFE ON");
    let mut headings = vec![
        ">EPOCH",
        "FROZEN AT",
        ">AGE",
        ">RANKS",
        ">STATE",
        ">CHANGED",
        ">NEW",
        ">PARENT",
        ">REGIONS",
    ];
    headings.extend(safe_on);
    headings.push("REMARKS");
    let (mut table, mut epochs) = (Table::new(&headings), Vec::new());
    for CheckpointRow { manifest, record_bytes, incomplete } in &listing.epochs {
        let tiers = tiers.at(job, manifest, *incomplete);
        let mut cells = vec![
            manifest.epoch.to_string(),
            when(manifest.frozen_ns),
            age(manifest.frozen_ns, now_ns),
            manifest.world_size.to_string(),
            bytes(manifest.state_bytes()),
            bytes(manifest.figures.changed_bytes),
            bytes(manifest.figures.new_bytes + record_bytes),
            if manifest.parent == 0 { "-".to_owned() } else { manifest.parent.to_string() },
            manifest.regions().to_string(),
        ];
        cells.extend(tiers.as_deref().map(tiers_text));
        cells.push(remarks(manifest, *incomplete));
        table.row(cells);
        epochs.push(manifest_json(manifest, *incomplete, *record_bytes, tiers.as_deref()));
    }
    let mut text = match listing.epochs.is_empty() {
        true if !tags.is_empty() => {
            format!("Job {job} has no checkpoint with {}.\n", tags_text(tags))
        }
        true => format!("Job {job} has no checkpoint yet.\n"),
        false => table.text(),
    };
    append_remarks(&mut text, &listing.remark(job), pool);
    if args.format == ListFormat::Csv {
        text = csv(&listing, &epochs);
    }
    let json = json!({
        "job": job.as_str(),
        "checkpoints": epochs,
        "stored_bytes": listing.stored_bytes(),
        "unreadable_records": listing.unreadable,
    });
    Ok(Answer::new(text, json))
}

/// Columns of the CSV, before those of the metrics.
const CSV_COLUMNS: [&str; 22] = [
    "epoch",
    "frozen_at",
    "frozen_ns",
    "parent",
    "predecessor",
    "world_size",
    "state_bytes",
    "changed_bytes",
    "known_bytes",
    "zero_bytes",
    "raw_bytes",
    "new_bytes",
    "stall_ns",
    "drain_ns",
    "files",
    "label",
    "tags",
    "pinned",
    "mark",
    "suspect",
    "incomplete",
    "failed_before",
];

/// Returns checkpoints as CSV: those of [`manifest_json`], and a column `metric.NAME` for each metric.
fn csv(listing: &JobListing, epochs: &[Value]) -> String {
    let metrics = || listing.epochs.iter().map(|row| &row.manifest.metrics);
    let names: BTreeSet<&String> = metrics().flatten().map(|(name, _)| name).collect();
    let named = names.iter().map(|name| format!("metric.{name}"));
    let mut csv = Csv::new(CSV_COLUMNS.map(str::to_owned).into_iter().chain(named).collect());
    for (epoch, metrics) in epochs.iter().zip(metrics()) {
        let mut row = epoch.clone();
        for (name, value) in metrics {
            // JSON has no infinities.
            row[format!("metric.{name}")] = json!(format!("{value:?}"));
        }
        csv.row(&row);
    }
    csv.text()
}

fn append_remarks(text: &mut String, remarks: &str, pool: &Pool) {
    if !remarks.is_empty() {
        let verify = pool.command("verify", &[]);
        let _ = write!(text, "\n{remarks}`{verify}` says what that means.\n");
    }
}
