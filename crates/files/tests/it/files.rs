//! Trees of files, put and got back: every property that a file system can hold, bit for bit.

use crate::common;
use crate::trees;

use common::noise;
use outlive_files::{
    FileErrorKind, GetFiles, GetOptions, InOrder, PutFiles, PutOptions, PutSource, Selection,
};
use outlive_types::ErrorKind;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use trees::*;

#[test]
fn everything_comes_back_as_it_was() {
    for (threads, compression) in [(1, "none"), (3, "auto"), (4, "zstd")] {
        let world = World::tuned(|tuning| {
            tuning.threads = threads;
            tuning.compression = compression.to_owned();
        });
        let source = world.directory("source");
        everything(&source);
        let expected = snapshot(&source);
        let job = world.job();
        let report = put_whole(&job, &source);
        assert_eq!(report.items, expected.len() as u64);
        assert!(report.stats.new_bytes < 10 << 20, "holes are not stored");
        same(&got(&job, 1, world.dir.path()), &expected, compression);
        // A second put takes the files over, and a third reads them again.
        let report = put_whole(&job, &source);
        // One file has a time in the future, so it is read.
        assert_eq!((report.plan.read_files, report.stats.raw_bytes), (1, 0));
        same(&got(&job, 2, world.dir.path()), &expected, "taken over");
        let options = PutOptions { reread: true, ..PutOptions::default() };
        let report = put_with(&job, &source, &options).unwrap();
        assert_eq!((report.plan.kept_files, report.stats.raw_bytes), (0, 0));
        same(&got(&job, 3, world.dir.path()), &expected, "read again");
        assert_eq!(job.verify(None).unwrap().findings, vec![]);
    }
}

#[test]
fn lengths_around_every_cut_come_back() {
    let world = World::tuned(|tuning| tuning.threads = 2);
    let source = world.directory("source");
    let part = 64 << 20;
    let bytes = noise(9, part + 4097);
    for length in [1 << 20, (1 << 20) + 1, (1 << 20) - 1, part - 1, part, part + 1, part + 4097] {
        fs::write(source.join(length.to_string()), &bytes[..length]).unwrap();
    }
    // More pieces than an item holds, and more than one part of data between holes.
    let middle = 3 << 30;
    sparse(&source.join("sparse"), 1 << 33, &[(5 << 20, &bytes[..70 << 19]), (middle, &bytes)]);
    let expected = snapshot(&source);
    let job = world.job();
    let report = put_whole(&job, &source);
    // All begin with the same bytes.
    assert!(report.stats.raw_bytes < (part + (8 << 20)) as u64, "{:?}", report.stats);
    same(&got(&job, 1, world.dir.path()), &expected, "lengths");
}

#[test]
fn several_paths_keep_their_names() {
    let world = World::new();
    let (one, two) = (world.directory("one"), world.directory("two"));
    fs::write(one.join("file"), "1").unwrap();
    fs::hard_link(one.join("file"), two.join("same")).unwrap();
    fs::write(world.dir.path().join("alone"), noise(1, 1000)).unwrap();
    fs::write(world.directory("three").join("file"), "3").unwrap();
    symlink("three", world.dir.path().join("by link")).unwrap();
    let paths = ["two", "alone", "one", "by link"].map(|name| world.dir.path().join(name));
    let job = world.job();
    let report = job.put(PutSource::Paths(&paths), &PutOptions::default()).unwrap();
    assert!(report.troubles.is_empty());
    let found = got(&job, 1, world.dir.path());
    let names: Vec<&[u8]> = found.keys().map(Vec::as_slice).collect();
    assert_eq!(
        names,
        [
            &b"."[..],
            b"alone",
            b"by link",
            b"by link/file",
            b"one",
            b"one/file",
            b"two",
            b"two/same"
        ]
    );
    assert_eq!(found[&b"two/same"[..]].same_as.as_deref(), Some(&b"one/file"[..]));

    let twice = [one.clone(), world.dir.path().join("two/../one")];
    let error = job.put(PutSource::Paths(&twice), &PutOptions::default()).unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.message().contains("one"), "{error}");
    let error = put(&job, &world.dir.path().join("missing")).unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.message().contains("missing"), "{error}");
}

#[test]
fn streams_come_back() {
    let world = World::tuned(|tuning| tuning.threads = 2);
    let job = world.job();
    let mut last = Vec::new();
    for (epoch, length) in (1..).zip([0, 1, 512, 513, 100_000, 5_000_000]) {
        let mut bytes = noise(length as u64, length);
        if length > 200_000 {
            bytes[70_000..3_000_000].fill(0);
        }
        let mut from = bytes.as_slice();
        let source = PutSource::Stream { name: b"stdin".to_vec(), from: &mut from };
        let report = job.put(source, &PutOptions::default()).unwrap();
        assert_eq!((report.items, report.stats.state_bytes), (1, length as u64));
        let mut back = Vec::new();
        let mut items = 0;
        checkpoint(&job, epoch)
            .in_order(&Selection::default(), 1 << 20, &mut |next| {
                match next {
                    InOrder::Item(item) => {
                        assert_eq!((&item.path[..], item.bytes), (&b"stdin"[..], length as u64));
                        items += 1;
                    }
                    InOrder::Bytes(more) => back.extend_from_slice(more),
                    InOrder::Zeros(count) => back.resize(back.len() + count as usize, 0),
                }
                Ok(())
            })
            .unwrap();
        assert!(back == bytes && items == 1, "{length}");
        let to = world.directory(&format!("to-{length}"));
        get_whole(&job, epoch, &to);
        assert!(fs::read(to.join("stdin")).unwrap() == bytes);
        last = bytes;
    }
    // An insertion costs about a chunk.
    last.splice(10_000..10_000, noise(77, 100));
    let mut from = last.as_slice();
    let source = PutSource::Stream { name: b"stdin".to_vec(), from: &mut from };
    let report = job.put(source, &PutOptions::default()).unwrap();
    assert!(report.stats.raw_bytes < 100_000, "{:?}", report.stats);
    for name in ["", ".", "..", "a/b", "a\0"] {
        let mut from = &b""[..];
        let source = PutSource::Stream { name: name.as_bytes().to_vec(), from: &mut from };
        let error = job.put(source, &PutOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{name:?}");
    }
}

#[test]
fn in_order_gives_everything_once_and_in_order() {
    let world = World::tuned(|tuning| tuning.threads = 2);
    let source = world.directory("source");
    for number in 0..50 {
        let dir = source.join(format!("d{}", number % 7));
        fs::create_dir_all(&dir).unwrap();
        let bytes = noise(number % 20, (number * number * 100) as usize);
        fs::write(dir.join(number.to_string()), bytes).unwrap();
    }
    sparse(&source.join("hole"), 1 << 30, &[(1 << 29, b"x")]);
    let job = world.job();
    put_whole(&job, &source);
    let mut files: BTreeMap<Vec<u8>, (u64, u64)> = BTreeMap::new();
    let mut paths = Vec::new();
    checkpoint(&job, 1)
        .in_order(&Selection::default(), 1 << 20, &mut |next| {
            if let InOrder::Item(item) = next {
                paths.push(item.path.clone());
                files.insert(item.path.clone(), (item.bytes, 0));
                return Ok(());
            }
            let (_, there) = files.get_mut(paths.last().unwrap()).unwrap();
            *there += match next {
                InOrder::Bytes(bytes) => bytes.len() as u64,
                InOrder::Zeros(bytes) => bytes,
                InOrder::Item(_) => 0,
            };
            Ok(())
        })
        .unwrap();
    assert!(files.values().all(|(expected, there)| expected == there));
    assert!(paths.is_sorted() && paths.len() == snapshot(&source).len());
    // The receiver may stop.
    let mut left = 5;
    let error = checkpoint(&job, 1).in_order(&Selection::default(), 1 << 20, &mut |_| {
        left -= 1;
        if left == 0 { Err(outlive_types::Error::invalid("enough")) } else { Ok(()) }
    });
    assert_eq!((left, error.unwrap_err().message()), (0, "enough"));
}

#[test]
fn a_put_and_a_get_that_are_stopped_leave_nothing() {
    let world = World::new();
    let source = world.directory("source");
    fs::write(source.join("file"), noise(1, 300_000)).unwrap();
    let job = world.job();
    let stop = Arc::new(AtomicBool::new(true));
    let options = PutOptions { stop: stop.clone(), ..PutOptions::default() };
    assert_eq!(put_with(&job, &source, &options).unwrap_err().kind(), ErrorKind::Retry);
    assert_eq!(job.epochs().unwrap(), vec![]);
    put_whole(&job, &source);
    let to = world.directory("to");
    let options = GetOptions { stop, ..into(&to) };
    let error = checkpoint(&job, 1).get(&options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry);
    assert_eq!(fs::read_dir(&to).unwrap().count(), 0);
}

#[test]
fn files_that_the_kernel_makes_up_are_read_whole() {
    let world = World::new();
    let job = world.job();
    let report = put(&job, Path::new("/proc/self/limits")).unwrap();
    let to = world.directory("to");
    checkpoint(&job, 1).get(&into(&to)).unwrap();
    assert_eq!(report.troubles.count(FileErrorKind::Unreadable), 0);
    let found = fs::read_to_string(to.join("limits")).unwrap();
    assert!(found.len() > 512 && found.contains("Max open files"), "{} bytes", found.len());
}
