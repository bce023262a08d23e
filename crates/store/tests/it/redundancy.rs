//! Pools whose targets fail: whatever is lost within their redundancy, every checkpoint is there,
//! gcs and scrubs go on, and data that is only away does not count as lost.

use crate::common;

use common::{Program, State, changed, noise, small_config};
use outlive_backend::{FaultProcess, FaultWorld, ShardName, Target};
use outlive_log::ManifestLog;
use outlive_pool::{Environment, Pool, PoolConfig, Redundancy, RepairOptions};
use outlive_store::gc::{GcOptions, collect};
use outlive_store::scrub::{ScrubOptions, scrub};
use outlive_store::{Sample, Select, checkpoint_redundancy, repair};
use outlive_types::ErrorKind;
use std::sync::Arc;

const SCRUB: ScrubOptions = ScrubOptions { sample: Sample::ALL, bytes_per_s: None, dry_run: false };

struct Fixture {
    /// The log, and all targets.
    world: FaultWorld,
    targets: usize,
    rule: Redundancy,
}

impl Fixture {
    fn new(targets: usize, rule: Redundancy) -> Fixture {
        Fixture { world: FaultWorld::new(), targets, rule }
    }

    fn open(&self) -> (Vec<Arc<dyn Target>>, Pool) {
        let (targets, pool, _) = self.process();
        (targets, pool)
    }

    fn process(&self) -> (Vec<Arc<dyn Target>>, Pool, FaultProcess) {
        let (targets, log, process) = self.world.process_with(self.targets);
        let (redundancy, mut config) = (self.rule.clone(), small_config());
        config.tuning.reads_around = false;
        let config = PoolConfig { redundancy, ..config };
        let log: Arc<dyn ManifestLog> = log;
        let pool = Pool::over(config, targets.clone(), log, Environment::system());
        (targets, pool, process)
    }

    fn pool(&self) -> Pool {
        self.open().1
    }

    fn shards(&self) -> Vec<(ShardName, usize, u64)> {
        let (targets, _) = self.open();
        let of = |(number, target): (usize, &Arc<dyn Target>)| {
            let length = |name| (name, number, target.length(name).unwrap());
            target.list().unwrap().into_iter().map(length).collect::<Vec<_>>()
        };
        targets.iter().enumerate().flat_map(of).collect()
    }
}

fn rules() -> Vec<(usize, Redundancy)> {
    vec![(2, Redundancy::mirror(2)), (3, Redundancy::erasure(2, 1)), (7, Redundancy::erasure(4, 2))]
}

fn states() -> Vec<State> {
    let first = State::from([("a".to_owned(), noise(1, 150_000)), ("b".to_owned(), vec![1, 2, 3])]);
    let second = changed(first.clone(), 3, 2);
    let third = changed(second.clone(), 30, 3);
    vec![first, second, third]
}

fn save(pool: &Pool, states: &[State]) {
    let program = Program::start(pool, "job");
    states.iter().for_each(|state| drop(program.save(state).unwrap()));
}

/// Checks that every checkpoint is unchanged.
fn check(pool: &Pool, states: &[State], what: &str) {
    for (epoch, state) in (1..).zip(states) {
        let restored = Program::start(pool, "job").restore(Select::Epoch(epoch));
        let (_, restored) =
            restored.unwrap_or_else(|e| panic!("{what}: {e}")).expect("it is there");
        assert!(restored == *state, "{what}: epoch {epoch}");
    }
}

#[test]
fn every_byte_of_a_shard_may_be_wrong_and_a_scrub_mends_it() {
    for (targets, rule) in rules() {
        let fixture = Fixture::new(targets, rule.clone());
        save(&fixture.pool(), &states());
        let first = fixture.shards()[0].0.pack;
        let shards: Vec<_> =
            fixture.shards().into_iter().filter(|one| one.0.pack == first).collect();
        for (shard, _, length) in shards {
            for offset in (0..length).step_by(1009).chain([length - 1]) {
                fixture.world.corrupt(shard, offset, 0x10);
            }
            let what = format!("{rule:?}: {shard}");
            check(&fixture.pool(), &states(), &what);
            let report = scrub(&fixture.pool(), &SCRUB).unwrap();
            assert!(report.is_whole() && report.damaged.is_empty(), "{what}: {report:?}");
            assert_eq!((report.degraded.len(), report.repaired), (1, 1), "{what}");
            let again = scrub(&fixture.pool(), &SCRUB).unwrap();
            assert!(again.degraded.is_empty() && again.is_whole(), "{what}: {again:?}");
        }
    }
}

/// A repair or a scrub was killed while it rewrote a shard. Its leftover is no save under way: the
/// next scrub repairs the pack, and reports it if it cannot.
#[test]
fn leftovers_of_a_killed_repair_hide_no_damage() {
    for lost in [1, 2] {
        let fixture = Fixture::new(3, Redundancy::erasure(2, 1));
        save(&fixture.pool(), &states());
        let first = fixture.shards()[0].0.pack;
        let shards = fixture.shards().into_iter().filter(|(name, ..)| name.pack == first);
        let (targets, _) = fixture.open();
        for (name, on, length) in shards.take(lost) {
            targets[on].delete(name).unwrap();
            // The process was killed: nothing removes its part.
            std::mem::forget(targets[on].create(name, length).unwrap());
        }
        let report = scrub(&fixture.pool(), &SCRUB).unwrap();
        if lost == 1 {
            assert!(report.is_whole() && report.repaired == 1, "{report:?}");
            let again = scrub(&fixture.pool(), &SCRUB).unwrap();
            assert!(again.degraded.is_empty() && again.is_whole(), "{again:?}");
            check(&fixture.pool(), &states(), "mended");
        } else {
            assert!(!report.is_whole() && report.heal.condemned.contains(&first), "{report:?}");
        }
    }
}

/// A program stands still, or has been killed, in the middle of a save. Its unfinished shards are
/// no fault of the pack.
#[test]
fn a_scrub_finds_nothing_wrong_with_a_pack_that_is_being_written() {
    for (targets, rule) in rules() {
        let mut partly_finished = 0;
        for step in 1.. {
            let fixture = Fixture::new(targets, rule.clone());
            let what = format!("{rule:?}, step {step}");
            save(&fixture.pool(), &states()[..1]);
            let (_, pool, process) = fixture.process();
            let program = Program::start(&pool, "job");
            process.kill_after(step);
            let saved = program.save(&states()[1]);
            let is_over = !process.is_killed();
            assert_eq!(saved.is_ok(), is_over, "{what}");
            let (_, other) = fixture.open();
            let unfinished = other.unfinished_packs().unwrap();
            let finished = other.packs().unwrap();
            partly_finished += unfinished.iter().filter(|pack| finished.contains(pack)).count();
            for dry_run in [true, false] {
                let report = scrub(&fixture.pool(), &ScrubOptions { dry_run, ..SCRUB }).unwrap();
                assert!(report.is_whole() && report.repaired == 0, "{what}: {report:?}");
                assert!(report.degraded.is_empty(), "{what}: {report:?}");
            }
            if is_over {
                break;
            }
        }
        assert!(partly_finished > 0, "{rule:?}");
    }
}

/// While targets are away, saves, restores, gcs and scrubs go on, and their gaps are repaired when
/// the targets are back as they were.
#[test]
fn work_goes_on_while_targets_are_away() {
    for (targets, rule) in rules() {
        let m = rule.survives();
        let fixture = Fixture::new(targets, rule.clone());
        let what = format!("{rule:?}");
        let pool = fixture.pool();
        let program = Program::start(&pool, "job");
        let states = states();
        program.save(&states[0]).unwrap();
        for target in 0..m {
            fixture.world.set_away(target, true);
        }
        program.save(&states[1]).unwrap();
        check(&fixture.pool(), &states[..2], &what);
        let spare = |pool: &Pool| -> Vec<i64> {
            let found = checkpoint_redundancy(pool).unwrap();
            found.iter().map(|one| one.spare.clone().unwrap()).collect()
        };
        assert!(spare(&pool).iter().all(|spare| (0..=m as i64).contains(spare)), "{what}");
        // With more targets than a stripe has parts, a pack need not have been on both.
        let left = if targets == usize::from(rule.geometry(0).k) + m { 0 } else { m as i64 - 1 };
        assert!(spare(&pool)[0] <= left, "{what}: m targets of all are away");
        // The pool is not whole, but nothing is damaged.
        let report = scrub(&fixture.pool(), &SCRUB).unwrap();
        assert!(!report.is_whole() && !report.is_incomplete(), "{what}: {report:?}");
        assert!(report.damaged.is_empty() && report.repaired == 0, "{what}: {report:?}");
        collect(&fixture.pool(), &GcOptions::default()).unwrap();
        // One more than it survives: nothing is reported as lost, and nothing is done.
        fixture.world.set_away(m, true);
        match Program::start(&fixture.pool(), "job").restore(Select::Newest) {
            Ok(restored) => assert!(restored.unwrap().1 == states[1], "{what}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Retry, "{what}: {error}"),
        }
        for error in [
            scrub(&fixture.pool(), &SCRUB).map(drop).unwrap_err(),
            collect(&fixture.pool(), &GcOptions::default()).map(drop).unwrap_err(),
            repair(&fixture.pool(), RepairOptions::default()).map(drop).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Retry, "{what}: {error}");
        }
        for target in 0..=m {
            fixture.world.set_away(target, false);
        }
        check(&fixture.pool(), &states[..2], &what);
        // Shards that a gc has deleted meanwhile appear on them again, and the next gc deletes
        // them.
        collect(&fixture.pool(), &GcOptions::default()).unwrap();
        let repaired = repair(&fixture.pool(), RepairOptions::default()).unwrap();
        assert!(repaired.is_whole(), "{what}: {repaired:?}");
        assert!(spare(&fixture.pool()).iter().all(|spare| *spare == m as i64), "{what}");
        check(&fixture.pool(), &states[..2], &what);
    }
}

/// At any moment of a save, a gc or a repair, m targets may be lost forever.
#[test]
fn targets_may_be_lost_at_any_moment() {
    for (targets, rule) in rules() {
        let m = rule.survives();
        let rule = Redundancy { writes: outlive_pool::Writes::Full, ..rule };
        for step in (0..).step_by(7) {
            let fixture = Fixture::new(targets, rule.clone());
            let what = format!("{rule:?}, step {step}");
            let (states, mut committed) = (states(), Vec::new());
            let world = fixture.world.clone();
            save(&fixture.pool(), &states[..1]);
            committed.push(states[0].clone());
            // It is lost while an operation of another thread is under way.
            let at = world.ops() + step;
            let (sender, is_due) = std::sync::mpsc::channel();
            world.fail_when(move |op, _| {
                if op == at {
                    sender.send(()).unwrap();
                }
                None
            });
            let loser = {
                let world = world.clone();
                std::thread::spawn(move || {
                    let is_due = is_due.recv().is_ok();
                    if is_due {
                        (0..m).for_each(|target| {
                            world.lose_target((step as usize + target) % targets)
                        });
                    }
                    is_due
                })
            };
            let pool = fixture.pool();
            let program = Program::start(&pool, "job");
            if program.save(&states[1]).is_ok() {
                committed.push(states[1].clone());
            }
            let _ = collect(&pool, &GcOptions::default());
            let _ = repair(&pool, RepairOptions::default());
            world.fail_when(|_, _| None);
            let was_due = loser.join().unwrap();
            check(&fixture.pool(), &committed, &what);
            let report = repair(&fixture.pool(), RepairOptions::default()).unwrap();
            assert!(report.failed.is_empty() && report.missing == 0, "{what}: {report:?}");
            check(&fixture.pool(), &committed, &what);
            let report = scrub(&fixture.pool(), &SCRUB).unwrap();
            assert!(report.is_whole(), "{what}: {report:?}");
            if !was_due {
                break;
            }
        }
    }
}
