//! A directory in a FUSE file system whose server keeps the flags with which a file was opened: with
//! O_DIRECT it refuses all reads and writes, as such servers do whose buffers lie anywhere, and that
//! the flag is cleared in the client does not reach it. Skipped where nothing can be mounted.

#[path = "fuse/server.rs"]
mod server;

use fuser::{BackgroundSession, Config, spawn_mount};
use outlive_io::AlignedBuf;
use outlive_target::conformance::{check_log, check_target};
use outlive_target::{
    DirectoryLog, DirectoryOptions, DirectoryTarget, ReadRange, ShardName, Target,
};
use outlive_types::{Event, Observer, PAGE_BYTES, PackId, SessionId};
use server::Server;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

/// A mounted file system; it goes when this does.
struct Mounted {
    session: Option<BackgroundSession>,
    refused: Arc<AtomicUsize>,
    mountpoint: TempDir,
    _backing: TempDir,
}

impl Mounted {
    fn new() -> Option<Mounted> {
        let (backing, mountpoint) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let server = Server::new(backing.path());
        let refused = server.refused.clone();
        match spawn_mount(server, mountpoint.path(), &Config::default()) {
            Ok(session) => {
                Some(Mounted { session: Some(session), refused, mountpoint, _backing: backing })
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

fn got(target: &DirectoryTarget, shard: ShardName) -> Vec<u8> {
    let range = |at: u64| ReadRange {
        offset: at * PAGE_BYTES as u64,
        buffer: AlignedBuf::zeroed(PAGE_BYTES),
    };
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
    // Whoever looks first is not refused at all, and tells all the same when it comes to a shard.
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
    check_log(true, move || Arc::new(DirectoryLog::open(&next())));
}
