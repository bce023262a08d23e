//! Checks of a target.

use super::{Make, run_all};
use crate::{ReadRange, ShardName, ShardWriter, Target};
use outlive_io::{AlignedBuf, StagingPool, Ticket};
use outlive_types::{Error, ErrorKind, PackId, Result, Rng, SeededRng, SessionId};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

const PAGE: usize = 4096;

/// Checks that targets keep the guarantees of [`Target`]. `make` gives a new, empty one each time.
///
/// # Panics
/// With what the target did wrong.
pub fn check_target(make: impl Fn() -> Arc<dyn Target> + 'static) {
    run_all(
        &[
            ("an empty target is empty", empty),
            ("a shard is invisible until finished", invisible_until_finished),
            ("a finished shard never changes", never_changes),
            ("writes may overlap and come in any order", any_order),
            ("an abandoned shard leaves nothing", abandoned),
            ("a failed write fails the finish, unless repeated", failed_write),
            ("a shard cannot be longer than its maximum", too_long),
            ("ranges past the end are damage", past_the_end),
            ("ranges of broken pages are refused", broken_ranges),
            ("deleted shards are gone", deleted),
            ("shards are listed in order", listed),
            ("buffers come home after writing", buffers_come_home),
            ("threads do not disturb each other", threads),
            ("a finish goes on without its ticket", finish_without_ticket),
            ("capacity adds up", capacity),
        ],
        &make,
    );
}

fn name(pack: u32, shard: u8) -> ShardName {
    ShardName { pack: PackId::new(SessionId([0xC0; 12]), 0, pack), shard }
}

/// `pages` pages of bytes that nothing else has.
fn content(seed: u64, pages: usize) -> Vec<u8> {
    let mut bytes = vec![0; pages * PAGE];
    SeededRng::new(seed).fill(&mut bytes);
    bytes
}

fn buffer_of(bytes: &[u8]) -> AlignedBuf {
    let mut buffer = AlignedBuf::zeroed(bytes.len());
    buffer.copy_from_slice(bytes);
    buffer
}

fn write(writer: &mut dyn ShardWriter, offset: usize, bytes: &[u8]) {
    let ticket = writer.write(offset as u64, bytes.len(), buffer_of(bytes));
    ticket.wait().expect("a write in order succeeds");
}

fn put(target: &dyn Target, shard: ShardName, bytes: &[u8]) {
    let mut writer = target.create(shard, bytes.len() as u64).expect("a new shard can be created");
    write(&mut *writer, 0, bytes);
    writer.finish(bytes.len() as u64).wait().expect("a whole shard can be finished");
}

fn range(offset: usize, length: usize) -> ReadRange {
    ReadRange { offset: offset as u64, length, buffer: AlignedBuf::zeroed(length) }
}

fn get(target: &dyn Target, shard: ShardName, offset: usize, length: usize) -> Result<Vec<u8>> {
    let mut tickets = target.read_ranges(shard, vec![range(offset, length)]);
    assert_eq!(tickets.len(), 1, "one ticket a range");
    let buffer = tickets.remove(0).wait()?;
    assert_eq!(buffer.len(), length, "the buffer comes back as it was given");
    Ok(buffer.to_vec())
}

fn check_content(target: &dyn Target, shard: ShardName, bytes: &[u8]) {
    assert_eq!(target.length(shard).expect("a finished shard has a length"), bytes.len() as u64);
    let got = get(target, shard, 0, bytes.len()).expect("a finished shard can be read");
    assert!(got == bytes, "the shard's bytes are not those that were written");
}

fn check_absent(target: &dyn Target, shard: ShardName) {
    let damaged = |error: Error| {
        assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
        let text = error.message();
        assert!(text.contains(&shard.to_string()), "the message does not name the shard: {text}");
    };
    damaged(target.length(shard).expect_err("a shard that is not there has no length"));
    damaged(get(target, shard, 0, PAGE).expect_err("a shard that is not there cannot be read"));
    assert!(!target.list().expect("listing works").contains(&shard));
}

fn empty(make: &Make<dyn Target>) {
    let target = make();
    assert_eq!(target.list().expect("an empty target can be listed"), []);
    check_absent(&*target, name(1, 0));
    target.delete(name(1, 0)).expect("deleting nothing is no error");
    assert!(target.read_ranges(name(1, 0), Vec::new()).is_empty());
    assert!(!target.describe().is_empty());
}

fn invisible_until_finished(make: &Make<dyn Target>) {
    let target = make();
    let (shard, bytes) = (name(7, 2), content(1, 3));
    let mut writer = target.create(shard, 16 * PAGE as u64).expect("created");
    check_absent(&*target, shard);
    write(&mut *writer, 0, &bytes);
    check_absent(&*target, shard);
    writer.finish(bytes.len() as u64).wait().expect("finished");
    check_content(&*target, shard, &bytes);
    assert_eq!(target.list().expect("listed"), [shard]);
}

fn never_changes(make: &Make<dyn Target>) {
    let target = make();
    let (shard, bytes) = (name(1, 0), content(2, 4));
    put(&*target, shard, &bytes);
    let again = target.create(shard, PAGE as u64).err().expect("a shard is created once");
    assert_eq!(again.kind(), ErrorKind::Invalid, "{again}");
    check_content(&*target, shard, &bytes);
}

/// Several containers and a short one, written backwards, finished before any ticket was waited
/// for.
fn any_order(make: &Make<dyn Target>) {
    const CONTAINER: usize = 1 << 20;
    let target = make();
    let (shard, bytes) = (name(9, 0), content(3, 5 * CONTAINER / PAGE + 3));
    let mut writer = target.create(shard, 64 << 20).expect("created");
    let mut offsets: Vec<usize> = (0..bytes.len()).step_by(CONTAINER).collect();
    offsets.rotate_left(2);
    offsets.reverse();
    let tickets: Vec<_> = offsets
        .into_iter()
        .map(|offset| {
            // Buffers are longer than what is written of them.
            let mut buffer = AlignedBuf::zeroed(CONTAINER + PAGE);
            let part = &bytes[offset..bytes.len().min(offset + CONTAINER)];
            buffer[..part.len()].copy_from_slice(part);
            buffer[part.len()..].fill(0xEE);
            writer.write(offset as u64, part.len(), buffer)
        })
        .collect();
    writer.finish(bytes.len() as u64).wait().expect("finished after its writes");
    assert!(tickets.into_iter().all(|ticket| ticket.wait().is_ok()));
    check_content(&*target, shard, &bytes);

    let places = [(CONTAINER - PAGE, 2 * PAGE), (0, PAGE), (5 * CONTAINER, 3 * PAGE), (0, 0)];
    let tickets = target.read_ranges(shard, places.iter().map(|(at, n)| range(*at, *n)).collect());
    assert_eq!(tickets.len(), places.len(), "one ticket a range");
    for ((offset, length), ticket) in places.into_iter().zip(tickets) {
        let got = ticket.wait().expect("a range within the shard can be read");
        assert!(got[..length] == bytes[offset..offset + length], "ranges come in the order asked");
    }
}

fn abandoned(make: &Make<dyn Target>) {
    let target = make();
    let (shard, bytes) = (name(3, 1), content(4, 2));
    drop(target.create(shard, 1 << 20).expect("created"));
    let mut writer = target.create(shard, 1 << 20).expect("an abandoned name is free");
    write(&mut *writer, 0, &bytes);
    drop(writer);
    check_absent(&*target, shard);
    let mut writer = target.create(shard, 1 << 20).expect("an abandoned name is free");
    let in_flight = writer.write(0, 64 * PAGE, AlignedBuf::zeroed(64 * PAGE));
    drop(writer);
    check_absent(&*target, shard);
    let _ = in_flight.wait(); // whatever became of it
    put(&*target, shard, &bytes);
    check_content(&*target, shard, &bytes);
}

fn failed_write(make: &Make<dyn Target>) {
    let target = make();
    let (shard, bytes) = (name(4, 0), content(5, 2));
    let refuse = |writer: &mut dyn ShardWriter| {
        let fault = writer.write(0, 100, buffer_of(&bytes)).wait();
        let fault = fault.expect_err("a write of a broken page is refused");
        assert!(*fault.buffer == bytes[..], "a failed write hands its buffer back unchanged");
    };
    let mut writer = target.create(shard, 1 << 20).expect("created");
    refuse(&mut *writer);
    writer.finish(PAGE as u64).wait().expect_err("a shard with a hole cannot be finished");
    check_absent(&*target, shard);

    let mut writer = target.create(shard, 1 << 20).expect("created");
    refuse(&mut *writer);
    write(&mut *writer, 0, &bytes);
    writer.finish(bytes.len() as u64).wait().expect("the repeated write made the shard whole");
    check_content(&*target, shard, &bytes);
}

fn too_long(make: &Make<dyn Target>) {
    let target = make();
    let shard = name(5, 0);
    let mut writer = target.create(shard, 2 * PAGE as u64).expect("created");
    let fault = writer.write(PAGE as u64, 2 * PAGE, AlignedBuf::zeroed(2 * PAGE)).wait();
    fault.expect_err("a write past the maximum is refused");
    drop(writer);
    for length in [3 * PAGE as u64, 100, u64::MAX] {
        let mut writer = target.create(shard, 2 * PAGE as u64).expect("created");
        write(&mut *writer, 0, &content(6, 1));
        writer.finish(length).wait().expect_err("this length is impossible");
        check_absent(&*target, shard);
    }
}

fn past_the_end(make: &Make<dyn Target>) {
    let target = make();
    let (shard, bytes) = (name(6, 0), content(7, 4));
    put(&*target, shard, &bytes);
    for (offset, length) in [(3, 2), (4, 1), (0, 5), (1 << 20, 1)] {
        let error = get(&*target, shard, offset * PAGE, length * PAGE)
            .expect_err("a range past the end cannot be read");
        assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
        assert!(error.message().contains(&shard.to_string()), "{error}");
    }
    let last = get(&*target, shard, 3 * PAGE, PAGE).expect("the last page is not past the end");
    assert!(last == bytes[3 * PAGE..]);
}

fn broken_ranges(make: &Make<dyn Target>) {
    let target = make();
    let shard = name(6, 0);
    put(&*target, shard, &content(8, 4));
    let long = ReadRange { offset: 0, length: 2 * PAGE, buffer: AlignedBuf::zeroed(PAGE) };
    for range in [range(100, PAGE), range(0, 100), long] {
        for ticket in target.read_ranges(shard, vec![range]) {
            ticket.wait().expect_err("a range that is not made of whole pages is refused");
        }
    }
}

fn deleted(make: &Make<dyn Target>) {
    let target = make();
    let (kept, gone) = (name(1, 0), name(1, 1));
    put(&*target, kept, &content(9, 2));
    put(&*target, gone, &content(10, 2));
    check_content(&*target, gone, &content(10, 2));
    target.delete(gone).expect("deleted");
    check_absent(&*target, gone);
    target.delete(gone).expect("deleting it again is no error");
    check_content(&*target, kept, &content(9, 2));
    put(&*target, gone, &content(11, 3));
    check_content(&*target, gone, &content(11, 3));
}

fn listed(make: &Make<dyn Target>) {
    let target = make();
    let mut shards: Vec<_> =
        (0..40).map(|n: u32| name(n.wrapping_mul(0x9E37_79B9), (n % 7 * 40) as u8)).collect();
    for shard in &shards {
        put(&*target, *shard, &content(12, 1));
    }
    shards.sort_unstable();
    assert_eq!(target.list().expect("listed"), shards);
}

fn buffers_come_home(make: &Make<dyn Target>) {
    let target = make();
    let pool = StagingPool::new(2 * PAGE, PAGE);
    let (shard, pages) = (name(8, 0), 20);
    let mut writer = target.create(shard, 1 << 20).expect("created");
    let tickets: Vec<_> = (0..pages)
        .map(|page| {
            let taken = pool.take_timeout(Duration::from_secs(300));
            let mut buffer = taken.expect("buffers come home though no ticket is waited for");
            buffer.fill(page as u8 + 1);
            writer.write((page * PAGE) as u64, PAGE, buffer)
        })
        .collect();
    writer.finish((pages * PAGE) as u64).wait().expect("finished");
    assert!(tickets.into_iter().all(|ticket| ticket.wait().is_ok()));
    let got = get(&*target, shard, 0, pages * PAGE).expect("read");
    assert!(got.chunks(PAGE).zip(1..).all(|(page, byte)| page.iter().all(|b| *b == byte)));
}

fn threads(make: &Make<dyn Target>) {
    let target = make();
    thread::scope(|scope| {
        for thread in 0..4 {
            let target = &target;
            scope.spawn(move || {
                for round in 0..5 {
                    let seed = u64::from(thread * 5 + round);
                    let (shard, bytes) = (name(thread * 5 + round, 0), content(seed, 9));
                    put(&**target, shard, &bytes);
                    check_content(&**target, shard, &bytes);
                }
            });
        }
    });
    assert_eq!(target.list().expect("listed").len(), 20);
}

fn finish_without_ticket(make: &Make<dyn Target>) {
    let target = make();
    let (shard, bytes) = (name(2, 0), content(13, 2));
    let mut writer = target.create(shard, 1 << 20).expect("created");
    write(&mut *writer, 0, &bytes);
    let ticket: Ticket<Result<()>> = writer.finish(bytes.len() as u64);
    drop(ticket);
    let until = Instant::now() + Duration::from_secs(300);
    while target.length(shard).is_err() {
        assert!(Instant::now() < until, "the finish was given up with its ticket");
        thread::sleep(Duration::from_millis(1));
    }
    check_content(&*target, shard, &bytes);
}

fn capacity(make: &Make<dyn Target>) {
    let capacity = make().capacity().expect("an empty target knows its capacity");
    assert!(capacity.free_bytes <= capacity.total_bytes, "{capacity:?}");
    assert!(capacity.free_bytes > 0, "no room to test in: {capacity:?}");
}
