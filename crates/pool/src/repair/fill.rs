//! Copies shards from the fast tier to the slow one, behind the saves.

use crate::Pool;
use crate::descriptor::redundancy::Tier;
use crate::repair::exclusive::Exclusive;
use crate::stripe::{Breadth, NewShard, Scan, shard_bytes, write_shards};
use crate::targets::{Copies, Member, TargetSet, rather};
use outlive_backend::ShardName;
use outlive_types::{Error, ErrorKind, PackId, Result, metrics};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Shards that the slow targets have, and the number that they should have of a pack.
#[derive(Clone, Debug)]
pub struct FillNeed {
    /// Number of shards of a pack that the slow tier should have: all, or as many as hold its data.
    wanted: usize,
    /// Whether no two shards of a pack may be on one host.
    apart: bool,
    /// Shards of each pack on slow targets: number of the shard, and of the target in the set.
    there: BTreeMap<PackId, Vec<(u8, usize)>>,
    /// Set in which the targets are numbered.
    targets: Arc<TargetSet>,
    /// Error of a slow target that could not list its shards.
    unasked: Option<Error>,
}

impl FillNeed {
    /// Returns whether the slow tier has any shard of a pack.
    pub fn has(&self, pack: PackId) -> bool {
        self.there.contains_key(&pack)
    }

    /// Returns whether it belongs to the targets that the pool has now.
    pub fn is_of(&self, pool: &Pool) -> bool {
        Arc::ptr_eq(&pool.targets(), &self.targets)
    }

    /// Returns why the list of a slow target is not known, if it is not.
    pub fn unasked(&self) -> Option<&Error> {
        self.unasked.as_ref()
    }

    /// Adds the shards of a pack that were copied.
    pub fn add(&mut self, pack: PackId, fill: &PackFill) {
        if !fill.new.is_empty() {
            self.there.entry(pack).or_default().extend(&fill.new);
        }
    }

    /// Returns how many shards of a pack the slow tier lacks.
    pub fn missing(&self, pack: PackId) -> usize {
        let numbers: BTreeSet<u8> = self.staying(pack).iter().map(|(number, _)| *number).collect();
        self.wanted.saturating_sub(numbers.len())
    }

    /// Returns the shards of a pack on slow targets that stay: a repair may drop those on the
    /// others.
    fn staying(&self, pack: PackId) -> Vec<(u8, usize)> {
        let there = self.there.get(&pack).into_iter().flatten();
        there.filter(|(_, on)| self.targets.members()[*on].is_active()).copied().collect()
    }
}

/// Result of the fill of one pack.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PackFill {
    /// Number of shards copied.
    pub shards: usize,
    /// These, and those that others have copied meanwhile: shard, and number of the target in the
    /// set.
    new: Vec<(u8, usize)>,
    /// Bytes of the shards copied.
    pub bytes: u64,
    /// Number of shards that the slow tier still lacks.
    pub left: usize,
    /// Reason why the first of them could not be copied.
    pub why: Option<Error>,
}

impl Pool {
    /// Returns whether the pool has a slow tier.
    pub fn has_slow_tier(&self) -> bool {
        self.targets().has_slow()
    }

    /// Returns whether a slow target takes copies; one that is being emptied does not.
    pub fn has_slow_to_fill(&self) -> bool {
        self.targets().of_tier(Tier::Slow).any(|(_, member)| member.is_active())
    }

    /// Returns whether too few fast targets are there, so that only data on slow ones can be read.
    pub fn is_slow_alone(&self) -> bool {
        let targets = self.targets();
        targets.has_slow() && targets.check().is_err()
    }

    /// Finds out which shards the slow tier has, at the start of a fill.
    ///
    /// # Errors
    /// `Invalid` without a slow target that takes copies; the error of a target if no slow one, or
    /// too few fast ones, can be reached.
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

    /// Copies those shards of a pack that the slow tier lacks, and checks each part. It may be
    /// stopped at any moment and called again: a shard is there as a whole or not at all.
    ///
    /// # Errors
    /// `Retry` if the targets have changed since `need` was computed. The returned value has the
    /// errors of single shards.
    pub fn fill_pack(&self, pack: PackId, need: &FillNeed) -> Result<PackFill> {
        let targets = self.targets();
        if !need.is_of(self) {
            return Err(Error::retry("the targets of the pool have changed: fill again"));
        }
        let mut fill = PackFill::default();
        let mut there = need.staying(pack);
        let mut numbers: BTreeSet<u8> = there.iter().map(|(number, _)| *number).collect();
        // Data first; then parity, in the place of data that cannot be copied now.
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
                    metrics::FILL_SHARDS.add(1);
                    metrics::FILL_COPIED.add(bytes);
                    member
                }
                // Where a log has no locks, another process may have copied it meanwhile.
                Err(error) => match kept_slow_copies(&targets, shard) {
                    Copies { members, .. } if !members.is_empty() => members[0],
                    Copies { unasked, .. } => {
                        // It is not known whether it is there already.
                        let error = rather(unasked, error);
                        // Another process may have moved it to a new target.
                        targets.forget(shard);
                        self.refresh_targets()?;
                        if !need.is_of(self) {
                            return Err(Error::retry(
                                "the targets of the pool have changed: fill again",
                            ));
                        }
                        // A shard that is missing until a repair is not the reason if another one
                        // might replace it.
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

    /// Deletes a pack from the fast tier if the slow tier has it whole: it reads every byte there
    /// first. Returns how many bytes it read for that, and how many it frees. The caller holds
    /// [`Pool::lock_trimming`].
    ///
    /// # Errors
    /// Reason why the slow tier is not reliable: then nothing was deleted. Errors of a fast target.
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
        let freed_bytes = self.fast_bytes(pack);
        // The lock ends with a session of a storage node, and an operator may end a claim.
        self.check_alone()?;
        let deleted = self.shards_of(pack).into_iter().try_for_each(|shard| {
            self.check_locks()?;
            targets.delete_fast(shard)
        });
        deleted.map_err(|error| {
            error.context(
                "it is whole on the slow tier, and it is not known how much of it is still on the fast one",
            )
        })?;
        Ok((read_bytes, freed_bytes))
    }

    /// Returns the bytes of a pack on the fast targets that can be reached.
    pub fn fast_bytes(&self, pack: PackId) -> u64 {
        let targets = self.targets();
        let on = |member: &Member| {
            let each = self.shards_of(pack).into_iter();
            each.filter_map(|shard| member.target().length(shard).ok()).sum::<u64>()
        };
        targets.of_tier(Tier::Fast).map(|(_, member)| on(member)).sum()
    }

    /// Keeps others from collecting and from changing the targets, while the caller trims the fast
    /// tier.
    ///
    /// # Errors
    /// `Retry` while another process does so; errors of the log.
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

/// Returns the copies of a shard on slow targets that stay.
fn kept_slow_copies(targets: &TargetSet, shard: ShardName) -> Copies {
    let mut copies = targets.copies_on(&[Tier::Slow], shard);
    copies.members.retain(|number| targets.members()[*number].is_active());
    copies
}

#[cfg(test)]
mod tests;
