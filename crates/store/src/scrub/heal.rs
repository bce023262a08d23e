//! Moves whole data out of damaged packs, and reports to every job, so that no job refers to these
//! packs any more. It is a gc for just these packs, with the protocol of docs/design/009-gc.md.

use super::check::check_pack;
use super::listed::{Form, PackExtents, SegmentContents, add, directory_of};
use crate::commit::LogHead;
use crate::fill::FillSession;
use crate::gc::{
    ATTEMPTS, FirstPacks, JobState, RankLine, Relisted, Survey, archive_of, busy, lines, live_of,
    saves_too_fast, tell, tell_all,
};
use crate::images::{each_image, read_page};
use crate::index::{Locator, Pages};
use crate::read::{Live, Logs, Once, Reload, Subtree};
use crate::save::{PackNumbers, Packer, store_lists, store_page, store_segments};
use crate::verify::is_damage;
use outlive_format::{ImageRef, Manifest, SegmentRef};
use outlive_io::Pace;
use outlive_log::Lock;
use outlive_pool::{PackExtent, Pool};
use outlive_types::{Epoch, Error, ErrorKind, Fingerprint, JobName, PackId, Result, SessionId};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Work that was done about damaged packs, or would be.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HealReport {
    /// Damaged packs that jobs name, missing ones included. No job refers to them after the scrub,
    /// unless something kept it from a repair.
    pub condemned: BTreeSet<PackId>,
    /// Packs that jobs name and that do not exist.
    pub missing: BTreeSet<PackId>,
    /// Damaged packs that no job names: a gc deletes them.
    pub unneeded: BTreeSet<PackId>,
    /// Damaged packs of saves under way, whose needs are not known yet: left to the next scrub.
    pub pending: BTreeSet<PackId>,
    /// Number of chunks and nodes of damaged packs that are whole, and were copied.
    pub moved: u64,
    /// Bytes of these.
    pub moved_bytes: u64,
    /// Number of damaged ones that were found whole in another pack.
    pub found_elsewhere: u64,
    /// Number of damaged ones that were found nowhere.
    pub lost: u64,
    /// Number of segments that could not be read, and were recreated from directories.
    pub segments: u64,
    /// Checkpoints that need lost data.
    pub incomplete: BTreeMap<JobName, BTreeSet<Epoch>>,
}

/// Deals with `suspects`, packs in which a fault was found, and with missing packs. A dry run reads
/// the same and writes nothing. `report` gets the findings and the work done, even after an error.
///
/// # Errors
/// `Damaged` if a log cannot be read, so that its needs are unknown. `Retry` if another command
/// collects. `Fenced` if a gc has begun. Errors of targets and log. The work done before an error
/// is valid, and the next scrub completes it.
pub fn heal(
    pool: &Pool,
    suspects: &BTreeSet<PackId>,
    pace: &Pace,
    dry_run: bool,
    report: &mut HealReport,
) -> Result<()> {
    // No log needs a session before there is something to do.
    let (has_work, found) = look(pool, suspects, pace, dry_run)?;
    report.clone_from(&found);
    if dry_run || !has_work {
        return Ok(());
    }
    let turn = match pool.lock_collecting()? {
        Lock::Busy => return Err(busy(pool)),
        turn => turn,
    };
    let healed = heal_alone(pool, suspects, pace, report, Missing::IsStrange);
    if healed.as_ref().is_err_and(|error| error.kind() == ErrorKind::Fenced) {
        // Data that the other collector moved and deleted meanwhile may seem to be missing.
        *report = found;
    }
    drop(turn);
    healed
}

/// Meaning of a pool that lacks all packs that jobs need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Missing {
    /// A target is not mounted: nothing is done.
    IsStrange,
    /// The packs were in memory.
    IsKnown,
}

/// Does the same without a look first, for a caller that holds the lock of collectors.
///
/// # Errors
/// As [`heal`].
pub(crate) fn heal_alone(
    pool: &Pool,
    suspects: &BTreeSet<PackId>,
    pace: &Pace,
    report: &mut HealReport,
    missing: Missing,
) -> Result<()> {
    let mut head = LogHead::new(JobName::gc());
    let (session, _) = head.open(pool)?;
    let opened = head.number();
    let begun = Heal::begin(pool, session, &mut head, (suspects, missing), pace);
    let healed = begun.and_then(|mut heal| {
        let outcome = heal.run();
        *report = heal.report;
        outcome
    });
    // A gc that has begun meanwhile takes our unfinished packs for leftovers: explain why they are
    // gone.
    let healed = healed.map_err(|error| head.blame(pool, error));
    let closed = head.close(pool);
    let _ = pool.log().remove_before(&JobName::gc(), opened);
    healed.and(closed)
}

/// Finds out whether there is something to do, and what, without writing anything. A gc may delete
/// data during the look; so missing data is looked up again if the logs have changed.
fn look(
    pool: &Pool,
    suspects: &BTreeSet<PackId>,
    pace: &Pace,
    dry_run: bool,
) -> Result<(bool, HealReport)> {
    let mut again = Reload::new(pool, Logs::All)?;
    loop {
        let mut head = LogHead::new(JobName::gc());
        let suspects = (suspects, Missing::IsStrange);
        let begun = Heal::begin(pool, SessionId([0xFF; 12]), &mut head, suspects, pace);
        let looked = begun.and_then(|mut heal| {
            if dry_run || !heal.has_work {
                heal.look()?;
            }
            Ok((heal.has_work, heal.report))
        });
        let is_calm = match &looked {
            Ok((_, report)) => *report == HealReport::default(),
            Err(error) => !is_damage(error),
        };
        if is_calm || !again.is_worth_it()? {
            return looked;
        }
    }
}

/// Returns the suspects that still exist and are still damaged.
fn bad_packs(
    pool: &Pool,
    survey: &Survey,
    suspects: &BTreeSet<PackId>,
    pace: &Pace,
    report: &mut HealReport,
) -> Result<HashSet<PackId>> {
    let mut bad: HashSet<PackId> = HashSet::new();
    for pack in suspects.iter().filter(|pack| survey.packs.contains(pack)) {
        match check_pack(pool, *pack, pace) {
            // The fault was not one of the medium.
            Ok(_) => {}
            Err(error) if !is_damage(&error) => return Err(error),
            Err(_) if survey.is_in_progress(pack) => {
                report.pending.insert(*pack);
            }
            Err(_) => {
                bad.insert(*pack);
            }
        }
    }
    Ok(bad)
}

/// Returns the incomplete checkpoints of a job that still lack data.
fn still_hurt(pool: &Pool, job: &JobState, listed: &SegmentContents) -> Result<BTreeSet<Epoch>> {
    let locator = Locator::of(&directory_of(&listed.extents));
    let mut incomplete = job.incomplete.clone();
    for manifest in job.manifests.iter().filter(|m| job.incomplete.contains(&m.epoch)) {
        if !walk(pool, manifest, &locator, &mut HashSet::new())? {
            incomplete.remove(&manifest.epoch);
        }
    }
    Ok(incomplete)
}

/// Returns the packs that jobs name and that do not exist.
fn missing_packs(
    pool: &Pool,
    survey: &Survey,
    named: &BTreeSet<PackId>,
) -> Result<BTreeSet<PackId>> {
    let there: BTreeSet<PackId> = survey.packs.iter().copied().collect();
    let mut missing = BTreeSet::new();
    for pack in named.difference(&there) {
        // Packs that have come since the targets were listed exist now.
        match pool.stored_bytes(*pack) {
            Err(error) if is_damage(&error) => {
                missing.insert(*pack);
            }
            length => drop(length?),
        }
    }
    Ok(missing)
}

/// A scrub that deals with its findings.
pub struct Heal<'a> {
    pub(super) pool: &'a Pool,
    pub(super) packs: PackNumbers,
    head: &'a mut LogHead,
    pub(super) pace: &'a Pace,
    survey: Survey,
    pub(super) bad: HashSet<PackId>,
    /// Packs that may hold copies of damaged data.
    pub(super) good: Vec<PackId>,
    /// Packs that jobs name. A gc that was held up may delete others at any moment.
    pub(super) named: BTreeSet<PackId>,
    /// Present extents of objects that bad packs list.
    pub(super) found: HashMap<Form, PackExtent>,
    pub(super) lost: HashSet<Form>,
    /// Jobs whose incomplete checkpoints have found the data that they lacked: a save has stored it
    /// again.
    healed: BTreeSet<JobName>,
    has_work: bool,
    fills: FillSession,
    pub(super) report: HealReport,
}

impl<'a> Heal<'a> {
    fn begin(
        pool: &'a Pool,
        session: SessionId,
        head: &'a mut LogHead,
        (suspects, missing): (&BTreeSet<PackId>, Missing),
        pace: &'a Pace,
    ) -> Result<Heal<'a>> {
        let survey = Survey::new(pool, (session, FirstPacks::default()), false)?;
        let mut report = HealReport::default();
        let mut bad = bad_packs(pool, &survey, suspects, pace, &mut report)?;
        let mut named: BTreeSet<PackId> = BTreeSet::new();
        let mut healed = BTreeSet::new();
        for job in &survey.jobs {
            let listed = SegmentContents::read(pool, &job.manifests, &bad)?;
            named.extend(&listed.packs);
            report.segments += listed.unreadable as u64;
            if !job.incomplete.is_empty() {
                let incomplete = still_hurt(pool, job, &listed)?;
                if incomplete != job.incomplete {
                    healed.insert(job.name.clone());
                }
                report
                    .incomplete
                    .extend((!incomplete.is_empty()).then(|| (job.name.clone(), incomplete)));
            }
        }
        report.missing = missing_packs(pool, &survey, &named)?;
        let is_all = !named.is_empty() && report.missing.len() == named.len();
        if is_all && missing == Missing::IsStrange {
            return Err(Error::damaged(format!(
                "none of the packs that the jobs need is in {}: is everything where it should be? \
                 Nothing was done",
                pool.describe_targets()
            )));
        }
        bad.extend(&report.missing);
        (report.condemned, report.unneeded) = bad.iter().partition(|pack| named.contains(*pack));
        let is_condemned = |pack: &PackId| survey.jobs.iter().any(|job| job.mentions(pack));
        let is_good = |pack: &&PackId| {
            !bad.contains(*pack) && !survey.is_in_progress(pack) && !is_condemned(pack)
        };
        let good = survey.packs.iter().filter(is_good).copied().collect();
        let untold = |pack: &PackId| survey.jobs.iter().any(|job| !job.mentions(pack));
        let has_work = !healed.is_empty()
            || report.segments > 0
            || bad.iter().any(|pack| named.contains(pack))
            || bad.iter().any(untold);
        let (found, lost) = Default::default();
        let packs = PackNumbers::new(session, 0);
        Ok(Heal {
            pool,
            packs,
            head,
            pace,
            survey,
            bad,
            good,
            named,
            found,
            lost,
            healed,
            has_work,
            fills: FillSession::new(session),
            report,
        })
    }

    /// Finds the lost data and the incomplete checkpoints, without writing anything.
    fn look(&mut self) -> Result<()> {
        for job in self.survey.jobs.clone() {
            let listed = SegmentContents::read(self.pool, &job.manifests, &self.bad)?;
            if listed.concerns(&self.bad) {
                self.save(&listed, false)?;
            }
        }
        for job in self.survey.jobs.clone() {
            let listed = SegmentContents::read(self.pool, &job.manifests, &self.bad)?;
            if listed.concerns(&self.bad) {
                let (_, incomplete) = self.resolve(&job, listed)?;
                self.note_hurt(&job.name, &incomplete);
            }
        }
        Ok(())
    }

    fn note_hurt(&mut self, job: &JobName, incomplete: &BTreeSet<Epoch>) {
        match incomplete.is_empty() {
            true => drop(self.report.incomplete.remove(job)),
            false => drop(self.report.incomplete.insert(job.clone(), incomplete.clone())),
        }
    }

    fn run(&mut self) -> Result<()> {
        for job in self.survey.jobs.clone() {
            let listed = SegmentContents::read(self.pool, &job.manifests, &self.bad)?;
            self.save(&listed, true)?;
        }
        // As in a gc, a session that begins now may have read other logs too early.
        tell_all(self.pool, &mut |name, _| self.tell(name)).map(drop)
    }

    /// Reports to a job: by an archive if the job names a bad pack, and by a sweep otherwise.
    fn tell(&mut self, name: &JobName) -> Result<JobState> {
        let (pool, session) = (self.pool, self.packs.session());
        let told = tell(pool, session, ATTEMPTS, &mut || {
            let mut state = JobState::read(pool, name, false)?;
            // After the reads, as in a gc.
            self.head.check(pool)?;
            let listed = SegmentContents::read(pool, &state.manifests, &self.bad)?;
            let is_new = |pack: &&PackId| !state.mentions(pack) || listed.packs.contains(*pack);
            let mut anew: Vec<PackId> = self.bad.iter().filter(is_new).copied().collect();
            anew.sort_unstable();
            if !listed.concerns(&self.bad) && !self.healed.contains(name) {
                return Ok((state, anew, None));
            }
            self.save(&listed, true)?;
            let (extents, incomplete) = self.resolve(&state, listed)?;
            self.note_hurt(name, &incomplete);
            state.incomplete = incomplete;
            let relisted = self.relist(&state, &extents)?;
            let kept: Vec<&Manifest> = state.manifests.iter().collect();
            let archive = archive_of(session, &state, &kept, &self.bad, relisted);
            self.fills.fill(pool, &archive, &self.bad)?;
            // After the last pack is stored: its target may have been removed.
            self.head.check(pool)?;
            pool.check_markers()?;
            Ok((state, anew, Some(archive)))
        })?;
        let told = told.ok_or_else(|| saves_too_fast(name))?;
        self.healed.remove(name);
        Ok(told)
    }

    /// Returns the extents of everything that a job lists and that can be read, and the job's
    /// incomplete checkpoints.
    fn resolve(
        &mut self,
        state: &JobState,
        listed: SegmentContents,
    ) -> Result<(PackExtents, BTreeSet<Epoch>)> {
        let is_partial = listed.unreadable > 0;
        let mut extents = listed.extents;
        extents.retain(|form, (_, extent)| match self.bad.contains(&extent.pack) {
            false => true,
            true => match self.found.get(form) {
                Some(now) => {
                    *extent = *now;
                    true
                }
                None => false,
            },
        });
        if is_partial {
            // The directories of packs list all that a segment listed, and much besides.
            for pack in &self.good {
                match self.pool.directory_of(*pack) {
                    Ok((directory, _)) => add(&mut extents, &directory, &self.bad),
                    Err(error) if is_damage(&error) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        if !is_partial && self.lost.is_empty() && state.incomplete.is_empty() {
            return Ok((extents, BTreeSet::new()));
        }
        let locator = Locator::of(&directory_of(&extents));
        let mut needed: HashSet<Form> = HashSet::new();
        let mut incomplete = BTreeSet::new();
        for manifest in &state.manifests {
            if walk(self.pool, manifest, &locator, &mut needed)? {
                incomplete.insert(manifest.epoch);
            }
        }
        if is_partial {
            extents.retain(|(fp, _), (_, extent)| needed.contains(&(*fp, extent.slice)));
        }
        Ok((extents, incomplete))
    }

    /// Stores new segments: one set with all `extents` for the checkpoints of one rank, and for
    /// each rank of the others a set of the extents that it needs.
    fn relist(&mut self, state: &JobState, extents: &PackExtents) -> Result<Relisted> {
        let mut relisted = Relisted::default();
        let packer = Packer::new(self.pool, &self.packs, 64 * extents.len() as u64);
        let store = |extents: &PackExtents| -> Result<Vec<SegmentRef>> {
            if extents.is_empty() {
                return Ok(Vec::new());
            }
            let stored = store_segments(self.pool, &packer, directory_of(extents))?;
            Ok(stored.into_iter().map(|(segment, _)| segment).collect())
        };
        let kept: Vec<&Manifest> = state.manifests.iter().collect();
        // A lost image table is one of an incomplete checkpoint.
        let lines = lines(self.pool, state, &kept).map_err(|(_, error)| error)?;
        let mut lists = Vec::new();
        for line in lines {
            let Some(rank) = line.rank else {
                relisted.segments = store(extents)?;
                continue;
            };
            let needed = self.needed_by(&line, extents)?;
            lists.push((rank, store(&needed)?));
        }
        relisted.lists = store_lists(&packer, lists, &kept)?;
        for table in kept.iter().filter_map(|manifest| manifest.images.table()) {
            for page in table.pages.iter().filter(|page| self.bad.contains(&page.pack)) {
                match read_page(self.pool, page) {
                    Ok(bytes) => {
                        let moved = store_page(&packer, page.first_rank, &bytes)?;
                        relisted.pages.insert(*page, moved);
                    }
                    Err(error) if is_damage(&error) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        packer.close()?;
        Ok(relisted)
    }

    /// Returns the extents that one rank needs.
    fn needed_by(&self, line: &RankLine, extents: &PackExtents) -> Result<PackExtents> {
        let locator = Locator::of(&directory_of(extents));
        let (mut needed, mut visited) = (HashSet::new(), HashSet::new());
        for (_, image) in &line.images {
            walk_image(self.pool, image, &locator, &mut needed, &mut visited)?;
        }
        // A whole chunk may have repaired its slice.
        let is_needed = |form: &Form, extent: &PackExtent| needed.contains(&(form.0, extent.slice));
        let there = extents.iter().filter(|(form, (_, extent))| is_needed(form, extent));
        Ok(there.map(|(form, there)| (*form, *there)).collect())
    }
}

/// Whether a checkpoint lacks data; `needed` gathers its needs.
fn walk(
    pool: &Pool,
    manifest: &Manifest,
    locator: &Locator,
    needed: &mut HashSet<Form>,
) -> Result<bool> {
    let (mut is_incomplete, mut visited) = (false, HashSet::new());
    let walked = each_image(pool, manifest, &mut |image| {
        is_incomplete |= walk_image(pool, &image.reference, locator, needed, &mut visited)?;
        Ok(())
    });
    match walked {
        Err(error) if is_damage(&error) => Ok(true),
        walked => walked.map(|()| is_incomplete),
    }
}

/// Whether an image lacks data; `needed` gathers its needs, except those below `visited`.
fn walk_image(
    pool: &Pool,
    image: &ImageRef,
    locator: &Locator,
    needed: &mut HashSet<Form>,
    visited: &mut HashSet<Subtree>,
) -> Result<bool> {
    let (mut is_lost, mut is_missing) = (false, false);
    let mut each = |live: Live| {
        let (fp, pages) = match live {
            Live::Node(node) => (node.fp, Pages::Whole),
            Live::Chunk(fp, pages) => (fp, pages),
        };
        match locator.find_pages(&fp, pages) {
            Ok(extent) => drop(needed.insert((fp, extent.slice))),
            Err(_) => is_missing = true,
        }
        Ok(())
    };
    let mut lost = |_: Fingerprint| is_lost = true;
    let mut needs = Once { visited, each: &mut each };
    live_of(pool, locator, image, &mut needs, Some(&mut lost))?;
    Ok(is_lost || is_missing)
}
