//! Packs that vanish under a running program: its warning, its next save, and the times of its
//! files, which stay fresh where other programs delete by age.

use crate::common;

use common::{Program, State, Warnings, changed, noise, small_config};
use outlive_backend::{FaultWorld, ShardName, Target};
use outlive_dir::{DirectoryOptions, DirectoryTarget};
use outlive_pool::{Environment, Pool};
use outlive_store::Select;
use outlive_types::{ErrorKind, FixedClock, PackId};
use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

fn state(seed: u64) -> State {
    State::from([("a".to_owned(), noise(seed, 300_000)), ("b".to_owned(), vec![seed as u8; 50])])
}

/// A pool in a world of its own, and its warnings. With a clock that stands still, a check is due
/// behind each commit.
fn world() -> (FaultWorld, Pool, Arc<Warnings>) {
    let (world, warnings) = (FaultWorld::new(), Arc::new(Warnings::default()));
    let (observer, clock) = (warnings.clone(), Arc::new(FixedClock::default()));
    let env = Environment { observer, clock, ..Environment::system() };
    (world.clone(), Pool::new(small_config(), world.target(), world.log(), env), warnings)
}

fn delete(pool: &Pool, packs: &[PackId]) {
    packs.iter().for_each(|pack| pool.delete_pack(*pack).unwrap());
}

fn said(warnings: &Warnings) -> Vec<String> {
    warnings.0.lock().unwrap().clone()
}

fn is_suspect(program: &Program, epoch: u64) -> bool {
    let found = program.job.epochs().unwrap().into_iter().find(|info| info.epoch == epoch);
    found.unwrap().manifest.remarks.suspect
}

/// Checks that the newest checkpoint has this epoch and state.
#[track_caller]
fn check(pool: &Pool, job: &str, epoch: u64, state: &State) {
    let found = Program::start(pool, job).restore(Select::Newest).unwrap().unwrap();
    assert!(found.0 == epoch && found.1 == *state, "{} instead of {epoch}", found.0);
}

#[test]
fn the_next_save_stores_vanished_data_anew() {
    let (_world, pool, warnings) = world();
    let program = Program::start(&pool, "job");
    let mut now = state(1);
    program.save(&now).unwrap();
    let first = pool.packs().unwrap();
    for step in 0..3 {
        now = changed(now, step, step as u64);
        program.save(&now).unwrap();
    }
    assert_eq!(said(&warnings), Vec::<String>::new());
    delete(&pool, &first);
    now = changed(now, 7, 7);
    let epoch = program.save(&now).unwrap().epoch;
    let told = said(&warnings);
    assert_eq!(told.len(), 1, "{told:?}");
    for words in
        [&format!("checkpoint {epoch} of job job"), "cannot be restored", "freshen_every_s"]
    {
        assert!(told[0].contains(words), "{told:?}");
    }
    assert!(is_suspect(&program, epoch) && !is_suspect(&program, epoch - 1));
    // The next save needs no data that is gone, and neither do those after it.
    for step in 0..2 {
        now = changed(now, 9, 900 + step);
        let stats = program.save(&now).unwrap();
        assert_eq!(stats.new_bytes > 300_000, step == 0, "{stats:?}");
        check(&pool, "job", stats.epoch, &now);
    }
    assert_eq!(said(&warnings).len(), 1, "{:?}", said(&warnings));
}

/// A save that must read data that is gone reports it; the next one needs none of it.
#[test]
fn a_save_that_needs_vanished_data_fails_and_the_next_one_does_not() {
    let (world, pool, warnings) = world();
    let program = Program::start(&pool, "job");
    let mut now = state(1);
    let mut packs = Vec::new();
    // Eight saves, so that the next one merges their segments.
    for step in 0..8 {
        now = changed(now, step, step as u64);
        program.save(&now).unwrap();
        packs = pool.packs().unwrap();
    }
    // The check of the last commit has passed.
    delete(&pool, &packs[..packs.len() / 2]);
    let _ = world;
    let mut failures = 0;
    let mut epoch = 0;
    for step in 0..4 {
        now = changed(now, 20, 100 + step);
        match program.save(&now) {
            Ok(stats) => epoch = stats.epoch,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
                assert!(error.message().contains("stores everything again"), "{error}");
                failures += 1;
            }
        }
    }
    assert!(failures <= 1, "{failures}");
    assert!(said(&warnings).iter().any(|said| said.contains("stores everything again")));
    check(&pool, "job", epoch, &now);
}

/// Packs that a checkpoint names and does not need are gone: the checkpoint does not count as lost.
#[test]
fn a_checkpoint_that_needs_no_vanished_pack_is_not_called_lost() {
    let (_world, pool, warnings) = world();
    let program = Program::start(&pool, "job");
    // Merged segments list the packs of the first saves, which nothing needs after the last one.
    for step in 0..9 {
        program.save(&changed(state(1), step, step as u64)).unwrap();
    }
    let first = pool.packs().unwrap();
    let epoch = program.save(&state(2)).unwrap().epoch;
    check(&pool, "job", epoch, &state(2));
    let segments = program.job.epochs().unwrap().pop().unwrap().manifest;
    let segments = segments.images.one().unwrap().segments.clone();
    let holds = |pack: &&PackId| segments.iter().any(|segment| segment.pack == **pack);
    let unneeded: Vec<PackId> = first.iter().filter(|pack| !holds(pack)).copied().collect();
    assert!(!unneeded.is_empty());
    delete(&pool, &unneeded);
    let now = changed(state(2), 3, 3);
    let epoch = program.save(&now).unwrap().epoch;
    let told = said(&warnings);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("it needs nothing of them"), "{told:?}");
    assert!(!is_suspect(&program, epoch));
    check(&pool, "job", epoch, &now);
}

/// Another job has the same data, in packs that are gone, too.
#[test]
fn vanished_data_is_not_taken_from_the_index() {
    let (_world, pool, warnings) = world();
    let other = Program::start(&pool, "other");
    other.save(&state(1)).unwrap();
    let first = pool.packs().unwrap();
    let program = Program::start(&pool, "job");
    let mut now = changed(state(1), 3, 3);
    program.save(&now).unwrap();
    delete(&pool, &first);
    now = changed(now, 8, 100);
    program.save(&now).unwrap();
    assert!(said(&warnings).iter().any(|said| said.contains("cannot be restored")));
    let epoch = program.save(&now).unwrap().epoch;
    check(&pool, "job", epoch, &now);
}

/// A target that does not respond has lost nothing.
#[test]
fn errors_of_a_check_are_no_loss() {
    let (world, pool, warnings) = world();
    let program = Program::start(&pool, "job");
    program.save(&state(1)).unwrap();
    world.count_reads(true);
    world.fail_when(|_, name| name.starts_with("length").then_some(ErrorKind::Retry));
    let second = changed(state(1), 3, 3);
    let new_bytes = program.save(&second).unwrap().new_bytes;
    world.fail_when(|_, _| None);
    assert!(new_bytes < 100_000);
    let third = changed(second, 5, 5);
    assert!(program.save(&third).unwrap().new_bytes < 100_000, "nothing was stored again");
    assert_eq!(said(&warnings), Vec::<String>::new());
}

/// A save that fails for another reason than damage keeps the data that the next one shares.
#[test]
fn other_failures_store_nothing_anew() {
    for kind in [ErrorKind::Invalid, ErrorKind::Retry, ErrorKind::Full] {
        let (world, pool, _) = world();
        let program = Program::start(&pool, "job");
        program.save(&state(1)).unwrap();
        world.fail_when(move |_, name| name.starts_with("create").then_some(kind));
        let second = changed(state(1), 3, 3);
        let error = program.save(&second).unwrap_err();
        assert!(error.kind() == kind && !error.message().contains("everything again"), "{error}");
        world.fail_when(|_, _| None);
        assert!(program.save(&second).unwrap().new_bytes < 100_000, "{kind:?}");
    }
}

fn files_below(dir: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files_below(&path)) } else { found.push(path) }
    }
    found
}

#[test]
fn files_that_checkpoints_need_get_a_fresh_time() {
    let dir = tempfile::tempdir().unwrap();
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let is_old = |path: &Path| fs::metadata(path).unwrap().modified().unwrap() == old;
    for (every_s, is_fresh) in [(3600, true), (0, false)] {
        let root = dir.path().join(every_s.to_string());
        outlive_pool::create(&root, small_config(), Environment::system()).unwrap();
        let open = || outlive_pool::open(&root, Environment::system()).unwrap();
        let text = fs::read_to_string(root.join("pool.toml")).unwrap();
        let text = text.replace("freshen_every_s = 0", &format!("freshen_every_s = {every_s}"));
        fs::write(root.join("pool.toml"), text).unwrap();
        let program = Program::start(&open(), "job");
        program.save(&state(1)).unwrap();
        drop(program);
        let files = files_below(&root);
        for path in &files {
            File::options().write(true).open(path).unwrap().set_modified(old).unwrap();
        }
        let program = Program::start(&open(), "job");
        program.restore(Select::Newest).unwrap();
        program.save(&changed(state(1), 3, 3)).unwrap();
        // Locks are recreated where they are missing.
        let is_lock = |path: &Path| path.extension().is_some_and(|extension| extension == "lock");
        let stale: Vec<_> =
            files.iter().filter(|path| path.exists() && is_old(path) && !is_lock(path)).collect();
        assert_eq!(stale.is_empty(), is_fresh, "{stale:?}");
    }
}

/// A shard that another process deletes meanwhile is no error.
#[test]
fn files_that_are_gone_are_not_freshened() {
    let dir = tempfile::tempdir().unwrap();
    let target = DirectoryTarget::open(dir.path(), &DirectoryOptions::default()).unwrap();
    target.freshen(&[ShardName { pack: PackId([7; 20]), shard: 0 }]).unwrap();
    assert_eq!(target.list().unwrap(), []);
}
