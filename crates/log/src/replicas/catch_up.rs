//! Replicas that were away: before one counts for a record, it has all earlier records.

use super::{Bytes, ROUND_BITS, ReplicatedLog, SETTLED, at};
use crate::medium::{LogMedium, LogRecords};
use crate::replicas::ask::{Question, ask};
use outlive_types::sync::plain::Mutex;
use outlive_types::{JobName, Result};
use std::collections::HashMap;

/// The number up to which each replica surely has a job's records, durably. Uses `try_lock` only: a
/// forked child may inherit the lock in use, and another check does no harm.
#[derive(Debug)]
pub(super) struct Caught {
    replicas: usize,
    upto: Mutex<HashMap<JobName, Vec<u64>>>,
}

impl Caught {
    pub fn new(replicas: usize) -> Caught {
        Caught { replicas, upto: Mutex::default() }
    }

    fn of(&self, job: &JobName) -> Vec<u64> {
        let upto = self.upto.try_lock().and_then(|upto| upto.get(job).cloned());
        upto.unwrap_or_else(|| vec![0; self.replicas])
    }

    /// Notes that these replicas have the records up to this one.
    pub fn note(&self, job: &JobName, number: u64, replicas: impl IntoIterator<Item = usize>) {
        let Some(mut upto) = self.upto.try_lock() else { return };
        let upto = upto.entry(job.clone()).or_insert_with(|| vec![0; self.replicas]);
        replicas.into_iter().for_each(|replica| upto[replica] = upto[replica].max(number));
    }
}

impl ReplicatedLog {
    /// Makes replicas have all records up to this number, durably; each of these has its number.
    /// Returns which replicas have them.
    ///
    /// # Errors
    /// `Retry` if fewer than a majority of the replicas answer.
    pub(super) fn catch_up(&self, job: &JobName, number: u64) -> Result<Vec<bool>> {
        let mut have: Vec<bool> = self.caught.of(job).iter().map(|upto| *upto >= number).collect();
        if have.iter().all(|have| *have) {
            return Ok(have);
        }
        let mut numbers = self.begun(job)?;
        numbers.retain(|there| *there <= number);
        let unsure: Vec<usize> =
            (0..self.replicas.len()).filter(|replica| !have[*replica]).collect();
        let newest = match numbers.last() {
            None => None,
            // If a write is needed to find out, all replicas are checked more closely.
            Some(newest) => self.peek(job, *newest)?.map(|record| (*newest, record)),
        };
        let mut behind = Vec::new();
        let question = |replica: usize| {
            let (job, newest, is_empty) = (job.clone(), newest.clone(), numbers.is_empty());
            let question: Question<bool> = Box::new(move |medium| match &newest {
                Some((number, record)) => holds(medium, &job, *number, record),
                // There is nothing to compare; this checks whether the replica answers.
                None => medium.list(&job).map(|_| is_empty),
            });
            (replica, &self.replicas[replica], question)
        };
        let asked = unsure.into_iter().map(question).collect();
        let mut sure = have.iter().filter(|have| **have).count();
        ask(self.asking, asked, &mut |replica, answer| {
            match answer {
                Ok(true) => {
                    have[replica] = true;
                    sure += 1;
                }
                Ok(false) => behind.push(replica),
                Err(_) => {}
            }
            sure >= self.majority()
        });
        for replica in behind {
            have[replica] = self.fill(job, replica, &numbers).is_ok();
        }
        let sure = (0..self.replicas.len()).filter(|replica| have[*replica]);
        self.caught.note(job, number, sure);
        Ok(have)
    }

    /// Copies missing records to a replica, oldest first. A replica that has one has all before it.
    fn fill(&self, job: &JobName, replica: usize, numbers: &[u64]) -> Result<()> {
        let mut lacks = numbers.len();
        while lacks > 0 {
            let number = numbers[lacks - 1];
            if let Some(record) = self.peek(job, number)? {
                let job = job.clone();
                if self.one(replica, move |medium| holds(medium, &job, number, &record))? {
                    break;
                }
            }
            lacks -= 1;
        }
        for number in &numbers[lacks..] {
            // Since a later number has begun, this one has its record, or was removed.
            let Some(record) = self.get(job, *number)? else { continue };
            let (job_there, record) = (job.clone(), Bytes::from(record));
            let register = at(*number, SETTLED);
            self.one(replica, move |medium| {
                medium.put_new(&job_there, register, &record)?;
                medium.keep(&job_there, register)
            })?;
            self.caught.note(job, *number, [replica]);
        }
        Ok(())
    }

    /// Asks one replica.
    pub(super) fn one<T: Send + 'static>(
        &self,
        replica: usize,
        question: impl FnOnce(&dyn LogMedium) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let mut answered = None;
        let question: Question<T> = Box::new(question);
        let questions = vec![(replica, &self.replicas[replica], question)];
        ask(self.asking, questions, &mut |_, answer| {
            answered = Some(answer);
            true
        });
        answered.unwrap_or_else(|| Err(self.too_few(&[])))
    }
}

/// Whether a replica has this very record, and so all before it; makes it durable there.
fn holds(medium: &dyn LogMedium, job: &JobName, number: u64, record: &Bytes) -> Result<bool> {
    let registers = medium.list(job)?;
    for register in registers.into_iter().filter(|register| register >> ROUND_BITS == number) {
        if medium.get(job, register)?.is_some_and(|bytes| bytes == **record) {
            return medium.keep(job, register).map(|()| true);
        }
    }
    Ok(false)
}
