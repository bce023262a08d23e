//! Trees of files for the tests of puts and gets: their construction, snapshots of all visible
//! properties, and pools whose clock the test sets.

mod everything;
mod other_user;

use crate::common::small_config;
use outlive_backend::{MemoryTarget, Target};
use outlive_files::{GetFiles, GetOptions, GetReport, PutFiles, PutOptions, PutReport, PutSource};
use outlive_format::fingerprint;
use outlive_log::{ManifestLog, MemoryLog};
use outlive_pool::{Environment, Pool, Tuning};
use outlive_store::FilesImage;
use outlive_store::gc::{GcOptions, GcReport, Thoroughness, collect};
use outlive_store::{Job, Select};
use outlive_types::{Clock, Epoch, Fingerprint, JobName, Result, SystemClock};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RawDir, SeekFrom, Stat, Timespec, Timestamps, fstat,
    lgetxattr, llistxattr, openat, readlinkat, seek, statat, utimensat,
};
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tempfile::TempDir;

#[allow(unused_imports)] // as above
pub use everything::everything;
#[allow(unused_imports)] // as above
pub use other_user::{OTHER, dir_as_other_user, dir_of_other_user, run_as_other_user, set_mode};

pub const HOUR_NS: u64 = 3_600_000_000_000;

/// The machine's clock plus an offset that the test sets.
#[derive(Default)]
pub struct AheadClock {
    system: SystemClock,
    pub ahead_ns: AtomicU64,
}

impl Clock for AheadClock {
    fn unix_ns(&self) -> u64 {
        self.system.unix_ns() + self.ahead_ns.load(Ordering::Relaxed)
    }
    fn monotonic(&self) -> Duration {
        self.system.monotonic()
    }
}

/// Waits until the clock of a file system has advanced, so that later changes get later times.
pub fn tick(dir: &Path) {
    let now = || {
        let probe = tempfile::NamedTempFile::new_in(dir).unwrap();
        let stat = fstat(probe.as_file()).unwrap();
        (stat.st_ctime, stat.st_ctime_nsec)
    };
    let before = now();
    crate::common::until("a tick of the file system's clock", || now() != before);
}

/// A pool, and a directory for sources and restored trees.
pub struct World {
    pub dir: TempDir,
    pub pool: Pool,
    pub clock: Arc<AheadClock>,
}

impl World {
    pub fn new() -> World {
        World::tuned(|_| {})
    }

    pub fn tuned(change: impl Fn(&mut Tuning)) -> World {
        World::on(Arc::new(MemoryTarget::new()), Arc::new(MemoryLog::new()), change)
    }

    /// Returns a world by whose clock files have not changed for hours.
    pub fn on(
        target: Arc<dyn Target>,
        log: Arc<dyn ManifestLog>,
        change: impl Fn(&mut Tuning),
    ) -> World {
        let clock = Arc::new(AheadClock::default());
        clock.ahead_ns.store(5 * HOUR_NS, Ordering::Relaxed);
        let mut config = small_config();
        change(&mut config.tuning);
        let env = Environment { clock: clock.clone(), ..Environment::system() };
        let pool = Pool::new(config, target, log, env);
        World { dir: tempfile::tempdir().unwrap(), pool, clock }
    }

    /// Creates a directory in this world.
    pub fn directory(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }

    pub fn job(&self) -> Job {
        Job::open(&self.pool, "job", Default::default()).unwrap()
    }
}

pub fn put(job: &Job, path: &Path) -> Result<PutReport> {
    put_with(job, path, &PutOptions::default())
}

pub fn put_with(job: &Job, path: &Path, options: &PutOptions) -> Result<PutReport> {
    job.put(PutSource::Paths(&[path.to_path_buf()]), options)
}

/// Puts a path, and requires that there are no file errors.
pub fn put_whole(job: &Job, path: &Path) -> PutReport {
    let report = put(job, path).unwrap();
    assert!(report.troubles.is_empty(), "{:?}", report.troubles);
    report
}

pub fn checkpoint(job: &Job, epoch: Epoch) -> FilesImage {
    job.files(Select::Epoch(epoch)).unwrap().unwrap().0
}

pub fn into(to: &Path) -> GetOptions {
    GetOptions { to: to.to_path_buf(), ..GetOptions::default() }
}

/// Gets an epoch into a new directory below `dir`, and requires that there are no file errors.
pub fn got(job: &Job, epoch: Epoch, dir: &Path) -> Snapshot {
    let to = tempfile::tempdir_in(dir).unwrap();
    let report = get_whole(job, epoch, to.path());
    let snapshot = snapshot(to.path());
    // With several paths, `.` is no item.
    let count = snapshot.len() as u64;
    assert!((count - 1..=count).contains(&report.items), "{} of {count}", report.items);
    snapshot
}

pub fn get_whole(job: &Job, epoch: Epoch, to: &Path) -> GetReport {
    let report = checkpoint(job, epoch).get(&into(to)).unwrap();
    assert!(report.troubles.is_empty(), "{:?}", report.troubles);
    report
}

/// All visible properties of a file that a get restores.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    pub kind: FileType,
    pub mode: u32,
    pub owner: (u32, u32),
    pub mtime: (i64, i64),
    /// Length of a file, or number of a device.
    pub bytes: u64,
    /// Location of data: offset, length, fingerprint. The rest are holes.
    pub data: Vec<(u64, u64, Fingerprint)>,
    pub target: Vec<u8>,
    pub attributes: BTreeMap<Vec<u8>, Vec<u8>>,
    /// First name of the same file, if this is not the first.
    pub same_as: Option<Vec<u8>>,
}

pub type Snapshot = BTreeMap<Vec<u8>, Seen>;

/// Returns a snapshot of everything below a directory, and of `.` itself.
pub fn snapshot(path: &Path) -> Snapshot {
    let dir = OwnedFd::from(File::open(path).unwrap());
    let mut seen = Snapshot::new();
    let mut links = HashMap::new();
    let stat = fstat(&dir).unwrap();
    let above = File::open(path.parent().unwrap()).unwrap().into();
    let name = path.file_name().unwrap();
    seen.insert(b".".to_vec(), look(&above, std::os::unix::ffi::OsStrExt::as_bytes(name), &stat));
    walk(&dir, b"", &mut seen, &mut links);
    seen
}

type Links = HashMap<(u64, u64), Vec<u8>>;

fn walk(dir: &OwnedFd, above: &[u8], seen: &mut Snapshot, links: &mut Links) {
    let mut buffer = Vec::with_capacity(16 << 10);
    let mut names = Vec::new();
    let mut entries = RawDir::new(dir, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let name = entry.unwrap().file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    names.sort();
    for name in names {
        let path = if above.is_empty() { name.clone() } else { [above, &name].join(&b'/') };
        let stat = statat(dir, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW).unwrap();
        let mut item = look(dir, &name, &stat);
        if item.kind == FileType::Directory {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
            let below = openat(dir, name.as_slice(), flags, Mode::empty()).unwrap();
            walk(&below, &path, seen, links);
        } else if stat.st_nlink > 1 {
            let first = links.entry((stat.st_dev, stat.st_ino)).or_insert_with(|| path.clone());
            item.same_as = (*first != path).then(|| first.clone());
        }
        seen.insert(path, item);
    }
}

fn look(dir: &OwnedFd, name: &[u8], stat: &Stat) -> Seen {
    let kind = FileType::from_raw_mode(stat.st_mode);
    let mut seen = Seen {
        kind,
        mode: stat.st_mode & 0o7777,
        owner: (stat.st_uid, stat.st_gid),
        mtime: (stat.st_mtime, stat.st_mtime_nsec.cast_signed()),
        bytes: 0,
        data: Vec::new(),
        target: Vec::new(),
        attributes: attributes(dir, name),
        same_as: None,
    };
    match kind {
        FileType::RegularFile => {
            seen.bytes = stat.st_size as u64;
            // Not every user can read it.
            let file = openat(dir, name, OFlags::RDONLY, Mode::empty());
            seen.data = file.map(|file| data(&file)).unwrap_or_default();
        }
        FileType::Symlink => {
            seen.target = readlinkat(dir, name, Vec::new()).unwrap().into_bytes();
        }
        FileType::CharacterDevice | FileType::BlockDevice => seen.bytes = stat.st_rdev,
        _ => {}
    }
    seen
}

fn attributes(dir: &OwnedFd, name: &[u8]) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let path = [format!("/proc/self/fd/{}/", dir.as_raw_fd()).as_bytes(), name].concat();
    let mut names = vec![0; 64 << 10];
    let length = llistxattr(path.as_slice(), &mut names[..]).unwrap_or(0);
    let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names
        .map(|name| {
            let mut value = vec![0; 64 << 10];
            let length = lgetxattr(path.as_slice(), name, &mut value[..]).unwrap();
            (name.to_vec(), value[..length].to_vec())
        })
        .collect()
}

fn data(file: &OwnedFd) -> Vec<(u64, u64, Fingerprint)> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Ok(start) = seek(file, SeekFrom::Data(at)) {
        let end = seek(file, SeekFrom::Hole(start)).unwrap();
        let mut bytes = vec![0; (end - start) as usize];
        let file = File::from(file.try_clone().unwrap());
        file.read_exact_at(&mut bytes, start).unwrap();
        found.push((start, end - start, fingerprint(&bytes)));
        at = end;
    }
    found
}

/// Panics if two trees differ, with the first path at which they do.
#[track_caller]
pub fn same(found: &Snapshot, expected: &Snapshot, what: &str) {
    if found == expected {
        return;
    }
    for (path, item) in expected {
        let name = path.escape_ascii().to_string();
        assert_eq!(found.get(path), Some(item), "{what}: {:.200}", name);
    }
    for path in found.keys() {
        assert!(expected.contains_key(path), "{what}: {:.200} is too much", path.escape_ascii());
    }
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Sets the mtime of a file; of a link, its own.
pub fn set_mtime(path: &Path, s: i64, ns: i64) {
    let time = Timespec { tv_sec: s, tv_nsec: ns };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(rustix::fs::CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// Creates a file with data at some offsets, and holes between.
pub fn sparse(path: &Path, length: u64, data: &[(u64, &[u8])]) {
    let file = File::create(path).unwrap();
    file.set_len(length).unwrap();
    for (offset, bytes) in data {
        file.write_all_at(bytes, *offset).unwrap();
    }
}

pub fn edit(path: &Path, offset: u64, bytes: &[u8]) {
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
}

pub fn thorough() -> Thoroughness {
    Thoroughness { unused_max: 0.0, ..Thoroughness::default() }
}

pub fn prune(pool: &Pool, epochs: &[Epoch]) -> Result<GcReport> {
    let drop = [(JobName::new("job").unwrap(), epochs.iter().copied().collect())].into();
    collect(pool, &GcOptions { drop, thoroughness: thorough(), ..GcOptions::default() })
}

pub fn stored_bytes(target: &dyn Target) -> u64 {
    target.list().unwrap().into_iter().map(|shard| target.length(shard).unwrap()).sum()
}
