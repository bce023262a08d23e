//! Saved states come back, and unchanged data costs next to nothing.

use crate::common;

use common::{Program, State, memory_pool, noise};
use outlive_capture::{ChangeTracker, MemorySource, Region};
use outlive_store::Select;
use outlive_types::{BLOCK_BYTES, Distribution, ErrorKind, PAGE_BYTES};
use std::sync::Arc;

fn sample() -> State {
    State::from([
        ("big".to_owned(), noise(1, 3 * BLOCK_BYTES + 5000)),
        ("medium".to_owned(), noise(2, 70_000)),
        ("small".to_owned(), noise(3, 100)),
        ("empty".to_owned(), Vec::new()),
        ("zeros".to_owned(), vec![0; BLOCK_BYTES + 1]),
        ("a/b \u{1} \u{fc}".to_owned(), vec![1]),
    ])
}

#[test]
fn a_state_comes_back() {
    let pool = memory_pool();
    let state = sample();
    let program = Program::start(&pool, "job");
    let stats = program.save(&state).unwrap();
    assert_eq!(stats.epoch, 1);
    assert_eq!(stats.zero_bytes, BLOCK_BYTES as u64 + 1);
    let (epoch, restored) = Program::start(&pool, "job").restore(Select::Newest).unwrap().unwrap();
    assert_eq!(epoch, 1);
    assert!(restored == state);
}

/// The parts of a region that other ranks have are described with it, and impossible ones are
/// refused.
#[test]
fn parts_of_global_arrays_are_described() {
    let pool = memory_pool();
    let program = Program::start(&pool, "job");
    let part =
        |offset| Distribution::Subarray { global_shape: vec![4, 100], offset: vec![offset, 0] };
    let regions = |offset| {
        let region =
            |name: &str, shape, length| Region::from_bytes(name, "|u1", shape, noise(7, length));
        vec![
            region("rows", vec![2, 100], 200).distributed(part(offset)),
            region("table", vec![80_000], 80_000).distributed(Distribution::Replicated),
            region("step", vec![8], 8),
        ]
    };
    let save = |offset| {
        let tracker = Arc::new(ChangeTracker::new());
        let mut source = MemorySource::new(tracker, regions(offset), Vec::new(), 1);
        let handle = program.job.save(&mut source)?;
        handle.wait(None).expect("it waits without a limit")
    };
    let error = save(3).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.message().contains("region \"rows\" cannot be saved"), "{error}");
    assert_eq!(save(2).unwrap().epoch, 1);
    let (checkpoint, _) = program.job.image(Select::Newest).unwrap().unwrap();
    let described: Vec<_> = checkpoint.regions().iter().map(|r| r.distribution.clone()).collect();
    assert_eq!(described, [part(2), Distribution::Replicated, Distribution::Local]);
}

#[test]
fn an_empty_state_is_a_state() {
    let pool = memory_pool();
    Program::start(&pool, "job").save(&State::new()).unwrap();
    let restored = Program::start(&pool, "job").restore(Select::Newest).unwrap().unwrap();
    assert_eq!(restored, (1, State::new()));
}

#[test]
fn a_job_without_checkpoints_restores_nothing() {
    let pool = memory_pool();
    let program = Program::start(&pool, "job");
    assert_eq!(program.restore(Select::Newest).unwrap(), None);
    assert_eq!(program.restore(Select::Epoch(3)).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn nothing_changed_costs_little() {
    let pool = memory_pool();
    let program = Program::start(&pool, "job");
    program.save(&sample()).unwrap();
    let stats = program.save(&sample()).unwrap();
    assert_eq!(stats.changed_bytes, 0);
    assert!(stats.new_bytes < 16 << 10, "{stats:?}");
}

#[test]
fn one_page_costs_a_few() {
    let pool = memory_pool();
    let program = Program::start(&pool, "job");
    let mut state = sample();
    program.save(&state).unwrap();
    state.get_mut("big").unwrap()[2 * BLOCK_BYTES + 17] ^= 1;
    let stats = program.save(&state).unwrap();
    assert_eq!(stats.changed_bytes, PAGE_BYTES as u64);
    assert!(stats.new_bytes < 32 << 10, "{stats:?}");
    let (_, restored) = Program::start(&pool, "job").restore(Select::Newest).unwrap().unwrap();
    assert!(restored == state);
}

#[test]
fn older_epochs_stay() {
    let pool = memory_pool();
    let program = Program::start(&pool, "job");
    let mut states = Vec::new();
    for step in 0..20u8 {
        let mut state = sample();
        state.insert("step".to_owned(), vec![step; 200_000]);
        program.save(&state).unwrap();
        states.push(state);
    }
    for (at, state) in states.iter().enumerate() {
        let reader = Program::start(&pool, "job");
        let (epoch, restored) = reader.restore(Select::Epoch(at as u64 + 1)).unwrap().unwrap();
        assert_eq!(epoch, at as u64 + 1);
        assert!(restored == *state);
    }
    assert_eq!(program.job.epochs().unwrap().len(), 20);
    assert!(program.job.verify(None).unwrap().findings.is_empty());
}

#[test]
fn the_save_after_a_restore_is_incremental() {
    let pool = memory_pool();
    Program::start(&pool, "job").save(&sample()).unwrap();
    let program = Program::start(&pool, "job");
    let (_, mut state) = program.restore(Select::Newest).unwrap().unwrap();
    state.get_mut("medium").unwrap()[0] ^= 1;
    let stats = program.save(&state).unwrap();
    assert_eq!((stats.epoch, stats.changed_bytes), (2, PAGE_BYTES as u64));
    let (epoch, restored) = Program::start(&pool, "job").restore(Select::Newest).unwrap().unwrap();
    assert_eq!(epoch, 2);
    assert!(restored == state);
}

#[test]
fn a_save_without_restore_starts_anew_and_is_whole() {
    let pool = memory_pool();
    Program::start(&pool, "job").save(&sample()).unwrap();
    let stats = Program::start(&pool, "job").save(&sample()).unwrap();
    assert_eq!(stats.epoch, 2);
    let (epoch, restored) = Program::start(&pool, "job").restore(Select::Newest).unwrap().unwrap();
    assert_eq!(epoch, 2);
    assert!(restored == sample());
}

#[test]
fn going_back_to_an_older_epoch_branches_from_it() {
    let pool = memory_pool();
    let program = Program::start(&pool, "job");
    let mut state = sample();
    for byte in 0..5 {
        state.get_mut("big").unwrap()[0] = byte;
        program.save(&state).unwrap();
    }
    let program = Program::start(&pool, "job");
    let (_, mut state) = program.restore(Select::Epoch(2)).unwrap().unwrap();
    assert_eq!(state["big"][0], 1);
    state.get_mut("big").unwrap()[1] = 99;
    let stats = program.save(&state).unwrap();
    assert_eq!(stats.epoch, 6);
    assert_eq!(program.job.epochs().unwrap().last().unwrap().manifest.parent, 2);
    let (_, restored) = Program::start(&pool, "job").restore(Select::Newest).unwrap().unwrap();
    assert!(restored == state);
}

#[test]
fn the_second_writer_fences_the_first() {
    let pool = memory_pool();
    let first = Program::start(&pool, "job");
    first.save(&sample()).unwrap();
    let second = Program::start(&pool, "job");
    second.save(&sample()).unwrap();
    let error = first.save(&sample()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    assert_eq!(first.save(&sample()).unwrap_err().kind(), ErrorKind::Fenced, "it stays so");
    assert_eq!(second.save(&sample()).unwrap().epoch, 3);
}

#[test]
fn a_million_small_regions_are_one_stream() {
    let pool = memory_pool();
    let state: State =
        (0..1_000_000u32).map(|n| (format!("r{n}"), n.to_le_bytes().to_vec())).collect();
    let program = Program::start(&pool, "job");
    let stats = program.save(&state).unwrap();
    assert!(stats.new_bytes < 100 << 20, "{stats:?}");
    let again = program.save(&state).unwrap();
    assert!(again.new_bytes < 16 << 10, "{again:?}");
    let (_, restored) = Program::start(&pool, "job").restore(Select::Newest).unwrap().unwrap();
    assert!(restored == state);
}
