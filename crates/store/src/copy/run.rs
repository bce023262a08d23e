//! Carries a copy out: epoch by epoch, oldest first, each committed before the next begins. So
//! after a stop, the next run continues behind the last commit.

use super::needs::{NeededChunk, NodeSet, needs};
use super::plan::{CopyOptions, CopyPlan, JobCopy, plan, plan_job};
use super::store::{Store, elsewhere};
use crate::Job;
use crate::commit::{Changes, Opened};
use crate::gc::JobState;
use crate::images::images_of;
use crate::index::ReadItem;
use crate::index::{Rolling, SharedChunks};
use crate::read::AnyImage;
use crate::read::files::FilesImage;
use crate::read::{Kind, Select, first_manifest};
use crate::recreate::{SAVE_WAIT, recreate_lost};
use crate::save::{
    Base, ChunkSink, Committer, CopiedImage, NewImage, PackNumbers, Packer, RankWriter, SaveStats,
    StoredImage,
};
use outlive_format::{Image, Manifest, PageSet, SaveFigures};
use outlive_io::Pace;
use outlive_pool::Pool;
use outlive_types::sync::plain::Mutex;
use outlive_types::{Epoch, Error, ErrorKind, JobName, Rank, Result};
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum number of attempts to send an epoch: its base at the destination may be pruned
/// meanwhile.
const ATTEMPTS: usize = 4;

/// A checkpoint that was copied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Copied {
    /// Its epoch.
    pub epoch: Epoch,
    /// Bytes of chunks that were read and sent.
    pub sent_bytes: u64,
    /// Bytes of chunks that the destination had already.
    pub found_bytes: u64,
    /// Bytes written at the destination: data, nodes, directories, padding, manifest.
    pub new_bytes: u64,
}

/// Result for one job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobCopied {
    /// The plan.
    pub plan: JobCopy,
    /// Checkpoints copied.
    pub copied: Vec<Copied>,
    /// Checkpoints that are damaged, and were left out.
    pub damaged: Vec<(Epoch, Error)>,
    /// Checkpoints that were dropped before they were copied.
    pub gone: Vec<Epoch>,
    /// Reason why no more of it was copied, though others were: the two jobs are not one history,
    /// or another writer has taken over the one at the destination.
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

/// Result of a copy.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CopyReport {
    /// One for each job.
    pub jobs: Vec<JobCopied>,
}

impl CopyReport {
    /// Returns the report of a plan before anything is copied.
    pub fn planned(plan: CopyPlan, options: &CopyOptions) -> CopyReport {
        let refused = |(job, why): (JobName, Error)| JobCopied::refused(&job, options, why);
        let mut jobs: Vec<JobCopied> = plan.jobs.into_iter().map(JobCopied::new).collect();
        jobs.extend(plan.refused.into_iter().map(refused));
        jobs.sort_by(|a, b| a.plan.from.cmp(&b.plan.from));
        CopyReport { jobs }
    }

    /// Returns true if nothing that was asked for is damaged.
    pub fn is_whole(&self) -> bool {
        self.jobs.iter().all(|job| job.damaged.is_empty() && job.plan.unreadable == 0)
    }

    /// Returns why the first refused job was refused.
    pub fn refused(&self) -> Option<&Error> {
        self.jobs.iter().find_map(|job| job.refused.as_ref())
    }
}

/// Copies checkpoints. It verifies every byte on the way; it leaves damaged checkpoints out and
/// reports them. It fences the jobs at the destination as any save does, except those that need
/// nothing. If one of several jobs is refused or taken over, the report says so, and the others are
/// copied.
///
/// # Errors
/// As [`plan()`]; `Fenced` if another writer takes the only job over; errors of the destination.
/// Checkpoints committed before stay, and another run continues behind them.
pub fn copy(from: &Pool, to: &Pool, options: &CopyOptions) -> Result<CopyReport> {
    let pace = Pace::new(options.bytes_per_s);
    let mut report = CopyReport::planned(plan(from, to, options)?, options);
    let is_one = report.jobs.len() == 1;
    for done in &mut report.jobs {
        if !done.plan.copied.is_empty() {
            let job = Job::open(to, done.plan.to.as_str(), Default::default())?;
            let copied = job.wait_for_turn(|inner| {
                let name = done.plan.from.clone();
                let committer = &mut inner.writer().committer;
                let (ranks, fault) = Default::default();
                let mut copier = Copier { from, to, name, committer, pace: &pace, ranks, fault };
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

/// Whether other jobs can be copied all the same. An error of the system may hit all of them.
fn is_about_one_job(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Fenced) && error.os().is_none()
}

/// One rank of the job at the destination.
struct RankCopy {
    /// Follows the rank's image at the destination that the next one builds on.
    writer: RankWriter,
    /// The nodes of that image.
    nodes: NodeSet,
    /// Contents of its segments.
    there: Rolling,
    /// Contents of the segments of the source image.
    here: Rolling,
}

struct Copier<'a> {
    from: &'a Pool,
    to: &'a Pool,
    /// The job in the source.
    name: JobName,
    committer: &'a mut Committer,
    pace: &'a Pace,
    /// As many ranks as any copied checkpoint or base has.
    ranks: Vec<RankCopy>,
    /// Error of the destination, not of the source.
    fault: Option<Error>,
}

/// A checkpoint whose images are stored.
struct Sent {
    manifest: Manifest,
    /// One for each rank.
    images: Vec<SentImage>,
}

struct SentImage {
    packs: PackNumbers,
    stored: StoredImage,
    nodes: NodeSet,
}

impl RankCopy {
    /// Takes note of changes that other processes made at the destination.
    fn begin(&mut self, pool: &Pool, opened: &Opened) -> Result<()> {
        self.writer.begin(pool, opened)?;
        if self.writer.base.is_none() {
            self.forget();
        }
        Ok(())
    }

    /// Makes the next image build on no other.
    fn forget(&mut self) {
        self.writer.base = None;
        (self.nodes, self.there) = Default::default();
    }

    /// Reads the extents of chunks that the next image can reuse.
    fn look_there(&mut self, pool: &Pool) {
        let Some(base) = &self.writer.base else { return };
        if let Err(error) = self.there.step(pool, &base.segments) {
            pool.warn(format!("chunks that the pool has already may be sent again: {error}"));
            self.there = Rolling::default();
        }
    }
}

impl Copier<'_> {
    fn run(&mut self, options: &CopyOptions, done: &mut JobCopied) -> Result<()> {
        self.begin()?;
        // No other process commits from now on, but one may have overtaken the plan.
        let state = JobState::read(self.to, &done.plan.to, true)?;
        done.plan = plan_job([self.from, self.to], &self.name, &state, options)?;
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

    /// Opens the session, and lets every rank take note of other processes' changes.
    fn begin(&mut self) -> Result<()> {
        recreate_lost(self.to, SAVE_WAIT)?;
        let opened = self.committer.open(self.to)?;
        for rank in &mut self.ranks {
            rank.begin(self.to, &opened).map_err(|error| self.committer.blame(self.to, error))?;
        }
        Ok(())
    }

    /// Takes the newest checkpoint at the destination as base, if its metadata is whole.
    fn start_from(&mut self, state: &JobState) {
        let is_whole = |manifest: &&Manifest| !state.incomplete.contains(&manifest.epoch);
        let Some(manifest) = state.manifests.iter().find(is_whole) else { return };
        if let Err(error) = self.base_of(state, manifest) {
            self.to.warn(format!(
                "not everything is taken over from checkpoint {} of job {} there: {error}",
                manifest.epoch, state.name
            ));
        }
    }

    fn base_of(&mut self, state: &JobState, manifest: &Manifest) -> Result<()> {
        let files = open_files(self.to, &state.name, manifest, state.number)?;
        let in_table = manifest.images.table().is_some();
        for (image, rank) in images_of(self.to, manifest)?.into_iter().zip(0..) {
            let Image { reference, segments, .. } = image;
            let mut there = Rolling::default();
            there.step(self.to, &segments)?;
            let nothing = NodeSet::default();
            let (_, nodes) = needs(self.to, there.locator(), files.as_ref(), &reference, &nothing)?;
            let (epoch, as_of) = (manifest.epoch, state.number);
            let copy = self.rank(rank)?;
            copy.writer.base = Some(Base { epoch, segments, in_table, as_of, ..Base::default() });
            (copy.nodes, copy.there) = (nodes, there);
        }
        Ok(())
    }

    /// Returns a rank of the destination, which takes part from now on.
    fn rank(&mut self, rank: Rank) -> Result<&mut RankCopy> {
        while self.ranks.len() <= rank as usize {
            let index_bytes_max = self.to.config().tuning.index_bytes_max;
            let share = index_bytes_max / (self.ranks.len() as u64 + 1);
            let mut writer = RankWriter::new(self.ranks.len() as Rank, share);
            let session =
                self.committer.head.session().ok_or_else(|| Error::bug("no session is open"))?;
            writer.begin(self.to, &Opened { session, changes: Changes::default() })?;
            if let Some(first) = self.ranks.first() {
                writer.condemned.clone_from(&first.writer.condemned);
                writer.dropped.clone_from(&first.writer.dropped);
            }
            let (nodes, there, here) = Default::default();
            self.ranks.push(RankCopy { writer, nodes, there, here });
        }
        Ok(&mut self.ranks[rank as usize])
    }

    /// Copies one checkpoint; returns `None` if it is gone by now.
    fn epoch(&mut self, epoch: Epoch) -> Result<Option<Copied>> {
        let mut attempts = 1;
        loop {
            match self.attempt(epoch) {
                // Its base was pruned, or an append may have failed: the log has the answer.
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
        self.begin().map_err(|error| self.blame(error))?;
        if self.committer.head.last_epoch >= epoch {
            // The append before was done after all: its checkpoint is the base of those that
            // follow.
            let name = self.committer.head.job().clone();
            let state = JobState::read(self.to, &name, true).map_err(|e| self.blame(e))?;
            self.ranks.iter_mut().for_each(RankCopy::forget);
            self.start_from(&state);
            return Ok(Some(Copied { epoch, sent_bytes: 0, found_bytes: 0, new_bytes: 0 }));
        }
        let (from, name) = (self.from, self.name.clone());
        let opens = |manifest: &Manifest| {
            let image = |image| AnyImage::image(from, &name, manifest, image).map(drop);
            images_of(from, manifest).and_then(|all| all.into_iter().try_for_each(image)).is_ok()
        };
        let kind = Kind { is: &|_| true, opens: &opens };
        let found = first_manifest(from, &name, Select::Epoch(epoch), kind, &mut |m, as_of| {
            self.send(m, as_of)
        });
        let sent = match found {
            Ok(Some((_, sent, _))) => sent,
            Ok(None) => return Ok(None),
            Err(error) if error.kind() == ErrorKind::Invalid && !self.is_there(epoch)? => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        self.commit(sent).map(Some).map_err(|error| match error.kind() {
            ErrorKind::Retry => error,
            _ => self.blame(error),
        })
    }

    /// Notes an error of the destination.
    fn blame(&mut self, error: Error) -> Error {
        self.fault = Some(error.clone());
        error
    }

    fn is_there(&self, epoch: Epoch) -> Result<bool> {
        let mut entries = crate::commit::history(self.from, &self.name)?;
        Ok(entries.any(|entry| entry.manifest().is_some_and(|m| m.epoch == epoch)))
    }

    /// Stores what the destination lacks of a checkpoint. An error of the destination is noted in
    /// `fault`, and ends the search for other extents in the source.
    fn send(&mut self, manifest: &Manifest, as_of: u64) -> Result<Sent> {
        let files = open_files(self.from, &self.name, manifest, as_of)?;
        let mut images = Vec::new();
        for image in images_of(self.from, manifest)? {
            images.push(self.send_image(manifest, &image, files.as_ref())?);
        }
        Ok(Sent { manifest: manifest.clone(), images })
    }

    fn send_image(
        &mut self,
        manifest: &Manifest,
        image: &Image,
        files: Option<&FilesImage>,
    ) -> Result<SentImage> {
        let (from, to, pace) = (self.from, self.to, self.pace);
        let reference = image.reference;
        if let Err(error) = self.rank(reference.rank) {
            self.fault = Some(error);
            return Err(elsewhere());
        }
        // One for all ranks: it may be large.
        let shared = self.ranks[0].writer.shared.take();
        let rank = &mut self.ranks[reference.rank as usize];
        rank.writer.shared = shared;
        rank.here.step(from, &image.segments)?;
        let (needs, nodes) = needs(from, rank.here.locator(), files, &reference, &rank.nodes)?;
        let bytes = |wanted: &[ReadItem]| -> u64 {
            wanted.iter().map(|wanted| u64::from(wanted.extent.length)).sum()
        };
        let asked = needs.chunks.iter().map(|one| u64::from(one.item.extent.length)).sum();
        let RankWriter { shared, condemned, .. } = &mut rank.writer;
        if let Err(error) = SharedChunks::refresh(shared, to, asked, condemned) {
            self.fault = Some(error);
            return Err(elsewhere());
        }
        rank.look_there(to);
        let RankCopy { writer, there, .. } = rank;
        let packs = writer.packs.clone().ok_or_else(|| Error::bug("a rank has not begun"))?;
        let shared = writer.shared.as_ref().and_then(SharedChunks::index);
        let sink = ChunkSink::new(&writer.known, Some(there.locator()), shared);
        let group_log2 = PageSet::group_log2(from.config().format.chunk_bytes_max);
        let is_lacking = |one: &&NeededChunk| {
            let NeededChunk { item, pages } = **one;
            !sink.has(item.fp, item.extent.length) && !sink.has_pages(&item, pages, group_log2)
        };
        let lacking = needs.chunks.iter().filter(is_lacking).map(|one| one.item);
        let lacking: Vec<ReadItem> = lacking.collect();
        let expected_bytes = bytes(&lacking) + bytes(&needs.nodes);
        let packer = Packer::new(to, &packs, expected_bytes);
        let store = Store {
            from,
            to,
            packer: &packer,
            sink: &sink,
            pace,
            done_bytes: AtomicU64::new(0),
            total_bytes: expected_bytes,
            fault: Mutex::new(None),
        };
        let stored = store.chunks(&lacking).and_then(|()| store.nodes(&needs.nodes));
        let fault = store.fault.into_inner();
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
        let shared_segments = sink.shared_segments();
        let hits = sink.hits.into_inner();
        // The base stays the writer's until the copy is committed.
        let parent = writer.base.as_ref().map(|base| Base {
            epoch: base.epoch,
            segments: base.segments.clone(),
            in_table: base.in_table,
            as_of: base.as_of,
            ..Base::default()
        });
        // The manifest has the figures of all ranks together.
        let like = if reference.rank == 0 { manifest.figures } else { SaveFigures::default() };
        let figures =
            &mut |stats: &mut SaveStats| SaveFigures { new_bytes: stats.new_bytes, ..like };
        let shared = writer.shared.take();
        self.ranks[0].writer.shared = shared;
        let image = NewImage { reference, parent, hits, shared_segments, stats };
        let stored = image.store(to, &packs, packer, (manifest.epoch, manifest.parent), figures);
        match stored {
            Ok((stored, _)) => Ok(SentImage { packs, stored, nodes }),
            Err(error) => {
                self.fault = Some(self.committer.blame(to, error));
                Err(elsewhere())
            }
        }
    }

    fn commit(&mut self, sent: Sent) -> Result<Copied> {
        let Sent { manifest, images } = sent;
        let (mut copies, mut rest) = (Vec::new(), Vec::new());
        for (copy, sent) in self.ranks.iter_mut().zip(images) {
            let SentImage { packs, stored, nodes } = sent;
            rest.push(nodes);
            copies.push(CopiedImage { writer: &mut copy.writer, packs, stored });
        }
        let committed = self.committer.commit_copies(self.to, &mut copies, &manifest);
        let stored: Vec<StoredImage> = copies.into_iter().map(|copy| copy.stored).collect();
        let committed = committed?;
        let epoch = manifest.epoch;
        let mut copied = Copied { epoch, sent_bytes: 0, found_bytes: 0, new_bytes: 0 };
        copied.new_bytes += committed.record_bytes;
        for ((copy, stored), nodes) in self.ranks.iter_mut().zip(stored).zip(rest) {
            copied.sent_bytes += stored.stats.raw_bytes;
            copied.found_bytes += stored.stats.known_bytes;
            copied.new_bytes += stored.stats.new_bytes;
            let (in_table, as_of) = (committed.in_table, committed.number);
            let segments = stored.image().image.segments.clone();
            copy.writer.base = Some(Base { epoch, segments, in_table, as_of, ..Base::default() });
            copy.nodes = nodes;
        }
        Ok(copied)
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
