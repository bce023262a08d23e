//! `outlive find`, and the patterns of `outlive get`.

use crate::common;

use common::{damage_array, files, json, outlive, pool_with_job};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Makes a pool with memory in "gray scott", and two checkpoints of files in "files".
fn pool_with_files(dir: &Path) -> (PathBuf, PathBuf) {
    let (pool, tree) = (pool_with_job(dir), dir.join("tree"));
    for path in ["a.tex", "b.txt", "deep/er/a.tex", "deep/c[1].tex", "deep/x*y", "{a,b}"] {
        let path = tree.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "content").unwrap();
    }
    assert_eq!(outlive(&["put", text(&pool), "files", text(&tree)]).code, 0);
    fs::write(tree.join("a.tex"), "longer content").unwrap();
    fs::remove_file(tree.join("b.txt")).unwrap();
    assert_eq!(outlive(&["put", text(&pool), "files", text(&tree)]).code, 0);
    (pool, tree)
}

/// Returns job, epoch, name and length of all that is found.
fn found(words: &[&str]) -> Vec<(String, u64, String, u64)> {
    let of = |one: &Value| {
        let name = if one["path"].is_null() { &one["name"] } else { &one["path"] };
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let number = |value: &Value| value.as_u64().unwrap();
        (text(&one["job"]), number(&one["epoch"]), text(name), number(&one["bytes"]))
    };
    json(words)["found"].as_array().unwrap().iter().map(of).collect()
}

fn all(list: &[(&str, u64, &str, u64)]) -> Vec<(String, u64, String, u64)> {
    let of = |(job, epoch, name, bytes): &(&str, u64, &str, u64)| {
        ((*job).to_owned(), *epoch, (*name).to_owned(), *bytes)
    };
    list.iter().map(of).collect()
}

#[test]
fn files_and_regions_are_found_in_all_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let (pool, _) = pool_with_files(dir.path());
    let pool = text(&pool);
    let find = |pattern: &str| found(&["find", pool, pattern, "--json"]);
    assert_eq!(
        find("a.tex"),
        all(&[
            ("files", 1, "a.tex", 7),
            ("files", 1, "deep/er/a.tex", 7),
            ("files", 2, "a.tex", 14),
            ("files", 2, "deep/er/a.tex", 7),
        ])
    );
    assert_eq!(find("/a.tex"), all(&[("files", 1, "a.tex", 7), ("files", 2, "a.tex", 14)]));
    assert_eq!(find("b.*"), all(&[("files", 1, "b.txt", 7)]));
    assert_eq!(find("deep/*/a.tex").len(), 2);
    let steps = [1, 2, 3].map(|epoch| ("gray scott", epoch, "step", 1));
    assert_eq!(find("step"), all(&steps));
    assert_eq!(find("params/?").len(), 3);
    assert_eq!(find("*/k"), find("params/k"), "a star of a region's name takes anything");
    assert_eq!(find("nothing at all"), []);
    // Of one job.
    let in_job = |pattern: &str| found(&["find", pool, pattern, "--job", "files", "--json"]);
    assert_eq!((in_job("step").len(), in_job("a.tex").len()), (0, 4));
    let run = outlive(&["find", pool, "a.tex"]);
    assert!(run.code == 0 && run.err.is_empty(), "{run:?}");
    assert!(run.out.contains("files@2") && run.out.contains("14 B"), "{run:?}");
    assert!(run.out.ends_with("4 matches in 2 checkpoints\n"), "{run:?}");
    let run = outlive(&["find", pool, "u*"]);
    assert!(run.out.contains("u\\u{1b}[2J") && !run.out.contains('\u{1b}'), "{run:?}");
    assert_eq!(outlive(&["find", pool, "x y"]).out, "nothing matches \"x y\"\n");
    for (words, said) in [
        (&["find", pool, ""][..], "empty"),
        (&["find", pool, "/"], "empty"),
        (&["find", pool, "a["], "a["),
        (&["find", pool, "a", "--job", "nowhere"], "no job"),
        (&["find", pool], "PATTERN"),
    ] {
        let run = outlive(words);
        assert!(run.code == 2 && run.err.contains(said), "{words:?}: {run:?}");
    }
}

/// A checkpoint that cannot be read is named, and the others are searched.
#[test]
fn damage_hides_no_other_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let (pool, _) = pool_with_files(dir.path());
    // The data of an array is not read.
    damage_array(&pool, 2);
    assert_eq!(found(&["find", text(&pool), "step", "--json"]).len(), 3);
    for (path, bytes) in files(&pool.join("packs")) {
        // Listings and catalogs are in packs.
        fs::write(path, vec![7; bytes.len()]).unwrap();
    }
    let run = outlive(&["find", text(&pool), "*", "--json"]);
    assert_eq!(run.code, 3, "{run:?}");
    let told: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(told["damaged"].as_array().unwrap().len(), 5, "{told}");
    assert!(run.err.lines().filter(|line| line.starts_with("warning: ")).count() >= 5, "{run:?}");
}

#[test]
fn get_takes_patterns_and_paths_from_the_root() {
    let dir = tempfile::tempdir().unwrap();
    let (pool, _) = pool_with_files(dir.path());
    let mut number = 0;
    let mut got = |paths: &[&str]| {
        number += 1;
        let to = dir.path().join(format!("to {number}"));
        let run = outlive(&[&["get", text(&pool), "files", "--to", text(&to)], paths].concat());
        assert_eq!(run.code, 0, "{paths:?}: {run:?}");
        let name = |(path, _): (PathBuf, _)| text(path.strip_prefix(&to).unwrap()).to_owned();
        files(&to).into_iter().map(name).collect::<Vec<_>>()
    };
    assert_eq!(got(&["*.tex"]), ["a.tex"]);
    assert_eq!(got(&["**/*.tex"]), ["a.tex", "deep/c[1].tex", "deep/er/a.tex"]);
    assert_eq!(got(&["/deep/er"]), ["deep/er/a.tex"]);
    assert_eq!(got(&["/"]).len(), 5);
    assert_eq!(got(&["*"]).len(), 5);
    assert_eq!(got(&["d*", "/a.tex"]), ["a.tex", "deep/c[1].tex", "deep/er/a.tex", "deep/x*y"]);
    // A name that is there is no pattern.
    assert_eq!(got(&["deep/c[1].tex"]), ["deep/c[1].tex"]);
    assert_eq!(got(&["deep/x*y"]), ["deep/x*y"]);
    assert_eq!(got(&["deep/?[[]1].tex"]), ["deep/c[1].tex"]);
    assert_eq!(got(&["{a,b}"]), ["{a,b}"]);
    let run = outlive(&["get", text(&pool), "files", "/deep/er/*", "--to", "-"]);
    assert_eq!((run.code, run.out.as_str()), (0, "content"));
    let to = dir.path().join("refused");
    for (path, said) in [
        ("*.pdf", "nothing that matches \"*.pdf\""),
        ("/nowhere", "has no \"nowhere\""),
        ("deep/[", "cannot be used"),
        ("../*", "nothing that matches"),
        ("/../etc", "cannot be a path"),
    ] {
        let run = outlive(&["get", text(&pool), "files", path, "--to", text(&to)]);
        assert!(run.code == 2 && run.err.contains(said), "{path}: {run:?}");
        assert!(!to.exists());
    }
    let run = outlive(&["get", text(&pool), "files@1", "*.t*", "--to", "-"]);
    assert!(run.code == 2 && run.err.contains("2 are selected"), "{run:?}");
    // The same get again needs --overwrite, and then leaves all alone.
    let words = ["get", text(&pool), "files", "**/*.tex", "--to", text(&to), "--json"];
    assert_eq!(json(&words)["kept_files"], 0);
    assert_eq!(outlive(&words).code, 2);
    assert_eq!(json(&[&words[..], &["--overwrite"]].concat())["kept_files"], 3);
}
