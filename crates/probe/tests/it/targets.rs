//! Probes of targets that work: figures, and nothing left afterwards.

use crate::loop_device::LoopDevice;
use outlive_backend::{
    MemoryTarget, ShardName, SmallFiles, Target, TargetOptions, Throttle, ThrottledTarget,
};
use outlive_block::BLOCK;
use outlive_dir::{DirectoryOptions, DirectoryTarget};
use outlive_probe::{Measurement, Options, knee, measure};
use outlive_types::{ErrorKind, NoObserver, PackId, SessionId};
use std::sync::Arc;
use std::time::Duration;

/// Few bytes, and time enough that a busy machine cuts nothing.
pub fn small() -> Options {
    Options {
        budget: Duration::from_secs(120),
        scratch_bytes_max: 8 << 20,
        positions: 4,
        rounds: 2,
        access_bytes_max: 1 << 20,
        fragment_bytes: 256 << 10,
        depth_max: 4,
    }
}

pub fn probed(target: &dyn Target, options: &Options) -> Measurement {
    measure(target, options, &|| false, &|_| {}).unwrap()
}

pub fn assert_empty(target: &dyn Target) {
    assert_eq!(target.list().unwrap(), []);
    assert_eq!(target.unfinished().unwrap(), []);
}

/// Every figure has points, and each is a speed.
fn assert_complete(found: &Measurement, options: &Options) {
    let sizes = options.access_bytes_max.ilog2() as usize - 11;
    let depths = options.depth_max.ilog2() as usize + 1;
    let curves = [
        (&found.write_sizes, sizes),
        (&found.write_sizes_random, sizes),
        (&found.read_sizes, sizes),
        (&found.write_positions, options.positions as usize),
        (&found.write_positions_queued, options.positions as usize),
        (&found.read_positions, options.positions as usize),
        (&found.read_positions_queued, options.positions as usize),
        (&found.write_depths, depths),
        (&found.read_depths, depths),
    ];
    for (number, (points, count)) in curves.into_iter().enumerate() {
        assert_eq!(points.len(), count, "curve {number}: {points:?}");
        assert!(points.iter().all(|it| it.bytes_per_s > 0.0 && it.bytes_per_s.is_finite()));
        assert!(points.is_sorted_by_key(|point| point.at));
    }
    assert!(found.request_s > 0.0 && found.shard_s > 0.0 && found.depth >= 1);
    assert!(found.scratch_bytes <= options.scratch_bytes_max);
}

#[test]
fn a_directory_is_measured_and_left_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let target = DirectoryTarget::open(dir.path(), &DirectoryOptions::default()).unwrap();
    let kept = ShardName { pack: PackId::new(SessionId([7; 12]), 0, 1), shard: 0 };
    let mut writer = target.create(kept, 4096).unwrap();
    let bytes = outlive_io::AlignedBuf::zeroed(4096).share();
    writer.write(0, bytes).wait().unwrap();
    writer.finish(4096).wait().unwrap();
    let options = small();
    let found = probed(&target, &options);
    assert_complete(&found, &options);
    assert!(!found.is_cut, "{found:?}");
    assert_eq!(target.list().unwrap(), [kept]);
    assert_eq!(target.unfinished().unwrap(), []);
}

#[test]
fn memory_is_measured_and_its_space_given_back() {
    let target = MemoryTarget::with_capacity(1 << 30);
    let options = Options { scratch_bytes_max: 32 << 20, ..small() };
    let found = probed(&target, &options);
    assert_complete(&found, &options);
    assert_empty(&target);
    assert_eq!(target.capacity().unwrap().free_bytes, 1 << 30);
}

/// With 2 ms for each operation and 200 MB/s, 80 % of the plateau are reached at 1.6 MB; half of it
/// at 400 KB. A busy machine only makes operations slower.
#[test]
fn a_throttle_shows_in_the_figures() {
    let throttle = Throttle { bytes_per_s: Some(200_000_000), latency: Duration::from_millis(2) };
    let target = ThrottledTarget::new(Arc::new(MemoryTarget::with_capacity(1 << 30)), throttle);
    let options = Options {
        budget: Duration::from_secs(30),
        scratch_bytes_max: 32 << 20,
        access_bytes_max: 4 << 20,
        fragment_bytes: 1 << 20,
        ..small()
    };
    let found = probed(&target, &options);
    let unit = knee(&found.write_sizes).unwrap();
    assert!(unit.at >= 128 << 10, "{unit:?}");
    for curve in [&found.read_sizes, &found.read_positions, &found.read_depths] {
        for point in curve {
            assert!(point.bytes_per_s <= 200e6 * 1.5, "{point:?}");
        }
    }
    // A page takes at least 2 ms, so at most 2 MB/s.
    assert!(found.read_sizes[0].bytes_per_s <= 2.1e6, "{:?}", found.read_sizes[0]);
    assert!(found.write_sizes[0].bytes_per_s <= 4.2e6, "{:?}", found.write_sizes[0]);
    let best = found.read_sizes.last().unwrap().bytes_per_s;
    assert!(best >= 10.0 * found.read_sizes[0].bytes_per_s, "{best}");
    assert_empty(&target);
}

/// A machine that is too busy for any sample says so. Then all times are doubled, those of the target
/// and of the probe alike, so that the pauses of the machine weigh half as much.
#[test]
fn a_budget_that_is_too_short_cuts_samples_and_leaves_nothing() {
    for doubled in 0..8 {
        let throttle = Throttle {
            bytes_per_s: Some(20_000_000 >> doubled),
            latency: Duration::from_millis(1 << doubled),
        };
        let target = ThrottledTarget::new(Arc::new(MemoryTarget::with_capacity(1 << 30)), throttle);
        let options = Options { budget: Duration::from_millis(500 << doubled), ..small() };
        let found = measure(&target, &options, &|| false, &|_| {});
        assert_empty(&target);
        match found {
            Ok(found) => {
                return assert!(found.is_cut && !found.write_sizes.is_empty(), "{found:?}");
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::Retry, "{error}"),
        }
    }
    panic!("a probe of 64 s measured nothing");
}

/// The device is laid out as a pool does it.
#[test]
fn a_block_device_is_measured_and_left_empty() {
    let device = LoopDevice::new(512 << 20);
    let location = (BLOCK.parse)(&device.url()["block:".len()..]).unwrap();
    location.make_folders(&["packs"]).unwrap();
    let options =
        TargetOptions { is_own: false, probe: None, watch: None, observer: Arc::new(NoObserver) };
    let target = location.open_target(&options).unwrap();
    let free = target.capacity().unwrap().free_bytes;
    let options = small();
    let found = probed(&*target, &options);
    assert_complete(&found, &options);
    assert_empty(&*target);
    assert_eq!(target.capacity().unwrap().free_bytes, free);
}
