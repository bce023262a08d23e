//! Finds the checkpoint to restore: the newest that is whole.

use super::Checkpoint;
use crate::commit::history;
use outlive_pool::Pool;
use outlive_types::{Epoch, Error, ErrorKind, JobName, Result};

/// How often the search begins anew because a prune or gc has changed the log under it.
const ATTEMPTS: usize = 16;

/// Which checkpoint to restore.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Select {
    /// The newest that is whole.
    Newest,
    /// This one or none.
    Epoch(Epoch),
}

/// Checkpoints that were passed over, newest first, and why. Epoch 0: the manifest could not be read.
pub type Skipped = Vec<(Epoch, Error)>;

/// What was found, what the attempt made of it, and what was passed over.
type Found<T> = (Checkpoint, T, Skipped);

/// The newest checkpoint that opens and on which `attempt` succeeds. `Damaged` errors send it to the
/// next older one; all others end the search. A gc moves chunks while this reads: what is missing
/// then is looked for again as the log has it now.
///
/// # Errors
/// `Invalid` if the epoch asked for does not exist; `Damaged` if nothing whole was found.
pub fn first_good<T>(
    pool: &Pool,
    name: &JobName,
    select: Select,
    attempt: &mut dyn FnMut(&Checkpoint) -> Result<T>,
) -> Result<Option<Found<T>>> {
    let mut attempts = 1;
    loop {
        let mut search =
            Search { pool, name, select, listed: 0, as_of: 0, newest: 0, skipped: Skipped::new() };
        let found = search.run(attempt)?;
        let moved = !search.skipped.is_empty() && pool.log().latest(name)? != search.listed;
        if !moved || attempts >= ATTEMPTS {
            return search.conclude(found);
        }
        attempts += 1;
    }
}

struct Search<'a> {
    pool: &'a Pool,
    name: &'a JobName,
    select: Select,
    /// Number of the log's newest record when the search began.
    listed: u64,
    /// Number of the newest record that was read: an archive may have taken the place of others.
    as_of: u64,
    /// Newest epoch seen.
    newest: Epoch,
    skipped: Skipped,
}

impl Search<'_> {
    fn run<T>(
        &mut self,
        attempt: &mut dyn FnMut(&Checkpoint) -> Result<T>,
    ) -> Result<Option<(Checkpoint, T)>> {
        let Search { pool, name, select, .. } = *self;
        for entry in history(pool, name)? {
            if self.listed == 0 {
                self.listed = entry.number;
            }
            self.as_of = self.as_of.max(entry.number);
            let outcome = match (&entry.record, entry.manifest()) {
                (Ok(_), None) => continue,
                (Ok(_), Some(manifest)) => {
                    self.newest = self.newest.max(manifest.epoch);
                    if matches!(select, Select::Epoch(epoch) if epoch != manifest.epoch) {
                        continue;
                    }
                    Checkpoint::open_as_of(pool, name, manifest.clone(), self.as_of)
                        .and_then(|found| attempt(&found).map(|value| (found, value)))
                        .map_err(|error| (manifest.epoch, error))
                }
                // What cannot be read may have been a checkpoint; its epoch is not known.
                (Err(error), _) => Err((0, error.clone())),
            };
            match outcome {
                Ok(found) => return Ok(Some(found)),
                Err((epoch, error)) if error.kind() == ErrorKind::Damaged => {
                    self.skipped.push((epoch, error));
                }
                Err((_, error)) => return Err(error),
            }
        }
        Ok(None)
    }

    fn conclude<T>(self, found: Option<(Checkpoint, T)>) -> Result<Option<Found<T>>> {
        let Search { pool, name, select, newest, skipped, .. } = self;
        if let Some((checkpoint, value)) = found {
            for (_, error) in &skipped {
                pool.warn(format!(
                    "passed over a damaged checkpoint and took epoch {}: {error}",
                    checkpoint.epoch()
                ));
            }
            return Ok(Some((checkpoint, value, skipped)));
        }
        match (select, skipped.first()) {
            (Select::Epoch(epoch), None) => Err(Error::invalid(format!(
                "job {name} has no checkpoint {epoch}{}",
                if newest > 0 { format!("; its newest is {newest}") } else { String::new() }
            ))),
            (_, Some((_, first))) => Err(Error::damaged(format!(
                "no whole checkpoint of job {name} was found ({} damaged): {first}",
                skipped.len()
            ))),
            (Select::Newest, None) => Ok(None),
        }
    }
}
