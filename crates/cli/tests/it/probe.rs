//! `outlive pool probe` as an operator uses it: nothing is left, and checkpoints stay whole.

use crate::common::{command, files, json, outlive};
use crate::loop_device::LoopDevice;
use crate::place::{Fixture, Server};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Creates `dir/pool` with a checkpoint of a tree, on these targets. Returns both.
fn pool_with_tree(dir: &Path, words: &[&str]) -> (PathBuf, PathBuf) {
    let (pool, tree) = (dir.join("pool"), dir.join("tree"));
    fs::create_dir(&tree).unwrap();
    for number in 0..20_u32 {
        let bytes: Vec<u8> = (0..100_000_u32).map(|at| ((at * (number + 3)) >> 7) as u8).collect();
        fs::write(tree.join(number.to_string()), bytes).unwrap();
    }
    let made = outlive(&[&["pool", "init", text(&pool)], words].concat());
    assert_eq!(made.code, 0, "{made:?}");
    assert_eq!(outlive(&["put", text(&pool), "job", text(&tree)]).code, 0);
    (pool, tree)
}

/// The tree comes back, and every stored byte is whole.
fn is_whole(dir: &Path, pool: &Path, tree: &Path) {
    let verified = outlive(&["verify", text(pool)]);
    assert_eq!(verified.code, 0, "{verified:?}");
    let to = dir.join("back");
    assert_eq!(outlive(&["get", text(pool), "job", "--to", text(&to)]).code, 0);
    let contents = |at: &Path| files(at).into_iter().map(|(_, it)| it).collect::<Vec<_>>();
    assert!(contents(&to) == contents(tree));
    fs::remove_dir_all(to).unwrap();
}

fn shards(dir: &Path) -> Vec<PathBuf> {
    let all = files(dir).into_iter().map(|(path, _)| path);
    all.filter(|path| !path.ends_with(".pool.toml")).collect()
}

#[test]
fn a_probe_draws_and_applies_and_leaves_the_pool_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (pool, tree) = pool_with_tree(dir.path(), &[]);
    let descriptor = pool.join("pool.toml");
    // No directory of this machine suits such a gap.
    let far = fs::read_to_string(&descriptor).unwrap();
    let far = far.replace("read_gap_bytes = 65536", "read_gap_bytes = 268435456 # mine");
    fs::write(&descriptor, &far).unwrap();
    let before = shards(&pool.join("packs"));
    let page = dir.path().join("report.html");
    let found = json(&["pool", "probe", text(&pool), "--to", text(&page), "--apply", "--json"]);
    assert_eq!(shards(&pool.join("packs")), before, "scratch shards are left");
    let measured = &found["targets"][0]["measured"];
    for curve in [
        "read_positions",
        "read_positions_queued",
        "write_positions",
        "write_positions_queued",
        "read_sizes",
        "write_sizes",
        "write_sizes_random",
        "read_depths",
        "write_depths",
    ] {
        let points = measured[curve].as_array().unwrap();
        assert!(!points.is_empty(), "{curve}: {found}");
        assert!(points.iter().all(|it| it["bytes_per_s"].as_f64() > Some(0.0)), "{curve}");
    }
    let applied = found["applied"].as_array().unwrap();
    assert!(applied.contains(&Value::from("read_gap_bytes")), "{found}");
    let now = fs::read_to_string(&descriptor).unwrap();
    assert!(!now.contains("read_gap_bytes = 268435456") && now.contains(" # mine"), "{now}");
    // The page holds the figures, and files beside it do.
    let html = fs::read_to_string(&page).unwrap();
    assert_eq!(html.matches("<svg").count(), 6);
    assert!(
        html.contains("Figure 6") && html.contains("read_gap_bytes") && !html.contains("<script")
    );
    let figures = found["figures"].as_array().unwrap();
    assert_eq!(figures.len(), 12);
    for figure in figures {
        let bytes = fs::read(figure.as_str().unwrap()).unwrap();
        assert!(bytes.starts_with(b"<svg") || bytes.starts_with(b"\x89PNG"), "{figure}");
    }
    is_whole(dir.path(), &pool, &tree);
    // Again: an earlier report is replaced, and a value that suits stays.
    let again = outlive(&["pool", "probe", text(&pool), "--to", text(&page), "--apply"]);
    assert_eq!(again.code, 0, "{again:?}");
    assert_eq!(shards(&pool.join("packs")), before);
    let is_same = fs::read_to_string(&descriptor).unwrap() == now;
    assert_eq!(is_same, again.out.contains("Nothing is applied"), "{again:?}");
    assert!(again.out.contains("WRITE UNIT") && again.out.contains("staging_bytes"), "{again:?}");
    is_whole(dir.path(), &pool, &tree);
}

#[test]
fn a_missing_target_does_not_keep_others_from_being_measured() {
    let dir = tempfile::tempdir().unwrap();
    let rule = ["--target", "../one", "--target", "../two", "--mirror", "2"];
    let (pool, tree) = pool_with_tree(dir.path(), &rule);
    fs::rename(dir.path().join("two"), dir.path().join("away")).unwrap();
    let descriptor = fs::read_to_string(pool.join("pool.toml")).unwrap();
    let before = shards(&dir.path().join("one"));
    let run = outlive(&["pool", "probe", text(&pool), "--apply"]);
    assert_eq!(run.code, 6, "{run:?}");
    assert!(run.out.contains("NOT MEASURED") && run.out.contains("staging_bytes"), "{run:?}");
    assert!(run.out.contains("Nothing is applied: target 2"), "{run:?}");
    assert_eq!(fs::read_to_string(pool.join("pool.toml")).unwrap(), descriptor);
    assert_eq!(shards(&dir.path().join("one")), before);
    fs::rename(dir.path().join("away"), dir.path().join("two")).unwrap();
    is_whole(dir.path(), &pool, &tree);
}

#[test]
fn a_device_with_too_little_room_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let device = LoopDevice::new(160 << 20);
    let (pool, tree) = pool_with_tree(dir.path(), &["--target", &device.url()]);
    let run = outlive(&["pool", "probe", text(&pool)]);
    assert_eq!(run.code, 4, "{run:?}");
    assert!(run.out.contains("NOT MEASURED") && run.out.contains("200.0 MiB"), "{run:?}");
    assert!(run.out.contains("no proposals"), "{run:?}");
    is_whole(dir.path(), &pool, &tree);
}

/// The first line about a step says that scratch shards may exist.
#[test]
fn ctrl_c_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (pool, tree) = pool_with_tree(dir.path(), &[]);
    let before = shards(&pool.join("packs"));
    let words = ["pool", "probe", text(&pool), "--thorough"];
    let mut probe = command(&words).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(probe.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("target 1: ") {
        line.clear();
        assert_ne!(said.read_line(&mut line).unwrap(), 0, "it ended");
    }
    let pid = probe.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    assert_eq!(probe.wait().unwrap().code(), Some(130));
    assert_eq!(shards(&pool.join("packs")), before);
    is_whole(dir.path(), &pool, &tree);
}

#[test]
fn other_files_are_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let (pool, _) = pool_with_tree(dir.path(), &[]);
    let page = dir.path().join("notes.html");
    fs::write(&page, "my notes").unwrap();
    let refused = outlive(&["pool", "probe", text(&pool), "--to", text(&page)]);
    assert!(refused.code == 2 && refused.err.contains("no report"), "{refused:?}");
    let picture = dir.path().join("new-figure3.png");
    fs::write(&picture, "my picture").unwrap();
    let new = dir.path().join("new.html");
    let refused = outlive(&["pool", "probe", text(&pool), "--to", text(&new)]);
    assert!(refused.code == 2 && refused.err.contains("new-figure3.png"), "{refused:?}");
    assert_eq!(fs::read_to_string(&picture).unwrap(), "my picture");
    for option in [&["--apply"][..], &["--thorough"], &["--to", "x.html"]] {
        let refused = outlive(&[&["pool", "probe"], option].concat());
        assert_eq!(refused.code, 2, "{refused:?}");
    }
}

#[test]
fn without_a_pool_the_machine_is_tested() {
    let found = json(&["pool", "probe", "--json"]);
    assert!(found["trackers"].as_array().unwrap().len() >= 2, "{found}");
    assert!(found["auto"].is_string());
}

/// A bucket takes writes into memory. So only their end shows its speed.
#[test]
fn a_bucket_is_measured_and_left_as_it_was() {
    let Some(server) = Server::versitygw() else { return };
    let fixture = Fixture::new(server);
    let pool = "s3://ckpt/runs/a";
    fixture.init(pool, &[]);
    assert_eq!(fixture.put(pool, "job", 1).code, 0);
    let bucket = fixture.server.bucket_dir();
    let objects = |at: &Path| files(at).into_iter().map(|(path, _)| path).collect::<Vec<_>>();
    let before = objects(&bucket);
    let found = fixture.json(&["--json", "pool", "probe", pool]);
    let measured = &found["targets"][0]["measured"];
    for curve in ["write_sizes", "write_positions", "read_sizes", "read_positions_queued"] {
        assert!(!measured[curve].as_array().unwrap().is_empty(), "{curve}: {found}");
    }
    assert_eq!(objects(&bucket), before);
    fixture.check(pool, "job", 1);
    fixture.done(&["verify", pool]);
}
