//! The cost of a copy to the slow tier: the program's steps beside it, against steps without one.

use crate::steps::Steps;

/// Most usual steps for which one step beside a copy counts.
const DISTURBED_MAX: f64 = 10.0;

/// Number of the newest steps beside a copy that count.
const BESIDE_MAX: usize = 256;

/// Steps without a save in progress, with and without a copy to the slow tier.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fills {
    idle: Steps,
    beside: Vec<f64>,
    copies: u64,
    is_filling: bool,
    /// Whether a copy was in progress when the present step began.
    was_filling: bool,
}

impl Fills {
    /// Notes whether a copy is in progress.
    pub fn note(&mut self, is_filling: bool) {
        self.copies += u64::from(is_filling && !self.is_filling);
        self.is_filling = is_filling;
    }

    /// Adds a step without a save in progress.
    pub fn add(&mut self, step_s: f64) {
        if !self.was_filling {
            return self.idle.add(step_s);
        }
        if self.beside.len() >= BESIDE_MAX {
            // The older half no longer counts, and neither do its copies.
            self.beside.drain(..BESIDE_MAX / 2);
            self.copies = self.copies.div_ceil(2);
        }
        self.beside.push(step_s);
    }

    /// Notes that a step begins.
    pub fn step(&mut self) {
        self.was_filling = self.is_filling;
    }

    /// Returns the time that one copy costs; `None` if that cannot be told.
    pub fn cost_s(&self) -> Option<f64> {
        let usual = self.idle.usual_s()?;
        if self.copies == 0 {
            return None;
        }
        let excess = self.beside.iter().map(|step| step.min(usual * DISTURBED_MAX) - usual);
        Some((excess.sum::<f64>() / self.copies as f64).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(fills: &mut Fills, is_filling: bool, step_s: f64) {
        fills.note(is_filling);
        fills.step();
        fills.add(step_s);
    }

    #[test]
    fn a_copy_costs_what_its_steps_take_longer() {
        let mut fills = Fills::default();
        for _ in 0..6 {
            assert_eq!(fills.cost_s(), None);
            // Two copies of four steps each.
            (0..4).for_each(|_| step(&mut fills, true, 1.5));
            step(&mut fills, false, 1.0);
            if fills.idle.seen() == 3 {
                break;
            }
        }
        assert_eq!(fills.cost_s(), Some(2.0));
        (0..1000).for_each(|_| {
            step(&mut fills, true, 1.5);
            step(&mut fills, false, 1.0);
        });
        let cost_s = fills.cost_s().unwrap();
        assert!((cost_s - 0.5).abs() < 0.1, "{cost_s}");
    }
}
