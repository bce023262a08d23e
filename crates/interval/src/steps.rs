//! The program's steps: the time between two of its calls, with and without a save in progress.

use std::collections::VecDeque;

/// Number of the newest undisturbed steps that count.
const STEPS_MAX: usize = 32;
/// Number of undisturbed steps from which a slowdown can be told.
pub(crate) const STEPS_MIN: usize = 3;
/// A step that takes more than this many medians counts as this many: it was no usual one.
const UNUSUAL: f64 = 4.0;

/// Times of undisturbed steps, in seconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Steps {
    newest: VecDeque<f64>,
    /// Number of undisturbed steps so far.
    seen: u64,
}

impl Steps {
    /// Adds a step without a save in progress.
    pub fn add(&mut self, step_s: f64) {
        self.newest.push_back(step_s);
        if self.newest.len() > STEPS_MAX {
            self.newest.pop_front();
        }
        self.seen += 1;
    }

    /// Returns the number of steps that were added.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Returns the usual time of a step; `None` if too few were seen.
    pub fn usual_s(&self) -> Option<f64> {
        if self.newest.len() < STEPS_MIN {
            return None;
        }
        let most = median(self.newest.iter().copied())? * UNUSUAL;
        let sum: f64 = self.newest.iter().map(|step| step.min(most)).sum();
        Some(sum / self.newest.len() as f64)
    }
}

/// Returns the median; `None` of nothing.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut all: Vec<f64> = values.collect();
    all.sort_by(f64::total_cmp);
    let middle = all.len() / 2;
    let upper = *all.get(middle)?;
    Some(if all.len() % 2 == 1 { upper } else { (all[middle - 1] + upper) / 2.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_long_step_does_not_make_all_long() {
        let mut steps = Steps::default();
        steps.add(1.0);
        steps.add(1.0);
        assert_eq!(steps.usual_s(), None);
        steps.add(1000.0);
        assert_eq!(steps.usual_s(), Some(2.0));
        (0..40).for_each(|_| steps.add(1.0));
        assert_eq!((steps.usual_s(), steps.seen()), (Some(1.0), 43));
        assert_eq!(median([].into_iter()), None);
        assert_eq!(median([4.0, 1.0].into_iter()), Some(2.5));
    }
}
