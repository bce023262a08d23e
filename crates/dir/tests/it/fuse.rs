//! A directory in a FUSE file system whose server keeps the flags of each open file. With O_DIRECT
//! the server refuses all reads and writes, like servers without aligned buffers. It does not learn
//! that the client cleared the flag. Skipped where no file system can be mounted.

mod server;

use fuser::{BackgroundSession, Config, spawn_mount};
use outlive_backend::conformance::{check_log, check_target};
use outlive_backend::{ReadRange, ShardName, ShardWriter, Target};
use outlive_dir::{DirectoryMedium, DirectoryOptions, DirectoryTarget};
use outlive_io::AlignedBuf;
use outlive_log::{Append, ManifestLog, Previous, RecordLog};
use outlive_types::{Event, JobName, Observer, PAGE_BYTES, PackId, Result, SessionId};
use server::{Deed, Server};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

/// A mounted file system; dropping it unmounts.
struct Mounted {
    session: Option<BackgroundSession>,
    refused: Arc<AtomicUsize>,
    deeds: Arc<Mutex<Vec<Deed>>>,
    fails: Arc<AtomicBool>,
    mountpoint: TempDir,
    _backing: TempDir,
}

impl Mounted {
    fn new() -> Option<Mounted> {
        let (backing, mountpoint) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let server = Server::new(backing.path());
        let (refused, deeds, fails) =
            (server.refused.clone(), server.deeds.clone(), server.fails.clone());
        match spawn_mount(server, mountpoint.path(), &Config::default()) {
            Ok(session) => {
                let session = Some(session);
                Some(Mounted { session, refused, deeds, fails, mountpoint, _backing: backing })
            }
            Err(error) => {
                eprintln!("skipped: FUSE file systems cannot be mounted here ({error})");
                None
            }
        }
    }

    fn path(&self) -> &Path {
        self.mountpoint.path()
    }

    /// Checks durability of the file with the name `to`: its bytes before it got the name; now the
    /// name, and the names of `above` directories above it.
    fn check_durable(&self, to: &str, above: usize) {
        let deeds = self.deeds.lock().unwrap();
        let is_it = |deed: &Deed| matches!(deed, Deed::Named { to: it, .. } if it.ends_with(to));
        let named = deeds.iter().rposition(is_it).unwrap_or_else(|| panic!("{to}: {deeds:?}"));
        let Deed::Named { from, to } = &deeds[named] else { unreachable!() };
        // The name may be that of a link, which was renamed.
        let linked = deeds[..named].iter().rev().find_map(|deed| match deed {
            Deed::Named { from: file, to } if to == from => Some(file),
            _ => None,
        });
        let from = linked.unwrap_or(from);
        let wrote = deeds.iter().rposition(|deed| *deed == Deed::Wrote(from.clone())).unwrap();
        let synced = &deeds[wrote..named];
        assert!(synced.contains(&Deed::Synced(from.clone())), "{from:?} is written: {deeds:?}");
        for above in to.ancestors().skip(1).take(1 + above) {
            let synced = &deeds[if above == to.parent().unwrap() { named } else { 0 }..];
            assert!(synced.contains(&Deed::Synced(above.to_owned())), "{above:?}: {deeds:?}");
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.session.take().map(BackgroundSession::umount_and_join) {
            eprintln!("unmounting {}: {error}", self.path().display());
        }
    }
}

#[derive(Default)]
struct Told(Mutex<Vec<Event>>);

impl Observer for Told {
    fn event(&self, event: Event) {
        self.0.lock().unwrap().push(event);
    }
}

fn opened(root: &Path) -> (DirectoryTarget, Arc<Told>) {
    let told = Arc::new(Told::default());
    let options = DirectoryOptions { observer: told.clone(), ..DirectoryOptions::default() };
    (DirectoryTarget::open(root, &options).unwrap(), told)
}

fn put(target: &DirectoryTarget, shard: ShardName, byte: u8) {
    let mut writer = target.create(shard, 1 << 20).unwrap();
    let writes: Vec<_> = (0..8)
        .map(|at| {
            let mut buffer = AlignedBuf::zeroed(PAGE_BYTES);
            buffer.fill(byte + at as u8);
            writer.write((at * PAGE_BYTES) as u64, buffer.share())
        })
        .collect();
    writes.into_iter().for_each(|write| write.wait().unwrap());
    writer.finish(8 * PAGE_BYTES as u64).wait().unwrap();
}

/// Finishes a shard with one page of `byte`.
fn put_page(begun: Result<Box<dyn ShardWriter>>, byte: u8) -> Result<()> {
    let (mut writer, mut buffer) = (begun?, AlignedBuf::zeroed(PAGE_BYTES));
    buffer.fill(byte);
    writer.write(0, buffer.share()).wait()?;
    writer.finish(PAGE_BYTES as u64).wait()
}

fn got(target: &DirectoryTarget, shard: ShardName) -> Vec<u8> {
    let range = |at: u64| ReadRange::new(at * PAGE_BYTES as u64, AlignedBuf::zeroed(PAGE_BYTES));
    let reads = target.read_ranges(shard, (0..8).map(range).collect());
    reads.into_iter().map(|read| read.wait().unwrap()[0]).collect()
}

#[test]
fn shards_are_written_and_read_where_the_server_keeps_the_flags() {
    let Some(mounted) = Mounted::new() else { return };
    let shard =
        |number| ShardName { pack: PackId::new(SessionId([0xAB; 12]), 0, number), shard: 0 };
    let (target, told) = opened(mounted.path());
    put(&target, shard(1), 10);
    assert!(mounted.refused.load(Ordering::Relaxed) > 0, "the server refuses O_DIRECT");
    put(&target, shard(2), 30);
    assert_eq!(got(&target, shard(1)), (10..18).collect::<Vec<u8>>());
    let warned = |told: &Told| {
        let told = told.0.lock().unwrap();
        told.iter().filter(|event| matches!(event, Event::Warning(_))).count()
    };
    assert_eq!(warned(&told), 1);
    // Another program only reads.
    let (reader, told) = opened(mounted.path());
    assert_eq!(got(&reader, shard(2)), (30..38).collect::<Vec<u8>>());
    assert_eq!(warned(&told), 1);
    // A program that probes first gets no refusal, and still warns at its first shard.
    let small = mounted.path().join("small");
    std::fs::write(&small, "x").unwrap();
    let (reader, told) = opened(mounted.path());
    reader.probe(&small);
    assert_eq!(warned(&told), 0);
    let refused = mounted.refused.load(Ordering::Relaxed);
    assert_eq!(got(&reader, shard(1)), (10..18).collect::<Vec<u8>>());
    assert_eq!(mounted.refused.load(Ordering::Relaxed), refused);
    assert_eq!(warned(&told), 1);
}

/// A file's bytes are durable before it has its name, and its name before it is acknowledged.
#[test]
fn acknowledged_files_are_durable_byte_by_byte_and_name_by_name() {
    let Some(mounted) = Mounted::new() else { return };
    let (target, _) = opened(mounted.path());
    let shard = ShardName { pack: PackId::new(SessionId([0xAB; 12]), 0, 1), shard: 0 };
    put(&target, shard, 10);
    mounted.check_durable(&format!("{shard}.shard"), 2);
    put_page(target.replace(shard, 1 << 20), 90).unwrap();
    mounted.check_durable(&format!("{shard}.shard"), 0);

    let (log, job) =
        (RecordLog::over(DirectoryMedium::open(mounted.path())), JobName::new("a").unwrap());
    assert_eq!(log.append_if(&job, Previous::NONE, b"one").unwrap(), Append::Done);
    mounted.check_durable(&format!("{:016x}.record", 1), 2);
    let first = Previous::of(1, b"one");
    assert_eq!(log.append_if(&job, first, b"two").unwrap(), Append::Done);
    mounted.check_durable(&format!("{:016x}.record", 2), 0);
}

/// A new shard vanishes if its name could not be made durable. A shard that replaced another one is
/// all that is left, and stays.
#[test]
fn a_failed_sync_leaves_no_new_shard_and_takes_no_replaced_one() {
    let Some(mounted) = Mounted::new() else { return };
    let (target, _) = opened(mounted.path());
    let shard =
        |number| ShardName { pack: PackId::new(SessionId([0xAB; 12]), 0, number), shard: 0 };
    put(&target, shard(1), 10);
    mounted.fails.store(true, Ordering::Relaxed);
    put_page(target.create(shard(2), 1 << 20), 80).unwrap_err();
    assert_eq!(target.list().unwrap(), [shard(1)]);
    put_page(target.replace(shard(1), 1 << 20), 90).unwrap_err();
    assert_eq!(target.list().unwrap(), [shard(1)]);
    let range = ReadRange::new(0, AlignedBuf::zeroed(PAGE_BYTES));
    let read = opened(mounted.path()).0.read_ranges(shard(1), vec![range]).remove(0);
    assert_eq!(read.wait().unwrap()[0], 90);
}

#[test]
fn a_directory_in_it_passes_the_suites() {
    let Some(mounted) = Mounted::new() else { return };
    let dirs = |what: &str| {
        let (base, number) = (mounted.path().join(what), AtomicUsize::new(0));
        move || base.join(number.fetch_add(1, Ordering::Relaxed).to_string())
    };
    let next = dirs("target");
    check_target(move || {
        Arc::new(DirectoryTarget::open(&next(), &DirectoryOptions::default()).unwrap())
    });
    let next = dirs("log");
    check_log(true, move || Arc::new(RecordLog::over(DirectoryMedium::open(&next()))));
}
