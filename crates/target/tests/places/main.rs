//! How a number gets its record where the log is in several places: all orders of a model, and schedules of
//! it that the code itself follows.

mod model;
mod replay;

use model::{Lie, Number, Wish};
use stateright::{Checker, HasDiscoveries, Model};

fn number(wishes: &[Wish], rounds: u16, failures: usize) -> Number {
    Number { places: 3, wishes: wishes.to_vec(), rounds, failures, lie: None }
}

/// Explores all of it.
fn check(model: Number) {
    let checker = model.checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    println!("{} states", checker.unique_state_count());
}

#[test]
fn of_two_writers_one_gets_the_number() {
    check(number(&[Wish::Put(1), Wish::Put(2)], 1, 2));
}

#[test]
fn a_reader_agrees_with_a_writer() {
    check(number(&[Wish::Put(1), Wish::Look], 2, 2));
}

#[test]
fn a_reader_agrees_with_two_writers() {
    check(number(&[Wish::Put(1), Wish::Put(2), Wish::Look], 0, 1));
}

/// What must be found if the places, or those who ask them, do not keep the rules.
#[test]
fn the_model_finds_broken_rules() {
    for lie in Lie::ALL {
        let sound = number(&[Wish::Put(1), Wish::Put(2)], 1, 2);
        let model = Number { lie: Some(lie), ..sound };
        let until = HasDiscoveries::AnyFailures;
        let checker = model.checker().threads(2).finish_when(until).spawn_bfs().join();
        let found: Vec<_> = checker.discoveries().into_keys().collect();
        let is_broken = |name: &&str| !name.starts_with("a record is put");
        assert!(found.iter().any(is_broken), "{lie:?}: {found:?}");
    }
}

/// Schedules drawn by lot, which the code follows step by step.
#[test]
fn the_code_does_what_the_model_does() {
    let wishes = [Wish::Put(1), Wish::Put(2), Wish::Look];
    for seed in 0..400 {
        let failures = seed as usize % 5;
        let model = number(&wishes, 3, failures);
        let (schedule, end) = replay::schedule(&model, seed);
        println!("seed {seed}: {} steps", schedule.len());
        replay::follow(&model, &schedule, &end);
    }
}
