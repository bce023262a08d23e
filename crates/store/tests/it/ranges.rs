//! Parts of regions: verified, read without the rest, and found wherever a gc puts them meanwhile.

use crate::common;
use crate::stepped;

use common::{Program, State, changed, noise};
use outlive_pool::Pool;
use outlive_store::gc::{GcOptions, Thoroughness, collect};
use outlive_store::{RangeReader, Select};
use outlive_types::{Epoch, ErrorKind, JobName, SeededRng};
use std::sync::Arc;
use stepped::{Steps, World};

/// Regions that end within a page, have zeros between, are too small for a stream of their own, or
/// are empty.
fn state() -> State {
    let mut sparse = vec![0; 3 << 20];
    sparse[1_000_000..1_050_000].copy_from_slice(&noise(1, 50_000));
    sparse[2_999_000..3_010_000].copy_from_slice(&noise(2, 11_000));
    State::from([
        ("a".to_owned(), noise(3, 5_000_001)),
        ("empty".to_owned(), Vec::new()),
        ("small".to_owned(), noise(4, 5_000)),
        ("sparse".to_owned(), sparse),
        ("tiny".to_owned(), vec![7]),
    ])
}

fn reader(pool: &Pool, epoch: Epoch) -> RangeReader {
    let job = Program::start(pool, "a").job;
    job.ranges(Select::Epoch(epoch), 0).unwrap().unwrap().0
}

fn check(reader: &RangeReader, state: &State, rng: &SeededRng, times: usize) {
    for (name, bytes) in state {
        for _ in 0..times {
            let length = bytes.len() as u64;
            let from = rng.next_u64() % (length + 1);
            let most = [1, 100, 70_000, length][rng.next_u64() as usize % 4];
            let count = (rng.next_u64() % (most + 1)).min(length - from);
            let mut into = vec![0xA5; count as usize];
            reader.read(name, from, &mut into).unwrap();
            let expected = &bytes[from as usize..(from + count) as usize];
            assert!(into == expected, "{count} bytes of {name} from {from} on");
        }
    }
}

#[test]
fn any_range_has_the_bytes_that_were_saved_then() {
    let pool = common::memory_pool();
    let program = Program::start(&pool, "a");
    let rng = SeededRng::new(1);
    let mut states = vec![state()];
    program.save(&states[0]).unwrap();
    // Many small changes: leaves of several parts, and chunks that are little in use.
    for save in 0..12 {
        let mut next = states[states.len() - 1].clone();
        for page in 0..40 {
            next = changed(next, (rng.next_u64() % 1220) as usize, save * 100 + page);
        }
        program.save(&next).unwrap();
        states.push(next);
    }
    for (state, epoch) in states.iter().zip(1..) {
        check(&reader(&pool, epoch), state, &rng, 12);
    }
}

#[test]
fn a_part_is_read_without_the_rest() {
    let (world, steps) = (World::new(), Steps::default());
    let pool = world.stepped(&steps);
    Program::start(&pool, "a").save(&state()).unwrap();
    let reader = reader(&pool, 1);
    let mut into = [0; 100];
    // Reads the segments that list the chunk, too.
    reader.read("a", 3_333_300, &mut into).unwrap();
    let before = steps.read_bytes();
    reader.read("a", 3_333_333, &mut into).unwrap();
    let read = steps.read_bytes() - before;
    // One chunk has at most 16 KiB here; reads begin and end with pages.
    assert!((100..=24 << 10).contains(&read), "{read} bytes were read for 100");
    let before = steps.read_bytes();
    reader.read("sparse", 2_000_000, &mut into).unwrap();
    assert_eq!(steps.read_bytes(), before, "zeros are stored nowhere");
    assert_eq!(into, [0; 100]);
}

#[test]
fn a_reader_follows_moved_data_and_reports_pruned_data() {
    let pool = common::memory_pool();
    let program = Program::start(&pool, "a");
    let first = state();
    program.save(&first).unwrap();
    let second = changed(first.clone(), 5, 9);
    program.save(&second).unwrap();
    program.job.close().unwrap();
    let (old, new) = (reader(&pool, 1), reader(&pool, 2));
    let thoroughness = Thoroughness { unused_max: 0.0, ..Thoroughness::default() };
    let drop = [(JobName::new("a").unwrap(), [1].into())].into();
    let report = collect(&pool, &GcOptions { drop, thoroughness, ..GcOptions::default() }).unwrap();
    assert!(report.deleted_bytes > 0, "{report:?}");
    check(&new, &second, &SeededRng::new(2), 8);
    // Data that both have is not lost, but page 5 is.
    let lost = old.read("a", 5 * 4096, &mut [0; 10]).unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Retry, "{lost}");
    assert!(lost.message().contains("was pruned"), "{lost}");
}

#[test]
fn many_threads_read_at_once_while_the_program_saves_and_a_gc_runs() {
    let pool = common::memory_pool();
    let program = Program::start(&pool, "a");
    let first = state();
    program.save(&first).unwrap();
    let reader = Arc::new(reader(&pool, 1));
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (reader, first) = (&reader, &first);
            scope.spawn(move || check(reader, first, &SeededRng::new(seed), 40));
        }
        let mut state = first.clone();
        for save in 0..6 {
            state = changed(state, save, 1000 + save as u64);
            program.save(&state).unwrap();
            collect(&pool, &GcOptions::default()).unwrap();
        }
    });
}

#[test]
fn unreadable_ranges_are_reported_and_nothing_else_fails() {
    let world = outlive_backend::FaultWorld::new();
    let pool = common::pool_of(world.target(), world.log());
    Program::start(&pool, "a").save(&state()).unwrap();
    let reader = reader(&pool, 1);
    let refused = |region: &str, from: u64, count: usize| {
        let error = reader.read(region, from, &mut vec![0; count]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        error.message().to_owned()
    };
    assert!(refused("b", 0, 1).contains("there is no region \"b\""));
    assert!(refused("tiny", 0, 2).contains("has 1 bytes: 2 bytes from 0 on"));
    assert!(refused("a", u64::MAX, 2).contains("cannot be read"));
    reader.read("empty", 0, &mut []).unwrap();
    // The first pack begins with the first pages of the first region.
    let shards = world.target().list().unwrap();
    let first = shards.into_iter().min_by_key(|shard| shard.to_string()).unwrap();
    for page in 0..4 {
        world.corrupt(first, 4096 * (1 + page) + 17, 1);
    }
    let all = state();
    let mut damaged = 0;
    for (name, bytes) in &all {
        for at in (0..bytes.len()).step_by(4096) {
            let mut into = vec![0; 4096.min(bytes.len() - at)];
            match reader.read(name, at as u64, &mut into) {
                Ok(()) => assert!(into == bytes[at..at + into.len()], "{name} at {at}"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
                    damaged += 1;
                }
            }
        }
    }
    assert!((1..=16).contains(&damaged), "{damaged} pages are damaged");
}
