//! The picture of a tree during an edit: the stored tree, and above it the changed paths.

use super::{Failure, Refusal, RefusedBy};
use crate::tree::{FileTree, ROOT, directory, is_below};
use outlive_format::{FileTime, Item, ItemKind, Piece, path_cmp};
use outlive_types::{Error, Result};
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

/// A path, in the order of a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place(pub Vec<u8>);

impl Ord for Place {
    fn cmp(&self, other: &Place) -> Ordering {
        path_cmp(&self.0, &other.0)
    }
}

impl PartialOrd for Place {
    fn partial_cmp(&self, other: &Place) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A part of the content of a changed file.
#[derive(Clone, Debug)]
pub enum Part {
    /// The content of a stored file.
    Kept(Box<Item>),
    /// The source of the change with this number.
    Source(usize),
}

/// The item that a path has after the edit.
#[derive(Clone, Debug)]
pub struct Node {
    /// The item; its content and length count only without parts.
    pub item: Item,
    /// The parts of a content that is not stored yet.
    pub parts: Vec<Part>,
    /// The recipe of the file that it replaces, most of whose recipes may occur again.
    pub before: Option<Piece>,
}

impl From<Item> for Node {
    fn from(item: Item) -> Node {
        Node { item, parts: Vec::new(), before: None }
    }
}

/// The changed paths, each with its new item; `None` is removed.
pub type Changed = BTreeMap<Place, Option<Item>>;

/// The tree as the changes so far make it.
pub struct Picture<'a> {
    tree: Option<&'a FileTree>,
    changed: BTreeMap<Place, Option<Node>>,
    /// Files of the stored tree with further names, each with these names in their order.
    links: HashMap<Vec<u8>, Vec<Vec<u8>>>,
    /// The time of all changes.
    now: FileTime,
    owner: (u32, u32),
}

/// An edit marks the root of a tree without further names of files: it has no device and no inode,
/// which no directory of a file system lacks.
fn has_no_links(root: &Item) -> bool {
    (root.device, root.inode) == (0, 0)
}

impl<'a> Picture<'a> {
    /// Returns the picture of a tree without changes. Searches it for further names of files,
    /// unless it is known to have none.
    ///
    /// # Errors
    /// `Damaged` if the listing is damaged.
    pub fn new(
        tree: Option<&'a FileTree>,
        now: FileTime,
        owner: (u32, u32),
    ) -> Result<Picture<'a>> {
        let mut picture =
            Picture { tree, changed: BTreeMap::new(), links: HashMap::new(), now, owner };
        let Some(tree) = tree else { return Ok(picture) };
        let root = tree.span(0)?.first().filter(|item| item.path == ROOT).cloned();
        if root.as_ref().is_some_and(has_no_links) {
            return Ok(picture);
        }
        let mut items = tree.image().items();
        let mut is_empty = true;
        while let Some(item) = items.next_item().map_err(|error| tree.image().context(error))? {
            is_empty = false;
            if item.kind == ItemKind::HardLink {
                picture.links.entry(item.target).or_default().push(item.path);
            }
        }
        if !is_empty && picture.links.is_empty() {
            picture.mark_root(root);
        }
        Ok(picture)
    }

    /// Marks the root, so that later edits search for no further names.
    fn mark_root(&mut self, root: Option<Item>) {
        let root = root.unwrap_or_else(|| self.new_item(ROOT, ItemKind::Directory));
        let item = Item { device: 0, inode: 0, ..root };
        self.changed.insert(Place(ROOT.to_vec()), Some(item.into()));
    }

    /// Returns a new item.
    pub fn new_item(&self, path: &[u8], kind: ItemKind) -> Item {
        let (uid, gid) = self.owner;
        let mode = if kind == ItemKind::Directory { directory(path).mode } else { 0o644 };
        let (mtime, ctime) = (self.now, self.now);
        Item { mode, uid, gid, mtime, ctime, ..Item::new(path.to_vec(), kind) }
    }

    /// Returns whether no change has had an effect. A mark alone is not worth a checkpoint.
    pub fn is_unchanged(&self) -> bool {
        let is_mark = |place: &Place, node: &Option<Node>| {
            let is_there = || self.tree.is_some_and(|tree| tree.image().listed_items() > 0);
            place.0 == ROOT && node.is_some() && is_there()
        };
        self.changed.iter().all(|(place, node)| is_mark(place, node))
    }

    /// Returns what a path has.
    ///
    /// # Errors
    /// `Damaged` if the listing is damaged.
    pub fn look(&self, path: &[u8]) -> Result<Option<Node>> {
        if let Some(node) = self.changed.get(&Place(path.to_vec())) {
            return Ok(node.clone());
        }
        let found = self.tree.map(|tree| tree.item(path)).transpose()?.flatten();
        Ok(found.map(Node::from))
    }

    /// Sets what a path has.
    pub fn set(&mut self, path: &[u8], node: Option<Node>) {
        self.changed.insert(Place(path.to_vec()), node);
    }

    /// Returns the first `max` paths below a directory, in their order.
    ///
    /// # Errors
    /// `Damaged` if the listing is damaged.
    pub fn below(&self, dir: &[u8], max: usize) -> Result<Vec<Vec<u8>>> {
        let mut found = Vec::new();
        let here = self.changed.range(Place(dir.to_vec())..).skip_while(|(it, _)| it.0 == dir);
        let mut here = here.take_while(|(it, _)| is_below(dir, &it.0)).peekable();
        let mut walk = self.tree.map(|tree| tree.below(dir)).transpose()?;
        let mut stored = || -> Result<Option<Vec<u8>>> {
            let next = walk.as_mut().map(|walk| walk.next()).transpose()?.flatten();
            Ok(next.map(|item| item.path).filter(|path| is_below(dir, path)))
        };
        let mut next = stored()?;
        while found.len() < max {
            let order = match (&next, here.peek()) {
                (None, None) => break,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(path), Some((place, _))) => path_cmp(path, &place.0),
            };
            let there = if order == Ordering::Greater { None } else { next.take() };
            if there.is_some() {
                next = stored()?;
            }
            match if order == Ordering::Less { None } else { here.next() } {
                Some((place, Some(_))) => found.push(place.0.clone()),
                Some((_, None)) => {}
                None => found.extend(there),
            }
        }
        Ok(found)
    }

    /// Gives each name of a file an item of its own, if the file of this path has several: before
    /// one of them changes.
    ///
    /// # Errors
    /// `Damaged` if the listing is damaged.
    pub fn part_links(&mut self, path: &[u8]) -> Result<()> {
        if self.links.is_empty() {
            return Ok(());
        }
        let is_link = |names: &Vec<Vec<u8>>| names.iter().any(|name| name == path);
        let of = |(file, names): (&Vec<u8>, &Vec<Vec<u8>>)| {
            (file == path || is_link(names)).then(|| file.clone())
        };
        let Some(file) = self.links.iter().find_map(of) else { return Ok(()) };
        let names = self.links.remove(&file).unwrap_or_default();
        let tree = self.tree.ok_or_else(|| Error::bug("links without a tree"))?;
        let item = tree.item(&file)?.filter(|item| item.kind == ItemKind::File);
        let Some(item) = item else {
            let error = Error::damaged("a further name in the listing has no file before it");
            return Err(tree.image().context(error));
        };
        for name in names {
            let item = Item { path: name.clone(), ..item.clone() };
            self.set(&name, Some(item.into()));
        }
        if self.links.is_empty() {
            let root = self.look(ROOT)?.map(|node| node.item);
            self.mark_root(root);
        }
        Ok(())
    }

    /// Makes a directory and those above it, as far as they are missing.
    ///
    /// # Errors
    /// Refused if one of them is no directory; errors of the listing.
    pub fn make_directory(&mut self, path: &[u8]) -> std::result::Result<(), Failure> {
        let ends = (0..path.len()).filter(|at| path[*at] == b'/').chain([path.len()]);
        let above = ends.map(|end| path[..end].to_vec());
        for dir in [ROOT.to_vec()].into_iter().chain(above) {
            match self.look(&dir)? {
                Some(node) if node.item.kind == ItemKind::Directory => {}
                Some(_) => return refuse(RefusedBy::NotDirectory, &dir),
                None => {
                    let mut item = self.new_item(&dir, ItemKind::Directory);
                    // A new root above stored files with further names must not deny them.
                    item.inode = u64::from(dir == ROOT && !self.links.is_empty());
                    self.set(&dir, Some(item.into()));
                }
            }
        }
        Ok(())
    }

    /// Returns the time of the changes.
    pub fn now(&self) -> FileTime {
        self.now
    }

    /// Returns the changed files whose content is not stored yet, in their order.
    pub fn waiting(&self) -> impl Iterator<Item = &Node> {
        self.changed.values().flatten().filter(|node| !node.parts.is_empty())
    }

    /// Returns the changed paths, each with its new node; `None` is removed.
    pub fn into_changed(self) -> BTreeMap<Place, Option<Node>> {
        self.changed
    }
}

/// Returns the refusal of a change.
///
/// # Errors
/// Always.
pub fn refuse<T>(by: RefusedBy, path: &[u8]) -> std::result::Result<T, Failure> {
    Err(Failure::Refused(Refusal { by, path: path.to_vec() }))
}
