//! Makes one pack match the table of targets. Only this code moves, recreates or deletes single
//! shards. Each step may be the last one: it deletes a shard only when another copy was read or
//! written whole.

use super::plan::{Allowed, Fate, plan};
use crate::Pool;
use crate::descriptor::redundancy::Tier;
use crate::stripe::{Breadth, NewShard, Scan, ShardFault, shard_bytes, write_shards};
use crate::targets::TargetSet;
use outlive_backend::ShardName;
use outlive_types::{Error, ErrorKind, PackId, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Copies of a pack's shards: pairs of a shard and of a target in the set.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Listed {
    pub fast: Vec<(u8, usize)>,
    pub slow: Vec<(u8, usize)>,
}

/// Result of the repair of one pack.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PackRepair {
    /// Shards that were missing or damaged, and were written again.
    pub shards: usize,
    /// Bytes of these.
    pub written_bytes: u64,
    /// Shards that were moved to another target.
    pub moved: usize,
    /// Bytes of these.
    pub moved_bytes: u64,
    /// Surplus copies that were deleted.
    pub surplus: usize,
    /// Shards that are still missing, as no target could take them.
    pub missing: usize,
    /// Shards that are still beside another one of the pack, on targets that fail together.
    pub crowded: usize,
    /// Targets that are to be emptied and still have copies: number, and reason.
    pub left: BTreeMap<u32, Error>,
}

/// A shard that is about to be written.
struct ShardToWrite {
    shard: u8,
    member: usize,
    /// Targets whose copies are deleted then.
    from: Vec<usize>,
    is_damaged: bool,
}

/// The repair of one pack.
pub(super) struct Bring<'a> {
    pub pool: &'a Pool,
    pub targets: Arc<TargetSet>,
    pub pack: PackId,
    pub repair: PackRepair,
    works: Vec<ShardToWrite>,
    writers: Vec<NewShard>,
    /// Slow copies on targets that leave, which no other slow target takes.
    homeless: Vec<(u8, Vec<usize>)>,
}

impl Bring<'_> {
    pub fn new(pool: &Pool, targets: Arc<TargetSet>, pack: PackId) -> Bring<'_> {
        let (repair, works, writers, homeless) = Default::default();
        Bring { pool, targets, pack, repair, works, writers, homeless }
    }

    fn name(&self, shard: u8) -> ShardName {
        ShardName { pack: self.pack, shard }
    }

    /// Repairs a pack that has the listed copies. `damaged` are copies in which damage was found.
    ///
    /// # Errors
    /// `Damaged` if too little is left of the pack; errors of the targets.
    pub fn run(&mut self, listed: &Listed, allowed: Allowed, damaged: &[ShardFault]) -> Result<()> {
        let count = self.pool.shards_of(self.pack).len();
        let fast = plan(&self.targets, Tier::Fast, count, &listed.fast, allowed);
        let slow = plan(&self.targets, Tier::Slow, count, &listed.slow, allowed);
        if damaged.is_empty() && !fast.iter().chain(&slow).any(Fate::is_work) {
            return Ok(());
        }
        let mut damaged = self.copies_of(damaged);
        // A copy may have been moved since the damage was found.
        damaged.retain(|copy| listed.fast.contains(copy) || listed.slow.contains(copy));
        // A repair first reads each copy that stays in place of others.
        let mut surplus: Vec<(u8, usize, Vec<usize>)> = Vec::new();
        for (shard, fate) in (0..).zip(&fast).chain((0..).zip(&slow)) {
            if let Fate::Stays { on, surplus: others } = fate
                && !others.is_empty()
            {
                let is_known = damaged.contains(&(shard, *on));
                let read = || self.pool.secure_on(&self.targets, self.name(shard), *on);
                match if is_known { Ok(0) } else { read() } {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::Damaged => damaged.push((shard, *on)),
                    Err(error) => {
                        self.leave(others, &error);
                        continue;
                    }
                }
                surplus.push((shard, *on, others.clone()));
            }
        }
        // A copy that is to be deleted needs no repair.
        let goes = |(shard, on): &(u8, usize)| {
            let is_it =
                |(other, _, gone): &(u8, usize, Vec<usize>)| other == shard && gone.contains(on);
            let moves = |fate: &Fate| matches!(fate, Fate::Moves { from } if from.contains(on));
            let fates = [&fast, &slow].map(|fates| fates.get(usize::from(*shard)));
            surplus.iter().any(is_it) || fates.into_iter().flatten().any(moves)
        };
        damaged.retain(|copy| !goes(copy));
        let wanted = self.wanted(&fast, &slow, &damaged);
        if !wanted.is_empty() {
            let mut scan = Scan::open(self.pool, self.pack, Breadth::Shards(&wanted))?;
            let bytes_max = shard_bytes(&scan)?;
            self.begin_fast(&fast, bytes_max)?;
            self.begin_slow(&slow, &listed.slow, bytes_max)?;
            for (shard, on) in damaged {
                let writer =
                    self.targets.members()[on].target().replace(self.name(shard), bytes_max)?;
                self.begun(shard, on, Vec::new(), true, writer);
            }
            self.write(&mut scan)?;
        }
        self.drop_slow()?;
        for (shard, on, others) in surplus {
            self.targets.is_on(self.name(shard), on);
            self.repair.surplus += self.delete(shard, &others)?;
        }
        Ok(())
    }

    /// Returns the copies that have these faults, if they are damaged.
    fn copies_of(&self, faults: &[ShardFault]) -> Vec<(u8, usize)> {
        let damaged = faults.iter().filter(|fault| fault.error.kind() == ErrorKind::Damaged);
        let copy = |fault: &ShardFault| Some((fault.shard, self.targets.number_of(fault.target?)?));
        damaged.filter_map(copy).collect()
    }

    /// Returns the shards that must be read.
    fn wanted(&self, fast: &[Fate], slow: &[Fate], damaged: &[(u8, usize)]) -> Vec<u8> {
        let moves =
            |(shard, fate): (u8, &Fate)| matches!(fate, Fate::Moves { .. }).then_some(shard);
        let both = (0..).zip(fast).chain((0..).zip(slow));
        let mut wanted: Vec<u8> = both.filter_map(moves).collect();
        wanted.extend(damaged.iter().map(|(shard, _)| *shard));
        wanted.sort_unstable();
        wanted.dedup();
        wanted
    }

    fn begun(
        &mut self,
        shard: u8,
        member: usize,
        from: Vec<usize>,
        is_damaged: bool,
        writer: Box<dyn outlive_backend::ShardWriter>,
    ) {
        self.works.push(ShardToWrite { shard, member, from, is_damaged });
        self.writers.push(NewShard::new(shard, writer));
    }

    /// Begins the shards for fast targets, each on one that fails by itself.
    fn begin_fast(&mut self, fates: &[Fate], bytes_max: u64) -> Result<()> {
        let spot = |fate: &Fate| match fate {
            Fate::Stays { on, .. } => Some(*on),
            _ => None,
        };
        let mut used: Vec<usize> = fates.iter().filter_map(spot).collect();
        for (shard, fate) in (0..).zip(fates) {
            let Fate::Moves { from } = fate else { continue };
            match self.targets.begin_apart(self.name(shard), &used, bytes_max) {
                Ok(Some((member, writer))) => {
                    used.push(member);
                    self.begun(shard, member, from.clone(), false, writer);
                }
                Ok(None) if from.is_empty() => self.repair.missing += 1,
                Ok(None) => {
                    let room = format!("no other target can take shard {}", self.name(shard));
                    self.leave(from, &Error::full(room));
                }
                Err(error) if from.is_empty() => return Err(error),
                Err(error) => self.leave(from, &error),
            }
        }
        Ok(())
    }

    /// Begins the copies that move to other slow targets.
    fn begin_slow(&mut self, fates: &[Fate], there: &[(u8, usize)], bytes_max: u64) -> Result<()> {
        for (shard, fate) in (0..).zip(fates) {
            let Fate::Moves { from } = fate else { continue };
            let is_other = |(number, on): &&(u8, usize)| {
                *number != shard && self.targets.members()[*on].is_active()
            };
            let others: Vec<usize> = there.iter().filter(is_other).map(|(_, on)| *on).collect();
            match self.targets.begin_slow(self.name(shard), &others, false, bytes_max) {
                Ok(Some((member, writer))) => {
                    self.begun(shard, member, from.clone(), false, writer);
                }
                Ok(None) => self.homeless.push((shard, from.clone())),
                Err(error) => self.leave(from, &error),
            }
        }
        Ok(())
    }

    /// Deletes slow copies that no other slow target takes, if the fast tier has the same shard,
    /// which is read first.
    fn drop_slow(&mut self) -> Result<()> {
        for (shard, from) in std::mem::take(&mut self.homeless) {
            match self.is_whole_on_fast(shard) {
                Ok(()) => drop(self.delete(shard, &from)?),
                Err(error) => self.leave(&from, &error),
            }
        }
        Ok(())
    }

    fn is_whole_on_fast(&self, shard: u8) -> Result<()> {
        let name = self.name(shard);
        let mut why = Error::damaged("it is missing");
        for on in self.targets.copies(name).members {
            let member = &self.targets.members()[on];
            // A target that was given up may be gone at any moment.
            if member.tier == Tier::Fast && !member.is_lost() {
                match self.pool.secure_on(&self.targets, name, on) {
                    Ok(_) => return Ok(()),
                    Err(error) => why = error,
                }
            }
        }
        Err(Error::full(format!(
            "no other slow target can take shard {name}, and it has no whole copy on the fast tier ({}): run \
                 `outlive pool repair`, or add a slow target",
            why.message()
        )))
    }

    fn write(&mut self, scan: &mut Scan) -> Result<()> {
        let writers = std::mem::take(&mut self.writers);
        if writers.is_empty() {
            return Ok(());
        }
        let lengths = write_shards(self.pool, scan, writers)?;
        for (ShardToWrite { shard, member, from, is_damaged }, bytes) in
            std::mem::take(&mut self.works).into_iter().zip(lengths)
        {
            if self.targets.members()[member].tier == Tier::Fast {
                self.targets.is_on(self.name(shard), member);
            }
            match is_damaged || from.is_empty() {
                true => {
                    self.repair.shards += 1;
                    self.repair.written_bytes += bytes;
                }
                false => {
                    self.repair.moved += 1;
                    self.repair.moved_bytes += bytes;
                }
            }
            self.delete(shard, &from)?;
        }
        Ok(())
    }

    /// Deletes copies of a shard of which another one is whole. They may stay on a target that was
    /// given up. Returns how many are gone.
    fn delete(&self, shard: u8, on: &[usize]) -> Result<usize> {
        if on.is_empty() {
            return Ok(0);
        }
        // The lock ends with a session of a storage node, and an operator may end a claim.
        self.pool.check_alone()?;
        let mut gone = 0;
        for member in on.iter().map(|on| &self.targets.members()[*on]) {
            self.pool.check_locks()?;
            match member.target().delete(self.name(shard)) {
                Ok(()) => gone += 1,
                Err(_) if member.is_lost() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(gone)
    }

    /// Notes copies that stay in the wrong place.
    fn leave(&mut self, on: &[usize], why: &Error) {
        for member in on.iter().map(|on| &self.targets.members()[*on]) {
            match member.is_active() {
                true => self.repair.crowded += usize::from(member.tier == Tier::Fast),
                false => drop(self.repair.left.entry(member.id).or_insert_with(|| why.clone())),
            }
        }
    }
}
