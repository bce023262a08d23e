//! Makes the next tree from the last one: new leaves in, changed inner nodes out, all else shared.

use super::{Inner, Node, PageTree, span_of};
use outlive_format::{InnerNode, NODE_CHILDREN, tree_level};
use outlive_types::{Fingerprint, Result, blocks_of};
use std::sync::Arc;

/// The new leaf of one block; `None` if all its pages have become zero.
pub type BlockEdit = (u64, Option<Arc<Node>>);

/// Makes the tree of a stream of `bytes` from `old` by `edits`, which are sorted by block, each
/// block once. `emit` stores each changed inner node and returns its fingerprint; children come
/// before parents.
///
/// # Errors
/// Errors of `emit`.
pub fn edit(
    old: &PageTree,
    bytes: u64,
    edits: &[BlockEdit],
    emit: &mut dyn FnMut(&InnerNode) -> Result<Fingerprint>,
) -> Result<PageTree> {
    let level = tree_level(bytes);
    let mut root = old.root.clone();
    // A longer stream gets levels above its old root; a shorter one keeps the first child.
    for above in old.level()..level {
        if let Some(node) = root.take() {
            root = Some(inner_node(vec![Some(node)], above + 1, emit)?);
        }
    }
    for _ in level..old.level() {
        root = match root.as_deref() {
            Some(Node::Inner(inner)) => inner.children.first().cloned().flatten(),
            _ => None,
        };
    }
    let mut editor = Editor { blocks: blocks_of(bytes), emit };
    let root = editor.node(root, level, 0, edits)?;
    Ok(PageTree { bytes, root })
}

fn inner_node(
    children: Vec<Option<Arc<Node>>>,
    level: u8,
    emit: &mut dyn FnMut(&InnerNode) -> Result<Fingerprint>,
) -> Result<Arc<Node>> {
    let fps = children
        .iter()
        .map(|child| child.as_ref().map_or(Fingerprint::ZERO, |node| node.fp()))
        .collect();
    let fp = emit(&InnerNode { level, children: fps })?;
    Ok(Arc::new(Node::Inner(Inner { fp, children })))
}

struct Editor<'a> {
    blocks: u64,
    emit: &'a mut dyn FnMut(&InnerNode) -> Result<Fingerprint>,
}

impl Editor<'_> {
    /// Returns the node at `level` whose first block is `first`, after `edits`, all of which it
    /// spans.
    fn node(
        &mut self,
        old: Option<Arc<Node>>,
        level: u8,
        first: u64,
        edits: &[BlockEdit],
    ) -> Result<Option<Arc<Node>>> {
        if first >= self.blocks {
            return Ok(None);
        }
        if level == 0 {
            return Ok(match edits {
                [(_, leaf)] => leaf.clone(),
                _ => old,
            });
        }
        let span = span_of(level - 1);
        let old_children: &[Option<Arc<Node>>] = match old.as_deref() {
            Some(Node::Inner(inner)) => &inner.children,
            _ => &[],
        };
        let slots = (self.blocks - first).div_ceil(span).min(NODE_CHILDREN as u64) as usize;
        // Only the end of the stream can cut a node; elsewhere, without edits nothing changes.
        if edits.is_empty() && old_children.len() < slots {
            return Ok(old);
        }
        let mut children = old_children[..old_children.len().min(slots)].to_vec();
        let mut changed = children.len() != old_children.len();
        let mut rest = edits;
        while let Some((block, _)) = rest.first() {
            let slot = ((block - first) / span) as usize;
            let end = first + (slot as u64 + 1) * span;
            let count = rest.partition_point(|(block, _)| *block < end);
            if children.len() <= slot {
                children.resize(slot + 1, None);
            }
            let new = self.node(
                children[slot].clone(),
                level - 1,
                first + slot as u64 * span,
                &rest[..count],
            )?;
            changed |= !same(&new, &children[slot]);
            children[slot] = new;
            rest = &rest[count..];
        }
        // The end of the stream may cut the last child further down.
        if children.len() == slots {
            let slot = slots - 1;
            let new =
                self.node(children[slot].clone(), level - 1, first + slot as u64 * span, &[])?;
            changed |= !same(&new, &children[slot]);
            children[slot] = new;
        }
        if !changed {
            return Ok(old);
        }
        while children.last().is_some_and(Option::is_none) {
            children.pop();
        }
        if children.is_empty() {
            return Ok(None);
        }
        inner_node(children, level, self.emit).map(Some)
    }
}

fn same(a: &Option<Arc<Node>>, b: &Option<Arc<Node>>) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) => Arc::ptr_eq(a, b) || a.fp() == b.fp(),
        _ => false,
    }
}
