//! Copies the content of a log to its new replicas.

use super::had::{JobHad, encode};
use super::{at, note_removed};
use crate::medium::LogMedium;
use outlive_types::{Error, JobName, Result};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// Number, in the job of moves, of the record that all new replicas are open. It is decided before
/// any deletion from the old ones.
pub(super) const OVER: u64 = 3;

/// Number, in the job of moves, of the record in an only new replica that lists the copied records.
pub(super) const COPIED: u64 = 4;

/// A replica that a log is moved to.
pub struct NewReplica {
    /// Takes records also before the replica is open.
    pub medium: Arc<dyn LogMedium>,
    /// Whether the replica has everything that was moved, and counts.
    pub is_open: bool,
    /// Makes the replica count, durably.
    pub open: Box<dyn Fn() -> Result<()> + Send + Sync>,
}

impl fmt::Debug for NewReplica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NewReplica({:?}, is_open: {})", self.medium, self.is_open)
    }
}

/// A new replica, and the error that stopped its copy.
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

/// Copies the missing records to each new replica that is not open, and opens it. Returns, for each
/// replica, why it is not open.
///
/// # Errors
/// The errors of reading the old replicas.
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
            // As if its writer had put it there in the first round: a late writer cannot get this
            // number.
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
                // The move has ended, and the old replicas are being emptied: a missing record
                // shows nothing.
                None if from.get(&JobName::moved(), OVER)?.is_some() => {
                    return Err(gone(from, job, number));
                }
                // A removal was beginning, and few of the replicas knew about it.
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

/// Makes sure that no reader finds an older record there.
fn begins_with(medium: &dyn LogMedium, is_only: bool, job: &JobName, first: u64) -> Result<()> {
    match is_only {
        _ if first == 1 => Ok(()),
        true => note_removed(medium, job, first).and_then(|()| medium.remove_before(job, first)),
        false => note_removed(medium, job, first),
    }
}

/// Lists the copied records: a mover that was held up may copy one again after its removal.
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
    use crate::{LogRecords, MemoryMedium};

    /// Found by the explorer (suspend:232): a mover copied while another one emptied the old
    /// replicas. It recorded in the new ones that all records but the last were removed.
    #[test]
    fn a_mover_does_not_take_emptied_replicas_for_removals() {
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
