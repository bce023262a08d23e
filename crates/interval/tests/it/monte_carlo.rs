//! The chosen interval against all others, under random failures.

use crate::random::{BOTH, Failures, Random};
use outlive_interval::{Cost, optimum};

/// Number of failures in one simulation.
const FAILURES: usize = 20_000;
const MTBF_S: f64 = 3600.0;
const RESTART_S: f64 = 30.0;

/// Returns the share of useful work in all time, if a program saves after each `t` of work. A save
/// becomes durable `latency_s` after its stall. The failures come at the same times for each `t`.
fn useful(uptimes: &[f64], t: f64, cost_s: f64, latency_s: f64) -> f64 {
    let kept = |uptime: &f64| ((uptime - latency_s) / (t + cost_s)).floor().max(0.0) * t;
    let all: f64 = uptimes.iter().map(|uptime| uptime + RESTART_S).sum();
    uptimes.iter().map(kept).sum::<f64>() / all
}

/// Asserts that the choice loses less than 1 % of the useful work of the best interval.
fn is_best(failures: Failures, cost: Cost, latency_s: f64) {
    let random = Random::new(37);
    let uptimes: Vec<f64> = (0..FAILURES).map(|_| random.failure_s(failures, MTBF_S)).collect();
    let share = |t: f64| useful(&uptimes, t, cost.at(t), latency_s);
    let swept = (-80..=80).map(|step| MTBF_S * 1.1_f64.powi(step)).map(share).fold(0.0, f64::max);
    let chosen = cost.optimum(MTBF_S);
    let found = share(chosen);
    assert!(
        found > 0.99 * swept,
        "{failures:?}, {cost:?}: {found} after {chosen} s, and the best is {swept}"
    );
}

#[test]
fn whole_saves_are_within_a_percent_of_the_best() {
    for failures in BOTH {
        for cost_s in [0.5, 10.0, 120.0] {
            let cost =
                Cost { constant_s: cost_s, growth: 0.0, whole_s: Some(cost_s), copies: None };
            is_best(failures, cost, 0.0);
            is_best(failures, cost, cost_s);
        }
    }
}

#[test]
fn incremental_saves_are_within_a_percent_of_the_best() {
    for failures in BOTH {
        for (constant_s, growth) in [(0.05, 0.002), (1.0, 0.02), (5.0, 0.3), (60.0, 0.1)] {
            is_best(failures, Cost { constant_s, growth, whole_s: None, copies: None }, 1.0);
        }
        // The growth ends at a whole save, soon or late.
        for whole_s in [3.0, 30.0] {
            is_best(
                failures,
                Cost { constant_s: 0.2, growth: 0.3, whole_s: Some(whole_s), copies: None },
                0.0,
            );
        }
    }
}

#[test]
fn an_interval_of_half_or_twice_the_length_is_worse() {
    let random = Random::new(38);
    let uptimes: Vec<f64> =
        (0..FAILURES).map(|_| random.failure_s(Failures::Exponential, MTBF_S)).collect();
    let best = optimum::daly(60.0, MTBF_S);
    let share = |t: f64| useful(&uptimes, t, 60.0, 0.0);
    assert!(share(best) > share(best / 2.0) && share(best) > share(best * 2.0));
    // The formula for it predicts the share.
    let predicted = optimum::useful_share(best, 60.0, 1.0 / MTBF_S, RESTART_S);
    assert!((predicted / share(best) - 1.0).abs() < 0.02, "{predicted}");
}

#[test]
fn two_tiers_lose_less_than_one() {
    // Failures that the fast tier survives come ten times as often as the others.
    let (fast_s, slow_s, often_s, rare_s) = (1.0, 20.0, 1800.0, 36_000.0);
    let loss = |t: f64, step: f64| {
        let copies = slow_s / (t * step) + t * step / 2.0 / rare_s;
        fast_s / t + t / 2.0 / often_s + copies
    };
    let t = optimum::daly(fast_s, often_s);
    let step = optimum::slow_step(t, slow_s, 1.0 / rare_s) as f64;
    let best = (1..400).map(|step| loss(t, f64::from(step))).fold(f64::MAX, f64::min);
    assert!(loss(t, step) < 1.01 * best && loss(t, step) < loss(t, 1.0) / 2.0, "{step}");
}
