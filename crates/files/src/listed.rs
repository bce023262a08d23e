//! The paths of a list, which limit a put to them: below one directory, each relative to it.

use outlive_types::{Error, Result, shown_path};
use std::collections::BTreeSet;
use std::fs::symlink_metadata;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Paths relative to the directory of a put. A path of a directory means all that it contains.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Listed {
    paths: BTreeSet<Vec<u8>>,
}

/// Whether a list has an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnList {
    /// The list has the item, or a directory above it.
    Yes,
    /// The list has only items below it.
    Above,
    /// The list has nothing of it.
    No,
}

impl Listed {
    /// Reads the paths of a list, which `end` ends: a line feed, or a NUL. Empty ones do not count.
    /// An absolute path must begin with `dir`, the directory of the put.
    ///
    /// # Errors
    /// `Invalid` for a path that is not below `dir`, and for a list without paths.
    pub fn parse(list: &[u8], end: u8, dir: &Path) -> Result<Listed> {
        let mut paths = BTreeSet::new();
        let mut is_all = false;
        for path in list.split(|byte| *byte == end).filter(|path| !path.is_empty()) {
            let refuse = |why: &str| {
                Err(Error::invalid(format!(
                    "the list has \"{}\", which {why} {}: name paths below that directory",
                    shown_path(path),
                    dir.display()
                )))
            };
            if path.contains(&0) {
                return refuse("has a NUL, so it cannot be a path in");
            }
            let inside = match path.starts_with(b"/") {
                false => Path::new(std::ffi::OsStr::from_bytes(path)),
                true => match Path::new(std::ffi::OsStr::from_bytes(path)).strip_prefix(dir) {
                    Ok(inside) => inside,
                    Err(_) => return refuse("is not below"),
                },
            };
            let bytes = inside.as_os_str().as_bytes();
            let parts: Vec<&[u8]> = bytes
                .split(|byte| *byte == b'/')
                .filter(|part| !part.is_empty() && *part != b".")
                .collect();
            if parts.iter().any(|part| *part == b"..") {
                return refuse("goes up, and may leave");
            }
            is_all |= parts.is_empty();
            paths.insert(parts.join(&b'/'));
        }
        if paths.is_empty() {
            return Err(Error::invalid("the list of files has no path: there is nothing to put"));
        }
        if is_all {
            paths = BTreeSet::from([Vec::new()]);
        }
        Ok(Listed { paths })
    }

    /// Checks that at least one path is there.
    ///
    /// # Errors
    /// `Invalid` otherwise: a list that was made elsewhere would make an empty checkpoint.
    pub fn check_any(&self, dir: &Path) -> Result<()> {
        let is_there = |path: &Vec<u8>| {
            let path = Path::new(std::ffi::OsStr::from_bytes(path));
            symlink_metadata(dir.join(path)).is_ok()
        };
        match self.paths.iter().any(is_there) {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "none of the paths of the list is in {}: name the directory to which they are \
                 relative",
                dir.display()
            ))),
        }
    }

    /// Returns whether the list has an item, where no directory above it is on the list.
    pub fn of(&self, path: &[u8]) -> OnList {
        if self.paths.contains(path) || self.is_all() {
            return OnList::Yes;
        }
        let below = [path, b"/"].concat();
        match self.paths.range(below.clone()..).next() {
            Some(next) if next.starts_with(&below) => OnList::Above,
            _ => OnList::No,
        }
    }

    fn is_all(&self) -> bool {
        self.paths.first().is_some_and(Vec::is_empty)
    }

    /// Returns the paths that must be found.
    pub fn wanted(&self) -> BTreeSet<Vec<u8>> {
        if self.is_all() { BTreeSet::new() } else { self.paths.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(list: &[u8]) -> Result<Listed> {
        Listed::parse(list, b'\n', Path::new("/home/me"))
    }

    #[test]
    fn directories_above_listed_paths_are_on_the_way() {
        let listed = parsed(b"./a//b/\n\nc\n/home/me/d/e\na.x\n").unwrap();
        for (path, on_list) in [
            ("a", OnList::Above),
            ("a/b", OnList::Yes),
            ("a/bb", OnList::No),
            ("a.x", OnList::Yes),
            ("a.", OnList::No),
            ("c", OnList::Yes),
            ("d", OnList::Above),
            ("d/e", OnList::Yes),
            ("home", OnList::No),
        ] {
            assert_eq!(listed.of(path.as_bytes()), on_list, "{path}");
        }
        assert_eq!(listed.wanted().len(), 4);
    }

    #[test]
    fn the_directory_itself_means_everything() {
        for list in [&b".\na/b"[..], b"/home/me\nc", b"./\n"] {
            let listed = parsed(list).unwrap();
            assert_eq!((listed.of(b"x/y"), listed.wanted().len()), (OnList::Yes, 0));
        }
    }

    #[test]
    fn names_are_bytes_and_a_nul_may_end_them() {
        let list = b"a\nb\0\xFF\0# c \0";
        let listed = Listed::parse(list, 0, Path::new("/")).unwrap();
        for path in [&b"a\nb"[..], b"\xFF", b"# c "] {
            assert_eq!(listed.of(path), OnList::Yes);
        }
        assert!(parsed(b"a\0b\n").unwrap_err().message().contains("NUL"));
    }

    #[test]
    fn lists_that_cannot_be_meant_are_refused() {
        for (list, why) in [
            (&b""[..], "no path"),
            (b"\n\n", "no path"),
            (b"a/../b", "goes up"),
            (b"..", "goes up"),
            (b"/etc/passwd", "is not below /home/me"),
            (b"/home/menu", "is not below"),
        ] {
            let refused = parsed(list).unwrap_err();
            assert!(refused.message().contains(why), "{refused}");
        }
        let nowhere = Path::new("/nowhere at all");
        assert!(parsed(b"a\nb").unwrap().check_any(nowhere).is_err());
        assert!(parsed(b"proc\nb").unwrap().check_any(Path::new("/")).is_ok());
    }
}
