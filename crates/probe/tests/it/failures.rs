//! Probes that fail, or are stopped: nothing is left.

use crate::targets::{assert_empty, probed, small};
use outlive_backend::{FaultWorld, MemoryTarget};
use outlive_dir::{DirectoryOptions, DirectoryTarget};
use outlive_probe::{Options, measure};
use outlive_types::ErrorKind;
use std::cell::Cell;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

/// Options with few operations, so that each can fail once.
fn few() -> Options {
    Options { access_bytes_max: 16 << 10, fragment_bytes: 8 << 10, depth_max: 2, ..small() }
}

#[test]
fn a_full_target_is_refused_clearly() {
    let target = MemoryTarget::with_capacity(100 << 20);
    let error = measure(&target, &small(), &|| false, &|_| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    for part in ["memory", "100.0 MiB are free", "200.0 MiB", "outlive prune"] {
        assert!(error.message().contains(part), "{error}");
    }
    assert_empty(&target);
}

/// Operations fail one after the other: each time the probe ends with that error, and leaves no shard.
#[test]
fn a_failure_anywhere_leaves_nothing() {
    let world = FaultWorld::new();
    world.count_reads(true);
    probed(&*world.target(), &few());
    let all = world.ops();
    // The first operations each, later ones now and then: they are many writes of a page.
    let numbers = (0..60).chain((60..all).step_by(all as usize / 60 + 1));
    let mut failed = 0;
    for number in numbers {
        for kind in [ErrorKind::Full, ErrorKind::Retry] {
            let world = FaultWorld::new();
            world.count_reads(true);
            world.fail_at(number, kind);
            let target = world.target();
            let outcome = measure(&*target, &few(), &|| false, &|_| {});
            // Samples differ from run to run, so the last operations may not come.
            if let Err(error) = outcome {
                assert_eq!(error.kind(), kind, "operation {number}: {error}");
                failed += 1;
            }
            assert_empty(&*target);
        }
    }
    assert!(failed > 60, "{failed}");
}

#[test]
fn a_request_to_stop_ends_the_probe_and_leaves_nothing() {
    for calls in [0, 1, 2, 5, 10, 100, 1000, 5000] {
        let target = MemoryTarget::with_capacity(1 << 30);
        let left = Cell::new(calls);
        let stop = || {
            left.set(left.get() - 1);
            left.get() < 0
        };
        let error = measure(&target, &small(), &stop, &|_| {}).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
        assert!(error.message().contains("interrupted"), "{error}");
        assert_empty(&target);
    }
}

/// Permissions do not bind root, and a file in the place of a directory binds all.
#[test]
fn a_directory_without_permission_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("packs"), b"not a directory").unwrap();
    let target = DirectoryTarget::open(dir.path(), &DirectoryOptions::default()).unwrap();
    let error = measure(&target, &small(), &|| false, &|_| {}).unwrap_err();
    assert!(error.message().contains("packs"), "{error}");
    let dir = tempfile::tempdir().unwrap();
    let set = |mode| std::fs::set_permissions(dir.path(), Permissions::from_mode(mode)).unwrap();
    set(0o555);
    let is_root = std::fs::write(dir.path().join("x"), b"").is_ok();
    let target = DirectoryTarget::open(dir.path(), &DirectoryOptions::default()).unwrap();
    let outcome = measure(&target, &small(), &|| false, &|_| {});
    assert!(is_root || outcome.is_err());
    assert_empty(&target);
    set(0o755);
}
