//! How a number gets its record in a log of several replicas: all orders of a model, and schedules
//! of it that the code itself follows.

mod model;
mod moving;
mod replay;

use model::{Lie, Number, Wish};
use moving::Move;
use stateright::{Checker, HasDiscoveries, Model};

fn number(wishes: &[Wish], rounds: u16, failures: usize) -> Number {
    Number { places: 3, wishes: wishes.to_vec(), rounds, failures, lie: None }
}

/// Explores all states of the model.
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

/// The model must find a violation if the replicas, or their callers, break the rules.
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

/// Random schedules, which the code follows step by step.
#[test]
fn the_code_follows_the_model() {
    let wishes = [Wish::Put(1), Wish::Put(2), Wish::Look];
    for seed in 0..400 {
        let failures = seed as usize % 5;
        let model = number(&wishes, 3, failures);
        let (schedule, end) = replay::schedule(&model, seed);
        println!("seed {seed}: {} steps", schedule.len());
        replay::follow(&model, &schedule, &end);
    }
}

/// Returns a log that is moved from three replicas, by its movers and by all actors that find a
/// seal.
fn moved(wishes: &[moving::Wish], new: usize, rounds: u16, failures: usize) -> Move {
    Move { old: 3, new, wishes: wishes.to_vec(), rounds, failures, lie: None }
}

fn check_move(model: Move) {
    let checker = model.checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    println!("{} states", checker.unique_state_count());
}

#[test]
fn a_record_is_put_while_the_log_is_moved() {
    use moving::Wish::{Move, Put};
    check_move(moved(&[Put(1), Move], 1, 1, 0));
    check_move(moved(&[Put(1), Move], 1, 0, 1));
    check_move(moved(&[Put(1), Move], 3, 0, 0));
}

#[test]
fn a_reader_agrees_with_a_writer_while_the_log_is_moved() {
    use moving::Wish::{Look, Move, Put};
    check_move(moved(&[Put(1), Look, Move], 1, 0, 0));
}

/// Some actors copy late, after others removed the records.
#[test]
fn removed_records_do_not_come_back() {
    use moving::Wish::{Look, Move, Put, Remove};
    let wishes = [Put(1), Move, Remove, Look];
    check_move(moving::Move { old: 1, ..moved(&wishes, 1, 0, 0) });
    check_move(moving::Move { old: 1, ..moved(&wishes, 3, 0, 0) });
}

/// The model must find a violation if an actor breaks the rules of a move.
#[test]
fn the_model_finds_broken_rules_of_moves() {
    use moving::Wish::{Look, Move, Put, Remove};
    for lie in moving::Lie::ALL {
        let sound = match lie {
            // Two movers may decide differently only where they fill different replicas.
            moving::Lie::DecidesAlone => moved(&[Put(1), Put(2), Move], 3, 0, 0),
            moving::Lie::NotesNothing => {
                moving::Move { old: 1, ..moved(&[Put(1), Move, Remove, Look], 1, 0, 0) }
            }
            _ => moved(&[Put(1), Put(2), Move], 1, 0, 0),
        };
        let model = moving::Move { lie: Some(lie), ..sound };
        let until = HasDiscoveries::AnyFailures;
        let checker = model.checker().threads(2).finish_when(until).spawn_dfs().join();
        let failed =
            |(name, _): &(&str, _)| checker.discovery_classification(name).to_string() != "example";
        let found: Vec<_> = checker.discoveries().into_iter().filter(failed).collect();
        println!("{lie:?}: {} states", checker.unique_state_count());
        assert!(!found.is_empty(), "{lie:?}");
    }
}
