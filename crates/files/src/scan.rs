//! Walks directory trees in the order of a listing, with one directory's names in memory at a time.

use super::attributes;
use super::file_error::{FileError, FileErrorKind, Troubles};
use super::leftovers::is_temporary;
use super::listed::{Listed, OnList};
use super::names::read_names;
use super::patterns::Patterns;
use super::root_dir::RootDir;
use outlive_format::{FileTime, Item, ItemKind, path_cmp};
use outlive_types::{Error, Result, shown_path};
use rustix::fs::{AtFlags, FileType, OFlags, Stat, fstat, openat, readlinkat, statat};
use rustix::io::Errno;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// File with a directory's own patterns.
const IGNORE_FILE: &[u8] = b".outliveignore";
/// File that marks a directory as a cache, and its first bytes.
const CACHE_TAG: &[u8] = b"CACHEDIR.TAG";
const CACHE_SIGNATURE: &[u8] = b"Signature: 8a477f597d28d172789f06886806bc55";
const IGNORE_BYTES_MAX: u64 = 1 << 20;
/// Deeper directories are opened again for each look, so that open files stay few.
const OPEN_DEPTH_MAX: usize = 128;

/// Source of a put: a directory with its contents, or a single file.
#[derive(Debug)]
pub struct Root {
    /// The directory, or the parent of a single file.
    pub root: RootDir,
    /// Path in the listing; `.` for a single directory.
    path: Vec<u8>,
    /// Name in `root`, if it is not a directory.
    file: Option<Vec<u8>>,
}

impl Root {
    /// Returns the path of an item relative to `root`.
    pub fn local<'p>(&'p self, path: &'p [u8]) -> &'p [u8] {
        match &self.file {
            Some(file) => file,
            None if self.path == b"." => path,
            None => path.get(self.path.len() + 1..).unwrap_or(b"."),
        }
    }
}

/// Opens the sources of a put. For a single directory, paths are relative to it; each of several
/// paths keeps its name. Links given here are followed, links below them never are.
///
/// # Errors
/// `Invalid` if a path is missing, or two have the same name.
pub fn open_roots(paths: &[PathBuf]) -> Result<Vec<Root>> {
    let mut roots = Vec::new();
    for path in paths {
        let io = |e: std::io::Error| {
            let kind = Error::io_named("reading", path, &e);
            // A missing path that a user gives is no damage.
            Error::invalid(kind.message())
        };
        let whole = fs::canonicalize(path).map_err(io)?;
        let is_dir = fs::metadata(&whole).map_err(io)?.is_dir();
        let name = path.file_name().or(whole.file_name()).map(|name| name.as_bytes().to_vec());
        let path_in_listing = match (is_dir && paths.len() == 1, name) {
            (true, _) => b".".to_vec(),
            (false, Some(name)) => name,
            (false, None) => return Err(Error::invalid("/ has no name: put it alone")),
        };
        let (dir, file) = match is_dir {
            true => (whole.as_path(), None),
            false => {
                let name = whole.file_name().map(|name| name.as_bytes().to_vec());
                (whole.parent().unwrap_or(Path::new("/")), name)
            }
        };
        let root = RootDir::open(dir).map_err(|e| io(e.into()))?;
        roots.push(Root { root, path: path_in_listing, file });
    }
    roots.sort_by(|a, b| path_cmp(&a.path, &b.path));
    if let Some(twice) = roots.windows(2).find(|pair| pair[0].path == pair[1].path) {
        return Err(Error::invalid(format!(
            "two of the paths are called {}: put them separately, or the directory above them",
            shown_path(&twice[0].path)
        )));
    }
    Ok(roots)
}

/// Rules for items that a scan omits.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Patterns for all paths.
    pub patterns: Patterns,
    /// Ignore `.outliveignore` files.
    pub no_ignore_files: bool,
    /// Stay on the file system of each root.
    pub one_file_system: bool,
    /// Omit longer files.
    pub larger_than: Option<u64>,
    /// Omit the contents of directories that a `CACHEDIR.TAG` marks as caches.
    pub no_caches: bool,
    /// Omit everything but these paths and the directories above them.
    pub listed: Option<Listed>,
    /// Directories to omit with their contents, by device and inode.
    pub leave_out: HashSet<(u64, u64)>,
}

/// A directory being walked.
struct Frame {
    path: Vec<u8>,
    dir: Option<Arc<OwnedFd>>,
    /// Names, sorted; the next is the last.
    names: Vec<Box<[u8]>>,
    patterns: Option<Patterns>,
    /// Whether the list has this directory, or one above it.
    is_listed: bool,
}

/// The walk over all roots.
pub struct Scan<'a> {
    roots: &'a [Root],
    selection: &'a Selection,
    /// Number of the root being walked, plus one.
    next_root: usize,
    device: u64,
    frames: Vec<Frame>,
    /// Files with further names that are not found yet: the first name, and the number of the
    /// others.
    links: HashMap<(u64, u64), (Vec<u8>, u64)>,
    /// Paths of the list that are not found yet.
    wanted: BTreeSet<Vec<u8>>,
    /// File errors.
    pub troubles: Troubles,
    /// Number of items that patterns exclude.
    pub excluded: u64,
    /// Number of unfinished files of gets.
    pub leftovers: u64,
}

impl<'a> Scan<'a> {
    /// Returns a scan at its beginning.
    pub fn new(roots: &'a [Root], selection: &'a Selection) -> Scan<'a> {
        Scan {
            roots,
            selection,
            next_root: 0,
            device: 0,
            frames: Vec::new(),
            links: HashMap::new(),
            wanted: selection.listed.as_ref().map(Listed::wanted).unwrap_or_default(),
            troubles: Troubles::default(),
            excluded: 0,
            leftovers: 0,
        }
    }

    /// Returns the next item, without content, and the number of its root.
    pub fn next(&mut self) -> Option<(Item, usize)> {
        loop {
            let found = match self.frames.last_mut() {
                None => {
                    let Some(root) = self.roots.get(self.next_root) else {
                        self.miss_wanted();
                        return None;
                    };
                    self.next_root += 1;
                    self.root(root)
                }
                Some(frame) => match frame.names.pop() {
                    None => {
                        self.frames.pop();
                        continue;
                    }
                    Some(name) => self.visit(&name),
                },
            };
            if let Some(item) = found {
                return Some((item, self.next_root - 1));
            }
        }
    }

    fn root(&mut self, root: &Root) -> Option<Item> {
        let Some(file) = &root.file else {
            let opened = root.root.get(b".", OFlags::RDONLY | OFlags::DIRECTORY);
            let stat = opened.as_ref().map_err(|e| *e).and_then(fstat);
            let Ok(stat) = stat.map_err(|e| self.trouble(FileError::reading(&root.path, e))) else {
                return None;
            };
            self.device = stat.st_dev;
            return self.enter(root.path.clone(), &stat, opened);
        };
        let stat = root.root.stat(file);
        let Ok(stat) = stat.map_err(|e| self.trouble(FileError::reading(&root.path, e))) else {
            return None;
        };
        self.device = stat.st_dev;
        let dir = root.root.dir();
        self.other(root.path.clone(), file, dir, &stat)
    }

    fn trouble(&mut self, trouble: FileError) {
        self.troubles.add(trouble);
    }

    /// Reports the paths of the list that the walk has not met.
    fn miss_wanted(&mut self) {
        for path in std::mem::take(&mut self.wanted) {
            let why = "it is on the list, but not there: missing, or behind a link";
            self.trouble(FileError::new(&path, FileErrorKind::Unreadable, why));
        }
    }

    /// Returns whether the list has an item, if there is one, and notes that the item was met.
    fn on_list(&mut self, path: &[u8]) -> OnList {
        let Some(listed) = &self.selection.listed else { return OnList::Yes };
        self.wanted.remove(path);
        match self.frames.last().is_some_and(|frame| frame.is_listed) {
            true => OnList::Yes,
            false => listed.of(path),
        }
    }

    /// Forgets the paths of the list below a directory that is omitted.
    fn forget_below(&mut self, path: &[u8]) {
        let below = [path, b"/"].concat();
        let is_below = |wanted: &Vec<u8>| wanted.starts_with(&below);
        let found: Vec<_> =
            self.wanted.range(below.clone()..).take_while(|it| is_below(it)).cloned().collect();
        for path in found {
            self.wanted.remove(&path);
        }
    }

    /// Examines a name of the directory being walked.
    fn visit(&mut self, name: &[u8]) -> Option<Item> {
        let frame = self.frames.last()?;
        let path = match frame.path.as_slice() {
            b"." => name.to_vec(),
            above => [above, b"/", name].concat(),
        };
        let looked = match &frame.dir {
            Some(dir) => Ok(dir.clone()),
            None => {
                let (root, flags) =
                    (&self.roots[self.next_root - 1], OFlags::RDONLY | OFlags::DIRECTORY);
                root.root.get(root.local(&frame.path), flags).map(Arc::new)
            }
        };
        let looked = looked.and_then(|dir| {
            let stat = statat(dir.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW)?;
            Ok((dir, stat))
        });
        let (dir, stat) = match looked {
            Ok(looked) => looked,
            Err(error) => {
                self.wanted.remove(&path);
                self.trouble(FileError::reading(&path, error));
                return None;
            }
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        let is_dir = kind == FileType::Directory;
        let on_list = self.on_list(&path);
        if on_list == OnList::No || (on_list == OnList::Above && !is_dir) {
            return None;
        }
        let is_long = |limit| kind == FileType::RegularFile && stat.st_size.cast_unsigned() > limit;
        if self.is_excluded(&path, is_dir)
            || (is_dir && self.selection.leave_out.contains(&(stat.st_dev, stat.st_ino)))
            || self.selection.larger_than.is_some_and(is_long)
        {
            self.forget_below(&path);
            self.excluded += 1;
            return None;
        }
        if !is_dir {
            if is_temporary(name) {
                self.leftovers += 1;
                return None;
            }
            return self.other(path, name, dir.as_fd(), &stat);
        }
        if self.selection.one_file_system && stat.st_dev != self.device {
            return Some(described(path, ItemKind::Directory, &stat));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = openat(dir.as_fd(), name, flags, rustix::fs::Mode::empty());
        self.enter(path, &stat, opened)
    }

    fn is_excluded(&self, path: &[u8], is_dir: bool) -> bool {
        if let Some(decided) = self.selection.patterns.decide(path, is_dir) {
            return decided;
        }
        // The patterns of the nearest directory come first.
        for frame in self.frames.iter().rev() {
            let Some(patterns) = &frame.patterns else { continue };
            let inside = match frame.path.as_slice() {
                b"." => path,
                above => path.get(above.len() + 1..).unwrap_or_default(),
            };
            if let Some(decided) = patterns.decide(inside, is_dir) {
                return decided;
            }
        }
        false
    }

    /// Enters a directory: returns its item, and walks its names next.
    fn enter(
        &mut self,
        path: Vec<u8>,
        stat: &Stat,
        opened: rustix::io::Result<OwnedFd>,
    ) -> Option<Item> {
        let mut item = described(path, ItemKind::Directory, stat);
        let read = opened.and_then(|dir| Ok((fstat(&dir)?, read_names(&dir)?, dir)));
        let (mut names, dir) = match read {
            // The opened directory counts, if it is another one by now.
            Ok((stat, names, dir)) => {
                item = described(item.path, ItemKind::Directory, &stat);
                (names, dir)
            }
            Err(error) => {
                let trouble = FileError::reading(&item.path, error);
                let is_gone = trouble.kind == FileErrorKind::Vanished;
                self.trouble(trouble);
                // An unreadable directory is listed all the same, since it exists.
                return (!is_gone).then_some(item);
            }
        };
        item.attributes = self.attributes_or_trouble(&item.path, attributes::of_open(&dir));
        names.sort_unstable_by(|a, b| b.cmp(a));
        let has_patterns = !self.selection.no_ignore_files
            && names.binary_search_by(|name| IGNORE_FILE.cmp(name)).is_ok();
        let patterns = match has_patterns.then(|| read_patterns(&dir)) {
            Some(Err(error)) => {
                let path = [&item.path, &b"/"[..], IGNORE_FILE].concat();
                let why = error.message();
                self.trouble(FileError::new(&path, FileErrorKind::Incomplete, why));
                None
            }
            Some(Ok(patterns)) => Some(patterns),
            None => None,
        };
        // The directory that a user names is no cache to omit.
        if self.selection.no_caches && !self.frames.is_empty() && is_cache(&dir, &names) {
            self.excluded += names.len() as u64 - 1;
            names.retain(|name| **name == *CACHE_TAG);
            self.forget_below(&item.path);
        }
        let is_listed = self.frames.last().is_some_and(|frame| frame.is_listed)
            || self.selection.listed.as_ref().is_some_and(|it| it.of(&item.path) == OnList::Yes);
        let dir = (self.frames.len() < OPEN_DEPTH_MAX).then(|| Arc::new(dir));
        self.frames.push(Frame { path: item.path.clone(), dir, names, patterns, is_listed });
        Some(item)
    }

    /// Returns the item of `name` in `dir`, which is no directory.
    fn other(
        &mut self,
        path: Vec<u8>,
        name: &[u8],
        dir: std::os::fd::BorrowedFd<'_>,
        stat: &Stat,
    ) -> Option<Item> {
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => ItemKind::File,
            FileType::Symlink => ItemKind::Symlink,
            FileType::Fifo => ItemKind::Fifo,
            FileType::CharacterDevice => ItemKind::CharDevice,
            FileType::BlockDevice => ItemKind::BlockDevice,
            FileType::Socket => ItemKind::Socket,
            other => {
                let why = format!("{other:?} is no kind of file that can be kept");
                self.trouble(FileError::new(&path, FileErrorKind::Unreadable, why));
                return None;
            }
        };
        if stat.st_nlink > 1
            && let Some(first) = self.earlier_name(&path, stat)
        {
            let mut item = Item::new(path, ItemKind::HardLink);
            item.target = first;
            return Some(item);
        }
        let mut item = described(path, kind, stat);
        if kind == ItemKind::Symlink {
            match readlinkat(dir, name, Vec::new()) {
                Ok(target) => item.target = target.into_bytes(),
                Err(error) => {
                    self.trouble(FileError::reading(&item.path, error));
                    return None;
                }
            }
        }
        // Attributes of files are read when they are open.
        if kind != ItemKind::File {
            item.attributes =
                self.attributes_or_trouble(&item.path, attributes::of_name(dir, name));
        }
        Some(item)
    }

    fn attributes_or_trouble(
        &mut self,
        path: &[u8],
        read: rustix::io::Result<Vec<outlive_format::Attribute>>,
    ) -> Vec<outlive_format::Attribute> {
        read.unwrap_or_else(|error| {
            self.trouble(no_attributes(path, error));
            Vec::new()
        })
    }

    /// Returns the name under which a file was listed before. It is forgotten after the last name.
    fn earlier_name(&mut self, path: &[u8], stat: &Stat) -> Option<Vec<u8>> {
        use std::collections::hash_map::Entry;
        match self.links.entry((stat.st_dev, stat.st_ino)) {
            Entry::Vacant(vacant) => {
                vacant.insert((path.to_vec(), stat.st_nlink - 1));
                None
            }
            Entry::Occupied(mut occupied) => {
                occupied.get_mut().1 -= 1;
                match occupied.get().1 {
                    0 => Some(occupied.remove().0),
                    _ => Some(occupied.get().0.clone()),
                }
            }
        }
    }
}

/// Returns the file error of a file whose attributes could not be read.
pub fn no_attributes(path: &[u8], error: Errno) -> FileError {
    let why = format!("its extended attributes: {}", std::io::Error::from(error));
    FileError::new(path, FileErrorKind::Incomplete, why)
}

/// Returns an item with the values of `stat`.
pub fn described(path: Vec<u8>, kind: ItemKind, stat: &Stat) -> Item {
    let mut item = Item::new(path, kind);
    item.mode = stat.st_mode & 0o7777;
    (item.uid, item.gid) = (stat.st_uid, stat.st_gid);
    item.mtime = FileTime { s: stat.st_mtime, ns: stat.st_mtime_nsec as u32 };
    item.ctime = FileTime { s: stat.st_ctime, ns: stat.st_ctime_nsec as u32 };
    (item.device, item.inode) = (stat.st_dev, stat.st_ino);
    item.bytes = match kind {
        ItemKind::File => stat.st_size.cast_unsigned(),
        ItemKind::CharDevice | ItemKind::BlockDevice => stat.st_rdev,
        _ => 0,
    };
    item
}

fn read_patterns(dir: &OwnedFd) -> Result<Patterns> {
    let invalid = |e: std::io::Error| Error::invalid(e.to_string());
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(dir, IGNORE_FILE, flags, rustix::fs::Mode::empty());
    let file = fs::File::from(file.map_err(|e| invalid(e.into()))?);
    let mut text = Vec::new();
    file.take(IGNORE_BYTES_MAX + 1).read_to_end(&mut text).map_err(invalid)?;
    if text.len() as u64 > IGNORE_BYTES_MAX {
        return Err(Error::invalid("it is longer than 1 MiB"));
    }
    Patterns::from_text(&text)
}

/// Returns whether a directory has a file that marks it as a cache: https://bford.info/cachedir.
fn is_cache(dir: &OwnedFd, names: &[Box<[u8]>]) -> bool {
    if !names.iter().any(|name| **name == *CACHE_TAG) {
        return false;
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(file) = openat(dir, CACHE_TAG, flags, rustix::fs::Mode::empty()) else { return false };
    let file = fs::File::from(file);
    let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
    let mut start = Vec::new();
    is_file
        && file.take(CACHE_SIGNATURE.len() as u64).read_to_end(&mut start).is_ok()
        && start == CACHE_SIGNATURE
}

/// Returns device and inode of a directory, to omit it from a scan. For a pool's `pool.toml`, those
/// of the directory that contains it.
pub fn identity(path: &Path) -> Option<(u64, u64)> {
    let there = fs::metadata(path).ok()?;
    let there = match there.is_dir() {
        true => there,
        false => fs::metadata(fs::canonicalize(path).ok()?.parent()?).ok()?,
    };
    Some((there.dev(), there.ino()))
}
