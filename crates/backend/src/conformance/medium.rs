//! Checks of a log's medium.

use super::{Make, run_all};
use outlive_log::{Lease, LogMedium, NUMBER_MAX, Put};
use outlive_types::JobName;
use std::sync::Arc;
use std::thread;

/// Checks that media keep the guarantees of [`LogMedium`]. `make` makes a new, empty one each time.
///
/// # Panics
/// With the guarantee that the medium broke.
pub fn check_medium(make: impl Fn() -> Arc<dyn LogMedium> + 'static) {
    run_all(
        &[
            ("an empty medium is empty", empty),
            ("what was put is there, as it was put", put),
            ("a number is given once", taken),
            ("of several puts at once one is made", race),
            ("what was deleted is not there, and its number is free", deleted),
            ("jobs are apart", jobs),
            ("a lease ends with its guard, and no other one", leases),
        ],
        &make,
    );
}

fn job(name: &str) -> JobName {
    JobName::new(name).expect("a name that a job may have")
}

fn put_new(medium: &dyn LogMedium, job: &JobName, number: u64, record: &[u8]) -> Put {
    medium.put_new(job, number, record).expect("putting works")
}

fn get(medium: &dyn LogMedium, job: &JobName, number: u64) -> Option<Vec<u8>> {
    medium.get(job, number).expect("an answer")
}

fn list(medium: &dyn LogMedium, job: &JobName) -> Vec<u64> {
    medium.list(job).expect("an answer")
}

/// A medium without leases recognises none. A medium may take a while to end one.
fn leases(make: &Make<dyn LogMedium>) {
    let medium = make();
    let has_ended = |token: &str| medium.has_lease_ended(token).expect("an answer");
    for strange in ["", "x", "1 2", ";;", "1 2 3 local"] {
        assert_eq!(has_ended(strange), None, "{strange:?}");
    }
    let Some(first) = medium.lease().expect("an answer") else { return };
    let second = medium.lease().expect("an answer").expect("a second lease");
    assert_ne!(first.token, second.token);
    assert_eq!((has_ended(&first.token), has_ended(&second.token)), (Some(false), Some(false)));
    let Lease { token, guard } = first;
    drop(guard);
    while has_ended(&token) != Some(true) {
        thread::yield_now();
    }
    assert_eq!(has_ended(&second.token), Some(false));
    assert!(medium.jobs().expect("jobs of an empty medium").is_empty(), "a lease is no job");
}

fn empty(make: &Make<dyn LogMedium>) {
    let (medium, job) = (make(), job("x"));
    assert_eq!(medium.jobs().expect("jobs of an empty medium"), []);
    assert_eq!(list(&*medium, &job), []);
    assert_eq!(get(&*medium, &job, 1), None);
    assert!(!medium.has(&job, 1).expect("an answer"));
    medium.delete(&job, 1).expect("what is not there may be deleted");
    medium.sync(&job).expect("an unknown job may be synced");
    medium.tidy(&job).expect("an unknown job may be tidied");
    assert!(!medium.describe().is_empty());
}

fn put(make: &Make<dyn LogMedium>) {
    let (medium, job) = (make(), job("x"));
    let long: Vec<u8> = (0..1 << 20).map(|at: u32| (at / 7) as u8).collect();
    let records: [(u64, &[u8]); 4] = [(7, b"seven"), (1, b""), (NUMBER_MAX, &long), (3, b"three")];
    for (number, record) in records {
        assert_eq!(put_new(&*medium, &job, number, record), Put::Made);
        assert!(get(&*medium, &job, number).is_some_and(|there| there == record), "{number}");
    }
    medium.sync(&job).expect("syncing works");
    medium.tidy(&job).expect("tidying works");
    assert_eq!(list(&*medium, &job), [1, 3, 7, NUMBER_MAX], "gaps are the protocol's business");
    for (number, record) in records {
        assert!(get(&*medium, &job, number).is_some_and(|there| there == record), "{number}");
        assert!(medium.has(&job, number).expect("an answer"));
    }
    assert_eq!(get(&*medium, &job, 2), None);
}

fn taken(make: &Make<dyn LogMedium>) {
    let (medium, job) = (make(), job("x"));
    assert_eq!(put_new(&*medium, &job, 1, b"mine"), Put::Made);
    for record in [&b"mine"[..], b"other", b""] {
        assert_eq!(put_new(&*medium, &job, 1, record), Put::Taken);
        assert_eq!(get(&*medium, &job, 1).expect("it is there"), b"mine");
    }
}

fn race(make: &Make<dyn LogMedium>) {
    let (medium, job) = (make(), job("race"));
    for number in 1..=25 {
        let made: Vec<usize> = thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|thread| {
                    let (medium, job) = (&medium, &job);
                    scope.spawn(move || put_new(&**medium, job, number, &[thread]) == Put::Made)
                })
                .collect();
            let made = threads.into_iter().map(|thread| thread.join().expect("no put panics"));
            made.enumerate().filter_map(|(thread, made)| made.then_some(thread)).collect()
        });
        assert_eq!(made.len(), 1, "record {number}");
        assert_eq!(get(&*medium, &job, number).expect("it is there"), [made[0] as u8]);
    }
}

fn deleted(make: &Make<dyn LogMedium>) {
    let (medium, job) = (make(), job("x"));
    for number in 1..=3 {
        assert_eq!(put_new(&*medium, &job, number, b"old"), Put::Made);
    }
    medium.delete(&job, 2).expect("deleting works");
    medium.delete(&job, 2).expect("deleting twice works");
    medium.sync(&job).expect("syncing works");
    assert_eq!(get(&*medium, &job, 2), None);
    assert!(!medium.has(&job, 2).expect("an answer"));
    assert_eq!(list(&*medium, &job), [1, 3]);
    assert_eq!(put_new(&*medium, &job, 2, b"new"), Put::Made);
    assert_eq!(get(&*medium, &job, 2).expect("it is there"), b"new");
}

fn jobs(make: &Make<dyn LogMedium>) {
    let medium = make();
    let names = ["zeta", "a/b", "../up", ".hidden", "gray-scott", "über 100 %"];
    let mut jobs: Vec<JobName> = names.iter().map(|name| job(name)).collect();
    for (job, name) in jobs.iter().zip(names) {
        assert_eq!(put_new(&*medium, job, 1, name.as_bytes()), Put::Made);
    }
    for (job, name) in jobs.iter().zip(names) {
        assert_eq!(get(&*medium, job, 1).expect("its record"), name.as_bytes());
    }
    // `jobs` lists the messages of ranks as well, but not a log's own records.
    let of_ranks = [jobs[1].mail_of(3), jobs[0].calls_of(0)];
    let unlisted = [JobName::gc(), jobs[0].removed(), jobs[1].mail_of(3).removed()];
    for name in of_ranks.iter().chain(&unlisted) {
        assert_eq!(put_new(&*medium, name, 1, b"words"), Put::Made);
    }
    jobs.extend(of_ranks);
    let mut there = medium.jobs().expect("jobs");
    there.sort_unstable();
    jobs.sort_unstable();
    assert_eq!(there, jobs);
}
