//! Finds items of a checkpoint by their paths, and reads only the chunks of the listing that hold
//! them.

use outlive_format::{Item, ItemKind, items_within, path_cmp};
use outlive_store::FilesImage;
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, Result};
use std::cmp::Ordering;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// Parts of the listing that stay decoded; most have 16 KiB in the pool.
const KEPT_MAX: usize = 64;
/// Parts that a walk reads at once.
const AHEAD: usize = 16;
/// Mode of a directory that the listing lacks.
const DIRECTORY_MODE: u32 = 0o755;
/// The path of the whole tree.
pub const ROOT: &[u8] = b".";

/// The tree of files of a checkpoint. A look-up reads about as many chunks of the listing as their
/// number has binary digits; they stay in memory as far as there is room.
pub struct FileTree {
    image: Arc<FilesImage>,
    /// Chunks of the listing that together begin and end between two items.
    spans: Vec<Range<usize>>,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// Path of the first item of each part that was read; `None` for a part without items.
    firsts: HashMap<usize, Option<Vec<u8>>>,
    /// Items of parts, the most recently used last.
    items: VecDeque<(usize, Arc<Vec<Item>>)>,
}

impl FileTree {
    /// Returns the tree of a checkpoint.
    pub fn new(image: FilesImage) -> FileTree {
        let mut spans = Vec::new();
        let mut start = 0;
        let chunks = image.listing_chunks();
        for (at, chunk) in chunks.iter().enumerate() {
            // The writer of a listing cuts within an item only where it would be longer than the
            // longest chunk, which is a power of two.
            let may_go_on = chunk.bytes.is_power_of_two() && at + 1 < chunks.len();
            if !may_go_on {
                spans.push(start..at + 1);
                start = at + 1;
            }
        }
        FileTree { image: Arc::new(image), spans, kept: Mutex::default() }
    }

    /// Returns the checkpoint.
    pub fn image(&self) -> &FilesImage {
        &self.image
    }

    /// Returns the number of parts into which the listing can be cut between items.
    pub fn spans(&self) -> usize {
        self.spans.len()
    }

    /// Returns the numbers of the chunks of a part.
    pub fn span_chunks(&self, span: usize) -> Range<usize> {
        self.spans[span].clone()
    }

    /// Returns the items of a part of the listing.
    ///
    /// # Errors
    /// `Damaged` if a chunk is missing or wrong.
    pub fn span(&self, span: usize) -> Result<Arc<Vec<Item>>> {
        self.load(span, 1)
    }

    fn load(&self, span: usize, count: usize) -> Result<Arc<Vec<Item>>> {
        if let Some(found) = self.kept.lock().find(span) {
            return Ok(found);
        }
        let last = (span + count).min(self.spans.len()) - 1;
        let first_chunk = self.spans[span].start;
        let chunks = &self.image.listing_chunks()[first_chunk..self.spans[last].end];
        let read = self.image.read(chunks).map_err(|error| self.context(error))?;
        let mut found = None;
        for number in (span..=last).rev() {
            let Range { start, end } = self.spans[number];
            let bytes = read[start - first_chunk..end - first_chunk].concat();
            let items = items_within(&bytes, number == 0).map_err(|error| self.context(error))?;
            let items = Arc::new(items);
            self.kept.lock().keep(number, items.clone());
            found = Some(items);
        }
        found.ok_or_else(|| Error::bug("no part of a listing was read"))
    }

    fn context(&self, error: Error) -> Error {
        self.image.context(error.context("the listing of files"))
    }

    /// Returns the path of the first item of a part. Only the last part may be without items.
    ///
    /// # Errors
    /// `Damaged` if a chunk is missing or wrong.
    pub fn first_of(&self, span: usize) -> Result<Option<Vec<u8>>> {
        let known = self.kept.lock().firsts.get(&span).cloned();
        known.map_or_else(|| Ok(self.span(span)?.first().map(|item| item.path.clone())), Ok)
    }

    /// Returns the part of the listing to which a path belongs, whether it is listed or not.
    ///
    /// # Errors
    /// `Damaged` if a chunk is missing or wrong.
    pub fn span_of(&self, path: &[u8]) -> Result<usize> {
        self.last_span(&|first| path_cmp(first, path) != Ordering::Greater)
    }

    fn last_span(&self, is_before: &dyn Fn(&[u8]) -> bool) -> Result<usize> {
        let (mut low, mut high) = (0, self.spans.len());
        while low < high {
            let middle = usize::midpoint(low, high);
            match self.first_of(middle)?.is_some_and(|first| is_before(&first)) {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        Ok(low.saturating_sub(1))
    }

    /// Returns a walk from the first item on that does not come before a place.
    fn seek(&self, is_before: &dyn Fn(&[u8]) -> bool) -> Result<Walk<'_>> {
        let span = self.last_span(is_before)?;
        let items = self.span(span)?;
        let at = items.partition_point(|item| is_before(&item.path));
        Ok(Walk { tree: self, span, items, at })
    }

    /// Finds an item. A directory that is not listed is found if an item in it is.
    ///
    /// # Errors
    /// `Damaged` if the listing is damaged.
    pub fn item(&self, path: &[u8]) -> Result<Option<Item>> {
        let span = self.span_of(path)?;
        let items = self.span(span)?;
        let at = items.partition_point(|item| path_cmp(&item.path, path) == Ordering::Less);
        let mut walk = Walk { tree: self, span, items, at };
        Ok(walk.next()?.and_then(|item| match item.path == path {
            true => Some(item),
            false => is_below(path, &item.path).then(|| directory(path)),
        }))
    }

    /// Returns the items directly in a directory, in their order.
    ///
    /// # Errors
    /// `Damaged` if the listing is damaged.
    pub fn children(&self, dir: &[u8]) -> Result<Vec<Item>> {
        let mut found: Vec<Item> = Vec::new();
        let mut walk = self.below(dir)?;
        let prefix = if dir == ROOT { 0 } else { dir.len() + 1 };
        while let Some(item) = walk.next()? {
            if !is_below(dir, &item.path) {
                break;
            }
            let name_end = item.path[prefix..].iter().position(|byte| *byte == b'/');
            let child = &item.path[..name_end.map_or(item.path.len(), |end| prefix + end)];
            let item = if name_end.is_none() { item.clone() } else { directory(child) };
            if item.kind == ItemKind::Directory {
                walk.pass_over(&item.path)?;
            }
            found.push(item);
        }
        Ok(found)
    }

    /// Returns a walk through the items below a directory, and beyond.
    ///
    /// # Errors
    /// `Damaged` if the listing is damaged.
    pub fn below(&self, dir: &[u8]) -> Result<Walk<'_>> {
        self.seek(&|it| path_cmp(it, dir) != Ordering::Greater)
    }
}

impl Kept {
    fn find(&mut self, span: usize) -> Option<Arc<Vec<Item>>> {
        let at = self.items.iter().position(|(number, _)| *number == span)?;
        let found = self.items.remove(at)?;
        let items = found.1.clone();
        self.items.push_back(found);
        Some(items)
    }

    fn keep(&mut self, span: usize, items: Arc<Vec<Item>>) {
        self.firsts.insert(span, items.first().map(|item| item.path.clone()));
        self.items.retain(|(number, _)| *number != span);
        self.items.push_back((span, items));
        if self.items.len() > KEPT_MAX {
            self.items.pop_front();
        }
    }
}

/// Goes through a listing from one of its items on.
pub struct Walk<'a> {
    tree: &'a FileTree,
    span: usize,
    items: Arc<Vec<Item>>,
    at: usize,
}

impl Walk<'_> {
    /// Returns the next item; `None` after the last.
    ///
    /// # Errors
    /// `Damaged` if the listing is damaged.
    pub fn next(&mut self) -> Result<Option<Item>> {
        while self.at == self.items.len() {
            if self.span + 1 == self.tree.spans.len() {
                return Ok(None);
            }
            self.span += 1;
            self.items = self.tree.load(self.span, AHEAD)?;
            self.at = 0;
        }
        self.at += 1;
        Ok(Some(self.items[self.at - 1].clone()))
    }

    /// Goes on behind the items below a directory, whose item was the last one.
    fn pass_over(&mut self, dir: &[u8]) -> Result<()> {
        self.at += self.items[self.at..].partition_point(|item| is_below(dir, &item.path));
        if self.at == self.items.len() && self.span + 1 < self.tree.spans.len() {
            *self = self
                .tree
                .seek(&|it| path_cmp(it, dir) != Ordering::Greater || is_below(dir, it))?;
        }
        Ok(())
    }
}

/// Returns whether a path is below a directory.
pub fn is_below(dir: &[u8], path: &[u8]) -> bool {
    match dir == ROOT {
        true => path != ROOT,
        false => path.strip_prefix(dir).is_some_and(|rest| rest.starts_with(b"/")),
    }
}

/// Returns a directory of which nothing is known but its path.
pub fn directory(path: &[u8]) -> Item {
    Item { mode: DIRECTORY_MODE, ..Item::new(path.to_vec(), ItemKind::Directory) }
}
