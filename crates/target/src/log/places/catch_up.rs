//! Places that were away: before one counts for a record, it has all records before that.

use super::{Bytes, Places, ROUND_BITS, SETTLED, at, removed_before};
use crate::LogMedium;
use crate::log::places::ask::{Question, ask};
use outlive_types::{JobName, Result};
use std::collections::{BTreeSet, HashMap};
use std::sync::Mutex;

/// Up to which number each place is known to have a job's records, durably. Only ever tried: a forked child
/// may inherit it locked, and to find out again does no harm.
#[derive(Debug)]
pub(super) struct Caught {
    places: usize,
    upto: Mutex<HashMap<JobName, Vec<u64>>>,
}

impl Caught {
    pub fn new(places: usize) -> Caught {
        Caught { places, upto: Mutex::default() }
    }

    fn of(&self, job: &JobName) -> Vec<u64> {
        let upto = self.upto.try_lock().ok().and_then(|upto| upto.get(job).cloned());
        upto.unwrap_or_else(|| vec![0; self.places])
    }

    /// These places have the records up to this one.
    pub fn note(&self, job: &JobName, number: u64, places: impl IntoIterator<Item = usize>) {
        let Ok(mut upto) = self.upto.try_lock() else { return };
        let upto = upto.entry(job.clone()).or_insert_with(|| vec![0; self.places]);
        places.into_iter().for_each(|place| upto[place] = upto[place].max(number));
    }
}

impl Places {
    /// Sees to it that places have all records up to this number, durably, each of which has its number.
    /// Answers which places do.
    ///
    /// # Errors
    /// `Retry` if less than a majority of the places answer.
    pub(super) fn catch_up(&self, job: &JobName, number: u64) -> Result<Vec<bool>> {
        let mut have: Vec<bool> = self.caught.of(job).iter().map(|upto| *upto >= number).collect();
        let mut behind = Vec::new();
        let unsure = (0..self.places.len()).filter(|place| !have[*place]);
        let question = |place: usize| {
            let job = job.clone();
            let question: Question<bool> = Box::new(move |medium| has(medium, &job, number));
            (place, &self.places[place], question)
        };
        let questions = unsure.map(question).collect();
        ask(self.asking, questions, &mut |place, answer| {
            match answer {
                Ok(true) => have[place] = true,
                Ok(false) => behind.push(place),
                Err(_) => {}
            }
            false
        });
        let sure = (0..self.places.len()).filter(|place| have[*place]);
        self.caught.note(job, number, sure);
        if behind.is_empty() {
            return Ok(have);
        }
        let numbers: Vec<u64> =
            self.begun(job)?.into_iter().filter(|there| *there <= number).collect();
        for place in behind {
            have[place] = self.fill(job, place, &numbers).is_ok();
            if have[place] {
                self.caught.note(job, number, [place]);
            }
        }
        Ok(have)
    }

    /// Gives a place those of the records that it lacks, oldest first.
    fn fill(&self, job: &JobName, place: usize, numbers: &[u64]) -> Result<()> {
        let listed = self.one(place, {
            let job = job.clone();
            move |medium| medium.list(&job)
        })?;
        let there: BTreeSet<u64> =
            listed.into_iter().map(|register| register >> ROUND_BITS).collect();
        for number in numbers.iter().filter(|number| !there.contains(number)) {
            // Since a later one is begun, it has its record, or was removed.
            let Some(record) = self.get(job, *number)? else { continue };
            let (job_there, record) = (job.clone(), Bytes::from(record));
            let register = at(*number, SETTLED);
            self.one(place, move |medium| {
                medium.put_new(&job_there, register, &record)?;
                medium.keep(&job_there, register)
            })?;
            self.caught.note(job, *number, [place]);
        }
        Ok(())
    }

    /// Asks one place.
    fn one<T: Send + 'static>(
        &self,
        place: usize,
        question: impl FnOnce(&dyn LogMedium) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let mut answered = None;
        let question: Question<T> = Box::new(question);
        let questions = vec![(place, &self.places[place], question)];
        ask(self.asking, questions, &mut |_, answer| {
            answered = Some(answer);
            true
        });
        answered.unwrap_or_else(|| Err(self.too_few(&[])))
    }
}

/// Whether a place has this record, and so all before it, for good; or knows that it was removed.
fn has(medium: &dyn LogMedium, job: &JobName, number: u64) -> Result<bool> {
    let mut registers = [at(number, 0), at(number, SETTLED)].into_iter();
    let there = registers.find_map(|register| match medium.has(job, register) {
        Ok(false) => None,
        Ok(true) => Some(Ok(register)),
        Err(error) => Some(Err(error)),
    });
    match there.transpose()? {
        Some(register) => medium.keep(job, register).map(|()| true),
        None => Ok(number == 0 || removed_before(medium, job)? > number),
    }
}
