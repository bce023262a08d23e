//! A writer's hold on the log. The writer of the newest session record may commit. All writers
//! before it are fenced, and learn that when their next append loses.

use super::{Position, PositionReader, history};
use crate::images::list_of;
use outlive_format::{
    Archive, Body, Changes, Close, Committed, Images, Manifest, Moved, Record, SegmentRef, Session,
    fingerprint,
};
use outlive_log::{Append, Lease, Previous};
use outlive_pool::{Pool, ProcessMark, Spread, TargetsThen};
use outlive_types::{Epoch, Error, ErrorKind, Fingerprint, JobName, Rank, Result, SessionId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Attempts to open a session, or to append a manifest, while others append.
pub(super) const ATTEMPTS: usize = 32;

/// Returns a rank's segments after an archive, if its image was in a manifest or `in_table`.
///
/// # Errors
/// `Damaged` if the page that lists them is missing or wrong.
pub fn segments_of(
    pool: &Pool,
    moved: &Moved,
    rank: Rank,
    in_table: bool,
) -> Result<Vec<SegmentRef>> {
    match in_table {
        true => list_of(pool, &moved.lists, rank),
        false => Ok(moved.segments.clone()),
    }
}

/// The newest checkpoint that a program has restored or saved: its next checkpoint follows it. A
/// later restore of an older checkpoint does not change it.
#[derive(Clone, Debug, Default)]
pub struct Reached(Arc<AtomicU64>);

impl Reached {
    /// Adds a checkpoint that was restored, or may have been saved. Does not wait for a save in
    /// progress.
    pub fn add(&self, epoch: Epoch) {
        self.0.fetch_max(epoch, Ordering::Relaxed);
    }

    /// Returns whether the program may continue from this checkpoint, or from a newer one.
    fn has(&self, epoch: Epoch) -> bool {
        epoch <= self.0.load(Ordering::Relaxed)
    }

    /// Returns the epoch that checkpoint `epoch` follows; 0 for none.
    pub fn before(&self, epoch: Epoch) -> Epoch {
        // If the last commit failed, its epoch is used again.
        self.0.load(Ordering::Relaxed).min(epoch.saturating_sub(1))
    }
}

/// Result of an attempt to commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Commit {
    /// The checkpoint exists.
    Done(Committed),
    /// Packs were condemned or chunks moved: the caller must rebase the manifest and commit again.
    Changed(Changes),
}

/// Returns the record of a session, if it still exists and can be read.
fn find_session(pool: &Pool, job: &JobName, id: SessionId) -> Option<Session> {
    let sessions = history(pool, job).ok()?.filter_map(|entry| match entry.record.ok()?.body {
        Body::Session(session) => Some(session),
        Body::Archive(archive) => archive.session.map(|(session, _)| session),
        _ => None,
    });
    sessions.into_iter().find(|session| session.session == id && session.is_known())
}

/// The newest record as this writer knows it. While it holds a session, that record is its own.
#[derive(Debug)]
pub struct LogHead {
    job: JobName,
    number: u64,
    fp: Fingerprint,
    session: Option<SessionId>,
    /// Number of the record that opened it: its content is known, whether it can be read or not.
    opened: u64,
    /// True between a failed append and the next look at the log, whose newest record is unknown
    /// then.
    uncertain: bool,
    /// Position that the log must have when the next session is opened.
    expected: Option<Position>,
    /// Number of the newest record of which the restored checkpoint takes account that the next
    /// save follows.
    restored_as_of: Option<u64>,
    /// A session that is being opened.
    opening: Option<SessionId>,
    /// A session whose end is uncertain.
    ending: Option<SessionId>,
    /// Shows other hosts that this writer runs, from before its session is opened until after it is
    /// closed.
    lease: Option<Lease>,
    fenced: Option<Error>,
    /// Others have saved since this writer's last look, or the log was put back: it must look
    /// again.
    is_stale: bool,
    /// Whether a reader has found damage in a checkpoint since the last `take_damage`.
    met_damage: bool,
    /// The pool's targets before the first write that no record names yet.
    targets: Option<TargetsThen>,
    /// The newest checkpoint that this writer has restored or saved.
    reached: Reached,
    /// Newest epoch in the log.
    pub last_epoch: Epoch,
    /// Changes by sweeps and archives that the caller has not taken yet.
    changes: Changes,
}

impl LogHead {
    /// Makes a head that has not read the log yet.
    pub fn new(job: JobName) -> LogHead {
        LogHead {
            job,
            number: 0,
            fp: Fingerprint::ZERO,
            session: None,
            opened: 0,
            uncertain: false,
            expected: None,
            restored_as_of: None,
            opening: None,
            ending: None,
            lease: None,
            fenced: None,
            is_stale: false,
            met_damage: false,
            targets: None,
            reached: Reached::default(),
            last_epoch: 0,
            changes: Changes::default(),
        }
    }

    /// Returns the changes by others to the log since the last call.
    pub fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    /// Gives back changes that the caller could not handle, so that the next call returns them.
    pub fn put_back(&mut self, mut changes: Changes) {
        changes.then(std::mem::take(&mut self.changes));
        self.changes = changes;
    }

    /// Checks that this session, which must be open, still is.
    ///
    /// # Errors
    /// `Fenced` if another session has followed; errors of the log.
    pub fn check(&mut self, pool: &Pool) -> Result<()> {
        self.look(pool, self.session)?;
        self.check_targets(pool, &Spread::new())
    }

    /// Checks that the data written since [`LogHead::open`] is on targets that the pool still has.
    fn check_targets(&self, pool: &Pool, others: &Spread) -> Result<()> {
        self.targets.as_ref().map_or(Ok(()), |then| pool.check_targets(then, others))
    }

    /// Returns the cause of a failure: the end of this session, if it has ended, else `error`. The
    /// writer of a later session may have taken unfinished packs for leftovers, or moved data that
    /// this one reads. `Retry` if data seems damaged and the log does not show which writer is
    /// active.
    pub fn blame(&mut self, pool: &Pool, error: Error) -> Error {
        match self.session.map(|_| self.check(pool)) {
            Some(Err(fenced)) if fenced.kind() == ErrorKind::Fenced => fenced,
            // Another writer may have moved the missing data: then nothing is damaged.
            Some(Err(unknown))
                if error.kind() == ErrorKind::Damaged && unknown.kind() == ErrorKind::Retry =>
            {
                unknown.context(format!(
                    "cannot tell whether another writer has taken over, or something is damaged: try \
                     again ({error})"
                ))
            }
            _ => error,
        }
    }

    /// Notes the position of the log. The next session is opened only if no other writer has saved,
    /// or begun to save, by then. For programs that restore and continue from there.
    ///
    /// # Errors
    /// Errors of the log.
    pub fn note_position(&mut self, pool: &Pool) -> Result<Position> {
        let position = Position::of(pool, &self.job)?;
        (self.expected, self.is_stale) = (Some(position), false);
        Ok(position)
    }

    /// Notes that the next save follows a restored checkpoint, which takes account of the log up to
    /// this record.
    pub fn follows_as_of(&mut self, number: u64) {
        self.restored_as_of = Some(number);
    }

    /// Allows the next session even if others have saved meanwhile: the program does not continue
    /// from their checkpoints.
    pub fn take_over(&mut self) {
        (self.expected, self.is_stale) = (None, false);
    }

    /// Returns the newest checkpoint that this writer has restored or saved.
    pub fn reached(&self) -> &Reached {
        &self.reached
    }

    /// Uses a `reached` that other writers of the program share.
    pub fn share_reached(&mut self, reached: Reached) {
        self.reached = reached;
    }

    /// Returns the job.
    pub fn job(&self) -> &JobName {
        &self.job
    }

    /// Returns the session, once it is open.
    pub fn session(&self) -> Option<SessionId> {
        self.session
    }

    /// Returns whether the next save of this writer would be refused, as far as it knows. The
    /// reasons: another writer has taken over, others have saved since its last look, or the log
    /// was put back.
    pub fn is_refused(&self) -> bool {
        self.fenced.is_some() || self.is_stale
    }

    /// Returns whether a reader has marked a checkpoint as suspect since the last call.
    pub fn take_damage(&mut self) -> bool {
        std::mem::take(&mut self.met_damage)
    }

    /// Returns the number of the newest record that it has read.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the session; opens one in the log if there is none, and then returns true as well.
    ///
    /// # Errors
    /// `Fenced` if another writer has taken over; errors of the log.
    pub fn open(&mut self, pool: &Pool) -> Result<(SessionId, bool)> {
        if let Some(error) = &self.fenced {
            return Err(error.clone());
        }
        // Read the targets before the first write.
        self.targets = pool.targets_now()?;
        match self.session {
            Some(session) if !self.uncertain => {
                // To learn it now is cheaper than after everything is stored.
                if self.has_news(pool)? {
                    self.look(pool, Some(session))?;
                }
                Ok((session, false))
            }
            // After a failed append the same session continues, from the log's present end.
            Some(session) => {
                self.look(pool, Some(session))?;
                self.uncertain = false;
                Ok((session, false))
            }
            None => self.open_new(pool),
        }
    }

    /// Returns whether others have appended records, as far as a look at one or two records shows.
    fn has_news(&self, pool: &Pool) -> Result<bool> {
        let is_there = |number| match pool.log().read(&self.job, number) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::Damaged => Ok(false),
            Err(error) => Err(error),
        };
        Ok(is_there(self.number + 1)? || !is_there(self.number)?)
    }

    /// Checks that the pool is where it was, and that the logs list the data lost with volatile
    /// targets.
    fn check_markers(&self, pool: &Pool) -> Result<()> {
        pool.check_markers()?;
        // A collector finds that data.
        if self.job.is_gc() { Ok(()) } else { pool.check_settled() }
    }

    fn open_new(&mut self, pool: &Pool) -> Result<(SessionId, bool)> {
        self.check_markers(pool)?;
        for _ in 0..ATTEMPTS {
            let now = self.look(pool, None)?;
            // The record of this session exists, although the append failed. A gc may have ended
            // the session since, as its lease had ended. So the writer opens another session, with
            // a new lease.
            if now.session.is_some() && now.session == self.opening {
                (self.ending, self.lease) = (self.opening.take(), None);
            }
            // Use the same session again after a failure: its record may exist.
            let session = *self.opening.get_or_insert_with(|| {
                let mut id = [0; 12];
                pool.env().rng.fill(&mut id);
                SessionId(id)
            });
            // The newest session is this writer's own, and its end is uncertain.
            let is_own = now.session.is_some() && now.session == self.ending;
            if !is_own {
                let checked = self.check_position(pool, now);
                self.is_stale = checked.is_err();
                checked?;
            }
            // Without a lease only this host can tell whether the writer runs. Collectors need
            // none: no job waits for their packs.
            if self.lease.is_none() && !self.job.is_gc() {
                self.lease = pool.log().lease().unwrap_or_default();
            }
            let ProcessMark { process, started, host, system } = (pool.env().process)();
            let body = Body::Session(Session {
                session,
                process_id: process,
                opened_ns: pool.env().clock.unix_ns(),
                started,
                host,
                system,
                lease: self.lease.as_ref().map(|lease| lease.token.clone()).unwrap_or_default(),
            });
            if self.append(pool, body)? == Append::Done {
                // The log has the session open, whatever the next check returns.
                self.ending = Some(session);
                self.check_markers(pool)?; // the pool was not removed meanwhile
                (self.session, self.opened) = (Some(session), self.number);
                (self.expected, self.opening, self.ending) = (None, None, None);
                return Ok((session, true));
            }
        }
        Err(Error::retry(format!(
            "the job {} is being opened by many writers at once: try again",
            self.job
        )))
    }

    /// Refuses to continue from a state after which others have saved.
    fn check_position(&self, pool: &Pool, now: Position) -> Result<()> {
        let Some(then) = self.expected.filter(|then| *then != now) else { return Ok(()) };
        let who = match now.session.and_then(|session| find_session(pool, &self.job, session)) {
            Some(session) => format!("process {} on {}", session.process_id, session.host),
            None => "another writer".to_owned(),
        };
        let what = match now.epoch {
            epoch if epoch > then.epoch => {
                format!("{who} has saved up to checkpoint {epoch} since")
            }
            epoch if epoch < then.epoch => format!("its log ends with checkpoint {epoch} now"),
            _ => format!("{who} has begun to save since"),
        };
        Err(Error::fenced(format!(
            "job {} was at checkpoint {} when this program looked at it, and {what}: nothing was \
             saved. Restore again and go on from there. To go on from here instead, call take_over: \
             what was saved meanwhile is then left behind",
            self.job, then.epoch
        )))
    }

    /// Reads the newest records: number and fingerprint of the last one, the newest epoch, whether
    /// the newest session is still `mine`, and the changes since the last look. Returns the log's
    /// position.
    fn look(&mut self, pool: &Pool, mine: Option<SessionId>) -> Result<Position> {
        let seen = Previous { number: self.number, fp: self.fp };
        let mut newest: Option<Previous> = None;
        let mut reading = PositionReader::default();
        let mut since = Changes::default();
        let mut is_closed = false;
        let job = self.job.clone();
        for entry in history(pool, &job)? {
            newest.get_or_insert(Previous { number: entry.number, fp: entry.fp });
            let is_new = entry.number > seen.number;
            if mine.is_some() && entry.number == seen.number && entry.is_other_than(seen.fp) {
                return Err(self.put_back_in_time());
            }
            let damage = entry.damage();
            match (mine, damage) {
                // It may be a rival's session record: a writer that did not write it must assume
                // so.
                (Some(_), Some(error)) if is_new => {
                    return Err(self.fence_behind(entry.number, error));
                }
                (Some(mine), Some(_)) if entry.number == self.opened => {
                    reading.assume_session(mine);
                }
                _ => reading.add(&entry)?,
            }
            let mut is_last = false;
            match entry.record.map(|record| record.body) {
                Ok(Body::Close(close)) if is_new => is_closed |= mine == Some(close.session),
                Ok(Body::Prune(prune)) if is_new => since.dropped.extend(prune.epochs),
                Ok(Body::Sweep(sweep)) if is_new => since.condemned.extend(sweep.packs),
                Ok(Body::Note(note)) if is_new && note.remarks.suspect => {
                    // Before the first save, a mark counts if it is newer than the checkpoint that
                    // the save follows, and marks a checkpoint with which the save may share.
                    let is_newer = |as_of| entry.number > as_of;
                    let may_share =
                        self.restored_as_of.is_some_and(is_newer) && self.reached.has(note.epoch);
                    self.met_damage |= seen.number > 0 || may_share;
                }
                Ok(Body::Archive(archive)) => {
                    if is_new {
                        let ended = archive.session.as_ref().filter(|(_, is_open)| !is_open);
                        is_closed |= ended.is_some_and(|(ended, _)| mine == Some(ended.session));
                        since.condemned.extend(archive.condemned);
                        let is_whole =
                            |epoch: &Epoch| archive.incomplete.binary_search(epoch).is_err();
                        let kept = archive.manifests.iter().map(|m| m.epoch);
                        let epochs = kept.filter(is_whole).collect();
                        let number = entry.number;
                        let Archive { segments, lists, .. } = archive;
                        since.moved = Some(Moved { number, segments, lists, epochs });
                    }
                    // It replaces everything before it.
                    is_last = true;
                }
                _ => {}
            }
            if is_last || reading.is_done() && !is_new {
                break;
            }
        }
        let newest = newest.unwrap_or(Previous::NONE);
        if mine.is_some() && newest.number < seen.number {
            return Err(self.put_back_in_time());
        }
        (self.number, self.fp) = (newest.number, newest.fp);
        self.changes.then(since);
        let position = reading.position();
        self.last_epoch = position.epoch;
        match (mine, position.session) {
            (Some(mine), Some(newest)) if newest != mine => {
                Err(self.fence(find_session(pool, &self.job, newest)))
            }
            // A gc has dropped the record of this session, which it could not read. So it did not
            // know the session, and may have deleted packs that this writer was about to commit.
            (Some(_), None) => Err(self.fence(None)),
            // A writer that ends its session may have appended the close record itself.
            _ if is_closed && self.ending != mine => Err(self.fence_without_lease()),
            _ => Ok(position),
        }
    }

    fn put_back_in_time(&mut self) -> Error {
        self.is_stale = true;
        Error::damaged(format!(
            "the log of job {} has lost records that this program has written: was the pool \
             deleted, or an old copy put in its place?",
            self.job
        ))
    }

    fn fence_behind(&mut self, number: u64, why: &Error) -> Error {
        let error = Error::fenced(format!(
            "record {number} of the log of job {} was written by another program and cannot be read, \
             so another writer may have taken over: this writer must stop; what it committed before \
             is safe. Start the program again if it is the only one ({why})",
            self.job
        ));
        self.must_stop(error)
    }

    /// Stops this writer: it appends nothing from now on.
    fn must_stop(&mut self, error: Error) -> Error {
        self.fenced = Some(error.clone());
        self.lease = None;
        error
    }

    /// Fences this writer after a gc has ended its session, since its lease had ended.
    fn fence_without_lease(&mut self) -> Error {
        let error = Error::fenced(format!(
            "a gc or prune has ended the session of job {}, as this program seemed to have ended: it was held up, or cut \
             off from the log. This writer must stop; what it committed before is safe. Start the program again, or open \
             the job again and restore",
            self.job
        ));
        self.must_stop(error)
    }

    fn fence(&mut self, by: Option<Session>) -> Error {
        let who = match by {
            Some(session) => format!("process {} on {}", session.process_id, session.host),
            None => "another writer, or a gc that gave up damaged records,".to_owned(),
        };
        let error = Error::fenced(if self.job.is_gc() {
            format!("{who} has begun another gc or scrub, which goes on instead of this one")
        } else {
            format!(
                "{who} has taken over the job {}: this writer must stop; what it committed before is \
                 safe. Give each running program a job of its own",
                self.job
            )
        });
        self.must_stop(error)
    }

    /// Appends the manifest; from then on the checkpoint exists. A note by another process does not
    /// prevent that. After a sweep or an archive, the caller must rebase the manifest first.
    /// `written` lists the targets to which other processes have written packs of the manifest.
    ///
    /// # Errors
    /// `Fenced` if another writer has taken over. After any other error the checkpoint may or may
    /// not exist; the next `open` finds out.
    pub fn commit(&mut self, pool: &Pool, manifest: &Manifest, written: &Spread) -> Result<Commit> {
        self.check_markers(pool)?;
        for _ in 0..ATTEMPTS {
            // Check again after every lost append: a process that has recreated a target reports it
            // by a record.
            self.check_targets(pool, written)?;
            let record = self.record(Body::Manifest(manifest.clone()));
            let record_bytes = record.encode()?.len() as u64;
            let in_table = matches!(manifest.images, Images::Table(_));
            let committed = Committed { number: record.number, record_bytes, in_table };
            let appended = self.append(pool, record.body);
            if appended != Ok(Append::Lost) {
                // Also after an error: the manifest may be in the log all the same.
                self.reached.add(manifest.epoch);
            }
            if appended? == Append::Done {
                self.last_epoch = manifest.epoch;
                self.targets = None;
                return Ok(Commit::Done(committed));
            }
            let before = Previous { number: self.number, fp: self.fp };
            let looked = self.look(pool, self.session);
            let is_fenced = looked.as_ref().is_err_and(|e| e.kind() == ErrorKind::Fenced);
            // The delayed append may have succeeded: archives have taken in its record. Other
            // sessions may have followed, and the next save learns of them.
            let may_be_there = looked.as_ref().map_or(is_fenced, |p| p.epoch >= manifest.epoch);
            if may_be_there && self.is_committed(pool, manifest)? {
                pool.log().sync(&self.job)?;
                return Ok(Commit::Done(committed));
            }
            looked?;
            if before == (Previous { number: self.number, fp: self.fp })
                || self.last_epoch >= manifest.epoch
            {
                // No other session was opened, yet the number or the epoch is taken: the log was
                // changed by other means, and its content is unknown.
                return Err(self.fence(None));
            }
            let changes = self.take_changes();
            if !changes.is_empty() {
                return Ok(Commit::Changed(changes));
            }
            self.put_back(changes);
        }
        Err(Error::retry(format!(
            "other writers keep appending to the log of job {}: try again",
            self.job
        )))
    }

    /// Returns whether a manifest of this session is in the log; then the program continues from
    /// it.
    fn is_committed(&self, pool: &Pool, manifest: &Manifest) -> Result<bool> {
        for entry in history(pool, &self.job)? {
            let is_it = |there: &Manifest| {
                there.epoch == manifest.epoch && there.session == manifest.session
            };
            if entry.unless_unread()?.manifest().is_some_and(is_it) {
                self.reached.add(manifest.epoch);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Ends the open session in the log. Even after an error this writer never uses that session
    /// again: the next [`LogHead::open`] opens another one.
    ///
    /// # Errors
    /// Errors of the log, unless an earlier append had failed. A takeover by another writer is no
    /// error.
    pub fn close(&mut self, pool: &Pool) -> Result<()> {
        let had_failed = self.uncertain;
        match self.end(pool) {
            Err(_) if had_failed => Ok(()),
            ended => ended,
        }
    }

    /// Ends the session as [`LogHead::close`] does; call it again after an error.
    ///
    /// # Errors
    /// Errors of the log; the session may then still be open.
    pub fn end(&mut self, pool: &Pool) -> Result<()> {
        self.end_in_log(pool)?;
        self.lease = None;
        Ok(())
    }

    fn end_in_log(&mut self, pool: &Pool) -> Result<()> {
        // If another session may have been opened after this one, a gc ends it once this process is
        // gone.
        let ending = self.ending.filter(|_| self.opening.is_none());
        let Some(session) = self.session.take().or(ending) else { return Ok(()) };
        if self.fenced.is_some() {
            return Ok(());
        }
        self.ending = Some(session);
        // Later saves of this writer continue from here.
        self.expected = Some(Position { session: Some(session), epoch: self.last_epoch });
        let mut must_look = self.uncertain;
        for _ in 0..ATTEMPTS {
            if must_look {
                // Notes and sweeps do not matter; another session means that this one has ended.
                match self.look(pool, Some(session)) {
                    Err(error) if error.kind() == ErrorKind::Fenced => {
                        self.ending = None;
                        return Ok(());
                    }
                    looked => self.expected = Some(looked?),
                }
                self.uncertain = false;
            }
            if self.append(pool, Body::Close(Close { session }))? == Append::Done {
                self.ending = None;
                return Ok(());
            }
            must_look = true;
        }
        let job = &self.job;
        Err(Error::retry(format!(
            "other writers keep appending to the log of job {job}: try again"
        )))
    }

    fn record(&self, body: Body) -> Record {
        Record { number: self.number + 1, previous: self.fp, body }
    }

    fn append(&mut self, pool: &Pool, body: Body) -> Result<Append> {
        let bytes = self.record(body).encode()?;
        let behind = Previous { number: self.number, fp: self.fp };
        let appended = pool.log().append_if(&self.job, behind, &bytes);
        match &appended {
            Ok(Append::Done) => {
                self.number += 1;
                self.fp = fingerprint(&bytes);
            }
            Ok(Append::Lost) => {}
            Err(_) => self.uncertain = true,
        }
        appended
    }
}

#[cfg(test)]
mod tests;
