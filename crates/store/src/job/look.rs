//! What a job has: its checkpoints, opened for reading, checked, and chosen by rules.

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

/// A committed checkpoint, as the log tells it.
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
    /// The committed checkpoints, oldest first. Manifests that cannot be read are left out; `verify`
    /// names them.
    ///
    /// # Errors
    /// What the log reports.
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

    /// The number of a checkpoint. Those that the log has are counted from the newest, whole or not.
    ///
    /// # Errors
    /// `Invalid` if there are not so many; `Damaged` if a newer record cannot be read, so that they
    /// cannot be counted; what the log reports. A number is not looked for.
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

    /// What rules would make of the job's checkpoints; without any, those that `pool.toml` gives.
    ///
    /// # Errors
    /// Those of [`Rules::plan`], and what the log reports.
    pub fn retention(&self, rules: &Rules) -> Result<RetentionPlan> {
        let mut rules = rules.clone();
        let keep = &self.pool().config().tuning.keep;
        if rules.is_empty() && !keep.is_empty() {
            rules.add(keep).map_err(|e| e.context("tuning.keep in pool.toml"))?;
        }
        plan_of(self.pool(), self.name(), &rules)
    }

    /// Changes what is said about a checkpoint, and returns what holds then. Its program may save
    /// meanwhile.
    ///
    /// # Errors
    /// `Invalid` if there is no such checkpoint, or the label is too long; what the log reports.
    pub fn note(&self, epoch: Epoch, change: impl Fn(&mut Remarks)) -> Result<Remarks> {
        remark(self.pool(), self.name(), epoch, &change)
    }

    /// Marks a checkpoint as suspect: rules of prunes do not count it, and lazy restores pass over it, until a
    /// verification or a scrub finds it whole.
    ///
    /// # Errors
    /// What the log reports.
    pub fn mark_suspect(&self, epoch: Epoch) -> Result<()> {
        mark_suspect(self.pool(), self.name(), epoch)
    }

    /// The tiers from which alone a checkpoint, the newest without an epoch, can be read now; none of one that is
    /// incomplete. Every target is asked what it has.
    ///
    /// # Errors
    /// `Invalid` if there is no such checkpoint; what log and targets report.
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
    /// `Invalid` if the epoch asked for does not exist; `Damaged` if it, or every checkpoint, is
    /// damaged.
    pub fn image(&self, select: Select) -> Result<Option<(MemoryImage, Skipped)>> {
        first_good(self.pool(), self.name(), select, &mut |_| Ok(()))
            .map(|found| found.map(|(checkpoint, (), skipped)| (checkpoint, skipped)))
    }

    /// Opens what one rank has of a checkpoint, and reads nothing of what other ranks have. `None` if
    /// the job has no checkpoint.
    ///
    /// # Errors
    /// As [`Job::image`]; `Invalid` if the checkpoint has no such rank.
    pub fn image_of_rank(
        &self,
        select: Select,
        rank: Rank,
    ) -> Result<Option<(MemoryImage, Skipped)>> {
        self.attempt_rank(select, rank, &mut |_| Ok(()))
            .map(|found| found.map(|(checkpoint, (), skipped)| (checkpoint, skipped)))
    }

    /// The same, and does `attempt` with it: reads its streams, say. If something proves damaged then,
    /// the next older checkpoint takes its place, unless an epoch was asked for. If a gc has moved
    /// something meanwhile, `attempt` is called again.
    ///
    /// # Errors
    /// As [`Job::image_of_rank`], and those of `attempt`.
    pub fn attempt_rank<T>(
        &self,
        select: Select,
        rank: Rank,
        attempt: &mut dyn FnMut(&MemoryImage) -> Result<T>,
    ) -> Result<Option<(MemoryImage, T, Skipped)>> {
        first_of_rank(self.pool(), self.name(), select, rank, attempt)
    }

    /// Opens what one rank has of a checkpoint, for whoever reads parts of its regions. `None` if the
    /// job has no checkpoint.
    ///
    /// # Errors
    /// As [`Job::image_of_rank`].
    pub fn ranges(&self, select: Select, rank: Rank) -> Result<Option<(RangeReader, Skipped)>> {
        let found = self.image_of_rank(select, rank)?;
        Ok(found.map(|(image, skipped)| (RangeReader::new(image), skipped)))
    }

    /// Opens a checkpoint of files. Without a choice the newest that opens, whatever checkpoints of
    /// memory there are besides. `None` if the job has none at all.
    ///
    /// # Errors
    /// `Invalid` if the epoch asked for does not exist or holds memory; `Damaged` if it, or every
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

    /// Reads and verifies the chosen checkpoints (all without a choice), and the job's log. A chunk
    /// that several checkpoints share is read once.
    ///
    /// # Errors
    /// What the log reports when it is listed; `Invalid` for an epoch that does not exist; that the
    /// medium cannot be asked, or may not. Damage is in the report.
    pub fn verify(&self, only: Option<Epoch>) -> Result<VerifyReport> {
        self.verify_sample(only, Sample::ALL)
    }

    /// The same with a part of the chunks; the log and all page trees are read whole.
    ///
    /// # Errors
    /// As [`Job::verify`].
    pub fn verify_sample(&self, only: Option<Epoch>, sample: Sample) -> Result<VerifyReport> {
        verify(self.pool(), self.name(), only, sample)
    }
}
