//! Reports condemned packs to jobs, each by a record right behind the records that were read.

use super::survey::JobState;
use outlive_format::{
    Archive, Body, Images, Manifest, PageRef, Record, SegmentRef, Sweep, fingerprint,
};
use outlive_log::{Append, Previous};
use outlive_pool::Pool;
use outlive_types::{Error, JobName, PackId, Result, SessionId};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Maximum number of attempts to report to a job: its program may save meanwhile.
pub const ATTEMPTS: usize = 64;

/// Reports to every job, until no job lacks a report. `tell` gets a name, and whether it is the
/// first time; it returns the job's state as of its report.
///
/// # Errors
/// Errors of `tell` and of the log.
pub fn tell_all(
    pool: &Pool,
    tell: &mut dyn FnMut(&JobName, bool) -> Result<JobState>,
) -> Result<BTreeMap<JobName, JobState>> {
    let mut told: BTreeMap<JobName, JobState> = BTreeMap::new();
    loop {
        let mut news = false;
        for name in pool.jobs()? {
            let is_first = match told.get(&name) {
                // A session that begins now may have read other logs before their reports; one that
                // was open at the report has it, whatever it does now.
                Some(state) if state.is_open() => continue,
                Some(state) if pool.log().latest(&name)? == state.number => continue,
                known => known.is_none(),
            };
            news = true;
            let state = tell(&name, is_first)?;
            told.insert(name, state);
        }
        // Jobs that appeared or began meanwhile get a report, too.
        if !news {
            return Ok(told);
        }
    }
}

/// Reports to one job. `attempt` reads its log. It returns the job's state, the condemned packs
/// that are new to the job, and an archive if the job needs one, as when it names such a pack.
/// Otherwise the report is a sweep. `attempt` is called again if the job's program appended first, at
/// most `attempts` times in all; `None` if the program was always first.
///
/// # Errors
/// Errors of `attempt` and of the log.
pub fn tell(
    pool: &Pool,
    gc: SessionId,
    attempts: usize,
    attempt: &mut dyn FnMut() -> Result<(JobState, Vec<PackId>, Option<Archive>)>,
) -> Result<Option<JobState>> {
    for _ in 0..attempts {
        let (mut state, anew, archive) = attempt()?;
        let body = match archive {
            Some(archive) => Body::Archive(archive),
            None if anew.is_empty() => return Ok(Some(state)),
            None => Body::Sweep(Sweep { gc, packs: anew.clone() }),
        };
        if append_behind(pool, &mut state, body)? {
            state.held.extend(anew);
            return Ok(Some(state));
        }
    }
    Ok(None)
}

/// Returns the error for a job whose program was always first.
pub fn saves_too_fast(name: &JobName) -> Error {
    Error::retry(format!("job {name} saves too fast to be told what is condemned: try again later"))
}

/// Appends a record right behind the records that were read; an archive twice. Returns false if
/// another process appended first.
///
/// # Errors
/// Errors of the log.
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
        // Everything older hangs on this record, so it is written twice.
        let bytes = again.encode()?;
        let behind = Previous { number: first, fp: state.fp };
        if log.append_if(name, behind, &bytes)? == Append::Done {
            (state.number, state.fp) = (first + 1, fingerprint(&bytes));
            log.remove_before(name, first)?;
        }
    }
    Ok(true)
}

/// New segments and table pages of a job's checkpoints.
#[derive(Clone, Debug, Default)]
pub struct Relisted {
    /// Segments of images that stand in manifests.
    pub segments: Vec<SegmentRef>,
    /// Lists of each rank's segments, for images that stand in tables.
    pub lists: Vec<PageRef>,
    /// Pages of image tables that have moved, by their old extents.
    pub pages: HashMap<PageRef, PageRef>,
}

impl Relisted {
    /// Returns a manifest as an archive keeps it.
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

/// Returns the archive of a job that keeps some of its checkpoints; it replaces all records of the
/// job. `condemned` names every pack that is condemned now, since the records that named some of
/// them go.
pub fn archive_of(
    gc: SessionId,
    state: &JobState,
    kept: &[&Manifest],
    condemned: &HashSet<PackId>,
    relisted: Relisted,
) -> Archive {
    let mut condemned: Vec<PackId> = condemned.iter().copied().collect();
    if state.is_open() {
        // Its writer has not appended since these were reported. Some are lost: no collector lists
        // them any more.
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
