//! Shards of several parts: how they are completed, and the remains of abandoned ones.
#![expect(clippy::disallowed_methods, reason = "a test that hangs ends")]

use crate::support;

use outlive_backend::{ShardWriter, SmallFiles, Target, WriteTicket};
use outlive_io::{AlignedBuf, StagingPool};
use outlive_log::{LogRecords, Put};
use outlive_s3::S3Target;
use outlive_testkit::{Fault, Proxy};
use outlive_types::{ErrorKind, JobName, Result, Rng, SeededRng};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::{
    BUCKET, PAGE, SECRET, Server, buffer_of, content, get, name, named_url, put, until, url_at,
    write_all,
};

const MIB: usize = 1 << 20;
const PART: usize = 8 * MIB;

fn check(target: &S3Target, pack: u32, bytes: &[u8]) {
    assert_eq!(target.length(name(pack)).unwrap(), bytes.len() as u64);
    assert!(get(target, name(pack), 0, bytes.len()).unwrap() == bytes, "{} bytes", bytes.len());
}

#[test]
fn shards_of_all_lengths_have_the_written_bytes() {
    let Some(server) = Server::versitygw() else { return };
    let target = server.pool_url().target().unwrap();
    let lengths =
        [0, PAGE, PART - PAGE, PART, PART + PAGE, 2 * PART, 2 * PART + 5 * PAGE, 5 * PART];
    for (pack, length) in (0..).zip(lengths) {
        let bytes = content(7, length);
        put(&target, name(pack), &bytes).unwrap();
        check(&target, pack, &bytes);
    }
    assert_eq!(target.list().unwrap().len(), lengths.len());
    assert_eq!(target.unfinished().unwrap(), []);
}

#[test]
fn writes_in_any_order_make_whole_parts_and_unwritten_bytes_are_zero() {
    let Some(server) = Server::versitygw() else { return };
    let target = server.pool_url().target().unwrap();
    let rng = SeededRng::new(11);
    let mut bytes = content(8, 5 * PART / 2);
    // Pieces of all lengths, shuffled; two are left out.
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let mut random = [0; 2];
        rng.fill(&mut random);
        let length = PAGE * (1 + usize::from(u16::from_le_bytes(random)) % 400);
        pieces.push(at..bytes.len().min(at + length));
        at += length;
    }
    let mut keyed: Vec<_> =
        pieces.into_iter().map(|piece| (piece.start * 7919 % 1009, piece)).collect();
    keyed.sort_by_key(|(key, _)| *key);
    for hole in [keyed.remove(3).1, keyed.remove(9).1] {
        bytes[hole].fill(0);
    }
    let mut writer = target.create(name(1), 4 * PART as u64).unwrap();
    let write = |(_, piece): (usize, std::ops::Range<usize>)| {
        writer.write(piece.start as u64, buffer_of(&bytes[piece]))
    };
    let tickets: Vec<_> = keyed.into_iter().map(write).collect();
    writer.finish(bytes.len() as u64).wait().unwrap();
    assert!(tickets.into_iter().all(|ticket| ticket.wait().is_ok()));
    check(&target, 1, &bytes);
}

/// Many concurrent shards without a whole part use a supply that is smaller than one part.
#[test]
fn a_small_supply_of_buffers_feeds_many_shards() {
    let Some(server) = Server::versitygw() else { return };
    let target = server.pool_url().target().unwrap();
    let pool = StagingPool::new(4 * MIB, MIB);
    let bytes = content(9, 20 * MIB);
    let mut writers: Vec<_> =
        (0..6).map(|pack| target.create(name(pack), bytes.len() as u64).unwrap()).collect();
    let mut tickets = Vec::new();
    for at in (0..bytes.len()).step_by(MIB) {
        for writer in &mut writers {
            let mut buffer = pool.take_timeout(Duration::from_secs(300)).expect("they come home");
            buffer.copy_from_slice(&bytes[at..at + MIB]);
            tickets.push(writer.write(at as u64, buffer.share()));
        }
    }
    let finished: Vec<_> =
        writers.into_iter().map(|writer| writer.finish(bytes.len() as u64)).collect();
    finished.into_iter().for_each(|ticket| ticket.wait().unwrap());
    assert!(tickets.into_iter().all(|ticket| ticket.wait().is_ok()));
    (0..6).for_each(|pack| check(&target, pack, &bytes));
}

/// Parts that a bucket sends at once.
const PARTS_MAX: usize = 16;

/// Starts a proxy that holds all parts, and three shards of eight parts, each complete except for
/// the first page. Also returns the tickets of the writes.
fn three_held_shards(
    proxy: &Proxy,
    target: &S3Target,
    bytes: &[u8],
) -> (Vec<Box<dyn ShardWriter>>, Vec<WriteTicket>) {
    proxy.spoil(|_, target| match target.contains("partNumber") {
        true => Fault::Hold,
        false => Fault::None,
    });
    let shared = buffer_of(bytes);
    let mut tickets = Vec::new();
    let writers = (0..3).map(|pack| {
        let mut writer = target.create(name(pack), bytes.len() as u64).unwrap();
        for at in (PAGE..bytes.len()).step_by(4 * MIB) {
            let end = bytes.len().min(at + 4 * MIB);
            tickets.push(writer.write(at as u64, shared.slice(at..end)));
        }
        writer
    });
    (writers.collect(), tickets)
}

/// Counts the writes whose bytes are not taken over yet.
fn waiting(tickets: &[WriteTicket]) -> usize {
    tickets.iter().filter(|ticket| !ticket.ready()).count()
}

#[test]
fn shards_share_the_parts_that_a_bucket_sends_at_once() {
    let Some(server) = Server::versitygw() else { return };
    let proxy = Proxy::before(server.address());
    let target = url_at(proxy.address()).target().unwrap();
    let bytes = content(4, 8 * PART);
    let (writers, tickets) = three_held_shards(&proxy, &target, &bytes);
    // The first two have seven whole parts each, and the third has the other two. Those are five
    // writes, since the first part lacks its header, and the fourth part is not whole.
    until("as many as allowed are sent", || proxy.held() == PARTS_MAX);
    assert_eq!(waiting(&tickets), 16 - 6, "their memory is bounded");
    proxy.let_go();
    let page = buffer_of(&bytes[..PAGE]);
    let finished: Vec<_> = writers
        .into_iter()
        .map(|mut writer| {
            drop(writer.write(0, page.clone()));
            writer.finish(bytes.len() as u64)
        })
        .collect();
    finished.into_iter().for_each(|ticket| ticket.wait().unwrap());
    assert!(tickets.into_iter().all(|ticket| ticket.wait().is_ok()));
    (0..3).for_each(|pack| check(&target, pack, &bytes));
}

#[test]
fn a_shard_that_is_given_up_lets_others_go_on() {
    let Some(server) = Server::versitygw() else { return };
    let proxy = Proxy::before(server.address());
    let target = url_at(proxy.address()).target().unwrap();
    let bytes = content(5, 8 * PART);
    let (mut writers, tickets) = three_held_shards(&proxy, &target, &bytes);
    until("as many as allowed are sent", || proxy.held() == PARTS_MAX);
    drop(writers.remove(0));
    // All parts of the third shard are being sent now.
    until("the others go on", || waiting(&tickets) == 0);
    until("their parts are sent", || proxy.held() == PARTS_MAX + 5);
    proxy.let_go();
    for (mut writer, pack) in writers.into_iter().zip(1..) {
        drop(writer.write(0, buffer_of(&bytes[..PAGE])));
        writer.finish(bytes.len() as u64).wait().unwrap();
        check(&target, pack, &bytes);
    }
    assert!(tickets.into_iter().all(|ticket| ticket.wait().is_ok()));
}

/// A finish sends the remaining parts at once, without waiting for those in progress.
#[test]
fn a_finish_sends_the_rest_beside_parts_under_way() {
    let Some(server) = Server::versitygw() else { return };
    let proxy = Proxy::before(server.address());
    let target = url_at(proxy.address()).target().unwrap();
    let bytes = content(6, 3 * PART);
    proxy.spoil(|_, target| match target.contains("partNumber") {
        true => Fault::Hold,
        false => Fault::None,
    });
    let mut writer = target.create(name(1), bytes.len() as u64).unwrap();
    write_all(&mut *writer, &bytes[..2 * PART + PAGE], 4 * MIB).unwrap();
    let finished = writer.finish((2 * PART + PAGE) as u64);
    until("all three are sent", || proxy.held() == 3);
    proxy.let_go();
    finished.wait().unwrap();
    check(&target, 1, &bytes[..2 * PART + PAGE]);
}

/// Counts the uploads that the server knows.
fn uploads(server: &Server) -> usize {
    fn files(dir: &Path) -> usize {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries
            .map(|entry| match entry.path().is_dir() {
                true => files(&entry.path()),
                false => usize::from(entry.path().to_string_lossy().contains("multipart")),
            })
            .sum()
    }
    files(&server.bucket_dir())
}

#[test]
fn an_upload_that_is_given_up_leaves_nothing() {
    let Some(server) = Server::versitygw() else { return };
    let target = server.pool_url().target().unwrap();
    let mut writer = target.create(name(1), 8 * PART as u64).unwrap();
    write_all(&mut *writer, &content(1, 3 * PART), 4 * MIB).unwrap();
    until("the upload is named", || target.unfinished().unwrap() == [name(1)]);
    until("its parts are there", || uploads(&server) >= 3);
    drop(writer);
    until("its name is gone", || target.unfinished().unwrap().is_empty());
    assert_eq!(uploads(&server), 0);
    assert_eq!(target.list().unwrap(), []);
    put(&target, name(1), &content(2, 2 * PART)).unwrap();
    check(&target, 1, &content(2, 2 * PART));
    until("nothing is left", || uploads(&server) == 0);
}

#[test]
fn an_upload_whose_program_died_is_found_and_ended() {
    let Some(server) = Server::versitygw() else { return };
    let pool_url = server.pool_url();
    let target = pool_url.target().unwrap();
    let mut writer = target.create(name(1), 8 * PART as u64).unwrap();
    write_all(&mut *writer, &content(1, 3 * PART), 4 * MIB).unwrap();
    until("its parts are there", || uploads(&server) >= 3);
    let gc = pool_url.target().unwrap();
    assert_eq!(gc.unfinished().unwrap(), [name(1)]);
    gc.delete_unfinished(name(2)).unwrap();
    assert_eq!(gc.unfinished().unwrap(), [name(1)]);
    gc.delete_unfinished(name(1)).unwrap();
    gc.delete_unfinished(name(1)).unwrap();
    assert_eq!((gc.unfinished().unwrap(), uploads(&server)), (vec![], 0));
    // The writer was only slow, and tries to continue.
    let error = writer.finish(3 * PART as u64).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
    assert!(error.message().contains("ended before it was finished"), "{error}");
    assert_eq!(gc.list().unwrap(), []);
}

#[test]
fn a_finished_shard_stays_when_it_is_deleted_as_an_unfinished_one() {
    let Some(server) = Server::versitygw() else { return };
    let proxy = Proxy::before(server.address());
    let pool_url = url_at(proxy.address());
    let target = pool_url.target().unwrap();
    // The object that names the upload cannot be removed after the finish.
    proxy.spoil(|method, target| match method == "DELETE" && target.contains(".part/") {
        true => Fault::Refuse(400),
        false => Fault::None,
    });
    let bytes = content(3, 2 * PART);
    put(&target, name(1), &bytes).unwrap();
    assert_eq!(target.unfinished().unwrap(), [], "beside a finished shard it means nothing");
    proxy.spoil(|_, _| Fault::None);
    target.delete_unfinished(name(1)).unwrap();
    check(&target, 1, &bytes);
    target.delete(name(1)).unwrap();
    assert_eq!(target.list().unwrap(), []);
}

fn replace(target: &S3Target, pack: u32, bytes: &[u8]) -> Result<()> {
    let mut writer = target.replace(name(pack), bytes.len() as u64)?;
    write_all(&mut *writer, bytes, 4 * MIB)?;
    writer.finish(bytes.len() as u64).wait()
}

#[test]
fn a_long_shard_is_replaced_and_its_upload_is_found_meanwhile() {
    let Some(server) = Server::versitygw() else { return };
    let pool_url = server.pool_url();
    let (target, gc) = (pool_url.target().unwrap(), pool_url.target().unwrap());
    let (old, new) = (content(1, 3 * PART), content(2, 2 * PART + PAGE));
    put(&target, name(1), &old).unwrap();
    let begin = || {
        let mut writer = target.replace(name(1), 8 * PART as u64).unwrap();
        write_all(&mut *writer, &new, 4 * MIB).unwrap();
        until("its upload is found", || gc.unfinished().unwrap() == [name(1)]);
        until("its parts are there", || uploads(&server) >= 2);
        writer
    };
    // A gc ends the upload, since its program seems to have died.
    let writer = begin();
    gc.delete_unfinished(name(1)).unwrap();
    assert_eq!(gc.unfinished().unwrap(), []);
    let error = writer.finish(new.len() as u64).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
    check(&gc, 1, &old);
    drop(begin());
    until("it is given up", || gc.unfinished().unwrap().is_empty());
    check(&gc, 1, &old);
    begin().finish(new.len() as u64).wait().unwrap();
    assert_eq!(gc.unfinished().unwrap(), [], "its name is removed before the end");
    check(&gc, 1, &new);
    until("nothing is left", || uploads(&server) == 0);
}

/// After a lost reply or request, the shard is the old or the new one, and a second attempt
/// succeeds. It is never deleted, even if the server cannot be asked.
#[test]
fn a_shard_survives_a_replacement_of_which_nothing_is_known() {
    let Some(server) = Server::versitygw() else { return };
    let proxy = Proxy::before(server.address());
    let pool_url = url_at(proxy.address());
    let (target, reader) = (pool_url.target().unwrap(), pool_url.target().unwrap());
    for (pack, length) in [(1, PART / 2), (2, 2 * PART)] {
        let (old, new) = (content(1, length), content(2, length));
        put(&target, name(pack), &old).unwrap();
        for fault in [Fault::LoseReply, Fault::LoseRequest] {
            // After the request that ends the shard, reads fail and only deletions succeed.
            let mut is_gone = false;
            proxy.spoil(move |method, target| {
                let is_put = method == "PUT" && length < PART;
                let ends = is_put || method == "POST" && target.contains("uploadId=");
                let fault = match is_gone {
                    true if method == "DELETE" => Fault::None,
                    true => Fault::Refuse(400),
                    false if ends => fault,
                    false => Fault::None,
                };
                is_gone |= ends;
                fault
            });
            replace(&target, pack, &new).unwrap_err();
            proxy.spoil(|_, _| Fault::None);
            let is_new = get(&reader, name(pack), 0, length).unwrap() == new;
            check(&reader, pack, if is_new { &new } else { &old });
            assert_eq!(is_new, matches!(fault, Fault::LoseReply), "{pack}: {fault:?}");
            replace(&target, pack, &old).unwrap();
            check(&reader, pack, &old);
        }
    }
}

/// Counts the requests of each kind.
fn count(proxy: &Proxy) -> Arc<Mutex<BTreeMap<String, usize>>> {
    let counts: Arc<Mutex<BTreeMap<String, usize>>> = Arc::default();
    let counting = counts.clone();
    proxy.spoil(move |method, target| {
        let kind = ["partNumber", "uploadId", "uploads", ".part/", "list-type"]
            .into_iter()
            .find(|mark| target.contains(mark));
        let kind = format!("{method} {}", kind.unwrap_or("shard"));
        *counting.lock().unwrap().entry(kind).or_default() += 1;
        Fault::None
    });
    counts
}

#[test]
fn a_shard_of_one_part_is_one_put() {
    let Some(server) = Server::versitygw() else { return };
    let proxy = Proxy::before(server.address());
    let target = url_at(proxy.address()).target().unwrap();
    let counts = count(&proxy);
    let mut writer = target.create(name(1), 64 * MIB as u64).unwrap();
    write_all(&mut *writer, &content(1, MIB), 4 * MIB).unwrap();
    writer.finish(MIB as u64).wait().unwrap();
    let of = |kind: &str, times: usize| (kind.to_owned(), times);
    let expected = BTreeMap::from([of("GET shard", 1), of("PUT shard", 1)]);
    assert_eq!(*counts.lock().unwrap(), expected);
    // A shard of three parts: begun, named, three parts, completed, its name removed.
    put(&target, name(2), &content(2, 2 * PART + PAGE)).unwrap();
    let all = [
        of("DELETE .part/", 1),
        of("GET shard", 2),
        of("POST uploadId", 1),
        of("POST uploads", 1),
        of("PUT .part/", 1),
        of("PUT partNumber", 3),
        of("PUT shard", 1),
    ];
    until("the last request came", || *counts.lock().unwrap() == BTreeMap::from(all.clone()));
}

#[test]
fn writes_that_make_no_shard_are_refused() {
    let Some(server) = Server::versitygw() else { return };
    let target = server.pool_url().target().unwrap();
    let mut writer = target.create(name(1), 4 * PART as u64).unwrap();
    write_all(&mut *writer, &content(1, 2 * PART), 4 * MIB).unwrap();
    let again = writer.write(0, AlignedBuf::zeroed(PAGE).share()).wait().unwrap_err();
    assert_eq!(again.error.kind(), ErrorKind::Bug, "{}", again.error);
    drop(writer);
    let mut writer = target.create(name(1), 4 * PART as u64).unwrap();
    write_all(&mut *writer, &content(1, 2 * PART), 4 * MIB).unwrap();
    let error = writer.finish(PAGE as u64).wait().unwrap_err();
    assert!(error.message().contains("past its end"), "{error}");
    assert_eq!(target.list().unwrap(), []);
    until("nothing is left", || uploads(&server) == 0);
}

#[test]
fn a_whole_bucket_is_a_location_too() {
    let Some(server) = Server::versitygw() else { return };
    let pool_url = named_url(&format!("s3://{BUCKET}"), &server.url(), SECRET);
    let (target, medium) = (pool_url.target().unwrap(), pool_url.medium().unwrap());
    let bytes = content(1, 2 * PART);
    put(&target, name(1), &bytes).unwrap();
    check(&target, 1, &bytes);
    assert_eq!(target.list().unwrap(), [name(1)]);
    let job = JobName::new("a job").unwrap();
    assert_eq!(medium.put_new(&job, 1, b"one").unwrap(), Put::Made);
    assert_eq!((medium.jobs().unwrap(), medium.list(&job).unwrap()), (vec![job], vec![1]));
    let files = pool_url.files().unwrap();
    assert!(files.write_new("packs/.pool.toml", b"x").unwrap());
    assert_eq!(files.read("packs/.pool.toml").unwrap().as_deref(), Some(&b"x"[..]));
    assert_eq!(target.list().unwrap(), [name(1)], "other objects are none of ours");
}

/// A server lists a thousand names at a time.
#[test]
fn listings_are_complete() {
    const MANY: u32 = 2345;
    let Some(server) = Server::versitygw() else { return };
    let pool_url = named_url(&format!("s3://{BUCKET}/p"), &server.url(), SECRET);
    let dir = server.bucket_dir().join("p");
    let object = |path: String| {
        let path = dir.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, b"x").unwrap();
    };
    for number in 1..=MANY {
        object(format!("log/one/{number:016x}.record"));
        object(format!("log/job-{number}/{:016x}.record", 1));
        object(format!("packs/{:02x}/{}.shard", number % 256, name(number)));
    }
    let (target, medium) = (pool_url.target().unwrap(), pool_url.medium().unwrap());
    let numbers = medium.list(&JobName::new("one").unwrap()).unwrap();
    assert_eq!(numbers, (1..=u64::from(MANY)).collect::<Vec<_>>());
    assert_eq!(medium.jobs().unwrap().len(), MANY as usize + 1);
    assert_eq!(target.list().unwrap(), (1..=MANY).map(name).collect::<Vec<_>>());
}
