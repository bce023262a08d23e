//! An image of memory, opened for reading: its catalog and page trees, every node of them verified.

use super::streams::{RestorePlan, RestoreSink, RestoreStats, Transfers};
use super::trees::read_trees;
use crate::commit::{history, mark_suspect};
use crate::images::{image_to_restore, only_image};
use crate::index::{Locator, ReadItem, RestoreLocator};
use crate::tree::PageTree;
use outlive_format::{Catalog, Image, ImageKind, ImageRef, Manifest, SegmentRef, TreeRef};
use outlive_pool::Pool;
use outlive_types::sync::plain::Mutex;
use outlive_types::{
    Epoch, Error, JobName, PACKED_STREAM, Rank, RegionDesc, RegionLocation, Result,
};
use std::collections::HashMap;

/// One stream of the image.
#[derive(Clone, Debug)]
pub struct Stream {
    /// The region's name, or the packed stream's.
    pub name: String,
    /// Its page tree.
    pub tree: PageTree,
}

/// Whether the log has a checkpoint still as `manifest` says, with everything in the same places.
pub(super) fn is_in_log(pool: &Pool, job: &JobName, manifest: &Manifest) -> Result<bool> {
    for entry in history(pool, job)? {
        if let Some(now) = entry.manifest().filter(|now| now.epoch == manifest.epoch) {
            return Ok(now.session == manifest.session && now.images == manifest.images);
        }
    }
    Ok(false)
}

/// What one rank has of a checkpoint of memory: its metadata, read and verified.
#[derive(Debug)]
pub struct MemoryImage {
    pool: Pool,
    job: JobName,
    manifest: Manifest,
    image: ImageRef,
    segments: Vec<SegmentRef>,
    as_of: u64,
    locator: Locator,
    is_searched: bool,
    catalog: Catalog,
    catalog_bytes: Vec<u8>,
    catalog_tree: PageTree,
    regions: Vec<RegionDesc>,
    streams: Vec<Stream>,
}

impl MemoryImage {
    /// Opens the checkpoint that `manifest` describes, which has one rank.
    ///
    /// # Errors
    /// `Damaged` if any of its metadata is missing or wrong; `Invalid` if it has more ranks.
    pub fn open(pool: &Pool, job: &JobName, manifest: Manifest) -> Result<MemoryImage> {
        MemoryImage::open_as_of(pool, job, manifest, 0)
    }

    /// Opens what one rank has of a checkpoint, and reads nothing of what other ranks have.
    ///
    /// # Errors
    /// `Damaged` if any of its metadata is missing or wrong; `Invalid` if there is no such rank.
    pub fn open_rank(
        pool: &Pool,
        job: &JobName,
        manifest: Manifest,
        rank: Rank,
    ) -> Result<MemoryImage> {
        let image = image_to_restore(pool, &manifest, rank)
            .map_err(|e| e.context(format!("checkpoint {} of job {job}", manifest.epoch)))?;
        MemoryImage::open_image(pool, job, manifest, image, 0)
    }

    /// The same with an image that has been found already, knowing the log up to record `as_of`.
    pub(crate) fn open_image(
        pool: &Pool,
        job: &JobName,
        manifest: Manifest,
        image: Image,
        as_of: u64,
    ) -> Result<MemoryImage> {
        let of = image_words(job, &manifest, image.reference.rank);
        MemoryImage::open_inner(pool, job, manifest, image, as_of).map_err(|e| e.context(of))
    }

    /// The same, knowing the log up to record `as_of`.
    pub(crate) fn open_as_of(
        pool: &Pool,
        job: &JobName,
        manifest: Manifest,
        as_of: u64,
    ) -> Result<MemoryImage> {
        let image = only_image(&manifest).cloned().map_err(|error| {
            let of = format!("checkpoint {} of job {job}", manifest.epoch);
            error.context(of)
        })?;
        MemoryImage::open_image(pool, job, manifest, image, as_of)
    }

    fn open_inner(
        pool: &Pool,
        job: &JobName,
        manifest: Manifest,
        image: Image,
        as_of: u64,
    ) -> Result<MemoryImage> {
        let Image { reference: image, segments, .. } = image;
        if image.kind != ImageKind::Memory {
            return Err(Error::invalid(
                "it holds files and no program's memory: get them with `outlive get` or \
                 `Job.get_files`",
            ));
        }
        let RestoreLocator { locator, instead_of } =
            RestoreLocator::load(pool, &segments, &|| is_in_log(pool, job, &manifest))?;
        let mut trees = read_trees(pool, &locator, &[image.catalog])?;
        let catalog_tree = trees.pop().unwrap_or_default();
        let stream = Stream { name: "catalog".to_owned(), tree: catalog_tree.clone() };
        let catalog_bytes = read_whole(pool, &locator, stream)?;
        let catalog = Catalog::decode(&catalog_bytes)?;
        check_packed(&catalog, image.packed)?;

        let mut names = Vec::new();
        let mut roots = Vec::new();
        if image.packed != TreeRef::EMPTY {
            names.push(PACKED_STREAM.to_owned());
            roots.push(image.packed);
        }
        for region in &catalog.regions {
            if let Some(tree) = region.tree() {
                names.push(region.desc.name.clone());
                roots.push(tree);
            }
        }
        let trees = read_trees(pool, &locator, &roots).map_err(|error| {
            // One after the other they say whose it is.
            let is_hit = |root: &TreeRef| read_trees(pool, &locator, &[*root]).is_err();
            match roots.iter().position(is_hit) {
                Some(at) => error.context(stream_words(&names[at])),
                None => error,
            }
        })?;
        let streams =
            names.into_iter().zip(trees).map(|(name, tree)| Stream { name, tree }).collect();
        if let Some(damage) = &instead_of {
            // Programs that go on from it, and rules of prunes, must hear of it. A pool that cannot be written to is read
            // all the same.
            let _ = mark_suspect(pool, job, manifest.epoch);
            pool.warn(format!(
                "{damage}: the directories of all packs tell where {} is; run: {}",
                image_words(job, &manifest, image.rank),
                pool.command("scrub", &[])
            ));
        }
        let regions = catalog.regions.iter().map(|region| region.desc.clone()).collect();
        Ok(MemoryImage {
            pool: pool.clone(),
            job: job.clone(),
            manifest,
            image,
            segments,
            as_of,
            locator,
            is_searched: instead_of.is_some(),
            catalog,
            catalog_bytes,
            catalog_tree,
            regions,
            streams,
        })
    }

    /// What it is called, for people.
    pub(crate) fn words(&self) -> String {
        image_words(&self.job, &self.manifest, self.image.rank)
    }

    /// Its epoch.
    pub fn epoch(&self) -> Epoch {
        self.manifest.epoch
    }

    /// Its job.
    pub fn job(&self) -> &JobName {
        &self.job
    }

    /// The manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The image that was opened.
    pub fn image(&self) -> &ImageRef {
        &self.image
    }

    /// The segments that resolve what the image needs.
    pub fn segments(&self) -> &[SegmentRef] {
        &self.segments
    }

    /// Whether a segment is damaged, so that a search told where things are.
    pub(crate) fn is_searched(&self) -> bool {
        self.is_searched
    }

    /// Every region, in the order in which it was saved.
    pub fn regions(&self) -> &[RegionDesc] {
        &self.regions
    }

    /// What the front door kept with the image.
    pub fn attachment(&self) -> &[u8] {
        &self.catalog.attachment
    }

    /// Its streams: the packed stream first if there is one, then one for each large region.
    pub fn streams(&self) -> &[Stream] {
        &self.streams
    }

    /// Number of the newest record in the log when this was opened.
    pub(crate) fn as_of(&self) -> u64 {
        self.as_of
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn locator(&self) -> &Locator {
        &self.locator
    }

    /// Where the bytes of `selected` streams come from.
    ///
    /// # Errors
    /// `Damaged` if a chunk is in none of the segments.
    pub(crate) fn pieces(&self, selected: &[usize]) -> Result<Transfers> {
        let trees: Vec<(usize, &PageTree)> =
            selected.iter().map(|at| (*at, &self.streams[*at].tree)).collect();
        Transfers::of(&self.pool, &self.locator, &trees)
    }

    pub(crate) fn catalog_tree(&self) -> &PageTree {
        &self.catalog_tree
    }

    pub(crate) fn catalog_bytes(&self) -> &[u8] {
        &self.catalog_bytes
    }

    /// Plans the reading of `selected` streams (indices into [`MemoryImage::streams`]).
    ///
    /// # Errors
    /// `Damaged` if a chunk is in none of the segments; `Invalid` for an index out of range.
    pub fn plan(&self, selected: &[usize]) -> Result<RestorePlan> {
        let trees = selected
            .iter()
            .map(|at| {
                self.streams.get(*at).map(|stream| (*at, &stream.tree)).ok_or_else(|| {
                    Error::invalid(format!("checkpoint {} has no stream {at}", self.epoch()))
                })
            })
            .collect::<Result<Vec<_>>>()?;
        RestorePlan::new(&self.pool, &self.locator, &trees).map_err(|e| e.context(self.words()))
    }

    /// Reads `selected` streams into `sink`, every byte verified before it is handed over.
    ///
    /// # Errors
    /// `Damaged` if anything is missing or wrong; what was handed over until then was right, but is
    /// not all.
    pub fn read(&self, selected: &[usize], sink: &dyn RestoreSink) -> Result<RestoreStats> {
        self.plan(selected)?.execute(&self.pool, sink).map_err(|e| e.context(self.words()))
    }

    /// Every chunk of the image with its place, the catalog's included; and for each region of
    /// which a chunk is in none of the segments, which.
    pub fn wanted(&self) -> (Vec<ReadItem>, Vec<Error>) {
        let (mut all, mut faults) = (Vec::new(), Vec::new());
        let mut add = |tree: &PageTree, words: &dyn Fn() -> String| match RestorePlan::wanted(
            &self.pool,
            &self.locator,
            &[(0, tree)],
        ) {
            Ok(wanted) => all.extend(wanted),
            Err(error) => faults.push(error.context(words())),
        };
        for stream in &self.streams {
            add(&stream.tree, &|| stream_words(&stream.name));
        }
        add(&self.catalog_tree, &|| "the catalog".to_owned());
        (all, faults)
    }

    /// The packed stream's bytes; empty if there is none.
    ///
    /// # Errors
    /// Those of [`MemoryImage::read`].
    pub fn packed_bytes(&self) -> Result<Vec<u8>> {
        match self.streams.first() {
            Some(stream) if stream.name == PACKED_STREAM => {
                read_whole(&self.pool, &self.locator, stream.clone())
                    .map_err(|e| e.context(self.words()))
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Number of the stream that holds a region of its own.
    pub fn stream_of(&self) -> HashMap<&str, usize> {
        self.streams.iter().enumerate().map(|(at, stream)| (stream.name.as_str(), at)).collect()
    }
}

/// What an image is called, for people.
pub(crate) fn image_words(job: &JobName, manifest: &Manifest, rank: Rank) -> String {
    let epoch = manifest.epoch;
    match manifest.world_size {
        1 => format!("checkpoint {epoch} of job {job}"),
        _ => format!("rank {rank} of checkpoint {epoch} of job {job}"),
    }
}

/// Regions must lie within the packed stream that the manifest names.
///
/// # Errors
/// `Damaged` if one does not.
pub fn check_packed(catalog: &Catalog, packed: TreeRef) -> Result<()> {
    for region in &catalog.regions {
        if let RegionLocation::Packed { offset } = region.desc.location
            && offset.checked_add(region.desc.bytes).is_none_or(|end| end > packed.bytes)
        {
            return Err(Error::damaged(format!(
                "region {:?} lies beyond the packed stream",
                region.desc.name
            )));
        }
    }
    Ok(())
}

/// Reads the catalog that `root` names.
///
/// # Errors
/// `Damaged` if it is missing or wrong.
pub fn read_catalog(pool: &Pool, locator: &Locator, root: TreeRef) -> Result<Catalog> {
    Catalog::decode(&read_stream(pool, locator, root)?)
}

/// Reads the stream that `root` names into memory. Meant for catalogs and packed streams.
///
/// # Errors
/// `Damaged` if it is missing or wrong.
pub fn read_stream(pool: &Pool, locator: &Locator, root: TreeRef) -> Result<Vec<u8>> {
    let tree = read_trees(pool, locator, &[root])?.pop().unwrap_or_default();
    read_whole(pool, locator, Stream { name: String::new(), tree })
}

/// Reads a stream into memory. Meant for catalogs and packed streams.
fn read_whole(pool: &Pool, locator: &Locator, stream: Stream) -> Result<Vec<u8>> {
    struct Whole(Mutex<Vec<u8>>);
    impl RestoreSink for Whole {
        fn write(&self, _stream: usize, offset: u64, bytes: &[u8]) {
            let mut whole = self.0.lock();
            whole[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        // The vector began as zeros.
        fn zero(&self, _stream: usize, _offset: u64, _length: u64) {}
    }
    let plan = RestorePlan::new(pool, locator, &[(0, &stream.tree)])?;
    let length = usize::try_from(stream.tree.bytes)
        .map_err(|_| Error::invalid("a stream is longer than this machine's memory"))?;
    let mut whole = Vec::new();
    // The length comes from a verified node, yet it may be too much for this machine.
    whole
        .try_reserve_exact(length)
        .map_err(|_| Error::full(format!("cannot allocate {length} bytes of memory")))?;
    whole.resize(length, 0);
    let sink = Whole(Mutex::new(whole));
    plan.execute(pool, &sink)?;
    Ok(sink.0.into_inner())
}

/// What a stream is, for people.
pub fn stream_words(name: &str) -> String {
    match name == PACKED_STREAM {
        true => "regions below 64 KiB".to_owned(),
        false => format!("region \"{}\"", name.escape_debug()),
    }
}
