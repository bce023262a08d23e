//! `outlive export --format json`.

use crate::common;

use common::{damage_array, files, json, outlive, pool_with_job};
use serde_json::{Value, json as value};
use std::fs;
use std::path::Path;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The values of checkpoint 3.
fn values() -> Value {
    value!({
        "../../escape": "78", "columns": [[1, 3], [2, 4]], "empty": [], "none": null,
        "note": "half\nway", "params/k": 0.25, "rate": 0.001, "step": -3,
    })
}

#[test]
fn values_become_one_object() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    let (pool, to) = (text(&pool), dir.path().join("values.json"));
    let export = |to: &str, more: &[&str]| {
        let words = ["export", pool, "gray scott", "--format", "json", "--to", to];
        outlive(&[&words[..], more].concat())
    };
    let run = export("-", &[]);
    assert_eq!(run.code, 0, "{run:?}");
    assert_eq!(serde_json::from_str::<Value>(&run.out).unwrap(), values());
    assert!(run.err.contains("warning: no value in JSON for 2 regions: "), "{run:?}");
    assert!(run.err.contains("zeros") && !run.err.contains('\u{1b}'), "{run:?}");
    assert_eq!(export("-", &["--json"]).out, run.out, "the content, and nothing else");
    let told = export(text(&to), &["--json"]);
    let told: Value = serde_json::from_str(&told.out).unwrap();
    assert_eq!((&told["epoch"], told["left_out"].as_array().unwrap().len()), (&value!(3), 2));
    assert_eq!(fs::read_to_string(&to).unwrap(), run.out);
    // The same again replaces nothing without --force.
    let again = export(text(&to), &["--only", "step"]);
    assert!(again.code == 2 && again.err.contains("is there already"), "{again:?}");
    assert_eq!(fs::read_to_string(&to).unwrap(), run.out);
    for _ in 0..2 {
        assert_eq!(export(text(&to), &["1", "--only", "step", "p*", "--force"]).code, 0);
        let read: Value = serde_json::from_slice(&fs::read(&to).unwrap()).unwrap();
        assert_eq!(read, value!({ "params/k": 0.25, "step": -1 }));
    }
    assert_eq!(outlive(&["tag", pool, "gray scott@2", "--add", "good"]).code, 0);
    let tagged = export("-", &["--tag", "good", "--only", "step"]);
    assert_eq!(serde_json::from_str::<Value>(&tagged.out).unwrap(), value!({ "step": -2 }));
    let two = export("-", &["1", "--tag", "good"]);
    assert_eq!(two.code, 2, "{two:?}");
    let none = export("-", &["--tag", "bad"]);
    assert!(none.code == 2 && none.err.contains("bad"), "{none:?}");
    let none = export("-", &["--only", "zeros"]);
    assert_eq!((none.code, none.out.as_str()), (0, "{}\n"));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "no temporary file is left");
}

#[test]
fn a_file_that_cannot_be_made_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    let export = |to: &Path, more: &[&str]| {
        let words = ["export", text(&pool), "gray scott", "--format", "json", "--to", text(to)];
        outlive(&[&words[..], more].concat())
    };
    let before = files(dir.path());
    for (to, more, said) in [
        (dir.path().to_owned(), &["--force"][..], "is a directory"),
        (dir.path().join("new/"), &[], "names no file"),
        (dir.path().join("nowhere/x"), &[], "is no directory"),
        (pool.join("packs/x"), &[], "pool"),
        (dir.path().join("x"), &["--dry-run"], "--dry-run"),
        (dir.path().join("x"), &["--only", "nothing"], "no region"),
        (dir.path().join("x"), &["--format", "xml"], "cannot be used multiple times"),
        (dir.path().join("x"), &["--rank", "7"], "rank"),
    ] {
        let run = export(&to, more);
        assert!(run.code == 2 && run.err.contains(said), "{to:?} {more:?}: {run:?}");
        assert_eq!(files(dir.path()), before);
    }
    let words = ["export", text(&pool), "gray scott", "--to", "x", "--format", "xml"];
    let wrong = outlive(&words);
    assert!(wrong.code == 2 && wrong.err.contains("files, json"), "{wrong:?}");
}

/// Without an epoch the newest whole checkpoint is taken; an error leaves standard output alone.
#[test]
fn damage_is_no_value() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    damage_array(&pool, 3);
    let words = ["export", text(&pool), "gray scott", "--format", "json", "--to", "-"];
    let run = outlive(&words);
    let read: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!((run.code, read), (0, values()), "the large array is not read");
    for (path, bytes) in files(&pool.join("packs")) {
        fs::write(path, vec![7; bytes.len()]).unwrap();
    }
    let run = outlive(&[&words[..], &["--json"]].concat());
    assert!(run.code == 3 && run.out.is_empty() && run.err.contains("\"error\""), "{run:?}");
    assert_eq!(json(&["ls", text(&pool), "gray scott", "--json"])["checkpoints"][0]["epoch"], 1);
}
