//! Random times between failures.

use outlive_types::{Rng as _, SeededRng};

/// Γ(1 + 1/0.7), the mean of a Weibull distribution of this shape and scale 1.
const WEIBULL_MEAN: f64 = 1.265_824;
const WEIBULL_SHAPE: f64 = 0.7;

/// A distribution of the times between failures, all with the same mean.
#[derive(Clone, Copy, Debug)]
pub enum Failures {
    Exponential,
    /// Of shape 0.7: most failures come soon after another one.
    Weibull,
}

pub const BOTH: [Failures; 2] = [Failures::Exponential, Failures::Weibull];

pub struct Random(SeededRng);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(SeededRng::new(seed))
    }

    /// Returns a number above 0, up to 1.
    pub fn share(&self) -> f64 {
        let mut bytes = [0; 8];
        self.0.fill(&mut bytes);
        ((u64::from_le_bytes(bytes) >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// Returns the time until a failure.
    pub fn failure_s(&self, failures: Failures, mtbf_s: f64) -> f64 {
        let exponential = -self.share().ln();
        match failures {
            Failures::Exponential => exponential * mtbf_s,
            Failures::Weibull => exponential.powf(1.0 / WEIBULL_SHAPE) * mtbf_s / WEIBULL_MEAN,
        }
    }
}

#[test]
fn all_distributions_have_the_same_mean() {
    for failures in BOTH {
        let random = Random::new(5);
        let mean = (0..200_000).map(|_| random.failure_s(failures, 60.0)).sum::<f64>() / 200_000.0;
        assert!((mean / 60.0 - 1.0).abs() < 0.02, "{failures:?}: {mean}");
    }
}
