//! Edits of trees: compared with a model, their cost, their refusals, and trees that were put.

use crate::common;
use crate::trees;

use common::noise;
use outlive_files::{
    Change, EditFiles, EditOptions, EditSource, Edited, FileTree, Refusal, RefusedBy,
};
use outlive_format::{Content, ItemKind};
use outlive_store::{FilesImage, Job};
use outlive_types::{ErrorKind, SeededRng};
use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::Ordering;
use trees::*;

pub fn write(path: &str, bytes: impl Into<Vec<u8>>) -> Change {
    let from = EditSource::Bytes(bytes.into());
    Change::Write { path: path.into(), from, exclusive: false }
}

pub fn append(path: &str, bytes: impl Into<Vec<u8>>) -> Change {
    Change::Append { path: path.into(), from: EditSource::Bytes(bytes.into()) }
}

pub fn remove(path: &str) -> Change {
    Change::Remove { path: path.into(), recursive: true }
}

pub fn rename(from: &str, to: &str) -> Change {
    Change::Rename { from: from.into(), to: to.into() }
}

pub fn edit_of(job: &Job, changes: &[Change]) -> Edited {
    job.edit(changes, &EditOptions::default()).unwrap()
}

/// Makes an edit, and requires that it is committed; returns the epoch and the new bytes.
pub fn committed(job: &Job, changes: &[Change]) -> (u64, u64) {
    match edit_of(job, changes) {
        Edited::Committed(stats) => (stats.epoch, stats.new_bytes),
        other => panic!("{other:?}"),
    }
}

fn refused(job: &Job, change: Change) -> (RefusedBy, String) {
    match edit_of(job, &[change]) {
        Edited::Refused(Refusal { by, path }) => (by, String::from_utf8(path).unwrap()),
        other => panic!("{other:?}"),
    }
}

pub fn newest(job: &Job) -> FileTree {
    FileTree::new(FilesImage::newest(job.pool(), job.name()).unwrap().unwrap())
}

/// Directories without content, files with theirs.
pub type Model = BTreeMap<String, Option<Vec<u8>>>;

/// Reads all items in the order of the listing.
pub fn read_all(job: &Job) -> Model {
    let image = FilesImage::newest(job.pool(), job.name()).unwrap().unwrap();
    let mut found = Model::new();
    let mut items = image.items();
    let mut files = 0;
    while let Some(item) = items.next_item().unwrap() {
        let content = (item.kind == ItemKind::File).then(|| {
            let mut bytes = vec![0; item.bytes as usize];
            image.read_range(&item, 0, &mut bytes).unwrap();
            files += item.bytes;
            bytes
        });
        found.insert(String::from_utf8(item.path).unwrap(), content);
    }
    assert_eq!(image.manifest().state_bytes(), files);
    found
}

/// A random change, applied to the model; `None` where a file system would refuse it.
fn change(rng: &SeededRng, model: &mut Model) -> Option<Change> {
    const NAMES: [&str; 9] = ["a", "b", "a.x", "d", "d/a", "d/e", "d/e/f", "z/y", "z/y/x"];
    let below = |most: u64| rng.next_u64() % most;
    let name = || NAMES[below(9) as usize].to_owned();
    let (path, to) = (name(), name());
    let above = |path: &str| -> Vec<String> {
        path.match_indices('/').map(|(at, _)| path[..at].to_owned()).collect()
    };
    let make_above = |model: &mut Model, path: &str| {
        model.insert(".".to_owned(), None);
        above(path).into_iter().for_each(|dir| drop(model.insert(dir, None)));
    };
    let has_file_above = |model: &Model, path: &str| {
        above(path).iter().any(|it| matches!(model.get(it), Some(Some(_))))
    };
    let is_dir = |model: &Model, path: &str| matches!(model.get(path), Some(None));
    let inside = |model: &Model, dir: &str| -> Vec<String> {
        let below = format!("{dir}/");
        model.keys().filter(|it| it.starts_with(&below)).cloned().collect()
    };
    let length = [0, 100, 513, 30_000, 700_000][below(5) as usize];
    match below(9) {
        0..4 => {
            if is_dir(model, &path) || has_file_above(model, &path) {
                return None;
            }
            let bytes = noise(below(1000), length);
            make_above(model, &path);
            model.insert(path.clone(), Some(bytes.clone()));
            Some(write(&path, bytes))
        }
        4 => {
            if is_dir(model, &path) || has_file_above(model, &path) {
                return None;
            }
            let bytes = noise(below(1000), length);
            make_above(model, &path);
            let there = model.entry(path.clone()).or_default().get_or_insert_default();
            there.extend(&bytes);
            Some(append(&path, bytes))
        }
        5 => {
            model.remove(&path)?;
            inside(model, &path).into_iter().for_each(|it| drop(model.remove(&it)));
            Some(remove(&path))
        }
        6 => {
            let there = model.get(&path)?.clone();
            let is_blocked = if there.is_some() {
                is_dir(model, &to)
            } else {
                matches!(model.get(&to), Some(Some(_))) || !inside(model, &to).is_empty()
            };
            if path == to || to.starts_with(&format!("{path}/")) || is_blocked {
                return None;
            }
            if has_file_above(model, &to) {
                return None;
            }
            make_above(model, &to);
            for old in inside(model, &path).into_iter().chain([path.clone()]) {
                let content = model.remove(&old).unwrap();
                model.insert(format!("{to}{}", &old[path.len()..]), content);
            }
            Some(rename(&path, &to))
        }
        7 => {
            let bytes = model.get(&path)?.clone()?;
            if path == to || is_dir(model, &to) || has_file_above(model, &to) {
                return None;
            }
            make_above(model, &to);
            model.insert(to.clone(), Some(bytes));
            Some(Change::Copy { from: path.into(), to: to.into() })
        }
        _ => {
            if model.contains_key(&path) || has_file_above(model, &path) {
                return None;
            }
            make_above(model, &path);
            model.insert(path.clone(), None);
            Some(Change::MakeDirectory { path: path.into(), exist_ok: false })
        }
    }
}

#[test]
fn edits_do_what_a_file_system_does() {
    for seed in 0..30 {
        let world = World::new();
        let rng = SeededRng::new(seed);
        let mut model = Model::new();
        let job = world.job();
        for round in 0..15 {
            let count = 1 + rng.next_u64() % 4;
            let changes: Vec<Change> =
                (0..count).filter_map(|_| change(&rng, &mut model)).collect();
            match edit_of(&job, &changes) {
                Edited::Committed(_) => {}
                Edited::Unchanged(_) => assert!(changes.is_empty(), "{seed} {round}: {changes:?}"),
                Edited::Refused(refusal) => panic!("{seed} {round}: {refusal:?} of {changes:?}"),
            }
            if round > 0 || !changes.is_empty() {
                assert_eq!(read_all(&job), model, "{seed} {round}: {changes:?}");
            }
        }
        assert_eq!(job.verify(None).unwrap().findings, vec![], "{seed}");
    }
}

#[test]
fn the_cost_of_an_edit_follows_the_change_and_not_the_tree() {
    let world = World::new();
    let job = world.job();
    let all: Vec<Change> = (0..20_000)
        .map(|number| write(&format!("dir {}/file {number}", number % 100), vec![1; 20]))
        .collect();
    committed(&job, &all);
    let listing = newest(&job).image().listing_chunks().iter().map(|it| it.bytes).sum::<u64>();
    assert!(listing > 2_000_000, "{listing}");
    let (_, one_bytes) = committed(&job, &[write("dir 50/file 50", "another content")]);
    // Chunks, recipes and tables of the new pack, each padded to a page.
    assert!(one_bytes < 40_000, "{one_bytes}");
    // The listing is that of a put of the same tree, chunk by chunk: no fragments remain.
    let chunks = newest(&job).image().listing_chunks().len();
    for number in 0..200 {
        committed(&job, &[write(&format!("dir {}/new {number}", number % 7), "x")]);
        committed(&job, &[remove(&format!("dir {}/new {number}", number % 7))]);
    }
    let tree = newest(&job);
    assert_eq!(tree.image().listing_chunks().len(), chunks);
    assert_eq!(tree.image().listed_items(), 20_000 + 100 + 1);
    let children = tree.children(b"dir 50").unwrap();
    assert_eq!(children.len(), 200);
    assert_eq!(tree.children(b".").unwrap().len(), 100);
    let file = tree.item(b"dir 50/file 50").unwrap().unwrap();
    assert_eq!(file.content, Content::Inline(b"another content".to_vec()));
    assert!(tree.item(b"dir 50/file 51").unwrap().is_none());
}

#[test]
fn refusals_say_what_is_in_the_way() {
    let world = World::new();
    let job = world.job();
    committed(&job, &[write("dir/file", "1"), write("other", "2")]);
    let make = |path: &str, exist_ok| Change::MakeDirectory { path: path.into(), exist_ok };
    let exclusive = Change::Write {
        path: b"other".to_vec(),
        from: EditSource::Bytes(Vec::new()),
        exclusive: true,
    };
    let only = |path: &str| Change::Remove { path: path.into(), recursive: false };
    let copy = |from: &str, to: &str| Change::Copy { from: from.into(), to: to.into() };
    let of = |by, path: &str| (by, path.to_owned());
    use RefusedBy::*;
    assert_eq!(refused(&job, write("dir", "")), of(IsDirectory, "dir"));
    assert_eq!(refused(&job, write(".", "")), of(IsDirectory, "."));
    assert_eq!(refused(&job, write("other/x", "")), of(NotDirectory, "other"));
    assert_eq!(refused(&job, exclusive), of(Exists, "other"));
    assert_eq!(refused(&job, make("other", true)), of(Exists, "other"));
    assert_eq!(refused(&job, make("dir", false)), of(Exists, "dir"));
    assert_eq!(refused(&job, only("dir")), of(NotEmpty, "dir"));
    assert_eq!(refused(&job, remove("none")), of(Missing, "none"));
    assert_eq!(refused(&job, rename("none", "x")), of(Missing, "none"));
    assert_eq!(refused(&job, rename("dir", "dir/x")), of(Impossible, "dir/x"));
    assert_eq!(refused(&job, rename("dir", "other")), of(NotDirectory, "other"));
    assert_eq!(refused(&job, rename("other", "dir")), of(IsDirectory, "dir"));
    assert_eq!(refused(&job, copy("dir", "x")), of(IsDirectory, "dir"));
    for path in ["", "/a", "a//b", "../a", "a/.", "a\0b"] {
        assert_eq!(refused(&job, write(path, "")).0, Impossible, "{path}");
    }
    // One refusal stops the whole edit, and nothing of it is there.
    let both = [write("third", "3"), remove("none")];
    assert!(matches!(edit_of(&job, &both), Edited::Refused(_)));
    assert_eq!(edit_of(&job, &[make("dir", true)]), Edited::Unchanged(1));
    assert_eq!(newest(&job).image().epoch(), 1);
}

#[test]
fn an_edit_keeps_everything_else_of_a_tree_that_was_put() {
    let world = World::new();
    let source = world.directory("source");
    everything(&source);
    let job = world.job();
    put_whole(&job, &source);
    committed(&job, &[write("new/file", noise(1, 100_000))]);
    let found = got(&job, 2, world.dir.path());
    let mut expected = snapshot(&source);
    expected.retain(|path, _| path != b".");
    for (path, item) in &expected {
        assert_eq!(found.get(path), Some(item), "{}", path.escape_ascii());
    }
    let more: Vec<_> = found.keys().filter(|path| !expected.contains_key(*path)).collect();
    assert_eq!(more, [&b"."[..], b"new", b"new/file"]);
    // A put takes no file over that an edit has made, and the tree is the directory's again.
    world.clock.ahead_ns.fetch_add(HOUR_NS, Ordering::Relaxed);
    let report = put_whole(&job, &source);
    // One file is from the future, so each put reads it.
    assert_eq!(report.plan.read_files, 1);
    same(&got(&job, 3, world.dir.path()), &snapshot(&source), "put again");
}

#[test]
fn names_of_one_file_part_when_one_of_them_changes() {
    let world = World::new();
    let source = world.directory("source");
    for name in ["first", "other"] {
        fs::write(source.join(name), noise(1, 30_000)).unwrap();
        for link in ["a", "x", "y"] {
            fs::hard_link(source.join(name), source.join(format!("{name} {link}"))).unwrap();
        }
    }
    let changes: [(&str, Vec<Change>); 6] = [
        ("write", vec![write("first", "new")]),
        ("write a link", vec![write("first x", "new")]),
        ("remove", vec![remove("first")]),
        ("rename", vec![rename("first", "zz/moved"), rename("first a", "0")]),
        ("append", vec![append("first y", "more")]),
        ("copy", vec![Change::Copy { from: b"first x".to_vec(), to: b"copy".to_vec() }]),
    ];
    for (what, changes) in changes {
        let job = Job::open(&world.pool, what, Default::default()).unwrap();
        put_whole(&job, &source);
        committed(&job, &changes);
        let to = tempfile::tempdir_in(world.dir.path()).unwrap();
        get_whole(&job, 2, to.path());
        let read = |name: &str| fs::read(to.path().join(name)).unwrap();
        let changed = |name: &str| {
            changes.iter().any(|it| format!("{it:?}").contains(&format!("{:?}", name.as_bytes())))
        };
        for name in ["first", "first a", "first x", "first y"] {
            if !changed(name) || what == "copy" {
                assert_eq!(read(name), noise(1, 30_000), "{what}: {name}");
            }
        }
        assert_eq!(read("other y"), noise(1, 30_000), "{what}");
        let links = snapshot(to.path()).values().filter(|it| it.same_as.is_some()).count();
        assert_eq!(links, 3, "{what}: the names of the other file are still one");
        match what {
            "write" => assert_eq!(read("first"), b"new"),
            "append" => assert_eq!(read("first y"), [&noise(1, 30_000)[..], b"more"].concat()),
            "rename" => assert_eq!(read("zz/moved"), noise(1, 30_000)),
            _ => {}
        }
        assert_eq!(job.verify(None).unwrap().findings, vec![], "{what}");
    }
}

#[test]
fn small_additions_do_not_make_small_pieces() {
    let world = World::new();
    let job = world.job();
    let mut expected = noise(1, 100_000);
    committed(&job, &[write("log", expected.clone())]);
    for number in 0..300 {
        let line = noise(number, 100);
        expected.extend(&line);
        let (_, new_bytes) = committed(&job, &[append("log", line)]);
        assert!(new_bytes < 90_000, "{new_bytes}");
    }
    assert_eq!(read_all(&job)["log"], Some(expected.clone()));
    let tree = newest(&job);
    let item = tree.item(b"log").unwrap().unwrap();
    let mut pieces = 0;
    tree.image()
        .pieces(&item, &mut |_| {
            pieces += 1;
            Ok(())
        })
        .unwrap();
    assert!(pieces < 40, "{pieces} pieces of {} bytes", expected.len());
}

#[test]
fn long_files_are_read_in_parts_and_sources_that_change_are_refused() {
    let world = World::tuned(|tuning| tuning.threads = 2);
    let job = world.job();
    let path = world.dir.path().join("long");
    let piece = noise(3, 1 << 20);
    let long = [piece.repeat(70), vec![0; 3 << 20], noise(4, 12_345)].concat();
    fs::write(&path, &long).unwrap();
    let from = EditSource::File(path.clone());
    let change = Change::Write { path: b"d/long".to_vec(), from: from.clone(), exclusive: true };
    committed(&job, &[change]);
    committed(&job, &[Change::Append { path: b"d/long".to_vec(), from }]);
    assert!(read_all(&job)["d/long"].as_deref() == Some(&[&long[..], &long].concat()[..]));
    let gone = EditSource::File(world.dir.path().join("gone"));
    let change = Change::Write { path: b"x".to_vec(), from: gone, exclusive: false };
    let error = job.edit(&[change], &EditOptions::default()).unwrap_err();
    assert!(error.message().contains("gone"), "{error}");
    // It says that it is empty, and is not.
    let longer = EditSource::File("/proc/self/status".into());
    let change = Change::Write { path: b"x".to_vec(), from: longer, exclusive: false };
    let error = job.edit(&[change], &EditOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
    assert_eq!(newest(&job).image().epoch(), 2);
}

#[test]
fn an_edit_after_a_prune_keeps_all_files() {
    let world = World::new();
    let job = world.job();
    let mut model = Model::from([(".".to_owned(), None)]);
    for number in 0..12u64 {
        let (path, bytes) = (format!("file {number}"), noise(number, 50_000));
        committed(&job, &[write(&path, bytes.clone())]);
        model.insert(path, Some(bytes));
        if number % 4 == 3 {
            prune(&world.pool, &(1..number + 1).collect::<Vec<_>>()).unwrap();
        }
        assert_eq!(read_all(&job), model);
    }
    committed(&job, &[remove(".")]);
    assert_eq!(read_all(&job), Model::new());
    committed(&job, &[write("again", "x")]);
    assert_eq!(read_all(&job).len(), 2);
    prune(&world.pool, &(1..14).collect::<Vec<_>>()).unwrap();
    assert_eq!(job.verify(None).unwrap().findings, vec![]);
}

#[test]
fn a_writer_that_was_overtaken_loses_no_file_of_the_other() {
    let world = World::new();
    let (one, two) = (world.job(), world.job());
    committed(&one, &[write("one", "1")]);
    committed(&two, &[write("two", "2")]);
    let error = one.edit(&[write("three", "3")], &EditOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced);
    let again = world.job();
    committed(&again, &[write("three", "3")]);
    let names: Vec<String> = read_all(&again).into_keys().collect();
    assert_eq!(names, [".", "one", "three", "two"]);
}
