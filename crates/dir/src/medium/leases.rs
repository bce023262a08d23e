//! Leases of a log in a directory. Each is a lock on one byte of a file beside the jobs. The lock
//! belongs to the open file (`F_OFD_SETLK`). So the kernel ends it with the last process that has
//! the file open, however that process ends.

use super::locks::Locks;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use outlive_log::{Lease, LockGuard};
use outlive_types::{Result, Rng, SystemRng};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process;

/// A name that no job's directory has, as this is a file.
pub(super) const LEASES: &str = ".leases.lock";

/// Number of bytes from which each lease takes one at random; most are beyond the end of the file.
const BYTES: u64 = 1 << 62;

/// Length of the random name in the file. The name shows whether the file is the same one: if the
/// file is deleted and made again, or belongs to another log, its name and locks differ.
const NAME_DIGITS: usize = 16;

/// Names the lock of a lease, and the processes that see it: `NAME BYTE SYSTEM DEVICE REACH`,
/// separated by spaces.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Token {
    /// The name in the file.
    name: String,
    byte: u64,
    seen: Seen,
}

/// The point from which a process sees locks.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Seen {
    /// The boot id of the holder's kernel.
    system: String,
    /// Number of the file system in that kernel.
    device: u64,
    reach: Reach,
}

/// The processes that see the locks of a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reach {
    /// The processes of all hosts that use it.
    Shared,
    /// All processes that can use it, since one kernel at a time has it.
    Disk,
    /// Only processes of the same kernel, on the same device; about others nothing is known.
    Local,
}

/// The words for these in tokens.
const REACHES: [(&str, Reach); 3] =
    [("shared", Reach::Shared), ("disk", Reach::Disk), ("local", Reach::Local)];

impl Token {
    fn to_text(&self) -> String {
        let Token { name, byte, seen: Seen { system, device, reach } } = self;
        let reach = REACHES.iter().find(|(_, one)| one == reach).map_or("", |(text, _)| text);
        format!("{name} {byte:x} {system} {device:x} {reach}")
    }

    fn parse(text: &str) -> Option<Token> {
        let [name, byte, system, device, reach] = text.split(' ').collect::<Vec<_>>()[..] else {
            return None;
        };
        if name.len() != NAME_DIGITS || system.is_empty() {
            return None;
        }
        let seen = Seen {
            system: system.to_owned(),
            device: u64::from_str_radix(device, 16).ok()?,
            reach: REACHES.iter().find(|(text, _)| *text == reach)?.1,
        };
        let byte = u64::from_str_radix(byte, 16).ok().filter(|byte| *byte < BYTES)?;
        Some(Token { name: name.to_owned(), byte, seen })
    }
}

impl Seen {
    /// Whether processes at each point see the locks taken at the other.
    fn is_also(&self, other: &Seen) -> bool {
        let is_one_kernel = self.system == other.system && self.device == other.device;
        is_one_kernel || self.reach == other.reach && self.reach != Reach::Local
    }
}

/// Takes a lease by a lock on a random byte. `None` if the system has no such locks, or the file
/// cannot be made.
pub(super) fn take(locks: &Locks, dir: &Path) -> Result<Option<Lease>> {
    let boxed = |(token, guard): (Token, Guard)| Lease {
        token: token.to_text(),
        guard: LockGuard::new(guard),
    };
    Ok(locks.open(LEASES)?.and_then(|file| lock(file, dir)).map(boxed))
}

fn lock(file: File, dir: &Path) -> Option<(Token, Guard)> {
    let token = Token { seen: seen(dir, &file)?, name: make_name(&file)?, byte: random() % BYTES };
    fcntl(&file, FcntlArg::F_OFD_SETLK(&lock_of(token.byte, libc::F_WRLCK))).ok()?;
    let guard = Guard { file, byte: token.byte, pid: process::id() };
    Some((token, guard))
}

/// Whether the lock of a lease is free; `None` if this process cannot see that.
pub(super) fn has_ended(dir: &Path, token: &str) -> Option<bool> {
    let token = Token::parse(token)?;
    let file = File::open(dir.join(LEASES)).ok()?;
    if name_in(&file)? != token.name || !token.seen.is_also(&seen(dir, &file)?) {
        return None;
    }
    let mut lock = lock_of(token.byte, libc::F_WRLCK);
    fcntl(&file, FcntlArg::F_OFD_GETLK(&mut lock)).ok()?;
    Some(lock.l_type == libc::F_UNLCK as libc::c_short)
}

/// The name in the file; `None` if it has none yet.
fn name_in(file: &File) -> Option<String> {
    let mut name = [0; NAME_DIGITS];
    file.read_exact_at(&mut name, 0).ok()?;
    String::from_utf8(name.to_vec()).ok()
}

/// Returns the name in the file. Names a file without one: it is new, or its maker was killed
/// before it wrote the name.
fn make_name(file: &File) -> Option<String> {
    if let Some(name) = name_in(file) {
        return Some(name);
    }
    // One process at a time writes the name.
    fcntl(file, FcntlArg::F_OFD_SETLKW(&lock_of(BYTES, libc::F_WRLCK))).ok()?;
    let name = name_in(file).or_else(|| {
        let name = format!("{:016x}", random());
        file.write_all_at(name.as_bytes(), 0).ok().map(|()| name)
    });
    fcntl(file, FcntlArg::F_OFD_SETLK(&lock_of(BYTES, libc::F_UNLCK))).ok()?;
    name
}

fn random() -> u64 {
    let mut random = [0; 8];
    SystemRng.fill(&mut random);
    u64::from_le_bytes(random)
}

/// A lock on one byte.
fn lock_of(byte: u64, kind: libc::c_int) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: byte.cast_signed(),
        l_len: 1,
        l_pid: 0,
    }
}

/// A hold on a lease. A forked child shares it, and must leave it to its parent.
struct Guard {
    file: File,
    byte: u64,
    pid: u32,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.pid == process::id() {
            let _ = fcntl(&self.file, FcntlArg::F_OFD_SETLK(&lock_of(self.byte, libc::F_UNLCK)));
        }
    }
}

/// Returns the point from which this process sees the locks of a file in a directory. `None` if the
/// system does not say.
fn seen(dir: &Path, file: &File) -> Option<Seen> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let system = Some(boot.trim()).filter(|boot| !boot.is_empty())?.to_owned();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let reach = reach(&mounts, &fs::canonicalize(dir).ok()?);
    Some(Seen { system, device: file.metadata().ok()?.dev(), reach })
}

/// Returns the reach of locks on the file system of a directory, by the text of
/// /proc/self/mountinfo.
fn reach(mounts: &str, dir: &Path) -> Reach {
    // The mount point is the fifth field before the hyphen; type, source and options follow it.
    let mounted = mounts.lines().filter_map(|line| {
        let (mount, system) = line.split_once(" - ")?;
        let point = unescape(mount.split(' ').nth(4)?);
        let mut system = system.split(' ');
        dir.starts_with(&point).then_some((point, system.next()?, system.nth(1)?))
    });
    // Of two file systems at one mount point, the later one is on top.
    let Some((_, kind, options)) = mounted.max_by_key(|(point, ..)| point.as_os_str().len()) else {
        return Reach::Local;
    };
    let has = |option: &str| options.split(',').any(|one| one == option);
    match kind {
        "nfs" | "nfs4" if has("local_lock=none") => Reach::Shared,
        "lustre" if has("flock") => Reach::Shared,
        "ceph" | "fuse.ceph" | "fuse.ceph-fuse" | "fuse.glusterfs" => Reach::Shared,
        "ext2" | "ext3" | "ext4" | "xfs" | "btrfs" | "f2fs" | "bcachefs" | "zfs" => Reach::Disk,
        "tmpfs" | "ramfs" => Reach::Disk,
        _ => Reach::Local,
    }
}

/// Decodes a path of mountinfo: spaces and the like are octal numbers behind backslashes.
fn unescape(text: &str) -> PathBuf {
    let named = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    PathBuf::from(named.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn locked(dir: &Path) -> (Token, Guard) {
        lock(Locks::new(dir.to_owned()).open(LEASES).unwrap().unwrap(), dir).unwrap()
    }

    fn leases(dir: &Path) -> (Locks, Lease) {
        let locks = Locks::new(dir.to_owned());
        let lease = take(&locks, dir).unwrap().unwrap();
        (locks, lease)
    }

    #[test]
    fn a_lease_ends_with_its_guard_and_not_with_another_one() {
        let dir = tempfile::tempdir().unwrap();
        let (locks, lease) = leases(dir.path());
        let other = take(&locks, dir.path()).unwrap().unwrap();
        assert_ne!(lease.token, other.token);
        assert_eq!(has_ended(dir.path(), &lease.token), Some(false));
        let Lease { token, guard } = lease;
        drop(guard);
        assert_eq!(has_ended(dir.path(), &token), Some(true));
        assert_eq!(has_ended(dir.path(), &other.token), Some(false));
    }

    /// A program may fork workers that end before it, and may close the job while workers go on.
    #[test]
    fn a_forked_child_leaves_the_lease_to_its_parent() {
        let dir = tempfile::tempdir().unwrap();
        let (token, of_parent) = locked(dir.path());
        let left_open = of_parent.file.try_clone().unwrap();
        let file = of_parent.file.try_clone().unwrap();
        let of_child = Guard { file, byte: token.byte, pid: process::id() + 1 };
        drop(of_child);
        assert_eq!(has_ended(dir.path(), &token.to_text()), Some(false));
        drop(of_parent);
        let ended = has_ended(dir.path(), &token.to_text());
        assert_eq!(ended, Some(true), "while a child has the file open");
        drop(left_open);
    }

    #[test]
    fn a_lease_ends_with_its_process() {
        let dir = tempfile::tempdir().unwrap();
        let (token, mut guard) = locked(dir.path());
        let token = token.to_text();
        // First a child also has the open file, and then only it, as if it had taken the lease.
        let file = guard.file.try_clone().unwrap();
        let mut child =
            Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::from(file)).spawn().unwrap();
        guard.pid = 0; // so this process only closes the file
        drop(guard);
        assert_eq!(has_ended(dir.path(), &token), Some(false));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(has_ended(dir.path(), &token), Some(true));
    }

    /// A purge by age deletes files in use. Then nothing is known, and every writer counts as
    /// running.
    #[test]
    fn of_a_file_that_was_deleted_and_made_again_nothing_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let (locks, lease) = leases(dir.path());
        fs::remove_file(dir.path().join(LEASES)).unwrap();
        assert_eq!(has_ended(dir.path(), &lease.token), None);
        let other = take(&locks, dir.path()).unwrap().unwrap();
        assert_eq!(has_ended(dir.path(), &other.token), Some(false));
        assert_eq!(has_ended(dir.path(), &lease.token), None);
    }

    #[test]
    fn locks_that_this_host_does_not_see_say_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (_locks, lease) = leases(dir.path());
        let token = Token::parse(&lease.token).unwrap();
        let other_byte = Token { byte: (token.byte + 1) % BYTES, ..token.clone() };
        assert_eq!(has_ended(dir.path(), &other_byte.to_text()), Some(true));
        let here = token.seen.clone();
        let elsewhere = |system: &str, device: u64, reach: Reach| {
            let seen = Seen { system: system.to_owned(), device, reach };
            has_ended(dir.path(), &Token { seen, ..other_byte.clone() }.to_text())
        };
        assert_eq!(elsewhere(&here.system, here.device, Reach::Local), Some(true));
        assert_eq!(elsewhere("another", here.device, Reach::Local), None);
        // Another mount of the same kernel may have locks of its own.
        assert_eq!(elsewhere(&here.system, here.device + 1, Reach::Local), None);
        // The holder saw a file system that shows locks to all hosts; here it does not.
        assert_eq!(elsewhere("another", here.device, Reach::Shared), None);
        let seen = |system: &str, device, reach| Seen { system: system.to_owned(), device, reach };
        for reach in [Reach::Shared, Reach::Disk] {
            assert!(seen("a", 1, reach).is_also(&seen("b", 2, reach)), "{reach:?}");
            assert!(!seen("a", 1, reach).is_also(&seen("b", 1, Reach::Local)), "{reach:?}");
        }
        assert!(!seen("a", 1, Reach::Shared).is_also(&seen("b", 1, Reach::Disk)));
        assert!(!seen("a", 1, Reach::Local).is_also(&seen("b", 1, Reach::Local)));
        let name = "0123456789abcdef";
        for text in ["", "1", "1 2 3 4 local", "NAME x boot 1 local", "NAME 1  1 local"] {
            assert_eq!(Token::parse(&text.replace("NAME", name)), None, "{text:?}");
        }
        assert_eq!(Token::parse(&format!("{name} 4000000000000000 b 1 local")), None);
    }

    /// The maker was killed before it named the file, or several writers come at once.
    #[test]
    fn the_file_gets_one_name() {
        let dir = tempfile::tempdir().unwrap();
        for begun in ["", "half"] {
            fs::write(dir.path().join(LEASES), begun).unwrap();
            let tokens: Vec<String> = std::thread::scope(|scope| {
                let take = || leases(dir.path()).1.token;
                let takers: Vec<_> = (0..8).map(|_| scope.spawn(take)).collect();
                takers.into_iter().map(|taker| taker.join().unwrap()).collect()
            });
            let names: Vec<String> =
                tokens.iter().map(|token| Token::parse(token).unwrap().name).collect();
            assert!(names.iter().all(|name| *name == names[0]), "{names:?}");
            assert!(tokens.iter().all(|token| has_ended(dir.path(), token) == Some(true)));
        }
    }

    #[test]
    fn file_systems_say_which_processes_see_their_locks() {
        let root = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n";
        let of = |mount: &str, dir: &str| reach(&format!("{root}{mount}"), Path::new(dir));
        let shared = |mount: &str, dir: &str| of(mount, dir) == Reach::Shared;
        let nfs =
            "40 22 0:44 / /data rw shared:9 - nfs4 server:/x rw,vers=4.2,local_lock=none,addr=1\n";
        assert!(shared(nfs, "/data/pool/log"));
        assert!(!shared(nfs, "/database/pool/log"));
        assert!(!shared(&nfs.replace("local_lock=none", "local_lock=all"), "/data/pool/log"));
        let lustre = "41 22 0:45 / /my\\040scratch rw - lustre mgs@tcp:/fs rw,flock,lazystatfs\n";
        assert!(shared(lustre, "/my scratch/pool/log"));
        assert!(!shared(&lustre.replace(",flock", ",localflock"), "/my scratch/pool/log"));
        // Another file system is mounted above or below.
        let above = format!("{nfs}42 40 8:2 / /data/local rw - xfs /dev/sdb rw\n");
        assert!(!shared(&above, "/data/local/log"));
        assert!(!shared(&format!("{nfs}43 40 8:2 / /data rw - xfs /dev/sdb rw\n"), "/data/log"));
        assert_eq!(of("", "/data"), Reach::Disk);
        let overlay = "44 22 0:50 / /data rw - overlay overlay rw,lowerdir=/a,upperdir=/b\n";
        assert_eq!(of(overlay, "/data/pool/log"), Reach::Local);
        assert_eq!(reach("", Path::new("/data")), Reach::Local);
        assert_eq!(reach("nonsense - nfs", Path::new("/")), Reach::Local);
    }
}
