//! Remarks and metrics of a checkpoint, given with a save or later.

use crate::commit::{append_note, history};
use outlive_format::{LABEL_BYTES_MAX, Note, Remarks};
use outlive_pool::Pool;
use outlive_types::{Epoch, Error, JobName, Result};

/// Notes that the program or its user gives a checkpoint when it is saved.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct SaveNotes {
    /// The label, and whether prunes keep the checkpoint.
    pub remarks: Remarks,
    /// Figures of merit by name, for keep-best rules; sorted, each name once, no NaN.
    pub metrics: Vec<(String, f64)>,
}

impl SaveNotes {
    /// Makes notes of these metrics, which it sorts.
    ///
    /// # Errors
    /// `Invalid` for an empty or repeated name, a name or label above 65,535 bytes, or a NaN.
    pub fn new(remarks: Remarks, mut metrics: Vec<(String, f64)>) -> Result<SaveNotes> {
        metrics.sort_by(|a, b| a.0.cmp(&b.0));
        for (name, value) in &metrics {
            if value.is_nan() {
                return Err(Error::invalid(format!(
                    "the metric {name:?} is not a number: leave it out, or give a value that can be \
                     compared"
                )));
            }
            if !(1..=LABEL_BYTES_MAX).contains(&name.len()) {
                return Err(Error::invalid("a metric's name must have 1 to 65,535 bytes"));
            }
        }
        if let Some(twice) = metrics.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(Error::invalid(format!("the metric {:?} is given twice", twice[0].0)));
        }
        if metrics.len() > usize::from(u16::MAX) {
            return Err(Error::invalid("at most 65,535 metrics can be kept with a checkpoint"));
        }
        if remarks.label.len() > LABEL_BYTES_MAX {
            return Err(Error::invalid("a label must be shorter than 64 KiB"));
        }
        Ok(SaveNotes { remarks, metrics })
    }
}

/// Changes the remarks of a checkpoint, and returns the new ones. Its program may save meanwhile.
///
/// # Errors
/// `Invalid` if there is no such checkpoint, or the label is too long; errors of the log.
pub fn remark(
    pool: &Pool,
    job: &JobName,
    epoch: Epoch,
    change: &dyn Fn(&mut Remarks),
) -> Result<Remarks> {
    for entry in history(pool, job)? {
        let entry = entry.unless_unread()?;
        let Some(manifest) = entry.manifest().filter(|manifest| manifest.epoch == epoch) else {
            continue;
        };
        let mut remarks = manifest.remarks.clone();
        change(&mut remarks);
        let SaveNotes { remarks, .. } = SaveNotes::new(remarks, Vec::new())?;
        append_note(pool, job, Note { epoch, remarks: remarks.clone() })?;
        return Ok(remarks);
    }
    Err(Error::invalid(format!("job {job} has no checkpoint {epoch}")))
}
