//! Tells jobs what is condemned, each by a record right behind what was read of its log.

use super::survey::JobState;
use outlive_format::{
    Archive, Body, Images, Manifest, PageRef, Record, SegmentRef, Sweep, fingerprint,
};
use outlive_pool::Pool;
use outlive_target::{Append, Previous};
use outlive_types::{Error, JobName, PackId, Result, SessionId};
use std::collections::{BTreeMap, HashMap, HashSet};

/// How often a job is read again because its program has saved meanwhile.
pub const ATTEMPTS: usize = 64;

/// Tells every job, until there is none without it. `tell` gets a name, and whether it is the first
/// time; it answers the job's state as it was told.
///
/// # Errors
/// Those of `tell`; what the log reports.
pub fn tell_all(
    pool: &Pool,
    tell: &mut dyn FnMut(&JobName, bool) -> Result<JobState>,
) -> Result<BTreeMap<JobName, JobState>> {
    let mut told: BTreeMap<JobName, JobState> = BTreeMap::new();
    loop {
        let mut news = false;
        for name in pool.jobs()? {
            let is_first = match told.get(&name) {
                // A session that begins now may have read other logs before they were told; one
                // that was open then has been told, whatever it does now.
                Some(state) if state.is_open() => continue,
                Some(state) if pool.log().latest(&name)? == state.number => continue,
                known => known.is_none(),
            };
            news = true;
            let state = tell(&name, is_first)?;
            told.insert(name, state);
        }
        // Jobs that appeared or began while others were told are told, too.
        if !news {
            return Ok(told);
        }
    }
}

/// Tells one job. `attempt` reads its log and answers its state, what is condemned and new to it,
/// and, if the job names any of it, the archive that tells so; a sweep does otherwise. It is called
/// again if the job's program was faster.
///
/// # Errors
/// `Retry` if it is so again and again; those of `attempt`; what the log reports.
pub fn tell(
    pool: &Pool,
    gc: SessionId,
    name: &JobName,
    attempt: &mut dyn FnMut() -> Result<(JobState, Vec<PackId>, Option<Archive>)>,
) -> Result<JobState> {
    for _ in 0..ATTEMPTS {
        let (mut state, anew, archive) = attempt()?;
        let body = match archive {
            Some(archive) => Body::Archive(archive),
            None if anew.is_empty() => return Ok(state),
            None => Body::Sweep(Sweep { gc, packs: anew.clone() }),
        };
        if append_behind(pool, &mut state, body)? {
            state.held.extend(anew);
            return Ok(state);
        }
    }
    Err(Error::retry(format!(
        "job {name} saves too fast to be told what is condemned: try again later"
    )))
}

/// Appends a record right behind what was read; an archive twice. False if somebody else was
/// faster.
///
/// # Errors
/// What the log reports.
pub fn append_behind(pool: &Pool, state: &mut JobState, body: Body) -> Result<bool> {
    let (log, name) = (pool.log(), &state.name);
    let is_archive = matches!(body, Body::Archive(_));
    let record = Record { number: state.number + 1, previous: state.fp, body };
    let bytes = record.encode()?;
    let behind = Previous { number: state.number, fp: state.fp };
    if log.append_if(name, behind, &bytes)? == Append::Lost {
        return Ok(false);
    }
    (state.number, state.fp) = (state.number + 1, fingerprint(&bytes));
    if is_archive {
        let first = state.number;
        let again = Record { number: first + 1, previous: state.fp, ..record };
        // Everything older hangs on this record, so there are two of it.
        let bytes = again.encode()?;
        let behind = Previous { number: first, fp: state.fp };
        if log.append_if(name, behind, &bytes)? == Append::Done {
            (state.number, state.fp) = (first + 1, fingerprint(&bytes));
            log.remove_before(name, first)?;
        }
    }
    Ok(true)
}

/// Where the chunks and the image tables of a job's checkpoints are from now on.
#[derive(Clone, Debug, Default)]
pub struct Relisted {
    /// The segments of images that stand in manifests.
    pub segments: Vec<SegmentRef>,
    /// The segments of each rank, of images that stand in tables.
    pub lists: Vec<PageRef>,
    /// Pages of image tables that have moved, by where they were.
    pub pages: HashMap<PageRef, PageRef>,
}

impl Relisted {
    /// A manifest as an archive keeps it.
    fn kept(&self, manifest: &Manifest) -> Manifest {
        let mut manifest = manifest.clone();
        match &mut manifest.images {
            Images::One(image) => image.segments.clear(),
            Images::Table(table) => {
                table.lists.clear();
                for page in &mut table.pages {
                    *page = self.pages.get(page).copied().unwrap_or(*page);
                }
            }
        }
        manifest
    }
}

/// The archive of a job that keeps some of its checkpoints, in place of all its records. `condemned` names every pack
/// that is condemned now: the records that had named some of them go.
pub fn archive_of(
    gc: SessionId,
    state: &JobState,
    kept: &[&Manifest],
    condemned: &HashSet<PackId>,
    relisted: Relisted,
) -> Archive {
    let mut condemned: Vec<PackId> = condemned.iter().copied().collect();
    if state.is_open() {
        // Its writer has not answered about these. Some are lost: no collector lists them any more.
        condemned.extend(&state.held);
    }
    condemned.sort_unstable();
    condemned.dedup();
    let kept = || kept.iter().rev();
    Archive {
        gc,
        session: state.session.clone(),
        last_epoch: state.last_epoch,
        condemned,
        incomplete: kept()
            .map(|m| m.epoch)
            .filter(|epoch| state.incomplete.contains(epoch))
            .collect(),
        manifests: kept().map(|manifest| relisted.kept(manifest)).collect(),
        segments: relisted.segments,
        lists: relisted.lists,
    }
}
