//! A program of several ranks, which save and restore together. Each rank has its own process and
//! job, and here a thread. When a rank is lost, the group may start again, while the remaining
//! ranks are still running.

use crate::actor::{Actor, Done, End};
use crate::chance::Chances;
use crate::hold::{Source, also};
use crate::oracle::Pending;
use crate::roles::Group;
use crate::state::{Memory, State};
use crate::wire::Wire;
use crate::world::Me;
use outlive_capture::{ChangeTracker, MemorySource};
use outlive_store::group::{GroupOptions, PoolRanks};
use outlive_store::{Job, JobOptions, RankImages, SaveHandle, SaveStats, Select};
use outlive_types::sync::{Condvar, Mutex, pause, plain, spawn};
use outlive_types::{
    Coordinator, Epoch, Error, ErrorKind, JobName, Rank, Result, SeededRng, ThreadRank,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Number of ranks in a group.
pub(crate) const RANKS: Rank = 3;
/// Patience of a group that may lose a rank; by the schedule's clock, as the next one.
const SHORT: Duration = Duration::from_millis(500);
/// Patience of a group that loses none.
const LONG: Duration = Duration::from_secs(365 * 24 * 3600);
/// Added to the program's number for each run of a group, since each run is a writer of its own.
const NEXT_RUN: usize = 100;

/// One run of a group, shared by all of its ranks.
struct GroupRun {
    number: usize,
    name: JobName,
    group: Group,
    patience: Duration,
    /// Whether its ranks close the job at the end.
    closes: bool,
    members: Vec<Arc<Me>>,
    told: plain::Mutex<RunReport>,
    ended: (Mutex<Vec<bool>>, Condvar),
}

#[derive(Default)]
struct RunReport {
    /// The state that each rank saves.
    states: Vec<State>,
    /// The outcomes of each save, by its number.
    saves: BTreeMap<u64, Vec<(Rank, SaveOutcome)>>,
    restored: Option<Option<Epoch>>,
    /// Whether a rank has ended early.
    has_lost: bool,
}

/// The outcome of a save for one rank.
#[derive(Debug)]
#[allow(dead_code)] // errors are only shown
enum SaveOutcome {
    Committed(Epoch),
    Failed(Error),
    /// The save failed on this rank for a reason that other ranks need not share.
    Excused,
}

impl GroupRun {
    /// Whether one of its ranks is gone.
    fn has_lost(&self) -> bool {
        self.told.lock().has_lost || self.members.iter().any(|me| me.is_dead())
    }

    fn end(&self, is_well: bool) {
        self.told.lock().has_lost |= !is_well;
        self.ended.0.lock().push(is_well);
        self.ended.1.notify_all();
    }

    /// Waits until all ranks have ended, or until one is lost. Returns true if all ended well.
    fn wait(&self, waits_for_all: bool) -> bool {
        let goes_on = |ended: &mut Vec<bool>| {
            ended.len() < RANKS as usize && (waits_for_all || ended.iter().all(|is_well| *is_well))
        };
        let ended = self.ended.0.lock();
        let ended = self.ended.1.wait_while(ended, goes_on);
        ended.iter().all(|is_well| *is_well)
    }
}

impl Actor {
    pub(crate) fn group(&self, group: Group) -> Done {
        let mut group = group;
        for run in 0..=group.restarts {
            let run = self.start(group, run as usize)?;
            if run.wait(group.waits_for_all) || self.pool_world.world.crashed() {
                break;
            }
            group = Group { restores: true, kill: None, ..group };
            self.dice.achieved("group that starts again");
        }
        Ok(())
    }

    /// Starts all ranks.
    fn start(&self, group: Group, run: usize) -> Done<Arc<GroupRun>> {
        let number = self.number + run * NEXT_RUN;
        let thread = |rank: Rank| match run {
            0 => format!("rank{rank}"),
            _ => format!("run{run}-rank{rank}"),
        };
        let process = |rank: Rank| {
            let who = format!("{}/{}", self.number, thread(rank));
            self.pool_world.pool_of_thread(number, &who, self.rng.next_u64())
        };
        let opened: Option<Vec<_>> = (0..RANKS).map(process).collect();
        let Some(processes) = opened else { return Err(End) };
        let is_safe = self.dice.chances() == Chances::default()
            && group.kill.is_none()
            && self.pool_world.never_fails();
        let states: Vec<State> = (0..RANKS).map(|_| State::random(&self.rng, 6)).collect();
        let run = Arc::new(GroupRun {
            number,
            name: JobName::new(group.job).expect("a job's name"),
            group,
            closes: self.rng.below(4) > 0,
            patience: if is_safe && group.is_patient { LONG } else { SHORT },
            members: processes.iter().map(|(_, me)| me.clone()).collect(),
            told: plain::Mutex::new(RunReport { states: states.clone(), ..RunReport::default() }),
            ended: Default::default(),
        });
        if group.meets_in_log {
            self.oracle.meets(&run.name);
        }
        if let Some((rank, after)) = group.kill {
            self.dice.kill();
            run.members[rank as usize].process.kill_after(after);
        }
        let ranks = ThreadRank::group(RANKS).into_iter().zip(processes).zip(states);
        for ((inner, (pool, me)), state) in ranks {
            let rank = inner.rank();
            let inner: Arc<dyn Coordinator> = match group.meets_in_log {
                true => {
                    let name = format!("run {number}");
                    let ranks = PoolRanks::new(&pool, group.job, rank, RANKS, &name, run.patience);
                    Arc::new(ranks.expect("a rank and the name of a run"))
                }
                false => inner,
            };
            let coordinator = Arc::new(Wire { inner, me: me.clone() });
            let options = JobOptions {
                group: Some(GroupOptions {
                    patience: run.patience,
                    schedule: group.schedule,
                    ..GroupOptions::new(coordinator)
                }),
                ..JobOptions::default()
            };
            let job = Job::open(&pool, group.job, options).expect("a job's name");
            let actor = Actor {
                number,
                pool_world: self.pool_world.clone(),
                oracle: self.oracle.clone(),
                pool,
                process: me.process.clone(),
                rng: SeededRng::new(self.rng.next_u64()),
                dice: self.dice.clone(),
            };
            let tracker = Arc::new(ChangeTracker::new());
            let mut member = Member { actor, me, rank, run: run.clone(), job, tracker, state };
            let run = run.clone();
            let work = move || {
                let done = member.work();
                // Its process has ended: no rank can reach it any more.
                drop(member);
                run.end(done.is_ok());
            };
            spawn(&thread(rank), work).map_err(|_| End)?;
        }
        Ok(run)
    }
}

/// One rank.
struct Member {
    actor: Actor,
    me: Arc<Me>,
    rank: Rank,
    run: Arc<GroupRun>,
    job: Job,
    tracker: Arc<ChangeTracker>,
    state: State,
}

impl Member {
    fn work(&mut self) -> Done {
        let Group { restores, saves, waits, .. } = self.run.group;
        if restores {
            self.restore()?;
        }
        let mut last = None;
        for number in 0..saves {
            let begun = self.save(number);
            if let Some((number, handle)) = last.take() {
                self.wait(number, &handle)?;
            }
            let handle = match begun {
                Ok(handle) => handle,
                Err(error) => {
                    self.told(number, Err(error))?;
                    continue;
                }
            };
            match waits {
                true => self.wait(number, &handle)?,
                false => last = Some((number, handle)),
            }
        }
        if let Some((number, handle)) = last {
            self.wait(number, &handle)?;
        }
        // All ranks close the job, or none does.
        if self.run.closes {
            let closed = self.job.close();
            self.actor.met("a close", &self.run.name, closed, &self.also())?;
        }
        Ok(())
    }

    /// Returns the errors with which a save or restore may end now.
    fn also(&self) -> Vec<ErrorKind> {
        let mut also = also(&self.actor, &self.run.name);
        if self.run.group.meets_in_log && self.actor.oracle.have_several_met(&self.run.name) {
            also.extend([ErrorKind::Fenced, ErrorKind::Retry]);
        }
        // The rank learns that others are gone, or are held up for longer than its patience.
        if self.run.has_lost() || self.run.patience == SHORT && self.actor.dice.turns().have_held()
        {
            also.push(ErrorKind::Retry);
        }
        also
    }

    fn restore(&mut self) -> Done {
        let (actor, name) = (&self.actor, &self.run.name);
        let (oracle, rank) = (&actor.oracle, self.rank);
        let (at_least, mut seen) = (oracle.newest_told(name), oracle.last_epoch(name));
        let mut prepared = 0;
        let restored = self.job.restore_together(
            Select::Newest,
            &mut |_, _| Ok(()),
            &mut |manifest, as_of| {
                prepared = oracle.last_epoch(name);
                pause("prepare a restore");
                let image = RankImages::new(&actor.pool, name, manifest, as_of).open(rank)?;
                let memory = Memory::of(&image);
                let all: Vec<usize> = (0..image.streams().len()).collect();
                image.read(&all, &memory)?;
                Ok((image, memory))
            },
        );
        let restored = actor.met("a restore of ranks", name, restored, &self.also())?;
        let epoch = restored.as_ref().map(|restored| restored.epoch);
        let all = *self.run.told.lock().restored.get_or_insert(epoch);
        if all != epoch {
            let what = format!("rank {rank} has restored {epoch:?} of {name}, another one {all:?}");
            return Err(actor.violate(what));
        }
        seen = match epoch {
            _ if oracle.is_damaged() => prepared,
            None if oracle.is_wiped() => seen.max(oracle.newest_gone(name)),
            _ if oracle.is_wiped() => seen.max(prepared),
            Some(epoch) => seen.max(epoch),
            None => seen,
        };
        if rank == 0 {
            oracle.restored(self.run.number, name, seen);
        }
        let is_old = epoch.unwrap_or(0) < at_least && oracle.must_find(name, at_least);
        if is_old && !oracle.is_damaged() {
            return Err(actor.violate(format!(
                "epoch {epoch:?} of {name} was found as the newest, and epoch {at_least} was committed"
            )));
        }
        let Some(restored) = restored else { return Ok(()) };
        let (image, memory) = restored.value;
        let found = memory.restored(&image);
        let committed = oracle.committed(name).remove(&restored.epoch);
        let state = committed.and_then(|committed| committed.ranks.get(rank as usize).cloned());
        let Some(state) = state.filter(|state| state.is(&found)) else {
            return Err(actor.violate(format!(
                "rank {rank} of epoch {} of {name} came back as {found:?}",
                restored.epoch
            )));
        };
        let streams = memory.streams();
        let named = image.streams().iter().zip(&streams);
        let primed: Vec<(&str, &[u8])> =
            named.map(|(stream, bytes)| (stream.name.as_str(), &bytes[..])).collect();
        self.tracker.prime(image.epoch(), &primed, 1);
        pause("restored");
        self.job.follow_restored(&image);
        self.state = state;
        actor.dice.achieved("restore of ranks");
        Ok(())
    }

    /// Begins a save, together with the other ranks.
    fn save(&mut self, number: u64) -> Result<SaveHandle> {
        let Member { actor, run, rank, state, .. } = self;
        // Some ranks change nothing, and some get the content of another rank.
        (0..actor.rng.below(3)).for_each(|_| state.change(&actor.rng));
        if run.group.waits {
            self.me.has_failed.store(false, Ordering::Relaxed);
        }
        let inner = MemorySource::new(self.tracker.clone(), state.regions(), Vec::new(), 1);
        let asked = || {
            let states = {
                let mut told = run.told.lock();
                told.states[*rank as usize].clone_from(state);
                told.states.clone()
            };
            actor.dice.turns().remark(|| format!("save {number} of {} is {states:?}", run.name));
            actor.oracle.will_commit(run.number, &run.name, Pending::Ranks(states));
        };
        self.job.save(&mut Source { inner, asked })
    }

    fn wait(&self, number: u64, handle: &SaveHandle) -> Done {
        let outcome = handle.wait(None).expect("a wait without limit ends with the save");
        let Actor { oracle, dice, .. } = &self.actor;
        let (name, epoch) = (&self.run.name, handle.epoch());
        let is_there = || oracle.has_committed(self.run.number, name, epoch);
        if self.rank == 0
            && let Err(error) = &outcome
            && !self.actor.is_dead()
            && !dice.has_failed()
            && is_there()
        {
            return Err(self.actor.violate(format!(
                "epoch {epoch} of {name} is committed, and rank 0 was told {error:?}"
            )));
        }
        self.told(number, outcome)
    }

    /// Handles the outcome of a save. The rank goes on unless it, or another one, is gone.
    fn told(&self, number: u64, outcome: Result<SaveStats>) -> Done {
        let (actor, name) = (&self.actor, &self.run.name);
        self.compare(number, &outcome)?;
        let error = match outcome {
            Ok(stats) => {
                actor.oracle.told(self.run.number, name, stats.epoch);
                actor.dice.achieved("save of ranks");
                return Ok(());
            }
            Err(error) => error,
        };
        let is_over = error.kind() == ErrorKind::Fenced || has_left(&error);
        let _ = actor.met("a save of ranks", name, Err::<(), _>(error), &self.also());
        match is_over || actor.is_dead() || actor.oracle.violation().is_some() {
            true => Err(End),
            false => {
                actor.dice.achieved("group goes on after a failure");
                Ok(())
            }
        }
    }

    /// Checks that all ranks get the same outcome.
    fn compare(&self, number: u64, outcome: &Result<SaveStats>) -> Done {
        let mine = match outcome {
            Ok(stats) => SaveOutcome::Committed(stats.epoch),
            Err(error) if self.is_excused(error) => SaveOutcome::Excused,
            Err(error) => SaveOutcome::Failed(error.clone()),
        };
        let mut told = self.run.told.lock();
        let all = told.saves.entry(number).or_default();
        let differs = |(_, other): &&(Rank, SaveOutcome)| match (other, &mine) {
            (SaveOutcome::Committed(other), SaveOutcome::Committed(mine)) => other != mine,
            (SaveOutcome::Committed(_), SaveOutcome::Failed(_))
            | (SaveOutcome::Failed(_), SaveOutcome::Committed(_)) => true,
            _ => false,
        };
        if let Some((other, theirs)) = all.iter().find(differs) {
            return Err(self.actor.violate(format!(
                "of save {number} of {} rank {other} was told {theirs:?} and rank {} {mine:?}",
                self.run.name, self.rank
            )));
        }
        all.push((self.rank, mine));
        Ok(())
    }

    /// Whether others may have got another outcome: this rank has not heard of them, or its own
    /// operations have failed.
    fn is_excused(&self, error: &Error) -> bool {
        let text = error.message();
        let is_unheard = text.contains("heard of")
            || text.contains("no word of")
            || text.contains("only rank 0 knows")
            || has_left(error);
        let has_failed = self.me.has_failed.load(Ordering::Relaxed)
            || !self.actor.pool_world.never_fails() && self.actor.dice.has_failed();
        is_unheard || self.me.is_dead() || has_failed || self.actor.oracle.is_damaged()
    }
}

/// Whether the error says that the ranks are out of step.
fn has_left(error: &Error) -> bool {
    error.message().contains("has left its group")
}
