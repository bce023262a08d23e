//! The guarantees of targets and logs, over encrypted ones, and what they hide.

use crate::tags::{encrypted_bytes, plain_bytes};
use crate::{EncryptedMedium, EncryptedTarget, Encryption, PoolKey};
use outlive_backend::conformance::{check_log, check_medium, check_target};
use outlive_backend::{
    Capacity, Fault, MemoryTarget, ReadRange, ReadTicket, ShardName, ShardWriter, Target,
    WriteTicket, read_one,
};
use outlive_dir::DirectoryMedium;
use outlive_io::{AlignedBuf, SharedBuf, Ticket};
use outlive_log::{LogRecords, MemoryMedium, RecordLog};
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, ErrorKind, JobName, PackId, Result, Rng, SeededRng, SessionId};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

fn encryption() -> Arc<Encryption> {
    Arc::new(Encryption::new().unwrap())
}

fn name(pack: u32, shard: u8) -> ShardName {
    ShardName { pack: PackId::new(SessionId([0xE0; 12]), 0, pack), shard }
}

#[test]
fn it_keeps_the_guarantees_of_a_target() {
    check_target(|| Arc::new(EncryptedTarget::new(Arc::new(MemoryTarget::new()), encryption())));
}

#[test]
fn lengths_are_found_again() {
    for pages in (0..2000).chain([65_536, 262_143, 262_144]) {
        let length = pages * 4096;
        assert_eq!(plain_bytes(encrypted_bytes(length)), Some(length));
    }
    assert_eq!(encrypted_bytes(1), 8192);
    // Of 257 pages, one is of a table that would need two.
    assert_eq!(plain_bytes(257 * 4096), None);
    assert_eq!(encrypted_bytes(u64::MAX), u64::MAX);
}

fn content(seed: u64, pages: usize) -> Vec<u8> {
    let mut bytes = vec![0; pages * 4096];
    SeededRng::new(seed).fill(&mut bytes);
    bytes
}

fn write(target: &dyn Target, shard: ShardName, bytes: &[u8]) {
    let mut writer = target.create(shard, bytes.len() as u64).unwrap();
    let mut buffer = AlignedBuf::zeroed(bytes.len());
    buffer.copy_from_slice(bytes);
    writer.write(0, buffer.share()).wait().unwrap();
    writer.finish(bytes.len() as u64).wait().unwrap();
}

fn read(target: &dyn Target, shard: ShardName, offset: u64, pages: usize) -> Result<Vec<u8>> {
    let range = ReadRange::new(offset, AlignedBuf::zeroed(pages * 4096));
    Ok(read_one(target, shard, range).wait()?.to_vec())
}

/// The bytes of a shard as the backend has them.
fn raw(target: &MemoryTarget, shard: ShardName) -> Vec<u8> {
    read(target, shard, 0, target.length(shard).unwrap() as usize / 4096).unwrap()
}

fn put_raw(target: &MemoryTarget, shard: ShardName, bytes: &[u8]) {
    target.delete(shard).unwrap();
    write(target, shard, bytes);
}

#[test]
fn it_keeps_the_guarantees_of_a_log() {
    let encrypted = || EncryptedMedium::new(Arc::new(MemoryMedium::default()), encryption());
    check_medium(move || Arc::new(encrypted()));
    check_log(false, move || Arc::new(RecordLog::over(Arc::new(encrypted()))));
    let dir = tempfile::tempdir().unwrap();
    let count = Mutex::new(0);
    check_log(true, move || {
        *count.lock() += 1;
        let medium = DirectoryMedium::open(&dir.path().join(count.lock().to_string()));
        Arc::new(RecordLog::over(Arc::new(EncryptedMedium::new(Arc::new(medium), encryption()))))
    });
}

#[test]
fn each_changed_page_is_found() {
    let below = Arc::new(MemoryTarget::new());
    let encryption = encryption();
    let fresh = || EncryptedTarget::new(below.clone(), encryption.clone());
    let (shard, plain) = (name(1, 0), content(1, 300));
    write(&fresh(), shard, &plain);
    let stored = raw(&below, shard);
    assert_eq!(stored.len(), 302 * 4096);
    let is_hidden = |page: &[u8]| !stored.windows(32).step_by(16).any(|at| at == &page[..32]);
    assert!(plain.chunks(4096).all(is_hidden));
    // A bit of each page, and of each page of the table.
    for page in (0..302).step_by(7).chain([253, 254, 255, 299, 300, 301]) {
        let mut changed = stored.clone();
        changed[page * 4096 + 17 * page % 4096] ^= 4;
        put_raw(&below, shard, &changed);
        let target = fresh();
        let wrong: Vec<usize> = (0..300_usize)
            .filter(|at| match read(&target, shard, *at as u64 * 4096, 1) {
                Ok(bytes) => {
                    assert!(bytes == plain[at * 4096..][..4096], "page {at} after {page}");
                    false
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
                    true
                }
            })
            .collect();
        match page {
            0..300 => assert_eq!(wrong, [page]),
            // Its salt or its tags: the rest of the last table is padding.
            _ => assert!(!wrong.is_empty() || page == 301, "{page}"),
        }
    }
    put_raw(&below, shard, &stored);
    assert_eq!(read(&fresh(), shard, 0, 300).unwrap(), plain);
}

#[test]
fn shards_and_pages_cannot_change_places() {
    let below = Arc::new(MemoryTarget::new());
    let encryption = encryption();
    let target = EncryptedTarget::new(below.clone(), encryption.clone());
    write(&target, name(1, 0), &content(1, 20));
    write(&target, name(1, 1), &content(2, 20));
    let (one, two) = (raw(&below, name(1, 0)), raw(&below, name(1, 1)));
    let damaged = |shard, bytes: &[u8]| {
        put_raw(&below, shard, bytes);
        let error = read(&target, shard, 0, 20).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
        assert!(error.message().contains("were changed, or are of another pool"), "{error}");
    };
    damaged(name(1, 0), &two);
    damaged(name(2, 0), &one);
    let mut swapped = one.clone();
    swapped[..8192].rotate_left(4096);
    let tags = 20 * 4096 + 16;
    swapped[tags..tags + 32].rotate_left(16);
    damaged(name(1, 0), &swapped);
    // Cut to fewer pages, with the tags of those.
    let mut cut = one[..10 * 4096].to_vec();
    cut.extend_from_slice(&one[20 * 4096..]);
    put_raw(&below, name(1, 0), &cut);
    assert_eq!(read(&target, name(1, 0), 0, 20).unwrap_err().kind(), ErrorKind::Damaged);
    // With another key there is nothing.
    put_raw(&below, name(1, 0), &one);
    let other = EncryptedTarget::new(below.clone(), self::encryption());
    assert_eq!(read(&other, name(1, 0), 0, 20).unwrap_err().kind(), ErrorKind::Damaged);
    assert_eq!(read(&target, name(1, 0), 0, 20).unwrap(), content(1, 20));
}

#[test]
fn a_shard_that_another_process_has_replaced_is_read_again() {
    let below = Arc::new(MemoryTarget::new());
    let encryption = encryption();
    let one = EncryptedTarget::new(below.clone(), encryption.clone());
    let other = EncryptedTarget::new(below.clone(), encryption);
    write(&one, name(1, 0), &content(1, 30));
    assert_eq!(read(&one, name(1, 0), 4096, 2).unwrap(), content(1, 30)[4096..3 * 4096]);
    let mut writer = other.replace(name(1, 0), 30 * 4096).unwrap();
    let mut buffer = AlignedBuf::zeroed(30 * 4096);
    buffer.copy_from_slice(&content(1, 30));
    writer.write(0, buffer.share()).wait().unwrap();
    writer.finish(30 * 4096).wait().unwrap();
    assert_eq!(read(&one, name(1, 0), 4096, 2).unwrap(), content(1, 30)[4096..3 * 4096]);
    assert_eq!(read(&one, name(1, 0), 0, 30).unwrap(), content(1, 30));
}

/// Where the bytes of each write were in memory, and the bytes.
type Seen = Arc<Mutex<Vec<(usize, Vec<u8>)>>>;

/// A target whose first write fails, and which keeps what it was to write.
#[derive(Debug)]
struct Failing {
    inner: MemoryTarget,
    seen: Seen,
}

struct FailingWriter {
    inner: Box<dyn ShardWriter>,
    seen: Seen,
}

impl ShardWriter for FailingWriter {
    fn write(&mut self, offset: u64, bytes: SharedBuf) -> WriteTicket {
        self.seen.lock().push((bytes.as_ptr().addr(), bytes.to_vec()));
        if self.seen.lock().len() == 1 {
            return Ticket::done(Err(Fault { error: Error::retry("a test"), buffer: bytes }));
        }
        self.inner.write(offset, bytes)
    }

    fn finish(self: Box<Self>, length: u64) -> Ticket<Result<()>> {
        self.inner.finish(length)
    }
}

impl Target for Failing {
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn create(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>> {
        let inner = self.inner.create(shard, bytes_max)?;
        Ok(Box::new(FailingWriter { inner, seen: self.seen.clone() }))
    }
    fn replace(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>> {
        self.create(shard, bytes_max)
    }
    fn read_ranges(&self, shard: ShardName, ranges: Vec<ReadRange>) -> Vec<ReadTicket> {
        self.inner.read_ranges(shard, ranges)
    }
    fn length(&self, shard: ShardName) -> Result<u64> {
        self.inner.length(shard)
    }
    fn list(&self) -> Result<Vec<ShardName>> {
        self.inner.list()
    }
    fn delete(&self, shard: ShardName) -> Result<()> {
        self.inner.delete(shard)
    }
    fn capacity(&self) -> Result<Capacity> {
        self.inner.capacity()
    }
}

/// Two texts under one nonce would betray both, and the key of their tags.
#[test]
fn a_repeated_write_encrypts_nothing_again() {
    for has_other_holder in [false, true] {
        let seen = Seen::default();
        let below = Failing { inner: MemoryTarget::new(), seen: seen.clone() };
        let target = EncryptedTarget::new(Arc::new(below), encryption());
        let mut writer = target.create(name(1, 0), 8 * 4096).unwrap();
        let first = buffer(1);
        let at = first.as_ptr().addr();
        let held = has_other_holder.then(|| first.clone());
        let failed = writer.write(0, first).wait().unwrap_err();
        assert_eq!(failed.buffer.to_vec(), content(1, 8), "the caller's bytes come back");
        assert!(held.is_none_or(|held| *held == content(1, 8)), "another holder's bytes changed");
        // The caller's memory has changed meanwhile.
        writer.write(0, buffer(2)).wait().unwrap();
        writer.finish(8 * 4096).wait().unwrap();
        let seen = seen.lock();
        assert_eq!(seen[0], seen[1]);
        assert_eq!(seen[0].0 != at, has_other_holder, "only a copy is elsewhere");
        assert_eq!(read(&target, name(1, 0), 0, 8).unwrap(), content(1, 8));
        // Another writer has another key.
        let again = EncryptedTarget::new(Arc::new(MemoryTarget::new()), target.encryption());
        write(&again, name(1, 0), &content(1, 8));
        assert_ne!(read(&*again.below(), name(1, 0), 0, 8).unwrap(), seen[0].1);
    }
}

/// The only holder of a buffer needs no copy of it. Targets of a mirror share one.
#[test]
fn bytes_are_encrypted_in_place_only_for_their_last_holder() {
    let target = EncryptedTarget::new(Arc::new(MemoryTarget::new()), encryption());
    let mut writers = [1, 2].map(|id| target.create(name(id, 0), 8 * 4096).unwrap());
    let first = buffer(1);
    writers[0].write(0, first.clone()).wait().unwrap();
    assert_eq!(first.to_vec(), content(1, 8));
    writers[1].write(0, first).wait().unwrap();
    for writer in writers {
        writer.finish(8 * 4096).wait().unwrap();
    }
    for id in [1, 2] {
        assert_eq!(read(&target, name(id, 0), 0, 8).unwrap(), content(1, 8));
    }
}

fn buffer(seed: u64) -> SharedBuf {
    let mut buffer = AlignedBuf::zeroed(8 * 4096);
    buffer.copy_from_slice(&content(seed, 8));
    buffer.share()
}

#[test]
fn records_cannot_change_places() {
    let below = Arc::new(MemoryMedium::default());
    let medium = EncryptedMedium::new(below.clone(), encryption());
    let job = |name| JobName::new(name).unwrap();
    medium.put_new(&job("a"), 1, b"the record of a").unwrap();
    medium.put_new(&job("a"), 2, b"the record of a").unwrap();
    let (first, second) =
        (below.get(&job("a"), 1).unwrap().unwrap(), below.get(&job("a"), 2).unwrap().unwrap());
    assert_ne!(first, second, "an observer does not see that two records are equal");
    assert!(!first.windows(6).any(|at| at == b"record"));
    below.put_new(&job("b"), 1, &first).unwrap();
    below.put_new(&job("a"), 3, &first).unwrap();
    below.put_new(&job("a"), 4, b"the record of a, as it is").unwrap();
    let mut flipped = first.clone();
    flipped[25] ^= 1;
    below.put_new(&job("a"), 5, &flipped).unwrap();
    for (name, number) in [("b", 1), ("a", 3), ("a", 4), ("a", 5)] {
        let error = medium.get(&job(name), number).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
        assert!(error.message().contains(&format!("record {number} of job {name}")), "{error}");
    }
    assert_eq!(medium.get(&job("a"), 1).unwrap().unwrap(), b"the record of a");
}

/// Returns the places where `wanted` is in the memory that a core file of this process would hold.
/// `wanted` is masked, so that it does not find itself.
fn found_in_memory(wanted: &[u8]) -> Vec<String> {
    let unmasked = |at: usize| wanted[at] ^ MASK;
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let memory = File::open("/proc/self/mem").unwrap();
    let (mut found, mut range) = (Vec::new(), None);
    let mut buffer = vec![0_u8; 1 << 20];
    for line in maps.lines() {
        let first = line.split(' ').next().unwrap();
        let addresses = first.split_once('-').and_then(|(from, to)| {
            Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?))
        });
        if addresses.is_some() {
            range = addresses;
        }
        let is_dumped =
            line.starts_with("VmFlags:") && !line.contains(" dd") && line.contains(" rd");
        let Some((from, to)) = range.filter(|_| is_dumped) else { continue };
        let mut at = from;
        while at < to {
            let length = buffer.len().min((to - at) as usize);
            if memory.read_exact_at(&mut buffer[..length], at).is_err() {
                break; // such as the pages of the kernel
            }
            let is_there = |window: &[u8]| {
                window[0] == unmasked(0) && (1..wanted.len()).all(|i| window[i] == unmasked(i))
            };
            if buffer[..length].windows(wanted.len()).any(is_there) {
                found.push(format!("{at:x}: {line}"));
            }
            at += (length - wanted.len().min(length - 1)) as u64;
            if to - at <= wanted.len() as u64 {
                break;
            }
        }
        buffer.fill(0);
    }
    found
}

const MASK: u8 = 0x5A;

/// In a thread of its own, whose stack the keys pass through.
#[test]
fn keys_are_in_no_core_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    PoolKey::write_new(&path).unwrap();
    let masked = |bytes: &[u8]| bytes.iter().map(|byte| byte ^ MASK).collect::<Vec<u8>>();
    // The digits are masked byte by byte, and are nowhere else in this process.
    let digits = {
        let file = File::open(&path).unwrap();
        (0..64_u64)
            .map(|at| {
                let mut byte = [0];
                file.read_exact_at(&mut byte, at).unwrap();
                byte[0] ^ MASK
            })
            .collect::<Vec<u8>>()
    };
    let key = PoolKey::from_file(&path).unwrap();
    let encryption = Arc::new(Encryption::new().unwrap());
    let wrapped = encryption.wrap("pool", &key).unwrap();
    let encryption = Arc::new(Encryption::unwrap(&wrapped, "pool", &key).unwrap());
    let below = Arc::new(MemoryTarget::new());
    let target = EncryptedTarget::new(below, encryption.clone());
    write(&target, name(1, 0), &content(1, 300));
    assert_eq!(read(&target, name(1, 0), 0, 300).unwrap(), content(1, 300));
    let sealed = encryption.encrypt(b"context", b"plain").unwrap();
    assert_eq!(encryption.decrypt(b"context", sealed).unwrap(), b"plain");
    let secrets = encryption.secrets(&key, masked);
    // The search finds what is there.
    let there = content(77, 1);
    assert!(!found_in_memory(&masked(&there[..32])).is_empty());
    drop(there);
    assert_eq!(found_in_memory(&digits), [""; 0], "the digits");
    for (number, secret) in secrets.iter().enumerate() {
        assert_eq!(found_in_memory(secret), [""; 0], "secret {number}");
    }
}
