//! The contents of a job: its checkpoints, opened for reading, checked, and chosen by rules.

use super::Job;
use crate::commit::{history, mark_suspect};
use crate::read::files::FilesImage;
use crate::read::{
    Kind, MemoryImage, RangeReader, Select, Skipped, first_good, first_manifest, first_of_rank,
};
use crate::redundancy::RedundancyLook;
use crate::retention::{RetentionPlan, Rules, plan_of};
use crate::save::remark;
use crate::verify::{Sample, VerifyReport, verify};
use outlive_format::{Manifest, Remarks};
use outlive_pool::Tier;
use outlive_types::{Epoch, EpochName, Error, Rank, Result};

/// A committed checkpoint in the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EpochInfo {
    /// The epoch.
    pub epoch: Epoch,
    /// Its manifest.
    pub manifest: Manifest,
    /// Length of the manifest's record.
    pub record_bytes: u64,
}

impl Job {
    /// Returns the committed checkpoints, oldest first. Omits manifests that cannot be read;
    /// `verify` names them.
    ///
    /// # Errors
    /// Errors of the log.
    pub fn epochs(&self) -> Result<Vec<EpochInfo>> {
        let mut epochs = Vec::new();
        for entry in history(self.pool(), self.name())? {
            let entry = entry.unless_unread()?;
            if let Some(manifest) = entry.manifest().cloned() {
                let (epoch, record_bytes) = (manifest.epoch, entry.bytes);
                epochs.push(EpochInfo { epoch, manifest, record_bytes });
            }
        }
        epochs.reverse();
        Ok(epochs)
    }

    /// Returns the number of a checkpoint. A count from the newest includes damaged checkpoints.
    ///
    /// # Errors
    /// `Invalid` if there are fewer; `Damaged` if a newer record cannot be read, which makes a
    /// count impossible; errors of the log. Whether a given number exists is not checked.
    pub fn epoch_named(&self, name: EpochName) -> Result<Epoch> {
        let back = match name {
            EpochName::Number(epoch) => return Ok(epoch),
            EpochName::FromNewest(back) => back,
        };
        let job = self.name();
        let mut count = 0;
        for entry in history(self.pool(), job)? {
            let entry = entry.unless_unread()?;
            if let Err(error) = &entry.record {
                return Err(error.clone().context(format!(
                    "checkpoint {name} of job {job} cannot be counted from the newest: name it by its \
                     number"
                )));
            }
            if let Some(manifest) = entry.manifest() {
                count += 1;
                if count == back {
                    return Ok(manifest.epoch);
                }
            }
        }
        Err(Error::invalid(match count {
            0 => format!("job {job} has no checkpoint yet"),
            1 => format!("job {job} has no checkpoint {name}: it has only one, which is -1"),
            _ => format!("job {job} has no checkpoint {name}: it has {count}, from -1 to -{count}"),
        }))
    }

    /// Plans the retention of the job's checkpoints; without rules, by those in `pool.toml`.
    ///
    /// # Errors
    /// Errors of [`Rules::plan`] and of the log.
    pub fn retention(&self, rules: &Rules) -> Result<RetentionPlan> {
        let mut rules = rules.clone();
        let keep = &self.pool().config().tuning.keep;
        if rules.is_empty() && !keep.is_empty() {
            rules.add(keep).map_err(|e| e.context("tuning.keep in pool.toml"))?;
        }
        plan_of(self.pool(), self.name(), &rules)
    }

    /// Changes the remarks of a checkpoint, and returns the new ones. Its program may save
    /// meanwhile.
    ///
    /// # Errors
    /// `Invalid` if there is no such checkpoint, or the label is too long; errors of the log.
    pub fn note(&self, epoch: Epoch, change: impl Fn(&mut Remarks)) -> Result<Remarks> {
        remark(self.pool(), self.name(), epoch, &change)
    }

    /// Marks a checkpoint as suspect: prune rules do not count it, and lazy restores skip it, until
    /// a verification or a scrub finds it whole.
    ///
    /// # Errors
    /// Errors of the log.
    pub fn mark_suspect(&self, epoch: Epoch) -> Result<()> {
        mark_suspect(self.pool(), self.name(), epoch)
    }

    /// Returns the tiers that each have all of a checkpoint now; none for an incomplete one.
    /// Without an epoch it is the newest checkpoint. Asks every target for its shards.
    ///
    /// # Errors
    /// `Invalid` if there is no such checkpoint; errors of log and targets.
    pub fn tiers(&self, epoch: Option<Epoch>) -> Result<Vec<Tier>> {
        let mut look = RedundancyLook::new(self.pool())?;
        for entry in history(self.pool(), self.name())? {
            let entry = entry.unless_unread()?;
            let is_it = |manifest: &&Manifest| epoch.is_none_or(|epoch| manifest.epoch == epoch);
            if let Some(manifest) = entry.manifest().filter(is_it) {
                return Ok(look.at(self.name(), manifest, entry.incomplete).tiers);
            }
        }
        Err(match epoch {
            Some(epoch) => {
                Error::invalid(format!("there is no checkpoint {epoch} of job {}", self.name()))
            }
            None => Error::invalid(format!("job {} has no checkpoint yet", self.name())),
        })
    }

    /// Opens the only image of a checkpoint for reading. `None` if the job has no checkpoint.
    ///
    /// # Errors
    /// `Invalid` if the requested epoch does not exist; `Damaged` if it, or every checkpoint, is
    /// damaged.
    pub fn image(&self, select: Select) -> Result<Option<(MemoryImage, Skipped)>> {
        first_good(self.pool(), self.name(), select, &mut |_| Ok(()))
            .map(|found| found.map(|(checkpoint, (), skipped)| (checkpoint, skipped)))
    }

    /// Opens one rank's image of a checkpoint, and reads no data of other ranks. `None` if the job
    /// has no checkpoint.
    ///
    /// # Errors
    /// As for [`Job::image`]; `Invalid` if the checkpoint has no such rank.
    pub fn image_of_rank(
        &self,
        select: Select,
        rank: Rank,
    ) -> Result<Option<(MemoryImage, Skipped)>> {
        self.attempt_rank(select, rank, &mut |_| Ok(()))
            .map(|found| found.map(|(checkpoint, (), skipped)| (checkpoint, skipped)))
    }

    /// Does the same, and calls `attempt` with the image, for example to read its streams. If data
    /// proves damaged then, the next older checkpoint takes its place, unless an epoch was
    /// requested. If a gc has moved data meanwhile, `attempt` is called again.
    ///
    /// # Errors
    /// As for [`Job::image_of_rank`]; errors of `attempt`.
    pub fn attempt_rank<T>(
        &self,
        select: Select,
        rank: Rank,
        attempt: &mut dyn FnMut(&MemoryImage) -> Result<T>,
    ) -> Result<Option<(MemoryImage, T, Skipped)>> {
        first_of_rank(self.pool(), self.name(), select, rank, attempt)
    }

    /// Opens one rank's image of a checkpoint, for readers of parts of its regions. `None` if the
    /// job has no checkpoint.
    ///
    /// # Errors
    /// As for [`Job::image_of_rank`].
    pub fn ranges(&self, select: Select, rank: Rank) -> Result<Option<(RangeReader, Skipped)>> {
        let found = self.image_of_rank(select, rank)?;
        Ok(found.map(|(image, skipped)| (RangeReader::new(image), skipped)))
    }

    /// Opens a checkpoint of files. Without an epoch it is the newest one of files that opens, even
    /// if there are checkpoints of memory. `None` if the job has none of files.
    ///
    /// # Errors
    /// `Invalid` if the requested epoch does not exist or holds memory; `Damaged` if it, or every
    /// one, is damaged.
    pub fn files(&self, select: Select) -> Result<Option<(FilesImage, Skipped)>> {
        let (pool, name) = (self.pool(), self.name());
        let opens = |manifest: &Manifest| FilesImage::opens(pool, name, manifest);
        let kind = Kind { is: &Manifest::is_of_files, opens: &opens };
        let found = first_manifest(pool, name, select, kind, &mut |manifest, as_of| {
            FilesImage::open(pool, name, manifest.clone(), as_of)
        })?;
        Ok(found.map(|(_, checkpoint, skipped)| (checkpoint, skipped)))
    }

    /// Reads and verifies one checkpoint (all, without an epoch) and the job's log. A chunk that
    /// several checkpoints share is read once.
    ///
    /// # Errors
    /// Errors of listing the log; `Invalid` for an epoch that does not exist; an error of a medium
    /// that does not respond or denies access. Damage is in the report.
    pub fn verify(&self, only: Option<Epoch>) -> Result<VerifyReport> {
        self.verify_sample(only, Sample::ALL)
    }

    /// Does the same with a part of the chunks; reads the whole log and all page trees.
    ///
    /// # Errors
    /// As for [`Job::verify`].
    pub fn verify_sample(&self, only: Option<Epoch>, sample: Sample) -> Result<VerifyReport> {
        verify(self.pool(), self.name(), only, sample)
    }
}
