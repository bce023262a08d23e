//! `diff` checked against a comparison of all bytes, and with trees of files.

use crate::common;

use common::{Program, State, memory_pool, noise, pool_of, small_config};
use outlive_backend::{FaultWorld, MemoryTarget};
use outlive_files::{PutFiles, PutOptions, PutSource};
use outlive_log::MemoryLog;
use outlive_pool::{Environment, Pool};
use outlive_store::diff::{Change, Diff, Differences, FilesDiff, MemoryDiff, Side, diff};
use outlive_store::gc::{GcOptions, Thoroughness, collect};
use outlive_store::{Job, Select};
use outlive_types::{Epoch, ErrorKind, JobName, PAGE_BYTES, PageRange};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

fn chosen(job: &str, epoch: Epoch) -> Side {
    let select = if epoch == 0 { Select::Newest } else { Select::Epoch(epoch) };
    Side { job: JobName::new(job).unwrap(), select, rank: None }
}

fn compared(pool: &Pool, a: (&str, Epoch), b: (&str, Epoch)) -> Diff {
    diff(pool, [&chosen(a.0, a.1), &chosen(b.0, b.1)], true).unwrap()
}

fn memory(diff: Diff) -> MemoryDiff {
    match diff.differences {
        Differences::Memory(memory) => memory,
        Differences::Files(files) => panic!("{files:?}"),
    }
}

fn state() -> State {
    State::from([
        ("big".to_owned(), noise(1, 9 << 20)),
        ("small".to_owned(), noise(2, 9000)),
        ("tiny".to_owned(), vec![3; 10]),
        ("zeros".to_owned(), vec![0; 5 << 20]),
    ])
}

fn write(state: &mut State, name: &str, page: usize, pages: usize, seed: u64) {
    let bytes = state.get_mut(name).unwrap();
    let end = ((page + pages) * PAGE_BYTES).min(bytes.len());
    let part = &mut bytes[page * PAGE_BYTES..end];
    part.copy_from_slice(&noise(seed, part.len()));
}

#[test]
fn pages_that_were_written_are_found() {
    let pool = memory_pool();
    let program = Program::start(&pool, "job");
    let first = state();
    program.save(&first).unwrap();
    let mut second = first.clone();
    write(&mut second, "big", 0, 1, 10);
    write(&mut second, "big", 600, 3, 11);
    write(&mut second, "big", 2303, 1, 12);
    write(&mut second, "zeros", 1000, 2, 13);
    write(&mut second, "small", 1, 1, 14);
    program.save(&second).unwrap();
    program.save(&second).unwrap();

    let same = compared(&pool, ("job", 2), ("job", 0));
    assert!(same.is_same() && same.epochs == [2, 3], "{same:?}");
    let found = memory(compared(&pool, ("job", 1), ("job", 3)));
    assert_eq!((found.same, found.added.len(), found.removed.len()), (1, 0, 0), "{found:?}");
    let ranges = |name: &str| {
        let region = found.changed.iter().find(|r| r.after.name == name).unwrap();
        assert!(!region.is_reshaped());
        region.content.clone().unwrap()
    };
    let range = |first, count| PageRange { first, count };
    let big = ranges("big");
    assert_eq!(big.ranges, [range(0, 1), range(600, 3), range(2303, 1)]);
    assert_eq!((big.pages, big.changed_pages, big.changed_bytes), (2304, 5, 5 * 4096));
    assert_eq!(ranges("zeros").ranges, [range(1000, 2)]);
    let small = ranges("small");
    assert_eq!((small.pages, small.ranges), (3, vec![range(1, 1)]));
    // And back again.
    let back = memory(compared(&pool, ("job", 3), ("job", 1)));
    assert_eq!(back.changed.len(), 3);
}

#[test]
fn regions_come_go_and_grow() {
    let pool = memory_pool();
    let program = Program::start(&pool, "job");
    let first = state();
    program.save(&first).unwrap();
    let mut second = first.clone();
    second.remove("tiny");
    second.insert("new".to_owned(), noise(7, 100));
    // One level more in the page tree; one region leaves the packed stream.
    second.get_mut("zeros").unwrap().resize((2 << 20) * 600, 0);
    second.get_mut("big").unwrap().truncate(1 << 20);
    second.get_mut("small").unwrap().resize(70_000, 1);
    program.save(&second).unwrap();
    let found = memory(compared(&pool, ("job", 1), ("job", 2)));
    let names = |regions: &[outlive_types::RegionDesc]| {
        regions.iter().map(|region| region.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(
        (names(&found.added), names(&found.removed)),
        (vec!["new".into()], vec!["tiny".into()])
    );
    assert!(found.changed.iter().all(|region| region.is_reshaped()));
    let pages: Vec<(&str, Option<(u64, u64)>)> = found
        .changed
        .iter()
        .map(|r| {
            let pages = r.content.as_ref().map(|c| (c.pages, c.changed_pages));
            (r.after.name.as_str(), pages)
        })
        .collect();
    assert_eq!(pages, [("big", Some((256, 0))), ("small", None), ("zeros", Some((1280, 0)))]);
    assert!(!compared(&pool, ("job", 2), ("job", 1)).is_same());
}

#[test]
fn checkpoints_that_cannot_be_compared_are_refused() {
    let world = FaultWorld::new();
    let pool = pool_of(world.target(), world.log());
    let kind = |a: (&str, Epoch), b: (&str, Epoch)| {
        diff(&pool, [&chosen(a.0, a.1), &chosen(b.0, b.1)], false).unwrap_err().kind()
    };
    assert_eq!(kind(("job", 0), ("job", 0)), ErrorKind::Invalid);
    let program = Program::start(&pool, "job");
    let mut state = state();
    program.save(&state).unwrap();
    write(&mut state, "big", 9, 1, 5);
    program.save(&state).unwrap();
    assert_eq!(kind(("job", 1), ("job", 7)), ErrorKind::Invalid);
    assert_eq!(kind(("job", 1), ("nobody", 0)), ErrorKind::Invalid);
    let shard = *world.target().list().unwrap().last().unwrap();
    for shard in world.target().list().unwrap() {
        for page in 1..world.target().length(shard).unwrap() / 4096 {
            world.corrupt(shard, page * 4096 + 9, 4);
        }
    }
    assert_eq!(kind(("job", 1), ("job", 2)), ErrorKind::Damaged, "{shard}");
}

#[test]
fn a_gc_that_moves_everything_meanwhile_does_not_disturb() {
    use common::noise as bytes;
    let pool = memory_pool();
    let program = Program::start(&pool, "job");
    let mut state = State::from([("a".to_owned(), bytes(1, 300_000))]);
    for seed in 0..6 {
        write(&mut state, "a", seed as usize * 9, 1, seed);
        program.save(&state).unwrap();
    }
    drop(program);
    let before = memory(compared(&pool, ("job", 4), ("job", 6)));
    let drop = [(JobName::new("job").unwrap(), [1, 2, 3].into())].into();
    let thoroughness = Thoroughness { unused_max: 0.0, ..Thoroughness::default() };
    collect(&pool, &GcOptions { drop, thoroughness, ..GcOptions::default() }).unwrap();
    assert_eq!(memory(compared(&pool, ("job", 4), ("job", 6))), before);
    assert_eq!(before.changed[0].content.as_ref().unwrap().changed_pages, 2);
}

#[test]
fn paths_are_compared() {
    let mut config = small_config();
    config.format.container_bytes = 256 << 10;
    config.format.pack_bytes = 1 << 20;
    let (target, log) = (Arc::new(MemoryTarget::new()), Arc::new(MemoryLog::new()));
    let pool = Pool::new(config, target, log, Environment::system());
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join("tree").join(name);
    fs::create_dir_all(at("sub")).unwrap();
    fs::write(at("same"), noise(1, 5000)).unwrap();
    fs::write(at("sub/large"), noise(2, 900_000)).unwrap();
    fs::write(at("goes"), b"x").unwrap();
    fs::write(at("mode"), b"y").unwrap();
    let job = Job::open(&pool, "files", Default::default()).unwrap();
    let paths = [dir.path().join("tree")];
    let put = || job.put(PutSource::Paths(&paths), &PutOptions::default()).unwrap().stats.epoch;
    assert_eq!((put(), put()), (1, 2));
    let files = |a: Epoch, b: Epoch| -> FilesDiff {
        match compared(&pool, ("files", a), ("files", b)).differences {
            Differences::Files(files) => files,
            Differences::Memory(memory) => panic!("{memory:?}"),
        }
    };
    assert_eq!(files(1, 2).paths, []);
    let mut large = noise(2, 900_000);
    large[500_000] ^= 1;
    fs::write(at("sub/large"), large).unwrap();
    fs::remove_file(at("goes")).unwrap();
    fs::write(at("comes"), b"xyz").unwrap();
    fs::set_permissions(at("mode"), fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(put(), 3);
    let found = files(2, 3);
    let change = |path: &str| {
        let found = found.paths.iter().find(|p| p.path == path.as_bytes());
        found.unwrap_or_else(|| panic!("{path}: {found:?}")).change.clone()
    };
    assert_eq!(change("goes"), Change::Removed);
    assert_eq!(change("comes"), Change::Added);
    assert_eq!(change("mode"), Change::Changed { content: false, metadata: vec!["mode"] });
    assert!(matches!(change("sub/large"), Change::Changed { content: true, .. }));
    assert!(found.paths.iter().all(|path| path.path != b"same"));

    let program = Program::start(&pool, "memory");
    program.save(&State::from([("a".to_owned(), vec![1; 10])])).unwrap();
    let error = diff(&pool, [&chosen("files", 0), &chosen("memory", 0)], false).unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.message().contains("compared"), "{error}");
}
