//! Continuous saving keeps its budget, and sound figures whatever the clock and the disk do.

use crate::program::{Program, Rule};
use crate::random::Random;
use outlive_interval::{Bound, Every, Learner, Past, Stored};
use std::time::Duration;

const BASE: Program = Program {
    step_s: 0.1,
    jitter: 0.1,
    stall_s: 0.01,
    stall_growth: 0.0,
    drain_s: 0.5,
    drain_growth: 0.0,
    slowdown: 0.1,
    copies: None,
};

fn continuous(slowdown_max: f64) -> Rule {
    let every = Every::Continuous { slowdown_max };
    Rule::Learned(Box::new(Learner::new(every, false, Duration::ZERO)))
}

#[test]
fn it_keeps_its_budget() {
    let until_s = 5000.0;
    for budget in [0.01, 0.03, 0.2] {
        for slowdown in [0.0, 0.1, 0.5] {
            let program = Program { slowdown, ..BASE };
            let done = program.run(&Random::new(7), &mut continuous(budget), until_s);
            let lost = 1.0 - done.work_s / until_s;
            assert!(lost < budget * 1.1, "{budget}, {slowdown}: {lost}, {} saves", done.saves);
            // It saves as often as that allows, or one save after the other.
            let cost_s = program.stall_s + slowdown * program.drain_s;
            let cycle_s = (cost_s / budget).max(program.stall_s + program.drain_s + program.step_s);
            let least = until_s / cycle_s * 0.6;
            assert!(f64::from(done.saves) > least, "{budget}, {slowdown}: {} saves", done.saves);
        }
    }
}

#[test]
fn one_save_follows_the_other_while_they_cost_little() {
    let program = Program { slowdown: 0.0, stall_s: 0.001, ..BASE };
    let mut rule = continuous(0.03);
    let done = program.run(&Random::new(7), &mut rule, 1000.0);
    // A save takes 0.5 s and ends within a step.
    assert!(done.saves > 1200, "{done:?}");
    let Rule::Learned(learner) = rule else { return };
    assert_eq!(learner.choice().bound, Bound::Latency, "{}", learner.choice());
}

fn at(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// Saves once, and returns the time after it.
fn save(learner: &mut Learner, now: f64, stall_s: f64, latency_s: f64) -> f64 {
    learner.call(at(now));
    learner.begin(at(now));
    learner.go_on(at(now + stall_s));
    learner.durable(at(now + latency_s), Stored::default());
    now + stall_s.max(latency_s)
}

#[test]
fn saves_do_not_queue_up() {
    for every in [Every::Auto, Every::Continuous { slowdown_max: 0.03 }] {
        let mut learner = Learner::new(every, false, Duration::ZERO);
        learner.call(at(0.0));
        assert!(learner.is_due(at(0.0)));
        learner.begin(at(0.0));
        learner.go_on(at(0.1));
        learner.call(at(1e6));
        assert!(!learner.is_due(at(1e6)), "a save is in progress");
        learner.durable(at(2e6), Stored::default());
        (0..8).for_each(|step| learner.call(at(2e6 + f64::from(step))));
        let later = at(1e9);
        learner.call(later);
        assert!(learner.is_due(later));
    }
}

#[test]
fn the_interval_is_not_below_the_latency() {
    let mut learner = Learner::new(Every::Auto, false, Duration::ZERO);
    let past = Past { failures: 1e3, exposure_s: 1e4, ..Past::default() };
    learner.set_past(past, Duration::ZERO);
    let mut now = 0.0;
    for _ in 0..5 {
        now = save(&mut learner, now + 100.0, 0.001, 60.0);
    }
    assert_eq!((learner.choice().bound, learner.choice().seconds), (Bound::Latency, 60.0));
}

#[test]
fn a_clock_that_stands_still_or_goes_back_and_a_hung_disk_give_sound_figures() {
    for every in [Every::Auto, Every::Continuous { slowdown_max: 0.03 }] {
        let mut learner = Learner::new(every, false, at(50.0));
        for (now, stall_s, latency_s) in
            [(40.0, 0.0, 0.0), (40.0, 1e9, 1e9), (10.0, 0.0, 1e-9), (1e10, 1e-3, 1e-3)]
        {
            save(&mut learner, now, stall_s, latency_s);
            let choice = learner.choice();
            assert!(choice.seconds.is_finite() && choice.seconds >= 0.0, "{choice}");
            assert!(choice.useful_share.is_none_or(|share| (0.0..=1.0).contains(&share)));
        }
    }
}

#[test]
fn a_program_that_was_stopped_for_an_hour_was_not_slowed_down() {
    let mut learner = Learner::new(Every::Continuous { slowdown_max: 0.03 }, false, Duration::ZERO);
    let mut now = 0.0;
    for round in 0..20 {
        now = save(&mut learner, now, 0.001, 0.001) + 0.1;
        learner.call(at(now));
        (0..4).for_each(|_| {
            now += 0.1;
            learner.call(at(now));
        });
        if round == 15 {
            learner.begin(at(now));
            learner.go_on(at(now + 0.001));
            now += 3600.0;
            learner.durable(at(now), Stored::default());
            learner.call(at(now));
        }
    }
    assert!(learner.choice().slowdown_s.unwrap() < 1.0, "{}", learner.choice());
}

/// As in C: the program asks whether a save is due, and the save asks again.
#[test]
fn a_second_question_is_no_step() {
    let mut learner = Learner::new(Every::Continuous { slowdown_max: 0.03 }, false, Duration::ZERO);
    let mut now = 0.0;
    for _ in 0..20 {
        (0..3).for_each(|_| {
            learner.call(at(now));
            learner.is_due(at(now));
            now += 1.0;
        });
        learner.call(at(now));
        assert!(learner.is_due(at(now)));
        learner.call(at(now));
        assert!(learner.is_due(at(now)));
        learner.begin(at(now));
        learner.go_on(at(now));
        learner.call(at(now + 1.0));
        learner.durable(at(now + 1.5), Stored::default());
        now += 2.0;
    }
    assert!(learner.choice().slowdown_s.unwrap() < 1e-9, "{}", learner.choice());
}

/// Steps beside a copy to the slow tier take twice as long.
#[test]
fn the_slow_tier_gets_an_advice_of_its_own() {
    let mut learner = Learner::new(Every::Auto, false, Duration::ZERO);
    let past = Past { failures: 1e3, exposure_s: 1e3 * 3600.0, ..Past::default() };
    learner.set_past(past, Duration::ZERO);
    let mut now = 0.0;
    for _ in 0..10 {
        now = save(&mut learner, now, 0.5, 0.5);
        for step in 0..20 {
            learner.fill(step < 5);
            learner.call(at(now));
            now += if step < 5 { 2.0 } else { 1.0 };
        }
    }
    learner.fill(false);
    save(&mut learner, now, 0.5, 0.5);
    let choice = learner.choice();
    assert!((choice.copy_s.unwrap() - 5.0).abs() < 1.0, "{choice}");
    // A host is lost every 30 days and more, and a failure comes every hour.
    let (every, seconds) = (choice.slow_every.unwrap() as f64, choice.seconds);
    assert!(every > 20.0 && every * seconds < 86_400.0, "{choice}");
}

#[test]
fn a_failed_save_teaches_nothing() {
    let mut learner = Learner::new(Every::Auto, false, Duration::ZERO);
    learner.call(at(1.0));
    learner.begin(at(1.0));
    learner.fail();
    learner.go_on(at(500.0));
    learner.call(at(501.0));
    assert_eq!((learner.choice().saves, learner.choice().bound), (0, Bound::Unmeasured));
    assert!(learner.is_due(at(501.0)));
}

#[test]
fn a_given_interval_counts_from_the_beginning_of_the_last_save() {
    let mut learner = Learner::new(Every::Fixed(at(10.0)), true, Duration::ZERO);
    save(&mut learner, 5.0, 4.0, 4.5);
    assert!(!learner.is_due(at(14.9)) && learner.is_due(at(15.0)));
    assert_eq!(learner.choice().bound, Bound::Given);
    assert!(learner.choice().to_string().contains("`outlive run --every` sets it"));
}
