//! Reads the logs of all jobs: the first step of a gc.

use crate::commit::{PositionReader, history};
use crate::images::each_image;
use crate::save::PackNumbers;
use outlive_format::{Body, Images, Manifest, Session};
use outlive_pool::{Pool, ProcessMark};
use outlive_types::{
    COMMITTER, Epoch, Error, ErrorKind, Fingerprint, JobName, PackId, Rank, Result, SessionId,
};
use std::collections::{BTreeSet, HashMap, HashSet};

/// A job's log, read to its end.
#[derive(Clone, Debug)]
pub struct JobState {
    /// The job.
    pub name: JobName,
    /// Number of its newest record.
    pub number: u64,
    /// Fingerprint of that record's bytes.
    pub fp: Fingerprint,
    /// Records in the log.
    pub records: usize,
    /// Number of its archive; 0 without one.
    pub archive: u64,
    /// Its checkpoints, newest first, with their present remarks.
    pub manifests: Vec<Manifest>,
    /// Its newest session, and whether that is open.
    pub session: Option<(Session, bool)>,
    /// Newest epoch that the log has had.
    pub last_epoch: Epoch,
    /// Number of records that cannot be read.
    pub damaged: u64,
    /// Whether checkpoints were dropped since its archive: then it gets a new one, and new
    /// segments.
    pub pruned: bool,
    /// Its incomplete checkpoints.
    pub incomplete: BTreeSet<Epoch>,
    /// Packs that were condemned before its writer appended something: it no longer needs them.
    pub released: HashSet<PackId>,
    /// Packs that were condemned since its writer last appended something.
    pub held: HashSet<PackId>,
}

/// State that the newer records of a log have set.
#[derive(Default)]
struct NewerRecords {
    /// The session that was closed last.
    closed: Option<SessionId>,
    /// The newest session that a manifest or a close names; its own record may be unreadable.
    named: Option<SessionId>,
    /// Whether a writer has appended something.
    writer: bool,
    /// Whether the archive was reached, so that the manifests that follow are part of it.
    archive: bool,
}

impl JobState {
    /// Reads a job's log.
    ///
    /// # Errors
    /// `Damaged` if a record cannot be read: it is unknown what it refers to. With `forget`, such
    /// records are only counted.
    pub fn read(pool: &Pool, name: &JobName, forget: bool) -> Result<JobState> {
        let mut state = JobState {
            name: name.clone(),
            number: 0,
            fp: Fingerprint::ZERO,
            records: pool.log().numbers(name)?.len(),
            archive: 0,
            manifests: Vec::new(),
            session: None,
            last_epoch: 0,
            damaged: 0,
            pruned: false,
            incomplete: BTreeSet::new(),
            released: HashSet::new(),
            held: HashSet::new(),
        };
        let mut reading = PositionReader::default();
        let mut seen = NewerRecords::default();
        for entry in history(pool, name)? {
            // Also if it cannot be read: reports go behind it.
            if state.number == 0 {
                state.number = entry.number;
                state.fp = entry.fp;
            } else if entry.number > state.number {
                // An archive has replaced the records still to be read. The packs that it condemns
                // are not older than the records before it.
                return JobState::read(pool, name, forget);
            }
            reading.add(&entry)?;
            let record = match entry.record {
                Ok(record) => record,
                Err(error) if forget && error.kind() == ErrorKind::Damaged => {
                    state.damaged += 1;
                    continue;
                }
                Err(error) => {
                    return Err(error.context(format!(
                        "the log of job {name} says something that cannot be read, so what it \
                         needs is unknown and no pack is deleted: `{}` tells more, `{}` gives up \
                         what cannot be read",
                        pool.command("verify", &[name.as_str()]),
                        pool.command("gc", &["--forget-damaged"])
                    )));
                }
            };
            state.add(record.body, (entry.number, entry.incomplete), &mut seen);
        }
        state.set_session(None, &seen);
        if let Some((session, open)) = &mut state.session {
            *open = *open && !has_ended(session);
        }
        state.last_epoch = reading.position().epoch;
        // Packs that were condemned twice count as held.
        state.released.retain(|pack| !state.held.contains(pack));
        Ok(state)
    }

    /// Adds a record, which is older than all records that were added before.
    fn add(&mut self, body: Body, (number, incomplete): (u64, bool), seen: &mut NewerRecords) {
        let condemn = |packs: Vec<PackId>, state: &mut JobState| match seen.writer {
            true => state.released.extend(packs),
            false => state.held.extend(packs),
        };
        match body {
            Body::Manifest(manifest) => {
                if !seen.archive {
                    seen.writer = true;
                    seen.named.get_or_insert(manifest.session);
                }
                if incomplete {
                    self.incomplete.insert(manifest.epoch);
                }
                self.manifests.push(manifest);
            }
            Body::Session(session) => {
                seen.writer = true;
                self.set_session(Some((session, true)), seen);
            }
            Body::Close(close) => {
                seen.writer = true;
                seen.closed.get_or_insert(close.session);
                seen.named.get_or_insert(close.session);
            }
            Body::Sweep(sweep) => condemn(sweep.packs, self),
            Body::Archive(archive) => {
                condemn(archive.condemned, self);
                self.set_session(archive.session, seen);
                self.archive = number;
                seen.archive = true;
            }
            Body::Prune(_) => self.pruned = true,
            Body::Note(_) => {}
        }
    }

    /// Sets the newest session, unless it is known. It is that of the next older record that has
    /// one, or one that newer records name, if that is another. A program that has restored before
    /// must learn of it.
    fn set_session(&mut self, older: Option<(Session, bool)>, seen: &NewerRecords) {
        if self.session.is_some() {
            return;
        }
        let is_older =
            |named: &SessionId| older.as_ref().is_none_or(|(session, _)| session.session != *named);
        let newest = match seen.named.filter(is_older) {
            Some(named) => Some((Session::of_unknown(named), true)),
            None => older,
        };
        self.session = newest.map(|(session, open)| {
            let open = open && seen.closed != Some(session.session);
            (session, open)
        });
    }

    /// Returns the open session if its lease has ended: its writer seems to be gone with its host,
    /// or cut off from the log.
    pub(super) fn lost_session(&self, pool: &Pool) -> Option<SessionId> {
        let (session, _) = self.session.as_ref().filter(|(_, open)| *open)?;
        // This process can see whether a process of its own system runs. An unreadable record may
        // be a newer session.
        if session.lease.is_empty() || self.damaged > 0 || process_of(session).is_of_this_system() {
            return None;
        }
        // A lease whose state cannot be read has not ended.
        let has_ended = pool.log().has_lease_ended(&session.lease).unwrap_or_default();
        (has_ended == Some(true)).then_some(session.session)
    }

    /// Notes that the newest session was ended.
    pub(super) fn session_has_ended(&mut self) {
        if let Some((_, open)) = &mut self.session {
            *open = false;
        }
    }

    /// Whether a writer may still append: its session is open, and its process is not known to be
    /// dead.
    pub fn is_open(&self) -> bool {
        self.session.as_ref().is_some_and(|(_, open)| *open)
    }

    /// Whether it exists for people: it has a checkpoint, a program that may still save, or a record
    /// that cannot be read.
    pub fn is_there(&self) -> bool {
        !self.manifests.is_empty() || self.is_open() || self.damaged > 0
    }

    /// Whether its newest session is this one.
    pub fn is_of(&self, session: SessionId) -> bool {
        self.session.as_ref().is_some_and(|(newest, _)| newest.session == session)
    }

    /// Names the program of the newest session, for messages.
    pub fn program(&self) -> String {
        match &self.session {
            Some((Session { process_id, host, .. }, _)) if *process_id != 0 => {
                format!("process {process_id} on {host}")
            }
            _ => "a program".to_owned(),
        }
    }

    /// Whether the writer, if there is one, may still refer to a condemned pack.
    pub fn holds(&self, pack: &PackId) -> bool {
        self.is_open() && !self.released.contains(pack)
    }

    /// Whether its log reports a pack as condemned, and no checkpoint has named it since.
    pub fn mentions(&self, pack: &PackId) -> bool {
        self.held.contains(pack) || self.released.contains(pack)
    }

    /// Forgets the reports of packs that are named again: a gc must report them again.
    pub fn hold_what_is_named(&mut self, is_named: impl Fn(&PackId) -> bool) {
        self.released.retain(|pack| !is_named(pack));
        self.held.retain(|pack| !is_named(pack));
    }

    /// Returns the packs of the open session that may belong to a save under way.
    fn in_progress(&self, pool: &Pool) -> Result<Option<(SessionId, FirstPacks)>> {
        let Some((session, _)) = self.session.as_ref().filter(|(_, open)| *open) else {
            return Ok(None);
        };
        let mut own = self.manifests.iter().filter(|m| m.session == session.session);
        let first = own.next().map_or(Ok(FirstPacks::default()), |m| FirstPacks::after(pool, m))?;
        Ok(Some((session.session, first)))
    }
}

/// Whether the session's process is known to be dead. A late append of it still follows the very
/// record that it had read, or fails.
fn has_ended(session: &Session) -> bool {
    process_of(session).is_dead()
}

fn process_of(session: &Session) -> ProcessMark {
    let Session { process_id, started, host, system, .. } = session.clone();
    ProcessMark { process: process_id, started, host, system }
}

/// First pack of each rank that may belong to a save under way in a session; 0 for ranks not named.
#[derive(Clone, Debug, Default)]
pub struct FirstPacks(HashMap<Rank, u32>);

impl FirstPacks {
    /// Returns the first pack of one rank alone.
    pub fn of(packs: &PackNumbers) -> FirstPacks {
        FirstPacks([(packs.rank(), packs.next())].into())
    }

    /// Returns the first packs behind the images of a checkpoint. If an image table cannot be read,
    /// every pack may belong to a save under way.
    fn after(pool: &Pool, manifest: &Manifest) -> Result<FirstPacks> {
        let mut first = HashMap::new();
        if let Images::Table(table) = &manifest.images {
            first.insert(COMMITTER, table.next_pack);
        }
        let read = each_image(pool, manifest, &mut |image| {
            first.insert(image.reference.rank, image.next_pack);
            Ok(())
        });
        match read {
            Err(error) if error.kind() == ErrorKind::Damaged => Ok(FirstPacks::default()),
            read => read.map(|()| FirstPacks(first)),
        }
    }

    fn is_behind(&self, pack: &PackId) -> bool {
        pack.count() >= self.0.get(&pack.rank()).copied().unwrap_or(0)
    }
}

/// All jobs, and the packs that existed before their logs were read.
#[derive(Debug)]
pub struct Survey {
    /// Packs on the targets, sorted.
    pub packs: Vec<PackId>,
    /// Packs that were begun before the logs were read, and not finished after that.
    pub unfinished: Vec<PackId>,
    /// The jobs.
    pub jobs: Vec<JobState>,
    /// First packs of each open session that a gc must not touch.
    in_progress: HashMap<SessionId, FirstPacks>,
}

impl Survey {
    /// Lists packs, then reads all logs: so the writer of each listed pack has its session in a log
    /// that is read. Unfinished packs are listed again afterwards: a pack that is finished by then
    /// may be part of a checkpoint whose program has ended its session. `own` is the collector's
    /// session, with the first of its packs that are in progress.
    ///
    /// # Errors
    /// Errors of targets and log; `Damaged` as [`JobState::read`].
    pub fn new(pool: &Pool, own: (SessionId, FirstPacks), forget: bool) -> Result<Survey> {
        let mut unfinished = pool.unfinished_packs()?;
        let packs = pool.packs()?;
        let jobs = pool.jobs()?;
        if jobs.is_empty() && !packs.is_empty() {
            return Err(Error::damaged(format!(
                "there are {} packs in {} and no job in {}: the log is missing, and without it \
                 everything would be taken for garbage. Bring it back; if the packs are to go, \
                 delete them by hand",
                packs.len(),
                pool.describe_targets(),
                pool.log().describe()
            )));
        }
        let jobs: Vec<JobState> =
            jobs.iter().map(|job| JobState::read(pool, job, forget)).collect::<Result<_>>()?;
        if !unfinished.is_empty() {
            let still: HashSet<PackId> = pool.unfinished_packs()?.into_iter().collect();
            unfinished.retain(|pack| still.contains(pack));
        }
        let mut in_progress = HashMap::from([own]);
        for job in &jobs {
            in_progress.extend(job.in_progress(pool)?);
        }
        Ok(Survey { packs, unfinished, jobs, in_progress })
    }

    /// Notes that a session was ended after its log was read: no pack of it belongs to a save under
    /// way.
    pub(super) fn session_has_ended(&mut self, session: SessionId) {
        self.in_progress.remove(&session);
    }

    /// Looks for a save under way in a job's log that was read again.
    pub(super) fn look_for_progress(&mut self, pool: &Pool, job: usize) -> Result<()> {
        self.in_progress.extend(self.jobs[job].in_progress(pool)?);
        Ok(())
    }

    /// Whether a pack may belong to a save under way.
    pub fn is_in_progress(&self, pack: &PackId) -> bool {
        self.in_progress.get(&pack.session()).is_some_and(|first| first.is_behind(pack))
    }

    /// Whether a session may be open.
    pub fn is_open(&self, session: SessionId) -> bool {
        self.in_progress.contains_key(&session)
    }
}
