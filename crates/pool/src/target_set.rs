//! Several targets used as one.

use outlive_io::SharedBuf;
use outlive_io::Ticket;
use outlive_target::{
    Capacity, Fault, ReadRange, ReadTicket, ShardName, ShardWriter, Target, WriteTicket,
};
use outlive_types::{Error, ErrorKind, Result};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Targets that keep shards together, each shard on one of them. Which one is written nowhere: whoever
/// reads asks, and remembers. So a shard may be moved from one target to another while nobody has the
/// pool open.
#[derive(Debug)]
pub(crate) struct TargetSet {
    members: Vec<Member>,
    /// Shards that were begun: among targets that are alike, each has its turn.
    begun: AtomicUsize,
    /// Where finished shards were found. Only ever tried: a forked child may inherit it locked.
    homes: Mutex<HashMap<ShardName, usize>>,
}

#[derive(Debug)]
struct Member {
    target: Arc<dyn Target>,
    /// Bytes that shards may take that are being written there now, by this process.
    under_way: Arc<AtomicU64>,
}

impl TargetSet {
    /// One target: itself, or a set of several.
    pub fn of(targets: &[Arc<dyn Target>]) -> Arc<dyn Target> {
        if let [only] = targets {
            return only.clone();
        }
        let members = targets
            .iter()
            .map(|target| Member { target: target.clone(), under_way: Arc::default() });
        let (members, begun, homes) = (members.collect(), AtomicUsize::new(0), Mutex::default());
        Arc::new(TargetSet { members, begun, homes })
    }

    /// The targets to try for a shard of at most `bytes_max` bytes, best first: those that have room for
    /// it, and of these the least busy, and of these the emptiest by the percent.
    fn choices(&self, bytes_max: u64) -> Result<Vec<&Member>> {
        let (count, begun) = (self.members.len(), self.begun.fetch_add(1, Ordering::Relaxed));
        let mut rated = Vec::with_capacity(count);
        for (number, member) in self.members.iter().enumerate() {
            let Capacity { total_bytes, free_bytes } = member.target.capacity()?;
            let under_way = member.under_way.load(Ordering::Relaxed);
            let lacks_room = free_bytes.saturating_sub(under_way) < bytes_max;
            let used_bytes = total_bytes - free_bytes.min(total_bytes);
            let percent = u128::from(used_bytes) * 100 / u128::from(total_bytes.max(1));
            let turn = (number + count - begun % count) % count;
            rated.push(((lacks_room, under_way, percent, turn), member));
        }
        rated.sort_by_key(|(rate, _)| *rate);
        Ok(rated.into_iter().map(|(_, member)| member).collect())
    }

    /// The number of the target that has a finished shard.
    fn find(&self, shard: ShardName) -> Result<usize> {
        if let Ok(homes) = self.homes.try_lock()
            && let Some(home) = homes.get(&shard)
        {
            return Ok(*home);
        }
        let mut unknown = None;
        for (number, member) in self.members.iter().enumerate() {
            match member.target.length(shard) {
                Ok(_) => {
                    self.remember(|homes| {
                        homes.insert(shard, number);
                    });
                    return Ok(number);
                }
                Err(error) if error.kind() == ErrorKind::Damaged => {}
                // It may be there.
                Err(error) => unknown = unknown.or(Some(error)),
            }
        }
        Err(unknown.unwrap_or_else(|| {
            Error::damaged(format!("shard {shard} is missing from {}", self.describe()))
        }))
    }

    fn remember(&self, change: impl FnOnce(&mut HashMap<ShardName, usize>)) {
        if let Ok(mut homes) = self.homes.try_lock() {
            change(&mut homes);
        }
    }

    /// Does something with every target, whether it works with the others or not.
    fn each(&self, work: impl Fn(&dyn Target) -> Result<()>) -> Result<()> {
        let mut outcome = Ok(());
        for member in &self.members {
            outcome = outcome.and(work(&*member.target));
        }
        outcome
    }

    fn all(&self, list: impl Fn(&dyn Target) -> Result<Vec<ShardName>>) -> Result<Vec<ShardName>> {
        let mut shards = Vec::new();
        for member in &self.members {
            shards.extend(list(&*member.target)?);
        }
        shards.sort_unstable();
        shards.dedup();
        Ok(shards)
    }
}

impl Target for TargetSet {
    fn describe(&self) -> String {
        let each: Vec<String> = self.members.iter().map(|one| one.target.describe()).collect();
        format!("{} targets: {}", each.len(), each.join(", "))
    }

    fn create(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>> {
        match self.find(shard) {
            Ok(number) => {
                // It says that one is there.
                return self.members[number].target.create(shard, bytes_max);
            }
            Err(error) if error.kind() == ErrorKind::Damaged => {}
            Err(error) => return Err(error),
        }
        let mut full = None;
        for member in self.choices(bytes_max)? {
            match member.target.create(shard, bytes_max) {
                Ok(inner) => {
                    let share = Share::new(&member.under_way, bytes_max);
                    return Ok(Box::new(SetWriter { inner, share }));
                }
                Err(error) if error.kind() == ErrorKind::Full => full = full.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        Err(full.unwrap_or_else(|| Error::bug("a pool without targets")))
    }

    fn read_ranges(&self, shard: ShardName, ranges: Vec<ReadRange>) -> Vec<ReadTicket> {
        match self.find(shard) {
            Ok(number) => self.members[number].target.read_ranges(shard, ranges),
            Err(error) => {
                let fails = |range: ReadRange| {
                    Ticket::done(Err(Fault { error: error.clone(), buffer: range.buffer }))
                };
                ranges.into_iter().map(fails).collect()
            }
        }
    }

    fn length(&self, shard: ShardName) -> Result<u64> {
        self.members[self.find(shard)?].target.length(shard)
    }

    fn list(&self) -> Result<Vec<ShardName>> {
        self.all(|target| target.list())
    }

    fn unfinished(&self) -> Result<Vec<ShardName>> {
        self.all(|target| target.unfinished())
    }

    fn delete_unfinished(&self, shard: ShardName) -> Result<()> {
        self.each(|target| target.delete_unfinished(shard))
    }

    fn delete(&self, shard: ShardName) -> Result<()> {
        self.remember(|homes| {
            homes.remove(&shard);
        });
        self.each(|target| target.delete(shard))
    }

    fn capacity(&self) -> Result<Capacity> {
        let mut sum = Capacity { total_bytes: 0, free_bytes: 0 };
        for member in &self.members {
            let Capacity { total_bytes, free_bytes } = member.target.capacity()?;
            sum.total_bytes = sum.total_bytes.saturating_add(total_bytes);
            sum.free_bytes = sum.free_bytes.saturating_add(free_bytes);
        }
        Ok(sum)
    }
}

/// What a shard that is being written may take of its target.
struct Share {
    under_way: Arc<AtomicU64>,
    bytes: u64,
}

impl Share {
    fn new(under_way: &Arc<AtomicU64>, bytes: u64) -> Share {
        under_way.fetch_add(bytes, Ordering::Relaxed);
        Share { under_way: under_way.clone(), bytes }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.under_way.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

struct SetWriter {
    inner: Box<dyn ShardWriter>,
    share: Share,
}

impl ShardWriter for SetWriter {
    fn write(&mut self, offset: u64, bytes: SharedBuf) -> WriteTicket {
        self.inner.write(offset, bytes)
    }

    fn finish(self: Box<Self>, length: u64) -> Ticket<Result<()>> {
        let SetWriter { inner, share } = *self;
        inner.finish(length).map(move |finished| {
            drop(share);
            finished
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_io::AlignedBuf;
    use outlive_target::conformance::check_target;
    use outlive_target::{DirectoryOptions, DirectoryTarget, FaultWorld, MemoryTarget};
    use outlive_types::{PackId, SessionId};

    fn shard(number: u32) -> ShardName {
        ShardName { pack: PackId::new(SessionId([5; 12]), 0, number), shard: 0 }
    }

    fn put(target: &dyn Target, shard: ShardName, bytes: usize) {
        let mut writer = target.create(shard, bytes as u64).unwrap();
        writer.write(0, AlignedBuf::zeroed(bytes).share()).wait().unwrap();
        writer.finish(bytes as u64).wait().unwrap();
    }

    #[test]
    fn a_set_is_a_target() {
        let memory = || -> Arc<dyn Target> { Arc::new(MemoryTarget::new()) };
        check_target(move || TargetSet::of(&[memory(), memory(), memory()]));
        check_target(|| {
            let root = Box::leak(Box::new(tempfile::tempdir().unwrap()));
            let open = |name: &str| -> Arc<dyn Target> {
                let options = DirectoryOptions::default();
                Arc::new(DirectoryTarget::open(&root.path().join(name), &options).unwrap())
            };
            TargetSet::of(&[open("a"), open("b")])
        });
    }

    #[test]
    fn shards_go_where_room_is_and_where_little_is_under_way() {
        let sizes = [1 << 20, 4 << 20, 4 << 20]; // MiB that they hold: 1, 4, 4
        let targets =
            sizes.map(|bytes| -> Arc<dyn Target> { Arc::new(MemoryTarget::with_capacity(bytes)) });
        let set = TargetSet::of(&targets);
        let counts = || targets.each_ref().map(|target| target.list().unwrap().len());
        // While one is written, the next goes to another; the first has too little room for it.
        let open = set.create(shard(1), 2 << 20).unwrap();
        put(&*set, shard(2), 2 << 20);
        assert_eq!(counts(), [0, 0, 1]);
        drop(open);
        // Now the emptiest that has room.
        put(&*set, shard(3), 2 << 20);
        assert_eq!(counts(), [0, 1, 1]);
        for number in 4..8 {
            put(&*set, shard(number), 1 << 20);
        }
        assert_eq!(counts(), [1, 3, 2]);
        put(&*set, shard(8), 1 << 20);
        assert_eq!(counts(), [1, 3, 3]);
        let error = set.create(shard(9), 4096).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        set.delete(shard(2)).unwrap();
        put(&*set, shard(9), 2 << 20);
        assert_eq!(set.list().unwrap(), [1, 3, 4, 5, 6, 7, 8, 9].map(shard)[1..]);
    }

    /// What cannot be asked is not missing: a gc or a restore must not take it for that.
    #[test]
    fn a_shard_is_missing_only_if_every_target_says_so() {
        let (world, memory) = (FaultWorld::new(), Arc::new(MemoryTarget::new()));
        put(&*world.target(), shard(1), 4096);
        let set = || TargetSet::of(&[memory.clone(), world.target()]);
        assert_eq!(set().length(shard(1)).unwrap(), 4096);
        assert_eq!(set().length(shard(2)).unwrap_err().kind(), ErrorKind::Damaged);
        world.count_reads(true);
        for number in 1..=2 {
            world.fail_at(world.ops(), ErrorKind::Retry);
            assert_eq!(set().length(shard(number)).unwrap_err().kind(), ErrorKind::Retry);
            world.fail_at(world.ops(), ErrorKind::Retry);
            assert_eq!(
                set().create(shard(number), 1).map(drop).unwrap_err().kind(),
                ErrorKind::Retry
            );
        }
        // A second one of a name is refused wherever the first is.
        let error = set().create(shard(1), 4096).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
}
