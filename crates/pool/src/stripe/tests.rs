//! Packs over targets that fail: whatever is lost within the pool's redundancy, reads return the
//! written data, and a repair makes the pack whole.
#![expect(clippy::disallowed_methods, reason = "what is read first is looked at, too")]

use crate::{Container, Environment, FormatConfig, PackWriter, Pool, PoolConfig, Redundancy};
use crate::{PackExtent, Span, Tuning};
use outlive_backend::{
    Capacity, Fault, FaultWorld, ReadRange, ReadTicket, ShardName, ShardWriter, Target,
};
use outlive_format::{EntryKind, fingerprint};
use outlive_io::{AlignedBuf, Ticket};
use outlive_log::MemoryLog;
use outlive_types::{Error, ErrorKind, PackId, Result, Rng, SeededRng, SessionId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

mod silent;

const CONTAINER: usize = 64 << 10;

/// A pool over worlds that fail, one for each target.
struct Fixture {
    worlds: Vec<FaultWorld>,
    pool: Pool,
}

fn fixture(targets: usize, redundancy: Redundancy) -> Fixture {
    let worlds: Vec<FaultWorld> = (0..targets).map(|_| FaultWorld::new()).collect();
    let pool = pool_over(&worlds, redundancy);
    Fixture { worlds, pool }
}

fn pool_over(worlds: &[FaultWorld], redundancy: Redundancy) -> Pool {
    pool_around(worlds, redundancy, false)
}

fn pool_around(worlds: &[FaultWorld], redundancy: Redundancy, reads_around: bool) -> Pool {
    pool_of(worlds.iter().map(|world| world.target()).collect(), redundancy, reads_around)
}

fn pool_of(targets: Vec<Arc<dyn Target>>, redundancy: Redundancy, reads_around: bool) -> Pool {
    let format = FormatConfig {
        container_bytes: CONTAINER as u64,
        pack_bytes: 4 * CONTAINER as u64,
        ..FormatConfig::new([7; 16])
    };
    let tuning = Tuning { reads_around, ..Tuning::default() };
    let config = PoolConfig { redundancy, ..PoolConfig::new(format, tuning) };
    config.redundancy.check(CONTAINER as u64).unwrap();
    Pool::over(config, targets, Arc::new(MemoryLog::new()), Environment::system())
}

fn pack(number: u32) -> PackId {
    PackId::new(SessionId([5; 12]), 0, number)
}

/// Writes a pack of these chunks, and returns where they are.
fn write(pool: &Pool, pack: PackId, chunks: &[Vec<u8>]) -> Result<Vec<PackExtent>> {
    let mut writer = PackWriter::new(pool, pack, 4 * CONTAINER as u64)?;
    let mut places = Vec::new();
    for chunk in chunks {
        if writer.needs_buffer(chunk.len()) {
            // The old contents of the buffer must not get out.
            let mut buffer = AlignedBuf::zeroed(CONTAINER);
            buffer.fill(0xee);
            writer.open(Container::new(buffer))?;
        }
        places.push(writer.append(chunk, fingerprint(chunk), EntryKind::Chunk)?);
    }
    writer.finish()?.wait()?;
    Ok(places)
}

fn chunks(seed: u64, bytes: usize) -> Vec<Vec<u8>> {
    let rng = SeededRng::new(seed);
    let mut chunks = Vec::new();
    let mut left = bytes;
    while left > 0 {
        let mut word = [0; 8];
        rng.fill(&mut word);
        let length = (1 + u64::from_le_bytes(word) as usize % 20_000).min(left);
        let mut chunk = vec![0; length];
        rng.fill(&mut chunk);
        chunks.push(chunk);
        left -= length;
    }
    chunks
}

fn check(pool: &Pool, places: &[PackExtent], chunks: &[Vec<u8>], what: &str) {
    for (place, chunk) in places.iter().zip(chunks) {
        let span = Span { pack: place.pack, offset: place.offset, length: place.length };
        let read = pool.read(span, AlignedBuf::zeroed(CONTAINER)).wait();
        assert_eq!(&read.unwrap_or_else(|e| panic!("{what}: {e}"))[..], &chunk[..], "{what}");
    }
    let (directory, _) = pool.directory_of(places[0].pack).unwrap();
    assert_eq!(directory.entries.len(), chunks.len(), "{what}");
}

fn rules() -> Vec<(usize, Redundancy)> {
    vec![
        (2, Redundancy::mirror(2)),
        (4, Redundancy::mirror(3)),
        (3, Redundancy::erasure(2, 1)),
        (6, Redundancy::erasure(4, 2)),
        (8, Redundancy::erasure(3, 2)),
    ]
}

/// Returns all sets of at most `m` of `n` things.
fn losses(n: usize, m: usize) -> Vec<Vec<usize>> {
    (0u32..1 << n)
        .filter(|set| set.count_ones() as usize <= m)
        .map(|set| (0..n).filter(|i| set >> i & 1 == 1).collect())
        .collect()
}

#[test]
fn any_m_targets_may_be_lost_and_repair_makes_all_whole() {
    for (targets, rule) in rules() {
        let Fixture { worlds, pool } = fixture(targets, rule.clone());
        let m = rule.survives();
        let mut written = Vec::new();
        for (number, bytes) in
            [1, 4096, 5000, CONTAINER, CONTAINER + 1, 3 * CONTAINER + 9000].into_iter().enumerate()
        {
            let chunks = chunks(number as u64, bytes);
            let places = write(&pool, pack(number as u32), &chunks).unwrap();
            written.push((places, chunks));
        }
        for lost in losses(targets, m) {
            let what = format!("{rule:?}, without {lost:?}");
            // New disks in the place of those that were lost.
            let mut left = worlds.clone();
            for target in &lost {
                left[*target] = FaultWorld::new();
            }
            let reader = pool_over(&left, rule.clone());
            for (places, chunks) in &written {
                check(&reader, places, chunks, &what);
            }
            for (places, _) in &written {
                let pack = places[0].pack;
                let before = reader.check_pack(pack, &mut |_, _, _| Ok(())).unwrap();
                let repair = reader.mend_pack(pack, true, &[]).unwrap();
                assert_eq!((repair.shards, repair.missing), (before.faults.len(), 0), "{what}");
                let after = reader.check_pack(pack, &mut |_, _, _| Ok(())).unwrap();
                assert_eq!(after.faults, [], "{what}");
                assert_eq!(reader.mend_pack(pack, true, &[]).unwrap(), Default::default());
            }
            // The repaired shards equal the lost ones, to the byte.
            for (shard, member) in pool.targets().list().unwrap() {
                let read = |pool: &Pool, member: usize| {
                    let target = pool.targets().members()[member].target().clone();
                    let bytes = target.length(shard).unwrap() as usize;
                    let range = ReadRange::new(0, AlignedBuf::zeroed(bytes));
                    outlive_backend::read_one(&*target, shard, range).wait().unwrap().to_vec()
                };
                let now = reader.targets().find(shard).unwrap();
                assert_eq!(read(&pool, member), read(&reader, now), "{what}: {shard}");
            }
        }
        // One more loss, and the pack is gone for good; but that is damage only if all targets are
        // there.
        if let Some(one) = losses(targets, m + 1).into_iter().find(|lost| {
            let lost_shards = |pack| {
                (0..targets)
                    .filter(|n| {
                        let has =
                            |s| worlds[*n].target().length(ShardName { pack, shard: s }).is_ok();
                        lost.contains(n) && (0..10).any(has)
                    })
                    .count()
            };
            lost_shards(pack(3)) > m
        }) {
            let mut left = worlds.clone();
            for target in &one {
                left[*target] = FaultWorld::new();
            }
            let reader = pool_over(&left, rule.clone());
            let span = Span { pack: pack(3), offset: 0, length: CONTAINER as u32 };
            let error = reader.read(span, AlignedBuf::zeroed(CONTAINER)).wait().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Damaged, "{rule:?}: {error}");
            let error = reader.mend_pack(pack(3), true, &[]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Damaged, "{rule:?}: {error}");
        }
    }
}

/// Bits that flip in up to m shards of a pack, wherever, are noticed and repaired, even if each
/// container has another damaged fragment.
#[test]
fn damaged_fragments_are_made_from_the_others() {
    for (targets, rule) in rules() {
        let Fixture { worlds, pool } = fixture(targets, rule.clone());
        let chunks = chunks(1, 3 * CONTAINER + 9000);
        let places = write(&pool, pack(1), &chunks).unwrap();
        let shards = pool.shards_of(pack(1));
        let world_of = |shard: ShardName| &worlds[pool.targets().find(shard).unwrap()];
        let length = pool.targets().length(shards[0]).unwrap();
        for (damaged, offset) in [(0, 4096 + 7), (1, 0), (0, length - 1), (1, 4096 + 20_000)] {
            world_of(shards[damaged]).corrupt(shards[damaged], offset.min(length - 1), 1);
            let found = pool.check_pack(pack(1), &mut |_, _, _| Ok(())).unwrap();
            assert_eq!(found.faults.len(), 1, "{rule:?} {offset}: {:?}", found.faults);
            assert_eq!(found.faults[0].shard, damaged as u8);
            let repair = pool.mend_pack(pack(1), true, &found.faults).unwrap();
            assert_eq!((repair.shards, repair.missing), (1, 0));
            let after = pool.check_pack(pack(1), &mut |_, _, _| Ok(())).unwrap();
            assert_eq!(after.faults, [], "{rule:?} {offset}");
            check(&pool, &places, &chunks, "repaired");
        }
        // Every shard is damaged, but in no container more than one.
        if shards.len() >= 4 {
            let fragment = pool.config().geometry().fragment_bytes(CONTAINER as u64);
            for (number, shard) in shards.iter().take(4).enumerate() {
                let at = 4096 + number as u64 * fragment + 3;
                world_of(*shard).corrupt(*shard, at.min(length - 9000), 1);
            }
            let found = pool.check_pack(pack(1), &mut |_, _, _| Ok(())).unwrap();
            assert_eq!(found.faults.len(), 4, "{rule:?}");
            let repair = pool.mend_pack(pack(1), true, &found.faults).unwrap();
            assert_eq!((repair.shards, repair.missing), (4, 0), "{rule:?}");
            let after = pool.check_pack(pack(1), &mut |_, _, _| Ok(())).unwrap();
            assert_eq!(after.faults, [], "{rule:?}");
            check(&pool, &places, &chunks, "repaired");
        }
    }
}

#[test]
fn a_save_goes_on_without_a_target_that_fails_at_any_moment() {
    for (targets, rule) in rules() {
        for full in [false, true] {
            let writes = if full { crate::Writes::Full } else { crate::Writes::Degraded };
            let rule = Redundancy { writes, ..rule.clone() };
            for step in 0.. {
                let Fixture { worlds, pool } = fixture(targets, rule.clone());
                let chunks = chunks(step, CONTAINER + 9000);
                let before = worlds[0].ops();
                worlds[0].fail_when(move |op, _| (op >= before + step).then_some(ErrorKind::Retry));
                let outcome = write(&pool, pack(1), &chunks);
                let is_over = worlds[0].ops() <= before + step;
                match outcome {
                    Ok(places) => check(&pool, &places, &chunks, &format!("{rule:?} {step}")),
                    Err(error) => {
                        assert!(full, "{rule:?} {step}: {error}");
                        assert_eq!(error.kind(), ErrorKind::Retry);
                    }
                }
                if is_over {
                    break;
                }
            }
        }
    }
}

/// A slow target is read only if the others are not enough; then it is.
#[test]
fn a_slow_target_is_gone_around_unless_it_is_needed() {
    for (targets, rule) in rules() {
        let Fixture { worlds, pool } = fixture(targets, rule.clone());
        let chunks = chunks(1, 2 * CONTAINER + 9000);
        let places = write(&pool, pack(1), &chunks).unwrap();
        for slow in 0..targets {
            for lost in losses(targets, rule.survives()) {
                let mut left = worlds.clone();
                for target in &lost {
                    left[*target] = FaultWorld::new();
                }
                let reader = pool_around(&left, rule.clone(), true);
                for (number, member) in reader.targets().members().iter().enumerate() {
                    member.set_read_us(if number == slow { 10_000_000 } else { 100 });
                }
                let what = format!("{rule:?}, {slow} is slow, without {lost:?}");
                check(&reader, &places, &chunks, &what);
            }
        }
    }
}

/// Behaviour of a target that is read.
const ANSWERS: u8 = 0;
const KEEPS_SILENT: u8 = 1;
const HAS_NOTHING: u8 = 2;
/// The next read has a wrong bit, and those after it are right; one more for each read before it.
const ERRS_ONCE: u8 = 3;

/// A target that may stop answering, like a mount whose server is gone.
#[derive(Debug)]
struct Moody(Arc<dyn Target>, AtomicU8);

impl Moody {
    fn missing(&self) -> Error {
        Error::damaged("it has nothing")
    }

    fn is_empty(&self) -> bool {
        self.1.load(Ordering::Relaxed) == HAS_NOTHING
    }

    fn errs_later(&self, shard: ShardName, range: ReadRange) -> ReadTicket {
        let read = self.0.read_ranges(shard, vec![range]).remove(0).wait();
        let mood = self.1.load(Ordering::Relaxed);
        let then = if mood == ERRS_ONCE { ANSWERS } else { mood.saturating_sub(1) };
        self.1.store(then, Ordering::Relaxed);
        Ticket::done(read.map(|mut bytes| {
            if mood == ERRS_ONCE {
                bytes[0] ^= 1;
            }
            bytes
        }))
    }
}

impl Target for Moody {
    fn describe(&self) -> String {
        self.0.describe()
    }

    fn create(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>> {
        self.0.create(shard, bytes_max)
    }

    fn replace(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>> {
        self.0.replace(shard, bytes_max)
    }

    fn read_ranges(&self, shard: ShardName, ranges: Vec<ReadRange>) -> Vec<ReadTicket> {
        match self.1.load(Ordering::Relaxed) {
            ANSWERS => self.0.read_ranges(shard, ranges),
            ERRS_ONCE.. => ranges.into_iter().map(|range| self.errs_later(shard, range)).collect(),
            KEEPS_SILENT => ranges
                .into_iter()
                .map(|_| {
                    let (promise, ticket) = Ticket::pair();
                    std::mem::forget(promise);
                    ticket
                })
                .collect(),
            _ => ranges
                .into_iter()
                .map(|range| {
                    Ticket::done(Err(Fault { error: self.missing(), buffer: range.buffer }))
                })
                .collect(),
        }
    }

    fn length(&self, shard: ShardName) -> Result<u64> {
        if self.is_empty() { Err(self.missing()) } else { self.0.length(shard) }
    }

    fn list(&self) -> Result<Vec<ShardName>> {
        if self.is_empty() { Ok(Vec::new()) } else { self.0.list() }
    }

    fn delete(&self, shard: ShardName) -> Result<()> {
        self.0.delete(shard)
    }

    fn capacity(&self) -> Result<Capacity> {
        self.0.capacity()
    }
}

/// One target never answers, and others have nothing: the rest is enough, and is read.
#[test]
fn a_target_that_never_answers_is_gone_around() {
    let rules = [
        (2, Redundancy::mirror(2)),
        (3, Redundancy::erasure(2, 1)),
        (6, Redundancy::erasure(4, 2)),
    ];
    for (targets, rule) in rules {
        let chunks = chunks(1, 2 * CONTAINER + 9000);
        for silent in 0..targets {
            for lost in losses(targets, rule.survives() - 1) {
                let worlds: Vec<FaultWorld> = (0..targets).map(|_| FaultWorld::new()).collect();
                let moody =
                    |world: &FaultWorld| Arc::new(Moody(world.target(), AtomicU8::new(ANSWERS)));
                let moody: Vec<Arc<Moody>> = worlds.iter().map(moody).collect();
                let over = moody.iter().map(|one| one.clone() as Arc<dyn Target>).collect();
                let pool = pool_of(over, rule.clone(), true);
                let places = write(&pool, pack(1), &chunks).unwrap();
                lost.iter().for_each(|lost| moody[*lost].1.store(HAS_NOTHING, Ordering::Relaxed));
                moody[silent].1.store(KEEPS_SILENT, Ordering::Relaxed);
                for (place, chunk) in places.iter().zip(&chunks) {
                    let PackExtent { pack, offset, length, .. } = *place;
                    let span = Span { pack, offset, length };
                    let read = pool.read(span, AlignedBuf::zeroed(CONTAINER)).wait();
                    let what = format!("{rule:?}, {silent} is silent, without {lost:?}");
                    assert_eq!(
                        &read.unwrap_or_else(|e| panic!("{what}: {e}"))[..],
                        &chunk[..],
                        "{what}"
                    );
                }
            }
        }
    }
}

/// (disks:92000727) Each copy is read wrong once, such as by a bad cable, or since it is damaged
/// just after another one was repaired. Everything is read again before it counts as damaged.
#[test]
fn damage_that_passes_is_none() {
    let chunks = chunks(1, 2 * CONTAINER + 9000);
    let mut met = 0;
    for before in 0..9 {
        let moody: Vec<Arc<Moody>> = (0..2)
            .map(|_| Arc::new(Moody(FaultWorld::new().target(), AtomicU8::new(ANSWERS))))
            .collect();
        let over = moody.iter().map(|one| one.clone() as Arc<dyn Target>).collect();
        let pool = pool_of(over, Redundancy::mirror(2), false);
        write(&pool, pack(1), &chunks).unwrap();
        let mut bytes = 0;
        moody.iter().for_each(|one| one.1.store(ERRS_ONCE + before, Ordering::Relaxed));
        let mut each = |_: &outlive_format::Directory, _: u64, fragment: &[u8]| {
            bytes += fragment.len();
            Ok(())
        };
        let check = pool.check_pack(pack(1), &mut each);
        let faults = check.unwrap_or_else(|e| panic!("behind {before} reads: {e}")).faults;
        met += usize::from(faults.len() == 2);
        assert!(bytes >= 2 * CONTAINER + 9000, "behind {before} reads: {bytes}");
    }
    // Other reads do not depend on the first byte.
    assert!(met >= 4, "both copies were read wrong {met} times");
}

/// Thousands of small chunks: a long directory, of which each shard has a copy.
#[test]
fn a_shard_with_a_long_directory_is_repaired() {
    let worlds: Vec<FaultWorld> = (0..3).map(|_| FaultWorld::new()).collect();
    let open = |worlds: &[FaultWorld]| {
        let targets: Vec<Arc<dyn Target>> = worlds.iter().map(|world| world.target()).collect();
        let config = PoolConfig::new(FormatConfig::new([7; 16]), Tuning::default());
        let config = PoolConfig { redundancy: Redundancy::erasure(2, 1), ..config };
        Pool::over(config, targets, Arc::new(MemoryLog::new()), Environment::system())
    };
    let pool = open(&worlds);
    let mut writer = PackWriter::new(&pool, pack(1), 4 << 20).unwrap();
    writer.open(Container::new(AlignedBuf::zeroed(4 << 20))).unwrap();
    for number in 0..6000u32 {
        let chunk = [number.to_le_bytes(); 150].concat();
        writer.append(&chunk, fingerprint(&chunk), EntryKind::Chunk).unwrap();
    }
    writer.finish().unwrap().wait().unwrap();
    for lost in 0..3 {
        let mut left = worlds.clone();
        left[lost] = FaultWorld::new();
        let pool = open(&left);
        assert_eq!(pool.mend_pack(pack(1), true, &[]).unwrap().shards, 1);
        let check = pool.check_pack(pack(1), &mut |_, _, _| Ok(())).unwrap();
        assert_eq!(check.faults, []);
    }
}
