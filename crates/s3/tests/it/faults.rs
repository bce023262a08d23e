//! Messages when a bucket cannot be used, and lost replies, which change nothing.

use crate::support;

use outlive_backend::{BackendLocation, ReadRange, SmallFiles, read_one};
use outlive_backend::{RetryPolicy, RetryTarget, Target};
use outlive_io::AlignedBuf;
use outlive_log::{Append, LogRecords, ManifestLog};
use outlive_log::{Previous, RecordLog};
use outlive_testkit::{Fault, Proxy};
use outlive_types::{ErrorKind, JobName, Result};
use std::net::TcpListener;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use support::{
    BUCKET, PAGE, SECRET, Server, content, get, name, named_url, put, until, url_at, write_all,
};

const PART: usize = 8 << 20;

fn job() -> JobName {
    JobName::new("x").unwrap()
}

/// Matches a request to `what` of a shard: "uploads", "partNumber", "uploadId=" or nothing.
fn is(method: &'static str, what: &'static str) -> impl Fn(&str, &str) -> bool + Send + 'static {
    move |is_method, target| {
        let kind = ["uploads", "partNumber", ".part/", "uploadId="]
            .into_iter()
            .find(|mark| target.contains(mark));
        is_method == method && kind.unwrap_or_default() == what
    }
}

/// If several ranges are requested together, those that exist arrive, whatever happens to the
/// others.
#[test]
fn ranges_that_share_a_request_fail_one_by_one() {
    let Some(server) = Server::versitygw() else { return };
    let proxy = Proxy::before(server.address());
    let target = url_at(proxy.address()).target().unwrap();
    let bytes = content(5, 2 * PAGE);
    for pack in 0..16 {
        put(&target, name(pack), &content(u64::from(pack), 1 << 20)).unwrap();
    }
    put(&target, name(16), &bytes).unwrap();
    // All long requests that may run at once are held, so the next ranges wait and are joined.
    let object = name(16).to_string();
    let is_it = move |target: &str| target.contains(&object);
    let other = is_it.clone();
    proxy.spoil(move |method, target| match method == "GET" && !other(target) {
        true => Fault::Hold,
        false => Fault::None,
    });
    let range = |at: usize, length: usize| ReadRange::new(at as u64, AlignedBuf::zeroed(length));
    let held: Vec<_> =
        (0..16).map(|pack| read_one(&target, name(pack), range(0, 1 << 20))).collect();
    until("all are under way", || proxy.held() == 16);
    let requests = Arc::new(Mutex::new(0));
    let counting = requests.clone();
    let mut cut = true;
    proxy.spoil(move |_, target| {
        *counting.lock().unwrap() += usize::from(is_it(target));
        // The joined request fails, and the single ones do not.
        match is_it(target) && std::mem::take(&mut cut) {
            true => Fault::Refuse(400),
            false => Fault::None,
        }
    });
    let places = [0, PAGE, 2 * PAGE];
    let ranges = places.iter().map(|at| range(*at, PAGE)).collect();
    let read = target.read_ranges(name(16), ranges);
    assert!(!read.iter().any(outlive_io::Ticket::ready), "they wait");
    proxy.let_go();
    for (at, ticket) in places.into_iter().zip(read) {
        match ticket.wait() {
            Ok(page) => assert!(page[..] == bytes[at..at + PAGE]),
            Err(fault) => {
                assert_eq!((at, fault.error.kind()), (2 * PAGE, ErrorKind::Damaged));
                assert_eq!(fault.buffer.len(), PAGE);
            }
        }
    }
    for (pack, ticket) in (0..).zip(held) {
        assert!(ticket.wait().unwrap()[..] == content(pack, 1 << 20));
    }
    // One for all, one for each, and those that ask for the length of the shard.
    let requests = *requests.lock().unwrap();
    assert!((5..=8).contains(&requests), "{requests}");
}

#[test]
fn no_reply_that_is_lost_loses_a_shard() {
    let Some(server) = Server::versitygw() else { return };
    let proxy = Proxy::before(server.address());
    let target = url_at(proxy.address()).target().unwrap();
    let mut pack = 0;
    for fault in [Fault::LoseReply, Fault::LoseRequest, Fault::Refuse(503), Fault::CutReply(60)] {
        for (method, what, length) in [
            ("PUT", "", PART / 2),
            ("POST", "uploads", 3 * PART),
            ("PUT", ".part/", 3 * PART),
            ("PUT", "partNumber", 3 * PART),
            ("POST", "uploadId=", 3 * PART),
        ] {
            pack += 1;
            let bytes = content(u64::from(pack), length);
            let spoiled = proxy.spoil_once(fault, is(method, what));
            let done = put(&target, name(pack), &bytes);
            done.unwrap_or_else(|error| panic!("{fault:?} of {method} {what}: {error}"));
            assert!(*spoiled.lock(), "{fault:?} of {method} {what} did not happen");
            assert!(get(&target, name(pack), 0, length).unwrap() == bytes);
        }
    }
    assert_eq!(target.list().unwrap().len(), pack as usize);
}

/// A ticket's callback runs in one of the threads that carry out requests: a request that it makes
/// must not wait for that thread.
#[test]
fn a_callback_of_a_read_may_ask_the_bucket_again() {
    const READS: usize = 40;
    let Some(server) = Server::versitygw() else { return };
    let pool_url = server.pool_url();
    let target = pool_url.target().unwrap();
    put(&target, name(1), &content(1, PAGE)).unwrap();
    pool_url.files().unwrap().write("text", b"there").unwrap();
    let (told, asked) = channel();
    for _ in 0..READS {
        let (told, files) = (told.clone(), pool_url.files().unwrap());
        let range = ReadRange::new(0, AlignedBuf::zeroed(PAGE));
        read_one(&target, name(1), range).on_done(move |read| {
            assert!(read.is_ok_and(|read| read.is_ok()));
            told.send(files.read("text")).unwrap();
        });
    }
    for _ in 0..READS {
        assert_eq!(asked.recv().unwrap().unwrap().unwrap(), b"there");
    }
}

#[test]
fn no_reply_that_is_cut_spoils_a_read() {
    let Some(server) = Server::versitygw() else { return };
    let proxy = Proxy::before(server.address());
    let target = url_at(proxy.address()).target().unwrap();
    let bytes = content(1, PART);
    put(&target, name(1), &bytes).unwrap();
    for fault in
        [Fault::LoseRequest, Fault::Refuse(500), Fault::CutReply(100), Fault::CutReply(3 << 20)]
    {
        let spoiled = proxy.spoil_once(fault, is("GET", ""));
        assert!(get(&target, name(1), 0, PART).unwrap() == bytes, "{fault:?}");
        assert!(*spoiled.lock());
    }
}

/// An append whose reply is lost is done, once.
#[test]
fn no_reply_that_is_lost_forks_a_log() {
    let Some(server) = Server::versitygw() else { return };
    let proxy = Proxy::before(server.address());
    let log = RecordLog::over(url_at(proxy.address()).medium().unwrap());
    let mut previous = Previous::NONE;
    for fault in [Fault::LoseReply, Fault::CutReply(20), Fault::None] {
        let record = format!("{fault:?}").into_bytes();
        proxy.spoil_once(fault, is("PUT", ""));
        assert_eq!(log.append_if(&job(), previous, &record).unwrap(), Append::Done, "{fault:?}");
        previous = Previous::of(previous.number + 1, &record);
        assert_eq!(log.append_if(&job(), Previous::NONE, b"other").unwrap(), Append::Lost);
    }
    assert_eq!(log.numbers(&job()).unwrap(), [1, 2, 3]);
    // A request that never arrived may be repeated. It is not idempotent, so object_store repeats
    // it only if it knows that.
    proxy.spoil_once(Fault::LoseRequest, is("PUT", ""));
    let first = log.append_if(&job(), previous, b"last");
    let again = first.or_else(|_| log.append_if(&job(), previous, b"last"));
    assert_eq!(again.unwrap(), Append::Done);
}

/// The finish of a shard is completed, and the server is gone for good afterwards.
#[test]
fn a_finish_with_an_unknown_outcome_says_so() {
    let Some(server) = Server::versitygw() else { return };
    let proxy = Proxy::before(server.address());
    let target = url_at(proxy.address()).target().unwrap();
    let mut is_gone = false;
    proxy.spoil(move |method, target| {
        let completes = method == "POST" && target.contains("uploadId=");
        let fault = if is_gone { Fault::LoseRequest } else { Fault::None };
        is_gone |= completes;
        if completes && fault == Fault::None { Fault::LoseReply } else { fault }
    });
    let error = put(&target, name(1), &content(1, 2 * PART)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
    assert!(error.message().contains("not known whether shard"), "{error}");
    proxy.spoil(|_, _| Fault::None);
    assert_eq!(target.list().unwrap(), [name(1)], "it was finished");
}

#[test]
fn a_server_may_be_started_again_in_the_middle() {
    let Some(mut server) = Server::versitygw() else { return };
    let inner = Arc::new(server.pool_url().target().unwrap());
    let policy = RetryPolicy { attempts_max: 200, ..RetryPolicy::default() };
    let target = RetryTarget::new(inner, policy);
    let bytes = content(1, 4 * PART);
    put(&target, name(1), &bytes).unwrap();
    let mut writer = target.create(name(2), bytes.len() as u64).unwrap();
    let (first, rest) = bytes.split_at(2 * PART);
    writer.write(0, support::buffer_of(first)).wait().unwrap();
    server.stop();
    let ticket = writer.write(2 * PART as u64, support::buffer_of(rest));
    let (read, written) = std::thread::scope(|scope| {
        let read = scope.spawn(|| get(&target, name(1), 0, bytes.len()));
        server.start();
        (read.join().unwrap(), ticket.wait())
    });
    assert!(read.unwrap() == bytes);
    written.unwrap();
    writer.finish(bytes.len() as u64).wait().unwrap();
    assert!(get(&target, name(2), 0, bytes.len()).unwrap() == bytes);
}

/// Returns the result of each kind of call.
fn calls(pool_url: &outlive_s3::S3Url) -> Vec<(&'static str, Result<()>)> {
    let (target, medium) = (pool_url.target().unwrap(), pool_url.medium().unwrap());
    vec![
        ("check", pool_url.check()),
        ("create", target.create(name(7), 4096).map(drop)),
        ("read", get(&target, name(1), 0, 4096).map(drop)),
        ("length", target.length(name(1)).map(drop)),
        ("list", target.list().map(drop)),
        ("unfinished", target.unfinished().map(drop)),
        ("delete", target.delete(name(9))),
        ("jobs", medium.jobs().map(drop)),
        ("numbers", medium.list(&job()).map(drop)),
        ("get", medium.get(&job(), 1).map(drop)),
        ("has", medium.has(&job(), 1).map(drop)),
        ("put", medium.put_new(&job(), 1, b"one").map(drop)),
    ]
}

fn all_are(kind: ErrorKind, told: &str, calls: Vec<(&'static str, Result<()>)>) {
    for (call, outcome) in calls {
        let error = outcome.expect_err(call);
        assert_eq!(error.kind(), kind, "{call}: {error}");
        assert!(error.message().contains(told), "{call}: {error}");
        assert!(error.message().contains("s3://"), "{call}: {error}");
    }
}

#[test]
fn wrong_keys_and_missing_buckets_are_told_as_such() {
    let Some(server) = Server::versitygw() else { return };
    let url = server.url();
    let wrong = named_url(&format!("s3://{BUCKET}/x"), &url, "wrong");
    all_are(ErrorKind::Invalid, "AWS_SECRET_ACCESS_KEY", calls(&wrong));
    let missing = named_url("s3://no-such-bucket/x", &url, SECRET);
    all_are(ErrorKind::Invalid, "create the bucket", calls(&missing));
}

/// A vanished bucket is no damage: its shards may all be back soon.
#[test]
fn a_bucket_that_vanishes_is_not_one_without_shards() {
    let Some(mut server) = Server::versitygw() else { return };
    let pool_url = server.pool_url();
    let target = pool_url.target().unwrap();
    put(&target, name(1), &content(1, 4096)).unwrap();
    let mut writer = target.create(name(2), 4 * PART as u64).unwrap();
    write_all(&mut *writer, &content(2, 2 * PART), 4 << 20).unwrap();
    // A server that is storing a part would recreate the bucket's folder.
    server.stop();
    std::fs::rename(server.bucket_dir(), server.bucket_dir().with_extension("gone")).unwrap();
    server.start();
    all_are(ErrorKind::Invalid, "create the bucket", calls(&pool_url));
    writer.finish(2 * PART as u64).wait().unwrap_err();
    std::fs::rename(server.bucket_dir().with_extension("gone"), server.bucket_dir()).unwrap();
    assert_eq!(target.list().unwrap(), [name(1)]);
    until("the bucket is as it was", || target.unfinished().unwrap().len() <= 1);
}

#[test]
fn a_dead_server_is_told_soon() {
    let Some(mut server) = Server::versitygw() else { return };
    let pool_url = server.pool_url();
    let target = pool_url.target().unwrap();
    let mut writer = target.create(name(1), PART as u64).unwrap();
    write_all(&mut *writer, &content(1, 4096), 4096).unwrap();
    server.stop();
    for call in [Target::list, Target::unfinished] {
        let since = Instant::now();
        let error = call(&target).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
        assert!(error.message().contains("is the server running"), "{error}");
        assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
    }
    // No caller may repeat a finish, so it is tried for longer.
    let since = Instant::now();
    let error = writer.finish(4096).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
    assert!(since.elapsed() < Duration::from_secs(20), "{:?}", since.elapsed());
}

/// The server accepts connections, and sends nothing.
#[test]
fn a_server_that_says_nothing_is_told_soon() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = url_at(silent.local_addr().unwrap()).target().unwrap();
    let since = Instant::now();
    let error = target.list().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
    assert!(since.elapsed() < Duration::from_secs(15), "{:?}", since.elapsed());
}
