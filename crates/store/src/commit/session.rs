//! A writer's hold on the log. Whoever appended the newest session record may commit; everybody
//! before is fenced, and finds out when their next append loses.

use super::history;
use outlive_format::{Body, Close, Manifest, Note, Record, SegmentRef, Session, fingerprint};
use outlive_pool::Pool;
use outlive_target::Append;
use outlive_types::{Epoch, Error, ErrorKind, Fingerprint, JobName, PackId, Result, SessionId};
use std::collections::HashSet;

/// How often a session tries to open, or a manifest to be appended, while others append.
const ATTEMPTS: usize = 32;

/// What prunes and gcs have done to a job's log since this writer last looked.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Changes {
    /// Packs that nobody may refer to from now on.
    pub condemned: HashSet<PackId>,
    /// What has become of the older manifests.
    pub moved: Option<Moved>,
}

/// An archive, as far as a writer needs it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Moved {
    /// Number of its record.
    pub number: u64,
    /// They resolve whatever the manifests kept need.
    pub segments: Vec<SegmentRef>,
    /// Epochs of the manifests kept, ascending, but for those of which something is lost.
    pub epochs: Vec<Epoch>,
}

impl Changes {
    /// True if nothing has happened.
    pub fn is_empty(&self) -> bool {
        self.condemned.is_empty() && self.moved.is_none()
    }

    /// Adds what happened later.
    pub fn then(&mut self, later: Changes) {
        self.condemned.extend(later.condemned);
        self.moved = later.moved.or(self.moved.take());
    }
}

/// Answer to an attempt to commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Commit {
    /// The checkpoint exists; its record has so many bytes.
    Done(u64),
    /// Packs were condemned or chunks moved since: the manifest must be mended and offered again.
    Changed(Changes),
}

/// The newest record as this writer knows it. While it holds a session, that record is its own.
#[derive(Debug)]
pub struct LogHead {
    job: JobName,
    number: u64,
    fp: Fingerprint,
    session: Option<SessionId>,
    /// Number of the record that opened it: what it says is known, whether it can be read or not.
    opened: u64,
    /// True between a failed append and the next look at the log: we do not know its newest record.
    uncertain: bool,
    fenced: Option<Error>,
    /// Newest epoch in the log.
    pub last_epoch: Epoch,
    /// What was seen of sweeps and archives and not yet asked for.
    changes: Changes,
}

impl LogHead {
    /// A head that has looked at nothing yet.
    pub fn new(job: JobName) -> LogHead {
        LogHead {
            job,
            number: 0,
            fp: Fingerprint::ZERO,
            session: None,
            opened: 0,
            uncertain: false,
            fenced: None,
            last_epoch: 0,
            changes: Changes::default(),
        }
    }

    /// What others have done to the log since this was last asked.
    pub fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    /// Gives back changes that could not be dealt with, to be asked for again.
    pub fn put_back(&mut self, mut changes: Changes) {
        changes.then(std::mem::take(&mut self.changes));
        self.changes = changes;
    }

    /// Makes sure that this session, which must be open, still is.
    ///
    /// # Errors
    /// `Fenced` if another has followed; what the log reports.
    pub fn check(&mut self, pool: &Pool) -> Result<()> {
        self.look(pool, self.session)
    }

    /// The job.
    pub fn job(&self) -> &JobName {
        &self.job
    }

    /// Number of the newest record that was seen.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The session, opened in the log if there is none yet. Answers true if it was opened now.
    ///
    /// # Errors
    /// `Fenced` if another writer has taken over since; what the log reports.
    pub fn open(&mut self, pool: &Pool) -> Result<(SessionId, bool)> {
        if let Some(error) = &self.fenced {
            return Err(error.clone());
        }
        match self.session {
            Some(session) if !self.uncertain => {
                // Cheaper to be told now than after everything is stored.
                if self.has_news(pool) {
                    self.look(pool, Some(session))?;
                }
                Ok((session, false))
            }
            // After a failed append the same session goes on, from whatever the log holds now.
            Some(session) => {
                self.look(pool, Some(session))?;
                self.uncertain = false;
                Ok((session, false))
            }
            None => self.open_new(pool),
        }
    }

    /// Whether others have appended something, as far as a look at one or two records tells.
    fn has_news(&self, pool: &Pool) -> bool {
        let is_there = |number| pool.log().read(&self.job, number).is_ok();
        is_there(self.number + 1) || !is_there(self.number)
    }

    fn open_new(&mut self, pool: &Pool) -> Result<(SessionId, bool)> {
        pool.check_place()?;
        let mut id = [0; 12];
        pool.env().rng.fill(&mut id);
        let session = SessionId(id);
        for _ in 0..ATTEMPTS {
            self.look(pool, None)?;
            let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            let body = Body::Session(Session {
                session,
                process_id: std::process::id(),
                opened_ns: pool.env().clock.unix_ns(),
                host: host.trim().to_owned(),
            });
            if self.append(pool, body)? == Append::Done {
                pool.check_place()?; // nobody has taken it away meanwhile
                (self.session, self.opened) = (Some(session), self.number);
                return Ok((session, true));
            }
        }
        Err(Error::retry(format!(
            "the job {} is being opened by many writers at once: try again",
            self.job
        )))
    }

    /// Looks at the newest records: number and fingerprint of the last, the newest epoch, whether
    /// the newest session is still `mine`, and what has changed since the last look.
    fn look(&mut self, pool: &Pool, mine: Option<SessionId>) -> Result<()> {
        let seen = std::mem::take(&mut self.number);
        self.fp = Fingerprint::ZERO;
        let mut damaged = 0;
        let mut epoch = None;
        // Of the newest session: its id, and whose it is.
        let mut newest_session: Option<(SessionId, Option<Session>)> = None;
        let mut since = Changes::default();
        for entry in history(pool, &self.job)? {
            if self.number == 0 {
                self.number = entry.number;
                self.fp = entry.fp;
            }
            let is_new = entry.number > seen;
            match entry.record.map(|record| record.body) {
                Ok(Body::Manifest(manifest)) => {
                    epoch.get_or_insert(manifest.epoch);
                }
                Ok(Body::Session(session)) => {
                    newest_session.get_or_insert((session.session, Some(session)));
                }
                Ok(Body::Sweep(sweep)) if is_new => since.condemned.extend(sweep.packs),
                Ok(Body::Archive(archive)) => {
                    epoch.get_or_insert(archive.last_epoch);
                    if let (None, Some((session, _))) = (&newest_session, archive.session) {
                        newest_session = Some((session.session, Some(session)));
                    }
                    if is_new {
                        since.condemned.extend(archive.condemned);
                        let is_whole = |epoch: &Epoch| archive.hurt.binary_search(epoch).is_err();
                        let kept = archive.manifests.iter().map(|m| m.epoch);
                        let epochs = kept.filter(is_whole).collect();
                        let number = entry.number;
                        since.moved = Some(Moved { number, segments: archive.segments, epochs });
                    }
                    // It stands for everything before it.
                    break;
                }
                Ok(_) => {}
                Err(_) if mine.is_some() && entry.number == self.opened => {
                    newest_session = newest_session.or(mine.map(|mine| (mine, None)));
                }
                // A manifest that cannot be read had an epoch all the same: leave it its number.
                Err(_) if epoch.is_none() => damaged += 1,
                Err(_) => {}
            }
            if epoch.is_some() && (mine.is_none() || newest_session.is_some()) && !is_new {
                break;
            }
        }
        if mine.is_some() && self.number < seen {
            self.number = seen;
            return Err(Error::damaged(format!(
                "the log of job {} has lost records that this program has written: was the pool \
                 deleted, or an old copy put in its place?",
                self.job
            )));
        }
        self.changes.then(since);
        self.last_epoch = epoch.unwrap_or(0) + damaged;
        match (mine, newest_session) {
            (Some(mine), Some((newest, by))) if newest != mine => Err(self.fence(by)),
            // A gc has given up the record of our session, which it could not read. So it did not
            // know of us, and may have deleted what we were about to commit.
            (Some(_), None) => Err(self.fence(None)),
            _ => Ok(()),
        }
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
        self.fenced = Some(error.clone());
        error
    }

    /// Appends the manifest; from then on the checkpoint exists. Somebody else's note does not
    /// stand in the way; after a sweep or an archive the caller must mend the manifest first.
    ///
    /// # Errors
    /// `Fenced` if another writer has taken over; after any other error the checkpoint may or may
    /// not exist, and the next `open` finds out.
    pub fn commit(&mut self, pool: &Pool, manifest: &Manifest) -> Result<Commit> {
        for _ in 0..ATTEMPTS {
            let record = self.record(Body::Manifest(manifest.clone()));
            let length = record.encode()?.len() as u64;
            if self.append(pool, record.body)? == Append::Done {
                self.last_epoch = manifest.epoch;
                return Ok(Commit::Done(length));
            }
            let before = self.number;
            self.look(pool, self.session)?;
            if self.number <= before || self.last_epoch >= manifest.epoch {
                // Nobody opened a session, yet the number or the epoch is taken: the log was
                // written by other means, and we cannot know what it holds.
                return Err(self.fence(None));
            }
            let changes = self.take_changes();
            if !changes.is_empty() {
                return Ok(Commit::Changed(changes));
            }
        }
        Err(Error::retry(format!("others append to the log of job {} all the time", self.job)))
    }

    /// Ends the session in the log, if one is open.
    ///
    /// # Errors
    /// What the log reports. That somebody else has taken over is no error here.
    pub fn close(&mut self, pool: &Pool) -> Result<()> {
        let Some(session) = self.session.take() else { return Ok(()) };
        if self.fenced.is_some() || self.uncertain {
            return Ok(());
        }
        for _ in 0..ATTEMPTS {
            if self.append(pool, Body::Close(Close { session }))? == Append::Done {
                return Ok(());
            }
            // Notes and sweeps do not stand in the way; another session means that ours is over.
            match self.look(pool, Some(session)) {
                Err(error) if error.kind() == ErrorKind::Fenced => return Ok(()),
                looked => looked?,
            }
        }
        Ok(())
    }

    fn record(&self, body: Body) -> Record {
        Record { number: self.number + 1, previous: self.fp, body }
    }

    fn append(&mut self, pool: &Pool, body: Body) -> Result<Append> {
        let bytes = self.record(body).encode()?;
        let appended = pool.log().append_if(&self.job, self.number, &bytes);
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

/// Appends a note to a job's log, whoever else appends.
///
/// # Errors
/// `Retry` if others are faster all the time; what the log reports.
pub fn append_note(pool: &Pool, job: &JobName, note: Note) -> Result<()> {
    for _ in 0..ATTEMPTS {
        let number = pool.log().latest(job)?;
        // It may be gone by now, replaced by an archive.
        let Ok(newest) = pool.log().read(job, number) else { continue };
        let previous = fingerprint(&newest);
        let record = Record { number: number + 1, previous, body: Body::Note(note.clone()) };
        if pool.log().append_if(job, number, &record.encode()?)? == Append::Done {
            return Ok(());
        }
    }
    Err(Error::retry(format!("others append to the log of job {job} all the time")))
}
