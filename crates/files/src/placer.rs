//! Creates files, directories and links below a directory, and never anywhere else.

use super::describe::{Refusals, chmod_held, describe_name, describe_open};
use super::leftovers::Maker;
use super::root_dir::{RootDir, name_of, parent_of};
use outlive_format::{Item, ItemKind};
use outlive_types::sync::plain::Mutex;
use rustix::fs::{
    Access, AtFlags, FileType, Mode, OFlags, Stat, accessat, fchmod, fstat, linkat, mkdirat,
    mknodat, openat, renameat, statat, symlinkat, unlinkat,
};
use rustix::io::{Errno, Result};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Directories kept open, since the next item is mostly in one of them.
const PARENTS_MAX: usize = 64;

/// Creates items below one directory.
pub struct Placer {
    /// The directory.
    pub root: RootDir,
    /// Replace existing files.
    pub overwrite: bool,
    /// True if the user has all rights.
    pub is_root: bool,
    maker: Maker,
    parents: Mutex<VecDeque<(Vec<u8>, Arc<OwnedFd>)>>,
    /// Directories that were opened to their owner, with their former modes.
    opened: Mutex<BTreeMap<Vec<u8>, u32>>,
    /// Counter for temporary names.
    count: AtomicU64,
}

/// Name of a new file: its own, or a temporary one to be renamed.
#[derive(Debug)]
pub struct Name {
    dir: Arc<OwnedFd>,
    own: Vec<u8>,
    temporary: Option<Vec<u8>>,
    /// Device and inode of the new file.
    identity: (u64, u64),
}

impl Name {
    fn now(&self) -> &[u8] {
        self.temporary.as_deref().unwrap_or(&self.own)
    }
}

impl Placer {
    /// Returns a placer for the existing directory `path`.
    pub fn new(path: &Path, overwrite: bool) -> Result<Placer> {
        Ok(Placer {
            root: RootDir::open(path)?,
            overwrite,
            is_root: rustix::process::geteuid().is_root(),
            maker: Maker::this(),
            parents: Mutex::default(),
            opened: Mutex::default(),
            count: AtomicU64::new(0),
        })
    }

    /// Returns whether `path` is taken for an item: it exists, and is no directory for a directory.
    pub fn is_in_the_way(&self, path: &[u8], kind: ItemKind) -> bool {
        let is_directory =
            |stat: Stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        self.root.stat(path).is_ok_and(|stat| kind != ItemKind::Directory || !is_directory(stat))
    }

    /// Returns the parent directory of `path`.
    fn parent(&self, path: &[u8]) -> Result<Arc<OwnedFd>> {
        let parent = parent_of(path);
        let mut parents = self.parents.lock();
        if let Some((_, dir)) = parents.iter().rev().find(|(path, _)| path == parent) {
            return Ok(dir.clone());
        }
        let dir = Arc::new(self.root.get(parent, OFlags::PATH | OFlags::DIRECTORY)?);
        if parents.len() == PARENTS_MAX {
            parents.pop_front();
        }
        parents.push_back((parent.to_vec(), dir.clone()));
        Ok(dir)
    }

    /// Creates a directory, or accepts an existing one. No other user can enter a new one until it
    /// is finished. In an existing one, files of killed gets are removed, if this get may replace
    /// files.
    pub fn directory(&self, path: &[u8]) -> Result<()> {
        if path == b"." {
            return self.enter(self.root.dir(), b".", path);
        }
        let dir = self.parent(path)?;
        let name = name_of(path);
        match mkdirat(&*dir, name, Mode::RWXU) {
            Err(Errno::EXIST) => {}
            made => return made.and_then(|()| self.open_to_owner(dir.as_fd(), name, None)),
        }
        let there = statat(&*dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(there.st_mode) == FileType::Directory {
            return self.enter(dir.as_fd(), name, path);
        }
        if !self.overwrite {
            return Err(Errno::EXIST);
        }
        unlinkat(&*dir, name, AtFlags::empty())?;
        mkdirat(&*dir, name, Mode::RWXU)?;
        self.open_to_owner(dir.as_fd(), name, None)
    }

    /// Prepares an existing directory for new files.
    fn enter(&self, dir: BorrowedFd<'_>, name: &[u8], path: &[u8]) -> Result<()> {
        self.open_to_owner(dir, name, Some(path))?;
        if self.overwrite {
            self.maker.clean(dir, name);
        }
        Ok(())
    }

    /// Lets this user read, write and enter a directory of its own. The mode of an existing one, or
    /// the default ACL above a new one, may forbid that. Its own mode is set at the end.
    fn open_to_owner(&self, dir: BorrowedFd<'_>, name: &[u8], path: Option<&[u8]>) -> Result<()> {
        let all = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
        if self.is_root || accessat(dir, name, all, AtFlags::EACCESS).is_ok() {
            return Ok(());
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let held = openat(dir, name, flags, Mode::empty())?;
        let there = fstat(&held)?;
        let mode = there.st_mode & 0o7777;
        if there.st_uid != rustix::process::geteuid().as_raw() || mode & 0o700 == 0o700 {
            // File errors report what cannot be created in it.
            return Ok(());
        }
        chmod_held(&held, Mode::from_raw_mode(mode | 0o700))?;
        if let Some(path) = path {
            self.opened.lock().entry(path.to_vec()).or_insert(mode);
        }
        Ok(())
    }

    /// Returns whether files can be created in the directory itself.
    pub fn is_writable(&self) -> bool {
        let access = Access::WRITE_OK | Access::EXEC_OK;
        accessat(self.root.dir(), ".", access, AtFlags::EACCESS) != Err(Errno::ACCESS)
    }

    /// Restores the former modes of directories that were opened and not finished, the innermost
    /// first.
    pub fn close_again(&self) {
        for (path, mode) in std::mem::take(&mut *self.opened.lock()).into_iter().rev() {
            // A directory that is gone, or out of reach, stays as it is.
            let held = self.root.get(&path, OFlags::PATH | OFlags::DIRECTORY);
            let _ = held.and_then(|held| chmod_held(&held, Mode::from_raw_mode(mode)));
        }
    }

    /// Creates the missing directories above `path`.
    pub fn directories_above(&self, path: &[u8]) -> Result<()> {
        for at in (0..path.len()).filter(|at| path[*at] == b'/') {
            self.directory(&path[..at])?;
        }
        Ok(())
    }

    fn name(&self, path: &[u8], temporary: bool) -> Result<Name> {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let temporary = temporary.then(|| self.maker.name(number));
        let (dir, own, identity) = (self.parent(path)?, name_of(path).to_vec(), (0, 0));
        Ok(Name { dir, own, temporary, identity })
    }

    /// Creates a file under a temporary name, which must not be that of a killed get.
    fn temporary<T>(&self, path: &[u8], make: impl Fn(&Name) -> Result<T>) -> Result<(Name, T)> {
        loop {
            let name = self.name(path, true)?;
            match make(&name) {
                Err(Errno::EXIST) => {}
                made => return made.map(|made| (name, made)),
            }
        }
    }

    /// Creates an empty file. If it may replace another, it has a temporary name until it is
    /// finished.
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
        if made.st_mode & mode.as_raw_mode() != mode.as_raw_mode() {
            // A default ACL above it forbids its owner to open it again.
            fchmod(&file, mode)?;
        }
        Ok((name, file))
    }

    /// Opens an unfinished file again that [`Placer::file`] has created.
    pub fn reopen(&self, name: &Name) -> Result<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&*name.dir, name.now(), flags, Mode::empty())?;
        let there = fstat(&file)?;
        // Another file with this name does not get our bytes.
        if (there.st_dev, there.st_ino) != name.identity {
            return Err(Errno::NOENT);
        }
        Ok(file)
    }

    /// Removes an unfinished file, unless another file has its name by now.
    pub fn discard(&self, name: &Name) {
        let is_other = name.identity != (0, 0)
            && identity_of(name, name.now()).is_ok_and(|there| there != name.identity);
        if !is_other {
            // It may be gone already; a failure has no remedy.
            let _ = unlinkat(&*name.dir, name.now(), AtFlags::empty());
        }
    }

    /// Sets everything but the content of a file, and renames it.
    pub fn finish_file(&self, name: &Name, file: &OwnedFd, item: &Item) -> Result<Refusals> {
        let refusals = describe_open(file, item, self.is_root);
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

    /// Sets a directory's owner, attributes, mode and times, after everything in it.
    pub fn finish_directory(&self, item: &Item) -> Result<Refusals> {
        let dir = self.root.get(&item.path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        self.opened.lock().remove(&item.path);
        Ok(describe_open(&dir, item, self.is_root))
    }

    /// Creates a symbolic link, a pipe, a socket or a device.
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
        let refusals = describe_name(name.dir.as_fd(), name.now(), item, self.is_root);
        self.publish(&name)?;
        Ok(refusals)
    }

    /// Creates a further name of a file, if it is missing.
    pub fn hard_link(&self, item: &Item) -> Result<()> {
        let identity = |path: &[u8]| self.root.stat(path).map(|stat| (stat.st_dev, stat.st_ino));
        if self.overwrite
            && let (Ok(one), Ok(other)) = (identity(&item.target), identity(&item.path))
            && one == other
        {
            return Ok(());
        }
        let target_dir = self.parent(&item.target)?;
        let target = name_of(&item.target);
        let make =
            |name: &Name| linkat(&*target_dir, target, &*name.dir, name.now(), AtFlags::empty());
        let name = self.make(&item.path, &make)?;
        self.publish(&name)?;
        self.discard_link(&name);
        Ok(())
    }

    /// Removes the temporary name of a published link if the rename has left it: a rename between
    /// two names of one file does nothing. After any other rename the temporary name is free: a get
    /// in another container may use it for a file of its own.
    fn discard_link(&self, name: &Name) {
        let both = (identity_of(name, name.now()), identity_of(name, &name.own));
        if name.temporary.is_some() && matches!(both, (Ok(one), Ok(other)) if one == other) {
            self.discard(name);
        }
    }

    /// Creates a file under its own name, or under a temporary one if that is taken and may be
    /// replaced.
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

/// Returns device and inode of `at` in the directory of a name.
fn identity_of(name: &Name, at: &[u8]) -> Result<(u64, u64)> {
    let there = statat(&*name.dir, at, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok((there.st_dev, there.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A further name of a file gets a temporary name if its own is taken. After its publication,
    /// another get may use that.
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
            // Renaming one name of a file to another does nothing.
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
    fn a_file_that_has_taken_a_name_is_not_discarded() {
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
