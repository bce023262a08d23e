//! Errors that are not the pool's: command lines, files that the user names, access rights, and
//! standard output.

use crate::common;

use common::{command, json, outlive, pool_with_job};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn command_lines_that_cannot_be_read_are_told_as_json() {
    for words in [
        &["--json", "verify", "p", "--sample", "0"][..],
        &["--json", "lss"],
        &["scrub", "p", "--rate", "0", "--json"],
    ] {
        let run = outlive(words);
        let told: Value = serde_json::from_str(&run.out).unwrap();
        assert_eq!((run.code, &told["error"]["kind"]), (2, &"Invalid".into()), "{run:?}");
        let message = told["error"]["message"].as_str().unwrap();
        assert!(message.starts_with(|c: char| c != '\n') && message.len() > 20, "{message}");
    }
    // Standard output may take a file's content.
    let run = outlive(&["--json", "get", "p", "j", "--to", "-", "--memory", "lots"]);
    assert!(run.code == 2 && run.out.is_empty() && run.err.contains("\"error\""), "{run:?}");
    let run = outlive(&["lss"]);
    assert!(run.code == 2 && run.out.is_empty() && run.err.contains("lss"), "{run:?}");
}

#[test]
fn files_that_were_named_are_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    let (pool, nowhere) = (text(&pool), dir.path().join("nowhere/x.svg"));
    let file = dir.path().join("file");
    fs::write(&file, "mine").unwrap();
    let (nowhere, file) = (text(&nowhere), text(&file));
    assert_eq!(outlive(&["put", pool, "files", file]).code, 0);
    for words in [
        &["show", pool, "gray scott", "--plot", nowhere][..],
        &["put", pool, "j", file, "--exclude-from", nowhere],
        &["pool", "init", "/proc/nowhere"],
        &["get", pool, "files", "--to", "/proc/nowhere"],
        &["export", pool, "gray scott", "--to", "/proc/nowhere"],
    ] {
        let run = outlive(words);
        assert_eq!(run.code, 2, "{words:?}: {run:?}");
    }
    for words in
        [&["get", pool, "files", "--to", file][..], &["export", pool, "gray scott", "--to", file]]
    {
        let run = outlive(words);
        assert!(run.code == 2 && run.err.contains("is not a directory"), "{words:?}: {run:?}");
    }
    assert_eq!(fs::read(file).unwrap(), b"mine");
}

#[test]
fn unreadable_packs_are_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    // The superuser may read everything, except for a loop of links.
    let listed: Vec<_> = fs::read_dir(pool.join("packs")).unwrap().collect();
    for (number, entry) in listed.into_iter().enumerate() {
        let directory = entry.unwrap().path();
        fs::rename(&directory, pool.join(format!("aside-{number}"))).unwrap();
        symlink(&directory, &directory).unwrap();
    }
    for words in [&["verify", text(&pool), "--quick"][..], &["verify", text(&pool)]] {
        let run = outlive(words);
        assert!(run.code == 2 && !run.out.contains("DAMAGED"), "{run:?}");
    }
    let scrubbed = outlive(&["scrub", text(&pool)]);
    assert!(scrubbed.code == 2 && !scrubbed.out.contains("INCOMPLETE"), "{scrubbed:?}");
}

#[test]
fn rules_in_pool_toml_that_say_nothing_are_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    let descriptor = pool.join("pool.toml");
    let toml = fs::read_to_string(&descriptor).unwrap();
    fs::write(&descriptor, toml.replace("keep = \"\"", "keep = \"lots\"")).unwrap();
    for words in [&["ls", text(&pool)][..], &["verify", text(&pool)]] {
        let run = outlive(words);
        assert!(run.code == 2 && run.err.contains("tuning.keep"), "{run:?}");
    }
}

#[test]
fn a_standard_output_that_is_full_is_no_room() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    let file = dir.path().join("file");
    fs::write(&file, vec![7; 3 << 20]).unwrap();
    assert_eq!(outlive(&["put", text(&pool), "files", text(&file)]).code, 0);
    for words in [&["get", text(&pool), "files", "--to", "-"][..], &["ls", text(&pool)]] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let run = command(words).stdout(full).stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8(run.stderr).unwrap();
        assert!(run.status.code() == Some(4) && said.contains("free space"), "{words:?}: {said}");
    }
}

#[test]
fn a_small_sample_reads_one_pack() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    let scrubbed = json(&["scrub", text(&pool), "--sample", "0.001", "--json"]);
    assert_eq!(scrubbed["packs"], 1, "{scrubbed}");
    let verified = json(&["verify", text(&pool), "--sample", "0.001", "--json"]);
    assert_eq!(verified["shards"]["checked"], 1, "{verified}");
}

/// The metrics of a run are written also if it fails.
#[test]
fn the_metrics_of_a_run_are_written_to_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    let (pool, file) = (text(&pool), dir.path().join("outlive.prom"));
    for attempt in 0..2 {
        let run = outlive(&["--metrics", text(&file), "scrub", pool]);
        assert_eq!(run.code, 0, "{attempt}: {run:?}");
        let figures = fs::read_to_string(&file).unwrap();
        let read = figures.lines().find_map(|it| {
            it.strip_prefix("outlive_scrub_read_bytes_total{file=\"outlive.prom\"} ")
        });
        assert!(read.unwrap().parse::<u64>().unwrap() > 0, "{figures}");
    }
    fs::remove_file(&file).unwrap();
    let run = outlive(&["verify", pool, "nowhere", "--metrics", text(&file)]);
    assert!(run.code == 2 && file.exists(), "{run:?}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing else is left there");
    // Nothing else is replaced, and the command does not begin.
    fs::write(dir.path().join("mine"), "mine").unwrap();
    let descriptor = fs::read(dir.path().join("pool/pool.toml")).unwrap();
    for nowhere in [
        "nowhere/x.prom",
        "pool/packs/x.prom",
        "pool/pool.toml",
        "mine",
        "pool",
        "/dev/null",
        "x.prom/",
    ] {
        let nowhere = dir.path().join(nowhere);
        let run = outlive(&["ls", pool, "--metrics", text(&nowhere)]);
        assert!(run.code == 2 && run.out.is_empty(), "{run:?}");
    }
    assert_eq!(fs::read(dir.path().join("pool/pool.toml")).unwrap(), descriptor);
    assert_eq!(fs::read(dir.path().join("mine")).unwrap(), b"mine");
    // A user's line in a file of ours is not lost, and a name need not be text.
    let mixed = dir.path().join("mixed.prom");
    fs::write(&mixed, format!("{}mine 1\n", fs::read_to_string(&file).unwrap())).unwrap();
    assert_eq!(outlive(&["ls", pool, "--metrics", text(&mixed)]).code, 2);
    let odd = dir.path().join(OsStr::from_bytes(b"\xff.prom"));
    for _ in 0..2 {
        let run = command(&["ls", pool, "--metrics"]).arg(&odd).output().unwrap();
        assert!(run.status.success(), "{run:?}");
    }
    assert!(fs::read_to_string(&odd).unwrap().contains("{file=\"\u{fffd}.prom\"}"));
    // A put counts as a save, and gauges that were never set are left out.
    let run =
        outlive(&["put", pool, "files", text(&dir.path().join("mine")), "--metrics", text(&file)]);
    let figures = fs::read_to_string(&file).unwrap();
    assert!(
        run.code == 0 && figures.contains("outlive_saves_total{file=\"outlive.prom\"} 1\n"),
        "{run:?} {figures}"
    );
    assert!(!figures.contains("outlive_scrub_damaged_packs"), "{figures}");
}
