//! `outlive show`: one checkpoint and what is in it.

use crate::args::ShowArgs;
use crate::ls::manifest_json;
use crate::output::{Answer, Table, Teller, age, bytes, count, shortened, shown, when};
use crate::{pool, region};
use outlive_store::{Checkpoint, Job, JobOptions, Select};
use outlive_types::{Epoch, Error, RegionDesc, RegionPlace, Result};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

/// Regions listed as text unless told otherwise.
const REGIONS_SHOWN: usize = 40;
/// Longest name and value in a table.
const CELL_CHARS_MAX: usize = 60;

/// Which checkpoint a command's EPOCH stands for.
pub fn select(epoch: Option<Epoch>) -> Select {
    epoch.map_or(Select::Newest, Select::Epoch)
}

/// Newer checkpoints that were passed over, as JSON.
pub fn skipped_json(skipped: &[(Epoch, Error)]) -> Value {
    skipped
        .iter()
        .map(|(epoch, error)| {
            json!({ "epoch": (*epoch > 0).then_some(epoch), "message": error.message() })
        })
        .collect()
}

/// The bytes of a packed region.
pub fn packed_slice<'a>(region: &RegionDesc, packed: &'a [u8]) -> Option<&'a [u8]> {
    match region.place {
        RegionPlace::Own => None,
        RegionPlace::Packed { offset } => {
            let start = usize::try_from(offset).ok()?;
            packed.get(start..start.checked_add(usize::try_from(region.bytes).ok()?)?)
        }
    }
}

/// The checkpoint, and the newer ones that were passed over.
pub fn open_checkpoint(
    job: &Job,
    epoch: Option<Epoch>,
) -> Result<(Checkpoint, Vec<(Epoch, Error)>)> {
    job.checkpoint(select(epoch))?.ok_or_else(|| no_checkpoint(job))
}

/// The error for a job that has not saved yet.
pub fn no_checkpoint(job: &Job) -> Error {
    Error::invalid(format!("job {} has no checkpoint yet", job.name()))
}

/// `outlive show --plot`.
fn plot(job: &Job, file: &Path) -> Result<Answer> {
    let manifests: Vec<_> = job.epochs()?.into_iter().map(|info| info.manifest).collect();
    if manifests.is_empty() {
        return Err(no_checkpoint(job));
    }
    let picture = crate::plot::svg(job.name().as_str(), &manifests);
    std::fs::write(file, picture).map_err(|e| Error::io("writing the picture", file, &e))?;
    let path = file.display().to_string();
    let drawn = count(manifests.len() as u64, "checkpoint");
    Ok(Answer {
        text: format!("{drawn} of job {} drawn into {}\n", job.name(), shown(&path)),
        json: json!({ "file": path, "checkpoints": manifests.len() }),
        code: 0,
    })
}

/// `outlive show`.
pub fn show(args: &ShowArgs, teller: &Arc<Teller>) -> Result<Answer> {
    let pool = pool::open(&args.pool, teller)?;
    let name = pool::known_job(&pool, &args.job)?;
    if let Some(file) = &args.plot {
        return plot(&Job::open(&pool, name.as_str(), JobOptions::default())?, file);
    }
    let job = Job::open(&pool, name.as_str(), JobOptions::default())?;
    let (checkpoint, skipped) = open_checkpoint(&job, args.epoch)?;
    let manifest = checkpoint.manifest();
    let packed = checkpoint.packed_bytes()?;
    let regions = checkpoint.regions();
    let values: Vec<_> = regions
        .iter()
        .map(|r| {
            packed_slice(r, &packed).and_then(|bytes| region::value(&r.dtype, &r.shape, bytes))
        })
        .collect();

    let now_ns = pool.env().clock.unix_ns();
    let state_bytes: u64 = regions.iter().map(|region| region.bytes).sum();
    let mut text = format!("Checkpoint {} of job {name}\n", manifest.epoch);
    let _ = writeln!(
        text,
        "frozen at    {} ({} ago)",
        when(manifest.frozen_ns),
        age(manifest.frozen_ns, now_ns)
    );
    let parent = match manifest.parent {
        0 => "none: it was saved from nothing".to_owned(),
        parent => format!("checkpoint {parent}"),
    };
    let _ = writeln!(text, "parent       {parent}");
    let _ = writeln!(text, "session      {}", manifest.session);
    let _ = writeln!(text, "ranks        {}", manifest.world_size);
    let _ = writeln!(
        text,
        "state        {} in {}",
        bytes(state_bytes),
        count(regions.len() as u64, "region")
    );
    let _ = writeln!(
        text,
        "this save    {} changed, {} written (without the manifest)",
        bytes(manifest.figures.changed_bytes),
        bytes(manifest.figures.new_bytes)
    );
    let _ = writeln!(text, "resolved by  {}", count(manifest.segments.len() as u64, "segment"));
    let _ = writeln!(text, "attachment   {}\n", bytes(checkpoint.attachment().len() as u64));

    let limit = args.regions.unwrap_or(REGIONS_SHOWN);
    let mut table = Table::new(&["REGION", "DTYPE", "SHAPE", ">BYTES", "VALUE"]);
    for (region, value) in regions.iter().zip(&values).take(limit) {
        table.row(vec![
            shortened(&shown(&region.name), CELL_CHARS_MAX),
            shortened(&shown(&region.dtype), CELL_CHARS_MAX),
            if region.dtype.starts_with("py:") {
                String::new()
            } else {
                region::shape(&region.shape)
            },
            bytes(region.bytes),
            value.as_ref().map_or_else(String::new, |(text, _)| shortened(text, CELL_CHARS_MAX)),
        ]);
    }
    text.push_str(&table.text());
    if regions.len() > limit {
        let _ = writeln!(
            text,
            "… and {}; --regions {} lists all",
            count((regions.len() - limit) as u64, "more region"),
            regions.len()
        );
    }

    let listed: Vec<Value> = regions
        .iter()
        .zip(&values)
        .take(args.regions.unwrap_or(usize::MAX))
        .map(|(region, value)| region_json(region, value.as_ref().map(|(_, value)| value)))
        .collect();
    let attachment = checkpoint.attachment();
    let json = json!({
        "job": name.as_str(),
        "manifest": manifest_json(manifest, 0),
        "regions": listed,
        "attachment_bytes": attachment.len(),
        "attachment": serde_json::from_slice::<Value>(attachment).ok(),
        "skipped": skipped_json(&skipped),
    });
    Ok(Answer::new(text, json))
}

/// A region as JSON, with its value if it has one that is shown.
pub fn region_json(region: &RegionDesc, value: Option<&Value>) -> Value {
    let mut json = json!({
        "name": region.name,
        "dtype": region.dtype,
        "shape": region.shape,
        "bytes": region.bytes,
    });
    if let (Some(object), Some(value)) = (json.as_object_mut(), value) {
        object.insert("value".to_owned(), value.clone());
    }
    json
}
