//! Messages of `outlive prune` if the space cannot be freed, or not at once.

use crate::common;

use common::{Run, files, json, outlive, pool_with_job};
use outlive_pool::{Environment, Pool};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn opened(path: &Path) -> Pool {
    outlive_pool::open(path, Environment::system()).unwrap()
}

fn prune(pool: &Path, more: &[&str]) -> Run {
    let run = outlive(&[&["prune", text(pool), "gray scott", "--drop"], more].concat());
    assert_eq!(run.code, 0, "{run:?}");
    run
}

fn prune_json(pool: &Path, more: &[&str]) -> Value {
    json(&[&["prune", text(pool), "gray scott", "--json", "--drop"], more].concat())
}

fn epochs(pool: &Path) -> Vec<Value> {
    let listed = json(&["ls", text(pool), "gray scott", "--json"]);
    listed["checkpoints"].as_array().unwrap().iter().map(|c| c["epoch"].clone()).collect()
}

#[test]
fn whether_space_was_freed_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    let dry = prune_json(&pool, &["1", "--dry-run"]);
    assert_eq!(dry["collected"], Value::Null, "{dry}");
    let dropped = prune_json(&pool, &["1", "--no-gc"]);
    assert_eq!(
        (&dropped["collected"], &dropped["deleted_packs"]),
        (&json!("not_asked"), &json!(0))
    );
    assert_eq!(epochs(&pool), [2, 3]);
    let collected = json(&["gc", text(&pool), "--json"]);
    assert_eq!(collected["collected"], "done");
    assert!(collected["deleted_packs"].as_u64() > Some(0), "{collected}");
    let run = prune(&pool, &["2", "--no-gc"]);
    assert!(run.out.contains("drop 2\n") && run.out.contains("The next gc frees"), "{run:?}");
    assert!(!run.out.contains("deleted"), "{run:?}");
}

#[test]
fn beside_another_collection_it_is_postponed() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    let other = opened(&pool);
    let turn = other.log().lock_collecting().unwrap();
    let dropped = prune_json(&pool, &["1"]);
    assert_eq!(
        (&dropped["collected"], &dropped["deleted_packs"]),
        (&json!("postponed"), &json!(0))
    );
    let run = prune(&pool, &["2"]);
    assert!(run.out.contains("Another gc or scrub is at work"), "{run:?}");
    assert_eq!(epochs(&pool), [3], "the checkpoints go at once");
    let refused = outlive(&["gc", text(&pool)]);
    assert_eq!(refused.code, 6, "there was nothing else to do: {refused:?}");
    drop(turn);
    let collected = json(&["gc", text(&pool), "--json"]);
    assert!(collected["deleted_packs"].as_u64() > Some(0), "{collected}");
}

#[test]
fn packs_wait_for_a_restore_that_reads() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    let other = opened(&pool);
    let reading = other.log().lock_reading().unwrap().expect("directories have locks");
    let held = prune_json(&pool, &["1"]);
    assert_eq!((&held["collected"], &held["deleted_packs"]), (&json!("done"), &json!(0)));
    assert_eq!(held["held_by_restore"], true);
    assert!(held["held_packs"].as_u64() > Some(0), "{held}");
    let run = prune(&pool, &["2"]);
    assert!(run.out.contains("until a lazy restore has filled its memory"), "{run:?}");
    drop(reading);
    let run = outlive(&["gc", text(&pool)]);
    assert!(run.code == 0 && !run.out.contains("cannot be deleted until"), "{run:?}");
    assert_eq!(json(&["gc", text(&pool), "--json"])["held_by_restore"], false);
}

#[test]
fn dropped_checkpoints_are_named_when_freeing_fails() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    let file = dir.path().join("file");
    fs::write(&file, "content").unwrap();
    let before = files(&pool.join("log"));
    assert_eq!(outlive(&["put", text(&pool), "other", text(&file)]).code, 0);
    let mut records = files(&pool.join("log"));
    records.retain(|record| !before.contains(record));
    let (path, mut bytes) = records.into_iter().max_by_key(|(_, bytes)| bytes.len()).unwrap();
    bytes[200] ^= 1;
    fs::write(&path, &bytes).unwrap();

    let prune = |more: &[&str]| {
        outlive(&[&["prune", text(&pool), "gray scott", "--keep-last", "1"], more].concat())
    };
    let run = prune(&["--json"]);
    assert_eq!(run.code, 3, "{run:?}");
    assert_eq!(epochs(&pool), [3]);
    let report: Value = serde_json::from_str(&run.out).unwrap();
    let message = report["error"]["message"].as_str().unwrap();
    let advice = format!("run `outlive gc {}` once this is repaired", text(&pool));
    for part in ["dropped 2 checkpoints (1 to 2) of job gray scott, but", &advice, "job other"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert!(!message.contains("nothing is deleted"), "{message}");
    let run = prune(&[]);
    assert!(run.code == 3 && !run.err.contains("dropped"), "nothing more was: {run:?}");

    bytes[200] ^= 1;
    fs::write(&path, bytes).unwrap();
    let collected = json(&["gc", text(&pool), "--json"]);
    assert!(collected["deleted_packs"].as_u64() > Some(0), "{collected}");
}
