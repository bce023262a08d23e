//! Checks stored data logically, by reading whole checkpoints. The pool checks it physically, shard
//! by shard.

mod passed;

use crate::commit::history;
use crate::images::{each_image, pages_of};
use crate::index::ReadItem;
use crate::read::ReadPlan;
use crate::read::{AnyImage, Logs, Reload, image_words};
use crate::redundancy::{KnownSegments, packs_of};
use outlive_format::{Image, Manifest};
use outlive_pool::{Named, PackExtent, Pool, StoredShard};
use outlive_types::{Epoch, Error, ErrorKind, Fingerprint, JobName, Result, Rng};
use passed::Passed;
use std::collections::{HashMap, HashSet};

/// A fault that a verification found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The checkpoint that is incomplete; `None` for damage outside all checkpoints.
    pub epoch: Option<Epoch>,
    /// The fault, and where it is.
    pub error: Error,
}

/// Findings of a verification.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VerifyReport {
    /// Number of checkpoints checked.
    pub checkpoints: u64,
    /// Number of whole ones.
    pub whole: u64,
    /// Number of shards checked.
    pub shards: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// All faults.
    pub findings: Vec<Finding>,
}

/// A random part of all chunks and shards: each is in it with the same probability.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sample {
    share: f64,
    seed: u64,
}

impl Sample {
    /// Everything.
    pub const ALL: Sample = Sample { share: 1.0, seed: 0 };

    /// Returns a sample with about this share, 0 to 1; another one each time.
    pub fn new(share: f64, rng: &dyn Rng) -> Sample {
        let mut seed = [0; 8];
        rng.fill(&mut seed);
        Sample { share, seed: u64::from_le_bytes(seed) }
    }

    /// Whether an object with this fingerprint is in it.
    pub fn holds(&self, fp: &Fingerprint) -> bool {
        self.share >= 1.0 || (self.turned(fp) as f64) < self.share * u64::MAX as f64
    }

    /// Keeps those of `items` that are in it, but always one: otherwise every small sample would
    /// pass over a few items.
    pub fn choose<T>(&self, items: &mut Vec<T>, fp: impl Fn(&T) -> Fingerprint) {
        let nearest = items.iter().map(&fp).min_by_key(|fp| self.turned(fp));
        items.retain(|item| {
            let fp = fp(item);
            self.holds(&fp) || Some(fp) == nearest
        });
    }

    /// Mixes a fingerprint with a random number: fingerprints are uniform, and stay so.
    fn turned(&self, fp: &Fingerprint) -> u64 {
        fp.prefix().wrapping_mul(self.seed | 1).rotate_left(32) ^ self.seed
    }
}

/// Whether an error shows that stored data has changed. A pack of another pool or version under its
/// name is damage, and so is damage that the system reports (`Error::io_stored`). Other refusals of
/// the system are not: they prevent a look at the data. Data of a later build is no damage either.
pub fn is_damage(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::Damaged => true,
        ErrorKind::Invalid => error.os().is_none() && !error.is_newer(),
        _ => false,
    }
}

/// Reads and verifies one checkpoint of a job, or all, and the job's log; of chunks only a sample.
///
/// # Errors
/// As [`Job::verify`](crate::Job::verify).
pub fn verify(
    pool: &Pool,
    job: &JobName,
    only: Option<Epoch>,
    sample: Sample,
) -> Result<VerifyReport> {
    Verification { pool: &pool.to_check(), job, sample }.until_it_holds(only)
}

/// Extent of a verification.
#[derive(Clone, Copy)]
struct Verification<'a> {
    pool: &'a Pool,
    job: &'a JobName,
    sample: Sample,
}

impl Verification<'_> {
    fn until_it_holds(self, only: Option<Epoch>) -> Result<VerifyReport> {
        let jobs = [self.job];
        let mut again = Reload::new(self.pool, Logs::Of(&jobs))?;
        let mut verified: HashSet<PackExtent> = HashSet::new();
        let mut read_bytes = 0;
        loop {
            let looked = self.look(only, &mut verified);
            // A gc may have moved data meanwhile, and a prune may have dropped it. Data that was
            // whole until then is not read again.
            let is_whole = looked.as_ref().is_ok_and(|report| report.findings.is_empty());
            if is_whole || !again.is_worth_it()? {
                return looked.map(|mut report| {
                    report.read_bytes += read_bytes;
                    report
                });
            }
            read_bytes += looked.map_or(0, |report| report.read_bytes);
        }
    }

    fn look(
        &self,
        only: Option<Epoch>,
        verified: &mut HashSet<PackExtent>,
    ) -> Result<VerifyReport> {
        let mut report = VerifyReport::default();
        // Each with its position in the log, newest first.
        let mut findings: Vec<(usize, Finding)> = Vec::new();
        let mut manifests: Vec<(usize, Manifest)> = Vec::new();
        let mut later: Option<(u64, Fingerprint)> = None;
        for (at, entry) in history(self.pool, self.job)?.enumerate() {
            let mut find = |error| findings.push((at, Finding { epoch: None, error }));
            let record = match &entry.record {
                Ok(record) => record,
                Err(error) => {
                    find(error.clone());
                    later = None;
                    continue;
                }
            };
            if let Some((number, previous)) = later
                && number == entry.number + 1
                && entry.fp != previous
            {
                find(Error::damaged(format!(
                    "log record {number} does not follow on record {}",
                    entry.number
                )));
            }
            later = Some((entry.number, record.previous));
            let chosen = |manifest: &&Manifest| only.is_none_or(|only| only == manifest.epoch);
            manifests.extend(entry.manifest().filter(chosen).map(|m| (at, m.clone())));
        }
        // After a prune, the checkpoints of several chains have the same segments.
        let mut passed = Passed::default();
        for (at, manifest) in lines(manifests).into_iter().flatten() {
            report.checkpoints += 1;
            if let Ok(wanted) = passed.next(self.pool, self.job, &manifest) {
                let (read_bytes, faults) = verify_chunks(self.pool, wanted, self.sample, verified);
                report.read_bytes += read_bytes;
                if faults.is_empty() {
                    report.whole += 1;
                    continue;
                }
            }
            // By itself, to find out which objects are wrong, and what they belong to.
            passed.forget();
            let (read_bytes, found) = self.look_at(&manifest, verified)?;
            report.read_bytes += read_bytes;
            report.whole += u64::from(found.is_empty());
            findings.extend(found.into_iter().map(|finding| (at, finding)));
        }
        findings.sort_by_key(|(at, _)| *at);
        report.findings = findings.into_iter().map(|(_, finding)| finding).collect();
        match only {
            Some(epoch) if report.checkpoints == 0 && report.findings.is_empty() => {
                Err(Error::invalid(format!("job {} has no checkpoint {epoch}", self.job)))
            }
            _ => Ok(report),
        }
    }

    /// Checks all of one checkpoint, image by image. Returns the number of bytes read, and the
    /// faults.
    fn look_at(
        &self,
        manifest: &Manifest,
        verified: &mut HashSet<PackExtent>,
    ) -> Result<(u64, Vec<Finding>)> {
        let (mut all_bytes, mut all) = (0, Vec::new());
        let looked = each_image(self.pool, manifest, &mut |image| {
            let (read_bytes, found) = self.look_at_image(manifest, image, verified)?;
            all_bytes += read_bytes;
            all.extend(found);
            Ok(())
        });
        match looked {
            // Only a page of the image table is damaged here.
            Err(error) if is_damage(&error) => {
                let epoch = manifest.epoch;
                let error = error.context(format!("checkpoint {epoch} of job {}", self.job));
                all.push(Finding { epoch: Some(epoch), error });
            }
            looked => looked?,
        }
        Ok((all_bytes, all))
    }

    fn look_at_image(
        &self,
        manifest: &Manifest,
        image: &Image,
        verified: &mut HashSet<PackExtent>,
    ) -> Result<(u64, Vec<Finding>)> {
        let pool = self.pool;
        let epoch = manifest.epoch;
        let of = || image_words(self.job, manifest, image.reference.rank);
        let finding = |error: Error| Finding { epoch: Some(epoch), error: error.context(of()) };
        let opened = match AnyImage::image(pool, self.job, manifest, image.clone()) {
            Ok(opened) => opened,
            Err(error) if !is_damage(&error) => return Err(error),
            Err(error) => return Ok((0, vec![Finding { epoch: Some(epoch), error }])),
        };
        let (wanted, missing) = opened.wanted();
        let (read_bytes, faults) = verify_chunks(pool, wanted, self.sample, verified);
        let mut errors = missing.iter().chain(faults.iter().map(|(_, error)| error));
        if let Some(error) = errors.find(|error| !is_damage(error)) {
            return Err(error.clone().context(of()));
        }
        let mut findings: Vec<Finding> = missing.into_iter().map(finding).collect();
        let fps = faults.iter().map(|(fp, _)| *fp);
        let owners = match faults.is_empty() {
            true => HashMap::new(),
            // The damage is reported even without names.
            false => opened.owners(pool, fps).unwrap_or_default(),
        };
        findings.extend(faults.into_iter().map(|(fp, error)| {
            finding(match owners.get(&fp) {
                Some(owners) => error.context(owners),
                None => error,
            })
        }));
        Ok((read_bytes, findings))
    }
}

/// Sorts checkpoints, given newest first, into chains, each oldest first: a checkpoint and its
/// parent have most in common.
fn lines(manifests: Vec<(usize, Manifest)>) -> Vec<Vec<(usize, Manifest)>> {
    let mut lines: Vec<Vec<(usize, Manifest)>> = Vec::new();
    let mut ends: HashMap<Epoch, usize> = HashMap::new();
    for (at, manifest) in manifests.into_iter().rev() {
        let line = ends.remove(&manifest.parent).unwrap_or(lines.len());
        ends.insert(manifest.epoch, line);
        match lines.get_mut(line) {
            Some(line) => line.push((at, manifest)),
            None => lines.push(vec![(at, manifest)]),
        }
    }
    lines
}

/// Returns the number of bytes read, and the wrong chunks.
fn verify_chunks(
    pool: &Pool,
    mut wanted: Vec<ReadItem>,
    sample: Sample,
    verified: &mut HashSet<PackExtent>,
) -> (u64, Vec<(Fingerprint, Error)>) {
    wanted.sort_unstable_by_key(|w| w.extent);
    wanted.dedup_by_key(|w| (w.extent, w.fp));
    wanted.retain(|w| sample.holds(&w.fp) && !verified.contains(&w.extent));
    let plan = ReadPlan::new(pool, &wanted);
    let faults = plan.execute_in_turns(pool, pool.config().tuning.threads(), true, &|_, _| Ok(()));
    let bad: HashSet<usize> = faults.iter().map(|fault| fault.wanted).collect();
    let good = wanted.iter().enumerate().filter(|(at, _)| !bad.contains(at));
    verified.extend(good.map(|(_, w)| w.extent));
    (plan.read_bytes, faults.into_iter().map(|f| (wanted[f.wanted].fp, f.error)).collect())
}

/// Leaves out faults that a gc has caused since the shards were listed: a shard that it deleted is
/// missing, and no checkpoint needs it.
///
/// # Errors
/// Errors of targets and log.
pub fn without_collected(
    pool: &Pool,
    faults: Vec<(StoredShard, Error)>,
) -> Result<Vec<(StoredShard, Error)>> {
    if faults.is_empty() {
        return Ok(faults);
    }
    let there: HashSet<StoredShard> = pool.shards()?.into_iter().collect();
    if faults.iter().all(|(shard, _)| there.contains(shard)) {
        return Ok(faults);
    }
    // A gc reports before it deletes a shard, so a log that is read now names no shard that it
    // deleted.
    let named = named_packs(pool)?;
    let is_fault =
        |(shard, _): &(StoredShard, Error)| there.contains(shard) || named.may_have(&shard.pack());
    Ok(faults.into_iter().filter(is_fault).collect())
}

/// Returns the packs that the checkpoints of all jobs name.
///
/// # Errors
/// Errors of targets and log.
pub fn named_packs(pool: &Pool) -> Result<Named> {
    let (mut named, mut known) = (Named::default(), KnownSegments::new());
    for job in pool.jobs()? {
        for entry in history(pool, &job)? {
            let entry = entry.unless_unread()?;
            named.is_partial |= entry.record.is_err();
            let Some(manifest) = entry.manifest() else { continue };
            match packs_of(pool, manifest, &mut known) {
                Ok(packs) => named.packs.extend(packs),
                Err(error) if error.kind() == ErrorKind::Damaged => {
                    named.packs.extend(pages_of(manifest).map(|page| page.pack));
                    named.is_partial = true;
                }
                Err(error) => return Err(error),
            }
        }
    }
    named.is_partial |= known.values().any(Option::is_none);
    Ok(named)
}
