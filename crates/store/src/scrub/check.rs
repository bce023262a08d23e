//! Reads one pack whole: its structures and checksums, and every entry against its fingerprint.

use crate::read::Verified;
use outlive_chunk::Decompressor;
use outlive_format::{Directory, DirectoryEntry};
use outlive_io::Pace;
use outlive_pool::{PackCheck, Pool};
use outlive_types::{Error, PackId, Result};

/// Checks a pack.
///
/// # Errors
/// `Damaged`, with the first fault that it finds; errors of the targets.
pub fn check_pack(pool: &Pool, pack: PackId, pace: &Pace) -> Result<PackCheck> {
    let mut sorted: Option<Vec<DirectoryEntry>> = None;
    let mut decompressor = Decompressor::default();
    let mut each = |directory: &Directory, offset: u64, bytes: &[u8]| {
        pace.spend(bytes.len() as u64);
        let sorted = sorted.get_or_insert_with(|| {
            let mut entries = directory.entries.clone();
            entries.sort_unstable_by_key(|entry| (entry.offset, entry.frame.map(|f| f.first)));
            entries
        });
        let extent = |entry: &DirectoryEntry| u64::from(entry.offset);
        let from = sorted.partition_point(|entry| extent(entry) < offset);
        let to = sorted.partition_point(|entry| extent(entry) < offset + bytes.len() as u64);
        check_entries(&sorted[from..to], offset, bytes, &mut decompressor)
    };
    pool.check_pack(pack, &mut each)
}

/// Checks the entries of one container, which lies at `offset`.
fn check_entries(
    entries: &[DirectoryEntry],
    offset: u64,
    fragment: &[u8],
    decompressor: &mut Decompressor,
) -> Result<()> {
    let mut open: Option<u32> = None;
    for entry in entries {
        let start = (u64::from(entry.offset) - offset) as usize;
        let stored_bytes = entry.frame.map_or(entry.length, |frame| frame.stored_bytes);
        let stored = fragment.get(start..start + stored_bytes as usize).ok_or_else(|| {
            Error::damaged(format!("an entry at {} does not end in its container", entry.offset))
        })?;
        let bytes = match entry.frame {
            None => stored,
            Some(frame) => {
                if open != Some(entry.offset) {
                    decompressor.decompress(frame.codec, stored, frame.raw_bytes as usize)?;
                    open = Some(entry.offset);
                }
                &decompressor.last()[frame.first as usize..][..entry.length as usize]
            }
        };
        if Verified::new(bytes, entry.kind.slice(), &entry.fp)?.is_none() {
            return Err(Error::damaged(format!(
                "{} bytes at {} do not match their fingerprint {:?}",
                entry.length, entry.offset, entry.fp
            )));
        }
    }
    Ok(())
}
