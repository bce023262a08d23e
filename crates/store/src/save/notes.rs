//! Remarks and metrics of a checkpoint, given with a save or later.

use crate::commit::change_remarks;
use outlive_format::{LABEL_BYTES_MAX, Remarks, TAGS_MAX, check_tag};
use outlive_pool::Pool;
use outlive_types::{Epoch, Error, JobName, Result};

/// Notes that the program or its user gives a checkpoint when it is saved.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct SaveNotes {
    /// Label and tags, and whether prunes keep the checkpoint.
    pub remarks: Remarks,
    /// Figures of merit by name, for keep-best rules; sorted, each name once, no NaN.
    pub metrics: Vec<(String, f64)>,
}

impl SaveNotes {
    /// Makes notes of these remarks and metrics. It sorts metrics and tags; a tag that is given
    /// twice counts once.
    ///
    /// # Errors
    /// `Invalid` for an empty or repeated name of a metric, a name or label above 65,535 bytes, a
    /// NaN, or an impossible tag.
    pub fn new(mut remarks: Remarks, mut metrics: Vec<(String, f64)>) -> Result<SaveNotes> {
        remarks.tags.sort();
        remarks.tags.dedup();
        remarks.tags.iter().try_for_each(|tag| check_tag(tag))?;
        if remarks.tags.len() > TAGS_MAX {
            return Err(Error::invalid(format!(
                "a checkpoint has at most {TAGS_MAX} tags: remove some"
            )));
        }
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

/// Changes the remarks of a checkpoint, and returns the new ones, as [`change_remarks`] does.
///
/// # Errors
/// `Invalid` if there is no such checkpoint, or the label or a tag is impossible; errors of the log.
pub fn remark(
    pool: &Pool,
    job: &JobName,
    epoch: Epoch,
    change: &dyn Fn(&mut Remarks),
) -> Result<Remarks> {
    let changed = change_remarks(pool, job, epoch, &|remarks, _is_incomplete| {
        change(remarks);
        *remarks = SaveNotes::new(std::mem::take(remarks), Vec::new())?.remarks;
        Ok(())
    })?;
    changed.ok_or_else(|| Error::invalid(format!("job {job} has no checkpoint {epoch}")))
}
