//! Programs that harm single targets within the pool's redundancy, and one that tests the pool's
//! own report.

use crate::actor::{Actor, Done};
use crate::blows::{Blow, disk_of};
use crate::one_step::in_one_step;
use crate::whole::whole_ranks;
use crate::world::PoolWorld;
use outlive_backend::CutMode;
use outlive_pool::{TargetState, Tier};
use outlive_store::{Job, JobOptions, checkpoint_redundancy};
use outlive_types::sync::pause;
use outlive_types::{Epoch, JobName, SeededRng};
use std::collections::BTreeMap;

/// Failure domains: the targets of one host, or a target by itself.
pub(crate) type Domains = Vec<Vec<usize>>;

impl Actor {
    /// Flips bits of shards, one after the other.
    pub(crate) fn flipper(&self, rounds: u64) -> Done {
        for _ in 0..rounds {
            self.let_time_pass(50);
            pause("a bit flips");
            if self.pool_world.world.crashed() {
                return Ok(());
            }
            // Several at once: of different containers, in different shards.
            for _ in 0..1 + self.rng.below(4) {
                let stored = self.pool_world.world.stored();
                if stored.is_empty() {
                    break;
                }
                let (disk, shard, bytes) = &stored[self.rng.below(stored.len() as u64) as usize];
                // Fragments rather than the header.
                let offset = match self.rng.below(8) {
                    0 => self.rng.below(bytes.len() as u64),
                    _ => 4096.min(bytes.len() as u64 - 1) + self.rng.below(bytes.len() as u64),
                };
                let offset = offset.min(bytes.len() as u64 - 1);
                let blow = Blow::Flip { shard: *shard, offset, mask: 1 << self.rng.below(8) };
                if self.pool_world.strike(*disk, &blow) {
                    let what = || format!("a bit of {shard} on disk {disk} flips at {offset}");
                    self.dice.turns().remark(what);
                    self.dice.achieved("a bit flips");
                }
            }
        }
        Ok(())
    }

    /// Makes disks fail, one after the other.
    pub(crate) fn disks(&self, rounds: u64) -> Done {
        let mut copy = None;
        let mut markers_lost = 0;
        for _ in 0..rounds {
            self.let_time_pass(60);
            pause("a disk fails");
            if self.pool_world.world.crashed() {
                return Ok(());
            }
            let disks: Vec<usize> =
                in_one_step(|| self.pool_world.good_targets()).into_keys().collect();
            if disks.is_empty() {
                return Ok(());
            }
            let disk = disks[self.rng.below(disks.len() as u64) as usize];
            let modes = CutMode::ALL;
            let blow = match self.rng.below(8) {
                0 | 1 => Blow::Away,
                2 => Blow::Empty { marker: true },
                3 if self.pool_world.space.operated
                    && markers_lost < self.pool_world.space.survives() =>
                {
                    markers_lost += 1;
                    Blow::Empty { marker: false }
                }
                4 | 5 => Blow::Cut(modes[self.rng.below(3) as usize]),
                _ => match copy.take() {
                    Some((disk, marker, old)) => {
                        let now = self.pool_world.markers.lock().get(&disk).copied();
                        let blow = Blow::RolledBack(old);
                        if marker == now && self.pool_world.strike(disk, &blow) {
                            self.dice.turns().remark(|| format!("disk {disk} is as it was"));
                            self.dice.achieved("a disk is as it was");
                        }
                        continue;
                    }
                    None => {
                        let marker = self.pool_world.markers.lock().get(&disk).copied();
                        copy = Some((disk, marker, self.pool_world.world.copy_of(disk)));
                        continue;
                    }
                },
            };
            if !self.pool_world.strike(disk, &blow) {
                continue;
            }
            self.dice.turns().remark(|| format!("disk {disk}: {blow:?}"));
            match blow {
                Blow::Away => {
                    (0..self.rng.below(80)).for_each(|_| pause("a disk is away"));
                    self.pool_world.world.set_away(disk, false);
                    self.dice.turns().remark(|| format!("disk {disk} is back"));
                    self.dice.achieved("a disk is back");
                }
                Blow::Cut(_) => self.dice.achieved("a disk loses its power"),
                _ => self.dice.achieved("a disk is empty"),
            }
        }
        Ok(())
    }

    /// Makes targets slow, one after the other. Operations that were given up happen later, in any
    /// order; or never, if the target is started again.
    pub(crate) fn sluggard(&self, rounds: u64) -> Done {
        let world = &self.pool_world.world;
        for _ in 0..rounds {
            self.let_time_pass(20);
            pause("a target gets slow");
            let disks: Vec<usize> =
                in_one_step(|| self.pool_world.good_targets()).into_keys().collect();
            if world.crashed() || disks.is_empty() {
                return Ok(());
            }
            let disk = disks[self.rng.below(disks.len() as u64) as usize];
            let (is_away, is_left_alone) = (self.rng.below(4) == 0, self.rng.below(2) == 0);
            if !self.pool_world.strike(disk, &Blow::Slow { is_away, is_left_alone }) {
                continue;
            }
            self.dice.turns().remark(|| format!("target {disk} gets slow"));
            for _ in 0..self.rng.below(400) {
                pause("a target is slow");
                if world.crashed() {
                    return Ok(());
                }
                self.one_happens(32);
            }
            if self.rng.below(4) == 0 {
                let mode = CutMode::ALL[self.rng.below(3) as usize];
                if self.pool_world.strike(disk, &Blow::Cut(mode)) {
                    self.dice.turns().remark(|| format!("target {disk} is started again"));
                }
            }
            world.set_quick(disk);
            self.dice.turns().remark(|| format!("target {disk} answers"));
            while world.late() > 0 {
                pause("a target is behind");
                self.one_happens(16);
            }
        }
        Ok(())
    }

    /// Lets an operation that was given up happen, with a chance of one in `of`.
    fn one_happens(&self, of: u64) {
        let late = self.pool_world.world.late() as u64;
        if late == 0 || self.rng.below(of) > 0 {
            return;
        }
        let which = self.rng.below(late) as usize;
        if let Some(name) = self.pool_world.world.let_happen(which) {
            self.dice.turns().remark(|| format!("{name} happens late"));
            let what = name.split_whitespace().next().unwrap_or_default();
            self.dice.achieved(match what {
                "finish" => "a finish happens late",
                _ => "a deletion happens late",
            });
        }
    }

    /// Takes away, at several moments, as many targets as the pool reports that it can lose.
    pub(crate) fn doubter(&self, rounds: u64) -> Done {
        for _ in 0..rounds {
            self.let_time_pass(60);
            pause("take the pool at its word");
            if self.is_over() {
                return Ok(());
            }
            let (pool_world, rng) = (&self.pool_world, SeededRng::new(self.rng.next_u64()));
            match in_one_step(|| pool_world.at_its_word(&rng)) {
                Ok(0) => {}
                Ok(_) => self.dice.achieved("targets are taken away"),
                Err(what) => return Err(self.violate(what)),
            }
        }
        Ok(())
    }
}

impl PoolWorld {
    /// Returns the fast targets that are there, by failure domain. Closed ones count: the pool
    /// counts their shards.
    pub(crate) fn domains(&self) -> Domains {
        let mut domains: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        if !self.space.has_table() {
            return self.good_targets().into_keys().map(|disk| vec![disk]).collect();
        }
        let markers = self.markers.lock().clone();
        for row in self.rows() {
            let is_fast = row.tier == Tier::Fast && row.state != TargetState::Lost;
            let is_there =
                |disk: &usize| markers.get(disk) == row.id.as_ref() && !self.world.is_away(*disk);
            let disk = disk_of(&row).filter(|_| is_fast).filter(is_there);
            let Some(disk) = disk else { continue };
            let alone = format!("disk {disk}");
            domains.entry(row.host.clone().unwrap_or(alone)).or_default().push(disk);
        }
        domains.into_values().collect()
    }

    /// Returns the locations of slow targets.
    pub(crate) fn slow_targets(&self) -> Vec<usize> {
        if !self.space.has_table() {
            return Vec::new();
        }
        let rows = self.rows().into_iter().filter(|row| row.tier == Tier::Slow);
        rows.filter_map(|row| disk_of(&row)).collect()
    }

    /// Restores a checkpoint while as many targets are away as it can lose. Returns their number.
    fn at_its_word(&self, rng: &SeededRng) -> Result<usize, String> {
        let (pool, _) = self.quiet_pool(rng.next_u64());
        let Ok(found) = checkpoint_redundancy(&pool) else { return Ok(0) };
        let is_fast_clean = self.is_clean(Tier::Fast);
        // The fast tier must suffice, unless the pool keeps some data on the slow tier only.
        let is_fast_enough = is_fast_clean && self.space.keeps == 0;
        let is_clean = is_fast_clean && (is_fast_enough || self.is_clean(Tier::Slow));
        let spared = found.into_iter().filter_map(|one| {
            let spare = one.spare.ok().filter(|spare| *spare >= 0)?;
            let committed = self.oracle.committed(&one.job).remove(&one.epoch)?;
            let is_sure = !one.incomplete && !committed.doomed;
            is_sure.then_some((one.job, one.epoch, spare as usize))
        });
        let spared: Vec<(JobName, Epoch, usize)> = spared.collect();
        if spared.is_empty() {
            return Ok(0);
        }
        let (job, epoch, spare) = &spared[rng.below(spared.len() as u64) as usize];
        // The pool cannot know of damage.
        let spare = if is_clean { *spare } else { 0 };
        let mut lost = some_of(&self.domains(), spare, rng);
        let count = lost.len();
        if is_fast_enough {
            lost.extend(self.slow_targets());
        }
        self.restored_without(&lost, job, *epoch, rng).map_err(|what| {
            format!("{spare} more fast targets may be lost, and {lost:?} are away: {what}")
        })?;
        Ok(count)
    }

    /// Restores a checkpoint while these locations are away.
    pub(crate) fn restored_without(
        &self,
        disks: &[usize],
        job: &JobName,
        epoch: Epoch,
        rng: &SeededRng,
    ) -> Result<(), String> {
        let Some(committed) = self.oracle.committed(job).remove(&epoch) else { return Ok(()) };
        let taken: Vec<usize> =
            disks.iter().copied().filter(|disk| !self.world.set_away(*disk, true)).collect();
        let (pool, _) = self.quiet_pool(rng.next_u64());
        let opened = Job::open(&pool, job.as_str(), JobOptions::default());
        let restored = opened
            .map_err(|error| error.to_string())
            .and_then(|job| whole_ranks(&job, epoch, &committed, false));
        for disk in taken {
            self.world.set_away(disk, false);
        }
        restored
    }
}

/// Returns the locations of `count` random domains.
pub(crate) fn some_of(domains: &Domains, count: usize, rng: &SeededRng) -> Vec<usize> {
    let mut left: Vec<&Vec<usize>> = domains.iter().collect();
    let mut disks = Vec::new();
    for _ in 0..count.min(left.len()) {
        disks.extend(left.swap_remove(rng.below(left.len() as u64) as usize));
    }
    disks
}
