//! The conformance suite of media and logs on a real server: directly, and over a bad network.

use crate::support;

use outlive_backend::conformance::{check_files, check_log, check_medium};
use outlive_backend::{BackendLocation, RetryMedium, RetryPolicy, SmallFiles};
use outlive_etcd::EtcdMedium;
use outlive_log::{LogLocks, LogRecords, Put, RecordLog};
use outlive_testkit::{Fault, Proxy};
use std::sync::Arc;
use std::thread;
use support::{Cluster, encode, job, post, until, url_at, url_with};

#[test]
fn a_cluster_is_a_medium() {
    let cluster = Cluster::of(1);
    check_medium(move || Arc::new(cluster.pool_url().medium().unwrap()));
}

#[test]
fn a_cluster_keeps_a_log() {
    let cluster = Cluster::of(1);
    check_log(false, move || Arc::new(RecordLog::over(cluster.pool_url().medium().unwrap())));
}

#[test]
fn a_cluster_behind_a_bad_network_keeps_a_log() {
    let cluster = Cluster::of(1);
    let proxy = Proxy::before(cluster.address());
    let mut count = 0;
    // Spoils every seventh request, each time in a different way.
    proxy.spoil(move |_, _| {
        count += 1;
        let fault =
            [Fault::LoseReply, Fault::LoseRequest, Fault::Refuse(503), Fault::CutReply(150)];
        if count % 7 == 0 { fault[count / 7 % fault.len()] } else { Fault::None }
    });
    check_log(false, move || {
        let _ = &cluster;
        let medium: Arc<EtcdMedium> = Arc::new(url_at(&[proxy.address()]).medium().unwrap());
        Arc::new(RecordLog::over(RetryMedium::new(medium, RetryPolicy::default())))
    });
}

/// More records than one request lists, and foreign keys among them.
#[test]
fn a_long_log_is_listed_whole_and_by_itself() {
    const RECORDS: u64 = 1001;
    let cluster = Cluster::of(1);
    let medium = url_with(&cluster.addresses(), "p", &[]).medium().unwrap();
    thread::scope(|scope| {
        for thread in 0..8 {
            let medium = &medium;
            scope.spawn(move || {
                for number in (1..=RECORDS).filter(|number| number % 8 == thread) {
                    assert_eq!(medium.put_new(&job(), number, b"x").unwrap(), Put::Made);
                }
            });
        }
    });
    for key in
        ["p", "p/log", "p/log/.pool.toml", "p/log/x", "p/log/x/1.record", "p/log/x/y", "p0/log/x/y"]
            .into_iter()
            .chain([
                "p/log/x-y/0000000000000001.record",
                "p/log/x.z/y",
                "p-/log/z/y",
                "p/log0",
                "p/lo",
            ])
    {
        post(cluster.address(), "kv/put", &format!(r#"{{"key":"{}"}}"#, encode(key)));
    }
    assert_eq!(medium.list(&job()).unwrap(), (1..=RECORDS).collect::<Vec<_>>());
    let jobs: Vec<String> = medium.jobs().unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(jobs, ["x-y", "x.z", "x"]);
}

/// A listing shows one moment. If the cluster compacts that revision, the listing begins again.
#[test]
fn a_listing_begins_anew_if_its_moment_is_cleared_away() {
    let cluster = Cluster::of(1);
    let proxy = Proxy::before(cluster.address());
    let prefix = url_with(&[proxy.address()], "p", &[]);
    let (medium, address) = (prefix.medium().unwrap(), cluster.address());
    for number in 1..=502 {
        medium.put_new(&job(), number, b"x").unwrap();
    }
    let mut lists = 0;
    proxy.spoil(move |_, target| {
        lists += u32::from(target == "/v3/kv/range");
        if lists == 2 {
            let body = format!(r#"{{"key":"{}"}}"#, encode("p/log/x/0000000000000001.record"));
            let answer: serde_json::Value =
                serde_json::from_str(&post(address, "kv/deleterange", &body)).unwrap();
            let revision = answer["header"]["revision"].as_str().unwrap();
            post(
                address,
                "kv/compaction",
                &format!(r#"{{"revision":"{revision}","physical":true}}"#),
            );
        }
        Fault::None
    });
    assert_eq!(medium.list(&job()).unwrap(), (2..=502).collect::<Vec<_>>());
}

#[test]
fn a_cluster_keeps_small_files() {
    let cluster = Cluster::of(1);
    let pool_url = cluster.pool_url();
    pool_url.check().unwrap();
    pool_url.files().unwrap().write("log/.changing", b"me").unwrap();
    assert!(pool_url.medium().unwrap().jobs().unwrap().is_empty(), "a file is no job");
    check_files(move || Arc::new(cluster.pool_url().files().unwrap()));
}

/// A lease in the cluster ends some seconds after its last renewal. A lease that has ended is
/// granted again: the program was only paused, and a gc may not have looked meanwhile.
#[test]
fn a_lease_is_renewed_until_its_holder_ends() {
    let cluster = Cluster::of(1);
    let variables = [("OUTLIVE_LEASE_S", "10")];
    let medium = url_with(&cluster.addresses(), "leases", &variables).medium().unwrap();
    let lease = medium.lease().unwrap().unwrap();
    let token = lease.token.clone();
    let id = token.split_once(' ').unwrap().1;
    let asked = format!(r#"{{"ID":"{id}"}}"#);
    let left = || -> i64 {
        let answer = post(cluster.address(), "lease/timetolive", &asked);
        // The gateway omits zeros.
        let Some((_, rest)) = answer.split_once(r#""TTL":""#) else { return 0 };
        rest.split_once('"').unwrap().0.parse().unwrap()
    };
    let mut least = left();
    until("it is renewed", || {
        let (now, before) = (left(), least);
        least = least.min(now);
        now > before
    });
    post(cluster.address(), "lease/revoke", &asked);
    until("it begins again", || medium.has_lease_ended(&token).unwrap() == Some(false));
    drop(lease);
    until("it ends", || medium.has_lease_ended(&token).unwrap() == Some(true));
    // Another cluster does not know the lease.
    let other = Cluster::of(1);
    assert_eq!(other.pool_url().medium().unwrap().has_lease_ended(&token).unwrap(), None);
}
