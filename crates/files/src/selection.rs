//! Selects items of a checkpoint.

use outlive_format::{Item, ItemKind};
use outlive_store::FilesImage;
use outlive_store::read::files::Items;
use outlive_types::{Error, Result, shown_path};
use std::collections::{BTreeSet, HashMap};

/// Paths, each with its contents; an empty list selects everything.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Selection {
    paths: BTreeSet<Vec<u8>>,
}

/// Result of a selection for an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathMatch {
    /// The item is selected.
    Yes,
    /// The item is a directory above a selected one.
    OnTheWay,
    /// The item is not selected.
    No,
}

impl Selection {
    /// Returns a selection of paths that a user writes: `./` at the start and `/` at the end do not
    /// matter.
    ///
    /// # Errors
    /// `Invalid` for paths that are absolute or have `..` in them.
    pub fn new(paths: impl IntoIterator<Item = Vec<u8>>) -> Result<Selection> {
        let mut chosen = BTreeSet::new();
        for path in paths {
            let parts = || path.split(|byte| *byte == b'/');
            if path.is_empty() || path.starts_with(b"/") || parts().any(|part| part == b"..") {
                return Err(Error::invalid(format!(
                    "\"{}\" cannot be a path in a checkpoint: they are relative and go nowhere up",
                    path.escape_ascii()
                )));
            }
            let plain: Vec<&[u8]> = parts().filter(|p| !p.is_empty() && *p != b".").collect();
            if plain.is_empty() {
                return Ok(Selection::default());
            }
            chosen.insert(plain.join(&b'/'));
        }
        Ok(Selection { paths: chosen })
    }

    /// Returns true if everything is selected.
    pub fn is_all(&self) -> bool {
        self.paths.is_empty()
    }

    /// Returns the result for an item.
    pub fn of(&self, item: &Item) -> PathMatch {
        let path = &item.path[..];
        let ends = (0..path.len()).filter(|at| path[*at] == b'/').chain([path.len()]);
        if self.is_all() || ends.into_iter().any(|end| self.paths.contains(&path[..end])) {
            return PathMatch::Yes;
        }
        let below = [path, b"/"].concat();
        let next = || self.paths.range(below.clone()..).next();
        match item.kind == ItemKind::Directory && next().is_some_and(|it| it.starts_with(&below)) {
            true => PathMatch::OnTheWay,
            false => PathMatch::No,
        }
    }
}

/// The selected items, in the order of the listing except for files that are selected only under a
/// further name.
pub struct ChosenItems {
    items: Items,
    choice: Selection,
    /// Files that are not selected under their first name, with their first selected name.
    moved: HashMap<Vec<u8>, Vec<u8>>,
}

impl ChosenItems {
    /// Returns the items of a checkpoint.
    ///
    /// # Errors
    /// `Invalid` if one of the paths is missing; `Damaged` if the listing is.
    pub fn new(checkpoint: &FilesImage, choice: &Selection) -> Result<ChosenItems> {
        let mut moved = HashMap::new();
        if !choice.is_all() {
            let mut missing = choice.paths.clone();
            let mut items = checkpoint.items();
            while let Some(item) = items.next_item()? {
                missing.remove(&item.path);
                let wanted = choice.of(&item) == PathMatch::Yes;
                if wanted && item.kind == ItemKind::HardLink {
                    let target = Item::new(item.target, ItemKind::File);
                    if choice.of(&target) != PathMatch::Yes {
                        moved.entry(target.path).or_insert(item.path);
                    }
                }
            }
            if let Some(missing) = missing.first() {
                return Err(Error::invalid(format!(
                    "it has no \"{}\"; `{}` lists what it has",
                    shown_path(missing),
                    checkpoint.pool().command(
                        "show",
                        &[&format!("{}@{}", checkpoint.job().as_str(), checkpoint.epoch())]
                    )
                )));
            }
        }
        Ok(ChosenItems { items: checkpoint.items(), choice: choice.clone(), moved })
    }

    /// Returns whether items come in the order of the listing, each after its directory.
    pub fn is_in_order(&self) -> bool {
        self.moved.is_empty()
    }

    /// Returns the next item, and whether it is selected itself.
    ///
    /// # Errors
    /// `Damaged` if the listing is damaged.
    pub fn next(&mut self) -> Result<Option<(Item, PathMatch)>> {
        while let Some(mut item) = self.items.next_item()? {
            let chosen = self.choice.of(&item);
            match chosen {
                PathMatch::OnTheWay => return Ok(Some((item, chosen))),
                PathMatch::Yes => {
                    if item.kind == ItemKind::HardLink
                        && let Some(first) = self.moved.get(&item.target)
                    {
                        if *first == item.path {
                            continue;
                        }
                        item.target.clone_from(first);
                    }
                    return Ok(Some((item, chosen)));
                }
                PathMatch::No => {
                    if let Some(first) = self.moved.get(&item.path) {
                        item.path.clone_from(first);
                        return Ok(Some((item, PathMatch::Yes)));
                    }
                }
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_choose_the_items_below_them() {
        let paths = ["./a/b/", "c"].map(|path| path.as_bytes().to_vec());
        let choice = Selection::new(paths).unwrap();
        for (path, kind, chosen) in [
            ("a", ItemKind::Directory, PathMatch::OnTheWay),
            ("a", ItemKind::File, PathMatch::No),
            ("a/b", ItemKind::Directory, PathMatch::Yes),
            ("a/b/x", ItemKind::File, PathMatch::Yes),
            ("a/bx", ItemKind::File, PathMatch::No),
            ("c", ItemKind::File, PathMatch::Yes),
            ("cc", ItemKind::File, PathMatch::No),
            (".", ItemKind::Directory, PathMatch::No),
        ] {
            let item = Item::new(path.as_bytes().to_vec(), kind);
            assert_eq!(choice.of(&item), chosen, "{path}");
        }
        for path in ["/etc", "a/../b", ".."] {
            assert!(Selection::new([path.as_bytes().to_vec()]).is_err(), "{path}");
        }
        assert!(Selection::new([b"./".to_vec()]).unwrap().is_all());
    }
}
