//! Chooses the checkpoints of a copy, and checks whether they may follow those at the destination.

use crate::commit::history;
use crate::gc::JobState;
use crate::images::images_of;
use outlive_format::Manifest;
use outlive_pool::Pool;
use outlive_types::{Epoch, Error, ErrorKind, JobName, Result};
use std::collections::BTreeSet;
use std::fmt;

/// Options of a copy.
#[derive(Clone, Debug, Default)]
pub struct CopyOptions {
    /// Jobs to copy; all if empty.
    pub jobs: Vec<JobName>,
    /// Epochs of the one job to copy; all if empty.
    pub epochs: BTreeSet<Epoch>,
    /// New name of the one job.
    pub rename: Option<JobName>,
    /// Takes the job at the destination for the same one, though the two have no checkpoint in
    /// common (any more).
    pub same_history: bool,
    /// Maximum number of bytes to read per second.
    pub bytes_per_s: Option<u64>,
}

/// A checkpoint to copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EpochCopy {
    /// Its epoch, in both pools.
    pub epoch: Epoch,
    /// Bytes of its state.
    pub state_bytes: u64,
}

/// Plan for one job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobCopy {
    /// The job in the source.
    pub from: JobName,
    /// The job at the destination.
    pub to: JobName,
    /// Checkpoints to copy, oldest first.
    pub copied: Vec<EpochCopy>,
    /// Epochs that the destination has already.
    pub there: Vec<Epoch>,
    /// Epochs that the destination lacks, but older than one that it has or had: a log only goes
    /// forward.
    pub behind: Vec<Epoch>,
    /// Number of records of the source's log that cannot be read.
    pub unreadable: u64,
    /// Why the first of them cannot be.
    pub unread: Option<Error>,
}

impl JobCopy {
    /// Returns a plan without any checkpoint yet.
    pub(super) fn new(from: &JobName, to: &JobName) -> JobCopy {
        JobCopy {
            from: from.clone(),
            to: to.clone(),
            copied: Vec::new(),
            there: Vec::new(),
            behind: Vec::new(),
            unreadable: 0,
            unread: None,
        }
    }
}

/// Plan of a copy.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CopyPlan {
    /// One plan for each job that can be copied.
    pub jobs: Vec<JobCopy>,
    /// Jobs that cannot be copied, and why; the others are copied all the same.
    pub refused: Vec<(JobName, Error)>,
}

impl fmt::Display for CopyPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for job in &self.jobs {
            let state_bytes: u64 = job.copied.iter().map(|epoch| epoch.state_bytes).sum();
            writeln!(
                f,
                "job {} as {}: {} checkpoints to copy, {} bytes of state; {} are there, {} cannot be \
                 put behind newer ones",
                job.from,
                job.to,
                job.copied.len(),
                state_bytes,
                job.there.len(),
                job.behind.len()
            )?;
        }
        self.refused
            .iter()
            .try_for_each(|(job, error)| writeln!(f, "job {job} is refused: {error}"))
    }
}

/// Plans a copy, and writes nothing. One of several jobs is refused in the plan if its history is
/// not that of the job at the destination.
///
/// # Errors
/// `Invalid` for unknown jobs or epochs, for pools whose sizes do not fit, and if the only job is
/// refused; errors of the logs.
pub fn plan(from: &Pool, to: &Pool, options: &CopyOptions) -> Result<CopyPlan> {
    check_sizes(from, to)?;
    let is_one = options.jobs.len() == 1;
    if (!options.epochs.is_empty() || options.rename.is_some()) && !is_one {
        return Err(Error::invalid("epochs and a new name can be given for one job only: name it"));
    }
    let there = from.jobs()?;
    let jobs = if options.jobs.is_empty() { &there } else { &options.jobs };
    if let Some(job) = jobs.iter().find(|job| !there.contains(job)) {
        return Err(Error::invalid(format!("there is no job {job} to copy")));
    }
    let mut plan = CopyPlan::default();
    for job in jobs {
        let name = options.rename.as_ref().unwrap_or(job);
        let state = JobState::read(to, name, true)?;
        match plan_job([from, to], job, &state, options) {
            Err(error) if error.kind() == ErrorKind::Invalid && jobs.len() > 1 => {
                plan.refused.push((job.clone(), error));
            }
            planned => plan.jobs.push(planned?),
        }
    }
    Ok(plan)
}

/// Checks that the destination allows the chunks of the source, which are copied as they are.
fn check_sizes(from: &Pool, to: &Pool) -> Result<()> {
    let (here, there) = (from.config().format.chunk_bytes_max, to.config().format.chunk_bytes_max);
    match here > there {
        true => Err(Error::invalid(format!(
            "chunk_bytes_max of the pool to copy from is {here}, that of the other {there}: chunks \
             are copied as they are, so make a pool whose chunk_bytes_max is as large"
        ))),
        false => Ok(()),
    }
}

/// Plans the copy of a job to one with the state `state`.
///
/// # Errors
/// As [`plan`].
pub fn plan_job(
    [from, to]: [&Pool; 2],
    job: &JobName,
    state: &JobState,
    options: &CopyOptions,
) -> Result<JobCopy> {
    let mut manifests: Vec<Manifest> = Vec::new();
    let (mut unreadable, mut unread) = (0, None);
    for entry in history(from, job)? {
        manifests.extend(entry.manifest().cloned());
        if let Err(error) = entry.record {
            unreadable += 1;
            unread.get_or_insert(error);
        }
    }
    manifests.reverse();
    let mut plan = JobCopy { unreadable, unread, ..JobCopy::new(job, &state.name) };
    let is_chosen = |epoch| options.epochs.is_empty() || options.epochs.contains(&epoch);
    let mut has_common = false;
    for manifest in &manifests {
        let epoch = manifest.epoch;
        // The manifests of `state` are newest first.
        let there = state.manifests.binary_search_by(|there| epoch.cmp(&there.epoch));
        match there.ok().map(|at| &state.manifests[at]) {
            Some(there) if is_same([from, to], [manifest, there])? => {
                has_common = true;
                plan.there.extend(is_chosen(epoch).then_some(epoch));
            }
            Some(_) => return Err(other_history(&plan, format!("checkpoint {epoch} is another"))),
            None if !is_chosen(epoch) => {}
            None if epoch <= state.last_epoch => plan.behind.push(epoch),
            None => {
                let state_bytes = manifest.state_bytes();
                plan.copied.push(EpochCopy { epoch, state_bytes });
            }
        }
    }
    let missing = options.epochs.iter().find(|epoch| manifests.iter().all(|m| m.epoch != **epoch));
    if let Some(epoch) = missing {
        return Err(Error::invalid(format!("job {job} has no checkpoint {epoch}")));
    }
    if let (false, Some(epoch)) = (options.epochs.is_empty(), plan.behind.first()) {
        return Err(Error::invalid(format!(
            "checkpoint {epoch} of job {job} cannot be put behind what the job {} there has or had, \
             up to {}: copy it under another name (--as)",
            plan.to, state.last_epoch
        )));
    }
    let is_unknown = !state.manifests.is_empty() && !has_common && !options.same_history;
    if is_unknown && !plan.copied.is_empty() {
        let why = "the two have no checkpoint in common, so they may be two histories of one name; \
                   if you know that they are one, say --same-history";
        return Err(other_history(&plan, why.to_owned()));
    }
    Ok(plan)
}

/// Whether two checkpoints are the same. Roots are fingerprints of everything below them, so this
/// compares the bytes. If an image table is damaged, only the manifests count.
fn is_same(pools: [&Pool; 2], manifests: [&Manifest; 2]) -> Result<bool> {
    let what =
        |m: &Manifest| (m.epoch, m.frozen_ns, m.world_size, m.kind(), m.regions(), m.state_bytes());
    let [a, b] = manifests.map(what);
    if a != b {
        return Ok(false);
    }
    let mut roots = Vec::new();
    for (pool, manifest) in pools.into_iter().zip(manifests) {
        match images_of(pool, manifest) {
            Ok(images) => roots.push(images.iter().map(|it| it.reference).collect::<Vec<_>>()),
            Err(error) if error.kind() == ErrorKind::Damaged => return Ok(true),
            Err(error) => return Err(error),
        }
    }
    Ok(roots[0] == roots[1])
}

fn other_history(plan: &JobCopy, why: String) -> Error {
    Error::invalid(format!(
        "job {} cannot be copied to the job {} there: {why}. Otherwise copy it under another name \
         (--as)",
        plan.from, plan.to
    ))
}
