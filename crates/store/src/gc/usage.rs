//! Finds what occupies a pool, and what deleting some of it would free. It marks as a gc does, one
//! unit after the other. The result holds for one moment; nothing is written.

use super::chain::line;
use super::leases::end_lost_sessions;
use super::mark::Marks;
use super::plan::{GcPlan, Thoroughness, packs_written};
use super::share::Share;
use super::survey::{FirstPacks, JobState, Survey};
use crate::read::{Logs, Reload};
use outlive_format::Manifest;
use outlive_pool::Pool;
use outlive_types::{Epoch, Error, JobName, Result, SessionId};
use std::collections::BTreeSet;

/// Selection of a usage.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum UsageOf {
    /// Every job.
    Jobs,
    /// Every checkpoint of a job.
    Checkpoints(JobName),
    /// Some checkpoints of a job, and all of them together.
    Some(JobName, BTreeSet<Epoch>),
}

/// Needs of a job, a checkpoint, or several of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UsageRow {
    /// The job; `None` for several.
    pub job: Option<JobName>,
    /// The epochs, oldest first.
    pub epochs: Vec<Epoch>,
    /// Bytes of the checkpoints' states, as if nothing were shared.
    pub state_bytes: u64,
    /// Stored bytes that they need.
    pub needed_bytes: u64,
    /// Stored bytes that nothing else needs: deleting just these checkpoints frees them, except
    /// padding and what a gc writes.
    pub only_bytes: u64,
}

/// Usage of a pool.
#[derive(Clone, PartialEq, Debug)]
pub struct Usage {
    /// One row for each selected job or checkpoint.
    pub rows: Vec<UsageRow>,
    /// All of them together.
    pub together: UsageRow,
    /// Plan of a gc now.
    pub plan: GcPlan,
    /// Plan of a gc if everything selected were deleted; `None` for all jobs.
    pub without: Option<GcPlan>,
    /// Checkpoints that cannot be read, so that their needs are unknown; epoch 0 for records of the
    /// log.
    pub unknown: Vec<(JobName, Epoch, Error)>,
}

/// Finds what each unit needs. It reads logs, directories and page trees. Data that checkpoints of
/// a job share is read once for the selected ones, and once for the rest.
///
/// # Errors
/// `Invalid` for a job or epoch that does not exist; `Damaged` if the whole log is missing; errors
/// of targets and log. The result lists damaged checkpoints.
pub fn usage(pool: &Pool, of: &UsageOf) -> Result<Usage> {
    let mut again = Reload::new(pool, Logs::All)?;
    loop {
        // No log has this session.
        let mut survey = Survey::new(pool, (SessionId([0xFF; 12]), FirstPacks::default()), true)?;
        end_lost_sessions(pool, &mut survey, true, true)?;
        let usage = UsageReader::new(pool, &survey).read(of);
        let is_final = match &usage {
            Ok(usage) => usage.unknown.is_empty(),
            Err(error) => error.kind() != outlive_types::ErrorKind::Damaged,
        };
        if is_final || !again.is_worth_it()? {
            return usage;
        }
    }
}

/// Returns a row for some checkpoints of a job, newest first, before their needs are known.
fn row(job: &JobState, manifests: &[&Manifest]) -> UsageRow {
    UsageRow {
        job: Some(job.name.clone()),
        epochs: manifests.iter().rev().map(|manifest| manifest.epoch).collect(),
        state_bytes: manifests.iter().map(|manifest| manifest.state_bytes()).sum(),
        needed_bytes: 0,
        only_bytes: 0,
    }
}

struct UsageReader<'a> {
    pool: &'a Pool,
    survey: &'a Survey,
    marks: Marks,
    unknown: Vec<(JobName, Epoch, Error)>,
}

impl<'a> UsageReader<'a> {
    fn new(pool: &'a Pool, survey: &'a Survey) -> UsageReader<'a> {
        let mut marks = Marks::new(pool, &survey.packs);
        marks.tell_units_apart();
        let damaged = survey.jobs.iter().filter(|job| job.damaged > 0);
        let error = |job: &JobState| {
            Error::damaged(format!("{} records of its log cannot be read", job.damaged))
        };
        let unknown = damaged.map(|job| (job.name.clone(), 0, error(job))).collect();
        UsageReader { pool, survey, marks, unknown }
    }

    fn read(mut self, of: &UsageOf) -> Result<Usage> {
        let (mut rows, mut named) = (Vec::new(), Vec::new());
        let mut asked_for = 0;
        match of {
            UsageOf::Jobs => {
                for job in self.survey.jobs.iter().filter(|job| job.is_there()) {
                    let manifests: Vec<&Manifest> = job.manifests.iter().collect();
                    self.marks.next_unit();
                    self.mark(job, &manifests)?;
                    rows.push(row(job, &manifests));
                }
            }
            UsageOf::Checkpoints(name) | UsageOf::Some(name, _) => {
                let job = self.job(name)?;
                let chosen = self.chosen(job, of)?;
                // `line` takes images of one rank.
                if chosen.iter().any(|manifest| manifest.world_size > 1) {
                    for manifest in &chosen {
                        self.marks.next_unit();
                        self.mark(job, &[manifest])?;
                    }
                } else if let Some(shares) = &mut self.marks.shares {
                    let found = line(self.pool, &mut self.marks.packs, shares, job, &chosen)?;
                    let unknown = found.unknown.into_iter();
                    self.unknown.extend(unknown.map(|(at, error)| (job.name.clone(), at, error)));
                    named.push((job.name.clone(), found.named));
                }
                asked_for = packs_written(chosen.iter().copied());
                rows.extend(chosen.iter().map(|manifest| row(job, &[manifest])));
            }
        }
        let needed_bytes = self.all_bytes();
        self.rest(of)?;
        let written = packs_written(self.survey.jobs.iter().flat_map(|job| &job.manifests));
        let choose = |marks: &Marks, written| {
            GcPlan::choose(self.pool, self.survey, marks, written, Thoroughness::default())
        };
        // The marks are now the needs of the rest.
        let without =
            (*of != UsageOf::Jobs).then(|| choose(&self.marks, written.saturating_sub(asked_for)));
        for (job, packs) in named {
            self.marks.named.entry(job).or_default().extend(packs);
        }
        self.marks.unite();
        let shares = self.units();
        for (row, share) in rows.iter_mut().zip(&shares) {
            (row.needed_bytes, row.only_bytes) = (share.needed_bytes, share.only_bytes);
        }
        // New bytes that the rest needs belong to it alone; its other bytes are shared.
        let rest = shares.last().filter(|_| shares.len() > rows.len());
        let shared = rest.map_or(0, |rest| rest.needed_bytes - (self.all_bytes() - needed_bytes));
        let is_one_job = *of != UsageOf::Jobs;
        let together = UsageRow {
            job: rows.first().and_then(|row| row.job.clone()).filter(|_| is_one_job),
            epochs: rows.iter().filter(|_| is_one_job).flat_map(|r| r.epochs.clone()).collect(),
            state_bytes: rows.iter().map(|row| row.state_bytes).sum(),
            needed_bytes,
            only_bytes: needed_bytes - shared,
        };
        let plan = choose(&self.marks, written);
        Ok(Usage { rows, together, plan, without, unknown: self.unknown })
    }

    fn job(&self, name: &JobName) -> Result<&'a JobState> {
        let found = self.survey.jobs.iter().find(|job| job.name == *name);
        found.ok_or_else(|| Error::invalid(format!("there is no job {name}")))
    }

    /// Returns the selected checkpoints, oldest first.
    fn chosen(&self, job: &'a JobState, of: &UsageOf) -> Result<Vec<&'a Manifest>> {
        let UsageOf::Some(_, epochs) = of else {
            return Ok(job.manifests.iter().rev().collect());
        };
        let find = |epoch: &Epoch| {
            let found = job.manifests.iter().find(|manifest| manifest.epoch == *epoch);
            found.ok_or_else(|| {
                Error::invalid(format!("job {} has no checkpoint {epoch}", job.name))
            })
        };
        epochs.iter().map(find).collect()
    }

    /// Marks everything that is not selected as one more unit.
    fn rest(&mut self, of: &UsageOf) -> Result<()> {
        let name = match of {
            UsageOf::Jobs => return Ok(()),
            UsageOf::Checkpoints(name) | UsageOf::Some(name, _) => name,
        };
        self.marks.next_unit();
        for job in &self.survey.jobs {
            let is_rest = |manifest: &&Manifest| match of {
                UsageOf::Some(_, epochs) if job.name == *name => !epochs.contains(&manifest.epoch),
                _ => job.name != *name,
            };
            let manifests: Vec<&Manifest> = job.manifests.iter().filter(is_rest).collect();
            self.mark(job, &manifests)?;
        }
        Ok(())
    }

    /// Marks what checkpoints need, and notes each that cannot be read.
    fn mark(&mut self, job: &JobState, manifests: &[&Manifest]) -> Result<()> {
        let is_damage = |error: &Error| error.kind() == outlive_types::ErrorKind::Damaged;
        match self.marks.job(self.pool, job, manifests) {
            Err(error) if is_damage(&error) => {}
            marked => return marked,
        }
        for manifest in manifests {
            match self.marks.job(self.pool, job, &[manifest]) {
                Err(error) if is_damage(&error) => {
                    self.unknown.push((job.name.clone(), manifest.epoch, error));
                }
                marked => marked?,
            }
        }
        Ok(())
    }

    fn units(&self) -> Vec<Share> {
        self.marks.shares.as_ref().map(|shares| shares.units().to_vec()).unwrap_or_default()
    }

    fn all_bytes(&self) -> u64 {
        self.marks.shares.as_ref().map_or(0, |shares| shares.all_bytes())
    }
}
