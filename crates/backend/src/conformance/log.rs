//! Checks of a log.

use super::{Make, run_all};
use outlive_log::{Append, Lock, ManifestLog, Previous};
use outlive_types::{ErrorKind, JobName};
use std::sync::Arc;
use std::thread;

/// Checks that logs keep the guarantees of [`ManifestLog`]. `make` makes a new, empty one each
/// time; `has_locks` says whether the log must have locks, or must report that it has none.
///
/// # Panics
/// With the guarantee that the log broke.
pub fn check_log(has_locks: bool, make: impl Fn() -> Arc<dyn ManifestLog> + 'static) {
    let check_locks: fn(&Make<dyn ManifestLog>) = if has_locks { locks } else { no_locks };
    run_all(
        &[
            ("an empty log is empty", empty),
            ("records are read as they were appended", appended),
            ("a taken number is lost, and its record unchanged", lost),
            ("one's own record is recognised", own_record),
            ("there are no gaps", no_gaps),
            ("of several appenders one wins each number", race),
            ("jobs are apart, and listed in order", jobs),
            ("old records are removed, and their numbers never used again", removal),
            ("a record goes behind the very record that is meant", meant),
            ("a sync changes nothing that is seen", sync),
            ("locks exclude and end with their guard, or there are none", check_locks),
        ],
        &make,
    );
}

fn job(name: &str) -> JobName {
    JobName::new(name).expect("a name that a job may have")
}

/// Returns record `number` as it is in the log now.
fn there(log: &dyn ManifestLog, job: &JobName, number: u64) -> Previous {
    match log.read(job, number) {
        Ok(record) => Previous::of(number, &record),
        Err(_) => Previous { number, ..Previous::NONE },
    }
}

fn append(log: &dyn ManifestLog, job: &JobName, previous: u64, record: &[u8]) -> Append {
    log.append_if(job, there(log, job, previous), record).expect("appending works")
}

fn empty(make: &Make<dyn ManifestLog>) {
    let (log, job) = (make(), job("x"));
    assert_eq!(log.jobs().expect("jobs of an empty log"), []);
    assert_eq!(log.numbers(&job).expect("an unknown job has no records"), []);
    assert_eq!(log.latest(&job).expect("an unknown job has no newest record"), 0);
    let error = log.read(&job, 1).expect_err("there is no record");
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    assert!(!log.describe().is_empty());
}

fn appended(make: &Make<dyn ManifestLog>) {
    let (log, job) = (make(), job("x"));
    let long: Vec<u8> = (0..1 << 20).map(|at: u32| (at / 7) as u8).collect();
    let records: [&[u8]; 4] = [b"first", b"", &long, b"last"];
    for (previous, record) in (0..).zip(records) {
        assert_eq!(append(&*log, &job, previous, record), Append::Done);
        assert_eq!(log.latest(&job).expect("latest"), previous + 1);
    }
    assert_eq!(log.numbers(&job).expect("numbers"), [1, 2, 3, 4]);
    for (number, record) in (1..).zip(records) {
        assert!(log.read(&job, number).expect("a record that is there") == record);
    }
}

fn lost(make: &Make<dyn ManifestLog>) {
    let (log, job) = (make(), job("x"));
    for previous in 0..3 {
        assert_eq!(append(&*log, &job, previous, b"mine"), Append::Done);
    }
    for previous in 0..3 {
        assert_eq!(append(&*log, &job, previous, b"other"), Append::Lost);
        assert_eq!(append(&*log, &job, previous, b""), Append::Lost);
        assert_eq!(log.read(&job, previous + 1).expect("the record is there"), b"mine");
    }
    assert_eq!(log.numbers(&job).expect("numbers"), [1, 2, 3]);
}

fn own_record(make: &Make<dyn ManifestLog>) {
    let (log, job) = (make(), job("x"));
    assert_eq!(append(&*log, &job, 0, b"one"), Append::Done);
    assert_eq!(append(&*log, &job, 0, b"one"), Append::Done, "as after a lost reply");
    assert_eq!(append(&*log, &job, 1, b"two"), Append::Done);
    assert_eq!(append(&*log, &job, 0, b"one"), Append::Done, "even when others followed");
    assert_eq!(log.numbers(&job).expect("numbers"), [1, 2]);
}

fn no_gaps(make: &Make<dyn ManifestLog>) {
    let (log, job) = (make(), job("x"));
    let refused = |previous| {
        let previous = Previous { number: previous, ..Previous::NONE };
        let error = log.append_if(&job, previous, b"far").expect_err("this would leave a gap");
        assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    };
    refused(1);
    assert_eq!(append(&*log, &job, 0, b"one"), Append::Done);
    refused(2);
    let last = Previous { number: u64::MAX, ..Previous::NONE };
    log.append_if(&job, last, b"far").expect_err("numbers end there");
    assert_eq!(log.numbers(&job).expect("numbers"), [1]);
}

fn removal(make: &Make<dyn ManifestLog>) {
    let (log, job) = (make(), job("x"));
    log.remove_before(&job, 5).expect("an unknown job has nothing to remove");
    for previous in 0..6 {
        assert_eq!(append(&*log, &job, previous, b"mine"), Append::Done);
    }
    log.remove_before(&job, 4).expect("removal works");
    assert_eq!(log.numbers(&job).expect("numbers"), [4, 5, 6]);
    log.remove_before(&job, 2).expect("nothing is left to remove");
    for previous in 0..5 {
        assert_eq!(append(&*log, &job, previous, b"other"), Append::Lost, "after {previous}");
    }
    assert_eq!(append(&*log, &job, 6, b"next"), Append::Done);
    log.remove_before(&job, u64::MAX).expect("removal works");
    assert_eq!(log.numbers(&job).expect("numbers"), [7], "the newest stays");
    assert_eq!(log.latest(&job).expect("latest"), 7);
    assert_eq!(append(&*log, &job, 6, b"other"), Append::Lost);
    assert_eq!(append(&*log, &job, 7, b"last"), Append::Done);
}

fn meant(make: &Make<dyn ManifestLog>) {
    let (log, job) = (make(), job("x"));
    assert_eq!(append(&*log, &job, 0, b"one"), Append::Done);
    let other = Previous::of(1, b"another one");
    assert_eq!(log.append_if(&job, other, b"two").expect("an answer"), Append::Lost);
    assert_eq!(log.numbers(&job).expect("numbers"), [1]);
    assert_eq!(append(&*log, &job, 1, b"two"), Append::Done);
    assert_eq!(log.append_if(&job, other, b"two").expect("an answer"), Append::Done, "it is there");
}

fn locks(make: &Make<dyn ManifestLog>) {
    let (log, job) = (make(), job("x"));
    assert_eq!(append(&*log, &job, 0, b"one"), Append::Done);
    let take = || log.lock_collecting().expect("an answer");
    let Lock::Taken(collecting) = take() else { panic!("no other collector is there") };
    assert!(matches!(take(), Lock::Busy), "another must not collect");
    drop(collecting);
    assert!(matches!(take(), Lock::Taken(_)));
    assert!(!log.is_read().expect("an answer"));
    let read = || log.lock_reading().expect("an answer").expect("readers share");
    let (first, second) = (read(), read());
    drop(first);
    assert!(log.is_read().expect("an answer"));
    drop(second);
    assert!(!log.is_read().expect("an answer"));
    assert_eq!(log.jobs().expect("jobs"), [job]);
}

fn no_locks(make: &Make<dyn ManifestLog>) {
    let (log, job) = (make(), job("x"));
    assert_eq!(append(&*log, &job, 0, b"one"), Append::Done);
    assert!(matches!(log.lock_collecting().expect("an answer"), Lock::None));
    assert!(log.lock_reading().expect("an answer").is_none());
    assert!(!log.is_read().expect("an answer"));
}

fn sync(make: &Make<dyn ManifestLog>) {
    let (log, job) = (make(), job("x"));
    log.sync(&job).expect("an unknown job has nothing to sync");
    assert_eq!(log.jobs().expect("jobs"), []);
    assert_eq!(append(&*log, &job, 0, b"one"), Append::Done);
    log.sync(&job).expect("syncing works");
    assert_eq!(log.numbers(&job).expect("numbers"), [1]);
    assert_eq!(append(&*log, &job, 1, b"two"), Append::Done);
}

fn race(make: &Make<dyn ManifestLog>) {
    const RECORDS: u64 = 25;
    let (log, job) = (make(), job("race"));
    let wins: Vec<Vec<u64>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let (log, job) = (&log, &job);
                scope.spawn(move || {
                    let mine = |previous| {
                        let record = format!("{previous} by {thread}");
                        append(&**log, job, previous, record.as_bytes()) == Append::Done
                    };
                    (0..RECORDS).filter(|previous| mine(*previous)).collect()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no appender panics")).collect()
    });
    let mut won: Vec<u64> = wins.iter().flatten().copied().collect();
    won.sort_unstable();
    assert_eq!(won, (0..RECORDS).collect::<Vec<_>>(), "each number is won exactly once");
    for (thread, previous) in
        wins.iter().enumerate().flat_map(|(thread, won)| won.iter().map(move |won| (thread, won)))
    {
        let record = log.read(&job, previous + 1).expect("a record that was won is there");
        assert_eq!(String::from_utf8_lossy(&record), format!("{previous} by {thread}"));
    }
}

fn jobs(make: &Make<dyn ManifestLog>) {
    let log = make();
    let names = ["zeta", "a/b", "../up", ".hidden", "gray-scott", "über 100 %"];
    let mut jobs: Vec<JobName> = names.iter().map(|name| job(name)).collect();
    for (job, name) in jobs.iter().zip(names) {
        assert_eq!(append(&*log, job, 0, name.as_bytes()), Append::Done);
    }
    for (job, name) in jobs.iter().zip(names) {
        assert_eq!(log.read(job, 1).expect("its record"), name.as_bytes());
    }
    jobs.sort_unstable();
    assert_eq!(log.jobs().expect("jobs"), jobs);
}
