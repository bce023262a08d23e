//! Checks of a commit for targets that have left.

use crate::{
    AllNamed, Container, Environment, FormatConfig, Named, PackUses, PackWriter, Pool, PoolConfig,
    Redundancy, Spread, TargetConfig, Tier, Tuning, Writes, create, open,
};
use outlive_format::{EntryKind, fingerprint};
use outlive_io::AlignedBuf;
use outlive_types::sync::plain::Mutex;
use outlive_types::{ErrorKind, Event, Observer, PackId, Result};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

/// Makes a pool of six directories, four shards of data and two of parity, two of the directories
/// away.
fn degraded() -> (TempDir, Pool) {
    let dir = tempfile::tempdir().unwrap();
    let location = |id: u32| dir.path().join(id.to_string()).to_str().unwrap().to_owned();
    let target = (1..=6).map(|id| TargetConfig::at(location(id))).collect();
    let config = PoolConfig::new(FormatConfig::new([7; 16]), Tuning::default());
    let config = PoolConfig { target, redundancy: Redundancy::erasure(4, 2), ..config };
    drop(create(&dir.path().join("pool"), config, Environment::system()).unwrap());
    [1, 2].iter().for_each(|id| fs::remove_dir_all(location(*id)).unwrap());
    let pool = another(dir.path());
    (dir, pool)
}

/// Opens the pool as another process.
fn another(dir: &Path) -> Pool {
    open(&dir.join("pool"), Environment::system()).unwrap()
}

fn put_pack(pool: &Pool, number: u8) {
    let mut writer = PackWriter::new(pool, PackId([number; 20]), 4096).unwrap();
    writer.open(Container::new(AlignedBuf::zeroed(4 << 20))).unwrap();
    writer.append(b"bytes", fingerprint(b"bytes"), EntryKind::Chunk).unwrap();
    writer.finish().unwrap().wait().unwrap();
}

#[test]
fn a_target_to_which_nothing_was_written_may_leave() {
    let (dir, pool) = degraded();
    let then = pool.targets_now().unwrap().unwrap();
    put_pack(&pool, 1);
    assert_eq!(then.spread(), Spread::from([vec![3, 4, 5, 6]]));
    // The target was away all the time: nothing is lost, and the pack has just enough.
    let new = dir.path().join("7");
    let (id, was_there, _) = another(dir.path())
        .replace_target(1, new.to_str().unwrap(), true, None, &AllNamed)
        .unwrap();
    assert_eq!((id, was_there), (7, false));
    pool.check_targets(&then, &Spread::new()).unwrap();
    // Data that is written from now on is on the new one as well.
    pool.refresh_targets().unwrap();
    put_pack(&pool, 2);
    assert_eq!(then.spread(), Spread::from([vec![3, 4, 5, 6], vec![3, 4, 5, 6, 7]]));
    assert!(pool.targets_now().unwrap().unwrap().spread().is_empty());
}

#[test]
fn a_pack_that_has_too_little_left_is_not_committed() {
    let (dir, pool) = degraded();
    let before = pool.targets_now().unwrap().unwrap();
    put_pack(&pool, 1);
    let behind = pool.targets_now().unwrap().unwrap();
    let other = another(dir.path());
    let new = dir.path().join("7");
    other.add_target(new.to_str().unwrap(), None, Tier::Fast).unwrap();
    pool.check_targets(&before, &Spread::new()).unwrap();
    other.remove_target(3, true, None, &AllNamed).unwrap();
    let error = pool.check_targets(&before, &Spread::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
    assert!(error.message().starts_with("target 3 was removed"), "{error}");
    // Nothing was written since then.
    pool.check_targets(&behind, &Spread::new()).unwrap();
    // Another process has written, and reports its targets.
    pool.check_targets(&behind, &Spread::from([vec![2, 3, 4, 5, 6]])).unwrap();
    let others = Spread::from([vec![4, 5, 6, 7], vec![1, 3, 4, 5]]);
    let error = pool.check_targets(&behind, &others).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
}

#[derive(Default)]
struct Warnings(Mutex<Vec<String>>);

impl Observer for Warnings {
    fn event(&self, event: Event) {
        if let Event::Warning(text) = event {
            self.0.lock().push(text);
        }
    }
}

/// Makes a pool of seven directories, four shards of data and two of parity, and a process that
/// collects warnings.
fn seven(writes: Writes) -> (TempDir, Pool, Arc<Warnings>) {
    let dir = tempfile::tempdir().unwrap();
    let target = (1..=7).map(|id| TargetConfig::at(location(&dir, id))).collect();
    let redundancy = Redundancy { writes, ..Redundancy::erasure(4, 2) };
    let config = PoolConfig::new(FormatConfig::new([7; 16]), Tuning::default());
    let config = PoolConfig { target, redundancy, ..config };
    drop(create(&dir.path().join("pool"), config, Environment::system()).unwrap());
    let warnings = Arc::new(Warnings::default());
    let pool = open(&dir.path().join("pool"), Environment::observed(warnings.clone())).unwrap();
    (dir, pool, warnings)
}

fn location(dir: &TempDir, id: u32) -> String {
    dir.path().join(id.to_string()).to_str().unwrap().to_owned()
}

/// Enough shards are left to commit, but fewer than the pool promises: one warning for each target
/// that has left says so.
#[test]
fn a_commit_with_less_redundancy_warns() {
    let (dir, pool, warnings) = seven(Writes::Degraded);
    let then = pool.targets_now().unwrap().unwrap();
    put_pack(&pool, 1);
    let on = then.spread().first().unwrap().clone();
    let off = (1..=7).find(|id| !on.contains(id)).unwrap();
    let remove = |id| another(dir.path()).remove_target(id, true, None, &AllNamed).map(drop);
    let check = || (0..2).for_each(|_| pool.check_targets(&then, &Spread::new()).unwrap());
    let said = || std::mem::take(&mut *warnings.0.lock());
    for id in [8, 9] {
        another(dir.path()).add_target(&location(&dir, id), None, Tier::Fast).unwrap();
    }
    remove(off).unwrap();
    check();
    assert_eq!(said(), [""; 0], "the pack has all");
    for id in &on[..2] {
        remove(*id).unwrap();
        check();
        let said = said();
        assert!(said.len() == 1 && said[0].contains("may have less redundancy"), "{said:?}");
    }
}

#[test]
fn where_saves_need_all_redundancy_a_commit_with_less_is_refused() {
    let (dir, pool, warnings) = seven(Writes::Full);
    let then = pool.targets_now().unwrap().unwrap();
    put_pack(&pool, 1);
    let on = then.spread().first().unwrap().clone();
    let off = (1..=7).find(|id| !on.contains(id)).unwrap();
    let remove = |id| another(dir.path()).remove_target(id, true, None, &AllNamed).map(drop);
    another(dir.path()).add_target(&location(&dir, 8), None, Tier::Fast).unwrap();
    remove(off).unwrap();
    pool.check_targets(&then, &Spread::new()).unwrap();
    another(dir.path()).add_target(&location(&dir, 9), None, Tier::Fast).unwrap();
    remove(on[0]).unwrap();
    let error = pool.check_targets(&then, &Spread::new()).unwrap_err();
    assert!(error.kind() == ErrorKind::Retry && error.message().contains("save again"), "{error}");
    assert_eq!(*warnings.0.lock(), [""; 0]);
    // A pack that is written again has all shards.
    let then = pool.targets_now().unwrap().unwrap();
    put_pack(&pool, 2);
    pool.check_targets(&then, &Spread::new()).unwrap();
}

/// A drain moves a shard to a target that is lost then: the shard is lost with it.
#[test]
fn a_shard_that_was_moved_before_the_commit_may_be_lost_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let location = |id: u32| dir.path().join(id.to_string()).to_str().unwrap().to_owned();
    let target = (1..=2).map(|id| TargetConfig::at(location(id))).collect();
    let config = PoolConfig::new(FormatConfig::new([7; 16]), Tuning::default());
    let config = PoolConfig { target, ..config };
    let pool = create(&dir.path().join("pool"), config, Environment::system()).unwrap();
    let then = pool.targets_now().unwrap().unwrap();
    put_pack(&pool, 1);
    let spread = then.spread();
    let on = spread.first().unwrap()[0];
    let other = another(dir.path());
    assert_eq!(other.drain_target(on, None, &AllNamed).unwrap().repair.moved, 1);
    pool.check_targets(&then, &Spread::new()).unwrap();
    other.add_target(&location(3), None, Tier::Fast).unwrap();
    pool.check_targets(&then, &Spread::new()).unwrap();
    fs::remove_dir_all(location(3 - on)).unwrap();
    other.remove_target(3 - on, true, None, &AllNamed).unwrap();
    assert!(another(dir.path()).directory_of(PackId([1; 20])).is_err());
    let error = pool.check_targets(&then, &Spread::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
}

/// Logs in which no checkpoint names a pack.
struct NoneNamed;

impl PackUses for NoneNamed {
    fn named(&self, _: &Pool) -> Result<Option<Named>> {
        Ok(Some(Named::default()))
    }

    fn trimmed(&self, _: &Pool) -> Result<BTreeSet<PackId>> {
        Ok(BTreeSet::new())
    }
}

/// A drain leaves the copy of a shard beside another shard of the pack, and both may be lost then.
#[test]
fn a_copy_that_a_drain_left_beside_another_shard_may_be_lost_with_it() {
    let (dir, location) = pool_of(5, Redundancy::erasure(2, 1));
    let pool = another(dir.path());
    let then = pool.targets_now().unwrap().unwrap();
    put_pack(&pool, 1);
    let on = then.spread().first().unwrap().clone();
    let shards = |id: u32| {
        let packs = Path::new(&location(id)).join("packs");
        let group = fs::read_dir(packs).unwrap().map(|entry| entry.unwrap().path());
        let group = group.filter(|path| path.is_dir()).collect::<Vec<_>>();
        let files = group.iter().flat_map(|group| fs::read_dir(group).unwrap());
        files.map(|file| file.unwrap().path()).collect::<Vec<_>>()
    };
    let [shard] = &shards(on[0])[..] else { panic!("{:?}", shards(on[0])) };
    let beside = shards(on[1])[0].with_file_name(shard.file_name().unwrap());
    fs::copy(shard, &beside).unwrap();
    another(dir.path()).drain_target(on[0], None, &NoneNamed).unwrap();
    assert_eq!((shards(on[0]).len(), shards(on[1]).len()), (0, 2));
    pool.check_targets(&then, &Spread::new()).unwrap();
    fs::remove_dir_all(location(on[1])).unwrap();
    another(dir.path()).remove_target(on[1], true, None, &NoneNamed).unwrap();
    let left = another(dir.path()).redundancy().unwrap()[&PackId([1; 20])];
    assert!(left.spare < 0, "it cannot be read: {left:?}");
    let error = pool.check_targets(&then, &Spread::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
}

/// Makes a pool of the directories `1` to `targets`. The last one is added, so that its table has a
/// record.
fn pool_of(targets: u32, redundancy: Redundancy) -> (TempDir, impl Fn(u32) -> String) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().to_owned();
    let location = move |id: u32| root.join(id.to_string()).to_str().unwrap().to_owned();
    let target = (1..targets).map(|id| TargetConfig::at(location(id))).collect();
    let config = PoolConfig::new(FormatConfig::new([7; 16]), Tuning::default());
    let config = PoolConfig { target, redundancy, ..config };
    let pool = create(&dir.path().join("pool"), config, Environment::system()).unwrap();
    assert_eq!(pool.add_target(&location(targets), None, Tier::Fast).unwrap(), targets);
    (dir, location)
}

/// The table has the old location of a target that a person has moved.
#[test]
fn the_old_location_of_a_target_that_was_moved_is_free() {
    let (dir, location) = pool_of(2, Redundancy::default());
    fs::rename(location(1), location(8)).unwrap();
    let descriptor = dir.path().join("pool/pool.toml");
    let text = fs::read_to_string(&descriptor).unwrap();
    fs::write(&descriptor, text.replace(&location(1), &location(8))).unwrap();
    fs::create_dir(location(1)).unwrap();
    let pool = another(dir.path());
    assert_eq!(pool.add_target(&location(1), None, Tier::Fast).unwrap(), 3);
    assert_eq!(pool.add_target(&location(8), None, Tier::Fast).unwrap(), 1);
    let pool = another(dir.path());
    put_pack(&pool, 1);
    pool.check_targets(&pool.targets_now().unwrap().unwrap(), &Spread::new()).unwrap();
    assert_eq!(pool.targets().members().len(), 3);
    assert!(pool.targets().members().iter().all(|member| member.check().is_ok()));
}

/// Programs open a pool with the hosts in `pool.toml`, so a change has to fit these.
#[test]
fn a_change_that_does_not_fit_the_hosts_of_the_descriptor_is_refused() {
    let (dir, location) = pool_of(4, Redundancy::mirror(2));
    let descriptor = dir.path().join("pool/pool.toml");
    let mut text = fs::read_to_string(&descriptor).unwrap();
    for id in 1..=2 {
        let location = format!("location = \"{}\"\n", location(id));
        assert!(text.contains(&location), "{text}");
        text = text.replace(&location, &format!("{location}host = \"a\"\n"));
    }
    fs::write(&descriptor, text).unwrap();
    another(dir.path()).drain_target(3, None, &AllNamed).unwrap();
    let before = another(dir.path()).table().unwrap().read().unwrap();
    let refused = another(dir.path()).drain_target(4, None, &AllNamed).unwrap_err();
    assert!(refused.message().contains("needs 2 targets"), "{refused}");
    assert_eq!(another(dir.path()).table().unwrap().read().unwrap(), before);
}
