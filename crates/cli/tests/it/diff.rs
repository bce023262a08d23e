//! `outlive diff` as people and programs use it.

use crate::common;

use common::{files, json, outlive, pool_with_job};
use outlive_files::PutFiles;
use outlive_pool::Environment;
use outlive_store::{Job, JobOptions};
use serde_json::{Value, json};
use std::path::Path;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn checkpoints_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    let before = files(&pool);
    let differ = outlive(&["diff", text(&pool), "gray scott@1", "gray scott"]);
    assert_eq!(differ.code, 1, "{differ:?}");
    for part in ["- checkpoint 1", "+ checkpoint 3", "u\\u{1b}[2J", "100.0 %", "8 regions the same"]
    {
        assert!(differ.out.contains(part), "{part}: {}", differ.out);
    }
    let ranges = outlive(&["diff", text(&pool), "gray scott@1", "gray scott@2", "--pages"]);
    assert!(ranges.out.contains("\n  0-58\n"), "{}", ranges.out);
    let run = outlive(&["--json", "diff", text(&pool), "gray scott@1", "gray scott@2", "--pages"]);
    assert_eq!(run.code, 1, "{run:?}");
    let told: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!((&told["same"], &told["kind"]), (&json!(false), &json!("memory")));
    assert_eq!(told["changed"][0]["ranges"], json!([[0, 59]]));
    assert_eq!(told["changed"].as_array().unwrap().len(), 2);

    let same = json(&["diff", text(&pool), "gray scott@2", "gray scott@2", "--json"]);
    assert_eq!((&same["same"], &same["same_regions"]), (&json!(true), &json!(10)));
    assert_eq!(files(&pool), before, "looking at a pool changes nothing in it");
    for wrong in ["gray scott@9", "nobody", "gray scott@x", "@1"] {
        let run = outlive(&["diff", text(&pool), wrong, "gray scott"]);
        assert_eq!(run.code, 2, "{wrong}: {run:?}");
    }
}

#[test]
fn a_name_with_an_at_is_found_first() {
    let dir = tempfile::tempdir().unwrap();
    let path = pool_with_job(dir.path());
    let pool = outlive_pool::open(&path, Environment::system()).unwrap();
    let job = Job::open(&pool, "gray scott@2", JobOptions::default()).unwrap();
    job.put(
        outlive_files::PutSource::Stream { name: b"x".to_vec(), from: &mut &b"hello"[..] },
        &Default::default(),
    )
    .unwrap();
    drop(job);
    let run = outlive(&["diff", text(&path), "gray scott@2", "gray scott@2@1"]);
    assert_eq!(run.code, 0, "{run:?}");
    assert!(run.out.contains("1 path the same"), "{}", run.out);
    let run = outlive(&["diff", text(&path), "gray scott@2", "gray scott@1"]);
    assert!(run.code == 2 && run.err.contains("files"), "{run:?}");
}

#[test]
fn a_wrong_epoch_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    let run = outlive(&["diff", text(&pool), "gray scott@x", "gray scott"]);
    assert!(
        run.code == 2 && run.err.contains("\"x\" is not an epoch of job gray scott"),
        "{run:?}"
    );
}
