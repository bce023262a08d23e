//! What a writer carries from one save to the next: a rank what its images share, the committer
//! (`committer`) the log. A program of one rank is both.

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

/// The checkpoint that the next save follows: what it can share.
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
    /// Whether that image stands in an image table.
    pub in_table: bool,
    /// Number of the newest record in the log of which it takes account.
    pub as_of: u64,
}

/// Everything a rank carries from one save to the next.
#[derive(Debug)]
pub struct RankWriter {
    /// The rank.
    pub rank: Rank,
    /// What the next save follows; `None`: it starts from nothing.
    pub base: Option<Base>,
    /// Chunks that need not be written again.
    pub known: StoredChunks,
    /// Clean pages that the next save rewrites.
    pub candidates: Vec<(String, PageRange)>,
    /// Bytes that may be spent on rewriting: what earlier saves have earned and not spent.
    pub rewrite_credit_bytes: u64,
    /// Numbers of the rank's packs in a session, once it wrote in one.
    pub packs: Option<PackNumbers>,
    /// What the whole pool holds; read when so much is written that it pays.
    pub shared: Option<SharedChunks>,
    /// Packs of which this job's log has said that nobody may refer to them any more.
    pub condemned: HashSet<PackId>,
    /// Checkpoints that were dropped since this writer first looked.
    pub dropped: HashSet<Epoch>,
    /// Where the newest archive that this writer has seen has put what is left.
    pub moved: Option<Moved>,
    /// The pool's targets when the save began.
    pub targets: Option<TargetsThen>,
    /// Whether the packs of the base are there.
    pub presence: PresenceCheck,
}

impl RankWriter {
    /// One that has saved nothing yet and remembers chunks in at most `index_bytes_max` of memory.
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

    /// The rank's packs in the session that the committer has `opened`; takes notice of what others
    /// have done meanwhile.
    ///
    /// # Errors
    /// `Damaged` if what an archive has moved cannot be found.
    pub fn begin(&mut self, pool: &Pool, opened: &Opened) -> Result<PackNumbers> {
        let packs = match &self.packs {
            Some(packs) if packs.session() == opened.session => packs.clone(),
            _ => self.packs.insert(PackNumbers::new(opened.session, self.rank)).clone(),
        };
        self.absorb(pool, opened.changes.clone())?;
        // What the committer knows of them is not newer.
        self.targets = pool.targets_now()?;
        Ok(packs)
    }

    /// Freezes a program's memory for checkpoint `epoch`, and plans how it is stored.
    ///
    /// # Errors
    /// Those of the source; `Invalid` for a freeze that `pool.toml` does not know.
    pub fn freeze(
        &mut self,
        pool: &Pool,
        epoch: Epoch,
        source: &mut dyn PageSource,
    ) -> Result<(Box<dyn Frozen>, SavePlan)> {
        let tuning = &pool.config().tuning;
        let request = FreezeRequest {
            baseline: self.base.as_ref().map(|base| base.epoch),
            also: std::mem::take(&mut self.candidates),
            freeze_bytes_max: tuning.freeze_bytes_max,
            freeze: tuning.freeze()?,
        };
        let frozen = source.freeze(&request)?;
        let plan = SavePlan::new(epoch, self.parent(), &*frozen);
        Ok((frozen, plan))
    }

    /// Epoch of the checkpoint that the next save follows; 0 for none.
    pub fn parent(&self) -> Epoch {
        self.base.as_ref().map_or(0, |base| base.epoch)
    }
}

/// The writer of a program of one rank, or of one rank of a group.
#[derive(Debug)]
pub struct Writer {
    /// Makes images.
    pub rank: RankWriter,
    /// Makes them exist.
    pub committer: Committer,
}

impl Writer {
    /// One that has looked at nothing yet.
    pub fn new(pool: &Pool, job: JobName) -> Writer {
        Writer::of_rank(pool, job, 0)
    }

    /// That of a rank of a group; only the committer of rank 0 is used.
    pub fn of_rank(pool: &Pool, job: JobName, rank: Rank) -> Writer {
        let index_bytes_max = pool.config().tuning.index_bytes_max;
        Writer { rank: RankWriter::new(rank, index_bytes_max), committer: Committer::new(job) }
    }

    /// The session's packs; it is opened if there is none, and notice taken of what others have done meanwhile.
    ///
    /// # Errors
    /// `Fenced` if another writer has taken over; what the log reports.
    pub fn begin(&mut self, pool: &Pool) -> Result<PackNumbers> {
        self.begin_seeing(pool).map(|(packs, _)| packs)
    }

    /// The same; answers what others have done as well.
    ///
    /// # Errors
    /// As [`Writer::begin`].
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
