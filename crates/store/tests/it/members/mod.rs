//! A program of several ranks in one process, step by step: its saves, and its restored states.

use crate::common::{State, Vectors, noise, regions_of};
use outlive_capture::{ChangeTracker, MemorySource, Region};
use outlive_pool::Pool;
use outlive_store::commit::Commit;
use outlive_store::gc::{GcOptions, GcReport, Thoroughness, collect};
use outlive_store::save::{
    CheckpointHeader, Committer, PackNumbers, RankImage, RankWriter, SaveRequest, StoredImage,
};
use outlive_store::{Job, MemoryImage, Select};
use outlive_types::{Epoch, Frozen, JobName, PAGE_BYTES, Rank, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// One rank of a program, as in its own process.
pub struct Member {
    pub writer: RankWriter,
    pub tracker: Arc<ChangeTracker>,
}

/// An image of a member, stored and not committed.
pub struct Made {
    pub packs: PackNumbers,
    pub frozen: Box<dyn Frozen>,
    pub stored: StoredImage,
}

impl Member {
    pub fn new(rank: Rank) -> Member {
        Member { writer: RankWriter::new(rank, 1 << 20), tracker: Arc::new(ChangeTracker::new()) }
    }

    pub fn source(&self, state: &State) -> MemorySource {
        let region = |(name, bytes): (&String, &Vec<u8>)| {
            Region::from_bytes(name.as_str(), "|u1", vec![bytes.len() as u64], bytes.as_slice())
        };
        let regions = state.iter().map(region).collect();
        MemorySource::new(self.tracker.clone(), regions, b"rank".to_vec(), 1)
    }

    pub fn make(
        &mut self,
        pool: &Pool,
        packs: PackNumbers,
        epoch: Epoch,
        state: &State,
    ) -> Result<Made> {
        let mut source = self.source(state);
        let (frozen, plan) = self.writer.freeze(pool, epoch, &mut source, false)?;
        let order = SaveRequest::default();
        let stored = self.writer.store(pool, &packs, &plan, &*frozen, &order, &|| ())?;
        Ok(Made { packs, frozen, stored })
    }
}

/// A program of several ranks.
pub struct Group {
    pub pool: Pool,
    pub committer: Committer,
    pub members: Vec<Member>,
}

impl Group {
    pub fn new(pool: &Pool, name: &str, ranks: Rank) -> Group {
        let committer = Committer::new(JobName::new(name).unwrap());
        Group { pool: pool.clone(), committer, members: (0..ranks).map(Member::new).collect() }
    }

    pub fn make(&mut self, states: &[State]) -> Result<(Epoch, Vec<Made>)> {
        let opened = self.committer.open(&self.pool)?;
        let epoch = self.committer.head.last_epoch + 1;
        let mut made = Vec::new();
        for (member, state) in self.members.iter_mut().zip(states) {
            let packs = member.writer.begin(&self.pool, &opened)?;
            made.push(member.make(&self.pool, packs, epoch, state)?);
        }
        Ok((epoch, made))
    }

    /// Commits the images; each rank rebases its image whenever something was moved.
    pub fn commit(&mut self, epoch: Epoch, mut made: Vec<Made>) -> Result<usize> {
        let draft = CheckpointHeader { epoch, frozen_ns: epoch, ..CheckpointHeader::default() };
        let mut rounds = 1;
        let committed = loop {
            let images: Vec<RankImage> = made.iter().map(|m| m.stored.image().clone()).collect();
            match self.committer.commit(&self.pool, &draft, &images)? {
                Commit::Done(committed) => break committed,
                Commit::Changed(changes) => {
                    for (member, Made { packs, stored, .. }) in
                        self.members.iter_mut().zip(&mut made)
                    {
                        member.writer.rebase(&self.pool, packs, stored, changes.clone())?;
                    }
                }
            }
            rounds += 1;
        };
        for (member, made) in self.members.iter_mut().zip(made) {
            member.writer.follow(&self.pool, made.stored, &committed);
            made.frozen.commit_baseline(Some(epoch));
        }
        Ok(rounds)
    }

    pub fn save(&mut self, states: &[State]) -> Result<Epoch> {
        let (epoch, made) = self.make(states)?;
        self.commit(epoch, made)?;
        Ok(epoch)
    }

    pub fn close(mut self) {
        self.committer.head.close(&self.pool).unwrap();
    }
}

/// Returns the state of each rank; some of it is the same everywhere.
pub fn states(ranks: Rank, seed: u64) -> Vec<State> {
    let own = |rank: Rank| noise(seed * 1_000_000 + u64::from(rank), 40 * PAGE_BYTES);
    let state = |rank: Rank| {
        State::from([
            ("a".to_owned(), own(rank)),
            ("shared".to_owned(), noise(7, 32 * PAGE_BYTES)),
            ("small".to_owned(), rank.to_le_bytes().to_vec()),
        ])
    };
    (0..ranks).map(state).collect()
}

pub fn job(pool: &Pool, name: &str) -> Job {
    Job::open(pool, name, Default::default()).unwrap()
}

pub fn restored(checkpoint: &MemoryImage) -> State {
    let vectors = Vectors::for_all(checkpoint);
    let all: Vec<usize> = (0..checkpoint.streams().len()).collect();
    checkpoint.read(&all, &vectors).unwrap();
    regions_of(checkpoint, &vectors.into_inner())
}

pub fn gc(pool: &Pool) -> GcReport {
    let thoroughness = Thoroughness { unused_max: 0.0, ..Thoroughness::default() };
    collect(pool, &GcOptions { thoroughness, ..GcOptions::default() }).unwrap()
}

/// Checks that every checkpoint of every rank is unchanged.
pub fn check(pool: &Pool, name: &str, all: &BTreeMap<Epoch, Vec<State>>, what: &str) {
    let job = job(pool, name);
    let epochs: Vec<Epoch> = job.epochs().unwrap().iter().map(|info| info.epoch).collect();
    assert_eq!(epochs, all.keys().copied().collect::<Vec<_>>(), "{what}");
    for (epoch, states) in all {
        for (rank, state) in (0..).zip(states) {
            let found = job.image_of_rank(Select::Epoch(*epoch), rank).unwrap();
            let (checkpoint, skipped) = found.unwrap();
            assert!(skipped.is_empty(), "{what}: {skipped:?}");
            assert!(restored(&checkpoint) == *state, "{what}: rank {rank} of epoch {epoch}");
        }
    }
    assert_eq!(job.verify(None).unwrap().findings, vec![], "{what}");
}

pub fn prune(pool: &Pool, name: &str, epochs: &[Epoch]) -> GcReport {
    let drop = [(JobName::new(name).unwrap(), epochs.iter().copied().collect())].into();
    collect(pool, &GcOptions { drop, ..GcOptions::default() }).unwrap()
}
