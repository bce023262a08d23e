use super::*;
use crate::descriptor::marker::Marker;
use crate::descriptor::redundancy::Writes;
use crate::{FormatConfig, Tuning};
use outlive_backend::{FaultWorld, MemoryTarget};
use outlive_io::AlignedBuf;
use outlive_types::{PackId, SessionId};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

fn pack(number: u32) -> PackId {
    PackId::new(SessionId([5; 12]), 0, number)
}

fn shard(number: u32) -> ShardName {
    ShardName { pack: pack(number), shard: 0 }
}

fn set(targets: Vec<Arc<dyn Target>>, redundancy: Redundancy) -> TargetSet {
    let members = (1..).zip(targets).map(|(id, target)| Member::new(id, target)).collect();
    hosts(members, redundancy)
}

fn hosts(members: Vec<Member>, redundancy: Redundancy) -> TargetSet {
    let config = PoolConfig::new(FormatConfig::new([7; 16]), Tuning::default());
    TargetSet::new(members, &PoolConfig { redundancy, ..config })
}

fn put(set: &TargetSet, number: u32, count: usize, bytes: usize) -> Result<Vec<usize>> {
    let mut members = Vec::new();
    for begun in set.create(pack(number), count, bytes as u64)? {
        let mut begun = begun?;
        begun.writer.write(0, AlignedBuf::zeroed(bytes).share()).wait()?;
        begun.writer.finish(bytes as u64).wait()?;
        members.push(begun.member);
    }
    Ok(members)
}

#[test]
fn shards_go_where_room_is_and_where_little_is_under_way() {
    let sizes = [1 << 20, 4 << 20, 4 << 20];
    let targets =
        sizes.map(|bytes| -> Arc<dyn Target> { Arc::new(MemoryTarget::with_capacity(bytes)) });
    let set = set(targets.to_vec(), Redundancy::default());
    let counts = || targets.each_ref().map(|target| target.list().unwrap().len());
    // While one is written, the next one goes to another target; the first target has too little
    // room for it.
    let open = set.create(pack(1), 1, 2 << 20).unwrap();
    put(&set, 2, 1, 2 << 20).unwrap();
    assert_eq!((counts()[0], counts()[1] + counts()[2]), (0, 1));
    drop(open);
    // Another one with room.
    put(&set, 3, 1, 2 << 20).unwrap();
    assert_eq!((counts()[0], counts()[1] + counts()[2]), (0, 2));
    // Until all of them are full.
    for number in 4..9 {
        put(&set, number, 1, 1 << 20).unwrap();
    }
    assert_eq!((counts()[0], counts()[1] + counts()[2]), (1, 6));
    let error = set.create(pack(9), 1, 4096).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    set.delete(&[shard(2)]).unwrap();
    put(&set, 9, 1, 2 << 20).unwrap();
    let there: Vec<ShardName> = set.list().unwrap().into_iter().map(|(name, _)| name).collect();
    assert_eq!(there, [1, 3, 4, 5, 6, 7, 8, 9].map(shard)[1..]);
}

/// A shard is not missing if a target cannot be asked: a gc or a restore must not take it for that.
#[test]
fn a_shard_is_missing_only_if_every_target_says_so() {
    let (world, memory) = (FaultWorld::new(), Arc::new(MemoryTarget::new()));
    let both = || set(vec![memory.clone(), world.target()], Redundancy::default());
    let alone = set(vec![world.target()], Redundancy::default());
    put(&alone, 1, 1, 4096).unwrap();
    assert_eq!(both().length(shard(1)).unwrap(), 4096);
    assert_eq!(both().length(shard(2)).unwrap_err().kind(), ErrorKind::Damaged);
    world.count_reads(true);
    for number in 1..=2 {
        world.fail_at(world.ops(), ErrorKind::Retry);
        assert_eq!(both().length(shard(number)).unwrap_err().kind(), ErrorKind::Retry);
    }
    // A second shard of a name is refused wherever the first one is.
    let error = both().create(pack(1), 1, 4096).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

#[test]
fn no_two_shards_of_a_pack_are_in_one_domain() {
    let on = |id, host| Member::new(id, Arc::new(MemoryTarget::new())).on(host);
    let (a, b) = (Some("a"), Some("b"));
    let set =
        hosts(vec![on(1, a), on(2, a), on(3, b), on(4, b), on(5, None)], Redundancy::erasure(2, 1));
    let mut used = BTreeSet::new();
    for number in 0..40 {
        let members = put(&set, number, 3, 4096).unwrap();
        let domain = |member: &usize| set.members()[*member].domain.as_str();
        assert_eq!(members.iter().map(domain).collect::<BTreeSet<_>>().len(), 3, "{members:?}");
        used.extend(members);
    }
    assert_eq!(used.len(), 5, "all of them take part");
    // A fourth shard has no domain of its own: it may be lacking, or nothing may be.
    assert!(set.create(pack(99), 4, 4096).is_ok_and(|begun| begun[3].is_err()));
    let full = Redundancy { writes: Writes::Full, ..Redundancy::erasure(2, 1) };
    let set = hosts(vec![on(1, a), on(2, a), on(3, b)], full);
    let error = set.create(pack(99), 3, 4096).map(drop).unwrap_err();
    assert!(error.message().contains("too few targets"), "{error}");
}

/// Returns how many packs each target gets if each rank writes some packs, after some earlier ones.
fn packs_of_ranks(targets: usize, session: u8, ranks: u32, packs: u32) -> Vec<usize> {
    let memory = |_| -> Arc<dyn Target> { Arc::new(MemoryTarget::new()) };
    let each = set((0..targets).map(memory).collect(), Redundancy::default());
    let mut counts = vec![0; targets];
    for (rank, number) in (0..ranks).flat_map(|rank| (0..packs).map(move |n| (rank, 3 + n))) {
        let pack = PackId::new(SessionId([session; 12]), rank, number);
        let begun = each.create(pack, 1, 4096).unwrap().remove(0).unwrap();
        counts[begun.member] += 1;
    }
    counts
}

/// Ranks do not know what the others write; still, no target gets more of their packs than another.
#[test]
fn packs_of_many_ranks_are_spread_evenly() {
    for (targets, session) in (1..=8).flat_map(|targets| (0..20).map(move |s| (targets, s))) {
        for ranks in [1, 2, 3, 5, 8, 13, 16] {
            let counts = packs_of_ranks(targets, session, ranks, 1);
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(most - least <= 1, "{ranks} ranks: {counts:?}");
        }
    }
}

/// Even if each rank writes several: two ranks with two packs each use four targets, not three.
#[test]
fn several_packs_of_few_ranks_are_spread_evenly() {
    for (ranks, packs) in [(1, 8), (2, 2), (2, 4), (3, 2), (4, 2), (2, 8), (4, 4), (8, 3), (16, 5)]
    {
        let counts = packs_of_ranks(8, ranks as u8, ranks, packs);
        let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
        assert!(most - least <= 1, "{ranks} ranks of {packs} packs: {counts:?}");
    }
    // For all numbers, no target gets two packs more than the fewest that one must get.
    for (targets, ranks, packs) in
        (1..=8).flat_map(|t| (1..=9).flat_map(move |r| (1..=6).map(move |p| (t, r, p))))
    {
        let most = packs_of_ranks(targets, 0, ranks, packs).into_iter().max().unwrap();
        let fewest = ((ranks * packs) as usize).div_ceil(targets);
        assert!(most <= fewest + 1, "{targets} targets, {ranks} ranks of {packs}: {most}");
    }
}

/// A new target gets more than the others, but not everything: they would idle meanwhile.
#[test]
fn fuller_targets_get_fewer_packs_so_that_all_become_full_together() {
    let targets = [4, 4, 4].map(|mib| Arc::new(MemoryTarget::with_capacity(mib << 20)));
    for number in 0..2 {
        for shard in 0..2 {
            let name = ShardName { pack: pack(1000 + number), shard };
            let mut writer = targets[usize::from(shard)].create(name, 1 << 20).unwrap();
            writer.write(0, AlignedBuf::zeroed(1 << 20).share()).wait().unwrap();
            writer.finish(1 << 20).wait().unwrap();
        }
    }
    let set = set(targets.map(|target| target as Arc<dyn Target>).to_vec(), Redundancy::default());
    let mut counts = [0; 3];
    for number in 0..600 {
        let begun = set.create(pack(number), 1, 4096).unwrap().remove(0).unwrap();
        counts[begun.member] += 1;
    }
    // Half of the first two is free: about half of the packs that they would get pass over them.
    assert!(counts[2] > 250 && counts[2] < 400, "{counts:?}");
    assert!(counts[0].min(counts[1]) > 80, "{counts:?}");
}

#[test]
fn a_shard_is_where_a_reader_looks_first() {
    let memory = || -> Arc<dyn Target> { Arc::new(MemoryTarget::new()) };
    let targets: Vec<Arc<dyn Target>> = (0..6).map(|_| memory()).collect();
    let set = set(targets, Redundancy::erasure(4, 2));
    for number in 0..20 {
        let members = put(&set, number, 6, 4096).unwrap();
        assert_eq!(members, placement::preferred(set.members(), Tier::Fast, pack(number)));
    }
}

/// Parity that a slow tier lacks costs no request at each read; and it is found when it is needed.
#[test]
fn a_shard_that_is_nowhere_is_looked_for_once() {
    let (fast, slow) = (FaultWorld::new(), FaultWorld::new());
    let members =
        || vec![Member::new(1, fast.target()), Member::new(2, slow.target()).on_tier(Tier::Slow)];
    let set = Arc::new(hosts(members(), Redundancy::default()));
    fast.count_reads(true);
    slow.count_reads(true);
    let asked = || fast.ops() + slow.ops();
    let before = asked();
    assert!(!set.is_late(shard(1)), "no read has looked for it");
    let once = asked() - before;
    assert!(once > 0, "then a read has");
    for _ in 0..10 {
        assert!(set.is_late(shard(1)), "others are read first");
        assert_eq!(set.wait_us(shard(1)), 0);
    }
    assert_eq!(asked(), before + once);

    // Another process puts it there.
    put(&hosts(members(), Redundancy::default()), 1, 1, 4096).unwrap();
    assert!(set.is_late(shard(1)));
    let range = ReadRange::new(0, AlignedBuf::zeroed(4096));
    let read = set.read(shard(1), range).wait().unwrap();
    assert_eq!(read.len(), 4096);
    assert!(!set.is_late(shard(1)));
}

/// A reader knows where a shard was, and that target is away: it finds the copy on a slow one. For
/// a shard without a copy, it learns that the target is away.
#[test]
fn a_known_target_that_is_away_hides_no_copy() {
    let there = Arc::new(AtomicBool::new(true));
    let is_there = there.clone();
    let look = move || match is_there.load(Ordering::Relaxed) {
        true => Ok(()),
        false => Err(Error::damaged("it is not mounted")),
    };
    let memory = || -> Arc<dyn Target> { Arc::new(MemoryTarget::new()) };
    let (fast, slow) = (Member::new(1, memory()), Member::new(2, memory()).on_tier(Tier::Slow));
    let set = hosts(vec![fast.if_there(Box::new(look)), slow], Redundancy::default());
    for number in [1, 2] {
        assert_eq!(put(&set, number, 1, 4096).unwrap(), [0]);
        assert_eq!(set.find(shard(number)).unwrap(), 0);
    }
    let (copy, mut writer) = set.begin_slow(shard(1), &[], false, 4096).unwrap().unwrap();
    writer.write(0, AlignedBuf::zeroed(4096).share()).wait().unwrap();
    writer.finish(4096).wait().unwrap();
    there.store(false, Ordering::Relaxed);
    set.check().unwrap_err();
    assert_eq!(set.find(shard(1)).unwrap(), copy);
    let error = set.find(shard(2)).unwrap_err();
    assert!(error.is_away() && error.kind() == ErrorKind::Retry, "{error}");
    there.store(true, Ordering::Relaxed);
    set.check().unwrap();
    assert_eq!(set.find(shard(2)).unwrap(), 0);
}

/// A shard that another process has just moved is read where it is now.
#[test]
fn a_read_finds_a_shard_that_was_moved() {
    let memory = || -> Arc<dyn Target> { Arc::new(MemoryTarget::new()) };
    let targets = [memory(), memory()];
    let member = |(id, target): (u32, &Arc<dyn Target>)| Member::new(id, target.clone());
    let set = Arc::new(hosts((1..).zip(&targets).map(member).collect(), Redundancy::default()));
    let on = put(&set, 1, 1, 4096).unwrap()[0];
    assert_eq!(set.find(shard(1)).unwrap(), on);
    let mut writer = targets[1 - on].create(shard(1), 4096).unwrap();
    writer.write(0, AlignedBuf::zeroed(4096).share()).wait().unwrap();
    writer.finish(4096).wait().unwrap();
    targets[on].delete(shard(1)).unwrap();
    let range = ReadRange::new(0, AlignedBuf::zeroed(4096));
    assert_eq!(set.read(shard(1), range).wait().unwrap().len(), 4096);
    assert_eq!(set.find(shard(1)).unwrap(), 1 - on);
}

/// A target that vanishes while it is listed seems empty, and a gc or a repair must not believe
/// that.
#[test]
fn the_listing_of_a_target_that_vanishes_does_not_count() {
    let looks = AtomicU32::new(0);
    let look = move || match looks.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
        true => Ok(()),
        false => Err(Error::damaged("it is not mounted")),
    };
    let member = Member::new(1, Arc::new(MemoryTarget::new())).if_there(Box::new(look));
    let set = hosts(vec![member], Redundancy::default());
    assert!(set.list().unwrap_err().is_away());
    assert!(set.unfinished().unwrap_err().is_away());
    assert!(set.list_there().is_empty());
}

/// Locations that write down new targets, as `pool.toml` does; another process adds a target while
/// this one reads that.
#[derive(Debug, Default)]
struct Adding {
    written_down: Mutex<Vec<TargetConfig>>,
    /// The table of the other process.
    other: Mutex<Option<Arc<TargetTable>>>,
}

impl TargetLocations for Adding {
    fn written_down(&self) -> Result<Vec<TargetConfig>> {
        let other = self.other.lock().take();
        if let Some(other) = other {
            other.change(&mut |rows| {
                let id = rows.next_id;
                rows.targets.push(TargetConfig { id: Some(id), ..TargetConfig::at("new") });
                rows.next_id += 1;
                Ok(())
            })?;
        }
        Ok(self.written_down.lock().clone())
    }

    fn write_down(&self, rows: &[TargetConfig]) -> Result<()> {
        *self.written_down.lock() = rows.to_vec();
        Ok(())
    }

    fn first(&self, written_down: &[TargetConfig]) -> Result<Rows> {
        let first = TargetConfig { id: Some(1), ..TargetConfig::at(".") };
        let rows = Rows { next_id: 2, targets: vec![first] };
        Ok(Rows { targets: self.seen(rows.clone(), written_down)?, ..rows })
    }

    fn seen(&self, rows: Rows, written_down: &[TargetConfig]) -> Result<Vec<TargetConfig>> {
        let format = FormatConfig::new([7; 16]);
        let marker = Marker::bare(format);
        let marker = Marker { next_target: Some(rows.next_id), target: rows.targets, ..marker };
        crate::descriptor::marker::targets_of(written_down, &marker)
    }

    fn open(&self, _: &TargetConfig, _: bool) -> Result<OpenTarget> {
        Err(Error::bug("nothing is opened"))
    }

    fn find(&self, _: &TargetConfig) -> Result<FoundTarget> {
        Ok(FoundTarget::Free)
    }

    fn prepare(&self, _: &TargetConfig, _: &[TargetConfig]) -> Result<()> {
        Ok(())
    }

    fn mark(&self, _: &TargetConfig) -> Result<()> {
        Ok(())
    }
}

/// The first target that is added, and another one: the table has no record before the first.
#[test]
fn a_target_that_comes_while_the_table_is_read_is_one_of_the_pool() {
    let locations = Arc::new(Adding::default());
    let log = FaultWorld::new().log();
    let table = || {
        let rng = Arc::new(outlive_types::SeededRng::new(1));
        Arc::new(TargetTable::new(log.clone(), locations.clone(), rng))
    };
    for count in 2..=3 {
        *locations.other.lock() = Some(table());
        assert_eq!(table().rows().unwrap().len(), count);
    }
}
