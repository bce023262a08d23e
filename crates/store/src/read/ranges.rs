//! Reads parts of regions: bytes a to b, verified, without the rest.

use super::chunks::ReadPlan;
use super::find::{Select, first_of_rank};
use super::image::MemoryImage;
use super::nodes::read_merged;
use super::reload::Current;
use super::streams::SoughtPieces;
use super::verified::Verified;
use crate::tree::Node;
use outlive_format::Leaf;
use outlive_pool::Pool;
use outlive_types::sync::plain::Mutex;
use outlive_types::{Epoch, Error, ErrorKind, RegionDesc, RegionLocation, Result};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Leaves that are kept in memory for readers of parts.
const LEAVES_MAX: usize = 256;
/// Shorter ranges are read at once; longer ones by all threads, through staging.
const AT_ONCE_BYTES: u64 = 4 << 20;

/// Leaves that are too large to be kept with their tree, by stream and block.
#[derive(Debug, Default)]
pub(crate) struct Leaves(Mutex<HashMap<(usize, u64), Arc<Leaf>>>);

impl MemoryImage {
    /// Adds the pieces of a range of a stream.
    ///
    /// # Errors
    /// `Damaged` if a leaf is missing or wrong.
    pub(crate) fn add_range(
        &self,
        pool: &Pool,
        leaves: &Leaves,
        sought: &mut SoughtPieces,
        stream: usize,
        range: Range<u64>,
    ) -> Result<()> {
        let tree = &self.streams()[stream].tree;
        let mut leaf_of = |block: u64| {
            let Some(node) = tree.leaf(block) else { return Ok(None) };
            let Node::Leaf(node) = node.as_ref() else { return Ok(None) };
            if let Some(kept) = &node.kept {
                return Ok(Some(kept.clone()));
            }
            let known = || leaves.0.lock();
            if let Some(leaf) = known().get(&(stream, block)) {
                return Ok(Some(leaf.clone()));
            }
            let read = read_merged(pool, &[node])?.pop();
            let leaf = Arc::new(read.ok_or_else(|| Error::bug("a leaf was not read"))?);
            let mut known = known();
            if known.len() >= LEAVES_MAX {
                known.clear();
            }
            known.insert((stream, block), leaf.clone());
            Ok(Some(leaf))
        };
        sought.range(stream as u32, range, &mut leaf_of)
    }

    /// Reads and verifies a range of a stream that begins at `offset` and is as long as `into`.
    ///
    /// # Errors
    /// `Damaged` if any of it is missing or wrong; then `into` has part of it.
    pub(crate) fn fetch(
        &self,
        pool: &Pool,
        leaves: &Leaves,
        stream: usize,
        offset: u64,
        into: &mut [u8],
    ) -> Result<()> {
        self.repeated(&mut || self.fetch_once(pool, leaves, (stream, offset), into))
    }

    fn fetch_once(
        &self,
        pool: &Pool,
        leaves: &Leaves,
        (stream, offset): (usize, u64),
        into: &mut [u8],
    ) -> Result<()> {
        let mut sought = SoughtPieces::default();
        self.add_range(pool, leaves, &mut sought, stream, offset..offset + into.len() as u64)?;
        let pieces = self.located(sought)?;
        into.fill(0);
        let into = Mutex::new(into);
        let take = |at: usize, chunk: Verified<'_>| {
            let piece = &pieces.pieces[at];
            let from = piece.of(chunk)?;
            let mut into = into.lock();
            let to = (piece.to - offset) as usize;
            into[to..][..piece.length as usize].copy_from_slice(from);
            Ok(())
        };
        let plan = ReadPlan::new(pool, &pieces.wanted);
        if plan.read_bytes <= AT_ONCE_BYTES {
            return plan.execute_now(pool, &take);
        }
        let threads = pool.config().tuning.threads();
        let faults = plan.execute_in_turns(pool, threads, false, &take);
        faults.into_iter().next().map_or(Ok(()), |fault| Err(fault.error))
    }

    /// Opens the same image as the log has it now; `None` if that is damaged.
    ///
    /// # Errors
    /// `Retry` if its checkpoint was pruned; errors of the log.
    pub(crate) fn reopen(&self) -> Result<Option<MemoryImage>> {
        let (pool, job, epoch) = (self.pool(), self.job(), self.epoch());
        let (select, rank) = (Select::Epoch(epoch), self.image().rank);
        match first_of_rank(pool, job, select, rank, &mut |_| Ok(())) {
            Ok(found) => Ok(found.map(|(checkpoint, (), _)| checkpoint)),
            Err(error) if error.kind() == ErrorKind::Invalid && !error.is_newer() => {
                Err(Error::retry(format!(
                    "checkpoint {epoch} of job {job} was pruned while it was read"
                )))
            }
            Err(error) if error.kind() == ErrorKind::Damaged => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes this image follow the log, for long reads; record `listed` was the newest one so far.
    pub(crate) fn current(self, listed: u64) -> Current<MemoryImage> {
        let (pool, job) = (self.pool().clone(), self.job().clone());
        Current::new(&pool, &job, listed, self, Box::new(MemoryImage::reopen))
    }
}

/// Reads parts of the regions of one image, also while a gc moves them. Its page trees are in
/// memory, about 6 MiB for each GiB; of the regions it reads only the requested parts. Many threads
/// may use it at once.
#[derive(Debug)]
pub struct RangeReader {
    image: Current<MemoryImage>,
    leaves: Leaves,
}

impl RangeReader {
    /// Makes a reader of an opened image.
    pub fn new(image: MemoryImage) -> RangeReader {
        let listed = image.as_of();
        RangeReader { image: image.current(listed), leaves: Leaves::default() }
    }

    /// Returns the epoch.
    pub fn epoch(&self) -> Epoch {
        self.image.get().epoch()
    }

    /// Returns its regions, in the order in which they were saved.
    pub fn regions(&self) -> Vec<RegionDesc> {
        self.image.get().regions().to_vec()
    }

    /// Fills `into` with the bytes of a region from `offset` on. Verifies first every chunk that
    /// has some of them.
    ///
    /// # Errors
    /// `Invalid` for a region that the image does not have, or bytes beyond its end; `Retry` if the
    /// checkpoint was pruned; `Damaged` if data is missing or wrong. Then `into` has part of it.
    pub fn read(&self, region: &str, offset: u64, into: &mut [u8]) -> Result<()> {
        let image = self.image.get();
        let of = || format!("region \"{}\" of {}", region.escape_debug(), image.words());
        let found = image.regions().iter().find(|desc| desc.name == region);
        let desc = found.ok_or_else(|| {
            let names = image.regions().iter().take(8).map(|desc| format!("{:?}", desc.name));
            let names = names.collect::<Vec<_>>().join(", ");
            Error::invalid(format!("there is no {}; its first regions: {names}", of()))
        })?;
        if offset.checked_add(into.len() as u64).is_none_or(|end| end > desc.bytes) {
            return Err(Error::invalid(format!(
                "{} has {} bytes: {} bytes from {offset} on cannot be read",
                of(),
                desc.bytes,
                into.len()
            )));
        }
        if into.is_empty() {
            return Ok(());
        }
        let (stream, from) = match desc.location {
            // The packed stream comes first.
            RegionLocation::Packed { offset: from } => (0, from),
            RegionLocation::Own => {
                let at = image.streams().iter().position(|stream| stream.name == region);
                (at.ok_or_else(|| Error::bug("a region has no stream"))?, 0)
            }
        };
        let mut fetch = |image: &MemoryImage| {
            image.fetch(image.pool(), &self.leaves, stream, from + offset, into)
        };
        self.image.read(&mut fetch).map_err(|error| error.context(of()))
    }
}
