//! The programs of a schedule: the work of each, and the errors that it may meet.

use crate::actor::{Actor, Done, End};
use crate::chance::Chance;
use crate::hold::{Looking, Saving};
use crate::oracle::Pending;
use crate::replicas::{REPLICAS, move_log};
use crate::roles::{A, B, G, O, R, Role};
use crate::space::Space;
use crate::state::State;
use crate::world::{Me, PoolWorld};
use outlive_capture::ChangeTracker;
use outlive_pool::RepairOptions;
use outlive_store::copy::{CopyOptions, copy};
use outlive_store::gc::{GcOptions, Thoroughness, collect};
use outlive_store::retention::Rules;
use outlive_store::scrub::{ScrubOptions, ScrubReport, scrub};
use outlive_store::{Finding, Job, JobOptions, Sample, SaveHandle, Select, Uses, repair};
use outlive_types::sync::{Condvar, Mutex, pause};
use outlive_types::{ErrorKind, JobName, SeededRng};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A program that is about to begin.
pub struct Program {
    /// Number of the program.
    pub number: usize,
    /// Role of the program.
    pub role: Role,
    /// Pool of the program.
    pub pool_world: PoolWorld,
    /// The second pool.
    pub other: PoolWorld,
    /// Randomness of the program.
    pub rng: SeededRng,
    /// The faults, and the scheduler.
    pub dice: Arc<Chance>,
}

impl Program {
    /// Runs the program.
    pub fn run(self) {
        let Program { number, role, pool_world, other, rng, dice } = self;
        let Some((pool, process)) = pool_world.pool(number, rng.next_u64()) else { return };
        let oracle = pool_world.oracle.clone();
        let actor = Actor { number, pool_world, oracle, pool, process, rng, dice };
        let _ = match role {
            Role::Saver { job, saves, restores, waits } => actor.saver(job, saves, restores, waits),
            Role::Emitter { saves } => actor.emitter(saves),
            Role::Killed { job, saves } => actor.killed(job, saves),
            Role::Returner { job } => actor.returner(job),
            Role::Twin { job } => actor.twin(job),
            Role::Reader { job } => actor.reader(job),
            Role::Lazy { job, prunes } => actor.lazy(job, prunes),
            Role::Verifier { job } => actor.verifier(job),
            Role::Gc { rounds, forgets, rewrites } => actor.gc(rounds, forgets, rewrites),
            Role::Prune { job, keep_last, collects } => {
                actor.prune(&JobName::new(job).expect("a name"), keep_last, collects)
            }
            Role::Delete { job } => actor.delete(job),
            Role::Rename { from, to } => actor.rename(from, to),
            Role::Scrub => actor.scrub(),
            Role::Repair { rounds } => actor.repair(rounds),
            Role::Filler { rounds } => actor.filler(rounds),
            Role::Trimmer { rounds } => actor.trimmer(rounds),
            Role::Auditor { rounds } => actor.auditor(rounds),
            Role::Operator { commands, is_alone } => actor.operator(commands, is_alone),
            Role::Flipper { rounds } => actor.flipper(rounds),
            Role::Disks { rounds } => actor.disks(rounds),
            Role::Sluggard { rounds } => actor.sluggard(rounds),
            Role::Doubter { rounds } => actor.doubter(rounds),
            Role::Loser => actor.loser(),
            Role::Wiper { rounds } => actor.wiper(rounds),
            Role::Absence => actor.absence(),
            Role::ReplicaAway => actor.replica_away(),
            Role::LogMover => actor.log_mover(),
            Role::Mover => actor.mover(),
            Role::Copy => actor.copy(&other),
            Role::Rollback { job } => actor.rollback(job),
            Role::Group(group) => actor.group(group),
            Role::GcThere => {
                let Some((pool, process)) = other.pool(number, actor.rng.next_u64()) else {
                    return;
                };
                let (oracle, dice) = (other.oracle.clone(), actor.dice.clone());
                let done =
                    Actor { pool, process, oracle, pool_world: other, ..actor }.gc(2, false, true);
                done.inspect(|()| dice.achieved("gc there"))
            }
        };
    }
}

impl Actor {
    pub(crate) fn open(&self, name: &str) -> Saving<'_> {
        let job = Job::open(&self.pool, name, JobOptions::default()).expect("a job's name");
        Saving { actor: self, job: Arc::new(job), tracker: Arc::new(ChangeTracker::new()) }
    }

    pub(crate) fn saver(&self, job: &str, saves: u64, restores: bool, waits: bool) -> Done {
        let saving = self.open(job);
        let mut state = match self.pool_world.space.containers {
            1 => State::random(&self.rng, 6),
            _ => State::large(&self.rng),
        };
        if restores && let Some((_, restored)) = saving.restore(Select::Newest)? {
            state = restored;
        }
        let mut past = vec![state.clone()];
        let mut last: Option<SaveHandle> = None;
        for _ in 0..saves {
            (0..1 + self.rng.below(3)).for_each(|_| state.change(&self.rng));
            if self.rng.below(5) == 0 {
                state = past[self.rng.below(past.len() as u64) as usize].clone();
            }
            past.push(state.clone());
            let handle = saving.save(&state)?;
            match waits {
                true => saving.wait(&handle)?,
                false => last = Some(handle),
            }
        }
        if let Some(handle) = last {
            saving.wait(&handle)?;
        }
        saving.end()
    }

    fn returner(&self, job: &str) -> Done {
        let saving = self.open(job);
        let epochs = saving.epochs()?;
        let epoch = match epochs.len() as u64 {
            0 => return Ok(()),
            count => epochs[self.rng.below(count) as usize],
        };
        let Some((_, mut state)) = saving.restore(Select::Epoch(epoch))? else { return Ok(()) };
        for _ in 0..1 + self.rng.below(2) {
            state.change(&self.rng);
            let handle = saving.save(&state)?;
            saving.wait(&handle)?;
            self.dice.achieved("return");
        }
        saving.end()
    }

    fn twin(self, job: &'static str) -> Done {
        let actor = Arc::new(self);
        let job = Job::open(&actor.pool, job, JobOptions::default()).expect("a job's name");
        let job = Arc::new(job);
        let tracker = Arc::new(ChangeTracker::new());
        let saving = Saving { actor: &actor, job: job.clone(), tracker };
        let mut state = State::random(&actor.rng, 6);
        for _ in 0..2 {
            state.change(&actor.rng);
            let handle = saving.save(&state)?;
            saving.wait(&handle)?;
        }
        let (there, looked) = (actor.clone(), job.clone());
        let epochs = saving.epochs()?;
        if epochs.is_empty() {
            return Ok(()); // damaged, and given up
        }
        let epoch = epochs[actor.rng.below(epochs.len() as u64) as usize];
        let looks = Arc::new((Mutex::new(true), Condvar::new()));
        let ends = looks.clone();
        let spawned = outlive_types::sync::spawn("look", move || {
            let looking = Looking { actor: &there, job: &looked };
            if looking.look(Select::Epoch(epoch), &mut |_, _| ()).is_ok() {
                there.dice.achieved("look back");
            }
            *ends.0.lock() = false;
            ends.1.notify_all();
        });
        if spawned.is_err() {
            return Ok(());
        }
        for _ in 0..2 {
            state.change(&actor.rng);
            let handle = saving.save(&state)?;
            saving.wait(&handle)?;
        }
        // One more save goes on from the state of the look, however long that took.
        let looking = looks.0.lock();
        let looked = looks.1.wait_while(looking, |looking| *looking);
        drop(looked);
        state.change(&actor.rng);
        let handle = saving.save(&state)?;
        saving.wait(&handle)?;
        saving.end()
    }

    fn reader(&self, job: &str) -> Done {
        let job = Job::open(&self.pool, job, JobOptions::default()).expect("a job's name");
        let looking = Looking { actor: self, job: &job };
        for _ in 0..2 {
            looking.look(Select::Newest, &mut |_, _| ())?;
            let epochs = self.epochs(&job)?;
            if let Some(first) = epochs.first() {
                looking.look(Select::Epoch(*first), &mut |_, _| ())?;
            }
        }
        Ok(())
    }

    fn lazy(self, job: &'static str, prunes: bool) -> Done {
        let actor = Arc::new(self);
        let saving = actor.open(job);
        let select = match actor.rng.below(2) {
            0 => Select::Newest,
            _ => match saving.epochs()?.first() {
                Some(first) => Select::Epoch(*first),
                None => return Ok(()),
            },
        };
        let name = saving.job.name().clone();
        let mut seen = actor.oracle.last_epoch(&name);
        let newest = || actor.oracle.last_epoch(&name);
        let begun = crate::lazy::restore(&saving.job, &saving.tracker, select, &actor.rng, &newest);
        let looking = Looking { actor: &actor, job: &saving.job };
        let Some((epoch, prepared, filling)) = looking.judge(select, begun)? else { return Ok(()) };
        seen = match select {
            Select::Epoch(_) => prepared,
            _ if actor.oracle.is_damaged() => prepared,
            _ if actor.oracle.is_wiped() => seen.max(prepared),
            _ => seen.max(epoch),
        };
        actor.oracle.restored(actor.number, &name, seen);
        if prunes {
            actor.prune(&name, 1, true)?;
        }
        let filled = filling.wait();
        // Without locks, a gc may delete dropped data that is still read.
        let is_cut_off = !actor.pool_world.has_locks() && actor.oracle.is_pruned(&name);
        let also: &[ErrorKind] = if is_cut_off { &[ErrorKind::Retry] } else { &[] };
        let restored = actor.met("a fill", &name, filled, also)?;
        actor.dice.achieved("lazy restore");
        let mut state = actor.check(&name, epoch, &restored)?;
        state.change(&actor.rng);
        let handle = saving.save(&state)?;
        saving.wait(&handle)?;
        saving.end()
    }

    fn verifier(&self, job: &str) -> Done {
        let job = Job::open(&self.pool, job, JobOptions::default()).expect("a job's name");
        let report = self.met("a verification", job.name(), job.verify(None), &[])?;
        match report.findings.iter().find(|finding| !self.may_find(finding)) {
            Some(finding) => {
                Err(self.violate(format!("verify found in {}: {finding:?}", job.name())))
            }
            None => {
                self.dice.achieved("verify");
                Ok(())
            }
        }
    }

    /// Whether an event explains the finding of a verification.
    fn may_find(&self, finding: &Finding) -> bool {
        match (finding.epoch, finding.error.kind()) {
            _ if self.is_dead() => true,
            // Damage is final, so a passing failure does not excuse it.
            (Some(_), ErrorKind::Damaged) => self.may_be_damaged(),
            (Some(_), _) => self.is_excused(),
            // Findings that harm no checkpoint may come from harmed targets.
            (None, _) => self.is_excused() || self.oracle.has_bruises(),
        }
    }

    /// Whether an event excuses an unreadable object.
    fn is_excused(&self) -> bool {
        self.oracle.is_damaged() || self.dice.has_failed() || self.is_dead()
    }

    /// Returns the errors that a collector may end with: another one may hold the lock.
    pub(crate) fn busy(&self) -> &'static [ErrorKind] {
        // Without locks, a claim in the table keeps programs apart that move shards.
        let may_meet = self.pool_world.has_locks() || self.pool_world.space.has_table();
        if may_meet { &[ErrorKind::Retry] } else { &[] }
    }

    fn gc(&self, rounds: u64, forget_damaged: bool, rewrite: bool) -> Done {
        for _ in 0..rounds {
            let unused_max = [0.05, 0.0][self.rng.below(2) as usize];
            // All packs are small here: they are merged as soon as possible.
            let small_apart_max = 0;
            let thoroughness =
                Thoroughness { unused_max, rewrite, small_apart_max, ..Thoroughness::default() };
            let options = GcOptions { thoroughness, forget_damaged, ..GcOptions::default() };
            let collected = collect(&self.pool, &options);
            match self.met("a gc", &JobName::gc(), collected, self.busy()) {
                Ok(report) if report.deleted > 0 => self.dice.achieved("gc that deletes"),
                Ok(_) => self.dice.achieved("gc"),
                Err(End) => {}
            }
            if self.is_dead() {
                return Err(End);
            }
        }
        Ok(())
    }

    fn prune(&self, job: &JobName, keep_last: u64, collects: bool) -> Done {
        if !self.oracle.jobs().contains(job) {
            return Ok(());
        }
        let opened = Job::open(&self.pool, job.as_str(), JobOptions::default());
        let opened = opened.expect("a job's name");
        let rules = Rules { last: Some(keep_last), ..Rules::default() };
        let plan = self.met("a prune's plan", job, opened.retention(&rules), &[])?;
        let dropped = plan.dropped();
        self.dice.turns().remark(|| format!("a prune drops {dropped:?} of {job}"));
        self.oracle.doom(job, &dropped);
        let dropped_none = dropped.is_empty();
        let drop = [(job.clone(), dropped)].into();
        let thoroughness =
            Thoroughness { collect: collects, small_apart_max: 0, ..Thoroughness::default() };
        let options = GcOptions { drop, thoroughness, ..GcOptions::default() };
        self.met("a prune", &JobName::gc(), collect(&self.pool, &options), &[])?;
        if !dropped_none {
            self.dice.achieved("prune");
        }
        Ok(())
    }

    pub(crate) fn scrub(&self) -> Done {
        let options = ScrubOptions { sample: Sample::ALL, bytes_per_s: None, dry_run: false };
        let report =
            self.met("a scrub", &JobName::gc(), scrub(&self.pool, &options), self.busy())?;
        if !report.heal.incomplete.is_empty() && !self.may_be_damaged() && !self.is_dead() {
            return Err(self.violate(format!("a scrub finds checkpoints incomplete: {report:?}")));
        }
        // Other running programs keep it from repairing what it has found.
        let is_blocked =
            report.blocked.as_ref().is_some_and(|why| self.busy().contains(&why.kind()));
        // An operator may have replaced a target while the scrub read from it.
        let is_replaced = self.dice.may_have_left()
            && report.degraded.iter().all(|(_, fault)| fault.error.is_away())
            && ScrubReport { degraded: Vec::new(), ..report.clone() }.is_whole();
        let is_left = is_blocked || is_replaced || self.oracle.has_bruises();
        match report.is_whole() || is_left || self.oracle.has_scratches() || self.is_excused() {
            true => {
                self.dice.achieved("scrub");
                Ok(())
            }
            false => Err(self.violate(format!("a scrub found damage: {report:?}"))),
        }
    }

    fn repair(&self, rounds: u64) -> Done {
        for _ in 0..rounds {
            let repaired = repair(&self.pool, RepairOptions::default());
            let report = self.met("a repair", &JobName::gc(), repaired, self.busy())?;
            self.dice.turns().remark(|| format!("a repair: {report:?}"));
            if report.shards > 0 {
                self.dice.achieved("repair");
            }
        }
        Ok(())
    }

    fn loser(&self) -> Done {
        let Space { targets, .. } = self.pool_world.space;
        let first = self.rng.below(targets as u64) as usize;
        for number in 0..self.pool_world.space.survives() {
            self.let_time_pass(40);
            pause("lose a target");
            let target = (first + number) % targets;
            self.dice.turns().remark(|| format!("target {target} is lost"));
            self.dice.fail();
            self.pool_world.world.lose_target(target);
            self.dice.achieved("lose a target");
        }
        Ok(())
    }

    fn absence(&self) -> Done {
        let Space { targets, .. } = self.pool_world.space;
        for _ in 0..2 {
            let target = self.rng.below(targets as u64) as usize;
            self.let_time_pass(40);
            pause("a target goes");
            self.dice.turns().remark(|| format!("target {target} is away"));
            self.dice.fail();
            self.pool_world.world.set_away(target, true);
            (0..self.rng.below(60)).for_each(|_| pause("a target is away"));
            self.dice.turns().remark(|| format!("target {target} is back"));
            self.pool_world.world.set_away(target, false);
            self.dice.achieved("a target is back");
        }
        Ok(())
    }

    fn replica_away(&self) -> Done {
        for _ in 0..1 + self.rng.below(3) {
            let number = self.rng.below(REPLICAS as u64) as usize;
            self.let_time_pass(60);
            pause("a log replica goes");
            self.dice.turns().remark(|| format!("replica {number} is away"));
            // A caller that asks one replica after the other may meet two that are away in turn.
            self.dice.fail();
            self.pool_world.replicas.away.lock().insert(number);
            (0..self.rng.below(400)).for_each(|_| pause("a log replica is away"));
            self.dice.turns().remark(|| format!("replica {number} is back"));
            self.pool_world.replicas.away.lock().clear();
            self.dice.achieved("a log replica is back");
        }
        Ok(())
    }

    fn log_mover(&self) -> Done {
        for _ in 0..1 + self.rng.below(2) {
            self.let_time_pass(60);
            pause("the log is moved");
            let (number, pool_world, process) =
                (self.number, self.pool_world.clone(), self.process.clone());
            let (who, has_failed) = (number.to_string(), AtomicBool::new(false));
            let me = Arc::new(Me { number, who, pool_world, process, has_failed });
            let count = [1, 3, 3][self.rng.below(3) as usize];
            let moved = move_log(&self.pool_world, &me, count, self.rng.below(2) == 0);
            self.met("a move of the log", &JobName::gc(), moved, &[])?;
            self.dice.achieved("move the log");
        }
        Ok(())
    }

    fn mover(&self) -> Done {
        let oldest = 1 + self.rng.below(self.pool_world.space.targets as u64) as u32;
        self.let_time_pass(60);
        let new = self.pool_world.space.new_replica().to_string();
        let added = self.pool.add_target(&new, None, outlive_pool::Tier::Fast);
        self.met("a target that comes", &JobName::gc(), added, self.busy())?;
        self.dice.achieved("a target comes");
        self.let_time_pass(60);
        // Shards that others have begun with an old table may stay behind: then the target stays.
        // And a program that saved there since its last look at the table saves again.
        self.dice.fail();
        let removed = self.pool.remove_target(oldest, false, None, &Uses);
        let mut also: Vec<ErrorKind> = self.busy().to_vec();
        also.push(ErrorKind::Retry);
        if self.oracle.has_scratches() {
            also.push(ErrorKind::Damaged); // a scrub comes first
        }
        self.met("a target that goes", &JobName::gc(), removed, &also)?;
        self.dice.achieved("a target goes");
        Ok(())
    }

    fn copy(&self, to: &PoolWorld) -> Done {
        let opened = to.pool(self.number, self.rng.next_u64());
        let Some((pool, process)) = opened else { return Err(End) };
        // All possible jobs: one may begin just before the copy lists them.
        for job in [A, B, G, O, R].map(|job| JobName::new(job).expect("a job's name")) {
            to.oracle.will_commit(self.number, &job, Pending::CopyOf(self.oracle.clone()));
        }
        let copied = copy(&self.pool, &pool, &CopyOptions::default());
        if process.is_killed() || to.world.crashed() {
            return Err(End);
        }
        let is_fenced = self.oracle.jobs().iter().any(|job| to.oracle.is_fenced(self.number, job));
        let is_damaged = to.oracle.is_damaged() || to.oracle.is_rolled_back();
        let mut also = vec![ErrorKind::Invalid];
        if is_fenced || is_damaged {
            also.push(ErrorKind::Fenced);
        }
        if is_damaged {
            also.push(ErrorKind::Damaged);
        }
        let report = self.met("a copy", &JobName::gc(), copied, &also)?;
        for job in &report.jobs {
            for copied in &job.copied {
                self.dice.achieved("copy");
                to.oracle.told(self.number, &job.plan.to, copied.epoch);
            }
        }
        match report.is_whole() || is_damaged || self.is_excused() {
            true => Ok(()),
            false => Err(self.violate(format!("a copy found damage: {report:?}"))),
        }
    }

    /// Restores an old copy of the log, without its newest records.
    fn rollback(&self, job: &str) -> Done {
        let job = JobName::new(job).expect("a job's name");
        pause("the log is rolled back");
        if self.is_dead() {
            return Ok(());
        }
        let log = self.pool_world.world.log();
        let numbers = log.numbers(&job).unwrap_or_default();
        let kept = 1 + self.rng.below(numbers.len() as u64) as usize;
        for number in &numbers[kept.min(numbers.len())..] {
            self.pool_world.world.remove_record(&job, *number);
        }
        let (mut epochs, mut session) = (BTreeSet::new(), None);
        for number in log.numbers(&job).unwrap_or_default() {
            let record = log.read(&job, number).ok();
            match record.and_then(|bytes| outlive_format::Record::decode(&bytes).ok()) {
                Some(record) => match record.body {
                    outlive_format::Body::Manifest(manifest) => drop(epochs.insert(manifest.epoch)),
                    outlive_format::Body::Session(opened) => session = Some(opened.session),
                    outlive_format::Body::Archive(archive) => {
                        epochs = archive.manifests.iter().map(|manifest| manifest.epoch).collect();
                        session = archive.session.map(|(session, _)| session.session);
                    }
                    _ => {}
                },
                None => return Ok(()),
            }
        }
        self.dice.turns().remark(|| format!("the log of {job} ends at {epochs:?} again"));
        self.oracle.rolled_back(&job, &epochs, session);
        self.dice.achieved("rollback");
        Ok(())
    }
}
