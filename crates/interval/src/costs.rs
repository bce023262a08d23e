//! The cost of a save, and how it grows with the interval.

use crate::optimum::{daly, incremental, useful_share};
use crate::steps::median;
use std::collections::VecDeque;

/// Number of samples that each class of intervals keeps. A class spans a factor of two: a program
/// that keeps one interval for long does not forget what others cost.
const CLASS_SAMPLES_MAX: usize = 8;
/// Number of the newest samples that tell how much saves cost now.
const RECENT: usize = 5;
/// Least ratio of two intervals whose costs show a growth.
const SPREAD_MIN: f64 = 1.25;
/// Share of the memory for copies that an interval is to fill: programs do not change as much in each
/// interval.
const COPIED_SHARE: f64 = 0.85;
/// Number of saves that copied all changes before their cost counts. The first ones also pay for the
/// memory of the copies.
pub(crate) const COPIED_MIN: usize = 3;
/// Largest time that counts as a cost or an interval, in seconds; a hung disk may take any time.
const SECONDS_MAX: f64 = 1e7;

/// Measurements of one save, in seconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Sample {
    /// Time since the save before; `None` for the first one.
    pub interval_s: Option<f64>,
    /// Time for which the program stood still.
    pub stall_s: f64,
    /// Time by which the steps beside it took longer; `None` if that cannot be told. Below 0 by
    /// chance.
    pub slowdown_s: Option<f64>,
    /// Time from the call to the commit.
    pub latency_s: f64,
    /// The bytes that it stored.
    pub stored: Stored,
}

/// Bytes that a save stored, as far as its cost depends on them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stored {
    /// Whether it stored nearly all of the state.
    pub is_whole: bool,
    /// Whether all changed bytes were copied, so that the program had to wait for nothing else.
    pub is_copied: bool,
    /// Changed bytes that the freeze had to hold.
    pub held_bytes: u64,
    /// The most bytes that copies may take.
    pub copied_bytes_max: u64,
}

impl Sample {
    fn cost_s(&self) -> f64 {
        self.stall_s + self.slowdown_s.unwrap_or(0.0)
    }

    /// Returns the longest interval whose changes can be copied, if the program changes as much in each
    /// second as it did before this save. Pages that change twice count once. So the true time is longer
    /// than that for a longer interval than this sample's, and shorter for a shorter one.
    fn copied_until_s(&self) -> Option<f64> {
        let Stored { held_bytes, copied_bytes_max, .. } = self.stored;
        let interval_s = self.interval_s.filter(|t| *t > 0.0 && held_bytes > 0)?;
        Some(interval_s * COPIED_SHARE * copied_bytes_max as f64 / held_bytes as f64)
    }
}

/// The cost of saves: `a + growth·t` after an interval t, but no more than that of a whole save. While
/// all changes fit into the memory for copies, another line may count.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Cost {
    /// The part that does not depend on the interval, in seconds.
    pub constant_s: f64,
    /// Seconds for each second of the interval.
    pub growth: f64,
    /// Cost of a whole save, in seconds, if one was seen.
    pub whole_s: Option<f64>,
    /// Cost of saves that copy all changes, if others were seen as well.
    pub copies: Option<CopiesCost>,
}

/// The cost of saves that copy all changes: `a + growth·t`.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct CopiesCost {
    /// The part that does not depend on the interval, in seconds.
    pub constant_s: f64,
    /// Seconds for each second of the interval.
    pub growth: f64,
    /// Longest interval whose changes fit, in seconds.
    pub until_s: f64,
}

impl Cost {
    /// Returns the cost after an interval.
    pub fn at(&self, t: f64) -> f64 {
        if let Some(copies) = self.copies.filter(|copies| t <= copies.until_s) {
            return copies.constant_s + copies.growth * t;
        }
        let cost = self.constant_s + self.growth * t;
        self.whole_s.map_or(cost, |whole| cost.min(whole.max(self.constant_s)))
    }

    /// Returns the best time of work between two saves: while all changes are copied, while the cost
    /// grows, or beyond, where each save stores everything. The best of these counts.
    pub fn optimum(&self, mtbf_s: f64) -> f64 {
        let growing = incremental(self.constant_s, self.growth, mtbf_s);
        let whole = self.whole_s.filter(|_| self.growth > 0.0).map(|whole| daly(whole, mtbf_s));
        let copied = self.copies.map(|copies| {
            incremental(copies.constant_s, copies.growth, mtbf_s).min(copies.until_s)
        });
        let share = |t: f64| useful_share(t.max(1e-9), self.at(t), 1.0 / mtbf_s, 0.0);
        // The first of equals.
        let mut seconds = growing;
        for other in [whole, copied].into_iter().flatten() {
            if share(other) > share(seconds) {
                seconds = other;
            }
        }
        seconds
    }
}

/// The newest samples.
#[derive(Clone, Debug, Default)]
pub(crate) struct Costs {
    /// All samples, the oldest first.
    samples: VecDeque<Sample>,
    recent: VecDeque<Sample>,
    seen: u64,
}

impl Costs {
    /// Adds a sample. One with a time that is none does not count.
    pub fn add(&mut self, sample: Sample) {
        let Sample { interval_s, stall_s, slowdown_s, latency_s, .. } = sample;
        let times = [interval_s.unwrap_or(0.0), stall_s, slowdown_s.unwrap_or(0.0), latency_s];
        if times.iter().any(|time| !time.is_finite()) || stall_s < 0.0 || latency_s < 0.0 {
            return;
        }
        let sample = Sample {
            interval_s: interval_s.map(|time| time.clamp(0.0, SECONDS_MAX)),
            stall_s: stall_s.min(SECONDS_MAX),
            slowdown_s: slowdown_s.map(|time| time.clamp(-SECONDS_MAX, SECONDS_MAX)),
            latency_s: latency_s.min(SECONDS_MAX),
            ..sample
        };
        self.seen += 1;
        self.recent.push_back(sample);
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
        let class = class_of(&sample);
        if self.samples.iter().filter(|other| class_of(other) == class).count() >= CLASS_SAMPLES_MAX
        {
            let oldest = self.samples.iter().position(|other| class_of(other) == class);
            oldest.and_then(|at| self.samples.remove(at));
        }
        self.samples.push_back(sample);
    }

    /// Returns the number of samples so far.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Returns the median of a figure of the newest saves; `None` before the first.
    pub fn recent(&self, figure: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
        median(self.recent.iter().filter_map(figure))
    }

    /// Returns the mean slowdown of the newest saves, from 0; `None` if none could be told. The mean:
    /// a median would hide what only some saves cost.
    pub fn slowdown_s(&self) -> Option<f64> {
        let told: Vec<f64> = self.recent.iter().filter_map(|sample| sample.slowdown_s).collect();
        (!told.is_empty()).then(|| (told.iter().sum::<f64>() / told.len() as f64).max(0.0))
    }

    /// Fits the cost. All samples together show how it grows, and the newest ones how high it is now;
    /// `None` before the first sample.
    pub fn fit(&self, step_s: f64) -> Option<Cost> {
        let whole = self.samples.iter().rev().filter(|sample| sample.stored.is_whole);
        let whole_s = median(whole.take(RECENT).map(Sample::cost_s)).map(|cost| cost.max(0.0));
        let cost = |(constant_s, growth)| Cost { constant_s, growth, whole_s, copies: None };
        let copied = self.line_of(|sample| sample.stored.is_copied);
        let Some(others) = self.line_of(|sample| !sample.stored.is_copied) else {
            let Some(copied) = copied else {
                let constant_s = self.recent(|sample| Some(sample.cost_s()))?.max(0.0);
                return Some(cost((constant_s, 0.0)));
            };
            return Some(cost(copied));
        };
        let copies =
            copied.filter(|_| self.copied() >= COPIED_MIN).zip(self.copied_until_s(step_s));
        let copies = copies.map(|((constant_s, growth), until_s)| CopiesCost {
            constant_s,
            growth,
            until_s,
        });
        Some(Cost { copies, ..cost(others) })
    }

    /// Fits a line through the costs of some samples; `None` if there are none of them.
    fn line_of(&self, is_one: impl Fn(&Sample) -> bool) -> Option<(f64, f64)> {
        let points: Vec<(f64, f64)> =
            self.samples.iter().filter(|sample| is_one(sample)).filter_map(point).collect();
        if points.is_empty() {
            return None;
        }
        let (constant, growth) = line(&points);
        // The program may do something else by now: the newest saves set the level.
        let ratio = self.recent(|sample| {
            let (t, cost) = Some(sample).filter(|sample| is_one(sample)).and_then(point)?;
            let fitted = constant + growth * t;
            (fitted > 0.0).then_some(cost / fitted)
        });
        let level = ratio.unwrap_or(1.0).max(0.0);
        Some((constant * level, growth * level))
    }

    /// Returns the number of samples of saves that copied all changes.
    pub fn copied(&self) -> usize {
        let copied = |sample: &&Sample| sample.stored.is_copied && point(sample).is_some();
        self.samples.iter().filter(copied).count()
    }

    /// Returns the longest interval whose changes can be copied, by the newest saves. The program saves
    /// at the end of a step, which takes `step_s`. `None` if no step fits, or if the interval is too
    /// short for such saves to become durable.
    pub fn copied_until_s(&self, step_s: f64) -> Option<f64> {
        let until = self.recent.iter().filter_map(Sample::copied_until_s);
        let until_s = until.min_by(f64::total_cmp)? - step_s;
        let latency_s = self.copied_latency_s().unwrap_or(0.0);
        (until_s > latency_s).then_some(until_s)
    }

    /// Returns the median latency of the newest saves that copied all changes; `None` without any.
    pub fn copied_latency_s(&self) -> Option<f64> {
        let copied = self.samples.iter().rev().filter(|sample| sample.stored.is_copied);
        median(copied.take(RECENT).map(|sample| sample.latency_s))
    }
}

/// Returns interval and cost of a sample after another one. The cost of a first save, of the whole
/// state, says nothing about later ones.
fn point(sample: &Sample) -> Option<(f64, f64)> {
    sample.interval_s.filter(|t| *t > 0.0).map(|t| (t, sample.cost_s()))
}

/// Returns the class of a sample: whether its save copied all changes, and the number of its interval's
/// class.
fn class_of(sample: &Sample) -> (bool, i32) {
    let of_interval = match sample.interval_s {
        Some(t) if t > 0.0 => t.log2().floor() as i32,
        _ => i32::MIN,
    };
    (sample.stored.is_copied, of_interval)
}

/// Fits a line `a + growth·t` with a, growth ≥ 0 through points: the slope is the median of the slopes
/// of all pairs, weighted by their distance (Theil and Sen). A few saves that took ten times as long
/// do not move it. Without pairs that are far enough apart, nothing shows a growth.
fn line(points: &[(f64, f64)]) -> (f64, f64) {
    let mut slopes = Vec::new();
    for (at, (t, cost)) in points.iter().enumerate() {
        for (other_t, other_cost) in &points[at + 1..] {
            if t.max(*other_t) >= SPREAD_MIN * t.min(*other_t) {
                let distance = other_t - t;
                slopes.push(((other_cost - cost) / distance, distance.abs()));
            }
        }
    }
    let growth = weighted_median(slopes).unwrap_or(0.0).max(0.0);
    let rest = median(points.iter().map(|(t, cost)| cost - growth * t)).unwrap_or(0.0);
    if rest >= 0.0 {
        return (rest, growth);
    }
    let through_zero = median(points.iter().map(|(t, cost)| cost / t)).unwrap_or(0.0);
    (0.0, through_zero.max(0.0))
}

fn weighted_median(mut values: Vec<(f64, f64)>) -> Option<f64> {
    values.sort_by(|a, b| a.0.total_cmp(&b.0));
    let half = values.iter().map(|(_, weight)| weight).sum::<f64>() / 2.0;
    let mut sum = 0.0;
    values.into_iter().find_map(|(value, weight)| {
        sum += weight;
        (sum >= half).then_some(value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(interval_s: f64, stall_s: f64) -> Sample {
        Sample {
            interval_s: Some(interval_s),
            stall_s,
            slowdown_s: Some(0.0),
            latency_s: 0.1,
            stored: Stored::default(),
        }
    }

    fn fitted(samples: impl IntoIterator<Item = Sample>) -> Cost {
        let mut costs = Costs::default();
        samples.into_iter().for_each(|sample| costs.add(sample));
        costs.fit(0.0).unwrap()
    }

    #[test]
    fn a_line_is_found_among_outliers() {
        let at = |t: f64| sample(t, 0.2 + 0.01 * t);
        let mut all: Vec<Sample> = (1..=20).map(|t| at(f64::from(t))).collect();
        all[3].stall_s = 50.0;
        all[17].stall_s = 80.0;
        let cost = fitted(all);
        assert!((cost.constant_s - 0.2).abs() < 0.02, "{cost:?}");
        assert!((cost.growth - 0.01).abs() < 0.002, "{cost:?}");
    }

    #[test]
    fn neither_part_of_a_cost_is_negative() {
        let falling = fitted((1..=10).map(|t| sample(f64::from(t), 1.0 / f64::from(t))));
        assert_eq!(falling.growth, 0.0);
        assert!(falling.constant_s > 0.0);
        let steep = fitted((1..=10).map(|t| sample(f64::from(t), f64::from(t).powi(2))));
        assert_eq!(steep.constant_s, 0.0);
        assert!(steep.growth > 0.0);
        let by_chance = Sample { slowdown_s: Some(-3.0), ..sample(10.0, 1.0) };
        assert_eq!(fitted([by_chance]).constant_s, 0.0);
    }

    #[test]
    fn one_interval_for_long_does_not_hide_the_growth() {
        let at = |t: f64| sample(t, 0.2 + 0.01 * t);
        let before = [1.0, 5.0, 20.0].map(at);
        let cost = fitted(before.into_iter().chain(std::iter::repeat_n(at(40.0), 500)));
        assert!((cost.growth - 0.01).abs() < 0.001, "{cost:?}");
        // Then each save costs three times as much.
        let dear = std::iter::repeat_n(sample(40.0, 1.8), 5);
        let cost = fitted(before.into_iter().chain(std::iter::repeat_n(at(40.0), 500)).chain(dear));
        assert!((cost.at(40.0) / 1.8 - 1.0).abs() < 0.01, "{cost:?}");
    }

    #[test]
    fn the_first_save_of_a_state_is_none_of_the_later_ones() {
        let first = Sample {
            interval_s: None,
            stall_s: 10.0,
            stored: Stored { is_whole: true, ..Stored::default() },
            ..sample(1.0, 0.0)
        };
        let cost = fitted([first]);
        assert_eq!((cost.constant_s, cost.whole_s), (10.0, Some(10.0)));
        let cost = fitted([first, sample(100.0, 0.5)]);
        assert_eq!((cost.constant_s, cost.whole_s), (0.5, Some(10.0)));
    }

    #[test]
    fn a_cost_that_stops_growing_has_a_later_optimum() {
        let cost = Cost { constant_s: 0.1, growth: 0.5, whole_s: Some(10.0), copies: None };
        assert_eq!(cost.at(1e6), 10.0);
        let mtbf_s = 86_400.0;
        assert_eq!(cost.optimum(mtbf_s), daly(10.0, mtbf_s));
        let cost = Cost { growth: 0.001, ..cost };
        assert_eq!(cost.optimum(mtbf_s), incremental(0.1, 0.001, mtbf_s));
        let constant = Cost { growth: 0.0, ..cost };
        assert_eq!(constant.optimum(mtbf_s), daly(0.1, mtbf_s));
    }

    #[test]
    fn times_that_are_none_do_not_count() {
        let mut costs = Costs::default();
        for wrong in [f64::NAN, f64::INFINITY, -1.0] {
            costs.add(Sample { stall_s: wrong, ..sample(1.0, 1.0) });
            costs.add(Sample { latency_s: wrong, ..sample(1.0, 1.0) });
        }
        costs.add(Sample { interval_s: Some(f64::NAN), ..sample(1.0, 1.0) });
        assert_eq!((costs.seen(), costs.fit(0.0)), (0, None));
        costs.add(sample(1.0, 1e300));
        assert!(costs.fit(0.0).unwrap().constant_s <= SECONDS_MAX);
        assert!(costs.fit(0.0).unwrap().optimum(60.0).is_finite());
    }
}
