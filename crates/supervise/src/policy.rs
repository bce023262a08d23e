//! Decides what follows the end of an attempt; pure.

use crate::cause::{Cause, REQUEUE};
use outlive_types::Epoch;
use std::time::Duration;

/// First pause before a restart. Each further failure without a newer checkpoint doubles it.
const PAUSE: Duration = Duration::from_secs(1);
/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The end of one attempt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ended {
    /// Its cause.
    pub cause: Cause,
    /// Checkpoint from which the attempt went on, if it has restored one.
    pub restored: Option<Epoch>,
    /// Newest checkpoint of the job when the attempt began.
    pub newest_before: Option<Epoch>,
    /// Newest checkpoint of the job when it had ended.
    pub newest: Option<Epoch>,
}

/// The next step after an attempt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Next {
    /// The command has finished.
    Finish,
    /// The command asks to be started again later.
    Requeue,
    /// Start the command again.
    Restart {
        /// Pause before that.
        pause: Duration,
        /// Checkpoint to mark as bad first, so that the command restores the one before it.
        distrust: Option<Epoch>,
    },
    /// No restart helps.
    GiveUp(String),
}

/// Decides about restarts. Failures count while no attempt makes a newer checkpoint. After `give_up`
/// of them the state itself may be at fault. Then, once, the newest checkpoint is marked as bad, and
/// the command gets as many attempts from the one before it.
#[derive(Clone, Debug)]
pub struct Policy {
    give_up: u32,
    /// Failures since the last newer checkpoint.
    failures: u32,
    /// Checkpoint that was marked as bad, since no attempt got further from it.
    distrusted: Option<Epoch>,
}

impl Policy {
    /// Returns a policy that gives up after this many failures without a newer checkpoint.
    pub fn new(give_up: u32) -> Policy {
        Policy { give_up, failures: 0, distrusted: None }
    }

    /// Returns the next step, and remembers the attempt.
    pub fn after(&mut self, ended: &Ended) -> Next {
        match ended.cause {
            Cause::Finished => return Next::Finish,
            Cause::Failed(REQUEUE) | Cause::Stopped => return Next::Requeue,
            _ => {}
        }
        if ended.newest > ended.newest_before {
            // It got further: the failure is bad luck.
            (self.failures, self.distrusted) = (0, None);
            return self.restart(None);
        }
        self.failures += 1;
        if self.failures < self.give_up {
            return self.restart(None);
        }
        let from = ended.restored;
        match (from, self.distrusted) {
            (Some(from), None) => {
                self.distrusted = Some(from);
                self.failures = 0;
                self.restart(Some(from))
            }
            (from, distrusted) => Next::GiveUp(self.reason(ended, from, distrusted)),
        }
    }

    fn restart(&self, distrust: Option<Epoch>) -> Next {
        let doubled = PAUSE.saturating_mul(1 << self.failures.saturating_sub(1).min(16));
        Next::Restart { pause: doubled.min(PAUSE_MAX), distrust }
    }

    fn reason(&self, ended: &Ended, from: Option<Epoch>, distrusted: Option<Epoch>) -> String {
        let times = match self.failures {
            1 => "once".to_owned(),
            times => format!("{times} times"),
        };
        let from = match from {
            Some(epoch) => format!("from checkpoint {epoch}"),
            None => "from its beginning".to_owned(),
        };
        let before = distrusted.map_or(String::new(), |epoch| {
            format!(
                ", and {} times from checkpoint {epoch} before, which is marked as bad",
                self.give_up
            )
        });
        format!(
            "it has failed {times} {from} without a newer checkpoint{before}; at last it {}",
            match &ended.cause {
                cause @ (Cause::Failed(_) | Cause::Hung) => cause.to_string(),
                Cause::OutOfMemory => "was out of memory".to_owned(),
                cause => format!("was {cause}"),
            }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(restored: Option<Epoch>, before: Option<Epoch>, newest: Option<Epoch>) -> Ended {
        Ended { cause: Cause::Killed(9), restored, newest_before: before, newest }
    }

    fn pause(next: Next) -> u64 {
        match next {
            Next::Restart { pause, distrust: None } => pause.as_secs(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_program_that_gets_further_is_started_again_for_ever() {
        let mut policy = Policy::new(3);
        for epoch in 1..1000 {
            let next = policy.after(&failed(Some(epoch), Some(epoch), Some(epoch + 1)));
            assert_eq!(pause(next), 1);
        }
    }

    #[test]
    fn failures_without_a_newer_checkpoint_lead_to_the_one_before_and_then_to_the_end() {
        let mut policy = Policy::new(3);
        let stuck = failed(Some(7), Some(7), Some(7));
        assert_eq!(pause(policy.after(&stuck)), 1);
        assert_eq!(pause(policy.after(&stuck)), 2);
        let next = policy.after(&stuck);
        assert!(matches!(next, Next::Restart { distrust: Some(7), .. }), "{next:?}");
        // From checkpoint 6 now: 7 is still the newest.
        let older = failed(Some(6), Some(7), Some(7));
        assert_eq!(pause(policy.after(&older)), 1);
        assert_eq!(pause(policy.after(&older)), 2);
        let Next::GiveUp(reason) = policy.after(&older) else { panic!("it goes on") };
        assert_eq!(
            reason,
            "it has failed 3 times from checkpoint 6 without a newer checkpoint, and 3 times from \
             checkpoint 7 before, which is marked as bad; at last it was ended by SIGKILL"
        );
    }

    #[test]
    fn progress_from_the_older_checkpoint_forgives() {
        let mut policy = Policy::new(1);
        let next = policy.after(&failed(Some(7), Some(7), Some(7)));
        assert!(matches!(next, Next::Restart { distrust: Some(7), .. }), "{next:?}");
        // It saved 8, and died: another checkpoint may be distrusted from now on.
        assert_eq!(pause(policy.after(&failed(Some(6), Some(7), Some(8)))), 1);
        let next = policy.after(&failed(Some(8), Some(8), Some(8)));
        assert!(matches!(next, Next::Restart { distrust: Some(8), .. }), "{next:?}");
    }

    #[test]
    fn a_program_that_never_begins_is_given_up() {
        let mut policy = Policy::new(2);
        let ended = Ended { cause: Cause::Failed(1), ..failed(None, None, None) };
        assert_eq!(pause(policy.after(&ended)), 1);
        let Next::GiveUp(reason) = policy.after(&ended) else { panic!("it goes on") };
        assert!(reason.starts_with("it has failed 2 times from its beginning"), "{reason}");
        assert!(reason.ends_with("at last it failed with exit code 1"), "{reason}");
    }

    #[test]
    fn pauses_grow_up_to_a_minute() {
        let mut policy = Policy::new(u32::MAX);
        let ended = failed(None, None, None);
        let pauses: Vec<u64> = (0..40).map(|_| pause(policy.after(&ended))).collect();
        assert_eq!(pauses[..8], [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(pauses[39], 60);
    }

    #[test]
    fn ends_that_are_no_failures_end_the_run() {
        let ended = |cause| Ended { cause, ..failed(None, None, None) };
        assert_eq!(Policy::new(1).after(&ended(Cause::Finished)), Next::Finish);
        assert_eq!(Policy::new(1).after(&ended(Cause::Failed(75))), Next::Requeue);
        assert_eq!(Policy::new(1).after(&ended(Cause::Stopped)), Next::Requeue);
    }
}
