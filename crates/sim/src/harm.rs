//! Harm to single targets that a pool must survive. Each blow is checked before it falls: enough of
//! each pack must remain that its redundancy makes up for the rest. So no blow excuses the loss of
//! a checkpoint.

use crate::blows::{
    Blow, Damage, ShardCopy, claim_of, container_at, containers_of, damage_of, disk_of,
};
use crate::one_step::in_one_step;
use crate::world::PoolWorld;
use outlive_backend::{CutMode, FaultProcess, ShardName};
use outlive_pool::{TargetConfig, TargetState, Tier, Writes};
use outlive_store::named_packs;
use outlive_types::{JobName, PackId};
use std::collections::{BTreeMap, BTreeSet};

impl PoolWorld {
    /// Strikes a location, if the pool must survive that. Returns whether it did.
    pub(crate) fn strike(&self, disk: usize, blow: &Blow) -> bool {
        in_one_step(|| {
            let falls = self.survives_blow(disk, blow);
            if falls {
                self.hit(disk, blow);
            }
            falls
        })
    }

    /// Returns the fast and slow targets that are there and count: each location with its tier.
    /// Without a table these are all the first ones.
    pub(crate) fn good_targets(&self) -> BTreeMap<usize, Tier> {
        let mut disks = self.own_targets();
        disks.retain(|disk, _| !self.world.is_away(*disk));
        disks
    }

    /// Returns the same, with the targets that cannot be reached now.
    fn own_targets(&self) -> BTreeMap<usize, Tier> {
        match self.space.has_table() {
            false => (0..self.space.targets).map(|disk| (disk, Tier::Fast)).collect(),
            true => {
                let markers = self.markers.lock().clone();
                let rows = self.rows().into_iter();
                let there = rows.filter(|row| row.state.counts()).filter_map(|row| {
                    let disk = disk_of(&row)?;
                    (markers.get(&disk) == row.id.as_ref()).then_some((disk, row.tier))
                });
                there.collect()
            }
        }
    }

    /// Returns all copies on targets of the pool, with their damage.
    fn copies(&self) -> Vec<ShardCopy> {
        let (own, mut facts) = (self.own_targets(), self.harm.facts.lock());
        let mut copies = Vec::new();
        for (disk, shard, bytes) in self.world.stored() {
            let whole = facts.whole.entry(shard).or_insert_with(|| bytes.clone());
            if let Some(tier) = own.get(&disk) {
                let (tier, damage) = (*tier, damage_of(whole, &bytes));
                let is_mended = damage == Damage::none();
                if is_mended && let Some(hit) = facts.hit.get_mut(&shard.pack) {
                    hit.remove(&shard.shard);
                }
                let is_there = !self.world.is_away(disk);
                copies.push(ShardCopy { disk, shard, tier, damage, is_there });
            }
        }
        copies
    }

    /// Whether every copy on the targets of a tier is whole.
    pub(crate) fn is_clean(&self, tier: Tier) -> bool {
        let copies = self.copies();
        let is_whole = copies.iter().all(|it| it.tier != tier || it.damage == Damage::none());
        is_whole && self.closed_targets().into_iter().all(|disk| self.is_whole(disk))
    }

    /// Returns the targets that are closed, whose shards the pool still counts.
    fn closed_targets(&self) -> Vec<usize> {
        if !self.space.has_table() {
            return Vec::new();
        }
        let closed = self.rows().into_iter().filter(|row| row.state == TargetState::Closed);
        closed.filter_map(|row| disk_of(&row)).collect()
    }

    fn is_whole(&self, disk: usize) -> bool {
        let facts = self.harm.facts.lock();
        self.world.copy_of(disk).shards().all(|(shard, bytes)| {
            facts.whole.get(&shard).is_none_or(|whole| damage_of(whole, bytes) == Damage::none())
        })
    }

    /// Returns for each pack the number of whole shards in its worst container.
    fn least(&self, copies: &[ShardCopy]) -> BTreeMap<PackId, usize> {
        let mut packs: BTreeMap<PackId, Vec<&ShardCopy>> = BTreeMap::new();
        for copy in copies {
            packs.entry(copy.shard.pack).or_default().push(copy);
        }
        // A program that deletes one of several copies has read another one, so both must be whole.
        let all_tiers = self.space.operated || self.space.keeps > 0;
        let facts = self.harm.facts.lock();
        let least = |copies: &Vec<&ShardCopy>| {
            let whole = facts.whole.get(&copies[0].shard).expect("it was seen");
            let good = |container: u64| {
                let shards: BTreeSet<u8> = copies.iter().map(|copy| copy.shard.shard).collect();
                let is_good = |shard: &&u8| {
                    // A copy that is away comes back unchanged.
                    let of = |tier: Option<Tier>| {
                        let mut of = copies.iter().filter(|copy| {
                            copy.shard.shard == **shard && tier.is_none_or(|tier| tier == copy.tier)
                        });
                        let is_whole = of.clone().all(|copy| !copy.damage.hits(container));
                        is_whole && of.any(|copy| copy.is_there)
                    };
                    match all_tiers {
                        true => of(None),
                        false => of(Some(Tier::Fast)) || of(Some(Tier::Slow)),
                    }
                };
                shards.iter().filter(is_good).count()
            };
            (0..containers_of(whole)).map(good).min().unwrap_or(0)
        };
        packs.iter().map(|(pack, copies)| (*pack, least(copies))).collect()
    }

    fn survives_blow(&self, disk: usize, blow: &Blow) -> bool {
        let before = self.copies();
        let mut after = before.clone();
        match blow {
            Blow::Flip { shard, offset, .. } => {
                let facts = self.harm.facts.lock();
                let Some(whole) = facts.whole.get(shard) else { return false };
                let is_it = |copy: &&mut ShardCopy| copy.disk == disk && copy.shard == *shard;
                let Some(hit) = after.iter_mut().find(is_it) else { return false };
                match (container_at(whole, *offset), &mut hit.damage) {
                    (Some(container), Damage::Containers(there)) => drop(there.insert(container)),
                    (_, damage) => *damage = Damage::All,
                }
            }
            Blow::RolledBack(copy) => {
                let facts = self.harm.facts.lock();
                let old: BTreeMap<_, _> = copy.shards().collect();
                after.retain_mut(|there| match old.get(&there.shard) {
                    _ if there.disk != disk => true,
                    None => false,
                    Some(bytes) => {
                        let whole = facts.whole.get(&there.shard).expect("it was seen");
                        there.damage = damage_of(whole, bytes);
                        true
                    }
                });
            }
            Blow::Cut(CutMode::Kept) => {}
            _ => after.retain(|copy| copy.disk != disk),
        }
        // These are as good as gone: an operator may stand still behind its decision.
        let late = self.world.late_deletes();
        let given_up = self.harm.facts.lock().given_up.clone();
        let markers = self.markers.lock().clone();
        after.retain(|copy| {
            let id = markers.get(&copy.disk).copied().unwrap_or_default();
            !late.contains(&(copy.disk, copy.shard)) && !given_up.contains(&(copy.disk, id))
        });
        let (before, after) = (self.least(&before), self.least(&after));
        let (k, m) = (usize::from(self.geometry().0), self.space.survives());
        let mut named = None;
        let chances = self.dice.chances();
        let may_lack_more = self.space.redundancy.writes == Writes::Degraded
            && chances.error + chances.lost_reply > 0;
        let hit = self.harm.facts.lock().hit.clone();
        let (stored, begun, own) = (self.world.stored(), self.world.begun(), self.own_targets());
        let packs: BTreeSet<PackId> =
            before.keys().copied().chain(begun.iter().map(|(_, shard)| shard.pack)).collect();
        packs.iter().all(|pack| {
            let of =
                |on: usize, shard: ShardName| (shard.pack == *pack).then_some((on, shard.shard));
            let there: BTreeSet<(usize, u8)> =
                stored.iter().filter_map(|(on, shard, _)| of(*on, *shard)).collect();
            // A pack that is being written gets more shards.
            let to_come: BTreeSet<(usize, u8)> =
                begun.iter().filter_map(|(on, shard)| of(*on, *shard)).collect();
            let here = |(on, number): &(usize, u8)| (*on == disk).then_some(*number);
            let here: BTreeSet<u8> = match blow {
                Blow::Flip { shard, .. } => {
                    (shard.pack == *pack).then_some(shard.shard).into_iter().collect()
                }
                _ => there.iter().chain(&to_come).filter_map(here).collect(),
            };
            let before = before.get(pack).copied().unwrap_or(0);
            let after = after.get(pack).copied().unwrap_or(0);
            if after >= k || here.is_empty() {
                return true;
            }
            let named = named.get_or_insert_with(|| named_packs(&self.quiet_pool(0).0).ok());
            let is_named = named.as_ref().is_none_or(|named| named.packs.contains(pack));
            // Shards on an empty disk that is no target do not count.
            let is_astray = |(on, number): &(usize, u8)| (!own.contains_key(on)).then_some(*number);
            let astray = there.iter().chain(&to_come).filter_map(is_astray);
            let hit = hit.get(pack).into_iter().flatten().copied();
            let hit: BTreeSet<u8> = hit.chain(astray).chain(here.iter().copied()).collect();
            let numbers: BTreeSet<u8> = there.iter().map(|(_, number)| *number).collect();
            // Its writer does without shards that fail later, as it does not know of this one.
            let is_unseen = may_lack_more && here.iter().any(|number| numbers.contains(number));
            let is_harmless = match to_come.is_empty() {
                // A leftover pack is never finished.
                true => before < k && numbers.len() < k,
                false => hit.len() <= m && !is_unseen,
            };
            !is_named && is_harmless
        })
    }

    fn geometry(&self) -> (u8, u8) {
        let geometry = self.space.redundancy.geometry(64 << 10);
        (geometry.k, geometry.m)
    }

    /// Strikes, and notes the shards that were hit.
    fn hit(&self, disk: usize, blow: &Blow) {
        let begun = self.world.begun().into_iter().filter(|(on, _)| *on == disk);
        let begun: Vec<ShardName> = begun.map(|(_, shard)| shard).collect();
        let stored = || -> BTreeSet<ShardName> {
            self.world.copy_of(disk).shards().map(|(shard, _)| shard).collect()
        };
        let before = stored();
        self.fall(disk, blow);
        let hit: Vec<ShardName> = match blow {
            Blow::Flip { shard, .. } => vec![*shard],
            // Finished shards there stay as they are, so they excuse nothing.
            Blow::Away | Blow::Slow { .. } => begun,
            // Only names that were not durable are lost.
            Blow::Cut(_) => before.difference(&stored()).copied().chain(begun).collect(),
            Blow::Empty { .. } | Blow::RolledBack(_) | Blow::GivenUp => {
                before.into_iter().chain(begun).collect()
            }
        };
        let mut facts = self.harm.facts.lock();
        for shard in hit {
            facts.hit.entry(shard.pack).or_default().insert(shard.shard);
        }
    }

    fn fall(&self, disk: usize, blow: &Blow) {
        match blow {
            Blow::Flip { shard, offset, mask } => {
                self.oracle.is_bruised();
                self.world.corrupt_on(disk, *shard, *offset, *mask);
                return;
            }
            Blow::Away => drop(self.world.set_away(disk, true)),
            Blow::Slow { is_away, is_left_alone } => {
                self.world.set_slow(disk, *is_away, *is_left_alone);
            }
            Blow::Empty { marker } => {
                self.world.lose_target(disk);
                if !marker {
                    self.markers.lock().remove(&disk);
                }
            }
            Blow::RolledBack(copy) => self.world.roll_back(disk, copy),
            Blow::Cut(mode) => self.world.cut_target(disk, *mode),
            Blow::GivenUp => {
                let id = self.markers.lock().get(&disk).copied();
                self.harm.facts.lock().given_up.extend(id.map(|id| (disk, id)));
            }
        }
        self.oracle.is_struck();
        self.dice.fail();
    }

    /// Checks that the targets of the table hold enough of every pack that a checkpoint names, even
    /// if they are away or damaged now. `what` names the step that just changed this.
    pub(crate) fn check_named(&self, what: &str) {
        if !self.space.operated || self.oracle.is_damaged() || self.world.crashed() {
            return;
        }
        let found = in_one_step(|| self.gone());
        if let Some((pack, is_excused)) = found {
            match is_excused {
                // More harm has come together than the pool can know of.
                true => self.oracle.is_flipped(),
                false => self.oracle.violate(format!(
                    "{what}: too little of pack {pack}, which a checkpoint names, is on targets of the pool"
                )),
            }
        }
    }

    /// Returns a pack that checkpoints name and too few targets hold, and whether blows are the
    /// cause.
    fn gone(&self) -> Option<(PackId, bool)> {
        let named = named_packs(&self.quiet_pool(0).0).ok();
        let rows = self.rows();
        let markers = self.markers.lock().clone();
        let is_marked = |row: &TargetConfig| {
            let disk = disk_of(row)?;
            Some((disk, markers.get(&disk) == row.id.as_ref()))
        };
        let disks: BTreeMap<usize, bool> = rows.iter().filter_map(is_marked).collect();
        let mut there: BTreeMap<PackId, BTreeSet<u8>> = BTreeMap::new();
        let (mut unmarked, mut outside) = (there.clone(), there.clone());
        for (disk, shard, _) in self.world.stored() {
            let of = match disks.get(&disk) {
                Some(true) => &mut there,
                // The shard is on a new disk that is no target yet.
                Some(false) => &mut unmarked,
                // Or on a target that left meanwhile.
                None => &mut outside,
            };
            of.entry(shard.pack).or_default().insert(shard.shard);
        }
        let k = usize::from(self.geometry().0);
        let whole = self.least(&self.copies());
        let facts = self.harm.facts.lock();
        let is_known = named.is_some();
        // If the logs cannot be read, every pack counts as named, and only losses by blows are
        // returned.
        let all = || there.keys().chain(unmarked.keys()).copied().collect();
        let named: BTreeSet<PackId> = named.map_or_else(all, |named| named.packs);
        let gone = named.into_iter().find_map(|pack| {
            let there = there.get(&pack).cloned().unwrap_or_default();
            let mut hit = facts.hit.get(&pack).cloned().unwrap_or_default();
            hit.extend(unmarked.get(&pack).into_iter().flatten());
            let all = there.union(&hit).count();
            // Some shards left with a target, and too many of the others were hit.
            let mut outside = outside.get(&pack).into_iter().flatten();
            let is_hit = || whole.get(&pack).is_none_or(|whole| *whole < k);
            match there.len() < k {
                true => Some((pack, all >= k)),
                false => {
                    (outside.any(|it| !there.contains(it)) && is_hit()).then_some((pack, true))
                }
            }
        });
        gone.filter(|(_, is_excused)| is_known || *is_excused)
    }

    /// Notes a record of the table that a program wrote: a new claim in it belongs to the program.
    pub(crate) fn table_is_written(&self, record: &[u8], by: &FaultProcess) {
        if let Some(claim) = claim_of(record) {
            self.harm.facts.lock().claims.entry(claim).or_insert_with(|| by.clone());
        }
    }

    /// Ends the claim of a killed program, as an operator does who knows that it is dead.
    pub(crate) fn release_dead(&self) {
        in_one_step(|| {
            let log = self.log();
            let job = JobName::targets();
            let Ok(newest) = log.latest(&job) else { return };
            let record = log.read(&job, newest).unwrap_or_default();
            let Some(claim) = claim_of(&record) else { return };
            let holder = self.harm.facts.lock().claims.get(&claim).cloned();
            if holder.is_some_and(|holder| holder.is_killed()) {
                let _ = self.quiet_pool(0).0.release_targets();
                self.dice.achieved("a dead program's claim is ended");
            }
        });
    }
}
