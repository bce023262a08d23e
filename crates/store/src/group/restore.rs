//! One epoch for all ranks: the newest that every rank can restore.

use super::agree::of_rank;
use super::member::GroupMember;
use crate::commit::history;
use crate::commit::mark_suspect;
use crate::read::{Kind, Select, Skipped, all_marked_bad, find_manifest, marked_bad};
use outlive_format::{Manifest, Mark};
use outlive_pool::Pool;
use outlive_types::sync::sleep;
use outlive_types::{Epoch, Error, ErrorKind, JobName, Result};
use std::time::Duration;

/// There is no checkpoint.
const NONE: u8 = 0;
/// Rank 0 has found a checkpoint to try.
const TRY: u8 = 1;
/// All ranks have completed their step with it.
const DONE: u8 = 2;
/// A rank has failed, as the checkpoint is damaged.
const DAMAGED: u8 = 3;
/// A rank has failed, as data of the checkpoint is only on away targets.
const AWAY: u8 = 5;
/// A prune has dropped it since rank 0 found it.
const GONE: u8 = 4;

/// Times that a checkpoint may be gone which rank 0 finds again. The pause between them grows, up
/// to a second.
const GONE_TIMES: u32 = 60;
const GONE_PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(1)];

/// Result of a restore on all ranks.
#[derive(Debug)]
pub struct TogetherRestored<T> {
    /// The epoch, the same on all ranks.
    pub epoch: Epoch,
    /// The value of this rank's attempt.
    pub value: T,
    /// Newer checkpoints that were skipped, with the errors; only rank 0 lists those that only it
    /// knows.
    pub skipped: Skipped,
}

/// Outcome of a step that all ranks take with a checkpoint.
enum StepOutcome<T> {
    Done(T),
    Gone,
    /// It is damaged, or unavailable while targets are away.
    Passed(Error),
}

/// A restore of all ranks.
pub(crate) struct Together<'a> {
    pub member: &'a GroupMember,
    pub pool: &'a Pool,
    pub name: &'a JobName,
    pub select: Select,
    /// Notes the log's position, so that the next save is refused if others save from now on.
    /// Returns the newest epoch.
    pub note: &'a dyn Fn() -> Result<Epoch>,
}

impl Together<'_> {
    /// Calls `attempt` on every rank with one checkpoint after the other, newest first, until all
    /// succeed with the same one. Before that, all ranks call `look` with it: small data that many
    /// ranks need is read before any rank reads large data. Both get the manifest, and the number
    /// of the newest record that was read. Nothing is tried if a rank is not `ready`. `None` if the
    /// job has no checkpoint. Collective.
    ///
    /// # Errors
    /// The same on all ranks: `Damaged` if the requested checkpoint, or every one, is damaged for
    /// some rank; any other error of one of them.
    pub fn restore<T>(
        &self,
        ready: Result<()>,
        look: &mut dyn FnMut(&Manifest, u64) -> Result<()>,
        attempt: &mut dyn FnMut(&Manifest, u64) -> Result<T>,
    ) -> Result<Option<TogetherRestored<T>>> {
        let (mut skipped, mut below, mut ready) = (Skipped::new(), Epoch::MAX, ready);
        let mut gone = (0, 0);
        let what = self.what();
        self.member.settle(self.pool, &what)?;
        loop {
            let ready = std::mem::replace(&mut ready, Ok(()));
            let choice = self.member.decide(&what, ready, &mut || {
                Ok(match self.choose(below, &mut skipped)? {
                    Some(epoch) => [&[TRY][..], &epoch.to_le_bytes()].concat(),
                    None => vec![NONE],
                })
            })?;
            let epoch = match choice.split_first() {
                Some((&TRY, epoch)) => epoch.try_into().map(Epoch::from_le_bytes).ok(),
                Some((&NONE, [])) => return Ok(None),
                _ => None,
            };
            let epoch = epoch.ok_or_else(|| Error::bug("rank 0 has named no epoch"))?;
            let outcome = match self.all(&what, epoch, look)? {
                StepOutcome::Done(()) => self.all(&what, epoch, attempt)?,
                StepOutcome::Gone => StepOutcome::Gone,
                StepOutcome::Passed(why) => StepOutcome::Passed(why),
            };
            match outcome {
                StepOutcome::Done(value) => {
                    return Ok(Some(TogetherRestored { epoch, value, skipped }));
                }
                // There is a newer one, or there was; or a rank does not see yet what rank 0 sees.
                StepOutcome::Gone if self.select == Select::Newest => {
                    gone = if gone.0 == epoch { (epoch, gone.1 + 1) } else { (epoch, 1) };
                    if gone.1 > GONE_TIMES {
                        return Err(self.unseen(epoch));
                    }
                    if gone.1 > 1 {
                        sleep((GONE_PAUSES[0] * gone.1).min(GONE_PAUSES[1]));
                    }
                }
                StepOutcome::Gone => {
                    return Err(Error::bug("the ranks do not agree what they have restored"));
                }
                StepOutcome::Passed(why) => {
                    if let Select::Epoch(_) = self.select {
                        return Err(why);
                    }
                    if self.member.rank() == 0 {
                        self.pool.warn(format!("all ranks pass over checkpoint {epoch}: {why}"));
                        // A pool that is not writable can be read all the same.
                        let _ = mark_suspect(self.pool, self.name, epoch);
                    }
                    skipped.push((epoch, why));
                    below = epoch;
                }
            }
        }
    }

    /// Returns the error for a checkpoint that rank 0 finds again and again, and another rank does
    /// not.
    fn unseen(&self, epoch: Epoch) -> Error {
        Error::retry(format!(
            "rank 0 finds checkpoint {epoch} of job {} in {}, and another rank does not: its file system may \
             show what others write too late. Give all ranks the same view of the log",
            self.name,
            self.pool.log().describe()
        ))
    }

    /// Takes one step with a checkpoint on all ranks. Collective.
    fn all<T>(
        &self,
        what: &str,
        epoch: Epoch,
        step: &mut dyn FnMut(&Manifest, u64) -> Result<T>,
    ) -> Result<StepOutcome<T>> {
        let mut value = None;
        let keepalive = self.member.coordinator.keepalive();
        let tried = self.attempt(epoch, step);
        drop(keepalive);
        let tried = tried.map(|done| match done {
            Some(done) => {
                value = Some(done);
                Vec::new()
            }
            None => vec![GONE],
        });
        let verdict = self.member.agree(what, tried, &mut |all| self.judge(all))?;
        match (verdict.split_first(), value) {
            (Some((&DONE, _)), Some(value)) => Ok(StepOutcome::Done(value)),
            (Some((&GONE, _)), _) => Ok(StepOutcome::Gone),
            (Some((&DAMAGED, why)), _) => {
                Ok(StepOutcome::Passed(Error::damaged(String::from_utf8_lossy(why))))
            }
            (Some((&AWAY, why)), _) => {
                Ok(StepOutcome::Passed(Error::away(String::from_utf8_lossy(why))))
            }
            _ => Err(Error::bug("the ranks do not agree what they have restored")),
        }
    }

    /// Returns the name of the ranks' common call, which must be the same on all.
    fn what(&self) -> String {
        let which = match self.select {
            Select::Epoch(epoch) => format!("epoch {epoch}"),
            _ => "the newest checkpoint".to_owned(),
        };
        let pool = &self.pool.config().format.pool_id;
        format!("a restore of {which} of job {:?} in pool {pool}", self.name.as_str())
    }

    /// Chooses the next candidate on rank 0. The first time it also notes the log's position: the
    /// next save is refused if others have saved after the chosen checkpoint, and not if others
    /// have saved that one.
    fn choose(&self, below: Epoch, skipped: &mut Skipped) -> Result<Option<Epoch>> {
        if below < Epoch::MAX {
            return self.next_below(below, skipped);
        }
        let mut newest = (self.note)()?;
        let mut chosen = self.next_below(below, skipped)?;
        // Others have saved in between.
        while self.select == Select::Newest && chosen.is_some_and(|chosen| chosen > newest) {
            newest = (self.note)()?;
            skipped.clear();
            chosen = self.next_below(below, skipped)?;
        }
        Ok(chosen)
    }

    /// Returns the newest checkpoint of memory below an epoch that is worth a try; `None` if there
    /// is none at all.
    fn next_below(&self, below: Epoch, skipped: &mut Skipped) -> Result<Option<Epoch>> {
        let Together { pool, name, select, .. } = *self;
        if let Select::Epoch(epoch) = select {
            return Ok(Some(epoch));
        }
        for entry in history(pool, name)? {
            let record = match &entry.record {
                Ok(_) => entry.manifest(),
                Err(error) => {
                    let error = error.clone();
                    if error.kind() != ErrorKind::Damaged {
                        return Err(error);
                    }
                    // It may have been a checkpoint; warn once.
                    if below == Epoch::MAX {
                        pool.warn(format!("a record of job {name} cannot be read: {error}"));
                        skipped.push((0, error));
                    }
                    continue;
                }
            };
            let Some(manifest) = record.filter(|it| it.epoch < below && !it.is_of_files()) else {
                continue;
            };
            if manifest.remarks.mark == Mark::Bad {
                let epoch = manifest.epoch;
                if skipped.iter().all(|(passed, _)| *passed != epoch) {
                    pool.warn(format!(
                        "all ranks pass over checkpoint {epoch}: it is marked as bad"
                    ));
                    skipped.push((epoch, marked_bad(epoch, name)));
                }
                continue;
            }
            return Ok(Some(manifest.epoch));
        }
        // A checkpoint on away targets may be whole.
        if let Some((_, away)) = skipped.iter().find(|(_, error)| error.is_away()) {
            return Err(away.clone().context(format!(
                "no checkpoint of job {name} is whole on the slow tier, and the fast one is away"
            )));
        }
        // Those that are marked as bad may be whole.
        let mut broken = skipped.iter().filter(|(_, error)| error.kind() != ErrorKind::Invalid);
        match (broken.next(), skipped.is_empty()) {
            (Some((_, first)), _) => Err(Error::damaged(format!(
                "no checkpoint of job {name} is whole for every rank ({} are not): {first}",
                1 + broken.count()
            ))),
            (None, false) => Err(all_marked_bad(pool, name)),
            (None, true) => Ok(None),
        }
    }

    /// Returns the value of an attempt with a checkpoint; `None` if that is gone.
    fn attempt<T>(
        &self,
        epoch: Epoch,
        attempt: &mut dyn FnMut(&Manifest, u64) -> Result<T>,
    ) -> Result<Option<T>> {
        let is_memory = |manifest: &Manifest| !manifest.is_of_files();
        let kind = Kind { is: &is_memory, opens: &|_| false };
        let found = find_manifest(self.pool, self.name, Select::Epoch(epoch), kind, attempt);
        match found {
            Ok(found) => Ok(found.map(|(_, value, _)| value)),
            Err(error) if error.kind() == ErrorKind::Invalid && self.is_gone(epoch)? => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns whether a checkpoint that existed when rank 0 looked is gone.
    fn is_gone(&self, epoch: Epoch) -> Result<bool> {
        if let Select::Epoch(_) = self.select {
            return Ok(false);
        }
        for entry in history(self.pool, self.name)? {
            if entry.unless_unread()?.manifest().is_some_and(|manifest| manifest.epoch == epoch) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Judges the attempts of all ranks, on rank 0.
    fn judge(&self, all: Vec<Result<Vec<u8>>>) -> Result<Vec<u8>> {
        let (mut passed, mut is_gone) = (None, false);
        for (rank, tried) in all.into_iter().enumerate() {
            let error = match tried {
                Ok(tried) => {
                    is_gone |= tried == [GONE];
                    continue;
                }
                Err(error) => error,
            };
            // Data that is only on an away target is not lost, but nothing else is available now.
            let is_away = error.is_away()
                && !matches!(self.select, Select::Epoch(_))
                && self.pool.is_slow_alone();
            if !is_away && error.kind() != ErrorKind::Damaged {
                return Err(of_rank(rank, error));
            }
            passed.get_or_insert((if is_away { AWAY } else { DAMAGED }, of_rank(rank, error)));
        }
        Ok(match passed {
            _ if is_gone => vec![GONE],
            Some((how, error)) => [&[how], error.message().as_bytes()].concat(),
            None => vec![DONE],
        })
    }
}
