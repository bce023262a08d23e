//! Formulas for the best time between two saves. Times are in seconds; `mtbf_s` is the mean time
//! between failures, and a rate is one over it.

/// Largest exponent that is computed; beyond it nothing is useful work any more.
const EXPONENT_MAX: f64 = 500.0;
/// Steps of the search for a minimum; each takes a third of the range away.
const SEARCH_STEPS: usize = 200;

/// Returns the best time of work between two saves that cost `cost_s` each, however long the
/// interval: J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart
/// dumps", 2006, equation 37. The time excludes the save itself.
///
/// A cost of twice the MTBF and more gives the MTBF, as in the paper.
pub fn daly(cost_s: f64, mtbf_s: f64) -> f64 {
    if cost_s >= 2.0 * mtbf_s {
        return mtbf_s;
    }
    let ratio = cost_s / (2.0 * mtbf_s);
    (2.0 * cost_s * mtbf_s).sqrt() * (1.0 + ratio.sqrt() / 3.0 + ratio / 9.0) - cost_s
}

/// Returns the time that is lost for each second of work, to first order: saves that cost
/// `cost(t)`, and half an interval at each failure.
///
/// A save is durable only some time L after it began. A failure then loses t/2 + L on average, so
/// the loss grows by rate·L. That term does not depend on t, and the best t stays where it is. The
/// same holds for the time R that a restart takes.
pub fn first_order_loss(t: f64, cost: impl Fn(f64) -> f64, rate: f64) -> f64 {
    cost(t) / t + rate * t / 2.0
}

/// Returns the minimum of [`first_order_loss`] between `from` and `to`, for a cost with one minimum
/// there. It searches by golden sections, on a logarithmic scale.
pub fn least_first_order_loss(cost: impl Fn(f64) -> f64, rate: f64, from: f64, to: f64) -> f64 {
    let loss = |x: f64| first_order_loss(x.exp(), &cost, rate);
    let golden = (5.0_f64.sqrt() - 1.0) / 2.0;
    let (mut low, mut high) = (from.ln(), to.ln());
    for _ in 0..SEARCH_STEPS {
        let (left, right) = (high - golden * (high - low), low + golden * (high - low));
        if loss(left) < loss(right) {
            high = right;
        } else {
            low = left;
        }
    }
    ((low + high) / 2.0).exp()
}

/// Returns that minimum for incremental saves, whose cost is `a + growth·t`: the growth costs the
/// same at each t, so only the constant part counts.
pub fn incremental_first_order(a_s: f64, rate: f64) -> f64 {
    (2.0 * a_s / rate).sqrt()
}

/// Returns the best time of work between incremental saves, of higher order. With exponential
/// failures the expected time for work t is (e^(rate·(a + u)) − 1)/rate, where u = (1 + growth)·t:
/// Daly's problem for u. For a small cost it is [`incremental_first_order`].
pub fn incremental(a_s: f64, growth: f64, mtbf_s: f64) -> f64 {
    daly(a_s, mtbf_s) / (1.0 + growth)
}

/// Returns the share of useful work in all time while a program computes `t`, saves for `cost_s`,
/// and fails at this rate; exact for exponential failures. At each failure `lost_s` is lost
/// besides: the latency of a save, and the restart.
pub fn useful_share(t: f64, cost_s: f64, rate: f64, lost_s: f64) -> f64 {
    let exponent = (rate * (t + cost_s)).min(EXPONENT_MAX);
    let share = if exponent < 1e-12 { t / (t + cost_s) } else { rate * t / exponent.exp_m1() };
    share / (1.0 + rate * lost_s)
}

/// Returns the number of checkpoints of the fast tier for each one of the slow tier, at least 1.
/// Failures that the fast tier survives do not need the slow one, so each tier has an optimum of its
/// own. `slow_cost_s` is the cost of a copy, and `slow_rate` the rate of failures that lose the fast
/// tier.
pub fn slow_step(fast_interval_s: f64, slow_cost_s: f64, slow_rate: f64) -> u64 {
    let slow_interval_s = daly(slow_cost_s, 1.0 / slow_rate);
    let step = (slow_interval_s / fast_interval_s).round();
    // A cast of NaN gives 0, one of an infinite number the largest.
    (step as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_near(found: f64, wanted: f64, share: f64) {
        assert!((found / wanted - 1.0).abs() < share, "{found} is not {wanted}");
    }

    #[test]
    fn whole_saves_follow_the_published_formula() {
        // Minutes: a cost of 5, and an MTBF of 24 h, 6 h and 15 min.
        let found = [1440.0, 360.0, 15.0].map(|mtbf| daly(5.0, mtbf));
        for (found, wanted) in found.into_iter().zip([116.7, 56.7, 9.14]) {
            is_near(found, wanted, 1e-3);
        }
        assert_eq!((daly(30.0, 15.0), daly(1e9, 15.0)), (15.0, 15.0));
        assert_eq!(daly(0.0, 15.0), 0.0);
    }

    #[test]
    fn incremental_saves_minimise_cost_and_lost_work() {
        let rate = 1.0 / 3600.0;
        for (a, growth) in [(0.1, 0.0), (0.1, 0.05), (2.0, 0.5)] {
            let found = least_first_order_loss(|t| a + growth * t, rate, 1e-3, 1e6);
            is_near(found, incremental_first_order(a, rate), 1e-4);
        }
        is_near(incremental_first_order(2.0, rate), 120.0, 1e-9);
        // A cost that grows by a power has its minimum elsewhere.
        let found = least_first_order_loss(|t: f64| 0.3 * t.sqrt(), rate, 1e-3, 1e6);
        is_near(found, (0.3 / rate).powf(2.0 / 3.0), 1e-4);
        // Of higher order it is nearly the same while the cost is small.
        is_near(incremental(0.01, 0.001, 3600.0), incremental_first_order(0.01, rate), 5e-3);
        assert_eq!(incremental(5.0, 0.0, 360.0), daly(5.0, 360.0));
    }

    #[test]
    fn higher_order_minima_are_those_of_exponential_failures() {
        for (a, growth, mtbf) in [(5.0, 0.0, 360.0), (5.0, 0.3, 360.0), (1.0, 0.1, 15.0)] {
            let share = |t: f64| useful_share(t, a + growth * t, 1.0 / mtbf, 0.0);
            let best = (1..4000).map(|i| share(f64::from(i) * mtbf / 2000.0)).fold(0.0, f64::max);
            is_near(share(incremental(a, growth, mtbf)), best, 2e-3);
        }
    }

    #[test]
    fn a_latency_and_a_restart_cost_time_and_leave_the_optimum() {
        let best = |lost_s: f64| {
            let share = |t: &f64| useful_share(*t, 5.0, 1.0 / 3600.0, lost_s);
            let all = (1..1000).map(f64::from);
            all.max_by(|a, b| share(a).total_cmp(&share(b))).unwrap_or(0.0)
        };
        assert_eq!(best(0.0), best(600.0));
        assert!(useful_share(100.0, 5.0, 1e-4, 600.0) < useful_share(100.0, 5.0, 1e-4, 0.0));
        assert_eq!(useful_share(10.0, 0.0, 0.0, 0.0), 1.0);
        assert!(useful_share(1e12, 1.0, 1.0, 0.0) >= 0.0);
    }

    #[test]
    fn the_slow_tier_gets_as_few_checkpoints_as_its_failures_allow() {
        let fast_s = daly(1.0, 3600.0);
        // As many failures and the same cost: each checkpoint.
        assert_eq!(slow_step(fast_s, 1.0, 1.0 / 3600.0), 1);
        // A hundredth of the failures: every tenth.
        assert_eq!(slow_step(fast_s, 1.0, 1.0 / 360_000.0), 10);
        assert_eq!(slow_step(fast_s, 0.0, 1.0 / 3600.0), 1);
        assert_eq!(slow_step(fast_s, f64::NAN, 0.0), 1);
    }
}
