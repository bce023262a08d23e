//! Selection of the files to put and get: chosen paths, patterns, names that are taken, and links
//! that an attacker has planted.

use crate::common;
use crate::trees;

use common::noise;
use outlive_files::{GetFiles, GetOptions, InOrder, PutFiles, PutOptions, Selection};
use outlive_format::ItemKind;
use outlive_types::{ErrorKind, Rng, SeededRng};
use rustix::fs::FileType;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;
use trees::*;

#[test]
fn some_paths_of_it() {
    let world = World::new();
    let source = world.directory("source");
    for path in ["a/b/c", "a/x", "d/e"] {
        fs::create_dir_all(source.join(path)).unwrap();
        fs::write(source.join(path).join("file"), noise(path.len() as u64, 2000)).unwrap();
    }
    // The first name is not chosen; two others are, one of them in a later directory.
    fs::write(source.join("a/first"), noise(1, 40_000)).unwrap();
    fs::hard_link(source.join("a/first"), source.join("d/e/second")).unwrap();
    fs::hard_link(source.join("a/first"), source.join("d/third")).unwrap();
    fs::set_permissions(source.join("d/e"), fs::Permissions::from_mode(0o750)).unwrap();
    set_mtime(&source.join("d/e"), 1000, 7);
    set_mtime(&source.join("d"), 1001, 8);
    set_mtime(&source.join("a/b"), 1002, 9);
    let whole = snapshot(&source);
    let job = world.job();
    put_whole(&job, &source);
    let choose = |paths: &[&str]| {
        let paths = paths.iter().map(|path| path.as_bytes().to_vec());
        let to = world.directory(&format!("to {}", rand_name()));
        let choice = Selection::new(paths).unwrap();
        let options = GetOptions { choice, ..into(&to) };
        let plan = checkpoint(&job, 1).plan_get(&options).unwrap();
        let report = checkpoint(&job, 1).get(&options).unwrap();
        assert!(report.troubles.is_empty(), "{:?}", report.troubles);
        assert_eq!(
            (plan.items, plan.files, plan.bytes),
            (report.items, report.files, report.bytes)
        );
        let mut found = snapshot(&to);
        found.remove(&b"."[..]);
        found
    };
    let expected = |names: &[&str]| {
        let item = |name: &&str| (name.as_bytes().to_vec(), whole[name.as_bytes()].clone());
        names.iter().map(item).collect::<Snapshot>()
    };
    let found = choose(&["a/b/", "./d/e/file"]);
    same(&found, &expected(&["a", "a/b", "a/b/c", "a/b/c/file", "d", "d/e", "d/e/file"]), "dirs");
    let found = choose(&["d"]);
    let mut right = expected(&["d", "d/e", "d/e/file", "d/e/second", "d/third"]);
    right.get_mut(&b"d/e/second"[..]).unwrap().same_as = None;
    right.get_mut(&b"d/third"[..]).unwrap().same_as = Some(b"d/e/second".to_vec());
    same(&found, &right, "a hard link");
    let found = choose(&["d/third"]);
    let mut right = expected(&["d", "d/third"]);
    right.get_mut(&b"d/third"[..]).unwrap().same_as = None;
    same(&found, &right, "one link alone");
    let choice = Selection::new([b"a/nothing".to_vec()]).unwrap();
    let options = GetOptions { choice, ..into(&world.directory("none")) };
    let error = checkpoint(&job, 1).get(&options).unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.message().contains("a/nothing"), "{error}");
}

fn rand_name() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static COUNT: AtomicU64 = AtomicU64::new(0);
    COUNT.fetch_add(1, Ordering::Relaxed).to_string()
}

#[test]
fn items_in_the_way_stay_unless_they_are_to_be_replaced() {
    let world = World::new();
    let source = world.directory("source");
    everything(&source);
    let expected = snapshot(&source);
    let job = world.job();
    put_whole(&job, &source);
    let to = world.directory("to");
    for name in ["noise-513", "link", "fifo", "order/long too", "also long"] {
        fs::create_dir_all(to.join(name).parent().unwrap()).unwrap();
        fs::write(to.join(name), "mine").unwrap();
    }
    let before = snapshot(&to);
    let files = checkpoint(&job, 1);
    assert_eq!(files.plan_get(&into(&to)).unwrap().in_the_way.len(), 5);
    let error = files.get(&into(&to)).unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.message().contains("also long"), "{error}");
    same(&snapshot(&to), &before, "nothing was touched");

    // A file may not take the name of a directory either.
    let beside = world.directory("beside");
    fs::write(beside.join("order"), "mine").unwrap();
    let before = snapshot(&beside);
    assert_eq!(files.plan_get(&into(&beside)).unwrap().in_the_way, [b"order"]);
    let error = files.get(&into(&beside)).unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.message().contains("order"), "{error}");
    same(&snapshot(&beside), &before, "nothing was touched here either");

    // Leftovers of a killed get hinder no other.
    for number in 0..40 {
        let name = format!(".outlive-{}-{number}.tmp", std::process::id());
        fs::write(to.join(name), "left").unwrap();
    }
    symlink("/etc", to.join("empty")).unwrap();
    fs::create_dir(to.join("noise-64")).unwrap();
    let options = GetOptions { overwrite: true, ..into(&to) };
    let report = files.get(&options).unwrap();
    assert!(report.troubles.is_empty(), "{:?}", report.troubles);
    fs::remove_dir(to.join("noise-64")).unwrap();
    for number in 0..40 {
        fs::remove_file(to.join(format!(".outlive-{}-{number}.tmp", std::process::id()))).unwrap();
    }
    set_mtime(&to, 1_000_000_007, 8);
    same(&snapshot(&to), &expected, "replaced");
    // A second get over the same files leaves nothing behind.
    assert!(files.get(&options).unwrap().troubles.is_empty());
    same(&snapshot(&to), &expected, "replaced again");

    // A file does not replace a directory, and its further names do not link to that directory.
    fs::remove_file(to.join("long")).unwrap();
    fs::create_dir_all(to.join("long/mine")).unwrap();
    fs::remove_file(to.join("also long")).unwrap();
    fs::write(to.join("also long"), "older").unwrap();
    let report = files.get(&options).unwrap();
    let troubled: Vec<&[u8]> = report.troubles.kept.iter().map(|t| t.path.as_slice()).collect();
    // "also long" is the first name of that file, and was made.
    assert_eq!(troubled, [&b"long"[..]]);
    assert_eq!(report.items, expected.len() as u64 - 1);
    assert!(to.join("long/mine").is_dir());
}

#[test]
fn planted_links_are_never_followed() {
    let world = World::new();
    let source = world.directory("source");
    fs::create_dir_all(source.join("dir/sub")).unwrap();
    fs::write(source.join("dir/sub/file"), "new").unwrap();
    fs::write(source.join("file"), noise(1, 50_000)).unwrap();
    let job = world.job();
    put_whole(&job, &source);
    let outside = world.directory("outside");
    fs::create_dir(outside.join("sub")).unwrap();
    fs::write(outside.join("victim"), "precious").unwrap();
    let before = snapshot(&outside);
    for overwrite in [false, true] {
        for plant in ["dir", "dir/sub", "dir/sub/file", "file"] {
            let to = world.directory(&format!("{overwrite} {}", plant.replace('/', "_")));
            fs::create_dir_all(to.join(plant).parent().unwrap()).unwrap();
            let is_file = plant.ends_with("file");
            let target = if is_file { outside.join("victim") } else { outside.clone() };
            symlink(target, to.join(plant)).unwrap();
            let got = checkpoint(&job, 1).get(&GetOptions { overwrite, ..into(&to) });
            same(&snapshot(&outside), &before, plant);
            if overwrite {
                assert!(got.unwrap().troubles.is_empty());
                same(&snapshot(&to), &snapshot(&source), plant);
            } else {
                assert_eq!(got.unwrap_err().kind(), ErrorKind::Invalid, "{plant}");
            }
        }
    }
    // The directory itself may be a link, since the user gives it.
    let to = world.directory("real");
    symlink("real", world.dir.path().join("by link")).unwrap();
    get_whole(&job, 1, &world.dir.path().join("by link"));
    same(&snapshot(&to), &snapshot(&source), "by link");
}

#[test]
fn patterns_leave_out() {
    let world = World::new();
    let source = world.directory("source");
    let files = [
        "a.tmp",
        "keep.tmp",
        "a.txt",
        "build/x",
        "src/build/y",
        "src/a.o",
        "src/deep/b.o",
        "src/deep/c.o",
        "logs/1.log",
        "logs/2.log",
        "{a,b}",
    ];
    for file in files {
        fs::create_dir_all(source.join(file).parent().unwrap()).unwrap();
        fs::write(source.join(file), file).unwrap();
    }
    fs::write(source.join(".outliveignore"), "\u{FEFF}*.tmp\n!keep.tmp\n/build/\n{a,b}\n").unwrap();
    fs::write(source.join("src/.outliveignore"), "*.o\n").unwrap();
    fs::write(source.join("src/deep/.outliveignore"), "!b.o\n").unwrap();
    fs::write(source.join("logs/.outliveignore"), "*\n!2.log\n").unwrap();
    fs::create_dir(source.join("pool")).unwrap();
    fs::write(source.join("pool/pack"), "x").unwrap();
    let names = |options: &PutOptions| {
        let world = World::new();
        let job = world.job();
        let report = put_with(&job, &source, options).unwrap();
        let (plan, _) = job.plan_put(std::slice::from_ref(&source), options).unwrap();
        assert_eq!(plan.excluded, report.plan.excluded);
        let found = got(&job, 1, world.dir.path());
        let is_file = |name: &[u8]| found[name].kind == FileType::RegularFile;
        let names = found.keys().filter(|name| is_file(name) && !name.ends_with(b"ignore"));
        names.map(|name| String::from_utf8(name.clone()).unwrap()).collect::<Vec<_>>()
    };
    let leave_out = vec![source.join("pool")];
    let options = PutOptions { leave_out, ..PutOptions::default() };
    let found = names(&options);
    let expected = ["a.txt", "keep.tmp", "logs/2.log", "src/build/y", "src/deep/b.o"];
    assert_eq!(found, expected);
    let patterns = [&b"*.txt"[..], b"!*.o", b"src/deep", b"*.log"];
    let patterns = outlive_files::Patterns::new(patterns).unwrap();
    let found = names(&PutOptions { patterns: patterns.clone(), ..options.clone() });
    assert_eq!(found, ["keep.tmp", "src/a.o", "src/build/y"]);
    let options = PutOptions { patterns, no_ignore_files: true, ..options };
    let found = names(&options);
    let expected = ["a.tmp", "build/x", "keep.tmp", "src/a.o", "src/build/y", "{a,b}"];
    assert_eq!(found, expected);
}

/// Returns a random pattern of a few words, in all combinations.
fn random_pattern(random: &mut dyn FnMut(usize) -> usize) -> String {
    const WORDS: [&str; 20] = [
        "a", "b", "ab", "a.x", "*", "?", "**", "*.x", "[ab]", "[!a]", "[^b]", "{a,b}", "\\a", "c",
        "a*", "*b", "\\*", ".x", "[a-c]x", "[]]",
    ];
    let mut pattern = String::new();
    if random(4) == 0 {
        pattern.push('!');
    }
    if random(3) == 0 {
        pattern.push('/');
    }
    for part in 0..1 + random(3) {
        if part > 0 {
            pattern.push('/');
        }
        pattern.push_str(WORDS[random(WORDS.len())]);
        if random(6) == 0 {
            pattern.push_str(WORDS[random(WORDS.len())]);
        }
    }
    if random(4) == 0 {
        pattern.push('/');
    }
    pattern
}

#[test]
fn patterns_are_those_of_git() {
    if Command::new("git").arg("--version").output().is_err() {
        eprintln!("git is not here to compare with, so this test checks nothing");
        return;
    }
    let world = World::new();
    let (source, git) = (world.directory("source"), world.directory("git"));
    let names = ["a", "b", "ab", "a.x", ".x", "{a,b}", "*", "]"];
    for one in names {
        for two in ["a", "b", "a.x"] {
            fs::create_dir_all(source.join(format!("d{one}/{two}"))).unwrap();
            fs::write(source.join(format!("d{one}/{two}/{one}")), "x").unwrap();
            fs::write(source.join(format!("d{one}/{two}.c")), "x").unwrap();
        }
        fs::write(source.join(one), "x").unwrap();
    }
    for dir in ["c", "c/a", "c/a/b", "c/b"] {
        fs::create_dir_all(source.join(dir)).unwrap();
        fs::write(source.join(dir).join("ab"), "x").unwrap();
        fs::write(source.join(dir).join("cx"), "x").unwrap();
    }
    let run = |arguments: &[&str]| {
        let output = Command::new("git")
            .arg(format!("--git-dir={}", git.display()))
            .args(["-c", "core.quotePath=off"])
            .args(arguments)
            .env("GIT_WORK_TREE", &source)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .current_dir(&source)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    run(&["init", "-q"]);
    let rng = SeededRng::new(5);
    let mut random = |limit: usize| {
        let mut bytes = [0; 8];
        rng.fill(&mut bytes);
        (u64::from_le_bytes(bytes) % limit as u64) as usize
    };
    let mut different = 0;
    for _ in 0..150 {
        let patterns: Vec<String> =
            (0..1 + random(4)).map(|_| random_pattern(&mut random)).collect();
        fs::write(source.join(".outliveignore"), patterns.join("\n")).unwrap();
        let below = random_pattern(&mut random);
        fs::write(source.join("c/.outliveignore"), &below).unwrap();
        let theirs = run(&["ls-files", "-z", "-o", "--exclude-per-directory=.outliveignore"]);
        let mut theirs: Vec<&[u8]> =
            theirs.split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
        theirs.sort_unstable();
        let world = World::new();
        let job = world.job();
        put_whole(&job, &source);
        let mut ours = Vec::new();
        checkpoint(&job, 1)
            .in_order(&Selection::default(), 1 << 20, &mut |next| {
                if let InOrder::Item(item) = next
                    && item.kind == ItemKind::File
                {
                    ours.push(item.path.clone());
                }
                Ok(())
            })
            .unwrap();
        ours.sort_unstable();
        if ours != theirs {
            different += 1;
            let show = |names: Vec<&[u8]>| {
                names.iter().map(|name| name.escape_ascii().to_string()).collect::<Vec<_>>()
            };
            let ours_only = ours.iter().map(Vec::as_slice).filter(|name| !theirs.contains(name));
            let theirs_only = theirs.iter().filter(|name| !ours.contains(&name.to_vec())).copied();
            eprintln!(
                "{patterns:?}, in c {below:?}: only ours {:?}, only git's {:?}",
                show(ours_only.collect()),
                show(theirs_only.collect())
            );
        }
    }
    assert_eq!(different, 0);
}
