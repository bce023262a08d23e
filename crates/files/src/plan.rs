//! The plan of a put: what there is, what can be taken over from the put before, what must be read.

use super::file_error::Troubles;
use super::scan::{Root, Scan, Selection};
use outlive_format::{Content, Item, ItemKind, Piece, path_cmp};
use outlive_pool::Pool;
use outlive_store::read::files::Items;
use outlive_types::{Epoch, Error, Result};
use std::cmp::Ordering;
use std::sync::atomic::{AtomicBool, Ordering as Order};

/// Files to be read that a plan names.
const NAMED_MAX: usize = 1000;

/// What a put will do. Its steps are made while it runs, so that a plan of a million files need not
/// lie in memory; this is their sum.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PutPlan {
    /// The epoch it takes over from; 0 for none.
    pub parent: Epoch,
    /// Everything with a name.
    pub items: u64,
    /// How many of them are directories.
    pub directories: u64,
    /// How many are files; further names of one do not count.
    pub files: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Files that have not changed, and are not read.
    pub kept_files: u64,
    /// Their bytes.
    pub kept_bytes: u64,
    /// Files to be read.
    pub read_files: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// The first thousand of them, with their lengths.
    pub named: Vec<(Vec<u8>, u64)>,
    /// Left out by patterns.
    pub excluded: u64,
    /// Left out since a get has not finished them, or never will.
    pub leftovers: u64,
}

/// What is to be done with an item.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Work {
    /// Nothing: all of it is in the item.
    List,
    /// Its file is to be read; the recipe that the earlier file of that name had, if it had one.
    Read(Option<Piece>),
}

/// An item and what is to be done with it.
#[derive(Debug)]
pub struct Step {
    /// The item.
    pub item: Item,
    /// Number of its root.
    pub root: usize,
    /// What is to be done.
    pub work: Work,
}

/// Makes the steps, by going through the directories and the listing before side by side.
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
    /// A planner that takes over from `before`, if there is one.
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

    /// The next step; `None` behind the last.
    ///
    /// # Errors
    /// `Retry` if it is to stop.
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
        Ok(Some(Step { item, root, work: Work::List }))
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
                // Times and all else that `stat` tells are equal; what it does not tell has not
                // changed either, or the ctime would have.
                Step { item: before, root, work: Work::List }
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
                Step { item, root, work: Work::Read(recipe) }
            }
        }
    }

    /// The item of this path in the listing before.
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
                             anew: {error}",
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

    /// What could not be looked at so far, taken.
    pub fn take_troubles(&mut self) -> Troubles {
        self.plan.excluded = self.scan.excluded;
        self.plan.leftovers = self.scan.leftovers;
        std::mem::take(&mut self.scan.troubles)
    }
}

/// Whether a file is the one that was read before, and has not changed since.
fn is_same(before: &Item, now: &Item) -> bool {
    before.kind == ItemKind::File
        && !before.unsettled
        && (before.bytes, before.mtime, before.ctime) == (now.bytes, now.mtime, now.ctime)
        && (before.device, before.inode) == (now.device, now.inode)
        && (before.mode, before.uid, before.gid) == (now.mode, now.uid, now.gid)
}

/// The error of work that was told to stop.
pub fn stopped() -> Error {
    Error::retry("stopped on request; nothing was committed")
}
