//! `outlive export`: regions of a checkpoint as files, arrays in NumPy's format.
//!
//! Names of regions become flat file names that stay in the directory; `regions.json` lists the
//! file of each region. Bytes are verified on the way; a file gets its name when it is complete.

mod names;
mod safetensors;
mod sink;
mod values;

pub use sink::publish_bytes;

use crate::args::{ExportArgs, ExportFormat};
use crate::chosen::{job_at, select, skipped_json};
use crate::output::{Answer, Reporter, Table, bytes, count, shortened, shown};
use crate::show::{chosen_rank, no_checkpoint, open_checkpoint, packed_slice, region_json};
use crate::tags::tagged;
use crate::tree::TREE;
use crate::{npy, pool, region};
use names::file_name;
pub use names::matches;
use outlive_files::make_dir;
use outlive_pool::check_outside;
use outlive_store::{Job, JobOptions, MemoryImage, RestoreSink};
use outlive_types::{Epoch, Error, PACKED_STREAM, RegionDesc, RegionLocation, Result};
use serde_json::{Value, json};
use sink::FileSink;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The file that lists the file of each region.
const INDEX: &str = "regions.json";

/// One region on its way to a file.
struct Item {
    region: RegionDesc,
    /// Name in the directory.
    file: String,
    format: &'static str,
    /// Bytes before the region's own.
    header: Vec<u8>,
}

/// Plan of an export: the streams to read, and the files to write.
struct ExportPlan {
    items: Vec<Item>,
    streams: Vec<usize>,
}

impl ExportPlan {
    /// # Errors
    /// `Invalid` if a pattern matches nothing.
    fn new(checkpoint: &MemoryImage, only: &[String]) -> Result<ExportPlan> {
        let regions = checkpoint.regions();
        if let Some(idle) = only.iter().find(|only| !regions.iter().any(|r| matches(only, &r.name)))
        {
            return Err(Error::invalid(format!(
                "no region of checkpoint {} matches \"{}\"; `outlive show` lists them",
                checkpoint.epoch(),
                shown(idle)
            )));
        }
        let chosen =
            |region: &RegionDesc| only.is_empty() || only.iter().any(|o| matches(o, &region.name));
        let fortran = fortran_regions(checkpoint.attachment());
        let items: Vec<Item> = regions
            .iter()
            .enumerate()
            .filter(|(_, region)| chosen(region))
            .map(|(number, region)| Item::new(region.clone(), fortran.contains(&number)))
            .collect();
        let stream_of = checkpoint.stream_of();
        let mut streams = BTreeSet::new();
        for item in &items {
            streams.extend(stream_of.get(stream_name(&item.region)));
        }
        Ok(ExportPlan { items, streams: streams.into_iter().collect() })
    }

    /// Refuses to replace existing files.
    fn check_free(&self, dir: &Path) -> Result<()> {
        let files = self.items.iter().map(|item| item.file.as_str()).chain([INDEX]);
        for path in files.map(|file| dir.join(file)) {
            if fs::symlink_metadata(&path).is_ok() {
                return Err(Error::invalid(format!(
                    "{} is there already: choose another directory, or replace files with --force",
                    path.display()
                )));
            }
        }
        Ok(())
    }
}

impl Item {
    fn new(region: RegionDesc, fortran: bool) -> Item {
        let header = npy::header(&region, fortran);
        let format = match (&header, region.dtype.as_str()) {
            (Some(_), _) => "npy",
            (None, "py:str") => "txt",
            (None, TREE) => "json",
            (None, _) => "bin",
        };
        let file = file_name(&region.name, format);
        Item { region, file, format, header: header.unwrap_or_default() }
    }

    fn json(&self, value: Option<&Value>) -> Value {
        let mut json = region_json(&self.region, value);
        json["file"] = json!(self.file);
        json["format"] = json!(self.format);
        json
    }
}

/// Returns the numbers of the regions in Fortran order (first index fastest). The attachment of the
/// Python binding lists them; other attachments do not.
fn fortran_regions(attachment: &[u8]) -> HashSet<usize> {
    #[derive(serde::Deserialize)]
    struct Skeleton {
        #[serde(rename = "outlive.python")]
        _version: u64,
        fortran: HashSet<usize>,
    }
    serde_json::from_slice::<Skeleton>(attachment).map(|s| s.fortran).unwrap_or_default()
}

/// Returns the name of the stream that contains a region.
fn stream_name(region: &RegionDesc) -> &str {
    match region.location {
        RegionLocation::Own => &region.name,
        RegionLocation::Packed { .. } => PACKED_STREAM,
    }
}

/// `outlive export`.
pub fn export(args: &ExportArgs, reporter: &Arc<Reporter>) -> Result<Answer> {
    let pool = pool::open(&args.pool, reporter)?;
    let (name, epoch) = job_at(&pool, &args.job, args.epoch)?;
    check_outside(&args.to)?;
    let job = Job::open(&pool, name.as_str(), JobOptions::default())?;
    check_options(args)?;
    let epoch = tagged(&job, epoch, &args.tag, &|manifest| !manifest.is_of_files())?;
    match args.format {
        ExportFormat::Json => return values::export(args, &job, epoch, reporter),
        ExportFormat::Safetensors => return safetensors::export(args, &job, epoch, reporter),
        ExportFormat::Files => {}
    }
    if args.dry_run {
        return dry_run(args, &job, epoch);
    }
    let made_dir = !args.to.exists();
    let outcome = write(args, &job, epoch);
    if made_dir && outcome.is_err() {
        // Removes only a directory that is empty and that this command has created.
        let _ = fs::remove_dir(&args.to);
    }
    outcome
}

/// Refuses options that a format does not have.
fn check_options(args: &ExportArgs) -> Result<()> {
    let is_model = args.format == ExportFormat::Safetensors;
    if !is_model && (args.root.is_some() || args.max_shard_size.is_some()) {
        return Err(Error::invalid(
            "--root and --max-shard-size work only with --format safetensors: leave them out",
        ));
    }
    Ok(())
}

/// The plan of an export, and its files.
struct ExportWork {
    plan: ExportPlan,
    sink: FileSink,
}

impl RestoreSink for ExportWork {
    fn write(&self, stream: usize, offset: u64, bytes: &[u8]) {
        self.sink.write(stream, offset, bytes);
    }

    /// Does nothing: memory and files start as zeros, and holes in files take no space.
    fn zero(&self, _stream: usize, _offset: u64, _length: u64) {}
}

fn write(args: &ExportArgs, job: &Job, epoch: Option<Epoch>) -> Result<Answer> {
    let dir = &args.to;
    let mut index = Value::Null;
    let mut exported = Vec::new();
    let mut attempt = |checkpoint: &MemoryImage| {
        let plan = ExportPlan::new(checkpoint, &args.only)?;
        if !args.force {
            plan.check_free(dir)?;
        }
        make_dir(dir)?;
        let sink = FileSink::create(dir, checkpoint, &plan)?;
        let work = ExportWork { plan, sink };
        let stats = checkpoint.read(&work.plan.streams, &work)?;
        Ok((work, stats))
    };
    let mut done =
        |checkpoint: &MemoryImage, ExportWork { plan, sink }: ExportWork| -> Result<()> {
            let packed = sink.finish(&plan, dir, args.force)?;
            let listed: Vec<Value> = plan
                .items
                .iter()
                .map(|item| {
                    let region = &item.region;
                    let bytes = packed_slice(region, &packed);
                    let value = bytes.and_then(|b| region::value(&region.dtype, &region.shape, b));
                    item.json(value.as_ref().map(|(_, value)| value))
                })
                .collect();
            index = json!({
                "job": checkpoint.job().as_str(),
                "epoch": checkpoint.epoch(),
                "rank": checkpoint.image().rank,
                "regions": listed,
                "attachment": serde_json::from_slice::<Value>(checkpoint.attachment()).ok(),
            });
            publish_bytes(dir, INDEX, format!("{index:#}\n").as_bytes(), args.force)?;
            exported = plan.items;
            Ok(())
        };
    let rank = chosen_rank(job, epoch, args.rank)?;
    let found = job.attempt_rank(select(epoch), rank, &mut attempt)?;
    let (checkpoint, (work, stats), skipped) = found.ok_or_else(|| no_checkpoint(job))?;
    done(&checkpoint, work)?;
    let epoch = checkpoint.epoch();
    let total_bytes: u64 = exported.iter().map(|item| item.region.bytes).sum();
    let text = format!(
        "Exported {} ({}) of checkpoint {} to {}; {INDEX} says which is where.\n",
        count(exported.len() as u64, "region"),
        bytes(total_bytes),
        epoch,
        shown(&dir.display().to_string())
    );
    let json = json!({
        "to": dir.display().to_string(),
        "job": index["job"],
        "epoch": epoch,
        "rank": rank,
        "bytes": total_bytes,
        "read_bytes": stats.read_bytes,
        "regions": index["regions"],
        "skipped": skipped_json(&skipped),
    });
    Ok(Answer::new(text, json))
}

fn dry_run(args: &ExportArgs, job: &Job, epoch: Option<Epoch>) -> Result<Answer> {
    let (checkpoint, skipped) = open_checkpoint(job, epoch, args.rank)?;
    let plan = ExportPlan::new(&checkpoint, &args.only)?;
    let reads = checkpoint.plan(&plan.streams)?;
    let existing: HashMap<&str, PathBuf> = plan
        .items
        .iter()
        .map(|item| (item.file.as_str(), args.to.join(&item.file)))
        .filter(|(_, path)| fs::symlink_metadata(path).is_ok())
        .collect();
    let mut text = format!("Checkpoint {} of job {}\n{reads}\n\n", checkpoint.epoch(), job.name());
    let mut table = Table::new(&["REGION", ">BYTES", "FILE", "NOTE"]);
    for item in &plan.items {
        let note = match (existing.contains_key(item.file.as_str()), args.force) {
            (false, _) => "",
            (true, true) => "will be replaced",
            (true, false) => "is there already: --force would replace it",
        };
        table.row(vec![
            shortened(&shown(&item.region.name), 60),
            bytes(item.region.bytes),
            item.file.clone(),
            note.to_owned(),
        ]);
    }
    text.push_str(&table.text());
    let _ = writeln!(text, "\nNothing was written.");
    let json = json!({
        "dry_run": true,
        "to": args.to.display().to_string(),
        "job": job.name().as_str(),
        "epoch": checkpoint.epoch(),
        "plan": reads.to_string(),
        "total_bytes": reads.total_bytes,
        "regions": plan.items.iter().map(|item| item.json(None)).collect::<Vec<_>>(),
        "existing": plan.items.iter().map(|i| &i.file).filter(|f| existing.contains_key(f.as_str()))
            .collect::<Vec<_>>(),
        "skipped": skipped_json(&skipped),
    });
    Ok(Answer::new(text, json))
}
