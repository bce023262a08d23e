//! Compressed frames: restores return the same bytes, data that shrinks takes less, damage is
//! detected, and `auto` considers the target.

use crate::common;

use common::{Program, State, noise, smooth, tuned, tuned_on};
use outlive_backend::{FaultWorld, MemoryTarget, Target, Throttle, ThrottledTarget};
use outlive_store::Select;
use outlive_types::{ErrorKind, PAGE_BYTES};
use std::sync::Arc;
use std::time::Duration;

/// Regions of every awkward length, of which some shrink and some do not.
fn state(seed: u64) -> State {
    let mut state = State::new();
    for (number, length) in [0, 1, 100, 65_535, 65_536, 70_001, 400_000, 5 << 19].iter().enumerate()
    {
        state.insert(format!("smooth {number}"), smooth(seed + number as u64, *length));
        state.insert(format!("noise {number}"), noise(seed + number as u64, *length));
    }
    let mut mixed = smooth(seed, 300_000);
    for (number, page) in mixed.chunks_mut(PAGE_BYTES).enumerate() {
        match number % 4 {
            0 => page.fill(0),
            1 => page.copy_from_slice(&noise(seed + number as u64, page.len())),
            _ => {}
        }
    }
    state.insert("mixed".to_owned(), mixed);
    state
}

#[test]
fn states_survive_every_setting() {
    let mut stored = Vec::new();
    for compression in ["none", "lz4", "zstd", "auto"] {
        let pool = tuned(|tuning| {
            tuning.compression = compression.to_owned();
            tuning.threads = 2;
        });
        let program = Program::start(&pool, "job");
        let first = state(1);
        let stats = program.save(&first).unwrap();
        assert!(stats.raw_bytes > 5 << 20, "{compression}: {stats:?}");
        stored.push(stats.new_bytes);
        // A second save on top, with changes in some pages only.
        let mut second = first.clone();
        for bytes in second.values_mut().filter(|bytes| bytes.len() > 60_000) {
            bytes[5000..5100].fill(7);
        }
        program.save(&second).unwrap();
        let reader = Program::start(&pool, "job");
        assert!(reader.restore(Select::Epoch(1)).unwrap().unwrap().1 == first, "{compression}");
        assert!(reader.restore(Select::Newest).unwrap().unwrap().1 == second, "{compression}");
        let report = reader.job.verify(None).unwrap();
        assert_eq!((report.whole, report.findings.len()), (2, 0), "{compression}");
    }
    let [none, lz4, zstd, _] = stored[..] else { panic!("four settings") };
    // The threads decide which chunks share a frame, so the two codecs are not far apart here.
    assert!(lz4 * 100 < none * 60 && zstd * 100 < none * 60, "{stored:?}");
}

#[test]
fn data_that_does_not_shrink_costs_nothing_more() {
    let noisy = State::from([("noise".to_owned(), noise(3, 3 << 20))]);
    let stored = |compression: &str| {
        let pool = tuned(|tuning| tuning.compression = compression.to_owned());
        Program::start(&pool, "job").save(&noisy).unwrap().new_bytes
    };
    assert_eq!(stored("zstd"), stored("none"));
    assert_eq!(stored("lz4"), stored("none"));
}

#[test]
fn every_flip_in_a_frame_is_detected() {
    for compression in ["lz4", "zstd"] {
        let world = FaultWorld::new();
        let pool = tuned_on(world.target(), |tuning| tuning.compression = compression.to_owned());
        let program = Program::start(&pool, "job");
        let state = State::from([("smooth".to_owned(), smooth(1, 150_000))]);
        program.save(&state).unwrap();
        let [shard] = world.target().list().unwrap()[..] else { panic!("one pack") };
        let mut detected = 0;
        for offset in (4096..12_000).step_by(13) {
            world.corrupt(shard, offset, 1 << (offset % 8));
            match Program::start(&pool, "job").restore(Select::Newest) {
                Ok(found) => assert!(found.unwrap().1 == state, "{compression}: byte {offset}"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Damaged);
                    detected += 1;
                }
            }
            world.corrupt(shard, offset, 1 << (offset % 8));
        }
        assert!(detected > 50, "{compression}: {detected}");
    }
}

/// Saves states of new pages until the policy has measured enough; returns the last save's ratio.
fn settled_ratio(target: Arc<dyn Target>, make: fn(u64, usize) -> Vec<u8>) -> f64 {
    let pool = tuned_on(target, |tuning| tuning.threads = 2);
    let program = Program::start(&pool, "job");
    let mut ratio = 1.0;
    for seed in 0..4 {
        // Each is longer than one measurement of the policy.
        let stats = program.save(&State::from([("a".to_owned(), make(seed, 10 << 20))])).unwrap();
        ratio = stats.new_bytes as f64 / stats.raw_bytes as f64;
    }
    ratio
}

#[test]
fn auto_compresses_for_a_slow_target() {
    // So slow that compression pays even if other programs use the processors.
    let slow = || {
        let throttle = Throttle { bytes_per_s: Some(10_000_000), latency: Duration::ZERO };
        Arc::new(ThrottledTarget::new(Arc::new(MemoryTarget::new()), throttle))
    };
    let ratio = settled_ratio(slow(), smooth);
    assert!(ratio < 0.6, "{ratio}");
    let ratio = settled_ratio(slow(), noise);
    assert!((1.0..1.1).contains(&ratio), "{ratio}");
}
