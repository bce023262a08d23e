use super::*;
use outlive_types::SeededRng;

fn job() -> JobName {
    JobName::new("a").unwrap()
}

/// Returns the oracle of a job with one checkpoint of program 1.
fn with_one(told: bool, doomed: bool) -> Oracle {
    let oracle = Oracle::default();
    let state = State::random(&SeededRng::new(1), 3);
    let committed = Committed { ranks: vec![state], program: 1, told, doomed, frail: false };
    oracle.facts().jobs.entry(job()).or_default().committed.insert(1, committed);
    oracle
}

#[test]
fn a_checkpoint_that_a_prune_has_dropped_counts_as_uncommitted() {
    assert!(with_one(false, false).has_committed(1, &job(), 1));
    assert!(!with_one(false, true).has_committed(1, &job(), 1));
    assert!(!with_one(false, false).has_committed(2, &job(), 1));
}

#[test]
fn only_a_power_cut_takes_unreported_checkpoints() {
    let there = |told, doomed, cut: bool| {
        let oracle = with_one(told, doomed);
        if cut {
            oracle.power_is_cut();
        }
        !oracle.must_be(&job()).is_empty()
    };
    assert!(there(true, false, false) && there(true, false, true) && there(false, false, false));
    assert!(!there(false, false, true));
    assert!(!there(true, true, false) && !there(true, true, true) && !there(false, true, false));
}
