//! Moves what is whole out of damaged packs, and tells every job not to refer to them any more. A gc
//! for just these packs; the protocol is that of docs/design/009-gc.md.

use super::check::check_pack;
use super::listed::{Listed, Places, add, directory_of};
use crate::commit::LogHead;
use crate::gc::{JobState, Survey, append_behind, archive_of, live_of};
use crate::index::Locator;
use crate::pace::Pace;
use crate::restore::{Live, ReadPlan, Wanted};
use crate::save::{Lane, Packer, store_segments};
use outlive_format::{Body, EntryKind, Manifest, SegmentRef, Sweep};
use outlive_pool::{Place, Pool};
use outlive_target::ShardName;
use outlive_types::{Epoch, Error, ErrorKind, Fingerprint, JobName, PackId, Result, SessionId};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

/// How often a job is read again because its program has saved meanwhile.
const ATTEMPTS: usize = 64;

/// What was done about damaged packs, or would be.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HealReport {
    /// Damaged packs that jobs name, missing ones included: from now on nobody refers to them.
    pub condemned: BTreeSet<PackId>,
    /// Packs that jobs name and that are not there.
    pub missing: BTreeSet<PackId>,
    /// Damaged packs that no job names: a gc deletes them.
    pub unneeded: BTreeSet<PackId>,
    /// Damaged packs of saves under way, of which nothing is known yet: left to the next scrub.
    pub pending: BTreeSet<PackId>,
    /// Chunks and nodes of damaged packs that are whole, and were copied.
    pub moved: u64,
    /// Bytes of these.
    pub moved_bytes: u64,
    /// Damaged ones that were found whole in another pack.
    pub mended: u64,
    /// Damaged ones that were found nowhere.
    pub lost: u64,
    /// Segments that could not be read, and were made anew from directories.
    pub segments: u64,
    /// Checkpoints that need what is lost.
    pub hurt: BTreeMap<JobName, BTreeSet<Epoch>>,
}

/// Deals with `suspects`, packs in which something was found to be wrong, and with packs that are
/// missing. A dry run reads the same and writes nothing.
///
/// # Errors
/// `Damaged` if a log cannot be read, so that nobody knows what it needs; `Fenced` if a gc has begun;
/// what target and log report. What had been done by then is right, and the next one finishes it.
pub fn heal(
    pool: &Pool,
    suspects: &BTreeSet<PackId>,
    pace: &Pace,
    dry_run: bool,
) -> Result<HealReport> {
    let mut head = LogHead::new(JobName::gc());
    // Nobody need know before there is something to do.
    let mut look = Heal::begin(pool, SessionId([0xFF; 12]), &mut head, suspects, pace)?;
    if dry_run || !look.has_work {
        look.look()?;
        return Ok(look.report);
    }
    drop(look);
    let (session, _) = head.open(pool)?;
    let opened = head.number();
    let healed = Heal::begin(pool, session, &mut head, suspects, pace).and_then(Heal::run);
    // A gc that has begun meanwhile takes our unfinished packs for leftovers: say why they are gone.
    if healed.is_err()
        && let Err(error) = head.check(pool)
        && error.kind() == ErrorKind::Fenced
    {
        return Err(error);
    }
    let closed = head.close(pool);
    let _ = pool.log().remove_before(&JobName::gc(), opened);
    let report = healed?;
    closed.map(|()| report)
}

struct Heal<'a> {
    pool: &'a Pool,
    session: SessionId,
    head: &'a mut LogHead,
    next_pack: u32,
    pace: &'a Pace,
    survey: Survey,
    bad: HashSet<PackId>,
    /// Packs in which what is damaged may be looked for.
    good: Vec<PackId>,
    /// Where things of bad packs are, or are now.
    found: HashMap<Fingerprint, Place>,
    lost: HashSet<Fingerprint>,
    /// Jobs whose hurt checkpoints have found what they missed: a save has stored it anew.
    healed: BTreeSet<JobName>,
    has_work: bool,
    report: HealReport,
}

impl<'a> Heal<'a> {
    fn begin(
        pool: &'a Pool,
        session: SessionId,
        head: &'a mut LogHead,
        suspects: &BTreeSet<PackId>,
        pace: &'a Pace,
    ) -> Result<Heal<'a>> {
        let survey = Survey::new(pool, session, false)?;
        let mut report = HealReport::default();
        let mut bad: HashSet<PackId> = HashSet::new();
        for pack in suspects.iter().filter(|pack| survey.packs.contains(pack)) {
            match check_pack(pool, *pack, pace) {
                // It was not the medium that was wrong.
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
        let mut named: HashSet<PackId> = HashSet::new();
        let mut healed = BTreeSet::new();
        for job in &survey.jobs {
            let listed = Listed::read(pool, &job.manifests, &bad)?;
            named.extend(&listed.packs);
            report.segments += listed.unreadable as u64;
            if !job.hurt.is_empty() {
                let locator = Locator::of(&directory_of(&listed.places));
                let mut hurt = job.hurt.clone();
                for manifest in job.manifests.iter().filter(|m| job.hurt.contains(&m.epoch)) {
                    if !walk(pool, manifest, &locator, &mut HashSet::new())? {
                        hurt.remove(&manifest.epoch);
                    }
                }
                if hurt != job.hurt {
                    healed.insert(job.name.clone());
                }
                report.hurt.extend((!hurt.is_empty()).then(|| (job.name.clone(), hurt)));
            }
        }
        let there: HashSet<PackId> = survey.packs.iter().copied().collect();
        for pack in named.difference(&there) {
            // Packs that have come since the target was listed are there now.
            match pool.target().length(ShardName { pack: *pack, shard: 0 }) {
                Err(error) if is_damage(&error) => {
                    report.missing.insert(*pack);
                }
                length => drop(length?),
            }
        }
        if !named.is_empty() && report.missing.len() == named.len() {
            return Err(Error::damaged(format!(
                "none of the packs that the jobs need is in {}: is everything where it should be? \
                 Nothing was done",
                pool.target().describe()
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
            || !named.is_disjoint(&bad)
            || bad.iter().any(untold);
        let (found, lost) = Default::default();
        let next_pack = 0;
        Ok(Heal {
            pool,
            session,
            head,
            next_pack,
            pace,
            survey,
            bad,
            good,
            found,
            lost,
            healed,
            has_work,
            report,
        })
    }

    /// Finds out what is lost and who is hurt, without writing anything.
    fn look(&mut self) -> Result<()> {
        for job in self.survey.jobs.clone() {
            let listed = Listed::read(self.pool, &job.manifests, &self.bad)?;
            if listed.concerns(&self.bad) {
                self.save(&listed, false)?;
            }
        }
        for job in self.survey.jobs.clone() {
            let listed = Listed::read(self.pool, &job.manifests, &self.bad)?;
            if listed.concerns(&self.bad) {
                let (_, hurt) = self.resolve(&job, listed)?;
                self.note_hurt(&job.name, &hurt);
            }
        }
        Ok(())
    }

    fn note_hurt(&mut self, job: &JobName, hurt: &BTreeSet<Epoch>) {
        match hurt.is_empty() {
            true => drop(self.report.hurt.remove(job)),
            false => drop(self.report.hurt.insert(job.clone(), hurt.clone())),
        }
    }

    fn run(mut self) -> Result<HealReport> {
        for job in self.survey.jobs.clone() {
            let listed = Listed::read(self.pool, &job.manifests, &self.bad)?;
            self.save(&listed, true)?;
        }
        let mut told: BTreeMap<JobName, JobState> = BTreeMap::new();
        loop {
            let mut news = false;
            for name in self.pool.jobs()? {
                match told.get(&name) {
                    // As in a gc: a session that begins now may have read other logs too early.
                    Some(state) if state.is_open() => continue,
                    Some(state) if self.pool.log().latest(&name)? == state.number => continue,
                    _ => news = true,
                }
                let state = self.tell(&name)?;
                told.insert(name, state);
            }
            if !news {
                return Ok(self.report);
            }
        }
    }

    /// Tells a job, by an archive if it names anything bad and by a sweep otherwise.
    fn tell(&mut self, name: &JobName) -> Result<JobState> {
        for _ in 0..ATTEMPTS {
            self.head.check(self.pool)?;
            let mut state = JobState::read(self.pool, name, false)?;
            let listed = Listed::read(self.pool, &state.manifests, &self.bad)?;
            let is_new = |pack: &&PackId| !state.mentions(pack) || listed.packs.contains(*pack);
            let mut anew: Vec<PackId> = self.bad.iter().filter(is_new).copied().collect();
            anew.sort_unstable();
            let body = if listed.concerns(&self.bad) || self.healed.remove(name) {
                self.save(&listed, true)?;
                let (places, hurt) = self.resolve(&state, listed)?;
                let segments = self.store(&places)?;
                self.note_hurt(name, &hurt);
                state.hurt = hurt;
                let kept: Vec<&Manifest> = state.manifests.iter().collect();
                Body::Archive(archive_of(self.session, &state, &kept, anew.clone(), segments))
            } else if anew.is_empty() {
                return Ok(state);
            } else {
                Body::Sweep(Sweep { gc: self.session, packs: anew.clone() })
            };
            if append_behind(self.pool, &mut state, body)? {
                state.held.extend(anew);
                return Ok(state);
            }
        }
        Err(Error::retry(format!("job {name} saves faster than it can be told: try again later")))
    }

    /// Takes care of what is listed in bad packs: finds it elsewhere, or copies it if it is whole.
    fn save(&mut self, listed: &Listed, write: bool) -> Result<()> {
        let is_new = |fp: &Fingerprint, place: &Place| {
            self.bad.contains(&place.pack)
                && !self.found.contains_key(fp)
                && !self.lost.contains(fp)
        };
        let mut wanted: HashMap<Fingerprint, (EntryKind, Place)> = listed
            .places
            .iter()
            .filter(|(fp, (_, place))| is_new(fp, place))
            .map(|(fp, there)| (*fp, *there))
            .collect();
        if wanted.is_empty() {
            return Ok(());
        }
        self.find_elsewhere(&mut wanted)?;
        let mut entries: Vec<(EntryKind, Wanted)> =
            wanted.into_iter().map(|(fp, (kind, place))| (kind, Wanted { fp, place })).collect();
        entries.sort_by_key(|(kind, wanted)| (*kind, wanted.place));
        self.copy(&entries, write)
    }

    /// Looks into the directories of good packs, and makes sure that what they list is there.
    fn find_elsewhere(
        &mut self,
        wanted: &mut HashMap<Fingerprint, (EntryKind, Place)>,
    ) -> Result<()> {
        let mut others: Vec<Wanted> = Vec::new();
        for pack in &self.good {
            let directory = match self.pool.directory_of(*pack) {
                Ok((directory, _)) => directory,
                Err(error) if is_damage(&error) => continue,
                Err(error) => return Err(error),
            };
            for entry in &directory.entries {
                if wanted.get(&entry.fp).is_some_and(|(kind, _)| *kind == entry.kind) {
                    let (offset, length, frame) = (entry.offset, entry.length, entry.frame);
                    let place = Place { pack: *pack, offset, length, frame };
                    others.push(Wanted { fp: entry.fp, place });
                }
            }
        }
        let whole = Mutex::new(Vec::new());
        let take = |at: usize, bytes: &[u8]| {
            self.pace.spend(bytes.len() as u64);
            whole.lock().unwrap_or_else(PoisonError::into_inner).push(others[at]);
            Ok(())
        };
        let faults = ReadPlan::new(self.pool, &others).execute(self.pool, 1, true, &take);
        other_than_damage(faults.into_iter().map(|fault| fault.error))?;
        for other in whole.into_inner().unwrap_or_else(PoisonError::into_inner) {
            if wanted.remove(&other.fp).is_some() {
                self.found.insert(other.fp, other.place);
                self.report.mended += 1;
            }
        }
        Ok(())
    }

    /// Copies what is whole, chunks first; the rest is lost.
    fn copy(&mut self, entries: &[(EntryKind, Wanted)], write: bool) -> Result<()> {
        let total_bytes: u64 = entries.iter().map(|(_, w)| u64::from(w.place.length)).sum();
        let packer = Packer::new(self.pool, self.session, self.next_pack, total_bytes);
        let split = entries.partition_point(|(kind, _)| *kind == EntryKind::Chunk);
        let mut lost = Vec::new();
        let mut whole = Vec::new();
        for part in [&entries[..split], &entries[split..]] {
            let wanted: Vec<Wanted> = part.iter().map(|(_, wanted)| *wanted).collect();
            let lane = write.then(|| packer.lane());
            let sink: Mutex<(Option<Lane<'_>>, Option<Error>)> = Mutex::new((lane, None));
            let take = |at: usize, bytes: &[u8]| {
                self.pace.spend(bytes.len() as u64);
                let (kind, fp) = (part[at].0, wanted[at].fp);
                let mut sink = sink.lock().unwrap_or_else(PoisonError::into_inner);
                let (lane, fault) = &mut *sink;
                let stored = match lane {
                    None => Ok(()),
                    Some(lane) if kind == EntryKind::Chunk => lane.append(bytes, fp),
                    Some(_) => packer.append(bytes, fp, kind).map(|_| ()),
                };
                // What fails here is our writing, not the pack that is read.
                stored.inspect_err(|error| {
                    fault.get_or_insert_with(|| error.clone());
                })
            };
            let faults = ReadPlan::new(self.pool, &wanted).execute(self.pool, 1, true, &take);
            let (lane, fault) = sink.into_inner().unwrap_or_else(PoisonError::into_inner);
            if let Some(fault) = fault {
                return Err(fault);
            }
            let bad: HashSet<usize> = faults.iter().map(|fault| fault.wanted).collect();
            other_than_damage(faults.into_iter().map(|fault| fault.error))?;
            for (at, wanted) in wanted.iter().enumerate() {
                match bad.contains(&at) {
                    true => lost.push(wanted.fp),
                    false => whole.push(*wanted),
                }
            }
            if let Some(lane) = lane {
                lane.finish()?;
                packer.join_lanes()?;
            }
        }
        let packed = packer.close()?;
        self.next_pack = packer.next_pack();
        let now = Locator::load(self.pool, &packed.own)?;
        for Wanted { fp, place } in whole {
            let place = if write { now.find(&fp)? } else { place };
            self.found.insert(fp, place);
            self.report.moved += 1;
            self.report.moved_bytes += u64::from(place.length);
        }
        self.report.lost += lost.len() as u64;
        self.lost.extend(lost);
        Ok(())
    }

    /// The places of everything that a job lists and that can be read, and its hurt checkpoints.
    fn resolve(&mut self, state: &JobState, listed: Listed) -> Result<(Places, BTreeSet<Epoch>)> {
        let is_partial = listed.unreadable > 0;
        let mut places = listed.places;
        places.retain(|fp, (_, place)| match self.bad.contains(&place.pack) {
            false => true,
            true => match self.found.get(fp) {
                Some(now) => {
                    *place = *now;
                    true
                }
                None => false,
            },
        });
        if is_partial {
            // What a segment listed stands in the directories of packs, too, with much besides.
            for pack in &self.good {
                match self.pool.directory_of(*pack) {
                    Ok((directory, _)) => add(&mut places, &directory, &self.bad),
                    Err(error) if is_damage(&error) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        if !is_partial && self.lost.is_empty() && state.hurt.is_empty() {
            return Ok((places, BTreeSet::new()));
        }
        let locator = Locator::of(&directory_of(&places));
        let mut needed: HashSet<Fingerprint> = HashSet::new();
        let mut hurt = BTreeSet::new();
        for manifest in &state.manifests {
            if walk(self.pool, manifest, &locator, &mut needed)? {
                hurt.insert(manifest.epoch);
            }
        }
        if is_partial {
            places.retain(|fp, _| needed.contains(fp));
        }
        Ok((places, hurt))
    }

    fn store(&mut self, places: &Places) -> Result<Vec<SegmentRef>> {
        if places.is_empty() {
            return Ok(Vec::new());
        }
        let packer = Packer::new(self.pool, self.session, self.next_pack, 64 * places.len() as u64);
        let stored = store_segments(self.pool, &packer, directory_of(places))?;
        packer.close()?;
        self.next_pack = packer.next_pack();
        Ok(stored.into_iter().map(|(segment, _)| segment).collect())
    }
}

/// Whether a checkpoint misses something; `needed` gathers what it needs.
fn walk(
    pool: &Pool,
    manifest: &Manifest,
    locator: &Locator,
    needed: &mut HashSet<Fingerprint>,
) -> Result<bool> {
    let (mut is_lost, mut is_missing) = (false, false);
    let mut visited = HashSet::new();
    for image in &manifest.images {
        let mut each = |live: Live| {
            let fp = match live {
                Live::Node(node) => node.fp,
                Live::Chunk(fp) => fp,
            };
            is_missing |= locator.find(&fp).is_err();
            needed.insert(fp);
            Ok(())
        };
        let mut lost = |_: Fingerprint| is_lost = true;
        live_of(pool, locator, image, &mut visited, &mut each, Some(&mut lost))?;
    }
    Ok(is_lost || is_missing)
}

fn is_damage(error: &Error) -> bool {
    // A pack of another pool or version under this name is not what was stored either.
    matches!(error.kind(), ErrorKind::Damaged | ErrorKind::Invalid)
}

/// A medium that cannot be asked has lost nothing yet.
fn other_than_damage(errors: impl Iterator<Item = Error>) -> Result<()> {
    errors.into_iter().find(|error| !is_damage(error)).map_or(Ok(()), Err)
}
