//! `outlive show`: one checkpoint and its contents.

use crate::args::ShowArgs;
use crate::chosen::{head_text, is_incomplete, job_at, select_sound, skipped_json};
use crate::ls::manifest_json;
use crate::output::{Answer, Reporter, Table, bytes, count, shortened, shown};
use crate::plot::job::Axis;
use crate::plot::picture;
use crate::tags::tagged;
use crate::tiers::Tiers;
use crate::{items, pool, region};
use outlive_client::past::ChosenInterval;
use outlive_store::{EpochInfo, Job, JobOptions, MemoryImage};
use outlive_types::{Distribution, Epoch, Error, Rank, RegionDesc, RegionLocation, Result};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

/// Default number of regions listed as text.
const REGIONS_SHOWN: usize = 40;
/// Longest name and value in a table.
const CELL_CHARS_MAX: usize = 60;

/// Returns the bytes of a packed region.
pub fn packed_slice<'a>(region: &RegionDesc, packed: &'a [u8]) -> Option<&'a [u8]> {
    match region.location {
        RegionLocation::Own => None,
        RegionLocation::Packed { offset } => {
            let start = usize::try_from(offset).ok()?;
            packed.get(start..start.checked_add(usize::try_from(region.bytes).ok()?)?)
        }
    }
}

/// Opens the checkpoint; also returns the newer ones that were skipped.
pub fn open_checkpoint(
    job: &Job,
    epoch: Option<Epoch>,
    rank: Option<Rank>,
) -> Result<(MemoryImage, Vec<(Epoch, Error)>)> {
    let rank = chosen_rank(job, epoch, rank)?;
    job.image_of_rank(select_sound(epoch), rank)?.ok_or_else(|| no_checkpoint(job))
}

/// Returns the chosen rank, or the only one.
///
/// # Errors
/// `Invalid` if there are several and none was chosen.
pub fn chosen_rank(job: &Job, epoch: Option<Epoch>, rank: Option<Rank>) -> Result<Rank> {
    if let Some(rank) = rank {
        return Ok(rank);
    }
    let epochs = job.epochs()?;
    let is_meant = |info: &&EpochInfo| epoch.is_none_or(|epoch| epoch == info.epoch);
    match epochs.iter().rev().find(is_meant) {
        Some(info) if info.manifest.world_size > 1 => Err(Error::invalid(format!(
            "checkpoint {} of job {} has {} ranks: choose one with `--rank`, from 0 to {}",
            info.epoch,
            job.name(),
            info.manifest.world_size,
            info.manifest.world_size - 1
        ))),
        _ => Ok(0),
    }
}

/// Returns the error for a job in which no program has saved its memory yet.
pub fn no_checkpoint(job: &Job) -> Error {
    let has_files = job.epochs().is_ok_and(|epochs| !epochs.is_empty());
    let only = match has_files {
        true => " of a program's memory; its files come out with `outlive get`",
        false => " yet",
    };
    Error::invalid(format!("job {} has no checkpoint{only}", job.name()))
}

/// `outlive show --plot`.
fn plot(job: &Job, file: &Path, axis: Axis) -> Result<Answer> {
    picture::Kind::of(file)?;
    let manifests: Vec<_> = job.epochs()?.into_iter().map(|info| info.manifest).collect();
    if manifests.is_empty() {
        return Err(no_checkpoint(job));
    }
    picture::write(file, &crate::plot::job::svg(job.name().as_str(), &manifests, axis))?;
    let path = file.display().to_string();
    let drawn = count(manifests.len() as u64, "checkpoint");
    Ok(Answer {
        text: format!("{drawn} of job {} drawn into {}\n", job.name(), shown(&path)),
        json: json!({ "file": path, "checkpoints": manifests.len() }),
        code: 0,
    })
}

/// Returns whether the chosen checkpoint, or the newest without an epoch, is one of files.
fn shows_files(job: &Job, epoch: Option<Epoch>) -> Result<bool> {
    let epochs = job.epochs()?;
    let chosen = epochs.iter().rev().find(|info| epoch.is_none_or(|epoch| epoch == info.epoch));
    Ok(chosen.is_some_and(|info| info.manifest.is_of_files()))
}

/// `outlive show`.
pub fn show(args: &ShowArgs, reporter: &Arc<Reporter>) -> Result<Answer> {
    let pool = pool::open(&args.pool, reporter)?;
    let (name, epoch) = job_at(&pool, &args.job, args.epoch)?;
    if let Some(file) = &args.plot {
        if let Some(epoch) = epoch {
            return Err(Error::invalid(format!(
                "--plot draws all checkpoints of a job, and {epoch} is one of them: write {name} alone"
            )));
        }
        let job = Job::open(&pool, name.as_str(), JobOptions::default())?;
        return plot(&job, file, args.axis.unwrap_or_default());
    }
    let job = Job::open(&pool, name.as_str(), JobOptions::default())?;
    let epoch = tagged(&job, epoch, &args.tag, &|_| true)?;
    if shows_files(&job, epoch)? {
        return items::show(&job, epoch, args.regions);
    }
    let (checkpoint, skipped) = open_checkpoint(&job, epoch, args.rank)?;
    let manifest = checkpoint.manifest();
    let packed = checkpoint.packed_bytes()?;
    let regions = checkpoint.regions();
    let values: Vec<_> = regions
        .iter()
        .map(|r| {
            packed_slice(r, &packed).and_then(|bytes| region::value(&r.dtype, &r.shape, bytes))
        })
        .collect();

    let incomplete = is_incomplete(&job, manifest.epoch)?;
    let tiers = Tiers::of(job.pool())?.at(job.name(), manifest, incomplete);
    let mut text = head_text(&job, manifest, incomplete, tiers.as_deref(), "region");
    if manifest.world_size > 1 {
        let _ = writeln!(text, "{:<13}{}", "this rank", checkpoint.image().rank);
    }
    // Only a checkpoint that came after the choice was saved by it.
    let chosen = ChosenInterval::read(job.pool(), job.name()).unwrap_or(None);
    let chosen = chosen.filter(|chosen| chosen.epoch <= manifest.epoch);
    if let Some(ChosenInterval { epoch, choice, .. }) = &chosen {
        let _ = writeln!(text, "{:<13}{choice} (as of checkpoint {epoch})", "interval");
    }
    let _ = writeln!(text, "attachment   {}\n", bytes(checkpoint.attachment().len() as u64));

    let limit = args.regions.unwrap_or(REGIONS_SHOWN);
    let mut table = Table::new(&["REGION", "DTYPE", "SHAPE", ">BYTES", "VALUE"]);
    for (region, value) in regions.iter().zip(&values).take(limit) {
        table.row(vec![
            shortened(&shown(&region.name), CELL_CHARS_MAX),
            shortened(&shown(&region.dtype), CELL_CHARS_MAX),
            if region.dtype.starts_with("py:") { String::new() } else { region::extent(region) },
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
        "manifest": manifest_json(manifest, incomplete, 0, tiers.as_deref()),
        "rank": checkpoint.image().rank,
        "regions": listed,
        "attachment_bytes": attachment.len(),
        "attachment": serde_json::from_slice::<Value>(attachment).ok(),
        "interval": chosen,
        "skipped": skipped_json(&skipped),
    });
    Ok(Answer::new(text, json))
}

/// Returns a region as JSON, with its value if that is shown.
pub fn region_json(region: &RegionDesc, value: Option<&Value>) -> Value {
    let mut json = json!({
        "name": region.name,
        "dtype": region.dtype,
        "shape": region.shape,
        "bytes": region.bytes,
    });
    match &region.distribution {
        Distribution::Local => {}
        Distribution::Subarray { global_shape, offset } => {
            json["global_shape"] = json!(global_shape);
            json["offset"] = json!(offset);
        }
        Distribution::BlockCyclic { global_shape, offset, block, stride } => {
            json["global_shape"] = json!(global_shape);
            json["offset"] = json!(offset);
            json["block"] = json!(block);
            json["stride"] = json!(stride);
        }
        Distribution::Replicated => json["replicated"] = json!(true),
    }
    if let Some(value) = value {
        json["value"] = value.clone();
    }
    json
}
