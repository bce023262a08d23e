//! A writer's hold on the log. Whoever appended the newest session record may commit; everybody
//! before is fenced, and finds out when their next append loses.

use super::history;
use outlive_format::{Body, Close, Manifest, Record, Session, fingerprint};
use outlive_pool::Pool;
use outlive_target::Append;
use outlive_types::{Epoch, Error, Fingerprint, JobName, Result, SessionId};

/// How often a session tries to open while others do the same.
const OPEN_ATTEMPTS: usize = 32;

/// The newest record as this writer knows it. While it holds a session, that record is its own.
#[derive(Debug)]
pub struct LogHead {
    job: JobName,
    number: u64,
    fp: Fingerprint,
    session: Option<SessionId>,
    /// True between a failed append and the next look at the log: we do not know its newest record.
    uncertain: bool,
    fenced: Option<Error>,
    /// Newest epoch in the log.
    pub last_epoch: Epoch,
}

impl LogHead {
    /// A head that has looked at nothing yet.
    pub fn new(job: JobName) -> LogHead {
        LogHead {
            job,
            number: 0,
            fp: Fingerprint::ZERO,
            session: None,
            uncertain: false,
            fenced: None,
            last_epoch: 0,
        }
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
            Some(session) if !self.uncertain => Ok((session, false)),
            // After a failed append the same session goes on, from whatever the log holds now.
            Some(session) => {
                self.look(pool, Some(session))?;
                self.uncertain = false;
                Ok((session, false))
            }
            None => self.open_new(pool),
        }
    }

    fn open_new(&mut self, pool: &Pool) -> Result<(SessionId, bool)> {
        let mut id = [0; 12];
        pool.env().rng.fill(&mut id);
        let session = SessionId(id);
        for _ in 0..OPEN_ATTEMPTS {
            self.look(pool, None)?;
            let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            let body = Body::Session(Session {
                session,
                process_id: std::process::id(),
                opened_ns: pool.env().clock.unix_ns(),
                host: host.trim().to_owned(),
            });
            if self.append(pool, body)? == Append::Done {
                self.session = Some(session);
                return Ok((session, true));
            }
        }
        Err(Error::retry(format!(
            "the job {} is being opened by many writers at once: try again",
            self.job
        )))
    }

    /// Looks at the newest records: number and fingerprint of the last, the newest epoch, and
    /// whether the newest session is still `mine`.
    fn look(&mut self, pool: &Pool, mine: Option<SessionId>) -> Result<()> {
        self.number = 0;
        self.fp = Fingerprint::ZERO;
        let mut damaged = 0;
        let mut epoch = None;
        let mut newest_session = None;
        for entry in history(pool, &self.job)? {
            if self.number == 0 {
                self.number = entry.number;
                self.fp = fingerprint(&pool.log().read(&self.job, entry.number)?);
            }
            match &entry.record {
                Ok(Record { body: Body::Manifest(manifest), .. }) if epoch.is_none() => {
                    epoch = Some(manifest.epoch);
                }
                Ok(Record { body: Body::Session(session), .. }) if newest_session.is_none() => {
                    newest_session =
                        Some((session.session, session.process_id, session.host.clone()));
                }
                Ok(_) => {}
                // A manifest that cannot be read had an epoch all the same: leave it its number.
                Err(_) => damaged += 1,
            }
            if epoch.is_some() && (mine.is_none() || newest_session.is_some()) {
                break;
            }
        }
        self.last_epoch = epoch.unwrap_or(0) + damaged;
        match (mine, newest_session) {
            (Some(mine), Some((session, process, host))) if session != mine => {
                Err(self.fence(Some((process, host))))
            }
            _ => Ok(()),
        }
    }

    fn fence(&mut self, by: Option<(u32, String)>) -> Error {
        let who = match by {
            Some((process, host)) => format!("process {process} on {host}"),
            None => "another writer".to_owned(),
        };
        let error = Error::fenced(format!(
            "{who} has taken over the job {}: this writer must stop; what it committed before is \
             safe. Give each running program a job of its own",
            self.job
        ));
        self.fenced = Some(error.clone());
        error
    }

    /// Appends the manifest; from then on the checkpoint exists. Answers the record's length.
    ///
    /// # Errors
    /// `Fenced` if another writer has taken over; after any other error the checkpoint may or may
    /// not exist, and the next `open` finds out.
    pub fn commit(&mut self, pool: &Pool, manifest: Manifest) -> Result<u64> {
        let epoch = manifest.epoch;
        let body = Body::Manifest(manifest);
        let record = self.record(body);
        let length = record.encode()?.len() as u64;
        match self.append(pool, record.body)? {
            Append::Done => {
                self.last_epoch = epoch;
                Ok(length)
            }
            Append::Lost => {
                self.look(pool, self.session)?;
                // Nobody opened a session, yet the number is taken: the log was written by other
                // means, and we cannot know what it holds.
                Err(self.fence(None))
            }
        }
    }

    /// Ends the session in the log, if one is open.
    ///
    /// # Errors
    /// What the log reports. That somebody else has taken over is no error here.
    pub fn close(&mut self, pool: &Pool) -> Result<()> {
        match self.session.take() {
            Some(session) if self.fenced.is_none() && !self.uncertain => {
                self.append(pool, Body::Close(Close { session })).map(|_| ())
            }
            _ => Ok(()),
        }
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
