//! A simulated program that computes, saves and fails, with a clock of its own.

use crate::random::Random;
use outlive_interval::{Learner, Stored};
use std::time::Duration;

/// How a program and its saves behave. Times in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    pub step_s: f64,
    /// Share by which steps vary.
    pub jitter: f64,
    /// Stall of a save, and its growth with the work since the one before.
    pub stall_s: f64,
    pub stall_growth: f64,
    /// Time from the stall to the commit, and its growth.
    pub drain_s: f64,
    pub drain_growth: f64,
    /// Share of the program's speed that a save in progress takes.
    pub slowdown: f64,
    /// Memory for copies, if it is too small for some saves.
    pub copies: Option<Copies>,
}

/// Saves of few changes copy them, and stall the program for less.
#[derive(Clone, Copy, Debug)]
pub struct Copies {
    /// Seconds of work whose changes would fit into the memory, if they came evenly.
    pub until_s: f64,
    /// Seconds of work whose changes do fit.
    pub fits_until_s: f64,
    /// Stall of such a save, for each second of work.
    pub stall_growth: f64,
    /// Stall of the first of them, which also pays for the memory.
    pub first_stall_s: f64,
}

const COPIED_BYTES_MAX: u64 = 1 << 26;

impl Program {
    /// Returns the stall of a save after this work, and what the save tells about itself.
    fn stall(&self, since_s: f64, copied: usize) -> (f64, Stored) {
        let Some(copies) = self.copies else {
            return (self.stall_s + self.stall_growth * since_s, Stored::default());
        };
        let is_copied = since_s <= copies.fits_until_s;
        let stored = Stored {
            is_copied,
            held_bytes: (COPIED_BYTES_MAX as f64 * since_s / copies.until_s) as u64,
            copied_bytes_max: COPIED_BYTES_MAX,
            ..Stored::default()
        };
        match is_copied {
            true if copied == 0 => (copies.first_stall_s, stored),
            true => (copies.stall_growth * since_s, stored),
            false => (self.stall_s + self.stall_growth * since_s, stored),
        }
    }
}

/// The rule for a save: by a learner, or after a fixed time of work.
pub enum Rule {
    Learned(Box<Learner>),
    Fixed(f64),
}

/// Result of one attempt.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// Work that is durable.
    pub kept_s: f64,
    /// All work.
    pub work_s: f64,
    pub saves: u32,
    /// Saves that copied all changes.
    pub copied: usize,
}

impl Program {
    /// Runs until the time is over. Calls `begun` with the time and cost of each save.
    pub fn run(&self, random: &Random, rule: &mut Rule, until_s: f64) -> Done {
        let at = Duration::from_secs_f64;
        let (mut now, mut work) = (0.0, 0.0);
        let mut done = Done::default();
        // Work in the save in progress, and when that is durable.
        let mut drain: Option<(f64, f64)> = None;
        let mut saved_at_work = 0.0;
        let mut stored = Stored::default();
        while now < until_s {
            let is_due = match rule {
                Rule::Learned(learner) => {
                    learner.call(at(now));
                    learner.is_due(at(now))
                }
                Rule::Fixed(t) => {
                    drain.is_none() && (done.saves == 0 || work - saved_at_work >= *t)
                }
            };
            if is_due {
                assert!(drain.is_none(), "a save began while another one was in progress");
                let since = work - saved_at_work;
                let begun = now;
                let (stall_s, told) = self.stall(since, done.copied);
                done.copied += usize::from(told.is_copied && since > 0.0);
                stored = told;
                now += stall_s;
                if let Rule::Learned(learner) = rule {
                    learner.begin(at(begun));
                    learner.go_on(at(now));
                }
                drain = Some((work, now + self.drain_s + self.drain_growth * since));
                (saved_at_work, done.saves) = (work, done.saves + 1);
            }
            let step = self.step_s * (1.0 + self.jitter * (2.0 * random.share() - 1.0));
            let mut left = step;
            if let Some((saved, durable)) = drain {
                let disturbed = (durable - now).max(0.0) * (1.0 - self.slowdown);
                if disturbed <= left {
                    left -= disturbed;
                    now = durable.max(now);
                    drain = None;
                    if now < until_s {
                        done.kept_s = saved;
                        if let Rule::Learned(learner) = rule {
                            learner.durable(at(durable), stored);
                        }
                    }
                } else {
                    now += left / (1.0 - self.slowdown);
                    left = 0.0;
                }
            }
            now += left;
            work += step;
        }
        Done { work_s: work, ..done }
    }
}
