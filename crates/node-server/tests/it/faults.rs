//! Connections that break, nodes that end and start again, and clients that stop.

use crate::relay::{Held, Relay};
use crate::support::{Served, any_port, directory, name, options, put, serve, whole};
use outlive_backend::{Location, ReadRange, SmallFiles, read_one};
use outlive_io::AlignedBuf;
use outlive_log::{Append, LogRecords, ManifestLog, Previous, RecordLog};
use outlive_node::NodeUrl;
use outlive_node_server::{NodeOptions, NodeServer};
use outlive_testkit::succeeds_in_a_child;
use outlive_types::{ErrorKind, JobName, SeededRng};
use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

fn at(address: SocketAddr) -> Location {
    Location::new(NodeUrl::parse(&format!("node://{address}/p")).unwrap())
}

fn start(dir: &Path, address: SocketAddr) -> NodeServer {
    let mut options = NodeOptions::new(vec![directory(dir)], address);
    options.session = Duration::from_secs(3);
    NodeServer::start(options).unwrap()
}

#[test]
fn connections_that_break_at_any_byte_lose_and_duplicate_nothing() {
    for seed in 0..6 {
        let served = serve(1, |_| ());
        let relay = Relay::before(served.server.address());
        let location = at(relay.address());
        location.make_folders(&["packs", "log"]).unwrap();
        let target = location.open_target(&options()).unwrap();
        let log = RecordLog::over(location.open_medium().unwrap());
        let job = JobName::new("x").unwrap();
        let chance = SeededRng::new(seed);
        let cuts = SeededRng::new(seed + 1000);
        relay.cut_after(move || (cuts.next_u64() % (2 << 20)) as i64);
        let mut finished = Vec::new();
        let mut previous = 0;
        for pack in 0..40 {
            let pages = 1 + (chance.next_u64() % 300) as usize;
            let shard = name(pack);
            match put(&*target, shard, pack as u8, pages * 4096) {
                Ok(()) => finished.push((pack, pages)),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Retry, "seed {seed}: {error}"),
            }
            // The record of a call that failed may be there: the next attempt is the same one.
            let record = format!("record {pack}");
            loop {
                match log.append_if(&job, previous_of(previous, pack), record.as_bytes()) {
                    Ok(outcome) => {
                        assert_eq!(outcome, Append::Done, "seed {seed}");
                        previous += 1;
                        break;
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Retry, "seed {seed}: {error}")
                    }
                }
            }
        }
        let cuts = relay.stop_cutting();
        assert!(cuts > 10, "seed {seed}: only {cuts} cuts");
        assert!(finished.len() > 10, "seed {seed}: only {} shards", finished.len());
        assert_eq!(log.numbers(&job).unwrap(), (1..=40).collect::<Vec<u64>>());
        let listed = target.list().unwrap();
        for (pack, pages) in finished {
            assert!(listed.contains(&name(pack)), "seed {seed}: shard {pack} is gone");
            assert_eq!(whole(&*target, name(pack)), vec![pack as u8; pages * 4096]);
        }
    }
}

fn previous_of(number: u64, pack: u32) -> Previous {
    match number {
        0 => Previous::NONE,
        _ => Previous::of(number, format!("record {}", pack - 1).as_bytes()),
    }
}

#[test]
fn a_client_goes_on_with_a_node_that_was_started_again() {
    let dir = TempDir::new().unwrap();
    let server = start(dir.path(), any_port());
    let address = server.address();
    let location = at(address);
    location.make_folders(&["packs", "log"]).unwrap();
    let target = location.open_target(&options()).unwrap();
    put(&*target, name(1), 1, 8192).unwrap();
    let unfinished = target.create(name(2), 8192).unwrap();
    drop(server);
    let error = target.length(name(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry);
    assert!(error.message().contains(&address.to_string()), "{error}");
    let server = start(dir.path(), address);
    // A moment after the failure, other calls fail as well.
    while target.length(name(1)).is_err() {
        thread::yield_now();
    }
    assert_eq!(whole(&*target, name(1)), [1; 8192]);
    // The node does not know the writer any more.
    let mut unfinished = unfinished;
    let written = unfinished.write(0, AlignedBuf::zeroed(8192).share()).wait();
    assert_eq!(written.unwrap_err().error.kind(), ErrorKind::Retry);
    assert_eq!(unfinished.finish(8192).wait().unwrap_err().kind(), ErrorKind::Retry);
    assert_eq!(target.list().unwrap(), [name(1)]);
    put(&*target, name(2), 2, 8192).unwrap();
    drop(server);
}

#[test]
fn a_read_goes_on_when_the_node_comes_back_in_the_middle() {
    let dir = TempDir::new().unwrap();
    let server = start(dir.path(), any_port());
    let relay = Relay::before(server.address());
    let location = at(relay.address());
    location.make_folders(&["packs"]).unwrap();
    let target = location.open_target(&options()).unwrap();
    let bytes = 12 << 20;
    put(&*target, name(1), 7, bytes).unwrap();
    relay.cut_after(|| 5 << 20);
    let read = read_one(&*target, name(1), ReadRange::new(0, AlignedBuf::zeroed(bytes)));
    let read = read.wait().unwrap();
    assert!(read.iter().all(|byte| *byte == 7));
    assert!(relay.stop_cutting() > 1);
}

#[test]
fn a_silent_node_is_a_failure_that_may_pass() {
    let served = serve(1, |_| ());
    let relay = Relay::before(served.server.address());
    let location = at(relay.address());
    location.make_folders(&["packs"]).unwrap();
    let target = location.open_target(&options()).unwrap();
    put(&*target, name(1), 1, 4096).unwrap();
    relay.hold(Held::All);
    let error = target.length(name(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
    assert!(error.message().contains("keep-alive timed out"), "{error}");
    relay.hold(Held::None);
    while target.length(name(1)).is_err() {
        thread::yield_now();
    }
}

#[test]
fn one_node_serves_a_directory() {
    let dir = TempDir::new().unwrap();
    let first = start(dir.path(), any_port());
    let second = NodeServer::start(NodeOptions::new(vec![directory(dir.path())], any_port()));
    let error = second.err().expect("it was refused");
    assert_eq!(error.kind(), ErrorKind::Retry);
    assert!(error.message().contains("another node serves"), "{error}");
    drop(first);
    drop(start(dir.path(), any_port()));
    let twice = vec![directory(dir.path()), directory(dir.path())];
    let error = NodeServer::start(NodeOptions::new(twice, any_port())).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

#[test]
fn a_client_that_dies_loses_its_lease_and_its_shard() {
    let served = serve(1, |options| options.session = Duration::from_secs(1));
    let location = served.new_location();
    let token = served.new_location();
    // The child ends without a word, as after SIGKILL.
    let done = succeeds_in_a_child(|| {
        let lease = location.open_medium()?.lease()?.expect("a node has leases");
        token.write("token", lease.token.as_bytes())?;
        let target = location.open_target(&options())?;
        std::mem::forget((lease, target.create(name(1), 4096)?));
        assert_eq!(target.unfinished()?, [name(1)]);
        Ok(())
    });
    assert!(done);
    let token = String::from_utf8(token.read("token").unwrap().unwrap()).unwrap();
    let medium = location.open_medium().unwrap();
    while medium.has_lease_ended(&token).unwrap() != Some(true) {
        thread::yield_now();
    }
    let target = location.open_target(&options()).unwrap();
    while !target.unfinished().unwrap().is_empty() {
        thread::yield_now();
    }
}

#[test]
fn a_client_that_lives_keeps_its_lease_over_a_start_of_the_node() {
    let dir = TempDir::new().unwrap();
    let server = start(dir.path(), any_port());
    let address = server.address();
    let location = at(address);
    location.make_folders(&["log"]).unwrap();
    let medium = location.open_medium().unwrap();
    let lease = medium.lease().unwrap().unwrap();
    let reading = medium.lock_reading().unwrap().unwrap();
    drop(server);
    let server = start(dir.path(), address);
    // Until the clients have renewed their locks, the node says that it does not know.
    while medium.has_lease_ended(&lease.token).unwrap() != Some(false) {
        assert!(medium.is_read().unwrap(), "a collector might begin");
        thread::yield_now();
    }
    assert!(medium.is_read().unwrap());
    drop(reading);
    while medium.is_read().unwrap() {
        thread::yield_now();
    }
    assert_eq!(medium.has_lease_ended(&lease.token).unwrap(), Some(false));
    drop((lease, server));
}

#[test]
fn a_parent_and_its_child_use_one_node() {
    let served = serve(1, |_| ());
    let location = served.new_location();
    let target = location.open_target(&options()).unwrap();
    put(&*target, name(1), 1, 1 << 20).unwrap();
    let mut inherited = Some(target.create(name(2), 8192).unwrap());
    let done = succeeds_in_a_child(|| {
        assert!(whole(&*target, name(1)) == vec![1; 1 << 20]);
        put(&*target, name(3), 3, 1 << 20)?;
        // The child cannot use a writer that the parent has begun.
        let mut writer = inherited.take().expect("it was inherited");
        let fault = writer.write(0, AlignedBuf::zeroed(4096).share()).wait().unwrap_err();
        assert_eq!(fault.error.kind(), ErrorKind::Invalid);
        drop(writer);
        Ok(())
    });
    assert!(done);
    let mut writer = inherited.take().expect("the child took its own");
    writer.write(0, AlignedBuf::zeroed(8192).share()).wait().unwrap();
    writer.finish(8192).wait().unwrap();
    assert_eq!(target.list().unwrap(), [name(1), name(2), name(3)]);
}

/// Where the network gives each connection little, more of them may be set.
#[test]
fn as_many_connections_are_used_as_are_set() {
    for (set, connections) in [(None, 2), (Some("1"), 1), (Some("8"), 8)] {
        let served = serve(1, |_| ());
        let relay = Relay::before(served.server.address());
        let set = set.map(|set| ("OUTLIVE_NODE_CONNECTIONS", set));
        let url = NodeUrl::parse(&format!("node://{}/p", relay.address())).unwrap();
        let location = Location::new(url.with_variables(set));
        location.make_folders(&["packs"]).unwrap();
        let target = location.open_target(&options()).unwrap();
        for pack in 1..=4 {
            put(&*target, name(pack), pack as u8, 16 << 20).unwrap();
        }
        assert_eq!(relay.taken(), 1 + connections, "one is for small requests");
        // Some reads have more ranges than a request.
        let range = |number: u64| ReadRange::new(number << 18, AlignedBuf::zeroed(256 << 10));
        let begin = |pack| target.read_ranges(name(pack), (0..64).map(range).collect());
        let begun: Vec<_> = (1..=4).map(|pack| (pack, begin(pack))).collect();
        for (pack, reads) in begun {
            let is_whole = |read: &AlignedBuf| read.iter().all(|byte| *byte == pack as u8);
            assert!(reads.into_iter().all(|read| is_whole(&read.wait().unwrap())));
        }
        assert_eq!(relay.taken(), 1 + connections);
    }
}

#[test]
fn what_is_too_long_is_refused() {
    let served: Served = serve(1, |_| ());
    let location = served.new_location();
    let medium = location.open_medium().unwrap();
    let job = JobName::new("x").unwrap();
    let longest = vec![1; 4 << 20];
    medium.put_new(&job, 1, &longest).unwrap();
    assert!(medium.get(&job, 1).unwrap().unwrap() == longest);
    let error = medium.put_new(&job, 2, &vec![1; 5 << 20]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert_eq!(medium.list(&job).unwrap(), [1]);
}

#[test]
fn an_address_without_a_node_is_refused_with_advice() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = at(address).check().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry);
    assert!(error.message().contains("does not answer"), "{error}");
}

#[test]
fn writes_that_wait_for_memory_hold_up_no_others() {
    // Room for two writes of each session at once.
    let served = serve(1, |options| {
        options.staging_bytes = 32 << 20;
        options.session = Duration::from_secs(6);
    });
    let location = served.new_location();
    let target = location.open_target(&options()).unwrap();
    let write = |pack: u32| {
        let mut writer = target.create(name(pack), 32 << 20).unwrap();
        let tickets: Vec<_> =
            (0..8).map(|at| writer.write(at << 22, AlignedBuf::zeroed(4 << 20).share())).collect();
        (writer, tickets)
    };
    // 32 writes are under way at once, twice as many as a process sends.
    let begun: Vec<_> = (0..4).map(write).collect();
    for (writer, tickets) in begun {
        for ticket in tickets {
            ticket.wait().unwrap();
        }
        writer.finish(32 << 20).wait().unwrap();
    }
    assert_eq!(target.list().unwrap().len(), 4);
}

#[test]
fn a_client_that_takes_nothing_holds_up_no_others() {
    let served = serve(1, |options| {
        options.staging_bytes = 16 << 20;
        options.session = Duration::from_secs(600);
    });
    let location = served.new_location();
    let target = location.open_target(&options()).unwrap();
    put(&*target, name(1), 7, 24 << 20).unwrap();
    // Others read all of it, and their connections pass nothing on.
    let path = location.to_string().splitn(4, '/').nth(3).unwrap().to_owned();
    let stopped = || {
        let relay = Relay::before(served.server.address());
        let slow = format!("node://{}/{path}", relay.address());
        let slow = Location::new(NodeUrl::parse(&slow).unwrap()).open_target(&options()).unwrap();
        assert_eq!(slow.length(name(1)).unwrap(), 24 << 20);
        let before = served.server.staging_bytes();
        relay.hold(Held::Replies);
        let range = |at: u64| ReadRange::new(at << 22, AlignedBuf::zeroed(4 << 20));
        let reads: Vec<_> = (0..6).map(|at| read_one(&*slow, name(1), range(at))).collect();
        while served.server.staging_bytes() < before + (4 << 20) {
            thread::yield_now();
        }
        (relay, reads)
    };
    let first = stopped();
    assert!(whole(&*target, name(1)) == vec![7; 24 << 20]);
    // Two of them hold all the memory for requests, and single pages need none.
    let second = stopped();
    let range = ReadRange::new(4096 * 900, AlignedBuf::zeroed(4096));
    assert!(read_one(&*target, name(1), range).wait().unwrap().iter().all(|byte| *byte == 7));
    assert!(served.server.staging_bytes() >= 8 << 20, "the page waited for them");
    first.0.hold(Held::None);
    second.0.hold(Held::None);
}

#[test]
fn a_shorter_session_ends_no_lease_of_an_earlier_run() {
    let dir = TempDir::new().unwrap();
    let start_with = |session: Duration, address: SocketAddr| {
        let mut options = NodeOptions::new(vec![directory(dir.path())], address);
        options.session = session;
        NodeServer::start(options).unwrap()
    };
    let server = start_with(Duration::from_secs(3600), any_port());
    let address = server.address();
    let location = at(address);
    location.make_folders(&["log"]).unwrap();
    let medium = location.open_medium().unwrap();
    let lease = medium.lease().unwrap().unwrap();
    for _ in 0..2 {
        start_again(&dir, address);
    }
    drop(server);
    let server = start_with(Duration::from_millis(200), address);
    // The client renews only every few minutes, and the node has not heard of its lease.
    let ended = medium.has_lease_ended(&lease.token).unwrap();
    assert_ne!(ended, Some(true));
    drop((lease, server));
}

/// Tries to start a second node, which is refused.
fn start_again(dir: &TempDir, address: SocketAddr) {
    let options = NodeOptions::new(vec![directory(dir.path())], address);
    assert_eq!(NodeServer::start(options).err().unwrap().kind(), ErrorKind::Retry);
}

#[test]
fn a_node_asks_for_all_its_locations_in_their_order() {
    let dirs: Vec<TempDir> = (0..3).map(|_| TempDir::new().unwrap()).collect();
    let start = |of: &[usize]| {
        let data = of.iter().map(|number| directory(dirs[*number].path())).collect();
        NodeServer::start(NodeOptions::new(data, any_port()))
    };
    drop(start(&[0, 1]).unwrap());
    for wrong in [&[1, 0][..], &[0], &[0, 2], &[1]] {
        let error = start(wrong).err().unwrap_or_else(|| panic!("{wrong:?} was taken"));
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    // A further one may be added.
    drop(start(&[0, 1, 2]).unwrap());
    assert!(start(&[0, 1]).is_err());
    let within = dirs[0].path().join("in");
    std::fs::create_dir(&within).unwrap();
    let data = vec![directory(dirs[0].path()), directory(&within)];
    let error = NodeServer::start(NodeOptions::new(data, any_port())).err().unwrap();
    assert!(error.message().contains("in the other"), "{error}");
}

#[test]
fn a_node_is_one_under_any_name_of_its_host() {
    let served = serve(1, |_| ());
    let port = served.server.address().port();
    let url = |host: &str, prefix: &str| {
        Location::new(NodeUrl::parse(&format!("node://{host}:{port}/{prefix}")).unwrap())
    };
    assert!(url("127.0.0.1", "a").is_same(&url("localhost", "a")));
    assert!(!url("127.0.0.1", "a").is_same(&url("localhost", "b")));
    let other = serve(1, |_| ());
    assert!(!url("127.0.0.1", "a").is_same(&Location::new(other.url("a"))));
}
