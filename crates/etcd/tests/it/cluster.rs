//! A cluster of three continues without one of its members, and loses nothing without two.

use crate::support;

use outlive_backend::{BackendLocation, RetryMedium, RetryPolicy};
use outlive_log::{Append, LogRecords, ManifestLog, Previous, RecordLog};
use outlive_types::{ErrorKind, Result};
use std::sync::Arc;
use std::thread;
use support::{Cluster, job, until, url_with};

/// Appends `record` as a program does: repeats failed calls that may be repeated.
fn append(log: &dyn ManifestLog, previous: Previous, record: &[u8]) -> Previous {
    until("the append is done", || match log.append_if(&job(), previous, record) {
        Ok(append) => {
            assert_eq!(append, Append::Done, "no other program appends");
            true
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
            false
        }
    });
    Previous::of(previous.number + 1, record)
}

/// Repeats a read until it succeeds.
fn again<T>(mut read: impl FnMut() -> Result<T>) -> T {
    let mut got = None;
    until("the read is done", || match read() {
        Ok(read) => {
            got = Some(read);
            true
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
            false
        }
    });
    got.unwrap()
}

#[test]
fn a_majority_goes_on_and_less_loses_nothing() {
    let mut cluster = Cluster::of(3);
    let pool_url = url_with(&cluster.addresses(), "ckpt", &[]);
    again(|| pool_url.check());
    let policy = RetryPolicy { attempts_max: 2, ..RetryPolicy::default() };
    let log = RecordLog::over(RetryMedium::new(Arc::new(pool_url.medium().unwrap()), policy));
    let (mut previous, mut records) = (Previous::NONE, vec![]);
    let mut add = |log: &dyn ManifestLog, count: usize| {
        for _ in 0..count {
            let record = format!("record {}", records.len() + 1).into_bytes();
            previous = append(log, previous, &record);
            records.push(record);
        }
        (previous, records.clone())
    };
    add(&log, 3);
    for number in 0..3 {
        // One of the three leads, and one was asked last.
        cluster.stop(number);
        add(&log, 3);
        assert_eq!(again(|| log.latest(&job())), 6 + 3 * number as u64);
        again(|| pool_url.check());
        cluster.start(&[number]);
    }
    let (previous, records) = add(&log, 1);
    cluster.stop(2);
    cluster.stop(0);
    // All at once: each takes as long as etcd may take to find a majority.
    let (medium, log) = (pool_url.medium().unwrap(), &log);
    let calls: [&(dyn Fn() -> Result<()> + Sync); 5] = [
        &|| pool_url.check(),
        &|| log.latest(&job()).map(drop),
        &|| log.jobs().map(drop),
        &|| log.append_if(&job(), previous, b"too few").map(drop),
        &|| medium.put_new(&job(), previous.number + 1, b"too few").map(drop),
    ];
    let outcomes = thread::scope(|scope| {
        let calls: Vec<_> = calls.iter().map(|call| scope.spawn(call)).collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect::<Vec<_>>()
    });
    for error in outcomes.into_iter().map(Result::unwrap_err) {
        assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
        assert!(error.message().contains("more than half"), "{error}");
        assert!(error.message().contains("etcd://"), "{error}");
    }
    cluster.start(&[0, 2]);
    let numbers = again(|| log.numbers(&job()));
    // The member that was up may still make the put that had no majority.
    assert!((records.len()..=records.len() + 1).contains(&numbers.len()), "{numbers:?}");
    for (number, record) in (1..).zip(&records) {
        assert!(again(|| log.read(&job(), number)) == *record, "{number}");
    }
    append(log, previous, b"too few");
    assert_eq!(again(|| log.latest(&job())), records.len() as u64 + 1);
}
