//! The checkpoints of a job, rank by rank. Each rank resolves its needs by segments of its own, so
//! a gc marks and lists again for each rank.

use super::survey::JobState;
use crate::images::each_image;
use outlive_format::{ImageRef, Images, Manifest, SegmentRef};
use outlive_pool::Pool;
use outlive_types::{Epoch, Error, ErrorKind, Rank, Result};
use std::collections::{BTreeMap, HashSet};

/// The images of one rank, newest first.
#[derive(Debug, Default)]
pub struct RankLine {
    /// The rank, if the images stand in image tables; `None` for images in manifests.
    pub rank: Option<Rank>,
    /// The images, each with the epoch of its checkpoint.
    pub images: Vec<(Epoch, ImageRef)>,
    /// The distinct segments of all of them.
    pub segments: Vec<SegmentRef>,
    seen: HashSet<SegmentRef>,
}

impl RankLine {
    fn add(&mut self, epoch: Epoch, image: ImageRef, segments: &[SegmentRef]) {
        self.images.push((epoch, image));
        self.segments.extend(segments.iter().filter(|segment| self.seen.insert(**segment)));
    }
}

/// Returns the images of each rank in some checkpoints of a job, newest first. An incomplete
/// checkpoint may lack its image table.
///
/// # Errors
/// `Damaged` if an image table cannot be read, with the epoch of its checkpoint.
pub fn lines(
    pool: &Pool,
    job: &JobState,
    kept: &[&Manifest],
) -> std::result::Result<Vec<RankLine>, (Epoch, Error)> {
    let mut ranks: BTreeMap<Option<Rank>, RankLine> = BTreeMap::new();
    for manifest in kept {
        let epoch = manifest.epoch;
        let in_table = matches!(manifest.images, Images::Table(_));
        let mut images = Vec::new();
        let read = each_image(pool, manifest, &mut |image| {
            images.push(image.clone());
            Ok(())
        });
        match read {
            Err(e) if e.kind() == ErrorKind::Damaged && job.incomplete.contains(&epoch) => continue,
            read => read.map_err(|error| (epoch, error))?,
        }
        for image in images {
            let rank = in_table.then_some(image.reference.rank);
            let line = ranks.entry(rank).or_default();
            line.rank = rank;
            line.add(epoch, image.reference, &image.segments);
        }
    }
    Ok(ranks.into_values().collect())
}

/// Returns the distinct segments that stand in manifests themselves, for checkpoints of one rank.
pub fn inline_segments(kept: &[&Manifest]) -> Vec<SegmentRef> {
    let mut seen = HashSet::new();
    let all = kept.iter().flat_map(|manifest| match &manifest.images {
        Images::One(image) => &image.segments[..],
        Images::Table(_) => &[],
    });
    all.filter(|segment| seen.insert(**segment)).copied().collect()
}

/// Names the checkpoint in an error, as `at_fault` does.
pub fn at_fault_of<T>(
    pool: &Pool,
    job: &JobState,
    outcome: std::result::Result<T, (Epoch, Error)>,
) -> Result<T> {
    outcome.map_err(|(epoch, error)| at_fault(pool, job, epoch, error))
}

pub fn at_fault(pool: &Pool, job: &JobState, epoch: Epoch, error: Error) -> Error {
    let what = format!(
        "checkpoint {epoch} of job {} cannot be read, so what it needs is unknown and no pack is deleted",
        job.name
    );
    // Data that cannot be read at the moment may be whole.
    if error.kind() != ErrorKind::Damaged {
        return error.context(what);
    }
    let scrub = pool.command("scrub", &[]);
    let give_up = pool.command("prune", &[job.name.as_str(), "--drop", &epoch.to_string()]);
    error.context(format!(
        "{what}; run `{scrub}` first, which repairs what other copies make up for; if it then says that the \
         checkpoint is incomplete, `{give_up}` gives it up"
    ))
}
