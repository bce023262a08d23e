//! The chosen interval, with its reasons.

use crate::rate::{FailureRate, PRIOR_S};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The rule that has set the interval.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The program, or the supervisor, gives a time.
    Given,
    /// Nothing is measured yet, so the next call saves.
    Unmeasured,
    /// The least loss by saves and failures.
    Optimum,
    /// The time until a save is durable: a shorter interval would let saves queue up.
    Latency,
    /// The budget for the slowdown.
    Budget,
    /// The memory for copies: changes of a longer interval would not fit, and saves cost far more then.
    Copies,
    /// A trial of what saves cost if all changes fit into the memory for copies.
    Trial,
}

/// The interval in use, and its reasons. Times are in seconds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Choice {
    /// The rule: "always", "auto", "continuous", or a time.
    pub every: String,
    /// Whether `outlive run --every` gives the rule, in place of the program.
    pub is_overridden: bool,
    /// The interval: for "auto" the work between two saves, otherwise the time from the beginning of
    /// one to that of the next.
    pub seconds: f64,
    /// The rule that has set it.
    pub bound: Bound,
    /// Number of saves that were measured.
    pub saves: u64,
    /// Time for which a save holds the program up.
    pub stall_s: f64,
    /// Time by which the program's steps take longer because of a save; `None` if that cannot be
    /// told yet.
    pub slowdown_s: Option<f64>,
    /// Part of the cost that does not depend on the interval; 0 unless the rule is "auto".
    pub constant_s: f64,
    /// Cost for each second of the interval; 0 unless the rule is "auto".
    pub growth: f64,
    /// Time from the call until a save is durable.
    pub latency_s: f64,
    /// Time from the start of an attempt until its state is restored, if the history knows it.
    pub restart_s: Option<f64>,
    /// Number of failures seen; those on other machines count for a part.
    pub failures: f64,
    /// Time in which they were seen.
    pub exposure_s: f64,
    /// Mean time between failures, with the prior.
    pub mtbf_s: f64,
    /// Share of useful work that is expected; `None` without a measured save.
    pub useful_share: Option<f64>,
    /// Budget of continuous saving.
    pub slowdown_max: Option<f64>,
    /// Time by which the program's steps take longer because of one copy to the slow tier; `None`
    /// without such a tier, or if that cannot be told yet.
    pub copy_s: Option<f64>,
    /// The best step between checkpoints that go to the slow tier, for `[tiers] every` in `pool.toml`.
    pub slow_every: Option<u64>,
    /// Why the failures of the past are not known, if they are not.
    pub trouble: Option<String>,
}

impl Choice {
    /// Returns whether the rate of failures rests on the prior, as no failure was seen.
    pub fn is_prior(&self) -> bool {
        FailureRate::after(self.failures, self.exposure_s).is_prior()
    }

    /// Returns whether another choice differs so much that people should know.
    pub fn differs(&self, other: &Choice) -> bool {
        let ratio = (self.seconds + 1e-3) / (other.seconds + 1e-3);
        (&self.every, self.bound, &self.trouble) != (&other.every, other.bound, &other.trouble)
            || !(1.0 / 1.1..=1.1).contains(&ratio)
    }

    /// Returns the interval in a word or two.
    pub fn short(&self) -> String {
        match (self.bound, &*self.every) {
            (Bound::Given, "always") => "each call".to_owned(),
            (Bound::Given, _) => shown_time(self.seconds),
            (Bound::Unmeasured, every) => every.to_owned(),
            (_, every) => format!("{every}, {}", shown_time(self.seconds)),
        }
    }

    /// Returns the reasons, as one sentence without its end.
    pub fn reasons(&self) -> String {
        let by = if self.is_overridden { "`outlive run --every`" } else { "the program" };
        match self.bound {
            Bound::Given => return format!("{by} sets it"),
            Bound::Unmeasured => {
                return "no save is measured yet, so the next call saves".to_owned();
            }
            _ => {}
        }
        let mut text = match self.bound {
            Bound::Latency => format!(
                "as long as a save takes to be durable, as the optimum is shorter; a save costs {}",
                shown_time(self.cost_s())
            ),
            Bound::Budget => format!(
                "saves take at most {:.1} % of the time; a save costs {}",
                self.slowdown_max.unwrap_or(0.0) * 100.0,
                shown_time(self.cost_s())
            ),
            Bound::Copies => format!(
                "as long as all changes fit into freeze_bytes_max, as saves cost far more beyond; a save \
                 costs {}",
                shown_time(self.cost_s())
            ),
            Bound::Trial => format!(
                "a trial whether saves cost less while all changes fit into freeze_bytes_max; a save \
                 costs {}",
                shown_time(self.cost_s())
            ),
            _ => format!("a save costs {}", shown_time(self.cost_s())),
        };
        let slowdown = match self.slowdown_s {
            Some(slowdown_s) => format!("slowdown {}", shown_time(slowdown_s)),
            None => "slowdown not known yet".to_owned(),
        };
        text.push_str(&format!(" (stall {}, {slowdown})", shown_time(self.stall_s)));
        if self.growth > 0.0 {
            text.push_str(&format!(
                ", {} of it however long the interval",
                shown_time(self.constant_s)
            ));
        }
        text.push_str(&format!(", and is durable after {}; ", shown_time(self.latency_s)));
        text.push_str(&self.rate_text());
        if let Some(share) = self.useful_share {
            text.push_str(&format!("; {:.2} % of the time should be useful work", share * 100.0));
        }
        if let (Some(every), Some(copy_s)) = (self.slow_every, self.copy_s) {
            text.push_str(&format!(
                "; a copy to the slow tier costs {}, so {every} checkpoints for each one there are best \
                 (tiers.every in pool.toml)",
                shown_time(copy_s)
            ));
        }
        text
    }

    fn cost_s(&self) -> f64 {
        self.stall_s + self.slowdown_s.unwrap_or(0.0)
    }

    fn rate_text(&self) -> String {
        let seen = shown_time(self.exposure_s);
        let prior = format!("1 failure in {}", shown_time(PRIOR_S));
        if let Some(trouble) = &self.trouble {
            return format!(
                "the failures of the past are not known ({trouble}): the prior counts, {prior}"
            );
        }
        if self.is_prior() {
            return format!(
                "no failure was seen in {seen}, so the rate rests on the prior, {prior}"
            );
        }
        format!(
            "a failure comes every {} ({} in {seen}, and the prior, {prior})",
            shown_time(self.mtbf_s),
            (self.failures * 100.0).round() / 100.0
        )
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.short(), self.reasons())
    }
}

/// Returns a time for a person: 12.3 ms, 4.20 s, 3.5 min, 18.0 h.
pub fn shown_time(seconds: f64) -> String {
    match seconds.max(0.0) {
        time if time < 1.0 => format!("{:.1} ms", time * 1e3),
        time if time < 100.0 => format!("{time:.2} s"),
        time if time < 6000.0 => format!("{:.1} min", time / 60.0),
        time => format!("{:.1} h", time / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice() -> Choice {
        Choice {
            every: "auto".into(),
            is_overridden: false,
            seconds: 42.0,
            bound: Bound::Optimum,
            saves: 3,
            stall_s: 0.05,
            slowdown_s: Some(0.07),
            constant_s: 0.1,
            growth: 0.001,
            latency_s: 0.8,
            restart_s: None,
            failures: 0.0,
            exposure_s: 3600.0,
            mtbf_s: 90_000.0,
            useful_share: Some(0.9912),
            slowdown_max: None,
            copy_s: None,
            slow_every: None,
            trouble: None,
        }
    }

    #[test]
    fn the_reasons_say_on_what_the_rate_rests() {
        let text = choice().to_string();
        assert!(text.starts_with("auto, 42.00 s: a save costs 120.0 ms (stall 50.0 ms"), "{text}");
        assert!(text.contains("rests on the prior, 1 failure in 24.0 h"), "{text}");
        let seen = Choice { failures: 2.0, ..choice() }.to_string();
        assert!(seen.contains("(2 in 60.0 min, and the prior"), "{seen}");
        assert!(!seen.contains("rests on"), "{seen}");
        let damaged = Choice { trouble: Some("it is damaged".into()), ..choice() }.to_string();
        assert!(damaged.contains("not known (it is damaged): the prior counts"), "{damaged}");
        let unknown = Choice { slowdown_s: None, ..choice() }.to_string();
        assert!(unknown.contains("slowdown not known yet"), "{unknown}");
        let first = Choice { bound: Bound::Unmeasured, ..choice() };
        assert_eq!(first.to_string(), "auto: no save is measured yet, so the next call saves");
        let tiers = Choice { copy_s: Some(2.0), slow_every: Some(7), ..choice() }.to_string();
        assert!(tiers.contains("costs 2.00 s, so 7 checkpoints for each one there are"), "{tiers}");
        let given = Choice { bound: Bound::Given, every: "42 s".into(), ..choice() };
        assert_eq!(given.to_string(), "42.00 s: the program sets it");
        let given = Choice { is_overridden: true, ..given }.to_string();
        assert_eq!(given, "42.00 s: `outlive run --every` sets it");
    }

    #[test]
    fn only_a_change_that_matters_is_news() {
        assert!(!choice().differs(&Choice { seconds: 43.0, saves: 9, ..choice() }));
        assert!(choice().differs(&Choice { seconds: 60.0, ..choice() }));
        assert!(choice().differs(&Choice { bound: Bound::Latency, ..choice() }));
        assert!(choice().differs(&Choice { seconds: f64::NAN, ..choice() }));
    }
}
