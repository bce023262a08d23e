//! Chunks shared between jobs: found, borrowed, and resolved by each manifest on its own.

mod common;

use common::{Program, State, memory_pool, noise, smooth, tuned};
use outlive_pool::Pool;
use outlive_store::Select;
use outlive_store::gc::{GcOptions, collect};
use outlive_types::JobName;

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
            // And a third from the second's places.
            let third = Program::start(&pool, "third").save(&state).unwrap();
            assert!(third.new_bytes < 100 << 10, "{third:?}");
            for job in ["first", "second", "third"] {
                restores(&pool, job, &state);
            }
        }
    }
}

#[test]
fn a_program_that_begins_anew_finds_what_it_stored() {
    let pool = memory_pool();
    let state = states();
    Program::start(&pool, "job").save(&state).unwrap();
    // Without a restore nothing is known of the first checkpoint but what the pool says.
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

/// A gc puts archives in the place of manifests; what these list is found there.
#[test]
fn what_an_archive_keeps_is_shared_as_well() {
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
