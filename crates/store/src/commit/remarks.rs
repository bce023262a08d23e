//! Changes the remarks of a checkpoint, by a note in its log.

use super::history;
use super::session::ATTEMPTS;
use outlive_format::{Body, Note, Record, Remarks};
use outlive_log::{Append, Previous};
use outlive_pool::Pool;
use outlive_types::{Epoch, Error, JobName, Result};

/// Marks a checkpoint as suspect, unless the log marks it already. Prune rules do not count a
/// suspect checkpoint, and lazy restores skip it, until a verification or a scrub finds it whole.
///
/// # Errors
/// Errors of the log; `Retry` if other writers append all the time.
pub fn mark_suspect(pool: &Pool, job: &JobName, epoch: Epoch) -> Result<()> {
    let change = |remarks: &mut Remarks, is_incomplete: bool| {
        remarks.suspect |= !is_incomplete;
        Ok(())
    };
    change_remarks(pool, job, epoch, &change).map(drop)
}

/// Changes the remarks of a checkpoint, and returns the new ones; `None` if there is no such
/// checkpoint. Its program may save meanwhile. Of changes at the same time, each is made to the
/// result of the one before. `change` also learns whether the checkpoint is incomplete.
///
/// # Errors
/// Errors of `change` and of the log; `Retry` if other writers append all the time.
pub fn change_remarks(
    pool: &Pool,
    job: &JobName,
    epoch: Epoch,
    change: &dyn Fn(&mut Remarks, bool) -> Result<()>,
) -> Result<Option<Remarks>> {
    for _ in 0..ATTEMPTS {
        let mut newest = None;
        let mut entries = history(pool, job)?;
        let found = loop {
            let Some(entry) = entries.next() else { return Ok(None) };
            newest.get_or_insert(Previous { number: entry.number, fp: entry.fp });
            let entry = entry.unless_unread()?;
            if let Some(manifest) = entry.manifest().filter(|manifest| manifest.epoch == epoch) {
                break (manifest.remarks.clone(), entry.incomplete);
            }
        };
        let (before, is_incomplete) = found;
        let mut remarks = before.clone();
        change(&mut remarks, is_incomplete)?;
        let behind = newest.unwrap_or(Previous::NONE);
        if remarks == before {
            // They need no record. The one that has them may be another process's, and not durable.
            pool.log().sync(job)?;
            return Ok(Some(remarks));
        }
        let body = Body::Note(Note { epoch, remarks: remarks.clone() });
        let record = Record { number: behind.number + 1, previous: behind.fp, body };
        if pool.log().append_if(job, behind, &record.encode()?)? == Append::Done {
            return Ok(Some(remarks));
        }
    }
    Err(Error::retry(format!("other writers keep appending to the log of job {job}: try again")))
}
