//! A program that learns from its own saves and failures comes near the best fixed interval.

use crate::program::{Copies, Done, Program, Rule};
use crate::random::{BOTH, Failures, Random};
use outlive_interval::{Bound, Choice, Every, Learner, Past};
use std::time::Duration;

const ATTEMPTS: usize = 120;
const RESTART_S: f64 = 20.0;

/// Returns the share of kept work over many attempts. `rule` makes the rule of each by the past.
fn share(
    program: &Program,
    failures: Failures,
    mtbf_s: f64,
    rule: impl Fn(&Past) -> Rule,
) -> (f64, Rule) {
    let random = Random::new(11);
    let (mut past, mut kept, mut all) = (Past::default(), 0.0, 0.0);
    let mut last = rule(&past);
    for _ in 0..ATTEMPTS {
        let until_s = random.failure_s(failures, mtbf_s);
        last = rule(&past);
        // Steps of their own, so that failures come at the same times for each rule.
        kept += program.run(&Random::new(past.failures as u64), &mut last, until_s).kept_s;
        all += until_s + RESTART_S;
        past.add(until_s, true, 1.0);
    }
    (kept / all, last)
}

fn learned(past: &Past) -> Rule {
    let mut learner = Learner::new(Every::Auto, false, Duration::ZERO);
    learner.set_past(past.clone(), Duration::ZERO);
    Rule::Learned(Box::new(learner))
}

/// Runs a program that has failed every ten minutes, and returns its last choice and what it did.
fn after(program: &Program, seconds: f64) -> (Choice, Done) {
    let mut rule = learned(&Past { failures: 1e3, exposure_s: 1e3 * 600.0, ..Past::default() });
    let done = program.run(&Random::new(3), &mut rule, seconds);
    let Rule::Learned(learner) = rule else { panic!("the rule was another") };
    (learner.choice().clone(), done)
}

fn is_near_the_best(program: &Program, failures: Failures, mtbf_s: f64) {
    let best = (-9..=9).map(|step| mtbf_s / 30.0 * 1.4_f64.powi(step));
    let best = best.map(|t| share(program, failures, mtbf_s, |_| Rule::Fixed(t)).0);
    let best = best.fold(0.0, f64::max);
    let (found, rule) = share(program, failures, mtbf_s, learned);
    let Rule::Learned(learner) = rule else { return };
    let choice = learner.choice();
    assert!(found > 0.99 * best, "{program:?}, {failures:?}: {found} of {best}; {choice}");
    assert!(choice.failures > 0.0 && choice.mtbf_s < 2.0 * mtbf_s, "{choice}");
}

#[test]
fn a_program_learns_what_whole_saves_cost() {
    let program = Program {
        step_s: 1.0,
        jitter: 0.1,
        stall_s: 2.0,
        stall_growth: 0.0,
        drain_s: 20.0,
        drain_growth: 0.0,
        slowdown: 0.2,
        copies: None,
    };
    for failures in BOTH {
        is_near_the_best(&program, failures, 3600.0);
    }
}

#[test]
fn a_program_learns_how_incremental_saves_grow() {
    let program = Program {
        step_s: 1.0,
        jitter: 0.1,
        stall_s: 0.3,
        stall_growth: 0.01,
        drain_s: 2.0,
        drain_growth: 0.1,
        slowdown: 0.15,
        copies: None,
    };
    for failures in BOTH {
        is_near_the_best(&program, failures, 3600.0);
    }
}

#[test]
fn steps_longer_than_the_optimum_save_at_each_end() {
    let program = Program {
        step_s: 300.0,
        jitter: 0.0,
        stall_s: 1.0,
        stall_growth: 0.0,
        drain_s: 5.0,
        drain_growth: 0.0,
        slowdown: 0.0,
        copies: None,
    };
    let mut rule = learned(&Past { failures: 1e4, exposure_s: 1e4 * 3600.0, ..Past::default() });
    let done = program.run(&Random::new(1), &mut rule, 30_000.0);
    assert!(done.saves >= 99, "{done:?}");
}

#[test]
fn the_slowdown_beside_a_save_is_a_cost() {
    let free = Program {
        step_s: 0.5,
        jitter: 0.2,
        stall_s: 0.01,
        stall_growth: 0.0,
        drain_s: 10.0,
        drain_growth: 0.0,
        slowdown: 0.0,
        copies: None,
    };
    let slow = Program { slowdown: 0.3, ..free };
    let (free, slow) = (after(&free, 20_000.0).0, after(&slow, 20_000.0).0);
    assert!(free.slowdown_s.unwrap() < 0.5, "{free}");
    // 10 s at 70 % of the speed.
    assert!((slow.slowdown_s.unwrap() - 3.0).abs() < 0.7, "{slow}");
    assert!(slow.seconds > free.seconds, "{slow}");
}

/// A save whose changes exceed the memory for copies writes the rest while the program waits.
const LITTLE_MEMORY: Program = Program {
    step_s: 0.02,
    jitter: 0.1,
    stall_s: 0.2,
    stall_growth: 0.01,
    drain_s: 0.03,
    drain_growth: 0.05,
    slowdown: 0.02,
    copies: Some(Copies {
        until_s: 1.5,
        fits_until_s: 1.5,
        stall_growth: 0.005,
        first_stall_s: 0.1,
    }),
};

#[test]
fn a_program_finds_that_saves_of_few_changes_cost_far_less() {
    let (choice, done) = after(&LITTLE_MEMORY, 300.0);
    assert_eq!(choice.bound, Bound::Copies, "{choice}");
    assert!((1.0..1.5).contains(&choice.seconds), "{choice}");
    assert!(choice.reasons().starts_with("as long as all changes fit"), "{choice}");
    let others = done.saves as usize - done.copied;
    assert!(others <= 4, "{done:?}");
}

#[test]
fn long_steps_count_for_what_can_be_copied() {
    // A step beyond the chosen interval, the changes of two such steps do not fit.
    for step_s in [0.4, 1.0] {
        // Steps that vary by 40 ms would hide a cost of 6 ms.
        let program = Program { step_s, jitter: 0.0, ..LITTLE_MEMORY };
        let (choice, done) = after(&program, 300.0);
        assert_eq!(choice.bound, Bound::Copies, "{step_s}: {choice}");
        assert!(done.copied as f64 > 0.9 * f64::from(done.saves), "{step_s}: {done:?}");
    }
}

#[test]
fn memory_for_copies_that_brings_nothing_is_tried_a_few_times() {
    // Copies cost as much, and are due far more often.
    let copies = Copies { until_s: 1.5, fits_until_s: 1.5, stall_growth: 0.2, first_stall_s: 0.4 };
    let program = Program { copies: Some(copies), ..LITTLE_MEMORY };
    let (choice, done) = after(&program, 600.0);
    assert_eq!(choice.bound, Bound::Optimum, "{choice}");
    assert!((3..=6).contains(&done.copied), "{done:?}");
}

#[test]
fn trials_end_if_no_save_can_be_copied() {
    // Most changes come in the first moment, so a shorter interval does not help.
    let copies = Copies { until_s: 1.5, fits_until_s: 0.0, stall_growth: 0.0, first_stall_s: 0.0 };
    let program = Program { copies: Some(copies), ..LITTLE_MEMORY };
    let (choice, done) = after(&program, 300.0);
    assert_eq!(choice.bound, Bound::Optimum, "{choice}");
    assert!(done.saves < 40, "{done:?}");
}

#[test]
fn a_program_with_little_memory_for_copies_is_near_the_best() {
    for failures in BOTH {
        is_near_the_best(&LITTLE_MEMORY, failures, 600.0);
    }
}
