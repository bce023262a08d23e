//! A log medium of several replicas: a majority of them decides, so a minority may be lost.
//! [`slot`] says how a number gets its record. This module adds removed records, and replicas that
//! come back. docs/faults.md has the promises, docs/format.md the layout.

mod ask;
mod catch_up;
mod copy;
pub mod course;
mod had;
mod movable;
mod moving;
pub mod slot;
mod solo;
pub mod who;

pub use ask::Asking;
pub use copy::NewReplica;
pub use movable::Movable;
pub use moving::{forget, move_to, succeed};

use crate::locks::{Lease, Lock, LockGuard, LogLocks};
use crate::medium::{LogMedium, LogRecords, LogSeal, NUMBER_MAX, Put};
use ask::{Question, Replica, ask};
use catch_up::Caught;
use copy::COPIED;
use outlive_types::sync::sleep;
use outlive_types::{Error, ErrorKind, JobName, Result};
use slot::{
    NumberState, Operation, ROUNDS_MAX, RegisterContent, ReplicaAnswer, Round, Slot, UnknownReason,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use who::Asker;

/// The bytes of a record.
type Bytes = Arc<[u8]>;

/// A replica stores a number and a round as one number: the round is its last 16 bits.
const ROUND_BITS: u32 = 16;

/// Marks, in place of a round, the record of a number in a replica that was away.
const SETTLED: Round = ROUNDS_MAX;

/// Pauses before each further attempt.
const PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(40)];

/// Attempts at a listing while others remove all listed records.
const ATTEMPTS: usize = 64;

/// Content of a closed register. No record has these bytes.
pub(super) const CLOSED: &[u8] = b"outlive: no record gets its number in this round\n";

/// Content under the number below which a job's records were removed.
const REMOVED: &[u8] = b"outlive: the records below this number were removed\n";

/// Separates the tokens of a lease, one for each replica.
const SEPARATOR: &str = ";";

/// A log medium of an odd number of replicas.
#[derive(Debug)]
pub struct ReplicatedLog {
    replicas: Vec<Replica>,
    asking: Asking,
    asker: Asker,
    caught: Caught,
}

fn at(number: u64, round: Round) -> u64 {
    number << ROUND_BITS | u64::from(round)
}

impl ReplicatedLog {
    /// Returns the log on these media, which must always come in this order.
    ///
    /// # Errors
    /// `Invalid` unless their number is three, five, or seven.
    pub fn new(media: Vec<Arc<dyn LogMedium>>, asking: Asking) -> Result<ReplicatedLog> {
        ReplicatedLog::asked(media, asking, Asker::user())
    }

    /// Returns the log as `asker` sees it.
    fn asked(
        media: Vec<Arc<dyn LogMedium>>,
        asking: Asking,
        asker: Asker,
    ) -> Result<ReplicatedLog> {
        if !matches!(media.len(), 3 | 5 | 7) {
            return Err(Error::invalid(format!(
                "a log has one replica, or 3, 5 or 7, of which a minority may be lost; not {}",
                media.len()
            )));
        }
        let caught = Caught::new(media.len());
        let replica = |medium| Replica::new(medium, asker.clone());
        let replicas = media.into_iter().map(replica).collect();
        Ok(ReplicatedLog { replicas, asking, asker, caught })
    }

    fn majority(&self) -> usize {
        self.replicas.len() / 2 + 1
    }

    /// Asks `replicas` the same question, and returns the answers that come.
    ///
    /// # Errors
    /// `Retry` if fewer than a majority answer.
    fn all<T: Send + 'static>(
        &self,
        replicas: impl IntoIterator<Item = usize> + Clone,
        question: impl Fn(&dyn LogMedium) -> Result<T> + Clone + Send + 'static,
    ) -> Result<Vec<(usize, T)>> {
        self.each(replicas, move |_, medium| question(medium))
    }

    /// Does the same for a question that contains the replica's number.
    fn each<T: Send + 'static>(
        &self,
        replicas: impl IntoIterator<Item = usize> + Clone,
        question: impl Fn(usize, &dyn LogMedium) -> Result<T> + Clone + Send + 'static,
    ) -> Result<Vec<(usize, T)>> {
        self.patiently(|| self.each_once(replicas.clone(), question.clone()))
    }

    /// Repeats work that fails while one replica comes back and another goes away.
    fn patiently<T>(&self, mut work: impl FnMut() -> Result<T>) -> Result<T> {
        for pause in PAUSES {
            match work() {
                // Sealed replicas stay sealed.
                Err(error)
                    if error.kind() == ErrorKind::Retry
                        && self.asking == Asking::AtOnce
                        && self.asker.successor().is_none() =>
                {
                    sleep(pause);
                }
                done => return done,
            }
        }
        work()
    }

    fn each_once<T: Send + 'static>(
        &self,
        replicas: impl IntoIterator<Item = usize>,
        question: impl Fn(usize, &dyn LogMedium) -> Result<T> + Clone + Send + 'static,
    ) -> Result<Vec<(usize, T)>> {
        let mut answers = Vec::new();
        let mut errors = Vec::new();
        let one = |replica: usize| {
            let question = question.clone();
            let question: Question<T> = Box::new(move |medium| question(replica, medium));
            (replica, &self.replicas[replica], question)
        };
        ask(self.asking, replicas.into_iter().map(one).collect(), &mut |replica, answer| {
            match answer {
                Ok(answer) => answers.push((replica, answer)),
                Err(error) => errors.push(error),
            }
            answers.len() >= self.majority()
        });
        match answers.len() >= self.majority() {
            true => Ok(answers),
            false => Err(self.too_few(&errors)),
        }
    }

    fn too_few(&self, errors: &[Error]) -> Error {
        let why: Vec<&str> = errors.iter().map(Error::message).collect();
        Error::retry(format!(
            "of the {} log replicas fewer than {} answer, so nothing can be read or written: {}",
            self.replicas.len(),
            self.majority(),
            why.join("; ")
        ))
    }

    /// Runs the protocol of `slot` for a number.
    fn run(&self, job: &JobName, number: u64, slot: Slot<Bytes>) -> Result<NumberState<Bytes>> {
        let outcome = self.patiently(|| self.run_if(job, number, slot.clone(), true))?;
        outcome.ok_or_else(|| Error::bug("a question to the log replicas without an answer"))
    }

    /// Returns the record of a number, if that is possible without a write.
    fn peek(&self, job: &JobName, number: u64) -> Result<Option<Bytes>> {
        Ok(match self.run_if(job, number, Slot::look(self.replicas.len()), false)? {
            Some(NumberState::Has { record, .. }) => Some(record),
            _ => None,
        })
    }

    /// As [`ReplicatedLog::run`]; `None` if a write is needed and not allowed.
    fn run_if(
        &self,
        job: &JobName,
        number: u64,
        mut slot: Slot<Bytes>,
        may_write: bool,
    ) -> Result<Option<NumberState<Bytes>>> {
        let mut count: Option<Vec<bool>> = None;
        let mut errors = Vec::new();
        let mut holds: Vec<(usize, Bytes)> = Vec::new();
        let mut is_only_seen = false;
        loop {
            if let Some(outcome) = slot.outcome() {
                if let (NumberState::Has { record, .. }, Some(_)) = (outcome, &count) {
                    let have = holds.iter().filter(|(_, held)| held == record);
                    self.caught.note(job, number, have.map(|(replica, _)| *replica));
                }
                return match outcome {
                    NumberState::Unknown(trouble) => {
                        Err(self.trouble(*trouble, job, number, &errors))
                    }
                    known => Ok(Some(known.clone())),
                };
            }
            let round = slot.round();
            let questions = slot.questions();
            let writes = questions.iter().any(|(_, what)| *what != Operation::Look);
            if writes && !may_write {
                return Ok(None);
            }
            if writes && is_only_seen {
                // The round's first replica has a record, which now goes to the others. If a power
                // cut removed it first, another record could get into the same round.
                let register = at(number, round);
                for (replica, _) in &holds {
                    let job = job.clone();
                    match self.one(*replica, move |medium| medium.keep(&job, register)) {
                        // The replica went away just now. A failure here would leave a record that
                        // others complete, while its author takes it for lost. One case remains:
                        // the process that put it there was killed before its sync, and only that
                        // replica loses power before it is back.
                        Err(error) if error.kind() == ErrorKind::Retry => {}
                        kept => kept?,
                    }
                }
            }
            is_only_seen = !writes;
            if writes && count.is_none() {
                // A replica that was away gets all earlier records, or does not count.
                count = Some(self.catch_up(job, number - 1)?);
            }
            let counts = |replica: usize| count.as_ref().is_none_or(|count| count[replica]);
            let (asked, left): (Vec<_>, Vec<_>) =
                questions.into_iter().partition(|(replica, _)| !writes || counts(*replica));
            errors.clear();
            for (replica, _) in left {
                let name = self.replicas[replica].medium.describe();
                errors.push(Error::retry(format!("{name} is away, or lacks records")));
            }
            let question = |(replica, what): (usize, Operation<Bytes>)| {
                let job = job.clone();
                let question: Question<ReplicaAnswer<Bytes>> =
                    Box::new(move |medium| carry_out(medium, &job, number, round, what));
                (replica, &self.replicas[replica], question)
            };
            holds.clear();
            let asked = asked.into_iter().map(question).collect();
            ask(self.asking, asked, &mut |replica, answer| match answer {
                Ok(answer) => {
                    if let ReplicaAnswer::Holds(RegisterContent::Value(record), _)
                    | ReplicaAnswer::Settled(record) = &answer
                    {
                        holds.push((replica, record.clone()));
                    }
                    slot.told(replica, answer)
                }
                Err(error) => {
                    errors.push(error);
                    false
                }
            });
            slot.go_on();
        }
    }

    fn trouble(
        &self,
        trouble: UnknownReason,
        job: &JobName,
        number: u64,
        errors: &[Error],
    ) -> Error {
        match trouble {
            UnknownReason::TooFew => self.too_few(errors),
            UnknownReason::Disagree => Error::damaged(format!(
                "the log replicas say different things of record {number} of job {job}, and there \
                 is no majority for one: {}",
                self.describe()
            )),
            UnknownReason::NoRoundLeft => Error::bug(format!(
                "record {number} of job {job} was begun {ROUNDS_MAX} times in {}",
                self.describe()
            )),
        }
    }

    /// Returns the numbers of all records that a majority lists, unfinished ones too.
    fn begun(&self, job: &JobName) -> Result<Vec<u64>> {
        let mut removed = 0;
        for _ in 0..ATTEMPTS {
            let name = job.clone();
            let listed = self.all(0..self.replicas.len(), move |medium| {
                // In this order: the second answer covers every record that was listed and then
                // removed.
                let numbers = medium.list(&name)?;
                Ok((numbers, removed_before(medium, &name)?))
            })?;
            removed = listed.iter().map(|(_, (_, removed))| *removed).max().unwrap_or(0);
            let numbers = listed.into_iter().flat_map(|(_, (numbers, _))| numbers);
            let numbers: BTreeSet<u64> = numbers.map(|number| number >> ROUND_BITS).collect();
            let numbers: Vec<u64> =
                numbers.into_iter().filter(|number| *number >= removed).collect();
            // The newest record is never removed. So others put new records, and removed all that
            // this listed.
            if removed == 0 || !numbers.is_empty() {
                return Ok(numbers);
            }
        }
        Err(Error::damaged(format!(
            "the records of job {job} below {removed} were removed, and none since is in {}",
            self.describe()
        )))
    }
}

/// Returns the number below which a job has no records any more, as far as this replica knows.
fn removed_before(medium: &dyn LogMedium, job: &JobName) -> Result<u64> {
    Ok(medium.list(&job.removed())?.last().copied().unwrap_or(0))
}

/// Records durably in this replica that a job has no records below this number.
fn note_removed(medium: &dyn LogMedium, job: &JobName, number: u64) -> Result<()> {
    medium.put_new(&job.removed(), number, REMOVED)?;
    medium.keep(&job.removed(), number)
}

/// Carries out an operation at one replica. Makes every write durable before it answers.
fn carry_out(
    medium: &dyn LogMedium,
    job: &JobName,
    number: u64,
    round: Round,
    what: Operation<Bytes>,
) -> Result<ReplicaAnswer<Bytes>> {
    let register = at(number, round);
    let put = |bytes: &[u8]| {
        let made = medium.put_new(job, register, bytes)? == Put::Made;
        medium.keep(job, register)?;
        Ok::<bool, Error>(made)
    };
    let made = match &what {
        Operation::Look => false,
        Operation::Put(record) => put(record)?,
        Operation::Close => put(CLOSED)?,
    };
    let held = match (what, made) {
        (Operation::Put(record), true) => RegisterContent::Value(record),
        (Operation::Close, true) => RegisterContent::Closed,
        _ => match medium.get(job, register)? {
            None => RegisterContent::Free,
            Some(bytes) if bytes == CLOSED => RegisterContent::Closed,
            Some(bytes) => RegisterContent::Value(Bytes::from(bytes)),
        },
    };
    let mut settled = None;
    if !matches!(held, RegisterContent::Value(_)) {
        settled = medium.get(job, at(number, SETTLED))?;
    }
    // Last: this covers a register that is free because it was removed.
    if removed_before(medium, job)? > number {
        return Ok(ReplicaAnswer::Removed);
    }
    Ok(settled.map_or(ReplicaAnswer::Holds(held, made), |record| {
        ReplicaAnswer::Settled(Bytes::from(record))
    }))
}

impl LogRecords for ReplicatedLog {
    fn describe(&self) -> String {
        let names: Vec<String> =
            self.replicas.iter().map(|replica| replica.medium.describe()).collect();
        format!("{} replicas ({})", names.len(), names.join(", "))
    }

    fn jobs(&self) -> Result<Vec<JobName>> {
        let listed = self.all(0..self.replicas.len(), |medium| medium.jobs())?;
        let jobs: BTreeSet<JobName> = listed.into_iter().flat_map(|(_, jobs)| jobs).collect();
        Ok(jobs.into_iter().collect())
    }

    fn list(&self, job: &JobName) -> Result<Vec<u64>> {
        let mut numbers = self.begun(job)?;
        // No number begins before the one below has its record, so only the newest is in question.
        while let Some(newest) = numbers.last() {
            match self.run(job, *newest, Slot::look(self.replicas.len()))? {
                NumberState::Has { .. } => break,
                // Removed meanwhile: there are newer records.
                NumberState::Removed => numbers = self.begun(job)?,
                _ => drop(numbers.pop()),
            }
        }
        Ok(numbers)
    }

    fn get(&self, job: &JobName, number: u64) -> Result<Option<Vec<u8>>> {
        if number > NUMBER_MAX {
            return Ok(None);
        }
        Ok(match self.run(job, number, Slot::look(self.replicas.len()))? {
            NumberState::Has { record, .. } => Some(record.to_vec()),
            _ => None,
        })
    }

    fn put_new(&self, job: &JobName, number: u64, record: &[u8]) -> Result<Put> {
        if number > NUMBER_MAX || record == CLOSED {
            return Err(Error::bug("a record, or its number, that no log can have"));
        }
        let slot = Slot::put(self.replicas.len(), Bytes::from(record));
        Ok(match self.run(job, number, slot)? {
            NumberState::Has { ours: true, .. } => Put::Made,
            _ => Put::Taken,
        })
    }

    fn delete(&self, job: &JobName, number: u64) -> Result<()> {
        let job = job.clone();
        let deleted = self.all(0..self.replicas.len(), move |medium| {
            let listed = medium.list(&job)?.into_iter();
            let mut registers = listed.filter(|register| register >> ROUND_BITS == number);
            registers.try_for_each(|register| medium.delete(&job, register))
        });
        deleted.map(drop)
    }

    /// First a majority records the removal, each replica before it deletes any record. So the
    /// records of a replica that was away never come back.
    fn remove_before(&self, job: &JobName, number: u64) -> Result<()> {
        if self.begun(job)?.first().is_none_or(|first| *first >= number) {
            return Ok(());
        }
        let name = job.clone();
        let told =
            self.all(0..self.replicas.len(), move |medium| note_removed(medium, &name, number))?;
        let job = job.clone();
        let know = told.into_iter().map(|(replica, ())| replica);
        let removed = self.all(know, move |medium| {
            medium.remove_before(&job, at(number, 0))?;
            medium.remove_before(&job.removed(), number)
        });
        removed.map(drop)
    }

    fn sync(&self, job: &JobName) -> Result<()> {
        match self.list(job)?.last() {
            Some(newest) => self.keep(job, *newest),
            None => Ok(()),
        }
    }

    /// Makes sure that a majority has the record, and all before it, durably.
    fn keep(&self, job: &JobName, number: u64) -> Result<()> {
        let have = self.catch_up(job, number)?.into_iter().filter(|have| *have).count();
        if have >= self.majority() { Ok(()) } else { Err(self.too_few(&[])) }
    }

    fn freshen(&self, job: &JobName) -> Result<()> {
        let job = job.clone();
        let done = self.all(0..self.replicas.len(), move |medium| {
            medium.freshen(&job).and_then(|()| medium.freshen(&job.removed()))
        });
        done.map(drop)
    }

    fn tidy(&self, job: &JobName) -> Result<()> {
        let job = job.clone();
        let tidied = self.all(0..self.replicas.len(), move |medium| {
            medium.tidy(&job).and_then(|()| medium.tidy(&job.removed()))
        });
        tidied.map(drop)
    }
}

impl LogLocks for ReplicatedLog {
    fn lock_collecting(&self) -> Result<Lock> {
        let answers = self.all(0..self.replicas.len(), |medium| medium.lock_collecting())?;
        let away = self.replicas.len() - answers.len();
        let (mut held, mut is_busy) = (Vec::new(), false);
        for (_, lock) in answers {
            match lock {
                Lock::Taken(guard) => held.push(guard),
                Lock::None => {}
                Lock::Busy => is_busy = true,
            }
        }
        // Two holders with a majority each would share a replica.
        match held.len() {
            _ if is_busy => Ok(Lock::Busy),
            count if count >= self.majority() => {
                Ok(Lock::Taken(LockGuard::several(held, self.majority())))
            }
            count if count + away >= self.majority() => Err(Error::retry(format!(
                "log replicas are away, and those that are there have too few locks among them to \
                 keep others out: try again when they are back ({})",
                self.describe()
            ))),
            _ => Ok(Lock::None),
        }
    }

    fn lock_reading(&self) -> Result<Option<LockGuard>> {
        let answers = self.all(0..self.replicas.len(), |medium| medium.lock_reading())?;
        let held: Vec<LockGuard> = answers.into_iter().filter_map(|(_, guard)| guard).collect();
        match held.len() >= self.majority() {
            true => Ok(Some(LockGuard::several(held, self.majority()))),
            false => Ok(None),
        }
    }

    fn is_read(&self) -> Result<bool> {
        let answers = self.all(0..self.replicas.len(), |medium| medium.is_read())?;
        Ok(answers.into_iter().any(|(_, is_read)| is_read))
    }

    /// Takes a lease in each replica that has leases, if these are a majority. The token joins the
    /// tokens of all replicas with semicolons; a replica without leases has an empty one.
    fn lease(&self) -> Result<Option<Lease>> {
        let answers = self.all(0..self.replicas.len(), |medium| medium.lease())?;
        let mut tokens = vec![String::new(); self.replicas.len()];
        let mut held: Vec<LockGuard> = Vec::new();
        for (replica, lease) in answers {
            if let Some(Lease { token, guard }) = lease {
                tokens[replica] = token;
                held.push(guard);
            }
        }
        let is_enough = held.len() >= self.majority();
        let lease = || {
            let guard = LockGuard::several(held, self.majority());
            Lease { token: tokens.join(SEPARATOR), guard }
        };
        Ok(is_enough.then(lease))
    }

    /// A lease has ended if a majority of the replicas say so, at least one of them had it, and no
    /// replica contradicts.
    fn has_lease_ended(&self, token: &str) -> Result<Option<bool>> {
        let tokens: Arc<[String]> = token.split(SEPARATOR).map(str::to_owned).collect();
        if tokens.len() != self.replicas.len() {
            return Ok(None);
        }
        let answers = self.each(0..self.replicas.len(), move |replica, medium| {
            medium.has_lease_ended(&tokens[replica])
        })?;
        let count = |wanted| answers.iter().filter(|(_, has_ended)| *has_ended == wanted).count();
        Ok(match (count(Some(true)), count(Some(false))) {
            (ended, 0) if ended >= self.majority() => Some(true),
            (_, 0) => None,
            _ => Some(false),
        })
    }
}

impl LogSeal for ReplicatedLog {}

#[cfg(test)]
mod power;
#[cfg(test)]
mod tests;
