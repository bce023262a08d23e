//! Trees of files, put and got back: everything that a file system can hold, bit for bit.

mod common;
mod trees;

use common::noise;
use outlive_store::files::{Choice, GetOptions, InOrder, PutOptions, PutSource, TroubleKind};
use outlive_types::ErrorKind;
use rustix::fs::{CWD, FileType, Mode, OFlags, XattrFlags, lsetxattr, mkdirat, mknodat, openat};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use trees::*;

/// One of everything.
fn everything(dir: &Path) {
    let at = |name: &str| dir.join(name);
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    // Content.
    for length in [0, 1, 511, 512, 513, 1023, 1024, 4096, 16 << 10, (16 << 10) + 1, 64 << 10] {
        fs::write(at(&format!("noise-{length}")), noise(length, length as usize)).unwrap();
        fs::write(at(&format!("zeros-{length}")), vec![0; length as usize]).unwrap();
    }
    fs::write(at("long"), noise(1, 3_000_000)).unwrap();
    let mut holey = noise(2, 200_000);
    holey[50_000..150_000].fill(0);
    fs::write(at("zeros within"), holey).unwrap();
    // Names.
    fs::write(dir.join(OsStr::from_bytes(b"not \xFF\xFE UTF-8")), "x").unwrap();
    fs::write(at("new\nline"), "x").unwrap();
    fs::write(at(&"n".repeat(255)), "x").unwrap();
    fs::write(at(" "), "x").unwrap();
    fs::create_dir_all(at("empty/emptier")).unwrap();
    // `.` and `-` stand before `/`.
    for path in ["order", "order.d", "order-d"] {
        fs::create_dir_all(at(path)).unwrap();
        fs::write(at(path).join("file"), path).unwrap();
    }
    let mut deep = openat(CWD, dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..30 {
        let name = "d".repeat(200);
        mkdirat(&deep, name.as_str(), Mode::RWXU).unwrap();
        deep = openat(&deep, name.as_str(), OFlags::RDONLY, Mode::empty()).unwrap();
    }
    let flags = OFlags::CREATE | OFlags::WRONLY;
    let file = openat(&deep, "far down", flags, Mode::RWXU).unwrap();
    rustix::io::write(&file, &noise(3, 1000)).unwrap();
    // Links.
    symlink("long", at("link")).unwrap();
    symlink("/nowhere/at/all", at("dangling")).unwrap();
    symlink("/etc", at("absolute")).unwrap();
    symlink("order/../order", at("order/up")).unwrap();
    symlink(OsStr::from_bytes(&[0xFE; 1000]), at("odd link")).unwrap();
    fs::hard_link(at("long"), at("also long")).unwrap();
    fs::hard_link(at("long"), at("order/long too")).unwrap();
    fs::hard_link(at("noise-0"), at("empty/nothing")).unwrap();
    fs::hard_link(at("link"), at("link again")).unwrap();
    // Other things.
    let owner = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, at("fifo"), FileType::Fifo, owner, 0).unwrap();
    mknodat(CWD, at("socket"), FileType::Socket, owner, 0).unwrap();
    fs::hard_link(at("fifo"), at("fifo too")).unwrap();
    if is_root() {
        let device = rustix::fs::makedev(1, 3);
        mknodat(CWD, at("null"), FileType::CharacterDevice, owner, device).unwrap();
        mknodat(CWD, at("disk"), FileType::BlockDevice, owner, 0x1234_5678).unwrap();
        std::os::unix::fs::lchown(at("link"), Some(12), Some(34)).unwrap();
        std::os::unix::fs::lchown(at("fifo"), Some(1), Some(2)).unwrap();
        std::os::unix::fs::lchown(at("zeros-1"), Some(1234), Some(5678)).unwrap();
    }
    // Attributes, before modes that forbid to set them.
    let set = |path: &Path, name: &str, value: &[u8]| {
        lsetxattr(path, name, value, XattrFlags::empty()).unwrap();
    };
    set(&at("noise-1"), "user.comment", b"\x00\xFFbinary\x00");
    set(&at("noise-1"), "user.empty", b"");
    set(&at("noise-512"), "user.long", &noise(4, 3000));
    set(&at("empty"), "user.of a directory", b"yes");
    if is_root() {
        set(&at("link"), "trusted.of a link", b"1");
        set(&at("zeros-1"), "security.capability", &{
            let mut capability = [0; 20];
            capability[..8].copy_from_slice(&[1, 0, 0, 2, 0, 4, 0, 0]);
            capability
        });
    }
    // Modes.
    for bits in [0o4755, 0o2755, 0o6711, 0o1644, 0o600, 0o777, 0o400] {
        let path = at(&format!("mode-{bits:o}"));
        fs::write(&path, "x").unwrap();
        mode(&path, bits);
        let path = at(&format!("dir-{bits:o}"));
        fs::create_dir(&path).unwrap();
        fs::write(path.join("inside"), "x").unwrap();
        mode(&path, bits | if is_root() { 0 } else { 0o700 });
    }
    if is_root() {
        fs::write(at("mode-0"), "x").unwrap();
        mode(&at("mode-0"), 0);
        mode(&at("empty/emptier"), 0);
    }
    // Holes.
    sparse(&at("all hole"), 1_000_000, &[]);
    sparse(&at("small hole"), 100, &[]);
    sparse(&at("1 TiB"), 1 << 40, &[(1 << 39, b"in the middle"), ((1 << 40) - 1, b"z")]);
    sparse(&at("zeros and holes"), 1 << 20, &[(65536, &[0; 8192]), (500_000, &noise(5, 9000))]);
    sparse(&at("ends in data"), 300_001, &[(299_000, &noise(6, 1001))]);
    // Times, last of all.
    set_mtime(&at("noise-1"), -1, 999_999_999);
    set_mtime(&at("noise-511"), -2_000_000_000, 1);
    set_mtime(&at("long"), 5_000_000_000, 123_456_789);
    set_mtime(&at("link"), 1000, 1);
    set_mtime(&at("fifo"), 7, 0);
    set_mtime(&at("empty/emptier"), 86400, 5);
    set_mtime(&at("empty"), 0, 0);
    set_mtime(dir, 1_000_000_007, 8);
}

#[test]
fn everything_comes_back_as_it_was() {
    for (threads, compression) in [(1, "none"), (3, "auto"), (4, "zstd")] {
        let world = World::tuned(|tuning| {
            tuning.threads = threads;
            tuning.compression = compression.to_owned();
        });
        let source = world.directory("source");
        everything(&source);
        let expected = snapshot(&source);
        let job = world.job();
        let report = put_whole(&job, &source);
        assert_eq!(report.items, expected.len() as u64);
        assert!(report.stats.new_bytes < 10 << 20, "holes are not stored");
        same(&got(&job, 1, world.dir.path()), &expected, compression);
        // Once more, now taken over; and then read again.
        let report = put_whole(&job, &source);
        // One has a time in the future, which tells nothing.
        assert_eq!((report.plan.read_files, report.stats.raw_bytes), (1, 0));
        same(&got(&job, 2, world.dir.path()), &expected, "taken over");
        let options = PutOptions { reread: true, ..PutOptions::default() };
        let report = put_with(&job, &source, &options).unwrap();
        assert_eq!((report.plan.kept_files, report.stats.raw_bytes), (0, 0));
        same(&got(&job, 3, world.dir.path()), &expected, "read again");
        assert_eq!(job.verify(None).unwrap().findings, vec![]);
    }
}

#[test]
fn lengths_around_every_cut_come_back() {
    let world = World::tuned(|tuning| tuning.threads = 2);
    let source = world.directory("source");
    let part = 64 << 20;
    let bytes = noise(9, part + 4097);
    for length in [1 << 20, (1 << 20) + 1, (1 << 20) - 1, part - 1, part, part + 1, part + 4097] {
        fs::write(source.join(length.to_string()), &bytes[..length]).unwrap();
    }
    // More pieces than an item holds, and more than one part of data between holes.
    let middle = 3 << 30;
    sparse(&source.join("sparse"), 1 << 33, &[(5 << 20, &bytes[..70 << 19]), (middle, &bytes)]);
    let expected = snapshot(&source);
    let job = world.job();
    let report = put_whole(&job, &source);
    // All begin alike.
    assert!(report.stats.raw_bytes < (part + (8 << 20)) as u64, "{:?}", report.stats);
    same(&got(&job, 1, world.dir.path()), &expected, "lengths");
}

#[test]
fn several_paths_keep_their_names() {
    let world = World::new();
    let (one, two) = (world.directory("one"), world.directory("two"));
    fs::write(one.join("file"), "1").unwrap();
    fs::hard_link(one.join("file"), two.join("same")).unwrap();
    fs::write(world.dir.path().join("alone"), noise(1, 1000)).unwrap();
    fs::write(world.directory("three").join("file"), "3").unwrap();
    symlink("three", world.dir.path().join("by link")).unwrap();
    let paths = ["two", "alone", "one", "by link"].map(|name| world.dir.path().join(name));
    let job = world.job();
    let report = job.put(PutSource::Paths(&paths), &PutOptions::default()).unwrap();
    assert!(report.troubles.is_empty());
    let found = got(&job, 1, world.dir.path());
    let names: Vec<&[u8]> = found.keys().map(Vec::as_slice).collect();
    assert_eq!(
        names,
        [
            &b"."[..],
            b"alone",
            b"by link",
            b"by link/file",
            b"one",
            b"one/file",
            b"two",
            b"two/same"
        ]
    );
    assert_eq!(found[&b"two/same"[..]].same_as.as_deref(), Some(&b"one/file"[..]));

    let twice = [one.clone(), world.dir.path().join("two/../one")];
    let error = job.put(PutSource::Paths(&twice), &PutOptions::default()).unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.message().contains("one"), "{error}");
    let error = put(&job, &world.dir.path().join("missing")).unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.message().contains("missing"), "{error}");
}

#[test]
fn streams_come_back() {
    let world = World::tuned(|tuning| tuning.threads = 2);
    let job = world.job();
    let mut last = Vec::new();
    for (epoch, length) in (1..).zip([0, 1, 512, 513, 100_000, 5_000_000]) {
        let mut bytes = noise(length as u64, length);
        if length > 200_000 {
            bytes[70_000..3_000_000].fill(0);
        }
        let mut from = bytes.as_slice();
        let source = PutSource::Stream { name: b"stdin".to_vec(), from: &mut from };
        let report = job.put(source, &PutOptions::default()).unwrap();
        assert_eq!((report.items, report.stats.state_bytes), (1, length as u64));
        let mut back = Vec::new();
        let mut items = 0;
        checkpoint(&job, epoch)
            .in_order(&Choice::default(), 1 << 20, &mut |next| {
                match next {
                    InOrder::Item(item) => {
                        assert_eq!((&item.path[..], item.bytes), (&b"stdin"[..], length as u64));
                        items += 1;
                    }
                    InOrder::Bytes(more) => back.extend_from_slice(more),
                    InOrder::Zeros(count) => back.resize(back.len() + count as usize, 0),
                }
                Ok(())
            })
            .unwrap();
        assert!(back == bytes && items == 1, "{length}");
        let to = world.directory(&format!("to-{length}"));
        get_whole(&job, epoch, &to);
        assert!(fs::read(to.join("stdin")).unwrap() == bytes);
        last = bytes;
    }
    // An insertion costs about a chunk.
    last.splice(10_000..10_000, noise(77, 100));
    let mut from = last.as_slice();
    let source = PutSource::Stream { name: b"stdin".to_vec(), from: &mut from };
    let report = job.put(source, &PutOptions::default()).unwrap();
    assert!(report.stats.raw_bytes < 100_000, "{:?}", report.stats);
    for name in ["", ".", "..", "a/b", "a\0"] {
        let mut from = &b""[..];
        let source = PutSource::Stream { name: name.as_bytes().to_vec(), from: &mut from };
        let error = job.put(source, &PutOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{name:?}");
    }
}

#[test]
fn in_order_gives_everything_once_and_in_order() {
    let world = World::tuned(|tuning| tuning.threads = 2);
    let source = world.directory("source");
    for number in 0..50 {
        let dir = source.join(format!("d{}", number % 7));
        fs::create_dir_all(&dir).unwrap();
        let bytes = noise(number % 20, (number * number * 100) as usize);
        fs::write(dir.join(number.to_string()), bytes).unwrap();
    }
    sparse(&source.join("hole"), 1 << 30, &[(1 << 29, b"x")]);
    let job = world.job();
    put_whole(&job, &source);
    let mut files: BTreeMap<Vec<u8>, (u64, u64)> = BTreeMap::new();
    let mut paths = Vec::new();
    checkpoint(&job, 1)
        .in_order(&Choice::default(), 1 << 20, &mut |next| {
            if let InOrder::Item(item) = next {
                paths.push(item.path.clone());
                files.insert(item.path.clone(), (item.bytes, 0));
                return Ok(());
            }
            let (_, there) = files.get_mut(paths.last().unwrap()).unwrap();
            *there += match next {
                InOrder::Bytes(bytes) => bytes.len() as u64,
                InOrder::Zeros(bytes) => bytes,
                InOrder::Item(_) => 0,
            };
            Ok(())
        })
        .unwrap();
    assert!(files.values().all(|(expected, there)| expected == there));
    assert!(paths.is_sorted() && paths.len() == snapshot(&source).len());
    // Whoever listens may stop.
    let mut left = 5;
    let error = checkpoint(&job, 1).in_order(&Choice::default(), 1 << 20, &mut |_| {
        left -= 1;
        if left == 0 { Err(outlive_types::Error::invalid("enough")) } else { Ok(()) }
    });
    assert_eq!((left, error.unwrap_err().message()), (0, "enough"));
}

#[test]
fn some_paths_of_it() {
    let world = World::new();
    let source = world.directory("source");
    for path in ["a/b/c", "a/x", "d/e"] {
        fs::create_dir_all(source.join(path)).unwrap();
        fs::write(source.join(path).join("file"), noise(path.len() as u64, 2000)).unwrap();
    }
    // The first name is not chosen; two others are, one of them in a directory that comes later.
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
        let choice = Choice::new(paths).unwrap();
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
    let choice = Choice::new([b"a/nothing".to_vec()]).unwrap();
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
fn what_is_in_the_way_stays_unless_it_is_to_be_replaced() {
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

    // What a get has left that was killed is in nobody's way.
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
    // Once more over itself: nothing is left behind.
    assert!(files.get(&options).unwrap().troubles.is_empty());
    same(&snapshot(&to), &expected, "replaced again");

    // A directory does not give way to a file, nor a file's further names to that directory.
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
    // The directory itself may be a link: the user has named it.
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
    let patterns = outlive_store::files::Patterns::new(patterns).unwrap();
    let found = names(&PutOptions { patterns: patterns.clone(), ..options.clone() });
    assert_eq!(found, ["keep.tmp", "src/a.o", "src/build/y"]);
    let options = PutOptions { patterns, no_ignore_files: true, ..options };
    let found = names(&options);
    let expected = ["a.tmp", "build/x", "keep.tmp", "src/a.o", "src/build/y", "{a,b}"];
    assert_eq!(found, expected);
}

#[test]
fn a_put_and_a_get_that_are_stopped_leave_nothing() {
    let world = World::new();
    let source = world.directory("source");
    fs::write(source.join("file"), noise(1, 300_000)).unwrap();
    let job = world.job();
    let stop = Arc::new(AtomicBool::new(true));
    let options = PutOptions { stop: stop.clone(), ..PutOptions::default() };
    assert_eq!(put_with(&job, &source, &options).unwrap_err().kind(), ErrorKind::Retry);
    assert_eq!(job.epochs().unwrap(), vec![]);
    put_whole(&job, &source);
    let to = world.directory("to");
    let options = GetOptions { stop, ..into(&to) };
    let error = checkpoint(&job, 1).get(&options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry);
    assert_eq!(fs::read_dir(&to).unwrap().count(), 0);
}

#[test]
fn what_the_kernel_makes_up_is_read_whole() {
    let world = World::new();
    let job = world.job();
    let report = put(&job, Path::new("/proc/self/limits")).unwrap();
    let to = world.directory("to");
    checkpoint(&job, 1).get(&into(&to)).unwrap();
    assert_eq!(report.troubles.count(TroubleKind::Unreadable), 0);
    let found = fs::read_to_string(to.join("limits")).unwrap();
    assert!(found.len() > 512 && found.contains("Max open files"), "{} bytes", found.len());
}
