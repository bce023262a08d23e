//! Messages of ranks in the log: how a rank sends them, and how others receive them.

use outlive_format::{CallMessage, Payload, Token};
use outlive_log::{Append, Previous};
use outlive_pool::Pool;
use outlive_types::sync::{Mutex, sleep};
use outlive_types::{Error, ErrorKind, JobName, Rank, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Pause between two attempts to send.
const PAUSE: Duration = Duration::from_millis(50);
/// Number of attempts to report that a rank leaves.
const LAST_WORDS: u32 = 4;

/// Sends the messages of one rank.
pub struct Sender {
    pool: Pool,
    chain: JobName,
    rank: Rank,
    size: u32,
    run: String,
    speaker: Token,
    newest: Mutex<Option<Previous>>,
    /// Whether it has sent a message in this run.
    has_come: AtomicBool,
    has_left: AtomicBool,
}

impl Sender {
    /// Makes the sender of `rank`, whose messages are in `chain`.
    pub fn new(pool: &Pool, chain: JobName, rank: Rank, size: u32, run: &str) -> Sender {
        let mut speaker = Token::default();
        pool.env().rng.fill(&mut speaker);
        Sender {
            pool: pool.clone(),
            chain,
            rank,
            size,
            run: run.to_owned(),
            speaker,
            newest: Mutex::default(),
            has_come: AtomicBool::new(false),
            has_left: AtomicBool::new(false),
        }
    }

    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    pub fn run(&self) -> &str {
        &self.run
    }

    pub fn speaker(&self) -> Token {
        self.speaker
    }

    /// Draws a number that no other process has.
    pub fn draw(&self) -> Token {
        let mut token = Token::default();
        self.pool.env().rng.fill(&mut token);
        token
    }

    /// Sends a message; repeats that `until` a time by the pool's clock if the log does not
    /// respond.
    ///
    /// # Errors
    /// Errors of the log; `Invalid` if two processes have this rank; `Fenced` if another run has
    /// begun.
    pub fn say(&self, said: Payload, until: Duration) -> Result<()> {
        let word = self.word(said)?;
        let mut newest = self.newest.lock();
        loop {
            match self.append(&mut newest, &word) {
                Ok(Append::Done) => return Ok(()),
                // Another process has sent a message here, and must not.
                Ok(Append::Lost) => {}
                Err(error) if error.kind() == ErrorKind::Retry && self.now() < until => {
                    sleep(PAUSE)
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends a sign of life, if this rank has come and not left.
    pub fn live(&self) {
        if self.has_come.load(Ordering::Relaxed) && !self.has_left.load(Ordering::Relaxed) {
            // If this one fails, the next one may arrive.
            drop(self.say(Payload::Alive, Duration::ZERO));
        }
    }

    /// Sends the last message.
    ///
    /// # Errors
    /// As for [`Sender::say`].
    pub fn leave(&self, why: &Error) -> Result<()> {
        self.has_left.store(true, Ordering::Relaxed);
        self.say(Payload::Left(why.clone()), self.now() + PAUSE * LAST_WORDS)
    }

    /// Removes all messages but the newest. If that fails, they stay.
    pub fn tidy(&self) {
        let newest = *self.newest.lock();
        let Some(newest) = newest else { return };
        if let Err(error) = self.pool.log().remove_before(&self.chain, newest.number) {
            self.pool.warn(format!("old words of rank {} are left in the log: {error}", self.rank));
        }
    }

    /// Checks that no other process has sent messages here since. Otherwise the ranks for which
    /// this one waits may never respond: the processes that replaced them have removed their
    /// messages. A log that cannot be read now shows nothing.
    ///
    /// # Errors
    /// `Invalid` if two processes have this rank; `Fenced` if another run has begun.
    pub fn check(&self) -> Result<()> {
        let newest = *self.newest.lock();
        // Otherwise a look precedes the next message.
        let Some(newest) = newest else { return Ok(()) };
        let numbers = self.pool.log().numbers(&self.chain).unwrap_or_default();
        if numbers.last().is_none_or(|last| *last <= newest.number) {
            return Ok(());
        }
        match self.look() {
            Err(error) if matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Fenced) => {
                Err(error)
            }
            _ => Ok(()),
        }
    }

    fn now(&self) -> Duration {
        self.pool.env().clock.monotonic()
    }

    fn word(&self, said: Payload) -> Result<Vec<u8>> {
        let Sender { run, size, speaker, .. } = self;
        CallMessage { run: run.clone(), ranks: *size, speaker: *speaker, said }.encode()
    }

    /// Appends a message. After an error the append may be repeated: it finds the record if the log
    /// has it.
    fn append(&self, newest: &mut Option<Previous>, word: &[u8]) -> Result<Append> {
        let behind = match *newest {
            Some(behind) => behind,
            None => self.look()?,
        };
        *newest = Some(behind);
        let appended = self.pool.log().append_if(&self.chain, behind, word)?;
        *newest = match appended {
            Append::Done => Some(Previous::of(behind.number + 1, word)),
            Append::Lost => None,
        };
        if appended == Append::Done {
            self.has_come.store(true, Ordering::Relaxed);
        }
        Ok(appended)
    }

    /// Returns the newest message of this chain. Before the first message of this run it looks at
    /// all of them.
    fn look(&self) -> Result<Previous> {
        let numbers = self.pool.log().numbers(&self.chain)?;
        let Some(newest) = numbers.last().copied() else { return Ok(Previous::NONE) };
        let has_come = self.has_come.load(Ordering::Relaxed);
        let first = if has_come { newest } else { numbers[0] };
        let mut behind = Previous::NONE;
        for number in numbers.into_iter().filter(|number| *number >= first) {
            let bytes = match self.pool.log().read(&self.chain, number) {
                Ok(bytes) => bytes,
                // Another process has removed it, or it has no meaning any more.
                Err(error) if error.kind() == ErrorKind::Damaged && number < newest => continue,
                // Another process has sent a newer message meanwhile, and removed this one.
                Err(error)
                    if error.kind() == ErrorKind::Damaged
                        && !self.pool.log().numbers(&self.chain)?.contains(&number) =>
                {
                    return self.look();
                }
                Err(error) => return Err(error.context(format!("a word of rank {}", self.rank))),
            };
            behind = Previous::of(number, &bytes);
            let Ok(word) = CallMessage::decode(&bytes) else { continue };
            match (word.run == self.run, word.speaker == self.speaker) {
                (true, false) => return Err(self.twice()),
                (false, _) if has_come => return Err(taken_over(&self.run, &word.run)),
                _ => {}
            }
        }
        Ok(behind)
    }

    fn twice(&self) -> Error {
        Error::invalid(format!(
            "rank {} of run \"{}\" has come already: two processes have this rank, or an earlier start of the \
             program had the same name of the run. Give every rank to one process, and every start a name of \
             its own, such as the id of its batch job and the number of its restarts",
            self.rank, self.run
        ))
    }
}

fn taken_over(run: &str, by: &str) -> Error {
    Error::fenced(format!(
        "another run of the program, \"{}\", has begun after \"{}\": this one must stop; what it committed \
         before is safe. Give each running program a job of its own",
        by.escape_debug(),
        run.escape_debug()
    ))
}

/// Receives the messages of another rank.
#[derive(Debug)]
pub struct Receiver {
    /// The other rank.
    pub rank: Rank,
    /// Error of the last attempt to read the log.
    pub trouble: Option<Error>,
    chain: JobName,
    seen: u64,
    /// Time of the last message.
    heard: Duration,
    /// The process that sends for the rank in this run.
    speaker: Option<Token>,
}

impl Receiver {
    /// Makes a receiver of `rank`, whose messages are in `chain`, at `now` by the pool's clock. It also
    /// gets earlier messages.
    pub fn new(chain: JobName, rank: Rank, now: Duration) -> Receiver {
        Receiver { rank, chain, seen: 0, heard: now, speaker: None, trouble: None }
    }

    /// Expects a message from `now` on.
    pub fn expect(&mut self, now: Duration) {
        self.heard = self.heard.max(now);
    }

    /// Returns the time since the last message.
    pub fn silent_for(&self, now: Duration) -> Duration {
        now.saturating_sub(self.heard)
    }

    /// Returns the next message of the rank in `run`, which has `size` ranks; `None` also if the
    /// log cannot be read now.
    ///
    /// # Errors
    /// The reason why the rank has left; `Fenced` if another run has begun; `Retry` for a damaged
    /// message. `Invalid` if two processes have the rank, or its group has another size.
    pub fn next(&mut self, pool: &Pool, run: &str, size: u32) -> Result<Option<CallMessage>> {
        let found = match self.look(pool, run) {
            Err(error) if error.kind() == ErrorKind::Retry => {
                self.trouble = Some(error);
                return Ok(None);
            }
            found => found?,
        };
        self.trouble = None;
        let Some(bytes) = found else { return Ok(None) };
        let rank = self.rank;
        let word = bytes.map_err(|error| {
            Error::retry(format!("a word of rank {rank} cannot be read: start again ({error})"))
        })?;
        self.heard = pool.env().clock.monotonic();
        if self.speaker.replace(word.speaker).is_some_and(|speaker| speaker != word.speaker) {
            return Err(Error::invalid(format!(
                "two processes speak for rank {rank} of run \"{run}\": give every rank to one process, and \
                 every start of the program a name of the run of its own"
            )));
        }
        if word.ranks != size {
            return Err(Error::invalid(format!(
                "rank {rank} of run \"{run}\" is one of {} ranks, and this one is one of {size}: give all \
                 ranks the same size",
                word.ranks
            )));
        }
        match word.said {
            Payload::Left(why) => Err(why.context(format!("rank {rank} has left its group"))),
            said => Ok(Some(CallMessage { said, ..word })),
        }
    }

    /// Returns the next message in this run, if there is one, or the error of reading it.
    fn look(&mut self, pool: &Pool, run: &str) -> Result<Option<Result<CallMessage>>> {
        for number in pool.log().numbers(&self.chain)? {
            if number <= self.seen {
                continue;
            }
            let read = match pool.log().read(&self.chain, number) {
                Err(error) if error.kind() == ErrorKind::Damaged => {
                    // Its sender removes messages that all ranks have read.
                    if !pool.log().numbers(&self.chain)?.contains(&number) {
                        self.seen = number;
                        continue;
                    }
                    Err(error)
                }
                bytes => CallMessage::decode(&bytes?),
            };
            self.seen = number;
            match (read, self.speaker) {
                // It may belong to this run.
                (Err(error), Some(_)) => return Ok(Some(Err(error))),
                (Ok(word), _) if word.run == run => return Ok(Some(Ok(word))),
                (Ok(word), Some(_)) => return Err(taken_over(run, &word.run)),
                // It belongs to an earlier run.
                (_, None) => {}
            }
        }
        Ok(None)
    }
}
