//! Reads the index of the whole pool as soon as that pays.

use super::PoolIndex;
use super::pool_index::PAYS_FROM;
use super::survey::Survey;
use outlive_pool::Pool;
use outlive_types::{PackId, Result};
use std::collections::HashSet;

/// Growth of the bytes to save between a look that read only a part and the next one. So all looks
/// together cost little more than the last one.
const LOOKS_GROW: u64 = 8;
const LOOK_BYTES_MIN: u64 = 1 << 20;
/// Saved bytes for each byte of an index, and [`STALE_BYTES_MIN`] at least, after which it is read
/// again: other jobs have saved meanwhile.
const STALE_AFTER: u64 = 64;
const STALE_BYTES_MIN: u64 = 4 << 30;

/// Chunks that a job can share, read when that pays.
#[derive(Debug, Default)]
pub struct SharedChunks {
    index: Option<PoolIndex>,
    /// Bytes of saves since the index was last read as a whole.
    since_bytes: u64,
    /// Value of `since_bytes` at which the logs are read again.
    due_bytes: u64,
}

impl SharedChunks {
    /// Takes account of a save of `bytes`, and reads as much of the index as pays now. Omits the
    /// packs in `condemned`, which the writer knows, even where they are not reported to other jobs
    /// yet.
    ///
    /// # Errors
    /// Errors of the log.
    pub fn refresh(
        this: &mut Option<SharedChunks>,
        pool: &Pool,
        bytes: u64,
        condemned: &HashSet<PackId>,
    ) -> Result<()> {
        let shared = this.get_or_insert_default();
        let bytes_max = pool.config().tuning.index_bytes_max;
        shared.since_bytes = shared.since_bytes.saturating_add(bytes);
        if bytes_max == 0 || bytes == 0 || shared.since_bytes < shared.due_bytes {
            if let Some(index) = &shared.index {
                index.earn(bytes);
            }
            return Ok(());
        }
        let mut survey = Survey::new(pool, shared.since_bytes / PAYS_FROM)?;
        survey.condemned.extend(condemned);
        let all_bytes = survey.all_bytes;
        if survey.is_whole {
            shared.since_bytes = 0;
            shared.due_bytes = (all_bytes * STALE_AFTER).max(STALE_BYTES_MIN);
        } else {
            let next = shared.since_bytes.saturating_mul(LOOKS_GROW).max(LOOK_BYTES_MIN);
            shared.due_bytes = next.min(all_bytes.saturating_mul(PAYS_FROM));
        }
        // Two indexes at once would take twice the memory.
        shared.index = None;
        if !survey.segments.is_empty() {
            shared.index = Some(PoolIndex::load(pool, survey, bytes_max));
        }
        Ok(())
    }

    /// Returns the index, as far as it was read.
    pub fn index(&self) -> Option<&PoolIndex> {
        self.index.as_ref()
    }
}
