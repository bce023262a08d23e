//! Consecutive puts: unchanged files, and shared data.

use crate::common;
use crate::trees;

use common::{Program, State, memory_pool, noise};
use outlive_files::{PutFiles, PutOptions, PutSource};
use outlive_store::gc::{GcOptions, collect};
use outlive_store::{Job, JobOptions, Select};
use outlive_types::{Epoch, ErrorKind, JobName};
use std::collections::BTreeMap;
use std::fs::{self};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::Ordering;
use trees::*;

#[test]
fn only_changed_files_are_read() {
    let world = World::tuned(|tuning| tuning.threads = 2);
    let source = world.directory("source");
    for number in 0..20 {
        fs::write(source.join(format!("f{number}")), noise(number, 200_000)).unwrap();
    }
    fs::write(source.join("big"), noise(99, 3_000_000)).unwrap();
    let job = world.job();
    let first = put_whole(&job, &source);
    assert_eq!((first.plan.read_files, first.plan.kept_files), (21, 0));

    let (plan, _) = job.plan_put(std::slice::from_ref(&source), &PutOptions::default()).unwrap();
    assert_eq!((plan.read_files, plan.kept_files, plan.parent), (0, 21, 1));
    let second = put_whole(&job, &source);
    assert_eq!((second.plan.read_files, second.stats.changed_bytes), (0, 0));
    assert_eq!((second.stats.raw_bytes, second.stats.node_bytes), (0, 0));

    // A byte costs about a chunk, a recipe, and a chunk of the listing.
    edit(&source.join("big"), 1_234_567, b"!");
    let third = put_whole(&job, &source);
    assert_eq!((third.plan.read_files, third.stats.changed_bytes), (1, 3_000_000));
    assert!(third.stats.raw_bytes < 50_000, "{:?}", third.stats);
    let mut longer = fs::read(source.join("big")).unwrap();
    longer.splice(500_000..500_000, *b"inserted");
    fs::write(source.join("big"), longer).unwrap();
    let fourth = put_whole(&job, &source);
    assert!(fourth.stats.raw_bytes < 80_000, "{:?}", fourth.stats);

    // A new name, and changes that concern only the name.
    fs::rename(source.join("f3"), source.join("renamed")).unwrap();
    fs::remove_file(source.join("f4")).unwrap();
    fs::set_permissions(source.join("f5"), fs::Permissions::from_mode(0o600)).unwrap();
    let fifth = put_whole(&job, &source);
    assert_eq!(fifth.plan.read_files, 2);
    assert!(fifth.stats.raw_bytes < 50_000, "{:?}", fifth.stats);
    same(&got(&job, 5, world.dir.path()), &snapshot(&source), "the newest");
    assert_eq!(job.verify(None).unwrap().findings, vec![]);

    // Another handle, as after a restart, knows the same files.
    assert_eq!(put_whole(&world.job(), &source).plan.read_files, 0);
    let reread = PutOptions { reread: true, ..PutOptions::default() };
    let report = put_with(&world.job(), &source, &reread).unwrap();
    assert_eq!((report.plan.read_files, report.stats.raw_bytes), (20, 0));
}

/// An unchanged tree uses no new space, not even for a list of its chunks, whichever job puts it.
#[test]
fn data_that_any_job_has_put_is_not_stored_again() {
    let world = World::tuned(|tuning| tuning.compression = "none".to_owned());
    let source = world.directory("source");
    for number in 0..2000 {
        fs::write(source.join(format!("file-{number}")), noise(number, 700)).unwrap();
    }
    let first = put_whole(&world.job(), &source);
    let listing = first.stats.raw_bytes - 2000 * 700;
    assert!(listing > 200_000, "{:?}", first.stats);
    let other = |name: &str| Job::open(&world.pool, name, JobOptions::default()).unwrap();
    let second = put_whole(&other("second"), &source);
    assert_eq!(second.stats.raw_bytes, 0);
    assert!(second.stats.new_bytes < 20_000, "{:?}", second.stats);
    same(&got(&other("second"), 1, world.dir.path()), &snapshot(&source), "shared");
    // A job with checkpoints of its own also uses chunks of other jobs.
    let small = world.directory("small");
    fs::write(small.join("own"), noise(9999, 5000)).unwrap();
    put_whole(&other("third"), &small);
    for number in 0..2000 {
        fs::copy(source.join(format!("file-{number}")), small.join(format!("f{number}"))).unwrap();
    }
    let third = put_whole(&other("third"), &small);
    assert!(third.stats.raw_bytes < 2 * listing, "{:?}", third.stats);
    same(&got(&other("third"), 2, world.dir.path()), &snapshot(&small), "taken over");
}

#[test]
fn an_edit_that_hides_is_found() {
    let world = World::new();
    let source = world.directory("source");
    let file = source.join("file");
    fs::write(&file, noise(1, 10_000)).unwrap();
    set_mtime(&file, 1000, 5);
    let job = world.job();
    put_whole(&job, &source);
    // The same length and the same mtime: only the ctime differs.
    tick(world.dir.path());
    edit(&file, 77, b"hidden");
    set_mtime(&file, 1000, 5);
    assert_eq!(put_whole(&job, &source).plan.read_files, 1);
    same(&got(&job, 2, world.dir.path()), &snapshot(&source), "ctime");
    // Another file replaces it with the same times: only the inode differs.
    fs::write(source.join("other"), noise(2, 10_000)).unwrap();
    fs::rename(source.join("other"), &file).unwrap();
    set_mtime(&file, 1000, 5);
    assert_eq!(put_whole(&job, &source).plan.read_files, 1);
    same(&got(&job, 3, world.dir.path()), &snapshot(&source), "inode");
}

#[test]
fn a_file_that_changed_just_before_it_was_read_is_read_again() {
    let world = World::new();
    world.clock.ahead_ns.store(0, Ordering::Relaxed);
    let source = world.directory("source");
    fs::write(source.join("file"), noise(1, 10_000)).unwrap();
    let job = world.job();
    put_whole(&job, &source);
    assert_eq!(put_whole(&job, &source).plan.read_files, 1, "within the clock's tick");
    // An hour later it is read once more, since its stored content is doubtful; then no more.
    world.clock.ahead_ns.store(2 * HOUR_NS, Ordering::Relaxed);
    assert_eq!(put_whole(&job, &source).plan.read_files, 1);
    assert_eq!(put_whole(&job, &source).plan.read_files, 0);
    // A clock that is set back makes every file look new.
    world.clock.ahead_ns.store(0, Ordering::Relaxed);
    assert_eq!(put_whole(&job, &source).plan.read_files, 0, "what was settled stays so");
    edit(&source.join("file"), 5, b"again");
    assert_eq!(put_whole(&job, &source).plan.read_files, 1);
    assert_eq!(put_whole(&job, &source).plan.read_files, 1);
}

#[test]
fn equal_contents_are_stored_once() {
    let pool = memory_pool();
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    fs::create_dir_all(&one).unwrap();
    fs::create_dir_all(&two).unwrap();
    let bytes = noise(1, 1_000_000);
    fs::write(one.join("a"), &bytes).unwrap();
    fs::write(one.join("b"), &bytes).unwrap();
    fs::write(two.join("c"), &bytes).unwrap();
    let job = |name: &str| Job::open(&pool, name, Default::default()).unwrap();
    let first = put_whole(&job("one"), &one);
    assert!(first.stats.raw_bytes < 1_010_000, "{:?}", first.stats);
    let second = put_whole(&job("two"), &two);
    assert!(second.stats.raw_bytes < 10_000, "{:?}", second.stats);
    same(&got(&job("two"), 1, dir.path()), &snapshot(&two), "borrowed");
    // The data stays when the job that stored it is dropped.
    let drop = [(JobName::new("one").unwrap(), [1].into())].into();
    collect(&pool, &GcOptions { drop, thoroughness: thorough(), ..Default::default() }).unwrap();
    same(&got(&job("two"), 1, dir.path()), &snapshot(&two), "borrowed, and kept");
}

#[test]
fn files_and_memory_share_a_job() {
    let world = World::new();
    let source = world.directory("source");
    let program = Program::start(&world.pool, "job");
    let mut state = State::from([("a".to_owned(), noise(1, 300_000))]);
    fs::write(source.join("a"), noise(1, 300_000)).unwrap();
    let mut expected = BTreeMap::new();
    for epoch in 1..=10 {
        let seed = 100 + epoch;
        if epoch % 3 == 0 {
            edit(&source.join("a"), epoch * 1000, &noise(seed, 100));
            let report = put_whole(&program.job, &source);
            assert_eq!((report.stats.epoch, report.items), (epoch, 2));
            assert!(report.stats.raw_bytes < 60_000 || epoch == 3, "{:?}", report.stats);
            expected.insert(epoch, Err(snapshot(&source)));
        } else {
            state.get_mut("a").unwrap()[epoch as usize * 4096..][..4096]
                .copy_from_slice(&noise(seed, 4096));
            let stats = program.save(&state).unwrap();
            assert_eq!(stats.epoch, epoch);
            assert!(stats.changed_bytes <= 8192 || epoch == 1, "{stats:?}");
            expected.insert(epoch, Ok(state.clone()));
        }
    }
    let check = |expected: &BTreeMap<Epoch, Result<State, Snapshot>>| {
        let reader = Program::start(&world.pool, "job");
        for (epoch, there) in expected {
            match there {
                Ok(state) => {
                    let (_, restored) = reader.restore(Select::Epoch(*epoch)).unwrap().unwrap();
                    assert!(restored == *state, "epoch {epoch}");
                    let error = reader.job.files(Select::Epoch(*epoch)).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Invalid);
                }
                Err(files) => {
                    same(&got(&reader.job, *epoch, world.dir.path()), files, "files");
                    let error = reader.restore(Select::Epoch(*epoch)).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Invalid);
                }
            }
        }
        // Memory and files each have their own newest checkpoint.
        assert_eq!(reader.restore(Select::Newest).unwrap().unwrap().0, 10);
        assert_eq!(reader.job.files(Select::Newest).unwrap().unwrap().0.epoch(), 9);
        assert_eq!(reader.job.verify(None).unwrap().findings, vec![]);
    };
    check(&expected);
    prune(&world.pool, &[1, 2, 3, 4, 5]).unwrap();
    expected.retain(|epoch, _| *epoch > 5);
    check(&expected);
    // The program continues after the prune.
    assert_eq!(program.save(&state).unwrap().epoch, 11);
}

#[test]
fn streams_and_trees_take_turns() {
    let world = World::new();
    let source = world.directory("source");
    fs::write(source.join("file"), noise(1, 100_000)).unwrap();
    let job = world.job();
    for epoch in [1, 3] {
        put_whole(&job, &source);
        let bytes = noise(1, 100_000);
        let mut from = bytes.as_slice();
        let stream = PutSource::Stream { name: b"file".to_vec(), from: &mut from };
        let report = job.put(stream, &PutOptions::default()).unwrap();
        assert_eq!(report.stats.epoch, epoch + 1);
        assert!(report.stats.raw_bytes < 5000, "{:?}", report.stats);
    }
    same(&got(&job, 3, world.dir.path()), &snapshot(&source), "files");
}
