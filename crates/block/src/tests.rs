//! A target over a device in memory, whose process dies or whose power is cut at every step.

mod memory;

use crate::device::Device;
use crate::files::BlockFiles;
use crate::layout::Layout;
use crate::target::{BlockTarget, open_space};
use memory::{MemoryDevice, Power};
use outlive_backend::conformance::{check_files, check_target};
use outlive_backend::{ReadRange, ShardName, ShardWriter, SmallFiles, Target, read_one};
use outlive_io::AlignedBuf;
use outlive_types::{ErrorKind, PackId, Result, Rng, SeededRng, SessionId};
use std::collections::BTreeMap;
use std::sync::Arc;

const DEVICE_BYTES: u64 = 80 << 20;

fn new_device() -> MemoryDevice {
    let device = MemoryDevice::new(DEVICE_BYTES);
    Layout::new([1; 16], DEVICE_BYTES).unwrap().write(&device).unwrap();
    device
}

fn target(device: &MemoryDevice) -> BlockTarget {
    BlockTarget::over(Arc::new(device.clone())).unwrap()
}

fn files(device: &MemoryDevice) -> BlockFiles {
    BlockFiles(Arc::new(open_space(Arc::new(device.clone())).unwrap()))
}

fn name(pack: u32) -> ShardName {
    ShardName { pack: PackId::new(SessionId([0xB0; 12]), 0, pack), shard: 0 }
}

fn content(seed: u64, pages: usize) -> Vec<u8> {
    let mut bytes = vec![0; pages * 4096];
    SeededRng::new(seed).fill(&mut bytes);
    bytes
}

fn write(mut writer: Box<dyn ShardWriter>, bytes: &[u8]) -> Result<()> {
    for (number, part) in bytes.chunks(40 * 4096).enumerate() {
        let mut buffer = AlignedBuf::zeroed(part.len());
        buffer.copy_from_slice(part);
        let written = writer.write((number * 40 * 4096) as u64, buffer.share()).wait();
        written.map_err(|fault| fault.error)?;
    }
    writer.finish(bytes.len() as u64).wait()
}

/// Waits until writers that were dropped have given their space back, in threads of their own.
fn until_writers_end(device: &MemoryDevice) {
    while device.is_owned_at_all() {
        std::thread::yield_now();
    }
}

fn read(target: &dyn Target, shard: ShardName) -> Result<Vec<u8>> {
    let length = target.length(shard)? as usize;
    let range = ReadRange::new(0, AlignedBuf::zeroed(length));
    let read = read_one(target, shard, range).wait().map_err(|fault| fault.error)?;
    Ok(read.to_vec())
}

#[test]
fn it_keeps_the_guarantees_of_a_target() {
    check_target(|| Arc::new(target(&new_device())));
}

#[test]
fn it_keeps_the_guarantees_of_small_files() {
    check_files(|| Arc::new(files(&new_device())));
}

/// Shards and files as a program knows them. A call that failed may have been made or not.
#[derive(Default)]
struct Expected {
    shards: BTreeMap<u32, Vec<Option<u64>>>,
    files: BTreeMap<&'static str, Vec<Option<u64>>>,
}

impl Expected {
    /// Notes the outcome of a call that was to put `new` here; returns whether it succeeded.
    fn note<K: Ord>(
        map: &mut BTreeMap<K, Vec<Option<u64>>>,
        key: K,
        new: Option<u64>,
        outcome: &Result<()>,
    ) -> bool {
        let possible = map.entry(key).or_insert_with(|| vec![None]);
        match outcome {
            Ok(()) => *possible = vec![new],
            Err(_) => possible.push(new),
        }
        outcome.is_ok()
    }
}

/// One call of the script.
#[derive(Clone, Copy)]
enum Call {
    Create(u32, u64),
    Replace(u32, u64),
    Abandon(u32),
    Delete(u32),
    File(&'static str, u64),
}

const SCRIPT: [Call; 12] = [
    Call::File("packs/.target", 1),
    Call::Create(1, 2),
    Call::Create(2, 3),
    Call::Abandon(3),
    Call::Replace(1, 4),
    Call::Delete(2),
    Call::Create(4, 5),
    Call::File("packs/.target", 6),
    Call::Create(2, 7),
    Call::Delete(1),
    Call::Replace(2, 8),
    Call::Create(5, 9),
];

/// Number of pages of the shard with this content: 1 to 130.
fn pages(seed: u64) -> usize {
    1 + (seed as usize * 43) % 130
}

/// Makes the calls until one fails; returns whether all succeeded.
fn play(device: &MemoryDevice, expected: &mut Expected) -> bool {
    SCRIPT.into_iter().all(|call| play_one(device, expected, call))
}

/// Makes one call; returns whether it succeeded.
fn play_one(device: &MemoryDevice, expected: &mut Expected, call: Call) -> bool {
    let (target, files) = (target(device), files(device));
    match call {
        Call::Create(shard, seed) | Call::Replace(shard, seed) => {
            let writer = match call {
                Call::Create(..) => target.create(name(shard), 4 << 20),
                _ => target.replace(name(shard), 4 << 20),
            };
            let outcome = writer.and_then(|writer| write(writer, &content(seed, pages(seed))));
            Expected::note(&mut expected.shards, shard, Some(seed), &outcome)
        }
        Call::Abandon(shard) => target.create(name(shard), 1 << 20).map(drop).is_ok(),
        Call::Delete(shard) => {
            let outcome = target.delete(name(shard));
            Expected::note(&mut expected.shards, shard, None, &outcome)
        }
        Call::File(name, seed) => {
            let outcome = files.write(name, &content(seed, 1)[..100]);
            Expected::note(&mut expected.files, name, Some(seed), &outcome)
        }
    }
}

/// Checks that a target has what the program knows, and no more.
fn check(target: &BlockTarget, files: &BlockFiles, expected: &Expected, context: &str) {
    let listed = target.list().unwrap();
    for (shard, possible) in &expected.shards {
        let found = match read(target, name(*shard)) {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Damaged, "{context}: {error}");
                None
            }
        };
        assert_eq!(listed.contains(&name(*shard)), found.is_some(), "{context}");
        let is = |seed: &Option<u64>| seed.map(|seed| content(seed, pages(seed))) == found;
        assert!(possible.iter().any(is), "{context}: shard {shard} is none of {possible:?}");
    }
    assert!(
        listed.iter().all(|it| expected.shards.keys().any(|key| name(*key) == *it)),
        "{context}"
    );
    for (file, possible) in &expected.files {
        let found = files.read(file).unwrap();
        let is = |seed: &Option<u64>| seed.map(|seed| content(seed, 1)[..100].to_vec()) == found;
        assert!(possible.iter().any(is), "{context}: {file} is none of {possible:?}");
    }
}

/// Removes everything, and checks that all space comes back.
fn check_space(target: &BlockTarget, context: &str) {
    for shard in target.unfinished().unwrap() {
        target.delete_unfinished(shard).unwrap();
    }
    for shard in target.list().unwrap() {
        target.delete(shard).unwrap();
    }
    let capacity = target.capacity().unwrap();
    let files = 1 << 16;
    assert!(capacity.free_bytes + files >= capacity.total_bytes, "{context}: {capacity:?}");
}

/// The number of operations that the whole script makes on the device.
fn operations() -> u64 {
    let device = new_device();
    device.stop_after(u64::MAX);
    assert!(play(&device, &mut Expected::default()));
    u64::MAX - device.left()
}

/// Checks a device after its machine has lost power at each operation: any writes since the last
/// flush may be lost, or half done.
#[test]
fn a_power_cut_at_any_moment_loses_nothing_finished() {
    let all = operations();
    assert!(all > 100, "{all}");
    for stop in 0..all {
        for seed in 0..4 {
            let (device, mut expected) = (new_device(), Expected::default());
            device.stop_after(stop);
            // A writer that was dropped gives up its space in a thread of its own, so the number
            // of operations is not always the same.
            play(&device, &mut expected);
            let context = format!("power cut after {stop} operations, seed {seed}");
            let device = device.reopened(Power::Cut(seed));
            let (target, files) = (target(&device), files(&device));
            check(&target, &files, &expected, &context);
            // The next change mends; another one follows it. Then the power fails once more.
            write(target.create(name(90), 1 << 20).unwrap(), &content(90, 20)).unwrap();
            write(target.create(name(91), 1 << 20).unwrap(), &content(91, 9)).unwrap();
            expected.shards.insert(90, vec![Some(90)]);
            expected.shards.insert(91, vec![Some(91)]);
            let found = [90, 91].map(|it| read(&target, name(it)).unwrap());
            assert!(found == [content(90, 20), content(91, 9)]);
            expected.shards.retain(|key, _| *key < 90);
            let device = device.reopened(Power::Cut(seed + 100));
            let (target, files) = (self::target(&device), self::files(&device));
            let found = [90, 91].map(|it| read(&target, name(it)).unwrap());
            assert!(found == [content(90, 20), content(91, 9)], "{context}");
            [90, 91].iter().for_each(|it| target.delete(name(*it)).unwrap());
            check(&target, &files, &expected, &context);
            check_space(&target, &context);
        }
    }
}

/// An operation fails once, as on a bad cable, and the program goes on with its next call. A shard
/// whose creation failed is not there.
#[test]
fn an_operation_may_fail_at_any_moment() {
    for fail in 0..operations() {
        let (device, mut expected) = (new_device(), Expected::default());
        device.fail_once_after(fail);
        for call in SCRIPT {
            let was = expected.shards.clone();
            let succeeded = play_one(&device, &mut expected, call);
            if let (Call::Create(shard, _), false) = (call, succeeded) {
                let before = was.get(&shard).cloned().unwrap_or_else(|| vec![None]);
                expected.shards.insert(shard, before);
            }
        }
        let context = format!("operation {fail} failed");
        let (target, files) = (target(&device), files(&device));
        check(&target, &files, &expected, &context);
        until_writers_end(&device);
        check_space(&target, &context);
    }
}

/// Checks what another process sees that used the device all the time.
#[test]
fn a_process_may_die_at_any_moment() {
    for stop in 0..operations() {
        let (device, mut expected) = (new_device(), Expected::default());
        let other = device.reopened(Power::Kept);
        let (target, files) = (target(&other), files(&other));
        write(target.create(name(50), 1 << 20).unwrap(), &content(50, 3)).unwrap();
        expected.shards.insert(50, vec![Some(50)]);
        device.stop_after(stop);
        play(&device, &mut expected);
        device.die();
        let context = format!("died after {stop} operations");
        let known = |seed: u64| content(seed, pages(seed));
        assert!(read(&target, name(50)).unwrap() == content(50, 3), "{context}");
        expected.shards.insert(50, vec![Some(50)]);
        assert_ne!(known(50), content(50, 3), "so it is checked apart");
        expected.shards.remove(&50);
        target.delete(name(50)).unwrap();
        check(&target, &files, &expected, &context);
        check_space(&target, &context);
    }
}

/// A writer that is alive, but was given up, must not meet another shard's bytes.
#[test]
fn space_is_not_given_out_while_its_writer_may_write() {
    let device = new_device();
    let (slow, other) = (target(&device), target(&device.reopened(Power::Kept)));
    let total = other.capacity().unwrap().total_bytes;
    let mut writer = slow.create(name(1), 1 << 20).unwrap();
    other.delete_unfinished(name(1)).unwrap();
    assert_eq!(other.unfinished().unwrap(), []);
    // All the rest of the device.
    let free = other.capacity().unwrap().free_bytes;
    assert_eq!(free, total - (1 << 20));
    let fills = content(2, (free / 4096) as usize);
    write(other.create(name(2), free).unwrap(), &fills).unwrap();
    let full = other.create(name(3), 4096).err().unwrap();
    assert_eq!(full.kind(), ErrorKind::Full, "{full}");
    let late = writer.write(0, AlignedBuf::zeroed(1 << 20).share()).wait();
    late.expect("the space is still its own");
    let removed = writer.finish(1 << 20).wait().unwrap_err();
    assert_eq!(removed.kind(), ErrorKind::Retry, "{removed}");
    assert!(read(&other, name(2)).unwrap() == fills);
    // Now it has ended.
    write(other.create(name(3), 1 << 20).unwrap(), &content(3, 256)).unwrap();
    assert!(read(&slow, name(3)).unwrap() == content(3, 256));
}

/// The same of a process that died: then the space is free at once.
#[test]
fn space_of_a_dead_writer_is_free_once_it_is_given_up() {
    let device = new_device();
    let dead = device.reopened(Power::Kept);
    let (writer, other) = (target(&dead).create(name(1), 1 << 20).unwrap(), target(&device));
    let total = other.capacity().unwrap().total_bytes;
    dead.die();
    assert_eq!(other.unfinished().unwrap(), [name(1)]);
    other.delete_unfinished(name(1)).unwrap();
    assert_eq!(other.capacity().unwrap().free_bytes, total);
    drop(writer);
    assert_eq!(other.capacity().unwrap().free_bytes, total);
}

/// Each writer may need a long shard, but most are short.
#[test]
fn writers_share_a_device_that_is_nearly_full() {
    let device = new_device();
    let target = target(&device);
    let free = target.capacity().unwrap().free_bytes;
    write(target.create(name(0), free).unwrap(), &content(1, (free / 4096 - 1024) as usize))
        .unwrap();
    // 4 MiB are left, and each of them may get as long as that.
    let writers: Vec<_> = (1..7).map(|it| target.create(name(it), 4 << 20).unwrap()).collect();
    for (writer, shard) in writers.into_iter().zip(1..) {
        write(writer, &content(shard, 150)).unwrap();
    }
    assert!((1..7).all(|it| read(&target, name(it)).unwrap() == content(u64::from(it), 150)));
    // A write that needs more than there is fails, and gives everything back.
    let left = target.capacity().unwrap().free_bytes;
    let long = write(target.create(name(9), 4 << 20).unwrap(), &content(2, 300)).unwrap_err();
    assert_eq!(long.kind(), ErrorKind::Full, "{long}");
    until_writers_end(&device);
    assert_eq!(target.capacity().unwrap().free_bytes, left);
}

/// A writer that took a part of a nearly full device, and whose shard was given up, gets no more.
#[test]
fn a_removed_shard_takes_no_more_space() {
    let device = new_device();
    let target = target(&device);
    let free = target.capacity().unwrap().free_bytes;
    write(target.create(name(0), free).unwrap(), &content(1, (free / 4096 - 1024) as usize))
        .unwrap();
    let mut writer = target.create(name(1), 4 << 20).unwrap();
    let reserved = (4 << 20) - target.capacity().unwrap().free_bytes;
    assert!(0 < reserved && reserved < 4 << 20, "{reserved}");
    target.delete_unfinished(name(1)).unwrap();
    let left = target.capacity().unwrap().free_bytes;
    let late = writer.write(reserved, AlignedBuf::zeroed(4096).share()).wait();
    let removed = late.expect_err("its space has ended").error;
    assert_eq!(removed.kind(), ErrorKind::Retry, "{removed}");
    assert_eq!(target.capacity().unwrap().free_bytes, left);
    assert_eq!(target.unfinished().unwrap(), []);
    drop(writer);
    until_writers_end(&device);
    assert_eq!(target.capacity().unwrap().free_bytes, 4 << 20);
}

#[test]
fn space_comes_back_in_pieces() {
    let device = new_device();
    let target = target(&device);
    for shard in 0..40 {
        write(target.create(name(shard), 1 << 20).unwrap(), &content(1, 256)).unwrap();
    }
    let free = target.capacity().unwrap().free_bytes;
    (0..40).step_by(2).for_each(|shard| target.delete(name(shard)).unwrap());
    assert_eq!(target.capacity().unwrap().free_bytes, free + (20 << 20));
    // One shard takes all of it, in many pieces.
    let all = content(9, ((free + (20 << 20)) / 4096) as usize);
    write(target.create(name(99), all.len() as u64).unwrap(), &all).unwrap();
    assert!(read(&target, name(99)).unwrap() == all);
    assert_eq!(target.capacity().unwrap().free_bytes, 0);
    assert!(device.discarded() >= 20 << 20);
    assert!((1..40).step_by(2).all(|it| read(&target, name(it)).unwrap() == content(1, 256)));
    // A shorter shard than there is room for, on a full device, fails where the room ends.
    target.delete(name(1)).unwrap();
    let short = write(target.create(name(1), 4 << 20).unwrap(), &content(4, 200));
    short.unwrap();
    let long = write(target.create(name(3000), 4 << 20).unwrap(), &content(4, 300)).unwrap_err();
    assert_eq!(long.kind(), ErrorKind::Full, "{long}");
    assert!(read(&target, name(1)).unwrap() == content(4, 200));
}

/// One copy of each slot may be damaged, and one superblock.
#[test]
fn either_copy_is_enough() {
    for copy in [0, 1] {
        let device = new_device();
        let layout = Layout::read(&device).unwrap().unwrap();
        for shard in 0..5 {
            write(target(&device).create(name(shard), 1 << 20).unwrap(), &content(1, 3)).unwrap();
        }
        for slot in 0..layout.slots {
            device.damage(layout.slot_at(slot)[copy]);
        }
        device.damage([0, layout.second_at()][copy]);
        let again = device.reopened(Power::Kept);
        let target = target(&again);
        assert_eq!(target.list().unwrap().len(), 5);
        // The next change makes both good again.
        target.delete(name(0)).unwrap();
        for slot in 0..layout.slots {
            again.damage(layout.slot_at(slot)[1 - copy]);
        }
        assert_eq!(self::target(&again.reopened(Power::Kept)).list().unwrap().len(), 4);
    }
}

#[test]
fn slots_run_out_with_an_advice() {
    let device = new_device();
    let target = target(&device);
    let slots = Layout::read(&device).unwrap().unwrap().slots;
    for shard in 0..slots {
        write(target.create(name(shard), 4096).unwrap(), &content(1, 1)).unwrap();
    }
    let full = target.create(name(slots), 4096).err().unwrap();
    assert!(full.kind() == ErrorKind::Full && full.message().contains("prune"), "{full}");
    target.delete(name(7)).unwrap();
    write(target.create(name(slots), 4096).unwrap(), &content(2, 1)).unwrap();
    assert_eq!(target.list().unwrap().len(), slots as usize);
}

/// A process that sees few changes reads those; one that was away for long reads all.
#[test]
fn other_processes_see_each_change() {
    let device = new_device();
    let (one, other) = (target(&device), target(&device.reopened(Power::Kept)));
    assert_eq!(other.list().unwrap(), []);
    for round in [1, 3, 200] {
        for shard in 0..round {
            write(one.create(name(shard), 4096).unwrap(), &content(1, 1)).unwrap();
        }
        assert_eq!(other.list().unwrap().len(), round as usize);
        (0..round).for_each(|shard| one.delete(name(shard)).unwrap());
        assert_eq!(other.list().unwrap(), []);
        assert_eq!(other.capacity().unwrap(), one.capacity().unwrap());
    }
    let before = device.reads();
    for _ in 0..100 {
        assert_eq!(other.list().unwrap(), []);
    }
    assert_eq!(device.reads(), before, "without a change nothing is read");
}

#[test]
fn a_device_of_another_version_or_size_is_refused() {
    let device = MemoryDevice::new(DEVICE_BYTES);
    let refused = BlockTarget::over(Arc::new(device.clone())).unwrap_err();
    assert!(refused.message().contains("no layout"), "{refused}");
    Layout::new([1; 16], DEVICE_BYTES).unwrap().write(&device).unwrap();
    let smaller = device.resized(DEVICE_BYTES - (1 << 20));
    let refused = BlockTarget::over(Arc::new(smaller)).unwrap_err();
    assert!(refused.message().contains("its size"), "{refused}");
    let larger = device.resized(DEVICE_BYTES * 2);
    assert_eq!(BlockTarget::over(Arc::new(larger)).unwrap().list().unwrap(), []);
    assert!(device.bytes() == DEVICE_BYTES);
}
