//! Repeated gets: existing files, leftovers of killed gets, and properties that new files inherit
//! from their directory. Also limits of a file system, and of a user without rights.

use crate::common;
use crate::trees;

use common::{noise, small_config, until};
use outlive_files::{FileErrorKind, GetFiles, GetOptions, GetReport};
use outlive_pool::{Environment, create};
use outlive_store::Job;
use rustix::fs::{XattrFlags, lsetxattr};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use trees::*;

fn over(to: &Path) -> GetOptions {
    GetOptions { overwrite: true, ..into(to) }
}

fn get_over(job: &Job, epoch: u64, to: &Path) -> GetReport {
    checkpoint(job, epoch).get(&over(to)).unwrap()
}

/// Returns inode and ctime of every file: a get that changes neither has not touched it.
fn identities(to: &Path) -> BTreeMap<PathBuf, (u64, i64, i64)> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![to.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            // Its path is longer than the system permits.
            let Ok(there) = fs::symlink_metadata(&path) else { continue };
            if there.is_dir() {
                dirs.push(path.clone());
            }
            found.insert(path, (there.ino(), there.ctime(), there.ctime_nsec()));
        }
    }
    found
}

#[test]
fn unchanged_files_are_left_alone() {
    let world = World::tuned(|tuning| tuning.threads = 3);
    let source = world.directory("source");
    everything(&source);
    let expected = snapshot(&source);
    let job = world.job();
    let files = put_whole(&job, &source).files;
    let to = world.dir.path().join("to");
    let first = get_whole(&job, 1, &to);
    assert_eq!((first.files, first.kept_files), (files, 0));
    let before = identities(&to);
    tick(&to);
    let again = get_over(&job, 1, &to);
    assert!(again.troubles.is_empty(), "{:?}", again.troubles);
    // Only root compares files without any permission.
    let unread = if is_root() { 0 } else { again.files - again.kept_files };
    assert_eq!((again.files, again.kept_files + unread, again.items), (files, files, first.items));
    assert_eq!((again.bytes, again.kept_bytes), (first.bytes, first.bytes));
    if is_root() {
        assert_eq!(again.read_bytes, 0);
        assert_eq!(identities(&to), before, "nothing was touched");
    }
    same(&snapshot(&to), &expected, "again");
}

#[test]
fn only_items_that_differ_are_made_anew() {
    let world = World::new();
    let source = world.directory("source");
    let names = [
        "bit",
        "cut",
        "gone",
        "touched",
        "mode",
        "attribute",
        "linked",
        "zeros",
        "small",
        "other",
        "wider",
        "same",
    ];
    for (number, name) in names.iter().enumerate() {
        let length = if *name == "small" { 100 } else { 300_000 };
        fs::write(source.join(name), noise(number as u64, length)).unwrap();
        fs::set_permissions(source.join(name), fs::Permissions::from_mode(0o644)).unwrap();
    }
    fs::write(source.join("zeros"), vec![0; 300_000]).unwrap();
    fs::hard_link(source.join("same"), source.join("same too")).unwrap();
    sparse(&source.join("sparse"), 1 << 20, &[(500_000, b"x")]);
    symlink("bit", source.join("link")).unwrap();
    lsetxattr(source.join("attribute"), "user.a", b"1", XattrFlags::empty()).unwrap();
    let expected = snapshot(&source);
    let job = world.job();
    put_whole(&job, &source);
    let to = world.dir.path().join("to");
    get_whole(&job, 1, &to);
    let before = identities(&to);
    let at = |name: &str| to.join(name);
    let mtime = |name: &str| {
        let there = fs::symlink_metadata(at(name)).unwrap();
        (there.mtime(), there.mtime_nsec())
    };
    // The times are restored: only the content differs.
    for (name, bytes) in [("bit", &b"?"[..]), ("zeros", b"1"), ("small", b"?"), ("sparse", b"?")] {
        let (s, ns) = mtime(name);
        edit(&at(name), 70, bytes);
        set_mtime(&at(name), s, ns);
    }
    let (s, ns) = mtime("other");
    let content = fs::read(at("other")).unwrap();
    fs::remove_file(at("other")).unwrap();
    fs::create_dir(at("other")).unwrap();
    fs::remove_dir(at("other")).unwrap();
    symlink("bit", at("other")).unwrap();
    set_mtime(&at("other"), s, ns);
    assert_eq!(content.len(), 300_000);
    fs::OpenOptions::new().write(true).open(at("cut")).unwrap().set_len(100).unwrap();
    fs::remove_file(at("gone")).unwrap();
    set_mtime(&at("touched"), 5, 5);
    fs::set_permissions(at("mode"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(at("wider"), fs::Permissions::from_mode(0o666)).unwrap();
    lsetxattr(at("attribute"), "user.a", b"2", XattrFlags::empty()).unwrap();
    lsetxattr(at("mode"), "user.too much", b"", XattrFlags::empty()).unwrap();
    // That name does not belong to the checkpoint.
    let outside = world.dir.path().join("outside");
    fs::hard_link(at("linked"), &outside).unwrap();
    fs::remove_file(at("same too")).unwrap();
    fs::remove_file(at("link")).unwrap();
    symlink("cut", at("link")).unwrap();
    let report = get_over(&job, 1, &to);
    assert!(report.troubles.is_empty(), "{:?}", report.troubles);
    same(&snapshot(&to), &expected, "as it was");
    let after = identities(&to);
    let is_kept = |name: &str| {
        let inode = |all: &BTreeMap<PathBuf, (u64, i64, i64)>| all[&at(name)].0;
        inode(&before) == inode(&after)
    };
    assert!(is_kept("touched") && is_kept("same"));
    assert_eq!(report.kept_files, 2, "{report:?}");
    assert_eq!(fs::metadata(outside).unwrap().nlink(), 1);
    // A second get has nothing to do.
    let report = get_over(&job, 1, &to);
    assert_eq!((report.kept_files, report.files), (13, 13));
    assert_eq!(identities(&to).keys().count(), after.keys().count());
}

#[test]
fn files_of_killed_gets_go_and_are_never_put() {
    let world = World::new();
    let source = world.directory("source");
    fs::create_dir(source.join("dir")).unwrap();
    fs::write(source.join("dir/file"), "x").unwrap();
    let job = world.job();
    put_whole(&job, &source);
    let to = world.dir.path().join("to");
    get_whole(&job, 1, &to);
    let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let id = child.id();
    let name = |number: u32| format!(".outlive-{id}-{number}.tmp");
    let (top, below) = (to.join(name(0)), to.join("dir").join(name(1)));
    for path in [&top, &below] {
        fs::write(path, "half").unwrap();
    }
    let report = put_whole(&job, &to);
    assert_eq!((report.files, report.plan.leftovers, report.plan.excluded), (1, 2, 0));
    // The get may still run.
    get_over(&job, 2, &to);
    assert!(top.exists() && below.exists());
    child.kill().unwrap();
    child.wait().unwrap();
    // Without permission to overwrite, a get removes nothing.
    let elsewhere = world.directory("elsewhere");
    fs::copy(&top, elsewhere.join(name(0))).unwrap();
    get_whole(&job, 2, &elsewhere);
    assert!(elsewhere.join(name(0)).exists());
    let report = get_over(&job, 1, &to);
    assert!(report.troubles.is_empty() && !top.exists() && !below.exists());
    assert_eq!(report.kept_files, 1);
    same(&snapshot(&to), &snapshot(&source), "cleaned");
}

/// Returns an ACL with an entry for user 1234, in the kernel's form.
fn acl(owner: u16) -> Vec<u8> {
    let none = u32::MAX;
    let entries = [(1, owner, none), (2, 7, 1234), (4, 5, none), (16, 7, none), (32, 5, none)];
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        bytes.extend([u16::to_le_bytes(tag), u16::to_le_bytes(rights)].concat());
        bytes.extend(u32::to_le_bytes(id));
    }
    bytes
}

#[test]
fn nothing_is_inherited() {
    let world = World::new();
    let source = world.directory("source");
    everything(&source);
    let (default, access) = ("system.posix_acl_default", "system.posix_acl_access");
    let set =
        |path: &Path, name: &str, owner| lsetxattr(path, name, &acl(owner), XattrFlags::empty());
    fs::create_dir(source.join("with")).unwrap();
    if set(&source.join("with"), default, 7).is_err() {
        eprintln!("no ACLs here, so this test checks nothing");
        return;
    }
    fs::write(source.join("with/inherits"), "x").unwrap();
    set(&source.join("noise-1"), access, 6).unwrap();
    let expected = snapshot(&source);
    let job = world.job();
    put_whole(&job, &source);
    // The second ACL does not even let an owner write.
    for (name, owner) in [("to", 7), ("shut", 0)] {
        let to = world.directory(name);
        set(&to, default, owner).unwrap();
        get_whole(&job, 1, &to);
        same(&snapshot(&to), &expected, name);
        set(&to.join("with"), access, 7).unwrap();
        set(&to.join("empty"), default, 7).unwrap();
        set(&to.join("noise-512"), access, 7).unwrap();
        set(&to.join("fifo"), access, 7).unwrap();
        let report = get_over(&job, 1, &to);
        assert!(report.troubles.is_empty(), "{:?}", report.troubles);
        same(&snapshot(&to), &expected, "what was given since is taken away");
    }
}

#[test]
fn times_that_do_not_fit_are_told() {
    let world = World::new();
    // Memory takes any time; for a disk, the test finds the limits.
    let Ok(source) = tempfile::tempdir_in("/dev/shm") else { return };
    let times = [-4_850_000_000, -1, 0, 253_402_300_800, 139_689_000_000_000];
    for time in times {
        fs::write(source.path().join(time.to_string()), "x").unwrap();
        set_mtime(&source.path().join(time.to_string()), time, 7);
    }
    let job = world.job();
    put_whole(&job, source.path());
    let to = world.dir.path().join("to");
    for options in [into(&to), over(&to)] {
        let report = checkpoint(&job, 1).get(&options).unwrap();
        let mut bent = Vec::new();
        for time in times {
            let there = fs::metadata(to.join(time.to_string())).unwrap();
            if (there.mtime(), there.mtime_nsec()) != (time, 7) {
                bent.push((time.to_string().into_bytes(), there.mtime()));
            }
        }
        if bent.is_empty() {
            eprintln!("this file system holds all times, so this test checks little");
        }
        bent.sort();
        let kept = &report.troubles.kept;
        let told: Vec<_> =
            kept.iter().map(|trouble| (trouble.path.clone(), trouble.kind)).collect();
        let incomplete = |(path, _): &(Vec<u8>, i64)| (path.clone(), FileErrorKind::Incomplete);
        assert_eq!(told, bent.iter().map(incomplete).collect::<Vec<_>>());
        for ((path, stored), trouble) in bent.iter().zip(kept) {
            let path = String::from_utf8_lossy(path);
            let what = format!("@{stored}");
            assert!(
                trouble.why.contains(&what) && trouble.why.contains("hold @"),
                "{path}: {trouble}"
            );
        }
        assert_eq!(report.files, 5);
    }
}

#[test]
fn a_chmod_to_the_same_mode_is_no_change() {
    for length in [3_000_000, 150_000_000] {
        let world = World::tuned(|tuning| tuning.threads = 2);
        let source = world.directory("source");
        let path = source.join("file");
        fs::write(&path, noise(1, length)).unwrap();
        let (over, changes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let restless = {
            let (over, changes, path) = (over.clone(), changes.clone(), path.clone());
            let mode = fs::metadata(&path).unwrap().permissions();
            std::thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    fs::set_permissions(&path, mode.clone()).unwrap();
                    changes.fetch_add(1, Ordering::Relaxed);
                    std::thread::yield_now();
                }
            })
        };
        let job = world.job();
        let report = put(&job, &source);
        let before = changes.load(Ordering::Relaxed);
        until("another chmod", || changes.load(Ordering::Relaxed) > before);
        over.store(true, Ordering::Relaxed);
        restless.join().unwrap();
        let report = report.unwrap();
        assert!(report.troubles.is_empty(), "{:?}", report.troubles);
        same(&got(&job, 1, world.dir.path()), &snapshot(&source), "its content");
        // The last change may concern the content, so the file is read again.
        tick(&source);
        assert_eq!(put_whole(&job, &source).plan.read_files, 1);
        assert_eq!(put_whole(&job, &source).plan.read_files, 0);
    }
}

/// Gets by a user without rights, over directories of this user and over one of another.
fn as_other_user(dir: &Path) {
    let pool = outlive_pool::open(&dir.join("pool"), Environment::system()).unwrap();
    let job = Job::open(&pool, "job", Default::default()).unwrap();
    let to = dir.join("theirs/to");
    let mode = |path: &str| fs::symlink_metadata(to.join(path)).unwrap().mode() & 0o7777;
    let modes = || ["", "shut", "shut/in", "dark", "locked"].map(mode);
    get_whole(&job, 1, &to);
    assert_eq!(modes(), [0o555, 0o555, 0o555, 0o111, 0]);
    // Over its own read-only directories, some of which it may not even read.
    for (epoch, content) in [(1, "one"), (2, "two"), (2, "two")] {
        let report = get_over(&job, epoch, &to);
        assert!(report.troubles.is_empty(), "{:?}", report.troubles);
        assert_eq!(modes(), [0o555, 0o555, 0o555, 0o111, 0]);
        for path in ["file", "shut/file", "shut/in/file", "dark/file"] {
            assert_eq!(fs::read_to_string(to.join(path)).unwrap(), content, "{path}");
        }
    }
    assert_eq!(get_over(&job, 2, &to).kept_files, 4);
    // A get that ends early leaves the modes as they were.
    let options = over(&to);
    options.stop.store(true, Ordering::Relaxed);
    checkpoint(&job, 1).get(&options).unwrap_err();
    assert_eq!(modes(), [0o555, 0o555, 0o555, 0o111, 0]);
    // Entries of another user are reported, and the others are made.
    for path in ["mixed", "mixed top"] {
        let mixed = dir.join(path);
        let report = get_over(&job, 2, &mixed);
        let named: Vec<String> = report
            .troubles
            .kept
            .iter()
            .map(|trouble| String::from_utf8_lossy(&trouble.path).into_owned())
            .collect();
        assert!(named.contains(&"dark/file".to_owned()), "{named:?}");
        assert!(!named.iter().any(|path| path.starts_with("shut")), "{named:?}");
        assert_eq!(fs::read_to_string(mixed.join("shut/in/file")).unwrap(), "two");
        assert_eq!(fs::read_to_string(mixed.join("dark/file")).unwrap(), "ours");
        assert!(!report.troubles.is_whole());
    }
}

#[test]
fn users_overwrite_trees_of_their_own() {
    if let Some(dir) = dir_as_other_user() {
        return as_other_user(&dir);
    }
    if !is_root() {
        eprintln!("not root: this test cannot become another user, so it checks nothing here");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    fs::create_dir_all(source.join("shut/in")).unwrap();
    fs::create_dir(source.join("dark")).unwrap();
    fs::create_dir(source.join("locked")).unwrap();
    let pool = create(&dir.path().join("pool"), small_config(), Environment::system()).unwrap();
    let job = Job::open(&pool, "job", Default::default()).unwrap();
    for content in ["one", "two"] {
        for path in ["file", "shut/file", "shut/in/file", "dark/file"] {
            let _ = fs::remove_file(source.join(path));
            fs::write(source.join(path), content).unwrap();
            set_mode(&source.join(path), 0o444);
        }
        for (path, mode) in
            [("shut/in", 0o555), ("shut", 0o555), ("dark", 0o111), ("locked", 0), (".", 0o555)]
        {
            set_mode(&source.join(path), mode);
        }
        put_whole(&job, &source);
    }
    for name in ["theirs", "mixed", "mixed top", "mixed/shut", "mixed top/shut"] {
        dir_of_other_user(&dir.path().join(name));
    }
    for name in ["mixed", "mixed top"] {
        fs::create_dir(dir.path().join(name).join("dark")).unwrap();
        fs::write(dir.path().join(name).join("dark/file"), "ours").unwrap();
    }
    // Here the user may not even add a name.
    chown(dir.path().join("mixed top"), Some(0), Some(0)).unwrap();
    run_as_other_user("files_again::users_overwrite_trees_of_their_own", dir.path());
}
