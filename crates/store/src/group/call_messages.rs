//! Words of ranks in the log: how a rank says them, and how others hear them.

use outlive_format::{CallMessage, Payload, Token};
use outlive_pool::Pool;
use outlive_target::{Append, Previous};
use outlive_types::sync::{Mutex, sleep};
use outlive_types::{Error, ErrorKind, JobName, Rank, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Between two attempts to say something.
const PAUSE: Duration = Duration::from_millis(50);
/// How often it is tried to say that a rank leaves.
const LAST_WORDS: u32 = 4;

/// Says what one rank has to say.
pub struct Sender {
    pool: Pool,
    chain: JobName,
    rank: Rank,
    size: u32,
    run: String,
    speaker: Token,
    newest: Mutex<Option<Previous>>,
    /// It has said something in this run.
    has_come: AtomicBool,
    has_left: AtomicBool,
}

impl Sender {
    /// That of `rank`.
    pub fn new(pool: &Pool, job: &JobName, rank: Rank, size: u32, run: &str) -> Sender {
        let mut speaker = Token::default();
        pool.env().rng.fill(&mut speaker);
        Sender {
            pool: pool.clone(),
            chain: job.calls_of(rank),
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

    /// A number that nobody has drawn.
    pub fn draw(&self) -> Token {
        let mut token = Token::default();
        self.pool.env().rng.fill(&mut token);
        token
    }

    /// Says something, `until` a time by the pool's clock if the log does not answer.
    ///
    /// # Errors
    /// What the log reports; `Invalid` if this rank is there twice; `Fenced` if another run has begun.
    pub fn say(&self, said: Payload, until: Duration) -> Result<()> {
        let word = self.word(said)?;
        let mut newest = self.newest.lock();
        loop {
            match self.append(&mut newest, &word) {
                Ok(Append::Done) => return Ok(()),
                // Somebody else has said something here, and may not.
                Ok(Append::Lost) => {}
                Err(error) if error.kind() == ErrorKind::Retry && self.now() < until => {
                    sleep(PAUSE)
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// A sign of life, if this rank has come and not left.
    pub fn live(&self) {
        if self.has_come.load(Ordering::Relaxed) && !self.has_left.load(Ordering::Relaxed) {
            // The next one may be heard.
            drop(self.say(Payload::Alive, Duration::ZERO));
        }
    }

    /// Says the last word.
    ///
    /// # Errors
    /// As [`Sender::say`].
    pub fn leave(&self, why: &Error) -> Result<()> {
        self.has_left.store(true, Ordering::Relaxed);
        self.say(Payload::Left(why.clone()), self.now() + PAUSE * LAST_WORDS)
    }

    /// Removes all words but the newest. They are left, should that fail.
    pub fn tidy(&self) {
        let newest = *self.newest.lock();
        let Some(newest) = newest else { return };
        if let Err(error) = self.pool.log().remove_before(&self.chain, newest.number) {
            self.pool.warn(format!("old words of rank {} are left in the log: {error}", self.rank));
        }
    }

    /// Whether nobody else has said something here since. Otherwise those that this rank waits for may never
    /// answer: whoever came in their places has removed what they said. A log that cannot be read just now tells nothing.
    ///
    /// # Errors
    /// `Invalid` if this rank is there twice; `Fenced` if another run has begun.
    pub fn check(&self) -> Result<()> {
        let newest = *self.newest.lock();
        // Otherwise it is looked before the next word is said.
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

    /// After an error the same may be tried again: what the log has of it is found.
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

    /// The newest word of this chain. Before the first one is said, all that are there are looked at.
    fn look(&self) -> Result<Previous> {
        let numbers = self.pool.log().numbers(&self.chain)?;
        let Some(newest) = numbers.last().copied() else { return Ok(Previous::NONE) };
        let has_come = self.has_come.load(Ordering::Relaxed);
        let first = if has_come { newest } else { numbers[0] };
        let mut behind = Previous::NONE;
        for number in numbers.into_iter().filter(|number| *number >= first) {
            let bytes = match self.pool.log().read(&self.chain, number) {
                Ok(bytes) => bytes,
                // Another process removes it, or it says nothing any more.
                Err(error) if error.kind() == ErrorKind::Damaged && number < newest => continue,
                // Another process has said something newer by now, and removed it.
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

/// Hears what another rank says.
#[derive(Debug)]
pub struct Receiver {
    /// The other rank.
    pub rank: Rank,
    /// Why the log could not be read when it was tried last.
    pub trouble: Option<Error>,
    chain: JobName,
    seen: u64,
    /// When something was heard last.
    heard: Duration,
    /// Who speaks for the rank in this run.
    speaker: Option<Token>,
}

impl Receiver {
    /// For what `rank` says, `now` by the pool's clock, and has said.
    pub fn new(job: &JobName, rank: Rank, now: Duration) -> Receiver {
        let chain = job.calls_of(rank);
        Receiver { rank, chain, seen: 0, heard: now, speaker: None, trouble: None }
    }

    /// From `now` on something is expected.
    pub fn expect(&mut self, now: Duration) {
        self.heard = self.heard.max(now);
    }

    /// For how long nothing was heard.
    pub fn silent_for(&self, now: Duration) -> Duration {
        now.saturating_sub(self.heard)
    }

    /// The next word of the rank in `run`, which has `size` ranks. A log that cannot be read just now has none.
    ///
    /// # Errors
    /// Why the rank has left; `Fenced` if another run has begun; `Invalid` if it is there twice, or in a group
    /// of another size; `Retry` for a word that is damaged.
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

    /// The next word in this run, if there is one; or why it cannot be read.
    fn look(&mut self, pool: &Pool, run: &str) -> Result<Option<Result<CallMessage>>> {
        for number in pool.log().numbers(&self.chain)? {
            if number <= self.seen {
                continue;
            }
            let read = match pool.log().read(&self.chain, number) {
                Err(error) if error.kind() == ErrorKind::Damaged => {
                    // Its writer removes what all have read.
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
                // It belongs to this run, perhaps.
                (Err(error), Some(_)) => return Ok(Some(Err(error))),
                (Ok(word), _) if word.run == run => return Ok(Some(Ok(word))),
                (Ok(word), Some(_)) => return Err(taken_over(run, &word.run)),
                // Of an earlier run.
                (_, None) => {}
            }
        }
        Ok(None)
    }
}
