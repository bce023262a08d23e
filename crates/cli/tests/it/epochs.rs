//! The same names of checkpoints in every command, and the equivalents of other programs' commands.

use crate::common;

use common::{json, outlive, pool_with_job};
use serde_json::{Value, json as value};
use std::fs;
use std::path::Path;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Creates a pool with memory in "gray scott" (1 to 3) and files in "files" (1 to 3).
fn pool_with_both(dir: &Path) -> String {
    let pool = pool_with_job(dir);
    let tree = dir.join("tree");
    fs::create_dir(&tree).unwrap();
    for epoch in 1..=3 {
        fs::write(tree.join("file"), format!("epoch {epoch}")).unwrap();
        assert_eq!(outlive(&["put", text(&pool), "files", text(&tree), "--reread"]).code, 0);
    }
    text(&pool).to_owned()
}

#[test]
fn every_command_takes_the_same_names() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_both(dir.path());
    let names = [("1", 1), ("3", 3), ("latest", 3), ("-1", 3), ("-2", 2), ("-3", 1)];
    for (name, epoch) in names {
        let of = |job: &str| format!("{job}@{name}");
        let (memory, files) = (of("gray scott"), of("files"));
        let to = dir.path().join(format!("to {name}"));
        for show in [
            &["show", &pool, &memory, "--json"][..],
            &["show", &pool, "gray scott", name, "--json"],
        ] {
            assert_eq!(json(show)["manifest"]["epoch"], epoch, "{show:?}");
        }
        assert_eq!(json(&["show", &pool, &files, "--json"])["manifest"]["epoch"], epoch);
        for (number, export) in [&[memory.as_str()][..], &["gray scott", name]].iter().enumerate() {
            let to = dir.path().join(format!("export {name} {number}"));
            let words = [&["export", &pool], *export, &["--to", text(&to), "--json"]].concat();
            assert_eq!(json(&words)["epoch"], epoch, "{words:?}");
        }
        for get in [&[files.as_str()][..], &["files", "--epoch", name]] {
            let words =
                [&["get", &pool], get, &["--to", text(&to), "--overwrite", "--json"]].concat();
            assert_eq!(json(&words)["epoch"], epoch, "{words:?}");
            assert_eq!(fs::read_to_string(to.join("file")).unwrap(), format!("epoch {epoch}"));
        }
        let run = outlive(&["get", &pool, &files, "file", "--to", "-"]);
        assert_eq!((run.code, run.out), (0, format!("epoch {epoch}")));
        for verify in [&[memory.as_str()][..], &["gray scott", "--epoch", name]] {
            let words = [&["verify", &pool], verify, &["--quick", "--json"]].concat();
            assert_eq!(json(&words)["jobs"][0]["checkpoints"], 1, "{words:?}");
        }
        for note in [&[memory.as_str()][..], &["gray scott", name]] {
            let words = [&["note", &pool], note, &["--pin", "--json"]].concat();
            assert_eq!(json(&words)["epoch"], epoch, "{words:?}");
        }
        for du in [&[memory.as_str()][..], &["gray scott", name]] {
            let words = [&["du", &pool], du, &["--json"]].concat();
            assert_eq!(json(&words)["rows"][0]["epochs"], value!([epoch]), "{words:?}");
        }
        let run = outlive(&["diff", &pool, &memory, &format!("gray scott@{epoch}")]);
        assert_eq!(run.code, 0, "{run:?}");
        for (number, copy) in
            [&[memory.as_str()][..], &["gray scott", "--epoch", name]].iter().enumerate()
        {
            let other = dir.path().join(format!("pool {name} {number}"));
            assert_eq!(outlive(&["pool", "init", text(&other)]).code, 0);
            let words = [&["copy", &pool, text(&other)], *copy, &["--json"]].concat();
            assert_eq!(json(&words)["jobs"][0]["copied"][0]["epoch"], epoch, "{words:?}");
        }
        let words = ["prune", &pool, "files", "--drop", name, "--dry-run", "--json"];
        assert_eq!(json(&words)["retention"]["dropped"], value!([epoch]), "{words:?}");
    }
    let several = json(&["du", &pool, "gray scott@-1", "1", "gray scott@2", "--json"]);
    assert_eq!(several["rows"].as_array().unwrap().len(), 3);
    let other = dir.path().join("other");
    assert_eq!(outlive(&["pool", "init", text(&other)]).code, 0);
    let two = ["copy", &pool, text(&other), "gray scott@1", "gray scott@latest", "--json"];
    assert_eq!(json(&two)["jobs"][0]["copied"].as_array().unwrap().len(), 2);
    // Negative epochs are resolved before any checkpoint is dropped.
    let pruned = json(&["prune", &pool, "files", "--drop", "-1", "--drop", "-2", "--json"]);
    assert_eq!(pruned["retention"]["dropped"], value!([2, 3]));
    assert_eq!(json(&["show", &pool, "files@latest", "--json"])["manifest"]["epoch"], 1);
}

#[test]
fn wrong_epochs_are_refused_with_advice() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_both(dir.path());
    for (words, told) in [
        (&["show", &pool, "files@9"][..], "no checkpoint 9"),
        (&["show", &pool, "files@-4"], "no checkpoint -4: it has 3, from -1 to -3"),
        (&["show", &pool, "files@x"], "\"x\" is not an epoch of job files: give its number"),
        (&["show", &pool, "files", "x"], "give its number"),
        (&["get", &pool, "files", "--epoch=-0", "--to", "x"], "give its number"),
        (&["show", &pool, "nothing@1"], "no job nothing"),
        (&["show", &pool, "files@2", "1"], "two epochs of job files are named, 2 and 1"),
        (&["note", &pool, "files", "--pin"], "write files@EPOCH"),
        (&["show", &pool, "gray scott@2", "--plot", "x.svg"], "write gray scott alone"),
        (&["prune", &pool, "files@2", "--keep-last", "1"], "here a job is meant: write files"),
        (&["ls", &pool, "files@2"], "here a job is meant: write files"),
        (&["put", &pool, "files@2", "/etc/hostname"], "here a job is meant: write the job alone"),
        (&["put", &pool, "new@latest", "/etc/hostname"], "write the job alone, as new"),
        (&["du", &pool, "files@2", "gray scott@1"], "give epochs of one job, as files@7"),
        (&["copy", &pool, &pool, "files@1", "gray scott"], "of one job at a time"),
        (&["copy", &pool, &pool, "files@1", "gray scott@1"], "of one job at a time"),
        (&["copy", &pool, &pool, "files", "gray scott", "--epoch", "1"], "exactly one job"),
    ] {
        let run = outlive(words);
        assert!(run.code == 2 && run.err.contains(told), "{words:?}: {run:?}");
    }
    assert_eq!(outlive(&["pool", "init", text(&dir.path().join("empty"))]).code, 0);
    let none = outlive(&["show", text(&dir.path().join("empty")), "job@latest"]);
    assert!(none.code == 2 && none.err.contains("no jobs yet"), "{none:?}");
    let help = outlive(&["--help"]).out;
    assert!(help.contains("JOB@latest") && help.contains("JOB@-2"), "{help}");
}

#[test]
fn jobs_may_have_an_at_in_their_names() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    let pool = text(&pool);
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    assert_eq!(outlive(&["put", pool, "me@host", text(&file)]).code, 0);
    for name in ["me@host", "me@host@1", "me@host@latest", "me@host@-1"] {
        assert_eq!(json(&["show", pool, name, "--json"])["job"], "me@host", "{name}");
    }
    // A program may have created a job with the name of another's checkpoint.
    let open = outlive_pool::open(Path::new(pool), outlive_pool::Environment::system()).unwrap();
    let job = outlive_store::Job::open(&open, "gray scott@2", Default::default()).unwrap();
    let source = outlive_files::PutSource::Stream { name: b"x".to_vec(), from: &mut &b"y"[..] };
    outlive_files::PutFiles::put(&job, source, &Default::default()).unwrap();
    job.close().unwrap();
    drop(job);
    for (name, job, epoch) in [
        ("gray scott@2", "gray scott@2", 1),
        ("gray scott@2@-1", "gray scott@2", 1),
        ("gray scott@1", "gray scott", 1),
        ("gray scott@-2", "gray scott", 2),
    ] {
        let told = json(&["show", pool, name, "--json"]);
        assert_eq!(
            (&told["job"], &told["manifest"]["epoch"]),
            (&value!(job), &value!(epoch)),
            "{name}"
        );
    }
    assert_eq!(outlive(&["put", pool, "gray scott@2", text(&file)]).code, 0);
}

#[test]
fn the_newest_is_no_other_if_it_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_both(dir.path());
    let newest = outlive_pool::open(Path::new(&pool), outlive_pool::Environment::system()).unwrap();
    let job = outlive_types::JobName::new("files").unwrap();
    // The newest manifest is unreadable.
    let number = newest.log().numbers(&job).unwrap().into_iter().max().unwrap();
    drop(newest);
    let mut found = Vec::new();
    let mut dirs = vec![Path::new(&pool).join("log")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => dirs.push(path),
                false if text(&path).contains("/files/") => found.push(path),
                false => {}
            }
        }
    }
    found.sort();
    assert!(number > 0 && !found.is_empty());
    // Records after the last manifest (a close) are deleted, so that the manifest is the newest.
    let manifest = loop {
        let last = found.pop().unwrap();
        if fs::metadata(&last).unwrap().len() > 300 {
            break last;
        }
        fs::remove_file(last).unwrap();
    };
    let mut bytes = fs::read(&manifest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&manifest, bytes).unwrap();
    let to = dir.path().join("to");
    for name in ["files@latest", "files@-2"] {
        let run = outlive(&["get", &pool, name, "--to", text(&to)]);
        assert!(run.code == 3 && run.err.contains("name it by its number"), "{run:?}");
    }
    let run = outlive(&["get", &pool, "files", "--to", text(&to)]);
    assert!(run.code == 0 && run.err.contains("passed over"), "{run:?}");
    assert_eq!(fs::read_to_string(to.join("file")).unwrap(), "epoch 2");
}

#[test]
fn commands_of_other_programs_are_explained() {
    for (word, meant) in [
        ("init", "outlive has no `init`: use `outlive pool init DIR`\n"),
        ("snapshots", "`outlive ls POOL JOB`"),
        ("log", "`outlive ls POOL JOB`"),
        ("restore", "`outlive get POOL JOB --to DIR`"),
        ("check", "outlive has no `check`: use `outlive verify POOL`\n"),
        ("forget", "`outlive prune POOL JOB`"),
        ("backup", "`outlive put POOL JOB PATH…`"),
    ] {
        for words in [&[word][..], &[word, "/pool", "--keep-last", "3"], &[word, "--help"]] {
            let run = outlive(words);
            assert!(
                run.code == 2 && run.out.is_empty() && run.err.contains(meant),
                "{words:?}: {run:?}"
            );
            assert_eq!(run.err.lines().count(), 1, "{run:?}");
        }
        let run = outlive(&["--json", word, "pool"]);
        let told: Value = serde_json::from_str(&run.out).unwrap();
        assert_eq!((run.code, &told["error"]["kind"]), (2, &value!("Invalid")));
        assert!(told["error"]["message"].as_str().unwrap().contains(meant.trim_end()), "{told}");
    }
    // Only where a command is expected.
    let run = outlive(&["pool", "check"]);
    assert!(run.code == 2 && !run.err.contains("outlive has no"), "{run:?}");
}
