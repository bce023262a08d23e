//! The index of the whole pool, from the checkpoints of all jobs: a chunk that any job has stored
//! need not be stored again.
//!
//! The index keeps sixteen bytes a chunk in memory: a prefix of its fingerprint, and the number of
//! a segment that lists it. It reads a segment when a save meets such a prefix, and keeps the last
//! few segments. If even the prefixes are too many, it keeps only a sample of them. A save that
//! meets one loads the segment, and finds its neighbours there (sparse indexing: Lillibridge et
//! al., "Sparse indexing: large scale, inline deduplication using sampling and locality", FAST
//! 2009). Chunks in an order that no segment has would need one read each: segments are read again
//! only as long as that pays.

use super::read_segment;
use super::survey::Survey;
use outlive_format::{Directory, EntryKind, SegmentKind, SegmentRef};
use outlive_pool::{PackExtent, Pool};
use outlive_types::sync::plain::Mutex;
use outlive_types::{Fingerprint, PackId};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes to save that pay for reading one byte of the index.
pub(super) const PAYS_FROM: u64 = 8;
/// Bytes of a [`Slot`].
const SLOT_BYTES: u64 = size_of::<Slot>() as u64;
/// Share of the index's memory for prefixes; the rest is for segments.
const SLOTS_SHARE: (u64, u64) = (1, 2);
/// Memory of a decoded entry.
const DECODED_BYTES: u64 = 64;

/// A save shares a segment if it needs at least one in this many of its entries. That costs a
/// manifest less than single pack extents, and a reader of the manifest reads at most this many
/// times too much.
const LENT_PART: usize = 4;
/// The shortest segment to share is this part of a container; a shorter one is not worth a
/// reference.
const LENT_BYTES_PART: u64 = 1024;

/// A chunk that is stored.
#[derive(Clone, Copy, Debug)]
pub struct Stored {
    /// Its pack extent.
    pub extent: PackExtent,
    /// Number of the segment that lists it.
    pub segment: u32,
}

/// A segment of another checkpoint, which a manifest lists instead of single pack extents.
#[derive(Clone, Debug)]
pub struct SharedSegment {
    /// The segment.
    pub segment: SegmentRef,
    directory: Arc<Directory>,
}

impl SharedSegment {
    /// Returns whether it lists a chunk.
    pub fn lists(&self, fp: &Fingerprint) -> bool {
        self.directory.find(fp).iter().any(|entry| entry.kind == EntryKind::Chunk)
    }
}

/// A chunk that a segment lists.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Slot {
    prefix: u64,
    segment: u32,
}

/// Stored chunks of all jobs.
#[derive(Debug)]
pub struct PoolIndex {
    pool: Pool,
    segments: Vec<SegmentRef>,
    /// Sorted.
    slots: Vec<Slot>,
    /// Power of two; only prefixes that are a multiple of it are kept.
    sample: u64,
    condemned: HashSet<PackId>,
    /// Segments read last, the newest at the end.
    recent: Mutex<Vec<(u32, Arc<Directory>)>>,
    recent_max: usize,
    /// Bytes of segments that may still be read: each segment once, then as many as the chunks
    /// found pay for.
    credit_bytes: AtomicU64,
    shared_bytes_min: u64,
}

impl PoolIndex {
    /// Reads the segments that a survey has found, within `bytes_max` of memory. Skips segments
    /// that cannot be read: saves will store their chunks again.
    pub fn load(pool: &Pool, survey: Survey, bytes_max: u64) -> PoolIndex {
        let slots_max = (bytes_max * SLOTS_SHARE.0 / SLOTS_SHARE.1 / SLOT_BYTES).max(1024);
        let segment_bytes = pool.config().format.container_bytes / 44 * DECODED_BYTES;
        let rest = bytes_max - bytes_max * SLOTS_SHARE.0 / SLOTS_SHARE.1;
        let credit_bytes = survey.segments.iter().map(|segment| u64::from(segment.length)).sum();
        let mut index = PoolIndex {
            pool: pool.clone(),
            segments: survey.segments,
            slots: Vec::new(),
            sample: 1,
            condemned: survey.condemned,
            recent: Mutex::default(),
            recent_max: (rest / segment_bytes).max(2) as usize,
            credit_bytes: AtomicU64::new(credit_bytes),
            shared_bytes_min: pool.config().format.container_bytes / LENT_BYTES_PART,
        };
        for number in 0..index.segments.len() {
            let segment = index.segments[number];
            // A directory lists only its own pack.
            if segment.kind == SegmentKind::Directory && index.condemned.contains(&segment.pack) {
                continue;
            }
            match read_segment(pool, &segment) {
                Ok(directory) => index.add(number as u32, &directory, slots_max as usize),
                Err(error) => pool.warn(format!(
                    "part of the pool's index cannot be read, so duplicates may be missed: {error}"
                )),
            }
        }
        index.sort();
        index
    }

    /// Sorts the slots and removes duplicates. Segments list the same chunk where two chains begin
    /// with the same checkpoints, or where jobs share.
    fn sort(&mut self) {
        self.slots.sort_unstable();
        self.slots.dedup_by_key(|slot| slot.prefix);
    }

    fn add(&mut self, segment: u32, directory: &Directory, slots_max: usize) {
        for listed in &directory.entries {
            let prefix = prefix_of(&listed.fp);
            let pack = directory.packs.get(listed.pack as usize);
            if listed.kind != EntryKind::Chunk
                || !prefix.is_multiple_of(self.sample)
                || pack.is_none_or(|pack| self.condemned.contains(pack))
            {
                continue;
            }
            if self.slots.len() >= slots_max {
                self.sort();
                while self.slots.len() > slots_max / 4 * 3 {
                    self.sample *= 2;
                    let sample = self.sample;
                    self.slots.retain(|slot| slot.prefix.is_multiple_of(sample));
                }
                if !prefix.is_multiple_of(self.sample) {
                    continue;
                }
            }
            self.slots.push(Slot { prefix, segment });
        }
    }

    /// Adds the credit of a save of `bytes`, which pays for reading segments again.
    pub fn earn(&self, bytes: u64) {
        self.credit_bytes.fetch_add(bytes / PAYS_FROM, Ordering::Relaxed);
    }

    /// Returns a stored chunk, if this index knows it.
    pub fn find(&self, fp: &Fingerprint) -> Option<Stored> {
        let prefix = prefix_of(fp);
        if self.sample > 1
            && let Some(found) = self.find_recent(fp)
        {
            return Some(found);
        }
        if !prefix.is_multiple_of(self.sample) {
            return None;
        }
        let from = self.slots.partition_point(|slot| slot.prefix < prefix);
        self.slots[from..].iter().take_while(|slot| slot.prefix == prefix).find_map(|slot| {
            let directory = self.recent(slot.segment).or_else(|| self.pay_for(slot.segment))?;
            let extent = self.extent(&directory, fp)?;
            let earned_bytes = u64::from(extent.length) / PAYS_FROM;
            self.credit_bytes.fetch_add(earned_bytes, Ordering::Relaxed);
            Some(Stored { extent, segment: slot.segment })
        })
    }

    /// Returns the segments that a manifest should list as a whole; `needed` counts the chunks that
    /// a save needs of each.
    pub fn lend(&self, needed: &HashMap<u32, usize>) -> Vec<SharedSegment> {
        let mut shared_segments: Vec<SharedSegment> = Vec::new();
        let mut numbers: Vec<&u32> = needed.keys().collect();
        numbers.sort_unstable();
        for number in numbers {
            let segment = self.segments[*number as usize];
            if u64::from(segment.length) < self.shared_bytes_min {
                continue;
            }
            let Some(directory) = self.recent(*number).or_else(|| self.read(*number)) else {
                continue;
            };
            // A manifest must list no condemned pack, needed or not.
            let is_condemned = |pack: &PackId| self.condemned.contains(pack);
            let is_sound =
                !is_condemned(&segment.pack) && !directory.packs.iter().any(is_condemned);
            if is_sound && needed[number] * LENT_PART >= directory.entries.len() {
                shared_segments.push(SharedSegment { segment, directory });
            }
        }
        shared_segments
    }

    fn find_recent(&self, fp: &Fingerprint) -> Option<Stored> {
        let recent: Vec<(u32, Arc<Directory>)> = self.lock().iter().rev().cloned().collect();
        recent.iter().find_map(|(segment, directory)| {
            let extent = self.extent(directory, fp)?;
            Some(Stored { extent, segment: *segment })
        })
    }

    /// Returns a pack extent of a chunk, in a pack that is not condemned.
    fn extent(&self, directory: &Directory, fp: &Fingerprint) -> Option<PackExtent> {
        let listed = directory.find(fp).iter();
        listed.filter(|entry| entry.kind == EntryKind::Chunk).find_map(|entry| {
            let pack = *directory.packs.get(entry.pack as usize)?;
            (!self.condemned.contains(&pack)).then(|| PackExtent::of(pack, entry))
        })
    }

    /// Returns a segment that was read recently.
    fn recent(&self, number: u32) -> Option<Arc<Directory>> {
        let mut recent = self.lock();
        let at = recent.iter().position(|(other, _)| *other == number)?;
        let found = recent.remove(at);
        let directory = found.1.clone();
        recent.push(found);
        Some(directory)
    }

    /// Returns a segment, if the credit pays for reading it again.
    fn pay_for(&self, number: u32) -> Option<Arc<Directory>> {
        let bytes = u64::from(self.segments[number as usize].length);
        let pay = |credit: u64| credit.checked_sub(bytes);
        self.credit_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pay).ok()?;
        self.read(number)
    }

    /// Reads a segment without the lock: other threads continue with the segments in memory.
    fn read(&self, number: u32) -> Option<Arc<Directory>> {
        let directory = Arc::new(read_segment(&self.pool, &self.segments[number as usize]).ok()?);
        let mut recent = self.lock();
        if recent.len() >= self.recent_max {
            recent.remove(0);
        }
        recent.push((number, directory.clone()));
        Some(directory)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(u32, Arc<Directory>)>> {
        self.recent.lock()
    }
}

/// Returns eight bytes of a fingerprint: fingerprints are uniform, so any eight will do.
fn prefix_of(fp: &Fingerprint) -> u64 {
    let (first, _) = fp.0.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
    u64::from_be_bytes(*first)
}
