//! Makes files, directories and links below a directory, and never anywhere else.

use super::attributes;
use super::beneath::{Beneath, name_of, parent_of};
use outlive_format::{FileTime, Item, ItemKind};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, chmod, chownat, fchmod,
    fchown, fstat, futimens, linkat, mkdirat, mknodat, openat, renameat, statat, symlinkat,
    unlinkat, utimensat,
};
use rustix::io::{Errno, Result};
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Directories kept open, since what is made next is mostly in one of them.
const PARENTS_MAX: usize = 64;
const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;

/// What is made, and how.
pub struct Placer {
    beneath: Beneath,
    /// Take the place of what is there.
    pub overwrite: bool,
    is_root: bool,
    parents: Mutex<VecDeque<(Vec<u8>, Arc<OwnedFd>)>>,
    /// Makes temporary names differ.
    count: AtomicU64,
}

/// A name under which something is made: its own, or a temporary one to be renamed.
#[derive(Debug)]
pub struct Name {
    dir: Arc<OwnedFd>,
    own: Vec<u8>,
    temporary: Option<Vec<u8>>,
    /// Device and inode of what was made.
    identity: (u64, u64),
}

impl Name {
    fn now(&self) -> &[u8] {
        self.temporary.as_deref().unwrap_or(&self.own)
    }
}

/// What could not be set, in words.
pub type Refusals = Vec<String>;

fn refused(what: &str, error: Errno) -> String {
    format!("{what}: {}", std::io::Error::from(error))
}

impl Placer {
    /// A placer for what is below `path`, a directory that exists.
    pub fn new(path: &Path, overwrite: bool) -> Result<Placer> {
        Ok(Placer {
            beneath: Beneath::open(path)?,
            overwrite,
            is_root: rustix::process::geteuid().is_root(),
            parents: Mutex::default(),
            count: AtomicU64::new(0),
        })
    }

    /// Whether something at `path` keeps an item from being made: anything, but for a directory
    /// where there is one.
    pub fn is_in_the_way(&self, path: &[u8], kind: ItemKind) -> bool {
        let is_directory =
            |stat: Stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        self.beneath.stat(path).is_ok_and(|stat| kind != ItemKind::Directory || !is_directory(stat))
    }

    /// The directory in which `path` is to be.
    fn parent(&self, path: &[u8]) -> Result<Arc<OwnedFd>> {
        let parent = parent_of(path);
        let mut parents = self.parents.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, dir)) = parents.iter().rev().find(|(path, _)| path == parent) {
            return Ok(dir.clone());
        }
        let dir = Arc::new(self.beneath.get(parent, OFlags::PATH | OFlags::DIRECTORY)?);
        if parents.len() == PARENTS_MAX {
            parents.pop_front();
        }
        parents.push_back((parent.to_vec(), dir.clone()));
        Ok(dir)
    }

    /// Makes a directory, or finds it there. Nobody else can enter a new one until it is finished.
    pub fn directory(&self, path: &[u8]) -> Result<()> {
        if path == b"." {
            return Ok(());
        }
        let dir = self.parent(path)?;
        let name = name_of(path);
        match mkdirat(&*dir, name, Mode::RWXU) {
            Err(Errno::EXIST) => {}
            made => return made,
        }
        let there = statat(&*dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(there.st_mode) == FileType::Directory {
            return Ok(());
        }
        if !self.overwrite {
            return Err(Errno::EXIST);
        }
        unlinkat(&*dir, name, AtFlags::empty())?;
        mkdirat(&*dir, name, Mode::RWXU)
    }

    /// Makes the directories on the way to `path` that are missing.
    pub fn directories_above(&self, path: &[u8]) -> Result<()> {
        for at in (0..path.len()).filter(|at| path[*at] == b'/') {
            self.directory(&path[..at])?;
        }
        Ok(())
    }

    fn name(&self, path: &[u8], temporary: bool) -> Result<Name> {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let temporary =
            temporary.then(|| format!(".outlive-{}-{number}.tmp", std::process::id()).into_bytes());
        let (dir, own, identity) = (self.parent(path)?, name_of(path).to_vec(), (0, 0));
        Ok(Name { dir, own, temporary, identity })
    }

    /// Makes something under a temporary name. One that a get has left that was killed may be taken.
    fn temporary<T>(&self, path: &[u8], make: impl Fn(&Name) -> Result<T>) -> Result<(Name, T)> {
        loop {
            let name = self.name(path, true)?;
            match make(&name) {
                Err(Errno::EXIST) => {}
                made => return made.map(|made| (name, made)),
            }
        }
    }

    /// Makes an empty file. Replacing another it has a temporary name until it is finished.
    pub fn file(&self, path: &[u8]) -> Result<(Name, OwnedFd)> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let mode = Mode::RUSR | Mode::WUSR;
        let make = |name: &Name| openat(&*name.dir, name.now(), flags | OFlags::CLOEXEC, mode);
        let (mut name, file) = match self.overwrite {
            true => self.temporary(path, make)?,
            false => {
                let name = self.name(path, false)?;
                let file = make(&name)?;
                (name, file)
            }
        };
        let made = fstat(&file)?;
        name.identity = (made.st_dev, made.st_ino);
        Ok((name, file))
    }

    /// Opens a file again that [`Placer::file`] has made and nobody has finished.
    pub fn reopen(&self, name: &Name) -> Result<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&*name.dir, name.now(), flags, Mode::empty())?;
        let there = fstat(&file)?;
        // Whoever has put something else in its place does not get our bytes.
        if (there.st_dev, there.st_ino) != name.identity {
            return Err(Errno::NOENT);
        }
        Ok(file)
    }

    /// Removes a file that is not to be finished. Something else that has its name by now is left alone.
    pub fn discard(&self, name: &Name) {
        let is_other = name.identity != (0, 0)
            && identity_of(name, name.now()).is_ok_and(|there| there != name.identity);
        if !is_other {
            // It may be gone already; more cannot be done.
            let _ = unlinkat(&*name.dir, name.now(), AtFlags::empty());
        }
    }

    /// Gives a file all but its content, and its name.
    pub fn finish_file(&self, name: &Name, file: &OwnedFd, item: &Item) -> Result<Refusals> {
        let refusals = self.describe(file, item);
        self.publish(name)?;
        Ok(refusals)
    }

    fn publish(&self, name: &Name) -> Result<()> {
        match &name.temporary {
            None => Ok(()),
            Some(temporary) => {
                let renamed = renameat(&*name.dir, temporary.as_slice(), &*name.dir, &*name.own);
                renamed.inspect_err(|_| self.discard(name))
            }
        }
    }

    /// Gives a directory its owner, attributes, mode and times, when all in it is done.
    pub fn finish_directory(&self, item: &Item) -> Result<Refusals> {
        let dir = self.beneath.get(&item.path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        Ok(self.describe(&dir, item))
    }

    /// Owner, attributes, mode and times of something open. A new owner takes away set-id bits and
    /// capabilities, so it comes first; everything changes the times, so they come last.
    fn describe(&self, file: &OwnedFd, item: &Item) -> Refusals {
        let mut refusals = Vec::new();
        let chown = |user, group| fchown(file, user, group);
        let mode = self.own(item, &chown, &|| fstat(file), &mut refusals);
        refusals.extend(attribute_refusals(attributes::set_open(file, &item.attributes)));
        if let Err(error) = fchmod(file, mode) {
            refusals.push(refused("its mode", error));
        }
        if let Err(error) = futimens(file, &times_of(item)) {
            refusals.push(refused("its times", error));
        }
        refusals
    }

    /// Gives something its owner and group as far as this user may, and answers the mode that it
    /// can have then: set-id bits would give away the rights of whoever it belongs to now.
    fn own(
        &self,
        item: &Item,
        chown: &dyn Fn(Option<Uid>, Option<Gid>) -> Result<()>,
        stat: &dyn Fn() -> Result<Stat>,
        refusals: &mut Refusals,
    ) -> Mode {
        let (user, group) = (Uid::from_raw(item.uid), Gid::from_raw(item.gid));
        let kept = if self.is_root {
            match chown(Some(user), Some(group)) {
                Ok(()) => SET_USER_ID | SET_GROUP_ID,
                Err(error) => {
                    refusals.push(refused("its owner", error));
                    0
                }
            }
        } else {
            match stat() {
                Ok(now) if now.st_uid == item.uid => {
                    let has_group = now.st_gid == item.gid || chown(None, Some(group)).is_ok();
                    SET_USER_ID | if has_group { SET_GROUP_ID } else { 0 }
                }
                _ => 0,
            }
        };
        Mode::from_raw_mode(item.mode & !(SET_USER_ID | SET_GROUP_ID) | item.mode & kept)
    }

    /// Makes a symbolic link, a pipe, a socket or a device.
    pub fn special(&self, item: &Item) -> Result<Refusals> {
        let make = |name: &Name| match item.kind {
            ItemKind::Symlink => symlinkat(item.target.as_slice(), &*name.dir, name.now()),
            kind => {
                let kind = match kind {
                    ItemKind::CharDevice => FileType::CharacterDevice,
                    ItemKind::BlockDevice => FileType::BlockDevice,
                    ItemKind::Socket => FileType::Socket,
                    _ => FileType::Fifo,
                };
                mknodat(&*name.dir, name.now(), kind, Mode::RUSR | Mode::WUSR, item.bytes)
            }
        };
        let name = self.make(&item.path, &make)?;
        let (dir, at) = (&name.dir, name.now());
        let mut refusals = Vec::new();
        let nofollow = AtFlags::SYMLINK_NOFOLLOW;
        let chown = |user, group| chownat(&**dir, at, user, group, nofollow);
        let mode = self.own(item, &chown, &|| statat(&**dir, at, nofollow), &mut refusals);
        let set = attributes::set_name(dir.as_fd(), at, &item.attributes);
        refusals.extend(attribute_refusals(set));
        if item.kind != ItemKind::Symlink
            && let Err(error) = mode_of_name(&name, mode)
        {
            refusals.push(refused("its mode", error));
        }
        if let Err(error) = utimensat(&**dir, at, &times_of(item), nofollow) {
            refusals.push(refused("its times", error));
        }
        self.publish(&name)?;
        Ok(refusals)
    }

    /// Makes a further name of a file.
    pub fn hard_link(&self, item: &Item) -> Result<()> {
        let target_dir = self.parent(&item.target)?;
        let target = name_of(&item.target);
        let make =
            |name: &Name| linkat(&*target_dir, target, &*name.dir, name.now(), AtFlags::empty());
        let name = self.make(&item.path, &make)?;
        self.publish(&name)?;
        self.discard_link(&name);
        Ok(())
    }

    /// Removes the temporary name of a link that was published, if the rename has left it: between two names of one file
    /// it does nothing. After one that did something the temporary name is free: a get in another container may have
    /// given it to a file of its own.
    fn discard_link(&self, name: &Name) {
        let both = (identity_of(name, name.now()), identity_of(name, &name.own));
        if name.temporary.is_some() && matches!(both, (Ok(one), Ok(other)) if one == other) {
            self.discard(name);
        }
    }

    /// Makes something under its own name, or under a temporary one if that is taken and may be.
    fn make(&self, path: &[u8], make: &dyn Fn(&Name) -> Result<()>) -> Result<Name> {
        let name = self.name(path, false)?;
        match make(&name) {
            Err(Errno::EXIST) if self.overwrite => {
                self.temporary(path, make).map(|(name, ())| name)
            }
            made => made.map(|()| name),
        }
    }
}

/// Device and inode of what is called `at` in the directory of a name.
fn identity_of(name: &Name, at: &[u8]) -> Result<(u64, u64)> {
    let there = statat(&*name.dir, at, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok((there.st_dev, there.st_ino))
}

/// There is no `chmod` that does not follow, but one for what is held.
fn mode_of_name(name: &Name, mode: Mode) -> Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let held = openat(&*name.dir, name.now(), flags, Mode::empty())?;
    chmod(format!("/proc/self/fd/{}", held.as_raw_fd()), mode)
}

fn attribute_refusals<'a>(
    refusals: impl Iterator<Item = (&'a [u8], Errno)>,
) -> impl Iterator<Item = String> {
    refusals.map(|(name, error)| {
        refused(&format!("its attribute {}", String::from_utf8_lossy(name).escape_debug()), error)
    })
}

fn times_of(item: &Item) -> Timestamps {
    let spec = |time: FileTime| Timespec { tv_sec: time.s, tv_nsec: time.ns.into() };
    // Access times are not kept: a file was last read when it was written.
    Timestamps { last_access: spec(item.mtime), last_modification: spec(item.mtime) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A further name of a file gets a temporary name if its own is taken. Once it is published, another get may have that.
    #[test]
    fn a_published_link_leaves_the_temporary_name_alone() {
        let dir = tempfile::tempdir().unwrap();
        let placer = Placer::new(dir.path(), true).unwrap();
        fs::write(dir.path().join("one"), "of both").unwrap();
        for is_same in [false, true] {
            match is_same {
                true => fs::hard_link(dir.path().join("one"), dir.path().join("two")).unwrap(),
                false => fs::write(dir.path().join("two"), "old").unwrap(),
            }
            let link = |name: &Name| {
                let one = openat(&*name.dir, c".", OFlags::PATH, Mode::empty())?;
                linkat(&one, c"one", &*name.dir, name.now(), AtFlags::empty())
            };
            let name = placer.make(b"two", &link).unwrap();
            let temporary = dir.path().join(std::str::from_utf8(name.now()).unwrap());
            placer.publish(&name).unwrap();
            // The rename of one name of a file to another does nothing.
            assert_eq!(temporary.exists(), is_same);
            if !is_same {
                fs::write(&temporary, "of another get").unwrap();
            }
            placer.discard_link(&name);
            assert_eq!(temporary.exists(), !is_same);
            assert_eq!(fs::read(dir.path().join("two")).unwrap(), b"of both");
            let _ = fs::remove_file(&temporary);
            fs::remove_file(dir.path().join("two")).unwrap();
        }
    }

    #[test]
    fn what_has_taken_a_name_is_not_discarded() {
        let dir = tempfile::tempdir().unwrap();
        for overwrite in [false, true] {
            let placer = Placer::new(dir.path(), overwrite).unwrap();
            for taken in [false, true] {
                let (name, file) = placer.file(b"file").unwrap();
                let path = dir.path().join(std::str::from_utf8(name.now()).unwrap());
                if taken {
                    fs::remove_file(&path).unwrap();
                    fs::write(&path, "mine").unwrap();
                }
                placer.discard(&name);
                assert_eq!(path.exists(), taken);
                drop((file, fs::remove_file(&path)));
            }
        }
    }
}
