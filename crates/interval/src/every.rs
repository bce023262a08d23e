//! The rule by which saves become due.

use std::fmt;
use std::time::Duration;

/// Default budget of continuous saving: the share of the program's time that saves may take.
pub const SLOWDOWN_MAX: f64 = 0.03;

/// Rule by which saves become due.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum Every {
    /// Each call may save.
    #[default]
    Always,
    /// A save is due this long after the last one began.
    Fixed(Duration),
    /// The interval is learned from costs and failures.
    Auto,
    /// The next save begins once the last one is durable, within a budget.
    Continuous {
        /// Largest share of the program's time that saves may take, above 0 and below 1.
        slowdown_max: f64,
    },
}

impl Every {
    /// Reads a rule: `auto`, `continuous`, or a time that `time` can read. `slowdown_max` is the
    /// budget of `continuous`. Returns `None` for anything else.
    pub fn read(
        text: &str,
        slowdown_max: f64,
        time: impl Fn(&str) -> Option<Duration>,
    ) -> Option<Every> {
        match text {
            "auto" => Some(Every::Auto),
            "continuous" => Some(Every::Continuous { slowdown_max }),
            text => time(text).map(Every::Fixed),
        }
    }

    /// Returns whether a budget for the slowdown is possible.
    pub fn is_budget(slowdown_max: f64) -> bool {
        slowdown_max > 0.0 && slowdown_max < 1.0
    }

    /// Returns whether some calls do not save.
    pub fn has_interval(self) -> bool {
        self != Every::Always
    }

    /// Returns whether the interval is learned.
    pub fn learns(self) -> bool {
        matches!(self, Every::Auto | Every::Continuous { .. })
    }

    /// Returns the interval, if it is a fixed one.
    pub fn fixed(self) -> Option<Duration> {
        match self {
            Every::Fixed(every) => Some(every),
            _ => None,
        }
    }
}

impl fmt::Display for Every {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Every::Always => f.write_str("always"),
            Every::Fixed(every) => write!(f, "{} s", every.as_secs_f64()),
            Every::Auto => f.write_str("auto"),
            Every::Continuous { .. } => f.write_str("continuous"),
        }
    }
}
