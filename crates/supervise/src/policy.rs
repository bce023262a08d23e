//! Decides what follows the end of an attempt; pure.

use outlive_client::past::{Cause, REQUEUE, SAVED};
use outlive_types::Epoch;
use std::time::Duration;

/// Pause before the restart of a command that has made a newer checkpoint: each second would be lost.
const PAUSE_AFTER_PROGRESS: Duration = Duration::from_millis(100);
/// Pause before a restart after one failure without a newer checkpoint. Each further one doubles it.
const PAUSE: Duration = Duration::from_secs(1);
/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Number of failures after which a command is given up that fails now here, now there, in multiples
/// of those from one checkpoint.
const WANDERING: u32 = 3;

/// The end of one attempt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ended {
    /// Its cause.
    pub cause: Cause,
    /// Checkpoint from which the attempt went on, if it has restored the newest good one.
    pub restored: Option<Epoch>,
    /// Whether a restore would find an older one if that were marked as bad.
    pub has_older: bool,
    /// Newest checkpoint of the job when the attempt began.
    pub newest_before: Option<Epoch>,
    /// Newest checkpoint of the job when it had ended.
    pub newest: Option<Epoch>,
    /// Whether its last save failed: then the storage is at fault, and no state.
    pub save_failed: bool,
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
    GiveUp {
        /// Reason for a person.
        reason: String,
        /// Checkpoint whose mark is to be taken back: the one before it fails in the same way.
        forgive: Option<Epoch>,
    },
}

/// Decides about restarts. Failures from the same checkpoint count while no attempt makes a newer
/// one. After `give_up` of them its state may be at fault. Then, once, that checkpoint is marked as
/// bad, and the command gets as many attempts from the one before it.
#[derive(Clone, Debug)]
pub struct Policy {
    give_up: u32,
    /// Failures in a row from `from`.
    failures: u32,
    from: Option<Epoch>,
    /// Failures since the last newer checkpoint, from wherever.
    all: u32,
    /// Checkpoint that was marked as bad, since no attempt got further from it.
    distrusted: Option<Epoch>,
    /// First epochs, each with the number by which epochs from there on exceed the saves that lead to
    /// them. A program that went back to an older checkpoint makes the same steps again.
    repeats: Vec<(Epoch, u64)>,
}

impl Policy {
    /// Returns a policy that gives up after this many failures from one checkpoint.
    pub fn new(give_up: u32) -> Policy {
        let (failures, from, all, distrusted, repeats) = Default::default();
        Policy { give_up, failures, from, all, distrusted, repeats }
    }

    /// Returns the number of saves that lead to a checkpoint, as far as this policy has seen them.
    fn depth(&self, epoch: Epoch) -> u64 {
        let repeated = self.repeats.iter().rev().find(|(first, _)| *first <= epoch);
        epoch.saturating_sub(repeated.map_or(0, |(_, repeats)| *repeats))
    }

    /// Returns whether an attempt got further than all before it, and remembers the checkpoints that
    /// it has made.
    fn got_further(&mut self, ended: &Ended) -> bool {
        let (Some(newest), before) = (ended.newest, ended.newest_before.unwrap_or(0)) else {
            return false;
        };
        if newest <= before {
            return false;
        }
        let reached = self.depth(before);
        // Without a restore it is not known where it began.
        let begun = ended.restored.map_or(reached, |epoch| self.depth(epoch));
        if begun < reached {
            self.repeats.push((before + 1, before - begun));
        }
        self.depth(newest) > reached
    }

    /// Returns the next step, and remembers the attempt.
    pub fn after(&mut self, ended: &Ended) -> Next {
        match ended.cause {
            Cause::Finished => return Next::Finish,
            Cause::Failed(REQUEUE | SAVED) | Cause::Stopped => return Next::Requeue,
            _ => {}
        }
        if self.got_further(ended) {
            // The failure is bad luck.
            let repeats = std::mem::take(&mut self.repeats);
            *self = Policy { repeats, ..Policy::new(self.give_up) };
            return self.restart(None);
        }
        if ended.restored != self.from {
            (self.failures, self.from) = (0, ended.restored);
        }
        self.failures += 1;
        self.all += 1;
        // An attempt may fail before its restore now and then: that must not go on forever.
        let is_over = self.all >= self.give_up.saturating_mul(WANDERING);
        if self.failures < self.give_up && !is_over {
            return self.restart(None);
        }
        match (ended.restored, self.distrusted) {
            (Some(from), None) if ended.has_older && !is_over && !ended.save_failed => {
                self.distrusted = Some(from);
                self.failures = 0;
                self.restart(Some(from))
            }
            (_, distrusted) => {
                Next::GiveUp { reason: self.reason(ended, distrusted), forgive: distrusted }
            }
        }
    }

    fn restart(&self, distrust: Option<Epoch>) -> Next {
        let pause = match self.all {
            0 => PAUSE_AFTER_PROGRESS,
            failures => PAUSE.saturating_mul(1 << (failures - 1).min(16)).min(PAUSE_MAX),
        };
        Next::Restart { pause, distrust }
    }

    fn reason(&self, ended: &Ended, distrusted: Option<Epoch>) -> String {
        let times = |count: u32| match count {
            1 => "once".to_owned(),
            count => format!("{count} times"),
        };
        let from = match ended.restored {
            Some(epoch) => format!("from checkpoint {epoch}"),
            None => "without a restore".to_owned(),
        };
        let before = distrusted.map_or(String::new(), |epoch| {
            format!(
                ", and {} from checkpoint {epoch} before, which is not marked as bad any more",
                times(self.give_up)
            )
        });
        format!(
            "it has failed {} {from}, and made no newer checkpoint{before}; at last it {}",
            times(self.failures),
            match &ended.cause {
                cause @ (Cause::Failed(_) | Cause::Hung) => cause.to_string(),
                cause => format!("was {cause}"),
            }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(restored: Option<Epoch>, before: Option<Epoch>, newest: Option<Epoch>) -> Ended {
        let cause = Cause::Killed(9);
        let (has_older, save_failed) = (true, false);
        Ended { cause, restored, has_older, newest_before: before, newest, save_failed }
    }

    /// In seconds; 0 after progress.
    fn pause(next: Next) -> u64 {
        match next {
            Next::Restart { pause: PAUSE_AFTER_PROGRESS, distrust: None } => 0,
            Next::Restart { pause, distrust: None } => pause.as_secs(),
            other => panic!("{other:?}"),
        }
    }

    fn gives_up(next: Next) -> (String, Option<Epoch>) {
        match next {
            Next::GiveUp { reason, forgive } => (reason, forgive),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_program_that_gets_further_is_started_again_for_ever() {
        let mut policy = Policy::new(3);
        for epoch in 1..1000 {
            let next = policy.after(&failed(Some(epoch), Some(epoch), Some(epoch + 1)));
            assert_eq!(pause(next), 0);
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
        assert_eq!(pause(policy.after(&older)), 8);
        assert_eq!(pause(policy.after(&older)), 16);
        let (reason, forgive) = gives_up(policy.after(&older));
        assert_eq!(
            reason,
            "it has failed 3 times from checkpoint 6, and made no newer checkpoint, and 3 times from \
             checkpoint 7 before, which is not marked as bad any more; at last it was ended by SIGKILL"
        );
        assert_eq!(forgive, Some(7), "checkpoint 6 fails as well, so the state is not at fault");
    }

    #[test]
    fn progress_from_the_older_checkpoint_forgives() {
        let mut policy = Policy::new(1);
        let next = policy.after(&failed(Some(7), Some(7), Some(7)));
        assert!(matches!(next, Next::Restart { distrust: Some(7), .. }), "{next:?}");
        // It saved 8 and 9, and died: another checkpoint may be distrusted from now on.
        assert_eq!(pause(policy.after(&failed(Some(6), Some(7), Some(9)))), 0);
        let next = policy.after(&failed(Some(9), Some(9), Some(9)));
        assert!(matches!(next, Next::Restart { distrust: Some(9), .. }), "{next:?}");
    }

    #[test]
    fn the_same_steps_made_again_are_no_progress() {
        for give_up in 1..4 {
            let mut policy = Policy::new(give_up);
            for _ in 1..give_up {
                pause(policy.after(&failed(Some(4), Some(4), Some(4))));
            }
            let next = policy.after(&failed(Some(4), Some(4), Some(4)));
            assert!(matches!(next, Next::Restart { distrust: Some(4), .. }), "{next:?}");
            // From 3 it makes 5, which is 4 again, and fails there.
            let mut ended = failed(Some(3), Some(4), Some(5));
            let mut attempts = 0;
            while let Next::Restart { distrust: None, .. } = policy.after(&ended) {
                ended = failed(Some(5), Some(5), Some(5));
                attempts += 1;
            }
            assert_eq!(attempts, give_up - u32::from(give_up == 1), "{give_up}");
            // A step further is one.
            let mut policy = Policy::new(1);
            policy.after(&failed(Some(4), Some(4), Some(4)));
            policy.after(&failed(Some(3), Some(4), Some(6)));
            assert_eq!(pause(policy.after(&failed(Some(6), Some(6), Some(7)))), 0);
        }
    }

    #[test]
    fn a_full_disk_is_no_fault_of_a_checkpoint() {
        let mut policy = Policy::new(1);
        let full = Ended { save_failed: true, ..failed(Some(7), Some(7), Some(7)) };
        assert_eq!(gives_up(policy.after(&full)).1, None);
    }

    #[test]
    fn the_only_checkpoint_is_never_distrusted() {
        let mut policy = Policy::new(1);
        let only = Ended { has_older: false, ..failed(Some(7), Some(7), Some(7)) };
        let (reason, forgive) = gives_up(policy.after(&only));
        assert!(reason.starts_with("it has failed once from checkpoint 7"), "{reason}");
        assert_eq!(forgive, None);
    }

    #[test]
    fn failures_before_a_restore_are_no_fault_of_a_checkpoint() {
        let mut policy = Policy::new(3);
        let early = failed(None, Some(7), Some(7));
        let late = failed(Some(7), Some(7), Some(7));
        pause(policy.after(&early));
        pause(policy.after(&early));
        pause(policy.after(&late));
        pause(policy.after(&late));
        let next = policy.after(&late);
        assert!(matches!(next, Next::Restart { distrust: Some(7), .. }), "{next:?}");
        // Both in turn come to an end, too, and nothing is marked.
        let mut policy = Policy::new(2);
        for _ in 0..2 {
            pause(policy.after(&early));
            pause(policy.after(&late));
        }
        pause(policy.after(&early));
        assert_eq!(gives_up(policy.after(&late)).1, None);
    }

    #[test]
    fn a_program_that_never_begins_is_given_up() {
        let mut policy = Policy::new(2);
        let ended = Ended { cause: Cause::Failed(1), ..failed(None, None, None) };
        assert_eq!(pause(policy.after(&ended)), 1);
        let (reason, _) = gives_up(policy.after(&ended));
        assert!(reason.starts_with("it has failed 2 times without a restore"), "{reason}");
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
        assert_eq!(Policy::new(1).after(&ended(Cause::Failed(76))), Next::Requeue);
        assert_eq!(Policy::new(1).after(&ended(Cause::Stopped)), Next::Requeue);
    }
}
