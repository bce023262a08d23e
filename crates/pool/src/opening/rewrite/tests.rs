//! Descriptors that a person has edited, and that other processes rewrite at the same moment.

use super::*;
use crate::descriptor::paths::MARKER;
use crate::descriptor::redundancy::TargetConfig;
use crate::{Environment, Pool, open, open_or_create};
use outlive_types::ErrorKind;
use std::cell::Cell;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

fn made(dir: &Path) -> Pool {
    open_or_create(&dir.join("pool"), Environment::system()).unwrap()
}

fn home_of(pool: &Pool) -> (&PoolPaths, &FormatConfig) {
    (pool.paths().unwrap(), &pool.config().format)
}

fn descriptor(dir: &Path) -> String {
    fs::read_to_string(dir.join("pool").join(DESCRIPTOR)).unwrap()
}

#[test]
fn comments_and_other_tables_stay() {
    let text = "# top\n[a]\nx = 1 # one\n\n[log]\n# of the log\nlocation = \"old\"\n\n# of b\n[b]\ny = 2\n\n\
                [[target]]\nid = 1\n# of the second\n[[target]]\nid = 2\n# the end\n";
    let log = with_tables(text, "[log]", "[log]\nlocation = \"new\"\n");
    assert_eq!(
        log,
        "# top\n[a]\nx = 1 # one\n\n[log]\nlocation = \"new\"\n\n# of b\n[b]\ny = 2\n\n\
         [[target]]\nid = 1\n# of the second\n[[target]]\nid = 2\n# the end\n"
    );
    let targets = with_tables(text, "[[target]]", "[[target]]\nid = 3\n");
    assert!(
        targets.ends_with("y = 2\n\n[[target]]\nid = 3\n\n# of the second\n# the end\n"),
        "{targets}"
    );
    assert!(targets.starts_with(&text[..text.find("[[").unwrap()]), "{targets}");
    // Without such a table: before the targets, or at the end.
    assert_eq!(
        with_tables("[a]\n[[target]]\nid = 1\n", "[log]", "[log]\n"),
        "[a]\n[log]\n\n[[target]]\nid = 1\n"
    );
    assert_eq!(with_tables("[a]\nx = 1", "[log]", "[log]\n"), "[a]\nx = 1\n\n[log]\n");
    assert_eq!(with_tables("[a]\n[[target]]\nid = 1\n", "[[target]]", ""), "[a]\n");
}

/// Each part is rewritten, and the other one stays as it is.
#[test]
fn parts_are_rewritten_one_by_one() {
    let dir = tempfile::tempdir().unwrap();
    let pool = made(dir.path());
    let before = format!("# mine\n{}", descriptor(dir.path()));
    fs::write(dir.path().join("pool").join(DESCRIPTOR), &before).unwrap();
    let (paths, format) = home_of(&pool);
    let rows = vec![TargetConfig::at("."), TargetConfig::at("../a")];
    let change = |there| Ok(PoolConfig { target: rows.clone(), ..there });
    assert_eq!(rewrite(paths, format, &change).unwrap().number, 1);
    let with_targets = descriptor(dir.path());
    assert!(with_targets.starts_with(before.trim_end()), "{with_targets}");
    let copy = || fs::read_to_string(dir.path().join("pool").join(COPY)).unwrap();
    assert_eq!(copy(), format!("{TITLE}{with_targets}"));
    let there = PoolConfig::parse(&with_targets, "x").unwrap();
    assert_eq!((there.target, there.log), (rows, None));
    pool.move_log(&[dir.path().join("log").display().to_string()]).unwrap();
    let with_log = descriptor(dir.path());
    assert!(with_log.starts_with(before.trim_end()), "{with_log}");
    assert!(with_log.ends_with(&with_targets[with_targets.find("[[").unwrap()..]), "{with_log}");
    assert_eq!(rewrite(paths, format, &Ok).unwrap().number, 2);
    assert_eq!(descriptor(dir.path()), with_log);
    assert_eq!(copy(), format!("{TITLE}{with_log}"));
}

/// A process reads the file, and the log is moved once or twice before it writes: the file that it
/// writes must not name the old replicas.
#[test]
fn a_late_writer_leaves_no_older_log() {
    for moves in 1..=2 {
        let dir = tempfile::tempdir().unwrap();
        let late = made(dir.path());
        let other = open(&dir.path().join("pool"), Environment::system()).unwrap();
        let (paths, format) = home_of(&late);
        let looked = Cell::new(0);
        let rows = vec![TargetConfig::at("../a")];
        let change = |there| {
            looked.set(looked.get() + 1);
            if looked.get() == 1 {
                for number in 0..moves {
                    let place = dir.path().join(format!("log {number}"));
                    other.move_log(&[place.display().to_string()]).unwrap();
                }
            }
            Ok(PoolConfig { target: rows.clone(), ..there })
        };
        assert_eq!(rewrite(paths, format, &change).unwrap().number, moves + 1);
        let there = PoolConfig::parse(&descriptor(dir.path()), "x").unwrap();
        assert_eq!((there.log.unwrap().number, there.target), (moves + 1, rows));
        // One write finds that out, and another one corrects it.
        assert_eq!(looked.get(), 3);
    }
}

/// The file names a newer configuration than this process knows, and the old replicas are gone.
#[test]
fn a_newer_log_needs_none_of_the_older_replicas() {
    let dir = tempfile::tempdir().unwrap();
    let late = made(dir.path());
    let text = format!("{}\n[log]\nnumber = 5\nlocation = \"/far\"\n", descriptor(dir.path()));
    fs::write(dir.path().join("pool").join(DESCRIPTOR), &text).unwrap();
    fs::remove_dir_all(dir.path().join("pool/log")).unwrap();
    let (paths, format) = home_of(&late);
    assert_eq!(rewrite(paths, format, &Ok).unwrap().number, 5);
    assert_eq!(descriptor(dir.path()), text);
}

#[test]
fn writers_that_never_agree_end() {
    let dir = tempfile::tempdir().unwrap();
    let pool = made(dir.path());
    let (paths, format) = home_of(&pool);
    let turn = Cell::new(0);
    let change = |there| {
        turn.set(turn.get() + 1);
        Ok(PoolConfig { target: vec![TargetConfig::at(format!("../{}", turn.get()))], ..there })
    };
    let error = rewrite(paths, format, &change).unwrap_err();
    assert!(error.kind() == ErrorKind::Retry && turn.get() == ATTEMPTS, "{error}");
}

/// Root may move the log of another user's pool, with its own umask.
#[test]
fn rewritten_files_have_the_permissions_of_their_directory() {
    let dir = tempfile::tempdir().unwrap();
    let pool = made(dir.path());
    let root = dir.path().join("pool");
    for mode in [0o750, 0o775] {
        for part in ["", "log"] {
            fs::set_permissions(root.join(part), Permissions::from_mode(mode)).unwrap();
        }
        pool.move_log(&[dir.path().join(format!("{mode}")).display().to_string()]).unwrap();
        for text in [DESCRIPTOR, COPY, MARKER] {
            let there = root.join(text).metadata().unwrap().permissions().mode() & 0o777;
            let first = text != MARKER || mode == 0o750; // it is sealed only once
            assert_eq!(there, if first { mode & 0o666 } else { 0o640 }, "{text}");
        }
    }
}
