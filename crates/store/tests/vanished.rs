//! Packs that vanish beneath a running program: what it says, what its next save makes of it, and how their files
//! stay fresh where others delete by age.

mod common;

use common::{Program, State, Warnings, changed, noise, small_config};
use outlive_pool::{Environment, Pool};
use outlive_store::Select;
use outlive_target::{DirectoryOptions, DirectoryTarget, FaultWorld, ShardName, Target};
use outlive_types::{ErrorKind, FixedClock, PackId};
use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

fn state(seed: u64) -> State {
    State::from([("a".to_owned(), noise(seed, 300_000)), ("b".to_owned(), vec![seed as u8; 50])])
}

fn warned(pool: impl Fn(Environment) -> Pool) -> (Pool, Arc<Warnings>) {
    let warnings = Arc::new(Warnings::default());
    let env = Environment { observer: warnings.clone(), ..Environment::system() };
    (pool(env), warnings)
}

fn delete(pool: &Pool, packs: &[PackId]) {
    packs.iter().for_each(|pack| pool.delete_pack(*pack).unwrap());
}

#[test]
fn the_next_save_stores_anew_what_has_vanished() {
    let world = FaultWorld::new();
    let (pool, warnings) =
        warned(|env| Pool::new(small_config(), world.target(), world.log(), env));
    let program = Program::start(&pool, "job");
    let mut now = state(1);
    program.save(&now).unwrap();
    let first = pool.packs().unwrap();
    for step in 0..3 {
        now = changed(now, step, step as u64);
        program.save(&now).unwrap();
    }
    assert_eq!(*warnings.0.lock().unwrap(), Vec::<String>::new());
    delete(&pool, &first);
    now = changed(now, 7, 7);
    // A look rests for a hundred times the time of the last one. Meanwhile a save may meet what is gone.
    let mut epoch = 0;
    let told =
        || warnings.0.lock().unwrap().iter().any(|said| said.contains("stores everything anew"));
    while !told() {
        now = changed(now, 8, epoch + 100);
        epoch = program.save(&now).map_or(epoch, |stats| stats.epoch);
    }
    // The next one needs nothing of what is gone, and neither do those after it.
    for step in 0..2 {
        now = changed(now, 9, 900 + step);
        epoch = program.save(&now).unwrap().epoch;
        let (restored, found) =
            Program::start(&pool, "job").restore(Select::Epoch(epoch)).unwrap().unwrap();
        assert!(restored == epoch && found == now);
    }
}

/// Behind a commit that has met nothing, the look says it and marks the checkpoint.
#[test]
fn what_has_vanished_is_said_behind_the_commit() {
    let world = FaultWorld::new();
    let (pool, warnings) = warned(|env| {
        let env = Environment { clock: Arc::new(FixedClock::default()), ..env };
        Pool::new(small_config(), world.target(), world.log(), env)
    });
    let program = Program::start(&pool, "job");
    program.save(&state(1)).unwrap();
    let first = pool.packs().unwrap();
    let now = changed(state(1), 3, 3);
    program.save(&now).unwrap();
    delete(&pool, &first);
    let epoch = program.save(&changed(now, 4, 4)).unwrap().epoch;
    let said = warnings.0.lock().unwrap().clone();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains(&format!("checkpoint {epoch} of job job")), "{said:?}");
    assert!(
        said[0].contains("cannot be restored") && said[0].contains("freshen_every_s"),
        "{said:?}"
    );
    let marked = program.job.epochs().unwrap().into_iter().find(|info| info.epoch == epoch);
    assert!(marked.unwrap().manifest.remarks.suspect);
}

/// Another job has the same data in packs that are there, and a third in packs that are gone, too.
#[test]
fn what_vanished_is_not_taken_from_the_index() {
    let world = FaultWorld::new();
    let (pool, warnings) =
        warned(|env| Pool::new(small_config(), world.target(), world.log(), env));
    let other = Program::start(&pool, "other");
    other.save(&state(1)).unwrap();
    let first = pool.packs().unwrap();
    let program = Program::start(&pool, "job");
    let mut now = changed(state(1), 3, 3);
    program.save(&now).unwrap();
    delete(&pool, &first);
    let mut epoch = 0;
    let told =
        || warnings.0.lock().unwrap().iter().any(|said| said.contains("stores everything anew"));
    while !told() {
        now = changed(now, 8, epoch + 100);
        epoch = program.save(&now).map_or(epoch, |stats| stats.epoch);
    }
    let epoch = program.save(&now).unwrap().epoch;
    let (_, found) = Program::start(&pool, "job").restore(Select::Epoch(epoch)).unwrap().unwrap();
    assert!(found == now);
}

/// A target that cannot be asked has lost nothing.
#[test]
fn errors_of_a_look_are_no_loss() {
    let world = FaultWorld::new();
    let (pool, warnings) =
        warned(|env| Pool::new(small_config(), world.target(), world.log(), env));
    let program = Program::start(&pool, "job");
    program.save(&state(1)).unwrap();
    world.count_reads(true);
    world.fail_when(|_, name| name.starts_with("length").then_some(ErrorKind::Retry));
    let second = changed(state(1), 3, 3);
    let new_bytes = program.save(&second).unwrap().new_bytes;
    world.fail_when(|_, _| None);
    assert!(new_bytes < 100_000);
    let third = changed(second, 5, 5);
    assert!(program.save(&third).unwrap().new_bytes < 100_000, "nothing was stored anew");
    assert_eq!(*warnings.0.lock().unwrap(), Vec::<String>::new());
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
        // Locks are made anew where they are missing.
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
