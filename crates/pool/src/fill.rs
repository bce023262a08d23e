//! Copies shards from the fast tier to the slow one, behind the saves.

use crate::Pool;
use crate::exclusive::Exclusive;
use crate::redundancy::Tier;
use crate::stripe::{Breadth, NewShard, Scan, shard_bytes, write_shards};
use crate::targets::{Copies, Member, TargetSet, rather};
use outlive_target::ShardName;
use outlive_types::{Error, ErrorKind, PackId, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What slow targets have, and how much of a pack they should have.
#[derive(Clone, Debug)]
pub struct FillNeed {
    /// Shards of a pack that the slow tier should have: all, or as many as hold its data.
    wanted: usize,
    /// No two of a pack on one host.
    apart: bool,
    /// Which slow targets have which shards of a pack, as they are numbered in the set.
    there: BTreeMap<PackId, Vec<(u8, usize)>>,
    /// The targets that the numbers are of.
    targets: Arc<TargetSet>,
    /// Why a slow target could not be asked what it has.
    unasked: Option<Error>,
}

impl FillNeed {
    /// Whether the slow tier has anything of a pack.
    pub fn has(&self, pack: PackId) -> bool {
        self.there.contains_key(&pack)
    }

    /// Whether it is of the targets that the pool has now.
    pub fn is_of(&self, pool: &Pool) -> bool {
        Arc::ptr_eq(&pool.targets(), &self.targets)
    }

    /// Why it is not known what all slow targets have, if it is not.
    pub fn unasked(&self) -> Option<&Error> {
        self.unasked.as_ref()
    }

    /// Takes notice of what was copied of a pack.
    pub fn add(&mut self, pack: PackId, fill: &PackFill) {
        if !fill.new.is_empty() {
            self.there.entry(pack).or_default().extend(&fill.new);
        }
    }

    /// Shards of a pack that the slow tier lacks.
    pub fn missing(&self, pack: PackId) -> usize {
        let numbers: BTreeSet<u8> = self.staying(pack).iter().map(|(number, _)| *number).collect();
        self.wanted.saturating_sub(numbers.len())
    }

    /// What slow targets have of a pack, without those that leave: a repair may drop what is there.
    fn staying(&self, pack: PackId) -> Vec<(u8, usize)> {
        let there = self.there.get(&pack).into_iter().flatten();
        there.filter(|(_, on)| self.targets.members()[*on].is_active()).copied().collect()
    }
}

/// What became of one pack.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PackFill {
    /// Shards copied.
    pub shards: usize,
    /// These and what others have copied meanwhile, and on which targets, as they are numbered in the set.
    new: Vec<(u8, usize)>,
    /// Bytes of these.
    pub bytes: u64,
    /// Shards that the slow tier still lacks.
    pub left: usize,
    /// Why the first of them could not be copied.
    pub why: Option<Error>,
}

impl Pool {
    /// Whether the pool has a slow tier.
    pub fn has_slow_tier(&self) -> bool {
        self.targets().has_slow()
    }

    /// Whether a slow target takes copies: not if every one of them is being emptied.
    pub fn has_slow_to_fill(&self) -> bool {
        self.targets().of_tier(Tier::Slow).any(|(_, member)| member.is_active())
    }

    /// Whether too few fast targets are there, so that only what is on slow ones can be read.
    pub fn is_slow_alone(&self) -> bool {
        let targets = self.targets();
        targets.has_slow() && targets.check().is_err()
    }

    /// What the slow tier has, as a fill begins.
    ///
    /// # Errors
    /// `Invalid` without a slow target; why none of them, or too few of the fast ones, can be asked.
    pub fn fill_need(&self) -> Result<FillNeed> {
        self.refresh_targets()?;
        let targets = self.targets();
        if !targets.has_slow() {
            return Err(Error::invalid(format!(
                "the pool has no slow target to fill: add one with `{}`",
                self.command("pool add", &["PLACE", "--tier", "slow"])
            )));
        }
        targets.check()?;
        let (mut domains, mut away) = (BTreeSet::new(), None);
        for (_, member) in targets.of_tier(Tier::Slow) {
            match member.look() {
                Ok(()) if member.is_active() => drop(domains.insert(member.domain.clone())),
                Ok(()) => {}
                Err(error) => away = away.or(Some(error)),
            }
        }
        if domains.is_empty() {
            let leaving = || Error::invalid("every slow target is being emptied: add another one");
            return Err(away.unwrap_or_else(leaving));
        }
        let geometry = self.config().geometry();
        let (k, all) = (usize::from(geometry.k), usize::from(geometry.k) + usize::from(geometry.m));
        let apart = domains.len() >= all;
        let mut there: BTreeMap<PackId, Vec<(u8, usize)>> = BTreeMap::new();
        let mut unasked = None;
        for (number, member) in targets.of_tier(Tier::Slow) {
            match member.durable() {
                Err(error) => unasked = unasked.or(Some(error)),
                Ok(listed) => {
                    for ShardName { pack, shard } in listed {
                        if usize::from(shard) < all {
                            there.entry(pack).or_default().push((shard, number));
                        }
                    }
                }
            }
        }
        let wanted = if apart { all } else { k };
        Ok(FillNeed { wanted, apart, there, targets, unasked })
    }

    /// Copies those shards of a pack that the slow tier lacks, each part of them checked. It may be stopped
    /// at any moment, and begun again: a shard is there as a whole or not at all.
    ///
    /// # Errors
    /// `Retry` if the targets have changed since `need` was found out. What concerns single shards is in
    /// what is answered.
    pub fn fill_pack(&self, pack: PackId, need: &FillNeed) -> Result<PackFill> {
        let targets = self.targets();
        if !need.is_of(self) {
            return Err(Error::retry("the targets of the pool have changed: fill again"));
        }
        let mut fill = PackFill::default();
        let mut there = need.staying(pack);
        let mut numbers: BTreeSet<u8> = there.iter().map(|(number, _)| *number).collect();
        // The data first; parity in the place of what cannot be copied just now.
        for shard in self.shards_of(pack) {
            if numbers.len() >= need.wanted {
                break;
            }
            if numbers.contains(&shard.shard) {
                continue;
            }
            let member = match self.fill_shard(&targets, shard, &there, need.apart) {
                Ok((member, bytes)) => {
                    fill.shards += 1;
                    fill.bytes += bytes;
                    member
                }
                // Where a log has no locks, another may have copied it meanwhile.
                Err(error) => match kept_slow_copies(&targets, shard) {
                    Copies { members, .. } if !members.is_empty() => members[0],
                    Copies { unasked, .. } => {
                        // Whether it is there already could not be asked.
                        let error = rather(unasked, error);
                        // Or moved it to a target that came meanwhile.
                        targets.forget(shard);
                        self.refresh_targets()?;
                        if !need.is_of(self) {
                            return Err(Error::retry(
                                "the targets of the pool have changed: fill again",
                            ));
                        }
                        // One that is missing until a repair is not why, if another might have taken its place.
                        fill.why = Some(rather(fill.why.take(), error));
                        continue;
                    }
                },
            };
            numbers.insert(shard.shard);
            there.push((shard.shard, member));
            fill.new.push((shard.shard, member));
        }
        fill.left = need.wanted.saturating_sub(numbers.len());
        if fill.left == 0 {
            fill.why = None;
        }
        Ok(fill)
    }

    /// Deletes a pack from the fast tier that the slow one has as a whole: every byte is read there before.
    /// Returns how many bytes were read for that, and how many it frees. To be called under [`Pool::lock_trimming`].
    ///
    /// # Errors
    /// Why the slow tier cannot be relied on: then nothing was deleted. What a fast target reports.
    pub fn trim_pack(&self, pack: PackId, need: &FillNeed) -> Result<(u64, u64)> {
        let targets = self.targets();
        if !need.is_of(self) {
            return Err(Error::retry("the targets of the pool have changed: trim again"));
        }
        let (mut whole, mut read_bytes, mut why) = (0, 0, None);
        for shard in self.shards_of(pack) {
            let mut copies = kept_slow_copies(&targets, shard).members.into_iter();
            let is_whole = copies.any(|number| match self.secure_on(&targets, shard, number) {
                Ok(bytes) => {
                    read_bytes += bytes;
                    true
                }
                Err(error) => {
                    why = why.take().or(Some(error));
                    false
                }
            });
            whole += usize::from(is_whole);
            if whole >= need.wanted {
                break;
            }
        }
        if whole < need.wanted {
            let missing = || Error::damaged(format!("pack {pack} is not whole on the slow tier"));
            return Err(why.unwrap_or_else(missing));
        }
        // If the log has no locks, an operator may have ended the claim of this process.
        if let Some(table) = self.table() {
            table.check_claim()?;
        }
        let freed_bytes = self.fast_bytes(pack);
        let deleted =
            self.shards_of(pack).into_iter().try_for_each(|shard| targets.delete_fast(shard));
        deleted.map_err(|error| {
            error.context(
                "it is whole on the slow tier, and it is not known how much of it is still on the fast one",
            )
        })?;
        Ok((read_bytes, freed_bytes))
    }

    /// Bytes that a pack occupies on the fast targets that can be asked.
    pub fn fast_bytes(&self, pack: PackId) -> u64 {
        let targets = self.targets();
        let on = |member: &Member| {
            let each = self.shards_of(pack).into_iter();
            each.filter_map(|shard| member.target().length(shard).ok()).sum::<u64>()
        };
        targets.of_tier(Tier::Fast).map(|(_, member)| on(member)).sum()
    }

    /// Keeps others from collecting and from changing the targets, for who deletes from the fast tier what the
    /// slow one has.
    ///
    /// # Errors
    /// `Retry` while another is at work; what the log reports.
    pub fn lock_trimming(&self) -> Result<Exclusive> {
        self.changing().map(|(_, alone)| alone)
    }

    fn fill_shard(
        &self,
        targets: &TargetSet,
        shard: ShardName,
        there: &[(u8, usize)],
        apart: bool,
    ) -> Result<(usize, u64)> {
        let named = |error: Error| error.context(format!("shard {shard}"));
        let mut scan =
            Scan::open(self, shard.pack, Breadth::Shards(&[shard.shard])).map_err(named)?;
        let there: Vec<usize> = there.iter().map(|(_, number)| *number).collect();
        let begun = targets.begin_slow(shard, &there, apart, shard_bytes(&scan)?)?;
        let (member, writer) = begun.ok_or_else(|| {
            Error::new(ErrorKind::Full, format!("no slow target has room for shard {shard}"))
        })?;
        let new = vec![NewShard::new(shard.shard, writer)];
        let bytes = write_shards(self, &mut scan, new).map_err(named)?.into_iter().sum();
        targets.members()[member].has_finished(shard);
        Ok((member, bytes))
    }
}

/// The copies of a shard on slow targets that stay.
fn kept_slow_copies(targets: &TargetSet, shard: ShardName) -> Copies {
    let mut copies = targets.copies_on(&[Tier::Slow], shard);
    copies.members.retain(|number| targets.members()[*number].is_active());
    copies
}

#[cfg(test)]
mod tests;
