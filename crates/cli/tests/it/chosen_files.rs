//! The files that `outlive put` stores: lists of paths, long files and caches.

use crate::common;

use common::{Run, command, files, json, outlive, pool_with_job};
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;

const SIGNATURE: &str = "Signature: 8a477f597d28d172789f06886806bc55";

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Makes a pool, and a tree beside it.
fn pool_and_tree(dir: &Path) -> (PathBuf, PathBuf) {
    let tree = dir.join("tree");
    for (path, content) in [
        ("a/x", "1"),
        ("a/y", "22"),
        ("a/deep/er/z", "333"),
        ("b/x", "4444"),
        ("b/odd\nname", "55555"),
        ("top", "666666"),
    ] {
        let path = tree.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    (pool_with_job(dir), tree)
}

/// Returns the paths of a job's newest checkpoint, as listings show them.
fn listed(pool: &Path, job: &str) -> Vec<String> {
    let shown = json(&["show", text(pool), job, "--json"]);
    let path = |item: &serde_json::Value| item["path"].as_str().unwrap().to_owned();
    shown["items"].as_array().unwrap().iter().map(path).collect()
}

/// Runs a put in a directory, with a list on standard input.
fn put_in(dir: &Path, words: &[&str], list: &[u8]) -> Run {
    let mut command = command(words);
    command.current_dir(dir).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let written = stdin.write_all(list);
    drop(stdin);
    let done = child.wait_with_output().unwrap();
    // A command that refuses its options does not read the list.
    assert!(written.is_ok() || !done.status.success());
    Run {
        code: done.status.code().unwrap(),
        out: String::from_utf8(done.stdout).unwrap(),
        err: String::from_utf8(done.stderr).unwrap(),
    }
}

#[test]
fn a_list_limits_a_put_to_its_paths() {
    let dir = tempfile::tempdir().unwrap();
    let (pool, tree) = pool_and_tree(dir.path());
    let list = dir.path().join("list");
    fs::write(&list, "./a//x\n\nb/odd\n").unwrap();
    let put = |more: &[&str]| {
        let words = [&["put", text(&pool), "j", "--files-from", text(&list)], more].concat();
        put_in(&tree, &words, b"")
    };
    let run = put(&[]);
    assert!(run.code == 7 && run.out.contains("b/odd: unreadable: it is on the list"), "{run:?}");
    assert_eq!(listed(&pool, "j"), [".", "a", "a/x", "b"]);
    // A directory brings all that it has; an absolute path may begin with the directory.
    fs::write(&list, format!("a/deep/\n{}/top\n", text(&tree))).unwrap();
    let kept = || {
        let run = put(&["--json"]);
        assert_eq!(run.code, 0, "{run:?}");
        assert_eq!(listed(&pool, "j"), [".", "a", "a/deep", "a/deep/er", "a/deep/er/z", "top"]);
        let told: serde_json::Value = serde_json::from_str(&run.out).unwrap();
        told["plan"]["kept_files"].as_u64().unwrap()
    };
    assert_eq!(kept(), 0);
    // A put reads a file again as long as it changed shortly before the last put.
    while kept() < 2 {}
    // The directory may be named, from anywhere.
    let words = ["put", text(&pool), "k", text(&tree), "--files-from", text(&list)];
    assert_eq!(put_in(dir.path(), &words, b"").code, 0);
    assert_eq!(listed(&pool, "k"), listed(&pool, "j"));
    let to = dir.path().join("to");
    assert_eq!(outlive(&["get", text(&pool), "k", "--to", text(&to)]).code, 0);
    let names: Vec<_> = files(&to).into_iter().map(|(_, bytes)| bytes).collect();
    assert_eq!(names, [b"333".to_vec(), b"666666".to_vec()]);
    // The dry run is of the list, too, and patterns hold for its paths.
    let dry = put(&["--dry-run", "--json", "--exclude", "top"]);
    let told: serde_json::Value = serde_json::from_str(&dry.out).unwrap();
    assert_eq!((&told["plan"]["files"], &told["plan"]["excluded"]), (&1.into(), &1.into()));
    assert_eq!(dry.code, 0, "an excluded path is not missing: {dry:?}");
    let dry = put(&["--dry-run", "--exclude", "/a"]);
    assert!(dry.code == 0 && !dry.out.contains("on the list"), "{dry:?}");
}

#[test]
fn a_list_comes_over_standard_input() {
    let dir = tempfile::tempdir().unwrap();
    let (pool, tree) = pool_and_tree(dir.path());
    let other = tree.join(std::ffi::OsStr::from_bytes(b"\xFF"));
    fs::write(other, "x").unwrap();
    let put =
        |option: &str, list: &[u8]| put_in(&tree, &["put", text(&pool), "j", option, "-"], list);
    let run = put("--files-from0", b"b/odd\nname\0\xFF\0");
    assert_eq!(run.code, 0, "{run:?}");
    assert_eq!(listed(&pool, "j"), [".", "b", "b/odd\nname", "\\xff"]);
    assert_eq!(put("--files-from", b"# no comment\ntop").code, 7, "names have no comments");
    assert_eq!(listed(&pool, "j"), [".", "top"]);
    assert_eq!(put("--files-from", b".\n").code, 0);
    assert_eq!(listed(&pool, "j").len(), 12, "everything: {:?}", listed(&pool, "j"));
    // A link is stored as one, and leads to nothing.
    symlink("a", tree.join("link")).unwrap();
    let run = put("--files-from", b"link\nlink/x\n");
    assert!(run.code == 7 && run.out.contains("link/x: unreadable"), "{run:?}");
    assert_eq!(listed(&pool, "j"), [".", "link"]);
}

/// A list that has not ended makes no checkpoint, also if the command is killed; the same again does.
#[test]
fn a_put_that_is_killed_in_its_list_is_given_again() {
    let dir = tempfile::tempdir().unwrap();
    let (pool, tree) = pool_and_tree(dir.path());
    let words = ["put", text(&pool), "j", text(&tree), "--files-from", "-"];
    let mut child = command(&words).stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"top\na/x\nb").unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    drop(stdin);
    let jobs = json(&["ls", text(&pool), "--json"]);
    assert_eq!(jobs["jobs"].as_array().unwrap().len(), 1, "{jobs}");
    for _ in 0..2 {
        assert_eq!(put_in(dir.path(), &words, b"top\na/x\nb").code, 0);
        assert_eq!(listed(&pool, "j"), [".", "a", "a/x", "b", "b/odd\nname", "b/x", "top"]);
    }
}

#[test]
fn lists_that_cannot_be_meant_make_no_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let (pool, tree) = pool_and_tree(dir.path());
    let (pool, top) = (text(&pool), tree.join("top"));
    let before = files(Path::new(pool));
    for (list, more, said) in [
        (&b""[..], &[][..], "no path"),
        (b"\n", &[], "no path"),
        (b"../pool\n", &[], "goes up"),
        (b"/etc/passwd\n", &[], "is not below"),
        (b"nowhere\nb/nowhere\n", &[], "none of the paths"),
        (b"a\0b\n", &[], "NUL"),
        (b"a\n", &["a", "b"], "one directory"),
        (b"a\n", &["-"], "one directory"),
        (b"a\n", &[text(&top)], "one directory"),
        (b"a\n", &["nowhere"], "one directory"),
        (b"a\n", &["--files-from0", "-"], "cannot be used with"),
        (b"a\n", &["--name", "n"], "--name"),
    ] {
        let words = [&["put", pool, "j", "--files-from", "-"], more].concat();
        let run = put_in(&tree, &words, list);
        assert!(run.code == 2 && run.err.contains(said), "{said}: {run:?}");
    }
    let missing = ["put", pool, "j", "--files-from", "nowhere"];
    let run = put_in(&tree, &missing, b"");
    assert!(run.code == 2 && run.err.contains("nowhere"), "{run:?}");
    assert_eq!(outlive(&["put", pool, "j"]).code, 2);
    assert_eq!(files(Path::new(pool)), before);
}

#[test]
fn long_files_are_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let (pool, tree) = pool_and_tree(dir.path());
    let put = |path: &Path, limit: &str| {
        outlive(&["put", text(&pool), "j", text(path), "--exclude-larger-than", limit])
    };
    let run = put(&tree, "3");
    assert!(run.code == 0 && run.out.contains("left out     3 paths"), "{run:?}");
    assert_eq!(
        listed(&pool, "j"),
        [".", "a", "a/deep", "a/deep/er", "a/deep/er/z", "a/x", "a/y", "b"]
    );
    assert_eq!(put(&tree, "1KiB").code, 0);
    assert_eq!(listed(&pool, "j").len(), 11);
    assert_eq!(put(&tree, "0").code, 0);
    assert_eq!(listed(&pool, "j"), [".", "a", "a/deep", "a/deep/er", "b"]);
    // A path that the user names is stored whatever its length.
    assert_eq!(put(&tree.join("top"), "1").code, 0);
    assert_eq!(listed(&pool, "j"), ["top"]);
    for wrong in ["lots", "-1", "", "1.5XB"] {
        assert_eq!(put(&tree, wrong).code, 2, "{wrong}");
    }
}

#[test]
fn contents_of_caches_are_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let (pool, tree) = pool_and_tree(dir.path());
    let tag =
        |at: &str, content: &str| fs::write(tree.join(at).join("CACHEDIR.TAG"), content).unwrap();
    tag("a", &format!("{SIGNATURE}\n# made by a test\n"));
    tag("b", "Signature: another");
    let put = |path: &Path, more: &[&str]| {
        let run = outlive(&[&["put", text(&pool), "j", text(path)], more].concat());
        assert_eq!(run.code, 0, "{run:?}");
        listed(&pool, "j")
    };
    let without = put(&tree, &["--exclude-caches"]);
    assert_eq!(
        without,
        [".", "a", "a/CACHEDIR.TAG", "b", "b/CACHEDIR.TAG", "b/odd\nname", "b/x", "top"]
    );
    assert_eq!(put(&tree, &[]).len(), 13);
    // A cache that the user names is stored.
    assert_eq!(put(&tree.join("a"), &["--exclude-caches"]).len(), 7);
    // A link to a tag marks nothing, nor does a directory or an empty file.
    fs::remove_file(tree.join("b/CACHEDIR.TAG")).unwrap();
    symlink(tree.join("a/CACHEDIR.TAG"), tree.join("b/CACHEDIR.TAG")).unwrap();
    assert!(put(&tree, &["--exclude-caches"]).contains(&"b/x".to_owned()));
    fs::write(tree.join("a/CACHEDIR.TAG"), &SIGNATURE[..42]).unwrap();
    assert!(put(&tree, &["--exclude-caches"]).contains(&"a/x".to_owned()));
    fs::remove_file(tree.join("a/CACHEDIR.TAG")).unwrap();
    fs::create_dir(tree.join("a/CACHEDIR.TAG")).unwrap();
    assert!(put(&tree, &["--exclude-caches"]).contains(&"a/x".to_owned()));
}
