//! `outlive ls`: the jobs of a pool, the checkpoints of a job.

use crate::args::LsArgs;
use crate::output::{Answer, Reporter, Table, age, bytes, count, quoted, shown, when};
use crate::pool;
use crate::tiers::{Tiers, tiers_json, tiers_text};
use outlive_format::{Manifest, Mark};
use outlive_pool::{Pool, Tier};
use outlive_store::commit::history;
use outlive_types::{JobName, Result};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::sync::Arc;

/// One checkpoint of a job.
struct CheckpointRow {
    manifest: Manifest,
    /// Length of its record.
    record_bytes: u64,
    /// True if a scrub has recorded that data of it is lost.
    incomplete: bool,
}

/// A job's checkpoints, oldest first, and the unreadable records.
struct JobListing {
    /// The manifests.
    epochs: Vec<CheckpointRow>,
    unreadable: Vec<String>,
}

impl JobListing {
    fn read(pool: &Pool, job: &JobName) -> Result<JobListing> {
        let mut listing = JobListing { epochs: Vec::new(), unreadable: Vec::new() };
        for entry in history(pool, job)? {
            match &entry.record {
                Err(error) => listing.unreadable.push(error.message().to_owned()),
                Ok(_) => {
                    let (record_bytes, incomplete) = (entry.bytes, entry.incomplete);
                    let manifest = entry.manifest().cloned();
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
        listing.unreadable.reverse();
        Ok(listing)
    }

    fn stored_bytes(&self) -> u64 {
        self.epochs.iter().map(|at| at.manifest.figures.new_bytes + at.record_bytes).sum()
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
/// saves that failed before it, a label, metrics.
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
        Some(name) => epochs(&pool, &pool::known_job(&pool, name)?),
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
    let jobs = pool.jobs()?;
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
        json.push(json!({
            "job": job.as_str(),
            "checkpoints": listing.epochs.len(),
            "newest_epoch": newest.map(|manifest| manifest.epoch),
            "newest_at": newest.map(|manifest| when(manifest.frozen_ns)),
            "newest_ns": newest.map(|manifest| manifest.frozen_ns),
            "newest_world_size": newest.map(|manifest| manifest.world_size),
            "state_bytes": newest.map(Manifest::state_bytes),
            "stored_bytes": listing.stored_bytes(),
            "unreadable_records": listing.unreadable,
        }));
    }
    let path = args.pool.display().to_string();
    let mut text = match jobs.is_empty() {
        true => format!("The pool {} has no jobs yet.\n", shown(&path)),
        false => table.text(),
    };
    append_remarks(&mut text, &remarks, pool);
    Ok(Answer::new(text, json!({ "pool": path, "jobs": json })))
}

fn epochs(pool: &Pool, job: &JobName) -> Result<Answer> {
    let now_ns = pool.env().clock.unix_ns();
    let listing = JobListing::read(pool, job)?;
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
        true => format!("Job {job} has no checkpoint yet.\n"),
        false => table.text(),
    };
    append_remarks(&mut text, &listing.remark(job), pool);
    let json = json!({
        "job": job.as_str(),
        "checkpoints": epochs,
        "stored_bytes": listing.stored_bytes(),
        "unreadable_records": listing.unreadable,
    });
    Ok(Answer::new(text, json))
}

fn append_remarks(text: &mut String, remarks: &str, pool: &Pool) {
    if !remarks.is_empty() {
        let verify = pool.command("verify", &[]);
        let _ = write!(text, "\n{remarks}`{verify}` says what that means.\n");
    }
}
