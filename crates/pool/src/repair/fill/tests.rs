//! A fill copies enough to do without the fast tier, wherever it was interrupted.
#![expect(clippy::disallowed_methods, reason = "what is read first is looked at, too")]

use crate::descriptor::redundancy::Tier;
use crate::targets::Member;
use crate::{AllNamed, Redundancy, ShardFault, Span, Tuning};
use crate::{Container, Environment, FormatConfig, PackExtent, PackWriter, Pool, PoolConfig};
use outlive_backend::{FaultWorld, ReadRange, ShardName, read_one};
use outlive_format::{EntryKind, fingerprint};
use outlive_io::AlignedBuf;
use outlive_log::MemoryLog;
use outlive_types::{ErrorKind, PackId, SessionId};
use std::collections::BTreeSet;
use std::sync::Arc;

const CONTAINER: usize = 64 << 10;

struct Fixture {
    fast: Vec<FaultWorld>,
    slow: Vec<FaultWorld>,
    pool: Pool,
}

fn fixture(fast: usize, slow: usize, redundancy: Redundancy) -> Fixture {
    let worlds = |count| (0..count).map(|_| FaultWorld::new()).collect::<Vec<_>>();
    let (fast, slow) = (worlds(fast), worlds(slow));
    let tiers = fast.iter().map(|world| (world, Tier::Fast));
    let tiers = tiers.chain(slow.iter().map(|world| (world, Tier::Slow)));
    let member = |(id, (world, tier)): (u32, (&FaultWorld, Tier))| {
        Member::new(id, world.target()).on_tier(tier)
    };
    let members = (1..).zip(tiers).map(member).collect();
    let format = FormatConfig {
        container_bytes: CONTAINER as u64,
        pack_bytes: 4 * CONTAINER as u64,
        ..FormatConfig::new([7; 16])
    };
    let tuning = Tuning { reads_around: false, ..Tuning::default() };
    let config = PoolConfig { redundancy, ..PoolConfig::new(format, tuning) };
    let pool = Pool::of(members, config, Arc::new(MemoryLog::new()), Environment::system());
    Fixture { fast, slow, pool }
}

fn pack() -> PackId {
    PackId::new(SessionId([5; 12]), 0, 1)
}

fn chunks() -> Vec<Vec<u8>> {
    (1..=12u8).map(|n| (0..15_000).map(|at: u32| (at as u8).wrapping_mul(n)).collect()).collect()
}

fn write(pool: &Pool) -> Vec<PackExtent> {
    let mut writer = PackWriter::new(pool, pack(), 4 * CONTAINER as u64).unwrap();
    let append = |chunk: Vec<u8>| {
        if writer.needs_buffer(chunk.len()) {
            writer.open(Container::new(AlignedBuf::zeroed(CONTAINER))).unwrap();
        }
        writer.append(&chunk, fingerprint(&chunk), EntryKind::Chunk).unwrap()
    };
    let locations = chunks().into_iter().map(append).collect();
    writer.finish().unwrap().wait().unwrap();
    locations
}

fn check(pool: &Pool, locations: &[PackExtent], what: &str) {
    for (place, chunk) in locations.iter().zip(chunks()) {
        let span = Span { pack: place.pack, offset: place.offset, length: place.length };
        let read = pool.read(span, AlignedBuf::zeroed(CONTAINER)).wait();
        let is_whole = read.as_ref().is_ok_and(|read| read[..] == chunk[..]);
        // As a restore does.
        assert!(is_whole || pool.read_checked(span).unwrap()[..] == chunk[..], "{what}");
    }
    pool.check_pack(pack(), &mut |_, _, _| Ok(())).unwrap_or_else(|e| panic!("{what}: {e}"));
}

fn lose(worlds: &[FaultWorld]) {
    for target in worlds.iter().map(FaultWorld::target) {
        target.list().unwrap().into_iter().for_each(|shard| target.delete(shard).unwrap());
    }
}

fn numbers(worlds: &[FaultWorld]) -> Vec<BTreeSet<u8>> {
    let of = |world: &FaultWorld| world.target().list().unwrap().into_iter().map(|one| one.shard);
    worlds.iter().map(|world| of(world).collect()).collect()
}

fn cases() -> Vec<(usize, usize, Redundancy)> {
    vec![
        (1, 1, Redundancy::default()),
        (2, 2, Redundancy::default()),
        (2, 1, Redundancy::mirror(2)),
        (3, 1, Redundancy::erasure(2, 1)),
        (3, 2, Redundancy::erasure(2, 1)),
        (4, 3, Redundancy::erasure(2, 1)),
    ]
}

#[test]
fn the_slow_tier_alone_is_enough_and_the_fast_one_is_made_of_it() {
    for (fast, slow, rule) in cases() {
        let what = format!("{fast} fast, {slow} slow, {}", rule.describe());
        let Fixture { fast, slow, pool } = fixture(fast, slow, rule);
        let locations = write(&pool);
        let before = numbers(&fast);
        assert!(numbers(&slow).iter().all(BTreeSet::is_empty), "{what}");
        let need = pool.fill_need().unwrap();
        let missing = need.missing(pack());
        let fill = pool.fill_pack(pack(), &need).unwrap();
        assert_eq!((fill.shards, fill.left, fill.why), (missing, 0, None), "{what}");
        assert_eq!(pool.fill_need().unwrap().missing(pack()), 0, "{what}");
        let geometry = pool.config().geometry();
        let all = usize::from(geometry.k) + usize::from(geometry.m);
        let has: Vec<usize> = numbers(&slow).iter().map(BTreeSet::len).collect();
        match slow.len() >= all {
            true => assert!(missing == all && has.iter().all(|count| *count <= 1), "{what}"),
            false => assert_eq!(missing, usize::from(geometry.k), "{what}"),
        }
        // Copies on the slow tier are no redundancy, and not surplus either.
        let redundancy = pool.redundancy().unwrap()[&pack()];
        assert_eq!(
            (redundancy.shards, redundancy.slow_spare),
            (all, (missing - usize::from(geometry.k)) as i64)
        );
        assert_eq!(pool.repair(Default::default(), &AllNamed).unwrap().degraded, 0, "{what}");
        lose(&fast);
        check(&pool, &locations, &what);
        let report = pool.repair(Default::default(), &AllNamed).unwrap();
        assert_eq!((report.shards, report.missing), (all as u64, 0), "{what}");
        let sum = |numbers: &[BTreeSet<u8>]| numbers.iter().flatten().count();
        assert_eq!(sum(&numbers(&fast)), sum(&before), "{what}");
        lose(&slow);
        check(&pool, &locations, &what);
        pool.fill_pack(pack(), &pool.fill_need().unwrap()).unwrap();
        pool.delete_pack(pack()).unwrap();
        assert!(numbers(&slow).iter().chain(&numbers(&fast)).all(BTreeSet::is_empty), "{what}");
    }
}

#[test]
fn data_that_is_damaged_on_the_fast_tier_is_read_from_the_slow_one() {
    for (fast, slow, rule) in cases() {
        let what = format!("{fast} fast, {slow} slow, {}", rule.describe());
        let Fixture { fast, slow: _slow, pool } = fixture(fast, slow, rule);
        let locations = write(&pool);
        pool.fill_pack(pack(), &pool.fill_need().unwrap()).unwrap();
        for world in &fast {
            for shard in world.target().list().unwrap() {
                let length = world.target().length(shard).unwrap();
                (4096 + 7..length - 8192).step_by(9000).for_each(|at| world.corrupt(shard, at, 1));
            }
        }
        check(&pool, &locations, &what);
        let faults = pool.check_pack(pack(), &mut |_, _, _| Ok(())).unwrap().faults;
        assert!(!faults.is_empty(), "{what}");
        let repaired = pool.mend_pack(pack(), true, &faults).unwrap();
        assert_eq!((repaired.shards, repaired.missing), (faults.len(), 0), "{what}");
        let check = pool.check_pack(pack(), &mut |_, _, _| Ok(())).unwrap();
        assert_eq!(check.faults, [], "{what}");
    }
}

/// (suspend:50014709) If a target fails only for now, the error says that, and not that the pack
/// lacks shards: another attempt may copy it.
#[test]
fn a_copy_that_failed_for_now_is_reported_rather_than_missing_shards() {
    // The second case has too few shards left.
    for lacking in [&[1][..], &[1, 2]] {
        let mut failed = 0;
        for step in 0.. {
            let what = format!("without {lacking:?}, step {step}");
            let Fixture { fast, slow, pool } = fixture(3, 1, Redundancy::erasure(2, 1));
            write(&pool);
            for shard in lacking.iter().map(|shard| ShardName { pack: pack(), shard: *shard }) {
                fast.iter().for_each(|world| drop(world.target().delete(shard)));
            }
            let need = pool.fill_need().unwrap();
            let first = slow[0].ops() + step;
            slow[0].fail_when(move |op, _| (op >= first).then_some(ErrorKind::Retry));
            let why = pool.fill_pack(pack(), &need).unwrap().why.map(|why| why.kind());
            if slow[0].ops() <= first {
                let damaged = (lacking.len() > 1).then_some(ErrorKind::Damaged);
                assert_eq!(why, damaged, "{what}");
                break;
            }
            assert_eq!(why, Some(ErrorKind::Retry), "{what}");
            failed += 1;
        }
        assert!(failed > 3, "{failed} steps");
    }
}

#[test]
fn a_fill_may_fail_at_any_step_and_be_repeated() {
    for (fast, slow, rule) in cases() {
        let mut step = 0;
        loop {
            let what = format!("{}, step {step}", rule.describe());
            let Fixture { fast, slow, pool } = fixture(fast, slow, rule.clone());
            let locations = write(&pool);
            let need = pool.fill_need().unwrap();
            slow[0].fail_at(slow[0].ops() + step, ErrorKind::Retry);
            let first = pool.fill_pack(pack(), &need).unwrap();
            let is_over = first.left == 0 && step > 8;
            // Copied shards are whole, and no others are there.
            let there: usize = numbers(&slow).iter().map(BTreeSet::len).sum();
            assert_eq!(there, first.shards, "{what}");
            let again = pool.fill_pack(pack(), &pool.fill_need().unwrap()).unwrap();
            assert_eq!((again.left, again.why), (0, None), "{what}");
            assert_eq!(faults(&pool), [], "{what}");
            lose(&fast);
            check(&pool, &locations, &what);
            if is_over {
                break;
            }
            step += 1;
        }
    }
}

fn faults(pool: &Pool) -> Vec<ShardFault> {
    pool.check_pack(pack(), &mut |_, _, _| Ok(())).unwrap().faults
}

#[test]
fn a_damaged_copy_is_written_anew_where_it_is() {
    let Fixture { fast, slow, pool } = fixture(3, 1, Redundancy::erasure(2, 1));
    write(&pool);
    let mut need = pool.fill_need().unwrap();
    let fill = pool.fill_pack(pack(), &need).unwrap();
    need.add(pack(), &fill);
    slow[0].corrupt(ShardName { pack: pack(), shard: 1 }, 5000, 1);
    let found = faults(&pool);
    let [ShardFault { shard: 1, target: Some(4), is_slow: true, error }] = &found[..] else {
        panic!("{found:?}")
    };
    assert_eq!(error.kind(), ErrorKind::Damaged);
    // The fill's record of the slow target stays true at every step.
    assert_eq!(pool.mend_pack(pack(), true, &found).unwrap().shards, 1);
    assert_eq!(faults(&pool), []);
    assert_eq!((numbers(&slow), need.missing(pack())), (vec![BTreeSet::from([0, 1])], 0));
    // A data shard that the fast tier has lost is computed from the others.
    slow[0].target().delete(ShardName { pack: pack(), shard: 1 }).unwrap();
    for world in &fast {
        world.target().delete(ShardName { pack: pack(), shard: 1 }).unwrap();
    }
    let fill = pool.fill_pack(pack(), &pool.fill_need().unwrap()).unwrap();
    assert_eq!((fill.shards, fill.left), (1, 0), "{:?}", fill.why);
    assert_eq!(numbers(&slow), [BTreeSet::from([0, 1])]);
}

/// Two copies of one shard count as one part of the data.
#[test]
fn copies_of_one_shard_count_once() {
    let Fixture { slow, pool, fast: _fast } = fixture(3, 2, Redundancy::erasure(2, 1));
    write(&pool);
    pool.fill_pack(pack(), &pool.fill_need().unwrap()).unwrap();
    let [first, second] = [0, 1].map(|shard| ShardName { pack: pack(), shard });
    let on = usize::from(slow[0].target().length(first).is_err());
    let (has, other) = (slow[on].target(), slow[1 - on].target());
    let length = has.length(first).unwrap();
    let buffer = AlignedBuf::zeroed(length as usize);
    let bytes = read_one(&*has, first, ReadRange::new(0, buffer)).wait().unwrap();
    let mut writer = other.create(first, length).unwrap();
    writer.write(0, bytes.share()).wait().unwrap();
    writer.finish(length).wait().unwrap();
    slow.iter().for_each(|world| drop(world.target().delete(second)));
    assert_eq!(pool.fill_need().unwrap().missing(pack()), 1);
    let filled = pool.fill_pack(pack(), &pool.fill_need().unwrap()).unwrap();
    assert_eq!((filled.shards, filled.left), (1, 0));
}

/// A commit counts the targets on which a pack is durable.
#[test]
fn a_shard_whose_last_sync_failed_is_not_durable() {
    let Fixture { fast, pool, slow: _slow } = fixture(3, 0, Redundancy::erasure(2, 1));
    let written = pool.written().begin();
    let fails = |_, what: &str| what.ends_with("make it durable").then_some(ErrorKind::Retry);
    fast[1].fail_when(fails);
    write(&pool);
    assert_eq!(written.now(), crate::Spread::from([vec![1, 3]]));
}
