//! A rank's part in the saves of its group.

use super::GroupOptions;
use super::agree::{Step, agree_in_step, of_rank, unless_failed};
use super::claims::{Claims, are_equal};
use super::mail::{Inbox, Outbox, Pauses, SaveId, least_pause};
use super::pulse::Pulse;
use super::watch::FenceWatch;
use super::write_scheduler::{WriteScheduler, has_merged};
use crate::commit::Commit;
use crate::save::{
    CheckpointHeader, PackNumbers, RankImage, SavePlan, SaveRequest, SaveStats, StoredImage,
    Writer, checkpoint_header,
};
use outlive_format::{Changes, Committed, SaveMessage};
use outlive_pool::{Pool, TargetsThen};
use outlive_types::sync::{Mutex, MutexGuard};
use outlive_types::{
    Coordinator, Epoch, Error, ErrorKind, Frozen, JobName, PageSource, Rank, Result,
};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The rank that commits.
const LEADER: Rank = 0;
/// Ranks with more patience than this need no keepalive.
const KEEPALIVE_PATIENCE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// Most ranks without a message that rank 0 asks in one look, since each is a request to the log.
/// So its requests are bounded, however many ranks there are and however long they take.
const SILENT_AT_A_LOOK: usize = 64;

/// A member of a group. One save at a time uses it.
#[derive(Debug)]
pub(crate) struct GroupMember {
    pub coordinator: Arc<dyn Coordinator>,
    /// Number of collective calls that this rank has made.
    calls: AtomicU64,
    /// Whether the ranks are out of step: then they can do nothing together.
    is_over: AtomicBool,
    /// Whether the ranks know which of them are on one host, and share its memory.
    is_settled: AtomicBool,
    /// Number of looks in vain for messages of others: these count as progress, too.
    looks: AtomicU64,
    job: JobName,
    patience: Duration,
    is_lone: fn(&str) -> bool,
    outbox: Outbox,
    /// On rank 0, inboxes of all other ranks. On other ranks, the inbox of rank 0.
    inboxes: Mutex<Vec<Inbox>>,
    /// On rank 0, the number of saves that it has begun, and the schedule of writes.
    leader: Mutex<LeaderState>,
}

#[derive(Debug)]
struct LeaderState {
    saves: u64,
    scheduler: WriteScheduler,
    /// The least number that no rank has given to a pack yet, according to the newest images.
    next_pack: u32,
    /// Changes that saves since the last committed one have reported: some rank may not know them.
    told: Changes,
}

/// A save that all ranks have begun.
#[derive(Clone, Debug)]
pub(crate) struct GroupSave {
    pub epoch: Epoch,
    pub packs: PackNumbers,
    pub save_id: SaveId,
    /// Number of ranks that write at a time.
    pub width: u32,
    /// Time for which ranks wait for messages of each other: that of rank 0.
    pub patience: Duration,
}

impl GroupMember {
    pub fn new(job: &JobName, options: GroupOptions) -> GroupMember {
        let GroupOptions { coordinator, patience, schedule, is_lone } = options;
        let rank = coordinator.rank();
        let scheduler = WriteScheduler::new(schedule, coordinator.size());
        GroupMember {
            job: job.clone(),
            patience,
            is_lone,
            outbox: Outbox::new(job, rank),
            inboxes: Mutex::default(),
            leader: Mutex::new(LeaderState {
                saves: 0,
                scheduler,
                next_pack: 0,
                told: Changes::default(),
            }),
            calls: AtomicU64::new(0),
            is_settled: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            looks: AtomicU64::new(0),
            coordinator,
        }
    }

    pub fn rank(&self) -> Rank {
        self.coordinator.rank()
    }

    fn leads(&self) -> bool {
        self.rank() == LEADER
    }

    fn leader(&self) -> MutexGuard<'_, LeaderState> {
        self.leader.lock()
    }

    /// Lets rank 0 decide, unless a rank is not `ready`. Collective.
    ///
    /// # Errors
    /// The error of the first rank that is not ready; errors of `decide` and of the coordinator.
    pub fn decide(
        &self,
        what: &str,
        ready: Result<()>,
        decide: &mut dyn FnMut() -> Result<Vec<u8>>,
    ) -> Result<Vec<u8>> {
        let ready = ready.map(|()| Vec::new());
        self.agree(what, ready, &mut |all| unless_failed(all).and_then(|_| decide()))
    }

    /// Agrees on one outcome for all ranks, which must be in the same call. Collective.
    ///
    /// # Errors
    /// As for [`agree_in_step`].
    pub fn agree(
        &self,
        what: &str,
        mine: Result<Vec<u8>>,
        decide: &mut dyn FnMut(Vec<Result<Vec<u8>>>) -> Result<Vec<u8>>,
    ) -> Result<Vec<u8>> {
        let number = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        // The others wait for the decision of rank 0.
        let decide = &mut |all| {
            let _keepalive = self.coordinator.keepalive();
            decide(all)
        };
        let agreed = agree_in_step(&*self.coordinator, Step { number, what }, mine, decide);
        if agreed.as_ref().is_err_and(Error::ends_group) {
            self.is_over.store(true, Ordering::Relaxed);
        }
        agreed
    }

    /// Closes the job on all ranks, unless a rank is not `ready`. If a rank is elsewhere in the
    /// program, it and this rank get an error. Ranks that are already out of step do not wait for
    /// each other. Collective.
    ///
    /// # Errors
    /// As for [`GroupMember::agree`].
    pub fn close(&self, ready: Result<()>) -> Result<()> {
        if self.is_over.load(Ordering::Relaxed) {
            return ready;
        }
        let ready = ready.map(|()| Vec::new());
        self.agree("the close of the job", ready, &mut |all| unless_failed(all).map(|_| Vec::new()))
            .map(drop)
    }

    /// Ends this rank's part in the group: it waits for no other rank. The coordinator informs the
    /// others, if it can.
    pub fn leave(&self) {
        if self.is_over.swap(true, Ordering::Relaxed) {
            return;
        }
        let calls = self.calls.load(Ordering::Relaxed);
        self.coordinator.leave(&Error::invalid(format!(
            "it has ended, or closed the job, after call {calls} of its job. All ranks must save, restore and \
             close at the same places of the program: end the program"
        )));
    }

    /// Shares the pool's memory for containers among the ranks of one host. Call it when `what`
    /// begins. Collective, the first time.
    ///
    /// # Errors
    /// Errors of [`GroupMember::agree`].
    pub fn settle(&self, pool: &Pool, what: &str) -> Result<()> {
        if self.is_settled.load(Ordering::Relaxed) {
            return Ok(());
        }
        let host = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let host = host.trim();
        // In containers each process may have the number 1.
        let space = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let mine = format!("{host} {} {}", space.display(), std::process::id()).into_bytes();
        let all =
            self.agree(what, Ok(mine), &mut |all| unless_failed(all).map(|all| all.join(&b'\n')))?;
        let all = String::from_utf8_lossy(&all);
        let beside = all.lines().filter(|one| one.split(' ').next() == Some(host));
        // A rank that does not know its host shares with no other.
        let processes = if host.is_empty() { 1 } else { beside.collect::<BTreeSet<_>>().len() };
        pool.share_staging(processes);
        self.is_settled.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Begins a save: rank 0 opens the session, unless a rank is not `ready` or has something else
    /// to save. Collective; when it returns, all ranks have called it. `says` is this rank's policy
    /// for failed saves, which must be the same on all. On rank 0 `judge` marks an error that all
    /// ranks must report to their programs.
    ///
    /// # Errors
    /// The same for all ranks: the reason why no save was begun.
    pub fn begin(
        &self,
        pool: &Pool,
        writer: &mut Writer,
        source: &mut dyn PageSource,
        ready: Result<()>,
        (says, judge): (&str, &dyn Fn(Error) -> Error),
    ) -> Result<GroupSave> {
        self.settle(pool, "a save")?;
        let id = &pool.config().format.pool_id;
        let job = self.job.as_str();
        let claims = ready.and_then(|()| Claims::new(id, job, says, source, self.is_lone));
        let digest = claims.as_ref().map(Claims::digest).map_err(Error::clone);
        let mut decided = self.agree("a save", digest, &mut |all| {
            let digests = unless_failed(all).map_err(judge)?;
            let group_save =
                if are_equal(&digests) { self.open(pool, writer) } else { Ok(Vec::new()) };
            group_save.map_err(judge)
        })?;
        if decided.is_empty() {
            let claims = claims.map(Claims::into_bytes);
            let differ = &mut |all| Err(Claims::difference(&unless_failed(all)?));
            decided = self.agree("a save", claims, differ)?;
        }
        self.join(pool, writer, &decided)
    }

    /// Opens the session on rank 0. Every rank needs the result.
    fn open(&self, pool: &Pool, writer: &mut Writer) -> Result<Vec<u8>> {
        let mut opened = writer.committer.open(pool)?;
        let epoch = writer.committer.head.last_epoch + 1;
        let mut leader = self.leader();
        leader.told.then(opened.changes);
        opened.changes = leader.told.clone();
        leader.saves += 1;
        let (save, width) = (leader.saves, leader.scheduler.next());
        let mut bytes = [epoch.to_le_bytes(), save.to_le_bytes()].concat();
        bytes.extend(width.to_le_bytes());
        bytes.extend(leader.next_pack.to_le_bytes());
        let patience_ns = u64::try_from(self.patience.as_nanos()).unwrap_or(u64::MAX);
        bytes.extend(patience_ns.to_le_bytes());
        bytes.extend(SaveMessage::Session(opened).encode()?);
        Ok(bytes)
    }

    /// Takes account of the session on each rank. If that fails, the others get a message in the
    /// log.
    fn join(&self, pool: &Pool, writer: &mut Writer, decided: &[u8]) -> Result<GroupSave> {
        let wrong = || Error::bug("rank 0 has begun a save with something that is no session");
        let (epoch, rest) = decided.split_first_chunk::<8>().ok_or_else(wrong)?;
        let (save, rest) = rest.split_first_chunk::<8>().ok_or_else(wrong)?;
        let (width, rest) = rest.split_first_chunk::<4>().ok_or_else(wrong)?;
        let (next_pack, rest) = rest.split_first_chunk::<4>().ok_or_else(wrong)?;
        let (patience_ns, rest) = rest.split_first_chunk::<8>().ok_or_else(wrong)?;
        let patience = Duration::from_nanos(u64::from_le_bytes(*patience_ns));
        let (epoch, save) = (u64::from_le_bytes(*epoch), u64::from_le_bytes(*save));
        let width = u32::from_le_bytes(*width);
        let SaveMessage::Session(opened) = SaveMessage::decode(rest)? else { return Err(wrong()) };
        let save_id = SaveId { session: opened.session, save };
        let packs = writer.rank.begin(pool, &opened).map_err(|error| {
            let error = writer.committer.blame(pool, error);
            self.give_up(pool, save_id, error)
        })?;
        // The number and the rank of a pack decide where it goes. So ranks spread their packs
        // evenly as long as their numbers are alike, also if one has written more than others, or
        // once had to merge an index.
        packs.go_on_at(u32::from_le_bytes(*next_pack));
        Ok(GroupSave { epoch, packs, save_id, width, patience })
    }

    /// Reports to the others that this rank has no image, and returns the error.
    pub fn give_up(&self, pool: &Pool, save_id: SaveId, error: Error) -> Error {
        // If that fails, they will miss this rank.
        self.tell(pool, save_id, &SaveMessage::Failed(error.clone()));
        error
    }

    /// Sends the last message of this rank about a save. Returns whether it was sent.
    fn tell(&self, pool: &Pool, save_id: SaveId, message: &SaveMessage) -> bool {
        let told = self.outbox.insist(pool, save_id, message);
        if let Err(untold) = &told {
            let rank = self.rank();
            pool.warn(format!("rank {rank} could not tell the others how a save ended: {untold}"));
        }
        told.is_ok()
    }

    /// Waits until it is this rank's turn to write. A freeze that makes the program wait, or keeps
    /// memory for which it has no room, does not wait.
    ///
    /// # Errors
    /// The failure of the save meanwhile.
    fn await_turn(&self, pool: &Pool, group_save: &GroupSave) -> Result<()> {
        let Some(before) = self.rank().checked_sub(group_save.width) else { return Ok(()) };
        let now = pool.env().clock.monotonic();
        let mut first = Inbox::new(&self.job, before, now);
        let mut leader = Inbox::new(&self.job, LEADER, now);
        // Every rank looks for messages of the leader, and only this one looks for its turn.
        let between = least_pause(self.coordinator.size(), group_save.patience);
        let mut next_look = now;
        let pauses = Pauses::begin(pool);
        let mut watch = self.watch(pool, group_save);
        loop {
            // With or without an image, that rank no longer writes.
            if first.next(pool, group_save.save_id, group_save.patience)?.is_some() {
                return Ok(());
            }
            let now = pool.env().clock.monotonic();
            if before != LEADER && now >= next_look {
                next_look = now + between;
                // Before this rank has an image, a message of rank 0 can only be that the save has
                // failed.
                if let Some(SaveMessage::Failed(error)) =
                    leader.next(pool, group_save.save_id, group_save.patience)?
                {
                    return Err(error);
                }
            }
            watch.look(pool)?;
            self.pause(pool, &pauses);
        }
    }

    fn watch(&self, pool: &Pool, group_save: &GroupSave) -> FenceWatch<'_> {
        FenceWatch::begin(pool, &self.job, group_save.save_id, group_save.patience)
    }

    /// Carries out this rank's `plan` of the save `group_save`, up to the commit. Calls `live_done`
    /// once it will read no live page again, also after an error.
    ///
    /// # Errors
    /// The reason why nothing was committed, the same for all ranks as far as they can learn it.
    /// The previous checkpoint and the writer stay as they were.
    #[allow(clippy::too_many_arguments)] // the complete input of a save, in one call
    pub fn execute(
        self: &Arc<GroupMember>,
        pool: &Pool,
        writer: &mut Writer,
        group_save: &GroupSave,
        plan: &SavePlan,
        frozen: &dyn Frozen,
        request: &SaveRequest,
        live_done: &(dyn Fn() + Sync),
    ) -> Result<SaveStats> {
        self.tidy(pool);
        let pulse = self.pulse(pool, group_save);
        // A rank whose program waits must not wait for others.
        let turn = if plan.live_blocks == 0 { self.await_turn(pool, group_save) } else { Ok(()) };
        let store =
            |()| writer.rank.store(pool, &group_save.packs, plan, frozen, request, live_done);
        let stored = turn.and_then(store);
        let header = checkpoint_header(pool, plan, request);
        let committed = self.commit(pool, writer, group_save, &header, stored);
        drop(pulse);
        let (stored, committed) = committed?;
        let mut stats = writer.rank.follow(pool, stored, &committed);
        if self.leads() {
            stats.new_bytes += committed.record_bytes;
        }
        Ok(stats)
    }

    /// Commits the stored images of all ranks: rank 0 does, and the others wait for that. Returns
    /// the image as it was committed.
    fn commit(
        &self,
        pool: &Pool,
        writer: &mut Writer,
        group_save: &GroupSave,
        header: &CheckpointHeader,
        stored: Result<StoredImage>,
    ) -> Result<(StoredImage, Committed)> {
        match self.leads() {
            true => self.lead(pool, writer, group_save, header, stored),
            false => self.follow(pool, writer, group_save, stored),
        }
    }

    fn follow(
        &self,
        pool: &Pool,
        writer: &mut Writer,
        group_save: &GroupSave,
        stored: Result<StoredImage>,
    ) -> Result<(StoredImage, Committed)> {
        let mut stored = stored.map_err(|error| self.fail(pool, group_save, error))?;
        loop {
            let spread = writer.rank.targets.as_ref().map(TargetsThen::spread).unwrap_or_default();
            let image = SaveMessage::Image(RankImage { spread, ..stored.image().clone() });
            if let Err(error) = self.outbox.post(pool, group_save.save_id, image) {
                // The message may be there all the same, and rank 0 may commit.
                let committed = self.withdraw(pool, group_save, error)?;
                writer.committer.events.committed(pool, group_save.epoch);
                return Ok((stored, committed));
            }
            match self.verdict(pool, group_save)? {
                SaveMessage::Committed(committed) => {
                    writer.committer.events.committed(pool, group_save.epoch);
                    return Ok((stored, committed));
                }
                SaveMessage::Changed(changes) => {
                    let rebased = writer.rank.rebase(pool, &group_save.packs, &mut stored, changes);
                    rebased.map_err(|error| self.fail(pool, group_save, error))?;
                }
                SaveMessage::Failed(error) => return Err(error),
                _ => return Err(Error::bug("rank 0 has said something that ranks do not say")),
            }
        }
    }

    /// Reports that this rank has no image. If the session is over, rank 0 knows the reason better.
    fn fail(&self, pool: &Pool, group_save: &GroupSave, error: Error) -> Error {
        match self.withdraw(pool, group_save, error) {
            Ok(_) => Error::bug("a save was committed without the image of a rank"),
            Err(error) => error,
        }
    }

    /// Reports that this rank has no image, with the reason, and waits for the verdict of rank 0.
    fn withdraw(&self, pool: &Pool, group_save: &GroupSave, error: Error) -> Result<Committed> {
        // Others must miss a rank that could not report it, so its signs of life end.
        if !self.tell(pool, group_save.save_id, &SaveMessage::Failed(error.clone())) {
            return Err(unconfirmed(error));
        }
        match self.verdict(pool, group_save) {
            Ok(SaveMessage::Committed(committed)) => Ok(committed),
            Ok(SaveMessage::Failed(verdict)) => Err(verdict),
            _ => Err(unconfirmed(error)),
        }
    }

    /// Returns the next message of rank 0.
    fn verdict(&self, pool: &Pool, group_save: &GroupSave) -> Result<SaveMessage> {
        let now = pool.env().clock.monotonic();
        let mut inboxes = self.inboxes.lock();
        if inboxes.is_empty() {
            inboxes.push(Inbox::new(&self.job, LEADER, now));
        }
        let leader = &mut inboxes[0];
        leader.expect(now);
        let pauses = Pauses::among(pool, self.coordinator.size(), group_save.patience);
        let mut watch = self.watch(pool, group_save);
        loop {
            let next = leader.next(pool, group_save.save_id, group_save.patience);
            let next = match next {
                Ok(None) => watch.look(pool).map(|()| None),
                next => next,
            };
            let next = next.map_err(|error| {
                error.context("the checkpoint may exist or not, as only rank 0 knows")
            })?;
            match next {
                // For ranks that wait for their turn.
                Some(SaveMessage::Image(_)) => {}
                Some(message) => return Ok(message),
                None => self.pause(pool, &pauses),
            }
        }
    }

    fn lead(
        &self,
        pool: &Pool,
        writer: &mut Writer,
        group_save: &GroupSave,
        header: &CheckpointHeader,
        stored: Result<StoredImage>,
    ) -> Result<(StoredImage, Committed)> {
        let outcome = self.lead_to_commit(pool, writer, group_save, header, stored);
        let verdict = match &outcome {
            Ok((_, committed)) => SaveMessage::Committed(*committed),
            Err(error) => SaveMessage::Failed(error.clone()),
        };
        self.tell(pool, group_save.save_id, &verdict);
        if outcome.is_ok() {
            // Every rank has taken part, so it knows all changes.
            self.leader().told = Changes::default();
        }
        outcome
    }

    fn lead_to_commit(
        &self,
        pool: &Pool,
        writer: &mut Writer,
        group_save: &GroupSave,
        header: &CheckpointHeader,
        stored: Result<StoredImage>,
    ) -> Result<(StoredImage, Committed)> {
        let started = pool.env().clock.monotonic();
        let mut stored = stored.map_err(|error| writer.committer.blame(pool, error))?;
        if group_save.width < self.coordinator.size() {
            let image = SaveMessage::Image(stored.image().clone());
            self.outbox.post(pool, group_save.save_id, image)?;
        }
        let mut is_first = true;
        loop {
            let images = self.collect(pool, group_save, stored.image());
            let images = images.map_err(|error| writer.committer.blame(pool, error));
            if let (Ok(images), true) = (&images, is_first) {
                self.learn(pool, group_save, images, started);
            }
            is_first = false;
            // A later run restores the newest checkpoint when it begins, so no commit must follow
            // then.
            let images = images.and_then(|images| self.coordinator.check().map(|()| images));
            let outcome = images.and_then(|images| writer.committer.commit(pool, header, &images));
            // The next save must take account of the changes that this one could not handle.
            let put_back = |writer: &mut Writer, stored: &StoredImage| {
                writer.committer.head.put_back(stored.changes_seen().clone());
            };
            match outcome.inspect_err(|_| put_back(writer, &stored))? {
                Commit::Done(committed) => return Ok((stored, committed)),
                Commit::Changed(changes) => {
                    let told = self.outbox.post(
                        pool,
                        group_save.save_id,
                        SaveMessage::Changed(changes.clone()),
                    );
                    let rebased = writer.rank.rebase(pool, &group_save.packs, &mut stored, changes);
                    let rebased = told.and(rebased);
                    let rebased = rebased.map_err(|error| writer.committer.blame(pool, error));
                    rebased.inspect_err(|_| put_back(writer, &stored))?;
                }
            }
        }
    }

    /// Learns for the next save from the images of all ranks: how fast they were written, and which
    /// pack numbers are taken.
    fn learn(&self, pool: &Pool, group_save: &GroupSave, images: &[RankImage], started: Duration) {
        let took = pool.env().clock.monotonic().saturating_sub(started);
        let own = images.first().map_or(0, |image| image.figures.drain_ns);
        let bytes = images.iter().map(|image| image.figures.new_bytes).sum();
        let next_pack = images.iter().map(|image| image.image.next_pack).max();
        let mut leader = self.leader();
        // Every eighth save merges its index, which takes time for which no width is the cause.
        let (session, first_pack) = (group_save.save_id.session, leader.next_pack);
        if !images.iter().any(|image| has_merged(&image.image, session, first_pack)) {
            leader.scheduler.learn(group_save.width, bytes, took + Duration::from_nanos(own));
        }
        leader.next_pack = next_pack.unwrap_or_default();
    }

    /// Collects the images of all ranks.
    fn collect(
        &self,
        pool: &Pool,
        group_save: &GroupSave,
        own: &RankImage,
    ) -> Result<Vec<RankImage>> {
        let now = pool.env().clock.monotonic();
        let mut inboxes = self.inboxes.lock();
        if inboxes.is_empty() {
            let others = 1..self.coordinator.size();
            inboxes.extend(others.map(|rank| Inbox::new(&self.job, rank, now)));
        }
        let mut images: Vec<Option<RankImage>> = vec![None; inboxes.len()];
        inboxes.iter_mut().for_each(|inbox| inbox.expect(now));
        let pauses = Pauses::begin(pool);
        let mut watch = self.watch(pool, group_save);
        // Ranks without an image, in the order in which they are asked.
        let mut missing: VecDeque<usize> = (0..inboxes.len()).collect();
        loop {
            let mut silent = 0;
            for _ in 0..missing.len() {
                let Some(at) = missing.pop_front() else { break };
                let inbox = &mut inboxes[at];
                match inbox.next(pool, group_save.save_id, group_save.patience)? {
                    Some(SaveMessage::Image(stored)) => images[at] = Some(stored),
                    Some(SaveMessage::Failed(error)) => return Err(of_rank(inbox.rank, error)),
                    Some(_) => {
                        let what = Error::bug("it has said something that only rank 0 says");
                        return Err(of_rank(inbox.rank, what));
                    }
                    None => {
                        missing.push_back(at);
                        silent += 1;
                    }
                }
                if silent == SILENT_AT_A_LOOK {
                    break;
                }
            }
            if missing.is_empty() {
                return Ok(std::iter::once(own.clone())
                    .chain(images.into_iter().flatten())
                    .collect());
            }
            watch.look(pool)?;
            self.pause(pool, &pauses);
        }
    }

    /// Removes messages about earlier saves. Every rank has read them: it has come to begin this
    /// one.
    fn tidy(&self, pool: &Pool) {
        if let Err(error) = self.outbox.tidy(pool) {
            pool.warn(format!("old messages of rank {} are left: {error}", self.rank()));
        }
    }

    /// Returns the findings about schedules, on rank 0.
    pub fn learnt(&self) -> Vec<String> {
        self.leader().scheduler.learnt()
    }

    fn pause(&self, pool: &Pool, pauses: &Pauses) {
        self.looks.fetch_add(1, Ordering::Relaxed);
        pauses.pause(pool);
    }

    /// Sends signs of life from time to time, until the returned pulse is dropped. It pauses while
    /// this rank has made no progress for the patience of the others, since they must miss it then.
    fn pulse(self: &Arc<GroupMember>, pool: &Pool, group_save: &GroupSave) -> Option<Pulse> {
        if group_save.patience > KEEPALIVE_PATIENCE_MAX {
            return None;
        }
        let (part, of, save_id, patience) =
            (self.clone(), pool.clone(), group_save.save_id, group_save.patience);
        let done = move || (of.progress(), part.looks.load(Ordering::Relaxed));
        let (mut seen, mut since) = (done(), pool.env().clock.monotonic());
        let (part, of) = (self.clone(), pool.clone());
        let beat = move || {
            let (done, now) = (done(), of.env().clock.monotonic());
            if done != seen {
                (seen, since) = (done, now);
            }
            if now.saturating_sub(since) < patience {
                let _ = part.outbox.post(&of, save_id, SaveMessage::Alive);
            }
        };
        let pulse = Pulse::start(group_save.patience / 4, beat);
        // Without them the others may miss this rank: the save fails, and the error says so.
        pulse
            .inspect_err(|error| pool.warn(Error::no_thread("a sign of life", error).message()))
            .ok()
    }
}

/// Returns the error of a rank without an image, if rank 0 has sent none. Only rank 0 knows whether
/// the session is over, so that another writer may have moved the data.
fn unconfirmed(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Damaged => Error::retry(format!(
            "cannot tell whether another writer has taken over, or something is damaged, as rank 0 does \
             not answer: try again ({error})"
        )),
        _ => error,
    }
}
