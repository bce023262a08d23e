//! The directories of all packs, in place of a segment that is damaged. Every pack lists what it has, so merged segments
//! only save reading them.

use super::{Locator, read_segment};
use outlive_format::SegmentRef;
use outlive_pool::Pool;
use outlive_types::{Error, ErrorKind, Result};

/// Memory for an entry of a locator.
const ENTRY_BYTES: u64 = 60;
/// A search may take so many times the memory of the pool's index.
const SEARCH_PER_INDEX: u64 = 4;

/// Where the chunks and nodes of an image are that is restored.
#[derive(Debug)]
pub struct RestoreLocator {
    /// Their places.
    pub locator: Locator,
    /// What is damaged of the segments, if the directories of all packs stand in for it.
    pub instead_of: Option<Error>,
}

impl RestoreLocator {
    /// Loads the `segments` of an image. If one is damaged, or none is known, the directories of all packs tell where
    /// things are.
    ///
    /// - A check does not search: it reports the damage.
    /// - Collectors, and saves that share what segments list, rely on them, and use [`Locator::load`].
    /// - What seems to be missing may have been moved by a collector: `is_named` says whether the log still names these
    ///   segments.
    ///
    /// # Errors
    /// `Damaged` if they are not named any more, if a search would take too much memory, or for a check; what log and
    /// target report.
    pub fn load(
        pool: &Pool,
        segments: &[SegmentRef],
        is_named: &dyn Fn() -> Result<bool>,
    ) -> Result<RestoreLocator> {
        let lists = || Error::damaged("the page that lists its segments is missing or wrong");
        let damage = match Locator::load(pool, segments) {
            Ok(_) if segments.is_empty() => lists(),
            Ok(locator) => return Ok(RestoreLocator { locator, instead_of: None }),
            Err(error) => error,
        };
        if damage.kind() != ErrorKind::Damaged || pool.is_checking() || !is_named()? {
            return Err(damage);
        }
        let locator = search(pool, segments, &damage)?;
        Ok(RestoreLocator { locator, instead_of: Some(damage) })
    }
}

fn search(pool: &Pool, segments: &[SegmentRef], damage: &Error) -> Result<Locator> {
    let entries_max = pool.config().tuning.index_bytes_max * SEARCH_PER_INDEX / ENTRY_BYTES;
    let mut locator = Locator::default();
    // What can be read of them comes first: of two places it names the one that a collector keeps.
    for segment in segments {
        if let Ok(directory) = read_segment(pool, segment) {
            locator.extend(&directory, &|_| true);
        }
    }
    for pack in pool.packs()? {
        match pool.directory_of(pack) {
            Ok((directory, _)) => drop(locator.extend(&directory, &|_| true)),
            Err(error) if error.kind() == ErrorKind::Damaged => {}
            Err(error) => return Err(error),
        }
        if locator.len() as u64 > entries_max {
            return Err(damage.clone().context(
                "the pool is too large to look for what a damaged segment lists while something is \
                 restored, unless index_bytes_max in pool.toml is raised",
            ));
        }
    }
    Ok(locator)
}
