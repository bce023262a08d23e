//! Fills and trims that keep a pace: a fill ends with its last pack, and no other program waits
//! during a rest. A warning names the reason why the fast tier cannot be trimmed.

use crate::common;
use crate::stepped;
use crate::two_disks;

use common::{Program, State, Warnings, noise};
use outlive_backend::{FaultWorld, ShardName};
use outlive_log::{Append, Lock, Previous};
use outlive_pool::{Environment, Pool, TiersConfig};
use outlive_store::gc::{GcOptions, Thoroughness, collect};
use outlive_store::retention::Rules;
use outlive_store::{FillOptions, Select, TrimOptions, fill, trim};
use outlive_types::sync::{Scheduler, scheduled};
use outlive_types::{ErrorKind, JobName, PAGE_BYTES};
use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use stepped::Steps;
use two_disks::Disks;

/// No test here takes as long.
const HOUR: Duration = Duration::from_secs(3600);

struct Fixture {
    world: FaultWorld,
    warnings: Arc<Warnings>,
}

impl Fixture {
    fn new(world: FaultWorld) -> Fixture {
        Fixture { world, warnings: Arc::default() }
    }

    /// Returns the pool as one process opens it.
    fn pool(&self, tiers: TiersConfig) -> Pool {
        Disks::new(self.world.clone()).pool(tiers, Environment::observed(self.warnings.clone()))
    }

    /// Makes a process of another host hold the claim, or no process.
    fn claim_by(&self, process: Option<u32>) {
        let (_, log, _) = self.world.process_with(2);
        let job = JobName::targets();
        let number = log.latest(&job).unwrap();
        let newest = log.read(&job, number).unwrap();
        let text = String::from_utf8(newest.clone()).unwrap();
        // The claim is a table of its own, before those of the targets.
        let (top, targets) = text.split_at(text.find("[[target]]").unwrap());
        let top = top.split("[changed_by]").next().unwrap();
        let claim = process.map_or(String::new(), |process| {
            format!(
                "[changed_by]\nprocess = {process}\nstarted = 1\nhost = \"elsewhere\"\nsystem = \"other\"\n\
                 claim = \"0123456789abcdef\"\n\n"
            )
        });
        let record = format!("{top}{claim}{targets}");
        let behind = Previous::of(number, &newest);
        assert_eq!(log.append_if(&job, behind, record.as_bytes()).unwrap(), Append::Done);
    }

    /// Returns the packs on a target.
    fn packs(&self, target: usize) -> BTreeSet<String> {
        let (targets, ..) = self.world.process_with(2);
        targets[target].list().unwrap().iter().map(|shard| shard.pack.to_string()).collect()
    }

    fn warnings(&self) -> Vec<String> {
        std::mem::take(&mut self.warnings.0.lock().unwrap())
    }

    fn is_free(&self) -> bool {
        let (_, log, _) = self.world.process_with(2);
        matches!(log.lock_collecting().unwrap(), Lock::Taken(_))
    }

    /// A closed job of twelve checkpoints, of a pack each. The newest needs the last four packs.
    fn with_checkpoints(world: FaultWorld) -> (Fixture, Pool) {
        let fixture = Fixture::new(world);
        let pool = fixture.pool(TiersConfig { fill: false, ..TiersConfig::default() });
        let program = Program::start(&pool, "job");
        for seed in 1..=12 {
            program.save(&state(seed)).unwrap();
        }
        program.job.close().unwrap();
        assert_eq!(fixture.packs(0).len(), 12);
        (fixture, pool)
    }
}

/// Returns a state that fits into one pack.
fn state(seed: u64) -> State {
    State::from([("a".to_owned(), noise(seed, 100_000))])
}

/// A byte a second: neither a rest nor a close that waits for one ends by itself.
fn paced(keep_fast: u64) -> TiersConfig {
    TiersConfig { bytes_per_s: 1, finish_s: 1 << 20, keep_fast, ..TiersConfig::default() }
}

/// Makes a call when a thread rests for longer than this, instead of resting.
struct Rests<'a>(Duration, Mutex<Box<dyn FnMut() + Send + 'a>>);

impl Scheduler for Rests<'_> {
    fn pause(&self, _: &str) {}
    fn sleep(&self, time: Duration) {
        if time > self.0 {
            (self.1.lock().unwrap())();
        }
    }
    fn wait(&self, _: usize) {
        thread::yield_now();
    }
    fn wait_for(&self, _: usize, _: Duration) -> bool {
        thread::yield_now();
        false
    }
    fn wake(&self, _: usize) {}
    fn spawn(&self, _: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        thread::spawn(work);
        Ok(())
    }
}

/// Does `work`, and `deed` at each of its rests, in a thread of another process.
fn at_rests<T>(deed: impl FnMut(usize) + Send + 'static, work: impl FnOnce() -> T) -> (T, usize) {
    let count = Arc::new(Mutex::new(0));
    let (counts, deed) = (count.clone(), Arc::new(Mutex::new(deed)));
    let rest = move || {
        let mut count = counts.lock().unwrap();
        *count += 1;
        let (number, deed) = (*count, deed.clone());
        thread::spawn(move || (deed.lock().unwrap())(number)).join().unwrap();
    };
    // Shorter rests let other programs have the lock.
    let longer = Duration::from_secs(1);
    let done = scheduled(Arc::new(Rests(longer, Mutex::new(Box::new(rest)))), work);
    let count = *count.lock().unwrap();
    (done, count)
}

#[test]
fn a_paced_fill_is_over_with_its_last_pack() {
    let fixture = Fixture::new(FaultWorld::with_locks());
    let pool = fixture.pool(paced(0));
    let program = Program::start(&pool, "job");
    program.save(&state(1)).unwrap();
    assert!(program.job.finish_fill().wait(HOUR));
    assert_eq!(fixture.warnings(), [""; 0]);
    assert_eq!(fixture.packs(1), fixture.packs(0));
    // The pause for the first pack comes before the second is copied, and a close ends it.
    program.save(&state(2)).unwrap();
    assert_eq!(fixture.packs(0).len(), 2);
    program.job.close().unwrap();
    assert_eq!(fixture.warnings(), [""; 0]);
    assert_eq!(fixture.packs(1), fixture.packs(0));
}

#[test]
fn a_close_waits_for_no_rest_of_a_trim_and_misses_nothing_on_the_slow_tier() {
    let (fixture, pool) = Fixture::with_checkpoints(FaultWorld::with_locks());
    fill(&pool, FillOptions::default()).unwrap();
    let program = Program::start(&fixture.pool(paced(1)), "job");
    program.restore(Select::Newest).unwrap();
    program.save(&state(13)).unwrap();
    program.job.close().unwrap();
    assert_eq!(fixture.warnings(), [""; 0]);
    assert_eq!((fixture.packs(0).len(), fixture.packs(1).len()), (12, 13), "one pack was trimmed");
    assert!(fixture.is_free());
}

#[test]
fn a_trim_rests_without_the_lock_and_looks_again() {
    let (fixture, pool) = Fixture::with_checkpoints(FaultWorld::with_locks());
    fill(&pool, FillOptions::default()).unwrap();
    let fixture = Arc::new(fixture);
    let all: Vec<String> = fixture.packs(0).into_iter().collect();
    let here = fixture.clone();
    let deed = move |rest| {
        assert!(here.is_free(), "others may have the lock during rest {rest}");
        if rest == 1 {
            // The newest checkpoint will need a pack that was to be trimmed.
            assert_eq!(here.packs(0).len(), 11);
            let pool = here.pool(TiersConfig { fill: false, ..TiersConfig::default() });
            let program = Program::start(&pool, "job");
            let (_, old) = program.restore(Select::Epoch(2)).unwrap().unwrap();
            program.job.take_over();
            program.save(&common::changed(old, 3, 99)).unwrap();
            program.job.close().unwrap();
        }
    };
    let trims = fixture.pool(TiersConfig { keep_fast: 1, ..TiersConfig::default() });
    let options = TrimOptions { bytes_per_s: Some(1), dry_run: false };
    let (report, rests) = at_rests(deed, || trim(&trims, options));
    let report = report.unwrap();
    assert_eq!((report.packs, report.trimmed, report.kept), (13, 11, 2));
    assert_eq!(report.failed, []);
    assert_eq!(rests, 10, "there is no rest behind the last pack");
    let left = fixture.packs(0);
    assert!(left.len() == 2 && left.contains(&all[1]), "what the newest needs stays");
}

/// A command that empties the slow disk beside a trim would take the copies that the trim has read.
#[test]
fn others_neither_collect_nor_change_targets_while_a_trim_deletes() {
    let (fixture, pool) = Fixture::with_checkpoints(FaultWorld::with_locks());
    fill(&pool, FillOptions::default()).unwrap();
    let fixture = Arc::new(fixture);
    let steps = Steps::default();
    let disks = Disks::new(fixture.world.clone()).stepped(&steps);
    let tiers = TiersConfig { keep_fast: 1, ..TiersConfig::default() };
    let trims = disks.pool(tiers, Environment::system());
    let (frees, here) = (Arc::new(Mutex::new(Vec::new())), fixture.clone());
    let seen = frees.clone();
    steps.hook(move |_, op| {
        if op == "delete" {
            seen.lock().unwrap().push(here.is_free());
        }
    });
    let trimmed = trim(&trims, TrimOptions::default()).unwrap().trimmed as usize;
    assert!(trimmed > 4 && *frees.lock().unwrap() == vec![false; trimmed], "{frees:?}");
    assert!(fixture.is_free());
}

/// Packs that no checkpoint names may belong to a save under way. The others wait for a gc.
#[test]
fn a_trim_leaves_packs_that_no_checkpoint_names() {
    let (fixture, pool) = Fixture::with_checkpoints(FaultWorld::new());
    let other = Program::start(&pool, "other");
    other.save(&state(99)).unwrap();
    other.job.close().unwrap();
    fill(&pool, FillOptions::default()).unwrap();
    let only_drop = Thoroughness { collect: false, ..Thoroughness::default() };
    let drop = [(JobName::new("other").unwrap(), [1].into())].into();
    collect(&pool, &GcOptions { drop, thoroughness: only_drop, ..GcOptions::default() }).unwrap();
    assert_eq!(fixture.packs(0).len(), 13, "the dropped checkpoint's pack stays for a gc");
    let trims = fixture.pool(TiersConfig { keep_fast: 1, ..TiersConfig::default() });
    for dry_run in [true, false] {
        let report = trim(&trims, TrimOptions { dry_run, ..TrimOptions::default() }).unwrap();
        assert_eq!((report.packs, report.kept + report.trimmed), (12, 12), "{report:?}");
        assert_eq!(report.unfilled, 0, "{report:?}");
        let left = if dry_run { 13 } else { report.kept as usize + 1 };
        assert_eq!(fixture.packs(0).len(), left, "{report:?}");
    }
}

/// The needs of a damaged checkpoint are unknown, so all packs that it names stay.
#[test]
fn a_trim_leaves_all_packs_that_a_damaged_checkpoint_names() {
    let (fixture, pool) = Fixture::with_checkpoints(FaultWorld::new());
    fill(&pool, FillOptions::default()).unwrap();
    let trims = fixture.pool(TiersConfig { keep_fast: 1, ..TiersConfig::default() });
    let dry_run = TrimOptions { dry_run: true, ..TrimOptions::default() };
    let whole = trim(&trims, dry_run).unwrap();
    assert!(whole.kept < 12, "{whole:?}");
    // Its own pack holds its page tree.
    let newest = *pool.packs().unwrap().iter().max().unwrap();
    let shard = ShardName { pack: newest, shard: 0 };
    let (targets, ..) = fixture.world.process_with(2);
    for (number, target) in targets.iter().enumerate() {
        let pages = target.length(shard).unwrap() / PAGE_BYTES as u64;
        (1..pages).for_each(|page| fixture.world.corrupt_on(number, shard, page * 4096, 1));
    }
    let trims = fixture.pool(TiersConfig { keep_fast: 1, ..TiersConfig::default() });
    let damaged = trim(&trims, dry_run).unwrap();
    assert_eq!((damaged.packs, damaged.kept, damaged.trimmed), (12, 12, 0), "{damaged:?}");
}

#[test]
fn a_paced_fill_of_a_command_rests_without_the_lock_and_looks_again() {
    for prunes in [false, true] {
        let (fixture, pool) = Fixture::with_checkpoints(FaultWorld::with_locks());
        let fixture = Arc::new(fixture);
        let here = fixture.clone();
        let deed = move |rest| {
            assert!(here.is_free(), "others may have the lock during rest {rest}");
            assert_eq!(here.packs(1).len(), rest);
            if prunes && rest == 1 {
                let drop = [(JobName::new("job").unwrap(), (1..=11).collect())].into();
                let pool = here.pool(TiersConfig::default());
                let report = collect(&pool, &GcOptions { drop, ..GcOptions::default() }).unwrap();
                assert!(report.deleted > 0);
            }
        };
        let options = FillOptions { bytes_per_s: Some(1), ..FillOptions::default() };
        let (report, rests) = at_rests(deed, || fill(&pool, options));
        let report = report.unwrap();
        assert_eq!((report.failed, report.left), (vec![], 0), "what is gone is not missed");
        // A gc copies the data that the job needs from then on.
        let (copied, rested) = if prunes { (1, 1) } else { (12, 11) };
        assert_eq!((report.degraded, rests), (copied, rested), "none behind the last pack");
        assert_eq!(fixture.packs(1), fixture.packs(0));
    }
}

/// Nodes that leave a pool at the same time all fill.
#[test]
fn a_fill_that_waits_outlasts_another_command() {
    let (fixture, pool) = Fixture::with_checkpoints(FaultWorld::with_locks());
    let (_, log, _) = fixture.world.process_with(2);
    let busy = Arc::new(Mutex::new(Some(log.lock_collecting().unwrap())));
    let fill_until = |waits, ends: usize| {
        let (holds, pauses) = (busy.clone(), Arc::new(Mutex::new(0)));
        let counts = pauses.clone();
        let pause = move || {
            *counts.lock().unwrap() += 1;
            if *counts.lock().unwrap() == ends {
                drop(holds.lock().unwrap().take());
            }
        };
        let rests = Rests(Duration::from_millis(400), Mutex::new(Box::new(pause)));
        let options = FillOptions { waits, ..FillOptions::default() };
        let filled = scheduled(Arc::new(rests), || fill(&pool, options));
        (filled, *pauses.lock().unwrap())
    };
    let (refused, pauses) = fill_until(false, 1);
    assert_eq!((refused.unwrap_err().kind(), pauses), (ErrorKind::Retry, 0));
    let (refused, pauses) = fill_until(true, usize::MAX);
    assert_eq!((refused.unwrap_err().kind(), pauses), (ErrorKind::Retry, 120), "a minute");
    let (filled, pauses) = fill_until(true, 100);
    assert_eq!((filled.unwrap().left, pauses), (0, 100));
    assert_eq!(fixture.packs(1), fixture.packs(0));
}

/// Where the log has no locks, a killed program of another host may have left a claim.
#[test]
fn a_program_warns_once_of_a_claim_that_keeps_it_from_trimming() {
    let (fixture, pool) = Fixture::with_checkpoints(FaultWorld::new());
    fill(&pool, FillOptions::default()).unwrap();
    // A claim that was given back is a first record of the table.
    let all = fixture.pool(TiersConfig { keep_fast: 100, ..TiersConfig::default() });
    assert_eq!(trim(&all, TrimOptions::default()).unwrap().trimmed, 0);
    let pool = fixture.pool(TiersConfig { keep_fast: 1, ..TiersConfig::default() });
    let program = Program::start(&pool, "job");
    program.restore(Select::Newest).unwrap();
    let mut seed = 12;
    let mut told_of = |holder: Option<u32>| {
        fixture.claim_by(holder);
        seed += 1;
        program.save(&state(seed)).unwrap();
        assert!(program.job.finish_fill().wait(HOUR));
        fixture.warnings()
    };
    let before = fixture.packs(0).len();
    for holder in [1, 2, 3] {
        assert_eq!(told_of(Some(holder)), [""; 0], "each may just have been faster");
    }
    assert_eq!(fixture.packs(0).len(), before + 3);
    assert_eq!(told_of(None), [""; 0]);
    assert!(fixture.packs(0).len() < before, "it is trimmed");
    // Until there is something to trim again.
    while trim(&pool, TrimOptions { dry_run: true, ..TrimOptions::default() }).unwrap().trimmed == 0
    {
        told_of(Some(4));
    }
    for holder in [7, 8] {
        assert_eq!(told_of(Some(holder)), [""; 0]);
        assert_eq!(told_of(Some(holder)), [""; 0]);
        let told = told_of(Some(holder));
        assert!(told.len() == 1 && told[0].contains("cannot be trimmed"), "{told:?}");
        assert!(told[0].contains(&format!("process {holder} on elsewhere")), "{told:?}");
        assert_eq!(told_of(Some(holder)), [""; 0], "once");
    }
    let before = fixture.packs(0).len();
    assert_eq!(told_of(None), [""; 0]);
    assert!(fixture.packs(0).len() < before, "it is trimmed again");
}

/// The slow tier lags behind: without the fast tier, its newest whole checkpoint is all that is
/// left.
#[test]
fn rules_leave_the_newest_checkpoint_of_the_slow_tier() {
    let fixture = Fixture::new(FaultWorld::with_locks());
    let pool = fixture.pool(TiersConfig { fill: false, ..TiersConfig::default() });
    let program = Program::start(&pool, "job");
    let epochs =
        || -> Vec<_> { program.job.epochs().unwrap().iter().map(|info| info.epoch).collect() };
    program.save(&state(1)).unwrap();
    fill(&pool, FillOptions::default()).unwrap();
    program.job.keep(Rules { last: Some(1), ..Rules::default() }).unwrap();
    for seed in 2..=5 {
        program.save(&state(seed)).unwrap();
    }
    program.job.close().unwrap();
    assert_eq!(epochs(), [1, 5]);
    fill(&pool, FillOptions::default()).unwrap();
    program.save(&state(6)).unwrap();
    program.job.close().unwrap();
    assert_eq!(epochs(), [5, 6]);
}

/// The slow tier has no room for the packs that a gc writes. So the gc moves nothing, and data that
/// was safe there stays safe.
#[test]
fn a_gc_moves_nothing_that_the_slow_tier_has_no_room_for() {
    let fixture = Fixture::new(FaultWorld::new());
    let disks = Disks::new(fixture.world.clone());
    let tiers = TiersConfig { fill: false, ..TiersConfig::default() };
    let pool = disks.pool(tiers.clone(), Environment::system());
    let program = Program::start(&pool, "job");
    program.save(&state(1)).unwrap();
    let second = common::changed(state(1), 3, 99);
    program.save(&second).unwrap();
    program.job.close().unwrap();
    fill(&pool, FillOptions::default()).unwrap();
    // A shard is created on the fast tier first, and then on the slow one.
    let fast = Mutex::new(BTreeSet::new());
    fixture.world.fail_when(move |_, op| {
        let is_slow = op.starts_with("create ") && !fast.lock().unwrap().insert(op.to_owned());
        is_slow.then_some(ErrorKind::Full)
    });
    let drop = [(JobName::new("job").unwrap(), [1].into())].into();
    let thoroughness = Thoroughness { unused_max: 0.0, ..Thoroughness::default() };
    let collected = collect(&pool, &GcOptions { drop, thoroughness, ..GcOptions::default() });
    disks.set_away(true);
    let left = disks.pool(tiers, Environment::system());
    let restored = Program::start(&left, "job").restore(Select::Newest).unwrap().unwrap();
    assert!(restored == (2, second));
    let error = collected.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
}
