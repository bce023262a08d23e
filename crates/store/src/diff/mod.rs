//! Finds the differences between two checkpoints: `pages` compares page trees, `memory` images of
//! memory, `files` images of files. Only metadata is read, and only differing parts of page trees.

mod files;
mod memory;
mod pages;

pub use files::{Change, FilesDiff, PathDiff};
pub use memory::{MemoryDiff, RegionDiff};
pub use pages::{PageDiff, compare as compare_trees};

use crate::images::image_of;
use crate::read::AnyImage;
use crate::read::files::FilesImage;
use crate::read::{Kind, Logs, Select, Skipped, first_manifest, while_moving};
use memory::ComparedMemory;
use outlive_format::Manifest;
use outlive_pool::Pool;
use outlive_types::{Epoch, Error, JobName, Rank, Result};

/// One of the two checkpoints.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Side {
    /// The job.
    pub job: JobName,
    /// Selection of the checkpoint; the newest is the newest with whole metadata.
    pub select: Select,
    /// Rank whose image is compared; required if the checkpoint has several.
    pub rank: Option<Rank>,
}

/// Differences, by the kind of the two checkpoints.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Differences {
    /// Both hold a program's memory.
    Memory(MemoryDiff),
    /// Both hold files.
    Files(FilesDiff),
}

/// Two checkpoints, compared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diff {
    /// The epochs that were compared.
    pub epochs: [Epoch; 2],
    /// Newer checkpoints that were passed over since they are damaged.
    pub skipped: [Skipped; 2],
    /// The differences.
    pub differences: Differences,
}

impl Diff {
    /// Returns true if nothing differs.
    pub fn is_same(&self) -> bool {
        match &self.differences {
            Differences::Memory(diff) => diff.is_same(),
            Differences::Files(diff) => diff.paths.is_empty(),
        }
    }
}

enum ComparedImage {
    Memory(Box<ComparedMemory>),
    Files(Box<FilesImage>),
}

/// Compares two checkpoints of a pool. With `ranges`, it lists the ranges of pages that differ.
///
/// # Errors
/// `Invalid` for an unknown checkpoint or rank, or two checkpoints of different kinds; `Damaged` if
/// an object that must be read is missing or wrong.
pub fn diff(pool: &Pool, chosen: [&Side; 2], ranges: bool) -> Result<Diff> {
    while_moving(pool, Logs::Of(&chosen.map(|chosen| &chosen.job)), &mut || {
        let (a, epoch_a, skipped_a) = open(pool, chosen[0])?;
        let (b, epoch_b, skipped_b) = open(pool, chosen[1])?;
        let differences = match (&a, &b) {
            (ComparedImage::Memory(a), ComparedImage::Memory(b)) => {
                Differences::Memory(memory::compare(pool, a, b, ranges)?)
            }
            (ComparedImage::Files(a), ComparedImage::Files(b)) => {
                Differences::Files(files::compare(a, b)?)
            }
            _ => {
                return Err(Error::invalid(
                    "one holds a program's memory and the other files: they cannot be compared",
                ));
            }
        };
        Ok(Diff { epochs: [epoch_a, epoch_b], skipped: [skipped_a, skipped_b], differences })
    })
}

fn open(pool: &Pool, chosen: &Side) -> Result<(ComparedImage, Epoch, Skipped)> {
    let Side { job, select, rank } = chosen;
    let opens = |manifest: &Manifest| {
        let image = image_of(pool, manifest, rank.unwrap_or(0));
        image.and_then(|image| AnyImage::image(pool, job, manifest, image)).is_ok()
    };
    let kind = Kind { is: &|_| true, opens: &opens };
    let found = first_manifest(pool, job, *select, kind, &mut |manifest, as_of| {
        if manifest.is_of_files() {
            image_of(pool, manifest, rank.unwrap_or(0))?;
            let opened = FilesImage::open(pool, job, manifest.clone(), as_of)?;
            return Ok(ComparedImage::Files(Box::new(opened)));
        }
        if let (None, 2..) = (rank, manifest.world_size) {
            return Err(Error::invalid(format!(
                "checkpoint {} of job {job} has {} ranks: choose one with `--rank`, from 0 to {}",
                manifest.epoch,
                manifest.world_size,
                manifest.world_size - 1
            )));
        }
        let opened = ComparedMemory::open(pool, manifest, rank.unwrap_or(0))
            .map_err(|e| e.context(format!("checkpoint {} of job {job}", manifest.epoch)))?;
        Ok(ComparedImage::Memory(Box::new(opened)))
    })?;
    let (epoch, image, skipped) =
        found.ok_or_else(|| Error::invalid(format!("job {job} has no checkpoint")))?;
    Ok((image, epoch, skipped))
}
