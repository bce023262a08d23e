//! `outlive put` and `outlive get` as people and programs use them.

use crate::common;

use common::{command, files, json, outlive};
use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Output, Stdio};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Creates a small tree with different kinds of items, and an empty pool.
fn world(dir: &Path) -> (PathBuf, PathBuf) {
    let (tree, pool) = (dir.join("a tree"), dir.join("pool"));
    fs::create_dir_all(tree.join("model/old")).unwrap();
    fs::write(tree.join("model/weights.bin"), noise(1, 300_000)).unwrap();
    fs::write(tree.join("model/old/weights.bin"), noise(1, 200_000)).unwrap();
    fs::write(tree.join("notes.txt"), "short\n").unwrap();
    fs::write(tree.join("junk.tmp"), "left out").unwrap();
    fs::set_permissions(tree.join("notes.txt"), fs::Permissions::from_mode(0o640)).unwrap();
    symlink("model/weights.bin", tree.join("newest")).unwrap();
    assert_eq!(outlive(&["pool", "init", text(&pool)]).code, 0);
    (tree, pool)
}

fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    (0..length).map(|_| next()).collect()
}

/// Runs the command with `input`, and returns all its output.
fn piped(args: &[&str], input: &[u8]) -> Output {
    let mut child = command(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let bytes = input.to_vec();
    let feeder = std::thread::spawn(move || drop(stdin.write_all(&bytes)));
    let output = child.wait_with_output().unwrap();
    feeder.join().unwrap();
    output
}

#[test]
fn a_tree_is_put_listed_and_got() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, pool) = world(dir.path());
    let plan = outlive(&["put", text(&pool), "job", text(&tree), "--dry-run"]);
    assert!(plan.code == 0 && plan.out.contains("to be read: 4 files of 488.3 KiB"), "{plan:?}");
    assert!(!plan.out.contains("notes.txt") && plan.out.contains("--verbose"), "{plan:?}");
    let plan = outlive(&["put", text(&pool), "job", text(&tree), "--dry-run", "--verbose"]);
    assert!(plan.out.contains("6 B notes.txt\n"), "{plan:?}");
    assert_eq!(outlive(&["ls", text(&pool)]).out.lines().count(), 1, "a plan writes nothing");

    let put = ["put", text(&pool), "job", text(&tree), "--exclude", "*.tmp", "--label", "first"];
    let run = outlive(&put);
    assert!(
        run.code == 0 && run.out.contains("Checkpoint 1 of job job: 7 items, 3 files"),
        "{run:?}"
    );
    assert!(run.out.contains("1 path by patterns"), "{run:?}");
    let again = json(&[&put[..], &["--json"]].concat());
    assert_eq!(again["epoch"], 2);
    // A file that changed a moment ago may be read again; its content is stored already. Only the
    // listing is new, if the file is settled by now.
    assert!(again["raw_bytes"].as_u64().unwrap() < 10_000, "{again}");

    let show = outlive(&["show", text(&pool), "job", "1"]);
    for part in ["-rw-r-----", "newest -> model/weights.bin", "label        \"first\"", "7 items"] {
        assert!(show.out.contains(part), "{part}: {}", show.out);
    }
    let show = json(&["show", text(&pool), "job", "--json"]);
    assert_eq!(show["items"].as_array().unwrap().len(), 7);
    assert_eq!(show["items"][0]["kind"], "directory");

    let out = dir.path().join("out");
    let run = outlive(&["get", text(&pool), "job", "--to", text(&out)]);
    assert!(run.code == 0 && run.out.contains("3 files of"), "{run:?}");
    fs::remove_file(tree.join("junk.tmp")).unwrap();
    let same = std::process::Command::new("diff").arg("-r").args([&tree, &out]).status().unwrap();
    assert!(same.success());
    assert_eq!(fs::metadata(out.join("notes.txt")).unwrap().permissions().mode() & 0o777, 0o640);

    // A get replaces no file without --overwrite.
    let run = outlive(&["get", text(&pool), "job", "--to", text(&out)]);
    assert!(run.code == 2 && run.err.contains("--overwrite"), "{run:?}");
    fs::write(out.join("notes.txt"), "changed").unwrap();
    let run = outlive(&["get", text(&pool), "job", "notes.txt", "--to", text(&out), "--overwrite"]);
    assert!(run.code == 0 && fs::read(out.join("notes.txt")).unwrap() == b"short\n", "{run:?}");
    let part = dir.path().join("part");
    let run = outlive(&["get", text(&pool), "job", "model/old", "--epoch=1", "--to", text(&part)]);
    assert!(run.code == 0 && !part.join("notes.txt").exists(), "{run:?}");
    assert!(part.join("model/old/weights.bin").exists());
    let plan = outlive(&["get", text(&pool), "job", "--to", text(&part), "--dry-run"]);
    assert!(plan.out.contains("in the way: model/old/weights.bin"), "{plan:?}");
}

#[test]
fn streams_go_in_and_out() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, pool) = world(dir.path());
    // Blocks that repeat at short and long distances, so that little memory cannot keep them all.
    let blocks: Vec<Vec<u8>> = (0..48).map(|seed| noise(1000 + seed, 700_000)).collect();
    let order = (0..48usize).chain((0..48).rev()).chain((0..48).map(|at| at * 7 % 48));
    let mut stream: Vec<u8> = order.flat_map(|at| blocks[at].clone()).collect();
    stream.extend(vec![0; 3_000_000]);
    stream.extend(b"the end");
    let put = piped(&["put", text(&pool), "dump", "-", "--name", "db.sql", "--json"], &stream);
    assert!(put.status.success(), "{put:?}");
    let told: serde_json::Value = serde_json::from_slice(&put.stdout).unwrap();
    assert_eq!(told["state_bytes"], stream.len());
    assert!(told["raw_bytes"].as_u64().unwrap() < 48 * 800_000, "{told}");
    for memory in ["1", "16MiB", "1GiB"] {
        let got = piped(&["get", text(&pool), "dump", "--to", "-", "--memory", memory], b"");
        assert!(got.status.success() && got.stdout == stream, "{memory}: {:?}", got.stderr);
    }
    // If the reader stops early, the command reports that this was not all; JSON stays out of the
    // stream.
    let mut child = command(&["get", text(&pool), "dump", "db.sql", "--to", "-", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 100];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    assert_eq!(first, stream[..100]);
    assert_eq!(child.wait().unwrap().code(), Some(141));

    let empty = piped(&["put", text(&pool), "dump", "-"], b"");
    assert!(empty.status.success(), "{empty:?}");
    let got = piped(&["get", text(&pool), "dump", "--to", "-"], b"");
    assert!(got.status.success() && got.stdout.is_empty());

    assert_eq!(outlive(&["put", text(&pool), "tree", text(&tree)]).code, 0);
    let many = outlive(&["get", text(&pool), "tree", "--to", "-"]);
    assert!(many.code == 2 && many.err.contains("name one file"), "{many:?}");
    let one = piped(&["get", text(&pool), "tree", "notes.txt", "--to", "-"], b"");
    assert_eq!(one.stdout, b"short\n");
}

#[test]
fn requests_about_files_that_cannot_work_are_explained() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, pool) = world(dir.path());
    let (pool, tree) = (text(&pool), text(&tree));
    assert_eq!(outlive(&["put", pool, "job", tree]).code, 0);
    let cases: [(&[&str], &str); 10] = [
        (&["put", pool, "job", "/no/such/thing"], "/no/such/thing"),
        (&["put", pool, "job", "-", tree], "of its own"),
        (&["put", pool, "job", "-", "--name", "a/b"], "a/b"),
        (&["put", pool, "job", tree, "--name", "x"], "standard input"),
        (&["put", pool, "job", tree, "--exclude", "a[b"], "a[b"),
        (&["put", pool, "job", tree, tree], "a tree"),
        (&["get", pool, "none", "--to", "x"], "no job none"),
        (&["get", pool, "job", "../up", "--to", "x"], "../up"),
        (&["get", pool, "job", "missing", "--to", "x"], "missing"),
        (&["get", pool, "job", "--epoch", "9", "--to", "x"], "9"),
    ];
    for (args, part) in cases {
        let run = outlive(args);
        assert!(run.code == 2 && run.err.contains(part), "{args:?}: {run:?}");
    }
    let run = outlive(&["export", pool, "job", "--to", "x"]);
    assert!(run.code == 2 && run.err.contains("outlive get"), "{run:?}");
    assert!(!Path::new("x").exists());
}

#[test]
fn an_unreadable_file_is_named_and_the_rest_is_put() {
    if !rustix::process::geteuid().is_root() {
        return; // Only root can make a file that another user cannot read.
    }
    let dir = tempfile::tempdir().unwrap();
    let (tree, _) = world(dir.path());
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(tree.join("notes.txt"), fs::Permissions::from_mode(0o000)).unwrap();
    let pool = dir.path().join("theirs");
    let as_nobody = |args: &[&str]| {
        let mut command = command(args);
        std::os::unix::process::CommandExt::uid(&mut command, 65_534);
        command.output().unwrap()
    };
    let made = as_nobody(&["pool", "init", text(&pool)]);
    if String::from_utf8_lossy(&made.stderr).contains("Permission denied") {
        return; // Other users cannot enter the temporary directory.
    }
    let run = as_nobody(&["put", text(&pool), "job", text(&tree)]);
    let (out, err) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert_eq!(run.status.code(), Some(7), "{out} {err}");
    assert!(out.contains("notes.txt: unreadable"), "{out}");
    assert!(out.contains("7 items, 3 files of"), "{out}");
    // This user cannot restore owners, but modes and times.
    let there = dir.path().join("there");
    let run = as_nobody(&["get", text(&pool), "job", "--to", text(&there)]);
    assert_eq!(run.status.code(), Some(0), "{run:?}");
    let weights = fs::read(there.join("model/weights.bin")).unwrap();
    assert_eq!(weights, fs::read(tree.join("model/weights.bin")).unwrap());
}

#[test]
fn a_pool_that_is_named_by_its_descriptor_is_left_out_as_well() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "x").unwrap();
    assert_eq!(outlive(&["pool", "init", text(&dir.path().join("pool"))]).code, 0);
    for (pool, paths, cwd) in
        [("pool/pool.toml", ".", "."), ("pool.toml", "..", "pool"), (".", "..", "pool")]
    {
        let mut put = command(&["put", pool, "job", paths, "--json"]);
        let output = put.current_dir(dir.path().join(cwd)).output().unwrap();
        let put: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&put["items"], &put["plan"]["excluded"]), (&2.into(), &1.into()), "{pool}");
    }
}

/// Starts a put of standard input that was interrupted; also returns the pipe to it.
fn interrupted_put(pool: &str) -> (Child, ChildStdin) {
    let mut child = command(&["put", pool, "job", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // More than a pipe holds, so the put has installed its signal handler.
    stdin.write_all(&noise(1, 3_000_000)).unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    (child, stdin)
}

#[test]
fn an_interrupted_put_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let (_, pool) = world(dir.path());
    let (child, mut stdin) = interrupted_put(text(&pool));
    // An interrupted put reads no further.
    while stdin.write_all(&noise(2, 1_000_000)).is_ok() {}
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{told}");
    assert!(told.contains("stopped on request") && !told.contains("try again"), "{told}");
    assert_eq!(outlive(&["ls", text(&pool)]).out.matches("job").count(), 1, "no checkpoint");
}

#[test]
fn a_put_that_waits_for_a_silent_pipe_can_be_interrupted() {
    let dir = tempfile::tempdir().unwrap();
    let (_, pool) = world(dir.path());
    let (child, stdin) = interrupted_put(text(&pool));
    // No more input arrives, and the pipe stays open.
    let output = child.wait_with_output().unwrap();
    drop(stdin);
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{told}");
    assert!(told.contains("stopped on request"), "{told}");
}

#[test]
fn an_error_does_not_end_in_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let (_, pool) = world(dir.path());
    let bytes = noise(1, 3_000_000);
    assert_eq!(
        piped(&["put", text(&pool), "dump", "-", "--name", "db"], &bytes).status.code(),
        Some(0)
    );
    let of_shards = files(&pool).into_iter().filter(|(path, _)| text(path).ends_with(".shard"));
    let (shard, mut stored) = of_shards.max_by_key(|(_, bytes)| bytes.len()).unwrap();
    stored[2_000_000] ^= 1;
    fs::write(&shard, stored).unwrap();
    let verify = outlive(&["verify", text(&pool), "--quick"]);
    assert!(
        verify.code == 3 && verify.out.contains("DAMAGED checkpoint 1: \"db\": "),
        "{verify:?}"
    );
    assert!(verify.out.contains("`outlive get` still gets"), "files have no regions: {verify:?}");
    // Damage has the same name after a scrub, although its pack extents are gone.
    assert_eq!(outlive(&["scrub", text(&pool)]).code, 3);
    let verify = outlive(&["verify", text(&pool), "--quick"]);
    assert!(verify.out.contains("DAMAGED checkpoint 1: \"db\": "), "{verify:?}");
    let got = piped(&["get", text(&pool), "dump", "--to", "-", "--json"], b"");
    assert_eq!(got.status.code(), Some(3));
    assert!(
        got.stdout.len() < bytes.len() && bytes.starts_with(&got.stdout),
        "{}",
        got.stdout.len()
    );
    let told: serde_json::Value = serde_json::from_slice(&got.stderr).unwrap();
    assert_eq!(told["error"]["kind"], "Damaged");
}

#[test]
fn names_that_are_no_text_are_shown_so_that_they_can_be_got() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, pool) = world(dir.path());
    let names: [&[u8]; 3] = [b"na\xefve", b"back\\x41", b"bell\x07"];
    for name in names {
        fs::write(tree.join(OsStr::from_bytes(name)), name).unwrap();
    }
    assert_eq!(outlive(&["put", text(&pool), "files", text(&tree)]).code, 0);
    let listed = outlive(&["show", text(&pool), "files"]).out;
    let shown: Vec<&str> = listed.split_whitespace().filter(|word| word.contains('\\')).collect();
    assert_eq!(shown, [r"back\\x41", r"bell\u{7}", r"na\xefve"], "{listed}");
    let told = json(&["show", text(&pool), "files", "--json"]);
    let paths = told["items"].as_array().unwrap().iter().map(|item| item["path"].as_str().unwrap());
    let told: Vec<&str> = paths.filter(|path| path.contains(['\\', '\x07'])).collect();
    assert_eq!(told, [r"back\x41", "bell\u{7}", r"na\xefve"]);
    for (name, content) in [
        (r"na\xefve", names[0]),
        (r"back\x41", names[1]),
        (r"back\\x41", names[1]),
        (r"bell\u{7}", names[2]),
    ] {
        let got = piped(&["get", text(&pool), "files", name, "--to", "-"], b"");
        assert!(got.status.success() && got.stdout == content, "{name}: {got:?}");
    }
    let none = outlive(&["get", text(&pool), "files", "nothing", "--to", "-"]);
    assert!(none.code == 2 && none.err.matches("checkpoint 1").count() == 1, "{none:?}");
}

#[test]
fn only_a_file_is_written_to_standard_output() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, pool) = world(dir.path());
    fs::create_dir(tree.join("empty")).unwrap();
    assert_eq!(outlive(&["put", text(&pool), "job", text(&tree)]).code, 0);
    for (path, part) in [
        ("newest", "newest is a symbolic link to model/weights.bin: name the file"),
        ("empty", "empty is not a file but a directory: name a file"),
        ("model", "2 are selected: name one file"),
    ] {
        let run = outlive(&["get", text(&pool), "job", path, "--to", "-"]);
        assert!(run.code == 2 && run.err.contains(part) && run.out.is_empty(), "{run:?}");
    }
}

/// A get with --overwrite could replace a pool's own files.
#[test]
fn nothing_is_got_into_a_pool() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, pool) = world(dir.path());
    fs::write(tree.join("pool.toml"), "not a pool").unwrap();
    assert_eq!(outlive(&["put", text(&pool), "job", text(&tree)]).code, 0);
    let before = files(&pool);
    for place in ["", "log", "log/new", "packs/00"] {
        let place = pool.join(place);
        for words in [
            &["get", text(&pool), "job", "--overwrite", "--to", text(&place)][..],
            &["get", text(&pool), "job", "--dry-run", "--to", text(&place)],
            &["export", text(&pool), "job", "--to", text(&place)],
        ] {
            let run = outlive(words);
            assert!(run.code == 2 && run.err.contains("outside"), "{words:?}: {run:?}");
        }
    }
    let inner = pool.join("log/q");
    let run = outlive(&["pool", "init", text(&inner)]);
    assert!(run.code == 2 && run.err.contains("outside"), "{run:?}");
    assert_eq!(files(&pool), before);
    // A directory next to the pool's own is permitted.
    let beside = pool.join("restored");
    assert_eq!(outlive(&["get", text(&pool), "job", "--to", text(&beside)]).code, 0);
}
