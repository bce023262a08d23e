//! Options of all commands, and the pool that OUTLIVE_POOL names.

use crate::common;

use common::{Run, command, files, json, outlive, pool_with_job};
use serde_json::Value;
use std::fs;
use std::path::Path;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs the command where the variable names a pool.
fn with_variable(pool: Option<&str>, words: &[&str]) -> Run {
    let mut command = command(words);
    match pool {
        Some(pool) => command.env("OUTLIVE_POOL", pool),
        None => command.env_remove("OUTLIVE_POOL"),
    };
    let done = command.output().unwrap();
    Run {
        code: done.status.code().unwrap(),
        out: String::from_utf8(done.stdout).unwrap(),
        err: String::from_utf8(done.stderr).unwrap(),
    }
}

#[test]
fn a_dash_stands_for_the_pool_of_the_variable() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    let pool = text(&pool);
    let file = dir.path().join("file");
    fs::write(&file, "content").unwrap();
    let listed = with_variable(Some(pool), &["ls", "-"]);
    assert_eq!((listed.code, &listed.out), (0, &outlive(&["ls", pool]).out), "{listed:?}");
    assert_eq!(listed.err, format!("pool {pool} (OUTLIVE_POOL)\n"));
    assert_eq!(with_variable(Some(pool), &["ls", "-", "-q"]).err, "");
    // Each command that writes names the pool on which it acts.
    for words in [
        &["put", "-", "files", text(&file)][..],
        &["note", "-", "gray scott@1", "--pin"],
        &["prune", "-", "gray scott", "--keep-last", "1"],
        &["gc", "-", "--json"],
    ] {
        let run = with_variable(Some(pool), words);
        assert!(run.code == 0 && run.err.starts_with(&format!("pool {pool} (")), "{run:?}");
    }
    let content = with_variable(Some(pool), &["get", "-", "files", "--to", "-"]);
    assert_eq!((content.code, content.out.as_str()), (0, "content"), "{content:?}");
    let other = dir.path().join("other");
    let made = with_variable(Some(text(&other)), &["pool", "init", "-"]);
    assert!(made.code == 0 && other.join("pool.toml").is_file(), "{made:?}");
    let copied = with_variable(Some(text(&other)), &["copy", pool, "-", "files"]);
    assert_eq!(copied.code, 0, "{copied:?}");
    assert_eq!(json(&["ls", text(&other), "files", "--json"])["checkpoints"][0]["epoch"], 1);
}

/// A word in another place never becomes a pool, and the variable changes no other command.
#[test]
fn the_variable_alone_chooses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    let pool = text(&pool);
    let before = files(dir.path());
    for words in [
        &["ls"][..],
        &["gc"],
        &["prune", "gray scott", "--keep-last", "1"],
        &["prune", "gray scott", "--all"],
    ] {
        let run = with_variable(Some(pool), words);
        assert_eq!(run.code, 2, "{words:?}: {run:?}");
    }
    assert_eq!(files(dir.path()), before);
    let named = with_variable(Some("/nowhere"), &["ls", pool]);
    assert!(named.code == 0 && named.err.is_empty(), "{named:?}");
    for value in [None, Some(""), Some("-")] {
        let run = with_variable(value, &["ls", "-"]);
        assert!(run.code == 2 && run.err.contains("name the pool"), "{run:?}");
        let run = with_variable(value, &["gc", "-", "--json"]);
        let told: Value = serde_json::from_str(&run.out).unwrap();
        assert_eq!((run.code, &told["error"]["kind"]), (2, &"Invalid".into()), "{run:?}");
    }
    let wrong = with_variable(Some("/nowhere"), &["ls", "-"]);
    assert!(wrong.code == 2 && wrong.err.starts_with("pool /nowhere (OUTLIVE_POOL)"), "{wrong:?}");
}

#[test]
fn run_takes_the_pool_of_the_variable() {
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("pool");
    let words = ["run", "--job", "j", "--no-helper", "--", "true"];
    let run = with_variable(None, &words);
    assert!(run.code == 2 && run.err.contains("no --pool is given"), "{run:?}");
    for _ in 0..2 {
        let run = with_variable(Some(text(&pool)), &words);
        assert!(run.code == 0 && run.err.starts_with("pool "), "{run:?}");
        assert!(pool.join("pool.toml").is_file());
    }
    let other = dir.path().join("other");
    let words = ["run", "--pool", text(&other), "--job", "j", "--no-helper", "--", "true"];
    let run = with_variable(Some(text(&pool)), &words);
    assert!(run.code == 0 && !run.err.contains("OUTLIVE_POOL"), "{run:?}");
    assert!(other.join("pool.toml").is_file());
}

#[test]
fn quiet_leaves_errors_and_results() {
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("pool");
    let run = |quiet: &[&str]| {
        let words =
            ["run", "--pool", text(&pool), "--job", "j", "--no-helper", "--give-up", "2", "--"];
        outlive(&[quiet, &words[..], &["false"]].concat())
    };
    let loud = run(&[]);
    assert!(loud.code == 77 && loud.err.lines().count() > 1, "{loud:?}");
    let quiet = run(&["-q"]);
    assert_eq!((quiet.code, quiet.err.lines().count()), (77, 1), "{quiet:?}");
    assert!(quiet.err.contains("gives up: "), "{quiet:?}");
    let refused = outlive(&["--quiet", "ls", "/nowhere"]);
    assert!(refused.code == 2 && refused.err.contains("/nowhere"), "{refused:?}");
    for words in [
        &["-q", "-v", "ls", text(&pool)][..],
        &["-q", "ls", text(&pool), "-v"],
        &["ls", "--verbose", text(&pool), "--quiet"],
    ] {
        let both = outlive(words);
        assert!(both.code == 2 && both.err.contains("cannot be used with"), "{words:?}: {both:?}");
    }
    // The words of a command that is run are its own.
    let words =
        ["run", "--pool", text(&pool), "--job", "k", "--no-helper", "--", "echo", "-q", "-v"];
    assert_eq!(outlive(&words).out.lines().next(), Some("-q -v"));
}

#[test]
fn verbose_says_more() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    let file = dir.path().join("notes.txt");
    fs::write(&file, "content").unwrap();
    let put = |more: &[&str]| outlive(&[&["put", text(&pool), "j", text(&file)], more].concat());
    assert!(put(&["--dry-run", "-v"]).out.contains("notes.txt"));
    assert!(!put(&["--dry-run"]).out.contains("notes.txt"));
    let run = put(&["-v"]);
    assert_eq!(run.code, 0, "{run:?}");
}
