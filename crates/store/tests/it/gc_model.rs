//! Prune and gc against a model that only remembers the state of each checkpoint, and the most
//! space that the pool may take for it.

use crate::common;

use common::{Program, State, memory_pool, noise, small_config, tuned};
use outlive_pool::{Environment, Pool, create, open};
use outlive_store::gc::{GcOptions, GcReport, Thoroughness, collect};
use outlive_store::retention::{Best, Rules};
use outlive_store::{Job, SaveNotes, Select};
use outlive_types::{Epoch, ErrorKind, JobName, PAGE_BYTES, Rng, SeededRng};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

fn gc(pool: &Pool) -> GcReport {
    collect(pool, &GcOptions::default()).unwrap()
}

fn epochs(pool: &Pool, job: &str) -> Vec<Epoch> {
    let job = Job::open(pool, job, Default::default()).unwrap();
    job.epochs().unwrap().iter().map(|info| info.epoch).collect()
}

fn set_page(state: &mut State, page: usize, seed: u64) {
    let bytes = state.get_mut("a").unwrap();
    let pages = bytes.len() / PAGE_BYTES;
    bytes[page % pages * PAGE_BYTES..][..PAGE_BYTES].copy_from_slice(&noise(seed, PAGE_BYTES));
}

const JOBS: [&str; 3] = ["one", "two", "three"];

/// A job in the model.
#[derive(Default)]
struct Modelled {
    program: Option<Program>,
    state: State,
    kept: BTreeMap<Epoch, State>,
    pinned: BTreeSet<Epoch>,
    last: Epoch,
    /// The newest checkpoint that its program has restored or saved.
    reached: Epoch,
    /// For each checkpoint, the one from which its program continued.
    predecessors: BTreeMap<Epoch, Epoch>,
}

impl Modelled {
    /// Returns the newest of each earlier chain that no newer checkpoint continues, and the one
    /// after it.
    fn ends_of_lines(&self) -> BTreeSet<Epoch> {
        let before = |epoch: &Epoch| self.predecessors[epoch];
        let went_on: BTreeSet<Epoch> = self.kept.keys().map(before).collect();
        let pairs = self.kept.keys().zip(self.kept.keys().skip(1));
        let ends =
            pairs.filter(|(epoch, newer)| before(newer) < **epoch && !went_on.contains(epoch));
        ends.flat_map(|(epoch, newer)| [*epoch, *newer]).collect()
    }
}

struct Model {
    pool: Pool,
    jobs: BTreeMap<&'static str, Modelled>,
    rng: SeededRng,
    seed: u64,
}

impl Model {
    fn below(&self, limit: u64) -> u64 {
        let mut bytes = [0; 8];
        self.rng.fill(&mut bytes);
        u64::from_le_bytes(bytes) % limit
    }

    fn step(&mut self) {
        let name = JOBS[self.below(3) as usize];
        let (act, page, other) = (self.below(20), self.below(64), JOBS[self.below(3) as usize]);
        self.seed += 1;
        let seed = self.seed;
        let copied = self.jobs[other].state.clone();
        let pool = self.pool.clone();
        let job = self.jobs.get_mut(name).unwrap();
        match act {
            0..=8 => set_page(&mut job.state, page as usize, seed),
            // The data of another job: chunks are shared.
            9..=10 => job.state = copied,
            11 => {
                let restored = Program::start(&pool, name);
                if let Some((epoch, state)) = restored.restore(Select::Newest).unwrap() {
                    assert_eq!(Some(&state), job.kept.get(&epoch), "{name}");
                    job.state = state;
                }
                job.reached = job.kept.keys().next_back().copied().unwrap_or(0);
                job.program = Some(restored);
            }
            12 => {
                job.program = None;
                job.reached = 0;
            }
            13 => {
                let epoch = job.kept.keys().nth(page as usize % job.kept.len().max(1)).copied();
                if let Some(epoch) = epoch {
                    let pin = job.pinned.insert(epoch) || !job.pinned.remove(&epoch);
                    let handle = Job::open(&pool, name, Default::default()).unwrap();
                    handle.note(epoch, |remarks| remarks.pinned = pin).unwrap();
                }
            }
            14..=16 => return self.prune(name, 1 + page % 4),
            _ => return self.collect(),
        }
        if act <= 10 {
            let program = job.program.get_or_insert_with(|| Program::start(&pool, name));
            let epoch = program.save(&job.state).unwrap().epoch;
            assert_eq!(epoch, job.last + 1, "{name}");
            job.last = epoch;
            job.predecessors.insert(epoch, job.reached);
            job.reached = epoch;
            job.kept.insert(epoch, job.state.clone());
        }
    }

    fn prune(&mut self, name: &'static str, last: u64) {
        let rules = Rules { last: Some(last), ..Rules::default() };
        let handle = Job::open(&self.pool, name, Default::default()).unwrap();
        let drop = handle.retention(&rules).unwrap().dropped();
        let job = self.jobs.get_mut(name).unwrap();
        let newest: BTreeSet<Epoch> = job.kept.keys().rev().take(last as usize).copied().collect();
        let ends = job.ends_of_lines();
        let stays = |epoch: &Epoch| newest.contains(epoch) || ends.contains(epoch);
        job.kept.retain(|epoch, _| stays(epoch) || job.pinned.contains(epoch));
        job.pinned.retain(|epoch| job.kept.contains_key(epoch));
        if self.jobs[name].last > 0 {
            let drop = [(JobName::new(name).unwrap(), drop)].into();
            collect(&self.pool, &GcOptions { drop, ..GcOptions::default() }).unwrap();
        }
        self.check();
    }

    fn collect(&mut self) {
        gc(&self.pool);
        self.check();
    }

    fn check(&self) {
        for (name, job) in &self.jobs {
            let found = epochs(&self.pool, name);
            assert_eq!(found, job.kept.keys().copied().collect::<Vec<_>>(), "{name}");
            let reader = Program::start(&self.pool, name);
            for (epoch, state) in &job.kept {
                let (_, restored) = reader.restore(Select::Epoch(*epoch)).unwrap().unwrap();
                assert!(restored == *state, "epoch {epoch} of {name}, seed {}", self.seed);
            }
        }
    }
}

#[test]
fn kept_checkpoints_restore_after_any_steps() {
    for seed in 0..6 {
        let pool = tuned(|tuning| {
            tuning.compression = if seed % 2 == 0 { "lz4" } else { "none" }.to_owned();
            // Fingerprints are resolved a part at a time.
            tuning.index_bytes_max = if seed % 3 == 0 { 64 << 10 } else { 64 << 20 };
        });
        let start = || State::from([("a".to_owned(), noise(7, 200_000))]);
        let jobs = JOBS.map(|name| (name, Modelled { state: start(), ..Modelled::default() }));
        let rng = SeededRng::new(seed + 40);
        let mut model = Model { pool, jobs: jobs.into(), rng, seed: seed * 1_000_000 };
        for _ in 0..150 {
            model.step();
        }
        // When all programs have ended, no pack waits any more.
        model.jobs.values_mut().for_each(|job| job.program = None);
        model.collect();
        let report = gc(&model.pool);
        model.check();
        assert_eq!(report.held, 0, "seed {seed}");
        let GcReport { plan, .. } = gc(&model.pool);
        let live: u64 = plan.live_bytes;
        // Besides 5 %: ends of packs, and of containers of 64 KiB that had no room for a chunk.
        let slack = live * 15 / 100 + 4096 * (plan.stay as u64 + 1);
        assert!(plan.total_bytes <= live + slack, "seed {seed}: {plan}");
    }
}

#[test]
fn a_second_gc_has_nothing_to_do_however_many_jobs_there_are() {
    let pool = memory_pool();
    let names: Vec<String> = (0..80).map(|number| format!("job-{number}")).collect();
    for (number, name) in names.iter().enumerate() {
        let program = Program::start(&pool, name);
        for step in 0..4 {
            let seed = (number * 10 + step) as u64;
            let state = State::from([
                ("a".to_owned(), noise(seed, 30_000)),
                // All jobs have this, so all get a report when it moves.
                ("b".to_owned(), noise(99_999, 100_000)),
            ]);
            program.save(&state).unwrap();
        }
    }
    let drop: BTreeMap<JobName, BTreeSet<Epoch>> =
        names.iter().map(|name| (JobName::new(name).unwrap(), [1, 2, 3].into())).collect();
    collect(&pool, &GcOptions { drop, ..GcOptions::default() }).unwrap();
    // Only now, after one copy for all, is it known that each job had `b` for itself. Small packs
    // of the gcs themselves are merged once there are four.
    let worked = (0..10).take_while(|_| gc(&pool).deleted > 0).count();
    assert!(worked <= 2, "{worked} gcs had something to do");
    let packs = pool.packs().unwrap();
    // 80 x 30 kB and a few times 100 kB of state, and 80 catalogs and trees, in packs of 256 KiB.
    assert!(packs.len() <= 16, "{} packs: {}", packs.len(), gc(&pool).plan);
    let report = gc(&pool);
    assert_eq!((report.deleted, report.plan.copied_bytes), (0, 0), "{report:?}");
    assert_eq!(pool.packs().unwrap(), packs, "nothing was written either");
    let thoroughness = Thoroughness { unused_max: 0.0, ..Thoroughness::default() };
    for _ in 0..3 {
        collect(&pool, &GcOptions { thoroughness, ..GcOptions::default() }).unwrap();
    }
    let before = pool.packs().unwrap();
    collect(&pool, &GcOptions { thoroughness, ..GcOptions::default() }).unwrap();
    assert_eq!(pool.packs().unwrap(), before, "even the most thorough one comes to an end");
}

#[test]
fn fingerprints_are_resolved_in_parts_within_the_memory_allowed() {
    let pool = tuned(|tuning| tuning.index_bytes_max = 64 << 10);
    // 3000 single pages, so several times as many extents as 64 KiB hold.
    let mut state = State::from([("a".to_owned(), vec![0; 6000 * PAGE_BYTES])]);
    for number in 0..3000 {
        let page = noise(number, PAGE_BYTES);
        let at = number as usize * 2 * PAGE_BYTES;
        state.get_mut("a").unwrap()[at..][..PAGE_BYTES].copy_from_slice(&page);
    }
    let program = Program::start(&pool, "job");
    program.save(&state).unwrap();
    for number in 0..1500u64 {
        let at = number as usize * 4 * PAGE_BYTES;
        let page = noise(10_000 + number, PAGE_BYTES);
        state.get_mut("a").unwrap()[at..][..PAGE_BYTES].copy_from_slice(&page);
    }
    program.save(&state).unwrap();
    drop(program);
    Program::start(&pool, "borrower").save(&state).unwrap();
    let drop = [(JobName::new("job").unwrap(), [1].into())].into();
    let report = collect(&pool, &GcOptions { drop, ..GcOptions::default() }).unwrap();
    assert!(report.plan.rewritten.len() > 4 && report.held == 0, "{report:?}");
    let bytes = gc(&pool).plan.total_bytes;
    assert!(bytes < 3000 * 4096 * 12 / 10, "{bytes} bytes");
    for (job, epoch) in [("job", 2), ("borrower", 1)] {
        let program = Program::start(&pool, job);
        let (found, restored) = program.restore(Select::Newest).unwrap().unwrap();
        assert!(found == epoch && restored == state, "{job}");
        assert_eq!(program.job.verify(None).unwrap().findings, vec![], "{job}");
    }
}

#[test]
fn the_best_by_a_metric_are_kept_across_an_archive() {
    let pool = memory_pool();
    let program = Program::start(&pool, "training");
    for (epoch, loss) in (1..).zip([5.0, 3.0, 1.0, 2.0, 4.0]) {
        let state = State::from([("a".to_owned(), noise(epoch, 40_000))]);
        let notes = SaveNotes::new(Default::default(), vec![("loss".to_owned(), loss)]).unwrap();
        let handle = program.job.save_with(&mut program.source(&state), notes).unwrap();
        handle.wait(None).unwrap().unwrap();
    }
    drop(program);
    let name = JobName::new("training").unwrap();
    let prune = |rule: &str| {
        let rules = Rules { best: vec![Best::parse(rule).unwrap()], ..Rules::default() };
        let job = Job::open(&pool, "training", Default::default()).unwrap();
        let drop = [(name.clone(), job.retention(&rules).unwrap().dropped())].into();
        collect(&pool, &GcOptions { drop, ..GcOptions::default() }).unwrap();
        epochs(&pool, "training")
    };
    assert_eq!(prune("loss:min:2"), [3, 4, 5], "two best, and the newest");
    // The archive has the metrics, too.
    assert_eq!(prune("loss:max"), [5]);
}

#[test]
fn a_pool_deleted_under_a_running_program_is_a_clear_error() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("pool");
    create(&root, small_config(), Environment::system()).unwrap();
    let pool = open(&root, Environment::system()).unwrap();
    let program = Program::start(&pool, "job");
    let mut state = State::from([("a".to_owned(), noise(1, 300_000))]);
    program.save(&state).unwrap();
    set_page(&mut state, 3, 2);
    let fails = || {
        let handle = program.job.save(&mut program.source(&state));
        let saved = handle.and_then(|h| h.wait(Some(Duration::from_secs(300))).expect("it ends"));
        let error = saved.unwrap_err();
        assert_ne!(error.kind(), ErrorKind::Bug, "{error}");
        assert!(!error.message().is_empty());
    };
    std::fs::remove_dir_all(root.join("log")).unwrap();
    fails();
    // A log that is gone is not an empty one: no program begins again.
    let error = program.restore(Select::Newest).unwrap_err();
    assert!(error.kind() == ErrorKind::Retry && error.message().contains("log"), "{error}");
    // Where packs exist and no log, a gc does not take everything for garbage.
    let error = collect(&pool, &GcOptions::default()).unwrap_err();
    assert!(error.kind() == ErrorKind::Retry && error.message().contains("log"), "{error}");
    assert!(!pool.packs().unwrap().is_empty());
    std::fs::remove_dir_all(&root).unwrap();
    fails();
}
