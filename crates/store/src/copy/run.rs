//! Carries a copy out: epoch by epoch, oldest first, each committed before the next is begun. So
//! whenever it is stopped, the next run goes on behind what is committed.

use super::needs::{NodeSet, needs};
use super::plan::{CopyOptions, CopyPlan, JobCopy, plan, plan_job};
use super::store::{Store, elsewhere};
use crate::Job;
use crate::anew::make_anew;
use crate::commit::Changes;
use crate::gc::JobState;
use crate::images::only_image;
use crate::index::ReadItem;
use crate::index::{Fingerprints, LentSegment, Locator, SharedChunks};
use crate::read::AnyImage;
use crate::read::files::FilesImage;
use crate::read::{Kind, Select, first_manifest};
use crate::save::{
    Base, ChunkSink, NewImage, PackNumbers, Packer, ReusedChunks, SaveStats, Writer,
};
use outlive_format::{Image, ImageRef, Manifest, SegmentRef};
use outlive_io::Pace;
use outlive_pool::Pool;
use outlive_types::{Epoch, Error, ErrorKind, JobName, Result};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// How often an epoch is sent anew because its base there was pruned meanwhile.
const ATTEMPTS: usize = 4;

/// A checkpoint that was copied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Copied {
    /// Its epoch.
    pub epoch: Epoch,
    /// Bytes of chunks that were read and sent.
    pub sent_bytes: u64,
    /// Bytes of chunks that were looked for and found there.
    pub found_bytes: u64,
    /// Bytes written there: data, nodes, directories, padding, manifest.
    pub new_bytes: u64,
}

/// What was done about a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobCopied {
    /// What was planned.
    pub plan: JobCopy,
    /// Checkpoints copied.
    pub copied: Vec<Copied>,
    /// Checkpoints that are damaged, and were left out.
    pub damaged: Vec<(Epoch, Error)>,
    /// Checkpoints that were dropped before it was their turn.
    pub gone: Vec<Epoch>,
    /// Why no more of it was copied, though others were: the two jobs are not one history, or
    /// another writer has taken over the one there.
    pub refused: Option<Error>,
}

impl JobCopied {
    fn new(plan: JobCopy) -> JobCopied {
        let (copied, damaged, gone) = Default::default();
        JobCopied { plan, copied, damaged, gone, refused: None }
    }

    fn refused(from: &JobName, options: &CopyOptions, why: Error) -> JobCopied {
        let plan = JobCopy::new(from, options.rename.as_ref().unwrap_or(from));
        JobCopied { refused: Some(why), ..JobCopied::new(plan) }
    }
}

/// What a copy did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CopyReport {
    /// One for each job.
    pub jobs: Vec<JobCopied>,
}

impl CopyReport {
    /// What a plan amounts to before anything is done.
    pub fn planned(plan: CopyPlan, options: &CopyOptions) -> CopyReport {
        let refused = |(job, why): (JobName, Error)| JobCopied::refused(&job, options, why);
        let mut jobs: Vec<JobCopied> = plan.jobs.into_iter().map(JobCopied::new).collect();
        jobs.extend(plan.refused.into_iter().map(refused));
        jobs.sort_by(|a, b| a.plan.from.cmp(&b.plan.from));
        CopyReport { jobs }
    }

    /// True if nothing that was asked for is damaged.
    pub fn is_whole(&self) -> bool {
        self.jobs.iter().all(|job| job.damaged.is_empty() && job.plan.unreadable == 0)
    }

    /// Why the first job that was refused was.
    pub fn refused(&self) -> Option<&Error> {
        self.jobs.iter().find_map(|job| job.refused.as_ref())
    }
}

/// Copies checkpoints. Every byte is verified on the way; what is damaged is left out and told. The
/// jobs there are fenced as by any save; one that needs nothing is not touched. Of several jobs, one
/// that is refused or taken over is told in the report, and the others are copied.
///
/// # Errors
/// As [`plan()`]; `Fenced` if another writer takes the only job over; what the target reports. What
/// was committed until then stays, and another run goes on behind it.
pub fn copy(from: &Pool, to: &Pool, options: &CopyOptions) -> Result<CopyReport> {
    let pace = Pace::new(options.bytes_per_s);
    let mut report = CopyReport::planned(plan(from, to, options)?, options);
    let is_one = report.jobs.len() == 1;
    for done in &mut report.jobs {
        if !done.plan.copied.is_empty() {
            let job = Job::open(to, done.plan.to.as_str(), Default::default())?;
            let copied = job.wait_for_turn(|inner| {
                let name = done.plan.from.clone();
                let mut writer = inner.writer();
                let writer = &mut *writer;
                let (base, locator, fault) = Default::default();
                let mut copier =
                    Copier { from, to, name, writer, pace: &pace, base, locator, fault };
                copier.run(options, done)
            });
            let closed = job.close();
            match copied {
                Err(error) if is_about_one_job(&error) && !is_one => done.refused = Some(error),
                copied => copied.and(closed)?,
            }
        }
    }
    Ok(report)
}

/// Whether other jobs can be copied all the same. What the system refuses may hold for all of them.
fn is_about_one_job(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Fenced) && error.os().is_none()
}

/// The checkpoint there that the next one follows.
struct CopyBase {
    epoch: Epoch,
    segments: Vec<SegmentRef>,
    /// Number of the newest record of which it takes account.
    as_of: u64,
    nodes: NodeSet,
}

struct Copier<'a> {
    from: &'a Pool,
    to: &'a Pool,
    /// The job here.
    name: JobName,
    writer: &'a mut Writer,
    pace: &'a Pace,
    base: Option<CopyBase>,
    /// What the base's segments listed when they were last read; what came later is known to the
    /// writer.
    locator: Option<Locator>,
    /// What went wrong there, and not here.
    fault: Option<Error>,
}

/// An image that is stored but for its segments.
struct Sent<'a> {
    packer: Packer<'a>,
    manifest: Manifest,
    image: ImageRef,
    hits: ReusedChunks,
    lent: Vec<LentSegment>,
    new: Fingerprints,
    nodes: NodeSet,
    stats: SaveStats,
}

impl<'a> Copier<'a> {
    fn run(&mut self, options: &CopyOptions, done: &mut JobCopied) -> Result<()> {
        self.begin()?;
        // From now on nobody else commits: what was planned before may have been overtaken.
        let state = JobState::read(self.to, &done.plan.to, true)?;
        done.plan = plan_job(self.from, &self.name, &state, options)?;
        self.start_from(&state);
        for planned in done.plan.copied.clone() {
            let epoch = planned.epoch;
            match self.epoch(epoch) {
                Ok(Some(copied)) => done.copied.push(copied),
                Ok(None) => done.gone.push(epoch),
                Err(error) if error.kind() == ErrorKind::Damaged && self.fault.is_none() => {
                    done.damaged.push((epoch, error));
                }
                Err(error) => return Err(self.fault.take().unwrap_or(error)),
            }
        }
        Ok(())
    }

    fn begin(&mut self) -> Result<PackNumbers> {
        make_anew(self.to)?;
        let (packs, changes) = self.writer.begin_seeing(self.to)?;
        self.follow(&changes);
        Ok(packs)
    }

    /// The base follows its chunks to where a gc has moved them.
    fn follow(&mut self, changes: &Changes) {
        let is_dropped = |base: &mut CopyBase| changes.dropped.contains(&base.epoch);
        let dropped = self.base.take_if(is_dropped);
        if changes.is_empty() && dropped.is_none() {
            return;
        }
        self.locator = None;
        let Some(moved) = &changes.moved else { return };
        let Some(base) = &mut self.base else { return };
        if base.as_of >= moved.number {
            return;
        }
        if moved.epochs.binary_search(&base.epoch).is_err() {
            self.base = None;
            return;
        }
        base.segments.clone_from(&moved.segments);
        base.as_of = moved.number;
    }

    /// Takes the newest checkpoint there as base, if its metadata is whole.
    fn start_from(&mut self, state: &JobState) {
        let is_whole = |manifest: &&Manifest| !state.hurt.contains(&manifest.epoch);
        let Some(manifest) = state.manifests.iter().find(is_whole) else { return };
        match self.base_of(state, manifest) {
            Ok((base, locator)) => (self.base, self.locator) = (Some(base), Some(locator)),
            Err(error) => self.to.warn(format!(
                "nothing is taken over from checkpoint {} of job {} there: {error}",
                manifest.epoch, state.name
            )),
        }
    }

    fn base_of(&self, state: &JobState, manifest: &Manifest) -> Result<(CopyBase, Locator)> {
        let locator = Locator::load(self.to, &only_image(manifest)?.segments)?;
        let files = open_files(self.to, &state.name, manifest, state.number)?;
        let Image { reference, segments, .. } = only_image(manifest)?.clone();
        let (_, nodes) = needs(self.to, &locator, files.as_ref(), &reference, &NodeSet::default())?;
        let epoch = manifest.epoch;
        Ok((CopyBase { epoch, segments, as_of: state.number, nodes }, locator))
    }

    /// Copies one checkpoint; `None` if it is gone by now.
    fn epoch(&mut self, epoch: Epoch) -> Result<Option<Copied>> {
        let mut attempts = 1;
        loop {
            match self.attempt(epoch) {
                // Its base was pruned, or an append may have been lost: the log knows.
                Err(error) if error.kind() == ErrorKind::Retry && attempts < ATTEMPTS => {
                    if let Some(fault) = self.fault.take() {
                        return Err(fault);
                    }
                    attempts += 1;
                }
                done => return done,
            }
        }
    }

    fn attempt(&mut self, epoch: Epoch) -> Result<Option<Copied>> {
        let packs = self.begin().map_err(|error| self.blame(error))?;
        if self.writer.committer.head.last_epoch >= epoch {
            // The append before was not lost after all: what it made is the base of what follows.
            let name = self.writer.committer.head.job().clone();
            let state = JobState::read(self.to, &name, true).map_err(|e| self.blame(e))?;
            (self.base, self.locator) = (None, None);
            self.writer.rank.known.clear();
            self.start_from(&state);
            return Ok(Some(Copied { epoch, sent_bytes: 0, found_bytes: 0, new_bytes: 0 }));
        }
        let (from, name) = (self.from, self.name.clone());
        let opens = |manifest: &Manifest| AnyImage::new(from, &name, manifest).is_ok();
        let kind = Kind { is: &|_| true, opens: &opens };
        let found = first_manifest(from, &name, Select::Epoch(epoch), kind, &mut |m, as_of| {
            self.send(&packs, m, as_of)
        });
        let sent = match found {
            Ok(Some((_, sent, _))) => sent,
            Ok(None) => return Ok(None),
            Err(error) if error.kind() == ErrorKind::Invalid && !self.is_there(epoch)? => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        self.commit(&packs, sent).map(Some).map_err(|error| match error.kind() {
            ErrorKind::Retry => error,
            _ => self.blame(error),
        })
    }

    /// Notes that something went wrong there.
    fn blame(&mut self, error: Error) -> Error {
        self.fault = Some(error.clone());
        error
    }

    fn is_there(&self, epoch: Epoch) -> Result<bool> {
        let mut entries = crate::commit::history(self.from, &self.name)?;
        Ok(entries.any(|entry| entry.manifest().is_some_and(|m| m.epoch == epoch)))
    }

    /// Stores what of a checkpoint is lacking there. An error of the pool there is noted in `fault`,
    /// and ends the search for other places here.
    fn send(&mut self, packs: &PackNumbers, manifest: &Manifest, as_of: u64) -> Result<Sent<'a>> {
        let (from, to) = (self.from, self.to);
        let image = only_image(manifest)?;
        let locator = Locator::load(from, &image.segments)?;
        let image = image.reference;
        let files = open_files(from, &self.name, manifest, as_of)?;
        let nothing = NodeSet::default();
        let base = self.base.as_ref().map_or(&nothing, |base| &base.nodes);
        let (needs, nodes) = needs(from, &locator, files.as_ref(), &image, base)?;
        drop((locator, files));
        let bytes = |wanted: &[ReadItem]| -> u64 {
            wanted.iter().map(|wanted| u64::from(wanted.place.length)).sum()
        };
        self.load_locator();
        let writer = &mut *self.writer;
        let asked = bytes(&needs.chunks);
        if let Err(error) =
            SharedChunks::refresh(&mut writer.rank.shared, to, asked, &writer.rank.condemned)
        {
            self.fault = Some(error);
            return Err(elsewhere());
        }
        let shared = writer.rank.shared.as_ref().and_then(SharedChunks::index);
        let sink = ChunkSink::new(&writer.rank.known, self.locator.as_ref(), shared);
        let is_lacking = |wanted: &&ReadItem| !sink.has(wanted.fp, wanted.place.length);
        let lacking: Vec<ReadItem> = needs.chunks.iter().filter(is_lacking).copied().collect();
        let expected_bytes = bytes(&lacking) + bytes(&needs.nodes);
        let packer = Packer::new(to, packs, expected_bytes);
        let store = Store {
            from,
            to,
            packer: &packer,
            sink: &sink,
            pace: self.pace,
            done_bytes: AtomicU64::new(0),
            total_bytes: expected_bytes,
            fault: Mutex::new(None),
        };
        let stored = store.chunks(&lacking).and_then(|()| store.nodes(&needs.nodes));
        let fault = store.fault.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(fault) = fault {
            self.fault = Some(fault);
            return Err(elsewhere());
        }
        stored?;
        let stats = SaveStats {
            known_bytes: sink.counts.known_bytes.load(Ordering::Relaxed),
            raw_bytes: sink.counts.raw_bytes.load(Ordering::Relaxed),
            node_bytes: bytes(&needs.nodes),
            ..SaveStats::default()
        };
        let lent = sink.lent();
        let hits = sink.hits.into_inner().unwrap_or_else(PoisonError::into_inner);
        let new = sink.new.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(Sent { packer, manifest: manifest.clone(), image, hits, lent, new, nodes, stats })
    }

    fn load_locator(&mut self) {
        let (None, Some(base)) = (&self.locator, &self.base) else { return };
        match Locator::load(self.to, &base.segments) {
            Ok(locator) => self.locator = Some(locator),
            Err(error) => {
                self.to
                    .warn(format!("chunks that the pool has already may be sent again: {error}"));
            }
        }
    }

    fn commit(&mut self, packs: &PackNumbers, sent: Sent<'_>) -> Result<Copied> {
        let Sent { packer, manifest, image, hits, lent, new, nodes, stats } = sent;
        let found: Vec<_> = hits.keys().copied().collect();
        let parent = self.base.as_ref().map(|base| Base {
            epoch: base.epoch,
            segments: base.segments.clone(),
            as_of: base.as_of,
            ..Base::default()
        });
        let image = NewImage { reference: image, parent, hits, lent, stats };
        let (stats, segments, committed) =
            self.writer.commit_copy(self.to, packs, packer, image, &manifest)?;
        // All of them are in the segments that the next one starts from.
        self.writer.rank.known.extend(new);
        self.writer.rank.known.extend(found);
        let (epoch, as_of) = (manifest.epoch, committed.number);
        self.base = Some(CopyBase { epoch, segments, as_of, nodes });
        Ok(Copied {
            epoch,
            sent_bytes: stats.raw_bytes,
            found_bytes: stats.known_bytes,
            new_bytes: stats.new_bytes,
        })
    }
}

fn open_files(
    pool: &Pool,
    job: &JobName,
    manifest: &Manifest,
    as_of: u64,
) -> Result<Option<FilesImage>> {
    let open = || FilesImage::open(pool, job, manifest.clone(), as_of);
    manifest.is_of_files().then(open).transpose()
}
