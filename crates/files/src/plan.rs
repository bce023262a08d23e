//! The plan of a put: all items, those that are unchanged since the put before, and those to read.

use super::file_error::Troubles;
use super::scan::{Root, Scan, Selection};
use outlive_format::{Content, Item, ItemKind, Piece, path_cmp};
use outlive_pool::Pool;
use outlive_store::read::files::Items;
use outlive_types::{Epoch, Error, Result};
use std::cmp::Ordering;
use std::sync::atomic::{AtomicBool, Ordering as Order};

/// Files to read that a plan lists by name.
const NAMED_MAX: usize = 1000;

/// Sum of a put's steps. The steps are made while the put runs, so that a plan of a million files
/// need not be in memory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PutPlan {
    /// Epoch of the put before; 0 for none.
    pub parent: Epoch,
    /// Number of all items.
    pub items: u64,
    /// Number of directories.
    pub directories: u64,
    /// Number of files; further names of a file do not count.
    pub files: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Number of unchanged files, which are not read.
    pub kept_files: u64,
    /// Bytes of these files.
    pub kept_bytes: u64,
    /// Number of files to read.
    pub read_files: u64,
    /// Bytes of these files.
    pub read_bytes: u64,
    /// The first thousand files to read, with their lengths.
    pub named: Vec<(Vec<u8>, u64)>,
    /// Number of items that patterns exclude.
    pub excluded: u64,
    /// Number of unfinished files of gets, which are omitted.
    pub leftovers: u64,
}

/// Work for an item.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ItemWork {
    /// None: the item is complete.
    List,
    /// Read the file; the recipe of the earlier file of that name, if it had one.
    Read(Option<Piece>),
}

/// An item and its work.
#[derive(Debug)]
pub struct Step {
    /// The item.
    pub item: Item,
    /// Number of its root.
    pub root: usize,
    /// Work to do.
    pub work: ItemWork,
}

/// Makes the steps by walking the directories and the listing before side by side.
pub struct Planner<'a> {
    pool: &'a Pool,
    scan: Scan<'a>,
    before: Option<Items>,
    /// The next item of the listing before.
    waiting: Option<Item>,
    stop: &'a AtomicBool,
    /// The sum so far.
    pub plan: PutPlan,
}

impl<'a> Planner<'a> {
    /// Returns a planner that continues from the listing `before`, if there is one.
    pub fn new(
        pool: &'a Pool,
        roots: &'a [Root],
        selection: &'a Selection,
        before: Option<(Epoch, Items)>,
        stop: &'a AtomicBool,
    ) -> Planner<'a> {
        let parent = before.as_ref().map_or(0, |(epoch, _)| *epoch);
        let plan = PutPlan { parent, ..PutPlan::default() };
        let before = before.map(|(_, items)| items);
        Planner { pool, scan: Scan::new(roots, selection), before, waiting: None, stop, plan }
    }

    /// Returns the next step; `None` after the last.
    ///
    /// # Errors
    /// `Retry` if the put was stopped.
    pub fn next(&mut self) -> Result<Option<Step>> {
        if self.stop.load(Order::Relaxed) {
            return Err(stopped());
        }
        let Some((mut item, root)) = self.scan.next() else { return Ok(None) };
        self.plan.items += 1;
        match item.kind {
            ItemKind::Directory => self.plan.directories += 1,
            ItemKind::File => return Ok(Some(self.file(item, root))),
            _ => {}
        }
        item.unsettled = false;
        Ok(Some(Step { item, root, work: ItemWork::List }))
    }

    fn file(&mut self, item: Item, root: usize) -> Step {
        let plan = &mut self.plan;
        plan.files += 1;
        plan.bytes = plan.bytes.saturating_add(item.bytes);
        let before = self.before(&item.path);
        let plan = &mut self.plan;
        match before {
            Some(before) if is_same(&before, &item) => {
                plan.kept_files += 1;
                plan.kept_bytes = plan.kept_bytes.saturating_add(item.bytes);
                // Times and all other values of `stat` are equal. Properties that `stat` does not
                // show have not changed either, or the ctime would differ.
                Step { item: before, root, work: ItemWork::List }
            }
            before => {
                plan.read_files += 1;
                plan.read_bytes = plan.read_bytes.saturating_add(item.bytes);
                if plan.named.len() < NAMED_MAX {
                    plan.named.push((item.path.clone(), item.bytes));
                }
                let recipe = before.and_then(|before| match before.content {
                    Content::Recipe(fp) => Some(Piece { fp, bytes: before.bytes }),
                    _ => None,
                });
                Step { item, root, work: ItemWork::Read(recipe) }
            }
        }
    }

    /// Returns the item of this path in the listing before.
    fn before(&mut self, path: &[u8]) -> Option<Item> {
        let items = self.before.as_mut()?;
        loop {
            let item = match self.waiting.take() {
                Some(item) => item,
                None => match items.next_item() {
                    Ok(Some(item)) => item,
                    Ok(None) => {
                        self.before = None;
                        return None;
                    }
                    Err(error) => {
                        self.pool.warn(format!(
                            "the listing of epoch {} cannot be read to its end, so files are read \
                             again: {error}",
                            self.plan.parent
                        ));
                        self.before = None;
                        return None;
                    }
                },
            };
            match path_cmp(&item.path, path) {
                Ordering::Less => {}
                Ordering::Equal => return Some(item),
                Ordering::Greater => {
                    self.waiting = Some(item);
                    return None;
                }
            }
        }
    }

    /// Takes the file errors so far.
    pub fn take_troubles(&mut self) -> Troubles {
        self.plan.excluded = self.scan.excluded;
        self.plan.leftovers = self.scan.leftovers;
        std::mem::take(&mut self.scan.troubles)
    }
}

/// Returns whether a file is the one that was read before, and has not changed since.
fn is_same(before: &Item, now: &Item) -> bool {
    before.kind == ItemKind::File
        && !before.unsettled
        && (before.bytes, before.mtime, before.ctime) == (now.bytes, now.mtime, now.ctime)
        && (before.device, before.inode) == (now.device, now.inode)
        && (before.mode, before.uid, before.gid) == (now.mode, now.uid, now.gid)
}

/// Returns the error of work that was stopped.
pub fn stopped() -> Error {
    Error::retry("stopped on request; nothing was committed")
}
