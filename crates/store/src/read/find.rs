//! Finds the checkpoint to restore: the newest whole one.

use super::image::MemoryImage;
use super::reload::{Logs, Reload};
use crate::commit::{Entry, history, mark_suspect};
use crate::images::image_to_restore;
use outlive_format::{Manifest, Mark};
use outlive_pool::Pool;
use outlive_types::{Epoch, Error, ErrorKind, JobName, Rank, Result};

/// The checkpoint to restore.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Select {
    /// The newest whole one.
    Newest,
    /// The newest one that opens and has no known damage, for readers of only a part.
    Sound,
    /// Only this one.
    Epoch(Epoch),
}

/// Skipped checkpoints, newest first, with the errors. Epoch 0: the manifest could not be read.
pub type Skipped = Vec<(Epoch, Error)>;

/// The epoch that was found, the result of the attempt, and the skipped checkpoints.
type Selection<T> = (Epoch, T, Skipped);

/// The checkpoints that a search considers.
#[derive(Clone, Copy)]
pub struct Kind<'a> {
    /// Whether a manifest describes one of them.
    pub is: &'a dyn Fn(&Manifest) -> bool,
    /// Whether a checkpoint opens: the error for a damaged epoch names another one that does.
    pub opens: &'a dyn Fn(&Manifest) -> bool,
}

/// Returns the newest checkpoint of memory that opens and on which `attempt` succeeds. After a
/// `Damaged` error the search tries the next older one. It does so, too, after errors of away
/// targets, while only the slow tier is reachable. All other errors end it. If a gc moves chunks
/// meanwhile, the search looks for missing data again, as the log has it then.
///
/// # Errors
/// `Invalid` if the requested epoch does not exist; `Damaged` if no whole checkpoint was found. In
/// a pool with volatile targets, the result is `None` if all checkpoints are recorded as
/// incomplete.
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

/// Returns one rank's image of the newest checkpoint of memory that opens for it, and on which
/// `attempt` succeeds; otherwise as [`first_good`].
///
/// # Errors
/// As for [`first_good`]; `Invalid` if a checkpoint has no such rank.
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

/// Returns the newest manifest of memory that opens for a rank, and on which `attempt` succeeds;
/// otherwise as [`first_good`]. `attempt` also gets the number of the newest record.
///
/// # Errors
/// As for [`first_good`].
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

/// Returns the newest manifest of a kind on which `attempt` succeeds; otherwise as [`first_good`].
/// `attempt` also gets the number of the newest record. A requested epoch may be of any kind. The
/// log records which checkpoints proved damaged.
///
/// # Errors
/// As for [`first_good`].
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
        // A pool that is not writable can be read all the same.
        let _ = mark_suspect(pool, name, *epoch);
    }
    found
}

/// Does the same, and records nothing.
///
/// # Errors
/// As for [`first_good`].
pub fn find_manifest<T>(
    pool: &Pool,
    name: &JobName,
    select: Select,
    kind: Kind<'_>,
    attempt: &mut dyn FnMut(&Manifest, u64) -> Result<T>,
) -> Result<Option<Selection<T>>> {
    search(pool, name, select, kind, attempt, &mut Skipped::new())
}

/// Does the same; lists the skipped checkpoints in `passed`, also if it fails.
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

/// Returns the error for a skipped checkpoint that is marked suspect.
pub fn suspect(pool: &Pool, epoch: Epoch, job: &JobName) -> Error {
    Error::damaged(format!(
        "checkpoint {epoch} of job {job} is suspect: damage was found in it; `{}` \
         says where, or clears the mark if all of it is whole again",
        pool.command("verify", &[job.as_str()])
    ))
}

/// Returns the error for a skipped checkpoint that is marked as bad; of the skipped ones only these
/// have the kind `Invalid`.
pub fn marked_bad(epoch: Epoch, job: &JobName) -> Error {
    Error::invalid(format!("checkpoint {epoch} of job {job} is marked as bad"))
}

/// Returns the error for a job of which no checkpoint has another mark.
pub fn all_marked_bad(pool: &Pool, job: &JobName) -> Error {
    Error::invalid(format!(
        "every checkpoint of job {job} is marked as bad: restore one by its number, or take a mark back with \
         `{}`",
        pool.command("mark", &[&format!("{job}@EPOCH"), "none"])
    ))
}

/// Returns the error for a skipped checkpoint that a scrub has recorded as incomplete.
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
    /// Number of the newest record that was read: an archive may have replaced others.
    as_of: u64,
    /// Newest epoch seen.
    newest: Epoch,
    skipped: Skipped,
    /// Number of them that the log lists as incomplete.
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
                        Select::Newest | Select::Sound if manifest.remarks.mark == Mark::Bad => {
                            self.lost += usize::from(entry.incomplete);
                            self.skipped.push((manifest.epoch, marked_bad(manifest.epoch, name)));
                            continue;
                        }
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
                    // The first attempt may have found out that the targets are away.
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
                // An unreadable record may have been a checkpoint; its epoch is unknown.
                (Err(error), _) => Err((0, error.clone())),
            };
            match outcome {
                Ok(found) => return Ok(Some(found)),
                Err((epoch, error)) if error.kind() == ErrorKind::Damaged => {
                    self.lost += usize::from(entry.incomplete);
                    self.skipped.push((epoch, error));
                }
                // Data that is only on an away target is not lost. But while only the slow tier is
                // reachable, a restore uses the data that it has.
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
                    ErrorKind::Invalid => format!(
                        "passed over checkpoint {passed}, which is marked as bad, and took epoch {epoch}"
                    ),
                    _ => format!(
                        "passed over a damaged checkpoint and took epoch {epoch}: {error}"
                    ),
                });
            }
            return Ok(Some((epoch, value, self.skipped)));
        }
        // A checkpoint on away targets may be whole.
        let away = skipped.iter().find(|(_, error)| error.kind() == ErrorKind::Retry);
        if let (Some((_, away)), false) = (away, matches!(select, Select::Epoch(_))) {
            return Err(away.clone().context(format!(
                "no checkpoint of job {name} is whole on the slow tier, and the fast one is away"
            )));
        }
        let is_all = !skipped.is_empty() && self.lost == skipped.len();
        if is_all && !matches!(select, Select::Epoch(_)) && pool.has_volatile() {
            // Expected after a restart of the host of such a pool: its programs begin again.
            pool.warn(format!(
                "job {name} has no checkpoint any more: all {} were lost with the targets that had them, \
                 and are recorded as incomplete",
                skipped.len()
            ));
            return Ok(None);
        }
        let is_bad = |(_, error): &&(Epoch, Error)| error.kind() == ErrorKind::Invalid;
        let bad = skipped.iter().filter(is_bad).count();
        if bad > 0 && bad == skipped.len() && !matches!(select, Select::Epoch(_)) {
            return Err(all_marked_bad(pool, name));
        }
        match (select, skipped.first()) {
            (Select::Epoch(epoch), None) => Err(Error::invalid(format!(
                "job {name} has no checkpoint {epoch}{}",
                if newest > 0 { format!("; its newest is {newest}") } else { String::new() }
            ))),
            (Select::Epoch(epoch), Some((_, first))) => Err(self.one_damaged(epoch, first)),
            (_, Some((_, first))) => {
                let first = skipped.iter().find(|it| !is_bad(it)).map_or(first, |(_, why)| why);
                let marked = if bad > 0 { format!(", {bad} marked as bad") } else { String::new() };
                Err(Error::damaged(format!(
                    "no whole checkpoint of job {name} was found ({} damaged{marked}): {first}",
                    skipped.len() - bad
                )))
            }
            (Select::Newest | Select::Sound, None) => Ok(None),
        }
    }

    /// Returns the error for a requested epoch that is damaged; others may be whole.
    fn one_damaged(&self, epoch: Epoch, why: &Error) -> Error {
        let (pool, name) = (self.pool, self.name);
        let of = format!("checkpoint {epoch} of job {name}");
        let why = why.message().strip_prefix(&format!("{of}: ")).unwrap_or(why.message());
        // A program's memory does not help a reader of files, nor the other way round.
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
