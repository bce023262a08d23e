//! Carries a gc out. The order is the protocol (docs/design/009-gc.md): copy, make durable, tell
//! every job, then delete what nobody can need any more.

use super::mark::{Marks, live_entries, segments_of};
use super::plan::{GcPlan, Thoroughness, is_leftover};
use super::survey::{JobState, Survey};
use crate::commit::LogHead;
use crate::restore::{ReadPlan, Wanted};
use crate::save::{Packer, store_segments};
use outlive_format::{
    Archive, Body, Directory, DirectoryEntry, EntryKind, Manifest, Record, SegmentRef, Sweep,
    fingerprint,
};
use outlive_pool::{Place, Pool};
use outlive_target::{Append, ShardName};
use outlive_types::{
    Epoch, Error, Event, Fingerprint, JobName, PackId, Progress, Result, SessionId,
};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// How often a job is read again because its program has saved meanwhile.
const ATTEMPTS: usize = 64;
/// A log with more records than this for each checkpoint kept is made short.
const RECORDS_PER_CHECKPOINT: usize = 2;
/// Logs of fewer records are never worth it.
const RECORDS_MIN: usize = 32;

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
        return Gc { pool, options, session, head: &mut head, next_pack: 0 }.run();
    }
    let mut head = LogHead::new(JobName::gc());
    let (session, _) = head.open(pool)?;
    let collected = Gc { pool, options, session, head: &mut head, next_pack: 0 }.run();
    let closed = head.close(pool);
    let _ = pool.log().remove_before(&JobName::gc(), head.number());
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

/// What has been copied, and where to.
type Moved = HashMap<Fingerprint, Place>;

impl Gc<'_> {
    fn run(mut self) -> Result<GcReport> {
        if !self.options.dry_run {
            self.options.fence.iter().try_for_each(|job| self.fence(job))?;
        }
        let mut survey = Survey::new(self.pool, self.session, self.options.forget_damaged)?;
        self.check_drops(&survey)?;
        let mut marks = Marks::new(self.pool, &survey.packs);
        for job in &survey.jobs {
            marks.job(self.pool, job, &self.kept(job))?;
        }
        // What is named again was not let go for good.
        let named: HashSet<PackId> = marks.named.values().flatten().copied().collect();
        for job in &mut survey.jobs {
            job.released.retain(|pack| !named.contains(pack));
        }
        let pack_bytes = self.pool.config().format.pack_bytes;
        let mut plan = GcPlan::choose(&survey, &marks, pack_bytes, self.options.thoroughness);
        plan.dropped.clone_from(&self.options.drop);
        let mut report = GcReport { plan, ..GcReport::default() };
        if self.options.dry_run {
            return Ok(report);
        }
        let mut condemned = report.plan.condemned();
        let mut moved = Moved::new();
        let rewritten = report.plan.rewritten.clone();
        let wanted = self.live_of(&rewritten, &marks)?;
        for (pack, error) in self.copy(&wanted, &mut moved)? {
            condemned.remove(&pack);
            report.damaged.push(error.to_string());
        }

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
                let state = self.tell(known, &name, &mut marks, &condemned, &mut moved)?;
                told.insert(name, state);
            }
            // Jobs that appeared or began while others were told are told, too.
            if !news {
                break;
            }
        }
        self.delete(&survey, &marks, &condemned, &told, &mut report)?;
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

    /// Copies entries to packs of our own, in container order, and notes where they are now.
    /// Answers the packs of those that are damaged.
    fn copy(
        &mut self,
        live: &[(EntryKind, Wanted)],
        moved: &mut Moved,
    ) -> Result<Vec<(PackId, Error)>> {
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
                pace(bytes);
                let fp = wanted[at].fp;
                let stored = match is_node {
                    true => packer.append(bytes, fp, EntryKind::Node).map(|_| ()),
                    false => lane.append(bytes, fp),
                };
                // What fails here is our writing, not the pack that is read.
                stored.inspect_err(|error| **fail = Some(error.clone()))
            };
            let faults = ReadPlan::new(pool, &wanted).execute(pool, 1, true, &take);
            damaged.extend(faults.into_iter().map(|f| (wanted[f.wanted].place.pack, f.error)));
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
        self.next_pack = packed.next_pack;
        for segment in &packed.own {
            let directory = crate::index::read_segment(pool, segment)?;
            for entry in &directory.entries {
                moved.insert(entry.fp, place(segment.pack, entry));
            }
        }
        // A pack with one damaged chunk stays whole: what is left may still be mended.
        Ok(damaged)
    }

    /// Tells a job what is condemned: by an archive if it names any of it, or has something dropped
    /// or much to be made short; by a sweep otherwise. Answers the job's state as it was told.
    fn tell(
        &mut self,
        known: Option<&JobState>,
        name: &JobName,
        marks: &mut Marks,
        condemned: &HashSet<PackId>,
        moved: &mut Moved,
    ) -> Result<JobState> {
        let mut state = match known {
            Some(known) => known.clone(),
            None => JobState::read(self.pool, name, self.options.forget_damaged)?,
        };
        let mut marked = known.is_some();
        for _ in 0..ATTEMPTS {
            self.head.check(self.pool)?;
            if !marked {
                // It has saved meanwhile: what it needs now is marked as well.
                marks.job(self.pool, &state, &self.kept(&state))?;
            }
            let dropped = self.kept(&state).len() < state.manifests.len();
            let named = marks.named.get(name).is_some_and(|named| !named.is_disjoint(condemned));
            let long = state.records > RECORDS_MIN
                && state.records > RECORDS_PER_CHECKPOINT * (self.kept(&state).len() + 1);
            let archive = dropped || named || long || state.damaged > 0;
            // What an earlier gc had condemned, and this writer has let go, need not be said again.
            let anew: Vec<PackId> =
                condemned.iter().filter(|pack| state.holds(pack)).copied().collect();
            if !archive && (anew.is_empty() || !state.is_open()) {
                return Ok(state);
            }
            let body = match archive {
                true => Body::Archive(self.archive(&state, marks, condemned, moved)?),
                false => Body::Sweep(Sweep { gc: self.session, packs: anew }),
            };
            if self.append(&mut state, body)? {
                return Ok(state);
            }
            let released = std::mem::take(&mut state.released);
            state = JobState::read(self.pool, name, self.options.forget_damaged)?;
            state.released.retain(|pack| released.contains(pack));
            marked = false;
        }
        Err(Error::retry(format!("job {name} saves faster than it can be told: try again later")))
    }

    /// Appends a record right behind what was read; an archive twice. False if somebody else was
    /// faster.
    fn append(&self, state: &mut JobState, body: Body) -> Result<bool> {
        let (log, name) = (self.pool.log(), &state.name);
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

    /// Copies what is in use of condemned packs and was not when they were chosen: a job has saved
    /// meanwhile.
    fn copy_late(
        &mut self,
        live: &[(DirectoryEntry, PackId)],
        condemned: &HashSet<PackId>,
        moved: &mut Moved,
    ) -> Result<()> {
        let mut late: Vec<(EntryKind, Wanted)> = live
            .iter()
            .filter(|(entry, pack)| condemned.contains(pack) && !moved.contains_key(&entry.fp))
            .map(|(entry, pack)| (entry.kind, Wanted { fp: entry.fp, place: place(*pack, entry) }))
            .collect();
        if late.is_empty() {
            return Ok(());
        }
        late.sort_by_key(|(kind, wanted)| (*kind, wanted.place));
        match self.copy(&late, moved)?.into_iter().next() {
            None => Ok(()),
            Some((_, error)) => Err(error.context("copying what a save came to need meanwhile")),
        }
    }

    /// The archive of a job: its kept checkpoints, and one set of segments with new places.
    fn archive(
        &mut self,
        state: &JobState,
        marks: &Marks,
        condemned: &HashSet<PackId>,
        moved: &mut Moved,
    ) -> Result<Archive> {
        let kept = self.kept(state);
        let mut packs: Vec<PackId> = Vec::new();
        let mut numbers: HashMap<PackId, u32> = HashMap::new();
        let mut entries = Vec::new();
        let live = live_entries(self.pool, marks, &segments_of(&kept))?;
        self.copy_late(&live, condemned, moved)?;
        for (entry, pack) in live {
            let now = match (condemned.contains(&pack), moved.get(&entry.fp)) {
                (true, Some(place)) => *place,
                (true, None) => {
                    return Err(Error::bug(format!("{:?} was condemned and not copied", entry.fp)));
                }
                (false, _) => place(pack, &entry),
            };
            let pack = *numbers.entry(now.pack).or_insert_with(|| {
                packs.push(now.pack);
                packs.len() as u32 - 1
            });
            let Place { offset, length, frame, .. } = now;
            entries.push(DirectoryEntry {
                fp: entry.fp,
                pack,
                offset,
                length,
                kind: entry.kind,
                frame,
            });
        }
        let segments = self.store(Directory::new(packs, entries))?;
        let kept = kept.into_iter().rev();
        Ok(Archive {
            gc: self.session,
            session: state.session.clone(),
            last_epoch: state.last_epoch,
            condemned: condemned.iter().filter(|pack| state.holds(pack)).copied().collect(),
            segments,
            manifests: kept.map(|m| Manifest { segments: Vec::new(), ..m.clone() }).collect(),
        })
    }

    fn store(&mut self, directory: Directory) -> Result<Vec<SegmentRef>> {
        if directory.entries.is_empty() {
            return Ok(Vec::new());
        }
        let expected_bytes = directory.encoded_len() as u64;
        let packer = Packer::new(self.pool, self.session, self.next_pack, expected_bytes);
        let stored = store_segments(self.pool, &packer, directory)?;
        self.next_pack = packer.close()?.next_pack;
        Ok(stored.into_iter().map(|(segment, _)| segment).collect())
    }

    /// Deletes condemned packs that no open session can need: those that every open one has let go.
    fn delete(
        &mut self,
        survey: &Survey,
        marks: &Marks,
        condemned: &HashSet<PackId>,
        told: &BTreeMap<JobName, JobState>,
        report: &mut GcReport,
    ) -> Result<()> {
        self.head.check(self.pool)?;
        if self.options.thoroughness.collect {
            for shard in survey.unfinished.iter().filter(|shard| is_leftover(survey, shard.pack)) {
                self.pool.target().delete(*shard)?;
            }
        }
        for pack in condemned {
            let mut holders = told.values().filter(|job| job.holds(pack)).peekable();
            if holders.peek().is_some() {
                report.held += 1;
                report.held_by.extend(holders.map(|job| job.name.clone()));
                continue;
            }
            self.pool.target().delete(ShardName { pack: *pack, shard: 0 })?;
            report.deleted += 1;
            report.deleted_bytes += marks.packs.get(pack).map_or(0, |marks| marks.total_bytes);
        }
        Ok(())
    }
}

fn place(pack: PackId, entry: &DirectoryEntry) -> Place {
    Place { pack, offset: entry.offset, length: entry.length, frame: entry.frame }
}
