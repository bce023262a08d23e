//! Finds the checkpoint to restore: the newest that is whole.

use super::image::MemoryImage;
use super::reload::{Logs, Reload};
use crate::commit::{Entry, history, mark_suspect};
use crate::images::image_to_restore;
use outlive_format::Manifest;
use outlive_pool::Pool;
use outlive_types::{Epoch, Error, ErrorKind, JobName, Rank, Result};

/// Which checkpoint to restore.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Select {
    /// The newest that is whole.
    Newest,
    /// The newest that opens and that nobody has found damaged, for whoever reads only a part.
    Sound,
    /// This one or none.
    Epoch(Epoch),
}

/// Checkpoints that were passed over, newest first, and why. Epoch 0: the manifest could not be read.
pub type Skipped = Vec<(Epoch, Error)>;

/// The epoch that was found, what the attempt made of it, and what was passed over.
type Selection<T> = (Epoch, T, Skipped);

/// Which checkpoints are looked for.
#[derive(Clone, Copy)]
pub struct Kind<'a> {
    /// Whether a manifest is of one of them.
    pub is: &'a dyn Fn(&Manifest) -> bool,
    /// Whether a checkpoint opens: who asked for one that is damaged is told of others.
    pub opens: &'a dyn Fn(&Manifest) -> bool,
}

/// The newest checkpoint of memory that opens and on which `attempt` succeeds. `Damaged` errors send it to the
/// next older one, and so do those of targets that are away while only the slow tier is there; all others end
/// the search. A gc moves chunks while this reads: what is missing then is looked for again as the log has it
/// now.
///
/// # Errors
/// `Invalid` if the epoch asked for does not exist; `Damaged` if nothing whole was found, unless all is recorded
/// as incomplete in a pool with targets in memory: then there is nothing.
pub fn first_good<T>(
    pool: &Pool,
    name: &JobName,
    select: Select,
    attempt: &mut dyn FnMut(&MemoryImage) -> Result<T>,
) -> Result<Option<(MemoryImage, T, Skipped)>> {
    let is_memory = |manifest: &Manifest| !manifest.is_of_files();
    let opens = |manifest: &Manifest| MemoryImage::open(pool, name, manifest.clone()).is_ok();
    let kind = Kind { is: &is_memory, opens: &opens };
    let found = first_manifest(pool, name, select, kind, &mut |manifest, as_of| {
        let found = MemoryImage::open_as_of(pool, name, manifest.clone(), as_of)?;
        attempt(&found).map(|value| (found, value))
    })?;
    Ok(found.map(|(_, (checkpoint, value), skipped)| (checkpoint, value, skipped)))
}

/// What one rank has of the newest checkpoint of memory that opens for it, and on which `attempt`
/// succeeds; otherwise as [`first_good`].
///
/// # Errors
/// As [`first_good`]; `Invalid` if a checkpoint has no such rank.
pub fn first_of_rank<T>(
    pool: &Pool,
    name: &JobName,
    select: Select,
    rank: Rank,
    attempt: &mut dyn FnMut(&MemoryImage) -> Result<T>,
) -> Result<Option<(MemoryImage, T, Skipped)>> {
    let found = first_with_rank(pool, name, select, rank, &mut |manifest, as_of| {
        let image = image_to_restore(pool, manifest, rank)?;
        let found = MemoryImage::open_image(pool, name, manifest.clone(), image, as_of)?;
        attempt(&found).map(|value| (found, value))
    })?;
    Ok(found.map(|(_, (checkpoint, value), skipped)| (checkpoint, value, skipped)))
}

/// The newest manifest of memory that opens for a rank, and on which `attempt`, which gets the number of the
/// newest record besides, succeeds; otherwise as [`first_good`].
///
/// # Errors
/// As [`first_good`].
pub fn first_with_rank<T>(
    pool: &Pool,
    name: &JobName,
    select: Select,
    rank: Rank,
    attempt: &mut dyn FnMut(&Manifest, u64) -> Result<T>,
) -> Result<Option<Selection<T>>> {
    let open = |manifest: &Manifest| MemoryImage::open_rank(pool, name, manifest.clone(), rank);
    let is_memory = |manifest: &Manifest| !manifest.is_of_files();
    let opens = |manifest: &Manifest| open(manifest).is_ok();
    first_manifest(pool, name, select, Kind { is: &is_memory, opens: &opens }, attempt)
}

/// The newest manifest of a kind on which `attempt`, which gets the number of the newest record
/// besides, succeeds; otherwise as [`first_good`]. An epoch that is asked for may be of any kind. The log records
/// which checkpoints proved damaged.
///
/// # Errors
/// As [`first_good`].
pub fn first_manifest<T>(
    pool: &Pool,
    name: &JobName,
    select: Select,
    kind: Kind<'_>,
    attempt: &mut dyn FnMut(&Manifest, u64) -> Result<T>,
) -> Result<Option<Selection<T>>> {
    let mut passed = Skipped::new();
    let found = search(pool, name, select, kind, attempt, &mut passed);
    for (epoch, _) in passed.iter().filter(|(_, why)| why.kind() == ErrorKind::Damaged) {
        // A pool that cannot be written to is read all the same.
        let _ = mark_suspect(pool, name, *epoch);
    }
    found
}

/// The same, and records nothing.
///
/// # Errors
/// As [`first_good`].
pub fn find_manifest<T>(
    pool: &Pool,
    name: &JobName,
    select: Select,
    kind: Kind<'_>,
    attempt: &mut dyn FnMut(&Manifest, u64) -> Result<T>,
) -> Result<Option<Selection<T>>> {
    search(pool, name, select, kind, attempt, &mut Skipped::new())
}

/// The same; says in `passed` which checkpoints it passed over, also if it fails.
fn search<T>(
    pool: &Pool,
    name: &JobName,
    select: Select,
    kind: Kind<'_>,
    attempt: &mut dyn FnMut(&Manifest, u64) -> Result<T>,
    passed: &mut Skipped,
) -> Result<Option<Selection<T>>> {
    let jobs = [name];
    let mut again: Option<Reload<'_>> = None;
    loop {
        let (listed, as_of, newest, skipped) = Default::default();
        let lost = 0;
        let mut search = Search { pool, name, select, kind, listed, as_of, newest, skipped, lost };
        let found = search.run(attempt)?;
        let since = || Reload::since(pool, Logs::Of(&jobs), name, search.listed);
        let is_over =
            search.skipped.is_empty() || !again.get_or_insert_with(since).is_worth_it()?;
        if is_over {
            passed.clone_from(&search.skipped);
            return search.conclude(found);
        }
    }
}

/// Why a checkpoint is passed over that was found damaged by somebody who could not go on with it.
pub fn suspect(pool: &Pool, epoch: Epoch, job: &JobName) -> Error {
    Error::damaged(format!(
        "checkpoint {epoch} of job {job} is suspect: damage was found in it; `{}` \
         says where, or clears the mark if all of it is whole again",
        pool.command("verify", &[job.as_str()])
    ))
}

/// Why a checkpoint is passed over that a scrub has recorded as incomplete.
pub fn incomplete(pool: &Pool, epoch: Epoch, job: &JobName) -> Error {
    Error::damaged(format!(
        "checkpoint {epoch} of job {job} is incomplete: a scrub has found that something of it is lost; \
         `{}` says what",
        pool.command("verify", &[&format!("{}@{epoch}", job.as_str())])
    ))
}

struct Search<'a> {
    pool: &'a Pool,
    name: &'a JobName,
    select: Select,
    kind: Kind<'a>,
    /// Number of the log's newest record when the search began.
    listed: u64,
    /// Number of the newest record that was read: an archive may have taken the place of others.
    as_of: u64,
    /// Newest epoch seen.
    newest: Epoch,
    skipped: Skipped,
    /// Of these, how many the log says to be incomplete.
    lost: usize,
}

impl Search<'_> {
    fn run<T>(
        &mut self,
        attempt: &mut dyn FnMut(&Manifest, u64) -> Result<T>,
    ) -> Result<Option<(Epoch, T)>> {
        let Search { pool, name, select, kind, .. } = *self;
        for entry in history(pool, name)? {
            if self.listed == 0 {
                self.listed = entry.number;
            }
            self.as_of = self.as_of.max(entry.number);
            let outcome = match (&entry.record, entry.manifest()) {
                (Ok(_), None) => continue,
                (Ok(_), Some(manifest)) => {
                    self.newest = self.newest.max(manifest.epoch);
                    match select {
                        Select::Epoch(epoch) if epoch != manifest.epoch => continue,
                        Select::Newest | Select::Sound if !(kind.is)(manifest) => continue,
                        Select::Sound if manifest.remarks.suspect => {
                            let why = suspect(pool, manifest.epoch, name);
                            self.lost += usize::from(entry.incomplete);
                            self.skipped.push((manifest.epoch, why));
                            continue;
                        }
                        Select::Sound if entry.incomplete => {
                            let why = incomplete(pool, manifest.epoch, name);
                            self.lost += 1;
                            self.skipped.push((manifest.epoch, why));
                            continue;
                        }
                        _ => {}
                    }
                    // The first attempt may have been what found that the targets are away.
                    let mut tried = attempt(manifest, self.as_of);
                    if tried.as_ref().is_err_and(|e| e.kind() == ErrorKind::Retry)
                        && pool.is_slow_alone()
                    {
                        tried = attempt(manifest, self.as_of);
                    }
                    tried
                        .map(|value| (manifest.epoch, value))
                        .map_err(|error| (manifest.epoch, error))
                }
                // What cannot be read may have been a checkpoint; its epoch is not known.
                (Err(error), _) => Err((0, error.clone())),
            };
            match outcome {
                Ok(found) => return Ok(Some(found)),
                Err((epoch, error)) if error.kind() == ErrorKind::Damaged => {
                    self.lost += usize::from(entry.incomplete);
                    self.skipped.push((epoch, error));
                }
                // What is only on a target that is away is not lost. But whoever restores from the slow
                // tier wants what is there, as long as nothing else can come.
                Err((epoch, error))
                    if error.is_away()
                        && !matches!(select, Select::Epoch(_))
                        && pool.is_slow_alone() =>
                {
                    self.skipped.push((epoch, error));
                }
                Err((_, error)) => return Err(error),
            }
        }
        Ok(None)
    }

    fn conclude<T>(self, found: Option<(Epoch, T)>) -> Result<Option<Selection<T>>> {
        let Search { pool, name, select, newest, .. } = self;
        let skipped = &self.skipped;
        if let Some((epoch, value)) = found {
            for (passed, error) in skipped {
                pool.warn(match error.kind() {
                    ErrorKind::Retry => format!(
                        "passed over checkpoint {passed}, which is not whole on the slow tier, and took \
                         epoch {epoch}: {}",
                        error.message()
                    ),
                    _ => format!(
                        "passed over a damaged checkpoint and took epoch {epoch}: {error}"
                    ),
                });
            }
            return Ok(Some((epoch, value, self.skipped)));
        }
        // One that is away may be whole.
        let away = skipped.iter().find(|(_, error)| error.kind() == ErrorKind::Retry);
        if let (Some((_, away)), false) = (away, matches!(select, Select::Epoch(_))) {
            return Err(away.clone().context(format!(
                "no checkpoint of job {name} is whole on the slow tier, and the fast one is away"
            )));
        }
        let is_all = !skipped.is_empty() && self.lost == skipped.len();
        if is_all && !matches!(select, Select::Epoch(_)) && pool.has_volatile() {
            // As was to be expected when the host of such a pool is started anew: its programs begin anew.
            pool.warn(format!(
                "job {name} has no checkpoint any more: all {} were lost with the memory that they were in, \
                 and are recorded as incomplete",
                skipped.len()
            ));
            return Ok(None);
        }
        match (select, skipped.first()) {
            (Select::Epoch(epoch), None) => Err(Error::invalid(format!(
                "job {name} has no checkpoint {epoch}{}",
                if newest > 0 { format!("; its newest is {newest}") } else { String::new() }
            ))),
            (Select::Epoch(epoch), Some((_, first))) => Err(self.one_damaged(epoch, first)),
            (_, Some((_, first))) => Err(Error::damaged(format!(
                "no whole checkpoint of job {name} was found ({} damaged): {first}",
                skipped.len()
            ))),
            (Select::Newest | Select::Sound, None) => Ok(None),
        }
    }

    /// The error for an epoch that was asked for and is damaged; others may be whole.
    fn one_damaged(&self, epoch: Epoch, why: &Error) -> Error {
        let (pool, name) = (self.pool, self.name);
        let of = format!("checkpoint {epoch} of job {name}");
        let why = why.message().strip_prefix(&format!("{of}: ")).unwrap_or(why.message());
        // A program's memory does not help who asked for files, nor the other way round.
        let is_asked = |entry: &Entry| entry.manifest().is_some_and(|m| m.epoch == epoch);
        let asked = history(pool, name).ok().and_then(|mut entries| entries.find(is_asked));
        let kind = asked.as_ref().and_then(Entry::manifest).map(Manifest::is_of_files);
        let is_sound = |entry: &Entry, manifest: &Manifest| {
            let is_marked = entry.incomplete || manifest.remarks.suspect;
            let is_kind = kind.is_none_or(|kind| manifest.is_of_files() == kind);
            let is_other = manifest.epoch != epoch && is_kind;
            is_other && !is_marked && (self.kind.opens)(manifest)
        };
        let sound = history(pool, name).ok().and_then(|mut entries| {
            entries.find_map(|entry| {
                let manifest = entry.manifest().filter(|manifest| is_sound(&entry, manifest))?;
                Some(manifest.epoch)
            })
        });
        let others = match sound {
            Some(sound) => format!("the newest without known damage is {sound}"),
            None => "no other is known to be whole".to_owned(),
        };
        Error::damaged(format!("{of} is damaged: {why}; {others}"))
    }
}
