//! Checks of a target.
#![expect(clippy::disallowed_methods, reason = "a test that hangs ends")]

use super::{Make, run_all};
use crate::{ReadRange, ShardName, ShardWriter, Target, read_one};
use outlive_io::{AlignedBuf, Completions, SharedBuf, StagingPool, Ticket};
use outlive_types::{Error, ErrorKind, PackId, Result, Rng, SeededRng, SessionId};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

const PAGE: usize = 4096;

/// Checks that targets keep the guarantees of [`Target`]. `make` makes a new, empty one each time.
///
/// # Panics
/// With the guarantee that the target broke.
pub fn check_target(make: impl Fn() -> Arc<dyn Target> + 'static) {
    run_all(
        &[
            ("an empty target is empty", empty),
            ("a shard is invisible until finished", invisible_until_finished),
            ("a finished shard cannot be created again", never_changes),
            ("a finished shard is replaced at once", replaced),
            ("a shard that is not there is replaced as it is created", replaced_nothing),
            ("a replacement that ends early leaves the old shard", replacement_ends_early),
            ("a replacement is as unfinished as a new shard", replacement_unfinished),
            ("of two writers of one shard the last one counts", two_writers),
            ("writes may overlap and come in any order", any_order),
            ("an abandoned shard leaves nothing", abandoned),
            ("a failed write fails the finish, unless repeated", failed_write),
            ("a shard cannot be longer than its maximum", too_long),
            ("ranges past the end are damage", past_the_end),
            ("ranges of broken pages are refused", broken_ranges),
            ("deleted shards are gone", deleted),
            ("shards are listed in order", listed),
            ("names of any shards are synced", synced),
            ("buffers come home after writing", buffers_come_home),
            ("one buffer feeds several shards", shared_buffer),
            ("several reads fill one buffer", filled_together),
            ("a read goes on without its ticket", read_without_ticket),
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

/// Returns `pages` pages of bytes that depend on `seed`.
fn content(seed: u64, pages: usize) -> Vec<u8> {
    let mut bytes = vec![0; pages * PAGE];
    SeededRng::new(seed).fill(&mut bytes);
    bytes
}

fn buffer_of(bytes: &[u8]) -> SharedBuf {
    let mut buffer = AlignedBuf::zeroed(bytes.len());
    buffer.copy_from_slice(bytes);
    buffer.share()
}

fn zeros(length: usize) -> SharedBuf {
    AlignedBuf::zeroed(length).share()
}

fn write(writer: &mut dyn ShardWriter, offset: usize, bytes: &[u8]) {
    writer.write(offset as u64, buffer_of(bytes)).wait().expect("a write in order succeeds");
}

fn put(target: &dyn Target, shard: ShardName, bytes: &[u8]) {
    let mut writer = target.create(shard, bytes.len() as u64).expect("a new shard can be created");
    write(&mut *writer, 0, bytes);
    writer.finish(bytes.len() as u64).wait().expect("a whole shard can be finished");
}

fn range(offset: usize, length: usize) -> ReadRange {
    ReadRange::new(offset as u64, AlignedBuf::zeroed(length))
}

fn get(target: &dyn Target, shard: ShardName, offset: usize, length: usize) -> Result<Vec<u8>> {
    let mut tickets = target.read_ranges(shard, vec![range(offset, length)]);
    assert_eq!(tickets.len(), 1, "one ticket a range");
    let buffer = tickets.remove(0).wait().map_err(|fault| {
        assert_eq!(fault.buffer.len(), length, "a failed read hands its buffer back");
        fault.error
    })?;
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

fn replace(target: &dyn Target, shard: ShardName, bytes: &[u8]) -> Box<dyn ShardWriter> {
    let mut writer = target.replace(shard, 1 << 20).expect("a shard can be replaced");
    write(&mut *writer, 0, bytes);
    writer
}

fn finish(writer: Box<dyn ShardWriter>, bytes: &[u8]) -> Result<()> {
    writer.finish(bytes.len() as u64).wait()
}

fn replaced(make: &Make<dyn Target>) {
    let target = make();
    let (shard, other) = (name(1, 0), name(1, 1));
    let mut old = content(20, 3);
    put(&*target, shard, &old);
    put(&*target, other, &content(21, 2));
    // Shorter, longer, equally long.
    for (seed, pages) in [(22, 2), (23, 5), (24, 5)] {
        let new = content(seed, pages);
        check_content(&*target, shard, &old);
        let writer = replace(&*target, shard, &new);
        check_content(&*target, shard, &old);
        let refused = target.create(shard, PAGE as u64).err().expect("the old one is there");
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
        finish(writer, &new).expect("a refused creation does not disturb a replacement");
        check_content(&*target, shard, &new);
        assert_eq!(target.list().expect("listed"), [shard, other]);
        let refused = target.create(shard, PAGE as u64).err().expect("the new one is there");
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
        old = new;
    }
    check_content(&*target, other, &content(21, 2));
    target.delete(shard).expect("deleted");
    check_absent(&*target, shard);
}

fn replaced_nothing(make: &Make<dyn Target>) {
    let target = make();
    let (shard, bytes) = (name(1, 0), content(25, 2));
    let writer = replace(&*target, shard, &bytes);
    check_absent(&*target, shard);
    finish(writer, &bytes).expect("finished");
    check_content(&*target, shard, &bytes);
    drop(replace(&*target, name(2, 0), &bytes));
    check_absent(&*target, name(2, 0));
    assert_eq!(target.list().expect("listed"), [shard]);
}

fn replacement_ends_early(make: &Make<dyn Target>) {
    let target = make();
    let (shard, old, new) = (name(1, 0), content(26, 3), content(27, 4));
    put(&*target, shard, &old);
    drop(target.replace(shard, 1 << 20).expect("begun"));
    check_content(&*target, shard, &old);
    drop(replace(&*target, shard, &new));
    check_content(&*target, shard, &old);
    let mut writer = target.replace(shard, 1 << 20).expect("begun");
    let broken = writer.write(0, buffer_of(&new).slice(0..100)).wait();
    broken.expect_err("a write of a broken page is refused");
    finish(writer, &new).expect_err("a shard with a hole cannot be finished");
    check_content(&*target, shard, &old);
    let writer = replace(&*target, shard, &new);
    writer.finish(100).wait().expect_err("this length is impossible");
    check_content(&*target, shard, &old);
    finish(replace(&*target, shard, &new), &new).expect("what failed before changes nothing");
    check_content(&*target, shard, &new);
}

fn replacement_unfinished(make: &Make<dyn Target>) {
    let target = make();
    let unfinished = || target.unfinished().expect("unfinished shards can be listed");
    let (finished, new, bytes) = (name(1, 0), name(2, 0), content(28, 2));
    put(&*target, finished, &bytes);
    assert_eq!(unfinished(), []);
    let mut created = target.create(new, 1 << 20).expect("created");
    write(&mut *created, 0, &bytes);
    let shows = !unfinished().is_empty();
    assert_eq!(unfinished(), if shows { vec![new] } else { vec![] });
    drop(created);
    assert_eq!(unfinished(), []);
    let replacing = if shows { vec![finished] } else { vec![] };
    let writer = replace(&*target, finished, &bytes);
    assert_eq!(unfinished(), replacing);
    assert_eq!(target.list().expect("listed"), [finished]);
    finish(writer, &bytes).expect("finished");
    assert_eq!(unfinished(), []);
    drop(replace(&*target, finished, &bytes));
    assert_eq!(unfinished(), []);
    // Deleting the unfinished shard keeps the finished one.
    let other = content(29, 2);
    let writer = replace(&*target, finished, &other);
    target.delete_unfinished(finished).expect("deleted");
    assert_eq!(unfinished(), []);
    check_content(&*target, finished, &bytes);
    match finish(writer, &other) {
        Ok(()) => {
            assert!(!shows, "a shard was finished whose bytes were deleted");
            check_content(&*target, finished, &other);
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
            check_content(&*target, finished, &bytes);
        }
    }
    // A delete removes both.
    let writer = replace(&*target, finished, &bytes);
    target.delete(finished).expect("deleted");
    assert_eq!(unfinished(), []);
    check_absent(&*target, finished);
    drop(writer);
    check_absent(&*target, finished);
}

/// The first writer may fail, as the second has taken its place.
fn two_writers(make: &Make<dyn Target>) {
    let target = make();
    let (shard, old) = (name(1, 0), content(30, 3));
    put(&*target, shard, &old);
    let (one, two) = (content(31, 2), content(32, 4));
    let first = replace(&*target, shard, &one);
    let second = replace(&*target, shard, &two);
    match finish(first, &one) {
        Ok(()) => check_content(&*target, shard, &one),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
            check_content(&*target, shard, &old);
        }
    }
    finish(second, &two).expect("the second one was not disturbed");
    check_content(&*target, shard, &two);
    // The same for a new shard.
    let create = |bytes: &[u8]| {
        let mut writer = target.create(name(2, 0), 1 << 20).expect("created");
        write(&mut *writer, 0, bytes);
        writer
    };
    let (first, second) = (create(&one), create(&two));
    let is_first = match finish(first, &one) {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
            check_absent(&*target, name(2, 0));
            false
        }
    };
    match finish(second, &two) {
        Ok(()) => check_content(&*target, name(2, 0), &two),
        Err(error) => {
            assert_eq!((error.kind(), is_first), (ErrorKind::Invalid, true), "{error}");
            check_content(&*target, name(2, 0), &one);
        }
    }
}

/// Writes several containers and a short one backwards, and finishes before it waits for any
/// ticket.
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
            // Buffers are longer than the part that is written.
            let mut buffer = AlignedBuf::zeroed(CONTAINER + PAGE);
            let part = &bytes[offset..bytes.len().min(offset + CONTAINER)];
            buffer[..part.len()].copy_from_slice(part);
            buffer[part.len()..].fill(0xEE);
            writer.write(offset as u64, buffer.share().slice(0..part.len()))
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
        assert!(*got == bytes[offset..offset + length], "ranges come in the order asked");
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
    let in_flight = writer.write(0, zeros(64 * PAGE));
    drop(writer);
    check_absent(&*target, shard);
    let _ = in_flight.wait(); // whether it failed or not
    put(&*target, shard, &bytes);
    check_content(&*target, shard, &bytes);
}

fn failed_write(make: &Make<dyn Target>) {
    let target = make();
    let (shard, bytes) = (name(4, 0), content(5, 2));
    let refuse = |writer: &mut dyn ShardWriter| {
        for broken in [0..100, 100..100 + PAGE] {
            let fault = writer.write(0, buffer_of(&bytes).slice(broken.clone())).wait();
            let fault = fault.expect_err("a write of a broken page is refused");
            assert!(
                *fault.buffer == bytes[broken],
                "a failed write hands its bytes back unchanged"
            );
        }
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
    let fault = writer.write(PAGE as u64, zeros(2 * PAGE)).wait();
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
    for range in [range(100, PAGE), range(0, 100), range(0, PAGE + 100)] {
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

/// Only a power cut shows the effect of a sync. But a sync must accept any shard.
fn synced(make: &Make<dyn Target>) {
    let target = make();
    let (shard, missing) = (name(1, 0), name(2, 0));
    target.sync(&[missing]).unwrap();
    put(&*target, shard, &content(7, 2));
    target.sync(&[shard, missing]).unwrap();
    target.sync(&[]).unwrap();
    check_content(&*target, shard, &content(7, 2));
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
            writer.write((page * PAGE) as u64, buffer.share())
        })
        .collect();
    writer.finish((pages * PAGE) as u64).wait().expect("finished");
    assert!(tickets.into_iter().all(|ticket| ticket.wait().is_ok()));
    let got = get(&*target, shard, 0, pages * PAGE).expect("read");
    assert!(got.chunks(PAGE).zip(1..).all(|(page, byte)| page.iter().all(|b| *b == byte)));
}

/// A mirror, or the stripes of one container: the writers copy no bytes.
fn shared_buffer(make: &Make<dyn Target>) {
    let (one, other) = (make(), make());
    let pool = StagingPool::new(4 * PAGE, 4 * PAGE);
    let bytes = content(14, 4);
    let mut buffer = pool.take();
    buffer.copy_from_slice(&bytes);
    let buffer = buffer.share();
    let begin =
        |target: &dyn Target, shard| target.create(shard, 4 * PAGE as u64).expect("created");
    let mut mirrors =
        [begin(&*one, name(1, 0)), begin(&*one, name(1, 1)), begin(&*other, name(1, 0))];
    let mut stripes = [begin(&*one, name(2, 0)), begin(&*other, name(2, 1))];
    let mut tickets: Vec<_> =
        mirrors.iter_mut().map(|mirror| mirror.write(0, buffer.clone())).collect();
    for (page, at) in (0..4).map(|page| (page, page * PAGE)) {
        let stripe = &mut stripes[page % 2];
        tickets.push(stripe.write((page / 2 * PAGE) as u64, buffer.slice(at..at + PAGE)));
    }
    drop(buffer);
    assert!(tickets.into_iter().all(|ticket| ticket.wait().is_ok()));
    assert!(pool.try_take().is_some(), "the buffer goes home once all is written");
    mirrors.into_iter().for_each(|mirror| mirror.finish(4 * PAGE as u64).wait().expect("finished"));
    stripes.into_iter().for_each(|stripe| stripe.finish(2 * PAGE as u64).wait().expect("finished"));
    for (target, shard) in [(&one, name(1, 0)), (&one, name(1, 1)), (&other, name(1, 0))] {
        check_content(&**target, shard, &bytes);
    }
    let pages =
        |first: usize| [&bytes[first * PAGE..][..PAGE], &bytes[(first + 2) * PAGE..][..PAGE]];
    check_content(&*one, name(2, 0), &pages(0).concat());
    check_content(&*other, name(2, 1), &pages(1).concat());
}

/// Reads stripes of two shards into the parts of one buffer; one shard lacks a piece.
fn filled_together(make: &Make<dyn Target>) {
    let target = make();
    let bytes = content(15, 6);
    put(&*target, name(1, 0), &bytes[..3 * PAGE]);
    put(&*target, name(1, 1), &bytes[3 * PAGE..]);
    let mut first = AlignedBuf::zeroed(6 * PAGE);
    let mut parts: Vec<_> = (1..6).rev().map(|page| first.split_off(page * PAGE)).collect();
    parts.push(first);
    parts.reverse();
    let mut queue = Completions::new();
    for (page, buffer) in parts.into_iter().enumerate() {
        // The fifth page is requested from the shard that lacks it.
        let (shard, at) = if page == 4 { (0, 4) } else { (page / 3, page % 3) };
        let range = ReadRange::new((at * PAGE) as u64, buffer);
        queue.push(page, read_one(&*target, name(1, shard as u8), range));
    }
    let mut pages: Vec<Option<AlignedBuf>> = (0..6).map(|_| None).collect();
    while let Some((page, read)) = queue.wait_next() {
        pages[page] = Some(read.unwrap_or_else(|fault| {
            assert_eq!((page, fault.error.kind()), (4, ErrorKind::Damaged), "{}", fault.error);
            let range = ReadRange::new(PAGE as u64, fault.buffer);
            read_one(&*target, name(1, 1), range).wait().expect("it is there")
        }));
    }
    let whole =
        pages.into_iter().flatten().reduce(|all, next| all.unsplit(next).expect("its part"));
    assert!(*whole.expect("all came") == bytes[..]);
}

/// The buffer of a dropped read returns to its pool, so a rival read of the same bytes need not
/// wait.
fn read_without_ticket(make: &Make<dyn Target>) {
    let target = make();
    let bytes = content(16, 64);
    put(&*target, name(1, 0), &bytes);
    let pool = StagingPool::new(2 * 64 * PAGE, 64 * PAGE);
    let read = |buffer| read_one(&*target, name(1, 0), ReadRange::new(0, buffer));
    let mut raced = Completions::new();
    let late = read(pool.take());
    raced.push("first", read(pool.take()));
    drop(late);
    let buffer = pool.take_timeout(Duration::from_secs(300)).expect("dropped reads end");
    raced.push("second", read(buffer));
    let (_, first) = raced.wait_next().expect("two are under way");
    assert!(*first.expect("read") == bytes[..]);
    drop(raced);
    let all = [(); 2].map(|()| pool.take_timeout(Duration::from_secs(300)));
    assert!(all.iter().all(Option::is_some), "buffers come home");
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
