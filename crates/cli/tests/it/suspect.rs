//! Suspect checkpoints: shown, skipped, not counted by rules, and cleared once they are whole.

use crate::common;

use common::{damage_array, json, outlive, pool_with_job};
use outlive_pool::Environment;
use outlive_store::{Job, JobOptions};
use serde_json::json;

#[test]
fn a_suspect_checkpoint_is_shown_and_cleared_by_a_verification() {
    let dir = tempfile::tempdir().unwrap();
    let path = pool_with_job(dir.path());
    let text = path.to_str().unwrap();
    let pool = outlive_pool::open(&path, Environment::system()).unwrap();
    let job = Job::open(&pool, "gray scott", JobOptions::default()).unwrap();
    let mark = || job.note(3, |remarks| remarks.suspect = true).unwrap();
    mark();
    let listed = json(&["ls", text, "gray scott", "--json"]);
    let marks: Vec<_> =
        listed["checkpoints"].as_array().unwrap().iter().map(|c| &c["suspect"]).collect();
    assert_eq!(marks, [&json!(false), &json!(false), &json!(true)]);
    assert!(outlive(&["ls", text, "gray scott"]).out.contains("suspect"));
    assert!(outlive(&["show", text, "gray scott", "3"]).out.contains("suspect"));
    // The newest that counts is the one before it.
    let shown = outlive(&["show", text, "gray scott", "--json"]);
    assert!(shown.code == 0 && shown.out.contains("\"epoch\": 2"), "{shown:?}");

    // A sample shows nothing about the whole checkpoint.
    let sampled = json(&["verify", text, "--sample", "50%", "--json"]);
    assert_eq!(sampled["jobs"][0]["cleared_epochs"], json!([]));
    let verified = json(&["verify", text, "--json"]);
    assert_eq!(verified["jobs"][0]["cleared_epochs"], json!([3]));
    assert_eq!(json(&["verify", text, "--json"])["jobs"][0]["cleared_epochs"], json!([]));
    let shown = outlive(&["show", text, "gray scott", "--json"]);
    assert!(shown.out.contains("\"epoch\": 3"), "{shown:?}");

    // A damaged checkpoint stays suspect.
    mark();
    damage_array(&path, 3);
    let verified = outlive(&["verify", text]);
    assert!(verified.code == 3 && verified.out.contains("DAMAGED checkpoint 3"), "{verified:?}");
    assert!(outlive(&["ls", text, "gray scott"]).out.contains("suspect"));
}

/// Rules keep a whole checkpoint in place of a damaged one, after a verify or an export.
#[test]
fn rules_count_no_checkpoint_in_which_damage_was_found() {
    for how in [&["verify"][..], &["export", "gray scott", "--to"]] {
        let dir = tempfile::tempdir().unwrap();
        let path = pool_with_job(dir.path());
        let (text, to) = (path.to_str().unwrap(), dir.path().join("out"));
        damage_array(&path, 3);
        let to = to.to_str().unwrap();
        let words = match how {
            ["verify"] => vec!["verify", text],
            _ => vec!["export", text, "gray scott", "--to", to],
        };
        let found = outlive(&words);
        assert!((found.out + &found.err).contains("damaged") || found.code == 3, "{how:?}");
        let two = ["prune", text, "gray scott", "--keep-last", "2", "--dry-run", "--json"];
        assert_eq!(json(&two)["retention"]["dropped"], json!([]), "two whole ones: {how:?}");
        let keep = ["prune", text, "gray scott", "--keep-last", "1", "--json"];
        assert_eq!(json(&keep)["retention"]["dropped"], json!([1]), "{how:?}");
        let shown = outlive(&["show", text, "gray scott", "--json"]);
        assert!(shown.code == 0 && shown.out.contains("\"epoch\": 2"), "{shown:?}");
        let job = outlive_pool::open(&path, Environment::system()).unwrap();
        let job = Job::open(&job, "gray scott", JobOptions::default()).unwrap();
        assert!(job.verify(Some(2)).unwrap().findings.is_empty(), "{how:?}");
        // The only whole checkpoint stays.
        assert_eq!(json(&keep)["retention"]["dropped"], json!([]), "{how:?}");
    }
}
