//! An image of memory, opened for reading: its catalog and page trees, with every node verified.

use super::streams::{RestorePlan, RestoreSink, RestoreStats, SoughtPieces, Transfers};
use super::trees::read_trees;
use crate::commit::{history, mark_suspect};
use crate::images::{image_to_restore, only_image};
use crate::index::{Extents, IsNamed, Locator, ReadItem, RestoreLocator};
use crate::tree::PageTree;
use outlive_format::{Catalog, Image, ImageKind, ImageRef, Manifest, SegmentRef, TreeRef};
use outlive_pool::Pool;
use outlive_types::sync::plain::{Mutex, RwLock};
use outlive_types::{
    Epoch, Error, ErrorKind, JobName, PACKED_STREAM, Rank, RegionDesc, RegionLocation, Result, sync,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// One stream of the image.
#[derive(Clone, Debug)]
pub struct Stream {
    /// The region's name, or the packed stream's.
    pub name: String,
    /// Its page tree.
    pub tree: PageTree,
}

/// Returns whether the log still has the checkpoint of `manifest`, with all pack extents unchanged.
pub(super) fn is_in_log(pool: &Pool, job: &JobName, manifest: &Manifest) -> Result<bool> {
    for entry in history(pool, job)? {
        if let Some(now) = entry.manifest().filter(|now| now.epoch == manifest.epoch) {
            return Ok(now.session == manifest.session && now.images == manifest.images);
        }
    }
    Ok(false)
}

/// Returns a function that looks for that in the log.
pub(super) fn is_named(pool: &Pool, job: &JobName, manifest: &Manifest) -> IsNamed {
    let (pool, job, manifest) = (pool.clone(), job.clone(), manifest.clone());
    Box::new(move || is_in_log(&pool, &job, &manifest))
}

/// The catalog of an image, and its trees.
struct Metadata {
    catalog: Catalog,
    catalog_bytes: Vec<u8>,
    catalog_tree: PageTree,
    streams: Vec<Stream>,
}

impl Metadata {
    fn read(pool: &Pool, extents: &mut dyn Extents, image: &ImageRef) -> Result<Metadata> {
        let mut trees = read_trees(pool, extents, &[image.catalog])?;
        let catalog_tree = trees.pop().unwrap_or_default();
        let catalog_bytes = read_whole(pool, extents, &catalog_tree)?;
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
        let trees = read_trees(pool, extents, &roots).map_err(|error| {
            // Read one by one, the trees show which stream the error concerns.
            let is_hit = |root: &TreeRef| read_trees(pool, extents, &[*root]).is_err();
            match roots.iter().position(is_hit) {
                Some(at) => error.context(stream_words(&names[at])),
                None => error,
            }
        })?;
        let streams =
            names.into_iter().zip(trees).map(|(name, tree)| Stream { name, tree }).collect();
        Ok(Metadata { catalog, catalog_bytes, catalog_tree, streams })
    }
}

/// One rank's image of memory: its metadata, read and verified.
#[derive(Debug)]
pub struct MemoryImage {
    pool: Pool,
    job: JobName,
    manifest: Manifest,
    image: ImageRef,
    segments: Vec<SegmentRef>,
    as_of: u64,
    /// Locked while segments are read.
    extents: sync::Mutex<RestoreLocator>,
    /// The pack extents that it knows, for reads that need no more.
    known: RwLock<Arc<Locator>>,
    has_all: AtomicBool,
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

    /// Opens one rank's image of a checkpoint, and reads no data of other ranks.
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

    /// Opens an image that is already known, as of record `as_of` of the log.
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

    /// Opens the only image, as of record `as_of` of the log.
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
        let mut extents = RestoreLocator::new(pool, &segments, is_named(pool, job, &manifest))?;
        let metadata = extents.repeated(&mut |extents| Metadata::read(pool, extents, &image))?;
        let Metadata { catalog, catalog_bytes, catalog_tree, streams } = metadata;
        let regions = catalog.regions.iter().map(|region| region.desc.clone()).collect();
        let opened = MemoryImage {
            pool: pool.clone(),
            job: job.clone(),
            manifest,
            image,
            segments,
            as_of,
            known: RwLock::default(),
            has_all: AtomicBool::new(extents.is_all()),
            extents: sync::Mutex::new(extents),
            catalog,
            catalog_bytes,
            catalog_tree,
            regions,
            streams,
        };
        if let Some(damage) = opened.extents.lock().instead_of() {
            opened.tell_of_search(damage);
        }
        Ok(opened)
    }

    /// Marks the checkpoint, and warns that a segment is damaged.
    fn tell_of_search(&self, damage: &Error) {
        // Programs that continue from it, and prune rules, must know of the damage. A pool that is
        // not writable can be read all the same.
        let _ = mark_suspect(&self.pool, &self.job, self.manifest.epoch);
        self.pool.warn(format!(
            "{damage}: the directories of all packs tell where {} is; run: {}",
            self.words(),
            self.pool.command("scrub", &[])
        ));
    }

    /// Returns the pack extents that are known after `load`, which may read segments.
    fn extents(
        &self,
        load: impl FnOnce(&mut RestoreLocator) -> Result<()>,
    ) -> Result<Arc<Locator>> {
        let mut extents = self.extents.lock();
        let was_searched = extents.instead_of().is_some();
        load(&mut extents)?;
        if let Some(damage) = extents.instead_of().filter(|_| !was_searched) {
            self.tell_of_search(damage);
        }
        *self.known.write() = extents.known();
        self.has_all.store(extents.is_all(), Ordering::Release);
        Ok(extents.known())
    }

    /// Returns the pieces with the pack extents of their chunks, for which it may read segments.
    ///
    /// # Errors
    /// `Damaged` if a chunk is in none of the segments, or a segment is missing or wrong.
    pub(crate) fn located(&self, sought: SoughtPieces) -> Result<Transfers> {
        let known = self.known_extents();
        // A page fault that misses nothing waits for no reader of segments.
        if sought.chunks().iter().all(|fp| known.lists(fp)) {
            return sought.locate(&known);
        }
        let locator = self.extents(|extents| extents.chunks(sought.chunks()).map(drop))?;
        sought.locate(&locator)
    }

    /// Returns all pack extents that the segments list.
    pub(crate) fn all_extents(&self) -> Result<Arc<Locator>> {
        self.extents(|extents| extents.all().map(drop))
    }

    /// Does `work`, and if that meets damage, does it again with the copies that the manifest lists
    /// first.
    ///
    /// # Errors
    /// Errors of `work`, and of [`RestoreLocator::all`].
    pub(crate) fn repeated<T>(&self, work: &mut dyn FnMut() -> Result<T>) -> Result<T> {
        let had_all = self.has_all_extents();
        match work() {
            Err(error) if error.kind() == ErrorKind::Damaged && !had_all => {
                match self.all_extents() {
                    Ok(_) => work(),
                    Err(other) if other.kind() == ErrorKind::Damaged => Err(error),
                    Err(other) => Err(other),
                }
            }
            done => done,
        }
    }

    /// Returns whether reads take the copies that the manifest lists first.
    pub(crate) fn has_all_extents(&self) -> bool {
        self.has_all.load(Ordering::Acquire)
    }

    /// Returns the pack extents that are known so far: after a restore of all streams, those of all
    /// their chunks.
    pub(crate) fn known_extents(&self) -> Arc<Locator> {
        self.known.read().clone()
    }

    /// Returns its name for messages.
    pub(crate) fn words(&self) -> String {
        image_words(&self.job, &self.manifest, self.image.rank)
    }

    /// Returns its epoch.
    pub fn epoch(&self) -> Epoch {
        self.manifest.epoch
    }

    /// Returns its job.
    pub fn job(&self) -> &JobName {
        &self.job
    }

    /// Returns the manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the image that was opened.
    pub fn image(&self) -> &ImageRef {
        &self.image
    }

    /// Returns the segments that list everything that the image needs.
    pub fn segments(&self) -> &[SegmentRef] {
        &self.segments
    }

    /// Returns whether a segment is damaged, so that a search has found the pack extents.
    pub(crate) fn is_searched(&self) -> bool {
        self.extents.lock().instead_of().is_some()
    }

    /// Returns every region, in the order in which it was saved.
    pub fn regions(&self) -> &[RegionDesc] {
        &self.regions
    }

    /// Returns the outputs that the checkpoint covers, encoded; empty if there are none.
    pub fn outputs(&self) -> &[u8] {
        &self.catalog.outputs
    }

    /// Returns the attachment of the front door.
    pub fn attachment(&self) -> &[u8] {
        &self.catalog.attachment
    }

    /// Returns its streams: the packed stream first if there is one, then one for each large
    /// region.
    pub fn streams(&self) -> &[Stream] {
        &self.streams
    }

    /// Returns the number of the newest record in the log when this was opened.
    pub(crate) fn as_of(&self) -> u64 {
        self.as_of
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns the sources of the bytes of `selected` streams.
    ///
    /// # Errors
    /// `Damaged` if a chunk is in none of the segments.
    pub(crate) fn pieces(&self, selected: &[usize]) -> Result<Transfers> {
        self.located(SoughtPieces::of(&self.pool, &self.trees(selected)?)?)
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
        let trees = self.trees(selected)?;
        // It reads much data anyhow, and takes the copies on which checks rely.
        self.all_extents()
            .and_then(|locator| RestorePlan::new(&self.pool, &locator, &trees))
            .map_err(|e| e.context(self.words()))
    }

    fn trees(&self, selected: &[usize]) -> Result<Vec<(usize, &PageTree)>> {
        let tree = |at: &usize| {
            self.streams.get(*at).map(|stream| (*at, &stream.tree)).ok_or_else(|| {
                Error::invalid(format!("checkpoint {} has no stream {at}", self.epoch()))
            })
        };
        selected.iter().map(tree).collect()
    }

    /// Reads `selected` streams into `sink`, which gets only verified bytes.
    ///
    /// # Errors
    /// `Damaged` if any data is missing or wrong; the bytes in `sink` are right, but incomplete.
    pub fn read(&self, selected: &[usize], sink: &dyn RestoreSink) -> Result<RestoreStats> {
        self.plan(selected)?.execute(&self.pool, sink).map_err(|e| e.context(self.words()))
    }

    /// As [`MemoryImage::read`], for the few streams that a lazy restore cannot leave to later:
    /// reads only the segments that it needs. The caller [repeats](MemoryImage::repeated) it.
    pub(crate) fn read_some(
        &self,
        selected: &[usize],
        sink: &dyn RestoreSink,
    ) -> Result<RestoreStats> {
        let total_bytes = self.trees(selected)?.iter().map(|(_, tree)| tree.bytes).sum();
        self.pieces(selected)
            .map(|pieces| RestorePlan::of(&self.pool, pieces, total_bytes))
            .and_then(|plan| plan.execute(&self.pool, sink))
            .map_err(|e| e.context(self.words()))
    }

    /// Returns every chunk of the image with its pack extent, including the catalog's. Also returns
    /// an error for each region with a chunk that no segment lists.
    pub fn wanted(&self) -> (Vec<ReadItem>, Vec<Error>) {
        let (mut all, mut faults) = (Vec::new(), Vec::new());
        let locator = match self.all_extents() {
            Ok(locator) => locator,
            Err(error) => return (all, vec![error.context(self.words())]),
        };
        let mut add = |tree: &PageTree, words: &dyn Fn() -> String| match RestorePlan::wanted(
            &self.pool,
            &locator,
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

    /// Returns the packed stream's bytes; empty if there is none.
    ///
    /// # Errors
    /// As for [`MemoryImage::read`].
    pub fn packed_bytes(&self) -> Result<Vec<u8>> {
        match self.streams.first() {
            Some(stream) if stream.name == PACKED_STREAM => self
                .all_extents()
                .and_then(|locator| read_whole(&self.pool, &mut &*locator, &stream.tree))
                .map_err(|e| e.context(self.words())),
            _ => Ok(Vec::new()),
        }
    }

    /// Returns the numbers of the streams by name, for regions with a stream of their own.
    pub fn stream_of(&self) -> HashMap<&str, usize> {
        self.streams.iter().enumerate().map(|(at, stream)| (stream.name.as_str(), at)).collect()
    }
}

/// Returns the name of an image for messages.
pub(crate) fn image_words(job: &JobName, manifest: &Manifest, rank: Rank) -> String {
    let epoch = manifest.epoch;
    match manifest.world_size {
        1 => format!("checkpoint {epoch} of job {job}"),
        _ => format!("rank {rank} of checkpoint {epoch} of job {job}"),
    }
}

/// Checks that packed regions lie within the packed stream of the manifest.
///
/// # Errors
/// `Damaged` if a region does not.
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

/// Reads the catalog with the root `root`.
///
/// # Errors
/// `Damaged` if it is missing or wrong.
pub fn read_catalog(pool: &Pool, extents: &mut dyn Extents, root: TreeRef) -> Result<Catalog> {
    Catalog::decode(&read_stream(pool, extents, root)?)
}

/// Reads the stream with the root `root` into memory. Meant for catalogs and packed streams.
///
/// # Errors
/// `Damaged` if it is missing or wrong.
pub fn read_stream(pool: &Pool, extents: &mut dyn Extents, root: TreeRef) -> Result<Vec<u8>> {
    let tree = read_trees(pool, extents, &[root])?.pop().unwrap_or_default();
    read_whole(pool, extents, &tree)
}

/// Reads a stream into memory. Meant for catalogs and packed streams.
fn read_whole(pool: &Pool, extents: &mut dyn Extents, tree: &PageTree) -> Result<Vec<u8>> {
    struct Whole(Mutex<Vec<u8>>);
    impl RestoreSink for Whole {
        fn write(&self, _stream: usize, offset: u64, bytes: &[u8]) {
            let mut whole = self.0.lock();
            whole[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        // The vector begins as zeros.
        fn zero(&self, _stream: usize, _offset: u64, _length: u64) {}
    }
    let sought = SoughtPieces::of(pool, &[(0, tree)])?;
    let pieces = extents.chunks(sought.chunks()).and_then(|locator| sought.locate(locator))?;
    let plan = RestorePlan::of(pool, pieces, tree.bytes);
    let length = usize::try_from(tree.bytes)
        .map_err(|_| Error::invalid("a stream is longer than this machine's memory"))?;
    let mut whole = Vec::new();
    // The length comes from a verified node, yet this machine may lack the memory.
    whole
        .try_reserve_exact(length)
        .map_err(|_| Error::full(format!("cannot allocate {length} bytes of memory")))?;
    whole.resize(length, 0);
    let sink = Whole(Mutex::new(whole));
    plan.execute(pool, &sink)?;
    Ok(sink.0.into_inner())
}

/// Returns the name of a stream for messages.
pub fn stream_words(name: &str) -> String {
    match name == PACKED_STREAM {
        true => "regions below 64 KiB".to_owned(),
        false => format!("region \"{}\"", name.escape_debug()),
    }
}
