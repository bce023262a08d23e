//! Begins shards, each where it belongs.

use super::{BegunShard, Member, TargetSet, placement};
use crate::descriptor::redundancy::{Tier, Writes};
use outlive_backend::{ShardName, ShardWriter};
use outlive_types::{Error, ErrorKind, PackId, Result};
use std::collections::HashMap;

impl TargetSet {
    /// Begins `count` shards of a pack, each in its own domain. If one cannot be begun, another
    /// target takes its place, as far as there is one.
    ///
    /// # Errors
    /// If more shards cannot be begun than may be missing: the error of the first of them. `Full`
    /// if only room is lacking.
    pub fn create(
        &self,
        pack: PackId,
        count: usize,
        bytes_max: u64,
    ) -> Result<Vec<Result<BegunShard>>> {
        let choices = placement::choices(self, Tier::Fast, pack, bytes_max);
        let mut chosen = placement::apart(&self.members, &choices, count);
        // In the preferred order, so that readers ask the right one first.
        let order = placement::preferred(&self.members, Tier::Fast, pack);
        chosen.sort_by_key(|number| order.iter().position(|other| other == number));
        let mut refused = HashMap::new();
        let mut shards: Vec<Option<BegunShard>> = (0..count).map(|_| None).collect();
        let mut next: Vec<(usize, usize)> = chosen.into_iter().enumerate().collect();
        while !next.is_empty() {
            for (shard, member) in std::mem::take(&mut next) {
                let name = ShardName { pack, shard: shard as u8 };
                let target = &self.members[member];
                let begun =
                    self.refuse_second(name).and_then(|()| target.target().create(name, bytes_max));
                match begun {
                    Ok(writer) => {
                        let under_way = target.begin(bytes_max);
                        shards[shard] = Some(BegunShard { writer, member, under_way });
                    }
                    // The shard exists, so every target refuses it.
                    Err(error)
                        if error.kind() == ErrorKind::Invalid
                            && self.find_on(Tier::Fast, name).is_ok() =>
                    {
                        return Err(error);
                    }
                    Err(error) => drop(refused.insert(member, error)),
                }
            }
            let others: Vec<usize> = {
                let used: Vec<usize> = shards.iter().flatten().map(|begun| begun.member).collect();
                let is_used = |number: &usize| {
                    let domain = &self.members[*number].domain;
                    used.iter().any(|one| self.members[*one].domain == *domain)
                };
                choices
                    .iter()
                    .filter(|n| !refused.contains_key(*n) && !is_used(n))
                    .copied()
                    .collect()
            };
            let others = placement::apart(&self.members, &others, count);
            let missing = (0..count).filter(|shard| shards[*shard].is_none());
            next = missing.zip(others).collect();
        }
        let missing = shards.iter().filter(|shard| shard.is_none()).count();
        let why = || self.why_not(&refused);
        if missing > self.may_lack(count) {
            return Err(why());
        }
        Ok(shards.into_iter().map(|shard| shard.ok_or_else(why)).collect())
    }

    /// Begins a shard on a target that fails by itself: on no host of the targets in `used`, and on
    /// none that has a shard of that name. `None` if no target can take it.
    ///
    /// # Errors
    /// Error of a target that has room, but does not take it now.
    pub fn begin_apart(
        &self,
        shard: ShardName,
        used: &[usize],
        bytes_max: u64,
    ) -> Result<Option<(usize, Box<dyn ShardWriter>)>> {
        let domain = |number: usize| self.members[number].domain.as_str();
        let is_used = |number: usize| used.iter().any(|other| domain(*other) == domain(number));
        let choices = placement::choices(self, Tier::Fast, shard.pack, bytes_max);
        self.begin_on(choices.into_iter().filter(|number| !is_used(*number)), shard, bytes_max)
    }

    /// Begins a copy of a shard on a slow target; `None` if none can take it. With `apart`, only
    /// hosts without another shard of the pack count. Otherwise those with the fewest come first.
    /// `there` lists the slow targets that have shards of the pack, once for each shard.
    ///
    /// # Errors
    /// Error of a target that has room, but does not take it now.
    pub fn begin_slow(
        &self,
        shard: ShardName,
        there: &[usize],
        apart: bool,
        bytes_max: u64,
    ) -> Result<Option<(usize, Box<dyn ShardWriter>)>> {
        let domain = |number: usize| self.members[number].domain.as_str();
        let beside =
            |number: usize| there.iter().filter(|other| domain(**other) == domain(number)).count();
        let mut choices = placement::choices(self, Tier::Slow, shard.pack, bytes_max);
        choices.sort_by_key(|number| beside(*number));
        let choices = choices.into_iter().filter(|number| !apart || beside(*number) == 0);
        self.begin_on(choices, shard, bytes_max)
    }

    /// Begins a shard on the first of these targets that takes it.
    fn begin_on(
        &self,
        choices: impl Iterator<Item = usize>,
        shard: ShardName,
        bytes_max: u64,
    ) -> Result<Option<(usize, Box<dyn ShardWriter>)>> {
        let mut refused = None;
        for number in choices {
            // If one cannot take it, the others are asked all the same.
            match self.members[number].target().create(shard, bytes_max) {
                Ok(writer) => return Ok(Some((number, writer))),
                Err(error) if error.kind() == ErrorKind::Full => {}
                // It has the shard already, which was not known, since it could not be listed.
                Err(error) if error.kind() == ErrorKind::Invalid => {
                    refused = refused.or(Some(Error::retry(error.message())));
                }
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        refused.map_or(Ok(None), Err)
    }

    /// Returns how many of `count` shards a new pack may lack.
    pub fn may_lack(&self, count: usize) -> usize {
        match self.redundancy.writes {
            Writes::Degraded => self.survives().min(count.saturating_sub(1)),
            Writes::Full => 0,
        }
    }

    /// Returns why there are not enough targets for a pack.
    fn why_not(&self, refused: &HashMap<usize, Error>) -> Error {
        if let Some(full) = refused.values().find(|error| error.kind() == ErrorKind::Full) {
            return full.clone();
        }
        let mut refused: Vec<(&usize, &Error)> = refused.iter().collect();
        refused.sort_by_key(|(number, _)| **number);
        let refused = refused.first().map(|(_, error)| (*error).clone());
        let away = || self.of_tier(Tier::Fast).find_map(|(_, member)| member.away());
        let vacant = || {
            let vacant = self.of_tier(Tier::Fast).filter(|(_, member)| member.is_vacant).count();
            (vacant > 0).then(|| {
                Error::retry(format!(
                    "no node has taken {vacant} of the pool's seats: start `outlive node local` on more hosts"
                ))
            })
        };
        let leaving = || {
            let leaves = |(_, member): (usize, &Member)| member.is_volatile && !member.is_active();
            let leaving = self.of_tier(Tier::Fast).any(leaves);
            leaving
                .then(|| Error::retry("a host is leaving the pool, and the others are too few now"))
        };
        let error = refused.or_else(away).or_else(vacant).or_else(leaving);
        error.unwrap_or_else(|| {
            Error::invalid(
                "there are too few targets that fail by themselves for this pool's redundancy",
            )
        })
    }

    /// Refuses a second shard of a name, wherever the first one is.
    fn refuse_second(&self, shard: ShardName) -> Result<()> {
        if self.members.len() == 1 {
            return Ok(()); // that target does so itself
        }
        // A slow target has only shards that a fast one had before.
        match self.find_here(&[Tier::Fast], shard) {
            Ok(Some(number)) => Err(Error::invalid(format!(
                "shard {shard} is on {} already",
                self.members[number].target().describe()
            ))),
            Ok(None) => Ok(()),
            // Names are new: the shard is not on a target that is away now, unless a repair has put
            // it there.
            Err(_) if self.survives() > 0 => Ok(()),
            Err(error) => Err(error),
        }
    }
}
