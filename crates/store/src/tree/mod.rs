//! The page tree in memory: a persistent (copy-on-write) tree whose nodes are shared between the
//! existing checkpoint and the next one. It keeps the fingerprint of each node. Leaves also keep
//! the pack extents of their chain, so that a leaf that is not in memory can be read again.

mod edit;

pub use edit::{BlockEdit, edit};

use outlive_format::{Leaf, NODE_CHILDREN, TreeRef, tree_level};
use outlive_pool::PackExtent;
use outlive_types::{Fingerprint, Result, blocks_of};
use std::sync::Arc;

/// One stream's tree.
#[derive(Clone, Debug, Default)]
pub struct PageTree {
    /// Length of the stream.
    pub bytes: u64,
    /// The root; `None` when every page is zero.
    pub root: Option<Arc<Node>>,
}

/// A node.
#[derive(Debug)]
pub enum Node {
    /// Level 1 and above.
    Inner(Inner),
    /// One block.
    Leaf(LeafNode),
}

/// An inner node.
#[derive(Debug)]
pub struct Inner {
    /// Its fingerprint.
    pub fp: Fingerprint,
    /// Children; `None` where all pages are zero. Trailing `None`s are omitted.
    pub children: Vec<Option<Arc<Node>>>,
}

/// One element of a leaf's chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// Fingerprint of the stored leaf.
    pub fp: Fingerprint,
    /// Its pack extent.
    pub extent: PackExtent,
}

/// A leaf: its stored chain, and perhaps the merged leaf.
#[derive(Debug)]
pub struct LeafNode {
    /// The full leaf, then the delta leaves upon it, newest last; never empty.
    pub chain: Vec<Link>,
    /// The chain merged into one full leaf, if it is small enough to keep.
    pub kept: Option<Arc<Leaf>>,
    /// Length in bytes of the merged leaf, or a little more.
    pub merged_bytes: u32,
}

impl LeafNode {
    /// Returns the fingerprint of the newest element: the leaf's name in its parent.
    pub fn fp(&self) -> Fingerprint {
        self.chain.last().map_or(Fingerprint::ZERO, |link| link.fp)
    }
}

impl Node {
    /// Returns the node's fingerprint.
    pub fn fp(&self) -> Fingerprint {
        match self {
            Node::Inner(inner) => inner.fp,
            Node::Leaf(leaf) => leaf.fp(),
        }
    }
}

/// Returns the number of blocks that a node of `level` spans.
pub fn span_of(level: u8) -> u64 {
    (NODE_CHILDREN as u64).pow(u32::from(level))
}

impl PageTree {
    /// Returns the level of the root: 0 for a leaf.
    pub fn level(&self) -> u8 {
        tree_level(self.bytes)
    }

    /// Returns the reference for the catalog or manifest.
    pub fn reference(&self) -> TreeRef {
        let root = self.root.as_ref().map_or(Fingerprint::ZERO, |node| node.fp());
        TreeRef { bytes: self.bytes, root }
    }

    /// Returns the leaf of `block`; `None` where all pages are zero or the stream has ended.
    pub fn leaf(&self, block: u64) -> Option<&Arc<Node>> {
        let mut node = self.root.as_ref()?;
        for level in (1..=self.level()).rev() {
            let Node::Inner(inner) = node.as_ref() else { return None };
            let slot = block / span_of(level - 1) % NODE_CHILDREN as u64;
            node = inner.children.get(slot as usize)?.as_ref()?;
        }
        (block < blocks_of(self.bytes)).then_some(node)
    }

    /// Returns the same tree with new pack extents of its leaves. `find` returns the new extent of
    /// a link, `None` if it has not moved.
    ///
    /// # Errors
    /// Errors of `find`.
    pub fn relink(
        &self,
        find: &mut dyn FnMut(&Link) -> Result<Option<PackExtent>>,
    ) -> Result<PageTree> {
        let root = match &self.root {
            Some(root) => Some(relink(root, find)?.unwrap_or_else(|| root.clone())),
            None => None,
        };
        Ok(PageTree { bytes: self.bytes, root })
    }

    /// Calls `each` with every stored leaf and its block, in order.
    pub fn for_each_leaf<'a>(&'a self, each: &mut impl FnMut(u64, &'a LeafNode)) {
        fn walk<'a>(
            node: &'a Node,
            first: u64,
            level: u8,
            each: &mut impl FnMut(u64, &'a LeafNode),
        ) {
            match node {
                Node::Leaf(leaf) => each(first, leaf),
                Node::Inner(inner) => {
                    let span = span_of(level - 1);
                    for (slot, child) in inner.children.iter().enumerate() {
                        if let Some(child) = child {
                            walk(child, first + slot as u64 * span, level - 1, each);
                        }
                    }
                }
            }
        }
        if let Some(root) = &self.root {
            walk(root, 0, self.level(), each);
        }
    }
}

/// Returns a node with relinked leaves; `None` if nothing below it has moved.
fn relink(
    node: &Arc<Node>,
    find: &mut dyn FnMut(&Link) -> Result<Option<PackExtent>>,
) -> Result<Option<Arc<Node>>> {
    let mut moved = false;
    let relinked = match node.as_ref() {
        Node::Leaf(leaf) => {
            let mut chain = leaf.chain.clone();
            for link in &mut chain {
                if let Some(extent) = find(link)? {
                    link.extent = extent;
                    moved = true;
                }
            }
            let (kept, merged_bytes) = (leaf.kept.clone(), leaf.merged_bytes);
            Node::Leaf(LeafNode { chain, kept, merged_bytes })
        }
        Node::Inner(inner) => {
            let mut children = inner.children.clone();
            for child in children.iter_mut().flatten() {
                if let Some(new) = relink(child, find)? {
                    *child = new;
                    moved = true;
                }
            }
            Node::Inner(Inner { fp: inner.fp, children })
        }
    };
    Ok(moved.then(|| Arc::new(relinked)))
}
