//! State of a writer from one save to the next: a rank keeps the data that its images share, and
//! the committer (`committer`) owns the log. A program of one rank is both.

use super::committer::Committer;
use super::packer::PackNumbers;
use super::plan::SavePlan;
use super::presence::PresenceCheck;
use crate::commit::{Changes, Moved, Opened};
use crate::index::{SharedChunks, StoredChunks};
use crate::tree::PageTree;
use outlive_chunk::PageHashes;
use outlive_format::SegmentRef;
use outlive_pool::{Pool, TargetsThen};
use outlive_types::{
    Epoch, FreezeRequest, Frozen, JobName, PackId, PageRange, PageSource, Rank, Result,
};
use std::collections::{HashMap, HashSet};

/// The checkpoint that the next save follows: the data that it can share.
#[derive(Debug, Default)]
pub struct Base {
    /// Its epoch.
    pub epoch: Epoch,
    /// Trees of its streams, by name.
    pub streams: HashMap<String, PageTree>,
    /// Tree of its catalog.
    pub catalog: PageTree,
    /// Page hashes of its catalog.
    pub catalog_hashes: PageHashes,
    /// The segments of the rank's image in it.
    pub segments: Vec<SegmentRef>,
    /// Whether that image is in an image table.
    pub in_table: bool,
    /// Number of the newest log record of which it takes account.
    pub as_of: u64,
}

/// State that a rank carries from one save to the next.
#[derive(Debug)]
pub struct RankWriter {
    /// The rank.
    pub rank: Rank,
    /// The checkpoint that the next save follows; `None`: the next save stores everything.
    pub base: Option<Base>,
    /// Chunks that need not be written again.
    pub known: StoredChunks,
    /// Clean pages that the next save rewrites.
    pub candidates: Vec<(String, PageRange)>,
    /// Bytes that saves may spend on rewriting: earned by earlier saves and not spent.
    pub rewrite_credit_bytes: u64,
    /// Numbers of the rank's packs in a session, once it wrote in one.
    pub packs: Option<PackNumbers>,
    /// Chunks of the whole pool; read when a save is large enough for that to pay.
    pub shared: Option<SharedChunks>,
    /// Packs that this job's log has reported as condemned: no later commit may refer to them.
    pub condemned: HashSet<PackId>,
    /// Checkpoints that were dropped since this writer first read the log.
    pub dropped: HashSet<Epoch>,
    /// The pack extents after the newest archive that this writer has read.
    pub moved: Option<Moved>,
    /// The pool's targets when the save began.
    pub targets: Option<TargetsThen>,
    /// Checks whether the packs of the base exist.
    pub presence: PresenceCheck,
}

impl RankWriter {
    /// Makes a writer that has saved nothing yet, and keeps known chunks in at most
    /// `index_bytes_max`.
    pub fn new(rank: Rank, index_bytes_max: u64) -> RankWriter {
        RankWriter {
            rank,
            base: None,
            known: StoredChunks::new(index_bytes_max),
            candidates: Vec::new(),
            rewrite_credit_bytes: 0,
            packs: None,
            shared: None,
            condemned: HashSet::new(),
            dropped: HashSet::new(),
            moved: None,
            targets: None,
            presence: PresenceCheck::default(),
        }
    }

    /// Returns the rank's packs in the session that the committer has `opened`; takes account of
    /// the changes by others meanwhile.
    ///
    /// # Errors
    /// `Damaged` if data that an archive has moved cannot be found.
    pub fn begin(&mut self, pool: &Pool, opened: &Opened) -> Result<PackNumbers> {
        let packs = match &self.packs {
            Some(packs) if packs.session() == opened.session => packs.clone(),
            _ => self.packs.insert(PackNumbers::new(opened.session, self.rank)).clone(),
        };
        self.absorb(pool, opened.changes.clone())?;
        // The committer's view of the targets is not newer.
        self.targets = pool.targets_now()?;
        Ok(packs)
    }

    /// Freezes a program's memory for checkpoint `epoch`, and plans how it is stored. If `is_shared`,
    /// other processes can read the image.
    ///
    /// # Errors
    /// Errors of the source; `Invalid` for an unknown freeze in `pool.toml`.
    pub fn freeze(
        &mut self,
        pool: &Pool,
        epoch: Epoch,
        source: &mut dyn PageSource,
        is_shared: bool,
    ) -> Result<(Box<dyn Frozen>, SavePlan)> {
        let tuning = &pool.config().tuning;
        let request = FreezeRequest {
            baseline: self.base.as_ref().map(|base| base.epoch),
            also: std::mem::take(&mut self.candidates),
            freeze_bytes_max: tuning.freeze_bytes_max,
            freeze: tuning.freeze()?,
            is_shared,
        };
        let frozen = source.freeze(&request)?;
        let plan = SavePlan::new(epoch, self.parent(), &*frozen);
        Ok((frozen, plan))
    }

    /// Returns the epoch of the checkpoint that the next save follows; 0 for none.
    pub fn parent(&self) -> Epoch {
        self.base.as_ref().map_or(0, |base| base.epoch)
    }
}

/// The writer of a program of one rank, or of one rank of a group.
#[derive(Debug)]
pub struct Writer {
    /// Makes images.
    pub rank: RankWriter,
    /// Commits them.
    pub committer: Committer,
}

impl Writer {
    /// Makes a writer that has not read the log yet.
    pub fn new(pool: &Pool, job: JobName) -> Writer {
        Writer::of_rank(pool, job, 0)
    }

    /// Makes the writer of a rank of a group; only the committer of rank 0 is used.
    pub fn of_rank(pool: &Pool, job: JobName, rank: Rank) -> Writer {
        let index_bytes_max = pool.config().tuning.index_bytes_max;
        Writer { rank: RankWriter::new(rank, index_bytes_max), committer: Committer::new(job) }
    }

    /// Returns the session's packs. Opens the session if there is none, and takes account of the
    /// changes by others meanwhile.
    ///
    /// # Errors
    /// `Fenced` if another writer has taken over; errors of the log.
    pub fn begin(&mut self, pool: &Pool) -> Result<PackNumbers> {
        self.begin_seeing(pool).map(|(packs, _)| packs)
    }

    /// Does the same, and returns the changes by others as well.
    ///
    /// # Errors
    /// As for [`Writer::begin`].
    pub fn begin_seeing(&mut self, pool: &Pool) -> Result<(PackNumbers, Changes)> {
        let opened = self.committer.open(pool)?;
        if self.committer.head.take_damage() {
            self.rank.forget(pool);
        }
        let packs = self.rank.begin(pool, &opened);
        let packs = packs.map_err(|error| self.committer.blame(pool, error))?;
        Ok((packs, opened.changes))
    }
}
