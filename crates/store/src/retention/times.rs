//! Ages of checkpoints; the clock that dated them may have jumped.
//!
//! Epochs are in the order of the saves, whatever their times say. So a time counts as it is only
//! where it fits that order. A time says nothing if it is later than that of the next checkpoint,
//! or earlier than an earlier one's. That checkpoint counts as saved just before the next one,
//! which makes it as young as it can be.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};

/// Returns by how many nanoseconds each checkpoint is older than the newest whose time is not in
/// the future. `times_ns` are their times, newest epoch first.
pub fn ages_ns(times_ns: &[u64], now_ns: u64) -> Vec<u64> {
    // If all are in the future, the present clock has jumped: then take the newest epoch's time.
    let past = times_ns.iter().find(|time| **time <= now_ns);
    let Some(&newest) = past.or(times_ns.first()) else { return Vec::new() };
    // For each, the next later time among those of earlier epochs.
    let mut earlier = BTreeSet::new();
    let mut belied_by: Vec<Option<u64>> = times_ns
        .iter()
        .rev()
        .map(|time| {
            let later = earlier.range((Excluded(time), Unbounded)).next().copied();
            earlier.insert(*time);
            later
        })
        .collect();
    belied_by.reverse();
    let mut at_most = newest;
    let mut ages = Vec::with_capacity(times_ns.len());
    for (time, belied_by) in times_ns.iter().zip(belied_by) {
        if *time <= at_most && belied_by.is_none_or(|other| other > at_most) {
            at_most = *time;
        }
        ages.push(newest - at_most);
    }
    ages
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the ages of epochs, which are given oldest first.
    fn ages(times: &[u64], now: u64) -> Vec<u64> {
        let newest_first: Vec<u64> = times.iter().rev().copied().collect();
        let mut ages = ages_ns(&newest_first, now);
        ages.reverse();
        ages
    }

    #[test]
    fn times_in_order_are_taken_as_they_are() {
        assert_eq!(ages(&[100, 101, 101, 150], 150), [50, 49, 49, 0]);
        assert_eq!(ages(&[100, 101, 150], 900), [50, 49, 0], "before the newest, not before now");
        assert_eq!(ages(&[7], 7), [0]);
        assert_eq!(ages(&[], 7), [0; 0]);
    }

    #[test]
    fn a_jump_makes_no_other_checkpoint_old() {
        // Ahead: the first, one in the middle, the newest.
        assert_eq!(ages(&[466, 100, 101, 102], 103), [2, 2, 1, 0]);
        assert_eq!(ages(&[100, 466, 101, 102], 103), [2, 1, 1, 0]);
        assert_eq!(ages(&[100, 101, 102, 466], 103), [2, 1, 0, 0]);
        // The time of the jump has come meanwhile: a checkpoint that seems to be before it is not
        // old.
        assert_eq!(ages(&[100, 466, 101, 102, 467], 467), [367, 1, 0, 0, 0]);
        // Back: the first, some in the middle, the newest.
        assert_eq!(ages(&[0, 100, 101], 102), [101, 1, 0]);
        assert_eq!(ages(&[100, 101, 0, 1, 104], 105), [4, 3, 0, 0, 0]);
        assert_eq!(ages(&[100, 101, 0], 102), [0, 0, 0]);
        // By as much as possible.
        assert_eq!(ages(&[100, u64::MAX, 101, 102], 103), [2, 1, 1, 0]);
        assert_eq!(ages(&[100, u64::MAX, u64::MAX], u64::MAX), [u64::MAX - 100, 0, 0]);
        // The present clock.
        assert_eq!(ages(&[100, 101, 102], 1), [2, 1, 0]);
        assert_eq!(ages(&[100, 101, 102], 100), [0, 0, 0]);
    }

    /// A jump of one time makes no other checkpoint look older than it is.
    #[test]
    fn one_wrong_time_costs_no_other_checkpoint() {
        let right: Vec<u64> = (0..8).map(|n| 1000 + 10 * n).collect();
        for wrong in 0..8 {
            for time in (0..3000).step_by(5) {
                let mut times = right.clone();
                times[wrong] = time;
                let told = ages(&times, 1070);
                for (at, age) in told.iter().enumerate().filter(|(at, _)| *at != wrong) {
                    let is = 1070 - right[at];
                    assert!(*age <= is, "{times:?}: epoch {at} is {is} old and seems to be {age}");
                }
            }
        }
    }
}
