//! Pools whose targets are raw block devices, as an operator uses them.

use crate::common::{command, files, json, outlive};
use crate::loop_device::{LoopDevice, run};
use crate::node::{Node, done};
use outlive_types::{Rng, SeededRng};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Writes files of some MiB in all; `seed` makes them differ.
fn fill(tree: &Path, seed: u8) {
    fs::create_dir_all(tree.join("a")).unwrap();
    for number in 0..40_u8 {
        let bytes: Vec<u8> =
            (0..120_000_u32).map(|at| ((at * u32::from(number + seed)) >> 7) as u8).collect();
        fs::write(tree.join("a").join(number.to_string()), bytes).unwrap();
    }
}

fn is_restored(pool: &Path, tree: &Path) {
    is_restored_of(pool, "j", tree);
}

fn is_restored_of(pool: &Path, job: &str, tree: &Path) {
    let to = tempfile::tempdir().unwrap();
    let there = to.path().join("x");
    let got = outlive(&["get", text(pool), job, "--to", text(&there)]);
    assert_eq!(got.code, 0, "{got:?}");
    let bytes = |at: &Path| files(at).into_iter().map(|(_, bytes)| bytes).collect::<Vec<_>>();
    assert!(bytes(&there) == bytes(tree));
}

fn init(pool: &Path, devices: &[LoopDevice], rule: &[&str]) {
    let urls: Vec<String> = devices.iter().map(LoopDevice::url).collect();
    let targets = urls.iter().flat_map(|url| ["--target", url]);
    let words: Vec<&str> = ["pool", "init", text(pool)]
        .into_iter()
        .chain(targets)
        .chain(rule.iter().copied())
        .collect();
    let made = outlive(&words);
    assert!(made.code == 0 && made.out.contains("block device /dev/loop"), "{made:?}");
}

#[test]
fn a_pool_of_devices_survives_one_and_gets_another() {
    let dir = tempfile::tempdir().unwrap();
    let (pool, tree) = (dir.path().join("pool"), dir.path().join("tree"));
    let devices = [(); 3].map(|()| LoopDevice::new(96 << 20));
    init(&pool, &devices, &["--erasure", "2+1"]);
    let done = |words: &[&str]| {
        let run = outlive(words);
        assert_eq!(run.code, 0, "{words:?}: {run:?}");
        run
    };
    for seed in [1, 7] {
        fill(&tree, seed);
        done(&["put", text(&pool), "j", text(&tree)]);
    }
    is_restored(&pool, &tree);
    done(&["verify", text(&pool)]);
    // All bytes of one device are lost.
    run(&[
        "dd",
        "if=/dev/zero",
        &format!("of={}", devices[1].path),
        "bs=1M",
        "count=96",
        "conv=fsync",
    ]);
    is_restored(&pool, &tree);
    let new = LoopDevice::new(96 << 20);
    done(&["pool", "replace", text(&pool), "2", &new.url()]);
    run(&[
        "dd",
        "if=/dev/zero",
        &format!("of={}", devices[0].path),
        "bs=1M",
        "count=96",
        "conv=fsync",
    ]);
    is_restored(&pool, &tree);
    // A device of this pool is not blank for another one.
    let other = dir.path().join("other");
    let refused = outlive(&["pool", "init", text(&other), "--target", &new.url()]);
    assert!(refused.code == 2 && refused.err.contains("not empty"), "{refused:?}");
}

#[test]
fn pruned_checkpoints_give_their_space_back() {
    let dir = tempfile::tempdir().unwrap();
    let (pool, tree) = (dir.path().join("pool"), dir.path().join("tree"));
    let devices = [LoopDevice::new(96 << 20)];
    init(&pool, &devices, &[]);
    let free =
        || json(&["pool", "status", text(&pool), "--json"])["targets"][0]["free_bytes"].as_u64();
    let before = free().expect("a device knows its free space");
    // More in all than the device holds.
    for seed in 0..60 {
        fill(&tree, seed);
        let put = outlive(&["put", text(&pool), "j", text(&tree)]);
        assert_eq!(put.code, 0, "{put:?}");
        let pruned = outlive(&["prune", text(&pool), "j", "--keep-last", "1"]);
        assert_eq!(pruned.code, 0, "{pruned:?}");
    }
    is_restored(&pool, &tree);
    assert!(devices[0].used_bytes() < 48 << 20, "the space is discarded");
    let now = free().unwrap();
    assert!(now + (24 << 20) > before, "{now} of {before}");
}

#[test]
fn several_programs_save_to_one_device_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("pool");
    let devices = [LoopDevice::new(160 << 20)];
    init(&pool, &devices, &[]);
    let trees: Vec<_> = (0..3).map(|job| dir.path().join(format!("tree{job}"))).collect();
    for round in 0..4 {
        let put = |(job, tree): (usize, &PathBuf)| {
            fill(tree, 50 * job as u8 + round);
            let name = format!("j{job}");
            let words = ["put", text(&pool), &name, text(tree)];
            command(&words).stdout(Stdio::null()).spawn().unwrap()
        };
        let all: Vec<_> = trees.iter().enumerate().map(put).collect();
        for mut child in all {
            assert!(child.wait().unwrap().success());
        }
    }
    for (job, tree) in trees.iter().enumerate() {
        is_restored_of(&pool, &format!("j{job}"), tree);
    }
}

/// A larger device is used as a whole once it is added again.
#[test]
fn a_device_may_grow() {
    let dir = tempfile::tempdir().unwrap();
    let (pool, tree) = (dir.path().join("pool"), dir.path().join("tree"));
    let devices = [(); 2].map(|()| LoopDevice::new(96 << 20));
    init(&pool, &devices, &[]);
    fill(&tree, 3);
    let done = |words: &[&str]| {
        let run = outlive(words);
        assert_eq!(run.code, 0, "{words:?}: {run:?}");
    };
    done(&["put", text(&pool), "j", text(&tree)]);
    devices[0].grow(192 << 20);
    let sizes = || {
        let status = json(&["pool", "status", text(&pool), "--json"]);
        let sizes = status["targets"].as_array().unwrap().iter();
        sizes.map(|target| target["total_bytes"].as_u64().unwrap() >> 20).collect::<Vec<_>>()
    };
    assert!(sizes().iter().all(|mib| *mib < 96), "{:?}", sizes());
    is_restored(&pool, &tree);
    done(&["pool", "remove", text(&pool), "1"]);
    run(&[
        "dd",
        "if=/dev/zero",
        &format!("of={}", devices[0].path),
        "bs=1M",
        "count=1",
        "conv=fsync",
    ]);
    done(&["pool", "add", text(&pool), &devices[0].url()]);
    assert!(sizes().iter().any(|mib| *mib > 180), "{:?}", sizes());
    is_restored(&pool, &tree);
}

/// A `kill -9` at any moment leaves the checkpoint before, and the next put succeeds.
#[test]
fn a_killed_put_leaves_the_checkpoint_before() {
    let dir = tempfile::tempdir().unwrap();
    let (pool, tree) = (dir.path().join("pool"), dir.path().join("tree"));
    let devices = [(); 2].map(|()| LoopDevice::new(128 << 20));
    init(&pool, &devices, &["--mirror", "2"]);
    fill(&tree, 1);
    let put = ["put", text(&pool), "j", text(&tree)];
    assert_eq!(outlive(&put).code, 0);
    let count =
        || json(&["ls", text(&pool), "j", "--json"])["checkpoints"].as_array().unwrap().len();
    fill(&tree, 2);
    let began = Instant::now();
    assert_eq!(outlive(&put).code, 0);
    // The moments are spread over as much time as a put takes. One that ends earlier counts not.
    let whole = began.elapsed();
    let mut killed = 0;
    for round in 0..250_u8 {
        if killed == 12 {
            break;
        }
        let before = count();
        fill(&tree, 3 + round % 100);
        let mut child = command(&put).stdout(Stdio::null()).spawn().unwrap();
        sleep(whole * u32::from(round % 10) / 10);
        let _ = child.kill();
        killed += usize::from(!child.wait().unwrap().success());
        let after = count();
        assert!(after == before || after == before + 1, "{before} {after}");
        let verified = outlive(&["verify", text(&pool)]);
        assert_eq!(verified.code, 0, "round {round}: {verified:?}");
    }
    assert!(killed == 12, "only {killed} of 250 puts were killed before their end");
    assert_eq!(outlive(&put).code, 0);
    is_restored(&pool, &tree);
    assert_eq!(outlive(&["gc", text(&pool)]).code, 0);
    is_restored(&pool, &tree);
}

#[test]
fn a_node_serves_a_device_alone_and_after_its_end() {
    let device = LoopDevice::new(256 << 20);
    let dir = tempfile::tempdir().unwrap();
    let (pool, tree) = (dir.path().join("pool"), dir.path().join("tree"));
    let url = device.url();
    let serve = |listen: &str| ["node", "serve", "--data", &url, "--listen", listen].join(" ");
    let mut node = Node::new(dir.path().join("unused"));
    node.run(&serve("127.0.0.1:0").split(' ').collect::<Vec<_>>());
    let at = node.listen.clone();
    done(&["pool", "init", text(&pool), "--target", &format!("node://{at}")]);
    let other = outlive(&serve("127.0.0.1:0").split(' ').collect::<Vec<_>>());
    assert_eq!(other.code, 6, "{other:?}");
    assert!(other.err.contains("another"), "{}", other.err);
    for seed in 1..4 {
        fill(&tree, seed);
        done(&["put", text(&pool), "j", text(&tree)]);
        node.kill();
        node.run(&serve(&at).split(' ').collect::<Vec<_>>());
        is_restored(&pool, &tree);
    }
    // A save that the end of the node cuts off; a busy machine may see it too late.
    let mut noise = vec![0; 16 << 20];
    let is_cut = (9..19).any(|seed| {
        SeededRng::new(seed).fill(&mut noise);
        fs::write(tree.join("noise"), &noise).unwrap();
        let put = command(&["put", text(&pool), "j", text(&tree)]).stderr(Stdio::null()).spawn();
        let (mut put, before) = (put.unwrap(), node.written_bytes());
        while node.written_bytes() < before + (1 << 20) && put.try_wait().unwrap().is_none() {
            sleep(Duration::from_millis(1));
        }
        node.kill();
        let code = put.wait().unwrap().code();
        node.run(&serve(&at).split(' ').collect::<Vec<_>>());
        code != Some(0)
    });
    assert!(is_cut, "each save ended before its node did");
    done(&["put", text(&pool), "j", text(&tree)]);
    is_restored(&pool, &tree);
    done(&["verify", text(&pool)]);
}
