//! Save messages: while a save is written, ranks report to each other the state of their images.
//! They use records in the log, since their background threads have only the pool in common. Each
//! rank has a chain of records of its own, and only it appends there.

use outlive_format::{Envelope, SaveMessage};
use outlive_log::{Append, Previous};
use outlive_pool::Pool;
use outlive_types::sync::{Mutex, sleep};
use outlive_types::{Error, ErrorKind, JobName, Rank, Result, SessionId};
use std::time::Duration;

/// Attempts to append while another process of this rank, which was thought dead, appends.
const ATTEMPTS: usize = 8;
/// Attempts to send a last message, if the log does not respond.
const LAST_WORDS: usize = 4;
/// The shortest and the longest pause between two looks; it grows with the time that has passed.
const PAUSES: [Duration; 2] = [Duration::from_micros(200), Duration::from_millis(50)];
/// Pause for each rank of a group, where all of them look for a message of one rank. So together
/// they look at most 10,000 times a second; rank 0 takes about as long to receive from all of them.
const FOR_EACH_RANK: Duration = Duration::from_micros(100);

/// The save that a message is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SaveId {
    /// Its session.
    pub session: SessionId,
    /// Its number in that session.
    pub save: u64,
}

/// Sends the messages of one rank.
#[derive(Debug)]
pub struct Outbox {
    chain: JobName,
    newest: Mutex<Option<Previous>>,
}

impl Outbox {
    /// Makes the outbox of `rank`.
    pub fn new(job: &JobName, rank: Rank) -> Outbox {
        Outbox { chain: job.mail_of(rank), newest: Mutex::default() }
    }

    /// Sends a message.
    ///
    /// # Errors
    /// Errors of the log; then it is unknown whether the message is there.
    pub fn post(&self, pool: &Pool, save_id: SaveId, message: SaveMessage) -> Result<()> {
        let SaveId { session, save } = save_id;
        let bytes = Envelope { session, save, message }.encode()?;
        let mut newest = self.newest.lock();
        for _ in 0..ATTEMPTS {
            // After a failure the newest record is unknown.
            let behind = newest.take().map_or_else(|| self.look(pool), Ok)?;
            if pool.log().append_if(&self.chain, behind, &bytes)? == Append::Done {
                *newest = Some(Previous::of(behind.number + 1, &bytes));
                return Ok(());
            }
        }
        Err(Error::retry(format!(
            "others keep appending to {} in {}: is this rank running twice?",
            self.chain,
            pool.log().describe()
        )))
    }

    /// Sends the last message about a save, for which others would wait in vain. Repeats it if the
    /// log does not respond; a duplicate does no harm.
    ///
    /// # Errors
    /// As for [`Outbox::post`].
    pub fn insist(&self, pool: &Pool, save_id: SaveId, message: &SaveMessage) -> Result<()> {
        for _ in 1..LAST_WORDS {
            match self.post(pool, save_id, message.clone()) {
                Err(error) if error.kind() == ErrorKind::Retry => sleep(PAUSES[1]),
                posted => return posted,
            }
        }
        self.post(pool, save_id, message.clone())
    }

    /// Removes all messages but the newest: no rank needs those about earlier saves.
    ///
    /// # Errors
    /// Errors of the log.
    pub fn tidy(&self, pool: &Pool) -> Result<()> {
        let newest = *self.newest.lock();
        newest.map_or(Ok(()), |newest| pool.log().remove_before(&self.chain, newest.number))
    }

    fn look(&self, pool: &Pool) -> Result<Previous> {
        let mut number = pool.log().latest(&self.chain)?;
        while number > 0 {
            let error = match pool.log().read(&self.chain, number) {
                Ok(bytes) => return Ok(Previous::of(number, &bytes)),
                Err(error) => error,
            };
            // Another process of this rank has sent more since, and removed that one.
            let now = pool.log().latest(&self.chain)?;
            if error.kind() != ErrorKind::Damaged || now <= number {
                return Err(error);
            }
            number = now;
        }
        Ok(Previous::NONE)
    }
}

/// The error of a message that was not received.
enum Unheard {
    /// The log cannot be read now.
    Now(Error),
    /// A permanent error.
    Ever(Error),
}

impl From<Error> for Unheard {
    fn from(error: Error) -> Unheard {
        match error.kind() {
            ErrorKind::Retry => Unheard::Now(error),
            _ => Unheard::Ever(error),
        }
    }
}

/// Receives the messages of another rank.
#[derive(Debug)]
pub struct Inbox {
    /// The other rank.
    pub rank: Rank,
    chain: JobName,
    seen: u64,
    /// Time of the last message.
    heard: Duration,
    trouble: Option<Error>,
}

impl Inbox {
    /// Makes the inbox of `rank`, at `now` by the pool's clock. It also gets the messages that are
    /// still there.
    pub fn new(job: &JobName, rank: Rank, now: Duration) -> Inbox {
        Inbox { rank, chain: job.mail_of(rank), seen: 0, heard: now, trouble: None }
    }

    /// Expects a message from `now` on.
    pub fn expect(&mut self, now: Duration) {
        self.heard = self.heard.max(now);
    }

    /// Returns the next message about a save, if there is one; `None` also if the log cannot be
    /// read now.
    ///
    /// # Errors
    /// Permanent errors; `Retry` if a message is damaged, or none has come for `patience`.
    pub fn next(
        &mut self,
        pool: &Pool,
        save_id: SaveId,
        patience: Duration,
    ) -> Result<Option<SaveMessage>> {
        let found = self.look(pool, save_id);
        let now = pool.env().clock.monotonic();
        match found {
            Ok(Some(message)) => {
                (self.heard, self.trouble) = (now, None);
                if message != SaveMessage::Alive {
                    return Ok(Some(message));
                }
            }
            Ok(None) => self.trouble = None,
            Err(Unheard::Now(error)) => self.trouble = Some(error),
            Err(Unheard::Ever(error)) => return Err(error),
        }
        if now.saturating_sub(self.heard) < patience {
            return Ok(None);
        }
        let patience = patience.as_secs_f64();
        let rank = self.rank;
        Err(match self.trouble.take() {
            Some(trouble) => trouble.context(format!("no word of rank {rank} for {patience} s")),
            None => Error::retry(format!(
                "rank {rank} has not been heard of for {patience} s: it has ended, hangs, or cannot reach \
                 the pool"
            )),
        })
    }

    fn look(
        &mut self,
        pool: &Pool,
        save_id: SaveId,
    ) -> std::result::Result<Option<SaveMessage>, Unheard> {
        let numbers = pool.log().numbers(&self.chain)?;
        // The newest message is never removed, so this is another chain than the one that was read.
        if numbers.last().is_none_or(|newest| *newest < self.seen) {
            self.seen = 0;
        }
        let seen = self.seen;
        let mut alive = None;
        for number in numbers.into_iter().filter(|it| *it > seen) {
            let bytes = match pool.log().read(&self.chain, number) {
                Err(error) if error.kind() == ErrorKind::Damaged => {
                    // Its sender removes messages about earlier saves.
                    let is_there = pool.log().numbers(&self.chain)?.contains(&number);
                    self.seen = number;
                    match is_there {
                        true => return Err(self.damaged(number, &error)),
                        false => continue,
                    }
                }
                bytes => bytes?,
            };
            self.seen = number;
            let envelope =
                Envelope::decode(&bytes).map_err(|error| self.damaged(number, &error))?;
            let Envelope { session, save, message } = envelope;
            if (SaveId { session, save }) == save_id {
                match message {
                    // The expected message may come after signs of life.
                    SaveMessage::Alive => alive = Some(message),
                    message => return Ok(Some(message)),
                }
            }
        }
        Ok(alive)
    }

    /// Returns the error for a damaged message. It may be the expected one, and the rank would not
    /// count as missing, since its signs of life still come.
    fn damaged(&self, number: u64, error: &Error) -> Unheard {
        Unheard::Ever(Error::retry(format!(
            "message {number} of rank {} cannot be read: save again ({error})",
            self.rank
        )))
    }
}

/// Returns the least pause of each of `ranks` ranks with this patience that look for the same
/// message.
pub fn least_pause(ranks: u32, patience: Duration) -> Duration {
    PAUSES[0].max((FOR_EACH_RANK * ranks).min(patience / 8))
}

/// Pauses between two looks for messages of others.
#[derive(Debug)]
pub struct Pauses {
    since: Duration,
    least: Duration,
}

impl Pauses {
    /// Makes the pauses of a rank that alone looks for a message. The first look is now.
    pub fn begin(pool: &Pool) -> Pauses {
        Pauses { since: pool.env().clock.monotonic(), least: PAUSES[0] }
    }

    /// Makes the pauses of a rank that looks for a message for which all of `ranks` ranks look.
    pub fn among(pool: &Pool, ranks: u32, patience: Duration) -> Pauses {
        Pauses { least: least_pause(ranks, patience), ..Pauses::begin(pool) }
    }

    /// Waits for a sixteenth of the time that has passed: when ranks take turns, a device idles for
    /// half of that.
    pub fn pause(&self, pool: &Pool) {
        let passed = pool.env().clock.monotonic().saturating_sub(self.since);
        sleep((passed / 16).clamp(self.least, PAUSES[1].max(self.least)));
    }
}
