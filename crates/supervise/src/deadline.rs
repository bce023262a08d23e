//! The time by which a run must have ended, by two clocks: one that never jumps, and the time of day.

use std::time::Duration;

/// The times at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    /// Time of the monotonic clock.
    pub monotonic: Duration,
    /// Nanoseconds since 1970.
    pub unix_ns: u64,
}

/// The end of a run, and when to ask for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    monotonic: Duration,
    unix_ns: u64,
    lead: Duration,
}

impl Deadline {
    /// Returns the end at this time of day; `None` if that is over. The command is asked to stop
    /// `grace` before it, but a short run keeps most of its time.
    pub fn at(unix_ns: u64, grace: Duration, now: Now) -> Option<Deadline> {
        let left = Duration::from_nanos(unix_ns.checked_sub(now.unix_ns)?);
        let monotonic = now.monotonic.saturating_add(left);
        Some(Deadline { monotonic, unix_ns, lead: grace.min(left / 4) })
    }

    /// Whether it is time to ask the command to stop: the earlier of both clocks counts, so that no
    /// jump makes it late.
    pub fn is_due(&self, now: Now) -> bool {
        let lead_ns = u64::try_from(self.lead.as_nanos()).unwrap_or(u64::MAX);
        now.monotonic.saturating_add(self.lead) >= self.monotonic
            || now.unix_ns.saturating_add(lead_ns) >= self.unix_ns
    }

    /// Returns the time of the monotonic clock at which the run must have ended.
    pub fn monotonic(&self) -> Duration {
        self.monotonic
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn now(monotonic_s: u64, unix_s: u64) -> Now {
        Now { monotonic: Duration::from_secs(monotonic_s), unix_ns: unix_s * S }
    }

    #[test]
    fn a_command_is_asked_before_the_end_whichever_clock_comes_first() {
        let grace = Duration::from_secs(30);
        let deadline = Deadline::at(2000 * S, grace, now(50, 1000)).unwrap();
        assert_eq!(deadline.monotonic(), Duration::from_secs(1050));
        assert!(!deadline.is_due(now(1019, 1969)));
        assert!(deadline.is_due(now(1020, 1970)));
        // The time of day is set back by an hour, or forward.
        assert!(deadline.is_due(now(1020, 0)));
        assert!(!deadline.is_due(now(60, 1100)));
        assert!(deadline.is_due(now(60, 1970)));
    }

    #[test]
    fn a_short_run_keeps_most_of_its_time() {
        let grace = Duration::from_secs(30);
        let deadline = Deadline::at(1008 * S, grace, now(0, 1000)).unwrap();
        assert!(!deadline.is_due(now(5, 1005)));
        assert!(deadline.is_due(now(6, 1006)));
        assert!(Deadline::at(999 * S, grace, now(0, 1000)).is_none());
        // Far away, and no time at all.
        let far = Deadline::at(u64::MAX, Duration::MAX, now(0, 1000)).unwrap();
        assert!(!far.is_due(now(10, 1010)));
        assert!(Deadline::at(1000 * S, grace, now(0, 1000)).unwrap().is_due(now(0, 1000)));
    }
}
