//! A directory and its contents: no symbolic link leads out, no path is too long.

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, Stat, openat, openat2, statat};
use rustix::io::{Errno, Result};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Paths near or beyond the kernel's limit are walked in hops.
const HOP_BYTES_MAX: usize = 4000;

/// A directory that paths never leave.
#[derive(Debug)]
pub struct RootDir {
    dir: OwnedFd,
    /// True if the kernel has `openat2`, and permits it.
    resolves: bool,
}

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);

fn confined() -> ResolveFlags {
    ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS
}

impl RootDir {
    /// Opens a directory; links on the way to it are followed.
    pub fn open(path: &Path) -> Result<RootDir> {
        // Search permission is enough; a caller that lists it opens `.` for that.
        let dir = rustix::fs::open(path, DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let probe = openat2(&dir, ".", DIRECTORY | OFlags::CLOEXEC, Mode::empty(), confined());
        Ok(RootDir { dir, resolves: probe.is_ok() })
    }

    /// Returns the directory itself.
    pub fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Opens `path` (`.` is the directory itself).
    ///
    /// # Errors
    /// `LOOP` if there is a symbolic link on the way, the last part included.
    pub fn get(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mut hop_dir: Option<OwnedFd> = None;
        let mut rest = path;
        loop {
            let (hop, later) = split_hop(rest)?;
            let dir = hop_dir.as_ref().map_or(self.dir.as_fd(), AsFd::as_fd);
            if later.is_empty() {
                return self.step(dir, hop, flags);
            }
            let way = DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            hop_dir = Some(self.step(dir, hop, way)?);
            rest = later;
        }
    }

    fn step(&self, dir: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd> {
        if self.resolves {
            return openat2(dir, path, flags, Mode::empty(), confined());
        }
        let mut at: Option<OwnedFd> = None;
        let mut parts = path.split(|byte| *byte == b'/').peekable();
        while let Some(part) = parts.next() {
            if part == b".." {
                return Err(Errno::XDEV);
            }
            let from = at.as_ref().map_or(dir, AsFd::as_fd);
            let way = DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let flags = if parts.peek().is_some() { way } else { flags };
            at = Some(openat(from, part, flags, Mode::empty())?);
        }
        at.ok_or(Errno::NOENT)
    }

    /// Opens the directory that contains `path`, or will contain it.
    pub fn parent(&self, path: &[u8]) -> Result<OwnedFd> {
        self.get(parent_of(path), DIRECTORY)
    }

    /// Returns the properties of `path`; of a link, its own.
    pub fn stat(&self, path: &[u8]) -> Result<Stat> {
        let parent = self.parent(path)?;
        statat(parent, name_of(path), AtFlags::SYMLINK_NOFOLLOW)
    }
}

/// Returns the path of the directory that contains `path`.
pub fn parent_of(path: &[u8]) -> &[u8] {
    path.iter().rposition(|byte| *byte == b'/').map_or(b".", |at| &path[..at])
}

/// Returns the last part of `path`.
pub fn name_of(path: &[u8]) -> &[u8] {
    path.iter().rposition(|byte| *byte == b'/').map_or(path, |at| &path[at + 1..])
}

/// Splits a path into as many parts as one call takes, and the rest.
fn split_hop(path: &[u8]) -> Result<(&[u8], &[u8])> {
    if path.len() <= HOP_BYTES_MAX {
        return Ok((path, &[]));
    }
    let end = path[..HOP_BYTES_MAX].iter().rposition(|byte| *byte == b'/');
    let end = end.ok_or(Errno::NAMETOOLONG)?;
    Ok((&path[..end], &path[end + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn no_link_is_followed_with_or_without_openat2() {
        let dir = tempfile::tempdir().unwrap();
        let inside = dir.path().join("inside");
        fs::create_dir_all(inside.join("a/b")).unwrap();
        fs::write(inside.join("a/b/file"), "x").unwrap();
        fs::write(dir.path().join("secret"), "x").unwrap();
        symlink("..", inside.join("up")).unwrap();
        symlink("a", inside.join("sideways")).unwrap();
        symlink(dir.path().join("secret"), inside.join("a/out")).unwrap();
        let mut root = RootDir::open(&inside).unwrap();
        for resolves in [root.resolves, false] {
            root.resolves = resolves;
            assert!(root.get(b"a/b/file", OFlags::RDONLY).is_ok());
            assert!(root.get(b".", OFlags::RDONLY).is_ok());
            for path in ["up/secret", "sideways/b/file", "a/out", "../secret", "a/../../secret"] {
                assert!(root.get(path.as_bytes(), OFlags::RDONLY).is_err(), "{path}");
            }
            assert!(root.stat(b"a/out").is_ok(), "a link itself can be looked at");
        }
    }

    #[test]
    fn no_link_is_followed_where_a_long_path_is_split() {
        let dir = tempfile::tempdir().unwrap();
        let (inside, outside) = (dir.path().join("inside"), dir.path().join("outside"));
        fs::create_dir(&inside).unwrap();
        let part = "d".repeat(200);
        fs::create_dir_all(outside.join(&part)).unwrap();
        let mut root = RootDir::open(&inside).unwrap();
        // The link is the last part of the first hop.
        let above = vec![part.as_str(); HOP_BYTES_MAX / 201 - 1].join("/");
        fs::create_dir_all(inside.join(&above)).unwrap();
        symlink(&outside, inside.join(&above).join(&part)).unwrap();
        let path = format!("{above}/{part}/{part}");
        assert_eq!(split_hop(path.as_bytes()).unwrap().1, part.as_bytes());
        for resolves in [root.resolves, false] {
            root.resolves = resolves;
            assert!(root.get(path.as_bytes(), OFlags::RDONLY).is_err());
            assert!(root.stat(path.as_bytes()).is_err());
        }
    }

    #[test]
    fn paths_longer_than_the_kernel_takes_are_walked() {
        let dir = tempfile::tempdir().unwrap();
        let root = RootDir::open(dir.path()).unwrap();
        let part = "d".repeat(200);
        let mut path: Vec<u8> = Vec::new();
        for _ in 0..60 {
            let parent = if path.is_empty() { b".".to_vec() } else { path.clone() };
            let parent = root.get(&parent, OFlags::RDONLY | OFlags::DIRECTORY).unwrap();
            rustix::fs::mkdirat(&parent, part.as_str(), Mode::RWXU).unwrap();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(part.as_bytes());
        }
        assert!(path.len() > 12_000);
        assert!(root.stat(&path).is_ok());
        assert_eq!((parent_of(b"a/b"), name_of(b"a/b")), (&b"a"[..], &b"b"[..]));
        assert_eq!((parent_of(b"a"), name_of(b"a")), (&b"."[..], &b"a"[..]));
    }
}
