//! Gc and savers stopped at every step while the others go on: docs/design/009-gc.md, move by move.

use crate::common;
use crate::stepped;
use outlive_log::RecordLog;

use common::{Program, State, changed, noise};
use outlive_backend::FaultWorld;
use outlive_dir::{DirectoryMedium, DirectoryOptions, DirectoryTarget};
use outlive_format::{Body, SegmentRef};
use outlive_pool::{Pool, StoredShard, Tuning};
use outlive_store::commit::history;
use outlive_store::gc::{GcOptions, GcReport, Thoroughness, collect};
use outlive_store::index::read_segment;
use outlive_store::{Job, Select, without_collected};
use outlive_types::{Epoch, ErrorKind, JobName, Result};
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use stepped::{Gate, Steps, World};

/// States of each job's checkpoints.
type Expected = BTreeMap<&'static str, BTreeMap<Epoch, State>>;

fn state(seed: u64) -> State {
    State::from([("a".to_owned(), noise(seed, 120_000)), ("b".to_owned(), vec![seed as u8; 50])])
}

fn epochs(pool: &Pool, job: &str) -> Vec<Epoch> {
    let job = Job::open(pool, job, Default::default()).unwrap();
    job.epochs().unwrap().iter().map(|info| info.epoch).collect()
}

fn check(pool: &Pool, expected: &Expected, what: &str) {
    for (job, states) in expected {
        assert_eq!(epochs(pool, job), states.keys().copied().collect::<Vec<_>>(), "{what}: {job}");
        let program = Program::start(pool, job);
        for (epoch, state) in states {
            let restored = program.restore(Select::Epoch(*epoch));
            let (_, restored) = restored.unwrap_or_else(|e| panic!("{what}: {job}: {e}")).unwrap();
            assert!(restored == *state, "{what}: epoch {epoch} of {job}");
        }
    }
}

/// Drops the past of job `a`, and collects thoroughly.
fn prune(pool: &Pool) -> Result<GcReport> {
    let drop = [(JobName::new("a")?, [1, 2].into())].into();
    collect(pool, &GcOptions { drop, thoroughness: thorough(), ..GcOptions::default() })
}

fn gc(pool: &Pool) -> Result<GcReport> {
    collect(pool, &GcOptions { thoroughness: thorough(), ..GcOptions::default() })
}

fn thorough() -> Thoroughness {
    Thoroughness { unused_max: 0.0, ..Thoroughness::default() }
}

/// Two jobs with a past, both closed. Much of `a`'s first pack is dead once it is pruned, and `b`
/// shares part of it.
fn past(world: &World) -> Expected {
    let pool = world.pool();
    let mut expected = Expected::new();
    let program = Program::start(&pool, "a");
    for (epoch, state) in [(1, state(1)), (2, changed(state(1), 3, 77)), (3, state(2))] {
        program.save(&state).unwrap();
        expected.entry("a").or_default().insert(epoch, state);
    }
    let borrowing = changed(state(1), 9, 78);
    Program::start(&pool, "b").save(&borrowing).unwrap();
    expected.entry("b").or_default().insert(1, borrowing);
    // A job that shares nothing with the others, in a pack too large to be merged.
    let apart = State::from([("a".to_owned(), noise(9, 200_000))]);
    Program::start(&pool, "d").save(&apart).unwrap();
    expected.entry("d").or_default().insert(1, apart);
    expected
}

/// Rule 5: no manifest lists an extent in a pack that its own log had reported as condemned before.
fn check_rule_5(pool: &Pool, what: &str) {
    for job in pool.jobs().unwrap() {
        let mut named: HashSet<SegmentRef> = HashSet::new();
        for entry in history(pool, &job).unwrap() {
            let condemned = match entry.record.unwrap().body {
                Body::Manifest(manifest) => {
                    named.extend(manifest.images.one().unwrap().segments.clone());
                    continue;
                }
                Body::Sweep(sweep) => sweep.packs,
                Body::Archive(archive) => archive.condemned,
                _ => continue,
            };
            for segment in &named {
                let directory = read_segment(pool, segment).unwrap();
                let bad =
                    condemned.iter().find(|p| directory.packs.contains(p) || **p == segment.pack);
                assert_eq!(bad, None, "{what}: {job} names a condemned pack");
            }
        }
    }
}

/// The end of every test: all is as expected, also after another gc, and the remaining packs are in
/// use.
fn conclude(world: &World, expected: &Expected, what: &str) {
    let pool = world.pool();
    check(&pool, expected, what);
    check_rule_5(&pool, what);
    for _ in 0..2 {
        gc(&pool).unwrap_or_else(|e| panic!("{what}: {e}"));
        check(&pool, expected, &format!("{what}, after another gc"));
    }
    let report = gc(&pool).unwrap();
    assert_eq!((report.deleted, report.held, report.plan.copied_bytes), (0, 0, 0), "{what}");
    assert!(report.plan.live_bytes * 10 > report.plan.total_bytes * 7, "{what}: {report:?}");
}

/// Two checkpoints of the same state, each in a pack of its own. A gc finds the needs of both in
/// the newest, which is dropped at each of its steps in turn.
#[test]
fn the_newest_is_dropped_at_every_step_of_a_gc() {
    let steps = Steps::default();
    let mut number = 0;
    loop {
        let world = World::new();
        let pool = world.pool();
        // This pool does not know which chunks it has stored already.
        let forgetful = Tuning { index_bytes_max: 0, ..pool.config().tuning.clone() };
        let forgetful = pool.with_tuning(forgetful);
        for _ in 1..=2 {
            Program::start(&forgetful, "a").save(&state(1)).unwrap();
        }
        assert_eq!(pool.packs().unwrap().len(), 2);
        let dropped = Arc::new(AtomicBool::new(false));
        let (other, is_dropped) = (world.pool(), dropped.clone());
        let stepped = world.stepped(&steps);
        steps.hook(move |at, _| {
            if at == number && !is_dropped.swap(true, Ordering::SeqCst) {
                let drop = [(JobName::new("a").unwrap(), [2].into())].into();
                let only = Thoroughness { collect: false, ..thorough() };
                let options = GcOptions { drop, thoroughness: only, ..GcOptions::default() };
                collect(&other, &options).unwrap();
            }
        });
        gc(&stepped).unwrap();
        if !dropped.load(Ordering::SeqCst) {
            assert!(number > 20, "{number} steps");
            break;
        }
        let expected = Expected::from([("a", [(1, state(1))].into())]);
        conclude(&world, &expected, &format!("step {number}"));
        number += 1;
    }
}

#[test]
fn a_gc_within_a_gc_at_every_step() {
    let steps = Steps::default();
    let world = World::new();
    past(&world);
    prune(&world.stepped(&steps)).unwrap();
    let total = steps.count();
    assert!(total > 40, "{total} steps are enough to interleave");
    let mut fenced = 0;
    for at in 0..total {
        let world = World::new();
        let mut expected = past(&world);
        let inner = world.pool();
        let what = Arc::new(Mutex::new(String::new()));
        let name = what.clone();
        let steps = Steps::default();
        steps.hook(move |number, op| {
            if number == at {
                *name.lock().unwrap() = format!("a whole gc before step {at}, {op}");
                gc(&inner).unwrap();
            }
        });
        let outcome = prune(&world.stepped(&steps));
        let what = what.lock().unwrap().clone();
        if let Err(error) = outcome {
            assert!(
                matches!(error.kind(), ErrorKind::Fenced | ErrorKind::Damaged | ErrorKind::Retry),
                "{what}: {error}"
            );
            fenced += u64::from(error.kind() == ErrorKind::Fenced);
        }
        let kept = epochs(&world.pool(), "a");
        assert!(kept == [3] || kept == [1, 2, 3], "{what}: {kept:?}");
        expected.get_mut("a").unwrap().retain(|epoch, _| kept.contains(epoch));
        conclude(&world, &expected, &what);
    }
    assert!(fenced * 2 > total, "the earlier one was told {fenced} times of {total}");
}

/// Work of the saver that is stopped at some step.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Saver {
    /// Job `a` goes on after a restore: it shares with the checkpoint before.
    GoesOn,
    /// Job `c` begins, and shares chunks of `a`'s past.
    Borrows,
    /// Job `c`, which has a checkpoint and was closed, is opened again and shares chunks.
    Returns,
    /// Job `0`, which gets its report before `a`, ends its session, opens another and shares
    /// chunks.
    Reopens,
}

impl Saver {
    const ALL: [Saver; 4] = [Saver::GoesOn, Saver::Borrows, Saver::Returns, Saver::Reopens];

    fn job(self) -> &'static str {
        match self {
            Saver::GoesOn => "a",
            Saver::Borrows | Saver::Returns => "c",
            Saver::Reopens => "0",
        }
    }

    /// Makes the earlier checkpoints; returns the program that will save.
    fn before(self, world: &World, pool: &Pool, expected: &mut Expected) -> Program {
        let program = match self {
            Saver::Returns => {
                Program::start(&world.pool(), "c").save(&state(5)).unwrap();
                expected.entry("c").or_default().insert(1, state(5));
                Program::start(pool, "c")
            }
            Saver::Reopens => {
                let program = Program::start(pool, "0");
                program.save(&state(5)).unwrap();
                expected.entry("0").or_default().insert(1, state(5));
                program
            }
            _ => Program::start(pool, self.job()),
        };
        if self == Saver::GoesOn {
            program.restore(Select::Newest).unwrap();
        }
        program
    }

    /// Saves; returns the program that goes on afterwards.
    fn save(self, program: Program, pool: &Pool) -> (Program, Result<Epoch>) {
        let program = match self {
            Saver::Reopens => {
                drop(program);
                Program::start(pool, "0")
            }
            _ => program,
        };
        let saved = program.save(&self.saves()).map(|stats| stats.epoch);
        (program, saved)
    }

    fn saves(self) -> State {
        match self {
            Saver::GoesOn => changed(state(2), 5, 99),
            // The first and the last state of job `a`, half and half.
            _ => {
                let mut mixed = changed(state(1), 11, 99);
                mixed.insert("c".to_owned(), noise(2, 120_000));
                mixed
            }
        }
    }
}

/// A save stops before its step `at`, a whole prune runs, then the save goes on. Before its next
/// append there may be another prune, of an unrelated job.
fn gcs_within_a_save(saver: Saver, at: u64, gcs: usize) -> bool {
    let world = World::new();
    let mut expected = past(&world);
    let others = world.pool();
    let what = Arc::new(Mutex::new(String::new()));
    let name = what.clone();
    let steps = Steps::default();
    let pool = world.stepped(&steps);
    let program = saver.before(&world, &pool, &mut expected);
    let again = AtomicBool::new(false);
    steps.hook(move |number, op| {
        if number == at {
            *name.lock().unwrap() = format!("{saver:?}, {gcs} gcs before step {at}, {op}");
            // While it stands still, it holds the condemned packs.
            prune(&others).unwrap();
            again.store(gcs > 1, Ordering::Release);
        } else if op == "append" && again.swap(false, Ordering::AcqRel) {
            let drop = [(JobName::new("d").unwrap(), [1].into())].into();
            collect(&others, &GcOptions { drop, ..GcOptions::default() }).unwrap();
        }
    });
    let (program, saved) = saver.save(program, &pool);
    let what = what.lock().unwrap().clone();
    let epoch = saved.unwrap_or_else(|error| panic!("{what}: {error}"));
    if at >= steps.count() {
        return false;
    }
    expected.get_mut("a").unwrap().retain(|epoch, _| *epoch >= 3);
    if epochs(&world.pool(), "d").is_empty() {
        expected.get_mut("d").unwrap().clear();
    }
    let state = saver.saves();
    expected.entry(saver.job()).or_default().insert(epoch, state.clone());
    check(&world.pool(), &expected, &what);
    check_rule_5(&world.pool(), &what);
    // The program goes on from there.
    let next = changed(state, 20, 100);
    let stats = program.save(&next).unwrap_or_else(|e| panic!("{what}: {e}"));
    expected.entry(saver.job()).or_default().insert(stats.epoch, next);
    // The step may be after the commit; then the second prune comes with this save.
    if epochs(&world.pool(), "d").is_empty() {
        expected.get_mut("d").unwrap().clear();
    }
    gc(&world.pool()).unwrap();
    check(&world.pool(), &expected, &what);
    drop(program);
    conclude(&world, &expected, &what);
    true
}

#[test]
fn gcs_within_a_save_at_every_step() {
    for saver in Saver::ALL {
        for gcs in [1, 2] {
            let steps = (0..).take_while(|at| gcs_within_a_save(saver, *at, gcs)).count();
            assert!(steps > 8, "{saver:?} has {steps} steps");
        }
    }
}

/// The thread of a save, and the program that goes on afterwards.
type Saving = std::thread::JoinHandle<(Program, Result<Epoch>)>;

/// A save begins before the gc's step `from`, stops before its own step `at`, and goes on before
/// the gc's step `to`, or at its end.
struct Overlap {
    saver: Saver,
    from: u64,
    at: u64,
    to: u64,
}

impl Overlap {
    /// Returns the number of steps of the save and of the gc.
    fn run(&self) -> (u64, u64) {
        let Overlap { saver, from, at, to } = *self;
        let world = World::new();
        let mut expected = past(&world);
        let gate = Gate::default();
        let stop = gate.clone();
        let (save_steps, gc_steps) = (Steps::default(), Steps::default());
        let saving = world.stepped(&save_steps);
        let program = saver.before(&world, &saving, &mut expected);
        save_steps.hook(move |number, _| {
            if number == at {
                stop.stop();
            }
        });
        let over = Arc::new(AtomicBool::new(false));
        let thread: Arc<Mutex<Option<Saving>>> = Arc::default();
        let what = format!("{saver:?} from {from}, stopped at {at}, on at {to}");
        let program = Mutex::new(Some(program));
        {
            let (gate, over, thread) = (gate.clone(), over.clone(), thread.clone());
            gc_steps.hook(move |number, _| {
                if number == from
                    && let Some(program) = program.lock().unwrap().take()
                {
                    let (done, saving) = (over.clone(), saving.clone());
                    *thread.lock().unwrap() = Some(std::thread::spawn(move || {
                        let saved = saver.save(program, &saving);
                        done.store(true, Ordering::Release);
                        saved
                    }));
                    gate.wait_reached(|| over.load(Ordering::Acquire));
                }
                if number == to {
                    gate.open();
                }
            });
        }
        let pruned = prune(&world.stepped(&gc_steps));
        gate.open();
        let saved = thread.lock().unwrap().take().map(|thread| thread.join().unwrap());
        pruned.unwrap_or_else(|e| panic!("{what}: {e}"));
        expected.get_mut("a").unwrap().retain(|epoch, _| *epoch >= 3);
        if let Some((program, saved)) = saved {
            let epoch = saved.unwrap_or_else(|e| panic!("{what}: {e}"));
            expected.entry(saver.job()).or_default().insert(epoch, saver.saves());
            check(&world.pool(), &expected, &what);
            gc(&world.pool()).unwrap();
            check(&world.pool(), &expected, &what);
            drop(program);
            conclude(&world, &expected, &what);
        }
        (save_steps.count(), gc_steps.count())
    }
}

#[test]
fn a_restore_beside_a_gc_finds_moved_chunks() {
    let mut at = 0;
    loop {
        let world = World::new();
        past(&world);
        let (others, steps) = (world.pool(), Steps::default());
        steps.hook(move |number, _| {
            if number == at {
                prune(&others).unwrap();
            }
        });
        let program = Program::start(&world.stepped(&steps), "a");
        let restored = program.restore(Select::Newest).unwrap_or_else(|e| panic!("{at}: {e}"));
        assert!(restored == Some((3, state(2))), "before step {at}");
        // The next save follows the checkpoint to its new extents.
        let next = changed(state(2), 1, 5);
        assert_eq!(program.save(&next).unwrap().epoch, 4);
        gc(&world.pool()).unwrap();
        if at >= steps.count() {
            break;
        }
        let expected = [("a", [(3, state(2)), (4, next)].into())].into();
        check(&world.pool(), &expected, &format!("a prune before step {at}"));
        at += 1;
    }
    assert!(at > 8, "{at} steps");
}

#[test]
fn a_save_overlaps_a_gc_in_every_way() {
    for saver in Saver::ALL {
        let (saves, gcs) = Overlap { saver, from: 0, at: u64::MAX, to: 0 }.run();
        assert!(saves > 8 && gcs > 40, "{saver:?}: {saves} and {gcs} steps");
        // All pairs would be too many; strides that share no factor with anything meet most of
        // them.
        let mut number = 0;
        for from in (0..gcs).step_by(11) {
            for at in 0..saves {
                number += 1;
                let to = from + 1 + (number * 7) % (gcs - from);
                Overlap { saver, from, at, to }.run();
            }
        }
    }
}

/// A gc finds a shard unfinished. The save finishes and commits it, and the program ends, before
/// the gc lists the packs, or the jobs. A checkpoint needs it, though its program no longer runs.
#[test]
fn a_program_that_ends_while_a_gc_looks_keeps_its_checkpoint() {
    for ends_before in ["list", "jobs"] {
        let dir = tempfile::tempdir().unwrap();
        let options = DirectoryOptions::default();
        let world = World {
            target: Arc::new(DirectoryTarget::open(dir.path(), &options).unwrap()),
            log: Arc::new(RecordLog::over(DirectoryMedium::open(dir.path()))),
        };
        Program::start(&world.pool(), "other").save(&state(1)).unwrap();
        let (finishing, steps) = (Gate::default(), Steps::default());
        let gate = finishing.clone();
        steps.hook(move |_, op| {
            if op == "finish" {
                gate.stop();
            }
        });
        let program = Program::start(&world.stepped(&steps), "job");
        let handle = program.job.save(&mut program.source(&state(2))).unwrap();
        finishing.wait_reached(|| handle.done());
        assert_eq!(world.target.unfinished().unwrap().len(), 1);

        let (program, has_looked) = (Mutex::new(Some(program)), AtomicBool::new(false));
        let steps = Steps::default();
        steps.hook(move |_, op| {
            has_looked.fetch_or(op == "list unfinished", Ordering::AcqRel);
            if op == ends_before
                && has_looked.load(Ordering::Acquire)
                && let Some(program) = program.lock().unwrap().take()
            {
                finishing.open();
                handle.wait(None).unwrap().unwrap();
                program.job.close().unwrap();
            }
        });
        let report = gc(&world.stepped(&steps)).unwrap();
        assert_eq!(report.plan.leftovers, 0, "before {ends_before}: its shard is finished");
        let (epoch, restored) = Program::start(&world.pool(), "job")
            .restore(Select::Newest)
            .expect("what was committed is there")
            .unwrap();
        assert!(epoch == 1 && restored == state(2), "before {ends_before}");
    }
}

/// A save that is stopped during its rebase may have finished some of its packs: the next save must
/// not take their names.
#[test]
fn a_failure_while_mending_costs_one_save() {
    let large = State::from([("a".to_owned(), noise(1, 700_000))]);
    for failing in 0..3 {
        let faults = FaultWorld::new();
        let world = World { target: faults.target(), log: faults.log() };
        Program::start(&world.pool(), "past").save(&large).unwrap();
        let steps = Steps::default();
        let program = Program::start(&world.stepped(&steps), "job");
        let others = world.pool();
        let mut small = large.clone();
        small.insert("own".to_owned(), vec![1; 100]);
        let appends = std::sync::atomic::AtomicU64::new(0);
        let world_of_faults = faults.clone();
        steps.hook(move |_, op| {
            // The first append opens the session, the second one offers the manifest.
            if op == "append" && appends.fetch_add(1, Ordering::AcqRel) == 1 {
                let drop = [(JobName::new("past").unwrap(), [1].into())].into();
                collect(&others, &GcOptions { drop, ..GcOptions::default() }).unwrap();
                let finishes = std::sync::atomic::AtomicU64::new(0);
                world_of_faults.fail_when(move |_, name| {
                    let is_finish = name.starts_with("finish") && name.ends_with("visible");
                    let fails = is_finish && finishes.fetch_add(1, Ordering::AcqRel) == failing;
                    fails.then_some(ErrorKind::Retry)
                });
            }
        });
        let error = program.save(&small).expect_err("a pack of what was mended cannot be finished");
        assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
        let stats = program.save(&small).unwrap_or_else(|e| panic!("{failing}: {e}"));
        let (epoch, restored) =
            Program::start(&world.pool(), "job").restore(Select::Newest).unwrap().unwrap();
        assert!(epoch == stats.epoch && restored == small);
    }
}

#[test]
fn a_gc_at_any_step_of_a_verify_is_no_damage() {
    let mut number = 0;
    loop {
        let world = World::new();
        past(&world);
        let listed = world.pool().shards().unwrap();
        let other = world.pool();
        let done = Arc::new(AtomicBool::new(false));
        let hook_done = done.clone();
        let steps = Steps::default();
        steps.hook(move |at, _| {
            if at == number && !hook_done.swap(true, Ordering::SeqCst) {
                assert!(prune(&other).unwrap().deleted > 0, "nothing has gone");
            }
        });
        let pool = world.stepped(&steps);
        let job = Job::open(&pool, "a", Default::default()).unwrap();
        let report = job.verify(None).unwrap();
        assert_eq!(report.findings, vec![], "step {number}");
        assert!((1..=3).contains(&report.checkpoints), "step {number}: {report:?}");
        assert_eq!(report.whole, report.checkpoints, "step {number}");
        if !done.load(Ordering::SeqCst) {
            assert!(number > 10, "there are only {number} steps");
            return;
        }
        // The shards that the gc had deleted before they were read are no damage, either.
        let pool = world.pool();
        let faults = |shards: &[StoredShard]| {
            let faults = shards.iter().filter_map(|s| Some((*s, pool.verify_shard(*s).err()?)));
            faults.collect::<Vec<_>>()
        };
        assert!(!faults(&listed).is_empty(), "step {number}");
        assert_eq!(without_collected(&pool, faults(&listed)).unwrap(), vec![], "step {number}");
        // But a shard that is needed is missing.
        let left = pool.shards().unwrap();
        let name = JobName::new("a").unwrap();
        let segments = history(&pool, &name).unwrap();
        let needed = segments
            .filter_map(|e| Some(e.manifest()?.images.one()?.segments[0].pack))
            .next()
            .unwrap();
        pool.delete_pack(needed).unwrap();
        let missing = without_collected(&pool, faults(&left)).unwrap();
        assert_eq!(missing.iter().map(|(s, _)| s.pack()).collect::<Vec<_>>(), [needed]);
        assert!(!job.verify(None).unwrap().findings.is_empty(), "step {number}");
        number += 1;
    }
}

/// The session has a checkpoint, so its packs from the next one on belong to the save under way,
/// the first of them included.
#[test]
fn the_first_pack_of_a_save_under_way_is_left_alone() {
    let (fault, steps) = (FaultWorld::new(), Steps::default());
    let world = World { target: fault.target(), log: fault.log() };
    let pool = world.stepped(&steps);
    let program = Program::start(&pool, "a");
    program.save(&state(1)).unwrap();
    let (beside, is_first) = (world.pool(), AtomicBool::new(true));
    steps.hook(move |_, what| {
        if what == "finish" && is_first.swap(false, Ordering::Relaxed) {
            let report = gc(&beside).unwrap();
            assert_eq!(report.plan.condemned().len(), 0, "{report:?}");
        }
    });
    program.save(&state(2)).unwrap();
    let (epoch, restored) = program.restore(Select::Newest).unwrap().unwrap();
    assert!((epoch, restored) == (2, state(2)));
}
