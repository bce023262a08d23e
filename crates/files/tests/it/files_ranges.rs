//! Ranges of files: verified, read without the rest, also while a gc moves them.

use crate::common;
use crate::stepped;
use crate::trees;

use common::noise;
use outlive_backend::MemoryTarget;
use outlive_log::MemoryLog;
use outlive_types::{ErrorKind, SeededRng};
use std::fs;
use std::sync::Arc;
use stepped::{SteppedLog, SteppedTarget, Steps};
use trees::*;

#[test]
fn any_range_of_a_file_has_the_bytes_that_were_put() {
    let steps = Steps::default();
    let target = Arc::new(SteppedTarget(Arc::new(MemoryTarget::new()), steps.clone()));
    let log = Arc::new(SteppedLog(Arc::new(MemoryLog::new()), steps.clone()));
    let world = World::on(target, log, |_| {});
    let source = world.directory("source");
    // More pieces than an item can hold, pieces, inline, empty, and holes.
    fs::write(source.join("long"), noise(1, 3_000_000)).unwrap();
    fs::write(source.join("pieces"), noise(2, 40_000)).unwrap();
    fs::write(source.join("short"), noise(3, 30)).unwrap();
    fs::write(source.join("nothing"), b"").unwrap();
    sparse(
        &source.join("holes"),
        9_000_000,
        &[(0, &noise(4, 9000)), (7_000_001, &noise(5, 70_000))],
    );
    let job = world.job();
    put_whole(&job, &source);
    // The gc must move data: the newest put needs part of the first one's.
    let opened = checkpoint(&job, 1);
    fs::write(source.join("other"), noise(6, 100_000)).unwrap();
    put_whole(&job, &source);
    put_whole(&job, &source);
    prune(&world.pool, &[2]).unwrap();

    let rng = SeededRng::new(1);
    for name in ["long", "pieces", "short", "nothing", "holes"] {
        let bytes = fs::read(source.join(name)).unwrap();
        let item = opened.find(name.as_bytes()).unwrap().expect(name);
        for _ in 0..60 {
            let length = bytes.len() as u64;
            let from = rng.next_u64() % (length + 1);
            let most = [1, 100, 70_000, length][rng.next_u64() as usize % 4];
            let count = (rng.next_u64() % (most + 1)).min(length - from);
            let mut into = vec![0xA5; count as usize];
            opened.read_range(&item, from, &mut into).unwrap();
            let expected = &bytes[from as usize..(from + count) as usize];
            assert!(into == expected, "{count} bytes of {name} from {from} on");
        }
        let error = opened.read_range(&item, item.bytes, &mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(
            error.message().contains(name) && error.message().contains("1 bytes from"),
            "{error}"
        );
    }
    assert!(opened.find(b"missing").unwrap().is_none());
    let item = opened.find(b"long").unwrap().unwrap();
    let before = steps.read_bytes();
    opened.read_range(&item, 1_500_000, &mut [0; 100]).unwrap();
    let read = steps.read_bytes() - before;
    // A recipe of each level, and a chunk of at most 16 KiB.
    assert!((100..=100 << 10).contains(&read), "{read} bytes were read for 100 of 3,000,000");
}
