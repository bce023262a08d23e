//! Failures and the time in which they came, of the attempts of a job.

use super::cause::Cause;
use super::history::{Entry, History};
use outlive_interval::Past;

/// Part for which attempts on other hosts count. They tell of the program, but not of this machine:
/// the discount of a power prior (Ibrahim and Chen, 2000).
const ELSEWHERE: f64 = 0.25;
/// Number of the newest attempts that tell whether a program fails suddenly much more often.
const RECENT: usize = 5;
/// Number of the newest restarts that tell how long one takes.
const RESTARTS: usize = 9;

/// Returns the failures of a job, as this host counts them. With `is_supervised` the last attempt is
/// the present one, if it has not ended.
///
/// Of failures in a row without a commit only the first counts: a program that cannot start fails
/// again and again, and no interval helps.
pub fn past_of(history: &History, host: &str, is_supervised: bool) -> Past {
    let mut past = Past::default();
    let mut is_loop = false;
    for (at, entry) in history.attempts.iter().enumerate() {
        let is_present = entry.cause.is_none() && at + 1 == history.attempts.len();
        if is_present && is_supervised {
            continue;
        }
        let cause = entry.cause.clone().unwrap_or_else(|| entry.lost_cause());
        let has_failed = cause.is_failure();
        let is_idle = has_failed && entry.committed_s.is_none();
        let weight = if entry.host == host { 1.0 } else { ELSEWHERE };
        if cause == Cause::SupervisorLost {
            // A supervisor ends by nothing but a kill, or with its host.
            past.host_losses += weight;
        }
        past.add(ran_s(entry), has_failed && !(is_idle && is_loop), weight);
        is_loop = is_idle;
    }
    let restarts = history.attempts.iter().rev().filter_map(|entry| entry.restored_s);
    let mut restarts: Vec<f64> =
        restarts.filter(|time| time.is_finite() && *time >= 0.0).take(RESTARTS).collect();
    restarts.sort_by(f64::total_cmp);
    past.recent_s = recent_s(history);
    past.restart_s = restarts.get(restarts.len() / 2).copied();
    past
}

/// Returns the time that an attempt ran. A program that is gone without a supervisor ran on after its
/// last checkpoint, by half an interval on average.
fn ran_s(entry: &Entry) -> f64 {
    let more_s = match (&entry.cause, &entry.interval) {
        (Some(Cause::Gone), Some(choice)) if choice.seconds.is_finite() => choice.seconds / 2.0,
        _ => 0.0,
    };
    entry.ran_s.or(entry.committed_s).unwrap_or(0.0) + more_s.max(0.0)
}

/// Returns the mean time of the newest attempts that have ended, if each made a checkpoint and failed.
fn recent_s(history: &History) -> Option<f64> {
    let ended = history.attempts.iter().rev().filter(|entry| entry.cause.is_some());
    let newest: Vec<&Entry> = ended.take(RECENT).collect();
    let counts = |entry: &&Entry| {
        entry.committed_s.is_some() && entry.cause.as_ref().is_some_and(Cause::is_failure)
    };
    let is_whole = newest.len() == RECENT && newest.iter().all(counts);
    is_whole.then(|| newest.iter().map(|entry| ran_s(entry)).sum::<f64>() / RECENT as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(cause: Option<Cause>, ran_s: f64, committed_s: Option<f64>) -> Entry {
        let begun = Entry::begin("here".into(), 1, 1, 0);
        Entry { ran_s: Some(ran_s), committed_s, cause, ..begun }
    }

    fn counted(attempts: &[Entry], is_supervised: bool) -> (f64, f64) {
        let past = past_of(&History { attempts: attempts.to_vec() }, "here", is_supervised);
        (past.failures, past.exposure_s)
    }

    #[test]
    fn preemptions_and_ends_are_no_failures() {
        let after = Some(5.0);
        let all = [
            (Cause::Finished, 0.0),
            (Cause::Stopped, 0.0),
            (Cause::Failed(75), 0.0),
            (Cause::Failed(76), 0.0),
            (Cause::Failed(130), 0.0),
            (Cause::Killed(2), 0.0),
            (Cause::Failed(1), 1.0),
            (Cause::Killed(9), 1.0),
            (Cause::OutOfMemory, 1.0),
            (Cause::Hung, 1.0),
            (Cause::SupervisorLost, 1.0),
            (Cause::Gone, 1.0),
        ];
        for (cause, failures) in all {
            let found = counted(&[entry(Some(cause.clone()), 10.0, after)], true);
            assert_eq!(found, (failures, 10.0), "{cause}");
        }
    }

    #[test]
    fn a_crash_loop_is_one_failure() {
        let idle = || entry(Some(Cause::Failed(1)), 0.5, None);
        let saved = || entry(Some(Cause::Killed(9)), 100.0, Some(90.0));
        let all = [saved(), idle(), idle(), idle(), saved(), saved(), idle()];
        assert_eq!(counted(&all, false).0, 5.0);
    }

    #[test]
    fn the_present_attempt_has_not_failed_and_one_without_its_supervisor_has() {
        let running = Entry { ran_s: None, ..entry(None, 0.0, Some(7.0)) };
        assert_eq!(counted(std::slice::from_ref(&running), true), (0.0, 0.0));
        assert_eq!(counted(std::slice::from_ref(&running), false), (1.0, 7.0));
        let lost = entry(Some(Cause::SupervisorLost), 9.0, Some(5.0));
        let killed = entry(Some(Cause::Killed(9)), 9.0, Some(5.0));
        let history = History { attempts: vec![lost, killed, running] };
        assert_eq!(past_of(&history, "here", true).host_losses, 1.0);
        assert_eq!(past_of(&history, "here", false).host_losses, 2.0);
    }

    #[test]
    fn only_five_failures_in_a_row_with_checkpoints_are_sudden() {
        let killed = |ran_s| entry(Some(Cause::Killed(9)), ran_s, Some(0.5));
        let recent = |attempts: &[Entry]| {
            past_of(&History { attempts: attempts.to_vec() }, "here", true).recent_s
        };
        let mut attempts: Vec<Entry> = [90.0, 1.0, 2.0, 3.0, 4.0, 5.0].map(killed).to_vec();
        assert_eq!(recent(&attempts[..5]), Some(20.0));
        assert_eq!(recent(&attempts), Some(3.0));
        let running = Entry { ran_s: None, cause: None, ..killed(0.0) };
        attempts.push(running);
        assert_eq!(recent(&attempts), Some(3.0));
        assert_eq!(recent(&attempts[..4]), None);
        let idle = Entry { committed_s: None, ..killed(1.0) };
        let finished = Entry { cause: Some(Cause::Finished), ..killed(1.0) };
        for other in [idle, finished] {
            attempts[3] = other;
            assert_eq!(recent(&attempts), None);
        }
    }

    #[test]
    fn another_host_counts_for_a_part() {
        let there = Entry { host: "there".into(), ..entry(Some(Cause::Hung), 100.0, Some(1.0)) };
        assert_eq!(counted(&[there], true), (0.25, 25.0));
    }

    #[test]
    fn times_that_are_none_do_not_count_and_the_middle_restart_does() {
        let restarted = |time| Entry {
            restored_s: Some(time),
            ..entry(Some(Cause::Killed(9)), f64::NAN, Some(1.0))
        };
        let attempts = [3.0, f64::INFINITY, 1.0, -5.0, 900.0].map(restarted).to_vec();
        let past = past_of(&History { attempts }, "here", true);
        assert_eq!((past.failures, past.exposure_s, past.restart_s), (0.0, 0.0, Some(3.0)));
    }
}
