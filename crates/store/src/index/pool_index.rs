//! What the whole pool holds, as the newest checkpoints of all jobs name it: so a chunk that any
//! job has stored need not be stored again.
//!
//! Sixteen bytes a chunk are kept in memory: a prefix of its fingerprint, and which entry of which
//! segment it is. Segments themselves are read when a prefix is met, and the last few are kept. If
//! even the prefixes are too many, only a sample of them is kept; whoever meets one loads the
//! segment, and finds its neighbours there (sparse indexing: Lillibridge et al., "Sparse indexing:
//! large scale, inline deduplication using sampling and locality", FAST 2009).

use super::read_segment;
use crate::commit::history;
use outlive_format::{Body, Directory, EntryKind, Record, SegmentRef};
use outlive_pool::{Place, Pool};
use outlive_types::{Fingerprint, PackId, Result};
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a [`Slot`].
const SLOT_BYTES: u64 = size_of::<Slot>() as u64;
/// Share of the index's memory for prefixes; the rest is for segments.
const SLOTS_SHARE: (u64, u64) = (1, 2);
/// Memory of a decoded entry.
const DECODED_BYTES: u64 = 64;

/// An entry of a segment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Slot {
    prefix: u64,
    segment: u32,
    entry: u32,
}

/// Chunks that are stored, of whichever job.
#[derive(Debug)]
pub struct PoolIndex {
    pool: Pool,
    segments: Vec<SegmentRef>,
    /// Sorted.
    slots: Vec<Slot>,
    /// Prefixes that are not a multiple of this power of two are left out.
    sample: u64,
    condemned: HashSet<PackId>,
    /// Segments read last, the newest at the end.
    recent: Mutex<Vec<(u32, Arc<Directory>)>>,
    recent_max: usize,
}

/// The segments of every job's newest checkpoint, and what must not be referred to.
#[derive(Debug, Default)]
pub struct Survey {
    segments: Vec<SegmentRef>,
    condemned: HashSet<PackId>,
}

impl Survey {
    /// Asks the logs of all jobs. The caller's session must be in its job's log already: then a gc
    /// that condemns something afterwards tells the caller.
    ///
    /// # Errors
    /// What the log reports when it is listed. A manifest that cannot be read is left out.
    pub fn new(pool: &Pool) -> Result<Survey> {
        let mut survey = Survey::default();
        let mut seen = HashSet::new();
        for job in pool.jobs()? {
            let mut newest = None;
            for entry in history(pool, &job)? {
                match entry.record {
                    Ok(Record { body: Body::Manifest(manifest), .. }) if newest.is_none() => {
                        newest = Some(manifest.segments);
                    }
                    Ok(Record { body: Body::Sweep(sweep), .. }) => {
                        survey.condemned.extend(sweep.packs);
                    }
                    Ok(Record { body: Body::Archive(archive), .. }) => {
                        survey.condemned.extend(archive.condemned);
                        newest.get_or_insert(archive.segments);
                    }
                    _ => {}
                }
                // Sweeps stand after the checkpoints that they may hurt, so none is missed here.
                if newest.is_some() {
                    break;
                }
            }
            let fresh = newest.into_iter().flatten().filter(|segment| seen.insert(segment.fp));
            survey.segments.extend(fresh);
        }
        Ok(survey)
    }

    /// Bytes of segments that [`PoolIndex::load`] will read.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| u64::from(segment.length)).sum()
    }
}

impl PoolIndex {
    /// Reads the segments that a survey has found, within `bytes_max` of memory. Segments that
    /// cannot be read are left out: what they hold will be stored again.
    pub fn load(pool: &Pool, survey: Survey, bytes_max: u64) -> PoolIndex {
        let slots_max = (bytes_max * SLOTS_SHARE.0 / SLOTS_SHARE.1 / SLOT_BYTES).max(1024);
        let segment_bytes = pool.config().format.container_bytes / 44 * DECODED_BYTES;
        let rest = bytes_max - bytes_max * SLOTS_SHARE.0 / SLOTS_SHARE.1;
        let mut index = PoolIndex {
            pool: pool.clone(),
            segments: survey.segments,
            slots: Vec::new(),
            sample: 1,
            condemned: survey.condemned,
            recent: Mutex::default(),
            recent_max: (rest / segment_bytes).max(2) as usize,
        };
        for number in 0..index.segments.len() {
            let segment = index.segments[number];
            match read_segment(pool, &segment) {
                Ok(directory) => index.add(number as u32, &directory, slots_max as usize),
                Err(error) => pool.warn(format!(
                    "part of the pool's index cannot be read, so duplicates may be missed: {error}"
                )),
            }
        }
        index.slots.sort_unstable();
        index
    }

    fn add(&mut self, segment: u32, directory: &Directory, slots_max: usize) {
        for (entry, listed) in directory.entries.iter().enumerate() {
            let prefix = prefix_of(&listed.fp);
            if listed.kind != EntryKind::Chunk || !prefix.is_multiple_of(self.sample) {
                continue;
            }
            if self.slots.len() >= slots_max {
                self.sample *= 2;
                let sample = self.sample;
                self.slots.retain(|slot| slot.prefix.is_multiple_of(sample));
                if !prefix.is_multiple_of(sample) {
                    continue;
                }
            }
            self.slots.push(Slot { prefix, segment, entry: entry as u32 });
        }
    }

    /// Where a chunk is stored, if this index knows.
    pub fn find(&self, fp: &Fingerprint) -> Option<Place> {
        let prefix = prefix_of(fp);
        if self.sample > 1
            && let Some(place) = self.find_recent(fp)
        {
            return Some(place);
        }
        if !prefix.is_multiple_of(self.sample) {
            return None;
        }
        let from = self.slots.partition_point(|slot| slot.prefix < prefix);
        self.slots[from..].iter().take_while(|slot| slot.prefix == prefix).find_map(|slot| {
            let directory = self.segment(slot.segment)?;
            self.place(&directory, slot.entry as usize, fp)
        })
    }

    fn find_recent(&self, fp: &Fingerprint) -> Option<Place> {
        let recent: Vec<Arc<Directory>> =
            self.lock().iter().rev().map(|(_, directory)| directory.clone()).collect();
        recent.iter().find_map(|directory| {
            let from = directory.entries.partition_point(|entry| entry.fp < *fp);
            self.place(directory, from, fp)
        })
    }

    /// The place of an entry and its equals, unless it is condemned.
    fn place(&self, directory: &Directory, from: usize, fp: &Fingerprint) -> Option<Place> {
        let equal = directory.entries.get(from..)?.iter().take_while(|entry| entry.fp == *fp);
        equal.filter(|entry| entry.kind == EntryKind::Chunk).find_map(|entry| {
            let pack = *directory.packs.get(entry.pack as usize)?;
            let (offset, length, frame) = (entry.offset, entry.length, entry.frame);
            (!self.condemned.contains(&pack)).then_some(Place { pack, offset, length, frame })
        })
    }

    fn segment(&self, number: u32) -> Option<Arc<Directory>> {
        {
            let mut recent = self.lock();
            if let Some(at) = recent.iter().position(|(other, _)| *other == number) {
                let found = recent.remove(at);
                let directory = found.1.clone();
                recent.push(found);
                return Some(directory);
            }
        }
        // Read without the lock: other threads go on with what is there.
        let directory = Arc::new(read_segment(&self.pool, &self.segments[number as usize]).ok()?);
        let mut recent = self.lock();
        if recent.len() >= self.recent_max {
            recent.remove(0);
        }
        recent.push((number, directory.clone()));
        Some(directory)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(u32, Arc<Directory>)>> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fingerprints are uniform, so any eight bytes will do.
fn prefix_of(fp: &Fingerprint) -> u64 {
    let (first, _) = fp.0.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
    u64::from_be_bytes(*first)
}

/// Chunks that a job can share, read when that pays.
#[derive(Debug, Default)]
pub struct SharedChunks {
    index: Option<PoolIndex>,
    index_bytes: u64,
    /// Bytes that saves have dealt with since the logs were asked, or the index was read.
    since_bytes: u64,
}

/// So many bytes to save must there be for each byte of the index to be read.
const PAYS_FROM: u64 = 8;
/// An index is read anew after so many bytes for each of its own, and at least [`STALE_BYTES_MIN`]:
/// other jobs have gone on meanwhile.
const STALE_AFTER: u64 = 64;
const STALE_BYTES_MIN: u64 = 4 << 30;

impl SharedChunks {
    /// Takes notice of a save of `bytes`, and reads the index if it pays now. Packs in `condemned`,
    /// of which the writer has been told, are left out even where other jobs have not been told yet.
    ///
    /// # Errors
    /// What the log reports.
    pub fn refresh(
        this: &mut Option<SharedChunks>,
        pool: &Pool,
        bytes: u64,
        condemned: &HashSet<PackId>,
    ) -> Result<()> {
        let shared = this.get_or_insert_default();
        let bytes_max = pool.config().tuning.index_bytes_max;
        shared.since_bytes = shared.since_bytes.saturating_add(bytes);
        let stale = (shared.index_bytes * STALE_AFTER).max(STALE_BYTES_MIN);
        let due = match shared.index {
            None => shared.since_bytes >= shared.index_bytes * PAYS_FROM,
            Some(_) => shared.since_bytes >= stale,
        };
        if !due || bytes_max == 0 || bytes == 0 {
            return Ok(());
        }
        let mut survey = Survey::new(pool)?;
        survey.condemned.extend(condemned);
        shared.index_bytes = survey.bytes();
        if shared.since_bytes >= shared.index_bytes * PAYS_FROM {
            shared.index = None;
            shared.index = Some(PoolIndex::load(pool, survey, bytes_max));
            shared.since_bytes = 0;
        }
        Ok(())
    }

    /// The index, if it was read.
    pub fn index(&self) -> Option<&PoolIndex> {
        self.index.as_ref()
    }
}
