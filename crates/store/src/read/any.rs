//! Finds the owners of a damaged chunk, so that damage is reported by regions and files, not by
//! packs.

use crate::index::Locator;
use crate::index::ReadItem;
use crate::read::files::{FilesImage, file_words};
use crate::read::{MemoryImage, RestorePlan, stream_words};
use outlive_format::{Image, Manifest, Piece};
use outlive_pool::Pool;
use outlive_types::{Error, Fingerprint, JobName, Result};
use std::collections::HashMap;

/// Owners of a chunk in a checkpoint: the first one, and the number of others.
#[derive(Clone, Default)]
struct Owners {
    first: String,
    more: u64,
}

/// An opened checkpoint of either kind.
pub enum AnyImage {
    /// A program's memory.
    Memory(Box<MemoryImage>),
    /// Files.
    Files(Box<FilesImage>),
}

impl AnyImage {
    /// Opens the checkpoint that `manifest` describes.
    ///
    /// # Errors
    /// `Damaged` if its metadata is missing or wrong.
    pub fn new(pool: &Pool, job: &JobName, manifest: &Manifest) -> Result<AnyImage> {
        let manifest = manifest.clone();
        Ok(match manifest.is_of_files() {
            true => AnyImage::Files(Box::new(FilesImage::open(pool, job, manifest, 0)?)),
            false => AnyImage::Memory(Box::new(MemoryImage::open(pool, job, manifest)?)),
        })
    }

    /// Opens one image of the checkpoint that `manifest` describes.
    ///
    /// # Errors
    /// As for [`AnyImage::new`].
    pub fn image(
        pool: &Pool,
        job: &JobName,
        manifest: &Manifest,
        image: Image,
    ) -> Result<AnyImage> {
        match manifest.is_of_files() {
            true => AnyImage::new(pool, job, manifest),
            false => MemoryImage::open_image(pool, job, manifest.clone(), image, 0)
                .map(|checkpoint| AnyImage::Memory(Box::new(checkpoint))),
        }
    }

    /// Returns every chunk with its pack extent, and the errors: the first chunk of a region or
    /// file that no segment lists, or a recipe that is missing or wrong.
    pub fn wanted(&self) -> (Vec<ReadItem>, Vec<Error>) {
        match self {
            AnyImage::Memory(checkpoint) => checkpoint.wanted(),
            AnyImage::Files(checkpoint) => checkpoint.wanted(),
        }
    }

    /// Returns the owners of each of `chunks`, in words. Reads the metadata once more.
    ///
    /// # Errors
    /// `Damaged` if any of it is missing or wrong.
    pub fn owners(
        &self,
        pool: &Pool,
        chunks: impl Iterator<Item = Fingerprint>,
    ) -> Result<HashMap<Fingerprint, String>> {
        let mut found: HashMap<Fingerprint, Owners> =
            chunks.map(|fp| (fp, Owners::default())).collect();
        match self {
            AnyImage::Memory(checkpoint) => regions(pool, checkpoint, &mut found)?,
            AnyImage::Files(checkpoint) => files(checkpoint, &mut found)?,
        }
        let metadata = match self {
            AnyImage::Memory(_) => "the catalog",
            AnyImage::Files(_) => "the listing of files",
        };
        let words = |(fp, Owners { first, more })| {
            let words = match (first.is_empty(), more) {
                (true, _) => metadata.to_owned(),
                (false, 0) => first,
                (false, more) => format!("{first} and {more} more"),
            };
            (fp, words)
        };
        Ok(found.into_iter().map(words).collect())
    }
}

fn note(owners: &mut Owners, name: &dyn Fn() -> String) {
    match owners.first.is_empty() {
        true => owners.first = name(),
        false => owners.more += 1,
    }
}

fn regions(
    pool: &Pool,
    checkpoint: &MemoryImage,
    found: &mut HashMap<Fingerprint, Owners>,
) -> Result<()> {
    let locator = Locator::load(pool, checkpoint.segments())?;
    for stream in checkpoint.streams() {
        let mut wanted = RestorePlan::wanted(pool, &locator, &[(0, &stream.tree)])?;
        wanted.sort_unstable_by_key(|wanted| wanted.fp);
        wanted.dedup_by_key(|wanted| wanted.fp);
        let name = || stream_words(&stream.name);
        for ReadItem { fp, .. } in wanted {
            if let Some(owners) = found.get_mut(&fp) {
                note(owners, &name);
            }
        }
    }
    Ok(())
}

fn files(checkpoint: &FilesImage, found: &mut HashMap<Fingerprint, Owners>) -> Result<()> {
    let mut items = checkpoint.items();
    while let Some(item) = items.next_item()? {
        let name = || file_words(&item);
        let mut seen: Vec<Fingerprint> = Vec::new();
        checkpoint.pieces(&item, &mut |Piece { fp, .. }| {
            if let Some(owners) = found.get_mut(&fp)
                && !seen.contains(&fp)
            {
                // Damaged chunks are few, and each counts once for a file.
                seen.push(fp);
                note(owners, &name);
            }
            Ok(())
        })?;
    }
    Ok(())
}
