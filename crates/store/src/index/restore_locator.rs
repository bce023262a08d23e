//! Replaces a damaged segment by the directories of all packs. Every pack lists its content; merged
//! segments only save reading the directories.

use super::{Locator, read_segment};
use outlive_format::SegmentRef;
use outlive_pool::Pool;
use outlive_types::{Error, ErrorKind, Result};

/// Memory for an entry of a locator.
const ENTRY_BYTES: u64 = 60;
/// A search may take this many times the memory of the pool's index.
const SEARCH_PER_INDEX: u64 = 4;

/// Pack extents of the chunks and nodes of an image to restore.
#[derive(Debug)]
pub struct RestoreLocator {
    /// The pack extents.
    pub locator: Locator,
    /// The damage of the segments, if the directories of all packs replace them.
    pub instead_of: Option<Error>,
}

impl RestoreLocator {
    /// Loads the `segments` of an image. If one is damaged, or none is known, reads the directories
    /// of all packs instead.
    ///
    /// - A check does not search: it reports the damage.
    /// - Collectors, and saves that share chunks of segments, rely on the segments, and use
    ///   [`Locator::load`].
    /// - A collector may have moved data that seems to be missing: `is_named` returns whether the
    ///   log still names these segments.
    ///
    /// # Errors
    /// `Damaged` if the log no longer names them, if a search would take too much memory, or for a
    /// check; errors of log and target.
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
    // Readable segments come first: of two pack extents they list the one that a collector keeps.
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
