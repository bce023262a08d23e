//! Looks from time to time, while a rank waits for others, whether another writer has taken over
//! the job. Then the others may never respond: ranks with the same numbers send their messages in
//! the same chains, and remove the older ones.

use super::mail::SaveId;
use crate::commit::history;
use outlive_format::Body;
use outlive_pool::Pool;
use outlive_types::{Error, JobName, Result, SessionId};
use std::time::Duration;

/// The longest time between two looks.
const EVERY: Duration = Duration::from_secs(10);

/// Times at which a waiting rank looks: several times within its patience.
#[derive(Debug)]
pub struct Looks {
    every: Duration,
    next: Duration,
}

impl Looks {
    /// Makes the looks of a rank that waits from `now` on.
    pub fn begin(now: Duration, patience: Duration) -> Looks {
        let every = EVERY.min(patience / 4);
        Looks { every, next: now + every }
    }

    /// Returns whether the next look is due.
    pub fn is_due(&mut self, now: Duration) -> bool {
        let is_due = now >= self.next;
        if is_due {
            self.next = now + self.every;
        }
        is_due
    }
}

/// The watch of a waiting rank.
#[derive(Debug)]
pub struct FenceWatch<'a> {
    job: &'a JobName,
    session: SessionId,
    looks: Looks,
}

impl<'a> FenceWatch<'a> {
    /// Makes the watch of a rank that waits from now on.
    pub fn begin(
        pool: &Pool,
        job: &'a JobName,
        save_id: SaveId,
        patience: Duration,
    ) -> FenceWatch<'a> {
        let looks = Looks::begin(pool.env().clock.monotonic(), patience);
        FenceWatch { job, session: save_id.session, looks }
    }

    /// Looks, if that is due. A log that cannot be read now shows nothing.
    ///
    /// # Errors
    /// `Fenced` if another writer has taken over.
    pub fn look(&mut self, pool: &Pool) -> Result<()> {
        if !self.looks.is_due(pool.env().clock.monotonic()) {
            return Ok(());
        }
        match newest_session(pool, self.job) {
            Ok(Some(newest)) if newest != self.session => Err(Error::fenced(format!(
                "another writer has taken over the job {}: this group must stop; what it committed \
                 before is safe. Give each running program a job of its own",
                self.job
            ))),
            _ => Ok(()),
        }
    }
}

/// Returns the newest session, unless an unreadable record may be a newer one.
fn newest_session(pool: &Pool, job: &JobName) -> Result<Option<SessionId>> {
    for entry in history(pool, job)? {
        match entry.record?.body {
            Body::Session(session) => return Ok(Some(session.session)),
            Body::Manifest(manifest) => return Ok(Some(manifest.session)),
            Body::Archive(archive) => return Ok(archive.session.map(|(it, _)| it.session)),
            Body::Close(_) | Body::Prune(_) | Body::Sweep(_) | Body::Note(_) => {}
        }
    }
    Ok(None)
}
