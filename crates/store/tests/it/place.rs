//! The pool, or a part of it, vanishes between its opening and a save: no save is acknowledged in a
//! place that is refused afterwards.

use crate::common;
use crate::stepped;
use outlive_log::RecordLog;

use common::{Program, noise};
use outlive_dir::{DirectoryMedium, DirectoryOptions, DirectoryTarget};
use outlive_pool::{Environment, Pool, create, open};
use outlive_types::ErrorKind;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stepped::{SteppedLog, Steps};

/// Creates a pool of 64 KiB containers in `dir/pool`.
fn made(dir: &Path) -> (PathBuf, Pool) {
    let path = dir.join("pool");
    let pool = create(&path, common::small_config(), Environment::system()).unwrap();
    (path, pool)
}

fn state(seed: u64) -> common::State {
    [("a".to_owned(), noise(seed, 20_000))].into()
}

#[test]
fn missing_parts_of_a_pool_are_noticed_before_a_session_is_opened() {
    for part in ["log", "log/.pool.toml", "pool.toml", ""] {
        for after_saves in [0, 2] {
            let dir = tempfile::tempdir().unwrap();
            let (path, pool) = made(dir.path());
            let program = Program::start(&pool, "job");
            for seed in 1..=after_saves {
                program.save(&state(seed)).unwrap();
            }
            // The next save opens a session.
            program.job.close().unwrap();
            let (gone, away) = (path.join(part), dir.path().join("away"));
            fs::rename(&gone, &away).unwrap();
            for _ in 0..2 {
                let error = program.save(&state(9)).unwrap_err();
                let kind =
                    if part.starts_with("log") { ErrorKind::Retry } else { ErrorKind::Invalid };
                assert_eq!(error.kind(), kind, "{part}: {error}");
                assert!(error.message().contains("nothing is saved"), "{error}");
                assert!(!gone.exists(), "{part}: nothing was made in its place");
            }
            fs::rename(&away, &gone).unwrap();
            assert_eq!(program.save(&state(9)).unwrap().epoch, after_saves + 1, "it is back");
            program.job.close().unwrap();
            let again = Program::start(&open(&path, Environment::system()).unwrap(), "job");
            assert_eq!(again.job.epochs().unwrap().len() as u64, after_saves + 1);
        }
    }
}

#[test]
fn a_log_that_vanishes_while_a_session_is_opened_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let (path, pool) = made(dir.path());
    let target = DirectoryTarget::open(&path, &DirectoryOptions::default()).unwrap();
    // It is moved away at the very moment at which a record is appended.
    let (steps, vanishes) = (Steps::default(), AtomicBool::new(true));
    let (from, to) = (path.join("log"), dir.path().join("away"));
    steps.hook(move |_, what| {
        if what == "append" && vanishes.swap(false, Ordering::Relaxed) {
            fs::rename(&from, &to).unwrap();
        }
    });
    let log = SteppedLog(Arc::new(RecordLog::over(DirectoryMedium::open(&path))), steps);
    let config = pool.config().clone();
    let pool = Pool::new(config, Arc::new(target), Arc::new(log), Environment::system());
    let program = Program::start(&pool.in_directory(&path), "job");
    for _ in 0..2 {
        let error = program.save(&state(1)).unwrap_err();
        assert!(error.kind() == ErrorKind::Retry, "{error}");
    }
    fs::remove_dir_all(path.join("log")).unwrap();
    fs::rename(dir.path().join("away"), path.join("log")).unwrap();
    assert_eq!(program.save(&state(1)).unwrap().epoch, 1);
}

#[test]
fn a_pool_that_vanishes_between_two_saves_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let (path, pool) = made(dir.path());
    let program = Program::start(&pool, "job");
    program.save(&state(1)).unwrap();
    let (descriptor, away) = (path.join("pool.toml"), dir.path().join("away"));
    fs::rename(&descriptor, &away).unwrap();
    let error = program.save(&state(2)).unwrap_err();
    assert!(error.to_string().contains("pool.toml"), "{error}");
    fs::rename(&away, &descriptor).unwrap();
    assert_eq!(program.save(&state(3)).unwrap().epoch, 2);
}
