//! The position of a job's log for its writers: its newest session and epoch.

use super::{Entry, history};
use outlive_format::Body;
use outlive_pool::Pool;
use outlive_types::{Epoch, ErrorKind, JobName, Result, SessionId};

/// Position of a log. Notes, and the records of prunes, gcs and scrubs, do not change it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    /// The newest session.
    pub session: Option<SessionId>,
    /// The newest epoch that the log has had, dropped or not.
    pub epoch: Epoch,
}

impl Position {
    /// Reads the log only as far back as necessary.
    ///
    /// # Errors
    /// Errors of the log, except damage.
    pub fn of(pool: &Pool, job: &JobName) -> Result<Position> {
        let mut reading = PositionReader::default();
        for entry in history(pool, job)? {
            reading.add(&entry)?;
            if reading.is_done() {
                break;
            }
        }
        Ok(reading.position())
    }
}

/// Learns the position from a log's entries, newest first.
#[derive(Debug, Default)]
pub struct PositionReader {
    session: Option<SessionId>,
    epoch: Option<Epoch>,
    damaged: u64,
    /// Whether an archive was read. It replaces everything before it: its manifests add nothing.
    is_archive_met: bool,
}

impl PositionReader {
    /// Adds the next older entry.
    ///
    /// # Errors
    /// If the record could not be read, unless it is damaged.
    pub fn add(&mut self, entry: &Entry) -> Result<()> {
        if self.is_archive_met {
            return Ok(());
        }
        let (session, epoch) = match entry.record.as_ref().map(|record| &record.body) {
            Ok(Body::Manifest(manifest)) => (Some(manifest.session), Some(manifest.epoch)),
            Ok(Body::Session(session)) => (Some(session.session), None),
            Ok(Body::Prune(prune)) => (None, Some(prune.last_epoch)),
            Ok(Body::Archive(archive)) => {
                self.is_archive_met = true;
                let session = archive.session.as_ref().map(|(session, _)| session.session);
                (session, Some(archive.last_epoch))
            }
            Ok(Body::Sweep(_) | Body::Close(_) | Body::Note(_)) => (None, None),
            Err(error) if error.kind() != ErrorKind::Damaged => return Err(error.clone()),
            // The record may have been a manifest, whose epoch must not be used again. Records
            // below the newest readable epoch have smaller epochs anyway.
            Err(_) => {
                self.damaged += u64::from(self.epoch.is_none());
                (None, None)
            }
        };
        self.session = self.session.or(session);
        self.epoch = self.epoch.or(epoch);
        Ok(())
    }

    /// Sets the newest session, which the caller knows, unless a record has named one.
    pub fn assume_session(&mut self, session: SessionId) {
        self.session.get_or_insert(session);
    }

    /// Returns whether older entries add nothing.
    pub fn is_done(&self) -> bool {
        self.is_archive_met || self.session.is_some() && self.epoch.is_some()
    }

    /// Returns the position, as far as it was read.
    pub fn position(&self) -> Position {
        Position { session: self.session, epoch: self.epoch.unwrap_or(0) + self.damaged }
    }
}
