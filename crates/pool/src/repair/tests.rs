//! Commands about targets that are killed at any step, and given again or finished by a repair; copies that are
//! damaged, surplus or crowded. Whatever happens, all that was written can be read, whichever m targets are lost.

use super::bring::{Bring, Listed};
use super::plan::Allowed;
use crate::targets::{FoundPlace, OpenTarget, Rows, TargetPlaces, TargetTable};
use crate::{Container, Environment, FormatConfig, Named, PackWriter, Pool, PoolConfig};
use crate::{Redundancy, RepairOptions, Spread, TargetConfig, TargetState, Tier, Tuning};
use outlive_format::{EntryKind, fingerprint};
use outlive_io::AlignedBuf;
use outlive_target::{CutMode, FaultProcess, FaultWorld, ShardName, Target};
use outlive_types::{Error, ErrorKind, PackId, Result, SessionId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

const CONTAINER: usize = 64 << 10;
const PACKS: u32 = 4;
/// Places that targets may be in.
const PLACES: usize = 8;

/// Places of targets, each with the number of the target that is there.
#[derive(Clone, Debug)]
struct Places {
    targets: Vec<Arc<dyn Target>>,
    markers: Arc<Mutex<BTreeMap<usize, u32>>>,
    first: usize,
}

fn place_of(row: &TargetConfig) -> Result<usize> {
    row.location.parse().map_err(|_| Error::invalid("a place is a number"))
}

impl TargetPlaces for Places {
    fn first(&self) -> Result<Rows> {
        let row = |place: usize| TargetConfig {
            id: Some(place as u32 + 1),
            ..TargetConfig::at(place.to_string())
        };
        let targets: Vec<TargetConfig> = (0..self.first).map(row).collect();
        Ok(Rows { next_id: self.first as u32 + 1, targets })
    }

    fn open(&self, row: &TargetConfig, _: bool) -> Result<OpenTarget> {
        let (place, id, markers) = (place_of(row)?, row.id, self.markers.clone());
        let look = move || match markers.lock().unwrap().get(&place).copied() == id {
            true => Ok(()),
            false => Err(Error::damaged("it is not mounted")),
        };
        Ok((self.targets[place].clone(), Some(Box::new(look))))
    }

    fn find(&self, row: &TargetConfig) -> Result<FoundPlace> {
        let place = place_of(row)?;
        let marker = self.markers.lock().unwrap().get(&place).copied();
        Ok(match marker {
            None => FoundPlace::Free,
            Some(id) => {
                let holds_shards = !self.targets[place].list()?.is_empty();
                FoundPlace::Own { id, holds_shards }
            }
        })
    }

    fn prepare(&self, row: &TargetConfig, _: &[TargetConfig]) -> Result<()> {
        self.mark(row)
    }

    fn mark(&self, row: &TargetConfig) -> Result<()> {
        self.markers.lock().unwrap().insert(place_of(row)?, row.id.unwrap());
        Ok(())
    }
}

/// A pool over places of one world.
struct Fixture {
    world: FaultWorld,
    markers: Arc<Mutex<BTreeMap<usize, u32>>>,
    first: usize,
    rule: Redundancy,
}

impl Fixture {
    fn new(targets: usize, rule: Redundancy, has_locks: bool) -> Fixture {
        let world = if has_locks { FaultWorld::with_locks() } else { FaultWorld::new() };
        let markers = (0..targets).map(|place| (place, place as u32 + 1)).collect();
        let fixture =
            Fixture { world, markers: Arc::new(Mutex::new(markers)), first: targets, rule };
        let pool = fixture.pool();
        (0..PACKS).for_each(|number| write(&pool, number).unwrap());
        fixture
    }

    /// As a new process sees it.
    fn process(&self) -> (Pool, FaultProcess) {
        let (targets, log, process) = self.world.process_with(PLACES);
        let places = Places { targets, markers: self.markers.clone(), first: self.first };
        let env = Environment::system();
        let table = TargetTable::new(log.clone(), Arc::new(places), env.rng.clone());
        let format = FormatConfig {
            container_bytes: CONTAINER as u64,
            pack_bytes: 2 * CONTAINER as u64,
            ..FormatConfig::new([7; 16])
        };
        let tuning = Tuning { reads_around: false, threads: 1, ..Tuning::default() };
        let redundancy = self.rule.clone();
        let config = PoolConfig { redundancy, ..PoolConfig::new(format, tuning) };
        let pool = Pool::over(config, Vec::new(), log, env).with_table(Arc::new(table)).unwrap();
        (pool, process)
    }

    fn pool(&self) -> Pool {
        self.process().0
    }

    /// Takes a target away, with all that is on it. Returns its number.
    fn take(&self, place: usize) -> u32 {
        self.markers.lock().unwrap().remove(&place).unwrap()
    }

    fn bring_back(&self, place: usize, id: u32) {
        self.markers.lock().unwrap().insert(place, id);
    }

    /// Cuts the power of all targets at once: names that were visible and not durable are gone.
    fn cut_targets(&self) {
        (0..PLACES).for_each(|place| self.world.cut_target(place, CutMode::Lost));
    }

    fn repair(&self) -> crate::RepairReport {
        let report = self.pool().repair(RepairOptions::default(), &All).unwrap();
        assert!(report.is_whole(), "{report:?}");
        report
    }

    /// The pool is as its table says: each shard of each pack once, on targets that fail by themselves, and every
    /// set of m targets may be away.
    fn check(&self, what: &str) {
        let pool = self.pool();
        let targets = pool.targets();
        let listed = targets.list().unwrap();
        for number in 0..PACKS {
            let mine = listed.iter().filter(|(name, _)| name.pack == pack(number));
            let (shards, on): (Vec<u8>, Vec<usize>) =
                mine.map(|(name, on)| (name.shard, *on)).unzip();
            let all: Vec<u8> = (0..pool.shards_of(pack(number)).len() as u8).collect();
            assert_eq!(shards, all, "{what}: pack {number} on {on:?}");
            assert_eq!(on.iter().collect::<BTreeSet<_>>().len(), on.len(), "{what}: {on:?}");
            assert!(on.iter().all(|on| targets.members()[*on].is_active()), "{what}: {on:?}");
        }
        assert!(targets.members().iter().all(|member| !member.is_lost()), "{what}");
        let redundancy = pool.redundancy().unwrap();
        let m = self.rule.survives() as i64;
        assert!(redundancy.values().all(|pack| pack.spare == m), "{what}: {redundancy:?}");
        let there: Vec<usize> = self.markers.lock().unwrap().keys().copied().collect();
        for lost in losses(&there, self.rule.survives()) {
            let ids: Vec<u32> = lost.iter().map(|place| self.take(*place)).collect();
            let reader = self.pool();
            (0..PACKS).for_each(|number| read(&reader, number, &format!("{what}, {lost:?}")));
            lost.iter().zip(ids).for_each(|(place, id)| self.bring_back(*place, id));
        }
    }
}

fn losses(of: &[usize], m: usize) -> Vec<Vec<usize>> {
    let sets = 0u32..1 << of.len();
    let chosen =
        |set: u32| (0..of.len()).filter(|at| set >> at & 1 == 1).map(|at| of[at]).collect();
    sets.filter(|set| set.count_ones() as usize == m).map(chosen).collect()
}

fn pack(number: u32) -> PackId {
    PackId::new(SessionId([5; 12]), 0, number)
}

fn chunk(number: u32, at: u32) -> Vec<u8> {
    (0..30_000).map(|byte: u32| (byte * 7 + number * 31 + at) as u8).collect()
}

/// Writes a pack of two containers.
fn write(pool: &Pool, number: u32) -> Result<()> {
    let mut writer = PackWriter::new(pool, pack(number), 2 * CONTAINER as u64)?;
    for at in 0..4 {
        let chunk = chunk(number, at);
        if writer.needs_buffer(chunk.len()) {
            writer.open(Container::new(AlignedBuf::zeroed(CONTAINER)))?;
        }
        writer.append(&chunk, fingerprint(&chunk), EntryKind::Chunk)?;
    }
    writer.finish()?.wait()
}

fn read(pool: &Pool, number: u32, what: &str) {
    let mut found = 0;
    let mut each = |directory: &outlive_format::Directory, offset: u64, bytes: &[u8]| {
        for entry in &directory.entries {
            let start = u64::from(entry.offset).wrapping_sub(offset) as usize;
            if let Some(chunk) = bytes.get(start..).and_then(|rest| rest.get(..30_000)) {
                assert_eq!(fingerprint(chunk), entry.fp, "{what}");
                found += 1;
            }
        }
        Ok(())
    };
    pool.check_pack(pack(number), &mut each).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(found, 4, "{what}");
}

fn rules() -> Vec<(usize, Redundancy)> {
    vec![
        (2, Redundancy::default()),
        (3, Redundancy::mirror(2)),
        (4, Redundancy::erasure(2, 1)),
        (5, Redundancy::erasure(2, 2)),
    ]
}

/// All packs of these tests are named by checkpoints.
struct All;

impl crate::PackUses for All {
    fn named(&self, _: &Pool) -> Result<Option<Named>> {
        Ok(Some(Named { packs: (0..PACKS).map(pack).collect(), is_partial: false }))
    }

    fn trimmed(&self, _: &Pool) -> Result<BTreeSet<PackId>> {
        Ok(BTreeSet::new())
    }
}

type Command = fn(&Pool) -> Result<bool>;

/// Commands. Each returns whether it has done all that it was to do.
fn commands() -> Vec<(&'static str, bool, Command)> {
    vec![
        ("add", false, |pool| pool.add_target("6", None, Tier::Fast).map(|_| true)),
        ("drain", false, |pool| {
            let change = pool.drain_target(1, None, &All)?;
            Ok(change.left == 0 && change.repair.is_whole())
        }),
        ("remove", false, |pool| Ok(pool.remove_target(1, false, None, &All)?.repair.is_whole())),
        ("remove --lost", true, |pool| {
            Ok(pool.remove_target(1, true, None, &All)?.repair.is_whole())
        }),
        ("replace", false, |pool| {
            let (_, _, change) = pool.replace_target(1, "7", false, None, &All)?;
            Ok(change.repair.is_whole())
        }),
        ("replace, while it is away", true, |pool| {
            let (_, _, change) = pool.replace_target(1, "7", false, None, &All)?;
            Ok(change.repair.is_whole())
        }),
    ]
}

/// Runs a command in a process that is killed at each of its steps, one after the other; then again, or a repair.
#[test]
fn a_command_that_was_killed_is_finished_by_giving_it_again_or_by_a_repair() {
    for ((targets, rule), has_locks) in rules().into_iter().zip([true, false, true, false]) {
        for (name, is_away, command) in commands() {
            if is_away && rule.survives() == 0 {
                continue;
            }
            // Each step of one rule, and some of the others.
            let stride = if rule == Redundancy::mirror(2) { 1 } else { 3 };
            let steps = (0..).step_by(stride).flat_map(|step| [(step, false), (step, true)]);
            for (step, by_repair) in steps {
                let what = format!("{} {name}, killed at {step}", rule.describe());
                let fixture = Fixture::new(targets, rule.clone(), has_locks);
                // Without it there are targets enough.
                fixture.pool().add_target("5", None, Tier::Fast).unwrap();
                if is_away {
                    fixture.take(0);
                }
                let (pool, process) = fixture.process();
                process.kill_after(1 + step);
                let outcome = command(&pool);
                let is_over = !process.is_killed();
                if is_over {
                    assert!(outcome.unwrap(), "{what}");
                }
                drop(pool);
                let pool = fixture.pool();
                // The claim of the killed process has the mark of this one, which is alive.
                pool.release_targets().unwrap();
                let is_begun = pool
                    .table()
                    .unwrap()
                    .read()
                    .unwrap()
                    .targets
                    .iter()
                    .any(|row| row.state != TargetState::Active);
                if by_repair && (is_begun || !is_away) {
                    fixture.repair();
                } else {
                    assert!(command(&pool).unwrap(), "{what}: given again");
                    // And once more.
                    assert!(command(&fixture.pool()).is_ok(), "{what}: given a third time");
                    fixture.repair();
                }
                fixture.cut_targets();
                fixture.check(&what);
                if is_over {
                    break;
                }
            }
        }
    }
}

/// (mirror_one_disk, two_on_one) A target that was away during a repair comes back: its shards are surplus then, and no
/// target is taken for two.
#[test]
fn a_target_that_comes_back_leaves_no_two_shards_of_a_pack_on_one() {
    for (targets, rule) in rules().into_iter().filter(|(_, rule)| rule.survives() > 0) {
        let fixture = Fixture::new(targets, rule.clone(), true);
        for first in 0..targets {
            let what = format!("{} {first}", rule.describe());
            // Away, a repair, back; then another is lost for good, and a new one takes its place.
            let id = fixture.take(first);
            fixture.pool().repair(RepairOptions::default(), &All).unwrap();
            fixture.bring_back(first, id);
            let report = fixture.repair();
            assert!(report.surplus > 0 || report.incomplete == 0, "{what}: {report:?}");
            fixture.check(&what);
            let lost = (first + 1) % targets;
            let id = fixture.take(lost);
            fixture.world.lose_target(lost);
            fixture.pool().repair(RepairOptions::default(), &All).unwrap();
            let change = fixture.pool().replace_target(id, &lost.to_string(), false, None, &All);
            // The same place again is the target itself, as far as the table knows.
            assert_eq!(change.unwrap_err().kind(), ErrorKind::Invalid, "{what}");
            fixture.bring_back(lost, id);
            fixture.repair();
            fixture.check(&what);
        }
    }
}

/// Two shards on one target count once, and are moved apart.
#[test]
fn crowded_shards_are_counted_once_and_moved_apart() {
    let fixture = Fixture::new(4, Redundancy::erasure(2, 1), true);
    let pool = fixture.pool();
    let targets = pool.targets();
    let name = ShardName { pack: pack(1), shard: 1 };
    let (from, to) =
        (targets.find(name).unwrap(), targets.find(ShardName { shard: 0, ..name }).unwrap());
    move_by_hand(&fixture, name, from, to);
    assert_eq!(fixture.pool().redundancy().unwrap()[&pack(1)].spare, 0);
    let dry = fixture.pool().repair(RepairOptions { dry_run: true, bytes_per_s: None }, &All);
    assert_eq!(dry.unwrap().incomplete, 1);
    let report = fixture.repair();
    assert_eq!((report.moved, report.shards, report.missing), (1, 0, 0));
    fixture.check("apart again");
    // With no other target they stay, and the report says so.
    let fixture = Fixture::new(3, Redundancy::erasure(2, 1), true);
    let targets = fixture.pool().targets();
    let (from, to) =
        (targets.find(name).unwrap(), targets.find(ShardName { shard: 0, ..name }).unwrap());
    move_by_hand(&fixture, name, from, to);
    fixture.take(from);
    let report = fixture.pool().repair(RepairOptions::default(), &All).unwrap();
    assert_eq!(report.crowded, 1, "{report:?}");
    assert!(!report.is_whole());
    assert_eq!(fixture.pool().redundancy().unwrap()[&pack(1)].spare, 0);
}

fn bytes_of(target: &dyn Target, name: ShardName) -> AlignedBuf {
    let length = target.length(name).unwrap() as usize;
    let range = outlive_target::ReadRange { offset: 0, buffer: AlignedBuf::zeroed(length) };
    outlive_target::read_one(target, name, range).wait().unwrap()
}

fn copy_by_hand(fixture: &Fixture, name: ShardName, from: usize, to: usize) {
    let targets = fixture.world.process_with(PLACES).0;
    let bytes = bytes_of(&*targets[from], name);
    let length = bytes.len() as u64;
    let mut writer = targets[to].create(name, length).unwrap();
    writer.write(0, bytes.share()).wait().unwrap();
    writer.finish(length).wait().unwrap();
}

fn move_by_hand(fixture: &Fixture, name: ShardName, from: usize, to: usize) {
    if from != to {
        copy_by_hand(fixture, name, from, to);
        fixture.world.process_with(PLACES).0[from].delete(name).unwrap();
    }
}

/// (drain_twice, damaged_duplicate_hides_good) Of two copies either one may be damaged: what is read is right, and a
/// repair leaves one whole copy; at whichever step it is killed.
#[test]
fn of_two_copies_the_damaged_one_never_wins() {
    for rule in [Redundancy::default(), Redundancy::mirror(2)] {
        for is_draining in [false, true] {
            for damaged in [0, 1] {
                for step in (0..).step_by(2) {
                    let what = format!("{} {is_draining} {damaged}, {step}", rule.describe());
                    let fixture = Fixture::new(3, rule.clone(), true);
                    let name = ShardName { pack: pack(2), shard: 0 };
                    let targets = fixture.pool().targets();
                    let from = targets.find(name).unwrap();
                    let other = ShardName { shard: 1, ..name };
                    let used: Vec<usize> =
                        [name, other].iter().filter_map(|name| targets.find(*name).ok()).collect();
                    let to = (0..3).find(|place| !used.contains(place)).unwrap();
                    copy_by_hand(&fixture, name, from, to);
                    let hit = [from, to][damaged];
                    fixture.world.corrupt_on(hit, name, 4096 + 500, 1);
                    read(&fixture.pool(), 2, &what);
                    let (pool, process) = fixture.process();
                    process.kill_after(1 + step);
                    if is_draining && rule.survives() == 0 {
                        let _ = pool.drain_target(from as u32 + 1, None, &All);
                    } else {
                        let _ = pool.repair(RepairOptions::default(), &All);
                    }
                    let is_over = !process.is_killed();
                    read(&fixture.pool(), 2, &what);
                    fixture.repair();
                    read(&fixture.pool(), 2, &what);
                    let check = fixture.pool().check_pack(pack(2), &mut |_, _, _| Ok(())).unwrap();
                    assert_eq!(check.faults, [], "{what}");
                    if is_over {
                        break;
                    }
                }
            }
        }
    }
}

/// (replace_blind) A target that is only away, and has what is nowhere else, is not given up; it comes back with what it
/// has.
#[test]
fn a_target_that_is_away_is_given_up_only_if_all_can_do_without_it() {
    let fixture = Fixture::new(3, Redundancy::mirror(2), true);
    // One of the copies of each pack is gone, and not made again yet.
    for number in 0..PACKS {
        let name = ShardName { pack: pack(number), shard: 1 };
        let on = fixture.pool().targets().find(name).unwrap();
        fixture.world.process_with(PLACES).0[on].delete(name).unwrap();
    }
    let last = ShardName { pack: pack(0), shard: 0 };
    let on = fixture.pool().targets().find(last).unwrap();
    let id = fixture.take(on);
    let refused = fixture.pool().replace_target(id, "6", false, None, &All).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    assert!(refused.message().contains("--lost"), "{refused}");
    assert!(fixture.pool().table().unwrap().read().unwrap().targets.len() == 3, "nothing changed");
    let (new, was_there, change) =
        fixture.pool().replace_target(id, "6", true, None, &All).unwrap();
    assert_eq!((new, was_there, change.why), (4, false, None));
    let again = fixture.pool().replace_target(id, "6", true, None, &All).unwrap();
    assert_eq!((again.0, again.1, again.2.why), (4, true, None), "nothing more is lost");
    fixture.bring_back(on, id);
    assert_eq!(fixture.pool().add_target(&on.to_string(), None, Tier::Fast).unwrap(), id);
    fixture.repair();
    fixture.check("it is back");
}

/// Places that can be no target of a pool, or cannot be taken back as they are.
#[test]
fn places_that_do_not_fit_are_refused_and_change_nothing() {
    let fixture = Fixture::new(4, Redundancy::mirror(2), true);
    let refused = |place: &str, tier: Tier, says: &str| {
        let before = fixture.pool().table().unwrap().read().unwrap();
        let error = fixture.pool().add_target(place, None, tier).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.message().contains(says), "{error}");
        assert_eq!(fixture.pool().table().unwrap().read().unwrap(), before);
    };
    // One that was moved holds what it had.
    let id = fixture.take(0);
    let name = fixture.world.process_with(PLACES).0[0].list().unwrap()[0];
    copy_by_hand(&fixture, name, 0, 5);
    fixture.bring_back(5, id);
    refused("5", Tier::Fast, "which is in the table at another place");
    fixture.take(5);
    fixture.bring_back(0, id);
    // A target keeps its tier.
    fixture.pool().drain_target(1, None, &All).unwrap();
    refused("0", Tier::Slow, "of another kind");
    // One that is to leave is taken back only if it is there.
    fixture.world.fail_when(|_, what| what.starts_with("create").then_some(ErrorKind::Retry));
    let id = fixture.take(1);
    fixture.pool().remove_target(id, true, None, &All).unwrap();
    refused("1", Tier::Fast, "is not there now");
    fixture.world.fail_when(|_, _| None);
    fixture.bring_back(1, id);
    fixture.pool().add_target("1", None, Tier::Fast).unwrap();
    fixture.pool().add_target("0", None, Tier::Fast).unwrap();
    fixture.repair();
    fixture.check("both are back");
}

/// A target that was given up is in the pool as long as what it had cannot be made elsewhere, and the command says so.
#[test]
fn a_target_that_is_given_up_has_left_only_if_the_command_says_so() {
    let fixture = Fixture::new(3, Redundancy::mirror(2), true);
    let id = fixture.take(0);
    let fails = |_, what: &str| what.starts_with("create").then_some(ErrorKind::Retry);
    fixture.world.fail_when(fails);
    let change = fixture.pool().remove_target(id, true, None, &All).unwrap();
    let is_row = |pool: &Pool| pool.table().unwrap().read().unwrap().get(id).is_some();
    assert!(is_row(&fixture.pool()) && change.why.is_some(), "{change:?}");
    fixture.world.fail_when(|_, _| None);
    let change = fixture.pool().remove_target(id, true, None, &All).unwrap();
    assert!(!is_row(&fixture.pool()) && change.why.is_none(), "{change:?}");
    fixture.check("it is given up");
}

/// A save that has written to a target before it left and came back does not count on what it has put there.
#[test]
fn a_target_that_left_and_came_back_counts_as_gone_for_earlier_saves() {
    let fixture = Fixture::new(2, Redundancy::default(), true);
    let (saver, operator) = (fixture.pool(), fixture.pool());
    let then = saver.targets_now().unwrap().unwrap();
    write(&saver, 9).unwrap();
    let on = then.spread().first().unwrap()[0];
    operator.add_target("5", None, Tier::Fast).unwrap();
    saver.check_targets(&then, &Spread::new()).unwrap();
    operator.drain_target(on, None, &All).unwrap();
    operator.add_target(&(on - 1).to_string(), None, Tier::Fast).unwrap();
    // What it had is on another one now, which may be lost.
    let error = saver.check_targets(&then, &Spread::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
    let later = saver.targets_now().unwrap().unwrap();
    write(&saver, 10).unwrap();
    saver.check_targets(&later, &Spread::new()).unwrap();
}

/// Lists of checkpoints are damaged: what else they name is not known.
struct Partial;

impl crate::PackUses for Partial {
    fn named(&self, _: &Pool) -> Result<Option<Named>> {
        Ok(Some(Named { packs: BTreeSet::new(), is_partial: true }))
    }

    fn trimmed(&self, _: &Pool) -> Result<BTreeSet<PackId>> {
        Ok(BTreeSet::new())
    }
}

#[test]
fn a_target_is_not_given_up_if_it_is_not_known_what_is_needed() {
    let fixture = Fixture::new(3, Redundancy::mirror(2), true);
    let id = fixture.take(0);
    let refused = fixture.pool().replace_target(id, "5", false, None, &Partial).unwrap_err();
    assert!(refused.kind() == ErrorKind::Invalid, "{refused}");
    assert!(refused.message().contains("it is not known"), "{refused}");
    fixture.pool().replace_target(id, "5", false, None, &All).unwrap();
    fixture.check("replaced");
}

/// As on a disk that the system has made read-only, since it fails.
#[test]
fn a_target_that_was_given_up_leaves_though_nothing_can_be_deleted_there() {
    for (targets, rule) in rules() {
        let what = rule.describe();
        let fixture = Fixture::new(targets + 1, rule, true);
        let refuse = |_, what: &str| what.starts_with("delete").then_some(ErrorKind::Invalid);
        fixture.world.fail_when(refuse);
        let removed = fixture.pool().remove_target(1, false, None, &All).unwrap_err();
        assert_eq!(removed.kind(), ErrorKind::Invalid, "{what}: {removed}");
        let removed = fixture.pool().remove_target(1, true, None, &All).unwrap();
        assert!(removed.why.is_none() && removed.repair.is_whole(), "{what}: {removed:?}");
        assert_eq!((&removed.repair.removed[..], removed.repair.surplus), (&[1][..], 0), "{what}");
        assert_ne!(fixture.world.process_with(PLACES).0[0].list().unwrap(), [], "{what}");
        fixture.check(&what);
    }
}

/// What a slow target has that is to leave is no copy to rely on, even if no other can take it just now.
#[test]
fn a_fill_counts_no_copy_on_a_target_that_leaves() {
    let fixture = Fixture::new(2, Redundancy::mirror(2), true);
    let leaves = fixture.pool().add_target("5", None, Tier::Slow).unwrap();
    let fill = |pool: &Pool| pool.fill_pack(pack(0), &pool.fill_need().unwrap()).unwrap();
    assert_eq!(fill(&fixture.pool()).left, 0);
    fixture.pool().add_target("6", None, Tier::Slow).unwrap();
    let full = |_, what: &str| what.starts_with("create").then_some(ErrorKind::Full);
    fixture.world.fail_when(full);
    // As a drain does that is killed behind its first step.
    let mut drain = |rows: &mut Rows| {
        rows.get_mut(leaves).unwrap().state = TargetState::Draining;
        Ok(())
    };
    fixture.pool().table().unwrap().change(&mut drain).unwrap();
    let filled = fill(&fixture.pool());
    assert_eq!((filled.shards, filled.left), (0, 1), "{filled:?}");
    assert_eq!(filled.why.unwrap().kind(), ErrorKind::Full);
}

/// (twin:120002998) A fill is killed at any step. What the next one calls done, a power cut does not take back; and what a
/// trim relies on, neither.
#[test]
fn what_a_killed_fill_has_left_is_durable_before_anything_relies_on_it() {
    let mut was_published = false;
    for (step, by_trim) in (0..).flat_map(|step| [(step, false), (step, true)]) {
        let what = format!("killed at {step}");
        let fixture = Fixture::new(2, Redundancy::mirror(2), true);
        fixture.pool().add_target("5", None, Tier::Slow).unwrap();
        let (pool, process) = fixture.process();
        let need = pool.fill_need().unwrap();
        process.kill_after(1 + step);
        let filled = pool.fill_pack(pack(0), &need);
        let is_over = !process.is_killed();
        assert!(!is_over || filled.is_ok_and(|fill| fill.left == 0), "{what}");
        drop(pool);
        let is_there = || !fixture.world.process_with(PLACES).0[5].list().unwrap().is_empty();
        was_published |= is_there() && !is_over;
        let pool = fixture.pool();
        let need = pool.fill_need().unwrap();
        if !by_trim {
            assert_eq!(pool.fill_pack(pack(0), &need).unwrap().left, 0, "{what}");
            fixture.cut_targets();
            assert!(is_there(), "{what}");
        } else if pool.trim_pack(pack(0), &need).is_ok() {
            fixture.cut_targets();
            read(&fixture.pool(), 0, &what);
        }
        if is_over && by_trim {
            break;
        }
    }
    assert!(was_published, "no fill was killed behind the moment at which its shard was visible");
}

/// (members:110002564) A slow tier that is to be emptied keeps nothing: what is only there moves to the fast one.
#[test]
fn a_trimmed_pack_leaves_a_slow_tier_that_leaves() {
    struct Trimmed;
    impl crate::PackUses for Trimmed {
        fn named(&self, pool: &Pool) -> Result<Option<Named>> {
            All.named(pool)
        }
        fn trimmed(&self, _: &Pool) -> Result<BTreeSet<PackId>> {
            Ok(BTreeSet::from([pack(0)]))
        }
    }
    let fixture = Fixture::new(2, Redundancy::mirror(2), true);
    let slow = fixture.pool().add_target("5", None, Tier::Slow).unwrap();
    let pool = fixture.pool();
    pool.fill_pack(pack(0), &pool.fill_need().unwrap()).unwrap();
    pool.trim_pack(pack(0), &pool.fill_need().unwrap()).unwrap();
    let report = fixture.pool().repair(RepairOptions::default(), &Trimmed).unwrap();
    assert_eq!((report.trimmed, report.shards), (1, 0), "{report:?}");
    let drained = fixture.pool().remove_target(slow, false, None, &Trimmed).unwrap();
    assert!(drained.repair.is_whole() && drained.why.is_none(), "{drained:?}");
    fixture.check("without a slow tier");
}

/// A copy that comes to light behind the listing: the process that has written it may have died just then.
#[test]
fn a_trim_makes_the_copy_durable_that_it_relies_on() {
    let fixture = Fixture::new(2, Redundancy::mirror(2), true);
    fixture.pool().add_target("5", None, Tier::Slow).unwrap();
    let pool = fixture.pool();
    let need = pool.fill_need().unwrap();
    for step in 0.. {
        let (other, process) = fixture.process();
        let other_need = other.fill_need().unwrap();
        process.kill_after(1 + step);
        drop(other.fill_pack(pack(0), &other_need));
        drop(other);
        if pool.trim_pack(pack(0), &need).is_ok() {
            assert!(process.is_killed(), "the fill was killed behind the publication");
            break;
        }
    }
    fixture.cut_targets();
    read(&fixture.pool(), 0, "behind the power cut");
}

/// What comes late to a closed target, and cannot be moved just now, keeps the target in the pool.
#[test]
fn a_closed_target_that_is_not_empty_stays() {
    let fixture = Fixture::new(3, Redundancy::mirror(2), true);
    let mut close = |rows: &mut Rows| {
        let row = rows.get_mut(1).unwrap();
        (row.state, row.remove) = (TargetState::Closed, true);
        Ok(())
    };
    fixture.pool().table().unwrap().change(&mut close).unwrap();
    fixture.world.fail_when(|_, what| what.starts_with("create").then_some(ErrorKind::Retry));
    let report = fixture.pool().repair(RepairOptions::default(), &All).unwrap();
    assert!(report.left.contains_key(&1) && report.removed.is_empty(), "{report:?}");
    assert!(fixture.pool().table().unwrap().read().unwrap().get(1).is_some());
    fixture.world.fail_when(|_, _| None);
    assert_eq!(fixture.repair().removed, [1]);
    fixture.check("behind the next repair");
}

/// A target that was given up and still answers stays as long as what it has could not be written elsewhere.
#[test]
fn a_target_that_was_given_up_stays_while_its_packs_cannot_be_written() {
    let fixture = Fixture::new(3, Redundancy::mirror(2), true);
    fixture.world.fail_when(|_, what| what.starts_with("finish").then_some(ErrorKind::Retry));
    let removed = fixture.pool().remove_target(1, true, None, &All).unwrap();
    assert!(removed.why.is_some() && removed.repair.removed.is_empty(), "{removed:?}");
    assert!(!removed.repair.failed.is_empty() && removed.left > 0, "{removed:?}");
    assert!(fixture.pool().table().unwrap().read().unwrap().get(1).is_some());
    fixture.world.fail_when(|_, _| None);
    assert_eq!(fixture.repair().removed, [1]);
    fixture.check("behind the next repair");
}

/// A repair was suspended while it wrote a copy, and its claim was ended meanwhile.
#[test]
fn a_repair_whose_claim_was_ended_deletes_nothing() {
    let fixture = Fixture::new(2, Redundancy::default(), false);
    let name = ShardName { pack: pack(0), shard: 0 };
    let id = {
        let targets = fixture.pool().targets();
        targets.members()[targets.find(name).unwrap()].id
    };
    let mut drain = |rows: &mut Rows| {
        rows.get_mut(id).unwrap().state = TargetState::Draining;
        Ok(())
    };
    fixture.pool().table().unwrap().change(&mut drain).unwrap();
    let pool = fixture.pool();
    let _claimed = pool.alone().unwrap();
    assert!(fixture.pool().release_targets().unwrap().is_some());
    let targets = pool.targets();
    let on = targets.number_of(id).unwrap();
    let listed = Listed { fast: vec![(0, on)], slow: Vec::new() };
    let mut bring = Bring::new(&pool, targets.clone(), pack(0));
    let brought = bring.run(&listed, Allowed { make: true, tidy: true }, &[]).unwrap_err();
    assert_eq!(brought.kind(), ErrorKind::Fenced, "{brought}");
    assert!(targets.members()[on].has(name).unwrap());
}

/// The program was suspended between its last look at the slow tier and the deletion.
#[test]
fn a_trim_whose_claim_was_ended_deletes_nothing() {
    let fixture = Fixture::new(2, Redundancy::mirror(2), false);
    fixture.pool().add_target("5", None, Tier::Slow).unwrap();
    let pool = fixture.pool();
    pool.fill_pack(pack(0), &pool.fill_need().unwrap()).unwrap();
    let need = pool.fill_need().unwrap();
    let claimed = pool.lock_trimming().unwrap();
    assert!(fixture.pool().release_targets().unwrap().is_some());
    let need = if need.is_of(&pool) { need } else { pool.fill_need().unwrap() };
    let trimmed = pool.trim_pack(pack(0), &need).unwrap_err();
    assert_eq!(trimmed.kind(), ErrorKind::Fenced, "{trimmed}");
    assert_eq!(fixture.pool().redundancy().unwrap()[&pack(0)].shards, 2);
    drop(claimed);
    let _claimed = pool.lock_trimming().unwrap();
    pool.trim_pack(pack(0), &pool.fill_need().unwrap()).unwrap();
    assert_eq!(fixture.pool().redundancy().unwrap()[&pack(0)].shards, 0);
}

/// Packs that no checkpoint names are moved off targets that are to be emptied, and otherwise stay where their writer
/// has put them.
#[test]
fn packs_of_a_save_under_way_stay_where_they_are() {
    struct NoneNamed;
    impl crate::PackUses for NoneNamed {
        fn named(&self, _: &Pool) -> Result<Option<Named>> {
            Ok(Some(Named::default()))
        }
        fn trimmed(&self, _: &Pool) -> Result<BTreeSet<PackId>> {
            Ok(BTreeSet::new())
        }
    }
    let fixture = Fixture::new(3, Redundancy::mirror(2), true);
    let name = ShardName { pack: pack(0), shard: 0 };
    let on = fixture.pool().targets().find(name).unwrap();
    let used = fixture.pool().targets().find(ShardName { shard: 1, ..name }).unwrap();
    let to = (0..3).find(|place| ![on, used].contains(place)).unwrap();
    copy_by_hand(&fixture, name, on, to);
    let before = fixture.pool().targets().list().unwrap();
    let report = fixture.pool().repair(RepairOptions::default(), &NoneNamed).unwrap();
    assert_eq!((report.surplus, report.moved), (0, 0));
    assert_eq!(fixture.pool().targets().list().unwrap(), before);
    fixture.pool().add_target("5", None, Tier::Fast).unwrap();
    let change = fixture.pool().drain_target(on as u32 + 1, None, &NoneNamed).unwrap();
    assert_eq!(change.left, 0, "{change:?}");
    assert_eq!(fixture.repair().surplus, 0);
    fixture.check("named now");
}

/// Where the log has no locks, the claim of a live process keeps the processes of all hosts from moving shards; their
/// error names the holder. A person may end the claim, and its holder deletes nothing behind that.
#[test]
fn a_claim_keeps_others_from_moving_shards_until_it_is_ended() {
    let fixture = Fixture::new(3, Redundancy::mirror(2), false);
    let (first, second) = (fixture.pool(), fixture.pool());
    let table = first.table().unwrap().clone();
    let claim = table.claim("release it").unwrap();
    let refused = second.repair(RepairOptions::default(), &All).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Retry, "{refused}");
    let holder = format!("process {}", std::process::id());
    let says = |what: &str| refused.message().contains(what);
    assert!(says(&holder) && says("pool release"), "{refused}");
    table.check_claim().unwrap();
    assert!(second.release_targets().unwrap().unwrap().starts_with("process "));
    assert_eq!(table.check_claim().unwrap_err().kind(), ErrorKind::Fenced);
    let change = table.change(&mut |rows| {
        rows.get_mut(1).unwrap().state = TargetState::Draining;
        Ok(())
    });
    assert_eq!(change.unwrap_err().kind(), ErrorKind::Fenced);
    drop(claim);
    second.repair(RepairOptions::default(), &All).unwrap();
    assert_eq!(second.release_targets().unwrap(), None);
    // Reading and saving need no claim, and are no change of the targets.
    let claim = table.claim("release it").unwrap();
    let before = second.targets();
    second.refresh_targets().unwrap();
    assert!(Arc::ptr_eq(&before, &second.targets()));
    write(&second, 11).unwrap();
    drop(claim);
}

/// A process whose claim cannot be taken or given back, as the log fails just then, is not kept out by that claim.
#[test]
fn a_claim_that_was_not_given_back_does_not_keep_its_own_process_out() {
    let (mut kept_out, mut step) = (0, 0);
    loop {
        let fixture = Fixture::new(3, Redundancy::mirror(2), false);
        let (first, second) = (fixture.pool(), fixture.pool());
        let table = first.table().unwrap().clone();
        let fails = fixture.world.ops() + step;
        fixture.world.fail_at(fails, ErrorKind::Retry);
        drop(table.claim("release it"));
        if fixture.world.ops() <= fails {
            break;
        }
        kept_out += u32::from(second.repair(RepairOptions::default(), &All).is_err());
        drop(table.claim("release it").unwrap());
        second.repair(RepairOptions::default(), &All).unwrap();
        step += 1;
    }
    assert!(kept_out > 0, "a claim stayed in the log in one of {step} cases");
}

/// (group:91004981) A gc that was killed has left one shard of a pack that no checkpoint names: that is no damage, and
/// keeps a target in the pool until a gc has deleted it.
#[test]
fn what_is_left_of_a_pack_that_nothing_names_is_no_damage() {
    let fixture = Fixture::new(4, Redundancy::erasure(2, 1), true);
    let unneeded = pack(PACKS);
    let writer = fixture.pool();
    let place = {
        write(&writer, PACKS).unwrap();
        let targets = writer.targets();
        let places: Vec<usize> =
            writer.shards_of(unneeded).iter().map(|name| targets.find(*name).unwrap()).collect();
        for (shard, place) in (0..).zip(&places).skip(1) {
            let name = ShardName { pack: unneeded, shard };
            fixture.world.process_with(PLACES).0[*place].delete(name).unwrap();
        }
        places[0]
    };
    let id = place as u32 + 1;
    let drained = fixture.pool().drain_target(id, None, &All).unwrap();
    assert_eq!((drained.left, drained.repair.unneeded), (1, 1), "{drained:?}");
    assert_eq!(drained.repair.lost, []);
    let why = drained.why.unwrap();
    assert!(why.kind() == ErrorKind::Retry && why.message().contains("outlive gc"), "{why}");
    let removed = fixture.pool().remove_target(id, false, None, &All).unwrap_err();
    assert_eq!(removed.kind(), ErrorKind::Retry, "{removed}");
    // As far as is known, a checkpoint may need it.
    let report = fixture.pool().repair(RepairOptions::default(), &crate::AllNamed).unwrap();
    assert_eq!((report.lost.len(), report.unneeded), (1, 0), "{report:?}");
    let report = fixture.pool().repair(RepairOptions::default(), &Partial).unwrap();
    assert_eq!((report.lost.len(), report.unneeded), (1, 0), "{report:?}");
    // As a gc does.
    let name = ShardName { pack: unneeded, shard: 0 };
    fixture.world.process_with(PLACES).0[place].delete(name).unwrap();
    let removed = fixture.pool().remove_target(id, false, None, &All).unwrap();
    assert!(removed.why.is_none() && removed.repair.is_whole(), "{removed:?}");
    fixture.check("behind the gc");
}

/// (members:93000076) The only slow target is to be emptied. A copy there goes once the fast one is whole, be it that it
/// was made whole by the same command.
#[test]
fn a_slow_copy_that_leaves_goes_behind_a_whole_fast_one() {
    let fixture = Fixture::new(2, Redundancy::mirror(2), true);
    let slow = fixture.pool().add_target("5", None, Tier::Slow).unwrap();
    let names: Vec<ShardName> =
        (0..PACKS).map(|number| ShardName { pack: pack(number), shard: 0 }).collect();
    let on = |name: &ShardName| fixture.pool().targets().find(*name).unwrap();
    let first = on(&names[0]);
    names.iter().for_each(|name| copy_by_hand(&fixture, *name, on(name), 5));
    fixture.world.corrupt_on(first, names[0], 4096 + 500, 1);
    fixture.world.corrupt_on(5, names[0], 4096 + 700, 1);
    let drained = fixture.pool().drain_target(slow, None, &All).unwrap();
    let why = drained.why.unwrap().message().to_owned();
    assert!(drained.left == 1 && why.contains("no whole copy on the fast tier"), "{why}");
    let pool = fixture.pool();
    let faults = pool.check_pack(pack(0), &mut |_, _, _| Ok(())).unwrap().faults;
    let faults = BTreeMap::from([(pack(0), faults)]);
    let pace = outlive_io::Pace::new(None);
    let mended = pool.mend(&faults, &BTreeSet::new(), &pace).unwrap().remove(0).1.unwrap();
    assert_eq!((mended.shards, mended.left.len()), (1, 0), "{mended:?}");
    assert_eq!(fixture.world.process_with(PLACES).0[5].list().unwrap(), []);
    read(&fixture.pool(), 0, "behind the mend");
}
