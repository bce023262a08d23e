//! `outlive scrub` as a person or a program meets it.

mod common;

use common::{damage_array, files, json, outlive, pool_with_job};
use serde_json::{Value, json};
use std::path::Path;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn damage_is_found_and_shut_in() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    let before = files(&pool);
    let whole = outlive(&["scrub", text(&pool), "--rate", "1GiB"]);
    assert_eq!(whole.code, 0, "{whole:?}");
    assert!(whole.out.contains("Everything that is needed is whole"), "{}", whole.out);
    let sampled = outlive(&["scrub", text(&pool), "--sample", "50%"]);
    assert_eq!(sampled.code, 0, "{sampled:?}");
    assert_eq!(files(&pool), before, "nothing was wrong and nothing was written");

    damage_array(&pool, 3);
    let damaged = files(&pool);
    let dry = outlive(&["--json", "scrub", text(&pool), "--dry-run"]);
    assert_eq!(dry.code, 3, "{dry:?}");
    let told: Value = serde_json::from_str(&dry.out).unwrap();
    assert_eq!(told["hurt"], json!([{ "job": "gray scott", "epochs": [3] }]));
    assert_eq!(files(&pool), damaged, "a dry run writes nothing");

    let run = outlive(&["scrub", text(&pool)]);
    assert_eq!(run.code, 3, "{run:?}");
    for part in ["DAMAGED", "HURT checkpoints of job gray scott: 3", "outlive gc"] {
        assert!(run.out.contains(part), "{part}: {}", run.out);
    }
    assert_eq!(outlive(&["gc", text(&pool)]).code, 0);
    let verify = json_of(&["verify", text(&pool), "--json"], 3);
    assert_eq!(verify["jobs"][0]["damaged_epochs"], json!([3]));
    let prune = outlive(&["prune", text(&pool), "gray scott", "--drop", "3"]);
    assert_eq!(prune.code, 0, "{prune:?}");
    assert_eq!(json(&["scrub", text(&pool), "--json"])["whole"], json!(true));
    assert_eq!(outlive(&["verify", text(&pool)]).code, 0);
}

fn json_of(words: &[&str], code: i32) -> Value {
    let run = outlive(words);
    assert_eq!(run.code, code, "{run:?}");
    serde_json::from_str(&run.out).unwrap()
}

#[test]
fn an_empty_pool_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("pool");
    assert_eq!(outlive(&["pool", "init", text(&pool)]).code, 0);
    assert_eq!(outlive(&["scrub", text(&pool)]).code, 0);
    assert_eq!(outlive(&["scrub", text(&dir.path().join("nowhere"))]).code, 2);
}
