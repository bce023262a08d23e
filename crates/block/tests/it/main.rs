//! A target on a loop device, through the scheme alone.

mod loop_device;

use loop_device::{LoopDevice, run};
use outlive_backend::conformance::{check_files, check_target};
use outlive_backend::{
    Location, ReadRange, ShardName, SmallFiles, Target, TargetOptions, read_one,
};
use outlive_block::BLOCK;
use outlive_io::AlignedBuf;
use outlive_testkit::succeeds_in_a_child;
use outlive_types::{ErrorKind, NoObserver, PackId, SessionId};
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use tempfile::NamedTempFile;

fn location(device: &LoopDevice) -> Location {
    (BLOCK.parse)(&device.url()["block:".len()..]).unwrap()
}

fn laid_out(bytes: u64) -> LoopDevice {
    let device = LoopDevice::new(bytes);
    location(&device).make_folders(&["packs"]).unwrap();
    device
}

fn target(device: &LoopDevice) -> Arc<dyn Target> {
    location(device).open_target(&options()).unwrap()
}

fn options() -> TargetOptions {
    TargetOptions { is_own: false, probe: None, watch: None, observer: Arc::new(NoObserver) }
}

/// Makes devices that live until the end of the checks.
fn devices() -> impl Fn() -> Location {
    let made: Mutex<Vec<LoopDevice>> = Mutex::default();
    move || {
        let device = laid_out(160 << 20);
        let at = location(&device);
        let mut made = made.lock().unwrap();
        // Few checks use two.
        if made.len() > 3 {
            made.remove(0);
        }
        made.push(device);
        at
    }
}

fn name(pack: u32) -> ShardName {
    ShardName { pack: PackId::new(SessionId([0xB0; 12]), 0, pack), shard: 0 }
}

fn put(target: &dyn Target, shard: ShardName, byte: u8, bytes: usize) {
    let mut writer = target.create(shard, bytes as u64).unwrap();
    let mut buffer = AlignedBuf::zeroed(bytes);
    buffer.fill(byte);
    writer.write(0, buffer.share()).wait().unwrap();
    writer.finish(bytes as u64).wait().unwrap();
}

fn get(target: &dyn Target, shard: ShardName) -> Vec<u8> {
    let bytes = target.length(shard).unwrap() as usize;
    read_one(target, shard, ReadRange::new(0, AlignedBuf::zeroed(bytes))).wait().unwrap().to_vec()
}

#[test]
fn it_keeps_the_guarantees_of_a_target() {
    let make = devices();
    check_target(move || make().open_target(&options()).unwrap());
}

#[test]
fn it_keeps_the_guarantees_of_small_files() {
    let make = devices();
    check_files(move || make().open_files().unwrap());
}

/// Returns what `wipefs` finds on a device.
fn signatures(device: &LoopDevice) -> String {
    run(&["wipefs", "--noheadings", &device.path])
}

fn write_at(device: &LoopDevice, at: u64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(&device.path).unwrap();
    file.write_all_at(bytes, at).unwrap();
    file.sync_all().unwrap();
}

/// A program is killed in the middle of a shard, and a child of it lives on.
#[test]
fn a_child_that_outlives_its_parent_keeps_no_lock() {
    let device = laid_out(64 << 20);
    let free = || target(&device).capacity().unwrap().free_bytes;
    let before = free();
    let mut child = Command::new("/proc/self/exe")
        .args(["--exact", "hold_a_shard", "--nocapture"])
        .env("OUTLIVE_HELD_DEVICE", &device.path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines.map(Result::unwrap).find(|line| line.contains("holds")).expect("it holds a shard");
    assert!(free() < before);
    // The grandchild lives until the pipe of its input closes, which `wait` would do.
    let input = child.stdin.take();
    child.kill().unwrap();
    child.wait().unwrap();
    let target = target(&device);
    assert_eq!(target.unfinished().unwrap(), [name(1)]);
    target.delete_unfinished(name(1)).unwrap();
    assert_eq!(free(), before);
    put(&*target, name(1), 1, 4096);
    drop(input);
}

/// The program of the test above, which gives it a device.
#[test]
fn hold_a_shard() {
    let Ok(path) = std::env::var("OUTLIVE_HELD_DEVICE") else { return };
    let target = (BLOCK.parse)(&format!("//{path}")).unwrap().open_target(&options()).unwrap();
    let _writer = target.create(name(1), 1 << 20).unwrap();
    std::thread::spawn(|| {
        succeeds_in_a_child(|| {
            let _ = std::io::stdin().read_line(&mut String::new());
            Ok(())
        })
    });
    // Once the child is there, which `fork` has made before it returns in the parent.
    while std::fs::read_to_string(format!("/proc/self/task/{}/children", std::process::id()))
        .is_ok_and(|children| children.is_empty())
        && std::fs::read_dir("/proc/self/task").unwrap().all(|task| {
            let children = task.unwrap().path().join("children");
            std::fs::read_to_string(children).unwrap_or_default().is_empty()
        })
    {
        std::thread::yield_now();
    }
    println!("holds a shard");
    loop {
        std::thread::park();
    }
}

#[test]
fn a_device_that_carries_something_is_refused_unless_told() {
    let device = LoopDevice::new(64 << 20);
    let at = location(&device);
    assert_eq!(at.read("packs/.target").unwrap(), None, "a blank device has no files");
    run(&["mkfs.ext4", "-q", &device.path]);
    let refused = at.make_folders(&["packs"]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(refused.message().contains("ext4"), "{refused}");
    assert!(refused.message().contains("?overwrite=ext4"), "{refused}");
    let told =
        |content: &str| (BLOCK.parse)(&format!("//{}?overwrite={content}", device.path)).unwrap();
    told("xfs").make_folders(&["packs"]).unwrap_err();
    let mount = tempfile::tempdir().unwrap();
    run(&["mount", &device.path, mount.path().to_str().unwrap()]);
    let used = told("ext4").make_folders(&["packs"]).unwrap_err();
    run(&["umount", mount.path().to_str().unwrap()]);
    assert!(used.message().contains("mounted or in use"), "{used}");
    told("ext4").make_folders(&["packs"]).unwrap();
    // Nothing takes it for what it was. A swap header is not where the superblock is written.
    assert_eq!(signatures(&device), "");
    let swap = LoopDevice::new(64 << 20);
    run(&["mkswap", &swap.path]);
    // This one lies at 64 KiB, where nothing of a layout is written.
    write_at(&swap, (64 << 10) + 64, b"_BHRfS_M");
    let several = location(&swap).make_folders(&["packs"]).unwrap_err();
    let found = several.message().split("?overwrite=").nth(1).unwrap().to_owned();
    let at = (BLOCK.parse)(&format!("//{}?overwrite={found}", swap.path)).unwrap();
    at.make_folders(&["packs"]).unwrap();
    assert_eq!(signatures(&swap), "");
    // The location that a pool keeps no longer says so, and the layout stays.
    assert_eq!(told("ext4").to_string(), format!("block://{}", device.path));
    put(&*target(&device), name(1), 1, 4096);
    at.make_folders(&["packs"]).unwrap();
    assert_eq!(target(&device).list().unwrap(), [name(1)]);
}

/// Its layout says how long it was: the end of a larger device stays unused.
#[test]
fn a_device_that_has_grown_keeps_its_layout() {
    let device = laid_out(64 << 20);
    put(&*target(&device), name(1), 1, 4096);
    let before = target(&device).capacity().unwrap().total_bytes;
    device.grow(96 << 20);
    let grown = target(&device);
    assert_eq!(grown.capacity().unwrap().total_bytes, before);
    assert_eq!(get(&*grown, name(1)), [1; 4096]);
    put(&*grown, name(2), 2, before as usize - (1 << 20));
    assert_eq!(grown.list().unwrap().len(), 2);
}

#[test]
fn names_of_other_things_are_refused() {
    let file = NamedTempFile::new().unwrap();
    let parse = |text: &str| (BLOCK.parse)(text);
    let not_a_device = parse(&format!("//{}", file.path().display())).unwrap();
    assert!(not_a_device.check().unwrap_err().message().contains("not a block device"));
    let missing = parse("///dev/outlive-no-such-device").unwrap();
    let error = missing.check().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry);
    assert!(error.message().contains("there is no device"), "{error}");
    for text in ["//", "dev/sdb", "///dev/sdb?overwrite=", "///dev/sdb?force", ""] {
        let refused = parse(text).err().unwrap_or_else(|| panic!("{text}"));
        assert!(refused.message().contains("block:///dev/NAME"), "{refused}");
    }
    for same in ["///dev/sdb", "//dev/sdb", "/dev/sdb"] {
        assert_eq!(parse(same).unwrap().to_string(), "block:///dev/sdb");
    }
    let named = parse("/dev/sdb").unwrap();
    assert!(named.open_medium().unwrap_err().message().contains("keeps packs and no log"));
}

/// Of several programs that lay out a device at once, none undoes the work of another.
#[test]
fn a_device_is_laid_out_once() {
    for _ in 0..8 {
        let device = LoopDevice::new(16 << 20);
        let done: Vec<String> = std::thread::scope(|scope| {
            let lay_out = |number: u32| {
                let at = location(&device);
                scope.spawn(move || match at.make_folders(&["packs"]) {
                    Ok(()) => {
                        let file = format!("packs/{number}");
                        assert!(at.write_new(&file, file.as_bytes()).unwrap());
                        Some(file)
                    }
                    Err(error) => {
                        assert!(error.message().contains("in use"), "{error}");
                        None
                    }
                })
            };
            let all: Vec<_> = (0..4).map(lay_out).collect();
            all.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
        });
        assert!(!done.is_empty());
        for file in done {
            assert_eq!(location(&device).read(&file).unwrap(), Some(file.into_bytes()));
        }
    }
}

/// Two names of one device are one location.
#[test]
fn links_to_a_device_are_the_same_device() {
    let (device, other) = (LoopDevice::new(16 << 20), LoopDevice::new(16 << 20));
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("disk");
    std::os::unix::fs::symlink(&device.path, &link).unwrap();
    let linked = (BLOCK.parse)(&format!("//{}", link.display())).unwrap();
    assert!(linked.is_same(&location(&device)) && !linked.is_same(&location(&other)));
}

/// Several processes, as threads with devices of their own, use one device.
#[test]
fn many_users_of_one_device_do_not_disturb_each_other() {
    let device = laid_out(512 << 20);
    std::thread::scope(|scope| {
        for user in 0..4 {
            let target = target(&device);
            scope.spawn(move || {
                for round in 0..12 {
                    let shard = name(user * 100 + round);
                    let byte = (user * 40 + round) as u8;
                    put(&*target, shard, byte, 3 << 20);
                    assert!(get(&*target, shard).iter().all(|it| *it == byte));
                    if round >= 4 {
                        target.delete(name(user * 100 + round - 4)).unwrap();
                    }
                }
            });
        }
    });
    let target = target(&device);
    assert_eq!(target.list().unwrap().len(), 16);
    for shard in target.list().unwrap() {
        target.delete(shard).unwrap();
    }
    let capacity = target.capacity().unwrap();
    assert_eq!(capacity.free_bytes, capacity.total_bytes);
}

/// Deleted shards take no space of the device below.
#[test]
fn freed_space_is_discarded() {
    let device = laid_out(128 << 20);
    let used = || device.used_bytes();
    let before = used();
    put(&*target(&device), name(1), 7, 32 << 20);
    assert!(used() >= before + (32 << 20));
    target(&device).delete(name(1)).unwrap();
    assert!(used() < before + (4 << 20), "{} and {before}", used());
}
