//! `outlive du` as people and programs use it.

use crate::common;

use common::{files, json, outlive, pool_with_job};
use std::fs;
use std::path::Path;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn du_shows_the_space_of_jobs_and_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    let before = files(&pool);
    let jobs = outlive(&["du", text(&pool)]);
    assert_eq!(jobs.code, 0, "{jobs:?}");
    for part in ["gray scott", "NEEDS", "ALONE", "a gc would free", "one moment"] {
        assert!(jobs.out.contains(part), "{part}: {}", jobs.out);
    }
    let all = json(&["du", text(&pool), "gray scott", "--json"]);
    assert_eq!(all["rows"].as_array().unwrap().len(), 3);
    // Each checkpoint has a new array of 240,000 bytes.
    for row in all["rows"].as_array().unwrap() {
        assert!(row["only_bytes"].as_u64().unwrap() >= 240_000, "{row}");
    }
    let two = json(&["--json", "du", text(&pool), "gray scott", "1", "3"]);
    assert_eq!(two["together"]["epochs"], serde_json::json!([1, 3]));
    assert!(two["together"]["only_bytes"].as_u64().unwrap() >= 480_000, "{two}");
    let table = outlive(&["du", text(&pool), "gray scott", "1", "3"]);
    assert!(table.out.contains("together"), "{}", table.out);
    let said = "After a prune of these checkpoints, a gc would free about";
    assert!(table.out.contains(said), "{}", table.out);
    let table = outlive(&["du", text(&pool), "gray scott", "1"]);
    assert!(table.out.contains("After a prune of this checkpoint, a gc"), "{}", table.out);
    let frees = two["gc_frees_without_bytes"].as_u64().unwrap();
    assert!((450_000..520_000).contains(&frees), "{two}");
    assert_eq!(files(&pool), before, "looking at a pool changes nothing in it");

    for wrong in [&["du", text(&pool), "nobody"][..], &["du", text(&pool), "gray scott", "9"]] {
        let run = outlive(wrong);
        assert_eq!(run.code, 2, "{run:?}");
    }
}

#[test]
fn an_empty_pool_and_a_damaged_one() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().join("empty");
    assert_eq!(outlive(&["pool", "init", text(&empty)]).code, 0);
    let run = outlive(&["du", text(&empty)]);
    assert!(run.code == 0 && run.out.contains("no jobs yet"), "{run:?}");

    let pool = pool_with_job(dir.path());
    let records: Vec<_> =
        files(&pool.join("log")).into_iter().filter(|(_, bytes)| bytes.len() > 300).collect();
    let (path, mut bytes) = records[1].clone();
    bytes[200] ^= 1;
    fs::write(path, bytes).unwrap();
    let run = outlive(&["du", text(&pool)]);
    assert_eq!(run.code, 3, "{run:?}");
    assert!(run.out.contains("DAMAGED log of job gray scott"), "{}", run.out);
    let advised = format!("`outlive gc {} --forget-damaged`", text(&pool));
    let collected = outlive(&["gc", text(&pool)]);
    assert!(collected.code == 3 && collected.err.contains(&advised), "{collected:?}");
}
