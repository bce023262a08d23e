//! Compares images of files: two listings, read side by side.

use crate::read::files::FilesImage;
use outlive_format::{Item, ItemKind, path_cmp};
use outlive_types::Result;
use std::cmp::Ordering;

/// Kind of a path's difference.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Only the second checkpoint has it.
    Added,
    /// Only the first has it.
    Removed,
    /// Both have it.
    Changed {
        /// Whether its kind, target or content differs.
        content: bool,
        /// Other differences: `mode`, `owner`, `mtime`, `attributes`.
        metadata: Vec<&'static str>,
    },
}

/// A path that differs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathDiff {
    /// The path.
    pub path: Vec<u8>,
    /// Kind of the item, in the second checkpoint if that has it.
    pub kind: ItemKind,
    /// Length in the first and the second; 0 where the path is missing, or no file.
    pub bytes: [u64; 2],
    /// The difference.
    pub change: Change,
}

/// Differences between two images of files.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FilesDiff {
    /// Paths that differ, in the order of the listing.
    pub paths: Vec<PathDiff>,
    /// Number of paths that are the same.
    pub same: u64,
}

/// Compares two checkpoints of files. Files have the same content if they were cut into the same
/// chunks; no content is read.
///
/// # Errors
/// `Damaged` if a listing is missing or wrong.
pub fn compare(a: &FilesImage, b: &FilesImage) -> Result<FilesDiff> {
    let mut diff = FilesDiff::default();
    if a.image().catalog == b.image().catalog {
        diff.same = a.image().regions;
        return Ok(diff);
    }
    let (mut before, mut after) = (a.items(), b.items());
    let (mut old, mut new) = (before.next_item()?, after.next_item()?);
    loop {
        let order = match (&old, &new) {
            (None, None) => return Ok(diff),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(old), Some(new)) => path_cmp(&old.path, &new.path),
        };
        let is = |item: &Option<Item>, here: bool| item.clone().filter(|_| here);
        let here = [is(&old, order.is_le()), is(&new, order.is_ge())];
        match compare_items(here) {
            Some(path) => diff.paths.push(path),
            None => diff.same += 1,
        }
        if order.is_le() {
            old = before.next_item()?;
        }
        if order.is_ge() {
            new = after.next_item()?;
        }
    }
}

fn compare_items(items: [Option<Item>; 2]) -> Option<PathDiff> {
    let length = |item: &Option<Item>| {
        let has_content = |item: &&Item| matches!(item.kind, ItemKind::File | ItemKind::Stream);
        item.as_ref().filter(has_content).map_or(0, |item| item.bytes)
    };
    let bytes = [length(&items[0]), length(&items[1])];
    let (item, change) = match items {
        [Some(old), None] => (old, Change::Removed),
        [None, Some(new)] => (new, Change::Added),
        [Some(old), Some(new)] => {
            let content = old.kind != new.kind
                || old.bytes != new.bytes
                || old.target != new.target
                || old.content != new.content;
            let metadata: Vec<&'static str> = [
                ("mode", old.mode != new.mode),
                ("owner", (old.uid, old.gid) != (new.uid, new.gid)),
                ("mtime", old.mtime != new.mtime),
                ("attributes", old.attributes != new.attributes),
            ]
            .into_iter()
            .filter_map(|(what, differs)| differs.then_some(what))
            .collect();
            if !content && metadata.is_empty() {
                return None;
            }
            (new, Change::Changed { content, metadata })
        }
        [None, None] => return None,
    };
    Some(PathDiff { path: item.path, kind: item.kind, bytes, change })
}
