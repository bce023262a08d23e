//! When the index of the whole pool is read: as soon as that pays.

use super::PoolIndex;
use super::pool_index::PAYS_FROM;
use super::survey::Survey;
use outlive_pool::Pool;
use outlive_types::{PackId, Result};
use std::collections::HashSet;

/// After one of which only a part was read, the next look comes when there is so many times as much to
/// save: so all looks together take little more than the last.
const LOOKS_GROW: u64 = 8;
const LOOK_BYTES_MIN: u64 = 1 << 20;
/// An index is read anew after so many bytes for each of its own, and at least [`STALE_BYTES_MIN`]:
/// other jobs have gone on meanwhile.
const STALE_AFTER: u64 = 64;
const STALE_BYTES_MIN: u64 = 4 << 30;

/// Chunks that a job can share, read when that pays.
#[derive(Debug, Default)]
pub struct SharedChunks {
    index: Option<PoolIndex>,
    /// Bytes that saves have dealt with since the index was read whole.
    since_bytes: u64,
    /// The logs are asked when it is as much.
    due_bytes: u64,
}

impl SharedChunks {
    /// Takes notice of a save of `bytes`, and reads as much of the index as pays now. Packs in
    /// `condemned`, of which the writer has been told, are left out even where other jobs have not
    /// been told yet.
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
        // Two at once would take twice the memory.
        shared.index = None;
        if !survey.segments.is_empty() {
            shared.index = Some(PoolIndex::load(pool, survey, bytes_max));
        }
        Ok(())
    }

    /// The index, as far as it was read.
    pub fn index(&self) -> Option<&PoolIndex> {
        self.index.as_ref()
    }
}
