//! A [`Coordinator`] for ranks that have only the pool in common: their calls go through the log.
//! Each rank has a chain of messages of its own there, beside that of its mail, and only it appends
//! there.
//!
//! A run begins with a meeting: every rank reports that it has come, and rank 0 lists all that
//! have. Later messages carry the number that rank 0 has drawn for the meeting. So no message of an
//! earlier run counts as one of this run, whatever name that run had.

use super::call_messages::{Receiver, Sender};
use super::mail::least_pause;
use super::pulse::Pulse;
use super::watch::Looks;
use outlive_format::{CallMessage, Payload, RUN_BYTES_MAX, Token};
use outlive_pool::Pool;
use outlive_types::sync::{Mutex, MutexGuard, sleep};
use outlive_types::{Coordinator, Error, ErrorKind, JobName, Rank, Result};
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The rank that meets the others.
const FIRST: Rank = 0;
/// Most ranks that can meet: a message that lists all of them has 1 MiB, which every log takes.
const RANKS_MAX: u32 = 1 << 16;
/// Longest pause between two looks; up to it a pause is an eighth of the time that has passed.
const PAUSE_MAX: Duration = Duration::from_millis(250);
/// Calls after which a rank removes the messages that all ranks have read.
const TIDY_EVERY: u64 = 8;
/// Ranks with more patience than this need no keepalive.
const KEEPALIVE_PATIENCE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// Called while a rank waits; an error ends the wait.
pub type GoOn<'a> = &'a dyn Fn() -> Result<()>;

/// One rank's end of a group that meets in the log of its pool.
pub struct PoolRanks {
    rank: Rank,
    size: u32,
    job: JobName,
    /// Number that is added to a rank, for the name of its messages.
    offset: u32,
    patience: Duration,
    mouth: Arc<Sender>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Number of calls that this rank has made.
    calls: u64,
    meeting: Option<Token>,
    /// On rank 0, receivers of all other ranks. On other ranks, the receiver of rank 0.
    ears: Vec<Receiver>,
    /// The error since which this rank takes no part.
    failed: Option<Error>,
}

impl PoolRanks {
    /// Makes rank `rank` of `size` ranks that save and restore `job`. All of them give the same
    /// `run`, which no earlier start of the program has given. A rank for which others wait must
    /// send a message within `patience`. Nothing is read or written before the first call.
    ///
    /// # Errors
    /// `Invalid` for an impossible rank or name.
    pub fn new(
        pool: &Pool,
        job: &str,
        rank: Rank,
        size: u32,
        run: &str,
        patience: Duration,
    ) -> Result<PoolRanks> {
        PoolRanks::with_offset(0, pool, job, rank, size, run, patience)
    }

    /// Makes the same for the helpers of such ranks. They meet apart from the program's own ranks: a
    /// new run of the program may have begun, and must not be ended.
    ///
    /// # Errors
    /// As [`PoolRanks::new`].
    pub fn of_helpers(
        pool: &Pool,
        job: &str,
        rank: Rank,
        size: u32,
        run: &str,
        patience: Duration,
    ) -> Result<PoolRanks> {
        PoolRanks::with_offset(RANKS_MAX, pool, job, rank, size, run, patience)
    }

    fn with_offset(
        offset: u32,
        pool: &Pool,
        job: &str,
        rank: Rank,
        size: u32,
        run: &str,
        patience: Duration,
    ) -> Result<PoolRanks> {
        if rank >= size {
            return Err(Error::invalid(format!(
                "rank {rank} of a group of {size}: ranks are counted from 0, and there is at least one"
            )));
        }
        if size > RANKS_MAX {
            return Err(Error::invalid(format!(
                "{size} ranks cannot meet in the log, at most {RANKS_MAX} can: connect them by MPI"
            )));
        }
        if run.trim().is_empty() || run.len() > RUN_BYTES_MAX {
            return Err(Error::invalid(format!(
                "the name of the run has {} bytes: give all ranks the same name of 1 to {RUN_BYTES_MAX} \
                 bytes, new for every start of the program, such as the id of its batch job and the number \
                 of its restarts",
                run.len()
            )));
        }
        let job = JobName::new(job)?;
        let mouth = Arc::new(Sender::new(pool, job.calls_of(offset + rank), rank, size, run));
        Ok(PoolRanks { rank, size, job, offset, patience, mouth, state: Mutex::default() })
    }

    /// Gathers as [`Coordinator::gather`] does, until `go_on` returns an error.
    ///
    /// # Errors
    /// As for [`Coordinator::gather`]; errors of `go_on`.
    pub fn gather_while(&self, bytes: &[u8], go_on: GoOn<'_>) -> Result<Vec<Vec<u8>>> {
        self.call(go_on, &mut |state, meeting, number| {
            if self.rank != FIRST {
                return self.say(call(meeting, number, bytes)).map(|()| Vec::new());
            }
            let mut all = vec![bytes.to_vec()];
            all.extend(self.hear(state, meeting, number, go_on)?);
            self.tidy(number);
            Ok(all)
        })
    }

    /// Broadcasts as [`Coordinator::broadcast`] does, until `go_on` returns an error.
    ///
    /// # Errors
    /// As for [`Coordinator::broadcast`]; errors of `go_on`.
    pub fn broadcast_while(&self, bytes: &[u8], go_on: GoOn<'_>) -> Result<Vec<u8>> {
        self.call(go_on, &mut |state, meeting, number| {
            if self.rank == FIRST {
                return self.say(call(meeting, number, bytes)).map(|()| bytes.to_vec());
            }
            let heard = self.hear(state, meeting, number, go_on)?.pop();
            self.tidy(number);
            heard.ok_or_else(|| Error::bug("a broadcast has brought nothing"))
        })
    }

    /// Makes a call. After the first failed call this rank takes no further part, and reports that:
    /// others may be a call ahead.
    fn call<T>(
        &self,
        go_on: GoOn<'_>,
        make: &mut dyn FnMut(&mut State, Token, u64) -> Result<T>,
    ) -> Result<T> {
        let mut state = self.state.lock();
        if let Some(failed) = &state.failed {
            return Err(failed.clone().context(format!(
                "rank {} has left its group, in run \"{}\": end the program, and start all ranks again",
                self.rank,
                self.mouth.run()
            )));
        }
        let meeting = match state.meeting {
            Some(meeting) => Ok(meeting),
            None => self.meet(&mut state, go_on),
        };
        let made = meeting.and_then(|meeting| {
            state.meeting = Some(meeting);
            state.calls += 1;
            let number = state.calls;
            make(&mut state, meeting, number)
        });
        made.inspect_err(|error| self.leave(state, error))
    }

    fn leave(&self, mut state: MutexGuard<'_, State>, error: &Error) {
        state.failed = Some(error.clone());
        drop(state);
        // A rank that was taken over, or has replaced another process, cannot report this. Others
        // miss it.
        if let Err(unsaid) = self.mouth.leave(error)
            && unsaid.kind() == ErrorKind::Retry
        {
            let rank = self.rank;
            self.mouth.pool().warn(format!("rank {rank} could not tell that it leaves: {unsaid}"));
        }
    }

    fn say(&self, said: Payload) -> Result<()> {
        let now = self.mouth.pool().env().clock.monotonic();
        self.mouth.say(said, now.saturating_add(self.patience))
    }

    fn meet(&self, state: &mut State, go_on: GoOn<'_>) -> Result<Token> {
        self.say(Payload::Here)?;
        // No rank needs the messages of earlier runs.
        self.mouth.tidy();
        let now = self.mouth.pool().env().clock.monotonic();
        let others = if self.rank == FIRST { 1..self.size } else { FIRST..FIRST + 1 };
        state.ears = others
            .map(|rank| Receiver::new(self.job.calls_of(self.offset + rank), rank, now))
            .collect();
        if self.rank != FIRST {
            let mut is_met = |word: &CallMessage| match &word.said {
                Payload::Met { meeting, speakers } if self.is_in(speakers) => Ok(Some(*meeting)),
                _ => Ok(None),
            };
            let met = self.listen(&mut state.ears, go_on, "has not met the others", &mut is_met)?;
            return met.first().copied().ok_or_else(|| Error::bug("no rank was met"));
        }
        let mut has_come =
            |word: &CallMessage| Ok(matches!(word.said, Payload::Here).then_some(word.speaker));
        let others = self.listen(&mut state.ears, go_on, "has not come", &mut has_come)?;
        let speakers = std::iter::once(self.mouth.speaker()).chain(others).collect();
        let meeting = self.mouth.draw();
        self.say(Payload::Met { meeting, speakers }).map(|()| meeting)
    }

    fn is_in(&self, speakers: &[Token]) -> bool {
        speakers.get(self.rank as usize) == Some(&self.mouth.speaker())
    }

    /// Returns the bytes that others have given in a call.
    fn hear(
        &self,
        state: &mut State,
        here: Token,
        now: u64,
        go_on: GoOn<'_>,
    ) -> Result<Vec<Vec<u8>>> {
        let mut given = |word: &CallMessage| match &word.said {
            Payload::Call { meeting, number, bytes } if *meeting == here && *number >= now => {
                match *number == now {
                    true => Ok(Some(bytes.clone())),
                    false => Err(Error::retry(format!(
                        "what was given in call {now} is lost, and in call {number} is there"
                    ))),
                }
            }
            _ => Ok(None),
        };
        let missing = format!("has not come to call {now}");
        self.listen(&mut state.ears, go_on, &missing, &mut given)
    }

    /// Waits for one message of each of the others, and returns the results of `take`.
    fn listen<T>(
        &self,
        ears: &mut [Receiver],
        go_on: GoOn<'_>,
        missing: &str,
        take: &mut dyn FnMut(&CallMessage) -> Result<Option<T>>,
    ) -> Result<Vec<T>> {
        let pool = self.mouth.pool();
        let clock = &pool.env().clock;
        let began = clock.monotonic();
        let mut taken: Vec<Option<T>> = ears.iter().map(|_| None).collect();
        ears.iter_mut().for_each(|ear| ear.expect(began));
        let mut looks = Looks::begin(began, self.patience);
        // Others wait for rank 0 as long as it waits, so that it can tell them which rank is
        // missing.
        let _keepalive = (self.rank == FIRST).then(|| self.keepalive());
        loop {
            for (ear, taken) in ears.iter_mut().zip(&mut taken).filter(|(_, taken)| taken.is_none())
            {
                while let Some(word) = ear.next(pool, self.mouth.run(), self.size)? {
                    *taken =
                        take(&word).map_err(|error| error.context(format!("rank {}", ear.rank)))?;
                    if taken.is_some() {
                        break;
                    }
                }
            }
            if taken.iter().all(Option::is_some) {
                return Ok(taken.into_iter().flatten().collect());
            }
            let now = clock.monotonic();
            let lacking = ears.iter_mut().zip(&taken).filter(|(_, taken)| taken.is_none());
            let mut lacking: Vec<&mut Receiver> = lacking.map(|(ear, _)| ear).collect();
            if lacking.iter().any(|ear| ear.silent_for(now) >= self.patience) {
                return Err(self.missed(&mut lacking, now, missing));
            }
            if looks.is_due(now) {
                self.mouth.check()?;
            }
            go_on()?;
            // Only rank 0 looks for the messages of the others; all others look for its messages.
            let looking = if self.rank == FIRST { 1 } else { self.size };
            let least = least_pause(looking, self.patience);
            sleep((now.saturating_sub(began) / 8).clamp(least, PAUSE_MAX.max(least)));
        }
    }

    fn missed(&self, lacking: &mut [&mut Receiver], now: Duration, missing: &str) -> Error {
        let mut silent = lacking.iter_mut().filter(|ear| ear.silent_for(now) >= self.patience);
        let (mut ranks, mut trouble) = (Vec::new(), None);
        for ear in &mut silent {
            ranks.push(format!("rank {}", ear.rank));
            trouble = trouble.or(ear.trouble.take());
        }
        let (more, shown) = (ranks.len().saturating_sub(8), ranks.len().min(8));
        let mut who = ranks[..shown].join(", ");
        if more > 0 {
            who.push_str(&format!(" and {more} more"));
        }
        let seconds = self.patience.as_secs_f64();
        let run = self.mouth.run();
        match trouble {
            Some(trouble) => trouble.context(format!("no word of {who} for {seconds} s")),
            None => Error::retry(format!(
                "{who} {missing} of run \"{run}\", and has not been heard of for {seconds} s: it was not \
                 started or has another name of the run, has ended, hangs, or cannot reach the pool"
            )),
        }
    }

    /// Removes earlier messages of this rank. All ranks have read them once rank 0 has received
    /// from all, or another rank has received from rank 0.
    fn tidy(&self, number: u64) {
        if number % TIDY_EVERY < 2 {
            self.mouth.tidy();
        }
    }
}

fn call(meeting: Token, number: u64, bytes: &[u8]) -> Payload {
    Payload::Call { meeting, number, bytes: bytes.to_vec() }
}

impl Coordinator for PoolRanks {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.gather_while(bytes, &|| Ok(()))
    }

    fn broadcast(&self, bytes: &[u8]) -> Result<Vec<u8>> {
        self.broadcast_while(bytes, &|| Ok(()))
    }

    fn check(&self) -> Result<()> {
        self.mouth.check()
    }

    fn leave(&self, why: &Error) {
        let state = self.state.lock();
        // Ranks that have not met this one miss it, or wait for ranks that come later.
        if state.failed.is_none() && state.meeting.is_some() {
            PoolRanks::leave(self, state, why);
        }
    }

    fn keepalive(&self) -> Option<Box<dyn Any + Send>> {
        if self.patience > KEEPALIVE_PATIENCE_MAX {
            return None;
        }
        let mouth = self.mouth.clone();
        let pulse = Pulse::start(self.patience / 4, move || mouth.live());
        // Without a keepalive the others may miss this rank; the warning says so.
        let told = pulse.inspect_err(|error| {
            self.mouth.pool().warn(Error::no_thread("a sign of life", error).message());
        });
        told.ok().map(|pulse| Box::new(pulse) as Box<dyn Any + Send>)
    }
}

impl fmt::Debug for PoolRanks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolRanks")
            .field("rank", &self.rank)
            .field("size", &self.size)
            .field("run", &self.mouth.run())
            .finish_non_exhaustive()
    }
}
