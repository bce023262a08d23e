//! Learns while a program runs, and says when its next save is due.

use crate::choice::{Bound, Choice};
use crate::costs::{COPIED_MIN, Cost, Costs, Sample, Stored};
use crate::every::Every;
use crate::fills::Fills;
use crate::optimum::{slow_step, useful_share};
use crate::rate::{FailureRate, Past};
use crate::steps::{STEPS_MIN, Steps, median};
use std::time::Duration;

/// Most usual steps for which one step beside a save counts. A program that was stopped for an hour,
/// as by Ctrl-Z, was not slowed down by its save.
const DISTURBED_MAX: f64 = 10.0;
/// Number of continuous saves after which the program makes a step without a save in progress, so
/// that its usual time stays known.
const CALIBRATE_EVERY: u64 = 8;
/// Most medians of the newest costs for which one save counts against the budget.
const DEBT_MAX: f64 = 4.0;

/// Most saves that try how much less they cost if all changes are copied.
const TRIALS_MAX: usize = 2 * COPIED_MIN;

/// A save that is not measured to its end yet.
#[derive(Clone, Debug)]
struct Running {
    began: Duration,
    interval_s: Option<f64>,
    stall_s: Option<f64>,
    /// Latency, and what it stored; `None` before the commit.
    durable: Option<(f64, Stored)>,
    /// Times of the steps that began while it was in progress.
    steps: Vec<f64>,
}

/// Learns the costs of saves, and chooses the interval. Its times are those of one clock that never
/// jumps. A program calls [`Learner::call`] at each of its steps.
#[derive(Clone, Debug)]
pub struct Learner {
    every: Every,
    is_overridden: bool,
    opened: Duration,
    past: Past,
    steps: Steps,
    fills: Fills,
    costs: Costs,
    running: Option<Running>,
    /// Beginning of the last save.
    last_began: Option<Duration>,
    /// Moment at which the program went on after it.
    last_ended: Option<Duration>,
    /// End of the last call, where a step begins.
    step_began: Option<Duration>,
    /// Whether a save was in progress then.
    is_disturbed: bool,
    /// The last call that found a save due.
    due_at: Option<Duration>,
    /// Cost of the last save, for the budget.
    debt_s: f64,
    costs_newest: Vec<f64>,
    /// Number of undisturbed steps, and of saves, at the last calibration.
    calibrated: (u64, u64),
    /// Number of saves that tried an interval whose changes can all be copied.
    trials: usize,
    choice: Choice,
}

impl Learner {
    /// Begins to learn. `is_overridden` says that the rule is not the program's own.
    pub fn new(every: Every, is_overridden: bool, now: Duration) -> Learner {
        let mut learner = Learner {
            every,
            is_overridden,
            opened: now,
            past: Past::default(),
            steps: Steps::default(),
            fills: Fills::default(),
            costs: Costs::default(),
            running: None,
            last_began: None,
            last_ended: None,
            step_began: None,
            is_disturbed: false,
            due_at: None,
            debt_s: 0.0,
            costs_newest: Vec::new(),
            calibrated: (0, 0),
            trials: 0,
            choice: Choice {
                every: every.to_string(),
                is_overridden,
                seconds: 0.0,
                bound: Bound::Unmeasured,
                saves: 0,
                stall_s: 0.0,
                slowdown_s: None,
                constant_s: 0.0,
                growth: 0.0,
                latency_s: 0.0,
                restart_s: None,
                failures: 0.0,
                exposure_s: 0.0,
                mtbf_s: FailureRate::after(0.0, 0.0).mtbf_s(),
                useful_share: None,
                slowdown_max: None,
                copy_s: None,
                slow_every: None,
                trouble: None,
            },
        };
        learner.choose(now, &Costs::default());
        learner
    }

    /// Returns the rule.
    pub fn every(&self) -> Every {
        self.every
    }

    /// Sets the failures of the past.
    pub fn set_past(&mut self, past: Past, now: Duration) {
        self.past = past;
        self.refresh(now);
    }

    /// Returns the interval in use, and its reasons.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// Notes whether the slow tier is being filled, before [`Learner::call`].
    pub fn fill(&mut self, is_filling: bool) {
        self.fills.note(is_filling);
    }

    /// Notes that the program calls, at the end of a step.
    pub fn call(&mut self, now: Duration) {
        // A program that was told to save, and asks again before it does, has not computed.
        let has_computed = self.due_at.take().is_none();
        if let Some(began) = self.step_began.filter(|_| has_computed) {
            let step_s = seconds(now, began);
            match (&mut self.running, self.is_disturbed) {
                (Some(running), true) => running.steps.push(step_s),
                (_, true) => {}
                (_, false) => {
                    self.steps.add(step_s);
                    self.fills.add(step_s);
                }
            }
        }
        self.fills.step();
        self.step_began = Some(now);
        self.is_disturbed = self.is_saving();
        if !self.is_disturbed {
            self.finish(now);
        }
    }

    /// Returns whether a save is due for a program that calls now.
    pub fn is_due(&mut self, now: Duration) -> bool {
        let is_due = self.decide(now);
        self.due_at = is_due.then_some(now);
        is_due
    }

    fn decide(&mut self, now: Duration) -> bool {
        let (Some(began), Some(ended)) = (self.last_began, self.last_ended) else { return true };
        match self.every {
            Every::Always => true,
            Every::Fixed(every) => now.saturating_sub(began) >= every,
            // A save in progress would hold the next one up.
            _ if self.is_saving() => false,
            Every::Auto => seconds(now, ended) >= self.choice.seconds,
            Every::Continuous { slowdown_max } => {
                let (steps, saves) = self.calibrated;
                let news = self.steps.seen() - steps;
                let is_calibrated = match self.steps.usual_s() {
                    None => news >= STEPS_MIN as u64,
                    Some(_) => self.costs.seen() - saves < CALIBRATE_EVERY || news > 0,
                };
                // Each save is paid off before the next one begins.
                is_calibrated && seconds(now, began) * slowdown_max >= self.debt_s
            }
        }
    }

    /// Notes that a save begins.
    pub fn begin(&mut self, now: Duration) {
        self.finish(now);
        // The walk through the state, before the save itself, holds the program up as well.
        let began = self.due_at.take().filter(|at| self.step_began == Some(*at)).unwrap_or(now);
        self.trials += usize::from(self.choice.bound == Bound::Trial);
        self.running = Some(Running {
            began,
            interval_s: self.last_ended.map(|ended| seconds(began, ended)),
            stall_s: None,
            durable: None,
            steps: Vec::new(),
        });
        self.last_began = Some(now);
        self.last_ended = Some(now);
    }

    /// Notes that the program goes on after the beginning of a save.
    pub fn go_on(&mut self, now: Duration) {
        self.last_ended = Some(now);
        self.fills.step();
        self.step_began = Some(now);
        self.is_disturbed = self.is_saving();
        if let Some(running) = &mut self.running {
            running.stall_s = Some(seconds(now, running.began));
        }
        self.refresh(now);
    }

    /// Notes that the save is durable.
    pub fn durable(&mut self, now: Duration, stored: Stored) {
        if let Some(running) = &mut self.running {
            running.durable = Some((seconds(now, running.began), stored));
        }
        self.refresh(now);
    }

    /// Notes that the save has failed. Its times say nothing about others.
    pub fn fail(&mut self) {
        self.running = None;
    }

    /// Returns whether a save is in progress.
    pub fn is_saving(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.durable.is_none())
    }

    /// Returns the figures of the save, as far as they are known; `None` before it is durable.
    fn sample(&self, now: Duration) -> Option<Sample> {
        let running = self.running.as_ref()?;
        let (latency_s, stored) = running.durable?;
        let excess = |usual: f64| {
            running.steps.iter().map(|step| step.min(usual * DISTURBED_MAX) - usual).sum::<f64>()
        };
        let slowdown_s = match running.steps.is_empty() {
            true => Some(0.0),
            false => self.steps.usual_s().map(excess),
        };
        let stall_s = running.stall_s.unwrap_or_else(|| seconds(now, running.began));
        Some(Sample { interval_s: running.interval_s, stall_s, slowdown_s, latency_s, stored })
    }

    /// Chooses again. A save that is durable counts as far as it is known, before the steps beside it
    /// have ended.
    fn refresh(&mut self, now: Duration) {
        let mut costs = self.costs.clone();
        self.sample(now).into_iter().for_each(|sample| costs.add(sample));
        self.choose(now, &costs);
    }

    /// Adds a save whose steps have ended.
    fn finish(&mut self, now: Duration) {
        let Some(sample) = self.sample(now) else { return };
        self.running = None;
        self.costs.add(sample);
        let cost_s = sample.stall_s + self.costs.slowdown_s().unwrap_or(0.0);
        self.costs_newest.push(cost_s);
        if self.costs_newest.len() > CALIBRATE_EVERY as usize {
            self.costs_newest.remove(0);
        }
        let usual = median(self.costs_newest.iter().copied()).unwrap_or(cost_s);
        self.debt_s = cost_s.min(usual * DEBT_MAX);
        let (steps, saves) = self.calibrated;
        let is_over = self.costs.seen() - saves >= CALIBRATE_EVERY && self.steps.seen() > steps;
        if is_over || saves == 0 {
            self.calibrated = (self.steps.seen(), self.costs.seen());
        }
        self.refresh(now);
    }

    /// Returns the best interval by costs and failures, and what bounds it.
    fn optimum(&self, cost: &Cost, costs: &Costs, latency_s: f64, mtbf_s: f64) -> (f64, Bound) {
        let seconds = cost.optimum(mtbf_s);
        if cost.copies.is_some_and(|copies| seconds == copies.until_s) {
            return (seconds, Bound::Copies);
        }
        // Saves of fewer changes may cost far less. Only trials tell.
        let is_untried = costs.copied() < COPIED_MIN && self.trials < TRIALS_MAX;
        let step_s = self.steps.usual_s().unwrap_or(0.0);
        if let Some(until_s) =
            costs.copied_until_s(step_s).filter(|until_s| is_untried && *until_s < seconds)
        {
            return (until_s, Bound::Trial);
        }
        // Saves that copy all changes are durable sooner than others.
        let is_copied = cost.copies.is_some_and(|copies| seconds < copies.until_s);
        let latency_s = costs.copied_latency_s().filter(|_| is_copied).unwrap_or(latency_s);
        if seconds < latency_s { (latency_s, Bound::Latency) } else { (seconds, Bound::Optimum) }
    }

    fn choose(&mut self, now: Duration, costs: &Costs) {
        let exposure_s = self.past.exposure_s + seconds(now, self.opened);
        let rate = FailureRate::of(&self.past, exposure_s);
        let latency_s = costs.recent(|sample| Some(sample.latency_s)).unwrap_or(0.0);
        let stall_s = costs.recent(|sample| Some(sample.stall_s)).unwrap_or(0.0);
        let slowdown_s = costs.slowdown_s();
        // Only this rule saves so seldom that a fit costs nothing.
        let cost = if self.every == Every::Auto {
            costs.fit(self.steps.usual_s().unwrap_or(0.0))
        } else {
            None
        };
        let given = self.every.fixed().map_or(0.0, |every| every.as_secs_f64());
        let (seconds, bound) = match (self.every, cost) {
            (Every::Always | Every::Fixed(_), _) => (given, Bound::Given),
            _ if costs.seen() == 0 => (0.0, Bound::Unmeasured),
            (Every::Auto, cost) => {
                self.optimum(&cost.unwrap_or_default(), costs, latency_s, rate.mtbf_s())
            }
            (Every::Continuous { slowdown_max }, _) => {
                match (stall_s + slowdown_s.unwrap_or(0.0)) / slowdown_max {
                    paid if paid < latency_s => (latency_s, Bound::Latency),
                    paid => (paid, Bound::Budget),
                }
            }
        };
        let lost_s = latency_s + self.past.restart_s.unwrap_or(0.0);
        // The interval of this rule excludes the save itself.
        let (work_s, cost_s) = match cost {
            Some(cost) => (seconds, cost.at(seconds)),
            None => {
                let cost_s = stall_s + slowdown_s.unwrap_or(0.0);
                ((seconds - cost_s).max(0.0), cost_s)
            }
        };
        let is_measured = costs.seen() > 0 && work_s > 0.0;
        let useful = is_measured.then(|| useful_share(work_s, cost_s, rate.mean(), lost_s));
        let cost = cost.unwrap_or_default();
        let copies = cost.copies.filter(|copies| seconds <= copies.until_s);
        let (constant_s, growth) = match copies {
            Some(copies) => (copies.constant_s, copies.growth),
            None => (cost.constant_s, cost.growth),
        };
        // The advice for the slow tier; copies that cost nothing may be as many as there are saves.
        let copy_s = self.fills.cost_s();
        let host_rate = FailureRate::after(self.past.host_losses, exposure_s).host_mean();
        let advised = copy_s.filter(|_| self.every.learns() && seconds > 0.0);
        let slow_every = advised.map(|copy_s| slow_step(seconds, copy_s, host_rate));
        self.choice = Choice {
            every: self.every.to_string(),
            is_overridden: self.is_overridden,
            seconds,
            bound,
            saves: costs.seen(),
            stall_s,
            slowdown_s,
            constant_s,
            growth,
            latency_s,
            restart_s: self.past.restart_s,
            failures: self.past.failures,
            exposure_s,
            mtbf_s: rate.mtbf_s(),
            useful_share: useful,
            slowdown_max: match self.every {
                Every::Continuous { slowdown_max } => Some(slowdown_max),
                _ => None,
            },
            copy_s,
            slow_every,
            trouble: self.past.trouble.clone(),
        };
    }
}

/// Returns the seconds between two times; 0 if the clock stood still or went back.
fn seconds(now: Duration, since: Duration) -> f64 {
    now.saturating_sub(since).as_secs_f64()
}
