use super::*;
use crate::Point;
use crate::codecs::CodecSpeed;

/// Returns points at powers of two.
fn points(first: u64, mb_per_s: &[f64]) -> Vec<Point> {
    let at = (0..).map(|n| first << n);
    at.zip(mb_per_s).map(|(at, mb)| Point { at, bytes_per_s: mb * 1e6 }).collect()
}

/// Returns a target that takes `mb_per_s` from 64 KiB accesses on.
fn target(mb_per_s: f64, depth: u32, request_s: f64) -> Measurement {
    let sizes: Vec<f64> = (0..12).map(|n| if n < 4 { mb_per_s / 10.0 } else { mb_per_s }).collect();
    Measurement {
        depth,
        request_s,
        read_sizes: points(4096, &sizes),
        write_sizes: points(4096, &sizes),
        write_sizes_random: points(4096, &sizes),
        read_depths: points(1, &[mb_per_s; 5]),
        write_depths: points(1, &[mb_per_s; 5]),
        write_positions_queued: points(4096, &[10.0 * mb_per_s, mb_per_s, mb_per_s]),
        ..Measurement::default()
    }
}

fn processor(lz4_mb: f64, zstd_mb: f64) -> Processor {
    let codec = |codec, mb| CodecSpeed { codec, bytes_per_s: mb * 1e6, ratio: 0.6 };
    let codecs = vec![codec("lz4", lz4_mb), codec("zstd", zstd_mb)];
    Processor { threads: 2, hash_bytes_per_s: 4e9, codecs }
}

fn present() -> Present {
    Present {
        container_bytes: 4 << 20,
        data_fragments: 1,
        fragments: 1,
        staging_bytes: 64 << 20,
        read_gap_bytes: 64 << 10,
        compression: "auto".to_owned(),
    }
}

fn of<'a>(all: &'a [Proposal], key: &str) -> &'a Proposal {
    all.iter().find(|proposal| proposal.key == key).expect("a proposal for each key")
}

#[test]
fn settings_that_suit_stay() {
    // 30 µs and 2 GB/s are 60 KB.
    let all = proposals(&[target(2000.0, 8, 3e-5)], &processor(3000.0, 1500.0), &present());
    assert_eq!(all.len(), 4);
    for proposal in &all {
        assert!(!proposal.is_change(), "{proposal:?}");
    }
    assert!(proposals(&[], &processor(1.0, 1.0), &present()).is_empty());
}

#[test]
fn short_containers_are_fixed_and_named() {
    let mut slow = target(200.0, 1, 1e-3);
    let sizes: Vec<f64> = (0..12).map(|n| 200.0 / f64::from(1 << (11 - n))).collect();
    slow.write_sizes_random = points(4096, &sizes);
    let all = proposals(&[slow.clone()], &processor(3000.0, 1500.0), &present());
    let container = of(&all, "container_bytes");
    // The curve still rises at 8 MiB.
    assert_eq!(container.proposed, Setting::Bytes(16 << 20));
    assert!(container.is_fixed && container.is_change());
    let present = Present { data_fragments: 4, fragments: 6, ..present() };
    let all = proposals(&[slow], &processor(3000.0, 1500.0), &present);
    assert_eq!(of(&all, "container_bytes").proposed, Setting::Bytes(64 << 20));
}

#[test]
fn staging_grows_with_the_depth_and_the_targets_and_never_shrinks() {
    let staging = |targets: &[Measurement], present: &Present| {
        let all = proposals(targets, &processor(3000.0, 1500.0), present);
        match of(&all, "staging_bytes").proposed {
            Setting::Bytes(bytes) => bytes >> 20,
            Setting::Word(_) => panic!("bytes"),
        }
    };
    let deep = target(500.0, 32, 1e-3);
    assert_eq!(staging(&[target(500.0, 1, 1e-3)], &present()), 64);
    assert_eq!(staging(std::slice::from_ref(&deep), &present()), (32 + 4) * 4);
    let three = vec![deep; 3];
    assert_eq!(staging(&three, &present()), (96 + 4) * 4);
    let mirrored = Present { fragments: 3, ..present() };
    assert_eq!(staging(&three, &mirrored), (32 + 4) * 4);
}

#[test]
fn the_costliest_target_sets_the_gap() {
    let gap = |targets: &[Measurement]| {
        let all = proposals(targets, &processor(3000.0, 1500.0), &present());
        of(&all, "read_gap_bytes").proposed.clone()
    };
    let disk = target(150.0, 1, 8e-3);
    assert_eq!(gap(&[target(2000.0, 8, 3e-5), disk]), Setting::Bytes(1 << 20));
    assert_eq!(gap(&[target(2000.0, 8, 1e-6)]), Setting::Bytes(4096));
    assert_eq!(gap(&[target(2000.0, 8, 0.0)]), Setting::Bytes(64 << 10), "nothing was measured");
}

#[test]
fn compression_pays_where_the_targets_are_slower() {
    let word = |mb: f64| compression_word(mb * 1e6, &processor(1500.0, 400.0)).0;
    assert_eq!(word(10.0), "zstd");
    assert_eq!(word(300.0), "auto");
    assert_eq!(word(1000.0), "auto");
    assert_eq!(word(4000.0), "none");
    // Copies on every target: the raw data is written as fast as to one of them.
    let mirrored = Present { fragments: 2, ..present() };
    let two = vec![target(80.0, 1, 1e-3); 2];
    let all = proposals(&two, &processor(1500.0, 400.0), &mirrored);
    assert!(of(&all, "compression").reason.contains("take 80 MB/s"), "{all:?}");
}

#[test]
fn a_target_without_figures_breaks_nothing() {
    let all = proposals(&[Measurement::default()], &processor(1.0, 1.0), &present());
    assert_eq!(all.len(), 4);
}
