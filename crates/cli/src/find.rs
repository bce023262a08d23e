//! `outlive find`: all checkpoints that have files or regions of a name.

use crate::args::FindArgs;
use crate::export::matches;
use crate::items::{item_json, kind_of};
use crate::output::{Answer, Reporter, Table, bytes, count, shortened, shown, when};
use crate::show::region_json;
use crate::tags::has_tags;
use crate::{EXIT_DAMAGED, interrupt, pool, region};
use outlive_files::Globs;
use outlive_format::{Item, ItemKind, Manifest};
use outlive_pool::Pool;
use outlive_store::commit::history;
use outlive_store::gc::listed_jobs;
use outlive_store::{Job, JobOptions, Select};
use outlive_types::{Epoch, Error, ErrorKind, JobName, RegionDesc, Result, shown_path};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Longest name in the table.
const NAME_CHARS_MAX: usize = 100;

/// Results so far.
struct Found {
    table: Table,
    listed: Vec<Value>,
    /// Checkpoints that have one.
    checkpoints: u64,
    /// Checkpoints that cannot be read.
    damaged: Vec<Value>,
}

/// A pattern, for paths and for names of regions.
struct Pattern<'a> {
    text: &'a str,
    globs: Globs,
}

/// `outlive find`.
pub fn find(args: &FindArgs, reporter: &Arc<Reporter>) -> Result<Answer> {
    let pattern = Pattern { text: &args.pattern, globs: globs(&args.pattern)? };
    let pool = pool::open(&args.pool, reporter)?;
    let names = match &args.job {
        Some(job) => vec![pool::known_job(&pool, job)?],
        None => listed_jobs(&pool)?,
    };
    let table = Table::new(&["CHECKPOINT", "SAVED", ">BYTES", "KIND", "CHANGED", "NAME"]);
    let mut found = Found { table, listed: Vec::new(), checkpoints: 0, damaged: Vec::new() };
    let stop = interrupt::flag();
    for name in &names {
        reporter.busy(&format!("reading the checkpoints of job {name}"));
        in_job(&pool, name, args, &pattern, &mut found, &stop, reporter)?;
    }
    reporter.finish();
    Ok(found.answer(&args.pattern))
}

/// Returns the pattern for paths: without a slash it is one for the last part.
fn globs(text: &str) -> Result<Globs> {
    let whole = match text.strip_prefix('/') {
        Some(from_root) => from_root.to_owned(),
        None if text.contains('/') => text.to_owned(),
        None => format!("**/{text}"),
    };
    if whole.is_empty() || text.is_empty() {
        return Err(Error::invalid(
            "the pattern is empty: give the name of a file or region, such as '*.tex'",
        ));
    }
    Globs::new([whole.as_bytes()])
}

fn in_job(
    pool: &Pool,
    name: &JobName,
    args: &FindArgs,
    pattern: &Pattern<'_>,
    found: &mut Found,
    stop: &AtomicBool,
    reporter: &Reporter,
) -> Result<()> {
    let job = Job::open(pool, name.as_str(), JobOptions::default())?;
    let mut manifests = Vec::new();
    for entry in history(pool, name)? {
        let entry = entry.unless_unread()?;
        match &entry.record {
            Err(error) => found.cannot_read(name, None, error, reporter),
            Ok(_) => manifests
                .extend(entry.manifest().filter(|manifest| has_tags(manifest, &args.tag)).cloned()),
        }
    }
    for manifest in manifests.iter().rev() {
        check_stop(stop)?;
        let before = found.listed.len();
        let searched = match manifest.is_of_files() {
            true => in_files(&job, manifest, pattern, found, stop),
            false => in_memory(&job, manifest, pattern, found),
        };
        found.checkpoints += u64::from(found.listed.len() > before);
        match searched {
            // The other checkpoints may have it.
            Err(error) if error.kind() == ErrorKind::Damaged => {
                found.cannot_read(name, Some(manifest.epoch), &error, reporter);
            }
            searched => searched?,
        }
    }
    Ok(())
}

fn check_stop(stop: &AtomicBool) -> Result<()> {
    match stop.load(Ordering::Relaxed) {
        true => Err(Error::retry("stopped on request; not all checkpoints were searched")),
        false => Ok(()),
    }
}

fn in_files(
    job: &Job,
    manifest: &Manifest,
    pattern: &Pattern<'_>,
    found: &mut Found,
    stop: &AtomicBool,
) -> Result<()> {
    // A prune may have dropped it meanwhile.
    let Some((checkpoint, _)) = job.files(Select::Epoch(manifest.epoch))? else { return Ok(()) };
    let mut items = checkpoint.items();
    while let Some(item) = items.next_item()? {
        if !pattern.globs.matching(&item.path).is_empty() {
            found.file(job, manifest, &item);
        }
        check_stop(stop)?;
    }
    Ok(())
}

fn in_memory(
    job: &Job,
    manifest: &Manifest,
    pattern: &Pattern<'_>,
    found: &mut Found,
) -> Result<()> {
    for rank in 0..manifest.world_size {
        let image = job.image_of_rank(Select::Epoch(manifest.epoch), rank)?;
        let Some((checkpoint, _)) = image else { return Ok(()) };
        for region in checkpoint.regions() {
            if matches(pattern.text, &region.name) {
                found.region(job, manifest, rank, region);
            }
        }
    }
    Ok(())
}

impl Found {
    /// Notes a checkpoint, or a record of the log, that cannot be read.
    fn cannot_read(
        &mut self,
        job: &JobName,
        epoch: Option<Epoch>,
        error: &Error,
        reporter: &Reporter,
    ) {
        reporter.say(&format!("warning: {}", error.message()));
        self.damaged.push(json!({ "job": job.as_str(), "epoch": epoch,
            "message": error.message() }));
    }

    fn add(&mut self, job: &Job, manifest: &Manifest, cells: [String; 4], mut json: Value) {
        let [size, kind, changed, name] = cells;
        let saved_ns = manifest.frozen_ns;
        self.table.row(vec![
            shown(&format!("{}@{}", job.name(), manifest.epoch)),
            when(saved_ns),
            size,
            kind,
            changed,
            shortened(&name, NAME_CHARS_MAX),
        ]);
        json["job"] = json!(job.name().as_str());
        json["epoch"] = json!(manifest.epoch);
        json["frozen_ns"] = json!(saved_ns);
        self.listed.push(json);
    }

    fn file(&mut self, job: &Job, manifest: &Manifest, item: &Item) {
        let is_link = item.kind == ItemKind::HardLink;
        let size = match item.kind {
            ItemKind::File | ItemKind::Stream => bytes(item.bytes),
            _ => String::new(),
        };
        let ns = u64::try_from(item.mtime.s).ok().and_then(|s| s.checked_mul(1_000_000_000));
        let changed = match is_link {
            true => String::new(),
            false => ns.map_or_else(|| format!("{} s", item.mtime.s), when),
        };
        let mut name = shown_path(&item.path);
        if !item.target.is_empty() {
            let sign = if is_link { "=" } else { "->" };
            let _ = write!(name, " {sign} {}", shown_path(&item.target));
        }
        let kind = kind_of(item.kind).1.to_owned();
        self.add(job, manifest, [size, kind, changed, name], item_json(item));
    }

    fn region(&mut self, job: &Job, manifest: &Manifest, rank: u32, region: &RegionDesc) {
        let is_value = region.dtype.starts_with("py:");
        let extent = if is_value { String::new() } else { format!(" {}", region::extent(region)) };
        let kind = shown(&format!("{}{extent}", region.dtype));
        let mut name = shown(&region.name);
        if manifest.world_size > 1 {
            let _ = write!(name, " (rank {rank})");
        }
        let mut json = region_json(region, None);
        json["rank"] = json!(rank);
        self.add(job, manifest, [bytes(region.bytes), kind, String::new(), name], json);
    }

    fn answer(self, pattern: &str) -> Answer {
        let mut text = match self.listed.is_empty() {
            true => String::new(),
            false => self.table.text(),
        };
        let (checkpoints, all) = (self.checkpoints, self.listed.len() as u64);
        let matches = if all == 1 { "1 match".to_owned() } else { format!("{all} matches") };
        let _ = match all {
            0 => writeln!(text, "nothing matches \"{}\"", shown(pattern)),
            _ => writeln!(text, "{matches} in {}", count(checkpoints, "checkpoint")),
        };
        let code = if self.damaged.is_empty() { 0 } else { EXIT_DAMAGED };
        let json = json!({ "pattern": pattern, "found": self.listed,
            "checkpoints": checkpoints, "damaged": self.damaged });
        Answer { text, json, code }
    }
}
