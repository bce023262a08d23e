//! Segments: merged directories. A manifest lists a bounded number of them: every [`MERGE_AT`] of
//! one level are merged into one of the next (O'Neil et al., "The log-structured merge-tree",
//! 1996). A segment grows up to the size of a container.

use crate::read_at::read_at;
use outlive_chunk::{fingerprint, on_threads};
use outlive_format::{Directory, DirectoryEntry, SegmentKind, SegmentRef};
use outlive_pool::Pool;
use outlive_types::sync::plain::Mutex;
use outlive_types::{PackId, Result};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of segments of one level that are merged.
pub const MERGE_AT: usize = 8;

/// Returns segments, the newest first. Each merge makes a segment of the next level from older ones,
/// and a manifest has those of one level in the order of the saves.
pub fn newest_first(segments: &[SegmentRef]) -> Vec<SegmentRef> {
    let mut sorted: Vec<SegmentRef> = segments.iter().rev().copied().collect();
    sorted.sort_by_key(|segment| segment.level);
    sorted
}

/// Reads and verifies a segment.
///
/// # Errors
/// `Damaged` if it does not match the reference in the manifest.
pub fn read_segment(pool: &Pool, segment: &SegmentRef) -> Result<Directory> {
    let SegmentRef { pack, offset, length, fp, .. } = *segment;
    let bytes = match segment.kind {
        SegmentKind::Directory => {
            pool.read_directory(pack, offset, length, &|bytes| fingerprint(bytes) == fp)?
        }
        SegmentKind::Segment => read_at(pool, (pack, offset, length), fp, "segment")?,
    };
    Directory::decode(&bytes)
}

/// Reads and verifies segments, some at a time, and calls `each` with them in their order, until that
/// returns false.
///
/// # Errors
/// `Damaged` for the first segment that does not match its reference; errors of `each`.
pub fn each_segment<'a>(
    pool: &Pool,
    segments: impl IntoIterator<Item = &'a SegmentRef>,
    each: &mut dyn FnMut(&SegmentRef, Directory) -> Result<bool>,
) -> Result<()> {
    let mut segments = segments.into_iter();
    loop {
        let threads = pool.config().tuning.threads().max(1);
        let batch: Vec<&SegmentRef> = segments.by_ref().take(threads).collect();
        if batch.is_empty() {
            return Ok(());
        }
        let next = AtomicUsize::new(0);
        let read: Vec<Mutex<Option<Result<Directory>>>> =
            batch.iter().map(|_| Mutex::default()).collect();
        on_threads(batch.len(), || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(segment) = batch.get(at) else { break };
                *read[at].lock() = Some(read_segment(pool, segment));
            }
        });
        for (segment, read) in batch.into_iter().zip(read) {
            let read = read.into_inner().unwrap_or_else(|| read_segment(pool, segment));
            if !each(segment, read?)? {
                return Ok(());
            }
        }
    }
}

/// Returns the indices of the segments to merge next: at least two, or none.
pub fn choose_merge(segments: &[SegmentRef], segment_bytes_max: u32) -> Vec<usize> {
    let mut levels: HashMap<u8, Vec<usize>> = HashMap::new();
    for (at, segment) in segments.iter().enumerate() {
        // A segment that is half full could only be merged with few others: it stays.
        if segment.length < segment_bytes_max / 2 {
            levels.entry(segment.level).or_default().push(at);
        }
    }
    let due = levels.into_iter().filter(|(_, at)| at.len() >= MERGE_AT);
    let Some((_, mut chosen)) = due.min_by_key(|(level, _)| *level) else { return Vec::new() };
    let mut total = 0;
    let fits = chosen.iter().take_while(|at| {
        total += segments[**at].length;
        total <= segment_bytes_max
    });
    let count = fits.count();
    chosen.truncate(count);
    chosen
}

/// Merges directories into one that resolves everything that `parts` resolve.
pub fn merge(parts: &[Directory]) -> Directory {
    let mut packs: Vec<PackId> = Vec::new();
    let mut numbers: HashMap<PackId, u32> = HashMap::new();
    let mut entries: Vec<DirectoryEntry> =
        Vec::with_capacity(parts.iter().map(|p| p.entries.len()).sum());
    for part in parts {
        let renumbered: Vec<u32> = part
            .packs
            .iter()
            .map(|pack| {
                *numbers.entry(*pack).or_insert_with(|| {
                    packs.push(*pack);
                    packs.len() as u32 - 1
                })
            })
            .collect();
        entries.extend(
            part.entries
                .iter()
                .map(|entry| DirectoryEntry { pack: renumbered[entry.pack as usize], ..*entry }),
        );
    }
    let mut merged = Directory::new(packs, entries);
    // Two saves may list the same foreign chunk.
    merged.entries.dedup_by_key(|entry| (entry.fp, entry.pack, entry.offset, entry.frame));
    merged
}
