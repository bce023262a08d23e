//! Carries a gc out. The order of its steps is the protocol (docs/design/009-gc.md): copy, make
//! durable, report to every job, then delete the packs that no job can need any more.

use super::collection::{Gc, GcOptions};
use super::leases::end_lost_sessions;
use super::mark::Marks;
use super::plan::{GcPlan, is_leftover, packs_written};
use super::prune::{check_drop, drop_checkpoints};
use super::report::{ATTEMPTS, archive_of, saves_too_fast, tell, tell_all};
use super::rewrite::GcWork;
use super::survey::{FirstPacks, JobState, Survey};
use crate::commit::LogHead;
use crate::fill::FillSession;
use crate::save::PackNumbers;
use outlive_format::Manifest;
use outlive_io::Pace;
use outlive_log::Lock;
use outlive_pool::Pool;
use outlive_types::{Epoch, Error, ErrorKind, JobName, PackId, Result, SessionId, metrics};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Records for each kept checkpoint; a gc archives a log that has more.
const RECORDS_PER_CHECKPOINT: usize = 2;
/// Number of records up to which a log is never worth an archive.
const RECORDS_MIN: usize = 32;
/// Maximum number of attempts to report to a job whose saves go first. Each marks the whole job.
const ATTEMPTS_BESIDE: usize = 3;

/// Whether a gc has collected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Collecting {
    /// It has collected.
    #[default]
    Done,
    /// The options do not ask for it.
    NotAsked,
    /// Another gc or scrub runs; that one, or the next, frees the space.
    Postponed,
    /// A program has saved faster than the gc could report to its job, so the next one frees the
    /// space.
    Outrun,
}

/// Results of a gc.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct GcReport {
    /// The plan that it followed.
    pub plan: GcPlan,
    /// Packs deleted.
    pub deleted: usize,
    /// Bytes of their containers.
    pub deleted_bytes: u64,
    /// Condemned packs that must wait.
    pub held: usize,
    /// Bytes of their containers.
    pub held_bytes: u64,
    /// Jobs whose open session holds these packs, and the program of each.
    pub held_by: BTreeMap<JobName, String>,
    /// Whether they wait for a lazy restore that still reads.
    pub is_read: bool,
    /// Whether the gc also freed space, or only dropped checkpoints.
    pub collecting: Collecting,
    /// Chunks in use that could not be read: their packs stay.
    pub damaged: Vec<String>,
}

impl GcReport {
    /// Returns about how many bytes the gc freed: the packs deleted, less the bytes written.
    pub fn freed_bytes(&self) -> u64 {
        self.deleted_bytes.saturating_sub(self.plan.written_bytes)
    }
}

/// Plans a gc, and carries it out unless it is a dry run. First it drops the checkpoints that the
/// options name, by one record in each job's log. Then it collects, unless another gc or scrub
/// runs; that one, or the next, frees the space.
///
/// # Errors
/// `Damaged` if a log or checkpoint cannot be read, so that its needs are unknown. `Retry` if
/// another process collects and there was nothing else to do. `Fenced` if another gc has begun,
/// where the medium has no locks. `Invalid` for checkpoints that cannot be dropped. Errors of
/// targets and log. The work done before an error is valid, and the next gc completes it. An error
/// after a drop names the dropped checkpoints.
pub fn collect(pool: &Pool, options: &GcOptions) -> Result<GcReport> {
    collect_after(pool, options, &mut || Ok(()))
}

/// Calls `before`, then collects. If the disk is full, it deletes the reserve, does both again, and
/// rewrites no packs.
///
/// # Errors
/// Those of `before` and of [`collect`].
pub fn collect_after(
    pool: &Pool,
    options: &GcOptions,
    before: &mut dyn FnMut() -> Result<()>,
) -> Result<GcReport> {
    let is_full = |error: &Error| error.kind() == ErrorKind::Full;
    let mut attempt = |options: &GcOptions| before().and_then(|()| collect_once(pool, options));
    let mut collected = attempt(options);
    let gives_up = !options.dry_run && collected.as_ref().is_err_and(is_full);
    if gives_up && pool.delete_reserve() > 0 {
        let mut options = options.clone();
        options.thoroughness.rewrite = false;
        // The first error names the dropped checkpoints, if any.
        collected = attempt(&options).or(collected);
    }
    let has_freed = |report: &&GcReport| !options.dry_run && report.collecting == Collecting::Done;
    match collected.as_ref().ok().filter(has_freed) {
        Some(report) => {
            metrics::GCS.add(1);
            metrics::GC_DELETED.add(report.deleted_bytes);
            metrics::GC_WRITTEN.add(report.plan.written_bytes);
            metrics::GC_HELD.set(report.held_bytes);
            pool.make_reserve(report.plan.live_bytes);
        }
        None if gives_up => pool.make_reserve(0),
        None => {}
    }
    collected
}

fn collect_once(pool: &Pool, options: &GcOptions) -> Result<GcReport> {
    let pace = &Pace::new(options.bytes_per_s);
    if options.dry_run {
        // No log has this session.
        let packs = PackNumbers::new(SessionId([0xFF; 12]), 0);
        let mut head = LogHead::new(JobName::gc());
        return Gc { pool, options, packs, head: &mut head, pace }.work();
    }
    options.fence.iter().try_for_each(|job| fence(pool, job))?;
    let mut dropped = Vec::new();
    let outcome = options.drop.iter().try_for_each(|(job, epochs)| {
        dropped.push((job, drop_checkpoints(pool, job, epochs, options)?));
        Ok(())
    });
    outcome.and_then(|()| free(pool, options, pace)).map_err(|error| after(pool, &dropped, error))
}

/// Frees space, unless the options do not ask for it or another gc or scrub runs.
fn free(pool: &Pool, options: &GcOptions, pace: &Pace) -> Result<GcReport> {
    let plan = GcPlan { dropped: options.drop.clone(), ..GcPlan::default() };
    let decided = |collecting| GcReport { plan, collecting, ..GcReport::default() };
    if !options.thoroughness.collect {
        return Ok(decided(Collecting::NotAsked));
    }
    let turn = match pool.lock_collecting()? {
        Lock::Busy if options.drop.is_empty() => return Err(busy(pool)),
        Lock::Busy => return Ok(decided(Collecting::Postponed)),
        turn => turn,
    };
    let mut head = LogHead::new(JobName::gc());
    let (session, _) = head.open(pool)?;
    // By this record, an earlier gc that still runs learns that it is fenced.
    let opened = head.number();
    let packs = PackNumbers::new(session, 0);
    let mut collected = Gc { pool, options, packs: packs.clone(), head: &mut head, pace }.work();
    let is_full = |error: &Error| error.kind() == ErrorKind::Full;
    if options.thoroughness.rewrite && collected.as_ref().is_err_and(is_full) {
        pool.warn(
            "there is no room to rewrite packs, so only packs with nothing in use are deleted; free some \
             space and run another gc for the rest"
                .to_owned(),
        );
        let mut options = options.clone();
        options.thoroughness.rewrite = false;
        collected = Gc { pool, options: &options, packs, head: &mut head, pace }.work();
    }
    let collected = collected.map_err(|error| head.blame(pool, error));
    let closed = head.close(pool);
    let _ = pool.log().remove_before(&JobName::gc(), opened);
    drop(turn);
    let report = collected?;
    closed.map(|()| report)
}

/// Adds the dropped checkpoints to an error that came after them.
fn after(pool: &Pool, dropped: &[(&JobName, Vec<Epoch>)], error: Error) -> Error {
    let said = dropped.iter().filter_map(|(job, epochs)| match epochs[..] {
        [] => None,
        [epoch] => Some(format!("checkpoint {epoch} of job {job}")),
        [first, .., last] => {
            Some(format!("{} checkpoints ({first} to {last}) of job {job}", epochs.len()))
        }
    });
    let said = said.collect::<Vec<_>>().join(" and ");
    if said.is_empty() {
        return error;
    }
    error.context(format!(
        "dropped {said}, but the space is not freed yet; run `{}` once this is repaired",
        pool.command("gc", &[])
    ))
}

/// Returns the error for a pool in which another process collects.
pub fn busy(pool: &Pool) -> Error {
    Error::retry(format!(
        "another gc, prune or scrub is at work in {}: wait until it has ended, or end it, and try \
         again",
        pool.describe_targets()
    ))
}

/// Ends a job's session; its writer is fenced at its next save.
fn fence(pool: &Pool, job: &JobName) -> Result<()> {
    if pool.log().latest(job)? == 0 {
        return Err(Error::invalid(format!("there is no job {job}")));
    }
    let mut head = LogHead::new(job.clone());
    head.open(pool)?;
    head.close(pool)
}

impl Gc<'_> {
    fn work(&mut self) -> Result<GcReport> {
        // If a first try ran out of space, its packs are garbage like any other, unless a job's log
        // already names them.
        let own = (self.packs.session(), FirstPacks::of(&self.packs));
        let GcOptions { forget_damaged: forget, dry_run, .. } = *self.options;
        let mut survey = Survey::new(self.pool, own, forget)?;
        end_lost_sessions(self.pool, &mut survey, forget, dry_run)?;
        if dry_run {
            for (name, epochs) in &self.options.drop {
                let job = survey.jobs.iter().find(|job| job.name == *name);
                check_drop(name, job, epochs)?;
            }
        }
        let mut marks = Marks::new(self.pool, &survey.packs);
        for job in &survey.jobs {
            self.check_stop()?;
            marks.job(self.pool, job, &self.kept(job))?;
        }
        for job in &mut survey.jobs {
            job.hold_what_is_named(|pack| marks.is_named(pack));
        }
        let thoroughness = self.options.thoroughness;
        let written = packs_written(survey.jobs.iter().flat_map(|job| self.kept(job)));
        let mut plan = GcPlan::choose(self.pool, &survey, &marks, written, thoroughness);
        plan.dropped.clone_from(&self.options.drop);
        let mut report = GcReport { plan, ..GcReport::default() };
        if self.options.dry_run {
            return Ok(report);
        }
        let condemned = report.plan.condemned();
        let fills = FillSession::new(self.packs.session());
        let mut work =
            GcWork { marks, condemned, copied: Vec::new(), segments: HashMap::new(), fills };
        let rewritten = report.plan.rewritten.clone();
        report.damaged = self.copy_out(&rewritten, &mut work)?;
        self.store_together(&survey, &mut work)?;

        // From here on, jobs get reports.
        let mut is_outrun = false;
        let told = tell_all(self.pool, &mut |name, is_first| {
            self.check_stop()?;
            let known = survey.jobs.iter().find(|job| is_first && job.name == *name);
            self.tell(known, name, &mut work)?.ok_or_else(|| {
                is_outrun = self.gives_way_to(name);
                saves_too_fast(name)
            })
        });
        // A report condemns, and only a later gc that has told all jobs deletes.
        if is_outrun {
            report.collecting = Collecting::Outrun;
            return Ok(report);
        }
        let told = told?;
        self.delete(&survey, &work, &told, &mut report)?;
        Ok(report)
    }

    /// Returns the checkpoints that stay, newest first. Dropped ones are already gone from the log,
    /// except in a dry run.
    pub(super) fn kept<'m>(&self, job: &'m JobState) -> Vec<&'m Manifest> {
        let drop = self.options.drop.get(&job.name).filter(|_| self.options.dry_run);
        let stays = |m: &&Manifest| drop.is_none_or(|drop| !drop.contains(&m.epoch));
        job.manifests.iter().filter(stays).collect()
    }

    fn gives_way_to(&self, name: &JobName) -> bool {
        self.options.gives_way_to.as_ref() == Some(name)
    }

    /// Whether a job gets its report as an archive.
    pub(super) fn is_archived(&self, state: &JobState, work: &GcWork) -> bool {
        let kept = self.kept(state).len();
        let named = work.marks.named.get(&state.name);
        let long =
            state.records > RECORDS_MIN && state.records > RECORDS_PER_CHECKPOINT * (kept + 1);
        state.pruned
            || named.is_some_and(|named| !named.is_disjoint(&work.condemned))
            || long
            || state.damaged > 0
    }

    /// Reports the condemned packs to a job. The record is an archive if the job names one of them,
    /// has dropped checkpoints or has a long log; otherwise it is a sweep. Returns the job's state
    /// as of this record; `None` if its program was always first.
    ///
    /// A job without a session gets a report, too. No writer there needs it. But an earlier gc that
    /// does not know yet that it is fenced may have read that log, and its next append names packs
    /// that we took for garbage. Behind our record that append fails.
    fn tell(
        &mut self,
        known: Option<&JobState>,
        name: &JobName,
        work: &mut GcWork,
    ) -> Result<Option<JobState>> {
        let (pool, session) = (self.pool, self.packs.session());
        let mut marked = known.cloned();
        let attempts = if self.gives_way_to(name) { ATTEMPTS_BESIDE } else { ATTEMPTS };
        tell(pool, session, attempts, &mut || {
            let (state, surveyed) = match marked.take() {
                Some(state) => (state, true),
                None => {
                    // The job has saved meanwhile: mark its present needs as well.
                    let mut state = JobState::read(pool, name, self.options.forget_damaged)?;
                    work.marks.job(pool, &state, &self.kept(&state))?;
                    state.hold_what_is_named(|pack| work.marks.is_named(pack));
                    (state, false)
                }
            };
            let relisted = match self.is_archived(&state, work) {
                false => None,
                true => match work.segments.remove(name).filter(|_| surveyed) {
                    Some(relisted) => Some(relisted),
                    None => Some(self.store_late(&state, work)?),
                },
            };
            let mut anew: Vec<PackId> =
                work.condemned.iter().filter(|pack| !state.mentions(pack)).copied().collect();
            anew.sort_unstable();
            let archive = relisted.map(|relisted| {
                archive_of(session, &state, &self.kept(&state), &work.condemned, relisted)
            });
            if let Some(archive) = &archive {
                work.fills.fill(pool, archive, &work.condemned)?;
            }
            // After the reads: a later gc may have condemned our copies, and our record would
            // follow its report. Also after the last pack is stored: its target may have been
            // removed.
            self.head.check(pool)?;
            // Copies where a target was unmounted do not count, either.
            pool.check_markers()?;
            Ok((state, anew, archive))
        })
    }

    /// Deletes condemned packs that no open session can need, since every open one has released
    /// them.
    fn delete(
        &mut self,
        survey: &Survey,
        work: &GcWork,
        told: &BTreeMap<JobName, JobState>,
        report: &mut GcReport,
    ) -> Result<()> {
        let leftovers = || survey.unfinished.iter().filter(|p| is_leftover(survey, **p));
        let collect = self.options.thoroughness.collect;
        if work.condemned.is_empty() && (!collect || leftovers().count() == 0) {
            return Ok(());
        }
        // Records of others decide here, too; their writers may have died before the records were
        // durable.
        for name in told.keys() {
            self.pool.log().sync(name)?;
        }
        self.head.check(self.pool)?;
        self.pool.check_markers()?;
        if collect {
            // A pack that was finished after all is no leftover: an earlier gc, fenced since, may
            // have named it in a job's log.
            for pack in leftovers() {
                self.pool.delete_unfinished_pack(*pack)?;
            }
        }
        // A reader that begins after this finds all reports in the logs.
        report.is_read = self.pool.log().is_read()?;
        // In order, so that a run can be repeated.
        for pack in &work.condemned.iter().copied().collect::<BTreeSet<PackId>>() {
            let bytes = work.marks.packs.get(pack).map_or(0, |m| m.total_bytes);
            let mut holders = told.values().filter(|job| job.holds(pack)).peekable();
            if report.is_read || holders.peek().is_some() {
                report.held += 1;
                report.held_bytes += bytes;
                report.held_by.extend(holders.map(|job| (job.name.clone(), job.program())));
                continue;
            }
            self.pool.delete_pack(*pack)?;
            report.deleted += 1;
            report.deleted_bytes += bytes;
        }
        Ok(())
    }
}
