//! A program of several ranks: each has a process of its own and makes its image there; a committer
//! makes one checkpoint of them.

use crate::actor::{Actor, Done, End};
use crate::hold::also;
use crate::roles::Group;
use crate::state::{Memory, State};
use crate::truth::Pending;
use outlive_capture::{ChangeTracker, MemorySource};
use outlive_format::Message;
use outlive_pool::Pool;
use outlive_store::commit::{Changes, Commit, Opened};
use outlive_store::save::{
    Committer, Draft, Order, PackNumbers, RankImage, RankWriter, StoredImage,
};
use outlive_store::{Job, JobOptions, MemoryImage, Select, make_anew};
use outlive_target::FaultProcess;
use outlive_types::sync::{Condvar, Mutex, pause, spawn};
use outlive_types::{Epoch, ErrorKind, Frozen, JobName, Rank, Result};
use std::sync::{Arc, PoisonError};

/// Ranks of a group.
pub(crate) const RANKS: Rank = 3;

/// One rank, as its process has it.
struct Member {
    rank: Rank,
    pool: Pool,
    process: FaultProcess,
    writer: RankWriter,
    tracker: Arc<ChangeTracker>,
    state: State,
    made: Option<UncommittedImage>,
}

/// An image that is stored and not committed.
struct UncommittedImage {
    packs: PackNumbers,
    frozen: Box<dyn Frozen>,
    stored: StoredImage,
}

impl Member {
    fn make(&mut self, opened: &Opened, epoch: Epoch) -> Result<()> {
        let packs = self.writer.begin(&self.pool, opened)?;
        let regions = self.state.regions();
        let mut source = MemorySource::new(self.tracker.clone(), regions, Vec::new(), 1);
        pause("freeze");
        let (frozen, plan) = self.writer.freeze(&self.pool, epoch, &mut source)?;
        let order = Order::default();
        let stored = self.writer.store(&self.pool, &packs, &plan, &*frozen, &order, &|| ())?;
        self.made = Some(UncommittedImage { packs, frozen, stored });
        Ok(())
    }

    fn mend(&mut self, changes: &Changes) -> Result<()> {
        let Some(UncommittedImage { packs, stored, .. }) = &mut self.made else { return Ok(()) };
        self.writer.mend(&self.pool, packs, stored, changes.clone())
    }

    /// Restores an epoch, and goes on from there. Answers what it holds.
    fn restore(&mut self, job: &JobName, epoch: Epoch) -> Result<Option<(MemoryImage, Memory)>> {
        let opened = Job::open(&self.pool, job.as_str(), JobOptions::default())?;
        let found = opened.attempt_rank(Select::Epoch(epoch), self.rank, &mut |checkpoint| {
            pause("prepare a restore");
            let memory = Memory::of(checkpoint);
            let all: Vec<usize> = (0..checkpoint.streams().len()).collect();
            checkpoint.read(&all, &memory).map(|_| memory)
        })?;
        let Some((checkpoint, memory, _)) = found else { return Ok(None) };
        let streams = memory.streams();
        let named = checkpoint.streams().iter().zip(&streams);
        let primed: Vec<(&str, &[u8])> =
            named.map(|(stream, bytes)| (stream.name.as_str(), &bytes[..])).collect();
        self.tracker.prime(checkpoint.epoch(), &primed, 1);
        self.writer.follow_restored(&self.pool, &checkpoint);
        Ok(Some((checkpoint, memory)))
    }
}

/// What another process gets of a message.
fn sent(message: Message) -> Message {
    let bytes = message.encode().expect("a message that can be sent");
    Message::decode(&bytes).expect("the message that was sent")
}

/// A group at work.
struct Work<'a> {
    actor: &'a Actor,
    name: JobName,
    committer: Committer,
    members: Vec<Member>,
    side_by_side: bool,
}

impl Actor {
    pub(crate) fn group(&self, group: Group) -> Done {
        let name = JobName::new(group.job).expect("a job's name");
        let member = |rank: Rank| {
            let (pool, process) = self.place.pool(self.number, self.rng.next_u64());
            Member {
                rank,
                pool,
                process,
                writer: RankWriter::new(rank, 1 << 20),
                tracker: Arc::new(ChangeTracker::new()),
                state: State::random(&self.rng, 6),
                made: None,
            }
        };
        let members = (0..RANKS).map(member).collect();
        let committer = Committer::new(name.clone());
        let side_by_side = group.side_by_side;
        let mut work = Work { actor: self, name, committer, members, side_by_side };
        if group.restores {
            work.restore()?;
        }
        for _ in 0..group.saves {
            work.save()?;
        }
        work.end()
    }
}

impl Work<'_> {
    /// Each member does its part, in a thread of its own.
    fn each<R: Send + 'static>(
        &mut self,
        work: impl Fn(&mut Member) -> Result<R> + Send + Sync + 'static,
    ) -> Done<Vec<Result<R>>> {
        let members = std::mem::take(&mut self.members);
        let count = members.len();
        let work = Arc::new(work);
        let over = Arc::new((Mutex::new(Vec::new()), Condvar::new()));
        for mut member in members {
            let (work, over) = (work.clone(), over.clone());
            let name = format!("rank{}", member.rank);
            let part = move || {
                let result = work(&mut member);
                over.0.lock().unwrap_or_else(PoisonError::into_inner).push((member, result));
                over.1.notify_all();
            };
            match self.side_by_side {
                true => spawn(&name, part).map_err(|_| End)?,
                false => part(),
            }
        }
        let done = over.0.lock().unwrap_or_else(PoisonError::into_inner);
        let done = over.1.wait_while(done, |done| done.len() < count);
        let mut done = std::mem::take(&mut *done.unwrap_or_else(PoisonError::into_inner));
        done.sort_by_key(|(member, _)| member.rank);
        let (members, results) = done.into_iter().unzip();
        self.members = members;
        Ok(results)
    }

    /// A rank that is dead ends the program, whatever the others say.
    fn met<T>(&mut self, what: &str, results: Vec<Result<T>>, also: &[ErrorKind]) -> Done<Vec<T>> {
        if self.members.iter().any(|member| member.process.is_killed()) {
            self.actor.luck.achieved("rank dies");
            return Err(End);
        }
        let Work { actor, name, committer, .. } = self;
        let blamed = |result: Result<T>| result.map_err(|e| committer.blame(&actor.pool, e));
        let results: Vec<Result<T>> = results.into_iter().map(blamed).collect();
        results.into_iter().map(|result| actor.met(what, name, result, also)).collect()
    }

    fn restore(&mut self) -> Done {
        let (actor, name) = (self.actor, self.name.clone());
        let at_least = actor.truth.newest_told(&name);
        let seen = actor.truth.last_epoch(&name);
        let noted = self.committer.head.note_position(&actor.pool);
        actor.met("a look at the log", &name, noted, &[])?;
        let job = Job::open(&actor.pool, name.as_str(), JobOptions::default());
        let job = job.expect("a job's name");
        let newest = job.image_of_rank(Select::Newest, 0);
        let newest = actor.met("a search", &name, newest, &[])?.map(|(found, _)| found.epoch());
        actor.truth.restored(actor.number, &name, seen.max(newest.unwrap_or(0)));
        let Some(epoch) = newest else {
            let is_there = at_least > 0 && actor.truth.newest_told(&name) >= at_least;
            return match is_there && !actor.truth.is_damaged() {
                true => Err(actor.violate(format!("nothing of {name} was found"))),
                false => Ok(()),
            };
        };
        if epoch < at_least && actor.truth.newest_told(&name) >= at_least {
            return Err(actor.violate(format!(
                "epoch {epoch} of {name} was found as the newest, and epoch {at_least} was committed"
            )));
        }
        let job = name.clone();
        let restored = self.each(move |member| member.restore(&job, epoch))?;
        let committed = actor.truth.committed(&name).remove(&epoch);
        let is_dropped = committed.as_ref().is_none_or(|committed| committed.doomed);
        let also: &[ErrorKind] = if is_dropped { &[ErrorKind::Invalid] } else { &[] };
        let restored = self.met("a restore of a rank", restored, also)?;
        let states = committed.map(|committed| committed.ranks).unwrap_or_default();
        for ((member, restored), state) in self.members.iter_mut().zip(restored).zip(states) {
            let Some((checkpoint, memory)) = restored else { return Err(End) };
            let found = memory.restored(&checkpoint);
            if !state.is(&found) {
                let rank = member.rank;
                return Err(actor.violate(format!(
                    "rank {rank} of epoch {epoch} of {name} came back as {found:?} and was {state:?}"
                )));
            }
            member.state = state;
        }
        actor.luck.achieved("restore of ranks");
        Ok(())
    }

    fn save(&mut self) -> Done {
        let (actor, name) = (self.actor, self.name.clone());
        for member in &mut self.members {
            // Some ranks change nothing, and some have what another one has.
            (0..actor.rng.below(3)).for_each(|_| member.state.change(&actor.rng));
        }
        let also_now = || also(actor, &name);
        let anew = make_anew(&actor.pool);
        actor.met("memory made anew", &name, anew, &also_now())?;
        let opened = self.committer.open(&actor.pool);
        let opened = actor.met("a session", &name, opened, &also_now())?;
        let epoch = self.committer.head.last_epoch + 1;
        let states: Vec<State> = self.members.iter().map(|member| member.state.clone()).collect();
        actor.luck.turns().remark(|| format!("epoch {epoch} of {name} will be {states:?}"));
        actor.truth.will_commit(actor.number, &name, Pending::Ranks(states));
        let Message::Session(opened) = sent(Message::Session(opened)) else { return Err(End) };
        let made = self.each(move |member| member.make(&opened, epoch))?;
        self.met("an image", made, &also_now())?;
        if actor.rng.below(8) == 0 {
            // One dies when its image is stored: the committer hears of it, and nobody of the images.
            let dead = actor.rng.below(u64::from(RANKS)) as usize;
            self.members[dead].process.kill_after(0);
            actor.luck.achieved("rank dies before the commit");
            return Err(End);
        }
        self.commit(epoch)?;
        actor.luck.achieved("save of ranks");
        Ok(())
    }

    fn commit(&mut self, epoch: Epoch) -> Done {
        let (actor, name) = (self.actor, self.name.clone());
        let draft = Draft { epoch, ..Draft::default() };
        let committed = loop {
            let made = self.members.iter().filter_map(|member| member.made.as_ref());
            let received =
                made.filter_map(|made| match sent(Message::Image(made.stored.image().clone())) {
                    Message::Image(image) => Some(image),
                    _ => None,
                });
            let images: Vec<RankImage> = received.collect();
            let outcome = self.committer.commit(&actor.pool, &draft, &images);
            let is_there = actor.truth.has_committed(actor.number, &name, epoch);
            if outcome.is_err() && is_there && !actor.is_dead() && !actor.luck.has_failed() {
                let error = outcome.err();
                return Err(actor.violate(format!(
                    "epoch {epoch} of {name} is committed, and its committer was told {error:?}"
                )));
            }
            match actor.met("a commit of ranks", &name, outcome, &also(actor, &name))? {
                Commit::Done(committed) => break committed,
                Commit::Changed(changes) => {
                    let Message::Changed(changes) = sent(Message::Changed(changes)) else {
                        return Err(End);
                    };
                    let mended = self.each(move |member| member.mend(&changes))?;
                    self.met("a mending", mended, &also(actor, &name))?;
                    actor.luck.achieved("mending of ranks");
                }
            }
        };
        actor.truth.told(actor.number, &name, epoch);
        for member in &mut self.members {
            let Some(made) = member.made.take() else { continue };
            member.writer.follow(&member.pool, made.stored, &committed);
            made.frozen.settle(Some(epoch));
        }
        Ok(())
    }

    /// Ends the session, or leaves it.
    fn end(&mut self) -> Done {
        match self.actor.rng.below(4) {
            0 => Ok(()),
            _ => {
                let closed = self.committer.head.close(&self.actor.pool);
                self.actor.met("a close", &self.name, closed, &[])
            }
        }
    }
}
