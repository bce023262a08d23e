//! The oracle: it sees every append, so it knows the true state. Schedules are judged by it, at
//! each step and at the end.

use crate::state::{RestoredRegions, State};
use outlive_format::{Body, Record, fingerprint};
use outlive_log::ManifestLog;
use outlive_types::sync::plain::{Mutex, MutexGuard};
use outlive_types::{Epoch, Fingerprint, JobName, SessionId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A checkpoint that is in a log.
#[derive(Clone, Debug)]
pub struct Committed {
    /// The state that each rank must have.
    pub ranks: Vec<State>,
    /// The program that committed it.
    pub program: usize,
    /// Whether a program got the result that it is committed.
    pub told: bool,
    /// Whether a prune may have dropped it, or it was lost with memory.
    pub doomed: bool,
    /// Whether it was lost with memory.
    pub frail: bool,
}

impl Committed {
    /// Whether it has one rank, with this state.
    pub fn is(&self, restored: &RestoredRegions) -> bool {
        matches!(&self.ranks[..], [only] if only.is(restored))
    }
}

/// The past of a job.
#[derive(Debug, Default)]
struct JobTruth {
    /// Number of groups that meet in the log and have begun.
    meetings: usize,
    /// The newest session: writers in other sessions are fenced.
    session: Option<SessionId>,
    /// The program that opened it.
    session_by: Option<usize>,
    /// The last session that ended, and whether another program than its own ended it.
    ended: Option<(SessionId, bool)>,
    last_epoch: Epoch,
    /// Fingerprints of all records as they were appended.
    appended: BTreeMap<u64, Fingerprint>,
    committed: BTreeMap<Epoch, Committed>,
    /// By program: the newest epoch that it may have known at its restore; removed at its next
    /// commit.
    restored_at: BTreeMap<usize, Epoch>,
    /// Programs that had restored when the job was dropped: none of them may commit before it
    /// restores again.
    cut_off: BTreeSet<usize>,
}

impl JobTruth {
    /// Returns an epoch that another program has committed since the program restored, until its
    /// next commit.
    fn overtaken(&self, program: usize) -> Option<Epoch> {
        let seen = *self.restored_at.get(&program)?;
        let mut since = self.committed.range(seen + 1..);
        since.find(|(_, committed)| committed.program != program).map(|(epoch, _)| *epoch)
    }

    /// Records a program's commit of its pending content.
    fn commit(
        &mut self,
        program: usize,
        job: &JobName,
        epoch: Epoch,
        asked_for: Option<&Pending>,
        frail: bool,
    ) -> Result<(), String> {
        if epoch <= self.last_epoch {
            return Err(format!("epoch {epoch} follows on epoch {}", self.last_epoch));
        }
        let ranks = match asked_for {
            Some(Pending::State(state)) => vec![state.clone()],
            Some(Pending::Ranks(states)) => states.clone(),
            Some(Pending::CopyOf(oracle)) => {
                let there = oracle.committed(job).remove(&epoch);
                there.ok_or(format!("epoch {epoch} was copied from nowhere"))?.ranks
            }
            // A rename finds its content before.
            Some(Pending::Renamed(_)) | None => {
                return Err(format!("epoch {epoch} was asked for by no program"));
            }
        };
        if self.cut_off.contains(&program) {
            return Err(format!(
                "epoch {epoch} is by a program that has restored before the job was dropped"
            ));
        }
        if let Some(other) = self.overtaken(program) {
            return Err(format!(
                "epoch {epoch} is by a program that has restored, and no program reported to it epoch \
                 {other}, which another has committed since"
            ));
        }
        self.restored_at.remove(&program);
        self.last_epoch = epoch;
        let committed = Committed { ranks, program, told: false, doomed: frail, frail };
        self.committed.insert(epoch, committed);
        Ok(())
    }
}

/// The content that a program will commit next.
#[derive(Clone, Debug)]
pub enum Pending {
    /// This state.
    State(State),
    /// These states, of one rank each.
    Ranks(Vec<State>),
    /// The content of the same epoch of the same job in another pool.
    CopyOf(Oracle),
    /// The content of the same epoch of another job of this pool.
    Renamed(JobName),
}

#[derive(Debug, Default)]
struct Facts {
    jobs: BTreeMap<JobName, JobTruth>,
    pending: BTreeMap<(usize, JobName), Pending>,
    /// The jobs that programs drop; those of a rename get another name.
    dropping: BTreeMap<(usize, JobName), Option<JobName>>,
    violation: Option<String>,
    /// Whether a log was rolled back.
    rolled_back: bool,
    /// Whether a stored bit has flipped.
    flipped: bool,
    /// Whether headers of shards are damaged.
    scratched: bool,
    /// Whether bits of shards have flipped within the redundancy.
    bruised: bool,
    /// Whether single targets were lost or away, within the redundancy.
    struck: bool,
    /// Whether the power was cut.
    power_cut: bool,
    /// Whether memory was lost that held targets.
    is_wiped: bool,
    /// The last error that a program met.
    met: String,
    /// Whether the logs do not record yet what was lost with memory.
    is_unsettled: bool,
}

/// The oracle of one pool. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct Oracle(Arc<Mutex<Facts>>);

impl Oracle {
    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.0.lock()
    }

    /// Notes a violation.
    pub fn violate(&self, what: String) {
        self.facts().violation.get_or_insert(what);
    }

    /// Returns the first violation.
    pub fn violation(&self) -> Option<String> {
        self.facts().violation.clone()
    }

    /// Notes what the program will commit next.
    pub fn will_commit(&self, program: usize, job: &JobName, pending: Pending) {
        self.facts().pending.insert((program, job.clone()), pending);
    }

    /// Notes that the program got the result that its checkpoint is committed.
    pub fn told(&self, program: usize, job: &JobName, epoch: Epoch) {
        let mut facts = self.facts();
        let rolled_back = facts.rolled_back;
        let committed = facts.jobs.entry(job.clone()).or_default().committed.get_mut(&epoch);
        match committed {
            Some(committed) if committed.program == program => committed.told = true,
            _ if rolled_back => {}
            other => {
                let what =
                    format!("program {program} was told of epoch {epoch} of {job}: {other:?}");
                facts.violation.get_or_insert(what);
            }
        }
    }

    /// Whether the program has committed this epoch.
    pub fn has_committed(&self, program: usize, job: &JobName, epoch: Epoch) -> bool {
        let facts = self.facts();
        let committed = facts.jobs.get(job).and_then(|oracle| oracle.committed.get(&epoch));
        committed.is_some_and(|committed| committed.program == program && !committed.doomed)
    }

    /// Notes that the program has restored the job, and knows of commits up to epoch `seen`.
    pub fn restored(&self, program: usize, job: &JobName, seen: Epoch) {
        let mut facts = self.facts();
        let oracle = facts.jobs.entry(job.clone()).or_default();
        oracle.cut_off.remove(&program);
        oracle.restored_at.insert(program, seen);
    }

    /// Notes that the program is about to drop a job, after a rename or to delete it.
    pub fn drops(&self, program: usize, job: &JobName, renamed: Option<JobName>) {
        self.facts().dropping.insert((program, job.clone()), renamed);
    }

    /// Notes that a program got the result that a checkpoint is there, which perhaps another one has
    /// committed.
    pub fn told_of_another(&self, job: &JobName, epoch: Epoch) {
        let mut facts = self.facts();
        match facts.jobs.entry(job.clone()).or_default().committed.get_mut(&epoch) {
            Some(committed) => committed.told = true,
            None => {
                let what = format!("epoch {epoch} of {job} is not there after a rename");
                facts.violation.get_or_insert(what);
            }
        }
    }

    /// Returns the newest epoch of a job, dropped or not.
    pub fn last_epoch(&self, job: &JobName) -> Epoch {
        self.facts().jobs.get(job).map_or(0, |oracle| oracle.last_epoch)
    }

    /// Notes that a stored bit has flipped.
    pub fn is_flipped(&self) {
        self.facts().flipped = true;
    }

    /// Whether stored data was damaged.
    pub fn is_damaged(&self) -> bool {
        self.facts().flipped
    }

    /// Notes that headers of shards are damaged, which loses nothing.
    pub fn is_scratched(&self) {
        self.facts().scratched = true;
    }

    /// Whether a scrub may find damaged headers.
    pub fn has_scratches(&self) -> bool {
        self.facts().scratched
    }

    /// Notes that bits of shards have flipped within the redundancy.
    pub fn is_bruised(&self) {
        self.facts().bruised = true;
    }

    /// Whether a scrub or a verification may find harmless damage.
    pub fn has_bruises(&self) -> bool {
        let facts = self.facts();
        facts.bruised || facts.struck
    }

    /// Whether single targets were lost or away.
    pub fn is_hit(&self) -> bool {
        self.facts().struck
    }

    /// Notes that single targets were lost or away, within the redundancy.
    pub fn is_struck(&self) {
        self.facts().struck = true;
    }

    /// Notes that the memory of targets is lost, and with it every checkpoint that is not `safe`.
    pub fn wiped(&self, safe: &BTreeSet<(JobName, Epoch)>) {
        let mut facts = self.facts();
        (facts.is_wiped, facts.is_unsettled) = (true, true);
        for (job, oracle) in &mut facts.jobs {
            for (epoch, committed) in &mut oracle.committed {
                if !safe.contains(&(job.clone(), *epoch)) {
                    (committed.doomed, committed.frail) = (true, true);
                }
            }
        }
    }

    /// Notes that the logs record what was lost with memory: later commits must be whole.
    pub fn settled(&self) {
        self.facts().is_unsettled = false;
    }

    /// Notes an error that a program met.
    pub fn met(&self, what: String) {
        self.facts().met = what;
    }

    /// Returns the last error that a program met.
    pub fn last_met(&self) -> String {
        self.facts().met.clone()
    }

    /// Whether memory that held targets was ever lost.
    pub fn is_wiped(&self) -> bool {
        self.facts().is_wiped
    }

    /// Notes that the power is cut: a checkpoint without a reported commit may be gone.
    pub fn power_is_cut(&self) {
        self.facts().power_cut = true;
    }

    /// Returns the checkpoints that must be there at the end: no prune has dropped them, and a
    /// program got the result of the commit. Without a power cut the others are there, too.
    pub fn must_be(&self, job: &JobName) -> BTreeMap<Epoch, Committed> {
        let power_cut = self.facts().power_cut;
        let mut committed = self.committed(job);
        committed.retain(|_, there| (there.told || !power_cut) && !there.doomed);
        committed
    }

    /// Notes the checkpoints that a prune is about to drop.
    pub fn doom(&self, job: &JobName, epochs: &BTreeSet<Epoch>) {
        let mut facts = self.facts();
        let committed = &mut facts.jobs.entry(job.clone()).or_default().committed;
        for epoch in epochs {
            if let Some(committed) = committed.get_mut(epoch) {
                committed.doomed = true;
            }
        }
    }

    /// Whether another program has opened the newest session of the job, or has ended it for this
    /// program.
    pub fn is_fenced(&self, program: usize, job: &JobName) -> bool {
        let facts = self.facts();
        let Some(oracle) = facts.jobs.get(job) else { return false };
        let is_ended = oracle.ended.is_some_and(|(ended, by_another)| {
            by_another && oracle.session == Some(ended) && oracle.session_by == Some(program)
        });
        is_ended || oracle.session_by.is_some_and(|by| by != program)
    }

    /// Returns the program that has opened the newest session of the job.
    pub fn holder(&self, job: &JobName) -> Option<usize> {
        self.facts().jobs.get(job).and_then(|oracle| oracle.session_by)
    }

    /// Whether others have committed since the program restored.
    pub fn is_stale(&self, program: usize, job: &JobName) -> bool {
        let facts = self.facts();
        facts.jobs.get(job).is_some_and(|oracle| {
            oracle.overtaken(program).is_some() || oracle.cut_off.contains(&program)
        })
    }

    /// Notes the beginning of a group that meets in the log.
    pub fn meets(&self, job: &JobName) {
        self.facts().jobs.entry(job.clone()).or_default().meetings += 1;
    }

    /// Whether several groups have met in the log. Then each of them may learn that another has
    /// begun, before that one opens a session.
    pub fn have_several_met(&self, job: &JobName) -> bool {
        self.facts().jobs.get(job).is_some_and(|oracle| oracle.meetings > 1)
    }

    /// Returns the newest epoch whose commit was reported and that no prune has touched; 0 for
    /// none.
    pub fn newest_told(&self, job: &JobName) -> Epoch {
        let committed = self.committed(job);
        let told = committed.iter().rev().find(|(_, there)| there.told && !there.doomed);
        told.map_or(0, |(epoch, _)| *epoch)
    }

    /// Whether a program that looks for the newest checkpoint must find `at_least` or a newer one,
    /// as `at_least` was reported before. Not if it was lost with memory meanwhile, whatever came
    /// after it.
    pub fn must_find(&self, job: &JobName, at_least: Epoch) -> bool {
        if at_least == 0 || self.is_wiped() {
            return self.committed(job).get(&at_least).is_some_and(|there| !there.doomed);
        }
        self.newest_told(job) >= at_least
    }

    /// Returns the newest epoch that was dropped, or lost with memory; 0 for none.
    pub fn newest_gone(&self, job: &JobName) -> Epoch {
        let committed = self.committed(job);
        let gone = committed.iter().rev().find(|(_, there)| there.doomed);
        gone.map_or(0, |(epoch, _)| *epoch)
    }

    /// Whether a prune has dropped a checkpoint of the job.
    pub fn is_pruned(&self, job: &JobName) -> bool {
        self.committed(job).values().any(|committed| committed.doomed)
    }

    /// Whether an old copy of a log has replaced newer records.
    pub fn is_rolled_back(&self) -> bool {
        self.facts().rolled_back
    }

    /// Notes that records from some number on were removed, and their content with them.
    pub fn rolled_back(&self, job: &JobName, kept: &BTreeSet<Epoch>, session: Option<SessionId>) {
        let mut facts = self.facts();
        facts.rolled_back = true;
        let oracle = facts.jobs.entry(job.clone()).or_default();
        oracle.session_by = None;
        oracle.appended.clear();
        oracle.committed.retain(|epoch, _| kept.contains(epoch));
        oracle.last_epoch = kept.last().copied().unwrap_or(0);
        oracle.session = session;
        oracle.restored_at.clear();
        oracle.cut_off.clear();
    }

    /// Returns the jobs that ever had a session.
    pub fn jobs(&self) -> Vec<JobName> {
        let facts = self.facts();
        let opened =
            facts.jobs.iter().filter(|(job, oracle)| !job.is_gc() && oracle.session.is_some());
        opened.map(|(job, _)| job.clone()).collect()
    }

    /// Returns a job's checkpoints.
    pub fn committed(&self, job: &JobName) -> BTreeMap<Epoch, Committed> {
        self.facts().jobs.get(job).map(|oracle| oracle.committed.clone()).unwrap_or_default()
    }

    /// Notes that a record of `program` is in the log now. `log` shows the records before it.
    pub fn appended(&self, program: usize, job: &JobName, bytes: &[u8], log: &dyn ManifestLog) {
        let pending = self.pending(program, job);
        self.appended_by(program, pending, job, bytes, log);
    }

    /// Returns the content that a program will commit next.
    pub fn pending(&self, program: usize, job: &JobName) -> Option<Pending> {
        self.facts().pending.get(&(program, job.clone())).cloned()
    }

    /// Does the same for a record that was to commit `pending`, perhaps long ago.
    pub fn appended_by(
        &self,
        program: usize,
        pending: Option<Pending>,
        job: &JobName,
        bytes: &[u8],
        log: &dyn ManifestLog,
    ) {
        if let Err(what) = self.judge(program, pending, job, bytes, log) {
            self.violate(format!("program {program}, log of {job}: {what}"));
        }
    }

    fn judge(
        &self,
        program: usize,
        pending: Option<Pending>,
        job: &JobName,
        bytes: &[u8],
        log: &dyn ManifestLog,
    ) -> Result<(), String> {
        let record =
            Record::decode(bytes).map_err(|error| format!("a record is wrong: {error}"))?;
        let number = record.number;
        let before = log.read(job, number - 1).ok();
        let mut facts = self.facts();
        let Facts { jobs, flipped, is_unsettled, dropping, .. } = &mut *facts;
        let at = |jobs: &BTreeMap<JobName, JobTruth>, job: &JobName, epoch: &Epoch| {
            jobs.get(job).and_then(|oracle| oracle.committed.get(epoch)).cloned()
        };
        let pending = match (pending, &record.body) {
            (Some(Pending::Renamed(from)), Body::Manifest(manifest)) => {
                let there = at(jobs, &from, &manifest.epoch);
                there.map(|committed| Pending::Ranks(committed.ranks))
            }
            (pending, _) => pending,
        };
        // The record that drops a job, and the name that its checkpoints must have by then.
        let dropped = match &record.body {
            Body::Prune(_) => dropping.get(&(program, job.clone())).cloned(),
            _ => None,
        };
        if let (Some(Some(renamed)), Body::Prune(prune)) = (&dropped, &record.body) {
            for epoch in &prune.epochs {
                let there = at(jobs, renamed, epoch).filter(|committed| !committed.doomed);
                let before = at(jobs, job, epoch);
                if there.map(|committed| committed.ranks) != before.map(|it| it.ranks) {
                    return Err(format!("epoch {epoch} is dropped, and {renamed} has not got it"));
                }
            }
        }
        let oracle = jobs.entry(job.clone()).or_default();
        if oracle.appended.insert(number, fingerprint(bytes)) == Some(fingerprint(bytes)) {
            return Ok(()); // two programs had the same record to append
        }
        // The record may follow the record as appended, or as it is now.
        if let Some(before) = before
            && record.previous != fingerprint(&before)
            && oracle.appended.get(&(number - 1)) != Some(&record.previous)
        {
            return Err(format!("record {number} follows another record than the one before it"));
        }
        let check_session = |session: SessionId| match oracle.session == Some(session) {
            true => Ok(()),
            false => Err(format!("record {number} is by a writer that another has fenced")),
        };
        match record.body {
            Body::Session(session) => {
                (oracle.session, oracle.session_by) = (Some(session.session), Some(program));
            }
            Body::Close(close) => {
                check_session(close.session)?;
                // A gc may end a session whose lease has ended; that fences its program.
                oracle.ended = Some((close.session, oracle.session_by != Some(program)));
            }
            Body::Manifest(manifest) => {
                check_session(manifest.session)?;
                if oracle.ended.is_some_and(|(ended, _)| ended == manifest.session) {
                    return Err(format!("record {number} commits in a session that has ended"));
                }
                oracle.commit(program, job, manifest.epoch, pending.as_ref(), *is_unsettled)?;
            }
            // A gc that gives up damaged data cannot know of sessions in it.
            Body::Archive(archive) if *flipped => {
                oracle.session = archive.session.map(|(session, _)| session.session);
                oracle.session_by = None;
            }
            Body::Archive(archive) => {
                if let Some((session, _)) = archive.session {
                    check_session(session.session)?;
                }
            }
            Body::Prune(prune) => {
                if prune.last_epoch < oracle.last_epoch {
                    return Err(format!("a prune forgets epoch {}", oracle.last_epoch));
                }
                if dropped.is_some() {
                    for (epoch, committed) in &mut oracle.committed {
                        if !committed.doomed && !prune.epochs.contains(epoch) {
                            return Err(format!("the job is dropped, and epoch {epoch} stays"));
                        }
                        committed.doomed = true;
                    }
                    let known = std::mem::take(&mut oracle.restored_at).into_keys();
                    oracle.cut_off.extend(known.filter(|other| *other != program));
                }
            }
            Body::Sweep(_) | Body::Note(_) => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
