//! Makes a checkpoint exist: commits one manifest for the images of all ranks.

use super::events::CommitEvents;
use super::packer::{PackNumbers, Packer};
use super::pages::store_table;
use crate::commit::{Commit, LogHead, Opened};
use crate::fill::BackgroundFill;
use crate::retention::BackgroundRetention;
use outlive_format::{
    Image, ImageKind, ImageTable, Images, Manifest, RankImage, Remarks, SaveFigures,
};
use outlive_pool::Pool;
use outlive_types::{COMMITTER, Epoch, Error, JobName, Result};

/// Contents of a manifest besides its images.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct CheckpointHeader {
    /// Its epoch.
    pub epoch: Epoch,
    /// The checkpoint from which its program went on; `None`: the one that this writer reached
    /// last.
    pub predecessor: Option<Epoch>,
    /// Time of its freeze, in nanoseconds since 1970.
    pub frozen_ns: u64,
    /// Number of failed saves since the checkpoint before it.
    pub failed_before: u16,
    /// The user's remarks on it.
    pub remarks: Remarks,
    /// The program's own figures of merit, sorted by name.
    pub metrics: Vec<(String, f64)>,
}

/// Owns a job's log: opens the session in which all ranks write, and commits.
#[derive(Debug)]
pub struct Committer {
    /// The log.
    pub head: LogHead,
    /// Reports the fate of its checkpoints.
    pub events: CommitEvents,
    /// Copies them to the slow tier.
    pub behind: BackgroundFill,
    /// Drops old checkpoints by the job's rules.
    pub retain: BackgroundRetention,
    /// Numbers of the packs with image tables.
    packs: Option<PackNumbers>,
    /// Whether this committer has made the reserve. Once is enough, since gcs recreate it.
    has_reserve: bool,
}

impl Committer {
    /// Makes a committer that has not read the log yet.
    pub fn new(job: JobName) -> Committer {
        let (events, behind) = (CommitEvents::new(job.clone()), BackgroundFill::new(job.clone()));
        let retain = BackgroundRetention::new(job.clone());
        Committer {
            events,
            behind,
            retain,
            head: LogHead::new(job),
            packs: None,
            has_reserve: false,
        }
    }

    /// Opens the session if there is none. Every rank needs the result.
    ///
    /// # Errors
    /// `Fenced` if another writer has taken over; errors of the log.
    pub fn open(&mut self, pool: &Pool) -> Result<Opened> {
        let (session, _) = self.head.open(pool)?;
        Ok(Opened { session, changes: self.head.take_changes() })
    }

    /// Returns the reason why a rank's image failed: the end of the session, if it has ended, else
    /// `error`. The writer of a later session may have taken unfinished packs for leftovers, or
    /// moved data that a rank reads.
    pub fn blame(&mut self, pool: &Pool, error: Error) -> Error {
        self.head.blame(pool, error)
    }

    /// Appends a checkpoint of these images, one for each rank from 0 on. It commits nothing if
    /// packs were condemned or chunks moved since the session was opened or since the last call.
    /// Then each rank must rebase its image by [`RankWriter::rebase`](super::RankWriter::rebase),
    /// and the caller commits again.
    ///
    /// # Errors
    /// `Fenced` if another writer has taken over; `Invalid` for images that do not go together;
    /// errors of target and log. The previous checkpoint stays as it was.
    pub fn commit(
        &mut self,
        pool: &Pool,
        header: &CheckpointHeader,
        images: &[RankImage],
    ) -> Result<Commit> {
        let manifest = self.manifest(pool, header, images)?;
        let written = images.iter().flat_map(|image| image.spread.clone()).collect();
        let outcome = self.head.commit(pool, &manifest, &written)?;
        if let Commit::Done(_) = outcome {
            self.events.committed(pool, header.epoch);
            self.behind.committed(pool);
            self.retain.committed(pool, manifest.session, manifest.figures.new_bytes);
            if !std::mem::replace(&mut self.has_reserve, true) {
                pool.make_reserve(0);
            }
        }
        Ok(outcome)
    }

    fn manifest(
        &mut self,
        pool: &Pool,
        header: &CheckpointHeader,
        images: &[RankImage],
    ) -> Result<Manifest> {
        let session = self.head.session().ok_or_else(|| Error::bug("no session is open"))?;
        let follow = images.iter().zip(0..).all(|(it, rank)| it.image.reference.rank == rank);
        let world_size = u32::try_from(images.len()).ok().filter(|size| *size < COMMITTER);
        let (Some(world_size), true, Some(first)) = (world_size, follow, images.first()) else {
            return Err(Error::invalid(format!(
                "{} images are not one for each rank from 0 on",
                images.len()
            )));
        };
        let kind = first.image.reference.kind;
        if let Some(other) = images.iter().find(|it| it.image.reference.kind != kind) {
            return Err(Error::invalid(format!(
                "rank 0 has saved {kind:?} and rank {} something else",
                other.image.reference.rank
            )));
        }
        let mut figures = SaveFigures::default();
        images.iter().for_each(|it| add(&mut figures, &it.figures));
        let images_there = match images {
            [only] => Images::One(only.image.clone()),
            _ => {
                let (table, new_bytes) = self.store_table(pool, images)?;
                figures.new_bytes += new_bytes;
                Images::Table(table)
            }
        };
        Ok(Manifest {
            session,
            world_size,
            epoch: header.epoch,
            parent: parent_of(images),
            predecessor: header
                .predecessor
                .unwrap_or_else(|| self.head.reached().before(header.epoch)),
            frozen_ns: header.frozen_ns,
            figures,
            failed_before: header.failed_before,
            remarks: header.remarks.clone(),
            metrics: header.metrics.clone(),
            images: images_there,
        })
    }

    /// Stores the image table. Returns it with the number of bytes written.
    fn store_table(&mut self, pool: &Pool, images: &[RankImage]) -> Result<(ImageTable, u64)> {
        let session = self.head.session().ok_or_else(|| Error::bug("no session is open"))?;
        let packs = match &self.packs {
            Some(packs) if packs.session() == session => packs.clone(),
            _ => self.packs.insert(PackNumbers::new(session, COMMITTER)).clone(),
        };
        let bytes: usize = images.iter().map(|it| Image::bytes_for(it.image.segments.len())).sum();
        let packer = Packer::new(pool, &packs, bytes as u64);
        let pages = store_table(&packer, images.iter().map(|it| it.image.clone()).collect())?;
        let new_bytes = packer.close()?.stored_bytes;
        let references = || images.iter().map(|it| &it.image.reference);
        let table = ImageTable {
            kind: references().next().map_or(ImageKind::Memory, |first| first.kind),
            regions: references().map(|it| it.regions).sum(),
            state_bytes: references().map(|it| it.state_bytes).sum(),
            next_pack: packs.next(),
            pages,
            lists: Vec::new(),
        };
        Ok((table, new_bytes))
    }
}

/// Adds a rank's figures. All ranks save at the same time: bytes add up, and the longest time
/// counts.
fn add(all: &mut SaveFigures, rank: &SaveFigures) {
    all.new_bytes += rank.new_bytes;
    all.changed_bytes += rank.changed_bytes;
    all.known_bytes += rank.known_bytes;
    all.zero_bytes += rank.zero_bytes;
    all.raw_bytes += rank.raw_bytes;
    all.stall_ns = all.stall_ns.max(rank.stall_ns);
    all.drain_ns = all.drain_ns.max(rank.drain_ns);
}

/// Returns the checkpoint with which all images share subtrees, 0 if they differ.
fn parent_of(images: &[RankImage]) -> Epoch {
    let mut parents = images.iter().map(|it| it.parent);
    let first = parents.next().unwrap_or(0);
    if parents.all(|parent| parent == first) { first } else { 0 }
}
