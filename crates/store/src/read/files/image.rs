//! An image of files, opened for reading.

use super::listing::{Items, ListingChunks};
use super::recipe::{Pieces, wrong_length};
use super::whereabouts::{PackExtents, Whereabouts};
use crate::commit::history;
use crate::images::only_image;
use crate::index::Locator;
use crate::index::ReadItem;
use crate::read::{Kind, Select, first_manifest};
use outlive_format::{Content, Image, ImageKind, ImageRef, Item, Manifest, Piece, SegmentRef};
use outlive_pool::Pool;
use outlive_types::{Epoch, Error, ErrorKind, Fingerprint, JobName, Result, shown_path};
use std::collections::HashSet;
use std::sync::Arc;

/// An image of files whose segments and listing recipes were read and verified. Takes about 60
/// bytes of memory for each chunk.
#[derive(Clone, Debug)]
pub struct FilesImage {
    job: JobName,
    manifest: Manifest,
    image: Image,
    /// Number of the newest record of the log when this was opened.
    as_of: u64,
    whereabouts: Arc<Whereabouts>,
    listing: Arc<ListingChunks>,
}

impl FilesImage {
    /// Returns whether the checkpoint that `manifest` describes opens.
    pub(crate) fn opens(pool: &Pool, job: &JobName, manifest: &Manifest) -> bool {
        FilesImage::open(pool, job, manifest.clone(), 0).is_ok()
    }

    /// Opens the checkpoint that `manifest` describes, as of record `as_of` of the log.
    ///
    /// # Errors
    /// `Invalid` if it has no files, `Damaged` if any of its metadata is missing or wrong.
    pub fn open(pool: &Pool, job: &JobName, manifest: Manifest, as_of: u64) -> Result<FilesImage> {
        let epoch = manifest.epoch;
        FilesImage::open_inner(pool, job, manifest, as_of)
            .map_err(|e| e.context(format!("checkpoint {epoch} of job {job}")))
    }

    fn open_inner(
        pool: &Pool,
        job: &JobName,
        manifest: Manifest,
        as_of: u64,
    ) -> Result<FilesImage> {
        let image = only_image(&manifest)?.clone();
        if image.reference.kind != ImageKind::Files {
            return Err(Error::invalid(
                "it holds a program's memory and no files: restore it with `Job.restore`, or take \
                 its regions out with `outlive export`",
            ));
        }
        let whereabouts = Arc::new(Whereabouts::load(pool, job, &manifest, as_of)?);
        let listing =
            ListingChunks::read(pool, &whereabouts.extents().locator, image.reference.catalog)?;
        let listing = Arc::new(listing);
        let job = job.clone();
        Ok(FilesImage { job, manifest, image, as_of, whereabouts, listing })
    }

    /// Returns the newest checkpoint of files that opens. Warns of damaged ones and skips them.
    ///
    /// # Errors
    /// Errors of the log.
    pub fn newest(pool: &Pool, job: &JobName) -> Result<Option<FilesImage>> {
        // A log may be long. It is read as a whole only if its newest checkpoint of files does not
        // open.
        if let Some(newest) = FilesImage::newest_at_once(pool, job)? {
            return Ok(newest);
        }
        // An incomplete checkpoint may open: the damage is in chunks.
        let incomplete: HashSet<Epoch> = history(pool, job)?
            .filter(|entry| entry.incomplete)
            .filter_map(|entry| entry.manifest().map(|manifest| manifest.epoch))
            .collect();
        let is_sound =
            |manifest: &Manifest| manifest.is_of_files() && !incomplete.contains(&manifest.epoch);
        let opens = |manifest: &Manifest| FilesImage::opens(pool, job, manifest);
        let kind = Kind { is: &is_sound, opens: &opens };
        let newest = first_manifest(pool, job, Select::Newest, kind, &mut |found, as_of| {
            FilesImage::open(pool, job, found.clone(), as_of)
        });
        match newest {
            Ok(found) => Ok(found.map(|(_, checkpoint, _)| checkpoint)),
            Err(error) if error.kind() == ErrorKind::Damaged => {
                pool.warn(format!("nothing is taken over from damaged checkpoints: {error}"));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the same if no newer record is damaged; `None` if one is.
    fn newest_at_once(pool: &Pool, job: &JobName) -> Result<Option<Option<FilesImage>>> {
        let mut as_of = 0;
        for entry in history(pool, job)? {
            as_of = as_of.max(entry.number);
            if entry.record.is_err() {
                return Ok(None);
            }
            let is_sound = |manifest: &&Manifest| manifest.is_of_files() && !entry.incomplete;
            let Some(manifest) = entry.manifest().filter(is_sound) else { continue };
            return match FilesImage::open(pool, job, manifest.clone(), as_of) {
                Ok(checkpoint) => Ok(Some(Some(checkpoint))),
                Err(error) if error.kind() == ErrorKind::Damaged => Ok(None),
                Err(error) => Err(error),
            };
        }
        Ok(Some(None))
    }

    /// Returns its epoch.
    pub fn epoch(&self) -> Epoch {
        self.manifest.epoch
    }

    /// Returns its job.
    pub fn job(&self) -> &JobName {
        &self.job
    }

    /// Returns its image.
    pub fn image(&self) -> &ImageRef {
        &self.image.reference
    }

    /// Returns the segments that listed its chunks when it was opened.
    pub(crate) fn segments(&self) -> &[SegmentRef] {
        &self.image.segments
    }

    /// Returns the manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the pool that stores it.
    pub fn pool(&self) -> &Pool {
        self.whereabouts.pool()
    }

    pub(crate) fn as_of(&self) -> u64 {
        self.as_of
    }

    /// Returns the pack extents of chunks, as far as they are known.
    pub(crate) fn extents(&self) -> Arc<PackExtents> {
        self.whereabouts.extents()
    }

    /// Returns the fingerprints of the recipes above the chunks of the listing.
    pub fn listing_recipes(&self) -> &[Fingerprint] {
        &self.listing.recipes
    }

    /// Returns the number of its items.
    pub fn listed_items(&self) -> u64 {
        self.image.reference.regions
    }

    /// Returns the chunks of the listing, in their order.
    pub fn listing_chunks(&self) -> &[Piece] {
        &self.listing.chunks
    }

    /// Returns whether no record has followed the newest one that was there when this was opened,
    /// as far as a look at one or two records shows.
    ///
    /// # Errors
    /// Errors of the log.
    pub fn is_newest(&self) -> Result<bool> {
        let is_there = |number| match self.pool().log().read(&self.job, number) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::Damaged => Ok(false),
            Err(error) => Err(error),
        };
        Ok(self.as_of > 0 && !is_there(self.as_of + 1)? && is_there(self.as_of)?)
    }

    /// Returns the newest checkpoint of files, for changes that keep the rest of its tree. Unlike
    /// [`FilesImage::newest`] it passes over none.
    ///
    /// # Errors
    /// `Damaged` if the newest one, or a record that may be one, is damaged; errors of the log.
    pub fn newest_or_damaged(pool: &Pool, job: &JobName) -> Result<Option<FilesImage>> {
        let mut as_of = 0;
        for entry in history(pool, job)? {
            as_of = as_of.max(entry.number);
            let record = entry.record.as_ref().map_err(|error| {
                error.clone().context(format!("record {} of job {job}", entry.number))
            });
            record?;
            let Some(manifest) = entry.manifest().filter(|manifest| manifest.is_of_files()) else {
                continue;
            };
            return FilesImage::open(pool, job, manifest.clone(), as_of).map(Some);
        }
        Ok(None)
    }

    /// Reads whole chunks, also after a gc has moved them.
    ///
    /// # Errors
    /// `Damaged` if a chunk is missing, wrong, or not as long as its piece.
    pub fn read(&self, pieces: &[Piece]) -> Result<Vec<Vec<u8>>> {
        self.whereabouts.read(pieces)
    }

    /// Returns its items, in the order of the listing.
    pub fn items(&self) -> Items {
        Items::new(&self.whereabouts, &self.listing, self.image.reference.regions)
    }

    /// Adds the checkpoint to an error.
    pub fn context(&self, error: Error) -> Error {
        error.context(format!("checkpoint {} of job {}", self.epoch(), self.job))
    }

    /// Calls `each` with the pieces of an item's content, in their order.
    ///
    /// # Errors
    /// `Damaged` if a recipe is missing or wrong; errors of `each`.
    pub fn pieces(&self, item: &Item, each: &mut dyn FnMut(Piece) -> Result<()>) -> Result<()> {
        match &item.content {
            Content::Empty | Content::Inline(_) => Ok(()),
            Content::Pieces(pieces) => pieces.iter().try_for_each(|piece| each(*piece)),
            Content::Recipe(root) => {
                let mut ignore = |_| {};
                let read = |pieces: &[Piece]| self.whereabouts.read(pieces);
                let mut pieces = Pieces::of(&read, *root, item.bytes, &mut ignore)?;
                while let Some(piece) = pieces.next_piece()? {
                    each(piece)?;
                }
                Ok(())
            }
        }
    }

    /// Returns a chunk's pack extent.
    ///
    /// # Errors
    /// `Damaged` if it is in none of the segments, or not as long as its piece.
    pub fn wanted_of(&self, piece: &Piece) -> Result<ReadItem> {
        let extent = self.whereabouts.extents().locator.find(&piece.fp)?;
        if u64::from(extent.length) != piece.bytes {
            return Err(wrong_length(piece, extent.length));
        }
        Ok(ReadItem { fp: piece.fp, extent })
    }

    /// Returns the same chunk at its new pack extent, if a gc has moved it.
    ///
    /// # Errors
    /// Errors of the log.
    pub fn moved(&self, wanted: &ReadItem) -> Result<Option<ReadItem>> {
        let find = |locator: &Locator| {
            let extent = locator.find(&wanted.fp).ok().filter(|extent| *extent != wanted.extent);
            extent.map(|extent| ReadItem { fp: wanted.fp, extent })
        };
        let seen = self.whereabouts.extents();
        if let Some(moved) = find(&seen.locator) {
            return Ok(Some(moved));
        }
        match self.whereabouts.moved_since(&seen)? {
            true => Ok(find(&self.whereabouts.extents().locator)),
            false => Ok(None),
        }
    }

    /// Returns every chunk of the image once, with its pack extent. Also returns the errors for
    /// parts of the listing, recipes and chunks that cannot be found.
    pub fn wanted(&self) -> (Vec<ReadItem>, Vec<Error>) {
        let mut seen: HashSet<Fingerprint> = HashSet::new();
        let (mut wanted, mut faults) = (Vec::new(), Vec::new());
        let mut add = |piece: Piece| -> Result<()> {
            if !piece.is_zeros() && seen.insert(piece.fp) {
                wanted.push(self.wanted_of(&piece)?);
            }
            Ok(())
        };
        let listed = self.listing.chunks.iter().try_for_each(|piece| add(*piece));
        faults.extend(listed.err().map(|e| e.context("the listing of files")));
        let mut items = self.items();
        loop {
            match items.next_item() {
                Ok(Some(item)) => {
                    let found = self.pieces(&item, &mut add);
                    faults.extend(found.err().map(|e| e.context(file_words(&item))));
                }
                Ok(None) => break,
                Err(error) => {
                    faults.push(error.context("the listing of files"));
                    break;
                }
            }
        }
        (wanted, faults)
    }
}

/// Returns the name of a file for messages.
pub(crate) fn file_words(item: &Item) -> String {
    format!("\"{}\"", shown_path(&item.path))
}
