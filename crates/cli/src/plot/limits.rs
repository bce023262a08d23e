//! The ends of an axis that outliers do not stretch, and its round steps.

/// Values beyond this many times the span of the middle 80 % do not stretch the axis.
const OUTLIER: f64 = 8.0;
/// Fewest values of which some can be outliers.
const VALUES_MIN: usize = 8;

/// Ends of an axis.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Limits {
    /// The least value that fits.
    pub low: f64,
    /// The greatest value that fits.
    pub high: f64,
}

impl Limits {
    /// Returns the ends for some values; infinite ones lie beyond. With `from_zero` the axis begins
    /// there, if no value is below.
    pub fn of(values: impl IntoIterator<Item = f64>, from_zero: bool) -> Limits {
        let mut sorted: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let (Some(mut low), Some(mut high)) = (sorted.first().copied(), sorted.last().copied())
        else {
            return Limits { low: 0.0, high: 1.0 };
        };
        let at = |share: f64| sorted[(share * (sorted.len() - 1) as f64).round() as usize];
        let (below, above) = (at(0.1), at(0.9));
        let middle = match above - below {
            0.0 => below.abs(),
            middle => middle,
        };
        if sorted.len() >= VALUES_MIN && middle > 0.0 && high - low > OUTLIER * middle {
            (low, high) = (low.max(below - middle / 2.0), high.min(above + middle / 2.0));
        }
        if low > 0.0 && (from_zero || low < high / 2.0) {
            low = 0.0;
        }
        // The span of values near the ends of all numbers would be none.
        (low, high) = (low.max(f64::MIN / 4.0), high.min(f64::MAX / 4.0));
        if low == high {
            (low, high) = (low.min(0.0), if high > 0.0 { high } else { low.min(0.0) + 1.0 });
        }
        Limits { low, high }
    }

    /// Returns whether a value lies outside.
    pub fn cuts(&self, value: f64) -> bool {
        !(self.low..=self.high).contains(&value)
    }

    /// Returns where a value lies, from 0 at the low end to 1; one outside is at the nearer end.
    pub fn share(&self, value: f64) -> f64 {
        ((value.clamp(self.low, self.high) - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }

    /// Returns values for lines across: at steps of 1, 2 or 5 times a power of ten.
    pub fn steps(&self) -> Vec<f64> {
        let rough = (self.high - self.low) / 3.0;
        let power = 10f64.powf(rough.log10().floor());
        let step =
            [1.0, 2.0, 5.0, 10.0].into_iter().map(|n| n * power).find(|n| *n >= rough * 0.999);
        let Some(step) = step.filter(|step| step.is_finite() && *step > 0.0) else {
            return vec![self.low, self.high];
        };
        let first = (self.low / step).ceil();
        let steps = (0..9).map(|n| (first + f64::from(n)) * step);
        // Zero has no sign.
        steps.take_while(|at| *at <= self.high + step * 1e-9).map(|at| at + 0.0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[f64]) -> Limits {
        Limits::of(values.iter().copied(), false)
    }

    #[test]
    fn an_outlier_does_not_flatten_the_rest() {
        let mut values: Vec<f64> = (0..50).map(|n| 1.0 + f64::from(n) / 100.0).collect();
        assert_eq!(of(&values), Limits { low: 1.0, high: 1.49 });
        values[7] = 1e9;
        values[9] = f64::INFINITY;
        let limits = of(&values);
        assert!(limits.high < 2.0 && limits.low >= 0.5, "{limits:?}");
        assert!(limits.cuts(1e9) && limits.cuts(f64::INFINITY) && limits.cuts(f64::NEG_INFINITY));
        assert!(!limits.cuts(1.2));
        assert_eq!((limits.share(f64::INFINITY), limits.share(f64::NEG_INFINITY)), (1.0, 0.0));
        // Of a few values none is an outlier.
        assert_eq!(of(&[1.0, 1.0, 50.0]).high, 50.0);
    }

    #[test]
    fn odd_values_have_ends_of_their_own() {
        assert_eq!(of(&[]), Limits { low: 0.0, high: 1.0 });
        assert_eq!(of(&[3.0, 3.0]), Limits { low: 0.0, high: 3.0 });
        assert_eq!(of(&[-3.0]), Limits { low: -3.0, high: -2.0 });
        assert_eq!(of(&[0.0]), Limits { low: 0.0, high: 1.0 });
        assert_eq!(of(&[f64::INFINITY]), Limits { low: 0.0, high: 1.0 });
        for values in [&[f64::MIN, f64::MAX][..], &[5e-324, 1e-323], &[1e300, 1.1e300]] {
            let limits = of(values);
            assert!(limits.low < limits.high, "{values:?}: {limits:?}");
            assert!(values.iter().all(|v| (0.0..=1.0).contains(&limits.share(*v))), "{values:?}");
            assert!(!limits.steps().is_empty() && limits.steps().len() < 10, "{values:?}");
        }
        let from_zero = Limits::of([8.0, 9.0], true);
        assert_eq!(from_zero, Limits { low: 0.0, high: 9.0 });
    }

    #[test]
    fn steps_are_round_and_inside() {
        assert_eq!(Limits { low: 0.0, high: 9.0 }.steps(), [0.0, 5.0]);
        assert_eq!(Limits { low: -1.0, high: 1.0 }.steps(), [-1.0, 0.0, 1.0]);
        let steps = Limits { low: 0.13, high: 0.48 }.steps();
        assert_eq!(steps.iter().map(|at| format!("{at:.1}")).collect::<Vec<_>>(), ["0.2", "0.4"]);
    }
}
