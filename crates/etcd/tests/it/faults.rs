//! Lost replies, refused requests, and wrong endpoints.

use crate::support;
use outlive_backend::{BackendLocation, SmallFiles};

use outlive_etcd::EtcdUrl;
use outlive_log::{Append, LogRecords, ManifestLog, Previous, Put, RecordLog};
use outlive_testkit::{Fault, Proxy};
use outlive_types::{ErrorKind, Result};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};
use support::{Cluster, job, url_at};

fn is_put(_: &str, target: &str) -> bool {
    target == "/v3/kv/txn"
}

/// A put whose reply is lost is an error, and is not repeated.
#[test]
fn a_put_whose_reply_is_lost_is_not_known() {
    let cluster = Cluster::of(1);
    let proxy = Proxy::before(cluster.address());
    let medium = url_at(&[proxy.address()]).medium().unwrap();
    for (number, fault, is_there) in [
        (1, Fault::LoseReply, true),
        (2, Fault::CutReply(20), true),
        (3, Fault::CutReply(150), true),
        (4, Fault::LoseRequest, false),
        (5, Fault::Refuse(502), false),
    ] {
        let spoiled = proxy.spoil_once(fault, is_put);
        let error = medium.put_new(&job(), number, b"mine").unwrap_err();
        assert!(*spoiled.lock());
        assert_eq!(error.kind(), ErrorKind::Retry, "{fault:?}: {error}");
        assert!(error.message().contains("writing 4 bytes to etcd://"), "{error}");
        assert_eq!(medium.has(&job(), number).unwrap(), is_there, "{fault:?}");
        let again = medium.put_new(&job(), number, b"mine").unwrap();
        assert_eq!(again, if is_there { Put::Taken } else { Put::Made }, "{fault:?}");
    }
}

/// An append whose reply is lost is done, once.
#[test]
fn no_reply_that_is_lost_forks_a_log() {
    let cluster = Cluster::of(1);
    let proxy = Proxy::before(cluster.address());
    let log = RecordLog::over(url_at(&[proxy.address()]).medium().unwrap());
    let mut previous = Previous::NONE;
    for fault in [Fault::LoseReply, Fault::CutReply(20), Fault::None] {
        let record = format!("{fault:?}").into_bytes();
        proxy.spoil_once(fault, is_put);
        assert_eq!(log.append_if(&job(), previous, &record).unwrap(), Append::Done, "{fault:?}");
        previous = Previous::of(previous.number + 1, &record);
        assert_eq!(log.append_if(&job(), Previous::NONE, b"other").unwrap(), Append::Lost);
    }
    proxy.spoil_once(Fault::LoseRequest, is_put);
    log.append_if(&job(), previous, b"last").unwrap_err();
    assert_eq!(log.append_if(&job(), previous, b"last").unwrap(), Append::Done);
    assert_eq!(log.numbers(&job()).unwrap(), [1, 2, 3, 4]);
}

#[test]
fn a_read_whose_reply_is_lost_is_repeated() {
    let cluster = Cluster::of(1);
    let proxy = Proxy::before(cluster.address());
    let medium = url_at(&[proxy.address()]).medium().unwrap();
    medium.put_new(&job(), 1, &[7; 100_000]).unwrap();
    for fault in [
        Fault::LoseReply,
        Fault::LoseRequest,
        Fault::CutReply(20),
        Fault::CutReply(50_000),
        Fault::Refuse(503),
    ] {
        let spoiled = proxy.spoil_once(fault, |_, target| target == "/v3/kv/range");
        assert_eq!(medium.get(&job(), 1).unwrap().unwrap(), [7; 100_000], "{fault:?}");
        assert!(*spoiled.lock());
    }
}

#[test]
fn a_record_that_is_too_long_is_refused_with_the_limit_to_raise() {
    let cluster = Cluster::of(1);
    let medium = cluster.pool_url().medium().unwrap();
    // The server reads only the length of the second.
    for bytes in [1_677_722, 6 << 20] {
        let error = medium.put_new(&job(), 1, &vec![1; bytes]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.message().contains("raise --max-request-bytes"), "{error}");
        assert!(error.message().contains(&format!("writing {bytes} bytes to etcd://")), "{error}");
        assert!(!medium.has(&job(), 1).unwrap());
    }
    let cluster = Cluster::with(1, &["--max-request-bytes", "8388608"], None);
    let medium = cluster.pool_url().medium().unwrap();
    let record: Vec<u8> = (0..6 << 20).map(|at: u32| (at / 7) as u8).collect();
    assert_eq!(medium.put_new(&job(), 1, &record).unwrap(), Put::Made);
    assert!(medium.get(&job(), 1).unwrap().unwrap() == record, "what can be put can be read");
}

#[test]
fn a_full_database_is_told_as_such() {
    let cluster = Cluster::with(1, &["--quota-backend-bytes", "1048576"], None);
    let medium = cluster.pool_url().medium().unwrap();
    let puts = (1..100).map(|number| medium.put_new(&job(), number, &[1; 100_000]));
    let error = puts.filter_map(Result::err).next().expect("it gets full");
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert!(error.message().contains("--quota-backend-bytes"), "{error}");
    assert!(!medium.list(&job()).unwrap().is_empty(), "it can be read");
}

/// Returns the result of each kind of call.
fn calls(pool_url: &EtcdUrl) -> Vec<(&'static str, Result<()>)> {
    let (medium, files) = (pool_url.medium().unwrap(), pool_url.files().unwrap());
    vec![
        ("check", pool_url.check()),
        ("jobs", medium.jobs().map(drop)),
        ("numbers", medium.list(&job()).map(drop)),
        ("get", medium.get(&job(), 1).map(drop)),
        ("has", medium.has(&job(), 1).map(drop)),
        ("put", medium.put_new(&job(), 1, b"one").map(drop)),
        ("delete", medium.delete(&job(), 1)),
        ("read", files.read("x").map(drop)),
        ("write", files.write("x", b"x")),
    ]
}

fn all_are(kind: ErrorKind, told: &str, calls: Vec<(&'static str, Result<()>)>) {
    for (call, outcome) in calls {
        let error = outcome.expect_err(call);
        assert_eq!(error.kind(), kind, "{call}: {error}");
        assert!(error.message().contains(told), "{call}: {error}");
        assert!(error.message().contains("etcd://"), "{call}: {error}");
    }
}

/// No server listens there.
#[test]
fn a_cluster_that_is_not_there_is_told_soon() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    drop(taken);
    let pool_url = url_at(&[address]);
    let since = Instant::now();
    let error = pool_url.check().unwrap_err();
    assert!(since.elapsed() < Duration::from_secs(30), "{:?}", since.elapsed());
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
    for told in ["looking into etcd://", &address.to_string(), "refused", "more than half"] {
        assert!(error.message().contains(told), "{error}");
    }
    let error = pool_url.medium().unwrap().put_new(&job(), 1, b"one").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
    let unknown = EtcdUrl::parse("etcd://no-such-host.invalid/x").unwrap();
    let error = unknown.check().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
    assert!(error.message().contains("no-such-host.invalid:2379"), "{error}");
}

/// A member that hangs: it accepts connections and sends nothing.
#[test]
fn a_member_that_says_nothing_is_passed_over() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().map(|address| (address, silent)).unwrap();
    let cluster = Cluster::of(1);
    let medium = url_at(&[silent.0, cluster.address()]).medium().unwrap();
    assert!(!medium.has(&job(), 1).unwrap(), "a read is repeated elsewhere");
    assert_eq!(
        medium.put_new(&job(), 1, b"one").unwrap(),
        Put::Made,
        "who answered is asked first"
    );
    let medium = url_at(&[silent.0, cluster.address()]).medium().unwrap();
    let error = medium.put_new(&job(), 2, b"two").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
    assert!(error.message().contains("no answer in time"), "{error}");
    assert_eq!(
        medium.put_new(&job(), 2, b"two").unwrap(),
        Put::Made,
        "the next call goes elsewhere"
    );
}

/// Starts a web server that sends `answer` to every request.
fn stranger(answer: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            // Unread bytes would reset the connection, and the answer would be lost.
            let (mut request, mut chunk) = (Vec::new(), [0; 4096]);
            while !request.ends_with(b"}") {
                match client.read(&mut chunk) {
                    Ok(0) | Err(_) => break,
                    Ok(got) => request.extend_from_slice(&chunk[..got]),
                }
            }
            let _ = client.write_all(answer.as_bytes());
        }
    });
    address
}

#[test]
fn a_server_that_is_not_etcd_is_refused() {
    for answer in [
        "HTTP/1.0 404 Not Found\r\n\r\nno such page",
        "HTTP/1.0 200 OK\r\n\r\n<html>hello</html>",
        // A reply without a header must be refused: it would mean that a record does not exist.
        "HTTP/1.0 200 OK\r\n\r\n{}",
        "HTTP/1.0 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n",
    ] {
        let pool_url = url_at(&[stranger(answer)]);
        all_are(ErrorKind::Invalid, "is not etcd: correct the location", calls(&pool_url));
    }
}

/// Two programs with one member each would otherwise keep two logs.
#[test]
fn members_of_two_clusters_are_told_apart() {
    let (one, mut other) = (Cluster::of(1), Cluster::of(1));
    let pool_url = url_at(&[other.address(), one.address()]);
    let error = pool_url.check().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.message().contains("belongs to another cluster"), "{error}");
    // Without `check`, the first calls that reach both members find the fault.
    let medium = pool_url.medium().unwrap();
    assert_eq!(medium.put_new(&job(), 1, b"one").unwrap(), Put::Made);
    other.stop(0);
    let error = medium.get(&job(), 1).unwrap_err();
    assert!(error.message().contains("belongs to another cluster"), "{error}");
}
