//! Remembers the needs of earlier checkpoints of a chain; of the next one only the rest is read.

use crate::images::only_image;
use crate::index::{Pages, ReadItem, Rolling, Stepped};
use crate::read::files::FilesImage;
use crate::read::{check_packed, read_catalog, read_inner, read_leaves};
use outlive_format::{
    Image, ImageKind, ImageRef, LEVEL_MAX, Leaf, Manifest, NODE_CHILDREN, TreeRef,
};
use outlive_pool::Pool;
use outlive_types::{BLOCK_BYTES, Error, Fingerprint, JobName, PAGE_BYTES, Result, blocks_of};
use std::collections::{BTreeMap, HashSet};

/// Leaves read in one go.
const LEAF_BATCH: usize = 256;

/// Mark of a catalog, and of a listing, among the seen nodes.
const CATALOG: u8 = 0xF0;
const LISTING: u8 = 0xF1;

/// A node, its level, and the length of the stream if the node holds that stream's end, else 0.
/// Data beyond the end is not needed, so an equal node elsewhere may need more.
type NodeKey = (Fingerprint, u8, u64);

/// One chain of checkpoints, oldest first.
#[derive(Debug, Default)]
pub struct Passed {
    extents: Rolling,
    seen: HashSet<NodeKey>,
}

impl Passed {
    /// Finds the chunks that a checkpoint needs, except those below nodes that earlier ones also
    /// need. A caller that cannot read them must call [`Passed::forget`].
    ///
    /// # Errors
    /// `Damaged` if something is missing or wrong; it does not say where.
    pub fn next(
        &mut self,
        pool: &Pool,
        job: &JobName,
        manifest: &Manifest,
    ) -> Result<Vec<ReadItem>> {
        let Image { reference: image, segments, .. } = only_image(manifest)?;
        let mut wanted = match self.extents.step(pool, segments)? {
            Stepped::Further(extents) => extents,
            Stepped::Recreated => {
                self.seen.clear();
                Vec::new()
            }
        };
        match image.kind {
            ImageKind::Memory => self.memory(pool, image, &mut wanted)?,
            ImageKind::Files => self.files(pool, job, manifest, image, &mut wanted)?,
        }
        Ok(wanted)
    }

    /// Forgets all that is known, since a part of the last checkpoint is not whole.
    pub fn forget(&mut self) {
        *self = Passed::default();
    }

    fn files(
        &mut self,
        pool: &Pool,
        job: &JobName,
        manifest: &Manifest,
        image: &ImageRef,
        wanted: &mut Vec<ReadItem>,
    ) -> Result<()> {
        let listing = (image.catalog.root, LISTING, image.regions);
        let length = (image.catalog.root, LISTING - 1, image.catalog.bytes);
        if self.seen.contains(&listing) && self.seen.contains(&length) {
            return Ok(());
        }
        let opened = FilesImage::open(pool, job, manifest.clone(), 0)?;
        let (needed, faults) = opened.wanted();
        if let Some(fault) = faults.into_iter().next() {
            return Err(fault);
        }
        wanted.extend(needed);
        self.seen.extend([listing, length]);
        Ok(())
    }

    fn memory(&mut self, pool: &Pool, image: &ImageRef, wanted: &mut Vec<ReadItem>) -> Result<()> {
        let locator = self.extents.locator();
        let catalog = (image.catalog.root, CATALOG, image.catalog.bytes);
        let packed = (image.catalog.root, CATALOG - 1, image.packed.bytes);
        let mut roots = vec![image.packed];
        if !self.seen.contains(&catalog) || !self.seen.contains(&packed) {
            let read = read_catalog(pool, &mut &*locator, image.catalog)?;
            check_packed(&read, image.packed)?;
            roots.push(image.catalog);
            roots.extend(read.regions.iter().filter_map(|region| region.tree()));
            self.seen.extend([catalog, packed]);
        }
        let mut levels: BTreeMap<u8, Vec<(Fingerprint, u64)>> = BTreeMap::new();
        let mut see = |node: (Fingerprint, u64), level: u8, levels: &mut BTreeMap<u8, Vec<_>>| {
            if !node.0.is_zero() && self.seen.insert((node.0, level, node.1)) {
                levels.entry(level).or_default().push(node);
            }
        };
        for TreeRef { root, bytes } in &roots {
            see((*root, *bytes), TreeRef { root: *root, bytes: *bytes }.level(), &mut levels);
        }
        for level in (1..=LEVEL_MAX).rev() {
            let nodes = levels.remove(&level).unwrap_or_default();
            let fps: Vec<Fingerprint> = nodes.iter().map(|(fp, _)| *fp).collect();
            let read = read_inner(pool, locator, &fps, level)?;
            for (fp, end) in nodes {
                let inner = read.get(&fp).ok_or_else(|| Error::bug("a node was not read"))?;
                let last = (end > 0).then(|| last_child(end, level));
                for (slot, child) in inner.children.iter().enumerate() {
                    let end = if last == Some(slot) { end } else { 0 };
                    see((*child, end), level - 1, &mut levels);
                }
            }
        }
        let leaves = levels.remove(&0).unwrap_or_default();
        for batch in leaves.chunks(LEAF_BATCH) {
            let fps: Vec<Fingerprint> = batch.iter().map(|(fp, _)| *fp).collect();
            let read = read_leaves(pool, locator, &fps)?;
            for (fp, end) in batch {
                let leaf = read.get(fp).ok_or_else(|| Error::bug("a leaf was not read"))?;
                self.leaf(leaf, *end, wanted)?;
            }
        }
        Ok(())
    }

    fn leaf(&self, leaf: &Leaf, end: u64, wanted: &mut Vec<ReadItem>) -> Result<()> {
        let page = PAGE_BYTES as u64;
        let bytes = match end {
            0 => BLOCK_BYTES as u64,
            end => end - (blocks_of(end) - 1) * BLOCK_BYTES as u64,
        };
        for extent in leaf.page_extents() {
            let from = u64::from(extent.page) * page;
            let to = (from + u64::from(extent.pages) * page).min(bytes);
            let Some(fp) = extent.chunk.filter(|_| from < to) else { continue };
            let first = u32::from(extent.first) * PAGE_BYTES as u32;
            let pages = Pages::of_bytes(first, (to - from) as u32);
            let extent = self.extents.locator().find_pages(&fp, pages)?;
            if extent.slice.is_none() && u64::from(first) + (to - from) > u64::from(extent.length) {
                return Err(Error::damaged(format!("chunk {fp:?} is too short for its leaf")));
            }
            wanted.push(ReadItem { fp, extent });
        }
        Ok(())
    }
}

/// Returns the child of a node of `level` that holds the end of a stream of `bytes`.
fn last_child(bytes: u64, level: u8) -> usize {
    let span = (NODE_CHILDREN as u64).pow(u32::from(level) - 1);
    ((blocks_of(bytes) - 1) / span % NODE_CHILDREN as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_stream_is_in_one_child() {
        let block = BLOCK_BYTES as u64;
        for (bytes, level, child) in [
            (block + 1, 1, 1),
            (512 * block, 1, 511),
            (512 * block + 1, 2, 1),
            (512 * block + 1, 1, 0),
            (514 * block, 1, 1),
            (512 * 512 * block, 2, 511),
        ] {
            assert_eq!(last_child(bytes, level), child, "{bytes} bytes, level {level}");
        }
    }
}
