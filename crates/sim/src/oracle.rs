//! What has really happened, as only somebody knows who sees every append: by this a schedule is
//! judged, step by step and at its end.

use crate::state::{RestoredRegions, State};
use outlive_format::{Body, Record, fingerprint};
use outlive_target::ManifestLog;
use outlive_types::sync::plain::{Mutex, MutexGuard};
use outlive_types::{Epoch, Fingerprint, JobName, SessionId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A checkpoint that is in a log.
#[derive(Clone, Debug)]
pub struct Committed {
    /// What each rank must hold.
    pub ranks: Vec<State>,
    /// Who committed it.
    pub program: usize,
    /// Somebody was told that it is committed.
    pub told: bool,
    /// A prune may have dropped it, or it was lost with memory.
    pub doomed: bool,
    /// Of the two, the latter.
    pub frail: bool,
}

impl Committed {
    /// Whether it has one rank, which holds this.
    pub fn is(&self, restored: &RestoredRegions) -> bool {
        matches!(&self.ranks[..], [only] if only.is(restored))
    }
}

/// A job's past.
#[derive(Debug, Default)]
struct JobTruth {
    /// Groups that meet in the log and have begun.
    meetings: usize,
    /// The newest session: whoever writes in another one is fenced.
    session: Option<SessionId>,
    /// Who opened it.
    session_by: Option<usize>,
    /// The session that was ended last, and whether another program than its own has ended it.
    ended: Option<(SessionId, bool)>,
    last_epoch: Epoch,
    /// Fingerprints of all records as they were appended.
    appended: BTreeMap<u64, Fingerprint>,
    committed: BTreeMap<Epoch, Committed>,
    /// By program: the newest epoch that it may have known of when it restored; forgotten at its first
    /// commit after that.
    restored_at: BTreeMap<usize, Epoch>,
}

impl JobTruth {
    /// What somebody else has committed since the program restored, until its own next commit.
    fn overtaken(&self, program: usize) -> Option<Epoch> {
        let seen = *self.restored_at.get(&program)?;
        let mut since = self.committed.range(seen + 1..);
        since.find(|(_, committed)| committed.program != program).map(|(epoch, _)| *epoch)
    }

    /// A program commits what it was asked for.
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
            None => return Err(format!("epoch {epoch} was asked for by nobody")),
        };
        if let Some(other) = self.overtaken(program) {
            return Err(format!(
                "epoch {epoch} is by a program that has restored, and nobody told it of epoch \
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

/// What a program will commit next.
#[derive(Clone, Debug)]
pub enum Pending {
    /// This state.
    State(State),
    /// These states, of one rank each.
    Ranks(Vec<State>),
    /// Whatever the same epoch of the same job holds there.
    CopyOf(Oracle),
}

#[derive(Debug, Default)]
struct Facts {
    jobs: BTreeMap<JobName, JobTruth>,
    pending: BTreeMap<(usize, JobName), Pending>,
    violation: Option<String>,
    /// Some log has been rolled back.
    rolled_back: bool,
    /// A bit of something stored has flipped.
    flipped: bool,
    /// Headers of shards are damaged.
    scratched: bool,
    /// Bits of shards have flipped for which redundancy makes up.
    bruised: bool,
    /// Single targets were lost, or away, for which redundancy makes up.
    struck: bool,
    /// The power was cut.
    power_cut: bool,
    /// Memory was lost that held targets.
    is_wiped: bool,
    /// How something ended that was met last.
    met: String,
    /// It is not in the logs yet what was lost with it.
    is_unsettled: bool,
}

/// The truth about one pool. Clones speak of the same.
#[derive(Clone, Debug, Default)]
pub struct Oracle(Arc<Mutex<Facts>>);

impl Oracle {
    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.0.lock()
    }

    /// Something happened that must not.
    pub fn violate(&self, what: String) {
        self.facts().violation.get_or_insert(what);
    }

    /// What happened first that must not.
    pub fn violation(&self) -> Option<String> {
        self.facts().violation.clone()
    }

    /// The program will commit this next.
    pub fn will_commit(&self, program: usize, job: &JobName, pending: Pending) {
        self.facts().pending.insert((program, job.clone()), pending);
    }

    /// The program was told that its checkpoint is committed.
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

    /// The program has restored the job, and has seen what was committed up to epoch `seen`.
    pub fn restored(&self, program: usize, job: &JobName, seen: Epoch) {
        let mut facts = self.facts();
        facts.jobs.entry(job.clone()).or_default().restored_at.insert(program, seen);
    }

    /// The newest epoch of a job, dropped or not.
    pub fn last_epoch(&self, job: &JobName) -> Epoch {
        self.facts().jobs.get(job).map_or(0, |oracle| oracle.last_epoch)
    }

    /// A bit of something stored has flipped.
    pub fn is_flipped(&self) {
        self.facts().flipped = true;
    }

    /// Whether anything stored has been damaged.
    pub fn is_damaged(&self) -> bool {
        self.facts().flipped
    }

    /// Headers of shards are damaged: nothing is lost by that.
    pub fn is_scratched(&self) {
        self.facts().scratched = true;
    }

    /// Whether a scrub may find something.
    pub fn has_scratches(&self) -> bool {
        self.facts().scratched
    }

    /// Bits of shards have flipped for which redundancy makes up.
    pub fn is_bruised(&self) {
        self.facts().bruised = true;
    }

    /// Whether a scrub or a verification may find something that hurts nothing.
    pub fn has_bruises(&self) -> bool {
        let facts = self.facts();
        facts.bruised || facts.struck
    }

    /// Whether single targets were lost, or away.
    pub fn is_hit(&self) -> bool {
        self.facts().struck
    }

    /// Single targets were lost, or away, for which redundancy makes up.
    pub fn is_struck(&self) {
        self.facts().struck = true;
    }

    /// The memory of targets is lost, and with it every checkpoint that is not `safe`.
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

    /// What was lost with memory is in the logs: what is committed from now on must be whole.
    pub fn settled(&self) {
        self.facts().is_unsettled = false;
    }

    /// Something ended so.
    pub fn met(&self, what: String) {
        self.facts().met = what;
    }

    /// How something ended last that did not end well.
    pub fn last_met(&self) -> String {
        self.facts().met.clone()
    }

    /// Whether memory was ever lost that held targets.
    pub fn is_wiped(&self) -> bool {
        self.facts().is_wiped
    }

    /// The power is cut: what nobody was told of may be gone.
    pub fn power_is_cut(&self) {
        self.facts().power_cut = true;
    }

    /// The checkpoints that must be there when all is over: no prune has dropped them, and somebody was
    /// told of them. Without a power cut those that nobody was told of are there, too.
    pub fn must_be(&self, job: &JobName) -> BTreeMap<Epoch, Committed> {
        let power_cut = self.facts().power_cut;
        let mut committed = self.committed(job);
        committed.retain(|_, there| (there.told || !power_cut) && !there.doomed);
        committed
    }

    /// Checkpoints that a prune is about to drop.
    pub fn doom(&self, job: &JobName, epochs: &BTreeSet<Epoch>) {
        let mut facts = self.facts();
        let committed = &mut facts.jobs.entry(job.clone()).or_default().committed;
        for epoch in epochs {
            if let Some(committed) = committed.get_mut(epoch) {
                committed.doomed = true;
            }
        }
    }

    /// Whether another program has opened the newest session of the job, or has ended it in this program's place.
    pub fn is_fenced(&self, program: usize, job: &JobName) -> bool {
        let facts = self.facts();
        let Some(oracle) = facts.jobs.get(job) else { return false };
        let is_ended = oracle.ended.is_some_and(|(ended, by_another)| {
            by_another && oracle.session == Some(ended) && oracle.session_by == Some(program)
        });
        is_ended || oracle.session_by.is_some_and(|by| by != program)
    }

    /// The program that has opened the newest session of the job.
    pub fn holder(&self, job: &JobName) -> Option<usize> {
        self.facts().jobs.get(job).and_then(|oracle| oracle.session_by)
    }

    /// Whether others have committed something since the program restored.
    pub fn is_stale(&self, program: usize, job: &JobName) -> bool {
        let facts = self.facts();
        facts.jobs.get(job).is_some_and(|oracle| oracle.overtaken(program).is_some())
    }

    /// A group begins that meets in the log.
    pub fn meets(&self, job: &JobName) {
        self.facts().jobs.entry(job.clone()).or_default().meetings += 1;
    }

    /// Whether several groups have met in the log: then each of them may be told that another has begun, before that
    /// one opens a session.
    pub fn have_several_met(&self, job: &JobName) -> bool {
        self.facts().jobs.get(job).is_some_and(|oracle| oracle.meetings > 1)
    }

    /// The newest epoch of which somebody was told, and which no prune has touched; 0 for none.
    pub fn newest_told(&self, job: &JobName) -> Epoch {
        let committed = self.committed(job);
        let told = committed.iter().rev().find(|(_, there)| there.told && !there.doomed);
        told.map_or(0, |(epoch, _)| *epoch)
    }

    /// Whether who has begun to look for the newest when somebody had been told of `at_least` must find it or
    /// a newer one. Not if it was lost with memory meanwhile, whatever was committed after that.
    pub fn must_find(&self, job: &JobName, at_least: Epoch) -> bool {
        if at_least == 0 || self.is_wiped() {
            return self.committed(job).get(&at_least).is_some_and(|there| !there.doomed);
        }
        self.newest_told(job) >= at_least
    }

    /// The newest epoch that was lost with memory; 0 for none.
    pub fn newest_lost(&self, job: &JobName) -> Epoch {
        let committed = self.committed(job);
        let lost = committed.iter().rev().find(|(_, there)| there.frail);
        lost.map_or(0, |(epoch, _)| *epoch)
    }

    /// Whether a prune has dropped something of the job.
    pub fn is_pruned(&self, job: &JobName) -> bool {
        self.committed(job).values().any(|committed| committed.doomed)
    }

    /// Whether some log has lost records to an old copy of itself.
    pub fn is_rolled_back(&self) -> bool {
        self.facts().rolled_back
    }

    /// Records from some number on were taken away: what they said is no more.
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
    }

    /// The jobs that have ever had a session.
    pub fn jobs(&self) -> Vec<JobName> {
        let facts = self.facts();
        let opened =
            facts.jobs.iter().filter(|(job, oracle)| !job.is_gc() && oracle.session.is_some());
        opened.map(|(job, _)| job.clone()).collect()
    }

    /// A job's checkpoints.
    pub fn committed(&self, job: &JobName) -> BTreeMap<Epoch, Committed> {
        self.facts().jobs.get(job).map(|oracle| oracle.committed.clone()).unwrap_or_default()
    }

    /// A record is in the log now, by `program`. `log` shows what was there before it.
    pub fn appended(&self, program: usize, job: &JobName, bytes: &[u8], log: &dyn ManifestLog) {
        let pending = self.pending(program, job);
        self.appended_by(program, pending, job, bytes, log);
    }

    /// What a program will commit next.
    pub fn pending(&self, program: usize, job: &JobName) -> Option<Pending> {
        self.facts().pending.get(&(program, job.clone())).cloned()
    }

    /// The same, of a record with which `pending` was to be committed, perhaps long ago.
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
        let Facts { jobs, flipped, is_unsettled, .. } = &mut *facts;
        let oracle = jobs.entry(job.clone()).or_default();
        if oracle.appended.insert(number, fingerprint(bytes)) == Some(fingerprint(bytes)) {
            return Ok(()); // two programs had the same to say, and one record says it
        }
        // It may follow on what was appended, or on what has become of that.
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
                // A gc may end it in the place of a program whose lease has ended, which is fenced by that.
                oracle.ended = Some((close.session, oracle.session_by != Some(program)));
            }
            Body::Manifest(manifest) => {
                check_session(manifest.session)?;
                if oracle.ended.is_some_and(|(ended, _)| ended == manifest.session) {
                    return Err(format!("record {number} commits in a session that has ended"));
                }
                oracle.commit(program, job, manifest.epoch, pending.as_ref(), *is_unsettled)?;
            }
            // A gc that gives up what is damaged knows nothing of the sessions among it.
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
            }
            Body::Sweep(_) | Body::Note(_) => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
