//! Which segments the checkpoints of all jobs name, and what must not be referred to.
//!
//! A save begins with the segments of the checkpoint that it follows, so a checkpoint names whatever
//! its parent names: of a line of checkpoints the last one tells all. A log has several lines if its
//! program began anew, or went back to an older checkpoint.

use crate::commit::{History, history};
use crate::images::{pages_of, segments_of_all};
use outlive_format::{Body, PageRef, Record, SegmentRef};
use outlive_pool::Pool;
use outlive_types::{Epoch, Fingerprint, JobName, PackId, Result};
use std::collections::HashSet;

/// What a record or segment counts at least, however short it is.
const READ_BYTES_MIN: u64 = 4096;

/// What may be read of each log at least, to reach its newest checkpoint: prunes that no gc has followed
/// may have dropped thousands on the way there.
const FIRST_BYTES_MIN: u64 = 64 * READ_BYTES_MIN;

/// Segments, and packs that gcs have condemned.
#[derive(Debug, Default)]
pub struct Survey {
    /// The segments of each job's newest checkpoint, then those of lines that ended before. Each once,
    /// and no more than were paid for.
    pub segments: Vec<SegmentRef>,
    /// Packs of which nothing may be taken over.
    pub condemned: HashSet<PackId>,
    /// What it takes to read all segments of all jobs, as far as that is known.
    pub all_bytes: u64,
    /// True if nothing was left out.
    pub is_whole: bool,
}

impl Survey {
    /// Asks the logs of all jobs. The caller's session must be in its job's log already: then a gc
    /// that condemns something afterwards tells the caller. First each log is read down to its newest
    /// checkpoint, with an equal share of `bytes_max` for each; then more, as long as records and segments
    /// take less than `bytes_max` in all.
    ///
    /// # Errors
    /// What the log reports when it is listed. Checkpoints that cannot be read are left out, and so are
    /// those of which something is known to be lost.
    pub fn new(pool: &Pool, bytes_max: u64) -> Result<Survey> {
        let jobs = pool.jobs()?;
        let mut survey = Survey::default();
        let mut seen = HashSet::new();
        let mut lines = jobs.iter().map(|job| Lines::of(pool, job)).collect::<Result<Vec<_>>>()?;
        let share = (bytes_max / lines.len().max(1) as u64).max(FIRST_BYTES_MIN);
        let mut is_first = true;
        while !lines.is_empty() {
            // A line of each job: newer checkpoints are the ones more likely to be met again.
            lines.retain_mut(|log| {
                let limit = if is_first { survey.all_bytes + share } else { bytes_max };
                match log.next(&mut survey, limit) {
                    Some(segments) => {
                        survey.add(segments, &mut seen);
                        true
                    }
                    None => log.records_left() > 0,
                }
            });
            is_first = false;
            if survey.all_bytes >= bytes_max {
                break;
            }
        }
        let unread: usize = lines.iter().map(Lines::records_left).sum();
        survey.all_bytes += unread as u64 * READ_BYTES_MIN;
        let is_cut = survey.cut(bytes_max);
        survey.is_whole = unread == 0 && !is_cut;
        Ok(survey)
    }

    fn add(&mut self, segments: Vec<SegmentRef>, seen: &mut HashSet<Fingerprint>) {
        for segment in segments {
            if seen.insert(segment.fp) {
                self.all_bytes += cost_of(&segment);
                self.segments.push(segment);
            }
        }
    }

    /// Leaves out the segments that are too much; answers whether there were any.
    fn cut(&mut self, bytes_max: u64) -> bool {
        let before = self.segments.len();
        let mut bytes = 0;
        let affordable = self.segments.iter().take_while(|segment| {
            bytes += cost_of(segment);
            bytes <= bytes_max
        });
        let count = affordable.count();
        self.segments.truncate(count);
        count < before
    }
}

fn cost_of(segment: &SegmentRef) -> u64 {
    u64::from(segment.length).max(READ_BYTES_MIN)
}

fn cost_of_page(page: &PageRef) -> u64 {
    u64::from(page.length).max(READ_BYTES_MIN)
}

/// The lines of a job's checkpoints, by their last ones, newest first.
struct Lines<'a> {
    pool: &'a Pool,
    entries: History<'a>,
    /// Checkpoints that a later one follows.
    followed: HashSet<Epoch>,
}

impl<'a> Lines<'a> {
    fn of(pool: &'a Pool, job: &'a JobName) -> Result<Lines<'a>> {
        Ok(Lines { pool, entries: history(pool, job)?, followed: HashSet::new() })
    }

    fn records_left(&self) -> usize {
        self.entries.records_left()
    }

    /// The segments of the last checkpoint of the next line; `None` behind the last, or if finding it
    /// takes too much. Sweeps stand behind the checkpoints that they may hurt, so whoever has read one
    /// of those has read them, too.
    fn next(&mut self, survey: &mut Survey, bytes_max: u64) -> Option<Vec<SegmentRef>> {
        while survey.all_bytes < bytes_max {
            let entry = self.entries.step()?;
            let is_in_archive = entry.bytes == 0 && entry.record.is_ok();
            if !is_in_archive {
                survey.all_bytes += entry.bytes.max(READ_BYTES_MIN);
            }
            let is_dropped = self.entries.is_dropped(&entry);
            match entry.record {
                // What was found damaged before would only be spread.
                Ok(Record { body: Body::Manifest(manifest), .. })
                    if !is_dropped && !entry.incomplete && !manifest.remarks.suspect =>
                {
                    self.followed.insert(manifest.parent);
                    if !self.followed.contains(&manifest.epoch)
                        && let Ok(segments) = segments_of_all(self.pool, &manifest)
                    {
                        survey.all_bytes += pages_of(&manifest).map(cost_of_page).sum::<u64>();
                        return Some(segments);
                    }
                }
                Ok(Record { body: Body::Sweep(sweep), .. }) => {
                    survey.condemned.extend(sweep.packs);
                }
                Ok(Record { body: Body::Archive(archive), .. }) => {
                    survey.condemned.extend(archive.condemned);
                }
                _ => {}
            }
        }
        None
    }
}
