//! Crashes at every operation that changes stored data, in every mode: acknowledged saves are
//! there, others are whole or absent, and the program goes on.

use crate::common;

use common::{Program, State, noise, pool_of};
use outlive_backend::{CutMode, FaultWorld};
use outlive_store::Select;
use outlive_types::{ErrorKind, PAGE_BYTES};

/// Three states: a full save of several packs, a small change, and a change of shape.
fn states() -> Vec<State> {
    let first = State::from([
        ("big".to_owned(), noise(1, 400_000)),
        ("other".to_owned(), noise(2, 70_000)),
        ("small".to_owned(), vec![1, 2, 3]),
    ]);
    let mut second = first.clone();
    let change = noise(3, 2 * PAGE_BYTES);
    second.get_mut("big").unwrap()[50 * PAGE_BYTES..][..change.len()].copy_from_slice(&change);
    let mut third = second.clone();
    third.get_mut("small").unwrap()[0] = 9;
    third.get_mut("big").unwrap().truncate(300_001);
    third.insert("new".to_owned(), noise(4, 80_000));
    vec![first, second, third]
}

/// Saves one state after the other until one fails; returns the number of acknowledged ones.
fn save_all(world: &FaultWorld, states: &[State]) -> usize {
    let pool = pool_of(world.target(), world.log());
    let program = Program::start(&pool, "job");
    states.iter().take_while(|state| program.save(state).is_ok()).count()
}

#[test]
fn a_crash_at_any_operation_loses_nothing_acknowledged() {
    let states = states();
    let calm = FaultWorld::new();
    assert_eq!(save_all(&calm, &states), states.len());
    let ops = calm.ops();
    assert!(ops > 30, "the saves are long enough to be worth crashing: {ops} operations");

    for number in 0..ops {
        for mode in CutMode::ALL {
            let what =
                format!("{mode:?} at {number}: {}", calm.op_name(number).unwrap_or_default());
            let world = FaultWorld::new();
            world.cut_at(number, mode);
            let acknowledged = save_all(&world, &states);
            // The session's end is an operation, too, after all saves.
            assert!(world.crashed() && acknowledged <= states.len(), "{what}");

            let (target, log) = world.reboot();
            let pool = pool_of(target, log);
            let program = Program::start(&pool, "job");
            let found = match program.restore(Select::Newest).unwrap() {
                None => 0,
                Some((epoch, restored)) => {
                    let at = epoch as usize;
                    assert!(restored == states[at - 1], "{what}: epoch {epoch} is wrong");
                    at
                }
            };
            assert!(
                found == acknowledged || found == acknowledged + 1,
                "{what}: {acknowledged} acknowledged, {found} found"
            );
            assert_eq!(program.job.verify(None).unwrap().findings, vec![], "{what}");

            // The program goes on, past any garbage that the crash has left.
            let next = &states[found % states.len()];
            assert_eq!(program.save(next).unwrap().epoch, found as u64 + 1, "{what}");
            let reader = Program::start(&pool, "job");
            let (epoch, restored) = reader.restore(Select::Newest).unwrap().unwrap();
            assert!(epoch == found as u64 + 1 && restored == *next, "{what}");
        }
    }
}

#[test]
fn a_single_failure_anywhere_costs_at_most_that_save() {
    let states = states();
    let calm = FaultWorld::new();
    assert_eq!(save_all(&calm, &states), states.len());
    for number in 0..calm.ops() {
        for kind in [ErrorKind::Retry, ErrorKind::Full, ErrorKind::Damaged] {
            let what =
                format!("{kind:?} at {number}: {}", calm.op_name(number).unwrap_or_default());
            let world = FaultWorld::new();
            world.fail_at(number, kind);
            let pool = pool_of(world.target(), world.log());
            let program = Program::start(&pool, "job");
            let mut last = None;
            let mut failures = 0;
            // One state more than there are operations to fail: the last save must succeed.
            for state in states.iter().chain(&states[..1]) {
                match program.save(state) {
                    Ok(stats) => last = Some((stats.epoch, state)),
                    Err(error) => {
                        failures += 1;
                        assert_ne!(error.kind(), ErrorKind::Fenced, "{what}: {error}");
                        assert_ne!(error.kind(), ErrorKind::Bug, "{what}: {error}");
                    }
                }
            }
            assert!(failures <= 1, "{what}: {failures} saves failed");
            let (epoch, state) = last.unwrap();
            let reader = Program::start(&pool, "job");
            let (found, restored) = reader.restore(Select::Newest).unwrap().unwrap();
            assert!(found == epoch && restored == *state, "{what}");
            assert_eq!(reader.job.verify(None).unwrap().findings, vec![], "{what}");
        }
    }
}
