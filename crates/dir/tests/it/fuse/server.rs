//! The server: it carries out all requests in another directory.

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner,
    OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{CWD, FallocateFlags, OFlags, RenameFlags as Rename};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

/// The kernel caches nothing: every request sees the present state.
const TTL: Duration = Duration::ZERO;

pub struct Server {
    state: Mutex<State>,
    handles: AtomicU64,
    /// Number of refused reads and writes.
    pub refused: Arc<AtomicUsize>,
    /// Operations with an effect on the state after a power cut, in order.
    pub deeds: Arc<Mutex<Vec<Deed>>>,
    /// Whether directories cannot be made durable.
    pub fails: Arc<AtomicBool>,
}

/// An operation of the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Deed {
    /// The server wrote bytes to a file.
    Wrote(PathBuf),
    /// The server made a file, or the names in a directory, durable.
    Synced(PathBuf),
    /// The server gave a file a name.
    Named {
        /// The file's name before.
        from: PathBuf,
        /// The new name.
        to: PathBuf,
    },
}

struct State {
    /// Paths by inode number, from 1.
    paths: Vec<PathBuf>,
    /// Further names, and the files that have them.
    links: Vec<(PathBuf, usize)>,
    open: HashMap<u64, Arc<Opened>>,
}

impl State {
    /// Returns the number of a path's file, if it is known.
    fn number(&self, path: &Path) -> Option<usize> {
        let named = self.paths.iter().position(|known| known == path);
        named.or_else(|| Some(self.links.iter().find(|(known, _)| known == path)?.1))
    }

    /// Frees a path, which gets another file next.
    fn forget(&mut self, path: &Path) {
        self.links.retain(|(known, _)| known != path);
        let Some(number) = self.paths.iter().position(|known| known == path) else { return };
        match self.links.iter().position(|(_, of)| *of == number) {
            Some(at) => self.paths[number] = self.links.swap_remove(at).0,
            None => drop(self.paths[number].set_extension("gone")),
        }
    }
}

/// An open file, and whether it was opened with O_DIRECT.
struct Opened {
    file: File,
    is_direct: bool,
}

impl Server {
    pub fn new(backing: &Path) -> Server {
        let state =
            State { paths: vec![backing.to_owned()], links: Vec::new(), open: HashMap::new() };
        let (state, handles) = (Mutex::new(state), AtomicU64::new(1));
        let (refused, deeds, fails) = Default::default();
        Server { state, handles, refused, deeds, fails }
    }

    fn did(&self, deed: Deed) {
        self.deeds.lock().unwrap().push(deed);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn path(&self, number: INodeNo) -> PathBuf {
        self.state().paths[number.0 as usize - 1].clone()
    }

    fn child(&self, parent: INodeNo, name: &OsStr) -> PathBuf {
        self.path(parent).join(name)
    }

    fn attr(&self, path: &Path) -> io::Result<FileAttr> {
        let metadata = fs::symlink_metadata(path)?;
        let mut state = self.state();
        let number = match state.number(path) {
            Some(at) => at,
            None => {
                state.paths.push(path.to_owned());
                state.paths.len() - 1
            }
        };
        let time = metadata.modified()?;
        Ok(FileAttr {
            ino: INodeNo(number as u64 + 1),
            size: metadata.len(),
            blocks: metadata.blocks(),
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind: FileType::from_std(metadata.file_type()).unwrap(),
            perm: (metadata.mode() & 0o7777) as u16,
            nlink: metadata.nlink() as u32,
            uid: metadata.uid(),
            gid: metadata.gid(),
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    fn entry(&self, path: &Path, done: io::Result<()>, reply: ReplyEntry) {
        match done.and_then(|()| self.attr(path)) {
            Ok(attr) => reply.entry(&TTL, &attr, Generation(0)),
            Err(error) => reply.error(error.into()),
        }
    }

    fn keep(&self, file: File, flags: i32) -> FileHandle {
        let handle = self.handles.fetch_add(1, Ordering::Relaxed);
        let is_direct = flags & OFlags::DIRECT.bits() as i32 != 0;
        self.state().open.insert(handle, Arc::new(Opened { file, is_direct }));
        FileHandle(handle)
    }

    fn file(&self, handle: FileHandle) -> Arc<Opened> {
        self.state().open[&handle.0].clone()
    }

    /// Returns the file of a handle, unless it was opened with O_DIRECT.
    fn file_to_move_data(&self, handle: FileHandle) -> Result<Arc<Opened>, Errno> {
        let opened = self.file(handle);
        if opened.is_direct {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(Errno::EINVAL);
        }
        Ok(opened)
    }
}

fn answer(done: io::Result<()>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error.into()),
    }
}

impl Filesystem for Server {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.entry(&self.child(parent, name), Ok(()), reply);
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attr(&self.path(number)) {
            Ok(attr) => reply.attr(&TTL, &attr),
            Err(error) => reply.error(error.into()),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        number: INodeNo,
        mode: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let path = self.path(number);
        let set = || {
            match (size, handle) {
                (Some(size), Some(handle)) => self.file(handle).file.set_len(size)?,
                (Some(size), None) => File::options().write(true).open(&path)?.set_len(size)?,
                _ => {}
            }
            mode.map_or(Ok(()), |mode| {
                fs::set_permissions(&path, fs::Permissions::from_mode(mode))
            })?;
            self.attr(&path)
        };
        match set() {
            Ok(attr) => reply.attr(&TTL, &attr),
            Err(error) => reply.error(error.into()),
        }
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        let path = self.child(parent, name);
        self.entry(&path, fs::create_dir(&path), reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let path = self.child(parent, name);
        let done = fs::remove_file(&path);
        if done.is_ok() {
            self.state().forget(&path);
        }
        answer(done, reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(fs::remove_dir(self.child(parent, name)), reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        to_parent: INodeNo,
        to_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (from, to) = (self.child(parent, name), self.child(to_parent, to_name));
        let flags = Rename::from_bits_retain(flags.bits());
        let done = rustix::fs::renameat_with(CWD, &from, CWD, &to, flags);
        if done.is_ok() {
            let mut state = self.state();
            state.forget(&to);
            for path in state.paths.iter_mut().filter(|path| **path == from) {
                path.clone_from(&to);
            }
            for (path, _) in state.links.iter_mut().filter(|(path, _)| *path == from) {
                path.clone_from(&to);
            }
            drop(state);
            self.did(Deed::Named { from, to });
        }
        answer(done.map_err(io::Error::from), reply);
    }

    fn link(&self, _: &Request, number: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (from, to) = (self.path(number), self.child(parent, name));
        let done = fs::hard_link(&from, &to);
        if done.is_ok() {
            self.state().links.push((to.clone(), number.0 as usize - 1));
            self.did(Deed::Named { from, to: to.clone() });
        }
        self.entry(&to, done, reply);
    }

    fn open(&self, _: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let mode = flags.acc_mode();
        let opened = OpenOptions::new()
            .read(mode != OpenAccMode::O_WRONLY)
            .write(mode != OpenAccMode::O_RDONLY)
            .open(self.path(number));
        match opened {
            Ok(file) => reply.opened(self.keep(file, flags.0), FopenFlags::empty()),
            Err(error) => reply.error(error.into()),
        }
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        _: u32,
        _: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let path = self.child(parent, name);
        let create = || {
            let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
            Ok::<_, io::Error>((file, self.attr(&path)?))
        };
        match create() {
            Ok((file, attr)) => {
                let handle = self.keep(file, flags);
                reply.created(&TTL, &attr, Generation(0), handle, FopenFlags::empty());
            }
            Err(error) => reply.error(error.into()),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut bytes = vec![0; size as usize];
        let read = self
            .file_to_move_data(handle)
            .and_then(|opened| opened.file.read_at(&mut bytes, offset).map_err(Errno::from));
        match read {
            Ok(length) => reply.data(&bytes[..length]),
            Err(errno) => reply.error(errno),
        }
    }

    fn write(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        bytes: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let written = self
            .file_to_move_data(handle)
            .and_then(|opened| opened.file.write_all_at(bytes, offset).map_err(Errno::from));
        match written {
            Ok(()) => {
                self.did(Deed::Wrote(self.path(number)));
                reply.written(bytes.len() as u32);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.state().open.remove(&handle.0);
        reply.ok();
    }

    fn fsync(&self, _: &Request, number: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        self.did(Deed::Synced(self.path(number)));
        answer(self.file(handle).file.sync_all(), reply);
    }

    fn fsyncdir(&self, _: &Request, number: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        if self.fails.load(Ordering::Relaxed) {
            return reply.error(Errno::EIO);
        }
        self.did(Deed::Synced(self.path(number)));
        reply.ok();
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let mode = FallocateFlags::from_bits_retain(mode as u32);
        let done = rustix::fs::fallocate(&self.file(handle).file, mode, offset, length);
        answer(done.map_err(io::Error::from), reply);
    }

    fn readdir(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let mut list = || {
            let entries = fs::read_dir(self.path(number))?;
            let mut entries: Vec<_> = entries.collect::<io::Result<_>>()?;
            entries.sort_by_key(fs::DirEntry::file_name);
            for (at, entry) in entries.iter().enumerate().skip(offset as usize) {
                let attr = self.attr(&entry.path())?;
                if reply.add(attr.ino, at as u64 + 1, attr.kind, entry.file_name()) {
                    break;
                }
            }
            Ok::<_, io::Error>(())
        };
        match list() {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error.into()),
        }
    }

    fn statfs(&self, _: &Request, number: INodeNo, reply: ReplyStatfs) {
        match rustix::fs::statvfs(self.path(number)) {
            Ok(s) => reply.statfs(
                s.f_blocks,
                s.f_bfree,
                s.f_bavail,
                s.f_files,
                s.f_ffree,
                s.f_bsize as u32,
                s.f_namemax as u32,
                s.f_frsize as u32,
            ),
            Err(errno) => reply.error(io::Error::from(errno).into()),
        }
    }
}
