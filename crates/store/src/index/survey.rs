//! Finds the segments that the checkpoints of all jobs list, and the packs to which no save may
//! refer.
//!
//! A save begins with the segments of the checkpoint that it follows, so a checkpoint lists
//! everything that its parent lists: the last one of a chain is enough. A log has several chains if
//! its program began again without a checkpoint, or went back to an older one.

use crate::commit::{History, history};
use crate::images::{pages_of, segments_of_all};
use outlive_format::{Body, PageRef, Record, SegmentRef};
use outlive_pool::Pool;
use outlive_types::{Epoch, Fingerprint, JobName, PackId, Result};
use std::collections::HashSet;

/// Bytes that a record or segment counts at least.
const READ_BYTES_MIN: u64 = 4096;

/// Bytes of each log that a survey may read at least, to reach the newest checkpoint: prunes
/// without a later gc may have dropped thousands of checkpoints on the way.
const FIRST_BYTES_MIN: u64 = 64 * READ_BYTES_MIN;

/// Segments, and packs that gcs have condemned.
#[derive(Debug, Default)]
pub struct Survey {
    /// The segments of each job's newest checkpoint, then those of chains that ended earlier. Each
    /// once, as many as `bytes_max` pays for.
    pub segments: Vec<SegmentRef>,
    /// Packs whose chunks no save may share.
    pub condemned: HashSet<PackId>,
    /// Bytes to read for all segments of all jobs, as far as known.
    pub all_bytes: u64,
    /// True if nothing was omitted.
    pub is_whole: bool,
}

impl Survey {
    /// Reads the logs of all jobs. The caller's session must already be in its job's log: then a gc
    /// that condemns packs afterwards reports them to the caller. First the survey reads each log
    /// down to its newest checkpoint, with an equal share of `bytes_max` for each. Then it reads
    /// more, as long as records and segments take less than `bytes_max` in total.
    ///
    /// # Errors
    /// Errors of listing the log. Omits checkpoints that cannot be read, or are known to have lost
    /// data.
    pub fn new(pool: &Pool, bytes_max: u64) -> Result<Survey> {
        let jobs = pool.jobs()?;
        let mut survey = Survey::default();
        let mut seen = HashSet::new();
        let mut lines = jobs.iter().map(|job| Lines::of(pool, job)).collect::<Result<Vec<_>>>()?;
        let share = (bytes_max / lines.len().max(1) as u64).max(FIRST_BYTES_MIN);
        let mut is_first = true;
        while !lines.is_empty() {
            // One chain of each job: newer checkpoints are more likely to share chunks.
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

    /// Removes the segments that are too much; returns whether there were any.
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

/// The chains of a job, by their last checkpoints, newest first.
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

    /// Returns the segments of the last checkpoint of the next chain; `None` after the last chain,
    /// or if the search costs too much. Sweeps are newer than the checkpoints that they affect, so
    /// this reads them first.
    fn next(&mut self, survey: &mut Survey, bytes_max: u64) -> Option<Vec<SegmentRef>> {
        while survey.all_bytes < bytes_max {
            let entry = self.entries.step()?;
            let is_in_archive = entry.bytes == 0 && entry.record.is_ok();
            if !is_in_archive {
                survey.all_bytes += entry.bytes.max(READ_BYTES_MIN);
            }
            let is_dropped = self.entries.is_dropped(&entry);
            match entry.record {
                // Chunks that were found damaged must not spread to more checkpoints.
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
