//! The command as people and programs use it: text, JSON, exit codes, files.

use crate::common;

use common::{Run, command, damage_array, files, json, outlive, pool_with_job};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_pool_is_made_and_described() {
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("a pool");
    let made =
        outlive(&["pool", "init", text(&pool), "--container-bytes", "1MiB", "--pack-bytes=8m"]);
    assert_eq!(made.code, 0, "{made:?}");
    let status = outlive(&["pool", "status", text(&pool)]);
    assert_eq!(status.code, 0, "{status:?}");
    for part in ["0 jobs, 0 B in 0 packs", "1048576 (1.0 MiB)", "unit of I/O", "directory "] {
        assert!(status.out.contains(part), "{part}: {}", status.out);
    }
    let status = json(&["pool", "status", text(&pool), "--json"]);
    assert_eq!(status["config"]["format"]["pack_bytes"], 8 << 20);
    assert_eq!(status["jobs"], 0);
    assert!(status["targets"][0]["free_bytes"].as_u64() > Some(0));

    let again = outlive(&["pool", "init", text(&pool)]);
    assert_eq!(again.code, 2);
    assert!(again.err.contains("is a pool already"), "{}", again.err);
    let wrong =
        outlive(&["pool", "init", text(&dir.path().join("x")), "--container-bytes", "5000"]);
    assert_eq!(wrong.code, 2);
    assert!(wrong.err.contains("container_bytes"), "{}", wrong.err);
    assert_eq!(outlive(&["ls", text(&pool)]).out.lines().count(), 1);
}

#[test]
fn a_pool_keeps_its_packs_where_its_target_is() {
    let dir = tempfile::tempdir().unwrap();
    let (pool, big) = (dir.path().join("pool"), dir.path().join("big"));
    let made = outlive(&["pool", "init", text(&pool), "--target", "file:../big"]);
    assert_eq!(made.code, 0, "{made:?}");
    assert!(made.out.contains("It keeps its packs in directory "), "{}", made.out);
    let status = json(&["pool", "status", text(&pool), "--json"]);
    assert_eq!(status["config"]["target"][0]["location"], "file:../big");
    let told = status["targets"][0]["target"].as_str().unwrap();
    assert!(told.starts_with("directory ") && told.ends_with("big"), "{told}");

    // A put of a directory that contains the pool omits the pool's two locations.
    fs::write(dir.path().join("mine"), "bytes").unwrap();
    fs::write(big.join("also mine"), "bytes").unwrap();
    for _ in 0..2 {
        let put = outlive(&["put", text(&pool), "job", text(dir.path())]);
        assert_eq!(put.code, 0, "{put:?}");
    }
    assert_eq!(outlive(&["verify", text(&pool)]).code, 0);
    assert_eq!(outlive(&["scrub", text(&pool)]).code, 0);
    assert_eq!(outlive(&["gc", text(&pool)]).code, 0);
    let to = tempfile::tempdir().unwrap();
    let got = outlive(&["get", text(&pool), "job", "--to", text(to.path())]);
    assert_eq!(got.code, 0, "{got:?}");
    let there: Vec<String> = files(to.path())
        .into_iter()
        .map(|(path, _)| path.file_name().unwrap().to_string_lossy().into_owned())
        .collect();
    assert!(there.len() == 2 && there.contains(&"also mine".to_owned()), "{there:?}");
    assert!(!pool.join("packs").read_dir().is_ok_and(|mut packs| packs.next().is_some()));

    fs::rename(&big, dir.path().join("unmounted")).unwrap();
    for command in [&["ls"][..], &["gc"], &["scrub"], &["verify"]] {
        let run = outlive(&[command, &[text(&pool)]].concat());
        assert_ne!(run.code, 0);
        assert!(run.err.contains("mount that"), "{}", run.err);
    }
    assert!(!big.exists(), "nothing is made in its place");

    for (location, told) in [("http://x", "no scheme \"http\""), ("file:", "no directory")] {
        let new = dir.path().join("new");
        let run = outlive(&["pool", "init", text(&new), "--target", location]);
        assert_eq!(run.code, 2, "{run:?}");
        assert!(run.err.contains(told) && !new.exists(), "{}", run.err);
    }
}

#[test]
fn jobs_checkpoints_and_regions_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    let before = files(&pool);

    let jobs = outlive(&["ls", text(&pool)]);
    assert!(jobs.out.lines().nth(1).unwrap().starts_with("gray scott"), "{}", jobs.out);
    let jobs = json(&["--json", "ls", text(&pool)]);
    assert_eq!(jobs["jobs"][0]["checkpoints"], 3);
    assert_eq!(jobs["jobs"][0]["newest_epoch"], 3);

    let epochs = outlive(&["ls", text(&pool), "gray scott"]);
    assert_eq!(epochs.out.lines().count(), 4, "{}", epochs.out);
    let epochs = json(&["ls", text(&pool), "gray scott", "--json"]);
    assert_eq!(epochs["checkpoints"][0]["parent"], Value::Null);
    assert_eq!(epochs["checkpoints"][2]["parent"], 2);
    assert_eq!(epochs["checkpoints"][2]["regions"], 10);
    // The listed stored bytes equal those of the files, except for descriptor and session records.
    let holds = |(path, _): &&(PathBuf, _)| !path.ends_with(".reserve");
    let stored: u64 = before.iter().filter(holds).map(|(_, bytes)| bytes.len() as u64).sum();
    let listed = epochs["stored_bytes"].as_u64().unwrap();
    assert!(listed <= stored && stored - listed < 4096, "{listed} of {stored}");

    let show = outlive(&["show", text(&pool), "gray scott"]);
    for part in [
        "Checkpoint 3 of job gray scott",
        "checkpoint 2",
        "u\\u{1b}[2J",
        "(300, 100)",
        "-3",
        "0.25",
        "\"half\\nway\"",
    ] {
        assert!(show.out.contains(part), "{part}: {}", show.out);
    }
    assert!(!show.out.contains('\u{1b}'), "a name reached the terminal");
    let few = outlive(&["show", text(&pool), "gray scott", "2", "--regions", "1"]);
    assert!(few.out.contains("Checkpoint 2") && few.out.contains("9 more regions"), "{}", few.out);
    let show = json(&["show", text(&pool), "gray scott", "1", "--json"]);
    let step = show["regions"].as_array().unwrap().iter().find(|r| r["name"] == "step").unwrap();
    assert_eq!(
        *step,
        json!({"name": "step", "dtype": "py:int", "shape": [], "bytes": 1, "value": -1})
    );
    assert_eq!(show["attachment"], json!({"outlive.python": 1, "fortran": [9]}));

    let whole = outlive(&["verify", text(&pool)]);
    assert_eq!(whole.code, 0, "{whole:?}");
    assert!(whole.out.contains("3 of 3 checkpoints whole"), "{}", whole.out);
    let quick = json(&["verify", text(&pool), "gray scott", "--epoch=2", "--quick", "--json"]);
    assert_eq!((&quick["whole"], &quick["shards"]), (&json!(true), &Value::Null));
    assert_eq!(quick["jobs"][0]["checkpoints"], 1);

    assert_eq!(files(&pool), before, "looking at a pool changes nothing in it");
}

#[test]
fn regions_are_exported() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    let to = dir.path().join("out");
    let export = |more: &[&str]| {
        let mut words = vec!["export", text(&pool), "gray scott", "--to", text(&to)];
        words.extend_from_slice(more);
        outlive(&words)
    };
    let dry = export(&["--dry-run"]);
    assert_eq!(dry.code, 0, "{dry:?}");
    assert!(dry.out.contains("restore ") && dry.out.contains("params%2Fk.npy"), "{}", dry.out);
    assert!(!to.exists(), "a dry run writes nothing");

    let done = export(&[]);
    assert_eq!(done.code, 0, "{done:?}");
    let index: Value = serde_json::from_slice(&fs::read(to.join("regions.json")).unwrap()).unwrap();
    assert_eq!(index["epoch"], 3);
    let regions = index["regions"].as_array().unwrap();
    assert_eq!(regions.len(), 10);
    let file_of = |name: &str| {
        let region = regions.iter().find(|region| region["name"] == name).unwrap();
        fs::read(to.join(region["file"].as_str().unwrap())).unwrap()
    };
    let big = file_of("u\u{1b}[2J");
    let mut header = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    header.extend_from_slice(b"{'descr': '<f8', 'fortran_order': False, 'shape': (300, 100), }");
    header.resize(127, b' ');
    header.push(b'\n');
    assert_eq!(big[..128], header);
    assert!(big[128..] == common::big(3));
    assert_eq!(file_of("zeros").len(), 128 + 100_000);
    assert!(file_of("zeros")[128..].iter().all(|byte| *byte == 0));
    assert_eq!(&file_of("params/k")[128..], 0.25f64.to_le_bytes());
    assert_eq!(file_of("note"), b"half\nway");
    assert_eq!(file_of("step"), [253]);
    assert_eq!(file_of("../../escape"), b"x");
    assert_eq!(file_of("empty").len(), 128);
    let columns = String::from_utf8_lossy(&file_of("columns")).into_owned();
    assert!(columns.contains("'fortran_order': True, 'shape': (2, 2)"), "{columns}");
    let listed = fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(listed, 2, "nothing but the pool and the export");
    let left = fs::read_dir(&to)
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with('.'));
    assert_eq!(left.count(), 0, "no temporary files are left");

    let again = export(&[]);
    assert_eq!(again.code, 2);
    assert!(again.err.contains("--force"), "{}", again.err);
    assert_eq!(export(&["1", "--force"]).code, 0);
    assert_eq!(file_of("step"), [255]);

    let some = dir.path().join("some");
    let words = ["export", text(&pool), "gray scott", "2", "--to", text(&some), "--json", "--only"];
    let part = json(&[&words[..], &["params/*", "st?p"]].concat());
    assert_eq!(part["regions"].as_array().unwrap().len(), 2);
    assert_eq!(part["regions"][0]["value"], json!(0.25));
    assert_eq!(fs::read_dir(&some).unwrap().count(), 3);
    let none = outlive(&[&words[..6], &["--only", "nothing*"]].concat());
    assert_eq!(none.code, 2);
    assert!(none.err.contains("nothing*"), "{}", none.err);
}

#[test]
fn damage_is_named_and_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    damage_array(&pool, 3);

    let verify = outlive(&["verify", text(&pool)]);
    assert_eq!(verify.code, 3, "{verify:?}");
    for part in [
        "DAMAGED checkpoint 3: region \"u\\u{1b}[2J\": ",
        "2 of 3 checkpoints whole",
        "packs: 2 of 3",
        "takes checkpoint 2",
    ] {
        assert!(verify.out.contains(part), "{part}: {}", verify.out);
    }
    let Run { code, out, .. } = outlive(&["verify", text(&pool), "--json"]);
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &report["whole"]), (3, &json!(false)));
    assert_eq!(report["jobs"][0]["damaged_epochs"], json!([3]));
    assert_eq!(report["jobs"][0]["newest_whole_epoch"], 2);
    assert_eq!(report["shards"]["findings"].as_array().unwrap().len(), 1);
    assert_eq!(outlive(&["verify", text(&pool), "gray scott", "--epoch", "1"]).code, 3);
    assert_eq!(outlive(&["verify", text(&pool), "gray scott", "--epoch=1", "--quick"]).code, 0);

    let to = dir.path().join("out");
    let asked = outlive(&["export", text(&pool), "gray scott", "3", "--to", text(&to)]);
    assert_eq!(asked.code, 3, "{asked:?}");
    assert!(!to.exists(), "nothing is left of a failed export");
    let export = ["export", text(&pool), "gray scott", "--to", text(&to)];
    let newest = outlive(&export);
    assert_eq!(newest.code, 0, "{newest:?}");
    assert!(newest.out.contains("checkpoint 2"), "{}", newest.out);
    assert!(newest.err.contains("warning: passed over a damaged checkpoint"), "{}", newest.err);
    assert_eq!(fs::read(to.join("step.bin")).unwrap(), [254]);

    // A log record is in no pack.
    let log = pool.join("log/gray%20scott");
    let mut records: Vec<_> = fs::read_dir(&log).unwrap().map(|e| e.unwrap().path()).collect();
    records.sort();
    let first_manifest = &records[1];
    let mut bytes = fs::read(first_manifest).unwrap();
    bytes[100] ^= 1;
    fs::write(first_manifest, bytes).unwrap();
    let listed = outlive(&["ls", text(&pool)]);
    assert!(listed.code == 0 && listed.out.contains("1 log record"), "{listed:?}");
    let verify = outlive(&["verify", text(&pool), "--quick"]);
    assert!(verify.code == 3 && verify.out.contains("DAMAGED log: log record 2"), "{verify:?}");
}

#[test]
fn requests_that_cannot_work_are_explained() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    let empty = dir.path().join("empty");
    assert_eq!(outlive(&["pool", "init", text(&empty)]).code, 0);
    for (words, part) in [
        (&["ls", text(dir.path())][..], "is not a pool"),
        (&["ls", text(&empty), "nosuch"], "the pool has no job nosuch; it has no jobs yet"),
        (&["ls", "/nonexistent/pool"], "is not a pool"),
        (&["ls", text(&pool), "nosuch"], "its jobs: gray scott"),
        (&["show", text(&pool), "gray scott", "9"], "no checkpoint 9; its newest is 3"),
        (&["verify", text(&pool), "gray scott", "--epoch", "9"], "no checkpoint 9"),
        (&["verify", text(&pool), "--epoch", "9"], "JOB"),
        (&["frobnicate"], "frobnicate"),
        (&[], "Usage"),
    ] {
        let failed = outlive(words);
        assert_eq!(failed.code, 2, "{words:?}: {failed:?}");
        assert!(failed.err.contains(part), "{words:?}: {}", failed.err);
        assert_eq!(failed.out, "", "{words:?}");
    }
    let failed = outlive(&["ls", text(dir.path()), "--json"]);
    let error: Value = serde_json::from_str(&failed.out).unwrap();
    assert_eq!((failed.code, &error["error"]["kind"]), (2, &json!("Invalid")));

    let help = outlive(&["--help"]);
    assert!(help.code == 0 && help.out.contains("3  something stored is damaged"), "{help:?}");
    assert_eq!(outlive(&["--version"]).code, 0);
}

#[test]
fn a_reader_that_has_enough_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    let mut show = command(&["show", text(&pool), "gray scott"]);
    let mut show = show.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(show.stdout.take());
    let ended = show.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), &ended.stderr[..]), (Some(0), &b""[..]));
}

#[test]
fn a_sample_finds_damage_in_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    let whole = outlive(&["verify", text(&pool), "--sample", "30%"]);
    assert!(whole.code == 0 && whole.out.contains("sample of 30 % is whole"), "{whole:?}");
    damage_array(&pool, 3);
    // Each run checks other parts: some runs soon find damage, and none reads everything.
    let codes: Vec<i32> = (0..60)
        .map(|_| outlive(&["verify", text(&pool), "--sample", "20", "--quick"]).code)
        .collect();
    assert!(codes.contains(&0) && codes.contains(&3), "{codes:?}");
    let run = outlive(&["verify", text(&pool), "--sample", "0"]);
    assert_eq!(run.code, 2, "{run:?}");
}

#[test]
fn checkpoints_are_noted_pruned_and_collected() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    let before = files(&pool);
    let plan = outlive(&["prune", text(&pool), "gray scott", "--keep-last", "1", "--dry-run"]);
    assert_eq!(plan.code, 0, "{plan:?}");
    assert!(plan.out.contains("2 checkpoints go\n") && plan.out.contains("keep 3"), "{}", plan.out);
    assert!(plan.out.contains("  drop 1-2\n") && plan.out.contains("Nothing was changed"));
    let plan =
        json(&["prune", text(&pool), "gray scott", "--keep-last", "1", "--dry-run", "--json"]);
    assert_eq!(plan["retention"]["dropped"], json!([1, 2]));
    let plan = outlive(&["prune", text(&pool), "gray scott", "--keep-last", "2", "--dry-run"]);
    assert!(plan.out.contains("1 checkpoint goes\n"), "{}", plan.out);
    let dropped =
        ["prune", text(&pool), "gray scott", "--keep-last", "1", "--drop", "3", "--dry-run"];
    let plan = outlive(&dropped);
    assert!(plan.out.contains("  drop 1, 3\n") && plan.out.contains("keep 2"), "{}", plan.out);
    assert_eq!(before, files(&pool), "a dry run changes nothing");
    for (words, part) in [
        (vec!["prune", text(&pool), "gray scott"], "`--keep-last 10`"),
        (
            vec!["prune", text(&pool), "gray scott", "--drop=1", "--drop=2", "--drop=3"],
            "no checkpoint of the job would be left: to give it up, say so with `--all`",
        ),
        (vec!["prune", text(&pool), "gray scott", "--keep-within", "soon"], "36h"),
        (vec!["prune", text(&pool), "gray scott", "--keep-best", "loss"], "loss"),
        (vec!["prune", text(&pool), "gray scott", "--drop", "9"], "no checkpoint 9"),
        (vec!["prune", text(&pool), "nobody", "--all"], "nobody"),
        (vec!["prune", text(&pool), "gray scott", "--keep-last=9", "--throttle=0"], "option"),
        (vec!["gc", text(&pool), "--fence", "nobody"], "nobody"),
        (vec!["note", text(&pool), "gray scott", "9", "--pin"], "no checkpoint 9"),
        (vec!["note", text(&pool), "gray scott", "1"], "--label"),
        (vec!["show", text(&pool), "gray scott", "--plot", "saves.pdf"], "SVG or PNG"),
    ] {
        let run = outlive(&words);
        assert!(run.code == 2 && run.err.contains(part), "{words:?}: {run:?}");
    }
    let noted = outlive(&["note", text(&pool), "gray scott", "1", "--label", "first"]);
    assert!(noted.code == 0 && noted.out.contains("label \"first\""), "{noted:?}");
    // A label looks the same in all outputs.
    let odd = "a \"b\" \\ 'c'";
    let noted = outlive(&["note", text(&pool), "gray scott", "2", "--label", odd]);
    let listed = outlive(&["ls", text(&pool), "gray scott"]);
    let planned = outlive(&["prune", text(&pool), "gray scott", "--keep-last", "1", "--dry-run"]);
    for run in [noted, listed, planned] {
        assert!(run.out.contains(r#""a \"b\" \\ 'c'""#), "{run:?}");
    }
    assert_eq!(outlive(&["note", text(&pool), "gray scott", "2", "--label", ""]).code, 0);
    let pruned = json(&["prune", text(&pool), "gray scott", "--keep-last", "1", "--json"]);
    assert_eq!(pruned["retention"]["checkpoints"][1], json!({ "epoch": 2, "kept": null }));
    assert_eq!(pruned["retention"]["checkpoints"][2]["kept"], "labelled \"first\"");
    assert_eq!(pruned["held_packs"], 0);
    let left = json(&["ls", text(&pool), "gray scott", "--json"]);
    let epochs: Vec<_> =
        left["checkpoints"].as_array().unwrap().iter().map(|c| c["epoch"].clone()).collect();
    assert_eq!(epochs, [1, 3]);
    assert_eq!(outlive(&["verify", text(&pool)]).code, 0);
    let given_up = json(&["prune", text(&pool), "gray scott", "--all", "--json"]);
    assert!(given_up["deleted_packs"].as_u64() > Some(0), "{given_up}");
    let status = json(&["pool", "status", text(&pool), "--json"]);
    assert_eq!(status["targets"][0]["shards"], 0);
}

/// A restore uses no files, and a get no memory: the advice for each ignores the other's
/// checkpoints.
#[test]
fn of_memory_and_files_in_one_job_each_is_advised_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    let file = dir.path().join("file");
    fs::write(&file, "content").unwrap();
    assert_eq!(outlive(&["put", text(&pool), "gray scott", text(&file)]).code, 0);
    damage_array(&pool, 3);
    let run = outlive(&["verify", text(&pool)]);
    let advice = "a restore passes over the damage and takes checkpoint 2.";
    assert!(run.code == 3 && run.out.contains(advice), "{run:?}");
    let report: Value =
        serde_json::from_str(&outlive(&["verify", text(&pool), "--json"]).out).unwrap();
    let job = &report["jobs"][0];
    assert_eq!(
        (&job["newest_whole_memory_epoch"], &job["newest_whole_files_epoch"]),
        (&json!(2), &json!(4))
    );
    let out = dir.path().join("out");
    let run = outlive(&["export", text(&pool), "gray scott", "3", "--to", text(&out)]);
    assert!(run.code == 3 && run.err.contains("without known damage is 2"), "{run:?}");
}
