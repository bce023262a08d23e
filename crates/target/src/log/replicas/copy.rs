//! Copies what a log had to its new places.

use super::had::{JobHad, encode};
use super::{at, note_removed};
use crate::LogMedium;
use outlive_types::{Error, JobName, Result};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// The number, in the job of moves, of what says that all new places are open. It is decided before anything is
/// deleted from the old ones.
pub(super) const OVER: u64 = 3;

/// The number, in the job of moves, of what says in the only new place which records were copied there.
pub(super) const COPIED: u64 = 4;

/// A place that a log is moved to.
pub struct NewReplica {
    /// Takes records before the place is open, too.
    pub medium: Arc<dyn LogMedium>,
    /// Whether it has all that was moved, and counts.
    pub is_open: bool,
    /// Lets it count, durably.
    pub open: Box<dyn Fn() -> Result<()> + Send + Sync>,
}

impl fmt::Debug for NewReplica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NewReplica({:?}, is_open: {})", self.medium, self.is_open)
    }
}

/// A new place, and why it has not got all, if something went wrong there.
struct Filling<'a> {
    replica: &'a NewReplica,
    there: BTreeSet<u64>,
    trouble: Option<Error>,
}

impl Filling<'_> {
    fn medium(&self) -> &dyn LogMedium {
        &*self.replica.medium
    }

    fn does(&mut self, work: impl FnOnce(&mut Self) -> Result<()>) {
        if self.trouble.is_none() {
            self.trouble = work(self).err();
        }
    }
}

/// Copies to each new place that is not open what it lacks, and opens it. Answers of each place why it is not open,
/// if it is not.
///
/// # Errors
/// What cannot be read from the old places.
pub(super) fn copy(
    from: &dyn LogMedium,
    had: &[JobHad],
    to: &[NewReplica],
) -> Result<Vec<Option<Error>>> {
    let is_only = to.len() == 1;
    let filling = |replica| Filling { replica, there: BTreeSet::new(), trouble: None };
    let mut filled: Vec<Filling<'_>> = to.iter().map(filling).collect();
    filled.retain_mut(|replica| !replica.replica.is_open);
    if is_only {
        filled
            .iter_mut()
            .for_each(|replica| replica.does(|replica| say_copied(replica.medium(), had)));
    }
    for JobHad { job, first, last } in had {
        let begin = |replica: &mut Filling<'_>| {
            replica.there = replica.medium().list(job)?.into_iter().collect();
            begins_with(replica.medium(), is_only, job, *first)
        };
        filled.iter_mut().for_each(|replica| replica.does(begin));
        for number in *first..=*last {
            // As if its writer had put it there, in the first round: nobody who comes late gets this number.
            let register = if is_only { number } else { at(number, 0) };
            let lacks = |replica: &Filling<'_>| !replica.there.contains(&register);
            if !filled.iter().any(lacks) {
                continue;
            }
            match from.get(job, number)? {
                Some(record) => {
                    filled.iter_mut().filter(|replica| lacks(replica)).for_each(|replica| {
                        replica.does(|replica| {
                            replica.medium().put_new(job, register, &record).map(drop)
                        });
                    })
                }
                None if number == *last => return Err(gone(from, job, number)),
                // The move is at its end, and the old places are being emptied: nothing follows from that.
                None if from.get(&JobName::moved(), OVER)?.is_some() => {
                    return Err(gone(from, job, number));
                }
                // Somebody was about to remove it, and only few of the places had been told.
                None => filled.iter_mut().for_each(|replica| {
                    replica.does(|replica| begins_with(replica.medium(), is_only, job, number + 1));
                }),
            }
        }
        filled.iter_mut().for_each(|replica| replica.does(|replica| replica.medium().sync(job)));
    }
    filled.iter_mut().for_each(|replica| replica.does(|replica| (replica.replica.open)()));
    let mut trouble = filled.into_iter().map(|replica| replica.trouble);
    let of = |replica: &NewReplica| if replica.is_open { None } else { trouble.next().flatten() };
    Ok(to.iter().map(of).collect())
}

/// Nobody is to find an older record there.
fn begins_with(medium: &dyn LogMedium, is_only: bool, job: &JobName, first: u64) -> Result<()> {
    match is_only {
        _ if first == 1 => Ok(()),
        true => note_removed(medium, job, first).and_then(|()| medium.remove_before(job, first)),
        false => note_removed(medium, job, first),
    }
}

/// Of these records one may appear, after it was removed, that somebody copies who was held up.
fn say_copied(medium: &dyn LogMedium, had: &[JobHad]) -> Result<()> {
    medium.put_new(&JobName::moved(), COPIED, &encode(had))?;
    medium.keep(&JobName::moved(), COPIED)
}

fn gone(from: &dyn LogMedium, job: &JobName, number: u64) -> Error {
    Error::damaged(format!(
        "record {number} of job {job} is missing from {}, and it was there when the log was moved",
        from.describe()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryMedium;

    /// Found by the explorer (suspend:232): who copied while another emptied the old places told the new ones that
    /// all records but the last had been removed.
    #[test]
    fn who_copies_does_not_take_emptied_places_for_removals() {
        let job = JobName::new("a").unwrap();
        for (is_over, removed) in [(false, true), (true, false)] {
            let from = MemoryMedium::default();
            from.put_new(&job, 3, b"the last").unwrap();
            if is_over {
                from.put_new(&JobName::moved(), OVER, b"over").unwrap();
            }
            let media: Vec<Arc<MemoryMedium>> = (0..3).map(|_| Arc::default()).collect();
            let replica = |medium: &Arc<MemoryMedium>| {
                let medium: Arc<dyn LogMedium> = medium.clone();
                NewReplica { medium, is_open: false, open: Box::new(|| Ok(())) }
            };
            let to: Vec<NewReplica> = media.iter().map(replica).collect();
            let had = [JobHad { job: job.clone(), first: 1, last: 3 }];
            assert_eq!(copy(&from, &had, &to).is_ok(), removed);
            let told = |it: &Arc<MemoryMedium>| !it.list(&job.removed()).unwrap().is_empty();
            assert!(media.iter().all(|medium| told(medium) == removed));
        }
    }
}
