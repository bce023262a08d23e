//! `outlive copy` as people and programs use it.

use crate::common;

use common::{big, damage_array, files, json, outlive, pool_with_job};
use std::path::Path;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Creates a pool to copy to.
fn backup(dir: &Path) -> std::path::PathBuf {
    let path = dir.join("backup");
    assert_eq!(outlive(&["pool", "init", text(&path)]).code, 0);
    path
}

#[test]
fn a_pool_is_copied() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (pool_with_job(dir.path()), backup(dir.path()));
    let (before, empty) = (files(&from), files(&to));
    let note = outlive(&["note", text(&from), "gray scott", "2", "--label", "good", "--pin"]);
    assert_eq!(note.code, 0, "{note:?}");
    let plan = outlive(&["copy", text(&from), text(&to), "--dry-run"]);
    assert!(plan.code == 0 && plan.out.contains("copy 1 2 3"), "{plan:?}");
    assert_eq!(files(&to), empty, "a dry run writes nothing");

    let done = json(&["copy", text(&from), text(&to), "gray scott", "--epoch=1", "--json"]);
    assert_eq!(done["jobs"][0]["copied"][0]["epoch"], 1);
    let done = outlive(&["copy", text(&from), text(&to), "--rate", "100MiB"]);
    assert_eq!(done.code, 0, "{done:?}");
    for part in ["Job gray scott: 1 checkpoint there already, 2 copied", "copied 3:", "sent"] {
        assert!(done.out.replace("checkpoints copied", "copied").contains(part), "{}", done.out);
    }
    let there = files(&to);
    let again = outlive(&["copy", text(&from), text(&to)]);
    assert!(again.out.contains("3 checkpoints there already, 0"), "{}", again.out);
    assert_eq!(files(&to), there);
    assert_eq!(files(&from).len(), before.len() + 1, "but for the note nothing was written here");

    assert_eq!(outlive(&["verify", text(&to)]).code, 0);
    let show = |pool| json(&["show", text(pool), "gray scott", "2", "--json"]);
    assert_eq!(show(&from)["regions"], show(&to)["regions"]);
    assert_eq!(show(&from)["frozen_ns"], show(&to)["frozen_ns"]);
    let out = dir.path().join("out");
    let export = outlive(&["export", text(&to), "gray scott", "--to", text(&out)]);
    assert_eq!(export.code, 0, "{export:?}");
    let arrays = files(&out);
    assert!(arrays.iter().any(|(_, bytes)| bytes.ends_with(&big(3))));

    // A copy to the same pool, under another name.
    let fork = ["copy", text(&from), text(&from), "gray scott", "--as", "fork/of it"];
    assert_eq!(outlive(&fork).code, 0);
    assert_eq!(json(&["ls", text(&from), "fork/of it", "--json"])["checkpoints"][2]["epoch"], 3);
}

#[test]
fn a_copy_refuses_wrong_arguments_and_skips_damaged_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (pool_with_job(dir.path()), backup(dir.path()));
    for (words, code) in [
        (vec!["nobody"], 2),
        (vec!["gray scott", "--epoch", "9"], 2),
        (vec!["--as", "x"], 2),
        (vec!["gray scott", "--as", ".gc"], 2),
    ] {
        let mut all = vec!["copy", text(&from), text(&to)];
        all.extend(&words);
        let run = outlive(&all);
        assert_eq!(run.code, code, "{words:?}: {run:?}");
    }
    let none = outlive(&["copy", text(&to), text(&from)]);
    assert!(none.code == 0 && none.out.contains("no job"), "{none:?}");
    let missing = outlive(&["copy", text(&from), text(&dir.path().join("nowhere"))]);
    assert_eq!(missing.code, 2, "{missing:?}");

    damage_array(&from, 3);
    let run = outlive(&["copy", text(&from), text(&to)]);
    assert_eq!(run.code, 3, "{run:?}");
    assert!(
        run.out.contains("DAMAGED checkpoint 3") && run.out.contains("copied 2"),
        "{}",
        run.out
    );
    assert_eq!(outlive(&["verify", text(&to)]).code, 0);
}

#[test]
fn a_job_that_is_refused_keeps_no_other_from_being_copied() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (pool_with_job(dir.path()), backup(dir.path()));
    let (here, there) = (dir.path().join("here"), dir.path().join("there"));
    std::fs::write(&here, "here").unwrap();
    std::fs::write(&there, "there").unwrap();
    for job in ["a", "b", "z"] {
        assert_eq!(outlive(&["put", text(&from), job, text(&here)]).code, 0);
    }
    // The second pool has a job of that name with another history.
    assert_eq!(outlive(&["put", text(&to), "b", text(&there)]).code, 0);
    let plan = outlive(&["copy", text(&from), text(&to), "--dry-run"]);
    let refused = "Job b: NOT COPIED: job b cannot be copied to the job b there";
    assert!(plan.code == 2 && plan.out.contains(refused), "{plan:?}");
    let done = outlive(&["copy", text(&from), text(&to)]);
    assert!(done.code == 2 && done.out.contains(refused), "{done:?}");
    for (job, epochs) in [("a", 1), ("b", 1), ("gray scott", 3), ("z", 1)] {
        let listed = json(&["ls", text(&to), job, "--json"]);
        assert_eq!(listed["checkpoints"].as_array().unwrap().len(), epochs, "{job}");
    }
    let again = outlive(&["copy", text(&from), text(&to), "--json"]);
    let again: serde_json::Value = serde_json::from_str(&again.out).unwrap();
    let jobs = again["jobs"].as_array().unwrap().iter();
    let kinds: Vec<_> = jobs.map(|job| job["refused"]["kind"].as_str()).collect();
    assert_eq!(kinds, [None, Some("Invalid"), None, None]);
    // If it is the only requested job, the command fails.
    let only = outlive(&["copy", text(&from), text(&to), "b"]);
    assert!(only.code == 2 && only.err.contains("checkpoint 1 is another"), "{only:?}");
    let kept = outlive(&["copy", text(&from), text(&to), "b", "--as", "b of here"]);
    assert_eq!(kept.code, 0, "{kept:?}");
}

/// Each step may be killed and given again: nothing is lost meanwhile.
#[test]
fn a_job_gets_another_name_by_a_copy_and_a_prune() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    let pool = text(&pool);
    let copy = ["copy", pool, pool, "gray scott", "--as", "heat"];
    // As after a kill: only the first checkpoint is there.
    let first = [&copy[..], &["--epoch", "1"]].concat();
    assert_eq!(outlive(&first).code, 0);
    for _ in 0..2 {
        assert_eq!(outlive(&copy).code, 0);
    }
    for _ in 0..2 {
        assert_eq!(outlive(&["prune", pool, "gray scott", "--all"]).code, 0);
    }
    let epochs = |job: &str| {
        let listed = json(&["ls", pool, job, "--json"]);
        let epochs = listed["checkpoints"].as_array().unwrap().iter();
        epochs.map(|checkpoint| checkpoint["epoch"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!((epochs("heat"), epochs("gray scott")), (vec![1, 2, 3], vec![]));
    let verified = outlive(&["verify", pool]);
    assert_eq!(verified.code, 0, "{verified:?}");
    let to = dir.path().join("to");
    assert_eq!(outlive(&["export", pool, "heat@3", "--only", "u*", "--to", text(&to)]).code, 0);
    let array = files(&to).into_iter().find(|(path, _)| path.extension() == Some("npy".as_ref()));
    assert!(array.unwrap().1.ends_with(&big(3)));
}
