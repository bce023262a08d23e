//! The rate of failures: a Gamma prior, and the failures that were seen.

use serde::{Deserialize, Serialize};

/// Number of failures as which a prior counts: the shape of its Gamma distribution. It is small, since
/// rates differ by orders of magnitude: with failures every ten minutes, a whole failure a day would
/// weigh as much as the first 144 of them.
const PRIOR_FAILURES: f64 = 0.25;
/// Mean time between failures of the prior, in seconds: a day.
pub const PRIOR_S: f64 = 86_400.0;
/// The same for failures that lose a host with its memory: 30 days.
pub const HOST_PRIOR_S: f64 = 30.0 * 86_400.0;
/// Factor by which the newest attempts must be shorter than the mean time between failures, so that they
/// alone count. Five exponential times have such a mean once in 6,000 cases.
const SUDDEN: f64 = 10.0;
/// Longest time that counts for one attempt, in seconds: a hundred years. A damaged history may name
/// any number.
const EXPOSURE_S_MAX: f64 = 100.0 * 365.25 * 86_400.0;

/// Failures of a job that its pool remembers. Those on other machines count for a part, so these are
/// no whole numbers.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Past {
    /// Number of failures.
    pub failures: f64,
    /// Number of these that lost a host.
    #[serde(default)]
    pub host_losses: f64,
    /// Time in which they came, in seconds.
    pub exposure_s: f64,
    /// Mean time of the newest attempts, in seconds, if each of them made a checkpoint and failed.
    #[serde(default)]
    pub recent_s: Option<f64>,
    /// Time from the start of an attempt until its state was restored, in seconds.
    pub restart_s: Option<f64>,
    /// Why the past is not known, if it is not.
    pub trouble: Option<String>,
}

impl Past {
    /// Adds an attempt that ran for a time, and perhaps ended with a failure. `weight` is the part
    /// for which it counts. Times that are none do not count.
    pub fn add(&mut self, ran_s: f64, has_failed: bool, weight: f64) {
        if ran_s.is_finite() && ran_s >= 0.0 {
            self.exposure_s += ran_s.min(EXPOSURE_S_MAX) * weight;
            self.failures += if has_failed { weight } else { 0.0 };
        }
    }
}

/// The rate of failures, as a Gamma distribution. It is the conjugate prior of exponential failures:
/// after `failures` in `exposure_s` its shape and scale grow by these. Its mean is the rate that
/// counts, since the time lost is linear in the rate.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FailureRate {
    failures: f64,
    exposure_s: f64,
    recent_s: Option<f64>,
}

impl FailureRate {
    /// Returns the rate after failures in a time.
    pub fn after(failures: f64, exposure_s: f64) -> FailureRate {
        let sane = |value: f64| if value.is_finite() { value.max(0.0) } else { 0.0 };
        FailureRate { failures: sane(failures), exposure_s: sane(exposure_s), recent_s: None }
    }

    /// Returns the rate after the failures of the past; `exposure_s` includes the present attempt. If the
    /// program suddenly fails much more often, its newest attempts alone count: it would make no
    /// progress at an interval that is longer than they are.
    pub fn of(past: &Past, exposure_s: f64) -> FailureRate {
        let rate = FailureRate::after(past.failures, exposure_s);
        let recent_s = past.recent_s.filter(|recent_s| recent_s.is_finite() && *recent_s > 0.0);
        FailureRate { recent_s: recent_s.filter(|it| it * SUDDEN < rate.mtbf_s()), ..rate }
    }

    /// Returns the mean of the rate of failures that lose a host, in failures a second. Its prior is
    /// another one.
    pub fn host_mean(self) -> f64 {
        (PRIOR_FAILURES + self.failures) / (PRIOR_FAILURES * HOST_PRIOR_S + self.exposure_s)
    }

    /// Returns the mean of the rate, in failures a second.
    pub fn mean(self) -> f64 {
        if let Some(recent_s) = self.recent_s {
            return 1.0 / recent_s;
        }
        (PRIOR_FAILURES + self.failures) / (PRIOR_FAILURES * PRIOR_S + self.exposure_s)
    }

    /// Returns one over the mean, in seconds.
    pub fn mtbf_s(self) -> f64 {
        1.0 / self.mean()
    }

    /// Returns whether no failure was seen, so that the rate is the prior's and the time's.
    pub fn is_prior(self) -> bool {
        self.failures == 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prior_gives_way_to_failures_and_to_time() {
        let rate = |failures, exposure_s| FailureRate::after(failures, exposure_s);
        assert_eq!(rate(0.0, 0.0).mtbf_s(), PRIOR_S);
        assert_eq!(rate(1.0, HOST_PRIOR_S).host_mean(), 1.0 / HOST_PRIOR_S);
        assert_eq!(rate(0.0, HOST_PRIOR_S).host_mean(), 1.0 / (5.0 * HOST_PRIOR_S));
        assert!(rate(0.0, 0.0).is_prior() && !rate(0.5, 1.0).is_prior());
        assert_eq!(rate(0.0, PRIOR_S).mtbf_s(), 5.0 * PRIOR_S);
        // Five failures outweigh it; after many the prior no longer matters.
        let few = rate(5.0, 5.0 * 600.0).mtbf_s();
        assert!(few < PRIOR_S / 15.0, "{few}");
        let many = rate(1000.0, 1000.0 * 600.0).mtbf_s();
        assert!((many / 600.0 - 1.0).abs() < 0.04, "{many}");
        for wrong in [f64::NAN, f64::INFINITY, -5.0] {
            assert_eq!(rate(wrong, wrong).mtbf_s(), PRIOR_S);
        }
    }

    #[test]
    fn a_program_that_suddenly_fails_fast_counts_alone() {
        let rate = |recent_s, exposure_s| {
            let past = Past { failures: 5.0, recent_s, ..Past::default() };
            FailureRate::of(&past, exposure_s).mtbf_s()
        };
        let slow = rate(None, 10.0);
        assert!(slow > 3600.0, "{slow}");
        assert_eq!(rate(Some(2.0), 10.0), 2.0);
        for none in [slow / 9.0, 0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(rate(Some(none), 10.0), slow, "{none}");
        }
    }

    #[test]
    fn a_past_counts_only_times() {
        let mut past = Past::default();
        past.add(100.0, true, 1.0);
        past.add(100.0, true, 0.25);
        for wrong in [f64::NAN, f64::INFINITY, -1.0] {
            past.add(wrong, true, 1.0);
        }
        assert_eq!((past.failures, past.exposure_s), (1.25, 125.0));
        past.add(1e300, false, 1.0);
        assert!(past.exposure_s < 1e10, "{}", past.exposure_s);
    }
}
