//! Chunks shared between jobs: found, listed as foreign, and resolved by each manifest on its own.

use crate::common;
use crate::stepped;

use common::{Program, State, changed, memory_pool, noise, pool_of, smooth, tuned, tuned_on};
use outlive_backend::{FaultWorld, MemoryTarget};
use outlive_log::{Lock, MemoryLog};
use outlive_pool::Pool;
use outlive_store::Select;
use outlive_store::gc::{GcOptions, collect};
use outlive_store::scrub::{ScrubOptions, scrub};
use outlive_types::{Epoch, JobName, PAGE_BYTES};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stepped::{SteppedTarget, Steps, World};

fn states() -> State {
    State::from([
        ("a".to_owned(), noise(1, 3 << 20)),
        ("b".to_owned(), smooth(2, 1 << 20)),
        ("small".to_owned(), vec![5; 100]),
    ])
}

fn restores(pool: &Pool, job: &str, state: &State) {
    let (_, restored) = Program::start(pool, job).restore(Select::Newest).unwrap().unwrap();
    assert!(restored == *state, "{job}");
}

#[test]
fn another_job_stores_the_same_state_for_nearly_nothing() {
    for index_bytes_max in [64 << 20, 40_000] {
        for compression in ["none", "zstd"] {
            let pool = tuned(|tuning| {
                tuning.index_bytes_max = index_bytes_max;
                tuning.compression = compression.to_owned();
            });
            let state = states();
            let first = Program::start(&pool, "first").save(&state).unwrap();
            assert!(first.known_bytes == 0 && first.raw_bytes > 3 << 20, "{first:?}");
            let second = Program::start(&pool, "second").save(&state).unwrap();
            assert!(second.known_bytes > 4 << 20, "{second:?}");
            assert!(second.new_bytes < 100 << 10, "{second:?}");
            // A third job shares the extents that the second lists.
            let third = Program::start(&pool, "third").save(&state).unwrap();
            assert!(third.new_bytes < 100 << 10, "{third:?}");
            for job in ["first", "second", "third"] {
                restores(&pool, job, &state);
            }
        }
    }
}

#[test]
fn a_program_that_begins_anew_finds_its_stored_data() {
    let pool = memory_pool();
    let state = states();
    Program::start(&pool, "job").save(&state).unwrap();
    // Without a restore, the program knows of the first checkpoint only from the pool.
    let again = Program::start(&pool, "job").save(&state).unwrap();
    assert!(again.epoch == 2 && again.new_bytes < 100 << 10, "{again:?}");
    restores(&pool, "job", &state);
}

#[test]
fn without_an_index_everything_is_stored() {
    let pool = tuned(|tuning| tuning.index_bytes_max = 0);
    let state = states();
    Program::start(&pool, "first").save(&state).unwrap();
    let second = Program::start(&pool, "second").save(&state).unwrap();
    assert!(second.known_bytes == 0 && second.new_bytes > 3 << 20, "{second:?}");
    restores(&pool, "second", &state);
}

#[test]
fn a_sample_of_the_index_finds_most() {
    // 4000 single-page chunks; memory for prefixes of a quarter of them.
    let pool = tuned(|tuning| {
        tuning.index_bytes_max = 32 << 10;
        tuning.compression = "none".to_owned();
    });
    let page = |number: u64| noise(number, 4096);
    let mut state = State::from([("a".to_owned(), vec![0; 8192 * 4096])]);
    for number in 0..4000u64 {
        let at = number as usize * 2 * 4096;
        state.get_mut("a").unwrap()[at..at + 4096].copy_from_slice(&page(number));
    }
    Program::start(&pool, "first").save(&state).unwrap();
    let second = Program::start(&pool, "second").save(&state).unwrap();
    assert!(second.known_bytes > 14 << 20, "{second:?}");
    restores(&pool, "second", &state);
}

/// A gc replaces manifests by archives; their contents are found there.
#[test]
fn data_that_an_archive_keeps_is_shared_as_well() {
    let pool = memory_pool();
    let state = states();
    let first = Program::start(&pool, "first");
    first.save(&State::from([("gone".to_owned(), noise(3, 1 << 20))])).unwrap();
    first.save(&state).unwrap();
    drop(first);
    let drop = [(JobName::new("first").unwrap(), [1].into())].into();
    collect(&pool, &GcOptions { drop, ..GcOptions::default() }).unwrap();
    let second = Program::start(&pool, "second").save(&state).unwrap();
    assert!(second.known_bytes > 4 << 20, "{second:?}");
    restores(&pool, "second", &state);
}

fn one(seed: u64) -> State {
    State::from([("a".to_owned(), noise(seed, 1 << 20))])
}

fn prune(pool: &Pool, job: &str, epoch: Epoch) {
    let drop = [(JobName::new(job).unwrap(), [epoch].into())].into();
    collect(pool, &GcOptions { drop, ..GcOptions::default() }).unwrap();
}

/// Each of these programs begins a chain, so no checkpoint lists the chunks of those before it.
#[test]
fn data_that_only_an_older_checkpoint_holds_is_shared_as_well() {
    let pool = memory_pool();
    for seed in 1..=3 {
        Program::start(&pool, "first").save(&one(seed)).unwrap();
    }
    for (job, seed) in [("second", 1), ("third", 2), ("first", 1)] {
        let saved = Program::start(&pool, job).save(&one(seed)).unwrap();
        assert!(saved.known_bytes >= 1 << 20, "{job}: {saved:?}");
        assert!(saved.new_bytes < 30 << 10, "{job}: {saved:?}");
        restores(&pool, job, &one(seed));
    }
}

#[test]
fn a_program_that_went_back_finds_data_of_later_checkpoints() {
    let pool = memory_pool();
    let program = Program::start(&pool, "job");
    for seed in 1..=3 {
        program.save(&one(seed)).unwrap();
    }
    // The same program, and then others that follow the checkpoint to which it went back.
    program.restore(Select::Epoch(1)).unwrap().unwrap();
    let again = program.save(&one(2)).unwrap();
    assert!(again.epoch == 4 && again.new_bytes < 30 << 10, "{again:?}");
    drop(program);
    for (select, seed) in [(Select::Epoch(1), 4), (Select::Newest, 3)] {
        let program = Program::start(&pool, "job");
        program.restore(select).unwrap().unwrap();
        let saved = program.save(&one(seed)).unwrap();
        assert_eq!(saved.new_bytes < 30 << 10, seed == 3, "{saved:?}");
    }
    restores(&pool, "job", &one(3));
    assert!(pool.jobs().unwrap().len() == 1);
}

/// A pruned checkpoint's chunks are gone, and a session that has read the index before learns it.
#[test]
fn pruned_data_is_stored_anew() {
    let pool = memory_pool();
    for seed in 1..=2 {
        Program::start(&pool, "first").save(&one(seed)).unwrap();
    }
    let second = Program::start(&pool, "second");
    second.save(&one(9)).unwrap();
    prune(&pool, "first", 1);
    let stored = second.save(&one(1)).unwrap();
    assert!(stored.new_bytes > 1 << 20, "{stored:?}");
    restores(&pool, "second", &one(1));
    let shared = Program::start(&pool, "third").save(&one(2)).unwrap();
    assert!(shared.new_bytes < 30 << 10, "{shared:?}");
    restores(&pool, "third", &one(2));
}

/// A program returns to a page that it has stored. A gc has dropped the page since, with the only
/// checkpoint that had it.
#[test]
fn a_page_that_a_gc_has_dropped_is_stored_anew() {
    let pool = memory_pool();
    let program = Program::start(&pool, "job");
    for page in 1..=3 {
        program.save(&changed(one(1), 5, page)).unwrap();
    }
    prune(&pool, "job", 2);
    program.save(&changed(one(1), 5, 2)).unwrap();
    drop(program);
    restores(&pool, "job", &changed(one(1), 5, 2));
    collect(&pool, &GcOptions::default()).unwrap();
    restores(&pool, "job", &changed(one(1), 5, 2));
}

/// A job that shared with an incomplete checkpoint would lose the data, too.
#[test]
fn damage_that_was_found_is_not_shared() {
    for found_by in ["a lazy restore", "a scrub"] {
        let world = FaultWorld::new();
        let pool = pool_of(world.target(), world.log());
        for seed in 1..=2 {
            Program::start(&pool, "first").save(&one(seed)).unwrap();
        }
        let incomplete = world.target().list().unwrap()[0];
        match found_by {
            "a scrub" => {
                world.corrupt(incomplete, 5 * PAGE_BYTES as u64, 0x10);
                let sample = outlive_store::Sample::ALL;
                scrub(&pool, &ScrubOptions { sample, bytes_per_s: None, dry_run: false }).unwrap();
            }
            _ => {
                let first = Program::start(&pool, "first");
                first.job.note(1, |remarks| remarks.suspect = true).unwrap();
                first.job.note(2, |remarks| remarks.suspect = true).unwrap();
            }
        }
        for seed in 1..=2 {
            let job = format!("job-{seed}");
            Program::start(&pool, &job).save(&one(seed)).unwrap();
            restores(&pool, &job, &one(seed));
            let report = Program::start(&pool, &job).job.verify(None).unwrap();
            assert!(report.findings.is_empty(), "{found_by}: {report:?}");
        }
        if found_by == "a lazy restore" {
            let saved = Program::start(&pool, "last").save(&one(1)).unwrap();
            assert!(saved.new_bytes < 30 << 10, "{saved:?}");
        }
    }
}

/// The last checkpoint of a chain lists everything, and unprofitable reads are left out.
#[test]
fn a_long_past_costs_little() {
    const EPOCHS: usize = 300;
    let world = World::new();
    let pool = world.pool();
    let program = Program::start(&pool, "long");
    let mut state = one(1);
    for number in 0..EPOCHS {
        state = changed(state, number % 256, number as u64);
        program.save(&state).unwrap();
    }
    drop(program);
    let reads = |saved: State| {
        let (shards, records) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (steps, counted) = (Steps::default(), (shards.clone(), records.clone()));
        steps.hook(move |_, what| {
            let count = match what {
                "read shard" => &counted.0,
                "read record" => &counted.1,
                _ => return,
            };
            count.fetch_add(1, Ordering::Relaxed);
        });
        let program = Program::start(&world.stepped(&steps), "new");
        let saved = program.save(&saved).unwrap();
        (saved, shards.load(Ordering::Relaxed), records.load(Ordering::Relaxed))
    };
    // A page: only the newest record is worth reading.
    let page = State::from([("b".to_owned(), noise(9, 70 << 10))]);
    let (_, shards, records) = reads(page);
    assert!(shards <= 12 && records <= 12, "{shards} shards, {records} records");
    let much =
        State::from([("b".to_owned(), noise(10, 12 << 20)), ("a".to_owned(), one(1)["a"].clone())]);
    let (saved, shards, records) = reads(much);
    assert!(records > EPOCHS as u64 && records < EPOCHS as u64 + 20, "{records} records");
    assert!(shards <= 40, "{shards} shards");
    // The first epoch has all but one chunk; the later ones have changed it page by page.
    assert!(saved.known_bytes >= (1 << 20) - (16 << 10), "{saved:?}");
}

/// A prune decides and moves nothing: until a gc runs, the records of a job that was given up stay.
#[test]
fn dropped_checkpoints_cost_little() {
    const EPOCHS: Epoch = 400;
    let world = World { log: Arc::new(MemoryLog::with_locks()), ..World::new() };
    let pool = world.pool();
    let program = Program::start(&pool, "long");
    for number in 1..=EPOCHS {
        program.save(&State::from([("a".to_owned(), vec![number as u8; 100])])).unwrap();
    }
    drop(program);
    let Lock::Taken(_collecting) = pool.log().lock_collecting().unwrap() else { panic!() };
    let drop = [(JobName::new("long").unwrap(), (1..=EPOCHS).collect())].into();
    collect(&pool, &GcOptions { drop, ..GcOptions::default() }).unwrap();
    let (steps, records) = (Steps::default(), Arc::new(AtomicU64::new(0)));
    let counted = records.clone();
    steps.hook(move |_, what| {
        counted.fetch_add(u64::from(what == "read record"), Ordering::Relaxed);
    });
    Program::start(&world.stepped(&steps), "new").save(&one(1)).unwrap();
    let records = records.load(Ordering::Relaxed);
    assert!(records < EPOCHS / 2, "{records} records");
}

/// A segment with much of another job's needs is shared as a whole, instead of each extent.
#[test]
fn a_job_that_shares_nearly_everything_stores_nearly_nothing() {
    let pool = memory_pool();
    let mut state = State::from([("a".to_owned(), vec![0; 3000 * 2 * PAGE_BYTES])]);
    for number in 0..3000 {
        state = changed(state, 2 * number, number as u64);
    }
    let first = Program::start(&pool, "first").save(&state).unwrap();
    assert!(first.raw_bytes > 3000 * PAGE_BYTES as u64, "{first:?}");
    let tree_bytes = first.node_bytes;
    let second = Program::start(&pool, "second").save(&state).unwrap();
    // Its own page tree, and no list of 3000 extents.
    assert!(second.new_bytes < tree_bytes + (20 << 10), "{second:?}");
    restores(&pool, "second", &state);
    // The first job drops the state, and the jobs that share it keep it.
    let third = Program::start(&pool, "third");
    third.save(&state).unwrap();
    drop(third);
    let program = Program::start(&pool, "first");
    program.save(&one(7)).unwrap();
    drop(program);
    prune(&pool, "first", 1);
    for job in ["second", "third"] {
        restores(&pool, job, &state);
        assert!(Program::start(&pool, job).job.verify(None).unwrap().findings.is_empty());
    }
}

/// Returns pages of noise, each between two of zeros and so a chunk of its own: page `i` as in
/// epoch `of(i)`.
fn lone_pages(count: usize, of: impl Fn(usize) -> usize) -> State {
    let mut bytes = Vec::new();
    for page in 0..count {
        bytes.extend(noise((of(page) * count + page) as u64 + 1, PAGE_BYTES));
        bytes.extend([0; PAGE_BYTES]);
    }
    State::from([("a".to_owned(), bytes)])
}

#[test]
fn chunks_in_no_order_that_segments_know_cost_little_to_look_for() {
    let steps = Steps::default();
    let target = Arc::new(SteppedTarget(Arc::new(MemoryTarget::new()), steps.clone()));
    // Room for two segments at a time.
    let pool = tuned_on(target, |tuning| tuning.index_bytes_max = 200_000);
    let first = Program::start(&pool, "first");
    for epoch in 0..6 {
        first.save(&lone_pages(768, |_| epoch)).unwrap();
    }
    let before = steps.read_bytes();
    // Each chunk is in another segment than the one before.
    let mixed = lone_pages(768, |page| page % 6);
    let second = Program::start(&pool, "second").save(&mixed).unwrap();
    let read = steps.read_bytes() - before;
    assert!(read < 2 << 20, "{read} bytes were read to save {second:?}");
    assert!(second.known_bytes > 0, "{second:?}");
    restores(&pool, "second", &mixed);
}
