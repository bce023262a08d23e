//! Applies changes to the picture of a tree, each as a file system would.

use super::picture::{Node, Part, Picture, refuse};
use super::sources::recipe_of;
use super::{Change, Failure, RefusedBy};
use crate::tree::{ROOT, is_below};
use outlive_format::{Item, ItemKind};

type Outcome = Result<(), Failure>;

impl Picture<'_> {
    /// Applies all changes, one after the other.
    ///
    /// # Errors
    /// Refused at the first one that the tree does not permit; errors of the listing.
    pub fn apply(&mut self, changes: &[Change]) -> Outcome {
        for (number, change) in changes.iter().enumerate() {
            match change {
                Change::Write { path, exclusive, .. } => self.write(path, number, *exclusive)?,
                Change::Append { path, .. } => self.append(path, number)?,
                Change::MakeDirectory { path, exist_ok } => self.make(path, *exist_ok)?,
                Change::Remove { path, recursive } => self.remove(path, *recursive)?,
                Change::Rename { from, to } => self.rename(from, to)?,
                Change::Copy { from, to } => self.copy(from, to)?,
            }
        }
        Ok(())
    }

    fn write(&mut self, path: &[u8], number: usize, exclusive: bool) -> Outcome {
        let before = self.place_for_file(path)?;
        if exclusive && before.is_some() {
            return refuse(RefusedBy::Exists, path);
        }
        self.part_links(path)?;
        let mut item = self.new_item(path, ItemKind::File);
        let (parts, mut recipe) = (vec![Part::Source(number)], None);
        if let Some(before) = before.filter(|before| before.item.kind == ItemKind::File) {
            item.mode = before.item.mode;
            recipe = before.before.or_else(|| recipe_of(&before.item));
        }
        self.set(path, Some(Node { item, parts, before: recipe }));
        Ok(())
    }

    fn append(&mut self, path: &[u8], number: usize) -> Outcome {
        self.part_links(path)?;
        let Some(node) = self.place_for_file(path)? else {
            return self.write(path, number, false);
        };
        let Node { item, mut parts, before } = node;
        if !matches!(item.kind, ItemKind::File | ItemKind::Stream) {
            return refuse(RefusedBy::Exists, path);
        }
        if parts.is_empty() {
            parts.push(Part::Kept(Box::new(item.clone())));
        }
        parts.push(Part::Source(number));
        let item = self.changed_now(item);
        self.set(path, Some(Node { item, parts, before }));
        Ok(())
    }

    /// Returns a file as one that no file system has: the next put reads it again.
    fn changed_now(&self, item: Item) -> Item {
        let (mtime, ctime) = (self.now(), self.now());
        Item { mtime, ctime, device: 0, inode: 0, holes: false, unsettled: false, ..item }
    }

    fn make(&mut self, path: &[u8], exist_ok: bool) -> Outcome {
        check(path)?;
        match self.look(path)? {
            Some(node) if exist_ok && node.item.kind == ItemKind::Directory => Ok(()),
            Some(_) => refuse(RefusedBy::Exists, path),
            None => self.make_directory(path),
        }
    }

    fn remove(&mut self, path: &[u8], recursive: bool) -> Outcome {
        check(path)?;
        let Some(node) = self.look(path)? else { return refuse(RefusedBy::Missing, path) };
        if node.item.kind == ItemKind::Directory {
            let most = if recursive { usize::MAX } else { 1 };
            let below = self.below(path, most)?;
            if !recursive && !below.is_empty() {
                return refuse(RefusedBy::NotEmpty, path);
            }
            for path in below {
                self.part_links(&path)?;
                self.set(&path, None);
            }
        }
        self.part_links(path)?;
        self.set(path, None);
        Ok(())
    }

    fn rename(&mut self, from: &[u8], to: &[u8]) -> Outcome {
        check(from)?;
        let Some(node) = self.look(from)? else { return refuse(RefusedBy::Missing, from) };
        if from == to {
            return Ok(());
        }
        if from == ROOT || is_below(from, to) {
            return refuse(RefusedBy::Impossible, to);
        }
        if node.item.kind != ItemKind::Directory {
            self.place_for_file(to)?;
            self.part_links(to)?;
            return self.move_item(from, to);
        }
        check(to)?;
        match self.look(to)? {
            Some(there) if there.item.kind != ItemKind::Directory => {
                return refuse(RefusedBy::NotDirectory, to);
            }
            Some(_) if !self.below(to, 1)?.is_empty() => return refuse(RefusedBy::NotEmpty, to),
            _ => {}
        }
        self.make_above(to)?;
        for path in self.below(from, usize::MAX)? {
            let moved = [to, &path[from.len()..]].concat();
            self.move_item(&path, &moved)?;
        }
        self.move_item(from, to)
    }

    fn move_item(&mut self, from: &[u8], to: &[u8]) -> Outcome {
        self.part_links(from)?;
        if let Some(mut node) = self.look(from)? {
            to.clone_into(&mut node.item.path);
            self.set(to, Some(node));
        }
        self.set(from, None);
        Ok(())
    }

    fn copy(&mut self, from: &[u8], to: &[u8]) -> Outcome {
        check(from)?;
        self.part_links(from)?;
        let Some(node) = self.look(from)? else { return refuse(RefusedBy::Missing, from) };
        if node.item.kind == ItemKind::Directory {
            return refuse(RefusedBy::IsDirectory, from);
        }
        if from == to {
            return Ok(());
        }
        self.place_for_file(to)?;
        self.part_links(to)?;
        let holes = node.item.holes;
        let item = Item { path: to.to_vec(), holes, ..self.changed_now(node.item) };
        self.set(to, Some(Node { item, ..node }));
        Ok(())
    }

    /// Makes the directories above a file, and returns what has its path.
    fn place_for_file(&mut self, path: &[u8]) -> Result<Option<Node>, Failure> {
        check(path)?;
        let there = self.look(path)?;
        if path == ROOT || there.as_ref().is_some_and(|it| it.item.kind == ItemKind::Directory) {
            return refuse(RefusedBy::IsDirectory, path);
        }
        self.make_above(path)?;
        Ok(there)
    }

    fn make_above(&mut self, path: &[u8]) -> Outcome {
        let above = path.iter().rposition(|byte| *byte == b'/');
        self.make_directory(above.map_or(ROOT, |end| &path[..end]))
    }
}

/// Checks that an item can have a path.
fn check(path: &[u8]) -> Outcome {
    let plain = |part: &[u8]| !matches!(part, b"" | b"." | b"..");
    match path == ROOT || !path.contains(&0) && path.split(|byte| *byte == b'/').all(plain) {
        true => Ok(()),
        false => refuse(RefusedBy::Impossible, path),
    }
}
