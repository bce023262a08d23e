//! Programs about a slow target: they copy to it, and check that safe checkpoints stay safe.

use crate::actor::{Actor, Done};
use crate::blows::disk_of;
use crate::one_step::in_one_step;
use crate::whole::whole_ranks;
use crate::world::PoolWorld;
use outlive_log::Lock;
use outlive_pool::Tier;
use outlive_store::{FillOptions, Job, JobOptions, TrimOptions, checkpoint_redundancy, fill, trim};
use outlive_types::sync::pause;
use outlive_types::{Epoch, ErrorKind, JobName};
use std::collections::BTreeSet;

impl Actor {
    pub(crate) fn filler(&self, rounds: u64) -> Done {
        for _ in 0..rounds {
            self.let_time_pass(40);
            let filled = fill(&self.pool, FillOptions::default());
            let report = self.met("a fill", &JobName::gc(), filled, &self.without_slow())?;
            self.dice.turns().remark(|| format!("a fill: {report:?}"));
            if report.shards > 0 {
                self.dice.achieved("fill");
            }
        }
        Ok(())
    }

    pub(crate) fn trimmer(&self, rounds: u64) -> Done {
        for _ in 0..rounds {
            self.let_time_pass(80);
            let trimmed = trim(&self.pool, TrimOptions::default());
            let report = self.met("a trim", &JobName::gc(), trimmed, &self.without_slow())?;
            self.dice.turns().remark(|| format!("a trim: {report:?}"));
            if report.trimmed > 0 {
                self.dice.achieved("trim");
            }
        }
        Ok(())
    }

    /// Checks that checkpoints that were safe on the slow target at one moment can always be
    /// restored from there alone, unless a prune has dropped them.
    pub(crate) fn auditor(&self, rounds: u64) -> Done {
        let mut safe = BTreeSet::new();
        for _ in 0..rounds {
            self.let_time_pass(60);
            pause("look at the slow target");
            if self.is_over() {
                return Ok(());
            }
            let (pool_world, seed) = (&self.pool_world, self.rng.next_u64());
            // Data that is damaged on the slow tier is safe again after its repair.
            if pool_world.space.operated || self.oracle.is_hit() {
                safe.clear();
            }
            if self.oracle.has_bruises() && !in_one_step(|| pool_world.slow_is_whole()) {
                continue;
            }
            safe.extend(in_one_step(|| pool_world.safe_on_slow(seed)));
            if !safe.is_empty() {
                self.dice.achieved("safe on the slow tier");
            }
            safe.retain(|(job, epoch)| !self.is_doomed(job, *epoch));
            if let Err(what) = in_one_step(|| pool_world.slow_alone(&safe, seed)) {
                return Err(self.violate(what));
            }
        }
        Ok(())
    }

    /// Returns the errors of a program that needs a slow target: an operator may have removed the
    /// last one.
    fn without_slow(&self) -> Vec<ErrorKind> {
        let mut also = self.busy().to_vec();
        if self.pool_world.space.operated {
            also.extend([ErrorKind::Invalid, ErrorKind::Retry]);
        }
        also
    }

    fn is_doomed(&self, job: &JobName, epoch: Epoch) -> bool {
        self.oracle.committed(job).get(&epoch).is_none_or(|committed| committed.doomed)
    }
}

impl Actor {
    /// Restarts the host: the programs go on, but the content of its memory is lost.
    pub(crate) fn wiper(&self, rounds: u64) -> Done {
        for _ in 0..rounds {
            self.let_time_pass(120);
            pause("lose the memory of the host");
            let (pool_world, seed) = (&self.pool_world, self.rng.next_u64());
            let is_away = pool_world.world.crashed();
            // The slow tier may lose its power at the same time.
            let safe = || pool_world.world.as_after_a_cut(|| pool_world.safe_on_slow(seed));
            let safe = in_one_step(safe);
            self.dice.turns().remark(|| format!("memory is lost; safe are {safe:?}"));
            self.dice.fail();
            pool_world.oracle.wiped(&safe);
            for target in 0..pool_world.space.targets {
                pool_world.world.lose_target(target);
            }
            pool_world.markers.lock().retain(|there, _| *there >= pool_world.space.targets);
            if !is_away {
                self.dice.achieved("lose the memory of the host");
            }
        }
        Ok(())
    }
}

impl PoolWorld {
    /// Whether all slow targets are there, and whole.
    fn slow_is_whole(&self) -> bool {
        let good = self.good_targets();
        let rows = self.rows().into_iter().filter(|row| row.tier == Tier::Slow);
        let mut disks = rows.filter_map(|row| disk_of(&row));
        disks.all(|disk| good.contains_key(&disk)) && self.is_clean(Tier::Slow)
    }

    /// Returns the checkpoints that are safe on the slow target. None if that is unknown, or if no
    /// lock keeps fills and gcs apart.
    pub(crate) fn safe_on_slow(&self, seed: u64) -> BTreeSet<(JobName, Epoch)> {
        if self.world.crashed() {
            return BTreeSet::new();
        }
        let (pool, _) = self.quiet_pool(seed);
        if matches!(pool.log().lock_collecting(), Ok(Lock::None) | Err(_)) {
            return BTreeSet::new();
        }
        let found = checkpoint_redundancy(&pool).unwrap_or_default().into_iter();
        let safe = found.filter(|one| one.tiers.contains(&Tier::Slow));
        safe.map(|one| (one.job, one.epoch)).collect()
    }

    /// Restores checkpoints while all targets but the slow one are away.
    pub(crate) fn slow_alone(
        &self,
        checkpoints: &BTreeSet<(JobName, Epoch)>,
        seed: u64,
    ) -> Result<(), String> {
        let slow: BTreeSet<usize> = match self.space.operated {
            false => BTreeSet::from([self.space.targets]),
            true => {
                let rows = self.rows().into_iter().filter(|row| row.tier == Tier::Slow);
                rows.filter_map(|row| disk_of(&row)).collect()
            }
        };
        let fast = (0..self.space.targets_max()).filter(|number| !slow.contains(number));
        let taken: Vec<usize> = fast.filter(|number| !self.world.set_away(*number, true)).collect();
        let (pool, _) = self.quiet_pool(seed);
        let restored = checkpoints.iter().try_for_each(|(name, epoch)| {
            let committed = self.oracle.committed(name);
            let committed =
                committed.get(epoch).ok_or("a checkpoint that no program has committed")?;
            let job = Job::open(&pool, name.as_str(), JobOptions::default());
            let job = job.map_err(|error| error.to_string())?;
            whole_ranks(&job, *epoch, committed, false)
                .map_err(|what| format!("on the slow tier alone, where it was safe: {what}"))
        });
        for number in taken {
            self.world.set_away(number, false);
        }
        restored
    }
}
