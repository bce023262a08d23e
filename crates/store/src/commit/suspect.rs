//! Records damage that was found in a checkpoint.

use super::{Entry, append_note, history};
use outlive_format::Note;
use outlive_pool::Pool;
use outlive_types::{Epoch, JobName, Result};

/// Marks a checkpoint as suspect, unless the log marks it already. Prune rules do not count a
/// suspect checkpoint, and lazy restores skip it, until a verification or a scrub finds it whole.
///
/// # Errors
/// Errors of the log; `Retry` if other writers append all the time.
pub fn mark_suspect(pool: &Pool, job: &JobName, epoch: Epoch) -> Result<()> {
    let is_it = |entry: &Entry| entry.manifest().is_some_and(|found| found.epoch == epoch);
    let Some(entry) = history(pool, job)?.find(is_it) else { return Ok(()) };
    let Some(manifest) = entry.manifest().filter(|it| !it.remarks.suspect && !entry.incomplete)
    else {
        return Ok(());
    };
    let mut remarks = manifest.remarks.clone();
    remarks.suspect = true;
    append_note(pool, job, Note { epoch, remarks })
}
