//! `outlive scrub` as people and programs use it.

use crate::common;

use common::{damage, damage_array, files, json, outlive, pool_with_job};
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
    assert_eq!(told["incomplete"], json!([{ "job": "gray scott", "epochs": [3] }]));
    assert_eq!(files(&pool), damaged, "a dry run writes nothing");

    let run = outlive(&["scrub", text(&pool)]);
    assert_eq!(run.code, 3, "{run:?}");
    for part in ["DAMAGED", "INCOMPLETE checkpoints of job gray scott: 3", "outlive gc"] {
        assert!(run.out.contains(part), "{part}: {}", run.out);
    }
    assert_eq!(outlive(&["gc", text(&pool)]).code, 0);
    let verify = json_of(&["verify", text(&pool), "--json"], 3);
    assert_eq!(verify["jobs"][0]["damaged_epochs"], json!([3]));
    // Lost data still has a name, and every command reports it.
    let verified = outlive(&["verify", text(&pool), "gray scott"]).out;
    assert!(verified.contains("DAMAGED checkpoint 3: region \"u"), "{verified}");
    let listed = outlive(&["ls", text(&pool), "gray scott"]).out;
    let marked: Vec<bool> =
        listed.lines().skip(1).map(|line| line.ends_with("incomplete")).collect();
    assert_eq!(marked, [false, false, true], "{listed}");
    let newest = outlive(&["show", text(&pool), "gray scott"]);
    assert!(newest.code == 0 && newest.out.starts_with("Checkpoint 2 "), "{newest:?}");
    assert!(newest.err.contains("checkpoint 3") && newest.err.contains("incomplete"), "{newest:?}");
    let shown = json(&["show", text(&pool), "gray scott", "--json"]);
    assert_eq!(
        (&shown["manifest"]["epoch"], &shown["skipped"][0]["epoch"]),
        (&json!(2), &json!(3))
    );
    let third = outlive(&["show", text(&pool), "gray scott", "3"]);
    assert!(third.code == 0 && third.out.contains("\nincomplete "), "{third:?}");
    assert_eq!(
        json(&["show", text(&pool), "gray scott", "3", "--json"])["manifest"]["incomplete"],
        true
    );
    let to = dir.path().join("to");
    let taken = outlive(&["export", text(&pool), "gray scott", "3", "--to", text(&to)]);
    assert_eq!(taken.code, 3, "{taken:?}");
    for part in ["checkpoint 3 of job gray scott is damaged: ", "without known damage is 2"] {
        assert!(taken.err.contains(part), "{part}: {}", taken.err);
    }
    // The advised command can be run unchanged.
    let advised = format!("prune {} 'gray scott' --drop 3`", text(&pool));
    assert!(run.out.contains(&advised), "{advised}: {}", run.out);
    let prune = outlive(&["prune", text(&pool), "gray scott", "--drop", "3"]);
    assert_eq!(prune.code, 0, "{prune:?}");
    assert_eq!(json(&["scrub", text(&pool), "--json"])["whole"], json!(true));
    assert_eq!(outlive(&["verify", text(&pool)]).code, 0);
}

#[test]
fn get_passes_over_a_checkpoint_of_which_something_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let (pool, tree, to) =
        (dir.path().join("pool"), dir.path().join("tree"), dir.path().join("to"));
    assert_eq!(outlive(&["pool", "init", text(&pool)]).code, 0);
    std::fs::create_dir(&tree).unwrap();
    for epoch in [1u64, 2] {
        // Bytes that no compression shortens, so the test finds them again.
        let bytes: Vec<u8> = (0..40_000u64).flat_map(|at| mixed(at ^ (epoch << 32))).collect();
        std::fs::write(tree.join("file"), &bytes).unwrap();
        assert_eq!(outlive(&["put", text(&pool), "tree", text(&tree)]).code, 0);
        if epoch == 2 {
            damage(&pool, &bytes[..64]);
        }
    }
    assert_eq!(outlive(&["scrub", text(&pool)]).code, 3);
    let got = outlive(&["get", text(&pool), "tree", "--to", text(&to)]);
    assert_eq!(got.code, 0, "{got:?}");
    assert!(got.out.contains("Checkpoint 1") && got.err.contains("checkpoint 2"), "{got:?}");
    let third = outlive(&["get", text(&pool), "tree@2", "--to", text(&dir.path().join("other"))]);
    assert_eq!(third.code, 3, "asked for by its number: {third:?}");
}

#[test]
fn an_incomplete_checkpoint_does_not_have_the_redundancy_of_its_pool() {
    let dir = tempfile::tempdir().unwrap();
    let (pool, tree) = (dir.path().join("pool"), dir.path().join("tree"));
    let targets = ["one", "two"].map(|name| dir.path().join(name));
    let [one, two] = targets.each_ref().map(|target| text(target));
    let init = ["pool", "init", text(&pool), "--target", one, "--target", two, "--mirror", "2"];
    assert_eq!(outlive(&init).code, 0);
    std::fs::create_dir(&tree).unwrap();
    let bytes: Vec<u8> = (0..40_000u64).flat_map(mixed).collect();
    std::fs::write(tree.join("file"), &bytes).unwrap();
    assert_eq!(outlive(&["put", text(&pool), "tree", text(&tree)]).code, 0);
    let status = outlive(&["pool", "status", text(&pool)]);
    assert!(status.out.contains("all 1 checkpoint have it"), "{status:?}");
    // Of both copies.
    targets.iter().for_each(|target| damage(target, &bytes[..64]));
    assert_eq!(outlive(&["scrub", text(&pool)]).code, 3);
    let status = outlive(&["pool", "status", text(&pool)]);
    assert!(status.out.contains("checkpoint 1 of tree: is incomplete"), "{status:?}");
    assert!(!status.out.contains("have it") && !status.out.contains("pool repair"), "{status:?}");
}

/// Returns eight bytes that look random.
fn mixed(at: u64) -> [u8; 8] {
    let mut value = at.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    value ^= value >> 29;
    value.wrapping_mul(0xBF58_476D_1CE4_E5B9).to_le_bytes()
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
