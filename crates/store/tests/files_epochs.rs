//! Puts one after the other: what need not be read, what is shared, and what stays when others go.

mod common;
mod stepped;
mod trees;

use common::{Program, State, memory_pool, noise};
use outlive_pool::Pool;
use outlive_store::files::{PutOptions, PutSource};
use outlive_store::gc::{GcOptions, GcReport, Thoroughness, collect};
use outlive_store::{Job, Select};
use outlive_target::{ManifestLog, MemoryLog, MemoryTarget, Target};
use outlive_types::{Epoch, ErrorKind, JobName, Rng, SeededRng};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stepped::{SteppedLog, SteppedTarget, Steps};
use trees::*;

fn edit(path: &Path, offset: u64, bytes: &[u8]) {
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
}

#[test]
fn only_what_has_changed_is_read() {
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

    // A new name, and what only concerns the name.
    fs::rename(source.join("f3"), source.join("renamed")).unwrap();
    fs::remove_file(source.join("f4")).unwrap();
    fs::set_permissions(source.join("f5"), fs::Permissions::from_mode(0o600)).unwrap();
    let fifth = put_whole(&job, &source);
    assert_eq!(fifth.plan.read_files, 2);
    assert!(fifth.stats.raw_bytes < 50_000, "{:?}", fifth.stats);
    same(&got(&job, 5, world.dir.path()), &snapshot(&source), "the newest");
    assert_eq!(job.verify(None).unwrap().findings, vec![]);

    // Another handle, as after a restart, knows the same.
    assert_eq!(put_whole(&world.job(), &source).plan.read_files, 0);
    let reread = PutOptions { reread: true, ..PutOptions::default() };
    let report = put_with(&world.job(), &source, &reread).unwrap();
    assert_eq!((report.plan.read_files, report.stats.raw_bytes), (20, 0));
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
    // The same length and the same mtime: its ctime tells.
    std::thread::sleep(std::time::Duration::from_millis(20));
    edit(&file, 77, b"hidden");
    set_mtime(&file, 1000, 5);
    assert_eq!(put_whole(&job, &source).plan.read_files, 1);
    same(&got(&job, 2, world.dir.path()), &snapshot(&source), "ctime");
    // A file put in its place with the same times: its inode tells.
    fs::write(source.join("other"), noise(2, 10_000)).unwrap();
    fs::rename(source.join("other"), &file).unwrap();
    set_mtime(&file, 1000, 5);
    assert_eq!(put_whole(&job, &source).plan.read_files, 1);
    same(&got(&job, 3, world.dir.path()), &snapshot(&source), "inode");
}

#[test]
fn what_changed_just_before_it_was_read_is_read_again() {
    let world = World::new();
    world.clock.ahead_ns.store(0, Ordering::Relaxed);
    let source = world.directory("source");
    fs::write(source.join("file"), noise(1, 10_000)).unwrap();
    let job = world.job();
    put_whole(&job, &source);
    assert_eq!(put_whole(&job, &source).plan.read_files, 1, "within the clock's tick");
    // An hour later it is read once more, since what was kept of it is doubtful; then no more.
    world.clock.ahead_ns.store(2 * HOUR_NS, Ordering::Relaxed);
    assert_eq!(put_whole(&job, &source).plan.read_files, 1);
    assert_eq!(put_whole(&job, &source).plan.read_files, 0);
    // A clock that was set back makes everything look new.
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
    // And it stays when the job that had it goes.
    let drop = [(JobName::new("one").unwrap(), [1].into())].into();
    collect(&pool, &GcOptions { drop, thoroughness: thorough(), ..Default::default() }).unwrap();
    same(&got(&job("two"), 1, dir.path()), &snapshot(&two), "borrowed, and kept");
}

fn thorough() -> Thoroughness {
    Thoroughness { unused_max: 0.0, collect: true }
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
        // Each kind has its own newest.
        assert_eq!(reader.restore(Select::Newest).unwrap().unwrap().0, 10);
        assert_eq!(reader.job.files(Select::Newest).unwrap().unwrap().0.epoch(), 9);
        assert_eq!(reader.job.verify(None).unwrap().findings, vec![]);
    };
    check(&expected);
    prune(&world.pool, &[1, 2, 3, 4, 5]).unwrap();
    expected.retain(|epoch, _| *epoch > 5);
    check(&expected);
    // The program goes on after the prune.
    assert_eq!(program.save(&state).unwrap().epoch, 11);
}

fn prune(pool: &Pool, epochs: &[Epoch]) -> outlive_types::Result<GcReport> {
    let drop = [(JobName::new("job").unwrap(), epochs.iter().copied().collect())].into();
    collect(pool, &GcOptions { drop, thoroughness: thorough(), ..GcOptions::default() })
}

fn stored_bytes(target: &dyn Target) -> u64 {
    target.list().unwrap().into_iter().map(|shard| target.length(shard).unwrap()).sum()
}

#[test]
fn what_is_kept_stays_whole_and_space_goes_down() {
    let target: Arc<dyn Target> = Arc::new(MemoryTarget::new());
    let world = World::on(target.clone(), Arc::new(MemoryLog::new()), |tuning| {
        tuning.threads = 2;
    });
    let source = world.directory("source");
    let job = world.job();
    let mut expected = BTreeMap::new();
    for epoch in 1..=6 {
        fs::write(source.join("new"), noise(epoch, 400_000)).unwrap();
        fs::write(source.join(format!("stays {epoch}")), noise(100 + epoch, 150_000)).unwrap();
        // More pieces than an item holds.
        fs::write(source.join("long"), noise(1000 + epoch / 3, 1_500_000)).unwrap();
        put_whole(&job, &source);
        expected.insert(epoch, snapshot(&source));
    }
    let mut before = stored_bytes(&*target);
    for drop in [&[1][..], &[2, 4], &[3, 5]] {
        prune(&world.pool, drop).unwrap();
        // The session has to say something before condemned packs go.
        put_whole(&job, &source);
        let epoch = job.epochs().unwrap().last().unwrap().epoch;
        expected.insert(epoch, snapshot(&source));
        prune(&world.pool, &[]).unwrap();
        expected.retain(|epoch, _| !drop.contains(epoch));
        for (epoch, files) in &expected {
            same(&got(&job, *epoch, world.dir.path()), files, "kept");
        }
        let after = stored_bytes(&*target);
        assert!(after + 300_000 < before, "{before} -> {after}");
        before = after;
    }
    assert_eq!(job.verify(None).unwrap().findings, vec![]);
}

/// Files with recipes and without, put twice, in a world without any open session.
fn past(target: &Arc<dyn Target>, log: &Arc<dyn ManifestLog>, sources: &[PathBuf]) {
    let world = World::on(target.clone(), log.clone(), |_| {});
    for source in &sources[..2] {
        put_whole(&world.job(), source);
    }
}

#[test]
fn a_gc_at_any_step_of_a_put_hurts_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let sources: Vec<PathBuf> = (0..3).map(|number| dir.path().join(number.to_string())).collect();
    for (number, source) in (0u64..).zip(&sources) {
        fs::create_dir(source).unwrap();
        fs::write(source.join("changing"), noise(number, 120_000)).unwrap();
        fs::write(source.join("moving"), noise(number / 2, 90_000)).unwrap();
        fs::write(source.join("long"), [noise(5, 500_000), noise(number, 1000)].concat()).unwrap();
        symlink("long", source.join("link")).unwrap();
    }
    let mut number = 0;
    loop {
        let (target, log): (Arc<dyn Target>, Arc<dyn ManifestLog>) =
            (Arc::new(MemoryTarget::new()), Arc::new(MemoryLog::new()));
        past(&target, &log, &sources);
        let steps = Steps::default();
        let stepped_target = Arc::new(SteppedTarget(target.clone(), steps.clone()));
        let stepped_log = Arc::new(SteppedLog(log.clone(), steps.clone()));
        let world = World::on(stepped_target, stepped_log, |_| {});
        let job = world.job();
        let other = World::on(target.clone(), log.clone(), |_| {}).pool;
        let done = Arc::new(AtomicBool::new(false));
        let hook_done = done.clone();
        // In every other run the parent goes, too.
        let drop: &[Epoch] = if number % 2 == 0 { &[1] } else { &[1, 2] };
        steps.hook(move |at, _| {
            if at == number && !hook_done.swap(true, Ordering::SeqCst) {
                // Once the put has a session, the newest cannot go.
                prune(&other, drop).or_else(|_| prune(&other, &[1])).unwrap();
                collect(&other, &GcOptions { thoroughness: thorough(), ..Default::default() })
                    .unwrap();
            }
        });
        let what = format!("step {number}");
        let outcome = put(&job, &sources[2]);
        let epoch = match outcome {
            Ok(report) => {
                assert!(report.troubles.is_empty(), "{what}: {:?}", report.troubles);
                report.stats.epoch
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Retry, "{what}: {error}");
                assert_eq!(drop.len(), 2, "{what}: {error}");
                put_whole(&job, &sources[2]).stats.epoch
            }
        };
        if !done.load(Ordering::SeqCst) {
            assert!(number > 20, "there are only {number} steps");
            return;
        }
        let clean = World::on(target, log, |_| {});
        let reader = clean.job();
        same(&got(&reader, epoch, dir.path()), &snapshot(&sources[2]), &what);
        if drop.len() == 1 {
            same(&got(&reader, 2, dir.path()), &snapshot(&sources[1]), &what);
        }
        assert_eq!(reader.verify(None).unwrap().findings, vec![], "{what}");
        number += 1;
    }
}

/// Something done to a tree.
#[derive(Clone, Debug)]
enum Act {
    Write { path: usize, seed: u64, bytes: usize },
    Edit { path: usize, at: usize, seed: u64 },
    Cut { path: usize, to: usize },
    Hole { path: usize, at: u64 },
    Remove { path: usize },
    Rename { path: usize, to: usize },
    Link { path: usize, to: usize },
    Symlink { path: usize, to: usize },
    Mode { path: usize, mode: u32 },
    Touch { path: usize, s: i64 },
}

const PATHS: [&str; 10] =
    ["a", "a.b", "a-", "d/a", "d/b", "d/e/f/g", "d/e/h", "d.x/a", "z/y/x", "z/é\u{1F600}"];

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let path = || 0..PATHS.len();
    let bytes = prop_oneof![0..600usize, 0..40_000usize, 900_000..1_300_000usize];
    let act = prop_oneof![
        5 => (path(), 0..50u64, bytes).prop_map(|(path, seed, bytes)| Act::Write { path, seed, bytes }),
        3 => (path(), any::<usize>(), any::<u64>())
            .prop_map(|(path, at, seed)| Act::Edit { path, at, seed }),
        1 => (path(), any::<usize>()).prop_map(|(path, to)| Act::Cut { path, to }),
        1 => (path(), 0..5_000_000u64).prop_map(|(path, at)| Act::Hole { path, at }),
        1 => path().prop_map(|path| Act::Remove { path }),
        1 => (path(), path()).prop_map(|(path, to)| Act::Rename { path, to }),
        2 => (path(), path()).prop_map(|(path, to)| Act::Link { path, to }),
        1 => (path(), path()).prop_map(|(path, to)| Act::Symlink { path, to }),
        1 => (path(), 0..0o10000u32).prop_map(|(path, mode)| Act::Mode { path, mode }),
        1 => (path(), any::<i32>()).prop_map(|(path, s)| Act::Touch { path, s: s.into() }),
    ];
    prop::collection::vec(act, 0..8)
}

/// Does it, if it can be done.
fn act(dir: &Path, act: &Act) -> std::io::Result<()> {
    let at = |path: &usize| dir.join(PATHS[*path]);
    let is_file = |path: &Path| fs::symlink_metadata(path).is_ok_and(|there| there.is_file());
    let parent = |path: &Path| fs::create_dir_all(path.parent().unwrap());
    match act {
        Act::Write { path, seed, bytes } => {
            let path = at(path);
            let _ = fs::remove_file(&path);
            parent(&path)?;
            fs::write(path, noise(*seed, *bytes))
        }
        Act::Edit { path, at: offset, seed } if is_file(&at(path)) => {
            let length = fs::metadata(at(path))?.len() as usize;
            edit(&at(path), (offset % (length + 1)) as u64, &noise(*seed, 10));
            Ok(())
        }
        Act::Cut { path, to } if is_file(&at(path)) => {
            let length = fs::metadata(at(path))?.len() as usize;
            OpenOptions::new().write(true).open(at(path))?.set_len((to % (length + 1)) as u64)
        }
        Act::Hole { path, at: offset } if is_file(&at(path)) => {
            edit(&at(path), *offset, b"behind a hole");
            Ok(())
        }
        Act::Remove { path } => fs::remove_file(at(path)),
        Act::Rename { path, to } => {
            parent(&at(to))?;
            fs::rename(at(path), at(to))
        }
        Act::Link { path, to } => {
            parent(&at(to))?;
            fs::hard_link(at(path), at(to))
        }
        Act::Symlink { path, to } => {
            parent(&at(path))?;
            symlink(PATHS[*to], at(path))
        }
        Act::Mode { path, mode } if is_file(&at(path)) => {
            // Whoever runs this must still be able to read it.
            fs::set_permissions(at(path), fs::Permissions::from_mode(mode | 0o600))
        }
        Act::Touch { path, s } if fs::symlink_metadata(at(path)).is_ok() => {
            set_mtime(&at(path), *s, i64::from(s.unsigned_abs() as u32 % 1_000_000_000));
            Ok(())
        }
        _ => Ok(()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 24,
        failure_persistence: None,
        max_shrink_iters: 200,
        ..ProptestConfig::default()
    })]

    /// Each epoch comes back as the tree was then. The clock is right, so files are unsettled, or
    /// ahead, so all edits must be found by what `stat` tells.
    #[test]
    fn every_epoch_comes_back(
        edits in prop::collection::vec(acts(), 1..8),
        threads in 1..4u32,
        is_ahead: bool,
        seed: u64,
    ) {
        let world = World::tuned(|tuning| tuning.threads = threads);
        if !is_ahead {
            world.clock.ahead_ns.store(0, Ordering::Relaxed);
        }
        let source = world.directory("source");
        let mut job = world.job();
        let mut expected = BTreeMap::new();
        let rng = SeededRng::new(seed);
        for acts in &edits {
            for next in acts {
                // Many cannot be done; then nothing was.
                let _ = act(&source, next);
            }
            let report = put_whole(&job, &source);
            expected.insert(report.stats.epoch, snapshot(&source));
            let mut chance = [0];
            rng.fill(&mut chance);
            match chance[0] % 4 {
                0 => job = world.job(),
                1 => {
                    // The newest stays while its program may go on.
                    let older = expected.len() - 1;
                    let drop: Vec<Epoch> =
                        expected.keys().copied().take(older).step_by(2).collect();
                    prune(&world.pool, &drop).unwrap();
                    expected.retain(|epoch, _| !drop.contains(epoch));
                }
                _ => {}
            }
            // Edits within one tick of the file system's clock cannot be told apart by anybody.
            if is_ahead {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
        for (epoch, files) in &expected {
            same(&got(&job, *epoch, world.dir.path()), files, &format!("epoch {epoch}"));
        }
        prop_assert_eq!(job.verify(None).unwrap().findings, vec![]);
    }
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
