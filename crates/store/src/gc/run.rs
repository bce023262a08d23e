//! Carries a gc out. The order is the protocol (docs/design/009-gc.md): copy, make durable, tell
//! every job, then delete what nobody can need any more.

use super::mark::{Marks, live_entries, segments_of};
use super::plan::{GcPlan, Thoroughness, is_leftover};
use super::survey::{JobState, Survey};
use crate::commit::LogHead;
use crate::index::{Fingerprints, Locator, Part};
use crate::restore::{ReadPlan, Wanted};
use crate::save::{Packer, Squeezing, store_segments};
use outlive_format::{
    Archive, Body, Directory, DirectoryEntry, EntryKind, Manifest, Record, SegmentRef, Sweep,
    fingerprint,
};
use outlive_pool::{Place, Pool};
use outlive_target::{Append, ShardName};
use outlive_types::{
    Epoch, Error, ErrorKind, Event, Fingerprint, JobName, PackId, Progress, Result, SessionId,
};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a job is read again because its program has saved meanwhile.
const ATTEMPTS: usize = 64;
/// A log with more records than this for each checkpoint kept is made short.
const RECORDS_PER_CHECKPOINT: usize = 2;
/// Logs of fewer records are never worth it.
const RECORDS_MIN: usize = 32;
/// Packs' worth of bytes that are copied by one packer, which keeps their directories in memory.
const PACKS_PER_COPY: u64 = 16;
/// Memory for a fingerprint that was copied.
const SEEN_BYTES: u64 = 64;

/// What a gc is asked to do.
#[derive(Clone, Debug, Default)]
pub struct GcOptions {
    /// Checkpoints to drop, by job. The newest of a job goes only if all of it go.
    pub drop: BTreeMap<JobName, BTreeSet<Epoch>>,
    /// Jobs whose open session is ended: their program is gone, or must stop.
    pub fence: Vec<JobName>,
    /// How thorough it is.
    pub thoroughness: Thoroughness,
    /// Bytes a second that are copied at most; `None` for no limit.
    pub bytes_per_s: Option<u64>,
    /// Records that cannot be read are given up; otherwise they stop a gc, since nobody knows what
    /// they refer to.
    pub forget_damaged: bool,
    /// Only plan.
    pub dry_run: bool,
    /// Set it to end the gc early: what is done by then is right, and the next one goes on.
    pub stop: Arc<AtomicBool>,
}

/// What a gc did.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct GcReport {
    /// The plan it followed.
    pub plan: GcPlan,
    /// Packs deleted.
    pub deleted: usize,
    /// Bytes of their containers.
    pub deleted_bytes: u64,
    /// Condemned packs that must wait.
    pub held: usize,
    /// Jobs whose open session they wait for.
    pub held_by: BTreeSet<JobName>,
    /// Chunks in use that could not be read: their packs stay.
    pub damaged: Vec<String>,
}

/// Plans, and unless it is a dry run, carries out a gc.
///
/// # Errors
/// `Damaged` if a log or checkpoint cannot be read, so that nobody knows what it needs; `Fenced` if
/// another gc has begun; `Invalid` for checkpoints that cannot be dropped; what target and log
/// report. Whatever had been done by then is right, and the next gc finishes it.
pub fn collect(pool: &Pool, options: &GcOptions) -> Result<GcReport> {
    if options.dry_run {
        // Nobody need know.
        let (session, mut head) = (SessionId([0xFF; 12]), LogHead::new(JobName::gc()));
        return Gc { pool, options, session, head: &mut head, next_pack: 0 }.run(&mut 0);
    }
    let mut head = LogHead::new(JobName::gc());
    let (session, _) = head.open(pool)?;
    // The record by which an earlier gc, should it still be at work, learns that it is fenced.
    let opened = head.number();
    let mut next_pack = 0;
    let mut collected =
        Gc { pool, options, session, head: &mut head, next_pack }.run(&mut next_pack);
    let is_full = |error: &Error| error.kind() == ErrorKind::Full;
    if options.thoroughness.rewrite && collected.as_ref().is_err_and(is_full) {
        pool.warn(
            "there is no room to rewrite packs: only those go of which nothing is in use; another gc \
             can do the rest"
                .to_owned(),
        );
        let mut options = options.clone();
        options.thoroughness.rewrite = false;
        let gc = Gc { pool, options: &options, session, head: &mut head, next_pack };
        collected = gc.run(&mut next_pack);
    }
    let closed = head.close(pool);
    let _ = pool.log().remove_before(&JobName::gc(), opened);
    let report = collected?;
    closed.map(|()| report)
}

struct Gc<'a> {
    pool: &'a Pool,
    options: &'a GcOptions,
    session: SessionId,
    head: &'a mut LogHead,
    next_pack: u32,
}

/// What a gc knows and has done by the time that jobs are told.
struct Work {
    marks: Marks,
    condemned: HashSet<PackId>,
    /// The directories of the packs that condemned entries were copied to.
    copied: Vec<SegmentRef>,
    /// New segments of jobs that need them, stored together.
    segments: HashMap<JobName, Vec<SegmentRef>>,
}

impl Gc<'_> {
    fn check_stop(&self) -> Result<()> {
        match self.options.stop.load(Ordering::Relaxed) {
            true => Err(Error::retry("stopped on request; another gc goes on from here")),
            false => Ok(()),
        }
    }

    /// Answers in `next_pack` the number of the next pack, however it ends.
    fn run(mut self, next_pack: &mut u32) -> Result<GcReport> {
        let done = self.work();
        *next_pack = self.next_pack;
        done
    }

    fn work(&mut self) -> Result<GcReport> {
        if !self.options.dry_run {
            self.options.fence.iter().try_for_each(|job| self.fence(job))?;
        }
        let mut survey = Survey::new(self.pool, self.session, self.options.forget_damaged)?;
        self.check_drops(&survey)?;
        let mut marks = Marks::new(self.pool, &survey.packs);
        for job in &survey.jobs {
            self.check_stop()?;
            marks.job(self.pool, job, &self.kept(job))?;
        }
        for job in &mut survey.jobs {
            job.hold_what_is_named(&marks);
        }
        let pack_bytes = self.pool.config().format.pack_bytes;
        let mut plan = GcPlan::choose(&survey, &marks, pack_bytes, self.options.thoroughness);
        plan.dropped.clone_from(&self.options.drop);
        let mut report = GcReport { plan, ..GcReport::default() };
        if self.options.dry_run {
            return Ok(report);
        }
        let condemned = report.plan.condemned();
        let mut work = Work { marks, condemned, copied: Vec::new(), segments: HashMap::new() };
        let rewritten = report.plan.rewritten.clone();
        report.damaged = self.copy_out(&rewritten, &mut work)?;
        self.store_together(&survey, &mut work)?;

        // From here on jobs are told, each by a record right behind what was read of it.
        let mut told: BTreeMap<JobName, JobState> = BTreeMap::new();
        loop {
            let mut news = false;
            for name in self.pool.jobs()? {
                let known = match told.get(&name) {
                    // A session that begins now may have read other logs before they were told; one
                    // that was open then has been told, whatever it does now.
                    Some(state) if state.is_open() => continue,
                    Some(state) if self.pool.log().latest(&name)? == state.number => continue,
                    Some(_) => None,
                    None => survey.jobs.iter().find(|job| job.name == name),
                };
                news = true;
                self.check_stop()?;
                let state = self.tell(known, &name, &mut work)?;
                told.insert(name, state);
            }
            // Jobs that appeared or began while others were told are told, too.
            if !news {
                break;
            }
        }
        self.delete(&survey, &work, &told, &mut report)?;
        Ok(report)
    }

    /// The checkpoints that stay, newest first.
    fn kept<'m>(&self, job: &'m JobState) -> Vec<&'m Manifest> {
        let drop = self.options.drop.get(&job.name);
        let stays = |m: &&Manifest| drop.is_none_or(|drop| !drop.contains(&m.epoch));
        job.manifests.iter().filter(stays).collect()
    }

    fn check_drops(&self, survey: &Survey) -> Result<()> {
        for (name, epochs) in &self.options.drop {
            let Some(job) = survey.jobs.iter().find(|job| job.name == *name) else {
                return Err(Error::invalid(format!("there is no job {name}")));
            };
            let newest = job.manifests.first().map(|manifest| manifest.epoch);
            if newest.is_some_and(|newest| epochs.contains(&newest)) && job.is_open() {
                return Err(Error::invalid(format!(
                    "the newest checkpoint of job {name} cannot go while its program may still save: \
                     end the program, or shut it out with --fence"
                )));
            }
        }
        Ok(())
    }

    /// Ends a job's session: whoever holds it is fenced at its next save.
    fn fence(&self, job: &JobName) -> Result<()> {
        if self.pool.log().latest(job)? == 0 {
            return Err(Error::invalid(format!("there is no job {job}")));
        }
        let mut head = LogHead::new(job.clone());
        head.open(self.pool)?;
        head.close(self.pool)
    }

    /// Copies what is in use of packs that go, each chunk once. A pack with a damaged one stays after
    /// all: what is left may still be mended. The faults are answered.
    fn copy_out(&mut self, packs: &[PackId], work: &mut Work) -> Result<Vec<String>> {
        let group_bytes = PACKS_PER_COPY * self.pool.config().format.pack_bytes;
        let seen_max = self.pool.config().tuning.index_bytes_max / SEEN_BYTES;
        let mut seen = Fingerprints::default();
        let mut faults = Vec::new();
        let (mut group, mut bytes) = (Vec::new(), 0);
        for (at, pack) in packs.iter().enumerate() {
            group.push(*pack);
            bytes += work.marks.packs.get(pack).map_or(0, |marks| marks.live_bytes);
            if bytes < group_bytes && at + 1 < packs.len() {
                continue;
            }
            let mut live = self.live_of(&group, &work.marks)?;
            live.retain(|(_, wanted)| seen.insert(wanted.fp));
            faults.extend(self.copy(&live, &mut work.copied)?);
            // One that is copied again beyond this is dead at once, and goes with the next gc.
            if seen.len() as u64 > seen_max {
                seen.clear();
            }
            (group, bytes) = (Vec::new(), 0);
        }
        if !faults.is_empty() {
            let lost: HashSet<Fingerprint> = faults.iter().map(|(wanted, _)| wanted.fp).collect();
            for pack in packs {
                let live = self.live_of(&[*pack], &work.marks)?;
                if live.iter().any(|(_, wanted)| lost.contains(&wanted.fp)) {
                    work.condemned.remove(pack);
                }
            }
        }
        Ok(faults.into_iter().map(|(_, error)| error.to_string()).collect())
    }

    /// Entries in use of some packs, nodes last.
    fn live_of(&self, packs: &[PackId], marks: &Marks) -> Result<Vec<(EntryKind, Wanted)>> {
        let mut live = Vec::new();
        for pack in packs {
            let (directory, _) = self.pool.directory_of(*pack)?;
            for entry in &directory.entries {
                if entry.kind != EntryKind::Segment && marks.is_live(pack, entry) {
                    live.push((entry.kind, Wanted { fp: entry.fp, place: place(*pack, entry) }));
                }
            }
        }
        live.sort_by_key(|(kind, wanted)| (*kind, wanted.place));
        Ok(live)
    }

    /// Copies entries to packs of our own, in container order, and notes these packs' directories.
    /// Answers those that are damaged.
    fn copy(
        &mut self,
        live: &[(EntryKind, Wanted)],
        copied: &mut Vec<SegmentRef>,
    ) -> Result<Vec<(Wanted, Error)>> {
        let split = live.partition_point(|(kind, _)| *kind == EntryKind::Chunk);
        let total_bytes: u64 = live.iter().map(|(_, w)| u64::from(w.place.length)).sum();
        let pool = self.pool;
        let packer = Packer::new(pool, self.session, self.next_pack, total_bytes);
        let (started, mut done_bytes) = (Instant::now(), 0);
        let limit = self.options.bytes_per_s;
        let mut pace = |bytes: &[u8]| {
            done_bytes += bytes.len() as u64;
            let event = Progress { what: "copy", done_bytes, total_bytes };
            pool.env().observer.event(Event::Progress(event));
            if let Some(limit) = limit {
                let due = Duration::from_secs_f64(done_bytes as f64 / limit.max(1) as f64);
                std::thread::sleep(due.saturating_sub(started.elapsed()));
            }
        };
        let mut damaged = Vec::new();
        let mut fail = None;
        let mut lane = packer.lane();
        for (part, is_node) in [(&live[..split], false), (&live[split..], true)] {
            let wanted: Vec<Wanted> = part.iter().map(|(_, wanted)| *wanted).collect();
            let sink = Mutex::new((&mut lane, &mut pace, &mut fail));
            let take = |at: usize, bytes: &[u8]| {
                let mut sink = sink.lock().unwrap_or_else(PoisonError::into_inner);
                let (lane, pace, fail) = &mut *sink;
                self.check_stop().inspect_err(|error| **fail = Some(error.clone()))?;
                pace(bytes);
                let fp = wanted[at].fp;
                let stored = match is_node {
                    true => packer.append(bytes, fp, EntryKind::Node).map(|_| ()),
                    false => {
                        let codec = wanted[at].place.frame.map(|frame| frame.codec);
                        lane.set_squeezing(Squeezing::as_before(pool.config(), codec))
                            .and_then(|()| lane.append(bytes, fp))
                    }
                };
                // What fails here is our writing, not the pack that is read.
                stored.inspect_err(|error| **fail = Some(error.clone()))
            };
            let faults = ReadPlan::new(pool, &wanted).execute(pool, 1, true, &take);
            damaged.extend(faults.into_iter().map(|f| (wanted[f.wanted], f.error)));
            if !is_node {
                let full = std::mem::replace(&mut lane, packer.lane());
                full.finish()?;
                packer.join_lanes()?;
            }
        }
        drop(lane);
        if let Some(error) = fail {
            return Err(error);
        }
        let packed = packer.close()?;
        self.next_pack = packer.next_pack();
        copied.extend(packed.own);
        Ok(damaged)
    }

    /// Stores the new segments of all jobs that will need them, in one go: a pack for each of many
    /// jobs would be many small packs.
    fn store_together(&mut self, survey: &Survey, work: &mut Work) -> Result<()> {
        let jobs: Vec<&JobState> =
            survey.jobs.iter().filter(|job| self.is_archived(job, work)).collect();
        let expected: u64 = jobs
            .iter()
            .flat_map(|job| segments_of(&self.kept(job)))
            .map(|segment| u64::from(segment.length))
            .sum();
        let packer = Packer::new(self.pool, self.session, self.next_pack, expected);
        for job in jobs {
            let segments = self.list(&self.kept(job), work, &packer)?;
            work.segments.insert(job.name.clone(), segments);
        }
        packer.close()?;
        self.next_pack = packer.next_pack();
        Ok(())
    }

    /// Whether a job is told by an archive.
    fn is_archived(&self, state: &JobState, work: &Work) -> bool {
        let kept = self.kept(state).len();
        let named = work.marks.named.get(&state.name);
        let long =
            state.records > RECORDS_MIN && state.records > RECORDS_PER_CHECKPOINT * (kept + 1);
        kept < state.manifests.len()
            || named.is_some_and(|named| !named.is_disjoint(&work.condemned))
            || long
            || state.damaged > 0
    }

    /// Tells a job what is condemned: by an archive if it names any of it, or has something dropped
    /// or much to be made short; by a sweep otherwise. Answers the job's state as it was told.
    ///
    /// A job without a session is told as well. Nobody at work there needs to know; but an earlier
    /// gc that was fenced and does not know it yet has read that log, too, and what it would append
    /// now names packs that we took for garbage. Behind our record its append is lost.
    fn tell(
        &mut self,
        known: Option<&JobState>,
        name: &JobName,
        work: &mut Work,
    ) -> Result<JobState> {
        let mut marked = known.cloned();
        for _ in 0..ATTEMPTS {
            self.head.check(self.pool)?;
            let (mut state, surveyed) = match marked.take() {
                Some(state) => (state, true),
                None => {
                    // It has saved meanwhile: what it needs now is marked as well.
                    let mut state = JobState::read(self.pool, name, self.options.forget_damaged)?;
                    work.marks.job(self.pool, &state, &self.kept(&state))?;
                    state.hold_what_is_named(&work.marks);
                    (state, false)
                }
            };
            let mut anew: Vec<PackId> =
                work.condemned.iter().filter(|pack| !state.mentions(pack)).copied().collect();
            anew.sort_unstable();
            let body = if self.is_archived(&state, work) {
                let stored = work.segments.remove(name).filter(|_| surveyed);
                let segments = match stored {
                    Some(segments) => segments,
                    None => self.store_late(&self.kept(&state), work)?,
                };
                let kept = self.kept(&state);
                Body::Archive(archive_of(self.session, &state, &kept, anew.clone(), segments))
            } else if anew.is_empty() {
                return Ok(state);
            } else {
                Body::Sweep(Sweep { gc: self.session, packs: anew.clone() })
            };
            if append_behind(self.pool, &mut state, body)? {
                state.held.extend(anew);
                return Ok(state);
            }
        }
        Err(Error::retry(format!("job {name} saves faster than it can be told: try again later")))
    }

    /// Stores the segments of a job that was not as surveyed, and before that copies what it has come
    /// to need of condemned packs.
    fn store_late(&mut self, kept: &[&Manifest], work: &mut Work) -> Result<Vec<SegmentRef>> {
        let segments = segments_of(kept);
        for part in self.parts(&segments) {
            let live = live_entries(self.pool, &work.marks, &segments, part)?;
            let copied = self.copied(work, part)?;
            let is_late = |(entry, pack): &&(DirectoryEntry, PackId)| {
                work.condemned.contains(pack) && copied.find(&entry.fp).is_err()
            };
            let mut late: Vec<(EntryKind, Wanted)> = live
                .iter()
                .filter(is_late)
                .map(|(e, pack)| (e.kind, Wanted { fp: e.fp, place: place(*pack, e) }))
                .collect();
            if late.is_empty() {
                continue;
            }
            late.sort_by_key(|(kind, wanted)| (*kind, wanted.place));
            if let Some((_, error)) = self.copy(&late, &mut work.copied)?.into_iter().next() {
                return Err(error.context("copying what a save came to need meanwhile"));
            }
        }
        let expected_bytes = segments.iter().map(|s| u64::from(s.length)).sum();
        let packer = Packer::new(self.pool, self.session, self.next_pack, expected_bytes);
        let stored = self.list(kept, work, &packer)?;
        packer.close()?;
        self.next_pack = packer.next_pack();
        Ok(stored)
    }

    /// Stores one set of segments for some checkpoints, with new places for what was copied.
    fn list(
        &self,
        kept: &[&Manifest],
        work: &Work,
        packer: &Packer<'_>,
    ) -> Result<Vec<SegmentRef>> {
        let segments = segments_of(kept);
        let mut stored = Vec::new();
        for part in self.parts(&segments) {
            let copied = self.copied(work, part)?;
            let mut packs: Vec<PackId> = Vec::new();
            let mut numbers: HashMap<PackId, u32> = HashMap::new();
            let mut entries = Vec::new();
            for (entry, pack) in live_entries(self.pool, &work.marks, &segments, part)? {
                let now = match work.condemned.contains(&pack) {
                    true => copied.find(&entry.fp).map_err(|_| {
                        Error::bug(format!("{:?} was condemned and not copied", entry.fp))
                    })?,
                    false => place(pack, &entry),
                };
                let pack = *numbers.entry(now.pack).or_insert_with(|| {
                    packs.push(now.pack);
                    packs.len() as u32 - 1
                });
                let Place { offset, length, frame, .. } = now;
                entries.push(DirectoryEntry { pack, offset, length, frame, ..entry });
            }
            if !entries.is_empty() {
                let part = store_segments(self.pool, packer, Directory::new(packs, entries))?;
                stored.extend(part.into_iter().map(|(segment, _)| segment));
            }
        }
        Ok(stored)
    }

    fn parts(&self, segments: &[SegmentRef]) -> Vec<Part> {
        Part::of(segments, self.pool.config().tuning.index_bytes_max)
    }

    /// Where the copied entries of a part are now.
    fn copied(&self, work: &Work, part: Part) -> Result<Locator> {
        Locator::load_where(self.pool, &work.copied, |entry| part.holds(&entry.fp))
    }

    /// Deletes condemned packs that no open session can need: those that every open one has let go.
    fn delete(
        &mut self,
        survey: &Survey,
        work: &Work,
        told: &BTreeMap<JobName, JobState>,
        report: &mut GcReport,
    ) -> Result<()> {
        let leftovers = || survey.unfinished.iter().filter(|s| is_leftover(survey, s.pack));
        let collect = self.options.thoroughness.collect;
        if work.condemned.is_empty() && (!collect || leftovers().count() == 0) {
            return Ok(());
        }
        // What others have appended, and may have died before it was durable, decides here, too.
        for name in told.keys() {
            self.pool.log().sync(name)?;
        }
        self.head.check(self.pool)?;
        if collect {
            for shard in leftovers() {
                self.pool.target().delete(*shard)?;
            }
        }
        for pack in &work.condemned {
            let mut holders = told.values().filter(|job| job.holds(pack)).peekable();
            if holders.peek().is_some() {
                report.held += 1;
                report.held_by.extend(holders.map(|job| job.name.clone()));
                continue;
            }
            self.pool.target().delete(ShardName { pack: *pack, shard: 0 })?;
            report.deleted += 1;
            report.deleted_bytes += work.marks.packs.get(pack).map_or(0, |m| m.total_bytes);
        }
        Ok(())
    }
}

/// Appends a record right behind what was read; an archive twice. False if somebody else was
/// faster.
///
/// # Errors
/// What the log reports.
pub fn append_behind(pool: &Pool, state: &mut JobState, body: Body) -> Result<bool> {
    let (log, name) = (pool.log(), &state.name);
    let is_archive = matches!(body, Body::Archive(_));
    let record = Record { number: state.number + 1, previous: state.fp, body };
    let bytes = record.encode()?;
    if log.append_if(name, state.number, &bytes)? == Append::Lost {
        return Ok(false);
    }
    (state.number, state.fp) = (state.number + 1, fingerprint(&bytes));
    if is_archive {
        let first = state.number;
        let again = Record { number: first + 1, previous: state.fp, ..record };
        // Everything older hangs on this record, so there are two of it.
        let bytes = again.encode()?;
        if log.append_if(name, first, &bytes)? == Append::Done {
            (state.number, state.fp) = (first + 1, fingerprint(&bytes));
            log.remove_before(name, first)?;
        }
    }
    Ok(true)
}

/// The archive of a job that keeps some of its checkpoints, in place of all its records. `anew` is
/// condemned now.
pub fn archive_of(
    gc: SessionId,
    state: &JobState,
    kept: &[&Manifest],
    anew: Vec<PackId>,
    segments: Vec<SegmentRef>,
) -> Archive {
    let mut condemned = anew;
    if state.is_open() {
        // What its writer has not answered yet stays said.
        condemned.extend(&state.held);
        condemned.sort_unstable();
        condemned.dedup();
    }
    let kept = || kept.iter().rev();
    Archive {
        gc,
        session: state.session.clone(),
        last_epoch: state.last_epoch,
        condemned,
        segments,
        hurt: kept().map(|m| m.epoch).filter(|epoch| state.hurt.contains(epoch)).collect(),
        manifests: kept().map(|m| Manifest { segments: Vec::new(), ..(*m).clone() }).collect(),
    }
}

fn place(pack: PackId, entry: &DirectoryEntry) -> Place {
    Place { pack, offset: entry.offset, length: entry.length, frame: entry.frame }
}
